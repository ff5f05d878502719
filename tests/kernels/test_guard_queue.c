/* The backend `guard_queue`: memory that the host cannot touch at all, and queues that do nothing
 * before another needs a fence of theirs. */
#include "guard/guard.h"
#include "kernel_open.h"
#include "tessera/kernel.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(call) assert_int_equal((call), TESS_OK)

enum { COUNT = 100, BYTES = COUNT * sizeof(float) };

/* A kernel, two lazy queues beside its own, and three arrays of which the first holds 0, 1, ... */
struct bench {
    struct tess_kernel *kernel;
    const struct tess_queue_ops *ops;
    struct tess_queue *own, *lazy, *other;
    struct tess_fence *fence, *second;
    float *a, *b, *c;
};

static float *bench_array(struct bench *bench)
{
    void *memory;
    OK(bench->kernel->ops->alloc(bench->kernel, BYTES, &memory));
    return memory;
}

static void bench_open(struct bench *bench)
{
    float x[COUNT];
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)i;
    OK(tess_kernel_open(&tess_kernel_guard_queue, 1, &bench->kernel));
    bench->ops = bench->kernel->ops->queue;
    bench->own = bench->kernel->queue;
    assert_non_null(bench->own);
    OK(bench->ops->open(bench->kernel, &bench->lazy));
    OK(bench->ops->open(bench->kernel, &bench->other));
    OK(bench->ops->fence_open(bench->kernel, &bench->fence));
    OK(bench->ops->fence_open(bench->kernel, &bench->second));
    bench->a = bench_array(bench);
    bench->b = bench_array(bench);
    bench->c = bench_array(bench);
    OK(tess_write(bench->kernel, sizeof(x), x, bench->a));
}

static void bench_close(struct bench *bench)
{
    bench->kernel->ops->free(bench->kernel, bench->a);
    bench->kernel->ops->free(bench->kernel, bench->b);
    bench->kernel->ops->free(bench->kernel, NULL);
    bench->ops->fence_close(bench->fence);
    bench->ops->fence_close(bench->second);
    bench->ops->close(bench->lazy);
    bench->ops->close(bench->other);
    tess_kernel_close(bench->kernel); /* with c */
}

/* The element 7 of an array as the device has it. */
static float bench_seven(struct bench *bench, const float *array)
{
    float x[COUNT];
    OK(tess_read(bench->kernel, sizeof(x), array, x));
    return x[7];
}

static void case_memory(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench);
    assert_true(bench_seven(&bench, bench.a) == 7 && bench_seven(&bench, bench.b) == 0);
    tess_copy(bench.kernel, BYTES, bench.a, bench.b);
    assert_true(bench_seven(&bench, bench.b) == 7);
    float host;
    assert_true(bench.ops->owns(bench.kernel, bench.a));
    assert_true(bench.ops->owns(bench.kernel, (char *)bench.a + BYTES - 1));
    assert_false(bench.ops->owns(bench.kernel, &host));
    assert_false(bench.ops->owns(bench.kernel, NULL));
    /* Of another rank too: fences and memory are shared in a process. */
    struct tess_kernel *peer;
    OK(tess_kernel_open(&tess_kernel_guard_queue, 1, &peer));
    assert_true(bench.ops->owns(peer, bench.a));
    tess_kernel_close(peer);
    bench_close(&bench);
}

/* In a child: host code reads device memory, though it has asked for access. */
static void case_far(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGSEGV, SIG_DFL);
        struct bench bench;
        bench_open(&bench);
        bench.kernel->ops->access(bench.kernel, true);
        _exit(((volatile float *)bench.a)[7] == 7 ? 0 : 4);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGSEGV);
}

/* Work waits for a fence to be needed: by the kernels' queue, by the host, or asked for twice. */
static void case_late(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) {
        struct bench bench;
        bool reached;
        bench_open(&bench);
        OK(bench.ops->copy(bench.lazy, BYTES, bench.a, bench.b));
        OK(bench.ops->record(bench.lazy, bench.fence));
        OK(bench.ops->copy(bench.lazy, BYTES, bench.a, bench.c));
        assert_true(bench_seven(&bench, bench.b) == 0);
        if (how == 0) {
            OK(bench.ops->follow(bench.own, bench.fence));
        } else if (how == 1) {
            OK(bench.ops->wait(bench.fence));
        } else if (how == 2) {
            OK(bench.ops->reached(bench.fence, &reached));
            assert_false(reached);
            assert_true(bench_seven(&bench, bench.b) == 0);
            OK(bench.ops->reached(bench.fence, &reached));
            assert_true(reached);
        } else { /* by way of another lazy queue */
            OK(bench.ops->follow(bench.other, bench.fence));
            OK(bench.ops->record(bench.other, bench.second));
            assert_true(bench_seven(&bench, bench.b) == 0);
            OK(bench.ops->wait(bench.second));
        }
        assert_true(bench_seven(&bench, bench.b) == 7);
        assert_true(bench_seven(&bench, bench.c) == 0); /* after the fence */
        bench_close(&bench);
    }
}

/* A follower follows the fence as it was; without a record nothing is held back. */
static void case_records(void **state)
{
    (void)state;
    struct bench bench;
    bool reached;
    bench_open(&bench);
    OK(bench.ops->reached(bench.fence, &reached));
    assert_true(reached);
    OK(bench.ops->wait(bench.fence));
    OK(bench.ops->follow(bench.other, bench.fence));
    OK(bench.ops->record(bench.lazy, bench.fence));
    OK(bench.ops->follow(bench.other, bench.fence));
    OK(bench.ops->copy(bench.lazy, BYTES, bench.a, bench.b));
    OK(bench.ops->record(bench.lazy, bench.fence)); /* without the follower */
    OK(bench.ops->copy(bench.other, BYTES, bench.b, bench.c));
    OK(bench.ops->record(bench.other, bench.second));
    OK(bench.ops->wait(bench.second));
    assert_true(bench_seven(&bench, bench.c) == 0 && bench_seven(&bench, bench.b) == 0);
    OK(bench.ops->wait(bench.fence));
    assert_true(bench_seven(&bench, bench.b) == 7);
    /* What the kernels' queue is given is done. */
    OK(bench.ops->copy(bench.own, BYTES, bench.a, bench.c));
    OK(bench.ops->record(bench.own, bench.fence));
    OK(bench.ops->reached(bench.fence, &reached));
    assert_true(reached && bench_seven(&bench, bench.c) == 7);
    bench_close(&bench);
}

/* A queue takes any amount of work; closing it, or freeing memory, lets it end first. */
static void case_full(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench);
    for (int i = 0; i < 1000; i++) {
        float *from = i % 2 == 0 ? bench.a : bench.b, *to = i % 2 == 0 ? bench.b : bench.c;
        OK(bench.ops->copy(bench.lazy, BYTES, from, to));
    }
    OK(bench.ops->record(bench.lazy, bench.fence));
    OK(bench.ops->wait(bench.fence));
    assert_true(bench_seven(&bench, bench.c) == 7);

    struct tess_queue *brief;
    struct tess_fence *gone;
    OK(bench.ops->open(bench.kernel, &brief));
    OK(bench.ops->fence_open(bench.kernel, &gone));
    tess_fill(bench.kernel, BYTES, 0, bench.b);
    OK(bench.ops->copy(brief, BYTES, bench.a, bench.b));
    OK(bench.ops->record(brief, gone));
    OK(bench.ops->follow(bench.other, gone));
    bench.ops->fence_close(gone);
    bench.ops->close(brief);
    assert_true(bench_seven(&bench, bench.b) == 7);
    OK(bench.ops->copy(bench.other, BYTES, bench.b, bench.c));
    tess_fill(bench.kernel, BYTES, 0, bench.c);
    bench_close(&bench); /* what is left of `other` runs while b is still there */
}

static void case_reduce(void **state)
{
    (void)state;
    struct bench bench;
    bench_open(&bench);
    tess_copy(bench.kernel, BYTES, bench.a, bench.b);
    const void *source[3] = {bench.a, bench.b, bench.a};
    void *target[2] = {bench.c, bench.b};
    OK(bench.ops->reduce(bench.lazy, TESS_F32, TESS_F32, TESS_REDUCE_SUM, 3, source, 2, target,
                         COUNT));
    OK(bench.ops->record(bench.lazy, bench.fence));
    assert_true(bench_seven(&bench, bench.c) == 0);
    OK(bench.ops->follow(bench.own, bench.fence));
    assert_true(bench_seven(&bench, bench.c) == 21 && bench_seven(&bench, bench.b) == 21);
    assert_int_not_equal(bench.ops->reduce(bench.lazy, TESS_F32, TESS_F32, TESS_REDUCE_SUM, 0,
                                           source, 1, target, COUNT),
                         TESS_OK);
    bench_close(&bench);
}

/* Time passes on the device when work is done, not when it is given. */
static void case_elapsed(void **state)
{
    (void)state;
    struct bench bench;
    double seconds;
    bench_open(&bench);
    OK(bench.ops->record(bench.own, bench.fence));
    OK(bench.ops->record(bench.lazy, bench.second));
    assert_int_not_equal(bench.ops->elapsed(bench.fence, bench.second, &seconds), TESS_OK);
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    OK(bench.ops->wait(bench.second));
    OK(bench.ops->elapsed(bench.fence, bench.second, &seconds));
    assert_true(seconds >= 0.01);
    OK(bench.ops->elapsed(bench.second, bench.fence, &seconds));
    assert_true(seconds <= -0.01);
    bench_close(&bench);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_memory),  cmocka_unit_test(case_far),  cmocka_unit_test(case_late),
        cmocka_unit_test(case_records), cmocka_unit_test(case_full), cmocka_unit_test(case_reduce),
        cmocka_unit_test(case_elapsed),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
