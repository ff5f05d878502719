/*
 * The choice of devices, see config_device.h. Its arithmetic is pure. Not here: loading a module
 * (device.c), and what a device computes.
 */
#include "core/config_device.h"

#include "base/options.h"
#include "comm/comm_mpi.h"
#include "core/config.h"
#include "core/registry.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The module that --device cuda means. */
#define DEVICE_MODULE "cuda"

/* In the order of the option's choices. */
enum { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

const char *tess_comm_choice_name(enum tess_comm_choice choice)
{
    static const char *const name[] = {"auto", "local", "tcp", "mpi", "nccl", "self"};

    return name[choice];
}

/* ---- ranks and devices ------------------------------------------------------------------------
 */

static bool device_all_reach(const struct tess_devices *devices, int32_t count)
{
    for (int32_t a = 0; a < count; a++)
        for (int32_t b = 0; b < count; b++)
            if (a != b && !devices->reaches[a][b])
                return false;
    return true;
}

/* Through memory that all ranks of one process reach. */
static enum tess_status device_plan_local(const struct tess_devices *devices, int32_t ranks,
                                          struct tess_device_plan *plan)
{
    if (!device_all_reach(devices, plan->count) && plan->shared)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%d ranks on %d devices share some of them, and then they talk through memory "
                  "that all can reach, but these devices do not reach each other's: give --ranks "
                  "%d or fewer, or show one device alone (CUDA_VISIBLE_DEVICES=0)",
                  ranks, plan->count, plan->count);
    if (!device_all_reach(devices, plan->count))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm local: the %d devices do not reach each other's memory; --comm nccl "
                  "connects them",
                  plan->count);
    plan->rank_mode = TESS_RANKS_THREADS;
    plan->comm = TESS_COMM_LOCAL;
    return TESS_OK;
}

/* Sockets and MPI take memory of the host alone. */
static enum tess_status device_carries(enum tess_comm_choice asked)
{
    if (asked == TESS_COMM_TCP || asked == TESS_COMM_MPI)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm %s carries the host's memory, and this run computes on devices: leave it "
                  "out, or give --device cpu",
                  tess_comm_choice_name(asked));
    return TESS_OK;
}

enum tess_status tess_device_plan_make(const struct tess_devices *devices, int32_t ranks,
                                       enum tess_rank_mode mode, enum tess_comm_choice asked,
                                       struct tess_device_plan *plan)
{
    plan->count = ranks < devices->count ? ranks : devices->count;
    plan->shared = ranks > devices->count;
    plan->rank_mode = mode;
    TESS_TRY(device_carries(asked));
    for (int32_t r = 0; r < ranks; r++)
        plan->of_rank[r] = (int32_t)((int64_t)r * plan->count / ranks);
    if (ranks == 1) {
        plan->comm = TESS_COMM_SELF;
        return TESS_OK;
    }
    if (plan->shared && asked == TESS_COMM_NCCL)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm nccl wants a device for each rank, and there %s %d for %d ranks: give "
                  "--ranks %d or fewer, or --comm local",
                  devices->count == 1 ? "is" : "are", devices->count, ranks, devices->count);
    if (plan->shared || asked == TESS_COMM_LOCAL)
        return device_plan_local(devices, ranks, plan);
    plan->comm = asked == TESS_COMM_AUTO && mode == TESS_RANKS_THREADS &&
                         device_all_reach(devices, plan->count)
                     ? TESS_COMM_LOCAL
                     : TESS_COMM_NCCL;
    return TESS_OK;
}

enum tess_status tess_device_plan_placed(const struct tess_devices *devices,
                                         const struct tess_place *place, enum tess_rank_mode mode,
                                         enum tess_comm_choice asked, struct tess_device_plan *plan)
{
    int32_t device = place->local_rank >= 0 ? place->local_rank : place->rank;

    TESS_TRY(device_carries(asked));
    if (mode == TESS_RANKS_THREADS || asked == TESS_COMM_LOCAL)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s has started %d processes, and %s wants its ranks as threads of one: leave %s "
                  "out and give --ranks %d",
                  place->starter, place->rank_count,
                  asked == TESS_COMM_LOCAL ? "--comm local" : "this strategy", place->starter,
                  place->rank_count);
    /* A starter may show each rank its own device alone, which is then the first (Slurm's
     * --gpus-per-task). Where that is not so, the ranks find out when they meet. */
    if (devices->count == 1)
        device = 0;
    if (device >= devices->count)
        TESS_FAIL(TESS_ERR_USAGE,
                  "rank %d would have device %d by its %s, and this machine has %d: start as many "
                  "ranks on each host as it has devices%s",
                  place->rank, device, place->local_rank >= 0 ? "place among its host's" : "number",
                  devices->count,
                  place->local_rank >= 0 ? "" : ", and say which is which (LOCAL_RANK)");
    plan->count = place->rank_count;
    plan->own = device;
    plan->shared = false;
    plan->rank_mode = TESS_RANKS_PROCESSES;
    plan->comm = TESS_COMM_NCCL;
    const struct tess_device_info own = devices->info[device];
    for (int32_t r = 0; r < place->rank_count; r++) {
        plan->of_rank[r] = r;
        plan->info[r] = own;
        plan->info[r].index = r;
        if (r != place->rank) /* taken to be alike, and not to be found here */
            plan->info[r].bus[0] = '\0';
    }
    return TESS_OK;
}

/* Ranks of several processes that share no memory. */
static enum tess_status device_plan_apart(const struct tess_place *place,
                                          enum tess_comm_choice asked,
                                          struct tess_device_plan *plan)
{
    char why[256] = "";
    const bool mpirun = strcmp(place->starter, "mpirun") == 0;

    plan->comm = TESS_COMM_TCP;
    if (asked == TESS_COMM_TCP || (asked == TESS_COMM_AUTO && !mpirun))
        return TESS_OK;
    if (tess_comm_mpi_there(plan->mpi, NULL, why, sizeof why))
        plan->comm = TESS_COMM_MPI;
    else if (asked == TESS_COMM_MPI)
        TESS_FAIL(TESS_ERR_USAGE, "--comm mpi: %s; --comm tcp needs nothing", why);
    return TESS_OK;
}

enum tess_status tess_device_plan_host(const struct tess_place *place, int32_t ranks,
                                       enum tess_rank_mode mode, enum tess_comm_choice asked,
                                       struct tess_device_plan *plan)
{
    const bool placed = place != NULL && place->starter != NULL;

    plan->rank_mode = mode;
    plan->comm = ranks == 1 ? TESS_COMM_SELF : TESS_COMM_LOCAL;
    if (placed && (mode == TESS_RANKS_THREADS || asked == TESS_COMM_LOCAL))
        TESS_FAIL(TESS_ERR_USAGE,
                  "%s has started %d processes, and %s wants ranks that share memory: leave %s out "
                  "and give --ranks %d%s",
                  place->starter, place->rank_count,
                  asked == TESS_COMM_LOCAL ? "--comm local" : "this strategy", place->starter,
                  place->rank_count, asked == TESS_COMM_LOCAL ? ", or leave --comm local out" : "");
    if (placed)
        return device_plan_apart(place, asked, plan);
    if (asked == TESS_COMM_MPI)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm mpi is for ranks that mpirun has started: leave --ranks out and run "
                  "mpirun -n %d in front, or give --comm local or tcp",
                  ranks);
    if (asked == TESS_COMM_TCP && mode == TESS_RANKS_THREADS)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm tcp connects processes, and this strategy wants its ranks as threads of "
                  "one: leave --comm out");
    if (asked == TESS_COMM_TCP && ranks > 1)
        plan->comm = TESS_COMM_TCP;
    return TESS_OK;
}

/* ---- what the machine has ---------------------------------------------------------------------
 */

/* The module answers without making this process one that computes on a device, so that ranks can
 * be forked from it. */
static void devices_ask(const struct tess_module *module, struct tess_devices *devices)
{
    memset(devices, 0, sizeof *devices);
    devices->count = module->device_count(devices->why, sizeof devices->why);
    devices->count = devices->count < 0                 ? 0
                     : devices->count > TESS_DEVICE_MAX ? TESS_DEVICE_MAX
                                                        : devices->count;
    for (int32_t d = 0; d < devices->count; d++) {
        if (module->device_info(d, &devices->info[d]) != TESS_OK) {
            devices->count = d; /* those before it are good */
            snprintf(devices->why, sizeof devices->why, "no device: device %d does not answer", d);
            return;
        }
        for (int32_t p = 0; p < d; p++) {
            devices->reaches[d][p] = module->device_reaches(d, p);
            devices->reaches[p][d] = module->device_reaches(p, d);
        }
    }
}

/* ---- the choice -------------------------------------------------------------------------------
 */

/* The kernel backend of the host when none is named: the fastest that is built. */
static const char *device_host_kernel(void)
{
    int count = 0;
    const char *const *name = tess_registry_names(TESS_REGISTRY_KERNEL, &count);

    for (int i = 0; i < count; i++)
        if (strcmp(name[i], "cpu") == 0)
            return name[i];
    return "ref";
}

static enum tess_status device_use_host(struct tess_config *config)
{
    struct tess_run_options *run = &config->run;
    struct tess_device_plan *plan = &config->device;

    if (run->comm == TESS_COMM_NCCL)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm nccl connects devices, and this run computes on the host%s%s: leave it "
                  "out",
                  plan->why[0] != '\0' ? ": " : "", plan->why);
    if (run->kernel[0] == '\0')
        run->kernel = device_host_kernel();
    TESS_TRY(tess_registry_get_kernel(run->kernel, &config->kernel));
    /* Far memory is memory of one process, whose ranks reach each other's. */
    const enum tess_rank_mode mode =
        config->kernel->far_memory ? TESS_RANKS_THREADS : config->strategy->rank_mode;
    plan->mpi = (enum tess_mpi_library)config->mpi.library;
    TESS_TRY(tess_device_plan_host(&config->place, (int32_t)run->ranks, mode,
                                   (enum tess_comm_choice)run->comm, plan));
    for (int32_t r = 0; r < TESS_DEVICE_MAX; r++)
        plan->of_rank[r] = -1;
    return TESS_OK;
}

/* Where measured products are kept for later runs: the user's cache, by the XDG base directory
 * specification. What cannot be written there costs a warning and is measured again. */
static void device_find_store(struct tess_config *config)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[sizeof config->cuda_store - 32];
    const bool own = cache != NULL && cache[0] == '/';
    if (!config->cuda.autotune || (!own && (home == NULL || home[0] != '/')))
        return;
    const int length =
        snprintf(folder, sizeof folder, "%s%s", own ? cache : home, own ? "" : "/.cache");
    if (length < 0 || (size_t)length + sizeof "/tessera" > sizeof folder)
        return;
    (void)mkdir(folder, 0700);
    memcpy(folder + length, "/tessera", sizeof "/tessera");
    (void)mkdir(folder, 0700);
    snprintf(config->cuda_store, sizeof config->cuda_store, "%s/cuda-products.txt", folder);
}

/* A plan for devices that are not here is made as if there were one for each rank. */
static enum tess_status device_use_module(struct tess_config *config,
                                          const struct tess_module *module,
                                          const struct tess_devices *found)
{
    static const struct tess_devices none = {.count = TESS_DEVICE_MAX};
    struct tess_device_plan *plan = &config->device;

    plan->module = module;
    plan->missing = found->count == 0;
    snprintf(plan->why, sizeof plan->why, "%s", plan->missing ? found->why : "");
    memcpy(plan->info, found->info, sizeof plan->info);
    config->run.kernel = DEVICE_MODULE;
    device_find_store(config);
    TESS_TRY(tess_registry_get_kernel(DEVICE_MODULE, &config->kernel));
    if (config->place.starter != NULL)
        return tess_device_plan_placed(plan->missing ? &none : found, &config->place,
                                       config->strategy->rank_mode,
                                       (enum tess_comm_choice)config->run.comm, plan);
    return tess_device_plan_make(plan->missing ? &none : found, (int32_t)config->run.ranks,
                                 config->strategy->rank_mode,
                                 (enum tess_comm_choice)config->run.comm, plan);
}

static enum tess_status device_check(const struct tess_config *config)
{
    const struct tess_run_options *run = &config->run;
    const bool module_kernel = strcmp(run->kernel, DEVICE_MODULE) == 0;

    if (run->device == DEVICE_CUDA && run->kernel[0] != '\0' && !module_kernel)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--device cuda has kernels of its own, and --kernel %s computes on the host: give "
            "one of the two",
            run->kernel);
    if (run->device == DEVICE_CPU && module_kernel)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--kernel cuda computes on a device and --device cpu on the host: give one of the "
            "two");
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
        TESS_TRY(tess_module_get(DEVICE_MODULE, &module));
        devices_ask(module, &found);
        return device_use_module(config, module, &found);
    }
    if (run->device == DEVICE_CPU)
        return device_use_host(config);
    if (run->kernel[0] != '\0') {
        snprintf(plan->why, sizeof plan->why, "--kernel %s is the host's", run->kernel);
        return device_use_host(config);
    }
    module = tess_module_find(DEVICE_MODULE, plan->why, sizeof plan->why);
    if (module == NULL)
        return device_use_host(config);
    devices_ask(module, &found);
    if (found.count > 0)
        return device_use_module(config, module, &found);
    snprintf(plan->why, sizeof plan->why, "%s", found.why);
    return device_use_host(config);
}

/* The order of MPI's own sums is MPI's affair. */
static enum tess_status device_check_native(const struct tess_config *config)
{
    if (!config->mpi.native)
        return TESS_OK;
    if (config->device.comm != TESS_COMM_MPI)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--comm.mpi.native asks for MPI's own collectives, and these ranks talk by --comm "
            "%s: leave it out",
            tess_comm_choice_name(config->device.comm));
    if (config->run.reduce == 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm.mpi.native leaves the order of sums to MPI, and --reduce canonical "
                  "promises one: give --reduce fast, or leave --comm.mpi.native out");
    return TESS_OK;
}

enum tess_status tess__config_device(struct tess_config *config)
{
    TESS_TRY(device_choose(config));
    return device_check_native(config);
}

void tess_config_renumber(struct tess_config *config, int32_t rank)
{
    const int32_t before = config->place.rank;
    struct tess_device_info *info = config->device.info;

    config->place.rank = rank;
    if (config->device.module == NULL || before == rank)
        return;
    memcpy(info[rank].bus, info[before].bus, sizeof info[rank].bus);
    info[before].bus[0] = '\0'; /* not to be found here any more */
}

enum tess_status tess_config_select_device(const struct tess_config *config, int32_t rank)
{
    const struct tess_device_plan *plan = &config->device;

    if (plan->module == NULL)
        return TESS_OK;
    if (plan->missing)
        TESS_FAIL(TESS_ERR_DEVICE, "%s; --device cpu computes on the host", plan->why);
    return plan->module->device_select(config->place.starter != NULL ? plan->own
                                                                     : plan->of_rank[rank]);
}
