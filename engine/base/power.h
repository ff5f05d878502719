/* Whole powers that are the same on every machine. */
#ifndef TESSERA_BASE_POWER_H
#define TESSERA_BASE_POWER_H

#include <stdint.h>

/* base^n by squaring, n >= 0: products alone, which pow() does not promise. */
static inline double tess_power(double base, int64_t n)
{
    double power = 1;
    for (; n > 0; n >>= 1, base *= base) {
        if (n & 1)
            power *= base;
    }
    return power;
}

#endif
