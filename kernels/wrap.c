/* What is done with an open kernel's block by those who did not open it; see wrap.h. */
#include "wrap.h"

#include "kernel_open.h"

bool tess__kernel_lacks(struct tess_kernel *kernel, const char *name)
{
    struct tess__kernel_block *block = (struct tess__kernel_block *)kernel;
    (void)tess_fail(TESS_ERR_UNSUPPORTED,
                    "kernel %s has no operation %s: use another kernel (--kernel)",
                    kernel->ops->name, name);
    block->lacking = name;
    return false;
}

struct tess_kernel_ops *tess__kernel_slots(struct tess_kernel *kernel)
{
    return &((struct tess__kernel_block *)kernel)->ops;
}
