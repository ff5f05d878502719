/* Between the files of hosts: what supervisors send each other, and the processes of one host. */
#ifndef TESSERA_RUN_HOSTS_ROOM_H
#define TESSERA_RUN_HOSTS_ROOM_H

#include "comm/boot/boot_door.h"
#include "comm/world.h"
#include "run/hosts.h"
#include "run/hosts_mirror.h"

#include <poll.h>
#include <signal.h>

#define HOSTS_JOIN_S 600.0 /* for hosts to join, at the start and, with --elastic, later */
#define HOSTS_SEND_S 5.0   /* for one message, of some hundred bytes */
#define HOSTS_NAME   16
#define HOSTS_COPIES 4  /* newest complete copies that a host reports */
#define HOSTS_SPARE  64 /* hosts beyond those of the run, which wait to take a place */
#define HOSTS_KEY    16
#define HOSTS_MAGIC  "tsrhost3"

/* The greeting of a member: as long as tess__boot_door_look() reads. */
struct hosts_hello {
    char magic[8];
    int32_t slots;  /* ranks that it starts at most */
    int32_t mirror; /* port of its mirror; 0: it has none */
    char name[HOSTS_NAME];
};

/* Leader to member. */
struct hosts_order {
    enum hosts_order_kind {
        HOSTS_START,
        HOSTS_GATHER, /* the state from the copies of several hosts: the sources follow */
        HOSTS_KILL,
        HOSTS_QUIT,
        HOSTS_REFUSE
    } kind;
    int32_t code;                /* HOSTS_QUIT: the exit status */
    int32_t attempt;             /* from 0 */
    enum tess__attempt begin;    /* what follows: HOSTS_START */
    int32_t first, count, ranks; /* processes of this host, and of all */
    int32_t port;                /* where they meet, on the leader's host */
    char layout[TESS__LAYOUT_WORDS][TESS__LAYOUT_BYTES];
    /* With --redundancy. */
    int64_t step;               /* START: the copies that stay; -1: none. GATHER: to be gathered */
    int32_t source_count, skip; /* GATHER: a source that this host has already; -1: none */
    int32_t partner_port;       /* START: of the mirror that takes its copies; 0: none */
    char partner[BOOT_TEXT_BYTES];
    unsigned char key[HOSTS_KEY]; /* random: see tess__crew_secret */
};

/* Where a part of the state is. */
struct hosts_source {
    char address[BOOT_TEXT_BYTES];
    int32_t port;
    int32_t replica; /* what that host keeps for another one */
};

/* Steps of complete copies of a host, newest first; -1: no more. */
struct hosts_steps {
    int64_t own[HOSTS_COPIES], replica[HOSTS_COPIES];
};

/* Member to leader. */
struct hosts_news {
    enum hosts_news_kind { HOSTS_ENDED, HOSTS_LEAVES } kind;
    bool done;                 /* HOSTS_ENDED: all processes of the host have succeeded */
    bool may_help;             /* another attempt may succeed */
    int32_t lost;              /* processes that were killed or stopped */
    int32_t code;              /* exit status of one that failed */
    struct hosts_steps copies; /* HOSTS_ENDED */
};

/* ---- hosts_crew.c: the processes of this host ------------------------------------------------ */

struct hosts_crew {
    const struct tess__hosts *hosts;
    struct hosts_mirror mirror;    /* with --redundancy */
    int32_t slots;                 /* processes at most */
    struct tess__history *history; /* [slots], shared with the processes */
    pid_t *pid;                    /* [slots]; 0: has ended */
    int32_t count, alive;
    bool ends;              /* this host was asked to end */
    sigset_t mask;          /* before it was opened */
    struct hosts_news news; /* what became of the latest ones, complete when alive is 0 */
    struct pollfd *watch;   /* [watched], and room for more; the first one is for signals */
    int32_t watched, watch_room;
    int32_t asked; /* behind the one that was asked for last */
};

/* What the signals that have come demand. */
struct hosts_wish {
    bool ends;  /* this host is to end: for the first time */
    bool again; /* once more */
    bool ended; /* the last process has ended */
};

/* Ranks that this host starts at most, and hosts that there may be. */
int32_t tess__hosts_slots(const struct tess__hosts *hosts);
int32_t tess__hosts_room(const struct tess__hosts *hosts);

enum tess_status tess__crew_open(struct hosts_crew *crew, const struct tess__hosts *hosts);
void tess__crew_close(struct hosts_crew *crew);
/* history[0] is the training's so far. False: none has been started, and crew->news is complete. */
bool tess__crew_start(struct hosts_crew *crew, const struct hosts_order *order);
/* The same, of a process that gathers: source [order->source_count]. */
bool tess__crew_gather(struct hosts_crew *crew, const struct hosts_order *order,
                       const struct hosts_source *source);
/* Of the ranks of an attempt, and of the hosts' mirrors: from the job's secret and the order's key.
 * Where the job has none, strangers do not know it either, unless they are taken for a host. */
void tess__crew_secret(const struct hosts_crew *crew, const struct hosts_order *order,
                       struct tess_secret *secret_out);
void tess__crew_kill(const struct hosts_crew *crew, int number);
/* Watch one more descriptor; the processes do not keep it. */
void tess__crew_watch(struct hosts_crew *crew, int fd);
void tess__crew_unwatch(struct hosts_crew *crew, int fd);
bool tess__crew_is_ready(struct hosts_crew *crew, int fd);
/* Wait until something comes on a descriptor, at most so long; -1: without a limit. Takes signals:
 * those to end, save or report go on to the processes. */
struct hosts_wish tess__crew_wait(struct hosts_crew *crew, int limit_ms);

/* ---- hosts_gather.c: the state from the copies of several hosts -------------------------------
 */

/* What a host has reported to the leader after an attempt. */
struct hosts_held {
    int32_t part; /* of the state: the host's number among those of the attempt; -1: it had none */
    struct hosts_steps copies;
    char address[BOOT_TEXT_BYTES]; /* of its mirror */
    int32_t port;
};

/*
 * The newest step, after `after`, of which these hosts [count] have all of `parts`; -1: there is
 * none. `whole`: a step that every host with a part has as a whole, with which the attempt began.
 * Host h has its own parts, and replicas of part h - 1. source [parts], *source_count: where to
 * get it. Pure.
 */
int64_t tess__gather_choose(const struct hosts_held *const *host, int32_t count, int32_t parts,
                            int64_t whole, int64_t after, struct hosts_source *source,
                            int32_t *source_count);
/* Is this source what the host itself has? */
bool tess__gather_is_own(const struct hosts_held *host, const struct hosts_source *source);

/* The complete copies in a folder. */
void tess__gather_list(const char *folder, struct hosts_steps *copies_out);
/* All parts into this host's copy of order->step, which is complete and whole afterwards. An exit
 * status. */
int tess__gather_run(const char *folder, const struct hosts_order *order,
                     const struct hosts_source *source, const struct tess_secret *secret,
                     double timeout_s);

/* ---- hosts_member.c -------------------------------------------------------------------------- */

/* Until the leader has sent how the training ended; returns the exit status. */
int tess__hosts_member(const struct tess__hosts *hosts, struct hosts_crew *crew,
                       const struct hosts_hello *hello);

#endif
