/* Lines wrapped for a terminal. stdout is replaced by a stream that wraps (fopencookie(3)), so that
 * those who print need not count columns. */
#include "text/screen.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define SCREEN_WORD 512 /* bytes; of a longer word, the columns are counted from its last part */
#define SCREEN_HANG 2

enum screen_escape { SCREEN_TEXT, SCREEN_ESCAPE, SCREEN_SEQUENCE };

struct screen {
    FILE *to;
    int columns;
    int column, blanks; /* printed on this line; blanks that wait for a word */
    int indent, hang;   /* of the line, -1: not known yet; and of what follows of it */
    enum screen_escape escape;
    int word_width;
    size_t word_bytes;
    char word[SCREEN_WORD];
};

/* Those that are open: of stdout, and of stderr. */
#define SCREENS_MAX 2
static struct screen_slot {
    FILE *stream; /* NULL: free */
    int descriptor;
    struct screen screen;
} screen_slot[SCREENS_MAX];

/* The screen that a stream is, or a free place (NULL); NULL: it is none. */
static struct screen_slot *screen_find(FILE *stream)
{
    for (int i = 0; i < SCREENS_MAX; i++)
        if (screen_slot[i].stream == stream)
            return &screen_slot[i];
    return NULL;
}

/* The columns that a byte adds to a line. */
static int screen_count(enum screen_escape *escape, char byte)
{
    const unsigned char value = (unsigned char)byte;
    switch (*escape) {
    case SCREEN_ESCAPE:
        *escape = byte == '[' ? SCREEN_SEQUENCE : SCREEN_TEXT;
        return 0;
    case SCREEN_SEQUENCE:
        *escape = value >= 0x40 && value <= 0x7e ? SCREEN_TEXT : SCREEN_SEQUENCE;
        return 0;
    case SCREEN_TEXT:
        break;
    }
    if (byte == '\033')
        *escape = SCREEN_ESCAPE;
    return byte != '\033' && (value & 0xc0) != 0x80;
}

static void screen_fill(struct screen *screen, int blanks)
{
    fprintf(screen->to, "%*s", blanks, "");
    screen->column += blanks;
}

/* The word goes to this line or to a line of its own. */
static void screen_place(struct screen *screen)
{
    if (screen->word_bytes == 0)
        return;
    if (screen->indent < 0) {
        screen->indent = screen->blanks;
        screen->hang = screen->indent + SCREEN_HANG;
    } else if (screen->blanks > 1 && screen->hang == screen->indent + SCREEN_HANG &&
               screen->column + screen->blanks <= screen->columns / 3) {
        screen->hang = screen->column + screen->blanks; /* a list: names, then what they are */
    }
    const bool first = screen->column <= screen->indent + SCREEN_HANG;
    if (!first && screen->blanks > 0 &&
        screen->column + screen->blanks + screen->word_width > screen->columns) {
        fputc('\n', screen->to);
        screen->column = 0;
        screen->blanks = screen->hang;
    }
    screen_fill(screen, screen->blanks);
    fwrite(screen->word, 1, screen->word_bytes, screen->to);
    screen->column += screen->word_width;
    screen->blanks = screen->word_width = 0;
    screen->word_bytes = 0;
}

static void screen_byte(struct screen *screen, char byte)
{
    if (screen->escape == SCREEN_TEXT && (byte == ' ' || byte == '\n' || byte == '\r')) {
        screen_place(screen);
        if (byte == ' ') {
            screen->blanks++;
            return;
        }
        fputc(byte, screen->to);
        screen->column = screen->blanks = 0;
        screen->indent = -1;
        return;
    }
    if (screen->word_bytes == sizeof(screen->word))
        screen_place(screen);
    screen->word_width += screen_count(&screen->escape, byte);
    screen->word[screen->word_bytes++] = byte;
}

static ssize_t screen_take(void *cookie, const char *bytes, size_t count)
{
    struct screen *screen = cookie;
    for (size_t i = 0; i < count; i++)
        screen_byte(screen, bytes[i]);
    screen_place(screen);
    return fflush(screen->to) == 0 ? (ssize_t)count : 0;
}

static int screen_descriptor(FILE *stream)
{
    const struct screen_slot *slot = screen_find(stream);
    const int saved = errno, descriptor = slot != NULL ? slot->descriptor : fileno(stream);
    errno = saved; /* of a stream in memory, which has none */
    return descriptor;
}

FILE *tess__screen_open(FILE *to)
{
    const int descriptor = screen_descriptor(to);
    const int columns = descriptor < 0 ? 0 : tess__terminal_columns(descriptor);
    const cookie_io_functions_t functions = {.write = screen_take};
    struct screen_slot *slot = screen_find(NULL);
    if (columns == 0 || slot == NULL || screen_find(to) != NULL)
        return to;
    slot->screen = (struct screen){.to = to, .columns = columns, .indent = -1};
    FILE *stream = fopencookie(&slot->screen, "w", functions);
    if (stream == NULL)
        return to;
    setvbuf(stream, NULL, _IOLBF, 0);
    slot->stream = stream;
    slot->descriptor = descriptor;
    return stream;
}

void tess__screen_close(FILE *screen, FILE *to)
{
    struct screen_slot *slot = screen != to ? screen_find(screen) : NULL;
    if (slot == NULL)
        return;
    fclose(screen); /* what could not be written is an error of `to` */
    slot->stream = NULL;
}

FILE *tess__screen_begin(void)
{
    FILE *former = stdout;
    stdout = tess__screen_open(former);
    return former;
}

void tess__screen_end(FILE *former)
{
    FILE *screen = stdout;
    stdout = former;
    tess__screen_close(screen, former);
}

int tess__screen_columns(FILE *stream)
{
    const int descriptor = screen_descriptor(stream);
    return descriptor < 0 ? 0 : tess__terminal_columns(descriptor);
}

const char *tess__screen_colour(FILE *stream, enum tess__colour colour)
{
    const int descriptor = screen_descriptor(stream);
    return descriptor < 0 ? "" : tess__terminal_colour(descriptor, colour);
}

void tess__screen_write(FILE *stream, int columns, const char *text)
{
    struct screen screen = {.to = stream, .columns = columns, .indent = -1};
    if (columns == 0) {
        fputs(text, stream);
        return;
    }
    for (; *text; text++)
        screen_byte(&screen, *text);
    screen_place(&screen);
}

int tess__screen_width(const char *text)
{
    enum screen_escape escape = SCREEN_TEXT;
    int width = 0;
    for (; *text; text++)
        width += screen_count(&escape, *text);
    return width;
}
