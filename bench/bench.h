/*
 * What the files of the benchmarks share: an open backend, tasks that are measured in turns, and
 * the file of results.
 */
#ifndef TESSERA_BENCH_BENCH_H
#define TESSERA_BENCH_BENCH_H

#include "tessera/kernel.h"

#include <jansson.h>
#include <stdio.h>

#define TESS__BENCH_ROUNDS 11
#define TESS__BENCH_TASKS  5

/* The file of --json: one line per result. */
struct tess__bench_log {
    FILE *file; /* NULL: no file */
    const char *path;
};

struct tess__bench {
    struct tess_kernel *kernel;
    int64_t rows; /* of a batch, for layers that have no rows of their own */
    struct tess__bench_log log;
};

struct tess__bench_task {
    enum tess_status (*run)(void *context);
    void *context;
    double round_s[TESS__BENCH_ROUNDS]; /* seconds of one run, per round */
    double median_s;
};

/*
 * Run `count` <= TESS__BENCH_TASKS tasks in turns, round after round, and fill their medians. Time
 * is that of this thread's processor, or, where the backend has several threads, wall-clock
 * time. What takes long is run in fewer rounds.
 */
enum tess_status tess__bench_measure(const struct tess__bench *bench, struct tess__bench_task *task,
                                     int count);

/* `path` "": none. `mode` as fopen's. close keeps an earlier error. TESS_ERR_IO. */
enum tess_status tess__bench_log_open(struct tess__bench_log *log, const char *path,
                                      const char *mode);
enum tess_status tess__bench_log_close(struct tess__bench_log *log, enum tess_status status);
/* Write one JSON line, where there is a file. Takes over `line`; NULL is an error. TESS_ERR_IO. */
enum tess_status tess__bench_write(struct tess__bench_log *log, json_t *line);

/* Memory that a plain loop works on: its first `count` elements are added to the next. */
struct tess__bench_plain {
    float *memory;
    int64_t count;
};

/*
 * Measure `run` over `bytes` in turns with y += x over `plain`, and end a printed line with the
 * time, both bandwidths in GB/s and their ratio. They are added to `line`, which is written and
 * taken over.
 */
enum tess_status tess__bench_bandwidth(struct tess__bench *bench,
                                       enum tess_status (*run)(void *context), void *context,
                                       double bytes, struct tess__bench_plain *plain, json_t *line);

/* Sort `count` times, in ascending order. */
void tess__bench_sort(double *seconds, size_t count);

/* Memory whose every element is about 0.75 in f32 and in bf16, 1.8 in f16; to be freed. */
enum tess_status tess__bench_allocate(size_t bytes, void **memory_out);

/* Open an operation with the scratch it needs; close frees that too, also after a failed open. */
enum tess_status tess__bench_op_open(struct tess__bench *bench, const struct tess_op_desc *desc,
                                     struct tess_op *op);
void tess__bench_op_close(struct tess_op *op);

/* Places of an image that a row of a layer reads, or writes; 1 of a linear layer. */
int64_t tess__bench_positions(const struct tess_op_desc *desc, bool output);
/* An update of `count` elements each of w, g, m and v, with the rates of AdamW. */
struct tess_update tess__bench_update(enum tess_update_kind kind, int64_t count, float *w,
                                      const float *g, float *m, float *v);

/* bench_attention.c: attention against products and a softmax over T x T. */
enum tess_status tess__bench_attention(struct tess__bench *bench, enum tess_dtype dtype);
/* bench_sequence.c: what else a transformer does, against a plain loop's bandwidth. */
enum tess_status tess__bench_sequence(struct tess__bench *bench, enum tess_dtype dtype);
/* bench_stream.c: updates against a plain loop's bandwidth. */
enum tess_status tess__bench_stream(struct tess__bench *bench);

#endif
