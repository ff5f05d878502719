/*
 * Memory, queues, fences and graphs of the backend `cuda` on a device; skipped where there is none.
 * What operations compute is the business of the conformance programs.
 */
#include "harness/world.h"
#include "kernel_open.h"
#include "tessera/device.h"
#include "tessera/log.h"
#include "tessera/registry.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB   ((size_t)1 << 20)
#define COUNT 100000 /* elements of an array */
#define RANKS 4

static const struct tess_module *cuda;
static struct tess_kernel *kernel;
static const struct tess_queue_ops *queue_ops;

static int group_open(void **state)
{
    const struct tess_kernel_ops *ops = NULL;
    (void)state;
    assert_int_equal(cuda->device_select(0, false), TESS_OK);
    assert_int_equal(tess_registry_get_kernel("cuda", &ops), TESS_OK);
    assert_int_equal(tess_kernel_open(ops, 1, &kernel), TESS_OK);
    queue_ops = kernel->queue->ops;
    return 0;
}

static int group_close(void **state)
{
    (void)state;
    tess_kernel_close(kernel);
    return 0;
}

static void *take(size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(kernel->ops->alloc(kernel, bytes, &memory), TESS_OK);
    return memory;
}

static void give(void *memory)
{
    kernel->ops->free(kernel, memory);
}

/* An array of COUNT floats of one value. */
static float *take_floats(float value)
{
    float *host = malloc(COUNT * sizeof(*host));
    assert_non_null(host);
    for (int i = 0; i < COUNT; i++)
        host[i] = value;
    float *array = take(COUNT * sizeof(*array));
    assert_int_equal(tess_write(kernel, COUNT * sizeof(*host), host, array), TESS_OK);
    free(host);
    return array;
}

static void expect_floats(const float *array, float value)
{
    float *host = malloc(COUNT * sizeof(*host));
    assert_non_null(host);
    assert_int_equal(tess_read(kernel, COUNT * sizeof(*host), array, host), TESS_OK);
    for (int i = 0; i < COUNT; i++)
        if (host[i] != value)
            fail_msg("element %d is %g, not %g", i, (double)host[i], (double)value);
    free(host);
}

static struct tess_fence *new_fence(void)
{
    struct tess_fence *fence = NULL;
    assert_int_equal(queue_ops->fence_open(kernel, &fence), TESS_OK);
    return fence;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void case_alloc(void **state)
{
    (void)state;
    static const size_t size[] = {1, 4096, 10 * MIB + 3};
    for (size_t s = 0; s < sizeof(size) / sizeof(*size); s++) {
        char *memory = take(size[s]), *host = malloc(size[s]);
        assert_non_null(host);
        memset(host, 1, size[s]);
        assert_int_equal((uintptr_t)memory % TESS_MEMORY_ALIGN, 0);
        assert_int_equal(tess_read(kernel, size[s], memory, host), TESS_OK);
        for (size_t i = 0; i < size[s]; i++)
            assert_int_equal(host[i], 0);
        assert_true(queue_ops->owns(kernel, memory));
        assert_true(queue_ops->owns(kernel, memory + size[s] - 1));
        assert_false(queue_ops->owns(kernel, host));
        give(memory);
        assert_false(queue_ops->owns(kernel, memory));
        free(host);
    }
    char host[64];
    assert_int_not_equal(kernel->ops->adopt(kernel, host, sizeof(host)), TESS_OK);
    assert_int_equal(kernel->ops->alloc(kernel, (size_t)1 << 50, &(void *){NULL}), TESS_ERR_MEMORY);
    /* An error that was reported is over. */
    assert_int_equal(kernel->ops->failed(kernel), TESS_OK);
}

/* Sizes about the halves that pageable memory passes through, from and to odd addresses. */
static void check_copies(char *host, char *back)
{
    static const size_t size[] = {0, 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 13 * MIB + 7};
    char *memory = take(16 * MIB);
    for (size_t i = 0; i < 16 * MIB; i++)
        host[i] = (char)(i * 2654435761u >> 24);
    for (size_t s = 0; s < sizeof(size) / sizeof(*size); s++) {
        memset(back, 0, 16 * MIB);
        assert_int_equal(tess_write(kernel, size[s], host + 3, memory + 5), TESS_OK);
        assert_int_equal(tess_read(kernel, size[s], memory + 5, back + 1), TESS_OK);
        assert_memory_equal(host + 3, back + 1, size[s]);
        assert_int_equal(back[size[s] + 1], 0);
    }
    give(memory);
}

static void case_copies(void **state)
{
    (void)state;
    char *host = malloc(16 * MIB), *back = malloc(16 * MIB);
    assert_true(host != NULL && back != NULL);
    check_copies(host, back);
    free(host);
    free(back);
}

static void case_copies_pinned(void **state)
{
    (void)state;
    void *host = NULL, *back = NULL;
    assert_int_equal(kernel->ops->pin(kernel, 16 * MIB, &host), TESS_OK);
    assert_int_equal(kernel->ops->pin(kernel, 16 * MIB, &back), TESS_OK);
    assert_int_equal((uintptr_t)host % 64, 0);
    assert_false(queue_ops->owns(kernel, host));
    check_copies(host, back);
    kernel->ops->unpin(kernel, host);
    kernel->ops->unpin(kernel, back);
}

static void case_usage(void **state)
{
    (void)state;
    struct tess_device_usage usage;
    struct tess_device_memory memory;
    struct tess_device_info info;
    cuda->device_usage(&usage);
    assert_int_equal(cuda->device_memory(&memory), TESS_OK);
    assert_int_equal(cuda->device_info(0, &info), TESS_OK);
    assert_true(memory.free_bytes < memory.total_bytes);
    assert_true(memory.total_bytes <= info.memory_bytes);
    /* The workspace is 32 MiB (kernels/cuda/cuda.h), other processes take and give beside it. */
    assert_true(usage.workspace < info.memory_bytes);
    print_message("%s: context %llu, workspace %llu bytes\n", info.name,
                  (unsigned long long)usage.context, (unsigned long long)usage.workspace);
}

/* ---- order ----------------------------------------------------------------------------------- */

static void case_fences(void **state)
{
    (void)state;
    struct tess_queue *side = NULL;
    struct tess_fence *filled = new_fence(), *copied = new_fence(), *never = new_fence();
    assert_int_equal(queue_ops->open(kernel, &side), TESS_OK);
    assert_non_null(side->native);
    char *source = take(64 * MIB), *target = take(64 * MIB);
    unsigned char *host = malloc(64 * MIB);
    assert_non_null(host);
    for (int value = 1; value < 20; value++) {
        tess_fill(kernel, 64 * MIB, value, source);
        assert_int_equal(queue_ops->record(kernel->queue, filled), TESS_OK);
        assert_int_equal(queue_ops->follow(side, filled), TESS_OK);
        assert_int_equal(queue_ops->copy(side, 64 * MIB, source, target), TESS_OK);
        assert_int_equal(queue_ops->record(side, copied), TESS_OK);
        assert_int_equal(queue_ops->follow(kernel->queue, copied), TESS_OK);
        assert_int_equal(queue_ops->follow(kernel->queue, never), TESS_OK);
        /* Overwritten only after it was copied. */
        tess_fill(kernel, 64 * MIB, 0, source);
        assert_int_equal(tess_read(kernel, 64 * MIB, target, host), TESS_OK);
        for (size_t i = 0; i < 64 * MIB; i += 4093)
            assert_int_equal(host[i], value);
    }
    bool reached = false;
    double seconds = -1;
    assert_int_equal(queue_ops->wait(copied), TESS_OK);
    assert_int_equal(queue_ops->reached(copied, &reached), TESS_OK);
    assert_true(reached);
    assert_int_equal(queue_ops->elapsed(filled, copied, &seconds), TESS_OK);
    assert_true(seconds > 0 && seconds < 10);
    assert_int_equal(queue_ops->reached(never, &reached), TESS_OK);
    assert_true(reached);
    assert_int_equal(queue_ops->wait(never), TESS_OK);
    assert_int_not_equal(queue_ops->elapsed(never, copied, &seconds), TESS_OK);
    free(host);
    give(source);
    give(target);
    queue_ops->fence_close(filled);
    queue_ops->fence_close(copied);
    queue_ops->fence_close(never);
    queue_ops->close(side);
    assert_int_equal(kernel->ops->failed(kernel), TESS_OK);
}

/* Wait for a fence: NULL after an error. */
static void *wait_there(void *fence)
{
    return queue_ops->wait(fence) == TESS_OK ? fence : NULL;
}

/* To pinned memory beside the kernels, and a thread without a device waits for it: as checkpoints
 * are copied. */
static void case_copies_beside(void **state)
{
    (void)state;
    struct tess_queue *side = NULL;
    struct tess_fence *copied = new_fence();
    char *source = take(64 * MIB);
    void *host = NULL, *waited = NULL;
    pthread_t thread;
    assert_int_equal(queue_ops->open(kernel, &side), TESS_OK);
    assert_int_equal(kernel->ops->pin(kernel, 64 * MIB, &host), TESS_OK);
    for (int value = 1; value < 20; value++) {
        tess_fill(kernel, 64 * MIB, value, source);
        assert_int_equal(queue_ops->record(kernel->queue, copied), TESS_OK);
        assert_int_equal(queue_ops->follow(side, copied), TESS_OK);
        assert_int_equal(queue_ops->copy(side, 64 * MIB, source, host), TESS_OK);
        assert_int_equal(queue_ops->record(side, copied), TESS_OK);
        assert_int_equal(queue_ops->follow(kernel->queue, copied), TESS_OK);
        tess_fill(kernel, 64 * MIB, 0, source); /* only after it was copied */
        assert_int_equal(pthread_create(&thread, NULL, wait_there, copied), 0);
        assert_int_equal(pthread_join(thread, &waited), 0);
        assert_ptr_equal(waited, copied);
        for (size_t i = 0; i < 64 * MIB; i += 4093)
            assert_int_equal(((const unsigned char *)host)[i], value);
    }
    queue_ops->close(side);
    queue_ops->fence_close(copied);
    kernel->ops->unpin(kernel, host);
    give(source);
    assert_int_equal(kernel->ops->failed(kernel), TESS_OK);
}

static void case_reduce(void **state)
{
    (void)state;
    /* (2^24 + 1) + 1 is 2^24, and 2^24 + (1 + 1) is 2^24 + 2: the tree shows in the bits. */
    float *a = take_floats(16777216.0f), *b = take_floats(1), *c = take_floats(1);
    float *d = take_floats(1), *other = take_floats(0);
    const void *three[] = {a, b, c}, *four[] = {a, b, c, d};
    void *both[] = {other, c};
    assert_int_equal(queue_ops->reduce(kernel->queue, TESS_F32, TESS_F32, TESS_REDUCE_SUM, 4, four,
                                       1, (void *[]){other}, COUNT),
                     TESS_OK);
    expect_floats(other, 16777218.0f);
    assert_int_equal(queue_ops->reduce(kernel->queue, TESS_F32, TESS_F32, TESS_REDUCE_SUM, 3, three,
                                       2, both, COUNT),
                     TESS_OK);
    expect_floats(other, 16777216.0f);
    expect_floats(c, 16777216.0f);
    give(a);
    give(b);
    give(c);
    give(d);
    give(other);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* x += one; y = x on another queue; x += one, `more` times. */
static void queue_step(struct tess_queue *side, struct tess_fence *const fence[2], const float *one,
                       float *x, float *y, int more)
{
    tess_accumulate(kernel, COUNT, 1, one, x);
    assert_int_equal(queue_ops->record(kernel->queue, fence[0]), TESS_OK);
    assert_int_equal(queue_ops->follow(side, fence[0]), TESS_OK);
    assert_int_equal(queue_ops->copy(side, COUNT * sizeof(*x), x, y), TESS_OK);
    assert_int_equal(queue_ops->record(side, fence[1]), TESS_OK);
    assert_int_equal(queue_ops->follow(kernel->queue, fence[1]), TESS_OK);
    for (int i = 0; i < more; i++)
        tess_accumulate(kernel, COUNT, 1, one, x);
}

static void case_graph(void **state)
{
    (void)state;
    const struct tess_kernel_ops *ops = kernel->ops;
    struct tess_queue *side = NULL;
    struct tess_fence *fence[2] = {new_fence(), new_fence()}, *before = new_fence();
    assert_int_equal(queue_ops->open(kernel, &side), TESS_OK);
    float *one = take_floats(1), *x = take_floats(0), *y = take_floats(0), *z = take_floats(0);
    bool reached = true;
    double seconds = -1;

    assert_int_equal(queue_ops->record(side, before), TESS_OK);
    assert_int_equal(ops->graph_begin(kernel), TESS_OK);
    assert_int_not_equal(ops->graph_begin(kernel), TESS_OK);
    assert_int_equal(queue_ops->follow(kernel->queue, before), TESS_OK);
    queue_step(side, fence, one, x, y, 1);
    /* What is recorded has not run: nothing can be known of it. */
    assert_int_equal(queue_ops->reached(fence[1], &reached), TESS_OK);
    assert_false(reached);
    assert_int_not_equal(queue_ops->wait(fence[1]), TESS_OK);
    assert_int_not_equal(tess_read(kernel, 4, x, &(float){0}), TESS_OK);
    assert_int_equal(ops->failed(kernel), TESS_OK);
    assert_int_equal(ops->graph_end(kernel, 0), TESS_OK);
    expect_floats(x, 0);

    for (int i = 0; i < 3; i++)
        assert_int_equal(ops->graph_play(kernel, 0), TESS_OK);
    expect_floats(x, 6);
    expect_floats(y, 5);
    assert_int_equal(queue_ops->wait(fence[1]), TESS_OK);
    assert_int_equal(queue_ops->reached(fence[0], &reached), TESS_OK);
    assert_true(reached);
    assert_int_equal(queue_ops->elapsed(fence[0], fence[1], &seconds), TESS_OK);
    assert_true(seconds > 0 && seconds < 10);
    /* Work outside follows the latest play. */
    assert_int_equal(ops->graph_play(kernel, 0), TESS_OK);
    assert_int_equal(queue_ops->follow(side, fence[1]), TESS_OK);
    assert_int_equal(queue_ops->copy(side, COUNT * sizeof(*y), y, z), TESS_OK);
    assert_int_equal(queue_ops->record(side, before), TESS_OK);
    assert_int_equal(queue_ops->follow(kernel->queue, before), TESS_OK);
    expect_floats(z, 7);

    /* The slot again: other arrays, then another shape of graph; and a slot beside it. */
    assert_int_equal(ops->graph_begin(kernel), TESS_OK);
    queue_step(side, fence, one, z, y, 1);
    assert_int_equal(ops->graph_end(kernel, 0), TESS_OK);
    assert_int_equal(ops->graph_begin(kernel), TESS_OK);
    queue_step(side, fence, one, x, y, 4);
    assert_int_equal(ops->graph_end(kernel, TESS_GRAPH_SLOTS - 1), TESS_OK);
    assert_int_equal(ops->graph_play(kernel, 0), TESS_OK);
    assert_int_equal(ops->graph_play(kernel, TESS_GRAPH_SLOTS - 1), TESS_OK);
    expect_floats(z, 9);
    expect_floats(x, 13);
    expect_floats(y, 9);
    assert_int_equal(ops->graph_begin(kernel), TESS_OK);
    queue_step(side, fence, one, z, y, 2);
    assert_int_equal(ops->graph_end(kernel, 0), TESS_OK);
    assert_int_equal(ops->graph_play(kernel, 0), TESS_OK);
    expect_floats(z, 12);

    give(one);
    give(x);
    give(y);
    give(z);
    for (int f = 0; f < 2; f++)
        queue_ops->fence_close(fence[f]);
    queue_ops->fence_close(before);
    queue_ops->close(side);
}

static void case_graph_faults(void **state)
{
    (void)state;
    const struct tess_kernel_ops *ops = kernel->ops;
    struct tess_queue *side = NULL;
    struct tess_fence *fence = new_fence();
    float *one = take_floats(1), *x = take_floats(0), *y = take_floats(0);
    assert_int_equal(queue_ops->open(kernel, &side), TESS_OK);
    assert_int_not_equal(ops->graph_play(kernel, 1), TESS_OK);
    assert_int_not_equal(ops->graph_play(kernel, TESS_GRAPH_SLOTS), TESS_OK);
    assert_int_not_equal(ops->graph_end(kernel, 1), TESS_OK);

    /* A queue that joined and was not followed back. */
    assert_int_equal(ops->graph_begin(kernel), TESS_OK);
    tess_accumulate(kernel, COUNT, 1, one, x);
    assert_int_equal(queue_ops->record(kernel->queue, fence), TESS_OK);
    assert_int_equal(queue_ops->follow(side, fence), TESS_OK);
    assert_int_equal(queue_ops->copy(side, COUNT * sizeof(*x), x, y), TESS_OK);
    assert_int_not_equal(ops->graph_end(kernel, 1), TESS_OK);
    assert_non_null(strstr(tess_log_last_error(), "followed back"));

    /* Nothing is left of it. */
    tess_accumulate(kernel, COUNT, 1, one, x);
    expect_floats(x, 1);
    assert_int_equal(ops->failed(kernel), TESS_OK);
    give(one);
    give(x);
    give(y);
    queue_ops->fence_close(fence);
    queue_ops->close(side);
}

/* ---- several ranks on one device ------------------------------------------------------------- */

static struct {
    float *array[RANKS];
    struct tess_fence *filled[RANKS], *summed[RANKS];
} shared;

/* Fill the own array, sum every rank's into `sum`, and fill again only after all have read. */
static int rank_round(struct tess_comm *comm, struct tess_kernel *own, int round, float *host,
                      float *sum)
{
    const int rank = comm->rank;
    const void *source[RANKS];
    tess_normal(own, (const uint32_t[]){0, 0}, 0, COUNT, (float)(rank * round), 0,
                shared.array[rank]);
    WORLD_OK(queue_ops->record(own->queue, shared.filled[rank]));
    WORLD_OK(tess_comm_barrier(comm));
    for (int r = 0; r < RANKS; r++) {
        WORLD_CHECK(queue_ops->owns(own, shared.array[r]));
        WORLD_OK(queue_ops->follow(own->queue, shared.filled[r]));
        source[r] = shared.array[r];
    }
    WORLD_OK(queue_ops->reduce(own->queue, TESS_F32, TESS_F32, TESS_REDUCE_SUM, RANKS, source, 1,
                               (void *[]){sum}, COUNT));
    WORLD_OK(queue_ops->record(own->queue, shared.summed[rank]));
    WORLD_OK(tess_read(own, COUNT * sizeof(*sum), sum, host));
    for (int i = 0; i < COUNT; i++)
        WORLD_CHECK(host[i] == (float)(round * (RANKS * (RANKS - 1) / 2)));
    WORLD_OK(tess_comm_barrier(comm));
    for (int r = 0; r < RANKS; r++)
        WORLD_OK(queue_ops->follow(own->queue, shared.summed[r]));
    return 0;
}

static int rank_sums(struct tess_comm *comm, struct tess_world *world, void *argument)
{
    (void)world, (void)argument;
    const struct tess_kernel_ops *ops = kernel->ops;
    struct tess_kernel *own = NULL;
    void *array = NULL, *sum = NULL;
    WORLD_OK(cuda->device_select(0, false));
    WORLD_OK(tess_kernel_open(ops, 1, &own));
    WORLD_OK(ops->alloc(own, COUNT * sizeof(float), &array));
    WORLD_OK(ops->alloc(own, COUNT * sizeof(float), &sum));
    WORLD_OK(queue_ops->fence_open(own, &shared.filled[comm->rank]));
    WORLD_OK(queue_ops->fence_open(own, &shared.summed[comm->rank]));
    shared.array[comm->rank] = array;
    WORLD_OK(tess_comm_barrier(comm));
    float *host = malloc(COUNT * sizeof(*host));
    WORLD_CHECK(host != NULL);
    int failed = 0;
    for (int round = 1; round <= 20 && !failed; round++)
        failed = rank_round(comm, own, round, host, sum);
    free(host);
    WORLD_OK(tess_comm_barrier(comm));
    queue_ops->fence_close(shared.filled[comm->rank]);
    queue_ops->fence_close(shared.summed[comm->rank]);
    ops->free(own, array);
    ops->free(own, sum);
    WORLD_OK(ops->failed(own));
    tess_kernel_close(own);
    return failed;
}

static void case_ranks(void **state)
{
    (void)state;
    assert_int_equal(world_run(RANKS, TESS_RANKS_THREADS, TESS_ORDER_CANONICAL, rank_sums, NULL),
                     0);
}

int main(void)
{
    static const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_alloc),         cmocka_unit_test(case_copies),
        cmocka_unit_test(case_copies_pinned), cmocka_unit_test(case_usage),
        cmocka_unit_test(case_fences),        cmocka_unit_test(case_copies_beside),
        cmocka_unit_test(case_reduce),        cmocka_unit_test(case_graph),
        cmocka_unit_test(case_graph_faults),  cmocka_unit_test(case_ranks),
    };
    char why[512] = "";
    cuda = tess_module_find("cuda", why, sizeof(why));
    if (cuda == NULL || cuda->device_count(why, sizeof(why)) == 0) {
        printf("skipped: %s\n", why);
        return 77;
    }
    return cmocka_run_group_tests(cases, group_open, group_close);
}
