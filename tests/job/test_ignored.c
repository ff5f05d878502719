/*
 * Labels that are ignored, label smoothing and z-loss in whole steps: the mean is over the labels
 * that count in the whole batch, wherever they lie, so every layout gives the same bits.
 */
#include "tessera/engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 16, LENGTH = 12, STEPS = 3, WIDTH = 20, CLASSES = 7 };

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != TESS_OK)                                                                     \
            fail_msg("%s: %s", #call, tess_log_last_error());                                      \
    } while (0)

struct batch {
    float image[ROWS * WIDTH];
    int32_t token[ROWS * LENGTH], label[ROWS * LENGTH];
};

/* Step by step others; `labels` of a row. Most of the first half of the rows is ignored, by either
 * number, and all of row 3, so that micro-batches and ranks have different counts. */
static void make(struct batch *batch, int step, int labels)
{
    uint64_t x = 77 + (uint64_t)step;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
        batch->image[i] = (float)(x >> 40) * 0x1p-23f - 1;
    }
    for (int i = 0; i < ROWS * LENGTH; i++) {
        x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
        const int row = i / labels, word = (int)(x >> 33);
        batch->token[i] = word % CLASSES;
        batch->label[i] =
            (row < ROWS / 2 && word % 4 != 0) || row == 3 ? i % 2 ? -100 : -1 : word / 8 % CLASSES;
    }
}

struct outcome {
    double loss, validation, accuracy;
    uint64_t hash;
};

/* Options after the fixed ones: "name=value" words. */
static struct outcome train(bool tokens, const char *const word[], int words)
{
    static char text[16][64];
    struct tess_job_option option[24] = {{"model", tokens ? "gpt" : "mlp"},
                                         {"batch-size", "16"},
                                         {"steps", "3"},
                                         {"timeout", "30"},
                                         {"learning-rate", "0.1"}};
    struct tess_job_data data = {.row = tokens ? tess_shape1(LENGTH) : tess_shape3(4, WIDTH / 4, 1),
                                 .class_count = CLASSES};
    struct tess_job_setup setup = {.option = option, .option_count = 5, .data = &data};
    const char *const gpt[] = {"gpt.layers=2", "gpt.width=16", "gpt.heads=4"};
    struct tess_job_metrics metrics;
    struct outcome outcome;
    struct tess_job *job;
    struct batch batch;
    for (int i = 0; i < (tokens ? 3 : 0) + words; i++) {
        const char *const from = i < words ? word[i] : gpt[i - words];
        snprintf(text[i], sizeof(text[i]), "%s", from);
        char *value = strchr(text[i], '=');
        *value = '\0';
        option[setup.option_count++] = (struct tess_job_option){text[i], value + 1};
    }
    assert_ok(tess_job_open(&setup, &job));
    assert_ok(tess_job_start(job));
    for (int step = 0; step < STEPS; step++) {
        make(&batch, step, tokens ? LENGTH : 1);
        const struct tess_job_batch given = {tokens ? (void *)batch.token : batch.image,
                                             batch.label};
        assert_ok(tess_job_step(job, 1, &given, &metrics));
        if (step == STEPS - 1)
            assert_ok(tess_job_evaluate(job, &given, &outcome.validation, &outcome.accuracy));
    }
    outcome.loss = metrics.loss;
    assert_ok(tess_job_hash(job, &outcome.hash));
    tess_job_close(job);
    return outcome;
}

#define TRAIN(tokens, ...)                                                                         \
    train(tokens, (const char *const[]){__VA_ARGS__},                                              \
          (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)))

static void assert_same(const char *what, struct outcome a, struct outcome b)
{
    if (a.hash != b.hash || memcmp(&a.loss, &b.loss, sizeof(a.loss)) != 0 ||
        memcmp(&a.validation, &b.validation, sizeof(a.validation)) != 0 ||
        memcmp(&a.accuracy, &b.accuracy, sizeof(a.accuracy)) != 0)
        fail_msg("%s: loss %.17g and %.17g, validation %.17g and %.17g, hashes %llx and %llx", what,
                 a.loss, b.loss, a.validation, b.validation, (unsigned long long)a.hash,
                 (unsigned long long)b.hash);
}

#define HOW "grid=8", "tensor.canonical=2", "loss.smoothing=0.1", "loss.z=0.001"

static void case_layouts(void **state)
{
    (void)state;
    for (int tokens = 0; tokens < 2; tokens++) {
        const struct outcome one = TRAIN(tokens, HOW, "strategy=single");
        const struct outcome plain = TRAIN(tokens, "grid=8", "tensor.canonical=2");
        assert_true(one.hash != plain.hash && one.loss != plain.loss);
        assert_same("accumulate", one, TRAIN(tokens, HOW, "strategy=single", "accumulate=4"));
        assert_same("ddp", one, TRAIN(tokens, HOW, "strategy=ddp", "ranks=4"));
        assert_same("dp", one, TRAIN(tokens, HOW, "strategy=dp", "ranks=2"));
        assert_same("zero2", one, TRAIN(tokens, HOW, "strategy=zero2", "ranks=2", "accumulate=2"));
        assert_same("fsdp", one, TRAIN(tokens, HOW, "strategy=fsdp", "ranks=8"));
        assert_same("tp", one, TRAIN(tokens, HOW, "strategy=tp", "ranks=2"));
        assert_same("pp", one, TRAIN(tokens, HOW, "strategy=pp", "ranks=2", "accumulate=4"));
        assert_same("fsdp+tp+pp", one, TRAIN(tokens, HOW, "strategy=fsdp+tp+pp", "ranks=8"));
    }
}

/*
 * The mean is over what counts: a batch whose second half is ignored gives the loss and the hash of
 * a batch of the first half alone. Both are sums over 4 leaves of 4 rows; a sum with zeros is that
 * without, and dividing by the same count gives the same bits.
 */
static void case_mean(void **state)
{
    (void)state;
    uint64_t hash[2];
    double loss[2];
    struct batch batch;
    make(&batch, 0, 1);
    for (int half = 0; half < 2; half++) {
        const struct tess_job_option option[] = {{"model", "mlp"},
                                                 {"batch-size", half ? "8" : "16"},
                                                 {"grid", half ? "2" : "4"},
                                                 {"steps", "1"},
                                                 {"timeout", "30"}};
        const struct tess_job_data data = {.row = tess_shape3(4, WIDTH / 4, 1),
                                           .class_count = CLASSES};
        const struct tess_job_setup setup = {.option = option, .option_count = 5, .data = &data};
        const struct tess_job_batch given = {batch.image, batch.label};
        struct tess_job_metrics metrics;
        struct tess_job *job;
        for (int i = 0; i < ROWS; i++)
            batch.label[i] = i < ROWS / 2 ? i % CLASSES : -100;
        assert_ok(tess_job_open(&setup, &job));
        assert_ok(tess_job_start(job));
        assert_ok(tess_job_step(job, 1, &given, &metrics));
        assert_ok(tess_job_hash(job, &hash[half]));
        loss[half] = metrics.loss;
        tess_job_close(job);
    }
    assert_true(loss[0] > 0 && loss[0] == loss[1]);
    assert_true(hash[0] == hash[1]);
}

/* No label counts: no loss, no gradient, and no NaN. */
static void case_none(void **state)
{
    (void)state;
    const struct tess_job_option option[] = {
        {"model", "mlp"}, {"batch-size", "16"}, {"steps", "1"}, {"timeout", "30"}};
    const struct tess_job_data data = {.row = tess_shape3(4, WIDTH / 4, 1), .class_count = CLASSES};
    const struct tess_job_setup setup = {.option = option, .option_count = 4, .data = &data};
    struct tess_job_metrics metrics;
    struct tess_job *job;
    struct batch batch;
    uint64_t before, after;
    make(&batch, 0, 1);
    for (int i = 0; i < ROWS; i++)
        batch.label[i] = -100;
    const struct tess_job_batch given = {batch.image, batch.label};
    assert_ok(tess_job_open(&setup, &job));
    assert_ok(tess_job_start(job));
    assert_ok(tess_job_hash(job, &before));
    assert_ok(tess_job_step(job, 1, &given, &metrics));
    assert_ok(tess_job_hash(job, &after));
    assert_true(metrics.loss == 0 && metrics.accuracy == 0);
    assert_true(before == after);
    /* Other negative numbers are mistakes. */
    batch.label[5] = -2;
    assert_int_equal(tess_job_evaluate(job, &given, &metrics.loss, &metrics.accuracy),
                     TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "label 5 of the batch is -2"));
    tess_job_close(job);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_layouts),
        cmocka_unit_test(case_mean),
        cmocka_unit_test(case_none),
    };
    return cmocka_run_group_tests_name("ignored labels", cases, NULL, NULL);
}
