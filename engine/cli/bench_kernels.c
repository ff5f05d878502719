/*
 * tessera bench kernels: the products of a layer against the best plain oneDNN primitive for the
 * shape, the price of a grid for weight gradients, and updates against a plain loop's bandwidth.
 * Both sides of every ratio are measured in turns, in this run and on this core.
 */
#include "cli/command.h"

#include "base/options.h"
#include "cli/record.h"
#include "cpu/best.h"
#include "kernel_open.h"
#include "tessera/check.h"
#include "tessera/registry.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BENCH_ROUNDS     11
#define BENCH_ROUND_S    0.004 /* long beside the clock, short beside the machine's moods */
#define BENCH_TASKS      4
#define BENCH_GRID       8
#define BENCH_STREAM     INT64_C(8388608) /* elements: 32 MiB an array, beyond the caches */
#define BENCH_STREAM_MAX 5

struct bench_options {
    const char *kernel, *json;
    int32_t precision; /* 0 f32, 1 bf16, 2 f16, 3 both: f32 and bf16 */
    int64_t rows;
};

static const struct tess_option bench_table[] = {
    {"kernel", TESS_OPTION_STRING, offsetof(struct bench_options, kernel), "cpu", 0, 0, NULL,
     "backend to measure"},
    {"precision", TESS_OPTION_CHOICE, offsetof(struct bench_options, precision), "both", 0, 0,
     "f32|bf16|f16|both",
     "element type of activations and parameters; both: f32 and bf16. cpu multiplies f16 in f32, "
     "so its yardstick is f32's"},
    {"rows", TESS_OPTION_INT, offsetof(struct bench_options, rows), "64", BENCH_GRID, 4096, NULL,
     "rows of a batch, a multiple of 8"},
    {"json", TESS_OPTION_STRING, offsetof(struct bench_options, json), "", 0, 0, NULL,
     "also write one JSON line per result to this file"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

struct bench {
    struct bench_options options;
    struct tess_kernel *kernel;
    FILE *json; /* or NULL */
};

/* ---- measuring ------------------------------------------------------------------------------ */

struct bench_task {
    enum tess_status (*run)(void *context);
    void *context;
    double round_s[BENCH_ROUNDS]; /* seconds of one run, per round */
    double median_s;
};

static int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Processor time of this thread: what else runs on the machine is not counted. */
static double bench_clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static enum tess_status bench_repeat(struct bench_task *task, int count, double *each_s)
{
    double start = bench_clock_s();
    for (int i = 0; i < count; i++)
        TESS_TRY(task->run(task->context));
    *each_s = (bench_clock_s() - start) / count;
    return TESS_OK;
}

/* Run the tasks in turns, round after round; fill their medians. */
static enum tess_status bench_measure(struct bench_task *task, int count)
{
    int repeats[BENCH_TASKS];
    for (int t = 0; t < count; t++) {
        double each;
        TESS_TRY(bench_repeat(&task[t], 2, &each)); /* warm */
        TESS_TRY(bench_repeat(&task[t], 2, &each));
        repeats[t] = each < BENCH_ROUND_S ? (int)(BENCH_ROUND_S / (each + 1e-9)) + 1 : 1;
    }
    for (int round = 0; round < BENCH_ROUNDS; round++)
        for (int t = 0; t < count; t++)
            TESS_TRY(bench_repeat(&task[t], repeats[t], &task[t].round_s[round]));
    for (int t = 0; t < count; t++) {
        qsort(task[t].round_s, BENCH_ROUNDS, sizeof(double), bench_compare);
        task[t].median_s = task[t].round_s[BENCH_ROUNDS / 2];
    }
    return TESS_OK;
}

/* Takes over `line`. */
static enum tess_status bench_write(struct bench *bench, json_t *line)
{
    bool good = line != NULL;
    if (good && bench->json)
        good = json_dumpf(line, bench->json, JSON_COMPACT) == 0 && fputc('\n', bench->json) != EOF;
    json_decref(line);
    if (!good)
        TESS_FAIL(TESS_ERR_IO, "cannot write a result to '%s'", bench->options.json);
    return TESS_OK;
}

/* ---- products of a layer -------------------------------------------------------------------- */

/* One layer of a model that everyone trains. */
struct bench_layer {
    const char *name;
    struct tess_op_desc desc; /* without dtype and rows */
};

static const struct bench_layer bench_layers[] = {
    {"mlp 784-1024", {.kind = TESS_OP_LINEAR, .in = 784, .out = 1024, .relu = true}},
    {"mlp 1024-1024", {.kind = TESS_OP_LINEAR, .in = 1024, .out = 1024, .relu = true}},
    {"mlp 1024-10", {.kind = TESS_OP_LINEAR, .in = 1024, .out = 10}},
    {"cnn conv 1-32",
     {.kind = TESS_OP_CONV2D,
      .in = 1,
      .out = 32,
      .height = 28,
      .width = 28,
      .window = 3,
      .stride = 1,
      .relu = true}},
    {"cnn conv 32-64",
     {.kind = TESS_OP_CONV2D,
      .in = 32,
      .out = 64,
      .height = 26,
      .width = 26,
      .window = 3,
      .stride = 1,
      .relu = true}},
    {"cnn fc 9216-128", {.kind = TESS_OP_LINEAR, .in = 9216, .out = 128, .relu = true}},
};
#define BENCH_LAYERS ((int)(sizeof bench_layers / sizeof bench_layers[0]))

static const char *const bench_what_name[3] = {"forward", "backward_data", "backward_weight"};

/* An open operation with its arrays. */
struct bench_op {
    struct tess_op op;
    enum tess_best_what what;
    bool open;
    void *x, *w, *bias, *y;
    float *dw;
};

static int64_t bench_positions(const struct tess_op_desc *d, bool output)
{
    if (d->kind == TESS_OP_LINEAR)
        return 1;
    if (!output)
        return d->height * d->width;
    return tess_op_output_size(d->height, d->window, d->stride, d->padding) *
           tess_op_output_size(d->width, d->window, d->stride, d->padding);
}

/* Memory whose every element is about 0.75 in f32 and in bf16, 1.8 in f16. */
static enum tess_status bench_allocate(size_t bytes, void **memory_out)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096 + 4096);
    if (!memory)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the bench: %zu bytes", bytes);
    memset(memory, 0x3f, bytes);
    *memory_out = memory;
    return TESS_OK;
}

static void bench_op_close(struct bench_op *b)
{
    if (b->open)
        b->op.kernel->ops->op_close(&b->op);
    free(b->op.scratch);
    free(b->op.packed);
    free(b->x);
    free(b->w);
    free(b->bias);
    free(b->y);
    free(b->dw);
}

static enum tess_status bench_op_open(struct bench *bench, const struct tess_op_desc *desc,
                                      struct bench_op *b)
{
    *b = (struct bench_op){.op = {.desc = *desc, .kernel = bench->kernel, .weight_token = 1}};
    struct tess_op_needs needs;
    size_t element = tess_dtype_bytes(desc->dtype);
    size_t window = desc->kind == TESS_OP_CONV2D ? (size_t)(desc->window * desc->window) : 1;
    size_t x = (size_t)(desc->rows * desc->in * bench_positions(desc, false));
    size_t y = (size_t)(desc->rows * desc->out * bench_positions(desc, true));
    size_t w = (size_t)(desc->in * desc->out) * window;
    enum tess_status status;
    void *dw = NULL;
    TESS_TRY_GOTO(status, failed, bench->kernel->ops->op_needs(desc, &needs));
    TESS_TRY_GOTO(status, failed, bench_allocate(needs.scratch_bytes, &b->op.scratch));
    TESS_TRY_GOTO(status, failed, bench_allocate(needs.packed_bytes, &b->op.packed));
    TESS_TRY_GOTO(status, failed, bench_allocate(x * element, &b->x));
    TESS_TRY_GOTO(status, failed, bench_allocate(w * element, &b->w));
    TESS_TRY_GOTO(status, failed, bench_allocate((size_t)desc->out * element, &b->bias));
    TESS_TRY_GOTO(status, failed, bench_allocate(y * element, &b->y));
    TESS_TRY_GOTO(status, failed, bench_allocate(w * sizeof(float), &dw));
    b->dw = dw;
    TESS_TRY_GOTO(status, failed, bench->kernel->ops->op_open(&b->op));
    b->open = true;
    return TESS_OK;

failed:
    bench_op_close(b);
    return status;
}

/* y stands for dy in the backward passes, x for dx. */
static enum tess_status bench_run_op(void *context)
{
    struct bench_op *b = context;
    bool linear = b->op.desc.kind == TESS_OP_LINEAR;
    switch (b->what) {
    case TESS_BEST_FORWARD:
        return linear ? tess_linear_forward(&b->op, b->x, b->w, b->bias, b->y)
                      : tess_conv2d_forward(&b->op, b->x, b->w, b->bias, b->y);
    case TESS_BEST_BACKWARD_DATA:
        return linear ? tess_linear_backward_data(&b->op, b->y, b->w, b->x)
                      : tess_conv2d_backward_data(&b->op, b->y, b->w, b->x);
    default:
        return linear ? tess_linear_backward_weight(&b->op, b->x, b->y, b->dw, NULL)
                      : tess_conv2d_backward_weight(&b->op, b->x, b->y, b->dw, NULL);
    }
}

static enum tess_status bench_run_best(void *context)
{
    return tess__best_run(context);
}

static double bench_flops(const struct tess_op_desc *d)
{
    double window = d->kind == TESS_OP_CONV2D ? (double)(d->window * d->window) : 1;
    return 2 * (double)d->rows * (double)d->in * (double)d->out * window *
           (double)bench_positions(d, true);
}

/* One product: ours, then every candidate of oneDNN, in turns. */
static enum tess_status bench_product(struct bench *bench, const struct bench_layer *layer,
                                      struct bench_op *ours)
{
    struct tess_best *best[BENCH_TASKS] = {NULL};
    struct bench_task task[BENCH_TASKS] = {{.run = bench_run_op, .context = ours}};
    const struct tess_op_desc *desc = &ours->op.desc;
    enum tess_status status = TESS_OK;
    int count = 1, fastest = 1;
    for (; count < BENCH_TASKS; count++) {
        TESS_TRY_GOTO(status, close_best,
                      tess__best_open(desc, ours->what, count - 1, &best[count]));
        if (!best[count])
            break;
        task[count] = (struct bench_task){.run = bench_run_best, .context = best[count]};
    }
    TESS_TRY_GOTO(status, close_best, bench_measure(task, count));
    for (int t = 1; t < count; t++)
        if (task[t].median_s < task[fastest].median_s)
            fastest = t;
    double flops = bench_flops(desc), ratio = task[fastest].median_s / task[0].median_s;
    printf("%-16s %-5s %-16s %9.1f %9.0f   %9.0f  %-15s %6.2f\n", layer->name,
           tess_dtype_name(desc->dtype), bench_what_name[ours->what], task[0].median_s * 1e6,
           flops / task[0].median_s * 1e-9, flops / task[fastest].median_s * 1e-9,
           tess__best_name(best[fastest]), ratio);
    status = bench_write(
        bench, json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:s, s:f, s:f}", "bench", "product",
                         "layer", layer->name, "precision", tess_dtype_name(desc->dtype), "what",
                         bench_what_name[ours->what], "rows", (json_int_t)desc->rows, "us",
                         task[0].median_s * 1e6, "gflops", flops / task[0].median_s * 1e-9, "best",
                         tess__best_name(best[fastest]), "best_gflops",
                         flops / task[fastest].median_s * 1e-9, "ratio", ratio));

close_best:
    for (int t = 1; t < BENCH_TASKS; t++)
        tess__best_close(best[t]);
    return status;
}

static enum tess_status bench_products(struct bench *bench, enum tess_dtype dtype)
{
    for (int l = 0; l < BENCH_LAYERS; l++) {
        struct tess_op_desc desc = bench_layers[l].desc;
        desc.dtype = dtype;
        desc.rows = desc.leaf_rows = bench->options.rows;
        desc.input_grad = desc.in > 1; /* the first convolution has no use for it */
        struct bench_op ours;
        enum tess_status status = TESS_OK;
        TESS_TRY(bench_op_open(bench, &desc, &ours));
        for (int what = 0; what < 3 && status == TESS_OK; what++) {
            ours.what = (enum tess_best_what)what;
            if (ours.what != TESS_BEST_BACKWARD_DATA || desc.input_grad)
                status = bench_product(bench, &bench_layers[l], &ours);
        }
        bench_op_close(&ours);
        TESS_TRY(status);
    }
    return TESS_OK;
}

/* ---- the price of a grid --------------------------------------------------------------------- */

static enum tess_status bench_grid_layer(struct bench *bench, const struct bench_layer *layer,
                                         enum tess_dtype dtype)
{
    struct bench_op op[2];
    struct bench_task task[2];
    enum tess_status status;
    struct tess_op_desc desc = layer->desc;
    desc.dtype = dtype;
    desc.rows = desc.leaf_rows = bench->options.rows;
    TESS_TRY(bench_op_open(bench, &desc, &op[0]));
    desc.leaf_rows = desc.rows / BENCH_GRID;
    TESS_TRY_GOTO(status, close_first, bench_op_open(bench, &desc, &op[1]));
    for (int i = 0; i < 2; i++) {
        op[i].what = TESS_BEST_BACKWARD_WEIGHT;
        task[i] = (struct bench_task){.run = bench_run_op, .context = &op[i]};
    }
    TESS_TRY_GOTO(status, close_second, bench_measure(task, 2));
    double price = task[1].median_s / task[0].median_s;
    printf("%-16s %-5s %9.1f %9.1f %6.2f\n", layer->name, tess_dtype_name(dtype),
           task[0].median_s * 1e6, task[1].median_s * 1e6, price);
    status = bench_write(bench, json_pack("{s:s, s:s, s:s, s:I, s:i, s:f, s:f, s:f}", "bench",
                                          "grid", "layer", layer->name, "precision",
                                          tess_dtype_name(dtype), "rows", (json_int_t)desc.rows,
                                          "leaves", BENCH_GRID, "us_1", task[0].median_s * 1e6,
                                          "us", task[1].median_s * 1e6, "price", price));
close_second:
    bench_op_close(&op[1]);
close_first:
    bench_op_close(&op[0]);
    return status;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

/* A pass over arrays of BENCH_STREAM elements. */
struct bench_stream {
    const char *name;
    bool is_update;
    enum tess_update_kind kind;
    int arrays; /* f32 arrays it touches: its footprint */
    int bytes;  /* per element, read and written */
};

static const struct bench_stream bench_streams[] = {
    {"accumulate", false, TESS_UPDATE_SGD, 2, 12},   {"sgd", true, TESS_UPDATE_SGD, 2, 12},
    {"momentum", true, TESS_UPDATE_MOMENTUM, 3, 20}, {"adamw", true, TESS_UPDATE_ADAMW, 4, 28},
    {"novograd", true, TESS_UPDATE_NOVOGRAD, 3, 20},
};

struct bench_pass {
    struct tess_kernel *kernel;
    const struct bench_stream *stream;
    float *array[BENCH_STREAM_MAX - 1]; /* w, g, m, v */
    float *plain; /* the arrays are one block: its first half is added to its second */
};

static enum tess_status bench_run_stream(void *context)
{
    struct bench_pass *p = context;
    struct tess_update update = {.kind = p->stream->kind,
                                 .count = BENCH_STREAM,
                                 .w = p->array[0],
                                 .g = p->array[1],
                                 .m = p->array[2],
                                 .v = p->array[3],
                                 .lr = 1e-6f,
                                 .mu = 0.5f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.99f,
                                 .epsilon = 1e-8f,
                                 .correction1 = 1,
                                 .correction2 = 1,
                                 .grad_scale = 1,
                                 .tensor_scale = 1};
    if (p->stream->is_update)
        tess_update(p->kernel, &update);
    else
        tess_accumulate(p->kernel, BENCH_STREAM, 1e-6f, p->array[1], p->array[0]);
    return TESS_OK;
}

/* y += x over the same footprint: half of it is x, half is y. */
static enum tess_status bench_run_plain(void *context)
{
    struct bench_pass *p = context;
    int64_t half = BENCH_STREAM * p->stream->arrays / 2;
    tess__best_add(half, p->plain, p->plain + half);
    return TESS_OK;
}

static enum tess_status bench_stream_one(struct bench *bench, const struct bench_stream *stream,
                                         float *memory)
{
    struct bench_pass pass = {.kernel = bench->kernel, .stream = stream, .plain = memory};
    for (int i = 0; i < BENCH_STREAM_MAX - 1; i++)
        pass.array[i] = memory + (i < stream->arrays ? i : 0) * BENCH_STREAM;
    struct bench_task task[2] = {{.run = bench_run_stream, .context = &pass},
                                 {.run = bench_run_plain, .context = &pass}};
    for (int64_t i = 0; i < BENCH_STREAM * stream->arrays; i++)
        memory[i] = 0; /* so that no run of sums reaches infinity or a subnormal */
    TESS_TRY(bench_measure(task, 2));
    double ours = (double)BENCH_STREAM * stream->bytes / task[0].median_s * 1e-9;
    double plain = 12.0 * (double)(BENCH_STREAM * stream->arrays / 2) / task[1].median_s * 1e-9;
    printf("%-16s %9.1f %9.1f   %9.1f %6.2f\n", stream->name, task[0].median_s * 1e6, ours, plain,
           ours / plain);
    return bench_write(bench, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f}", "bench", "stream", "what",
                                        stream->name, "us", task[0].median_s * 1e6, "gbs", ours,
                                        "plain_gbs", plain, "ratio", ours / plain));
}

static enum tess_status bench_memory(struct bench *bench)
{
    void *memory;
    enum tess_status status = TESS_OK;
    TESS_TRY(
        bench_allocate((size_t)BENCH_STREAM * (BENCH_STREAM_MAX - 1) * sizeof(float), &memory));
    for (size_t i = 0; i < sizeof bench_streams / sizeof bench_streams[0] && status == TESS_OK; i++)
        status = bench_stream_one(bench, &bench_streams[i], memory);
    free(memory);
    return status;
}

/* ---- the command ------------------------------------------------------------------------------
 */

static bool bench_wants(const struct bench *bench, int dtype)
{
    int32_t precision = bench->options.precision;
    return precision == 3 ? dtype < 2 : precision == dtype;
}

static enum tess_status bench_all(struct bench *bench)
{
    const enum tess_dtype dtype[3] = {TESS_F32, TESS_BF16, TESS_F16};
    printf("%-16s %-5s %-16s %9s %9s   %9s  %-15s %6s\n", "product", "", "", "us", "GFLOP/s",
           "best", "by oneDNN's", "ratio");
    for (int i = 0; i < 3; i++)
        if (bench_wants(bench, i))
            TESS_TRY(bench_products(bench, dtype[i]));
    printf("\n%-16s %-5s %9s %9s %6s\n", "weight gradient", "", "G=1 us", "G=8 us", "price");
    for (int i = 0; i < 3; i++)
        for (int l = 0; bench_wants(bench, i) && l < BENCH_LAYERS; l++)
            TESS_TRY(bench_grid_layer(bench, &bench_layers[l], dtype[i]));
    printf("\n%-16s %9s %9s   %9s %6s\n", "memory", "us", "GB/s", "y += x", "ratio");
    return bench_memory(bench);
}

static enum tess_status bench_open(struct bench *bench)
{
    const struct tess_kernel_ops *ops;
    if (bench->options.rows % BENCH_GRID != 0)
        TESS_FAIL(TESS_ERR_USAGE, "--rows %lld is not a multiple of %d",
                  (long long)bench->options.rows, BENCH_GRID);
    TESS_TRY(tess_registry_get_kernel(bench->options.kernel, &ops));
    TESS_TRY(tess_kernel_open(ops, 1, &bench->kernel));
    if (bench->options.json[0]) {
        bench->json = fopen(bench->options.json, "w");
        if (!bench->json)
            TESS_FAIL(TESS_ERR_IO, "cannot write '%s'", bench->options.json);
    }
    return TESS_OK;
}

static enum tess_status bench_finish(struct bench *bench, enum tess_status status)
{
    tess_kernel_close(bench->kernel);
    if (bench->json && fclose(bench->json) != 0 && status == TESS_OK)
        TESS_FAIL(TESS_ERR_IO, "cannot write '%s'", bench->options.json);
    return status;
}

static bool bench_wants_help(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

int tess__command_bench_kernels(int argc, char **argv)
{
    struct bench bench = {0};
    struct tess_options *options;
    int words;
    enum tess_status status = tess_options_open(&options);
    if (status != TESS_OK)
        return tess_status_exit_code(status);
    TESS_TRY_GOTO(status, close_options,
                  tess_options_add(options, "", bench_table, &bench.options));
    if (bench_wants_help(argc, argv)) {
        printf(
            "usage: tessera bench kernels [--kernel cpu] [--precision f32] [--rows 64] "
            "[--json FILE]\n\n"
            "One core. Ratios are ours to oneDNN's or to a plain loop's, higher is better;\n"
            "oneDNN's packed weights come free. `price` is eight leaves' time to one leaf's.\n\n");
        tess_options_print_help(options);
        goto close_options;
    }
    TESS_TRY_GOTO(status, close_options,
                  tess_options_load_arguments(options, argc, argv, NULL, 0, &words));
    status = bench_open(&bench);
    if (status == TESS_OK)
        status = bench_all(&bench);
    status = bench_finish(&bench, status);

close_options:
    tess_options_close(options);
    return tess_status_exit_code(status);
}
