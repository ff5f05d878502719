/*
 * Opening a backend: its empty slots are filled, operations with those of ref. The public wrappers
 * of operations are in prepared.c and plain.c.
 */
#include "kernel_open.h"

#include "ref/ref.h"
#include "tessera/check.h"
#include "wrap.h"

#include <stdlib.h>
#include <string.h>

/* ---- defaults of empty slots ----------------------------------------------------------------- */

static enum tess_status kernel_adopt_default(struct tess_kernel *kernel, void *memory, size_t bytes)
{
    (void)kernel;
    (void)memory;
    (void)bytes;
    return TESS_OK;
}

static void kernel_disown_default(struct tess_kernel *kernel, void *memory, size_t bytes)
{
    (void)kernel;
    (void)memory;
    (void)bytes;
}

static void kernel_access_default(struct tess_kernel *kernel, bool on)
{
    (void)kernel;
    (void)on;
}

static enum tess_status kernel_copy_default(struct tess_kernel *kernel, size_t bytes,
                                            const void *source, void *target)
{
    kernel->ops->access(kernel, true);
    memcpy(target, source, bytes);
    kernel->ops->access(kernel, false);
    return TESS_OK;
}

/* Zeros, of which pages are made when they are touched; 64-byte aligned. Before them is where they
 * were allocated. */
static enum tess_status kernel_pin_default(struct tess_kernel *kernel, size_t bytes,
                                           void **memory_out)
{
    char *const whole = calloc(1, bytes + sizeof(whole) + 64);
    if (whole == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "kernel %s: cannot allocate %zu bytes of host memory",
                  kernel->ops->name, bytes);
    char *const memory = (char *)tess_round_up((uintptr_t)(whole + sizeof(whole)), 64);
    memcpy(memory - sizeof(whole), &whole, sizeof(whole));
    *memory_out = memory;
    return TESS_OK;
}

static void kernel_unpin_default(struct tess_kernel *kernel, void *memory)
{
    (void)kernel;
    char *whole;
    if (memory == NULL)
        return;
    memcpy(&whole, (char *)memory - sizeof(whole), sizeof(whole));
    free(whole);
}

static enum tess_status kernel_choose_default(struct tess_kernel *kernel,
                                              const struct tess_kernel_choices *choices)
{
    (void)kernel;
    (void)choices;
    return TESS_OK;
}

static void kernel_describe_default(const struct tess_kernel *kernel,
                                    void (*line)(void *context, const char *text), void *context)
{
    (void)kernel;
    (void)line;
    (void)context;
}

static uint8_t kernel_settle_default(struct tess_kernel *kernel, uint8_t all)
{
    (void)kernel;
    return all;
}

static enum tess_status kernel_nothing(struct tess_kernel *kernel)
{
    (void)kernel;
    return TESS_OK;
}

static void kernel_close_default(struct tess_kernel *kernel)
{
    (void)kernel;
}

/* ---- opening -------------------------------------------------------------------------------- */

static enum tess_status kernel_failed(struct tess_kernel *kernel)
{
    struct tess__kernel_block *block = (struct tess__kernel_block *)kernel;
    if (block->lacking != NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "kernel %s: results are wrong without the operation %s",
                  kernel->ops->name, block->lacking);
    return block->failed(kernel);
}

#define KERNEL_DEFAULT(slot, value)                                                                \
    if (!(slot))                                                                                   \
    (slot) = (value)

/* ref computes what a backend has no slot for, where the host can be let into its memory. */
static void kernel_delegate(struct tess_kernel_ops *ops)
{
    if (ops->far_memory && ops->bracket == NULL)
        return;
    KERNEL_DEFAULT(ops->op_needs, tess_kernel_ref.op_needs);
    KERNEL_DEFAULT(ops->op_open, tess_kernel_ref.op_open);
    KERNEL_DEFAULT(ops->op_close, tess_kernel_ref.op_close);
#define KERNEL_DELEGATE(name) KERNEL_DEFAULT(ops->name, tess_kernel_ref.name);
    TESS_OPERATION_LIST(KERNEL_DELEGATE)
#undef KERNEL_DELEGATE
}

static void kernel_fill_slots(struct tess__kernel_block *block)
{
    struct tess_kernel_ops *ops = &block->ops;
    kernel_delegate(ops);
    KERNEL_DEFAULT(ops->supports, tess_op_check);
    KERNEL_DEFAULT(ops->open, kernel_nothing);
    KERNEL_DEFAULT(ops->close, kernel_close_default);
    KERNEL_DEFAULT(ops->choose, kernel_choose_default);
    KERNEL_DEFAULT(ops->describe, kernel_describe_default);
    KERNEL_DEFAULT(ops->settle, kernel_settle_default);
    KERNEL_DEFAULT(ops->adopt, kernel_adopt_default);
    KERNEL_DEFAULT(ops->disown, kernel_disown_default);
    KERNEL_DEFAULT(ops->access, kernel_access_default);
    KERNEL_DEFAULT(ops->bracket, kernel_access_default);
    KERNEL_DEFAULT(ops->read, kernel_copy_default);
    KERNEL_DEFAULT(ops->write, kernel_copy_default);
    KERNEL_DEFAULT(ops->pin, kernel_pin_default);
    KERNEL_DEFAULT(ops->unpin, kernel_unpin_default);
    KERNEL_DEFAULT(ops->failed, kernel_nothing);
    block->failed = ops->failed;
    ops->failed = kernel_failed;
}

enum tess_status tess_kernel_open(const struct tess_kernel_ops *ops, int threads,
                                  struct tess_kernel **kernel_out)
{
    size_t bytes = sizeof(struct tess__kernel_block) + tess_round_up(ops->state_size, 64);
    struct tess__kernel_block *block = aligned_alloc(64, bytes);
    if (block == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "kernel %s: cannot allocate %zu bytes of state", ops->name,
                  bytes);
    memset(block, 0, bytes);
    block->ops = *ops;
    kernel_fill_slots(block);
    block->kernel = (struct tess_kernel){
        .ops = &block->ops,
        .threads = threads > 1 ? threads : 1,
        .state = block->state,
    };
    enum tess_status status = block->ops.open(&block->kernel);
    if (status != TESS_OK) {
        free(block);
        return status;
    }
    *kernel_out = &block->kernel;
    return TESS_OK;
}

void tess_kernel_close(struct tess_kernel *kernel)
{
    if (kernel == NULL)
        return;
    kernel->ops->close(kernel);
    free(kernel); /* the first member of its block */
}

/* ---- host and device ------------------------------------------------------------------------ */

enum tess_status tess_read(struct tess_kernel *kernel, size_t bytes, const void *device, void *host)
{
    return bytes > 0 ? kernel->ops->read(kernel, bytes, device, host) : TESS_OK;
}

enum tess_status tess_write(struct tess_kernel *kernel, size_t bytes, const void *host,
                            void *device)
{
    return bytes > 0 ? kernel->ops->write(kernel, bytes, host, device) : TESS_OK;
}

enum tess_status tess_upload(struct tess_kernel *kernel, size_t bytes, const void *pinned,
                             void *device)
{
    if (kernel->queue == NULL)
        return tess_write(kernel, bytes, pinned, device);
    return bytes > 0 ? kernel->queue->ops->copy(kernel->queue, bytes, pinned, device) : TESS_OK;
}
