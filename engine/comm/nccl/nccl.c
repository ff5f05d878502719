/*
 * The communicator between devices, over NCCL: its life, its groups, and how calls are made and
 * waited for. A call on device memory is put between two points of the kernels' queue, and the host
 * waits for nothing:
 *
 *     kernels   ...| record ready           ...          follow done |...
 *     lane              follow ready | NCCL | record done
 *
 * What NCCL does for a call is in nccl_run.c, calls on host memory in nccl_host.c, messages in
 * nccl_channel.c, failures in nccl_family.c.
 */
#include "comm/nccl/nccl.h"
#include "comm/nccl/nccl_group.h"
#include "cuda/host.h"

#include "base/hash.h"
#include "comm/call.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NCCL_OLDEST 22200 /* 2.22: ncclCommAbort of several at once */

static const struct tess_comm_ops nccl_ops;

static struct nccl_group *group_of(struct tess_comm *comm)
{
    return (struct nccl_group *)comm;
}

/* NCCL binds its threads, and at times its caller with them; and takes memory. */
struct nccl_before {
    cpu_set_t cores;
    bool bound;
    uint64_t free_bytes;
};

static struct nccl_before nccl_before(void)
{
    struct nccl_before before = {.free_bytes = tess__cuda_free_bytes()};
    before.bound = sched_getaffinity(0, sizeof(before.cores), &before.cores) == 0;
    return before;
}

static void nccl_after(const struct nccl_family *family, const struct nccl_before *before)
{
    if (before->bound)
        (void)sched_setaffinity(0, sizeof(before->cores), &before->cores);
    tess__cuda_usage_took(family->device, CUDA_USAGE_COMM, before->free_bytes);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static struct nccl_record *group_record(struct nccl_group *group, uint64_t ticket)
{
    return &group->record[ticket % NCCL_RECORDS];
}

/* The call is complete for what comes after: the kernels follow it, or its data are there. */
static enum tess_status group_end(struct nccl_group *group, struct nccl_record *record)
{
    if (record->state == NCCL_DONE)
        return TESS_OK;
    if (record->state == NCCL_ON_HOST)
        return tess__nccl_host_finish(group, record->slot);
    struct tess_queue *kernels = group->comm.queue;
    /* A fence that a later call of the lane has taken over holds back a little longer. */
    TESS_TRY(kernels->ops->follow(kernels, record->lane->done[record->given % NCCL_FENCES]));
    record->state = NCCL_DONE;
    tess_comm_completed(&group->comm, record->ticket);
    return TESS_OK;
}

static enum tess_status group_lane(struct nccl_group *group, const struct tess_comm_call *call,
                                   struct nccl_lane **lane_out)
{
    int32_t rank = group->comm.rank;
    bool gathers = call->collective == TESS_COLLECTIVE_ALL_GATHER ||
                   call->collective == TESS_COLLECTIVE_BROADCAST;
    const bool sends = call->collective == TESS_COLLECTIVE_SEND;
    if (sends || call->collective == TESS_COLLECTIVE_RECV) {
        struct nccl_channel *channel;
        TESS_TRY(tess__nccl_channel_get(group, sends ? rank : call->peer, sends ? call->peer : rank,
                                        call->device, &channel));
        *lane_out = &channel->lane;
        return TESS_OK;
    }
    *lane_out = &group->lane[gathers && call->device ? NCCL_GATHERS : NCCL_SUMS];
    return TESS_OK;
}

static enum tess_status group_call_device(struct nccl_group *group, struct nccl_lane *lane,
                                          const struct tess_comm_call *call,
                                          struct nccl_record *record)
{
    struct tess_queue *kernels = group->comm.queue;
    const struct tess_queue_ops *ops = kernels->ops;
    TESS_TRY(ops->record(kernels, lane->ready));
    TESS_TRY(ops->follow(lane->queue, lane->ready));
    TESS_TRY(tess__nccl_run(group, lane, call));
    tess_comm_called(&group->comm, call, record->ticket);
    /* Before the fence, so that a waiter that has passed it finds the call's time. */
    tess_comm_given(&group->comm, record->ticket, lane->queue);
    record->lane = lane;
    record->given = ++lane->given;
    TESS_TRY(ops->record(lane->queue, lane->done[record->given % NCCL_FENCES]));
    record->state = NCCL_ON_DEVICE;
    return TESS_OK;
}

static enum tess_status nccl_call(struct tess_comm *comm, const struct tess_comm_call *call,
                                  uint64_t *ticket_out)
{
    struct nccl_group *group = group_of(comm);
    struct nccl_record *record = group_record(group, group->calls + 1);
    struct nccl_lane *lane;
    TESS_TRY(tess__nccl_check(group->family));
    TESS_TRY(group_end(group, record)); /* of NCCL_RECORDS calls ago */
    *record = (struct nccl_record){.ticket = ++group->calls};
    *ticket_out = record->ticket;
    if (call->count == 0 && call->collective != TESS_COLLECTIVE_BARRIER) {
        tess_comm_called(comm, call, record->ticket);
        tess_comm_completed(comm, record->ticket);
        return TESS_OK;
    }
    TESS_TRY(group_lane(group, call, &lane));
    if (call->device) {
        TESS_TRY(group_call_device(group, lane, call, record));
    } else {
        enum tess_status status = tess__nccl_host_start(group, lane, call, record);
        if (status != TESS_OK) {
            record->state = NCCL_DONE; /* there is nothing to wait for */
            return status;
        }
        tess_comm_called(comm, call, record->ticket);
    }
    tess__nccl_count(group, call);
    return tess__nccl_lane_note(group->family, lane, call, record->ticket);
}

static enum tess_status nccl_wait(struct tess_comm *comm, uint64_t ticket)
{
    struct nccl_group *group = group_of(comm);
    struct nccl_record *record = group_record(group, ticket);
    TESS_TRY(tess__nccl_check(group->family));
    return record->ticket == ticket ? group_end(group, record) : TESS_OK;
}

/* Has the call come to its end by itself? */
static enum tess_status group_look(struct nccl_group *group, struct nccl_record *record)
{
    bool reached = false;
    if (record->state == NCCL_DONE)
        return TESS_OK;
    if (record->state == NCCL_ON_DEVICE) {
        const struct tess_queue_ops *ops = group->comm.queue->ops;
        TESS_TRY(ops->reached(record->lane->done[record->given % NCCL_FENCES], &reached));
        if (reached)
            record->state = NCCL_DONE;
        if (reached)
            tess_comm_completed(&group->comm, record->ticket);
        return TESS_OK;
    }
    TESS_TRY(tess__nccl_host_reached(record->slot, &reached));
    return reached ? tess__nccl_host_finish(group, record->slot) : TESS_OK;
}

/* The oldest calls that have not been waited for; the watch looks for errors meanwhile. */
static enum tess_status nccl_poll(struct tess_comm *comm)
{
    struct nccl_group *group = group_of(comm);
    TESS_TRY(tess__nccl_check(group->family));
    if (group->calls - group->polled > NCCL_RECORDS)
        group->polled = group->calls - NCCL_RECORDS;
    while (group->polled < group->calls) {
        struct nccl_record *record = group_record(group, group->polled + 1);
        TESS_TRY(group_look(group, record));
        if (record->state != NCCL_DONE)
            break;
        group->polled++;
    }
    return TESS_OK;
}

static void nccl_abort(struct tess_comm *comm, const char *reason)
{
    struct nccl_family *family = group_of(comm)->family;
    pthread_mutex_lock(&family->lock);
    family->logged = true; /* the caller has logged the reason */
    pthread_mutex_unlock(&family->lock);
    tess__nccl_notify(family, reason);
    tess__nccl_break(family, TESS_ERR_ABORTED, reason);
}

static enum tess_status nccl_attach(struct tess_comm *comm, struct tess_queue *queue)
{
    struct nccl_group *group = group_of(comm);
    if (queue == NULL) {
        tess__nccl_group_detach(group);
        return TESS_OK;
    }
    struct nccl_before before = nccl_before();
    enum tess_status status = tess__nccl_group_attach(group, queue);
    nccl_after(group->family, &before);
    return status;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static bool group_lists(struct nccl_group *group, int32_t rank_count)
{
    group->member = calloc((size_t)rank_count, sizeof(*group->member));
    group->host = calloc((size_t)rank_count, sizeof(*group->host));
    group->part = calloc((size_t)rank_count, sizeof(*group->part));
    group->source = calloc((size_t)rank_count, sizeof(*group->source));
    return group->member != NULL && group->host != NULL && group->part != NULL &&
           group->source != NULL;
}

static void group_free(struct nccl_group *group)
{
    if (group == NULL)
        return;
    free(group->member);
    free(group->host);
    free(group->part);
    free(group->source);
    free(group);
}

static enum tess_status group_new(struct nccl_family *family, int32_t rank, int32_t rank_count,
                                  enum tess_order order, struct nccl_group **group_out)
{
    struct nccl_group *group = calloc(1, sizeof(*group));
    if (group == NULL || !group_lists(group, rank_count)) {
        group_free(group);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a communicator");
    }
    group->family = family;
    group->comm = (struct tess_comm){.ops = &nccl_ops,
                                     .rank = rank,
                                     .rank_count = rank_count,
                                     .order = order,
                                     .device_memory = true};
    pthread_mutex_lock(&family->lock);
    LIST_INSERT_HEAD(&family->groups, group, link);
    pthread_mutex_unlock(&family->lock);
    *group_out = group; /* from here on close frees it */
    TESS_TRY(tess__nccl_lane_open(&group->lane[NCCL_SUMS]));
    return tess__nccl_host_open(group);
}

static void family_free(struct nccl_family *family)
{
    tess__nccl_unwatch(family);
    /* Requested by a peer when this rank had left the group already. */
    tess__nccl_channels_close(family, NULL);
    tess__nccl_post_close(family);
    if (family->greeting != NULL)
        tess__cuda_log_error(cudaFree(family->greeting), "cudaFree");
    pthread_cond_destroy(&family->changed);
    pthread_mutex_destroy(&family->lock);
    free(family->host);
    free(family);
}

static void nccl_close(struct tess_comm *comm)
{
    struct nccl_group *group = group_of(comm);
    struct nccl_family *family = group->family;
    tess__nccl_group_detach(group);
    if (!tess__nccl_wait_aborted(family) || tess__cuda_hangs())
        return;
    tess__nccl_channels_close(family, group);
    tess__nccl_release_all(group);
    for (int way = NCCL_LANES - 1; way >= 0; way--) {
        tess__nccl_unregister(family, &group->lane[way]);
        tess__nccl_lane_close(family, &group->lane[way]);
    }
    tess__nccl_host_close(group);
    if (group->plain.memory != NULL)
        tess__cuda_log_error(cudaFree(group->plain.memory), "cudaFree");
    pthread_mutex_lock(&family->lock);
    LIST_REMOVE(group, link);
    bool last = LIST_EMPTY(&family->groups);
    pthread_mutex_unlock(&family->lock);
    group_free(group);
    if (last)
        family_free(family);
}

static enum tess_status split_open(struct nccl_group *parent, ncclComm_t comm, uint64_t id,
                                   int32_t rank, int32_t count, const int32_t *member,
                                   struct tess_comm **child_out)
{
    struct nccl_group *group = NULL;
    enum tess_status status = group_new(parent->family, rank, count, parent->comm.order, &group);
    if (status == TESS_OK) {
        group->id = id;
        for (int32_t i = 0; i < count; i++)
            group->member[i] = parent->member[member[i]];
        tess__nccl_group_shape(group);
        status = tess__nccl_lane_take(parent->family, &group->lane[NCCL_SUMS], comm);
    } else {
        /* The others of the part have it, and this rank does not: all fail, and it is ended. */
        tess__nccl_break(parent->family, status, "no room for a communicator");
        (void)tess__nccl_lane_take(parent->family, &parent->lane[NCCL_SUMS], comm);
    }
    if (status == TESS_OK)
        *child_out = &group->comm;
    else if (group != NULL)
        nccl_close(&group->comm);
    return status;
}

static int split_compare(const void *a, const void *b)
{
    const int32_t x = ((const struct tess__split *)a)->color;
    const int32_t y = ((const struct tess__split *)b)->color;
    return (x > y) - (x < y);
}

/* Are there ranks that stay together? Sorts them. */
static bool split_joins(struct tess__split *all, int32_t rank_count)
{
    qsort(all, (size_t)rank_count, sizeof(*all), split_compare);
    for (int32_t r = 1; r < rank_count; r++)
        if (all[r - 1].color == all[r].color)
            return true;
    return false;
}

/* `all`, `member` [rank_count]: room. */
static enum tess_status split_run(struct nccl_group *parent, struct tess__split mine,
                                  struct tess__split *all, int32_t *member,
                                  struct tess_comm **child_out)
{
    struct tess_comm *comm = &parent->comm;
    const int32_t color = mine.color;
    int32_t rank = 0;
    ncclComm_t made = NULL;
    TESS_TRY(tess__nccl_host_gather(parent, &mine, sizeof(mine), all));
    int32_t count = tess__split_members(all, comm->rank_count, comm->rank, member, &rank);
    enum tess_status status = TESS_OK;
    uint64_t id = 0;
    if (split_joins(all, comm->rank_count)) {
        id = tess_hash_mix(parent->id ^ tess_hash_mix(++parent->splits)) + (uint64_t)color;
        /* Those that are alone take part too: NCCL asks it of all ranks. */
        status = tess__nccl_lane_split(parent->family, &parent->lane[NCCL_SUMS],
                                       count > 1 ? color : -1, rank, &made);
    }
    if (status == TESS_OK)
        status = count > 1 ? split_open(parent, made, id, rank, count, member, child_out)
                           : tess_comm_self_open(comm->order, child_out);
    return status;
}

static enum tess_status nccl_split(struct tess_comm *comm, int32_t color, int32_t key,
                                   struct tess_comm **child_out)
{
    struct nccl_group *parent = group_of(comm);
    TESS_TRY(tess__nccl_check(parent->family));
    struct nccl_before before = nccl_before();
    struct tess__split *all = calloc((size_t)comm->rank_count, sizeof(*all));
    int32_t *member = calloc((size_t)comm->rank_count, sizeof(*member));
    enum tess_status status =
        all != NULL && member != NULL
            ? split_run(parent, (struct tess__split){color, key}, all, member, child_out)
            : tess_fail(TESS_ERR_MEMORY, "no memory to split a communicator");
    free(all);
    free(member);
    nccl_after(parent->family, &before);
    return status;
}

static const struct tess_comm_ops nccl_ops = {
    .call = nccl_call,
    .wait = nccl_wait,
    .poll = nccl_poll,
    .attach = nccl_attach,
    .meet = tess__nccl_meet,
    .alloc = tess__nccl_alloc,
    .release = tess__nccl_release,
    .split = nccl_split,
    .abort = nccl_abort,
    .close = nccl_close,
};

/* What the ranks exchange before there is anything of NCCL's. */
struct nccl_hello {
    ncclUniqueId id; /* rank 0's */
    int32_t version, order;
    int64_t scratch_bytes;
    bool registers; /* see struct nccl_family */
    char host[256], bus[32];
};

static int hello_compare(const void *a, const void *b)
{
    const struct nccl_hello *x = *(const struct nccl_hello *const *)a;
    const struct nccl_hello *y = *(const struct nccl_hello *const *)b;
    const int host = strncmp(x->host, y->host, sizeof(x->host));
    const int bus = strncmp(x->bus, y->bus, sizeof(x->bus));
    return host != 0 ? host : bus != 0 ? bus : x < y ? -1 : x > y;
}

/* Which ranks share a host: host[r] is the first of them. Of a device that two have, an error. */
static enum tess_status open_hosts(const struct nccl_hello *all, int32_t rank_count, int32_t *host)
{
    const struct nccl_hello **sorted = calloc((size_t)rank_count, sizeof(*sorted));
    enum tess_status status = TESS_OK;
    if (sorted == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to compare the ranks' devices");
    for (int32_t r = 0; r < rank_count; r++)
        sorted[r] = &all[r];
    qsort(sorted, (size_t)rank_count, sizeof(*sorted), hello_compare);
    for (int32_t i = 0, end; i < rank_count && status == TESS_OK; i = end) {
        ptrdiff_t first = sorted[i] - all;
        for (end = i + 1; end < rank_count &&
                          strncmp(sorted[i]->host, sorted[end]->host, sizeof(sorted[i]->host)) == 0;
             end++) {
            const struct nccl_hello *one = sorted[end - 1], *two = sorted[end];
            first = two - all < first ? two - all : first;
            /* With a host's name of its own for each rank NCCL can be tried on one device. */
            if (status == TESS_OK && strncmp(one->bus, two->bus, sizeof(one->bus)) == 0)
                status = tess_fail(
                    TESS_ERR_USAGE,
                    "ranks %d and %d are both on device %.32s of %.64s: NCCL takes one rank on "
                    "each device; start fewer ranks, or run them as threads with --comm local",
                    (int)(one - all), (int)(two - all), two->bus, two->host);
        }
        for (int32_t k = i; k < end; k++)
            host[sorted[k] - all] = (int32_t)first;
    }
    free(sorted);
    return status;
}

/* NCCL would find these too, later and in other words. */
static enum tess_status open_compare(const struct nccl_hello *all, int32_t rank_count)
{
    for (int32_t r = 1; r < rank_count; r++) {
        if (all[r].version != all[0].version)
            TESS_FAIL(
                TESS_ERR_UNSUPPORTED,
                "rank 0 has NCCL version code %d, rank %d has %d: install the same everywhere",
                (int)all[0].version, (int)r, (int)all[r].version);
        if (all[r].order != all[0].order)
            TESS_FAIL(TESS_ERR_USAGE, "rank 0 and rank %d were given different --reduce", (int)r);
        if (all[r].scratch_bytes != all[0].scratch_bytes)
            TESS_FAIL(TESS_ERR_USAGE, "rank 0 and rank %d were given different --comm.nccl.scratch",
                      (int)r);
    }
    return TESS_OK;
}

/* As NCCL reads it. */
static bool open_registers(void)
{
    const char *text = getenv("NCCL_LOCAL_REGISTER");
    return text == NULL || strtol(text, NULL, 0) != 0;
}

static enum tess_status open_meet(struct nccl_family *family, const struct tess_boot *boot,
                                  enum tess_order order, ncclUniqueId *id_out)
{
    struct nccl_hello mine = {.version = family->version,
                              .order = (int32_t)order,
                              .scratch_bytes = family->choices.scratch_bytes,
                              .registers = open_registers()};
    struct nccl_hello *all = calloc((size_t)boot->rank_count, sizeof(*all));
    if (all == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what the ranks send about themselves");
    ncclResult_t result = boot->rank == 0 ? ncclGetUniqueId(&mine.id) : ncclSuccess;
    cudaError_t error = cudaDeviceGetPCIBusId(mine.bus, sizeof(mine.bus), family->device);
    enum tess_status status = TESS_OK;
    if (result != ncclSuccess)
        status = tess_fail(TESS_ERR_COMM,
                           "rank 0 cannot listen for NCCL: %s (NCCL_SOCKET_IFNAME "
                           "chooses the network)",
                           ncclGetErrorString(result));
    else if (error != cudaSuccess)
        status = tess__cuda_fail(error, "cudaDeviceGetPCIBusId");
    /* As NCCL distinguishes hosts. */
    if (getenv("NCCL_HOSTID") != NULL)
        snprintf(mine.host, sizeof(mine.host), "%s", getenv("NCCL_HOSTID"));
    else
        (void)gethostname(mine.host, sizeof(mine.host) - 1);
    if (status == TESS_OK)
        status = boot->gather(boot->context, &mine, sizeof(mine), all);
    if (status == TESS_OK)
        status = open_compare(all, boot->rank_count);
    if (status == TESS_OK)
        status = open_hosts(all, boot->rank_count, family->host);
    family->registers = true;
    for (int32_t r = 0; r < boot->rank_count && status == TESS_OK; r++)
        family->registers = family->registers && all[r].registers;
    if (status == TESS_OK)
        *id_out = all[0].id;
    free(all);
    return status;
}

static enum tess_status open_root(struct nccl_family *family, const struct tess_boot *boot,
                                  enum tess_order order, struct nccl_group **root_out)
{
    ncclUniqueId id;
    ncclConfig_t config;
    void *greeting = NULL;
    TESS_TRY(group_new(family, boot->rank, boot->rank_count, order, root_out));
    struct nccl_group *root = *root_out;
    for (int32_t r = 0; r < boot->rank_count; r++)
        root->member[r] = r;
    root->id = 1;
    CUDA_TRY(cudaMalloc(&greeting, 2));
    family->greeting = greeting;
    TESS_TRY(open_meet(family, boot, order, &id));
    tess__nccl_group_shape(root);
    TESS_TRY(tess__nccl_post_open(family, boot));
    tess__nccl_config(family, &config);
    pthread_mutex_lock(&family->lock);
    ncclComm_t *comm = &root->lane[NCCL_SUMS].comm;
    ncclResult_t result = ncclCommInitRankConfig(comm, boot->rank_count, id, boot->rank, &config);
    enum tess_status status =
        tess__nccl_taken(family, comm, result, "ncclCommInitRankConfig", NULL);
    pthread_mutex_unlock(&family->lock);
    TESS_TRY(status);
    return tess__nccl_watch(family);
}

static enum tess_status open_check(const struct tess_comm_choices *choices, int *version_out)
{
    int version = 0;
    ncclResult_t result = ncclGetVersion(&version);
    if (result != ncclSuccess || version < NCCL_OLDEST)
        TESS_FAIL(
            TESS_ERR_UNSUPPORTED,
            "NCCL %d.%d.%d is too old: at least 2.22 is needed; put a newer libnccl.so.2 before "
            "it in LD_LIBRARY_PATH",
            version / 10000, version / 100 % 100, version % 100);
    /* The field is in newer libraries' structs only. */
    if (choices->cta_policy > 0 && version < NCCL_VERSION_CODE)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "--comm.nccl.cta-policy needs NCCL %d.%d.%d, with which this was built, and "
                  "%d.%d.%d is installed",
                  NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, version / 10000, version / 100 % 100,
                  version % 100);
    *version_out = version;
    return TESS_OK;
}

enum tess_status tess__nccl_open(const struct tess_boot *boot, struct tess_world *world,
                                 enum tess_order order, double timeout_s,
                                 const struct tess_comm_choices *choices,
                                 struct tess_comm **comm_out)
{
    int version = 0, device = -1;
    TESS_TRY(open_check(choices, &version));
    if (boot->rank_count == 1)
        return tess_comm_self_open(order, comm_out);
    CUDA_TRY(cudaGetDevice(&device));
    struct nccl_family *family = calloc(1, sizeof(*family));
    int32_t *host = calloc((size_t)boot->rank_count, sizeof(*host));
    if (family == NULL || host == NULL) {
        free(family);
        free(host);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a communicator");
    }
    family->host = host;
    /* A world of one is that of this process alone; in others ranks could not be identified. */
    int32_t here = world != NULL ? tess_world_rank_count(world) : 0;
    family->world = here == 1 || here == boot->rank_count ? world : NULL;
    family->place = here == boot->rank_count ? boot->rank : 0;
    family->rank = boot->rank;
    family->rank_count = boot->rank_count;
    family->device = device;
    family->version = version;
    family->choices = *choices;
    family->timeout_s = timeout_s;
    pthread_mutex_init(&family->lock, NULL);
    pthread_cond_init(&family->changed, NULL);
    struct nccl_before before = nccl_before();
    struct nccl_group *root = NULL;
    enum tess_status status = open_root(family, boot, order, &root);
    nccl_after(family, &before);
    if (status == TESS_OK) {
        *comm_out = &root->comm;
        return TESS_OK;
    }
    if (root != NULL)
        nccl_close(&root->comm);
    else
        family_free(family);
    return status;
}
