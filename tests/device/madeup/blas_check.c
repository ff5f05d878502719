/*
 * What cuBLASLt multiplies: the tables of types of NVIDIA's cuBLAS documentation for CUDA 13,
 * section 3.4.17, "cublasLtMatmul()" ("Datatypes Supported", "To use tensor- or block-scaled FP8
 * kernels, the following set of requirements must be satisfied"), compared with its text line by
 * line, and what it and the header demand of epilogues, as far as this project uses them. Where
 * they leave open what happens, the answer here is a refusal.
 */
#include "device/madeup/blas.h"

#include <stdlib.h>

#define CHECK_NARROW_STEP 16 /* bytes, and elements, that 8-bit products are made of */

size_t blas_type_bytes(cudaDataType_t type)
{
    switch (type) {
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
        return 1;
    case CUDA_R_16BF:
    case CUDA_R_16F:
        return 2;
    case CUDA_R_32F:
        return 4;
    default:
        madeup_fail("cuBLASLt's type %d is not modelled", (int)type);
    }
}

bool blas_has_bias(uint32_t epilogue)
{
    return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0 || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

bool blas_has_aux(uint32_t epilogue)
{
    return (epilogue & 128) != 0; /* the header: this bit is in all that have one */
}

size_t blas_layout_bytes(const struct blas_layout *layout)
{
    return ((size_t)(layout->columns - 1) * (size_t)layout->stride + (size_t)layout->rows) *
           blas_type_bytes(layout->type);
}

uint32_t blas_align_of(uint64_t value)
{
    const uint64_t power = value & (~value + 1);
    return power == 0 || power > 256 ? 256 : (uint32_t)power;
}

/* ---- types ----------------------------------------------------------------------------------- */

static bool check_is_narrow(cudaDataType_t type)
{
    return blas_type_bytes(type) == 1;
}

/* A, B, C = D. */
static const struct {
    cublasComputeType_t compute;
    cudaDataType_t a, b, d;
} check_types[] = {
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_16F, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_16F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    /* 8 bits; there is no e5m2 times e5m2. */
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_32F},
};

cublasStatus_t blas_check_types(cublasComputeType_t compute, cudaDataType_t scale,
                                const cudaDataType_t type[4])
{
    if (compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32)
        madeup_fail("cuBLASLt's compute type %d is not modelled", (int)compute);
    for (int i = 0; i < 4; i++)
        (void)blas_type_bytes(type[i]);
    if (check_is_narrow(type[3]))
        madeup_fail("results of 8 bits are not modelled");
    if (scale != CUDA_R_32F || type[2] != type[3])
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (size_t i = 0; i < sizeof(check_types) / sizeof(check_types[0]); i++)
        if (check_types[i].compute == compute && check_types[i].a == type[0] &&
            check_types[i].b == type[1] && check_types[i].d == type[3])
            return CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

/* The table's column of the bias: D's type, but bf16 where 8 bits give f32. */
static cudaDataType_t check_bias_type(const struct blas_problem *p)
{
    return p->narrow && p->d.type == CUDA_R_32F ? CUDA_R_16BF : p->d.type;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static bool check_is_layout(const struct blas_layout *layout)
{
    return layout->rows > 0 && layout->columns > 0 && layout->rows <= INT32_MAX &&
           layout->columns <= INT32_MAX && layout->stride >= (int64_t)layout->rows;
}

static bool check_is_transpose(int32_t transpose)
{
    return transpose == CUBLAS_OP_N || transpose == CUBLAS_OP_T;
}

static cublasStatus_t check_shape(struct blas_problem *p)
{
    const struct blas_work *w = &p->work;
    if (!check_is_layout(&p->a) || !check_is_layout(&p->b) || !check_is_layout(&p->c) ||
        !check_is_layout(&p->d) || !check_is_transpose(w->transpose_a) ||
        !check_is_transpose(w->transpose_b))
        return CUBLAS_STATUS_INVALID_VALUE;
    const bool a_turned = w->transpose_a == CUBLAS_OP_T, b_turned = w->transpose_b == CUBLAS_OP_T;
    p->m = (int64_t)(a_turned ? p->a.columns : p->a.rows);
    p->k = (int64_t)(a_turned ? p->a.rows : p->a.columns);
    p->n = (int64_t)(b_turned ? p->b.rows : p->b.columns);
    const int64_t b_inner = (int64_t)(b_turned ? p->b.columns : p->b.rows);
    if (b_inner != p->k || (int64_t)p->d.rows != p->m || (int64_t)p->d.columns != p->n ||
        p->c.rows != p->d.rows || p->c.columns != p->d.columns)
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

/* "All matrix dimensions must meet the optimal requirements listed in Tensor Core Usage (i.e.
 * pointers and matrix dimension must support 16-byte alignment)", which leaves n open; "A must be
 * transposed and B non-transposed" on Ada, the first with such kernels, and on Hopper. */
static cublasStatus_t check_narrow(const struct blas_problem *p)
{
    int major = 0, minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, madeup_device()) !=
            cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, madeup_device()) !=
            cudaSuccess ||
        10 * major + minor < 89)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->work.transpose_a != CUBLAS_OP_T || p->work.transpose_b != CUBLAS_OP_N ||
        p->m % CHECK_NARROW_STEP || p->n % CHECK_NARROW_STEP || p->k % CHECK_NARROW_STEP ||
        p->a.stride % CHECK_NARROW_STEP || p->b.stride % CHECK_NARROW_STEP ||
        p->d.stride * (int64_t)blas_type_bytes(p->d.type) % CHECK_NARROW_STEP)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- epilogues ------------------------------------------------------------------------------- */

static bool check_is_epilogue(uint32_t epilogue)
{
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_BGRADB:
        return true;
    default:
        return false;
    }
}

/* The documents promise an algorithm for no epilogue. MADEUP_BLAS_WITHOUT lists the numbers of
 * those that have none, joined by ','. */
static bool check_is_without(uint32_t epilogue)
{
    const char *list = getenv("MADEUP_BLAS_WITHOUT");
    while (list != NULL && *list != '\0') {
        char *end;
        if (strtoul(list, &end, 10) == epilogue)
            return true;
        if (end == list)
            madeup_fail("MADEUP_BLAS_WITHOUT is not a list of numbers: %s", list);
        list = *end == ',' ? end + 1 : end;
    }
    return false;
}

static cublasStatus_t check_epilogue(struct blas_problem *p)
{
    const struct blas_work *w = &p->work;
    if (!check_is_epilogue(w->epilogue))
        madeup_fail("cuBLASLt's epilogue %u is not modelled", w->epilogue);
    if (check_is_without(w->epilogue))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (blas_has_bias(w->epilogue)) {
        p->bias_type = check_bias_type(p);
        if (w->bias_type != -1 && w->bias_type != (int32_t)p->bias_type)
            return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    /* The header: divisible by 8, and no less than the rows of the result. */
    if (blas_has_aux(w->epilogue) && (w->aux_stride % 8 != 0 || w->aux_stride < p->m))
        return CUBLAS_STATUS_INVALID_VALUE;
    /* No table says that sums and GELU's derivative can be had beside 8-bit products. */
    if (p->narrow && (blas_has_aux(w->epilogue) || w->epilogue == CUBLASLT_EPILOGUE_BGRADB))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    /* The header: scales of a combination that has none are an invalid value. */
    if (!p->narrow && (w->scale_a != NULL || w->scale_b != NULL))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

/* The document, of cublasSetSmCountTarget: no more than the device has, and not negative. */
static cublasStatus_t check_multiprocessors(int32_t wanted)
{
    int has = 0;
    if (wanted == 0)
        return CUBLAS_STATUS_SUCCESS;
    if (cudaDeviceGetAttribute(&has, cudaDevAttrMultiProcessorCount, madeup_device()) !=
        cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    return wanted < 0 || wanted > has ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t blas_check(cublasLtMatmulDesc_t work, const cublasLtMatrixLayout_t layouts[4],
                          struct blas_problem *problem_out)
{
    struct blas_problem p = {
        .work = *blas_work(work),
        .a = *blas_layout(layouts[0]),
        .b = *blas_layout(layouts[1]),
        .c = *blas_layout(layouts[2]),
        .d = *blas_layout(layouts[3]),
    };
    const cudaDataType_t type[4] = {p.a.type, p.b.type, p.c.type, p.d.type};
    p.narrow = check_is_narrow(p.a.type);
    if (p.work.fast != 0 && !p.narrow)
        madeup_fail("fast accumulation of operands that are not of 8 bits is not modelled");
    cublasStatus_t status = check_multiprocessors(p.work.multiprocessors);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = check_shape(&p);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas_check_types(p.work.compute, p.work.scale_type, type);
    if (status == CUBLAS_STATUS_SUCCESS && p.narrow)
        status = check_narrow(&p);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = check_epilogue(&p);
    *problem_out = p;
    return status;
}
