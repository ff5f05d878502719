/* Measures the operations of a step in order, on all cores; see bench_roof.h. */
#include "bench/step/bench_roof.h"

#include "base/clock.h"
#include "base/pages.h"
#include "base/reduce.h"
#include "bench/bench_layer.h"
#include "core/declared.h"
#include "kernel_open.h"
#include "tessera/check.h"
#include "tessera/memory.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define ROOF_BYTES ((size_t)512 << 20)
#define ROOF_S     0.5 /* of all rounds together, within these numbers of them */
#define ROOF_LEAST 4
#define ROOF_MOST  198
#define ROOF_BLOCK 2048 /* elements that are summed and updated while they are in a cache */
#define ROOF_KEEPS 2    /* units of which a rank has all weights at once, where it gathers */
#define ROOF_ALIGN 64

/* An operation, or, of no kind of those, parameters that none of them has (embeddings, biases). The
 * same for all cores. */
struct roof_op {
    struct tess_op_desc desc; /* a core's share */
    bool bare;                /* parameters alone */
    int32_t unit;
    int32_t times; /* it stands for so many that are alike */
    size_t bytes[TESS__BENCH_ARRAYS];
    int64_t trained; /* elements of its weights, if these are updated here; else 0 */
    bool gathers[2]; /* copies its weights before forward, before backward */
    bool gives;      /* new values go to all ranks */
    struct tess__bench_choice choice;
};

/* Of one rank on one core. */
struct roof_layer {
    struct tess__bench_layer own;
    struct tess_best *best[3]; /* NULL: own */
    bool opened;
};

/* Of a core's slice of the weights of an operation: what is not a replica. */
struct roof_slice {
    float *master; /* NULL: the first rank's weights */
    void *home;    /* in the run's type, where ranks gather; may be master. NULL: likewise */
    float *m, *v;  /* NULL where the rule has none */
    struct tess_update update; /* of one rank, by the operation */
};

struct roof_core {
    pthread_t thread;
    struct roof *roof;
    int number;
    struct tess_kernel *kernel;
    char *memory; /* NULL: `used` is being counted */
    size_t used, taken;
    struct roof_layer *layer; /* [ranks, op_count] */
    struct roof_slice *slice; /* [op_count] */
    double *lap; /* [1 + ROOF_MOST, op_count, 3] seconds, by enum tess_best_what; the first warms
                    up */
    bool rivals; /* products are by the choices, in every other step, else Tessera's */
    const void **source; /* [replicas] */
    enum tess_status status;
};

struct roof {
    const struct tess_config *config;
    enum tess_dtype dtype;
    int groups; /* cores / share */
    int share;  /* cores that compute one rank */
    int ranks;  /* on one core, in turn; groups x ranks in all */
    int moments;
    bool gathers;
    struct roof_op *op;
    int32_t op_count;
    struct roof_core *core; /* [groups, share] */
    pthread_mutex_t gate;   /* held until all threads are there */
    bool closed;            /* one could not be made */
    pthread_barrier_t barrier;
    int rounds;
};

/* By moments: the update is that of a rule with as many, or two. */
static const enum tess_update_kind roof_rule[] = {TESS_UPDATE_SGD, TESS_UPDATE_MOMENTUM,
                                                  TESS_UPDATE_ADAMW};

static int roof_cores(const struct roof *roof)
{
    return roof->groups * roof->share;
}

static int roof_replicas(const struct roof *roof)
{
    return roof->groups * roof->ranks;
}

/* Replica `number` of what the core has. */
static struct roof_layer *roof_replica(const struct roof_core *core, int32_t o, int number)
{
    const struct roof *roof = core->roof;
    const int first = core->number / roof->share, group = (first + number) % roof->groups;
    const struct roof_core *other = &roof->core[group * roof->share + core->number % roof->share];
    return &other->layer[number / roof->groups * roof->op_count + o];
}

/* ---- what there is to do --------------------------------------------------------------------- */

static bool roof_has_weights(const struct tess_op_desc *desc)
{
    return desc->kind == TESS_OP_LINEAR || desc->kind == TESS_OP_CONV2D;
}

static bool roof_counts(const struct tess_op_desc *desc)
{
    return tess__bench_ceiling_counts(desc) || desc->kind == TESS_OP_ATTENTION ||
           desc->kind == TESS_OP_NORM || desc->kind == TESS_OP_BATCH_NORM;
}

static int64_t roof_part(int64_t count, int parts)
{
    return (count + parts - 1) / parts;
}

static void roof_describe(const struct roof *roof, const struct tess_declare *model, int32_t o,
                          struct roof_op *op)
{
    struct tess_op_desc *desc = &op->desc;
    *op = (struct roof_op){.desc = model->op[o].desc, .unit = model->op[o].unit, .times = 1};
    if (desc->kind == TESS_OP_LINEAR)
        desc->out = roof_part(desc->out, roof->share);
    else
        desc->rows = roof_part(desc->rows, roof->share);
    desc->leaf_rows = desc->rows;
    tess__bench_layer_bytes(desc, op->bytes);
    if (!roof_has_weights(desc))
        return;
    if (desc->kind == TESS_OP_LINEAR) /* the others' outputs, which the next operation reads too */
        op->bytes[TESS__BENCH_Y] *= (size_t)roof->share;
    const bool early = op->unit < ROOF_KEEPS, late = op->unit >= model->unit_count - ROOF_KEEPS;
    op->trained = desc->frozen ? 0 : (int64_t)(op->bytes[TESS__BENCH_DW] / sizeof(float));
    op->gathers[0] = roof->gathers && !early;
    op->gathers[1] = roof->gathers && !late && desc->input_grad;
    op->gives = !roof->gathers || early;
}

/* Parameters of no operation, which are updated. Adapters are all in operations. */
static void roof_describe_rest(const struct roof *roof, int64_t count, struct roof_op *op)
{
    *op = (struct roof_op){.bare = true, .times = 1, .trained = roof_part(count, roof->share)};
    op->gives = !roof->gathers;
    op->bytes[TESS__BENCH_W] = (size_t)op->trained * tess_dtype_bytes(roof->dtype);
    op->bytes[TESS__BENCH_DW] = (size_t)op->trained * sizeof(float);
}

/* The last one before `end` with the same description; NULL: there is none. */
static struct roof_op *roof_alike(struct roof_op *first, struct roof_op *end)
{
    for (struct roof_op *op = end - 1; op >= first; op--)
        if (memcmp(&op->desc, &end->desc, sizeof(op->desc)) == 0)
            return op;
    return NULL;
}

/* op [model->op_count + 1] */
static void roof_describe_all(struct roof *roof, const struct tess_declare *model,
                              const struct tess__bench_choice *choice)
{
    struct roof_op *first = roof->op + 1, *end = first, *same;
    int64_t rest = model->frozen ? 0 : model->element_count;
    size_t bytes = 0;
    for (int32_t o = 0; o < model->op_count; o++) {
        if (!roof_counts(&model->op[o].desc))
            continue;
        roof_describe(roof, model, o, end);
        end->choice = choice[o];
        rest -= end->trained * (end->desc.kind == TESS_OP_LINEAR ? roof->share : 1);
        same = bytes > ROOF_BYTES ? roof_alike(first, end) : NULL;
        if (same) {
            same->times++;
            continue;
        }
        for (int a = 0; a < TESS__BENCH_ARRAYS; a++)
            bytes += (size_t)roof->ranks * end->bytes[a];
        end++;
    }
    roof_describe_rest(roof, rest > 0 ? rest : 0, roof->op);
    roof->op_count = (int32_t)(end - roof->op);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *roof_take(struct roof_core *core, size_t bytes)
{
    const size_t at = core->used;
    core->used += tess_round_up(bytes, ROOF_ALIGN);
    return core->memory ? core->memory + at : NULL;
}

/*
 * The operation whose array this one uses too; -1: none. What it reads is taken to be the latest
 * result that is as large. Gradients of q, k and v, and gathered weights and their gradients, are
 * needed for the time of a unit only.
 */
static int32_t roof_lender(const struct roof *roof, int32_t o, enum tess__bench_array array)
{
    const struct roof_op *op = &roof->op[o];
    const bool attends = op->desc.kind == TESS_OP_ATTENTION;
    const bool brief = (array == TESS__BENCH_W || array == TESS__BENCH_DW) &&
                       (attends || (roof->gathers && op->trained > 0));
    for (int32_t i = o - 1; i > 0 && !op->bare; i--) {
        const struct roof_op *other = &roof->op[i];
        if (array == TESS__BENCH_X && other->bytes[TESS__BENCH_Y] >= op->bytes[array])
            return i;
        if (brief && other->desc.kind == op->desc.kind && other->unit != op->unit &&
            other->bytes[array] == op->bytes[array])
            return i;
    }
    return -1;
}

static void roof_place_rank(struct roof_core *core, struct roof_layer *layer)
{
    const struct roof *roof = core->roof;
    for (int32_t o = 0; o < roof->op_count; o++)
        for (int a = 0; a < TESS__BENCH_ARRAYS; a++) {
            const int32_t lender = roof_lender(roof, o, (enum tess__bench_array)a);
            const int from = a == TESS__BENCH_X ? TESS__BENCH_Y : a;
            layer[o].own.array[a] =
                lender >= 0 ? layer[lender].own.array[from] : roof_take(core, roof->op[o].bytes[a]);
        }
}

/* The core's part of an operation's weights. */
static void roof_bounds(const struct roof_core *core, int32_t o, int64_t *begin, int64_t *count)
{
    const struct roof *roof = core->roof;
    const struct roof_op *op = &roof->op[o];
    const bool whole = op->desc.kind == TESS_OP_CONV2D && !op->bare; /* on every core of a rank */
    const int parts = whole ? roof_cores(roof) : roof->groups;
    const int part = whole ? core->number : core->number / roof->share;
    *begin = op->trained * part / parts;
    *count = op->trained * (part + 1) / parts - *begin;
}

static void roof_place_slice(struct roof_core *core, int32_t o)
{
    const struct roof *roof = core->roof;
    struct roof_slice *slice = &core->slice[o];
    int64_t begin, count;
    roof_bounds(core, o, &begin, &count);
    const size_t bytes = (size_t)count * sizeof(float);
    const bool low = roof->dtype != TESS_F32;
    *slice = (struct roof_slice){.master = NULL};
    if (low || roof->gathers)
        slice->master = roof_take(core, bytes);
    if (roof->gathers)
        slice->home = low ? roof_take(core, bytes / 2) : slice->master;
    if (roof->moments > 0)
        slice->m = roof_take(core, bytes);
    if (roof->moments > 1)
        slice->v = roof_take(core, bytes);
}

/* `scratch_bytes` is raised to what the operation needs during a call. */
static enum tess_status roof_place_op(struct roof_core *core, int32_t o, size_t *scratch_bytes)
{
    const struct roof *roof = core->roof;
    struct tess_op_needs needs;
    if (roof->op[o].bare)
        return TESS_OK;
    TESS_TRY(core->kernel->ops->op_needs(&roof->op[o].desc, &needs));
    if (needs.scratch_bytes > *scratch_bytes)
        *scratch_bytes = needs.scratch_bytes;
    for (int r = 0; r < roof->ranks; r++)
        core->layer[r * roof->op_count + o].own.op =
            (struct tess_op){.desc = roof->op[o].desc,
                             .kernel = core->kernel,
                             .weight_token = 1,
                             .packed = roof_take(core, needs.packed_bytes)};
    return TESS_OK;
}

static enum tess_status roof_place(struct roof_core *core)
{
    const struct roof *roof = core->roof;
    core->used = 0;
    for (int r = 0; r < roof->ranks; r++)
        roof_place_rank(core, core->layer + r * roof->op_count);
    for (int32_t o = 0; o < roof->op_count; o++)
        roof_place_slice(core, o);
    size_t bytes = 0;
    for (int32_t o = 0; o < roof->op_count; o++)
        TESS_TRY(roof_place_op(core, o, &bytes));
    void *const scratch = roof_take(core, bytes);
    for (int32_t i = 0; i < roof->ranks * roof->op_count; i++)
        core->layer[i].own.op.scratch = scratch;
    return TESS_OK;
}

/* Weights are zero, and the update's rate: so every result is the bias or zero, however many
 * operations follow each other, and none ever becomes subnormal. */
static void roof_fill(const struct roof_core *core)
{
    const struct roof *roof = core->roof;
    memset(core->memory, 0, core->taken);
    for (int32_t i = 0; i < roof->ranks * roof->op_count; i++) {
        const struct roof_op *op = &roof->op[i % roof->op_count];
        for (int a = 0; a < TESS__BENCH_ARRAYS; a++)
            if (!op->bare && a != TESS__BENCH_DW &&
                (a != TESS__BENCH_W || !roof_has_weights(&op->desc)))
                memset(core->layer[i].own.array[a], 0x3f, op->bytes[a]);
    }
}

static struct tess_update roof_update_of(const struct roof_core *core, int32_t o, int64_t at,
                                         int64_t count, const float *g)
{
    const struct roof *roof = core->roof;
    const struct roof_slice *slice = &core->slice[o];
    int64_t begin, all;
    roof_bounds(core, o, &begin, &all);
    char *const own = core->layer[o].own.array[TESS__BENCH_W];
    const size_t element = tess_dtype_bytes(roof->dtype);
    float *const w = slice->master ? slice->master + at : (float *)own + begin + at;
    struct tess_update update =
        tess__bench_update(roof_rule[roof->moments], count, w, g, slice->m ? slice->m + at : NULL,
                           slice->v ? slice->v + at : NULL);
    update.lr = 0;
    update.low = roof->dtype;
    if (roof->dtype != TESS_F32)
        update.param_low = slice->home ? (char *)slice->home + (size_t)at * element
                                       : own + (size_t)(begin + at) * element;
    return update;
}

/* ---- opening --------------------------------------------------------------------------------- */

static enum tess_status roof_open_best(const struct roof_op *op, int what, struct roof_layer *layer)
{
    static const enum tess__bench_array array[3][4] = {
        {TESS__BENCH_X, TESS__BENCH_W, TESS__BENCH_Y, TESS__BENCH_BIAS},
        {TESS__BENCH_Y, TESS__BENCH_W, TESS__BENCH_X},
        {TESS__BENCH_X, TESS__BENCH_Y, TESS__BENCH_DW},
    };
    TESS_TRY(tess__best_open(&op->desc, (enum tess_best_what)what, op->choice.number[what], 1,
                             &layer->best[what]));
    for (int i = 0; layer->best[what] && i < (what == TESS_BEST_FORWARD ? 4 : 3); i++)
        tess__best_use(layer->best[what], i, layer->own.array[array[what][i]],
                       op->bytes[array[what][i]]);
    return TESS_OK;
}

static enum tess_status roof_open_layer(struct roof_core *core, int32_t o, struct roof_layer *layer)
{
    const struct roof_op *op = &core->roof->op[o];
    if (op->bare)
        return TESS_OK;
    TESS_TRY(core->kernel->ops->op_open(&layer->own.op));
    layer->opened = true;
    for (int what = 0; what < 3; what++)
        if (roof_has_weights(&op->desc) && op->choice.number[what] >= 0)
            TESS_TRY(roof_open_best(op, what, layer));
    return TESS_OK;
}

static enum tess_status roof_open(struct roof_core *core)
{
    const struct roof *roof = core->roof;
    TESS_TRY(tess_kernel_open(roof->config->kernel, 1, &core->kernel));
    TESS_TRY(roof_place(core));
    core->taken = core->used;
    core->memory = tess_pages_take(core->taken);
    if (!core->memory)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the bench: %zu bytes", core->taken);
    TESS_TRY(roof_place(core));
    roof_fill(core);
    for (int32_t o = 0; o < roof->op_count; o++)
        core->slice[o].update = roof_update_of(core, o, 0, roof->op[o].trained,
                                               core->layer[o].own.array[TESS__BENCH_DW]);
    for (int32_t i = 0; i < roof->ranks * roof->op_count; i++)
        TESS_TRY(roof_open_layer(core, i % roof->op_count, &core->layer[i]));
    return TESS_OK;
}

static void roof_close(struct roof_core *core)
{
    const struct roof *roof = core->roof;
    for (int32_t i = 0; i < roof->ranks * roof->op_count; i++) {
        struct roof_layer *layer = &core->layer[i];
        for (int what = 0; what < 3; what++)
            tess__best_close(layer->best[what]);
        if (layer->opened)
            core->kernel->ops->op_close(&layer->own.op);
    }
    if (core->memory)
        tess_pages_give(core->memory, core->taken);
    tess_kernel_close(core->kernel);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void roof_wait(const struct roof_core *core)
{
    (void)pthread_barrier_wait(&core->roof->barrier);
}

/* The weights of one rank, from all slices. */
static void roof_gather(const struct roof_core *core, int32_t o, const struct roof_layer *layer,
                        double *lap)
{
    const double start = tess_clock_thread_s();
    const struct roof *roof = core->roof;
    const size_t element = tess_dtype_bytes(roof->dtype);
    for (int g = 0; g < roof->groups; g++) {
        const struct roof_core *other = &roof->core[g * roof->share + core->number % roof->share];
        int64_t begin, count;
        roof_bounds(other, o, &begin, &count);
        memcpy((char *)layer->own.array[TESS__BENCH_W] + (size_t)begin * element,
               other->slice[o].home, (size_t)count * element);
    }
    *lap += tess_clock_thread_s() - start;
}

/* `lap` += seconds. */
static void roof_run(struct roof_core *core, struct roof_layer *layer, enum tess_best_what what,
                     double *lap)
{
    const double start = tess_clock_thread_s();
    struct tess_best *const best = core->rivals ? layer->best[what] : NULL;
    layer->own.what = what;
    TESS_KEEP(core->status, best ? tess__best_run(best) : tess__bench_layer_run(&layer->own));
    lap[what] += tess_clock_thread_s() - start;
}

/* The core's slice of sum, update and new values. */
static void roof_share(const struct roof_core *core, int32_t o)
{
    const struct roof *roof = core->roof;
    const int replicas = roof_replicas(roof);
    const size_t element = tess_dtype_bytes(roof->dtype);
    _Alignas(ROOF_ALIGN) float sum[ROOF_BLOCK];
    void *const target = sum;
    int64_t begin, count;
    roof_bounds(core, o, &begin, &count);
    for (int64_t at = 0, n; at < count; at += n) {
        n = count - at < ROOF_BLOCK ? count - at : ROOF_BLOCK;
        for (int i = 0; i < replicas; i++)
            core->source[i] =
                (float *)roof_replica(core, o, i)->own.array[TESS__BENCH_DW] + begin + at;
        if (replicas > 1)
            tess__reduce(TESS_F32, TESS_REDUCE_SUM, replicas, core->source, 1, &target, (size_t)n);
        const struct tess_update update =
            roof_update_of(core, o, at, n, replicas > 1 ? sum : core->source[0]);
        tess_update(core->kernel, &update);
        const void *const value = update.param_low ? update.param_low : update.w;
        for (int i = roof->gathers ? 0 : 1; roof->op[o].gives && i < replicas; i++)
            memcpy((char *)roof_replica(core, o, i)->own.array[TESS__BENCH_W] +
                       (size_t)(begin + at) * element,
                   value, (size_t)n * element);
    }
}

/* lap [3], as in all of these */
static void roof_forward(struct roof_core *core, int32_t o, struct roof_layer *layer, double *lap)
{
    const struct roof_op *op = &core->roof->op[o];
    if (op->gathers[0])
        roof_gather(core, o, layer, &lap[TESS_BEST_FORWARD]);
    for (int32_t i = 0; i == 0 || i < op->desc.calls; i++)
        roof_run(core, layer, TESS_BEST_FORWARD, lap);
}

/* `update`: of the weights, by the operation; or NULL. */
static void roof_backward(struct roof_core *core, int32_t o, struct roof_layer *layer,
                          const struct tess_update *update, double *lap)
{
    const struct roof_op *op = &core->roof->op[o];
    const bool weights = roof_has_weights(&op->desc);
    if (op->gathers[1])
        roof_gather(core, o, layer, &lap[TESS_BEST_BACKWARD_DATA]);
    for (int32_t i = 0; i == 0 || i < op->desc.calls; i++) {
        layer->own.op.update = i + 1 >= op->desc.calls ? update : NULL;
        if (weights && !op->desc.frozen)
            roof_run(core, layer, TESS_BEST_BACKWARD_WEIGHT, lap);
        if (!weights || op->desc.input_grad)
            roof_run(core, layer, TESS_BEST_BACKWARD_DATA, lap);
    }
}

/* An operation's backward, and after that of the core's last rank what follows. */
static void roof_back(struct roof_core *core, int32_t o, int rank, double *lap)
{
    const struct roof *roof = core->roof;
    const struct roof_op *op = &roof->op[o];
    struct roof_layer *layer = &core->layer[rank * roof->op_count + o];
    const bool alone = roof_replicas(roof) == 1;
    const bool updates = op->trained > 0 && rank == roof->ranks - 1;
    const bool early = alone && updates && !op->bare && op->desc.kind == TESS_OP_LINEAR &&
                       !(core->rivals && layer->best[TESS_BEST_BACKWARD_WEIGHT]);
    if (!op->bare)
        roof_backward(core, o, layer, early ? &core->slice[o].update : NULL, lap);
    if (!updates || early)
        return;
    if (!alone)
        roof_wait(core);
    const double start = tess_clock_thread_s();
    roof_share(core, o);
    lap[TESS_BEST_BACKWARD_WEIGHT] += tess_clock_thread_s() - start;
    if (!alone) /* the arrays may be another operation's too */
        roof_wait(core);
}

static void roof_step(struct roof_core *core, int number)
{
    const struct roof *roof = core->roof;
    double *lap = core->lap + 3 * number * roof->op_count;
    core->rivals = number % 2 != 0;
    roof_wait(core);
    for (int r = 0; r < roof->ranks; r++) {
        for (int32_t o = 1; o < roof->op_count; o++)
            roof_forward(core, o, &core->layer[r * roof->op_count + o], lap + 3 * o);
        for (int32_t o = roof->op_count - 1; o >= 0; o--)
            roof_back(core, o, r, lap + 3 * o);
    }
}

/* So many after the first, of each kind as many. */
static int roof_rounds(const struct roof_core *core)
{
    double sum_s = 0;
    for (int32_t i = 0; i < 3 * core->roof->op_count; i++)
        sum_s += core->lap[i];
    return (int)fmin(fmax(ROOF_S / sum_s, ROOF_LEAST), ROOF_MOST) / 2 * 2;
}

static void *roof_thread(void *context)
{
    struct roof_core *core = context;
    struct roof *roof = core->roof;
    pthread_mutex_lock(&roof->gate);
    pthread_mutex_unlock(&roof->gate);
    if (roof->closed)
        return NULL;
    core->status = roof_open(core);
    roof_wait(core);
    bool failed = false;
    for (int i = 0; i < roof_cores(roof); i++)
        failed = failed || roof->core[i].status != TESS_OK;
    roof_wait(core); /* before any core's status changes */
    if (failed)
        return NULL;
    roof_step(core, 0);
    if (core->number == 0)
        roof->rounds = roof_rounds(core);
    roof_wait(core);
    for (int i = 1; i <= roof->rounds; i++)
        roof_step(core, i);
    return NULL;
}

/* The first quartile of a lap, of steps of one kind: what else runs on the machine only ever adds
 * to it. */
static double roof_lap_s(const struct roof_core *core, int32_t at, bool rivals)
{
    const int count = core->roof->rounds / 2;
    double lap[ROOF_MOST / 2];
    for (int i = 0; i < count; i++)
        lap[i] = core->lap[3 * (2 * i + (rivals ? 1 : 2)) * core->roof->op_count + at];
    tess__bench_sort(lap, (size_t)count);
    return lap[count / 4];
}

/* Seconds of a step on one core, each part of it by the faster kind. */
static double roof_core_s(const struct roof_core *core)
{
    double sum_s = 0;
    for (int32_t i = 0; i < 3 * core->roof->op_count; i++)
        sum_s += core->roof->op[i / 3].times *
                 fmin(roof_lap_s(core, i, false), roof_lap_s(core, i, true));
    return sum_s;
}

static enum tess_status roof_core_room(struct roof *roof, int number)
{
    struct roof_core *core = &roof->core[number];
    const size_t ops = (size_t)roof->op_count;
    *core = (struct roof_core){
        .roof = roof,
        .number = number,
        .layer = calloc((size_t)roof->ranks * ops, sizeof(*core->layer)),
        .slice = calloc(ops, sizeof(*core->slice)),
        .lap = calloc((1 + ROOF_MOST) * 3 * ops, sizeof(*core->lap)),
        .source = calloc((size_t)roof_replicas(roof), sizeof(*core->source)),
    };
    if (!core->layer || !core->slice || !core->lap || !core->source)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure %d operations", roof->op_count);
    return TESS_OK;
}

static enum tess_status roof_run_cores(struct roof *roof, int cores)
{
    enum tess_status status = TESS_OK;
    int started = 0;
    (void)pthread_barrier_init(&roof->barrier, NULL, (unsigned)cores);
    (void)pthread_mutex_init(&roof->gate, NULL);
    pthread_mutex_lock(&roof->gate);
    while (started < cores && !roof->closed) {
        struct roof_core *core = &roof->core[started];
        roof->closed = pthread_create(&core->thread, NULL, roof_thread, core) != 0;
        started += !roof->closed;
    }
    pthread_mutex_unlock(&roof->gate);
    if (roof->closed)
        status = tess_fail(TESS_ERR_MEMORY, "no thread to measure core %d with", started);
    for (int i = 0; i < started; i++) {
        pthread_join(roof->core[i].thread, NULL);
        TESS_KEEP(status, roof->core[i].status);
    }
    (void)pthread_mutex_destroy(&roof->gate);
    (void)pthread_barrier_destroy(&roof->barrier);
    return status;
}

/* The slowest core's. */
static enum tess_status roof_measure(struct roof *roof, double *step_s)
{
    const int cores = roof_cores(roof);
    enum tess_status status = TESS_OK;
    roof->core = calloc((size_t)cores, sizeof(*roof->core));
    if (!roof->core)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure %d cores", cores);
    for (int i = 0; i < cores; i++)
        TESS_KEEP(status, roof_core_room(roof, i));
    if (status == TESS_OK)
        status = roof_run_cores(roof, cores);
    for (int i = 0; i < cores && status == TESS_OK; i++)
        *step_s = fmax(*step_s, roof_core_s(&roof->core[i]));
    for (int i = 0; i < cores; i++) {
        struct roof_core *core = &roof->core[i];
        if (core->layer && core->kernel)
            roof_close(core);
        free(core->layer);
        free(core->slice);
        free(core->lap);
        free(core->source);
    }
    free(roof->core);
    return status;
}

enum tess_status tess__bench_roof(const struct tess_config *config,
                                  const struct tess_dataset *dataset, int cores, bool gathers,
                                  const struct tess__bench_ceiling *ceiling,
                                  double *samples_per_s_out)
{
    const int64_t batch = config->run.batch_size, all = config->mesh.count[TESS_AXIS_DATA];
    const int busy = batch < cores ? (int)batch : cores;
    struct roof roof = {.config = config, .groups = all < busy ? (int)all : busy};
    struct tess_declare model;
    void *state;
    double step_s = 0;
    enum tess_status status;
    *samples_per_s_out = 0;
    if (ceiling->samples_per_s == 0)
        return TESS_OK;
    roof.share = busy / roof.groups;
    roof.ranks = (int)roof_part(all, roof.groups);
    roof.gathers = gathers && all > 1;
    roof.moments = config->optimizer->state_arrays < 2 ? config->optimizer->state_arrays : 2;
    TESS_TRY_GOTO(status, free_model,
                  tess__bench_ceiling_declare(config, dataset, batch / all, &model, &state));
    roof.dtype = model.dtype;
    roof.op = calloc((size_t)model.op_count + 1, sizeof(*roof.op));
    if (!roof.op)
        TESS_TRY_GOTO(
            status, free_model,
            tess_fail(TESS_ERR_MEMORY, "no memory to measure %d operations", model.op_count));
    roof_describe_all(&roof, &model, ceiling->choice);
    status = roof_measure(&roof, &step_s);
    if (status == TESS_OK)
        *samples_per_s_out = (double)(batch / all) * roof_replicas(&roof) / step_s;

free_model:
    free(roof.op);
    tess__declare_free(&model, state);
    return status;
}
