/*
 * The optimizer on parameters that are kept in bf16 or f16: without masters, rounded to nearest or
 * at random, and with gradients that carry a loss scale. Expected values come from the same
 * optimizer on f32 masters, rounded by the test between steps.
 */
#include "base/rng.h"
#include "core/layout.h"
#include "kernel_open.h"
#include "optim/optim.h"
#include "optim/optim_room.h"
#include "tessera/model.h"
#include "tessera/registry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The weight is cut into chunks, the last of them short; the bias and the statistic are not. */
enum { PARAMS = 3, WEIGHT = 2 * TESS_OPTIM_CHUNK + 320, BIAS = 64, FLAT = WEIGHT + 2 * BIAS };

static const struct {
    int64_t begin, count;
    uint32_t flags;
} param[PARAMS] = {
    {0, WEIGHT, 0},
    {WEIGHT, BIAS, TESS_PARAM_NO_DECAY},
    {WEIGHT + BIAS, BIAS, TESS_PARAM_NO_DECAY | TESS_PARAM_BUFFER},
};

struct low {
    struct tess_optim optim;
    struct tess_piece piece[PARAMS];
    struct tess_declare_param of[PARAMS];
    struct tess_tensor_axis axis;
    struct optim_room room;
    float w[FLAT], g[FLAT], state[2 * FLAT], scratch[FLAT];
    float chunk[TESS_OPTIM_CHUNK];
    uint16_t low[FLAT];
};

static void low_init(struct low *low, struct tess_kernel *kernel, int32_t kind,
                     enum tess_dtype dtype, bool masters)
{
    tess_optim_close(&low->optim);
    memset(low, 0, sizeof(*low));
    memset(low->chunk, 0xff, sizeof(low->chunk));
    low->optim = (struct tess_optim){
        .options = {.name = optim_name[kind],
                    .momentum = 0.9,
                    .beta1 = -1,
                    .beta2 = -1,
                    .epsilon = -1,
                    .weight_decay = 0.05,
                    .clip = 3},
        .ops = optim_ops(optim_name[kind]),
        .kernel = kernel,
        .low = dtype,
        .chunk = masters ? NULL : low->chunk,
        .chunk_count = TESS_OPTIM_CHUNK,
        .loss_scale = 1,
        .param_count = PARAMS,
        .piece = low->piece,
        .piece_count = PARAMS,
        .state_count = FLAT,
        .state = low->state,
        .scratch = low->scratch,
        .leaf_count = 8,
    };
    low->optim.axis = &low->axis;
    optim_place(&low->optim, &low->room);
    for (int32_t p = 0; p < PARAMS; p++) {
        low->of[p] = (struct tess_declare_param){.shape = tess_shape1(param[p].count),
                                                 .model_begin = 1000 + param[p].begin};
        low->piece[p] = (struct tess_piece){
            .param = p,
            .of = &low->of[p],
            .flags = param[p].flags,
            .buffer_rate = 0.1f,
            .count = param[p].count,
            .sum_block = TESS_SUM_BLOCK,
            .state_begin = param[p].begin,
            .w = masters ? low->w + param[p].begin : NULL,
            .low = low->low + param[p].begin,
            .g = low->g + param[p].begin,
        };
    }
    const struct tess_rng_key key = tess_rng_key(4, TESS_RNG_TEST, 0);
    for (uint64_t i = 0; i < FLAT; i++)
        low->w[i] = 2 * tess_rng_uniform(key, i, 0) - 1;
    tess_cast(kernel, FLAT, TESS_F32, low->w, dtype, low->low);
    tess_cast(kernel, FLAT, dtype, low->low, TESS_F32, low->w);
}

/* Large enough in even steps to be clipped. Statistics do not carry the loss scale. */
static void low_fill_gradients(struct low *low, int64_t step, double scale)
{
    const struct tess_rng_key key = tess_rng_key(5, TESS_RNG_TEST, (uint64_t)step);
    for (uint64_t i = 0; i < FLAT; i++) {
        const bool statistic = (int64_t)i >= param[2].begin;
        const double size = step % 2 == 0 ? 0.1 : 0.01;
        low->g[i] = (float)(size * (statistic ? 1 : scale)) * (2 * tess_rng_uniform(key, i, 0) - 1);
    }
}

static void open_kernel(const char *name, struct tess_kernel **kernel_out)
{
    const struct tess_kernel_ops *ops;
    assert_int_equal(tess_registry_get_kernel(name, &ops), TESS_OK);
    assert_int_equal(tess_kernel_open(ops, 1, kernel_out), TESS_OK);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* What a run without masters should hold: the run with masters, rounded after every step. */
static void check_without_masters(struct tess_kernel *kernel, int32_t kind, enum tess_dtype dtype,
                                  bool stochastic)
{
    static struct low bare, full;
    uint16_t *expected = malloc(FLAT * sizeof(*expected));
    low_init(&bare, kernel, kind, dtype, false);
    low_init(&full, kernel, kind, dtype, true);
    bare.optim.stochastic = stochastic;
    for (int64_t step = 0; step < 4; step++) {
        const uint64_t key[2] = {77, (uint64_t)step};
        memcpy(bare.optim.round_key, key, sizeof(key));
        low_fill_gradients(&bare, step, 1);
        low_fill_gradients(&full, step, 1);
        assert_int_equal(optim_step(&bare.optim, 0.01), TESS_OK);
        assert_int_equal(optim_step(&full.optim, 0.01), TESS_OK);
        assert_true(bare.optim.verdict->grad_norm == full.optim.verdict->grad_norm);
        if (stochastic)
            tess_cast_stochastic(kernel, FLAT, full.w, dtype, key, 1000, expected);
        else
            tess_cast(kernel, FLAT, TESS_F32, full.w, dtype, expected);
        assert_memory_equal(bare.low, expected, FLAT * sizeof(*expected));
        assert_memory_equal(bare.state, full.state, sizeof(bare.state));
        tess_cast(kernel, FLAT, dtype, expected, TESS_F32, full.w);
    }
    free(expected);
}

static void case_without_masters(void **state)
{
    (void)state;
    struct tess_kernel *kernel;
    open_kernel("ref", &kernel);
    for (int32_t kind = TESS_UPDATE_SGD; kind <= TESS_UPDATE_LAMB; kind++) {
        for (int stochastic = 0; stochastic < 2; stochastic++) {
            check_without_masters(kernel, kind, TESS_BF16, stochastic);
            check_without_masters(kernel, kind, TESS_F16, stochastic);
        }
    }
    tess_kernel_close(kernel);
}

/* With masters the rounding is of the compute copy alone. */
static void case_masters_rounded_at_random(void **state)
{
    (void)state;
    static struct low nearest, random;
    static uint16_t expected[FLAT];
    struct tess_kernel *kernel;
    open_kernel("ref", &kernel);
    low_init(&nearest, kernel, TESS_UPDATE_ADAMW, TESS_BF16, true);
    low_init(&random, kernel, TESS_UPDATE_ADAMW, TESS_BF16, true);
    random.optim.stochastic = true;
    for (int64_t step = 0; step < 3; step++) {
        const uint64_t key[2] = {9, (uint64_t)step};
        memcpy(random.optim.round_key, key, sizeof(key));
        low_fill_gradients(&nearest, step, 1);
        low_fill_gradients(&random, step, 1);
        assert_int_equal(optim_step(&nearest.optim, 0.01), TESS_OK);
        assert_int_equal(optim_step(&random.optim, 0.01), TESS_OK);
        tess_cast_stochastic(kernel, FLAT, random.w, TESS_BF16, key, 1000, expected);
        assert_memory_equal(random.w, nearest.w, sizeof(random.w));
        assert_memory_equal(random.low, expected, sizeof(expected));
        assert_memory_not_equal(random.low, nearest.low, sizeof(expected));
    }
    tess_kernel_close(kernel);
}

/*
 * Steps of 2^-12 from 1, where bf16's neighbours are 2^-8 apart: to nearest nothing moves; at
 * random one weight in 16 moves a whole 2^-8, so that the mean follows. Its variance over n
 * weights and 8 steps is at most 8 2^-16 p (1 - p) / n with p = 1/16, a deviation of 2.9e-5 for n
 * = 8512; five of them are 1.5e-4, and the way gone is 8 2^-12 = 2.0e-3.
 */
static void case_small_updates_survive(void **state)
{
    (void)state;
    static struct low low;
    struct tess_kernel *kernel;
    open_kernel("ref", &kernel);
    for (int stochastic = 0; stochastic < 2; stochastic++) {
        low_init(&low, kernel, TESS_UPDATE_SGD, TESS_BF16, false);
        low.optim.options.weight_decay = low.optim.options.clip = 0;
        low.optim.stochastic = stochastic;
        for (int64_t i = 0; i < FLAT; i++)
            low.g[i] = low.w[i] = 1;
        tess_cast(kernel, FLAT, TESS_F32, low.w, TESS_BF16, low.low);
        for (uint64_t step = 0; step < 8; step++) {
            low.optim.round_key[1] = step;
            assert_int_equal(optim_step(&low.optim, 0x1p-12), TESS_OK);
        }
        tess_cast(kernel, FLAT, TESS_BF16, low.low, TESS_F32, low.w);
        double mean = 0;
        for (int64_t i = 0; i < WEIGHT; i++)
            mean += low.w[i];
        mean /= WEIGHT;
        print_message("mean after 8 steps of 2^-12: 1 - %g\n", 1 - mean);
        if (stochastic)
            assert_true(fabs(1 - mean - 8 * 0x1p-12) < 1.5e-4);
        else
            assert_true(mean == 1);
    }
    tess_kernel_close(kernel);
}

/* A loss scale that is a power of two leaves no trace: same norms, same bits. */
static void case_unscaled(void **state)
{
    (void)state;
    static struct low plain, scaled;
    struct tess_kernel *kernel;
    open_kernel("ref", &kernel);
    for (int32_t kind = TESS_UPDATE_SGD; kind <= TESS_UPDATE_LAMB; kind++) {
        low_init(&plain, kernel, kind, TESS_BF16, true);
        low_init(&scaled, kernel, kind, TESS_BF16, true);
        int clipped = 0;
        for (int64_t step = 0; step < 4; step++) {
            scaled.optim.loss_scale = 1024 << step;
            low_fill_gradients(&plain, step, 1);
            low_fill_gradients(&scaled, step, scaled.optim.loss_scale);
            assert_int_equal(optim_step(&plain.optim, 0.01), TESS_OK);
            assert_int_equal(optim_step(&scaled.optim, 0.01), TESS_OK);
            assert_true(plain.optim.verdict->grad_norm == scaled.optim.verdict->grad_norm);
            assert_memory_equal(plain.w, scaled.w, sizeof(plain.w));
            assert_memory_equal(plain.low, scaled.low, sizeof(plain.low));
            assert_memory_equal(plain.state, scaled.state, sizeof(plain.state));
            if (kind == TESS_UPDATE_NOVOGRAD)
                assert_memory_equal(plain.optim.tensor_state, scaled.optim.tensor_state,
                                    PARAMS * sizeof(float));
            clipped += plain.optim.verdict->grad_norm > plain.optim.options.clip;
        }
        assert_int_equal(clipped, 2);
    }
    tess_kernel_close(kernel);
}

static int64_t low_zeros(struct low *low)
{
    double sum = 0;
    tess_optim_count_zeros(&low->optim, &sum);
    return (int64_t)sum;
}

static int32_t low_bad(struct low *low)
{
    low->room.verdict = (struct tess_verdict){0};
    tess_optim_find_bad(&low->optim);
    const int32_t bad = low->room.verdict.grad_bad;
    return bad > 0 ? PARAMS - bad : -1;
}

/* Zeros and numbers that are not finite, buffers left out. */
static void case_counted(void **state)
{
    (void)state;
    static struct low low;
    struct tess_kernel *kernel;
    open_kernel("ref", &kernel);
    low_init(&low, kernel, TESS_UPDATE_SGD, TESS_BF16, true);
    for (int64_t i = 0; i < FLAT; i++)
        low.g[i] = 1;
    assert_int_equal(low_zeros(&low), 0);
    assert_int_equal(low_bad(&low), -1);
    low.g[param[2].begin] = 0;
    low.g[param[2].begin + 1] = NAN;
    assert_int_equal(low_zeros(&low), 0);
    assert_int_equal(low_bad(&low), -1);
    low.g[0] = low.g[param[1].begin - 1] = 0;
    low.g[param[1].begin] = -0.0f;
    assert_int_equal(low_zeros(&low), 3);
    low.g[param[1].begin + 5] = NAN;
    assert_int_equal(low_bad(&low), 1);
    low.g[param[1].begin - 1] = -INFINITY;
    assert_int_equal(low_bad(&low), 0);
    tess_kernel_close(kernel);
}

/* Every element has one number in the model, whichever rank holds it, and padding has none. */
static void case_numbered(void **state)
{
    (void)state;
    static float memory[512];
    struct tess_declare_param declared[3] = {
        {.shape = tess_shape1(100)},
        {.shape = tess_shape1(10), .unit = 1, .index = 1, .model_begin = 100},
        {.shape = tess_shape1(300), .unit = 1, .index = 2, .model_begin = 110}};
    struct tess_declare_unit unit[2] = {{.name = "a"}, {.name = "b"}};
    const struct tess_declare declare = {
        .unit = unit, .param = declared, .unit_count = 2, .param_count = 3};
    int seen[410] = {0};
    for (int32_t shard = 0; shard < 2; shard++) {
        struct tess_plan plan = {.accumulate = 1,
                                 .shard_count = 2,
                                 .shard_index = shard,
                                 .optim_extent = TESS_EXTENT_SHARD};
        struct tess_piece piece[3];
        assert_int_equal(tess_layout_begin(&plan, &declare, &declare), TESS_OK);
        assert_int_equal(tess_plan_add_segment(&plan, 1), TESS_OK);
        assert_int_equal(tess_plan_add_segment(&plan, 2), TESS_OK);
        assert_int_equal(tess_layout_finish(&plan, &declare), TESS_OK);
        for (int32_t s = 0; s < 2; s++)
            plan.segment[s].master_own = plan.segment[s].grad_own = memory;
        int32_t trained;
        const int32_t pieces = tess_layout_piece_count(&plan, &declare, &trained);
        assert_in_range(pieces, 1, 3);
        assert_int_equal(trained, pieces);
        tess_layout_pieces(&plan, &declare, piece);
        for (int32_t i = 0; i < pieces; i++) {
            static const int64_t before[3] = {0, 100, 110};
            int64_t whole, model;
            assert_int_equal(tess_piece_run(&piece[i], &declare.axis, 0, INT64_MAX, &whole, &model),
                             piece[i].count);
            assert_int_equal(whole, piece[i].param_begin);
            assert_int_equal(model, before[piece[i].param] + piece[i].param_begin);
            for (int64_t e = 0; e < piece[i].count; e++)
                seen[model + e]++;
        }
        tess_layout_fini(&plan);
    }
    for (int e = 0; e < 410; e++)
        assert_int_equal(seen[e], 1);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_without_masters),
        cmocka_unit_test(case_masters_rounded_at_random),
        cmocka_unit_test(case_small_updates_survive),
        cmocka_unit_test(case_unscaled),
        cmocka_unit_test(case_counted),
        cmocka_unit_test(case_numbered),
    };
    return cmocka_run_group_tests_name("optim_low", cases, NULL, NULL);
}
