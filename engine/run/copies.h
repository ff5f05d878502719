/*
 * Copies of a training's state in memory (--redundancy): a folder in /dev/shm, which is memory of
 * this host, with the newest copy in the format of a checkpoint (state/checkpoint.h). Ranks write
 * it; the process that supervises them (restart.h) owns it.
 */
#ifndef TESSERA_RUN_COPIES_H
#define TESSERA_RUN_COPIES_H

#include "job/run.h"

#define TESS__COPIES_PATH 64

/*
 * Make the folder, which children of this process find by TESS_CONFIG_COPIES. It is locked by this
 * process and its children; folders of runs of which no process is left are removed. TESS_ERR_IO.
 */
enum tess_status tess__copies_make(char folder[TESS__COPIES_PATH]);

/* Remove the folder and all in it. "": nothing to do. */
void tess__copies_remove(const char *folder);

/* Another host's copies in the folder: as a run's folder. */
void tess__copies_replica(const char *folder, char replica[TESS__COPIES_PATH]);

/* Remove all copies, this host's and another one's, except this host's of a step; -1: all. What
 * cannot be removed is logged. */
void tess__copies_keep(const char *folder, int64_t step);

/* Is there room for what the plan needs of it? local_count: ranks of this host, where there are
 * others; else 0. TESS_ERR_MEMORY. */
enum tess_status tess__copies_check(const struct tess__run *run, int32_t local_count);

#endif
