/*
 * The communicator over a transport, apart from any network: its schedules as drawn and for any
 * number of ranks, the same bits as one addition after the other, and what goes over which link
 * where ranks are numbered well and badly.
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

enum { RANKS = 64, MANY = NET_LANES_MAX, MOVES = 34 };

/* ---- schedules ------------------------------------------------------------------------------- */

static const struct tess_comm_call net_sum_call = {
    .collective = TESS_COLLECTIVE_ALL_REDUCE,
    .dtype = TESS_F32,
    .count = MANY * (NET_LANE_BYTES / 4), /* no lane is shared */
    .peer = -1,
    .site = ""};

static struct net_plan *net_plans(int32_t n, int32_t places, enum tess_order order,
                                  enum tess_collective collective, int32_t root)
{
    struct net_plan *plan = calloc((size_t)n, sizeof(*plan));
    struct tess_comm_call call = net_sum_call;
    assert_non_null(plan);
    call.order = order;
    call.collective = collective;
    call.peer = root;
    for (int32_t r = 0; r < n; r++) {
        const struct net_shape shape = {r, n, n / places, places};
        assert_int_equal(tess__net_plan_open(n, &plan[r]), TESS_OK);
        tess__net_plan(&shape, &call, 0, &plan[r]);
        assert_true(plan[r].lane_count <= plan[r].lane_room);
        assert_true(plan[r].move_count <= plan[r].move_room);
    }
    return plan;
}

static void net_plans_close(struct net_plan *plan, int32_t n)
{
    for (int32_t r = 0; r < n; r++)
        tess__net_plan_close(&plan[r]);
    free(plan);
}

/* What a rank does in a lane, by the ranks that it does it with; -1: none. */
struct net_view {
    int32_t come_count, down_count, to, from;
    int32_t come[MOVES], down[MOVES];
    bool left[MOVES], leaf[MOVES], starts[MOVES], keeps_left[MOVES];
    int joins[MOVES];
};

static struct net_view net_view(const struct net_plan *plan, int32_t rank, int32_t l)
{
    const struct net_lane *lane = &plan[rank].lane[l];
    struct net_view view = {.to = -1, .from = -1};
    for (int32_t k = 0; k < lane->move_count; k++) {
        const struct net_move *move = &lane->move[k];
        if (move->kind == NET_UP && move->sends) {
            view.to = move->peer;
        } else if (move->kind == NET_UP) {
            assert_int_equal(view.to, -1);
            view.left[view.come_count] = move->left;
            view.leaf[view.come_count] = move->leaf;
            view.starts[view.come_count] = move->starts;
            view.keeps_left[view.come_count] = move->keeps_left;
            view.joins[view.come_count] = move->joins;
            view.come[view.come_count++] = move->peer;
        } else if (move->sends) {
            view.down[view.down_count++] = move->peer;
        } else {
            assert_int_equal(view.down_count, 0);
            view.from = move->peer;
        }
    }
    assert_int_equal(view.come_count, lane->adds);
    return view;
}

/* text = "(text+other)", or the other way round. */
static void net_join(char *text, const char *other, bool left, size_t text_bytes)
{
    char *before = strdup(text);
    assert_non_null(before);
    snprintf(text, text_bytes, "(%s+%s)", left ? other : before, left ? before : other);
    free(before);
}

/* What a rank would hold of a lane after its receives, as words: "((0+1)+(2+3))". */
static void net_words(const struct net_plan *plan, int32_t rank, int32_t lane, char *text,
                      size_t text_bytes)
{
    const struct net_view own = net_view(plan, rank, lane);
    char *kept[NET_KEPT], *other = malloc(text_bytes);
    bool kept_left[NET_KEPT];
    int count = 0;
    assert_non_null(other);
    snprintf(text, text_bytes, "%d", (int)rank);
    for (int32_t k = 0; k < own.come_count; k++) {
        const int32_t from = own.come[k];
        const struct net_view theirs = net_view(plan, from, lane);
        if (theirs.to != rank)
            fail_msg("lane %d: rank %d waits for %d, which gives to %d", lane, rank, from,
                     theirs.to);
        assert_int_equal(own.leaf[k], theirs.come_count == 0);
        net_words(plan, from, lane, other, text_bytes);
        if (own.starts[k]) {
            assert_true(count < NET_KEPT);
            kept_left[count] = own.keeps_left[k];
            kept[count++] = strdup(text);
            snprintf(text, text_bytes, "%s", other);
        } else {
            net_join(text, other, own.left[k], text_bytes);
        }
        for (int join = 0; join < own.joins[k]; join++) {
            assert_true(count > 0);
            count--;
            net_join(text, kept[count], kept_left[count], text_bytes);
            free(kept[count]);
        }
    }
    assert_int_equal(count, 0);
    free(other);
}

/* The tree of tessera/comm.h over [first, first + count). */
static void net_tree_words(int32_t first, int32_t count, char *text, size_t text_bytes)
{
    if (count == 1) {
        snprintf(text, text_bytes, "%d", (int)first);
        return;
    }
    int32_t left = 1;
    while (left * 2 < count)
        left *= 2;
    char *a = malloc(text_bytes), *b = malloc(text_bytes);
    assert_true(a != NULL && b != NULL);
    net_tree_words(first, left, a, text_bytes);
    net_tree_words(first + left, count - left, b, text_bytes);
    snprintf(text, text_bytes, "(%s+%s)", a, b);
    free(a);
    free(b);
}

enum { WORDS = 1024 };

/* Any number of ranks and hosts: each lane is added up at its owner in the order of the tree. */
static void case_tree(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= RANKS; n++) {
        char expected[WORDS], text[WORDS];
        net_tree_words(0, n, expected, sizeof(expected));
        for (int32_t places = 1; places <= n; places++) {
            if (n % places != 0)
                continue;
            struct net_plan *plan =
                net_plans(n, places, TESS_ORDER_CANONICAL, TESS_COLLECTIVE_ALL_REDUCE, -1);
            for (int32_t l = 0; l < n; l++) {
                assert_int_equal(net_view(plan, l, l).to, -1);
                net_words(plan, l, l, text, sizeof(text));
                assert_string_equal(text, expected);
            }
            net_plans_close(plan, n);
        }
    }
}

/* No rank adds much more than its share: of the (n - 1) n additions of lanes, n - 1 each where n is
 * a power of two, and less than twice that anywhere. */
static void case_balance(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= MANY; n += n < RANKS ? 1 : n - 1) {
        struct net_plan *plan =
            net_plans(n, n, TESS_ORDER_CANONICAL, TESS_COLLECTIVE_ALL_REDUCE, -1);
        int32_t all = 0;
        for (int32_t r = 0; r < n; r++) {
            int32_t own = 0;
            for (int32_t l = 0; l < n; l++)
                own += net_view(plan, r, l).come_count;
            all += own;
            if ((n & (n - 1)) == 0)
                assert_int_equal(own, n - 1);
            if (own >= 2 * (n - 1) && n > 2)
                fail_msg("%d ranks: rank %d takes %d lanes", n, r, own);
        }
        assert_int_equal(all, n * (n - 1));
        net_plans_close(plan, n);
    }
}

/* Every rank is added once, on rings too, and down the lane every rank has it from one. */
static void net_check_lane(const struct net_plan *plan, int32_t n, int32_t l)
{
    uint64_t added = 0, reached = 0;
    char text[WORDS];
    net_words(plan, l, l, text, sizeof(text));
    for (const char *at = text; *at != '\0';)
        if (*at >= '0' && *at <= '9')
            added += UINT64_C(1) << strtol(at, (char **)&at, 10);
        else
            at++;
    const uint64_t all = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    assert_true(added == all);
    for (int32_t r = 0; r < n; r++) {
        const struct net_view lane = net_view(plan, r, l);
        assert_int_equal(lane.from < 0, r == l);
        for (int32_t k = 0; k < lane.down_count; k++) {
            assert_int_equal(net_view(plan, lane.down[k], l).from, r);
            reached |= UINT64_C(1) << lane.down[k];
        }
    }
    assert_true(reached == (all & ~(UINT64_C(1) << l)));
}

/* What one rank gives to another comes in the order in which that one expects it. */
static void net_check_pair(const struct net_plan *plan, int32_t lanes, int32_t from, int32_t to)
{
    int32_t given[2][RANKS], count[2] = {0, 0}, at[2] = {0, 0};
    for (int32_t i = 0; i < lanes; i++) {
        const int32_t up = plan[from].order[NET_UP][i], down = plan[from].order[NET_DOWN][i];
        const struct net_view above = net_view(plan, from, up), below = net_view(plan, from, down);
        if (above.to == to)
            given[0][count[0]++] = up;
        for (int32_t k = 0; k < below.down_count; k++)
            if (below.down[k] == to)
                given[1][count[1]++] = down;
    }
    for (int32_t i = 0; i < lanes; i++) {
        const int32_t up = plan[to].order[NET_UP][i], down = plan[to].order[NET_DOWN][i];
        const struct net_view above = net_view(plan, to, up), below = net_view(plan, to, down);
        for (int32_t k = 0; k < above.come_count; k++)
            if (above.come[k] == from)
                assert_true(at[0] < count[0] && given[0][at[0]++] == up);
        if (below.from == from)
            assert_true(at[1] < count[1] && given[1][at[1]++] == down);
    }
    assert_true(at[0] == count[0] && at[1] == count[1]);
}

static void case_lanes(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= RANKS / (TESTS_DIVISOR > 1 ? 2 : 1); n += n < 16 ? 1 : 8)
        for (int32_t places = 0; places <= n; places++) {
            if (places > 0 && n % places != 0)
                continue;
            struct net_plan *plan = net_plans(n, places > 0 ? places : n,
                                              places > 0 ? TESS_ORDER_FAST : TESS_ORDER_CANONICAL,
                                              TESS_COLLECTIVE_ALL_REDUCE, -1);
            for (int32_t l = 0; l < n; l++)
                net_check_lane(plan, n, l);
            for (int32_t from = 0; from < n; from++)
                for (int32_t to = 0; to < n; to++)
                    net_check_pair(plan, n, from, to);
            net_plans_close(plan, n);
        }
}

/* The drawings of net_path.h: lane 5 of 8 ranks. */
static void case_drawings(void **state)
{
    static const int32_t ring[8] = {6, 7, 0, 1, 2, 3, 4, 5};
    static const struct {
        int16_t rank, to;
    } tree[] = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {3, 1}, {7, 5}, {1, 5}, {5, -1}},
      hosts[] = {{4, 5}, {6, 7}, {0, 1}, {2, 3}, {7, 1}, {1, 3}, {3, 5}, {5, -1}};
    (void)state;
    struct net_plan *plan = net_plans(8, 8, TESS_ORDER_CANONICAL, TESS_COLLECTIVE_ALL_REDUCE, -1);
    for (int i = 0; i < 8; i++)
        assert_int_equal(net_view(plan, tree[i].rank, 5).to, tree[i].to);
    net_plans_close(plan, 8);
    for (int32_t places = 1; places <= 8; places += 7) {
        plan = net_plans(8, places, TESS_ORDER_FAST, TESS_COLLECTIVE_ALL_REDUCE, -1);
        for (int i = 0; i < 7; i++) {
            assert_int_equal(net_view(plan, ring[i], 5).to, ring[i + 1]);
            assert_int_equal(net_view(plan, (ring[i] + 7) % 8, 5).down[0], ring[i]);
        }
        net_plans_close(plan, 8);
    }
    plan = net_plans(8, 2, TESS_ORDER_FAST, TESS_COLLECTIVE_ALL_REDUCE, -1);
    for (int i = 0; i < 8; i++)
        assert_int_equal(net_view(plan, hosts[i].rank, 5).to, hosts[i].to);
    assert_true(net_view(plan, 5, 5).down[0] == 7 && net_view(plan, 7, 5).down[0] == 1 &&
                net_view(plan, 1, 5).down[0] == 3 && net_view(plan, 3, 5).down[0] == 2);
    assert_true(net_view(plan, 5, 5).down[1] == 4 && net_view(plan, 7, 5).down[1] == 6 &&
                net_view(plan, 1, 5).down[1] == 0 && net_view(plan, 3, 5).down_count == 1);
    net_plans_close(plan, 8);
}

/* Hosts are distinguished only where each has as many ranks, one after the other. */
static void case_shapes(void **state)
{
    static const struct {
        int32_t n, host[8], hosts, places;
    } wanted[] = {
        {8, {0, 0, 1, 1, 2, 2, 3, 3}, 4, 2}, {8, {0, 1, 2, 3, 0, 1, 2, 3}, 1, 8},
        {8, {0, 0, 0, 0, 0, 0, 0, 0}, 1, 8}, {8, {0, 1, 2, 3, 4, 5, 6, 7}, 8, 1},
        {6, {0, 0, 1, 1, 1, 1}, 1, 6},       {6, {0, 0, 1, 1, 0, 0}, 1, 6},
        {5, {0, 0, 1, 1, 2}, 1, 5},          {6, {0, 0, 0, 1, 1, 1}, 2, 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        const struct net_shape shape = tess__net_shape(1, wanted[i].n, wanted[i].host);
        if (shape.hosts != wanted[i].hosts || shape.places != wanted[i].places)
            fail_msg("%zu: %d hosts of %d", i, shape.hosts, shape.places);
    }
}

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
    static const int32_t more[] = {17, 24, 33, 64}, parts[][2] = {{3, 1},  {5, 1}, {9, 1}, {10, 1},
                                                                  {11, 1}, {3, 2}, {5, 2}, {3, 4}};
    int32_t host[RANKS];
    (void)state;
    for (int32_t i = 2; i <= 20; i++) {
        const int32_t n = i <= 16 ? i : more[i - 17];
        for (int32_t r = 0; r < n; r++)
            host[r] = i % 4 == 0 ? 0 : r / (i % 4 + 1);
        net_run(n, host, TESS_ORDER_CANONICAL, net_bits, NULL);
    }
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
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
        cmocka_unit_test(case_tree),        cmocka_unit_test(case_balance),
        cmocka_unit_test(case_lanes),       cmocka_unit_test(case_drawings),
        cmocka_unit_test(case_shapes),      cmocka_unit_test(case_bits),
        cmocka_unit_test(case_moves),       cmocka_unit_test(case_links),
        cmocka_unit_test(case_memory_kept), cmocka_unit_test(case_barrier),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
