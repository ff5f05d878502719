/*
 * When ranks are to be numbered anew against a part of the network that is slow: what is judged, by
 * figures of a judge that are made up, on a topology of two racks; and what placing makes of it.
 */
#include "job/place.h"
#include "run/adapt.h"
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

#define RANKS 4
#define STEPS 200

static const char *const host[RANKS] = {"a0", "b0", "a1", "b1"};

/* A run whose ranks are in the racks sa and sb by turns; host edges carry 1, uplinks 2. */
struct case_ {
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct tess__run run;
    struct tess__history history;
    struct tess__adapt adapt;
    struct tess__slow_net_found found;
};

static int32_t node(struct tess_topology *topology, enum tess_node_kind kind, int32_t of,
                    const char *name)
{
    int32_t at;
    assert_int_equal(tess_topology_add(topology, tess_topology_node(kind, of, 0), &at, "%s", name),
                     TESS_OK);
    return at;
}

static void join(struct tess_topology *topology, enum tess_link_kind kind, int32_t a, int32_t b,
                 double gbs)
{
    assert_int_equal(tess_topology_join(topology, kind, a, b, gbs, 1), TESS_OK);
}

/* of: the racks of the hosts. */
static struct tess_topology *racks_of(const char *of)
{
    struct tess_topology *topology = tess_topology_new();
    char name[16];
    assert_non_null(topology);
    const int32_t core = node(topology, TESS_NODE_NET, -1, "core");
    const int32_t rack[] = {node(topology, TESS_NODE_NET, -1, "sa"),
                            node(topology, TESS_NODE_NET, -1, "sb")};
    for (int32_t r = 0; r < 2; r++)
        join(topology, TESS_LINK_NET, rack[r], core, 2);
    for (int32_t r = 0; r < RANKS; r++) {
        const int32_t cpu = node(topology, TESS_NODE_CPU, r, host[r]);
        snprintf(name, sizeof(name), "%s.0", host[r]);
        const int32_t device = node(topology, TESS_NODE_DEVICE, r, name);
        join(topology, TESS_LINK_NET, cpu, rack[of[r] - 'a'], 1);
        join(topology, TESS_LINK_LOCAL, device, cpu, 10);
    }
    assert_int_equal(tess_topology_finish(topology), TESS_OK);
    return topology;
}

static struct tess_topology *racks(void)
{
    return racks_of("abab");
}

static const struct tess_topo_link *link_of(const struct tess_topology *topology, const char *from,
                                            const char *to)
{
    for (int32_t l = 0; l < topology->link_count; l++)
        if (strcmp(topology->node[topology->link[l].from].name, from) == 0 &&
            strcmp(topology->node[topology->link[l].to].name, to) == 0)
            return &topology->link[l];
    fail_msg("no link from %s to %s", from, to);
    return NULL;
}

static void open_case(struct case_ *c)
{
    char *words[] = {"--data=synthetic", "--strategy=ddp", "--ranks=4",
                     "--device=cpu",     "--steps=200",    "--topology.adapt"};
    memset(c, 0, sizeof(*c));
    assert_int_equal(tess_config_open(sizeof(words) / sizeof(*words), words, NULL, 0, &c->config),
                     TESS_OK);
    assert_int_equal(tess__run_open_data(c->config, &c->dataset), TESS_OK);
    assert_int_equal(tess__run_open_planned(&c->run, c->config, c->dataset), TESS_OK);
    tess_topology_free(c->run.placed->topology);
    c->run.placed->topology = racks();
    c->run.renumber = &c->history.renumber;
    c->run.slowed = &c->history.slowed;
    /* Both uplinks: whatever crosses one of two crosses the other. */
    c->found = (struct tess__slow_net_found){.name = "one of the links sa - core, sb - core",
                                             .since = 41,
                                             .pairs = 8,
                                             .bytes_per_s = 1e6,
                                             .usual_per_s = 1e7,
                                             .late_s = 0.4,
                                             .host = -1,
                                             .link_count = 2};
    c->found.link[0] = link_of(c->run.placed->topology, "sa", "core");
    c->found.link[1] = link_of(c->run.placed->topology, "core", "sb");
}

static void close_case(struct case_ *c)
{
    tess__run_close(&c->run);
    tess_dataset_close(c->dataset);
    tess_config_close(c->config);
}

static bool decide(struct case_ *c, int64_t seen)
{
    return tess__adapt_judge(&c->adapt, &c->run, &c->history, &c->found, seen);
}

static void expect_stay(struct case_ *c, int64_t seen, const char *why)
{
    assert_true(decide(c, seen));
    assert_false(c->adapt.renumbers);
    if (strstr(c->adapt.text, why) == NULL)
        fail_msg("'%s' does not contain '%s'", c->adapt.text, why);
    assert_int_equal(c->history.renumber, TESS__RENUMBER_NO);
    assert_int_equal(c->history.slowed.count, 0);
    assert_false(decide(c, seen + TESS__PACE_STEPS)); /* once */
}

/* Twice as many hops cross the uplinks as must: ranks are to be numbered anew when a whole window
 * has shown it, and once. */
static void case_gain(void **state)
{
    static struct case_ c;
    (void)state;
    open_case(&c);
    const double before = link_of(c.run.placed->topology, "sa", "core")->gbs;
    assert_false(decide(&c, 40));
    assert_false(decide(&c, 60)); /* its first step is 41: the first that was slow */
    assert_true(decide(&c, 61));
    assert_true(c.adapt.renumbers);
    assert_true(fabs(c.adapt.gain - 2) < 1e-6);
    assert_int_equal(c.history.renumber, TESS__RENUMBER_ASKED);
    assert_int_equal(c.history.slowed.count, 1);
    assert_true(link_of(c.run.placed->topology, "sa", "core")->gbs == before);
    assert_false(decide(&c, 81));

    /* In the next attempt the same part again, after others. */
    c.history.renumber = TESS__RENUMBER_NO;
    c.adapt = (struct tess__adapt){.since = 0};
    assert_true(decide(&c, 121));
    assert_false(c.adapt.renumbers);
    assert_non_null(strstr(c.adapt.text, "numbered anew for it before"));
    assert_int_equal(c.history.renumber, TESS__RENUMBER_NO);
    close_case(&c);
}

/* What a placement of the next attempt sees: these links, in both directions, and no other. */
static void case_slowed(void **state)
{
    static struct case_ c;
    (void)state;
    open_case(&c);
    assert_true(decide(&c, 61));
    struct tess_topology *topology = racks();
    tess__place_slow(topology, &c.history.slowed);
    assert_true(fabs(link_of(topology, "sa", "core")->gbs - 0.2) < 1e-9);
    assert_true(fabs(link_of(topology, "core", "sa")->gbs - 0.2) < 1e-9);
    assert_true(fabs(link_of(topology, "sb", "core")->gbs - 0.2) < 1e-9);
    assert_true(link_of(topology, "a0", "sa")->gbs == 1);
    snprintf(c.history.slowed.part[0].link[0][0], TESS__SLOWED_END, "elsewhere");
    tess__place_slow(topology, &c.history.slowed);
    assert_true(fabs(link_of(topology, "sa", "core")->gbs - 0.2) < 1e-9);
    assert_true(fabs(link_of(topology, "sb", "core")->gbs - 0.02) < 1e-9);
    tess_topology_free(topology);
    close_case(&c);
}

/* Hosts of a rack, as ranks come to them: those of the first case stay as they are, since uplinks
 * carry what their hosts send. Of an order that is given nothing else is looked for. */
static void case_racks(void **state)
{
    static const struct {
        const char *of;
        int32_t hosts;
    } wanted[] = {{"abab", 0}, {"aabb", 2}, {"aaaa", 4}, {"abbb", 0}, {"abaa", 0}};
    static const int32_t device[RANKS] = {0, 1, 2, 3};
    struct tess__processes job;
    static struct case_ c;
    int32_t process[RANKS];
    (void)state;
    assert_int_equal(tess__processes_open(&job, RANKS), TESS_OK);
    for (int32_t p = 0; p < RANKS; p++)
        job.process[p].host = (uint64_t)p;
    tess__place_find_hosts(&job);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        open_case(&c);
        tess_topology_free(c.run.placed->topology);
        c.run.placed->topology = NULL;
        free(c.run.placed->text);
        assert_int_equal(
            tess__place_map(&c.run, &job, racks_of(wanted[i].of), device, "racks", process),
            TESS_OK);
        if (c.run.placed->rack_hosts != wanted[i].hosts)
            fail_msg("%s: racks of %d hosts", wanted[i].of, (int)c.run.placed->rack_hosts);
        c.run.placed->given = true;
        for (int turned = 0; turned < 2; turned++) {
            const int32_t as[2][RANKS] = {{0, 1, 2, 3}, {0, 2, 1, 3}}, hosts[2] = {0, 2};
            memcpy(process, as[turned], sizeof(process));
            assert_int_equal(
                tess__place_map(&c.run, &job, racks_of("abab"), device, "racks", process), TESS_OK);
            assert_int_equal(c.run.placed->rack_hosts, hosts[turned]);
            assert_memory_equal(process, as[turned], sizeof(process));
        }
        close_case(&c);
    }
    tess__processes_close(&job);
}

/* Reasons to stay. */
static void case_stays(void **state)
{
    static struct case_ c;
    (void)state;
    /* Whatever the order, two hops of a ring use a host's own link. */
    open_case(&c);
    c.found.link_count = 0;
    c.found.host = 3;
    c.found.name = "the network of host b1";
    expect_stay(&c, 100, "no other order is 10 % better");
    assert_true(c.adapt.gain >= 1 && c.adapt.gain < 1.1);
    close_case(&c);

    /* 0.4 s of each of 24 steps. */
    open_case(&c);
    expect_stay(&c, STEPS - 24, "do not pay for another start");
    close_case(&c);

    open_case(&c);
    c.found.link_count = 0;
    c.found.name = "the network between all hosts";
    expect_stay(&c, 100, "no part of the topology");
    close_case(&c);
}

/* Where the topology was measured, what it does not have is measured again. */
static void case_measured(void **state)
{
    static struct case_ c;
    (void)state;
    open_case(&c);
    c.run.placed->measured = true;
    c.found.link_count = 0;
    c.found.name = "the network between all hosts";
    assert_true(decide(&c, 100));
    assert_true(c.adapt.renumbers);
    assert_true(isnan(c.adapt.gain));
    assert_non_null(strstr(c.adapt.text, "the network is measured again"));
    close_case(&c);
}

/* Without --topology.adapt nothing is decided, nor where nothing is slow. */
static void case_off(void **state)
{
    static struct case_ c;
    (void)state;
    open_case(&c);
    c.run.renumber = NULL;
    assert_false(decide(&c, 100));
    c.run.renumber = &c.history.renumber;
    c.found.name = NULL;
    assert_false(decide(&c, 100));
    close_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_gain),  cmocka_unit_test(case_slowed),
        cmocka_unit_test(case_stays), cmocka_unit_test(case_measured),
        cmocka_unit_test(case_off),   cmocka_unit_test(case_racks),
    };
    return cmocka_run_group_tests_name("adapt", tests, NULL, NULL);
}
