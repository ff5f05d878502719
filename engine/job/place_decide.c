/*
 * Process 0 decides which process becomes which rank: by which file, which switches or which
 * measurement.
 */
#include "job/place.h"

#include "base/file.h"
#include "base/hash.h"
#include "job/place_slow.h"
#include "tessera/check.h"
#include "topology/formats/slurm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* With fewer hosts there is one way between them, and nothing that others could share. */
#define DECIDE_PROBE_HOSTS 3

#define DECIDE_NAME_BYTES (TESS__SLURM_HOST_MAX + 1)

struct decide {
    const struct tess__run *run;
    const struct tess_placing_options *options;
    const struct tess__processes *job;
    int32_t *process; /* [job->count] of a rank: the decision */
};

/* Does Slurm report switches? Without such a plugin an address is the host alone. */
static bool decide_has_slurm(const struct tess__processes *job)
{
    for (int32_t h = 0; h < job->host_count; h++)
        if (strchr(job->hosts[h].slurm_pattern, '.') == NULL)
            return false;
    return job->host_count > 1;
}

bool tess__place_measures(const struct tess_placing_options *options,
                          const struct tess__processes *job)
{
    return job->host_count >= DECIDE_PROBE_HOSTS &&
           (strcmp(options->order, "measure") == 0 ||
            (strcmp(options->order, "auto") == 0 && options->file[0] == '\0' &&
             !decide_has_slurm(job)));
}

static enum tess_status decide_by_slurm(const struct decide *decide)
{
    const struct tess__processes *job = decide->job;
    const size_t count = (size_t)job->count;
    struct tess_slurm_address *address = malloc(count * sizeof(*address));
    int32_t *device = malloc(count * sizeof(*device));
    struct tess_topology *topology = NULL;
    enum tess_status status = TESS_OK;

    if (address == NULL || device == NULL)
        status =
            tess_fail(TESS_ERR_MEMORY, "no memory for the switches of %d ranks", (int)job->count);
    for (int32_t p = 0; p < job->count && status == TESS_OK; p++) {
        const struct tess__host *host = &job->hosts[job->host[p]];
        address[p] = (struct tess_slurm_address){host->slurm_address, host->slurm_pattern};
    }
    if (status == TESS_OK)
        status = tess_topology_slurm_ranks(address, job->count, NULL, &topology, device);
    if (status == TESS_OK) {
        tess__place_slow(topology, decide->run->slowed);
        status = tess__place_map(decide->run, job, topology, device, "Slurm's switches",
                                 decide->process);
    }
    free(address);
    free(device);
    return status;
}

static int decide_compare(const void *a, const void *b, void *context)
{
    const struct tess__processes *job = context;
    const int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;

    return strcmp(job->hosts[i].name, job->hosts[k].name);
}

/* Hosts that are called alike get their numbers behind it. `order` [host_count]: scratch. */
static void decide_name_hosts(const struct tess__processes *job, int32_t *order,
                              char (*name)[DECIDE_NAME_BYTES])
{
    const int32_t hosts = job->host_count;

    for (int32_t h = 0; h < hosts; h++)
        order[h] = h;
    qsort_r(order, (size_t)hosts, sizeof(*order), decide_compare, (void *)job);
    for (int32_t i = 0; i < hosts; i++) {
        const int32_t h = order[i];
        const char *own = job->hosts[h].name;
        const bool alike = strlen(own) > TESS__SLURM_HOST_MAX ||
                           (i > 0 && strcmp(own, job->hosts[order[i - 1]].name) == 0) ||
                           (i + 1 < hosts && strcmp(own, job->hosts[order[i + 1]].name) == 0);

        if (alike)
            snprintf(name[h], DECIDE_NAME_BYTES, "%.30s#%u", own, (unsigned)(uint16_t)h);
        else
            snprintf(name[h], DECIDE_NAME_BYTES, "%.*s", TESS__SLURM_HOST_MAX, own);
    }
}

static enum tess_status decide_save(const char *path, const struct tess_topology *topology)
{
    char *text = NULL;

    if (path[0] == '\0')
        return TESS_OK;
    TESS_TRY(tess_topology_write_yaml(topology, &text));
    const enum tess_status status = tess_file_write(path, text, strlen(text));
    free(text);
    return status;
}

/* What decide_by_hosts works with, in one block. */
struct decide_hosts {
    int32_t *device; /* [job->count] */
    int32_t *size;   /* [host_count] */
    int32_t *order;  /* [host_count] */
    const char **names;
    char (*name)[DECIDE_NAME_BYTES];
};

static void *decide_open_hosts(const struct tess__processes *job, struct decide_hosts *hosts)
{
    const size_t count = (size_t)job->count, each = (size_t)job->host_count;
    char *block = malloc(each * (sizeof(*hosts->names) + 2 * sizeof(int32_t) + DECIDE_NAME_BYTES) +
                         count * sizeof(int32_t));

    if (block == NULL)
        return NULL;
    hosts->names = (const char **)block;
    hosts->device = (int32_t *)(hosts->names + each);
    hosts->size = hosts->device + count;
    hosts->order = hosts->size + each;
    hosts->name = (char(*)[DECIDE_NAME_BYTES])(hosts->order + each);
    decide_name_hosts(job, hosts->order, hosts->name);
    for (int32_t h = 0; h < job->host_count; h++) {
        hosts->names[h] = hosts->name[h];
        hosts->size[h] = tess__host_size(job, h);
    }
    for (int32_t p = 0; p < job->count; p++)
        hosts->device[p] = job->start[job->host[p]] + job->slot[p];
    return block;
}

/* Hosts and, where there is something, groups of them; `source` begins the line. */
static enum tess_status decide_by_hosts(const struct decide *decide,
                                        const struct tess_measured *measured, const char *source)
{
    const struct tess__processes *job = decide->job;
    struct decide_hosts hosts;
    struct tess_topology *topology = NULL;
    void *block = decide_open_hosts(job, &hosts);

    if (block == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the network of %d hosts", (int)job->host_count);
    enum tess_status status =
        tess_measured_topology(measured, job->host_count, hosts.names, hosts.size, &topology);
    if (status == TESS_OK && (status = decide_save(decide->options->save, topology)) != TESS_OK)
        tess_topology_free(topology);
    if (status == TESS_OK)
        status = tess__place_map(decide->run, job, topology, hosts.device, source, decide->process);
    free(block);
    return status;
}

/* "measured 4 hosts in 0.8 s: 2 groups, 9 times as fast within as across" */
static enum tess_status decide_by_probe(const struct decide *decide,
                                        const struct tess__network_found *found)
{
    const struct tess_measured *measured = &found->measured;
    char hosts[96], source[256];

    decide->run->placed->measured = found->why[0] == '\0';
    snprintf(hosts, sizeof(hosts), "measured %d hosts", (int)decide->job->host_count);
    if (measured->block > 1)
        snprintf(hosts, sizeof(hosts), "measured %d hosts, every %d that follow each other as one,",
                 (int)decide->job->host_count, (int)measured->block);
    if (found->why[0] != '\0')
        snprintf(source, sizeof(source), "the network could not be measured (%s)", found->why);
    else if (measured->group_count == 1)
        snprintf(source, sizeof(source), "%s in %.1f s, the network is even", hosts,
                 found->seconds);
    else
        snprintf(source, sizeof(source),
                 "%s in %.1f s, %d groups, pairs %.1f times as fast within as across", hosts,
                 found->seconds, (int)measured->group_count, measured->ratio);
    return decide_by_hosts(decide, measured, source);
}

enum tess_status tess__place_decide(const struct tess__run *run,
                                    const struct tess_placing_options *options,
                                    const struct tess__processes *job,
                                    const struct tess__network_found *found, int32_t *process_out)
{
    const struct decide decide = {run, options, job, process_out};
    const char *order = options->order, *file = tess__place_order_file(options);
    const struct tess_measured even = {.host_count = 1, .group_count = 1, .block = job->host_count};
    const bool automatic = strcmp(order, "auto") == 0, by_file = options->file[0] != '\0';

    if (options->save[0] != '\0' && found == NULL)
        tess_log(TESS_LOG_WARN,
                 "--topology.save writes what was measured, and nothing was: there "
                 "are %d hosts, --topology.order is %s",
                 (int)job->host_count, order);
    for (int32_t r = 0; r < job->count; r++)
        process_out[r] = r;
    if (file != NULL) {
        snprintf(run->placed->line, sizeof(run->placed->line), "by %.300s", file);
        TESS_TRY(tess__place_read_order(job, file, process_out));
    }
    const bool given = file != NULL || strcmp(order, "natural") == 0,
               described = automatic || given;
    run->placed->given = given;
    if (given && (job->host_count == 1 || !(by_file || decide_has_slurm(job))))
        return TESS_OK;
    if (found != NULL)
        return decide_by_probe(&decide, found);
    if (job->host_count == 1 || (described && by_file))
        return tess__place_by_machine(run, job, process_out);
    if (described && decide_has_slurm(job)) {
        const enum tess_status status = decide_by_slurm(&decide);
        if (!given || status == TESS_OK)
            return status;
        /* Of an order that is given racks are a help to sums alone. */
        tess_log(TESS_LOG_WARN, "sums do not know the racks of hosts: %s", tess_log_last_error());
        return TESS_OK;
    }
    return decide_by_hosts(&decide, &even, "two hosts");
}
