/*
 * Sends and receives of a group, apart from the collectives. A message is its note and its data;
 * the tag of the data holds a hash of what both sides gave for them, so that data of another size
 * is never taken. Small ones are copied when they are sent, and complete at once.
 */
#include "comm/net/net_group.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

static struct net_pair *message_pair(const struct net_group *group, bool send, int32_t peer)
{
    return send ? group->send[peer] : group->receive[peer];
}

static uint64_t message_ticket(bool send, int32_t peer, uint64_t number)
{
    return tess__ticket(send ? TESS__SEND : TESS__RECEIVE, peer, number);
}

bool tess__net_message_complete(const struct net_group *group, bool send, int32_t peer,
                                uint64_t number)
{
    return number < message_pair(group, send, peer)->completed;
}

struct tess_comm_call tess__net_message_call(const struct net_group *group, bool send, int32_t peer,
                                             uint64_t number)
{
    return message_pair(group, send, peer)->message[number % NET_PAIR_RING].call;
}

bool tess__net_message_has_room(const struct net_group *group, bool send, int32_t peer)
{
    const struct net_pair *pair = message_pair(group, send, peer);

    return pair == NULL || pair->posted - pair->finished < NET_PAIR_RING;
}

static enum tess_status message_open(struct net_group *group, bool send, int32_t peer,
                                     struct net_pair **pair_out)
{
    struct net_pair **pair = send ? &group->send[peer] : &group->receive[peer];

    *pair_out = *pair;
    if (*pair != NULL)
        return TESS_OK;
    *pair = calloc(1, sizeof(**pair) + (send ? NET_PAIR_RING * (size_t)NET_EAGER : 0));
    if (*pair == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for messages with rank %d", (int)group->member[peer]);
    (*pair)->send = send;
    (*pair)->peer = peer;
    SLIST_INSERT_HEAD(&group->pairs, *pair, link);
    *pair_out = *pair;
    return TESS_OK;
}

/* The same on both sides of a message. */
static uint32_t message_hash(const struct net_note *note)
{
    struct net_note common = *note;

    common.key.peer = -1;
    common.key.collective = 0;
    return tess__net_note_hash(&common);
}

enum tess_status tess__net_message_post(struct net_group *group, const struct tess_comm_call *call,
                                        uint64_t *ticket_out)
{
    const bool send = call->collective == TESS_COLLECTIVE_SEND;
    const size_t bytes = call->count * tess_dtype_bytes(call->dtype);
    const int32_t peer = call->peer;
    struct net_pair *pair;

    TESS_TRY(message_open(group, send, peer, &pair));
    const uint64_t number = pair->posted;
    struct net_message *message = &pair->message[number % NET_PAIR_RING];
    *message = (struct net_message){
        .call = *call, .note_request = NET_NO_REQUEST, .data_request = NET_NO_REQUEST};
    tess__net_note_fill(call, number + 1, &message->note);
    const uint32_t note_tag = tess__net_tag(group, NET_MESSAGE_NOTE, 0);
    const uint32_t tag = tess__net_tag(group, NET_MESSAGE, message_hash(&message->note));
    char *data = send ? (char *)call->source : call->target;
    message->compared = send;
    if (send && bytes <= NET_EAGER) {
        message->copy = pair->copy + number % NET_PAIR_RING * NET_EAGER;
        if (bytes > 0)
            memcpy(message->copy, data, bytes);
        data = message->copy;
    }
    pair->posted++;
    group->message_count++;
    *ticket_out = message_ticket(send, peer, number);
    TESS_TRY(tess__net_begin(group, send, peer, note_tag, send ? &message->note : &message->theirs,
                             sizeof(message->note), &message->note_request));
    if (bytes > 0)
        TESS_TRY(tess__net_begin(group, send, peer, tag, data, bytes, &message->data_request));
    group->comm.stats.sent_bytes += send ? bytes : 0;
    return TESS_OK;
}

static enum tess_status message_compare(struct net_group *group, int32_t peer,
                                        struct net_message *message)
{
    const struct net_note *own = &message->note, *theirs = &message->theirs;
    char reason[400];

    message->compared = true;
    if (own->key.count == theirs->key.count && own->key.dtype == theirs->key.dtype &&
        own->number == theirs->number)
        return TESS_OK;
    const struct tess__call_end send = {group->member[peer], &theirs->key, ""};
    const struct tess__call_end recv = {group->member[group->comm.rank], &own->key, ""};
    tess__message_differs(own->number, send, recv, reason, sizeof(reason));
    return tess__net_fail(group, TESS_ERR_COMM, reason);
}

/* Have both parts of it moved? A receive's are compared in between. */
static enum tess_status message_step(struct net_group *group, bool send, int32_t peer,
                                     struct net_message *message, bool *done_out)
{
    bool noted, moved;

    TESS_TRY(tess__net_done(group, &message->note_request, &noted));
    if (noted && !send && !message->compared)
        TESS_TRY(message_compare(group, peer, message));
    TESS_TRY(tess__net_done(group, &message->data_request, &moved));
    *done_out = noted && moved;
    return TESS_OK;
}

static void message_complete(struct net_group *group, bool send, int32_t peer,
                             struct net_pair *pair)
{
    tess_comm_completed(&group->comm, message_ticket(send, peer, pair->completed++));
}

static enum tess_status message_run_pair(struct net_group *group, struct net_pair *pair,
                                         bool *moved_out)
{
    const bool send = pair->send;
    const int32_t peer = pair->peer;

    while (pair->finished < pair->posted) {
        struct net_message *message = &pair->message[pair->finished % NET_PAIR_RING];
        bool done;
        TESS_TRY(message_step(group, send, peer, message, &done));
        if (!done)
            break;
        if (!send)
            group->comm.stats.received_bytes +=
                message->call.count * tess_dtype_bytes(message->call.dtype);
        if (pair->completed == pair->finished)
            message_complete(group, send, peer, pair);
        pair->finished++;
        group->message_count--;
        *moved_out = true;
    }
    /* What was copied is complete whatever becomes of the copy. */
    while (send && pair->completed < pair->posted &&
           pair->message[pair->completed % NET_PAIR_RING].copy != NULL) {
        message_complete(group, send, peer, pair);
        *moved_out = true;
    }
    return TESS_OK;
}

enum tess_status tess__net_message_run(struct net_group *group, bool *moved_out)
{
    struct net_pair *pair;

    SLIST_FOREACH(pair, &group->pairs, link)
    TESS_TRY(message_run_pair(group, pair, moved_out));
    return TESS_OK;
}
