/* Reading a tokenizer.json into the tables. */
#ifndef TESSERA_TOKENIZER_TOKENIZER_READ_H
#define TESSERA_TOKENIZER_TOKENIZER_READ_H

#include "tokenizer/tokenizer_parts.h"

/* Fill a zeroed tokenizer; see tess__tokenizer_open. */
enum tess_status tess__tokenizer_read(struct tess__tokenizer *tokenizer, const char *path);

#endif
