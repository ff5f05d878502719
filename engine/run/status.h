/*
 * What a run does, or did: read from the flight records below its folder (comm/flight_file.h),
 * while it runs and after it has ended, however that was. For `tessera status`, and for the report
 * that the launcher prints.
 */
#ifndef TESSERA_RUN_STATUS_H
#define TESSERA_RUN_STATUS_H

#include "comm/flight_file.h"
#include "run/run_folder.h"

#include <jansson.h>
#include <stdio.h>

#define TESS__STATUS_OWNER_BYTES 256

enum tess__status_life {
    TESS__LIFE_NONE,    /* there is no record of it */
    TESS__LIFE_RUNNING, /* its process is there */
    TESS__LIFE_STOPPED, /* the same, stopped by a signal */
    TESS__LIFE_DEAD,    /* its process has gone before the rank had ended */
    TESS__LIFE_DISTANT, /* its process is on another host */
    TESS__LIFE_ENDED,   /* the rank has ended */
    TESS__LIFE_FAILED,  /* the same, with an error */
    TESS__LIFE_ABORTED, /* the same, because another rank failed */
};

/* Some of the ranks, ascending. NULL where a pointer to it is: none. */
struct tess__status_set {
    int32_t number; /* of it, in status->set */
    int32_t count;
    int32_t rank[]; /* [count] */
};

struct tess__status_rank {
    struct tess_flight_file *file; /* a copy that has been checked; NULL: there is none */
    enum tess__status_life life;
    bool whole[TESS_FLIGHT_CALLS];            /* was not being written when it was read */
    const struct tess_flight_call *waits;     /* call that it waits for; NULL: it does not wait */
    const struct tess__status_set *waits_for; /* late for that call; ranks that wait for the same
                                                 call share it */
    bool calls_missing;                       /* they have not made it */
};

/* A call of one group that is not the same on all of its ranks. */
struct tess__status_differs {
    uint64_t number; /* 0: there is none */
    int32_t axis;    /* enum tess_axis; -1: over several */
    int32_t rank_count;
    struct {
        int32_t rank;
        const struct tess_flight_call *call;
    } * of; /* [rank_count] of the ranks whose records still have it */
};

/* A group that a rank is in. */
struct tess__status_group {
    uint32_t id;
    int32_t rank; /* of the world */
    const struct tess_flight_group *group;
};

struct tess__status {
    const char *run; /* the folder; borrowed */
    enum tess__folder_life life;
    bool live;                            /* a process has the run's lock, or may have it */
    bool ending;                          /* it fails now */
    char owner[TESS__STATUS_OWNER_BYTES]; /* "process 17 on host" */
    double now_s;                         /* CLOCK_REALTIME when the records were read */
    int32_t rank_count;
    struct tess__status_rank *rank;   /* [rank_count] */
    bool *in;                         /* [rank_count] scratch */
    struct tess__status_group *group; /* [group_count] of all ranks, by id, then rank */
    int32_t group_count;
    struct tess__status_set **set; /* [set_count] all that are below */
    int32_t set_count, set_room;
    int32_t late; /* the rank that most of those that wait are waiting for; -1: none */
    const struct tess__status_set *waiting;  /* wait for it, over others too */
    const struct tess__status_set *in_turns; /* wait for each other; then there is none late */
    struct tess__status_differs differs;
};

/*
 * Read the records of a run. TESS_ERR_NOT_FOUND: the folder has none. Of a record that is damaged
 * or truncated the error names the file, and the others are there all the same. Close in any case.
 */
enum tess_status tess__status_read(const char *run, struct tess__status *status);
void tess__status_close(struct tess__status *status);

/* Find who waits for whom, who is late, and where calls differ. Of a run that is live, waits of
 * less than a second do not count. status_find.c. */
void tess__status_find(struct tess__status *status);
/* The ranks that are in a group, [begin, *end_out) of status->group. */
int32_t tess__status_members(const struct tess__status *status, uint32_t id, int32_t *end_out);

/* ---- status_pace.c --------------------------------------------------------------------------- */

/* How fast the ranks are: the latest pace of RUN/metrics.jsonl (docs/metrics.md). A new reference;
 * NULL: there is none. */
json_t *tess__status_pace(const char *run);
/* As a table, and the links that are slow. `pace` may be NULL, and of any form. */
void tess__status_print_pace(const json_t *pace, FILE *stream);

/* ---- status_text.c --------------------------------------------------------------------------- */

/* As a table and sentences, with the last `calls` calls of each rank. */
void tess__status_print(const struct tess__status *status, int32_t calls, FILE *stream);
/* A new reference; NULL without memory. */
json_t *tess__status_json(const struct tess__status *status, int32_t calls);

/*
 * The report of a run that has failed: print it to stderr, and add it to RUN/failures.txt under a
 * line with the time and `why`. What goes wrong is a warning. status_text.c
 */
void tess__status_report_failure(const char *run, const char *why);

#endif
