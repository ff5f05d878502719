/*
 * Configuration files: YAML read into a flat list of full names and texts with their places. Only
 * maps, scalars and sequences of scalars; what a configuration has no use for (anchors, aliases,
 * tags, several documents) is refused. No option is looked up and nothing is logged: the messages
 * are kept.
 */
#include "base/array.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/options_set.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

/* Far beyond any configuration; they bound what a hostile file can cost. */
#define YAML_BYTES_MAX ((size_t)1 << 20)
#define YAML_DEPTH_MAX 16
#define YAML_ITEMS_MAX 4096

struct yaml_reader {
    struct tess_options *options;
    struct tess__yaml_file *file;
    yaml_parser_t parser;
    yaml_event_t event;         /* the current one; zeroed when there is none */
    struct tess__yaml_place at; /* of it; for messages */
    int depth;
};

/* ---- messages ------------------------------------------------------------------------------- */

static enum tess_status yaml_no_memory(struct yaml_reader *reader)
{
    reader->file->message = "no memory for the options";
    return TESS_ERR_MEMORY;
}

TESS_PRINTF(2, 3)
static enum tess_status yaml_fail(struct yaml_reader *reader, const char *format, ...)
{
    char what[1024], place[32] = "";
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof(what), format, list);
    va_end(list);
    if (reader->at.line > 0)
        snprintf(place, sizeof(place), ":%d:%d", reader->at.line, reader->at.column);
    reader->file->message = tess__options_keep(reader->options, "%s%s: %s",
                                               tess__path_end(reader->file->path), place, what);
    return reader->file->message != NULL ? TESS_ERR_USAGE : yaml_no_memory(reader);
}

static struct tess__yaml_place yaml_place(yaml_mark_t mark)
{
    return (struct tess__yaml_place){(int)mark.line + 1, (int)mark.column + 1};
}

/* ---- the file ------------------------------------------------------------------------------- */

/* All of the file, which may be a pipe that is open. The caller frees it, also after an error. */
static enum tess_status yaml_read_all(struct yaml_reader *reader, char **bytes_out,
                                      size_t *count_out)
{
    const char *why;
    FILE *file = tess_file_open_input(reader->file->path, &why);
    if (file == NULL)
        return yaml_fail(reader, "cannot be opened: %s", why);
    *bytes_out = malloc(YAML_BYTES_MAX + 1);
    *count_out = *bytes_out != NULL ? fread(*bytes_out, 1, YAML_BYTES_MAX + 1, file) : 0;
    const int error = ferror(file) ? errno : 0;
    fclose(file);
    if (*bytes_out == NULL)
        return yaml_no_memory(reader);
    if (error != 0)
        return yaml_fail(reader, "cannot be read: %s", strerror(error));
    if (*count_out > YAML_BYTES_MAX)
        return yaml_fail(reader, "is larger than 1 MiB; is it a configuration file?");
    return TESS_OK;
}

/* libyaml has no line for what is wrong with bytes, so they are looked at first. */
static enum tess_status yaml_check_bytes(struct yaml_reader *reader, const char *bytes,
                                         size_t count)
{
    struct tess__yaml_place *place = &reader->at;
    *place = (struct tess__yaml_place){1, 1};
    for (size_t at = 0; at < count;) {
        uint32_t code = 0;
        int length = tess__utf8_length(bytes + at, count - at, &code);
        if (length == 0)
            return yaml_fail(reader, "byte 0x%02x is not UTF-8", (unsigned char)bytes[at]);
        if (code == 0)
            return yaml_fail(reader, "NUL byte; a text file was expected");
        bool control = (code < 0x20 && code != '\t' && code != '\n' && code != '\r') ||
                       (code >= 0x7f && code < 0xa0 && code != 0x85) || code == 0xfffe ||
                       code == 0xffff || (code == 0xfeff && at > 0);
        if (control)
            return yaml_fail(reader, "control character U+%04X", (unsigned)code);
        at += (size_t)length;
        bool ends = code == '\n' || (code == '\r' && (at == count || bytes[at] != '\n'));
        place->column = ends ? 1 : place->column + (code != 0xfeff);
        place->line += ends;
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
        reader->at = yaml_place(parser->problem_mark);
        return yaml_fail(
            reader, "not YAML: %s%s%s", parser->problem != NULL ? parser->problem : "unknown error",
            parser->context != NULL ? " " : "", parser->context != NULL ? parser->context : "");
    }
    const yaml_event_t *event = &reader->event;
    reader->at = yaml_place(event->start_mark);
    const void *anchor = NULL, *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT)
        anchor = event->data.scalar.anchor, tag = event->data.scalar.tag;
    else if (event->type == YAML_SEQUENCE_START_EVENT)
        anchor = event->data.sequence_start.anchor, tag = event->data.sequence_start.tag;
    else if (event->type == YAML_MAPPING_START_EVENT)
        anchor = event->data.mapping_start.anchor, tag = event->data.mapping_start.tag;
    if (event->type == YAML_ALIAS_EVENT || anchor != NULL)
        return yaml_fail(reader,
                         "anchors and aliases (& and *) are not supported; write the value out, or "
                         "in quotes if it begins with & or *");
    if (tag != NULL)
        return yaml_fail(
            reader, "tags (!) are not supported; write the value in quotes if it begins with !");
    return TESS_OK;
}

/* Keep a scalar's text; a NUL, which "\0" makes, would cut it. */
static enum tess_status yaml_scalar(struct yaml_reader *reader, const char **text_out)
{
    const yaml_event_t *event = &reader->event;
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length)
        return yaml_fail(reader, "the text holds a NUL byte");
    *text_out = tess__options_keep_text(reader->options, text);
    return *text_out != NULL ? TESS_OK : yaml_no_memory(reader);
}

static bool yaml_is_null(const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    return event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

/* ---- items ---------------------------------------------------------------------------------- */

/* Begin an item at the current event, its key. */
static enum tess_status yaml_item_begin(struct yaml_reader *reader, const char *prefix,
                                        struct tess__yaml_item *item_out)
{
    const struct tess__yaml_file *file = reader->file;
    char name[TESS__NAME_MAX], quote[TESS__QUOTE_MAX];
    const char *key = NULL;
    if (reader->event.type != YAML_SCALAR_EVENT)
        return yaml_fail(reader, "an option's name was expected, not a map or a sequence");
    TESS_TRY(yaml_scalar(reader, &key));
    if (!*key)
        return yaml_fail(reader, "an option's name is empty");
    if (!tess__name_join(name, prefix, key))
        return yaml_fail(reader, "an option's name is longer than %d characters",
                         TESS__NAME_MAX - 1);
    if (file->item_count == YAML_ITEMS_MAX)
        return yaml_fail(reader, "more than %d options", YAML_ITEMS_MAX);
    const uint64_t hash = tess_hash_bytes(name, strlen(name));
    for (int i = 0; i < file->item_count; i++) {
        const struct tess__yaml_item *other = &file->item[i];
        if (other->name_hash == hash && strcmp(other->name, name) == 0)
            return yaml_fail(reader, "'%s' is given twice, first at line %d, column %d",
                             tess__quote(name, quote), other->name_at.line, other->name_at.column);
    }
    *item_out = (struct tess__yaml_item){.name = tess__options_keep_text(reader->options, name),
                                         .name_hash = hash,
                                         .name_at = reader->at};
    return item_out->name != NULL ? TESS_OK : yaml_no_memory(reader);
}

static enum tess_status yaml_item_add(struct yaml_reader *reader,
                                      const struct tess__yaml_item *item)
{
    struct tess__yaml_file *file = reader->file;
    struct tess__yaml_item *grown =
        tess__array_grow(file->item, (size_t)file->item_count, sizeof(*grown));
    if (grown == NULL)
        return yaml_no_memory(reader);
    file->item = grown;
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
            return yaml_fail(reader, "a number was expected, not a map or a sequence");
        const char *text = NULL;
        TESS_TRY(yaml_scalar(reader, &text));
        if (!*text || strchr(text, ',') != NULL)
            return yaml_fail(reader, "one number was expected%s", *text ? ", without a comma" : "");
        if (used + strlen(text) + 2 > sizeof(joined))
            return yaml_fail(reader, "the sequence is too long");
        used +=
            (size_t)snprintf(joined + used, sizeof(joined) - used, "%s%s", i > 0 ? "," : "", text);
    }
    *text_out = tess__options_keep_text(reader->options, joined);
    return *text_out != NULL ? TESS_OK : yaml_no_memory(reader);
}

/* The map whose start is the current event, up to its end. */
static enum tess_status yaml_map(struct yaml_reader *reader, const char *prefix)
{
    if (++reader->depth > YAML_DEPTH_MAX)
        return yaml_fail(reader, "more than %d maps in each other", YAML_DEPTH_MAX);
    for (;;) {
        TESS_TRY(yaml_next(reader));
        if (reader->event.type == YAML_MAPPING_END_EVENT)
            break;
        struct tess__yaml_item item;
        TESS_TRY(yaml_item_begin(reader, prefix, &item));
        TESS_TRY(yaml_next(reader));
        item.value_at = reader->at;
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
    if (reader->event.type == YAML_STREAM_END_EVENT) /* cut off, or not written yet? */
        return yaml_fail(reader, "the file has no options; a file of defaults alone has {}");
    TESS_TRY(yaml_next(reader));
    if (reader->event.type == YAML_MAPPING_START_EVENT)
        TESS_TRY(yaml_map(reader, ""));
    else if (reader->event.type != YAML_SCALAR_EVENT || !yaml_is_null(&reader->event))
        return yaml_fail(reader, "lines of the form 'name: value' were expected");
    TESS_TRY(yaml_next(reader)); /* the document's end */
    TESS_TRY(yaml_next(reader));
    if (reader->event.type != YAML_STREAM_END_EVENT)
        return yaml_fail(reader, "a second document begins here; one was expected");
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
    char *bytes = NULL;
    size_t count = 0;
    enum tess_status status = yaml_read_all(reader, &bytes, &count);
    if (status == TESS_OK)
        status = yaml_parse(reader, bytes, count);
    free(bytes);
    return status;
}

const struct tess__yaml_file *tess__yaml_get(struct tess_options *options, const char *path)
{
    for (const struct tess_options *set = options; set != NULL; set = set->before)
        for (const struct tess__yaml_file *file = set->file; file != NULL; file = file->next)
            if (strcmp(file->path, path) == 0)
                return file;
    struct tess__yaml_file *file = calloc(1, sizeof(*file));
    if (file == NULL)
        return NULL;
    file->path = tess__options_keep_text(options, path);
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
