/*
 * Reading safetensors files that may be anything: what is right is read as it is, what is wrong is
 * refused with the tensor's name, and no file cut short anywhere is taken for a whole one.
 */
#include "harness/scratch_file.h"
#include "state/weights.h"

#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A model of two parameters: "a" [2, 3] and "b" [4]. */
static struct tess_declare_param param[] = {
    {.name = "a", .whole = {.rank = 2, .dim = {2, 3}}, .slice = {.axis = -1}, .source = -1},
    {.name = "b", .whole = {.rank = 1, .dim = {4}}, .slice = {.axis = -1}, .source = -1},
};
static const struct tess_declare declare = {.param = param, .param_count = 2};

static void write_file(const void *bytes, size_t count)
{
    FILE *file = fopen(scratch_file, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

/* A file with this header and so many bytes of values, each its own number. Returns its length. */
static size_t write_with(const char *header, size_t value_bytes, unsigned char *bytes)
{
    size_t length = strlen(header);
    memset(bytes, 0, 8);
    bytes[0] = (unsigned char)length;
    bytes[1] = (unsigned char)(length >> 8);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < value_bytes; i++)
        bytes[8 + length + i] = (unsigned char)i;
    write_file(bytes, 8 + length + value_bytes);
    return 8 + length + value_bytes;
}

static enum tess_status open_and_match(void)
{
    struct tess_weights *weights = NULL;
    enum tess_status status = tess_weights_open(scratch_file, &weights);
    if (status == TESS_OK)
        status = tess_weights_match(weights, &declare);
    tess_weights_close(weights);
    return status;
}

/* What the writer's header describes is what the reader finds. */
static void case_round_trip(void **state)
{
    (void)state;
    float value[10], part[10];
    unsigned char file[1024];
    size_t bytes = 0;
    struct tess_weights *weights = NULL;
    char *header = tess_weights_header(&declare, &bytes);
    assert_non_null(header);
    assert_int_equal(bytes % 8, 0);
    for (int i = 0; i < 10; i++)
        value[i] = 0.5f * (float)i - 1;
    memcpy(file, header, bytes);
    memcpy(file + bytes, value, sizeof(value));
    free(header);
    write_file(file, bytes + sizeof(value));
    assert_int_equal(tess_weights_open(scratch_file, &weights), TESS_OK);
    assert_int_equal(tess_weights_match(weights, &declare), TESS_OK);
    assert_int_equal(tess_weights_read(weights, 0, 0, 6, part), TESS_OK);
    assert_memory_equal(part, value, 6 * sizeof(*part));
    assert_int_equal(tess_weights_read(weights, 1, 1, 2, part), TESS_OK);
    assert_memory_equal(part, value + 7, 2 * sizeof(*part));
    /* Shorter since it was opened. */
    assert_int_equal(truncate(scratch_file, (off_t)(bytes + 30)), 0);
    assert_int_equal(tess_weights_read(weights, 1, 0, 4, part), TESS_ERR_IO);
    tess_weights_close(weights);

    /* Cut anywhere it is not a file of weights. */
    for (size_t cut = 0; cut < bytes + sizeof(value); cut++) {
        write_file(file, cut);
        if (open_and_match() != TESS_ERR_DATA)
            fail_msg("cut at %zu bytes", cut);
    }
}

/* 16-bit types are widened, in whatever order the tensors lie. */
static void case_half(void **state)
{
    (void)state;
    static const char header[] =
        "{\"b\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]},"
        "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]}}";
    static const uint16_t value[10] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x3f80,
                                       0xbf80, 0x4000, 0x0000, 0x8000, 0x4049};
    static const float wide[10] = {1, -2, 0x1p-24f, 65504, 1, -1, 2, 0, -0.0f, 3.140625f};
    unsigned char file[512];
    float part[6];
    struct tess_weights *weights = NULL;
    size_t bytes = write_with(header, sizeof(value), file);
    memcpy(file + bytes - sizeof(value), value, sizeof(value));
    write_file(file, bytes);
    assert_int_equal(tess_weights_open(scratch_file, &weights), TESS_OK);
    assert_int_equal(tess_weights_match(weights, &declare), TESS_OK);
    assert_int_equal(tess_weights_read(weights, 1, 0, 4, part), TESS_OK);
    assert_memory_equal(part, wide, 4 * sizeof(*part));
    assert_int_equal(tess_weights_read(weights, 0, 0, 6, part), TESS_OK);
    assert_memory_equal(part, wide + 4, 6 * sizeof(*part));
    tess_weights_close(weights);
}

#define A(dtype, shape, begin, end)                                                                \
    "\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"
#define B(shape, begin, end)                                                                       \
    "\"b\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void case_refused(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t value_bytes;
        const char *phrase;
    } wrong[] = {
        {"[1, 2]", 0, "no JSON object"},
        {"{\"a\":3}", 0, "'a' has dtype nothing"},
        {"{" A("I3", "[6]", "0", "6") "}", 6, "dtype I3"},
        {"{" A("I8", "[6]", "0", "6") "}", 6, "dtype I8"},
        {"{" A("F64", "[2,3]", "0", "24") "}", 24, "which its shape and dtype do not"},
        {"{" A("F32", "[2,-3]", "0", "24") "}", 24, "no shape"},
        {"{" A("F32", "[4294967296,4294967296]", "0", "24") "}", 24, "no shape"},
        {"{" A("F32", "7", "0", "24") "}", 24, "no shape"},
        {"{" A("F32", "[2,3]", "0", "\"24\"") "}", 24, "no data_offsets"},
        {"{" A("F32", "[2,3]", "24", "0") "}", 24, "no data_offsets"},
        {"{" A("F32", "[2,3]", "0", "20") "}", 20, "which its shape and dtype do not"},
        {"{" A("F32", "[2,3]", "4", "28") "," B("[4]", "28", "44") "}", 44, "begins at byte 4"},
        {"{" A("F32", "[2,3]", "0", "24") "," B("[4]", "20", "36") "}", 36, "begins at byte 20"},
        {"{" A("F32", "[2,3]", "0", "24") "," B("[4]", "24", "40") "}", 44, "cut short?"},
        {"{" A("F32", "[2,3]", "0", "24") "," A("F32", "[2,3]", "0", "24") "}", 24, "duplicate"},
        {"{" A("F32", "[2,3]", "0", "24") "}", 24, "no tensor 'b'"},
        {"{" A("F32", "[3,2]", "0", "24") "," B("[4]", "24", "40") "}", 40,
         "'a' has shape [3, 2], the model's has [2, 3]"},
        {"{" A("F32", "[6]", "0", "24") "," B("[4]", "24", "40") "}", 40, "'a' has shape [6]"},
        {"{" A("F32", "[2,3]", "0", "24") "," B(
             "[4]", "24", "40") ",\"c\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[40,44]}}",
         44, "'c' is none of the model's"},
    };
    unsigned char file[1024];
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_with(wrong[i].header, wrong[i].value_bytes, file);
        assert_int_equal(open_and_match(), TESS_ERR_DATA);
        if (strstr(tess_log_last_error(), wrong[i].phrase) == NULL)
            fail_msg("'%s' in: %s", wrong[i].phrase, tess_log_last_error());
    }
    /* Lengths of the header that no file has. */
    memset(file, 0xff, 64);
    write_file(file, 64);
    assert_int_equal(open_and_match(), TESS_ERR_DATA);
    unlink(scratch_file);
    assert_int_equal(open_and_match(), TESS_ERR_IO);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_round_trip),
        cmocka_unit_test(case_half),
        cmocka_unit_test(case_refused),
    };
    return cmocka_run_group_tests(cases, scratch_file_make, scratch_file_remove);
}
