/* The runtime's few calls of launchers, for tests without a device: all is done at once. */
#include "emulate/native.h"

#include <stdio.h>
#include <stdlib.h>

cudaError_t emulate_submit(cudaStream_t, const emulate_kernel &later)
{
    fprintf(stderr, "emulate: a launch at %s:%d on a stream, and there is no device\n", later.file,
            later.line);
    abort();
}

extern "C" cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t)
{
    memset(memory, value, bytes);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes,
                                       enum cudaMemcpyKind, cudaStream_t)
{
    memcpy(target, source, bytes);
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return cudaSuccess;
}
