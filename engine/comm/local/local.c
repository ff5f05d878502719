/*
 * The `local` communicator: ranks are threads of one process or processes of one host. Opening,
 * splitting, closing and posting; there is no progress thread, a call advances when a rank polls or
 * waits. How calls are run is in local_run.c and local_message.c.
 */
#include "comm/local/shared.h"
#include "tessera/check.h"
#include "tessera/communicator.h"
#include "tessera/version.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct local_group *local_of(struct tess_comm *comm)
{
    return (struct local_group *)comm;
}

/* Free what all ranks have run. */
static void local_retire(struct local_group *group)
{
    group->retired = tess__local_run_by_all(group);
    group->stage_free = group->retired < group->posted
                            ? group->stage_begin[group->retired % LOCAL_RING]
                            : group->stage_end;
    /* Before the places of those calls are used again. */
    tess__local_report(group);
}

/* Where the next `bytes` would be staged: not across the end of the ring. */
static uint64_t local_stage_at(const struct local_group *group, size_t bytes)
{
    size_t at = group->stage_end % LOCAL_STAGE_BYTES;
    return at + bytes > LOCAL_STAGE_BYTES ? group->stage_end + LOCAL_STAGE_BYTES - at
                                          : group->stage_end;
}

struct local_room {
    struct local_group *group;
    uint64_t calls; /* that may be outstanding */
    size_t bytes;
};

static bool local_fits(const struct local_room *room)
{
    const struct local_group *group = room->group;
    return group->posted - group->retired < room->calls &&
           local_stage_at(group, room->bytes) + room->bytes - group->stage_free <=
               LOCAL_STAGE_BYTES;
}

static bool local_has_room(void *context)
{
    struct local_room *room = context;
    local_retire(room->group);
    return local_fits(room);
}

/* Wait until a descriptor, its fences and `bytes` of staging are free. */
static enum tess_status local_make_room(struct local_group *group, bool device, size_t bytes)
{
    struct local_room room = {group, device ? LOCAL_FENCES : LOCAL_RING, bytes};
    if (local_fits(&room) || local_has_room(&room))
        return TESS_OK;
    group->rank->wants_room = true;
    enum tess_status status =
        tess__wait_for(&group->waiting, local_has_room, &room,
                       &group->call[group->retired % LOCAL_RING], group->retired + 1);
    group->rank->wants_room = false;
    return status;
}

static enum tess_status local_post(struct local_group *group, const struct tess_comm_call *call,
                                   uint64_t *ticket_out)
{
    struct tess_world *world = group->rank->world;
    int32_t rank = group->comm.rank;
    bool gives = call->collective != TESS_COLLECTIVE_BROADCAST || call->peer == rank;
    size_t source_bytes = tess__call_source_bytes(&group->comm, call);
    size_t staged = gives && !call->device && source_bytes <= LOCAL_SMALL
                        ? (source_bytes + LOCAL_LINE - 1) / LOCAL_LINE * LOCAL_LINE
                        : 0;
    TESS_TRY(local_make_room(group, call->device, staged));

    uint64_t t = group->posted;
    if (call->device)
        TESS_TRY(tess__local_device_post(group, t));
    struct local_desc *desc = &group->member[rank]->ring[t % LOCAL_RING];
    group->stage_begin[t % LOCAL_RING] = group->stage_end;
    desc->source = call->source;
    desc->source_shared = staged > 0 || tess__world_reaches(world, call->source, source_bytes);
    if (staged > 0) {
        uint64_t at = local_stage_at(group, staged);
        unsigned char *place = group->stage[rank]->small + at % LOCAL_STAGE_BYTES;
        memcpy(place, call->source, source_bytes);
        desc->source = place;
        group->stage_end = at + staged;
    }
    desc->target = call->target;
    desc->target_shared =
        tess__world_reaches(world, call->target, call->count * tess_dtype_bytes(call->dtype));
    desc->key = tess__call_key(call);
    group->call[t % LOCAL_RING] = *call;
    group->posted = t + 1;
    atomic_store(&desc->seq, t + 1);
    /* Only the rank that completes the set wakes the others. */
    bool sole = call->collective == TESS_COLLECTIVE_BROADCAST;
    if (sole ? call->peer == rank : tess__local_is_posted(group, t))
        tess__local_ring(group, WORLD_SLEEPS);
    *ticket_out = tess__ticket(TESS__COLLECTIVE, 0, t);
    return TESS_OK;
}

struct local_awaited {
    struct local_group *group;
    struct tess__ticket ticket;
};

static bool local_message_has_room(void *context)
{
    const struct local_awaited *room = context;
    return tess__local_message_has_room(room->group, room->ticket.sequence == TESS__SEND,
                                        room->ticket.peer);
}

static enum tess_status local_post_message(struct local_group *group,
                                           const struct tess_comm_call *call, uint64_t *ticket_out)
{
    const bool send = call->collective == TESS_COLLECTIVE_SEND;
    struct local_awaited room = {
        group,
        {send ? TESS__SEND : TESS__RECEIVE, call->peer, tess__local_message_next(group, call)}};
    if (!local_message_has_room(&room))
        TESS_TRY(tess__wait_for(&group->waiting, local_message_has_room, &room, call,
                                room.ticket.number + 1));
    *ticket_out = tess__ticket(room.ticket.sequence, call->peer, room.ticket.number);
    return tess__local_message_post(group, call);
}

static enum tess_status local_call(struct tess_comm *comm, const struct tess_comm_call *call,
                                   uint64_t *ticket_out)
{
    struct local_group *group = local_of(comm);
    TESS_TRY(tess__local_check(group->rank));
    if (call->device)
        TESS_TRY(tess__local_device_check(group, call));
    TESS_TRY(tess__call_is_message(call) ? local_post_message(group, call, ticket_out)
                                         : local_post(group, call, ticket_out));
    tess_comm_called(comm, call, *ticket_out);
    if (!call->device)
        return TESS_OK;
    /* The last rank to post need not poll for the device to begin. */
    bool moved = false;
    return tess__local_advance(group, &moved);
}

static bool local_is_complete(void *context)
{
    const struct local_awaited *awaited = context;
    const struct tess__ticket *ticket = &awaited->ticket;
    struct local_group *group = awaited->group;
    if (ticket->sequence != TESS__COLLECTIVE)
        return tess__local_message_complete(group, ticket->sequence == TESS__SEND, ticket->peer,
                                            ticket->number);
    if (ticket->number >= group->next_call)
        return false;
    if (group->posted - ticket->number > LOCAL_RING ||
        !group->waits_for_all[ticket->number % LOCAL_RING])
        return true;
    return tess__local_run_by_all(group) > ticket->number;
}

/* What the kernels are given from now on comes after the call, where that was on device memory or
 * its place is taken by another one. */
static enum tess_status local_join(struct local_group *group, const struct tess__ticket *ticket)
{
    const uint64_t t = ticket->number;
    if (ticket->sequence != TESS__COLLECTIVE)
        return tess__local_device_join_message(group, ticket->sequence == TESS__SEND, ticket->peer,
                                               t);
    bool forgotten = group->posted - t > LOCAL_RING;
    if (!forgotten && !group->call[t % LOCAL_RING].device)
        return TESS_OK;
    return tess__local_device_join(group, t, forgotten || group->waits_for_all[t % LOCAL_RING]);
}

static enum tess_status local_wait(struct tess_comm *comm, uint64_t number)
{
    struct local_group *group = local_of(comm);
    struct local_awaited awaited = {group, tess__ticket_read(number)};
    const struct tess__ticket *ticket = &awaited.ticket;
    const bool message = ticket->sequence != TESS__COLLECTIVE;
    const struct tess_comm_call call =
        message ? tess__local_message_call(group, ticket->sequence == TESS__SEND, ticket->peer,
                                           ticket->number)
                : group->call[ticket->number % LOCAL_RING];
    TESS_TRY(
        tess__wait_for(&group->waiting, local_is_complete, &awaited, &call, ticket->number + 1));
    if (message)
        tess__local_message_report(group, ticket->peer);
    else
        tess__local_report(group);
    return group->device != NULL ? local_join(group, ticket) : TESS_OK;
}

static enum tess_status local_poll(struct tess_comm *comm)
{
    bool moved = false;
    return tess__local_advance(comm, &moved);
}

static void local_abort(struct tess_comm *comm, const char *reason)
{
    struct local_rank *rank = local_of(comm)->rank;
    tess_world_abort(rank->world, rank->rank, reason);
}

static void local_close(struct tess_comm *comm)
{
    struct local_group *group = local_of(comm);
    struct local_rank *rank = group->rank;
    struct tess_world *world = rank->world;
    LIST_REMOVE(group, link);
    tess__local_release_all(group);
    /* The next user of the slot goes on counting where the last one stopped. */
    uint64_t first = atomic_load(&world->group_first[group->slot]);
    while (first < group->posted &&
           !atomic_compare_exchange_weak(&world->group_first[group->slot], &first, group->posted))
        ;
    if (group->slot > 0)
        atomic_fetch_sub(&world->group_users[group->slot], 1);
    free(group);
    if (LIST_EMPTY(&rank->groups))
        free(rank);
}

static enum tess_status local_split(struct tess_comm *comm, int32_t color, int32_t key,
                                    struct tess_comm **child_out);

static const struct tess_comm_ops local_ops = {
    .call = local_call,
    .wait = local_wait,
    .poll = local_poll,
    .attach = tess__local_attach,
    .meet = tess__local_meet,
    .alloc = tess__local_alloc,
    .release = tess__local_release,
    .split = local_split,
    .abort = local_abort,
    .close = local_close,
};

/* Go on counting where this member's counters stand: they are never set back. */
static void local_count_on(struct local_group *group)
{
    const struct local_member *own = group->member[group->comm.rank];
    uint64_t first = atomic_load(&own->progress) >> 32;
    group->posted = group->next_call = group->retired = group->reported = first;
    for (int32_t r = 0; r < group->comm.rank_count; r++) {
        uint64_t received = atomic_load(&own->received[r]), sent = atomic_load(&own->sent[r]);
        group->receive[r].posted = group->receive[r].finished = received;
        group->send[r].posted = group->send[r].finished = group->send[r].reported = sent;
    }
}

/* Make the counters of a slot agree that another group has used before. Others wait meanwhile. */
static void local_level_counters(struct local_group *group)
{
    struct local_member *own = group->member[group->comm.rank];
    atomic_store(&own->progress, atomic_load(&group->rank->world->group_first[group->slot]) << 32);
    for (int32_t r = 0; r < group->comm.rank_count; r++) {
        /* Messages that were never received are forgotten. */
        atomic_store(&own->received[r], atomic_load(&group->member[r]->sent[group->comm.rank]));
        atomic_store(&own->consumed[r], atomic_load(&group->member[r]->staged[group->comm.rank]));
    }
    local_count_on(group);
}

/* A group over `world_rank` [rank_count], which is this rank at `index`. */
static enum tess_status local_group_open(struct local_rank *rank, int32_t slot, int32_t index,
                                         const int32_t *world_rank, int32_t rank_count,
                                         enum tess_order order, struct local_group **group_out)
{
    struct tess_world *world = rank->world;
    struct local_group *group = calloc(1, sizeof(*group));
    if (group == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a communicator of %d ranks", (int)rank_count);
    group->comm = (struct tess_comm){
        .ops = &local_ops, .rank = index, .rank_count = rank_count, .order = order};
    group->rank = rank;
    group->slot = slot;
    tess__local_wait_open(group);
    for (int32_t r = 0; r < rank_count; r++) {
        group->world_rank[r] = world_rank[r];
        group->member[r] = tess__world_member(world, slot, r);
        group->stage[r] = tess__world_stage(world, slot, r);
    }
    local_count_on(group);
    LIST_INSERT_HEAD(&rank->groups, group, link);
    *group_out = group;
    return TESS_OK;
}

enum tess_status tess_comm_local_open(struct tess_world *world, int32_t rank, enum tess_order order,
                                      double timeout_s, struct tess_comm **comm_out)
{
    struct local_rank *own = calloc(1, sizeof(*own));
    if (own == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the state of rank %d", (int)rank);
    *own = (struct local_rank){.world = world, .rank = rank, .timeout_s = timeout_s};
    atomic_store_explicit(&tess_world_board(world, rank)->pid, (int32_t)getpid(),
                          memory_order_relaxed);
    int32_t all[TESS_WORLD_RANKS_MAX];
    for (int32_t r = 0; r < world->rank_count; r++)
        all[r] = r;
    struct local_group *group;
    enum tess_status status = local_group_open(own, 0, rank, all, world->rank_count, order, &group);
    if (status != TESS_OK) {
        free(own);
        return status;
    }
    *comm_out = &group->comm;
    return TESS_OK;
}

/* Take a free slot for `users` members; -1 when there is none. Slot 0 is the whole world's. */
static int32_t local_take_slot(struct tess_world *world, uint32_t users)
{
    for (int32_t slot = 1; slot < world->group_count; slot++) {
        uint32_t no_user = 0;
        if (atomic_compare_exchange_strong(&world->group_users[slot], &no_user, users))
            return slot;
    }
    return -1;
}

/* *group_out NULL: the rank is alone in its group. */
static enum tess_status local_split_members(struct local_group *parent, int32_t color, int32_t key,
                                            struct local_group **group_out)
{
    struct tess_comm *comm = &parent->comm;
    const struct tess__split own = {color, key};
    struct tess__split split[TESS_WORLD_RANKS_MAX];
    int32_t member[TESS_WORLD_RANKS_MAX], world_rank[TESS_WORLD_RANKS_MAX];
    int32_t slot[TESS_WORLD_RANKS_MAX], index = 0;
    TESS_TRY(tess__call_exchange(comm, &own, sizeof(own), split));
    const int32_t n = tess__split_members(split, comm->rank_count, comm->rank, member, &index);
    for (int32_t i = 0; i < n; i++)
        world_rank[i] = parent->world_rank[member[i]];
    int32_t taken = n > 1 && index == 0 ? local_take_slot(parent->rank->world, (uint32_t)n) : -1;
    TESS_TRY(tess__call_exchange(comm, &taken, sizeof(taken), slot));
    *group_out = NULL;
    if (n == 1)
        return tess_comm_barrier(comm);
    if (slot[member[0]] < 0)
        TESS_FAIL(TESS_ERR_COMM,
                  "no room for another group: %d may be open at a time in a world of %d ranks; use "
                  "a mesh with fewer ranks along its longest axes, or leave --debug out",
                  (int)parent->rank->world->group_count - 1, (int)parent->rank->world->rank_count);
    TESS_TRY(local_group_open(parent->rank, slot[member[0]], index, world_rank, n, comm->order,
                              group_out));
    local_level_counters(*group_out);
    /* No rank may post before all have levelled their counters. */
    enum tess_status status = tess_comm_barrier(comm);
    if (status != TESS_OK)
        local_close(&(*group_out)->comm);
    return status;
}

static enum tess_status local_split(struct tess_comm *comm, int32_t color, int32_t key,
                                    struct tess_comm **child_out)
{
    struct local_group *group;
    TESS_TRY(local_split_members(local_of(comm), color, key, &group));
    if (group == NULL) /* needs no memory of the world */
        return tess_comm_self_open(comm->order, child_out);
    *child_out = &group->comm;
    return TESS_OK;
}

static enum tess_status local_open(const struct tess_comm_request *request,
                                   struct tess_comm **comm_out)
{
    return tess_comm_local_open(request->world, request->rank, request->order, request->timeout_s,
                                comm_out);
}

extern const struct tess_communicator_ops tess_communicator_local;
const struct tess_communicator_ops tess_communicator_local = {
    .abi = TESS_ABI,
    .name = "local",
    .summary = "shared memory of one host; on devices, ranks are threads of one process",
    .host = TESS_COMM_THREADS | TESS_COMM_PROCESSES,
    .device = TESS_COMM_THREADS | TESS_COMM_SHARED_DEVICE,
    .all_reach = true,
    .open = local_open,
};
