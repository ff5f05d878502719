/*
 * Embedding tables of ref. The gradient is made token by token: rows are sorted by token, and for
 * each token the tree over leaves is walked through those leaves only that have it. The others'
 * sums are +0, which changes nothing: a sum that began with +0 is never -0.
 */
#include "ref/fold.h"
#include "ref/ref.h"
#include "ref/slots.h"
#include "ref/stage.h"

#include <string.h>

struct embedding_scratch {
    float *table, *add, *y; /* f32 copies of one row [out] */
    int64_t *end;           /* [in]: token t has order[end[t - 1] .. end[t]) */
    int64_t *order;         /* [rows]: rows by token, those of a token in order */
    void *room;             /* struct embedding_room */
    size_t bytes;
};

/* Of a thread that computes rows of the gradient. */
struct embedding_room {
    float *copy;  /* one row [out] in f32 */
    float *spare; /* one row [out] for each level of the tree */
    size_t bytes;
};

static struct embedding_room embedding_room(const struct tess_op_desc *d, void *base)
{
    struct ref_scratch scratch = {.base = base};
    struct embedding_room r = {
        .copy = ref_take_copy(&scratch, d->dtype, d->out),
        .spare = ref_take(&scratch, tess__fold_bytes(d->out, d->rows / d->leaf_rows)),
    };
    r.bytes = scratch.used;
    return r;
}

static struct embedding_scratch embedding_layout(const struct tess_op_desc *d, void *base)
{
    struct ref_scratch scratch = {.base = base};
    struct embedding_scratch s = {
        .table = ref_take_copy(&scratch, d->dtype, d->out),
        .add = ref_take_copy(&scratch, d->dtype, d->out),
        .y = ref_take_copy(&scratch, d->dtype, d->out),
        .end = ref_take(&scratch, (size_t)d->in * sizeof(int64_t)),
        .order = ref_take(&scratch, (size_t)d->rows * sizeof(int64_t)),
        .room = ref_take(&scratch, embedding_room(d, NULL).bytes),
    };
    s.bytes = scratch.used;
    return s;
}

size_t tess__ref_embedding_scratch(const struct tess_op_desc *desc)
{
    return embedding_layout(desc, NULL).bytes;
}

/* The row of the table for row i, or -1. */
static int64_t embedding_index(const struct tess_op_desc *d, const int32_t *token, int64_t first,
                               int64_t i)
{
    int64_t index = (token != NULL ? (int64_t)token[i] : i % d->length) - first;
    return index >= 0 && index < d->in ? index : -1;
}

enum tess_status tess__ref_embedding_forward(struct tess_op *op, const int32_t *token,
                                             int64_t first, const void *table, const void *add,
                                             void *y)
{
    const struct tess_op_desc *d = &op->desc;
    struct embedding_scratch s = embedding_layout(d, op->scratch);
    for (int64_t i = 0; i < d->rows; i++) {
        int64_t index = embedding_index(d, token, first, i);
        const float *table32 =
            index < 0 ? NULL : ref_read(d->dtype, table, index * d->out, d->out, s.table);
        const float *add32 =
            add != NULL ? ref_read(d->dtype, add, i * d->out, d->out, s.add) : NULL;
        float *y32 = ref_target(d->dtype, y, i * d->out, s.y);
        for (int64_t c = 0; c < d->out; c++)
            y32[c] = (table32 != NULL ? table32[c] : 0.0f) + (add32 != NULL ? add32[c] : 0.0f);
        ref_write(d->dtype, y, i * d->out, d->out, y32);
    }
    return TESS_OK;
}

size_t tess__ref_embedding_row_scratch(const struct tess_op_desc *desc)
{
    return embedding_room(desc, NULL).bytes;
}

void *tess__ref_embedding_row_room(const struct tess_op *op)
{
    const struct tess_op_desc *d = &op->desc;
    return embedding_room(d, NULL).bytes > 0 ? embedding_layout(d, op->scratch).room : NULL;
}

/* A counting sort: fills end and order. */
void tess__ref_embedding_sort(const struct tess_op *op, const int32_t *token, int64_t first)
{
    const struct tess_op_desc *d = &op->desc;
    const struct embedding_scratch scratch = embedding_layout(d, op->scratch), *s = &scratch;
    memset(s->end, 0, (size_t)d->in * sizeof(int64_t));
    for (int64_t i = 0; i < d->rows; i++) {
        int64_t index = embedding_index(d, token, first, i);
        if (index >= 0)
            s->end[index]++;
    }
    int64_t placed = 0;
    for (int64_t t = 0; t < d->in; t++) {
        int64_t count = s->end[t];
        s->end[t] = placed; /* its first place; placing its rows moves it to their end */
        placed += count;
    }
    for (int64_t i = 0; i < d->rows; i++) {
        int64_t index = embedding_index(d, token, first, i);
        if (index >= 0)
            s->order[s->end[index]++] = i;
    }
}

/*
 * The tree over the `leaves` leaves from leaf_first on, of one token that has the rows row [count],
 * sorted and all within. sum [out] is overwritten; `spare` has a row for each level where both
 * halves have the token.
 */
static void embedding_tree(const struct tess_op_desc *d, const void *dy, const int64_t *row,
                           int64_t count, int64_t leaf_first, int64_t leaves, float *sum,
                           float *spare, float *copy)
{
    while (leaves > 1) {
        int64_t left = 1, in_left = 0;
        while (left * 2 < leaves)
            left *= 2;
        while (in_left < count && row[in_left] < (leaf_first + left) * d->leaf_rows)
            in_left++;
        if (in_left > 0 && in_left < count) {
            embedding_tree(d, dy, row, in_left, leaf_first, left, sum, spare, copy);
            embedding_tree(d, dy, row + in_left, count - in_left, leaf_first + left, leaves - left,
                           spare, spare + d->out, copy);
            ref_axpy(sum, 1.0f, spare, d->out);
            return;
        }
        leaf_first += in_left > 0 ? 0 : left;
        leaves = in_left > 0 ? left : leaves - left;
    }
    memset(sum, 0, (size_t)d->out * sizeof(float));
    for (int64_t i = 0; i < count; i++)
        ref_axpy(sum, 1.0f, ref_read(d->dtype, dy, row[i] * d->out, d->out, copy), d->out);
}

void tess__ref_embedding_rows(const struct tess_op *op, const void *dy, int64_t first,
                              int64_t count, void *room, float *dtable)
{
    const struct tess_op_desc *d = &op->desc;
    const struct embedding_scratch s = embedding_layout(d, op->scratch);
    const struct embedding_room r = embedding_room(d, room);
    int64_t begin = first > 0 ? s.end[first - 1] : 0;
    for (int64_t t = first; t < first + count; t++) {
        float *sum = dtable + t * d->out;
        if (s.end[t] == begin)
            memset(sum, 0, (size_t)d->out * sizeof(float));
        else
            embedding_tree(d, dy, s.order + begin, s.end[t] - begin, 0, d->rows / d->leaf_rows, sum,
                           r.spare, r.copy);
        begin = s.end[t];
    }
}

enum tess_status tess__ref_embedding_backward(struct tess_op *op, const int32_t *token,
                                              int64_t first, const void *dy, float *dtable)
{
    tess__ref_embedding_sort(op, token, first);
    tess__ref_embedding_rows(op, dy, 0, op->desc.in, tess__ref_embedding_row_room(op), dtable);
    return TESS_OK;
}
