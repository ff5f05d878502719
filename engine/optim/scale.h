/*
 * Loss scaling: the factor on the loss that keeps small f16 gradients from becoming zero, and its
 * course over the steps (Micikevicius et al., "Mixed precision training", ICLR 2018, section 3.2).
 * Pure; who looks for gradients that are not finite, and what is skipped then, is step.c's.
 */
#ifndef TESSERA_OPTIM_SCALE_H
#define TESSERA_OPTIM_SCALE_H

#include "tessera/status.h"
#include "tessera/tensor.h"

#include <stdbool.h>
#include <stdint.h>

/* The greatest scale, 2^24, given or grown to: it lifts f16's smallest number, 2^-24, to 1. */
#define TESS_SCALE_MAX 16777216.0

enum tess_scale_mode { TESS_SCALE_OFF, TESS_SCALE_STATIC, TESS_SCALE_DYNAMIC };

struct tess_scale {
    enum tess_scale_mode mode;
    double value;     /* of the next step; 1 when off. Powers of two scale without rounding */
    int64_t interval; /* DYNAMIC: good steps in a row after which the scale is doubled */
    int64_t good;     /* DYNAMIC: good steps since the scale last changed */
    int64_t skipped;  /* steps skipped so far */
};

/*
 * The text of --loss-scale: auto, off, dynamic, dynamic:FIRST or static:K with FIRST and K whole
 * numbers from 1 to TESS_SCALE_MAX; auto is dynamic for f16 and off for other types.
 * TESS_ERR_USAGE, with the reason, for anything else.
 */
enum tess_status tess_scale_parse(const char *text, enum tess_dtype dtype, int64_t interval,
                                  struct tess_scale *scale_out);

/*
 * A step is over: were its gradients finite? Doubles a dynamic scale after `interval` good steps,
 * halves it after a bad one, which counts as skipped. TESS_ERR_NUMERIC, the scale unchanged and the
 * message to the caller, where halving would bring it below 1.
 */
enum tess_status tess_scale_next(struct tess_scale *scale, bool finite);

#endif
