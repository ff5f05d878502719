/*
 * Ranks and the devices of one host: which rank computes on which of them, by how they are joined.
 * Ranks that are started from here take the devices in another order; of ranks that others started
 * each has its device already, and gets another number.
 */
#include "job/place.h"

#include "device/nvml.h"
#include "job/place_slow.h"
#include "tessera/check.h"
#include "topology/hwloc/live.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char device_machine[] = "this machine";

/* All processes' GPUs are there: by what else would they be found? */
static bool device_all_there(const struct tess__processes *job,
                             const struct tess_topology *topology)
{
    for (int32_t p = 0; p < job->count; p++)
        if (tess_topology_find_bus(topology, 0, job->process[p].bus) < 0)
            return false;
    return true;
}

/* The machine as its driver and hwloc report it; NULL where that is not enough. */
static struct tess_topology *device_look(const struct tess__processes *job)
{
    struct tess_live_device *found = calloc(TESS_WATCH_DEVICES_MAX, sizeof(*found));
    struct tess_topology *topology = NULL;
    char why[256];
    struct tess_watch *watch = found != NULL ? tess_watch_open(why, sizeof(why)) : NULL;
    const int32_t count = watch != NULL ? tess_watch_links(watch, found) : 0;

    if (count > 0 && tess_topology_live(found, count, 0, &topology) != TESS_OK)
        topology = NULL;
    tess_watch_close(watch);
    free(found);
    if (topology == NULL || device_all_there(job, topology))
        return topology;
    tess_topology_free(topology);
    return NULL;
}

/* A number for each process, to be freed; NULL, and logged, without memory. */
static int32_t *device_list(int32_t count)
{
    int32_t *list = calloc((size_t)count, sizeof(*list));

    if (list == NULL)
        (void)tess_fail(TESS_ERR_MEMORY, "no memory for the devices of %d processes", (int)count);
    return list;
}

static int32_t device_most_on_a_host(const struct tess__processes *job)
{
    int32_t most = 0;

    for (int32_t h = 0; h < job->host_count; h++)
        most = tess__host_size(job, h) > most ? tess__host_size(job, h) : most;
    return most;
}

enum tess_status tess__place_machine(const struct tess_placing_options *options,
                                     const struct tess__processes *job, const char **name_out,
                                     int32_t *device_out, struct tess_topology **topology_out)
{
    const struct tess_topology_options how = {.per_host = device_most_on_a_host(job)};
    const bool file = options->file[0] != '\0';

    *topology_out = NULL;
    *name_out = file ? basename(options->file) : device_machine;
    for (int32_t p = 0; p < job->count && !file; p++)
        if (job->process[p].bus[0] == '\0')
            return TESS_OK;
    if (file)
        TESS_TRY(tess_topology_read(options->file, TESS_TOPOLOGY_AUTO, &how, topology_out));
    else
        *topology_out = device_look(job);
    if (*topology_out == NULL)
        return TESS_OK;
    const enum tess_status status =
        tess__place_match(job, *topology_out, *name_out, file ? options->hosts : "", device_out);
    if (status != TESS_OK) {
        tess_topology_free(*topology_out);
        *topology_out = NULL;
    }
    return status;
}

enum tess_status tess__place_by_machine(const struct tess__run *run,
                                        const struct tess__processes *job, int32_t *process_out)
{
    int32_t *device = device_list(job->count);
    struct tess_topology *topology = NULL;
    const char *name;

    if (device == NULL)
        return TESS_ERR_MEMORY;
    enum tess_status status =
        tess__place_machine(&run->config->placing, job, &name, device, &topology);
    if (topology != NULL) {
        tess__place_slow(topology, run->slowed);
        status = tess__place_map(run, job, topology, device, name, process_out);
    }
    free(device);
    return status;
}

/* ---- ranks that are started from here -------------------------------------------------------- */

static enum tess_status device_too_few(struct tess_topology *topology, const char *name,
                                       int32_t ranks)
{
    const enum tess_status status = tess_fail(TESS_ERR_USAGE,
                                              "%s has %d devices, and there are %d "
                                              "ranks",
                                              name, (int)topology->device_count, (int)ranks);

    tess_topology_free(topology);
    return status;
}

/* A file's first devices stand for those that this machine does not have. */
static enum tess_status device_imagine(const struct tess__run *run,
                                       const struct tess__processes *job, int32_t *process_out)
{
    const char *path = run->config->placing.file, *name = basename(path);
    const struct tess_topology_options how = {.per_host = job->count};
    struct tess_topology *topology = NULL;
    int32_t *device = device_list(job->count);
    enum tess_status status = TESS_ERR_MEMORY;

    if (device != NULL)
        status = tess_topology_read(path, TESS_TOPOLOGY_AUTO, &how, &topology);
    for (int32_t p = 0; p < job->count && device != NULL; p++)
        device[p] = p;
    if (status == TESS_OK && topology->device_count >= job->count)
        status = tess__place_map(run, job, topology, device, name, process_out);
    else if (status == TESS_OK)
        status = device_too_few(topology, name, job->count);
    free(device);
    return status;
}

enum tess_status tess__place_here(const struct tess_config *config, int32_t ranks,
                                  struct tess__processes *job)
{
    const struct tess_device_plan *plan = &config->device;

    TESS_TRY(tess__processes_open(job, ranks));
    (void)gethostname(job->hosts[0].name, sizeof(job->hosts[0].name) - 1);
    for (int32_t r = 0; r < ranks; r++) {
        job->process[r].local_rank = r;
        if (plan->module != NULL && !plan->missing)
            tess__place_bus(plan->info[plan->of_rank[r]].bus, job->process[r].bus);
    }
    tess__place_find_hosts(job);
    return TESS_OK;
}

/* process[r]: the process, and so the device, that rank r is to have; r before. */
static enum tess_status device_decide(const struct tess__run *run, const struct tess_config *config,
                                      bool real, int32_t *process)
{
    const struct tess_placing_options *options = &config->placing;
    struct tess__processes job;
    enum tess_status status = tess__place_here(config, run->rank_count, &job);

    if (status == TESS_OK && tess__place_order_file(options) != NULL)
        status = tess__place_read_order(&job, tess__place_order_file(options), process);
    else if (status == TESS_OK && real)
        status = tess__place_by_machine(run, &job, process);
    else if (status == TESS_OK && options->file[0] != '\0')
        status = device_imagine(run, &job, process);
    tess__processes_close(&job);
    return status;
}

/* Files that change nothing here, of one rank or in the natural order, are read all the same: one
 * that is not there is a mistake. */
static enum tess_status device_read_unused(const struct tess_config *config, int32_t ranks)
{
    const struct tess_placing_options *options = &config->placing;
    const struct tess_topology_options how = {.per_host = ranks};
    struct tess_topology *topology;
    struct tess__processes job;
    int32_t process;

    if (options->file[0] != '\0') {
        TESS_TRY(tess_topology_read(options->file, TESS_TOPOLOGY_AUTO, &how, &topology));
        tess_topology_free(topology);
    }
    if (tess__place_order_file(options) == NULL)
        return TESS_OK;
    enum tess_status status = tess__place_here(config, ranks, &job);
    if (status == TESS_OK)
        status = tess__place_read_order(&job, tess__place_order_file(options), &process);
    tess__processes_close(&job);
    return status;
}

enum tess_status tess__place_devices(const struct tess__run *run, struct tess_config *config)
{
    const struct tess_placing_options *options = &config->placing;
    struct tess_device_plan *plan = &config->device;
    const bool real = plan->module != NULL && !plan->missing && !plan->shared;
    const int32_t ranks = run->rank_count;

    if (config->started.starter != NULL)
        return TESS_OK;
    if (ranks < 2 || strcmp(options->order, "natural") == 0)
        return device_read_unused(config, ranks);
    int32_t *process = device_list(2 * ranks), *device = process + ranks;
    if (process == NULL)
        return TESS_ERR_MEMORY;
    for (int32_t r = 0; r < ranks; r++) {
        process[r] = r;
        device[r] = real ? plan->of_rank[r] : -1;
    }
    enum tess_status status = device_decide(run, config, real, process);
    run->placed->rank = calloc((size_t)ranks, sizeof(*run->placed->rank));
    if (status == TESS_OK && run->placed->rank == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for the order of %d ranks", (int)ranks);
    for (int32_t r = 0; r < ranks && status == TESS_OK; r++) {
        run->placed->rank[process[r]] = r;
        if (real)
            plan->of_rank[r] = device[process[r]];
    }
    run->placed->imagined = !real;
    free(process);
    return status;
}
