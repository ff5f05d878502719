/*
 * Exact sums of doubles in fixed point, independent of the order of addition.
 *
 * Limb k of struct tess_sum (tessera/kernel.h) has the weight 2^(32 k - 320) for k = 0 .. 18, so
 * that every double in [2^-320, 2^287) is cut into at most three digits of 32 bits without loss
 * (smaller ones lose what is below 2^-320, always the same way). Digits are added as int64 without
 * carrying: 2^31 additions fit. Limb 19 counts additions of NaN, infinity or anything from 2^287
 * on.
 */
#ifndef TESSERA_BASE_SUM_H
#define TESSERA_BASE_SUM_H

#include "tessera/kernel.h"

void tess_sum_clear(struct tess_sum *sum);
void tess_sum_add(struct tess_sum *sum, double value); /* value >= 0 */
void tess_sum_merge(struct tess_sum *sum, const struct tess_sum *other);
/* The sum, rounded to double in one fixed way; NaN when something not finite was added. */
double tess_sum_value(const struct tess_sum *sum);

#endif
