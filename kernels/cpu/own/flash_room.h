/*
 * What flash.c and flash_grad.c share: the sizes of an attention, how rows of a head are packed for
 * the tile kernel, and exp. AVX-512 only.
 *
 * Products are of 32-bit words (tile.h): elements in f32, pairs of bf16. Arithmetic is in bf16
 * where that is the dtype and desc.f32_math does not forbid it, else in f32 on widened copies.
 */
#ifndef KERNELS_CPU_OWN_FLASH_ROOM_H
#define KERNELS_CPU_OWN_FLASH_ROOM_H

#include "cpu/cpu.h"
#include "cpu/own/tile.h"
#include "cpu/own/turn.h"
#include "ref/mask.h"

#include <math.h>

#define FLASH_PANEL 64 /* positions in a turned panel: four vectors */

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

/* The first position that `position` sees. */
static inline int64_t flash_first(const struct flash *f, int64_t position)
{
    return position < f->window ? 0 : position - f->window + 1;
}

static inline struct flash flash_of(const struct tess_op_desc *d)
{
    size_t element = tess_dtype_bytes(d->dtype);
    bool half = d->dtype == TESS_BF16 && !d->f32_math;
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

/* Both halves of the product of 16 words and one. */
CPU_INLINE void flash_multiply(__m512i a, uint32_t b, __m512i *high, __m512i *low)
{
    const __m512i factor = _mm512_set1_epi64((int64_t)b);
    const __m512i even = _mm512_mul_epu32(a, factor);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), factor);
    *high = _mm512_mask_blend_epi32((__mmask16)0xaaaa, _mm512_srli_epi64(even, 32), odd);
    *low = _mm512_mask_blend_epi32((__mmask16)0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

/* Which elements of panel `panel` of a row of probabilities are kept: words of tess__mask_word, by
 * Philox as in cpu/philox.h. */
static inline void flash_keep(const struct flash_drop *drop, uint64_t row, int64_t panel,
                              __mmask16 keep[FLASH_PANEL / CPU_WORDS])
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i c[4] = {_mm512_add_epi32(lane, _mm512_set1_epi32((int)(panel * CPU_WORDS))),
                    _mm512_setzero_si512(), _mm512_set1_epi32((int)(uint32_t)row),
                    _mm512_set1_epi32((int)(uint32_t)(row >> 32))};
    uint32_t k0 = drop->key.word[0], k1 = drop->key.word[1];
    for (int round = 0; round < 10; round++) {
        __m512i high[2], low[2];
        flash_multiply(c[0], 0xd2511f53u, &high[0], &low[0]);
        flash_multiply(c[2], 0xcd9e8d57u, &high[1], &low[1]);
        c[0] = _mm512_xor_si512(_mm512_xor_si512(high[1], c[1]), _mm512_set1_epi32((int)k0));
        c[1] = low[1];
        c[2] = _mm512_xor_si512(_mm512_xor_si512(high[0], c[3]), _mm512_set1_epi32((int)k1));
        c[3] = low[0];
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    for (int w = 0; w < FLASH_PANEL / CPU_WORDS; w++)
        keep[w] = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(c[w], 8),
                                          _mm512_set1_epi32((int)drop->limit));
}

size_t tess__cpu_flash_grad_scratch(const struct tess_op_desc *desc); /* flash_grad.c */
size_t tess__amx_flash_grad_scratch(const struct tess_op_desc *desc); /* amx_flash_grad.c */

/* The next piece of the work memory; with base NULL it only measures. */
static inline void *flash_take(char *base, size_t *used, int64_t words)
{
    char *piece = base ? base + *used : NULL;
    *used += tess__cpu_round_up((size_t)words * sizeof(uint32_t));
    return piece;
}

/* Up to 16 elements from element c on, as f32. */
CPU_INLINE __m512 flash_load(enum tess_dtype dtype, const void *row, int64_t c, __mmask16 mask)
{
    if (dtype == TESS_F32)
        return _mm512_maskz_loadu_ps(mask, (const float *)row + c);
    __m256i low = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)row + c);
    if (dtype == TESS_F16)
        return _mm512_cvtph_ps(low);
    return cpu_widen(low);
}

CPU_INLINE void flash_store(enum tess_dtype dtype, void *row, int64_t c, __mmask16 mask,
                            __m512 value)
{
    if (dtype == TESS_F32)
        _mm512_mask_storeu_ps((float *)row + c, mask, value);
    else if (dtype == TESS_F16)
        _mm256_mask_storeu_epi16((uint16_t *)row + c, mask,
                                 _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    else
        _mm256_mask_storeu_epi16((uint16_t *)row + c, mask, (__m256i)_mm512_cvtneps_pbh(value));
}

#define FLASH_AHEAD 16 /* rows that a copy asks for before it reads them */

/* Prefetch a row of D elements FLASH_AHEAD rows on, perhaps of the next call or of none: rows are
 * too short, and too far apart, for the prefetchers of the hardware. */
CPU_INLINE void flash_ask(const struct flash *f, const char *from, size_t bytes)
{
    const size_t row = (size_t)f->size * tess_dtype_bytes(f->desc->dtype);
    for (size_t byte = 0; byte < row; byte += 64)
        _mm_prefetch(from + FLASH_AHEAD * bytes + byte, _MM_HINT_T0);
}

/* Own the lines of a row of D elements before it is written. */
CPU_INLINE void flash_own(const struct flash *f, const char *to)
{
    const size_t row = (size_t)f->size * tess_dtype_bytes(f->desc->dtype);
    for (size_t byte = 0; byte < row; byte += 64)
        __builtin_prefetch(to + byte, 1, 3);
}

/* Copy rows of D elements, `bytes` apart, to [rows, f->row] words, with zeros behind each. */
static inline void flash_copy(const struct flash *f, const char *from, size_t bytes, int64_t rows,
                              uint32_t *copy)
{
    for (int64_t r = 0; r < rows; r++, from += bytes, copy += f->row) {
        flash_ask(f, from, bytes);
        for (int64_t c = 0; c < f->row; c += CPU_WORDS) {
            if (f->half) {
                int64_t left = f->size - 2 * c;
                __mmask32 mask = left >= 32 ? 0xffffffffu : (__mmask32)((1u << left) - 1);
                _mm512_store_si512(
                    copy + c,
                    _mm512_maskz_loadu_epi16(mask, (const uint16_t *)(const void *)from + 2 * c));
            } else {
                __m512 value = flash_load(f->desc->dtype, from, c, cpu_lanes(f->size - c));
                _mm512_store_ps((float *)copy + c, value);
            }
        }
    }
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
CPU_INLINE __m512 flash_exp2(__m512 t)
{
    t = _mm512_max_ps(_mm512_set1_ps(-200.0f), t); /* a NaN passes */
    __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 x = _mm512_sub_ps(t, n);
    __m512 y = _mm512_set1_ps(0x1.41d334p-13f);
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(0x1.5f456ap-10f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(0x1.3b2dbcp-7f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(0x1.c6aed4p-5f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(0x1.ebfbdap-3f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(0x1.62e430p-1f));
    y = _mm512_fmadd_ps(y, x, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
}

#define FLASH_LOG2_E 0x1.715476p+0f
#define FLASH_LN_2   0x1.62e430p-1f

#endif
