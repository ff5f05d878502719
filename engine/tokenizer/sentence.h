/*
 * A model of SentencePiece (tokenizer.model, Llama 2, Mistral, Gemma, T5), by its own library,
 * whose interface is in C++: sentence.cpp. Without the library sentence_none.c is in its place.
 */
#ifndef TESSERA_TOKENIZER_SENTENCE_H
#define TESSERA_TOKENIZER_SENTENCE_H

#include "tessera/linkage.h"
#include "tessera/status.h"

#include <stddef.h>
#include <stdint.h>

TESS_BEGIN_DECLS

struct tess__sentence;

enum tess__sentence_kind {
    TESS__SENTENCE_TEXT,
    TESS__SENTENCE_BYTE, /* "<0x0A>" stands for a byte */
    TESS__SENTENCE_CONTROL,
    TESS__SENTENCE_UNKNOWN,
    TESS__SENTENCE_UNUSED
};

/* `bytes` [count]: of the file, whose name is for messages. TESS_ERR_DATA, TESS_ERR_MEMORY;
 * TESS_ERR_UNSUPPORTED: built without the library. */
enum tess_status tess__sentence_open(const char *file, const char *bytes, size_t count,
                                     struct tess__sentence **sentence_out);
void tess__sentence_close(struct tess__sentence *sentence); /* NULL is allowed */

int32_t tess__sentence_count(const struct tess__sentence *sentence); /* of pieces */
int32_t tess__sentence_end(const struct tess__sentence *sentence);   /* </s>; -1: none */
/* As the model writes it, with U+2581 for a space; borrowed. `piece` is below the count. */
const char *tess__sentence_piece(const struct tess__sentence *sentence, int32_t piece,
                                 size_t *bytes_out, enum tess__sentence_kind *kind_out);

/*
 * The pieces of a text, borrowed until the next call. `begins` 0: the text goes on behind another,
 * so no space is put before it, as models that have one put at the beginning. TESS_ERR_MEMORY,
 * TESS_ERR_DATA.
 */
enum tess_status tess__sentence_encode(struct tess__sentence *sentence, const char *text,
                                       size_t bytes, int begins, const int **piece_out,
                                       size_t *count_out);

TESS_END_DECLS
#endif
