/* A file of a group of cases: scratch_file_make before them, scratch_file_remove after them. */
#ifndef TESTS_SCRATCH_FILE_H
#define TESTS_SCRATCH_FILE_H

#include <stdlib.h>
#include <unistd.h>

static char scratch_file[] = "/tmp/tessera_test_XXXXXX";

static int scratch_file_make(void **state)
{
    const int fd = mkstemp(scratch_file);

    (void)state;
    return fd < 0 ? -1 : close(fd);
}

static int scratch_file_remove(void **state)
{
    (void)state;
    (void)unlink(scratch_file); /* a case may have removed it */
    return 0;
}

#endif
