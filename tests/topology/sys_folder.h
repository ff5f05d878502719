/* A /sys of a test's own, in a folder of each case: sys_make before it, sys_remove after it. */
#ifndef TESTS_TOPOLOGY_SYS_FOLDER_H
#define TESTS_TOPOLOGY_SYS_FOLDER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char sys[64];

/* Folders on the way are made. */
static void put(const char *path, const char *text)
{
    char full[256];
    snprintf(full, sizeof(full), "%s/%s", sys, path);
    for (char *slash = full + strlen(sys) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(full, 0700);
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int sys_make(void **state)
{
    (void)state;
    snprintf(sys, sizeof(sys), "/tmp/tessera_sys_XXXXXX");
    return mkdtemp(sys) ? 0 : -1;
}

static int sys_remove(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", sys);
    return system(command);
}

#endif
