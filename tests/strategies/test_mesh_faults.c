/*
 * Numbers that go wrong on one rank of a mesh: a gradient that is not finite skips the step on all
 * ranks, whichever stage and place on the tensor axis it is in; an activation, loss or parameter
 * that is not finite is named by the rank that has it; parameters without a gradient are found over
 * stages.
 *
 * The faults are planted by a model that is the chosen one, and then writes one bad number.
 */
#include "runs.h"

#include "config/config.h"
#include "core/engine.h"
#include "harness/world.h"
#include "tessera/check.h"
#include "tessera/tessera.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 6, RANKS = 8, ROWS = 16, WORDS_MAX = 64 };

#define FAULT_COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))
#define FAULT_COMMON                                                                               \
    "--data synthetic --kernel ref --batch-size 16 --grid 8 --bind=off --data.workers 0 "          \
    "--evaluate=off --steps 40 "
#define FAULT_GPT                                                                                  \
    FAULT_COMMON "--model gpt --data.length 8 --gpt.layers 4 --gpt.width 16 "                      \
                 "--tensor.canonical 2 --optimizer adamw --clip 1 "

/* ---- planting -------------------------------------------------------------------------------- */

enum fault_kind { FAULT_NONE, FAULT_GRAD, FAULT_OUTPUT, FAULT_LOSS, FAULT_PARAM };

/* In pass `unit` of the batch's last rows, at place `tensor` of its axis (-1: at all), in steps
 * first .. last (from 0); of a gradient or parameter, number `param` of the model. */
static struct fault {
    enum fault_kind kind;
    int32_t unit, param, tensor;
    uint64_t first, last;
} fault;

static const struct tess_model_ops *fault_model;

/* What each of two ranks reads of a parameter in the step of the fault, and whether that is still
 * there when the rank has stopped. from is NULL where the rank was stopped before it read it. */
static bool fault_keeps;
static struct kept {
    const float *from;
    float value[16];
    bool same;
} kept[2];

static void fault_keep(const struct tess_pass *pass)
{
    struct kept *keep = &kept[pass->row_first / (uint64_t)pass->rows];
    keep->from = pass->param[fault.param];
    memcpy(keep->value, keep->from, sizeof(keep->value));
}

static bool fault_due(const struct tess_pass *pass, enum fault_kind kind)
{
    return fault.kind == kind && pass->unit == fault.unit && pass->step >= fault.first &&
           pass->step <= fault.last && pass->training &&
           pass->row_first + (uint64_t)pass->rows == ROWS &&
           (fault.tensor < 0 || pass->axis->rank == fault.tensor);
}

static enum tess_status fault_forward(void *state, const struct tess_pass *pass)
{
    if (fault_due(pass, FAULT_PARAM)) {
        float *value = (float *)(uintptr_t)pass->param[fault.param];
        value[2] = NAN;
    }
    if (fault_keeps && pass->unit == fault.unit - 1 && pass->step == fault.first)
        fault_keep(pass);
    TESS_TRY(fault_model->forward(state, pass));
    if (fault_due(pass, FAULT_OUTPUT))
        ((float *)pass->output)[5] = NAN;
    return TESS_OK;
}

static enum tess_status fault_backward(void *state, const struct tess_pass *pass)
{
    TESS_TRY(fault_model->backward(state, pass));
    if (fault_due(pass, FAULT_GRAD))
        pass->grad[fault.param][3] = INFINITY;
    if (fault_due(pass, FAULT_LOSS))
        pass->loss[0] = NAN;
    return TESS_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

struct outcome {
    enum tess_status status;
    int32_t stage;
    int64_t step;             /* the last one begun, from 1 */
    uint64_t hash[STEPS + 1]; /* before the first step, after each */
    double loss[STEPS], norm[STEPS], scale[STEPS];
    bool skipped[STEPS];
    char error[512]; /* of this rank; "" where it was stopped by another one */
};

struct trial {
    struct tess_config *config;
    struct tess_dataset *dataset;
    bool alone; /* no hash between steps: ranks fail by themselves, not together */
    struct outcome outcome[RANKS];
};

static enum tess_status trial_steps(const struct trial *trial, struct tess_engine *engine,
                                    struct outcome *outcome)
{
    struct tess_step_result result;
    outcome->stage = tess_engine_plan_of(engine)->mesh.at[TESS_AXIS_STAGE];
    TESS_TRY(tess_engine_hash(engine, &outcome->hash[0]));
    for (int i = 0; i < STEPS; i++) {
        outcome->step = i + 1;
        TESS_TRY(tess_engine_step(engine, true, &result));
        if (!trial->alone)
            TESS_TRY(tess_engine_hash(engine, &outcome->hash[i + 1]));
        outcome->loss[i] = result.loss;
        outcome->norm[i] = result.grad_norm;
        outcome->scale[i] = result.loss_scale;
        outcome->skipped[i] = result.skipped;
    }
    return TESS_OK;
}

static int trial_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct trial *trial = arg;
    struct outcome *outcome = &trial->outcome[comm->rank];
    struct tess_engine *engine;
    WORLD_OK(tess_engine_open(trial->config, trial->dataset, comm, world, &engine));
    outcome->status = trial_steps(trial, engine, outcome);
    if (fault_keeps) {
        struct kept *keep = &kept[comm->rank];
        keep->same =
            keep->from == NULL || memcmp(keep->from, keep->value, sizeof(keep->value)) == 0;
    }
    if (outcome->status != TESS_OK && outcome->status != TESS_ERR_ABORTED) {
        snprintf(outcome->error, sizeof(outcome->error), "%s", tess_log_last_error());
        tess_comm_abort(comm, outcome->error);
    }
    tess_engine_close(engine);
    return 0;
}

static void trial_run(struct trial *trial, int32_t ranks, const char *options)
{
    char words[768], *argv[WORDS_MAX];
    int argc = 0;
    struct tess_model_ops faulty;
    const struct world_setup setup = {
        .ranks = ranks, .mode = TESS_RANKS_THREADS, .timeout_s = 10, .limit_s = 30};
    struct world_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    snprintf(words, sizeof(words), "%s", options);
    for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word != '\0' && argc < WORDS_MAX)
            argv[argc++] = word;
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, &trial->config), TESS_OK);
    assert_int_equal(trial->config->run.ranks, ranks);
    fault_model = trial->config->model;
    faulty = *fault_model;
    faulty.forward = fault_forward;
    faulty.backward = fault_backward;
    trial->config->model = &faulty;
    if (fault_model->tokens)
        assert_int_equal(tess_dataset_open_synthetic_tokens(8, 96, 8, 3, &trial->dataset), TESS_OK);
    else
        assert_int_equal(
            tess_dataset_open_synthetic(tess_shape3(6, 6, 1), 5, 96, 8, 3, &trial->dataset),
            TESS_OK);
    memset(trial->outcome, 0, sizeof(trial->outcome));
    const int failed = world_run_setup(&setup, trial_rank, trial, report);
    world_print(report);
    free(report);
    assert_int_equal(failed, 0);
    tess_dataset_close(trial->dataset);
    tess_config_close(trial->config);
}

/* ---- loss scaling ---------------------------------------------------------------------------- */

/* Parameters of gpt2 with 4 layers: wte 0; wpe 1; a block's 12 from 2 + 12 l on, first its norm's
 * two, then c_attn; the last norm's two; the head's, tied. Units: 0, 1, 2 + l, 6, 7. */
enum { WTE, WPE, H1_NORM = 2 + 12, H1_ATTN = H1_NORM + 2, H3_NORM = 2 + 36, LN_F = 50, HEAD = 52 };

struct mesh {
    int32_t ranks;
    const char *options;
};
static const struct mesh fault_mesh[] = {
    {8, "--strategy fsdp+tp+pp --mesh data=2,tensor=2,stage=2 "},
    {4, "--strategy tp+pp --mesh tensor=2,stage=2 --pp.schedule interleaved --accumulate 4 "},
    {8, "--strategy zero2+tp+pp --mesh data=2,tensor=2,stage=2 --pp.schedule gpipe "},
    {4, "--strategy ddp+pp --mesh data=2,stage=2 "},
};

/* Cut and whole parameters, on the first and the last stage, on each place of the tensor axis, and
 * the two ends of a tie. */
static const struct fault fault_grad[] = {
    {FAULT_GRAD, 0, WTE, 1, 1, 2},     {FAULT_GRAD, 7, HEAD, 0, 1, 2},
    {FAULT_GRAD, 3, H1_NORM, 1, 1, 2}, {FAULT_GRAD, 3, H1_ATTN, 0, 1, 2},
    {FAULT_GRAD, 6, LN_F, 1, 1, 2},
};

/* Where the fault is planted on one rank of few, it must be on the ranks that there are. */
static struct fault fault_on(const struct fault *wanted, const char *options)
{
    struct fault here = *wanted;
    if (strstr(options, "tensor=2") == NULL)
        here.tensor = 0;
    return here;
}

static void check_same(const struct trial *trial, int32_t ranks, const struct outcome *expected)
{
    for (int32_t r = 0; r < ranks; r++) {
        const struct outcome *outcome = &trial->outcome[r];
        assert_int_equal(outcome->status, TESS_OK);
        assert_memory_equal(outcome->hash, expected->hash, sizeof(outcome->hash));
        assert_memory_equal(outcome->loss, expected->loss, sizeof(outcome->loss));
        assert_memory_equal(outcome->norm, expected->norm, sizeof(outcome->norm));
        assert_memory_equal(outcome->scale, expected->scale, sizeof(outcome->scale));
        assert_memory_equal(outcome->skipped, expected->skipped, sizeof(outcome->skipped));
    }
}

#define FAULT_SCALED FAULT_GPT "--loss-scale dynamic:1024 --loss-scale-interval 2 "

/* Steps 2 and 3 are skipped everywhere, the scale is halved twice and grows after two good steps;
 * and all else is as on one rank with the same fault. */
static void test_skips_everywhere(void **state)
{
    static const bool skipped[STEPS] = {false, true, true, false, false, false};
    static const double scale[STEPS] = {1024, 1024, 512, 256, 256, 512};
    static struct trial trial, one;
    (void)state;
    fault = fault_grad[0];
    fault.tensor = -1;
    trial_run(&one, 1, FAULT_SCALED "--strategy single");
    assert_memory_equal(one.outcome[0].skipped, skipped, sizeof(skipped));
    assert_memory_equal(one.outcome[0].scale, scale, sizeof(scale));
    assert_int_equal(one.outcome[0].hash[1], one.outcome[0].hash[3]);
    assert_int_not_equal(one.outcome[0].hash[3], one.outcome[0].hash[4]);
    for (int m = 0; m < FAULT_COUNT(fault_mesh); m++) {
        for (int i = 0; i < FAULT_COUNT(fault_grad); i++) {
            char options[512];
            snprintf(options, sizeof(options), "%s %s", FAULT_SCALED, fault_mesh[m].options);
            fault = fault_on(&fault_grad[i], options);
            trial_run(&trial, fault_mesh[m].ranks, options);
            check_same(&trial, fault_mesh[m].ranks, &one.outcome[0]);
        }
    }
}

/* Below a scale of one there is nothing to halve: all ranks end, and name the parameter. */
static void test_scale_ends(void **state)
{
    static struct trial trial;
    (void)state;
    for (int m = 0; m < FAULT_COUNT(fault_mesh); m++) {
        char options[512];
        int named = 0;
        snprintf(options, sizeof(options), "%s --loss-scale dynamic:2 %s", FAULT_GPT,
                 fault_mesh[m].options);
        fault = fault_on(&(struct fault){FAULT_GRAD, 3, H1_NORM, 1, 1, 9}, options);
        trial_run(&trial, fault_mesh[m].ranks, options);
        for (int32_t r = 0; r < fault_mesh[m].ranks; r++) {
            const struct outcome *outcome = &trial.outcome[r];
            assert_int_equal(outcome->step, 3);
            named += strstr(outcome->error,
                            "a loss scale of 1: step 3, unit 'h1', parameter 'h.1.ln_1.weight' "
                            "held the first NaN or infinity") != NULL;
            assert_true(outcome->status == TESS_ERR_NUMERIC || outcome->status == TESS_ERR_ABORTED);
        }
        assert_true(named > 0);
    }
}

/* Without a scale the norm finds it, on all ranks at once. */
static void test_norm_names(void **state)
{
    static struct trial trial;
    (void)state;
    for (int m = 0; m < FAULT_COUNT(fault_mesh); m++) {
        char options[512];
        int named = 0;
        snprintf(options, sizeof(options), "%s %s", FAULT_GPT, fault_mesh[m].options);
        fault = fault_on(&(struct fault){FAULT_GRAD, 5, H3_NORM, 0, 1, 1}, options);
        trial_run(&trial, fault_mesh[m].ranks, options);
        for (int32_t r = 0; r < fault_mesh[m].ranks; r++)
            named += strstr(trial.outcome[r].error, "the gradient is not finite at step 2: unit "
                                                    "'h3', tensor 'h.3.ln_1.weight'") != NULL;
        assert_true(named > 0);
    }
}

/* ---- activations ----------------------------------------------------------------------------- */

/* Ranks of the stage that runs the unit name the tensor; all others are stopped by them. */
static void check_named(const struct trial *trial, int32_t ranks, int32_t stage, const char *text)
{
    int32_t named = 0;
    for (int32_t r = 0; r < ranks; r++) {
        const struct outcome *outcome = &trial->outcome[r];
        /* A rank that is stopped may still be leaving the last call of step 1. */
        assert_in_range(outcome->step, outcome->status == TESS_ERR_ABORTED ? 1 : 2, 2);
        if (outcome->status == TESS_ERR_ABORTED)
            continue;
        if (strstr(outcome->error, text) == NULL)
            print_error("expected %s in: %s\n", text, outcome->error);
        assert_int_equal(outcome->status, TESS_ERR_NUMERIC);
        assert_int_equal(outcome->stage, stage);
        assert_non_null(strstr(outcome->error, text));
        named++;
    }
    assert_true(named > 0);
}

static void test_activation_named(void **state)
{
    static const struct {
        struct fault fault;
        int32_t stage; /* of two */
        const char *text;
    } wanted[] = {
        {{FAULT_OUTPUT, 0, 0, -1, 1, 1},
         0,
         "the output for the next stage is not finite at step 2: unit 'wte', tensor 'output' held "
         "the first NaN or infinity (row "},
        {{FAULT_OUTPUT, 2, 0, -1, 1, 1}, 0, "step 2: unit 'h0', tensor 'output'"},
        {{FAULT_OUTPUT, 6, 0, -1, 1, 1},
         1,
         "the loss is not finite at step 2: unit 'norm', tensor 'output'"},
        {{FAULT_LOSS, 7, 0, -1, 1, 1},
         1,
         "the loss is not finite at step 2: tensor 'loss' of row 0"},
        {{FAULT_PARAM, 1, WPE, -1, 1, 1}, 0, "step 2: unit 'wpe', parameter 'wpe.weight'"},
        {{FAULT_PARAM, 6, LN_F, -1, 1, 1}, 1, "step 2: unit 'norm', parameter 'ln_f.weight'"},
    };
    static struct trial trial;
    static const char *const strategy[] = {
        "--strategy ddp+tp+pp --mesh data=2,tensor=2,stage=2 --pp.schedule gpipe ",
        "--strategy ddp+tp+pp --mesh data=2,tensor=2,stage=2 --accumulate 4 ",
    };
    (void)state;
    trial.alone = true;
    for (int s = 0; s < FAULT_COUNT(strategy); s++) {
        for (int i = 0; i < FAULT_COUNT(wanted); i++) {
            char options[512];
            snprintf(options, sizeof(options), "%s --optimizer sgd --clip 0 %s", FAULT_GPT,
                     strategy[s]);
            fault = wanted[i].fault;
            trial_run(&trial, 8, options);
            check_named(&trial, 8, wanted[i].stage, wanted[i].text);
        }
    }
}

/* A loss of one rank's rows ends the step before sums of gradients, which are updates where ranks
 * share memory, have changed anything. */
static void test_loss_updates_nothing(void **state)
{
    static const char *const strategy[] = {
        "ddp --ddp.bucket-mib 0 --ddp.first-bucket-mib 0",
        "zero1 --zero1.bucket-mib 0 --zero1.first-bucket-mib 0",
    };
    static struct trial trial;
    (void)state;
    trial.alone = true;
    fault_keeps = true;
    fault = (struct fault){FAULT_LOSS, 7, LN_F, -1, 1, 1};
    for (int s = 0; s < FAULT_COUNT(strategy); s++) {
        char options[768];
        snprintf(options, sizeof(options),
                 FAULT_COMMON "--model gpt --data.length 8 --gpt.layers 4 --gpt.width 16 "
                              "--optimizer adamw --ranks 2 --strategy %s",
                 strategy[s]);
        memset(kept, 0, sizeof(kept));
        trial_run(&trial, 2, options);
        check_named(&trial, 2, 0, "the loss is not finite at step 2: tensor 'loss' of row 0");
        assert_non_null(kept[1].from);
        assert_true(kept[0].same && kept[1].same);
    }
    fault_keeps = false;
}

/* ---- parameters without a gradient ----------------------------------------------------------- */

#define FAULT_DROP                                                                                 \
    "--model mlp --mlp.hidden 36,36,24,24 --batch-size 16 --learning-rate 0.05 --bind=off "        \
    "--data.workers 0 --mlp.layer-drop 0.6 --grid 4 --optimizer adamw --weight-decay 0.1 "

static struct run drop_run(const char *strategy, const char *options, int32_t ranks)
{
    return (struct run){.strategy = strategy,
                        .kernel = "ref",
                        .options = options,
                        .rank_count = ranks,
                        .steps = 5,
                        .mode = TESS_RANKS_THREADS};
}

/* What no rank used keeps its value and its age also where only some stages keep it. */
static void test_unused(void **state)
{
    static const struct {
        int32_t ranks;
        const char *strategy, *options;
    } layout[] = {
        {2, "pp", "--accumulate 4"},
        {2, "pp", "--pp.schedule interleaved --recompute full"},
        {4, "ddp+pp", "--mesh data=2,stage=2"},
        {4, "fsdp+pp", "--mesh data=2,stage=2"},
        {4, "zero1+pp", "--mesh data=2,stage=2 --pp.schedule gpipe"},
    };
    static const char *const scope[] = {"step", "leaf"};
    (void)state;
    for (int s = 0; s < 2; s++) {
        char options[512];
        struct run_outcome expected;
        snprintf(options, sizeof(options), "%s --find-unused --mlp.layer-drop-scope %s", FAULT_DROP,
                 scope[s]);
        struct run run = drop_run("single", options, 1);
        run_train(&run, &expected);
        for (int l = 0; l < FAULT_COUNT(layout); l++) {
            snprintf(options, sizeof(options), "%s --find-unused --mlp.layer-drop-scope %s %s",
                     FAULT_DROP, scope[s], layout[l].options);
            run = drop_run(layout[l].strategy, options, layout[l].ranks);
            run_compare(&run, &expected);
        }
    }
}

/* Without find-unused no rank updates anything, and rank 0 reports for all, with the ranks that
 * keep the parameter and have not used it: those of one stage. */
static void test_unused_stops(void **state)
{
    static struct trial trial;
    (void)state;
    fault.kind = FAULT_NONE;
    trial_run(&trial, 4,
              FAULT_COMMON "--model mlp --mlp.hidden 36,36,24,24 --mlp.layer-drop 0.9 --optimizer "
                           "sgd --strategy ddp+pp --mesh data=2,stage=2");
    for (int32_t r = 0; r < 4; r++) {
        const struct outcome *outcome = &trial.outcome[r];
        assert_int_equal(outcome->step, 1);
        assert_int_equal(outcome->status, r == 0 ? TESS_ERR_USAGE : TESS_ERR_ABORTED);
    }
    assert_non_null(strstr(trial.outcome[0].error, "step 1 left 6 parameters without a gradient: "
                                                   "'fc1.weight' (on ranks 0, 1)"));
    assert_non_null(strstr(trial.outcome[0].error, "and 2 more; nothing was updated"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_skips_everywhere),     cmocka_unit_test(test_scale_ends),
        cmocka_unit_test(test_norm_names),           cmocka_unit_test(test_activation_named),
        cmocka_unit_test(test_loss_updates_nothing), cmocka_unit_test(test_unused),
        cmocka_unit_test(test_unused_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
