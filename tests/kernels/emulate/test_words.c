/* The emulator itself: what the words of kernels mean, and that what is left out is found. */
#include "device.h"
#include "emulate/emulate.h"
#include "emulate/words.h"

#include "base/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void case_shuffle(void **state)
{
    (void)state;
    int32_t *out = emulate_array(6 * 32 * sizeof(*out), 0);
    words_run_shuffle(out);
    for (int lane = 0; lane < 32; lane++) {
        assert_int_equal(out[lane], lane ^ 5);
        assert_int_equal(out[32 + lane], lane + 3 < 32 ? lane + 3 : lane);
        assert_int_equal(out[64 + lane], lane % 8 >= 2 ? lane - 2 : lane);
        assert_int_equal(out[96 + lane], lane / 16 * 16 + 9);
        assert_int_equal((uint32_t)out[128 + lane], 0x49249249u);
        assert_int_equal(out[160 + lane], lane < 10 ? lane ^ 1 : 1);
    }
    emulate_free_all();
}

/* Small whole numbers, whose sums are exact. */
static void case_sum(void **state)
{
    (void)state;
    for (int threads = 32; threads <= 1024; threads += 32) {
        size_t bytes = (size_t)threads * sizeof(float);
        float *x = emulate_array(bytes, 0);
        float *sum = emulate_array(bytes, 0), *max = emulate_array(bytes, 0);
        for (int t = 0; t < threads; t++)
            x[t] = (float)(t * 37 % 101 - 200);
        float expected_sum = 0, expected_max = x[0];
        for (int t = 0; t < threads; t++) {
            expected_sum += x[t];
            expected_max = x[t] > expected_max ? x[t] : expected_max;
        }
        words_run_sum(threads, x, sum, max);
        for (int t = 0; t < threads; t++) {
            assert_true(sum[t] == expected_sum);
            assert_true(max[t] == expected_max);
        }
        emulate_free_all();
    }
}

/* Returns how many of the 128 elements are right. */
static int product_run(bool half, bool wait, bool sync)
{
    struct draw draw = {7};
    uint16_t *a = emulate_array(256 * sizeof(*a), 0), *b = emulate_array(128 * sizeof(*b), 0);
    float *c = emulate_array(128 * sizeof(*c), 0);
    double real_a[256], real_b[128];
    for (int i = 0; i < 256 + 128; i++) {
        double x = (double)draw_between(&draw, -8, 8); /* sums of products are exact */
        *(i < 256 ? &real_a[i] : &real_b[i - 256]) = x;
        *(i < 256 ? &a[i] : &b[i - 256]) =
            half ? tess__f16_of_f32((float)x) : tess__bf16_of_f32((float)x);
    }
    words_run_product(half, a, b, c, wait, sync);
    int right = 0;
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 8; j++) {
            double sum = 1;
            for (int k = 0; k < 16; k++)
                sum += real_a[i * 16 + k] * real_b[k * 8 + j];
            right += (double)c[i * 8 + j] == sum;
        }
    }
    emulate_free_all();
    return right;
}

static void case_product(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        assert_int_equal(product_run(half, true, true), 128);
        assert_int_equal(product_run(half, false, true), 0); /* B has not come yet */
    }
}

/* A missing barrier is met from one side or the other. */
static void case_order(void **state)
{
    (void)state;
    for (int forward = 0; forward < 2; forward++) {
        for (int sync = 0; sync < 2; sync++) {
            int32_t *out = emulate_array(2 * 96 * sizeof(*out), 0);
            int right = 0;
            words_run_neighbour(out, forward, sync);
            for (int i = 0; i < 192; i++)
                right += out[i] == (i % 96 + (forward ? 1 : 95)) % 96;
            if (sync)
                assert_int_equal(right, 192);
            else
                assert_in_range(right, 0, 191);
            emulate_free_all();
        }
    }
}

/* Does `run` end the program? */
static bool ends(void (*run)(int), int what)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(2);
        run(what);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0);
}

static void fail_kernel(int what)
{
    words_run_fail((enum words_failure)what);
}

static void fail_array(int what)
{
    unsigned char *array = emulate_array(17, what == 2 ? 4 : 0);
    if (what == 0)
        array[16] = 0;
    else if (what == 1)
        array[17] = 0;
    else
        array[-1] = 0;
    emulate_free_all();
}

static void case_failures(void **state)
{
    (void)state;
    assert_false(ends(fail_kernel, WORDS_NONE));
    for (int what = WORDS_BARRIERS; what <= WORDS_ALIGNMENT; what++)
        assert_true(ends(fail_kernel, what));
    assert_false(ends(fail_array, 0));
    assert_true(ends(fail_array, 1));
    assert_true(ends(fail_array, 2));
}

static size_t static_bytes;

static void fail_static(int beyond)
{
    (void)words_run_static(((size_t)227 << 10) - static_bytes + (size_t)beyond);
}

/* Static and dynamic memory share what a block has; a sanitizer's guard may be counted with it. */
static void case_static(void **state)
{
    (void)state;
    static_bytes = words_run_static(0);
    assert_in_range(static_bytes, WORDS_STATIC, WORDS_STATIC / 4 * 5);
    assert_false(ends(fail_static, 0));
    assert_true(ends(fail_static, 1));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_shuffle),  cmocka_unit_test(case_sum),
        cmocka_unit_test(case_product),  cmocka_unit_test(case_order),
        cmocka_unit_test(case_failures), cmocka_unit_test(case_static),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
