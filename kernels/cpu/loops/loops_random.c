/*
 * Own loops that draw random numbers: dropout, stochastic rounding and normals, with Philox for
 * CPU_BLOCK words at once (philox.h). The bits are those of ref (ref/mask.h, ref/stochastic.h,
 * base/normal.h).
 */
#include "cpu/loops/loops.h"

#include "cpu/loops/normal_wide.h"
#include "cpu/own/stage.h"
#include "cpu/philox.h"
#include "ref/mask.h"
#include "ref/ref.h"
#include "ref/stochastic.h"

/* Whole blocks go to `whole`, and to ref what does not fill a block of Philox, and of lanes. */
static void random_split(const struct cpu_plain *p, cpu_plain_loop *whole, cpu_plain_loop *ref)
{
    int64_t head = (int64_t)(-p->first % 4);
    head = head < p->count ? head : p->count;
    int64_t middle = (p->count - head) / CPU_BLOCK * CPU_BLOCK, tail = head + middle;
    struct cpu_plain before = cpu_plain_piece(p, 0, head),
                     blocks = cpu_plain_piece(p, head, middle);
    struct cpu_plain behind = cpu_plain_piece(p, tail, p->count - tail);
    ref(&before);
    whole(&blocks);
    ref(&behind);
}

CPU_INLINE void random_dropout(enum tess_dtype dtype, const struct cpu_plain *p)
{
    struct tess_rng_key key = tess__mask_key(p->key);
    uint32_t limit = tess__mask_limit(p->number);
    float divisor = 1.0f - p->number;
    for (int64_t done = 0; done < p->count; done += CPU_BLOCK) {
        uint32_t word[CPU_BLOCK];
        float value[CPU_BLOCK];
        cpu_philox(key, (p->first + (uint64_t)done) / 4, word);
        cpu_read(dtype, p->in[0], done, CPU_BLOCK, value);
        for (int64_t i = 0; i < CPU_BLOCK; i++)
            value[i] = tess__mask_keeps(word[i], limit) ? value[i] / divisor : 0.0f;
        cpu_write(dtype, p->out[0], done, CPU_BLOCK, value);
    }
}

static void random_dropout_whole(const struct cpu_plain *p)
{
    CPU_BY_DTYPE(p->from, random_dropout, p);
}

static void random_dropout_ref(const struct cpu_plain *p)
{
    tess_kernel_ref.dropout(NULL, p->from, 1, p->count, p->count, p->number, p->key, p->first,
                            p->in[0], p->out[0]);
}

void CPU_LOOP(dropout)(const struct cpu_plain *p)
{
    random_split(p, random_dropout_whole, random_dropout_ref);
}

/* The counter of the next four elements of rows that are whole blocks of Philox. */
struct random_quad {
    uint64_t counter, gap; /* to the next row */
    int64_t left, of_row;
};

CPU_INLINE void random_drop_quads(enum tess_dtype dtype, const struct cpu_dropout *d,
                                  struct random_quad *quad, int64_t at, int64_t count)
{
    const float divisor = 1.0f - d->rate;
    const uint32_t limit = tess__mask_limit(d->rate);
    uint64_t counter[CPU_PHILOX_LANES];
    uint32_t word[CPU_BLOCK];
    float value[CPU_BLOCK];
    for (int l = 0; l < CPU_PHILOX_LANES; l++) {
        counter[l] = quad->counter++;
        if (--quad->left == 0) {
            quad->counter += quad->gap;
            quad->left = quad->of_row;
        }
    }
    cpu_philox_of(tess__mask_key(d->key), counter, word);
    cpu_read(dtype, d->x, at, count, value);
    for (int64_t i = 0; i < count; i++)
        value[i] = tess__mask_keeps(word[i], limit) ? value[i] / divisor : 0.0f;
    cpu_write(dtype, d->y, at, count, value);
}

CPU_INLINE void random_drop_rows(enum tess_dtype dtype, const struct cpu_dropout *d, int64_t row,
                                 int64_t rows)
{
    struct random_quad quad = {.counter = (d->first + (uint64_t)(row * d->stride)) / 4,
                               .gap = (uint64_t)(d->stride - d->width) / 4,
                               .left = d->width / 4,
                               .of_row = d->width / 4};
    int64_t at = row * d->width;
    const int64_t end = at + rows * d->width;
    for (; at + CPU_BLOCK <= end; at += CPU_BLOCK)
        random_drop_quads(dtype, d, &quad, at, CPU_BLOCK);
    if (at < end)
        random_drop_quads(dtype, d, &quad, at, end - at);
}

void CPU_LOOP(dropout_rows)(const void *arguments, int64_t first, int64_t rows)
{
    const struct cpu_dropout *d = arguments;
    const int64_t at = first * d->width * (int64_t)tess_dtype_bytes(d->dtype);
    if ((d->width | d->stride | (int64_t)d->first) % 4 == 0)
        CPU_BY_DTYPE(d->dtype, random_drop_rows, d, first, rows);
    else
        tess_kernel_ref.dropout(NULL, d->dtype, rows, d->width, d->stride, d->rate, d->key,
                                d->first + (uint64_t)(first * d->stride), (const char *)d->x + at,
                                (char *)d->y + at);
}

/* The first and the last of a block of Philox, and what does not fill the lanes, are ref's. */
void CPU_LOOP(normal)(const uint32_t key[2], uint64_t first, int64_t count, float mean,
                      float deviation, float *y)
{
    int64_t head = (int64_t)(first % 2);
    head = head < count ? head : count;
    const int64_t middle = (count - head) / CPU_NORMALS * CPU_NORMALS, tail = head + middle;
    tess_kernel_ref.normal(NULL, key, first, head, mean, deviation, y);
    for (int64_t at = head; at < tail; at += CPU_NORMALS)
        cpu_normals((struct tess_rng_key){{key[0], key[1]}}, (first + (uint64_t)at) / 2, mean,
                    deviation, y + at);
    tess_kernel_ref.normal(NULL, key, first + (uint64_t)tail, count - tail, mean, deviation,
                           y + tail);
}

CPU_INLINE void random_round(enum tess_dtype to, const struct cpu_plain *p)
{
    const float *restrict from = p->in[0];
    uint16_t *restrict half = p->out[0];
    struct tess_rng_key key = tess__stochastic_key(p->key);
    int64_t count = p->count;
    for (int64_t done = 0; done < count; done += CPU_BLOCK) {
        uint32_t word[CPU_BLOCK];
        cpu_philox(key, (p->first + (uint64_t)done) / 4, word);
        for (int64_t i = 0; i < CPU_BLOCK; i++)
            half[done + i] = to == TESS_BF16 ? tess__stochastic_bf16(from[done + i], word[i])
                                             : tess__stochastic_f16(from[done + i], word[i]);
    }
}

static void random_round_whole(const struct cpu_plain *p)
{
    if (p->to == TESS_BF16)
        random_round(TESS_BF16, p);
    else
        random_round(TESS_F16, p);
}

static void random_round_ref(const struct cpu_plain *p)
{
    tess_kernel_ref.cast_stochastic(NULL, p->count, p->in[0], p->to, p->key, p->first, p->out[0]);
}

void CPU_LOOP(cast_stochastic)(const struct cpu_plain *p)
{
    random_split(p, random_round_whole, random_round_ref);
}
