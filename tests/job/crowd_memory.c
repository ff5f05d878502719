/*
 * Memory of a crowd: the functions of the C library, which count what each participant has.
 *
 * Of what is allocated, much is never used. Large blocks are therefore made of whole pages, which
 * take no memory before they are touched nor after they have been given back. All of them lie in
 * one mapping: with one each, 16,384 participants would have more than the 65,530 that Linux
 * allows a process (vm.max_map_count).
 */
#include "job/crowd_room.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LARGE_BYTES ((size_t)8 << 10)
#define PAGE_BYTES  ((size_t)4096)
#define SIZES       128 /* of blocks, in pages: 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ... */

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void __libc_free(void *memory);

/* Before the memory of a large block. */
struct large {
    size_t bytes; /* that may be used */
    size_t size;  /* its number */
};

static char *large_first, *large_next, *large_end;

static struct {
    char **block; /* that were given back */
    int count, room;
} large_free[SIZES];

static bool is_large(const void *memory)
{
    return (const char *)memory >= large_first && (const char *)memory < large_end;
}

static struct large *large_of(void *memory)
{
    return (struct large *)memory - 1;
}

static size_t pages_of(size_t size)
{
    return size < 4 ? size + 1 : (size % 4 + 5) << (size / 4 - 1);
}

static void *take_large(size_t bytes)
{
    const size_t pages = (bytes + sizeof(struct large) + PAGE_BYTES - 1) / PAGE_BYTES;
    size_t size = 0;
    char *block;
    while (size < SIZES && pages_of(size) < pages)
        size++;
    if (size < SIZES && large_free[size].count > 0) {
        block = large_free[size].block[--large_free[size].count];
    } else {
        if (size == SIZES || pages_of(size) > (size_t)(large_end - large_next) / PAGE_BYTES) {
            fprintf(stderr, "crowd: a block of %zu bytes does not fit in %zu GiB\n", bytes,
                    (size_t)(large_end - large_first) >> 30);
            abort();
        }
        block = large_next;
        large_next += pages_of(size) * PAGE_BYTES;
    }
    *(struct large *)block = (struct large){pages * PAGE_BYTES - sizeof(struct large), size};
    return (struct large *)block + 1;
}

static void give_large(void *memory)
{
    const size_t size = large_of(memory)->size;
    char *block = (char *)large_of(memory);
    if (large_free[size].count == large_free[size].room) {
        large_free[size].room = 2 * large_free[size].room + 64;
        large_free[size].block =
            __libc_realloc(large_free[size].block,
                           (size_t)large_free[size].room * sizeof(*large_free[size].block));
        if (large_free[size].block == NULL)
            abort();
    }
    large_free[size].block[large_free[size].count++] = block;
    if (madvise(block, pages_of(size) * PAGE_BYTES, MADV_DONTNEED) != 0)
        abort(); /* it would not be zero when it is taken again */
}

bool crowd_memory_open(size_t bytes)
{
    if (large_first != NULL)
        return true;
    char *memory = crowd_reserve(bytes);
    if (memory == NULL)
        return false;
    large_first = large_next = memory;
    large_end = memory + bytes;
    return true;
}

void *crowd_reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr,
                "crowd: no %zu GiB of addresses: %s (limits: ulimit -v, vm.overcommit_memory)\n",
                bytes >> 30, strerror(errno));
        return NULL;
    }
    (void)madvise(memory, bytes, MADV_NOHUGEPAGE); /* a huge page is there as a whole */
    return memory;
}

/* ---- counted --------------------------------------------------------------------------------- */

static struct member *counted(void)
{
    return crowd.current < 0 || crowd.inside ? NULL : &crowd.member[crowd.current];
}

static size_t bytes_of(void *memory)
{
    return is_large(memory) ? large_of(memory)->bytes : malloc_usable_size(memory);
}

static void *count_in(void *memory)
{
    struct member *member = counted();
    if (member == NULL || memory == NULL)
        return memory;
    member->live += bytes_of(memory);
    if (member->live > member->counts.memory)
        member->counts.memory = member->live;
    return memory;
}

static void count_out(void *memory)
{
    struct member *member = counted();
    if (member != NULL && memory != NULL)
        member->live -= bytes_of(memory);
}

static bool goes_large(size_t bytes)
{
    return bytes >= LARGE_BYTES && (crowd.inside || crowd.current >= 0);
}

void *malloc(size_t bytes)
{
    return count_in(goes_large(bytes) ? take_large(bytes) : __libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes)
{
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all) || !goes_large(all))
        return count_in(__libc_calloc(count, bytes));
    return count_in(take_large(all));
}

void *realloc(void *memory, size_t bytes)
{
    count_out(memory);
    if (memory == NULL || (!is_large(memory) && !goes_large(bytes)))
        return count_in(memory == NULL && goes_large(bytes) ? take_large(bytes)
                                                            : __libc_realloc(memory, bytes));
    void *other = goes_large(bytes) ? take_large(bytes) : __libc_malloc(bytes);
    if (other == NULL)
        return NULL;
    memcpy(other, memory, bytes_of(memory) < bytes ? bytes_of(memory) : bytes);
    if (is_large(memory))
        give_large(memory);
    else
        __libc_free(memory);
    return count_in(other);
}

void free(void *memory)
{
    count_out(memory);
    if (is_large(memory))
        give_large(memory);
    else
        __libc_free(memory);
}
