/* Measuring what is neither a product nor attention: each operation in f32 and in 16 bits, over
 * arrays of two sizes. Forward reads what was just written, and writes what is read much later;
 * backward the other way round. */
#include "predict/calibrate_op.h"

#include "tessera/check.h"

/* Rows of so many elements; as images 8 x 8 pixels with 16 channels. */
#define WORK_WIDTH 128
#define WORK_IMAGE 1024

static int64_t work_count(const struct tess_sample *sample)
{
    return (int64_t)sample->size[0];
}

static int64_t work_rows(const struct tess_sample *sample)
{
    return work_count(sample) / WORK_WIDTH;
}

/* Arrays: what an operation reads, reads too, and writes. */
struct work_arrays {
    float *a, *b, *c;
};

static bool work_back(const struct tess_sample *sample)
{
    static const bool back[TESS_WORK_COUNT] = {
        [TESS_WORK_RELU_BACKWARD] = true,       [TESS_WORK_GELU_BACKWARD] = true,
        [TESS_WORK_SWIGLU_BACKWARD] = true,     [TESS_WORK_NORM_BACKWARD] = true,
        [TESS_WORK_BATCH_NORM_BACKWARD] = true,
    };
    return back[sample->which];
}

static struct work_arrays work_arrays(const struct calibrate *calibrate,
                                      const struct tess_sample *sample)
{
    const double bytes = 4 * sample->size[0];
    return work_back(sample)
               ? (struct work_arrays){calibrate_far(calibrate, 0, bytes),
                                      calibrate_part(calibrate, 1), calibrate_part(calibrate, 2)}
               : (struct work_arrays){calibrate_part(calibrate, 0), calibrate_part(calibrate, 1),
                                      calibrate_far(calibrate, 2, bytes)};
}

static enum tess_dtype work_dtype(const struct tess_sample *sample)
{
    return sample->type == TESS_PEAK_16 ? TESS_BF16 : TESS_F32;
}

/* ---- operations of no description ------------------------------------------------------------ */

/* In 16 bits: with a copy of the parameters. */
static void work_update(const struct calibrate *calibrate, enum tess_update_kind kind,
                        enum tess_dtype dtype, int64_t count)
{
    const bool adamw = kind == TESS_UPDATE_ADAMW, low = dtype != TESS_F32;
    float *part[4];
    for (int i = 0; i < 4; i++)
        part[i] = calibrate_far(calibrate, i, 4 * (double)count);
    const struct tess_update update = {
        .kind = kind,
        .count = count,
        .w = part[0],
        .g = part[1],
        .m = kind != TESS_UPDATE_SGD ? part[2] : NULL,
        .v = adamw ? part[3] : NULL,
        .param_low = low ? calibrate_far(calibrate, 4, 2 * (double)count) : NULL,
        .low = dtype,
        .lr = 1e-9f,
        .mu = 0.9f,
        .beta1 = 0.9f,
        .beta2 = 0.99f,
        .epsilon = 1e-8f,
        .correction1 = 1,
        .correction2 = 1,
        .grad_scale = 1,
        .tensor_scale = 1};
    tess_update(calibrate->kernel, &update);
}

/* Pieces of arrays and numbers of rows lie behind the fourth part. */
static enum tess_status work_plain(struct calibrate *calibrate, const struct tess_sample *sample)
{
    static const uint64_t key[2] = {1, 2};
    struct tess_kernel *kernel = calibrate->kernel;
    const enum tess_dtype dtype = work_dtype(sample);
    const struct work_arrays of = work_arrays(calibrate, sample);
    const int64_t count = work_count(sample), rows = work_rows(sample);
    float *a = of.a, *b = of.b, *c = of.c, *more = calibrate_part(calibrate, 3);
    float *row = calibrate_part(calibrate, 4);
    int32_t *correct = (int32_t *)(void *)calibrate_part(calibrate, 5);
    switch ((enum tess_work)sample->which) {
    case TESS_WORK_ADD:
        tess_add(kernel, dtype, count, a, b, c);
        break;
    case TESS_WORK_ACCUMULATE:
        tess_accumulate(kernel, count, 0.5f, a, c);
        break;
    case TESS_WORK_RELU:
        tess_relu_forward(kernel, dtype, count, a, c);
        break;
    case TESS_WORK_RELU_BACKWARD:
        tess_relu_backward(kernel, dtype, count, a, b, c);
        break;
    case TESS_WORK_GELU:
        tess_gelu_forward(kernel, dtype, count, a, c);
        break;
    case TESS_WORK_GELU_BACKWARD:
        tess_gelu_backward(kernel, dtype, count, a, b, c);
        break;
    case TESS_WORK_SWIGLU:
        tess_swiglu_forward(kernel, dtype, rows, WORK_WIDTH, WORK_WIDTH, a, b, c);
        break;
    case TESS_WORK_SWIGLU_BACKWARD:
        tess_swiglu_backward(kernel, dtype, rows, WORK_WIDTH, WORK_WIDTH, a, b, more, c, row);
        break;
    case TESS_WORK_DROPOUT:
        tess_dropout(kernel, dtype, 1, count, count, 0.1f, key, 0, a, c);
        break;
    case TESS_WORK_CAST:
        tess_cast(kernel, count, TESS_F32, calibrate_far(calibrate, 0, 4 * sample->size[0]),
                  TESS_BF16, c);
        break;
    case TESS_WORK_XENT:
        tess_softmax_xent(kernel, dtype, rows, WORK_WIDTH, (struct tess_xent){0}, 1, a,
                          calibrate->id, c, row, correct);
        break;
    case TESS_WORK_XENT_MAX:
        tess_xent_max(kernel, dtype, rows, WORK_WIDTH, WORK_WIDTH, a, row, row + rows,
                      row + 2 * rows, row + 3 * rows);
        break;
    case TESS_WORK_XENT_SUM:
        tess_xent_sum(kernel, dtype, rows, WORK_WIDTH, WORK_WIDTH, 0, (struct tess_xent){0}, a,
                      calibrate->id, b, row + rows, row + 2 * rows, row + 3 * rows);
        break;
    case TESS_WORK_XENT_GRAD:
        tess_xent_grad(kernel, dtype, rows, WORK_WIDTH, WORK_WIDTH, 0, (struct tess_xent){0}, 1, a,
                       calibrate->id, b, b, c);
        break;
    case TESS_WORK_ROPE:
        tess_rope(kernel, dtype, rows, rows, 0, 4, WORK_WIDTH / 4, WORK_WIDTH,
                  &(struct tess_rotary){.base = 10000}, false, c);
        break;
    case TESS_WORK_SQUARES:
        tess_square_sum(kernel, count, TESS_SUM_BLOCK, 1, c, (struct tess_sum *)(void *)row);
        break;
    case TESS_WORK_UPDATE_SGD:
        work_update(calibrate, TESS_UPDATE_SGD, dtype, count);
        break;
    case TESS_WORK_UPDATE_MOMENTUM:
        work_update(calibrate, TESS_UPDATE_MOMENTUM, dtype, count);
        break;
    default:
        work_update(calibrate, TESS_UPDATE_ADAMW, dtype, count);
        break;
    }
    return TESS_OK;
}

/* ---- operations that are opened -------------------------------------------------------------- */

static enum tess_status work_opened(struct calibrate *calibrate, const struct tess_sample *sample)
{
    struct tess_op *op = &calibrate->op;
    const struct work_arrays of = work_arrays(calibrate, sample);
    const int64_t rows = work_rows(sample);
    float *a = of.a, *b = of.b, *c = of.c, *part[CALIBRATE_PARTS];
    for (int i = 0; i < CALIBRATE_PARTS; i++)
        part[i] = calibrate_part(calibrate, i);
    float *weight = part[3], *row = part[4];
    switch ((enum tess_work)sample->which) {
    case TESS_WORK_NORM:
        return tess_norm_forward(op, a, NULL, NULL, weight, weight, c, row, row + rows);
    case TESS_WORK_NORM_BACKWARD:
        return tess_norm_backward(op, a, b, weight, row, row, NULL, c, part[5], part[6]);
    case TESS_WORK_BATCH_NORM:
        return tess_batch_norm_forward(op, a, weight, weight, c, row, part[5], part[6], part[7]);
    case TESS_WORK_BATCH_NORM_BACKWARD:
        return tess_batch_norm_backward(op, a, b, b, weight, weight, row, part[5], c, part[6],
                                        part[7]);
    case TESS_WORK_MAX_POOL:
        return tess_max_pool_forward(op, a, c, (uint8_t *)part[5]);
    case TESS_WORK_MAX_POOL_BACKWARD:
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
static bool work_desc(const struct tess_sample *sample, struct tess_op_desc *desc)
{
    const enum tess_dtype dtype = work_dtype(sample);
    const int64_t rows = work_rows(sample), images = work_count(sample) / WORK_IMAGE;
    *desc = (struct tess_op_desc){.dtype = dtype,
                                  .rows = images,
                                  .leaf_rows = images,
                                  .in = 16,
                                  .out = 16,
                                  .height = 8,
                                  .width = 8};
    switch ((enum tess_work)sample->which) {
    case TESS_WORK_NORM:
    case TESS_WORK_NORM_BACKWARD:
        *desc = (struct tess_op_desc){.kind = TESS_OP_NORM,
                                      .dtype = dtype,
                                      .rows = rows,
                                      .leaf_rows = rows,
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
                                      .rows = rows,
                                      .leaf_rows = rows,
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
    const bool wide = work == TESS_WORK_ACCUMULATE || work == TESS_WORK_SQUARES;
    return (wide && type != TESS_PEAK_F32) || (work == TESS_WORK_CAST && type == TESS_PEAK_F32);
}

static enum tess_status work_measure(struct calibrate *calibrate, struct tess_sample sample)
{
    struct tess_op_desc desc;
    if (work_one_type((enum tess_work)sample.which, sample.type))
        return TESS_OK;
    calibrate->near_bytes[work_back(&sample) ? 1 : 0] =
        sample.size[0] * (double)tess_dtype_bytes(work_dtype(&sample));
    if (!work_desc(&sample, &desc))
        return calibrate_measure(calibrate, sample, work_plain);
    if (sample.which == TESS_WORK_MAX_POOL_BACKWARD) { /* the greatest of each four */
        uint8_t *which = (uint8_t *)calibrate_part(calibrate, 5);
        for (int64_t i = 0; i < work_count(&sample) / 4; i++)
            which[i] = (uint8_t)(calibrate->id[i % CALIBRATE_IDS] & 3);
    }
    return calibrate_op(calibrate, &desc, sample, work_opened);
}

enum tess_status calibrate_works(struct calibrate *calibrate, enum tess_peak_type type)
{
    static const double count[] = {TESS_PROFILE_NEAR, TESS_PROFILE_FAR};
    for (int work = 0; work < TESS_WORK_COUNT; work++)
        for (int i = 0; i < 2; i++)
            TESS_TRY(work_measure(calibrate, (struct tess_sample){.kind = TESS_SAMPLE_WORK,
                                                                  .type = type,
                                                                  .which = work,
                                                                  .size = {count[i]}}));
    return TESS_OK;
}
