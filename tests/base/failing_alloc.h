/*
 * Put before a source file of the library, this makes its allocations fail on demand: all from the
 * n-th on, n set by failing_alloc_after(). The library is compiled a second time for this test,
 * which works under every sanitizer and with every linker.
 */
#ifndef TESSERA_TESTS_FAILING_ALLOC_H
#define TESSERA_TESTS_FAILING_ALLOC_H

#include <stdlib.h>
#include <string.h>

void *failing_malloc(size_t bytes);
void *failing_calloc(size_t count, size_t bytes);
void *failing_realloc(void *memory, size_t bytes);
char *failing_strdup(const char *text);

#define malloc  failing_malloc
#define calloc  failing_calloc
#define realloc failing_realloc
#undef strdup
#define strdup failing_strdup

#endif
