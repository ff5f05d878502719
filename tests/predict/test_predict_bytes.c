/*
 * What a prediction says that ranks send and keep is what they send and keep: bytes along each axis
 * against those that a real run counts, memory against the plan's, for every strategy; and that
 * caches keep what all of it is.
 */
#include "predict_fixture.h"

#include "core/engine.h"
#include "strategies/runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

#define BYTES_MLP                                                                                  \
    "--model mlp --mlp.hidden 40,64,32 --batch-size 16 --grid 8 --bind=off --data.workers 0 "      \
    "--optimizer adamw "
#define BYTES_GPT                                                                                  \
    "--model gpt --data.length 8 --batch-size 16 --gpt.layers 4 --gpt.width 16 --gpt.vocab 300 "   \
    "--bind=off --data.workers 0 --grid 8 --optimizer adamw --gpt.style llama --precision bf16 "

/* Of two ranks for each axis: there sums have no slices that are rounded to cache lines. */
static const struct {
    int32_t ranks;
    const char *strategy, *options;
} layout[] = {
    {1, "single", BYTES_MLP},
    {2, "dp", BYTES_MLP},
    {2, "ddp", BYTES_MLP "--ddp.first-bucket-mib 0.002 --ddp.bucket-mib 0.006"},
    {2, "ddp", BYTES_MLP "--ddp.overlap=off --accumulate 2"},
    {2, "ddp", BYTES_MLP "--ddp.sync-every-micro-batch=on --accumulate 2 --reduce-dtype bf16"},
    {2, "ddp", BYTES_MLP "--precision bf16"},
    {2, "zero1", BYTES_MLP "--accumulate 4"},
    {2, "zero1", BYTES_MLP "--precision bf16"},
    {2, "zero2", BYTES_MLP "--accumulate 2"},
    {2, "fsdp", BYTES_MLP "--accumulate 2"},
    {2, "fsdp", BYTES_GPT "--fsdp.reshard-after-forward=off --recompute full"},
    {4, "hsdp", BYTES_GPT "--hsdp.shard-ranks 2"},
    {2, "tp", BYTES_GPT "--recompute selective --tensor.sequence-parallel"},
    {2, "pp", BYTES_GPT "--accumulate 4"},
    {4, "pp", BYTES_GPT "--accumulate 4 --pp.schedule gpipe --gpt.tied on"},
    {2, "pp", BYTES_GPT "--accumulate 4 --pp.schedule interleaved"},
    {4, "tp+pp", BYTES_GPT "--mesh tensor=2,stage=2"},
    {8, "fsdp+tp+pp", BYTES_GPT "--mesh data=2,tensor=2,stage=2 --accumulate 2"},
};

/* Asked of the configuration that the run has, before its ranks start. */
static struct tess_prediction bytes_predicted;
static const char *bytes_kernel;

static void bytes_predict(struct tess_config *config)
{
    const struct tess_profile profile = fixture_profile(1e9);
    struct tess_network network = fixture_network(config, 1e9);
    struct tess_dataset *dataset;
    struct tess_config *other;
    network.cluster.busy = true; /* and ranks reach each other's memory, as those of the run do */
    network.cluster.sum_bytes_per_s = network.cluster.scatter_bytes_per_s = 1e9;
    network.cluster.share_bytes_per_s = 1e9;
    fixture_open(config->model->tokens ? BYTES_GPT : BYTES_MLP, &other, &dataset);
    assert_string_equal(config->kernel->name, bytes_kernel);
    assert_int_equal(tess_predict_step(config, dataset, &profile, &network, &bytes_predicted),
                     TESS_OK);
    fixture_close(other, dataset);
}

static void bytes_compare(const struct run_outcome *outcome, int32_t ranks)
{
    const int32_t stages = bytes_predicted.stage_count;
    for (int32_t s = 0; s < stages; s++) {
        const struct tess_prediction_stage *stage = &bytes_predicted.stage[s];
        const int32_t rank = ranks / stages * s;
        for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
            assert_int_equal(stage->sent_bytes[axis], outcome->axis_sent[rank][axis]);
        assert_memory_equal(stage->memory, outcome->allocated[rank], sizeof(stage->memory));
        assert_memory_equal(stage->memory, outcome->predicted[rank], sizeof(stage->memory));
    }
}

static void bytes_run(const char *kernel)
{
    bytes_kernel = kernel;
    for (int i = 0; i < COUNT(layout); i++) {
        const struct run run = {.strategy = layout[i].strategy,
                                .kernel = kernel,
                                .options = layout[i].options,
                                .rank_count = layout[i].ranks,
                                .steps = 3,
                                .mode = TESS_RANKS_THREADS,
                                .alter = bytes_predict};
        static struct run_outcome outcome;
        run_train(&run, &outcome);
        print_message("%s, %d ranks, %s\n", layout[i].strategy, (int)layout[i].ranks, kernel);
        bytes_compare(&outcome, layout[i].ranks);
        tess_prediction_fini(&bytes_predicted);
    }
}

static void test_near(void **state)
{
    (void)state;
    bytes_run("ref");
}

static void test_far(void **state)
{
    (void)state;
    bytes_run("guard_queue");
}

/* By formula, where ranks are more than a test can run: 64 along the data axis. */
static void test_formula(void **state)
{
    static const char *const strategy[] = {"ddp", "zero1", "zero2", "fsdp", "hsdp"};
    const struct tess_profile profile = fixture_profile(1e9);
    (void)state;
    for (int i = 0; i < COUNT(strategy); i++) {
        struct tess_config *config;
        struct tess_dataset *dataset;
        struct tess_engine *engine;
        struct tess_prediction prediction;
        char words[512];
        snprintf(words, sizeof(words),
                 "--model mlp --mlp.hidden 40,64,32 --batch-size 64 --grid 64 --kernel ref --ranks "
                 "64 --clip 0 --strategy %s",
                 strategy[i]);
        fixture_open(words, &config, &dataset);
        const struct tess_network network = fixture_network(config, 1e9);
        assert_int_equal(tess_predict_step(config, dataset, &profile, &network, &prediction),
                         TESS_OK);
        assert_int_equal(tess_engine_plan(config, dataset, 0, &engine), TESS_OK);
        assert_int_equal(prediction.sent_bytes[TESS_AXIS_DATA],
                         tess_engine_axis_formula(engine, TESS_AXIS_DATA));
        tess_engine_close(engine);
        tess_prediction_fini(&prediction);
        fixture_close(config, dataset);
    }
}

/* Caches keep what all stages of a host touch up to its sum, however unlike they are. */
static void test_touched(void **state)
{
    static const char options[] =
        "--model mlp --mlp.hidden 256,8 --batch-size 8 --grid 4 --accumulate 4 --ranks 2 "
        "--strategy pp --kernel ref";
    struct tess_profile profile = fixture_profile(1e9);
    struct tess_prediction prediction;
    (void)state;
    fixture_predict(options, &profile, 1e21, &prediction);
    const double kept_s = prediction.step_s, first = (double)prediction.stage[0].memory_total,
                 last = (double)prediction.stage[1].memory_total;
    tess_prediction_fini(&prediction);
    assert_true(first > 2 * last);
    for (int lost = 0; lost < 2; lost++) {
        profile.cache_one = (struct tess_profile_cache){.share_bytes = first + last - lost,
                                                        .gone_bytes = first + last + 1,
                                                        .lost_byte_s = 1e-6};
        fixture_predict(options, &profile, 1e21, &prediction);
        if (lost == 0)
            fixture_same(prediction.step_s, kept_s);
        else
            assert_true(prediction.step_s > 1.1 * kept_s);
        tess_prediction_fini(&prediction);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_near),
        cmocka_unit_test(test_far),
        cmocka_unit_test(test_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
