/*
 * The slots of updates, and of sums and searches for them. Two need a few bytes of device memory
 * during a call: the first bytes of the matrix library's workspace, which is free between calls on
 * this queue.
 */
#include "cuda/cuda.h"
#include "cuda/plain/launch_plain.h"
#include "cuda/slots.h"

static int64_t *update_scratch(const struct tess_kernel *kernel)
{
    return tess__cuda_state(kernel)->workspace;
}

void tess__cuda_square_sum(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                           struct tess_sum *sum)
{
    tess__cuda_note(kernel,
                    tess__cuda_launch_square_sum(tess__cuda_stream(kernel), count, scale, x, sum),
                    "square_sum");
}

static cudaError_t update_find(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *x, int64_t *found)
{
    cudaStream_t stream = tess__cuda_stream(kernel);
    int64_t *scratch = update_scratch(kernel);
    cudaError_t error = tess__cuda_launch_find_nonfinite(stream, dtype, count, x, scratch);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(found, scratch, sizeof(*found), cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    return error;
}

/* Where the device has failed, -1: failed() returns the error. */
int64_t tess__cuda_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                  const void *x)
{
    int64_t found = -1;
    cudaError_t error = update_find(kernel, dtype, count, x, &found);
    tess__cuda_note(kernel, error, "find_nonfinite");
    return error == cudaSuccess ? found : -1;
}

void tess__cuda_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, double *sum)
{
    tess__cuda_note(kernel,
                    tess__cuda_launch_count_zeros(tess__cuda_stream(kernel), dtype, count, x, sum,
                                                  update_scratch(kernel)),
                    "count_zeros");
}

void tess__cuda_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                          struct tess_verdict *verdict)
{
    tess__cuda_note(kernel,
                    tess__cuda_launch_find_flag(tess__cuda_stream(kernel), count, x, flag, verdict),
                    "find_flag");
}

void tess__cuda_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows,
                         const float *loss, const int32_t *correct, double *sum,
                         struct tess_verdict *verdict)
{
    tess__cuda_note(kernel,
                    tess__cuda_launch_leaf_sum(tess__cuda_stream(kernel), leaves, leaf_rows, loss,
                                               correct, sum, verdict),
                    "leaf_sum");
}

void tess__cuda_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge)
{
    tess__cuda_note(kernel, tess__cuda_launch_update_judge(tess__cuda_stream(kernel), judge),
                    "update_judge");
}

void tess__cuda_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    tess__cuda_update_all(kernel, update, 1);
}

void tess__cuda_update_all(struct tess_kernel *kernel, const struct tess_update *update,
                           int32_t count)
{
    tess__cuda_note(kernel, tess__cuda_launch_update(tess__cuda_stream(kernel), update, count),
                    "update");
}

void tess__cuda_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update)
{
    tess__cuda_note(kernel, tess__cuda_launch_lamb_direction(tess__cuda_stream(kernel), update, 1),
                    "lamb_direction");
}
