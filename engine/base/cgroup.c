/* Limits of control groups of both versions, and of affinity; see cgroup.h. */
#include "base/cgroup.h"

#include "base/host.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CGROUP_LINE 4096

/* By `enum tess_cgroup_limit`. */
static const struct {
    const char *controller, *first, *second; /* files of either version */
} cgroup_file[] = {
    [TESS_CGROUP_MEMORY] = {"memory", "memory.limit_in_bytes", "memory.max"},
    [TESS_CGROUP_MEMORY_FREE] = {"memory", "memory.limit_in_bytes", "memory.max"},
    [TESS_CGROUP_CORES] = {"cpu", "cpu.cfs_quota_us", "cpu.max"},
};

/* Number 0 or 1 of those that a file of a group begins with; HUGE_VAL: it is not there, less than
 * 0, or another word ("max"). */
static double cgroup_number(const char *below, const char *group, const char *name, int number)
{
    char path[PATH_MAX], text[64] = "", *end = text, *begin = text;
    const int length = snprintf(path, sizeof(path), "%s%s/%s", below, group, name);
    FILE *file = length < (int)sizeof(path) ? fopen(path, "re") : NULL;
    double value = HUGE_VAL;
    if (file == NULL)
        return HUGE_VAL;
    if (fgets(text, sizeof(text), file) != NULL)
        for (int i = 0; i <= number; i++) {
            begin = end;
            value = strtod(begin, &end);
        }
    fclose(file);
    return end > begin && value >= 0 ? value : HUGE_VAL;
}

/* HUGE_VAL also for what version 1 writes where there is no limit: the greatest number of whole
 * pages, a quota of -1. */
static double cgroup_value(enum tess_cgroup_limit of, bool second, const char *below,
                           const char *group)
{
    const char *name = second ? cgroup_file[of].second : cgroup_file[of].first;
    const double first = cgroup_number(below, group, name, 0);
    if (of == TESS_CGROUP_MEMORY)
        return first < 0x1p62 ? first : HUGE_VAL;
    if (of == TESS_CGROUP_MEMORY_FREE) {
        const double used =
            cgroup_number(below, group, second ? "memory.current" : "memory.usage_in_bytes", 0);
        return first < 0x1p62 && used < HUGE_VAL ? fmax(0, first - used) : HUGE_VAL;
    }
    const double period = second ? cgroup_number(below, group, name, 1)
                                 : cgroup_number(below, group, "cpu.cfs_period_us", 0);
    return period > 0 && period < HUGE_VAL ? first / period : HUGE_VAL;
}

/* Of a group and of all that hold it. `below` is where groups lie; `group` is cut short. */
static double cgroup_walk(enum tess_cgroup_limit of, bool second, const char *below, char *group,
                          char path_out[64], uint64_t *id_out)
{
    char folder[PATH_MAX];
    struct stat about;
    double least = HUGE_VAL;
    for (;;) {
        const double limit = cgroup_value(of, second, below, group);
        if (limit < least) {
            least = limit;
            snprintf(path_out, 64, "%.63s", group[0] != '\0' ? group : "/");
            const int length = snprintf(folder, sizeof(folder), "%s%s", below, group);
            *id_out = length < PATH_MAX && stat(folder, &about) == 0 ? about.st_ino : 0;
        }
        char *last = strrchr(group, '/');
        if (last == NULL)
            return least;
        *last = '\0';
    }
}

/* Is the controller one of a list with commas? */
static bool cgroup_has(const char *list, const char *controller)
{
    const size_t length = strlen(controller);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, controller, length) == 0 && (at[length] == '\0' || at[length] == ','))
            return true;
    }
    return false;
}

double tess_cgroup_limit_id(enum tess_cgroup_limit of, const char *proc, const char *sys,
                            char path_out[64], uint64_t *id_out)
{
    uint64_t id = 0;
    char line[CGROUP_LINE], below[PATH_MAX], path[64];
    double least = HUGE_VAL;
    FILE *file = fopen(proc, "re");
    path_out[0] = '\0';
    *id_out = 0;
    /* "0::/user.slice/x" of version 2, "9:cpu,cpuacct:/user.slice/x" of version 1. */
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL)
            continue;
        *group++ = '\0';
        group[strcspn(group, "\n")] = '\0';
        const bool second = strncmp(line, "0:", 2) == 0;
        if (!second && !cgroup_has(controllers + 1, cgroup_file[of].controller))
            continue;
        snprintf(below, sizeof(below), "%s%s%s", sys, second ? "" : "/",
                 second ? "" : cgroup_file[of].controller);
        if (strcmp(group, "/") == 0)
            *group = '\0';
        const double limit = cgroup_walk(of, second, below, group, path, &id);
        if (limit < least) {
            least = limit;
            memcpy(path_out, path, sizeof(path));
            *id_out = id;
        }
    }
    if (file != NULL)
        fclose(file);
    return least;
}

double tess_cgroup_limit(enum tess_cgroup_limit of, const char *proc, const char *sys,
                         char path_out[64])
{
    uint64_t id;
    return tess_cgroup_limit_id(of, proc, sys, path_out, &id);
}

double tess_memory(char group_out[64])
{
    const double pages = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const double limit =
        tess_cgroup_limit(TESS_CGROUP_MEMORY, "/proc/self/cgroup", "/sys/fs/cgroup", group_out);
    if (limit >= pages)
        group_out[0] = '\0';
    return fmin(pages, limit);
}

double tess_memory_free(const char *meminfo, const char *proc, const char *sys)
{
    char group[64];
    const double kib = tess_host_number(meminfo, "MemAvailable:");
    return fmin(kib < 0 ? HUGE_VAL : 1024 * kib,
                tess_cgroup_limit(TESS_CGROUP_MEMORY_FREE, proc, sys, group));
}

/* Read once: a search asks for every layout. */
int32_t tess_cores_quota(uint64_t *group_out)
{
    static _Atomic int32_t known; /* 0: not read */
    static _Atomic uint64_t known_group;
    char path[64];
    int32_t cores = atomic_load(&known);
    if (cores == 0) {
        const double quota = tess_cgroup_limit_id(TESS_CGROUP_CORES, "/proc/self/cgroup",
                                                  "/sys/fs/cgroup", path, group_out);
        cores = (int32_t)fmax(1, fmin(INT32_MAX, ceil(quota)));
        atomic_store(&known_group, *group_out);
        atomic_store(&known, cores);
    }
    *group_out = atomic_load(&known_group);
    return cores;
}

int32_t tess_cores_affinity(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    const int32_t may = sched_getaffinity(0, sizeof(set), &set) == 0
                            ? CPU_COUNT(&set)
                            : (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    return may < 1 ? 1 : may;
}

int32_t tess_cores(void)
{
    uint64_t group;
    const int32_t may = tess_cores_affinity(), quota = tess_cores_quota(&group);
    return may < quota ? may : quota;
}
