/* The events of a file in Chrome's trace format, one by one: the document as a whole is never held
 * as values, and a file that is cut shows its events up to there. */
#ifndef TESSERA_REPORT_REPORT_EVENTS_H
#define TESSERA_REPORT_REPORT_EVENTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* A part of the text, read up to `at`. */
struct tess__events {
    const char *at, *end;
    size_t line; /* of `at`, from 1 */
    bool cut;    /* the text ended within a value */
};

/* The elements of the list of events, and the object about the run, a new reference, or NULL; false
 * when the text is no object with such a list. */
bool tess__events_find(const char *bytes, size_t count, struct tess__events *events,
                       json_t **about_out);

/* The next element of the list, a new reference, and its line; false at the end. What is not JSON
 * is NULL, with the reason in `error`. */
bool tess__events_next(struct tess__events *events, json_t **event_out, size_t *line_out,
                       json_error_t *error);

#endif
