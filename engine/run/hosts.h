/*
 * A training on several hosts without another program that starts its ranks (--hosts, --meet): the
 * user starts the same command on each of them. Each is the supervisor of the ranks of its host;
 * one of them leads, on the host that --meet names:
 *
 *     leader   listens ... starts all ranks ... one is lost: all have ended ... starts those left
 *     member   joins ..... starts its own ..... its own have ended .......... starts its own
 *
 * Where Slurm has started one process on each node, these are the supervisors, and what --hosts and
 * --meet give is found from Slurm's variables (tess__hosts_meet).
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
    int32_t slots;  /* ranks of this host; 0: an equal part */
    int32_t fan;    /* hosts that are connected behind one at most; 0: TESS_BOOT_FAN */
    bool signalled; /* a signal comes to all processes of all hosts, not to a supervisor alone */
    struct tess_secret secret;    /* of the job */
    struct tess__restart restart; /* ranks: of all hosts; a multiple of count where slots is 0 */
};

/* Take --meet HOST:PORT apart. TESS_ERR_USAGE. */
enum tess_status tess__hosts_read_meet(const char *text, struct tess__hosts *hosts);

/* The same for processes that Slurm has started, one on each host: count, address, port, slots and
 * signalled. hosts->restart.ranks is set. Collective over them, within timeout_s. `devices`: ranks
 * compute on GPUs. */
enum tess_status tess__hosts_meet(const struct tess_boot_env *env, bool devices, double timeout_s,
                                  struct tess__hosts *hosts);

/*
 * Parts of `ranks` for hosts with room for so many each: as equal as there is room; where all are
 * full, once more. room, share_out [count], room[h] > 0. Pure.
 */
void tess__hosts_divide(int32_t ranks, const int32_t *room, int32_t count, int32_t *share_out);

/* This host has failed before tess__hosts_run: those that wait for it are sent why, and end. The
 * leader's host waits a moment for them. address, port and secret are used. Logs nothing. */
void tess__hosts_fail(const struct tess__hosts *hosts, const char *why);

/* Collective over the hosts. Returns the exit status of the training, the same on all hosts. The
 * caller has no other threads. */
int tess__hosts_run(const struct tess__hosts *hosts);

#endif
