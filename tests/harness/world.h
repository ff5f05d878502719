/*
 * Run a function once per rank, as threads or as processes, and bring back what went wrong in any
 * of them. Test frameworks' own assertions jump and stay on the main thread; ranks return instead.
 */
#ifndef TESSERA_TESTS_HARNESS_WORLD_H
#define TESSERA_TESTS_HARNESS_WORLD_H

#include "comm/world.h"
#include "tessera/log.h"

/* What a rank does: 0, or the value of world_fail(). */
typedef int (*world_function)(struct tess_comm *comm, struct tess_world *world, void *arg);

struct world_setup {
    int32_t ranks;
    enum tess_rank_mode mode;
    enum tess_order order;
    bool self;        /* one rank, on the `self` communicator; world is NULL */
    bool tcp;         /* on sockets, between ranks of that mode */
    double timeout_s; /* of one wait; 0: 30 */
    double limit_s;   /* of the whole run; 0: 100 */
};

/* How a rank failed. */
struct world_failure {
    int32_t rank;
    int status; /* what the function returned */
    int signal; /* that ended the process, or 0 */
    char text[512];
};

#define WORLD_FAILURES 16

struct world_report {
    int failed;     /* ranks that failed, died or were stopped */
    double seconds; /* of the whole run */
    int kept;       /* the first ones of those: */
    struct world_failure failure[WORLD_FAILURES];
};

/*
 * Returns the number of ranks that failed. A process that dies is announced to the others by
 * tess_world_abort(), as a launcher does.
 */
int world_run_setup(const struct world_setup *setup, world_function fn, void *arg,
                    struct world_report *report);

/* The same with usual limits; prints the failures to stderr. */
int world_run(int32_t ranks, enum tess_rank_mode mode, enum tess_order order, world_function fn,
              void *arg);

void world_print(const struct world_report *report);

/* Keep the text for the report; returns 1. */
int world_fail(const char *format, ...) TESS_PRINTF(1, 2);

/* Leave the rank's function when `condition` is false. */
#define WORLD_CHECK(condition)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return world_fail("%s:%d: %s", __FILE__, __LINE__, #condition);                        \
    } while (0)

/* Leave the rank's function when `call` does not give TESS_OK. */
#define WORLD_OK(call)                                                                             \
    do {                                                                                           \
        enum tess_status world_status_ = (call);                                                   \
        if (world_status_ != TESS_OK)                                                              \
            return world_fail("%s:%d: %s: %s", __FILE__, __LINE__, #call,                          \
                              tess_status_text(world_status_));                                    \
    } while (0)

#endif
