/*
 * The transport over sockets between ranks of one host: messages come from memory, or over a socket
 * where the system does not let a rank read another one's, which a filter of system calls (seccomp)
 * stands for here; and nothing counts that was read after its sender gave it up.
 */
#include "comm/net/transport_tcp.h"
#include "comm/transport_case.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From here on this process may not read the memory of others. */
static bool refuse(int error)
{
    struct sock_filter filter[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, __NR_process_vm_readv},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | (uint32_t)error},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    };
    const struct sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

/* Does the system under these tests have the call at all? */
static void need_call(void)
{
    int from = 1, to = 0;
    const struct iovec here = {&to, sizeof(to)}, there = {&from, sizeof(from)};

    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != (ssize_t)sizeof(to))
        skip();
}

/* ---- messages -------------------------------------------------------------------------------- */

enum way { BY_MEMORY, BY_SOCKET, REFUSED };
enum { SIZES = 8, TAGS = 3, MOST = (1 << 20) + 3 };

static const size_t sizes[SIZES] = {0, 1, 17, 4095, 4096, TCP_NEAR_LEAST, 100003, MOST};

static unsigned char value_of(int32_t from, int32_t to, int32_t tag, size_t size, size_t i)
{
    return (unsigned char)value_hash((uint64_t)(from * 64 + to), (uint64_t)tag + size, i);
}

/* Did the large messages go the way that they should? */
static int messages_way(struct tess_transport *transport, enum way way)
{
    const struct tcp *tcp = (const struct tcp *)transport;

    for (int32_t peer = 0; peer < transport->rank_count; peer++) {
        struct tess_transport_link link;
        if (peer == transport->rank)
            continue;
        WORLD_CHECK(tcp->peer[peer]->near == (way == BY_MEMORY));
        WORLD_CHECK(tess__tcp_link(transport, peer, &link));
        WORLD_CHECK((link.sent_bytes < MOST) == (way == BY_MEMORY));
    }
    return 0;
}

/* All sizes on several tags to and from every rank at once; receives in another order of
 * tags than sends; twice as many small ones as one write takes; some at odd addresses. */
static int messages_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const enum way way = *(const enum way *)arg;
    enum { PEERS = 4, ALL = PEERS * TAGS * SIZES };
    static unsigned char *sent[ALL], *come[ALL];
    uint32_t request[2 * ALL];
    struct tess_transport *transport;
    int count = 0, begun = 0;
    (void)world;
    WORLD_CHECK(way != BY_SOCKET || refuse(ENOSYS));
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    WORLD_CHECK(way != REFUSED || refuse(EPERM));
    WORLD_CHECK(transport->rank == comm->rank && transport->rank_count == comm->rank_count);
    for (int32_t peer = 0; peer < comm->rank_count; peer++) {
        WORLD_CHECK(transport->host[peer] == 0 && transport->host_name[peer][0] != '\0');
        if (peer == comm->rank)
            continue;
        for (int32_t tag = 0; tag < TAGS; tag++)
            for (int s = 0; s < SIZES; s++, count++) {
                sent[count] = malloc(sizes[s] + 5);
                come[count] = calloc(sizes[s] + 5, 1);
                WORLD_CHECK(sent[count] != NULL && come[count] != NULL);
                sent[count] += tag;
                come[count] += 2 * tag;
                for (size_t i = 0; i < sizes[s]; i++)
                    sent[count][i] = value_of(comm->rank, peer, tag, sizes[s], i);
                WORLD_OK(transport->ops->send(transport, peer, 0xfffff0u + (uint32_t)tag,
                                              sent[count], sizes[s], &request[begun++]));
            }
        for (int32_t tag = TAGS - 1; tag >= 0; tag--)
            for (int s = 0; s < SIZES; s++)
                WORLD_OK(transport->ops->recv(transport, peer, 0xfffff0u + (uint32_t)tag,
                                              come[count - (TAGS - tag) * SIZES + s], sizes[s],
                                              &request[begun++]));
    }
    WORLD_OK(transport_all(transport, request, begun));
    count = 0;
    for (int32_t peer = 0; peer < comm->rank_count; peer++)
        for (int32_t tag = 0; tag < TAGS && peer != comm->rank; tag++)
            for (int s = 0; s < SIZES; s++, count++) {
                for (size_t i = 0; i < sizes[s]; i++)
                    WORLD_CHECK(come[count][i] == value_of(peer, comm->rank, tag, sizes[s], i));
                WORLD_CHECK(come[count][sizes[s]] == 0);
            }
    WORLD_OK(tess_comm_barrier(comm));
    if (messages_way(transport, way) != 0)
        return 1;
    WORLD_OK(tess_comm_barrier(comm)); /* before that none may hang up */
    transport->ops->close(transport);
    return 0;
}

static void case_messages_by_socket(void **state)
{
    enum way way = BY_SOCKET;
    (void)state;
    assert_int_equal(transport_run_arg(2, messages_rank, &way, -1), 0);
    assert_int_equal(transport_run_arg(4, messages_rank, &way, -1), 0);
}

static void case_messages_by_memory(void **state)
{
    enum way way = BY_MEMORY;
    (void)state;
    need_call();
    assert_int_equal(transport_run_arg(2, messages_rank, &way, -1), 0);
    assert_int_equal(transport_run_arg(4, messages_rank, &way, -1), 0);
}

/* The first large message fails; it and those that are requested already come over the socket. */
static void case_messages_refused(void **state)
{
    enum way way = REFUSED;
    (void)state;
    need_call();
    assert_int_equal(transport_run_arg(2, messages_rank, &way, -1), 0);
}

/* ---- in the middle of a message -------------------------------------------------------------- */

enum ending { ABORTS, ABORTS_APART, CLOSES, DIES, IS_REFUSED };
enum { LARGE = 4 << 20 };

struct ending_expected {
    enum tess_status status;
    const char *reason;
};

static const struct ending_expected expected[] = {
    [ABORTS] = {TESS_ERR_ABORTED, ") failed: the disk is full"},
    [ABORTS_APART] = {TESS_ERR_ABORTED, ") failed: the disk is full"},
    [CLOSES] = {TESS_ERR_COMM, "it has ended while rank 0 waits for it"},
    [DIES] = {TESS_ERR_COMM, ") has gone: "},
};

static void *ending_abort(void *transport)
{
    ((struct tess_transport *)transport)
        ->ops->abort((struct tess_transport *)transport, "the disk is full");
    return NULL;
}

/* It ends, and uses its memory for something else at once. */
static int ending_sender(struct tess_comm *comm, struct tess_transport *transport,
                         enum ending ending, unsigned char *data)
{
    const struct tcp *tcp = (const struct tcp *)transport;
    pthread_t thread;
    uint32_t request;
    WORLD_OK(transport->ops->send(transport, 0, 0, data, LARGE, &request));
    while (tcp->request[request].state != TCP_MOVES)
        WORLD_OK(transport->ops->wait(transport, 0.1));
    WORLD_OK(tess_comm_barrier(comm));
    if (ending == ABORTS)
        (void)ending_abort(transport);
    if (ending == ABORTS_APART)
        WORLD_CHECK(pthread_create(&thread, NULL, ending_abort, transport) == 0 &&
                    pthread_join(thread, NULL) == 0);
    if (ending == CLOSES)
        transport->ops->close(transport);
    if (ending == DIES)
        kill(getpid(), SIGKILL);
    if (ending != IS_REFUSED)
        memset(data, 9, LARGE);
    WORLD_OK(tess_comm_barrier(comm));
    WORLD_OK(tess_comm_barrier(comm)); /* the receiver has looked: what it read was still mapped */
    if (ending == IS_REFUSED)
        WORLD_OK(transport_all(transport, &request, 1));
    else if (ending != CLOSES)
        WORLD_CHECK(transport_fails(transport) == TESS_ERR_ABORTED);
    if (ending != CLOSES)
        transport->ops->close(transport);
    return 0;
}

static int ending_receiver(struct tess_comm *comm, struct tess_transport *transport,
                           enum ending ending, unsigned char *data)
{
    struct tcp *tcp = (struct tcp *)transport;
    size_t room = LARGE;
    uint32_t request;
    WORLD_OK(transport->ops->recv(transport, 1, 0, data, LARGE, &request));
    struct tcp_request *receive = &tcp->request[request];
    while (receive->moved == 0)
        WORLD_OK(transport->ops->wait(transport, 0.1));
    WORLD_CHECK(receive->state == TCP_MOVES && receive->moved < LARGE);
    WORLD_OK(tess_comm_barrier(comm));
    while (ending == DIES && tess__tcp_near_reads(tcp, 1))
        usleep(1000);
    if (ending == IS_REFUSED)
        WORLD_CHECK(refuse(EPERM));
    if (ending != DIES)
        WORLD_OK(tess_comm_barrier(comm));
    /* Before words can say so. */
    WORLD_CHECK(tess__tcp_near_copy(tcp, receive, &room) ==
                (ending == IS_REFUSED ? TCP_COPY_REFUSED : TCP_COPY_LOST));
    if (ending != DIES)
        WORLD_OK(tess_comm_barrier(comm));
    if (ending == IS_REFUSED) {
        WORLD_OK(transport_all(transport, &request, 1));
        for (size_t i = 0; i < LARGE; i++)
            WORLD_CHECK(data[i] == 5);
    } else {
        WORLD_CHECK(transport_all(transport, &request, 1) == expected[ending].status);
        CONTAINS(transport->reason, "rank 1 (");
        CONTAINS(transport->reason, expected[ending].reason);
    }
    transport->ops->close(transport);
    return 0;
}

static int ending_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const enum ending ending = *(const enum ending *)arg;
    struct tess_transport *transport;
    unsigned char *data = malloc(LARGE);
    (void)world;
    WORLD_CHECK(data != NULL);
    memset(data, comm->rank == 1 ? 5 : 0, LARGE);
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    const int failed =
        (comm->rank == 0 ? ending_receiver : ending_sender)(comm, transport, ending, data);
    free(data);
    return failed;
}

static void case_ending(void **state)
{
    (void)state;
    need_call();
    for (enum ending ending = ABORTS; ending <= IS_REFUSED; ending++)
        assert_int_equal(transport_run_arg(2, ending_rank, &ending, ending == DIES ? 1 : -1), 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_messages_by_socket),
        cmocka_unit_test(case_messages_by_memory),
        cmocka_unit_test(case_messages_refused),
        cmocka_unit_test(case_ending),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
