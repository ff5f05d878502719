/*
 * Configuration files: YAML read into a flat list of full names and texts with their places. Only
 * maps, scalars and sequences of scalars; what a configuration has no use for (anchors, aliases,
 * tags, several documents) is refused. Knows no option and logs nothing: the messages are kept.
 */
#include "base/hash.h"
#include "base/options_set.h"
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

/* Far beyond any configuration; they bound what a hostile file can cost. */
#define YAML_BYTES_MAX ((size_t)1 << 20)
#define YAML_DEPTH_MAX 16
#define YAML_ITEMS_MAX 4096

struct yaml_reader {
    struct tess_options *options;
    struct tess__yaml_file *file;
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; zeroed when there is none */
    int depth;
};

/* ---- messages ------------------------------------------------------------------------------- */

static enum tess_status yaml_keep_message(struct yaml_reader *reader, const char *text)
{
    reader->file->message = tess__options_keep(reader->options, text, strlen(text));
    if (reader->file->message == NULL)
        reader->file->message = "no memory for the options";
    return TESS_ERR_USAGE;
}

static enum tess_status yaml_no_memory(struct yaml_reader *reader)
{
    reader->file->message = "no memory for the options";
    return TESS_ERR_MEMORY;
}

static yaml_mark_t yaml_mark(size_t line, size_t column)
{
    return (yaml_mark_t){.line = line - 1, .column = column - 1}; /* libyaml counts from 0 */
}

TESS_PRINTF(3, 4)
static enum tess_status yaml_fail(struct yaml_reader *reader, yaml_mark_t at, const char *format,
                                  ...)
{
    char what[1024], text[1536];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof(what), format, list);
    va_end(list);
    /* Long paths differ at their ends. */
    const char *path = reader->file->path;
    size_t length = strlen(path);
    snprintf(text, sizeof(text), "%s:%zu:%zu: %s", length > 400 ? path + length - 400 : path,
             at.line + 1, at.column + 1, what);
    return yaml_keep_message(reader, text);
}

/* ---- the file ------------------------------------------------------------------------------- */

static enum tess_status yaml_fail_file(struct yaml_reader *reader, const char *what)
{
    char text[1536];
    const char *path = reader->file->path;
    size_t length = strlen(path);
    snprintf(text, sizeof(text), "%s: %s", length > 400 ? path + length - 400 : path, what);
    return yaml_keep_message(reader, text);
}

/* All of the file in *bytes_inout, grown as it comes: a pipe has no size. The caller frees it. */
static enum tess_status yaml_read_all(struct yaml_reader *reader, int fd, char **bytes_inout,
                                      size_t *count_out)
{
    size_t count = 0, room = 0;
    for (;;) {
        if (count == room) {
            room = room > 0 ? 2 * room : 16384;
            char *grown = realloc(*bytes_inout, room);
            if (grown == NULL)
                return yaml_no_memory(reader);
            *bytes_inout = grown;
        }
        ssize_t got = read(fd, *bytes_inout + count, room - count);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            char what[128];
            snprintf(what, sizeof(what), "cannot be read: %s",
                     errno == EISDIR ? "it is a folder; a file was expected" : strerror(errno));
            return yaml_fail_file(reader, what);
        }
        if (got == 0)
            break;
        count += (size_t)got;
        if (count > YAML_BYTES_MAX)
            return yaml_fail_file(reader, "is larger than 1 MiB; is it a configuration file?");
    }
    *count_out = count;
    return TESS_OK;
}

/* libyaml has no line for what is wrong with bytes, so they are looked at first. */
static enum tess_status yaml_check_bytes(struct yaml_reader *reader, const char *bytes,
                                         size_t count)
{
    size_t line = 1, column = 1;
    for (size_t at = 0; at < count;) {
        uint32_t code = 0;
        int length = tess__utf8_length(bytes + at, count - at, &code);
        if (length == 0)
            return yaml_fail(reader, yaml_mark(line, column), "byte 0x%02x is not UTF-8",
                             (unsigned char)bytes[at]);
        if (code == 0)
            return yaml_fail(reader, yaml_mark(line, column), "NUL byte; a text file was expected");
        bool control = (code < 0x20 && code != '\t' && code != '\n' && code != '\r') ||
                       (code >= 0x7f && code < 0xa0 && code != 0x85) || code == 0xfffe ||
                       code == 0xffff || (code == 0xfeff && at > 0);
        if (control)
            return yaml_fail(reader, yaml_mark(line, column), "control character U+%04X",
                             (unsigned)code);
        at += (size_t)length;
        bool ends = code == '\n' || (code == '\r' && (at == count || bytes[at] != '\n'));
        column = ends ? 1 : column + (code != 0xfeff);
        line += ends;
    }
    return TESS_OK;
}

/* ---- events --------------------------------------------------------------------------------- */

/* The next event; refuses what a configuration cannot have. */
static enum tess_status yaml_next(struct yaml_reader *reader)
{
    yaml_event_delete(&reader->event);
    memset(&reader->event, 0, sizeof(reader->event));
    yaml_parser_t *parser = &reader->parser;
    if (!yaml_parser_parse(parser, &reader->event)) {
        memset(&reader->event, 0, sizeof(reader->event));
        if (parser->error == YAML_MEMORY_ERROR)
            return yaml_no_memory(reader);
        return yaml_fail(reader, parser->problem_mark, "not YAML: %s%s%s",
                         parser->problem != NULL ? parser->problem : "unknown error",
                         parser->context != NULL ? " " : "",
                         parser->context != NULL ? parser->context : "");
    }
    const yaml_event_t *event = &reader->event;
    const void *anchor = NULL, *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT)
        anchor = event->data.scalar.anchor, tag = event->data.scalar.tag;
    else if (event->type == YAML_SEQUENCE_START_EVENT)
        anchor = event->data.sequence_start.anchor, tag = event->data.sequence_start.tag;
    else if (event->type == YAML_MAPPING_START_EVENT)
        anchor = event->data.mapping_start.anchor, tag = event->data.mapping_start.tag;
    if (event->type == YAML_ALIAS_EVENT || anchor != NULL)
        return yaml_fail(reader, event->start_mark,
                         "anchors and aliases (& and *) are not supported; write the value out, or "
                         "in quotes if it begins with & or *");
    if (tag != NULL)
        return yaml_fail(
            reader, event->start_mark,
            "tags (!) are not supported; write the value in quotes if it begins with !");
    return TESS_OK;
}

/* Keep a scalar's text; a NUL, which "\0" makes, would cut it. */
static enum tess_status yaml_scalar(struct yaml_reader *reader, const char **text_out)
{
    const yaml_event_t *event = &reader->event;
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length)
        return yaml_fail(reader, event->start_mark, "the text holds a NUL byte");
    *text_out = tess__options_keep(reader->options, text, event->data.scalar.length);
    return *text_out != NULL ? TESS_OK : yaml_no_memory(reader);
}

static bool yaml_is_null(const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    return event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

/* ---- items ---------------------------------------------------------------------------------- */

static enum tess_status yaml_check_twice(struct yaml_reader *reader,
                                         const struct tess__yaml_item *item)
{
    const struct tess__yaml_file *file = reader->file;
    char quote[TESS__QUOTE_MAX];
    for (int i = 0; i < file->item_count; i++) {
        const struct tess__yaml_item *other = &file->item[i];
        if (other->name_hash == item->name_hash && strcmp(other->name, item->name) == 0)
            return yaml_fail(reader, yaml_mark((size_t)item->name_line, (size_t)item->name_column),
                             "'%s' is given twice, first at line %d, column %d",
                             tess__quote(item->name, quote), other->name_line, other->name_column);
    }
    return TESS_OK;
}

/* Begin an item at the current event, its key. */
static enum tess_status yaml_item_begin(struct yaml_reader *reader, const char *prefix,
                                        struct tess__yaml_item *item_out)
{
    const yaml_event_t *event = &reader->event;
    char name[TESS__NAME_MAX];
    if (event->type != YAML_SCALAR_EVENT)
        return yaml_fail(reader, event->start_mark,
                         "an option's name was expected, not a map or a sequence");
    const char *key = NULL;
    TESS_TRY(yaml_scalar(reader, &key));
    if (!*key)
        return yaml_fail(reader, event->start_mark, "an option's name is empty");
    if (!tess__name_join(name, prefix, key))
        return yaml_fail(reader, event->start_mark, "an option's name is longer than %d characters",
                         TESS__NAME_MAX - 1);
    *item_out = (struct tess__yaml_item){
        .name = tess__options_keep(reader->options, name, strlen(name)),
        .name_hash = tess_hash_bytes(name, strlen(name)),
        .name_line = (int)event->start_mark.line + 1,
        .name_column = (int)event->start_mark.column + 1,
    };
    if (item_out->name == NULL)
        return yaml_no_memory(reader);
    return yaml_check_twice(reader, item_out);
}

static enum tess_status yaml_item_add(struct yaml_reader *reader,
                                      const struct tess__yaml_item *item)
{
    struct tess__yaml_file *file = reader->file;
    if (file->item_count == YAML_ITEMS_MAX)
        return yaml_fail(reader, yaml_mark((size_t)item->name_line, (size_t)item->name_column),
                         "more than %d options", YAML_ITEMS_MAX);
    if (file->item_count == file->item_room) {
        int room = file->item_room > 0 ? 2 * file->item_room : 64;
        struct tess__yaml_item *grown = realloc(file->item, (size_t)room * sizeof(*grown));
        if (grown == NULL)
            return yaml_no_memory(reader);
        file->item = grown;
        file->item_room = room;
    }
    file->item[file->item_count++] = *item;
    return TESS_OK;
}

/* The sequence whose start is the current event, joined by commas. */
static enum tess_status yaml_sequence(struct yaml_reader *reader, const char **text_out)
{
    char joined[1024]; /* more than a list of TESS_INTS_MAX numbers can need */
    size_t used = 0;
    joined[0] = '\0';
    for (int i = 0;; i++) {
        TESS_TRY(yaml_next(reader));
        const yaml_event_t *event = &reader->event;
        if (event->type == YAML_SEQUENCE_END_EVENT)
            break;
        if (event->type != YAML_SCALAR_EVENT)
            return yaml_fail(reader, event->start_mark,
                             "a number was expected, not a map or a sequence");
        const char *text = NULL;
        TESS_TRY(yaml_scalar(reader, &text));
        if (!*text || strchr(text, ',') != NULL)
            return yaml_fail(reader, event->start_mark, "one number was expected%s",
                             *text ? ", without a comma" : "");
        if (used + strlen(text) + 2 > sizeof(joined))
            return yaml_fail(reader, event->start_mark, "the sequence is too long");
        used +=
            (size_t)snprintf(joined + used, sizeof(joined) - used, "%s%s", i > 0 ? "," : "", text);
    }
    *text_out = tess__options_keep(reader->options, joined, used);
    return *text_out != NULL ? TESS_OK : yaml_no_memory(reader);
}

/* The map whose start is the current event, up to its end. */
static enum tess_status yaml_map(struct yaml_reader *reader, const char *prefix)
{
    if (++reader->depth > YAML_DEPTH_MAX)
        return yaml_fail(reader, reader->event.start_mark, "more than %d maps in each other",
                         YAML_DEPTH_MAX);
    for (;;) {
        TESS_TRY(yaml_next(reader));
        if (reader->event.type == YAML_MAPPING_END_EVENT)
            break;
        struct tess__yaml_item item;
        TESS_TRY(yaml_item_begin(reader, prefix, &item));
        TESS_TRY(yaml_next(reader));
        item.line = (int)reader->event.start_mark.line + 1;
        item.column = (int)reader->event.start_mark.column + 1;
        if (reader->event.type == YAML_SEQUENCE_START_EVENT) {
            item.kind = TESS__YAML_SEQUENCE;
            TESS_TRY(yaml_sequence(reader, &item.text));
            TESS_TRY(yaml_item_add(reader, &item));
        } else if (reader->event.type == YAML_MAPPING_START_EVENT) {
            item.kind = TESS__YAML_MAP;
            TESS_TRY(yaml_item_add(reader, &item));
            TESS_TRY(yaml_map(reader, item.name));
        } else {
            item.kind = yaml_is_null(&reader->event) ? TESS__YAML_NULL : TESS__YAML_SCALAR;
            TESS_TRY(yaml_scalar(reader, &item.text));
            TESS_TRY(yaml_item_add(reader, &item));
        }
    }
    reader->depth--;
    return TESS_OK;
}

static enum tess_status yaml_stream(struct yaml_reader *reader)
{
    TESS_TRY(yaml_next(reader)); /* the stream's start */
    TESS_TRY(yaml_next(reader));
    if (reader->event.type == YAML_STREAM_END_EVENT)
        return TESS_OK; /* an empty file */
    TESS_TRY(yaml_next(reader));
    if (reader->event.type == YAML_MAPPING_START_EVENT)
        TESS_TRY(yaml_map(reader, ""));
    else if (reader->event.type != YAML_SCALAR_EVENT || !yaml_is_null(&reader->event))
        return yaml_fail(reader, reader->event.start_mark,
                         "lines of the form 'name: value' were expected");
    TESS_TRY(yaml_next(reader)); /* the document's end */
    TESS_TRY(yaml_next(reader));
    if (reader->event.type != YAML_STREAM_END_EVENT)
        return yaml_fail(reader, reader->event.start_mark,
                         "a second document begins here; one was expected");
    return TESS_OK;
}

static enum tess_status yaml_parse(struct yaml_reader *reader, const char *bytes, size_t count)
{
    TESS_TRY(yaml_check_bytes(reader, bytes, count));
    if (count >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0)
        bytes += 3, count -= 3; /* a byte order mark is no column */
    if (!yaml_parser_initialize(&reader->parser))
        return yaml_no_memory(reader);
    yaml_parser_set_encoding(&reader->parser, YAML_UTF8_ENCODING); /* it would guess UTF-16 */
    yaml_parser_set_input_string(&reader->parser, (const unsigned char *)bytes, count);
    enum tess_status status = yaml_stream(reader);
    yaml_event_delete(&reader->event);
    yaml_parser_delete(&reader->parser);
    return status;
}

static enum tess_status yaml_load(struct yaml_reader *reader)
{
    int fd = open(reader->file->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        char what[128];
        snprintf(what, sizeof(what), "cannot be opened: %s", strerror(errno));
        return yaml_fail_file(reader, what);
    }
    char *bytes = NULL;
    size_t count = 0;
    enum tess_status status = yaml_read_all(reader, fd, &bytes, &count);
    if (status == TESS_OK)
        status = yaml_parse(reader, bytes, count);
    free(bytes);
    close(fd);
    return status;
}

const struct tess__yaml_file *tess__yaml_get(struct tess_options *options, const char *path)
{
    for (struct tess__yaml_file *file = options->file; file != NULL; file = file->next)
        if (strcmp(file->path, path) == 0)
            return file;
    struct tess__yaml_file *file = calloc(1, sizeof(*file));
    if (file == NULL)
        return NULL;
    file->path = tess__options_keep(options, path, strlen(path));
    if (file->path == NULL) {
        free(file);
        return NULL;
    }
    file->next = options->file;
    options->file = file;
    struct yaml_reader reader = {.options = options, .file = file};
    file->status = yaml_load(&reader);
    return file;
}

void tess__yaml_close(struct tess_options *options)
{
    while (options->file != NULL) {
        struct tess__yaml_file *next = options->file->next;
        free(options->file->item);
        free(options->file);
        options->file = next;
    }
}
