/* For builds without AVX-512: linear.c uses oneDNN instead. */
#include "cpu/cpu.h"

size_t tess__cpu_data_scratch(const struct tess_op_desc *desc)
{
    (void)desc;
    return 0;
}

void tess__cpu_data(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                    const void *dy, const void *w, void *dx, void *scratch)
{
    (void)kernel, (void)desc, (void)dy, (void)w, (void)dx, (void)scratch;
}
