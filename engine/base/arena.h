/* The owner's side of tessera/memory.h: opening, committing and listing a memory plan. */
#ifndef TESSERA_BASE_ARENA_H
#define TESSERA_BASE_ARENA_H

#include "tessera/memory.h"

#include <stdbool.h>

enum tess_status tess_memory_open(struct tess_memory **memory_out);
/* Blocks are counted, and not listed for tess_memory_visit: for plans of which the sums are wanted,
 * one after the other. Before the first reservation. */
void tess_memory_unlisted(struct tess_memory *memory);
/* Of unlisted blocks, `bytes` of the arena with their padding are not wanted after all: sums alone
 * are right from here on, not where blocks are. */
void tess_memory_unreserve(struct tess_memory *memory, enum tess_memory_kind kind, uint64_t bytes);

/* tess_memory_reserve for block[0], block[stride] .. block[(count - 1) * stride], of `bytes` each;
 * stride 0: one of them is to be had from block[0]. */
enum tess_status tess_memory_reserve_each(struct tess_memory *memory, enum tess_memory_kind kind,
                                          uint64_t bytes, const char *owner, int32_t count,
                                          int32_t stride, struct tess_block *block);

/* As many bytes, with their padding, as were reserved before. False: not of blocks that are listed,
 * or of so many that the sums need a check. */
bool tess_memory_repeat(struct tess_memory *memory, enum tess_memory_kind kind, uint64_t bytes);

/*
 * Put the plan on `arena` [tess_memory_total bytes], which is borrowed, and seal it: no further
 * reservation succeeds. TESS_ERR_INTERNAL when called twice.
 */
enum tess_status tess_memory_commit(struct tess_memory *memory, void *arena);

/*
 * Count `bytes` of the host's memory beside the arena, which the owner of *block_out allocates:
 * they are in tess_memory_bytes of their kind and in tess_memory_beside, and have no address here.
 * Else as tess_memory_reserve.
 */
enum tess_status tess_memory_reserve_beside(struct tess_memory *memory, enum tess_memory_kind kind,
                                            uint64_t bytes, const char *owner,
                                            struct tess_block *block_out);
uint64_t tess_memory_beside(const struct tess_memory *memory);

/* Does not free the arena. NULL is allowed. */
void tess_memory_close(struct tess_memory *memory);

/* Visit the blocks in order of reservation. */
void tess_memory_visit(const struct tess_memory *memory,
                       void (*visit)(void *context, enum tess_memory_kind kind, const char *owner,
                                     struct tess_block block),
                       void *context);

#endif
