/* A model of SentencePiece as a tokenizer: the bytes of its pieces, and texts with pieces that only
 * programs write, such as <s>. */
#include "tokenizer/sentence.h"
#include "tokenizer/tokenizer_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SENTENCE_SPACE   "\u2581"
#define SENTENCE_UNKNOWN " \u2047 " /* as SentencePiece decodes it */

/* The bytes of a piece, in `target`. */
static enum tess_status sentence_bytes(const char *piece, size_t bytes,
                                       enum tess__sentence_kind kind,
                                       struct tokenizer_buffer *target)
{
    char hex[3] = "";
    target->count = 0;
    if (kind == TESS__SENTENCE_UNKNOWN)
        return tess__tokenizer_append(target, SENTENCE_UNKNOWN, sizeof(SENTENCE_UNKNOWN) - 1);
    if (kind == TESS__SENTENCE_BYTE && bytes == 6) { /* <0x0A> */
        memcpy(hex, piece + 3, 2);
        const char byte = (char)strtol(hex, NULL, 16);
        return tess__tokenizer_append(target, &byte, 1);
    }
    for (size_t at = 0; at < bytes;) {
        const size_t width = sizeof(SENTENCE_SPACE) - 1;
        const bool space = kind == TESS__SENTENCE_TEXT && bytes - at >= width &&
                           memcmp(piece + at, SENTENCE_SPACE, width) == 0;
        TESS_TRY(tess__tokenizer_append(target, space ? " " : piece + at, 1));
        at += space ? width : 1;
    }
    return TESS_OK;
}

static enum tess_status sentence_add_pieces(struct tess__tokenizer *tokenizer,
                                            struct tokenizer_buffer *room)
{
    const int32_t count = tess__sentence_count(tokenizer->sentence);
    if (count < 1 || count > TOKENIZER_IDS_MAX)
        TESS_FAIL(TESS_ERR_DATA, "%s: %d pieces", tokenizer->file, count);
    TESS_TRY(tess__bpe_init(&tokenizer->bpe, count, 0));
    for (int32_t i = 0; i < count; i++) {
        size_t bytes;
        enum tess__sentence_kind kind;
        const char *piece = tess__sentence_piece(tokenizer->sentence, i, &bytes, &kind);
        TESS_TRY(sentence_bytes(piece, bytes, kind, room));
        if (room->count > 0)
            TESS_TRY(
                tess__bpe_add_token(&tokenizer->bpe, (uint32_t)i, room->at, room->count, false));
    }
    return TESS_OK;
}

/* Control pieces are added tokens, which chats alone are searched for. */
static enum tess_status sentence_add_controls(struct tess__tokenizer *tokenizer)
{
    const int32_t count = tess__sentence_count(tokenizer->sentence);
    struct added *added = &tokenizer->added;
    added->token = calloc((size_t)count, sizeof(*added->token));
    if (added->token == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d pieces", count);
    for (int32_t i = 0; i < count; i++) {
        size_t bytes;
        enum tess__sentence_kind kind;
        const char *piece = tess__sentence_piece(tokenizer->sentence, i, &bytes, &kind);
        if (kind != TESS__SENTENCE_CONTROL || bytes == 0)
            continue;
        char *text = strndup(piece, bytes);
        if (text == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for a piece");
        added->token[added->count++] =
            (struct added_token){.text = text, .bytes = strlen(text), .id = (uint32_t)i};
    }
    return tess__added_seal(added);
}

enum tess_status tess__sentence_read(struct tess__tokenizer *tokenizer, const char *bytes,
                                     size_t count)
{
    struct tokenizer_buffer room = {0};
    TESS_TRY(tess__sentence_open(tokenizer->file, bytes, count, &tokenizer->sentence));
    enum tess_status status = sentence_add_pieces(tokenizer, &room);
    free(room.at);
    if (status == TESS_OK)
        status = sentence_add_controls(tokenizer);
    tokenizer->end = tess__sentence_end(tokenizer->sentence);
    return status;
}

int32_t tess__sentence_find(const struct tess__tokenizer *tokenizer, const char *token)
{
    const size_t length = strlen(token);
    for (int32_t i = 0; i < tess__sentence_count(tokenizer->sentence); i++) {
        size_t bytes;
        enum tess__sentence_kind kind;
        const char *piece = tess__sentence_piece(tokenizer->sentence, i, &bytes, &kind);
        if (bytes == length && memcmp(piece, token, length) == 0)
            return i;
    }
    return -1;
}

enum tess_status tess__sentence_append(struct tess__tokenizer *tokenizer, const char *text,
                                       size_t bytes, bool begins, struct tess__ids *ids)
{
    const int *piece;
    size_t count;
    TESS_TRY(tess__sentence_encode(tokenizer->sentence, text, bytes, begins, &piece, &count));
    for (size_t i = 0; i < count; i++)
        TESS_TRY(tess__ids_append(ids, (uint32_t)piece[i]));
    return TESS_OK;
}

enum tess_status tess__sentence_append_chat(struct tess__tokenizer *tokenizer, const char *text,
                                            size_t bytes, bool begins, struct tess__ids *ids)
{
    for (size_t at = 0; at < bytes;) {
        size_t first = bytes, end = bytes;
        const struct added_token *control =
            tess__added_next(&tokenizer->added.raw, text, bytes, at, &first, &end);
        if (first > at)
            TESS_TRY(tess__sentence_append(tokenizer, text + at, first - at, begins, ids));
        if (control != NULL)
            TESS_TRY(tess__ids_append(ids, control->id));
        begins = true;
        at = end;
    }
    return TESS_OK;
}
