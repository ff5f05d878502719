/* The share of its devices' peak that a run reaches; see core/flops.h for the formula. */
#ifndef TESSERA_RUN_MFU_H
#define TESSERA_RUN_MFU_H

#include "job/run.h"

#include <jansson.h>

/* FLOPs of one sample, forward and backward; filled by tess__run_open. Peaks are of one device in
 * operations per second, NaN where they are unknown, as on the host. */
struct tess__mfu {
    double dense, measured;             /* by datasheet; by --peak-tflops */
    double mfu, mfu_measured, mfu_palm; /* shares at some speed; mfu_palm: PaLM's count, dense */
    double flops_per_s;                 /* of the model at that speed, over all devices */
};

struct tess__mfu tess__mfu_at(const struct tess__run *run, double samples_per_s);

/* "MFU 41.2 % of 989 TFLOP/s dense bf16 (H200), ...", of the whole run. To stdout. */
void tess__mfu_print_end(const struct tess__run *run);

/* The formula with this run's numbers. To stdout. */
void tess__mfu_explain(const struct tess__run *run);

/* Add "flops_per_s", and "mfu" and related values where a peak is known, beside "samples_per_s". */
void tess__mfu_record(json_t *object, const struct tess__run *run, double samples_per_s);

/* {"flops_per_sample", ..., "peak_flops_per_s", ...}: what the shares are of. */
json_t *tess__mfu_record_model(const struct tess__run *run);

#endif
