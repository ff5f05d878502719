/*
 * Queues and fences: the order of work on a device that computes beside the host.
 *
 * A queue runs what it was given in order, later than the call that gave it. A fence is a point of
 * a queue's work. Between queues, of any ranks of a process, only fences make an order. A backend
 * whose operations are done when they return has no queues; another gives every rank a queue for
 * its kernels (tess_kernel.queue), and communicators and checkpoints open more of them beside it:
 *
 *     kernels     | forward 0 | forward 1 | forward 2 |
 *     gathers     | gather 1 . | gather 2 . |               a dot: a fence that the kernels follow
 *
 * Nothing here blocks the host except wait(). Queues, fences and pinned memory are made at set-up;
 * recording and following allocate nothing.
 */
#ifndef TESSERA_QUEUE_H
#define TESSERA_QUEUE_H

#include "tessera/status.h"
#include "tessera/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TESS_BEGIN_DECLS

enum tess_reduce { TESS_REDUCE_SUM, TESS_REDUCE_MAX, TESS_REDUCE_MIN };

struct tess_kernel;
struct tess_queue;
struct tess_queue_ops;

/* The backend's own struct begins with it. */
struct tess_fence {
    const struct tess_queue_ops *ops;
};

/* All slots are required of a backend that has queues. Ranks of one process may use each other's
 * fences and device memory; a queue is given work by its own rank's thread alone. */
struct tess_queue_ops {
    enum tess_status (*open)(struct tess_kernel *kernel, struct tess_queue **queue_out);
    void (*close)(struct tess_queue *queue); /* after its work is done */
    enum tess_status (*fence_open)(struct tess_kernel *kernel, struct tess_fence **fence_out);
    void (*fence_close)(struct tess_fence *fence);

    /* The fence is the end of what the queue has been given so far, no longer what it was. */
    enum tess_status (*record)(struct tess_queue *queue, struct tess_fence *fence);
    /* What the queue is given from now on runs after the fence as it was last recorded, if ever. */
    enum tess_status (*follow)(struct tess_queue *queue, const struct tess_fence *fence);
    /* Has the work before the fence been done? Errors of that work are returned here. */
    enum tess_status (*reached)(const struct tess_fence *fence, bool *reached_out);
    /* Block the host until it has. Any thread. */
    enum tess_status (*wait)(const struct tess_fence *fence);
    /* Seconds on the device between two fences that have been reached. */
    enum tess_status (*elapsed)(const struct tess_fence *from, const struct tess_fence *to,
                                double *seconds_out);

    /* Queue a copy; between device memory, or with host memory that is pinned
     * (tess_kernel_ops.pin) for it not to block. */
    enum tess_status (*copy)(struct tess_queue *queue, size_t bytes, const void *source,
                             void *target);
    /*
     * Queue target[k][i] = tree over source[0 .. n-1][i] for every k < m: the tree of
     * tessera/comm.h, f16 and bf16 in f32 and rounded once. A target may be one of the sources.
     * All are device memory that this rank can reach. n, m <= TESS_QUEUE_PEERS_MAX.
     *
     * Targets are of the type `to`: that of the sources, or, for sums that are taken in two turns,
     * f32 of sources in 16 bits and 16 bits of sources in f32. Then no target is a source.
     */
    enum tess_status (*reduce)(struct tess_queue *queue, enum tess_dtype dtype, enum tess_dtype to,
                               enum tess_reduce reduce, int32_t n, const void *const *source,
                               int32_t m, void *const *target, size_t count);
    /* Is this memory that only the device, not the host, may read and write? Any thread. */
    bool (*owns)(const struct tess_kernel *kernel, const void *memory);
};

#define TESS_QUEUE_PEERS_MAX 64

/* The backend's own struct begins with it. */
struct tess_queue {
    const struct tess_queue_ops *ops;
    struct tess_kernel *kernel;
    void *native; /* the device library's handle: cudaStream_t */
};

TESS_END_DECLS
#endif
