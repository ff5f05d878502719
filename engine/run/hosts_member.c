/* A host that is not the leader's: joins, and does what the leader sends. */
#include "base/clock.h"
#include "run/hosts_room.h"
#include "run/metrics.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMBER_TRY_MS 200
/* For one connection: over a link that is cut the kernel waits ever longer between two tries. */
#define MEMBER_TRY_S 2.0

/* Has a training that this host took part in ended since the leader has gone? */
static bool member_has_missed_end(const struct tess__hosts *hosts, const struct hosts_crew *crew)
{
    return crew->count > 0 && tess_metrics_has_end(hosts->restart.run);
}

/* Connected and greeted; -1: the time is up, this host is to end, or the training has ended. */
static int member_join(const struct tess__hosts *hosts, struct hosts_crew *crew,
                       const struct hosts_hello *hello, bool *ended_out)
{
    const double limit_s = tess_clock_s() + HOSTS_JOIN_S;
    char why[BOOT_WHY_BYTES] = "";
    unsigned char greeting[TESS_GREETING_BYTES];
    bool warned = false;
    memcpy(greeting, hello, sizeof(greeting));
    tess_log(TESS_LOG_INFO, "joins the training at %s:%d, with up to %d ranks", hosts->address,
             hosts->port, hello->slots);
    while (!crew->ends && tess_clock_s() < limit_s) {
        *ended_out = member_has_missed_end(hosts, crew);
        if (*ended_out)
            return -1;
        const int fd = tess__boot_connect(hosts->address, hosts->port,
                                          tess_clock_s() + MEMBER_TRY_S, why, sizeof(why));
        if (fd >= 0 && tess__boot_knock(fd, &hosts->secret, greeting, tess_clock_s() + MEMBER_TRY_S,
                                        why, sizeof(why))) {
            tess__boot_keep_alive(fd, hosts->timeout_s);
            tess__crew_watch(crew, fd);
            return fd;
        }
        if (fd >= 0) {
            if (!warned)
                tess_log(TESS_LOG_WARN, "not admitted to the training at %s:%d, trying again: %s",
                         hosts->address, hosts->port, why);
            warned = true;
            close(fd);
        }
        (void)tess__crew_wait(crew, MEMBER_TRY_MS);
    }
    if (!crew->ends)
        tess_fail(TESS_ERR_TIMEOUT, "no training to join at %s:%d within %g s: %s", hosts->address,
                  hosts->port, HOSTS_JOIN_S, why);
    return -1;
}

/* A few words to the leader; where it has gone the next read finds that. */
static void member_send(int fd, const struct hosts_news *news)
{
    (void)tess__boot_send(fd, news, sizeof(*news), tess_clock_s() + HOSTS_SEND_S, NULL, 0);
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

/* False: what came is no order to gather. */
static bool member_gather(struct hosts_crew *crew, const struct hosts_order *order, int fd)
{
    const int32_t count = order->source_count;
    if (crew->mirror.pid <= 0 || order->step < 0 || count < 1 ||
        count > tess__hosts_room(crew->hosts))
        return false;
    struct hosts_source *source = calloc((size_t)count, sizeof(*source));
    const bool sound = source != NULL &&
                       tess__boot_receive(fd, source, (size_t)count * sizeof(*source),
                                          tess_clock_s() + HOSTS_SEND_S, NULL, 0) &&
                       member_sources_are_sound(source, count);
    if (sound && !tess__crew_gather(crew, order, source))
        member_send(fd, &crew->news);
    free(source);
    return sound;
}

/* True: the leader goes on with this host; else *code_out is the exit status. */
static bool member_take(const struct tess__hosts *hosts, struct hosts_crew *crew,
                        const struct hosts_order *order, const struct hosts_hello *hello, int fd,
                        int *code_out)
{
    switch (order->kind) {
    case HOSTS_START:
        if (!member_order_is_sound(order, hello))
            break;
        if (!tess__crew_start(crew, order))
            member_send(fd, &crew->news);
        return true;
    case HOSTS_GATHER:
        if (!member_gather(crew, order, fd))
            break;
        return true;
    case HOSTS_KILL:
        tess__crew_kill(crew, SIGKILL);
        return true;
    case HOSTS_QUIT:
        *code_out = order->code & 255;
        return false;
    case HOSTS_REFUSE:
        *code_out = tess_status_exit_code(
            tess_fail(TESS_ERR_USAGE,
                      "the training at %s:%d has begun without this host, and it takes no host "
                      "while it runs: start it with --elastic",
                      hosts->address, hosts->port));
        return false;
    }
    *code_out = tess_status_exit_code(
        tess_fail(TESS_ERR_COMM, "what came from %s:%d is not from a leader of this version",
                  hosts->address, hosts->port));
    return false;
}

/* Until the leader ends the training, or has gone: then *gone_out. */
static int member_serve(const struct tess__hosts *hosts, struct hosts_crew *crew,
                        const struct hosts_hello *hello, int fd, bool *gone_out)
{
    struct hosts_order order;
    int code = 0;
    for (;;) {
        const struct hosts_wish wish = tess__crew_wait(crew, -1);
        if (wish.ended)
            member_send(fd, &crew->news);
        if (wish.ends && !hosts->signalled)
            member_send(fd, &(struct hosts_news){.kind = HOSTS_LEAVES});
        if (wish.again)
            tess__crew_kill(crew, SIGKILL);
        if (!tess__crew_is_ready(crew, fd))
            continue;
        *gone_out =
            !tess__boot_receive(fd, &order, sizeof(order), tess_clock_s() + HOSTS_SEND_S, NULL, 0);
        if (*gone_out || !member_take(hosts, crew, &order, hello, fd, &code))
            return code;
    }
}

/* Processes that still run have no leader to report to. */
static void member_end_crew(struct hosts_crew *crew)
{
    tess__crew_kill(crew, SIGTERM);
    while (crew->alive > 0)
        if (tess__crew_wait(crew, -1).again)
            tess__crew_kill(crew, SIGKILL);
}

int tess__hosts_member(const struct tess__hosts *hosts, struct hosts_crew *crew,
                       const struct hosts_hello *hello)
{
    for (;;) {
        bool gone = false, ended = false;
        const int fd = member_join(hosts, crew, hello, &ended);
        if (ended) {
            tess_log(TESS_LOG_INFO, "the training has ended without this host: %s has its results",
                     hosts->restart.run);
            return tess_status_exit_code(TESS_OK);
        }
        if (fd < 0)
            return tess_status_exit_code(crew->ends ? TESS_ERR_INTERRUPTED : TESS_ERR_TIMEOUT);
        const int code = member_serve(hosts, crew, hello, fd, &gone);
        tess__crew_unwatch(crew, fd);
        close(fd);
        member_end_crew(crew);
        if (!gone)
            return code;
        if (crew->ends)
            return tess_status_exit_code(TESS_ERR_INTERRUPTED);
        if (!hosts->elastic)
            return tess_status_exit_code(tess_fail(
                TESS_ERR_COMM,
                "the supervisor at %s:%d has gone: start the training there again with --resume",
                hosts->address, hosts->port));
        tess_log(TESS_LOG_WARN, "the supervisor at %s:%d has gone", hosts->address, hosts->port);
    }
}
