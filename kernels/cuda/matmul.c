/*
 * The cache of plans: descriptors, the choice of an algorithm by cuBLASLt's heuristics, and
 * running. Measuring candidates is matmul_tune.c's, comparing sizes matmul_trial.c's, telling about
 * plans matmul_tell.c's.
 */
#include "cuda/matmul_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows of arrays, and what arrays begin at, are multiples of this, where the row's length is. */
#define MATMUL_ALIGN_MAX 64

enum tess_status tess__cuda_blas_fail(cublasStatus_t error, const char *where)
{
    const bool memory = error == CUBLAS_STATUS_ALLOC_FAILED;
    TESS_FAIL(memory ? TESS_ERR_MEMORY : TESS_ERR_DEVICE, "cuBLASLt: %s answered %s", where,
              cublasLtGetStatusString(error));
}

cudaDataType_t tess__cuda_data_type(enum tess_dtype dtype)
{
    switch (dtype) {
    case TESS_BF16:
        return CUDA_R_16BF;
    case TESS_F16:
        return CUDA_R_16F;
    default: /* f32: operations take no other */
        return CUDA_R_32F;
    }
}

static size_t matmul_bytes(cudaDataType_t type)
{
    switch (type) {
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
        return 1;
    case CUDA_R_16BF:
    case CUDA_R_16F:
        return 2;
    default:
        return 4;
    }
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

/* ---- the cache ------------------------------------------------------------------------------- */

enum tess_status tess__cuda_matmul_open(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->plans)
        return TESS_OK;
    state->plans = calloc(1, sizeof *state->plans);
    if (!state->plans)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the plans of products");
    return TESS_OK;
}

static enum tess_status matmul_drop(struct cuda_plan *plan)
{
    enum tess_status status = TESS_OK;
    const cublasLtMatrixLayout_t layout[3] = {plan->a, plan->b, plan->d};
    for (int i = 0; i < 3; i++) {
        cublasStatus_t error =
            layout[i] ? cublasLtMatrixLayoutDestroy(layout[i]) : CUBLAS_STATUS_SUCCESS;
        if (error != CUBLAS_STATUS_SUCCESS)
            TESS_KEEP(status, tess__cuda_blas_fail(error, "cublasLtMatrixLayoutDestroy"));
    }
    cublasStatus_t error =
        plan->work ? cublasLtMatmulDescDestroy(plan->work) : CUBLAS_STATUS_SUCCESS;
    if (error != CUBLAS_STATUS_SUCCESS)
        TESS_KEEP(status, tess__cuda_blas_fail(error, "cublasLtMatmulDescDestroy"));
    free(plan);
    return status;
}

void tess__cuda_matmul_close(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (!state->plans)
        return;
    struct cuda_plan *plan = state->plans->first;
    while (plan) {
        struct cuda_plan *next = plan->next;
        (void)matmul_drop(plan); /* has said what went wrong; a close does not fail */
        plan = next;
    }
    free(state->plans);
    state->plans = NULL;
}

enum tess_status tess__cuda_matmul_autotune(struct tess_kernel *kernel, bool on,
                                            const char *cache_path)
{
    TESS_TRY(tess__cuda_matmul_open(kernel));
    struct cuda_plans *plans = tess__cuda_state(kernel)->plans;
    plans->tune = on;
    int length = snprintf(plans->store, sizeof plans->store, "%s", cache_path ? cache_path : "");
    if (length < 0 || (size_t)length >= sizeof plans->store)
        TESS_FAIL(TESS_ERR_USAGE, "the name of the file of matmul choices is too long");
    return TESS_OK;
}

enum tess_status tess__cuda_matmul_tf32(struct tess_kernel *kernel, bool on)
{
    TESS_TRY(tess__cuda_matmul_open(kernel));
    tess__cuda_state(kernel)->plans->tf32 = on;
    return TESS_OK;
}

cublasComputeType_t tess__cuda_matmul_compute(const struct tess_kernel *kernel, cudaDataType_t type,
                                              bool exact)
{
    const struct cuda_plans *plans = tess__cuda_state(kernel)->plans;
    return plans && plans->tf32 && type == CUDA_R_32F && !exact ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                : CUBLAS_COMPUTE_32F;
}

/* ---- making a plan --------------------------------------------------------------------------- */

static uint32_t matmul_align(int64_t elements, cudaDataType_t type)
{
    uint64_t bytes = (uint64_t)elements * matmul_bytes(type);
    uint64_t power = bytes & (~bytes + 1); /* the greatest power of two that divides it */
    return (uint32_t)(power < MATMUL_ALIGN_MAX ? power : MATMUL_ALIGN_MAX);
}

static bool matmul_has_bias(const struct cuda_product *p)
{
    return (p->epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB)) != 0;
}

static bool matmul_has_aux(const struct cuda_product *p)
{
    return p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
           p->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || p->epilogue == CUBLASLT_EPILOGUE_DGELU;
}

static bool matmul_is_narrow(const struct cuda_product *p)
{
    return matmul_bytes(p->a) == 1;
}

static enum tess_status matmul_set(struct cuda_plan *plan, cublasLtMatmulDescAttributes_t attribute,
                                   const void *value, size_t bytes)
{
    CUBLAS_TRY(cublasLtMatmulDescSetAttribute(plan->work, attribute, value, bytes));
    return TESS_OK;
}

static enum tess_status matmul_set_pointer(struct cuda_plan *plan,
                                           cublasLtMatmulDescAttributes_t attribute,
                                           const void *pointer)
{
    return matmul_set(plan, attribute, &pointer, sizeof pointer);
}

/* Heuristics read the alignment of bias and aux off the pointer, and whether operands are scaled
 * off that pointer's presence. None of these is followed. */
static enum tess_status matmul_set_stand_ins(struct cuda_plan *plan)
{
    const struct cuda_product *p = &plan->product;
    if (matmul_has_bias(p))
        TESS_TRY(matmul_set_pointer(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                    (const void *)(uintptr_t)plan->align_bias));
    if (matmul_has_aux(p))
        TESS_TRY(matmul_set_pointer(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
                                    (const void *)(uintptr_t)plan->align_d));
    if (!matmul_is_narrow(p))
        return TESS_OK;
    const void *scale = (const void *)(uintptr_t)MATMUL_ALIGN_MAX;
    TESS_TRY(matmul_set_pointer(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale));
    return matmul_set_pointer(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale);
}

static enum tess_status matmul_describe_work(struct cuda_plan *plan)
{
    const struct cuda_product *p = &plan->product;
    CUBLAS_TRY(cublasLtMatmulDescCreate(&plan->work, p->compute, CUDA_R_32F));
    const int32_t transpose[2] = {p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                                  p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N};
    const uint32_t epilogue = p->epilogue;
    const int32_t bias_type = p->d;
    const int64_t aux_stride = p->m;
    TESS_TRY(matmul_set(plan, CUBLASLT_MATMUL_DESC_TRANSA, &transpose[0], sizeof transpose[0]));
    TESS_TRY(matmul_set(plan, CUBLASLT_MATMUL_DESC_TRANSB, &transpose[1], sizeof transpose[1]));
    TESS_TRY(matmul_set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    if (matmul_has_bias(p))
        TESS_TRY(
            matmul_set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type));
    if (matmul_has_aux(p))
        TESS_TRY(
            matmul_set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_stride, sizeof aux_stride));
    return matmul_set_stand_ins(plan);
}

static enum tess_status matmul_describe(struct cuda_plan *plan)
{
    const struct cuda_product *p = &plan->product;
    const int64_t a_rows = p->transpose_a ? p->k : p->m, a_columns = p->transpose_a ? p->m : p->k;
    const int64_t b_rows = p->transpose_b ? p->n : p->k, b_columns = p->transpose_b ? p->k : p->n;
    plan->align_a = matmul_align(a_rows, p->a);
    plan->align_b = matmul_align(b_rows, p->b);
    plan->align_d = matmul_align(p->m, p->d);
    plan->align_bias = matmul_align(p->epilogue == CUBLASLT_EPILOGUE_BGRADB ? p->n : p->m, p->d);
    CUBLAS_TRY(
        cublasLtMatrixLayoutCreate(&plan->a, p->a, (uint64_t)a_rows, (uint64_t)a_columns, a_rows));
    CUBLAS_TRY(
        cublasLtMatrixLayoutCreate(&plan->b, p->b, (uint64_t)b_rows, (uint64_t)b_columns, b_rows));
    CUBLAS_TRY(cublasLtMatrixLayoutCreate(&plan->d, p->d, (uint64_t)p->m, (uint64_t)p->n, p->m));
    return matmul_describe_work(plan);
}

static bool matmul_is_whole(const cublasLtMatmulAlgo_t *algorithm)
{
    int32_t split = 0;
    size_t written;
    return cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                                sizeof split, &written) == CUBLAS_STATUS_SUCCESS &&
           split <= 1;
}

static bool matmul_adds_in_f32(const cublasLtMatmulAlgo_t *algorithm)
{
    uint32_t scheme = 0;
    size_t written;
    return cublasLtMatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                &scheme, sizeof scheme,
                                                &written) == CUBLAS_STATUS_SUCCESS &&
           scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

bool tess__cuda_plan_accept(struct tess_kernel *kernel, struct cuda_plan *plan,
                            const cublasLtMatmulAlgo_t *algorithm)
{
    const bool allowed =
        matmul_is_whole(algorithm) || (plan->product.split && matmul_adds_in_f32(algorithm));
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

/* Ask the heuristics; none found is no error, *count_out is 0 then. */
static enum tess_status matmul_ask(struct tess_kernel *kernel, const struct cuda_plan *plan,
                                   uint32_t schemes, cublasLtMatmulHeuristicResult_t *candidate,
                                   int *count_out)
{
    const uint64_t workspace = CUDA_WORKSPACE_BYTES;
    cublasLtMatmulPreference_t preference;
    *count_out = 0;
    CUBLAS_TRY(cublasLtMatmulPreferenceCreate(&preference));
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } set[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &plan->align_a, sizeof plan->align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &plan->align_b, sizeof plan->align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &plan->align_d, sizeof plan->align_d},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &plan->align_d, sizeof plan->align_d},
    };
    cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
    const char *where = "cublasLtMatmulPreferenceSetAttribute";
    for (size_t i = 0; i < sizeof set / sizeof set[0] && error == CUBLAS_STATUS_SUCCESS; i++)
        error = cublasLtMatmulPreferenceSetAttribute(preference, set[i].attribute, set[i].value,
                                                     set[i].bytes);
    if (error == CUBLAS_STATUS_SUCCESS) {
        where = "cublasLtMatmulAlgoGetHeuristic";
        error = cublasLtMatmulAlgoGetHeuristic(tess__cuda_state(kernel)->blas, plan->work, plan->a,
                                               plan->b, plan->d, plan->d, preference,
                                               MATMUL_CANDIDATES, candidate, count_out);
        /* Both say that there is no algorithm for this combination. */
        if (error == CUBLAS_STATUS_NOT_SUPPORTED || error == CUBLAS_STATUS_INVALID_VALUE) {
            error = CUBLAS_STATUS_SUCCESS;
            *count_out = 0;
        }
    }
    cublasStatus_t closed = cublasLtMatmulPreferenceDestroy(preference);
    if (error != CUBLAS_STATUS_SUCCESS)
        return tess__cuda_blas_fail(error, where);
    CUBLAS_TRY(closed);
    return TESS_OK;
}

/* Keeps of the candidates those that may be used, in their order. */
static int matmul_sift(struct tess_kernel *kernel, struct cuda_plan *plan,
                       cublasLtMatmulHeuristicResult_t *candidate, int count)
{
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (candidate[i].state == CUBLAS_STATUS_SUCCESS &&
            tess__cuda_plan_accept(kernel, plan, &candidate[i].algo))
            candidate[kept++] = candidate[i];
    return kept;
}

static enum tess_status matmul_choose(struct tess_kernel *kernel, struct cuda_plan *plan)
{
    cublasLtMatmulHeuristicResult_t candidate[MATMUL_CANDIDATES];
    const uint32_t wanted = plan->product.split ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                : CUBLASLT_REDUCTION_SCHEME_NONE;
    int count;
    TESS_TRY(matmul_ask(kernel, plan, wanted, candidate, &count));
    count = matmul_sift(kernel, plan, candidate, count);
    if (count == 0) {
        TESS_TRY(matmul_ask(kernel, plan, CUBLASLT_REDUCTION_SCHEME_MASK, candidate, &count));
        count = matmul_sift(kernel, plan, candidate, count);
    }
    if (count == 0)
        return TESS_OK;
    plan->found = tess__cuda_plan_accept(kernel, plan, &candidate[0].algo);
    return tess__cuda_state(kernel)->plans->tune
               ? tess__cuda_plan_tune(kernel, plan, candidate, count)
               : TESS_OK;
}

/* The algorithm of the same product with another n. */
static enum tess_status matmul_choose_alike(struct tess_kernel *kernel, struct cuda_plan *plan)
{
    struct cuda_product product = plan->product;
    product.n = product.like_n;
    product.like_n = 0;
    struct cuda_plan *model;
    TESS_TRY(tess__cuda_plan_get(kernel, &product, &model));
    plan->found = model && tess__cuda_plan_accept(kernel, plan, &model->algorithm);
    return TESS_OK;
}

static bool matmul_same(const struct cuda_product *a, const struct cuda_product *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->like_n == b->like_n && a->a == b->a &&
           a->b == b->b && a->d == b->d && a->epilogue == b->epilogue && a->compute == b->compute &&
           a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           a->split == b->split;
}

enum tess_status tess__cuda_plan_get(struct tess_kernel *kernel, const struct cuda_product *product,
                                     struct cuda_plan **plan_out)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->planned_only)
        TESS_FAIL(TESS_ERR_DEVICE, "there is no device to multiply on: this process only plans");
    TESS_TRY(tess__cuda_matmul_open(kernel));
    struct cuda_plan *plan = state->plans->first;
    while (plan && !matmul_same(&plan->product, product))
        plan = plan->next;
    if (!plan) {
        plan = calloc(1, sizeof *plan);
        if (!plan)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the plan of a product");
        plan->product = *product;
        enum tess_status status = matmul_describe(plan);
        if (status == TESS_OK)
            status = product->like_n > 0 ? matmul_choose_alike(kernel, plan)
                                         : matmul_choose(kernel, plan);
        if (status != TESS_OK) {
            TESS_KEEP(status, matmul_drop(plan));
            return status;
        }
        plan->next = state->plans->first;
        state->plans->first = plan;
    }
    *plan_out = plan->found ? plan : NULL;
    return TESS_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

static bool matmul_is_aligned(const void *memory, uint32_t align)
{
    return ((uintptr_t)memory & (align - 1)) == 0;
}

static enum tess_status matmul_point(struct cuda_plan *plan, const struct cuda_operands *o)
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

enum tess_status tess__cuda_plan_run(struct tess_kernel *kernel, struct cuda_plan *plan,
                                     const struct cuda_operands *o)
{
    const struct cuda_product *p = &plan->product;
    const struct cuda_state *state = tess__cuda_state(kernel);
    if (!matmul_is_aligned(o->a, plan->align_a) || !matmul_is_aligned(o->b, plan->align_b) ||
        !matmul_is_aligned(o->d, plan->align_d) ||
        (matmul_has_bias(p) && !matmul_is_aligned(o->bias, plan->align_bias)) ||
        (matmul_has_aux(p) && !matmul_is_aligned(o->aux, plan->align_d)))
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "operands of a product %lld x %lld x %lld are not aligned to %u, %u, %u bytes",
                  (long long)p->m, (long long)p->n, (long long)p->k, plan->align_a, plan->align_b,
                  plan->align_d);
    TESS_TRY(matmul_point(plan, o));
    const float alpha = 1;
    CUBLAS_TRY(cublasLtMatmul(state->blas, plan->work, &alpha, o->a, plan->a, o->b, plan->b,
                              &o->beta, o->d, plan->d, o->d, plan->d, &plan->algorithm,
                              state->workspace, plan->workspace_bytes, state->queue->stream));
    return TESS_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

enum tess_status tess__cuda_rows_open(struct tess_kernel *kernel,
                                      const struct cuda_product *product, int64_t leaves,
                                      struct cuda_rows *rows_out)
{
    struct cuda_rows rows = {
        .leaves = leaves,
        .b_bytes = (size_t)(product->k * product->n) * matmul_bytes(product->b),
        .d_bytes = (size_t)(product->m * product->n) * matmul_bytes(product->d),
    };
    TESS_TRY(tess__cuda_plan_get(kernel, product, &rows.leaf));
    if (rows.leaf && leaves > 1) {
        struct cuda_product all = *product;
        all.like_n = product->n;
        all.n = product->n * leaves;
        TESS_TRY(tess__cuda_plan_get(kernel, &all, &rows.all));
        if (rows.all)
            TESS_TRY(tess__cuda_plan_compare(kernel, rows.leaf, rows.all, leaves));
        if (rows.all && rows.all->alike != CUDA_ALIKE_YES)
            rows.all = NULL;
    }
    *rows_out = rows;
    return TESS_OK;
}

enum tess_status tess__cuda_rows_run(struct tess_kernel *kernel, const struct cuda_rows *rows,
                                     const struct cuda_operands *operands)
{
    if (rows->all)
        return tess__cuda_plan_run(kernel, rows->all, operands);
    struct cuda_operands leaf = *operands;
    for (int64_t l = 0; l < rows->leaves; l++) {
        TESS_TRY(tess__cuda_plan_run(kernel, rows->leaf, &leaf));
        leaf.b = (const char *)leaf.b + rows->b_bytes;
        leaf.d = (char *)leaf.d + rows->d_bytes;
        if (leaf.aux) /* as D */
            leaf.aux = (char *)leaf.aux + rows->d_bytes;
    }
    return TESS_OK;
}
