/* Calls on device memory: faults in the order of work are found by what they do to the result,
 * wrong calls are refused, and the time that calls took is counted. */
#include "comm/cases.h"

#include "base/clock.h"
#include "kernel_open.h"
#include "tessera/check.h"
#include "tessera/registry.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEVICE_COUNT = 3001 };

static void device_sleep(double seconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

/* ---- planted faults -------------------------------------------------------------------------
 *
 * They show on guard_queue, which is late on purpose. On a device they are races, which may be won.
 */

/* Is this rank's result of a collective wrong anywhere? */
static int32_t device_is_wrong(const struct tess_comm *comm, enum tess_collective kind,
                               uint64_t seed, const float *got)
{
    const size_t count = DEVICE_COUNT;
    if (kind == TESS_COLLECTIVE_ALL_GATHER) {
        for (size_t i = 0; i < count * (size_t)comm->rank_count; i++)
            if (!value_is(TESS_F32, seed, (int32_t)(i / count), i % count, &got[i]))
                return 1;
        return 0;
    }
    for (size_t i = 0; i < count; i++)
        if (!value_is_reduced(TESS_F32, TESS_REDUCE_SUM, comm->order, seed, comm->rank_count, i,
                              &got[i]))
            return 1;
    return 0;
}

/* In which step the program is wrong. */
enum device_fault {
    DEVICE_RIGHT,
    DEVICE_UNWAITED,    /* reads the target before the wait */
    DEVICE_OVERWRITTEN, /* writes the source before the wait */
    DEVICE_NO_DONE,     /* the communicator's wait follows no fences */
    DEVICE_NO_READY,    /* its share follows none */
};

/* Put a source, make the call, get the target; `wrong_out`: how many ranks got something else than
 * they should. */
static int device_try(struct tess_comm *comm, enum tess_collective kind, enum device_fault fault,
                      uint64_t seed, int32_t *wrong_out)
{
    const size_t count = DEVICE_COUNT, bytes = count * sizeof(float), n = (size_t)comm->rank_count;
    bool gather = kind == TESS_COLLECTIVE_ALL_GATHER;
    struct place from, other, to;
    WORLD_OK(place_open(comm, bytes, false, &from));
    WORLD_OK(place_open(comm, bytes, false, &other));
    WORLD_OK(place_open(comm, bytes * n, false, &to));
    value_fill(TESS_F32, seed, comm->rank, count, (float *)from.host);
    value_fill(TESS_F32, seed + 1, comm->rank, count, (float *)other.host);
    WORLD_OK(place_put(&other, other.host, bytes));
    WORLD_OK(place_put(&from, from.host, bytes));
    struct tess_event event;
    if (gather)
        WORLD_OK(tess_comm_all_gather(comm, from.at, to.at, count, TESS_F32, &event));
    else
        WORLD_OK(
            tess_comm_all_reduce(comm, from.at, to.at, count, TESS_F32, TESS_REDUCE_SUM, &event));
    struct tess_queue *queue = comm->queue;
    if (fault == DEVICE_OVERWRITTEN)
        WORLD_OK(queue->ops->copy(queue, bytes, other.at, from.at));
    if (fault == DEVICE_UNWAITED)
        WORLD_OK(place_get(&to, to.host, bytes * n));
    WORLD_OK(tess_comm_barrier(comm)); /* all are as far: what follows is no race */
    WORLD_OK(tess_event_wait(&event));
    if (fault == DEVICE_RIGHT) /* no peer may see it */
        WORLD_OK(queue->ops->copy(queue, bytes, other.at, from.at));
    if (fault != DEVICE_UNWAITED)
        WORLD_OK(place_get(&to, to.host, bytes * n));
    int32_t wrong = device_is_wrong(comm, kind, seed, (const float *)to.host);
    WORLD_OK(tess_comm_all_reduce(comm, &wrong, wrong_out, 1, TESS_I32, TESS_REDUCE_SUM, NULL));
    place_close(&from);
    place_close(&other);
    place_close(&to);
    return 0;
}

static int device_fault_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world;
    enum device_fault fault = *(const enum device_fault *)arg;
    for (uint64_t seed = 10; seed < 20; seed += 2) {
        enum tess_collective kind =
            seed % 4 == 0 ? TESS_COLLECTIVE_ALL_GATHER : TESS_COLLECTIVE_ALL_REDUCE;
        int32_t wrong;
        if (device_try(comm, kind, DEVICE_RIGHT, seed, &wrong) != 0)
            return 1;
        WORLD_CHECK(wrong == 0);
        if (device_try(comm, kind, fault, seed, &wrong) != 0)
            return 1;
        WORLD_CHECK(wrong == comm->rank_count);
    }
    return 0;
}

void case_device_unwaited(void **state)
{
    enum device_fault fault = DEVICE_UNWAITED;
    case_run(state, device_fault_rank, &fault);
}

void case_device_overwritten(void **state)
{
    enum device_fault fault = DEVICE_OVERWRITTEN;
    case_run(state, device_fault_rank, &fault);
}

/* Queues that do not follow: a communicator on them is one that forgets its fences. */
static enum tess_status device_follow_nothing(struct tess_queue *queue,
                                              const struct tess_fence *fence)
{
    (void)queue, (void)fence;
    return TESS_OK;
}

/* `ops` of the queue that a rank attaches; `group_ops` of those that are opened from it. */
struct device_queues {
    struct tess_queue_ops ops, group_ops;
};
static struct device_queues device_broken;

static enum tess_status device_open_broken(struct tess_kernel *kernel,
                                           struct tess_queue **queue_out)
{
    TESS_TRY(kernel->queue->ops->open(kernel, queue_out));
    (*queue_out)->ops = &device_broken.group_ops;
    return TESS_OK;
}

/* A communicator whose queue is `comm`'s with faulty operations; the result must be wrong. */
static int device_unfenced_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world;
    enum device_fault fault = *(const enum device_fault *)arg;
    struct tess_queue *queue = comm->queue;
    const struct tess_queue_ops *ops = queue->ops;
    WORLD_OK(tess_comm_attach(comm, NULL));
    queue->ops = &device_broken.ops;
    WORLD_OK(tess_comm_attach(comm, queue));
    int32_t wrong = 0;
    int failed = device_try(comm, TESS_COLLECTIVE_ALL_REDUCE, fault, 30, &wrong);
    WORLD_OK(tess_comm_attach(comm, NULL));
    queue->ops = ops;
    WORLD_OK(tess_comm_attach(comm, queue));
    WORLD_CHECK(failed != 0 || wrong > 0);
    return failed;
}

void case_device_unfenced(void **state)
{
    const struct case_setup *setup = *state;
    const struct tess_kernel_ops *kernel;
    assert_int_equal(tess_registry_get_kernel("guard_queue", &kernel), TESS_OK);
    enum device_fault fault = DEVICE_NO_DONE;
    device_broken.ops = device_broken.group_ops = *kernel->queue;
    device_broken.ops.follow = device_follow_nothing;
    case_run(state, device_unfenced_rank, &fault);

    if (!setup->late || setup->ranks == 1) /* what a rank reads is always ready */
        return;
    fault = DEVICE_NO_READY;
    device_broken.ops = device_broken.group_ops = *kernel->queue;
    device_broken.ops.open = device_open_broken;
    device_broken.group_ops.follow = device_follow_nothing;
    case_run(state, device_unfenced_rank, &fault);
}

/* ---- wrong calls ---------------------------------------------------------------------------- */

static int device_mixed_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    struct place place;
    float host[8] = {1};
    WORLD_OK(place_open(comm, sizeof(host), false, &place));
    WORLD_CHECK(tess_comm_all_reduce(comm, place.at, host, 8, TESS_F32, TESS_REDUCE_SUM, NULL) ==
                TESS_ERR_COMM);
    WORLD_CHECK(strstr(tess_log_last_error(), "source is in device memory") != NULL);
    WORLD_CHECK(strstr(tess_log_last_error(), "target in host memory") != NULL);
    WORLD_CHECK(tess_comm_all_gather(comm, host, place.at, 1, TESS_F32, NULL) == TESS_ERR_COMM);
    WORLD_CHECK(strstr(tess_log_last_error(), "source is in host memory") != NULL);
    /* Nothing of this was queued; both sides by themselves are good. */
    WORLD_OK(tess_comm_all_reduce(comm, host, host, 8, TESS_F32, TESS_REDUCE_SUM, NULL));
    WORLD_CHECK(host[0] == (float)comm->rank_count);
    WORLD_OK(tess_comm_all_reduce(comm, place.at, place.at, 8, TESS_F32, TESS_REDUCE_SUM, NULL));
    place_close(&place);
    return 0;
}

void case_device_mixed(void **state)
{
    case_run(state, device_mixed_rank, NULL);
}

/* Return on rank `one` when all others are here too. What it does then may still stop one that is
 * on its way out of here. */
static enum tess_status device_gather_at(struct tess_comm *comm, int32_t one)
{
    int32_t here = 1;
    if (comm->rank != one)
        return tess_comm_send(comm, &here, 1, TESS_I32, one, NULL);
    for (int32_t r = 0; r < comm->rank_count; r++)
        if (r != one)
            TESS_TRY(tess_comm_recv(comm, &here, 1, TESS_I32, r, NULL));
    return TESS_OK;
}

/* One rank has its data on the host. */
static enum tess_status device_mismatch_call(struct tess_comm *comm, bool message, void *data)
{
    const int32_t last = comm->rank_count - 1;
    if (!message)
        return tess_comm_all_reduce(comm, data, data, 8, TESS_F32, TESS_REDUCE_SUM, NULL);
    if (comm->rank == 0)
        return tess_comm_send(comm, data, 8, TESS_F32, last, NULL);
    if (comm->rank == last)
        return tess_comm_recv(comm, data, 8, TESS_F32, 0, NULL);
    return tess_comm_barrier(comm);
}

static int device_mismatch_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    bool message = *(const bool *)arg;
    struct place place;
    float host[8] = {0};
    WORLD_OK(place_open(comm, sizeof(host), false, &place));
    bool odd = comm->rank == comm->rank_count - 1;
    enum tess_status status = device_gather_at(comm, 0);
    if (status == TESS_OK)
        status = device_mismatch_call(comm, message, odd ? host : (void *)place.at);
    WORLD_CHECK(status == TESS_ERR_COMM || status == TESS_ERR_ABORTED);
    char reason[512];
    WORLD_CHECK(tess_world_aborted(world, NULL, reason, sizeof(reason)));
    WORLD_CHECK(strstr(reason, "differs") != NULL && strstr(reason, "f32") != NULL);
    WORLD_CHECK(strstr(reason, "in device memory") != NULL);
    place_close(&place);
    return 0;
}

void case_device_mismatch(void **state)
{
    for (int message = 0; message < 2; message++)
        case_run(state, device_mismatch_rank, &(bool){message == 1});
}

static int device_processes_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    const struct tess_kernel_ops *ops;
    struct tess_kernel *kernel;
    WORLD_OK(tess_registry_get_kernel("guard_queue", &ops));
    WORLD_OK(tess_kernel_open(ops, 1, &kernel));
    WORLD_OK(tess_comm_attach(comm, kernel->queue));
    struct place place;
    int64_t one = 1;
    WORLD_OK(place_open(comm, sizeof(one), false, &place));
    WORLD_CHECK(tess_comm_all_reduce(comm, place.at, place.at, 1, TESS_I64, TESS_REDUCE_SUM,
                                     NULL) == TESS_ERR_UNSUPPORTED);
    WORLD_CHECK(strstr(tess_log_last_error(), "as threads, or with NCCL") != NULL);
    WORLD_CHECK(strstr(tess_log_last_error(), "all_reduce at cases_device.c:") != NULL);
    WORLD_OK(tess_comm_all_reduce(comm, &one, &one, 1, TESS_I64, TESS_REDUCE_SUM, NULL));
    WORLD_CHECK(one == comm->rank_count);
    place_close(&place);
    WORLD_OK(tess_comm_attach(comm, NULL));
    tess_kernel_close(kernel);
    return 0;
}

void case_device_processes(void **state)
{
    case_run(state, device_processes_rank, NULL);
}

/* ---- more ranks than a queue adds up at once ------------------------------------------------- */

enum { DEVICE_MANY = 66, DEVICE_MANY_COUNT = DEVICE_MANY * 64 + 5 };

/* In slices of all ranks' arrays in place, and each rank from all. */
static int device_many_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    static const enum tess_dtype dtypes[] = {TESS_F32, TESS_BF16};
    const size_t count = DEVICE_MANY_COUNT, own = count / DEVICE_MANY;
    struct place place, part;
    WORLD_OK(place_open(comm, count * sizeof(float), false, &place));
    WORLD_OK(place_open(comm, own * sizeof(float), false, &part));
    for (uint64_t d = 0; d < 2; d++) {
        const enum tess_dtype dtype = dtypes[d];
        const size_t size = tess_dtype_bytes(dtype);
        value_fill(dtype, d, comm->rank, count, place.host);
        WORLD_OK(place_put(&place, place.host, count * size));
        WORLD_OK(
            tess_comm_reduce_scatter(comm, place.at, part.at, own, dtype, TESS_REDUCE_SUM, NULL));
        WORLD_OK(
            tess_comm_all_reduce(comm, place.at, place.at, count, dtype, TESS_REDUCE_SUM, NULL));
        WORLD_OK(place_get(&part, part.host, own * size));
        WORLD_OK(place_get(&place, place.host, count * size));
        for (size_t i = 0; i < own; i++)
            WORLD_CHECK(value_is_reduced(dtype, TESS_REDUCE_SUM, comm->order, d, comm->rank_count,
                                         (size_t)comm->rank * own + i, part.host + i * size));
        for (size_t i = (size_t)comm->rank % 61; i < count; i += 61)
            WORLD_CHECK(value_is_reduced(dtype, TESS_REDUCE_SUM, comm->order, d, comm->rank_count,
                                         i, place.host + i * size));
    }
    place_close(&place);
    place_close(&part);
    return 0;
}

void case_device_many(void **state)
{
    struct case_setup many = *(const struct case_setup *)*state;
    void *setup = &many;
    many.ranks = DEVICE_MANY;
    case_run(&setup, device_many_rank, NULL);
}

/* ---- failures of ranks ---------------------------------------------------------------------- */

static int device_absent_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)arg;
    struct place place;
    WORLD_OK(place_open(comm, 64, false, &place));
    WORLD_OK(tess_comm_barrier(comm));
    if (comm->rank == 0) {
        struct tess_board *board = tess_world_board(world, comm->rank);
        atomic_store(&board->doing, TESS_DOING_BACKWARD);
        atomic_store(&board->unit, 2);
        while (!tess_world_aborted(world, NULL, NULL, 0))
            device_sleep(1e-3);
        place_close(&place);
        return 0;
    }
    enum tess_status status =
        tess_comm_all_reduce(comm, place.at, place.at, 8, TESS_I64, TESS_REDUCE_SUM, NULL);
    WORLD_CHECK(status == TESS_ERR_TIMEOUT || status == TESS_ERR_ABORTED);
    const char *text = tess_log_last_error();
    if (strstr(text, "rank 0 has not called it") == NULL || strstr(text, "all_reduce ") == NULL ||
        strstr(text, "in backward of unit 2") == NULL)
        return world_fail("unexpected: %s", text);
    place_close(&place);
    return 0;
}

void case_device_absent(void **state)
{
    const struct case_setup *setup = *state;
    double seconds;
    assert_int_equal(case_run_limited(setup, 1.0, device_absent_rank, NULL, &seconds), 0);
    assert_true(seconds < 4.0);
}

static int device_abort_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    struct place place;
    WORLD_OK(place_open(comm, 64, false, &place));
    enum tess_status status = device_gather_at(comm, comm->rank_count - 1);
    if (comm->rank == comm->rank_count - 1) {
        WORLD_OK(status);
        device_sleep(0.05);
        tess_comm_abort(comm, "the disk is full");
        place_close(&place);
        return 0;
    }
    if (status == TESS_OK)
        status =
            comm->rank % 2 == 0
                ? tess_comm_all_reduce(comm, place.at, place.at, 8, TESS_I64, TESS_REDUCE_SUM, NULL)
                : tess_comm_recv(comm, place.at, 8, TESS_I64, comm->rank_count - 1, NULL);
    WORLD_CHECK(status == TESS_ERR_ABORTED);
    WORLD_CHECK(strstr(tess_log_last_error(), "the disk is full") != NULL);
    place_close(&place);
    return 0;
}

void case_device_abort(void **state)
{
    case_run(state, device_abort_rank, NULL);
}

/* ---- time ----------------------------------------------------------------------------------- */

static enum tess_status device_finish(struct tess_comm *comm)
{
    struct tess_queue *queue = comm->queue;
    struct tess_fence *fence;
    TESS_TRY(queue->ops->fence_open(queue->kernel, &fence));
    enum tess_status status = queue->ops->record(queue, fence);
    TESS_KEEP(status, queue->ops->wait(fence));
    queue->ops->fence_close(fence);
    return status;
}

/*
 * Two calls in two groups, 20 ms of something else, then both waits: both were under way for those
 * 20 ms, and the family for them once. A GPU has done them meanwhile, and they were not. (A lazy
 * kernels' queue stands at the calls only when all is waited for: the 20 ms are not on it.)
 */
static int device_settle_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world;
    const struct case_setup *setup = arg;
    struct tess_comm *child;
    struct place place;
    struct tess_event event[2];
    WORLD_OK(tess_comm_split(comm, 0, comm->rank, &child));
    WORLD_OK(place_open(comm, 2 * DEVICE_COUNT * sizeof(float), false, &place));
    float *data = (float *)place.at, *next = data + DEVICE_COUNT;
    WORLD_OK(
        tess_comm_all_reduce(comm, data, data, DEVICE_COUNT, TESS_F32, TESS_REDUCE_SUM, &event[0]));
    WORLD_OK(tess_comm_all_reduce(child, next, next, DEVICE_COUNT, TESS_F32, TESS_REDUCE_SUM,
                                  &event[1]));
    WORLD_CHECK(comm->stats.calls[TESS_COLLECTIVE_ALL_REDUCE] == 1);
    WORLD_OK(tess_comm_barrier(comm)); /* on the host: all have called */
    double host_wait_s = comm->stats.wait_s, host_flight_s = comm->stats.flight_s;
    double host_family_s = tess_comm_family_flight_s(comm);
    device_sleep(0.02);
    WORLD_OK(tess_event_wait(&event[0]));
    WORLD_OK(tess_event_wait(&event[1]));
    WORLD_CHECK(comm->stats.wait_s == host_wait_s && comm->stats.flight_s == host_flight_s);
    WORLD_OK(device_finish(comm));
    WORLD_OK(tess_comm_settle(comm));
    double wait_s = comm->stats.wait_s - host_wait_s,
           flight_s = comm->stats.flight_s - host_flight_s;
    double child_s = child->stats.flight_s,
           family_s = tess_comm_family_flight_s(comm) - host_family_s;
    WORLD_CHECK(wait_s >= 0 && child->stats.wait_s >= 0);
    const double last = 1e-9; /* of sums in another order */
    WORLD_CHECK(flight_s >= wait_s - last && child_s >= child->stats.wait_s - last);
    WORLD_CHECK(family_s >= flight_s - last && family_s >= child_s - last);
    WORLD_CHECK(family_s <= flight_s + child_s + last);
    /* By itself a rank is done at once. */
    bool sleeps = !setup->late && setup->ranks > 1 && setup->module == NULL;
    WORLD_CHECK(!sleeps || (flight_s >= 0.02 && child_s >= 0.02 && family_s >= 0.02));
    WORLD_CHECK(!sleeps || family_s <= flight_s + child_s - 0.015);
    WORLD_OK(tess_comm_settle(comm)); /* nothing is counted twice */
    WORLD_CHECK(comm->stats.flight_s - host_flight_s == flight_s);
    tess_comm_untimed(child, true);
    WORLD_OK(tess_comm_all_reduce(child, data, data, 4, TESS_F32, TESS_REDUCE_MAX, &event[0]));
    WORLD_OK(tess_event_wait(&event[0]));
    tess_comm_untimed(child, false);

    /* More calls than there are marks, of which every third is never waited for. */
    for (int k = 0; k < 2000; k++) {
        WORLD_OK(tess_comm_all_reduce(comm, data, data, 4, TESS_F32, TESS_REDUCE_MAX, &event[0]));
        if (k % 3 != 0)
            WORLD_OK(tess_event_wait(&event[0]));
    }
    WORLD_OK(tess_event_wait(&event[0]));
    WORLD_OK(device_finish(comm));
    WORLD_OK(tess_comm_settle(comm));
    WORLD_CHECK(comm->stats.flight_s - host_flight_s >= flight_s && comm->flight_count == 0);
    place_close(&place);
    tess_comm_close(child);
    return 0;
}

void case_device_settle(void **state)
{
    case_run(state, device_settle_rank, *state);
}

/*
 * One call stays open while more others pass than there are marks at first. It is still counted by
 * the device's clock: the host's would count its wait at once.
 */
static int device_open_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    struct place place;
    struct tess_event open, event;
    WORLD_OK(place_open(comm, 2 * sizeof(float), false, &place));
    float *data = (float *)place.at;
    const double host_flight_s = comm->stats.flight_s, host_wait_s = comm->stats.wait_s;
    const double host_family_s = tess_comm_family_flight_s(comm);
    WORLD_OK(tess_comm_all_reduce(comm, data, data, 1, TESS_F32, TESS_REDUCE_SUM, &open));
    for (int k = 0; k < 1200; k++) {
        WORLD_OK(
            tess_comm_all_reduce(comm, data + 1, data + 1, 1, TESS_F32, TESS_REDUCE_SUM, &event));
        WORLD_OK(tess_event_wait(&event));
        WORLD_CHECK(comm->flight_count == 0);
    }
    const double wait_s = comm->stats.wait_s;
    WORLD_OK(tess_event_wait(&open));
    WORLD_CHECK(comm->stats.wait_s == wait_s);
    WORLD_OK(device_finish(comm));
    WORLD_OK(tess_comm_settle(comm));
    const double flight_s = comm->stats.flight_s - host_flight_s;
    WORLD_CHECK(flight_s > 0 && flight_s >= comm->stats.wait_s - host_wait_s - 1e-9);
    WORLD_CHECK(tess_comm_family_flight_s(comm) - host_family_s >= flight_s - 1e-9);
    place_close(&place);
    return 0;
}

void case_device_open(void **state)
{
    case_run(state, device_open_rank, NULL);
}
