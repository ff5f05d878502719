/*
 * Memory from the system, for what is large and lives long. What is private has no file. Pages come
 * as they are first touched, on the memory domain of the core that touches them; huge ones where
 * the system gives them to programs that ask (/sys/kernel/mm/transparent_hugepage/enabled: always
 * or madvise), whose addresses a core finds with fewer walks through tables.
 */
#ifndef TESSERA_BASE_PAGES_H
#define TESSERA_BASE_PAGES_H

#include <stddef.h>

/* At least `bytes`, zeroed, aligned to a page; NULL: there is none, errno says why. */
void *tess_pages_take(size_t bytes);
void tess_pages_give(void *pages, size_t bytes);

/*
 * An empty file in memory, to be mapped by several processes; -1: errno says why. Where the system
 * lets this process, or one in a user namespace of its own, make a mount, the file lies in one
 * whose pages are huge in mappings that ask (MADV_HUGEPAGE). Elsewhere it is memfd_create()'s, for
 * which only root can allow that, for the whole system (shmem_enabled beside the file above).
 */
int tess_pages_file(void);

/* The pages of [start, start + bytes) exist afterwards, whole ones at both ends. A hint: where the
 * system is too old for it they come as they are touched. */
void tess_pages_make(void *start, size_t bytes);

#endif
