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
#define HOSTS_WHY    288
#define HOSTS_MAGIC  "tsrhost5" /* of a host that joins */
#define HOSTS_FAILS  "tsrfails" /* that has failed before it joined: HOSTS_WHY bytes follow */
#define HOSTS_AGAIN  "tsragain" /* that has lost the way to the leader, or has not found it */
#define HOSTS_VIA    "tsrrelay" /* to the one that the leader has named */

/* For a host whose way is lost to come to the leader again, and at the end for all to leave. */
#define HOSTS_ORPHAN_S 10.0
#define HOSTS_END_S    5.0
/* Ranks that wait for one that was killed before it met them; others who wait for a host that has
 * failed before it joined, and try to reach it every MEMBER_TRY_MS. */
#define HOSTS_UNMET_S 5.0
#define HOSTS_FAIL_S  1.5

/* The greeting of a member: as long as tess__boot_door_look() reads. */
struct hosts_hello {
    char magic[8];
    int32_t slots;         /* ranks that it starts at most */
    uint16_t mirror, port; /* of its mirror, 0: it has none; for hosts that are sent on to it */
    union {
        char name[HOSTS_NAME]; /* HOSTS_MAGIC, HOSTS_FAILS */
        struct {
            int32_t number, seen; /* its own, and that of the last order that it has got */
        };
    };
};

/* Leader to member, along the tree. */
struct hosts_order {
    enum hosts_order_kind {
        HOSTS_PLACE, /* `to` is the host's number; it goes on to `partner`, unless port is 0 */
        HOSTS_START,
        HOSTS_SOURCES, /* source_count of them follow, for the next HOSTS_GATHER */
        HOSTS_GATHER,  /* the state from the copies of several hosts */
        HOSTS_KILL,
        HOSTS_QUIT,
        HOSTS_REFUSE,
        HOSTS_FORGET, /* the host came again too late, or the leader has gone */
    } kind;
    int32_t to;                  /* a host's number; HOSTS_ALL */
    int32_t number;              /* of the order, from 1 */
    int32_t code;                /* HOSTS_QUIT: the exit status */
    int32_t attempt;             /* from 0 */
    enum tess__attempt begin;    /* what follows: HOSTS_START */
    int32_t first, count, ranks; /* processes of this host, and of all */
    int32_t port;                /* where they meet, on the leader's host */
    union {
        char layout[TESS__LAYOUT_WORDS][TESS__LAYOUT_BYTES];
        char why[HOSTS_WHY]; /* HOSTS_QUIT: a host has failed before it joined; "": none has */
    };
    /* With --redundancy. */
    int64_t step;               /* START: the copies that stay; -1: none. GATHER: to be gathered */
    int32_t source_count, skip; /* GATHER: a source that this host has already; -1: none */
    /* START: of the mirror that takes its copies, 0: none. PLACE: of the host, "": the leader's */
    int32_t partner_port;
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

#define HOSTS_ALL        (-1)
#define HOSTS_NUMBER_MAX (1 << 24)

/* Member to leader, along the tree. */
struct hosts_news {
    enum hosts_news_kind {
        HOSTS_ENDED,
        HOSTS_LEAVES,
        HOSTS_JOINED, /* it has reached the one to which it was sent on */
        HOSTS_LOST,   /* the connection with `about`, behind it, has ended */
        HOSTS_BYE     /* it ends in order: to the next one alone */
    } kind;
    int32_t from;              /* a host's number */
    int32_t about;             /* LOST */
    int32_t answer;            /* ENDED: number of the order */
    bool done;                 /* HOSTS_ENDED: all processes of the host have succeeded */
    bool may_help;             /* another attempt may succeed */
    bool unmet;                /* one has failed before it met the others */
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

/* ---- hosts_relay.c: the hosts that are connected behind one that does not lead ------------------
 */

struct hosts_relay {
    struct hosts_crew *crew; /* watches the connections */
    struct boot_door door;
    double timeout_s;
    struct relay_child {
        int fd; /* -1: closed */
        int32_t number;
        bool bye;
    } * child; /* [room] */
    int32_t count, room;
    int32_t *route; /* [route_room] of a host by its number: that of the child, 0: none */
    int32_t route_room;
};

/* Listen where `fd`, which is connected with the leader, shows that this host is reached; paused.
 * False: the reason is in errno. */
bool tess__relay_open(struct hosts_relay *relay, struct hosts_crew *crew,
                      const struct tess__hosts *hosts, int fd);
void tess__relay_close(struct hosts_relay *relay); /* and all connections */
int32_t tess__relay_port(const struct hosts_relay *relay);
/* Pass an order on, with `bytes` of sources behind it, where it is for others too. */
void tess__relay_pass(struct hosts_relay *relay, const struct hosts_order *order,
                      const void *sources, size_t bytes);
/* Take hosts that come, and what others report: on to `up`, with what this one, `number`, finds. */
void tess__relay_look(struct hosts_relay *relay, int up, int32_t number);
/* While there is no host to pass it on to. */
void tess__relay_pause(struct hosts_relay *relay, bool pauses);
/* All have been sent how the training has ended: until they have left. */
void tess__relay_end(struct hosts_relay *relay, int up, int32_t number);

/* ---- hosts_member.c -------------------------------------------------------------------------- */

#define HOSTS_MAY_LEAD (-1)

/* Until the leader has sent how the training ended; returns the exit status. `contends`: this host
 * would lead, and its port was taken; HOSTS_MAY_LEAD: that has become free before anybody led. */
int tess__hosts_member(const struct tess__hosts *hosts, struct hosts_crew *crew,
                       const struct hosts_hello *hello, bool contends);

#endif
