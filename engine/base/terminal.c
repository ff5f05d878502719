/* Width and colours of terminals, after COLUMNS, TERM, no-color.org and bixense.com/clicolors. */
#include "base/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define COLUMNS_LEAST 20
#define COLUMNS_MOST  4096

/* 0: no terminal, or one without a size. Open MPI's mpirun gives every rank a terminal of 0
 * columns, also where its own output goes to a file. */
static int terminal_width(int descriptor)
{
    struct winsize window = {.ws_col = 0};
    if (descriptor < 0 || isatty(descriptor) != 1 || ioctl(descriptor, TIOCGWINSZ, &window) != 0)
        return 0;
    return window.ws_col;
}

bool tess__is_terminal(int descriptor)
{
    return terminal_width(descriptor) > 0;
}

int tess__terminal_columns(int descriptor)
{
    const char *given = getenv("COLUMNS");
    const int width = terminal_width(descriptor);
    if (given != NULL && given[0] != '\0') {
        char *end = NULL;
        const long columns = strtol(given, &end, 10);
        if (*end == '\0' && columns >= COLUMNS_LEAST && columns <= COLUMNS_MOST)
            return (int)columns;
    }
    return width > 0 && width < COLUMNS_LEAST ? COLUMNS_LEAST : width;
}

static bool terminal_is_set(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0';
}

static bool terminal_has_colours(int descriptor)
{
    const char *term = getenv("TERM"), *force = getenv("CLICOLOR_FORCE");
    if (terminal_is_set("NO_COLOR"))
        return false;
    if (terminal_is_set("CLICOLOR_FORCE") && strcmp(force, "0") != 0)
        return true;
    return terminal_is_set("TERM") && strcmp(term, "dumb") != 0 && tess__is_terminal(descriptor);
}

const char *tess__terminal_colour(int descriptor, enum tess__colour colour)
{
    static const char *const code[] = {
        [TESS__COLOUR_PLAIN] = "\033[0m",    [TESS__COLOUR_STRONG] = "\033[1m",
        [TESS__COLOUR_FAINT] = "\033[2m",    [TESS__COLOUR_GOOD] = "\033[32m",
        [TESS__COLOUR_WARNING] = "\033[33m", [TESS__COLOUR_BAD] = "\033[31m",
    };
    return terminal_has_colours(descriptor) ? code[colour] : "";
}
