/*
 * Own loops of what a sequence does position by position: rows of an embedding table, rotary
 * positions, and one position of attention against those before it.
 */
#include "cpu/loops/loops.h"

#include "cpu/loops/loops_math.h"
#include "ref/ref.h"

#include <string.h>

/* ---- embedding ------------------------------------------------------------------------------ */

CPU_INLINE void place_row_block(enum tess_dtype dtype, int64_t c, int64_t count,
                                const struct cpu_embedding *e, int64_t index, int64_t row)
{
    float value[CPU_BLOCK] = {0}, add[CPU_BLOCK];
    int64_t width = e->desc->out, to = row * width + c;
    if (index >= 0 && index < e->desc->in)
        cpu_read(dtype, e->table, index * width + c, count, value);
    if (e->add != NULL) {
        cpu_read(dtype, e->add, to, count, add);
        for (int64_t i = 0; i < count; i++)
            value[i] += add[i];
    }
    cpu_write(dtype, e->y, to, count, value);
}

CPU_INLINE void place_rows(enum tess_dtype dtype, const struct cpu_embedding *e, int64_t first,
                           int64_t rows)
{
    const struct tess_op_desc *d = e->desc;
    for (int64_t row = first; row < first + rows; row++) {
        int64_t index = (e->token != NULL ? (int64_t)e->token[row] : row % d->length) - e->first;
        CPU_BLOCKS(dtype, d->out, place_row_block, e, index, row);
    }
}

void CPU_LOOP(embedding_forward)(const void *arguments, int64_t first, int64_t rows)
{
    const struct cpu_embedding *e = arguments;
    CPU_BY_DTYPE(e->desc->dtype, place_rows, e, first, rows);
}

/* ---- rotary positions ----------------------------------------------------------------------- */

/*
 * Sine and cosine of angle[count], in f64 without branches or calls: the angle less the nearest
 * multiple of pi / 2, in three parts (Cody and Waite 1980; exact for multiples below 2^20), then
 * Taylor's polynomials, whose next term is below 2e-9 at pi / 4.
 */
CPU_INLINE void place_turns(int64_t count, const double *angle, float *sine, float *cosine)
{
    const double shift = 0x1.8p52; /* its sum with n has n in the low bits */
    for (int64_t i = 0; i < count; i++) {
        double moved = angle[i] * 0x1.45f306dc9c883p-1 + shift, n = moved - shift;
        double r = angle[i] - n * 0x1.921fb544p+0;
        r -= n * 0x1.0b4611a6p-34;
        r -= n * 0x1.3198a2e037073p-69;
        uint64_t bits;
        memcpy(&bits, &moved, sizeof(bits));
        double z = r * r;
        double s =
            r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880))));
        double c =
            1 + z * (-1.0 / 2 +
                     z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 - z * (1.0 / 3628800)))));
        double swapped_s = bits & 1 ? c : s, swapped_c = bits & 1 ? s : c;
        sine[i] = (float)(bits & 2 ? -swapped_s : swapped_s);
        cosine[i] = (float)((bits + 1) & 2 ? -swapped_c : swapped_c);
    }
}

/* Up to CPU_BLOCK pairs (x[first + i], x[first + half + i]) of one head. */
CPU_INLINE void place_rotate(enum tess_dtype dtype, void *x, int64_t first, int64_t half,
                             int64_t count, const float *sine, const float *cosine)
{
    float a[CPU_BLOCK], b[CPU_BLOCK], turned[CPU_BLOCK];
    cpu_read(dtype, x, first, count, a);
    cpu_read(dtype, x, first + half, count, b);
    for (int64_t i = 0; i < count; i++) {
        turned[i] = a[i] * cosine[i] - b[i] * sine[i];
        b[i] = a[i] * sine[i] + b[i] * cosine[i];
    }
    cpu_write(dtype, x, first, count, turned);
    cpu_write(dtype, x, first + half, count, b);
}

/* Pairs first .. first + count - 1 of every head at positions begin .. end - 1 of all sequences. */
CPU_INLINE void place_rope_pairs(enum tess_dtype dtype, int64_t first, int64_t count,
                                 const struct cpu_rope *p, int64_t begin, int64_t end)
{
    double rate[CPU_BLOCK], angle[CPU_BLOCK];
    float sine[CPU_BLOCK], cosine[CPU_BLOCK];
    int64_t half = p->head_size / 2;
    const float size = p->rotary.amplitude > 0 ? p->rotary.amplitude : 1;
    for (int64_t i = 0; i < count; i++) {
        rate[i] = pow((double)p->rotary.base, -2.0 * (double)(first + i) / (double)p->head_size);
        rate[i] = tess_rotary_rate(&p->rotary, rate[i], (double)(first + i));
    }
    for (int64_t t = begin; t < end; t++) {
        for (int64_t i = 0; i < count; i++)
            angle[i] = (double)(p->first + t) * rate[i];
        place_turns(count, angle, sine, cosine);
        for (int64_t i = 0; i < count; i++) {
            sine[i] *= p->inverse ? -size : size;
            cosine[i] *= size;
        }
        for (int64_t row = t; row < p->rows; row += p->length)
            for (int32_t h = 0; h < p->heads; h++)
                place_rotate(dtype, p->x, row * p->stride + h * p->head_size + first, half, count,
                             sine, cosine);
    }
}

void CPU_LOOP(rope)(const void *arguments, int64_t first, int64_t count)
{
    const struct cpu_rope *p = arguments;
    CPU_BLOCKS_BY_DTYPE(p->dtype, p->head_size / 2, place_rope_pairs, p, first, first + count);
}

/* ---- one position of attention -------------------------------------------------------------- */

#define PLACE_SIZE 256 /* greatest head size; a larger one is left to ref */
#define PLACE_KEYS 64  /* positions at a time */

/* One head: q is its query in f32; k and v begin with the head's first element. */
struct place_head {
    const struct tess_op_desc *desc;
    const float *q;
    const void *k, *v;
    int64_t first;           /* element of k and v where the head begins */
    float max, weight, *sum; /* of what was seen; sum [D] */
};

CPU_INLINE void place_score(enum tess_dtype dtype, int64_t c, int64_t count,
                            const struct place_head *h, int64_t position, float *lane)
{
    float key[CPU_BLOCK];
    cpu_read(dtype, h->k, h->first + position * h->desc->kv_stride + c, count, key);
    for (int64_t i = 0; i < count; i++)
        lane[i] = fmaf(h->q[c + i], key[i], lane[i]);
}

CPU_INLINE void place_value(enum tess_dtype dtype, int64_t c, int64_t count,
                            const struct place_head *h, int64_t position, float p)
{
    float value[CPU_BLOCK];
    cpu_read(dtype, h->v, h->first + position * h->desc->kv_stride + c, count, value);
    for (int64_t i = 0; i < count; i++)
        h->sum[c + i] = fmaf(p, value[i], h->sum[c + i]);
}

/* Positions first .. first + count - 1: the softmax that grows with what it has seen. */
CPU_INLINE void place_keys(enum tess_dtype dtype, struct place_head *h, int64_t first,
                           int64_t count)
{
    float score[PLACE_KEYS], max = h->max, scale = 1.0f / sqrtf((float)h->desc->in);
    for (int64_t j = 0; j < count; j++) {
        float lane[CPU_BLOCK] = {0};
        CPU_BLOCKS(dtype, h->desc->in, place_score, h, first + j, lane);
        score[j] = cpu_lane_sum(lane) * scale;
        max = score[j] > max ? score[j] : max;
    }
    float fade = first == 0 ? 0.0f : cpu_exp(h->max - max);
    h->max = max;
    h->weight *= fade;
    for (int64_t c = 0; c < h->desc->in; c++)
        h->sum[c] *= fade;
    for (int64_t j = 0; j < count; j++) {
        float p = cpu_exp(score[j] - max);
        h->weight += p;
        CPU_BLOCKS(dtype, h->desc->in, place_value, h, first + j, p);
    }
}

CPU_INLINE void place_decode(enum tess_dtype dtype, const struct tess_op_desc *d, int64_t position,
                             const void *q, const void *k, const void *v, void *y)
{
    for (int64_t head = 0; head < d->heads; head++) {
        float query[PLACE_SIZE], sum[PLACE_SIZE] = {0};
        struct place_head h = {.desc = d,
                               .q = query,
                               .k = k,
                               .v = v,
                               .first = head / (d->heads / d->kv_heads) * d->in,
                               .max = -INFINITY,
                               .sum = sum};
        cpu_read(dtype, q, head * d->in, d->in, query);
        for (int64_t j = 0; j <= position; j += PLACE_KEYS)
            place_keys(dtype, &h, j, position + 1 - j < PLACE_KEYS ? position + 1 - j : PLACE_KEYS);
        for (int64_t c = 0; c < d->in; c++)
            sum[c] /= h.weight;
        cpu_write(dtype, y, head * d->in, d->in, sum);
    }
}

void CPU_LOOP(attention_decode)(struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                int64_t position, const void *q, const void *k, const void *v,
                                void *y)
{
    if (desc->in > PLACE_SIZE)
        tess_kernel_ref.attention_decode(kernel, desc, position, q, k, v, y);
    else
        CPU_BY_DTYPE(desc->dtype, place_decode, desc, position, q, k, v, y);
}
