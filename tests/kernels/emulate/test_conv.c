/*
 * Windows of images as rows of a matrix, and back: against loops that follow the definition, in
 * every dtype, with channels that do and do not fill 16 bytes, strides and padding.
 */
#include "device.h"
#include "emulate/emulate.h"

#include "base/half.h"
#include "cuda/products/conv.h"

#include <stdlib.h>
#include <string.h>

static const struct cuda_windows cases_of[] = {
    {.images = 2, .height = 5, .width = 4, .channels = 3, .window = 3, .stride = 1, .padding = 1},
    {.images = 3, .height = 6, .width = 7, .channels = 8, .window = 3, .stride = 2, .padding = 1},
    {.images = 1, .height = 9, .width = 9, .channels = 4, .window = 4, .stride = 3, .padding = 0},
    {.images = 2, .height = 4, .width = 4, .channels = 16, .window = 1, .stride = 2, .padding = 0},
    {.images = 2, .height = 3, .width = 5, .channels = 1, .window = 5, .stride = 2, .padding = 4},
    {.images = 1, .height = 2, .width = 8, .channels = 12, .window = 2, .stride = 4, .padding = 1},
};
#define CASES (sizeof(cases_of) / sizeof(cases_of[0]))

static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16, TESS_F16};

static struct cuda_windows complete(struct cuda_windows w)
{
    w.out_height = (int32_t)tess_op_output_size(w.height, w.window, w.stride, w.padding);
    w.out_width = (int32_t)tess_op_output_size(w.width, w.window, w.stride, w.padding);
    return w;
}

static int64_t window_count(const struct cuda_windows *w)
{
    return w->images * w->out_height * w->out_width * w->window * w->window * w->channels;
}

static int64_t image_count(const struct cuda_windows *w)
{
    return w->images * w->height * w->width * w->channels;
}

/* Which element of the images lies at this one of the windows; -1: outside. */
static int64_t source_of(const struct cuda_windows *w, int64_t i)
{
    const int64_t c = i % w->channels, kx = i / w->channels % w->window;
    const int64_t ky = i / w->channels / w->window % w->window;
    const int64_t place = i / w->channels / w->window / w->window;
    const int64_t ox = place % w->out_width, oy = place / w->out_width % w->out_height;
    const int64_t image = place / w->out_width / w->out_height;
    const int64_t y = oy * w->stride - w->padding + ky, x = ox * w->stride - w->padding + kx;
    if (y < 0 || y >= w->height || x < 0 || x >= w->width)
        return -1;
    return ((image * w->height + y) * w->width + x) * w->channels + c;
}

static void run_windows(const struct cuda_windows *w, enum tess_dtype dtype, size_t offset)
{
    const size_t word = tess_dtype_bytes(dtype);
    const int64_t count = window_count(w), images = image_count(w);
    struct draw draw = {(uint64_t)count};
    unsigned char *x = emulate_array((size_t)images * word, offset);
    unsigned char *columns = emulate_array((size_t)count * word, offset);
    for (size_t i = 0; i < (size_t)images * word; i++)
        x[i] = (unsigned char)draw_word(&draw);
    assert_int_equal(tess__cuda_conv_windows(NULL, dtype, w, x, columns), cudaSuccess);
    const unsigned char zero[8] = {0};
    for (int64_t i = 0; i < count; i++) {
        const int64_t from = source_of(w, i);
        const unsigned char *want = from < 0 ? zero : x + (size_t)from * word;
        if (memcmp(columns + (size_t)i * word, want, word) != 0)
            fail_msg("windows: element %lld is not element %lld", (long long)i, (long long)from);
    }
    emulate_free_all();
}

static void case_windows(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        for (int t = 0; t < 3; t++)
            for (size_t offset = 0; offset < 2; offset++) {
                const struct cuda_windows w = complete(cases_of[i]);
                run_windows(&w, dtypes[t], offset * tess_dtype_bytes(dtypes[t]));
            }
}

static float stored(enum tess_dtype dtype, const void *x, int64_t i)
{
    if (dtype == TESS_F32)
        return ((const float *)x)[i];
    const uint16_t half = ((const uint16_t *)x)[i];
    return dtype == TESS_BF16 ? tess__f32_of_bf16(half) : tess__f32_of_f16(half);
}

static float rounded(enum tess_dtype dtype, float x)
{
    return dtype == TESS_F32    ? x
           : dtype == TESS_BF16 ? tess__f32_of_bf16(tess__bf16_of_f32(x))
                                : tess__f32_of_f16(tess__f16_of_f32(x));
}

/* For each element the places of the window in order of ky, kx; the bits of that sum. */
static void run_gather(const struct cuda_windows *w, enum tess_dtype dtype, size_t offset)
{
    const int64_t count = window_count(w), images = image_count(w);
    struct draw draw = {(uint64_t)count + 1};
    float *columns = emulate_array((size_t)count * sizeof(float), 4 * (offset > 0));
    void *dx = emulate_array((size_t)images * tess_dtype_bytes(dtype), offset);
    for (int64_t i = 0; i < count; i++)
        columns[i] = (float)draw_real(&draw, TESS_F32);
    assert_int_equal(tess__cuda_conv_gather(NULL, dtype, w, columns, dx), cudaSuccess);
    for (int64_t i = 0; i < images; i++) {
        float sum = 0;
        for (int64_t cell = 0; cell < (int64_t)w->window * w->window; cell++)
            for (int64_t place = 0; place < w->images * w->out_height * w->out_width; place++) {
                const int64_t from =
                    (place * w->window * w->window + cell) * w->channels + i % w->channels;
                if (source_of(w, from) == i)
                    sum += columns[from];
            }
        if (stored(dtype, dx, i) != rounded(dtype, sum))
            fail_msg("gather: element %lld is %a, not %a", (long long)i,
                     (double)stored(dtype, dx, i), (double)rounded(dtype, sum));
    }
    emulate_free_all();
}

static void case_gather(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        for (int t = 0; t < 3; t++)
            for (size_t offset = 0; offset < 2; offset++) {
                const struct cuda_windows w = complete(cases_of[i]);
                run_gather(&w, dtypes[t], offset * tess_dtype_bytes(dtypes[t]));
            }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_windows),
        cmocka_unit_test(case_gather),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
