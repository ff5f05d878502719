/* From measurements to a profile; see calibrate.h. */
#include "predict/calibrate.h"

#include <math.h>
#include <stddef.h>

double tess_sample_predict(const struct tess_profile *profile, const struct tess_sample *sample)
{
    const double *size = sample->size;
    switch (sample->kind) {
    case TESS_SAMPLE_PASS:
        return tess_profile_pass_s(profile, sample->bytes);
    case TESS_SAMPLE_MATH:
        return tess_profile_math_s(profile, size[0], sample->bytes);
    case TESS_SAMPLE_PRODUCT:
        return tess_profile_product_s(profile, sample->type, size[0], size[1], size[2],
                                      sample->bytes);
    default:
        return tess_profile_attention_s(profile, TESS_PEAK_F32, sample->kind == TESS_SAMPLE_FORWARD,
                                        size[0], size[1], sample->bytes);
    }
}

struct fit {
    struct tess_profile *profile;
    const struct tess_sample *sample;
    int32_t count;
    uint32_t kinds; /* those that count, a bit each */
    int type;       /* of products; -1: all */
};

static bool fit_takes(const struct fit *fit, const struct tess_sample *sample)
{
    return (fit->kinds >> sample->kind & 1) != 0 &&
           (sample->kind != TESS_SAMPLE_PRODUCT || fit->type < 0 || (int)sample->type == fit->type);
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

void tess_profile_fit(struct tess_profile *profile, const struct tess_sample *sample, int32_t count)
{
    struct fit fit = {.profile = profile, .sample = sample, .count = count, .type = -1};
    const double most[FIT_NUMBERS_MAX] = {1e18, 1e18, 1e18, 1e18, 1e18};
    const double share[] = {1, 1e6};

    fit.kinds = 1U << TESS_SAMPLE_PASS;
    double *const pass[] = {&profile->bytes_per_s, &profile->cache_bytes_per_s, &profile->start_s,
                            &profile->cache_bytes};
    fit_numbers(&fit, 4, pass, most);
    fit.kinds = 1U << TESS_SAMPLE_MATH;
    double *const math[] = {&profile->element_s};
    fit_numbers(&fit, 1, math, most);

    /* The halves are those of f32, as most operations are. */
    fit.kinds = 1U << TESS_SAMPLE_PRODUCT;
    fit.type = (int)TESS_PEAK_F32;
    double *const product[] = {&profile->flops_per_s[TESS_PEAK_F32], &profile->half_m,
                               &profile->half_n, &profile->half_k};
    fit_numbers(&fit, 1, product, most); /* else the halves make up for a rate that is far off */
    fit_numbers(&fit, 4, product, most);
    fit.type = (int)TESS_PEAK_16;
    double *const narrow[] = {&profile->flops_per_s[TESS_PEAK_16]};
    fit_numbers(&fit, 1, narrow, most);

    fit.kinds = 1U << TESS_SAMPLE_FORWARD;
    double *const forward[] = {&profile->attention_forward, &profile->attention_half};
    fit_numbers(&fit, 2, forward, share);
    fit.kinds = 1U << TESS_SAMPLE_BACKWARD;
    double *const backward[] = {&profile->attention_backward};
    fit_numbers(&fit, 1, backward, share);
}
