/*
 * The launchers decide together which process becomes which rank, after a check that all have the
 * same options. Each sends where it runs; process 0 decides, so that one computation counts;
 * measurements involve a process of each host.
 */
#include "job/place.h"

#include "base/cgroup.h"
#include "base/hash.h"
#include "base/host.h"
#include "tessera/check.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum tess_status tess__place_check(const struct tess_config *config)
{
    static const char *const words[] = {"auto", "natural", "measure"};
    const struct tess_placing_options *options = &config->placing;
    const char *file = tess__place_order_file(options);

    if (options->hosts[0] != '\0' && options->file[0] == '\0')
        TESS_FAIL(TESS_ERR_USAGE,
                  "--topology.hosts names the hosts of --topology.file, which is not given");
    if (options->adapt && (file != NULL || strcmp(options->order, "natural") == 0))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--topology.adapt numbers ranks by the network, and --topology.order %s keeps an "
                  "order: leave one of them out",
                  options->order);
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
static uint64_t place_hash_host(const char *host, const char *boot)
{
    char network[64] = "", key[256];

    if (readlink("/proc/self/ns/net", network, sizeof(network) - 1) < 0)
        network[0] = '\0';
    snprintf(key, sizeof(key), "%s %s %s", host, boot, network);
    return tess_hash_bytes(key, strlen(key));
}

static void place_describe(const struct tess_config *config, struct tess__process *process,
                           struct tess__host *host)
{
    const char *address = getenv("SLURM_TOPOLOGY_ADDR");
    const char *pattern = getenv("SLURM_TOPOLOGY_ADDR_PATTERN");
    struct {
        char boot[TESS_HOST_BOOT];
        cpu_set_t set;
        uint64_t quota;
    } cores;

    memset(process, 0, sizeof(*process));
    memset(host, 0, sizeof(*host));
    memset(&cores, 0, sizeof(cores));
    if (gethostname(host->name, sizeof(host->name) - 1) != 0)
        snprintf(host->name, sizeof(host->name), "unknown");
    tess_host_boot(cores.boot);
    process->host = place_hash_host(host->name, cores.boot);
    /* Cut short it would be another address. */
    if (address != NULL && pattern != NULL && strlen(address) < sizeof(host->slurm_address) &&
        strlen(pattern) < sizeof(host->slurm_pattern)) {
        snprintf(host->slurm_address, sizeof(host->slurm_address), "%s", address);
        snprintf(host->slurm_pattern, sizeof(host->slurm_pattern), "%s", pattern);
    }
    process->local_rank = config->started.local_rank;
    if (config->device.module != NULL && !config->device.missing)
        tess__place_bus(config->device.info[config->started.rank].bus, process->bus);
    (void)sched_getaffinity(0, sizeof(cores.set), &cores.set);
    process->cores = tess_hash_bytes(&cores, sizeof(cores));
    process->core_count = tess_cores_affinity();
    process->quota_count = tess_cores_quota(&cores.quota);
    memset(&cores.set, 0, sizeof(cores.set));
    process->quota = cores.quota != 0 ? tess_hash_bytes(&cores, sizeof(cores)) : 0;
}

static enum tess_status place_collect(void *context, const void *mine, size_t bytes,
                                      struct tess_boot_parts *parts_out)
{
    return tess_boot_collect(context, mine, bytes, parts_out);
}

static enum tess_status place_deal(void *context, const struct tess_boot_parts *parts, void *mine,
                                   size_t room, size_t *bytes_out)
{
    return tess_boot_deal(context, parts, mine, room, bytes_out);
}

enum tess_status tess__place_ranks(struct tess__run *run, struct tess_config *config,
                                   const struct tess_boot_env *env)
{
    struct tess__process process;
    struct tess__host host;

    TESS_TRY(tess__peers_open(env, config->run.timeout, &run->peers));
    const struct tess_boot *boot = run->peers->boot;
    TESS_TRY(tess__same_options(config->options, run->peers->post, boot->rank));
    const struct tess__meeting meeting = {.rank = boot->rank,
                                          .rank_count = boot->rank_count,
                                          .address = boot->address,
                                          .secret = env->secret,
                                          .context = run->peers->post,
                                          .collect = place_collect,
                                          .deal = place_deal};
    place_describe(config, &process, &host);
    TESS_TRY(tess__place_meet(run, &config->placing, &meeting, &process, &host));
    TESS_TRY(tess__peers_renumber(run->peers, run->placed->own, run->placed->rank));
    tess_config_renumber(config, run->placed->own);
    return tess__place_graph(run);
}

/* ---- the placement --------------------------------------------------------------------------- */

struct tess__placement *tess__placed_open(void)
{
    return calloc(1, sizeof(struct tess__placement));
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
    free(placed->rank);
    free(placed->text);
    free(placed->bus);
    free(placed);
}
