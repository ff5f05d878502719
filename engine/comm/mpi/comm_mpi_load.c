/* Which MPI library started this process, and its module; see comm_mpi.h. And messages over it as a
 * kind of communicator. */
#include "comm/mpi/comm_mpi.h"

#include "comm/boot/boot_find.h"
#include "comm/net/net.h"
#include "tessera/check.h"
#include "tessera/communicator.h"
#include "tessera/version.h"

#include <stdio.h>
#include <string.h>

static const char *const find_module[] = {NULL, "mpi_openmpi", "mpi_mpich"};

/* By the variables of the starter; AUTO: MPI did not start this process. */
static enum tess_mpi_library find_starter(char *why, size_t why_bytes)
{
    if (tess__boot_variable("OMPI_COMM_WORLD_SIZE") || tess__boot_variable("PMIX_RANK"))
        return TESS_MPI_OPENMPI;
    if (tess__boot_variable("PMI_RANK") &&
        (tess__boot_variable("PMI_FD") || tess__boot_variable("PMI_PORT")))
        return TESS_MPI_MPICH;
    if (tess__boot_variable("SLURM_STEP_ID"))
        snprintf(why, why_bytes,
                 "srun started this process without PMIx or PMI, which MPI needs: give srun "
                 "--mpi=pmix for Open MPI, --mpi=pmi2 for MPICH");
    else
        snprintf(why, why_bytes,
                 "this process was not started by MPI: start it with mpirun, or with srun "
                 "--mpi=pmix or --mpi=pmi2");
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

/* "Open MPI 4.1.4", as the module was built; "" where it is not here. Not AUTO. */
static const char *find_summary(enum tess_mpi_library library)
{
    char why[8];
    const struct tess_module *module =
        find_module[library] != NULL ? tess_module_find(find_module[library], why, sizeof(why))
                                     : NULL;
    return module != NULL ? module->summary : "";
}

enum tess_status tess_transport_mpi_open(enum tess_mpi_library library,
                                         const struct tess_boot *boot, double timeout_s,
                                         struct tess_transport **transport_out)
{
    const struct tess_module *module;
    char why[1024];
    if (!tess_comm_mpi_there(library, &library, why, sizeof(why)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "messages over MPI: %s", why);
    TESS_TRY(tess_module_get(find_module[library], &module));
    return module->transport_open(boot, timeout_s, transport_out);
}

/* ---- the kind -------------------------------------------------------------------------------- */

struct mpi_options {
    bool native;     /* the library's own collectives */
    int32_t library; /* enum tess_mpi_library */
};

static const struct tess_option mpi_option_table[] = {
    {"native", TESS_OPTION_BOOL, offsetof(struct mpi_options, native), "off", 0, 0, NULL,
     "MPI's own collectives instead of Tessera's over MPI messages, in fast order only: MPI "
     "chooses "
     "algorithms and the order of sums"},
    {"library", TESS_OPTION_CHOICE, offsetof(struct mpi_options, library), "auto", 0, 0,
     "auto|openmpi|mpich",
     "which MPI library; auto: that of the mpirun, or of srun's --mpi, that started the ranks"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static bool mpi_usable(const void *values, char *why, size_t why_bytes)
{
    const struct mpi_options *options = values;

    return tess_comm_mpi_there((enum tess_mpi_library)options->library, NULL, why, why_bytes);
}

extern const struct tess_communicator_ops tess_communicator_mpi;

static enum tess_status mpi_check(const void *values, const struct tess_communicator_ops *chosen,
                                  enum tess_order order)
{
    const struct mpi_options *options = values;

    if (options->native && chosen != NULL && strcmp(chosen->name, tess_communicator_mpi.name) != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm.mpi.native selects MPI's own collectives, and these ranks use --comm "
                  "%s: leave it out",
                  chosen->name);
    if (options->native && order == TESS_ORDER_CANONICAL)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--comm.mpi.native leaves the order of sums to MPI: give --reduce fast (bench "
                  "comm: --order fast), or leave --comm.mpi.native out");
    return TESS_OK;
}

static void mpi_describe(const void *values, char *text, size_t text_bytes)
{
    const struct mpi_options *options = values;
    enum tess_mpi_library library = (enum tess_mpi_library)options->library;
    char why[8];

    (void)tess_comm_mpi_there(library, &library, why, sizeof(why));
    snprintf(text, text_bytes, "%s%s", find_summary(library),
             options->native ? ", its own collectives" : "");
}

static enum tess_status mpi_open(const struct tess_comm_request *request,
                                 struct tess_comm **comm_out)
{
    const struct mpi_options *options = request->options;
    struct tess_transport *transport;
    enum tess_status status;

    TESS_TRY(tess_transport_mpi_open((enum tess_mpi_library)options->library, request->boot,
                                     request->timeout_s, &transport));
    transport->rack_hosts = request->rack_hosts;
    TESS_TRY(tess_comm_net_open(transport, request->world, request->order, request->timeout_s,
                                comm_out));
    if (!options->native)
        return TESS_OK;
    status = tess_comm_net_native(*comm_out);
    if (status != TESS_OK)
        tess_comm_close(*comm_out);
    return status;
}

const struct tess_communicator_ops tess_communicator_mpi = {
    .abi = TESS_ABI,
    .name = "mpi",
    .summary = "messages of the MPI library whose mpirun or srun started the ranks",
    .host = TESS_COMM_STARTED,
    .boot = true,
    .starter = "mpirun",
    .options = mpi_option_table,
    .options_size = sizeof(struct mpi_options),
    .usable = mpi_usable,
    .check = mpi_check,
    .describe = mpi_describe,
    .open = mpi_open,
};
