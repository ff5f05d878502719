/*
 * Causal attention of ref: one head of one sequence at a time, its rows copied together in f32, and
 * one row of scores at a time. exp and the sums of it are taken in f64.
 */
#include "ref/mask.h"
#include "ref/slots.h"
#include "ref/stage.h"
#include "tessera/check.h"

#include <math.h>
#include <string.h>

struct attention_scratch {
    float *q, *k, *v, *y, *dy; /* one head of one sequence [T, D] */
    float *dq, *dk, *dv;       /* [T, D]; dk and dv of a key and value head */
    float *score;              /* [T] */
    size_t bytes;
};

static struct attention_scratch attention_layout(const struct tess_op_desc *d, void *base)
{
    struct ref_scratch scratch = {.base = base};
    size_t head = (size_t)(d->length * d->in) * sizeof(float);
    struct attention_scratch s = {
        .q = ref_take(&scratch, head),
        .k = ref_take(&scratch, head),
        .v = ref_take(&scratch, head),
        .y = ref_take(&scratch, head),
        .dy = ref_take(&scratch, head),
        .dq = ref_take(&scratch, head),
        .dk = ref_take(&scratch, head),
        .dv = ref_take(&scratch, head),
        .score = ref_take(&scratch, (size_t)d->length * sizeof(float)),
    };
    s.bytes = scratch.used;
    return s;
}

/* One head of a sequence, positions `stride` apart -> `head` [T, D]; and back. */
static void attention_gather(const struct tess_op_desc *d, const void *source, int64_t first,
                             int64_t stride, float *head)
{
    for (int64_t t = 0; t < d->length; t++) {
        float *to = head + t * d->in;
        const float *from = ref_read(d->dtype, source, first + t * stride, d->in, to);
        if (from != to)
            memcpy(to, from, (size_t)d->in * sizeof(float));
    }
}

static void attention_scatter(const struct tess_op_desc *d, const float *head, void *target,
                              int64_t first, int64_t stride)
{
    for (int64_t t = 0; t < d->length; t++) {
        const float *from = head + t * d->in;
        float *to = ref_target(d->dtype, target, first + t * stride, NULL);
        if (d->dtype == TESS_F32)
            memcpy(to, from, (size_t)d->in * sizeof(float));
        ref_write(d->dtype, target, first + t * stride, d->in, from);
    }
}

static float attention_dot(const float *a, const float *b, int64_t count)
{
    float lane[REF_LANES] = {0};
    ref_dot(lane, a, b, count);
    return ref_lane_sum(lane);
}

static float attention_scale(const struct tess_op_desc *d)
{
    return (float)(1.0 / sqrt((double)d->in));
}

/* The first position that position i sees. */
static int64_t attention_first(const struct tess_op_desc *d, int64_t i)
{
    return d->window > 0 && i >= d->window ? i - d->window + 1 : 0;
}

/* What dropout multiplies the probabilities of a head of a sequence with. */
struct attention_mask {
    const struct tess_attention_drop *drop;
    struct tess_rng_key key;
    uint32_t limit;
    float scale; /* of what is kept */
    int64_t position;
    int32_t head;
};

static struct attention_mask attention_mask(const struct tess_op *op, int64_t sequence,
                                            int64_t head)
{
    return (struct attention_mask){.drop = &op->drop,
                                   .key = tess__mask_key(op->drop.key),
                                   .limit = tess__mask_limit(op->desc.dropout),
                                   .scale = 1.0f / (1.0f - op->desc.dropout),
                                   .position = sequence * op->desc.length,
                                   .head = (int32_t)head};
}

static float attention_keep(const struct attention_mask *m, int64_t i, int64_t j)
{
    if (!m->drop->on)
        return 1;
    const uint64_t row = tess__mask_row(m->drop, (uint64_t)(m->position + i), m->head);
    return tess__mask_keeps(tess__mask_word(m->key, row, j), m->limit) ? m->scale : 0;
}

/* y and lse of one head, whose q, k, v were gathered. */
static void attention_forward_head(const struct tess_op_desc *d, const struct attention_scratch *s,
                                   const struct attention_mask *mask, float *lse)
{
    float scale = attention_scale(d);
    for (int64_t i = 0; i < d->length; i++) {
        const int64_t first = attention_first(d, i);
        float max = -INFINITY, *y = s->y + i * d->in;
        double sum = 0;
        for (int64_t j = first; j <= i; j++) {
            s->score[j] = attention_dot(s->q + i * d->in, s->k + j * d->in, d->in) * scale;
            max = s->score[j] > max ? s->score[j] : max;
        }
        for (int64_t j = first; j <= i; j++)
            sum += exp((double)s->score[j] - (double)max);
        memset(y, 0, (size_t)d->in * sizeof(float));
        for (int64_t j = first; j <= i; j++)
            ref_axpy(y,
                     (float)(exp((double)s->score[j] - (double)max) / sum) *
                         attention_keep(mask, i, j),
                     s->v + j * d->in, d->in);
        lse[i] = (float)((double)max + log(sum));
    }
}

enum tess_status tess__ref_attention_forward(struct tess_op *op, const void *q, const void *k,
                                             const void *v, void *y, float *lse)
{
    const struct tess_op_desc *d = &op->desc;
    struct attention_scratch s = attention_layout(d, op->scratch);
    int64_t y_stride = d->heads * d->in;
    for (int64_t b = 0; b < d->rows; b++) {
        for (int32_t h = 0; h < d->heads; h++) {
            int64_t kv = (int64_t)(h / (d->heads / d->kv_heads)) * d->in;
            int64_t kv_first = b * d->length * d->kv_stride + kv, head = h * d->in;
            attention_gather(d, q, b * d->length * d->q_stride + head, d->q_stride, s.q);
            attention_gather(d, k, kv_first, d->kv_stride, s.k);
            attention_gather(d, v, kv_first, d->kv_stride, s.v);
            const struct attention_mask mask = attention_mask(op, b, h);
            attention_forward_head(d, &s, &mask, lse + (b * d->heads + h) * d->length);
            attention_scatter(d, s.y, y, b * d->length * y_stride + head, y_stride);
        }
    }
    return TESS_OK;
}

/*
 * One head, whose q, k, v, y, dy were gathered: overwrites its dq, adds to dk and dv. With p =
 * exp(s
 * - lse) and D = dy . y:
 *   dv[j] += p dy[i],  ds = p (dy[i] . v[j] - D[i]) / sqrt(D),  dq[i] += ds k[j],  dk[j] += ds q[i]
 * where dropout multiplies p in dv, and dy . v.
 */
static void attention_backward_head(const struct tess_op_desc *d, const struct attention_scratch *s,
                                    const struct attention_mask *mask, const float *lse)
{
    float scale = attention_scale(d);
    int64_t n = d->in;
    memset(s->dq, 0, (size_t)(d->length * n) * sizeof(float));
    for (int64_t i = 0; i < d->length; i++) {
        const float *q = s->q + i * n, *dy = s->dy + i * n;
        float product = attention_dot(dy, s->y + i * n, n);
        for (int64_t j = attention_first(d, i); j <= i; j++) {
            const float *k = s->k + j * n;
            float score = attention_dot(q, k, n) * scale;
            float p = (float)exp((double)score - (double)lse[i]);
            float keep = attention_keep(mask, i, j);
            float ds = p * (attention_dot(dy, s->v + j * n, n) * keep - product) * scale;
            ref_axpy(s->dv + j * n, p * keep, dy, n);
            ref_axpy(s->dq + i * n, ds, k, n);
            ref_axpy(s->dk + j * n, ds, q, n);
        }
    }
}

enum tess_status tess__ref_attention_backward(struct tess_op *op, const void *q, const void *k,
                                              const void *v, const void *y, const void *dy,
                                              const float *lse, void *dq, void *dk, void *dv)
{
    const struct tess_op_desc *d = &op->desc;
    struct attention_scratch s = attention_layout(d, op->scratch);
    int64_t y_stride = d->heads * d->in, group = d->heads / d->kv_heads;
    size_t head_bytes = (size_t)(d->length * d->in) * sizeof(float);
    for (int64_t b = 0; b < d->rows; b++) {
        int64_t q_base = b * d->length * d->q_stride, y_base = b * d->length * y_stride;
        for (int64_t kv = 0; kv < d->kv_heads; kv++) {
            int64_t kv_first = b * d->length * d->kv_stride + kv * d->in;
            attention_gather(d, k, kv_first, d->kv_stride, s.k);
            attention_gather(d, v, kv_first, d->kv_stride, s.v);
            memset(s.dk, 0, head_bytes);
            memset(s.dv, 0, head_bytes);
            for (int64_t h = kv * group; h < (kv + 1) * group; h++) {
                attention_gather(d, q, q_base + h * d->in, d->q_stride, s.q);
                attention_gather(d, y, y_base + h * d->in, y_stride, s.y);
                attention_gather(d, dy, y_base + h * d->in, y_stride, s.dy);
                const struct attention_mask mask = attention_mask(op, b, h);
                attention_backward_head(d, &s, &mask, lse + (b * d->heads + h) * d->length);
                attention_scatter(d, s.dq, dq, q_base + h * d->in, d->q_stride);
            }
            attention_scatter(d, s.dk, dk, kv_first, d->kv_stride);
            attention_scatter(d, s.dv, dv, kv_first, d->kv_stride);
        }
    }
    return TESS_OK;
}

/* ---- documents --------------------------------------------------------------------------------
 * By the operation's own backend, so that what has no such slot takes these.
 */

/* An operation for one of the documents: what it needs is at most what the whole needs. */
static struct tess_op attention_document(const struct tess_op *op, const int32_t *begin)
{
    struct tess_op one = *op;
    one.desc.rows = one.desc.leaf_rows = 1;
    one.desc.length = begin[1] - begin[0];
    one.drop.position += (uint64_t)begin[0];
    return one;
}

enum tess_status tess__ref_attention_forward_documents(struct tess_op *op, const int32_t *begin,
                                                       int32_t count, const void *q, const void *k,
                                                       const void *v, void *y, float *lse)
{
    const struct tess_op_desc *d = &op->desc;
    const int64_t word = (int64_t)tess_dtype_bytes(d->dtype);
    for (int32_t i = 0; i < count; i++) {
        struct tess_op one = attention_document(op, begin + i);
        const int64_t kv = begin[i] * d->kv_stride * word;
        TESS_TRY(op->kernel->ops->attention_forward(
            &one, (const char *)q + begin[i] * d->q_stride * word, (const char *)k + kv,
            (const char *)v + kv, (char *)y + begin[i] * d->heads * d->in * word,
            lse + (int64_t)begin[i] * d->heads));
    }
    return TESS_OK;
}

enum tess_status tess__ref_attention_backward_documents(struct tess_op *op, const int32_t *begin,
                                                        int32_t count, const void *q, const void *k,
                                                        const void *v, const void *y,
                                                        const void *dy, const float *lse, void *dq,
                                                        void *dk, void *dv)
{
    const struct tess_op_desc *d = &op->desc;
    const int64_t word = (int64_t)tess_dtype_bytes(d->dtype);
    for (int32_t i = 0; i < count; i++) {
        struct tess_op one = attention_document(op, begin + i);
        const int64_t at = begin[i] * d->q_stride * word, kv = begin[i] * d->kv_stride * word;
        const int64_t out = begin[i] * d->heads * d->in * word;
        TESS_TRY(op->kernel->ops->attention_backward(
            &one, (const char *)q + at, (const char *)k + kv, (const char *)v + kv,
            (const char *)y + out, (const char *)dy + out, lse + (int64_t)begin[i] * d->heads,
            (char *)dq + at, (char *)dk + kv, (char *)dv + kv));
    }
    return TESS_OK;
}

/* ---- positions against what was kept --------------------------------------------------------- */

/* Of a head: its query, key and value in f32, its result; scores and exp of them [T]. */
struct attention_kept {
    float *q, *kv, *y, *score;
    double *weight;
    size_t bytes;
};

static struct attention_kept attention_kept(const struct tess_op_desc *d, void *base)
{
    struct ref_scratch scratch = {.base = base};
    struct attention_kept s = {
        .q = ref_take(&scratch, (size_t)d->in * sizeof(float)),
        .kv = ref_take(&scratch, (size_t)d->in * sizeof(float)),
        .y = ref_take(&scratch, (size_t)d->in * sizeof(float)),
        .score = ref_take(&scratch, (size_t)d->length * sizeof(float)),
        .weight = ref_take(&scratch, (size_t)d->length * sizeof(double)),
    };
    s.bytes = scratch.used;
    return s;
}

/* One head at one position, as attention_forward_head() has it; q and y start at elements q_first
 * and y_first, k and v at kv_first. */
static void attention_decode_head(const struct tess_op_desc *d, const struct attention_kept *s,
                                  int64_t position, const void *q, int64_t q_first, const void *k,
                                  const void *v, int64_t kv_first, void *y, int64_t y_first)
{
    const float *query = ref_read(d->dtype, q, q_first, d->in, s->q), scale = attention_scale(d);
    const int64_t first = attention_first(d, position);
    float max = -INFINITY, *to = ref_target(d->dtype, y, y_first, s->y);
    double sum = 0;
    for (int64_t j = first; j <= position; j++) {
        const float *key = ref_read(d->dtype, k, kv_first + j * d->kv_stride, d->in, s->kv);
        s->score[j] = attention_dot(query, key, d->in) * scale;
        max = s->score[j] > max ? s->score[j] : max;
    }
    for (int64_t j = first; j <= position; j++) {
        s->weight[j] = exp((double)s->score[j] - (double)max);
        sum += s->weight[j];
    }
    memset(to, 0, (size_t)d->in * sizeof(float));
    for (int64_t j = first; j <= position; j++)
        ref_axpy(to, (float)(s->weight[j] / sum),
                 ref_read(d->dtype, v, kv_first + j * d->kv_stride, d->in, s->kv), d->in);
    ref_write(d->dtype, y, y_first, d->in, to);
}

enum tess_status tess__ref_attention_decode(struct tess_op *op, int64_t first, int64_t count,
                                            const void *q, const void *k, const void *v, void *y)
{
    const struct tess_op_desc *d = &op->desc;
    const struct attention_kept s = attention_kept(d, op->scratch);
    for (int64_t i = 0; i < count; i++)
        for (int64_t h = 0; h < d->heads; h++)
            attention_decode_head(d, &s, first + i, q, i * d->q_stride + h * d->in, k, v,
                                  h / (d->heads / d->kv_heads) * d->in, y,
                                  (i * d->heads + h) * d->in);
    return TESS_OK;
}

size_t tess__ref_attention_scratch(const struct tess_op_desc *desc)
{
    return desc->decode ? attention_kept(desc, NULL).bytes : attention_layout(desc, NULL).bytes;
}
