/* Stand-ins for the device's memory and for the library's opening, around the made-up cuDNN of
 * fake_engine.h: for tests of the files that make and run its plans. */
#ifndef TESTS_KERNELS_CUDA_FAKE_DEVICE_H
#define TESTS_KERNELS_CUDA_FAKE_DEVICE_H

#include "cuda/host.h"
#include "fake_engine.h"

extern int fake_arrays;  /* of device memory that are alive */
extern bool fake_absent; /* the library cannot be opened */

#endif
