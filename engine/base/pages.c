#include "base/pages.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

void *tess_pages_take(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return NULL;
    (void)madvise(pages, bytes, MADV_HUGEPAGE); /* a hint */
    return pages;
}

void tess_pages_give(void *pages, size_t bytes)
{
    munmap(pages, bytes);
}

void tess_pages_make(void *start, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)start;
    const uintptr_t begin = at / page * page;
    (void)madvise((void *)begin, at + bytes - begin, MADV_POPULATE_WRITE);
#else
    (void)start, (void)bytes;
#endif
}
