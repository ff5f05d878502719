/*
 * The cache of plans: descriptors, and the choice of an algorithm by cuBLASLt's heuristics.
 * matmul_tune.c measures candidates, matmul_trial.c compares sizes, matmul_run.c runs a plan,
 * matmul_describe.c prints it.
 */
#include "cuda/products/matmul_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows of arrays, and what arrays begin at, are multiples of this, where the row's length is. */
#define MATMUL_ALIGN_MAX 64

/* ---- the cache ------------------------------------------------------------------------------- */

enum tess_status tess__cuda_matmul_open(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->plans != NULL)
        return TESS_OK;
    state->plans = calloc(1, sizeof(*state->plans));
    if (state->plans == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the plans of products");
    return TESS_OK;
}

static enum tess_status matmul_drop(struct cuda_plan *plan)
{
    enum tess_status status = TESS_OK;
    const cublasLtMatrixLayout_t layout[3] = {plan->a, plan->b, plan->d};
    for (int i = 0; i < 3; i++) {
        cublasStatus_t error =
            layout[i] != NULL ? cublasLtMatrixLayoutDestroy(layout[i]) : CUBLAS_STATUS_SUCCESS;
        if (error != CUBLAS_STATUS_SUCCESS)
            TESS_KEEP(status, tess__cuda_blas_fail(error, "cublasLtMatrixLayoutDestroy"));
    }
    cublasStatus_t error =
        plan->work != NULL ? cublasLtMatmulDescDestroy(plan->work) : CUBLAS_STATUS_SUCCESS;
    if (error != CUBLAS_STATUS_SUCCESS)
        TESS_KEEP(status, tess__cuda_blas_fail(error, "cublasLtMatmulDescDestroy"));
    free(plan);
    return status;
}

void tess__cuda_matmul_close(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->plans == NULL)
        return;
    struct cuda_plan *plan = state->plans->first;
    while (plan != NULL) {
        struct cuda_plan *next = plan->next;
        (void)matmul_drop(plan); /* it has logged the error; a close does not fail */
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
    int length =
        snprintf(plans->store, sizeof(plans->store), "%s", cache_path != NULL ? cache_path : "");
    if (length < 0 || (size_t)length >= sizeof(plans->store))
        TESS_FAIL(TESS_ERR_USAGE, "the name of the file of matmul choices is too long");
    return TESS_OK;
}

enum tess_status tess__cuda_matmul_tf32(struct tess_kernel *kernel, bool on)
{
    TESS_TRY(tess__cuda_matmul_open(kernel));
    tess__cuda_state(kernel)->plans->tf32 = on;
    return TESS_OK;
}

enum tess_status tess__cuda_matmul_fp8_fast(struct tess_kernel *kernel, bool on)
{
    TESS_TRY(tess__cuda_matmul_open(kernel));
    tess__cuda_state(kernel)->plans->fp8_fast = on;
    return TESS_OK;
}

enum tess_status tess__cuda_matmul_same_rows(struct tess_kernel *kernel, bool on)
{
    TESS_TRY(tess__cuda_matmul_open(kernel));
    tess__cuda_state(kernel)->plans->same_rows = on;
    return TESS_OK;
}

bool tess__cuda_matmul_has_same_rows(const struct tess_kernel *kernel)
{
    const struct cuda_plans *plans = tess__cuda_state(kernel)->plans;
    return plans != NULL && plans->same_rows;
}

enum tess_status tess__cuda_matmul_sm_target(struct tess_kernel *kernel, int32_t count)
{
    const struct cuda_state *state = tess__cuda_state(kernel);
    int has = 0;
    TESS_TRY(tess__cuda_matmul_open(kernel));
    if (count > 0 && !state->planned_only) {
        CUDA_TRY(cudaDeviceGetAttribute(&has, cudaDevAttrMultiProcessorCount, state->device));
        if (count > has)
            TESS_FAIL(TESS_ERR_USAGE, "--cuda.sm-target %d: device %d has %d multiprocessors",
                      (int)count, state->device, has);
    }
    state->plans->sm_target = count;
    return TESS_OK;
}

bool tess__cuda_matmul_is_fast(const struct tess_kernel *kernel, cudaDataType_t type)
{
    const struct cuda_plans *plans = tess__cuda_state(kernel)->plans;
    return plans != NULL && plans->fp8_fast && matmul_type_bytes(type) == 1;
}

cublasComputeType_t tess__cuda_matmul_compute(const struct tess_kernel *kernel, cudaDataType_t type,
                                              bool exact)
{
    const struct cuda_plans *plans = tess__cuda_state(kernel)->plans;
    return plans != NULL && plans->tf32 && type == CUDA_R_32F && !exact
               ? CUBLAS_COMPUTE_32F_FAST_TF32
               : CUBLAS_COMPUTE_32F;
}

/* ---- making a plan --------------------------------------------------------------------------- */

static uint32_t matmul_align(int64_t elements, cudaDataType_t type)
{
    uint64_t bytes = (uint64_t)elements * matmul_type_bytes(type);
    uint64_t power = bytes & (~bytes + 1); /* the greatest power of two that divides it */
    return (uint32_t)(power < MATMUL_ALIGN_MAX ? power : MATMUL_ALIGN_MAX);
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
    const int8_t fast = 1;
    TESS_TRY(tess__cuda_plan_set(plan, CUBLASLT_MATMUL_DESC_TRANSA, &transpose[0],
                                 sizeof(transpose[0])));
    TESS_TRY(tess__cuda_plan_set(plan, CUBLASLT_MATMUL_DESC_TRANSB, &transpose[1],
                                 sizeof(transpose[1])));
    TESS_TRY(tess__cuda_plan_set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    if (p->fast)
        TESS_TRY(tess__cuda_plan_set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)));
    if (p->sm_target > 0)
        TESS_TRY(tess__cuda_plan_set(plan, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &p->sm_target,
                                     sizeof(p->sm_target)));
    if (matmul_has_bias(p))
        TESS_TRY(tess__cuda_plan_set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type,
                                     sizeof(bias_type)));
    if (matmul_has_aux(p))
        TESS_TRY(tess__cuda_plan_set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_stride,
                                     sizeof(aux_stride)));
    /* Heuristics read the alignment of bias and aux off the pointer, and whether operands are
     * scaled off that pointer's presence. None of these is followed. */
    const void *scale = (const void *)(uintptr_t)MATMUL_ALIGN_MAX;
    return tess__cuda_plan_point(
        plan, &(struct cuda_operands){.bias = (void *)(uintptr_t)plan->align_bias,
                                      .aux = (void *)(uintptr_t)plan->align_d,
                                      .scale_a = scale,
                                      .scale_b = scale});
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

/* Query the heuristics; none found is no error, *count_out is 0 then. */
static enum tess_status matmul_query(struct tess_kernel *kernel, const struct cuda_plan *plan,
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
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof(schemes)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &plan->align_a, sizeof(plan->align_a)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &plan->align_b, sizeof(plan->align_b)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &plan->align_d, sizeof(plan->align_d)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &plan->align_d, sizeof(plan->align_d)},
    };
    cublasStatus_t error = CUBLAS_STATUS_SUCCESS;
    const char *where = "cublasLtMatmulPreferenceSetAttribute";
    for (size_t i = 0; i < sizeof(set) / sizeof(set[0]) && error == CUBLAS_STATUS_SUCCESS; i++) {
        error = cublasLtMatmulPreferenceSetAttribute(preference, set[i].attribute, set[i].value,
                                                     set[i].bytes);
        /* Without the mask others come too, which matmul_sift leaves out. */
        if (set[i].attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
            error = CUBLAS_STATUS_SUCCESS;
    }
    if (error == CUBLAS_STATUS_SUCCESS) {
        where = "cublasLtMatmulAlgoGetHeuristic";
        error = cublasLtMatmulAlgoGetHeuristic(tess__cuda_state(kernel)->blas, plan->work, plan->a,
                                               plan->b, plan->d, plan->d, preference,
                                               MATMUL_CANDIDATES, candidate, count_out);
        /* Both mean that there is no algorithm for this combination. */
        if (error == CUBLAS_STATUS_NOT_SUPPORTED || error == CUBLAS_STATUS_INVALID_VALUE) {
            error = CUBLAS_STATUS_SUCCESS;
            *count_out = 0;
        }
    }
    cublasStatus_t closed = cublasLtMatmulPreferenceDestroy(preference);
    if (error != CUBLAS_STATUS_SUCCESS)
        return tess__cuda_blas_fail(error, where);
    return closed == CUBLAS_STATUS_SUCCESS
               ? TESS_OK
               : tess__cuda_blas_fail(closed, "cublasLtMatmulPreferenceDestroy");
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

/* Row counts at which a candidate for a product with same_rows is tried; the first is one row. An
 * algorithm may cut its sums by how many tiles there are. */
static const int64_t sift_rows[] = {1, 100, 1000, CUDA_SAME_ROWS};
#define SIFT_COUNT (sizeof(sift_rows) / sizeof(sift_rows[0]))

/* Does a row have the same bits in all of the plans? */
static enum tess_status sift_candidate(struct tess_kernel *kernel, struct cuda_plan **plan,
                                       struct cuda_trial *trial,
                                       const cublasLtMatmulAlgo_t *algorithm, bool *steady_out)
{
    *steady_out = true;
    for (size_t i = 0; i < SIFT_COUNT && *steady_out; i++)
        *steady_out = tess__cuda_plan_accept(kernel, plan[i], algorithm);
    for (size_t i = 1; i < SIFT_COUNT && *steady_out; i++)
        TESS_TRY(tess__cuda_plan_steady(kernel, plan[i], plan[0], trial, steady_out));
    return TESS_OK;
}

/* Of the candidates for a product with same_rows those that give a row the bits it has alone; the
 * first, where they are not measured. */
static enum tess_status matmul_sift_rows(struct tess_kernel *kernel, const struct cuda_plan *model,
                                         struct cuda_trial *trial,
                                         cublasLtMatmulHeuristicResult_t *candidate, int *count)
{
    const int wanted = tess__cuda_state(kernel)->plans->tune ? *count : 1;
    struct cuda_plan *plan[SIFT_COUNT] = {NULL};
    enum tess_status status = TESS_OK;
    int kept = 0;
    for (size_t i = 0; i < SIFT_COUNT && status == TESS_OK; i++) {
        plan[i] = calloc(1, sizeof(*plan[i]));
        if (plan[i] == NULL)
            status = tess_fail(TESS_ERR_MEMORY, "no memory for the plan of a product");
        if (status == TESS_OK) {
            plan[i]->product = model->product;
            plan[i]->product.n = sift_rows[i];
            status = matmul_describe(plan[i]);
        }
    }
    for (int i = 0; i < *count && kept < wanted && status == TESS_OK; i++) {
        bool steady = false;
        status = sift_candidate(kernel, plan, trial, &candidate[i].algo, &steady);
        if (steady)
            candidate[kept++] = candidate[i];
    }
    *count = kept;
    for (size_t i = 0; i < SIFT_COUNT && plan[i] != NULL; i++)
        TESS_KEEP(status, matmul_drop(plan[i]));
    return status;
}

/* The first candidate that runs, or the fastest. */
static enum tess_status matmul_pick(struct tess_kernel *kernel, struct cuda_plan *plan,
                                    const cublasLtMatmulHeuristicResult_t *candidate, int count,
                                    const struct cuda_operands *operands)
{
    if (tess__cuda_state(kernel)->plans->tune && count > 0)
        TESS_TRY(tess__cuda_plan_tune(kernel, plan, candidate, count, operands));
    for (int i = 0; i < count && !plan->found; i++)
        TESS_TRY(tess__cuda_plan_prove(kernel, plan, &candidate[i].algo, operands));
    return TESS_OK;
}

/* trial NULL: there is no room to try. */
static enum tess_status matmul_choose_by(struct tess_kernel *kernel, struct cuda_plan *plan,
                                         struct cuda_trial *trial)
{
    cublasLtMatmulHeuristicResult_t candidate[MATMUL_CANDIDATES];
    const uint32_t schemes[] = {plan->product.split ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                    : CUBLASLT_REDUCTION_SCHEME_NONE,
                                CUBLASLT_REDUCTION_SCHEME_MASK};
    for (int i = 0; i < 2 && !plan->found; i++) {
        int count;
        TESS_TRY(matmul_query(kernel, plan, schemes[i], candidate, &count));
        count = matmul_sift(kernel, plan, candidate, count);
        if (plan->product.same_rows && trial != NULL)
            TESS_TRY(matmul_sift_rows(kernel, plan, trial, candidate, &count));
        TESS_TRY(
            matmul_pick(kernel, plan, candidate, count, trial != NULL ? &trial->operands : NULL));
    }
    return TESS_OK;
}

static enum tess_status matmul_choose(struct tess_kernel *kernel, struct cuda_plan *plan)
{
    struct cuda_trial trial;
    enum tess_status status = tess__cuda_trial_open(kernel, plan, &trial);
    if (status == TESS_ERR_MEMORY) {
        tess_log(TESS_LOG_WARN,
                 "no device memory to try a product %lld x %lld x %lld: cuBLASLt's own choice",
                 (long long)plan->product.m, (long long)plan->product.n,
                 (long long)plan->product.k);
        return matmul_choose_by(kernel, plan, NULL);
    }
    TESS_TRY(status);
    status = matmul_choose_by(kernel, plan, &trial);
    tess__cuda_trial_close(&trial);
    return status;
}

/* The algorithm of the same product with another n, or without its epilogue. */
static enum tess_status matmul_choose_alike(struct tess_kernel *kernel, struct cuda_plan *plan)
{
    struct cuda_product product = plan->product;
    if (product.like_n > 0)
        product.n = product.like_n;
    if (product.like_plain)
        product.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    product.like_n = 0;
    product.like_plain = false;
    struct cuda_plan *model;
    TESS_TRY(tess__cuda_plan_get(kernel, &product, &model));
    plan->found = model != NULL && tess__cuda_plan_accept(kernel, plan, &model->algorithm);
    return plan->found && plan->product.like_plain
               ? tess__cuda_plan_agrees(kernel, plan, model, &plan->found)
               : TESS_OK;
}

static bool matmul_same(const struct cuda_product *a, const struct cuda_product *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->like_n == b->like_n &&
           a->like_plain == b->like_plain && a->a == b->a && a->b == b->b && a->d == b->d &&
           a->epilogue == b->epilogue && a->compute == b->compute &&
           a->transpose_a == b->transpose_a && a->transpose_b == b->transpose_b &&
           a->split == b->split && a->fast == b->fast && a->sm_target == b->sm_target &&
           a->same_rows == b->same_rows;
}

enum tess_status tess__cuda_plan_get(struct tess_kernel *kernel, const struct cuda_product *wanted,
                                     struct cuda_plan **plan_out)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    struct cuda_product product = *wanted;
    if (state->planned_only)
        TESS_FAIL(TESS_ERR_DEVICE, "there is no device to multiply on: this process only plans");
    TESS_TRY(tess__cuda_matmul_open(kernel));
    product.sm_target = state->plans->sm_target;
    struct cuda_plan *plan = state->plans->first;
    while (plan != NULL && !matmul_same(&plan->product, &product))
        plan = plan->next;
    if (plan == NULL) {
        plan = calloc(1, sizeof(*plan));
        if (plan == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the plan of a product");
        plan->product = product;
        enum tess_status status = matmul_describe(plan);
        if (status == TESS_OK)
            status = product.like_n > 0 || product.like_plain ? matmul_choose_alike(kernel, plan)
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

/* ---- rows ------------------------------------------------------------------------------------ */

/*
 * The plan of a product over rows. With same_rows it has the algorithm of CUDA_SAME_ROWS rows, or
 * none where those have none, so that any number of rows is computed in the same way; and it is
 * compared with one row.
 */
static enum tess_status rows_plan(struct tess_kernel *kernel, const struct cuda_product *product,
                                  struct cuda_plan **plan_out)
{
    struct cuda_product like = *product;
    struct cuda_plan *one;
    if (!product->same_rows)
        return tess__cuda_plan_get(kernel, product, plan_out);
    like.n = CUDA_SAME_ROWS;
    TESS_TRY(tess__cuda_plan_get(kernel, &like, plan_out));
    if (*plan_out == NULL)
        return TESS_OK;
    like.like_n = CUDA_SAME_ROWS;
    like.n = 1;
    TESS_TRY(tess__cuda_plan_get(kernel, &like, &one));
    like.n = product->n;
    TESS_TRY(tess__cuda_plan_get(kernel, &like, plan_out));
    if (one != NULL && *plan_out != NULL)
        TESS_TRY(tess__cuda_plan_compare_rows(kernel, *plan_out, one));
    if (one == NULL || *plan_out == NULL || (*plan_out)->alike != CUDA_ALIKE_YES)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "--cuda.decode exact: cuBLASLt's algorithm for a product of %lld inputs and %lld "
                  "outputs does not give each of %lld rows the bits that it has alone: leave it at "
                  "fast",
                  (long long)product->k, (long long)product->m, (long long)product->n);
    return TESS_OK;
}

/* The leaf's plan; without the ReLU or the bias, or without both, where there is none with them.
 * The bias is in the sum before the ReLU then, as in cuBLASLt's own epilogue. */
static enum tess_status rows_open_leaf(struct tess_kernel *kernel, struct cuda_product *product,
                                       struct cuda_rows *rows)
{
    static const struct rows_way {
        cublasLtEpilogue_t wanted, epilogue;
        bool relu_after, bias_first;
    } way[] = {
        {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_DEFAULT, true, false},
        {CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_BIAS, true, false},
        {CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_RELU, false, true},
        {CUBLASLT_EPILOGUE_RELU_BIAS, CUBLASLT_EPILOGUE_DEFAULT, true, true},
        {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DEFAULT, false, true},
    };
    const cublasLtEpilogue_t wanted = product->epilogue;
    TESS_TRY(rows_plan(kernel, product, &rows->leaf));
    for (size_t i = 0; i < sizeof(way) / sizeof(way[0]) && rows->leaf == NULL; i++) {
        if (way[i].wanted != wanted)
            continue;
        product->epilogue = way[i].epilogue;
        rows->relu_after = way[i].relu_after;
        rows->bias_first = way[i].bias_first;
        TESS_TRY(rows_plan(kernel, product, &rows->leaf));
    }
    return TESS_OK;
}

enum tess_status tess__cuda_rows_open(struct tess_kernel *kernel,
                                      const struct cuda_product *product, int64_t leaves,
                                      struct cuda_rows *rows_out)
{
    struct cuda_rows rows = {
        .leaves = leaves,
        .b_bytes = (size_t)(product->k * product->n) * matmul_type_bytes(product->b),
        .d_bytes = (size_t)(product->m * product->n) * matmul_type_bytes(product->d),
    };
    struct cuda_product all = *product;
    TESS_TRY(rows_open_leaf(kernel, &all, &rows));
    all.n = product->n * leaves;
    if (rows.leaf != NULL && leaves > 1 && all.same_rows) {
        TESS_TRY(rows_plan(kernel, &all, &rows.all));
    } else if (rows.leaf != NULL && leaves > 1) {
        all.like_n = product->n;
        TESS_TRY(tess__cuda_plan_get(kernel, &all, &rows.all));
        if (rows.all != NULL)
            TESS_TRY(tess__cuda_plan_compare(kernel, &rows));
        if (rows.all != NULL && rows.all->alike != CUDA_ALIKE_YES)
            rows.all = NULL;
    }
    *rows_out = rows;
    return TESS_OK;
}
