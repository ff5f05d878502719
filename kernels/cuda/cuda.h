/*
 * The CUDA room's own interface: what the C files of the backend share. Kernels and their extern
 * "C" launchers are in .cu files, declared in launch_*.h; the slots of the ops table that call
 * them are in .c files, declared in the header of the same word. Only this room includes headers of
 * CUDA.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include "tessera/check.h"
#include "tessera/kernel.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

/* Scratch of the matrix library, per rank: the size that cuBLAS recommends for Hopper (NVIDIA's
 * cuBLAS documentation, "cublasSetWorkspace"). */
#define CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

struct cuda_queue {
    struct tess_queue queue; /* native: the stream below */
    cudaStream_t stream;
};

struct cuda_state;

struct cuda_fence {
    struct tess_fence fence;
    const struct cuda_state *owner;
    cudaEvent_t event; /* for waits outside of a graph, and for times */
    cudaEvent_t inner; /* for work in the same graph */
    uint64_t graph;    /* the number of that graph, see cuda_state; 0: none */
    bool recorded;
};

struct cuda_plans;  /* matmul.c: plans of products, by shape */
struct cuda_cudnn;  /* conv_cudnn.c */
struct cuda_graphs; /* graph.c */

/* Behind struct tess_kernel. */
struct cuda_state {
    int device; /* that the opening thread had selected, as CUDA numbers them */
    int multiprocessors;
    struct cuda_queue *queue; /* the kernels' own */
    cublasLtHandle_t blas;
    void *workspace; /* [CUDA_WORKSPACE_BYTES] */
    struct cuda_plans *plans;
    enum tess_conv conv;      /* IM2COL or CUDNN */
    struct cuda_cudnn *cudnn; /* NULL: not in use */
    cudaError_t error;        /* the first error of a launch; returned by failed() */
    const char *error_where;  /* a literal */
    bool planned_only;        /* opened by a thread without a device: it only plans */
    void *bounce;             /* pinned, by which other host memory comes and goes; memory.c */
    cudaEvent_t bounced[2];
    uint64_t graph; /* > 0: this rank's work is being recorded, as its graph of this number */
    struct cuda_graphs *graphs;
};

static inline struct cuda_state *tess__cuda_state(const struct tess_kernel *kernel)
{
    return kernel->state;
}

static inline cudaStream_t tess__cuda_stream(const struct tess_kernel *kernel)
{
    return tess__cuda_state(kernel)->queue->stream;
}

/* Keep the first error of a call that has no status to give; `where` is a literal. */
void tess__cuda_note(struct tess_kernel *kernel, cudaError_t error, const char *where);
/* TESS_ERR_MEMORY where device memory is exhausted, else TESS_ERR_DEVICE, with the device's number,
 * the failed call and CUDA's message. */
enum tess_status tess__cuda_fail(cudaError_t error, const char *where);

/* For teardown, which has no status: logged at debug level, because the cause was reported before.
 */
void tess__cuda_log_error(cudaError_t error, const char *where);

/* The value of every call of CUDA's libraries is used: by this, by the functions above, or by the
 * caller; tests/kernels/cuda/checked.sh checks it. */
#define CUDA_TRY(call)                                                                             \
    do {                                                                                           \
        cudaError_t cuda_try_error_ = (call);                                                      \
        if (cuda_try_error_ != cudaSuccess)                                                        \
            return tess__cuda_fail(cuda_try_error_, #call);                                        \
    } while (0)

#endif
