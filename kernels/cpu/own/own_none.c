/*
 * Processors other than x86: the loops for any processor, and no own matrix kernels: oneDNN or ref
 * computes instead.
 */
#include "cpu/cpu.h"

const struct cpu_loops *tess__cpu_loops_best(void)
{
    return &tess__cpu_loops_base;
}

const struct cpu_own *tess__cpu_own(enum tess_dtype dtype)
{
    (void)dtype;
    return NULL;
}

bool tess__cpu_bf16_available(void)
{
    return false;
}

bool tess__cpu_tiles(void)
{
    return false;
}
