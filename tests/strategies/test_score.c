/*
 * Generation against training on several ranks: the log-probability that a step gives each token of
 * its batch, and an evaluation each of its, are those of a decoder of the saved weights, to the
 * bit, on 1, 2 and 4 ranks of the tensor axis and under products with it.
 */
#include "config/config.h"
#include "core/decode.h"
#include "core/state.h"
#include "harness/scratch_file.h"
#include "harness/world.h"
#include "state/weights.h"
#include "tessera/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH 120
#define ROWS   8 /* of a batch, and of the test split */
#define TOKENS (ROWS * LENGTH)
#define PARTS  4

static const char *kernel_name;

/* What the ranks share. */
struct score {
    struct tess_config *config;
    struct tess_dataset *dataset;
    int64_t tokens; /* found in `each`, of the latest batch */
    int32_t token[2][TOKENS], label[2][TOKENS];
    float each[2][TOKENS]; /* of a step, of an evaluation */
};

static struct score score;

/* The first of the ranks of the tensor axis brings its rows. */
static void score_take(const struct tess_engine *engine, int what, const float *each)
{
    const struct tess_plan *plan = &engine->plan;
    const struct tess_flight *flight =
        tess__stages_flight(engine, engine->schedule.chunk_count - 1, 0);
    const int64_t count = engine->sizes.rows * LENGTH;
    const int64_t at = plan->mesh.at[TESS_AXIS_DATA] * count;
    if (plan->mesh.at[TESS_AXIS_TENSOR] != 0)
        return;
    memcpy(score.token[what] + at, flight->input, (size_t)count * sizeof(int32_t));
    memcpy(score.label[what] + at, flight->label, (size_t)count * sizeof(int32_t));
    memcpy(score.each[what] + at, each, (size_t)count * sizeof(float));
    __atomic_fetch_add(&score.tokens, count, __ATOMIC_RELAXED);
}

static int score_rank(struct tess_comm *comm, struct tess_world *world, void *unused)
{
    struct tess_engine *engine = NULL;
    struct tess_step_result result;
    float *each = calloc(2 * TOKENS, sizeof(*each));
    double loss, accuracy;
    (void)unused;
    WORLD_CHECK(each != NULL);
    WORLD_OK(tess_config_select_device(score.config, comm->rank));
    WORLD_OK(tess_engine_open(score.config, score.dataset, comm, world, &engine));
    tess_engine_each(engine, each);
    WORLD_OK(tess_engine_save(engine, scratch_file));
    WORLD_OK(tess_engine_step(engine, true, &result)); /* of rate 0 */
    score_take(engine, 0, each);
    WORLD_OK(tess_engine_evaluate(engine, &loss, &accuracy));
    score_take(engine, 1, each);
    tess_engine_close(engine);
    free(each);
    return 0;
}

/* Positions at once. A device made of host code is slow: one row of it goes by single positions. */
static int64_t score_chunk(int row)
{
    static const int64_t chunk[ROWS] = {1, 37, 50, 11, 2, 37, 50, 23};
    return strcmp(kernel_name, "cuda") == 0 ? chunk[row] : row % 2 == 0 ? 1 : 37;
}

static void score_compare(enum tess_dtype dtype, int what)
{
    const struct tess_kernel_choices choices = tess_config_choices(score.config);
    struct tess_decoder_config config = {.choices = &choices,
                                         .model = score.config->model,
                                         .options = score.config->model_options,
                                         .threads = 1,
                                         .dtype = dtype,
                                         .vocabulary = score.dataset->class_count,
                                         .context = LENGTH,
                                         .sequences = 2,
                                         .chunk = 50,
                                         .parts = PARTS};
    struct tess_decoder *decoder = NULL;
    struct tess_weights *weights = NULL;
    float loss[LENGTH];
    assert_int_equal(tess_registry_get_kernel(kernel_name, &config.kernel), TESS_OK);
    assert_int_equal(tess_weights_open(scratch_file, &weights), TESS_OK);
    assert_int_equal(tess_decoder_open(&config, weights, &decoder), TESS_OK);
    tess_weights_close(weights);
    for (int row = 0; row < ROWS; row++) {
        const int32_t *token = score.token[what] + row * LENGTH;
        const int64_t chunk = score_chunk(row);
        for (int64_t at = 0; at < LENGTH; at += chunk) {
            const struct tess_decoder_part part = {.sequence = row % 2,
                                                   .position = at,
                                                   .count =
                                                       chunk < LENGTH - at ? chunk : LENGTH - at,
                                                   .token = token + at,
                                                   .label = score.label[what] + row * LENGTH + at,
                                                   .loss = loss + at};
            assert_int_equal(tess_decoder_run(decoder, &part, 1), TESS_OK);
        }
        assert_memory_equal(loss, score.each[what] + row * LENGTH, sizeof(loss));
        assert_true(loss[0] != loss[1]);
    }
    tess_decoder_close(decoder);
}

static void score_check(const char *strategy, int ranks, const char *precision)
{
    char text[4][64], *argv[] = {"--model=gpt",
                                 "--data=synthetic",
                                 "--data.length=120",
                                 "--batch-size=8",
                                 "--steps=1",
                                 "--learning-rate=0",
                                 "--gpt.layers=2",
                                 "--gpt.heads=4",
                                 "--gpt.width=32",
                                 "--gpt.style=llama",
                                 "--gpt.kv-heads=4",
                                 "--gpt.init-deviation=0.2",
                                 "--tensor.canonical=4",
                                 text[0],
                                 text[1],
                                 text[2],
                                 text[3],
                                 "--cuda.decode=exact"};
    snprintf(text[0], sizeof(text[0]), "--strategy=%s", strategy);
    snprintf(text[1], sizeof(text[1]), "--ranks=%d", ranks);
    snprintf(text[2], sizeof(text[2]), "--precision=%s", precision);
    snprintf(text[3], sizeof(text[3]), "--kernel=%s", kernel_name);
    score.tokens = 0;
    assert_int_equal(tess_config_open(sizeof(argv) / sizeof(argv[0]), argv, NULL, 0, &score.config),
                     TESS_OK);
    assert_int_equal(tess_dataset_open_synthetic_tokens(LENGTH, 3 * ROWS, ROWS, 3, &score.dataset),
                     TESS_OK);
    assert_int_equal(world_run(ranks, TESS_RANKS_THREADS, TESS_ORDER_CANONICAL, score_rank, NULL),
                     0);
    assert_int_equal(score.tokens, 2 * TOKENS);
    for (int what = 0; what < (strcmp(kernel_name, "cuda") == 0 ? 1 : 2); what++)
        score_compare(strcmp(precision, "f32") == 0 ? TESS_F32 : TESS_BF16, what);
    tess_dataset_close(score.dataset);
    tess_config_close(score.config);
}

static void case_ranks(void **state)
{
    static const char *const precision[] = {"f32", "bf16"};
    const struct tess_kernel_ops *kernel;
    (void)state;
    if (strcmp(kernel_name, "cuda") == 0) { /* ranks of a device are test_madeup_train's */
        assert_int_equal(tess_registry_get_kernel(kernel_name, &kernel), TESS_OK);
        score_check("tp", 1, "bf16");
        return;
    }
    if (TESTS_DIVISOR > 1) { /* sanitizers: minutes */
        score_check("fsdp+tp", 4, "bf16");
        return;
    }
    for (int p = 0; p < 2; p++) {
        score_check("tp", 1, precision[p]);
        score_check("tp", 2, precision[p]);
        score_check("tp", 4, precision[p]);
        score_check("fsdp+tp", 4, precision[p]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_ranks)};
    kernel_name = argc > 1 ? argv[1] : "ref";
    return cmocka_run_group_tests(cases, scratch_file_make, scratch_file_remove);
}
