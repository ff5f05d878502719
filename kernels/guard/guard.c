/*
 * The backend `guard`: computes with ref, but memory that was adopted is filled with NaN (0xff
 * bytes) and cannot be read or written except inside an operation or between access(true) and
 * access(false). So a machine without a GPU finds host code that touches device memory (it dies
 * with SIGSEGV at the very instruction) and results that depend on memory that was never written.
 * It is for tests: every operation costs two system calls per adopted area.
 *
 * `guard_queue` is the same with far memory, which access() does not open, and with queues; see
 * queue.c.
 */
#include "guard/guard.h"

#include "guard/memory.h"
#include "tessera/version.h"

const struct tess_kernel_ops tess_kernel_guard = {
    .abi = TESS_ABI,
    .name = "guard",
    .summary = "ref on protected memory filled with NaN, for tests",
    .state_size = sizeof(struct guard_state),
    .fills_memory = true,
    .open = tess__guard_open,
    .close = tess__guard_close,
    .adopt = tess__guard_adopt,
    .disown = tess__guard_disown,
    .access = tess__guard_touch,
    .bracket = tess__guard_touch,
};

const struct tess_kernel_ops tess_kernel_guard_queue = {
    .abi = TESS_ABI,
    .name = "guard_queue",
    .summary = "guard with far memory and queues that run as late as fences allow, for tests",
    .state_size = sizeof(struct guard_state),
    .fills_memory = true,
    .far_memory = true,
    .queue = &tess__guard_queue_ops,
    .open = tess__guard_queue_open,
    .close = tess__guard_queue_close,
    .adopt = tess__guard_adopt,
    .disown = tess__guard_queue_disown,
    .alloc = tess__guard_alloc,
    .free = tess__guard_queue_free,
    .read = tess__guard_queue_copy,
    .write = tess__guard_queue_copy,
    .bracket = tess__guard_touch,
};
