/*
 * How a rank waits for one of its calls, the same for all communicators whose calls advance by
 * polling (local/, net/): it advances all its groups meanwhile, so that no order of waits in
 * different groups can block, keeps the status board up to date, and names the ranks that are late
 * when the time limit passes.
 */
#ifndef TESSERA_COMM_WAITING_H
#define TESSERA_COMM_WAITING_H

#include "comm/world.h"

struct tess__waiting {
    /* Set for each wait. */
    bool (*ready)(void *context);
    void *context;
    const struct tess_comm_call *call; /* for the board and for messages */
    uint64_t number;                   /* of the call, from 1 */

    /* Set once for a group. */
    void *group;              /* of advance, pause, is_missing, describe and fail */
    struct tess_world *world; /* NULL: none, and then no board */
    int32_t rank;             /* this rank in the world */
    int32_t rank_count;       /* of the group */
    const int32_t *member;    /* [rank_count] their numbers in the world */
    double timeout_s;
    double report_s; /* nothing has moved for so long: the board shows which rank is late */
    bool restarts;   /* the time limit counts from the last movement, not from the begin */

    /* Advance all groups of the rank without blocking. */
    enum tess_status (*advance)(void *group, bool *moved_out);
    /* Spin, yield or sleep; nothing has moved for idle_s, and the time limit is left_s away. */
    enum tess_status (*pause)(const struct tess__waiting *waiting, double idle_s, double left_s);
    /* Is a member of the group late for the call? *called_out: it has called, but not finished. Not
     * for sends and receives, whose peer is late. */
    bool (*is_missing)(void *group, uint64_t number, int32_t member, bool *called_out);
    /* What a rank of the world is doing, for messages. */
    void (*describe)(void *group, int32_t rank, char *text, size_t text_bytes);
    /* Stop all ranks for this reason, log it and return the status. */
    enum tess_status (*fail)(void *group, enum tess_status status, const char *reason);
};

/* Block until ready() is true. TESS_ERR_TIMEOUT when the time limit passes. */
enum tess_status tess__wait_for(const struct tess__waiting *group, bool (*ready)(void *context),
                                void *context, const struct tess_comm_call *call, uint64_t number);

#endif
