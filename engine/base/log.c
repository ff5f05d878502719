/* Messages to stderr or to the thread's sink. The level is the process's, the rest the thread's. */
#include "base/log_sink.h"
#include "base/terminal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* With the prefix below PIPE_BUF (4096), so that a line stays whole in a pipe shared by ranks. */
#define LOG_TEXT_MAX   2048
#define LOG_PREFIX_MAX 64

static _Atomic int log_level = TESS_LOG_INFO;
static _Thread_local const struct tess__log_sink *log_sink;
static _Thread_local int log_rank = -1;
static _Thread_local char log_error[LOG_TEXT_MAX];

void tess_log_set_level(enum tess_log_level level)
{
    atomic_store(&log_level, (int)level);
}

void tess_log_set_rank(int rank)
{
    log_rank = rank;
}

const char *tess_log_last_error(void)
{
    return log_error;
}

const struct tess__log_sink tess__log_silence = {NULL, NULL};

const struct tess__log_sink *tess__log_redirect(const struct tess__log_sink *sink)
{
    const struct tess__log_sink *former = log_sink;
    log_sink = sink;
    return former;
}

/* Format into one line of text: control characters, which may come from a file or an argument,
 * would forge lines or move the cursor; what does not fit ends in "...". */
static void log_format(char text[LOG_TEXT_MAX], const char *format, va_list list)
{
    int length = vsnprintf(text, LOG_TEXT_MAX, format, list);
    if (length < 0) {
        snprintf(text, LOG_TEXT_MAX, "(message cannot be formatted: %s)", format);
    } else if (length >= LOG_TEXT_MAX) {
        size_t cut = LOG_TEXT_MAX - 4;
        while (cut > 0 && ((unsigned char)text[cut] & 0xc0) == 0x80)
            cut--; /* not inside a UTF-8 sequence */
        memcpy(text + cut, "...", 4);
    }
    for (char *c = text; *c; c++) {
        if (*c == '\n' || *c == '\t')
            *c = ' ';
        else if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    }
}

static void log_write(enum tess_log_level level, const char *text)
{
    static const struct {
        const char *word;
        enum tess__colour colour;
    } shown[] = {
        [TESS_LOG_ERROR] = {"error:", TESS__COLOUR_BAD},
        [TESS_LOG_WARN] = {"warning:", TESS__COLOUR_WARNING},
        [TESS_LOG_INFO] = {"", TESS__COLOUR_PLAIN},
        [TESS_LOG_DEBUG] = {"debug:", TESS__COLOUR_FAINT},
    };
    const char *word = shown[level].word;
    char line[LOG_PREFIX_MAX + LOG_TEXT_MAX], rank[24] = "";
    if (log_sink != NULL) {
        if (log_sink->line != NULL)
            log_sink->line(log_sink->context, level, text);
        return;
    }
    if (log_rank >= 0)
        snprintf(rank, sizeof(rank), "rank %d: ", log_rank);
    const bool coloured = *word != '\0';
    int length =
        snprintf(line, sizeof(line), "tessera: %s%s%s%s%s%s\n", rank,
                 coloured ? tess__terminal_colour(STDERR_FILENO, shown[level].colour) : "", word,
                 coloured ? tess__terminal_colour(STDERR_FILENO, TESS__COLOUR_PLAIN) : "",
                 coloured ? " " : "", text);
    /* A failed or cut write to stderr has nowhere to be reported. */
    for (int done = 0; done < length;) {
        ssize_t put = write(STDERR_FILENO, line + done, (size_t)(length - done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            break;
        done += (int)put;
    }
}

void tess_log(enum tess_log_level level, const char *format, ...)
{
    if ((int)level > atomic_load(&log_level))
        return;
    int saved = errno;
    char text[LOG_TEXT_MAX];
    va_list list;
    va_start(list, format);
    log_format(text, format, list);
    va_end(list);
    log_write(level, text);
    errno = saved;
}

enum tess_status tess_fail(enum tess_status status, const char *format, ...)
{
    int saved = errno;
    char text[LOG_TEXT_MAX]; /* not log_error at once: an argument may be the latest error */
    va_list list;
    va_start(list, format);
    log_format(text, format, list);
    va_end(list);
    memcpy(log_error, text, strlen(text) + 1);
    log_write(TESS_LOG_ERROR, text);
    errno = saved;
    return status;
}
