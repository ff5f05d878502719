/*
 * Conformance of communicators: one program for all backends, `test_comm self|threads|processes
 * RANKS [debug]`. A new backend adds a word here and writes no tests. Every case runs a function on
 * all ranks, each of which checks what it received against values it computes itself.
 */
#include "comm/cases.h"

#include "comm/debug.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct case_function {
    world_function fn;
    void *arg;
};

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
    int failed = function->fn(debug, world, function->arg);
    if (failed != 0)
        return failed; /* peers may still read what closing would free */
    tess_comm_close(debug);
    return 0;
}

void case_run(void **state, world_function fn, void *arg)
{
    const struct case_setup *setup = *state;
    struct world_setup world = {
        .ranks = setup->ranks, .mode = setup->mode, .order = setup->order, .self = setup->self};
    struct world_report *report = calloc(1, sizeof *report);
    assert_non_null(report);
    struct case_function function = {fn, arg};
    int failed = setup->debug ? world_run_setup(&world, case_compared, &function, report)
                              : world_run_setup(&world, fn, arg, report);
    world_print(report);
    free(report);
    assert_int_equal(failed, 0);
}

int main(int argc, char **argv)
{
    static struct case_setup canonical, fast;
    if (argc != 3 && (argc != 4 || strcmp(argv[3], "debug") != 0)) {
        fprintf(stderr, "usage: test_comm self|threads|processes RANKS [debug]\n");
        return 2;
    }
    canonical.debug = argc == 4;
    canonical.self = strcmp(argv[1], "self") == 0;
    canonical.mode = strcmp(argv[1], "threads") == 0 ? TESS_RANKS_THREADS : TESS_RANKS_PROCESSES;
    canonical.ranks = atoi(argv[2]);
    canonical.order = TESS_ORDER_CANONICAL;
    fast = canonical;
    fast.order = TESS_ORDER_FAST;

    const struct CMUnitTest cases[] = {
        cmocka_unit_test_prestate(case_collectives, &canonical),
        cmocka_unit_test_prestate(case_collectives, &fast),
        cmocka_unit_test_prestate(case_large, &canonical),
        cmocka_unit_test_prestate(case_halves, &canonical),
        cmocka_unit_test_prestate(case_traffic, &canonical),
        cmocka_unit_test_prestate(case_outstanding, &canonical),
        cmocka_unit_test_prestate(case_groups, &canonical),
        cmocka_unit_test_prestate(case_messages, &canonical),
        cmocka_unit_test_prestate(case_random, &canonical),
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
        cmocka_unit_test_prestate(case_debug_mismatch, &canonical),
        cmocka_unit_test_prestate(case_debug_agreement, &canonical),
        cmocka_unit_test_prestate(case_debug_group, &canonical),
        cmocka_unit_test_prestate(case_debug_absent, &canonical),
        cmocka_unit_test_prestate(case_debug_stats, &canonical),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
