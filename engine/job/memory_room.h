/*
 * The memory that the ranks of a run are planned to have, against what this machine, the control
 * groups of this process (cgroups(7)) or a device has. Known before any rank starts.
 */
#ifndef TESSERA_JOB_MEMORY_ROOM_H
#define TESSERA_JOB_MEMORY_ROOM_H

#include "job/run.h"

struct tess__memory_room {
    double need, have; /* bytes */
    double fullest;    /* bytes of the fullest rank there */
    int32_t ranks;     /* that share it */
    char where[96];    /* "this machine", "device 0 (NVIDIA H200)" */
};

/* Bytes that all ranks here may have together, and of what; 0: not known. */
double tess__memory_of_host(char where[96]);

/*
 * Of the ranks that are started here: on the host, or with devices on the fullest of them. False
 * where what there is is not known. Pure.
 */
bool tess__memory_room_of(const struct tess__run *run, struct tess__memory_room *room_out);

/*
 * Is there enough, as far as that is known? TESS_ERR_MEMORY: no. `advise` writes what would help,
 * as the end of a sentence; NULL: there is none who could.
 */
enum tess_status tess__memory_check(const struct tess__run *run,
                                    void (*advise)(void *context, char *text, size_t bytes),
                                    void *context);

#endif
