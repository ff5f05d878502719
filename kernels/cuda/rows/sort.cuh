/* Rows sorted by token, for the gradient of an embedding table. */
#ifndef KERNELS_CUDA_ROWS_SORT_CUH
#define KERNELS_CUDA_ROWS_SORT_CUH

#include "cuda/launch.cuh"
#include "needs/rows.h"

/* Where in `scratch`, 16-byte aligned, the results come to lie; bytes: what the sort takes of it.
 */
sort_result sort_layout(int64_t rows, int64_t entries, void *scratch);
cudaError_t sort_launch(cudaStream_t stream, int64_t rows, int64_t entries, int64_t first,
                        const int32_t *token, void *scratch);

#endif
