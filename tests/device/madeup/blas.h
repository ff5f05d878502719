/*
 * What the files of blas*.c share. A matrix is column-major; D = alpha op(A) op(B) + beta C,
 * D [m, n], inner size k. "The document" is NVIDIA's cuBLAS documentation, section cublasLtMatmul
 * and the sections of its types; "the header" is cublasLt.h.
 *
 *   blas.c        handles, descriptors, layouts, preferences
 *   blas_check.c  what may be multiplied: the document's tables
 *   blas_algo.c   algorithms, heuristics
 *   blas_run.c    cublasLtMatmul: what its pointers must be, and its work
 *   blas_sum.c    the sums
 */
#ifndef TESTS_DEVICE_MADEUP_BLAS_H
#define TESTS_DEVICE_MADEUP_BLAS_H

#include "device/madeup/madeup.h"

#include <cublasLt.h>

/* How every function begins: with the error that is wanted of it. */
#define BLAS_INJECT(usual)                                                                         \
    do {                                                                                           \
        const int blas_injected_ = madeup_injected(__func__, usual);                               \
        if (blas_injected_ != 0)                                                                   \
            return (cublasStatus_t)blas_injected_;                                                 \
    } while (0)

struct blas_handle {
    uint32_t mark;
    int device;
};

struct blas_layout {
    uint32_t mark;
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t stride; /* elements from one column to the next */
};

struct blas_work {
    uint32_t mark;
    cublasComputeType_t compute;
    cudaDataType_t scale_type;
    int32_t transpose_a, transpose_b;
    uint32_t epilogue;
    int32_t bias_type; /* -1: D's */
    int64_t aux_stride;
    int8_t fast;
    int32_t multiprocessors; /* that it is for; 0: all */
    void *bias, *aux;
    const float *scale_a, *scale_b; /* device */
};

struct blas_preference {
    uint32_t mark, schemes;
    uint64_t workspace_bytes;
    uint32_t align_a, align_b, align_c, align_d;
};

/* One product, checked. */
struct blas_problem {
    struct blas_work work;
    struct blas_layout a, b, c, d;
    int64_t m, n, k;
    cudaDataType_t bias_type;
    bool narrow; /* 8-bit operands */
};

/* What the 64 bytes of cublasLtMatmulAlgo_t hold. `order` and what follows are no attributes: an
 * algorithm that is made again from its attributes lacks them. */
struct blas_algorithm {
    int32_t id;
    uint32_t tile;
    int32_t split;
    uint32_t scheme, swizzle, custom, stages;
    uint16_t inner, cluster;
    uint32_t order;   /* 1: the blocks of k are taken from the last to the first */
    uint32_t version; /* of the library that made it */
    uint32_t mark;
};

/* How one algorithm adds one product up. */
struct blas_sum {
    int64_t step;    /* products that are added to each other before they are added to the sum */
    int64_t parts;   /* of k, of which each has a sum of its own */
    bool backward;   /* blocks of `step` from the last to the first */
    uint32_t scheme; /* what becomes of the parts */
};

/* Ends the program where the handle, layout ... is none, or was destroyed. */
struct blas_handle *blas_handle(cublasLtHandle_t handle);
struct blas_layout *blas_layout(cublasLtMatrixLayout_t layout);
struct blas_work *blas_work(cublasLtMatmulDesc_t work);
struct blas_preference *blas_preference(cublasLtMatmulPreference_t preference);

/* ---- blas_check.c ---------------------------------------------------------------------------- */

size_t blas_type_bytes(cudaDataType_t type);
bool blas_has_bias(uint32_t epilogue); /* reads or writes a vector beside D */
bool blas_has_aux(uint32_t epilogue);
/* Bytes from the first to the last element. */
size_t blas_layout_bytes(const struct blas_layout *layout);
/* The greatest power of two that divides it, at most 256; 0: 256. */
uint32_t blas_align_of(uint64_t value);
/* NOT_SUPPORTED where no table has it, INVALID_VALUE where its parts contradict each other. */
cublasStatus_t blas_check(cublasLtMatmulDesc_t work, const cublasLtMatrixLayout_t layouts[4],
                          struct blas_problem *problem_out);
cublasStatus_t blas_check_types(cublasComputeType_t compute, cudaDataType_t scale,
                                const cudaDataType_t type[4]);

/* ---- blas_algo.c ----------------------------------------------------------------------------- */

/* Is it one of this library's, and may it run this problem? As far as that is known without
 * pointers. */
cublasStatus_t blas_algorithm_check(const struct blas_problem *problem,
                                    const cublasLtMatmulAlgo_t *algorithm,
                                    size_t *workspace_bytes_out);
/* Of an algorithm that was checked: does it fail when it is run? What blas_algorithm_check cannot
 * promise. */
bool blas_algorithm_breaks(const cublasLtMatmulAlgo_t *algorithm);
/* Bytes that its operands' addresses are multiples of. */
uint32_t blas_algorithm_align(const cublasLtMatmulAlgo_t *algorithm, cudaDataType_t type);
struct blas_sum blas_algorithm_sum(const struct blas_problem *problem,
                                   const cublasLtMatmulAlgo_t *algorithm);

/* ---- blas_sum.c ------------------------------------------------------------------------------ */

/* A queued product; what the queue's thread is given. */
struct blas_run {
    struct blas_problem problem;
    struct blas_sum sum;
    float alpha, beta;
    const void *a, *b, *c;
    void *d, *workspace;
    size_t workspace_bytes;
    int device;
};

/* All ranges have been checked. */
void blas_multiply(const struct blas_run *run);

#endif
