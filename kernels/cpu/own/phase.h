/*
 * Convolutions as the own kernels compute them: forward as it is, a data gradient as a convolution
 * of dy with the window turned round and inputs and outputs changed over. With a stride of 2 that
 * is four, phases: to dx of even or odd row and column come every other row and column of the
 * window.
 */
#ifndef KERNELS_CPU_OWN_PHASE_H
#define KERNELS_CPU_OWN_PHASE_H

#include "cpu/cpu.h"

#define CPU_PHASE_STRIDE 2 /* of a data gradient at most */
#define CPU_PHASES       (CPU_PHASE_STRIDE * CPU_PHASE_STRIDE)

/* A convolution to the pixels (row, column) + `phases` i of y. */
struct cpu_phase {
    int64_t row, column;
    int64_t tall, wide;              /* rows and columns of the window; 0: y is zero */
    int64_t first_row, first_column; /* of the turned window: rows kh = first + phases i */
    int64_t x_row, x_column;         /* where the first pixel's window begins in the padded x */
    int64_t rows, columns;           /* of its pixels in an image of y */
    uint32_t *w;                     /* packed: the kernel's */
};

/* The sizes are those of the data gradient's own convolution where `back`. */
struct cpu_phased {
    int64_t in, out, height, width; /* of x */
    int64_t y_height, y_width;      /* of y */
    int64_t phases, step;           /* in a direction; pixels of x from one to the next of y */
    int64_t rows, columns;          /* of a phase's pixels at most */
    int64_t top, span;              /* padding before the first row; rows under one row of y */
    struct cpu_phase phase[CPU_PHASES];
};

static inline int64_t cpu_ceil(int64_t count, int64_t by)
{
    return (count + by - 1) / by;
}

/* Rows (or columns) kh of the window come to rows at + phases i of dx where at + padding - kh is a
 * multiple of the stride: how many there are, the first, and the row of dy that the last meets for
 * i = 0. */
static inline int64_t cpu_phase_meet(const struct tess_op_desc *d, int64_t at, int64_t *first,
                                     int64_t *dy_row)
{
    *first = (at + d->padding) % d->stride;
    const int64_t count = *first < d->window ? cpu_ceil(d->window - *first, d->stride) : 0;
    *dy_row = (at + d->padding - *first) / d->stride - (count > 0 ? count - 1 : 0);
    return count;
}

/* `back`: of a stride of at most CPU_PHASE_STRIDE. */
static inline struct cpu_phased cpu_phases(const struct tess_op_desc *d, bool back)
{
    const int64_t oh = tess_op_output_size(d->height, d->window, d->stride, d->padding);
    const int64_t ow = tess_op_output_size(d->width, d->window, d->stride, d->padding);
    struct cpu_phased c = {.in = back ? d->out : d->in,
                           .out = back ? d->in : d->out,
                           .height = back ? oh : d->height,
                           .width = back ? ow : d->width,
                           .y_height = back ? d->height : oh,
                           .y_width = back ? d->width : ow,
                           .phases = back ? d->stride : 1,
                           .step = back ? 1 : d->stride};
    int64_t low = 0, high = 0, first, row;
    for (int64_t at = 0; back && at < c.phases; at++) {
        const int64_t count = cpu_phase_meet(d, at, &first, &row);
        low = at == 0 || row < low ? row : low;
        high = at == 0 || row + count > high ? row + count : high;
    }
    c.rows = cpu_ceil(c.y_height, c.phases);
    c.columns = cpu_ceil(c.y_width, c.phases);
    c.top = back ? -low : d->padding;
    c.span = back ? high - low : d->window;
    for (int64_t i = 0; i < c.phases * c.phases; i++) {
        struct cpu_phase *p = &c.phase[i];
        *p = (struct cpu_phase){
            .row = i / c.phases, .column = i % c.phases, .tall = d->window, .wide = d->window};
        p->rows = cpu_ceil(c.y_height - p->row, c.phases);
        p->columns = cpu_ceil(c.y_width - p->column, c.phases);
        if (back) {
            p->tall = cpu_phase_meet(d, p->row, &p->first_row, &p->x_row);
            p->wide = cpu_phase_meet(d, p->column, &p->first_column, &p->x_column);
            p->x_row -= low;
            p->x_column -= low;
        }
    }
    return c;
}

#endif
