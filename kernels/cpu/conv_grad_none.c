/* For builds without AVX-512: conv.c takes one oneDNN primitive per leaf instead. */
#include "cpu/cpu.h"

bool tess__cpu_conv_grad_takes(const struct tess_op_desc *desc)
{
    (void)desc;
    return false;
}

size_t tess__cpu_conv_grad_scratch(const struct tess_op_desc *desc)
{
    (void)desc;
    return 0;
}

void tess__cpu_conv_grad(const struct tess_op_desc *desc, const void *x, const void *dy, float *dw,
                         void *scratch)
{
    (void)desc, (void)x, (void)dy, (void)dw, (void)scratch;
}
