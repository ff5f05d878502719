/* The owner's side of tessera/kernel.h: opening and closing a backend, checking an operation. */
#ifndef KERNELS_KERNEL_OPEN_H
#define KERNELS_KERNEL_OPEN_H

#include "tessera/kernel.h"

/*
 * Open a backend with `threads` threads for each operation (at least 1). The open kernel's `ops` is
 * a copy in which empty OPTIONAL slots are filled in, so that adopt, disown, access and supports
 * may be called without a test for NULL. TESS_ERR_MEMORY, or the status of the backend's open.
 */
enum tess_status tess_kernel_open(const struct tess_kernel_ops *ops, int threads,
                                  struct tess_kernel **kernel_out);
void tess_kernel_close(struct tess_kernel *kernel); /* NULL is allowed */

/* That copy, for a backend whose open() chooses functions by the processor. */
struct tess_kernel_ops *tess__kernel_slots(struct tess_kernel *kernel);

/*
 * Pure. Whether the description makes sense at all, for any backend: sizes positive, rows a
 * multiple of leaf_rows, dtype f32, bf16 or f16, window inside the padded image, padding smaller
 * than the window, heads inside their strides. Fills `why` when not.
 */
bool tess_op_check(const struct tess_op_desc *desc, char *why, size_t why_bytes);

#endif
