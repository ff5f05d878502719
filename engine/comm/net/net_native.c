/*
 * Collectives of the transport's own library in the place of ours (transport_native.h): a group of
 * it for each of our groups, one call at a time, after the same notes, so that ranks that call
 * something else are found as ever.
 */
#include "comm/net/net_group.h"
#include "comm/net/transport_native.h"
#include "tessera/check.h"

enum tess_status tess__net_native_open(struct net_group *group)
{
    struct tess_transport *transport = group->rank->transport;
    const struct tess_transport_native *native = transport->ops->native;

    if (native == NULL)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "%s has no collectives of its own", transport->ops->name);
    const enum tess_status status =
        native->group_open(transport, group->member, group->comm.rank_count, &group->native);
    if (status != TESS_OK && transport->reason != NULL && transport->reason[0] != '\0')
        TESS_FAIL(status, "%s", transport->reason);
    return status;
}

void tess__net_native_close(struct net_group *group)
{
    struct tess_transport *transport = group->rank->transport;

    if (group->native >= 0)
        transport->ops->native->group_close(transport, group->native);
    group->native = -1;
}

bool tess__net_native_takes(const struct net_group *group, const struct tess_comm_call *call)
{
    const struct tess_transport *transport = group->rank->transport;

    return group->native >= 0 && transport->ops->native->can(transport, call);
}

/* What the library sends is not known: counted is what no algorithm can do with less of. */
static void native_count(struct net_group *group, const struct tess_comm_call *call)
{
    const uint64_t bytes = call->count * tess_dtype_bytes(call->dtype);
    const uint64_t n = (uint64_t)group->comm.rank_count;
    const bool root = group->comm.rank == call->peer;
    uint64_t sent = 0, received = 0;

    switch (call->collective) {
    case TESS_COLLECTIVE_ALL_REDUCE:
        sent = received = 2 * bytes * (n - 1) / n;
        break;
    case TESS_COLLECTIVE_BROADCAST:
        sent = root ? bytes : 0;
        received = root ? 0 : bytes;
        break;
    case TESS_COLLECTIVE_REDUCE:
        sent = root ? 0 : bytes;
        received = root ? bytes : 0;
        break;
    default:
        sent = received = bytes * (n - 1);
        break;
    }
    group->comm.stats.sent_bytes += sent;
    group->comm.stats.received_bytes += received;
}

enum tess_status tess__net_native_start(struct net_group *group, const struct tess_comm_call *call)
{
    struct tess_transport *transport = group->rank->transport;

    native_count(group, call);
    return tess__net_lost(group->rank, transport->ops->native->begin(transport, group->native, call,
                                                                     &group->native_request));
}

enum tess_status tess__net_native_run(struct net_group *group, bool *moved_out, bool *done_out)
{
    TESS_TRY(tess__net_done(group, &group->native_request, done_out));
    *moved_out = *moved_out || *done_out;
    return TESS_OK;
}
