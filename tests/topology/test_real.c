/*
 * The ring search on the machines of machines/: known figures, and what holds for any machine.
 *
 * The figures of the table were computed apart from this code, over all orders and by a general LP
 * solver, from NCCL 2.28's constants. "nccl" is what NCCL's own search of rings gets, counted by
 * the physical links (on h100-pcie-bridges NCCL claims 40 and gets 22: it takes the bridge between
 * the processors for a way around them). Some rows depend on assumptions:
 *
 *  a  nvidia-smi without columns of affinity: GPUs that no word SYS separates are on one NUMA node.
 *     With a node per GPU there are more links between nodes: 84 instead of 73.5 on the DGX-1, 20
 *     instead of 10 on a100-nvlink-and-pcie.
 *  b  A B300's links carry 40.1 GB/s each (sm 100); 370.8 is 18 links of sm 90.
 *  c  No PCIe generation is known: 24 GB/s is 16 lanes of generation 4, 12 GB/s those of 3.
 *  e  "nccl" of AMD's machines was counted with 20 GB/s a link; with rccl's 24, 36 and 48 it is no
 *     less. Their bounds are as many links as then, times those, and the same PCIe and NUMA rates.
 *  d  The source leaves NVLink to detection: what PCIe alone carries. 370.8 with NVSwitch.
 */
#include "look.h"
#include "rings.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* 100 ms is the aim of an optimised build on a machine that is not busy; a debug build and a busy
 * machine take ten times as long, the address sanitizer four times that. Processor time of the
 * thread. */
#ifndef __has_feature
#define __has_feature(name) 0 /* gcc */
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#define MOST_S 4.0
#else
#define MOST_S 1.0
#endif

struct known {
    const char *name;
    double natural, best; /* GB/s; 0: not known */
    double bound;         /* of sets of rings */
    double nccl;          /* sum of its channels */
    const char *order;    /* of the best ring, where few are as good */
};

static const struct known known[] = {
    {"dgx-1v", 6, 40, 121.5, 120, "0-3-2-1-5-6-7-4"},
    {"dgx-1v-flat", 6, 40, 121.5, 120, "0-3-2-1-5-6-7-4"},
    {"dgx-1p", 6, 18, 73.5, 72, "0-1-2-3-7-5-6-4"}, /* a */
    {"h100-pcie-bridges", 22, 22, 44, 22, NULL},
    {"bridged-pairs", 10, 10, 10, 10, NULL},
    {"azure-nc96", 10, 10, 40, 40, NULL},
    {"polaris", 80, 80, 240, 240, NULL},
    {"leonardo", 80, 80, 240, 240, NULL},
    {"pcie-4-4", 10, 10, 10, 10, NULL},
    {"rtx4090-8", 10, 10, 10, 10, NULL},
    {"pcie-4-4-one-socket", 24, 24, 24, 20, NULL}, /* c */
    {"gooxi-4-4", 24, 24, 24, 20, NULL},           /* c */
    {"gooxi-5-3", 10, 10, 10, 10, NULL},
    {"a100-nvlink-and-pcie", 10, 10, 10, 10, NULL}, /* a */
    {"h100-8-cards", 370.8, 370.8, 370.8, 360, NULL},
    {"h100-8", 370.8, 370.8, 370.8, 360, NULL},
    {"h100-4-vm", 370.8, 370.8, 370.8, 360, NULL},
    {"b300-8", 721.8, 721.8, 721.8, 360, NULL}, /* b */
    {"oci-h100", 370.8, 370.8, 370.8, 360, NULL},
    {"aws-p4d", 10, 10, 10, 0, NULL},    /* d */
    {"aws-p5", 24, 24, 24, 0, NULL},     /* d */
    {"azure-ndv4", 16, 16, 24, 0, NULL}, /* d */
    {"azure-ndv5", 22, 22, 22, 0, NULL}, /* d */
    {"mi50-4-ring", 12, 24, 60, 40, "0-1-3-2"},
    {"mi200-8", 12, 36, 168, 80, "0-1-3-2-4-5-7-6"},
    {"mi200-8-switches", 16, 36, 176, 80, "0-1-3-2-4-5-7-6"},
    {"mi50-8-rome", 16, 24, 64, 40, NULL},
    {"mi100-8-hives", 16, 16, 56, 16, NULL},
    {"mi100-8-hives-cards", 16, 16, 48, 16, NULL},
    {"mi100-8-hives-vm", 16, 16, 64, 16, NULL},
    {"mi100-8", 24, 24, 148, 120, NULL},
    {"mi300-8", 48, 48, 336, 120, NULL},
    {"mi300-8-vm", 48, 48, 336, 120, NULL},
    {"mi300-4", 48, 48, 144, 60, NULL},
    {"mi100-4", 24, 24, 72, 60, NULL},
    {"mi200-16", 0, 36, 240, 120, NULL},
    {"mi50-8-pcie", 12, 12, 12, 10, NULL},
    {"mi50-8-rome-pcie", 16, 16, 16, 15, NULL},
    {"mi200-3-pcie", 16, 16, 16, 15, NULL},
};
#define KNOWN ((int)(sizeof(known) / sizeof(known[0])))

static int seen; /* rows of the table whose machine was there */

/* The greatest bandwidth of all orders that begin with device 0. */
static double brute(const struct rings *rings, int32_t *order, int32_t depth)
{
    int32_t count = rings->found.count;
    double most = 0;
    if (depth == count)
        return rings_order_gbs(rings, order);
    for (int32_t i = depth; i < count; i++) {
        int32_t swap = order[depth];
        order[depth] = order[i];
        order[i] = swap;
        double gbs = brute(rings, order, depth + 1);
        most = gbs > most ? gbs : most;
        order[i] = order[depth];
        order[depth] = swap;
    }
    return most;
}

static void check_known(const char *name, const struct rings *rings)
{
    const struct tess_rings *found = &rings->found;
    for (int k = 0; k < KNOWN; k++) {
        const struct known *row = &known[k];
        if (strcmp(row->name, name) != 0)
            continue;
        seen++;
        if (row->natural > 0)
            rings_near(found->natural.gbs, row->natural);
        rings_near(found->best_single.gbs, row->best);
        rings_near(found->bound_gbs, row->bound);
        assert_true(found->total_gbs >= row->nccl);
        if (row->order)
            rings_is_order(&found->best_single, row->order);
    }
}

/* rings_find holds: capacities, and natural <= best <= total <= bound. */
static void check_machine(const char *name, struct tess_topology *topology)
{
    if (topology->device_count > 128) { /* more than routes are made for */
        tess_topology_free(topology);
        return;
    }
    double from_s = tess_clock_thread_s();
    struct rings rings = rings_find(topology, TESS_RINGS_MAX);
    double took_s = tess_clock_thread_s() - from_s;
    const struct tess_rings *found = &rings.found;
    print_message("%-22s %3d devices, natural %5.4g, best %5.4g, %2d rings %5.4g of %5.4g GB/s, "
                  "%.1f ms\n",
                  name, (int)found->count, found->natural.gbs, found->best_single.gbs,
                  (int)found->ring_count, found->total_gbs, found->bound_gbs, took_s * 1e3);
    if (found->count <= 16) {
        assert_true(took_s < MOST_S);
        assert_true(found->optimal);
        assert_true(found->total_gbs >= 0.95 * found->bound_gbs);
    }
    if (found->count > 1 && found->count <= 9) {
        int32_t order[9];
        for (int32_t i = 0; i < found->count; i++)
            order[i] = i;
        rings_near(found->best_single.gbs, brute(&rings, order, 1));
    }
    check_known(name, &rings);
    rings_drop(&rings);
}

static void case_machines(void **state)
{
    (void)state;
    look_each_machine(check_machine);
    assert_int_equal(seen, KNOWN);
}

static double gbs_of(const struct rings *rings, const char *order)
{
    int32_t device[16];
    for (int i = 0; order[2 * i]; i++) {
        device[i] = order[2 * i] - '0';
        if (!order[2 * i + 1])
            break;
    }
    return rings_order_gbs(rings, device);
}

/* Orders that are known to be bad, and others that are as good as the best. */
static void case_orders(void **state)
{
    (void)state;
    static const struct {
        const char *name, *order;
        double gbs;
    } row[] = {
        {"pcie-4-4", "0-4-1-5-2-6-3-7", 2.5},
        {"gooxi-5-3", "0-5-1-6-2-7-3-4", 10 / 3.0},
        {"mi50-8-rome", "0-1-2-4-6-7-5-3", 24},
        /* The cycle of the pairs with two links, and its other direction: 2 of 5040. */
        {"dgx-1v", "0-4-7-6-5-1-2-3", 40},
        {"dgx-1v", "0-1-3-7-5-4-6-2", 20},
    };
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        struct rings rings = rings_find(look_machine(row[i].name), TESS_RINGS_MAX);
        rings_near(gbs_of(&rings, row[i].order), row[i].gbs);
        rings_drop(&rings);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_machines),
        cmocka_unit_test(case_orders),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
