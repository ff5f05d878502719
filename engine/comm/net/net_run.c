/*
 * Collectives of a group from being posted to being complete, one after the other: their notes, the
 * comparison of what ranks have called, those that are run from the notes alone, and those of the
 * transport's library (transport_native.h). How chunks of large ones move is in net_job.c.
 */
#include "comm/net/net_group.h"
#include "comm/net/transport_native.h"

#include "base/hash.h"
#include "tessera/check.h"

#include <string.h>

/* ---- notes ----------------------------------------------------------------------------------- */

static bool run_is_inline(const struct net_group *group, const struct tess_comm_call *call)
{
    const bool notifies = group->rank->transport->ops->notify != NULL;

    return group->comm.rank_count <= (notifies ? NET_INLINE_FEW : NET_NOTE_ALL) &&
           tess__call_source_bytes(&group->comm, call) <= NET_INLINE;
}

/* Do notes of the call go out before it? */
static bool run_is_noted(const struct net_group *group, const struct tess_comm_call *call)
{
    return run_is_inline(group, call) || group->rank->transport->ops->notify == NULL ||
           call->collective == TESS_COLLECTIVE_BROADCAST ||
           call->collective == TESS_COLLECTIVE_REDUCE;
}

/* From how many ranks before it does a rank of the group get the note of a call? */
static int32_t run_noted(const struct net_group *group)
{
    return group->comm.rank_count <= NET_NOTE_ALL ? group->comm.rank_count - 1 : 1;
}

/* The rank `distance` before this one. */
static int32_t run_before(const struct net_group *group, int32_t distance)
{
    return (group->comm.rank + group->comm.rank_count - distance) % group->comm.rank_count;
}

static struct net_slot *run_slot(struct net_group *group, uint64_t t)
{
    return &group->slot[t % NET_AHEAD];
}

static enum tess_status run_sent(struct net_group *group, struct net_slot *slot, bool *sent_out)
{
    *sent_out = true;
    for (int32_t d = 0; d < run_noted(group) && *sent_out; d++)
        TESS_TRY(tess__net_done(group, &slot->send[d], sent_out));
    return TESS_OK;
}

static enum tess_status run_note(struct net_group *group, uint64_t t)
{
    const struct tess_comm_call *call = &group->call[t % NET_RING];
    struct net_slot *slot = run_slot(group, t);
    const int32_t n = group->comm.rank_count, rank = group->comm.rank;
    const bool gives = call->collective != TESS_COLLECTIVE_BROADCAST || call->peer == rank;
    const size_t bytes = tess__call_source_bytes(&group->comm, call);
    const uint32_t tag = tess__net_tag(group, NET_NOTE, 0);

    tess__net_note_fill(call, t + 1, &slot->out);
    if (gives && bytes > 0 && run_is_inline(group, call))
        memcpy(slot->out.data, call->source, bytes);
    slot->missing = 0;
    slot->compared = !run_is_noted(group, call);
    if (slot->compared)
        return TESS_OK;
    /* Each begins with another peer, so that not all of them send to the same one. */
    for (int32_t d = 0; d < run_noted(group); d++) {
        TESS_TRY(tess__net_begin(group, false, run_before(group, d + 1), tag, &slot->in[d],
                                 sizeof(slot->in[d]), &slot->recv[d]));
        TESS_TRY(tess__net_begin(group, true, (rank + d + 1) % n, tag, &slot->out,
                                 sizeof(slot->out), &slot->send[d]));
        slot->missing++;
    }
    return TESS_OK;
}

/* `ask`: look whether places are free again; else only those that never were in use are. */
static enum tess_status run_note_ahead(struct net_group *group, bool ask)
{
    while (group->noted < group->posted && group->noted < group->current + NET_AHEAD) {
        bool sent = group->noted < NET_AHEAD;
        if (ask)
            TESS_TRY(run_sent(group, run_slot(group, group->noted), &sent));
        if (!sent)
            return TESS_OK;
        TESS_TRY(run_note(group, group->noted));
        group->noted++;
    }
    return TESS_OK;
}

enum tess_status tess__net_notes_gone(struct net_group *group, bool *gone_out)
{
    *gone_out = true;
    for (int s = 0; s < NET_AHEAD && *gone_out; s++)
        TESS_TRY(run_sent(group, &group->slot[s], gone_out));
    return TESS_OK;
}

/* ---- comparison ------------------------------------------------------------------------------ */

static enum tess_status run_compare(struct net_group *group, struct net_slot *slot,
                                    int32_t distance)
{
    const struct net_note *own = &slot->out;
    struct net_note *theirs = &slot->in[distance - 1];
    char reason[600];

    if (memcmp(own, theirs, offsetof(struct net_note, site)) == 0)
        return TESS_OK;
    theirs->site[sizeof(theirs->site) - 1] = '\0';
    tess__call_differs(
        own->number, (struct tess__call_end){group->member[group->comm.rank], &own->key, own->site},
        (struct tess__call_end){group->member[run_before(group, distance)], &theirs->key,
                                theirs->site},
        reason, sizeof(reason));
    return tess__net_fail(group, TESS_ERR_COMM, reason);
}

static enum tess_status run_read_notes(struct net_group *group, struct net_slot *slot,
                                       bool *moved_out)
{
    const int32_t noted = run_noted(group);

    for (int32_t d = 0; d < noted && slot->missing > 0; d++) {
        bool done;
        if (slot->recv[d] == NET_NO_REQUEST)
            continue;
        TESS_TRY(tess__net_done(group, &slot->recv[d], &done));
        slot->missing -= done ? 1 : 0;
        *moved_out = *moved_out || done;
    }
    /* Only when all have called: one that fails before it calls is the better reason. */
    for (int32_t d = 1; d <= noted && slot->missing == 0 && !slot->compared; d++)
        TESS_TRY(run_compare(group, slot, d));
    slot->compared = slot->missing == 0;
    return TESS_OK;
}

bool tess__net_is_missing(void *context, uint64_t number, int32_t peer, bool *called_out)
{
    const struct net_group *group = context;
    const int32_t n = group->comm.rank_count, rank = group->comm.rank;
    /* Calls run in order: what keeps the one that is run keeps those after it. */
    const struct net_slot *slot = &group->slot[group->current % NET_AHEAD];
    const int32_t before = (rank + n - peer) % n, behind = (peer + n - rank) % n;
    const int32_t noted = run_noted(group);

    *called_out = false;
    if (peer == rank || number - 1 < group->current)
        return false;
    if (group->noted <= group->current)
        return true;
    if (tess__net_late_silent(group, peer) &&
        (!run_is_noted(group, &group->call[group->current % NET_RING]) ||
         (before <= noted && slot->recv[before - 1] != NET_NO_REQUEST)))
        return true;
    *called_out = true;
    /* The library does not report which rank it waits for. */
    if (group->started && group->native_runs)
        return true;
    if (group->started && group->row_done < group->row_count)
        return tess__net_jobs_want(group, peer);
    return behind <= noted && slot->send[behind - 1] != NET_NO_REQUEST;
}

/* ---- calls that fit into their notes --------------------------------------------------------- */

static void run_inline(struct net_group *group, const struct tess_comm_call *call,
                       const struct net_slot *slot)
{
    const void *source[NET_NOTE_ALL];

    source[group->comm.rank] = slot->out.data;
    for (int32_t d = 1; d <= run_noted(group); d++)
        source[run_before(group, d)] = slot->in[d - 1].data;
    (void)tess__call_take(&group->comm, call, NULL, source, call->count, 0,
                          call->count); /* host memory: cannot fail */
    tess__call_count(&group->comm, call, tess__call_source_bytes(&group->comm, call));
}

/* ---- the transport's own collectives --------------------------------------------------------- */

/* A group of the library for each of ours, one call at a time, after the same notes, so that ranks
 * that call something else are found as ever. */
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

static bool native_takes(const struct net_group *group, const struct tess_comm_call *call)
{
    const struct tess_transport *transport = group->rank->transport;

    return group->native >= 0 && transport->ops->native->can(transport, call);
}

/* Counted is what no algorithm can do with less of: what a library sends is not known, and by the
 * shared lanes of small arrays ranks send different amounts. */
static void run_count(struct net_group *group, const struct tess_comm_call *call)
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

static enum tess_status native_start(struct net_group *group, const struct tess_comm_call *call)
{
    struct tess_transport *transport = group->rank->transport;

    run_count(group, call);
    group->rank->requests++;
    return tess__net_lost(group->rank, transport->ops->native->begin(transport, group->native, call,
                                                                     &group->native_request));
}

static enum tess_status native_run(struct net_group *group, bool *moved_out, bool *done_out)
{
    TESS_TRY(tess__net_done(group, &group->native_request, done_out));
    *moved_out = *moved_out || *done_out;
    return TESS_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

/* A barrier of many ranks is run as the sum of a byte: nobody has it before all have given. */
static struct tess_comm_call run_call(struct net_group *group, const struct tess_comm_call *call)
{
    struct tess_comm_call run = *call;

    if (call->collective == TESS_COLLECTIVE_BARRIER) {
        run.collective = TESS_COLLECTIVE_ALL_REDUCE;
        run.order = TESS_ORDER_CANONICAL;
        run.dtype = TESS_U8;
        run.reduce = TESS_REDUCE_MAX;
        run.source = run.target = &group->nothing;
        run.count = 1;
    }
    return run;
}

static enum tess_status run_start(struct net_group *group, const struct tess_comm_call *call)
{
    group->hash = (uint32_t)tess_hash_mix(
        group->late.past ^ tess__net_note_hash(&run_slot(group, group->current)->out));
    group->native_runs = native_takes(group, call);
    group->run = run_call(group, call);
    TESS_TRY(group->native_runs ? native_start(group, call) : tess__net_jobs_start(group));
    if (!group->native_runs && group->plan.width > 1 && call->collective != TESS_COLLECTIVE_BARRIER)
        run_count(group, call);
    group->started = true;
    return TESS_OK;
}

enum tess_status tess__net_post(struct net_group *group, const struct tess_comm_call *call)
{
    const uint64_t t = group->posted++;

    group->call[t % NET_RING] = *call;
    TESS_TRY(run_note_ahead(group, false));
    if (group->current != t || group->noted <= t || run_is_inline(group, call))
        return TESS_OK;
    TESS_TRY(run_start(group, call));
    if (!group->native_runs)
        TESS_TRY(tess__net_jobs_begin(group));
    return tess__net_late_waits(group, t + 1) ? tess__net_late_run(group) : TESS_OK;
}

enum tess_status tess__net_run(struct net_group *group, bool *moved_out)
{
    while (group->current < group->posted) {
        const uint64_t t = group->current;
        const struct tess_comm_call *call = &group->call[t % NET_RING];
        struct net_slot *slot = run_slot(group, t);
        bool done = true;

        TESS_TRY(run_note_ahead(group, true));
        if (group->noted <= t)
            return TESS_OK;
        TESS_TRY(run_read_notes(group, slot, moved_out));
        if (!run_is_inline(group, call)) {
            if (!group->started)
                TESS_TRY(run_start(group, call));
            TESS_TRY(group->native_runs ? native_run(group, moved_out, &done)
                                        : tess__net_jobs_run(group, moved_out, &done));
        }
        /* Others cannot end before they have this rank's note, and nothing would send it while the
         * rank computes. All of them are in the call, so that this takes no longer; of a broadcast
         * they need not be. */
        if (done && slot->missing == 0 && call->collective != TESS_COLLECTIVE_BROADCAST)
            TESS_TRY(run_sent(group, slot, &done));
        if (!done || slot->missing > 0)
            return tess__net_late_run(group);
        if (run_is_inline(group, call))
            run_inline(group, call, slot);
        group->started = false;
        tess__net_late_next(group);
        group->current = t + 1;
        *moved_out = true;
        tess_comm_completed(&group->comm, tess__ticket(TESS__COLLECTIVE, 0, t));
    }
    return TESS_OK;
}
