/*
 * The rendezvous. Every rank connects to rank 0 and greets it; rank 0 answers with the rank's place
 * in the tree (boot_tree.h). The first ones stay connected; the others are sent on to the rank that
 * is before them, which has come earlier, and rank 0 closes their connections:
 *
 *     rank r    greeting: magic, version, port, process, rank, rank count, job   -->  rank 0
 *     rank 0    reply: seen, place, address of the rank before it                -->  rank r
 *     rank r    goes there, and waits for the verdict (boot_settle.c)
 *
 * Where a rank has failed before it came, rank 0 answers all with the reason:
 *
 *     rank r    greeting with another magic, then its host and why               -->  rank 0
 *     rank 0    reply: aborted, the reason                            -->  all that come, or have
 *
 * So rank 0 has a table of all ranks, but few connections. That the first reply comes at once also
 * shows that it is rank 0 that listens, where it has one of several ports.
 *
 * Both sides of a job are little-endian; a machine that is not has another magic.
 */
#include "comm/boot/boot_meet.h"

#include "base/clock.h"
#include "comm/call.h"
#include "tessera/check.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MEET_MAGIC    UINT64_C(0x746f6f6261726574) /* "teraboot" */
#define MEET_FAILED   UINT64_C(0x6c69616665726574) /* "terefail": see struct meet_failure */
#define MEET_RETRY_S  0.1                          /* between two tries to connect */
#define MEET_SILENT_S 3.0                          /* after which another program listens there */
#define MEET_FAR_S    2.0 /* an address that takes so long to refuse is not tried at more ports */

#define MEET_WHERE_BYTES (TESS_BOOT_ADDRESS_BYTES + 40)

struct meet_hello {
    uint64_t magic;
    uint16_t version;
    uint16_t port;    /* for ranks behind this one; 0: there can be none */
    uint32_t process; /* a number of the process: does the same one come again? */
    int32_t rank, rank_count;
    uint64_t job;
};

_Static_assert(sizeof(struct meet_hello) == BOOT_HELLO_BYTES, "the greeting that is read");

/* What follows the greeting of a rank that has failed. */
struct meet_failure {
    char host[64];
    char why[BOOT_FAILURE_TEXT];
};

/* Where a rank with others behind it is found. */
struct meet_spot {
    char address[BOOT_TEXT_BYTES];
    int32_t port;
};

/* Rank 0's. */
struct meet {
    const struct tess_boot_env *env;
    struct boot_door door;
    struct boot_tree *tree;
    int32_t *place_of, *rank_of; /* [rank_count]; place 0 of another rank: it has not come */
    uint32_t *process_of;        /* [rank_count] of ranks that have come */
    struct meet_spot *spot;      /* [places with branches] */
    int32_t come;                /* ranks, itself included */
    char refused[240];           /* the latest of our own kind that was turned away, "" when none */
    char failed[BOOT_FAILURE_TEXT + 100]; /* a rank has failed, and why; "": none has */
    char why[BOOT_FAILURE_TEXT];          /* that, in the rank's own words */
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

/* A rank of this program that does not fit: send the reason, and keep it for the error message if
 * no other one comes. */
static void meet_refuse(struct meet *meet, int fd, const char *reason)
{
    char peer[BOOT_TEXT_BYTES];
    tess__boot_peer_text(fd, peer);
    snprintf(meet->refused, sizeof(meet->refused), "%s (from %s)", reason, peer);
    tess__meet_reply(fd, TESS_ERR_COMM, reason);
    close(fd);
}

/* On rank 0's own host ranks may be seen at the loopback, where others do not reach them. */
static void meet_note_spot(struct meet *meet, int fd, int32_t place, int32_t port)
{
    struct meet_spot *spot = &meet->spot[place];
    if (tess__tree_branches(place, meet->env->rank_count, meet->tree->fan) == 0)
        return;
    tess__boot_peer_text(fd, spot->address);
    spot->port = port;
    if (tess__boot_is_loopback(spot->address))
        spot->address[0] = '\0';
}

/* A rank that fits; where it comes again, as it did not wait for the reply, with the same place. */
static void meet_take(struct meet *meet, int fd, const struct meet_hello *hello)
{
    struct boot_tree *tree = meet->tree;
    int32_t *place = &meet->place_of[hello->rank];
    struct meet_reply reply = {.verdict = MEET_SEEN};
    if (*place == 0) {
        *place = meet->come++;
        meet->rank_of[*place] = hello->rank;
        meet->process_of[hello->rank] = hello->process;
    }
    reply.place = *place;
    meet_note_spot(meet, fd, *place, hello->port);
    if (*place > tree->branch_count) {
        const int32_t up = (*place - 1) / tree->fan;
        reply.up_rank = meet->rank_of[up];
        reply.up_port = meet->spot[up].port;
        memcpy(reply.up_address, meet->spot[up].address, sizeof(reply.up_address));
        tess__meet_send(fd, &reply);
        close(fd);
        return;
    }
    struct boot_branch *branch = &tree->branch[*place - 1];
    if (branch->fd >= 0)
        close(branch->fd);
    branch->fd = fd;
    branch->rank = hello->rank;
    tess__meet_send(fd, &reply);
}

/* Which rank cannot come, and why. */
static void meet_note_failure(struct meet *meet, int32_t rank, const struct meet_failure *failure)
{
    snprintf(meet->why, sizeof(meet->why), "%s", failure->why);
    snprintf(meet->failed, sizeof(meet->failed), "rank %d (host %s) has failed: %s", (int)rank,
             failure->host, failure->why);
}

static void meet_describe_failure(const char *why, struct meet_failure *failure)
{
    memset(failure, 0, sizeof(*failure));
    if (gethostname(failure->host, sizeof(failure->host) - 1) != 0)
        snprintf(failure->host, sizeof(failure->host), "?");
    snprintf(failure->why, sizeof(failure->why), "%s", why);
}

/* One that has failed is answered once its reason, the first that comes, is logged; one that has
 * not, by the reason. Each is counted once. */
static bool meet_send_away(struct meet *meet, int fd, const struct meet_hello *hello)
{
    struct meet_failure failure;
    const bool fails = hello->magic == MEET_FAILED;
    if (fails && !tess__boot_receive(fd, &failure, sizeof(failure), tess_clock_s() + 1, NULL, 0))
        return false;
    if (fails && meet->failed[0] == '\0') {
        failure.host[sizeof(failure.host) - 1] = failure.why[sizeof(failure.why) - 1] = '\0';
        meet_note_failure(meet, hello->rank, &failure);
        tess_fail(TESS_ERR_COMM, "%s", meet->failed);
    }
    if (meet->place_of[hello->rank] == 0)
        meet->place_of[hello->rank] = meet->come++;
    meet->process_of[hello->rank] = hello->process;
    tess__meet_reply(fd, TESS_ERR_ABORTED, fails ? meet->why : meet->failed);
    close(fd);
    return true;
}

/* A member, a rank that does not fit, or a stranger. */
static bool meet_greet(void *context, int fd, const unsigned char *bytes)
{
    struct meet *meet = context;
    const struct tess_boot_env *env = meet->env;
    struct meet_hello hello;
    char reason[160] = "";
    memcpy(&hello, bytes, sizeof(hello));
    if ((hello.magic != MEET_MAGIC && hello.magic != MEET_FAILED) || hello.job != env->job)
        return false;
    if (hello.version != MEET_VERSION)
        snprintf(
            reason, sizeof(reason),
            "a rank meets by version %u and rank 0 by version %d: run the same build everywhere",
            (unsigned)hello.version, MEET_VERSION);
    else if (hello.rank_count != env->rank_count)
        snprintf(reason, sizeof(reason), "rank %d was started as one of %d, rank 0 as one of %d",
                 (int)hello.rank, (int)hello.rank_count, (int)env->rank_count);
    else if (hello.rank < 1 || hello.rank >= env->rank_count)
        snprintf(reason, sizeof(reason), "rank %d is not in 1 to %d", (int)hello.rank,
                 (int)env->rank_count - 1);
    else if (meet->place_of[hello.rank] != 0 && meet->process_of[hello.rank] != hello.process)
        snprintf(reason, sizeof(reason), "rank %d is there twice", (int)hello.rank);
    if (reason[0] != '\0')
        meet_refuse(meet, fd, reason);
    else if (hello.magic == MEET_FAILED || meet->failed[0] != '\0')
        return meet_send_away(meet, fd, &hello);
    else
        meet_take(meet, fd, &hello);
    return true;
}

/* "; turned away: ...": why a rank may be missing that has tried to come. */
static void meet_name_others(const struct meet *meet, char *text, size_t bytes)
{
    if (meet->refused[0] != '\0')
        snprintf(text, bytes, "; turned away: %s", meet->refused);
    else
        tess__boot_door_others(&meet->door, text, bytes);
}

static enum tess_status meet_time_out(struct meet *meet, double timeout_s)
{
    const struct tess_boot_env *env = meet->env;
    const int32_t missing_count = env->rank_count - meet->come;
    bool *missing = calloc((size_t)env->rank_count, sizeof(*missing));
    char names[100] = "", others[280], reason[408], where[MEET_WHERE_BYTES];
    for (int32_t r = 1; r < env->rank_count && missing != NULL; r++)
        missing[r] = meet->place_of[r] == 0;
    if (missing != NULL)
        tess__name_ranks(missing, env->rank_count, names, sizeof(names));
    free(missing);
    meet_name_others(meet, others, sizeof(others));
    snprintf(reason, sizeof(reason), "rank%s %s of %d did not come to %s, within %g s",
             missing_count > 1 ? "s" : "", names, (int)env->rank_count, meet_where(env, where),
             timeout_s);
    tess__settle_announce(meet->tree, TESS_ERR_TIMEOUT, reason);
    TESS_FAIL(TESS_ERR_TIMEOUT, "%s%s", reason, others);
}

/* The reason goes to all that have come, and to those that come. */
static enum tess_status meet_give_up(struct meet *meet)
{
    const double limit_s = tess_clock_s() + BOOT_LINGER_S;
    tess__settle_announce(meet->tree, TESS_ERR_ABORTED, meet->failed);
    while (meet->come < meet->env->rank_count && tess_clock_s() < limit_s)
        tess__boot_door_look(&meet->door);
    return TESS_ERR_COMM;
}

static enum tess_status meet_loop(struct meet *meet, double timeout_s)
{
    double limit_s = tess_clock_s() + timeout_s;
    while (meet->come < meet->env->rank_count && meet->failed[0] == '\0') {
        if (tess_clock_s() > limit_s)
            return meet_time_out(meet, timeout_s);
        tess__boot_door_look(&meet->door);
    }
    if (meet->failed[0] != '\0')
        return meet_give_up(meet);
    tess__tree_set_order(meet->tree, meet->rank_of);
    return tess__settle_all(meet->tree, limit_s + BOOT_GRACE_S / 2);
}

/* The given port, or the first one that is free. */
static enum tess_status meet_listen(const struct tess_boot_env *env, struct boot_door *door)
{
    for (int32_t p = 0; p + 1 < env->port_count; p++)
        if (tess__boot_try_listen(env->address, env->port + p, &door->listener) == 0)
            return TESS_OK;
    return tess__boot_listen(
        env->address, env->port + (env->port_count > 1 ? env->port_count - 1 : 0), &door->listener);
}

/* why: for which this process itself has failed; NULL: it has not. */
static enum tess_status meet_root(const struct tess_boot_env *env, double timeout_s,
                                  const char *why, struct boot_tree *tree)
{
    struct meet_failure own;
    const size_t count = (size_t)env->rank_count;
    struct meet meet = {.env = env, .tree = tree, .come = 1};
    meet.door = (struct boot_door){.greet = meet_greet, .context = &meet, .secret = &env->secret};
    tree->order = malloc(count * sizeof(*tree->order));
    meet.place_of = calloc(count, sizeof(*meet.place_of));
    meet.rank_of = calloc(count, sizeof(*meet.rank_of));
    meet.process_of = calloc(count, sizeof(*meet.process_of));
    meet.spot = calloc(count / (size_t)tree->fan + 2, sizeof(*meet.spot));
    enum tess_status status = TESS_OK;
    if (tree->order == NULL || meet.place_of == NULL || meet.rank_of == NULL ||
        meet.process_of == NULL || meet.spot == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory to meet %d ranks", (int)env->rank_count);
    if (why != NULL) {
        meet_describe_failure(why, &own);
        meet_note_failure(&meet, 0, &own);
    }
    if (status == TESS_OK)
        status = meet_listen(env, &meet.door);
    if (status == TESS_OK)
        status = meet_loop(&meet, timeout_s);
    tess__boot_door_close(&meet.door);
    free(meet.place_of);
    free(meet.rank_of);
    free(meet.process_of);
    free(meet.spot);
    return status;
}

/* ---- the others ------------------------------------------------------------------------------ */

/* A rank that looks for rank 0. */
struct seeker {
    const struct tess_boot_env *env;
    struct boot_tree *tree;
    struct boot_door door; /* for those behind it */
    char *address;         /* at which they find it */
    uint32_t process;
    double limit_s;
    char why[BOOT_WHY_BYTES];
    bool answered; /* `why` is of one that listens, which says more than a port that is closed */
    const struct meet_failure *failure; /* NULL: it has not failed */
    char *answer;                       /* [BOOT_FAILURE_TEXT] what rank 0 answers to that */
};

/* The address of this host by which it reaches rank 0. One that reaches it without leaving the host
 * is on its host, whose name is often that of the loopback there (127.0.1.1): others find it as
 * they find rank 0. */
static void seek_note_address(struct seeker *seeker, int fd, const char *address)
{
    char own[BOOT_TEXT_BYTES];
    tess__boot_own_text(fd, own);
    snprintf(seeker->address, TESS_BOOT_ADDRESS_BYTES, "%s",
             tess__boot_is_loopback(own) ? address : own);
}

/* Greet rank 0 on a fresh connection, and take its reply. False: the listener is not rank 0, or has
 * gone; try again. */
static bool seek_ask(struct seeker *seeker, int fd, struct meet_reply *reply)
{
    const struct tess_boot_env *env = seeker->env;
    struct meet_hello hello = {.magic = seeker->failure != NULL ? MEET_FAILED : MEET_MAGIC,
                               .version = MEET_VERSION,
                               .process = seeker->process,
                               .rank = env->rank,
                               .rank_count = env->rank_count,
                               .job = env->job};
    unsigned char bytes[BOOT_HELLO_BYTES];
    const double silent_s = tess_clock_s() + MEET_SILENT_S;
    const double first_s =
        env->port_count > 1 && silent_s < seeker->limit_s ? silent_s : seeker->limit_s;
    tess__boot_unlisten(&seeker->door.listener);
    /* Only where some may be behind it: where not all are connected with rank 0. */
    if (env->rank_count - 1 > seeker->tree->fan &&
        tess__boot_try_listen(seeker->address, 0, &seeker->door.listener) != 0) {
        snprintf(seeker->why, sizeof(seeker->why), "it cannot listen at %.100s", seeker->address);
        return false;
    }
    hello.port = (uint16_t)tess__boot_port(&seeker->door.listener);
    memcpy(bytes, &hello, sizeof(bytes));
    return tess__boot_knock(fd, &env->secret, bytes, first_s, seeker->why, BOOT_WHY_BYTES) ==
               TESS_OK &&
           (seeker->failure == NULL ||
            tess__boot_send(fd, seeker->failure, sizeof(*seeker->failure), first_s, seeker->why,
                            BOOT_WHY_BYTES)) &&
           tess__meet_take(fd, first_s, reply, seeker->why);
}

/* Rank 0 has replied: stay, or go on to the rank that is named. */
static enum tess_status seek_follow(struct seeker *seeker, const char *address, int32_t port,
                                    int fd, struct meet_reply *reply)
{
    const struct tess_boot_env *env = seeker->env;
    const int32_t fan = seeker->tree->fan;
    if (reply->verdict == TESS_ERR_ABORTED) {
        close(fd);
        if (seeker->failure == NULL)
            return tess__boot_fail_as_other(env, reply->reason);
        snprintf(seeker->answer, BOOT_FAILURE_TEXT, "%.*s", BOOT_FAILURE_TEXT - 1, reply->reason);
        return TESS_ERR_ABORTED;
    }
    if (reply->verdict != MEET_SEEN || reply->place < 1 || reply->place >= env->rank_count) {
        close(fd);
        TESS_FAIL(TESS_ERR_COMM, "rank 0 at %s, port %d, turned rank %d away: %s", address,
                  (int)port, (int)env->rank, reply->reason);
    }
    tess__tree_begin(seeker->tree, env, reply->place);
    seeker->tree->up.rank = reply->up_rank;
    seeker->tree->up.fd = fd;
    if (reply->place <= fan)
        return TESS_OK;
    close(fd);
    seeker->tree->up.fd = -1;
    if (reply->up_address[0] == '\0')
        snprintf(reply->up_address, sizeof(reply->up_address), "%.63s", address);
    return tess__settle_connect(env, reply, seeker->limit_s, &seeker->tree->up.fd);
}

/* Try one address at one port. True: there is a result, in *status_out. *far_out: the connection
 * was not refused either. */
static bool seek_try(struct seeker *seeker, const char *address, int32_t port, bool *far_out,
                     enum tess_status *status_out)
{
    struct meet_reply reply;
    char why[BOOT_WHY_BYTES];
    const double begin_s = tess_clock_s();
    const int fd = tess__boot_connect(address, port, seeker->limit_s, why, sizeof(why));
    *far_out = fd < 0 && tess_clock_s() - begin_s > MEET_FAR_S;
    if (fd < 0 && !seeker->answered)
        memcpy(seeker->why, why, sizeof(why));
    if (fd < 0)
        return false;
    seeker->answered = true;
    seek_note_address(seeker, fd, address);
    if (seek_ask(seeker, fd, &reply)) {
        *status_out = seek_follow(seeker, address, port, fd, &reply);
        return true;
    }
    close(fd);
    return false;
}

/* Each address at each port, once. */
static bool seek_round(struct seeker *seeker, enum tess_status *status_out)
{
    const struct tess_boot_env *env = seeker->env;
    char addresses[TESS_BOOT_ADDRESS_BYTES], *rest = NULL;
    snprintf(addresses, sizeof(addresses), "%s", env->address);
    for (char *one = strtok_r(addresses, ",", &rest); one != NULL;
         one = strtok_r(NULL, ",", &rest)) {
        bool far = false;
        int32_t port = env->port;
        do {
            if (seek_try(seeker, one, port, &far, status_out))
                return true;
        } while (++port < env->port + env->port_count && !far);
    }
    return false;
}

/* False: rank 0 was not reached. */
static bool seek_until(struct seeker *seeker, enum tess_status *status_out)
{
    do {
        if (seek_round(seeker, status_out))
            return true;
        nanosleep(&(struct timespec){.tv_nsec = (long)(MEET_RETRY_S * 1e9)}, NULL);
    } while (tess_clock_s() < seeker->limit_s - BOOT_GRACE_S);
    return false;
}

static enum tess_status seek(struct seeker *seeker, double timeout_s)
{
    char where[MEET_WHERE_BYTES];
    enum tess_status status;
    if (seek_until(seeker, &status))
        return status;
    TESS_FAIL(TESS_ERR_TIMEOUT,
              "rank %d did not reach rank 0 at %s, within %g s: %s; is rank 0 running, "
              "and are address and port right?",
              (int)seeker->env->rank, meet_where(seeker->env, where), timeout_s, seeker->why);
}

enum tess_status tess__boot_meet(const struct tess_boot_env *env, double timeout_s,
                                 struct boot_tree *tree, char address[TESS_BOOT_ADDRESS_BYTES])
{
    struct seeker seeker = {
        .env = env, .tree = tree, .address = address, .process = (uint32_t)getpid()};
    seeker.door.secret = &env->secret;
    seeker.limit_s = tess_clock_s() + timeout_s + BOOT_GRACE_S;
    tess__tree_begin(tree, env, 0);
    TESS_TRY(tess__boot_need_files(TESS_BOOT_LINKS_MAX, "the ranks' meeting"));
    if (env->rank == 0) {
        TESS_TRY(meet_root(env, timeout_s, NULL, tree));
        /* It has the address that it was given, or of several the one where it was found. */
        if (strchr(env->address, ',') != NULL)
            tess__boot_own_text(tree->branch[0].fd, address);
        return TESS_OK;
    }
    enum tess_status status = seek(&seeker, timeout_s);
    if (status == TESS_OK)
        status = tess__settle(env, tree, &seeker.door, seeker.limit_s - BOOT_GRACE_S);
    tess__boot_door_close(&seeker.door);
    return status;
}

/* ---- a process that has failed --------------------------------------------------------------- */

static void meet_report_failure(const struct tess_boot_env *env, const char *why, char *answer)
{
    struct boot_tree tree;
    struct meet_failure failure;
    char address[TESS_BOOT_ADDRESS_BYTES] = "127.0.0.1";
    struct seeker seeker = {.env = env,
                            .tree = &tree,
                            .address = address,
                            .failure = &failure,
                            .answer = answer,
                            .process = (uint32_t)getpid()};
    enum tess_status status;
    tess__tree_begin(&tree, env, 0);
    if (env->rank == 0) {
        (void)meet_root(env, 0, why, &tree);
        tess__tree_close(&tree);
        return;
    }
    meet_describe_failure(why, &failure);
    seeker.door.secret = &env->secret;
    seeker.limit_s = tess_clock_s() + BOOT_LINGER_S + BOOT_GRACE_S;
    (void)seek_until(&seeker, &status);
    tess__boot_door_close(&seeker.door);
}

void tess__boot_meet_failed(const struct tess_boot_env *env, const char *why,
                            char answer_out[BOOT_FAILURE_TEXT])
{
    struct tess_boot_env found = *env;
    answer_out[0] = '\0';
    if (tess_boot_find(&found, BOOT_LINGER_S) == TESS_OK)
        meet_report_failure(&found, why, answer_out);
}
