/* Time lines as a file: Chrome's trace event format, which Perfetto and chrome://tracing show. */
#ifndef TESSERA_RUN_TRACE_FILE_H
#define TESSERA_RUN_TRACE_FILE_H

#include "job/run.h"
#include "predict/predict.h"

/* Lanes large enough for what `steps` steps usually record, small enough for any number of ranks.
 * Refuses a window that begins after the run's end. */
enum tess_status tess__trace_open(struct tess__run *run, int64_t first, int64_t steps,
                                  struct tess_trace **trace_out);

/* The time line of one rank: `event` in order of begin_s; full_s as tess_trace_full_s. */
struct tess__trace_line {
    int32_t rank;
    const struct tess_trace_event *event;
    uint32_t count;
    double full_s;
    int64_t full_step;
    const struct tess_prediction_stage *predicted; /* whose memory over the step is put too; NULL */
};

/* What a file has; all of it is borrowed. */
struct tess__trace_lines {
    const char *model, *strategy;
    bool predicted;          /* of one rank of each stage */
    int32_t ranks;           /* of the run, whose lines need not all be there */
    const char *const *unit; /* [unit_count] names */
    int32_t unit_count;
    double origin_s;                     /* the file's time 0 */
    const struct tess__trace_line *line; /* [line_count] */
    int32_t line_count;
};

/* Write them. The last moment of all lines goes to last_s_out. TESS_ERR_IO, TESS_ERR_MEMORY. */
enum tess_status tess__trace_put(const struct tess__trace_lines *lines, const char *path,
                                 double *last_s_out);

/* Write run->trace, and print to stdout where, and which lanes were too short. All ranks have
 * ended, well or not. TESS_ERR_IO. */
enum tess_status tess__trace_write(const struct tess__run *run, const char *path);

#endif
