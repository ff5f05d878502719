/* Texts: kept copies, names in normal form, nearest words, and user input quoted in messages. */
#include "base/options_set.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_WORD_MAX 64

/* Room for so many bytes that live as long as the set. */
static char *text_room(struct tess_options *options, size_t bytes)
{
    struct tess__option_text *kept = malloc(sizeof(*kept) + bytes);
    if (kept == NULL)
        return NULL;
    kept->next = options->text;
    options->text = kept;
    return kept->byte;
}

char *tess__options_keep_text(struct tess_options *options, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *kept = text_room(options, bytes);
    return kept != NULL ? memcpy(kept, text, bytes) : NULL;
}

char *tess__options_keep(struct tess_options *options, const char *format, ...)
{
    va_list list, again;
    va_start(list, format);
    va_copy(again, list);
    const size_t bytes = (size_t)vsnprintf(NULL, 0, format, list) + 1;
    char *kept = text_room(options, bytes);
    if (kept != NULL)
        vsnprintf(kept, bytes, format, again);
    va_end(again);
    va_end(list);
    return kept;
}

int tess__utf8_length(const char *text, size_t left, uint32_t *code_out)
{
    /* By length: the bits of the first byte that mark it, and the least code point. */
    static const struct {
        unsigned char mask, mark;
        uint32_t least;
    } form[] = {{0x80, 0, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    const unsigned char *byte = (const unsigned char *)text;
    for (size_t f = 0; f < 4 && f < left; f++) {
        if ((byte[0] & form[f].mask) != form[f].mark)
            continue;
        uint32_t code = byte[0] & ~form[f].mask;
        for (size_t i = 1; i <= f; i++) {
            if ((byte[i] & 0xc0) != 0x80)
                return 0;
            code = code << 6 | (byte[i] & 0x3f);
        }
        /* Overlong forms, surrogates and what lies beyond Unicode. */
        if (code < form[f].least || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff)
            return 0;
        *code_out = code;
        return (int)f + 1;
    }
    return 0;
}

const char *tess__quote(const char *text, char quote[TESS__QUOTE_MAX])
{
    size_t used = 0, left = strlen(text);
    while (left > 0) {
        if (used + 4 + 4 > TESS__QUOTE_MAX) { /* the longest piece, then "..." and the end */
            memcpy(quote + used, "...", 3);
            used += 3;
            break;
        }
        uint32_t code = 0;
        int length = tess__utf8_length(text, left, &code);
        if (length == 0 || code < 0x20 || (code >= 0x7f && code < 0xa0)) {
            /* Of a two-byte control character the first byte is shown; the second follows. */
            used += (size_t)snprintf(quote + used, 5, "\\x%02x", (unsigned char)text[0]);
            length = 1;
        } else {
            memcpy(quote + used, text, (size_t)length);
            used += (size_t)length;
        }
        text += length;
        left -= (size_t)length;
    }
    quote[used] = '\0';
    return quote;
}

const char *tess__path_end(const char *path)
{
    const size_t length = strlen(path);
    return length > 400 ? path + length - 400 : path;
}

bool tess__name_join(char out[TESS__NAME_MAX], const char *prefix, const char *name)
{
    const char *part[] = {prefix, *prefix ? "." : "", name}; /* snprintf is slow for this */
    size_t used = 0;
    bool whole = true;
    for (int i = 0; i < 3; i++)
        for (const char *c = part[i]; *c; c++) {
            whole = whole && used + 1 < TESS__NAME_MAX;
            if (whole)
                out[used++] = *c == '_' ? '-' : *c;
        }
    out[used] = '\0';
    return whole;
}

void tess__name_environment(char out[TESS__NAME_MAX + 8], const char *name)
{
    snprintf(out, TESS__NAME_MAX + 8, "TESSERA_%s", name);
    for (char *c = out; *c; c++)
        if (*c == '.' || *c == '-')
            *c = '_';
        else if (*c >= 'a' && *c <= 'z')
            *c = (char)(*c - 'a' + 'A'); /* not toupper: it depends on the locale */
}

static int text_min(int a, int b)
{
    return a < b ? a : b;
}

/* With neighbours that changed places counted once (optimal string alignment). */
int tess__word_distance(const char *a, const char *b)
{
    const size_t a_length = strlen(a), b_length = strlen(b);
    int cost[TEXT_WORD_MAX + 1][TEXT_WORD_MAX + 1];
    if (a_length > TEXT_WORD_MAX || b_length > TEXT_WORD_MAX)
        return TESS__WORD_FAR;
    for (size_t i = 0; i <= a_length; i++)
        for (size_t j = 0; j <= b_length; j++) {
            int *here = &cost[i][j];
            *here = (int)(i + j);
            if (i == 0 || j == 0)
                continue;
            *here = text_min(cost[i - 1][j], cost[i][j - 1]) + 1;
            *here = text_min(*here, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                *here = text_min(*here, cost[i - 2][j - 2] + 1);
        }
    const int distance = cost[a_length][b_length];
    return 2 * (size_t)distance < a_length && distance < TESS__WORD_FAR ? distance : TESS__WORD_FAR;
}

const char *tess_nearest_word(const char *word, const char *const *known, int known_count)
{
    const char *nearest = NULL;
    int least = TESS__WORD_FAR;
    for (int k = 0; k < known_count; k++) {
        const int distance = tess__word_distance(word, known[k]);
        if (distance < least) {
            least = distance;
            nearest = known[k];
        }
    }
    return nearest;
}
