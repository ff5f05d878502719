/* From measurements to a profile; see calibrate.h. */
#include "predict/calibrate.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static int sample_width(const struct tess_sample *sample)
{
    return sample->type == TESS_PEAK_16 ? TESS_WIDTH_16 : TESS_WIDTH_32;
}

double tess_sample_predict(const struct tess_profile *profile, const struct tess_sample *sample)
{
    const double *size = sample->size;
    switch (sample->kind) {
    case TESS_SAMPLE_PASS:
        return tess_profile_pass_s(profile, sample->bytes);
    case TESS_SAMPLE_WORK:
        return tess_profile_work_s(profile, (enum tess_work)sample->which, sample_width(sample),
                                   false, size[0], sample->bytes);
    default:
        return tess_profile_layer_s(profile, (enum tess_product)sample->which, sample->type,
                                    size[0], size[1], size[2], sample->bytes);
    }
}

struct fit {
    struct tess_profile *profile;
    const struct tess_sample *sample;
    int32_t count;
    /* Those that count. */
    enum tess_sample_kind kind;
    enum tess_peak_type type;
    int which; /* of products */
};

static bool fit_takes(const struct fit *fit, const struct tess_sample *sample)
{
    return sample->kind == fit->kind && sample->type == fit->type &&
           (sample->kind != TESS_SAMPLE_PRODUCT || sample->which == fit->which);
}

static double fit_error(const struct fit *fit)
{
    double sum = 0;
    for (int32_t i = 0; i < fit->count; i++) {
        const struct tess_sample *sample = &fit->sample[i];
        if (!fit_takes(fit, sample))
            continue;
        const double off = log(tess_sample_predict(fit->profile, sample) / sample->seconds);
        sum += off * off;
    }
    return sum;
}

static bool fit_any(const struct fit *fit)
{
    bool any = false;
    for (int32_t i = 0; i < fit->count; i++)
        any = any || fit_takes(fit, &fit->sample[i]);
    return any;
}

/* One number up or down by a factor, if that is nearer. */
static bool fit_step(const struct fit *fit, double *number, double factor, double most,
                     double *error)
{
    const double was = *number, tried[] = {was * factor, was / factor};
    for (int i = 0; i < 2; i++) {
        *number = tried[i] < most ? tried[i] : most;
        const double now = fit_error(fit);
        if (now < *error) {
            *error = now;
            return true;
        }
    }
    *number = was;
    return false;
}

#define FIT_NUMBERS_MAX 5
#define FIT_ROUNDS_MAX  4000

/* Once more the way that a round has gone, as long as that is nearer: numbers that make up for each
 * other, such as a rate and the size at which it is reached, change together. */
static void fit_go_on(const struct fit *fit, int32_t count, double *const *number,
                      const double *most, const double *before, double *error)
{
    double from[FIT_NUMBERS_MAX], way[FIT_NUMBERS_MAX];
    for (int32_t n = 0; n < count; n++)
        way[n] = *number[n] / before[n];
    for (double now = *error;; *error = now) {
        for (int32_t n = 0; n < count; n++) {
            from[n] = *number[n];
            *number[n] = from[n] * way[n] < most[n] ? from[n] * way[n] : most[n];
        }
        now = fit_error(fit);
        if (now < *error)
            continue;
        for (int32_t n = 0; n < count; n++)
            *number[n] = from[n];
        return;
    }
}

/* Numbers that may be tried, each above 0 at first, and the greatest that they may become (Hooke
 * and Jeeves, "Direct search", 1961, in logarithms). */
static void fit_numbers(const struct fit *fit, int32_t count, double *const *number,
                        const double *most)
{
    double factor = 4, error = fit_error(fit), before[FIT_NUMBERS_MAX];
    if (!fit_any(fit))
        return;
    for (int round = 0; round < FIT_ROUNDS_MAX && factor > 1.0001; round++) {
        bool nearer = false;
        for (int32_t n = 0; n < count; n++)
            before[n] = *number[n];
        for (int32_t n = 0; n < count; n++)
            nearer = fit_step(fit, number[n], factor, most[n], &error) || nearer;
        if (nearer)
            fit_go_on(fit, count, number, most, before, &error);
        else
            factor = sqrt(factor);
    }
}

/* The time of an element is what is left of it: one measurement each. */
static void fit_works(struct tess_profile *profile, const struct tess_sample *sample, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        const struct tess_sample *one = &sample[i];
        const int width = sample_width(one);
        const double seconds = fmax(one->seconds - profile->start_s, one->seconds / 2);
        if (one->kind == TESS_SAMPLE_WORK && one->size[0] < TESS_PROFILE_FAR)
            profile->work_s[one->which][width] = seconds / one->size[0];
        else if (one->kind == TESS_SAMPLE_WORK)
            profile->far_work_s[one->which][width] = seconds / one->size[0];
    }
    profile->element_s = fmax(profile->work_s[TESS_WORK_GELU][TESS_WIDTH_32], profile->element_s);
}

/* One kind of product, from several places, as the search may end in a hollow. What was not
 * measured stays as any product. */
static void fit_product(struct fit *fit, struct tess_product_rate *rate)
{
    static const double most[FIT_NUMBERS_MAX] = {1e18, 1e5, 1e5, 1e5, 1e18};
    static const double start[][3] = {{1, 1, 4},   {32, 1, 4},   {1, 32, 4},   {32, 32, 4},
                                      {1, 1, 256}, {32, 1, 256}, {1, 32, 256}, {32, 32, 256}};
    double *const number[] = {&rate->flops_per_s, &rate->half_m, &rate->half_n, &rate->half_k};
    struct tess_product_rate best = {0};
    double least = INFINITY;
    for (size_t i = 0; i < sizeof(start) / sizeof(*start) && fit_any(fit); i++) {
        *rate = (struct tess_product_rate){.flops_per_s = fit->profile->flops_per_s[TESS_PEAK_F32],
                                           .half_m = start[i][0],
                                           .half_n = start[i][1],
                                           .half_k = start[i][2]};
        fit_numbers(fit, 1, number, most); /* else the halves make up for a rate that is far off */
        fit_numbers(fit, 4, number, most);
        const double error = fit_error(fit);
        best = error < least ? *rate : best;
        least = error < least ? error : least;
    }
    *rate = best;
}

/* What the formula leaves of each of them. */
static void fit_points(const struct fit *fit, struct tess_product_rate *rate)
{
    struct tess_product_point point[TESS_PROFILE_POINTS] = {{{0}, 0}};
    int32_t points = 0;
    for (int32_t i = 0; i < fit->count && points < TESS_PROFILE_POINTS; i++) {
        const struct tess_sample *sample = &fit->sample[i];
        if (!fit_takes(fit, sample))
            continue;
        for (int axis = 0; axis < 3; axis++)
            point[points].log2_size[axis] = log2(sample->size[axis]);
        point[points++].ratio = sample->seconds / tess_sample_predict(fit->profile, sample);
    }
    memcpy(rate->point, point, sizeof(point));
}

/* Every kind of product, and from the forward ones those of any product. */
static void fit_products(struct fit *fit)
{
    static const enum tess_peak_type type[] = {TESS_PEAK_F32, TESS_PEAK_16};
    struct tess_profile *profile = fit->profile;
    fit->kind = TESS_SAMPLE_PRODUCT;
    for (size_t t = 0; t < sizeof(type) / sizeof(*type); t++) {
        fit->type = type[t];
        for (fit->which = 0; fit->which < TESS_PRODUCT_COUNT; fit->which++) {
            fit_product(fit, &profile->product[fit->which][t]);
            fit_points(fit, &profile->product[fit->which][t]);
        }
        const struct tess_product_rate *any = &profile->product[TESS_PRODUCT_FORWARD][t];
        if (any->flops_per_s <= 0)
            continue;
        profile->flops_per_s[type[t]] = any->flops_per_s;
        if (t == TESS_WIDTH_32) {
            profile->half_m = any->half_m;
            profile->half_n = any->half_n;
            profile->half_k = any->half_k;
        }
    }
}

void tess_profile_fit(struct tess_profile *profile, const struct tess_sample *sample, int32_t count)
{
    static const double most[FIT_NUMBERS_MAX] = {1e18, 1e18, 1e18, 1e18, 1e18};
    struct fit fit = {.profile = profile,
                      .sample = sample,
                      .count = count,
                      .kind = TESS_SAMPLE_PASS,
                      .type = TESS_PEAK_F32};
    double *const pass[] = {&profile->bytes_per_s, &profile->cache_bytes_per_s, &profile->start_s,
                            &profile->cache_bytes};
    fit_numbers(&fit, 4, pass, most);
    fit_works(profile, sample, count);
    fit_products(&fit);
}
