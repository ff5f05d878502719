/*
 * Bootstrap: how the processes of a job find each other before there is a communicator. What they
 * exchange is small (identifiers, names of hosts), by TCP along a tree whose root is rank 0, or
 * over a communicator that is there already. Transport of tensors is not its business.
 */
#ifndef TESSERA_COMM_BOOT_BOOT_H
#define TESSERA_COMM_BOOT_BOOT_H

#include "comm/boot/boot_secret.h"
#include "tessera/device.h"

#define TESS_BOOT_FAN           32                /* ranks that are connected behind one */
#define TESS_BOOT_BLOB_MAX      ((size_t)1 << 20) /* bytes of one rank in one gather */
#define TESS_BOOT_ADDRESS_BYTES 256

/* The variable by which a supervisor of `train --hosts` marks the ranks that it starts, beside
 * those of torchrun; another value in each attempt. */
#define TESS_BOOT_MEETING "TESS_MEETING"
/* The variable by which one of them finds the host that keeps its copies (job/mirror.h). */
#define TESS_BOOT_MIRROR "TESS_MIRROR"

/* A rank's place in its job, by the environment. */
struct tess_boot_env {
    const char *starter; /* whose variables these are: "torchrun", "mpirun", "Slurm"; a literal */
    int32_t rank, rank_count;
    int32_t local_rank, local_count; /* among the ranks of this host; -1: not known */
    /* Of rank 0: name or number, or several joined by ',', of which the others try each; "" with
     * one rank, and where tess_boot_find is still to find it. */
    char address[TESS_BOOT_ADDRESS_BYTES];
    int32_t port; /* of rank 0; 0 with one rank */
    /* Rank 0 takes the first of so many ports from `port` on that is free, and the others look for
     * it there; 0 is 1: the port is given. */
    int32_t port_count;
    int32_t fan;               /* at most TESS_BOOT_FAN; 0: that */
    struct tess_secret secret; /* of the job: TESS_JOB_SECRET */
    uint64_t job; /* the same in all ranks of a job, another one in other jobs; 0: not known */
    /* By Slurm alone; 0: not known. Hosts that have processes of this job, and what this one has
     * for it: processors (SLURM_CPUS_ON_NODE) and GPUs (SLURM_GPUS_ON_NODE). */
    int32_t host_count, host_cores, host_devices;
    int32_t rank_cores; /* processors of each rank, likewise (SLURM_CPUS_PER_TASK) */
    bool again;         /* torchrun has started the job before (TORCHELASTIC_RESTART_COUNT) */
    bool asked;         /* tess_boot_find has asked mpirun, which expects a notice of the end */
};

/*
 * Read the place of this process from its environment; the first of these that is there:
 *
 *   tessera    those of torchrun, and TESS_BOOT_MEETING
 *   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE; TORCHELASTIC_RUN_ID
 *   mpirun     OMPI_COMM_WORLD_{RANK,SIZE,LOCAL_RANK,LOCAL_SIZE}, or
 *              PMI_{RANK,SIZE} and MPI_{LOCALRANKID,LOCALNRANKS}
 *   Slurm      SLURM_{PROCID,LOCALID}, SLURM_STEP_NUM_TASKS or SLURM_NTASKS; SLURM_JOB_ID; only in
 *              what srun starts (SLURM_STEP_ID): a batch script has the others too. Ranks of this
 *              host by SLURM_STEP_TASKS_PER_NODE and SLURM_NODEID
 *
 * and for each of them MASTER_ADDR and MASTER_PORT, where there are several ranks. A torchrun that
 * serves its own store on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE) leaves us the port after it.
 * Under mpirun and Slurm both may be missing. The port is then made from the job's number, and the
 * address is
 *
 *   all ranks on one host      127.0.0.1: by their number there, SLURM_STEP_NUM_NODES
 *   mpirun of Open MPI         that of mpirun itself (OMPI_MCA_orte_hnp_uri), and the other hosts
 *                              (OMPI_MCA_orte_node_regex), for the others to try
 *   mpirun of MPICH            sent by rank 0, over the connection that mpirun keeps with each
 *                              process (PMI_FD): by tess_boot_find
 *   Slurm                      the first host of SLURM_STEP_NODELIST
 *
 * *found_out: false when none is there. TESS_ERR_USAGE for half a set, a value that is no number
 * or out of range, or an address that cannot be found. Only reads what is there.
 */
enum tess_status tess_boot_from_environment(struct tess_boot_env *env_out, bool *found_out);

/* Nodes of a job of Slurm that stay idle, since this process is in its batch script or shell, not
 * started by srun; 0: there are none. */
int32_t tess_boot_idle_nodes(void);

/* Find what is missing in env by asking other ranks: nothing, mostly. Collective over the ranks of
 * the job, once in it, before MPI is started. */
enum tess_status tess_boot_find(struct tess_boot_env *env, double timeout_s);
/* At the end of a process that has called it: mpirun takes an end without notice for a failure.
 * Where MPI was used and has given that notice itself, nothing happens. */
void tess_boot_leave(const struct tess_boot_env *env);

/*
 * Around what a process does before tess_boot_open: where it fails, tess_boot_end sends why to the
 * others, which end with its message and the name of its host, instead of waiting for it. That
 * takes the time in which they come to rank 0, BOOT_LINGER_S at most. Errors that rank 0 or the
 * first rank of this host reports in the same words on the same terminal are not printed. Nothing
 * happens where this process is alone, or has met the others. env: borrowed until the end. Not
 * collective; the calling thread's.
 */
#define BOOT_LINGER_S 10.0
void tess_boot_begin(const struct tess_boot_env *env);
void tess_boot_end(enum tess_status status);

/*
 * Meet at rank 0 and stay connected, each rank with one before it and with TESS_BOOT_FAN behind it
 * at most. Collective over the ranks of the job, in any order, within timeout_s, which is also the
 * limit of every gather. Connections from elsewhere (another job, another program, a scanner) are
 * closed and do no harm. TESS_ERR_TIMEOUT with address, port and the numbers of the missing ranks.
 *
 * Each side of a connection proves that it has env->secret. Where the job has none, `job` keeps
 * jobs apart, not people. Nothing is encrypted.
 */
enum tess_status tess_boot_open(const struct tess_boot_env *env, double timeout_s,
                                struct tess_boot **boot_out);

/* The same over a communicator of ranks on one host, borrowed until close. */
enum tess_status tess_boot_over(struct tess_comm *comm, double timeout_s,
                                struct tess_boot **boot_out);

/* A connection of a meeting, not blocking, for what comes after the last gather. It stays the
 * boot's. */
struct tess_boot_link {
    int fd;
    int32_t rank;  /* at its other end */
    int32_t count; /* of ranks that are reached through it, that one included */
};

#define TESS_BOOT_LINKS_MAX (TESS_BOOT_FAN + 1)

/* Those of this rank: first the one towards rank 0, which rank 0 itself does not have, then those
 * away from it. Returns how many; 0 over a communicator. */
int32_t tess_boot_links(const struct tess_boot *boot,
                        struct tess_boot_link link_out[TESS_BOOT_LINKS_MAX]);

void tess_boot_close(struct tess_boot *boot); /* NULL is allowed */

#endif
