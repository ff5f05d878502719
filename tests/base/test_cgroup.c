/* Limits of control groups, from folders made by hand in the place of /proc and /sys. */
#include "base/cgroup.h"
#include "harness/work_folder.h"

#include <math.h>
#include <sched.h>
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

static void expect(enum tess_cgroup_limit of, double value, const char *group)
{
    char found[64];
    const double limit = tess_cgroup_limit(of, "proc", "sys", found);
    if (limit != value || strcmp(found, group) != 0)
        fail_msg("%g of '%s', expected %g of '%s'", limit, found, value, group);
}

static void case_memory(void **state)
{
    const enum tess_cgroup_limit of = TESS_CGROUP_MEMORY;
    (void)state;
    expect(of, HUGE_VAL, ""); /* neither folder is there */
    put("proc", "0::/user/job\n");
    expect(of, HUGE_VAL, "");
    put("sys/user/job/memory.max", "max\n");
    expect(of, HUGE_VAL, "");
    put("sys/user/memory.max", "3000000\n"); /* of a group around it */
    expect(of, 3000000, "/user");
    put("sys/user/job/memory.max", "2000000\n");
    expect(of, 2000000, "/user/job");
    put("sys/memory.max", "1000000\n"); /* what a container sees of its own */
    expect(of, 1000000, "/");
    put("sys/memory.max", "no number\n");
    expect(of, 2000000, "/user/job");
    put("proc", "0::/\n");
    expect(of, HUGE_VAL, "");
    /* Version 1. */
    put("proc", "8:cpu,cpuacct:/user\n7:memory:/batch\n1:name=systemd:/x\nbroken\n");
    put("sys/memory/batch/memory.limit_in_bytes", "9223372036854771712\n");
    expect(of, HUGE_VAL, "");
    put("sys/memory/batch/memory.limit_in_bytes", "500000\n");
    expect(of, 500000, "/batch");
}

/* What each group has left, not what the one with the least limit has. */
static void case_memory_free(void **state)
{
    const enum tess_cgroup_limit of = TESS_CGROUP_MEMORY_FREE;
    char group[64];
    (void)state;
    put("proc", "0::/free/job\n");
    put("sys/free/memory.max", "3000\n");
    put("sys/free/job/memory.max", "2000\n");
    expect(of, HUGE_VAL, ""); /* what is in use is not known */
    put("sys/free/job/memory.current", "500\n");
    expect(of, 1500, "/free/job");
    put("sys/free/memory.current", "2900\n");
    expect(of, 100, "/free");
    put("sys/free/memory.current", "3900\n");
    expect(of, 0, "/free");
    put("sys/free/memory.max", "max\n");
    expect(of, 1500, "/free/job");
    put("proc", "7:memory:/free\n"); /* version 1 */
    put("sys/memory/free/memory.limit_in_bytes", "9000\n");
    put("sys/memory/free/memory.usage_in_bytes", "4000\n");
    expect(of, 5000, "/free");
    const double pages = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    assert_true(tess_memory(group) <= pages);
    assert_int_equal(tess_memory(group) < pages, group[0] != '\0');
}

/* The machine's free memory, or a group's where that is less; a kernel without MemAvailable, or a
 * /proc that is not there, leaves the groups alone. */
static void case_machine_free(void **state)
{
    (void)state;
    put("none", "");
    put("group", "0::/some\n");
    put("sys/some/memory.max", "9000\n");
    put("sys/some/memory.current", "4000\n");
    assert_true(tess_memory_free("nowhere", "none", "sys") == HUGE_VAL);
    put("meminfo", "MemTotal:  16 kB\nMemFree:  8 kB\n");
    assert_true(tess_memory_free("meminfo", "none", "sys") == HUGE_VAL);
    assert_true(tess_memory_free("meminfo", "group", "sys") == 5000);
    put("meminfo", "MemTotal:  16 kB\nMemFree:  8 kB\nMemAvailable:  4 kB\nBuffers:  1 kB\n");
    assert_true(tess_memory_free("meminfo", "none", "sys") == 4096);
    assert_true(tess_memory_free("meminfo", "group", "sys") == 4096);
    put("meminfo", "MemAvailable:  6 kB\n");
    assert_true(tess_memory_free("meminfo", "group", "sys") == 5000);
    put("meminfo", "MemAvailable:  0 kB\n");
    assert_true(tess_memory_free("meminfo", "group", "sys") == 0);
    put("meminfo", "MemAvailable: many\n");
    assert_true(tess_memory_free("meminfo", "none", "sys") == HUGE_VAL);
}

static void case_cores(void **state)
{
    const enum tess_cgroup_limit of = TESS_CGROUP_CORES;
    (void)state;
    put("proc", "0::/pod/box\n");
    expect(of, HUGE_VAL, "");
    put("sys/pod/box/cpu.max", "max 100000\n");
    expect(of, HUGE_VAL, "");
    put("sys/pod/box/cpu.max", "250000 100000\n");
    expect(of, 2.5, "/pod/box");
    /* One group has one number, under whatever path it is seen; other groups have others. */
    uint64_t outside, inside, other;
    char path[64];
    tess_cgroup_limit_id(of, "proc", "sys", path, &outside);
    put("box", "0::/\n");
    tess_cgroup_limit_id(of, "box", "sys/pod/box", path, &inside);
    put("sys/pod/two/cpu.max", "250000 100000\n");
    put("two", "0::/pod/two\n");
    tess_cgroup_limit_id(of, "two", "sys", path, &other);
    assert_true(outside == inside && outside != other && outside != 0);
    tess_cgroup_limit_id(of, "two", "none", path, &other);
    assert_true(other == 0);
    put("sys/pod/cpu.max", "50000 100000\n"); /* the pod's, shared by its boxes */
    expect(of, 0.5, "/pod");
    put("sys/pod/cpu.max", "50000\n"); /* cut short */
    expect(of, 2.5, "/pod/box");
    put("sys/pod/box/cpu.max", "250000 0\n");
    expect(of, HUGE_VAL, "");
    put("proc", "5:cpuset:/a\n4:cpu,cpuacct:/a\n"); /* version 1; a cpuset is affinity's */
    put("sys/cpu/a/cpu.cfs_quota_us", "-1\n");
    put("sys/cpu/a/cpu.cfs_period_us", "100000\n");
    expect(of, HUGE_VAL, "");
    put("sys/cpu/a/cpu.cfs_quota_us", "400000\n");
    expect(of, 4, "/a");
}

/* At least one, and no more than this thread may use. */
static void case_affinity(void **state)
{
    cpu_set_t all, one;
    int cpu = 0;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    assert_in_range(tess_cores(), 1, CPU_COUNT(&all));
    while (!CPU_ISSET(cpu, &all))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(tess_cores(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_memory),       cmocka_unit_test(case_memory_free),
        cmocka_unit_test(case_machine_free), cmocka_unit_test(case_cores),
        cmocka_unit_test(case_affinity),
    };
    return cmocka_run_group_tests_name("cgroup", tests, work_folder_make, work_folder_remove);
}
