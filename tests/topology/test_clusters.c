/*
 * The files in configs/clusters: each is read, has the devices that its comment names, and its best
 * ring, its natural one and one that goes wrong have the speeds given there. NCCL's form of them
 * is read again.
 */
#include "look.h"
#include "tessera/log.h"
#include "topology/rings/ring.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CLOSE(a, b) assert_true((a) > (b) * (1 - 1e-9) && (a) < (b) * (1 + 1e-9))

struct cluster {
    const char *file;
    int32_t hosts, devices, nics, nets;
    double best, natural; /* of one host's devices; of all, where they are 16 or fewer */
    double dealt; /* of 0, n/2, 1, n/2 + 1 ..: in turns over the halves; 0: any is as good */
    double all;   /* over all hosts */
    bool gpus;
};

/* Rates are NCCL's (topology/machine/rates.h): an NVLink of V100 and A100 20, of H100 20.6;
 * PCIe 3, 4 and 5 by 16 lanes 12, 24, 48; between Intel's sockets 6 of Broadwell's time, 10 since
 * Skylake. */
static const struct cluster known[] = {
    /* Two links side by side; 3-4 and 7-0 have none, nor have, dealt, 4-1, 5-2, 6-3 and 7-0, which
     * all lead from the second socket to the first. */
    {"dgx-1v.yaml", 1, 8, 4, 1, 2 * 20, 6, 6 / 4.0, 0, true},
    {"dgx-a100.yaml", 1, 8, 8, 1, 12 * 20, 12 * 20, 0, 0, true},
    {"dgx-h100-16.yaml", 16, 128, 128, 9, 18 * 20.6, 18 * 20.6, 0, 48, true},
    {"pcie-8.yaml", 1, 8, 2, 1, 10, 10, 10 / 4.0, 0, true},
    {"bridged-pairs-8.yaml", 1, 8, 0, 0, 10, 10, 10 / 4.0, 0, true},
    {"cloud-vm.yaml", 1, 8, 1, 1, 24, 24, 0, 0, true},
    {"two-rack-ethernet.yaml", 4, 8, 0, 3, 0.0125, 0.0125, 0.0125 / 4, 0.0125, false},
    {"laptop.yaml", 1, 2, 0, 0, 5000, 5000, 0, 0, false},
};
#define KNOWN ((int)(sizeof(known) / sizeof(known[0])))

static struct tess_topology *cluster_read(const struct cluster *cluster)
{
    char path[4096];
    struct tess_topology *topology = NULL;
    snprintf(path, sizeof(path), "%s/%s", CLUSTERS, cluster->file);
    assert_int_equal(tess_topology_read(path, TESS_TOPOLOGY_AUTO, NULL, &topology), TESS_OK);
    return topology;
}

/* A file that is not listed here would not be checked. */
static void case_all_known(void **state)
{
    (void)state;
    DIR *folder = opendir(CLUSTERS);
    assert_non_null(folder);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        const char *dot = strrchr(entry->d_name, '.');
        if (!dot || strcmp(dot, ".yaml") != 0)
            continue;
        int k = 0;
        while (k < KNOWN && strcmp(known[k].file, entry->d_name) != 0)
            k++;
        if (k == KNOWN)
            fail_msg("%s is in no test", entry->d_name);
        found++;
    }
    closedir(folder);
    assert_int_equal(found, KNOWN);
}

static void case_counts(void **state)
{
    (void)state;
    for (int k = 0; k < KNOWN; k++) {
        struct tess_topology *topology = cluster_read(&known[k]);
        struct look_counts counts = look_count(topology);
        assert_int_equal(topology->host_count, known[k].hosts);
        assert_int_equal(topology->device_count, known[k].devices);
        assert_int_equal(counts.devices, known[k].devices);
        assert_int_equal(counts.nics, known[k].nics);
        assert_int_equal(counts.nets, known[k].nets);
        tess_topology_free(topology);
    }
}

static void expect_rings(const struct tess_topology *topology, const struct cluster *cluster)
{
    const struct tess_ring_search search = {.rings = 1};
    int32_t n = topology->device_count, order[16];
    struct tess_routes routes;
    struct tess_rings rings;
    assert_true(n <= 16);
    assert_int_equal(tess_routes_open(topology, &routes), TESS_OK);
    assert_int_equal(tess_rings_find(&routes, &search, &rings), TESS_OK);
    assert_true(rings.optimal);
    CLOSE(rings.best_single.gbs, cluster->best);
    CLOSE(rings.natural.gbs, cluster->natural);
    int32_t *uses = calloc((size_t)topology->link_count, sizeof(*uses));
    assert_non_null(uses);
    for (int32_t i = 0; i < n; i++)
        order[i] = i / 2 + i % 2 * (n / 2);
    CLOSE(tess_ring_gbs(&routes, order, n, uses),
          cluster->dealt > 0 ? cluster->dealt : cluster->best);
    free(uses);
    tess_rings_free(&rings);
    tess_routes_free(&routes);
}

/* Of a cluster of more than 16 devices, those of one host. */
static void keep_host(struct tess_topology *topology, int32_t host)
{
    int32_t keep[16], count = 0;
    for (int32_t i = 0; topology->device_count > 16 && i < topology->device_count; i++)
        if (topology->node[topology->device[i]].host == host) {
            assert_true(count < 16);
            keep[count++] = i;
        }
    if (count > 0)
        assert_int_equal(tess_topology_select(topology, keep, count), TESS_OK);
}

static void case_rings(void **state)
{
    (void)state;
    for (int k = 0; k < KNOWN; k++) {
        struct tess_topology *topology = cluster_read(&known[k]);
        if (known[k].all > 0) {
            struct tess_rings rings;
            assert_int_equal(tess_rings_find_hosts(topology, 0, &rings), TESS_OK);
            CLOSE(rings.best_single.gbs, known[k].all);
            tess_rings_free(&rings);
        }
        keep_host(topology, known[k].hosts - 1);
        expect_rings(topology, &known[k]);
        tess_topology_free(topology);
    }
}

static void case_nccl(void **state)
{
    (void)state;
    for (int k = 0; k < KNOWN; k++) {
        struct tess_topology *topology = cluster_read(&known[k]);
        for (int32_t host = 0; host < known[k].hosts; host++) {
            char *text = NULL;
            enum tess_status status = tess_topology_write_nccl(topology, host, &text);
            assert_int_equal(status, known[k].gpus ? TESS_OK : TESS_ERR_UNSUPPORTED);
            if (status != TESS_OK)
                continue;
            struct tess_topology *again =
                look_read(tess_topology_read_nccl, known[k].file, text, strlen(text), NULL);
            assert_non_null(again);
            assert_int_equal(again->device_count, known[k].devices / known[k].hosts);
            expect_rings(again, &known[k]);
            tess_topology_free(again);
            free(text);
        }
        tess_topology_free(topology);
    }
}

/* Ranks find their hosts by these names. */
static void case_hosts(void **state)
{
    (void)state;
    struct tess_topology *topology = cluster_read(&known[6]);
    assert_string_equal(look_beside(topology, "node3.rank1", TESS_NODE_CPU), "node3.numa0");
    tess_topology_free(topology);
    topology = cluster_read(&known[2]);
    assert_string_equal(look_beside(topology, "dgx16.nic5", TESS_NODE_NET), "rail5");
    assert_string_equal(look_beside(topology, "dgx16.nic5", TESS_NODE_PCI), "dgx16.switch5");
    assert_string_equal(look_beside(topology, "dgx16.gpu5", TESS_NODE_PCI), "dgx16.switch5");
    tess_topology_free(topology);
}

/* Rings over rails: out of a host and into the next one by the same rail, each by another one. With
 * more devices than are routed pair by pair every second host is passed backwards, so that the one
 * ring stays on its rail: 48 of PCIe 5, not what the few links to the spine leave. */
static void case_rails(void **state)
{
    static const struct {
        const char *words;
        double single, total;
    } cluster[] = {
        {"rack:2 node:4 gpu:8 nvlink:switch nic:8 rail:8 sm:90", 12.5, 8 * 12.5},
        {"node:4 gpu:8 nvlink:switch nic:8 rail:8 sm:90", 12.5, 8 * 12.5},
        {"node:4 numa:2 gpu:4 nic:4 nvlink:switch rail:8 sm:90", 12.5, 8 * 12.5},
        {"rack:2 node:4 switch:4 gpu:2 nic:2 nvlink:switch rail:8 sm:90", 12.5, 8 * 12.5},
        /* No rails: one uplink for a rack. */
        {"rack:2 node:2 gpu:4 nvlink:switch nic:4 sm:90", 12.5, 12.5},
        {"node:18 gpu:8 nvlink:switch nic:8 rail:8 sm:90 edge:50 uplink:800", 48, 0},
        {"node:64 gpu:8 nvlink:switch nic:8 rail:8 sm:90 edge:50 uplink:800", 48, 0},
    };
    const struct tess_ring_search search = {.rings = TESS_RINGS_MAX};

    (void)state;
    for (size_t i = 0; i < sizeof(cluster) / sizeof(cluster[0]); i++) {
        struct tess_topology *topology = NULL;
        struct tess_routes routes = {0};
        struct tess_rings rings;

        assert_int_equal(tess_topology_synthetic(cluster[i].words, NULL, &topology), TESS_OK);
        if (cluster[i].total > 0) {
            assert_int_equal(tess_routes_open(topology, &routes), TESS_OK);
            assert_int_equal(tess_rings_find(&routes, &search, &rings), TESS_OK);
            CLOSE(rings.total_gbs, cluster[i].total);
            CLOSE(rings.bound_gbs, cluster[i].total);
        } else {
            assert_int_equal(tess_rings_find_hosts(topology, 0, &rings), TESS_OK);
        }
        CLOSE(rings.best_single.gbs, cluster[i].single);
        tess_rings_free(&rings);
        tess_routes_free(&routes);
        tess_topology_free(topology);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_all_known), cmocka_unit_test(case_counts),
        cmocka_unit_test(case_rings),     cmocka_unit_test(case_nccl),
        cmocka_unit_test(case_hosts),     cmocka_unit_test(case_rails),
    };
    return cmocka_run_group_tests_name("clusters", tests, NULL, NULL);
}
