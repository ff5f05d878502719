/* Measuring what is neither a product nor attention: each operation once, in f32 and in 16 bits,
 * over arrays that the second cache keeps. */
#include "predict/calibrate_op.h"

#include "tessera/check.h"

/* Rows of so many elements; as images 16 of 8 x 8 pixels with 16 channels. */
#define WORK_ROWS  128
#define WORK_WIDTH 128
#define WORK_COUNT ((int64_t)WORK_ROWS * WORK_WIDTH)

static enum tess_dtype work_dtype(const struct tess_sample *sample)
{
    return sample->type == TESS_PEAK_16 ? TESS_BF16 : TESS_F32;
}

/* ---- operations of no description ------------------------------------------------------------ */

static void work_update(struct tess_kernel *kernel, enum tess_update_kind kind, float *const part[])
{
    const bool adamw = kind == TESS_UPDATE_ADAMW;
    const struct tess_update update = {.kind = kind,
                                       .count = WORK_COUNT,
                                       .w = part[0],
                                       .g = part[1],
                                       .m = kind != TESS_UPDATE_SGD ? part[2] : NULL,
                                       .v = adamw ? part[3] : NULL,
                                       .lr = 1e-9f,
                                       .mu = 0.9f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.99f,
                                       .epsilon = 1e-8f,
                                       .correction1 = 1,
                                       .correction2 = 1,
                                       .grad_scale = 1,
                                       .tensor_scale = 1};
    tess_update(kernel, &update);
}

/* Pieces of arrays and numbers of rows lie behind the fourth part. */
static enum tess_status work_plain(struct calibrate *calibrate, const struct tess_sample *sample)
{
    static const uint64_t key[2] = {1, 2};
    struct tess_kernel *kernel = calibrate->kernel;
    const enum tess_dtype dtype = work_dtype(sample);
    float *part[CALIBRATE_PARTS];
    for (int i = 0; i < CALIBRATE_PARTS; i++)
        part[i] = calibrate_part(calibrate, i);
    float *a = part[0], *b = part[1], *c = part[2], *row = part[4];
    int32_t *correct = (int32_t *)(void *)part[5];
    switch ((enum tess_work)sample->which) {
    case TESS_WORK_ADD:
        tess_add(kernel, dtype, WORK_COUNT, a, b, c);
        break;
    case TESS_WORK_ACCUMULATE:
        tess_accumulate(kernel, WORK_COUNT, 0.5f, a, c);
        break;
    case TESS_WORK_RELU:
        tess_relu_forward(kernel, dtype, WORK_COUNT, a, c);
        break;
    case TESS_WORK_RELU_BACKWARD:
        tess_relu_backward(kernel, dtype, WORK_COUNT, a, b, c);
        break;
    case TESS_WORK_GELU:
        tess_gelu_forward(kernel, dtype, WORK_COUNT, a, c);
        break;
    case TESS_WORK_GELU_BACKWARD:
        tess_gelu_backward(kernel, dtype, WORK_COUNT, a, b, c);
        break;
    case TESS_WORK_SWIGLU:
        tess_swiglu_forward(kernel, dtype, WORK_ROWS, WORK_WIDTH, WORK_WIDTH, a, b, c);
        break;
    case TESS_WORK_SWIGLU_BACKWARD:
        tess_swiglu_backward(kernel, dtype, WORK_ROWS, WORK_WIDTH, WORK_WIDTH, a, b, part[3], c,
                             row);
        break;
    case TESS_WORK_DROPOUT:
        tess_dropout(kernel, dtype, WORK_COUNT, 0.1f, key, 0, a, c);
        break;
    case TESS_WORK_CAST:
        tess_cast(kernel, WORK_COUNT, TESS_F32, a, TESS_BF16, c);
        break;
    case TESS_WORK_XENT:
        tess_softmax_xent(kernel, dtype, WORK_ROWS, WORK_WIDTH, 1, a, calibrate->id, c, row,
                          correct);
        break;
    case TESS_WORK_XENT_MAX:
        tess_xent_max(kernel, dtype, WORK_ROWS, WORK_WIDTH, WORK_WIDTH, a, row, row + WORK_ROWS,
                      row + 2 * WORK_ROWS, row + 3 * WORK_ROWS);
        break;
    case TESS_WORK_XENT_SUM:
        tess_xent_sum(kernel, dtype, WORK_ROWS, WORK_WIDTH, WORK_WIDTH, 0, a, calibrate->id, b,
                      row + WORK_ROWS, row + 2 * WORK_ROWS, row + 3 * WORK_ROWS);
        break;
    case TESS_WORK_XENT_GRAD:
        tess_xent_grad(kernel, dtype, WORK_ROWS, WORK_WIDTH, WORK_WIDTH, 0, 1, a, calibrate->id, b,
                       b, c);
        break;
    case TESS_WORK_ROPE:
        tess_rope(kernel, dtype, WORK_ROWS, WORK_ROWS, 0, 4, WORK_WIDTH / 4, WORK_WIDTH,
                  &(struct tess_rotary){.base = 10000}, false, c);
        break;
    case TESS_WORK_SQUARES:
        tess_square_sum(kernel, WORK_COUNT, TESS_SUM_BLOCK, 1, a, (struct tess_sum *)(void *)row);
        break;
    case TESS_WORK_UPDATE_SGD:
        work_update(kernel, TESS_UPDATE_SGD, part);
        break;
    case TESS_WORK_UPDATE_MOMENTUM:
        work_update(kernel, TESS_UPDATE_MOMENTUM, part);
        break;
    default:
        work_update(kernel, TESS_UPDATE_ADAMW, part);
        break;
    }
    return TESS_OK;
}

/* ---- operations that are opened -------------------------------------------------------------- */

static enum tess_status work_opened(struct calibrate *calibrate, const struct tess_sample *sample)
{
    struct tess_op *op = &calibrate->op;
    float *part[CALIBRATE_PARTS];
    for (int i = 0; i < CALIBRATE_PARTS; i++)
        part[i] = calibrate_part(calibrate, i);
    float *a = part[0], *b = part[1], *c = part[2], *weight = part[3], *row = part[4];
    uint8_t *window = (uint8_t *)calibrate->id; /* of the first element of each */
    switch ((enum tess_work)sample->which) {
    case TESS_WORK_NORM:
        return tess_norm_forward(op, a, NULL, NULL, weight, weight, c, row, row + WORK_ROWS);
    case TESS_WORK_NORM_BACKWARD:
        return tess_norm_backward(op, a, b, weight, row, row, NULL, c, part[5], part[6]);
    case TESS_WORK_BATCH_NORM:
        return tess_batch_norm_forward(op, a, weight, weight, c, row, part[5], part[6], part[7]);
    case TESS_WORK_BATCH_NORM_BACKWARD:
        return tess_batch_norm_backward(op, a, b, b, weight, row, part[5], c, part[6], part[7]);
    case TESS_WORK_MAX_POOL:
        return tess_max_pool_forward(op, a, c, (uint8_t *)part[5]);
    case TESS_WORK_MAX_POOL_BACKWARD:
        for (int64_t i = 0; i < WORK_COUNT / 4; i++)
            ((uint8_t *)part[5])[i] = window[i] & 3;
        return tess_max_pool_backward(op, a, (uint8_t *)part[5], c);
    case TESS_WORK_AVG_POOL:
        return tess_avg_pool_forward(op, a, c);
    case TESS_WORK_AVG_POOL_BACKWARD:
        return tess_avg_pool_backward(op, a, c);
    case TESS_WORK_EMBEDDING:
        return tess_embedding_forward(op, calibrate->id, 0, weight, NULL, c);
    default:
        return tess_embedding_backward(op, calibrate->id, 0, a, c);
    }
}

/* False: the operation has no description. */
static bool work_desc(enum tess_work work, enum tess_dtype dtype, struct tess_op_desc *desc)
{
    *desc = (struct tess_op_desc){
        .dtype = dtype, .rows = 16, .leaf_rows = 16, .in = 16, .out = 16, .height = 8, .width = 8};
    switch (work) {
    case TESS_WORK_NORM:
    case TESS_WORK_NORM_BACKWARD:
        *desc = (struct tess_op_desc){.kind = TESS_OP_NORM,
                                      .dtype = dtype,
                                      .rows = WORK_ROWS,
                                      .leaf_rows = WORK_ROWS,
                                      .in = WORK_WIDTH,
                                      .out = WORK_WIDTH,
                                      .epsilon = 1e-5f};
        return true;
    case TESS_WORK_BATCH_NORM:
    case TESS_WORK_BATCH_NORM_BACKWARD:
        desc->kind = TESS_OP_BATCH_NORM;
        desc->epsilon = 1e-5f;
        desc->relu = true;
        return true;
    case TESS_WORK_MAX_POOL:
    case TESS_WORK_MAX_POOL_BACKWARD:
        desc->kind = TESS_OP_MAX_POOL;
        desc->window = desc->stride = 2;
        return true;
    case TESS_WORK_AVG_POOL:
    case TESS_WORK_AVG_POOL_BACKWARD:
        desc->kind = TESS_OP_AVG_POOL;
        desc->window = desc->stride = 8;
        return true;
    case TESS_WORK_EMBEDDING:
    case TESS_WORK_EMBEDDING_BACKWARD:
        *desc = (struct tess_op_desc){.kind = TESS_OP_EMBEDDING,
                                      .dtype = dtype,
                                      .rows = WORK_ROWS,
                                      .leaf_rows = WORK_ROWS,
                                      .in = 128,
                                      .out = WORK_WIDTH};
        return true;
    default:
        return false;
    }
}

/* Always f32, or always both. */
static bool work_one_type(enum tess_work work, enum tess_peak_type type)
{
    const bool wide = work == TESS_WORK_ACCUMULATE || work >= TESS_WORK_SQUARES;
    return (wide && type != TESS_PEAK_F32) || (work == TESS_WORK_CAST && type == TESS_PEAK_F32);
}

enum tess_status calibrate_works(struct calibrate *calibrate)
{
    static const enum tess_peak_type type[] = {TESS_PEAK_F32, TESS_PEAK_16};
    for (int work = 0; work < TESS_WORK_COUNT; work++)
        for (size_t t = 0; t < sizeof(type) / sizeof(*type); t++) {
            const struct tess_sample sample = {.kind = TESS_SAMPLE_WORK,
                                               .type = type[t],
                                               .which = work,
                                               .size = {(double)WORK_COUNT}};
            struct tess_op_desc desc;
            if (work_one_type((enum tess_work)work, type[t]))
                continue;
            if (work_desc((enum tess_work)work, work_dtype(&sample), &desc))
                TESS_TRY(calibrate_op(calibrate, &desc, sample, work_opened));
            else
                TESS_TRY(calibrate_measure(calibrate, sample, work_plain));
        }
    return TESS_OK;
}
