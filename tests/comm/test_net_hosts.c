/*
 * What sums in canonical order send between hosts: counted in the schedules of the communicator
 * over a transport for every way to lay ranks out, and in the bytes of calls, beside the rings and
 * beside the flat way, in which every rank gets the others' parts of its slice and adds them up
 * itself.
 */
#include "base/log_sink.h"
#include "comm/cases.h"
#include "comm/net/net_path.h"
#include "comm/net_fake.h"
#include "tessera/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Most ranks: in any row, any order. STEP: numbers between ROWS and RANKS, of which sanitizers take
 * fewer. */
enum {
    RANKS = 64,
    ROWS = TESTS_DIVISOR > 1 ? 12 : 16,
    STEP = TESTS_DIVISOR > 1 ? 10 : 2,
    SCATTERED = 8
};

/* ---- schedules ------------------------------------------------------------------------------- */

/* Lanes that go up from one rank to another. Down they come back, or along a chain: checked
 * as it is made. */
static int32_t hosts_up[RANKS][RANKS], hosts_down[RANKS][RANKS];
static bool hosts_block[RANKS][RANKS + 1]; /* is [a, b) a block of the tree? */

static void hosts_blocks(int32_t first, int32_t count)
{
    int32_t left = 1;
    hosts_block[first][first + count] = true;
    while (left * 2 < count)
        left *= 2;
    if (count > 1) {
        hosts_blocks(first, left);
        hosts_blocks(first + left, count - left);
    }
}

/* For ranks on these hosts, unless they were counted last. */
static void hosts_count_lanes(int32_t n, const int32_t *host)
{
    static struct net_shape counted;
    struct net_shape shape = tess__net_shape(0, n, host, 0);
    const struct tess_comm_call call = {.collective = TESS_COLLECTIVE_ALL_REDUCE,
                                        .order = TESS_ORDER_CANONICAL,
                                        .dtype = TESS_F32,
                                        .count = (size_t)n * (NET_LANE_BYTES / 4),
                                        .peer = -1,
                                        .site = ""};
    static struct net_plan plan;
    const bool chain = shape.hosts >= 6 && (shape.hosts & (shape.hosts - 1)) != 0;
    if (memcmp(&shape, &counted, sizeof(shape)) == 0)
        return;
    counted = shape;
    assert_int_equal(tess__net_plan_open(n, &plan), TESS_OK);
    memset(hosts_up, 0, sizeof(hosts_up));
    memset(hosts_down, 0, sizeof(hosts_down));
    memset(hosts_block, 0, sizeof(hosts_block));
    hosts_blocks(0, n);
    for (int32_t r = 0; r < n; r++) {
        shape.rank = r;
        tess__net_plan(&shape, &call, 0, &plan);
        for (int32_t l = 0; l < n; l++)
            for (int32_t k = 0; k < plan.lane[l].move_count; k++) {
                const struct net_move *move = &plan.lane[l].move[k];
                hosts_up[r][move->peer] += move->sends && move->kind == NET_UP ? 1 : 0;
                hosts_down[move->peer][r] += move->sends && move->kind == NET_DOWN ? 1 : 0;
            }
    }
    tess__net_plan_close(&plan);
    /* Down a chain, in which each rank is once, or as it came up. */
    int32_t comes = 0;
    for (int32_t r = 0; r < n; r++)
        for (int32_t q = 0; q < n; q++)
            comes += hosts_down[r][q];
    assert_int_equal(comes, n * (n - 1));
    if (!chain)
        assert_memory_equal(hosts_up, hosts_down, sizeof(hosts_down));
}

/* The ranks on hosts, checked: what crosses, and why if it is more than a sum for each host. */
struct hosts_seen {
    int32_t hosts, size[RANKS], crossings, most; /* most: lanes one way through a host's card */
    bool blocks;
};

static struct hosts_seen hosts_look(int32_t n, const int32_t *host)
{
    struct hosts_seen seen = {.blocks = true};
    hosts_count_lanes(n, host);
    int32_t first[RANKS], last[RANKS], goes[RANKS] = {0}, comes[RANKS] = {0}, astray = -1;
    for (int32_t r = 0; r < n; r++) {
        if (host[r] == seen.hosts)
            first[seen.hosts++] = r;
        seen.size[host[r]]++;
        last[host[r]] = r;
        for (int32_t q = 0; q < n; q++)
            if (host[q] != host[r]) {
                seen.crossings += hosts_up[r][q];
                goes[host[r]] += hosts_up[r][q] + hosts_down[q][r];
                comes[host[r]] += hosts_up[q][r] + hosts_down[r][q];
            }
    }
    for (int32_t h = 0; h < seen.hosts; h++) {
        const bool block =
            last[h] - first[h] + 1 == seen.size[h] && hosts_block[first[h]][last[h] + 1];
        astray = astray < 0 && !block ? first[h] : astray;
        seen.blocks = seen.blocks && block;
        seen.most = goes[h] > seen.most ? goes[h] : seen.most;
        seen.most = comes[h] > seen.most ? comes[h] : seen.most;
    }
    const struct net_spread spread = tess__net_spread(n, host);
    assert_int_equal(spread.hosts, seen.hosts);
    assert_int_equal(spread.astray, astray);
    assert_int_equal(spread.crossings, seen.crossings);
    if (seen.blocks != (seen.crossings == n * (seen.hosts - 1)))
        fail_msg("%d ranks on %d hosts, astray %d: %d sums cross", (int)n, (int)seen.hosts,
                 (int)astray, (int)seen.crossings);
    return seen;
}

/* Hosts of one size that are blocks: one sum of each lane leaves each host but one, and no host
 * carries more than 1.1 times what it would in a ring; none does where there are 2^k of them. */
static void hosts_check_ring(int32_t n, const int32_t *host)
{
    const struct hosts_seen seen = hosts_look(n, host);
    const int32_t ring = 2 * (n - seen.size[0]); /* lanes that a host gives away, up and down */
    for (int32_t h = 1; h < seen.hosts; h++)
        if (seen.size[h] != seen.size[0])
            return;
    if (!seen.blocks)
        return;
    const bool even = (seen.hosts & (seen.hosts - 1)) == 0;
    if (even ? seen.most != ring : seen.most * 10 > ring * 11)
        fail_msg("%d hosts of %d: %d lanes one way, in a ring %d", (int)seen.hosts,
                 (int)seen.size[0], (int)seen.most, (int)ring);
}

/* Ranks in a row, cut into hosts everywhere; more of them, cut into hosts of one size. */
static void case_rows(void **state)
{
    int32_t host[RANKS] = {0};
    (void)state;
    for (int32_t n = 2; n <= ROWS; n++) {
        for (uint32_t cuts = 0; cuts < 1u << (n - 1); cuts++) {
            for (int32_t r = 1; r < n; r++)
                host[r] = host[r - 1] + (int32_t)(cuts >> (r - 1) & 1);
            hosts_check_ring(n, host);
        }
    }
    for (int32_t n = ROWS + 2; n <= RANKS; n += STEP) {
        for (int32_t places = 1; places <= n; places++) {
            for (int32_t r = 0; r < n; r++)
                host[r] = r / places;
            if (n % places == 0)
                hosts_check_ring(n, host);
        }
    }
}

/* Every way to lay out a few ranks: rank r on a host that has one, or on the next. */
static int32_t hosts_scatter(int32_t n, int32_t rank, int32_t hosts, int32_t *host)
{
    if (rank == n) {
        (void)hosts_look(n, host);
        return 1;
    }
    int32_t ways = 0;
    for (host[rank] = 0; host[rank] <= hosts; host[rank]++)
        ways += hosts_scatter(n, rank + 1, hosts + (host[rank] == hosts), host);
    return ways;
}

static void case_scattered(void **state)
{
    static const int32_t bell[SCATTERED + 1] = {1, 1, 2, 5, 15, 52, 203, 877, 4140};
    (void)state;
    for (int32_t n = 2; n <= SCATTERED; n++) {
        int32_t host[RANKS] = {0};
        assert_int_equal(hosts_scatter(n, 0, 0, host), bell[n]);
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct hosts_job {
    struct fake_net *net;
    int32_t rank, n;
    struct tess_comm_call call;
    enum tess_status status;
    uint64_t sent_bytes;
    int32_t lines; /* of the log */
    char line[400];
};

static void hosts_line(void *context, enum tess_log_level level, const char *text)
{
    struct hosts_job *job = context;
    job->lines += level == TESS_LOG_DEBUG ? 1 : 0;
    snprintf(job->line, sizeof(job->line), "%s", text);
}

static enum tess_status hosts_call(struct tess_comm *comm, const struct tess_comm_call *call,
                                   const void *source, void *target)
{
    switch (call->collective) {
    case TESS_COLLECTIVE_ALL_REDUCE:
        return tess_comm_all_reduce(comm, source, target, call->count, call->dtype, TESS_REDUCE_SUM,
                                    NULL);
    case TESS_COLLECTIVE_REDUCE_SCATTER:
        return tess_comm_reduce_scatter(comm, source, target, call->count, call->dtype,
                                        TESS_REDUCE_SUM, NULL);
    case TESS_COLLECTIVE_ALL_GATHER:
        return tess_comm_all_gather(comm, source, target, call->count, call->dtype, NULL);
    default:
        return tess_comm_all_to_all(comm, source, target, call->count, call->dtype, NULL);
    }
}

static void *hosts_thread(void *context)
{
    struct hosts_job *job = context;
    const struct tess__log_sink sink = {hosts_line, job};
    void *source = calloc((size_t)job->n * job->call.count, 4),
         *target = calloc((size_t)job->n * job->call.count, 4);
    struct tess_comm *comm;
    (void)tess__log_redirect(&sink);
    job->status = tess_comm_net_open(fake_net_transport(job->net, job->rank), NULL, job->call.order,
                                     600, &comm);
    if (job->status == TESS_OK) {
        job->status = hosts_call(comm, &job->call, source, target);
        job->sent_bytes = comm->stats.sent_bytes;
        tess_comm_close(comm);
    }
    (void)tess__log_redirect(NULL);
    free(source);
    free(target);
    return NULL;
}

/* Bytes of data in a call that go through the fullest card of a host, one way and both together. */
struct hosts_bytes {
    uint64_t way, both;
};

static struct hosts_job hosts_jobs[RANKS];

static struct hosts_bytes hosts_run(int32_t n, const int32_t *host,
                                    const struct tess_comm_call *call)
{
    struct fake_net *net = fake_net_open(n, host);
    struct hosts_bytes most = {0, 0};
    uint64_t goes[RANKS] = {0}, comes[RANKS] = {0};
    pthread_t thread[RANKS];
    for (int32_t r = 0; r < n; r++) {
        hosts_jobs[r] = (struct hosts_job){.net = net, .rank = r, .n = n, .call = *call};
        assert_int_equal(pthread_create(&thread[r], NULL, hosts_thread, &hosts_jobs[r]), 0);
    }
    for (int32_t r = 0; r < n; r++)
        pthread_join(thread[r], NULL);
    for (int32_t r = 0; r < n; r++)
        if (hosts_jobs[r].status != TESS_OK)
            fail_msg("%d ranks, rank %d: %s", (int)n, (int)r, hosts_jobs[r].line);
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = 0; b < n; b++)
            if (host[a] != host[b]) {
                goes[host[a]] += fake_net_bytes(net, a, b, NET_NOTE);
                comes[host[b]] += fake_net_bytes(net, a, b, NET_NOTE);
            }
    for (int32_t h = 0; h < n; h++) {
        const uint64_t way = goes[h] > comes[h] ? goes[h] : comes[h], both = goes[h] + comes[h];
        most.way = way > most.way ? way : most.way;
        most.both = both > most.both ? both : most.both;
    }
    fake_net_close(net);
    return most;
}

static struct hosts_bytes hosts_sum(int32_t hosts, int32_t places, enum tess_collective collective,
                                    enum tess_order order, enum tess_dtype dtype, size_t count)
{
    int32_t host[RANKS];
    for (int32_t r = 0; r < hosts * places; r++)
        host[r] = r / places;
    return hosts_run(hosts * places, host,
                     &(struct tess_comm_call){
                         .collective = collective, .order = order, .dtype = dtype, .count = count});
}

/* What a plan predicts for a rank, (N - 1) / N of the array each way: each rank sends it where
 * there are 2^k, and all of them together elsewhere. Of the latest call. */
static void hosts_check_formula(int32_t n, uint64_t formula)
{
    uint64_t all = 0;
    for (int32_t r = 0; r < n; r++) {
        all += hosts_jobs[r].sent_bytes;
        if ((n & (n - 1)) == 0)
            assert_int_equal(hosts_jobs[r].sent_bytes, formula);
    }
    assert_int_equal(all, formula * (uint64_t)n);
}

/* Of a call of the size S in two levels: the bytes of a ring over hosts, to the byte, where hosts
 * are 2^k in number, and of a sum to all up to 1.1 times as many, of a part of it 1.2 times; the
 * flat way sends `places` times as many. */
static void hosts_compare(int32_t hosts, int32_t places, enum tess_collective collective,
                          size_t share)
{
    const size_t n = (size_t)(hosts * places);
    const bool whole = collective == TESS_COLLECTIVE_ALL_REDUCE, even = (hosts & (hosts - 1)) == 0;
    const uint64_t ring = (whole ? 2 : 1) * share * sizeof(float) * (n - (size_t)places);
    const size_t count = whole ? share * n : share;
    const struct hosts_bytes levels =
        hosts_sum(hosts, places, collective, TESS_ORDER_CANONICAL, TESS_F32, count);
    hosts_check_formula((int32_t)n, (whole ? 2 : 1) * share * sizeof(float) * (n - 1));
    const struct hosts_bytes flat =
        hosts_sum(hosts, places, TESS_COLLECTIVE_ALL_TO_ALL, TESS_ORDER_CANONICAL, TESS_F32, share);
    print_message("%d hosts of %d, %s: a card carries %.3f times a ring's bytes, flat %.3f\n",
                  (int)hosts, (int)places, tess_collective_name(collective),
                  (double)levels.way / (double)ring,
                  (double)flat.way * (whole ? 2 : 1) / (double)ring);
    assert_true(even ? levels.way == ring : levels.way * 10 <= ring * (whole ? 11 : 12));
    assert_true(levels.both * 10 <= ring * 2 * 11);
    assert_true(flat.way * (whole ? 2 : 1) == ring * (uint64_t)places);
}

static void case_counted(void **state)
{
    static const int32_t hosts[] = {2, 3, 4, 6, 8, 5, 7}, places[] = {1, 2, 4};
    /* Sanitizers: each kind of schedule on the fewest ranks, a tenth of the bytes. */
    const size_t most = TESTS_DIVISOR > 1 ? 4 : 7, most_places = TESTS_DIVISOR > 1 ? 2 : 3;
    (void)state;
    for (size_t h = 0; h < most; h++)
        for (size_t p = 0; p < most_places; p++) {
            hosts_compare(hosts[h], places[p], TESS_COLLECTIVE_ALL_REDUCE, 5000);
            hosts_compare(hosts[h], places[p], TESS_COLLECTIVE_REDUCE_SCATTER, 5001);
            hosts_compare(hosts[h], places[p], TESS_COLLECTIVE_ALL_GATHER, 4999);
        }
}

/* Beside the rings that --reduce fast walks, in sizes that ranks do not divide, and in 16 bits,
 * whose sums are under way as f32 in both orders. */
static void case_rings(void **state)
{
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16};
    (void)state;
    for (int32_t hosts = 2; hosts <= (TESTS_DIVISOR > 1 ? 4 : 8); hosts *= 2)
        for (size_t d = 0; d < 2; d++) {
            const size_t count = 140011; /* lanes long enough to be alone */
            const struct hosts_bytes levels = hosts_sum(hosts, 2, TESS_COLLECTIVE_ALL_REDUCE,
                                                        TESS_ORDER_CANONICAL, dtypes[d], count);
            const struct hosts_bytes ring =
                hosts_sum(hosts, 2, TESS_COLLECTIVE_ALL_REDUCE, TESS_ORDER_FAST, dtypes[d], count);
            print_message("%d hosts of 2, %s: %.3f times the bytes of --reduce fast\n", (int)hosts,
                          tess_dtype_name(dtypes[d]), (double)levels.way / (double)ring.way);
            assert_true(levels.way * 100 <= ring.way * 101);
        }
}

/* Rank 0 says once why sums go rank by rank, and nothing where they go host by host. */
static void case_logged(void **state)
{
    static const int32_t pairs[] = {0, 0, 1, 1, 2, 2}, triples[] = {0, 0, 0, 1, 1, 1};
    static const struct tess_comm_call call = {
        .collective = TESS_COLLECTIVE_ALL_REDUCE, .dtype = TESS_F32, .count = 600};
    struct tess_comm_call fast = call;
    (void)state;
    fast.order = TESS_ORDER_FAST;
    tess_log_set_level(TESS_LOG_DEBUG);
    (void)hosts_run(6, triples, &call);
    assert_int_equal(hosts_jobs[0].lines, 1);
    assert_non_null(
        strstr(hosts_jobs[0].line, "6 ranks go between 2 hosts rank by rank, 2.17 times"));
    assert_int_equal(hosts_jobs[3].lines, 0);
    (void)hosts_run(6, triples, &fast);
    assert_int_equal(hosts_jobs[0].lines, 0);
    (void)hosts_run(6, pairs, &call);
    assert_int_equal(hosts_jobs[0].lines, 0);
    tess_log_set_level(TESS_LOG_INFO);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_rows),    cmocka_unit_test(case_scattered),
        cmocka_unit_test(case_counted), cmocka_unit_test(case_rings),
        cmocka_unit_test(case_logged),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
