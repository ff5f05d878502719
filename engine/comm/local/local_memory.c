/*
 * Memory that peers can reach. With processes it is cut from the rank's window in the world's
 * mapping, which has the same address for all; with threads any memory will do.
 */
#include "comm/local/shared.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MEMORY_PAGE ((size_t)4096)
#define MEMORY_HUGE ((size_t)2 << 20)

static size_t memory_round(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* The first gap of the window that fits; blocks are kept in order of address. */
static enum tess_status memory_cut(struct local_rank *rank, struct local_block *block)
{
    struct tess_world *world = rank->world;
    char *window = (char *)world + world->window_offset + (size_t)rank->rank * world->window_bytes;
    size_t unit = block->bytes >= MEMORY_HUGE ? MEMORY_HUGE : MEMORY_PAGE;
    size_t begin = 0;
    struct local_block **link = &rank->blocks;
    while (*link != NULL) {
        size_t used = (size_t)((*link)->memory - window);
        if (begin <= used && block->bytes <= used - begin)
            break;
        begin = memory_round(used + (*link)->bytes, unit);
        link = &(*link)->next;
    }
    if (begin > world->window_bytes || block->bytes > world->window_bytes - begin)
        TESS_FAIL(TESS_ERR_MEMORY,
                  "cannot allocate %zu MiB of shared memory: the window of rank %d has %zu MiB; "
                  "use a smaller batch or model",
                  block->bytes >> 20, (int)rank->rank, world->window_bytes >> 20);
    block->memory = window + begin;
    if (block->bytes >= MEMORY_HUGE) /* a hint, for its last page too */
        (void)madvise(block->memory, memory_round(block->bytes, MEMORY_HUGE), MADV_HUGEPAGE);
    block->next = *link;
    *link = block;
    return TESS_OK;
}

static enum tess_status memory_map(struct local_rank *rank, struct local_block *block)
{
    block->mapping_bytes = block->bytes;
    if (block->bytes >= MEMORY_HUGE)
        block->mapping_bytes += MEMORY_HUGE; /* to align it */
    void *mapping = mmap(NULL, block->mapping_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate %zu MiB: %s", block->bytes >> 20,
                  strerror(errno));
    block->mapping = mapping;
    block->memory = mapping;
    if (block->bytes >= MEMORY_HUGE) {
        block->memory = (char *)memory_round((size_t)mapping, MEMORY_HUGE);
        (void)madvise(block->memory, block->bytes, MADV_HUGEPAGE); /* a hint */
    }
    block->next = rank->blocks;
    rank->blocks = block;
    return TESS_OK;
}

enum tess_status tess__local_alloc(struct tess_comm *comm, size_t bytes, void **memory_out)
{
    struct local_group *group = (struct local_group *)comm;
    struct local_rank *rank = group->rank;
    if (bytes > SIZE_MAX / 4)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate %zu bytes", bytes);
    struct local_block *block = calloc(1, sizeof(*block));
    if (block == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the description of a memory block");
    block->owner = group;
    block->bytes = memory_round(bytes > 0 ? bytes : 1, MEMORY_PAGE);
    enum tess_status status = rank->world->mode == TESS_RANKS_PROCESSES ? memory_cut(rank, block)
                                                                        : memory_map(rank, block);
    if (status != TESS_OK) {
        free(block);
        return status;
    }
    *memory_out = block->memory;
    return TESS_OK;
}

static void memory_free(struct local_rank *rank, struct local_block **link)
{
    struct local_block *block = *link;
    *link = block->next;
    /* Removing the pages gives them back to the system and makes the next user find zeros. */
    if (rank->world->mode == TESS_RANKS_THREADS)
        munmap(block->mapping, block->mapping_bytes);
    else if (madvise(block->memory, block->bytes, MADV_REMOVE) != 0)
        memset(block->memory, 0, block->bytes);
    free(block);
}

void tess__local_release(struct tess_comm *comm, void *memory)
{
    struct local_rank *rank = ((struct local_group *)comm)->rank;
    for (struct local_block **link = &rank->blocks; *link != NULL; link = &(*link)->next) {
        if ((*link)->memory == memory) {
            memory_free(rank, link);
            return;
        }
    }
}

void tess__local_release_all(struct local_group *group)
{
    struct local_block **link = &group->rank->blocks;
    while (*link != NULL) {
        if ((*link)->owner == group)
            memory_free(group->rank, link);
        else
            link = &(*link)->next;
    }
}
