/* The folder that tessera data prepare writes: names of shards, index.json, the tokenizer's files.
 */
#ifndef TESSERA_PREPARE_INDEX_H
#define TESSERA_PREPARE_INDEX_H

#include "tessera/status.h"
#include "tokenizer/tokenizer.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* TESS_ERR_USAGE: the path is too long. */
enum tess_status tess__index_shard_path(const char *folder, int32_t shard, char path[PATH_MAX]);

/* Remove what a killed process left half written; `all`: all shards and the index. */
enum tess_status tess__index_clear(const char *folder, bool all);

/* All shards are there: copy the tokenizer's files, write index.json, which is what makes the
 * folder a data set, and print a summary. */
enum tess_status tess__index_write(const char *folder, int32_t shard_count,
                                   const struct tess__tokenizer *tokenizer, double time_s);

#endif
