/* What linear layers and convolutions need; see products.h. */
#include "needs/products.h"

/* Of the windows of a chunk, in f32: above it products gain nothing from more rows, and it fits
 * beside what a step keeps. */
#define CONV_CHUNK_BYTES ((int64_t)64 << 20)

size_t tess__cuda_tree_bytes(int64_t count, int64_t leaves, bool onto)
{
    /* While subtree i is made, those waiting are the one bits of i, and it stands above them; the
       lowest of all is the target. */
    size_t positions = 0;
    for (int64_t last = (onto ? (leaves + 1) / 2 : leaves) - 1; last > 0; last >>= 1)
        positions++;
    return positions * (size_t)tess__cuda_tree_stride(count) * sizeof(float);
}

/* ---- linear layers --------------------------------------------------------------------------- */

struct linear_room tess__cuda_linear_room(const struct tess_op_desc *d, void *scratch)
{
    struct cuda_room room = {.base = scratch};
    struct linear_room r = {0};
    const int64_t leaves = d->rows / d->leaf_rows;
    const size_t weights = (size_t)(d->out * d->in) * sizeof(float);
    const size_t bias = (size_t)d->out * sizeof(float);
    if (linear_is_wide(d)) {
        r.x = tess__cuda_take(&room, (size_t)(d->leaf_rows * d->in) * sizeof(float));
        r.w = tess__cuda_take(&room, weights);
        r.y = tess__cuda_take(&room, (size_t)(d->leaf_rows * d->out) * sizeof(float));
        r.bias = tess__cuda_take(&room, bias);
    }
    if (linear_is_narrow(d)) {
        r.narrow_x = tess__cuda_take(&room, (size_t)(d->leaf_rows * d->in));
        r.narrow_dy = tess__cuda_take(&room, (size_t)(d->leaf_rows * d->out));
        r.narrow_dy_turned = tess__cuda_take(&room, (size_t)(d->leaf_rows * d->out));
    }
    r.tree = tess__cuda_take(&room, tess__cuda_tree_bytes(d->out * d->in, leaves, true));
    r.bias_tree = tess__cuda_take(&room, tess__cuda_tree_bytes(d->out, leaves, false));
    r.columns =
        tess__cuda_take(&room, tess__cuda_column_sum_bytes(d->dtype, leaves, d->leaf_rows, d->out));
    r.sum = tess__cuda_take(&room, d->add_grad && leaves > 1 ? weights : 0);
    r.bias_sum = tess__cuda_take(&room, d->add_grad ? bias : 0);
    r.bytes = room.used;
    return r;
}

struct cuda_fp8_weights tess__cuda_fp8_weights(const struct tess_op_desc *desc, void *packed)
{
    struct cuda_room room = {.base = packed};
    struct cuda_fp8_weights weights = {
        .plain = tess__cuda_take(&room, (size_t)(desc->out * desc->in)),
        .turned = tess__cuda_take(&room, desc->input_grad ? (size_t)(desc->out * desc->in) : 0),
    };
    weights.bytes = room.used;
    return weights;
}

enum tess_status tess__cuda_linear_needs(const struct tess_op_desc *desc,
                                         struct tess_op_needs *needs_out)
{
    needs_out->scratch_bytes = tess__cuda_linear_room(desc, NULL).bytes;
    if (linear_is_narrow(desc))
        needs_out->packed_bytes = tess__cuda_fp8_weights(desc, NULL).bytes;
    return TESS_OK;
}

/* ---- convolutions ---------------------------------------------------------------------------- */

struct conv_size tess__cuda_conv_size(const struct tess_op_desc *d)
{
    struct conv_size n = {
        .out_height = tess_op_output_size(d->height, d->window, d->stride, d->padding),
        .out_width = tess_op_output_size(d->width, d->window, d->stride, d->padding),
        .x = d->height * d->width * d->in,
        .inner = (int64_t)d->window * d->window * d->in,
        .plain = d->window == 1 && d->stride == 1 && d->padding == 0,
        .wide = d->f32_math && d->dtype != TESS_F32,
    };
    n.places = n.out_height * n.out_width;
    n.y = n.places * d->out;
    n.weights = d->out * n.inner;
    const int64_t bytes = n.places * n.inner * (int64_t)sizeof(float);
    const int64_t most = n.plain && !n.wide         ? d->leaf_rows
                         : bytes > CONV_CHUNK_BYTES ? 1
                                                    : CONV_CHUNK_BYTES / bytes;
    n.chunk = d->leaf_rows < most ? d->leaf_rows : most;
    while (d->leaf_rows % n.chunk != 0)
        n.chunk--;
    return n;
}

struct conv_room tess__cuda_conv_room(const struct tess_op_desc *d, void *scratch)
{
    const struct conv_size n = tess__cuda_conv_size(d);
    const int64_t leaves = d->rows / d->leaf_rows;
    const size_t word = sizeof(float);
    struct cuda_room room = {.base = scratch};
    struct conv_room r = {.n = n, .word = tess_dtype_bytes(d->dtype)};
    if (n.wide) {
        r.x = tess__cuda_take(&room, (size_t)(n.chunk * n.x) * word);
        r.y = tess__cuda_take(&room, (size_t)(n.chunk * n.y) * word);
        r.w = tess__cuda_take(&room, (size_t)n.weights * word);
        r.bias = tess__cuda_take(&room, (size_t)d->out * word);
    }
    if (!n.plain)
        r.windows = tess__cuda_take(&room, (size_t)(n.chunk * n.places * n.inner) * word);
    /* What cuDNN gives is never added to a sibling in place: room for the larger of the two. */
    r.tree = tess__cuda_take(&room, tess__cuda_tree_bytes(n.weights, leaves, false));
    r.columns = tess__cuda_take(
        &room, tess__cuda_column_sum_bytes(d->dtype, leaves, d->leaf_rows * n.places, d->out));
    r.bytes = room.used;
    return r;
}

enum tess_status tess__cuda_conv_needs(const struct tess_op_desc *desc,
                                       struct tess_op_needs *needs_out)
{
    needs_out->scratch_bytes = tess__cuda_conv_room(desc, NULL).bytes;
    return TESS_OK;
}
