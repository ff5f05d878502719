/*
 * Compares, before every collective, what the ranks of a group are about to do, and stops all of
 * them at the first difference with one message that names ranks and calls. For --debug: it costs a
 * small exchange per call and makes ranks wait for each other.
 */
#ifndef TESSERA_COMM_DEBUG_H
#define TESSERA_COMM_DEBUG_H

#include "comm/world.h"

/*
 * From here on the calls of `comm`, and of groups that are split from it, are compared. Sums, bits
 * and counters stay those of comm, without the exchange (in which ranks wait for a late one, so
 * that wait_s has little of that). `board`: this rank's; NULL: none. `unit_name` [unit_count], for
 * messages, may be NULL; both are borrowed until close. Where comm was split from one that is
 * compared, these settings take the place of that one's. Collective; takes one more group of comm,
 * as does every split.
 *
 * Compared: operation, reduction, dtype, count, root, and the step on the board. Equal operations
 * from different call sites are a difference only if the units differ too: one branch per role is
 * usual. Split is compared as a call; alloc, whose bytes may differ, is not; of send and recv,
 * count and dtype, by the receiver. A difference gives TESS_ERR_COMM on every rank of the group and
 * aborts the world. A rank that makes no call at all is named when the time limit passes, with the
 * call it is missing from.
 *
 * A collective returns only when all ranks of the group have called it. So programs that lean on
 * its being queued may wait for each other until the time limit: calls of two groups made in
 * different orders, a message that is sent after a collective which its receiver has not called.
 */
enum tess_status tess_comm_debug_open(struct tess_comm *comm, const struct tess_board *board,
                                      const char *const *unit_name, int32_t unit_count);

/* What comm.c calls, where tess_comm.debug is there; debug.c has what follows these. */
struct comm_debug {
    enum tess_status (*compare)(struct comm_debug *debug, const struct tess_comm_call *call);
    enum tess_status (*compare_split)(struct comm_debug *debug); /* at tess_comm_site */
    /* The same for a group that was split off, with these settings. */
    enum tess_status (*follow)(struct tess_comm *child, const struct comm_debug *debug);
    void (*close)(struct comm_debug *debug);
};

#endif
