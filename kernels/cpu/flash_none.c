/* For builds without AVX-512: sequence.c leaves attention to ref instead. */
#include "cpu/cpu.h"

bool tess__cpu_flash_takes(const struct tess_op_desc *desc)
{
    (void)desc;
    return false;
}

size_t tess__cpu_flash_scratch(const struct tess_op_desc *desc)
{
    (void)desc;
    return 0;
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
