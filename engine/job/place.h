/*
 * Which process becomes which rank. Processes that mpirun, srun or torchrun started are numbered
 * without regard to the network between their hosts; before any rank starts, their launchers give
 * them other numbers, so that neighbours in number are neighbours in the network. Whatever comes
 * after that has the new numbers alone. Process 0 stays rank 0.
 *
 *     all            a card each of themselves                    -> process 0
 *     process 0      to each its place among those of its host
 *     first of each host   what its host is called                -> process 0
 *     (rounds of a measurement, place_probe.c)
 *     process 0      a topology (file, Slurm, measured) -> map.h  -> to each its rank
 *
 * Only process 0 has what concerns all of them.
 */
#ifndef TESSERA_JOB_PLACE_H
#define TESSERA_JOB_PLACE_H

#include "comm/boot/boot_post.h"
#include "config/config.h"
#include "job/launch_env.h"
#include "job/run.h"
#include "topology/formats/measured.h"
#include "topology/machine/topology.h"

#define TESS__PLACE_HOST_BYTES 64
#define TESS__PLACE_BUS_BYTES  20

/* What a process sends of itself. */
struct tess__process {
    uint64_t host;                   /* a hash, the same for processes of one host alone */
    uint64_t cores;                  /* a hash of which cores of which machine it may use */
    uint64_t quota;                  /* a hash of the control group whose quota it has; 0: none */
    int32_t core_count, quota_count; /* cores of either, the latter above 0; tess_cores() is less */
    int32_t local_rank;              /* as its starter gave it; -1: not known */
    char bus[TESS__PLACE_BUS_BYTES]; /* of its GPU; "" without one */
};

/* What the first process of a host sends of it. */
struct tess__host {
    char name[TESS__PLACE_HOST_BYTES];
    char slurm_address[256], slurm_pattern[64]; /* of Slurm's topology; "" where it gives none */
};

/* All processes of a job: one block, of tess__processes_open. */
struct tess__processes {
    int32_t count, host_count;
    int32_t rank_cores;            /* the least share of a process in the cores that it may use */
    struct tess__process *process; /* [count] */
    struct tess__host *hosts;      /* [host_count] from 0 as they first appear */
    int32_t *host;                 /* [count] of a process */
    int32_t *slot;                 /* [count] of a process: its place among those of its host */
    int32_t *start;                /* [host_count + 1] of a host: where its processes are in .. */
    int32_t *member;               /* [count] processes host by host, by number */
    int32_t *seat;                 /* [count] the same, by slot */
};

/* Room for `count` processes, zero; tess__processes_close frees it. */
enum tess_status tess__processes_open(struct tess__processes *job, int32_t count);
void tess__processes_close(struct tess__processes *job); /* a zeroed one is allowed */

static inline int32_t tess__host_size(const struct tess__processes *job, int32_t host)
{
    return job->start[host + 1] - job->start[host];
}

/* The name of a process's host. */
static inline const char *tess__host_name(const struct tess__processes *job, int32_t process)
{
    return job->hosts[job->host[process]].name;
}

/* What was decided. Of tess__placed_open. */
struct tess__placement {
    /* This process's place among those of its host, and how many cores it may use, and
     * whether its starter has bound them to cores of their own. */
    int32_t slot, host_size, core_count;
    int32_t host_count; /* of the job */
    int32_t rack_hosts; /* for struct tess_transport */
    int32_t rank_cores; /* of each process of the job, at least; 0: they take turns */
    bool bound;
    char (*bus)[TESS__PLACE_BUS_BYTES]; /* [host_size] of their GPUs, "" without; malloc'd */
    int graph_fd;                       /* NCCL's graph file, in memory; 0: none */
    bool imagined;                      /* the devices are a file's, and ranks are elsewhere */
    bool measured;                      /* process 0: by what the network between hosts carries */
    bool given;     /* process 0: the order is, and the network has the size of racks alone */
    char line[400]; /* process 0: what was found and decided; "": nothing */
    /* Process 0, of a job on several hosts: the network by which ranks were placed, device r is
     * that of rank r; NULL: not known. */
    struct tess_topology *topology;
    char *text;    /* process 0: why each rank is where it is, malloc'd; NULL: nothing */
    int32_t own;   /* the rank of this process */
    int32_t *rank; /* process 0: [processes] the rank of each, malloc'd; NULL: as they are */
};

struct tess__placement *tess__placed_open(void); /* nothing decided; NULL: no memory */

/* Are the options of placing well-formed? Before anything is started. */
enum tess_status tess__place_check(const struct tess_config *config);

/* All decide about run->placed, which is zero before. */

/*
 * Connect the launchers, decide, and renumber: run->peers, config->started and config->device are
 * those of the new rank when it returns. Collective over the launchers. TESS_ERR_ABORTED, without a
 * message, where process 0 failed and has logged the reason.
 */
enum tess_status tess__place_ranks(struct tess__run *run, struct tess_config *config,
                                   const struct tess_boot_env *env);

/* The same for ranks that are started from here: config->device.of_rank is in the new order.
 * Nothing to do for others. (place_device.c) */
enum tess_status tess__place_devices(const struct tess__run *run, struct tess_config *config);
/*
 * With --topology.nccl-graph on: NCCL's graph file of the rings for the devices of a job on one
 * host, where they carry more than those that NCCL would choose. A user's own NCCL_GRAPH_FILE or
 * NCCL_TOPO_FILE stays. After the ranks were placed. (place_graph.c)
 */
enum tess_status tess__place_graph(const struct tess__run *run);
/* Around the one start of NCCL that the file fits, in the rank's process. */
void tess__place_graph_set(const struct tess__placement *placed, bool on);

/* Of a launch of this process's rank alone: where on its host it is bound. A starter may have
 * bound it; then it stays as it is. */
void tess__placed_bind(const struct tess__placement *placed, struct tess__launch *launch);
void tess__placed_close(struct tess__placement *placed); /* malloc'd; NULL is allowed */

/* ---- between the files place*.c -------------------------------------------------------------- */

/* place_job.c: F of --topology.order file:F; NULL: it is another order. */
const char *tess__place_order_file(const struct tess_placing_options *options);
/* A bus id as topologies have it, "0000:17:00.0"; drivers write it wider, and in capitals. */
void tess__place_bus(const char *from, char bus[TESS__PLACE_BUS_BYTES]);
/* Hosts and slots of job->process [job->count]; names of hosts are another matter. Pure. */
void tess__place_find_hosts(struct tess__processes *job);

/* What a measurement of the network between the hosts has found. */
struct tess__network_found {
    struct tess_measured measured;
    double seconds;
    char why[160]; /* why nothing could be measured; measured is an even network then */
};

/* How launchers exchange, as comm/boot/boot_post.h; tests have queues instead. */
struct tess__meeting {
    int32_t rank, rank_count;
    const char *address;       /* at which other launchers reach this one */
    struct tess_secret secret; /* of the job */
    void *context;
    enum tess_status (*collect)(void *context, const void *mine, size_t bytes,
                                struct tess_boot_parts *parts_out);
    enum tess_status (*deal)(void *context, const struct tess_boot_parts *parts, void *mine,
                             size_t room, size_t *bytes_out);
};

/*
 * place_meet.c: what a process sends of itself and of its host, and what comes of it in
 * run->placed. Collective over the launchers of the meeting. As tess__place_ranks otherwise.
 */
enum tess_status tess__place_meet(const struct tess__run *run,
                                  const struct tess_placing_options *options,
                                  const struct tess__meeting *meeting,
                                  const struct tess__process *process,
                                  const struct tess__host *host);
/* place_decide.c: process 0 decides which process each rank is, process_out [job->count]. `found`:
 * by measuring; NULL: nothing was measured. */
enum tess_status tess__place_decide(const struct tess__run *run,
                                    const struct tess_placing_options *options,
                                    const struct tess__processes *job,
                                    const struct tess__network_found *found, int32_t *process_out);
/* Is the network to be measured? */
bool tess__place_measures(const struct tess_placing_options *options,
                          const struct tess__processes *job);

/*
 * place_match.c: which device of the topology each process has, by the names of hosts and by the
 * GPUs' bus ids, else one after the other. `file` is for messages; `hosts`: --topology.hosts.
 * TESS_ERR_USAGE where a host is not there or has too few devices.
 */
enum tess_status tess__place_match(const struct tess__processes *job,
                                   const struct tess_topology *topology, const char *file,
                                   const char *hosts, int32_t *device_out);

/*
 * place_order.c: process_out [job->count] of each rank, by a file: numbers of processes in the
 * order of the ranks, or lines RANK HOST[:SLOT]. TESS_ERR_DATA with file and line.
 */
enum tess_status tess__place_read_order(const struct tess__processes *job, const char *path,
                                        int32_t *process_out);

/*
 * place_device.c: the topology of this host, the caller's, and which device of it each process has:
 * by --topology.file, else as it is found. NULL where the processes have no GPUs, or no driver
 * reports how these are joined. name_out: of the file, or "this machine".
 */
enum tess_status tess__place_machine(const struct tess_placing_options *options,
                                     const struct tess__processes *job, const char **name_out,
                                     int32_t *device_out, struct tess_topology **topology_out);
/* A job of ranks that are started from here, a process for each on the device that it has; to be
 * closed. */
enum tess_status tess__place_here(const struct tess_config *config, int32_t ranks,
                                  struct tess__processes *job);
/* place_device.c: by --topology.file, or of processes with GPUs on this host by how these are
 * joined; as they are where that is not known. */
enum tess_status tess__place_by_machine(const struct tess__run *run,
                                        const struct tess__processes *job, int32_t *process_out);

/*
 * place_probe_lead.c: one launcher of each host sends to others, one to one, in rounds that
 * topology/formats/measured.h asks for. Takes 1 to 2 seconds, and little of the network: each round
 * sends for as long as buffers need to empty a few times over. Of more than
 * TESS_MEASURED_HOSTS_MAX hosts as many that follow each other count as one, so that there are some
 * twenty rounds for any number of them, all hosts sending in each.
 *
 * Called by process 0; the others play what it asks for (place_probe.h). Hosts that cannot reach
 * each other fail nothing: that is `why`. Fails where the launchers do not reach each other.
 */
enum tess_status tess__place_probe(const struct tess__meeting *meeting,
                                   const struct tess__processes *job,
                                   struct tess__network_found *found_out);

/* same_options.c: TESS_ERR_USAGE on every rank where a rank's options differ from those of rank 0,
 * with the option and both values. Collective over the ranks of the post; `rank`: this one. */
enum tess_status tess__same_options(const struct tess_options *options, struct tess_boot_post *post,
                                    int32_t rank);

/*
 * place_map.c: the best process of each rank where process p has device[p] of the topology; the
 * line and the text of run->placed. Of an order that is given, the racks alone: process_out has it.
 * Takes over the topology; `source` names what it is from.
 */
enum tess_status tess__place_map(const struct tess__run *run, const struct tess__processes *job,
                                 struct tess_topology *topology, const int32_t *device,
                                 const char *source, int32_t *process_out);

#endif
