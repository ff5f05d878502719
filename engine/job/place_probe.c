/*
 * A process's part in a measurement: it finds its partner of the round, and both send. A round, of
 * two hosts:
 *
 *     ping there and back, four times                         latency, and both begin together
 *     send to each other at once, for T                       counted is what comes in its second
 *     |-- bursts that switches let through --|-- counted --|  half: by then switches hand out no
 *     an end mark; read until the other's                     more than the link carries
 *
 * What is under way at the end of a round would be part of the next, so that sockets hold little.
 * Two hosts connect when they are first to send to each other, and prove that they have the secret
 * of the job and of this measurement. Which do is place_probe_lead.c's.
 */
#include "job/place_probe.h"

#include "base/clock.h"
#include "comm/boot/boot_door.h"
#include "tessera/check.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PROBE_MAGIC   UINT64_C(0x65626f7270726574) /* "terprobe" */
#define PROBE_MEET_S  2.0                          /* to connect two hosts */
#define PROBE_DRAIN_S 2.0                          /* for what is under way when a round ends */
#define PROBE_PINGS   4
#define PROBE_CHUNK   (64 << 10)

enum { PROBE_DATA, PROBE_MARK, PROBE_PING }; /* bytes */

struct probe_hello {
    uint64_t magic;
    int32_t from, to; /* hosts */
    uint64_t zero[2];
};

_Static_assert(sizeof(struct probe_hello) == BOOT_HELLO_BYTES, "the greeting that is read");

struct probe_chunk {
    unsigned char out[PROBE_CHUNK], in[PROBE_CHUNK]; /* out: PROBE_DATA */
};

struct tess__probe {
    const struct tess__meeting *meeting;
    int32_t host, host_count;
    int32_t partner; /* that is to connect; -1: none */
    struct boot_door door;
    struct tess_secret secret; /* of the door */
    struct probe_chunk *chunk; /* of a process that measures */
    int fd[];                  /* [host_count] of the hosts met so far; -1 */
};

/* ---- meeting --------------------------------------------------------------------------------- */

/* The secret of the job and of this measurement. */
static void probe_secret(struct tess__probe *probe, const struct tess__turn *turn)
{
    tess_secret_derive(&probe->meeting->secret, turn->word, sizeof(turn->word), &probe->secret);
}

/* A host of this job has come; see boot_door.h. */
static bool probe_greet(void *context, int fd, const unsigned char *bytes)
{
    struct tess__probe *probe = context;
    struct probe_hello hello;

    memcpy(&hello, bytes, sizeof(hello));
    if (hello.magic != PROBE_MAGIC || hello.to != probe->host || probe->partner < 0 ||
        hello.from != probe->partner || probe->fd[probe->partner] >= 0)
        return false;
    probe->fd[probe->partner] = fd;
    return true;
}

/* The partner connects. */
static bool probe_accept(struct tess__probe *probe, const struct tess__turn *turn,
                         struct tess__probe_result *result)
{
    const double limit_s = tess_clock_s() + PROBE_MEET_S;

    probe->partner = turn->partner;
    while (probe->fd[turn->partner] < 0 && tess_clock_s() < limit_s)
        tess__boot_door_look(&probe->door);
    probe->partner = -1;
    if (probe->fd[turn->partner] >= 0)
        return true;
    result->not_reached = 1;
    snprintf(result->why, sizeof(result->why), "no connection came");
    return false;
}

static bool probe_connect(struct tess__probe *probe, const struct tess__turn *turn,
                          struct tess__probe_result *result)
{
    const double limit_s = tess_clock_s() + PROBE_MEET_S;
    const struct probe_hello hello = {
        .magic = PROBE_MAGIC, .from = probe->host, .to = turn->partner};
    unsigned char bytes[BOOT_HELLO_BYTES];
    const int fd =
        tess__boot_connect(turn->address, turn->port, limit_s, result->why, sizeof(result->why));

    memcpy(bytes, &hello, sizeof(bytes));
    if (fd < 0)
        return false;
    if (tess__boot_knock(fd, &probe->secret, bytes, limit_s, result->why, sizeof(result->why)) !=
        TESS_OK) {
        close(fd);
        return false;
    }
    probe->fd[turn->partner] = fd;
    return true;
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
static bool probe_move(struct tess__probe *probe, struct probe_stream *stream, short events)
{
    static const unsigned char mark = PROBE_MARK;
    const bool over = tess_clock_s() >= stream->stop_s;

    if (!stream->sent && (events & (POLLOUT | POLLERR | POLLHUP)) != 0) {
        ssize_t count =
            over ? send(stream->fd, &mark, 1, MSG_DONTWAIT | MSG_NOSIGNAL)
                 : send(stream->fd, probe->chunk->out, PROBE_CHUNK, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count <= 0 && !probe_would_block(count))
            return false;
        stream->sent = over && count == 1;
    }
    if (!stream->received && (events & (POLLIN | POLLERR | POLLHUP)) != 0) {
        ssize_t count = recv(stream->fd, probe->chunk->in, PROBE_CHUNK, MSG_DONTWAIT);
        const double now_s = tess_clock_s();
        if (count == 0)
            errno = ECONNRESET;
        if (count <= 0)
            return probe_would_block(count);
        if (now_s >= stream->count_s && now_s < stream->stop_s)
            stream->counted += (uint64_t)count;
        /* Behind the mark comes nothing before the next round. */
        stream->received = probe->chunk->in[count - 1] == PROBE_MARK;
    }
    return true;
}

static bool probe_stream(struct tess__probe *probe, int fd, double seconds, double *gbs_out,
                         char why[BOOT_WHY_BYTES])
{
    const double start_s = tess_clock_s();
    struct probe_stream stream = {
        .fd = fd, .count_s = start_s + TESS__PROBE_WARM * seconds, .stop_s = start_s + seconds};

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
    *gbs_out = (double)stream.counted / ((1 - TESS__PROBE_WARM) * seconds) / 1e9;
    return true;
}

static void probe_round(struct tess__probe *probe, const struct tess__turn *turn,
                        struct tess__probe_result *result)
{
    const int32_t partner = turn->partner;

    if (partner < 0 || partner >= probe->host_count || partner == probe->host)
        return;
    if (probe->fd[partner] < 0 && !(probe->host > partner ? probe_connect(probe, turn, result)
                                                          : probe_accept(probe, turn, result)))
        return;
    const int fd = probe->fd[partner];
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &turn->hold, sizeof(turn->hold));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (probe_ping(fd, probe->host < partner, &result->latency_us, result->why) &&
        probe_stream(probe, fd, turn->seconds, &result->gbs, result->why))
        result->why[0] = '\0';
}

/* ---- turns ----------------------------------------------------------------------------------- */

enum tess_status tess__probe_open(const struct tess__meeting *meeting, int32_t host,
                                  int32_t host_count, struct tess__probe **probe_out)
{
    struct tess__probe *probe =
        calloc(1, sizeof(*probe) + (size_t)host_count * sizeof(probe->fd[0]));
    struct probe_chunk *chunk = host >= 0 ? calloc(1, sizeof(*chunk)) : NULL;

    if (probe == NULL || (host >= 0 && chunk == NULL)) {
        free(probe);
        free(chunk);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to measure the network");
    }
    probe->meeting = meeting;
    probe->host = host;
    probe->host_count = host_count;
    probe->chunk = chunk;
    probe->partner = -1;
    probe->door =
        (struct boot_door){.greet = probe_greet, .context = probe, .secret = &probe->secret};
    for (int32_t h = 0; h < host_count; h++)
        probe->fd[h] = -1;
    *probe_out = probe;
    return TESS_OK;
}

void tess__probe_close(struct tess__probe *probe)
{
    if (probe == NULL)
        return;
    for (int32_t h = 0; h < probe->host_count; h++)
        if (probe->fd[h] >= 0)
            close(probe->fd[h]);
    tess__boot_door_close(&probe->door);
    free(probe->chunk);
    free(probe);
}

enum tess_status tess__probe_play(struct tess__probe *probe, const struct tess__turn *turn,
                                  struct tess_boot_parts *parts_out)
{
    const struct tess__meeting *meeting = probe->meeting;
    struct tess__probe_result result = {0};
    struct tess__probe_place place = {0};

    if (probe->host < 0)
        return meeting->collect(meeting->context, NULL, 0, parts_out);
    probe_secret(probe, turn);
    if (turn->kind == TESS__TURN_ROUND) {
        probe_round(probe, turn, &result);
        return meeting->collect(meeting->context, &result,
                                offsetof(struct tess__probe_result, why) + strlen(result.why) + 1,
                                parts_out);
    }
    if (tess__boot_listen(meeting->address, 0, &probe->door.listener) == TESS_OK)
        place.port = tess__boot_port(&probe->door.listener);
    snprintf(place.address, sizeof(place.address), "%s", meeting->address);
    return meeting->collect(meeting->context, &place,
                            offsetof(struct tess__probe_place, address) + strlen(place.address) + 1,
                            parts_out);
}
