/* Measuring the processor that ranks share: what becomes a profile of it. */
#ifndef TESSERA_PREDICT_CALIBRATE_H
#define TESSERA_PREDICT_CALIBRATE_H

#include "predict/profile.h"
#include "tessera/kernel.h"

/* One measurement, of one rank alone on its core. */
enum tess_sample_kind {
    TESS_SAMPLE_PASS,
    TESS_SAMPLE_WORK,
    TESS_SAMPLE_PRODUCT, /* and attention */
    TESS_SAMPLE_KINDS
};

struct tess_sample {
    enum tess_sample_kind kind;
    enum tess_peak_type type; /* f32 or 16 bits */
    int which;                /* WORK: enum tess_work; PRODUCT: enum tess_product */
    double size[3];           /* PRODUCT: m, n, k; WORK: elements, TESS_PROFILE_NEAR or FAR */
    double bytes;
    double seconds;
};

/* The seconds that a profile gives for it. Pure. */
double tess_sample_predict(const struct tess_profile *profile, const struct tess_sample *sample);

/*
 * The profile, one core of it, that comes nearest to the samples: the least mean square of the
 * logarithms of (predicted / measured), of each kind alone, by trying numbers up and down; what is
 * left of each product becomes a point of its kind. Starts with what *profile has, and changes its
 * rates, start_s, times of an element, and products. Pure.
 */
void tess_profile_fit(struct tess_profile *profile, const struct tess_sample *sample,
                      int32_t count);

/*
 * Measure this processor with a backend whose operations are done on return: products and attention
 * over their sizes, passes over memory, every other operation, and calls between ranks. Takes
 * limit_s seconds or a little more. The machine should do nothing else. name: of the profile.
 */
enum tess_status tess_profile_calibrate(const struct tess_kernel_ops *kernel, const char *name,
                                        double limit_s, struct tess_profile *profile_out);

#endif
