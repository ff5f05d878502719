/*
 * The virtual communicator: calls move nothing, and take the time that links need. A group has a
 * lane, in which its calls come one after the other, beside the kernels.
 *
 * Groups along the data and the tensor axis consist of ranks that do the same at the same time, of
 * which one is here: a call begins when it calls. Where stages differ (along the stage axis, or all
 * ranks of a pipeline) their calls meet: a collective begins when the last stage has called, a
 * message when both its ends have. Which stage comes first does not matter, as times go with the
 * calls:
 *
 *     stage 0     ....send at 3 ms ............ sent at 5
 *     stage 1     receive at 1 ms .... received at 5         the message takes 2
 */
#include "predict/virtual.h"

#include "comm/call.h"
#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the stages' ends of a group share. */
struct virtual_meeting {
    struct virtual_line all;
    struct virtual_line *message; /* [stages, stages]: from, to */
    uint64_t *called;             /* [stages] collectives, by stage */
    uint64_t *sent, *received;    /* [stages, stages] */
};

/* Where a ticket's call is. */
struct virtual_ticket {
    struct virtual_line *line; /* NULL: of ranks that are alike, and end_s is known */
    uint64_t number;
    double seconds;        /* that links work for it, or ... */
    double own_s;          /* ... > 0: the rank's own processor, when it is waited for */
    double end_s, begin_s; /* begin_s: when they begin to, where that is known */
    bool device, completed;
    bool pulled; /* a processor's receive: nothing moves before the rank waits for it */
    bool arrived;
    enum tess_collective collective;
    enum tess_dtype dtype;
    uint64_t bytes;
};

#define VIRTUAL_TIMES 16

struct virtual_comm {
    struct tess_comm comm;
    struct virtual_rank *rank;
    const struct tess_plan *plan; /* borrowed */
    int32_t group;                /* of the network: axis, or TESS_PREDICT_ALL */
    int32_t counted;              /* with which waits count, as tess_engine_axis_traffic has it */
    bool below;                   /* a strategy's part of the axis' group */
    struct tess_network network;
    int32_t splits;
    struct virtual_queue lane;
    struct virtual_meeting *meeting; /* NULL: the ranks are alike */
    struct virtual_time {
        uint32_t collective, order;
        double bytes, seconds;
    } time[VIRTUAL_TIMES];         /* what calls took, by a hash; seconds 0: none */
    struct virtual_ticket *ticket; /* [ticket_room] */
    uint64_t ticket_count, ticket_room;
    void *memory[4];
    size_t memory_bytes[4];
};

/* ---- meetings -------------------------------------------------------------------------------- */

static bool line_grow(struct virtual_line *line, uint64_t count)
{
    if (count < line->room)
        return true;
    const uint64_t room = 2 * count + 64;
    struct virtual_call *call = realloc(line->call, room * sizeof(*call));
    if (call == NULL)
        return false;
    memset(call + line->room, 0, (room - line->room) * sizeof(*call));
    line->call = call;
    line->room = room;
    return true;
}

/* One of `members` arrives at call `number` of a line, ready at ready_s; the call takes seconds. */
static enum tess_status line_arrive(struct virtual_line *line, uint64_t number, int32_t members,
                                    const struct virtual_call *mine, double seconds)
{
    if (!line_grow(line, number))
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a step's calls");
    struct virtual_call *call = &line->call[number];
    if (call->arrived > 0 && (call->collective != mine->collective || call->bytes != mine->bytes))
        TESS_FAIL(TESS_ERR_COMM,
                  "predicted stages make different calls: %s of %llu bytes, and %s of %llu",
                  tess_collective_name(call->collective), (unsigned long long)call->bytes,
                  tess_collective_name(mine->collective), (unsigned long long)mine->bytes);
    call->collective = mine->collective;
    call->bytes = mine->bytes;
    call->ready_s =
        call->arrived == 0 || mine->ready_s > call->ready_s ? mine->ready_s : call->ready_s;
    /* Every member comes to the calls of a line in order, so this one is the next to be done. */
    if (++call->arrived < members)
        return TESS_OK;
    call->end_s = (call->ready_s > line->end_s ? call->ready_s : line->end_s) + seconds;
    line->end_s = call->end_s;
    line->done = number + 1;
    return TESS_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Bytes of the whole array, as network.h counts them. */
static double call_bytes(const struct tess_comm *comm, const struct tess_comm_call *call)
{
    const bool gathers = call->collective == TESS_COLLECTIVE_ALL_GATHER;
    const size_t parts =
        gathers ? (size_t)comm->rank_count : tess__call_source_parts(comm, call->collective);
    return (double)parts * (double)call->count * (double)tess_dtype_bytes(call->dtype);
}

/* Bytes that each other rank is given for an element. */
static double share_given(const struct tess_comm_share *share)
{
    return (double)(share->given_bytes + share->later_bytes);
}

/*
 * What a processor's own share of a call takes longer since caches do not have it. Parameters that
 * are gathered were last touched a step ago; they come from memory once for all ranks. What is
 * added up or sent was just written: what the last cache keeps of as much.
 */
static double call_far_s(const struct virtual_comm *virtual, const struct tess_comm_call *call)
{
    const struct virtual_world *world = virtual->rank->world;
    const double bytes = call_bytes(&virtual->comm, call), k = virtual->comm.rank_count;
    double moved = 2 * bytes;
    if (call->collective == TESS_COLLECTIVE_ALL_GATHER)
        return bytes / k * virtual->rank->far_s;
    if (call->share != NULL)
        moved = bytes + (double)call->count * share_given(call->share);
    else if (call->collective == TESS_COLLECTIVE_REDUCE_SCATTER ||
             call->collective == TESS_COLLECTIVE_REDUCE)
        moved = (1 + 1 / k) * bytes;
    else if (call->collective == TESS_COLLECTIVE_ALL_TO_ALL)
        moved = 2 * (k - 1) / k * bytes;
    return moved * tess_profile_lost_s(&world->profile->cache_one, bytes * fmax(1, world->alike));
}

struct call_slice {
    size_t begin, count;
};

/* What this rank does of a shared update. */
static struct call_slice call_slice(const struct tess_comm *comm, const struct tess_comm_call *call)
{
    const size_t begin = tess__call_slice(call->count, comm->rank, comm->rank_count);
    return (struct call_slice){
        begin, tess__call_slice(call->count, comm->rank + 1, comm->rank_count) - begin};
}

/* Payload, as other communicators count it; of a sum each rank adds a share. */
static void call_count(struct tess_comm *comm, const struct tess_comm_call *call)
{
    const size_t bytes = call->count * tess_dtype_bytes(call->dtype);
    if (call->share != NULL)
        tess__call_count_share(comm, call, call_slice(comm, call).count);
    else if (call->collective == TESS_COLLECTIVE_ALL_REDUCE ||
             call->collective == TESS_COLLECTIVE_REDUCE)
        tess__call_count_slice(comm, call, bytes / (size_t)comm->rank_count);
    else
        tess__call_count(comm, call, bytes);
}

/* When the call may begin: what the kernels were given before it has been done. */
static double call_ready_s(struct virtual_rank *rank, bool device)
{
    if (!device)
        return rank->host_s;
    rank->host_s += rank->world->profile->launch_s;
    return rank->kernels.end_s > rank->host_s ? rank->kernels.end_s : rank->host_s;
}

static bool ticket_is_message(const struct virtual_ticket *ticket)
{
    return ticket->collective == TESS_COLLECTIVE_SEND || ticket->collective == TESS_COLLECTIVE_RECV;
}

/* The rank comes to a call in which stages meet. */
static enum tess_status ticket_arrive(struct virtual_rank *rank, struct virtual_ticket *ticket,
                                      double ready_s)
{
    const bool message = ticket_is_message(ticket);
    const struct virtual_call mine = {.ready_s = ready_s,
                                      .collective =
                                          message ? TESS_COLLECTIVE_SEND : ticket->collective,
                                      .bytes = ticket->bytes};
    ticket->arrived = true;
    TESS_TRY(virtual_stop(rank, &(struct virtual_stop){.what = VIRTUAL_COMES,
                                                       .begin_s = rank->host_s,
                                                       .end_s = rank->host_s,
                                                       .line = ticket->line,
                                                       .number = ticket->number}));
    return line_arrive(ticket->line, ticket->number, message ? 2 : rank->world->stage_count, &mine,
                       ticket->seconds);
}

enum tess_status virtual_do_call(struct virtual_rank *rank, const struct virtual_act *act,
                                 bool *waits_out)
{
    struct virtual_comm *virtual = act->of;
    struct virtual_ticket *ticket = &virtual->ticket[act->at];
    const double ready_s = call_ready_s(rank, ticket->device);
    (void)waits_out;
    if (ticket->line != NULL)
        return ticket->pulled ? TESS_OK : ticket_arrive(rank, ticket, ready_s);
    if (ticket->own_s > 0) {
        ticket->begin_s = ready_s;
        return TESS_OK;
    }
    ticket->begin_s = ready_s > virtual->lane.end_s ? ready_s : virtual->lane.end_s;
    ticket->end_s = ticket->begin_s + ticket->seconds;
    virtual->lane.end_s = ticket->end_s;
    return TESS_OK;
}

/* Which of its line's calls the ticket is for. */
static void ticket_meet(const struct virtual_comm *virtual, const struct tess_comm_call *call,
                        struct virtual_ticket *ticket)
{
    struct virtual_meeting *meeting = virtual->meeting;
    const int32_t stages = virtual->rank->world->stage_count, me = virtual->rank->stage;
    const bool sends = call->collective == TESS_COLLECTIVE_SEND;
    if (!tess__call_is_message(call)) {
        ticket->line = &meeting->all;
        ticket->number = meeting->called[me]++;
        return;
    }
    const int32_t pair = sends ? me * stages + call->peer : call->peer * stages + me;
    ticket->line = &meeting->message[pair];
    ticket->number = sends ? meeting->sent[pair]++ : meeting->received[pair]++;
}

/* What a rank takes from others; its own part too, where that lies elsewhere and it copies itself.
 */
static double call_taken(const struct virtual_comm *virtual, const struct tess_comm_call *call)
{
    const struct tess_comm *comm = &virtual->comm;
    const double bytes = call_bytes(comm, call);
    const size_t part = call->count * tess_dtype_bytes(call->dtype);
    if (virtual->network.cluster.sum_bytes_per_s <= 0 ||
        call->collective != TESS_COLLECTIVE_ALL_GATHER ||
        call->source == (const char *)call->target + (size_t)comm->rank * part)
        return bytes;
    return bytes * comm->rank_count / fmax(1, comm->rank_count - 1);
}

/* A sum of which each rank does something with its slice, and gives others what follows. What the
 * rank does besides, its kernels know. */
static double share_s(const struct virtual_comm *virtual, const struct tess_comm_call *call)
{
    const struct call_slice slice = call_slice(&virtual->comm, call);
    double update_s = 0;
    virtual->rank->aside_s = &update_s;
    call->share->run(call->share->context, NULL, slice.begin, slice.count);
    virtual->rank->aside_s = NULL;
    return update_s + tess_network_share_s(&virtual->network, virtual->comm.rank_count,
                                           call_bytes(&virtual->comm, call),
                                           (double)call->count * share_given(call->share));
}

static double comm_call_s(struct virtual_comm *virtual, const struct tess_comm_call *call)
{
    if (call->share != NULL)
        return share_s(virtual, call);
    const double bytes = call_taken(virtual, call);
    const uint32_t collective = (uint32_t)call->collective, order = (uint32_t)call->order;
    if (virtual->network.cluster.busy && tess__call_is_message(call))
        return tess_network_message_s(&virtual->network, virtual->group, virtual->comm.rank,
                                      call->peer, bytes);
    struct virtual_time
        *time = &virtual->time[(call->count / 64 + collective + call->count % 64) % VIRTUAL_TIMES];
    if (time->seconds == 0 || time->collective != collective || time->order != order ||
        time->bytes != bytes)
        *time = (struct virtual_time){collective, order, bytes,
                                      tess_network_s(&virtual->network, virtual->group,
                                                     call->collective, call->order,
                                                     virtual->comm.rank_count, bytes)};
    return time->seconds;
}

static enum tess_status comm_call(struct tess_comm *comm, const struct tess_comm_call *call,
                                  uint64_t *ticket_out)
{
    struct virtual_comm *virtual = (struct virtual_comm *)comm;
    if (virtual->ticket_count == virtual->ticket_room) {
        const uint64_t room = 2 * virtual->ticket_room + 64;
        struct virtual_ticket *more = realloc(virtual->ticket, room * sizeof(*more));
        if (more == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for a step's calls");
        virtual->ticket = more;
        virtual->ticket_room = room;
    }
    struct virtual_ticket *ticket = &virtual->ticket[virtual->ticket_count];
    *ticket = (struct virtual_ticket){.seconds = comm_call_s(virtual, call),
                                      .device = call->device,
                                      .collective = call->collective,
                                      .dtype = call->dtype,
                                      .bytes = call->count * tess_dtype_bytes(call->dtype)};
    if (virtual->network.cluster.busy)
        ticket->seconds += call_far_s(virtual, call);
    /* Links carry a message between hosts while their ranks compute. */
    const bool links = virtual->network.cluster.host_net_bytes_per_s > 0;
    const bool receives = call->collective == TESS_COLLECTIVE_RECV;
    if (virtual->network.cluster.busy && call->collective != TESS_COLLECTIVE_SEND &&
        !(receives && links))
        ticket->own_s = ticket->seconds;
    ticket->pulled = virtual->network.cluster.busy && receives && !links;
    if (virtual->meeting != NULL)
        ticket_meet(virtual, call, ticket);
    const struct virtual_act act = {
        .what = VIRTUAL_CALL, .of = virtual, .at = (uint32_t) virtual->ticket_count};
    *ticket_out = virtual->ticket_count++;
    tess_comm_called(comm, call, *ticket_out);
    if (call->count > 0)
        call_count(comm, call);
    return virtual_later(virtual->rank, act) ? TESS_OK : virtual_do_call(virtual->rank, &act, NULL);
}

static enum tess_status spans_add(struct virtual_spans *spans, double begin_s, double end_s)
{
    if (spans->count == spans->room) {
        const size_t room = 2 * spans->room + 64;
        struct virtual_span *more = realloc(spans->span, room * sizeof(*more));
        if (more == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for a step's calls");
        spans->span = more;
        spans->room = room;
    }
    spans->span[spans->count++] = (struct virtual_span){begin_s, end_s};
    return TESS_OK;
}

/* Who waits, in which unit, for which call. */
static enum tess_status wait_count(struct virtual_comm *virtual,
                                   const struct virtual_ticket *ticket, double from_s, double to_s)
{
    struct virtual_rank *rank = virtual->rank;
    const int32_t unit = rank->at_unit;
    const int32_t units = rank->unit_count + 1;
    const int32_t at = unit >= 0 && unit < rank->unit_count ? unit : rank->unit_count;
    const double begin_s = ticket->begin_s < to_s ? ticket->begin_s : to_s;
    const double bubble_s = ticket->line != NULL && begin_s > from_s ? begin_s - from_s : 0;
    rank->bubble_s += bubble_s;
    rank->exposed_s[virtual->counted] += to_s - from_s;
    rank->lost_s[(virtual->counted * TESS_COLLECTIVE_COUNT + (int32_t)ticket->collective) * units +
                 at] += to_s - from_s - bubble_s;
    return spans_add(&rank->waits, from_s, to_s);
}

static void wait_trace(const struct virtual_comm *virtual, const struct virtual_ticket *ticket,
                       enum tess_trace_kind kind, double begin_s)
{
    (void)virtual_event(virtual->rank,
                        &(struct tess_trace_event){.begin_s = begin_s,
                                                   .end_s = ticket->end_s,
                                                   .bytes = ticket->bytes,
                                                   .rank_count = virtual->comm.rank_count,
                                                   .kind = (uint8_t)kind,
                                                   .what = (uint8_t)ticket->collective,
                                                   .dtype = (uint8_t)ticket->dtype});
}

/* The clock that waits goes to the call's end: the kernels' for calls on their memory. */
static enum tess_status wait_until(struct virtual_comm *virtual,
                                   const struct virtual_ticket *ticket)
{
    struct virtual_rank *rank = virtual->rank;
    struct virtual_queue *kernels = &rank->kernels;
    double from_s = rank->host_s;
    if (ticket->device && kernels->end_s > from_s)
        from_s = kernels->end_s;
    if (ticket->end_s <= from_s)
        return TESS_OK;
    TESS_TRY(wait_count(virtual, ticket, from_s, ticket->end_s));
    wait_trace(virtual, ticket, TESS_TRACE_WAIT, from_s);
    if (!ticket->device) {
        rank->host_s = ticket->end_s;
        return TESS_OK;
    }
    rank->late_s += from_s - kernels->end_s;
    kernels->end_s = ticket->end_s;
    return TESS_OK;
}

/*
 * When the last of a call's ranks comes, of which this one stands for all that are like it. Where
 * they take turns and a call is of some of them, others have their cores meanwhile; and a stage
 * that has waited for another one gets a core late.
 */
static double wait_last_s(const struct virtual_comm *virtual, const struct virtual_ticket *ticket)
{
    const struct virtual_rank *rank = virtual->rank;
    const struct virtual_world *world = rank->world;
    const double now_s = rank->host_s;
    const double lag_s = tess_profile_lag_s(world->profile, world->crowd, now_s - rank->met_s);
    if (ticket->line != NULL)
        return ticket->begin_s + (world->crowd > 1 && ticket->begin_s > now_s ? lag_s : 0);
    const bool some = world->crowd > 1 && virtual->comm.rank_count < world->alike;
    return fmax(ticket->begin_s, now_s + (some ? 0 : lag_s));
}

/* A processor's own share of the call begins when all are there, and it has nothing else to do. */
static enum tess_status wait_own(const struct virtual_comm *virtual, struct virtual_ticket *ticket)
{
    struct virtual_rank *rank = virtual->rank;
    const double now_s = rank->host_s;
    const double late_s =
        tess_profile_lag_s(rank->world->profile, rank->world->crowd, now_s - rank->met_s);
    if (!rank->world->network->cluster.busy)
        return TESS_OK;
    if (ticket->own_s > 0) {
        ticket->begin_s = fmax(now_s, wait_last_s(virtual, ticket));
        ticket->end_s = ticket->begin_s + ticket->own_s;
    }
    rank->met_s = fmax(now_s, ticket->end_s);
    return virtual_stop(
        rank, &(struct virtual_stop){
                  .what = VIRTUAL_WAITS,
                  .begin_s = now_s,
                  .end_s = fmax(now_s, ticket->own_s > 0 ? ticket->begin_s : ticket->end_s),
                  .late_s = late_s,
                  .link_s = ticket->own_s > 0 ? 0 : ticket->seconds,
                  .line = ticket->line,
                  .number = ticket->number});
}

enum tess_status virtual_do_wait(struct virtual_rank *rank, const struct virtual_act *act,
                                 bool *waits_out)
{
    struct virtual_comm *virtual = act->of;
    struct virtual_ticket *ticket = &virtual->ticket[act->at];
    if (ticket->line != NULL) {
        if (ticket->pulled && !ticket->arrived)
            TESS_TRY(ticket_arrive(rank, ticket, rank->host_s));
        const struct virtual_call *call = &ticket->line->call[ticket->number];
        *waits_out = ticket->line->done <= ticket->number;
        if (*waits_out)
            return TESS_OK;
        ticket->end_s = call->end_s;
        ticket->begin_s = call->ready_s;
    }
    TESS_TRY(wait_own(virtual, ticket));
    wait_trace(virtual, ticket, TESS_TRACE_CALL, ticket->begin_s);
    TESS_TRY(spans_add(&rank->calls, ticket->begin_s, ticket->end_s));
    return wait_until(virtual, ticket);
}

static enum tess_status comm_wait(struct tess_comm *comm, uint64_t number)
{
    struct virtual_comm *virtual = (struct virtual_comm *)comm;
    const struct virtual_act act = {.what = VIRTUAL_WAIT, .of = virtual, .at = (uint32_t)number};
    if (virtual->ticket[number].completed)
        return TESS_OK;
    virtual->ticket[number].completed = true;
    if (!virtual_later(virtual->rank, act))
        TESS_TRY(virtual_do_wait(virtual->rank, &act, NULL));
    tess_comm_completed(comm, number);
    return TESS_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The arena, where the kernel has no memory of its own. It is never touched. */
static enum tess_status comm_alloc(struct tess_comm *comm, size_t bytes, void **memory_out)
{
    struct virtual_comm *virtual = (struct virtual_comm *)comm;
    for (size_t i = 0; i < sizeof(virtual->memory) / sizeof(*virtual->memory); i++) {
        if (virtual->memory[i] != NULL)
            continue;
        *memory_out = virtual->memory[i] = virtual_map(bytes + 1);
        virtual->memory_bytes[i] = bytes + 1;
        if (*memory_out != NULL)
            return TESS_OK;
    }
    TESS_FAIL(TESS_ERR_MEMORY, "no address space of %zu MiB for a rank's memory", bytes >> 20);
}

static void comm_release(struct tess_comm *comm, void *memory)
{
    struct virtual_comm *virtual = (struct virtual_comm *)comm;
    for (size_t i = 0; i < sizeof(virtual->memory) / sizeof(*virtual->memory); i++) {
        if (virtual->memory[i] != memory)
            continue;
        virtual_unmap(memory, virtual->memory_bytes[i]);
        virtual->memory[i] = NULL;
    }
}

/* ---- groups ---------------------------------------------------------------------------------- */

static const struct tess_comm_ops virtual_comm_ops;

/* The stages' ends of a group: all stages open such groups in the same order. */
static struct virtual_meeting *meeting_of(struct virtual_rank *rank)
{
    struct virtual_world *world = rank->world;
    const size_t stages = (size_t)world->stage_count;
    struct virtual_meeting *meeting = NULL;
    if (rank->met_count < VIRTUAL_MEETINGS_MAX) {
        struct virtual_meeting **place = &world->meeting[rank->met_count++];
        if (*place == NULL)
            *place = calloc(1, sizeof(**place));
        meeting = *place;
    }
    if (meeting != NULL && meeting->message == NULL) {
        meeting->message = calloc(stages * stages, sizeof(*meeting->message));
        meeting->called = calloc(stages + 2 * stages * stages, sizeof(*meeting->called));
        meeting->sent = meeting->called + stages;
        meeting->received = meeting->sent + stages * stages;
    }
    const bool whole = meeting != NULL && meeting->message != NULL && meeting->called != NULL;
    return whole ? meeting : NULL;
}

static void meeting_close(struct virtual_meeting *meeting, int32_t stages)
{
    if (meeting == NULL)
        return;
    for (int32_t i = 0; meeting->message != NULL && i < stages * stages; i++)
        free(meeting->message[i].call);
    free(meeting->all.call);
    free(meeting->message);
    free(meeting->called);
    free(meeting);
}

void virtual_world_fini(struct virtual_world *world)
{
    for (int i = 0; i < VIRTUAL_MEETINGS_MAX; i++)
        meeting_close(world->meeting[i], world->stage_count);
}

static enum tess_status comm_new(struct virtual_rank *rank, const struct tess_plan *plan,
                                 int32_t group, int32_t place, int32_t rank_count,
                                 enum tess_order order, struct virtual_comm **comm_out)
{
    struct virtual_comm *virtual = calloc(1, sizeof(*virtual));
    const bool meets = rank->world->stage_count > 1 &&
                       (group == TESS_PREDICT_ALL || group == (int32_t)TESS_AXIS_STAGE);
    if (virtual != NULL && meets)
        virtual->meeting = meeting_of(rank);
    if (virtual == NULL || (meets && virtual->meeting == NULL)) {
        free(virtual);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a communicator");
    }
    virtual->comm = (struct tess_comm){
        .ops = &virtual_comm_ops, .rank = place, .rank_count = rank_count, .order = order};
    virtual->rank = rank;
    virtual->plan = plan;
    virtual->group = virtual->counted = group;
    virtual->network = *rank->world->network;
    virtual->lane = (struct virtual_queue){.queue.ops = &virtual_queue_ops, .rank = rank};
    *comm_out = virtual;
    return TESS_OK;
}

/*
 * A strategy's parts of its axis: shard groups of neighbours first, then those that have the same
 * place in theirs. Members of the second are as far apart as the first is wide.
 */
static enum tess_status split_shards(const struct virtual_comm *parent, int32_t number,
                                     int32_t color, struct virtual_comm **child_out)
{
    const struct tess_plan *plan = parent->plan;
    const int32_t rank = plan->rank, width = plan->shard_count > 0 ? plan->shard_count : 1;
    const bool shard = number == 0;
    if (parent->group != (int32_t)TESS_AXIS_DATA || parent->below || number > 1 ||
        color != (shard ? rank / width : rank % width))
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "predictions do not know the group that strategy of the %s axis splits off",
                  parent->group == (int32_t)TESS_AXIS_DATA ? "data" : "other");
    TESS_TRY(comm_new(parent->rank, plan, parent->group, shard ? rank % width : rank / width,
                      shard ? width : plan->rank_count / width, parent->comm.order, child_out));
    struct tess_network_group *group = &(*child_out)->network.group[parent->group];
    if (!shard)
        group->host_ranks = group->host_ranks > width ? group->host_ranks / width : 1;
    (*child_out)->below = true;
    return TESS_OK;
}

/* The core splits the axes' groups off the group of all, in order; then come the strategies. */
static enum tess_status comm_split(struct tess_comm *comm, int32_t color, int32_t key,
                                   struct tess_comm **child_out)
{
    struct virtual_comm *parent = (struct virtual_comm *)comm, *child;
    const struct tess_mesh *mesh = &parent->plan->mesh;
    const bool root = comm->rank_count == mesh->rank_count && comm->root == NULL;
    int32_t number = parent->splits++, axes = 0;
    for (int axis = 0; root && axis < TESS_AXIS_COUNT; axis++) {
        if (tess_mesh_is_whole(mesh, (enum tess_axis)axis) || axes++ < number)
            continue;
        TESS_TRY(comm_new(parent->rank, parent->plan, axis, key, mesh->count[axis], comm->order,
                          &child));
        *child_out = &child->comm;
        return TESS_OK;
    }
    if (parent->group == (int32_t)TESS_AXIS_STAGE)
        TESS_TRY(comm_new(parent->rank, parent->plan, parent->group, comm->rank, comm->rank_count,
                          comm->order, &child));
    else
        TESS_TRY(split_shards(parent, number - axes, color, &child));
    *child_out = &child->comm;
    return TESS_OK;
}

/* Ranks of a processor that share memory do. The core asks of all that it takes from here. */
static bool comm_reaches(const struct tess_comm *comm, const void *memory, size_t bytes)
{
    const struct tess_cluster *cluster = &((const struct virtual_comm *)comm)->network.cluster;
    (void)memory, (void)bytes;
    return cluster->busy && cluster->sum_bytes_per_s > 0;
}

/* No stage waits for another one's code. */
static void comm_abort(struct tess_comm *comm, const char *reason)
{
    (void)comm, (void)reason;
}

static void comm_close(struct tess_comm *comm)
{
    struct virtual_comm *virtual = (struct virtual_comm *)comm;
    for (size_t i = 0; i < sizeof(virtual->memory) / sizeof(*virtual->memory); i++)
        virtual_unmap(virtual->memory[i], virtual->memory_bytes[i]);
    free(virtual->ticket);
    free(virtual);
}

static const struct tess_comm_ops virtual_comm_ops = {
    .call = comm_call,
    .wait = comm_wait,
    .alloc = comm_alloc,
    .release = comm_release,
    .split = comm_split,
    .reaches = comm_reaches,
    .abort = comm_abort,
    .close = comm_close,
};

enum tess_status virtual_comm_open(struct virtual_rank *rank, const struct tess_plan *plan,
                                   enum tess_order order, struct tess_comm **comm_out)
{
    const struct tess_mesh *mesh = &plan->mesh;
    struct virtual_comm *virtual;
    int32_t group = TESS_PREDICT_ALL;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (tess_mesh_is_whole(mesh, (enum tess_axis)axis) && group == TESS_PREDICT_ALL)
            group = axis;
    TESS_TRY(comm_new(rank, plan, group, mesh->rank, mesh->rank_count, order, &virtual));
    /* Stages have groups of their own for messages: this one is of all ranks. */
    virtual->counted = group == (int32_t)TESS_AXIS_DATA ? group : TESS_PREDICT_ALL;
    *comm_out = &virtual->comm;
    return TESS_OK;
}
