/* Measuring a processor; see calibrate.h. What the measurements say is calibrate_fit.c. */
#include "predict/calibrate.h"

#include "kernel_open.h"
#include "predict/calibrate_op.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PASS_MAX ((int64_t)(BYTES_MAX / CALIBRATE_PARTS) / (int64_t)sizeof(float))

/* ---- passes ---------------------------------------------------------------------------------- */

static enum tess_status pass_run(struct calibrate *calibrate, const struct tess_sample *sample)
{
    tess_add(calibrate->kernel, TESS_F32, (int64_t)(sample->bytes / 12),
             calibrate_part(calibrate, 0), calibrate_part(calibrate, 1),
             calibrate_part(calibrate, 2));
    return TESS_OK;
}

static enum tess_status calibrate_passes(struct calibrate *calibrate)
{
    static const int64_t count[] = {16,     256,    2048,    8192,    16384,   65536,
                                    262144, 524288, 1048576, 2097152, PASS_MAX};
    for (size_t i = 0; i < sizeof(count) / sizeof(*count); i++)
        TESS_TRY(calibrate_measure(
            calibrate,
            (struct tess_sample){.kind = TESS_SAMPLE_PASS, .bytes = 12.0 * (double)count[i]},
            pass_run));
    return TESS_OK;
}

/* ---- products -------------------------------------------------------------------------------- */

static enum tess_status product_run(struct calibrate *calibrate, const struct tess_sample *sample)
{
    struct tess_op *op = &calibrate->op;
    float *a = calibrate_part(calibrate, 0), *b = calibrate_part(calibrate, 1);
    float *c = calibrate_part(calibrate, 2), *d = calibrate_part(calibrate, 3);
    switch ((enum tess_product)sample->which) {
    case TESS_PRODUCT_FORWARD:
        return tess_linear_forward(op, a, b, d, c);
    case TESS_PRODUCT_DATA:
        return tess_linear_backward_data(op, a, b, c);
    case TESS_PRODUCT_WEIGHT:
        return tess_linear_backward_weight(op, a, b, c, d);
    case TESS_PRODUCT_CONV_FORWARD:
        return tess_conv2d_forward(op, a, b, d, c);
    case TESS_PRODUCT_CONV_DATA:
        return tess_conv2d_backward_data(op, a, b, c);
    default:
        return tess_conv2d_backward_weight(op, a, b, c, d);
    }
}

/* m, n and k of the layer's forward product, as predictions count them for each direction. */
static enum tess_status product_measure(struct calibrate *calibrate,
                                        const struct tess_op_desc *desc, int which, double m,
                                        double n, double k)
{
    const int way = which % TESS_PRODUCT_CONV_FORWARD;
    struct tess_sample sample = {.kind = TESS_SAMPLE_PRODUCT,
                                 .type = desc->dtype == TESS_F32 ? TESS_PEAK_F32 : TESS_PEAK_16,
                                 .which = which,
                                 .size = {m, n, k}};
    if (way == TESS_PRODUCT_DATA)
        memcpy(sample.size, (double[3]){m, k, n}, sizeof(sample.size));
    else if (way == TESS_PRODUCT_WEIGHT)
        memcpy(sample.size, (double[3]){n, k, m}, sizeof(sample.size));
    sample.bytes = (m * k + k * n + m * n) * (double)tess_dtype_bytes(desc->dtype);
    if (desc->kind == TESS_OP_CONV2D) /* windows overlap */
        sample.bytes = 0;
    return calibrate_op(calibrate, desc, sample, product_run);
}

/* Rows, columns and length of sums from small to large, one after the other and together; those of
 * 16 bits are fewer. */
static enum tess_status calibrate_linear(struct calibrate *calibrate, enum tess_dtype dtype)
{
    static const int64_t size[][3] = {
        {512, 512, 512}, {2048, 128, 512}, {16, 512, 512},   {1024, 384, 128}, {128, 1024, 784},
        {64, 64, 64},    {128, 10, 1024},  {64, 1024, 1024}, {512, 64, 512},   {512, 512, 64},
        {32, 128, 128},  {8, 256, 256},    {512, 16, 64},
    };
    const size_t count = dtype == TESS_F32 ? sizeof(size) / sizeof(*size) : 6;
    for (size_t i = 0; i < count; i++)
        for (int which = TESS_PRODUCT_FORWARD; which <= TESS_PRODUCT_WEIGHT; which++) {
            const struct tess_op_desc desc = {.kind = TESS_OP_LINEAR,
                                              .dtype = dtype,
                                              .rows = size[i][0],
                                              .leaf_rows = size[i][0],
                                              .in = size[i][2],
                                              .out = size[i][1],
                                              .input_grad = true};
            TESS_TRY(product_measure(calibrate, &desc, which, (double)size[i][0],
                                     (double)size[i][1], (double)size[i][2]));
        }
    return TESS_OK;
}

/* Images, channels in and out, pixels of a side, window, stride. */
static enum tess_status calibrate_conv(struct calibrate *calibrate, enum tess_dtype dtype)
{
    static const int64_t size[][6] = {
        {8, 32, 64, 28, 3, 1},  {8, 16, 16, 32, 3, 1},  {8, 1, 32, 28, 3, 1}, {8, 64, 64, 14, 3, 1},
        {8, 64, 128, 16, 1, 2}, {32, 16, 32, 16, 3, 2}, {8, 32, 32, 8, 3, 1},
    };
    const size_t count = dtype == TESS_F32 ? sizeof(size) / sizeof(*size) : 4;
    for (size_t i = 0; i < count; i++)
        for (int which = TESS_PRODUCT_CONV_FORWARD; which <= TESS_PRODUCT_CONV_WEIGHT; which++) {
            const struct tess_op_desc desc = {.kind = TESS_OP_CONV2D,
                                              .dtype = dtype,
                                              .rows = size[i][0],
                                              .leaf_rows = size[i][0],
                                              .in = size[i][1],
                                              .out = size[i][2],
                                              .height = size[i][3],
                                              .width = size[i][3],
                                              .window = (int32_t)size[i][4],
                                              .stride = (int32_t)size[i][5],
                                              .padding = (int32_t)size[i][4] / 2,
                                              .input_grad = true};
            const int64_t side =
                tess_op_output_size(desc.height, desc.window, desc.stride, desc.padding);
            TESS_TRY(product_measure(calibrate, &desc, which, (double)(desc.rows * side * side),
                                     (double)desc.out,
                                     (double)(desc.in * desc.window * desc.window)));
        }
    return TESS_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* What lies there are small numbers, which is all that time depends on. */
static enum tess_status attention_run(struct calibrate *calibrate, const struct tess_sample *sample)
{
    struct tess_op *op = &calibrate->op;
    const int64_t size = (int64_t)tess_dtype_bytes(op->desc.dtype);
    const int64_t next = op->desc.in * op->desc.heads * size;
    char *q = (char *)calibrate_part(calibrate, 0), *dq = (char *)calibrate_part(calibrate, 1);
    float *y = calibrate_part(calibrate, 2), *lse = calibrate_part(calibrate, 3);
    if (sample->kind == TESS_SAMPLE_FORWARD)
        return tess_attention_forward(op, q, q + next, q + 2 * next, y, lse);
    return tess_attention_backward(op, q, q + next, q + 2 * next, y, y, lse, dq, dq + next,
                                   dq + 2 * next);
}

/* Four sequences, four heads of so many. */
static enum tess_status calibrate_attention(struct calibrate *calibrate, enum tess_dtype dtype,
                                            int64_t width, int64_t length)
{
    const int64_t rows = 4, heads = 4;
    const struct tess_op_desc desc = {.kind = TESS_OP_ATTENTION,
                                      .dtype = dtype,
                                      .rows = rows,
                                      .leaf_rows = 1,
                                      .in = width,
                                      .length = length,
                                      .heads = (int32_t)heads,
                                      .kv_heads = (int32_t)heads,
                                      .q_stride = 3 * width * heads,
                                      .kv_stride = 3 * width * heads};
    const double square = (double)(rows * length * length * width * heads);
    const enum tess_peak_type type = dtype == TESS_F32 ? TESS_PEAK_F32 : TESS_PEAK_16;
    TESS_TRY(calibrate_op(calibrate, &desc,
                          (struct tess_sample){.kind = TESS_SAMPLE_FORWARD,
                                               .type = type,
                                               .size = {2 * square, (double)length}},
                          attention_run));
    return calibrate_op(calibrate, &desc,
                        (struct tess_sample){.kind = TESS_SAMPLE_BACKWARD,
                                             .type = type,
                                             .size = {5 * square, (double)length}},
                        attention_run);
}

/* ---- the profile ----------------------------------------------------------------------------- */

static enum tess_status calibrate_type(struct calibrate *calibrate, enum tess_dtype dtype)
{
    TESS_TRY(calibrate_linear(calibrate, dtype));
    TESS_TRY(calibrate_conv(calibrate, dtype));
    TESS_TRY(calibrate_attention(calibrate, dtype, 16, 128));
    for (int64_t length = 32; length <= 256; length *= 2)
        TESS_TRY(calibrate_attention(calibrate, dtype, 32, length));
    return TESS_OK;
}

static enum tess_status calibrate_all(struct calibrate *calibrate)
{
    const uint32_t small = 0x3c243c24; /* 0.01, and so is each half of it in bf16 */
    for (size_t i = 0; i < BYTES_MAX / sizeof(small); i++)
        memcpy(calibrate->memory + i * sizeof(small), &small, sizeof(small));
    for (int32_t i = 0; i < CALIBRATE_IDS; i++)
        calibrate->id[i] = i * 37 % 128;
    TESS_TRY(calibrate_passes(calibrate));
    TESS_TRY(calibrate_works(calibrate));
    TESS_TRY(calibrate_type(calibrate, TESS_F32));
    return calibrate_type(calibrate, TESS_BF16);
}

/* Where the search for a profile begins. */
static struct tess_profile calibrate_begin(const struct tess_kernel_ops *kernel, const char *name)
{
    struct tess_profile profile = {.measured = true,
                                   .start_s = 1e-7,
                                   .bytes_per_s = 5e9,
                                   .cache_bytes = 1e6,
                                   .cache_bytes_per_s = 1e10,
                                   .element_s = 1e-9,
                                   .units = 1,
                                   .tile_m = 1,
                                   .tile_n = 1,
                                   .half_m = 4,
                                   .half_n = 4,
                                   .half_k = 16,
                                   .attention_forward = 0.5,
                                   .attention_backward = 0.5,
                                   .attention_half = 32};
    snprintf(profile.name, sizeof(profile.name), "%s", name);
    snprintf(profile.kernel, sizeof(profile.kernel), "%s", kernel->name);
    snprintf(profile.source, sizeof(profile.source), "measured with kernel %s", kernel->name);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    profile.cores = cores > 0 ? (double)cores : 1;
    /* memory_bytes stays 0: ranks share the host's, and how many there are is not known here. */
    profile.flops_per_s[TESS_PEAK_F32] = profile.flops_per_s[TESS_PEAK_16] = 1e10;
    profile.efficiency[TESS_PEAK_F32] = profile.efficiency[TESS_PEAK_16] = 1;
    return profile;
}

/* About the measurements without those of the ranks. */
#define CALIBRATE_COUNT 170

enum tess_status tess_profile_calibrate(const struct tess_kernel_ops *kernel, const char *name,
                                        double limit_s, struct tess_profile *profile_out)
{
    struct calibrate *calibrate = calloc(1, sizeof(*calibrate));
    if (calibrate != NULL) {
        calibrate->memory = aligned_alloc(4096, BYTES_MAX);
        calibrate->id = calloc(CALIBRATE_IDS, sizeof(*calibrate->id));
    }
    enum tess_status status =
        calibrate != NULL && calibrate->memory != NULL && calibrate->id != NULL
            ? tess_kernel_open(kernel, 1, &calibrate->kernel)
            : tess_fail(TESS_ERR_MEMORY, "no memory to measure in");
    if (status == TESS_OK && (calibrate->kernel->queue != NULL || kernel->far_memory))
        status =
            tess_fail(TESS_ERR_UNSUPPORTED,
                      "kernel %s computes on a device: only processors are measured", kernel->name);
    if (status == TESS_OK) {
        calibrate->each_s = 0.8 * limit_s / CALIBRATE_COUNT;
        status = calibrate_all(calibrate);
    }
    struct tess_profile profile = calibrate_begin(kernel, name);
    if (status == TESS_OK)
        tess_profile_fit(&profile, calibrate->sample, calibrate->count);
    if (status == TESS_OK && profile.cores > 1)
        status = calibrate_ranks(&profile);
    if (calibrate != NULL) {
        tess_kernel_close(calibrate->kernel);
        free(calibrate->memory);
        free(calibrate->id);
    }
    free(calibrate);
    if (status == TESS_OK)
        status = tess_profile_check(&profile);
    if (status == TESS_OK)
        *profile_out = profile;
    return status;
}
