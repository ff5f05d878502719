/*
 * How ref reads and writes all dtypes with one loop: arrays in f32 are used where they are, arrays
 * in bf16 and f16 go through an f32 copy in the operation's scratch. Also how that scratch is cut
 * up, and the two inner loops that most of ref consists of.
 */
#ifndef KERNELS_REF_STAGE_H
#define KERNELS_REF_STAGE_H

#include "base/half.h"
#include "ref/seen.h"
#include "tessera/tensor.h"

#include <stddef.h>

/*
 * Scratch handed out piece by piece, each 64-byte aligned. With base NULL it only measures: an
 * operation's layout is written once and serves op_needs and the calls.
 */
struct ref_scratch {
    char *base;
    size_t used;
};

static inline void *ref_take(struct ref_scratch *scratch, size_t bytes)
{
    char *piece = scratch->base ? scratch->base + scratch->used : NULL;
    scratch->used += tess_round_up(bytes, 64);
    return piece;
}

/* Room for the f32 copy of `count` elements: none in f32. */
static inline float *ref_take_copy(struct ref_scratch *scratch, enum tess_dtype dtype,
                                   int64_t count)
{
    return dtype == TESS_F32 ? NULL : ref_take(scratch, (size_t)count * sizeof(float));
}

/* Elements first .. first + count - 1 of `source` as f32: in place, or in `copy`. */
static inline const float *ref_read(enum tess_dtype dtype, const void *source, int64_t first,
                                    int64_t count, float *copy)
{
    if (dtype == TESS_F32)
        return (const float *)source + first;
    const uint16_t *restrict half = (const uint16_t *)source + first;
    if (dtype == TESS_BF16) {
        for (int64_t i = 0; i < count; i++)
            copy[i] = tess__f32_of_bf16(half[i]);
    } else {
        for (int64_t i = 0; i < count; i++)
            copy[i] = tess__f32_of_f16(half[i]);
    }
    return copy;
}

/* Where to compute elements first ... of `target` in f32; ref_write() then brings them there. */
static inline float *ref_target(enum tess_dtype dtype, void *target, int64_t first, float *copy)
{
    return dtype == TESS_F32 ? (float *)target + first : copy;
}

static inline void ref_write(enum tess_dtype dtype, void *target, int64_t first, int64_t count,
                             const float *copy)
{
    if (dtype == TESS_F32)
        return;
    uint16_t *restrict half = (uint16_t *)target + first;
    if (dtype == TESS_BF16) {
        for (int64_t i = 0; i < count; i++)
            half[i] = tess__bf16_of_f32(copy[i]);
    } else {
        for (int64_t i = 0; i < count; i++)
            half[i] = tess__f16_of_f32(copy[i]);
    }
}

/* One element. */
static inline double ref_load(enum tess_dtype dtype, const void *source, int64_t i)
{
    float copy;
    return (double)*ref_read(dtype, source, i, 1, &copy);
}

static inline void ref_store(enum tess_dtype dtype, void *target, int64_t i, double value)
{
    float copy, *to = ref_target(dtype, target, i, &copy);
    *to = (float)value;
    ref_write(dtype, target, i, 1, to);
}

/*
 * A dot product in REF_LANES partial sums, which the compiler keeps in vector registers: element i
 * goes to lane i % REF_LANES. The order does not depend on the vector width.
 */
#define REF_LANES 16

static REF_SEEN void ref_dot(float lane[REF_LANES], const float *a, const float *b, int64_t count)
{
    ref_reads(a, count);
    ref_reads(b, count);
    int64_t i = 0;
    for (; i + REF_LANES <= count; i += REF_LANES)
        for (int l = 0; l < REF_LANES; l++)
            lane[l] += a[i + l] * b[i + l];
    for (int l = 0; i < count; i++, l++)
        lane[l] += a[i] * b[i];
}

static REF_SEEN float ref_lane_sum(float lane[REF_LANES])
{
    for (int width = REF_LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

/* y += a x */
static REF_SEEN void ref_axpy(float *restrict y, float a, const float *restrict x, int64_t count)
{
    ref_reads(x, count);
    ref_changes(y, count);
    for (int64_t i = 0; i < count; i++)
        y[i] += a * x[i];
}

#endif
