/* What communicators share of calls and groups; see call.h. */
#include "comm/call.h"

#include "base/reduce.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>

static const char *const call_collective_text[] = {
#define CALL_COLLECTIVE_TEXT(word, text) text,
    TESS_COLLECTIVE_LIST(CALL_COLLECTIVE_TEXT)
#undef CALL_COLLECTIVE_TEXT
};

const char *tess_collective_name(enum tess_collective collective)
{
    return (unsigned)collective < TESS_COLLECTIVE_COUNT ? call_collective_text[collective]
                                                        : "unknown";
}

enum tess_status tess__call_copy(struct tess_queue *queue, void *target, const void *source,
                                 size_t bytes)
{
    if (bytes == 0 || target == source)
        return TESS_OK;
    if (queue != NULL)
        return queue->ops->copy(queue, bytes, source, target);
    memcpy(target, source, bytes);
    return TESS_OK;
}

enum tess_status tess__call_reduce(const struct tess_comm *comm, const struct tess_comm_call *call,
                                   const struct tess__call_queue *queue, const void *const *source,
                                   int32_t m, void **target, size_t count)
{
    if (count == 0)
        return TESS_OK;
    if (queue != NULL)
        return tess__call_reduce_pieces(queue->queue, call->dtype, call->reduce, comm->rank_count,
                                        source, m, target, count, &queue->partials);
    tess__reduce(call->dtype, call->reduce, comm->rank_count, source, m, target, count);
    return TESS_OK;
}

int32_t tess__call_partials(int32_t n)
{
    return n > TESS_QUEUE_PEERS_MAX ? (n + TESS_QUEUE_PEERS_MAX - 1) / TESS_QUEUE_PEERS_MAX : 0;
}

_Static_assert((TESS_QUEUE_PEERS_MAX & (TESS_QUEUE_PEERS_MAX - 1)) == 0,
               "so many neighbours are a subtree");

enum tess_status tess__call_reduce_many(struct tess_queue *queue, enum tess_dtype dtype,
                                        enum tess_dtype to, enum tess_reduce reduce, int32_t n,
                                        const void **source, int32_t m, void *const *target,
                                        size_t count, const struct tess__partials *partials)
{
    const bool narrow = (dtype == TESS_F16 || dtype == TESS_BF16) && reduce == TESS_REDUCE_SUM;
    const enum tess_dtype wide = narrow ? TESS_F32 : dtype; /* rounded once, at the end */
    for (; n > TESS_QUEUE_PEERS_MAX; n = tess__call_partials(n), dtype = wide) {
        /* Partial sum g takes the place of source g, and in later turns that of a partial sum
         * which has been added up: it is of subtree g or of one before. */
        for (int32_t g = 0; g < tess__call_partials(n); g++) {
            const int32_t first = g * TESS_QUEUE_PEERS_MAX, rest = n - first;
            void *partial = partials->memory + (size_t)g * partials->stride;
            TESS_TRY(queue->ops->reduce(queue, dtype, wide, reduce,
                                        rest < TESS_QUEUE_PEERS_MAX ? rest : TESS_QUEUE_PEERS_MAX,
                                        source + first, 1, &partial, count));
            source[g] = partial;
        }
    }
    for (int32_t k = 0; k < m; k += TESS_QUEUE_PEERS_MAX)
        TESS_TRY(queue->ops->reduce(queue, dtype, to, reduce, n, source,
                                    m - k < TESS_QUEUE_PEERS_MAX ? m - k : TESS_QUEUE_PEERS_MAX,
                                    target + k, count));
    return TESS_OK;
}

enum tess_status tess__call_reduce_pieces(struct tess_queue *queue, enum tess_dtype dtype,
                                          enum tess_reduce reduce, int32_t n,
                                          const void *const *source, int32_t m, void **target,
                                          size_t count, const struct tess__partials *partials)
{
    const size_t size = tess_dtype_bytes(dtype);
    const size_t wide = size > sizeof(float) ? size : sizeof(float); /* of a partial sum */

    if (n <= TESS_QUEUE_PEERS_MAX)
        return queue->ops->reduce(queue, dtype, dtype, reduce, n, source, m, target, count);
    const size_t most = partials->stride / wide;
    for (size_t at = 0, piece; at < count; at += piece) {
        piece = count - at < most ? count - at : most;
        for (int32_t r = 0; r < n; r++)
            partials->source[r] = (const char *)source[r] + at * size;
        TESS_TRY(tess__call_reduce_many(queue, dtype, dtype, reduce, n, partials->source, m, target,
                                        piece, partials));
        for (int32_t k = 0; k < m; k++)
            target[k] = (char *)target[k] + piece * size;
    }
    return TESS_OK;
}

enum tess_status tess__call_take(const struct tess_comm *comm, const struct tess_comm_call *call,
                                 const struct tess__call_queue *queue, const void **source,
                                 size_t stride, size_t begin, size_t count)
{
    const size_t size = tess_dtype_bytes(call->dtype);
    const int32_t rank = comm->rank, rank_count = comm->rank_count;
    const bool all_to_all = call->collective == TESS_COLLECTIVE_ALL_TO_ALL;
    const size_t own_at = (size_t)rank * stride * size;
    if (count == 0)
        return TESS_OK;
    char *target = call->target == NULL ? NULL : (char *)call->target + begin * size;
    void *targets[1] = {target};
    struct tess_queue *copies = queue != NULL ? queue->queue : NULL;
    switch (call->collective) {
    case TESS_COLLECTIVE_REDUCE:
        if (rank != call->peer)
            return TESS_OK;
        /* fall through */
    case TESS_COLLECTIVE_ALL_REDUCE:
        return tess__call_reduce(comm, call, queue, source, 1, targets, count);
    case TESS_COLLECTIVE_REDUCE_SCATTER:
        for (int32_t r = 0; r < rank_count; r++)
            source[r] = (const char *)source[r] + own_at;
        return tess__call_reduce(comm, call, queue, source, 1, targets, count);
    case TESS_COLLECTIVE_ALL_GATHER:
    case TESS_COLLECTIVE_ALL_TO_ALL:
        /* Each rank begins with another peer, so that they do not all read from the same one. */
        for (int32_t i = 0; i < rank_count; i++) {
            const int32_t r = (rank + i) % rank_count;
            TESS_TRY(tess__call_copy(copies, target + (size_t)r * call->count * size,
                                     (const char *)source[r] + (all_to_all ? own_at : 0),
                                     count * size));
        }
        return TESS_OK;
    case TESS_COLLECTIVE_BROADCAST:
        if (rank == call->peer)
            return TESS_OK;
        return tess__call_copy(copies, target, source[call->peer], count * size);
    default:
        return TESS_OK; /* a barrier moves nothing */
    }
}

void tess__call_count(struct tess_comm *comm, const struct tess_comm_call *call, size_t bytes)
{
    const enum tess_collective kind = call->collective;
    const bool cast = kind == TESS_COLLECTIVE_BROADCAST, root = comm->rank == call->peer;
    const size_t others = tess__call_is_message(call) ? 1 : (size_t)comm->rank_count - 1;
    if (kind != TESS_COLLECTIVE_RECV && (root || !cast))
        comm->stats.sent_bytes += others * bytes;
    if (kind != TESS_COLLECTIVE_SEND && !(root && cast))
        comm->stats.received_bytes += (cast ? 1 : others) * bytes;
}

void tess__call_count_slice(struct tess_comm *comm, const struct tess_comm_call *call,
                            size_t slice_bytes)
{
    /* Peers take my source outside my slice, and my target gets it there; I do the same to them. */
    const size_t rest = call->count * tess_dtype_bytes(call->dtype) - slice_bytes;
    const size_t others = (size_t)comm->rank_count - 1;
    const bool all = call->collective == TESS_COLLECTIVE_ALL_REDUCE;
    const bool root = comm->rank == call->peer;
    comm->stats.sent_bytes += rest + (all ? others * slice_bytes : root ? 0 : slice_bytes);
    comm->stats.received_bytes += others * slice_bytes + (all || root ? rest : 0);
}

void tess__call_count_share(struct tess_comm *comm, const struct tess_comm_call *call,
                            size_t slice_count)
{
    const size_t others = (size_t)comm->rank_count - 1, rest = call->count - slice_count;
    const size_t size = tess_dtype_bytes(call->dtype), given = call->share->given_bytes;
    comm->stats.sent_bytes += rest * size + others * slice_count * given;
    comm->stats.received_bytes += others * slice_count * size + rest * given;
}

void tess__call_name(const struct tess_comm_call *call, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s%s%s", tess_collective_name(call->collective),
             call->site[0] != '\0' ? " at " : "", call->site);
}

void tess__call_describe(const struct tess__call_key *key, const char *site, char *text,
                         size_t text_bytes)
{
    static const char *const reduce_text[] = {" (sum)", " (max)", " (min)"};
    const enum tess_collective kind = (enum tess_collective)key->collective;
    const bool shared = (key->way & TESS__SHARED) != 0;
    const bool sums = kind == TESS_COLLECTIVE_ALL_REDUCE ||
                      kind == TESS_COLLECTIVE_REDUCE_SCATTER || kind == TESS_COLLECTIVE_REDUCE;
    char what[64] = "", with[40] = "";
    if (kind != TESS_COLLECTIVE_BARRIER)
        snprintf(what, sizeof(what), " of %llu %s%s%s", (unsigned long long)key->count,
                 tess_dtype_name((enum tess_dtype)key->dtype),
                 shared ? " (shared)"
                 : sums ? reduce_text[key->reduce % 3]
                        : "",
                 key->way & TESS__ON_DEVICE ? " in device memory" : "");
    if (kind == TESS_COLLECTIVE_BROADCAST || kind == TESS_COLLECTIVE_REDUCE)
        snprintf(with, sizeof(with), " with root %d", (int)key->peer);
    snprintf(text, text_bytes, "%s%s%s%s%s", tess_collective_name(kind), what, with,
             site[0] != '\0' ? " at " : "", site);
}

void tess__call_differs(uint64_t number, struct tess__call_end own, struct tess__call_end theirs,
                        char *text, size_t text_bytes)
{
    char mine[200], other[200];
    tess__call_describe(own.key, own.site, mine, sizeof(mine));
    tess__call_describe(theirs.key, theirs.site, other, sizeof(other));
    snprintf(text, text_bytes,
             "call %llu of the group differs between ranks: rank %d called %s, rank %d called %s; "
             "every rank must make the same calls in the same order",
             (unsigned long long)number, (int)own.rank, mine, (int)theirs.rank, other);
}

void tess__message_differs(uint64_t number, struct tess__call_end send, struct tess__call_end recv,
                           char *text, size_t text_bytes)
{
    char what[2][64];
    const struct tess__call_key *key[2] = {send.key, recv.key};
    for (int i = 0; i < 2; i++)
        snprintf(what[i], sizeof(what[i]), "%llu %s%s", (unsigned long long)key[i]->count,
                 tess_dtype_name((enum tess_dtype)key[i]->dtype),
                 key[i]->way & TESS__ON_DEVICE ? " in device memory" : "");
    snprintf(text, text_bytes,
             "message %llu from rank %d to rank %d differs: rank %d sends %s, rank %d receives %s; "
             "both sides must give the same count, dtype and kind of memory",
             (unsigned long long)number, (int)send.rank, (int)recv.rank, (int)send.rank, what[0],
             (int)recv.rank, what[1]);
}

static bool split_before(const struct tess__split *all, int32_t a, int32_t b)
{
    return all[a].key != all[b].key ? all[a].key < all[b].key : a < b;
}

static void split_swap(int32_t *a, int32_t *b)
{
    const int32_t kept = *a;
    *a = *b;
    *b = kept;
}

/* Of a heap whose last is on top, put the one at `at` where it belongs. */
static void split_sink(const struct tess__split *all, int32_t *heap, int32_t at, int32_t count)
{
    for (int32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && split_before(all, heap[child], heap[child + 1]))
            child++;
        if (!split_before(all, heap[at], heap[child]))
            return;
        split_swap(&heap[at], &heap[child]);
    }
}

int32_t tess__split_members(const struct tess__split *all, int32_t rank_count, int32_t rank,
                            int32_t *member_out, int32_t *index_out)
{
    int32_t count = 0;
    for (int32_t r = 0; r < rank_count; r++)
        if (all[r].color == all[rank].color)
            member_out[count++] = r;
    for (int32_t at = count / 2; at-- > 0;)
        split_sink(all, member_out, at, count);
    for (int32_t end = count; --end > 0;) {
        split_swap(&member_out[0], &member_out[end]);
        split_sink(all, member_out, 0, end);
    }
    for (int32_t i = 0; i < count; i++)
        if (member_out[i] == rank)
            *index_out = i;
    return count;
}

void tess__name_ranks(const bool *in, int32_t rank_count, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int32_t r = 0, end; r < rank_count; r = end) {
        char one[40], to[16] = "";
        for (end = r + 1; in[r] && end < rank_count && in[end];)
            end++;
        if (!in[r])
            continue;
        end = end - r > 2 ? end : r + 1; /* two are listed, not spanned */
        if (end > r + 1)
            snprintf(to, sizeof(to), "-%d", (int)end - 1);
        const int length = snprintf(one, sizeof(one), "%s%d%s", used > 0 ? ", " : "", (int)r, to);
        if (used + (size_t)length + sizeof(", ...") > text_bytes) {
            snprintf(text + used, text_bytes - used, ", ...");
            return;
        }
        memcpy(text + used, one, (size_t)length + 1);
        used += (size_t)length;
    }
}
