/*
 * Names of the own loops of one instruction set: CPU_LOOP(relu_forward) is
 * tess__cpu_v4_relu_forward where CPU_LEVEL is v4. For the files that are built once per
 * instruction set only.
 */
#ifndef KERNELS_CPU_LOOPS_LOOPS_H
#define KERNELS_CPU_LOOPS_LOOPS_H

#include "cpu/cpu.h"

#define CPU_JOIN_(level, name) tess__cpu_##level##_##name
#define CPU_JOIN(level, name)  CPU_JOIN_(level, name)
#define CPU_LOOP(name)         CPU_JOIN(CPU_LEVEL, name)

#define CPU_SLOT_FUNCTION(name)       __typeof__(tess_##name) CPU_LOOP(name);
#define CPU_LOOP_FUNCTION(type, name) type CPU_LOOP(name);
CPU_SLOT_LIST(CPU_SLOT_FUNCTION)
CPU_LOOP_LIST(CPU_LOOP_FUNCTION)
#undef CPU_SLOT_FUNCTION
#undef CPU_LOOP_FUNCTION

#endif
