/* A run's latest numbers in Prometheus' text format 0.0.4, served over HTTP or written to a file
 * for the textfile collector of node_exporter. */
#ifndef TESSERA_RUN_PROMETHEUS_H
#define TESSERA_RUN_PROMETHEUS_H

#include "job/run.h"

struct tess__prometheus;
struct tess__run_saved; /* job/saving.h */
struct tess__slow;      /* run/slow.h */

/* Seconds between two calls of tess__prometheus_tick. */
#define TESS__PROMETHEUS_PERIOD_S 0.1

/* `where` as --prometheus has it: PORT, HOST:PORT or FILE.prom; "": *prometheus_out is NULL, which
 * all functions take. The run is borrowed. TESS_ERR_USAGE, TESS_ERR_IO. */
enum tess_status tess__prometheus_open(const char *where, const struct tess__run *run,
                                       struct tess__prometheus **prometheus_out);
/* The last numbers are in the file. */
void tess__prometheus_close(struct tess__prometheus *prometheus);

/* "http://127.0.0.1:9400/metrics", or the file's name. */
const char *tess__prometheus_place(const struct tess__prometheus *prometheus);

/* What rank 0 has reported; steps that are recorded. */
void tess__prometheus_step(struct tess__prometheus *prometheus, const struct tess__run_step *step);
void tess__prometheus_epoch(struct tess__prometheus *prometheus,
                            const struct tess__run_epoch *epoch);
void tess__prometheus_validation(struct tess__prometheus *prometheus,
                                 const struct tess__run_validation *validation);
void tess__prometheus_saved(struct tess__prometheus *prometheus,
                            const struct tess__run_saved *saved);

/* A window of steps is whole; both are borrowed from the first call on. */
void tess__prometheus_pace(struct tess__prometheus *prometheus, const struct tess__slow *slow,
                           const char *const *host);

/* Serve clients; write the file where its numbers have changed, once a second at most. What fails
 * is a warning: it costs the training nothing. */
void tess__prometheus_tick(struct tess__prometheus *prometheus);

#endif
