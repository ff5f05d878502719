/*
 * A safetensors file against a model whose tensors are not laid out as files have them: turned
 * round, padded, tied, under other names. What a writer that walks the file's order would write is
 * what the reader finds, from any element to any other.
 */
#include "base/rng.h"
#include "harness/scratch_file.h"
#include "state/weights.h"

#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WHOLE2(a, b)  .whole = {.rank = 2, .dim = {a, b}}, .shape = {.rank = 2, .dim = {a, b}}
#define UNCUT         .slice = {.axis = -1, .blocks = 1}
#define USED(axis, n) .slice = {axis, 1, n}

enum { EMBEDDING, POSITIONS, LINEAR, BOTH_ROWS, CUBE, HEAD, PARAM_COUNT };

/* Every way in which a file may differ from the model. */
static const struct tess_declare_param param[] = {
    [EMBEDDING] = {.name = "wte.weight", WHOLE2(8, 3), USED(0, 5), .source = -1},
    [POSITIONS] = {.name = "wpe.weight", WHOLE2(4, 3), UNCUT, .source = -1},
    [LINEAR] = {.name = "h.0.attn.c_attn.weight",
                WHOLE2(9, 4),
                UNCUT,
                .flags = TESS_PARAM_TRANSPOSED,
                .source = -1},
    [BOTH_ROWS] = {.name = "turned.rows",
                   WHOLE2(6, 5),
                   USED(0, 4),
                   .flags = TESS_PARAM_TRANSPOSED,
                   .source = -1},
    [CUBE] = {.name = "cube",
              .whole = {.rank = 3, .dim = {4, 2, 3}},
              USED(0, 3),
              /* A flag that only a matrix can follow. */
              .flags = TESS_PARAM_TRANSPOSED,
              .source = -1},
    [HEAD] = {.name = "lm_head.weight",
              WHOLE2(8, 3),
              USED(0, 5),
              .flags = TESS_PARAM_TIED,
              .source = EMBEDDING},
};
static const struct tess_declare declare = {.param = (struct tess_declare_param *)param,
                                            .param_count = PARAM_COUNT};

/* The value of an element of a whole tensor: its own number, never 0; padding is 0. */
static float value_at(int32_t p, int64_t at)
{
    const struct tess_declare_param *one = &param[p];
    if (at >= tess_declare_used(one))
        return 0;
    return (float)(1000 * (p + 1) + at);
}

/* The number in the whole tensor of element `at` of the file. */
static int64_t whole_of(const struct tess_declare_param *one, int64_t at)
{
    const struct tess_shape shape = tess_declare_file_shape(one);
    return tess_declare_turned(one) ? at % shape.dim[1] * shape.dim[0] + at / shape.dim[1] : at;
}

/* Write the tensors in the file's order, from the whole ones. */
static void write_file(FILE *file, const struct tess_declare_param *first, int32_t count)
{
    for (int32_t p = 0; p < count; p++) {
        const struct tess_shape shape = tess_declare_file_shape(&first[p]);
        const int64_t total = tess_shape_count(&shape);
        if (first[p].flags & TESS_PARAM_TIED)
            continue;
        for (int64_t at = 0; at < total; at++) {
            const float value = value_at(p, whole_of(&first[p], at));
            assert_true(value != 0);
            assert_int_equal(fwrite(&value, sizeof(value), 1, file), 1);
        }
    }
}

/* The header is no string. */
static bool has(const char *header, size_t bytes, const char *text)
{
    return memmem(header, bytes, text, strlen(text)) != NULL;
}

static void write_model(void)
{
    size_t bytes = 0;
    char *header = tess_weights_header(&declare, &bytes);
    FILE *file = fopen(scratch_file, "wb");
    assert_non_null(header);
    assert_non_null(file);
    assert_false(has(header, bytes, "lm_head"));
    assert_true(has(header, bytes, "\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[5,3]"));
    assert_true(has(header, bytes, "c_attn.weight\":{\"dtype\":\"F32\",\"shape\":[4,9]"));
    assert_true(has(header, bytes, "\"turned.rows\":{\"dtype\":\"F32\",\"shape\":[5,4]"));
    assert_int_equal(fwrite(header, 1, bytes, file), bytes);
    write_file(file, param, PARAM_COUNT);
    fclose(file);
    free(header);
}

/* Every run of every parameter, padding and ends of rows included. */
static void case_layouts(void **state)
{
    (void)state;
    struct tess_weights *weights = NULL;
    float w[64];
    write_model();
    assert_int_equal(tess_weights_open(scratch_file, &weights), TESS_OK);
    assert_int_equal(tess_weights_match(weights, &declare), TESS_OK);
    assert_int_equal(tess_weights_left_out(weights), 0);
    assert_int_equal(tess_weights_dim(weights, "wte.weight", 0), 5);
    assert_int_equal(tess_weights_dim(weights, "transformer.wte.weight", 1), 3);
    assert_int_equal(tess_weights_dim(weights, "wte.weight", 2), 0);
    assert_int_equal(tess_weights_dim(weights, "wtf.weight", 0), 0);
    for (int32_t p = 0; p < PARAM_COUNT; p++) {
        const int64_t total = tess_shape_count(&param[p].whole);
        const int32_t from = p == HEAD ? EMBEDDING : p;
        for (int64_t begin = 0; begin < total; begin++)
            for (int64_t count = 0; begin + count <= total; count++) {
                memset(w, 0xff, sizeof(w));
                assert_int_equal(tess_weights_read(weights, p, begin, count, w), TESS_OK);
                for (int64_t i = 0; i < count; i++)
                    if (w[i] != value_at(from, begin + i))
                        fail_msg("%s: element %lld is %g, not %g", param[p].name,
                                 (long long)(begin + i), w[i], value_at(from, begin + i));
                assert_true(w[count] != w[count]); /* 0xff: not written to */
            }
    }
    tess_weights_close(weights);
}

/* Larger than what is turned round at a time; read in runs of a rank that holds a part of each row,
 * and of one that holds whole rows. */
static void case_large(void **state)
{
    (void)state;
    enum { ROWS = 2050, COLUMNS = 2051 };
    const struct tess_declare_param large = {.name = "large",
                                             WHOLE2(ROWS, COLUMNS),
                                             UNCUT,
                                             .flags = TESS_PARAM_TRANSPOSED,
                                             .source = -1};
    const struct tess_declare one = {.param = (struct tess_declare_param *)&large,
                                     .param_count = 1};
    struct tess_weights *weights = NULL;
    size_t bytes = 0;
    char *header = tess_weights_header(&one, &bytes);
    FILE *file = fopen(scratch_file, "wb");
    static float row[ROWS], w[3 * COLUMNS];
    assert_non_null(header);
    assert_non_null(file);
    assert_int_equal(fwrite(header, 1, bytes, file), bytes);
    free(header);
    for (int32_t c = 0; c < COLUMNS; c++) {
        for (int32_t r = 0; r < ROWS; r++)
            row[r] = (float)(r * COLUMNS + c); /* below 2^24: exact */
        assert_int_equal(fwrite(row, sizeof(row), 1, file), 1);
    }
    fclose(file);
    assert_int_equal(tess_weights_open(scratch_file, &weights), TESS_OK);
    assert_int_equal(tess_weights_match(weights, &one), TESS_OK);
    for (int32_t width = 0; width < 2; width++) {
        const int64_t first = width == 0 ? COLUMNS / 3 : 0;
        const int64_t count = width == 0 ? COLUMNS / 2 : 3 * COLUMNS;
        for (int64_t from = first; from + count <= (int64_t)ROWS * COLUMNS;
             from += width == 0 ? COLUMNS : count) {
            assert_int_equal(tess_weights_read(weights, 0, from, count, w), TESS_OK);
            for (int64_t i = 0; i < count; i++)
                if (w[i] != (float)(from + i))
                    fail_msg("element %lld is %g", (long long)(from + i), w[i]);
        }
    }
    tess_weights_close(weights);
}

/* ---- files of others ------------------------------------------------------------------------- */

#define TENSOR(name, dtype, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

/* A tied model of two parameters, and one of them twice. */
static const struct tess_declare_param tied[] = {
    {.name = "wte.weight", WHOLE2(4, 2), USED(0, 3), .source = -1},
    {.name = "transformer.ln_f.bias", .whole = {.rank = 1, .dim = {2}}, UNCUT, .source = -1},
    {.name = "lm_head.weight", WHOLE2(4, 2), USED(0, 3), .flags = TESS_PARAM_TIED, .source = 0},
};
static const struct tess_declare tied_declare = {.param = (struct tess_declare_param *)tied,
                                                 .param_count = 3};

/* Open and match a file of this header whose f32 values are 0, 1, 2, ..., but `copy_at` again. */
static enum tess_status match_file(const char *header, int32_t value_count, int32_t copy_at,
                                   int32_t *left_out)
{
    struct tess_weights *weights = NULL;
    FILE *file = fopen(scratch_file, "wb");
    const uint64_t length = strlen(header);
    assert_non_null(file);
    assert_int_equal(fwrite(&length, sizeof(length), 1, file), 1);
    assert_int_equal(fwrite(header, 1, length, file), length);
    for (int32_t i = 0; i < value_count; i++) {
        const float value = (float)(i >= copy_at ? i - copy_at : i);
        assert_int_equal(fwrite(&value, sizeof(value), 1, file), 1);
    }
    fclose(file);
    enum tess_status status = tess_weights_open(scratch_file, &weights);
    if (status == TESS_OK)
        status = tess_weights_match(weights, &tied_declare);
    if (status == TESS_OK) {
        float w[8] = {0};
        *left_out = tess_weights_left_out(weights);
        assert_int_equal(tess_weights_read(weights, 2, 0, 8, w), TESS_OK);
        assert_true(w[1] == 1 && w[5] == 5 && w[6] == 0);
    }
    tess_weights_close(weights);
    return status;
}

#define WTE  TENSOR("transformer.wte.weight", "F32", "[3,2]", "0", "24")
#define BIAS TENSOR("ln_f.bias", "F32", "[2]", "24", "32")

static void case_others(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        int32_t values, copy_at, left_out;
    } right[] = {
        {"{" WTE "," BIAS "}", 8, 8, 0},
        {"{" WTE "," BIAS "," TENSOR("lm_head.weight", "F32", "[3,2]", "32", "56") "}", 14, 8, 1},
        {"{" WTE "," BIAS "," TENSOR("h.11.attn.bias", "BOOL", "[1,1,2,2]", "32", "36") "," TENSOR(
             "transformer.h.0.attn.masked_bias", "F32", "[]", "36", "40") "}",
         10, 8, 2},
        {"{" WTE "," BIAS
         "," TENSOR("model.layers.3.self_attn.rotary_emb.inv_freq", "F32", "[3]", "32", "44") "}",
         11, 8, 1},
    };
    static const struct {
        const char *header, *phrase;
        int32_t values, copy_at;
    } wrong[] = {
        {"{" WTE "," BIAS "," TENSOR("lm_head.weight", "F32", "[3,2]", "32", "56") "}",
         "'lm_head.weight' and 'transformer.wte.weight' are one in the model and differ", 14, 9},
        {"{" WTE "," BIAS "," TENSOR("lm_head.weight", "F32", "[2,3]", "32", "56") "}",
         "'lm_head.weight' has shape [2, 3], the model's has [3, 2]", 14, 8},
        {"{" WTE "," BIAS "," TENSOR("lm_head.weight", "I32", "[3,2]", "32", "56") "}",
         "'lm_head.weight' has dtype I32", 14, 8},
        {"{" WTE "," BIAS "," TENSOR("wte.weight", "F32", "[3,2]", "32", "56") "}",
         "'wte.weight' is none of the model's", 14, 8},
        {"{" WTE "," BIAS "," TENSOR("h.x.attn.bias", "F32", "[2]", "32", "40") "}",
         "'h.x.attn.bias' is none of the model's", 10, 8},
        {"{" WTE "," BIAS "," TENSOR("h..attn.bias", "F32", "[2]", "32", "40") "}",
         "'h..attn.bias' is none of the model's", 10, 8},
        {"{" WTE "," BIAS "," TENSOR("h.0.attn.bias.more", "F32", "[2]", "32", "40") "}",
         "'h.0.attn.bias.more' is none of the model's", 10, 8},
        {"{" TENSOR("wte.weight", "F32", "[4,2]", "0", "32") "}",
         "'wte.weight' has shape [4, 2], the model's has [3, 2]", 8, 8},
        {"{" TENSOR("ln_f.bias", "F32", "[2]", "0", "8") "}", "no tensor 'wte.weight'", 2, 8},
    };
    int32_t left_out = 0;
    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        assert_int_equal(match_file(right[i].header, right[i].values, right[i].copy_at, &left_out),
                         TESS_OK);
        assert_int_equal(left_out, right[i].left_out);
    }
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(match_file(wrong[i].header, wrong[i].values, wrong[i].copy_at, &left_out),
                         TESS_ERR_DATA);
        if (strstr(tess_log_last_error(), wrong[i].phrase) == NULL)
            fail_msg("'%s' in: %s", wrong[i].phrase, tess_log_last_error());
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_layouts),
        cmocka_unit_test(case_large),
        cmocka_unit_test(case_others),
    };
    return cmocka_run_group_tests(cases, scratch_file_make, scratch_file_remove);
}
