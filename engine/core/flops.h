/*
 * How much arithmetic a training step is, and how much a device could do: what a model's declared
 * operations cost in floating-point operations (FLOPs), the peaks of known devices, and the share
 * of a peak that a run reaches, its model FLOPs utilisation (MFU: Chowdhery et al. 2022, "PaLM",
 * section 4.1 and appendix B). Pure arithmetic; measures nothing.
 *
 *     MFU = FLOPs of a step / (time of a step x devices x peak of a device)
 *
 * What is done twice (recompute) and what is no product (norms, optimizer) does not count: MFU says
 * what the user gets, not how busy the device is.
 */
#ifndef TESSERA_CORE_FLOPS_H
#define TESSERA_CORE_FLOPS_H

#include "config/config.h"
#include "data/data.h"
#include "tessera/kernel.h"

/*
 * FLOPs of training on one row (image, sequence): forward and backward. A multiply and an add are
 * two. Attention's are those of the whole square of positions, or with a window W of T^2 - (T -
 * W)^2 of it, and of packed samples the squares of their documents, the mean of the first samples;
 * a causal model needs only its lower half. Both ways to count are in use and stand 8 % apart for
 * GPT-2 at 1024 positions:
 *
 *     causal   products + attention / 2      what is computed: ours, and llm.c's
 *     PaLM     6 N + 12 L H Q T a token      appendix B: N parameters, L layers, H heads of Q, T
 *                                            positions; 12 L H Q T is the whole square
 */
struct tess_flops {
    double product;   /* linear, conv2d: backward is twice forward, or once without a gradient by
                         the input */
    double attention; /* the whole square */
    double tokens;    /* of a row; 1 for images */
    double parameters;
};

/* Add one operation's share, of all its rows and calls. What adds to another operation's gradient
 * (desc.add_grad) is that one's work. Pure. */
void tess_flops_add(const struct tess_op_desc *desc, struct tess_flops *flops);

double tess_flops_causal(const struct tess_flops *flops);
/* 0 where there is no attention: the formula is one for language models. */
double tess_flops_palm(const struct tess_flops *flops);

/* Of the configuration's model, whole, whatever its layout over ranks. */
enum tess_status tess_flops_count(const struct tess_config *config,
                                  const struct tess_dataset *dataset, struct tess_flops *flops_out);

/* Types that a device multiplies at different speeds. */
enum tess_peak_type { TESS_PEAK_F32, TESS_PEAK_TF32, TESS_PEAK_16, TESS_PEAK_FP8, TESS_PEAK_TYPES };

/* A device's peaks, as its datasheet has them: dense, without the doubling by structured sparsity
 * that datasheets print first. 0: it has no such units. */
struct tess_peak {
    const char *name;                    /* "H200" */
    double flops_per_s[TESS_PEAK_TYPES]; /* TESS_PEAK_16: bf16 and f16, added in f32 */
    double memory_bytes_per_s;
};

/* By the name that the driver gives, "NVIDIA H100 80GB HBM3"; NULL where it is not known, as are
 * slices of a device (MIG). */
const struct tess_peak *tess_peak_find(const char *device);

const char *tess_peak_type_name(enum tess_peak_type type); /* "tf32" */

/* The type in which the run's products are done. */
enum tess_peak_type tess_peak_type_of(const struct tess_config *config);

/* NaN where peak or time are not known. */
double tess_flops_utilisation(double flops_per_s, int32_t devices, double peak_flops_per_s);

#endif
