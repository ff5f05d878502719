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

#include <string.h>

static struct local_pair *message_pair(const struct local_group *group, int32_t from, int32_t to)
{
    return tess__world_pair(group->rank->world, group->slot, from, to);
}

static const struct local_queue *message_queue(const struct local_group *group, bool send,
                                               int32_t peer)
{
    return send ? &group->send[peer] : &group->receive[peer];
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
    return !pulled || atomic_load(&group->member[peer]->received[group->comm.rank]) > seq;
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
    group->message_count--;
    tess_comm_completed(&group->comm, tess__ticket(sequence, peer, seq));
}

void tess__local_message_report(struct local_group *group, int32_t peer)
{
    struct local_queue *send = &group->send[peer];
    if (send->reported == send->finished)
        return;
    uint64_t received = atomic_load(&group->member[peer]->received[group->comm.rank]);
    for (; send->reported < send->finished; send->reported++) {
        uint64_t seq = send->reported;
        if (send->message[seq % LOCAL_PAIR_RING].way != LOCAL_DIRECT)
            continue;
        if (received <= seq)
            return;
        message_complete(group, TESS__SEND, peer, seq);
    }
}

bool tess__local_message_has_room(const struct local_group *group, bool send, int32_t peer)
{
    if (!send)
        return group->receive[peer].posted - group->receive[peer].finished < LOCAL_PAIR_RING;
    uint64_t received = atomic_load(&group->member[peer]->received[group->comm.rank]);
    return group->send[peer].posted - received < LOCAL_PAIR_RING;
}

static void message_post_send(struct local_group *group, const struct tess_comm_call *call,
                              struct local_message *message, uint64_t seq)
{
    struct local_pair *pair = message_pair(group, group->comm.rank, call->peer);
    struct local_desc *desc = &pair->ring[seq % LOCAL_PAIR_RING];
    desc->source = call->source;
    if (call->device) {
        message->way = LOCAL_DIRECT;
    } else if (message->bytes <= LOCAL_SMALL) {
        message->way = LOCAL_EAGER;
        desc->source = pair->small[seq % LOCAL_PAIR_RING];
        (void)tess__call_copy(NULL, pair->small[seq % LOCAL_PAIR_RING], call->source,
                              message->bytes);
    } else if (tess__world_reaches(group->rank->world, call->source, message->bytes)) {
        message->way = LOCAL_DIRECT;
    } else {
        message->way = LOCAL_CHUNKED;
    }
    desc->source_shared = message->way != LOCAL_CHUNKED;
    desc->key = tess__call_key(call);
    atomic_store(&desc->seq, seq + 1);
    atomic_store(&group->member[group->comm.rank]->sent[call->peer], seq + 1);
    tess__local_ring_one(group, call->peer);
    group->comm.stats.sent_bytes += message->bytes;
}

/* Fill the shared chunks, or empty those of the peer, as far as it allows; true when it is done. */
static bool message_run_chunks(struct local_group *group, bool send, int32_t peer,
                               struct local_message *message, bool *moved_out)
{
    const int32_t rank = group->comm.rank;
    struct local_member *mine = group->member[rank], *theirs = group->member[peer];
    struct local_pair *pair =
        send ? message_pair(group, rank, peer) : message_pair(group, peer, rank);
    _Atomic uint64_t *own = send ? &mine->staged[peer] : &mine->consumed[peer];
    const _Atomic uint64_t *other = send ? &theirs->consumed[rank] : &theirs->staged[rank];
    while (message->offset < message->bytes) {
        const uint64_t k = atomic_load_explicit(own, memory_order_relaxed);
        const uint64_t there = atomic_load(other);
        if (send ? k - there >= 2 : k == there)
            return false;
        const size_t left = message->bytes - message->offset;
        const size_t n = left < LOCAL_PAIR_CHUNK ? left : LOCAL_PAIR_CHUNK;
        if (send)
            memcpy(pair->chunk[k % 2], (const char *)message->call.source + message->offset, n);
        else
            memcpy((char *)message->call.target + message->offset, pair->chunk[k % 2], n);
        message->offset += n;
        atomic_store(own, k + 1);
        tess__local_ring_one(group, peer);
        *moved_out = true;
    }
    return true;
}

/* Advance the sends to one peer, in order. */
static void message_run_sends(struct local_group *group, int32_t peer, bool *moved_out)
{
    struct local_queue *send = &group->send[peer];
    while (send->finished < send->posted) {
        uint64_t seq = send->finished;
        struct local_message *message = &send->message[seq % LOCAL_PAIR_RING];
        if (message->way == LOCAL_CHUNKED && /* else the receiver does the rest */
            !message_run_chunks(group, true, peer, message, moved_out))
            break;
        send->finished++;
        *moved_out = true;
        if (message->way != LOCAL_DIRECT)
            message_complete(group, TESS__SEND, peer, seq);
    }
    tess__local_message_report(group, peer);
}

uint64_t tess__local_message_next(const struct local_group *group,
                                  const struct tess_comm_call *call)
{
    return message_queue(group, call->collective == TESS_COLLECTIVE_SEND, call->peer)->posted;
}

enum tess_status tess__local_message_post(struct local_group *group,
                                          const struct tess_comm_call *call)
{
    bool send = call->collective == TESS_COLLECTIVE_SEND;
    struct local_queue *queue = send ? &group->send[call->peer] : &group->receive[call->peer];
    /* The slot is free, but the end of its last message may not have been reported. */
    bool moved = false;
    if (send && queue->posted - queue->reported >= LOCAL_PAIR_RING)
        message_run_sends(group, call->peer, &moved);
    uint64_t seq = queue->posted;
    if (call->device)
        TESS_TRY(tess__local_device_post_message(group, send, call->peer, seq));
    struct local_message *message = &queue->message[seq % LOCAL_PAIR_RING];
    *message =
        (struct local_message){.call = *call, .bytes = call->count * tess_dtype_bytes(call->dtype)};
    if (send)
        message_post_send(group, call, message, seq);
    queue->posted++;
    group->message_count++;
    return TESS_OK;
}

static enum tess_status message_run_receive(struct local_group *group, int32_t peer, uint64_t seq,
                                            struct local_message *message, bool *moved_out,
                                            bool *done_out)
{
    struct local_pair *pair = message_pair(group, peer, group->comm.rank);
    const struct local_desc *desc = &pair->ring[seq % LOCAL_PAIR_RING];
    *done_out = false;
    if (atomic_load(&desc->seq) != seq + 1)
        return TESS_OK;
    const struct tess__call_key own = tess__call_key(&message->call);
    if (desc->key.count != own.count || desc->key.dtype != own.dtype || desc->key.way != own.way) {
        const struct tess__call_end send = {group->world_rank[peer], &desc->key, ""};
        const struct tess__call_end recv = {group->world_rank[group->comm.rank], &own, ""};
        char reason[400];
        tess__message_differs(seq + 1, send, recv, reason, sizeof(reason));
        return tess__local_fail(group, TESS_ERR_COMM, reason);
    }
    if (message->call.device) {
        TESS_TRY(tess__local_device_pull(group, peer, seq, message->call.target, desc->source,
                                         message->bytes));
    } else if (!desc->source_shared) {
        if (!message_run_chunks(group, false, peer, message, moved_out))
            return TESS_OK;
    } else {
        (void)tess__call_copy(NULL, message->call.target, desc->source, message->bytes);
    }
    atomic_store(&group->member[group->comm.rank]->received[peer], seq + 1);
    tess__local_ring_one(group, peer);
    group->comm.stats.received_bytes += message->bytes;
    *done_out = true;
    return TESS_OK;
}

enum tess_status tess__local_message_run(struct local_group *group, bool *moved_out)
{
    for (int32_t peer = 0; peer < group->comm.rank_count; peer++) {
        struct local_queue *receive = &group->receive[peer];
        message_run_sends(group, peer, moved_out);
        while (receive->finished < receive->posted) {
            uint64_t seq = receive->finished;
            bool done;
            TESS_TRY(message_run_receive(group, peer, seq, &receive->message[seq % LOCAL_PAIR_RING],
                                         moved_out, &done));
            if (!done)
                break;
            receive->finished++;
            *moved_out = true;
            message_complete(group, TESS__RECEIVE, peer, seq);
        }
    }
    return TESS_OK;
}
