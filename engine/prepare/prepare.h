/* tessera data prepare: files of text to shards of tokens, by several processes. */
#ifndef TESSERA_PREPARE_PREPARE_H
#define TESSERA_PREPARE_PREPARE_H

#include "tessera/status.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_text.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct tess__prepare_options {
    const char *tokenizer, *text, *out, *key, *end, *chat;
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

/* ---- chat.c: messages as text ------------------------------------------------------------------
 */

#define PREPARE_WHY 256

struct prepare_template;

/* Starts zeroed; text.at and cut are freed by the owner. */
struct prepare_chat {
    struct tokenizer_buffer text;
    size_t *cut; /* [cut_count] bytes of the text before each place where what is learnt begins or
                    ends, in turn */
    size_t cut_count;
};

/* What --chat says; NULL: no chats. TESS_ERR_USAGE, also where the tokenizer lacks the tokens. */
enum tess_status tess__chat_choose(const char *name, const struct tess__tokenizer *tokenizer,
                                   const struct prepare_template **template_out);
const char *tess__chat_name(const struct prepare_template *of); /* "none" for NULL */
/* Overwrites `chat`. `why`: what is wrong with the messages, or "". TESS_ERR_MEMORY. */
enum tess_status tess__chat_render(const struct prepare_template *of, const json_t *messages,
                                   struct prepare_chat *chat, char why[PREPARE_WHY]);

/* ---- source.c: documents of a piece -----------------------------------------------------------
 */

/* A document, or with cuts a chat; text NULL: there is no other. */
struct prepare_document {
    const char *text;
    size_t bytes;
    const size_t *cut; /* as in prepare_chat */
    size_t cut_count;
};

struct prepare_source;
/* `key` has the text, or with a template the messages. */
enum tess_status tess__source_open_piece(const struct prepare_file *file,
                                         const struct prepare_piece *piece, const char *key,
                                         const struct prepare_template *of,
                                         struct prepare_source **source_out);
/* The next document, valid until the next call. */
enum tess_status tess__source_next(struct prepare_source *source,
                                   struct prepare_document *document_out);
/* Bytes of the file that were read so far. */
int64_t tess__source_read(const struct prepare_source *source);
void tess__source_close_piece(struct prepare_source *source); /* NULL is allowed */

/* ---- prepare.c ---------------------------------------------------------------------------------
 */

enum tess_status tess__prepare(const struct tess__prepare_options *options);

#endif
