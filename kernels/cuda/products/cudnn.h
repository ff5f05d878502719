/*
 * cuDNN's backend API, as the files x_cudnn.c use it: the library, which is opened at run time, and
 * graphs of one convolution. Facts about descriptors, their attributes and their types are of
 * NVIDIA's "cuDNN Backend API" reference and of cudnn_graph.h.
 */
#ifndef KERNELS_CUDA_PRODUCTS_CUDNN_H
#define KERNELS_CUDA_PRODUCTS_CUDNN_H

#include "cuda/products/conv_cudnn.h"

#include <cudnn_graph.h>

/* ---- load_cudnn.c ------------------------------------------------------------------------- */

#define CUDNN_FUNCTIONS(X)                                                                         \
    X(cudnnGetVersion)                                                                             \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnGetLastErrorString)                                                                     \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendExecute)

/* Under their own names. */
struct cudnn_library {
#define CUDNN_POINTER(name) __typeof__(name) *name;
    CUDNN_FUNCTIONS(CUDNN_POINTER)
#undef CUDNN_POINTER
};

/* NULL where it is not there, cannot be used, or has another major version; *why_out, which may
 * be NULL, is then a sentence. Any thread; determined once. */
const struct cudnn_library *tess__cudnn_library(const char **why_out);

/* As tess__cuda_blas_fail, with cuDNN's own words about its last error. */
enum tess_status tess__cudnn_fail(cudnnStatus_t error, const char *where);
#define CUDNN_TRY(call)                                                                            \
    do {                                                                                           \
        cudnnStatus_t cudnn_try_error_ = (call);                                                   \
        if (cudnn_try_error_ != CUDNN_STATUS_SUCCESS)                                              \
            return tess__cudnn_fail(cudnn_try_error_, #call);                                      \
    } while (0)

/* ---- graph_cudnn.c ------------------------------------------------------------------------ */

/* One leaf of a convolution. Images are [d.leaf_rows, d.height, d.width, d.in], weights [d.out,
 * d.window, d.window, d.in]. */
struct cudnn_conv {
    enum conv_way way;
    bool tf32; /* factors of f32 may be cut to 10 bits */
    struct tess_op_desc d;
};

/* Where plans are to run: on a handle's device, or on one that is described only (a descriptor of
 * its properties, cuDNN 9.8), for which plans can be made and not run. */
struct cudnn_place {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties; /* NULL: the handle's */
};

/* What a plan calls its operands. */
enum cudnn_tensor { CUDNN_X = 1, CUDNN_W, CUDNN_BIAS, CUDNN_Y, CUDNN_SUM };

/* What was chosen. plan NULL: nothing could be. */
struct cudnn_choice {
    cudnnBackendDescriptor_t plan, config;
    int64_t engine, workspace_bytes;
    uint32_t notes; /* bit n: CUDNN_NUMERICAL_NOTE n */
};

/* Bytes that a pointer to this operand is a multiple of. */
int64_t tess__cudnn_alignment(const struct cudnn_conv *conv, enum cudnn_tensor tensor);

/* The first of the engines that cuDNN advises for it which may be used. */
enum tess_status tess__cudnn_choose(const struct cudnn_conv *conv, const struct cudnn_place *place,
                                    struct cudnn_choice *choice_out);
void tess__cudnn_choice_drop(struct cudnn_choice *choice);

#endif
