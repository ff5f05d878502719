/* The communicator of a rank's process, on the host: by memory, sockets or MPI. */
#ifndef TESSERA_CLI_OPEN_COMM_H
#define TESSERA_CLI_OPEN_COMM_H

#include "cli/launch.h"
#include "core/config_device.h"

struct tess__open_comm {
    enum tess_comm_choice comm;      /* SELF, LOCAL, TCP or MPI */
    enum tess_mpi_library mpi;       /* of MPI */
    bool native;                     /* MPI's own collectives */
    const struct tess__peers *peers; /* NULL: all ranks are started from here */
    enum tess_order order;
    double timeout_s;
};

/* Collective over the ranks of the job, in their own processes. */
enum tess_status tess__open_comm(const struct tess__open_comm *how, const struct tess__rank *rank,
                                 struct tess_comm **comm_out);

/* How the ranks of a job find each other: as their launchers have, or over memory that they share,
 * which *shared_out holds (NULL: none) until both are closed, the boot first. */
enum tess_status tess__open_boot(const struct tess__peers *peers, const struct tess__rank *rank,
                                 double timeout_s, struct tess_boot **boot_out,
                                 struct tess_comm **shared_out);

#endif
