/* From measurements to a profile: made-up ones of a known processor, and, with the word "measure",
 * those of this one. */
#include "base/clock.h"
#include "harness/scratch_file.h"
#include "kernel_open.h"
#include "predict/calibrate_op.h"
#include "tessera/registry.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static const struct tess_profile known = {
    .name = "known",
    .kernel = "ref",
    .start_s = 3e-7,
    .bytes_per_s = 9e9,
    .cache_bytes = 3e6,
    .cache_bytes_per_s = 4e10,
    .element_s = 7e-10,
    .work_s[0] = {4e-10, 9e-10},
    .far_work_s[0] = {5e-10, 11e-10},
    .cores = 4,
    .flops_per_s = {6e10, 0, 3e10, 0},
    .efficiency = {1, 1, 1, 1},
    .units = 1,
    .tile_m = 1,
    .tile_n = 1,
    .half_m = 7,
    .half_n = 11,
    .half_k = 40,
    .attention_forward = 0.4,
    .attention_backward = 0.3,
    .product = {{{6e10, 7, 11, 40, {{{0}, 0}}}, {3e10, 7, 11, 40, {{{0}, 0}}}},
                {{0}, {0}},
                {{2e10, 3, 30, 400, {{{0}, 0}}}, {0}}},
    .attention_half = 90};

static struct tess_sample sample[96];
static int32_t samples;

static void add(enum tess_sample_kind kind, enum tess_peak_type type, double a, double b, double c,
                double bytes)
{
    struct tess_sample *here = &sample[samples++];
    *here = (struct tess_sample){.kind = kind, .type = type, .size = {a, b, c}, .bytes = bytes};
    here->seconds = tess_sample_predict(&known, here);
}

/* Weight gradients, which are slower and need longer sums. */
static void add_weight(double m, double n, double k)
{
    add(TESS_SAMPLE_PRODUCT, TESS_PEAK_F32, m, n, k, 0);
    struct tess_sample *here = &sample[samples - 1];
    here->which = TESS_PRODUCT_WEIGHT;
    here->seconds = tess_sample_predict(&known, here);
}

static void add_all(void)
{
    samples = 0;
    for (double bytes = 192; bytes < 1e8; bytes *= 4)
        add(TESS_SAMPLE_PASS, TESS_PEAK_F32, 0, 0, 0, bytes);
    for (int type = 0; type < 2; type++) {
        const enum tess_peak_type of = type == 0 ? TESS_PEAK_F32 : TESS_PEAK_16;
        add(TESS_SAMPLE_WORK, of, TESS_PROFILE_NEAR, 0, 0, 0);
        add(TESS_SAMPLE_WORK, of, TESS_PROFILE_FAR, 0, 0, 0);
    }
    for (double small = 16; small <= 256; small *= 4) {
        add(TESS_SAMPLE_PRODUCT, TESS_PEAK_F32, small, 512, 512, 0);
        add(TESS_SAMPLE_PRODUCT, TESS_PEAK_F32, 512, small, 512, 0);
        add(TESS_SAMPLE_PRODUCT, TESS_PEAK_F32, 512, 512, small, 0);
        add(TESS_SAMPLE_PRODUCT, TESS_PEAK_F32, 4 * small, 4 * small, 4 * small, 0);
        add(TESS_SAMPLE_PRODUCT, TESS_PEAK_16, 4 * small, 4 * small, 4 * small, 0);
        add_weight(small, 512, 512);
        add_weight(512, small, 512);
        add_weight(512, 512, small);
        add_weight(4 * small, 4 * small, 4 * small);
    }
}

/* Begun far from it, the profile that comes out predicts what was measured. */
static void test_fit(void **state)
{
    struct tess_profile profile = known;
    (void)state;
    add_all();
    profile.start_s = 1e-7;
    profile.bytes_per_s = 5e9;
    profile.cache_bytes = 1e6;
    profile.cache_bytes_per_s = 1e10;
    memset(profile.work_s, 0, sizeof(profile.work_s));
    memset(profile.far_work_s, 0, sizeof(profile.far_work_s));
    memset(profile.product, 0, sizeof(profile.product));
    profile.flops_per_s[TESS_PEAK_F32] = profile.flops_per_s[TESS_PEAK_16] = 1e10;
    profile.half_m = profile.half_n = 4;
    profile.half_k = 16;
    tess_profile_fit(&profile, sample, samples);
    for (int32_t i = 0; i < samples; i++) {
        const double ratio = tess_sample_predict(&profile, &sample[i]) / sample[i].seconds;
        if (fabs(ratio - 1) > 0.02)
            print_error("sample %d of kind %d is off by %g\n", (int)i, (int)sample[i].kind, ratio);
        assert_true(fabs(ratio - 1) < 0.02);
    }
    /* A product of a size that was not measured. */
    for (int which = TESS_PRODUCT_FORWARD; which <= TESS_PRODUCT_WEIGHT; which += 2) {
        const double other =
            tess_profile_layer_s(&known, (enum tess_product)which, TESS_PEAK_F32, 100, 300, 200, 0);
        const double fitted = tess_profile_layer_s(&profile, (enum tess_product)which,
                                                   TESS_PEAK_F32, 100, 300, 200, 0);
        assert_true(fabs(fitted / other - 1) < 0.03);
    }
}

/* One size that takes longer than the formula has it is a point: it counts there and a little
 * around it, and not far away. */
static void test_points(void **state)
{
    struct tess_profile profile = known;
    (void)state;
    memset(profile.product, 0, sizeof(profile.product));
    add_all();
    int32_t slow = -1;
    for (int32_t i = 0; i < samples && slow < 0; i++)
        if (sample[i].kind == TESS_SAMPLE_PRODUCT && sample[i].which == TESS_PRODUCT_WEIGHT &&
            sample[i].size[0] == 16)
            slow = i;
    sample[slow].seconds *= 1.5;
    tess_profile_fit(&profile, sample, samples);
    const double *size = sample[slow].size;
    const double there = tess_profile_layer_s(&profile, TESS_PRODUCT_WEIGHT, TESS_PEAK_F32, size[0],
                                              size[1], size[2], 0);
    assert_true(fabs(there / sample[slow].seconds - 1) < 0.03);
    const double near = tess_profile_layer_s(&profile, TESS_PRODUCT_WEIGHT, TESS_PEAK_F32,
                                             size[0] + 3, size[1], size[2], 0);
    const double near_known = tess_profile_layer_s(&known, TESS_PRODUCT_WEIGHT, TESS_PEAK_F32,
                                                   size[0] + 3, size[1], size[2], 0);
    assert_true(near > 1.2 * near_known && near < 1.55 * near_known);
    const double far =
        tess_profile_layer_s(&profile, TESS_PRODUCT_WEIGHT, TESS_PEAK_F32, 1024, 1024, 1024, 0);
    const double far_known =
        tess_profile_layer_s(&known, TESS_PRODUCT_WEIGHT, TESS_PEAK_F32, 1024, 1024, 1024, 0);
    assert_true(fabs(far / far_known - 1) < 0.1);
}

/* Small arrays change places as long as a second cache may have them; those too large for that have
 * three, as long as they fit. */
static void test_far(void **state)
{
    static char memory[64];
    struct calibrate calibrate = {.memory = memory};
    static const struct {
        double bytes;
        int64_t places;
    } known_places[] = {{1 << 17, 15}, {5 << 20, 3}, {11 << 20, 2}, {20 << 20, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof(known_places) / sizeof(*known_places); i++) {
        const double bytes = known_places[i].bytes;
        calibrate.turn = 0;
        const float *first = calibrate_far(&calibrate, 2, bytes), *next = first;
        for (calibrate.turn = 1; calibrate.turn < known_places[i].places; calibrate.turn++) {
            const float *before = next;
            next = calibrate_far(&calibrate, 2, bytes);
            assert_true((const char *)next - (const char *)before >= (ptrdiff_t)bytes);
        }
        assert_ptr_equal(calibrate_far(&calibrate, 2, bytes), first);
    }
}

static double gap_s, ended_s;

static enum tess_status gap_run(struct calibrate *calibrate, const struct tess_sample *one)
{
    const double processor_s = tess_clock_thread_s();
    (void)calibrate, (void)one;
    if (ended_s > 0)
        gap_s = fmin(gap_s, tess_clock_s() - ended_s);
    while (tess_clock_thread_s() - processor_s < 1e-3)
        ;
    ended_s = tess_clock_s();
    return TESS_OK;
}

/* Before what is no product runs the processor multiplies for longer than that takes. */
static void test_heavy(void **state)
{
    const struct tess_kernel_ops *ops;
    struct calibrate *calibrate = calloc(1, sizeof(*calibrate));
    (void)state;
    if (tess_registry_get_kernel("cpu", &ops) != TESS_OK)
        assert_int_equal(tess_registry_get_kernel("ref", &ops), TESS_OK);
    assert_non_null(calibrate);
    calibrate->memory = calibrate_pages(BYTES_MAX);
    assert_non_null(calibrate->memory);
    assert_int_equal(tess_kernel_open(ops, 1, &calibrate->kernel), TESS_OK);
    assert_int_equal(calibrate_heavy_open(calibrate), TESS_OK);
    gap_s = INFINITY;
    ended_s = 0;
    calibrate->near_bytes[1] = 4096;
    assert_int_equal(
        calibrate_measure(calibrate, (struct tess_sample){.kind = TESS_SAMPLE_WORK}, gap_run),
        TESS_OK);
    assert_true(gap_s > 2e-3);
    assert_true(calibrate->near_bytes[1] == 0);
    assert_true(calibrate->count == 1 && calibrate->seconds[0].value[0] >= 0.9e-3);
    calibrate_heavy_close(calibrate);
    tess_kernel_close(calibrate->kernel);
    calibrate_pages_free(calibrate->memory, BYTES_MAX);
    free(calibrate);
}

/* Of rounds that other machines disturbed the mean of the middle half counts. */
static void test_rounds(void **state)
{
    static const double seconds[] = {5, 1, 90, 2, 3, 4, 7, 6};
    struct calibrate_rounds rounds = {.count = 0};
    (void)state;
    calibrate_add(&rounds, 6);
    assert_true(calibrate_usual(&rounds) == 6 && calibrate_apart(&rounds) == 0);
    rounds.count = 0;
    for (size_t i = 0; i < sizeof(seconds) / sizeof(*seconds); i++)
        calibrate_add(&rounds, seconds[i]);
    assert_true(calibrate_usual(&rounds) == 4.5);
    assert_true(calibrate_apart(&rounds) == 3.5);
}

/* Of two cores in ten seconds, 15 seconds busy: what this process did not take, others did. */
static void test_beside_share(void **state)
{
    const struct calibrate_beside from = {.cores = 2, .wall_s = 5, .busy_s = 100, .own_s = 3};
    struct calibrate_beside to = {.cores = 2, .wall_s = 15, .busy_s = 115, .own_s = 13};
    (void)state;
    assert_true(fabs(calibrate_beside_share(&from, &to) - 0.25) < 1e-12);
    to.own_s = 18.3; /* clocks are not read at the same moment */
    assert_true(calibrate_beside_share(&from, &to) == 0);
    to.own_s = 13;
    to.cores = 0; /* unknown */
    assert_true(calibrate_beside_share(&from, &to) == 0);
}

/* What this process computes is its own, and what a child does that runs on is another program's.
 */
static void test_beside_child(void **state)
{
    const struct calibrate_beside from = calibrate_beside_now();
    (void)state;
    if (from.cores == 0)
        skip();
    const pid_t child = fork();
    for (volatile bool go_on = child == 0; go_on;)
        ;
    assert_true(child > 0);
    struct timespec half = {.tv_nsec = 500000000};
    nanosleep(&half, NULL);
    const struct calibrate_beside with = calibrate_beside_now();
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    const struct calibrate_beside after = calibrate_beside_now();
    /* It had a share of a core at least, whatever else runs here. */
    assert_true(calibrate_beside_share(&from, &with) > 0.1 / from.cores);
    assert_true(after.own_s - with.own_s > 0.05);
}

/* This machine: the file that is written is a profile, of a processor that computes something. */
static void test_measure(void **state)
{
    const struct tess_kernel_ops *ops;
    struct tess_profile profile, read;
    (void)state;
    if (tess_registry_get_kernel("cpu", &ops) != TESS_OK)
        assert_int_equal(tess_registry_get_kernel("ref", &ops), TESS_OK);
    assert_int_equal(tess_profile_calibrate(ops, "this", 4, &profile), TESS_OK);
    assert_int_equal(tess_profile_write(&profile, scratch_file), TESS_OK);
    assert_int_equal(tess_profile_read(scratch_file, &read), TESS_OK);
    assert_true(read.measured && read.cores >= 1);
    assert_string_equal(read.kernel, ops->name);
    print_message("%s: %.3g GFLOP/s in f32, %.3g in 16 bits, %.3g GB/s, %.3g from the cache, start "
                  "%.3g us, halves %.3g %.3g %.3g, copies %.3g GB/s, calls %.3g us\n",
                  read.source, read.flops_per_s[TESS_PEAK_F32] * 1e-9,
                  read.flops_per_s[TESS_PEAK_16] * 1e-9, read.bytes_per_s * 1e-9,
                  read.cache_bytes_per_s * 1e-9, read.start_s * 1e6, read.half_m, read.half_n,
                  read.half_k, read.copy_bytes_per_s * 1e-9, read.call_s * 1e6);
    assert_true(read.flops_per_s[TESS_PEAK_F32] > 1e7 && read.flops_per_s[TESS_PEAK_F32] < 1e15);
    assert_true(read.bytes_per_s > 1e7 && read.bytes_per_s < 1e14);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit),          cmocka_unit_test(test_points),
        cmocka_unit_test(test_rounds),       cmocka_unit_test(test_beside_share),
        cmocka_unit_test(test_beside_child), cmocka_unit_test(test_far),
        cmocka_unit_test(test_heavy),        cmocka_unit_test(test_measure),
    };
    const bool measure = argc > 1 && strcmp(argv[1], "measure") == 0;
    return _cmocka_run_group_tests("calibrate", tests, measure ? 8 : 7, scratch_file_make,
                                   scratch_file_remove);
}
