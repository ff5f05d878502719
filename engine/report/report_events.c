/* Where the events of a trace begin and end in its text. The content of an event is
 * report_timeline_read.c's. */
#include "report/report_events.h"

#include <ctype.h>
#include <string.h>

static void events_step_over(struct tess__events *text, size_t count)
{
    for (const char *stop = text->at + count; text->at < stop; text->at++)
        text->line += *text->at == '\n';
}

/* Over white space and the sign; false where there is another one. */
static bool events_skip(struct tess__events *text, char sign)
{
    while (text->at < text->end && isspace((unsigned char)*text->at))
        events_step_over(text, 1);
    bool there = text->at < text->end && *text->at == sign;
    text->at += there;
    return there;
}

/* The value that begins here; NULL, with the reason, where it is none. */
static json_t *events_value(struct tess__events *text, size_t flags, json_error_t *error)
{
    json_t *value = json_loadb(text->at, (size_t)(text->end - text->at),
                               flags | JSON_DISABLE_EOF_CHECK | JSON_DECODE_INT_AS_REAL, error);
    if (value != NULL)
        events_step_over(text, (size_t)error->position);
    else
        text->cut = json_error_code(error) == json_error_premature_end_of_input;
    return value;
}

/* To where another event may begin: at the line's end, or behind a comma. */
static void events_skip_damaged(struct tess__events *text)
{
    char before = '\0';
    for (; text->at < text->end && *text->at != '\n'; events_step_over(text, 1)) {
        if (before == ',' && *text->at == '{')
            return;
        before = isspace((unsigned char)*text->at) ? before : *text->at;
    }
}

bool tess__events_find(const char *bytes, size_t count, struct tess__events *events,
                       json_t **about_out)
{
    struct tess__events text = {bytes, bytes + count, 1, false};
    json_error_t error;
    bool found = false;
    *about_out = NULL;
    for (char sign = '{'; events_skip(&text, sign); sign = ',') {
        json_t *value, *key = events_value(&text, JSON_DECODE_ANY, &error);
        const char *name = json_is_string(key) ? json_string_value(key) : "";
        bool list = strcmp(name, "traceEvents") == 0, about = strcmp(name, "otherData") == 0;
        size_t line;
        json_decref(key);
        if (!events_skip(&text, ':'))
            break;
        if (list && events_skip(&text, '[')) {
            *events = text;
            found = true;
            while (tess__events_next(&text, &value, &line, &error))
                json_decref(value);
            events_skip(&text, ']');
            continue;
        }
        value = events_value(&text, JSON_DECODE_ANY, &error);
        if (about) {
            json_decref(*about_out);
            *about_out = json_incref(value);
        }
        json_decref(value);
    }
    return found;
}

bool tess__events_next(struct tess__events *events, json_t **event_out, size_t *line_out,
                       json_error_t *error)
{
    while (events_skip(events, ','))
        continue;
    if (events->at == events->end || *events->at == ']')
        return false;
    *line_out = events->line;
    *event_out = events_value(events, 0, error);
    if (*event_out == NULL && !events->cut)
        events_skip_damaged(events);
    return !events->cut;
}
