/* How devices are connected, as the driver reports it, against a made-up NVML (fake_nvml_links.c).
 */
#include "device/nvml.h"
#include "topology/hwloc/live.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct tess_live_device device[TESS_WATCH_DEVICES_MAX];

static void ask(const char *library, const char *links)
{
    char why[256];
    struct tess_watch *watch;

    assert_int_equal(setenv("TESSERA_NVML", library, 1), 0);
    assert_int_equal(setenv("FAKE_NVML_LINKS", links, 1), 0);
    watch = tess_watch_open(why, sizeof(why));
    assert_non_null(watch);
    memset(device, 0xa5, sizeof(device));
    assert_int_equal(tess_watch_links(watch, device), 2);
    tess_watch_close(watch);
    for (int d = 0; d < 2; d++) {
        assert_int_equal(device[d].index, d);
        assert_string_equal(device[d].bus, d == 0 ? "0000:18:00.0" : "0000:af:00.0");
    }
}

static void expect(int switch_links, int peers, int c2c_links)
{
    for (int d = 0; d < 2; d++) {
        assert_int_equal(device[d].switch_links, switch_links);
        assert_int_equal(device[d].peer_count, peers);
        assert_int_equal(device[d].c2c_links, c2c_links);
    }
}

static void case_none(void **state)
{
    static const unsigned char none[16];

    (void)state;
    ask(FAKE_NVML, "");
    expect(0, 0, 0);
    assert_int_equal(device[0].sm, 90);
    assert_memory_equal(device[0].fabric_uuid, none, 16);
    ask(FAKE_NVML_OLD, "pairs");
    expect(0, 0, 0);
    assert_int_equal(device[0].sm, 0);
}

static void case_pairs(void **state)
{
    (void)state;
    ask(FAKE_NVML, "pairs");
    expect(0, 1, 0);
    assert_string_equal(device[0].peer[0].bus, device[1].bus);
    assert_string_equal(device[1].peer[0].bus, device[0].bus);
    assert_int_equal(device[0].peer[0].links, 9);
    assert_int_equal(device[1].peer[0].links, 9);
}

static void case_switch(void **state)
{
    (void)state;
    ask(FAKE_NVML, "switch");
    expect(18, 0, 0);
    ask(FAKE_NVML, "hidden");
    expect(18, 0, 0);
}

/* What is at an unknown bus is a switch only where the device says that it has links to one. */
static void case_unknown(void **state)
{
    (void)state;
    ask(FAKE_NVML, "unknown");
    expect(18, 0, 0);
    ask(FAKE_NVML, "foreign");
    expect(0, 1, 0);
    assert_string_equal(device[0].peer[0].bus, "0000:c0:00.0");
    assert_int_equal(device[0].peer[0].links, 18);
}

static void case_fabric(void **state)
{
    static const char *const version[] = {"fabric", "older", "oldest"};
    static const unsigned char none[16];

    (void)state;
    for (int v = 0; v < 3; v++) {
        ask(FAKE_NVML, version[v]);
        expect(18, 0, 2);
        assert_true(device[0].c2c_gbs > 179.999 && device[0].c2c_gbs < 180.001);
        assert_int_equal(device[0].fabric_clique, 7);
        for (int i = 0; i < 16; i++)
            assert_int_equal(device[0].fabric_uuid[i], 0xa0 + i);
        assert_memory_equal(device[1].fabric_uuid, none, 16); /* not registered yet */
    }
}

/* From the library to nodes and links; the devices are on no bus of the machine that tests run on.
 */
static void case_topology(void **state)
{
    struct tess_topology *topology;
    int links = 0;

    (void)state;
    ask(FAKE_NVML, "pairs");
    assert_int_equal(tess_topology_live(device, 2, 0, &topology), TESS_OK);
    assert_int_equal(topology->device_count, 2);
    assert_string_equal(topology->node[topology->device[1]].bus, "0000:af:00.0");
    for (int i = 0; i < topology->link_count; i++)
        if (topology->link[i].kind == TESS_LINK_NVLINK) {
            assert_int_equal(topology->link[i].count, 9);
            assert_true(topology->link[i].gbs > 9 * 20.6 - 1e-9 &&
                        topology->link[i].gbs < 9 * 20.6 + 1e-9);
            links++;
        }
    assert_int_equal(links, 2);
    tess_topology_free(topology);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_none),   cmocka_unit_test(case_pairs),
        cmocka_unit_test(case_switch), cmocka_unit_test(case_unknown),
        cmocka_unit_test(case_fabric), cmocka_unit_test(case_topology),
    };

    return cmocka_run_group_tests_name("nvml_links", tests, NULL, NULL);
}
