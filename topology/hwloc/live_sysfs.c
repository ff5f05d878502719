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
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SYSFS_PATH_MAX  320
#define SYSFS_PCI       "bus/pci/devices/%.40s/"
#define SYSFS_PORT      "class/infiniband/%.64s/ports/%d/"
#define SYSFS_PORTS_MAX 16
#define SYSFS_LANES_MAX 32

bool tess__sysfs_line(const char *sys, char line[TESS__SYSFS_LINE], const char *format, ...)
{
    char path[SYSFS_PATH_MAX];
    size_t used = (size_t)snprintf(path, sizeof(path), "%s/", sys);
    if (used >= sizeof(path))
        return false;
    va_list list;
    va_start(list, format);
    used += (size_t)vsnprintf(path + used, sizeof(path) - used, format, list);
    va_end(list);
    int fd = used < sizeof(path) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return false;
    ssize_t bytes = read(fd, line, TESS__SYSFS_LINE - 1);
    close(fd);
    if (bytes < 0)
        return false; /* of a device that is down, the speed cannot be read */
    line[bytes] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return true;
}

bool tess__sysfs_number(const char *sys, int32_t max, int32_t *number_out, const char *format, ...)
{
    char path[SYSFS_PATH_MAX], line[TESS__SYSFS_LINE];
    va_list list;
    va_start(list, format);
    vsnprintf(path, sizeof(path), format, list);
    va_end(list);
    return tess__sysfs_line(sys, line, "%s", path) &&
           tess__word_number((struct tess__word){line, strlen(line)}, max, number_out);
}

/* Names come from the system and from files: they are no paths. */
static bool sysfs_plain(const char *name)
{
    return name[0] && name[0] != '.' && !strchr(name, '/');
}

double tess__sysfs_pci_gbs(const char *sys, const char *bus)
{
    static const double rate[] = {2.5, 5, 8, 16, 32, 64}; /* 10^9 transfers/s, by generation */
    char speed[TESS__SYSFS_LINE];
    int32_t lanes, generation = 0;
    if (!sysfs_plain(bus) || !tess__sysfs_line(sys, speed, SYSFS_PCI "max_link_speed", bus) ||
        !tess__sysfs_number(sys, SYSFS_LANES_MAX, &lanes, SYSFS_PCI "max_link_width", bus))
        return 0;
    double transfers = strtod(speed, NULL); /* "16.0 GT/s PCIe", "Unknown speed" */
    for (int32_t g = 0; g < (int32_t)(sizeof(rate) / sizeof(rate[0])); g++)
        if (fabs(transfers - rate[g]) < 0.1)
            generation = g + 1;
    return generation > 0 ? TESS_GBS_PCI(tess__rate_pci(generation), lanes) : 0;
}

int32_t tess__sysfs_numa(const char *sys, const char *bus)
{
    int32_t numa;
    bool there =
        sysfs_plain(bus) && tess__sysfs_number(sys, 1048575, &numa, SYSFS_PCI "numa_node", bus);
    return there ? numa : -1;
}

bool tess__sysfs_physical(const char *sys, const char *bus, char physical[20])
{
    char path[SYSFS_PATH_MAX], target[SYSFS_PATH_MAX];
    if (!sysfs_plain(bus) ||
        (size_t)snprintf(path, sizeof(path), "%s/" SYSFS_PCI "physfn", sys, bus) >= sizeof(path))
        return false;
    ssize_t bytes = readlink(path, target, sizeof(target) - 1);
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
    char line[TESS__SYSFS_LINE];
    int32_t port = 1;
    *gbs_out = 0;
    for (; port <= SYSFS_PORTS_MAX; port++) {
        if (!tess__sysfs_line(sys, line, SYSFS_PORT "state", name, (int)port))
            break;
        if (strncmp(line, "4:", 2) != 0)
            continue;
        bool known = tess__sysfs_line(sys, line, SYSFS_PORT "rate", name, (int)port);
        double rate = known ? strtod(line, NULL) : 0;
        *gbs_out += rate > 0 && rate < 1e5 ? rate / 8 : TESS_GBS_NIC_UNKNOWN;
    }
    return port > 1;
}

double tess__sysfs_nic_gbs(const char *sys, const char *name)
{
    char line[TESS__SYSFS_LINE];
    int32_t mbits = 0;
    double gbs;
    if (!sysfs_plain(name))
        return TESS_GBS_NIC_UNKNOWN;
    if (sysfs_infiniband(sys, name, &gbs))
        return gbs;
    if (tess__sysfs_line(sys, line, "class/net/%.64s/operstate", name) && strcmp(line, "up") != 0 &&
        strcmp(line, "unknown") != 0)
        return 0;
    bool known = tess__sysfs_number(sys, 100000000, &mbits, "class/net/%.64s/speed", name);
    return known && mbits > 0 ? mbits / 8000.0 : TESS_GBS_NIC_UNKNOWN;
}
