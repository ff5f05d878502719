/*
 * The rounds of a measurement. Process 0 decides which process sends to which and for how long;
 * then all report what came. A round, of two hosts:
 *
 *     ping there and back, four times                         latency, and both begin together
 *     send to each other at once, for T                       counted is what comes in its second
 *     |-- bursts that switches let through --|-- counted --|  half: by then switches hand out no
 *     an end mark; read until the other's                     more than the link carries
 *
 * What is under way at the end of a round would be part of the next, so that sockets hold little.
 */
#include "job/place.h"

#include "base/clock.h"
#include "comm/boot/boot_socket.h"
#include "tessera/check.h"

#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define PROBE_MEET_S      2.0 /* to connect all hosts */
#define PROBE_DRAIN_S     2.0 /* for what is under way when a round ends */
#define PROBE_FIRST_S     0.05
#define PROBE_LONGEST_S   0.15
#define PROBE_EXPLORE_S   0.9 /* then no further tournament begins, nor goes on */
#define PROBE_SLOWEST     0.02
#define PROBE_WARM        0.5 /* of a round, not counted */
#define PROBE_PINGS       4
#define PROBE_TOURNAMENTS 3
#define PROBE_ROUNDS      (PROBE_TOURNAMENTS * TESS_MEASURED_HOSTS_MAX)
#define PROBE_CHUNK       (64 << 10)
/* What a socket may hold: little on slow links, and as much as a fast one needs. */
#define PROBE_HOLD_S     0.01 /* at the slowest rate that was seen */
#define PROBE_HOLD_LEAST (64 << 10)
#define PROBE_HOLD_MOST  (4 << 20)
/* In the counted half at least so many bytes: a burst of a switch is 64 KiB. */
#define PROBE_COUNTED_BYTES (128 << 10)
#define PROBE_WHY_BYTES     160

enum { PROBE_DATA, PROBE_MARK, PROBE_PING }; /* bytes */

/* From process 0 to all, before each round. */
struct probe_order {
    int32_t go; /* 0: it is over */
    int hold;   /* bytes in a socket */
    double seconds;
    int32_t partner[TESS_MEASURED_HOSTS_MAX];
};

/* From all to process 0, after it. */
struct probe_result {
    double gbs, latency_us;
    char why[PROBE_WHY_BYTES]; /* "": all went well */
};

struct probe_meet {
    char address[256];
    int32_t port; /* 0: this process does not measure */
    uint64_t nonce;
    char why[PROBE_WHY_BYTES];
};

struct probe_hello {
    uint64_t nonce;
    int32_t host, zero;
};

struct probe {
    const struct tess_boot *boot;
    const struct tess__processes *job;
    int32_t host; /* that this process measures for; -1: another one does */
    int fd[TESS_MEASURED_HOSTS_MAX];
    struct boot_listener listener;
    unsigned char chunk[2][PROBE_CHUNK]; /* to send, PROBE_DATA; to receive into */
    char why[PROBE_WHY_BYTES];           /* this process could not go on */
    /* Process 0: */
    struct tess_measured_round round[PROBE_ROUNDS + 2 * TESS_MEASURED_TURNS];
    int32_t round_count;
    double start_s, slowest_gbs, fastest_gbs;
    struct probe_order order;
    struct tess__network_found *found;
};

static void probe_stop(struct probe *probe, int32_t host, const char *what, const char *why)
{
    if (probe->why[0] == '\0')
        snprintf(probe->why, sizeof(probe->why), "%.40s %s %.30s: %.40s",
                 probe->job->process[probe->boot->rank].host, what,
                 probe->job->process[probe->job->host_first[host]].host, why);
}

/* ---- meeting --------------------------------------------------------------------------------- */

static void probe_accept(struct probe *probe, uint64_t nonce, double limit_s)
{
    struct pollfd watch[BOOT_LISTEN_MAX];
    int32_t missing = probe->job->host_count - 1 - probe->host;

    while (missing > 0 && tess_clock_s() < limit_s) {
        struct probe_hello hello;
        char why[BOOT_WHY_BYTES];
        int fd = tess__boot_accept(&probe->listener);

        if (fd < 0) {
            for (int i = 0; i < probe->listener.count; i++)
                watch[i] = (struct pollfd){.fd = probe->listener.fd[i], .events = POLLIN};
            (void)poll(watch, (nfds_t)probe->listener.count, 50);
            continue;
        }
        if (!tess__boot_receive(fd, &hello, sizeof(hello), tess_clock_s() + 0.5, why,
                                sizeof(why)) ||
            hello.nonce != nonce || hello.host <= probe->host ||
            hello.host >= probe->job->host_count || probe->fd[hello.host] >= 0) {
            close(fd); /* a stranger */
            continue;
        }
        probe->fd[hello.host] = fd;
        missing--;
    }
    for (int32_t h = probe->host + 1; h < probe->job->host_count && missing > 0; h++)
        if (probe->fd[h] < 0)
            probe_stop(probe, h, "was not reached by", "no connection came");
}

static void probe_connect(struct probe *probe, const struct probe_meet *all, double limit_s)
{
    const struct probe_hello hello = {.nonce = all[0].nonce, .host = probe->host};

    for (int32_t h = 0; h < probe->host && probe->why[0] == '\0'; h++) {
        const struct probe_meet *other = &all[probe->job->host_first[h]];
        char why[BOOT_WHY_BYTES];

        probe->fd[h] = tess__boot_connect(other->address, other->port, limit_s, why, sizeof(why));
        if (probe->fd[h] < 0 ||
            !tess__boot_send(probe->fd[h], &hello, sizeof(hello), limit_s, why, sizeof(why)))
            probe_stop(probe, h, "does not reach", why);
    }
}

/* Where each host is to be found, then a connection between any two. */
static enum tess_status probe_meet(struct probe *probe)
{
    const struct tess_boot *boot = probe->boot;
    struct probe_meet mine = {.port = 0}, all[TESS_WORLD_RANKS_MAX];
    const double limit_s = tess_clock_s() + PROBE_MEET_S;

    snprintf(mine.address, sizeof(mine.address), "%s", boot->address);
    if (boot->rank == 0 && getrandom(&mine.nonce, sizeof(mine.nonce), 0) < 0)
        mine.nonce = (uint64_t)(tess_clock_s() * 1e9);
    if (probe->host >= 0 && tess__boot_listen(boot->address, 0, &probe->listener) == TESS_OK)
        mine.port = tess__boot_port(&probe->listener);
    TESS_TRY(boot->gather(boot->context, &mine, sizeof(mine), all));
    for (int32_t h = 0; h < probe->job->host_count; h++) {
        struct probe_meet *other = &all[probe->job->host_first[h]];
        other->address[sizeof(other->address) - 1] = '\0';
        if (other->port == 0 && probe->host >= 0)
            probe_stop(probe, h, "cannot connect to", "it does not listen");
    }
    if (probe->host >= 0 && probe->why[0] == '\0')
        probe_connect(probe, all, limit_s);
    if (probe->host >= 0 && probe->why[0] == '\0')
        probe_accept(probe, all[0].nonce, limit_s);
    return TESS_OK;
}

/* ---- a round --------------------------------------------------------------------------------- */

/* Half of the shortest way there and back. The lower host begins. */
static bool probe_ping(int fd, bool first, double *latency_us_out, char why[BOOT_WHY_BYTES])
{
    const double limit_s = tess_clock_s() + PROBE_DRAIN_S;
    unsigned char ping = PROBE_PING;

    *latency_us_out = 1e12;
    for (int i = 0; i < PROBE_PINGS; i++) {
        const double start_s = tess_clock_s();

        if (first && !tess__boot_send(fd, &ping, 1, limit_s, why, BOOT_WHY_BYTES))
            return false;
        if (!tess__boot_receive(fd, &ping, 1, limit_s, why, BOOT_WHY_BYTES))
            return false;
        if (!first && !tess__boot_send(fd, &ping, 1, limit_s, why, BOOT_WHY_BYTES))
            return false;
        if (ping != PROBE_PING) {
            snprintf(why, BOOT_WHY_BYTES, "the other is not in this round");
            return false;
        }
        const double us = 0.5e6 * (tess_clock_s() - start_s);
        /* The answering side includes the other's pause between two pings, from the second one on.
         */
        if ((first || i > 0) && us < *latency_us_out)
            *latency_us_out = us;
    }
    return true;
}

struct probe_stream {
    int fd;
    double count_s, stop_s; /* what comes between is counted */
    uint64_t counted;
    bool sent, received; /* the end marks */
};

static bool probe_would_block(ssize_t count)
{
    return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

/* One piece each way, as far as the socket takes and has something. False with errno. */
static bool probe_move(struct probe *probe, struct probe_stream *stream, short events)
{
    static const unsigned char mark = PROBE_MARK;
    const bool over = tess_clock_s() >= stream->stop_s;

    if (!stream->sent && (events & (POLLOUT | POLLERR | POLLHUP)) != 0) {
        ssize_t count =
            over ? send(stream->fd, &mark, 1, MSG_DONTWAIT | MSG_NOSIGNAL)
                 : send(stream->fd, probe->chunk[0], PROBE_CHUNK, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count <= 0 && !probe_would_block(count))
            return false;
        stream->sent = over && count == 1;
    }
    if (!stream->received && (events & (POLLIN | POLLERR | POLLHUP)) != 0) {
        ssize_t count = recv(stream->fd, probe->chunk[1], PROBE_CHUNK, MSG_DONTWAIT);
        const double now_s = tess_clock_s();
        if (count == 0)
            errno = ECONNRESET;
        if (count <= 0)
            return probe_would_block(count);
        if (now_s >= stream->count_s && now_s < stream->stop_s)
            stream->counted += (uint64_t)count;
        /* Behind the mark comes nothing before the next round. */
        stream->received = probe->chunk[1][count - 1] == PROBE_MARK;
    }
    return true;
}

static bool probe_stream(struct probe *probe, int fd, double seconds, double *gbs_out,
                         char why[BOOT_WHY_BYTES])
{
    const double start_s = tess_clock_s();
    struct probe_stream stream = {
        .fd = fd, .count_s = start_s + PROBE_WARM * seconds, .stop_s = start_s + seconds};

    while (!stream.sent || !stream.received) {
        struct pollfd watch = {
            .fd = fd,
            .events = (short)((stream.sent ? 0 : POLLOUT) | (stream.received ? 0 : POLLIN))};

        if (tess_clock_s() > stream.stop_s + PROBE_DRAIN_S) {
            snprintf(why, BOOT_WHY_BYTES, "too slow to be measured");
            return false;
        }
        if (poll(&watch, 1, 10) < 0 && errno != EINTR)
            watch.revents = POLLERR;
        if (!probe_move(probe, &stream, watch.revents)) {
            snprintf(why, BOOT_WHY_BYTES, "%s", strerror(errno));
            return false;
        }
    }
    *gbs_out = (double)stream.counted / ((1 - PROBE_WARM) * seconds) / 1e9;
    return true;
}

static void probe_round(struct probe *probe, const struct probe_order *order,
                        struct probe_result *result)
{
    const int32_t partner = probe->host >= 0 ? order->partner[probe->host] : -1;
    char why[BOOT_WHY_BYTES];

    if (partner < 0 || partner >= probe->job->host_count || probe->why[0] != '\0')
        return;
    const int fd = probe->fd[partner];
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &order->hold, sizeof(order->hold));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (!probe_ping(fd, probe->host < partner, &result->latency_us, why) ||
        !probe_stream(probe, fd, order->seconds, &result->gbs, why))
        probe_stop(probe, partner, "does not reach", why);
}

/* One round of all: process 0's order out, what came of it back into round[]. */
static enum tess_status probe_play(struct probe *probe, bool *go_on_out)
{
    const struct tess_boot *boot = probe->boot;
    struct probe_order orders[TESS_WORLD_RANKS_MAX];
    struct probe_result results[TESS_WORLD_RANKS_MAX], mine = {0};

    TESS_TRY(boot->gather(boot->context, &probe->order, sizeof(probe->order), orders));
    *go_on_out = orders[0].go != 0;
    if (!*go_on_out)
        return TESS_OK;
    probe_round(probe, &orders[0], &mine);
    memcpy(mine.why, probe->why, sizeof(mine.why));
    TESS_TRY(boot->gather(boot->context, &mine, sizeof(mine), results));
    for (int32_t h = 0; h < probe->job->host_count; h++) {
        struct tess_measured_round *round = &probe->round[probe->round_count];
        const struct probe_result *result = &results[probe->job->host_first[h]];

        round->partner[h] = orders[0].partner[h];
        round->gbs[h] = result->gbs;
        round->latency_us[h] = result->latency_us;
        if (probe->found->why[0] == '\0')
            snprintf(probe->found->why, sizeof(result->why), "%.*s", PROBE_WHY_BYTES - 1,
                     result->why);
        if (round->partner[h] < 0)
            continue;
        probe->slowest_gbs = fmin(probe->slowest_gbs, result->gbs);
        probe->fastest_gbs = fmax(probe->fastest_gbs, result->gbs);
    }
    probe->round_count++;
    return TESS_OK;
}

/* ---- process 0 ------------------------------------------------------------------------------- */

/* As long as it takes to count enough at the slowest rate, holding as much as it needs. What is
 * slower than PROBE_SLOWEST of the fastest has stalled. */
static void probe_pace(struct probe *probe)
{
    const double rate = 1e9 * fmax(probe->slowest_gbs, PROBE_SLOWEST * probe->fastest_gbs);
    const double seconds = PROBE_COUNTED_BYTES / (1 - PROBE_WARM) / fmax(rate, 1);

    probe->order.hold = (int)fmin(fmax(rate * PROBE_HOLD_S, PROBE_HOLD_LEAST), PROBE_HOLD_MOST);
    probe->order.seconds = fmin(fmax(seconds, PROBE_FIRST_S), PROBE_LONGEST_S);
}

/* Tournaments; the last one may be cut short. False where a process failed: no reason to go on. */
static enum tess_status probe_explore(struct probe *probe, bool *go_on_out)
{
    const int32_t hosts = probe->job->host_count, each = hosts + hosts % 2 - 1;

    for (int32_t r = 0; r < PROBE_TOURNAMENTS * each; r++) {
        const bool late = tess_clock_s() - probe->start_s > PROBE_EXPLORE_S;

        /* With few hosts all pairs are seen before that. */
        if (probe->found->why[0] != '\0' || (late && (r >= each || r >= 16)))
            break;
        if (r == each) {
            probe_pace(probe);
            /* An even network is seen to be one at once. */
            if (probe->fastest_gbs < 1.2 * probe->slowest_gbs)
                break;
        }
        tess_measured_tournament(hosts, r, probe->order.partner);
        TESS_TRY(probe_play(probe, go_on_out));
    }
    return TESS_OK;
}

static enum tess_status probe_lead(struct probe *probe)
{
    struct tess_measured *measured = &probe->found->measured;
    bool go_on;

    probe->order =
        (struct probe_order){.go = 1, .hold = PROBE_HOLD_LEAST, .seconds = PROBE_FIRST_S};
    /* No process sends: have all met? Then none waits for one that has not. */
    memset(probe->order.partner, -1, sizeof(probe->order.partner));
    TESS_TRY(probe_play(probe, &go_on));
    probe->round_count = 0;
    TESS_TRY(probe_explore(probe, &go_on));
    if (probe->found->why[0] == '\0')
        tess_measured_find(probe->round, probe->round_count, measured);
    const struct tess_measured_round *by_turns = &probe->round[probe->round_count];
    for (int32_t t = 0; t < TESS_MEASURED_TURNS && measured->group_count > 1; t++) {
        tess_measured_within(measured, t, probe->order.partner);
        TESS_TRY(probe_play(probe, &go_on));
        tess_measured_across(measured, t, probe->order.partner);
        TESS_TRY(probe_play(probe, &go_on));
    }
    probe->order.go = 0;
    TESS_TRY(probe_play(probe, &go_on));
    if (probe->found->why[0] != '\0') {
        *measured = (struct tess_measured){.host_count = probe->job->host_count, .group_count = 1};
    } else if (measured->group_count > 1) {
        /* By turns in time, one after the other for the verdict. */
        struct tess_measured_round within[TESS_MEASURED_TURNS], across[TESS_MEASURED_TURNS];
        for (int32_t t = 0; t < TESS_MEASURED_TURNS; t++) {
            within[t] = by_turns[2 * t];
            across[t] = by_turns[2 * t + 1];
        }
        tess_measured_judge(within, across, measured);
    }
    probe->found->seconds = tess_clock_s() - probe->start_s;
    return TESS_OK;
}

static enum tess_status probe_run(struct probe *probe)
{
    bool go_on = true;

    TESS_TRY(probe_meet(probe));
    if (probe->boot->rank == 0)
        return probe_lead(probe);
    while (go_on) {
        probe->round_count = 0; /* others keep no rounds */
        TESS_TRY(probe_play(probe, &go_on));
    }
    return TESS_OK;
}

enum tess_status tess__place_probe(const struct tess_boot *boot, const struct tess__processes *job,
                                   struct tess__network_found *found_out)
{
    const int32_t host = job->host[boot->rank];
    struct probe *probe = calloc(1, sizeof(*probe));

    if (probe == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure the network");
    probe->boot = boot;
    probe->job = job;
    probe->host = job->host_first[host] == boot->rank ? host : -1;
    probe->start_s = tess_clock_s();
    probe->slowest_gbs = 1e9;
    probe->found = found_out;
    *found_out =
        (struct tess__network_found){.measured = {.host_count = job->host_count, .group_count = 1}};
    for (int32_t h = 0; h < TESS_MEASURED_HOSTS_MAX; h++)
        probe->fd[h] = -1;
    const enum tess_status status = probe_run(probe);
    for (int32_t h = 0; h < TESS_MEASURED_HOSTS_MAX; h++)
        if (probe->fd[h] >= 0)
            close(probe->fd[h]);
    if (probe->listener.count > 0)
        tess__boot_unlisten(&probe->listener);
    free(probe);
    return status;
}
