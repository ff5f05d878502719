/* What this machine's cores could do at most with a model, if a step were its products alone, or
 * these, attention and the update. */
#ifndef TESSERA_BENCH_STEP_BENCH_CEILING_H
#define TESSERA_BENCH_STEP_BENCH_CEILING_H

#include "config/config.h"
#include "data/data.h"

struct tess__bench_ceiling {
    double samples_per_s; /* 0: there is nothing to measure */
    double flops_per_s;   /* of all cores together */
    /* With attention, by the run's kernels, and the update of every parameter: what a step can
     * reach that has nothing else to do. */
    double roof_samples_per_s;
    /* In which oneDNN's products multiplied: f32 where it has none of the run's type for some. */
    enum tess_dtype dtype;
};

/*
 * The speed, if all cores did nothing but the products of linear layers and convolutions:
 * `tess__bench_ceiling_rows` rows at once, with no grid, by the faster of the run's own kernels and
 * oneDNN's best primitive for the shape, the packing of weights not counted; where oneDNN has none
 * of the run's type, by the fastest of the run's kernels, oneDNN's f32 and Tessera's f32. It is
 * measured here, on `cores` cores at the same time, and depends on model, batch, precision and
 * those rows, on nothing else of the layout. Each core updates its share of the parameters, once a
 * step. There is nothing to measure where products run on a device or the build has no oneDNN.
 */
enum tess_status tess__bench_ceiling(const struct tess_config *config,
                                     const struct tess_dataset *dataset, int cores,
                                     struct tess__bench_ceiling *ceiling_out);

/* Rows of a batch that one core multiplies at once: its share of the batch; the share of a rank of
 * the data axis where these are more than the cores, which then read all weights once for each. */
int64_t tess__bench_ceiling_rows(const struct tess_config *config, int cores);

#endif
