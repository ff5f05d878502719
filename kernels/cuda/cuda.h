/*
 * The CUDA room's own interface: the state of an open kernel, for the C files of the backend.
 * Kernels and the slots that launch them are in .cu files (slots.h). Only this room includes
 * headers of CUDA.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include "cuda/slots.h"

#include <cublasLt.h>

/* Scratch of the matrix library, per rank: the size that cuBLAS recommends for Hopper (NVIDIA's
 * cuBLAS documentation, "cublasSetWorkspace"). */
#define CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

struct cuda_plans;  /* matmul_cache.c: plans of products, by shape */
struct cuda_cudnn;  /* run_cudnn.c */
struct cuda_graphs; /* graph.c */

/* Behind struct tess_kernel. */
struct cuda_state {
    int device;              /* that the opening thread had selected, as CUDA numbers them */
    struct tess_queue queue; /* the kernels' own; without a stream where it only plans */
    cublasLtHandle_t blas;
    void *workspace; /* [CUDA_WORKSPACE_BYTES] */
    struct cuda_plans *plans;
    enum tess_conv conv; /* IM2COL or CUDNN */
    enum tess_attention attention;
    const char *attention_store; /* AUTO: file of what was measured; NULL: nowhere */
    uint8_t attention_vote;      /* AUTO: what was measured so far; attention_choice.c */
    bool attention_own;          /* AUTO: our own kernels, whatever op->data offers */
    struct cuda_cudnn *cudnn;    /* NULL: not in use */
    cudaError_t error;           /* the first error of a launch; returned by failed() */
    const char *error_where;     /* a literal */
    double limit_s;              /* for which the host waits for the device; 0: for ever */
    bool planned_only;           /* opened by a thread without a device: it only plans */
    /* Opens it on the thread's device, or on the first one where it has selected none. `what`
     * ("allocate device memory") is for the message where there is no device. */
    enum tess_status (*start)(struct tess_kernel *kernel, const char *what);
    char *bounce; /* pinned, by which other host memory comes and goes; memory.c */
    cudaEvent_t bounced[2];
    uint64_t graph; /* > 0: this rank's work is being recorded, as its graph of this number */
    struct cuda_graphs *graphs;
};

static inline struct cuda_state *tess__cuda_state(const struct tess_kernel *kernel)
{
    return kernel->state;
}

/* For teardown, which has no status: logged at debug level, because the cause was reported before.
 */
void tess__cuda_log_error(cudaError_t error, const char *where);

#endif
