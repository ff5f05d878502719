/*
 * A kind of communicator, as --comm names it: a struct tess_communicator_ops, and a line in
 * engine/comm/list.h or a call of tess_registry_add_communicator.
 *
 * Call order: usable while the communicator of a run is chosen, check when it is, then open in
 * every rank. A kind whose processes only exchange messages fills a struct tess_transport
 * (tessera/transport.h) and leaves the collectives to tess_comm_net_open.
 */
#ifndef TESSERA_COMMUNICATOR_H
#define TESSERA_COMMUNICATOR_H

#include "tessera/comm.h"
#include "tessera/device.h"
#include "tessera/option.h"

TESS_BEGIN_DECLS

/* Which ranks a communicator connects; a set of these. */
enum tess_comm_ranks {
    TESS_COMM_ALONE = 1,         /* one rank */
    TESS_COMM_THREADS = 2,       /* threads of one process */
    TESS_COMM_PROCESSES = 4,     /* processes on this host, started by this program */
    TESS_COMM_STARTED = 8,       /* processes that mpirun, srun or torchrun started, on any hosts */
    TESS_COMM_SHARED_DEVICE = 16 /* threads of one process, several on one device */
};

/* What open is given. Everything is borrowed until open returns; world until close. */
struct tess_comm_request {
    const void *options; /* the kind's own; never NULL */
    int32_t rank, rank_count;
    enum tess_order order;
    double timeout_s;                 /* how long a wait may last, at set-up and later */
    const struct tess_boot *boot;     /* over all ranks; NULL unless the kind needs it */
    struct tess_world *world;         /* of this process's ranks */
    bool started;                     /* TESS_COMM_STARTED: the world is of this rank alone */
    int32_t rack_hosts;               /* for struct tess_transport */
    const struct tess_module *module; /* of the ranks' devices, already selected; NULL: host */
};

struct tess_communicator_ops {
    uint32_t abi;
    const char *name;    /* REQUIRED */
    const char *summary; /* REQUIRED */
    /* Sets of enum tess_comm_ranks: of ranks that compute on the host, and on devices. One of the
     * two is REQUIRED. --comm auto takes the first kind of the list that fits. */
    uint32_t host, device;
    bool all_reach; /* on devices: each device must reach the memory of all others */
    bool boot;      /* open needs request->boot */
    /* On devices: by NCCL, which reads NCCL_GRAPH_FILE, and whose kernels wait for other ranks'. */
    bool nccl;
    /* OPTIONAL: --comm auto takes it for ranks of this starter only ("mpirun"). */
    const char *starter;
    /* OPTIONAL: options --comm.<name>.*, and the size of the struct that holds their values. */
    const struct tess_option *options;
    size_t options_size;
    /* OPTIONAL, default: yes. Can this process use it? On false `why` is one sentence. Quiet. */
    bool (*usable)(const void *options, char *why, size_t why_bytes);
    /* OPTIONAL, default: yes. Do the options fit? `chosen` is the kind of this run, which may be
     * another one. TESS_ERR_USAGE. */
    enum tess_status (*check)(const void *options, const struct tess_communicator_ops *chosen,
                              enum tess_order order);
    /* OPTIONAL, default: "". Adds to the name in reports: "Open MPI 4.1.4". */
    void (*describe)(const void *options, char *text, size_t text_bytes);
    /* REQUIRED. Collective over all ranks, each in its own process or thread. */
    enum tess_status (*open)(const struct tess_comm_request *request, struct tess_comm **comm_out);
};

TESS_END_DECLS
#endif
