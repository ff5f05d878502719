/*
 * The ceilings of `tessera bench gpu`: the fastest copy and product of this device, by
 * the backend's own copy and its own products. What they share with everything that is compared
 * with them is the path: the table of kernels, its queue, its memory.
 */
#include "bench/gpu/bench_gpu.h"

#include "tessera/check.h"
#include "text/text.h"

#include <math.h>
#include <stdio.h>

/* ---- copies ---------------------------------------------------------------------------------- */

/* Sizes by which a copy is tried: the arrays', and what fits into caches. */
#define CEILING_SIZES 4

struct ceiling_copy {
    struct tess_kernel *kernel;
    int64_t bytes;
    void *source, *target;
};

static enum tess_status ceiling_run_copy(void *context)
{
    const struct ceiling_copy *c = context;
    tess_copy(c->kernel, c->bytes, c->source, c->target);
    return TESS_OK;
}

static enum tess_status ceiling_run_fill(void *context)
{
    const struct ceiling_copy *c = context;
    tess_fill(c->kernel, c->bytes, 0, c->target);
    return TESS_OK;
}

static enum tess_status ceiling_copy_row(struct tess__gpu *gpu, struct ceiling_copy *copy,
                                         bool fill, double *best_per_s_out)
{
    const struct tess__gpu_task task = {.run = fill ? ceiling_run_fill : ceiling_run_copy,
                                        .context = copy};
    char text[TESS__TEXT_BYTES];
    struct tess__gpu_row row = {.part = "copy",
                                .name = fill ? "fill" : "copy",
                                .shape = tess__text_bytes((double)copy->bytes, text),
                                .type = "",
                                .bytes = (double)copy->bytes * (fill ? 1 : 2),
                                .ceiling = tess__gpu_memory_peak(gpu)};
    TESS_TRY(tess__gpu_measure(gpu, &task, &row));
    *best_per_s_out = row.bytes / row.time.least_s;
    return TESS_OK;
}

enum tess_status tess__gpu_copies(struct tess__gpu *gpu)
{
    struct ceiling_copy copy = {.kernel = gpu->bench.kernel};
    const double peak = tess__gpu_memory_peak(gpu);
    double best_per_s;
    TESS_TRY(tess__gpu_take_random(gpu, TESS_F32, gpu->bytes / 4, &copy.source));
    TESS_TRY(tess__gpu_take(gpu, gpu->bytes, &copy.target));
    tess__gpu_head(gpu, "copy on the device", true, "peak");
    for (int i = CEILING_SIZES - 1; i >= 0; i--) {
        copy.bytes = gpu->bytes >> 2 * i;
        TESS_TRY(ceiling_copy_row(gpu, &copy, false, &best_per_s));
    }
    /* Of the whole arrays alone: smaller ones may be in a cache. */
    gpu->copy_per_s = best_per_s;
    TESS_TRY(ceiling_copy_row(gpu, &copy, true, &best_per_s));
    tess__gpu_print_ceiling(gpu, "copy ceiling", true, gpu->copy_per_s, peak,
                            gpu->place.info.memory_bytes_per_s > 0 ? "bus and clock" : "datasheet",
                            "the whole array's best round");
    return tess__bench_write(&gpu->bench.log,
                             json_pack("{s:s, s:s, s:f, s:o}", "bench", "gpu", "part",
                                       "copy ceiling", "bytes_per_s", gpu->copy_per_s, "peak_per_s",
                                       peak > 0 ? json_real(peak) : json_null()));
}

/* ---- products -------------------------------------------------------------------------------- */

struct ceiling_product {
    struct tess_op *op;
    void *x, *w, *y;
};

static enum tess_status ceiling_run_product(void *context)
{
    const struct ceiling_product *p = context;
    return tess_linear_forward(p->op, p->x, p->w, NULL, p->y);
}

static enum tess_status ceiling_product(struct tess__gpu *gpu, enum tess__gpu_type type,
                                        enum tess_fp8 fp8, const int64_t size[3])
{
    static const enum tess_dtype dtypes[TESS__GPU_TYPES] = {TESS_F32, TESS_F32, TESS_BF16, TESS_F16,
                                                            TESS_BF16};
    static const char *const name[] = {"product", "product, scales now", "product, scale history"};
    const enum tess_dtype dtype = dtypes[type];
    struct tess_op_desc desc = {.kind = TESS_OP_LINEAR,
                                .dtype = dtype,
                                .rows = size[0],
                                .leaf_rows = size[0],
                                .in = size[2],
                                .out = size[1],
                                .fp8 = fp8};
    struct ceiling_product product;
    const struct tess__gpu_task task = {.run = ceiling_run_product, .context = &product};
    char why[256], shape[TESS__GPU_TEXT_BYTES];
    if (!gpu->bench.kernel->ops->supports(&desc, why, sizeof(why)))
        return TESS_OK;
    snprintf(shape, sizeof(shape), "%lld x %lld x %lld", (long long)size[0], (long long)size[1],
             (long long)size[2]);
    struct tess__gpu_row row = {.part = "matmul",
                                .name = name[fp8],
                                .shape = shape,
                                .type = tess__gpu_type_name(type),
                                .flops = 2.0 * (double)size[0] * (double)size[1] * (double)size[2],
                                .ceiling = tess__gpu_peak(gpu, type)};
    TESS_TRY(tess__gpu_take_random(gpu, dtype, size[0] * size[2], &product.x));
    TESS_TRY(tess__gpu_take_random(gpu, dtype, size[1] * size[2], &product.w));
    TESS_TRY(tess__gpu_take(gpu, size[0] * size[1] * (int64_t)tess_dtype_bytes(dtype), &product.y));
    TESS_TRY(tess__gpu_take_op(gpu, &desc, &product.op));
    TESS_TRY(tess__gpu_measure(gpu, &task, &row));
    gpu->product_per_s[type] = fmax(gpu->product_per_s[type], row.flops / row.time.least_s);
    return TESS_OK;
}

/* Rows, outputs and inputs: square, and a GPT's two widest layers and its vocabulary. */
static enum tess_status ceiling_products(struct tess__gpu *gpu, enum tess__gpu_type type,
                                         enum tess_fp8 fp8)
{
    const struct tess__gpu_model *m = gpu->model;
    const int64_t rows = m->batch * m->length;
    const int64_t size[][3] = {{m->square[0], m->square[0], m->square[0]},
                               {m->square[1], m->square[1], m->square[1]},
                               {rows, m->inner, m->width},
                               {rows, m->width, m->inner},
                               {m->head_chunk, m->classes, m->width}};
    for (size_t i = 0; i < sizeof(size) / sizeof(size[0]); i++) {
        TESS_TRY(ceiling_product(gpu, type, fp8, size[i]));
        tess__gpu_drop(gpu);
    }
    return TESS_OK;
}

static enum tess_status ceiling_print_best(struct tess__gpu *gpu, enum tess__gpu_type type)
{
    const double best = gpu->product_per_s[type], peak = tess__gpu_peak(gpu, type);
    char name[TESS__GPU_TEXT_BYTES];
    if (!(best > 0))
        return TESS_OK;
    snprintf(name, sizeof(name), "matmul ceiling %s", tess__gpu_type_name(type));
    tess__gpu_print_ceiling(gpu, name, false, best, peak, "datasheet",
                            "the best shape's best round");
    return tess__bench_write(&gpu->bench.log,
                             json_pack("{s:s, s:s, s:s, s:f, s:o}", "bench", "gpu", "part",
                                       "matmul ceiling", "type", tess__gpu_type_name(type),
                                       "flops_per_s", best, "peak_per_s",
                                       peak > 0 ? json_real(peak) : json_null()));
}

/* In TF32, where that is a choice: an open kernel makes it once, so this is another one. */
static enum tess_status ceiling_tf32(struct tess__gpu *gpu)
{
    const struct tess_kernel_choices choices = {.tf32 = true};
    struct tess__gpu beside;
    if (!tess__gpu_has_choices(gpu))
        return TESS_OK;
    enum tess_status status = tess__gpu_open_beside(gpu, &choices, &beside);
    if (status == TESS_OK)
        status = ceiling_products(&beside, TESS__GPU_TF32, TESS_FP8_OFF);
    gpu->product_per_s[TESS__GPU_TF32] = beside.product_per_s[TESS__GPU_TF32];
    tess__gpu_close_beside(&beside);
    return status;
}

enum tess_status tess__gpu_matmuls(struct tess__gpu *gpu)
{
    tess__gpu_head(gpu, "products (rows, out, in)", false, "peak");
    TESS_TRY(ceiling_products(gpu, TESS__GPU_F32, TESS_FP8_OFF));
    TESS_TRY(ceiling_tf32(gpu));
    TESS_TRY(ceiling_products(gpu, TESS__GPU_BF16, TESS_FP8_OFF));
    TESS_TRY(ceiling_products(gpu, TESS__GPU_F16, TESS_FP8_OFF));
    TESS_TRY(ceiling_products(gpu, TESS__GPU_FP8, TESS_FP8_NOW));
    TESS_TRY(ceiling_products(gpu, TESS__GPU_FP8, TESS_FP8_HISTORY));
    for (int type = 0; type < TESS__GPU_TYPES; type++)
        TESS_TRY(ceiling_print_best(gpu, (enum tess__gpu_type)type));
    return TESS_OK;
}
