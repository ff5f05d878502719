/* Rotary positions for tests: cases, and x rotated in double by the formulas. */
#ifndef TESTS_KERNELS_ROPE_CASE_H
#define TESTS_KERNELS_ROPE_CASE_H

#include "tessera/kernel.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

struct rope_case {
    int64_t rows, length, first, heads, head_size, gap;
    struct tess_rotary rotary;
};

static const struct rope_case rope_cases[] = {
    {.rows = 0, .length = 1, .heads = 1, .head_size = 2, .rotary = {.base = 10000}},
    {.rows = 1, .length = 1, .heads = 1, .head_size = 2, .rotary = {.base = 10000}},
    {.rows = 6, .length = 3, .heads = 2, .head_size = 4, .rotary = {.base = 10000}},
    {.rows = 7, .length = 7, .heads = 3, .head_size = 6, .gap = 5, .rotary = {.base = 100}},
    {.rows = 40, .length = 20, .heads = 2, .head_size = 16, .gap = 32, .rotary = {.base = 10000}},
    {.rows = 33, .length = 33, .heads = 5, .head_size = 64, .rotary = {.base = 500000}},
    {.rows = 16,
     .length = 16,
     .first = 2000,
     .heads = 4,
     .head_size = 34,
     .rotary = {.base = 10000}},
    {.rows = 9,
     .length = 8,
     .first = 100000,
     .heads = 9,
     .head_size = 128,
     .rotary = {.base = 10000}},
    {.rows = 16,
     .length = 16,
     .first = 2000,
     .heads = 2,
     .head_size = 16,
     .rotary = {.base = 10000, .factor = 8}},
    {.rows = 16,
     .length = 16,
     .first = 500,
     .heads = 2,
     .head_size = 32,
     .rotary = {.base = 1000,
                .factor = 8,
                .kept = TESS_ROTARY_BY_TURNS,
                .low = 1,
                .high = 4,
                .positions = 256}},
    {.rows = 16,
     .length = 16,
     .first = 500,
     .heads = 2,
     .head_size = 32,
     .rotary = {.base = 10000,
                .factor = 4,
                .kept = TESS_ROTARY_BY_PAIR,
                .low = 3,
                .high = 11,
                .amplitude = 1.25f}},
};

#define ROPE_CASES (sizeof(rope_cases) / sizeof(rope_cases[0]))

static inline int64_t rope_stride(const struct rope_case *c)
{
    return c->heads * c->head_size + c->gap;
}

/* The angle of a position, by the formulas of Llama 3.1 (wavelengths) and YaRN (a ramp). */
static double rope_rate(const struct rope_case *c, int64_t pair)
{
    const struct tess_rotary *t = &c->rotary;
    double r = pow((double)t->base, -2.0 * (double)pair / (double)c->head_size), ramp;
    if (t->factor == 0)
        return r;
    if (t->kept == TESS_ROTARY_NONE)
        return r / (double)t->factor;
    if (t->kept == TESS_ROTARY_BY_TURNS) {
        double wave = 2 * acos(-1) / r, positions = (double)t->positions;
        if (wave < positions / (double)t->high)
            return r;
        if (wave > positions / (double)t->low)
            return r / (double)t->factor;
        ramp = (positions / wave - (double)t->low) / ((double)t->high - (double)t->low);
        return (1 - ramp) * r / (double)t->factor + ramp * r;
    }
    ramp = ((double)pair - (double)t->low) / ((double)t->high - (double)t->low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return r / (double)t->factor * ramp + r * (1 - ramp);
}

/* Into y [rows * stride]. parts [the same]: |both products| of an element at most, which errors of
 * sine and cosine are parts of; 0 in a gap, which is untouched. */
static void rope_naive(const struct rope_case *c, bool inverse, const double *x, double *y,
                       double *parts)
{
    const int64_t half = c->head_size / 2, stride = rope_stride(c);
    const double size = c->rotary.amplitude > 0 ? (double)c->rotary.amplitude : 1;
    for (int64_t i = 0; i < c->rows * stride; i++) {
        const int64_t row = i / stride, place = i % stride, k = place % c->head_size;
        y[i] = x[i];
        parts[i] = 0;
        if (place >= c->heads * c->head_size)
            continue;
        const double angle = (double)(c->first + row % c->length) * rope_rate(c, k % half);
        const double other = k < half ? -x[i + half] : x[i - half];
        y[i] = size * (x[i] * cos(angle) + (inverse ? -1 : 1) * other * sin(angle));
        parts[i] = size * (fabs(x[i]) + fabs(other));
    }
}

#endif
