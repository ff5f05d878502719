/* What a run writes down: metrics as JSON lines, and whole JSON files. */
#ifndef TESSERA_RUN_METRICS_H
#define TESSERA_RUN_METRICS_H

#include "tessera/status.h"

#include <jansson.h>
#include <stdbool.h>

struct tess_metrics;

/* Create `folder` with its parents and an empty metrics.jsonl in it; an older one is replaced. With
 * resume_step >= 0 it is continued: lines of later steps, and what follows them, are dropped. */
enum tess_status tess_metrics_open(const char *folder, int64_t resume_step,
                                   struct tess_metrics **metrics_out);

/* Is the last line of the folder's metrics.jsonl that of a run's end? */
bool tess_metrics_has_end(const char *folder);

/* Has the file no line yet? */
bool tess_metrics_is_empty(const struct tess_metrics *metrics);

/*
 * Append one object as one line; it is in the file when the call returns. Takes over the caller's
 * reference, also on failure; NULL (jansson found no memory, or a NaN) is TESS_ERR_INTERNAL.
 * `metrics` NULL: nothing is written.
 *
 * A failed write (disk full, file too large) is a warning: the file ends with the last whole line,
 * and later calls return the same status without another message.
 */
enum tess_status tess_metrics_write(struct tess_metrics *metrics, json_t *object);

/* Close, and return the first failure of any write or of the close itself. NULL is allowed. */
enum tess_status tess_metrics_close(struct tess_metrics *metrics);

/* Write `value` (borrowed), indented, as the whole file `path`; see base/file.h. */
enum tess_status tess_json_write_file(const char *path, const json_t *value);

#endif
