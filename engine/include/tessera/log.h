/* Messages to the user on stderr, "tessera: rank 2: error: text", the rank where one was set. One
 * write(2) a line, so that lines of several ranks never interleave. */
#ifndef TESSERA_LOG_H
#define TESSERA_LOG_H

#include "tessera/status.h"

TESS_BEGIN_DECLS

enum tess_log_level { TESS_LOG_ERROR, TESS_LOG_WARN, TESS_LOG_INFO, TESS_LOG_DEBUG };

#if defined(__GNUC__)
#define TESS_PRINTF(at, first) __attribute__((format(printf, at, first)))
#else
#define TESS_PRINTF(at, first)
#endif

/* Messages above `level` are dropped. Default: TESS_LOG_INFO. Set before threads start. */
void tess_log_set_level(enum tess_log_level level);

/* Rank shown by this thread's messages; -1 (the default) shows none. */
void tess_log_set_rank(int rank);

void tess_log(enum tess_log_level level, const char *format, ...) TESS_PRINTF(2, 3);

/* Log an error and return `status`. Also kept as tess_log_last_error() of this thread. */
enum tess_status tess_fail(enum tess_status status, const char *format, ...) TESS_PRINTF(2, 3);

/* Text of this thread's latest tess_fail(), "" when none. Valid until the next one. */
const char *tess_log_last_error(void);

TESS_END_DECLS
#endif
