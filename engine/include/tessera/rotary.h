/* Rotary positions: the rates at which pairs of channels turn. For tess_rope (tessera/kernel.h). */
#ifndef TESSERA_ROTARY_H
#define TESSERA_ROTARY_H

#include "tessera/linkage.h"

TESS_BEGIN_DECLS

/* Angles of rotary positions. Those of a context longer than that of training turn some pairs of
 * channels more slowly: with r = base^(-2i/D) and m as `kept` says, pair i has the rate
 * r (m + (1 - m)/factor). */
enum tess_rotary_kept {
    TESS_ROTARY_NONE,     /* m = 0: all pairs alike */
    TESS_ROTARY_BY_TURNS, /* m rises to 1 from low to high turns in `positions` (Llama 3.1) */
    TESS_ROTARY_BY_PAIR,  /* m falls from 1 to 0 from pair low to high (YaRN; Peng et al. 2023) */
};
struct tess_rotary {
    float base;
    float factor; /* 0 or 1: every pair has the rate r */
    enum tess_rotary_kept kept;
    float low, high, positions;
    float amplitude; /* of sine and cosine; 0: 1 */
};

/* The rate of pair `pair`, whose r is `rate`. Pure. */
static inline TESS_ANYWHERE double tess_rotary_rate(const struct tess_rotary *rotary, double rate,
                                                    double pair)
{
    const double low = rotary->low, width = (double)rotary->high - low;
    double m = 0;
    if (rotary->factor == 0 || rotary->factor == 1)
        return rate;
    if (rotary->kept == TESS_ROTARY_BY_TURNS)
        m = (rotary->positions * rate / 6.28318530717958647693 - low) / width;
    else if (rotary->kept == TESS_ROTARY_BY_PAIR)
        m = 1 - (pair - low) / width;
    m = m < 0 ? 0 : m > 1 ? 1 : m;
    return rate * (m + (1 - m) / rotary->factor);
}

TESS_END_DECLS
#endif
