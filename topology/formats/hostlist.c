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

struct hostlist {
    const char *file;
    int32_t line;
    tess__hostlist_visit *visit;
    void *context;
    struct tess__word word;        /* a name of the list with its brackets */
    char name[TESS_TOPO_NAME_MAX]; /* one that it expands to, so far */
};

struct hostlist_range {
    int32_t first, last, width; /* width: digits at least */
};

/* The range at *at_inout, "3" or "008-010", which ends at a ',' or ']'; *at_inout moves there. */
static bool hostlist_range(const char **at_inout, struct hostlist_range *range_out)
{
    const char *at = *at_inout, *end = at + strcspn(at, ",]");
    const char *dash = memchr(at, '-', (size_t)(end - at));
    struct tess__word first = {at, (size_t)((dash != NULL ? dash : end) - at)}, last = first;
    if (dash != NULL)
        last = (struct tess__word){dash + 1, (size_t)(end - dash) - 1};
    *at_inout = end;
    range_out->width = (int32_t)first.length;
    return first.length <= 9 && last.length <= 9 &&
           tess__word_number(first, 999999999, &range_out->first) &&
           tess__word_number(last, 999999999, &range_out->last) &&
           range_out->last >= range_out->first;
}

/* Is self->word well-formed, and how many names is it? More than TESS__HOSTLIST_MAX count as that
 * plus one. */
static enum tess_status hostlist_check(const struct hostlist *self, int64_t *size_out)
{
    const struct tess__word word = self->word;
    const char *end = word.text + word.length;
    int32_t brackets = 0, ranges = 0;
    *size_out = 1;
    for (size_t i = 0; i < word.length; i++)
        if (word.text[i] <= 0x20 || word.text[i] >= 0x7f)
            return tess__lines_fail(self->file, self->line, "byte 0x%02x in a name",
                                    (unsigned)(unsigned char)word.text[i]);
    for (const char *at = word.text;; at++) {
        const char *open = memchr(at, '[', (size_t)(end - at));
        if (memchr(at, ']', (size_t)((open != NULL ? open : end) - at)) != NULL)
            return tess__lines_fail(self->file, self->line, "']' without '[' in '%.*s'",
                                    TESS__SHOWN(word));
        if (open == NULL)
            return TESS_OK;
        if (memchr(open, ']', (size_t)(end - open)) == NULL)
            return tess__lines_fail(self->file, self->line, "'[' without ']' in '%.*s'",
                                    TESS__SHOWN(word));
        if (brackets++ == HOSTLIST_BRACKETS_MAX)
            return tess__lines_fail(self->file, self->line, "more than %d brackets in '%.*s'",
                                    HOSTLIST_BRACKETS_MAX, TESS__SHOWN(word));
        int64_t numbers = 0;
        for (at = open; *at != ']';) {
            struct hostlist_range range;
            const char *first = ++at;
            if (ranges++ == HOSTLIST_RANGES_MAX)
                return tess__lines_fail(self->file, self->line, "more than %d ranges in one name",
                                        HOSTLIST_RANGES_MAX);
            if (!hostlist_range(&at, &range))
                return tess__lines_fail(self->file, self->line,
                                        "'%.*s' in brackets: a number of at most 9 digits, or a "
                                        "range such as 08-12, was expected",
                                        (int)(at - first < 40 ? at - first : 40), first);
            numbers += (int64_t)range.last - range.first + 1;
        }
        *size_out *= numbers;
        if (*size_out > TESS__HOSTLIST_MAX)
            *size_out = TESS__HOSTLIST_MAX + 1;
    }
}

/* The names that begin with self->name [used] and go on as self->word does at `at`. */
static enum tess_status hostlist_names(struct hostlist *self, size_t used, const char *at)
{
    const size_t room = sizeof(self->name);
    const char *end = self->word.text + self->word.length;
    const char *open = memchr(at, '[', (size_t)(end - at));
    if (used < room)
        used += (size_t)snprintf(self->name + used, room - used, "%.*s",
                                 (int)((open != NULL ? open : end) - at), at);
    if (used >= room || (open == NULL && used == 0))
        return tess__lines_fail(self->file, self->line,
                                "'%.*s': a name of 1 to %d characters was expected",
                                TESS__SHOWN(self->word), TESS_TOPO_NAME_MAX - 1);
    if (open == NULL)
        return self->visit(self->context, self->name);
    const char *close = memchr(open, ']', (size_t)(end - open));
    for (at = open; at < close;) {
        struct hostlist_range range;
        at++;
        (void)hostlist_range(&at, &range); /* checked */
        for (int32_t number = range.first; number <= range.last; number++) {
            int digits =
                snprintf(self->name + used, room - used, "%0*d", (int)range.width, (int)number);
            TESS_TRY(hostlist_names(self, used + (size_t)digits, close + 1));
        }
    }
    return TESS_OK;
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
    if (list.length == 0)
        return tess__lines_fail(file, line, "the list is empty; a name was expected");
    while (list.length > 0) {
        int64_t size;
        self.word = hostlist_next(&list);
        TESS_TRY(hostlist_check(&self, &size));
        if (size > TESS__HOSTLIST_MAX - *count_inout)
            return tess__lines_fail(file, line, "'%.*s' makes more than %d names",
                                    TESS__SHOWN(self.word), TESS__HOSTLIST_MAX);
        *count_inout += (int32_t)size;
        TESS_TRY(hostlist_names(&self, 0, self.word.text));
    }
    return TESS_OK;
}
