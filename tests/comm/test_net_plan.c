/*
 * Schedules of the communicator over a transport, as drawn and for any number of ranks.
 */
#include "comm/net/net.h"

#include "comm/cases.h"
#include "comm/net/net_group.h"
#include "tessera/log.h"

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

static struct net_plan *net_plans(int32_t n, int32_t places, int32_t rack_hosts,
                                  enum tess_order order, enum tess_collective collective,
                                  int32_t root)
{
    struct net_plan *plan = calloc((size_t)n, sizeof(*plan));
    struct tess_comm_call call = net_sum_call;
    assert_non_null(plan);
    call.order = order;
    call.collective = collective;
    call.peer = root;
    for (int32_t r = 0; r < n; r++) {
        const struct net_shape shape = {r, n, n / places, places, rack_hosts, NULL};
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

/* Who has the whole of a lane first. */
static int32_t net_root(const struct net_plan *plan, int32_t n, int32_t l)
{
    int32_t root = -1;
    for (int32_t r = 0; r < n; r++) {
        if (net_view(plan, r, l).to >= 0)
            continue;
        assert_int_equal(root, -1);
        root = r;
    }
    return root;
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

/* Each lane is added up in one place in the order of the tree. */
static void net_check_words(const struct net_plan *plan, int32_t n)
{
    char expected[WORDS], text[WORDS];
    net_tree_words(0, n, expected, sizeof(expected));
    for (int32_t l = 0; l < plan->lane_count; l++) {
        net_words(plan, net_root(plan, n, l), l, text, sizeof(text));
        assert_string_equal(text, expected);
    }
}

/* Any number of ranks and hosts; from 16 on every eighth for sanitizers, which search for a second.
 */
static void case_tree(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= RANKS; n += n < 16 || TESTS_DIVISOR == 1 ? 1 : 8) {
        for (int32_t places = 1; places <= n; places++) {
            if (n % places != 0)
                continue;
            struct net_plan *plan =
                net_plans(n, places, 0, TESS_ORDER_CANONICAL, TESS_COLLECTIVE_ALL_REDUCE, -1);
            net_check_words(plan, n);
            net_plans_close(plan, n);
        }
    }
}

/* Messages that are on their way, oldest first. */
struct net_post {
    int32_t count;
    char *text[MOVES];
};

/* Make the moves of a rank's only lane as far as it goes; true: all of them. */
static bool net_go(const struct net_plan *plan, int32_t rank, int32_t *step, char *text,
                   struct net_post post[RANKS][RANKS])
{
    const struct net_lane *lane = &plan[rank].lane[0];
    for (; *step < lane->move_count; ++*step) {
        const struct net_move *move = &lane->move[*step];
        struct net_post *out = &post[rank][move->peer], *in = &post[move->peer][rank];
        if (move->sends) {
            assert_true(out->count < MOVES);
            out->text[out->count++] = strdup(text);
            continue;
        }
        if (in->count == 0)
            return false;
        char *come = in->text[0];
        memmove(in->text, in->text + 1, (size_t)--in->count * sizeof(*in->text));
        if (move->adds) {
            assert_int_equal(move->leaf, strchr(come, '(') == NULL);
            net_join(text, come, move->left, WORDS);
        } else {
            snprintf(text, WORDS, "%s", come);
        }
        free(come);
    }
    return true;
}

/* A small sum, over any hosts: all ranks end with it in the order of the tree. */
static void case_small(void **state)
{
    static struct net_post post[RANKS][RANKS];
    static char text[RANKS][WORDS];
    (void)state;
    for (int32_t n = 2; n <= RANKS; n++)
        for (int32_t places = 1; places <= n; places++) {
            if (n % places != 0)
                continue;
            struct tess_comm_call call = net_sum_call;
            struct net_plan plan[RANKS];
            char expected[WORDS];
            int32_t step[RANKS] = {0}, over = 0;
            call.count = 2;
            net_tree_words(0, n, expected, sizeof(expected));
            for (int32_t r = 0; r < n; r++) {
                const struct net_shape shape = {r, n, n / places, places, 0, NULL};
                assert_int_equal(tess__net_plan_open(n, &plan[r]), TESS_OK);
                tess__net_plan(&shape, &call, 0, &plan[r]);
                assert_true(plan[r].lane_count == 1 && plan[r].move_count <= plan[r].move_room);
                snprintf(text[r], WORDS, "%d", (int)r);
            }
            for (int32_t turn = 0; over < n; turn++) {
                assert_true(turn < 2 * RANKS);
                over = 0;
                for (int32_t r = 0; r < n; r++)
                    over += net_go(plan, r, &step[r], text[r], post) ? 1 : 0;
            }
            for (int32_t r = 0; r < n; r++) {
                assert_string_equal(text[r], expected);
                for (int32_t to = 0; to < n; to++)
                    assert_int_equal(post[r][to].count, 0);
                tess__net_plan_close(&plan[r]);
            }
        }
}

/* The lanes that the fullest link carries one way in the plans of n hosts: that of a rack of so
 * many hosts, of a host if that is 1. */
static int32_t net_fullest(const struct net_plan *plan, int32_t n, int32_t rack)
{
    int32_t lanes[2][MANY] = {{0}}, most = 0;
    for (int32_t r = 0; r < n; r++)
        for (int32_t k = 0; k < plan[r].move_count; k++) {
            const struct net_move *move = &plan[r].move[k];
            if (!move->sends || r / rack == move->peer / rack)
                continue;
            lanes[0][r / rack]++;
            lanes[1][move->peer / rack]++;
        }
    for (int32_t i = 0; i < 2 * n; i++)
        most = lanes[i % 2][i / 2] > most ? lanes[i % 2][i / 2] : most;
    return most;
}

/* What racks and hosts carry in canonical order, in parts of what they do in a ring, where hosts
 * are no power of two: hosts at most 1.1 times, and racks, whether known or not, but for those of
 * this list. */
static void case_racks(void **state)
{
    static const struct {
        int32_t racks, hosts;
        double known, not_known;
    } wanted[] = {{3, 5, 1.09, 1.18}, {5, 3, 1.09, 1.25}, {3, 6, 1.0, 1.15},  {6, 3, 1.21, 1.21},
                  {4, 5, 1.24, 1.27}, {3, 7, 1.08, 1.2},  {7, 3, 1.18, 1.3},  {4, 6, 1.05, 1.11},
                  {8, 3, 1.2, 1.27},  {5, 5, 1.25, 1.25}, {3, 8, 0.72, 1.05}, {2, 12, 0.81, 0.96}};
    (void)state;
    /* Sanitizers: 5, 10, 15, 20 and 25 hosts. */
    for (int32_t n = 5; n <= 26; n += TESTS_DIVISOR > 1 ? 5 : 1) {
        if ((n & (n - 1)) == 0)
            continue;
        struct net_plan *ring = net_plans(n, 1, 0, TESS_ORDER_FAST, TESS_COLLECTIVE_ALL_REDUCE, -1);
        struct net_plan *tree =
            net_plans(n, 1, 0, TESS_ORDER_CANONICAL, TESS_COLLECTIVE_ALL_REDUCE, -1);
        for (int32_t hosts = 1; hosts < n; hosts++) {
            if (n % hosts != 0)
                continue;
            double known = 1.1, not_known = 1.1;
            for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
                if (wanted[i].hosts == hosts && wanted[i].racks * hosts == n) {
                    known = wanted[i].known;
                    not_known = wanted[i].not_known;
                }
            const int32_t fast = net_fullest(ring, n, hosts), lanes = net_fullest(tree, n, hosts);
            assert_int_equal(fast, 2 * (n - 1));
            /* Of 15 hosts lanes of one rank are halves, and those of several are not. */
            for (int32_t places = 1; places <= (n == 15 ? 4 : 1); places *= 2) {
                const int32_t ranks = n * places;
                struct net_plan *racks = net_plans(ranks, places, hosts, TESS_ORDER_CANONICAL,
                                                   TESS_COLLECTIVE_ALL_REDUCE, -1);
                net_check_words(racks, ranks);
                const double share = (double)n / racks->lane_count;
                const double least = share * net_fullest(racks, ranks, hosts * places);
                const double own = share * net_fullest(racks, ranks, places);
                if (lanes > not_known * fast || least > known * fast || own > 1.1 * fast)
                    fail_msg("%d racks of %d hosts of %d: %d lanes, %g where they are known and %g "
                             "of a host, in a ring %d",
                             n / hosts, hosts, places, lanes, least, own, fast);
                net_plans_close(racks, ranks);
            }
        }
        net_plans_close(ring, n);
        net_plans_close(tree, n);
    }
}

/* No rank adds much more than its share: of the (n - 1) n additions of lanes, n - 1 each where n is
 * a power of two, and less than twice that anywhere. */
static void case_balance(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= MANY; n += n < RANKS ? 1 : n - 1) {
        struct net_plan *plan =
            net_plans(n, n, 0, TESS_ORDER_CANONICAL, TESS_COLLECTIVE_ALL_REDUCE, -1);
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
    const int32_t root = net_root(plan, n, l);
    uint64_t added = 0, reached = 0;
    char text[WORDS];
    net_words(plan, root, l, text, sizeof(text));
    for (const char *at = text; *at != '\0';)
        if (*at >= '0' && *at <= '9')
            added += UINT64_C(1) << strtol(at, (char **)&at, 10);
        else
            at++;
    const uint64_t all = n == 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
    assert_true(added == all);
    for (int32_t r = 0; r < n; r++) {
        const struct net_view lane = net_view(plan, r, l);
        assert_int_equal(lane.from < 0, r == root);
        for (int32_t k = 0; k < lane.down_count; k++) {
            assert_int_equal(net_view(plan, lane.down[k], l).from, r);
            reached |= UINT64_C(1) << lane.down[k];
        }
    }
    assert_true(reached == (all & ~(UINT64_C(1) << root)));
}

static void case_lanes(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= RANKS / (TESTS_DIVISOR > 1 ? 2 : 1); n += n < 16 ? 1 : 8)
        for (int32_t places = -n; places <= n; places++) {
            if (places == 0 || n % places != 0)
                continue;
            struct net_plan *plan = net_plans(n, places > 0 ? places : -places, 0,
                                              places > 0 ? TESS_ORDER_FAST : TESS_ORDER_CANONICAL,
                                              TESS_COLLECTIVE_ALL_REDUCE, -1);
            for (int32_t l = 0; l < n; l++)
                net_check_lane(plan, n, l);
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
    struct net_plan *plan =
        net_plans(8, 8, 0, TESS_ORDER_CANONICAL, TESS_COLLECTIVE_ALL_REDUCE, -1);
    for (int i = 0; i < 8; i++)
        assert_int_equal(net_view(plan, tree[i].rank, 5).to, tree[i].to);
    net_plans_close(plan, 8);
    for (int32_t places = 1; places <= 8; places += 7) {
        plan = net_plans(8, places, 0, TESS_ORDER_FAST, TESS_COLLECTIVE_ALL_REDUCE, -1);
        for (int i = 0; i < 7; i++) {
            assert_int_equal(net_view(plan, ring[i], 5).to, ring[i + 1]);
            assert_int_equal(net_view(plan, (ring[i] + 7) % 8, 5).down[0], ring[i]);
        }
        net_plans_close(plan, 8);
    }
    plan = net_plans(8, 2, 0, TESS_ORDER_FAST, TESS_COLLECTIVE_ALL_REDUCE, -1);
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
        const struct net_shape shape = tess__net_shape(1, wanted[i].n, wanted[i].host, 0);
        if (shape.hosts != wanted[i].hosts || shape.places != wanted[i].places)
            fail_msg("%zu: %d hosts of %d", i, shape.hosts, shape.places);
        assert_int_equal(shape.rack_hosts, 0);
    }
}

/* Racks of a job, and those that a group of some of its hosts sees. */
static void case_rack_shapes(void **state)
{
    static const struct {
        int32_t n, host[12], rack_hosts, seen;
    } wanted[] = {
        {6, {0, 1, 2, 3, 4, 5}, 3, 3},
        {6, {0, 1, 2, 3, 4, 5}, 6, 6},
        {6, {0, 1, 2, 3, 4, 5}, INT32_MAX, 6},
        {6, {0, 1, 2, 3, 4, 5}, 1, 1},
        {6, {0, 1, 2, 3, 4, 5}, 4, 0}, /* 4 and 2 */
        {6, {0, 2, 4, 6, 8, 10}, 6, 3},
        {6, {0, 6, 1, 7, 2, 8}, 6, 1},
        {6, {0, 1, 6, 2, 7, 8}, 6, 0},
        {6, {0, 1, 6, 7, 8, 9}, 6, 0}, /* 2 and 4 */
        {12, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}, 2, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        const struct net_shape shape =
            tess__net_shape(1, wanted[i].n, wanted[i].host, wanted[i].rack_hosts);
        if (shape.rack_hosts != wanted[i].seen)
            fail_msg("%zu: racks of %d hosts", i, shape.rack_hosts);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_tree),   cmocka_unit_test(case_balance),
        cmocka_unit_test(case_lanes),  cmocka_unit_test(case_drawings),
        cmocka_unit_test(case_shapes), cmocka_unit_test(case_rack_shapes),
        cmocka_unit_test(case_small),  cmocka_unit_test(case_racks),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
