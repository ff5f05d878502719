/* The transport over sockets: what ranks get without a request. */
#include "base/clock.h"
#include "comm/cases.h"
#include "comm/net/net.h"
#include "comm/transport_case.h"
#include "harness/awake.h"

#include <string.h>

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

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_tell)};
    return cmocka_run_group_tests(cases, NULL, NULL);
}
