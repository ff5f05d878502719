/*
 * A launcher of one rank among launchers elsewhere: torchrun, mpirun or Slurm has started one for
 * each rank. They are connected as the boot has connected them, in a tree whose root is that of
 * rank 0. Messages of all ranks go to it, from launcher to launcher; it reports.
 *
 *     launcher of rank r  |  rank r          launcher of rank 0  |  rank 0
 *          | <- messages ----'                     | <- messages ----'
 *          |------ messages ------> ... ---------->|
 *          '<----- why all are to stop ... <-------'
 *
 * A launcher that has others behind it stays until their ranks have ended.
 */
#ifndef TESSERA_JOB_LAUNCH_ENV_H
#define TESSERA_JOB_LAUNCH_ENV_H

#include "comm/boot/boot_post.h"
#include "config/config_device.h"
#include "job/launch.h"

#include <poll.h>

#define TESS__PEER_HOST_BYTES 64

struct tess__peers {
    struct tess_boot_env env;
    double timeout_s;
    struct tess_boot *boot;
    struct tess_boot_post *post; /* until messages go over the same connections */
    bool left;                   /* this side has closed the connections */
    bool ended;                  /* this side has sent the end of its own rank */
    char own_host[TESS__PEER_HOST_BYTES];
    char (*host)[TESS__PEER_HOST_BYTES]; /* rank 0: of each rank */
    int32_t link_count;
    /* On other ranks than 0, the first one leads to rank 0. */
    struct tess__link {
        int fd; /* -1: gone */
        char host[TESS__PEER_HOST_BYTES];
        int32_t rank, count; /* at its other end; how many ranks are reached through it */
        int32_t ended;       /* of these: their ends have passed here */
        bool stopped;        /* why all are to stop has been sent to it, or has come from it */
        struct tess__message message;
        size_t used; /* bytes of it that have come */
    } link[TESS_BOOT_LINKS_MAX];
};

/* From a launcher to those before it: payload as TESS__MESSAGE_ENDED, of a rank whose launcher has
 * gone. */
#define TESS__MESSAGE_GONE (-3)

/* Is this process one rank of several that another program started? Then its place is filled in,
 * else place_out->starter is NULL. TESS_ERR_USAGE as tess_boot_from_environment. */
enum tess_status tess__peers_find(struct tess_boot_env *env_out, struct tess_started *place_out);

/* Connect the launchers. Collective over all of them. */
enum tess_status tess__peers_open(const struct tess_boot_env *env, double timeout_s,
                                  struct tess__peers **peers_out);
void tess__peers_close(struct tess__peers *peers); /* NULL is allowed; the others see it */

/* From here on this process is rank `rank`; process 0 stays rank 0, and has rank_of[p] of each
 * process p, [rank_count]. Collective. */
enum tess_status tess__peers_renumber(struct tess__peers *peers, int32_t rank,
                                      const int32_t *rank_of);

/* Where a rank runs, for messages. Rank 0 has the hosts of all; another rank has its own and its
 * neighbours', and "another host" of others. */
const char *tess__peers_host(const struct tess__peers *peers, int32_t rank);

/* To rank 0's launcher; nothing on that itself. Where the way there is broken there is no error
 * here: the reason may have come before, which tess__peers_read finds. */
enum tess_status tess__peers_send(struct tess__peers *peers, const struct tess__message *message);
/* The connections that are open, for poll(); returns how many. */
int tess__peers_watch(const struct tess__peers *peers, struct pollfd watch[TESS_BOOT_LINKS_MAX]);
/*
 * Take what has come, each whole message once: on rank 0 all, on others why all are to stop; the
 * rest goes on to rank 0. TESS_ERR_COMM, logged, where a launcher has gone before it has sent the
 * end of its rank: on rank 0 any, on others the one towards rank 0.
 */
enum tess_status tess__peers_read(struct tess__peers *peers, void *context,
                                  void (*take)(void *context, const struct tess__message *message));
/* Have the ends of all ranks that are reached through this launcher been received? */
bool tess__peers_ended(const struct tess__peers *peers);
/*
 * Close the connections: the others' launchers end their ranks. First they are sent why: towards
 * rank 0 the end of a rank that did not send its own, away from it a TESS__MESSAGE_STOP. NULL:
 * there is nothing to send.
 */
void tess__peers_leave(struct tess__peers *peers, const struct tess__ended *why);

#endif
