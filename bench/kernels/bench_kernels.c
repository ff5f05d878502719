/*
 * tessera bench kernels: the products of a layer against the best plain oneDNN primitive for the
 * shape, the price of a grid for weight gradients, and, from the files beside this one, attention,
 * what else a transformer does, and updates. Both sides of every ratio are measured in turns, in
 * this run and on this core.
 */
#include "bench/bench_layer.h"
#include "text/command.h"

#include "base/options.h"
#include "kernel_open.h"
#include "tessera/check.h"
#include "tessera/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BENCH_GRID 8

struct bench_options {
    const char *kernel, *json;
    int32_t precision; /* 0 f32, 1 bf16, 2 f16, 3 both: f32 and bf16 */
    int32_t part;      /* enum bench_part */
    int64_t rows, threads;
};

enum bench_part {
    BENCH_ALL,
    BENCH_PRODUCTS,
    BENCH_GRIDS,
    BENCH_ATTENTION,
    BENCH_SEQUENCE,
    BENCH_MEMORY
};

#define BENCH_FIELD(member) offsetof(struct bench_options, member)

static const struct tess_option bench_table[] = {
    TESS_ROW_STRING("kernel", BENCH_FIELD(kernel), "cpu", "backend to measure"),
    TESS_ROW_CHOICE("precision", BENCH_FIELD(precision), "both", "f32|bf16|f16|both",
                    "element type of activations and parameters; both: f32 and bf16. "
                    "Products of a type that oneDNN has none of are compared with f32's"),
    TESS_ROW_INT("rows", BENCH_FIELD(rows), "64", BENCH_GRID, 4096,
                 "rows of a batch, a multiple of 8; layers of transformers have 1024 positions"),
    TESS_ROW_CHOICE("part", BENCH_FIELD(part), "all", "all|products|grid|attention|sequence|memory",
                    "which tables"),
    TESS_ROW_INT(
        "threads", BENCH_FIELD(threads), "1", 1, 1024,
        "threads of each operation, Tessera's and oneDNN's; with more than 1, times are wall-clock "
        "times"),
    TESS_ROW_STRING("json", BENCH_FIELD(json), "",
                    "also write one JSON line per result to this file"),
    TESS_ROW_END,
};

/* ---- products of a layer -------------------------------------------------------------------- */

/* One layer of a common model. */
struct bench_layer {
    const char *name;
    struct tess_op_desc desc; /* without dtype; rows 0: --rows; see bench_desc() */
};

#define BENCH_POSITIONS 1024

static const struct bench_layer bench_layers[] = {
    {"mlp 784-1024", {.kind = TESS_OP_LINEAR, .in = 784, .out = 1024, .relu = true}},
    {"mlp 1024-1024", {.kind = TESS_OP_LINEAR, .in = 1024, .out = 1024, .relu = true}},
    {"mlp 1024-10", {.kind = TESS_OP_LINEAR, .in = 1024, .out = 10}},
    {"cnn conv 1-32", {.kind = TESS_OP_CONV2D, .in = 1, .out = 32, .height = 28, .relu = true}},
    {"cnn conv 32-64", {.kind = TESS_OP_CONV2D, .in = 32, .out = 64, .height = 26, .relu = true}},
    {"wrn conv 16-16", {.kind = TESS_OP_CONV2D, .in = 16, .out = 16, .height = 28, .padding = 1}},
    {"wrn conv 64-64", {.kind = TESS_OP_CONV2D, .in = 64, .out = 64, .height = 7, .padding = 1}},
    {"cnn fc 9216-128", {.kind = TESS_OP_LINEAR, .in = 9216, .out = 128, .relu = true}},
    {"gpt 384-1152", {.kind = TESS_OP_LINEAR, .rows = BENCH_POSITIONS, .in = 384, .out = 1152}},
    {"gpt 384-384", {.kind = TESS_OP_LINEAR, .rows = BENCH_POSITIONS, .in = 384, .out = 384}},
    {"gpt 384-1536", {.kind = TESS_OP_LINEAR, .rows = BENCH_POSITIONS, .in = 384, .out = 1536}},
    {"gpt 1536-384", {.kind = TESS_OP_LINEAR, .rows = BENCH_POSITIONS, .in = 1536, .out = 384}},
    {"gpt 384-256", {.kind = TESS_OP_LINEAR, .rows = BENCH_POSITIONS, .in = 384, .out = 256}},
    {"124M 768-2304", {.kind = TESS_OP_LINEAR, .rows = BENCH_POSITIONS, .in = 768, .out = 2304}},
    {"124M 768-768", {.kind = TESS_OP_LINEAR, .rows = BENCH_POSITIONS, .in = 768, .out = 768}},
    {"124M 768-3072", {.kind = TESS_OP_LINEAR, .rows = BENCH_POSITIONS, .in = 768, .out = 3072}},
    {"124M 3072-768", {.kind = TESS_OP_LINEAR, .rows = BENCH_POSITIONS, .in = 3072, .out = 768}},
    {"124M 768-50304", {.kind = TESS_OP_LINEAR, .rows = BENCH_POSITIONS, .in = 768, .out = 50304}},
};
#define BENCH_LAYERS ((int)(sizeof(bench_layers) / sizeof(bench_layers[0])))

static const char *const bench_what_name[3] = {"forward", "backward_data", "backward_weight"};

/* Images are square, and windows 3 x 3. */
static struct tess_op_desc bench_desc(const struct tess__bench *bench,
                                      const struct bench_layer *layer, enum tess_dtype dtype)
{
    struct tess_op_desc desc = layer->desc;
    desc.dtype = dtype;
    desc.rows = desc.leaf_rows = desc.rows > 0 ? desc.rows : bench->rows;
    desc.width = desc.height;
    desc.window = desc.kind == TESS_OP_CONV2D ? 3 : 0;
    desc.stride = desc.kind == TESS_OP_CONV2D ? 1 : 0;
    return desc;
}

/* One product: Tessera's, then every candidate of oneDNN, in turns. */
static enum tess_status bench_product(struct tess__bench *bench, const struct bench_layer *layer,
                                      struct tess__bench_layer *ours)
{
    const struct tess_op_desc *desc = &ours->op.desc;
    struct tess__bench_product product;
    TESS_TRY(tess__bench_layer_product(bench, ours, &product));
    const double flops = tess__bench_layer_flops(desc), ratio = product.best_s / product.ours_s;
    printf("%-16s %-5s %-16s %9.1f %9.0f   %9.0f  %-4s %-15s %6.2f\n", layer->name,
           tess_dtype_name(desc->dtype), bench_what_name[ours->what], product.ours_s * 1e6,
           flops / product.ours_s * 1e-9, flops / product.best_s * 1e-9,
           tess_dtype_name(product.best_dtype), product.best, ratio);
    return tess__bench_write(
        &bench->log,
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:s, s:s, s:f, s:f}", "bench", "product",
                  "layer", layer->name, "precision", tess_dtype_name(desc->dtype), "what",
                  bench_what_name[ours->what], "rows", (json_int_t)desc->rows, "us",
                  product.ours_s * 1e6, "gflops", flops / product.ours_s * 1e-9, "best",
                  product.best, "best_precision", tess_dtype_name(product.best_dtype),
                  "best_gflops", flops / product.best_s * 1e-9, "ratio", ratio));
}

static enum tess_status bench_products(struct tess__bench *bench, enum tess_dtype dtype)
{
    for (int l = 0; l < BENCH_LAYERS; l++) {
        struct tess_op_desc desc = bench_desc(bench, &bench_layers[l], dtype);
        desc.input_grad = desc.in > 1; /* the first convolution does not need it */
        struct tess__bench_layer ours;
        enum tess_status status = TESS_OK;
        TESS_TRY(tess__bench_layer_open(bench, &desc, &ours));
        for (int what = 0; what < 3 && status == TESS_OK; what++) {
            ours.what = (enum tess_best_what)what;
            if (ours.what != TESS_BEST_BACKWARD_DATA || desc.input_grad)
                status = bench_product(bench, &bench_layers[l], &ours);
        }
        tess__bench_layer_close(&ours);
        TESS_TRY(status);
    }
    return TESS_OK;
}

/* ---- the price of a grid --------------------------------------------------------------------- */

static enum tess_status bench_grid_layer(struct tess__bench *bench, const struct bench_layer *layer,
                                         enum tess_dtype dtype)
{
    struct tess__bench_layer op[2];
    struct tess__bench_task task[2];
    enum tess_status status;
    struct tess_op_desc desc = bench_desc(bench, layer, dtype);
    TESS_TRY(tess__bench_layer_open(bench, &desc, &op[0]));
    desc.leaf_rows = desc.rows / BENCH_GRID;
    TESS_TRY_GOTO(status, close_first, tess__bench_layer_open(bench, &desc, &op[1]));
    for (int i = 0; i < 2; i++) {
        op[i].what = TESS_BEST_BACKWARD_WEIGHT;
        task[i] = (struct tess__bench_task){.run = tess__bench_layer_run, .context = &op[i]};
    }
    TESS_TRY_GOTO(status, close_second, tess__bench_measure(bench, task, 2));
    double price = task[1].median_s / task[0].median_s;
    printf("%-16s %-5s %9.1f %9.1f %6.2f\n", layer->name, tess_dtype_name(dtype),
           task[0].median_s * 1e6, task[1].median_s * 1e6, price);
    status = tess__bench_write(&bench->log,
                               json_pack("{s:s, s:s, s:s, s:I, s:i, s:f, s:f, s:f}", "bench",
                                         "grid", "layer", layer->name, "precision",
                                         tess_dtype_name(dtype), "rows", (json_int_t)desc.rows,
                                         "leaves", BENCH_GRID, "us_1", task[0].median_s * 1e6, "us",
                                         task[1].median_s * 1e6, "price", price));
close_second:
    tess__bench_layer_close(&op[1]);
close_first:
    tess__bench_layer_close(&op[0]);
    return status;
}

static enum tess_status bench_grids(struct tess__bench *bench, enum tess_dtype dtype)
{
    for (int l = 0; l < BENCH_LAYERS; l++)
        TESS_TRY(bench_grid_layer(bench, &bench_layers[l], dtype));
    return TESS_OK;
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool bench_includes(const struct bench_options *options, int dtype)
{
    int32_t precision = options->precision;
    return precision == 3 ? dtype < 2 : precision == dtype;
}

/* The tables that have lines for each type of --precision. */
static const struct bench_part_row {
    enum bench_part part;
    const char *head;
    enum tess_status (*run)(struct tess__bench *bench, enum tess_dtype dtype);
} bench_parts[] = {
    {BENCH_PRODUCTS,
     "product                                        us   GFLOP/s        best  "
     "by                    ratio\n",
     bench_products},
    {BENCH_GRIDS, "\nweight gradient           G=1 us    G=8 us  price\n", bench_grids},
    {BENCH_ATTENTION,
     "\nattention                                 us  GFLOP/s   T x T us  ratio      MiB    T x "
     "T\n",
     tess__bench_attention},
    {BENCH_SEQUENCE, "\nsequence                                 us      GB/s      y += x  ratio\n",
     tess__bench_sequence},
};

static bool bench_chosen(const struct bench_options *options, enum bench_part part)
{
    return options->part == BENCH_ALL || options->part == (int32_t)part;
}

static enum tess_status bench_all(struct tess__bench *bench, const struct bench_options *options)
{
    static const enum tess_dtype dtype[3] = {TESS_F32, TESS_BF16, TESS_F16};
    for (size_t p = 0; p < sizeof(bench_parts) / sizeof(bench_parts[0]); p++) {
        if (!bench_chosen(options, bench_parts[p].part))
            continue;
        fputs(bench_parts[p].head, stdout);
        for (int i = 0; i < 3; i++)
            if (bench_includes(options, i))
                TESS_TRY(bench_parts[p].run(bench, dtype[i]));
    }
    if (!bench_chosen(options, BENCH_MEMORY))
        return TESS_OK;
    fputs("\nmemory                  us      GB/s      y += x  ratio\n", stdout);
    return tess__bench_stream(bench);
}

static enum tess_status bench_open(struct tess__bench *bench, const struct bench_options *options)
{
    const struct tess_kernel_ops *ops;
    if (options->rows % BENCH_GRID != 0)
        TESS_FAIL(TESS_ERR_USAGE, "--rows %lld is not a multiple of %d", (long long)options->rows,
                  BENCH_GRID);
    bench->rows = options->rows;
    TESS_TRY(tess_registry_get_kernel(options->kernel, &ops));
    if (ops->far_memory)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--kernel %s computes in memory of its own, and these tables compare with what "
                  "the host's cores do in theirs: tessera bench gpu measures it",
                  options->kernel);
    TESS_TRY(tess_kernel_open(ops, (int)options->threads, &bench->kernel));
    return tess__bench_log_open(&bench->log, options->json, "w");
}

static const char bench_usage[] =
    "usage: tessera bench kernels [--kernel cpu] [--precision f32] [--part products]\n"
    "                             [--json FILE]\n"
    "\n"
    "Measure the kernels of a backend, on one core unless --threads is given. Ratios are the\n"
    "speed of a kernel to that of oneDNN's or of a plain loop; higher is better. The time to\n"
    "pack oneDNN's weights is not counted. Where oneDNN has no product of a type (f16; bf16\n"
    "without AVX-512), the best is that of f32, oneDNN's or Tessera's. `price` is the time of\n"
    "eight leaves to that of one.\n";

static int bench_command(struct tess__call *call)
{
    struct tess__bench bench = {0};
    enum tess_status status = bench_open(&bench, call->values);
    if (status == TESS_OK)
        status = bench_all(&bench, call->values);
    tess_kernel_close(bench.kernel);
    return tess_status_exit_code(tess__bench_log_close(&bench.log, status));
}

const struct tess__command tess__command_bench_kernels = {
    .name = "bench kernels",
    .summary = "speed of kernels against the best plain oneDNN primitive",
    .usage = bench_usage,
    .table = bench_table,
    .options_size = sizeof(struct bench_options),
    .run = bench_command,
};
