/*
 * Documents of a file, plain or compressed: each line of JSON Lines, or the whole of a text. Every
 * byte comes from outside: messages name the file and the line.
 */
#include "prepare/prepare.h"

#include "base/file.h"
#include "tessera/check.h"
#include "tokenizer/tokenizer_text.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define SOURCE_READ 262144

/* A document is in memory as a whole. */
#define SOURCE_DOCUMENT_MAX ((size_t)1 << 30)

struct prepare_source {
    const struct prepare_file *file;
    const char *key;
    const struct prepare_template *of;
    struct prepare_chat chat;
    int fd;
    int64_t read;  /* bytes of the file */
    int64_t begin; /* of the file's text: where `text` begins; plain files */
    int64_t first, end;
    int64_t line;
    bool ended;     /* `text` has all that is left */
    bool whole;     /* a text, which is one document, was returned */
    bool in_member; /* compressed data that have begun and not ended */
    z_stream z;
    bool inflating;
    ZSTD_DStream *zstd;
    ZSTD_inBuffer packed;
    uint8_t *input;               /* [SOURCE_READ] */
    struct tokenizer_buffer text; /* what was read and not returned begins at `at` */
    size_t at;
    struct tokenizer_buffer repaired;
    json_t *object; /* of the document returned last */
};

/* ---- bytes -------------------------------------------------------------------------------------
 */

static enum tess_status source_fill(struct prepare_source *source, void *target, size_t bytes,
                                    size_t *got_out)
{
    *got_out = tess_file_read(source->fd, target, bytes, -1);
    if (*got_out < bytes && errno != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s", source->file->name, strerror(errno));
    source->read += (int64_t)*got_out;
    return TESS_OK;
}

/* More compressed bytes, where all before are used up; *end_out: there are none. */
static enum tess_status source_fill_packed(struct prepare_source *source, bool *end_out)
{
    size_t got = source->packed.size - source->packed.pos;
    *end_out = false;
    if (got > 0)
        return TESS_OK;
    TESS_TRY(source_fill(source, source->input, SOURCE_READ, &got));
    source->packed = (ZSTD_inBuffer){.src = source->input, .size = got};
    *end_out = got == 0;
    if (got == 0 && source->in_member)
        TESS_FAIL(TESS_ERR_DATA, "%s: truncated: the compressed data end too early",
                  source->file->name);
    return TESS_OK;
}

static enum tess_status source_inflate(struct prepare_source *source, uint8_t *target, size_t bytes,
                                       size_t *got_out)
{
    z_stream *z = &source->z;
    z->next_in = (Bytef *)(uintptr_t)((const uint8_t *)source->packed.src + source->packed.pos);
    z->avail_in = (uInt)(source->packed.size - source->packed.pos);
    z->next_out = target;
    z->avail_out = (uInt)bytes;
    const int code = inflate(z, Z_NO_FLUSH);
    source->packed.pos = source->packed.size - z->avail_in;
    *got_out = bytes - z->avail_out;
    source->in_member = code != Z_STREAM_END;
    if (code == Z_STREAM_END)
        inflateReset(z);
    else if (code != Z_OK && code != Z_BUF_ERROR)
        TESS_FAIL(TESS_ERR_DATA, "%s: corrupt gzip data: %s", source->file->name,
                  z->msg ? z->msg : "not in gzip format");
    return TESS_OK;
}

static enum tess_status source_unpack_zstd(struct prepare_source *source, uint8_t *target,
                                           size_t bytes, size_t *got_out)
{
    ZSTD_outBuffer made = {.dst = target, .size = bytes};
    const size_t code = ZSTD_decompressStream(source->zstd, &made, &source->packed);
    if (ZSTD_isError(code))
        TESS_FAIL(TESS_ERR_DATA, "%s: corrupt zstd data: %s", source->file->name,
                  ZSTD_getErrorName(code));
    *got_out = made.pos;
    source->in_member = code != 0;
    return TESS_OK;
}

/* Append text; at the end of the file `ended` is set. */
static enum tess_status source_more(struct prepare_source *source)
{
    struct tokenizer_buffer *text = &source->text;
    size_t got = 0;
    if (source->at > 0) { /* what was returned makes room */
        memmove(text->at, text->at + source->at, text->count - source->at);
        text->count -= source->at;
        source->begin += (int64_t)source->at;
        source->at = 0;
    }
    if (text->count > SOURCE_DOCUMENT_MAX)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: a document of more than 1 GiB: give it as several files or lines",
                  source->file->name);
    TESS_TRY(tess__tokenizer_room(text, SOURCE_READ));
    uint8_t *target = (uint8_t *)text->at + text->count;
    if (source->file->packing == PREPARE_PLAIN) {
        TESS_TRY(source_fill(source, target, SOURCE_READ, &got));
        source->ended = got == 0;
    } else {
        bool end;
        TESS_TRY(source_fill_packed(source, &end));
        source->ended = end;
        if (!end && source->file->packing == PREPARE_GZIP)
            TESS_TRY(source_inflate(source, target, SOURCE_READ, &got));
        else if (!end)
            TESS_TRY(source_unpack_zstd(source, target, SOURCE_READ, &got));
    }
    text->count += got;
    return TESS_OK;
}

/* ---- documents ---------------------------------------------------------------------------------
 */

/* The next line without its end; *there_out: is there one? Lines of a piece are those that begin in
 * it: the rest of a line at its beginning is the piece's before. */
static enum tess_status source_line(struct prepare_source *source, const char **line_out,
                                    size_t *bytes_out, bool *there_out)
{
    size_t looked = 0;
    if (source->file->packing == PREPARE_PLAIN &&
        source->begin + (int64_t)source->at >= source->end) {
        *there_out = false;
        return TESS_OK;
    }
    for (;;) {
        const size_t left = source->text.count - source->at;
        const char *begin = left > 0 ? source->text.at + source->at : "";
        const char *end = left > looked ? memchr(begin + looked, '\n', left - looked) : NULL;
        if (end != NULL || source->ended) {
            *line_out = begin;
            *bytes_out = end ? (size_t)(end - begin) : left;
            *there_out = end || left > 0;
            source->at += *bytes_out + (end ? 1 : 0);
            source->line++;
            return TESS_OK;
        }
        looked = left;
        TESS_TRY(source_more(source));
    }
}

static enum tess_status source_fail_line(const struct prepare_source *source, const char *why)
{
    if (source->first > 0)
        TESS_FAIL(TESS_ERR_DATA, "%s: line %lld after byte %lld: %s", source->file->name,
                  (long long)source->line - 1, (long long)source->first, why);
    TESS_FAIL(TESS_ERR_DATA, "%s:%lld: %s", source->file->name, (long long)source->line, why);
}

/* The text of a line of JSON. */
static enum tess_status source_parse(struct prepare_source *source, const char *line, size_t bytes,
                                     struct prepare_document *document)
{
    json_error_t error;
    char why[PREPARE_WHY] = "";
    json_decref(source->object);
    source->object = NULL;
    if (tess__text_valid(line, bytes) < bytes) {
        TESS_TRY(tess__text_repair(line, bytes, &source->repaired));
        line = source->repaired.at;
        bytes = source->repaired.count;
    }
    source->object = json_loadb(line, bytes, JSON_ALLOW_NUL, &error);
    const json_t *text = json_object_get(source->object, source->key);
    const bool there = source->of != NULL ? json_is_array(text) : json_is_string(text);
    if (source->object == NULL)
        snprintf(why, sizeof(why), "not a line of JSON: %s", error.text);
    else if (!there)
        snprintf(why, sizeof(why), "no %s under the key \"%s\": name the right one with --key",
                 source->of != NULL ? "list of messages" : "text", source->key);
    else if (source->of != NULL)
        TESS_TRY(tess__chat_render(source->of, text, &source->chat, why));
    if (why[0] != '\0')
        return source_fail_line(source, why);
    if (source->of != NULL)
        *document = (struct prepare_document){source->chat.text.at, source->chat.text.count,
                                              source->chat.cut, source->chat.cut_count};
    else
        *document = (struct prepare_document){.text = json_string_value(text),
                                              .bytes = json_string_length(text)};
    return TESS_OK;
}

static bool source_is_blank(const char *line, size_t bytes)
{
    while (bytes > 0 && strchr(" \t\r", line[bytes - 1]) != NULL && line[bytes - 1] != '\0')
        bytes--;
    return bytes == 0;
}

static enum tess_status source_next_line(struct prepare_source *source,
                                         struct prepare_document *document)
{
    const char *line = NULL;
    size_t bytes = 0;
    bool there;
    do
        TESS_TRY(source_line(source, &line, &bytes, &there));
    while (there && source_is_blank(line, bytes));
    return there ? source_parse(source, line, bytes, document) : TESS_OK;
}

enum tess_status tess__source_next(struct prepare_source *source,
                                   struct prepare_document *document_out)
{
    *document_out = (struct prepare_document){0};
    if (source->file->lines)
        return source_next_line(source, document_out);
    if (source->of != NULL)
        TESS_FAIL(TESS_ERR_USAGE, "%s: chats are read from JSON Lines (.jsonl), a chat in a line",
                  source->file->name);
    if (source->whole)
        return TESS_OK;
    while (!source->ended)
        TESS_TRY(source_more(source));
    source->whole = true;
    const char *nul = memchr(source->text.at, '\0', source->text.count);
    if (nul != NULL)
        TESS_FAIL(TESS_ERR_DATA, "%s: not text: byte %zu (counted from 0) is NUL",
                  source->file->name, (size_t)(nul - source->text.at));
    document_out->text = source->text.at;
    document_out->bytes = source->text.count;
    return TESS_OK;
}

int64_t tess__source_read(const struct prepare_source *source)
{
    return source->read;
}

/* ---- open and close ----------------------------------------------------------------------------
 */

static enum tess_status source_open(struct prepare_source *source)
{
    source->input = malloc(SOURCE_READ);
    source->fd = open(source->file->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (source->fd < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot open %s: %s", source->file->name, strerror(errno));
    if (source->file->packing == PREPARE_ZSTD)
        source->zstd = ZSTD_createDStream();
    if (source->file->packing == PREPARE_GZIP)
        source->inflating = inflateInit2(&source->z, 15 + 16) == Z_OK;
    if (!source->input || (source->file->packing == PREPARE_ZSTD && !source->zstd) ||
        (source->file->packing == PREPARE_GZIP && !source->inflating))
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", source->file->name);
    if (source->first == 0)
        return TESS_OK;
    /* From the byte before: where that ends a line, the piece begins with a line. */
    const char *line;
    size_t bytes;
    bool there;
    if (lseek(source->fd, source->first - 1, SEEK_SET) < 0)
        TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s", source->file->name, strerror(errno));
    source->begin = source->first - 1;
    return source_line(source, &line, &bytes, &there);
}

enum tess_status tess__source_open_piece(const struct prepare_file *file,
                                         const struct prepare_piece *piece, const char *key,
                                         const struct prepare_template *of,
                                         struct prepare_source **source_out)
{
    struct prepare_source *source = calloc(1, sizeof(*source));
    if (source == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", file->name);
    source->file = file;
    source->key = key;
    source->of = of;
    source->fd = -1;
    source->first = piece->first;
    source->end = piece->end;
    const enum tess_status status = source_open(source);
    if (status != TESS_OK)
        tess__source_close_piece(source);
    else
        *source_out = source;
    return status;
}

void tess__source_close_piece(struct prepare_source *source)
{
    if (source == NULL)
        return;
    if (source->inflating)
        inflateEnd(&source->z);
    ZSTD_freeDStream(source->zstd);
    if (source->fd >= 0)
        close(source->fd);
    json_decref(source->object);
    free(source->input);
    free(source->text.at);
    free(source->repaired.at);
    free(source->chat.text.at);
    free(source->chat.cut);
    free(source);
}
