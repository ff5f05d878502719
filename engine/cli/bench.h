/*
 * What the files of `tessera bench kernels` share: an open backend, tasks that are measured in
 * turns, and where results go.
 */
#ifndef TESSERA_CLI_BENCH_H
#define TESSERA_CLI_BENCH_H

#include "tessera/kernel.h"

#include <jansson.h>
#include <stdio.h>

#define TESS__BENCH_ROUNDS 11
#define TESS__BENCH_TASKS  4

struct tess__bench {
    struct tess_kernel *kernel;
    int64_t rows; /* of a batch, for layers that have no rows of their own */
    FILE *json;   /* or NULL */
    const char *json_path;
};

struct tess__bench_task {
    enum tess_status (*run)(void *context);
    void *context;
    double round_s[TESS__BENCH_ROUNDS]; /* seconds of one run, per round */
    double median_s;
};

/*
 * Run `count` <= TESS__BENCH_TASKS tasks in turns, round after round, and fill their medians. Time
 * is that of this thread's processor, or, where the backend has several threads, that of the clock
 * on the wall. What takes long is run in fewer rounds.
 */
enum tess_status tess__bench_measure(const struct tess__bench *bench, struct tess__bench_task *task,
                                     int count);

/* One JSON line, if they are wanted. Takes over `line`; NULL is an error. TESS_ERR_IO. */
enum tess_status tess__bench_write(struct tess__bench *bench, json_t *line);

/* Memory whose every element is about 0.75 in f32 and in bf16, 1.8 in f16; to be freed. */
enum tess_status tess__bench_allocate(size_t bytes, void **memory_out);

/* Open an operation with the scratch it needs; close frees that too, also after a failed open. */
enum tess_status tess__bench_op_open(struct tess__bench *bench, const struct tess_op_desc *desc,
                                     struct tess_op *op);
void tess__bench_op_close(struct tess_op *op);

/* bench_attention.c: attention against products and a softmax over T x T. */
enum tess_status tess__bench_attention(struct tess__bench *bench, enum tess_dtype dtype);
/* bench_sequence.c: what else a transformer does, against a plain loop's bandwidth. */
enum tess_status tess__bench_sequence(struct tess__bench *bench, enum tess_dtype dtype);
/* bench_stream.c: updates against a plain loop's bandwidth. */
enum tess_status tess__bench_stream(struct tess__bench *bench);

#endif
