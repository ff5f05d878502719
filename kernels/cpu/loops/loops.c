/* The table of own loops of one instruction set, CPU_LEVEL. */
#include "cpu/loops/loops.h"

#define CPU_TABLE_(level) tess__cpu_loops_##level
#define CPU_TABLE(level)  CPU_TABLE_(level)

const struct cpu_loops CPU_TABLE(CPU_LEVEL) = {
#define CPU_SLOT_ENTRY(name)       .name = CPU_LOOP(name),
#define CPU_LOOP_ENTRY(type, name) .name = CPU_LOOP(name),
    CPU_SLOT_LIST(CPU_SLOT_ENTRY) CPU_LOOP_LIST(CPU_LOOP_ENTRY)};
