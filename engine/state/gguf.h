/*
 * A model gpt as one file of llama.cpp's format, GGUF version 3 (ggml, docs/gguf.md):
 *
 *     "GGUF" | version u32 | tensors u64 | keys u64 | keys and values | tensors | values of tensors
 *
 * all little endian; a tensor's values begin at a multiple of 32 bytes behind the headers. Names,
 * orders and types are those of llama.cpp's converter: dimensions in reverse, GPT-2's layers turned
 * round, the rows of Llama's queries and keys by pairs of rotary channels; norms and biases in f32.
 */
#ifndef TESSERA_STATE_GGUF_H
#define TESSERA_STATE_GGUF_H

#include "state/export.h"

#include <jansson.h>

/* By the numbers of ggml's types. */
enum tess_gguf_type {
    TESS_GGUF_F32 = 0,
    TESS_GGUF_F16 = 1,
    TESS_GGUF_Q8_0 = 8, /* blocks of 32: a scale in f16, whole numbers of 8 bits; rows of another
                           length are f16 */
    TESS_GGUF_BF16 = 30,
};

/*
 * Write `path`. config: the model's config.json, as tess_model_folder_json makes it. tokenizer: a
 * folder with tokenizer.json, whose tokens and merges become the file's; "" or without one, the
 * file has no vocabulary. export: which tensors, its `scale` and `gpt2`. TESS_ERR_UNSUPPORTED what
 * the format or llama.cpp does not have; TESS_ERR_IO, TESS_ERR_DATA.
 */
enum tess_status tess_gguf_write(const char *path, const struct tess_weights *weights,
                                 const struct tess_export *export, enum tess_gguf_type type,
                                 const json_t *config, const char *tokenizer);

#endif
