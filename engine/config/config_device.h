/* Where a run computes: devices of its ranks, processes or threads, and their communicator. */
#ifndef TESSERA_CONFIG_CONFIG_DEVICE_H
#define TESSERA_CONFIG_CONFIG_DEVICE_H

#include "config/config_comm.h"
#include "tessera/device.h"
#include "tessera/strategy.h"

struct tess_config;

/* The devices of this machine, as its module finds them. */
struct tess_devices {
    int32_t count; /* 0: none that can be used, and `why` has what is missing, in a sentence */
    char why[256];
    struct tess_device_info info[TESS_DEVICE_MAX];
    bool reaches[TESS_DEVICE_MAX][TESS_DEVICE_MAX]; /* [device, peer] */
};

/* This process is one rank of a job that another program started, with the others elsewhere. */
struct tess_started {
    const char *starter; /* "torchrun", "mpirun", "Slurm"; NULL: no, ranks are started from here */
    int32_t rank, rank_count;
    int32_t local_rank; /* among the ranks of this host; -1: unknown */
    int32_t host_count; /* of the job; 0: unknown */
    int32_t rank_cores; /* that the starter gives each rank; 0: unknown */
    bool may_divide;    /* one process on each host may start a part of --ranks instead */
    /* The value of an option, once it is read: on so many hosts a process like this one starts a
     * part of --ranks. NULL: there is none. */
    const int64_t *hosts;
    /* Set by tess_config_open_placed: this process starts the ranks of its host, one process each,
     * and is planned as the first of them. */
    bool supervises;
};

struct tess_device_plan {
    const struct tess_module *module; /* NULL: on the host */
    int32_t count;                    /* devices in use; 0 on the host */
    int32_t *of_rank;                 /* [ranks] device; -1 on the host */
    int32_t own;  /* of a rank in its place: its device, as numbered here; in of_rank and info every
                     rank's has its rank's number */
    bool shared;  /* some device has several ranks */
    bool missing; /* planned for devices that are not here: nothing can run */
    bool unlisted; /* set by the caller: of_rank and info stay NULL, as only memory is planned */
    enum tess_rank_mode rank_mode;
    const char *by_threads; /* what needs ranks as threads, for messages; NULL: the strategy */
    const struct tess_communicator_ops *comm;     /* how the ranks exchange data */
    const struct tess_comm_options *comm_options; /* set by the caller, borrowed */
    char why[256];                 /* on the host: why not on a device; missing: what is missing */
    struct tess_device_info *info; /* [count]; all zero if missing */
};

/* Free what the functions below have put into a plan; a zeroed one is allowed. */
void tess_device_plan_free(struct tess_device_plan *plan);

/*
 * Ranks to devices, N ranks and D devices of one machine:
 *
 *     N <= D    rank r has device r
 *     N > D     blocks of ranks as equal as can be: rank r has device r D / N
 *
 *     5 ranks on 2 devices     0 1 2 | 3 4
 *
 * Ranks that share a device must share memory, so they are threads of one process and communicate
 * through it, which also their peers on other devices must do. Ranks with a device each are
 * processes unless the strategy needs threads. `asked` is --comm: "auto" takes the first
 * communicator of the list that fits.
 *
 * Fills count, of_rank, info, shared, rank_mode and comm of the plan. TESS_ERR_USAGE with what
 * fits, TESS_ERR_MEMORY. Pure.
 */
enum tess_status tess_device_plan_make(const struct tess_devices *devices, int32_t ranks,
                                       enum tess_rank_mode mode, const char *asked,
                                       struct tess_device_plan *plan);

/* The same for a rank in its place: it has the device of its number among the ranks of its host,
 * or the only one that it is shown, and a process of its own. Pure. */
enum tess_status tess_device_plan_placed(const struct tess_devices *devices,
                                         const struct tess_started *place, enum tess_rank_mode mode,
                                         const char *asked, struct tess_device_plan *plan);

/*
 * How ranks on the host exchange data; `place` NULL or without a starter: this program starts them.
 * Fills of_rank, rank_mode and comm of the plan. TESS_ERR_USAGE with what fits, TESS_ERR_MEMORY.
 */
enum tess_status tess_device_plan_host(const struct tess_started *place, int32_t ranks,
                                       enum tess_rank_mode mode, const char *asked,
                                       struct tess_device_plan *plan);

/* Which backend of kernels, on which devices: by --device, --kernel and --comm, and by what this
 * machine has. Fills config->kernel and config->device, and --kernel where it was not given. */
enum tess_status tess__config_device(struct tess_config *config);

/* A rank in its place gets another number, before it runs. */
void tess_config_renumber(struct tess_config *config, int32_t rank);

/* The calling thread computes on the rank's device from here on: before it opens kernels. Nothing
 * to do on the host. TESS_ERR_DEVICE where the plan's devices are not here. */
enum tess_status tess_config_select_device(const struct tess_config *config, int32_t rank);

#endif
