/*
 * The transport over MPI: a module for each MPI library, loaded when it is asked for, so that the
 * program runs on machines without one.
 */
#ifndef TESSERA_COMM_COMM_MPI_H
#define TESSERA_COMM_COMM_MPI_H

#include "comm/transport.h"

/* Can ranks that `starter` ("mpirun") has started talk through MPI? Else false, and `why` says in
 * one clause what is missing. */
bool tess_comm_mpi_there(const char *starter, char *why, size_t why_bytes);

#endif
