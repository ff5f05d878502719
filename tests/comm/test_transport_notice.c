/* The transport over sockets: what ranks get without a request, the last word among it. */
#include "base/clock.h"
#include "comm/cases.h"
#include "comm/net/net.h"
#include "comm/net/transport_tcp.h"
#include "comm/transport_case.h"
#include "harness/awake.h"

#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/time.h>

struct notices {
    int count;
    int32_t from;
    uint32_t tag;
    char text[TESS_TRANSPORT_NOTICE_BYTES];
};

static void notice_take(void *user, int32_t from, uint32_t tag, const void *data, size_t bytes)
{
    struct notices *notices = user;
    notices->count++;
    notices->from = from;
    notices->tag = tag;
    memcpy(notices->text, data, bytes < sizeof(notices->text) ? bytes : sizeof(notices->text));
}

/* Notices come without a request, in order. That a rank has ended which got only notices
 * and never connected is no failure. */
static int notice_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    struct tess_transport *transport;
    struct notices got = {.count = 0};
    const char first[TESS_TRANSPORT_NOTICE_BYTES] = "first", second[] = "second";
    const int32_t last = comm->rank_count - 1;
    uint32_t request;
    int32_t value = 3;
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    transport->on_notice = notice_take;
    transport->notice_user = &got;
    WORLD_OK(tess_comm_barrier(comm));
    if (comm->rank == 0) {
        WORLD_OK(transport->ops->notify(transport, 1, 7, first, sizeof(first)));
        WORLD_OK(transport->ops->notify(transport, 1, 8, second, sizeof(second)));
        WORLD_OK(transport->ops->flush(transport));
    }
    for (double end_s = awake_s() + LIMIT_S; comm->rank == 1 && got.count < 2 && awake_s() < end_s;)
        WORLD_OK(transport->ops->wait(transport, 0.1));
    if (comm->rank == 1)
        WORLD_CHECK(got.count == 2 && got.from == 0 && got.tag == 8 &&
                    strcmp(got.text, second) == 0);
    if (comm->rank == last)
        transport->ops->close(transport);
    WORLD_OK(tess_comm_barrier(comm));
    if (comm->rank == last) {
        WORLD_OK(tess_comm_barrier(comm));
        return 0;
    }
    if (comm->rank > 0)
        WORLD_OK(transport->ops->notify(transport, last, 9, first, sizeof(first)));
    for (double end_s = tess_clock_s() + 0.2; tess_clock_s() < end_s;)
        WORLD_OK(transport->ops->wait(transport, 0.05));
    if (comm->rank < 2) {
        WORLD_OK(comm->rank == 0
                     ? transport->ops->send(transport, 1, 1, &value, sizeof(value), &request)
                     : transport->ops->recv(transport, 0, 1, &value, sizeof(value), &request));
        WORLD_OK(transport_all(transport, &request, 1));
    }
    WORLD_OK(tess_comm_barrier(comm));
    transport->ops->close(transport);
    return 0;
}

static void case_tell(void **state)
{
    (void)state;
    assert_int_equal(transport_run(5, notice_rank, -1), 0);
}

/* What comes of this connection is not looked at, until later. */
static struct {
    int epoll, fd;
    uint64_t tag;
} unseen;

static void unseen_watch(uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u64 = unseen.tag};
    (void)epoll_ctl(unseen.epoll, EPOLL_CTL_MOD, unseen.fd, &event);
}

static void unseen_end(int number)
{
    (void)number;
    unseen_watch(EPOLLIN);
}

/* A rank sends its only message and ends before it has seen the answer on its connection for words,
 * which the other rank has: that one gets its last word on it. With rank 0 all are connected from
 * the start. */
static int hasty_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    struct tess_transport *transport;
    const struct itimerval soon = {.it_value.tv_usec = 100000};
    uint32_t request;
    int32_t value = comm->rank == 1 ? 3 : 0;
    bool done = false, held = false;
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    const struct tcp *tcp = (const struct tcp *)transport;
    if (comm->rank == 1) {
        WORLD_OK(transport->ops->send(transport, 2, 1, &value, sizeof(value), &request));
        for (double end_s = awake_s() + LIMIT_S; (!done || !held) && awake_s() < end_s;) {
            const struct tcp_call *call = tess__tcp_at(tcp, 2)->call;
            if (!held && call != NULL && call->of[TCP_WORDS].step == TCP_WELCOMED) {
                held = true;
                unseen.epoll = tcp->epoll;
                unseen.fd = call->of[TCP_WORDS].fd;
                unseen.tag = TCP_TAG_CALL | (2 * TCP_CONNECTIONS + TCP_WORDS);
                unseen_watch(0);
            }
            WORLD_OK(transport->ops->wait(transport, 0));
            if (!done)
                WORLD_OK(transport->ops->test(transport, request, &done));
        }
        WORLD_CHECK(done && held && !tess__tcp_at(tcp, 2)->met[TCP_WORDS]);
        WORLD_CHECK(signal(SIGALRM, unseen_end) != SIG_ERR);
        WORLD_CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        transport->ops->close(transport);
        return 0;
    }
    if (comm->rank == 2) {
        WORLD_OK(transport->ops->recv(transport, 1, 1, &value, sizeof(value), &request));
        WORLD_OK(transport_all(transport, &request, 1));
        WORLD_CHECK(value == 3);
        for (double end_s = awake_s() + LIMIT_S; !tess__tcp_at(tcp, 1)->bye && awake_s() < end_s;)
            WORLD_OK(transport->ops->wait(transport, 0.05));
        WORLD_CHECK(tess__tcp_at(tcp, 1)->bye);
    }
    transport->ops->close(transport);
    return 0;
}

static void case_hasty(void **state)
{
    (void)state;
    assert_int_equal(transport_run(3, hasty_rank, -1), 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_tell), cmocka_unit_test(case_hasty)};
    return cmocka_run_group_tests(cases, NULL, NULL);
}
