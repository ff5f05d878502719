/*
 * What the kernel tests share: a backend opened by name with an arena of its device memory,
 * arrays that travel between the test (doubles) and the device (any dtype), operations opened as
 * the engine opens them, and comparisons that print the first bad element.
 *
 * The arena is whole pages, so that `guard` protects it: a test that touched it outside put and get
 * would die. Far memory is the backend's own.
 */
#ifndef TESTS_KERNELS_DEVICE_H
#define TESTS_KERNELS_DEVICE_H

#include "tessera/kernel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka needs the four above first */
#include <cmocka.h>

struct device {
    struct tess_kernel *kernel;
    char *arena;
    size_t bytes, used;
};

/* Opens the backend, where it computes on devices on the first, or ends the program: with 77
 * (skipped) when it is known but cannot be had. */
void device_open(struct device *device, const char *backend, size_t bytes);
void device_close(struct device *device);

/* All arrays are given back at once: between cases. */
void device_reset(struct device *device);

/* An array on the device, 64-byte aligned, filled with NaN bytes (0xff). */
void *device_array(struct device *device, size_t bytes);
void device_put(struct device *device, void *target, const void *source, size_t bytes);
void device_get(struct device *device, void *target, const void *source, size_t bytes);

/* An array of `count` values, which must be exact in `dtype`: see draw(). */
void *device_put_real(struct device *device, enum tess_dtype dtype, const double *x, int64_t count);
void device_get_real(struct device *device, enum tess_dtype dtype, const void *source, double *x,
                     int64_t count);

/* A copy of device memory in host memory; the caller frees it. */
void *device_fetch(struct device *device, const void *source, size_t bytes);

/* Ask for needs, give scratch and packed on the device, open. */
void device_op_open(struct device *device, const struct tess_op_desc *desc, struct tess_op *op);
void device_op_close(struct tess_op *op);

/* Test memory, zeroed; ends the program when there is none. `count` 0 gives a valid pointer. */
double *reals(int64_t count);
float *floats(int64_t count);

/* Random numbers of the tests: SplitMix64, reproducible from the seed. */
struct draw {
    uint64_t state;
};
uint64_t draw_word(struct draw *draw);
int64_t draw_between(struct draw *draw, int64_t low, int64_t high); /* inclusive */
/* To draw random shapes from: `usual`, so that runs are alike; with TESS_TEST_SEED in the
 * environment another one, by that number, which is printed. */
struct draw draw_shapes(uint64_t usual);
/* Uniform in [-1, 1), rounded to `dtype`: the value is exact there. */
double draw_real(struct draw *draw, enum tess_dtype dtype);
double *draw_reals(struct draw *draw, enum tess_dtype dtype, int64_t count);

/* Round to nearest even in `dtype` (f32, bf16, f16), by arithmetic on the exponent, not on bits. */
double round_to(enum tess_dtype dtype, double x);

/*
 * What storing a number in `dtype` may change: relatively, half a unit in the last place, and
 * absolutely, half the smallest subnormal where that is within reach of the tests (f16, 2^-25).
 */
double unit_of(enum tess_dtype dtype);
double tiny_of(enum tess_dtype dtype);

/*
 * The one table of thresholds. A sum of n products whose absolute values add up to `magnitude`,
 * taken in f32 in any order, fused or not, is off by at most (n + 1) u magnitude, u = 2^-24, to
 * first order (Higham 2002, section 3.1). Storing it in the dtype rounds once more, by at most the
 * dtype's own unit times its size. The factor 2 covers the terms of second order and the additions
 * of bias.
 */
double bound_of(enum tess_dtype dtype, double n, double magnitude, double value);

/* Fail, naming `what`, the first bad index and both values. */
void check_close(const char *what, const double *got, const double *expected, const double *bound,
                 int64_t count);
/* check_close() of an array on the device. */
void device_check(struct device *device, const char *what, enum tess_dtype dtype, const void *got,
                  const double *expected, const double *bound, int64_t count);
void check_bytes(const char *what, const void *got, const void *expected, size_t bytes);

/* tree(leaf 0 .. n - 1) of arrays of `count`, split at the largest power of two below n,
 * recursively. */
void tree_sum(const float *leaf, int64_t n, int64_t count, float *sum);

/* The backend under test, from argv[1]; "ref" without. */
const char *device_backend(int argc, char **argv);

#endif
