/* The arrays of the emulator's tests, each ended by a page that cannot be touched. */
#include "emulate/emulate.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES ((size_t)4096)
#define FILLED     0xff

struct emulate_block {
    unsigned char *memory, *array, *end; /* end: the page that cannot be touched */
    size_t bytes;
    struct emulate_block *next;
};

static struct emulate_block *blocks;

static void memory_fail(const char *what)
{
    fprintf(stderr, "emulate: %s\n", what);
    abort();
}

void *emulate_array(size_t bytes, size_t offset)
{
    size_t room = (offset + bytes + 15) / 16 * 16;
    size_t pages = (room + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    struct emulate_block *block = malloc(sizeof(*block));
    unsigned char *memory =
        mmap(NULL, pages + PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!block || memory == MAP_FAILED || mprotect(memory + pages, PAGE_BYTES, PROT_NONE) != 0)
        memory_fail("no memory for an array");
    memset(memory, FILLED, pages);
    unsigned char *end = memory + pages;
    *block = (struct emulate_block){
        .memory = memory, .array = end - room + offset, .end = end, .bytes = bytes, .next = blocks};
    blocks = block;
    return block->array;
}

void *emulate_copy_of(const void *source, size_t bytes)
{
    void *array = emulate_array(bytes, 0);
    if (bytes > 0)
        memcpy(array, source, bytes);
    return array;
}

void emulate_free_all(void)
{
    while (blocks) {
        struct emulate_block *block = blocks;
        blocks = block->next;
        for (unsigned char *p = block->memory; p < block->end; p++)
            if ((p < block->array || p >= block->array + block->bytes) && *p != FILLED)
                memory_fail("a kernel wrote outside an array");
        munmap(block->memory, (size_t)(block->end - block->memory) + PAGE_BYTES);
        free(block);
    }
}
