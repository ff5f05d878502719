/*
 * Made-up data sets, the sampler, normalisation and augmentation, against plain formulas.
 */
#include "data/data.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

/* ---- made-up images -------------------------------------------------------------------------- */

static void case_synthetic(void **state)
{
    (void)state;
    enum { CLASSES = 7, ROW = 8 * 6 * 3 };
    struct tess_dataset *set = NULL, *again = NULL;
    const struct tess_shape row = tess_shape3(8, 6, 3);
    assert_int_equal(tess_dataset_open_synthetic(row, CLASSES, 1000, 200, 3, &set), TESS_OK);
    assert_int_equal(tess_dataset_open_synthetic(row, CLASSES, 1000, 200, 3, &again), TESS_OK);
    assert_int_equal(set->class_count, CLASSES);
    assert_int_equal(set->train.count, 1000);
    assert_int_equal(set->test.count, 200);
    assert_memory_equal(set->train.image, again->train.image, 1000 * ROW);
    assert_memory_equal(set->test.label, again->test.label, 200);
    tess_dataset_close(again);
    assert_int_equal(tess_dataset_open_synthetic(row, CLASSES, 1000, 200, 4, &again), TESS_OK);
    assert_true(memcmp(set->train.image, again->train.image, 1000 * ROW) != 0);
    tess_dataset_close(again);

    /* Learnable: the nearest mean of a training class is right for nearly all test images, which
     * differ from the training images. */
    double mean[CLASSES][ROW] = {{0}}, count[CLASSES] = {0};
    for (int i = 0; i < 1000; i++) {
        const int c = set->train.label[i];
        assert_in_range(c, 0, CLASSES - 1);
        count[c]++;
        for (int p = 0; p < ROW; p++)
            mean[c][p] += set->train.image[i * ROW + p];
    }
    int right = 0;
    for (int i = 0; i < 200; i++) {
        int best = -1;
        double best_distance = INFINITY;
        for (int c = 0; c < CLASSES; c++) {
            double distance = 0;
            for (int p = 0; p < ROW; p++)
                distance += pow(set->test.image[i * ROW + p] - mean[c][p] / count[c], 2);
            if (distance < best_distance) {
                best = c;
                best_distance = distance;
            }
        }
        right += best == set->test.label[i];
    }
    assert_true(right >= 190);
    tess_dataset_close(set);

    const enum tess_status usage = TESS_ERR_USAGE;
    assert_int_equal(tess_dataset_open_synthetic(row, 7, INT64_MAX, 1, 0, &set), usage);
}

/* ---- samples --------------------------------------------------------------------------------- */

static void case_sampler(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 2, 3, 7, 64, 1000, 60000};
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        const int64_t n = counts[i];
        uint8_t *seen = calloc((size_t)n, 1);
        int64_t in_place = 0, as_before = 0;
        for (int64_t p = 0; p < n; p++) {
            const int64_t sample = tess_sample_at(11, 3, n, p, true);
            assert_in_range(sample, 0, n - 1);
            assert_int_equal(seen[sample], 0);
            seen[sample] = 1;
            in_place += sample == p;
            as_before += sample == tess_sample_at(11, 2, n, p, true);
            assert_int_equal(tess_sample_at(11, 3, n, p, false), p);
        }
        /* A random permutation has one fixed point on average, 20 or more with probability 1e-19.
         */
        assert_true(n < 64 || (in_place < 20 && as_before < 20));
        assert_int_equal(tess_sample_at(11, 3, n, n, true), -1);
        assert_int_equal(tess_sample_at(11, 3, n, -1, false), -1);
        free(seen);
    }
}

static float bf16_value(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* A set of 9 GiB, of which a few pages are there. */
static void case_beyond_32_bits(void **state)
{
    (void)state;
    enum { SIDE = 1024, ROW = SIDE * SIDE };
    const int64_t count = 9 * 1024, last = count - 1;
    const size_t bytes = (size_t)count * ROW + sizeof(uint16_t) * (size_t)count;
    const struct tess_loader_options plain = {.shuffle = false};
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        skip(); /* an address space that is limited */
    struct tess_dataset set = {
        .row = tess_shape3(SIDE, SIDE, 1),
        .class_count = 65536,
        .labels = 1,
        .train = {.count = count,
                  .image = memory,
                  .label = (uint16_t *)(void *)(memory + (size_t)count * ROW)},
        .deviation = 1};
    const int64_t sample[2] = {last, 4096 + 7};
    float *value = malloc(2 * ROW * sizeof(*value));
    int32_t label[2];
    assert_non_null(value);
    for (int r = 0; r < 2; r++) {
        memory[(size_t)sample[r] * ROW + 5] = (uint8_t)(51 * (r + 1));
        set.train.label[sample[r]] = (uint16_t)(65535 - r);
    }
    tess_load_rows(&set, &set.train, &plain, 1, 0, false, sample, 2, TESS_F32, value, label);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(label[r], 65535 - r);
        assert_true(value[r * ROW + 4] == 0);
        assert_true(fabsf(value[r * ROW + 5] - 0.2f * (float)(r + 1)) < 1e-6f);
    }
    free(value);
    munmap(memory, bytes);
}

static void case_normalisation(void **state)
{
    (void)state;
    struct tess_dataset *set = NULL;
    const struct tess_loader_options plain = {.shuffle = true};
    const int64_t sample[3] = {5, -1, 0};
    enum { ROW = 9 * 5 * 2 };
    float value[3 * ROW];
    uint16_t half[3 * ROW];
    int32_t label[3], label_half[3];
    assert_int_equal(tess_dataset_open_synthetic(tess_shape3(9, 5, 2), 4, 20, 3, 8, &set), TESS_OK);
    memset(value, 0xff, sizeof(value));
    tess_load_rows(set, &set->train, &plain, 1, 0, true, sample, 3, TESS_F32, value, label);
    tess_load_rows(set, &set->train, &plain, 1, 0, true, sample, 3, TESS_BF16, half, label_half);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(label[r], sample[r] < 0 ? -1 : set->train.label[sample[r]]);
        assert_int_equal(label_half[r], label[r]);
        for (int i = 0; i < ROW; i++) {
            const float got = value[r * ROW + i], got_half = bf16_value(half[r * ROW + i]);
            if (sample[r] < 0) {
                assert_true(got == 0 && got_half == 0);
                continue;
            }
            const double p = set->train.image[sample[r] * ROW + i] / 255.0;
            const double expected = (p - (double)set->mean) / (double)set->deviation;
            /* Scale, product, shift and sum are each rounded to 2^-24 of at most 1/deviation. */
            assert_true(fabs(got - expected) <= 4 * 0x1p-24 / (double)set->deviation);
            /* bf16 has 8 significant bits, so the nearest is within 2^-8 of the value, and its
             * neighbours are no nearer. */
            assert_true(fabsf(got_half - got) <= fabsf(got) * 0x1p-8f);
            const float up = bf16_value((uint16_t)(half[r * ROW + i] + 1));
            const float down = bf16_value((uint16_t)(half[r * ROW + i] - 1));
            assert_true(fabsf(got_half - got) <= fabsf(up - got));
            assert_true(fabsf(got_half - got) <= fabsf(down - got));
        }
    }
    tess_dataset_close(set);
}

/* Ties go to even: scale 1 and shift 256 give 256 .. 383, of which bf16 has every second number. */
static void case_bf16_ties(void **state)
{
    (void)state;
    uint8_t pixel[256];
    uint16_t class_of = 0;
    /* The scale is 1 - 2^-24; what that takes from a pixel below 128 is lost when 256 is added. */
    const float deviation = 1.0f / 255;
    const struct tess_dataset set = {
        .row = tess_shape3(16, 16, 1),
        .class_count = 1,
        .labels = 1,
        .train = {.count = 1, .image = pixel, .label = &class_of},
        .mean = -256 * deviation,
        .deviation = deviation,
    };
    const struct tess_loader_options plain = {0};
    const int64_t first = 0;
    uint16_t half[256];
    float value[256];
    int32_t label;
    for (int p = 0; p < 256; p++)
        pixel[p] = (uint8_t)(p % 128);
    tess_load_rows(&set, &set.train, &plain, 1, 0, false, &first, 1, TESS_F32, value, &label);
    tess_load_rows(&set, &set.train, &plain, 1, 0, false, &first, 1, TESS_BF16, half, &label);
    for (int p = 0; p < 256; p++) {
        assert_true(value[p] == (float)(256 + p % 128));
        assert_true(bf16_value(half[p]) == 2 * nearbyintf(value[p] / 2));
    }
}

/* The pixel that stands at (y, x) after mirroring and moving, -1 for black from outside. */
static int64_t moved_from(int64_t y, int64_t x, int64_t h, int64_t w, bool flip, int64_t down,
                          int64_t right)
{
    const int64_t fy = y - down, fx = x - right;
    if (fy < 0 || fy >= h || fx < 0 || fx >= w)
        return -1;
    return fy * w + (flip ? w - 1 - fx : fx);
}

static bool is_change(const float *got, const float *image, float black,
                      const struct tess_shape *row, bool flip, int64_t down, int64_t right)
{
    const int64_t h = row->dim[0], w = row->dim[1], channels = row->dim[2];
    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++)
            for (int64_t c = 0; c < channels; c++) {
                const int64_t from = moved_from(y, x, h, w, flip, down, right);
                const float expected = from < 0 ? black : image[from * channels + c];
                if (got[(y * w + x) * channels + c] != expected)
                    return false;
            }
    return true;
}

/* Which mirroring and moving makes `got` of `image`: (flip, down, right) as one number, or -1. */
static int find_change(const float *got, const float *image, float black,
                       const struct tess_shape *row, int shift)
{
    const int side = 2 * shift + 1;
    for (int i = 0; i < 2 * side * side; i++) {
        if (is_change(got, image, black, row, i % 2 != 0, i / 2 % side - shift,
                      i / 2 / side - shift))
            return i;
    }
    return -1;
}

/* Every changed image is the plain one mirrored and moved in one of the ways there are; all occur.
 */
static void check_augmentation(struct tess_shape row, int shift, bool flip, int images)
{
    struct tess_dataset *set = NULL;
    assert_int_equal(tess_dataset_open_synthetic(row, 3, images, 1, 8, &set), TESS_OK);
    const int64_t count = tess_shape_count(&row);
    const struct tess_loader_options none = {0}, some = {.flip = flip, .shift = shift};
    const float black = -set->mean / set->deviation;
    float *plain = malloc((size_t)count * sizeof(float));
    float *got = malloc((size_t)count * sizeof(float));
    float *other = malloc((size_t)count * sizeof(float));
    int seen[2 * 9 * 9] = {0}, kinds = 0, same_next_epoch = 0;
    int32_t label;
    for (int64_t i = 0; i < images; i++) {
        tess_load_rows(set, &set->train, &none, 1, 0, true, &i, 1, TESS_F32, plain, &label);
        tess_load_rows(set, &set->train, &some, 1, 0, true, &i, 1, TESS_F32, got, &label);
        tess_load_rows(set, &set->train, &some, 1, 0, false, &i, 1, TESS_F32, other, &label);
        assert_memory_equal(other, plain, (size_t)count * sizeof(float));
        const int change = find_change(got, plain, black, &row, shift);
        assert_true(change >= 0 && (flip || change % 2 == 0));
        kinds += seen[change]++ == 0;
        tess_load_rows(set, &set->train, &some, 1, 1, true, &i, 1, TESS_F32, other, &label);
        same_next_epoch += memcmp(got, other, (size_t)count * sizeof(float)) == 0;
    }
    /* Each of K kinds is missed by n images with probability (1 - 1/K)^n; n >= 20 K: 2e-9 each. */
    const int all = (flip ? 2 : 1) * (2 * shift + 1) * (2 * shift + 1);
    assert_int_equal(kinds, images >= 20 * all ? all : kinds);
    assert_true(all == 1 || same_next_epoch < images);
    free(plain);
    free(got);
    free(other);
    tess_dataset_close(set);
}

static void case_augmentation(void **state)
{
    (void)state;
    check_augmentation(tess_shape3(7, 6, 1), 2, true, 1000);
    check_augmentation(tess_shape3(7, 6, 3), 1, true, 400);
    check_augmentation(tess_shape3(6, 7, 1), 2, false, 500);
    check_augmentation(tess_shape3(6, 7, 1), 0, true, 40);
    check_augmentation(tess_shape3(1, 1, 1), 3, true, 50);
    check_augmentation(tess_shape3(2, 1500, 1), 1, true, 20);
    check_augmentation(tess_shape3(2, 3, 1000), 1, true, 20);
}

/* A sample marked as ignored has the pixels that it has otherwise, changed in the same way, and no
 * label. */
static void case_ignored(void **state)
{
    (void)state;
    enum { ROW = 7 * 6, ROWS = 20 };
    struct tess_dataset *set = NULL;
    const struct tess_loader_options some = {.flip = true, .shift = 2};
    static float plain[ROWS * ROW], ignored[ROWS * ROW];
    int64_t sample[ROWS];
    int32_t label[ROWS];
    assert_int_equal(tess_dataset_open_synthetic(tess_shape3(7, 6, 1), 3, ROWS, 1, 8, &set),
                     TESS_OK);
    for (int r = 0; r < ROWS; r++)
        sample[r] = r;
    tess_load_rows(set, &set->train, &some, 1, 2, true, sample, ROWS, TESS_F32, plain, label);
    for (int r = 0; r < ROWS; r++)
        sample[r] = r % 3 == 0 ? r : r | TESS_SAMPLE_IGNORED;
    tess_load_rows(set, &set->train, &some, 1, 2, true, sample, ROWS, TESS_F32, ignored, label);
    assert_memory_equal(ignored, plain, sizeof(plain));
    for (int r = 0; r < ROWS; r++)
        assert_int_equal(label[r], r % 3 == 0 ? set->train.label[r] : -1);
    tess_dataset_close(set);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_ignored),        cmocka_unit_test(case_synthetic),
        cmocka_unit_test(case_beyond_32_bits), cmocka_unit_test(case_sampler),
        cmocka_unit_test(case_normalisation),  cmocka_unit_test(case_bf16_ties),
        cmocka_unit_test(case_augmentation),
    };
    return cmocka_run_group_tests_name("data", cases, NULL, NULL);
}
