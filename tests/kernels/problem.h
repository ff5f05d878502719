/*
 * What the gradient tests share: the check of one forward/backward pair in f32. The slope of s(t) =
 * sum of r * y(p + t q) along a random direction q, by central differences, against the sum of
 * gradient * q, sums in double.
 *
 * Tolerance. The slope is extrapolated from the central differences D at h and h/2, (4 D(h/2) -
 * D(h)) / 3, whose error is of the order of h^4 times the fifth derivative (h = 1/16, so 1.5e-5 of
 * it, and 0 for the operations that are linear or bilinear). y is off by some 2^-24 per element,
 * with random signs, so s is off by about 2^-24 |r| sqrt(count) and the slope by 1/h times that:
 * below 1e-5 |r| |q| here. A wrong term is of the size |r| |q| itself. 1e-3 |r| |q| lies between
 * with a wide margin on both sides.
 */
#ifndef TESTS_KERNELS_PROBLEM_H
#define TESTS_KERNELS_PROBLEM_H

#include "device.h"

#define STEP      0.0625
#define TOLERANCE 1e-3
#define PART_MAX  4

/* What is differentiated: some input arrays, one output array. */
struct problem {
    const char *name;
    struct device *device;
    struct tess_op op;
    int part_count;               /* x; weights or gamma; bias or beta; q, k, v */
    int64_t count[PART_MAX], out; /* elements of the inputs and of the output */
    double *p[PART_MAX], *q[PART_MAX], *r;
    float *p_dev[PART_MAX], *grad_dev[PART_MAX], *y, *r_dev;
    float *aux[4]; /* [out + 64] each */
    uint8_t *which;
    int32_t *label;
    void (*forward)(struct problem *problem);
    void (*backward)(struct problem *problem);
};

/* Draw what is not there, and put it on the device. */
void problem_open(struct problem *b, struct draw *draw);

/* The check above; frees p, q and r. */
void problem_check(struct problem *b);

#endif
