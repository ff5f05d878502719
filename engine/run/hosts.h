/*
 * A training on several hosts without another program that starts its ranks (--hosts, --meet): the
 * user starts the same command on each of them. Each is the supervisor of the ranks of its host;
 * one of them leads, on the host that --meet names:
 *
 *     leader   listens ... starts all ranks ... one is lost: all have ended ... starts those left
 *     member   joins ..... starts its own ..... its own have ended .......... starts its own
 *
 * A rank is started as torchrun would: by a process of its own, with its place in the environment.
 * What ends a rank ends all of them, over the connections of their launchers; the supervisors wait
 * for that, and the leader alone decides what comes next.
 */
#ifndef TESSERA_RUN_HOSTS_H
#define TESSERA_RUN_HOSTS_H

#include "comm/boot/boot.h"
#include "run/restart.h"

struct tess__hosts {
    int32_t count;    /* hosts that the leader waits for before it begins, itself included */
    bool elastic;     /* hosts may come and go while the training runs */
    double timeout_s; /* of the training; a host that is lost is noticed in half of it */
    char address[TESS_BOOT_ADDRESS_BYTES]; /* of the leader */
    int32_t port;
    struct tess__restart restart; /* ranks: of all hosts, a multiple of count */
};

/* Take --meet HOST:PORT apart. TESS_ERR_USAGE. */
enum tess_status tess__hosts_read_meet(const char *text, struct tess__hosts *hosts);

/* Collective over the hosts. Returns the exit status of the training, the same on all hosts. The
 * caller has no other threads. */
int tess__hosts_run(const struct tess__hosts *hosts);

#endif
