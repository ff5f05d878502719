/* Where a text ends: words that are looked for as it grows. */
#include "cli/generate.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* ---- the words ------------------------------------------------------------------------------- */

/* The byte that \c stands for, or 0. */
static char stop_escaped(char c)
{
    return c == 'n' ? '\n' : c == 't' ? '\t' : c == '|' || c == '\\' ? c : '\0';
}

static enum tess_status stop_add(struct tess__stops *stops, char *word, const char *end)
{
    if (stops->count == TESS__STOPS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "--stop: more than %d words", TESS__STOPS_MAX);
    if (end == word)
        TESS_FAIL(TESS_ERR_USAGE, "--stop: word %d is empty", stops->count + 1);
    stops->word[stops->count] = word;
    stops->length[stops->count++] = (size_t)(end - word);
    return TESS_OK;
}

enum tess_status tess__stops_read(const char *list, struct tess__stops *stops_out)
{
    char *to = stops_out->text = malloc(strlen(list) + 1), *word = to;
    if (to == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the words of --stop");
    for (const char *at = list; *at; at++) {
        if (*at == '|') {
            TESS_TRY(stop_add(stops_out, word, to));
            word = to;
        } else if (*at != '\\') {
            *to++ = *at;
        } else {
            *to = stop_escaped(*++at);
            if (*to++ == '\0')
                TESS_FAIL(TESS_ERR_USAGE, "--stop: \\n, \\t, \\| and \\\\ are known, not \\%.1s",
                          at);
        }
    }
    return list[0] ? stop_add(stops_out, word, to) : TESS_OK;
}

void tess__stops_close(struct tess__stops *stops)
{
    free(stops->text);
}

/* ---- the text -------------------------------------------------------------------------------- */

/* Does a word, or its beginning up to where the text ends, lie at `at`? *whole: all of it. */
static bool stop_lies(const struct tess__growing *growing, const struct tess__stops *stops,
                      size_t at, bool *whole)
{
    const size_t left = growing->count - at;
    bool begins = false;
    *whole = false;
    for (int i = 0; i < stops->count && !*whole; i++) {
        const size_t length = stops->length[i];
        const bool here =
            memcmp(growing->text + at, stops->word[i], left < length ? left : length) == 0;
        begins = begins || here;
        *whole = here && left >= length;
    }
    return begins;
}

enum tess_status tess__growing_add(struct tess__growing *growing, const struct tess__stops *stops,
                                   const char *bytes, size_t count)
{
    bool whole = false;
    if (growing->stopped || count == 0)
        return TESS_OK;
    if (growing->count + count > growing->room) {
        const size_t room = 2 * (growing->count + count);
        char *text = realloc(growing->text, room);
        if (text == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for a text of %zu bytes", room);
        growing->text = text;
        growing->room = room;
    }
    memcpy(growing->text + growing->count, bytes, count);
    growing->count += count;
    while (growing->shown < growing->count && !stop_lies(growing, stops, growing->shown, &whole))
        growing->shown++;
    /* A word may lie behind the beginning of another one. */
    for (size_t at = growing->shown + 1; !whole && at < growing->count; at++)
        if (stop_lies(growing, stops, at, &whole) && whole)
            growing->shown = at;
    growing->stopped = whole;
    return TESS_OK;
}

void tess__growing_end(struct tess__growing *growing)
{
    if (!growing->stopped)
        growing->shown = growing->count;
}
