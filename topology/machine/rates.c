/* See rates.h. */
#include "topology/machine/rates.h"

#include <math.h>
#include <stddef.h>

#define RATES_GENERATIONS 6

static const int32_t rates_speed[RATES_GENERATIONS] = {15, 30, 60, 120, 240, 480};

double tess__rate_nvlink(int32_t sm)
{
    if (sm >= 100)
        return TESS_GBS_NVLINK_SM100;
    if (sm >= 90)
        return TESS_GBS_NVLINK_SM90;
    if (sm == 86)
        return TESS_GBS_NVLINK_SM86;
    if (sm >= 60 && sm < 70)
        return TESS_GBS_NVLINK_SM60;
    return TESS_GBS_NVLINK_SM70;
}

int32_t tess__rate_pci(int32_t generation)
{
    const int32_t at = generation < 1 ? 1 : generation;
    return rates_speed[(at > RATES_GENERATIONS ? RATES_GENERATIONS : at) - 1];
}

double tess__rate_pci_x16(int32_t generation)
{
    return TESS_GBS_PCI(tess__rate_pci(generation), 16);
}

void tess__rate_pci_nearest(double gbs, int32_t *generation_out, int32_t *width_out)
{
    static const int32_t widths[] = {16, 8, 4, 2, 1, 32, 12}; /* x16 wins a draw, then the wider */
    double best = INFINITY;
    *generation_out = 1;
    *width_out = 16;
    for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
        for (int32_t g = 1; g <= RATES_GENERATIONS; g++) {
            const double off = fabs(TESS_GBS_PCI(tess__rate_pci(g), widths[w]) - gbs);
            if (off < best) {
                best = off;
                *generation_out = g;
                *width_out = widths[w];
            }
        }
    }
}
