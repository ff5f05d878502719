/* One product of the stand-in for cuBLASLt with its operands, in the test's memory and on the
 * device, and what its result must be: plain sums in double. */
#ifndef TESTS_DEVICE_MADEUP_BLAS_CASE_H
#define TESTS_DEVICE_MADEUP_BLAS_CASE_H

#include <cublasLt.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above first */
#include <cmocka.h>

#define CANDIDATES      16
#define WORKSPACE_BYTES ((size_t)1 << 20)

#define CUDA(call) assert_int_equal(call, cudaSuccess)
#define BLAS(call) assert_int_equal(call, CUBLAS_STATUS_SUCCESS)

extern cublasLtHandle_t handle;
extern cudaStream_t stream;
extern void *workspace; /* [WORKSPACE_BYTES] */

void put(void *target, const void *source, size_t bytes);
void get(void *target, const void *source, size_t bytes);
size_t bytes_of(cudaDataType_t type);

struct product {
    cublasComputeType_t compute;
    cudaDataType_t a, b, d, bias;
    bool turn_a, turn_b;
    int64_t m, n, k;
    uint32_t epilogue;
    float beta;
    int64_t gap; /* elements between columns */
    int64_t aux_gap;
    uint32_t align; /* that is asked for; 0: 256 */
};

struct array {
    void *host, *device;
    size_t bytes;
};

enum { A, B, D, BIAS, AUX, SCALE_A, SCALE_B, ARRAYS };

struct open {
    struct product p;
    struct array at[ARRAYS];
    int64_t stride[3];
    cublasLtMatmulDesc_t work;
    cublasLtMatrixLayout_t layout[3];
};

struct open open_product(const struct product *p);
void close_product(struct open *o);
void set(struct open *o, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes);

/* The heuristics, AlgoCheck, and the product with its operands. */
cublasStatus_t ask(const struct open *o, uint32_t schemes, uint64_t workspace_bytes,
                   cublasLtMatmulHeuristicResult_t *results, int *count);
cublasStatus_t check(const struct open *o, const cublasLtMatmulAlgo_t *algorithm,
                     size_t *bytes_out);
cublasStatus_t run(const struct open *o, const cublasLtMatmulAlgo_t *algorithm, void *scratch,
                   size_t scratch_bytes);
/* The first algorithm that runs. */
cublasLtMatmulAlgo_t working(const struct open *o);

/* Fail where the results, copied from the device, are not those of the operands. */
void expect_bias_gradient(const struct open *o, const void *bias);
void expect_results(const struct open *o, const void *d, const void *aux);
void expect_gaps(const struct open *o, const char *d);

#endif
