/* Measures tasks in turns and writes results; see bench.h. */
#include "bench/bench.h"

#include "base/file.h"
#include "cpu/best.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Long against the clock's resolution, short against changes of load. */
#define BENCH_ROUND_S 0.004
#define BENCH_LONG_S  0.1 /* for runs this long BENCH_FEW rounds are enough */
#define BENCH_FEW     3

static int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Processor time of one thread does not count what else runs on the machine. */
static double bench_clock_s(const struct tess__bench *bench)
{
    struct timespec now;
    clock_gettime(bench->kernel->threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum tess_status bench_repeat(const struct tess__bench *bench, struct tess__bench_task *task,
                                     int count, double *each_s)
{
    double start = bench_clock_s(bench);
    for (int i = 0; i < count; i++)
        TESS_TRY(task->run(task->context));
    *each_s = (bench_clock_s(bench) - start) / count;
    return TESS_OK;
}

enum tess_status tess__bench_measure(const struct tess__bench *bench, struct tess__bench_task *task,
                                     int count)
{
    int repeats[TESS__BENCH_TASKS], rounds = TESS__BENCH_ROUNDS;
    for (int t = 0; t < count; t++) {
        double each;
        TESS_TRY(bench_repeat(bench, &task[t], 1, &each)); /* warm */
        if (each < BENCH_LONG_S)
            TESS_TRY(bench_repeat(bench, &task[t], 2, &each));
        repeats[t] = each < BENCH_ROUND_S ? (int)(BENCH_ROUND_S / (each + 1e-9)) + 1 : 1;
        rounds = each < BENCH_LONG_S ? rounds : BENCH_FEW;
    }
    for (int round = 0; round < rounds; round++)
        for (int t = 0; t < count; t++)
            TESS_TRY(bench_repeat(bench, &task[t], repeats[t], &task[t].round_s[round]));
    for (int t = 0; t < count; t++) {
        tess__bench_sort(task[t].round_s, (size_t)rounds);
        task[t].median_s = task[t].round_s[rounds / 2];
    }
    return TESS_OK;
}

static enum tess_status bench_run_plain(void *context)
{
    struct tess__bench_plain *plain = context;
    tess__best_add(plain->count, plain->memory, plain->memory + plain->count);
    return TESS_OK;
}

enum tess_status tess__bench_bandwidth(struct tess__bench *bench,
                                       enum tess_status (*run)(void *context), void *context,
                                       double bytes, struct tess__bench_plain *plain, json_t *line)
{
    struct tess__bench_task task[2] = {{.run = run, .context = context},
                                       {.run = bench_run_plain, .context = plain}};
    enum tess_status status = tess__bench_measure(bench, task, 2);
    if (status != TESS_OK) {
        json_decref(line);
        return status;
    }
    const double us = task[0].median_s * 1e6, ours = bytes / task[0].median_s * 1e-9;
    const double plain_gbs = 12.0 * (double)plain->count / task[1].median_s * 1e-9;
    printf(" %9.1f %9.1f   %9.1f %6.2f\n", us, ours, plain_gbs, ours / plain_gbs);
    json_t *speed = json_pack("{s:f, s:f, s:f, s:f}", "us", us, "gbs", ours, "plain_gbs", plain_gbs,
                              "ratio", ours / plain_gbs);
    (void)json_object_update(line, speed);
    json_decref(speed);
    return tess__bench_write(&bench->log, line);
}

void tess__bench_sort(double *seconds, size_t count)
{
    qsort(seconds, count, sizeof(*seconds), bench_compare);
}

enum tess_status tess__bench_log_open(struct tess__bench_log *log, const char *path,
                                      const char *mode)
{
    *log = (struct tess__bench_log){.path = path};
    if (!path[0])
        return TESS_OK;
    TESS_TRY(tess_file_check(path, TESS_FILE_TEXT, "--json"));
    log->file = fopen(path, mode);
    if (!log->file)
        TESS_FAIL(TESS_ERR_IO, "cannot write '%s'", path);
    return TESS_OK;
}

enum tess_status tess__bench_log_close(struct tess__bench_log *log, enum tess_status status)
{
    if (log->file && fclose(log->file) != 0 && status == TESS_OK)
        TESS_FAIL(TESS_ERR_IO, "cannot write to '%s'", log->path);
    return status;
}

enum tess_status tess__bench_write(struct tess__bench_log *log, json_t *line)
{
    bool good = line;
    if (good && log->file)
        good = json_dumpf(line, log->file, JSON_COMPACT) == 0 && fputc('\n', log->file) != EOF &&
               fflush(log->file) == 0;
    json_decref(line);
    if (!good)
        TESS_FAIL(TESS_ERR_IO, "cannot write a result to '%s'", log->path);
    return TESS_OK;
}

enum tess_status tess__bench_allocate(size_t bytes, void **memory_out)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096 + 4096);
    if (!memory)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the bench: %zu bytes", bytes);
    memset(memory, 0x3f, bytes);
    *memory_out = memory;
    return TESS_OK;
}

enum tess_status tess__bench_op_open(struct tess__bench *bench, const struct tess_op_desc *desc,
                                     struct tess_op *op)
{
    struct tess_op_needs needs;
    *op = (struct tess_op){.desc = *desc, .kernel = bench->kernel, .weight_token = 1};
    TESS_TRY(bench->kernel->ops->op_needs(desc, &needs));
    TESS_TRY(tess__bench_allocate(needs.scratch_bytes, &op->scratch));
    op->thread_bytes = tess_round_up(needs.thread_bytes, 64);
    enum tess_status status = tess__bench_allocate(needs.packed_bytes, &op->packed);
    if (status == TESS_OK)
        status = tess__bench_allocate(op->thread_bytes * (size_t)(bench->kernel->threads - 1),
                                      &op->thread_scratch);
    if (status == TESS_OK)
        status = bench->kernel->ops->op_open(op);
    if (status != TESS_OK) {
        free(op->scratch);
        free(op->packed);
        free(op->thread_scratch);
        op->scratch = op->packed = op->thread_scratch = NULL;
    }
    return status;
}

void tess__bench_op_close(struct tess_op *op)
{
    if (!op->scratch)
        return;
    op->kernel->ops->op_close(op);
    free(op->scratch);
    free(op->packed);
    free(op->thread_scratch);
    op->scratch = op->packed = op->thread_scratch = NULL;
}

int64_t tess__bench_positions(const struct tess_op_desc *desc, bool output)
{
    if (desc->kind == TESS_OP_LINEAR)
        return 1;
    if (!output)
        return desc->height * desc->width;
    return tess_op_output_size(desc->height, desc->window, desc->stride, desc->padding) *
           tess_op_output_size(desc->width, desc->window, desc->stride, desc->padding);
}

struct tess_update tess__bench_update(enum tess_update_kind kind, int64_t count, float *w,
                                      const float *g, float *m, float *v)
{
    return (struct tess_update){.kind = kind,
                                .count = count,
                                .w = w,
                                .g = g,
                                .m = m,
                                .v = v,
                                .lr = 1e-6f,
                                .mu = 0.5f,
                                .beta1 = 0.9f,
                                .beta2 = 0.99f,
                                .epsilon = 1e-8f,
                                .correction1 = 1,
                                .correction2 = 1,
                                .grad_scale = 1,
                                .tensor_scale = 1};
}
