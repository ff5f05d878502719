/* Text as tokenizers take it: valid UTF-8, normalised, in memory that grows. */
#ifndef TESSERA_TOKENIZER_TOKENIZER_TEXT_H
#define TESSERA_TOKENIZER_TOKENIZER_TEXT_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory that grows; starts zeroed. */
struct tokenizer_buffer {
    char *at;
    size_t count, room;
};
enum tess_status tess__tokenizer_room(struct tokenizer_buffer *buffer, size_t bytes);
enum tess_status tess__tokenizer_append(struct tokenizer_buffer *buffer, const void *bytes,
                                        size_t count);

/* Bytes of valid UTF-8 at the beginning of the text. */
size_t tess__text_valid(const char *text, size_t bytes);
/* The text with U+FFFD for what is not valid, in `target`, which is emptied first. */
enum tess_status tess__text_repair(const char *text, size_t bytes, struct tokenizer_buffer *target);
/* Is a valid text in NFC for sure, by its characters alone? */
bool tess__text_is_plain(const char *text, size_t bytes);
/* The text in NFC (Unicode's normal form C). */
enum tess_status tess__text_compose(const char *text, size_t bytes,
                                    struct tokenizer_buffer *target);
/* Is it white space to Unicode? */
bool tess__text_is_space(uint32_t code);

#endif
