/* A folder of a group of cases, which run in it: work_folder_make before them, work_folder_remove
 * after them. */
#ifndef TESTS_WORK_FOLDER_H
#define TESTS_WORK_FOLDER_H

#include "harness/spawn.h"

#include <stdlib.h>
#include <unistd.h>

static char work_folder[] = "/tmp/tessera_work_XXXXXX";

static int work_folder_make(void **state)
{
    (void)state;
    return mkdtemp(work_folder) == NULL || chdir(work_folder) != 0 ? -1 : 0;
}

static int work_folder_remove(void **state)
{
    (void)state;
    return chdir("/") != 0 ? -1 : spawn_remove(work_folder);
}

#endif
