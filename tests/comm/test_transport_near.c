/*
 * The transport over sockets between ranks of one host: bytes go through shared memory, or over
 * sockets where the system does not let a rank open another one's, which filters of system calls
 * (seccomp) stand for here; what comes by memory is not trusted; and ranks that end are noticed.
 */
#include "comm/net/transport_tcp.h"
#include "comm/transport_case.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From here on this process may not make the call, with this second argument unless that is 0. */
static bool refuse(uint32_t call, uint32_t argument)
{
    struct sock_filter filter[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 4, call},
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, args[1])},
        {BPF_JMP | BPF_JGE | BPF_K, argument == 0 ? 1 : 0, 0, 0}, /* any */
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, argument},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    };
    const struct sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* ONE_WAY: rank 0 cannot open the memory of others. */
enum way { BY_MEMORY, BY_SOCKET, ONE_WAY };
enum { SIZES = 8, TAGS = 3, MOST = (1 << 20) + 3 };

/* Of all bytes that cross, sanitizers compare some: these loops are the test's own. */
enum { LEAP = TESTS_DIVISOR > 1 ? 61 : 1 };

static const size_t sizes[SIZES] = {0, 1, 17, 4095, 4096, 262144, 100003, MOST};

static unsigned char value_of(int32_t from, int32_t to, int32_t tag, size_t size, size_t i)
{
    return (unsigned char)value_hash((uint64_t)(from * 64 + to), (uint64_t)tag + size, i);
}

/* Did messages go the way that they should? */
static int messages_way(struct tess_transport *transport, enum way way)
{
    const struct tcp *tcp = (const struct tcp *)transport;
    const bool by_memory = way == BY_MEMORY || (way == ONE_WAY && transport->rank > 0);

    for (int32_t peer = 0; peer < transport->rank_count; peer++) {
        struct tess_transport_link link;
        if (peer == transport->rank)
            continue;
        WORLD_CHECK(tess__tcp_near_gives(tess__tcp_at(tcp, peer)) == by_memory);
        WORLD_CHECK((tess__tcp_at(tcp, peer)->boxes == NULL) == (way == BY_SOCKET));
        WORLD_CHECK(tess__tcp_link(transport, peer, &link) != by_memory);
        WORLD_CHECK(by_memory || link.sent_bytes >= MOST);
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
    WORLD_CHECK(way != BY_SOCKET || refuse(__NR_memfd_create, 0));
    WORLD_CHECK(way != ONE_WAY || comm->rank > 0 || refuse(__NR_fcntl, F_GET_SEALS));
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    WORLD_CHECK(transport->rank == comm->rank && transport->rank_count == comm->rank_count);
    for (int32_t peer = 0; peer < comm->rank_count; peer++) {
        WORLD_CHECK(transport->host[peer] == 0 &&
                    transport->ops->host_name(transport, peer)[0] != '\0');
        if (peer == comm->rank)
            continue;
        for (int32_t tag = 0; tag < TAGS; tag++)
            for (int s = 0; s < SIZES; s++, count++) {
                sent[count] = malloc(sizes[s] + 5);
                come[count] = calloc(sizes[s] + 5, 1);
                WORLD_CHECK(sent[count] != NULL && come[count] != NULL);
                sent[count] += tag;
                come[count] += 2 * tag;
                for (size_t i = 0; i < sizes[s]; i += LEAP)
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
                for (size_t i = 0; i < sizes[s]; i += LEAP)
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
    assert_int_equal(transport_run_arg(2, messages_rank, &way, -1), 0);
    assert_int_equal(transport_run_arg(4, messages_rank, &way, -1), 0);
}

static void case_messages_one_way(void **state)
{
    enum way way = ONE_WAY;
    (void)state;
    assert_int_equal(transport_run_arg(2, messages_rank, &way, -1), 0);
    assert_int_equal(transport_run_arg(3, messages_rank, &way, -1), 0);
}

/* ---- ranks that sleep ------------------------------------------------------------------------ */

/* A message there and back, each after its receiver has gone to sleep: without the bell it sleeps
 * for longer than the harness waits. `large` does not fit into a ring: the sender sleeps, too. */
static int sleeps_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    enum { LARGE = 8 << 20, TURNS = 20 };
    struct tess_transport *transport;
    unsigned char *data = calloc(LARGE, 1);
    (void)world, (void)arg;
    WORLD_CHECK(data != NULL);
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    for (int turn = 0; turn < TURNS; turn++) {
        const bool sends = turn % 2 == comm->rank;
        const size_t bytes = turn % 4 < 2 ? 1 : LARGE;
        uint32_t request;
        bool done = false;
        if (sends) {
            usleep(3000);
            memset(data, turn + 1, bytes);
            WORLD_OK(transport->ops->send(transport, 1 - comm->rank, 7, data, bytes, &request));
        } else {
            WORLD_OK(transport->ops->recv(transport, 1 - comm->rank, 7, data, bytes, &request));
        }
        WORLD_OK(transport->ops->test(transport, request, &done));
        while (!done) {
            WORLD_OK(transport->ops->wait(transport, 1000));
            WORLD_OK(transport->ops->test(transport, request, &done));
        }
        for (size_t i = 0; i < bytes; i += LEAP)
            WORLD_CHECK(data[i] == turn + 1);
    }
    WORLD_OK(tess_comm_barrier(comm));
    transport->ops->close(transport);
    free(data);
    return 0;
}

static void case_sleeps(void **state)
{
    (void)state;
    assert_int_equal(transport_run(2, sleeps_rank, -1), 0);
}

/* ---- strangers ------------------------------------------------------------------------------- */

/* What rank 1 does to the memory that it shares with rank 0, and what rank 0 says of it. */
enum damage { WORDS, DATA, WRITTEN, TAKEN, DAMAGES };

static const char *const damage_reason[DAMAGES] = {
    [WORDS] = "what comes from it is not of this program",
    [DATA] = "what comes from it is no message that was requested",
    [WRITTEN] = "Protocol error",
    [TAKEN] = "Protocol error",
};

/* Rank 1 writes into the counters of a ring of data: that to rank 0, or that from it. */
static bool damage_ring(const struct tcp *tcp, bool to)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const struct tcp_near *near = &tcp->near[0];
    char path[64];
    struct stat file;
    struct tcp_ring *ring = MAP_FAILED;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", to ? (int)near->pid : (int)getpid(),
             to ? (int)near->inbox : tcp->inbox_fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &file) == 0)
        ring = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                    (off_t)page + (to ? (file.st_size - (off_t)page) / 2 : 0));
    if (ring == MAP_FAILED)
        return false;
    atomic_store(to ? &ring[TCP_DATA].written : &ring[TCP_DATA].taken, UINT64_C(1) << 40);
    return true;
}

static int damage_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    static char garbage[64] = "GET / HTTP/1.0";
    const enum damage damage = *(const enum damage *)arg;
    struct iovec part = {garbage, sizeof(garbage)};
    struct tess_transport *transport;
    static char data[100];
    uint32_t request;
    (void)world;
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    struct tcp *tcp = (struct tcp *)transport;
    struct tcp_peer *peer = tess__tcp_at(tcp, 1 - comm->rank);
    if (comm->rank == 1 && damage <= DATA)
        WORLD_CHECK(tess__tcp_near_give(peer, damage == WORDS ? TCP_WORDS : TCP_DATA, &part, 1) ==
                    sizeof(garbage));
    WORLD_CHECK(comm->rank == 0 || damage <= DATA || damage_ring(tcp, damage == WRITTEN));
    WORLD_OK(tess_comm_barrier(comm));
    if (comm->rank == 1)
        WORLD_OK(transport->ops->recv(transport, 0, 1, data, sizeof(data), &request));
    else if (damage == TAKEN)
        (void)transport->ops->send(transport, 1, 1, data, sizeof(data), &request); /* may notice */
    WORLD_CHECK(transport_fails(transport) == TESS_ERR_COMM);
    if (comm->rank == 0) {
        CONTAINS(transport->reason, "rank 1 (");
        CONTAINS(transport->reason, damage_reason[damage]);
    }
    transport->ops->close(transport);
    return 0;
}

static void case_damage(void **state)
{
    (void)state;
    for (enum damage damage = WORDS; damage < DAMAGES; damage++)
        assert_int_equal(transport_run_arg(2, damage_rank, &damage, -1), 0);
}

/* ---- in the middle of a message -------------------------------------------------------------- */

enum ending { ABORTS, ABORTS_APART, CLOSES, DIES };
enum { LARGE = 4 << 20 };

struct ending_expected {
    enum tess_status status;
    const char *reason;
};

static const struct ending_expected expected[] = {
    [ABORTS] = {TESS_ERR_ABORTED, ") failed: the disk is full"},
    [ABORTS_APART] = {TESS_ERR_ABORTED, ") failed: the disk is full"},
    [CLOSES] = {TESS_ERR_COMM, ") has gone: it "},
    [DIES] = {TESS_ERR_COMM, ") has gone: "},
};

static void *ending_abort(void *transport)
{
    ((struct tess_transport *)transport)
        ->ops->abort((struct tess_transport *)transport, "the disk is full");
    return NULL;
}

static int ending_sender(struct tess_comm *comm, struct tess_transport *transport,
                         enum ending ending, unsigned char *data)
{
    const struct tcp *tcp = (const struct tcp *)transport;
    pthread_t thread;
    uint32_t request;
    WORLD_OK(transport->ops->send(transport, 0, 0, data, LARGE, &request));
    while (tcp->request[request].state != TCP_MOVES || tcp->request[request].moved == 0)
        WORLD_OK(transport->ops->wait(transport, 0.1));
    if (ending == DIES) /* and with it all that needs the harness */
        kill(getpid(), SIGKILL);
    WORLD_OK(tess_comm_barrier(comm));
    if (ending == ABORTS)
        (void)ending_abort(transport);
    if (ending == ABORTS_APART)
        WORLD_CHECK(pthread_create(&thread, NULL, ending_abort, transport) == 0 &&
                    pthread_join(thread, NULL) == 0);
    if (ending != CLOSES)
        WORLD_CHECK(transport_fails(transport) == TESS_ERR_ABORTED);
    transport->ops->close(transport);
    return 0;
}

static int ending_receiver(struct tess_comm *comm, struct tess_transport *transport,
                           enum ending ending, unsigned char *data)
{
    struct tcp *tcp = (struct tcp *)transport;
    uint32_t request;
    WORLD_OK(transport->ops->recv(transport, 1, 0, data, LARGE, &request));
    const struct tcp_request *receive = &tcp->request[request];
    while (receive->moved == 0 && ending != DIES)
        WORLD_OK(transport->ops->wait(transport, 0.1));
    WORLD_CHECK(ending == DIES || (receive->state == TCP_MOVES && receive->moved < LARGE));
    if (ending != DIES)
        WORLD_OK(tess_comm_barrier(comm));
    WORLD_CHECK(transport_all(transport, &request, 1) == expected[ending].status);
    CONTAINS(transport->reason, "rank 1 (");
    CONTAINS(transport->reason, expected[ending].reason);
    transport->ops->close(transport);
    return 0;
}

static int ending_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const enum ending ending = *(const enum ending *)arg;
    struct tess_transport *transport;
    unsigned char *data = calloc(LARGE, 1);
    (void)world;
    WORLD_CHECK(data != NULL);
    WORLD_OK(transport_open(comm, LIMIT_S, &transport));
    const int failed =
        (comm->rank == 0 ? ending_receiver : ending_sender)(comm, transport, ending, data);
    free(data);
    return failed;
}

static void case_ending(void **state)
{
    (void)state;
    for (enum ending ending = ABORTS; ending <= DIES; ending++)
        assert_int_equal(transport_run_arg(2, ending_rank, &ending, ending == DIES ? 1 : -1), 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_messages_by_socket),
        cmocka_unit_test(case_messages_by_memory),
        cmocka_unit_test(case_messages_one_way),
        cmocka_unit_test(case_sleeps),
        cmocka_unit_test(case_damage),
        cmocka_unit_test(case_ending),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
