/*
 * Looks through hwloc's XML before hwloc itself does, because hwloc only says that it cannot load a
 * file, and not why or where: are the elements closed in order, are the tags whole, is the depth
 * one that machines have, is it version 1 or 2. A DOCTYPE may name a file; declarations of its own
 * (which is how a few bytes become gigabytes) are refused. What elements mean is read_hwloc.c's.
 */
#include "topology/hwloc_text.h"
#include "tessera/check.h"
#include "topology/lines.h"

#include <ctype.h>
#include <string.h>

#define TEXT_BYTES_MAX    ((size_t)16 << 20) /* the largest machines have less than 1 MiB */
#define TEXT_DEPTH_MAX    64
#define TEXT_ELEMENTS_MAX 262144
#define TEXT_INDEX_MAX    1048575

struct text {
    const char *name, *at, *end;
    int32_t line, depth, elements;
    struct tess__word open[TEXT_DEPTH_MAX];
    int32_t open_line[TEXT_DEPTH_MAX];
    struct tess__word version; /* of the outermost element; length 0: none */
    bool root;
    struct tess__word type, index; /* attributes type and os_index of the current element */
};

static enum tess_status text_cut(const struct text *text, const char *what)
{
    return tess__lines_fail(text->name, text->line, "the file ends inside %s: it is cut short",
                            what);
}

/* Up to behind `mark`, counting lines; false where there is none. */
static bool text_skip(struct text *text, const char *mark)
{
    size_t length = strlen(mark);
    for (; (size_t)(text->end - text->at) >= length; text->at++) {
        if (memcmp(text->at, mark, length) == 0) {
            text->at += length;
            return true;
        }
        text->line += *text->at == '\n';
    }
    for (; text->at < text->end; text->at++)
        text->line += *text->at == '\n';
    return false;
}

static bool text_begins(const struct text *text, const char *mark)
{
    size_t length = strlen(mark);
    return (size_t)(text->end - text->at) >= length && memcmp(text->at, mark, length) == 0;
}

static void text_blanks(struct text *text)
{
    for (; text->at < text->end && isspace((unsigned char)*text->at); text->at++)
        text->line += *text->at == '\n';
}

static struct tess__word text_name(struct text *text)
{
    struct tess__word word = {text->at, 0};
    while (text->at < text->end &&
           (isalnum((unsigned char)*text->at) || memchr("_-.:", *text->at, 4)))
        text->at++;
    word.length = (size_t)(text->at - word.text);
    return word;
}

/* References in a stretch of text: the five that XML has, and characters by number. */
static enum tess_status text_references(const struct text *text, struct tess__word stretch)
{
    static const char *const known[] = {"amp;", "lt;", "gt;", "quot;", "apos;", "#"};
    for (size_t i = 0; i < stretch.length; i++) {
        if (stretch.text[i] != '&')
            continue;
        bool found = false;
        for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
            size_t length = strlen(known[k]);
            found |=
                stretch.length - i > length && memcmp(stretch.text + i + 1, known[k], length) == 0;
        }
        if (!found)
            return tess__lines_fail(
                text->name, text->line,
                "an entity that is none of XML's own, which hwloc never writes");
    }
    return TESS_OK;
}

static enum tess_status text_attribute(struct text *text, bool outermost)
{
    struct tess__word word = text_name(text);
    if (word.length == 0)
        return tess__lines_fail(text->name, text->line,
                                "byte 0x%02x in a tag; NAME=\"VALUE\", '/' or '>' was expected",
                                (unsigned)(unsigned char)*text->at);
    text_blanks(text);
    if (text->at < text->end && *text->at != '=')
        return tess__lines_fail(text->name, text->line, "'=' was expected after %.*s",
                                TESS__SHOWN(word));
    text->at += text->at < text->end;
    text_blanks(text);
    if (text->at == text->end)
        return text_cut(text, "a tag");
    char quote = *text->at++;
    if (quote != '"' && quote != '\'')
        return tess__lines_fail(text->name, text->line,
                                "a value in quotes was expected after %.*s=", TESS__SHOWN(word));
    struct tess__word value = {text->at, 0};
    int32_t line = text->line;
    while (text->at < text->end && *text->at != quote && *text->at != '<') {
        unsigned char c = (unsigned char)*text->at;
        if (c < 0x20 && !isspace(c))
            return tess__lines_fail(text->name, text->line, "byte 0x%02x in a value", (unsigned)c);
        text->line += c == '\n';
        text->at++;
    }
    if (text->at == text->end || *text->at == '<')
        return tess__lines_fail(text->name, line, "the value of %.*s has no end",
                                TESS__SHOWN(word));
    value.length = (size_t)(text->at++ - value.text);
    if (outermost && tess__word_is(word, "version"))
        text->version = value;
    if (tess__word_is(word, "type"))
        text->type = value;
    if (tess__word_is(word, "os_index"))
        text->index = value;
    return text_references(text, value);
}

/* Of what hwloc keeps sets of, which have a bit for each number. */
static enum tess_status text_index(const struct text *text)
{
    int32_t number;
    bool set = tess__word_is(text->type, "PU") || tess__word_is(text->type, "NUMANode");
    if (set && text->index.length > 0 && !tess__word_number(text->index, TEXT_INDEX_MAX, &number))
        return tess__lines_fail(text->name, text->line, "os_index '%.*s'; 0 to %d was expected",
                                TESS__SHOWN(text->index), TEXT_INDEX_MAX);
    return TESS_OK;
}

static enum tess_status text_open(struct text *text)
{
    struct tess__word word = text_name(text);
    int32_t line = text->line;
    bool outermost = text->depth == 0;
    if (word.length == 0)
        return tess__lines_fail(text->name, text->line, "'<' without the name of an element");
    if (outermost && (text->root || !tess__word_is(word, "topology")))
        return tess__lines_fail(text->name, text->line,
                                "<%.*s> at the top; one <topology> of hwloc's was expected",
                                TESS__SHOWN(word));
    if (text->depth == TEXT_DEPTH_MAX)
        return tess__lines_fail(text->name, text->line, "more than %d elements in each other",
                                TEXT_DEPTH_MAX);
    if (++text->elements > TEXT_ELEMENTS_MAX)
        return tess__lines_fail(text->name, text->line, "more than %d elements", TEXT_ELEMENTS_MAX);
    text->root = true;
    text->type = text->index = (struct tess__word){"", 0};
    for (;;) {
        text_blanks(text);
        if (text->at == text->end)
            return text_cut(text, "a tag");
        if (*text->at == '>') {
            text->at++;
            text->open_line[text->depth] = line;
            text->open[text->depth++] = word;
            return text_index(text);
        }
        if (text_begins(text, "/>")) {
            text->at += 2;
            return text_index(text);
        }
        TESS_TRY(text_attribute(text, outermost));
    }
}

static enum tess_status text_close(struct text *text)
{
    struct tess__word word = text_name(text);
    text_blanks(text);
    if (text->at == text->end)
        return text_cut(text, "a tag");
    if (*text->at != '>')
        return tess__lines_fail(text->name, text->line, "'>' was expected after </%.*s",
                                TESS__SHOWN(word));
    text->at++;
    const struct tess__word *open = text->depth > 0 ? &text->open[text->depth - 1] : NULL;
    if (!open || open->length != word.length || memcmp(open->text, word.text, word.length) != 0)
        return tess__lines_fail(text->name, text->line, "</%.*s> where %s%.*s%s was expected",
                                TESS__SHOWN(word), open ? "</" : "", open ? (int)open->length : 0,
                                open ? open->text : "", open ? ">" : "the end");
    text->depth--;
    return TESS_OK;
}

/* What begins with '<', which is passed already. */
static enum tess_status text_markup(struct text *text)
{
    if (text_begins(text, "!--"))
        return text_skip(text, "-->") ? TESS_OK : text_cut(text, "a comment");
    if (text_begins(text, "?"))
        return text_skip(text, "?>") ? TESS_OK : text_cut(text, "a declaration");
    if (text_begins(text, "!")) {
        for (; text->at < text->end && *text->at != '>'; text->at++) {
            text->line += *text->at == '\n';
            if (*text->at == '[' || *text->at == '<')
                return tess__lines_fail(text->name, text->line,
                                        "a DOCTYPE with declarations, which hwloc never writes");
        }
        if (text->at == text->end)
            return text_cut(text, "a DOCTYPE");
        text->at++;
        return TESS_OK;
    }
    if (text_begins(text, "/")) {
        text->at++;
        return text_close(text);
    }
    return text_open(text);
}

/* hwloc 1 wrote no version; 2 writes "2.0"; libraries of 2 do not read what 3 writes. */
static enum tess_status text_version(const struct text *text)
{
    const struct tess__word *version = &text->version;
    if (version->length == 0 ||
        (version->length > 1 && (version->text[0] == '1' || version->text[0] == '2') &&
         version->text[1] == '.'))
        return TESS_OK;
    return tess__lines_fail(text->name, 0,
                            "written by hwloc as version '%.*s'; 1 and 2 can be read: have it "
                            "written by `lstopo --of xml` of hwloc 2",
                            TESS__SHOWN(*version));
}

enum tess_status tess__hwloc_text_check(const char *name, const char *text, size_t bytes)
{
    struct text self = {.name = name, .at = text, .end = text + bytes, .line = 1};
    if (bytes > TEXT_BYTES_MAX)
        return tess__lines_fail(name, 0, "%zu MiB; hwloc's files have at most %zu", bytes >> 20,
                                TEXT_BYTES_MAX >> 20);
    while (self.at < self.end) {
        unsigned char c = (unsigned char)*self.at;
        if (c == '<') {
            self.at++;
            TESS_TRY(text_markup(&self));
            continue;
        }
        if ((c < 0x20 && !isspace(c)) || c == '&' || (self.depth == 0 && !isspace(c) && c < 0x80))
            return tess__lines_fail(name, self.line, "byte 0x%02x between elements", (unsigned)c);
        self.line += c == '\n';
        self.at++;
    }
    if (self.depth > 0)
        return tess__lines_fail(
            name, self.line, "the file ends inside <%.*s> of line %d: it is cut short",
            TESS__SHOWN(self.open[self.depth - 1]), (int)self.open_line[self.depth - 1]);
    if (!self.root)
        return tess__lines_fail(name, self.line, "no <topology> in it; hwloc's XML was expected");
    return text_version(&self);
}
