/*
 * NCCL's own choice of rings, replaced: a graph file, which it reads whenever a communicator is
 * started while NCCL_GRAPH_FILE is set, and refuses where a device in it is not the communicator's.
 * So the variable is set around the start of the group of all ranks alone, and not for the groups
 * that are split off.
 *
 * The file is memory that the ranks inherit: nothing is left behind however they end.
 */
#include "job/place.h"

#include "base/file.h"
#include "tessera/check.h"
#include "topology/map/map.h"
#include "topology/rings/nccl_choice.h"
#include "topology/rings/ring.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GRAPH_GAIN 1.001 /* less is no gain */

static const char graph_variable[] = "NCCL_GRAPH_FILE";

/* Does NCCL start here, one process a rank, with all ranks on this host? Else `why`. */
static bool graph_fits(const struct tess__run *run, char *why, size_t why_bytes)
{
    const struct tess_device_plan *plan = &run->config->device;

    if (!plan->comm->nccl || plan->missing)
        snprintf(why, why_bytes, "these ranks do not use NCCL");
    else if (plan->rank_mode != TESS_RANKS_PROCESSES)
        snprintf(why, why_bytes, "ranks are threads of one process");
    else if (run->peers != NULL && run->placed->host_size != run->rank_count)
        snprintf(why, why_bytes, "ranks are on several hosts");
    else if (getenv(graph_variable) != NULL || getenv("NCCL_TOPO_FILE") != NULL)
        snprintf(why, why_bytes, "%s is set",
                 getenv(graph_variable) != NULL ? graph_variable : "NCCL_TOPO_FILE");
    else
        return true;
    return false;
}

static enum tess_status graph_keep(const char *text, struct tess__placement *placed)
{
    const int fd = memfd_create("tessera-nccl-graph", MFD_CLOEXEC);

    if (fd < 0)
        TESS_FAIL(TESS_ERR_IO, "no memory for NCCL's graph file: %s", strerror(errno));
    const int error = tess_file_append(fd, text, strlen(text));
    if (error != 0) {
        close(fd);
        TESS_FAIL(TESS_ERR_IO, "cannot write NCCL's graph file: %s", strerror(error));
    }
    placed->graph_fd = fd;
    return TESS_OK;
}

/* What NCCL would reach by itself, 10^9 bytes/s: by a model of its search, where that covers
 * such a machine, and at least the order of the devices' numbers. */
static enum tess_status graph_of_nccl(const struct tess_routes *routes,
                                      const struct tess_rings *rings, double *gbs_out)
{
    struct tess__nccl_choice *nccl = calloc(1, sizeof(*nccl));

    if (nccl == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the search of NCCL's rings");
    const enum tess_status status = tess__nccl_choose(routes, nccl);
    *gbs_out = fmax(nccl->channels * nccl->speed, rings->natural.gbs);
    free(nccl);
    return status;
}

/* Of a topology of these devices alone. */
static enum tess_status graph_make(struct tess_topology *topology, struct tess__placement *placed)
{
    const struct tess_ring_search search = {.rings = TESS_RINGS_MAX};
    struct tess_routes routes = {0};
    struct tess_rings rings = {0};
    double nccl_gbs = 0;
    char *text = NULL;

    TESS_TRY(tess_routes_open(topology, &routes));
    enum tess_status status = tess_rings_find(&routes, &search, &rings);
    if (status == TESS_OK)
        status = graph_of_nccl(&routes, &rings, &nccl_gbs);
    if (status == TESS_OK && rings.total_gbs > GRAPH_GAIN * nccl_gbs)
        status = tess_rings_write_nccl_graph(topology, &routes, &rings, &text);
    if (status == TESS_OK && text != NULL)
        status = graph_keep(text, placed);
    if (status == TESS_OK)
        tess_log(
            TESS_LOG_INFO,
            "--topology.nccl-graph: %d ring%s of %.4g GB/s together, by itself NCCL has %.4g%s",
            (int)rings.ring_count, rings.ring_count == 1 ? "" : "s", rings.total_gbs, nccl_gbs,
            text != NULL ? "" : ": it is left to itself");
    free(text);
    tess_rings_free(&rings);
    tess_routes_free(&routes);
    return status;
}

/* Of the devices of this job; `device` [ranks]: scratch. */
static enum tess_status graph_of_job(const struct tess__run *run, struct tess__processes *job,
                                     int32_t *device)
{
    struct tess_topology *topology;
    const char *name;

    for (int32_t r = 0; r < run->rank_count && run->peers != NULL; r++)
        memcpy(job->process[r].bus, run->placed->bus[r], sizeof(job->process[r].bus));
    TESS_TRY(tess__place_machine(&run->config->placing, job, &name, device, &topology));
    if (topology == NULL) {
        tess_log(TESS_LOG_WARN, "--topology.nccl-graph does nothing: how the devices are joined is "
                                "not known; --topology.file describes it");
        return TESS_OK;
    }
    enum tess_status status = tess_topology_select(topology, device, run->rank_count);
    if (status == TESS_OK)
        status = graph_make(topology, run->placed);
    tess_topology_free(topology);
    return status;
}

enum tess_status tess__place_graph(const struct tess__run *run)
{
    struct tess__processes job;
    char why[96];

    if (!run->config->placing.nccl_graph || run->rank_count < 2)
        return TESS_OK;
    if (!graph_fits(run, why, sizeof(why))) {
        tess_log(TESS_LOG_WARN, "--topology.nccl-graph does nothing: %s", why);
        return TESS_OK;
    }
    TESS_TRY(tess__place_here(run->config, run->rank_count, &job));
    int32_t *device = calloc((size_t)run->rank_count, sizeof(*device));
    const enum tess_status status =
        device != NULL ? graph_of_job(run, &job, device)
                       : tess_fail(TESS_ERR_MEMORY, "no memory for NCCL's graph file");
    free(device);
    tess__processes_close(&job);
    return status;
}

void tess__place_graph_set(const struct tess__placement *placed, bool on)
{
    char path[32];

    if (placed->graph_fd <= 0)
        return;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", placed->graph_fd);
    if (on)
        setenv(graph_variable, path, 1);
    else
        unsetenv(graph_variable);
}
