/*
 * The shared update: where a strategy keeps every gradient until it is summed and the ranks reach
 * each other's memory, the sum of a segment and its update are one pass over it. Once all ranks
 * have the gradient of a segment, each takes a slice of it:
 *
 *     for every block of the slice          in the first-level cache
 *       sum of the ranks' gradients         read where they lie; not written
 *       update                              value, moments and compute copy of this rank
 *       new values to all ranks             where each of them has all of the parameters, or a
 *                                           place for those that it would gather next
 *
 * The gradient of a tied parameter is summed before, as without this; its sum is added to that of
 * the parameter whose values it shares, as tess__tied_finish adds them.
 *
 * So a rank reads and writes the moments of its slices alone. Where it has those of others as well,
 * they are out of date until something reads them: tess__shared_settle brings them.
 *
 * It is an update of parts, by gradients that no one sees as a whole. So nothing may have to be
 * known of all gradients before: shared_fits. A loss that is not finite ends the step of its rank
 * before that has handed over any gradient, so that no rank updates. The arithmetic, and so the
 * bits, are the optimizer's.
 */
#include "core/state.h"

#include "base/reduce.h"
#include "config/precision.h"
#include "tessera/check.h"

#include <string.h>

#define SHARED_BLOCK 2048 /* elements: 8 KiB of sums, and with the arrays of an update 32 to 48 */

struct shared_segment {
    struct tess_shared *shared;
    int64_t begin;                  /* flat */
    int32_t piece_first, piece_end; /* this rank's */
    bool tied;                      /* another segment shares its values */
    char *gathered;                 /* where every rank wants its values, or NULL; in this step */
    struct tess_comm_share update, settle;
};

/* Arrays of which every rank has all, where strategies keep that; and where a rank's begin. */
enum shared_array { SHARED_PARAM, SHARED_MASTER, SHARED_STATE, SHARED_ARENA, SHARED_ARRAYS };
struct shared_bases {
    char *at[SHARED_ARRAYS];
};

struct tess_shared {
    struct tess_engine *engine;
    int32_t rank, rank_count;
    bool copies;                    /* every rank has all parameters: new values go to all */
    bool took;                      /* the step's update is this one's */
    bool stale;                     /* moments and masters of others' slices are out of date */
    const void **source;            /* [rank_count] */
    int64_t *piece_begin;           /* [trained_piece_count] flat */
    struct shared_bases *base;      /* [rank_count] */
    struct shared_segment *segment; /* [grad_segment_count] */
};

/* ---- where it is possible -------------------------------------------------------------------- */

bool tess__shared_fits_optim(const struct tess_engine *engine)
{
    const struct tess_config *config = engine->config;
    const struct tess_optimizer_ops *ops = config->optimizer;
    const bool whole =
        engine->plan.dtype == TESS_F32 ||
        (tess_precision_has_masters(&config->run) && !tess_precision_is_stochastic(&config->run));
    return whole && !(config->optim.clip > 0) && !ops->tensor_moment && !ops->trust_ratio &&
           engine->scale.mode == TESS_SCALE_OFF;
}

bool tess__shared_fits_model(const struct tess_engine *engine)
{
    const struct tess_declare *model = &engine->model;
    return !model->conditional && !model->axis.sequence && engine->schedule.chunk_count == 1 &&
           engine->plan.mesh.count[TESS_AXIS_STAGE] == 1 && !(engine->config->run.audit > 0);
}

/* One thread runs it. */
static bool shared_fits_rank(const struct tess_engine *engine)
{
    const struct tess_kernel *kernel = engine->kernel;
    return kernel->queue == NULL && !kernel->ops->far_memory && kernel->threads == 1 &&
           engine->plan.reduce_dtype == TESS_F32 && engine->plan.optim_extent != TESS_EXTENT_NONE;
}

/* But for the memory of other ranks. */
static bool shared_fits(const struct tess_engine *engine)
{
    return shared_fits_rank(engine) && tess__shared_fits_model(engine) &&
           tess__shared_fits_optim(engine);
}

struct tess_strategy tess__shared_strategy(const struct tess_engine *engine)
{
    static struct tess_shared planned; /* only that it is there is asked */
    struct tess_strategy strategy = engine->strategy;
    if (engine->comm == NULL && engine->plan.rank_count > 1 && shared_fits(engine) &&
        strcmp(engine->config->device.comm->name, "local") == 0)
        strategy.shared = &planned;
    return strategy;
}

/* ---- a slice --------------------------------------------------------------------------------- */

/* Visit the parts of the segment's pieces within flat elements [from, to). */
static void shared_each(const struct shared_segment *segment, int64_t from, int64_t to,
                        void (*visit)(struct tess_shared *shared, int32_t piece, int64_t at,
                                      int64_t count, const void *context),
                        const void *context)
{
    struct tess_shared *shared = segment->shared;
    for (int32_t i = segment->piece_first; i < segment->piece_end; i++) {
        const int64_t begin = shared->piece_begin[i];
        const int64_t end = begin + shared->engine->piece[i].count;
        const int64_t first = begin > from ? begin : from, last = end < to ? end : to;
        if (first < last)
            visit(shared, i, first - begin, last - first, context);
    }
}

/* A block of sums, and where it begins. */
struct shared_sums {
    const struct shared_segment *segment;
    int64_t from;
    _Alignas(64) float sum[SHARED_BLOCK];
};

/* `bytes` of an array of this rank to the same place in every other rank's. */
static void shared_give(const struct tess_shared *shared, enum shared_array array, const void *own,
                        size_t bytes)
{
    const ptrdiff_t place = (const char *)own - shared->base[shared->rank].at[array];
    for (int32_t i = 1; i < shared->rank_count; i++)
        memcpy(shared->base[(shared->rank + i) % shared->rank_count].at[array] + place, own, bytes);
}

static void shared_update_part(struct tess_shared *shared, int32_t i, int64_t at, int64_t count,
                               const void *context)
{
    struct tess_engine *engine = shared->engine;
    const struct tess_piece *piece = &engine->piece[i];
    const struct shared_sums *sums = context;
    const float *g = sums->sum + (shared->piece_begin[i] + at - sums->from);
    if (engine->progress.count_zeros)
        tess_optim_count_part_zeros(&engine->optim, piece, count, g,
                                    &engine->found.sums[2 * engine->plan.grid]);
    tess_optim_update_part(&engine->optim, piece, at, count, g);
    const size_t word = engine->sizes.dtype_bytes, bytes = (size_t)count * word;
    const char *value = piece->low != NULL ? piece->low : (const void *)piece->w;
    value += (size_t)at * word;
    if (shared->copies)
        shared_give(shared, SHARED_PARAM, value, bytes);
    if (sums->segment->gathered != NULL) {
        const int64_t place = shared->piece_begin[i] + at - sums->segment->begin;
        char *const gathered = sums->segment->gathered + (size_t)place * word;
        memcpy(gathered, value, bytes);
        shared_give(shared, SHARED_ARENA, gathered, bytes);
    }
}

/* Add the sums of the gradients that are tied to those of the segment; `at`: its element that sum
 * begins with. */
static void shared_add_tied(const struct tess_plan *plan, int32_t s, int64_t at, int64_t count,
                            float *sum)
{
    for (int32_t t = 0; t < plan->grad_segment_count; t++) {
        const struct tess_segment *tied = &plan->segment[t];
        if (tied->values_of != s)
            continue;
        const float *own =
            tied->grad_own + at - (tess_plan_own_begin(plan, t, plan->optim_extent) - tied->begin);
        for (int64_t i = 0; i < count; i++)
            sum[i] += own[i];
    }
}

/* tess_comm_share.run: this rank's slice of a segment. */
static void shared_update(void *context, const void *const *source, size_t begin, size_t count)
{
    const struct shared_segment *segment = context;
    const struct tess_shared *shared = segment->shared;
    struct shared_sums sums;
    void *const target = sums.sum;
    sums.segment = segment;
    for (size_t at = begin, n; at < begin + count; at += n) {
        n = begin + count - at < SHARED_BLOCK ? begin + count - at : SHARED_BLOCK;
        for (int32_t r = 0; r < shared->rank_count; r++)
            shared->source[r] = (const float *)source[r] + at;
        tess__reduce(TESS_F32, TESS_REDUCE_SUM, shared->rank_count, shared->source, 1, &target, n);
        if (segment->tied)
            shared_add_tied(&shared->engine->plan, (int32_t)(segment - shared->segment),
                            (int64_t)at, (int64_t)n, sums.sum);
        sums.from = segment->begin + (int64_t)at;
        shared_each(segment, sums.from, sums.from + (int64_t)n, shared_update_part, &sums);
    }
}

static void shared_update_hollow_part(struct tess_shared *shared, int32_t i, int64_t at,
                                      int64_t count, const void *context)
{
    (void)context;
    tess_optim_update_part(&shared->engine->optim, &shared->engine->piece[i], at, count, NULL);
}

/* The same where nothing is computed: the update alone, by sums that are in a cache. What else a
 * slice takes the communicator knows. */
static void shared_update_hollow(void *context, const void *const *source, size_t begin,
                                 size_t count)
{
    const struct shared_segment *segment = context;
    const int64_t from = segment->begin + (int64_t)begin;
    (void)source;
    shared_each(segment, from, from + (int64_t)count, shared_update_hollow_part, NULL);
}

bool tess_segment_updates(const struct tess_strategy *strategy, int32_t s)
{
    return strategy->shared != NULL && strategy->plan->segment[s].values_of < 0;
}

enum tess_status tess_segment_update(struct tess_strategy *strategy, int32_t s, const float *grad,
                                     void *gathered, struct tess_event *event_out)
{
    struct tess_shared *shared = strategy->shared;
    const size_t count = (size_t)strategy->plan->segment[s].count;
    if (!tess_segment_updates(strategy, s))
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "strategy '%s' updates segment %d, which has no values of its own",
                  strategy->ops->name, s);
    shared->took = true;
    shared->stale = shared->copies;
    shared->segment[s].gathered = gathered;
    shared->segment[s].update.later_bytes =
        gathered != NULL ? shared->engine->sizes.dtype_bytes : 0;
    return tess_comm_share(strategy->comm, grad, count, TESS_F32, &shared->segment[s].update,
                           event_out);
}

enum tess_status tess__shared_begin(struct tess_engine *engine)
{
    struct tess_shared *shared = engine->strategy.shared;
    if (shared == NULL)
        return TESS_OK;
    shared->took = false;
    return tess_optim_begin(&engine->optim);
}

bool tess__shared_took(const struct tess_engine *engine)
{
    return engine->strategy.shared != NULL && engine->strategy.shared->took;
}

/* ---- what is out of date --------------------------------------------------------------------- */

static void shared_settle_part(struct tess_shared *shared, int32_t i, int64_t at, int64_t count,
                               const void *context)
{
    const struct tess_optim *optim = &shared->engine->optim;
    const struct tess_piece *piece = &shared->engine->piece[i];
    const size_t bytes = (size_t)count * sizeof(float);
    (void)context;
    if (piece->low != NULL)
        shared_give(shared, SHARED_MASTER, piece->w + at, bytes);
    for (int32_t a = 0; a < optim->ops->state_arrays; a++)
        shared_give(shared, SHARED_STATE,
                    optim->state + a * optim->state_count + piece->state_begin + at, bytes);
}

static void shared_settle(void *context, const void *const *source, size_t begin, size_t count)
{
    const struct shared_segment *segment = context;
    const int64_t from = segment->begin + (int64_t)begin;
    (void)source;
    shared_each(segment, from, from + (int64_t)count, shared_settle_part, NULL);
}

enum tess_status tess__shared_settle(struct tess_engine *engine, bool moments)
{
    struct tess_shared *shared = engine->strategy.shared;
    const struct tess_plan *plan = &engine->plan;
    if (shared == NULL || !shared->stale || (!moments && plan->dtype == TESS_F32))
        return TESS_OK;
    for (int32_t s = 0; s < plan->grad_segment_count; s++)
        TESS_TRY(tess_comm_share(engine->strategy.comm, plan->segment[s].grad,
                                 (size_t)plan->segment[s].count, TESS_F32,
                                 &shared->segment[s].settle, NULL));
    shared->stale = false;
    return TESS_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

static void shared_fill(struct tess_shared *shared)
{
    struct tess_engine *engine = shared->engine;
    const struct tess_plan *plan = &engine->plan;
    const size_t low = shared->copies ? engine->sizes.dtype_bytes : 0;
    void (*const update)(void *, const void *const *, size_t, size_t) =
        engine->hollow ? shared_update_hollow : shared_update;
    const size_t arrays = (size_t)engine->optim.ops->state_arrays + (plan->dtype != TESS_F32);
    int32_t p = 0, i = 0;
    for (int32_t s = 0; s < plan->grad_segment_count; s++) {
        struct shared_segment *segment = &shared->segment[s];
        *segment = (struct shared_segment){.shared = shared,
                                           .begin = plan->segment[s].begin,
                                           .piece_first = i,
                                           .update = {update, segment, low, 0},
                                           .settle = {shared_settle, segment, 4 * arrays, 0}};
        for (; i < engine->trained_piece_count; i++) {
            const struct tess_piece *piece = &engine->piece[i];
            while (plan->param[p].index != piece->param)
                p++;
            if (plan->param[p].segment != s)
                break;
            shared->piece_begin[i] = plan->param[p].begin + piece->param_begin;
        }
        segment->piece_end = i;
    }
    for (int32_t s = 0; s < plan->grad_segment_count; s++)
        if (plan->segment[s].values_of >= 0)
            shared->segment[plan->segment[s].values_of].tied = true;
}

enum tess_status tess__shared_open(struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    struct tess_comm *comm = engine->strategy.comm;
    if (plan->rank_count == 1)
        return TESS_OK;
    int32_t fits = shared_fits(engine) &&
                   tess_comm_reaches(comm, engine->arena.start, tess_memory_total(engine->memory));
    if (!engine->hollow) /* there all ranks are alike */
        TESS_TRY(tess_comm_all_reduce(comm, &fits, &fits, 1, TESS_I32, TESS_REDUCE_MIN, NULL));
    if (!fits)
        return TESS_OK;
    struct tess_shared *shared = tess__engine_room(engine, 0, sizeof(*shared));
    const void **source = tess__engine_room(engine, plan->rank_count, sizeof(*source));
    struct shared_bases *base = tess__engine_room(engine, plan->rank_count, sizeof(*base));
    int64_t *begin = tess__engine_room(engine, engine->trained_piece_count, sizeof(*begin));
    struct shared_segment *segment =
        tess__engine_room(engine, plan->grad_segment_count, sizeof(*segment));
    TESS_TRY(tess__engine_has_room(engine));
    *shared = (struct tess_shared){.engine = engine,
                                   .rank = plan->rank,
                                   .rank_count = plan->rank_count,
                                   .copies = plan->optim_extent == TESS_EXTENT_FULL,
                                   .source = source,
                                   .piece_begin = begin,
                                   .base = base,
                                   .segment = segment};
    const struct tess_block block[SHARED_ARENA] = {engine->block.param, engine->block.master,
                                                   engine->block.optim};
    for (int a = 0; a < SHARED_ARRAYS; a++)
        base[plan->rank].at[a] =
            a == SHARED_ARENA ? engine->arena.start : tess_memory_get(engine->memory, block[a]);
    if (!engine->hollow)
        TESS_TRY(tess_comm_all_gather(comm, &base[plan->rank], base, sizeof(*base), TESS_U8, NULL));
    shared_fill(shared);
    engine->strategy.shared = shared;
    return TESS_OK;
}
