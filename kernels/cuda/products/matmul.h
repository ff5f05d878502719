/*
 * Products over cuBLASLt: what a product is, plans made of it when an operation is opened, and
 * running them. A plan has its descriptors and its algorithm; running one creates nothing.
 * linear.c, fp8.c and conv.c define the products of layers.
 *
 * cuBLASLt's matrices are column-major, so a row-major array [rows, columns] is its matrix of
 * `columns` rows. With D = op(A) op(B), D m x n, inner size k, the three products of a layer
 * y[B, out] = x[B, in] w[out, in]^T are
 *
 *                   A       B      D       m     n      k
 *     forward       w, T    x      y       out   B      in
 *     data          w       dy     dx      in    B      out
 *     weight        x       dy, T  dw      in    out    B
 *
 * The rows of a batch are the columns of B and D: n. Their bits must not depend on n
 * (tessera/kernel.h, "Rows and leaves"); see cuda_rows.
 */
#ifndef KERNELS_CUDA_PRODUCTS_MATMUL_H
#define KERNELS_CUDA_PRODUCTS_MATMUL_H

#include "cuda/cuda.h"
#include "needs/room.h"

/* As CUDA_TRY; for what cuBLASLt returns. */
enum tess_status tess__cuda_blas_fail(cublasStatus_t error, const char *where);
#define CUBLAS_TRY(call)                                                                           \
    do {                                                                                           \
        cublasStatus_t cublas_try_error_ = (call);                                                 \
        if (cublas_try_error_ != CUBLAS_STATUS_SUCCESS)                                            \
            return tess__cuda_blas_fail(cublas_try_error_, #call);                                 \
    } while (0)

/* One product; arrays have no gaps. Also the key of the plan cache. */
struct cuda_product {
    int64_t m, n, k;
    int64_t like_n;         /* 0; or the algorithm is that of the same product with this n */
    bool like_plain;        /* the algorithm, and the bits, are those of the same product without
                               its epilogue */
    cudaDataType_t a, b, d; /* f32, f16, bf16; A and B also e4m3 and e5m2 */
    cublasLtEpilogue_t epilogue;
    cublasComputeType_t compute;
    bool transpose_a, transpose_b;
    bool fast;         /* of 8-bit operands: see tess__cuda_matmul_fp8_fast */
    int32_t sm_target; /* set by tess__cuda_plan_get */
    bool same_rows;    /* see tess__cuda_matmul_same_rows */
    bool split; /* the sum over k may be cut into parts that run beside each other; they are added
                   in f32, in a fixed order. Only where n is no number of rows */
};

/* D = op(A) op(B), types and the rest as they usually are: f32 sums, no epilogue. */
struct cuda_product tess__cuda_product(int64_t m, int64_t n, int64_t k, cudaDataType_t type);

struct cuda_operands {
    const void *a, *b;
    void *d;
    void *bias;                     /* [m] of D's type; BGRADB: written, [n] */
    void *aux;                      /* GELU_AUX: written, DGELU: read; as D */
    const float *scale_a, *scale_b; /* device; 8-bit operands are multiplied by them */
    float beta;                     /* D = op(A) op(B) + beta C, in f32, rounded once; 0 or 1 */
    const void *c;                  /* C, as D; NULL: D */
};

struct cuda_plan;

/* Makes the kernel's cache, empty. The first plan would make it too. */
enum tess_status tess__cuda_matmul_open(struct tess_kernel *kernel);
/* Frees all plans; NULL in state->plans is allowed. */
void tess__cuda_matmul_close(struct tess_kernel *kernel);

/*
 * Measure the candidates of every plan made from here on, and keep the choice in the text file
 * `cache_path` (NULL: nowhere), by device, driver, library version and product. A choice that is in
 * the file is used without measuring, so that ranks that share the file share the algorithms and
 * with them the bits. A file that cannot be read or is damaged costs a warning and new
 * measurements.
 */
enum tess_status tess__cuda_matmul_autotune(struct tess_kernel *kernel, bool on,
                                            const char *cache_path);
/* One line per plan. */
void tess__cuda_matmul_describe(const struct tess_kernel *kernel,
                                void (*line)(void *context, const char *text), void *context);

/*
 * The plan of a product, from the cache or new. Plans belong to the kernel. *plan_out is NULL where
 * cuBLASLt has no algorithm for it; then another epilogue may have one. Not in a step.
 */
enum tess_status tess__cuda_plan_get(struct tess_kernel *kernel, const struct cuda_product *product,
                                     struct cuda_plan **plan_out);
/* Queue it. Pointers must be as aligned as the rows of their arrays, up to 64 bytes. */
enum tess_status tess__cuda_plan_run(struct tess_kernel *kernel, struct cuda_plan *plan,
                                     const struct cuda_operands *operands);

/*
 * A product over the rows of a batch that gives each leaf the bits it has alone: `leaf` is the plan
 * of one leaf, `all` the same algorithm over all of them, or NULL where there is one leaf only, the
 * algorithm does not take that size, or a run over random numbers gave other bits.
 */
struct cuda_rows {
    struct cuda_plan *leaf, *all;
    int64_t leaves;
    size_t b_bytes, d_bytes; /* of one leaf */
    bool relu_after;         /* there is no algorithm with the ReLU: the plans leave it out */
    bool bias_first;         /* nor with the bias: D is filled with it, and the product added */
};

/* `product` is that of one leaf. rows_out->leaf is NULL where there is no algorithm. */
enum tess_status tess__cuda_rows_open(struct tess_kernel *kernel,
                                      const struct cuda_product *product, int64_t leaves,
                                      struct cuda_rows *rows_out);
/* operands: of one leaf. */
enum tess_status tess__cuda_leaf_run(struct tess_kernel *kernel, const struct cuda_rows *rows,
                                     const struct cuda_operands *operands);
/* operands: of the whole batch. */
enum tess_status tess__cuda_rows_run(struct tess_kernel *kernel, const struct cuda_rows *rows,
                                     const struct cuda_operands *operands);

cudaDataType_t tess__cuda_data_type(enum tess_dtype dtype);

/* How products of this type add up, in plans made from here on: f32; of f32 in TF32 (10 bits of
 * fraction) where that was turned on, and the operation does not insist on f32. Off by default. */
enum tess_status tess__cuda_matmul_tf32(struct tess_kernel *kernel, bool on);
/*
 * 8-bit products in plans made from here on add up in the tensor cores alone (cublasLt.h,
 * CUBLASLT_MATMUL_DESC_FAST_ACCUM). Off, the library brings the sums to f32 every so many products
 * on Hopper. Either is within the bound of tests/kernels/test_fp8.c, which is that of a sum that
 * the units alone have made. Off by default.
 */
enum tess_status tess__cuda_matmul_fp8_fast(struct tess_kernel *kernel, bool on);
/*
 * Forward products give a row the same bits in plans made from here on, however many rows there
 * are, as decoding has few: the algorithm is that of CUDA_SAME_ROWS rows, the first that gives some
 * of those the bits that each has alone. Off by default.
 */
#define CUDA_SAME_ROWS 4096
enum tess_status tess__cuda_matmul_same_rows(struct tess_kernel *kernel, bool on);
bool tess__cuda_matmul_has_same_rows(const struct tess_kernel *kernel);
/* Plans made from here on are for so many of the device's multiprocessors (cublasLt.h,
 * CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET); 0: all. TESS_ERR_USAGE where it has fewer. */
enum tess_status tess__cuda_matmul_sm_target(struct tess_kernel *kernel, int32_t count);
bool tess__cuda_matmul_is_fast(const struct tess_kernel *kernel, cudaDataType_t type);
cublasComputeType_t tess__cuda_matmul_compute(const struct tess_kernel *kernel, cudaDataType_t type,
                                              bool exact);

/* `to` = `from`, of the operation's dtype, in f32. */
static inline void tess__cuda_widen(const struct tess_op *op, int64_t count, const void *from,
                                    float *to)
{
    op->kernel->ops->cast(op->kernel, count, op->desc.dtype, from, TESS_F32, to);
}

#endif
