/*
 * The transport over sockets: requests from their begin to their end, and the life of the whole.
 * What moves over the sockets is in transport_tcp_move.c, how they come about in
 * transport_tcp_meet.c.
 */
#include "comm/net/transport_tcp.h"

#include "base/clock.h"
#include "comm/net/net.h"
#include "tessera/check.h"
#include "tessera/communicator.h"
#include "tessera/version.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* Requests are tested one by one: the network is asked once for those that are tested together. */
#define TCP_LOOK_S 10e-6
/* Longer than a small sum between ranks that share cores takes: a rank that sleeps in the middle of
 * it is woken too late for the others, who then sleep as well. */
#define TCP_SPIN_S 200e-6
/* How long a rank that ends tries to announce it. */
#define TCP_BYE_S       1.0
#define TCP_OTHER_FILES 256

static struct tcp *tcp_of(struct tess_transport *transport)
{
    return (struct tcp *)transport;
}

static enum tess_status tcp_begin(struct tcp *tcp, bool send, int32_t peer,
                                  const struct tcp_head *head, const void *data,
                                  struct tcp_request **request_out, uint32_t *number_out)
{
    struct tcp_request *request = TAILQ_FIRST(&tcp->free);
    TESS_TRY(tcp->status);
    if (request != NULL) {
        TAILQ_REMOVE(&tcp->free, request, link);
    } else if (tcp->request_count < TESS_TRANSPORT_REQUESTS) {
        request = &tcp->request[tcp->request_count++];
    } else {
        TESS_FAIL(TESS_ERR_INTERNAL, "more than %d messages under way", TESS_TRANSPORT_REQUESTS);
    }
    *request = (struct tcp_request){
        .state = TCP_WAITS, .send = send, .peer = peer, .data = (char *)data, .head = *head};
    *request_out = request;
    *number_out = (uint32_t)(request - tcp->request);
    return TESS_OK;
}

static enum tess_status tcp_send(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                 const void *data, size_t bytes, uint32_t *request_out)
{
    struct tcp *tcp = tcp_of(transport);
    struct tcp_ready ready = {.number = TCP_EARLY};
    struct tcp_request *request;

    TESS_TRY(tess__tcp_reach(tcp, peer));
    struct tcp_peer *to = tess__tcp_at(tcp, peer);
    TESS_TRY(tcp_begin(tcp, true, peer, &(struct tcp_head){TCP_MAGIC, tag, 0, 0, bytes}, data,
                       &request, request_out));
    if (tess__tcp_readies_take(&to->ready, tag, &ready) && ready.bytes != bytes)
        tess__tcp_differ(tcp, peer, true, ready.bytes, bytes);
    else if (ready.number != TCP_EARLY || tess__tcp_early_goes(to, tag, bytes))
        tess__tcp_send(tcp, request, ready.number);
    else
        TAILQ_INSERT_TAIL(&to->sends, request, link);
    return tcp->status;
}

static enum tess_status tcp_recv(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                 void *data, size_t bytes, uint32_t *request_out)
{
    struct tcp *tcp = tcp_of(transport);
    struct tcp_peer *from = tess__tcp_peer(tcp, peer); /* its sender connects */
    struct tcp_request *request;

    if (from == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for messages with rank %d", (int)peer);
    TESS_TRY(tcp_begin(tcp, false, peer, &(struct tcp_head){TCP_MAGIC, tag, 0, 0, bytes}, data,
                       &request, request_out));
    const struct tcp_frame ready = {
        .word = TCP_READY, .tag = tag, .number = *request_out, .bytes = bytes};
    from->large_tag = tess__tcp_early_is(bytes) ? from->large_tag : tag;
    if (tess__tcp_early_is(bytes) && !tess__tcp_early_claim(tcp, request))
        return tcp->status;
    if (tag == from->large_tag)
        tess__tcp_say(tcp, peer, &ready, NULL);
    else
        tess__tcp_say_later(tcp, peer, &ready);
    return tcp->status;
}

static enum tess_status tcp_flush(struct tess_transport *transport)
{
    tess__tcp_flush(tcp_of(transport));
    return tcp_of(transport)->status;
}

static enum tess_status tcp_notify(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                   const void *data, size_t bytes)
{
    struct tcp *tcp = tcp_of(transport);

    TESS_TRY(tess__tcp_reach(tcp, peer));
    tess__tcp_say(tcp, peer, &(struct tcp_frame){.word = TCP_NOTICE, .tag = tag, .bytes = bytes},
                  data);
    return tcp->status;
}

/* The peer has ended in order, and this request needs it. */
static bool tcp_is_left(const struct tcp *tcp, const struct tcp_request *request)
{
    const struct tcp_peer *peer = tess__tcp_at(tcp, request->peer);

    return peer->bye && (peer->fd[TCP_DATA] < 0 || (request->send && request->state == TCP_WAITS));
}

static enum tess_status tcp_test(struct tess_transport *transport, uint32_t number, bool *done_out)
{
    struct tcp *tcp = tcp_of(transport);
    struct tcp_request *request = &tcp->request[number];

    if (request->state != TCP_DONE && tess_clock_s() - tcp->looked_s > TCP_LOOK_S)
        tess__tcp_move(tcp, 0);
    *done_out = request->state == TCP_DONE;
    if (*done_out) {
        request->state = TCP_FREE;
        TAILQ_INSERT_HEAD(&tcp->free, request, link);
        return TESS_OK;
    }
    TESS_TRY(tcp->status);
    if (tcp_is_left(tcp, request)) {
        char text[TCP_HOST_BYTES + 60];
        snprintf(text, sizeof(text), "it has ended while rank %d waits for it",
                 (int)transport->rank);
        tess__tcp_end(tcp, TCP_LOST, request->peer, text);
    }
    return tcp->status;
}

/* Ranks of this host answer sooner than a rank that sleeps is woken. Has something moved? */
static bool tcp_spin(struct tcp *tcp)
{
    const double end_s = tess_clock_s() + TCP_SPIN_S;

    for (;;) {
        tess__tcp_move(tcp, 0);
        if (tcp->moved || tcp->status != TESS_OK || tcp->looked_s > end_s)
            return tcp->moved || tcp->status != TESS_OK;
        sched_yield();
    }
}

static enum tess_status tcp_wait(struct tess_transport *transport, double timeout_s)
{
    struct tcp *tcp = tcp_of(transport);

    TESS_TRY(tcp->status);
    /* What was done while other requests were tested has not been seen by all. */
    const int ms = tcp->moved || timeout_s <= 0 ? 0
                   : timeout_s > 1e6            ? 1000000000
                                                : (int)(timeout_s * 1e3) + 1;
    tcp->moved = false;
    const double begin_s = tess_clock_s();
    if (ms > 0 && !tcp->sleeps && tcp_spin(tcp))
        return tcp->status;
    tess__tcp_move(tcp, ms);
    /* Links that are slower than that, and long waits, are not watched: a core would do nothing
     * else. */
    if (ms > 0)
        tcp->sleeps = tess_clock_s() - begin_s > TCP_SPIN_S;
    return tcp->status;
}

static void tcp_abort(struct tess_transport *transport, const char *reason)
{
    struct tcp *tcp = tcp_of(transport);
    int none = 0;

    if (pthread_equal(pthread_self(), tcp->owner)) {
        tess__tcp_end(tcp, TCP_ABORT, transport->rank, reason);
        return;
    }
    /* The thread that owns the sockets sends it, at once where it waits. */
    if (!atomic_compare_exchange_strong(&tcp->abort_state, &none, 1))
        return;
    snprintf(tcp->abort_text, sizeof(tcp->abort_text), "%s", reason);
    atomic_store(&tcp->abort_state, 2);
    if (write(tcp->bell[1], "", 1) < 0) {
        /* It is rung already. */
    }
}

/* What has come and is not read makes the system reset a connection that is closed, and what was
 * sent before is lost with it. */
static void tcp_hang_up(int *fd)
{
    char rest[4096];

    if (*fd < 0)
        return;
    while (recv(*fd, rest, sizeof(rest), MSG_DONTWAIT) > 0)
        ;
    close(*fd);
    *fd = -1;
}

/* Words for a peer wait for its connection, also for one that is being made: it may be there for
 * the peer, which without a last word would report that this rank has gone. */
static bool tcp_has_words(const struct tcp_peer *peer)
{
    const bool comes = peer->call != NULL || peer->calls || peer->met[TCP_DATA];

    return peer->out_used > 0 && (peer->fd[TCP_WORDS] >= 0 || (comes && !peer->met[TCP_WORDS]));
}

static void tcp_say_bye(struct tcp *tcp)
{
    const double limit_s = tess_clock_s() + TCP_BYE_S;
    const int32_t ranks = tcp->transport.rank_count;
    bool left = true;

    for (int32_t r = 0; r < ranks; r++)
        if (tess__tcp_at(tcp, r) != NULL)
            tess__tcp_say(tcp, r, &(struct tcp_frame){.word = TCP_BYE}, NULL);
    while (left && tess_clock_s() < limit_s) {
        left = false;
        for (int32_t r = 0; r < ranks; r++) {
            const struct tcp_peer *peer = tess__tcp_at(tcp, r);
            left = left || (peer != NULL && tcp_has_words(peer));
        }
        if (left)
            tess__tcp_move(tcp, 10);
    }
}

static size_t tcp_pages(const struct tcp *tcp)
{
    return ((size_t)tcp->transport.rank_count + TCP_PAGE - 1) / TCP_PAGE;
}

static void tcp_free(struct tcp *tcp)
{
    for (int32_t r = 0; tcp->page != NULL && r < tcp->transport.rank_count; r++) {
        if (tess__tcp_at(tcp, r) == NULL)
            continue;
        tcp_hang_up(&tess__tcp_at(tcp, r)->fd[TCP_WORDS]);
        tess__tcp_early_free(tess__tcp_at(tcp, r));
        free(tess__tcp_at(tcp, r)->out);
        free(tess__tcp_at(tcp, r));
    }
    for (size_t p = 0; tcp->page != NULL && p < tcp_pages(tcp); p++)
        free((void *)tcp->page[p]);
    free((void *)tcp->page);
    tess__tcp_early_close(tcp);
    tess__tcp_table_drop(tcp);
    free(tcp->caller);
    free(tcp->near);
    free(tcp);
}

static void tcp_close(struct tess_transport *transport)
{
    struct tcp *tcp = tcp_of(transport);

    /* No more data: memory for it need not be there any longer. */
    tcp->leaves = true;
    for (int32_t r = 0; tcp->page != NULL && r < transport->rank_count; r++)
        if (tess__tcp_at(tcp, r) != NULL)
            tcp_hang_up(&tess__tcp_at(tcp, r)->fd[TCP_DATA]);
    if (tcp->epoll >= 0 && tcp->page != NULL)
        tcp_say_bye(tcp);
    tess__tcp_calls_close(tcp);
    if (tcp->epoll >= 0)
        close(tcp->epoll);
    for (int end = 0; end < 2; end++)
        if (tcp->bell[end] >= 0)
            close(tcp->bell[end]);
    tess__tcp_near_close(tcp);
    tcp_free(tcp);
}

static const struct tess_transport_ops tcp_ops = {.name = "tcp",
                                                  .send = tcp_send,
                                                  .recv = tcp_recv,
                                                  .test = tcp_test,
                                                  .wait = tcp_wait,
                                                  .abort = tcp_abort,
                                                  .close = tcp_close,
                                                  .host_name = tess__tcp_host_name,
                                                  .link = tess__tcp_link,
                                                  .flush = tcp_flush,
                                                  .notify = tcp_notify};

static enum tess_status tcp_reserve(struct tcp *tcp)
{
    tcp->page = calloc(tcp_pages(tcp), sizeof(*tcp->page));
    tcp->caller = calloc(TCP_CALLERS, sizeof(*tcp->caller));
    if (tcp->caller == NULL || tcp->page == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for connections of %d ranks",
                  (int)tcp->transport.rank_count);
    tcp->caller_room = TCP_CALLERS;
    for (int i = 0; i < tcp->caller_room; i++)
        tcp->caller[i].fd = -1;
    tcp->transport.reason = tcp->reason;
    return TESS_OK;
}

static enum tess_status tcp_watch(struct tcp *tcp)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = TCP_TAG_BELL};

    tcp->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (tcp->epoll < 0 || pipe2(tcp->bell, O_CLOEXEC | O_NONBLOCK) != 0 ||
        epoll_ctl(tcp->epoll, EPOLL_CTL_ADD, tcp->bell[0], &event) != 0)
        TESS_FAIL(TESS_ERR_COMM, "cannot watch sockets: %s", strerror(errno));
    return TESS_OK;
}

/* Two connections and a bell for each rank that messages are exchanged with, those of callers
 * (caller_grow), and what the rest of the process has open. Where the limit does not allow that the
 * connection that is too many says so. */
static void tcp_raise_limit(int32_t rank_count)
{
    const rlim_t wanted =
        (rlim_t)rank_count * (2 * TCP_CONNECTIONS + 1) + TCP_CALLERS + TCP_OTHER_FILES;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

enum tess_status tess_transport_tcp_open(const struct tess_boot *boot, double timeout_s,
                                         struct tess_transport **transport_out)
{
    struct tcp *tcp = boot->rank_count <= TESS_RANKS_MAX ? calloc(1, sizeof(*tcp)) : NULL;

    if (tcp == NULL)
        TESS_FAIL(boot->rank_count > TESS_RANKS_MAX ? TESS_ERR_UNSUPPORTED : TESS_ERR_MEMORY,
                  "no connections of %d ranks: there may be up to %d", (int)boot->rank_count,
                  TESS_RANKS_MAX);
    tcp->transport = (struct tess_transport){
        .ops = &tcp_ops, .rank = boot->rank, .rank_count = boot->rank_count};
    tcp->timeout_s = timeout_s;
    tcp->epoll = tcp->bell[0] = tcp->bell[1] = tcp->inbox_fd = tcp->table_fd = -1;
    tcp->owner = pthread_self();
    TAILQ_INIT(&tcp->free);
    tess__tcp_early_open(tcp);
    tcp_raise_limit(boot->rank_count);
    enum tess_status status = tcp_reserve(tcp);
    if (status == TESS_OK)
        status = tcp_watch(tcp);
    if (status == TESS_OK)
        status = tess__tcp_meet(tcp, boot);
    if (status != TESS_OK) {
        tcp_close(&tcp->transport);
        return status;
    }
    *transport_out = &tcp->transport;
    return TESS_OK;
}

static enum tess_status tcp_kind_open(const struct tess_comm_request *request,
                                      struct tess_comm **comm_out)
{
    struct tess_transport *transport;

    TESS_TRY(tess_transport_tcp_open(request->boot, request->timeout_s, &transport));
    transport->rack_hosts = request->rack_hosts;
    return tess_comm_net_open(transport, request->world, request->order, request->timeout_s,
                              comm_out);
}

extern const struct tess_communicator_ops tess_communicator_tcp;
const struct tess_communicator_ops tess_communicator_tcp = {
    .abi = TESS_ABI,
    .name = "tcp",
    .summary = "sockets between processes, on one host or many",
    .host = TESS_COMM_PROCESSES | TESS_COMM_STARTED,
    .boot = true,
    .open = tcp_kind_open,
};
