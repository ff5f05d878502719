/* What slots of kernels/cuda need around them on the emulator: slots.c has the functions that they
 * call of the rest of the backend. */
#ifndef TESTS_KERNELS_EMULATE_SLOTS_H
#define TESTS_KERNELS_EMULATE_SLOTS_H

#include "tessera/kernel.h"

/* A kernel whose queue is the stream of NULL; slots that report an error to it end the program. */
extern struct tess_kernel emulate_kernel;

/* An operation of that kernel, for its prepared slots. */
struct tess_op emulate_op(const struct tess_op_desc *desc, void *scratch);

#endif
