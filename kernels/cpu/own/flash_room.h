/*
 * What flash.c and flash_grad.c share: the sizes of an attention, how rows of a head are packed for
 * the tile kernel, and exp. Built for AVX-512 and for AVX2.
 *
 * Products are of 32-bit words (tile.h): elements in f32, pairs of bf16. Arithmetic is in bf16
 * where that is the dtype, an instruction multiplies pairs of it, and desc.f32_math does not forbid
 * it; else in f32 on widened copies. In f32 results have the same bits at both levels, but for
 * probabilities below 2^-126 of a row's greatest, which AVX2 has as 0.
 */
#ifndef KERNELS_CPU_OWN_FLASH_ROOM_H
#define KERNELS_CPU_OWN_FLASH_ROOM_H

#include "cpu/cpu.h"
#include "cpu/own/tile.h"
#include "cpu/own/turn.h"
#include "ref/mask.h"

#include <math.h>

#define FLASH_PANEL 64 /* positions in a turned panel: whole vectors */

/* Dropout of probabilities. */
struct flash_drop {
    bool on;
    const struct tess_attention_drop *of;
    struct tess_rng_key key;
    uint32_t limit;
    float scale; /* of what is kept; 1 where nothing is dropped */
};

struct flash {
    const struct tess_op_desc *desc;
    bool half;                   /* products of bf16 */
    int64_t length, size, group; /* T, D, query heads of a key and value head */
    int64_t window;              /* positions that one sees at most: T where all */
    int64_t steps;               /* words of a row: products over D */
    int64_t pairs;               /* words of a column: products over T */
    int64_t width, row;          /* D in whole vectors; words from one copied row to the next */
    int64_t panels;              /* of FLASH_PANEL positions */
    size_t head_bytes;           /* D elements */
    size_t q_bytes, kv_bytes, y_bytes; /* from one position to the next */
    float scale;                       /* 1 / sqrt(D) */
    struct flash_drop drop;
};

static inline int64_t flash_round(int64_t count, int64_t unit)
{
    return (count + unit - 1) / unit * unit;
}

static inline int64_t flash_window(const struct tess_op_desc *d)
{
    return d->window > 0 && d->window < d->length ? d->window : d->length;
}

/* Vectors of scores of so many keys, for sums over them. */
static inline int flash_vectors(int64_t keys)
{
    return (int)((keys + CPU_SUM_LANES - 1) / CPU_SUM_LANES) * CPU_SUM_VECTORS;
}

/* The first position that `position` sees. */
static inline int64_t flash_first(const struct flash *f, int64_t position)
{
    return position < f->window ? 0 : position - f->window + 1;
}

static inline struct flash flash_of(const struct tess_op_desc *d)
{
    size_t element = tess_dtype_bytes(d->dtype);
    bool half = d->dtype == TESS_BF16 && !d->f32_math && CPU_PAIRS;
    int64_t steps = half ? (d->in + 1) / 2 : d->in;
    return (struct flash){
        .desc = d,
        .half = half,
        .length = d->length,
        .size = d->in,
        .group = d->heads / d->kv_heads,
        .window = flash_window(d),
        .steps = steps,
        .pairs = half ? (d->length + 1) / 2 : d->length,
        .width = flash_round(d->in, CPU_WORDS),
        .row = flash_round(steps, CPU_WORDS),
        .panels = (d->length + FLASH_PANEL - 1) / FLASH_PANEL,
        .head_bytes = (size_t)d->in * element,
        .q_bytes = (size_t)d->q_stride * element,
        .kv_bytes = (size_t)d->kv_stride * element,
        .y_bytes = (size_t)(d->heads * d->in) * element,
        .scale = 1.0f / sqrtf((float)d->in),
        .drop = {.scale = 1.0f},
    };
}

static inline struct flash flash_of_op(const struct tess_op *op)
{
    struct flash f = flash_of(&op->desc);
    if (op->drop.on && op->desc.dropout > 0)
        f.drop = (struct flash_drop){.on = true,
                                     .of = &op->drop,
                                     .key = tess__mask_key(op->drop.key),
                                     .limit = tess__mask_limit(op->desc.dropout),
                                     .scale = 1.0f / (1.0f - op->desc.dropout)};
    return f;
}

/* Which elements of panel `panel` of a row of probabilities are kept: words of tess__mask_word, by
 * Philox as in cpu/philox.h. Each counter gives a word to every CPU_SUM_LANES-th element. */
static inline void flash_keep(const struct flash_drop *drop, uint64_t row, int64_t panel,
                              cpu_mask keep[FLASH_PANEL / CPU_WORDS])
{
    for (int part = 0; part < CPU_SUM_VECTORS; part++) {
        cpu_words c[4] = {cpu_count_words((uint32_t)(panel * CPU_SUM_LANES + part * CPU_WORDS)),
                          cpu_zero_words(), cpu_set_words((uint32_t)row),
                          cpu_set_words((uint32_t)(row >> 32))};
        uint32_t k0 = drop->key.word[0], k1 = drop->key.word[1];
        for (int round = 0; round < 10; round++) {
            cpu_words high[2], low[2];
            cpu_multiply_words(c[0], 0xd2511f53u, &high[0], &low[0]);
            cpu_multiply_words(c[2], 0xcd9e8d57u, &high[1], &low[1]);
            c[0] = cpu_xor(cpu_xor(high[1], c[1]), cpu_set_words(k0));
            c[1] = low[1];
            c[2] = cpu_xor(cpu_xor(high[0], c[3]), cpu_set_words(k1));
            c[3] = low[0];
            k0 += 0x9e3779b9u;
            k1 += 0xbb67ae85u;
        }
        for (int w = 0; w < 4; w++)
            keep[w * CPU_SUM_VECTORS + part] = cpu_at_least(c[w], drop->limit);
    }
}

size_t CPU_OWN(flash_grad_scratch)(const struct tess_op_desc *desc);  /* flash_grad.c */
size_t tess__amx_flash_grad_scratch(const struct tess_op_desc *desc); /* amx_flash_grad.c */

/* The next piece of the work memory; with base NULL it only measures. */
static inline void *flash_take(char *base, size_t *used, int64_t words)
{
    char *piece = base ? base + *used : NULL;
    *used += tess__cpu_round_up((size_t)words * sizeof(uint32_t));
    return piece;
}

/* Elements from element c of `size` on, as f32. */
CPU_INLINE cpu_vector flash_load(enum tess_dtype dtype, const void *row, int64_t c, int64_t size)
{
    if (dtype == TESS_F16)
        return cpu_widen_f16(cpu_load_halves_first(size - c, (const uint16_t *)row + c));
    return cpu_load_first_of(dtype == TESS_BF16, size - c, row, c);
}

CPU_INLINE void flash_store(enum tess_dtype dtype, void *row, int64_t c, int64_t size,
                            cpu_vector value)
{
    if (dtype == TESS_F32)
        cpu_store_first((float *)row + c, size - c, value);
    else
        cpu_store_halves_first((uint16_t *)row + c, size - c,
                               dtype == TESS_F16 ? cpu_narrow_f16(value) : cpu_narrow(value));
}

#define FLASH_AHEAD 16 /* rows that a copy asks for before it reads them */

/* Prefetch a row of D elements FLASH_AHEAD rows on, perhaps of the next call or of none: rows are
 * too short, and too far apart, for the prefetchers of the hardware. */
CPU_INLINE void flash_ask(const struct flash *f, const char *from, size_t bytes)
{
    for (size_t byte = 0; byte < f->head_bytes; byte += 64)
        _mm_prefetch(from + FLASH_AHEAD * bytes + byte, _MM_HINT_T0);
}

/* Own the lines of a row of D elements before it is written. */
CPU_INLINE void flash_own(const struct flash *f, const char *to)
{
    for (size_t byte = 0; byte < f->head_bytes; byte += 64)
        __builtin_prefetch(to + byte, 1, 3);
}

/* flash_copy() of elements of a dtype that the compiler knows. */
CPU_INLINE void flash_copy_rows(const struct flash *f, enum tess_dtype dtype, const char *from,
                                size_t bytes, int64_t rows, uint32_t *copy)
{
    const int64_t size = f->size, row = f->row;
    for (int64_t r = 0; r < rows; r++, from += bytes, copy += row) {
        flash_ask(f, from, bytes);
        for (int64_t c = 0; c < row; c += CPU_WORDS)
            cpu_store((float *)copy + c, flash_load(dtype, from, c, size));
    }
}

/* Copy rows of D elements, `bytes` apart, to [rows, f->row] words, with zeros behind each. */
static inline void flash_copy(const struct flash *f, const char *from, size_t bytes, int64_t rows,
                              uint32_t *copy)
{
#if CPU_WORDS == 16
    for (int64_t r = 0; f->half && r < rows; r++, from += bytes, copy += f->row) {
        flash_ask(f, from, bytes);
        for (int64_t c = 0; c < f->row; c += CPU_WORDS) {
            int64_t left = f->size - 2 * c;
            __mmask32 mask = left >= 32 ? 0xffffffffu : (__mmask32)((1u << left) - 1);
            cpu_store_words(copy + c, _mm512_maskz_loadu_epi16(
                                          mask, (const uint16_t *)(const void *)from + 2 * c));
        }
    }
    if (f->half)
        return;
#endif
    if (f->desc->dtype == TESS_F32)
        flash_copy_rows(f, TESS_F32, from, bytes, rows, copy);
    else if (f->desc->dtype == TESS_F16)
        flash_copy_rows(f, TESS_F16, from, bytes, rows, copy);
    else
        flash_copy_rows(f, TESS_BF16, from, bytes, rows, copy);
}

/*
 * Columns for products over T: from copied rows [T, f->row] to [pairs, width]. In f32 the copied
 * rows are that already, and nothing is done.
 */
static inline const uint32_t *flash_pair(const struct flash *f, const uint32_t *copy,
                                         uint32_t *target)
{
    if (!f->half)
        return copy;
    for (int64_t t = 0; t < f->length; t += 2) {
        const uint16_t *even = (const uint16_t *)(copy + t * f->row);
        const uint16_t *odd = t + 1 < f->length ? even + 2 * f->row : NULL;
        cpu_pack_bf16(even, odd, f->size, target + t / 2 * f->width);
    }
    return target;
}

/* Columns for products over D: copied rows [T, f->row] to [panels][steps][FLASH_PANEL]. */
static inline void flash_turn(const struct flash *f, const uint32_t *copy, uint32_t *target)
{
    for (int64_t p = 0; p < f->panels; p++)
        cpu_turn((const char *)(copy + p * FLASH_PANEL * f->row), (size_t)f->row * sizeof(*copy),
                 f->length - p * FLASH_PANEL, FLASH_PANEL / CPU_WORDS, f->steps, false,
                 target + p * f->steps * FLASH_PANEL);
}

/*
 * 2^t for t <= 0: 2^n times a polynomial of degree 6 on [-1/2, 1/2], exact at 0 and off by at most
 * 2^-25 relatively (coefficients by Remez' algorithm, rounded to f32). Below -200 it is 0.
 */
CPU_INLINE cpu_vector flash_exp2(cpu_vector t)
{
    t = cpu_max(cpu_set(-200.0f), t); /* a NaN passes */
    cpu_vector n = cpu_round(t);
    cpu_vector x = cpu_sub(t, n);
    cpu_vector y = cpu_set(0x1.41d334p-13f);
    y = cpu_fma(y, x, cpu_set(0x1.5f456ap-10f));
    y = cpu_fma(y, x, cpu_set(0x1.3b2dbcp-7f));
    y = cpu_fma(y, x, cpu_set(0x1.c6aed4p-5f));
    y = cpu_fma(y, x, cpu_set(0x1.ebfbdap-3f));
    y = cpu_fma(y, x, cpu_set(0x1.62e430p-1f));
    y = cpu_fma(y, x, cpu_set(1.0f));
    return cpu_scale(y, n);
}

#define FLASH_LOG2_E 0x1.715476p+0f
#define FLASH_LN_2   0x1.62e430p-1f

#endif
