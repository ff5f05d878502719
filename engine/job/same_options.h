/* Options of ranks that others started: all must be the same. */
#ifndef TESSERA_JOB_SAME_OPTIONS_H
#define TESSERA_JOB_SAME_OPTIONS_H

#include "base/options.h"
#include "tessera/device.h"

/* TESS_ERR_USAGE on every rank where a rank's options differ from those of rank 0, with the option
 * and both values. Collective over the ranks of `boot`. */
enum tess_status tess__same_options(const struct tess_options *options,
                                    const struct tess_boot *boot);

#endif
