/* Seconds of one operation by a device's figures; see profile.h. */
#include "predict/profile.h"

#include "tessera/check.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

double tess_profile_pass_s(const struct tess_profile *profile, double bytes)
{
    const bool cached = bytes < profile->cache_bytes && profile->cache_bytes_per_s > 0;
    return profile->start_s + bytes / (cached ? profile->cache_bytes_per_s : profile->bytes_per_s);
}

/* The caches keep of it what they can, the rest comes from memory. */
double tess_profile_far_s(const struct tess_profile *profile, double bytes, double all)
{
    const double cache = profile->cache_bytes_per_s > 0 ? profile->cache_bytes : 0;
    const double kept = all > cache ? cache / all : 1;
    const double far_s = (1 - kept) / profile->bytes_per_s;
    return profile->start_s + bytes * (kept > 0 && cache > 0
                                           ? kept / profile->cache_bytes_per_s + far_s
                                           : 1 / profile->bytes_per_s);
}

double tess_profile_work_s(const struct tess_profile *profile, enum tess_work work, int width,
                           bool math, double elements, double bytes, double all)
{
    const double element_s = profile->work_s[work][width];
    if (element_s <= 0)
        return math ? tess_profile_math_s(profile, elements, bytes)
                    : tess_profile_pass_s(profile, bytes);
    return fmax(profile->start_s + elements * element_s,
                all > 0 ? tess_profile_far_s(profile, bytes, all)
                        : tess_profile_pass_s(profile, bytes));
}

double tess_profile_math_s(const struct tess_profile *profile, double elements, double bytes)
{
    return fmax(profile->start_s + elements * profile->element_s,
                tess_profile_pass_s(profile, bytes));
}

/* The type; where a device has no units of it, the next wider one. */
static int profile_type(const struct tess_profile *profile, enum tess_peak_type type)
{
    int t = (int)type;
    while (t > 0 && !(profile->flops_per_s[t] > 0))
        t--;
    return t;
}

/* Of smaller tiles each unit loads more for what it multiplies: "a quarter of the tile" has half
 * the work for a byte that is loaded. */
#define QUARTER_EFFICIENCY 0.75

/* With tiles of this size. Where there are fewer tiles than units, k is cut into parts for those
 * that would be idle. */
static double profile_tiled_s(const struct tess_profile *profile, double flops_per_s, double tile_m,
                              double tile_n, const double size[3])
{
    const double tiles = ceil(size[0] / tile_m) * ceil(size[1] / tile_n);
    const double units = profile->units;
    const double parts = fmax(1, fmin(floor(units / tiles), floor(size[2] / (tile_m + tile_n))));
    const double waves = ceil(tiles * parts / units);
    return waves * 2 * tile_m * tile_n * (size[2] / parts + profile->half_k) /
           (flops_per_s / units);
}

double tess_profile_product_s(const struct tess_profile *profile, enum tess_peak_type type,
                              double m, double n, double k, double bytes)
{
    const int t = profile_type(profile, type);
    const double size[3] = {m, n, k},
                 flops_per_s = profile->flops_per_s[t] * profile->efficiency[t];
    const double tile_m = profile->tile_m, tile_n = profile->tile_n;
    double seconds = profile_tiled_s(profile, flops_per_s, tile_m, tile_n, size);
    if (profile->units > 1)
        seconds = fmin(seconds, profile_tiled_s(profile, flops_per_s * QUARTER_EFFICIENCY,
                                                tile_m / 2, tile_n / 2, size));
    seconds *= (1 + profile->half_m / m) * (1 + profile->half_n / n);
    return fmax(profile->start_s + seconds, tess_profile_pass_s(profile, bytes));
}

double tess_profile_layer_s(const struct tess_profile *profile, enum tess_product product,
                            enum tess_peak_type type, double m, double n, double k, double bytes)
{
    const int width = type == TESS_PEAK_16 ? TESS_WIDTH_16 : TESS_WIDTH_32;
    const struct tess_product_rate *rate = &profile->product[product][width];
    if (rate->flops_per_s <= 0)
        return tess_profile_product_s(profile, type, m, n, k, bytes);
    const double seconds = 2 * m * n * (k + rate->half_k) * (1 + rate->half_m / m) *
                           (1 + rate->half_n / n) / rate->flops_per_s;
    return fmax(profile->start_s + seconds, tess_profile_pass_s(profile, bytes));
}

static double profile_attention(const struct tess_profile *profile, bool narrow, bool forward)
{
    const double own = forward ? profile->attention_forward_16 : profile->attention_backward_16;
    if (narrow && own > 0)
        return own;
    return forward ? profile->attention_forward : profile->attention_backward;
}

double tess_profile_attention_s(const struct tess_profile *profile, enum tess_peak_type type,
                                bool forward, double flops, double length, double bytes)
{
    const double share = profile_attention(profile, type == TESS_PEAK_16, forward);
    const double peak = profile->flops_per_s[profile_type(profile, type)];
    const double seconds = flops / (peak * share) * (1 + profile->attention_half / length);
    return fmax(profile->start_s + seconds, tess_profile_pass_s(profile, bytes));
}

struct tess_profile tess_profile_share(const struct tess_profile *profile, int32_t ranks,
                                       int32_t threads)
{
    struct tess_profile share = *profile;
    if (profile->cores < 1)
        return share;
    const double busy = (double)ranks * threads;
    const double part = threads * fmin(1, profile->cores / busy);
    for (int t = 0; t < TESS_PEAK_TYPES; t++)
        share.flops_per_s[t] *= part;
    for (int i = 0; i < TESS_PRODUCT_COUNT * TESS_WIDTHS; i++)
        share.product[i / TESS_WIDTHS][i % TESS_WIDTHS].flops_per_s *= part;
    for (int i = 0; i < TESS_WORK_COUNT * TESS_WIDTHS; i++)
        share.work_s[i / TESS_WIDTHS][i % TESS_WIDTHS] /= part;
    share.start_s /= fmin(1, part);
    share.element_s /= part;
    share.bytes_per_s *= part;
    share.cache_bytes_per_s *= part;
    share.cache_bytes /= fmin(ranks, profile->cores);
    const double host = profile->host_bytes_per_s;
    if (host > 0 && share.bytes_per_s * ranks > host)
        share.bytes_per_s = host / ranks;
    return share;
}
