/*
 * tessera bench gpu: the highest rates of a device for copies and products, and the share of them
 * that each kernel reaches; the host's cost of submitting work. Everything goes through the table
 * of kernels, so a backend of the host can be measured in the same way (--kernel), which is how the
 * bench itself is tested.
 */
#include "bench/gpu/bench_gpu.h"

#include "base/options.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/text.h"

#include <stdio.h>

#define GPU_MIB (INT64_C(1) << 20)

enum gpu_part {
    GPU_ALL,
    GPU_COPY,
    GPU_MATMUL,
    GPU_KERNELS,
    GPU_PRODUCTS,
    GPU_PLANS,
    GPU_REDUCE,
    GPU_HOST
};

struct gpu_options {
    const char *device, *kernel, *json;
    int32_t part;      /* enum gpu_part */
    int32_t precision; /* bf16, f16, f32 */
    int32_t model;     /* auto, gpt2, small */
    int64_t bytes;     /* 0: choose */
    bool quick;
};

static const struct tess_option gpu_table[] = {
    {"device", TESS_OPTION_STRING, offsetof(struct gpu_options, device), "auto", 0, 0, NULL,
     "auto, cpu, cuda or cuda:N; auto: cuda, unless a kernel of the host is named"},
    {"kernel", TESS_OPTION_STRING, offsetof(struct gpu_options, kernel), "", 0, 0, NULL,
     "backend of the host to measure in the device's place: cpu, ref, guard_queue"},
    {"part", TESS_OPTION_CHOICE, offsetof(struct gpu_options, part), "all", 0, 0,
     "all|copy|matmul|kernels|products|plans|reduce|host",
     "which tables; those that are compared with a ceiling measure it first"},
    {"precision", TESS_OPTION_CHOICE, offsetof(struct gpu_options, precision), "bf16", 0, 0,
     "bf16|f16|f32", "element type of activations; ceilings are measured for all types"},
    {"model", TESS_OPTION_CHOICE, offsetof(struct gpu_options, model), "auto", 0, 0,
     "auto|gpt2|small",
     "whose shapes: GPT-2 124M's, or small ones for a processor; auto: gpt2 on a device"},
    {"bytes", TESS_OPTION_INT, offsetof(struct gpu_options, bytes), "0", 0, 68719476736.0, NULL,
     "bytes of each array that is streamed through, much larger than caches; 0: 256Mi on a device, "
     "8Mi on the host, less with --quick"},
    {"quick", TESS_OPTION_BOOL, offsetof(struct gpu_options, quick), "off", 0, 0, NULL,
     "few and short rounds: a check of the program, not a measurement"},
    {"json", TESS_OPTION_STRING, offsetof(struct gpu_options, json), "", 0, 0, NULL,
     "also write one JSON line per result to this file"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static const struct tess__gpu_model gpu_gpt2 = {
    .name = "GPT-2 124M",
    .width = 768,
    .inner = 3072,
    .classes = 50304,
    .heads = 12,
    .length = 1024,
    .batch = 16,
    .square = {4096, 8192},
    .images = 1024,
    .head_chunk = 8192,
    /* The last has the heads of Llama 3 8B. */
    .attention = {{16, 1024, 12, 12, 64}, {4, 4096, 12, 12, 64}, {4, 2048, 32, 8, 128}},
};

static const struct tess__gpu_model gpu_small = {
    .name = "a small model",
    .width = 64,
    .inner = 256,
    .classes = 512,
    .heads = 2,
    .length = 32,
    .batch = 2,
    .square = {64, 96},
    .images = 1,
    .head_chunk = 64,
    .attention = {{1, 32, 2, 2, 64}, {1, 48, 1, 1, 64}, {1, 32, 2, 1, 128}},
};

/* ---- opening --------------------------------------------------------------------------------- */

static enum tess_status gpu_configure(struct tess__gpu *gpu, const struct gpu_options *options)
{
    static const enum tess_dtype dtypes[] = {TESS_BF16, TESS_F16, TESS_F32};
    const bool device = gpu->place.module, quick = options->quick;
    const bool gpt2 = options->model == 0 ? device : options->model == 1;
    const int64_t chosen = device  ? (quick ? 64 : 256) * GPU_MIB
                           : quick ? GPU_MIB / 16
                                   : 8 * GPU_MIB;
    gpu->model = gpt2 ? &gpu_gpt2 : &gpu_small;
    gpu->dtype = dtypes[options->precision];
    gpu->rounds = quick ? 3 : 11;
    gpu->batch_s = device ? (quick ? 2e-3 : 1e-2) : quick ? 2e-5 : 4e-3;
    /* A sequence's activations and a row of logits, of the widest type. */
    const int64_t sequence = gpu->model->length * gpu->model->width * 4;
    const int64_t logits = gpu->model->classes * 4;
    const int64_t least = sequence > logits ? sequence : logits;
    gpu->bytes = options->bytes > 0 ? options->bytes : chosen > least ? chosen : least;
    if (gpu->bytes < least)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--bytes %lld is less than one sequence of %s: give %lld or more%s",
                  (long long)options->bytes, gpu->model->name, (long long)least,
                  gpt2 ? ", or --model small" : "");
    gpu->bytes -= gpu->bytes % TESS_MEMORY_ALIGN;
    return TESS_OK;
}

static enum tess_status gpu_print_head(struct tess__gpu *gpu, const struct gpu_options *options)
{
    const struct tess_device_info *info = &gpu->place.info;
    char place[128], bytes[TESS__TEXT_BYTES], machine[128];
    tess__text_machine(machine);
    printf("%s: arrays of %s, %s, shapes of %s\n", tess__bench_place_text(&gpu->place, place),
           tess__text_bytes((double)gpu->bytes, bytes), tess_dtype_name(gpu->dtype),
           gpu->model->name);
    if (gpu->place.module)
        printf("%d multiprocessors of compute capability %d.%d, %.0f MHz at most, %.1f GiB\n"
               "driver of CUDA %d.%d; %s\n",
               (int)info->multiprocessors, (int)info->major, (int)info->minor,
               info->clock_hz * 1e-6, (double)info->memory_bytes / 1073741824,
               (int)info->driver_version / 1000, (int)info->driver_version % 1000 / 10,
               gpu->place.module->summary);
    printf("us: the median run of %d rounds, by %s; GB/s: bytes of every array once\n", gpu->rounds,
           gpu->bench.kernel->queue ? "the device's clock" : "the clock on the wall");
    if (options->quick)
        printf("quick: a check of the program, not a measurement\n");
    return tess__bench_write(
        &gpu->bench.log, json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:i, s:I, s:s, s:s, s:b, s:s}",
                                   "bench", "gpu", "part", "device", "kernel", gpu->place.ops->name,
                                   "device", gpu->place.module ? info->name : "host", "index",
                                   gpu->place.module ? (int)gpu->place.device : -1, "machine",
                                   machine, "driver", (int)info->driver_version, "array_bytes",
                                   (json_int_t)gpu->bytes, "precision", tess_dtype_name(gpu->dtype),
                                   "model", gpu->model->name, "quick", (int)options->quick,
                                   "module", gpu->place.module ? gpu->place.module->summary : ""));
}

/* ---- measuring ------------------------------------------------------------------------------- */

static enum tess_status gpu_run_parts(struct tess__gpu *gpu, enum gpu_part part)
{
    static const struct {
        enum tess_status (*run)(struct tess__gpu *gpu);
        enum gpu_part of, also[2]; /* runs for `of`, and before those that need its ceiling */
    } table[] = {
        {tess__gpu_copies, GPU_COPY, {GPU_KERNELS, GPU_REDUCE}},
        {tess__gpu_matmuls, GPU_MATMUL, {GPU_PRODUCTS, GPU_PRODUCTS}},
        {tess__gpu_rows, GPU_KERNELS, {GPU_KERNELS, GPU_KERNELS}},
        {tess__gpu_params, GPU_KERNELS, {GPU_KERNELS, GPU_KERNELS}},
        {tess__gpu_reduce, GPU_REDUCE, {GPU_REDUCE, GPU_REDUCE}},
        {tess__gpu_products, GPU_PRODUCTS, {GPU_PRODUCTS, GPU_PRODUCTS}},
        {tess__gpu_plans, GPU_PLANS, {GPU_PLANS, GPU_PLANS}},
        {tess__gpu_host, GPU_HOST, {GPU_HOST, GPU_HOST}},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (part != GPU_ALL && part != table[i].of && part != table[i].also[0] &&
            part != table[i].also[1])
            continue;
        TESS_TRY(table[i].run(gpu));
        tess__gpu_drop(gpu);
    }
    return TESS_OK;
}

static enum tess_status gpu_print_end(struct tess__gpu *gpu)
{
    const double best = gpu->product_per_s[tess__gpu_type_of(gpu->dtype)];
    if (gpu->goals > 0)
        printf("\n%d of %d goals are met\n", gpu->met, gpu->goals);
    if (best > 0 && gpu->place.module)
        printf("tessera train ... --peak-tflops %.1f shows the share of the best product measured "
               "here\n",
               best * 1e-12);
    return tess__bench_write(&gpu->bench.log,
                             json_pack("{s:s, s:s, s:i, s:i}", "bench", "gpu", "part", "end",
                                       "goals", gpu->goals, "met", gpu->met));
}

/* What the backend has chosen for the operations that were opened, a line each. */
static void gpu_print_choice(void *context, const char *text)
{
    struct tess__gpu *gpu = context;
    printf("  %s\n", text);
    (void)tess__bench_write(
        &gpu->bench.log, /* a file that is full has said so before */
        json_pack("{s:s, s:s, s:s}", "bench", "gpu", "part", "choice", "text", text));
}

static enum tess_status gpu_measure_all(struct tess__gpu *gpu, const struct gpu_options *options)
{
    enum tess_status status = tess__gpu_open(gpu);
    if (status == TESS_OK)
        status = gpu_print_head(gpu, options);
    if (status == TESS_OK)
        status = gpu_run_parts(gpu, (enum gpu_part)options->part);
    if (status == TESS_OK) {
        printf("\nchosen by %s\n", gpu->place.ops->name);
        gpu->bench.kernel->ops->describe(gpu->bench.kernel, gpu_print_choice, gpu);
        status = gpu_print_end(gpu);
    }
    tess__gpu_close(gpu);
    return status;
}

static enum tess_status gpu_run(const struct gpu_options *options)
{
    struct tess__gpu gpu = {.bench = {.kernel = NULL}};
    TESS_TRY(tess__bench_place_find(options->device, options->kernel, &gpu.place));
    TESS_TRY(gpu_configure(&gpu, options));
    TESS_TRY(tess__bench_log_open(&gpu.bench.log, options->json, "w"));
    enum tess_status status = tess__bench_place_open(&gpu.place, 1, &gpu.bench.kernel);
    if (status == TESS_OK)
        status = gpu_measure_all(&gpu, options);
    tess__bench_place_close(gpu.bench.kernel);
    return tess__bench_log_close(&gpu.bench.log, status);
}

/* ---- the command ----------------------------------------------------------------------------- */

static const char gpu_usage[] =
    "usage: tessera bench gpu [--device cuda:1] [--part copy] [--quick] [--json FILE]\n"
    "\n"
    "Measure a device: the highest rates of copies and products (the ceilings), and the share\n"
    "of them that each kernel reaches. The goals: kernels that stream through memory reach\n"
    "85 % of the ceiling of copies, products that are computed as the matrix library advises\n"
    "95 % of the best that is measured. Bytes are those of every array that a kernel is given,\n"
    "each counted once; formulas are in bench/README.md. --kernel cpu measures the kernels of\n"
    "the host in the same way.\n";

static int gpu_command(struct tess__call *call)
{
    return tess_status_exit_code(gpu_run(call->values));
}

const struct tess__command tess__command_bench_gpu = {
    .name = "bench gpu",
    .summary = "a device's ceilings, and the share of them that each kernel reaches",
    .usage = gpu_usage,
    .table = gpu_table,
    .options_size = sizeof(struct gpu_options),
    .run = gpu_command,
};
