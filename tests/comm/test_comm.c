/*
 * Conformance of communicators: one program for all backends, `test_comm self|threads|processes|tcp
 * RANKS [debug] [device|late|cuda|nccl]`. A new backend adds a word here and writes no tests. Every
 * case runs a function on all ranks, each of which checks what it received against values it
 * computes itself.
 */
#include "comm/cases.h"

#include "comm/boot/boot.h"
#include "comm/debug.h"
#include "harness/need_device.h"
#include "kernel_open.h"
#include "tessera/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES_MAX    64
#define CASE_LIMIT_S 120 /* a machine that is shared may stand still for a while */

struct case_function {
    const struct case_setup *setup;
    const struct tess_kernel_ops *kernel; /* looked up before there are threads */
    world_function fn;
    void *arg;
};

/* NCCL has ranks that are threads on a device each, and processes are hosts to it.
 */
/* Are there fewer devices than ranks? */
static bool case_is_shared(const struct case_setup *setup)
{
    char why[256];
    return setup->module->device_count(why, sizeof(why)) < setup->ranks;
}

static int32_t case_device(const struct case_setup *setup, const struct tess_comm *comm)
{
    return setup->nccl && !case_is_shared(setup) ? comm->rank : 0;
}

/* On the device: each rank opens a kernel and, to be late, one more queue that stands for its. */
static int case_on_device(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const struct case_function *function = arg;
    const struct tess_kernel_ops *ops = function->kernel;
    struct tess_kernel *kernel;
    struct tess_queue *queue;
    if (function->setup->module != NULL)
        WORLD_OK(function->setup->module->device_select(case_device(function->setup, comm),
                                                        function->setup->nccl));
    WORLD_OK(tess_kernel_open(ops, 1, &kernel));
    queue = kernel->queue;
    if (function->setup->late)
        WORLD_OK(ops->queue->open(kernel, &queue));
    WORLD_OK(tess_comm_attach(comm, queue));
    int failed = function->fn(comm, world, function->arg);
    if (failed != 0)
        return failed; /* peers may still use what closing would free */
    WORLD_OK(tess_comm_attach(comm, NULL));
    if (function->setup->late)
        ops->queue->close(queue);
    tess_kernel_close(kernel);
    return 0;
}

/*
 * On the module's communicator: on a device each, or processes all on the first. NCCL refuses that
 * within one host, and takes as one what has a host's name of its own.
 */
static int case_on_nccl(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const struct case_function *function = arg;
    const struct tess_module *module = function->setup->module;
    struct tess_boot *boot;
    struct tess_comm *nccl;
    char host[32];
    snprintf(host, sizeof(host), "rank-%d", (int)comm->rank);
    if (function->setup->mode == TESS_RANKS_PROCESSES)
        WORLD_CHECK(setenv("NCCL_HOSTID", host, 1) == 0);
    WORLD_OK(module->device_select(case_device(function->setup, comm), true));
    WORLD_OK(tess_boot_over(comm, CASE_LIMIT_S, &boot));
    const struct tess_comm_choices choices = {.scratch_bytes = (int64_t)64 << 20};
    enum tess_status status =
        module->comm_open(boot, world, comm->order, CASE_LIMIT_S, &choices, &nccl);
    tess_boot_close(boot);
    WORLD_OK(status);
    int failed = case_on_device(nccl, world, arg);
    if (failed == 0)
        tess_comm_close(nccl);
    return failed;
}

/* The function on the comparing communicator, over a copy of that which the harness closes. */
static int case_compared(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const struct case_function *function = arg;
    struct tess_comm *debug;
    WORLD_OK(tess_comm_split(comm, 0, comm->rank, &debug));
    enum tess_status status = tess_comm_debug_open(debug, NULL, NULL, 0);
    if (status != TESS_OK)
        tess_comm_close(debug);
    WORLD_OK(status);
    int failed = function->setup->device ? case_on_device(debug, world, arg)
                                         : function->fn(debug, world, function->arg);
    if (failed != 0)
        return failed; /* peers may still read what closing would free */
    tess_comm_close(debug);
    return 0;
}

static int case_run_world(const struct case_setup *setup, const struct world_setup *world,
                          world_function fn, void *arg, struct world_report *report)
{
    struct case_function function = {setup, NULL, fn, arg};
    struct world_setup on = *world;
    const char *kernel = setup->module != NULL ? setup->module->name : "guard_queue";
    assert_int_equal(tess_registry_get_kernel(kernel, &function.kernel), TESS_OK);
    on.tcp = setup->tcp;
    return setup->nccl     ? world_run_setup(&on, case_on_nccl, &function, report)
           : setup->debug  ? world_run_setup(&on, case_compared, &function, report)
           : setup->device ? world_run_setup(&on, case_on_device, &function, report)
                           : world_run_setup(&on, fn, arg, report);
}

int case_run_plain(const struct case_setup *setup, const struct world_setup *world,
                   world_function fn, void *arg, struct world_report *report)
{
    struct case_setup plain = *setup;
    plain.debug = plain.device = plain.nccl = false;
    plain.module = NULL;
    return case_run_world(&plain, world, fn, arg, report);
}

int case_run_limited(const struct case_setup *setup, double timeout_s, world_function fn, void *arg,
                     double *seconds_out)
{
    struct world_setup world = {.ranks = setup->ranks,
                                .mode = setup->mode,
                                .order = setup->order,
                                .self = setup->self,
                                .timeout_s = timeout_s};
    struct world_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    int failed = case_run_world(setup, &world, fn, arg, report);
    world_print(report);
    *seconds_out = report->seconds;
    free(report);
    return failed;
}

void case_run(void **state, world_function fn, void *arg)
{
    double seconds;
    assert_int_equal(case_run_limited(*state, 0, fn, arg, &seconds), 0);
}

/* A case, and whether it means anything on this backend with so many ranks. */
struct case_entry {
    struct CMUnitTest test;
    bool applies;
};

static int case_run_entries(const struct case_entry *entry, size_t count)
{
    struct CMUnitTest test[CASES_MAX];
    size_t used = 0;
    for (size_t i = 0; i < count && used < CASES_MAX; i++)
        if (entry[i].applies)
            test[used++] = entry[i].test;
    return _cmocka_run_group_tests("test_comm", test, used, NULL, NULL);
}

/* What calls on device memory must do, beside the rest on the host. */
static int case_run_device(struct case_setup *canonical, struct case_setup *fast)
{
    /* Faults of queues that only a made-up device can be seen to make. */
    const bool seen = !canonical->self && canonical->module == NULL;
    const bool peers = canonical->ranks > 1;
    const struct case_entry cases[] = {
        {cmocka_unit_test_prestate(case_collectives, canonical), true},
        {cmocka_unit_test_prestate(case_collectives, fast), true},
        {cmocka_unit_test_prestate(case_large, canonical), true},
        {cmocka_unit_test_prestate(case_halves, canonical), true},
        {cmocka_unit_test_prestate(case_traffic, canonical), true},
        {cmocka_unit_test_prestate(case_outstanding, canonical), true},
        {cmocka_unit_test_prestate(case_groups, canonical), true},
        {cmocka_unit_test_prestate(case_messages, canonical), true},
        {cmocka_unit_test_prestate(case_random, canonical), true},
        {cmocka_unit_test_prestate(case_memory, canonical), true},
        {cmocka_unit_test_prestate(case_observed, canonical), true},
        {cmocka_unit_test_prestate(case_device_unwaited, canonical), seen},
        {cmocka_unit_test_prestate(case_device_overwritten, canonical), seen},
        {cmocka_unit_test_prestate(case_device_unfenced, canonical), seen},
        {cmocka_unit_test_prestate(case_device_mixed, canonical), true},
        {cmocka_unit_test_prestate(case_device_mismatch, canonical), peers},
        {cmocka_unit_test_prestate(case_device_absent, canonical), peers && !canonical->debug},
        {cmocka_unit_test_prestate(case_device_abort, canonical), peers},
        {cmocka_unit_test_prestate(case_device_settle, canonical), true},
        {cmocka_unit_test_prestate(case_device_open, canonical), true},
        {cmocka_unit_test_prestate(case_device_many, canonical),
         canonical->ranks == 2 && canonical->module == NULL},
    };
    return case_run_entries(cases, sizeof(cases) / sizeof(cases[0]));
}

/* What one device can show of NCCL: results. Its failures need devices that fail. Processes take
 * turns on a device that they share, while each kernel of NCCL waits for the others': a call takes
 * long there, and the first cases have to do. */
static int case_run_nccl(struct case_setup *canonical, struct case_setup *fast)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_prestate(case_halves, canonical),
        cmocka_unit_test_prestate(case_collectives, canonical),
        cmocka_unit_test_prestate(case_collectives, fast),
        cmocka_unit_test_prestate(case_groups, canonical),
        cmocka_unit_test_prestate(case_large, canonical),
        cmocka_unit_test_prestate(case_outstanding, canonical),
        cmocka_unit_test_prestate(case_messages, canonical),
        cmocka_unit_test_prestate(case_queues, canonical),
        cmocka_unit_test_prestate(case_registered, canonical),
        cmocka_unit_test_prestate(case_random, canonical),
    };
    const struct CMUnitTest few[] = {cases[0], cases[1], cases[2], cases[3]};
    return case_is_shared(canonical) ? cmocka_run_group_tests(few, NULL, NULL)
                                     : cmocka_run_group_tests(cases, NULL, NULL);
}

int main(int argc, char **argv)
{
    static struct case_setup canonical, fast;
    for (int i = 3; i < argc; i++) {
        canonical.nccl = canonical.nccl || strcmp(argv[i], "nccl") == 0;
        if (canonical.nccl || strcmp(argv[i], "cuda") == 0)
            canonical.module = need_device("cuda");
        canonical.debug = canonical.debug || strcmp(argv[i], "debug") == 0;
        canonical.late = canonical.late || strcmp(argv[i], "late") == 0;
        canonical.device = canonical.late || canonical.device || canonical.module != NULL ||
                           strcmp(argv[i], "device") == 0;
    }
    if (argc < 3 || argc > 5 || (argc == 4 && !canonical.debug && !canonical.device)) {
        fprintf(stderr, "usage: test_comm self|threads|processes|tcp RANKS [debug] "
                        "[device|late|cuda|nccl]\n");
        return 2;
    }
    canonical.self = strcmp(argv[1], "self") == 0;
    canonical.mode = strcmp(argv[1], "threads") == 0 ? TESS_RANKS_THREADS : TESS_RANKS_PROCESSES;
    canonical.tcp = strcmp(argv[1], "tcp") == 0;
    canonical.ranks = atoi(argv[2]);
    canonical.order = TESS_ORDER_CANONICAL;
    fast = canonical;
    fast.order = TESS_ORDER_FAST;
    if (canonical.nccl)
        return case_run_nccl(&canonical, &fast);
    if (canonical.device)
        return case_run_device(&canonical, &fast);

    /* Between peers; where the comparing communicator does not find it before the backend. */
    const bool peers = canonical.ranks > 1, debug = canonical.debug;
    const struct case_entry cases[] = {
        {cmocka_unit_test_prestate(case_collectives, &canonical), true},
        {cmocka_unit_test_prestate(case_collectives, &fast), true},
        {cmocka_unit_test_prestate(case_large, &canonical), true},
        {cmocka_unit_test_prestate(case_large, &fast), true},
        {cmocka_unit_test_prestate(case_halves, &canonical), true},
        {cmocka_unit_test_prestate(case_traffic, &canonical), !canonical.tcp},
        {cmocka_unit_test_prestate(case_traffic_net, &canonical), canonical.tcp && !debug},
        {cmocka_unit_test_prestate(case_traffic_net, &fast), canonical.tcp && !debug},
        {cmocka_unit_test_prestate(case_outstanding, &canonical), true},
        {cmocka_unit_test_prestate(case_groups, &canonical), true},
        {cmocka_unit_test_prestate(case_messages, &canonical), true},
        {cmocka_unit_test_prestate(case_random, &canonical), true},
        {cmocka_unit_test_prestate(case_random, &fast), true},
        {cmocka_unit_test_prestate(case_share, &canonical), true},
        {cmocka_unit_test_prestate(case_memory, &canonical), true},
        {cmocka_unit_test_prestate(case_idle, &canonical), true},
        {cmocka_unit_test_prestate(case_arguments, &canonical), true},
        {cmocka_unit_test_prestate(case_places, &canonical), peers && !debug},
        {cmocka_unit_test_prestate(case_mismatch, &canonical), peers && !debug},
        {cmocka_unit_test_prestate(case_abort, &canonical), peers},
        {cmocka_unit_test_prestate(case_reason, &canonical), peers && !debug},
        {cmocka_unit_test_prestate(case_time_out, &canonical), peers},
        {cmocka_unit_test_prestate(case_time_out_chain, &canonical), peers},
        {cmocka_unit_test_prestate(case_takes_nothing, &canonical),
         peers && canonical.tcp && !debug},
        {cmocka_unit_test_prestate(case_killed, &canonical),
         peers && canonical.mode == TESS_RANKS_PROCESSES},
        {cmocka_unit_test_prestate(case_board, &canonical), !canonical.self && !debug},
        {cmocka_unit_test_prestate(case_observed, &canonical), true},
        {cmocka_unit_test_prestate(case_flight, &canonical), true},
        {cmocka_unit_test_prestate(case_family, &canonical), true},
        {cmocka_unit_test_prestate(case_device_processes, &canonical),
         !canonical.self && peers && canonical.mode == TESS_RANKS_PROCESSES},
        {cmocka_unit_test_prestate(case_debug_mismatch, &canonical), peers},
        {cmocka_unit_test_prestate(case_debug_agreement, &canonical), !canonical.self},
        {cmocka_unit_test_prestate(case_debug_group, &canonical), canonical.ranks >= 4},
        {cmocka_unit_test_prestate(case_debug_absent, &canonical), peers},
        {cmocka_unit_test_prestate(case_debug_stats, &canonical), !canonical.self},
    };
    return case_run_entries(cases, sizeof(cases) / sizeof(cases[0]));
}
