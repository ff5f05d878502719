/* The choice of devices, communicator and kernels of a run. */
#include "config/config_device.h"

#include "base/file.h"
#include "base/options.h"
#include "config/config.h"
#include "config/registry.h"
#include "device/device.h"
#include "needs/planned.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The module that --device cuda means. */
#define DEVICE_MODULE "cuda"

/* In the order of the option's choices. */
enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

/* ---- ranks, devices and communicators ------------------------------------------------------- */

void tess_device_plan_free(struct tess_device_plan *plan)
{
    free(plan->of_rank);
    free(plan->info);
    plan->of_rank = NULL;
    plan->info = NULL;
}

/* plan->count is known. */
static enum tess_status device_reserve(struct tess_device_plan *plan, int32_t ranks)
{
    tess_device_plan_free(plan);
    if (plan->unlisted)
        return TESS_OK;
    plan->of_rank = calloc((size_t)ranks, sizeof(*plan->of_rank));
    plan->info = calloc((size_t)plan->count + 1, sizeof(*plan->info));
    if (plan->of_rank == NULL || plan->info == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the devices of %d ranks", (int)ranks);
    return TESS_OK;
}

static bool device_all_reach(const struct tess_devices *devices, int32_t count)
{
    count = count < TESS_DEVICE_MAX ? count : TESS_DEVICE_MAX;
    for (int32_t a = 0; a < count; a++)
        for (int32_t b = 0; b < count; b++)
            if (a != b && !devices->reaches[a][b])
                return false;
    return true;
}

/* The communicator of one rank alone. */
static enum tess_status device_comm_alone(struct tess_device_plan *plan, bool device)
{
    struct tess_comm_ask ask = {
        .options = plan->comm_options, .device = device, .ranks = TESS_COMM_ALONE};

    plan->comm = tess_comm_first(&ask);
    if (plan->comm == NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "there is no communicator for one rank");
    return TESS_OK;
}

/* --comm for ranks on devices; NULL: auto. */
static enum tess_status device_comm_named(const char *asked,
                                          const struct tess_communicator_ops **kind_out)
{
    TESS_TRY(tess_comm_named(asked, kind_out));
    if (*kind_out != NULL && (*kind_out)->device == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm %s carries the host's memory, and this run computes on devices: leave it "
                  "out, or give --device cpu",
                  asked);
    return TESS_OK;
}

/* Which communicator, for several ranks on devices; plan->shared and rank_mode are known. */
static enum tess_status device_comm(const struct tess_devices *devices, int32_t ranks,
                                    const struct tess_communicator_ops *kind,
                                    struct tess_device_plan *plan)
{
    struct tess_comm_ask ask = {
        .options = plan->comm_options,
        .device = true,
        .all_reach = device_all_reach(devices, plan->count),
        .ranks = plan->shared                            ? TESS_COMM_SHARED_DEVICE
                 : plan->rank_mode == TESS_RANKS_THREADS ? TESS_COMM_THREADS
                                                         : TESS_COMM_PROCESSES,
    };

    plan->comm = kind != NULL ? kind : tess_comm_first(&ask);
    if (!ask.all_reach && plan->shared && (plan->comm == NULL || plan->comm->all_reach))
        TESS_FAIL(TESS_ERR_USAGE,
                  "%d ranks on %d devices share some of them, and then they communicate through "
                  "memory that all can reach, but these devices do not reach each other's: give "
                  "--ranks %d or fewer, or show one device alone (CUDA_VISIBLE_DEVICES=0)",
                  ranks, plan->count, plan->count);
    if (kind != NULL && kind->all_reach && !ask.all_reach)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--comm %s: the %d devices do not reach each other's memory; --comm nccl connects them",
            kind->name, plan->count);
    if (plan->comm == NULL || (plan->comm->device & ask.ranks) == 0)
        TESS_FAIL(TESS_ERR_USAGE, "--comm %s does not connect %d ranks that are %s: leave it out",
                  kind != NULL ? kind->name : "auto", ranks,
                  plan->rank_mode == TESS_RANKS_THREADS ? "threads" : "processes");
    return TESS_OK;
}

enum tess_status tess_device_plan_make(const struct tess_devices *devices, int32_t ranks,
                                       enum tess_rank_mode mode, const char *asked,
                                       struct tess_device_plan *plan)
{
    const struct tess_communicator_ops *kind;

    const int32_t have = plan->missing && ranks > devices->count ? ranks : devices->count;
    plan->count = ranks < have ? ranks : have;
    plan->shared = ranks > have;
    plan->rank_mode = mode;
    TESS_TRY(device_comm_named(asked, &kind));
    TESS_TRY(device_reserve(plan, ranks));
    for (int32_t r = 0; r < ranks && !plan->unlisted; r++)
        plan->of_rank[r] = (int32_t)((int64_t)r * plan->count / ranks);
    for (int32_t d = 0; d < plan->count && !plan->missing && !plan->unlisted; d++)
        plan->info[d] = devices->info[d];
    if (ranks == 1)
        return device_comm_alone(plan, true);
    if (plan->shared && kind != NULL && (kind->device & TESS_COMM_SHARED_DEVICE) == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm %s needs a device for each rank, and there %s %d for %d ranks: give "
                  "--ranks %d or fewer, or --comm local",
                  kind->name, devices->count == 1 ? "is" : "are", devices->count, ranks,
                  devices->count);
    if (plan->shared || (kind != NULL && (kind->device & TESS_COMM_PROCESSES) == 0))
        plan->rank_mode = TESS_RANKS_THREADS;
    return device_comm(devices, ranks, kind, plan);
}

static const char *device_by_threads(const struct tess_device_plan *plan)
{
    return plan->by_threads != NULL ? plan->by_threads : "this strategy";
}

enum tess_status tess_device_plan_placed(const struct tess_devices *devices,
                                         const struct tess_started *place, enum tess_rank_mode mode,
                                         const char *asked, struct tess_device_plan *plan)
{
    struct tess_comm_ask ask = {.options = plan->comm_options,
                                .device = true,
                                .starter = place->starter,
                                .ranks = TESS_COMM_STARTED};
    int32_t device = place->local_rank >= 0 ? place->local_rank : place->rank;
    const struct tess_communicator_ops *kind;

    TESS_TRY(device_comm_named(asked, &kind));
    const bool apart = kind == NULL || (kind->device & TESS_COMM_STARTED) != 0;
    if (mode == TESS_RANKS_THREADS || !apart)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s has started %d processes, and %s%s needs its ranks as threads of one: leave "
                  "%s out and give --ranks %d",
                  place->starter, place->rank_count, apart ? device_by_threads(plan) : "--comm ",
                  apart ? "" : kind->name, place->starter, place->rank_count);
    /* A starter may show each rank its own device alone, which is then the first (Slurm's
     * --gpus-per-task). Where that is not so, the ranks detect it when they meet. */
    if (devices->count == 1)
        device = 0;
    if (device >= devices->count)
        TESS_FAIL(TESS_ERR_USAGE,
                  "rank %d would have device %d by its %s, and this machine has %d: start as many "
                  "ranks on each host as it has devices%s",
                  place->rank, device, place->local_rank >= 0 ? "place among its host's" : "number",
                  devices->count,
                  place->local_rank >= 0 ? "" : ", and set which is which (LOCAL_RANK)");
    plan->count = place->rank_count;
    plan->own = device;
    plan->shared = false;
    plan->rank_mode = TESS_RANKS_PROCESSES;
    plan->comm = kind != NULL ? kind : tess_comm_first(&ask);
    if (plan->comm == NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "no communicator connects devices of several processes");
    TESS_TRY(device_reserve(plan, place->rank_count));
    const struct tess_device_info own = devices->info[device];
    for (int32_t r = 0; r < place->rank_count && !plan->unlisted; r++) {
        plan->of_rank[r] = r;
        plan->info[r] = own;
        plan->info[r].index = r;
        if (r != place->rank) /* taken to be alike, and not to be found here */
            plan->info[r].bus[0] = '\0';
    }
    return TESS_OK;
}

/* Ranks of several processes that share no memory. */
static enum tess_status device_plan_apart(const struct tess_started *place,
                                          const struct tess_communicator_ops *kind,
                                          struct tess_device_plan *plan)
{
    struct tess_comm_ask ask = {
        .options = plan->comm_options, .starter = place->starter, .ranks = TESS_COMM_STARTED};
    const bool apart = kind == NULL || (kind->host & TESS_COMM_STARTED) != 0;

    if (plan->rank_mode == TESS_RANKS_THREADS || !apart)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s has started %d processes, and %s%s needs ranks that share memory: leave %s "
                  "out and give --ranks %d%s%s%s",
                  place->starter, place->rank_count, apart ? device_by_threads(plan) : "--comm ",
                  apart ? "" : kind->name, place->starter, place->rank_count,
                  apart ? "" : ", or leave --comm ", apart ? "" : kind->name, apart ? "" : " out");
    plan->comm = kind != NULL ? kind : tess_comm_first(&ask);
    if (plan->comm == NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "no communicator connects processes that %s started: %s",
                  place->starter, ask.why);
    if (kind != NULL &&
        !kind->usable(tess_comm_options_of(plan->comm_options, kind), ask.why, sizeof(ask.why)))
        TESS_FAIL(TESS_ERR_USAGE, "--comm %s: %s; --comm tcp needs nothing", kind->name, ask.why);
    return TESS_OK;
}

/* Does --comm connect ranks that this program starts on the host? */
static enum tess_status device_check_host(const struct tess_communicator_ops *kind, int32_t ranks,
                                          const struct tess_device_plan *plan)
{
    if ((kind->host & (TESS_COMM_ALONE | TESS_COMM_THREADS | TESS_COMM_PROCESSES)) == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm %s is for ranks that mpirun has started: leave --ranks out and run "
                  "mpirun -n %d in front, or give --comm local or tcp",
                  kind->name, ranks);
    if (plan->rank_mode == TESS_RANKS_THREADS &&
        (kind->host & (TESS_COMM_ALONE | TESS_COMM_THREADS)) == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm %s connects processes, and %s needs its ranks as threads of one: leave "
                  "--comm out",
                  kind->name, device_by_threads(plan));
    if (ranks > 1 && (kind->host & (TESS_COMM_THREADS | TESS_COMM_PROCESSES)) == 0)
        TESS_FAIL(TESS_ERR_USAGE, "--comm %s is for one rank, and there are %d: leave it out",
                  kind->name, ranks);
    return TESS_OK;
}

enum tess_status tess_device_plan_host(const struct tess_started *place, int32_t ranks,
                                       enum tess_rank_mode mode, const char *asked,
                                       struct tess_device_plan *plan)
{
    struct tess_comm_ask ask = {.options = plan->comm_options,
                                .ranks = mode == TESS_RANKS_THREADS ? TESS_COMM_THREADS
                                                                    : TESS_COMM_PROCESSES};
    const struct tess_communicator_ops *kind;

    plan->rank_mode = mode;
    TESS_TRY(device_reserve(plan, ranks));
    for (int32_t r = 0; r < ranks && !plan->unlisted; r++)
        plan->of_rank[r] = -1;
    TESS_TRY(tess_comm_named(asked, &kind));
    if (kind != NULL && kind->host == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm %s connects devices, and this run computes on the host%s%s: leave it out",
                  kind->name, plan->why[0] != '\0' ? ": " : "", plan->why);
    if (place != NULL && place->starter != NULL)
        return device_plan_apart(place, kind, plan);
    if (kind != NULL)
        TESS_TRY(device_check_host(kind, ranks, plan));
    if (ranks == 1)
        return device_comm_alone(plan, false);
    plan->comm = kind != NULL ? kind : tess_comm_first(&ask);
    if (plan->comm == NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "no communicator connects ranks on this host: %s", ask.why);
    return TESS_OK;
}

/* ---- what the machine has -------------------------------------------------------------------- */

/* The module answers without making this process one that computes on a device, so that ranks can
 * be forked from it. */
static void devices_ask(const struct tess_module *module, struct tess_devices *devices)
{
    devices->why[0] = '\0'; /* beyond count nothing is looked at */
    devices->count = module->device_count(devices->why, sizeof(devices->why));
    devices->count = devices->count < 0                 ? 0
                     : devices->count > TESS_DEVICE_MAX ? TESS_DEVICE_MAX
                                                        : devices->count;
    for (int32_t d = 0; d < devices->count; d++) {
        devices->info[d] = (struct tess_device_info){0};
        if (module->device_info(d, &devices->info[d]) != TESS_OK) {
            devices->count = d; /* those before it are good */
            snprintf(devices->why, sizeof(devices->why), "no device: device %d does not answer", d);
            return;
        }
        for (int32_t p = 0; p < d; p++) {
            devices->reaches[d][p] = module->device_reaches(d, p);
            devices->reaches[p][d] = module->device_reaches(p, d);
        }
    }
}

/* ---- the choice ------------------------------------------------------------------------------ */

static enum tess_status device_use_host(struct tess_config *config)
{
    struct tess_run_options *run = &config->run;
    struct tess_device_plan *plan = &config->device;

    if (run->kernel[0] == '\0') /* the fastest that is built */
        run->kernel = tess_registry_summary(TESS_REGISTRY_KERNEL, "cpu")[0] != '\0' ? "cpu" : "ref";
    TESS_TRY(tess_registry_get_kernel(run->kernel, &config->kernel));
    /* Far memory is memory of one process, whose ranks reach each other's. */
    const enum tess_rank_mode mode =
        config->kernel->far_memory ? TESS_RANKS_THREADS : config->strategy->rank_mode;
    if (config->kernel->far_memory && config->strategy->rank_mode != TESS_RANKS_THREADS)
        config->device.by_threads = "this --kernel";
    return tess_device_plan_host(&config->started, (int32_t)run->ranks, mode, run->comm, plan);
}

/* Where measured products, and choices of attention, are kept for later runs. What cannot be
 * written there costs a warning and is measured again. */
static void device_find_store(struct tess_config *config)
{
    const bool measures = config->cuda.autotune || config->cuda.attention == TESS_ATTENTION_AUTO;
    if (!measures ||
        !tess_file_cache("cuda-products.txt", true, config->cuda_store, sizeof(config->cuda_store)))
        config->cuda_store[0] = '\0';
}

/* A plan for devices that are not here is made as if there were one for each rank. */
static enum tess_status device_use_module(struct tess_config *config,
                                          const struct tess_module *module,
                                          const struct tess_devices *found)
{
    static const struct tess_devices none = {.count = TESS_DEVICE_MAX};
    struct tess_device_plan *plan = &config->device;
    plan->module = module;
    plan->missing = found->count == 0 ||
                    (config->started.starter == NULL && config->run.ranks > TESS_DEVICE_MAX);
    snprintf(plan->why, sizeof(plan->why), "%s",
             found->count == 0 ? found->why
             : plan->missing   ? "no host has devices for so many ranks"
                               : "");
    config->run.kernel = DEVICE_MODULE;
    device_find_store(config);
    if (module == &tess__cuda_planned)
        config->kernel = module->kernel;
    else
        TESS_TRY(tess_registry_get_kernel(DEVICE_MODULE, &config->kernel));
    if (config->started.starter != NULL)
        return tess_device_plan_placed(plan->missing ? &none : found, &config->started,
                                       config->strategy->rank_mode, config->run.comm, plan);
    return tess_device_plan_make(plan->missing ? &none : found, (int32_t)config->run.ranks,
                                 config->strategy->rank_mode, config->run.comm, plan);
}

static enum tess_status device_check(const struct tess_config *config)
{
    const struct tess_run_options *run = &config->run;
    const bool module_kernel = strcmp(run->kernel, DEVICE_MODULE) == 0;
    if (run->device == DEVICE_CUDA && run->kernel[0] != '\0' && !module_kernel)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--device cuda has kernels of its own, and --kernel %s computes on the host: "
                  "give one of the two",
                  run->kernel);
    if (run->device == DEVICE_CPU && module_kernel)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--kernel cuda computes on a device and --device cpu on the host: give one of the two");
    return TESS_OK;
}

static enum tess_status device_choose(struct tess_config *config)
{
    const struct tess_run_options *run = &config->run;
    const struct tess_module *module = NULL;
    struct tess_devices found;
    struct tess_device_plan *plan = &config->device;
    TESS_TRY(device_check(config));
    if (run->device == DEVICE_CUDA || strcmp(run->kernel, DEVICE_MODULE) == 0) {
        char why[sizeof(found.why)];
        module = tess_module_find(DEVICE_MODULE, why, sizeof(why));
        devices_ask(module != NULL ? module : &tess__cuda_planned, &found);
        if (module == NULL) /* the reason, where it will not run */
            memcpy(found.why, why, sizeof(why));
        return device_use_module(config, module != NULL ? module : &tess__cuda_planned, &found);
    }
    if (run->device == DEVICE_CPU)
        return device_use_host(config);
    if (run->kernel[0] != '\0') {
        snprintf(plan->why, sizeof(plan->why), "--kernel %s is the host's", run->kernel);
        return device_use_host(config);
    }
    if (tess__module_is_there(DEVICE_MODULE) && !tess__driver_is_there()) {
        snprintf(plan->why, sizeof(plan->why),
                 "there is no NVIDIA driver (no libcuda.so.1): install it until nvidia-smi works, "
                 "or start the container with --gpus all");
        return device_use_host(config);
    }
    module = tess_module_find(DEVICE_MODULE, plan->why, sizeof(plan->why));
    if (module == NULL)
        return device_use_host(config);
    devices_ask(module, &found);
    if (found.count > 0)
        return device_use_module(config, module, &found);
    snprintf(plan->why, sizeof(plan->why), "%s", found.why);
    return device_use_host(config);
}

enum tess_status tess__config_device(struct tess_config *config)
{
    config->device.comm_options = &config->comm;
    if (config->started.supervises)
        config->started.rank_count = (int32_t)config->run.ranks;
    TESS_TRY(device_choose(config));
    return tess_comm_options_check(&config->comm, config->device.comm,
                                   config->run.reduce == 0 ? TESS_ORDER_CANONICAL
                                                           : TESS_ORDER_FAST);
}

void tess_config_renumber(struct tess_config *config, int32_t rank)
{
    const int32_t before = config->started.rank;
    struct tess_device_info *info = config->device.info;
    config->started.rank = rank;
    if (config->device.module == NULL || before == rank)
        return;
    memcpy(info[rank].bus, info[before].bus, sizeof(info[rank].bus));
    info[before].bus[0] = '\0'; /* not to be found here any more */
}

enum tess_status tess_config_select_device(const struct tess_config *config, int32_t rank)
{
    const struct tess_device_plan *plan = &config->device;
    if (plan->module == NULL)
        return TESS_OK;
    if (plan->missing)
        TESS_FAIL(TESS_ERR_DEVICE, "%s; --device cpu computes on the host", plan->why);
    return plan->module->device_select(config->started.starter != NULL ? plan->own
                                                                       : plan->of_rank[rank],
                                       plan->comm == NULL || plan->comm->nccl);
}
