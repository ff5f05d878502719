/* Gradients of convolutions as sums over units, which the threads share: wave.c. */
#ifndef KERNELS_CPU_WAVE_H
#define KERNELS_CPU_WAVE_H

#include "cpu/prim.h"
#include "ref/fold.h"

/*
 * Images of a unit, a divisor of a leaf's `rows`. An image is `work`, and a leaf has at most `most`
 * units of `least` or more.
 */
int64_t tess__cpu_wave_images(int64_t rows, double work, double least, int64_t most);

/* The least work of a unit of a weight gradient, in multiplications: `pixels` for each weight,
 * since a unit's sum is written and added once. */
double tess__cpu_wave_work(const struct tess_op_desc *desc, int64_t pixels);

struct cpu_wave {
    const struct tess_op *op;
    /* sum = that over a unit's images; of these elements those of block 0 .. blocks - 1. Units are
     * those of all leaves, in order. */
    void (*run)(void *context, int64_t unit, int64_t block, float *sum, void *work);
    void *context;
    struct tess_fold fold; /* of the leaves, just begun */
    int64_t in_leaf;       /* units of a leaf */
    int64_t together;      /* units at a time */
    int64_t blocks;
    char *work; /* of the first thread; NULL: run() needs none */
    char *sums; /* [together, sum_bytes] */
    size_t sum_bytes;
    int64_t first, count; /* units of the wave */
};

/* Sum all units and finish the fold. */
void tess__cpu_wave_run(struct cpu_wave *wave, int64_t units);

#endif
