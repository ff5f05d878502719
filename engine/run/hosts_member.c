/* A host that is not the leader's: joins, and does what the leader sends. */
#include "base/clock.h"
#include "run/hosts_room.h"
#include "run/metrics.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMBER_TRY_MS 200
/* For one connection: over a link that is cut the kernel waits ever longer between two tries. */
#define MEMBER_TRY_S 2.0
/* Hosts are started one after the other. Where the leader is not reached for longer, the address or
 * the port may be wrong, which is reported. */
#define MEMBER_QUIET_S 5.0
/* A host that is to lead, and whose port is taken, looks for a leader there for so long. */
#define MEMBER_STRANGER_S 10.0

/* Has a training that this host took part in ended since the leader has gone? */
static bool member_has_missed_end(const struct tess__hosts *hosts, const struct hosts_crew *crew)
{
    return crew->count > 0 && tess_metrics_has_end(hosts->restart.run);
}

/* A host's way to the leader, and what it has got by it. */
struct member {
    const struct tess__hosts *hosts;
    struct hosts_crew *crew;
    const struct hosts_hello *hello;
    struct hosts_relay relay;
    int32_t number;              /* by the leader; 0: it has none yet */
    int32_t seen;                /* number of the last order */
    int32_t answer;              /* of the last one that is answered by HOSTS_ENDED */
    int up;                      /* the connection towards the leader; -1: none */
    bool direct;                 /* it is with the leader itself */
    bool forgotten;              /* the leader goes on without it */
    struct hosts_source *source; /* [source_count] */
    int32_t source_count;
    bool contends;    /* this host is the one that --meet names, and its port was taken */
    double strange_s; /* since when nothing of this program has answered there */
    bool warned[2];   /* of no leader; of one that does not admit this host */
};

/* OVER: the training has ended, or this host is to. FREE: it may lead. */
enum way { WAY_THERE, WAY_LOST, WAY_OVER, WAY_FREE };

static void member_hang_up(struct member *member)
{
    if (member->up < 0)
        return;
    tess__crew_unwatch(member->crew, member->up);
    close(member->up);
    member->up = -1;
}

static void member_keep(struct member *member, int fd, bool direct)
{
    tess__boot_keep_alive(fd, member->hosts->timeout_s);
    tess__crew_watch(member->crew, fd);
    member->up = fd;
    member->direct = direct;
}

/* A few words to the leader; where the way is lost the next read finds that. */
static void member_send(const struct member *member, struct hosts_news news)
{
    news.from = member->number;
    news.answer = member->answer;
    (void)tess__boot_send(member->up, &news, sizeof(news), tess_clock_s() + HOSTS_SEND_S, NULL, 0);
}

/* Connected, and both sides have proved that they have the job's secret; else as tess__boot_knock.
 * Where others find this host is known once it has reached the leader. */
static enum tess_status member_knock(struct member *member, const char *address, int32_t port,
                                     struct hosts_hello *hello, int *fd_out,
                                     char why[BOOT_WHY_BYTES])
{
    const double limit_s = tess_clock_s() + MEMBER_TRY_S;
    const int fd = tess__boot_connect(address, port, limit_s, why, BOOT_WHY_BYTES);
    unsigned char greeting[TESS_GREETING_BYTES];
    if (fd < 0)
        return TESS_ERR_COMM;
    if (tess__relay_port(&member->relay) == 0 &&
        !tess__relay_open(&member->relay, member->crew, member->hosts, fd)) {
        snprintf(why, BOOT_WHY_BYTES, "cannot listen for other hosts: %s", strerror(errno));
        close(fd);
        return TESS_ERR_COMM;
    }
    hello->port = (uint16_t)tess__relay_port(&member->relay);
    memcpy(greeting, hello, sizeof(greeting));
    const enum tess_status status =
        tess__boot_knock(fd, &member->hosts->secret, greeting, limit_s, why, BOOT_WHY_BYTES);
    if (status == TESS_OK)
        *fd_out = fd;
    else
        close(fd);
    return status;
}

/* The leader has sent this host on. */
static enum tess_status member_follow(struct member *member, const struct hosts_order *place,
                                      char why[BOOT_WHY_BYTES])
{
    int fd;
    struct hosts_hello hello = {.number = member->number};
    memcpy(hello.magic, HOSTS_VIA, sizeof(hello.magic));
    const char *address = place->partner[0] != '\0' ? place->partner : member->hosts->address;
    const enum tess_status status =
        member_knock(member, address, place->partner_port, &hello, &fd, why);
    if (status != TESS_OK)
        return status;
    member_keep(member, fd, false);
    member_send(member, (struct hosts_news){.kind = HOSTS_JOINED});
    return TESS_OK;
}

/* Greet the leader, and go where it says. As tess__boot_knock; TESS_ERR_USAGE: it is there, and
 * does not take this host. */
static enum tess_status member_try(struct member *member, struct hosts_order *order,
                                   char why[BOOT_WHY_BYTES])
{
    const struct tess__hosts *hosts = member->hosts;
    struct hosts_hello hello = *member->hello;
    if (member->number > 0) {
        memcpy(hello.magic, HOSTS_AGAIN, sizeof(hello.magic));
        hello.number = member->number;
        hello.seen = member->seen;
    }
    int fd;
    enum tess_status status = member_knock(member, hosts->address, hosts->port, &hello, &fd, why);
    if (status != TESS_OK)
        return status;
    if (!tess__boot_receive(fd, order, sizeof(*order), tess_clock_s() + HOSTS_SEND_S, NULL, 0) ||
        memchr(order->partner, '\0', sizeof(order->partner)) == NULL) {
        snprintf(why, BOOT_WHY_BYTES,
                 "the leader that listens there has no place for this host, or is of another "
                 "version: install the same one on all hosts");
        close(fd);
        return TESS_ERR_USAGE;
    }
    if (order->kind == HOSTS_QUIT && hosts->elastic) { /* it waits for another leader */
        snprintf(why, BOOT_WHY_BYTES, "%.*s", BOOT_WHY_BYTES - 1, order->why);
        close(fd);
        return TESS_ERR_USAGE;
    }
    if (order->kind == HOSTS_PLACE)
        member->number = order->to;
    if (order->kind != HOSTS_PLACE || order->partner_port == 0) {
        member_keep(member, fd, true);
        return TESS_OK;
    }
    status = member_follow(member, order, why);
    close(fd);
    return status;
}

/* Once for each kind: it goes on trying. */
static void member_warn(struct member *member, enum tess_status status, bool quiet, const char *why)
{
    const struct tess__hosts *hosts = member->hosts;
    const bool refused = status != TESS_ERR_COMM;
    if (member->warned[refused] || (!refused && quiet))
        return;
    member->warned[refused] = true;
    tess_log(TESS_LOG_WARN, "%s the training at %s:%d, trying again: %s",
             refused ? "not admitted to" : "cannot reach", hosts->address, hosts->port, why);
}

/* What the leader may not have got, as the way was lost. */
static void member_say_again(const struct member *member)
{
    if (member->crew->ends && !member->hosts->signalled)
        member_send(member, (struct hosts_news){.kind = HOSTS_LEAVES});
    if (member->answer > 0 && member->crew->alive == 0)
        member_send(member, member->crew->news);
}

/* Whoever has the port of this host: a leader of an earlier training, which ends soon; one that
 * does not admit it; or a program of another kind, beside which nobody can lead. */
static enum way member_contend(struct member *member, enum tess_status tried, int *code_out)
{
    const struct tess__hosts *hosts = member->hosts;
    struct boot_listener listener;
    if (tess__boot_try_listen(hosts->address, hosts->port, &listener) == 0) {
        tess__boot_unlisten(&listener);
        return WAY_FREE;
    }
    if (member->strange_s == 0 || tried == TESS_ERR_USAGE)
        member->strange_s = tess_clock_s();
    member->contends = member->number == 0;
    if (tess_clock_s() - member->strange_s < MEMBER_STRANGER_S || !member->contends)
        return WAY_LOST;
    *code_out = tess_status_exit_code(tess_fail(
        TESS_ERR_COMM,
        "no host can lead at %s:%d: another program has port %d of this host, and did not "
        "greet as a leader within %g s; end it, or take another port on all hosts (--meet)",
        hosts->address, hosts->port, hosts->port, MEMBER_STRANGER_S));
    return WAY_OVER;
}

/* *order_out: what the leader has answered. */
static enum way member_join(struct member *member, struct hosts_order *order_out, int *code_out)
{
    const struct tess__hosts *hosts = member->hosts;
    struct hosts_crew *crew = member->crew;
    const bool again = member->number > 0;
    const double begin_s = tess_clock_s();
    const double limit_s = begin_s + (again ? HOSTS_ORPHAN_S : HOSTS_JOIN_S);
    char why[BOOT_WHY_BYTES] = "";
    enum tess_status tried = TESS_ERR_COMM;
    enum way way = WAY_LOST;
    if (!again)
        tess_log(TESS_LOG_INFO, "joins the training at %s:%d, with up to %d rank%s", hosts->address,
                 hosts->port, member->hello->slots, member->hello->slots == 1 ? "" : "s");
    tess__relay_pause(&member->relay, true);
    while (way == WAY_LOST && (again || !crew->ends) && tess_clock_s() < limit_s) {
        if (member_has_missed_end(hosts, crew)) {
            tess_log(TESS_LOG_INFO, "the training has ended without this host: %s has its results",
                     hosts->restart.run);
            return WAY_OVER;
        }
        tried = member_try(member, order_out, why);
        if (tried == TESS_OK)
            break;
        member_warn(member, tried, tess_clock_s() - begin_s < MEMBER_QUIET_S, why);
        if (member->contends)
            way = member_contend(member, tried, code_out);
        if (tess__crew_wait(crew, MEMBER_TRY_MS).again)
            tess__crew_kill(crew, SIGKILL);
    }
    tess__relay_pause(&member->relay, false);
    if (tried == TESS_OK)
        return WAY_THERE;
    if (way == WAY_LOST && !again && !crew->ends)
        tess_fail(TESS_ERR_TIMEOUT, "no training to join at %s:%d within %g s: %s", hosts->address,
                  hosts->port, HOSTS_JOIN_S, why);
    return way;
}

static bool member_order_is_sound(const struct hosts_order *order, const struct hosts_hello *hello)
{
    for (int i = 0; i < TESS__LAYOUT_WORDS; i++)
        if (memchr(order->layout[i], '\0', TESS__LAYOUT_BYTES) == NULL)
            return false;
    if (memchr(order->partner, '\0', sizeof(order->partner)) == NULL || order->partner_port < 0 ||
        order->partner_port > 65535)
        return false;
    return order->ranks >= 1 && order->ranks <= TESS_RANKS_MAX && order->count >= 0 &&
           order->count <= hello->slots && order->first >= 0 &&
           order->first <= order->ranks - order->count && order->port > 0 && order->port < 65536;
}

static bool member_sources_are_sound(const struct hosts_source *source, int32_t count)
{
    for (int32_t s = 0; s < count; s++)
        if (memchr(source[s].address, '\0', sizeof(source[s].address)) == NULL ||
            source[s].port < 1 || source[s].port > 65535)
            return false;
    return true;
}

/* The sources that follow an order. False: they are none. */
static bool member_take_sources(struct member *member, const struct hosts_order *order)
{
    const int32_t count = order->source_count;
    if (count < 1 || count > tess__hosts_room(member->hosts))
        return false;
    const size_t bytes = (size_t)count * sizeof(*member->source);
    free(member->source);
    member->source = malloc(bytes);
    member->source_count = count;
    return member->source != NULL &&
           tess__boot_receive(member->up, member->source, bytes, tess_clock_s() + HOSTS_SEND_S,
                              NULL, 0) &&
           member_sources_are_sound(member->source, count);
}

/* False: what came is no order to gather. */
static bool member_gather(struct member *member, const struct hosts_order *order)
{
    struct hosts_crew *crew = member->crew;
    if (crew->mirror.pid <= 0 || order->step < 0 || order->source_count < 1 ||
        order->source_count != member->source_count)
        return false;
    if (!tess__crew_gather(crew, order, member->source))
        member_send(member, crew->news);
    return true;
}

/* This host's own part of an order. True: the leader goes on with it; else *code_out is the exit
 * status. */
static bool member_do(struct member *member, const struct hosts_order *order, int *code_out)
{
    const struct tess__hosts *hosts = member->hosts;
    struct hosts_crew *crew = member->crew;
    switch (order->kind) {
    case HOSTS_START:
        if (!member_order_is_sound(order, member->hello))
            break;
        member->answer = order->number;
        if (!tess__crew_start(crew, order))
            member_send(member, crew->news);
        return true;
    case HOSTS_GATHER:
        member->answer = order->number;
        if (!member_gather(member, order))
            break;
        return true;
    case HOSTS_KILL:
        tess__crew_kill(crew, SIGKILL);
        return true;
    case HOSTS_PLACE:
    case HOSTS_SOURCES:
        return true;
    case HOSTS_QUIT:
        *code_out = order->code & 255;
        if (order->why[0] != '\0')
            tess_fail(TESS_ERR_COMM, "%.*s", HOSTS_WHY - 1, order->why);
        return false;
    case HOSTS_REFUSE:
        *code_out = tess_status_exit_code(
            tess_fail(TESS_ERR_USAGE,
                      "the training at %s:%d has begun without this host, and it takes no host "
                      "while it runs: start it with --elastic",
                      hosts->address, hosts->port));
        return false;
    case HOSTS_FORGET:
        break;
    }
    *code_out = tess_status_exit_code(
        tess_fail(TESS_ERR_COMM, "what came from %s:%d is not from a leader of this version",
                  hosts->address, hosts->port));
    return false;
}

/* An order, which may be for others, too. */
static enum way member_take(struct member *member, const struct hosts_order *order, int *code_out)
{
    const bool own = order->to == member->number || order->to == HOSTS_ALL;
    if (order->kind == HOSTS_FORGET) {
        /* From the leader: it came too late; those behind it may not. Else the leader has gone. */
        member->forgotten = member->direct;
        member->direct = true;
        return WAY_LOST;
    }
    if (order->kind == HOSTS_SOURCES && !member_take_sources(member, order)) {
        *code_out = tess_status_exit_code(tess_fail(TESS_ERR_COMM,
                                                    "what came from %s:%d are no sources of copies",
                                                    member->hosts->address, member->hosts->port));
        return WAY_OVER;
    }
    if (member->number > 0 && (order->to == HOSTS_ALL || !own))
        tess__relay_pass(&member->relay, order, member->source,
                         order->kind == HOSTS_SOURCES
                             ? (size_t)order->source_count * sizeof(*member->source)
                             : 0);
    if (member->number > 0 && (!own || (order->number > 0 && order->number <= member->seen)))
        return WAY_THERE;
    member->seen = order->number > member->seen ? order->number : member->seen;
    if (member_do(member, order, code_out))
        return WAY_THERE;
    if (order->kind == HOSTS_QUIT && order->to == HOSTS_ALL)
        tess__relay_end(&member->relay, member->up, member->number);
    member_send(member, (struct hosts_news){.kind = HOSTS_BYE});
    return WAY_OVER;
}

/* Until the way to the leader is lost, or the leader ends the training: *code_out. */
static enum way member_serve(struct member *member, int *code_out)
{
    struct hosts_crew *crew = member->crew;
    enum way way = WAY_THERE;
    while (way == WAY_THERE) {
        struct hosts_order order;
        const struct hosts_wish wish =
            tess__crew_wait(crew, member->relay.door.pending_count > 0 ? 100 : -1);
        /* Before the end of its ranks, which the same signal may have ended. */
        if (wish.ends && !member->hosts->signalled)
            member_send(member, (struct hosts_news){.kind = HOSTS_LEAVES});
        if (wish.ended)
            member_send(member, crew->news);
        if (wish.again)
            tess__crew_kill(crew, SIGKILL);
        tess__relay_look(&member->relay, member->up, member->number);
        if (!tess__crew_is_ready(crew, member->up))
            continue;
        way = tess__boot_receive(member->up, &order, sizeof(order), tess_clock_s() + HOSTS_SEND_S,
                                 NULL, 0)
                  ? member_take(member, &order, code_out)
                  : WAY_LOST;
    }
    member_hang_up(member);
    return way;
}

/* Processes that still run have no leader to report to, nor have those behind this host. */
static void member_end_crew(struct member *member, bool gone)
{
    const struct hosts_order forget = {.kind = HOSTS_FORGET, .to = HOSTS_ALL};
    if (gone)
        tess__relay_pass(&member->relay, &forget, NULL, 0);
    tess__relay_close(&member->relay);
    tess__crew_kill(member->crew, SIGTERM);
    while (member->crew->alive > 0)
        if (tess__crew_wait(member->crew, -1).again)
            tess__crew_kill(member->crew, SIGKILL);
}

/* On the way to the leader, as long as there is one. */
static enum way member_stay(struct member *member, int *code_out)
{
    enum way way;
    do {
        struct hosts_order order = {.kind = HOSTS_PLACE};
        way = member_join(member, &order, code_out);
        if (way != WAY_THERE)
            return way;
        way = member_take(member, &order, code_out);
        if (way == WAY_THERE) {
            member_say_again(member);
            way = member_serve(member, code_out);
        }
        member_hang_up(member);
        /* A leader whose connection has ended is gone; of another host others may know more. */
    } while (way == WAY_LOST && member->number > 0 && !member->direct);
    return way;
}

static int member_run(struct member *member)
{
    const struct tess__hosts *hosts = member->hosts;
    for (;;) {
        int code = tess_status_exit_code(TESS_OK);
        const enum way way = member_stay(member, &code);
        const bool joined = member->number > 0;
        member_end_crew(member, way == WAY_LOST && !member->forgotten);
        if (way == WAY_FREE)
            return HOSTS_MAY_LEAD;
        if (way == WAY_OVER)
            return code;
        if (member->crew->ends)
            return tess_status_exit_code(TESS_ERR_INTERRUPTED);
        if (!joined)
            return tess_status_exit_code(TESS_ERR_TIMEOUT);
        if (!hosts->elastic)
            return tess_status_exit_code(tess_fail(
                TESS_ERR_COMM,
                "the supervisor at %s:%d has gone: start the training there again with --resume",
                hosts->address, hosts->port));
        tess_log(TESS_LOG_WARN, "the supervisor at %s:%d has gone", hosts->address, hosts->port);
        member->number = member->seen = member->answer = 0;
        member->forgotten = member->contends = false;
    }
}

int tess__hosts_member(const struct tess__hosts *hosts, struct hosts_crew *crew,
                       const struct hosts_hello *hello, bool contends)
{
    struct member member = {
        .hosts = hosts, .crew = crew, .hello = hello, .up = -1, .contends = contends};
    const int code = member_run(&member);
    free(member.source);
    return code;
}
