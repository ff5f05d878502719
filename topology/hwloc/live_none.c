/*
 * In the place of live_hwloc.c where libhwloc was not there when Tessera was built: the NUMA nodes
 * and their CPUs from /sys/devices/system, one node where it is empty. Switches and NICs are not
 * searched; the driver's GPUs are attached to their NUMA nodes (live.c).
 */
#include "tessera/check.h"
#include "topology/formats/lines.h"
#include "topology/hwloc/live_room.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NONE_NUMAS_MAX 1024
#define NONE_CPUS_MAX  8192

/* The next number of a list such as "0-3,8"; begins with at = list, last = -1, -1. */
static bool none_next(const char **at, long range[2], long *number_out)
{
    if (range[0] < range[1]) {
        *number_out = ++range[0];
        return true;
    }
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    range[0] = range[1] = strtol(*at, &end, 10);
    if (*end == '-')
        range[1] = strtol(end + 1, &end, 10);
    *at = *end == ',' ? end + 1 : end;
    *number_out = range[0];
    return range[0] < NONE_CPUS_MAX && range[1] < NONE_CPUS_MAX;
}

/* CPUs of this NUMA node that the process may use; of all where there is no list. One of each core
 * would be better, but ranks are not bound without hwloc anyway. */
static enum tess_status none_cpus(const char *list, long numa, struct tess__live *live)
{
    cpu_set_t mine;
    bool known = sched_getaffinity(0, sizeof(mine), &mine) == 0;
    const char *at = list;
    long range[2] = {-1, -1}, cpu;
    while (none_next(&at, range, &cpu)) {
        if (known && (cpu >= CPU_SETSIZE || !CPU_ISSET((size_t)cpu, &mine)))
            continue;
        TESS_TRY(tess__grow(&live->core_numa, live->core_count, sizeof(*live->core_numa),
                            "the CPUs of this machine"));
        live->core_numa[live->core_count++] = (int32_t)numa;
    }
    return TESS_OK;
}

static enum tess_status none_numa(const char *sys, long numa, int32_t *ranks,
                                  struct tess__live *live)
{
    struct tess_node node = tess_topology_node(TESS_NODE_CPU, 0, (int32_t)numa);
    char line[TESS__SYSFS_LINE];
    const char *at = line;
    long range[2] = {-1, -1}, cpu;
    int32_t to, from, before = live->core_count;
    bool listed = tess__sysfs_line(sys, line, "devices/system/node/node%ld/cpulist", numa);
    if (!listed)
        snprintf(line, sizeof(line), "0-%ld", sysconf(_SC_NPROCESSORS_ONLN) - 1);
    TESS_TRY(none_cpus(line, numa, live));
    if (listed && !none_next(&at, range, &cpu))
        return TESS_OK; /* memory without processors */
    if (listed &&
        !tess__sysfs_number(sys, 100000, &node.socket,
                            "devices/system/cpu/cpu%ld/topology/physical_package_id", cpu))
        node.socket = -1;
    TESS_TRY(tess_topology_add(live->topology, node, &to, "numa%ld", numa));
    if (live->core_count == before && live->topology->node_count > 1)
        return TESS_OK; /* no CPU of it is the process's: no place for a rank */
    TESS_TRY(tess_topology_add(live->topology, tess_topology_node(TESS_NODE_DEVICE, 0, *ranks),
                               &from, "rank%d", (int)*ranks));
    ++*ranks;
    return tess_topology_join(live->topology, TESS_LINK_LOCAL, from, to, TESS_GBS_LOCAL, 1);
}

static enum tess_status none_look(const char *sys, struct tess__live *live)
{
    char list[TESS__SYSFS_LINE];
    if (!tess__sysfs_line(sys, list, "devices/system/node/online"))
        strcpy(list, "0");
    const char *at = list;
    long range[2] = {-1, -1}, numa;
    int32_t ranks = 0;
    for (int32_t count = 0; count < NONE_NUMAS_MAX && none_next(&at, range, &numa); count++)
        TESS_TRY(none_numa(sys, numa, &ranks, live));
    return tess_topology_finish(live->topology);
}

enum tess_status tess__live_machine(const char *sys, struct tess__live *live_out)
{
    *live_out = (struct tess__live){.topology = tess_topology_new(), .here = true};
    return live_out->topology ? none_look(sys, live_out)
                              : tess__no_memory("the topology of this machine");
}
