/* Device profiles: seconds by formula, the built-in ones, and files, hostile ones too. */
#include "base/file.h"
#include "harness/scratch_file.h"
#include "predict/profile.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_built_in(void **state)
{
    int32_t count = 0;
    (void)state;
    for (const char *name; (name = tess_profile_name(count)) != NULL; count++) {
        const struct tess_profile *profile = tess_profile_find(name);
        assert_non_null(profile);
        assert_string_equal(profile->name, name);
        assert_int_equal(tess_profile_check(profile), TESS_OK);
        assert_true(profile->source[0] != '\0' && !profile->measured);
    }
    assert_int_equal(count, 8);
    assert_null(tess_profile_find("h100"));
    assert_null(tess_profile_name(-1));
}

/* Tiles by hand: 4096^3 on 132 units is 32 x 16 tiles of 128 x 256, 512 tiles in 4 waves. */
static void test_product(void **state)
{
    const struct tess_profile *h100 = tess_profile_find("h100-80");
    (void)state;
    const double rate = h100->flops_per_s[TESS_PEAK_16] * h100->efficiency[TESS_PEAK_16] / 132;
    const double by_hand = h100->start_s + 4 * 2 * 128.0 * 256 * (4096 + h100->half_k) / rate;
    const double quarter =
        h100->start_s + 16 * 2 * 64.0 * 128 * (4096 + h100->half_k) / (0.75 * rate);
    assert_true(by_hand < quarter);
    assert_true(
        fabs(tess_profile_product_s(h100, TESS_PEAK_16, 4096, 4096, 4096, 3 * 2 * 4096.0 * 4096) -
             by_hand) < 1e-12);
    /* A narrow one takes as long as reading its weights. */
    const double bytes = 2.0 * 8192 * 8192;
    assert_true(tess_profile_product_s(h100, TESS_PEAK_16, 1, 8192, 8192, bytes) ==
                tess_profile_pass_s(h100, bytes));
    /* Types that a device does not have run as the next wider one. */
    const struct tess_profile *a100 = tess_profile_find("a100-80");
    assert_true(tess_profile_product_s(a100, TESS_PEAK_FP8, 4096, 4096, 4096, 0) ==
                tess_profile_product_s(a100, TESS_PEAK_16, 4096, 4096, 4096, 0));
}

/* The line through the logarithms of three measurements of one chip, as profile_table.c has it. */
static void test_power_limit(void **state)
{
    static const double watt[] = {700, 400, 350}, tflops[] = {821.2, 488.5, 499.5};
    const struct tess_profile *full = tess_profile_find("h100-80");
    const struct tess_profile *limited = tess_profile_find("h100-96");
    double x = 0, y = 0, xx = 0, xy = 0;
    (void)state;
    for (int i = 0; i < 3; i++) {
        x += log(watt[i]) / 3;
        y += log(tflops[i]) / 3;
    }
    for (int i = 0; i < 3; i++) {
        xx += (log(watt[i]) - x) * (log(watt[i]) - x);
        xy += (log(watt[i]) - x) * (log(tflops[i]) - y);
    }
    const double share = pow(500.0 / 700, xy / xx);
    const double of_16 = limited->efficiency[TESS_PEAK_16] / full->efficiency[TESS_PEAK_16];
    const double of_attention = limited->attention_forward / full->attention_forward;
    assert_true(fabs(xy / xx - 0.78) < 0.005);
    assert_true(fabs(of_16 - share) < 0.005 && fabs(of_attention - share) < 0.005);
    assert_true(fabs(limited->bytes_per_s / full->bytes_per_s - 2.4 / 3.35) < 1e-9);
}

/* Two ranks of two threads on one core have a quarter of it for each thread; and no more than half
 * of the memory's rate each. */
static void test_share(void **state)
{
    struct tess_profile cpu = *tess_profile_find("cpu");
    (void)state;
    cpu.cores = 1;
    cpu.bytes_per_s = 8e9;
    cpu.host_bytes_per_s = 6e9;
    const struct tess_profile share = tess_profile_share(&cpu, 2, 2);
    assert_true(share.flops_per_s[TESS_PEAK_F32] == cpu.flops_per_s[TESS_PEAK_F32] / 2);
    assert_true(share.bytes_per_s == 3e9);
    assert_true(tess_profile_share(&cpu, 1, 1).bytes_per_s == 6e9);
    cpu.cores = 2;
    assert_true(tess_profile_share(&cpu, 1, 1).start_s == cpu.start_s);
    const struct tess_profile *gpu = tess_profile_find("a100-40");
    assert_true(tess_profile_share(gpu, 512, 1).bytes_per_s == gpu->bytes_per_s);
}

/* What is not in the shared cache any more costs more: where ranks touch more than it keeps, and of
 * the rest by its age. */
static void test_shared_cache(void **state)
{
    struct tess_profile cpu = *tess_profile_find("cpu");
    (void)state;
    assert_true(tess_profile_far_s(&cpu, 1e12, 1) == 0);
    assert_true(tess_profile_lost_s(&cpu.cache_one, 1e12) == 0);
    cpu.old_byte_s = 4e-11;
    cpu.old_age_s = 0.1;
    assert_true(tess_profile_far_s(&cpu, 1e8, 0) == 0);
    assert_true(fabs(tess_profile_far_s(&cpu, 1e8, 0.1) - 4e-11 * (1 - exp(-1))) < 1e-20);
    assert_true(fabs(tess_profile_far_s(&cpu, 1e8, 100) - 4e-11) < 1e-20);
    cpu.cache_one.share_bytes = 1e8;
    cpu.cache_one.gone_bytes = 3e8;
    cpu.cache_one.lost_byte_s = 5e-11;
    assert_true(tess_profile_lost_s(&cpu.cache_one, 1e8) == 0);
    assert_true(fabs(tess_profile_lost_s(&cpu.cache_one, 2e8) - 2.5e-11) < 1e-20);
    assert_true(tess_profile_lost_s(&cpu.cache_one, 1e9) == 5e-11);
    assert_true(fabs(tess_profile_far_s(&cpu, 2e8, 100) - (2.5e-11 + 2e-11)) < 1e-20);
    assert_true(tess_profile_far_s(&cpu, 1e9, 100) == 5e-11);
}

/* Each busy core has its part of what all of them were measured with; without that, of one. */
static void test_busy_cores(void **state)
{
    struct tess_profile cpu = *tess_profile_find("cpu");
    (void)state;
    cpu.cores = 5;
    cpu.cache_one = (struct tess_profile_cache){1e8, 3e8, 4e-11};
    assert_true(tess_profile_cache_of(&cpu, 5).share_bytes == 1e8);
    cpu.cache_all = (struct tess_profile_cache){2e8, 7e8, 8e-11};
    const struct tess_profile_cache one = tess_profile_cache_of(&cpu, 1);
    const struct tess_profile_cache three = tess_profile_cache_of(&cpu, 3);
    const struct tess_profile_cache many = tess_profile_cache_of(&cpu, 64);
    assert_memory_equal(&one, &cpu.cache_one, sizeof(one));
    assert_true(fabs(three.share_bytes - 1.5e8) < 1 && fabs(three.gone_bytes - 5e8) < 1);
    assert_true(fabs(three.lost_byte_s - 6e-11) < 1e-20);
    assert_true(fabs(many.gone_bytes - 7e8) < 1 && fabs(many.lost_byte_s - 8e-11) < 1e-20);
}

/* A point four octaves away counts as much as the formula; along a layer's rows it is half as far.
 */
static void test_rows(void **state)
{
    static const struct {
        enum tess_product product;
        int rows;
    } known[] = {{TESS_PRODUCT_FORWARD, 0},
                 {TESS_PRODUCT_DATA, 0},
                 {TESS_PRODUCT_CONV_WEIGHT, 2},
                 {TESS_PRODUCT_ATTENTION_BACKWARD, 0}};
    struct tess_profile cpu = *tess_profile_find("cpu");
    (void)state;
    cpu.start_s = 0;
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        cpu.product[known[i].product][TESS_WIDTH_32] =
            (struct tess_product_rate){.flops_per_s = 2e9, .point[0] = {{6, 6, 6}, 2}};
        for (int axis = 0; axis < 3; axis++) {
            double size[3] = {64, 64, 64};
            size[axis] *= 16;
            const double twice = log2(tess_profile_layer_s(&cpu, known[i].product, TESS_PEAK_F32,
                                                           size[0], size[1], size[2], 0) /
                                      (16 * 64 * 64 * 64 / 1e9));
            assert_true(axis == known[i].rows ? twice > 0.9 && twice < 1
                                              : fabs(twice - 0.5) < 1e-9);
        }
    }
}

/* Backward of data computes the input's positions, in f32 in whole tiles: 26 x 26 as 28 x 28. */
static void test_conv_rows(void **state)
{
    static const struct {
        enum tess_dtype dtype;
        int64_t side;
        int32_t window, stride, padding;
        int64_t forward, data; /* sides of what is computed */
    } known[] = {
        {TESS_F32, 26, 3, 1, 0, 24, 28},  {TESS_F32, 28, 3, 1, 1, 28, 28},
        {TESS_BF16, 26, 3, 1, 0, 24, 26}, {TESS_F32, 13, 5, 1, 0, 9, 13},
        {TESS_F32, 16, 3, 2, 1, 8, 8},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        const struct tess_op_desc desc = {.kind = TESS_OP_CONV2D,
                                          .dtype = known[i].dtype,
                                          .rows = 5,
                                          .height = known[i].side,
                                          .width = known[i].side + 28,
                                          .window = known[i].window,
                                          .stride = known[i].stride,
                                          .padding = known[i].padding};
        const int64_t more = 28 / known[i].stride;
        const int64_t forward = 5 * known[i].forward * (known[i].forward + more);
        const int64_t data = 5 * known[i].data * (known[i].data + more);
        assert_int_equal(tess_profile_conv_rows(&desc, TESS_PRODUCT_CONV_FORWARD), forward);
        assert_int_equal(tess_profile_conv_rows(&desc, TESS_PRODUCT_CONV_WEIGHT), forward);
        assert_int_equal(tess_profile_conv_rows(&desc, TESS_PRODUCT_CONV_DATA), data);
    }
}

/* Measured after 1 and 10 ms; between them and beyond by the power through both. */
static void test_lag(void **state)
{
    struct tess_profile cpu = *tess_profile_find("cpu");
    (void)state;
    assert_true(tess_profile_lag_s(&cpu, 2, 1) == 0);
    cpu.turn_lag_short_s = 1e-4;
    cpu.turn_lag_long_s = 4e-4;
    assert_true(tess_profile_lag_s(&cpu, 1, 1) == 0 && tess_profile_lag_s(&cpu, 2, 0) == 0);
    assert_true(fabs(tess_profile_lag_s(&cpu, 2, 1e-3) - 1e-4) < 1e-16);
    assert_true(fabs(tess_profile_lag_s(&cpu, 2, 1e-2) - 4e-4) < 1e-16);
    assert_true(fabs(tess_profile_lag_s(&cpu, 2, 1e-1) - 16e-4) < 1e-15);
    assert_true(fabs(tess_profile_lag_s(&cpu, 4, 1e-3) - 2e-4) < 1e-16);
    cpu.lag_short_s = cpu.lag_long_s = 8e-5;
    assert_true(fabs(tess_profile_lag_s(&cpu, 1, 1e-3) - 8e-5) < 1e-16);
    assert_true(fabs(tess_profile_lag_s(&cpu, 2, 1e-3) - 1e-4) < 1e-16);
    assert_true(fabs(tess_profile_lag_s(&cpu, 4, 1e-3) - 12e-5) < 1e-16);
    cpu.lag_long_s = 1; /* of neighbours that slow down one core after the other */
    assert_true(fabs(tess_profile_lag_s(&cpu, 4, 1e-2) - 1) < 1e-12);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void test_file(void **state)
{
    const char *path = scratch_file;
    (void)state;
    struct tess_profile wrote = *tess_profile_find("b200-180"), read;
    snprintf(wrote.source, sizeof(wrote.source), "a \"quoted\" \\ text: # no comment");
    wrote.measured = true;
    wrote.launch_s = 1.0 / 3;
    assert_int_equal(tess_profile_write(&wrote, path), TESS_OK);
    memset(&read, 0xff, sizeof(read));
    assert_int_equal(tess_profile_read(path, &read), TESS_OK);
    assert_string_equal(read.name, wrote.name);
    assert_string_equal(read.kernel, wrote.kernel);
    assert_string_equal(read.source, wrote.source);
    assert_true(read.measured);
    assert_memory_equal(&read.memory_bytes, &wrote.memory_bytes,
                        sizeof(wrote) - offsetof(struct tess_profile, memory_bytes));
    wrote.product[TESS_PRODUCT_DATA][TESS_WIDTH_16].point[0] =
        (struct tess_product_point){{9, 3, 10}, 1.25};
    wrote.product[TESS_PRODUCT_DATA][TESS_WIDTH_16].point[1] =
        (struct tess_product_point){{0, 4, 2}, 0.5};
    assert_int_equal(tess_profile_write(&wrote, path), TESS_OK);
    assert_int_equal(tess_profile_read(path, &read), TESS_OK);
    assert_memory_equal(read.product, wrote.product, sizeof(wrote.product));
    wrote.bytes_per_s = NAN;
    assert_int_equal(tess_profile_write(&wrote, path), TESS_ERR_USAGE);
}

/* Each is refused, by reading a good file up to a place and these words in the place of the rest.
 */
static void test_hostile(void **state)
{
    static const char *const text[] = {
        "",
        "name: x\n",
        "kernel: cuda\n",
        "kernel: cuda\nbytes-per-s: 1e12\n",
        "kernel: [cuda]\n",
        "kernel: {a: 1}\n",
        "\xff\xfe\x00",
        "bytes_per_s: fast\n",
        "bytes_per_s: -1\n",
        "bytes_per_s: nan\n",
        "bytes_per_s: 1e400\n",
        "units: 0\n",
        "units: 1e99\n",
        "no-such-key: 1\n",
        "kernel: cpu\nproduct-data-32-points: \"8 8 8\"\n",
        "kernel: cpu\nproduct-data-32-points: \"8 8 8 1 2\"\n",
        "kernel: cpu\nproduct-data-32-points: \"8 0 8 1\"\n",
        "kernel: cpu\nproduct-data-32-points: \"8 8 8 nan\"\n",
        "kernel: cpu\nproduct-data-32-points: \"8 8 8 1, 8 8 inf 1\"\n",
        "kernel: a-kernel-whose-name-is-longer-than-there-is-room-for\n",
    };
    static const char good[] =
        "kernel: cuda\nbytes-per-s: 1e12\nflops-per-s-f32: 1e13\nefficiency-f32: 1\nunits: %s\n"
        "tile-m: 1\ntile-n: 1\nattention-forward: 1\nattention-backward: %s\n";
    static const char *const number[][2] = {{"1.5", "1"}, {"1", "0"}, {"1", "2"}, {"0", "1"}};
    const char *path = scratch_file;
    char words[512];
    struct tess_profile profile;
    (void)state;
    for (size_t i = 0; i < sizeof(text) / sizeof(*text); i++) {
        assert_int_equal(tess_file_write(path, text[i], strlen(text[i])), TESS_OK);
        assert_int_equal(tess_profile_read(path, &profile), TESS_ERR_USAGE);
    }
    for (size_t i = 0; i < sizeof(number) / sizeof(*number); i++) {
        snprintf(words, sizeof(words), good, number[i][0], number[i][1]);
        assert_int_equal(tess_file_write(path, words, strlen(words)), TESS_OK);
        assert_int_equal(tess_profile_read(path, &profile), TESS_ERR_USAGE);
    }
    snprintf(words, sizeof(words), good, "1", "1");
    for (size_t length = 0; length <= strlen(words); length++) { /* cut anywhere */
        assert_int_equal(tess_file_write(path, words, length), TESS_OK);
        const enum tess_status status = tess_profile_read(path, &profile);
        assert_true(status == TESS_OK || status == TESS_ERR_USAGE);
        if (length == strlen(words))
            assert_int_equal(status, TESS_OK);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(tess_profile_read(path, &profile), TESS_ERR_USAGE);
}

/* In the user's cache, where one can be written; another place is found without being made. */
static void test_kept(void **state)
{
    char path[512], other[512];
    (void)state;
    assert_int_equal(setenv("XDG_CACHE_HOME", "/proc/none", 1), 0);
    assert_true(tess_profile_kept(false, path, sizeof(path)));
    assert_non_null(strstr(path, "/proc/none/tessera/processor-"));
    assert_false(tess_profile_kept(true, other, sizeof(other)));
    assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
    assert_int_equal(unsetenv("HOME"), 0);
    assert_false(tess_profile_kept(false, path, sizeof(path)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_built_in),     cmocka_unit_test(test_product),
        cmocka_unit_test(test_power_limit),  cmocka_unit_test(test_share),
        cmocka_unit_test(test_shared_cache), cmocka_unit_test(test_busy_cores),
        cmocka_unit_test(test_rows),         cmocka_unit_test(test_conv_rows),
        cmocka_unit_test(test_lag),          cmocka_unit_test(test_file),
        cmocka_unit_test(test_hostile),      cmocka_unit_test(test_kept),
    };
    return cmocka_run_group_tests(tests, scratch_file_make, scratch_file_remove);
}
