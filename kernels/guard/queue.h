/* The queues of `guard_queue`; see queue.c. Private to this room. */
#ifndef KERNELS_GUARD_QUEUE_H
#define KERNELS_GUARD_QUEUE_H

#include "tessera/kernel.h"

extern const struct tess_queue_ops tess__guard_queue_ops;

/* The slots of tess_kernel_guard_queue that differ from those of guard. */
enum tess_status tess__guard_queue_open(struct tess_kernel *kernel);
void tess__guard_queue_close(struct tess_kernel *kernel);
void tess__guard_queue_disown(struct tess_kernel *kernel, void *memory, size_t bytes);
void tess__guard_queue_free(struct tess_kernel *kernel, void *memory);
enum tess_status tess__guard_queue_copy(struct tess_kernel *kernel, size_t bytes,
                                        const void *source, void *target);

#endif
