/* The tokenizers of reference.py, as files. */
#ifndef TESSERA_TESTS_TOKENIZER_TOKENIZER_FILES_H
#define TESSERA_TESTS_TOKENIZER_TOKENIZER_FILES_H

#include <stdint.h>

enum { TOKENIZER_END = 274, TOKENIZER_VOCABULARY = 277 }; /* <|end|> is token 274 */

/* Write `path`: kind "gpt2", "llama3" or "qwen". */
void tokenizer_write(const char *path, const char *kind);
/* The same with the first `from` in it replaced by `to`. */
void tokenizer_write_changed(const char *path, const char *kind, const char *from, const char *to);

#endif
