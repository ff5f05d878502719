/* Where the events of a trace begin and end in its text. The content of an event is
 * report_timeline_read.c's. */
#include "report/report_events.h"

#include <ctype.h>
#include <string.h>

static void events_step_over(struct tess__events *text)
{
    text->line += *text->at == '\n';
    text->at++;
}

static void events_skip_blank(struct tess__events *text)
{
    while (text->at < text->end && isspace((unsigned char)*text->at))
        events_step_over(text);
}

/* From one quote to behind the other. */
static bool events_skip_string(struct tess__events *text)
{
    events_step_over(text);
    while (text->at < text->end && *text->at != '"') {
        if (*text->at == '\\' && text->at + 1 < text->end)
            events_step_over(text);
        events_step_over(text);
    }
    text->cut = text->at == text->end;
    text->at += !text->cut;
    return !text->cut;
}

/* Behind one value, if it ends; whether it is JSON is found out later. At least one character. */
static bool events_skip_value(struct tess__events *text)
{
    size_t depth = 0;
    bool plain = false; /* a number or a word, which ends where another sign begins */
    while (text->at < text->end) {
        char sign = *text->at;
        if (plain && (strchr(",]}", sign) || isspace((unsigned char)sign)))
            return true;
        if (sign == '"') {
            if (!events_skip_string(text))
                return false;
        } else {
            depth += sign == '{' || sign == '[';
            if ((sign == '}' || sign == ']') && depth > 0 && --depth == 0) {
                events_step_over(text);
                return true;
            }
            events_step_over(text);
            plain = depth == 0;
        }
        if (depth == 0 && sign == '"')
            return true;
    }
    text->cut = true;
    return false;
}

static bool events_key_is(const char *begin, const char *end, const char *key)
{
    size_t length = strlen(key);
    return (size_t)(end - begin) == length + 2 && memcmp(begin + 1, key, length) == 0;
}

bool tess__events_find(const char *bytes, size_t count, struct tess__events *events,
                       struct tess__events *about)
{
    struct tess__events text = {bytes, bytes + count, 1, false};
    bool found = false;
    *about = (struct tess__events){.at = text.end, .end = text.end};
    events_skip_blank(&text);
    for (char sign = '{'; text.at < text.end && *text.at == sign; sign = ',') {
        const char *key, *key_end;
        struct tess__events value;
        bool list;
        events_step_over(&text);
        events_skip_blank(&text);
        key = text.at;
        if (key == text.end || *key != '"' || !events_skip_string(&text))
            break;
        key_end = text.at;
        events_skip_blank(&text);
        if (text.at == text.end || *text.at != ':')
            break;
        events_step_over(&text);
        events_skip_blank(&text);
        value = text;
        list =
            value.at < value.end && *value.at == '[' && events_key_is(key, key_end, "traceEvents");
        events_skip_value(&text);
        value.end = text.at;
        if (list) {
            value.at++;
            *events = value;
            found = true;
        } else if (events_key_is(key, key_end, "otherData")) {
            *about = value;
        }
        events_skip_blank(&text);
    }
    return found;
}

bool tess__events_next(struct tess__events *events, const char **begin, size_t *count, size_t *line)
{
    while (events->at < events->end && (*events->at == ',' || isspace((unsigned char)*events->at)))
        events_step_over(events);
    if (events->at == events->end || *events->at == ']')
        return false;
    *begin = events->at;
    *line = events->line;
    if (!events_skip_value(events))
        return false;
    *count = (size_t)(events->at - *begin);
    return true;
}
