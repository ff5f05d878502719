/* The folder of a run: one run at a time writes into it, and none is lost by another. */
#ifndef TESSERA_RUN_RUN_FOLDER_H
#define TESSERA_RUN_RUN_FOLDER_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>

enum tess__folder_use {
    TESS__FOLDER_NEW,       /* refused where a run is in the folder */
    TESS__FOLDER_OVERWRITE, /* what a run has left there is removed */
    TESS__FOLDER_RESUME,    /* a run that is there continues */
};

/*
 * Make the folder and its parents, and lock it (flock of the file `lock`) until close, or until
 * this process and the ranks that it forks have ended. What killed runs left half written is
 * removed. TESS_ERR_USAGE: another run has the lock, whose process and host the message names, or
 * there is a run. TESS_ERR_IO. *lock_out: for close.
 */
enum tess_status tess__run_folder_open(const char *folder, enum tess__folder_use use,
                                       int *lock_out);
void tess__run_folder_close(int lock); /* -1 is allowed */

/* Is there a process that has the lock? */
enum tess__folder_life {
    TESS__FOLDER_LEFT,
    TESS__FOLDER_LIVE,
    TESS__FOLDER_UNKNOWN, /* the file system does not say, as one without locks */
};

/* Which process had the lock last, "process 17 on host", "" if none had, and whether it still does.
 * TESS_ERR_NOT_FOUND: there is no such folder. */
enum tess_status tess__run_folder_owner(const char *folder, char *owner, size_t bytes,
                                        enum tess__folder_life *life_out);
/* --overwrite must not remove what the run begins with. */
enum tess_status tess__run_folder_check_init(const char *run_path, const char *init_path);

#endif
