/*
 * Gradients that travel in bf16 or f16 (--reduce-dtype): the sums against an oracle in double, for
 * every strategy through its hooks; and in runs, which layouts give the same bits, that bytes sent
 * and memory are what formula and plan say, and that one rank rounds nothing.
 *
 *   test_wire [guard]
 */
#include "plan_fixture.h"
#include "runs.h"

#include "base/rng.h"
#include "harness/world.h"
#include "tessera/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *wire_kernel = "ref";

/* ---- the oracle ------------------------------------------------------------------------------ */

#define WIRE_RANKS_MAX  4
#define WIRE_MICROS_MAX 3

/* Several units, one of several parameters, none a multiple of anything. */
static const struct fixture_params wire_params = {
    .unit_count = 4, .count = 6, .elements = {300, 7, 700, 501, 3, 64}, .unit = {0, 0, 1, 2, 2, 3}};

/* From the subnormal numbers of f16 to beyond its range. */
static float wire_value(int32_t rank, int32_t micro, int32_t param, int64_t i)
{
    const struct tess_rng_key key = tess_rng_key(11, TESS_RNG_TEST, 0);
    const uint64_t who = (uint64_t)(rank * WIRE_MICROS_MAX + micro) * 16 + (uint64_t)param;
    const int32_t digits = (int32_t)tess_rng_word(key, (uint64_t)i, 2 * who);
    const int power = (int)(tess_rng_word(key, (uint64_t)i, 2 * who + 1) % 48) - 28;
    return (float)ldexp((double)(digits / 64), power - 25);
}

/* To the nearest number of the type, ties to even; beyond its range infinity. */
static double wire_round(double x, enum tess_dtype dtype)
{
    if (dtype == TESS_F32 || x == 0 || !isfinite(x))
        return x;
    const int digits = dtype == TESS_BF16 ? 7 : 10;
    const int least = dtype == TESS_BF16 ? -133 : -24; /* power of the smallest number */
    const double most = dtype == TESS_BF16 ? 0x1.fep127 : 65504;
    int power = ilogb(x) - digits;
    if (power < least)
        power = least;
    double rounded = ldexp(nearbyint(ldexp(x, -power)), power);
    return fabs(rounded) > most ? copysign(INFINITY, x) : rounded;
}

/* The canonical tree of tessera/comm.h in f32: a sum of two is exact enough in double that rounding
 * it to f32 rounds once (53 >= 2 * 24 + 2 digits). */
static double wire_tree(const double *value, int32_t count)
{
    int32_t left = 1;
    if (count == 1)
        return value[0];
    while (2 * left < count)
        left *= 2;
    return (double)(float)(wire_tree(value, left) + wire_tree(value + left, count - left));
}

/* Sum over ranks as it travels, in groups of `width` neighbours first; rounded in and out. */
static double wire_reduce(const double *value, int32_t ranks, int32_t width, enum tess_dtype dtype)
{
    double low[WIRE_RANKS_MAX], group[WIRE_RANKS_MAX];
    if (ranks == 1)
        return value[0];
    for (int32_t r = 0; r < ranks; r++)
        low[r] = wire_round(value[r], dtype);
    for (int32_t g = 0; g < ranks / width; g++)
        group[g] = wire_round(wire_tree(low + g * width, width), dtype);
    return wire_round(wire_tree(group, ranks / width), dtype);
}

struct wire_case {
    const char *strategy, *option;
    bool every_micro;
    int32_t ranks, width, micros;
    enum tess_dtype dtype;
};

static float wire_expected(const struct wire_case *its, int32_t param, int64_t i)
{
    double micro[WIRE_MICROS_MAX], rank[WIRE_RANKS_MAX];
    if (its->every_micro) {
        for (int32_t m = 0; m < its->micros; m++) {
            for (int32_t r = 0; r < its->ranks; r++)
                rank[r] = (double)wire_value(r, m, param, i);
            micro[m] = wire_reduce(rank, its->ranks, its->width, its->dtype);
        }
        return (float)wire_tree(micro, its->micros);
    }
    for (int32_t r = 0; r < its->ranks; r++) {
        for (int32_t m = 0; m < its->micros; m++)
            micro[m] = (double)wire_value(r, m, param, i);
        rank[r] = wire_tree(micro, its->micros);
    }
    return (float)wire_reduce(rank, its->ranks, its->width, its->dtype);
}

/* What backward does: the gradients of a unit's parameters, in this rank's micro-batch. */
static void wire_write_unit(const struct tess_strategy *strategy, int32_t unit)
{
    const struct tess_plan *plan = strategy->plan;
    for (int32_t p = 0; p < plan->param_count; p++) {
        const struct tess_segment *segment = &plan->segment[plan->param[p].segment];
        if (plan->param[p].unit != unit)
            continue;
        float *grad = segment->grad + (plan->param[p].begin - segment->begin);
        for (int64_t i = 0; i < plan->param[p].count; i++)
            grad[i] = wire_value(plan->rank, strategy->micro, p, i);
    }
}

static enum tess_status wire_micro(struct fixture *fixture, int32_t micro)
{
    struct tess_strategy *strategy = &fixture->strategy;
    const struct tess_plan *plan = &fixture->plan;
    int32_t ready = plan->segment_count - 1;
    fixture_enter_micro(fixture, micro);
    for (int32_t u = 0; u < plan->unit_count; u++) {
        TESS_TRY(strategy->ops->unit_enter(strategy, u, TESS_PHASE_FORWARD));
        TESS_TRY(strategy->ops->unit_leave(strategy, u, TESS_PHASE_FORWARD));
    }
    for (int32_t u = plan->unit_count - 1; u >= 0; u--) {
        TESS_TRY(strategy->ops->unit_enter(strategy, u, TESS_PHASE_BACKWARD));
        wire_write_unit(strategy, u);
        TESS_TRY(strategy->ops->unit_leave(strategy, u, TESS_PHASE_BACKWARD));
        for (; ready >= 0 && plan->segment[ready].unit_first >= u; ready--)
            TESS_TRY(strategy->ops->grads_ready(strategy, ready));
    }
    return TESS_OK;
}

/* A rank's step, twice: what the first leaves behind must not show in the second. */
static int wire_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct fixture *fixture = (struct fixture *)arg + comm->rank;
    struct tess_strategy *strategy = &fixture->strategy;
    (void)world;
    strategy->comm = comm;
    strategy->training = true;
    WORLD_OK(strategy->ops->open(strategy));
    for (int step = 0; step < 2; step++) {
        for (int32_t m = 0; m < fixture->plan.accumulate; m++)
            WORLD_OK(wire_micro(fixture, m));
        WORLD_OK(strategy->ops->grads_finish(strategy));
        if (step == 0)
            WORLD_OK(strategy->ops->params_refresh(strategy));
    }
    strategy->ops->close(strategy);
    return 0;
}

/* The part of every parameter that this rank owns, element by element. Returns how many. */
static int64_t wire_check_own(const struct wire_case *its, const struct fixture *fixture)
{
    const struct tess_plan *plan = &fixture->plan;
    int64_t checked = 0;
    for (int32_t p = 0; p < plan->param_count; p++) {
        const int32_t s = plan->param[p].segment;
        const int64_t own = tess_plan_own_begin(plan, s, plan->optim_extent);
        const int64_t count = tess_plan_own_count(plan, s, plan->optim_extent);
        for (int64_t i = 0; i < plan->param[p].count; i++) {
            const int64_t at = plan->param[p].begin + i - own;
            if (at < 0 || at >= count)
                continue;
            const float got = plan->segment[s].grad_own[at], expected = wire_expected(its, p, i);
            if (memcmp(&got, &expected, sizeof(got)) != 0 && !(isnan(got) && isnan(expected)))
                fail_msg(
                    "%s of %d ranks, %d micro-batches in %s: rank %d has %a, oracle %a (%d:%d)",
                    its->strategy, (int)its->ranks, (int)its->micros, tess_dtype_name(its->dtype),
                    (int)plan->rank, (double)got, (double)expected, (int)p, (int)i);
            checked++;
        }
    }
    return checked;
}

static void wire_check(const struct wire_case *its)
{
    static struct fixture fixture[WIRE_RANKS_MAX];
    int64_t checked = 0, elements = 0;
    for (int32_t r = 0; r < its->ranks; r++) {
        fixture_open(&fixture[r], &wire_params,
                     &(struct fixture_run){.strategy = its->strategy,
                                           .option = its->option,
                                           .rank = r,
                                           .rank_count = its->ranks,
                                           .accumulate = its->micros,
                                           .reduce_dtype = its->dtype});
        fixture_commit(&fixture[r]);
    }
    assert_int_equal(
        world_run(its->ranks, TESS_RANKS_THREADS, TESS_ORDER_CANONICAL, wire_rank, fixture), 0);
    for (int32_t r = 0; r < its->ranks; r++)
        checked += wire_check_own(its, &fixture[r]);
    for (int32_t p = 0; p < wire_params.count; p++)
        elements += wire_params.elements[p];
    assert_true(checked >= elements && checked % elements == 0);
    for (int32_t r = 0; r < its->ranks; r++)
        fixture_close(&fixture[r]);
}

#define WIRE_BUCKETS(name) "--" name ".first-bucket-mib=0.001 --" name ".bucket-mib=0.003"

static void test_oracle(void **state)
{
    static const struct {
        const char *strategy, *option;
        bool every_micro;
    } strategy[] = {
        {"dp", NULL, false},
        {"ddp", WIRE_BUCKETS("ddp"), false},
        {"ddp", WIRE_BUCKETS("ddp") " --ddp.overlap=off", false},
        {"ddp", WIRE_BUCKETS("ddp") " --ddp.sync-every-micro-batch", true},
        {"zero1", WIRE_BUCKETS("zero1"), false},
        {"zero2", WIRE_BUCKETS("zero2"), true},
        {"fsdp", NULL, true},
        {"hsdp", NULL, true},
    };
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16, TESS_F16};
    static const int32_t ranks[] = {1, 3, 4};
    (void)state;
    for (size_t k = 0; k < sizeof(strategy) / sizeof(strategy[0]); k++) {
        for (int i = 0; i < 3 * 3 * 2; i++) {
            struct wire_case its = {.strategy = strategy[k].strategy,
                                    .option = strategy[k].option,
                                    .every_micro = strategy[k].every_micro,
                                    .ranks = ranks[i % 3],
                                    .micros = i % 2 == 0 ? 1 : WIRE_MICROS_MAX,
                                    .dtype = dtype[i / 3 % 3]};
            /* Four ranks of hsdp are two groups of two; three are one group. */
            its.width = strcmp(its.strategy, "hsdp") == 0 && its.ranks == 4 ? 2 : its.ranks;
            wire_check(&its);
        }
    }
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Layers so large that no bucket goes the way of small messages, in two bytes either. */
#define WIRE_MLP                                                                                   \
    "--model mlp --mlp.hidden 80,48,66 --mlp.dropout 0.1 --batch-size 48 --learning-rate 0.05 "    \
    "--evaluate=off --bind=off --data.workers 0 --optimizer momentum --grid 8 "

static struct run wire_run(const char *strategy, const char *options, int32_t ranks)
{
    return (struct run){.strategy = strategy,
                        .kernel = wire_kernel,
                        .options = options,
                        .rank_count = ranks,
                        .steps = 3,
                        .mode = TESS_RANKS_THREADS};
}

/* Train a layout; bytes and memory are checked in passing. */
static uint64_t wire_hash(const struct run_layout *layout, const char *reduce, int32_t ranks,
                          int32_t micros)
{
    struct run_outcome outcome;
    char words[512];
    snprintf(words, sizeof(words), WIRE_MLP "--reduce-dtype %s --accumulate %d %s", reduce,
             (int)micros, layout->options);
    struct run run = wire_run(layout->strategy, words, ranks);
    run_train(&run, &outcome);
    run_check_sent(&run, &outcome);
    run_check_memory(&run, &outcome);
    return outcome.hash;
}

/* Which of the families of strategies/wire.h a layout is of. */
static int wire_family(const struct run_layout *layout, int32_t ranks, int32_t micros)
{
    const bool twice = strcmp(layout->strategy, "hsdp") == 0 && ranks > 2;
    const bool every = strcmp(layout->strategy, "dp") != 0 &&
                       strcmp(layout->strategy, "zero1") != 0 &&
                       (strcmp(layout->strategy, "ddp") != 0 ||
                        strstr(layout->options, "sync-every-micro-batch") != NULL);
    return twice ? 2 : every && micros > 1 ? 1 : 0;
}

/* Layouts of one family have the same bits; families, and f32, have others. */
static void wire_check_families(const char *reduce, int32_t ranks, int32_t micros)
{
    uint64_t hash[3] = {0};
    const uint64_t exact = wire_hash(&(struct run_layout){"ddp", ""}, "f32", ranks, micros);
    for (int l = 0; l < run_layout_count; l++) {
        uint64_t mine = wire_hash(&run_layouts[l], reduce, ranks, micros);
        uint64_t *family = &hash[wire_family(&run_layouts[l], ranks, micros)];
        if (*family == 0)
            *family = mine;
        if (*family != mine)
            print_error("%s %s: %d ranks, %d micro-batches in %s\n", run_layouts[l].strategy,
                        run_layouts[l].options, (int)ranks, (int)micros, reduce);
        assert_int_equal(*family, mine);
    }
    for (int a = 0; a < 3; a++) {
        assert_int_not_equal(hash[a], exact);
        for (int b = 0; b < a; b++)
            assert_true(hash[a] != hash[b] || hash[a] == 0);
    }
}

static void test_which_bits_agree(void **state)
{
    static const char *const reduce[] = {"bf16", "f16"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        wire_check_families(reduce[i], 2, 1);
        wire_check_families(reduce[i], 4, 1);
        wire_check_families(reduce[i], 4, 2);
    }
}

/* With one rank nothing travels: the bits of f32, and no memory for copies. */
static void test_one_rank_rounds_nothing(void **state)
{
    struct run_outcome expected, f32, f16;
    char words[512];
    struct run run = wire_run("single", WIRE_MLP, 1);
    (void)state;
    run_train(&run, &expected);
    for (int l = 0; l < run_layout_count; l++) {
        run = wire_run(run_layouts[l].strategy, words, 1);
        snprintf(words, sizeof(words), WIRE_MLP "--accumulate 2 %s", run_layouts[l].options);
        run_train(&run, &f32);
        snprintf(words, sizeof(words), WIRE_MLP "--reduce-dtype f16 --accumulate 2 %s",
                 run_layouts[l].options);
        run_train(&run, &f16);
        assert_int_equal(f16.hash, expected.hash);
        assert_memory_equal(f16.allocated, f32.allocated, sizeof(f32.allocated));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracle),
        cmocka_unit_test(test_one_rank_rounds_nothing),
        cmocka_unit_test(test_which_bits_agree),
    };
    if (argc > 1)
        wire_kernel = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
