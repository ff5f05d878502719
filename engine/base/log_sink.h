/* Where a thread's messages go, for a library that is used by other programs. */
#ifndef TESSERA_BASE_LOG_SINK_H
#define TESSERA_BASE_LOG_SINK_H

#include "tessera/log.h"

struct tess__log_sink {
    /* NULL: they are dropped, and tess_log_last_error() is kept. */
    void (*line)(void *context, enum tess_log_level level, const char *text);
    void *context;
};

/* From here on the messages of the calling thread go to `sink`, borrowed, and not to stderr; NULL:
 * to stderr. Returns the one before. Threads that it starts begin with stderr. */
const struct tess__log_sink *tess__log_redirect(const struct tess__log_sink *sink);

/* For a call whose failure is no news, or is reported otherwise. */
extern const struct tess__log_sink tess__log_silence;

#endif
