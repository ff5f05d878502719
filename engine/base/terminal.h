/*
 * What the terminal behind a stream can show. Colours only repeat what words say: without them
 * nothing is lost.
 */
#ifndef TESSERA_BASE_TERMINAL_H
#define TESSERA_BASE_TERMINAL_H

#include <stdbool.h>

enum tess__colour {
    TESS__COLOUR_PLAIN, /* ends any other */
    TESS__COLOUR_STRONG,
    TESS__COLOUR_FAINT,
    TESS__COLOUR_GOOD,
    TESS__COLOUR_WARNING,
    TESS__COLOUR_BAD,
};

/* Is there a terminal behind a descriptor, with a size? */
bool tess__is_terminal(int descriptor);

/*
 * Columns of the terminal behind a descriptor. COLUMNS in the environment counts first, for files
 * and pipes, too. 0: no limit, which is the answer for a file or a pipe without COLUMNS.
 */
int tess__terminal_columns(int descriptor);

/*
 * The escape sequence of a colour, or "": colours are for terminals whose TERM is not "dumb".
 * NO_COLOR in the environment switches them off, CLICOLOR_FORCE on. The text is static.
 */
const char *tess__terminal_colour(int descriptor, enum tess__colour colour);

#endif
