/* See rates.h. */
#include "topology/machine/rates.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

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

double tess__rate_xgmi(int32_t gfx)
{
    if (gfx >> 4 == 0x94 || gfx >> 4 == 0x95)
        return TESS_GBS_XGMI_MI300;
    return gfx == 0x90a ? TESS_GBS_XGMI_MI200 : TESS_GBS_XGMI_VEGA;
}

/*
 * In one direction. NVLink: NVIDIA's data sheets (DGX-1, V100, A100, A40, H100, B200), half of what
 * they give for both directions. xGMI: 16 lanes at 23, 25 and 32 GT/s, rocm.docs.amd.com of MI100
 * and MI250, and the data sheet of MI300X (128 GB/s both ways).
 */
double tess__rate_wire_nvlink(double one)
{
    static const struct {
        double model, wire;
    } known[] = {
        {TESS_GBS_NVLINK_SM60, 20}, {TESS_GBS_NVLINK_SM70, 25},  {TESS_GBS_NVLINK_SM86, 14.0625},
        {TESS_GBS_NVLINK_SM90, 25}, {TESS_GBS_NVLINK_SM100, 50}, {TESS_GBS_XGMI_VEGA, 46},
        {TESS_GBS_XGMI_MI200, 50},  {TESS_GBS_XGMI_MI300, 64},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (fabs(known[i].model - one) < 1e-6 * one)
            return known[i].wire;
    return one;
}

double tess__rate_wire_pci(double gbs)
{
    /* GB/s of a lane: 8 b in 10 b, 128 b in 130 b, and of generation 6 242 bytes in 256. */
    static const double lane[RATES_GENERATIONS] = {
        0.25, 0.5, 8 * 16 / 130.0, 16 * 16 / 130.0, 32 * 16 / 130.0, 8 * 242 / 256.0};
    int32_t generation, width;
    tess__rate_pci_nearest(gbs, &generation, &width);
    double model = TESS_GBS_PCI(tess__rate_pci(generation), width);
    return fabs(model - gbs) < 1e-6 * gbs ? lane[generation - 1] * width : gbs;
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

enum tess_nic_unit tess__rate_nic(int32_t speed, double *gbs_out)
{
    /* Gbit/s of Ethernet, InfiniBand, Omni-Path and Slingshot. */
    static const int32_t known[] = {10, 25, 40, 50, 56, 100, 200, 400, 800, 1600};
    *gbs_out = speed > 0 && speed <= TESS_NIC_MBITS_MOST ? speed / 8000.0 : TESS_GBS_NIC_UNKNOWN;
    if (speed <= TESS_NIC_MBITS_MOST)
        return speed > 0 ? TESS_NIC_MBITS : TESS_NIC_UNKNOWN;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (speed != known[i] * 1000000)
            continue;
        *gbs_out = known[i] / 8.0;
        return TESS_NIC_KBITS;
    }
    return TESS_NIC_NO_RATE;
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

static const struct {
    const char *word;
    double gbs;
} rates_unit[] = {{"GB/s", 1}, {"MB/s", 1e-3}, {"kB/s", 1e-6}};

static size_t rates_unit_of(double gbs)
{
    size_t unit = 0;
    while (gbs > 0 && gbs < rates_unit[unit].gbs &&
           unit + 1 < sizeof(rates_unit) / sizeof(rates_unit[0]))
        unit++;
    return unit;
}

const char *tess__rate_unit(double gbs)
{
    return rates_unit[rates_unit_of(gbs)].word;
}

const char *tess__rate_number(double gbs, double like_gbs, char text[TESS__RATE_TEXT])
{
    const double number = gbs / rates_unit[rates_unit_of(like_gbs)].gbs;
    snprintf(text, TESS__RATE_TEXT, number < 1e3 ? "%.4g" : "%.0f", number);
    return text;
}

const char *tess__rate_text(double gbs, char text[TESS__RATE_TEXT])
{
    char number[TESS__RATE_TEXT];
    snprintf(text, TESS__RATE_TEXT, "%.20s %s", tess__rate_number(gbs, gbs, number),
             tess__rate_unit(gbs));
    return text;
}
