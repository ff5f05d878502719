/*
 * Generation against training: a decoder, from weights in a file, gives each token of a batch the
 * log-probability that the training forward gives it, to the bit: one position at a time, in
 * chunks, several sequences at once, for every cut of the layers' width.
 */
#include "core/decode.h"
#include "harness/scratch_file.h"
#include "models/model_driver.h"
#include "state/weights.h"

#include "tessera/registry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LENGTH     21
#define VOCABULARY 77

static const char *kernel_name;

static int64_t compared; /* tokens */

/* A batch, and how a decoder takes it. */
struct way {
    enum tess_dtype dtype;
    int64_t length, rows, leaf_rows;
    int32_t parts, sequences;
    int64_t chunk;
};

/* A decoder of the file's weights for a driver's model. */
static struct tess_decoder *open_decoder(const struct model_driver *driver, const char *kernel,
                                         const struct way *way)
{
    struct tess_decoder_config config = {.model = driver->model,
                                         .options = driver->options,
                                         .threads = 1,
                                         .dtype = way->dtype,
                                         .context = way->length,
                                         .sequences = way->sequences,
                                         .chunk = way->chunk,
                                         .parts = way->parts};
    struct tess_decoder *decoder = NULL;
    struct tess_weights *weights = NULL;
    assert_int_equal(tess_registry_get_kernel(kernel, &config.kernel), TESS_OK);
    assert_int_equal(tess_weights_open(scratch_file, &weights), TESS_OK);
    assert_int_equal(tess_decoder_open(&config, weights, &decoder), TESS_OK);
    tess_weights_close(weights);
    assert_int_equal(tess_decoder_vocabulary(decoder), driver->input.class_count);
    return decoder;
}

/* The loss of each of the batch's labels, [rows, length]: `sequences` rows at once, each by
 * `chunk` / `sequences` positions, or one. */
static void decode(const struct model_driver *driver, struct tess_decoder *decoder,
                   const struct way *way, float *loss)
{
    const int64_t each = way->chunk > way->sequences ? way->chunk / way->sequences : 1;
    struct tess_decoder_part part[16];
    assert_true(way->sequences <= 16);
    for (int64_t row = 0; row < way->rows; row += way->sequences) {
        const int64_t left = way->rows - row;
        const int32_t count = left < way->sequences ? (int32_t)left : way->sequences;
        for (int64_t at = 0; at < way->length; at += each) {
            for (int32_t s = 0; s < count; s++) {
                const int64_t first = (row + s) * way->length + at;
                part[s] = (struct tess_decoder_part){
                    .sequence = count - 1 - s,
                    .position = at,
                    .count = each < way->length - at ? each : way->length - at,
                    .token = (const int32_t *)driver->x_low + first,
                    .label = driver->label + first,
                    .loss = loss + first};
            }
            assert_int_equal(tess_decoder_run(decoder, part, count), TESS_OK);
        }
    }
}

static void check_bits(const struct way *way, const float *got, const float *wanted)
{
    for (int64_t i = 0; i < way->rows * way->length; i++)
        if (memcmp(&got[i], &wanted[i], sizeof(*got)) != 0)
            fail_msg("%s, %d parts, %d sequences, chunk %d: loss of position %d of row %d is "
                     "%.9g, in training %.9g",
                     tess_dtype_name(way->dtype), way->parts, way->sequences, (int)way->chunk,
                     (int)(i % way->length), (int)(i / way->length), (double)got[i],
                     (double)wanted[i]);
    compared += way->rows * way->length;
}

/* Losses are those of different tokens, not of nothing. */
static void check_sense(const struct way *way, const float *loss)
{
    double sum = 0;
    for (int64_t i = 0; i < way->rows * way->length; i++)
        sum += (double)loss[i];
    const double mean = sum / (double)(way->rows * way->length);
    assert_true(mean > 0.5 * log(VOCABULARY) && mean < 3 * log(VOCABULARY));
    assert_true(loss[0] != loss[1] && loss[1] != loss[2]);
}

static void open_driver(struct model_driver *driver, const struct way *way, int32_t parts,
                        const char *const *argument, int count)
{
    const struct tess_model_input input = {
        .row = tess_shape1(way->length),
        .class_count = VOCABULARY,
        .dtype = way->dtype,
        .tokens = true,
        .rows = way->rows,
        .leaf_rows = way->leaf_rows,
        .axis = {.parts = parts, .count = parts, .rank_count = 1}};
    model_open_input(driver, "gpt", kernel_name, &input, argument, count);
    model_disturb(driver, 0.3f);
}

static void write_weights(const struct way *way, const char *const *argument, int count)
{
    struct way small = *way;
    struct model_driver whole;
    small.rows = small.leaf_rows = 1;
    open_driver(&whole, &small, 1, argument, count);
    model_write(&whole, scratch_file);
    model_close(&whole);
}

static void check_way(const struct way *way, const char *const *argument, int count)
{
    struct model_driver driver;
    const size_t tokens = (size_t)(way->rows * way->length);
    float *trained = calloc(2 * tokens, sizeof(*trained));
    float *decoded = calloc(tokens, sizeof(*decoded));
    assert_true(trained != NULL && decoded != NULL);
    write_weights(way, argument, count);
    open_driver(&driver, way, way->parts, argument, count);
    driver.each = trained;
    model_forward(&driver);
    check_sense(way, trained);
    struct tess_decoder *decoder = open_decoder(&driver, kernel_name, way);
    decode(&driver, decoder, way, decoded);
    check_bits(way, decoded, trained);
    tess_decoder_close(decoder);
    if (strcmp(kernel_name, "ref") == 0) {
        /* Nothing but kernels touches what is the device's, also where its memory is far. */
        static const char *const other[] = {"guard", "guard_queue"};
        /* They take turns with most ways: each of their operations takes system calls. */
        static size_t turn;
        if (TESTS_FULL || turn % 3 == 0) {
            decoder = open_decoder(&driver, other[turn % 2], way);
            decode(&driver, decoder, way, decoded);
            check_bits(way, decoded, trained);
            tess_decoder_close(decoder);
        }
        turn++;
    }
    free(trained);
    free(decoded);
    model_close(&driver);
}

#define COMMON "--layers=3", "--heads=4", "--width=32", "--init-deviation=0.2"

static const char *const gpt2[] = {COMMON};
static const char *const gpt2_untied[] = {COMMON, "--tied=off", "--context=30"};
static const char *const llama[] = {COMMON, "--style=llama", "--kv-heads=2"};
static const char *const llama_tied[] = {COMMON, "--style=llama", "--kv-heads=1", "--tied=on"};
static const char *const qwen[] = {COMMON,         "--style=llama",  "--kv-heads=4",
                                   "--qk-norm=on", "--head-size=20", "--qkv-bias=on"};
static const char *const window[] = {COMMON,        "--style=llama",   "--kv-heads=2", "--window=6",
                                     "--gate=gelu", "--window-from=1", "--gelu=erf"};

/* Words of a model; the odd widths of heads and layers leave edges in every kernel. */
static const struct {
    const char *const *argument;
    int count, parts; /* that its heads can be cut into */
} model[] = {{gpt2, 4, 4},       {gpt2_untied, 6, 2}, {llama, 6, 2},
             {llama_tied, 7, 1}, {qwen, 8, 4},        {window, 10, 2}};

static void case_models(void **unused)
{
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16, TESS_F16};
    static const struct way way[] = {
        {.rows = 1, .leaf_rows = 1, .sequences = 1},
        {.rows = 6, .leaf_rows = 3, .sequences = 1, .chunk = 8},
        {.rows = 5, .leaf_rows = 1, .sequences = 3, .chunk = 13},
        {.rows = 4, .leaf_rows = 4, .sequences = 4},
    };
    (void)unused;
    for (size_t m = 0; m < sizeof(model) / sizeof(model[0]); m++)
        for (size_t w = 0; w < sizeof(way) / sizeof(way[0]); w++)
            for (size_t d = 0; d < 3; d++) {
                if (TESTS_DIVISOR > 1 && d != (m + w) % 3) /* sanitizers: dtypes take turns */
                    continue;
                for (int32_t parts = 1; parts <= model[m].parts; parts *= 2) {
                    struct way one = way[w];
                    one.dtype = dtype[d];
                    one.length = LENGTH;
                    one.parts = parts;
                    check_way(&one, model[m].argument, model[m].count);
                }
            }
}

/* 40,000 tokens and more in f32 and in bf16 each, in sequences beyond the 512 keys that a kernel
 * takes at a time: one at a time, and in chunks. Sanitizers: four sequences, a little beyond. */
static void case_long(void **unused)
{
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16};
    static const struct way way[] = {
        {.rows = 16, .leaf_rows = 4, .sequences = 16},
        {.rows = 16, .leaf_rows = 8, .sequences = 2, .chunk = 150},
        {.rows = 16, .leaf_rows = 16, .sequences = 1, .chunk = 64},
    };
    const int64_t length = TESTS_DIVISOR > 1 ? 560 : 700;
    (void)unused;
    if (strcmp(kernel_name, "cpu") != 0)
        return;
    /* A window that ends within a block of keys, and one that reaches over two. */
    static const char *const windows[2][6] = {{COMMON, "--style=llama", "--window=90"},
                                              {COMMON, "--style=llama", "--window=530"}};
    for (size_t d = 0; d < 2; d++) {
        compared = 0;
        for (size_t w = 0; w < 3; w++) {
            struct way one = way[w];
            one.rows = one.leaf_rows = TESTS_DIVISOR > 1 ? 2 : 4;
            one.sequences = w == 1 ? 2 : 1;
            one.dtype = dtype[d];
            one.length = length;
            one.parts = 2;
            check_way(&one, windows[w % 2], 6);
        }
        for (size_t w = 0; w < sizeof(way) / sizeof(way[0]); w++) {
            struct way one = way[w];
            one.dtype = dtype[d];
            one.length = length;
            one.parts = 1 << w;
            if (TESTS_DIVISOR > 1) {
                one.rows = one.leaf_rows = 4;
                one.sequences = one.sequences < 4 ? one.sequences : 4;
            }
            check_way(&one, w == 0 ? llama : w == 1 ? gpt2 : qwen, w == 0 ? 6 : w == 1 ? 4 : 8);
        }
        assert_true(compared >= 40000 / TESTS_DIVISOR);
    }
}

/* One token of sequence 0. */
static enum tess_status step(struct tess_decoder *decoder, int32_t token, int64_t position,
                             float *logits)
{
    const struct tess_decoder_part part = {
        .position = position, .count = 1, .token = &token, .logits = logits};
    return tess_decoder_run(decoder, &part, 1);
}

/* Logits after the last token of each part, whatever else runs beside it. */
static void case_logits(void **unused)
{
    const struct way way = {
        .length = LENGTH, .rows = 2, .leaf_rows = 1, .parts = 2, .sequences = 2, .chunk = 30};
    struct model_driver driver;
    float one[VOCABULARY], two[2][VOCABULARY];
    (void)unused;
    write_weights(&way, llama, 6);
    open_driver(&driver, &way, 2, llama, 6);
    const int32_t *token = driver.x_low;
    struct tess_decoder *decoder = open_decoder(&driver, kernel_name, &way);
    const struct tess_decoder_part part[] = {
        {.sequence = 0, .count = 9, .token = token, .logits = two[0]},
        {.sequence = 1, .count = 4, .token = token + LENGTH, .logits = two[1]}};
    assert_int_equal(tess_decoder_run(decoder, part, 2), TESS_OK);
    for (int s = 0; s < 2; s++) {
        for (int64_t p = 0; p < part[s].count; p++)
            assert_int_equal(
                step(decoder, part[s].token[p], p, p + 1 == part[s].count ? one : NULL), TESS_OK);
        assert_memory_equal(one, two[s], sizeof(one));
        assert_true(one[0] != one[VOCABULARY - 1]);
    }
    tess_decoder_close(decoder);
    model_close(&driver);
}

/* An embedding of more than the 2^20 elements that go to far memory at a time. */
static void case_large(void **unused)
{
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16};
    static const char *const kernel[] = {"ref", "guard", "guard_queue"};
    static const char *const argument[] = {"--layers=1", "--heads=2", "--width=128"};
    static float logits[3][8300];
    (void)unused;
    for (size_t i = 0; strcmp(kernel_name, "ref") == 0 && i < 2; i++) {
        const struct tess_model_input input = {.row = tess_shape1(LENGTH),
                                               .class_count = 8300,
                                               .dtype = dtype[i],
                                               .tokens = true,
                                               .rows = 1,
                                               .leaf_rows = 1,
                                               .axis = {.parts = 1, .count = 1, .rank_count = 1}};
        const struct way way = {.dtype = dtype[i], .length = LENGTH, .sequences = 1};
        struct model_driver driver;
        model_open_input(&driver, "gpt", "ref", &input, argument, 3);
        assert_true(tess_shape_count(&driver.declare.param[0].shape) > INT64_C(1) << 20);
        model_write(&driver, scratch_file);
        for (size_t k = 0; k < 3; k++) {
            struct tess_decoder *decoder = open_decoder(&driver, kernel[k], &way);
            assert_int_equal(step(decoder, *(const int32_t *)driver.x_low, 0, logits[k]), TESS_OK);
            tess_decoder_close(decoder);
            assert_memory_equal(logits[k], logits[0], sizeof(logits[0]));
        }
        assert_true(logits[0][0] != logits[0][1] && logits[0][8299] != 0);
        model_close(&driver);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_models),
        cmocka_unit_test(case_logits),
        cmocka_unit_test(case_large),
        cmocka_unit_test(case_long),
    };
    kernel_name = argc > 1 ? argv[1] : "ref";
    return cmocka_run_group_tests(cases, scratch_file_make, scratch_file_remove);
}
