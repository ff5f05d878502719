/*
 * A rank that rank 0 has given a place, rank r at place p, waits for the ranks behind it, then for
 * the verdict:
 *
 *     rank s, behind p     greeting: magic, version, s, its place, r, job   -->  rank r
 *     rank s               ready: magic, s    (once all behind s have come, where there are any)
 *     rank r               the same to its own
 *     rank 0               (once all have come)   verdict     -->  to all, from place to place
 *
 * Where one of them does not come in time, the reason goes the same ways.
 */
#include "comm/boot/boot_meet.h"

#include "base/clock.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SETTLE_MAGIC   UINT64_C(0x6565727472657474) /* "ttertree" */
#define SETTLE_RETRY_S 0.1                          /* between two tries to connect */
#define MEET_MAGIC     UINT64_C(0x796c706572726574) /* "terreply" */

struct settle_greeting {
    uint64_t magic;
    uint32_t version;
    int32_t rank, place;
    int32_t to; /* the rank that it goes to */
    uint64_t job;
};

struct settle_ready {
    uint64_t magic;
    int32_t rank, failed;
    char reason[408]; /* failed */
};

_Static_assert(sizeof(struct settle_greeting) == BOOT_HELLO_BYTES &&
                   sizeof(struct settle_ready) == 424,
               "what goes over the wire has no holes");

struct settle {
    const struct tess_boot_env *env;
    struct boot_tree *tree;
    int32_t missing;
};

/* ---- the failures of others ------------------------------------------------------------------ */

struct boot_early_calls tess__boot_early;

enum tess_status tess__boot_fail_as_other(const struct tess_boot_env *env, const char *reason)
{
    return tess__boot_early.fails != NULL ? tess__boot_early.fails(env, reason)
                                          : tess_fail(TESS_ERR_COMM, "%s", reason);
}

/* ---- replies --------------------------------------------------------------------------------- */

/* Fits any socket's buffer. A rank that has gone meanwhile is found missing by what follows. */
void tess__meet_send(int fd, const struct meet_reply *reply)
{
    struct meet_reply whole = *reply;
    whole.magic = MEET_MAGIC;
    whole.version = MEET_VERSION;
    (void)tess__boot_send(fd, &whole, sizeof(whole), tess_clock_s() + 1, NULL, 0);
}

void tess__meet_reply(int fd, int32_t verdict, const char *reason)
{
    struct meet_reply reply = {.verdict = verdict};
    snprintf(reply.reason, sizeof(reply.reason), "%s", reason);
    tess__meet_send(fd, &reply);
}

bool tess__meet_take(int fd, double limit_s, struct meet_reply *reply, char why[BOOT_WHY_BYTES])
{
    if (!tess__boot_receive(fd, reply, sizeof(*reply), limit_s, why, BOOT_WHY_BYTES))
        return false;
    reply->reason[sizeof(reply->reason) - 1] = '\0';
    reply->up_address[sizeof(reply->up_address) - 1] = '\0';
    if (reply->magic == MEET_MAGIC && reply->version == MEET_VERSION)
        return true;
    snprintf(why, BOOT_WHY_BYTES, "what came from there is no reply of this version");
    return false;
}

void tess__settle_announce(const struct boot_tree *tree, int32_t verdict, const char *reason)
{
    for (int32_t b = 0; b < tree->branch_count; b++)
        if (tree->branch[b].fd >= 0)
            tess__meet_reply(tree->branch[b].fd, verdict, reason);
}

/* ---- to the rank before this one ------------------------------------------------------------- */

/* It listens since before rank 0 gave its address. */
enum tess_status tess__settle_connect(const struct tess_boot_env *env,
                                      const struct meet_reply *reply, double limit_s, int *fd_out)
{
    const struct settle_greeting greeting = {.magic = SETTLE_MAGIC,
                                             .version = MEET_VERSION,
                                             .rank = env->rank,
                                             .place = reply->place,
                                             .to = reply->up_rank,
                                             .job = env->job};
    char why[BOOT_WHY_BYTES] = "";
    unsigned char bytes[BOOT_HELLO_BYTES];
    memcpy(bytes, &greeting, sizeof(bytes));
    do {
        const int fd =
            tess__boot_connect(reply->up_address, reply->up_port, limit_s, why, sizeof(why));
        if (fd >= 0 &&
            tess__boot_knock(fd, &env->secret, bytes, limit_s, why, sizeof(why)) == TESS_OK) {
            *fd_out = fd;
            return TESS_OK;
        }
        if (fd >= 0)
            close(fd);
        nanosleep(&(struct timespec){.tv_nsec = (long)(SETTLE_RETRY_S * 1e9)}, NULL);
    } while (tess_clock_s() < limit_s);
    TESS_FAIL(TESS_ERR_TIMEOUT,
              "rank %d does not reach rank %d at %s, port %d, through which it is to be connected "
              "with rank 0: %s",
              (int)env->rank, (int)reply->up_rank, reply->up_address, (int)reply->up_port, why);
}

/* ---- those behind ---------------------------------------------------------------------------- */

static bool settle_greet(void *context, int fd, const unsigned char *bytes)
{
    struct settle *settle = context;
    struct boot_tree *tree = settle->tree;
    struct settle_greeting greeting;
    char reason[60];
    memcpy(&greeting, bytes, sizeof(greeting));
    const int64_t b = (int64_t)greeting.place - ((int64_t)tree->place * tree->fan + 1);
    if (greeting.magic != SETTLE_MAGIC || greeting.version != MEET_VERSION ||
        greeting.job != settle->env->job || greeting.to != settle->env->rank || b < 0 ||
        b >= tree->branch_count || greeting.rank < 1 || greeting.rank >= tree->rank_count)
        return false;
    if (tree->branch[b].fd < 0) {
        tree->branch[b].fd = fd;
        tree->branch[b].rank = greeting.rank;
        settle->missing--;
        return true;
    }
    snprintf(reason, sizeof(reason), "rank %d is there twice", (int)greeting.rank);
    tess__meet_reply(fd, TESS_ERR_COMM, reason);
    close(fd);
    return true;
}

static void settle_send_ready(const struct settle *settle, const char *failed)
{
    struct settle_ready ready = {
        .magic = SETTLE_MAGIC, .rank = settle->env->rank, .failed = failed != NULL};
    snprintf(ready.reason, sizeof(ready.reason), "%s", failed != NULL ? failed : "");
    (void)tess__boot_send(settle->tree->up.fd, &ready, sizeof(ready), tess_clock_s() + 1, NULL, 0);
}

/* False: not all have come; or rank 0 has given up, which its verdict explains. */
static bool settle_accept(struct settle *settle, struct boot_door *door, double limit_s,
                          char reason[240])
{
    const struct boot_tree *tree = settle->tree;
    settle->missing = tree->branch_count;
    while (settle->missing > 0 && tess_clock_s() < limit_s && !tess__boot_ready(tree->up.fd))
        tess__boot_door_look(door);
    if (settle->missing > 0)
        snprintf(reason, 240, "%d of the %d ranks that were sent on to rank %d did not reach it",
                 (int)settle->missing, (int)tree->branch_count, (int)settle->env->rank);
    return settle->missing == 0;
}

/* Those behind a branch have all settled. up: of this rank, -1 on rank 0. */
static bool settle_take_ready(const struct boot_branch *branch, int up, double limit_s,
                              char reason[BOOT_WHY_BYTES + 300])
{
    struct settle_ready ready;
    char why[BOOT_WHY_BYTES] = "nothing came";
    if (branch->count == 1)
        return true;
    if (up >= 0 && tess__boot_wait_either(branch->fd, up, limit_s) && tess__boot_ready(up))
        return false;
    if (!tess__boot_receive(branch->fd, &ready, sizeof(ready), limit_s, why, sizeof(why)) ||
        ready.magic != SETTLE_MAGIC) {
        snprintf(reason, BOOT_WHY_BYTES + 300,
                 "rank %d, through which %d others were to be connected, did not get to it: %s",
                 (int)branch->rank, (int)branch->count - 1, why);
        return false;
    }
    ready.reason[sizeof(ready.reason) - 1] = '\0';
    snprintf(reason, BOOT_WHY_BYTES + 300, "%.*s", BOOT_WHY_BYTES + 250, ready.reason);
    return ready.failed == 0;
}

/* The verdict, which goes on to those behind. */
static enum tess_status settle_conclude(const struct settle *settle, double limit_s)
{
    struct boot_tree *tree = settle->tree;
    struct meet_reply reply;
    char why[BOOT_WHY_BYTES], reason[BOOT_WHY_BYTES + 80];
    if (!tess__meet_take(tree->up.fd, limit_s, &reply, why)) {
        snprintf(reason, sizeof(reason), "rank %d, through which ranks are connected, has gone: %s",
                 (int)tree->up.rank, why);
        tess__settle_announce(tree, TESS_ERR_COMM, reason);
        TESS_FAIL(tess_clock_s() >= limit_s ? TESS_ERR_TIMEOUT : TESS_ERR_COMM, "%s", reason);
    }
    tess__settle_announce(tree, reply.verdict, reply.reason);
    if (reply.verdict == TESS_OK)
        return TESS_OK;
    if (reply.verdict == TESS_ERR_ABORTED)
        return tess__boot_fail_as_other(settle->env, reply.reason);
    TESS_FAIL(reply.verdict == TESS_ERR_TIMEOUT ? TESS_ERR_TIMEOUT : TESS_ERR_COMM,
              "rank %d is there, but %s", (int)settle->env->rank, reply.reason);
}

enum tess_status tess__settle(const struct tess_boot_env *env, struct boot_tree *tree,
                              struct boot_door *door, double limit_s)
{
    struct settle settle = {.env = env, .tree = tree};
    char reason[BOOT_WHY_BYTES + 300] = "";
    door->greet = settle_greet;
    door->context = &settle;
    bool all = settle_accept(&settle, door, limit_s, reason);
    for (int32_t b = 0; b < tree->branch_count && all; b++)
        all = settle_take_ready(&tree->branch[b], tree->up.fd, limit_s, reason);
    if (tree->branch_count > 0 && (all || reason[0] != '\0'))
        settle_send_ready(&settle, all ? NULL : reason);
    return settle_conclude(&settle, limit_s + BOOT_GRACE_S);
}

enum tess_status tess__settle_all(struct boot_tree *tree, double limit_s)
{
    char reason[BOOT_WHY_BYTES + 300] = "";
    for (int32_t b = 0; b < tree->branch_count; b++)
        if (!settle_take_ready(&tree->branch[b], -1, limit_s, reason)) {
            tess__settle_announce(tree, TESS_ERR_TIMEOUT, reason);
            TESS_FAIL(TESS_ERR_TIMEOUT, "%s", reason);
        }
    tess__settle_announce(tree, TESS_OK, "");
    return TESS_OK;
}
