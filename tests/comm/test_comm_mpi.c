/*
 * Conformance of the communicator over MPI: the cases of test_comm.c that end well, run by every
 * process that mpirun starts, as `mpirun -n N test_comm_mpi`. Each is run on a group of its own,
 * split off from all ranks: in canonical order, in fast order and on MPI's own collectives. How
 * ranks fail is in test_mpi.c and, for whole runs, in tests/cli/test_mpirun.c.
 */
#include "comm/cases.h"
#include "comm/mpi/comm_mpi.h"
#include "comm/net/net.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>

/* Of the cases: what the harness has for ranks that it starts itself. */
int world_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return 1;
}

struct backend {
    struct case_setup setup; /* first: a case's state */
    bool native;
    struct tess_comm *comm;
};

int case_run_limited(const struct case_setup *setup, double timeout_s, world_function fn, void *arg,
                     double *seconds_out)
{
    const struct backend *backend = (const struct backend *)setup;
    struct tess_comm *group;
    (void)timeout_s;
    *seconds_out = 0;
    WORLD_OK(tess_comm_split(backend->comm, 0, backend->comm->rank, &group));
    int failed = fn(group, NULL, arg);
    if (failed == 0)
        tess_comm_close(group);
    return failed;
}

void case_run(void **state, world_function fn, void *arg)
{
    double seconds;
    assert_int_equal(case_run_limited(*state, 0, fn, arg, &seconds), 0);
}

static enum tess_status backend_open(struct backend *backend)
{
    struct tess_transport *transport;
    TESS_TRY(tess_transport_mpi_open(TESS_MPI_AUTO, NULL, 30, &transport));
    backend->setup.ranks = transport->rank_count;
    backend->setup.mode = TESS_RANKS_PROCESSES;
    TESS_TRY(tess_comm_net_open(transport, NULL, backend->setup.order, 30, &backend->comm));
    return backend->native ? tess_comm_net_native(backend->comm) : TESS_OK;
}

int main(void)
{
    static struct backend canonical = {.setup.order = TESS_ORDER_CANONICAL},
                          fast = {.setup.order = TESS_ORDER_FAST},
                          native = {.setup.order = TESS_ORDER_FAST, .native = true};
    const struct CMUnitTest cases[] = {
        cmocka_unit_test_prestate(case_collectives, &canonical),
        cmocka_unit_test_prestate(case_collectives, &fast),
        cmocka_unit_test_prestate(case_collectives, &native),
        cmocka_unit_test_prestate(case_large, &canonical),
        cmocka_unit_test_prestate(case_large, &native),
        cmocka_unit_test_prestate(case_halves, &canonical),
        cmocka_unit_test_prestate(case_outstanding, &canonical),
        cmocka_unit_test_prestate(case_outstanding, &native),
        cmocka_unit_test_prestate(case_groups, &canonical),
        cmocka_unit_test_prestate(case_groups, &native),
        cmocka_unit_test_prestate(case_messages, &canonical),
        cmocka_unit_test_prestate(case_random, &canonical),
        cmocka_unit_test_prestate(case_random, &native),
        cmocka_unit_test_prestate(case_memory, &canonical),
        cmocka_unit_test_prestate(case_idle, &canonical),
        cmocka_unit_test_prestate(case_observed, &canonical),
    };
    if (backend_open(&canonical) != TESS_OK || backend_open(&fast) != TESS_OK ||
        backend_open(&native) != TESS_OK)
        return 1;
    int failed = cmocka_run_group_tests_name("mpi", cases, NULL, NULL);
    if (failed != 0)
        return failed;
    tess_comm_close(native.comm);
    tess_comm_close(fast.comm);
    tess_comm_close(canonical.comm);
    return 0;
}
