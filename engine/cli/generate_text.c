/* Tokens in and out: as text, by a tokenizer or byte by byte, or as numbers. */
#include "base/utf8.h"
#include "cli/generate.h"
#include "tessera/check.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES_VOCABULARY 256

static enum tess_status text_read_bytes(const char *prompt, int32_t vocabulary, int32_t *token,
                                        int64_t *count_out)
{
    const size_t length = strlen(prompt);
    if (vocabulary > TEXT_BYTES_VOCABULARY)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--prompt is text, whose tokens are bytes, and this model has %d tokens of a "
                  "tokenizer that is not here: name it, --tokenizer FOLDER|FILE, or give their "
                  "numbers, --prompt-tokens 1,2,3",
                  vocabulary);
    for (size_t i = 0; i < length; i++) {
        token[i] = (unsigned char)prompt[i];
        if (token[i] >= vocabulary)
            TESS_FAIL(TESS_ERR_USAGE,
                      "--prompt: byte %d at place %zu is not in the model's vocabulary, which ends "
                      "at %d",
                      token[i], i + 1, vocabulary - 1);
    }
    *count_out = (int64_t)length;
    return TESS_OK;
}

enum tess_status tess__source_open_tokenizer(struct tess__source *source,
                                             const struct tess__generate_options *options)
{
    char path[PATH_MAX];
    const char *data = source->config->run.data;
    if (options->prompt_tokens[0])
        return TESS_OK;
    if (options->tokenizer[0])
        return tess__tokenizer_open(options->tokenizer, &source->tokenizer);
    if (source->vocabulary <= TEXT_BYTES_VOCABULARY ||
        snprintf(path, sizeof(path), "%s/tokenizer.json", data) >= (int)sizeof(path) ||
        access(path, R_OK) != 0)
        return TESS_OK;
    return tess__tokenizer_open(data, &source->tokenizer);
}

static enum tess_status text_read_tokens(const char *prompt, const struct tess__source *source,
                                         int32_t **token, int64_t *count_out)
{
    struct tess__ids ids = {0};
    const enum tess_status status =
        tess__tokenizer_encode(source->tokenizer, prompt, strlen(prompt), &ids);
    for (size_t i = 0; status == TESS_OK && i < ids.count; i++) {
        if (ids.id[i] < (uint32_t)source->vocabulary)
            continue;
        const uint32_t id = ids.id[i];
        free(ids.id);
        TESS_FAIL(TESS_ERR_USAGE,
                  "--prompt: the tokenizer %s makes token %u of it, and this model has %d: it is "
                  "not the model's tokenizer",
                  tess__tokenizer_file(source->tokenizer), id, source->vocabulary);
    }
    free(*token);
    *token = (int32_t *)(void *)ids.id;
    *count_out = (int64_t)ids.count;
    return status;
}

static enum tess_status text_read_numbers(const char *text, int32_t vocabulary, int32_t *token,
                                          int64_t *count_out)
{
    int64_t count = 0;
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        const long long value = strtoll(at, &end, 10);
        if (end == at || errno != 0 || (*end != ',' && *end))
            TESS_FAIL(TESS_ERR_USAGE,
                      "--prompt-tokens takes numbers such as 1,2,3: item %lld is not a number",
                      (long long)count + 1);
        if (value < 0 || value >= vocabulary)
            TESS_FAIL(TESS_ERR_USAGE,
                      "--prompt-tokens: %lld is not in the model's vocabulary of 0 to %d", value,
                      vocabulary - 1);
        token[count++] = (int32_t)value;
        at = end;
        if (!*at)
            break;
    }
    *count_out = count;
    return TESS_OK;
}

enum tess_status tess__prompt_read(const struct tess__generate_options *options,
                                   const struct tess__source *source, int32_t **token_out,
                                   int64_t *count_out)
{
    const bool numbers = options->prompt_tokens[0];
    const char *text = numbers ? options->prompt_tokens : options->prompt;
    const int32_t vocabulary = source->vocabulary;
    /* No fewer bytes than tokens in either. */
    int32_t *token = calloc(strlen(text) + 1, sizeof(*token));
    if (!token)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the prompt");
    enum tess_status status = numbers ? text_read_numbers(text, vocabulary, token, count_out)
                              : source->tokenizer
                                  ? text_read_tokens(text, source, &token, count_out)
                                  : text_read_bytes(text, vocabulary, token, count_out);
    if (status == TESS_OK && *count_out == 0)
        status =
            tess_fail(TESS_ERR_USAGE, "the prompt is empty: the model needs at least one token");
    if (status != TESS_OK)
        free(token);
    else
        *token_out = token;
    return status;
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

enum tess_status tess__print_token(struct tess__printer *printer, int32_t token)
{
    size_t count = 0;
    if (printer->numbers) {
        printf("%s%d", printer->count > 0 ? "," : "", token);
    } else if (printer->tokenizer) {
        const char *bytes = tess__tokenizer_bytes(printer->tokenizer, token, &count);
        for (size_t i = 0; i < count; i++)
            text_print_byte(printer, (unsigned char)bytes[i]);
    } else {
        text_print_byte(printer, (unsigned char)token);
    }
    printer->count++;
    return text_flush();
}

enum tess_status tess__print_end(struct tess__printer *printer)
{
    text_escape(printer);
    if (printer->numbers || printer->terminal)
        putchar('\n');
    return text_flush();
}
