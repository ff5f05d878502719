/*
 * Launchers of operations on rows and images, by the file that has them; the contract of
 * tess__cuda_launch_<name> is that of tess_<name> in tessera/kernel.h. Each returns the launch's
 * error. Scratch is 16-byte aligned.
 */
#ifndef KERNELS_CUDA_ROWS_LAUNCH_ROWS_H
#define KERNELS_CUDA_ROWS_LAUNCH_ROWS_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- columns.cu: sums over rows ----------------------------------------------------------- */

/*
 * Sums over rows, by leaves, without atomics. Rows of a leaf are cut into slabs; every slab gives a
 * row of partial sums; the slabs of a leaf are added in one fixed order, then the leaves as the
 * tree of tessera/comm.h. The order depends on the rows of a leaf and on the number of columns
 * alone.
 */

/* Bytes of scratch for the sum below. */
size_t tess__cuda_column_sum_bytes(enum tess_dtype dtype, int64_t leaves, int64_t leaf_rows,
                                   int64_t n);
/*
 * out[n] = (add ? out : 0) + the sum over the rows of x [leaves * leaf_rows, n], f32, bf16 or f16,
 * by leaves. n >= 1. scratch: of the size above, 16-byte aligned.
 */
cudaError_t tess__cuda_column_sum(cudaStream_t stream, enum tess_dtype dtype, int64_t leaves,
                                  int64_t leaf_rows, int64_t n, const void *x, bool add, float *out,
                                  void *scratch);

/* leaf[leaves, n] = for each leaf the sum of its rows of partial [leaves, slabs, n]. */
cudaError_t tess__cuda_column_leaves(cudaStream_t stream, int64_t leaves, int64_t slabs, int64_t n,
                                     const float *partial, float *leaf);
/* out[n] = (add ? out : 0) + the tree over leaf [leaves, n]; no leaves: 0. */
cudaError_t tess__cuda_column_tree(cudaStream_t stream, int64_t leaves, int64_t n,
                                   const float *leaf, bool add, float *out);
/* Both of them. leaf [leaves, n] may be used on the way. */
cudaError_t tess__cuda_column_finish(cudaStream_t stream, int64_t leaves, int64_t slabs, int64_t n,
                                     const float *partial, float *leaf, bool add, float *out);

/* ---- norm.cu ------------------------------------------------------------------------------ */

/* Widest row: 32 elements for each of 512 threads stay in registers. */
#define TESS__CUDA_NORM_MAX 16384

struct tess__cuda_norm {
    enum tess_dtype dtype;
    int64_t rows, leaf_rows, channels; /* channels 1 .. TESS__CUDA_NORM_MAX */
    bool rms;
    float epsilon;
};

cudaError_t tess__cuda_launch_norm_forward(cudaStream_t stream, const struct tess__cuda_norm *norm,
                                           const void *x, const void *add, void *sum,
                                           const void *gamma, const void *beta, void *y,
                                           float *mean, float *rstd);

/* Scratch of the backward, 16-byte aligned. */
size_t tess__cuda_norm_bytes(const struct tess__cuda_norm *norm);
cudaError_t tess__cuda_launch_norm_backward(cudaStream_t stream, const struct tess__cuda_norm *norm,
                                            const void *x, const void *dy, const void *gamma,
                                            const float *mean, const float *rstd, const void *add,
                                            void *dx, float *dgamma, float *dbeta, void *scratch);

/* ---- xent.cu; rows >= 1 ------------------------------------------------------------------- */

/* Classes [first, first + classes) of rows of `stride`. */
struct tess__cuda_xent {
    enum tess_dtype dtype;
    int64_t rows, classes, stride, first;
};

cudaError_t tess__cuda_launch_xent_max(cudaStream_t stream, const struct tess__cuda_xent *xent,
                                       const void *logits, float *max);
cudaError_t tess__cuda_launch_xent_sum(cudaStream_t stream, const struct tess__cuda_xent *xent,
                                       const void *logits, const int32_t *label, const float *max,
                                       float *sum, float *target, float *best);
cudaError_t tess__cuda_launch_xent_grad(cudaStream_t stream, const struct tess__cuda_xent *xent,
                                        float scale, const void *logits, const int32_t *label,
                                        const float *max, const float *sum, void *dlogits);
cudaError_t tess__cuda_launch_xent_loss(cudaStream_t stream, int64_t rows, int64_t length,
                                        const int32_t *label, const float *max, const float *sum,
                                        const float *target, const float *best, float *loss,
                                        int32_t *correct);
/* first 0, stride = classes; dlogits may be NULL or the logits. */
cudaError_t tess__cuda_launch_softmax_xent(cudaStream_t stream, const struct tess__cuda_xent *xent,
                                           float scale, const void *logits, const int32_t *label,
                                           void *dlogits, float *loss, int32_t *correct);

/* ---- embedding.cu, sort.cu ---------------------------------------------------------------- */

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

/* ---- batch_norm.cu, pool.cu --------------------------------------------------------------- */

struct tess__cuda_batch_norm {
    enum tess_dtype dtype;
    int64_t leaves, pixels, channels; /* pixels of a leaf: its rows times height times width */
    bool relu;
    float epsilon;
};

/* Scratch of each of the three, 16-byte aligned. */
size_t tess__cuda_batch_norm_bytes(const struct tess__cuda_batch_norm *norm);
cudaError_t tess__cuda_launch_batch_norm_forward(cudaStream_t stream,
                                                 const struct tess__cuda_batch_norm *norm,
                                                 const void *x, const void *gamma, const void *beta,
                                                 void *y, float *save_mean, float *save_rstd,
                                                 float *mean_sum, float *var_sum, void *scratch);
cudaError_t tess__cuda_launch_batch_norm_infer(cudaStream_t stream,
                                               const struct tess__cuda_batch_norm *norm,
                                               const void *x, const void *gamma, const void *beta,
                                               const void *mean, const void *var, void *y,
                                               void *scratch);
cudaError_t tess__cuda_launch_batch_norm_backward(cudaStream_t stream,
                                                  const struct tess__cuda_batch_norm *norm,
                                                  const void *x, const void *y, const void *dy,
                                                  const void *gamma, const float *save_mean,
                                                  const float *save_rstd, void *dx, float *dgamma,
                                                  float *dbeta, void *scratch);

struct tess__cuda_pool {
    enum tess_dtype dtype;
    int64_t images;
    int32_t height, width, channels, out_height, out_width;
    int32_t window, stride, padding;
    bool relu;
};

cudaError_t tess__cuda_launch_max_pool_forward(cudaStream_t stream,
                                               const struct tess__cuda_pool *pool, const void *x,
                                               void *y, uint8_t *which);
cudaError_t tess__cuda_launch_max_pool_backward(cudaStream_t stream,
                                                const struct tess__cuda_pool *pool, const void *dy,
                                                const uint8_t *which, void *dx);
cudaError_t tess__cuda_launch_avg_pool_forward(cudaStream_t stream,
                                               const struct tess__cuda_pool *pool, const void *x,
                                               void *y);
cudaError_t tess__cuda_launch_avg_pool_backward(cudaStream_t stream,
                                                const struct tess__cuda_pool *pool, const void *dy,
                                                void *dx);

/* ---- conv.cu ------------------------------------------------------------------------------ */

/* Images [images, height, width, channels] and the places of a window over them. An image's windows
 * hold fewer than 2^31 elements. */
struct cuda_windows {
    int64_t images;
    int32_t height, width, channels;
    int32_t out_height, out_width;
    int32_t window, stride, padding;
};

/* columns[images out_height out_width, window, window, channels] = x under the window at each
 * place, 0 outside of the image. Both of dtype f32, bf16 or f16. */
cudaError_t tess__cuda_conv_windows(cudaStream_t stream, enum tess_dtype dtype,
                                    const struct cuda_windows *windows, const void *x,
                                    void *columns);
/* dx[images, height, width, channels] of dtype = the sum over the windows that hold the element, in
 * the order of their rows and columns, of f32 columns; each sum begins with +0, in f32, rounded
 * once. */
cudaError_t tess__cuda_conv_gather(cudaStream_t stream, enum tess_dtype dtype,
                                   const struct cuda_windows *windows, const float *columns,
                                   void *dx);

#ifdef __cplusplus
}
#endif

#endif
