/* The owner's side of tessera/memory.h: opening, committing and listing a memory plan. */
#ifndef TESSERA_BASE_ARENA_H
#define TESSERA_BASE_ARENA_H

#include "tessera/memory.h"

enum tess_status tess_memory_open(struct tess_memory **memory_out);

/*
 * Put the plan on `arena` [tess_memory_total bytes], which is borrowed, and seal it: no further
 * reservation succeeds. TESS_ERR_INTERNAL when called twice.
 */
enum tess_status tess_memory_commit(struct tess_memory *memory, void *arena);

/* Does not free the arena. NULL is allowed. */
void tess_memory_close(struct tess_memory *memory);

/* Visit the blocks in order of reservation. */
void tess_memory_visit(const struct tess_memory *memory,
                       void (*visit)(void *context, enum tess_memory_kind kind, const char *owner,
                                     struct tess_block block),
                       void *context);

#endif
