/*
 * Processors other than x86: the loops for any processor, and no own matrix kernels. oneDNN or ref
 * computes instead, so the functions that return nothing are never called.
 */
#include "cpu/cpu.h"

const struct cpu_loops *tess__cpu_loops_best(void)
{
    return &tess__cpu_loops_base;
}

bool tess__cpu_own_available(enum tess_dtype dtype)
{
    (void)dtype;
    return false;
}

bool tess__cpu_bf16_available(void)
{
    return false;
}

bool tess__cpu_conv_grad_takes(const struct tess_op_desc *desc)
{
    (void)desc;
    return false;
}

bool tess__cpu_flash_takes(const struct tess_op_desc *desc)
{
    (void)desc;
    return false;
}

size_t tess__cpu_forward_scratch(const struct tess_op_desc *desc)
{
    (void)desc;
    return 0;
}

size_t tess__cpu_data_scratch(const struct tess_op_desc *desc)
{
    (void)desc;
    return 0;
}

size_t tess__cpu_grad_scratch(const struct tess_op_desc *desc)
{
    (void)desc;
    return 0;
}

size_t tess__cpu_conv_grad_scratch(const struct tess_op_desc *desc)
{
    (void)desc;
    return 0;
}

size_t tess__cpu_flash_scratch(const struct tess_op_desc *desc)
{
    (void)desc;
    return 0;
}

void tess__cpu_forward(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                       const void *x, const void *w, const void *bias, void *y, void *scratch)
{
    (void)kernel, (void)desc, (void)x, (void)w, (void)bias, (void)y, (void)scratch;
}

void tess__cpu_data(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                    const void *dy, const void *w, void *dx, void *scratch)
{
    (void)kernel, (void)desc, (void)dy, (void)w, (void)dx, (void)scratch;
}

void tess__cpu_grad(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                    const void *x, const void *dy, float *dw, void *scratch)
{
    (void)kernel, (void)desc, (void)x, (void)dy, (void)dw, (void)scratch;
}

void tess__cpu_conv_grad(const struct tess_op_desc *desc, const void *x, const void *dy, float *dw,
                         void *scratch)
{
    (void)desc, (void)x, (void)dy, (void)dw, (void)scratch;
}

void tess__cpu_flash(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                     const void *q, const void *k, const void *v, void *y, float *lse,
                     void *scratch)
{
    (void)kernel, (void)desc, (void)q, (void)k, (void)v, (void)y, (void)lse, (void)scratch;
}

void tess__cpu_flash_grad(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                          const struct cpu_flash_grad *arrays, void *scratch)
{
    (void)kernel, (void)desc, (void)arrays, (void)scratch;
}
