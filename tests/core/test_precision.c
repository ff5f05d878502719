/*
 * Mixed precision in whole runs: loss scaling without a trace in f32; one decision about a gradient
 * that is not finite, on whichever rank it is; parameters without masters and rounding at random
 * with the same bits under every strategy; what f16 loses without a loss scale.
 */
#include "config/config.h"
#include "config/registry.h"
#include "core/state.h"
#include "harness/world.h"
#include "tessera/tessera.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* QUIET: the step, from 0, that is not asked for its loss. */
enum { STEPS_MAX = 8, RANKS_MAX = 4, WORDS_MAX = 64, PARAMS_MAX = 40, QUIET = 5 };

#define MLP                                                                                        \
    "--model mlp --mlp.hidden 40,24 --batch-size 48 --grid 8 --accumulate 2 --learning-rate 0.05 " \
    "--evaluate=off --bind=off --data.workers 0 --data synthetic --kernel ref "
#define CNN                                                                                        \
    "--model cnn --cnn.channels 4,8 --cnn.batch-norm=on --batch-size 32 --grid 8 --accumulate 2 "  \
    "--learning-rate 0.05 --evaluate=off --bind=off --data.workers 0 --data synthetic "            \
    "--kernel ref "

/* ---- a model with bad gradients -------------------------------------------------------------- */

/*
 * The chosen model, but the gradient of its second parameter holds an infinity in steps 2 and 3, or
 * in all of them: in the pass that computes the batch's last row, so on one rank only.
 */
static const struct tess_model_ops *poison_model;
static bool poison_always;
static uint64_t poison_rows = 48; /* of the batch */

static enum tess_status poison_backward(void *state, const struct tess_pass *pass)
{
    enum tess_status status = poison_model->backward(state, pass);
    const bool last = pass->row_first + (uint64_t)pass->rows == poison_rows;
    const bool due = poison_always || pass->step == 1 || pass->step == 2;
    if (status == TESS_OK && pass->unit == 0 && last && due)
        pass->grad[1][3] = INFINITY;
    return status;
}

/* ---- runs ------------------------------------------------------------------------------------ */

struct run {
    char options[512];
    const char *strategy;
    int32_t rank_count;
    int32_t steps;
    bool poison;
    struct tess_config *config;
    struct tess_dataset *dataset;
};

struct outcome {
    uint64_t hash[STEPS_MAX + 1]; /* before the first step, after each */
    double loss[STEPS_MAX], norm[STEPS_MAX], zero_share[STEPS_MAX], scale[STEPS_MAX];
    double loss_zero_share[STEPS_MAX];
    bool skipped[STEPS_MAX];
    int64_t skipped_count;
    uint64_t quiet_reductions;            /* all-reduces over all ranks in step QUIET */
    struct tess_digest first[PARAMS_MAX]; /* before the first step */
    uint64_t memory[TESS_MEMORY_KIND_COUNT];
    enum tess_status status;
    char error[512];
};

struct job {
    const struct run *run;
    struct outcome outcome[RANKS_MAX];
};

static enum tess_status open_config(const char *strategy, int32_t rank_count, const char *options,
                                    struct tess_config **config_out)
{
    char words[768], *argv[WORDS_MAX];
    int argc = 0;
    snprintf(words, sizeof(words), "--strategy %s --ranks %d --steps 40 %s", strategy,
             (int)rank_count, options);
    for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL;) {
        assert_true(argc < WORDS_MAX);
        if (*word != '\0')
            argv[argc++] = word;
    }
    return tess_config_open(argc, argv, NULL, 0, config_out);
}

static enum tess_status job_steps(const struct run *run, struct tess_engine *engine,
                                  struct outcome *outcome)
{
    struct tess_step_result result;
    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        outcome->memory[k] =
            tess_memory_bytes(tess_engine_memory(engine), (enum tess_memory_kind)k);
    TESS_TRY(tess_engine_hash(engine, &outcome->hash[0]));
    TESS_TRY(tess_engine_digest(engine, outcome->first));
    for (int32_t i = 0; i < run->steps; i++) {
        const uint64_t *calls = engine->comm->stats.calls;
        const uint64_t before = calls[TESS_COLLECTIVE_ALL_REDUCE];
        TESS_TRY(tess_engine_step(engine, i != QUIET, &result));
        if (i == QUIET)
            outcome->quiet_reductions = calls[TESS_COLLECTIVE_ALL_REDUCE] - before;
        TESS_TRY(tess_engine_hash(engine, &outcome->hash[i + 1]));
        outcome->loss[i] = result.loss;
        outcome->norm[i] = result.grad_norm;
        outcome->zero_share[i] = result.zero_share;
        outcome->loss_zero_share[i] = result.loss_zero_share;
        outcome->scale[i] = result.loss_scale;
        outcome->skipped[i] = result.skipped;
        outcome->skipped_count = result.skipped_count;
    }
    return TESS_OK;
}

static int job_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct job *job = arg;
    struct outcome *outcome = &job->outcome[comm->rank];
    struct tess_engine *engine;
    WORLD_OK(tess_engine_open(job->run->config, job->run->dataset, comm, world, &engine));
    outcome->status = job_steps(job->run, engine, outcome);
    snprintf(outcome->error, sizeof(outcome->error), "%s",
             outcome->status != TESS_OK ? tess_log_last_error() : "");
    if (outcome->status != TESS_OK && outcome->status != TESS_ERR_NUMERIC)
        tess_comm_abort(comm, tess_log_last_error());
    tess_engine_close(engine);
    return 0;
}

/* All ranks must have seen the same; they fail together or not at all. Threads: dp needs them. */
static void train(struct run *run, struct outcome *outcome_out)
{
    struct job job = {.run = run};
    struct world_report *report = calloc(1, sizeof(*report));
    const struct world_setup setup = {.ranks = run->rank_count,
                                      .mode = TESS_RANKS_THREADS,
                                      .self = strcmp(run->strategy, "single") == 0};
    struct tess_model_ops poisoned;
    assert_int_equal(open_config(run->strategy, run->rank_count, run->options, &run->config),
                     TESS_OK);
    if (run->poison) {
        poison_model = run->config->model;
        poisoned = *poison_model;
        poisoned.backward = poison_backward;
        run->config->model = &poisoned;
    }
    assert_int_equal(
        tess_dataset_open_synthetic(tess_shape3(6, 6, 1), 5, 192, 50, 3, &run->dataset), TESS_OK);
    int failed = world_run_setup(&setup, job_rank, &job, report);
    world_print(report);
    free(report);
    assert_int_equal(failed, 0);
    *outcome_out = job.outcome[0];
    for (int32_t r = 0; r < run->rank_count; r++) {
        struct outcome *other = &job.outcome[r];
        assert_int_equal(other->status, outcome_out->status);
        assert_memory_equal(other->hash, outcome_out->hash, sizeof(other->hash));
        assert_memory_equal(other->loss, outcome_out->loss, sizeof(other->loss));
        assert_memory_equal(other->scale, outcome_out->scale, sizeof(other->scale));
        assert_memory_equal(other->skipped, outcome_out->skipped, sizeof(other->skipped));
        assert_memory_equal(other->zero_share, outcome_out->zero_share, sizeof(other->zero_share));
        assert_memory_equal(other->loss_zero_share, outcome_out->loss_zero_share,
                            sizeof(other->loss_zero_share));
        assert_int_equal(other->skipped_count, outcome_out->skipped_count);
    }
    tess_dataset_close(run->dataset);
    tess_config_close(run->config);
}

static struct run run_of(const char *strategy, int32_t rank_count, int32_t steps,
                         const char *options, const char *more)
{
    struct run run = {.strategy = strategy, .rank_count = rank_count, .steps = steps};
    snprintf(run.options, sizeof(run.options), "%s %s", options, more);
    return run;
}

static void train_single(int32_t steps, const char *options, const char *more,
                         struct outcome *outcome_out)
{
    struct run run = run_of("single", 1, steps, options, more);
    train(&run, outcome_out);
}

/* The same bits and the same decisions under every strategy on `rank_count` ranks as on one. */
static void check_layouts(int32_t rank_count, bool poison, const char *options, const char *more,
                          struct outcome *expected)
{
    int count;
    const char *const *name = tess_registry_names(TESS_REGISTRY_STRATEGY, &count);
    struct run run = run_of("single", 1, 7, options, more);
    run.poison = poison;
    train(&run, expected);
    assert_int_equal(expected->status, TESS_OK);
    for (int i = 0; i < count; i++) {
        const struct tess_strategy_ops *ops;
        assert_int_equal(tess_registry_get_strategy(name[i], &ops), TESS_OK);
        if (strcmp(name[i], "single") == 0 || ops->axis != TESS_AXIS_DATA)
            continue;
        struct outcome outcome;
        run = run_of(name[i], rank_count, 7, options, more);
        run.poison = poison;
        train(&run, &outcome);
        if (memcmp(outcome.hash, expected->hash, sizeof(outcome.hash)) != 0)
            print_error("%s on %d ranks with %s\n", name[i], (int)rank_count, run.options);
        assert_memory_equal(outcome.hash, expected->hash, sizeof(outcome.hash));
        assert_memory_equal(outcome.loss, expected->loss, sizeof(outcome.loss));
        assert_memory_equal(outcome.scale, expected->scale, sizeof(outcome.scale));
        assert_memory_equal(outcome.skipped, expected->skipped, sizeof(outcome.skipped));
        assert_memory_equal(outcome.zero_share, expected->zero_share, sizeof(outcome.zero_share));
        assert_memory_equal(outcome.loss_zero_share, expected->loss_zero_share,
                            sizeof(outcome.loss_zero_share));
        assert_int_equal(outcome.skipped_count, expected->skipped_count);
    }
}

/* ---- loss scaling ---------------------------------------------------------------------------- */

/* In f32 a power of two leaves no trace: batch statistics are not scaled, norms are un-scaled. */
static void case_no_trace_in_f32(void **state)
{
    (void)state;
    static const char *const optimizer[] = {"--optimizer momentum --clip 0.5",
                                            "--optimizer novograd", "--optimizer lamb --clip 0.3"};
    for (size_t i = 0; i < sizeof(optimizer) / sizeof(*optimizer); i++) {
        struct outcome plain, scaled;
        char options[128];
        train_single(6, CNN, optimizer[i], &plain);
        snprintf(options, sizeof(options), "%s --loss-scale dynamic:1024 --loss-scale-interval 2",
                 optimizer[i]);
        train_single(6, CNN, options, &scaled);
        assert_memory_equal(plain.hash, scaled.hash, sizeof(plain.hash));
        assert_memory_equal(plain.loss, scaled.loss, sizeof(plain.loss));
        assert_memory_equal(plain.norm, scaled.norm, sizeof(plain.norm));
        assert_memory_equal(plain.zero_share, scaled.zero_share, sizeof(plain.zero_share));
        assert_true(plain.scale[5] == 1 && scaled.scale[0] == 1024 && scaled.scale[5] == 4096);
        assert_int_equal(scaled.skipped_count, 0);
        assert_true(plain.norm[0] > 0);
    }
}

/* What happens at the steps with a bad gradient, which check_layouts has seen on every rank. */
static void check_skipped(const struct outcome *o, const double scale[7], bool falls)
{
    for (int i = 0; i < 7; i++) {
        const bool bad = i == 1 || i == 2;
        assert_int_equal(o->skipped[i], bad);
        assert_true((o->hash[i] == o->hash[i + 1]) == bad);
        assert_true(isfinite(o->loss[i]) == (i != QUIET));
        assert_true(o->scale[i] == (falls ? scale[i] : scale[0]));
    }
    assert_int_equal(o->skipped_count, 2);
}

static void case_one_decision(void **state)
{
    (void)state;
    static const double scale[7] = {1024, 1024, 512, 256, 256, 512, 512};
    struct outcome outcome;
    check_layouts(4, true, MLP,
                  "--precision bf16 --optimizer adamw --loss-scale dynamic:1024 "
                  "--loss-scale-interval 2",
                  &outcome);
    check_skipped(&outcome, scale, true);
    check_layouts(2, true, MLP, "--precision bf16 --optimizer novograd --loss-scale static:1024",
                  &outcome);
    check_skipped(&outcome, scale, false);
}

/* The decision costs one all-reduce a step, and nothing where there is no scaling. */
static void case_one_collective(void **state)
{
    (void)state;
    struct outcome plain, scaled;
    struct run run = run_of("fsdp", 2, 6, MLP, "--precision bf16");
    train(&run, &plain);
    run = run_of("fsdp", 2, 6, MLP, "--precision bf16 --loss-scale dynamic");
    train(&run, &scaled);
    assert_int_equal(plain.quiet_reductions, 0);
    assert_int_equal(scaled.quiet_reductions, 1);
    assert_true(isnan(plain.zero_share[QUIET]) && isfinite(plain.zero_share[QUIET - 1]));
}

/*
 * Where every step sees all images in the same order, the step after two skipped ones is the second
 * of a run that had none to skip: moments and bias corrections have not moved.
 */
static void case_state_untouched(void **state)
{
    (void)state;
    static const char *const optimizer[] = {"adamw", "novograd", "lamb"};
    struct outcome bad, good;
    for (size_t i = 0; i < sizeof(optimizer) / sizeof(*optimizer); i++) {
        char options[256];
        snprintf(options, sizeof(options),
                 "--optimizer %s --loss-scale static:1024 --batch-size 192 --data.shuffle=off",
                 optimizer[i]);
        struct run run = run_of("single", 1, 5, MLP, options);
        train(&run, &good);
        run.poison = true;
        poison_rows = 192;
        train(&run, &bad);
        poison_rows = 48;
        assert_true(bad.skipped[1] && bad.skipped[2] && bad.skipped_count == 2);
        assert_memory_equal(&bad.hash[3], &good.hash[1], 3 * sizeof(*bad.hash));
    }
}

/* A gradient that no scale mends ends the run, on all ranks, and names it. */
static void case_ends_below_one(void **state)
{
    (void)state;
    struct outcome outcome;
    poison_always = true;
    for (int ranks = 1; ranks <= 4; ranks *= 4) {
        struct run run = run_of(ranks == 1 ? "single" : "zero2", ranks, 6, MLP,
                                "--precision bf16 --loss-scale dynamic:4");
        run.poison = true;
        train(&run, &outcome);
        assert_int_equal(outcome.status, TESS_ERR_NUMERIC);
        assert_int_equal(outcome.skipped_count, 2);
        assert_non_null(strstr(outcome.error, "even at a loss scale of 1: step 3"));
        assert_non_null(strstr(outcome.error, "unit 'fc1', parameter 'fc1.bias'"));
    }
    poison_always = false;
    /* Without scaling it is as ever: the norm's own check names it. */
    struct run run = run_of("single", 1, 6, MLP, "--clip 1");
    run.poison = true;
    train(&run, &outcome);
    assert_int_equal(outcome.status, TESS_ERR_NUMERIC);
    assert_non_null(strstr(outcome.error, "not finite at step 2"));
}

/* ---- without masters, at random -------------------------------------------------------------- */

static void case_same_bits(void **state)
{
    (void)state;
    static const struct {
        int32_t ranks;
        const char *options;
    } kind[] = {
        {4, "--precision bf16 --master-weights=off --optimizer lamb --weight-decay 0.01"},
        {2, "--precision bf16 --master-weights=off --optimizer novograd --clip 0.5"},
        {4, "--precision bf16 --rounding stochastic --optimizer momentum"},
        {4, "--precision bf16 --rounding stochastic --master-weights=off --optimizer adamw"},
        {4, "--precision f16 --rounding stochastic --master-weights=off --loss-scale dynamic:1024 "
            "--optimizer novograd"},
    };
    struct outcome outcome[sizeof(kind) / sizeof(*kind)];
    for (size_t i = 0; i < sizeof(kind) / sizeof(*kind); i++) {
        check_layouts(kind[i].ranks, false, MLP, kind[i].options, &outcome[i]);
        assert_true(outcome[i].loss[6] < outcome[i].loss[0]);
    }
    check_layouts(2, false, CNN, kind[3].options, &outcome[3]);
}

/* Masters off frees their memory and adds a block of one size; guard sees stray accesses. */
static void case_memory(void **state)
{
    (void)state;
    struct outcome with, without, guarded;
    train_single(3, MLP, "--precision bf16 --optimizer lamb", &with);
    train_single(3, MLP, "--precision bf16 --optimizer lamb --master-weights=off", &without);
    assert_true(with.memory[TESS_MEMORY_MASTER] > 0);
    assert_int_equal(without.memory[TESS_MEMORY_MASTER], 0);
    assert_int_equal(without.memory[TESS_MEMORY_WORKSPACE],
                     with.memory[TESS_MEMORY_WORKSPACE] + 4 * TESS_OPTIM_CHUNK);
    assert_true(with.hash[3] != without.hash[3]);
    train_single(3, MLP, "--precision bf16 --optimizer lamb --master-weights=off --kernel guard",
                 &guarded);
    assert_memory_equal(guarded.hash, without.hash, sizeof(guarded.hash));
}

/* Without masters the first values are those of f32, each rounded by at most 2^-11 (f16) or 2^-8
 * (bf16) of itself, or 2^-25 where f16 has no smaller step; and so are the norms. */
static void case_first_values(void **state)
{
    (void)state;
    struct outcome wide, low;
    train_single(0, MLP, "", &wide);
    for (int i = 0; i < 2; i++) {
        const double rounding = i == 0 ? 0x1p-11 : 0x1p-8;
        train_single(0, MLP,
                     i == 0 ? "--precision f16 --master-weights=off --rounding stochastic"
                            : "--precision bf16 --master-weights=off",
                     &low);
        for (int p = 0; p < 6; p++) {
            const double norm = wide.first[p].norm;
            assert_true(norm > 0.01 && low.first[p].norm != norm);
            assert_true(fabs(low.first[p].norm - norm) < (rounding + 0x1p-15) * norm);
        }
    }
}

/* ---- f16 ------------------------------------------------------------------------------------- */

/*
 * Gradients of logits are scale / 48 times up to 1, and f16 ends at 65504: with five classes about
 * 4/5 of 1 at first, so that 2^22 overflows and 2^21 passes. Every rank skips the same steps, and
 * the scale grows until it overflows again.
 */
static void case_f16_overflow(void **state)
{
    (void)state;
    static const double power[7] = {24, 23, 22, 21, 21, 22, 21};
    struct outcome outcome;
    check_layouts(4, false, MLP,
                  "--precision f16 --loss-scale dynamic:16777216 --loss-scale-interval 2 "
                  "--optimizer momentum --clip 0.5",
                  &outcome);
    for (int i = 0; i < 7; i++) {
        assert_true(outcome.scale[i] == exp2(power[i]));
        assert_int_equal(outcome.skipped[i], power[i] > 21);
        assert_true((outcome.hash[i] == outcome.hash[i + 1]) == (power[i] > 21));
    }
    assert_int_equal(outcome.skipped_count, 4);

    check_layouts(2, false, CNN, "--precision f16 --loss-scale static:16777216", &outcome);
    assert_int_equal(outcome.skipped_count, 7);
    assert_true(outcome.scale[6] == 0x1p24 && outcome.hash[7] == outcome.hash[0]);
}

/*
 * Every layer of a deep net shrinks the gradient that flows back; f16 ends at 2^-25, half of its
 * smallest number. A loss scale brings all of it back: as many zeros as in f32, which are those of
 * ReLUs that are off for all rows.
 */
static void case_f16_underflow(void **state)
{
    (void)state;
#define DEEP "--batch-size 192 --mlp.hidden 24,24,24,24,24,24,24,24,24,24,24,24,24,24,24"
    struct outcome plain, scaled, wide;
    train_single(3, MLP, DEEP " --precision f16 --loss-scale off", &plain);
    train_single(3, MLP, DEEP " --precision f16", &scaled);
    train_single(3, MLP, DEEP, &wide);
    print_message("zeros among the gradients: f16 %.3f, f16 scaled %.3f, f32 %.3f\n",
                  plain.zero_share[2], scaled.zero_share[2], wide.zero_share[2]);
    for (int i = 0; i < 3; i++) {
        assert_true(plain.zero_share[i] > scaled.zero_share[i] + 0.1);
        assert_true(fabs(scaled.zero_share[i] - wide.zero_share[i]) < 0.01);
        assert_true(scaled.scale[i] == 65536 && plain.scale[i] == 1);
        /* Ten classes share the probability about equally: 0.1/192 is far from underflow. */
        assert_true(plain.loss_zero_share[i] == 0 && wide.loss_zero_share[i] == 0);
    }
#undef DEEP
}

/* Once the net is sure of its answers, wrong classes have gradients below 2^-25 in f16. */
static void case_f16_sure(void **state)
{
    (void)state;
#define SURE "--batch-size 192 --learning-rate 0.5"
    struct outcome plain, wide;
    train_single(STEPS_MAX, MLP, SURE " --precision f16 --loss-scale off", &plain);
    train_single(STEPS_MAX, MLP, SURE, &wide);
    print_message("zeros by the logits after %d steps: f16 %.3f, f32 %.3f\n", STEPS_MAX,
                  plain.loss_zero_share[STEPS_MAX - 1], wide.loss_zero_share[STEPS_MAX - 1]);
    assert_true(plain.loss_zero_share[STEPS_MAX - 1] > wide.loss_zero_share[STEPS_MAX - 1] + 0.05);
    for (int i = 0; i < STEPS_MAX; i++)
        if (!isnan(plain.loss_zero_share[i]))
            assert_true(plain.loss_zero_share[i] >= 0 && plain.loss_zero_share[i] <= 1);
#undef SURE
}

/* An output beyond f16's range is no matter of the scale: the message says what it is. */
static void case_f16_range(void **state)
{
    (void)state;
    struct outcome outcome;
    train_single(7, MLP, "--precision f16 --learning-rate 1000", &outcome);
    assert_int_equal(outcome.status, TESS_ERR_NUMERIC);
    assert_non_null(strstr(outcome.error, "the loss is not finite at step"));
    assert_non_null(strstr(outcome.error, "f16 ends at 65504"));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_no_trace_in_f32), cmocka_unit_test(case_one_decision),
        cmocka_unit_test(case_one_collective),  cmocka_unit_test(case_state_untouched),
        cmocka_unit_test(case_ends_below_one),  cmocka_unit_test(case_same_bits),
        cmocka_unit_test(case_memory),          cmocka_unit_test(case_first_values),
        cmocka_unit_test(case_f16_overflow),    cmocka_unit_test(case_f16_underflow),
        cmocka_unit_test(case_f16_sure),        cmocka_unit_test(case_f16_range),
    };
    return cmocka_run_group_tests_name("precision", cases, NULL, NULL);
}
