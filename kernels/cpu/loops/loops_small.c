/*
 * Own loops beside oneDNN: sums over rows for bias gradients, and the products of linear layers so
 * small that a library call costs more than the work. Rows are computed one by one, so their bits
 * do not depend on how many there are.
 */
#include "cpu/loops/loops.h"

#include "cpu/own/stage.h"

#include <string.h>

/* Rows added to one partial sum before it goes into the total: keeps the error of long sums small.
 */
#define SMALL_ROWS 256

CPU_INLINE void small_add_rows(enum tess_dtype dtype, int64_t rows, int64_t cols, const void *x,
                               int64_t first, int64_t width, float *total)
{
    const int64_t word = dtype == TESS_F32 ? 4 : 2;
    for (int64_t begin = 0; begin < rows; begin += SMALL_ROWS) {
        int64_t end = rows - begin < SMALL_ROWS ? rows : begin + SMALL_ROWS;
        float part[CPU_BLOCK] = {0}, copy[CPU_BLOCK];
        for (int64_t row = begin; row < end; row++) {
            const char *at = (const char *)x + (row * cols + first + width) * word;
            for (int64_t byte = 0; byte < width * word; byte += 64) /* of the next columns */
                __builtin_prefetch(at + byte, 0, 2);
            cpu_read(dtype, x, row * cols + first, width, copy);
            for (int64_t c = 0; c < width; c++)
                part[c] += copy[c];
        }
        for (int64_t c = 0; c < width; c++)
            total[c] += part[c];
    }
}

/* Widths that are known to the compiler keep the sums in registers. */
CPU_INLINE void small_column_sum(enum tess_dtype dtype, int64_t rows, int64_t cols, int64_t first,
                                 int64_t width, const void *x, float *sum)
{
    memset(sum, 0, (size_t)width * sizeof(float));
    int64_t at = 0;
    for (; at + CPU_BLOCK <= width; at += CPU_BLOCK)
        small_add_rows(dtype, rows, cols, x, first + at, CPU_BLOCK, sum + at);
    for (; at + 16 <= width; at += 16)
        small_add_rows(dtype, rows, cols, x, first + at, 16, sum + at);
    if (at < width)
        small_add_rows(dtype, rows, cols, x, first + at, width - at, sum + at);
}

void CPU_LOOP(column_sum)(enum tess_dtype dtype, int64_t rows, int64_t cols, int64_t first,
                          int64_t width, const void *x, float *sum)
{
    if (dtype == TESS_F32)
        small_column_sum(TESS_F32, rows, cols, first, width, x, sum);
    else
        small_column_sum(TESS_BF16, rows, cols, first, width, x, sum);
}

/* `wide`: weights [in * out], then one row in and one row out; see product_needs() of
 * product.c. */
void CPU_LOOP(small_forward)(const struct tess_op_desc *desc, const void *x, const void *w,
                             const void *bias, void *y, float *wide)
{
    int64_t in = desc->in, out = desc->out;
    float *restrict turned = wide; /* [in, out], so that the sums of a row of y are vectors */
    float *restrict row_in = wide + in * out, *restrict row_out = row_in + in;
    for (int64_t o = 0; o < out; o++) {
        cpu_read(desc->dtype, w, o * in, in, row_in);
        for (int64_t i = 0; i < in; i++)
            turned[i * out + o] = row_in[i];
    }
    for (int64_t b = 0; b < desc->rows; b++) {
        cpu_read(desc->dtype, x, b * in, in, row_in);
        memset(row_out, 0, (size_t)out * sizeof(float));
        for (int64_t i = 0; i < in; i++)
            for (int64_t o = 0; o < out; o++)
                row_out[o] += row_in[i] * turned[i * out + o];
        if (bias != NULL) {
            cpu_read(desc->dtype, bias, 0, out, row_out + out);
            for (int64_t o = 0; o < out; o++)
                row_out[o] += row_out[out + o];
        }
        for (int64_t o = 0; desc->relu && o < out; o++)
            row_out[o] = row_out[o] < 0 ? 0.0f : row_out[o];
        cpu_write(desc->dtype, y, b * out, out, row_out);
    }
}

void CPU_LOOP(small_backward_data)(const struct tess_op_desc *desc, const void *dy, const void *w,
                                   void *dx, float *wide)
{
    int64_t in = desc->in, out = desc->out;
    float *restrict weights = wide;
    float *restrict row_in = wide + in * out, *restrict row_out = row_in + in;
    cpu_read(desc->dtype, w, 0, in * out, weights);
    for (int64_t b = 0; b < desc->rows; b++) {
        cpu_read(desc->dtype, dy, b * out, out, row_out);
        memset(row_in, 0, (size_t)in * sizeof(float));
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++)
                row_in[i] += row_out[o] * weights[o * in + i];
        cpu_write(desc->dtype, dx, b * in, in, row_in);
    }
}
