/*
 * Adding what two ranks hold, in the order and precision of tessera/comm.h: 16-bit values travel as
 * they are until they are first added, as f32 from there on, and are rounded at the end.
 */
#include "comm/net/net_group.h"

#include "base/half.h"
#include "base/reduce.h"

#include <string.h>

#define SUM_BLOCK 1024 /* elements: both sides and the sum stay in the first-level cache */

static void sum_load(enum tess_dtype dtype, const char *from, bool leaf, size_t at, float *out,
                     size_t count)
{
    if (!leaf) {
        memcpy(out, from + at * sizeof(float), count * sizeof(float));
        return;
    }
    uint16_t x[SUM_BLOCK];
    memcpy(x, from + at * sizeof(*x), count * sizeof(*x));
    if (dtype == TESS_BF16)
        for (size_t i = 0; i < count; i++)
            out[i] = tess__f32_of_bf16(x[i]);
    else
        for (size_t i = 0; i < count; i++)
            out[i] = tess__f32_of_f16(x[i]);
}

static void sum_store(enum tess_dtype dtype, const float *in, char *to, bool whole, size_t at,
                      size_t count)
{
    if (!whole) {
        memcpy(to + at * sizeof(float), in, count * sizeof(float));
        return;
    }
    uint16_t x[SUM_BLOCK];
    if (dtype == TESS_BF16)
        for (size_t i = 0; i < count; i++)
            x[i] = tess__bf16_of_f32(in[i]);
    else
        for (size_t i = 0; i < count; i++)
            x[i] = tess__f16_of_f32(in[i]);
    memcpy(to + at * sizeof(*x), x, count * sizeof(*x));
}

void tess__net_sum(enum tess_dtype dtype, enum tess_reduce reduce, const void *left, bool left_leaf,
                   const void *right, bool right_leaf, void *out, bool whole, size_t count)
{
    if (dtype != TESS_F16 && dtype != TESS_BF16) {
        const void *const source[2] = {left, right};
        void *const target[1] = {out};
        tess__reduce(dtype, reduce, 2, source, 1, target, count);
        return;
    }
    for (size_t at = 0; at < count; at += SUM_BLOCK) {
        float a[SUM_BLOCK], b[SUM_BLOCK];
        const size_t n = count - at < SUM_BLOCK ? count - at : SUM_BLOCK;
        const void *const source[2] = {a, b};
        void *const target[1] = {a};
        sum_load(dtype, left, left_leaf, at, a, n);
        sum_load(dtype, right, right_leaf, at, b, n);
        tess__reduce(TESS_F32, reduce, 2, source, 1, target, n);
        sum_store(dtype, a, out, whole, at, n);
    }
}
