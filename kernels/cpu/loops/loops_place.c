/*
 * Own loops of what a sequence does position by position: rows of an embedding table, rotary
 * positions.
 */
#include "cpu/loops/loops.h"

#include "cpu/loops/loops_math.h"

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
