/* Processors other than x86: the loops for any processor, and no own matrix kernel. */
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
