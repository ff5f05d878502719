/*
 * Notices of calls that last. A rank whose call has not ended after NET_LATE_S sends the others a
 * notice of it; no rank waits for that, and short calls cost nothing. Once a notice of all of them
 * is here, calls are compared: so that a rank that fails before it calls is the better reason.
 *
 *     A   calls 7   lasts: notices of 7 to B and C                  compares
 *     B             calls 7   has A's notice, sends its own         compares
 *     C                       calls 7, has notices, sends its own   compares
 *
 * A notice may be of a call that ended long ago, or of a group that is not open here yet: a rank
 * that gets one of a call of which it has sent its own, or that has ended here, answers with its
 * own.
 */
#include "base/clock.h"
#include "base/hash.h"
#include "comm/net/net_group.h"
#include "tessera/check.h"

#include <stdio.h>
#include <string.h>

#define LATE_ANSWER (1u << 31) /* in the tag, beside the group's number */

/* Where the notes of the rank `distance` before this one are; -1: it sends none. */
static int32_t late_place(const struct net_group *group, int32_t distance)
{
    const int32_t n = group->comm.rank_count;

    if (distance == 0 || (n > NET_NOTE_ALL && distance != 1 && distance != n - 1))
        return -1;
    return n <= NET_NOTE_ALL || distance == 1 ? distance - 1 : 1;
}

static int32_t late_distance(const struct net_group *group, int32_t peer)
{
    return (group->comm.rank + group->comm.rank_count - peer) % group->comm.rank_count;
}

static int32_t late_places(const struct net_group *group)
{
    return group->comm.rank_count <= NET_NOTE_ALL ? group->comm.rank_count - 1 : 2;
}

static int32_t late_peer(const struct net_group *group, int32_t place)
{
    const int32_t n = group->comm.rank_count;
    const int32_t distance = n <= NET_NOTE_ALL || place == 0 ? place + 1 : n - 1;

    return (group->comm.rank + n - distance) % n;
}

/* ---- from others ----------------------------------------------------------------------------- */

static void late_notice(void *user, int32_t from, uint32_t tag, const void *data, size_t bytes)
{
    struct net_rank *rank = user;
    struct net_late_note note;
    struct net_group *group;
    int32_t peer = 0;

    if (bytes != sizeof(note))
        return;
    memcpy(&note, data, sizeof(note));
    note.site[sizeof(note.site) - 1] = '\0';
    LIST_FOREACH(group, &rank->groups, link)
    if (group->id == (int32_t)(tag & ~LATE_ANSWER) && group->late.birth == note.birth)
        break;
    if (group == NULL)
        return;
    while (peer < group->comm.rank_count && group->member[peer] != from)
        peer++;
    if (peer == group->comm.rank_count)
        return;
    const int32_t place = late_place(group, late_distance(group, peer));
    if (place < 0)
        return;
    if (note.number >= group->late.in[place].number)
        group->late.in[place] = note;
    if ((tag & LATE_ANSWER) == 0) {
        group->late.answer[place] = note.number;
        group->late.asked = true;
    }
}

void tess__net_late_open(struct tess_transport *transport, struct net_rank *rank)
{
    transport->on_notice = late_notice;
    transport->notice_user = rank;
}

/* ---- to others ------------------------------------------------------------------------------- */

static enum tess_status late_notify(struct net_group *group, int32_t place, uint64_t number,
                                    bool answer)
{
    struct tess_transport *transport = group->rank->transport;
    const struct tess_comm_call *call = &group->call[(number - 1) % NET_RING];
    struct net_late_note note = {
        .birth = group->late.birth, .number = number, .key = tess__call_key(call)};
    const uint32_t tag = (uint32_t)group->id | (answer ? LATE_ANSWER : 0);

    note.past = number - 1 == group->current ? group->late.past : 0;
    snprintf(note.site, sizeof(note.site), "%s", call->site);
    return tess__net_lost(group->rank,
                          transport->ops->notify(transport, group->member[late_peer(group, place)],
                                                 tag, &note, sizeof(note)));
}

enum tess_status tess__net_late_answer(struct net_group *group)
{
    struct net_late *late = &group->late;

    late->asked = false;
    for (int32_t place = 0; place < late_places(group); place++) {
        const uint64_t number = late->answer[place];
        late->answer[place] = 0;
        if (number > 0 && number + NET_RING > group->posted &&
            (number <= group->current || (number == group->current + 1 && late->notified)))
            TESS_TRY(late_notify(group, place, number, true));
    }
    return TESS_OK;
}

/* ---- the call that is run -------------------------------------------------------------------- */

bool tess__net_late_waits(const struct net_group *group, uint64_t number)
{
    for (int32_t place = 0; place < late_places(group); place++)
        if (group->late.in[place].number == number)
            return true;
    return false;
}

bool tess__net_late_silent(const struct net_group *group, int32_t peer)
{
    const int32_t place = late_place(group, late_distance(group, peer));

    return group->rank->transport->ops->notify == NULL ||
           (place >= 0 && group->late.in[place].number <= group->current);
}

/* The notice of a rank beside this one's call. */
static enum tess_status late_compare(struct net_group *group, int32_t place)
{
    const struct net_late_note *theirs = &group->late.in[place];
    const struct tess_comm_call *call = &group->call[group->current % NET_RING];
    const struct tess__call_key own = tess__call_key(call);
    const int32_t rank = group->member[group->comm.rank];
    const int32_t peer = group->member[late_peer(group, place)];
    char reason[600];

    if (theirs->number != group->current + 1)
        return TESS_OK; /* it goes on already: that ended with this rank's part */
    if (memcmp(&own, &theirs->key, sizeof(own)) != 0)
        tess__call_differs(theirs->number, (struct tess__call_end){rank, &own, call->site},
                           (struct tess__call_end){peer, &theirs->key, theirs->site}, reason,
                           sizeof(reason));
    else if (theirs->past != 0 && theirs->past != group->late.past)
        snprintf(reason, sizeof(reason),
                 "calls of the group before its call %llu differ between ranks %d and %d; every "
                 "rank must make the same calls in the same order",
                 (unsigned long long)theirs->number, (int)rank, (int)peer);
    else
        return TESS_OK;
    return tess__net_fail(group, TESS_ERR_COMM, reason);
}

enum tess_status tess__net_late_run(struct net_group *group)
{
    struct net_late *late = &group->late;
    const uint64_t number = group->current + 1;

    if (group->rank->transport->ops->notify == NULL || late->compared)
        return TESS_OK;
    const double now_s = late->notified ? 0 : tess_clock_s();
    late->since_s = late->since_s > 0 ? late->since_s : now_s;
    if (!late->notified && now_s - late->since_s < NET_LATE_S &&
        !tess__net_late_waits(group, number))
        return TESS_OK;
    for (int32_t place = 0; place < late_places(group) && !late->notified; place++)
        TESS_TRY(late_notify(group, place, number, false));
    late->notified = true;
    for (int32_t place = 0; place < late_places(group); place++)
        if (late->in[place].number < number)
            return TESS_OK;
    late->compared = true;
    for (int32_t place = 0; place < late_places(group); place++)
        TESS_TRY(late_compare(group, place));
    return TESS_OK;
}

void tess__net_late_next(struct net_group *group)
{
    const struct tess__call_key key = tess__call_key(&group->call[group->current % NET_RING]);

    group->late.past = tess_hash_mix(group->late.past + tess_hash_bytes(&key, sizeof(key)));
    group->late.since_s = 0;
    group->late.notified = group->late.compared = false;
}
