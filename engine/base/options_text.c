/* Texts: kept copies, names in normal form, nearest words, and user input quoted in messages. */
#include "base/options_set.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_WORD_MAX 64

char *tess__options_keep(struct tess_options *options, const char *text, size_t length)
{
    struct tess__option_text *kept = malloc(sizeof(*kept) + length + 1);
    if (kept == NULL)
        return NULL;
    memcpy(kept->byte, text, length);
    kept->byte[length] = '\0';
    kept->next = options->text;
    options->text = kept;
    return kept->byte;
}

int tess__utf8_length(const char *text, size_t left, uint32_t *code_out)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (left == 0)
        return 0;
    unsigned char lead = (unsigned char)text[0];
    int length;
    uint32_t code;
    if (lead < 0x80)
        length = 1, code = lead;
    else if ((lead & 0xe0) == 0xc0)
        length = 2, code = lead & 0x1f;
    else if ((lead & 0xf0) == 0xe0)
        length = 3, code = lead & 0x0f;
    else if ((lead & 0xf8) == 0xf0)
        length = 4, code = lead & 0x07;
    else
        return 0;
    if ((size_t)length > left)
        return 0;
    for (int i = 1; i < length; i++) {
        if (((unsigned char)text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | ((unsigned char)text[i] & 0x3f);
    }
    /* Overlong forms, surrogates and what lies beyond Unicode. */
    if (code < least[length] || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff)
        return 0;
    *code_out = code;
    return length;
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
            if (length == 0)
                length = 1;
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

bool tess__name_join(char out[TESS__NAME_MAX], const char *prefix, const char *name)
{
    size_t prefix_length = strlen(prefix), name_length = strlen(name);
    size_t point = prefix_length > 0 ? 1 : 0;
    if (prefix_length >= TESS__NAME_MAX || name_length >= TESS__NAME_MAX ||
        prefix_length + point + name_length >= TESS__NAME_MAX)
        return false;
    memcpy(out, prefix, prefix_length);
    if (point)
        out[prefix_length] = '.';
    memcpy(out + prefix_length + point, name, name_length + 1);
    for (char *c = out; *c; c++)
        if (*c == '_')
            *c = '-';
    return true;
}

void tess__name_environment(char out[TESS__NAME_MAX + 8], const char *name)
{
    memcpy(out, "TESSERA_", 8);
    size_t i = 0;
    for (; name[i]; i++) {
        char c = name[i];
        if (c == '.' || c == '-')
            c = '_';
        else if (c >= 'a' && c <= 'z')
            c = (char)(c - 'a' + 'A'); /* not toupper: it depends on the locale */
        out[8 + i] = c;
    }
    out[8 + i] = '\0';
}

static int text_min(int a, int b)
{
    return a < b ? a : b;
}

/* Edit distance with neighbours that changed places counted once (optimal string alignment). */
static int text_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int row[3][TEXT_WORD_MAX + 1];
    int *before = row[0], *above = row[1], *here = row[2];
    for (size_t j = 0; j <= b_length; j++)
        above[j] = (int)j;
    for (size_t i = 1; i <= a_length; i++) {
        here[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int cost = above[j - 1] + (a[i - 1] != b[j - 1]);
            cost = text_min(cost, text_min(above[j], here[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                cost = text_min(cost, before[j - 2] + 1);
            here[j] = cost;
        }
        int *oldest = before;
        before = above;
        above = here;
        here = oldest;
    }
    return above[b_length];
}

const char *tess_nearest_word(const char *word, const char *const *known, int known_count)
{
    size_t length = strlen(word);
    if (length > TEXT_WORD_MAX)
        return NULL;
    const char *nearest = NULL;
    int least = 4;
    for (int k = 0; k < known_count; k++) {
        size_t known_length = strlen(known[k]);
        if (known_length > TEXT_WORD_MAX)
            continue;
        int distance = text_distance(word, length, known[k], known_length);
        if (distance < least && (size_t)(2 * distance) < length) {
            least = distance;
            nearest = known[k];
        }
    }
    return nearest;
}
