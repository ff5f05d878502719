/* Time lines as a file: Chrome's trace event format, which Perfetto and chrome://tracing show. */
#ifndef TESSERA_RUN_TRACE_FILE_H
#define TESSERA_RUN_TRACE_FILE_H

#include "job/run.h"

/* Lanes large enough for what `steps` steps usually record, small enough for any number of ranks.
 * Refuses a window that begins after the run's end. */
enum tess_status tess__trace_open(struct tess__run *run, int64_t first, int64_t steps,
                                  struct tess_trace **trace_out);

/* Write run->trace, and print to stdout where, and which lanes were too short. All ranks have
 * ended, well or not. TESS_ERR_IO. */
enum tess_status tess__trace_write(const struct tess__run *run, const char *path);

#endif
