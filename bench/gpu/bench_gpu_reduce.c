/*
 * Part of `tessera bench gpu`: what ranks that share a device do in place of sending, n of their
 * arrays added up in canonical order (tessera/queue.h). Bytes: n arrays read, one or, for an
 * all-reduce, n written.
 */
#include "bench/gpu/bench_gpu.h"

#include "tessera/check.h"
#include "text/text.h"

#include <stdio.h>

#define REDUCE_ARRAYS 8
#define REDUCE_GOAL   0.85

struct reduce {
    struct tess_queue *queue;
    enum tess_dtype dtype;
    int32_t n, m;
    int64_t bytes;
    void *source[REDUCE_ARRAYS], *target[REDUCE_ARRAYS];
};

static enum tess_status reduce_run(void *context)
{
    const struct reduce *r = context;
    return r->queue->ops->reduce(r->queue, r->dtype, r->dtype, TESS_REDUCE_SUM, r->n,
                                 (const void *const *)r->source, r->m, r->target,
                                 (size_t)r->bytes / tess_dtype_bytes(r->dtype));
}

static enum tess_status reduce_measure(struct tess__gpu *gpu, struct reduce *r)
{
    const struct tess__gpu_task task = {.run = reduce_run, .context = r};
    char size[TESS__TEXT_BYTES], shape[TESS__GPU_TEXT_BYTES];
    struct tess__gpu_row row = {.part = "reduce",
                                .name = r->m == 1 ? "sum of arrays" : "sum, written to all",
                                .shape = shape,
                                .type = tess_dtype_name(r->dtype),
                                .bytes = (double)r->bytes * (r->n + r->m),
                                .ceiling = gpu->copy_per_s,
                                .goal = REDUCE_GOAL};
    snprintf(shape, sizeof(shape), "%d x %s", (int)r->n, tess__text_bytes((double)r->bytes, size));
    return tess__gpu_measure(gpu, &task, &row);
}

enum tess_status tess__gpu_reduce(struct tess__gpu *gpu)
{
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16};
    struct reduce r = {.queue = gpu->bench.kernel->queue, .bytes = gpu->bytes};
    if (!r.queue) {
        printf("\nsums of ranks' arrays: kernel %s has no queue, its ranks add on the host\n",
               gpu->bench.kernel->ops->name);
        return TESS_OK;
    }
    tess__gpu_head(gpu, "sums in canonical order", true, "copy");
    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        r.dtype = dtypes[d];
        for (int i = 0; i < REDUCE_ARRAYS; i++) {
            TESS_TRY(tess__gpu_take_random(
                gpu, r.dtype, r.bytes / (int64_t)tess_dtype_bytes(r.dtype), &r.source[i]));
            TESS_TRY(tess__gpu_take(gpu, r.bytes, &r.target[i]));
        }
        for (r.n = 2; r.n <= REDUCE_ARRAYS; r.n *= 2) {
            r.m = 1;
            TESS_TRY(reduce_measure(gpu, &r));
            r.m = r.n;
            TESS_TRY(reduce_measure(gpu, &r));
        }
        tess__gpu_drop(gpu);
    }
    return TESS_OK;
}
