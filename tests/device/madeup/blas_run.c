/* cublasLtMatmul: what its pointers must be, and the work that it queues. */
#include "device/madeup/blas.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define RUN_WORKSPACE_ALIGN 256 /* the document, cublasSetWorkspace */
#define RUN_SCALE_ALIGN     16  /* the document, requirements of FP8 kernels */

/* Where lazily, code is loaded by the first call that needs it, and loading may wait for all work
 * of the device (the CUDA programming guide, "Lazy loading"). */
static void run_load(int device, int32_t id)
{
    static atomic_uint loaded[MADEUP_DEVICES_MAX];
    const char *mode = getenv("CUDA_MODULE_LOADING");
    const unsigned bit = 1u << (id % 32);
    if ((mode == NULL || strcmp(mode, "EAGER") != 0) &&
        !(atomic_fetch_or(&loaded[device], bit) & bit))
        madeup_wait_idle(device);
}

/* ---- pointers -------------------------------------------------------------------------------- */

static bool run_is_aligned(const void *memory, size_t align)
{
    return memory != NULL && (uintptr_t)memory % align == 0;
}

static cublasStatus_t run_check_pointers(const struct blas_run *run,
                                         const cublasLtMatmulAlgo_t *algorithm)
{
    const struct blas_problem *p = &run->problem;
    const struct blas_work *w = &p->work;
    if (!run_is_aligned(run->a, blas_algorithm_align(algorithm, p->a.type)) ||
        !run_is_aligned(run->b, blas_algorithm_align(algorithm, p->b.type)) ||
        !run_is_aligned(run->c, blas_algorithm_align(algorithm, p->c.type)) ||
        !run_is_aligned(run->d, blas_algorithm_align(algorithm, p->d.type)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (run->c == run->d && (p->c.type != p->d.type || p->c.stride != p->d.stride))
        return CUBLAS_STATUS_INVALID_VALUE;
    if ((blas_has_bias(w->epilogue) && w->bias == NULL) ||
        (blas_has_aux(w->epilogue) && w->aux == NULL))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p->narrow && ((w->scale_a != NULL && !run_is_aligned(w->scale_a, RUN_SCALE_ALIGN)) ||
                      (w->scale_b != NULL && !run_is_aligned(w->scale_b, RUN_SCALE_ALIGN))))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

static void run_apart(const char *what, const void *a, size_t a_bytes, const void *b,
                      size_t b_bytes)
{
    const uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;
    if (x < y + b_bytes && y < x + a_bytes)
        madeup_fail("cublasLtMatmul: %s overlaps the result", what);
}

/* Every range that it touches, on the queue's thread; none that is read may be written. */
static void run_check_ranges(const struct blas_run *run)
{
    static const char name[] = "cublasLtMatmul";
    const struct blas_problem *p = &run->problem;
    const struct blas_work *w = &p->work;
    const size_t d_bytes = blas_layout_bytes(&p->d);
    const struct {
        const char *what; /* NULL: it may be the result */
        const void *memory;
        size_t bytes;
        bool used;
    } all[] = {
        {"A", run->a, blas_layout_bytes(&p->a), true},
        {"B", run->b, blas_layout_bytes(&p->b), true},
        {NULL, run->c, blas_layout_bytes(&p->c), run->beta != 0},
        {NULL, run->d, d_bytes, true},
        {"the bias", w->bias,
         (size_t)(w->epilogue == CUBLASLT_EPILOGUE_BGRADB ? p->n : p->m) *
             (blas_has_bias(w->epilogue) ? blas_type_bytes(p->bias_type) : 0),
         blas_has_bias(w->epilogue)},
        {"the auxiliary matrix", w->aux,
         (size_t)((p->n - 1) * w->aux_stride + p->m) * blas_type_bytes(p->d.type),
         blas_has_aux(w->epilogue)},
        {"the scale of A", w->scale_a, sizeof(float), w->scale_a != NULL},
        {"the scale of B", w->scale_b, sizeof(float), w->scale_b != NULL},
        {"the workspace", run->workspace, run->workspace_bytes, run->workspace_bytes > 0},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (!all[i].used)
            continue;
        madeup_check_range(name, run->device, all[i].memory, all[i].bytes);
        if (all[i].what != NULL)
            run_apart(all[i].what, all[i].memory, all[i].bytes, run->d, d_bytes);
    }
}

static cudaError_t run_work(const void *context)
{
    const struct blas_run *run = context;
    run_check_ranges(run);
    blas_multiply(run);
    return cudaSuccess;
}

/* ---- the call -------------------------------------------------------------------------------- */

static cublasStatus_t run_submit(const struct blas_run *run, cudaStream_t stream)
{
    struct blas_run *copy = malloc(sizeof(*copy));
    if (copy == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *copy = *run;
    const struct madeup_work work = {"cublasLtMatmul", run_work, free, copy};
    return madeup_submit(stream, &work) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                       : CUBLAS_STATUS_EXECUTION_FAILED;
}

static float run_scalar(const void *scalar)
{
    float value;
    int device;
    if (madeup_place_of(scalar, &device) == MADEUP_DEVICE)
        madeup_fail("cublasLtMatmul: alpha or beta is in device memory, without its pointer mode");
    memcpy(&value, scalar, sizeof(value));
    return value;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t work, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    BLAS_INJECT(CUBLAS_STATUS_EXECUTION_FAILED);
    const cublasLtMatrixLayout_t layouts[4] = {a, b, c, d};
    struct blas_run run = {.a = A, .b = B, .c = C, .d = D, .workspace = workspace};
    run.device = madeup_stream_device(stream);
    if (run.device != blas_handle(handle)->device || run.device != madeup_device())
        madeup_fail("cublasLtMatmul: the handle is of device %d, the stream of %d, the thread on "
                    "%d",
                    blas_handle(handle)->device, run.device, madeup_device());
    if (algorithm == NULL)
        madeup_fail("cublasLtMatmul without an algorithm is not modelled");
    if (alpha == NULL || beta == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    run.alpha = run_scalar(alpha);
    run.beta = run_scalar(beta);
    cublasStatus_t status = blas_check(work, layouts, &run.problem);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = blas_algorithm_check(&run.problem, algorithm, &run.workspace_bytes);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = run_check_pointers(&run, algorithm);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    if (run.workspace_bytes > workspace_bytes ||
        (run.workspace_bytes > 0 && !run_is_aligned(workspace, RUN_WORKSPACE_ALIGN)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (blas_algorithm_breaks(algorithm))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    int32_t id;
    memcpy(&id, algorithm, sizeof(id));
    run_load(run.device, id);
    run.sum = blas_algorithm_sum(&run.problem, algorithm);
    return run_submit(&run, stream);
}
