/* Text that grows, escaping, and numbers as a report prints them. */
#include "text/report_html.h"

#include "base/utf8.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HTML_REPLACEMENT "\xEF\xBF\xBD" /* U+FFFD */
#define HTML_ELLIPSIS    "\xE2\x80\xA6"
#define HTML_DASH        "\xE2\x80\x93"
#define HTML_THIN_SPACE  "\xE2\x80\xAF" /* narrow and unbreakable */

void tess__html_close(struct tess__html *html)
{
    free(html->bytes);
    *html = (struct tess__html){0};
}

void tess__html_add_bytes(struct tess__html *html, const char *bytes, size_t count)
{
    if (html->lost)
        return;
    if (html->count + count + 1 > html->room) {
        size_t room = 2 * (html->count + count + 1) + 4096;
        char *larger = realloc(html->bytes, room);
        if (!larger) {
            html->lost = true;
            return;
        }
        html->bytes = larger;
        html->room = room;
    }
    memcpy(html->bytes + html->count, bytes, count);
    html->count += count;
    html->bytes[html->count] = '\0';
}

void tess__html_append(struct tess__html *html, const struct tess__html *part)
{
    if (part->count > 0)
        tess__html_add_bytes(html, part->bytes, part->count);
    html->lost |= part->lost;
}

void tess__html_add(struct tess__html *html, const char *text)
{
    tess__html_add_bytes(html, text, strlen(text));
}

void tess__html_print(struct tess__html *html, const char *format, ...)
{
    char text[1024];
    va_list rest;
    va_start(rest, format);
    int length = vsnprintf(text, sizeof(text), format, rest);
    va_end(rest);
    if (length < 0 || (size_t)length >= sizeof(text))
        html->lost = true;
    else
        tess__html_add_bytes(html, text, (size_t)length);
}

/* ---- foreign text ---------------------------------------------------------------------------- */

/* Read one character; *next_out is after it. What is not UTF-8 is U+FFFD, one byte long. */
static uint32_t html_decode(const char *text, const char **next_out)
{
    uint32_t code = 0xFFFD;
    const int length = tess__utf8_length(text, strnlen(text, 4), &code);
    *next_out = text + (length > 0 ? length : 1);
    return code;
}

/* Control characters; marks, embeddings and isolates that turn the direction of text; not
 * characters at all. */
static bool html_is_odd(uint32_t code)
{
    return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0) ||
           code == 0x200E || code == 0x200F || code == 0x2028 || code == 0x2029 ||
           (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) ||
           (code >= 0xFDD0 && code <= 0xFDEF) || (code & 0xFFFE) == 0xFFFE || code == 0xFEFF;
}

static void html_escape_one(struct tess__html *html, const char *text, const char *next,
                            uint32_t code)
{
    static const char *const entity[128] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;", ['\''] = "&#39;"};
    if (code < 128 && entity[code])
        tess__html_add(html, entity[code]);
    else if (code == 0xFFFD || html_is_odd(code))
        tess__html_add(html, HTML_REPLACEMENT);
    else
        tess__html_add_bytes(html, text, (size_t)(next - text));
}

static size_t html_characters(const char *text)
{
    size_t count = 0;
    for (; *text; count++)
        html_decode(text, &text);
    return count;
}

size_t tess__html_length(const char *text, size_t max)
{
    size_t count = text ? html_characters(text) : 1;
    return count < max ? count : max;
}

void tess__html_escape_short(struct tess__html *html, const char *text, size_t max)
{
    size_t i = 0;
    const char *next;
    if (!text) {
        tess__html_add(html, HTML_DASH);
        return;
    }
    size_t count = html_characters(text);
    /* Names that differ at the end are more common than those that differ in the middle. */
    size_t head = count <= max ? count : max / 2;
    size_t tail = count <= max ? 0 : max - head - 1;
    for (; *text; text = next, i++) {
        uint32_t code = html_decode(text, &next);
        if (i < head || i >= count - tail)
            html_escape_one(html, text, next, code);
        else if (i == head)
            tess__html_add(html, HTML_ELLIPSIS);
    }
}

void tess__html_escape(struct tess__html *html, const char *text)
{
    tess__html_escape_short(html, text, SIZE_MAX);
}

/* ---- numbers --------------------------------------------------------------------------------- */

const char *tess__real_fixed(double value, int decimals, char text[TESS__REAL_BYTES])
{
    char plain[TESS__REAL_BYTES];
    size_t used = 0;
    if (isnan(value))
        return strcpy(text, HTML_DASH);
    if (fabs(value) >= 1e12) {
        snprintf(text, TESS__REAL_BYTES, "%.3e", value);
        return text;
    }
    snprintf(plain, sizeof(plain), "%.*f", decimals, value);
    int whole = (int)strcspn(plain, ".");
    for (int i = 0; plain[i]; i++) {
        /* Four digits are read at a glance; longer ones in groups. */
        if (whole > 4 && i > 0 && i < whole && (whole - i) % 3 == 0)
            used += (size_t)snprintf(text + used, TESS__REAL_BYTES - used, HTML_THIN_SPACE);
        text[used++] = plain[i];
    }
    text[used] = '\0';
    return text;
}

const char *tess__real(double value, char text[TESS__REAL_BYTES])
{
    double size = fabs(value);
    if (isnan(value) || (value == floor(value) && size < 1e12))
        return tess__real_fixed(value, 0, text);
    if (size < 1e-3) {
        snprintf(text, TESS__REAL_BYTES, "%.2e", value);
        return text;
    }
    int digits = 3 - (int)floor(log10(size));
    return tess__real_fixed(value, digits < 0 ? 0 : digits, text);
}

void tess__html_put(struct tess__html *html, const char *before, const char *text,
                    const char *after)
{
    tess__html_put_short(html, before, text, SIZE_MAX, after);
}

void tess__html_put_short(struct tess__html *html, const char *before, const char *text, size_t max,
                          const char *after)
{
    tess__html_add(html, before);
    tess__html_escape_short(html, text, max);
    tess__html_add(html, after);
}
