/*
 * Starting ranks: one child process per rank, or one child with a thread per rank. The launcher
 * waits for messages, forwards what ranks write to stderr (one error, not one per rank), handles
 * Ctrl-C, and ends all ranks when one of them dies.
 */
#ifndef TESSERA_JOB_LAUNCH_H
#define TESSERA_JOB_LAUNCH_H

#include "comm/flight.h"

#define TESS__MESSAGE_BYTES 336

/* Names of a rank's threads, and of the process whose threads ranks are, for `tessera top` and for
 * debuggers: the kernel keeps 15 characters. */
#define TESS__RANK_THREAD_NAME  "tessera rank %d"
#define TESS__RANK_PROCESS_NAME "tessera ranks"

/* What a rank sends to the launcher; small enough that a pipe never splits it. */
struct tess__message {
    int32_t rank;
    int32_t kind; /* the body's own, >= 0; negative ones are the launcher's */
    _Alignas(8) unsigned char payload[TESS__MESSAGE_BYTES];
};

/* What a rank's body is given. */
struct tess__rank {
    int32_t rank, rank_count;
    struct tess_world *world;
    int message_fd;
};

/* Send at most TESS__MESSAGE_BYTES. Any rank, any thread. */
enum tess_status tess__rank_send(const struct tess__rank *rank, int32_t kind, const void *payload,
                                 size_t bytes);

struct tess__peers; /* launch_env.h */

struct tess__launch {
    int32_t rank_count;
    /* One rank alone is started here, the others by launchers elsewhere: with which this one is
     * connected. NULL: all are started here. */
    struct tess__peers *peers;
    enum tess_rank_mode mode;
    bool saves; /* ranks answer tess_world_request: a first SIGINT or SIGTERM asks them to save and
                   end, SIGUSR1 to save */
    bool bind;  /* give each rank its own cores when there are enough */
    /* Of a rank alone: its place among the ranks of its host, and how many these are. */
    int32_t slot, slot_count;
    /* [places on this host] its GPU's bus id, NULL without; for the cores next to it. Borrowed;
     * NULL: there are no GPUs. */
    const char **bus;
    struct tess_flight *flight;   /* of the ranks that are started here; NULL: none */
    const char *const *unit_name; /* for reports; may be NULL */
    int32_t unit_count;
    void *context;
    /* In the rank. A failure but TESS_ERR_ABORTED ends the other ranks. */
    enum tess_status (*body)(void *context, struct tess__rank *rank);
    /* In the launcher. A failure ends the ranks. May be NULL. */
    enum tess_status (*message)(void *context, const struct tess__message *message);
    /* In the launcher, once per rank after all are started; cores is "core 3", "cores 0-7, NUMA
     * 0" or "any core"; the board is there until tess__launch_run returns. May be NULL. */
    void (*started)(void *context, int32_t rank, int pid, const char *cores,
                    const struct tess_board *board);
    /* In the launcher, once in tick_s seconds while ranks run; it should take
     * milliseconds. NULL: never. */
    void (*tick)(void *context);
    double tick_s;
    int32_t *lost; /* counts processes that were killed or stopped by others; NULL: not counted */
    double stopped_s; /* a process that is stopped (SIGSTOP) for that long is lost; 0: never */
    /* In the launcher, once, when the run is to end before its ranks are done: the reason that they
     * are sent. May be NULL. */
    void (*failed)(void *context, enum tess_status status, const char *why);
    /* In the launcher, on SIGUSR2, which it or one of its ranks has got: print what the ranks do.
     * NULL: the signal is not watched. */
    void (*report)(void *context);
    /* In the launcher, before a line is written to stderr: clear what is on it. May be NULL. */
    void (*before_line)(void *context);
};

/*
 * Run all ranks to their end. TESS_ERR_INTERRUPTED after SIGINT or SIGTERM; the failing rank's
 * status when one failed; TESS_ERR_COMM when one died. No process is left in any case. The
 * caller has no other threads, because ranks are forked.
 */
enum tess_status tess__launch_run(const struct tess__launch *launch);

/* ---- between launch.c and launch_rank.c ------------------------------------------------------ */

#define TESS__MESSAGE_ENDED (-1) /* payload: struct tess__ended */
#define TESS__MESSAGE_STOP  (-2) /* from rank 0's launcher to another; the same payload: why */

/* How a rank's body ended, and its error message: the log of its host may not be at hand. */
struct tess__ended {
    int32_t status;
    char why[TESS__MESSAGE_BYTES - sizeof(int32_t)]; /* "": none */
};

#define TESS__CORES_BYTES 96

/* The calling thread is the rank from here on: named so, and bound to cores from those it may use.
 */
void tess__rank_enter(const struct tess__launch *launch, int32_t rank);
/* The cores that it will be bound to, for `started`. */
void tess__rank_cores(const struct tess__launch *launch, int32_t rank,
                      char text[TESS__CORES_BYTES]);

/* A child's whole life after fork: rank `first` alone, or all ranks as threads. Returns exit
 * status. */
int tess__rank_process(const struct tess__launch *launch, struct tess_world *world, int32_t first,
                       int message_fd);

#endif
