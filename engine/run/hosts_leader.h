/* Between the files of the leader: the hosts, and what it decides about them. */
#ifndef TESSERA_RUN_HOSTS_LEADER_H
#define TESSERA_RUN_HOSTS_LEADER_H

#include "run/hosts_room.h"

struct host {
    int fd;           /* -1: the leader's own host, and those behind others */
    int32_t number;   /* in the order in which they came; 0: the leader's own */
    int32_t up;       /* the host that it is connected behind; -1: none, its way is lost */
    int32_t children; /* that it was ever given */
    int32_t port;     /* for those; 0: it takes none */
    double limit_s;   /* for it to come, or to come again; 0: it is there */
    int32_t slots;    /* 0: it has not joined yet */
    int32_t offers;   /* slots that it will have */
    bool runs;        /* it has processes of the attempt */
    bool is_new;      /* it has come since the attempt began */
    bool gone, leaves, bye;
    int32_t first, share;     /* its processes of the next attempt, or of this one */
    struct hosts_order order; /* the last one but HOSTS_KILL */
    struct hosts_news news;
    struct hosts_held held; /* with --redundancy */
    char name[HOSTS_NAME];
};

struct leader {
    const struct tess__hosts *hosts;
    struct hosts_crew *crew;
    struct boot_door door;
    struct host *host; /* [room] the leader's own is the first; by their numbers */
    int32_t count, room;
    int32_t number; /* of the last host that came */
    int32_t open;   /* hosts before this one take no more behind them */
    int32_t orders; /* number of the last order */
    int32_t killed; /* number of the last HOSTS_KILL */
    /* [room] each, with --redundancy: what a gather is chosen from, and where it finds its parts.
     */
    const struct hosts_held **held;
    struct hosts_source *source;
    int32_t source_count;
    bool begun;               /* the first attempt has */
    double unmet_s;           /* when ranks that wait for others in vain are ended; 0: none do */
    char why[HOSTS_WHY];      /* a host has failed before it joined; "": none has */
    bool over;                /* all have been sent how the training ended */
    struct hosts_order order; /* of the attempt; first and count are each host's */
    bool stops;               /* the attempt was asked to save and end, to go on in another way */
    int32_t parts;            /* hosts of the attempt */
    int64_t whole;            /* the copies that it began with, whole on each of them; -1: none */
};

/* ---- hosts_table.c: hosts come, are found, and go -------------------------------------------- */

int32_t tess__leader_joined(const struct leader *leader);
int32_t tess__leader_slots(const struct leader *leader);
/* Does the leader wait for one whose way is lost? */
bool tess__leader_waits(const struct leader *leader);
/* To one host; and to all, along the tree. */
void tess__leader_send(struct leader *leader, struct host *host, const struct hosts_order *order);
void tess__leader_send_all(struct leader *leader, const struct hosts_order *order);
/* The leader's sources, to all, for HOSTS_GATHER. */
void tess__leader_send_sources(struct leader *leader);
/* A greeting has come; see boot_door.h. */
bool tess__leader_greet(void *leader, int fd, const unsigned char *bytes);
/* What hosts report, and those that come; the time of others is up. */
void tess__leader_read(struct leader *leader);
/* Those that have gone, or leave, are no longer in the table. */
void tess__leader_drop_gone(struct leader *leader);
/* Send all how the training has ended, and wait until they have left, for HOSTS_END_S at most. */
void tess__leader_end(struct leader *leader, int code);

#endif
