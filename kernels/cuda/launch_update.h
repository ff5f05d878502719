/* Launchers of update.cu and judge.cu. Each returns the launch's error. */
#ifndef KERNELS_CUDA_LAUNCH_UPDATE_H
#define KERNELS_CUDA_LAUNCH_UPDATE_H

#include "tessera/update.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* tess_update_all; `update` is read before the call returns. */
cudaError_t tess__cuda_launch_update(cudaStream_t stream, const struct tess_update *update,
                                     int32_t count);
/* tess_lamb_direction of several pieces. */
cudaError_t tess__cuda_launch_lamb_direction(cudaStream_t stream, const struct tess_update *update,
                                             int32_t count);
cudaError_t tess__cuda_launch_update_judge(cudaStream_t stream, const struct tess_judge *judge);

#ifdef __cplusplus
}
#endif
#endif
