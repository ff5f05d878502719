/*
 * Optimizers: every rule against its formula in double over 20 steps; the same bits however the
 * parameters are cut over 1 to 4 ranks, replicated or not; clipping; gradients that are not finite.
 */
#include "base/rng.h"
#include "comm/world.h"
#include "kernel_open.h"
#include "optim/optim.h"
#include "optim/optim_room.h"
#include "tessera/model.h"
#include "tessera/registry.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a small model --------------------------------------------------------------------------- */

enum { PARAMS = 6, STEPS = 20, RANKS_MAX = 4, LEAVES = 8, FLAT = 2048 };

static const struct param {
    const char *name;
    int64_t count;
    uint32_t flags;
    float rate;       /* of a buffer */
    double grad_size; /* gradients are uniform in -size .. size */
    double value_size;
} param[PARAMS] = {
    {"a.weight", 200, 0, 0, 1, 1},
    {"a.bias", 10, TESS_PARAM_NO_DECAY, 0, 0.1, 0.5},
    {"bn.mean", 20, TESS_PARAM_NO_DECAY | TESS_PARAM_BUFFER, 0.1f, 40, 1},
    {"b.weight", 1000, 0, 0, 0.01, 1},
    {"b.bias", 1, TESS_PARAM_NO_DECAY, 0, 3, 1},
    {"idle.weight", 65, 0, 0, 0, 0}, /* all zero, and so are its gradients */
};

/* Where a parameter begins in flat space: at multiples of the block of the exact sums. */
static int64_t flat_begin(int32_t p)
{
    int64_t begin = 0;
    for (int32_t i = 0; i < p; i++)
        begin += (param[i].count + TESS_SUM_BLOCK - 1) / TESS_SUM_BLOCK * TESS_SUM_BLOCK;
    return begin;
}

static float random_in(double size, uint64_t i, uint64_t stream)
{
    const struct tess_rng_key key = tess_rng_key(21, TESS_RNG_TEST, stream);
    return (float)(size * (2 * (double)tess_rng_uniform(key, i, 0) - 1));
}

static float first_value(int32_t p, int64_t i)
{
    return random_in(param[p].value_size, (uint64_t)(flat_begin(p) + i), 0);
}

/* Large in the first steps, so that clipping is on in some steps and off in others. */
static float gradient(int32_t p, int64_t i, int64_t step)
{
    return random_in(param[p].grad_size * (step % 3 == 0 ? 1 : 0.1), (uint64_t)(flat_begin(p) + i),
                     1 + (uint64_t)step);
}

static double rate_of(int64_t step)
{
    return 0.01 + 0.002 * (double)step;
}

static struct tess_optim_options options_of(int32_t kind)
{
    const struct tess_optim_options options = {
        .name = optim_name[kind],
        .learning_rate = 0.01,
        .momentum = 0.9,
        .beta1 = -1,
        .beta2 = -1,
        .epsilon = -1,
        .weight_decay = 0.05,
        .clip = 3,
    };
    return options;
}

/* ---- one rank -------------------------------------------------------------------------------- */

struct rank {
    struct tess_optim optim;
    struct tess_piece piece[PARAMS];
    struct optim_room room;
    float w[FLAT], g[FLAT], state[2 * FLAT], scratch[FLAT];
    uint16_t low[FLAT];
};

/* The part of the flat space from `begin` on, `count` elements, as pieces. */
static void rank_init(struct rank *rank, const struct tess_optim_options *options,
                      struct tess_kernel *kernel, struct tess_comm *comm, bool counts,
                      int64_t begin, int64_t count)
{
    tess_optim_close(&rank->optim);
    memset(rank, 0, sizeof(*rank));
    memset(rank->scratch, 0xff, sizeof(rank->scratch));
    rank->optim = (struct tess_optim){
        .options = *options,
        .ops = optim_ops(options->name),
        .kernel = kernel,
        .low = TESS_BF16,
        .loss_scale = 1,
        .sum_comm = comm,
        .counts = counts,
        .param_count = PARAMS,
        .piece = rank->piece,
        .state_count = count,
        .state = rank->state,
        .scratch = rank->scratch,
        .leaf_count = LEAVES,
    };
    optim_place(&rank->optim, &rank->room);
    for (int32_t p = 0; p < PARAMS; p++) {
        const int64_t first = flat_begin(p), last = first + param[p].count;
        const int64_t from = first > begin ? first : begin;
        const int64_t to = last < begin + count ? last : begin + count;
        if (from >= to)
            continue;
        rank->piece[rank->optim.piece_count++] = (struct tess_piece){
            .param = p,
            .flags = param[p].flags,
            .buffer_rate = param[p].rate,
            .param_begin = from - first,
            .count = to - from,
            .sum_block = TESS_SUM_BLOCK,
            .state_begin = from - begin,
            .w = rank->w + from,
            .low = rank->low + from,
            .g = rank->g + from,
        };
        for (int64_t i = from; i < to; i++)
            rank->w[i] = first_value(p, i - first);
    }
}

static void rank_fill_gradients(struct rank *rank, int64_t step)
{
    for (int32_t i = 0; i < rank->optim.piece_count; i++) {
        const struct tess_piece *piece = &rank->piece[i];
        for (int64_t e = 0; e < piece->count; e++)
            rank->g[piece->g - rank->g + e] = gradient(piece->param, piece->param_begin + e, step);
    }
}

static void open_kernel(struct tess_kernel **kernel_out)
{
    const struct tess_kernel_ops *ops;
    assert_int_equal(tess_registry_get_kernel("ref", &ops), TESS_OK);
    assert_int_equal(tess_kernel_open(ops, 1, kernel_out), TESS_OK);
}

/* ---- the formulas in double ------------------------------------------------------------------ */

struct model {
    double w[PARAMS][1000], m[PARAMS][1000], v[PARAMS][1000], u[PARAMS][1000];
    double tensor_v[PARAMS];
    double norm;
};

static double square_sum(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sum;
}

/* Moments and direction of AdamW and LAMB: m_hat / (sqrt(v_hat) + epsilon). */
static double adam_direction(struct model *model, int32_t p, int64_t i, double g, int64_t t,
                             double epsilon)
{
    double *m = &model->m[p][i], *v = &model->v[p][i];
    *m = 0.9 * *m + (1 - 0.9) * g;
    *v = 0.999 * *v + (1 - 0.999) * g * g;
    return *m / (1 - pow(0.9, (double)t)) / (sqrt(*v / (1 - pow(0.999, (double)t))) + epsilon);
}

static void model_update(struct model *model, const struct tess_optim_options *options, int32_t p,
                         const double *g, int64_t step, double rate)
{
    const enum tess_update_kind kind = optim_ops(options->name)->kind;
    double *w = model->w[p], *m = model->m[p], *u = model->u[p];
    const int64_t count = param[p].count, t = step + 1;
    const double decay = param[p].flags & TESS_PARAM_NO_DECAY ? 0 : options->weight_decay;
    if (kind == TESS_UPDATE_NOVOGRAD) {
        const double square = square_sum(g, count);
        model->tensor_v[p] = step == 0 ? square : 0.98 * model->tensor_v[p] + 0.02 * square;
    }
    for (int64_t i = 0; i < count; i++) {
        switch (kind) {
        case TESS_UPDATE_SGD:
            u[i] = g[i] + decay * w[i];
            break;
        case TESS_UPDATE_MOMENTUM:
            m[i] = 0.9 * m[i] + g[i] + decay * w[i];
            u[i] = options->nesterov ? g[i] + decay * w[i] + 0.9 * m[i] : m[i];
            break;
        case TESS_UPDATE_ADAMW:
            u[i] = adam_direction(model, p, i, g[i], t, 1e-8) + decay * w[i];
            break;
        case TESS_UPDATE_NOVOGRAD:
            m[i] = 0.95 * m[i] + g[i] / (sqrt(model->tensor_v[p]) + 1e-8) + decay * w[i];
            u[i] = m[i];
            break;
        default: /* LAMB */
            u[i] = adam_direction(model, p, i, g[i], t, 1e-6) + decay * w[i];
            break;
        }
    }
    if (kind == TESS_UPDATE_LAMB && !(param[p].flags & TESS_PARAM_NO_DECAY)) {
        const double w_norm = sqrt(square_sum(w, count)), u_norm = sqrt(square_sum(u, count));
        rate *= w_norm > 0 && u_norm > 0 ? w_norm / u_norm : 1;
    }
    for (int64_t i = 0; i < count; i++)
        w[i] -= rate * u[i];
}

static void model_step(struct model *model, const struct tess_optim_options *options, int64_t step,
                       double rate)
{
    static double g[PARAMS][1000];
    double square = 0;
    for (int32_t p = 0; p < PARAMS; p++) {
        for (int64_t i = 0; i < param[p].count; i++)
            g[p][i] = gradient(p, i, step);
        if (!(param[p].flags & TESS_PARAM_BUFFER))
            square += square_sum(g[p], param[p].count);
    }
    model->norm = sqrt(square);
    const double scale =
        options->clip > 0 && model->norm > options->clip ? options->clip / model->norm : 1;
    for (int32_t p = 0; p < PARAMS; p++) {
        if (param[p].flags & TESS_PARAM_BUFFER) {
            for (int64_t i = 0; i < param[p].count; i++)
                model->w[p][i] += (double)param[p].rate * (g[p][i] / LEAVES - model->w[p][i]);
            continue;
        }
        for (int64_t i = 0; i < param[p].count; i++)
            g[p][i] *= scale;
        model_update(model, options, p, g[p], step, rate);
    }
}

static void check_formula(const struct tess_optim_options *options, struct tess_kernel *kernel)
{
    static struct rank rank;
    static struct model model;
    int clipped = 0;
    memset(&model, 0, sizeof(model));
    rank_init(&rank, options, kernel, NULL, true, 0, FLAT);
    for (int32_t p = 0; p < PARAMS; p++)
        for (int64_t i = 0; i < param[p].count; i++)
            model.w[p][i] = first_value(p, i);
    for (int64_t step = 0; step < STEPS; step++) {
        rank_fill_gradients(&rank, step);
        assert_int_equal(optim_step(&rank.optim, rate_of(step)), TESS_OK);
        model_step(&model, options, step, rate_of(step));
        const bool normed =
            options->clip > 0 || optim_ops(options->name)->kind >= TESS_UPDATE_NOVOGRAD;
        /* The sum is exact up to its rounding to double; the formula's has 1300 roundings. */
        if (normed)
            assert_true(fabs(rank.optim.verdict->grad_norm - model.norm) <= 1e-12 * model.norm);
        else
            assert_true(rank.optim.verdict->grad_norm == -1);
        clipped += model.norm > options->clip;
    }
    assert_int_equal(rank.optim.step, STEPS);
    assert_int_equal(optim_bad(&rank.optim), -1);
    assert_true(clipped > 0 && (options->clip == 0 || clipped < STEPS));
    /*
     * A step rounds some ten times, each time by at most 2^-24 of a number below 1 (values, and
     * rate times moment or direction), and an error in a moment lives on in a moment as long as the
     * moment itself does, so 20 steps make 20 * 10 * 2^-24 = 1.2e-5. Thirty times what is seen; a
     * wrong constant in a formula makes 1e-3 and more.
     */
    const double tolerance = STEPS * 10 * 0x1p-24;
    double worst = 0, moved = 0;
    for (int32_t p = 0; p < PARAMS; p++) {
        for (int64_t i = 0; i < param[p].count; i++) {
            const double w = rank.w[flat_begin(p) + i];
            worst = fmax(worst, fabs(w - model.w[p][i]));
            if (!(param[p].flags & TESS_PARAM_BUFFER))
                moved = fmax(moved, fabs(w - (double)first_value(p, i)));
            uint32_t bits;
            memcpy(&bits, &rank.w[flat_begin(p) + i], sizeof(bits));
            bits += 0x7fff + (bits >> 16 & 1);
            assert_int_equal(rank.low[flat_begin(p) + i], bits >> 16);
        }
    }
    print_message("%s nesterov %d clip %g: worst %.3g, moved %.3g\n", options->name,
                  options->nesterov, options->clip, worst, moved);
    assert_true(worst <= tolerance);
    assert_true(moved > 0.05 && moved < 8);
}

static void case_formulas(void **state)
{
    (void)state;
    struct tess_kernel *kernel;
    open_kernel(&kernel);
    for (int32_t kind = TESS_UPDATE_SGD; kind <= TESS_UPDATE_LAMB; kind++) {
        struct tess_optim_options options = options_of(kind);
        check_formula(&options, kernel);
        options.clip = 0;
        check_formula(&options, kernel);
        options.nesterov = true;
        if (kind == TESS_UPDATE_MOMENTUM)
            check_formula(&options, kernel);
    }
    tess_kernel_close(kernel);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* One thread per rank; `replicas` groups of ranks own the whole flat space each. */
struct job {
    const struct tess_optim_options *options;
    struct tess_world *world;
    int32_t index, rank_count, replicas;
    int32_t bad_rank; /* its gradients hold an infinity in the last step; -1: none */
    float *w;         /* [FLAT] of the replica: this rank's part is written */
    double norm[STEPS];
    enum tess_status status;
    int32_t nonfinite_param;
    bool unchanged; /* the failed step left everything as it was */
};

static void job_last_step(struct job *job, struct rank *rank)
{
    static const float infinity = INFINITY;
    if (job->index == job->bad_rank)
        rank->g[rank->piece[0].g - rank->g + 3] = infinity;
    struct rank *before = malloc(sizeof(*before));
    float tensor_state[PARAMS];
    memcpy(before, rank, sizeof(*before));
    memcpy(tensor_state, rank->optim.tensor_state, sizeof(tensor_state));
    job->status = optim_step(&rank->optim, rate_of(STEPS - 1));
    job->norm[STEPS - 1] = rank->optim.verdict->grad_norm;
    job->nonfinite_param = optim_bad(&rank->optim);
    job->unchanged = memcmp(before->w, rank->w, sizeof(rank->w)) == 0 &&
                     memcmp(before->state, rank->state, sizeof(rank->state)) == 0 &&
                     memcmp(before->low, rank->low, sizeof(rank->low)) == 0 &&
                     memcmp(tensor_state, rank->optim.tensor_state, sizeof(tensor_state)) == 0 &&
                     before->optim.step == rank->optim.step;
    free(before);
}

static void *job_run(void *argument)
{
    struct job *job = argument;
    const struct tess_kernel_ops *ops;
    struct tess_kernel *kernel = NULL;
    struct tess_comm *comm = NULL;
    struct rank *rank = calloc(1, sizeof(*rank));
    const int32_t shards = job->rank_count / job->replicas;
    const int64_t width = (FLAT / TESS_SUM_BLOCK + shards - 1) / shards * TESS_SUM_BLOCK;
    const int64_t begin = job->index % shards * width;
    const int64_t count = begin + width < FLAT ? width : FLAT - begin;
    job->status = tess_registry_get_kernel("ref", &ops);
    if (job->status == TESS_OK)
        job->status = tess_kernel_open(ops, 1, &kernel);
    if (job->status == TESS_OK)
        job->status = tess_comm_local_open(job->world, job->index, TESS_ORDER_CANONICAL, 20, &comm);
    if (job->status == TESS_OK)
        rank_init(rank, job->options, kernel, comm, job->index < shards, begin, count);
    for (int64_t step = 0; step < STEPS - 1 && job->status == TESS_OK; step++) {
        rank_fill_gradients(rank, step);
        job->status = optim_step(&rank->optim, rate_of(step));
        job->norm[step] = rank->optim.verdict->grad_norm;
    }
    if (job->status == TESS_OK) {
        rank_fill_gradients(rank, STEPS - 1);
        job_last_step(job, rank);
        for (int32_t i = 0; i < rank->optim.piece_count; i++) {
            const struct tess_piece *piece = &rank->piece[i];
            memcpy(job->w + (piece->w - rank->w), piece->w, (size_t)piece->count * sizeof(float));
        }
    }
    tess_comm_close(comm);
    tess_kernel_close(kernel);
    tess_optim_close(&rank->optim);
    free(rank);
    return NULL;
}

static void run_jobs(struct job job[RANKS_MAX], float w[][FLAT],
                     const struct tess_optim_options *options, int32_t rank_count, int32_t replicas,
                     int32_t bad_rank)
{
    struct tess_world *world = NULL;
    pthread_t thread[RANKS_MAX];
    assert_int_equal(tess_world_open(rank_count, TESS_RANKS_THREADS, &world), TESS_OK);
    for (int32_t r = 0; r < rank_count; r++) {
        job[r] = (struct job){
            .options = options,
            .world = world,
            .index = r,
            .rank_count = rank_count,
            .replicas = replicas,
            .bad_rank = bad_rank,
            .w = w[r / (rank_count / replicas)],
        };
        assert_int_equal(pthread_create(&thread[r], NULL, job_run, &job[r]), 0);
    }
    for (int32_t r = 0; r < rank_count; r++)
        pthread_join(thread[r], NULL);
    tess_world_close(world);
}

static void case_same_bits_on_ranks(void **state)
{
    (void)state;
    static const struct {
        int32_t rank_count, replicas;
    } layout[] = {{2, 1}, {3, 1}, {4, 1}, {2, 2}, {4, 2}};
    struct job one[RANKS_MAX], job[RANKS_MAX];
    static float expected[1][FLAT], w[RANKS_MAX][FLAT];
    for (int32_t kind = TESS_UPDATE_SGD; kind <= TESS_UPDATE_LAMB; kind++) {
        const struct tess_optim_options options = options_of(kind);
        memset(expected, 0, sizeof(expected));
        run_jobs(one, expected, &options, 1, 1, -1);
        assert_int_equal(one[0].status, TESS_OK);
        for (size_t l = 0; l < sizeof(layout) / sizeof(*layout); l++) {
            memset(w, 0, sizeof(w));
            run_jobs(job, w, &options, layout[l].rank_count, layout[l].replicas, -1);
            for (int32_t r = 0; r < layout[l].rank_count; r++) {
                assert_int_equal(job[r].status, TESS_OK);
                assert_memory_equal(job[r].norm, one[0].norm, sizeof(one[0].norm));
            }
            for (int32_t i = 0; i < layout[l].replicas; i++)
                assert_memory_equal(w[i], expected[0], sizeof(expected[0]));
        }
    }
}

/* One rank's infinity is every rank's error, with the same parameter, and nothing has changed. */
static void case_not_finite(void **state)
{
    (void)state;
    struct job job[RANKS_MAX];
    static float w[RANKS_MAX][FLAT];
    for (int32_t kind = TESS_UPDATE_SGD; kind <= TESS_UPDATE_LAMB; kind++) {
        const struct tess_optim_options options = options_of(kind);
        run_jobs(job, w, &options, 4, 1, 1);
        for (int32_t r = 0; r < 4; r++) {
            assert_int_equal(job[r].status, TESS_ERR_NUMERIC);
            assert_int_equal(job[r].nonfinite_param, 3); /* the second quarter is b.weight's */
            assert_true(job[r].unchanged);
        }
    }
    /* The first of two bad parameters; a NaN as well as an infinity. */
    static struct rank rank;
    struct tess_kernel *kernel;
    const struct tess_optim_options options = options_of(TESS_UPDATE_SGD);
    open_kernel(&kernel);
    rank_init(&rank, &options, kernel, NULL, true, 0, FLAT);
    rank_fill_gradients(&rank, 0);
    rank.g[flat_begin(4)] = -INFINITY;
    rank.g[flat_begin(1) + 9] = NAN;
    assert_int_equal(optim_step(&rank.optim, 1), TESS_ERR_NUMERIC);
    assert_int_equal(optim_bad(&rank.optim), 1);
    /* Statistics are no gradients: a buffer's infinity is not this check's business. */
    rank_fill_gradients(&rank, 0);
    rank.g[flat_begin(2)] = INFINITY;
    assert_int_equal(optim_step(&rank.optim, 1), TESS_OK);
    tess_kernel_close(kernel);
}

/* ---- clipping -------------------------------------------------------------------------------- */

/* Gradient (3, 4) has norm 5: as numbers that f32 holds exactly. */
static void case_clip(void **state)
{
    (void)state;
    static const struct {
        double clip;
        float w[2]; /* after one step of rate 1 from 0 */
        double norm;
    } expected[] = {
        {0, {-3, -4}, -1},  {2.5, {-1.5, -2}, 5},   {5, {-3, -4}, 5},
        {100, {-3, -4}, 5}, {1.25, {-0.75, -1}, 5},
    };
    struct tess_kernel *kernel;
    open_kernel(&kernel);
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        float w[2] = {0, 0}, g[2] = {3, 4};
        static struct optim_room room;
        struct tess_piece piece[2] = {
            {.param = 0, .count = 1, .sum_block = TESS_SUM_BLOCK, .w = &w[0], .g = &g[0]},
            {.param = 1,
             .count = 1,
             .sum_block = TESS_SUM_BLOCK,
             .state_begin = 1,
             .w = &w[1],
             .g = &g[1]},
        };
        struct tess_optim optim = {
            .options = options_of(TESS_UPDATE_SGD),
            .ops = optim_ops("sgd"),
            .kernel = kernel,
            .loss_scale = 1,
            .counts = true,
            .param_count = 2,
            .piece = piece,
            .piece_count = 2,
            .state_count = 2,
            .leaf_count = 1,
        };
        optim.options.clip = expected[i].clip;
        optim_place(&optim, &room);
        assert_int_equal(optim_step(&optim, 1), TESS_OK);
        assert_true(optim.verdict->grad_norm == expected[i].norm);
        assert_true(w[0] == expected[i].w[0] && w[1] == expected[i].w[1]);
        tess_optim_close(&optim);
    }
    tess_kernel_close(kernel);
}

/* The memory that each optimizer declares: arrays, numbers per tensor, scratch. */
static void case_sizes(void **state)
{
    (void)state;
    static const int32_t expected[][3] = {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}, {1, 1, 0}, {2, 0, 1}};
    for (int32_t kind = TESS_UPDATE_SGD; kind <= TESS_UPDATE_LAMB; kind++) {
        const struct tess_optimizer_ops *ops = optim_ops(optim_name[kind]);
        assert_int_equal(ops->state_arrays, expected[kind][0]);
        assert_int_equal(ops->tensor_moment, expected[kind][1]);
        assert_int_equal(ops->trust_ratio, expected[kind][2]);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_formulas),   cmocka_unit_test(case_same_bits_on_ranks),
        cmocka_unit_test(case_not_finite), cmocka_unit_test(case_clip),
        cmocka_unit_test(case_sizes),
    };
    return cmocka_run_group_tests_name("optim", cases, NULL, NULL);
}
