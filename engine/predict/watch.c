/*
 * Which of a rank's memory is needed when, in a predicted step. The passes of units, the calls of
 * communicators and the few operations between them say what they touch, with the addresses of the
 * arena that the memory plan gave them. A byte is needed from the moment at which it gets a value
 * until the last one at which that value is touched:
 *
 *     pass writes    pass reads                 pass writes  ...
 *         |--- needed ---|        not needed        |--- ...
 *
 * See tess_prediction_live for what is needed always.
 */
#include "base/arena.h"
#include "predict/virtual_slots.h"

#include "tessera/check.h"
#include "tessera/update.h"

#include <stdlib.h>
#include <string.h>

struct watch_touch {
    double at_s;
    const char *begin, *end;
    int64_t number; /* in the order of the step */
    uint32_t how;   /* enum virtual_touched */
};

/* A call under way. */
struct watch_call {
    const struct tess_comm *comm;
    uint64_t ticket, source_bytes, target_bytes;
    void *source, *target;
};

struct virtual_watch {
    struct virtual_rank *rank;
    struct tess_comm_observer observer;
    struct watch_touch *touch; /* [touch_room] */
    int64_t touch_count, touch_room;
    struct watch_call *call; /* [call_room] */
    int64_t call_count, call_room;
    bool no_room;
};

const char *tess_prediction_series_name(int series)
{
    return series == TESS_PREDICT_BRIEF ? "activation of a pass"
                                        : tess_memory_kind_name((enum tess_memory_kind)series);
}

/* ---- during the step ------------------------------------------------------------------------- */

/* Room for one more; false: there is none. */
static bool watch_grow(struct virtual_watch *watch, void **array, int64_t count, int64_t *room,
                       size_t size)
{
    if (count < *room)
        return true;
    void *more = realloc(*array, (size_t)(2 * *room + 256) * size);
    watch->no_room = watch->no_room || more == NULL;
    if (more == NULL)
        return false;
    *array = more;
    *room = 2 * *room + 256;
    return true;
}

enum tess_status virtual_do_touch(struct virtual_rank *rank, const struct virtual_act *act,
                                  bool *waits_out)
{
    struct virtual_watch *watch = rank->watch;
    (void)waits_out;
    if (!rank->tracing || !watch_grow(watch, (void **)&watch->touch, watch->touch_count,
                                      &watch->touch_room, sizeof(*watch->touch)))
        return TESS_OK;
    watch->touch[watch->touch_count] =
        (struct watch_touch){.at_s = rank->queued ? rank->kernels.end_s : rank->host_s,
                             .begin = act->of,
                             .end = (const char *)act->of + act->bytes,
                             .number = watch->touch_count,
                             .how = act->at};
    watch->touch_count++;
    return TESS_OK;
}

static void watch_touch(struct virtual_rank *rank, const void *at, uint64_t bytes, uint32_t how)
{
    const struct virtual_act act = {
        .what = VIRTUAL_TOUCH, .of = (void *)(uintptr_t)at, .bytes = bytes, .at = how};
    if (at != NULL && bytes > 0 && !virtual_later(rank, act))
        (void)virtual_do_touch(rank, &act, NULL);
}

static void watch_pass(void *context, const struct tess_touch *touch)
{
    const uint32_t how =
        (touch->begins ? VIRTUAL_BEGINS : 0u) | (touch->brief ? VIRTUAL_BRIEF : 0u);
    watch_touch(context, touch->at, touch->bytes, how);
}

static void watch_called(void *context, const struct tess_comm *comm,
                         const struct tess_comm_call *call, uint64_t ticket)
{
    struct virtual_watch *watch = context;
    const uint64_t bytes = call->count * tess_dtype_bytes(call->dtype);
    const uint64_t parts = (uint64_t)comm->rank_count;
    const enum tess_collective what = call->collective;
    const bool scatters =
        what == TESS_COLLECTIVE_REDUCE_SCATTER || what == TESS_COLLECTIVE_ALL_TO_ALL;
    const bool gathers = what == TESS_COLLECTIVE_ALL_GATHER || what == TESS_COLLECTIVE_ALL_TO_ALL;
    const struct watch_call mine = {.comm = comm,
                                    .ticket = ticket,
                                    .source = (void *)(uintptr_t)call->source,
                                    .source_bytes = scatters ? parts * bytes : bytes,
                                    .target = call->target,
                                    .target_bytes = gathers ? parts * bytes : bytes};
    const char *source = call->source, *target = call->target;
    const bool apart = source == NULL || target == NULL || what == TESS_COLLECTIVE_ALL_GATHER ||
                       source + mine.source_bytes <= target || target + mine.target_bytes <= source;
    const bool takes = what != TESS_COLLECTIVE_BROADCAST && what != TESS_COLLECTIVE_SEND;
    watch_touch(watch->rank, mine.source, mine.source_bytes, 0);
    watch_touch(watch->rank, mine.target, mine.target_bytes, apart && takes ? VIRTUAL_BEGINS : 0);
    if (watch_grow(watch, (void **)&watch->call, watch->call_count, &watch->call_room,
                   sizeof(*watch->call)))
        watch->call[watch->call_count++] = mine;
}

static void watch_completed(void *context, const struct tess_comm *comm, uint64_t ticket)
{
    struct virtual_watch *watch = context;
    int64_t i = watch->call_count - 1;
    while (i >= 0 && (watch->call[i].comm != comm || watch->call[i].ticket != ticket))
        i--;
    if (i < 0)
        return;
    watch_touch(watch->rank, watch->call[i].source, watch->call[i].source_bytes, 0);
    watch_touch(watch->rank, watch->call[i].target, watch->call[i].target_bytes, 0);
    watch->call[i] = watch->call[--watch->call_count];
}

/* ---- operations between passes: of the fold, of buckets, of the optimizer -------------------- */

static const struct tess_kernel_ops *watch_own(const struct tess_kernel *kernel)
{
    return &virtual_rank_of(kernel)->world->own;
}

static void watch_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                             float *y)
{
    watch_own(kernel)->accumulate(kernel, count, scale, x, y);
    watch_touch(virtual_rank_of(kernel), x, (uint64_t)count * sizeof(*x), 0);
    watch_touch(virtual_rank_of(kernel), y, (uint64_t)count * sizeof(*y), 0);
}

static void watch_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target)
{
    watch_touch(virtual_rank_of(kernel), target, (uint64_t)bytes, VIRTUAL_BEGINS);
    watch_own(kernel)->copy(kernel, bytes, source, target);
    watch_touch(virtual_rank_of(kernel), source, (uint64_t)bytes, 0);
}

static void watch_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from,
                       const void *x, enum tess_dtype to, void *y)
{
    watch_touch(virtual_rank_of(kernel), y, (uint64_t)count * tess_dtype_bytes(to), VIRTUAL_BEGINS);
    watch_own(kernel)->cast(kernel, count, from, x, to, y);
    watch_touch(virtual_rank_of(kernel), x, (uint64_t)count * tess_dtype_bytes(from), 0);
}

static void watch_square_sum_all(struct tess_kernel *kernel, const struct tess_square *square,
                                 int32_t count)
{
    watch_own(kernel)->square_sum_all(kernel, square, count);
    for (int32_t i = 0; i < count; i++)
        watch_touch(virtual_rank_of(kernel), square[i].x,
                    (uint64_t)square[i].count * sizeof(*square[i].x), 0);
}

static void watch_update_all(struct tess_kernel *kernel, const struct tess_update *update,
                             int32_t count)
{
    watch_own(kernel)->update_all(kernel, update, count);
    for (int32_t i = 0; i < count; i++)
        watch_touch(virtual_rank_of(kernel), update[i].g,
                    (uint64_t)update[i].count * sizeof(*update[i].g), 0);
}

static void watch_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    watch_own(kernel)->update(kernel, update);
    watch_touch(virtual_rank_of(kernel), update->g, (uint64_t)update->count * sizeof(*update->g),
                0);
}

void virtual_watch_kernel(struct tess_kernel_ops *ops, struct tess_kernel_ops *own)
{
    *own = *ops;
    ops->accumulate = watch_accumulate;
    ops->copy = watch_copy;
    ops->cast = watch_cast;
    ops->square_sum_all = watch_square_sum_all;
    ops->update_all = watch_update_all;
    ops->update = watch_update;
}

enum tess_status virtual_watch_open(struct virtual_rank *rank)
{
    rank->watch = calloc(1, sizeof(*rank->watch));
    if (rank->watch == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to watch a predicted step's memory");
    rank->watch->rank = rank;
    rank->watch->observer = (struct tess_comm_observer){
        .context = rank->watch, .called = watch_called, .completed = watch_completed};
    return TESS_OK;
}

void virtual_watch_comm(struct virtual_rank *rank, struct tess_comm *comm)
{
    if (rank->watch != NULL)
        comm->observer = &rank->watch->observer;
}

void virtual_watch_engine(struct virtual_rank *rank, struct tess_engine *engine)
{
    if (rank->watch != NULL)
        tess_engine_watch(engine, watch_pass, rank);
}

void virtual_watch_close(struct virtual_rank *rank)
{
    if (rank->watch == NULL)
        return;
    free(rank->watch->touch);
    free(rank->watch->call);
    free(rank->watch);
    rank->watch = NULL;
}

/* ---- after the step -------------------------------------------------------------------------- */

struct watch_piece {
    const char *begin, *end;
    enum tess_memory_kind kind;
    bool touched, brief;
};

/* So many bytes of a series more, or less, from a moment on. */
struct watch_change {
    double at_s;
    int64_t bytes;
    int series;
};

struct watch_lines {
    struct virtual_watch *watch;
    const struct tess_memory *memory;
    double begin_s;
    struct watch_piece *piece; /* [piece_room] in order of addresses */
    int64_t piece_count, piece_room;
    const char **cut; /* [cut_count] where something touched begins or ends, in order */
    int64_t cut_count;
    double *last_s; /* [cut_count] of what lies from this cut to the next: it was last touched;
                       below begin_s: it was not */
    struct watch_change *change; /* [change_room] */
    int64_t change_count, change_room;
};

static bool watch_is_state(enum tess_memory_kind kind)
{
    return kind == TESS_MEMORY_PARAMETER || kind == TESS_MEMORY_MASTER ||
           kind == TESS_MEMORY_OPTIMIZER;
}

static void lines_piece(void *context, enum tess_memory_kind kind, const char *owner,
                        struct tess_block block)
{
    struct watch_lines *lines = context;
    const char *begin = tess_memory_get(lines->memory, block);
    (void)owner;
    if (begin == NULL || kind == TESS_MEMORY_STAGING || kind == TESS_MEMORY_REDUNDANCY ||
        !watch_grow(lines->watch, (void **)&lines->piece, lines->piece_count, &lines->piece_room,
                    sizeof(*lines->piece)))
        return;
    lines->piece[lines->piece_count++] =
        (struct watch_piece){.begin = begin, .end = begin + block.bytes, .kind = kind};
}

/* The block that an address lies in; NULL: none of the arena's. */
static struct watch_piece *lines_find(const struct watch_lines *lines, const char *at)
{
    int64_t low = 0, high = lines->piece_count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (lines->piece[middle].begin <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && at < lines->piece[low - 1].end ? &lines->piece[low - 1] : NULL;
}

static int lines_by_address(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    return (x > y) - (x < y);
}

static int64_t lines_cut(const struct watch_lines *lines, const char *at)
{
    const char **found =
        bsearch(&at, lines->cut, (size_t)lines->cut_count, sizeof(*lines->cut), lines_by_address);
    return found - lines->cut;
}

/* Touches of blocks that may not be needed all the time stay, cut to them. */
static enum tess_status lines_prepare(struct watch_lines *lines)
{
    struct virtual_watch *watch = lines->watch;
    int64_t kept = 0, cuts = 0;
    for (int64_t i = 0; i < watch->touch_count; i++) {
        struct watch_touch touch = watch->touch[i];
        struct watch_piece *piece = lines_find(lines, touch.begin);
        if (piece == NULL || watch_is_state(piece->kind))
            continue;
        piece->touched = true;
        piece->brief = piece->brief || (touch.how & VIRTUAL_BRIEF) != 0; /* calls do not say it */
        touch.end = touch.end < piece->end ? touch.end : piece->end;
        watch->touch[kept++] = touch;
    }
    watch->touch_count = kept;
    lines->cut = calloc(2 * (size_t)kept + 1, sizeof(*lines->cut));
    lines->last_s = calloc(2 * (size_t)kept + 1, sizeof(*lines->last_s));
    if (lines->cut == NULL || lines->last_s == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what a predicted step touches");
    for (int64_t i = 0; i < kept; i++) {
        lines->cut[cuts++] = watch->touch[i].begin;
        lines->cut[cuts++] = watch->touch[i].end;
    }
    if (cuts > 0)
        qsort(lines->cut, (size_t)cuts, sizeof(*lines->cut), lines_by_address);
    for (int64_t i = 0; i < cuts; i++)
        if (lines->cut_count == 0 || lines->cut[i] != lines->cut[lines->cut_count - 1])
            lines->cut[lines->cut_count++] = lines->cut[i];
    for (int64_t i = 0; i < lines->cut_count; i++)
        lines->last_s[i] = -1;
    return TESS_OK;
}

static void lines_change(struct watch_lines *lines, double at_s, int series, int64_t bytes)
{
    if (watch_grow(lines->watch, (void **)&lines->change, lines->change_count, &lines->change_room,
                   sizeof(*lines->change)))
        lines->change[lines->change_count++] = (struct watch_change){at_s, bytes, series};
}

/* What has a value that this touch reads is needed since the touch before; what was not touched
 * before has its value from the step before. */
static void lines_touch(struct watch_lines *lines, const struct watch_touch *touch)
{
    const struct watch_piece *piece = lines_find(lines, touch->begin);
    const bool brief = piece->kind == TESS_MEMORY_ACTIVATION && piece->brief;
    const int series = brief ? TESS_PREDICT_BRIEF : (int)piece->kind;
    const double at_s = touch->at_s - lines->begin_s;
    const int64_t end = lines_cut(lines, touch->end);
    for (int64_t i = lines_cut(lines, touch->begin), next; i < end; i = next) {
        const double last_s = lines->last_s[i];
        for (next = i; next < end && lines->last_s[next] == last_s; next++)
            lines->last_s[next] = at_s;
        const double from_s = last_s > 0 ? last_s : 0;
        if ((touch->how & VIRTUAL_BEGINS) != 0 || from_s >= at_s)
            continue;
        lines_change(lines, from_s, series, lines->cut[next] - lines->cut[i]);
        lines_change(lines, at_s, series, lines->cut[i] - lines->cut[next]);
    }
}

static int lines_by_time(const void *a, const void *b)
{
    const struct watch_change *x = a, *y = b;
    return (x->at_s > y->at_s) - (x->at_s < y->at_s);
}

static uint64_t lines_total(const struct tess_prediction_live *live)
{
    uint64_t total = 0;
    for (int series = 0; series < TESS_PREDICT_SERIES; series++)
        total += live->bytes[series];
    return total;
}

/* A moment goes to the list: of close ones the one with the most. */
static void lines_keep(const struct tess_prediction_live *live, double close_s,
                       struct tess_prediction_stage *stage)
{
    const uint64_t total = lines_total(live);
    struct tess_prediction_live *last = stage->live + stage->live_count - (stage->live_count > 0);
    for (int series = 0; series < TESS_PREDICT_SERIES; series++)
        if (live->bytes[series] > stage->live_most[series])
            stage->live_most[series] = live->bytes[series];
    if (total > stage->live_most_total)
        stage->live_most_total = total;
    if (stage->live_count == 0 || (int64_t)(live->at_s / close_s) > (int64_t)(last->at_s / close_s))
        stage->live[stage->live_count++] = *live;
    else if (total > lines_total(last))
        memcpy(last->bytes, live->bytes, sizeof(last->bytes));
}

static enum tess_status lines_take(struct watch_lines *lines, struct tess_prediction_stage *stage)
{
    struct tess_prediction_live live = {.at_s = 0};
    double end_s = 0;
    stage->live = calloc(TESS_PREDICT_MOMENTS + 1, sizeof(*stage->live));
    if (stage->live == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a time line of memory");
    for (int64_t i = 0; i < lines->piece_count; i++) {
        const struct watch_piece *piece = &lines->piece[i];
        if (!piece->touched)
            live.bytes[piece->kind] += (uint64_t)(piece->end - piece->begin);
    }
    if (lines->change_count > 0) {
        qsort(lines->change, (size_t)lines->change_count, sizeof(*lines->change), lines_by_time);
        end_s = lines->change[lines->change_count - 1].at_s;
    }
    const double close_s = end_s > 0 ? end_s / (TESS_PREDICT_MOMENTS - 1) : 1;
    for (int64_t i = 0, next; i < lines->change_count; i = next) {
        const double at_s = lines->change[i].at_s;
        if (at_s > 0)
            lines_keep(&live, close_s, stage);
        for (next = i; next < lines->change_count && lines->change[next].at_s == at_s; next++)
            live.bytes[lines->change[next].series] += (uint64_t)lines->change[next].bytes;
        live.at_s = at_s;
    }
    lines_keep(&live, close_s, stage);
    return TESS_OK;
}

enum tess_status virtual_watch_lines(struct virtual_rank *rank, struct tess_engine *engine,
                                     double begin_s, struct tess_prediction_stage *stage)
{
    struct virtual_watch *watch = rank->watch;
    if (watch == NULL ||
        watch->touch_count == 0) /* a recorded step that is played touches nothing */
        return TESS_OK;
    struct watch_lines lines = {
        .watch = watch, .memory = tess_engine_memory(engine), .begin_s = begin_s};
    tess_memory_visit(lines.memory, lines_piece, &lines);
    enum tess_status status = lines_prepare(&lines);
    for (int64_t i = 0; i < watch->touch_count && status == TESS_OK; i++)
        lines_touch(&lines, &watch->touch[i]);
    if (status == TESS_OK)
        status = watch->no_room ? tess_fail(TESS_ERR_MEMORY, "no memory for what a step touches")
                                : lines_take(&lines, stage);
    free(lines.piece);
    free(lines.cut);
    free(lines.last_s);
    free(lines.change);
    return status;
}
