/*
 * Processes and the devices of a topology: hosts by their names, GPUs by their bus ids. Not here:
 * which process is to become which rank.
 */
#include "job/place.h"

#include "tessera/check.h"
#include "topology/formats/hostlist.h"
#include "topology/machine/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct match_host {
    char name[TESS_TOPO_NAME_MAX];
    bool known;             /* a node of it was seen */
    int32_t first, devices; /* in topology->device, where they follow each other */
};

struct match {
    const struct tess__processes *job;
    const struct tess_topology *topology;
    const char *file;
    struct match_host *host; /* [topology->host_count] */
    int32_t *sorted;         /* [topology->host_count] hosts by match_compare */
    int32_t *found;          /* [job->host_count] of the topology's */
    int32_t *owner;          /* [topology->device_count] process that has the device; -1 */
    int32_t named;           /* hosts that --topology.hosts has named so far */
};

/* Is `name` this prefix, or does it go on behind a dot? */
static bool match_within(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);

    return strncmp(name, prefix, length) == 0 && (name[length] == '\0' || name[length] == '.');
}

/* A host has no name of its own in a topology: it is what all its nodes' names begin with, up to a
 * dot or an end ("dev2", "dev2.gpu0"); "" where they have nothing in common. */
static void match_name_hosts(struct match *match)
{
    const struct tess_topology *topology = match->topology;

    for (int32_t n = 0; n < topology->node_count; n++) {
        const struct tess_node *node = &topology->node[n];

        if (node->host < 0 || node->host >= topology->host_count)
            continue;
        struct match_host *host = &match->host[node->host];
        if (!host->known)
            memcpy(host->name, node->name, sizeof(host->name));
        host->known = true;
        while (host->name[0] != '\0' && !match_within(node->name, host->name)) {
            char *dot = strrchr(host->name, '.');
            *(dot != NULL ? dot : host->name) = '\0';
        }
    }
    for (int32_t d = 0; d < topology->device_count; d++) {
        const int32_t h = topology->node[topology->device[d]].host;

        if (h >= 0 && h < topology->host_count && match->host[h].devices++ == 0)
            match->host[h].first = d;
    }
}

static enum tess_status match_take_name(void *context, const char *name)
{
    struct match *match = context;

    if (match->named == match->topology->host_count)
        TESS_FAIL(TESS_ERR_USAGE, "--topology.hosts names more hosts than the %d of %s",
                  (int)match->topology->host_count, match->file);
    snprintf(match->host[match->named++].name, TESS_TOPO_NAME_MAX, "%s", name);
    return TESS_OK;
}

static enum tess_status match_take_names(struct match *match, const char *hosts)
{
    int32_t count = 0;

    if (hosts[0] == '\0')
        return TESS_OK;
    TESS_TRY(tess__hostlist_expand("--topology.hosts", 0, (struct tess__word){hosts, strlen(hosts)},
                                   &count, match_take_name, match));
    if (match->named < match->topology->host_count)
        TESS_FAIL(TESS_ERR_USAGE, "--topology.hosts names %d hosts, and %s has %d",
                  (int)match->named, match->file, (int)match->topology->host_count);
    return TESS_OK;
}

/* Names of hosts are the same as far as both go: some have their domain behind a dot. By the parts
 * before the dot. */
static int match_compare_short(const char *a, const char *b)
{
    const size_t x = strcspn(a, "."), y = strcspn(b, ".");
    const int order = strncmp(a, b, x < y ? x : y);

    return order != 0 ? order : (x > y) - (x < y);
}

static int match_compare(const void *a, const void *b, void *context)
{
    const struct match_host *host = context;

    return match_compare_short(host[*(const int32_t *)a].name, host[*(const int32_t *)b].name);
}

/* The host of that name, or the only one of that short name; -1. */
static int32_t match_find(const struct match *match, const char *name)
{
    const int32_t hosts = match->topology->host_count;
    int32_t low = 0, high = hosts, alike = 0;

    while (low < high) { /* the first that is not before the name */
        const int32_t middle = low + (high - low) / 2;

        if (match_compare_short(match->host[match->sorted[middle]].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (int32_t i = low; i < hosts; i++, alike++) {
        const int32_t h = match->sorted[i];

        if (match_compare_short(match->host[h].name, name) != 0)
            break;
        if (strcmp(match->host[h].name, name) == 0)
            return h;
    }
    /* Of several it could be any. */
    return alike == 1 && strcspn(name, ".") > 0 ? match->sorted[low] : -1;
}

static enum tess_status match_missing(const struct match *match, int32_t process)
{
    char names[300] = "";
    size_t used = 0;
    int32_t shown = 0;

    for (int32_t h = 0; h < match->topology->host_count; h++) {
        const char *name = match->host[h].name[0] != '\0' ? match->host[h].name : "one without";
        size_t length = strlen(name);

        if (used + length + 3 > sizeof(names))
            break;
        used +=
            (size_t)snprintf(names + used, sizeof(names) - used, "%s%s", h > 0 ? ", " : "", name);
        shown++;
    }
    TESS_FAIL(TESS_ERR_USAGE,
              "host %s, of process %d, is not in %s, whose hosts are called %s%s: "
              "--topology.hosts gives them other names, in this order",
              tess__host_name(match->job, process), (int)process, match->file, names,
              shown < match->topology->host_count ? ", ..." : "");
}

/* The topology's host of each of the job's hosts. */
static enum tess_status match_hosts(const struct match *match)
{
    const struct tess__processes *job = match->job;

    for (int32_t h = 0; h < match->topology->host_count; h++)
        match->sorted[h] = h;
    qsort_r(match->sorted, (size_t)match->topology->host_count, sizeof(*match->sorted),
            match_compare, match->host);
    for (int32_t h = 0; h < job->host_count; h++) {
        /* The file of a machine needs no name where there is no other. */
        const bool alone = job->host_count == 1 && match->topology->host_count == 1;
        const int32_t found = alone ? 0 : match_find(match, job->hosts[h].name);

        if (found < 0)
            return match_missing(match, job->member[job->start[h]]);
        if (match->host[found].devices < tess__host_size(job, h))
            TESS_FAIL(
                TESS_ERR_USAGE, "%d processes were started on host %s, which has %d device%s in %s",
                (int)tess__host_size(job, h), job->hosts[h].name, (int)match->host[found].devices,
                match->host[found].devices == 1 ? "" : "s", match->file);
        match->found[h] = found;
    }
    return TESS_OK;
}

static enum tess_status match_process(const struct match *match, int32_t process,
                                      int32_t *device_out)
{
    const struct tess_topology *topology = match->topology;
    const int32_t h = match->found[match->job->host[process]];
    const struct match_host *host = &match->host[h];
    const char *bus = match->job->process[process].bus;
    const int32_t node = bus[0] != '\0' ? tess_topology_find_bus(topology, h, bus) : -1;
    int32_t device = host->first + match->job->slot[process];

    for (int32_t d = host->first; d < host->first + host->devices && node >= 0; d++)
        if (topology->device[d] == node)
            device = d;
    if (match->owner[device] >= 0)
        TESS_FAIL(TESS_ERR_USAGE, "processes %d and %d would both have device %s of %s",
                  (int)match->owner[device], (int)process,
                  topology->node[topology->device[device]].name, match->file);
    match->owner[device] = process;
    *device_out = device;
    return TESS_OK;
}

static enum tess_status match_all(struct match *match, const char *hosts, int32_t *device_out)
{
    match_name_hosts(match);
    TESS_TRY(match_take_names(match, hosts));
    TESS_TRY(match_hosts(match));
    for (int32_t d = 0; d < match->topology->device_count; d++)
        match->owner[d] = -1;
    for (int32_t p = 0; p < match->job->count; p++)
        TESS_TRY(match_process(match, p, &device_out[p]));
    return TESS_OK;
}

enum tess_status tess__place_match(const struct tess__processes *job,
                                   const struct tess_topology *topology, const char *file,
                                   const char *hosts, int32_t *device_out)
{
    struct match match = {.job = job, .topology = topology, .file = file};
    struct tess__pool pool = {0};
    const size_t count = (size_t)topology->host_count + 1;

    match.host = tess__pool_array(&pool, count, sizeof(*match.host));
    match.sorted = tess__pool_array(&pool, count, sizeof(*match.sorted));
    match.found = tess__pool_array(&pool, (size_t)job->host_count, sizeof(*match.found));
    match.owner = tess__pool_array(&pool, (size_t)topology->device_count, sizeof(*match.owner));
    const enum tess_status status = pool.failed ? tess__no_memory("the hosts of the topology")
                                                : match_all(&match, hosts, device_out);
    tess__pool_release(&pool);
    return status;
}
