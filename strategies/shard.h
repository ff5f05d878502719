/*
 * Groups of ranks and what moves between them: the arithmetic of sharding. Pure.
 *
 * Ranks form `rank_count / width` replicas of a shard group of `width` neighbours each:
 *
 *     rank      0 1 2 3 | 4 5 6 7      width 4, two replicas
 *     index     0 1 2 3 | 0 1 2 3      place in the shard group
 *     replica   0 0 0 0 | 1 1 1 1
 */
#ifndef TESS_SHARD_H
#define TESS_SHARD_H

#include "tessera/strategy.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Can groups of `width` ranks be summed first, and the groups' sums then, without changing the tree
 * over all ranks (tessera/comm.h)? Only when every group is a subtree of it: a power of two that
 * divides the ranks, or all of them.
 */
bool tess__shard_width_fits(int32_t rank_count, int32_t width);

/* The widest that leaves two replicas or more; all ranks where none but 1 does. */
int32_t tess__shard_width_default(int32_t rank_count);

/* Those that fit, as "1, 2, 4 or 8". Cut off at text_bytes. */
void tess__shard_width_list(int32_t rank_count, char *text, size_t text_bytes);

/*
 * Bytes that one of `rank_count` ranks sends for `bytes` of data in whole. reduce_scatter and
 * all_gather: (N-1)/N; all_reduce, both of them: 2(N-1)/N. Exact where N divides `bytes`, rounded
 * down otherwise.
 */
uint64_t tess__shard_scatter_bytes(uint64_t bytes, int32_t rank_count);
uint64_t tess__shard_all_reduce_bytes(uint64_t bytes, int32_t rank_count);

/* The chunk of a pipeline that segment `s` belongs to: those of one chunk are run and written in
 * one go, from the first or the last of them on. 0 where there is one chunk. */
int32_t tess__shard_chunk(const struct tess_plan *plan, int32_t s);

/* Elements whose values are kept: the flat space without segments that share another one's, which
 * come last. */
int64_t tess__shard_value_count(const struct tess_plan *plan);

/*
 * Segments [first, end) that take `buffer_count` buffers in turn, segment first + s buffer s %
 * buffer_count: elements of buffer `buffer`, which is as large as the largest that it ever holds.
 */
int64_t tess__shard_buffer_count(const struct tess_plan *plan, int32_t first, int32_t end,
                                 int32_t buffer, int32_t buffer_count);

#endif
