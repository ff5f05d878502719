/*
 * Processes and the devices of a topology: hosts by their names, GPUs by their bus ids. Not here:
 * which process is to become which rank.
 */
#include "job/place.h"

#include "tessera/check.h"
#include "topology/formats/hostlist.h"

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

/* Names of hosts are the same as far as both go: some have their domain behind a dot. */
static bool match_short(const char *a, const char *b)
{
    size_t length = strcspn(a, ".");

    return length > 0 && strcspn(b, ".") == length && strncmp(a, b, length) == 0;
}

static int32_t match_find(const struct match *match, const char *name)
{
    int32_t found = -1;

    for (int32_t h = 0; h < match->topology->host_count; h++)
        if (strcmp(match->host[h].name, name) == 0)
            return h;
    for (int32_t h = 0; h < match->topology->host_count; h++) {
        if (!match_short(match->host[h].name, name))
            continue;
        if (found >= 0)
            return -1; /* it could be either */
        found = h;
    }
    return found;
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
              match->job->process[process].host, (int)process, match->file, names,
              shown < match->topology->host_count ? ", ..." : "");
}

static enum tess_status match_process(const struct match *match, int32_t process,
                                      int32_t *device_out)
{
    const struct tess__processes *job = match->job;
    int32_t h = 0;

    /* The file of a machine needs no name where there is no other. */
    if (job->host_count > 1 || match->topology->host_count > 1)
        h = match_find(match, job->process[process].host);
    if (h < 0)
        return match_missing(match, process);
    const struct match_host *host = &match->host[h];
    if (host->devices < job->host_size[job->host[process]])
        TESS_FAIL(TESS_ERR_USAGE,
                  "%d processes were started on host %s, which has %d device%s in %s",
                  (int)job->host_size[job->host[process]], job->process[process].host,
                  (int)host->devices, host->devices == 1 ? "" : "s", match->file);
    const char *bus = job->process[process].bus;
    const int32_t node = bus[0] != '\0' ? tess_topology_find_bus(match->topology, h, bus) : -1;
    *device_out = host->first + job->slot[process];
    for (int32_t d = host->first; d < host->first + host->devices && node >= 0; d++)
        if (match->topology->device[d] == node)
            *device_out = d;
    return TESS_OK;
}

enum tess_status tess__place_match(const struct tess__processes *job,
                                   const struct tess_topology *topology, const char *file,
                                   const char *hosts, int32_t device_out[TESS_WORLD_RANKS_MAX])
{
    struct match match = {.job = job, .topology = topology, .file = file};

    match.host = calloc((size_t)topology->host_count + 1, sizeof(*match.host));
    if (match.host == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the hosts of %s", file);
    match_name_hosts(&match);
    enum tess_status status = match_take_names(&match, hosts);
    for (int32_t p = 0; p < job->count && status == TESS_OK; p++)
        status = match_process(&match, p, &device_out[p]);
    for (int32_t p = 0; p < job->count && status == TESS_OK; p++)
        for (int32_t q = 0; q < p && status == TESS_OK; q++)
            if (device_out[p] == device_out[q])
                status = tess_fail(
                    TESS_ERR_USAGE, "processes %d and %d would both have device %s of %s", (int)q,
                    (int)p, topology->node[topology->device[device_out[p]]].name, file);
    free(match.host);
    return status;
}
