/*
 * The communicator of one rank: every call is a copy, complete when it returns. Also the test of
 * the interface: a backend that has nothing to do must be short.
 */
#include "base/pages.h"
#include "comm/call.h"
#include "comm/world.h"
#include "tessera/check.h"
#include "tessera/communicator.h"
#include "tessera/version.h"

#include <stdlib.h>
#include <sys/queue.h>
#include <unistd.h>

/* The first page of what is allocated; the user's memory follows it. */
struct self_block {
    LIST_ENTRY(self_block) link;
    size_t bytes;
};

struct self_comm {
    struct tess_comm comm;
    LIST_HEAD(self_blocks, self_block) blocks;
    uint64_t call_count;
};

static enum tess_status self_call(struct tess_comm *comm, const struct tess_comm_call *call,
                                  uint64_t *ticket_out)
{
    *ticket_out = ++((struct self_comm *)comm)->call_count;
    tess_comm_called(comm, call, *ticket_out);
    /* With one rank the sum is the value and the only share is the whole. */
    enum tess_status status =
        tess__call_copy(call->device ? comm->queue : NULL, call->target, call->source,
                        call->count * tess_dtype_bytes(call->dtype));
    if (call->device)
        tess_comm_given(comm, *ticket_out, comm->queue);
    tess_comm_completed(comm, *ticket_out);
    return status;
}

static enum tess_status self_wait(struct tess_comm *comm, uint64_t ticket)
{
    (void)comm, (void)ticket;
    return TESS_OK;
}

static enum tess_status self_alloc(struct tess_comm *comm, size_t bytes, void **memory_out)
{
    struct self_comm *self = (struct self_comm *)comm;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = page + bytes;
    struct self_block *block = whole > bytes ? tess_pages_take(whole) : NULL;
    if (block == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate %zu MiB: use a smaller batch or model",
                  bytes >> 20);
    block->bytes = whole;
    LIST_INSERT_HEAD(&self->blocks, block, link);
    *memory_out = (char *)block + page;
    return TESS_OK;
}

static void self_free(struct self_block *block)
{
    LIST_REMOVE(block, link);
    tess_pages_give(block, block->bytes);
}

static void self_release(struct tess_comm *comm, void *memory)
{
    (void)comm;
    self_free((struct self_block *)((char *)memory - sysconf(_SC_PAGESIZE)));
}

static enum tess_status self_split(struct tess_comm *comm, int32_t color, int32_t key,
                                   struct tess_comm **child_out)
{
    (void)color, (void)key;
    return tess_comm_self_open(comm->order, child_out);
}

static void self_abort(struct tess_comm *comm, const char *reason)
{
    (void)comm, (void)reason; /* there is no other rank */
}

static void self_close(struct tess_comm *comm)
{
    struct self_comm *self = (struct self_comm *)comm;
    while (!LIST_EMPTY(&self->blocks))
        self_free(LIST_FIRST(&self->blocks));
    free(self);
}

static const struct tess_comm_ops self_ops = {
    .call = self_call,
    .wait = self_wait,
    .alloc = self_alloc,
    .release = self_release,
    .split = self_split,
    .abort = self_abort,
    .close = self_close,
};

enum tess_status tess_comm_self_open(enum tess_order order, struct tess_comm **comm_out)
{
    struct self_comm *self = calloc(1, sizeof(*self));
    if (self == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a communicator");
    self->comm = (struct tess_comm){.ops = &self_ops, .rank_count = 1, .order = order};
    *comm_out = &self->comm;
    return TESS_OK;
}

static enum tess_status self_open(const struct tess_comm_request *request,
                                  struct tess_comm **comm_out)
{
    return tess_comm_self_open(request->order, comm_out);
}

extern const struct tess_communicator_ops tess_communicator_self;
const struct tess_communicator_ops tess_communicator_self = {
    .abi = TESS_ABI,
    .name = "self",
    .summary = "one rank",
    .host = TESS_COMM_ALONE,
    .device = TESS_COMM_ALONE,
    .open = self_open,
};
