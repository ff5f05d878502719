/* This machine: GPUs by NVML that CUDA_VISIBLE_DEVICES leaves, else places on its processors. */
#include "topology/draw/topo.h"

#include "device/nvml.h"
#include "tessera/check.h"
#include "topology/hwloc/live.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Cores that this process may use, as many as are shown one by one. */
static int32_t live_places(void)
{
    cpu_set_t cores;
    CPU_ZERO(&cores);
    int count = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return count > TESS__TOPO_SHOWN_MAX ? TESS__TOPO_SHOWN_MAX : count < 1 ? 1 : count;
}

static void live_names(struct tess__topo *topo, const struct tess_live_device *device,
                       int32_t count)
{
    topo->model = calloc((size_t)count, sizeof(*topo->model));
    for (int32_t i = 0; topo->model && i < count; i++)
        for (int32_t k = 0; k < count; k++)
            if (device[k].index == topo->topology->node[topo->topology->device[i]].index)
                snprintf(topo->model[i], sizeof(topo->model[i]), "%s", device[k].name);
}

enum tess_status tess__topo_live(struct tess__topo *topo)
{
    char why[256] = "";
    struct tess_watch *watch = tess_watch_open(why, sizeof(why));
    struct tess_live_device *device = calloc(TESS_WATCH_DEVICES_MAX, sizeof(*device));
    int32_t count = 0;
    if (!device) {
        tess_watch_close(watch);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the machine's devices");
    }
    if (watch)
        count = tess_watch_links(watch, device);
    if (topo->visible && !topo->visible[0])
        count = 0;
    int32_t ranks = topo->options->ranks > 0 ? (int32_t)topo->options->ranks : live_places();
    enum tess_status status =
        tess_topology_live(device, count, count > 0 ? 0 : ranks, &topo->topology);
    if (status == TESS_OK && count > 0)
        live_names(topo, device, topo->topology->device_count);
    if (count == 0)
        topo->visible = NULL;
    if (gethostname(topo->source, sizeof(topo->source) - 1) != 0)
        snprintf(topo->source, sizeof(topo->source), "this machine");
    if (count == 0)
        snprintf(topo->why, sizeof(topo->why),
                 "no GPU is used (%s): devices are places of "
                 "ranks on the processors, --ranks of them",
                 why[0] ? why : "CUDA_VISIBLE_DEVICES hides all");
    if (status == TESS_OK)
        tess_topology_warn(topo->topology, topo->source);
    free(device);
    tess_watch_close(watch);
    return status;
}
