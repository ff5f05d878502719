/* Sums, maxima and minima over arrays in the canonical tree order of tessera/comm.h. */
#ifndef TESSERA_BASE_REDUCE_H
#define TESSERA_BASE_REDUCE_H

#include "tessera/queue.h"
#include "tessera/tensor.h"

#include <stddef.h>
#include <stdint.h>

/* Arrays that one call may add up: as many as there are ranks at most. */
#define TESS_REDUCE_SOURCES_MAX 65536

/*
 * target[k][i] = tree over source[0 .. n-1][i], for every k < m. A target may be one of the
 * sources. Elements are bytes apart as dtype says; no alignment needed beyond the element's.
 */
void tess__reduce(enum tess_dtype dtype, enum tess_reduce reduce, int32_t n,
                  const void *const *source, int32_t m, void *const *target, size_t count);

/* The same into targets of another type: tess_queue_ops.reduce. */
void tess__reduce_to(enum tess_dtype dtype, enum tess_dtype to, enum tess_reduce reduce, int32_t n,
                     const void *const *source, int32_t m, void *const *target, size_t count);

#endif
