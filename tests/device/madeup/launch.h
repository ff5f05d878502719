/* Kernels that do next to nothing, for tests of launches. */
#ifndef TESTS_DEVICE_MADEUP_LAUNCH_H
#define TESTS_DEVICE_MADEUP_LAUNCH_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t launch_nothing(cudaStream_t stream, unsigned blocks_x, unsigned blocks_y,
                           unsigned threads_x, unsigned threads_z, size_t shared_bytes);
/* To be asked for more shared memory. */
const void *launch_kernel(void);

/* One block of a kernel that has LAUNCH_STATIC bytes of shared memory of its own. */
#define LAUNCH_STATIC ((size_t)32 << 10)
cudaError_t launch_static(cudaStream_t stream, size_t shared_bytes);
const void *launch_static_kernel(void);

#ifdef __cplusplus
}
#endif
#endif
