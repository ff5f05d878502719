/* Finds the module of the transport over MPI; see comm_mpi.h. This build has none. */
#include "comm/comm_mpi.h"

#include <stdio.h>

bool tess_comm_mpi_there(const char *starter, char *why, size_t why_bytes)
{
    (void)starter;
    snprintf(why, why_bytes, "this program was built without MPI");
    return false;
}
