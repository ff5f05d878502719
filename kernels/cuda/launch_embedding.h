/* Launchers of embedding.cu and sort.cu; contracts: tessera/kernel.h, tess_embedding_forward and
 * tess_embedding_backward. */
#ifndef KERNELS_CUDA_LAUNCH_EMBEDDING_H
#define KERNELS_CUDA_LAUNCH_EMBEDDING_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows and entries are counted in 31 bits; the tree over leaves has that many levels at most. */
#define TESS__CUDA_EMBEDDING_MAX INT32_MAX

struct tess__cuda_embedding {
    enum tess_dtype dtype;
    int64_t rows, leaf_rows;
    int64_t entries, width; /* of the table */
    int64_t length, first;  /* of positions; token of the first entry */
};

cudaError_t tess__cuda_launch_embedding_forward(cudaStream_t stream,
                                                const struct tess__cuda_embedding *embedding,
                                                const int32_t *token, const void *table,
                                                const void *add, void *y);

/* Scratch of the backward, 16-byte aligned; for tokens and for positions. */
size_t tess__cuda_embedding_bytes(const struct tess__cuda_embedding *embedding);
cudaError_t tess__cuda_launch_embedding_backward(cudaStream_t stream,
                                                 const struct tess__cuda_embedding *embedding,
                                                 const int32_t *token, const void *dy,
                                                 float *dtable, void *scratch);

/* Rows sorted by entry, those of an entry in order: entry e has order[begin[e] .. end[e]). begin
 * and end [entries]; rows whose token is outside the table are in none. */
struct tess__cuda_sorted {
    int32_t *begin, *end, *order;
    size_t bytes;
};

/* Where in `scratch` the results of the sort come to lie; bytes: what it takes of it in all. */
struct tess__cuda_sorted tess__cuda_sort_layout(int64_t rows, int64_t entries, void *scratch);
cudaError_t tess__cuda_launch_sort(cudaStream_t stream, int64_t rows, int64_t entries,
                                   int64_t first, const int32_t *token, void *scratch);

#ifdef __cplusplus
}
#endif

#endif
