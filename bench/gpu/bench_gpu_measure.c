/* Memory on the device and time by its own clock, for `tessera bench gpu`; see bench_gpu.h. */
#include "bench/gpu/bench_gpu.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MEASURE_CHUNK      (INT64_C(1) << 22) /* random numbers made at a time, at most */
#define MEASURE_ROUNDS_MAX 32
#define MEASURE_RUNS_MAX   1000 /* of a batch: about as many as a device's queue holds */
#define MEASURE_LONG_S     0.1  /* for runs this long MEASURE_FEW rounds are enough */
#define MEASURE_FEW        3

/* ---- memory ---------------------------------------------------------------------------------- */

static enum tess_status measure_alloc(struct tess__gpu *gpu, int64_t bytes, void **memory_out)
{
    struct tess_kernel *kernel = gpu->bench.kernel;
    const size_t whole =
        ((size_t)bytes + TESS_MEMORY_ALIGN) / TESS_MEMORY_ALIGN * TESS_MEMORY_ALIGN;
    if (kernel->ops->far_memory)
        return kernel->ops->alloc(kernel, whole, memory_out);
    *memory_out = aligned_alloc(TESS_MEMORY_ALIGN, whole);
    if (!*memory_out)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the bench: %zu bytes", whole);
    memset(*memory_out, 0, whole);
    return TESS_OK;
}

static void measure_free(const struct tess__gpu *gpu, void *memory)
{
    struct tess_kernel *kernel = gpu->bench.kernel;
    if (kernel->ops->far_memory)
        kernel->ops->free(kernel, memory);
    else
        free(memory);
}

enum tess_status tess__gpu_open(struct tess__gpu *gpu)
{
    struct tess_kernel *kernel = gpu->bench.kernel;
    void *chunk;
    for (int i = 0; i < 2 && kernel->queue; i++)
        TESS_TRY(kernel->ops->queue->fence_open(kernel, &gpu->fence[i]));
    gpu->chunk_count = gpu->bytes / 4 < MEASURE_CHUNK ? gpu->bytes / 4 : MEASURE_CHUNK;
    TESS_TRY(measure_alloc(gpu, gpu->chunk_count * 4, &chunk));
    gpu->chunk = chunk;
    return TESS_OK;
}

void tess__gpu_drop(struct tess__gpu *gpu)
{
    while (gpu->ops > 0)
        gpu->bench.kernel->ops->op_close(&gpu->op[--gpu->ops]);
    while (gpu->arrays > 0)
        measure_free(gpu, gpu->array[--gpu->arrays]);
}

void tess__gpu_close(struct tess__gpu *gpu)
{
    tess__gpu_drop(gpu);
    if (gpu->chunk)
        measure_free(gpu, gpu->chunk);
    for (int i = 0; i < 2; i++)
        if (gpu->fence[i])
            gpu->fence[i]->ops->fence_close(gpu->fence[i]);
}

bool tess__gpu_has_choices(const struct tess__gpu *gpu)
{
    return gpu->place.ops->choose; /* an open kernel's is never NULL */
}

enum tess_status tess__gpu_open_beside(const struct tess__gpu *gpu,
                                       const struct tess_kernel_choices *choices,
                                       struct tess__gpu *beside_out)
{
    struct tess_kernel *kernel;
    *beside_out = *gpu;
    beside_out->bench.kernel = NULL;
    beside_out->fence[0] = beside_out->fence[1] = NULL;
    beside_out->chunk = NULL;
    beside_out->arrays = beside_out->ops = 0;
    TESS_TRY(tess__bench_place_open(&gpu->place, 1, &kernel));
    beside_out->bench.kernel = kernel;
    TESS_TRY(kernel->ops->choose(kernel, choices));
    return tess__gpu_open(beside_out);
}

void tess__gpu_close_beside(struct tess__gpu *beside)
{
    tess__gpu_close(beside);
    tess__bench_place_close(beside->bench.kernel);
}

enum tess_status tess__gpu_take(struct tess__gpu *gpu, int64_t bytes, void **memory_out)
{
    if (gpu->arrays == TESS__GPU_ARRAYS_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "a bench with more than %d arrays", TESS__GPU_ARRAYS_MAX);
    TESS_TRY(measure_alloc(gpu, bytes, memory_out));
    gpu->array[gpu->arrays++] = *memory_out;
    return TESS_OK;
}

enum tess_status tess__gpu_take_random(struct tess__gpu *gpu, enum tess_dtype dtype, int64_t count,
                                       void **memory_out)
{
    struct tess_kernel *kernel = gpu->bench.kernel;
    const int64_t element = (int64_t)tess_dtype_bytes(dtype);
    const uint32_t key[2] = {1, (uint32_t)gpu->arrays};
    TESS_TRY(tess__gpu_take(gpu, count * element, memory_out));
    for (int64_t at = 0; at < count; at += gpu->chunk_count) {
        const int64_t left = count - at, part = left < gpu->chunk_count ? left : gpu->chunk_count;
        char *to = (char *)*memory_out + at * element;
        tess_normal(kernel, key, (uint64_t)at, part, 0.0f, 1.0f, gpu->chunk);
        if (dtype == TESS_F32)
            tess_copy(kernel, part * element, gpu->chunk, to);
        else
            tess_cast(kernel, part, TESS_F32, gpu->chunk, dtype, to);
    }
    return TESS_OK;
}

enum tess_status tess__gpu_take_tokens(struct tess__gpu *gpu, int64_t count, int64_t below,
                                       void **memory_out)
{
    const size_t bytes = (size_t)count * sizeof(int32_t);
    int32_t *token = malloc(bytes);
    uint64_t state = 1;
    if (!token)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the bench: %zu bytes", bytes);
    for (int64_t i = 0; i < count; i++) { /* Knuth's MMIX generator, its high bits */
        state = state * 6364136223846793005u + 1442695040888963407u;
        token[i] = (int32_t)((state >> 33) % (uint64_t)below);
    }
    enum tess_status status = tess__gpu_take(gpu, (int64_t)bytes, memory_out);
    if (status == TESS_OK)
        status = tess_write(gpu->bench.kernel, bytes, token, *memory_out);
    free(token);
    return status;
}

enum tess_status tess__gpu_take_op(struct tess__gpu *gpu, const struct tess_op_desc *desc,
                                   struct tess_op **op_out)
{
    struct tess_kernel *kernel = gpu->bench.kernel;
    struct tess_op_needs needs;
    if (gpu->ops == TESS__GPU_OPS_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "a bench with more than %d operations", TESS__GPU_OPS_MAX);
    struct tess_op *op = &gpu->op[gpu->ops];
    *op = (struct tess_op){.desc = *desc, .kernel = kernel, .weight_token = 1};
    TESS_TRY(kernel->ops->op_needs(desc, &needs));
    TESS_TRY(tess__gpu_take(gpu, (int64_t)needs.scratch_bytes, &op->scratch));
    TESS_TRY(tess__gpu_take(gpu, (int64_t)needs.packed_bytes, &op->packed));
    TESS_TRY(kernel->ops->op_open(op));
    gpu->ops++;
    *op_out = op;
    return TESS_OK;
}

/* ---- time ------------------------------------------------------------------------------------ */

struct tess__gpu_time tess__gpu_times(double *seconds, int count)
{
    tess__bench_sort(seconds, (size_t)count);
    return (struct tess__gpu_time){.median_s = seconds[count / 2], .least_s = seconds[0]};
}

enum tess_status tess__gpu_wait(struct tess__gpu *gpu)
{
    struct tess_kernel *kernel = gpu->bench.kernel;
    if (kernel->queue) {
        TESS_TRY(kernel->queue->ops->record(kernel->queue, gpu->fence[1]));
        TESS_TRY(kernel->queue->ops->wait(gpu->fence[1]));
    }
    return kernel->ops->failed(kernel);
}

static enum tess_status measure_runs(const struct tess__gpu_task *task, int runs)
{
    for (int i = 0; i < runs; i++)
        TESS_TRY(task->run(task->context));
    return TESS_OK;
}

/* One batch; seconds of a run of it. */
static enum tess_status measure_batch(struct tess__gpu *gpu, const struct tess__gpu_task *task,
                                      int runs, double *each_s)
{
    struct tess_kernel *kernel = gpu->bench.kernel;
    struct tess_queue *queue = kernel->queue;
    double seconds;
    if (task->reset)
        task->reset(task->context);
    if (queue) {
        TESS_TRY(queue->ops->record(queue, gpu->fence[0]));
        TESS_TRY(measure_runs(task, runs));
        TESS_TRY(tess__gpu_wait(gpu));
        TESS_TRY(queue->ops->elapsed(gpu->fence[0], gpu->fence[1], &seconds));
    } else {
        const double start_s = tess_clock_s();
        TESS_TRY(measure_runs(task, runs));
        seconds = tess_clock_s() - start_s;
        TESS_TRY(kernel->ops->failed(kernel));
    }
    *each_s = seconds / runs;
    return TESS_OK;
}

/* Warm up: code is loaded, clocks go up. How many runs make a batch, and how many rounds of them
 * are enough. */
static enum tess_status measure_warm(struct tess__gpu *gpu, const struct tess__gpu_task *task,
                                     int *runs_out, int *rounds)
{
    double each_s;
    *runs_out = 1;
    TESS_TRY(measure_batch(gpu, task, 1, &each_s));
    if (each_s < MEASURE_LONG_S)
        TESS_TRY(measure_batch(gpu, task, 3, &each_s));
    else if (*rounds > MEASURE_FEW)
        *rounds = MEASURE_FEW;
    if (each_s < gpu->batch_s)
        *runs_out = (int)fmin(gpu->batch_s / fmax(each_s, 1e-9) + 1, MEASURE_RUNS_MAX);
    return TESS_OK;
}

static enum tess_status measure_in_turns(int count, struct tess__gpu *const *gpu,
                                         const struct tess__gpu_task *task,
                                         struct tess__gpu_time *time_out)
{
    double round_s[2][MEASURE_ROUNDS_MAX];
    int runs[2], rounds = gpu[0]->rounds;
    for (int t = 0; t < count; t++)
        TESS_TRY(measure_warm(gpu[t], &task[t], &runs[t], &rounds));
    for (int r = 0; r < rounds; r++)
        for (int t = 0; t < count; t++)
            TESS_TRY(measure_batch(gpu[t], &task[t], runs[t], &round_s[t][r]));
    for (int t = 0; t < count; t++) {
        time_out[t] = tess__gpu_times(round_s[t], rounds);
        if (!(time_out[t].least_s > 0))
            TESS_FAIL(TESS_ERR_INTERNAL,
                      "%d runs took no time: the clock of kernel %s does not advance", runs[t],
                      gpu[t]->bench.kernel->ops->name);
    }
    return TESS_OK;
}

enum tess_status tess__gpu_measure(struct tess__gpu *gpu, const struct tess__gpu_task *task,
                                   struct tess__gpu_row *row)
{
    TESS_TRY(measure_in_turns(1, &gpu, task, &row->time));
    return tess__gpu_print(gpu, row);
}

enum tess_status tess__gpu_measure_pair(struct tess__gpu *const gpu[2],
                                        const struct tess__gpu_task task[2],
                                        struct tess__gpu_time time_out[2])
{
    return measure_in_turns(2, gpu, task, time_out);
}
