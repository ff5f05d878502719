/* Tables of memory per rank by kind. To stdout. */
#ifndef TESSERA_RUN_MEMORY_TABLE_H
#define TESSERA_RUN_MEMORY_TABLE_H

#include "job/run.h"

/*
 * After a run (measured): what every rank allocated, its peak RSS, and whether the plan had
 * predicted it. Before one: what the plan predicts.
 */
void tess__memory_table_print(const struct tess__run *run, bool measured);

/* "param": a short title for a column of a narrow table. Pure; the text is static. */
const char *tess__memory_kind_brief(enum tess_memory_kind kind);

/*
 * A device's memory at the end of a run, in bytes: what its ranks laid out themselves, what the
 * libraries took beside it, and what the driver reports as used, by all processes.
 */
struct tess__device_memory {
    uint64_t arena, context, workspace, comm; /* arena: of all its ranks */
    uint64_t used, total;                     /* total 0: the driver gave no answer */
    int64_t unaccounted; /* used - the four above: other programs, the driver's own, rounding */
};

/* Pure. */
struct tess__device_memory tess__device_memory_of(const struct tess__run *run, int32_t device);

#endif
