/*
 * Conformance of communicators: one program for all backends, `test_comm self|threads|processes|tcp
 * RANKS [debug] [device|late|cuda|nccl]`. A new backend adds a word here and writes no tests. Every
 * case runs a function on all ranks, each of which checks what it received against values it
 * computes itself.
 */
#include "comm/cases.h"

#include "comm/boot.h"
#include "comm/debug.h"
#include "comm/net.h"
#include "harness/need_device.h"
#include "kernel_open.h"
#include "tessera/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct case_function {
    const struct case_setup *setup;
    double timeout_s;                     /* of one wait */
    const struct tess_kernel_ops *kernel; /* looked up before there are threads */
    world_function fn;
    void *arg;
};

/* On the device: each rank opens a kernel and, to be late, one more queue that stands for its. */
static int case_on_device(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const struct case_function *function = arg;
    const struct tess_kernel_ops *ops = function->kernel;
    struct tess_kernel *kernel;
    struct tess_queue *queue;
    if (function->setup->module != NULL)
        WORLD_OK(function->setup->module->device_select(0));
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
 * On the module's communicator, all ranks on the first device. NCCL refuses that within one host,
 * and takes as one what has a host's name of its own.
 */
static int case_on_nccl(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const struct case_function *function = arg;
    const struct tess_module *module = function->setup->module;
    struct tess_boot *boot;
    struct tess_comm *nccl;
    char host[32];
    snprintf(host, sizeof host, "rank-%d", (int)comm->rank);
    WORLD_CHECK(setenv("NCCL_HOSTID", host, 1) == 0);
    WORLD_OK(module->device_select(0));
    WORLD_OK(tess_boot_over(comm, 30, &boot));
    enum tess_status status = module->comm_open(boot, world, comm->order, 30, &nccl);
    tess_boot_close(boot);
    WORLD_OK(status);
    int failed = case_on_device(nccl, world, arg);
    if (failed == 0)
        tess_comm_close(nccl);
    return failed;
}

static enum tess_status case_open_tcp(struct tess_comm *comm, struct tess_world *world,
                                      double timeout_s, struct tess_comm **tcp_out)
{
    struct tess_transport *transport;
    struct tess_boot *boot;
    enum tess_status status = tess_boot_over(comm, 30, &boot);
    if (status != TESS_OK)
        return status;
    status = tess_transport_tcp_open(boot, timeout_s, &transport);
    tess_boot_close(boot);
    if (status != TESS_OK)
        return status;
    return tess_comm_net_open(transport, world, comm->order, timeout_s, tcp_out);
}

static int case_compared(struct tess_comm *comm, struct tess_world *world, void *arg);

/* On sockets, beside the harness's communicator, over which they are found. */
static int case_on_tcp(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const struct case_function *function = arg;
    struct tess_comm *tcp;
    WORLD_OK(case_open_tcp(comm, world, function->timeout_s, &tcp));
    int failed = function->setup->debug ? case_compared(tcp, world, arg)
                                        : function->fn(tcp, world, function->arg);
    if (failed == 0)
        tess_comm_close(tcp);
    return failed;
}

/* The function on the comparing communicator, over a copy of that which the harness closes. */
static int case_compared(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    const struct case_function *function = arg;
    struct tess_comm *inner, *debug;
    WORLD_OK(tess_comm_split(comm, 0, comm->rank, &inner));
    enum tess_status status = tess_comm_debug_open(inner, NULL, NULL, 0, &debug);
    if (status != TESS_OK)
        tess_comm_close(inner);
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
    struct case_function function = {setup, world->timeout_s > 0 ? world->timeout_s : 30, NULL, fn,
                                     arg};
    const char *kernel = setup->module != NULL ? setup->module->name : "guard_queue";
    assert_int_equal(tess_registry_get_kernel(kernel, &function.kernel), TESS_OK);
    return setup->nccl     ? world_run_setup(world, case_on_nccl, &function, report)
           : setup->tcp    ? world_run_setup(world, case_on_tcp, &function, report)
           : setup->debug  ? world_run_setup(world, case_compared, &function, report)
           : setup->device ? world_run_setup(world, case_on_device, &function, report)
                           : world_run_setup(world, fn, arg, report);
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
    struct world_report *report = calloc(1, sizeof *report);
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

/* What calls on device memory must do, beside the rest on the host. */
static int case_run_device(struct case_setup *canonical, struct case_setup *fast)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_prestate(case_collectives, canonical),
        cmocka_unit_test_prestate(case_collectives, fast),
        cmocka_unit_test_prestate(case_large, canonical),
        cmocka_unit_test_prestate(case_halves, canonical),
        cmocka_unit_test_prestate(case_traffic, canonical),
        cmocka_unit_test_prestate(case_outstanding, canonical),
        cmocka_unit_test_prestate(case_groups, canonical),
        cmocka_unit_test_prestate(case_messages, canonical),
        cmocka_unit_test_prestate(case_random, canonical),
        cmocka_unit_test_prestate(case_memory, canonical),
        cmocka_unit_test_prestate(case_observed, canonical),
        cmocka_unit_test_prestate(case_device_unwaited, canonical),
        cmocka_unit_test_prestate(case_device_overwritten, canonical),
        cmocka_unit_test_prestate(case_device_unfenced, canonical),
        cmocka_unit_test_prestate(case_device_mixed, canonical),
        cmocka_unit_test_prestate(case_device_mismatch, canonical),
        cmocka_unit_test_prestate(case_device_absent, canonical),
        cmocka_unit_test_prestate(case_device_abort, canonical),
        cmocka_unit_test_prestate(case_device_settle, canonical),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}

/* What one device can tell of NCCL: results. Its failures want devices that fail. */
static int case_run_nccl(struct case_setup *canonical, struct case_setup *fast)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_prestate(case_collectives, canonical),
        cmocka_unit_test_prestate(case_collectives, fast),
        cmocka_unit_test_prestate(case_large, canonical),
        cmocka_unit_test_prestate(case_halves, canonical),
        cmocka_unit_test_prestate(case_outstanding, canonical),
        cmocka_unit_test_prestate(case_groups, canonical),
        cmocka_unit_test_prestate(case_messages, canonical),
        cmocka_unit_test_prestate(case_random, canonical),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
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

    const struct CMUnitTest cases[] = {
        cmocka_unit_test_prestate(case_collectives, &canonical),
        cmocka_unit_test_prestate(case_collectives, &fast),
        cmocka_unit_test_prestate(case_large, &canonical),
        cmocka_unit_test_prestate(case_large, &fast),
        cmocka_unit_test_prestate(case_halves, &canonical),
        cmocka_unit_test_prestate(case_traffic, &canonical),
        cmocka_unit_test_prestate(case_traffic_net, &canonical),
        cmocka_unit_test_prestate(case_traffic_net, &fast),
        cmocka_unit_test_prestate(case_outstanding, &canonical),
        cmocka_unit_test_prestate(case_groups, &canonical),
        cmocka_unit_test_prestate(case_messages, &canonical),
        cmocka_unit_test_prestate(case_random, &canonical),
        cmocka_unit_test_prestate(case_random, &fast),
        cmocka_unit_test_prestate(case_memory, &canonical),
        cmocka_unit_test_prestate(case_idle, &canonical),
        cmocka_unit_test_prestate(case_arguments, &canonical),
        cmocka_unit_test_prestate(case_places, &canonical),
        cmocka_unit_test_prestate(case_mismatch, &canonical),
        cmocka_unit_test_prestate(case_abort, &canonical),
        cmocka_unit_test_prestate(case_reason, &canonical),
        cmocka_unit_test_prestate(case_time_out, &canonical),
        cmocka_unit_test_prestate(case_time_out_chain, &canonical),
        cmocka_unit_test_prestate(case_killed, &canonical),
        cmocka_unit_test_prestate(case_board, &canonical),
        cmocka_unit_test_prestate(case_observed, &canonical),
        cmocka_unit_test_prestate(case_flight, &canonical),
        cmocka_unit_test_prestate(case_family, &canonical),
        cmocka_unit_test_prestate(case_device_processes, &canonical),
        cmocka_unit_test_prestate(case_debug_mismatch, &canonical),
        cmocka_unit_test_prestate(case_debug_agreement, &canonical),
        cmocka_unit_test_prestate(case_debug_group, &canonical),
        cmocka_unit_test_prestate(case_debug_absent, &canonical),
        cmocka_unit_test_prestate(case_debug_stats, &canonical),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
