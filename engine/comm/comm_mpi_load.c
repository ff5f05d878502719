/* Which MPI library it is that started this process, and its module; see comm_mpi.h. */
#include "comm/comm_mpi.h"
#include "tessera/check.h"
#include "tessera/device.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const find_module[] = {NULL, "mpi_openmpi", "mpi_mpich"};

static bool find_set(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0';
}

/* By the variables of whoever started this process; AUTO: nobody did that MPI could ask. */
static enum tess_mpi_library find_starter(char *why, size_t why_bytes)
{
    if (find_set("OMPI_COMM_WORLD_SIZE") || find_set("PMIX_RANK"))
        return TESS_MPI_OPENMPI;
    if (find_set("PMI_RANK") && (find_set("PMI_FD") || find_set("PMI_PORT")))
        return TESS_MPI_MPICH;
    if (find_set("SLURM_STEP_ID"))
        snprintf(why, why_bytes,
                 "srun has started this process without a way for MPI to meet: give srun "
                 "--mpi=pmix for Open MPI, --mpi=pmi2 for MPICH");
    else
        snprintf(why, why_bytes,
                 "nobody has started this process as one of several by MPI: start it with "
                 "mpirun, or srun with --mpi=pmix or --mpi=pmi2");
    return TESS_MPI_AUTO;
}

bool tess_comm_mpi_there(enum tess_mpi_library library, enum tess_mpi_library *library_out,
                         char *why, size_t why_bytes)
{
    const enum tess_mpi_library starter = find_starter(why, why_bytes);
    if (starter == TESS_MPI_AUTO)
        return false;
    if (library == TESS_MPI_AUTO)
        library = starter;
    if (tess_module_find(find_module[library], why, why_bytes) == NULL)
        return false;
    if (library_out != NULL)
        *library_out = library;
    return true;
}

const char *tess_comm_mpi_summary(enum tess_mpi_library library)
{
    char why[8];
    const struct tess_module *module = find_module[library] != NULL
                                           ? tess_module_find(find_module[library], why, sizeof why)
                                           : NULL;
    return module != NULL ? module->summary : "";
}

enum tess_status tess_transport_mpi_open(enum tess_mpi_library library,
                                         const struct tess_boot *boot, double timeout_s,
                                         struct tess_transport **transport_out)
{
    const struct tess_module *module;
    char why[1024];
    if (!tess_comm_mpi_there(library, &library, why, sizeof why))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "messages over MPI: %s", why);
    TESS_TRY(tess_module_get(find_module[library], &module));
    return module->transport_open(boot, timeout_s, transport_out);
}
