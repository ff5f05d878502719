/*
 * Linear layers in bf16 by AMX tiles: which matrix is read where it lies and which is packed.
 *
 *                   a                    b, packed        where
 *   forward         x [rows, in]         w, turned        many rows
 *                   w [out, in]          x, turned        few rows: y is turned at the end
 *   data            dy [rows, out]       w, interleaved
 *
 * Both ways of forward have the same bits, so that the choice may depend on the number of rows.
 */
#include "cpu/cpu.h"

#include "cpu/own/amx_product.h"

/* Turning 16 rows of w costs about as much as turning 16 of x, or 16 columns of sums. */
static bool linear_packs_x(const struct tess_op_desc *desc)
{
    return (double)desc->rows * (double)(desc->in + desc->out) <
           (double)desc->in * (double)desc->out;
}

static struct amx_product linear_forward(const struct tess_op_desc *desc, const void *x,
                                         const void *w)
{
    const bool packs_x = linear_packs_x(desc);
    return (struct amx_product){.a = packs_x ? w : x,
                                .b = packs_x ? x : w,
                                .a_row = desc->in,
                                .b_row = desc->in,
                                .rows = packs_x ? desc->out : desc->rows,
                                .columns = packs_x ? desc->rows : desc->out,
                                .depth = desc->in,
                                .b_turned = true,
                                .y_turned = packs_x,
                                .y_row = desc->out,
                                .relu = desc->relu};
}

static struct amx_product linear_data(const struct tess_op_desc *desc, const void *dy,
                                      const void *w)
{
    return (struct amx_product){.a = dy,
                                .b = w,
                                .a_row = desc->out,
                                .b_row = desc->in,
                                .rows = desc->rows,
                                .columns = desc->in,
                                .depth = desc->out,
                                .y_row = desc->in};
}

size_t tess__amx_forward_scratch(const struct tess_op_desc *desc)
{
    const struct amx_product p = linear_forward(desc, NULL, NULL);
    return tess__amx_product_scratch(&p);
}

void tess__amx_forward(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                       const void *x, const void *w, const void *bias, void *y, void *scratch)
{
    struct amx_product p = linear_forward(desc, x, w);
    p.bias = bias;
    p.y = y;
    tess__amx_product(kernel, &p, scratch);
}

size_t tess__amx_data_scratch(const struct tess_op_desc *desc)
{
    const struct amx_product p = linear_data(desc, NULL, NULL);
    return tess__amx_product_scratch(&p);
}

void tess__amx_data(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                    const void *dy, const void *w, void *dx, void *scratch)
{
    struct amx_product p = linear_data(desc, dy, w);
    p.y = dx;
    tess__amx_product(kernel, &p, scratch);
}
