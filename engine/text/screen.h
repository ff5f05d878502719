/*
 * Text for people: lines that are longer than the terminal has columns are wrapped at blanks. What
 * follows begins two columns right of the line's first word; in a list, where blanks part a name
 * from what it is, below the latter. A word that is longer than a line, such as a path, stays
 * whole. What is not for a terminal passes as it is.
 */
#ifndef TESSERA_TEXT_SCREEN_H
#define TESSERA_TEXT_SCREEN_H

#include "base/terminal.h"

#include <stdio.h>

/*
 * A stream whose text goes to `to` through a screen, to be closed. It is `to` itself where there is
 * no terminal, where `to` is a screen already, and without memory. Not safe beside other threads
 * that open one.
 */
FILE *tess__screen_open(FILE *to);
void tess__screen_close(FILE *screen, FILE *to);

/* The same for all that is printed to stdout, until the end. Returns stdout as it was. */
FILE *tess__screen_begin(void);
void tess__screen_end(FILE *former);

/* Columns of what a stream is written to; 0: no limit. */
int tess__screen_columns(FILE *stream);

/* As tess__terminal_colour. */
const char *tess__screen_colour(FILE *stream, enum tess__colour colour);

/* Write text as a screen of so many columns shows it; 0: no limit. */
void tess__screen_write(FILE *stream, int columns, const char *text);

/* Printed characters of a UTF-8 text, without escape sequences. */
int tess__screen_width(const char *text);

#endif
