/*
 * Private memory from the system, for what is large and lives long. Pages come as they are first
 * touched, on the memory domain of the core that touches them; huge ones where the system gives
 * them to programs that ask (/sys/kernel/mm/transparent_hugepage/enabled: always or madvise), whose
 * addresses a core finds with fewer walks through tables.
 */
#ifndef TESSERA_BASE_PAGES_H
#define TESSERA_BASE_PAGES_H

#include <stddef.h>

/* At least `bytes`, zeroed, aligned to a page; NULL: there is none, errno says why. */
void *tess_pages_take(size_t bytes);
void tess_pages_give(void *pages, size_t bytes);

#endif
