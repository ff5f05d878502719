/* Files of text and tokens for tests, in a folder of their own. */
#ifndef TESSERA_TESTS_DATA_TOKEN_FILES_H
#define TESSERA_TESTS_DATA_TOKEN_FILES_H

#include <stddef.h>
#include <stdint.h>

/* The layouts of llm.c, written here from their description and not from the engine's constants. */
enum token_layout { TOKEN_TEXT, TOKEN_GPT2, TOKEN_LLAMA3 };

struct token_folder {
    char path[64];
};

void token_folder_open(struct token_folder *folder);
void token_folder_close(struct token_folder *folder); /* removes all that is in it */

/* folder/name; valid until the 8th next call. */
const char *token_path(const struct token_folder *folder, const char *name);

void token_write_bytes(const struct token_folder *folder, const char *name, const void *bytes,
                       size_t count);

/* A whole file's bytes: text, or a shard with its header. Freed by the caller. */
uint8_t *token_make(enum token_layout layout, const uint32_t *token, size_t count,
                    size_t *bytes_out);
void token_write(const struct token_folder *folder, const char *name, enum token_layout layout,
                 const uint32_t *token, size_t count);

/* Random tokens of the layout's vocabulary, the same for the same arguments. */
void token_draw(enum token_layout layout, uint64_t stream, size_t count, uint32_t *token_out);

uint32_t token_vocabulary(enum token_layout layout);

/* Open descriptors, and mappings of files in the folder. */
int token_open_files(void);
int token_mappings(const struct token_folder *folder);

#endif
