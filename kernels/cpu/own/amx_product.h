/*
 * The product that forward and the data gradient of a linear layer are on processors with AMX
 * (amx_product.c).
 */
#ifndef KERNELS_CPU_OWN_AMX_PRODUCT_H
#define KERNELS_CPU_OWN_AMX_PRODUCT_H

#include "tessera/kernel.h"

/*
 * y[rows, columns] = a[rows, depth] b[depth, columns] + bias in bf16. Every element of y is summed
 * in the order of depth from its first element on, by steps of CPU_AMX_DEPTH, whatever rows and
 * columns there are, and whichever of the two matrices is called a. Strides are in elements.
 */
struct amx_product {
    const uint16_t *a; /* [rows, depth] */
    const uint16_t *b; /* [depth, columns]; b_turned: [columns, depth] */
    int64_t a_row, b_row;
    int64_t rows, columns, depth;
    bool b_turned;
    bool y_turned; /* y is [columns, rows] */
    uint16_t *y;
    int64_t y_row;
    const uint16_t *bias; /* an element for each of a row of y; or NULL */
    bool relu;
};

/* Memory of each thread. Only sizes, b_turned and y_turned are read. */
size_t tess__amx_product_scratch(const struct amx_product *product);
void tess__amx_product(const struct tess_kernel *kernel, const struct amx_product *product,
                       void *scratch);

#endif
