/*
 * Expands Slurm's lists of names: names between commas, each with any number of brackets of numbers
 * and ranges, the last one running fastest; zeros in front of a range's first number set the width.
 *
 *     dev[08-10,12]   dev08 dev09 dev10 dev12
 *     r[0-1]n[0-1]    r0n0 r0n1 r1n0 r1n1
 *
 * A few bytes can stand for 10^9 names, so the names are counted before any is made.
 */
#include "topology/formats/hostlist.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>

#define HOSTLIST_BRACKETS_MAX 4
#define HOSTLIST_RANGES_MAX   1024 /* in all brackets of a name */

struct hostlist_range {
    int32_t first, last, width; /* width: digits at least */
};

/* A name in parts: text, bracket, text, bracket .. text. */
struct hostlist_name {
    struct tess__word text[HOSTLIST_BRACKETS_MAX + 1];
    struct {
        int32_t first, count; /* ranges */
    } bracket[HOSTLIST_BRACKETS_MAX];
    int32_t brackets, ranges;
    struct hostlist_range range[HOSTLIST_RANGES_MAX];
};

struct hostlist {
    const char *file;
    int32_t line;
    tess__hostlist_visit *visit;
    void *context;
};

/* "3" or "008-010" */
static bool hostlist_range(struct tess__word text, struct hostlist_range *range_out)
{
    const char *dash = memchr(text.text, '-', text.length);
    size_t length = dash ? (size_t)(dash - text.text) : text.length;
    struct hostlist_range range = {0};
    if (length > 9 ||
        !tess__word_number((struct tess__word){text.text, length}, 999999999, &range.first))
        return false;
    range.width = (int32_t)length;
    range.last = range.first;
    if (dash) {
        struct tess__word last = {dash + 1, text.length - length - 1};
        if (last.length > 9 || !tess__word_number(last, 999999999, &range.last))
            return false;
    }
    *range_out = range;
    return range.last >= range.first;
}

/* The ranges of a bracket, `text` without its ends. */
static enum tess_status hostlist_bracket(const struct hostlist *list, struct tess__word text,
                                         struct hostlist_name *name)
{
    int32_t bracket = name->brackets++;
    name->bracket[bracket].first = name->ranges;
    for (size_t at = 0; at <= text.length;) {
        struct tess__word piece = {text.text + at, 0};
        while (at + piece.length < text.length && piece.text[piece.length] != ',')
            piece.length++;
        if (name->ranges == HOSTLIST_RANGES_MAX)
            return tess__lines_fail(list->file, list->line, "more than %d ranges in one name",
                                    HOSTLIST_RANGES_MAX);
        if (!hostlist_range(piece, &name->range[name->ranges]))
            return tess__lines_fail(list->file, list->line,
                                    "'%.*s' in brackets: a number of at most 9 digits, or a range "
                                    "such as 08-12, was expected",
                                    TESS__SHOWN(piece));
        name->ranges++;
        at += piece.length + 1;
    }
    name->bracket[bracket].count = name->ranges - name->bracket[bracket].first;
    return TESS_OK;
}

/* One name with its brackets, without the commas around it. */
static enum tess_status hostlist_parse(const struct hostlist *list, struct tess__word word,
                                       struct hostlist_name *name)
{
    name->brackets = name->ranges = 0;
    for (size_t i = 0; i < word.length; i++)
        if (word.text[i] <= 0x20 || word.text[i] >= 0x7f)
            return tess__lines_fail(list->file, list->line, "byte 0x%02x in a name",
                                    (unsigned)(unsigned char)word.text[i]);
    const char *at = word.text, *end = word.text + word.length;
    for (;;) {
        const char *open = memchr(at, '[', (size_t)(end - at));
        struct tess__word text = {at, (size_t)((open ? open : end) - at)};
        if (memchr(text.text, ']', text.length))
            return tess__lines_fail(list->file, list->line, "']' without '[' in '%.*s'",
                                    TESS__SHOWN(word));
        name->text[name->brackets] = text;
        if (!open)
            break;
        const char *close = memchr(open, ']', (size_t)(end - open));
        if (!close)
            return tess__lines_fail(list->file, list->line, "'[' without ']' in '%.*s'",
                                    TESS__SHOWN(word));
        if (name->brackets == HOSTLIST_BRACKETS_MAX)
            return tess__lines_fail(list->file, list->line, "more than %d brackets in '%.*s'",
                                    HOSTLIST_BRACKETS_MAX, TESS__SHOWN(word));
        TESS_TRY(hostlist_bracket(list, (struct tess__word){open + 1, (size_t)(close - open) - 1},
                                  name));
        at = close + 1;
    }
    return TESS_OK;
}

/* The number of names it expands to; more than TESS__HOSTLIST_MAX return that plus one. */
static int64_t hostlist_size(const struct hostlist_name *name)
{
    int64_t size = 1;
    for (int32_t b = 0; b < name->brackets; b++) {
        int64_t numbers = 0;
        for (int32_t r = 0; r < name->bracket[b].count; r++) {
            const struct hostlist_range *range = &name->range[name->bracket[b].first + r];
            numbers += (int64_t)range->last - range->first + 1;
        }
        size *= numbers;
        if (size > TESS__HOSTLIST_MAX)
            return TESS__HOSTLIST_MAX + 1;
    }
    return size;
}

/* Where a bracket stands: at a number of one of its ranges. */
struct hostlist_at {
    int32_t range, number;
};

/* The next number of bracket `b`; false, and the first one again, after the last. */
static bool hostlist_step(const struct hostlist_name *name, int32_t b, struct hostlist_at *at)
{
    const struct hostlist_range *range = &name->range[name->bracket[b].first];
    if (at->number < range[at->range].last) {
        at->number++;
        return true;
    }
    bool more = at->range + 1 < name->bracket[b].count;
    at->range = more ? at->range + 1 : 0;
    at->number = range[at->range].first;
    return more;
}

static enum tess_status hostlist_names(const struct hostlist *list, struct tess__word word,
                                       const struct hostlist_name *name)
{
    struct hostlist_at at[HOSTLIST_BRACKETS_MAX];
    for (int32_t b = 0; b < name->brackets; b++)
        at[b] = (struct hostlist_at){0, name->range[name->bracket[b].first].first};
    for (;;) {
        char text[TESS_TOPO_NAME_MAX + 1];
        size_t used = 0;
        for (int32_t b = 0; b <= name->brackets && used < sizeof text; b++) {
            used += (size_t)snprintf(
                text + used, sizeof text - used, "%.*s",
                (int)(name->text[b].length < sizeof text ? name->text[b].length : sizeof text),
                name->text[b].text);
            if (b < name->brackets && used < sizeof text)
                used +=
                    (size_t)snprintf(text + used, sizeof text - used, "%0*d",
                                     (int)name->range[name->bracket[b].first + at[b].range].width,
                                     (int)at[b].number);
        }
        if (used >= TESS_TOPO_NAME_MAX || used == 0)
            return tess__lines_fail(list->file, list->line,
                                    "'%.*s': a name of 1 to %d characters was expected",
                                    TESS__SHOWN(word), TESS_TOPO_NAME_MAX - 1);
        TESS_TRY(list->visit(list->context, text));
        int32_t b = name->brackets - 1;
        while (b >= 0 && !hostlist_step(name, b, &at[b]))
            b--;
        if (b < 0)
            return TESS_OK;
    }
}

/* The next name of the list, up to a comma outside brackets. */
static struct tess__word hostlist_next(struct tess__word *rest)
{
    struct tess__word word = {rest->text, 0};
    int depth = 0;
    for (; word.length < rest->length; word.length++) {
        char c = word.text[word.length];
        if (c == ',' && depth == 0)
            break;
        depth = c == '[' ? 1 : c == ']' ? 0 : depth;
    }
    size_t skip = word.length < rest->length ? word.length + 1 : word.length;
    rest->text += skip;
    rest->length -= skip;
    return word;
}

enum tess_status tess__hostlist_expand(const char *file, int32_t line, struct tess__word list,
                                       int32_t *count_inout, tess__hostlist_visit *visit,
                                       void *context)
{
    struct hostlist self = {.file = file, .line = line, .visit = visit, .context = context};
    struct hostlist_name name; /* 13 KiB */
    if (list.length == 0)
        return tess__lines_fail(file, line, "the list is empty; a name was expected");
    while (list.length > 0) {
        struct tess__word word = hostlist_next(&list);
        TESS_TRY(hostlist_parse(&self, word, &name));
        int64_t size = hostlist_size(&name);
        if (size > TESS__HOSTLIST_MAX - *count_inout)
            return tess__lines_fail(file, line, "'%.*s' makes more than %d names",
                                    TESS__SHOWN(word), TESS__HOSTLIST_MAX);
        *count_inout += (int32_t)size;
        TESS_TRY(hostlist_names(&self, word, &name));
    }
    return TESS_OK;
}
