/*
 * What Linux has about PCI and network devices under /sys, file by file; no folder is listed. A
 * container may show a part of it, and a virtual machine meaningless numbers: "unknown" is a valid
 * result.
 */
#include "topology/formats/lines.h"
#include "topology/hwloc/live_room.h"
#include "topology/machine/rates.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SYSFS_PATH_MAX  320
#define SYSFS_PORTS_MAX 16
#define SYSFS_LANES_MAX 32

bool tess__sysfs_line(const char *sys, const char *path, char *line, size_t room)
{
    char whole[SYSFS_PATH_MAX];
    if ((size_t)snprintf(whole, sizeof whole, "%s/%s", sys, path) >= sizeof whole)
        return false;
    int fd = open(whole, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t bytes = read(fd, line, room - 1);
    close(fd);
    if (bytes < 0)
        return false; /* of a device that is down, the speed cannot be read */
    line[bytes] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return true;
}

/* Names come from the system and from files: they are no paths. */
static bool sysfs_plain(const char *name)
{
    return name[0] && name[0] != '.' && !strchr(name, '/');
}

static bool sysfs_pci(const char *sys, const char *bus, const char *file, char *line, size_t room)
{
    char path[SYSFS_PATH_MAX];
    if (!sysfs_plain(bus))
        return false;
    snprintf(path, sizeof path, "bus/pci/devices/%.40s/%s", bus, file);
    return tess__sysfs_line(sys, path, line, room);
}

double tess__sysfs_pci_gbs(const char *sys, const char *bus)
{
    static const double rate[] = {2.5, 5, 8, 16, 32, 64}; /* 10^9 transfers/s, by generation */
    char speed[64], width[32];
    int32_t lanes, generation = 0;
    if (!sysfs_pci(sys, bus, "max_link_speed", speed, sizeof speed) ||
        !sysfs_pci(sys, bus, "max_link_width", width, sizeof width) ||
        !tess__word_number((struct tess__word){width, strlen(width)}, SYSFS_LANES_MAX, &lanes))
        return 0;
    double transfers = strtod(speed, NULL); /* "16.0 GT/s PCIe", "Unknown speed" */
    for (int32_t g = 0; g < (int32_t)(sizeof rate / sizeof rate[0]); g++)
        if (fabs(transfers - rate[g]) < 0.1)
            generation = g + 1;
    return generation > 0 ? TESS_GBS_PCI(tess__rate_pci(generation), lanes) : 0;
}

int32_t tess__sysfs_numa(const char *sys, const char *bus)
{
    char line[32];
    int32_t numa;
    if (!sysfs_pci(sys, bus, "numa_node", line, sizeof line) ||
        !tess__word_number((struct tess__word){line, strlen(line)}, 1048575, &numa))
        return -1;
    return numa;
}

bool tess__sysfs_physical(const char *sys, const char *bus, char physical[20])
{
    char path[SYSFS_PATH_MAX], target[SYSFS_PATH_MAX];
    if (!sysfs_plain(bus) || (size_t)snprintf(path, sizeof path, "%s/bus/pci/devices/%.40s/physfn",
                                              sys, bus) >= sizeof path)
        return false;
    ssize_t bytes = readlink(path, target, sizeof target - 1);
    if (bytes <= 0)
        return false;
    target[bytes] = '\0';
    const char *slash = strrchr(target, '/'), *name = slash ? slash + 1 : target;
    if (strlen(name) >= 20)
        return false;
    memcpy(physical, name, strlen(name) + 1);
    return true;
}

/* "400 Gb/sec (4X NDR)" of every port that is active ("4: ACTIVE"). */
static bool sysfs_infiniband(const char *sys, const char *name, double *gbs_out)
{
    char path[SYSFS_PATH_MAX], line[64];
    double gbs = 0;
    int32_t port = 1;
    for (; port <= SYSFS_PORTS_MAX; port++) {
        snprintf(path, sizeof path, "class/infiniband/%.64s/ports/%d/state", name, (int)port);
        if (!tess__sysfs_line(sys, path, line, sizeof line))
            break;
        if (strncmp(line, "4:", 2) != 0)
            continue;
        snprintf(path, sizeof path, "class/infiniband/%.64s/ports/%d/rate", name, (int)port);
        double rate = tess__sysfs_line(sys, path, line, sizeof line) ? strtod(line, NULL) : 0;
        gbs += rate > 0 && rate < 1e5 ? rate / 8 : TESS_GBS_NIC_UNKNOWN;
    }
    *gbs_out = gbs;
    return port > 1;
}

double tess__sysfs_nic_gbs(const char *sys, const char *name)
{
    char path[SYSFS_PATH_MAX], line[64];
    double gbs;
    if (!sysfs_plain(name))
        return TESS_GBS_NIC_UNKNOWN;
    if (sysfs_infiniband(sys, name, &gbs))
        return gbs;
    snprintf(path, sizeof path, "class/net/%.64s/operstate", name);
    if (tess__sysfs_line(sys, path, line, sizeof line) && strcmp(line, "up") != 0 &&
        strcmp(line, "unknown") != 0)
        return 0;
    snprintf(path, sizeof path, "class/net/%.64s/speed", name);
    int32_t mbits = 0;
    if (!tess__sysfs_line(sys, path, line, sizeof line) ||
        !tess__word_number((struct tess__word){line, strlen(line)}, 100000000, &mbits) ||
        mbits == 0)
        return TESS_GBS_NIC_UNKNOWN;
    return mbits / 8000.0;
}
