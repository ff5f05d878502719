/*
 * Comparing what ranks call; see comm/debug.h. It is exchanged over a group of its own, so that
 * neither the order nor the counters of the user's calls change.
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
    struct tess__call_key key;
    int64_t step;
    int32_t world_rank;
    int32_t doing, unit; /* doing -1: no board */
    char site[44];
};

struct debug_state {
    struct comm_debug calls; /* first: what comm.c has a pointer to */
    struct tess_comm *comm, *side;
    const struct tess_board *board;
    const char *const *unit_name;
    int32_t unit_count;
    int32_t world_rank, world_count; /* of all ranks that are compared */
    uint64_t compared;               /* calls, this one included */
    char site[240];                  /* of the exchange */
    struct debug_intent all[];
};

static void debug_describe_call(const struct debug_intent *intent, const char *site, char *text,
                                size_t text_bytes)
{
    if (intent->key.collective == DEBUG_SPLIT)
        snprintf(text, text_bytes, "split%s%s", site[0] != '\0' ? " at " : "", site);
    else
        tess__call_describe(&intent->key, site, text, text_bytes);
}

/* ", in backward of unit 1 (fc2), step 17", by the words of the board. */
static void debug_describe_doing(const struct debug_state *debug, const struct debug_intent *intent,
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

static struct debug_intent debug_intent_of(const struct debug_state *debug,
                                           const struct tess_comm_call *call)
{
    struct debug_intent intent;
    memset(&intent, 0, sizeof(intent)); /* holes too: it is sent as bytes */
    intent.key = tess__call_key(call);
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
    bool same_call = memcmp(&a->key, &b->key, sizeof(a->key)) == 0;
    bool same_place = a->step == b->step && (a->unit == b->unit || strcmp(a->site, b->site) == 0);
    return same_call && same_place;
}

static bool debug_all_agree(const struct debug_state *debug)
{
    for (int32_t r = 1; r < debug->comm->rank_count; r++)
        if (!debug_agree(&debug->all[0], &debug->all[r]))
            return false;
    return true;
}

/* Ranks that agree; `first` stands for them. */
struct debug_side {
    int32_t first, rank_count;
};

static int debug_compare_sides(const void *a, const void *b)
{
    const struct debug_side *left = a, *right = b;
    const int32_t by_size = right->rank_count - left->rank_count;
    return by_size != 0 ? by_size : left->first - right->first;
}

/* Put every rank with the first one that it agrees with, first[rank]; the largest side first. */
static int32_t debug_sort(const struct debug_state *debug, struct debug_side *side, int32_t *first)
{
    int32_t side_count = 0;
    for (int32_t r = 0; r < debug->comm->rank_count; r++) {
        int32_t s = 0;
        while (s < side_count && !debug_agree(&debug->all[side[s].first], &debug->all[r]))
            s++;
        if (s == side_count)
            side[side_count++] = (struct debug_side){.first = r};
        side[s].rank_count++;
        first[r] = side[s].first;
    }
    qsort(side, (size_t)side_count, sizeof(*side), debug_compare_sides);
    return side_count;
}

/* What the explanation needs, allocated when ranks differ. */
struct debug_room {
    struct debug_side *side; /* [ranks of the group] */
    int32_t *first;          /* likewise */
    bool *in;                /* [world_count] */
};

static void debug_name_side(const struct debug_state *debug, const struct debug_room *room,
                            int32_t first, char *text, size_t text_bytes)
{
    memset(room->in, 0, (size_t)debug->world_count * sizeof(*room->in));
    for (int32_t r = first; r < debug->comm->rank_count; r++)
        room->in[debug->all[r].world_rank] = room->first[r] == first;
    tess__name_ranks(room->in, debug->world_count, text, text_bytes);
}

static void debug_explain(const struct debug_state *debug, const struct debug_room *room,
                          char *text, size_t text_bytes)
{
    const struct debug_side *side = room->side;
    const int32_t side_count = debug_sort(debug, room->side, room->first);
    size_t used = (size_t)snprintf(text, text_bytes, "collective %llu of the group differs: ",
                                   (unsigned long long)debug->compared);
    for (int32_t i = 0; i < side_count && i < DEBUG_SIDES_MAX && used < text_bytes; i++) {
        char ranks[80], call[120], doing[120];
        const struct debug_intent *intent = &debug->all[side[i].first];
        debug_name_side(debug, room, side[i].first, ranks, sizeof(ranks));
        debug_describe_call(intent, intent->site, call, sizeof(call));
        debug_describe_doing(debug, intent, doing, sizeof(doing));
        used +=
            (size_t)snprintf(text + used, text_bytes - used, "%srank%s %s: %s%s", i > 0 ? "; " : "",
                             side[i].rank_count > 1 ? "s" : "", ranks, call, doing);
    }
    if (side_count > DEBUG_SIDES_MAX && used < text_bytes)
        snprintf(text + used, text_bytes - used, "; and %d more",
                 (int)(side_count - DEBUG_SIDES_MAX));
}

static struct debug_state *debug_of(struct comm_debug *debug)
{
    return (struct debug_state *)(void *)debug;
}

static enum tess_status debug_compare(struct comm_debug *calls, const struct tess_comm_call *call)
{
    struct debug_state *debug = debug_of(calls);
    struct debug_intent own = debug_intent_of(debug, call);
    char described[120];
    debug_describe_call(&own, "", described, sizeof(described));
    debug->compared++;
    /* The text of a time-out in the exchange. */
    snprintf(debug->site, sizeof(debug->site), "%s (comparing ranks before collective %llu, %s)",
             own.site[0] != '\0' ? own.site : "an unknown place",
             (unsigned long long)debug->compared, described);
    tess_comm_site = debug->site;
    TESS_TRY((tess_comm_all_gather)(debug->side, &own, debug->all, sizeof(own), TESS_U8, NULL));

    if (debug_all_agree(debug))
        return TESS_OK;
    char reason[DEBUG_TEXT_MAX];
    const size_t n = (size_t)debug->comm->rank_count;
    const struct debug_room room = {calloc(n, sizeof(*room.side)), calloc(n, sizeof(*room.first)),
                                    calloc((size_t)debug->world_count, sizeof(*room.in))};
    if (room.side != NULL && room.first != NULL && room.in != NULL)
        debug_explain(debug, &room, reason, sizeof(reason));
    else
        snprintf(reason, sizeof(reason), "collective %llu of the group differs between ranks",
                 (unsigned long long)debug->compared);
    free(room.side);
    free(room.first);
    free(room.in);
    /* All must have seen the difference for themselves before one of them stops the rest. */
    tess_comm_site = debug->site;
    enum tess_status together = (tess_comm_barrier)(debug->side);
    tess_comm_abort(debug->comm, reason);
    if (together != TESS_OK && strstr(tess_log_last_error(), reason) != NULL)
        return TESS_ERR_COMM; /* a peer was quicker, and its message has been logged */
    TESS_FAIL(TESS_ERR_COMM, "%s", reason);
}

static enum tess_status debug_compare_split(struct comm_debug *debug)
{
    const struct tess_comm_call call = {
        .collective = DEBUG_SPLIT, .dtype = TESS_U8, .peer = -1, .site = tess_comm_site};
    return debug_compare(debug, &call);
}

static enum tess_status debug_follow(struct tess_comm *comm, const struct comm_debug *like)
{
    const size_t n = (size_t)comm->rank_count;
    struct debug_state *debug = calloc(1, sizeof(*debug) + n * sizeof(debug->all[0]));
    if (debug == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the comparison of %zu ranks", n);
    *debug = *(const struct debug_state *)(const void *)like;
    debug->comm = comm;
    debug->compared = 0;
    enum tess_status status = (tess_comm_split)(comm, 0, comm->rank, &debug->side);
    if (status != TESS_OK) {
        free(debug);
        return status;
    }
    /* Not the user's: no family, observer or hook. */
    debug->side->root = NULL;
    debug->side->marks = NULL;
    debug->side->observer = NULL;
    debug->side->access = NULL;
    comm->debug = &debug->calls;
    return TESS_OK;
}

static void debug_close(struct comm_debug *debug)
{
    tess_comm_close(debug_of(debug)->side);
    free(debug);
}

enum tess_status tess_comm_debug_open(struct tess_comm *comm, const struct tess_board *board,
                                      const char *const *unit_name, int32_t unit_count)
{
    const struct debug_state like = {
        .calls = {debug_compare, debug_compare_split, debug_follow, debug_close},
        .board = board,
        .unit_name = unit_name,
        .unit_count = unit_count,
        .world_rank = comm->rank,
        .world_count = comm->rank_count};
    if (comm->debug != NULL)
        comm->debug->close(comm->debug);
    comm->debug = NULL;
    return debug_follow(comm, &like.calls);
}
