/* Where the time of an epoch went, over all ranks: to stdout, and a line of metrics.jsonl. */
#ifndef TESSERA_RUN_TIMES_H
#define TESSERA_RUN_TIMES_H

#include "job/run.h"

#include <jansson.h>

/* The ranks' sums of the latest epoch. Zeroed to begin with. */
struct tess__times {
    struct tess__run_times rank[TESS_WORLD_RANKS_MAX];
    int64_t epoch;
    uint64_t here; /* bit r: rank r's have come */
};

/* Keep a TESS__RUN_TIMES message. */
void tess__times_take(struct tess__times *times, const struct tess__message *message);

/* Have all ranks sent their times of `epoch`? */
bool tess__times_complete(const struct tess__times *times, int64_t epoch, int32_t rank_count);

/* Needs a complete one. */
void tess__times_print(const struct tess__times *times, int32_t rank_count);
/* {"times": {...}}; a new reference, NULL when out of memory. */
json_t *tess__times_record(const struct tess__times *times, int32_t rank_count);

#endif
