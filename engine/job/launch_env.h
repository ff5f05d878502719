/*
 * A launcher of one rank among launchers elsewhere: torchrun, mpirun or Slurm has started one for
 * each rank. They are connected to that of rank 0, which receives the messages of all ranks and
 * reports.
 *
 *     launcher of rank r  |  rank r          launcher of rank 0  |  rank 0
 *          | <- messages ----'                     | <- messages ----'
 *          |------------- messages --------------->|
 *          '<---- why all are to stop -------------'
 */
#ifndef TESSERA_JOB_LAUNCH_ENV_H
#define TESSERA_JOB_LAUNCH_ENV_H

#include "comm/boot/boot.h"
#include "config/config_device.h"
#include "job/launch.h"

#include <poll.h>

#define TESS__PEER_HOST_BYTES 64

struct tess__peers {
    struct tess_boot_env env;
    double timeout_s;
    struct tess_boot *boot;
    bool left; /* this side has closed the connections */
    char host[TESS_WORLD_RANKS_MAX][TESS__PEER_HOST_BYTES]; /* of each rank, for messages */
    /* Rank 0: of every other rank; the others: of rank 0 in [0]. */
    struct tess__peer {
        int fd; /* -1: none, or gone */
        struct tess__message message;
        size_t used; /* bytes of it that have come */
        bool ended;  /* its end has been received */
    } peer[TESS_WORLD_RANKS_MAX];
};

/* Is this process one rank of several that another program started? Then its place is filled in,
 * else place_out->starter is NULL. TESS_ERR_USAGE as tess_boot_from_environment. */
enum tess_status tess__peers_find(struct tess_boot_env *env_out, struct tess_started *place_out);

/* Connect the launchers. Collective over all of them. */
enum tess_status tess__peers_open(const struct tess_boot_env *env, double timeout_s,
                                  struct tess__peers **peers_out);
void tess__peers_close(struct tess__peers *peers); /* NULL is allowed; the others see it */

/* From here on process p is rank rank_of[p], [rank_count]; process 0 stays rank 0. */
void tess__peers_renumber(struct tess__peers *peers, const int32_t *rank_of);

/* To rank 0's launcher; nothing on that itself. Where that has gone there is no error here: it may
 * have sent the reason, which tess__peers_read finds. */
enum tess_status tess__peers_send(struct tess__peers *peers, const struct tess__message *message);
/* The connections that are open, for poll(); returns how many. */
int tess__peers_watch(const struct tess__peers *peers, struct pollfd watch[TESS_WORLD_RANKS_MAX]);
/*
 * Take what has come, each whole message once. TESS_ERR_COMM, logged, where a launcher has gone
 * before it has sent the end of its rank.
 */
enum tess_status tess__peers_read(struct tess__peers *peers, void *context,
                                  void (*take)(void *context, const struct tess__message *message));
/* Rank 0: have the ends of all other ranks been received? On others true. */
bool tess__peers_ended(const struct tess__peers *peers);
/*
 * Close the connections: the others' launchers end their ranks. First they are sent why: rank 0 the
 * end of a rank that did not send its own, all others a TESS__MESSAGE_STOP. NULL: there is nothing
 * to send.
 */
void tess__peers_leave(struct tess__peers *peers, const struct tess__ended *why);

#endif
