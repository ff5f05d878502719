/* The table of own kernels of one instruction set, CPU_LEVEL. */
#include "cpu/own/vector.h"

const struct cpu_own CPU_OWN(own) = {
#define OWN_ENTRY(type, name) .name = CPU_OWN(name),
    CPU_OWN_LIST(OWN_ENTRY)};
