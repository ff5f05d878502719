/*
 * The launchers decide together which process becomes which rank, after a check that all have the
 * same options. Each sends where it runs; process 0 decides, so that one computation counts;
 * measurements involve all of them.
 */
#include "job/place.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/options.h"
#include "tessera/check.h"
#include "topology/formats/slurm.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* With fewer hosts there is one way between them, and nothing that others could share. */
#define PLACE_PROBE_HOSTS 3

/* From process 0 to all. */
struct placing_verdict {
    int32_t status;
    int32_t rank[TESS_WORLD_RANKS_MAX];
};

struct placing {
    const struct tess__run *run;
    const struct tess_placing_options *options;
    struct tess__processes job;
    int32_t process[TESS_WORLD_RANKS_MAX]; /* of a rank: what process 0 decides */
};

enum tess_status tess__place_check(const struct tess_config *config)
{
    static const char *const words[] = {"auto", "natural", "measure"};
    const struct tess_placing_options *options = &config->placing;
    const char *file = tess__place_order_file(options);

    if (options->hosts[0] != '\0' && options->file[0] == '\0')
        TESS_FAIL(TESS_ERR_USAGE,
                  "--topology.hosts names the hosts of --topology.file, which is not given");
    if (file != NULL && file[0] != '\0')
        return TESS_OK;
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
        if (strcmp(options->order, words[i]) == 0)
            return TESS_OK;
    TESS_FAIL(TESS_ERR_USAGE,
              "--topology.order %s: auto, natural, measure or file:F with the name of a file was "
              "expected",
              options->order);
}

/* ---- who is where ---------------------------------------------------------------------------- */

/* What differs between hosts: the kernel's start, and the namespaces in which containers differ. */
static void place_host_key(const char *host, char *key, size_t key_bytes)
{
    char boot[64] = "", network[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (readlink("/proc/self/ns/net", network, sizeof(network) - 1) < 0)
        network[0] = '\0';
    if (file != NULL) {
        if (fscanf(file, "%63s", boot) != 1)
            boot[0] = '\0';
        fclose(file);
    }
    snprintf(key, key_bytes, "%s %s %s", host, boot, network);
}

static void place_describe(const struct tess_config *config, struct tess__process *process)
{
    const char *address = getenv("SLURM_TOPOLOGY_ADDR");
    const char *pattern = getenv("SLURM_TOPOLOGY_ADDR_PATTERN");
    cpu_set_t cores;

    memset(process, 0, sizeof(*process));
    if (gethostname(process->host, sizeof(process->host) - 1) != 0)
        snprintf(process->host, sizeof(process->host), "unknown");
    place_host_key(process->host, process->key, sizeof(process->key));
    /* Cut short it would be another address. */
    if (address != NULL && pattern != NULL && strlen(address) < sizeof(process->slurm_address) &&
        strlen(pattern) < sizeof(process->slurm_pattern)) {
        snprintf(process->slurm_address, sizeof(process->slurm_address), "%s", address);
        snprintf(process->slurm_pattern, sizeof(process->slurm_pattern), "%s", pattern);
    }
    process->local_rank = config->started.local_rank;
    if (config->device.module != NULL && !config->device.missing)
        tess__place_bus(config->device.info[config->started.rank].bus, process->bus);
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0) {
        process->core_count = CPU_COUNT(&cores);
        process->cores = tess_hash_bytes(&cores, sizeof(cores));
    }
}

/* Names that end where they must, in bytes from other processes. */
static void place_close_texts(struct tess__process *process)
{
    process->host[sizeof(process->host) - 1] = process->key[sizeof(process->key) - 1] = '\0';
    process->slurm_address[sizeof(process->slurm_address) - 1] = '\0';
    process->slurm_pattern[sizeof(process->slurm_pattern) - 1] = '\0';
    process->bus[sizeof(process->bus) - 1] = '\0';
}

/* ---- topologies ------------------------------------------------------------------------------ */

/* Does Slurm report switches? Without such a plugin an address is the host alone. */
static bool place_has_slurm(const struct tess__processes *job)
{
    for (int32_t p = 0; p < job->count; p++)
        if (strchr(job->process[p].slurm_pattern, '.') == NULL)
            return false;
    return job->host_count > 1;
}

static enum tess_status place_by_slurm(struct placing *place)
{
    struct tess_slurm_address address[TESS_WORLD_RANKS_MAX];
    int32_t device[TESS_WORLD_RANKS_MAX];
    struct tess_topology *topology = NULL;

    for (int32_t p = 0; p < place->job.count; p++)
        address[p] = (struct tess_slurm_address){place->job.process[p].slurm_address,
                                                 place->job.process[p].slurm_pattern};
    TESS_TRY(tess_topology_slurm_ranks(address, place->job.count, NULL, &topology, device));
    return tess__place_map(place->run, &place->job, topology, device, "Slurm's switches",
                           place->process);
}

/* Hosts that are called alike get their numbers behind it. */
static void place_name_hosts(const struct tess__processes *job,
                             char name[][TESS__SLURM_HOST_MAX + 1])
{
    for (int32_t h = 0; h < job->host_count; h++) {
        const char *own = job->process[job->host_first[h]].host;
        bool alike = strlen(own) > TESS__SLURM_HOST_MAX;

        for (int32_t other = 0; other < job->host_count; other++)
            alike = alike ||
                    (other != h && strcmp(own, job->process[job->host_first[other]].host) == 0);
        if (alike)
            snprintf(name[h], TESS__SLURM_HOST_MAX + 1, "%.30s#%u", own, (unsigned)(uint16_t)h);
        else
            snprintf(name[h], TESS__SLURM_HOST_MAX + 1, "%.*s", TESS__SLURM_HOST_MAX, own);
    }
}

static enum tess_status place_save(const char *path, const struct tess_topology *topology)
{
    char *text = NULL;

    if (path[0] == '\0')
        return TESS_OK;
    TESS_TRY(tess_topology_write_yaml(topology, &text));
    const enum tess_status status = tess_file_write(path, text, strlen(text));
    free(text);
    return status;
}

/* Hosts and, where there is something, groups of them; `source` begins the line. */
static enum tess_status place_by_hosts(struct placing *place, const struct tess_measured *measured,
                                       const char *source)
{
    const struct tess__processes *job = &place->job;
    char name[TESS_WORLD_RANKS_MAX][TESS__SLURM_HOST_MAX + 1];
    const char *names[TESS_WORLD_RANKS_MAX];
    int32_t device[TESS_WORLD_RANKS_MAX], first[TESS_WORLD_RANKS_MAX];
    struct tess_topology *topology = NULL;

    place_name_hosts(job, name);
    for (int32_t h = 0; h < job->host_count; h++) {
        names[h] = name[h];
        first[h] = h > 0 ? first[h - 1] + job->host_size[h - 1] : 0;
    }
    for (int32_t p = 0; p < job->count; p++)
        device[p] = first[job->host[p]] + job->slot[p];
    TESS_TRY(tess_measured_topology(measured, names, job->host_size, &topology));
    const enum tess_status status = place_save(place->options->save, topology);
    if (status != TESS_OK) {
        tess_topology_free(topology);
        return status;
    }
    return tess__place_map(place->run, job, topology, device, source, place->process);
}

/* "measured 4 hosts in 0.8 s: 2 groups, 9 times as fast within as across" */
static enum tess_status place_by_probe(struct placing *place,
                                       const struct tess__network_found *found)
{
    const struct tess_measured *measured = &found->measured;
    char source[256];

    if (found->why[0] != '\0')
        snprintf(source, sizeof(source), "the network could not be measured (%s)", found->why);
    else if (measured->group_count == 1)
        snprintf(source, sizeof(source), "measured %d hosts in %.1f s, the network is even",
                 (int)place->job.host_count, found->seconds);
    else
        snprintf(
            source, sizeof(source),
            "measured %d hosts in %.1f s, %d groups, pairs %.1f times as fast within as across",
            (int)place->job.host_count, found->seconds, (int)measured->group_count,
            measured->ratio);
    return place_by_hosts(place, measured, source);
}

/* ---- the decision ---------------------------------------------------------------------------- */

/* Is the network measured? The same on all processes: they have the same options, and the list of
 * all of them. */
static bool place_measures(const struct placing *place)
{
    const struct tess_placing_options *options = place->options;

    return place->job.host_count >= PLACE_PROBE_HOSTS &&
           (strcmp(options->order, "measure") == 0 ||
            (strcmp(options->order, "auto") == 0 && options->file[0] == '\0' &&
             !place_has_slurm(&place->job)));
}

/* Process 0. `found`: by measuring; NULL: nothing was measured. */
static enum tess_status place_decide(struct placing *place, const struct tess__network_found *found)
{
    const char *order = place->options->order, *file = tess__place_order_file(place->options);
    struct tess__processes *job = &place->job;
    struct tess_measured even = {.host_count = job->host_count, .group_count = 1};
    const bool automatic = strcmp(order, "auto") == 0;

    if (strcmp(order, "natural") == 0)
        return TESS_OK;
    if (file != NULL) {
        snprintf(place->run->placed->line, sizeof(place->run->placed->line), "by %.300s", file);
        return tess__place_read_order(job, file, place->process);
    }
    if (found != NULL)
        return place_by_probe(place, found);
    if (job->host_count == 1 || (automatic && place->options->file[0] != '\0'))
        return tess__place_by_machine(place->run, job, place->process);
    if (automatic && place_has_slurm(job))
        return place_by_slurm(place);
    return place_by_hosts(place, &even, "two hosts");
}

/* Send all what process 0 has decided. */
static enum tess_status place_send(const struct tess_boot *boot, const struct placing *place,
                                   enum tess_status status)
{
    struct placing_verdict mine = {.status = (int32_t)status}, all[TESS_WORLD_RANKS_MAX];

    /* Half an order, where it was refused, is none. */
    for (int32_t r = 0; r < place->job.count && boot->rank == 0 && status == TESS_OK; r++)
        mine.rank[place->process[r]] = r;
    TESS_KEEP(status, boot->gather(boot->context, &mine, sizeof(mine), all));
    TESS_TRY(status);
    memcpy(place->run->placed->rank, all[0].rank, sizeof(all[0].rank));
    return all[0].status == TESS_OK ? TESS_OK : TESS_ERR_ABORTED;
}

/* Numbers from elsewhere must be an order, and process 0 the first. */
static enum tess_status place_check_ranks(const struct tess__placement *placed, int32_t count)
{
    bool taken[TESS_WORLD_RANKS_MAX] = {false};

    for (int32_t p = 0; p < count; p++) {
        const int32_t rank = placed->rank[p];
        if (rank < 0 || rank >= count || taken[rank] || (p == 0 && rank != 0))
            TESS_FAIL(TESS_ERR_INTERNAL, "process %d is to be rank %d of %d", (int)p, (int)rank,
                      (int)count);
        taken[rank] = true;
    }
    return TESS_OK;
}

static void place_find_binding(const struct tess__processes *job, int32_t own,
                               struct tess__placement *placed)
{
    const int32_t host = job->host[own];

    placed->slot = job->slot[own];
    placed->host_size = job->host_size[host];
    placed->host_count = job->host_count;
    placed->core_count = job->process[own].core_count;
    placed->bound = false;
    for (int32_t p = 0; p < job->count; p++) {
        if (job->host[p] != host)
            continue;
        placed->bound = placed->bound || job->process[p].cores != job->process[own].cores;
        memcpy(placed->bus[job->slot[p]], job->process[p].bus, sizeof(job->process[p].bus));
    }
}

static enum tess_status place_meet(struct placing *place, const struct tess_config *config,
                                   const struct tess_boot *boot)
{
    struct tess__network_found found = {0};
    enum tess_status status = TESS_OK;
    struct tess__process mine;

    place_describe(config, &mine);
    place->job.count = boot->rank_count;
    TESS_TRY(boot->gather(boot->context, &mine, sizeof(mine), place->job.process));
    for (int32_t p = 0; p < place->job.count; p++)
        place_close_texts(&place->job.process[p]);
    tess__place_find_hosts(&place->job);
    for (int32_t r = 0; r < place->job.count; r++)
        place->process[r] = r;
    const bool measures = place_measures(place);
    if (measures)
        TESS_TRY(tess__place_probe(boot, &place->job, &found));
    if (boot->rank == 0)
        status = place_decide(place, measures ? &found : NULL);
    if (boot->rank == 0 && !measures && place->options->save[0] != '\0')
        tess_log(TESS_LOG_WARN,
                 "--topology.save writes what was measured, and nothing was: there "
                 "are %d hosts, --topology.order is %s",
                 (int)place->job.host_count, place->options->order);
    TESS_TRY(place_send(boot, place, status));
    TESS_TRY(place_check_ranks(place->run->placed, place->job.count));
    place_find_binding(&place->job, boot->rank, place->run->placed);
    return TESS_OK;
}

enum tess_status tess__place_ranks(struct tess__run *run, struct tess_config *config,
                                   const struct tess_boot_env *env)
{
    TESS_TRY(tess__peers_open(env, config->run.timeout, &run->peers));
    TESS_TRY(tess__same_options(config->options, run->peers->boot));
    struct placing place = {.run = run, .options = &config->placing};
    TESS_TRY(place_meet(&place, config, run->peers->boot));
    tess__peers_renumber(run->peers, run->placed->rank);
    tess_config_renumber(config, run->placed->rank[env->rank]);
    return tess__place_graph(run);
}

void tess__placed_bind(const struct tess__placement *placed, struct tess__launch *launch)
{
    launch->bind = launch->bind && !placed->bound;
    launch->slot = placed->slot;
    launch->slot_count = placed->host_size;
    for (int32_t p = 0; p < placed->host_size; p++)
        launch->bus[p] = placed->bus[p];
}

void tess__placed_close(struct tess__placement *placed)
{
    if (placed == NULL)
        return;
    if (placed->graph_fd > 0)
        close(placed->graph_fd);
    tess_topology_free(placed->topology);
    free(placed->text);
    free(placed);
}
