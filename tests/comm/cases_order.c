/* Calls that overlap: several outstanding events, groups within groups, crossing messages, random
 * programs; and that waiting costs no processor time. */
#include "comm/cases.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Many calls in flight, waited for in another order than they were made; sources of small calls may
 * be as many as fit the queue, and more. */
static int order_outstanding_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    enum { CALLS = 40, BIG = 9000 };
    struct tess_event event[CALLS];
    struct place private, shared;
    WORLD_OK(place_open(comm, CALLS * BIG * sizeof(float), true, &shared));
    WORLD_OK(place_open(comm, CALLS * BIG * sizeof(float), false, &private));
    for (int k = 0; k < CALLS; k++) {
        const struct place *place = k % 3 == 0 ? &shared : &private;
        float *data = (float *)place->host + (size_t)k * BIG;
        size_t count = k % 2 == 0 ? BIG : 10;
        value_fill(TESS_F32, (uint64_t)k, comm->rank, count, data);
        WORLD_OK(place_put(place, data, count * sizeof(*data)));
        void *at = place_at(place, data);
        WORLD_OK(tess_comm_all_reduce(comm, at, at, count, TESS_F32, TESS_REDUCE_SUM, &event[k]));
        if (k % 5 == 0)
            WORLD_OK(tess_comm_poll(comm));
    }
    for (int i = 0; i < CALLS; i++) {
        int k = i * 17 % CALLS; /* every one once: 17 and 40 have no common factor */
        WORLD_OK(tess_event_wait(&event[k]));
        WORLD_OK(tess_event_wait(&event[k])); /* cleared: returns at once */
        const struct place *place = k % 3 == 0 ? &shared : &private;
        float *data = (float *)place->host + (size_t)k * BIG;
        WORLD_OK(place_get(place, data, (k % 2 == 0 ? BIG : 10) * sizeof(*data)));
        for (size_t e = 0; e < (k % 2 == 0 ? BIG : 10); e++)
            WORLD_CHECK(value_is_reduced(TESS_F32, TESS_REDUCE_SUM, comm->order, (uint64_t)k,
                                         comm->rank_count, e, &data[e]));
    }
    place_close(&private);
    place_close(&shared);

    /* More than any queue holds. */
    enum { MANY = 700 };
    struct tess_event *many = calloc(MANY, sizeof(*many));
    struct place place;
    WORLD_OK(place_open(comm, MANY * sizeof(int64_t), false, &place));
    WORLD_CHECK(many != NULL);
    int64_t *number = (int64_t *)place.host;
    for (int k = 0; k < MANY; k++) {
        number[k] = comm->rank + k;
        WORLD_OK(place_put(&place, &number[k], sizeof(*number)));
        void *at = place_at(&place, &number[k]);
        WORLD_OK(tess_comm_all_reduce(comm, at, at, 1, TESS_I64, TESS_REDUCE_SUM, &many[k]));
    }
    int64_t n = comm->rank_count;
    for (int k = MANY - 1; k >= 0; k--) {
        WORLD_OK(tess_event_wait(&many[k]));
        WORLD_OK(place_get(&place, &number[k], sizeof(*number)));
        WORLD_CHECK(number[k] == n * k + n * (n - 1) / 2);
    }
    free(many);
    place_close(&place);
    return 0;
}

void case_outstanding(void **state)
{
    case_run(state, order_outstanding_rank, NULL);
}

/* A small source belongs to the caller again as soon as the event is waited for, and what peers get
 * is what it held at the call. */
static int order_group_sums(struct tess_comm *comm, int64_t own, int64_t expected)
{
    int64_t sum = 0;
    WORLD_OK(tess_comm_all_reduce(comm, &own, &sum, 1, TESS_I64, TESS_REDUCE_SUM, NULL));
    WORLD_CHECK(sum == expected);
    return 0;
}

static int order_groups_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    int32_t n = comm->rank_count, rank = comm->rank;
    /* More than there are slots: they are used again. Each costs NCCL two communicators, and
     * several processes that share a device take turns on it: two rounds have to do there. */
    const int rounds = comm->queue != NULL && comm->queue->native != NULL ? 2 : 70;
    for (int round = 0; round < rounds; round++) {
        struct tess_comm *row, *column;
        /* Rows of two, in reverse order; columns of equal position. */
        WORLD_OK(tess_comm_split(comm, rank / 2, -rank, &row));
        WORLD_OK(tess_comm_split(comm, rank % 2, rank, &column));
        int32_t row_count = rank / 2 * 2 + 1 < n ? 2 : 1;
        WORLD_CHECK(row->rank_count == row_count && column->rank_count == (n + 1 - rank % 2) / 2);
        WORLD_CHECK(row->rank == (row_count == 2 ? 1 - rank % 2 : 0) && column->rank == rank / 2);
        WORLD_CHECK(row->order == comm->order);

        int64_t in_row = row_count == 2 ? rank / 2 * 4 + 1 : rank, in_column = 0;
        for (int32_t r = rank % 2; r < n; r += 2)
            in_column += r;
        if (order_group_sums(row, rank, in_row) || order_group_sums(column, rank, in_column))
            return 1;

        /* Calls in three groups at once, waited for in an order that differs between ranks. */
        int64_t a = rank, b = rank, c = rank;
        struct tess_event event[3];
        WORLD_OK(tess_comm_all_reduce(row, &a, &a, 1, TESS_I64, TESS_REDUCE_SUM, &event[0]));
        WORLD_OK(tess_comm_all_reduce(column, &b, &b, 1, TESS_I64, TESS_REDUCE_MAX, &event[1]));
        WORLD_OK(tess_comm_all_reduce(comm, &c, &c, 1, TESS_I64, TESS_REDUCE_SUM, &event[2]));
        for (int i = 0; i < 3; i++)
            WORLD_OK(tess_event_wait(&event[(rank + i) % 3]));
        WORLD_CHECK(a == in_row && c == (int64_t)n * (n - 1) / 2);
        WORLD_CHECK(b == (n - 1 - rank % 2) / 2 * 2 + rank % 2);

        /* Memory of the parent in a call of the child. */
        if (round == 0) {
            struct place place;
            size_t count = 30000;
            WORLD_OK(place_open(comm, count * sizeof(int32_t), true, &place));
            int32_t *data = (int32_t *)place.host;
            for (size_t i = 0; i < count; i++)
                data[i] = rank + (int32_t)i;
            WORLD_OK(place_put(&place, data, count * sizeof(*data)));
            WORLD_OK(tess_comm_all_reduce(column, place.at, place.at, count, TESS_I32,
                                          TESS_REDUCE_MIN, NULL));
            WORLD_OK(place_get(&place, data, count * sizeof(*data)));
            for (size_t i = 0; i < count; i++)
                WORLD_CHECK(data[i] == rank % 2 + (int32_t)i);
            place_close(&place);
        }
        tess_comm_close(column);
        tess_comm_close(row);
    }
    return 0;
}

void case_groups(void **state)
{
    case_run(state, order_groups_rank, NULL);
}

/* Every rank sends to every rank at once, all sends before all receives, in shared and private
 * memory. */
static int order_exchange(struct tess_comm *comm, size_t count, const struct place *from,
                          const struct place *to)
{
    float *source = (float *)from->host, *target = (float *)to->host;
    int32_t n = comm->rank_count;
    struct tess_event *event = calloc(2 * (size_t)n, sizeof(*event));
    WORLD_CHECK(event != NULL);
    size_t bytes = count * (size_t)n * sizeof(*target);
    for (int32_t r = 0; r < n; r++) {
        if (r == comm->rank)
            continue;
        float *piece = source + (size_t)r * count;
        value_fill(TESS_F32, (uint64_t)r + 7, comm->rank, count, piece);
        WORLD_OK(place_put(from, piece, count * sizeof(*piece)));
        WORLD_OK(tess_comm_send(comm, place_at(from, piece), count, TESS_F32, r, &event[r]));
    }
    /* What is written to a target before the call is not what is there after it. */
    memset(target, 0x5a, bytes);
    WORLD_OK(place_put(to, target, bytes));
    for (int32_t r = 0; r < n; r++)
        if (r != comm->rank)
            WORLD_OK(tess_comm_recv(comm, place_at(to, target + (size_t)r * count), count, TESS_F32,
                                    r, &event[n + r]));
    for (int32_t i = 2 * n - 1; i >= 0; i--)
        WORLD_OK(tess_event_wait(&event[i]));
    free(event);
    /* What is written to a source after the wait is not what peers get. */
    WORLD_OK(place_copy(to, from, bytes));
    WORLD_OK(place_get(to, target, bytes));
    for (int32_t r = 0; r < n; r++)
        for (size_t i = 0; r != comm->rank && i < count; i++)
            WORLD_CHECK(
                value_is(TESS_F32, (uint64_t)comm->rank + 7, r, i, &target[(size_t)r * count + i]));
    return 0;
}

/* A ring in which each waits before it goes on, as pipeline stages do, beside a collective that is
 * in flight all the time and in which not all ranks have come as far. */
static int order_ring(struct tess_comm *comm)
{
    int32_t n = comm->rank_count, next = (comm->rank + 1) % n, last = (comm->rank + n - 1) % n;
    int64_t token = 0, total = comm->rank;
    struct tess_event event = {0};
    for (int turn = 0; turn < 50 && n > 1; turn++) {
        if (turn % 10 == 0) {
            WORLD_OK(tess_event_wait(&event));
            total = comm->rank;
            WORLD_OK(
                tess_comm_all_reduce(comm, &total, &total, 1, TESS_I64, TESS_REDUCE_SUM, &event));
        }
        if (comm->rank == 0) {
            token++;
            WORLD_OK(tess_comm_send(comm, &token, 1, TESS_I64, next, NULL));
            WORLD_OK(tess_comm_recv(comm, &token, 1, TESS_I64, last, NULL));
        } else {
            WORLD_OK(tess_comm_recv(comm, &token, 1, TESS_I64, last, NULL));
            token++;
            WORLD_OK(tess_comm_send(comm, &token, 1, TESS_I64, next, NULL));
        }
    }
    WORLD_OK(tess_event_wait(&event));
    WORLD_CHECK(n == 1 || total == (int64_t)n * (n - 1) / 2);
    WORLD_CHECK(comm->rank != 0 || n == 1 || token == 50 * (int64_t)n);
    return 0;
}

static int order_messages_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    size_t count = 50021, room = count * sizeof(float) * (size_t)comm->rank_count;
    struct place source[2], target[2]; /* private, shared */
    for (int32_t r = 0; r < comm->rank_count; r++) {
        if (r == comm->rank)
            continue;
        WORLD_OK(tess_comm_meet(comm, comm->rank, r));
        WORLD_OK(tess_comm_meet(comm, r, comm->rank));
    }
    for (int shared = 0; shared < 2; shared++) {
        WORLD_OK(place_open(comm, room, shared == 1, &source[shared]));
        WORLD_OK(place_open(comm, room, shared == 1, &target[shared]));
    }
    static const size_t counts[] = {0, 1, 100, 1024, 1025, 50021};
    int failed = 0;
    for (size_t c = 0; c < sizeof(counts) / sizeof(*counts) && failed == 0; c++)
        failed = order_exchange(comm, counts[c], &source[0], &target[0]) ||
                 order_exchange(comm, counts[c], &source[1], &target[1]) ||
                 order_exchange(comm, counts[c], &source[1 - comm->rank % 2], &target[0]);
    for (int shared = 0; shared < 2; shared++) {
        place_close(&source[shared]);
        place_close(&target[shared]);
    }
    return failed != 0 ? failed : order_ring(comm);
}

void case_messages(void **state)
{
    case_run(state, order_messages_rank, NULL);
}

/*
 * A receive is under way on rank 1 while several groups add up device memory and a message of the
 * host goes to rank 0, who sends only then: work of one stream does not wait for that of another,
 * however many there are.
 */
static int order_queues_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    /* Of 5 streams each: all of 8 hardware queues have one, and all streams one of 32. */
    enum { GROUPS = 4 };
    struct tess_comm *group[GROUPS];
    struct tess_event event = {0};
    struct place place, sum, all;
    int64_t *word, *total, seven = 7;
    for (int g = 0; g < GROUPS; g++)
        WORLD_OK(tess_comm_split(comm, 0, comm->rank, &group[g]));
    for (int32_t from = 0; from < 2 && comm->rank < 2; from++)
        WORLD_OK(tess_comm_meet(comm, from, 1 - from));
    WORLD_OK(place_open(comm, sizeof(*word), false, &place));
    WORLD_OK(place_open(comm, sizeof(*total), false, &sum));
    WORLD_OK(place_open(comm, sizeof(*total) * (size_t)comm->rank_count, false, &all));
    word = (int64_t *)place.host;
    total = (int64_t *)sum.host;
    if (comm->rank == 1)
        WORLD_OK(tess_comm_recv(comm, place.at, 1, TESS_I64, 0, &event));
    for (int g = 0; g < GROUPS; g++) {
        *total = comm->rank;
        WORLD_OK(place_put(&sum, total, sizeof(*total)));
        WORLD_OK(
            tess_comm_all_reduce(group[g], sum.at, sum.at, 1, TESS_I64, TESS_REDUCE_SUM, NULL));
        WORLD_OK(tess_comm_all_gather(group[g], sum.at, all.at, 1, TESS_I64, NULL));
        WORLD_OK(place_get(&sum, total, sizeof(*total)));
        WORLD_CHECK(*total == (int64_t)comm->rank_count * (comm->rank_count - 1) / 2);
    }
    if (comm->rank == 1)
        WORLD_OK(tess_comm_send(comm, &seven, 1, TESS_I64, 0, NULL));
    if (comm->rank == 0) {
        WORLD_OK(tess_comm_recv(comm, word, 1, TESS_I64, 1, NULL));
        WORLD_OK(place_put(&place, word, sizeof(*word)));
        WORLD_OK(tess_comm_send(comm, place.at, 1, TESS_I64, 1, NULL));
    }
    WORLD_OK(tess_event_wait(&event));
    if (comm->rank == 1)
        WORLD_OK(place_get(&place, word, sizeof(*word)));
    WORLD_CHECK(comm->rank > 1 || *word == 7);
    place_close(&place);
    place_close(&sum);
    place_close(&all);
    for (int g = 0; g < GROUPS; g++)
        tess_comm_close(group[g]);
    return 0;
}

void case_queues(void **state)
{
    case_run(state, order_queues_rank, NULL);
}

/* Messages within memory of the communicator, which a made-up NCCL requires to be registered. */
static int order_registered_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    const struct tess_queue_ops *ops = comm->queue->ops;
    struct tess_kernel *kernel = comm->queue->kernel;
    struct tess_fence *fence;
    int64_t word = comm->rank == 0 ? 7 : 0;
    void *memory;
    if (comm->rank < 2)
        WORLD_OK(tess_comm_meet(comm, 0, 1));
    WORLD_OK(tess_comm_alloc(comm, 4096, &memory));
    WORLD_OK(kernel->ops->adopt(kernel, memory, 4096));
    WORLD_CHECK(setenv("MADEUP_NCCL_REGISTERED", "all", 1) == 0);
    if (comm->rank == 0) {
        WORLD_OK(ops->copy(comm->queue, sizeof(word), &word, memory));
        WORLD_OK(tess_comm_send(comm, memory, 1, TESS_I64, 1, NULL));
    } else if (comm->rank == 1) {
        WORLD_OK(tess_comm_recv(comm, memory, 1, TESS_I64, 0, NULL));
        WORLD_OK(ops->copy(comm->queue, sizeof(word), memory, &word));
    }
    WORLD_OK(ops->fence_open(kernel, &fence));
    WORLD_OK(ops->record(comm->queue, fence));
    WORLD_OK(ops->wait(fence));
    ops->fence_close(fence);
    WORLD_CHECK(comm->rank > 1 || word == 7);
    kernel->ops->disown(kernel, memory, 4096);
    tess_comm_release(comm, memory);
    return 0;
}

void case_registered(void **state)
{
    const struct case_setup *setup = *state;
    if (setup->mode == TESS_RANKS_PROCESSES) /* the environment is a process's */
        case_run(state, order_registered_rank, NULL);
}

/* A random program, the same on all ranks: kinds, sizes, memory and moments of waiting are drawn.
 */
static int order_random_program(struct tess_comm *comm, uint64_t seed, const struct place *shared,
                                const struct place *private)
{
    enum { SLOTS = 12, ROOM = 40000 };
    static const size_t counts[] = {1, 17, 900, 1024, 1025, 5000, 9999};
    struct tess_event event[SLOTS] = {{0}};
    struct {
        size_t count;
        uint64_t seed;
        bool busy;
        const struct place *place;
        int64_t *data;
    } slot[SLOTS] = {{0}};
    for (uint64_t step = 0; step < 150; step++) {
        uint64_t draw = value_hash(seed, step, 99);
        size_t s = draw % SLOTS;
        /* What ranks do between calls may differ. */
        if (value_hash(seed, step, (uint64_t)comm->rank) % 4 == 0)
            WORLD_OK(tess_comm_poll(comm));
        if (slot[s].busy) {
            WORLD_OK(tess_event_wait(&event[s]));
            slot[s].busy = false;
            WORLD_OK(place_get(slot[s].place, slot[s].data, slot[s].count * sizeof(int64_t)));
            size_t stride = (size_t)comm->rank_count;
            for (size_t i = (size_t)comm->rank; i < slot[s].count; i += stride)
                WORLD_CHECK(value_is_reduced(TESS_I64, TESS_REDUCE_SUM, comm->order, slot[s].seed,
                                             comm->rank_count, i, &slot[s].data[i]));
        }
        bool in_shared = (draw >> 20) % 2 == 0;
        slot[s].count = counts[(draw >> 8) % (sizeof(counts) / sizeof(*counts))];
        slot[s].seed = draw;
        slot[s].place = in_shared ? shared : private;
        slot[s].data = (int64_t *)slot[s].place->host + s * 2 * ROOM;
        value_fill(TESS_I64, draw, comm->rank, slot[s].count, slot[s].data);
        WORLD_OK(place_put(slot[s].place, slot[s].data, slot[s].count * sizeof(int64_t)));
        void *at = place_at(slot[s].place, slot[s].data);
        WORLD_OK(tess_comm_all_reduce(comm, at, at, slot[s].count, TESS_I64, TESS_REDUCE_SUM,
                                      &event[s]));
        slot[s].busy = true;
        if ((draw >> 30) % 5 == 0) {
            int32_t root = (int32_t)((draw >> 24) % (uint64_t)comm->rank_count);
            uint64_t word = comm->rank == root ? draw : 0;
            WORLD_OK(tess_comm_broadcast(comm, &word, 1, TESS_I64, root, NULL));
            WORLD_CHECK(word == draw);
        }
        if ((draw >> 34) % 7 == 0)
            WORLD_OK(tess_comm_barrier(comm));
    }
    for (size_t s = 0; s < SLOTS; s++)
        WORLD_OK(tess_event_wait(&event[s]));
    return 0;
}

static int order_random_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    size_t room = (size_t)12 * 2 * 40000 * sizeof(int64_t);
    struct place private, shared;
    WORLD_OK(place_open(comm, room, false, &private));
    WORLD_OK(place_open(comm, room, true, &shared));
    int failed = 0;
    for (uint64_t seed = 1; seed <= 4 && failed == 0; seed++)
        failed = order_random_program(comm, seed, &shared, &private);
    place_close(&private);
    place_close(&shared);
    return failed;
}

void case_random(void **state)
{
    case_run(state, order_random_rank, NULL);
}

/* Memory comes zeroed and aligned, can be given back, and comes zeroed again. */
static int order_memory_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    static const size_t sizes[] = {1, 4096, 100000, (size_t)3 << 20, 0};
    enum { BLOCKS = 5 };
    for (int round = 0; round < 3; round++) {
        unsigned char *block[BLOCKS];
        for (int k = 0; k < BLOCKS; k++) {
            void *memory;
            WORLD_OK(tess_comm_alloc(comm, sizes[k] + (size_t)comm->rank, &memory));
            WORLD_CHECK(memory != NULL && (uintptr_t)memory % 4096 == 0);
            block[k] = memory;
            for (size_t i = 0; i < sizes[k]; i++)
                WORLD_CHECK(block[k][i] == 0);
            memset(block[k], 0xee, sizes[k]);
        }
        for (int k = 0; k < BLOCKS; k++)
            for (size_t i = 0; i < sizes[k]; i++)
                WORLD_CHECK(block[k][i] == 0xee);
        tess_comm_release(comm, block[1]);
        tess_comm_release(comm, block[3]);
        tess_comm_release(comm, block[0]);
        tess_comm_release(comm, block[2]);
        if (round < 2)
            tess_comm_release(comm, block[4]);
    }
    return 0;
}

void case_memory(void **state)
{
    case_run(state, order_memory_rank, NULL);
}

static double order_cpu_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Rank 0 comes 300 ms late; the others wait for it in every way without burning a core. */
static int order_idle_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world;
    const struct case_setup *setup = arg;
    double before = order_cpu_s();
    if (comm->rank == 0)
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    WORLD_OK(tess_comm_barrier(comm));
    double used = order_cpu_s() - before;
    if (used > 0.02)
        return world_fail("waiting 300 ms took %.1f ms of processor time, more than 20",
                          used * 1e3);
    /* Where ranks are compared, they wait for the late one there. */
    WORLD_CHECK(comm->rank == 0 || setup->debug || comm->stats.wait_s > 0.2);
    return 0;
}

void case_idle(void **state)
{
    case_run(state, order_idle_rank, *state);
}
