/*
 * What the control groups of this process (cgroups(7), both versions) and its affinity leave it of
 * the machine: a container's or a job's share, which is less than what the hardware has.
 */
#ifndef TESSERA_BASE_CGROUP_H
#define TESSERA_BASE_CGROUP_H

#include <stdint.h>

enum tess_cgroup_limit {
    TESS_CGROUP_MEMORY,      /* bytes */
    TESS_CGROUP_MEMORY_FREE, /* less what is in use */
    TESS_CGROUP_CORES,       /* that may be busy in the mean */
};

/*
 * The least limit of a process's groups, and of those that hold them; HUGE_VAL where there is none.
 * `proc` is /proc/self/cgroup, `sys` is /sys/fs/cgroup, or what stands in their place; *path_out is
 * the group that has the limit.
 */
double tess_cgroup_limit(enum tess_cgroup_limit of, const char *proc, const char *sys,
                         char path_out[64]);
/* The same; *id_out: a number of that group, the same for all processes of this machine that are in
 * it, whatever path each has for it; 0: there is no limit. */
double tess_cgroup_limit_id(enum tess_cgroup_limit of, const char *proc, const char *sys,
                            char path_out[64], uint64_t *id_out);

/*
 * Bytes that are free for the process: of the machine, as `meminfo` (/proc/meminfo) has them, and
 * of its groups. HUGE_VAL: neither is known.
 */
double tess_memory_free(const char *meminfo, const char *proc, const char *sys);

/* Bytes of this machine's memory that the process may have, without swap. *group_out: the group
 * that allows no more, "" where none allows less than all. */
double tess_memory(char group_out[64]);

/*
 * Cores that the calling thread may use: those of its affinity (taskset, Slurm, a container's set),
 * no more than its groups' quota, rounded up (docker --cpus, a pod's CPU limit). At least 1. The
 * quota is what it was at the first call.
 */
int32_t tess_cores(void);
int32_t tess_cores_affinity(void);
/* INT32_MAX: none. *group_out: as tess_cgroup_limit_id. */
int32_t tess_cores_quota(uint64_t *group_out);

#endif
