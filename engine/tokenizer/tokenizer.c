/* A tokenizer as others see it: opening, encoding, the text of a token. */
#include "tokenizer/tokenizer_parts.h"

#include "tokenizer/sentence.h"
#include "tokenizer/tokenizer_read.h"

#include <stdlib.h>
#include <string.h>

enum tess_status tess__tokenizer_open(const char *path, struct tess__tokenizer **tokenizer_out)
{
    struct tess__tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    if (tokenizer == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a tokenizer");
    tokenizer->end = -1;
    const enum tess_status status = tess__tokenizer_read(tokenizer, path);
    if (status != TESS_OK)
        tess__tokenizer_close(tokenizer);
    else
        *tokenizer_out = tokenizer;
    return status;
}

void tess__tokenizer_close(struct tess__tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    tess__sentence_close(tokenizer->sentence);
    tess__bpe_fini(&tokenizer->bpe);
    tess__splits_fini(&tokenizer->splits);
    tess__added_fini(&tokenizer->added);
    free(tokenizer->repaired.at);
    free(tokenizer->composed.at);
    free(tokenizer);
}

const char *tess__tokenizer_file(const struct tess__tokenizer *tokenizer)
{
    return tokenizer->file;
}

const char *tess__tokenizer_file_name(const struct tess__tokenizer *tokenizer)
{
    return tokenizer->sentence != NULL ? "tokenizer.model" : "tokenizer.json";
}

uint64_t tess__tokenizer_id(const struct tess__tokenizer *tokenizer)
{
    return tokenizer->id;
}

int32_t tess__tokenizer_vocabulary(const struct tess__tokenizer *tokenizer)
{
    return tokenizer->bpe.token_count;
}

int32_t tess__tokenizer_end(const struct tess__tokenizer *tokenizer)
{
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
    int32_t end = tokenizer->end;
    for (size_t i = 0; i < sizeof(usual) / sizeof(*usual) && end < 0; i++)
        end = tess__tokenizer_find(tokenizer, usual[i]);
    return end;
}

const char *tess__tokenizer_bytes(const struct tess__tokenizer *tokenizer, int32_t token,
                                  size_t *count_out)
{
    *count_out = 0;
    if (token < 0 || token >= tokenizer->bpe.token_count)
        return "";
    *count_out = tokenizer->bpe.token[token].count;
    return tokenizer->bpe.text.at + tokenizer->bpe.token[token].first;
}

/* ---- encoding -------------------------------------------------------------------------------- */

/* What lies between added tokens of the normalised text is cut into words. */
static enum tess_status encode_normalized(struct tess__tokenizer *tokenizer, const char *text,
                                          size_t bytes, struct tess__ids *ids)
{
    for (size_t at = 0; at < bytes;) {
        size_t first = bytes, end = bytes;
        const struct added_token *token =
            tess__added_next(&tokenizer->added.normalized, text, bytes, at, &first, &end);
        TESS_TRY(tess__splits_encode(&tokenizer->splits, 0, &tokenizer->bpe, text + at, first - at,
                                     ids));
        if (token != NULL)
            TESS_TRY(tess__ids_append(ids, token->id));
        at = end;
    }
    return TESS_OK;
}

static enum tess_status encode_between(struct tess__tokenizer *tokenizer, const char *text,
                                       size_t bytes, struct tess__ids *ids)
{
    if (tokenizer->compose && !tess__text_is_plain(text, bytes)) {
        TESS_TRY(tess__text_compose(text, bytes, &tokenizer->composed));
        text = tokenizer->composed.at;
        bytes = tokenizer->composed.count;
    }
    return encode_normalized(tokenizer, text, bytes, ids);
}

static enum tess_status encode_added(struct tess__tokenizer *tokenizer, const char *text,
                                     size_t bytes, struct tess__ids *ids)
{
    for (size_t at = 0; at < bytes;) {
        size_t first = bytes, end = bytes;
        const struct added_token *token =
            tess__added_next(&tokenizer->added.raw, text, bytes, at, &first, &end);
        TESS_TRY(encode_between(tokenizer, text + at, first - at, ids));
        if (token != NULL)
            TESS_TRY(tess__ids_append(ids, token->id));
        at = end;
    }
    return TESS_OK;
}

/* The text where it is valid UTF-8, else a repaired one. */
static enum tess_status encode_repair(struct tess__tokenizer *tokenizer, const char **text,
                                      size_t *bytes)
{
    if (tess__text_valid(*text, *bytes) == *bytes)
        return TESS_OK;
    TESS_TRY(tess__text_repair(*text, *bytes, &tokenizer->repaired));
    *text = tokenizer->repaired.at;
    *bytes = tokenizer->repaired.count;
    return TESS_OK;
}

enum tess_status tess__tokenizer_encode(struct tess__tokenizer *tokenizer, const char *text,
                                        size_t bytes, struct tess__ids *ids)
{
    TESS_TRY(encode_repair(tokenizer, &text, &bytes));
    return tokenizer->sentence != NULL ? tess__sentence_append(tokenizer, text, bytes, true, ids)
                                       : encode_added(tokenizer, text, bytes, ids);
}

enum tess_status tess__tokenizer_encode_chat(struct tess__tokenizer *tokenizer, const char *text,
                                             size_t bytes, bool begins, struct tess__ids *ids)
{
    TESS_TRY(encode_repair(tokenizer, &text, &bytes));
    return tokenizer->sentence != NULL
               ? tess__sentence_append_chat(tokenizer, text, bytes, begins, ids)
               : encode_added(tokenizer, text, bytes, ids);
}
