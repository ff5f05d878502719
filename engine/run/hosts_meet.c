/* Supervisors that Slurm has started, one on each node: what --hosts and --meet say to others. */
#include "comm/boot/boot_socket.h"
#include "run/hosts.h"
#include "tessera/check.h"
#include "tessera/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What each sends to all. */
struct meet_card {
    int32_t port; /* of the leader, process 0; others 0 */
    int32_t room; /* processors or devices that Slurm gives to the ranks of this host; 0: unknown */
    char address[TESS_BOOT_ADDRESS_BYTES];
};

void tess__hosts_divide(int32_t ranks, const int32_t *room, int32_t count, int32_t *share_out)
{
    memset(share_out, 0, (size_t)count * sizeof(*share_out));
    for (int64_t times = 1, dealt = 1; ranks > 0; times += dealt == 0) {
        dealt = 0;
        for (int32_t h = 0; h < count && ranks > 0; h++) {
            if (share_out[h] >= room[h] * times)
                continue;
            share_out[h]++;
            ranks--;
            dealt++;
        }
    }
}

/* A free port here, at the address by which the others have come. */
static enum tess_status meet_find_port(struct meet_card *card)
{
    struct boot_listener listener;
    const int error = tess__boot_try_listen(card->address, 0, &listener);
    if (error != 0)
        TESS_FAIL(TESS_ERR_COMM, "no free port at %s for the supervisors: %s", card->address,
                  strerror(error));
    card->port = tess__boot_port(&listener);
    tess__boot_unlisten(&listener);
    return TESS_OK;
}

/* All cards, [env->host_count]. */
static enum tess_status meet_gather(const struct tess_boot_env *env, bool devices, double timeout_s,
                                    struct meet_card *all)
{
    struct meet_card own = {.room = devices ? env->host_devices : env->host_cores};
    struct tess_boot *boot = NULL;
    enum tess_status failed = TESS_OK;
    TESS_TRY(tess_boot_open(env, timeout_s, &boot));
    snprintf(own.address, sizeof(own.address), "%s", boot->address);
    if (env->rank == 0)
        failed = meet_find_port(&own); /* the port 0 reports it to the others */
    enum tess_status status = boot->gather(boot->context, &own, sizeof(own), all);
    tess_boot_close(boot);
    return failed != TESS_OK ? failed : status;
}

/* Where Slurm gives fewer processors than there are ranks, as srun does unless asked for more. */
static void meet_warn(const struct meet_card *all, const int32_t *share, int32_t count,
                      bool devices)
{
    int32_t h = 0;
    while (h < count && (all[h].room == 0 || share[h] <= all[h].room))
        h++;
    if (h < count)
        tess_log(TESS_LOG_WARN, "Slurm gives %d of a node's %s (%s) to %d ranks: srun %s=%d",
                 (int)all[h].room, devices ? "GPUs" : "CPUs",
                 devices ? "SLURM_GPUS_ON_NODE" : "SLURM_CPUS_ON_NODE", (int)share[h],
                 devices ? "--gpus-per-node" : "--cpus-per-task", (int)share[h]);
}

/* The cards of all, [env->rank_count], become what this host has to do. */
static enum tess_status meet_take(const struct tess_boot_env *env, struct meet_card *all,
                                  int32_t *room, int32_t *share, bool devices,
                                  struct tess__hosts *hosts)
{
    const int32_t count = env->rank_count;
    for (int32_t h = 0; h < count; h++) {
        room[h] = all[h].room > 0 ? all[h].room : 1;
        all[h].address[TESS_BOOT_ADDRESS_BYTES - 1] = '\0';
    }
    if (all[0].port < 1 || all[0].port > 65535)
        TESS_FAIL(TESS_ERR_COMM, "the process of the first node has no port for the others");
    tess__hosts_divide(hosts->restart.ranks, room, count, share);
    if (env->rank == 0)
        meet_warn(all, share, count, devices);
    snprintf(hosts->address, sizeof(hosts->address), "%s", all[0].address);
    hosts->port = all[0].port;
    hosts->count = count;
    hosts->slots = share[env->rank];
    hosts->signalled = true;
    return TESS_OK;
}

enum tess_status tess__hosts_meet(const struct tess_boot_env *env, bool devices, double timeout_s,
                                  struct tess__hosts *hosts)
{
    const size_t count = (size_t)env->rank_count;
    struct meet_card *all = calloc(count, sizeof(*all));
    int32_t *room = calloc(2 * count, sizeof(*room));
    enum tess_status status = TESS_OK;
    if (all == NULL || room == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for %zu hosts", count);
    if (status == TESS_OK)
        status = meet_gather(env, devices, timeout_s, all);
    if (status == TESS_OK)
        status = meet_take(env, all, room, room + count, devices, hosts);
    hosts->timeout_s = timeout_s;
    free(all);
    free(room);
    return status;
}
