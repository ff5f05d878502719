/* Opening a rank's communicator; see open_comm.h. Those of devices are the module's (run_rank.c).
 */
#include "cli/open_comm.h"

#include "cli/launch_env.h"
#include "comm/net.h"
#include "tessera/check.h"

enum tess_status tess__open_boot(const struct tess__peers *peers, const struct tess__rank *rank,
                                 double timeout_s, struct tess_boot **boot_out,
                                 struct tess_comm **shared_out)
{
    enum tess_status status;

    *shared_out = NULL;
    if (peers != NULL)
        return tess__peers_boot(peers, boot_out);
    TESS_TRY(
        tess_comm_local_open(rank->world, rank->rank, TESS_ORDER_CANONICAL, timeout_s, shared_out));
    status = tess_boot_over(*shared_out, timeout_s, boot_out);
    if (status != TESS_OK)
        tess_comm_close(*shared_out);
    return status;
}

static enum tess_status open_transport(const struct tess__open_comm *how,
                                       const struct tess__rank *rank,
                                       struct tess_transport **transport_out)
{
    struct tess_comm *shared;
    struct tess_boot *boot;
    enum tess_status status;

    TESS_TRY(tess__open_boot(how->peers, rank, how->timeout_s, &boot, &shared));
    status = how->comm == TESS_COMM_MPI
                 ? tess_transport_mpi_open(how->mpi, boot, how->timeout_s, transport_out)
                 : tess_transport_tcp_open(boot, how->timeout_s, transport_out);
    tess_boot_close(boot);
    tess_comm_close(shared);
    return status;
}

static enum tess_status open_net(const struct tess__open_comm *how, const struct tess__rank *rank,
                                 struct tess_comm **comm_out)
{
    struct tess_transport *transport;
    enum tess_status status;

    TESS_TRY(open_transport(how, rank, &transport));
    TESS_TRY(tess_comm_net_open(transport, rank->world, how->order, how->timeout_s, comm_out));
    if (!how->native)
        return TESS_OK;
    status = tess_comm_net_native(*comm_out);
    if (status != TESS_OK)
        tess_comm_close(*comm_out);
    return status;
}

enum tess_status tess__open_comm(const struct tess__open_comm *how, const struct tess__rank *rank,
                                 struct tess_comm **comm_out)
{
    switch (how->comm) {
    case TESS_COMM_SELF:
        return tess_comm_self_open(how->order, comm_out);
    case TESS_COMM_TCP:
    case TESS_COMM_MPI:
        return open_net(how, rank, comm_out);
    default:
        return tess_comm_local_open(rank->world, rank->rank, how->order, how->timeout_s, comm_out);
    }
}
