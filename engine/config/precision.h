/* The precision of a run: which types, which operations are excepted. Pure. */
#ifndef TESSERA_CONFIG_PRECISION_H
#define TESSERA_CONFIG_PRECISION_H

#include "config/config.h"
#include "tessera/kernel.h"

/* Limits that join the options of precision, loss scaling among them. TESS_ERR_USAGE. */
enum tess_status tess_precision_check(const struct tess_run_options *run);

/*
 * The list of --f32-ops as bits, 1 << kind for enum tess_op_kind; 0 for an empty list. Names are
 * separated by commas and may have spaces around them. TESS_ERR_USAGE for a name that is no
 * operation that multiplies matrices.
 */
enum tess_status tess_precision_f32_ops(const char *list, uint32_t *kinds_out);

/* "linear", "conv2d", ... */
const char *tess_precision_op_name(enum tess_op_kind kind);

/* Does the run keep an f32 master beside each parameter in a smaller type? */
bool tess_precision_has_masters(const struct tess_run_options *run);

/* Are updated parameters rounded at random? */
bool tess_precision_is_stochastic(const struct tess_run_options *run);

#endif
