/* What this machine's cores could do at most with a model, if a step were its products alone. */
#ifndef TESSERA_BENCH_STEP_BENCH_CEILING_H
#define TESSERA_BENCH_STEP_BENCH_CEILING_H

#include "config/config.h"
#include "data/data.h"
#include "state/declare.h"

/* Which way to compute each product of an operation was the fastest alone: numbers of
 * tess__best_open, -1: Tessera's; by enum tess_best_what. */
struct tess__bench_choice {
    int number[3];
};

struct tess__bench_ceiling {
    double samples_per_s; /* 0: there is nothing to measure */
    double flops_per_s;   /* of all cores together */
    /* In which oneDNN's products multiplied: f32 where it has none of the run's type for some. */
    enum tess_dtype dtype;
    struct tess__bench_choice *choice; /* [operations of the model]; to be freed */
};

/*
 * The speed, if all cores did nothing but the products of linear layers and convolutions:
 * `tess__bench_ceiling_rows` rows at once, with no grid, by the faster of the run's own kernels and
 * oneDNN's best primitive for the shape, the packing of weights not counted; where oneDNN has none
 * of the run's type, by the fastest of the run's kernels, oneDNN's f32 and Tessera's f32. It is
 * measured here, on `cores` cores at the same time, and depends on model, batch, precision and
 * those rows, on nothing else of the layout. There is nothing to measure where products run on a
 * device or the build has no oneDNN.
 */
enum tess_status tess__bench_ceiling(const struct tess_config *config,
                                     const struct tess_dataset *dataset, int cores,
                                     struct tess__bench_ceiling *ceiling_out);

/* Rows of a batch that one core multiplies at once: its share of the batch; the share of a rank of
 * the data axis where these are more than the cores, which then read all weights once for each. */
int64_t tess__bench_ceiling_rows(const struct tess_config *config, int cores);

/* The whole model as one core computes it for `rows` rows at once; tess__declare_free. */
enum tess_status tess__bench_ceiling_declare(const struct tess_config *config,
                                             const struct tess_dataset *dataset, int64_t rows,
                                             struct tess_declare *model_out, void **state_out);
/* Is it a product of the ceiling? What adds to another operation's gradient is a call of that one.
 */
bool tess__bench_ceiling_counts(const struct tess_op_desc *desc);

#endif
