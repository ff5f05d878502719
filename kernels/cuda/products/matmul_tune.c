/*
 * Choosing an algorithm by measuring: each candidate of the heuristics runs a few times over random
 * operands between two events. Choices are kept in a file (matmul_store.h); with a file, one rank
 * measures at a time and the others read its choice, so that all have the same bits.
 */
#include "cuda/host.h"
#include "cuda/products/matmul_plan.h"
#include "cuda/products/matmul_store.h"

#include <stdio.h>
#include <string.h>

/* All candidates run in every round, and the least time of each counts, so that changes of the
 * clock and other programs on the device do not favour a candidate. The first runs of a candidate
 * in a round load its code and fill the queue. */
#define TUNE_ROUNDS     3
#define TUNE_WARM_RUNS  2
#define TUNE_TIMED_RUNS 6

/* A candidate must be this much faster than the heuristics' first to replace it: less is noise. */
#define TUNE_GAIN 0.99

/* ---- the file -------------------------------------------------------------------------------- */

static enum tess_status tune_key(struct tess_kernel *kernel, const struct cuda_product *p,
                                 char key[MATMUL_KEY_MAX])
{
    struct cudaDeviceProp about;
    int driver;
    CUDA_TRY(cudaDriverGetVersion(&driver));
    CUDA_TRY(cudaGetDeviceProperties(&about, tess__cuda_state(kernel)->device));
    char target[16] = "";
    if (p->sm_target > 0)
        snprintf(target, sizeof(target), " sm %d", (int)p->sm_target);
    snprintf(key, MATMUL_KEY_MAX, "%.80s|%d|%zu|%lld x %lld x %lld|%d%s %d%s %d|%d %d%s%s%s",
             about.name, driver, cublasLtGetVersion(), (long long)p->m, (long long)p->n,
             (long long)p->k, (int)p->a, p->transpose_a ? "T" : "", (int)p->b,
             p->transpose_b ? "T" : "", (int)p->d, (int)p->epilogue, (int)p->compute,
             p->fast ? " fast" : "",
             p->split       ? " split"
             : p->same_rows ? " rows"
                            : "",
             target);
    tess__matmul_key_clean(key);
    return TESS_OK;
}

/* Sets plan->found. */
static enum tess_status tune_recall(struct tess_kernel *kernel, struct cuda_plan *plan,
                                    const struct cuda_operands *operands, const char *path,
                                    const char *key)
{
    struct matmul_choice choice;
    cublasLtMatmulAlgo_t algorithm;
    _Static_assert(sizeof(algorithm) == sizeof(choice.algorithm), "the words of an algorithm");
    if (!tess__matmul_store_find(path, key, &choice))
        return TESS_OK;
    memcpy(&algorithm, choice.algorithm, sizeof(algorithm));
    TESS_TRY(tess__cuda_plan_prove(kernel, plan, &algorithm, operands));
    if (plan->found)
        plan->seconds = 1e-9 * (double)choice.nanoseconds;
    else
        tess_log(TESS_LOG_WARN,
                 "%s has an algorithm that cuBLASLt does not take for %s: it is measured again",
                 path, key);
    return TESS_OK;
}

static enum tess_status tune_keep(const struct cuda_plan *plan, const char *path, const char *key)
{
    const double nanoseconds = 1e9 * plan->seconds;
    struct matmul_choice choice = {.nanoseconds = nanoseconds < 1           ? 1
                                                  : nanoseconds > INT32_MAX ? INT32_MAX
                                                                            : (int64_t)nanoseconds};
    memcpy(choice.algorithm, &plan->algorithm, sizeof(choice.algorithm));
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
    TESS_TRY(tess__cuda_await(tess__cuda_state(kernel), event[1], "measuring a product"));
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
    for (int i = 0; i < count; i++) {
        TESS_TRY(tess__cuda_plan_prove(kernel, plan, &candidate[i].algo, operands));
        if (plan->found)
            TESS_TRY(tune_time(kernel, plan, operands, event, &least[i]));
    }
    for (int turn = count; turn < TUNE_ROUNDS * count; turn++) {
        const int i = turn % count;
        double seconds = 0;
        if (!(least[i] > 0) || !tess__cuda_plan_accept(kernel, plan, &candidate[i].algo))
            continue;
        TESS_TRY(tune_time(kernel, plan, operands, event, &seconds));
        least[i] = seconds < least[i] ? seconds : least[i];
    }
    const int chosen = tune_pick(least, count);
    plan->found = chosen >= 0 && tess__cuda_plan_accept(kernel, plan, &candidate[chosen].algo);
    plan->seconds = plan->found ? least[chosen] : 0;
    return TESS_OK;
}

static enum tess_status tune_measure(struct tess_kernel *kernel, struct cuda_plan *plan,
                                     const cublasLtMatmulHeuristicResult_t *candidate, int count,
                                     const struct cuda_operands *operands)
{
    cudaEvent_t event[2] = {NULL, NULL};
    cudaError_t error = cudaEventCreate(&event[0]);
    if (error == cudaSuccess)
        error = cudaEventCreate(&event[1]);
    enum tess_status status =
        error == cudaSuccess ? TESS_OK : tess__cuda_fail(error, "cudaEventCreate");
    if (status == TESS_OK)
        status = tune_candidates(kernel, plan, candidate, count, operands, event);
    for (int i = 0; i < 2; i++) {
        error = event[i] != NULL ? cudaEventDestroy(event[i]) : cudaSuccess;
        if (error != cudaSuccess)
            TESS_KEEP(status, tess__cuda_fail(error, "cudaEventDestroy"));
    }
    return status;
}

enum tess_status tess__cuda_plan_tune(struct tess_kernel *kernel, struct cuda_plan *plan,
                                      const cublasLtMatmulHeuristicResult_t *candidate, int count,
                                      const struct cuda_operands *operands)
{
    const char *path = tess__cuda_state(kernel)->plans->store;
    if (!*path)
        return operands != NULL ? tune_measure(kernel, plan, candidate, count, operands) : TESS_OK;
    char key[MATMUL_KEY_MAX];
    TESS_TRY(tune_key(kernel, &plan->product, key));
    int lock = tess__matmul_store_lock(path);
    enum tess_status status = tune_recall(kernel, plan, operands, path, key);
    if (status == TESS_OK && !plan->found && operands != NULL) {
        status = tune_measure(kernel, plan, candidate, count, operands);
        /* A file that cannot be written has been named; the choice holds for this run. */
        if (status == TESS_OK && plan->found)
            (void)tune_keep(plan, path, key);
    }
    tess__matmul_store_unlock(lock);
    return status;
}
