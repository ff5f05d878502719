/* Between the files of hosts: what supervisors send each other, and the processes of one host. */
#ifndef TESSERA_RUN_HOSTS_ROOM_H
#define TESSERA_RUN_HOSTS_ROOM_H

#include "comm/boot/boot_door.h"
#include "comm/world.h"
#include "run/hosts.h"

#include <poll.h>
#include <signal.h>

#define HOSTS_JOIN_S  600.0 /* for hosts to join, at the start and, with --elastic, later */
#define HOSTS_SEND_S  5.0   /* for one message, of some hundred bytes */
#define HOSTS_NAME    20
#define HOSTS_WATCHED (1 + BOOT_LISTEN_MAX + TESS_WORLD_RANKS_MAX)
#define HOSTS_MAGIC   "tsrhost1"

/* The greeting of a member: as long as tess__boot_door_look() reads. */
struct hosts_hello {
    char magic[8];
    int32_t slots; /* ranks that it starts at most */
    char name[HOSTS_NAME];
};

/* Leader to member. */
struct hosts_order {
    enum hosts_order_kind { HOSTS_START, HOSTS_KILL, HOSTS_QUIT, HOSTS_REFUSE } kind;
    int32_t code;                /* HOSTS_QUIT: the exit status */
    int32_t attempt;             /* from 0 */
    enum tess__attempt begin;    /* what follows: HOSTS_START */
    int32_t first, count, ranks; /* processes of this host, and of all */
    int32_t port;                /* where they meet, on the leader's host */
    char layout[TESS__LAYOUT_WORDS][TESS__LAYOUT_BYTES];
};

/* Member to leader. */
struct hosts_news {
    enum hosts_news_kind { HOSTS_ENDED, HOSTS_LEAVES } kind;
    bool done;     /* HOSTS_ENDED: all processes of the host have succeeded */
    bool may_help; /* another attempt may succeed */
    int32_t lost;  /* processes that were killed or stopped */
    int32_t code;  /* exit status of one that failed */
};

/* ---- hosts_crew.c: the processes of this host ------------------------------------------------ */

struct hosts_crew {
    const struct tess__hosts *hosts;
    struct tess__history *history;   /* [TESS_WORLD_RANKS_MAX], shared with the processes */
    pid_t pid[TESS_WORLD_RANKS_MAX]; /* 0: has ended */
    int32_t count, alive;
    bool ends;              /* this host was asked to end */
    sigset_t mask;          /* before it was opened */
    struct hosts_news news; /* what became of the latest ones, complete when alive is 0 */
    struct pollfd watch[HOSTS_WATCHED]; /* [watched]; the first one is for signals */
    int32_t watched;
};

/* What the signals that have come demand. */
struct hosts_wish {
    bool ends;  /* this host is to end: for the first time */
    bool again; /* once more */
    bool ended; /* the last process has ended */
};

enum tess_status tess__crew_open(struct hosts_crew *crew, const struct tess__hosts *hosts);
void tess__crew_close(struct hosts_crew *crew);
/* history[0] is the training's so far. False: none has been started, and crew->news is complete. */
bool tess__crew_start(struct hosts_crew *crew, const struct hosts_order *order);
void tess__crew_kill(const struct hosts_crew *crew, int number);
/* Watch one more descriptor; the processes do not keep it. */
void tess__crew_watch(struct hosts_crew *crew, int fd);
void tess__crew_unwatch(struct hosts_crew *crew, int fd);
bool tess__crew_is_ready(const struct hosts_crew *crew, int fd);
/* Wait until something comes on a descriptor, at most so long; -1: without a limit. Takes signals:
 * those to end, save or report go on to the processes. */
struct hosts_wish tess__crew_wait(struct hosts_crew *crew, int limit_ms);

/* ---- hosts_member.c -------------------------------------------------------------------------- */

/* Until the leader has sent how the training ended; returns the exit status. */
int tess__hosts_member(const struct tess__hosts *hosts, struct hosts_crew *crew,
                       const struct hosts_hello *hello);

#endif
