/*
 * Lines and words of a text from outside. Every byte is read once; nothing is copied. The words
 * mean nothing here.
 */
#include "topology/formats/lines.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void tess__lines_open(struct tess__lines *lines, const char *name, const char *text, size_t bytes)
{
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3, bytes -= 3; /* a byte order mark is no word */
    *lines = (struct tess__lines){.name = name, .next = text, .end = text + bytes};
}

bool tess__lines_next(struct tess__lines *lines)
{
    size_t left = (size_t)(lines->end - lines->next);
    if (left == 0)
        return false;
    const char *stop = memchr(lines->next, '\n', left);
    const char *last = stop ? stop : lines->end;
    lines->rest = (struct tess__word){lines->next, (size_t)(last - lines->next)};
    lines->next = stop ? stop + 1 : lines->end;
    lines->line++;
    return true;
}

static bool lines_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

bool tess__lines_word(struct tess__lines *lines, struct tess__word *word_out)
{
    struct tess__word *rest = &lines->rest;
    while (rest->length > 0 && lines_blank(*rest->text))
        rest->text++, rest->length--;
    struct tess__word word = {rest->text, 0};
    while (word.length < rest->length && !lines_blank(word.text[word.length]))
        word.length++;
    rest->text += word.length;
    rest->length -= word.length;
    *word_out = word;
    return word.length > 0;
}

/* Of a very long path the end distinguishes files. */
static const char *lines_shown(const char *name)
{
    size_t length = strlen(name);
    return length > 400 ? name + length - 400 : name;
}

enum tess_status tess__lines_named(const char *name, enum tess_status status)
{
    const char *shown = lines_shown(name), *error = tess_log_last_error();
    size_t length = strlen(shown);
    if (status != TESS_ERR_DATA || (strncmp(error, shown, length) == 0 && error[length] == ':'))
        return status;
    return tess__lines_fail(name, 0, "%s", error);
}

enum tess_status tess__lines_fail(const char *name, int32_t line, const char *format, ...)
{
    char what[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof(what), format, list);
    va_end(list);
    const char *shown = lines_shown(name);
    if (line > 0)
        return tess_fail(TESS_ERR_DATA, "%s:%d: %s", shown, (int)line, what);
    return tess_fail(TESS_ERR_DATA, "%s: %s", shown, what);
}

bool tess__word_is(struct tess__word word, const char *text)
{
    return tess__word_same(word, (struct tess__word){text, strlen(text)});
}

bool tess__word_same(struct tess__word a, struct tess__word b)
{
    return a.length == b.length && (a.length == 0 || memcmp(a.text, b.text, a.length) == 0);
}

bool tess__word_number(struct tess__word word, int32_t max, int32_t *number_out)
{
    int64_t number = 0;
    for (size_t i = 0; i < word.length; i++) {
        if (word.text[i] < '0' || word.text[i] > '9')
            return false;
        number = 10 * number + (word.text[i] - '0');
        if (number > max)
            return false;
    }
    *number_out = (int32_t)number;
    return word.length > 0;
}
