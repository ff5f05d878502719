/*
 * Part of `tessera bench gpu`: what it costs the host to give the device work, of operations so
 * small that the device itself has next to nothing to do. A step has a few thousand of them, and
 * where the device's own share is less than the host's, it waits for the host. A step that is
 * recorded as a graph is given as one.
 */
#include "bench/gpu/bench_gpu.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <stdio.h>

#define HOST_CALLS      200 /* submitted without waiting: fewer than a device's queue holds */
#define HOST_ROUNDS_MAX 32
#define HOST_COUNT      1024
#define HOST_ROWS       64
#define HOST_WIDTH      64
#define HOST_LISTS      20  /* of what is itself a list of work */
#define HOST_UPDATES    148 /* as many parameters as GPT-2 124M has */

enum host_what {
    HOST_ADD,
    HOST_COPY,
    HOST_NORM,
    HOST_PRODUCT,
    HOST_UPDATE_ALL,
    HOST_RECORD,
    HOST_FOLLOW,
    HOST_GRAPH,
    HOST_WHATS
};

static const char *const host_name[HOST_WHATS] = {
    [HOST_ADD] = "add",
    [HOST_COPY] = "copy",
    [HOST_NORM] = "layer norm",
    [HOST_PRODUCT] = "product",
    [HOST_UPDATE_ALL] = "adamw of 148 pieces",
    [HOST_RECORD] = "record a fence",
    [HOST_FOLLOW] = "follow a fence",
    [HOST_GRAPH] = "add, 200 in a graph",
};

struct host {
    struct tess__gpu *gpu;
    struct tess_kernel *kernel;
    enum host_what what;
    float *array[5];
    struct tess_op *norm, *product;
    struct tess_update update[HOST_UPDATES];
    struct tess_queue *queue; /* another one, that follows; NULL: none */
    struct tess_fence *fence;
};

static int host_count(const struct host *h)
{
    return h->what == HOST_UPDATE_ALL ? HOST_LISTS : HOST_CALLS;
}

/* ---- giving work ----------------------------------------------------------------------------- */

static enum tess_status host_call(struct host *h)
{
    struct tess_queue *own = h->kernel->queue;
    float **a = h->array;
    switch (h->what) {
    case HOST_ADD:
    case HOST_GRAPH:
        tess_add(h->kernel, TESS_F32, HOST_COUNT, a[0], a[1], a[2]);
        break;
    case HOST_COPY:
        tess_copy(h->kernel, HOST_COUNT * 4, a[0], a[2]);
        break;
    case HOST_NORM:
        return tess_norm_forward(h->norm, a[0], NULL, NULL, a[1], a[1], a[2], a[3], a[4]);
    case HOST_PRODUCT:
        return tess_linear_forward(h->product, a[0], a[1], NULL, a[2]);
    case HOST_UPDATE_ALL:
        tess_update_all(h->kernel, h->update, HOST_UPDATES);
        break;
    case HOST_RECORD:
        return own->ops->record(own, h->fence);
    default:
        return h->queue->ops->follow(h->queue, h->fence);
    }
    return TESS_OK;
}

static enum tess_status host_calls(struct host *h)
{
    if (h->what == HOST_GRAPH)
        return h->kernel->ops->graph_play(h->kernel, 0);
    for (int i = 0; i < host_count(h); i++)
        TESS_TRY(host_call(h));
    return TESS_OK;
}

static enum tess_status host_record_graph(struct host *h)
{
    TESS_TRY(h->kernel->ops->graph_begin(h->kernel));
    enum tess_status status = TESS_OK;
    for (int i = 0; i < HOST_CALLS && status == TESS_OK; i++)
        status = host_call(h);
    TESS_KEEP(status, h->kernel->ops->graph_end(h->kernel, 0));
    return status;
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* Seconds of one call: until it returns, and until the device has finished it. */
static enum tess_status host_round(struct host *h, double *host_s, double *both_s)
{
    TESS_TRY(tess__gpu_wait(h->gpu));
    const double start_s = tess_clock_s();
    TESS_TRY(host_calls(h));
    const double given_s = tess_clock_s();
    TESS_TRY(tess__gpu_wait(h->gpu));
    *host_s = (given_s - start_s) / host_count(h);
    *both_s = (tess_clock_s() - start_s) / host_count(h);
    return TESS_OK;
}

static enum tess_status host_measure(struct host *h)
{
    struct tess__gpu *gpu = h->gpu;
    double host_s[HOST_ROUNDS_MAX], both_s[HOST_ROUNDS_MAX], unused[2];
    if (h->what == HOST_GRAPH)
        TESS_TRY(host_record_graph(h));
    TESS_TRY(host_round(h, &unused[0], &unused[1])); /* warm */
    for (int r = 0; r < gpu->rounds; r++)
        TESS_TRY(host_round(h, &host_s[r], &both_s[r]));
    const struct tess__gpu_time host = tess__gpu_times(host_s, gpu->rounds);
    const struct tess__gpu_time both = tess__gpu_times(both_s, gpu->rounds);
    printf("%-27s %11.3f %11.3f %11.3f\n", host_name[h->what], host.median_s * 1e6,
           host.least_s * 1e6, both.median_s * 1e6);
    fflush(stdout);
    return tess__bench_write(&gpu->bench.log,
                             json_pack("{s:s, s:s, s:s, s:i, s:f, s:f, s:f}", "bench", "gpu",
                                       "part", "host", "name", host_name[h->what], "calls",
                                       host_count(h), "median_s", host.median_s, "least_s",
                                       host.least_s, "done_s", both.median_s));
}

static bool host_has(const struct host *h)
{
    if (h->what == HOST_RECORD || h->what == HOST_FOLLOW)
        return h->queue;
    return h->what != HOST_GRAPH || h->kernel->ops->graph_begin;
}

static enum tess_status host_open(struct host *h)
{
    struct tess__gpu *gpu = h->gpu;
    const struct tess_op_desc norm = {.kind = TESS_OP_NORM,
                                      .dtype = TESS_F32,
                                      .rows = HOST_ROWS,
                                      .leaf_rows = HOST_ROWS,
                                      .in = HOST_WIDTH,
                                      .out = HOST_WIDTH,
                                      .epsilon = 1e-5f};
    struct tess_op_desc product = norm;
    void *memory;
    product.kind = TESS_OP_LINEAR;
    product.epsilon = 0;
    for (int i = 0; i < 5; i++) { /* the last is a variance: zero, never negative */
        TESS_TRY(i < 4 ? tess__gpu_take_random(gpu, TESS_F32, HOST_ROWS * HOST_WIDTH, &memory)
                       : tess__gpu_take(gpu, HOST_ROWS * HOST_WIDTH * 4, &memory));
        h->array[i] = memory;
    }
    TESS_TRY(tess__gpu_take_op(gpu, &norm, &h->norm));
    TESS_TRY(tess__gpu_take_op(gpu, &product, &h->product));
    for (int i = 0; i < HOST_UPDATES; i++) { /* they share no memory */
        const int64_t count = HOST_ROWS * HOST_WIDTH / HOST_UPDATES;
        const int64_t at = i * count;
        h->update[i] = tess__bench_update(TESS_UPDATE_ADAMW, count, h->array[1] + at,
                                          h->array[2] + at, h->array[3] + at, h->array[4] + at);
    }
    if (!h->kernel->queue)
        return TESS_OK;
    TESS_TRY(h->kernel->ops->queue->fence_open(h->kernel, &h->fence));
    return h->kernel->ops->queue->open(h->kernel, &h->queue);
}

enum tess_status tess__gpu_host(struct tess__gpu *gpu)
{
    struct host h = {.gpu = gpu, .kernel = gpu->bench.kernel};
    enum tess_status status = host_open(&h);
    if (status == TESS_OK)
        printf("\n%-27s %11s %11s %11s\n", "host's cost of a call", "us", "best us", "until done");
    for (int what = 0; what < HOST_WHATS && status == TESS_OK; what++) {
        h.what = (enum host_what)what;
        if (host_has(&h))
            status = host_measure(&h);
    }
    if (h.queue)
        h.queue->ops->close(h.queue);
    if (h.fence)
        h.fence->ops->fence_close(h.fence);
    return status;
}
