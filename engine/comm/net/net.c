/*
 * The communicator over a transport: opening, splitting, posting and closing. There is no progress
 * thread, calls advance when a rank polls or waits. How collectives are run is in net_run.c,
 * messages in net_message.c; what they wait for in net_wait.c.
 */
#include "comm/net/net.h"

#include "base/hash.h"
#include "base/pages.h"
#include "comm/net/net_group.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NET_SPREAD_MAX 512 /* ranks: more take too long to count, for a line of the log */

static struct net_group *net_of(struct tess_comm *comm)
{
    return (struct net_group *)comm;
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct net_awaited {
    const struct net_group *group;
    struct tess__ticket ticket;
};

static bool net_has_room(void *context)
{
    const struct net_awaited *room = context;

    if (room->ticket.sequence != TESS__COLLECTIVE)
        return tess__net_message_has_room(room->group, room->ticket.sequence == TESS__SEND,
                                          room->ticket.peer);
    return room->group->posted - room->group->current < NET_RING;
}

static enum tess_status net_call(struct tess_comm *comm, const struct tess_comm_call *call,
                                 uint64_t *ticket_out)
{
    struct net_group *group = net_of(comm);
    const bool message = tess__call_is_message(call);
    struct net_awaited room = {.group = group};

    TESS_TRY(tess__net_check(group->rank));
    if (call->device) {
        char name[120];
        tess__call_name(call, name, sizeof(name));
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "%s: over %s ranks exchange memory of the host alone; run them as threads, or "
                  "with NCCL",
                  name, group->rank->transport->ops->name);
    }
    if (message) {
        const bool send = call->collective == TESS_COLLECTIVE_SEND;
        room.ticket = (struct tess__ticket){send ? TESS__SEND : TESS__RECEIVE, call->peer, 0};
    }
    if (!net_has_room(&room))
        TESS_TRY(tess__wait_for(&group->waiting, net_has_room, &room,
                                message ? call : &group->call[group->current % NET_RING],
                                message ? 0 : group->current + 1));
    if (message) {
        TESS_TRY(tess__net_message_post(group, call, ticket_out));
    } else {
        *ticket_out = tess__ticket(TESS__COLLECTIVE, 0, group->posted);
        TESS_TRY(tess__net_post(group, call));
    }
    TESS_TRY(tess__net_flush(group->rank));
    tess_comm_called(comm, call, *ticket_out);
    return TESS_OK;
}

static bool net_is_complete(void *context)
{
    const struct net_awaited *awaited = context;
    const struct tess__ticket *ticket = &awaited->ticket;

    if (ticket->sequence == TESS__COLLECTIVE)
        return ticket->number < awaited->group->current;
    return tess__net_message_complete(awaited->group, ticket->sequence == TESS__SEND, ticket->peer,
                                      ticket->number);
}

static enum tess_status net_wait(struct tess_comm *comm, uint64_t number)
{
    struct net_group *group = net_of(comm);
    struct net_awaited awaited = {group, tess__ticket_read(number)};
    const struct tess__ticket *ticket = &awaited.ticket;

    if (net_is_complete(&awaited))
        return tess__net_check(group->rank);
    const struct tess_comm_call call =
        ticket->sequence == TESS__COLLECTIVE
            ? group->call[ticket->number % NET_RING]
            : tess__net_message_call(group, ticket->sequence == TESS__SEND, ticket->peer,
                                     ticket->number);
    return tess__wait_for(&group->waiting, net_is_complete, &awaited, &call, ticket->number + 1);
}

static enum tess_status net_poll(struct tess_comm *comm)
{
    bool moved = false;

    return tess__net_advance(comm, &moved);
}

static void net_abort(struct tess_comm *comm, const char *reason)
{
    struct net_rank *rank = net_of(comm)->rank;

    if (rank->world != NULL)
        tess_world_abort(rank->world, rank->transport->rank, reason);
    rank->transport->ops->abort(rank->transport, reason);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static enum tess_status net_alloc(struct tess_comm *comm, size_t bytes, void **memory_out)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = page + bytes;
    struct net_block *block = whole > bytes ? tess_pages_take(whole) : NULL;

    if (block == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu bytes of rank %d", bytes, (int)comm->rank);
    block->bytes = whole;
    LIST_INSERT_HEAD(&net_of(comm)->blocks, block, link);
    *memory_out = (char *)block + page;
    return TESS_OK;
}

static void net_block_free(struct net_block *block)
{
    LIST_REMOVE(block, link);
    tess_pages_give(block, block->bytes);
}

static void net_release(struct tess_comm *comm, void *memory)
{
    (void)comm;
    net_block_free((struct net_block *)((char *)memory - sysconf(_SC_PAGESIZE)));
}

/* ---- groups ---------------------------------------------------------------------------------- */

static void net_group_free(struct net_group *group)
{
    while (!LIST_EMPTY(&group->blocks))
        net_block_free(LIST_FIRST(&group->blocks));
    for (struct net_pair *pair; (pair = SLIST_FIRST(&group->pairs)) != NULL;) {
        SLIST_REMOVE_HEAD(&group->pairs, link);
        free(pair);
    }
    tess__net_jobs_close(group);
    free(group->block);
    free(group);
}

static void net_rank_close(struct net_rank *rank)
{
    rank->transport->ops->close(rank->transport);
    for (struct net_group *group; (group = LIST_FIRST(&rank->grave)) != NULL;) {
        LIST_REMOVE(group, link);
        net_group_free(group);
    }
    free(rank);
}

static void net_close(struct tess_comm *comm)
{
    struct net_group *group = net_of(comm);
    struct net_rank *rank = group->rank;
    const bool settled = tess__net_settle(group);

    LIST_REMOVE(group, link);
    if (settled) {
        tess__net_native_close(group);
        rank->used[group->id / 64] &= ~(UINT64_C(1) << group->id % 64);
        net_group_free(group);
    } else { /* its number stays taken too: what comes for it would be taken for another one's */
        LIST_INSERT_HEAD(&rank->grave, group, link);
    }
    if (LIST_EMPTY(&rank->groups))
        net_rank_close(rank);
}

static enum tess_status net_split(struct tess_comm *comm, int32_t color, int32_t key,
                                  struct tess_comm **child_out);

static const struct tess_comm_ops net_ops = {
    .call = net_call,
    .wait = net_wait,
    .poll = net_poll,
    .alloc = net_alloc,
    .release = net_release,
    .split = net_split,
    .abort = net_abort,
    .close = net_close,
};

/* Where sums cross between hosts more often than they need, because the order of ranks has it so.
 */
static void net_log_spread(const struct net_group *group, const int32_t *host)
{
    const int32_t n = group->comm.rank_count;

    if (group->comm.order != TESS_ORDER_CANONICAL || group->comm.rank != 0 || n > NET_SPREAD_MAX)
        return;
    const struct net_spread spread = tess__net_spread(n, host);
    if (spread.astray < 0)
        return;
    const struct tess_transport *transport = group->rank->transport;
    const int32_t astray = group->member[spread.astray];
    tess_log(TESS_LOG_DEBUG,
             "sums of %d ranks go between %d hosts rank by rank, %.2f times as often as host by "
             "host: the ranks of %s (rank %d is one) are no block of the canonical order; give "
             "each host 1, 2, 4 or 8 neighbours",
             (int)n, (int)spread.hosts, (double)spread.crossings / n / (spread.hosts - 1),
             transport->ops->host_name(transport, astray), (int)astray);
}

/* What there is for each rank. */
static enum tess_status net_group_reserve(struct net_group *group)
{
    const size_t n = (size_t)group->comm.rank_count;
    char *block =
        calloc(n, 2 * sizeof(*group->send) + sizeof(*group->flight) + sizeof(*group->member));

    if (block == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a communicator of %zu ranks", n);
    group->block = block;
    group->send = (struct net_pair **)block;
    group->receive = group->send + n;
    group->flight = (struct net_flight *)(group->receive + n);
    group->member = (int32_t *)(group->flight + n);
    return tess__net_jobs_open(group);
}

/* Hosts of the members, for messages and schedules. */
static enum tess_status net_group_shape(struct net_group *group)
{
    const int32_t n = group->comm.rank_count;
    int32_t *host = malloc((size_t)n * sizeof(*host));

    if (host == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a communicator of %d ranks", (int)n);
    for (int32_t r = 0; r < n; r++)
        host[r] = group->rank->transport->host[group->member[r]];
    group->shape = tess__net_shape(group->comm.rank, n, host, group->rank->transport->rack_hosts);
    net_log_spread(group, host);
    free(host);
    return TESS_OK;
}

/* A group over `member` [rank_count], which is this rank at `index`. birth: as struct net_late has
 * it.
 */
static enum tess_status net_group_open(struct net_rank *rank, int32_t id, uint64_t birth,
                                       int32_t index, const int32_t *member, int32_t rank_count,
                                       enum tess_order order, struct net_group **group_out)
{
    struct net_group *group = calloc(1, sizeof(*group));

    if (group == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a communicator of %d ranks", (int)rank_count);
    group->comm = (struct tess_comm){
        .ops = &net_ops, .rank = index, .rank_count = rank_count, .order = order};
    group->rank = rank;
    group->id = id;
    group->late.birth = group->late.past = birth;
    group->native = -1;
    enum tess_status status = net_group_reserve(group);
    if (status == TESS_OK) {
        memcpy(group->member, member, (size_t)rank_count * sizeof(*member));
        status = net_group_shape(group);
    }
    if (status != TESS_OK) {
        net_group_free(group);
        return status;
    }
    tess__net_wait_open(group);
    for (int s = 0; s < NET_AHEAD; s++)
        for (int d = 0; d < NET_NOTE_ALL; d++)
            group->slot[s].send[d] = group->slot[s].recv[d] = NET_NO_REQUEST;
    rank->used[id / 64] |= UINT64_C(1) << id % 64;
    LIST_INSERT_HEAD(&rank->groups, group, link);
    *group_out = group;
    return TESS_OK;
}

/* The group of all ranks. */
static enum tess_status net_open_all(struct net_rank *rank, enum tess_order order,
                                     struct net_group **group_out)
{
    const int32_t n = rank->transport->rank_count;
    int32_t *all = malloc((size_t)n * sizeof(*all));

    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a communicator of %d ranks", (int)n);
    for (int32_t r = 0; r < n; r++)
        all[r] = r;
    const enum tess_status status =
        net_group_open(rank, 0, 0, rank->transport->rank, all, n, order, group_out);
    free(all);
    return status;
}

enum tess_status tess_comm_net_open(struct tess_transport *transport, struct tess_world *world,
                                    enum tess_order order, double timeout_s,
                                    struct tess_comm **comm_out)
{
    const int32_t rank_count = transport->rank_count;
    struct net_rank *rank = rank_count <= TESS_RANKS_MAX ? calloc(1, sizeof(*rank)) : NULL;
    struct net_group *group;

    if (rank == NULL) {
        const char *name = transport->ops->name;
        transport->ops->close(transport);
        TESS_FAIL(rank_count > TESS_RANKS_MAX ? TESS_ERR_UNSUPPORTED : TESS_ERR_MEMORY,
                  "no communicator of %d ranks over %s: there may be up to %d", (int)rank_count,
                  name, TESS_RANKS_MAX);
    }
    *rank = (struct net_rank){.transport = transport, .world = world, .timeout_s = timeout_s};
    tess__net_late_open(transport, rank);
    const enum tess_status status = net_open_all(rank, order, &group);
    if (status != TESS_OK) {
        net_rank_close(rank);
        return status;
    }
    if (world != NULL)
        atomic_store_explicit(&tess_world_board(world, transport->rank)->pid, (int32_t)getpid(),
                              memory_order_relaxed);
    *comm_out = &group->comm;
    return TESS_OK;
}

/* ---- splitting ------------------------------------------------------------------------------- */

/* What each rank sends to the others in a split. */
struct net_member {
    struct tess__split split;
    int32_t above; /* all numbers of its groups are below */
    int32_t zero;
};

struct net_used {
    uint64_t number[NET_GROUPS / 64]; /* a bit for each group that is open */
};

static int32_t net_above(const struct net_rank *rank)
{
    int32_t above = NET_GROUPS;

    while (above > 0 && (rank->used[(above - 1) / 64] >> (above - 1) % 64 & 1) == 0)
        above--;
    return above;
}

/*
 * A number that none of the parent's ranks uses; groups split off together may share it, since no
 * rank is in two of them. Mostly the one after all that are in use; where there is none, the first
 * that is free, for which ranks exchange all that they use. NET_GROUPS: there is none.
 */
static enum tess_status net_free_id(struct net_group *parent, const struct net_member *info,
                                    int32_t *id_out)
{
    struct tess_comm *comm = &parent->comm;
    struct net_used own, *all;
    int32_t id = 0;

    for (int32_t r = 0; r < comm->rank_count; r++)
        id = info[r].above > id ? info[r].above : id;
    *id_out = id;
    if (id < NET_GROUPS)
        return TESS_OK;
    all = malloc((size_t)comm->rank_count * sizeof(*all));
    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to split %d ranks", (int)comm->rank_count);
    memcpy(own.number, parent->rank->used, sizeof(own.number));
    const enum tess_status status = tess__call_exchange(comm, &own, sizeof(own), all);
    for (int32_t r = 0; r < comm->rank_count && status == TESS_OK; r++)
        for (int w = 0; w < NET_GROUPS / 64; w++)
            own.number[w] |= all[r].number[w];
    free(all);
    for (id = 0; id < NET_GROUPS && (own.number[id / 64] >> id % 64 & 1) != 0;)
        id++;
    *id_out = id;
    return status;
}

/* What ranks exchange for a split, and the members of this rank's part. */
struct net_parting {
    struct net_member *info;   /* [rank_count] */
    struct tess__split *split; /* [rank_count] */
    int32_t *order, *member;   /* [rank_count] */
};

static enum tess_status net_split_into(struct net_group *parent, const struct net_parting *parting,
                                       struct tess_comm **child_out)
{
    struct tess_comm *comm = &parent->comm;
    struct net_group *group;
    int32_t index = 0, id;

    TESS_TRY(net_free_id(parent, parting->info, &id));
    for (int32_t r = 0; r < comm->rank_count; r++)
        parting->split[r] = parting->info[r].split;
    const int32_t n =
        tess__split_members(parting->split, comm->rank_count, comm->rank, parting->order, &index);
    for (int32_t i = 0; i < n; i++)
        parting->member[i] = parent->member[parting->order[i]];
    if (n == 1)
        return tess_comm_self_open(comm->order, child_out);
    if (id == NET_GROUPS)
        TESS_FAIL(TESS_ERR_COMM,
                  "no room for another group: %d may be open at a time; use a mesh with fewer "
                  "ranks along its longest axes, or leave --debug out",
                  NET_GROUPS);
    /* All members have made the same calls of the parent. */
    const uint64_t birth = tess_hash_mix(parent->late.birth + parent->posted);
    TESS_TRY(
        net_group_open(parent->rank, id, birth, index, parting->member, n, comm->order, &group));
    const enum tess_status status = parent->native >= 0 ? tess__net_native_open(group) : TESS_OK;
    if (status != TESS_OK) {
        net_close(&group->comm);
        return status;
    }
    *child_out = &group->comm;
    return TESS_OK;
}

static enum tess_status net_split(struct tess_comm *comm, int32_t color, int32_t key,
                                  struct tess_comm **child_out)
{
    struct net_group *parent = net_of(comm);
    const struct net_member own = {.split = {color, key}, .above = net_above(parent->rank)};
    const size_t n = (size_t)comm->rank_count;
    const struct net_parting parting = {
        .info = malloc(n * sizeof(*parting.info)),
        .split = malloc(n * sizeof(*parting.split)),
        .order = malloc(n * sizeof(*parting.order)),
        .member = malloc(n * sizeof(*parting.member)),
    };
    enum tess_status status = TESS_OK;

    if (parting.info == NULL || parting.split == NULL || parting.order == NULL ||
        parting.member == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory to split %zu ranks", n);
    if (status == TESS_OK)
        status = tess__call_exchange(comm, &own, sizeof(own), parting.info);
    if (status == TESS_OK)
        status = net_split_into(parent, &parting, child_out);
    free(parting.info);
    free(parting.split);
    free(parting.order);
    free(parting.member);
    return status;
}

enum tess_status tess_comm_net_native(struct tess_comm *comm)
{
    struct net_group *group = net_of(comm);

    if (comm->order != TESS_ORDER_FAST)
        TESS_FAIL(TESS_ERR_USAGE, "collectives of %s's own keep no canonical order",
                  group->rank->transport->ops->name);
    return tess__net_native_open(group);
}

bool tess_comm_net_link(const struct tess_comm *comm, int32_t peer,
                        struct tess_transport_link *link_out)
{
    if (comm->ops != &net_ops || peer == comm->rank)
        return false;
    struct tess_transport *transport = ((const struct net_group *)comm)->rank->transport;
    return transport->ops->link != NULL && transport->ops->link(transport, peer, link_out);
}
