/* Tokens in and out: as text, by a tokenizer or byte by byte, or as numbers. */
#include "base/utf8.h"
#include "cli/generate.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum tess_status text_read_bytes(const char *name, const char *text, size_t bytes,
                                        int32_t vocabulary, struct tess__tokens *tokens)
{
    if (vocabulary > TESS__BYTES)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s is text, whose tokens are bytes, and this model has %d tokens of a tokenizer "
                  "that is not here: name it, --tokenizer FOLDER|FILE, or give their numbers",
                  name, vocabulary);
    tokens->token = calloc(bytes + 1, sizeof(*tokens->token));
    if (!tokens->token)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu tokens", bytes);
    tokens->count = (int64_t)bytes;
    for (size_t i = 0; i < bytes; i++) {
        tokens->token[i] = (unsigned char)text[i];
        if (tokens->token[i] >= vocabulary)
            TESS_FAIL(TESS_ERR_USAGE,
                      "%s: byte %d at place %zu is not in the model's vocabulary, which ends at %d",
                      name, tokens->token[i], i + 1, vocabulary - 1);
    }
    return TESS_OK;
}

static enum tess_status text_read_tokens(const struct tess__source *source, const char *name,
                                         const char *text, size_t bytes, bool chat,
                                         struct tess__tokens *tokens)
{
    struct tess__ids ids = {0};
    const enum tess_status status =
        chat ? tess__tokenizer_encode_chat(source->tokenizer, text, bytes, true, &ids)
             : tess__tokenizer_encode(source->tokenizer, text, bytes, &ids);
    tokens->token = (int32_t *)(void *)ids.id;
    tokens->count = (int64_t)ids.count;
    for (size_t i = 0; status == TESS_OK && i < ids.count; i++)
        if (ids.id[i] >= (uint32_t)source->vocabulary)
            TESS_FAIL(TESS_ERR_USAGE,
                      "%s: the tokenizer %s makes token %u of it, and this model has %d: it is not "
                      "the model's tokenizer",
                      name, tess__tokenizer_file(source->tokenizer), ids.id[i], source->vocabulary);
    return status;
}

static enum tess_status text_read_numbers(const char *name, const char *text, int32_t vocabulary,
                                          struct tess__tokens *tokens)
{
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        const long long value = strtoll(at, &end, 10);
        if (end == at || errno != 0 || (*end != ',' && *end))
            TESS_FAIL(TESS_ERR_USAGE, "%s takes numbers such as 1,2,3: item %lld is not a number",
                      name, (long long)tokens->count + 1);
        if (value < 0 || value >= vocabulary)
            TESS_FAIL(TESS_ERR_USAGE, "%s: %lld is not in the model's vocabulary of 0 to %d", name,
                      value, vocabulary - 1);
        tokens->token[tokens->count++] = (int32_t)value;
        at = end;
        if (!*at)
            return TESS_OK;
    }
}

static enum tess_status text_finish(enum tess_status status, const char *name,
                                    struct tess__tokens *tokens, struct tess__tokens *tokens_out)
{
    if (status == TESS_OK && tokens->count == 0)
        status = tess_fail(TESS_ERR_USAGE, "%s is empty: the model needs at least one token", name);
    if (status == TESS_OK)
        *tokens_out = *tokens;
    else
        free(tokens->token);
    return status;
}

static enum tess_status text_read(const struct tess__source *source, const char *name,
                                  const char *text, size_t bytes, bool chat,
                                  struct tess__tokens *tokens_out)
{
    struct tess__tokens tokens = {0};
    const enum tess_status status =
        source->tokenizer != NULL ? text_read_tokens(source, name, text, bytes, chat, &tokens)
                                  : text_read_bytes(name, text, bytes, source->vocabulary, &tokens);
    return text_finish(status, name, &tokens, tokens_out);
}

enum tess_status tess__text_read(const struct tess__source *source, const char *name,
                                 const char *text, size_t bytes, struct tess__tokens *tokens_out)
{
    return text_read(source, name, text, bytes, false, tokens_out);
}

enum tess_status tess__chat_read(const struct tess__source *source, const char *name,
                                 const char *text, size_t bytes, struct tess__tokens *tokens_out)
{
    return text_read(source, name, text, bytes, true, tokens_out);
}

enum tess_status tess__numbers_read(const struct tess__source *source, const char *name,
                                    const char *text, struct tess__tokens *tokens_out)
{
    /* No fewer bytes than tokens. */
    struct tess__tokens tokens = {calloc(strlen(text) + 1, sizeof(int32_t)), 0};
    if (!tokens.token)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu tokens", strlen(text));
    return text_finish(text_read_numbers(name, text, source->vocabulary, &tokens), name, &tokens,
                       tokens_out);
}

/* ---- out ------------------------------------------------------------------------------------- */

static enum tess_status text_flush(void)
{
    if (ferror(stdout) || fflush(stdout) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write the text to stdout: %s", strerror(errno));
    return TESS_OK;
}

/* Can the bytes begin a UTF-8 sequence, or are one? Its other bytes are 80 to bf, of some the lower
 * or the upper half only. */
static bool text_begins(const unsigned char *byte, int count)
{
    char low[4] = "\x80\x80\x80\x80", high[4] = "\xbf\xbf\xbf\xbf";
    uint32_t code;
    memcpy(low, byte, (size_t)count);
    memcpy(high, byte, (size_t)count);
    return tess__utf8_length(low, 4, &code) >= count || tess__utf8_length(high, 4, &code) >= count;
}

static void text_escape(struct tess__printer *printer)
{
    for (int i = 0; i < printer->pending_count; i++)
        printf("\\x%02x", printer->pending[i]);
    printer->pending_count = 0;
}

/* A complete character: as it is, unless it moves the cursor or worse (C0 and C1 controls). */
static void text_show(struct tess__printer *printer)
{
    const unsigned char *byte = printer->pending;
    const bool control = (byte[0] < 0x20 && byte[0] != '\n' && byte[0] != '\t') ||
                         byte[0] == 0x7f || (byte[0] == 0xc2 && byte[1] < 0xa0);
    if (control) {
        text_escape(printer);
        return;
    }
    fwrite(byte, 1, (size_t)printer->pending_count, stdout);
    printer->pending_count = 0;
}

static void text_print_byte(struct tess__printer *printer, unsigned char byte)
{
    if (!printer->terminal) {
        putchar(byte);
        return;
    }
    uint32_t code;
    unsigned char *pending = printer->pending;
    pending[printer->pending_count] = byte;
    if (!text_begins(pending, printer->pending_count + 1)) {
        text_escape(printer);
        pending[0] = byte;
    }
    printer->pending_count++;
    if (tess__utf8_length((const char *)pending, (size_t)printer->pending_count, &code) > 0)
        text_show(printer);
    else if (!text_begins(pending, printer->pending_count))
        text_escape(printer);
}

enum tess_status tess__print_bytes(struct tess__printer *printer, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        text_print_byte(printer, (unsigned char)bytes[i]);
    return text_flush();
}

enum tess_status tess__print_number(struct tess__printer *printer, int32_t token)
{
    printf("%s%d", printer->count++ > 0 ? "," : "", token);
    return text_flush();
}

enum tess_status tess__print_end(struct tess__printer *printer)
{
    text_escape(printer);
    if (printer->numbers || printer->terminal)
        putchar('\n');
    return text_flush();
}

const char *tess__token_bytes(const struct tess__tokenizer *tokenizer, int32_t token, char own[1],
                              size_t *count_out)
{
    if (tokenizer != NULL)
        return tess__tokenizer_bytes(tokenizer, token, count_out);
    own[0] = (char)token;
    *count_out = 1;
    return own;
}
