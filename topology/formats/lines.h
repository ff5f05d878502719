/* Text files that are read line by line and word by word, and messages that name the place. */
#ifndef TOPOLOGY_LINES_H
#define TOPOLOGY_LINES_H

#include "tessera/log.h"
#include "topology/machine/topology.h"

/* A stretch of the text, which is borrowed; no 0 at its end. */
struct tess__word {
    const char *text;
    size_t length;
};

struct tess__lines {
    const char *name;       /* for messages */
    const char *next, *end; /* what is still to be read */
    struct tess__word rest; /* of the current line, without its end */
    int32_t line;           /* 1 ..; 0 before the first */
};

void tess__lines_open(struct tess__lines *lines, const char *name, const char *text, size_t bytes);
/* The next line into rest; false at the end. */
bool tess__lines_next(struct tess__lines *lines);
/* The next word of the line, between blanks; false at its end. */
bool tess__lines_word(struct tess__lines *lines, struct tess__word *word_out);

/* TESS_ERR_DATA, "NAME:LINE: ..."; line 0: "NAME: ...". */
TESS_PRINTF(3, 4)
enum tess_status tess__lines_fail(const char *name, int32_t line, const char *format, ...);

/* What a reader returns: an error of building, which has no file name in it, with the file's name
 * in front.
 */
enum tess_status tess__lines_named(const char *name, enum tess_status status);

bool tess__word_is(struct tess__word word, const char *text);
bool tess__word_same(struct tess__word a, struct tess__word b);
/* Digits alone, 0 .. max. */
bool tess__word_number(struct tess__word word, int32_t max, int32_t *number_out);
/* Of what a message shows of a word, for "%.*s": at most 40 bytes. */
#define TESS__SHOWN(word) (int)((word).length < 40 ? (word).length : 40), (word).text

#endif
