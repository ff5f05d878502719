/*
 * What the other files of the communicator stand on: messages with the ranks of a group, the notes
 * of calls, and how a job ends: a rank that finds that the job cannot go on sends the reason to all
 * others.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "comm/net/net_group.h"
#include "tessera/check.h"

#include <stdio.h>
#include <time.h>

/* A launcher on this host finds out within this time how a rank died. Its reason is more useful
 * than that a connection was closed. */
#define LINK_REASON_S 0.3

/* ---- endings --------------------------------------------------------------------------------- */

static bool link_aborted(struct net_rank *rank)
{
    char reason[1024];
    int32_t who;

    if (rank->world == NULL || !tess_world_aborted(rank->world, &who, reason, sizeof(reason)))
        return false;
    rank->status = TESS_ERR_ABORTED;
    if (who < 0)
        (void)tess_fail(TESS_ERR_ABORTED, "stopped by the launcher: %s", reason);
    else
        (void)tess_fail(TESS_ERR_ABORTED, "stopped because rank %d failed: %s", (int)who, reason);
    /* Others may be where this world does not reach. */
    rank->transport->ops->abort(rank->transport, reason);
    return true;
}

enum tess_status tess__net_check(struct net_rank *rank)
{
    if (rank->status == TESS_OK)
        (void)link_aborted(rank);
    return rank->status;
}

enum tess_status tess__net_lost(struct net_rank *rank, enum tess_status status)
{
    const double limit_s = tess_clock_s() + LINK_REASON_S;

    if (status == TESS_OK || rank->status != TESS_OK)
        return rank->status;
    while (rank->world != NULL && tess_clock_s() < limit_s) {
        if (link_aborted(rank))
            return rank->status;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    rank->status = status;
    if (rank->transport->reason != NULL && rank->transport->reason[0] != '\0')
        TESS_FAIL(status, "%s", rank->transport->reason);
    return status;
}

enum tess_status tess__net_fail(void *group, enum tess_status status, const char *reason)
{
    struct net_rank *rank = ((struct net_group *)group)->rank;

    if (rank->world != NULL)
        tess_world_abort(rank->world, rank->transport->rank, reason);
    rank->transport->ops->abort(rank->transport, reason);
    rank->status = TESS_ERR_ABORTED;
    TESS_FAIL(status, "%s", reason);
}

/* ---- messages -------------------------------------------------------------------------------- */

enum tess_status tess__net_begin(struct net_group *group, bool send, int32_t peer, uint32_t tag,
                                 const void *data, size_t bytes, uint32_t *request)
{
    struct tess_transport *transport = group->rank->transport;
    const int32_t to = group->member[peer];
    const enum tess_status status =
        send ? transport->ops->send(transport, to, tag, data, bytes, request)
             : transport->ops->recv(transport, to, tag, (void *)data, bytes, request);

    group->rank->requests += status == TESS_OK ? 1 : 0;
    return tess__net_lost(group->rank, status);
}

enum tess_status tess__net_flush(struct net_rank *rank)
{
    struct tess_transport *transport = rank->transport;

    return transport->ops->flush != NULL ? tess__net_lost(rank, transport->ops->flush(transport))
                                         : TESS_OK;
}

enum tess_status tess__net_done(struct net_group *group, uint32_t *request, bool *done_out)
{
    struct tess_transport *transport = group->rank->transport;

    *done_out = true;
    if (*request == NET_NO_REQUEST)
        return TESS_OK;
    const enum tess_status status = transport->ops->test(transport, *request, done_out);
    if (status != TESS_OK)
        return tess__net_lost(group->rank, status);
    if (*done_out) {
        *request = NET_NO_REQUEST;
        group->rank->requests--;
    }
    return TESS_OK;
}

/* ---- notes ----------------------------------------------------------------------------------- */

void tess__net_note_fill(const struct tess_comm_call *call, uint64_t number, struct net_note *note)
{
    *note = (struct net_note){.number = number, .key = tess__call_key(call)};
    snprintf(note->site, sizeof(note->site), "%s", call->site);
}

/* Of what must be the same everywhere. */
uint32_t tess__net_note_hash(const struct net_note *note)
{
    return (uint32_t)tess_hash_bytes(note, offsetof(struct net_note, site));
}
