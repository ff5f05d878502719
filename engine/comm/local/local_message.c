/*
 * Sends and receives of a group. Each ordered pair of ranks has its own ring of descriptors, apart
 * from the collectives, so that no pattern of crossing messages can block:
 *
 *   eager     small: copied by the sender when it is posted
 *   direct    the source can be reached: the receiver pulls; from device memory by a queue of the
 *             device (local_device.c)
 *   chunked   private: through two shared chunks, the sender fills, the receiver empties
 */
#include "comm/local/shared.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

static const struct local_queue *message_queue(const struct local_group *group, bool send,
                                               int32_t peer)
{
    const struct local_peer *other = group->other[peer].peer;
    return send ? &other->send : &other->receive;
}

bool tess__local_message_complete(const struct local_group *group, bool send, int32_t peer,
                                  uint64_t seq)
{
    const struct local_queue *queue = message_queue(group, send, peer);
    if (seq >= queue->finished)
        return false;
    if (!send || queue->posted - seq > LOCAL_PAIR_RING)
        return true;
    bool pulled = queue->message[seq % LOCAL_PAIR_RING].way == LOCAL_DIRECT;
    return !pulled || atomic_load(&group->other[peer].peer->out->received) > seq;
}

struct tess_comm_call tess__local_message_call(const struct local_group *group, bool send,
                                               int32_t peer, uint64_t seq)
{
    const struct local_queue *queue = message_queue(group, send, peer);
    return queue->message[seq % LOCAL_PAIR_RING].call;
}

static void message_complete(struct local_group *group, enum tess__sequence sequence, int32_t peer,
                             uint64_t seq)
{
    tess_comm_completed(&group->comm, tess__ticket(sequence, peer, seq));
}

void tess__local_message_report(struct local_group *group, int32_t member)
{
    struct local_peer *peer = group->other[member].peer;
    struct local_queue *send = &peer->send;
    if (send->reported == send->finished)
        return;
    uint64_t received = atomic_load(&peer->out->received);
    for (; send->reported < send->finished; send->reported++) {
        uint64_t seq = send->reported;
        if (send->message[seq % LOCAL_PAIR_RING].way != LOCAL_DIRECT)
            continue;
        if (received <= seq)
            return;
        message_complete(group, TESS__SEND, member, seq);
    }
}

bool tess__local_message_has_room(const struct local_group *group, bool send, int32_t member)
{
    const struct local_peer *peer = group->other[member].peer;
    if (peer == NULL)
        return true;
    if (!send)
        return peer->receive.posted - peer->receive.finished < LOCAL_PAIR_RING;
    return peer->out == NULL ||
           peer->send.posted - atomic_load(&peer->out->received) < LOCAL_PAIR_RING;
}

enum tess_status tess__local_message_meet(struct local_group *group, bool send, int32_t member)
{
    struct local_other *other = &group->other[member];
    if (other->peer == NULL)
        other->peer = calloc(1, sizeof(*other->peer));
    if (other->peer == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the messages with a rank");
    other->peer->member = member;
    return send && other->peer->out == NULL
               ? tess__local_pipe_take(group, member, &other->peer->out)
               : TESS_OK;
}

void tess__local_message_close(struct local_group *group)
{
    for (int32_t r = 0; r < group->comm.rank_count; r++)
        free(group->other[r].peer);
}

static void message_post_send(struct local_group *group, const struct tess_comm_call *call,
                              struct local_message *message, uint64_t seq)
{
    struct local_pipe *pipe = group->other[call->peer].peer->out;
    struct local_desc *desc = &pipe->ring[seq % LOCAL_PAIR_RING];
    desc->source = call->source;
    if (call->device) {
        message->way = LOCAL_DIRECT;
    } else if (message->bytes <= LOCAL_SMALL) {
        message->way = LOCAL_EAGER;
        desc->source = pipe->small[seq % LOCAL_PAIR_RING];
        (void)tess__call_copy(NULL, pipe->small[seq % LOCAL_PAIR_RING], call->source,
                              message->bytes);
    } else if (tess__world_reaches(group->rank->world, call->source, message->bytes)) {
        message->way = LOCAL_DIRECT;
    } else {
        message->way = LOCAL_CHUNKED;
    }
    desc->source_shared = message->way != LOCAL_CHUNKED;
    desc->key = tess__call_key(call);
    atomic_store(&desc->seq, seq + 1);
    tess__local_ring_one(group, call->peer);
    group->comm.stats.sent_bytes += message->bytes;
}

/* Fill the shared chunks, or empty those of the peer, as far as it allows; true when it is done. */
static bool message_run_chunks(struct local_group *group, bool send, struct local_peer *peer,
                               struct local_message *message, bool *moved_out)
{
    struct local_pipe *pipe = send ? peer->out : peer->in;
    _Atomic uint64_t *own = send ? &pipe->staged : &pipe->consumed;
    const _Atomic uint64_t *other = send ? &pipe->consumed : &pipe->staged;
    while (message->offset < message->bytes) {
        const uint64_t k = atomic_load_explicit(own, memory_order_relaxed);
        const uint64_t there = atomic_load(other);
        if (send ? k - there >= 2 : k == there)
            return false;
        const size_t left = message->bytes - message->offset;
        const size_t n = left < LOCAL_PAIR_CHUNK ? left : LOCAL_PAIR_CHUNK;
        if (send)
            memcpy(pipe->chunk[k % 2], (const char *)message->call.source + message->offset, n);
        else
            memcpy((char *)message->call.target + message->offset, pipe->chunk[k % 2], n);
        message->offset += n;
        atomic_store(own, k + 1);
        tess__local_ring_one(group, peer->member);
        *moved_out = true;
    }
    return true;
}

/* Advance the sends to one peer, in order. */
static void message_run_sends(struct local_group *group, struct local_peer *peer, bool *moved_out)
{
    struct local_queue *send = &peer->send;
    while (send->finished < send->posted) {
        uint64_t seq = send->finished;
        struct local_message *message = &send->message[seq % LOCAL_PAIR_RING];
        if (message->way == LOCAL_CHUNKED && /* else the receiver does the rest */
            !message_run_chunks(group, true, peer, message, moved_out))
            break;
        send->finished++;
        *moved_out = true;
        if (message->way != LOCAL_DIRECT)
            message_complete(group, TESS__SEND, peer->member, seq);
    }
    tess__local_message_report(group, peer->member);
}

uint64_t tess__local_message_next(const struct local_group *group,
                                  const struct tess_comm_call *call)
{
    const bool send = call->collective == TESS_COLLECTIVE_SEND;
    return group->other[call->peer].peer != NULL ? message_queue(group, send, call->peer)->posted
                                                 : 0;
}

enum tess_status tess__local_message_post(struct local_group *group,
                                          const struct tess_comm_call *call)
{
    bool send = call->collective == TESS_COLLECTIVE_SEND;
    TESS_TRY(tess__local_message_meet(group, send, call->peer));
    struct local_peer *peer = group->other[call->peer].peer;
    struct local_queue *queue = send ? &peer->send : &peer->receive;
    /* The slot is free, but the end of its last message may not have been reported. */
    bool moved = false;
    if (send && queue->posted - queue->reported >= LOCAL_PAIR_RING)
        message_run_sends(group, peer, &moved);
    uint64_t seq = queue->posted;
    if (call->device)
        TESS_TRY(tess__local_device_post_message(group, send, call->peer, seq));
    struct local_message *message = &queue->message[seq % LOCAL_PAIR_RING];
    *message =
        (struct local_message){.call = *call, .bytes = call->count * tess_dtype_bytes(call->dtype)};
    if (send)
        message_post_send(group, call, message, seq);
    queue->posted++;
    if (!peer->active)
        LIST_INSERT_HEAD(&group->peers, peer, link);
    peer->active = true;
    return TESS_OK;
}

static enum tess_status message_run_receive(struct local_group *group, struct local_peer *peer,
                                            uint64_t seq, bool *moved_out, bool *done_out)
{
    struct local_message *message = &peer->receive.message[seq % LOCAL_PAIR_RING];
    *done_out = false;
    if (peer->in == NULL)
        peer->in = tess__local_pipe_from(group, peer->member);
    if (peer->in == NULL)
        return TESS_OK;
    const struct local_desc *desc = &peer->in->ring[seq % LOCAL_PAIR_RING];
    if (atomic_load(&desc->seq) != seq + 1)
        return TESS_OK;
    const struct tess__call_key own = tess__call_key(&message->call);
    if (desc->key.count != own.count || desc->key.dtype != own.dtype || desc->key.way != own.way) {
        const struct tess__call_end send = {group->world_rank[peer->member], &desc->key, ""};
        const struct tess__call_end recv = {group->world_rank[group->comm.rank], &own, ""};
        char reason[400];
        tess__message_differs(seq + 1, send, recv, reason, sizeof(reason));
        return tess__local_fail(group, TESS_ERR_COMM, reason);
    }
    if (message->call.device) {
        TESS_TRY(tess__local_device_pull(group, peer->member, seq, message->call.target,
                                         desc->source, message->bytes));
    } else if (!desc->source_shared) {
        if (!message_run_chunks(group, false, peer, message, moved_out))
            return TESS_OK;
    } else {
        (void)tess__call_copy(NULL, message->call.target, desc->source, message->bytes);
    }
    atomic_store(&peer->in->received, seq + 1);
    tess__local_ring_one(group, peer->member);
    group->comm.stats.received_bytes += message->bytes;
    *done_out = true;
    return TESS_OK;
}

static enum tess_status message_run_receives(struct local_group *group, struct local_peer *peer,
                                             bool *moved_out)
{
    struct local_queue *receive = &peer->receive;
    while (receive->finished < receive->posted) {
        const uint64_t seq = receive->finished;
        bool done;
        TESS_TRY(message_run_receive(group, peer, seq, moved_out, &done));
        if (!done)
            return TESS_OK;
        receive->finished++;
        *moved_out = true;
        message_complete(group, TESS__RECEIVE, peer->member, seq);
    }
    return TESS_OK;
}

enum tess_status tess__local_message_run(struct local_group *group, bool *moved_out)
{
    for (struct local_peer *peer = LIST_FIRST(&group->peers), *next; peer != NULL; peer = next) {
        next = LIST_NEXT(peer, link);
        message_run_sends(group, peer, moved_out);
        TESS_TRY(message_run_receives(group, peer, moved_out));
        peer->active = peer->send.reported < peer->send.posted ||
                       peer->receive.finished < peer->receive.posted;
        if (!peer->active)
            LIST_REMOVE(peer, link);
    }
    return TESS_OK;
}
