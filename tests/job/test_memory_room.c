/* Limits of control groups, from folders made by hand in the place of /proc and /sys. */
#include "harness/work_folder.h"
#include "job/memory_room.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s", name);
    for (char *slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0755);
        *slash = '/';
    }
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void expect(double bytes, const char *group)
{
    char found[64];
    const double limit = tess__memory_group_limit("proc", "sys", found);
    if (limit != bytes || strcmp(found, group) != 0)
        fail_msg("%g of '%s', expected %g of '%s'", limit, found, bytes, group);
}

static void case_groups(void **state)
{
    (void)state;
    expect(HUGE_VAL, ""); /* neither folder is there */
    put("proc", "0::/user/job\n");
    expect(HUGE_VAL, "");
    put("sys/user/job/memory.max", "max\n");
    expect(HUGE_VAL, "");
    put("sys/user/memory.max", "3000000\n"); /* of a group around it */
    expect(3000000, "/user");
    put("sys/user/job/memory.max", "2000000\n");
    expect(2000000, "/user/job");
    put("sys/memory.max", "1000000\n"); /* what a container sees of its own */
    expect(1000000, "/");
    put("sys/memory.max", "no number\n");
    expect(2000000, "/user/job");
    put("proc", "0::/\n");
    expect(HUGE_VAL, "");
    /* Version 1. */
    put("proc", "8:cpu,cpuacct:/user\n7:memory:/batch\n1:name=systemd:/x\nbroken\n");
    put("sys/memory/batch/memory.limit_in_bytes", "9223372036854771712\n");
    expect(HUGE_VAL, "");
    put("sys/memory/batch/memory.limit_in_bytes", "500000\n");
    expect(500000, "/batch");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_groups),
    };
    return cmocka_run_group_tests_name("memory_room", tests, work_folder_make, work_folder_remove);
}
