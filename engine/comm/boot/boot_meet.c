/*
 * The rendezvous. Every rank connects to rank 0 and sends its number; rank 0 answers once all have
 * come.
 *
 *     rank r    hello: magic, version, rank, rank count, job
 *     rank 0                                  reply: magic, seen
 *     rank 0      (once all have come)        reply: magic, verdict, reason
 *
 * The first reply comes at once: where rank 0 has one of several ports, a listener that is
 * silent on another one is not rank 0.
 *
 * Both sides of a job are little-endian; a machine that is not has another magic.
 */
#include "comm/boot/boot_meet.h"

#include "base/clock.h"
#include "comm/boot/boot_door.h"
#include "comm/call.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MEET_MAGIC    UINT64_C(0x746f6f6261726574) /* "teraboot" */
#define MEET_VERSION  2
#define MEET_SEEN     1   /* a verdict that is none yet; others are enum tess_status */
#define MEET_RETRY_S  0.1 /* between two tries to connect */
#define MEET_SILENT_S 3.0 /* after which another program listens there */
#define MEET_FAR_S    2.0 /* an address that takes so long to refuse is not tried at more ports */

#define MEET_WHERE_BYTES (TESS_BOOT_ADDRESS_BYTES + 40)

struct meet_hello {
    uint64_t magic;
    uint32_t version;
    int32_t rank, rank_count;
    uint32_t zero;
    uint64_t job;
};

struct meet_reply {
    uint64_t magic;
    uint32_t version;
    int32_t verdict; /* enum tess_status or MEET_SEEN */
    char reason[496];
};

_Static_assert(sizeof(struct meet_hello) == BOOT_HELLO_BYTES && sizeof(struct meet_reply) == 512,
               "what goes over the wire has no holes");

struct meet {
    const struct tess_boot_env *env;
    struct boot_door door;
    int *fd; /* [rank_count] of the members; -1: missing */
    int32_t missing_count;
    char refused[240]; /* the latest of our own kind that was turned away, "" when none */
};

/* "a, port 5" or "a, ports 5 to 9". */
static const char *meet_where(const struct tess_boot_env *env, char text[MEET_WHERE_BYTES])
{
    if (env->port_count > 1)
        snprintf(text, MEET_WHERE_BYTES, "%s, ports %d to %d", env->address, (int)env->port,
                 (int)(env->port + env->port_count - 1));
    else
        snprintf(text, MEET_WHERE_BYTES, "%s, port %d", env->address, (int)env->port);
    return text;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

static void meet_reply(int fd, int32_t verdict, const char *reason)
{
    struct meet_reply reply = {.magic = MEET_MAGIC, .version = MEET_VERSION, .verdict = verdict};
    snprintf(reply.reason, sizeof(reply.reason), "%s", reason);
    /* Fits any socket's buffer. A rank that has gone meanwhile is found missing by what follows. */
    (void)tess__boot_send(fd, &reply, sizeof(reply), tess_clock_s() + 1, NULL, 0);
}

/* A rank of this program that does not fit: send the reason, and keep it for the error message if
 * no other one comes. */
static void meet_refuse(struct meet *meet, int fd, const char *reason)
{
    char peer[BOOT_TEXT_BYTES];
    tess__boot_peer_text(fd, peer);
    snprintf(meet->refused, sizeof(meet->refused), "%s (from %s)", reason, peer);
    meet_reply(fd, TESS_ERR_COMM, reason);
    close(fd);
}

/* A member, a rank that does not fit, or a stranger. */
static bool meet_greet(void *context, int fd, const unsigned char *bytes)
{
    struct meet *meet = context;
    const struct tess_boot_env *env = meet->env;
    struct meet_hello hello;
    char reason[160];
    memcpy(&hello, bytes, sizeof(hello));
    if (hello.magic != MEET_MAGIC || hello.job != env->job)
        return false;
    if (hello.version != MEET_VERSION) {
        snprintf(
            reason, sizeof(reason),
            "a rank meets by version %u and rank 0 by version %d: run the same build everywhere",
            (unsigned)hello.version, MEET_VERSION);
    } else if (hello.rank_count != env->rank_count) {
        snprintf(reason, sizeof(reason), "rank %d was started as one of %d, rank 0 as one of %d",
                 (int)hello.rank, (int)hello.rank_count, (int)env->rank_count);
    } else if (hello.rank < 1 || hello.rank >= env->rank_count) {
        snprintf(reason, sizeof(reason), "rank %d is not in 1 to %d", (int)hello.rank,
                 (int)env->rank_count - 1);
    } else if (meet->fd[hello.rank] >= 0) {
        snprintf(reason, sizeof(reason), "rank %d is there twice", (int)hello.rank);
    } else {
        meet->fd[hello.rank] = fd;
        meet->missing_count--;
        meet_reply(fd, MEET_SEEN, "");
        return true;
    }
    meet_refuse(meet, fd, reason);
    return true;
}

static enum tess_status meet_time_out(struct meet *meet, double timeout_s)
{
    const struct tess_boot_env *env = meet->env;
    bool missing[TESS_BOOT_RANKS_MAX];
    char names[100], others[280] = "", reason[496], where[MEET_WHERE_BYTES];
    for (int32_t r = 0; r < env->rank_count; r++)
        missing[r] = r > 0 && meet->fd[r] < 0;
    tess__name_ranks(missing, env->rank_count, names, sizeof(names));
    if (meet->refused[0] != '\0')
        snprintf(others, sizeof(others), "; turned away: %s", meet->refused);
    else if (meet->door.strangers > 0)
        snprintf(others, sizeof(others), "; %d connection%s of others %s turned away",
                 meet->door.strangers, meet->door.strangers > 1 ? "s" : "",
                 meet->door.strangers > 1 ? "were" : "was");
    snprintf(reason, sizeof(reason), "rank%s %s of %d did not come to %s, within %g s",
             meet->missing_count > 1 ? "s" : "", names, (int)env->rank_count,
             meet_where(env, where), timeout_s);
    for (int32_t r = 1; r < env->rank_count; r++)
        if (meet->fd[r] >= 0)
            meet_reply(meet->fd[r], TESS_ERR_TIMEOUT, reason);
    TESS_FAIL(TESS_ERR_TIMEOUT, "%s%s", reason, others);
}

static enum tess_status meet_loop(struct meet *meet, double timeout_s)
{
    double limit_s = tess_clock_s() + timeout_s;
    while (meet->missing_count > 0) {
        if (tess_clock_s() > limit_s)
            return meet_time_out(meet, timeout_s);
        tess__boot_door_look(&meet->door);
    }
    for (int32_t r = 1; r < meet->env->rank_count; r++)
        meet_reply(meet->fd[r], TESS_OK, "");
    return TESS_OK;
}

/* The given port, or the first one that is free. */
static enum tess_status meet_listen(struct meet *meet)
{
    const struct tess_boot_env *env = meet->env;
    for (int32_t p = 0; p + 1 < env->port_count; p++)
        if (tess__boot_try_listen(env->address, env->port + p, &meet->door.listener) == 0)
            return TESS_OK;
    return tess__boot_listen(env->address,
                             env->port + (env->port_count > 1 ? env->port_count - 1 : 0),
                             &meet->door.listener);
}

enum tess_status tess__boot_gather_members(const struct tess_boot_env *env, double timeout_s,
                                           int *fd_out)
{
    struct meet meet = {.env = env,
                        .door = {.greet = meet_greet, .context = &meet},
                        .fd = fd_out,
                        .missing_count = env->rank_count - 1};
    enum tess_status status = meet_listen(&meet);
    if (status == TESS_OK)
        status = meet_loop(&meet, timeout_s);
    tess__boot_door_close(&meet.door);
    return status;
}

/* ---- the others ------------------------------------------------------------------------------ */

static bool meet_take(int fd, double limit_s, struct meet_reply *reply, char why[BOOT_WHY_BYTES])
{
    if (!tess__boot_receive(fd, reply, sizeof(*reply), limit_s, why, BOOT_WHY_BYTES))
        return false;
    reply->reason[sizeof(reply->reason) - 1] = '\0';
    if (reply->magic == MEET_MAGIC && reply->version == MEET_VERSION)
        return true;
    snprintf(why, BOOT_WHY_BYTES, "what listens there is not rank 0 of this program");
    return false;
}

/* Wait for rank 0's verdict on a fresh connection. False: the listener is not rank 0, or has gone;
 * try again. */
static bool meet_ask(const struct tess_boot_env *env, int fd, double limit_s,
                     struct meet_reply *reply, char why[BOOT_WHY_BYTES])
{
    const struct meet_hello hello = {.magic = MEET_MAGIC,
                                     .version = MEET_VERSION,
                                     .rank = env->rank,
                                     .rank_count = env->rank_count,
                                     .job = env->job};
    const double silent_s = tess_clock_s() + MEET_SILENT_S;
    const double first_s = env->port_count > 1 && silent_s < limit_s ? silent_s : limit_s;
    if (!tess__boot_send(fd, &hello, sizeof(hello), first_s, why, BOOT_WHY_BYTES) ||
        !meet_take(fd, first_s, reply, why))
        return false;
    return reply->verdict != MEET_SEEN || meet_take(fd, limit_s, reply, why);
}

/* Try one address at one port. True: there is a verdict, in *status_out. *far_out: the
 * connection was not refused either. */
static bool meet_try(const struct tess_boot_env *env, const char *address, int32_t port,
                     double limit_s, int *fd_out, enum tess_status *status_out, bool *far_out,
                     char why[BOOT_WHY_BYTES])
{
    struct meet_reply reply;
    const double begin_s = tess_clock_s();
    int fd = tess__boot_connect(address, port, limit_s, why, BOOT_WHY_BYTES);
    *far_out = fd < 0 && tess_clock_s() - begin_s > MEET_FAR_S;
    if (fd >= 0 && meet_ask(env, fd, limit_s, &reply, why)) {
        *status_out = TESS_OK;
        if (reply.verdict == TESS_OK) {
            *fd_out = fd;
            return true;
        }
        close(fd);
        *status_out =
            reply.verdict == TESS_ERR_TIMEOUT
                ? tess_fail(TESS_ERR_TIMEOUT, "rank %d is there, but %s", (int)env->rank,
                            reply.reason)
                : tess_fail(TESS_ERR_COMM, "rank 0 at %s, port %d, turned rank %d away: %s",
                            address, (int)port, (int)env->rank, reply.reason);
        return true;
    }
    if (fd >= 0)
        close(fd);
    return false;
}

/* Each address at each port, once. */
static bool meet_round(const struct tess_boot_env *env, double limit_s, int *fd_out,
                       enum tess_status *status_out, char why[BOOT_WHY_BYTES])
{
    char addresses[TESS_BOOT_ADDRESS_BYTES], *rest = NULL;
    snprintf(addresses, sizeof(addresses), "%s", env->address);
    for (char *one = strtok_r(addresses, ",", &rest); one != NULL;
         one = strtok_r(NULL, ",", &rest)) {
        bool far = false;
        int32_t port = env->port;
        do {
            if (meet_try(env, one, port, limit_s, fd_out, status_out, &far, why))
                return true;
        } while (++port < env->port + env->port_count && !far);
    }
    return false;
}

enum tess_status tess__boot_join(const struct tess_boot_env *env, double timeout_s, int *fd_out)
{
    double limit_s = tess_clock_s() + timeout_s + BOOT_GRACE_S;
    char why[BOOT_WHY_BYTES] = "", where[MEET_WHERE_BYTES];
    enum tess_status status;
    do {
        if (meet_round(env, limit_s, fd_out, &status, why))
            return status;
        nanosleep(&(struct timespec){.tv_nsec = (long)(MEET_RETRY_S * 1e9)}, NULL);
    } while (tess_clock_s() < limit_s - BOOT_GRACE_S);
    TESS_FAIL(TESS_ERR_TIMEOUT,
              "rank %d did not reach rank 0 at %s, within %g s: %s; is rank 0 running, "
              "and are address and port right?",
              (int)env->rank, meet_where(env, where), timeout_s, why);
}
