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

/* The share of so many bytes that the last cache does not keep. */
static double cache_gone(const struct tess_profile_cache *cache, double all_bytes)
{
    const double beyond = all_bytes - cache->share_bytes;
    const double more = fmax(1, cache->gone_bytes - cache->share_bytes);
    return cache->lost_byte_s > 0 ? fmin(1, fmax(0, beyond / more)) : 0;
}

double tess_profile_lost_s(const struct tess_profile_cache *cache, double all_bytes)
{
    return cache->lost_byte_s * cache_gone(cache, all_bytes);
}

double tess_profile_far_s(const struct tess_profile *profile, double all_bytes, double age_s)
{
    const struct tess_profile_cache *cache = &profile->cache_one;
    const double old_s =
        profile->old_age_s > 0 ? profile->old_byte_s * (1 - exp(-age_s / profile->old_age_s)) : 0;
    return tess_profile_lost_s(cache, all_bytes) + (1 - cache_gone(cache, all_bytes)) * old_s;
}

struct tess_profile_cache tess_profile_cache_of(const struct tess_profile *profile, double busy)
{
    const struct tess_profile_cache *one = &profile->cache_one, *all = &profile->cache_all;
    const double share = fmin(1, (busy - 1) / fmax(1, profile->cores - 1));
    if (!(all->lost_byte_s > 0) || !(share > 0))
        return *one;
    return (struct tess_profile_cache){
        .share_bytes = one->share_bytes + share * (all->share_bytes - one->share_bytes),
        .gone_bytes = one->gone_bytes + share * (all->gone_bytes - one->gone_bytes),
        .lost_byte_s = one->lost_byte_s + share * (all->lost_byte_s - one->lost_byte_s)};
}

/* By what was measured after 1 and 10 ms. */
static double lag_power(double short_s, double long_s, double work_s)
{
    const double by = TESS_PROFILE_LAG_LONG / TESS_PROFILE_LAG_SHORT;
    const double power = short_s > 0 ? fmin(1, fmax(0, log(long_s / short_s) / log(by))) : 1;
    return long_s > 0 && work_s > 0 ? long_s * pow(work_s / TESS_PROFILE_LAG_LONG, power) : 0;
}

double tess_profile_lag_s(const struct tess_profile *profile, double crowd, double work_s)
{
    const double own_s = lag_power(profile->lag_short_s, profile->lag_long_s, work_s);
    const double turn_s = lag_power(profile->turn_lag_short_s, profile->turn_lag_long_s, work_s);
    return own_s + (crowd > 1 ? crowd / 2 * fmax(0, turn_s - own_s) : 0);
}

double tess_profile_work_s(const struct tess_profile *profile, enum tess_work work, int width,
                           bool math, double elements, double bytes)
{
    const double near_s = profile->work_s[work][width], far_s = profile->far_work_s[work][width];
    if (near_s <= 0)
        return math ? tess_profile_math_s(profile, elements, bytes)
                    : tess_profile_pass_s(profile, bytes);
    const double above = log2(fmax(1, elements / TESS_PROFILE_NEAR));
    const double share = fmin(1, above / log2(TESS_PROFILE_FAR / TESS_PROFILE_NEAR));
    return profile->start_s + elements * (near_s + share * (fmax(far_s, near_s) - near_s));
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

/* A distance in octaves at which a point counts less, and one from which on the formula counts more
 * than a single point. */
#define POINT_NEAR 0.2
#define POINT_FAR  4.0

static double profile_weight(double square)
{
    const double sum = square + POINT_NEAR * POINT_NEAR;
    return 1 / (sum * sum);
}

/* So much of a distance counts along the rows of a layer, as loops over them are the same for few
 * and many: what a kernel does otherwise depends on the layer. */
#define POINT_ROWS 0.5

/* Shepard, "A two-dimensional interpolation function for irregularly-spaced data", 1968, of the
 * logarithms. rows: the axis of a layer's rows. */
static double profile_around(const struct tess_product_rate *rate, int rows, double m, double n,
                             double k)
{
    const double at[3] = {log2(m), log2(n), log2(k)};
    double sum = 0, weights = profile_weight(POINT_FAR * POINT_FAR);
    for (int i = 0; i < TESS_PROFILE_POINTS && rate->point[i].ratio > 0; i++) {
        double square = 0;
        for (int axis = 0; axis < 3; axis++) {
            const double away = at[axis] - rate->point[i].log2_size[axis];
            square += away * away * (axis == rows ? POINT_ROWS * POINT_ROWS : 1);
        }
        const double weight = profile_weight(square);
        sum += weight * log(rate->point[i].ratio);
        weights += weight;
    }
    return exp(sum / weights);
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
    const bool weight = product == TESS_PRODUCT_WEIGHT || product == TESS_PRODUCT_CONV_WEIGHT;
    return (profile->start_s + seconds) * profile_around(rate, weight ? 2 : 0, m, n, k);
}

/* Positions along a side of `size` of the input. */
static int64_t profile_conv_side(const struct tess_op_desc *desc, bool data, int64_t size)
{
    const bool plain = desc->stride == 1;
    const int64_t side =
        data && plain ? size : tess_op_output_size(size, desc->window, desc->stride, desc->padding);
    return desc->dtype == TESS_F32 && desc->window == 3 && plain ? (side + 3) / 4 * 4 : side;
}

int64_t tess_profile_conv_rows(const struct tess_op_desc *desc, enum tess_product product)
{
    const bool data = product == TESS_PRODUCT_CONV_DATA;
    return desc->rows * profile_conv_side(desc, data, desc->height) *
           profile_conv_side(desc, data, desc->width);
}

double tess_profile_attention_s(const struct tess_profile *profile, enum tess_peak_type type,
                                bool forward, double flops, double length, double bytes)
{
    const double share = forward ? profile->attention_forward : profile->attention_backward;
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
    for (int i = 0; i < TESS_WORK_COUNT * TESS_WIDTHS; i++) {
        share.work_s[i / TESS_WIDTHS][i % TESS_WIDTHS] /= part;
        share.far_work_s[i / TESS_WIDTHS][i % TESS_WIDTHS] /= part;
    }
    share.start_s /= fmin(1, part);
    share.element_s /= part;
    share.old_byte_s /= part;
    share.cache_one.lost_byte_s /= part;
    share.cache_all.lost_byte_s /= part;
    share.bytes_per_s *= part;
    share.cache_bytes_per_s *= part;
    share.cache_bytes /= fmin(ranks, profile->cores);
    const double host = profile->host_bytes_per_s;
    if (host > 0 && share.bytes_per_s * ranks > host)
        share.bytes_per_s = host / ranks;
    return share;
}
