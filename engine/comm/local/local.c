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
    const size_t room = group->rank->world->stage_bytes, at = group->stage_end % room;
    return at + bytes > room ? group->stage_end + room - at : group->stage_end;
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
               group->rank->world->stage_bytes;
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
    size_t staged = gives && !call->device && call->share == NULL &&
                            source_bytes <= tess__local_small_bytes(group)
                        ? (source_bytes + LOCAL_LINE - 1) / LOCAL_LINE * LOCAL_LINE
                        : 0;
    TESS_TRY(local_make_room(group, call->device, staged));

    uint64_t t = group->posted;
    if (call->device)
        TESS_TRY(tess__local_device_post(group, t));
    struct local_member *own = tess__local_own(group);
    struct local_desc *desc = &own->ring[t % LOCAL_RING];
    group->stage_begin[t % LOCAL_RING] = group->stage_end;
    desc->source = call->source;
    desc->source_shared = staged > 0 || tess__world_reaches(world, call->source, source_bytes);
    if (staged > 0) {
        uint64_t at = local_stage_at(group, staged);
        unsigned char *place = (unsigned char *)own + world->stage_offset + at % world->stage_bytes;
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
    return tess__local_is_run(group, ticket->number);
}

/* What the kernels are given from now on comes after the call, where that was on device memory or
 * its place is taken by another one. */
static enum tess_status local_follow(struct local_group *group, const struct tess__ticket *ticket)
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
    return group->device != NULL ? local_follow(group, ticket) : TESS_OK;
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
    LIST_REMOVE(group, link);
    tess__local_release_all(group);
    tess__local_message_close(group);
    tess__local_seat_leave(group);
    free(group);
    if (LIST_EMPTY(&rank->groups))
        free(rank);
}

/* What the first message would make. */
static enum tess_status local_meet(struct tess_comm *comm, int32_t from, int32_t to)
{
    struct local_group *group = local_of(comm);
    const int32_t peer = comm->rank == from ? to : from;
    TESS_TRY(tess__local_message_meet(group, comm->rank == from, peer));
    return group->device != NULL ? tess__local_device_meet(group, peer) : TESS_OK;
}

static enum tess_status local_split(struct tess_comm *comm, int32_t color, int32_t key,
                                    struct tess_comm **child_out);

static bool local_reaches(const struct tess_comm *comm, const void *memory, size_t bytes)
{
    const struct local_group *group = (const struct local_group *)comm;
    return !comm->device_memory && tess__world_reaches(group->rank->world, memory, bytes);
}

static const struct tess_comm_ops local_ops = {
    .call = local_call,
    .wait = local_wait,
    .poll = local_poll,
    .attach = tess__local_attach,
    .meet = local_meet,
    .alloc = tess__local_alloc,
    .release = tess__local_release,
    .split = local_split,
    .reaches = local_reaches,
    .abort = local_abort,
    .close = local_close,
};

/* What a rank gives of itself to the group that it is to join. */
struct local_joining {
    int32_t color, key;
    int32_t world_rank, seat; /* seat -1: the rank has none left */
};

static struct local_group *local_group_new(int32_t n)
{
    struct local_group *group;
    const size_t each = sizeof(group->other[0]) + sizeof(*group->source) + sizeof(*group->target) +
                        sizeof(*group->world_rank);
    group = calloc(1, sizeof(*group) + (size_t)n * each);
    if (group == NULL)
        return NULL;
    group->source = (const void **)(void *)(group->other + n);
    group->target = (void **)(void *)(group->source + n);
    group->world_rank = (int32_t *)(void *)(group->target + n);
    return group;
}

/* A group over member[0 .. n-1] of `all`, or over all where member is NULL; this rank is `index`.
 */
static enum tess_status local_group_open(struct local_rank *rank, const struct local_joining *all,
                                         const int32_t *member, int32_t n, int32_t index,
                                         enum tess_order order, struct local_group **group_out)
{
    struct local_group *group = local_group_new(n);
    if (group == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a communicator of %d ranks", (int)n);
    group->comm =
        (struct tess_comm){.ops = &local_ops, .rank = index, .rank_count = n, .order = order};
    group->rank = rank;
    for (int32_t i = 0; i < n; i++) {
        const struct local_joining *other = &all[member != NULL ? member[i] : i];
        group->world_rank[i] = other->world_rank;
        group->other[i].member = tess__world_member(rank->world, other->world_rank, other->seat);
        group->other[i].chunks = tess__world_chunks(rank->world, other->world_rank, other->seat);
        if (i == index)
            group->seat = other->seat;
    }
    tess__local_wait_open(group);
    tess__local_seat_enter(group);
    LIST_INSERT_HEAD(&rank->groups, group, link);
    *group_out = group;
    return TESS_OK;
}

/* The group of the whole world, which has everyone's first seat. */
static enum tess_status local_open_all(struct local_rank *rank, enum tess_order order,
                                       struct local_group **group_out)
{
    const int32_t n = rank->world->rank_count;
    struct local_joining *all = calloc((size_t)n, sizeof(*all));
    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a communicator of %d ranks", (int)n);
    for (int32_t r = 0; r < n; r++)
        all[r].world_rank = r;
    rank->seat[0] = (struct local_seat){.taken = true, .pipe = -1};
    const enum tess_status status =
        local_group_open(rank, all, NULL, n, rank->rank, order, group_out);
    free(all);
    return status;
}

enum tess_status tess_comm_local_open(struct tess_world *world, int32_t rank, enum tess_order order,
                                      double timeout_s, struct tess_comm **comm_out)
{
    struct local_rank *own =
        calloc(1, sizeof(*own) + (size_t)world->pipe_count * sizeof(own->pipe[0]));
    if (own == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the state of rank %d", (int)rank);
    *own =
        (struct local_rank){.world = world, .rank = rank, .timeout_s = timeout_s, .pipe_free = -1};
    atomic_store_explicit(&tess_world_board(world, rank)->pid, (int32_t)getpid(),
                          memory_order_relaxed);
    struct local_group *group;
    enum tess_status status = local_open_all(own, order, &group);
    if (status != TESS_OK) {
        free(own);
        return status;
    }
    *comm_out = &group->comm;
    return TESS_OK;
}

/* The ranks have taken a seat each, or have none: all[]. *group_out NULL: this one is alone. */
static enum tess_status local_join(struct local_group *parent, const struct local_joining *all,
                                   struct tess__split *split, int32_t *member,
                                   struct local_group **group_out)
{
    struct tess_comm *comm = &parent->comm;
    int32_t index = 0;
    for (int32_t r = 0; r < comm->rank_count; r++)
        split[r] = (struct tess__split){all[r].color, all[r].key};
    const int32_t n = tess__split_members(split, comm->rank_count, comm->rank, member, &index);
    for (int32_t i = 0; i < n && n > 1; i++)
        if (all[member[i]].seat < 0)
            TESS_FAIL(TESS_ERR_COMM,
                      "no room for another group: rank %d has %d of them open; use a mesh with "
                      "fewer axes, or leave --debug out",
                      (int)all[member[i]].world_rank, LOCAL_SEATS);
    return n == 1 ? TESS_OK
                  : local_group_open(parent->rank, all, member, n, index, comm->order, group_out);
}

static enum tess_status local_split(struct tess_comm *comm, int32_t color, int32_t key,
                                    struct tess_comm **child_out)
{
    struct local_group *parent = local_of(comm), *group = NULL;
    const size_t n = (size_t)comm->rank_count;
    struct local_joining *all;
    struct tess__split *split;
    all = calloc(n, sizeof(*all) + sizeof(*split) + sizeof(int32_t));
    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a list of %zu ranks", n);
    split = (struct tess__split *)(void *)(all + n);
    const struct local_joining own = {color, key, parent->rank->rank,
                                      tess__local_seat_take(parent->rank)};
    enum tess_status status = tess__call_exchange(comm, &own, sizeof(own), all);
    if (status == TESS_OK)
        status = local_join(parent, all, split, (int32_t *)(void *)(split + n), &group);
    free(all);
    if (group == NULL)
        tess__local_seat_drop(parent->rank, own.seat);
    if (status == TESS_OK && group == NULL) /* needs no memory of the world */
        return tess_comm_self_open(comm->order, child_out);
    if (status == TESS_OK)
        *child_out = &group->comm;
    return status;
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
