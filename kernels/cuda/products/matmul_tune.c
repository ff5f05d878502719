/*
 * Choosing an algorithm by measuring: each candidate of the heuristics runs a few times over random
 * operands between two events. Choices are kept in a file (matmul_store.h); with a file, one rank
 * measures at a time and the others read its choice, so that all have the same bits.
 */
#include "cuda/products/matmul_plan.h"

#include <stdio.h>

/* All candidates run in every round, and the least time of each counts, so that changes of the
 * clock and other programs on the device do not favour a candidate. The first runs of a candidate
 * in a round load its code and fill the queue. */
#define TUNE_ROUNDS     3
#define TUNE_WARM_RUNS  2
#define TUNE_TIMED_RUNS 6

/* A candidate must be this much faster than the heuristics' first to replace it: less is noise. */
#define TUNE_GAIN 0.99

/* ---- an algorithm as numbers and back -------------------------------------------------------- */

static const struct tune_field {
    cublasLtMatmulAlgoConfigAttributes_t attribute;
    size_t bytes;
} tune_fields[MATMUL_NANOSECONDS] = {
    [MATMUL_ID] = {CUBLASLT_ALGO_CONFIG_ID, 4},
    [MATMUL_TILE] = {CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
    [MATMUL_STAGES] = {CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    [MATMUL_SPLIT_K] = {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    [MATMUL_REDUCTION] = {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
    [MATMUL_SWIZZLE] = {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    [MATMUL_CUSTOM] = {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
    [MATMUL_INNER_SHAPE] = {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
    [MATMUL_CLUSTER_SHAPE] = {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
};

enum tess_status tess__cuda_choice_read(const cublasLtMatmulAlgo_t *algorithm,
                                        struct matmul_choice *choice_out)
{
    struct matmul_choice choice = {{0}};
    for (int i = 0; i < MATMUL_NANOSECONDS; i++) {
        const struct tune_field *field = &tune_fields[i];
        uint32_t value = 0; /* hosts of CUDA are little-endian: 2 bytes are its lower half */
        size_t written;
        CUBLAS_TRY(cublasLtMatmulAlgoConfigGetAttribute(algorithm, field->attribute, &value,
                                                        field->bytes, &written));
        choice.field[i] = value;
    }
    *choice_out = choice;
    return TESS_OK;
}

/* False where the library has no such algorithm: the numbers come from a file. */
static bool tune_make(struct tess_kernel *kernel, const struct cuda_product *p,
                      const struct matmul_choice *choice, cublasLtMatmulAlgo_t *algorithm)
{
    if (cublasLtMatmulAlgoInit(tess__cuda_state(kernel)->blas, p->compute, CUDA_R_32F, p->a, p->b,
                               p->d, p->d, (int)choice->field[MATMUL_ID],
                               algorithm) != CUBLAS_STATUS_SUCCESS)
        return false;
    for (int i = MATMUL_ID + 1; i < MATMUL_NANOSECONDS; i++) {
        const struct tune_field *field = &tune_fields[i];
        const uint32_t value = (uint32_t)choice->field[i];
        if (field->bytes == sizeof(uint16_t) && value > UINT16_MAX)
            return false;
        if (cublasLtMatmulAlgoConfigSetAttribute(algorithm, field->attribute, &value,
                                                 field->bytes) != CUBLAS_STATUS_SUCCESS)
            return false;
    }
    return true;
}

/* ---- the file -------------------------------------------------------------------------------- */

static enum tess_status tune_key(struct tess_kernel *kernel, const struct cuda_product *p,
                                 char key[MATMUL_KEY_MAX])
{
    struct cudaDeviceProp about;
    CUDA_TRY(cudaGetDeviceProperties(&about, tess__cuda_state(kernel)->device));
    snprintf(key, MATMUL_KEY_MAX, "%.80s|%zu|%lld x %lld x %lld|%d%s %d%s %d|%d %d%s", about.name,
             cublasLtGetVersion(), (long long)p->m, (long long)p->n, (long long)p->k, (int)p->a,
             p->transpose_a ? "T" : "", (int)p->b, p->transpose_b ? "T" : "", (int)p->d,
             (int)p->epilogue, (int)p->compute, p->split ? " split" : "");
    tess__matmul_key_clean(key);
    return TESS_OK;
}

static bool tune_recall(struct tess_kernel *kernel, struct cuda_plan *plan, const char *path,
                        const char *key)
{
    struct matmul_choice choice;
    cublasLtMatmulAlgo_t algorithm;
    if (!tess__matmul_store_find(path, key, &choice))
        return false;
    if (!tune_make(kernel, &plan->product, &choice, &algorithm) ||
        !tess__cuda_plan_accept(kernel, plan, &algorithm)) {
        tess_log(TESS_LOG_WARN,
                 "%s has an algorithm that cuBLASLt does not take for %s: it is measured again",
                 path, key);
        return false;
    }
    plan->seconds = 1e-9 * (double)choice.field[MATMUL_NANOSECONDS];
    return true;
}

static enum tess_status tune_keep(const struct cuda_plan *plan, const char *path, const char *key)
{
    struct matmul_choice choice;
    TESS_TRY(tess__cuda_choice_read(&plan->algorithm, &choice));
    const double nanoseconds = 1e9 * plan->seconds;
    choice.field[MATMUL_NANOSECONDS] = nanoseconds < 1           ? 1
                                       : nanoseconds > INT32_MAX ? INT32_MAX
                                                                 : (int64_t)nanoseconds;
    return tess__matmul_store_put(path, key, &choice);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static enum tess_status tune_time(struct tess_kernel *kernel, struct cuda_plan *plan,
                                  const struct cuda_operands *operands, const cudaEvent_t event[2],
                                  double *seconds_out)
{
    cudaStream_t stream = tess__cuda_stream(kernel);
    for (int run = 0; run < TUNE_WARM_RUNS + TUNE_TIMED_RUNS; run++) {
        if (run == TUNE_WARM_RUNS)
            CUDA_TRY(cudaEventRecord(event[0], stream));
        TESS_TRY(tess__cuda_plan_run(kernel, plan, operands));
    }
    CUDA_TRY(cudaEventRecord(event[1], stream));
    CUDA_TRY(cudaEventSynchronize(event[1]));
    float milliseconds;
    CUDA_TRY(cudaEventElapsedTime(&milliseconds, event[0], event[1]));
    *seconds_out = 1e-3 * (double)milliseconds / TUNE_TIMED_RUNS;
    return TESS_OK;
}

/* The fastest by far enough, or the first of those that ran (seconds > 0); -1: none did. */
static int tune_pick(const double *seconds, int count)
{
    int first = -1, best = -1;
    for (int i = 0; i < count; i++) {
        if (!(seconds[i] > 0))
            continue;
        first = first < 0 ? i : first;
        best = best < 0 || seconds[i] < seconds[best] ? i : best;
    }
    return best >= 0 && seconds[best] < TUNE_GAIN * seconds[first] ? best : first;
}

static enum tess_status tune_candidates(struct tess_kernel *kernel, struct cuda_plan *plan,
                                        const cublasLtMatmulHeuristicResult_t *candidate, int count,
                                        const struct cuda_operands *operands,
                                        const cudaEvent_t event[2])
{
    double least[MATMUL_CANDIDATES] = {0};
    for (int turn = 0; turn < TUNE_ROUNDS * count; turn++) {
        const int i = turn % count;
        double seconds = 0;
        if (!tess__cuda_plan_accept(kernel, plan, &candidate[i].algo))
            continue;
        TESS_TRY(tune_time(kernel, plan, operands, event, &seconds));
        least[i] = turn < count || seconds < least[i] ? seconds : least[i];
    }
    const int chosen = tune_pick(least, count);
    if (chosen < 0 || !tess__cuda_plan_accept(kernel, plan, &candidate[chosen].algo))
        TESS_FAIL(TESS_ERR_INTERNAL, "an algorithm was accepted once and refused the next time");
    plan->seconds = least[chosen];
    return TESS_OK;
}

static enum tess_status tune_measure(struct tess_kernel *kernel, struct cuda_plan *plan,
                                     const cublasLtMatmulHeuristicResult_t *candidate, int count)
{
    struct cuda_trial trial;
    enum tess_status status = tess__cuda_trial_open(kernel, plan, &trial);
    if (status == TESS_ERR_MEMORY) {
        tess_log(TESS_LOG_WARN,
                 "no device memory to measure a product %lld x %lld x %lld: cuBLASLt's own choice",
                 (long long)plan->product.m, (long long)plan->product.n,
                 (long long)plan->product.k);
        return TESS_OK;
    }
    TESS_TRY(status);
    cudaEvent_t event[2] = {NULL, NULL};
    cudaError_t error = cudaEventCreate(&event[0]);
    if (error == cudaSuccess)
        error = cudaEventCreate(&event[1]);
    status = error == cudaSuccess ? TESS_OK : tess__cuda_fail(error, "cudaEventCreate");
    if (status == TESS_OK)
        status = tune_candidates(kernel, plan, candidate, count, &trial.operands, event);
    for (int i = 0; i < 2; i++) {
        error = event[i] != NULL ? cudaEventDestroy(event[i]) : cudaSuccess;
        if (error != cudaSuccess)
            TESS_KEEP(status, tess__cuda_fail(error, "cudaEventDestroy"));
    }
    tess__cuda_trial_close(&trial);
    return status;
}

enum tess_status tess__cuda_plan_tune(struct tess_kernel *kernel, struct cuda_plan *plan,
                                      const cublasLtMatmulHeuristicResult_t *candidate, int count)
{
    const char *path = tess__cuda_state(kernel)->plans->store;
    if (!*path)
        return tune_measure(kernel, plan, candidate, count);
    char key[MATMUL_KEY_MAX];
    TESS_TRY(tune_key(kernel, &plan->product, key));
    int lock = tess__matmul_store_lock(path);
    enum tess_status status = TESS_OK;
    if (!tune_recall(kernel, plan, path, key)) {
        status = tune_measure(kernel, plan, candidate, count);
        /* A file that cannot be written has been named; the choice holds for this run. */
        if (status == TESS_OK && plan->seconds > 0)
            (void)tune_keep(plan, path, key);
    }
    tess__matmul_store_unlock(lock);
    return status;
}
