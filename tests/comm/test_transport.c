/*
 * The transport over sockets: what a transport promises, and what it does about strangers, garbage,
 * ranks that die and ranks that end. Ranks are processes of this host, which the harness watches.
 */
#include "base/clock.h"
#include "comm/boot/boot.h"
#include "comm/cases.h"
#include "comm/net/net.h"
#include "comm/net/transport_tcp.h"
#include "comm/transport_case.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---- messages -------------------------------------------------------------------------------- */

/* A message that no rank waits for delays none behind it, however large it is; and a rank
 * may have as many requests as there may be. */
static int overtaken_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    const size_t large = (size_t)64 << 20;
    struct tess_transport *transport;
    static uint32_t many[TESS_TRANSPORT_REQUESTS];
    uint32_t request[2];
    char *data = calloc(large, 1), small = 7;
    WORLD_CHECK(data != NULL);
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    if (comm->rank == 0) {
        WORLD_OK(transport->ops->send(transport, 1, 1, data, large, &request[0]));
        WORLD_OK(transport->ops->send(transport, 1, 2, &small, 1, &request[1]));
        WORLD_OK(transport_all(transport, &request[1], 1));
    } else {
        small = 0;
        WORLD_OK(transport->ops->recv(transport, 0, 2, &small, 1, &request[1]));
        WORLD_OK(transport_all(transport, &request[1], 1));
        WORLD_CHECK(small == 7);
        WORLD_OK(transport->ops->recv(transport, 0, 1, data, large, &request[0]));
    }
    WORLD_OK(transport_all(transport, &request[0], 1));
    for (int k = 0; k < TESS_TRANSPORT_REQUESTS; k++)
        WORLD_OK(comm->rank == 0 ? transport->ops->recv(transport, 1, 3, data + k, 1, &many[k])
                                 : transport->ops->send(transport, 0, 3, &small, 1, &many[k]));
    WORLD_OK(transport_all(transport, many, TESS_TRANSPORT_REQUESTS));
    for (int k = 0; k < TESS_TRANSPORT_REQUESTS && comm->rank == 0; k++)
        WORLD_CHECK(data[k] == 7);
    transport->ops->close(transport);
    return 0;
}

static void case_overtaken(void **state)
{
    (void)state;
    assert_int_equal(transport_run(2, overtaken_rank, -1), 0);
}

/* What was sent comes, though the sender has ended; a rank that waits for more gets an error. */
static int ended_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    const size_t bytes = (size_t)2 << 20;
    struct tess_transport *transport;
    uint32_t request;
    unsigned char *data = malloc(bytes);
    WORLD_CHECK(data != NULL);
    memset(data, comm->rank == 1 ? 5 : 0, bytes);
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    if (comm->rank == 1) {
        WORLD_OK(transport->ops->send(transport, 0, 1, data, bytes, &request));
        WORLD_OK(transport_all(transport, &request, 1));
        transport->ops->close(transport);
        return 0;
    }
    if (comm->rank == 0) {
        WORLD_OK(transport->ops->recv(transport, 1, 1, data, bytes, &request));
        WORLD_OK(transport_all(transport, &request, 1));
        for (size_t i = 0; i < bytes; i++)
            WORLD_CHECK(data[i] == 5);
        WORLD_OK(transport->ops->recv(transport, 1, 1, data, bytes, &request));
        WORLD_CHECK(transport_all(transport, &request, 1) == TESS_ERR_COMM);
        CONTAINS(transport->reason, "rank 1 (");
        CONTAINS(transport->reason, "it has ended while rank 0 waits for it");
    } else { /* gets the reason from rank 0 */
        WORLD_CHECK(transport_fails(transport) == TESS_ERR_COMM);
        CONTAINS(transport->reason, "it has ended while rank 0 waits for it");
    }
    transport->ops->close(transport);
    return 0;
}

static void case_ended(void **state)
{
    (void)state;
    assert_int_equal(transport_run(3, ended_rank, -1), 0);
}

/* More small messages than may go before their receives; one of another tag behind them comes all
 * the same, and all are what was sent, in order, whether they or their receives were first. */
static int early_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    enum { COUNT = 400, BYTES = 1000 };
    static const size_t sizes[] = {BYTES, 10}; /* in turn: a smaller one must not overtake */
    static unsigned char data[COUNT + 1][BYTES];
    static uint32_t request[COUNT + 1];
    struct tess_transport *transport;
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    for (int turn = 0; turn < 2; turn++) {
        for (int k = 0; k <= COUNT && comm->rank == 1; k++) {
            memset(data[k], k % 251 + turn, BYTES);
            WORLD_OK(transport->ops->send(transport, 0, k < COUNT ? 1 : 2, data[k], sizes[k % 2],
                                          &request[k]));
        }
        if (comm->rank == 1)
            WORLD_OK(transport_all(transport, &request[COUNT], 1));
        if (comm->rank == 0)
            memset(data, 255, sizeof(data));
        for (int k = COUNT; k >= 0 && comm->rank == 0; k--) {
            const int to = k < COUNT ? COUNT - 1 - k : k;
            WORLD_OK(transport->ops->recv(transport, 1, k < COUNT ? 1 : 2, data[to], sizes[to % 2],
                                          &request[k]));
            if (k == COUNT)
                WORLD_OK(transport_all(transport, &request[k], 1));
        }
        WORLD_OK(transport_all(transport, request, COUNT));
        for (int k = 0; k <= COUNT && comm->rank == 0; k++)
            for (size_t i = 0; i < sizes[k % 2]; i++)
                WORLD_CHECK(data[k][i] == k % 251 + turn);
        /* Buffers of what arrived before its receive are kept, up to a bound. */
        const size_t spare = ((struct tcp *)transport)->spare_bytes;
        WORLD_CHECK(comm->rank == 0 ? spare > TCP_EARLY_ROOM / 4 && spare <= TCP_EARLY_ROOM
                                    : spare == 0);
        if (turn == 1)
            WORLD_OK(tess_comm_barrier(comm)); /* the first of the two has no barrier behind it */
    }
    transport->ops->close(transport);
    return 0;
}

/* A small receive and its send of other sizes, the message there before it or not; and a small one
 * whose other side is large. */
static int differs_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world;
    static const size_t sizes[][2] = {{10, 20}, {20, 10}, {10, 20000}, {20000, 10}};
    const int which = *(const int *)arg;
    const bool sends = comm->rank == 1, first = which % 2 == 0;
    static char data[20000];
    struct tess_transport *transport;
    uint32_t request;
    char text[2][80];
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    const size_t *size = sizes[which / 2];
    if (sends != first) /* until what the other one does is there */
        for (int k = 0; k < 5; k++)
            WORLD_OK(transport->ops->wait(transport, 0.02));
    (void)(sends ? transport->ops->send(transport, 0, 5, data, size[0], &request)
                 : transport->ops->recv(transport, 1, 5, data, size[1], &request));
    WORLD_CHECK(transport_fails(transport) == TESS_ERR_COMM);
    snprintf(text[0], sizeof(text[0]), "sends %zu bytes where rank 0 expects %zu", size[0],
             size[1]);
    snprintf(text[1], sizeof(text[1]), "expects %zu bytes where rank 1 sends %zu", size[1],
             size[0]);
    WORLD_CHECK(strstr(transport->reason, text[0]) != NULL ||
                strstr(transport->reason, text[1]) != NULL);
    transport->ops->close(transport);
    return 0;
}

static void case_early(void **state)
{
    (void)state;
    assert_int_equal(transport_run(2, early_rank, -1), 0);
    for (int which = 0; which < 8; which++)
        assert_int_equal(transport_run_arg(2, differs_rank, &which, -1), 0);
}

/* ---- strangers ------------------------------------------------------------------------------- */

/* A gather during which rank 0, which listens by then, is called by others. */
struct strange_boot {
    struct tess_boot boot;
    const struct tess_boot *inner;
};

static int strange_connect(in_port_t port, const void *bytes, size_t count)
{
    const struct sockaddr_in name = {
        .sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&name, sizeof(name)) != 0 ||
        (count > 0 && send(fd, bytes, count, MSG_NOSIGNAL) != (ssize_t)count))
        return -1;
    return fd;
}

static enum tess_status strange_gather(void *context, const void *mine, size_t bytes, void *all)
{
    const struct strange_boot *strange = context;
    char garbage[4096];
    memset(garbage, 0xa5, sizeof(garbage));
    for (int fd = 3; fd < 256 && strange->boot.rank == 0; fd++) {
        int listens = 0;
        socklen_t size = sizeof(listens);
        struct sockaddr_in name;
        socklen_t length = sizeof(name);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens ||
            getsockname(fd, (struct sockaddr *)&name, &length) != 0)
            continue;
        /* Silent, a part of a greeting, garbage, and one that hangs up: none is closed here but the
         * last, they stay as long as they are let. */
        if (strange_connect(name.sin_port, NULL, 0) < 0 ||
            strange_connect(name.sin_port, garbage, 5) < 0 ||
            strange_connect(name.sin_port, garbage, sizeof(garbage)) < 0)
            return TESS_ERR_INTERNAL;
        close(strange_connect(name.sin_port, NULL, 0));
    }
    return strange->inner->gather(strange->inner->context, mine, bytes, all);
}

static int strangers_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    struct strange_boot strange;
    struct tess_boot *boot;
    struct tess_transport *transport;
    uint32_t request[2];
    int32_t value = comm->rank, come = -1;
    WORLD_OK(tess_boot_over(comm, LIMIT_S, &boot));
    strange = (struct strange_boot){.boot = *boot, .inner = boot};
    strange.boot.context = &strange;
    strange.boot.gather = strange_gather;
    enum tess_status status = tess_transport_tcp_open(&strange.boot, LIMIT_S, &transport);
    tess_boot_close(boot);
    WORLD_OK(status);
    const int32_t n = comm->rank_count, next = (comm->rank + 1) % n;
    WORLD_OK(transport->ops->send(transport, next, 0, &value, sizeof(value), &request[0]));
    WORLD_OK(transport->ops->recv(transport, (comm->rank + n - 1) % n, 0, &come, sizeof(come),
                                  &request[1]));
    WORLD_OK(transport_all(transport, request, 2));
    WORLD_CHECK(come == (comm->rank + n - 1) % n);
    transport->ops->close(transport);
    return 0;
}

static void case_strangers(void **state)
{
    (void)state;
    assert_int_equal(transport_run(3, strangers_rank, -1), 0);
}

/* Rank 2 sends what is not of this program, by either connection to rank 0: all errors name it. */
static int garbage_rank(struct tess_comm *comm, bool words)
{
    static const char garbage[64] = "GET / HTTP/1.0";
    struct tess_transport *transport;
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    const struct tcp *tcp = (const struct tcp *)transport;
    if (comm->rank == 2) {
        const int fd =
            words ? tess__tcp_at(tcp, 0)->fd[TCP_WORDS] : tess__tcp_at(tcp, 0)->fd[TCP_DATA];
        WORLD_CHECK(send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL) == sizeof(garbage));
    }
    WORLD_CHECK(transport_fails(transport) == TESS_ERR_COMM);
    if (comm->rank != 2) { /* which itself sees rank 0 hang up, or receives the reason */
        CONTAINS(transport->reason, "rank 2 (");
        CONTAINS(transport->reason,
                 words ? "not of this program" : "no message that was requested");
    }
    transport->ops->close(transport);
    return 0;
}

static int garbage_words_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    return garbage_rank(comm, true);
}

static int garbage_data_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    return garbage_rank(comm, false);
}

/* A small message that is too large, and more of them than there is room for. */
static int early_garbage_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    static char none[2048];
    for (int turn = 0; turn < 2; turn++) {
        struct tess_transport *transport;
        const struct tcp_head head = {TCP_MAGIC, 9, TCP_EARLY, 0,
                                      turn == 0 ? TCP_EARLY_MOST + 1 : sizeof(none)};
        WORLD_OK(transport_open(comm, LIMIT_S, &transport));
        const struct tcp *tcp = (const struct tcp *)transport;
        const int fd = comm->rank == 1 ? tess__tcp_at(tcp, 0)->fd[TCP_DATA] : -1;
        bool goes = comm->rank == 1; /* until the other one has hung up */
        for (int k = 0; k < (turn == 0 ? 1 : (int)(TCP_EARLY_ROOM / sizeof(none)) + 8) && goes; k++)
            goes = send(fd, &head, sizeof(head), MSG_NOSIGNAL) == sizeof(head) &&
                   (turn == 0 || send(fd, none, sizeof(none), MSG_NOSIGNAL) == sizeof(none));
        WORLD_CHECK(transport_fails(transport) == TESS_ERR_COMM);
        if (comm->rank == 0)
            CONTAINS(transport->reason, "it sends more than there is room for");
        transport->ops->close(transport);
        WORLD_OK(tess_comm_barrier(comm));
    }
    return 0;
}

/* Frames that are well-formed and wrong: a rank that there is not, a text without end. */
static int forged_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    static const struct tcp_frame forged[] = {{TCP_MAGIC, TCP_ABORT, 77, 0, 4},
                                              {TCP_MAGIC, TCP_LOST, 0, 0, UINT64_MAX},
                                              {TCP_MAGIC, TCP_NOTICE, 0, 0, UINT64_MAX},
                                              {TCP_MAGIC, TCP_BYE + 1, 0, 0, 0}};
    for (size_t k = 0; k < sizeof(forged) / sizeof(*forged); k++) {
        struct tess_transport *transport;
        WORLD_OK(transport_open(comm, LIMIT_S, &transport));
        const struct tcp *tcp = (const struct tcp *)transport;
        if (comm->rank == 1)
            WORLD_CHECK(send(tess__tcp_at(tcp, 0)->fd[TCP_WORDS], &forged[k], sizeof(*forged),
                             MSG_NOSIGNAL) == sizeof(*forged));
        WORLD_CHECK(transport_fails(transport) == TESS_ERR_COMM);
        if (comm->rank == 0)
            CONTAINS(transport->reason, "not of this program");
        transport->ops->close(transport);
        WORLD_OK(tess_comm_barrier(comm));
    }
    return 0;
}

static void case_garbage(void **state)
{
    (void)state;
    assert_int_equal(transport_run(3, garbage_words_rank, -1), 0);
    assert_int_equal(transport_run(3, garbage_data_rank, -1), 0);
    assert_int_equal(transport_run(2, forged_rank, -1), 0);
    assert_int_equal(transport_run(2, early_garbage_rank, -1), 0);
}

/* ---- ranks that fail ------------------------------------------------------------------------- */

/* In the middle of a message; the others learn it from the sockets alone. */
static int killed_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    const size_t bytes = (size_t)64 << 20;
    struct tess_transport *transport;
    uint32_t request;
    char *data = calloc(bytes, 1);
    WORLD_CHECK(data != NULL);
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    const double start_s = tess_clock_s();
    if (comm->rank == 2) {
        WORLD_OK(transport->ops->send(transport, 0, 0, data, bytes, &request));
        for (int k = 0; k < 4; k++)
            WORLD_OK(transport->ops->wait(transport, 0.1));
        kill(getpid(), SIGKILL);
    }
    if (comm->rank == 0)
        WORLD_OK(transport->ops->recv(transport, 2, 0, data, bytes, &request));
    /* The reader goes slowly, so that the message is under way. */
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    WORLD_CHECK(transport_fails(transport) == TESS_ERR_COMM);
    CONTAINS(transport->reason, "rank 2 (");
    CONTAINS(transport->reason, ") has gone: ");
    WORLD_CHECK(tess_clock_s() - start_s < 5);
    transport->ops->close(transport);
    return 0;
}

static void case_tcp_killed(void **state)
{
    (void)state;
    assert_int_equal(transport_run(4, killed_rank, 2), 0);
}

static void *abort_thread(void *context)
{
    struct tess_transport *transport = context;
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    transport->ops->abort(transport, "the disk is full");
    return NULL;
}

/* By a thread that does not own the sockets; a large message is in the way. */
static int abort_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    const size_t bytes = (size_t)64 << 20;
    struct tess_transport *transport;
    uint32_t request;
    pthread_t thread;
    char *data = calloc(bytes, 1);
    WORLD_CHECK(data != NULL);
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    const double start_s = tess_clock_s();
    if (comm->rank == 1) {
        WORLD_OK(transport->ops->send(transport, 0, 0, data, bytes, &request));
        WORLD_CHECK(pthread_create(&thread, NULL, abort_thread, transport) == 0);
    } else if (comm->rank == 0) {
        WORLD_OK(transport->ops->recv(transport, 1, 9, data, bytes, &request));
    }
    WORLD_CHECK(transport_fails(transport) == TESS_ERR_ABORTED);
    CONTAINS(transport->reason, "stopped because rank 1 (");
    CONTAINS(transport->reason, ") failed: the disk is full");
    WORLD_CHECK(tess_clock_s() - start_s < 5);
    bool done;
    if (comm->rank < 2)
        WORLD_CHECK(transport->ops->test(transport, request, &done) == TESS_ERR_ABORTED);
    WORLD_CHECK(transport->ops->send(transport, (comm->rank + 1) % 3, 0, data, 1, &request) ==
                TESS_ERR_ABORTED);
    if (comm->rank == 1)
        pthread_join(thread, NULL);
    transport->ops->close(transport);
    return 0;
}

static void case_tcp_abort(void **state)
{
    (void)state;
    assert_int_equal(transport_run(3, abort_rank, -1), 0);
}

/* A host that vanishes is noticed by its silence on the connections for words, within the limit. */
static int silence_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    struct tess_transport *transport;
    WORLD_OK(transport_open(comm, 10, &transport));
    const struct tcp *tcp = (const struct tcp *)transport;
    int alive = 0, idle = 0, between = 0, count = 0, limit_ms = 0, delay = 0;
    const int words = tess__tcp_at(tcp, 1 - comm->rank)->fd[TCP_WORDS],
              data = tess__tcp_at(tcp, 1 - comm->rank)->fd[TCP_DATA];
    socklen_t size = sizeof(alive);
    WORLD_CHECK(getsockopt(words, SOL_SOCKET, SO_KEEPALIVE, &alive, &size) == 0 && alive);
    WORLD_CHECK(getsockopt(words, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &size) == 0);
    WORLD_CHECK(getsockopt(words, IPPROTO_TCP, TCP_KEEPINTVL, &between, &size) == 0);
    WORLD_CHECK(getsockopt(words, IPPROTO_TCP, TCP_KEEPCNT, &count, &size) == 0);
    WORLD_CHECK(getsockopt(words, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, &size) == 0);
    WORLD_CHECK(getsockopt(data, IPPROTO_TCP, TCP_NODELAY, &delay, &size) == 0 && delay);
    WORLD_CHECK(idle + between * count <= 10 && limit_ms > 0 && limit_ms <= 10000);
    /* Data may lie there while the other rank computes, for longer than any limit. */
    WORLD_CHECK(getsockopt(data, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, &size) == 0 &&
                limit_ms == 0);
    transport->ops->close(transport);
    return 0;
}

static void case_silence(void **state)
{
    (void)state;
    assert_int_equal(transport_run(2, silence_rank, -1), 0);
}

/* ---- connections when they are needed -------------------------------------------------------- */

enum { NEED_RANKS = 11 };

static int32_t need_connected(const struct tcp *tcp)
{
    int32_t count = 0;
    for (int32_t r = 0; r < tcp->transport.rank_count; r++)
        count += tess__tcp_at(tcp, r) != NULL && tess__tcp_at(tcp, r)->fd[TCP_WORDS] >= 0 &&
                         tess__tcp_at(tcp, r)->fd[TCP_DATA] >= 0
                     ? 1
                     : 0;
    return count;
}

/* All send to all at once, so that both sides of most pairs begin to connect. */
static int need_exchange(struct tess_transport *transport)
{
    enum { PEERS = 32 };
    uint32_t request[2 * PEERS];
    int32_t come[PEERS], own = 1000 + transport->rank, begun = 0;
    for (int32_t p = 0; p < transport->rank_count; p++) {
        come[p] = -1;
        if (p == transport->rank)
            continue;
        WORLD_OK(
            transport->ops->recv(transport, p, 7, &come[p], sizeof(come[p]), &request[begun++]));
        WORLD_OK(transport->ops->send(transport, p, 7, &own, sizeof(own), &request[begun++]));
    }
    WORLD_OK(transport_all(transport, request, begun));
    for (int32_t p = 0; p < transport->rank_count; p++)
        WORLD_CHECK(come[p] == (p == transport->rank ? -1 : 1000 + p));
    return 0;
}

static int need_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    static const int32_t neighbours[NEED_RANKS] = {4, 1, 2, 1, 3, 1, 2, 1, 3, 1, 1};
    struct tess_transport *transport;
    (void)world, (void)arg;
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    WORLD_CHECK(need_connected((const struct tcp *)transport) == neighbours[comm->rank]);
    WORLD_OK(tess_comm_barrier(comm));
    for (int round = 0; round < 2; round++)
        if (need_exchange(transport) != 0)
            return 1;
    WORLD_CHECK(need_connected((const struct tcp *)transport) == NEED_RANKS - 1);
    WORLD_OK(tess_comm_barrier(comm));
    transport->ops->close(transport);
    return 0;
}

static void case_needed(void **state)
{
    (void)state;
    assert_int_equal(transport_run(NEED_RANKS, need_rank, -1), 0);
}

/* A rank dies while no message is under way: those that were never connected with it learn it. */
static _Atomic int32_t *far_ready; /* shared; the harness ends ranks that are not ready yet */

static int far_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct tess_transport *transport;
    (void)world, (void)arg;
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    const double start_s = tess_clock_s();
    ++*far_ready;
    while (comm->rank == 5 && *far_ready < NEED_RANKS)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (comm->rank == 5)
        kill(getpid(), SIGKILL);
    WORLD_CHECK(transport_fails(transport) == TESS_ERR_COMM);
    CONTAINS(transport->reason, "rank 5 (");
    CONTAINS(transport->reason, ") has gone: ");
    WORLD_CHECK(tess_clock_s() - start_s < 5);
    transport->ops->close(transport);
    return 0;
}

static void case_far(void **state)
{
    (void)state;
    far_ready =
        mmap(NULL, sizeof(*far_ready), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(far_ready != MAP_FAILED);
    assert_int_equal(transport_run(NEED_RANKS, far_rank, 5), 0);
}

/* A rank that has ended and is called nevertheless. */
static int absent_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct tess_transport *transport;
    uint32_t request;
    (void)world, (void)arg;
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    WORLD_OK(tess_comm_barrier(comm));
    if (comm->rank == 3)
        transport->ops->close(transport);
    WORLD_OK(tess_comm_barrier(comm));
    if (comm->rank == 1)
        (void)transport->ops->send(transport, 3, 1, &request, 4, &request);
    if (comm->rank == 3)
        return 0;
    WORLD_CHECK(transport_fails(transport) == TESS_ERR_COMM);
    CONTAINS(transport->reason, "rank 3 (");
    CONTAINS(transport->reason, "rank 1 (");
    CONTAINS(transport->reason, "cannot connect to it at ");
    transport->ops->close(transport);
    return 0;
}

static void case_absent(void **state)
{
    (void)state;
    assert_int_equal(transport_run(4, absent_rank, -1), 0);
}

/* During the run come more silent connections than are kept, or than rank 0 may have open (arg: its
 * limit), and a forged one. No rank waits for them. */
static int crowd_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct tess_transport *transport;
    struct sockaddr_in name;
    socklen_t length = sizeof(name);
    (void)world;
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    const struct tcp *tcp = (const struct tcp *)transport;
    if (comm->rank == 0 && arg != NULL)
        WORLD_CHECK(setrlimit(RLIMIT_NOFILE, arg) == 0);
    WORLD_CHECK(getsockname(tcp->listener.fd[0], (struct sockaddr *)&name, &length) == 0);
    int32_t port = name.sin_port; /* rank 0's, for rank 1 */
    WORLD_OK(tess_comm_broadcast(comm, &port, 1, TESS_I32, 0, NULL));
    for (int k = 0; k < 3 * TCP_CALLERS && comm->rank == 1; k++) /* more than there are places */
        WORLD_CHECK(strange_connect((in_port_t)port, NULL, 0) >= 0);
    /* And one that says it is another rank, without a proof. */
    const struct {
        uint64_t magic;
        uint32_t which;
        int32_t from, to;
    } greeting = {UINT64_C(0x70637470746d6574), TCP_WORDS, 5, 0};
    struct tess_secret_answer forged = {.greeting = {0}};
    memcpy(forged.greeting, &greeting, sizeof(greeting));
    if (comm->rank == 1)
        WORLD_CHECK(strange_connect((in_port_t)port, &forged, sizeof(forged)) >= 0);
    WORLD_OK(tess_comm_barrier(comm));
    const double start_s = tess_clock_s();
    if (need_exchange(transport) != 0)
        return 1;
    WORLD_CHECK(tess_clock_s() - start_s < 4); /* a connection without a hello is kept for 1 s */
    if (comm->rank == 0)
        WORLD_CHECK(tcp->strangers >= 2 * TCP_CALLERS - 2 * 6);
    WORLD_OK(tess_comm_barrier(comm));
    transport->ops->close(transport);
    return 0;
}

static void case_crowd(void **state)
{
    struct rlimit few = {48, 48};
    (void)state;
    assert_int_equal(transport_run(6, crowd_rank, -1), 0);
    assert_int_equal(transport_run_arg(6, crowd_rank, &few, -1), 0);
}

/* More connections than the process may have open: the limit is raised as far as it goes, and the
 * message says what it is. */
static int files_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const struct rlimit few = {24, 48};
    struct rlimit limit;
    struct tess_transport *transport;
    uint32_t request[2];
    int32_t own = 0;
    (void)world, (void)arg;
    if (comm->rank == 0)
        WORLD_CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    WORLD_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    WORLD_CHECK(comm->rank > 0 || limit.rlim_cur == 48);
    WORLD_OK(tess_comm_barrier(comm));
    for (int32_t p = 1; p < comm->rank_count && comm->rank == 0; p++)
        if (transport->ops->send(transport, p, 7, &own, sizeof(own), &request[0]) != TESS_OK)
            break;
    WORLD_CHECK(transport_fails(transport) == TESS_ERR_ABORTED);
    CONTAINS(transport->reason, "rank 0 (");
    CONTAINS(transport->reason, "it may have 48 open files at a time");
    transport->ops->close(transport);
    return 0;
}

static void case_files(void **state)
{
    (void)state;
    assert_int_equal(transport_run(32, files_rank, -1), 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_overtaken), cmocka_unit_test(case_early),
        cmocka_unit_test(case_ended),     cmocka_unit_test(case_strangers),
        cmocka_unit_test(case_garbage),   cmocka_unit_test(case_tcp_killed),
        cmocka_unit_test(case_tcp_abort), cmocka_unit_test(case_silence),
        cmocka_unit_test(case_needed),    cmocka_unit_test(case_far),
        cmocka_unit_test(case_absent),    cmocka_unit_test(case_crowd),
        cmocka_unit_test(case_files),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
