/* Types of products, which algorithms a plan accepts, and running a plan. */
#include "cuda/host.h"
#include "cuda/products/matmul_plan.h"

enum tess_status tess__cuda_blas_fail(cublasStatus_t error, const char *where)
{
    const bool memory = error == CUBLAS_STATUS_ALLOC_FAILED;
    TESS_FAIL(memory ? TESS_ERR_MEMORY : TESS_ERR_DEVICE, "cuBLASLt: %s returned %s", where,
              cublasLtGetStatusString(error));
}

cudaDataType_t tess__cuda_data_type(enum tess_dtype dtype)
{
    return dtype == TESS_BF16 ? CUDA_R_16BF : dtype == TESS_F16 ? CUDA_R_16F : CUDA_R_32F;
}

struct cuda_product tess__cuda_product(int64_t m, int64_t n, int64_t k, cudaDataType_t type)
{
    return (struct cuda_product){
        .m = m,
        .n = n,
        .k = k,
        .a = type,
        .b = type,
        .d = type,
        .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
        .compute = CUBLAS_COMPUTE_32F,
    };
}

enum tess_status tess__cuda_plan_set(struct cuda_plan *plan,
                                     cublasLtMatmulDescAttributes_t attribute, const void *value,
                                     size_t bytes)
{
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(plan->work, attribute, value, bytes));
    return TESS_OK;
}

static enum tess_status matmul_set_pointer(struct cuda_plan *plan,
                                           cublasLtMatmulDescAttributes_t attribute,
                                           const void *pointer)
{
    return tess__cuda_plan_set(plan, attribute, &pointer, sizeof(pointer));
}

int32_t tess__cuda_algorithm_attribute(const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulAlgoConfigAttributes_t attribute, size_t bytes)
{
    int32_t value = 0; /* hosts of CUDA are little-endian: 2 bytes are its lower half */
    size_t written;
    const cublasStatus_t error =
        cublasLtMatmulAlgoConfigGetAttribute(algorithm, attribute, &value, bytes, &written);
    return error == CUBLAS_STATUS_SUCCESS ? value : INT32_MAX;
}

bool tess__cuda_plan_accept(struct tess_kernel *kernel, struct cuda_plan *plan,
                            const cublasLtMatmulAlgo_t *algorithm)
{
    const bool allowed =
        tess__cuda_algorithm_attribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4) <= 1 ||
        (plan->product.split &&
         tess__cuda_algorithm_attribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4) ==
             CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    cublasLtMatmulHeuristicResult_t result;
    if (!allowed ||
        cublasLtMatmulAlgoCheck(tess__cuda_state(kernel)->blas, plan->work, plan->a, plan->b,
                                plan->d, plan->d, algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
        result.workspaceSize > CUDA_WORKSPACE_BYTES)
        return false;
    plan->algorithm = *algorithm;
    plan->workspace_bytes = result.workspaceSize;
    return true;
}

static bool matmul_is_aligned(const void *memory, uint32_t align)
{
    return ((uintptr_t)memory & (align - 1)) == 0;
}

enum tess_status tess__cuda_plan_point(struct cuda_plan *plan, const struct cuda_operands *o)
{
    const struct cuda_product *p = &plan->product;
    if (matmul_has_bias(p))
        TESS_TRY(matmul_set_pointer(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, o->bias));
    if (matmul_has_aux(p))
        TESS_TRY(matmul_set_pointer(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, o->aux));
    if (!matmul_is_narrow(p))
        return TESS_OK;
    TESS_TRY(matmul_set_pointer(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, o->scale_a));
    return matmul_set_pointer(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, o->scale_b);
}

static enum tess_status plan_check_operands(const struct cuda_plan *plan,
                                            const struct cuda_operands *o)
{
    const struct cuda_product *p = &plan->product;
    if (!matmul_is_aligned(o->a, plan->align_a) || !matmul_is_aligned(o->b, plan->align_b) ||
        !matmul_is_aligned(o->d, plan->align_d) || !matmul_is_aligned(o->c, plan->align_d) ||
        (matmul_has_bias(p) && !matmul_is_aligned(o->bias, plan->align_bias)) ||
        (matmul_has_aux(p) && !matmul_is_aligned(o->aux, plan->align_d)))
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "operands of a product %lld x %lld x %lld are not aligned to %u, %u, %u bytes",
                  (long long)p->m, (long long)p->n, (long long)p->k, plan->align_a, plan->align_b,
                  plan->align_d);
    return TESS_OK;
}

static cublasStatus_t plan_launch(struct tess_kernel *kernel, const struct cuda_plan *plan,
                                  const struct cuda_operands *o)
{
    const struct cuda_state *state = tess__cuda_state(kernel);
    const float alpha = 1;
    return cublasLtMatmul(state->blas, plan->work, &alpha, o->a, plan->a, o->b, plan->b, &o->beta,
                          o->c ? o->c : o->d, plan->d, o->d, plan->d, &plan->algorithm,
                          state->workspace, plan->workspace_bytes, tess__cuda_stream(kernel));
}

enum tess_status tess__cuda_plan_run(struct tess_kernel *kernel, struct cuda_plan *plan,
                                     const struct cuda_operands *o)
{
    TESS_TRY(plan_check_operands(plan, o));
    TESS_TRY(tess__cuda_plan_point(plan, o));
    const cublasStatus_t error = plan_launch(kernel, plan, o);
    return error == CUBLAS_STATUS_SUCCESS ? TESS_OK : tess__cuda_blas_fail(error, "cublasLtMatmul");
}

enum tess_status tess__cuda_plan_try(struct tess_kernel *kernel, struct cuda_plan *plan,
                                     const struct cuda_operands *o, bool *runs_out)
{
    const struct cuda_product *p = &plan->product;
    TESS_TRY(plan_check_operands(plan, o));
    TESS_TRY(tess__cuda_plan_point(plan, o));
    const cublasStatus_t error = plan_launch(kernel, plan, o);
    *runs_out = error == CUBLAS_STATUS_SUCCESS;
    if (*runs_out)
        return tess__cuda_drain(kernel, "trying a product");
    (void)cudaGetLastError(); /* else the next launch would report it */
    tess_log(TESS_LOG_DEBUG,
             "cuBLASLt does not run its algorithm %d for a product %lld x %lld x %lld: %s",
             tess__cuda_algorithm_attribute(&plan->algorithm, CUBLASLT_ALGO_CONFIG_ID, 4),
             (long long)p->m, (long long)p->n, (long long)p->k, cublasLtGetStatusString(error));
    return TESS_OK;
}

enum tess_status tess__cuda_plan_prove(struct tess_kernel *kernel, struct cuda_plan *plan,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       const struct cuda_operands *operands)
{
    plan->found = tess__cuda_plan_accept(kernel, plan, algorithm);
    return plan->found && operands != NULL
               ? tess__cuda_plan_try(kernel, plan, operands, &plan->found)
               : TESS_OK;
}

/* D = the bias in each of its columns; whole columns are doubled until all is full. */
static enum tess_status rows_fill(struct tess_kernel *kernel, const struct cuda_product *p,
                                  const struct cuda_operands *o)
{
    cudaStream_t stream = tess__cuda_stream(kernel);
    size_t done = (size_t)p->m * matmul_type_bytes(p->d);
    const size_t bytes = done * (size_t)p->n;
    CUDA_TRY(cudaMemcpyAsync(o->d, o->bias, done, cudaMemcpyDeviceToDevice, stream));
    while (done < bytes) {
        const size_t more = done < bytes - done ? done : bytes - done;
        CUDA_TRY(
            cudaMemcpyAsync((char *)o->d + done, o->d, more, cudaMemcpyDeviceToDevice, stream));
        done += more;
    }
    return TESS_OK;
}

static enum tess_status rows_give(struct tess_kernel *kernel, const struct cuda_rows *rows,
                                  struct cuda_plan *plan, const struct cuda_operands *operands)
{
    struct cuda_operands o = *operands;
    if (rows->bias_first) {
        TESS_TRY(rows_fill(kernel, &plan->product, &o));
        o.beta = 1;
    }
    return tess__cuda_plan_run(kernel, plan, &o);
}

enum tess_status tess__cuda_leaf_run(struct tess_kernel *kernel, const struct cuda_rows *rows,
                                     const struct cuda_operands *operands)
{
    return rows_give(kernel, rows, rows->leaf, operands);
}

enum tess_status tess__cuda_rows_run(struct tess_kernel *kernel, const struct cuda_rows *rows,
                                     const struct cuda_operands *operands)
{
    if (rows->all != NULL)
        return rows_give(kernel, rows, rows->all, operands);
    struct cuda_operands leaf = *operands;
    for (int64_t l = 0; l < rows->leaves; l++) {
        TESS_TRY(rows_give(kernel, rows, rows->leaf, &leaf));
        leaf.b = (const char *)leaf.b + rows->b_bytes;
        leaf.d = (char *)leaf.d + rows->d_bytes;
        if (leaf.c != NULL) /* as D */
            leaf.c = (const char *)leaf.c + rows->d_bytes;
        if (leaf.aux != NULL)
            leaf.aux = (char *)leaf.aux + rows->d_bytes;
    }
    return TESS_OK;
}
