/*
 * What part of the network became slow, by made-up figures of pairs of ranks: the link that all
 * slow pairs share, the host, the pair; and nothing where nothing changes, whatever the noise.
 */
#include "run/slow_net.h"
#include "topology/machine/topology.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS  6 /* a host each, two hosts a rack */
#define BYTES  4e6
#define USUAL  6e7 /* bytes per second */
#define STEP_S 0.15

static const char *const host[RANKS] = {"a0", "a1", "b0", "b1", "c0", "c1"};

struct case_ {
    struct tess__slow_net *net;
    struct tess_topology *topology; /* NULL: not known */
    int64_t step;
    double step_s;             /* of a step without what is sent */
    double noise;              /* rates are drawn from 1 - noise to 1 + noise */
    double part[RANKS][RANKS]; /* of the usual rate; 0: nothing is sent */
    char text[1024];
};

static void node(struct tess_topology *topology, enum tess_node_kind kind, int32_t of, int32_t *out,
                 const char *name)
{
    assert_int_equal(tess_topology_add(topology, tess_topology_node(kind, of, 0), out, "%s", name),
                     TESS_OK);
}

/* Hosts at the switches sa, sb, sc of their racks, and these at `core`. */
static struct tess_topology *racks(void)
{
    struct tess_topology *topology = tess_topology_new();
    int32_t core, rack = 0, cpu, device;
    char name[16];
    assert_non_null(topology);
    node(topology, TESS_NODE_NET, -1, &core, "core");
    for (int32_t h = 0; h < RANKS; h++) {
        snprintf(name, sizeof(name), "s%c", host[h][0]);
        if (h % 2 == 0) {
            node(topology, TESS_NODE_NET, -1, &rack, name);
            assert_int_equal(tess_topology_join(topology, TESS_LINK_NET, rack, core, 1, 1),
                             TESS_OK);
        }
        node(topology, TESS_NODE_CPU, h, &cpu, host[h]);
        snprintf(name, sizeof(name), "%s.0", host[h]);
        node(topology, TESS_NODE_DEVICE, h, &device, name);
        assert_int_equal(tess_topology_join(topology, TESS_LINK_NET, cpu, rack, 1, 1), TESS_OK);
        assert_int_equal(tess_topology_join(topology, TESS_LINK_LOCAL, device, cpu, 10, 1),
                         TESS_OK);
    }
    assert_int_equal(tess_topology_finish(topology), TESS_OK);
    return topology;
}

/* A ring, in both directions. */
static struct case_ case_open(bool topology)
{
    struct case_ c = {.net = tess__slow_net_open(RANKS, host), .step_s = STEP_S};
    assert_non_null(c.net);
    if (topology) {
        c.topology = racks();
        tess__slow_net_know(c.net, c.topology);
    }
    for (int32_t r = 0; r < RANKS; r++)
        c.part[r][(r + 1) % RANKS] = c.part[(r + 1) % RANKS][r] = 1;
    return c;
}

static void case_close(struct case_ *c)
{
    tess__slow_net_close(c->net);
    tess_topology_free(c->topology);
}

static double rate(const struct case_ *c, int32_t from, int32_t to)
{
    return USUAL * c->part[from][to] * (1 + c->noise * (2.0 * rand() / RAND_MAX - 1));
}

/* 20 steps; true where what was named is over. */
static bool window(struct case_ *c)
{
    for (int32_t from = 0; from < RANKS; from++)
        for (int32_t to = 0; to < RANKS; to++)
            if (c->part[from][to] > 0)
                tess__slow_net_learn(c->net, from, to, rate(c, from, to));
    c->step += TESS__PACE_STEPS;
    return tess__slow_net_over(c->net, c->step - TESS__PACE_STEPS + 1);
}

/* 5 steps, of which the longest pair decides how long they are. True where something is named. */
static bool soon(struct case_ *c, int64_t since)
{
    struct tess__run_links links[RANKS];
    double slowest_s = 0;
    bool named = false;
    c->step += TESS__PACE_SOON;
    for (int32_t from = 0; from < RANKS; from++) {
        links[from] = (struct tess__run_links){
            .window = c->step / TESS__PACE_SOON, .since = since, .step = c->step, .last = 1};
        for (int32_t to = 0; to < RANKS; to++) {
            if (!(c->part[from][to] > 0))
                continue;
            const double busy_s = BYTES / rate(c, from, to);
            links[from].link[links[from].count].peer = to;
            links[from].link[links[from].count].bytes = (float)BYTES;
            links[from].link[links[from].count++].busy_s = (float)busy_s;
            slowest_s = fmax(slowest_s, busy_s);
        }
    }
    for (int32_t from = 0; from < RANKS; from++) {
        links[from].step_s = (float)(c->step_s + slowest_s);
        named = tess__slow_net_take(c->net, from, &links[from]) || named;
    }
    if (named)
        tess__slow_net_text(c->net, c->text, sizeof(c->text));
    return named;
}

static void slow_down(struct case_ *c, int32_t a, int32_t b, double part)
{
    if (c->part[a][b] > 0)
        c->part[a][b] = c->part[b][a] = part;
}

/* 3 windows, then what is slow from step 61 on: it is named in step 70 in these words, and once. */
static void assert_named(struct case_ *c, const char *words)
{
    assert_true(soon(c, 61) == false);
    assert_true(soon(c, 61));
    assert_true(c->step <= 61 + 20);
    assert_string_equal(c->text, words);
    for (int i = 0; i < 10; i++)
        assert_false(soon(c, 61));
}

static struct case_ after_three_windows(bool topology)
{
    struct case_ c = case_open(topology);
    for (int i = 0; i < 3; i++)
        assert_false(window(&c));
    return c;
}

/* An uplink slows all pairs of its kind: their median falls with it, what each had before does not.
 */
static void test_uplink(void **state)
{
    struct case_ c = after_three_windows(true);
    (void)state;
    slow_down(&c, 1, 2, 0.08); /* a1 - b0 and b1 - c0 leave rack b; c1 - a0 does not */
    slow_down(&c, 3, 4, 0.08);
    assert_named(&c, "the link core - sb is slow since step 61: 4 pairs of ranks send 4.8 MB/s "
                     "each, where 60 MB/s are usual; that is 767 ms of each step");
    assert_true(tess__slow_net_covers(c.net, 1, 2));
    assert_false(tess__slow_net_covers(c.net, 0, 1));
    assert_false(window(&c)); /* not over */
    slow_down(&c, 1, 2, 0.9);
    slow_down(&c, 3, 4, 0.9);
    c.step = 140;
    assert_true(window(&c));
    tess__slow_net_text(c.net, c.text, sizeof(c.text));
    assert_string_equal(c.text,
                        "the network between hosts is as fast as usual again: from step 141 on");
    assert_null(tess__slow_net_found(c.net)->name);
    assert_false(window(&c));
    case_close(&c);
}

/* It goes on for more windows than show what is usual: the slow ones are not learned. */
static void test_slow_is_not_usual(void **state)
{
    struct case_ c = after_three_windows(true);
    (void)state;
    slow_down(&c, 1, 2, 0.08);
    for (int i = 0; i < 10; i++)
        assert_false(window(&c));
    c.step = 60;
    assert_named(&c, "the network between hosts a1 and b0 is slow since step 61: 2 pairs of ranks "
                     "send 4.8 MB/s each, where 60 MB/s are usual; that is 767 ms of each step");
    case_close(&c);
}

static void test_host(void **state)
{
    static const char *const words[] = {
        "the network of host b0 is slow since step 61: 4 pairs of ranks send 4.8 MB/s each, where "
        "60 MB/s are usual; that is 767 ms of each step",
        "the link sb - b0 is slow since step 61: 4 pairs of ranks send 4.8 MB/s each, where 60 "
        "MB/s are usual; that is 767 ms of each step"};
    (void)state;
    for (int known = 0; known < 2; known++) {
        struct case_ c = after_three_windows(known);
        for (int32_t r = 0; r < RANKS; r++)
            slow_down(&c, 2, r, 0.08);
        assert_named(&c, words[known]);
        case_close(&c);
    }
}

/* Others use the same links and are fast: no link explains it, and no host. */
static void test_pair(void **state)
{
    (void)state;
    for (int known = 0; known < 2; known++) {
        struct case_ c = case_open(known);
        for (int32_t a = 0; a < RANKS; a++)
            for (int32_t b = 0; b < RANKS; b++)
                c.part[a][b] = a != b;
        for (int i = 0; i < 3; i++)
            assert_false(window(&c));
        c.part[4][1] = 0.08;
        assert_named(&c, "the network between hosts a1 and c0 is slow since step 61: 1 pair of "
                         "ranks sends 4.8 MB/s, where 60 MB/s are usual; that is 767 ms of each "
                         "step");
        case_close(&c);
    }
}

static void test_all_and_some(void **state)
{
    struct case_ all = after_three_windows(false), some = after_three_windows(false);
    (void)state;
    for (int32_t r = 0; r < RANKS; r++) {
        slow_down(&all, r, (r + 1) % RANKS, 0.25);
        if (r != 4)
            slow_down(&some, r, (r + 1) % RANKS, 0.25);
    }
    assert_named(&all,
                 "the network between all hosts is slow since step 61: 12 pairs of ranks send "
                 "15 MB/s each, where 60 MB/s are usual; that is 200 ms of each step");
    assert_named(&some,
                 "the network between hosts a0 and a1, a0 and c1, a1 and b0 and 2 more pairs "
                 "is slow since step 61: 10 pairs of ranks send 15 MB/s each, where 60 MB/s "
                 "are usual; that is 200 ms of each step");
    case_close(&all);
    case_close(&some);
}

/* Six tenths of the usual speed, and a twelfth of it that is no tenth of a step. */
static void test_not_slow(void **state)
{
    struct case_ c = after_three_windows(true);
    (void)state;
    slow_down(&c, 1, 2, 0.6);
    for (int i = 0; i < 20; i++)
        assert_false(soon(&c, 61));
    slow_down(&c, 1, 2, 0.08);
    c.step_s = 10;
    for (int i = 0; i < 20; i++)
        assert_false(soon(&c, 61));
    c.step_s = 5;
    assert_false(soon(&c, 61));
    assert_true(soon(&c, 61));
    case_close(&c);
}

/* Nothing was usual before the first whole window; a gap between short ones begins anew. */
static void test_what_it_takes(void **state)
{
    struct case_ c = case_open(true);
    (void)state;
    slow_down(&c, 1, 2, 0.08);
    for (int i = 0; i < 4; i++)
        assert_false(soon(&c, 3));
    slow_down(&c, 1, 2, 1);
    assert_false(window(&c));
    slow_down(&c, 1, 2, 0.08);
    for (int i = 0; i < 10; i++) {
        assert_false(soon(&c, 21));
        c.step += TESS__PACE_SOON;
    }
    case_close(&c);
}

/* Ranks whose steps do not take longer send nothing: the window is judged when the next begins. */
static void test_some_ranks_send(void **state)
{
    struct case_ c = after_three_windows(true);
    int32_t named = 0;
    (void)state;
    for (int w = 13; w < 16; w++)
        for (int32_t from = 2; from < 4; from++) {
            struct tess__run_links links = {
                .window = w, .since = 61, .step = 5 * w, .step_s = 1, .last = 1, .count = 1};
            links.link[0].peer = from == 2 ? 1 : 4;
            links.link[0].bytes = (float)BYTES;
            links.link[0].busy_s = (float)(BYTES / USUAL / 0.08);
            named += tess__slow_net_take(c.net, from, &links);
        }
    assert_int_equal(named, 1);
    assert_int_equal(tess__slow_net_found(c.net)->pairs, 2);
    case_close(&c);
}

/* Noise of 20 %: 1,000 short windows and 250 long ones without an alarm. A pair would have to fall
 * to half of a median that is at least 0.8 of the usual speed, and noise leaves it 0.8. */
static void test_noise(void **state)
{
    struct case_ c = case_open(true);
    (void)state;
    srand(7);
    c.noise = 0.2;
    for (int i = 0; i < 250; i++) {
        assert_false(window(&c));
        for (int s = 0; s < 4; s++)
            assert_false(soon(&c, c.step));
    }
    assert_null(tess__slow_net_found(c.net)->name);
    case_close(&c);
}

/* The same noise hides nothing that falls to a twelfth. */
static void test_noise_hides_nothing(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 100; seed++) {
        struct case_ c = case_open(true);
        srand(seed);
        c.noise = 0.2;
        for (int i = 0; i < 3; i++)
            assert_false(window(&c));
        slow_down(&c, 1, 2, 0.08);
        slow_down(&c, 3, 4, 0.08);
        assert_false(soon(&c, 61));
        assert_true(soon(&c, 61));
        assert_non_null(strstr(c.text, "the link core - sb is slow since step 61"));
        case_close(&c);
    }
}

/* What a damaged message may hold. */
static void test_refuses_odd_links(void **state)
{
    struct case_ c = after_three_windows(false);
    struct tess__run_links links = {.window = 13, .since = 1, .count = 1000, .last = 1};
    (void)state;
    for (int i = 0; i < TESS__PACE_LINKS; i++)
        links.link[i].peer = i % 2 ? -1 : RANKS;
    for (int32_t r = 0; r < RANKS; r++)
        assert_false(tess__slow_net_take(c.net, r, &links));
    links.window = 12; /* an old one */
    assert_false(tess__slow_net_take(c.net, 0, &links));
    case_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uplink),
        cmocka_unit_test(test_slow_is_not_usual),
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_pair),
        cmocka_unit_test(test_all_and_some),
        cmocka_unit_test(test_not_slow),
        cmocka_unit_test(test_what_it_takes),
        cmocka_unit_test(test_some_ranks_send),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_noise_hides_nothing),
        cmocka_unit_test(test_refuses_odd_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
