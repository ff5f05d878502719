/* tessera data prepare: files of text to shards of tokens, by several processes. */
#ifndef TESSERA_PREPARE_PREPARE_H
#define TESSERA_PREPARE_PREPARE_H

#include "tessera/status.h"
#include "tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stdint.h>

struct tess__prepare_options {
    const char *tokenizer, *text, *out, *key, *end;
    int64_t processes;
    bool overwrite;
};

/* ---- plan.c: what each shard is made of ------------------------------------------------------ */

/* Bytes [first, end) of a file: whole, or the lines that begin there. */
struct prepare_piece {
    int32_t file;
    int64_t first, end;
};

struct prepare_file {
    char *name;
    int64_t bytes;
    bool lines; /* JSON Lines; else one document */
    enum prepare_packing { PREPARE_PLAIN, PREPARE_GZIP, PREPARE_ZSTD } packing;
};

struct prepare_plan {
    struct prepare_file *file;
    int32_t file_count;
    struct prepare_piece *piece; /* [piece_count], in order */
    int32_t piece_count;
    int32_t *shard; /* [shard_count + 1]: the first piece of each, and piece_count */
    int32_t shard_count;
    int64_t bytes; /* of all files */
    uint64_t id;   /* of all this: the same files and options have the same */
};

/* `seed`: a hash of the options. Which shards there are depends on the files alone, not on the
 * number of processes. Zeroed by the caller; fini is due also after a failure. */
enum tess_status tess__prepare_plan(struct prepare_plan *plan, const char *text, uint64_t seed);
void tess__prepare_plan_fini(struct prepare_plan *plan);

/* ---- source.c: documents of a piece -----------------------------------------------------------
 */

struct prepare_source;
enum tess_status tess__source_open_piece(const struct prepare_file *file,
                                         const struct prepare_piece *piece, const char *key,
                                         struct prepare_source **source_out);
/* The next document, valid until the next call; NULL: there is no other. */
enum tess_status tess__source_next(struct prepare_source *source, const char **text_out,
                                   size_t *bytes_out);
/* Bytes of the file that were read so far. */
int64_t tess__source_read(const struct prepare_source *source);
void tess__source_close_piece(struct prepare_source *source); /* NULL is allowed */

/* ---- prepare.c ---------------------------------------------------------------------------------
 */

enum tess_status tess__prepare(const struct tess__prepare_options *options);

#endif
