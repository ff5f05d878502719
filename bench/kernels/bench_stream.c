/*
 * Part of `tessera bench kernels`: updates against a plain loop's bandwidth over as much memory.
 */
#include "bench/bench.h"

#include "tessera/check.h"

#include <stdlib.h>

#define STREAM_COUNT  INT64_C(8388608) /* elements: 32 MiB an array, beyond the caches */
#define STREAM_ARRAYS 4

/* A pass over arrays of STREAM_COUNT elements. */
struct stream {
    const char *name;
    bool is_update;
    enum tess_update_kind kind;
    int arrays; /* f32 arrays it touches: its footprint */
    int bytes;  /* per element, read and written */
};

static const struct stream stream_table[] = {
    {"accumulate", false, TESS_UPDATE_SGD, 2, 12},   {"sgd", true, TESS_UPDATE_SGD, 2, 12},
    {"momentum", true, TESS_UPDATE_MOMENTUM, 3, 20}, {"adamw", true, TESS_UPDATE_ADAMW, 4, 28},
    {"novograd", true, TESS_UPDATE_NOVOGRAD, 3, 20},
};

struct stream_pass {
    struct tess_kernel *kernel;
    const struct stream *stream;
    float *array[STREAM_ARRAYS]; /* w, g, m, v */
};

static enum tess_status stream_run(void *context)
{
    struct stream_pass *p = context;
    float *const *array = p->array;
    const struct tess_update update =
        tess__bench_update(p->stream->kind, STREAM_COUNT, array[0], array[1], array[2], array[3]);
    if (p->stream->is_update)
        tess_update(p->kernel, &update);
    else
        tess_accumulate(p->kernel, STREAM_COUNT, 1e-6f, p->array[1], p->array[0]);
    return TESS_OK;
}

static enum tess_status stream_measure(struct tess__bench *bench, const struct stream *stream,
                                       float *memory)
{
    struct stream_pass pass = {.kernel = bench->kernel, .stream = stream};
    /* The same footprint: the first half of the arrays is added to the second. */
    struct tess__bench_plain plain = {.memory = memory, .count = STREAM_COUNT * stream->arrays / 2};
    for (int i = 0; i < STREAM_ARRAYS; i++)
        pass.array[i] = memory + (i < stream->arrays ? i : 0) * STREAM_COUNT;
    for (int64_t i = 0; i < STREAM_COUNT * stream->arrays; i++)
        memory[i] = 0; /* so that no run of sums reaches infinity or a subnormal */
    printf("%-16s", stream->name);
    return tess__bench_bandwidth(bench, stream_run, &pass, (double)STREAM_COUNT * stream->bytes,
                                 &plain,
                                 json_pack("{s:s, s:s}", "bench", "stream", "what", stream->name));
}

enum tess_status tess__bench_stream(struct tess__bench *bench)
{
    void *memory;
    enum tess_status status = TESS_OK;
    TESS_TRY(tess__bench_allocate((size_t)STREAM_COUNT * STREAM_ARRAYS * sizeof(float), &memory));
    for (size_t i = 0; i < sizeof(stream_table) / sizeof(stream_table[0]) && status == TESS_OK; i++)
        status = stream_measure(bench, &stream_table[i], memory);
    free(memory);
    return status;
}
