/* Keys and values of a GGUF file, and bytes of its header as they grow; see gguf.h. */
#ifndef TESSERA_STATE_GGUF_KEYS_H
#define TESSERA_STATE_GGUF_KEYS_H

#include "tessera/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf_keys {
    char *text; /* [bytes] */
    size_t bytes, room;
    uint64_t count; /* of keys */
    bool failed;    /* for want of memory */

    /* Of the model. */
    bool pairs; /* rotary channels are neighbours in llama.cpp, halves of a head in config.json's */
    int64_t heads, kv_heads;
};
void tess__gguf_keys_fini(struct gguf_keys *keys);

void tess__gguf_bytes(struct gguf_keys *keys, const void *bytes, size_t count);
void tess__gguf_u32(struct gguf_keys *keys, uint32_t number);
void tess__gguf_u64(struct gguf_keys *keys, uint64_t number);
void tess__gguf_string(struct gguf_keys *keys, const char *text);

/* All keys of a model. TESS_ERR_UNSUPPORTED, TESS_ERR_DATA. */
enum tess_status tess__gguf_keys(const json_t *config, const char *tokenizer, uint32_t type,
                                 struct gguf_keys *keys);

/* What the angles of Llama 3.1's rotary positions are divided by, [head size / 2], to be freed;
 * NULL where the model has other ones. */
enum tess_status tess__gguf_factors(const json_t *config, float **factors_out, int64_t *count_out);

#endif
