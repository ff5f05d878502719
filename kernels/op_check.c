/* Which descriptions of operations make sense, for any backend. */
#include "kernel_open.h"

#include <math.h>
#include <stdio.h>

int64_t tess_op_output_size(int64_t size, int32_t window, int32_t stride, int32_t padding)
{
    int64_t room = size + 2 * (int64_t)padding - window;
    return room < 0 ? 0 : room / stride + 1;
}

double tess_op_square(const struct tess_op_desc *desc)
{
    const double length = (double)desc->length;
    const double before =
        desc->window > 0 && desc->window < desc->length ? length - (double)desc->window : 0;
    return length * length - before * before;
}

static const char *check_windowed(const struct tess_op_desc *d)
{
    if (d->window < 1 || d->stride < 1)
        return "window and stride must be at least 1";
    if (d->padding < 0 || d->padding >= d->window)
        return "padding must be at least 0 and smaller than the window";
    if (tess_op_output_size(d->height, d->window, d->stride, d->padding) < 1 ||
        tess_op_output_size(d->width, d->window, d->stride, d->padding) < 1)
        return "the window does not fit into the padded image";
    if (d->kind == TESS_OP_MAX_POOL && d->window > TESS_POOL_WINDOW_MAX)
        return "a max-pool window may be at most 15 wide (its positions are kept in a byte)";
    return NULL;
}

static bool check_is_sequence(enum tess_op_kind kind)
{
    return kind == TESS_OP_NORM || kind == TESS_OP_ATTENTION || kind == TESS_OP_EMBEDDING;
}

static const char *check_attention(const struct tess_op_desc *d)
{
    if (d->length < 1)
        return "attention needs sequences of at least 1 position";
    if (d->heads < 1 || d->kv_heads < 1)
        return "attention needs at least 1 head of each kind";
    if (d->heads % d->kv_heads != 0)
        return "the number of key and value heads must divide that of the heads";
    if (d->window < 0)
        return "the window of attention must not be negative";
    if (!(d->dropout >= 0 && d->dropout < 1))
        return "the dropout of attention must be at least 0 and less than 1";
    /* Divided, because the products may not fit. */
    if (d->q_stride / d->heads < d->in || d->kv_stride / d->kv_heads < d->in)
        return "a position's heads do not fit into its stride";
    return NULL;
}

static const char *check_sequence(const struct tess_op_desc *d)
{
    if (d->kind == TESS_OP_ATTENTION)
        return check_attention(d);
    if (d->kind == TESS_OP_NORM)
        return isfinite(d->epsilon) && d->epsilon >= 0
                   ? NULL
                   : "the epsilon of a norm must be finite and at least 0";
    if (d->out < 1)
        return "the table of an embedding must be at least 1 wide";
    return d->length < 0 ? "the length of a sequence must not be negative" : NULL;
}

static void check_sequence_why(const struct tess_op_desc *d, const char *fault, char *why,
                               size_t why_bytes)
{
    if (d->kind == TESS_OP_ATTENTION)
        snprintf(why, why_bytes,
                 "%s (rows %lld by %lld, length %lld, heads %d and %d of %lld, strides %lld and "
                 "%lld)",
                 fault, (long long)d->rows, (long long)d->leaf_rows, (long long)d->length,
                 (int)d->heads, (int)d->kv_heads, (long long)d->in, (long long)d->q_stride,
                 (long long)d->kv_stride);
    else
        snprintf(why, why_bytes,
                 "%s (rows %lld by %lld, in %lld, out %lld, length %lld, epsilon %g)", fault,
                 (long long)d->rows, (long long)d->leaf_rows, (long long)d->in, (long long)d->out,
                 (long long)d->length, (double)d->epsilon);
}

static const char *check_fault(const struct tess_op_desc *d)
{
    if ((int)d->kind < 0 || d->kind >= TESS_OP_KIND_COUNT)
        return "there is no operation of that kind";
    if (d->dtype != TESS_F32 && d->dtype != TESS_BF16 && d->dtype != TESS_F16)
        return "operations take f32, bf16 or f16 only";
    if (d->fp8 != TESS_FP8_OFF &&
        (d->kind != TESS_OP_LINEAR || d->dtype == TESS_F32 || d->f32_math))
        return "fp8 is for linear layers in bf16 or f16, and not together with products in f32";
    if (d->leaf_rows < 1 || d->rows < 0 || d->rows % d->leaf_rows != 0)
        return "rows must be a multiple of leaf_rows, which must be at least 1";
    if (d->in < 1)
        return "there must be at least 1 input feature or channel";
    if ((d->kind == TESS_OP_LINEAR || d->kind == TESS_OP_CONV2D) && d->out < 1)
        return "there must be at least 1 output feature or channel";
    if (d->kind == TESS_OP_LINEAR)
        return NULL;
    if (check_is_sequence(d->kind))
        return check_sequence(d);
    if (d->height < 1 || d->width < 1)
        return "height and width must be at least 1";
    return d->kind == TESS_OP_BATCH_NORM ? NULL : check_windowed(d);
}

bool tess_op_check(const struct tess_op_desc *desc, char *why, size_t why_bytes)
{
    const char *fault = check_fault(desc);
    if (fault != NULL && check_is_sequence(desc->kind))
        check_sequence_why(desc, fault, why, why_bytes);
    else if (fault != NULL)
        snprintf(why, why_bytes,
                 "%s (rows %lld by %lld, in %lld, out %lld, image %lld x %lld, window %d, stride "
                 "%d, padding %d)",
                 fault, (long long)desc->rows, (long long)desc->leaf_rows, (long long)desc->in,
                 (long long)desc->out, (long long)desc->height, (long long)desc->width,
                 (int)desc->window, (int)desc->stride, (int)desc->padding);
    return fault == NULL;
}
