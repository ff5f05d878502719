/*
 * Copies of a training's state in memory (--redundancy): a folder in /dev/shm, which is memory of
 * this host, with the newest copy in the format of a checkpoint (state/checkpoint.h). Ranks write
 * it; the process that supervises them (restart.h) owns it.
 */
#ifndef TESSERA_RUN_COPIES_H
#define TESSERA_RUN_COPIES_H

#include "job/run.h"
#include "text/command.h"

#define TESS__COPIES_PATH 64

/*
 * Make the folder and add the option that names it to `args`. It is locked by this process and its
 * children; folders of runs of which no process is left are removed. TESS_ERR_IO.
 */
enum tess_status tess__copies_make(struct tess__args *args, const struct tess_config *config,
                                   char folder[TESS__COPIES_PATH]);

/* Remove the folder and all in it. "": nothing to do. */
void tess__copies_remove(const char *folder);

/* Is there room for what the plan needs of it? TESS_ERR_MEMORY. */
enum tess_status tess__copies_check(const struct tess__run *run);

#endif
