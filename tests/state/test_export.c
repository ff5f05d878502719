/*
 * Weights for other programs: images channels first, adapters merged, in files of a given size and
 * in 16 bits; each compared, element by element, with what is known of the run's files. And weights
 * with channels first are read as they were.
 */
#include "state/export.h"

#include "base/half.h"
#include "harness/spawn.h"
#include "tessera/log.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/tessera_export_XXXXXX";

#define PARAM(text, number, ...)                                                                   \
    {                                                                                              \
        .name = text, .index = number, .whole = {__VA_ARGS__}, .shape = {__VA_ARGS__},             \
        .slice = {.axis = -1, .blocks = 1}, .source = -1                                           \
    }

/* 3 channels and windows of 3: its shape alone does not tell the order. */
static const struct tess_declare_param image[] = {
    PARAM("conv1.weight", 0, .rank = 4, .dim = {5, 3, 3, 3}),
    PARAM("conv1.bias", 1, .rank = 1, .dim = {5}),
    PARAM("conv2.weight", 2, .rank = 4, .dim = {4, 2, 3, 5}),
    PARAM("fc1.weight", 3, .rank = 2, .dim = {3, 6 * 4}),
    PARAM("fc2.weight", 4, .rank = 2, .dim = {8, 4}),
};
/* A layer and its adapter of rank 2; another layer without. */
static const struct tess_declare_param adapted[] = {
    PARAM("h.0.x.weight", 0, .rank = 2, .dim = {4, 3}),
    PARAM("h.0.x.bias", 1, .rank = 1, .dim = {4}),
    PARAM("h.0.x.lora_A.weight", 2, .rank = 2, .dim = {2, 3}),
    PARAM("h.0.x.lora_B.weight", 3, .rank = 2, .dim = {4, 2}),
    PARAM("h.1.x.weight", 4, .rank = 2, .dim = {4, 3}),
};
/* The same in GPT-2's files: [in, out]. */
static const struct tess_declare_param turned[] = {
    PARAM("h.0.x.weight", 0, .rank = 2, .dim = {3, 4}),
    PARAM("h.0.x.bias", 1, .rank = 1, .dim = {4}),
    PARAM("h.0.x.lora_A.weight", 2, .rank = 2, .dim = {2, 3}),
    PARAM("h.0.x.lora_B.weight", 3, .rank = 2, .dim = {4, 2}),
    PARAM("h.1.x.weight", 4, .rank = 2, .dim = {3, 4}),
};

static float value(int32_t param, int64_t at)
{
    return (float)(64 * (param + 1) + at);
}

/* A run's file: element `at` of parameter p is value(p, at). */
static struct tess_weights *open_run(const struct tess_declare_param *param, int32_t count)
{
    const struct tess_declare declare = {.param = (struct tess_declare_param *)(uintptr_t)param,
                                         .param_count = count};
    struct tess_weights *weights;
    size_t bytes;
    char *header = tess_weights_header(&declare, &bytes);
    FILE *file = fopen("run.safetensors", "wb");

    assert_non_null(file);
    assert_non_null(header);
    assert_int_equal(fwrite(header, 1, bytes, file), bytes);
    for (int32_t p = 0; p < count; p++)
        for (int64_t at = 0; at < tess_shape_count(&param[p].whole); at++) {
            const float x = value(p, at);

            assert_int_equal(fwrite(&x, sizeof(x), 1, file), 1);
        }
    free(header);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(tess_weights_open("run.safetensors", &weights), TESS_OK);
    return weights;
}

/* Values of a tensor in a file of the export; returns how many. */
static size_t read_tensor(const char *path, const char *name, float *x, size_t most)
{
    FILE *file = fopen(path, "rb");
    uint64_t length;
    json_int_t begin, end;
    const char *dtype;

    if (file == NULL)
        fail_msg("no %s", path);
    assert_int_equal(fread(&length, sizeof(length), 1, file), 1);
    char *text = malloc(length);
    assert_int_equal(fread(text, 1, length, file), length);
    json_t *header = json_loadb(text, length, 0, NULL);
    free(text);
    if (json_object_get(header, name) == NULL)
        fail_msg("%s has no %s", path, name);
    assert_int_equal(json_unpack(json_object_get(header, name), "{s:s, s:[I, I]}", "dtype", &dtype,
                                 "data_offsets", &begin, &end),
                     0);
    const bool wide = strcmp(dtype, "F32") == 0, f16 = strcmp(dtype, "F16") == 0;
    const size_t count = (size_t)(end - begin) / (wide ? 4 : 2);
    assert_true(count <= most);
    assert_int_equal(fseek(file, (long)(8 + length) + (long)begin, SEEK_SET), 0);
    for (size_t i = 0; i < count; i++) {
        uint16_t low;

        if (wide) {
            assert_int_equal(fread(&x[i], sizeof(x[i]), 1, file), 1);
            continue;
        }
        assert_int_equal(fread(&low, sizeof(low), 1, file), 1);
        x[i] = f16 ? tess__f32_of_f16(low) : tess__f32_of_bf16(low);
    }
    json_decref(header);
    fclose(file);
    return count;
}

static void case_images(void **state)
{
    const struct tess_export export = {
        .out = "torch", .file_most = 1 << 20, .dtype = TESS_F32, .images = true};
    const struct tess_declare declare = {.param = (struct tess_declare_param *)(uintptr_t)image,
                                         .param_count = 5};
    struct tess_weights *weights = open_run(image, 5);
    float x[512];

    (void)state;
    assert_int_equal(mkdir("torch", 0777), 0);
    assert_int_equal(tess_export_write(weights, &export), TESS_OK);
    tess_weights_close(weights);
    /* conv2 [out 4, height 2, width 3, in 5] and [out, in, height, width]. */
    read_tensor("torch/model-00001-of-00001.safetensors", "conv2.weight", x, 512);
    for (int64_t o = 0; o < 4; o++)
        for (int64_t c = 0; c < 5; c++)
            for (int64_t h = 0; h < 2; h++)
                for (int64_t w = 0; w < 3; w++)
                    assert_true(x[((o * 5 + c) * 2 + h) * 3 + w] ==
                                value(2, ((o * 2 + h) * 3 + w) * 5 + c));
    /* fc1 reads 6 places of conv2's 4 channels. */
    read_tensor("torch/model-00001-of-00001.safetensors", "fc1.weight", x, 512);
    for (int64_t o = 0; o < 3; o++)
        for (int64_t c = 0; c < 4; c++)
            for (int64_t p = 0; p < 6; p++)
                assert_true(x[o * 24 + c * 6 + p] == value(3, o * 24 + p * 4 + c));
    read_tensor("torch/model-00001-of-00001.safetensors", "fc2.weight", x, 512);
    for (int64_t i = 0; i < 32; i++)
        assert_true(x[i] == value(4, i));

    /* Read again, whole and in pieces, they are what they were. */
    assert_int_equal(tess_weights_open("torch", &weights), TESS_OK);
    assert_int_equal(tess_weights_match(weights, &declare), TESS_OK);
    for (int32_t p = 0; p < 5; p++)
        for (int64_t step = 1, count = tess_shape_count(&image[p].whole); step < 100; step += 33)
            for (int64_t at = 0; at < count; at += step) {
                const int64_t now = step < count - at ? step : count - at;

                assert_int_equal(tess_weights_read(weights, p, at, now, x), TESS_OK);
                for (int64_t i = 0; i < now; i++)
                    assert_true(x[i] == value(p, at + i));
            }
    tess_weights_close(weights);
}

/* Scale 0.5: sums of whole numbers and halves, exact in f32. */
static void check_merged(const struct tess_declare_param *param, bool gpt2, const char *out)
{
    const struct tess_export export = {
        .out = out, .file_most = 48, .dtype = TESS_F32, .scale = 0.5, .gpt2 = gpt2};
    struct tess_weights *weights = open_run(param, 5);
    float x[16];

    assert_int_equal(mkdir(out, 0777), 0);
    assert_int_equal(tess_export_write(weights, &export), TESS_OK);
    char path[128];
    snprintf(path, sizeof(path), "%s/model-00001-of-00003.safetensors", out);
    assert_int_equal(read_tensor(path, "h.0.x.weight", x, 16), 12);
    for (int64_t o = 0; o < 4; o++)
        for (int64_t i = 0; i < 3; i++) {
            const int64_t at = gpt2 ? i * 4 + o : o * 3 + i;
            double sum = 0;

            for (int64_t r = 0; r < 2; r++)
                sum += (double)value(3, o * 2 + r) * (double)value(2, r * 3 + i);
            assert_true((double)x[at] == (double)value(0, at) + 0.5 * sum);
        }
    snprintf(path, sizeof(path), "%s/model-00003-of-00003.safetensors", out);
    assert_int_equal(read_tensor(path, "h.1.x.weight", x, 16), 12);
    for (int64_t at = 0; at < 12; at++)
        assert_true(x[at] == value(4, at));
    tess_weights_close(weights);
}

static void case_merged(void **state)
{
    (void)state;
    check_merged(adapted, false, "merged");
    check_merged(turned, true, "merged2");
}

static void case_adapters(void **state)
{
    const struct tess_export export = {
        .out = "adapters", .dtype = TESS_BF16, .adapters = true, .gpt2 = true};
    struct tess_weights *weights = open_run(turned, 5);
    float x[16];

    (void)state;
    assert_int_equal(mkdir("adapters", 0777), 0);
    assert_int_equal(tess_export_write(weights, &export), TESS_OK);
    tess_weights_close(weights);
    assert_int_equal(read_tensor("adapters/adapter_model.safetensors",
                                 "base_model.model.transformer.h.0.x.lora_B.weight", x, 16),
                     8);
    for (int64_t at = 0; at < 8; at++)
        assert_true(x[at] == tess__f32_of_bf16(tess__bf16_of_f32(value(3, at))));

    /* Adapters that do not fit their layer, and a run without any. */
    struct tess_declare_param wrong[5];
    memcpy(wrong, adapted, sizeof(wrong));
    wrong[2].whole.dim[1] = wrong[2].shape.dim[1] = 5;
    weights = open_run(wrong, 5);
    const struct tess_export merged = {.out = "adapters", .file_most = 1 << 20, .scale = 1};
    assert_int_equal(tess_export_write(weights, &merged), TESS_ERR_DATA);
    assert_non_null(strstr(tess_log_last_error(), "the adapter of 'h.0.x.weight' does not fit it"));
    tess_weights_close(weights);
    weights = open_run(image, 5);
    assert_int_equal(tess_export_write(weights, &export), TESS_ERR_DATA);
    assert_non_null(strstr(tess_log_last_error(), "there are no adapters to export"));
    tess_weights_close(weights);
}

static int enter(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL || chdir(folder) != 0 ? -1 : 0;
}

static int leave(void **state)
{
    (void)state;
    return chdir("/") != 0 ? -1 : spawn_remove(folder);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_images), cmocka_unit_test(case_merged),
                                       cmocka_unit_test(case_adapters)};

    return cmocka_run_group_tests(cases, enter, leave);
}
