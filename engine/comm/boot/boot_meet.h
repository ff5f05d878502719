/* How the ranks of a job come to be connected: between boot.c, boot_meet.c and boot_settle.c. */
#ifndef TESSERA_COMM_BOOT_BOOT_MEET_H
#define TESSERA_COMM_BOOT_BOOT_MEET_H

#include "comm/boot/boot_door.h"
#include "comm/boot/boot_tree.h"

/* Time in which a verdict reaches the others, after the limit has passed. */
#define BOOT_GRACE_S 5.0

/* boot_meet.c: fill the tree, and `address`, at which others reach this rank's host. */
enum tess_status tess__boot_meet(const struct tess_boot_env *env, double timeout_s,
                                 struct boot_tree *tree, char address[TESS_BOOT_ADDRESS_BYTES]);

#define BOOT_FAILURE_TEXT 300 /* why a process has failed before it has met the others */

/* This process has failed: it sends why to rank 0, which sends it to all. answer_out: the reason
 * that rank 0 has printed first, its own or another's; "": it was not reached. */
void tess__boot_meet_failed(const struct tess_boot_env *env, const char *why,
                            char answer_out[BOOT_FAILURE_TEXT]);

/* ---- boot_early.c ---------------------------------------------------------------------------- */

/*
 * Set by tess_boot_begin; NULL before it. Modules have this room without boot_early.c, and with it
 * would have a log of their own.
 *
 *   meets   from here on the meeting itself reports failures
 *   fails   logs the reason of another rank, unless an earlier rank of this terminal has printed
 *           it; TESS_ERR_COMM
 */
struct boot_early_calls {
    void (*meets)(void);
    enum tess_status (*fails)(const struct tess_boot_env *env, const char *reason);
};
extern struct boot_early_calls tess__boot_early;

/* ---- boot_settle.c: a rank that has its place, and those behind it --------------------------- */

/* TESS_ERR_COMM for the reason of another rank. */
enum tess_status tess__boot_fail_as_other(const struct tess_boot_env *env, const char *reason);

#define MEET_VERSION 3
#define MEET_SEEN    1 /* a verdict that is none yet; others are enum tess_status */

/* From rank 0 to a rank that has come, with its place; then, and from any rank to those behind it,
 * the verdict. */
struct meet_reply {
    uint64_t magic;
    uint32_t version;
    int32_t verdict; /* enum tess_status or MEET_SEEN */
    int32_t place;   /* SEEN: of the rank; and whom it is connected with */
    int32_t up_rank, up_port;
    int32_t zero;
    char up_address[BOOT_TEXT_BYTES]; /* "": where the rank has found rank 0 */
    char reason[408];
};

_Static_assert(sizeof(struct meet_reply) == 504, "what goes over the wire has no holes");

void tess__meet_reply(int fd, int32_t verdict, const char *reason);
void tess__meet_send(int fd, const struct meet_reply *reply);
bool tess__meet_take(int fd, double limit_s, struct meet_reply *reply, char why[BOOT_WHY_BYTES]);

/* A rank elsewhere than behind rank 0 itself: connect with the one that has been given, at
 * reply->up_address. */
enum tess_status tess__settle_connect(const struct tess_boot_env *env,
                                      const struct meet_reply *reply, double limit_s, int *fd_out);
/* Take the connections of those behind this place; not on rank 0. `door` listens already. */
enum tess_status tess__settle(const struct tess_boot_env *env, struct boot_tree *tree,
                              struct boot_door *door, double limit_s);
/* Rank 0: wait until all behind its branches have settled, and send them the verdict. */
enum tess_status tess__settle_all(struct boot_tree *tree, double limit_s);
/* The verdict to the branches that there are. */
void tess__settle_announce(const struct boot_tree *tree, int32_t verdict, const char *reason);

#endif
