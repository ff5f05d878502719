/* Shards of tokens: writing one, and looking at one that is there. */
#ifndef TESSERA_PREPARE_SHARD_WRITE_H
#define TESSERA_PREPARE_SHARD_WRITE_H

#include "base/file.h"
#include "data/shard.h"
#include "tokenizer/tokenizer.h"

#include <stdbool.h>

struct shard_writer {
    struct tess_file_writer file;
    struct tess__shard_header header;
    int64_t *ends; /* [header.documents] */
    uint8_t *mask; /* header.masked: [header.tokens] bits */
    uint8_t *buffer;
    size_t buffered;
    int error; /* errno of the first failure */
};

/* `about`: masked, width, vocabulary, end, tokenizer and plan are set. The file is under its name
 * when commit returns TESS_OK; after a failure of add commit is due as well, and removes it. */
enum tess_status tess__shard_create(struct shard_writer *writer, const char *path,
                                    const struct tess__shard_header *about);
/* The tokens of a document, and the one that ends it. In a masked shard those between cuts 0 and 1,
 * 2 and 3 and so on are to be learnt; cut [cut_count] counts tokens. */
enum tess_status tess__shard_add(struct shard_writer *writer, const struct tess__ids *ids,
                                 const size_t *cut, size_t cut_count);
enum tess_status tess__shard_commit(struct shard_writer *writer, enum tess_status status);

/* The header of a whole shard; false: there is none, or it is damaged. */
bool tess__shard_look(const char *path, struct tess__shard_header *header_out);

#endif
