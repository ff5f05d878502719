/*
 * How the collectives of a group are run. Every rank runs the calls in order, each rank its own
 * share:
 *
 *   small     The sources were staged when the call was posted. Each rank takes what it needs from
 *             all of them: one synchronisation, and a source is free at once.
 *   direct    Peers' buffers can be reached: read (and for sums written) in place.
 *               all_reduce, reduce   rank r sums slice r of all sources into all targets
 *               share                rank r is given slice r of all sources
 *               the others           each rank pulls what it needs
 *             Device memory (local_device.c): the same, given to a queue of the device.
 *   chunked   Some buffer is private: sources are staged piece by piece through two shared chunks;
 *             between two pieces the ranks synchronise once each way. Each takes all of a sum from
 *             all chunks; in groups of more than RUN_WHOLE_RANKS a slice of it, which the others
 *             take from its chunk.
 *
 * Which of the three follows from the posted descriptors alone, so that all ranks agree. Sums are
 * always taken in the canonical order: it costs no more than another one here.
 */
#include "comm/local/shared.h"
#include "tessera/check.h"

#include <string.h>

#define RUN_WHOLE_RANKS 64

static const struct local_desc *run_desc(const struct local_group *group, int32_t peer, uint64_t t)
{
    return &group->other[peer].member->ring[t % LOCAL_RING];
}

static bool run_has_posted(const struct local_group *group, int32_t peer, uint64_t t)
{
    return atomic_load(&run_desc(group, peer, t)->seq) == t + 1;
}

bool tess__local_is_posted(struct local_group *group, uint64_t t)
{
    const struct tess_comm_call *call = &group->call[t % LOCAL_RING];
    if (call->collective == TESS_COLLECTIVE_BROADCAST)
        return run_has_posted(group, call->peer, t);
    if (group->posted_of != t)
        group->posted_members = 0;
    group->posted_of = t;
    while (group->posted_members < group->comm.rank_count &&
           run_has_posted(group, group->posted_members, t))
        group->posted_members++;
    return group->posted_members == group->comm.rank_count;
}

static uint64_t run_progress(const struct local_group *group, int32_t peer)
{
    return atomic_load(&group->other[peer].member->progress);
}

/* Have all ranks of the group come as far as `progress`? */
static bool run_all_reached(const struct local_group *group, uint64_t progress)
{
    for (int32_t r = 0; r < group->comm.rank_count; r++)
        if (run_progress(group, r) < progress)
            return false;
    return true;
}

uint64_t tess__local_run_by_all(const struct local_group *group)
{
    uint64_t least = UINT64_MAX;
    for (int32_t r = 0; r < group->comm.rank_count; r++) {
        uint64_t progress = run_progress(group, r);
        least = progress < least ? progress : least;
    }
    return least >> 32;
}

bool tess__local_is_run(struct local_group *group, uint64_t t)
{
    if (group->run_of != t)
        group->run_members = 0;
    group->run_of = t;
    while (group->run_members < group->comm.rank_count &&
           run_progress(group, group->run_members) >> 32 > t)
        group->run_members++;
    return group->run_members == group->comm.rank_count;
}

/* Publish how far this rank is. Only the last to come so far wakes the others: no rank waits for
 * less. */
static void run_publish(struct local_group *group, uint64_t progress, enum world_sleep least)
{
    atomic_store(&tess__local_own(group)->progress, progress);
    if (run_all_reached(group, progress))
        tess__local_ring(group, least);
}

/* All ranks that take part must have made the same call; if not, nothing later can be right. */
static enum tess_status run_compare(struct local_group *group, uint64_t t)
{
    const struct tess__call_key *own = &run_desc(group, group->comm.rank, t)->key;
    const bool rooted = own->collective == TESS_COLLECTIVE_BROADCAST;
    for (int32_t r = 0; r < group->comm.rank_count; r++) {
        const struct tess__call_key *key = &run_desc(group, r, t)->key;
        if ((rooted && r != own->peer) || memcmp(key, own, sizeof(*key)) == 0)
            continue;
        /* A peer's site is an address of that rank. */
        const struct tess__call_end mine = {group->world_rank[group->comm.rank], own,
                                            group->call[t % LOCAL_RING].site};
        const struct tess__call_end theirs = {group->world_rank[r], key, ""};
        char reason[600];
        tess__call_differs(t + 1, mine, theirs, reason, sizeof(reason));
        return tess__local_fail(group, TESS_ERR_COMM, reason);
    }
    return TESS_OK;
}

static bool run_is_sliced(const struct tess_comm_call *call)
{
    return call->collective == TESS_COLLECTIVE_ALL_REDUCE ||
           call->collective == TESS_COLLECTIVE_REDUCE;
}

static void run_plan(struct local_group *group, uint64_t t)
{
    const struct tess_comm_call *call = &group->call[t % LOCAL_RING];
    int32_t n = group->comm.rank_count;
    bool small = !call->device && call->share == NULL &&
                 tess__call_source_bytes(&group->comm, call) <= tess__local_small_bytes(group);
    bool reachable = true;
    for (int32_t r = 0; r < n && !small && !call->device; r++) {
        const struct local_desc *desc = run_desc(group, r, t);
        bool is_root = r == call->peer;
        if (call->collective == TESS_COLLECTIVE_BROADCAST && !is_root)
            continue; /* may not even have posted it */
        bool writes = call->collective == TESS_COLLECTIVE_ALL_REDUCE ||
                      (call->collective == TESS_COLLECTIVE_REDUCE && is_root);
        reachable = reachable && desc->source_shared && (!writes || desc->target_shared);
    }
    size_t parts = tess__call_source_parts(&group->comm, call->collective);
    size_t elements = group->rank->world->chunk_bytes / parts / tess_dtype_bytes(call->dtype);
    group->small = small;
    group->chunked = !small && !reachable;
    group->chunk = 0;
    group->summed_bytes = 0;
    group->chunk_elements = elements;
    group->chunk_count = (call->count + elements - 1) / elements;
    /* Other ranks do not touch the buffers of a rank that only takes from the root. */
    bool takes_only =
        call->collective == TESS_COLLECTIVE_BROADCAST && call->peer != group->comm.rank;
    group->waits_for_all[t % LOCAL_RING] = !small && reachable && !takes_only;
    group->planned = true;
}

/* This rank's slice of a sum, from all sources into all targets in place. */
static enum tess_status run_slice_sum(struct local_group *group, const struct tess_comm_call *call,
                                      const struct tess__call_queue *queue, uint64_t t)
{
    int32_t n = group->comm.rank_count, rank = group->comm.rank;
    size_t size = tess_dtype_bytes(call->dtype);
    size_t begin = tess__call_slice(call->count, rank, n);
    size_t count = tess__call_slice(call->count, rank + 1, n) - begin;
    int32_t m = 0;
    for (int32_t r = 0; r < n; r++) {
        const struct local_desc *desc = run_desc(group, r, t);
        group->source[r] = (const char *)desc->source + begin * size;
        if (call->collective == TESS_COLLECTIVE_ALL_REDUCE || r == call->peer)
            group->target[m++] = (char *)desc->target + begin * size;
    }
    TESS_TRY(tess__call_reduce(&group->comm, call, queue, group->source, m, group->target, count));
    tess__call_count_slice(&group->comm, call, count * size);
    return TESS_OK;
}

/* This rank's slice, for what the caller does with it. */
static void run_share(struct local_group *group, const struct tess_comm_call *call, uint64_t t)
{
    const int32_t n = group->comm.rank_count, rank = group->comm.rank;
    const size_t begin = tess__call_slice(call->count, rank, n);
    const size_t count = tess__call_slice(call->count, rank + 1, n) - begin;
    for (int32_t r = 0; r < n; r++)
        group->source[r] = run_desc(group, r, t)->source;
    if (count > 0)
        call->share->run(call->share->context, group->source, begin, count);
    tess__call_count_share(&group->comm, call, count);
}

/* Bytes that cross ranks when each takes what it needs from the sources. */
static void run_count_taken(struct local_group *group, const struct tess_comm_call *call)
{
    const size_t bytes = call->count * tess_dtype_bytes(call->dtype);
    if (call->collective == TESS_COLLECTIVE_REDUCE) /* the root adds up all of it */
        tess__call_count_slice(&group->comm, call, group->comm.rank == call->peer ? bytes : 0);
    else
        tess__call_count(&group->comm, call, bytes);
}

static enum tess_status run_whole(struct local_group *group, uint64_t t)
{
    const struct tess_comm_call *call = &group->call[t % LOCAL_RING];
    const struct tess__call_queue *queue = call->device ? tess__local_device_queue(group) : NULL;
    if (call->share != NULL) {
        run_share(group, call, t);
        return TESS_OK;
    }
    if (!group->small && run_is_sliced(call))
        return run_slice_sum(group, call, queue, t);
    for (int32_t r = 0; r < group->comm.rank_count; r++)
        if (call->collective != TESS_COLLECTIVE_BROADCAST || r == call->peer)
            group->source[r] = run_desc(group, r, t)->source;
    TESS_TRY(
        tess__call_take(&group->comm, call, queue, group->source, call->count, 0, call->count));
    run_count_taken(group, call);
    return TESS_OK;
}

/* The same in device memory: between what the ranks' kernels did before and what they do after. */
static enum tess_status run_on_device(struct local_group *group, uint64_t t)
{
    TESS_TRY(tess__local_device_begin(group, t));
    TESS_TRY(run_whole(group, t));
    return tess__local_device_end(group, t);
}

static unsigned char *run_chunk(const struct local_group *group, int32_t peer, uint64_t k)
{
    return group->other[peer].chunks + k % 2 * group->rank->world->chunk_bytes;
}

static void run_stage_chunk(struct local_group *group, const struct tess_comm_call *call,
                            size_t begin, size_t n)
{
    if (call->collective == TESS_COLLECTIVE_BROADCAST && group->comm.rank != call->peer)
        return;
    size_t size = tess_dtype_bytes(call->dtype);
    unsigned char *chunk = run_chunk(group, group->comm.rank, group->chunk);
    for (size_t p = 0; p < tess__call_source_parts(&group->comm, call->collective); p++)
        memcpy(chunk + p * n * size, (const char *)call->source + (p * call->count + begin) * size,
               n * size);
}

/* This rank's slice of a piece of `count` elements, from all chunks into its own: no other rank
 * reads it there before it is summed. */
static void run_sum_piece(struct local_group *group, const struct tess_comm_call *call,
                          size_t count)
{
    const int32_t n = group->comm.rank_count, rank = group->comm.rank;
    const size_t begin = tess__call_slice(count, rank, n),
                 end = tess__call_slice(count, rank + 1, n);
    const size_t at = begin * tess_dtype_bytes(call->dtype);
    for (int32_t r = 0; r < n; r++)
        group->source[r] = run_chunk(group, r, group->chunk) + at;
    group->target[0] = run_chunk(group, rank, group->chunk) + at;
    (void)tess__call_reduce(&group->comm, call, NULL, group->source, 1, group->target,
                            end - begin); /* host memory: cannot fail */
    group->summed_bytes += (end - begin) * tess_dtype_bytes(call->dtype);
}

/* The others' slices of the piece that begins at element `first`. */
static void run_take_slices(struct local_group *group, const struct tess_comm_call *call,
                            size_t first, size_t count)
{
    const int32_t n = group->comm.rank_count;
    const size_t size = tess_dtype_bytes(call->dtype);
    if (call->collective == TESS_COLLECTIVE_REDUCE && group->comm.rank != call->peer)
        return;
    for (int32_t r = 0; r < n; r++) {
        const size_t begin = tess__call_slice(count, r, n), end = tess__call_slice(count, r + 1, n);
        memcpy((char *)call->target + (first + begin) * size,
               run_chunk(group, r, group->chunk) + begin * size, (end - begin) * size);
    }
}

static void run_take_whole(struct local_group *group, const struct tess_comm_call *call,
                           size_t first, size_t count)
{
    for (int32_t r = 0; r < group->comm.rank_count; r++)
        group->source[r] = run_chunk(group, r, group->chunk);
    (void)tess__call_take(&group->comm, call, NULL, group->source, count, first,
                          count); /* host memory: cannot fail */
}

/* Advance a chunked call by as many phases as the others allow; true when it is done.
 *   first    all have taken piece k - 2: stage piece k in chunk k % 2
 *   second   all have staged piece k: take it, or sum a slice
 *   third    after a slice, all have summed theirs: take them */
static bool run_chunks(struct local_group *group, uint64_t t, bool *moved_out)
{
    const struct tess_comm_call *call = &group->call[t % LOCAL_RING];
    const bool sliced = run_is_sliced(call) && group->comm.rank_count > RUN_WHOLE_RANKS;
    const _Atomic uint64_t *progress = &tess__local_own(group)->progress;
    const uint64_t phases = sliced ? 3 : 2, start = t << 32;
    while (group->chunk < group->chunk_count) {
        uint64_t k = group->chunk, at = atomic_load_explicit(progress, memory_order_relaxed);
        size_t begin = k * group->chunk_elements, left = call->count - begin;
        size_t count = left < group->chunk_elements ? left : group->chunk_elements;
        const uint64_t phase = (at - start) % phases;
        uint64_t need = phase > 0 ? at : start + (k >= 2 ? phases * (k - 1) : 0);
        if (!run_all_reached(group, need))
            return false;
        if (phase == 0)
            run_stage_chunk(group, call, begin, count);
        else if (!sliced)
            run_take_whole(group, call, begin, count);
        else if (phase == 1)
            run_sum_piece(group, call, count);
        else
            run_take_slices(group, call, begin, count);
        group->chunk += phase + 1 == phases ? 1 : 0;
        run_publish(group, at + 1, WORLD_SLEEPS);
        *moved_out = true;
    }
    if (sliced)
        tess__call_count_slice(&group->comm, call, group->summed_bytes);
    else
        run_count_taken(group, call);
    return true;
}

void tess__local_report(struct local_group *group)
{
    if (group->reported == group->next_call)
        return;
    for (; group->reported < group->next_call; group->reported++) {
        uint64_t t = group->reported;
        if (!group->waits_for_all[t % LOCAL_RING])
            continue;
        if (!tess__local_is_run(group, t))
            return;
        tess_comm_completed(&group->comm, tess__ticket(TESS__COLLECTIVE, 0, t));
    }
}

enum tess_status tess__local_run(struct local_group *group, bool *moved_out)
{
    while (group->next_call < group->posted) {
        uint64_t t = group->next_call;
        if (!group->planned) {
            if (!tess__local_is_posted(group, t))
                return TESS_OK;
            TESS_TRY(run_compare(group, t));
            run_plan(group, t);
        }
        if (group->call[t % LOCAL_RING].device)
            TESS_TRY(run_on_device(group, t));
        else if (!group->chunked)
            TESS_TRY(run_whole(group, t));
        else if (!run_chunks(group, t, moved_out))
            return TESS_OK;
        group->planned = false;
        group->next_call = t + 1;
        *moved_out = true;
        run_publish(group, (t + 1) << 32, group->small ? WORLD_SLEEPS_FOR_ROOM : WORLD_SLEEPS);
        if (group->waits_for_all[t % LOCAL_RING])
            continue;
        group->reported += group->reported == t ? 1 : 0;
        tess_comm_completed(&group->comm, tess__ticket(TESS__COLLECTIVE, 0, t));
    }
    return TESS_OK;
}
