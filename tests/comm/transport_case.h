/* Ranks with a transport over sockets, each in a process of its own which the harness watches. */
#ifndef TESSERA_TESTS_COMM_TRANSPORT_CASE_H
#define TESSERA_TESTS_COMM_TRANSPORT_CASE_H

#include "comm/boot/boot.h"
#include "comm/cases.h"
#include "comm/net/net.h"
#include "harness/awake.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT_S 20.0

static inline enum tess_status transport_open(struct tess_comm *comm, double timeout_s,
                                              struct tess_transport **transport_out)
{
    struct tess_boot *boot;
    enum tess_status status = tess_boot_over(comm, LIMIT_S, &boot);
    if (status != TESS_OK)
        return status;
    status = tess_transport_tcp_open(boot, timeout_s, transport_out);
    tess_boot_close(boot);
    /* What a rank does next must not meet others that still wait for their neighbours. */
    return status == TESS_OK ? tess_comm_barrier(comm) : status;
}

/* Wait until all requests are done. */
static inline enum tess_status transport_all(struct tess_transport *transport,
                                             const uint32_t *request, int count)
{
    const double limit_s = awake_s() + LIMIT_S;
    for (int k = 0; k < count;) {
        bool done;
        enum tess_status status = transport->ops->test(transport, request[k], &done);
        if (status == TESS_OK && !done)
            status = transport->ops->wait(transport, 0.1);
        if (status != TESS_OK)
            return status;
        if (awake_s() > limit_s)
            return TESS_ERR_TIMEOUT;
        k += done ? 1 : 0;
    }
    return TESS_OK;
}

/* Wait until something is wrong. */
static inline enum tess_status transport_fails(struct tess_transport *transport)
{
    const double limit_s = awake_s() + LIMIT_S;
    while (awake_s() < limit_s) {
        const enum tess_status status = transport->ops->wait(transport, 0.1);
        if (status != TESS_OK)
            return status;
    }
    return TESS_OK;
}

#define CONTAINS(text, words)                                                                      \
    do {                                                                                           \
        if (strstr((text), (words)) == NULL)                                                       \
            return world_fail("line %d: '%s' does not contain '%s'", __LINE__, (text), (words));   \
    } while (0)

static inline int transport_run_arg(int32_t ranks, world_function fn, void *arg, int32_t killed)
{
    struct world_setup setup = {.ranks = ranks, .mode = TESS_RANKS_PROCESSES};
    struct world_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    world_run_setup(&setup, fn, arg, report);
    int failed = report->failed;
    for (int i = 0; i < report->kept; i++)
        failed -= report->failure[i].rank == killed ? 1 : 0;
    if (failed > 0)
        world_print(report);
    free(report);
    return failed;
}

static inline int transport_run(int32_t ranks, world_function fn, int32_t killed)
{
    return transport_run_arg(ranks, fn, NULL, killed);
}

#endif
