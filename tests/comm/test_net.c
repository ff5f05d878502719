/*
 * The communicator over a transport, apart from any network, on ranks that are threads: the same
 * bits as one addition after the other, and what goes over which link where ranks are numbered well
 * and badly. Its schedules alone: test_net_plan.c.
 */
#include "comm/net/net.h"

#include "base/reduce.h"
#include "comm/cases.h"
#include "comm/net/net_group.h"
#include "comm/net_fake.h"
#include "tessera/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 64 };

/* ---- ranks as threads ------------------------------------------------------------------------ */

struct net_job_of {
    struct fake_net *net;
    int32_t rank, n;
    enum tess_order order;
    int failed;
    char text[400];
};

typedef int (*net_body)(struct tess_comm *comm, struct net_job_of *job);

static net_body net_running;

static void *net_thread(void *context)
{
    struct net_job_of *job = context;
    struct tess_comm *comm;
    tess_log_set_rank(job->rank);
    if (tess_comm_net_open(fake_net_transport(job->net, job->rank), NULL, job->order, 60, &comm) !=
        TESS_OK) {
        job->failed = 1;
        return NULL;
    }
    job->failed = net_running(comm, job);
    if (job->failed != 0)
        tess_comm_abort(comm, job->text);
    tess_comm_close(comm);
    return NULL;
}

static void net_run(int32_t n, const int32_t *host, enum tess_order order, net_body body,
                    void (*look)(struct fake_net *net))
{
    static struct net_job_of job[RANKS];
    pthread_t thread[RANKS];
    struct fake_net *net = fake_net_open(n, host);
    net_running = body;
    for (int32_t r = 0; r < n; r++) {
        job[r] = (struct net_job_of){.net = net, .rank = r, .n = n, .order = order};
        assert_int_equal(pthread_create(&thread[r], NULL, net_thread, &job[r]), 0);
    }
    for (int32_t r = 0; r < n; r++)
        pthread_join(thread[r], NULL);
    for (int32_t r = 0; r < n; r++)
        if (job[r].failed != 0)
            fail_msg("%d ranks, rank %d: %s", n, r, job[r].text);
    assert_int_equal(fake_net_left(net), 0);
    if (look != NULL)
        look(net);
    fake_net_close(net);
}

#define NET_CHECK(condition)                                                                       \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            snprintf(job->text, sizeof(job->text), "line %d: %s: %s", __LINE__, #condition,        \
                     tess_log_last_error());                                                       \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

/* Which NaN comes of two is the compiler's choice, who may exchange the operands of a sum. */
static bool net_same(enum tess_dtype dtype, const void *a, const void *b, size_t count)
{
    const uint16_t *x = a, *y = b, infinity = dtype == TESS_F16 ? 0x7c00 : 0x7f80;
    if (dtype != TESS_F16 && dtype != TESS_BF16)
        return memcmp(a, b, count * tess_dtype_bytes(dtype)) == 0;
    for (size_t i = 0; i < count; i++)
        if (x[i] != y[i] && ((x[i] & 0x7fff) <= infinity || (y[i] & 0x7fff) <= infinity))
            return false;
    return true;
}

/* The same bits as adding all arrays in one place, which is what `local` does, in all-reduces and
 * in reduce-scatters; 16-bit values are any pattern. */
static int net_bits(struct tess_comm *comm, struct net_job_of *job)
{
    enum { ROOM = 30012 };
    static const size_t counts[] = {1, 7, 100, 4999, 30011}; /* the last: lanes of their own */
    const int32_t n = job->n;
    const uint64_t rounds = n > 16 ? 1 : 2;
    void *source[RANKS];
    for (int32_t r = 0; r < n; r++)
        source[r] = malloc(ROOM * 8);
    unsigned char *expected = malloc(ROOM * 8), *target = malloc(ROOM * 8);
    int failed = 0;
    for (uint64_t k = 0; k < rounds * TESS_DTYPE_COUNT * 3 && failed == 0; k++) {
        const enum tess_dtype dtype = (enum tess_dtype)(k % TESS_DTYPE_COUNT);
        const enum tess_reduce reduce = (enum tess_reduce)(k / TESS_DTYPE_COUNT % 3);
        const size_t count = counts[(k + k / TESS_DTYPE_COUNT) % (n <= 5 ? 5 : 4)];
        for (int32_t r = 0; r < n; r++)
            value_fill(dtype, VALUE_WILD + k, r, count, source[r]);
        void *const all[1] = {expected};
        tess__reduce(dtype, reduce, n, (const void *const *)source, 1, all, count);
        const void *own = k % 2 == 0 ? source[job->rank] : target; /* in place */
        memcpy(target, source[job->rank], count * tess_dtype_bytes(dtype));
        failed = tess_comm_all_reduce(comm, own, target, count, dtype, reduce, NULL) != TESS_OK ||
                 !net_same(dtype, target, expected, count);
        const size_t share = count / (size_t)n;
        const size_t at = (size_t)job->rank * share * tess_dtype_bytes(dtype);
        failed = failed ||
                 tess_comm_reduce_scatter(comm, source[job->rank], target, share, dtype, reduce,
                                          NULL) != TESS_OK ||
                 !net_same(dtype, target, expected + at, share);
        if (failed)
            snprintf(job->text, sizeof(job->text), "%zu %s differ: %s", count,
                     tess_dtype_name(dtype), tess_log_last_error());
    }
    for (int32_t r = 0; r < n; r++)
        free(source[r]);
    free(expected);
    free(target);
    return failed;
}

/* On one host, and on hosts of 2, 3 or 4 neighbours, which are blocks of the tree or not; and on
 * hosts of which the last takes the sums of others in parts. */
static void case_bits(void **state)
{
    static const int32_t more[] = {17, 24, 33, 64},
                         parts[][2] = {{3, 1}, {5, 1}, {9, 1}, {10, 1}, {11, 1}, {3, 2},
                                       {5, 2}, {3, 4}, {6, 1}, {12, 1}, {6, 2}};
    /* Sanitizers: each kind of host, fewer ranks, each of which makes the arrays of all. */
    const int32_t turn = TESTS_DIVISOR > 1 ? 3 : 1, most = TESTS_DIVISOR > 1 ? 17 : 20;
    int32_t host[RANKS];
    (void)state;
    for (int32_t i = 2; i <= most; i += turn) {
        const int32_t n = i <= 16 ? i : more[i - 17];
        for (int32_t r = 0; r < n; r++)
            host[r] = i % 4 == 0 ? 0 : r / (i % 4 + 1);
        net_run(n, host, TESS_ORDER_CANONICAL, net_bits, NULL);
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i += (size_t)turn) {
        const int32_t n = parts[i][0] * parts[i][1];
        for (int32_t r = 0; r < n; r++)
            host[r] = r / parts[i][1];
        net_run(n, host, TESS_ORDER_CANONICAL, net_bits, NULL);
    }
}

/* Everything but sums, and messages that cross calls, on rings of all shapes. */
static int net_moves(struct tess_comm *comm, struct net_job_of *job)
{
    enum { COUNT = 9000 };
    const int32_t n = job->n, rank = job->rank, next = (rank + 1) % n, last = (rank + n - 1) % n;
    const size_t many = (size_t)n * COUNT;
    int32_t *source = malloc(many * sizeof(*source)), *target = malloc(many * sizeof(*target));
    int32_t *come = malloc(COUNT * sizeof(*come));
    struct tess_event event[3];
    NET_CHECK(source != NULL && target != NULL && come != NULL);
    for (size_t i = 0; i < many; i++)
        source[i] = rank * 1000003 + (int32_t)i;
    NET_CHECK(tess_comm_send(comm, source, COUNT, TESS_I32, next, &event[0]) == TESS_OK);
    NET_CHECK(tess_comm_all_to_all(comm, source, target, COUNT, TESS_I32, &event[1]) == TESS_OK);
    NET_CHECK(tess_comm_recv(comm, come, COUNT, TESS_I32, last, &event[2]) == TESS_OK);
    for (int e = 2; e >= 0; e--)
        NET_CHECK(tess_event_wait(&event[e]) == TESS_OK);
    for (size_t i = 0; i < many; i++)
        NET_CHECK(target[i] ==
                  (int32_t)(i / COUNT) * 1000003 + rank * COUNT + (int32_t)(i % COUNT));
    for (int32_t i = 0; i < COUNT; i++)
        NET_CHECK(come[i] == last * 1000003 + i);
    NET_CHECK(tess_comm_all_gather(comm, source, target, COUNT, TESS_I32, NULL) == TESS_OK);
    for (size_t i = 0; i < many; i++)
        NET_CHECK(target[i] == (int32_t)(i / COUNT) * 1000003 + (int32_t)(i % COUNT));
    for (int32_t root = 0; root < n; root += 3) {
        memcpy(target, source, many * sizeof(*target));
        NET_CHECK(tess_comm_broadcast(comm, target, many, TESS_I32, root, NULL) == TESS_OK);
        NET_CHECK(tess_comm_broadcast(comm, come, COUNT, TESS_I32, root, NULL) == TESS_OK);
        for (size_t i = 0; i < many; i++)
            NET_CHECK(target[i] == root * 1000003 + (int32_t)i);
    }
    free(source);
    free(target);
    free(come);
    return 0;
}

/* A barrier, of more ranks than send each other notes: nobody leaves before all have come. */
static _Atomic int32_t net_came;

static int net_barrier(struct tess_comm *comm, struct net_job_of *job)
{
    for (int32_t k = 1; k <= 5; k++) {
        net_came++;
        NET_CHECK(tess_comm_barrier(comm) == TESS_OK);
        NET_CHECK(net_came >= k * job->n);
        NET_CHECK(comm->stats.sent_bytes == 0 && comm->stats.received_bytes == 0);
        NET_CHECK(tess_comm_barrier(comm) == TESS_OK);
    }
    return 0;
}

static void case_barrier(void **state)
{
    static const int32_t host[NET_NOTE_ALL + 3] = {0};
    (void)state;
    for (int order = 0; order < 2; order++) {
        net_came = 0;
        net_run(NET_NOTE_ALL + 3, host, (enum tess_order)order, net_barrier, NULL);
    }
}

static void case_moves(void **state)
{
    static const int32_t hosts[][9] = {{2, 0, 0},
                                       {3, 0, 1, 2},
                                       {8, 0, 0, 1, 1, 2, 2, 3, 3},
                                       {6, 0, 0, 0, 1, 1, 1},
                                       {7, 0, 0, 0, 0, 0, 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(*hosts); i++)
        for (int order = 0; order < 2; order++)
            net_run(hosts[i][0], &hosts[i][1], (enum tess_order)order, net_moves, NULL);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Sanitizers have allocators of their own. */
#if defined(__has_feature)
#define NET_FEATURE(x) __has_feature(x)
#else
#define NET_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||                               \
    NET_FEATURE(address_sanitizer) || NET_FEATURE(thread_sanitizer)
#define NET_COUNTS 0
#else
#define NET_COUNTS 1
static _Atomic uint64_t net_allocated;
static _Thread_local bool net_counting;

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);

/* In the place of the C library's, for all of this program. */
void *malloc(size_t bytes)
{
    net_allocated += net_counting ? 1 : 0;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    net_allocated += net_counting ? 1 : 0;
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    net_allocated += net_counting ? 1 : 0;
    return __libc_realloc(memory, bytes);
}

/* Calls of all kinds and sizes, which take no memory once they have been made before. */
static int net_steady(struct tess_comm *comm, struct net_job_of *job)
{
    enum { COUNT = 50000 };
    const int32_t n = job->n, next = (job->rank + 1) % n, last = (job->rank + n - 1) % n;
    float *source = calloc((size_t)n * COUNT, sizeof(*source));
    float *target = calloc((size_t)n * COUNT, sizeof(*target));
    NET_CHECK(source != NULL && target != NULL);
    for (int round = 0; round < 12; round++) {
        struct tess_event event[4];
        NET_CHECK(tess_comm_barrier(comm) == TESS_OK);
        net_counting = round >= 2;
        for (size_t count = 3; count <= COUNT; count += COUNT - 3) {
            NET_CHECK(tess_comm_all_reduce(comm, source, target, count, TESS_F32, TESS_REDUCE_SUM,
                                           &event[0]) == TESS_OK);
            NET_CHECK(tess_comm_reduce_scatter(comm, source, source + (size_t)job->rank * count,
                                               count, TESS_F32, TESS_REDUCE_SUM,
                                               &event[1]) == TESS_OK);
            NET_CHECK(tess_comm_send(comm, source, count, TESS_F32, next, &event[2]) == TESS_OK);
            NET_CHECK(tess_event_wait(&event[0]) == TESS_OK);
            NET_CHECK(tess_comm_recv(comm, target, count, TESS_F32, last, &event[3]) == TESS_OK);
            for (int e = 1; e < 4; e++)
                NET_CHECK(tess_event_wait(&event[e]) == TESS_OK);
            NET_CHECK(tess_comm_all_gather(comm, source, target, count, TESS_F32, NULL) == TESS_OK);
            NET_CHECK(tess_comm_all_to_all(comm, source, target, count, TESS_F32, NULL) == TESS_OK);
            NET_CHECK(tess_comm_broadcast(comm, target, count, TESS_F32, 1, NULL) == TESS_OK);
            NET_CHECK(tess_comm_reduce(comm, source, target, count, TESS_BF16, TESS_REDUCE_SUM, 0,
                                       NULL) == TESS_OK);
        }
        net_counting = false;
    }
    free(source);
    free(target);
    return 0;
}
#endif

static void case_memory_kept(void **state)
{
    (void)state;
#if NET_COUNTS
    static const int32_t host[5] = {0, 0, 0, 0, 0};
    for (int order = 0; order < 2; order++) {
        net_allocated = 0;
        net_run(5, host, (enum tess_order)order, net_steady, NULL);
        assert_int_equal(net_allocated, 0);
    }
#else
    skip();
#endif
}

/* ---- links ----------------------------------------------------------------------------------- */

enum { SUM_COUNT = 1 << 16 }; /* elements of 4 bytes; divisible by all that is divided below */

static int net_sum(struct tess_comm *comm, struct net_job_of *job)
{
    float *data = calloc(SUM_COUNT, sizeof(*data));
    NET_CHECK(data != NULL);
    NET_CHECK(tess_comm_all_reduce(comm, data, data, SUM_COUNT, TESS_F32, TESS_REDUCE_SUM, NULL) ==
              TESS_OK);
    free(data);
    return 0;
}

static const int32_t *net_parts; /* of each of 8 ranks: host or rack */
static uint64_t net_crossed;

static void net_count(struct fake_net *net)
{
    net_crossed = 0;
    for (int32_t a = 0; a < 8; a++)
        for (int32_t b = 0; b < 8; b++)
            if (net_parts[a] != net_parts[b])
                net_crossed += fake_net_bytes(net, a, b, NET_NOTE);
}

/* Drawn in net.h: each rank sends half of the array to its neighbour, a quarter to the next pair,
 * an eighth to the other four; and gets as much back. */
static void net_see_halves(struct fake_net *net)
{
    for (int32_t r = 0; r < 8; r++)
        for (int32_t k = 0; k < 3; k++)
            assert_int_equal(fake_net_bytes(net, r, r ^ 1 << k, NET_DOWN),
                             SUM_COUNT * sizeof(float) >> (k + 1));
}

/*
 * 2 racks of 2 hosts of 2 ranks, an all-reduce of S bytes. On the tree a rank sends S/2, S/4, S/8
 * each way at the three levels: 8 ranks over racks, last, 2 S, over hosts 6 S. A ring over hosts
 * with two places gives each lane over all but one of its 4 links each way: over hosts 2 * 3 S,
 * over racks, by 2 links of the 4, 2 * 2 S * 3/4. A ring over all ranks has 8 links, of which a
 * lane uses 7: over racks 2 * 2 S * 7/8, and where ranks of both racks alternate all 8: 4 times as
 * much.
 */
static void case_links(void **state)
{
    static const int32_t host[8] = {0, 0, 1, 1, 2, 2, 3, 3}, rack[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    static const int32_t alone[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const int32_t mixed_host[8] = {0, 1, 2, 3, 0, 1, 2, 3};
    static const int32_t mixed_rack[8] = {0, 1, 0, 1, 0, 1, 0, 1};
    static const struct {
        enum tess_order order;
        const int32_t *host, *parts;
        double times;
    } wanted[] = {
        {TESS_ORDER_CANONICAL, host, host, 6},
        {TESS_ORDER_CANONICAL, host, rack, 2},
        {TESS_ORDER_CANONICAL, mixed_host, mixed_rack, 8},
        {TESS_ORDER_FAST, host, host, 6},
        {TESS_ORDER_FAST, host, rack, 3},
        {TESS_ORDER_FAST, alone, rack, 3.5},
        {TESS_ORDER_FAST, alone, mixed_rack, 14},
        {TESS_ORDER_FAST, mixed_host, mixed_rack, 14},
        {TESS_ORDER_FAST, mixed_host, mixed_host, 14},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        net_parts = wanted[i].parts;
        net_run(8, wanted[i].host, wanted[i].order, net_sum, net_count);
        if ((double)net_crossed != wanted[i].times * SUM_COUNT * sizeof(float))
            fail_msg("%zu: %g times the array crosses, not %g", i,
                     (double)net_crossed / SUM_COUNT / sizeof(float), wanted[i].times);
    }
    net_run(8, host, TESS_ORDER_CANONICAL, net_sum, net_see_halves);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_bits),    cmocka_unit_test(case_moves),
        cmocka_unit_test(case_links),   cmocka_unit_test(case_memory_kept),
        cmocka_unit_test(case_barrier),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
