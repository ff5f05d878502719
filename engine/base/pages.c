#include "base/pages.h"

#include <sys/mman.h>

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
