/*
 * The comparing communicator; see comm/debug.h. Every call goes to `inner` unchanged. What the
 * ranks are about to do is exchanged over a group of its own, so that neither the order nor the
 * counters of the user's calls change.
 */
#include "comm/debug.h"

#include "comm/call.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEBUG_SIDES_MAX 4 /* named in a message */
#define DEBUG_TEXT_MAX  960

/* Not a collective outside this file. */
#define DEBUG_SPLIT TESS_COLLECTIVE_COUNT

/* What a rank is about to do, as it is sent to the others. */
struct debug_intent {
    uint64_t count;
    int64_t step;
    int32_t collective, reduce, dtype, peer;
    int32_t world_rank;
    int32_t doing, unit; /* doing -1: no board */
    char site[44];
};

struct debug_comm {
    struct tess_comm comm;
    struct tess_comm *inner, *side;
    struct tess_comm_observer forward; /* inner's */
    const struct tess_board *board;
    const char *const *unit_name;
    int32_t unit_count;
    int32_t world_rank;
    uint64_t compared; /* calls, this one included */
    char site[240];    /* of the exchange */
    struct debug_intent all[];
};

static enum tess_status debug_wrap(struct tess_comm *inner, const struct debug_comm *like,
                                   struct debug_comm **debug_out);

static struct debug_comm *debug_of(struct tess_comm *comm)
{
    return (struct debug_comm *)comm;
}

static void debug_called(void *context, const struct tess_comm *inner,
                         const struct tess_comm_call *call, uint64_t ticket)
{
    (void)inner;
    struct debug_comm *debug = context;
    tess_comm_called(&debug->comm, call, ticket);
}

/* The communicator below counts bytes, at the latest when a call is complete. */
static void debug_count(struct debug_comm *debug)
{
    debug->comm.stats.sent_bytes = debug->inner->stats.sent_bytes;
    debug->comm.stats.received_bytes = debug->inner->stats.received_bytes;
}

static void debug_completed(void *context, const struct tess_comm *inner, uint64_t ticket)
{
    (void)inner;
    struct debug_comm *debug = context;
    debug_count(debug);
    tess_comm_completed(&debug->comm, ticket);
}

static void debug_describe_call(const struct debug_intent *intent, char *text, size_t text_bytes)
{
    const struct tess_comm_call call = {.collective = (enum tess_collective)intent->collective,
                                        .reduce = (enum tess_reduce)intent->reduce,
                                        .dtype = (enum tess_dtype)intent->dtype,
                                        .count = intent->count,
                                        .peer = intent->peer,
                                        .site = intent->site};
    if (intent->collective == DEBUG_SPLIT)
        snprintf(text, text_bytes, "split%s%s", intent->site[0] != '\0' ? " at " : "",
                 intent->site);
    else
        tess__call_describe(&call, text, text_bytes);
}

/* ", in backward of unit 1 (fc2), step 17", by the words of the board. */
static void debug_describe_doing(const struct debug_comm *debug, const struct debug_intent *intent,
                                 char *text, size_t text_bytes)
{
    text[0] = '\0';
    if (intent->doing < 0)
        return;
    struct tess_board board;
    atomic_init(&board.doing, intent->doing);
    atomic_init(&board.unit, intent->unit);
    atomic_init(&board.step, intent->step);
    atomic_init(&board.collective, -1);
    atomic_init(&board.call_number, 0);
    snprintf(text, text_bytes, ", ");
    tess_board_describe(&board, debug->unit_name, debug->unit_count, text + 2, text_bytes - 2);
}

static struct debug_intent debug_intent_of(const struct debug_comm *debug,
                                           const struct tess_comm_call *call)
{
    struct debug_intent intent;
    memset(&intent, 0, sizeof(intent)); /* holes too: it is sent as bytes */
    intent.count = call->count;
    intent.collective = (int32_t)call->collective;
    intent.reduce = (int32_t)call->reduce;
    intent.dtype = (int32_t)call->dtype;
    intent.peer = call->peer;
    intent.world_rank = debug->world_rank;
    intent.doing = intent.unit = -1;
    if (debug->board != NULL) {
        intent.doing = atomic_load_explicit(&debug->board->doing, memory_order_relaxed);
        intent.unit = atomic_load_explicit(&debug->board->unit, memory_order_relaxed);
        intent.step = atomic_load_explicit(&debug->board->step, memory_order_relaxed);
    }
    snprintf(intent.site, sizeof(intent.site), "%s", call->site);
    return intent;
}

static bool debug_agree(const struct debug_intent *a, const struct debug_intent *b)
{
    bool same_call = a->collective == b->collective && a->reduce == b->reduce &&
                     a->dtype == b->dtype && a->count == b->count && a->peer == b->peer;
    bool same_place = a->step == b->step && (a->unit == b->unit || strcmp(a->site, b->site) == 0);
    return same_call && same_place;
}

/* Ranks that agree; `first` stands for them. */
struct debug_side {
    int32_t first, rank_count;
};

/* Put every rank with the first one that it agrees with: side_of[r] is its side's index. */
static int32_t debug_sort(const struct debug_comm *debug, struct debug_side *side, int32_t *side_of)
{
    int32_t side_count = 0;
    for (int32_t r = 0; r < debug->comm.rank_count; r++) {
        int32_t s = 0;
        while (s < side_count && !debug_agree(&debug->all[side[s].first], &debug->all[r]))
            s++;
        if (s == side_count)
            side[side_count++] = (struct debug_side){.first = r};
        side[s].rank_count++;
        side_of[r] = s;
    }
    return side_count;
}

/* "rank 2: " or "ranks 0, 1, 4-7: ", by their ranks in the world. */
static void debug_name_ranks(const struct debug_comm *debug, const int32_t *side_of, int32_t s,
                             char *text, size_t text_bytes)
{
    int32_t member[TESS_WORLD_RANKS_MAX], n = 0;
    for (int32_t r = 0; r < debug->comm.rank_count; r++)
        if (side_of[r] == s)
            member[n++] = debug->all[r].world_rank;
    size_t used = (size_t)snprintf(text, text_bytes, n > 1 ? "ranks" : "rank");
    for (int32_t i = 0; i < n && used < text_bytes;) {
        int32_t end = i + 1;
        while (end < n && member[end] == member[end - 1] + 1)
            end++;
        end = end - i > 2 ? end : i + 1; /* two are listed, not spanned */
        used += (size_t)snprintf(text + used, text_bytes - used, "%s %d", i > 0 ? "," : "",
                                 (int)member[i]);
        if (end > i + 1 && used < text_bytes)
            used += (size_t)snprintf(text + used, text_bytes - used, "-%d", (int)member[end - 1]);
        i = end;
    }
}

/* The sides of a difference, the largest first. */
static void debug_explain(const struct debug_comm *debug, const struct debug_side *side,
                          int32_t side_count, const int32_t *side_of, char *text, size_t text_bytes)
{
    bool told[TESS_WORLD_RANKS_MAX] = {false};
    size_t used = (size_t)snprintf(text, text_bytes, "collective %llu of the group differs: ",
                                   (unsigned long long)debug->compared);
    for (int32_t i = 0; i < side_count && i < DEBUG_SIDES_MAX && used < text_bytes; i++) {
        int32_t s = -1;
        for (int32_t k = 0; k < side_count; k++)
            if (!told[k] && (s < 0 || side[k].rank_count > side[s].rank_count))
                s = k;
        told[s] = true;
        char ranks[80], call[120], doing[120];
        const struct debug_intent *intent = &debug->all[side[s].first];
        debug_name_ranks(debug, side_of, s, ranks, sizeof(ranks));
        debug_describe_call(intent, call, sizeof(call));
        debug_describe_doing(debug, intent, doing, sizeof(doing));
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s: %s%s", i > 0 ? "; " : "",
                                 ranks, call, doing);
    }
    if (side_count > DEBUG_SIDES_MAX && used < text_bytes)
        snprintf(text + used, text_bytes - used, "; and %d more",
                 (int)(side_count - DEBUG_SIDES_MAX));
}

static enum tess_status debug_compare(struct debug_comm *debug, const struct tess_comm_call *call)
{
    struct debug_intent own = debug_intent_of(debug, call);
    struct debug_intent bare = own;
    char described[120];
    bare.site[0] = '\0';
    debug_describe_call(&bare, described, sizeof(described));
    debug->compared++;
    /* The text of a time-out in the exchange. */
    snprintf(debug->site, sizeof(debug->site), "%s (comparing ranks before collective %llu, %s)",
             own.site[0] != '\0' ? own.site : "an unknown place",
             (unsigned long long)debug->compared, described);
    tess_comm_site = debug->site;
    TESS_TRY((tess_comm_all_gather)(debug->side, &own, debug->all, sizeof(own), TESS_U8, NULL));

    struct debug_side side[TESS_WORLD_RANKS_MAX] = {{0}};
    int32_t side_of[TESS_WORLD_RANKS_MAX];
    int32_t side_count = debug_sort(debug, side, side_of);
    if (side_count == 1)
        return TESS_OK;
    char reason[DEBUG_TEXT_MAX];
    debug_explain(debug, side, side_count, side_of, reason, sizeof(reason));
    /* All must have seen the difference for themselves before one of them stops the rest. */
    tess_comm_site = debug->site;
    enum tess_status together = (tess_comm_barrier)(debug->side);
    tess_comm_abort(debug->inner, reason);
    if (together != TESS_OK && strstr(tess_log_last_error(), reason) != NULL)
        return TESS_ERR_COMM; /* a peer was quicker, and its message has been logged */
    TESS_FAIL(TESS_ERR_COMM, "%s", reason);
}

static enum tess_status debug_call(struct tess_comm *comm, const struct tess_comm_call *call,
                                   uint64_t *ticket_out)
{
    struct debug_comm *debug = debug_of(comm);
    if (call->collective != TESS_COLLECTIVE_SEND && call->collective != TESS_COLLECTIVE_RECV)
        TESS_TRY(debug_compare(debug, call));
    return debug->inner->ops->call(debug->inner, call, ticket_out);
}

static enum tess_status debug_wait(struct tess_comm *comm, uint64_t ticket)
{
    struct debug_comm *debug = debug_of(comm);
    return debug->inner->ops->wait(debug->inner, ticket);
}

static enum tess_status debug_poll(struct tess_comm *comm)
{
    return tess_comm_poll(debug_of(comm)->inner);
}

static enum tess_status debug_attach(struct tess_comm *comm, struct tess_queue *queue)
{
    struct debug_comm *debug = debug_of(comm);
    struct tess_comm *inner = debug->inner;
    if (inner->queue == queue) /* children of a split have been attached with their parents */
        return TESS_OK;
    const bool detaches = queue == NULL;
    if (!detaches)
        inner->queue = queue;
    enum tess_status status =
        inner->ops->attach != NULL ? inner->ops->attach(inner, queue) : TESS_OK;
    debug_count(debug);
    if (detaches)
        inner->queue = NULL;
    return status;
}

static enum tess_status debug_alloc(struct tess_comm *comm, size_t bytes, void **memory_out)
{
    return tess_comm_alloc(debug_of(comm)->inner, bytes, memory_out);
}

static void debug_release(struct tess_comm *comm, void *memory)
{
    tess_comm_release(debug_of(comm)->inner, memory);
}

static enum tess_status debug_split(struct tess_comm *comm, int32_t color, int32_t key,
                                    struct tess_comm **child_out)
{
    struct debug_comm *debug = debug_of(comm), *child;
    struct tess_comm *inner;
    const struct tess_comm_call call = {
        .collective = DEBUG_SPLIT, .dtype = TESS_U8, .peer = -1, .site = tess_comm_site};
    TESS_TRY(debug_compare(debug, &call));
    TESS_TRY((tess_comm_split)(debug->inner, color, key, &inner));
    enum tess_status status = debug_wrap(inner, debug, &child);
    if (status != TESS_OK) {
        tess_comm_close(inner);
        return status;
    }
    *child_out = &child->comm;
    return TESS_OK;
}

static void debug_abort(struct tess_comm *comm, const char *reason)
{
    tess_comm_abort(debug_of(comm)->inner, reason);
}

static void debug_close(struct tess_comm *comm)
{
    struct debug_comm *debug = debug_of(comm);
    tess_comm_close(debug->side);
    tess_comm_close(debug->inner);
    free(debug);
}

static const struct tess_comm_ops debug_ops = {
    .call = debug_call,
    .wait = debug_wait,
    .poll = debug_poll,
    .attach = debug_attach,
    .alloc = debug_alloc,
    .release = debug_release,
    .split = debug_split,
    .abort = debug_abort,
    .close = debug_close,
};

/* A wrapper of `inner` with the settings of `like`. */
static enum tess_status debug_wrap(struct tess_comm *inner, const struct debug_comm *like,
                                   struct debug_comm **debug_out)
{
    size_t n = (size_t)inner->rank_count;
    struct debug_comm *debug = calloc(1, sizeof(*debug) + n * sizeof(debug->all[0]));
    if (debug == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a communicator of %zu ranks", n);
    debug->comm = (struct tess_comm){.ops = &debug_ops,
                                     .rank = inner->rank,
                                     .rank_count = inner->rank_count,
                                     .order = inner->order,
                                     .queue = inner->queue,
                                     .device_memory = inner->device_memory};
    debug->inner = inner;
    debug->board = like->board;
    debug->unit_name = like->unit_name;
    debug->unit_count = like->unit_count;
    debug->world_rank = like->world_rank;
    debug->forward = (struct tess_comm_observer){
        .context = debug, .called = debug_called, .completed = debug_completed};
    enum tess_status status = (tess_comm_split)(inner, 0, inner->rank, &debug->side);
    if (status != TESS_OK) {
        free(debug);
        return status;
    }
    debug->side->observer = NULL; /* inherited: a split of a wrapped one has its parent's */
    inner->observer = &debug->forward;
    *debug_out = debug;
    return TESS_OK;
}

enum tess_status tess_comm_debug_open(struct tess_comm *inner, const struct tess_board *board,
                                      const char *const *unit_name, int32_t unit_count,
                                      struct tess_comm **comm_out)
{
    const struct debug_comm like = {.board = board,
                                    .unit_name = unit_name,
                                    .unit_count = unit_count,
                                    .world_rank = inner->rank};
    struct debug_comm *debug;
    TESS_TRY(debug_wrap(inner, &like, &debug));
    *comm_out = &debug->comm;
    return TESS_OK;
}
