/*
 * The baseline of `tessera bench kernels`: plain oneDNN primitives for one product of a layer, and
 * a plain loop for memory bandwidth. Not part of the backend.
 */
#ifndef KERNELS_CPU_BEST_H
#define KERNELS_CPU_BEST_H

#include "tessera/kernel.h"

enum tess_best_what { TESS_BEST_FORWARD, TESS_BEST_BACKWARD_DATA, TESS_BEST_BACKWARD_WEIGHT };

/* Has this build oneDNN? Without it there are the loops only. */
bool tess__best_is_there(void);

struct tess_best; /* one primitive with its own memory, filled with random numbers */

#define TESS_BEST_CANDIDATES 3

/*
 * Candidate `number`, from 0: LINEAR matmul on plain arrays, matmul on packed weights (FORWARD,
 * BACKWARD_DATA) or packed x, inner product on packed weights; CONV2D direct convolution on packed
 * weights. Packing is not part of the run. *best_out is NULL where there is none: a convolution has
 * one, and oneDNN no primitives that multiply f16, or bf16 without AVX-512. TESS_ERR_UNSUPPORTED in
 * a build without oneDNN.
 */
enum tess_status tess__best_open(const struct tess_op_desc *desc, enum tess_best_what what,
                                 int number, int threads, struct tess_best **best_out);
void tess__best_close(struct tess_best *best); /* NULL is allowed */
const char *tess__best_name(const struct tess_best *best);
enum tess_status tess__best_run(struct tess_best *best);
/* Run on `memory` of the caller's from now on, if it has room for the argument: 0 x (or dy for dx),
 * 1 weights, 2 the result, 3 bias; of BACKWARD_WEIGHT x, dy, dw. Packed ones may need more room
 * than plain ones. */
void tess__best_use(struct tess_best *best, int arg, void *memory, size_t bytes);

/* y[i] += x[i], vectorised for this processor. */
void tess__best_add(int64_t count, const float *x, float *y);

/*
 * The softmax of attention that keeps all its scores: s [length, length] becomes softmax(scale s)
 * of each row up to the diagonal and 0 beyond; dp becomes the gradient of s, given p.
 */
void tess__best_softmax(enum tess_dtype dtype, int64_t length, float scale, void *s);
void tess__best_softmax_grad(enum tess_dtype dtype, int64_t length, float scale, const void *p,
                             void *dp);

#endif
