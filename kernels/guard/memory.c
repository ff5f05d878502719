/*
 * The protected memory of `guard`: areas that are adopted or allocated, and the count of operations
 * and accesses that have them open.
 */
#include "guard/memory.h"

#include "tessera/check.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE ((size_t)2 << 20)

static void memory_protect(const struct guard_area *area, int protection)
{
    /* Cannot fail: the same call succeeded when the area was added, and changing whole mappings
     * splits none. */
    (void)mprotect(area->memory, area->bytes, protection);
}

static void memory_drop(struct guard_state *state, int at)
{
    struct guard_area area = state->area[at];
    state->area[at] = state->area[--state->area_count];
    if (area.mapped)
        (void)munmap(area.memory, area.bytes);
    else
        memory_protect(&area, PROT_READ | PROT_WRITE);
}

enum tess_status tess__guard_open(struct tess_kernel *kernel)
{
    struct guard_state *state = kernel->state;
    if (pthread_mutex_init(&state->lock, NULL) != 0)
        TESS_FAIL(TESS_ERR_MEMORY, "kernel %s: cannot make a lock", kernel->ops->name);
    return TESS_OK;
}

void tess__guard_close(struct tess_kernel *kernel)
{
    struct guard_state *state = kernel->state;
    while (state->area_count > 0)
        memory_drop(state, state->area_count - 1);
    pthread_mutex_destroy(&state->lock);
}

void tess__guard_touch(struct tess_kernel *kernel, bool on)
{
    struct guard_state *state = kernel->state;
    pthread_mutex_lock(&state->lock);
    int before = state->depth;
    state->depth += on ? 1 : -1;
    bool changes = on ? before == 0 : before == 1;
    for (int i = 0; changes && i < state->area_count; i++)
        memory_protect(&state->area[i], on ? PROT_READ | PROT_WRITE : PROT_NONE);
    pthread_mutex_unlock(&state->lock);
}

bool tess__guard_holds(struct tess_kernel *kernel, const void *memory)
{
    struct guard_state *state = kernel->state;
    bool found = false;
    pthread_mutex_lock(&state->lock);
    for (int i = 0; i < state->area_count && !found; i++)
        found = (uintptr_t)memory - (uintptr_t)state->area[i].memory < state->area[i].bytes;
    pthread_mutex_unlock(&state->lock);
    return found;
}

static enum tess_status memory_add(struct tess_kernel *kernel, struct guard_area area)
{
    struct guard_state *state = kernel->state;
    if (state->area_count == GUARD_AREA_MAX)
        TESS_FAIL(TESS_ERR_INTERNAL, "kernel %s: more than %d areas of device memory",
                  kernel->ops->name, GUARD_AREA_MAX);
    int protection = state->depth > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (mprotect(area.memory, area.bytes, protection) != 0)
        TESS_FAIL(TESS_ERR_MEMORY, "kernel %s: cannot protect %zu bytes at %p: %s",
                  kernel->ops->name, area.bytes, area.memory, strerror(errno));
    state->area[state->area_count++] = area;
    return TESS_OK;
}

enum tess_status tess__guard_adopt(struct tess_kernel *kernel, void *memory, size_t bytes)
{
    struct guard_state *state = kernel->state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes == 0)
        return TESS_OK;
    if ((uintptr_t)memory % page != 0 || bytes % page != 0)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "kernel %s: device memory must be whole pages of %zu bytes, got %zu at %p",
                  kernel->ops->name, page, bytes, memory);
    memset(memory, 0xff, bytes);
    pthread_mutex_lock(&state->lock);
    enum tess_status status =
        memory_add(kernel, (struct guard_area){.memory = memory, .bytes = bytes});
    pthread_mutex_unlock(&state->lock);
    return status;
}

void tess__guard_disown(struct tess_kernel *kernel, void *memory, size_t bytes)
{
    struct guard_state *state = kernel->state;
    (void)bytes;
    pthread_mutex_lock(&state->lock);
    for (int i = 0; i < state->area_count; i++) {
        if (state->area[i].memory != memory)
            continue;
        memory_drop(state, i);
        break;
    }
    pthread_mutex_unlock(&state->lock);
}

/* Whole huge pages where the system has some: protecting one takes as long as protecting a small
 * one. */
static void *memory_map(size_t bytes)
{
    char *mapping = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return NULL;
    const size_t skip = HUGE_PAGE - (uintptr_t)mapping % HUGE_PAGE;
    (void)munmap(mapping, skip);
    (void)munmap(mapping + skip + bytes, HUGE_PAGE - skip);
    (void)madvise(mapping + skip, bytes, MADV_HUGEPAGE);
    return mapping + skip;
}

enum tess_status tess__guard_alloc(struct tess_kernel *kernel, size_t bytes, void **memory_out)
{
    struct guard_state *state = kernel->state;
    const size_t whole = (bytes + HUGE_PAGE) / HUGE_PAGE * HUGE_PAGE;
    void *memory = whole < bytes ? NULL : memory_map(whole);
    if (memory == NULL)
        TESS_FAIL(TESS_ERR_MEMORY,
                  "kernel %s: cannot allocate %zu MiB: use a smaller batch or model",
                  kernel->ops->name, bytes >> 20);
    pthread_mutex_lock(&state->lock);
    enum tess_status status =
        memory_add(kernel, (struct guard_area){.memory = memory, .bytes = whole, .mapped = true});
    pthread_mutex_unlock(&state->lock);
    if (status != TESS_OK)
        (void)munmap(memory, whole);
    else
        *memory_out = memory;
    return status;
}
