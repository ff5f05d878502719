/*
 * How long sums take between hosts in racks, in virtual time: the communicator of all hosts in one
 * thread, over links that carry what comes first. A message takes its way link by link, as a whole;
 * computing takes no time.
 *
 *   host --EDGE--> rack --UPLINK--> core --UPLINK--> rack --EDGE--> host
 */
#include "comm/cases.h"
#include "comm/net/net.h"
#include "comm/net/net_group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HOSTS = 15, MESSAGES = 1 << 17, CALLS = 4, LINKS = 4 };

static const double EDGE = 125e6, UPLINK = 25e6; /* bytes a second, as 1000 and 200 Mbit/s */

/* A send or a receive; a message from the moment at which both have begun. */
struct time_message {
    bool send, matched, done;
    int32_t from, to;
    uint32_t tag;
    void *data;
    size_t bytes;
    uint32_t other;
    int hop;     /* the link that it is on or comes to */
    double at_s; /* when that link has carried it */
};

struct time_end {
    struct tess_transport transport; /* first */
    struct time_net *net;
};

static struct time_net {
    int32_t rack_hosts, host[HOSTS];
    bool moved[HOSTS]; /* since the host was last asked, or by that: others have nothing to do */
    double now_s, free_s[LINKS][HOSTS];
    uint32_t count, live_count;
    uint32_t live[MESSAGES]; /* those that are not done, in the order in which they began */
    struct time_message message[MESSAGES];
    struct time_end end[HOSTS];
} net;

/* The message comes to its next link, if there is one. */
static bool time_enter(struct time_message *message)
{
    const int32_t from = message->from, to = message->to;
    const bool far = from / net.rack_hosts != to / net.rack_hosts;
    const int32_t which[LINKS] = {from, from / net.rack_hosts, to / net.rack_hosts, to};
    int hop = message->hop;

    if (!far && hop == 1)
        hop = 3;
    message->hop = hop;
    if (hop == LINKS)
        return false;
    double *free_s = &net.free_s[hop][which[hop]];
    const double rate = hop == 1 || hop == 2 ? UPLINK : EDGE;
    *free_s = fmax(net.now_s, *free_s) + (double)message->bytes / rate;
    message->at_s = *free_s;
    return true;
}

static enum tess_status time_begin(struct time_end *end, bool send, int32_t peer, uint32_t tag,
                                   void *data, size_t bytes, uint32_t *request_out)
{
    const int32_t rank = end->transport.rank;
    const struct time_message own = {.send = send,
                                     .from = send ? rank : peer,
                                     .to = send ? peer : rank,
                                     .tag = tag,
                                     .data = data,
                                     .bytes = bytes};
    assert_true(net.count < MESSAGES);
    *request_out = net.count++;
    net.message[*request_out] = own;
    for (uint32_t l = 0; l < net.live_count; l++) {
        struct time_message *other = &net.message[net.live[l]];
        if (other->matched || other->send == send || other->from != own.from ||
            other->to != own.to || other->tag != tag)
            continue;
        assert_int_equal(other->bytes, bytes);
        other->matched = net.message[*request_out].matched = true;
        other->other = *request_out;
        net.message[*request_out].other = net.live[l];
        (void)time_enter(send ? &net.message[*request_out] : other);
        break;
    }
    net.live[net.live_count++] = *request_out;
    return TESS_OK;
}

static enum tess_status time_send(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                  const void *data, size_t bytes, uint32_t *request_out)
{
    return time_begin((struct time_end *)transport, true, peer, tag, (void *)data, bytes,
                      request_out);
}

static enum tess_status time_recv(struct tess_transport *transport, int32_t peer, uint32_t tag,
                                  void *data, size_t bytes, uint32_t *request_out)
{
    return time_begin((struct time_end *)transport, false, peer, tag, data, bytes, request_out);
}

static enum tess_status time_test(struct tess_transport *transport, uint32_t request,
                                  bool *done_out)
{
    (void)transport;
    *done_out = net.message[request].done;
    return TESS_OK;
}

static enum tess_status time_wait(struct tess_transport *transport, double timeout_s)
{
    (void)transport;
    (void)timeout_s;
    return TESS_ERR_INTERNAL; /* nobody waits: ranks take turns */
}

static void time_abort(struct tess_transport *transport, const char *reason)
{
    (void)transport;
    fail_msg("%s", reason);
}

static void time_close(struct tess_transport *transport)
{
    (void)transport;
}

static const char *time_host_name(const struct tess_transport *transport, int32_t rank)
{
    (void)transport;
    (void)rank;
    return "a host";
}

static const struct tess_transport_ops time_ops = {.name = "time",
                                                   .send = time_send,
                                                   .recv = time_recv,
                                                   .test = time_test,
                                                   .wait = time_wait,
                                                   .abort = time_abort,
                                                   .close = time_close,
                                                   .host_name = time_host_name};

/* The next message that a link has carried; false: none is on its way. */
static bool time_next(void)
{
    struct time_message *next = NULL;
    uint32_t kept = 0;

    for (uint32_t l = 0; l < net.live_count; l++) {
        struct time_message *message = &net.message[net.live[l]];
        if (message->done)
            continue;
        net.live[kept++] = net.live[l];
        if (message->send && message->matched && (next == NULL || message->at_s < next->at_s))
            next = message;
    }
    net.live_count = kept;
    if (next == NULL)
        return false;
    struct time_message *taken = &net.message[next->other];
    net.now_s = next->at_s;
    next->hop++;
    if (time_enter(next))
        return true;
    if (next->bytes > 0)
        memcpy(taken->data, next->data, next->bytes);
    next->done = taken->done = true;
    net.moved[next->from] = net.moved[next->to] = true;
    return true;
}

/* Seconds of a sum of `bytes`, one call after the other. */
static double time_sum(int32_t racks, int32_t rack_hosts, enum tess_order order, size_t bytes)
{
    const int32_t n = racks * rack_hosts;
    const size_t count = bytes / sizeof(float);
    struct tess_comm *comm[HOSTS];
    float *array[HOSTS];
    int32_t left = n, posted[HOSTS] = {0};

    memset(&net, 0, sizeof(net));
    net.rack_hosts = rack_hosts;
    for (int32_t r = 0; r < n; r++) {
        net.host[r] = r;
        net.moved[r] = true;
    }
    for (int32_t r = 0; r < n; r++) {
        net.end[r].transport = (struct tess_transport){.ops = &time_ops,
                                                       .rank = r,
                                                       .rank_count = n,
                                                       .host = net.host,
                                                       .rack_hosts = rack_hosts};
        array[r] = calloc(count, sizeof(float));
        assert_non_null(array[r]);
        assert_int_equal(tess_comm_net_open(&net.end[r].transport, NULL, order, 60, &comm[r]),
                         TESS_OK);
    }
    do {
        left = 0;
        for (int32_t r = 0; r < n; r++) {
            struct net_group *group = (struct net_group *)comm[r];
            struct tess_event event;
            left += group->current < CALLS ? 1 : 0;
            if (!net.moved[r])
                continue;
            net.moved[r] = false;
            assert_int_equal(tess__net_advance(group, &net.moved[r]), TESS_OK);
            if (group->current == group->posted && posted[r] < CALLS) {
                posted[r]++;
                net.moved[r] = true;
                assert_int_equal(tess_comm_all_reduce(comm[r], array[r], array[r], count, TESS_F32,
                                                      TESS_REDUCE_SUM, &event),
                                 TESS_OK);
            }
        }
    } while (time_next() || left > 0);
    const double seconds = net.now_s / CALLS;
    for (int32_t r = 0; r < n; r++) {
        tess_comm_close(comm[r]);
        free(array[r]);
    }
    return seconds;
}

/* Sums in canonical order beside those on rings: what comes first on a link must not be what is
 * needed last, and messages must not wait for others'. */
static void case_racks(void **state)
{
    static const struct {
        int32_t racks, hosts;
        size_t bytes;
        double most;
    } wanted[] = {{3, 2, 1 << 20, 0.82}, {3, 3, 1 << 20, 1.13}, {3, 3, 4 << 20, 1.09},
                  {3, 4, 1 << 20, 0.83}, {2, 3, 1 << 20, 0.92}, {2, 4, 1 << 20, 0.65},
                  {3, 5, 1 << 20, 1.23}, {3, 5, 4 << 20, 1.12}, {5, 3, 1 << 20, 1.19},
                  {5, 3, 4 << 20, 1.1}};
    const int turn = TESTS_DIVISOR > 1 ? 6 : 1; /* sanitizers: minutes */
    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i += (size_t)turn) {
        const int32_t racks = wanted[i].racks, hosts = wanted[i].hosts;
        const size_t bytes = wanted[i].bytes;
        const double fast = time_sum(racks, hosts, TESS_ORDER_FAST, bytes);
        const double canonical = time_sum(racks, hosts, TESS_ORDER_CANONICAL, bytes);
        printf("%d racks of %d hosts, %zu KiB: %.1f ms, in any order %.1f\n", racks, hosts,
               bytes >> 10, canonical * 1e3, fast * 1e3);
        if (canonical > wanted[i].most * fast)
            fail_msg("%.3f times as long, at most %.2f expected", canonical / fast, wanted[i].most);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_racks)};

    return cmocka_run_group_tests(cases, NULL, NULL);
}
