/* Opening a rank's communicator; see open_comm.h. */
#include "job/open_comm.h"

#include "job/launch_env.h"
#include "tessera/check.h"

/* How the ranks of a job find each other: by the address that their launchers have found, or over
 * memory that they share, which *shared_out holds (NULL: none) until both are closed, the boot
 * first. */
static enum tess_status open_boot(const struct tess__open_comm *how, const struct tess__rank *rank,
                                  struct tess_boot **boot_out, struct tess_comm **shared_out)
{
    if (how->peers != NULL)
        return tess_boot_open(&how->peers->env, how->peers->timeout_s, boot_out);
    TESS_TRY(tess_comm_local_open(rank->world, rank->rank, TESS_ORDER_CANONICAL, how->timeout_s,
                                  shared_out));
    return tess_boot_over(*shared_out, how->timeout_s, boot_out);
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
                                        .rack_hosts = how->rack_hosts,
                                        .module = how->module};
    struct tess_comm *shared = NULL;
    struct tess_boot *boot = NULL;
    enum tess_status status = TESS_OK;

    if (how->kind->boot)
        status = open_boot(how, rank, &boot, &shared);
    request.boot = boot;
    if (status == TESS_OK)
        status = how->kind->open(&request, comm_out);
    tess_boot_close(boot);
    tess_comm_close(shared);
    return status;
}
