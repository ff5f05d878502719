/* Every collective moves the right bytes and takes the right sums: all types, sizes on both sides
 * of the backends' thresholds, in place and not, in shared and in private memory. */
#include "comm/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One call to make and check. */
struct data_call {
    enum tess_collective collective;
    enum tess_dtype dtype;
    enum tess_reduce reduce;
    size_t count;
    bool in_place;
    int32_t root;
    uint64_t seed;
};

static const enum tess_collective data_collectives[] = {
    TESS_COLLECTIVE_ALL_REDUCE, TESS_COLLECTIVE_REDUCE_SCATTER, TESS_COLLECTIVE_ALL_GATHER,
    TESS_COLLECTIVE_BROADCAST,  TESS_COLLECTIVE_REDUCE,         TESS_COLLECTIVE_ALL_TO_ALL,
};

static enum tess_status data_make(struct tess_comm *comm, const struct data_call *call,
                                  void *source, void *target)
{
    switch (call->collective) {
    case TESS_COLLECTIVE_ALL_REDUCE:
        return tess_comm_all_reduce(comm, source, target, call->count, call->dtype, call->reduce,
                                    NULL);
    case TESS_COLLECTIVE_REDUCE_SCATTER:
        return tess_comm_reduce_scatter(comm, source, target, call->count, call->dtype,
                                        call->reduce, NULL);
    case TESS_COLLECTIVE_ALL_GATHER:
        return tess_comm_all_gather(comm, source, target, call->count, call->dtype, NULL);
    case TESS_COLLECTIVE_BROADCAST:
        return tess_comm_broadcast(comm, target, call->count, call->dtype, call->root, NULL);
    case TESS_COLLECTIVE_REDUCE:
        return tess_comm_reduce(comm, source, target, call->count, call->dtype, call->reduce,
                                call->root, NULL);
    default:
        return tess_comm_all_to_all(comm, source, target, call->count, call->dtype, NULL);
    }
}

/* Is element i of this rank's target what the call must give? */
static bool data_is_right(const struct tess_comm *comm, const struct data_call *call, size_t i,
                          const void *element)
{
    size_t count = call->count;
    int32_t from = (int32_t)(i / count);
    switch (call->collective) {
    case TESS_COLLECTIVE_REDUCE_SCATTER:
        return value_is_reduced(call->dtype, call->reduce, comm->order, call->seed,
                                comm->rank_count, (size_t)comm->rank * count + i, element);
    case TESS_COLLECTIVE_ALL_GATHER:
        return value_is(call->dtype, call->seed, from, i % count, element);
    case TESS_COLLECTIVE_BROADCAST:
        return value_is(call->dtype, call->seed, call->root, i, element);
    case TESS_COLLECTIVE_ALL_TO_ALL:
        return value_is(call->dtype, call->seed, from, (size_t)comm->rank * count + i % count,
                        element);
    default:
        return value_is_reduced(call->dtype, call->reduce, comm->order, call->seed,
                                comm->rank_count, i, element);
    }
}

/*
 * Make the call in two places and check the result, the source (unchanged unless in
 * place) and the bytes after the target.
 */
static int data_check(struct tess_comm *comm, const struct data_call *call,
                      const struct place *from, const struct place *to)
{
    size_t size = tess_dtype_bytes(call->dtype), n = (size_t)comm->rank_count;
    enum tess_collective kind = call->collective;
    size_t bytes = call->count * size, share = (size_t)comm->rank * bytes;
    bool many_in = kind == TESS_COLLECTIVE_REDUCE_SCATTER || kind == TESS_COLLECTIVE_ALL_TO_ALL;
    bool many_out = kind == TESS_COLLECTIVE_ALL_GATHER || kind == TESS_COLLECTIVE_ALL_TO_ALL;
    size_t source_count = call->count * (many_in ? n : 1);
    size_t target_count = call->count * (many_out ? n : 1);
    bool is_target = kind != TESS_COLLECTIVE_REDUCE || comm->rank == call->root;
    char *source = from->host, *target = to->host;
    if (call->in_place && kind == TESS_COLLECTIVE_ALL_GATHER) {
        from = to;
        source = target + share;
    } else if (call->in_place) {
        to = from;
        target = source + (kind == TESS_COLLECTIVE_REDUCE_SCATTER ? share : 0);
    }
    bool separate = !call->in_place && kind != TESS_COLLECTIVE_BROADCAST;
    char *fill = kind == TESS_COLLECTIVE_BROADCAST ? target : source;
    unsigned char guard = 0xa5;
    if (separate)
        memset(target, 0x5a, target_count * size);
    if (kind != TESS_COLLECTIVE_BROADCAST || comm->rank == call->root)
        value_fill(call->dtype, call->seed, comm->rank, source_count, fill);
    if (separate)
        memset(target + target_count * size, guard, 8);
    size_t after = separate ? 8 : 0;
    WORLD_OK(place_put(from, source, source_count * size));
    if (from != to || kind == TESS_COLLECTIVE_BROADCAST)
        WORLD_OK(place_put(to, target, target_count * size + after));

    bool no_target = kind == TESS_COLLECTIVE_REDUCE && !is_target;
    WORLD_OK(
        data_make(comm, call, place_at(from, source), no_target ? NULL : place_at(to, target)));
    WORLD_OK(place_get(from, source, source_count * size));
    WORLD_OK(place_get(to, target, target_count * size + after));
    if (separate) {
        for (size_t i = 0; i < source_count; i += n)
            WORLD_CHECK(value_is(call->dtype, call->seed, comm->rank, i, source + i * size));
        for (size_t i = 0; i < 8; i++)
            WORLD_CHECK((unsigned char)target[target_count * size + i] == guard);
    }
    /* Of many elements each rank checks its share, so that more ranks do not take more time. */
    size_t stride = target_count > 256 ? n : 1;
    for (size_t i = (size_t)comm->rank % stride; is_target && i < target_count; i += stride)
        if (!data_is_right(comm, call, i, target + i * size))
            return world_fail(
                "%s of %zu %s (reduce %d, root %d, in place %d): element %zu is wrong",
                tess_collective_name(kind), call->count, tess_dtype_name(call->dtype),
                (int)call->reduce, (int)call->root, call->in_place, i);
    return 0;
}

/* All collectives for one type and count, in the given memory. */
static int data_sweep(struct tess_comm *comm, enum tess_dtype dtype, size_t count,
                      const struct place *source, const struct place *target, uint64_t *seed)
{
    for (size_t k = 0; k < sizeof(data_collectives) / sizeof(*data_collectives); k++) {
        for (int place = 0; place < 2; place++) {
            struct data_call call = {.collective = data_collectives[k],
                                     .dtype = dtype,
                                     .count = count,
                                     .in_place = place == 1,
                                     .seed = ++*seed,
                                     .root = (int32_t)(*seed % (uint64_t)comm->rank_count)};
            call.reduce = *seed % 4 == 3   ? TESS_REDUCE_MAX
                          : *seed % 8 == 5 ? TESS_REDUCE_MIN
                                           : TESS_REDUCE_SUM;
            bool can = call.collective != TESS_COLLECTIVE_ALL_TO_ALL || !call.in_place;
            if (can && data_check(comm, &call, source, target) != 0)
                return 1;
        }
    }
    return 0;
}

/* Sources and targets: private, then shared. */
struct data_memory {
    struct place source[2], target[2];
};

static int data_memory_open(struct tess_comm *comm, size_t room, struct data_memory *memory)
{
    for (int shared = 0; shared < 2; shared++) {
        WORLD_OK(place_open(comm, room, shared == 1, &memory->source[shared]));
        WORLD_OK(place_open(comm, room, shared == 1, &memory->target[shared]));
    }
    return 0;
}

static void data_memory_close(struct data_memory *memory)
{
    for (int shared = 0; shared < 2; shared++) {
        place_close(&memory->source[shared]);
        place_close(&memory->target[shared]);
    }
}

#define DATA_COUNT_MAX ((size_t)1031)

static int data_collectives_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    static const size_t counts[] = {0, 1, 3, 64, DATA_COUNT_MAX};
    size_t room = DATA_COUNT_MAX * 8 * (size_t)comm->rank_count + 64;
    struct data_memory at;
    int failed = data_memory_open(comm, room, &at);
    uint64_t seed = 0;
    for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++) {
        for (int dtype = 0; dtype < TESS_DTYPE_COUNT && failed == 0; dtype++) {
            /* The third time some ranks' memory is shared and others' is not. */
            for (int way = 0; way < 3 && failed == 0; way++)
                failed = data_sweep(comm, (enum tess_dtype)dtype, counts[c],
                                    &at.source[way < 2 ? way : comm->rank % 2],
                                    &at.target[way < 2 ? way : comm->rank % 3 > 0], &seed);
        }
    }
    data_memory_close(&at);
    return failed;
}

void case_collectives(void **state)
{
    case_run(state, data_collectives_rank, NULL);
}

/* More than a chunk of staging (256 KiB), and slices that do not divide. */
static int data_large_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    static const struct {
        enum tess_dtype dtype;
        size_t count;
    } sizes[] = {{TESS_F32, 65537}, {TESS_BF16, 65537}, {TESS_F16, 20011}, {TESS_F64, 20011}};
    size_t room = 65537 * 4 * (size_t)comm->rank_count + 64;
    struct data_memory at;
    int failed = data_memory_open(comm, room, &at);
    uint64_t seed = 1000;
    for (size_t c = 0; c < sizeof(sizes) / sizeof(*sizes) && failed == 0; c++)
        for (int shared = 0; shared < 2 && failed == 0; shared++)
            failed = data_sweep(comm, sizes[c].dtype, sizes[c].count, &at.source[shared],
                                &at.target[shared], &seed);
    data_memory_close(&at);
    return failed;
}

void case_large(void **state)
{
    case_run(state, data_large_rank, NULL);
}

/*
 * f16 and bf16 are added in f32 and rounded once, whatever the values: sums that leave f16's range
 * in between come back to it, those that stay outside are infinite, ties go to even, subnormals are
 * kept, NaN and infinity minus infinity are NaN.
 */
static int data_halves_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    static const enum tess_collective sums[] = {
        TESS_COLLECTIVE_ALL_REDUCE, TESS_COLLECTIVE_REDUCE_SCATTER, TESS_COLLECTIVE_REDUCE};
    size_t room = (size_t)4096 * 8 * sizeof(uint16_t) * (size_t)comm->rank_count;
    struct data_memory at;
    int failed = data_memory_open(comm, room, &at);
    for (uint64_t k = 0; k < 3 * 2 * 2 * 2 && failed == 0; k++) {
        struct data_call call = {.collective = sums[k % 3],
                                 .dtype = k / 3 % 2 == 0 ? TESS_F16 : TESS_BF16,
                                 .count = k / 6 % 2 == 0 ? 203 : 8009,
                                 .root = (int32_t)(k % (uint64_t)comm->rank_count),
                                 .seed = VALUE_WILD + k};
        int shared = k / 12 % 2 == 0;
        failed = data_check(comm, &call, &at.source[shared], &at.target[shared]);
    }
    data_memory_close(&at);
    return failed;
}

void case_halves(void **state)
{
    case_run(state, data_halves_rank, NULL);
}

/* Counters of bytes follow the formulas of the algorithms: B is the size of the whole array. */
static int data_traffic_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    uint64_t n = (uint64_t)comm->rank_count;
    size_t share = 65536, bytes = share * n * sizeof(float);
    struct place from, to;
    WORLD_OK(place_open(comm, bytes, true, &from));
    WORLD_OK(place_open(comm, bytes, true, &to));
    void *source = from.at, *target = to.at;
    uint64_t sent = comm->stats.sent_bytes, received = comm->stats.received_bytes;
    WORLD_OK(
        tess_comm_all_reduce(comm, source, target, share * n, TESS_F32, TESS_REDUCE_SUM, NULL));
    WORLD_CHECK(comm->stats.sent_bytes - sent == 2 * (n - 1) * bytes / n);
    WORLD_CHECK(comm->stats.received_bytes - received == 2 * (n - 1) * bytes / n);

    sent = comm->stats.sent_bytes, received = comm->stats.received_bytes;
    WORLD_OK(
        tess_comm_reduce_scatter(comm, source, target, share, TESS_F32, TESS_REDUCE_SUM, NULL));
    WORLD_OK(tess_comm_all_gather(comm, source, target, share, TESS_F32, NULL));
    WORLD_OK(tess_comm_all_to_all(comm, source, target, share, TESS_F32, NULL));
    WORLD_CHECK(comm->stats.sent_bytes - sent == 3 * (n - 1) * bytes / n);
    WORLD_CHECK(comm->stats.received_bytes - received == 3 * (n - 1) * bytes / n);

    sent = comm->stats.sent_bytes, received = comm->stats.received_bytes;
    WORLD_OK(tess_comm_broadcast(comm, source, share * n, TESS_F32, 0, NULL));
    WORLD_CHECK(comm->stats.sent_bytes - sent == (comm->rank == 0 ? (n - 1) * bytes : 0));
    WORLD_CHECK(comm->stats.received_bytes - received == (comm->rank == 0 ? 0 : bytes));
    WORLD_CHECK(comm->stats.calls[TESS_COLLECTIVE_BROADCAST] == 1);
    place_close(&from);
    place_close(&to);
    return 0;
}

/*
 * Where ranks send messages: over all ranks the same bytes, of an all-reduce 2 (n - 1) times the
 * array, each half of it in one way of the two; and what is sent is received. A rank alone sends
 * what the formula says where all do the same: on rings, and on trees over powers of two.
 */
static int data_traffic_net_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    uint64_t n = (uint64_t)comm->rank_count, all[2] = {0, 0};
    bool alike = comm->order == TESS_ORDER_FAST || (n & (n - 1)) == 0;
    size_t share = 65536, bytes = share * n * sizeof(float);
    struct place from, to;
    WORLD_OK(place_open(comm, bytes, true, &from));
    WORLD_OK(place_open(comm, bytes, true, &to));
    void *source = from.at, *target = to.at;
    for (int kind = 0; kind < 6; kind++) {
        uint64_t sent = comm->stats.sent_bytes, received = comm->stats.received_bytes;
        uint64_t times = kind == 0 ? 2 : 1; /* of the array */
        switch (kind) {
        case 0:
            WORLD_OK(tess_comm_all_reduce(comm, source, target, share * n, TESS_F32,
                                          TESS_REDUCE_SUM, NULL));
            break;
        case 1:
            WORLD_OK(tess_comm_reduce_scatter(comm, source, target, share, TESS_F32,
                                              TESS_REDUCE_SUM, NULL));
            break;
        case 2:
            WORLD_OK(tess_comm_all_gather(comm, source, target, share, TESS_F32, NULL));
            break;
        case 3:
            WORLD_OK(tess_comm_all_to_all(comm, source, target, share, TESS_F32, NULL));
            break;
        case 4:
            WORLD_OK(tess_comm_broadcast(comm, source, share * n, TESS_F32, 0, NULL));
            break;
        default:
            WORLD_OK(tess_comm_reduce(comm, source, target, share * n, TESS_F32, TESS_REDUCE_SUM, 0,
                                      NULL));
        }
        uint64_t own[2] = {comm->stats.sent_bytes - sent, comm->stats.received_bytes - received};
        if (kind < 4 && alike)
            WORLD_CHECK(own[0] == times * (n - 1) * bytes / n && own[1] == own[0]);
        WORLD_OK(tess_comm_all_reduce(comm, own, all, 2, TESS_I64, TESS_REDUCE_SUM, NULL));
        /* A reduce brings the parts of the other owners to the root. */
        uint64_t expected = times * (n - 1) * bytes;
        if (kind == 5)
            expected = (n - 1) * bytes + (n - 1) * bytes / n;
        WORLD_CHECK(all[0] == expected && all[1] == expected);
    }
    place_close(&from);
    place_close(&to);
    return 0;
}

void case_traffic_net(void **state)
{
    case_run(state, data_traffic_net_rank, NULL);
}

void case_traffic(void **state)
{
    case_run(state, data_traffic_rank, NULL);
}
