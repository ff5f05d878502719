/* Where the time of an epoch went, over all ranks: to stdout, and a line of metrics.jsonl. */
#ifndef TESSERA_RUN_TIMES_H
#define TESSERA_RUN_TIMES_H

#include "job/run.h"

#include <jansson.h>

/* The ranks' sums of the latest epoch. */
struct tess__times {
    struct tess__run_times *rank; /* [rank_count] */
    int32_t rank_count;
    int64_t epoch;
    int32_t here; /* ranks whose sums have come */
};

enum tess_status tess__times_open(struct tess__times *times, int32_t rank_count);
void tess__times_close(struct tess__times *times); /* a zeroed one, too */

/* Keep a TESS__RUN_TIMES message; a rank sends one for each epoch. */
void tess__times_take(struct tess__times *times, const struct tess__message *message);

/* Have all ranks sent their times of `epoch`? */
bool tess__times_complete(const struct tess__times *times, int64_t epoch);

/* Needs a complete one. */
void tess__times_print(const struct tess__times *times);
/* {"times": {...}}; a new reference, NULL when out of memory. */
json_t *tess__times_record(const struct tess__times *times);

#endif
