/* Protected memory of `guard`, shared by its operations and its queues, and the queues of
 * `guard_queue`. Private to this room. */
#ifndef KERNELS_GUARD_MEMORY_H
#define KERNELS_GUARD_MEMORY_H

#include "tessera/kernel.h"

#include <pthread.h>

#define GUARD_AREA_MAX 64 /* a rank has one arena; tests and dp a few more */

struct guard_area {
    void *memory;
    size_t bytes;
    bool mapped; /* by alloc: unmapped with the area */
};

/* The lock is for other threads: communicators and queues of other ranks open the memory while the
 * rank computes. */
struct guard_state {
    pthread_mutex_t lock;
    struct guard_area area[GUARD_AREA_MAX];
    int area_count;
    int depth;                /* operations and accesses under way; memory is open while > 0 */
    struct tess_kernel *next; /* guard_queue: the next open kernel of the process */
};

enum tess_status tess__guard_open(struct tess_kernel *kernel);
void tess__guard_close(struct tess_kernel *kernel);
enum tess_status tess__guard_adopt(struct tess_kernel *kernel, void *memory, size_t bytes);
void tess__guard_disown(struct tess_kernel *kernel, void *memory, size_t bytes);
/* Freed by disown. */
enum tess_status tess__guard_alloc(struct tess_kernel *kernel, size_t bytes, void **memory_out);

/* Open (true) and close the kernel's memory; counted. Any thread. */
void tess__guard_touch(struct tess_kernel *kernel, bool on);
/* Is the address in an area of this kernel? Any thread. */
bool tess__guard_holds(struct tess_kernel *kernel, const void *memory);

/* ---- queue.c ---- */

extern const struct tess_queue_ops tess__guard_queue_ops;

/* The slots of tess_kernel_guard_queue that differ from those of guard. */
enum tess_status tess__guard_queue_open(struct tess_kernel *kernel);
void tess__guard_queue_close(struct tess_kernel *kernel);
void tess__guard_queue_disown(struct tess_kernel *kernel, void *memory, size_t bytes);
void tess__guard_queue_free(struct tess_kernel *kernel, void *memory);
enum tess_status tess__guard_queue_copy(struct tess_kernel *kernel, size_t bytes,
                                        const void *source, void *target);

#endif
