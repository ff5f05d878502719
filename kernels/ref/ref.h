/*
 * The backend `ref`: every operation in plain C, leaf by leaf. It is the reference for the others,
 * and they may delegate to its slots: a slot of a prepared operation uses desc and scratch of its
 * op and nothing else, provided that scratch has the size of tess_kernel_ref.op_needs. It never
 * touches packed, the tokens or, but for fp8, data: that is for operations that ref has opened.
 *
 * cast, accumulate, dropout, square_sum, update, lamb_direction and embedding_backward promise
 * their bits: every backend gives those of ref. What they compute per element or block is in
 * half.h, mask.h, rules.h and square.h, whose loops another backend may include in a file built for
 * a wider instruction set: nothing in them depends on vector width, given -ffp-contract=off.
 */
#ifndef KERNELS_REF_REF_H
#define KERNELS_REF_REF_H

#include "tessera/kernel.h"

extern const struct tess_kernel_ops tess_kernel_ref;

/*
 * embedding_backward in pieces that threads may share: sort, by one of them, then all rows of the
 * table, each once, in any order. `room` is a thread's own, of row_scratch bytes; the first
 * thread's is in op->scratch, NULL where none is needed.
 */
void tess__ref_embedding_sort(const struct tess_op *op, const int32_t *token, int64_t first);
void tess__ref_embedding_rows(const struct tess_op *op, const void *dy, int64_t first,
                              int64_t count, void *room, float *dtable);
size_t tess__ref_embedding_row_scratch(const struct tess_op_desc *desc);
void *tess__ref_embedding_row_room(const struct tess_op *op);

#endif
