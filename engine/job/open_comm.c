/* Opening a rank's communicator; see open_comm.h. */
#include "job/open_comm.h"

#include "job/launch_env.h"
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

enum tess_status tess__open_comm(const struct tess__open_comm *how, const struct tess__rank *rank,
                                 struct tess_comm **comm_out)
{
    struct tess_comm_request request = {.options = how->options,
                                        .rank = rank->rank,
                                        .rank_count = rank->rank_count,
                                        .order = how->order,
                                        .timeout_s = how->timeout_s,
                                        .world = rank->world,
                                        .started = how->peers != NULL,
                                        .module = how->module};
    struct tess_comm *shared = NULL;
    struct tess_boot *boot = NULL;
    enum tess_status status;

    if (how->kind->boot)
        TESS_TRY(tess__open_boot(how->peers, rank, how->timeout_s, &boot, &shared));
    request.boot = boot;
    status = how->kind->open(&request, comm_out);
    tess_boot_close(boot);
    tess_comm_close(shared);
    return status;
}
