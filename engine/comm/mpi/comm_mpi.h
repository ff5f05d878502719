/*
 * Messages over MPI, as the rest of the program sees them: which MPI library it is, and opening a
 * transport (transport.h) over it. The library is in a module of its own, libtessera_mpi_NAME.so,
 * opened when it is requested. MPI itself is known to comm_mpi*.c of those modules alone.
 */
#ifndef TESSERA_COMM_MPI_COMM_MPI_H
#define TESSERA_COMM_MPI_COMM_MPI_H

#include "tessera/device.h"
#include "tessera/transport.h"

/* In the order of --comm.mpi.library's choices. AUTO: that of mpirun or srun which started this
 * process, by its variables. */
enum tess_mpi_library { TESS_MPI_AUTO, TESS_MPI_OPENMPI, TESS_MPI_MPICH };

/*
 * Can this process use MPI: was it started by an MPI's mpirun, or by srun with PMIx or PMI,
 * and is the module for that library here, and does it load? On false `why` is a sentence:
 * what is missing. *library_out: never AUTO, may be NULL. Quiet; starts nothing.
 */
bool tess_comm_mpi_there(enum tess_mpi_library library, enum tess_mpi_library *library_out,
                         char *why, size_t why_bytes);

/*
 * Start MPI in this process and open a transport over all ranks of the job. Collective over them;
 * each process of the job does it once at most, with all of its transports closed at its end.
 * boot: what the ranks are numbered by; NULL: MPI's numbers. It may be closed afterwards. No other
 * thread of the process may send, receive, test or wait. timeout_s limits set-up as far as MPI
 * lets it, and the wait for the other ranks when it is closed.
 */
enum tess_status tess_transport_mpi_open(enum tess_mpi_library library,
                                         const struct tess_boot *boot, double timeout_s,
                                         struct tess_transport **transport_out);

#endif
