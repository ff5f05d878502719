/*
 * Text to the numbers of tokens and back: byte-level BPE from a Hugging Face `tokenizer.json`, the
 * same numbers as the `tokenizers` package gives (add_special_tokens=False); and models of
 * SentencePiece, `tokenizer.model`, by its library.
 */
#ifndef TESSERA_TOKENIZER_TOKENIZER_H
#define TESSERA_TOKENIZER_TOKENIZER_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tess__tokenizer;

/* Numbers of tokens; starts zeroed, `id` is freed by the owner. */
struct tess__ids {
    uint32_t *id;
    size_t count; /* `id` doubles as it grows: base/array.h */
};

/*
 * Open `path`: a tokenizer.json, a model of SentencePiece, whose name ends in .model, or a folder
 * that has one (beside it tokenizer_config.json may name the token that ends a document). Of both
 * in one folder tokenizer.json is read, unless it is not of byte-level BPE. TESS_ERR_NOT_FOUND,
 * TESS_ERR_IO, TESS_ERR_DATA; a key that may change numbers and is not followed here, or not known,
 * is TESS_ERR_UNSUPPORTED, and the message names it.
 */
enum tess_status tess__tokenizer_open(const char *path, struct tess__tokenizer **tokenizer_out);
void tess__tokenizer_close(struct tess__tokenizer *tokenizer); /* NULL is allowed */

const char *tess__tokenizer_file(const struct tess__tokenizer *tokenizer); /* that was read */
/* Its name where it is copied to: "tokenizer.json" or "tokenizer.model". */
const char *tess__tokenizer_file_name(const struct tess__tokenizer *tokenizer);
uint64_t tess__tokenizer_id(const struct tess__tokenizer *tokenizer); /* a hash of that file */
int32_t tess__tokenizer_vocabulary(const struct tess__tokenizer *tokenizer); /* greatest id + 1 */

/* The number of the token that is written so, "<|endoftext|>"; -1: there is none. */
int32_t tess__tokenizer_find(const struct tess__tokenizer *tokenizer, const char *token);

/* The token that ends a document: eos_token of tokenizer_config.json, else that of a model of
 * SentencePiece, else <|endoftext|>, <|end_of_text|> or </s>, where the tokenizer has it; -1:
 * unknown. */
int32_t tess__tokenizer_end(const struct tess__tokenizer *tokenizer);

/* The bytes of a token, borrowed; none for a number that no token has. */
const char *tess__tokenizer_bytes(const struct tess__tokenizer *tokenizer, int32_t token,
                                  size_t *count_out);

/*
 * Append the tokens of a text. Bytes that are no UTF-8 are read as U+FFFD, one for each longest
 * beginning of a character, as Python's errors="replace" does. Special tokens that are written out
 * in the text become those tokens; not so control pieces of SentencePiece ("</s>"), as in its own
 * package. One thread at a time for each tokenizer. TESS_ERR_MEMORY, TESS_ERR_DATA,
 * TESS_ERR_INTERNAL.
 */
enum tess_status tess__tokenizer_encode(struct tess__tokenizer *tokenizer, const char *text,
                                        size_t bytes, struct tess__ids *ids);
/*
 * The same for a chat that a template has written, whose control pieces are those tokens, or for
 * the part of one that goes on behind another (`begins` false): before it SentencePiece puts no
 * space.
 */
enum tess_status tess__tokenizer_encode_chat(struct tess__tokenizer *tokenizer, const char *text,
                                             size_t bytes, bool begins, struct tess__ids *ids);

#endif
