/* The events of a file in Chrome's trace format, one by one: the document as a whole is never held
 * as values, and a file that is cut shows its events up to there. */
#ifndef TESSERA_REPORT_REPORT_EVENTS_H
#define TESSERA_REPORT_REPORT_EVENTS_H

#include <stdbool.h>
#include <stddef.h>

/* A part of the text, read up to `at`. */
struct tess__events {
    const char *at, *end;
    size_t line; /* of `at`, from 1 */
    bool cut;    /* the text ended within a value */
};

/* The elements of the list of events, and the object about the run (empty when there is none);
 * false when the text is no object with such a list. */
bool tess__events_find(const char *bytes, size_t count, struct tess__events *events,
                       struct tess__events *about);

/* The next element of the list, which may be anything; false at its end. */
bool tess__events_next(struct tess__events *events, const char **begin, size_t *count,
                       size_t *line);

#endif
