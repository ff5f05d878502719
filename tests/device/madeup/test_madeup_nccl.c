/*
 * The made-up NCCL: that it does what NCCL's documents promise, and nothing kinder. Each case is a
 * process of its own, whose ranks are threads, or processes once more.
 */
#include "device/madeup/madeup.h"

#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define RANKS_MAX 4
#define LIMIT_S   300 /* a machine may stand still for minutes */

/* What the ranks of a case share, also as processes. */
struct table {
    _Atomic int ready; /* the id is there */
    ncclUniqueId id;
    _Atomic int step; /* of the case */
    float result[RANKS_MAX][16];
};
static struct table *table;

struct rank {
    int rank, count;
    ncclComm_t comm;
    cudaStream_t stream;
};

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition,            \
                    ncclGetLastError(NULL));                                                       \
            _exit(3);                                                                              \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == 0)

static void nap(double seconds)
{
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)((seconds - floor(seconds)) * 1e9)},
              NULL);
}

static ncclResult_t state(ncclComm_t comm)
{
    ncclResult_t result;
    OK(ncclCommGetAsyncError(comm, &result));
    return result;
}

/* A call's end as the host sees it. */
static ncclResult_t settle(ncclComm_t comm)
{
    while (state(comm) == ncclInProgress)
        nap(1e-4);
    return state(comm);
}

#define TAKEN(comm, call)                                                                          \
    do {                                                                                           \
        const ncclResult_t taken = (call);                                                         \
        CHECK(taken == ncclSuccess || taken == ncclInProgress);                                    \
        CHECK(settle(comm) == ncclSuccess);                                                        \
    } while (0)

/* By a stream of its own, and done. */
static void copy(void *target, const void *source, size_t bytes)
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
}

static void *device_floats(const float *values, int count)
{
    void *memory;
    OK(cudaMalloc(&memory, sizeof(float) * (size_t)(count > 0 ? count : 1)));
    if (values != NULL)
        copy(memory, values, sizeof(float) * (size_t)count);
    return memory;
}

static void fetch(const struct rank *rank, const void *memory, void *values, size_t bytes)
{
    OK(cudaStreamSynchronize(rank->stream));
    copy(values, memory, bytes);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

typedef void (*rank_function)(struct rank *rank);

static struct {
    rank_function run;
    int count;
    bool one_device, no_comm;
} world;

static ncclResult_t rank_open(struct rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (rank->rank == 0) {
        OK(ncclGetUniqueId(&table->id));
        atomic_store(&table->ready, 1);
    }
    while (atomic_load(&table->ready) == 0)
        nap(1e-4);
    const ncclResult_t result =
        ncclCommInitRankConfig(&rank->comm, rank->count, table->id, rank->rank, &config);
    CHECK(result == ncclInProgress || result == ncclSuccess);
    return settle(rank->comm);
}

static void *rank_main(void *context)
{
    struct rank rank = {.rank = *(int *)context, .count = world.count};
    OK(cudaSetDevice(world.one_device ? 0 : rank.rank));
    OK(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking));
    if (!world.no_comm)
        CHECK(rank_open(&rank) == ncclSuccess);
    world.run(&rank);
    return NULL;
}

static int run_threads(void)
{
    pthread_t thread[RANKS_MAX];
    int number[RANKS_MAX];
    for (int r = 0; r < world.count; r++) {
        number[r] = r;
        OK(pthread_create(&thread[r], NULL, rank_main, &number[r]));
    }
    for (int r = 0; r < world.count; r++)
        OK(pthread_join(thread[r], NULL));
    return 0;
}

static int run_processes(void)
{
    int status, failed = 0;
    for (int r = 0; r < world.count; r++)
        if (fork() == 0) {
            (void)rank_main(&r);
            exit(0);
        }
    while (wait(&status) > 0)
        failed |= status;
    return failed;
}

/* The exit status of the case in a process of its own; what it prints goes to `text`. */
static int run(int (*ranks)(void), rank_function function, int count, char *text, size_t bytes)
{
    int status, channel[2];
    size_t used = 0;
    world.run = function;
    world.count = count;
    memset(table, 0, sizeof(*table));
    assert_int_equal(pipe(channel), 0);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(LIMIT_S);
        setenv("MADEUP_DEVICES", "4", 1);
        if (text != NULL)
            (void)dup2(channel[1], STDERR_FILENO);
        close(channel[0]);
        close(channel[1]);
        exit(ranks());
    }
    close(channel[1]);
    while (text != NULL && used + 1 < bytes) {
        const ssize_t got = read(channel[0], text + used, bytes - used - 1);
        if (got <= 0)
            break;
        used += (size_t)got;
    }
    if (text != NULL)
        text[used] = '\0';
    close(channel[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void run_both(rank_function function, int count)
{
    assert_int_equal(run(run_threads, function, count, NULL, 0), 0);
    assert_int_equal(run(run_processes, function, count, NULL, 0), 0);
}

static void rank_close(struct rank *rank)
{
    TAKEN(rank->comm, ncclCommFinalize(rank->comm));
    OK(ncclCommDestroy(rank->comm));
    OK(cudaStreamDestroy(rank->stream));
}

/* ---- cases ----------------------------------------------------------------------------------- */

enum { COUNT = 40003 };

static void collectives_of(struct rank *rank, ncclDataType_t dtype, const void *values, size_t size,
                           void *sum)
{
    char *source, *target;
    const size_t n = (size_t)rank->count, bytes = COUNT * size;
    OK(cudaMalloc((void **)&source, bytes));
    OK(cudaMalloc((void **)&target, bytes * n));
    copy(source, values, bytes);
    TAKEN(rank->comm,
          ncclAllReduce(source, target, COUNT, dtype, ncclSum, rank->comm, rank->stream));
    fetch(rank, target, sum, bytes);
    /* A scatter of the same array is a slice of that, a gather of slices all of it. */
    char *again = malloc(bytes), *slice;
    const size_t share = COUNT / n;
    OK(cudaMalloc((void **)&slice, share * size));
    TAKEN(rank->comm,
          ncclReduceScatter(source, slice, share, dtype, ncclMax, rank->comm, rank->stream));
    TAKEN(rank->comm, ncclAllGather(slice, target, share, dtype, rank->comm, rank->stream));
    TAKEN(rank->comm,
          ncclReduce(source, source, share * n, dtype, ncclMax, 1, rank->comm, rank->stream));
    TAKEN(rank->comm, ncclBroadcast(source, source, share * n, dtype, 1, rank->comm, rank->stream));
    char *other = malloc(bytes);
    fetch(rank, target, again, share * n * size);
    fetch(rank, source, other, share * n * size);
    CHECK(memcmp(again, other, share * n * size) == 0);
    OK(cudaFree(source));
    OK(cudaFree(target));
    OK(cudaFree(slice));
    free(again);
    free(other);
}

static void collectives_rank(struct rank *rank)
{
    static const struct {
        ncclDataType_t dtype;
        size_t size;
    } types[] = {{ncclInt32, 4}, {ncclInt64, 8}, {ncclUint8, 1}, {ncclFloat64, 8}};
    char *values = malloc(COUNT * 8), *sum = malloc(COUNT * 8);
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (int i = 0; i < COUNT; i++) {
            const int64_t wide = rank->rank * 3 + i % 20;
            const double real = (double)wide;
            memcpy(values + (size_t)i * types[t].size,
                   types[t].dtype == ncclFloat64 ? (const void *)&real : &wide, types[t].size);
        }
        collectives_of(rank, types[t].dtype, values, types[t].size, sum);
        for (int i = 0; i < COUNT; i++) {
            const int64_t n = rank->count, wide = n * (i % 20) + 3 * n * (n - 1) / 2;
            const double real = (double)wide;
            CHECK(memcmp(sum + (size_t)i * types[t].size,
                         types[t].dtype == ncclFloat64 ? (const void *)&real : &wide,
                         types[t].size) == 0);
        }
    }
    free(values);
    free(sum);
    rank_close(rank);
}

static void case_collectives(void **unused)
{
    (void)unused;
    run_both(collectives_rank, 3);
}

/* 1, 2^-24 and 2^-24: 1 where the small ones come one after the other, more where they come first.
 */
static void order_rank(struct rank *rank)
{
    const float value = rank->rank == 0 ? 1.0f : 0x1p-24f;
    float values[3] = {value, value, value}, first[3], second[3];
    void *source = device_floats(values, 3), *target = device_floats(NULL, 3);
    for (int i = 0; i < 2; i++) {
        TAKEN(rank->comm,
              ncclAllReduce(source, target, 3, ncclFloat32, ncclSum, rank->comm, rank->stream));
        fetch(rank, target, i == 0 ? first : second, sizeof(first));
    }
    CHECK(memcmp(first, second, sizeof(first)) == 0);
    /* Slices begin at ranks 1, 2 and 0. */
    CHECK(first[0] > 1 && first[1] == 1 && first[2] == 1);
    unsigned short half = rank->rank == 0 ? 0x3f80 : 0x3b80; /* bf16: 1 and 2^-8 */
    copy(source, &half, 2);
    TAKEN(rank->comm,
          ncclAllReduce(source, source, 1, ncclBfloat16, ncclSum, rank->comm, rank->stream));
    fetch(rank, source, &half, 2);
    CHECK(half == 0x3f81);
    half = rank->rank == 0 ? 0x3c00 : 0x3800; /* f16: 1 and 0.5 */
    copy(source, &half, 2);
    TAKEN(rank->comm,
          ncclAllReduce(source, source, 1, ncclFloat16, ncclSum, rank->comm, rank->stream));
    fetch(rank, source, &half, 2);
    CHECK(half == 0x4000);
    OK(cudaFree(source));
    OK(cudaFree(target));
    rank_close(rank);
}

static void case_order(void **unused)
{
    (void)unused;
    run_both(order_rank, 3);
}

/* The first message of a pair is in progress until the peer has made its call; the second is not.
 */
static void connects_rank(struct rank *rank)
{
    float value = 7;
    void *memory = device_floats(&value, 1);
    for (int i = 0; i < 2; i++) {
        const ncclResult_t result =
            rank->rank == 0
                ? ncclSend(memory, 1, ncclFloat32, 1, rank->comm, rank->stream)
                : (nap(0.2), ncclRecv(memory, 1, ncclFloat32, 0, rank->comm, rank->stream));
        CHECK(result == ncclInProgress || result == ncclSuccess);
        if (rank->rank == 0) {
            nap(0.1);
            CHECK(state(rank->comm) == (i == 0 ? ncclInProgress : ncclSuccess));
            CHECK(i == 1 || ncclSend(memory, 1, ncclFloat32, 1, rank->comm, rank->stream) ==
                                ncclInvalidArgument);
            /* Its kernel stays on the stream. */
            CHECK(i == 0 || cudaStreamQuery(rank->stream) == cudaErrorNotReady);
        }
        CHECK(settle(rank->comm) == ncclSuccess);
        OK(cudaStreamSynchronize(rank->stream));
        atomic_fetch_add(&table->step, 1);
        while (atomic_load(&table->step) < 2 * (i + 1))
            nap(1e-4);
    }
    fetch(rank, memory, &value, sizeof(value));
    CHECK(value == 7);
    OK(cudaFree(memory));
    rank_close(rank);
}

static void case_connects(void **unused)
{
    (void)unused;
    run_both(connects_rank, 2);
}

/* All to all in a group, receives and sends in any order, one's own too. */
static void group_rank(struct rank *rank)
{
    enum { PIECE = 30000 };
    const int n = rank->count;
    float *values = calloc((size_t)PIECE * RANKS_MAX, sizeof(*values));
    for (int i = 0; i < PIECE * n; i++)
        values[i] = (float)(rank->rank * 10 + i / PIECE);
    float *source = device_floats(values, PIECE * n), *target = device_floats(NULL, PIECE * n);
    OK(ncclGroupStart());
    for (int r = 0; r < n; r++)
        OK(ncclRecv(target + r * PIECE, PIECE, ncclFloat32, r, rank->comm, rank->stream));
    for (int r = n - 1; r >= 0; r--)
        OK(ncclSend(source + r * PIECE, PIECE, ncclFloat32, r, rank->comm, rank->stream));
    TAKEN(rank->comm, ncclGroupEnd());
    fetch(rank, target, values, sizeof(*values) * (size_t)(PIECE * n));
    for (int i = 0; i < PIECE * n; i++)
        CHECK(values[i] == (float)(i / PIECE * 10 + rank->rank));
    free(values);
    OK(cudaFree(source));
    OK(cudaFree(target));
    rank_close(rank);
}

static void case_group(void **unused)
{
    (void)unused;
    run_both(group_rank, 4);
}

/* The same as one call; TEST_WRONG: with what it may not be. */
static void all_to_all_rank(struct rank *rank)
{
    enum { PIECE = 30000 };
    const char *const word = getenv("TEST_WRONG"), *const wrong = word != NULL ? word : "";
    const int n = rank->count;
    float *values = calloc((size_t)PIECE * RANKS_MAX, sizeof(*values));
    for (int i = 0; i < PIECE * n; i++)
        values[i] = (float)(rank->rank * 10 + i / PIECE);
    float *source = device_floats(values, PIECE * n), *target = device_floats(NULL, PIECE * n);
    const int odd = strcmp(wrong, "count") == 0 && rank->rank == 1;
    TAKEN(rank->comm, ncclAlltoAll(source, strcmp(wrong, "place") == 0 ? source : target,
                                   PIECE - odd, ncclFloat32, rank->comm, rank->stream));
    fetch(rank, target, values, sizeof(*values) * (size_t)(PIECE * n));
    for (int i = 0; i < PIECE * n; i++)
        CHECK(values[i] == (float)(i / PIECE * 10 + rank->rank));
    free(values);
    OK(cudaFree(source));
    OK(cudaFree(target));
    rank_close(rank);
}

static void case_all_to_all(void **unused)
{
    static const char *const wrong[][3] = {{"TEST_WRONG", "place", "source and target overlap"},
                                           {"TEST_WRONG", "count", "calls of NCCL differ"},
                                           {"MADEUP_NCCL_VERSION", "22707", "no such function"}};
    (void)unused;
    run_both(all_to_all_rank, 4);
    for (int i = 0; i < 3; i++) {
        char text[2000];
        setenv(wrong[i][0], wrong[i][1], 1);
        assert_int_not_equal(run(run_threads, all_to_all_rank, 2, text, sizeof(text)), 0);
        assert_non_null(strstr(text, wrong[i][2]));
        unsetenv(wrong[i][0]);
    }
}

static void one_device_rank(struct rank *rank)
{
    const char *many = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    char host[16];
    snprintf(host, sizeof(host), "host-%d", rank->rank);
    if (getenv("TEST_HOSTS") != NULL)
        OK(setenv("NCCL_HOSTID", host, 1));
    const bool taken = many != NULL || getenv("TEST_HOSTS") != NULL;
    CHECK(rank_open(rank) == (taken ? ncclSuccess : ncclInvalidUsage));
    if (!taken)
        CHECK(strstr(ncclGetLastError(NULL), "Duplicate GPU") != NULL);
    OK(ncclCommAbort(rank->comm));
    OK(cudaStreamDestroy(rank->stream));
}

static void case_one_device(void **unused)
{
    (void)unused;
    world.no_comm = world.one_device = true;
    run_both(one_device_rank, 2);
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    run_both(one_device_rank, 2);
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    setenv("TEST_HOSTS", "1", 1);
    assert_int_equal(run(run_processes, one_device_rank, 2, NULL, 0), 0);
    unsetenv("TEST_HOSTS");
    world.no_comm = world.one_device = false;
}

static void split_rank(struct rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t child = NULL;
    config.blocking = 0;
    const int color = rank->rank == 1 ? NCCL_SPLIT_NOCOLOR : rank->rank % 2;
    TAKEN(rank->comm, ncclCommSplit(rank->comm, color, -rank->rank, &child, &config));
    CHECK((child == NULL) == (rank->rank == 1));
    if (rank->rank % 2 == 0) { /* ranks 0 and 2; 2 is the first by its key */
        float value = (float)rank->rank, both[2];
        void *source = device_floats(&value, 1), *target = device_floats(NULL, 2);
        CHECK(settle(child) == ncclSuccess);
        TAKEN(child, ncclAllGather(source, target, 1, ncclFloat32, child, rank->stream));
        fetch(rank, target, both, sizeof(both));
        CHECK(both[0] == 2 && both[1] == 0);
        OK(cudaFree(source));
        OK(cudaFree(target));
    }
    if (child != NULL)
        OK(ncclCommDestroy(child));
    rank_close(rank);
}

static void case_split(void **unused)
{
    (void)unused;
    run_both(split_rank, 4);
}

static void windows_rank(struct rank *rank)
{
    void *memory, *handle = NULL, *plain = device_floats(NULL, 1024);
    ncclWindow_t window = NULL;
    OK(ncclMemAlloc(&memory, 1 << 16));
    CHECK(ncclCommWindowRegister(rank->comm, plain, 4096, &window, NCCL_WIN_COLL_SYMMETRIC) ==
          ncclInvalidArgument);
    TAKEN(rank->comm,
          ncclCommWindowRegister(rank->comm, memory, 1 << 16, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(window != NULL);
    OK(cudaMemsetAsync(memory, 0, 1 << 16, rank->stream));
    /* The same place on all ranks, or the program ends. */
    char *at = (char *)memory + (rank->rank == 1 && getenv("TEST_SHIFT") != NULL ? 64 : 0);
    TAKEN(rank->comm, ncclAllReduce(at, at, 8, ncclFloat32, ncclSum, rank->comm, rank->stream));
    OK(cudaStreamSynchronize(rank->stream));
    TAKEN(rank->comm, ncclCommWindowDeregister(rank->comm, window));
    CHECK(ncclCommRegister(rank->comm, table, 64, &handle) == ncclInvalidArgument);
    TAKEN(rank->comm, ncclCommRegister(rank->comm, plain, 4096, &handle));
    TAKEN(rank->comm, ncclCommDeregister(rank->comm, handle));
    OK(ncclMemFree(memory));
    OK(cudaFree(plain));
    rank_close(rank);
}

static void case_windows(void **unused)
{
    char text[2000];
    (void)unused;
    run_both(windows_rank, 2);
    setenv("TEST_SHIFT", "1", 1);
    assert_int_not_equal(run(run_threads, windows_rank, 2, text, sizeof(text)), 0);
    assert_non_null(strstr(text, "calls of NCCL differ"));
    unsetenv("TEST_SHIFT");
}

/* A recorded collective is run at each play, beside calls that are not recorded. */
static void graph_rank(struct rank *rank)
{
    float value = 1;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    void *memory = device_floats(&value, 1);
    TAKEN(rank->comm,
          ncclAllReduce(memory, memory, 1, ncclFloat32, ncclSum, rank->comm, rank->stream));
    OK(cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeRelaxed));
    TAKEN(rank->comm,
          ncclAllReduce(memory, memory, 1, ncclFloat32, ncclSum, rank->comm, rank->stream));
    OK(cudaStreamEndCapture(rank->stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++)
        OK(cudaGraphLaunch(exec, rank->stream));
    fetch(rank, memory, &value, sizeof(value));
    CHECK(value == 16);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(memory));
    rank_close(rank);
}

static void case_graph(void **unused)
{
    (void)unused;
    run_both(graph_rank, 2);
}

/* A rank that is killed leaves its peer's call in progress, and its kernel on the stream. */
static void killed_rank(struct rank *rank)
{
    float value = 1;
    void *memory = device_floats(&value, 1);
    const bool kernel = getenv("TEST_KERNEL") != NULL;
    if (kernel)
        TAKEN(rank->comm,
              ncclAllReduce(memory, memory, 1, ncclFloat32, ncclSum, rank->comm, rank->stream));
    if (rank->rank == 1) {
        OK(cudaStreamSynchronize(rank->stream));
        atomic_store(&table->step, 1);
        nap(0.05);
        _exit(0);
    }
    while (atomic_load(&table->step) == 0)
        nap(1e-3);
    nap(0.2);
    const ncclResult_t result =
        ncclAllReduce(memory, memory, 1, ncclFloat32, ncclSum, rank->comm, rank->stream);
    CHECK(result == ncclInProgress || result == ncclSuccess);
    nap(0.2);
    CHECK(state(rank->comm) == (kernel ? ncclSuccess : ncclInProgress));
    CHECK(!kernel || cudaStreamQuery(rank->stream) == cudaErrorNotReady);
    OK(ncclGroupStart());
    OK(ncclCommAbort(rank->comm));
    OK(ncclGroupEnd());
    OK(cudaStreamSynchronize(rank->stream));
    OK(cudaFree(memory));
}

static void case_killed(void **unused)
{
    (void)unused;
    assert_int_equal(run(run_processes, killed_rank, 2, NULL, 0), 0);
    setenv("TEST_KERNEL", "1", 1);
    assert_int_equal(run(run_processes, killed_rank, 2, NULL, 0), 0);
    unsetenv("TEST_KERNEL");
}

/* Ranks whose calls differ. */
static void differ_rank(struct rank *rank)
{
    const char *word = getenv("TEST_DIFFER");
    const bool odd = rank->rank == 1;
    void *memory = device_floats(NULL, 64);
    ncclResult_t result = ncclSuccess;
    if (strcmp(word, "kind") == 0) {
        TAKEN(rank->comm, ncclAllGather(memory, memory, 1, ncclFloat32, rank->comm, rank->stream));
        TAKEN(rank->comm,
              ncclBroadcast(memory, memory, 1, ncclFloat32, 0, rank->comm, rank->stream));
        result = odd ? ncclAllGather(memory, memory, 1, ncclFloat32, rank->comm, rank->stream)
                     : ncclBroadcast(memory, memory, 1, ncclFloat32, 0, rank->comm, rank->stream);
    } else if (strcmp(word, "count") == 0) {
        result = ncclAllReduce(memory, memory, odd ? 3 : 4, ncclFloat32, ncclSum, rank->comm,
                               rank->stream);
    } else if (odd) {
        result = ncclRecv(memory, 5, ncclFloat32, 0, rank->comm, rank->stream);
    } else {
        result = ncclSend(memory, 4, ncclFloat32, 1, rank->comm, rank->stream);
    }
    CHECK(result == ncclSuccess || result == ncclInProgress);
    CHECK(settle(rank->comm) == ncclSuccess);
    OK(cudaStreamSynchronize(rank->stream));
}

static void case_differ(void **unused)
{
    static const char *const words[][2] = {
        {"kind", "ncclBroadcast"}, {"count", "count 3"}, {"message", "count 5"}};
    (void)unused;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char text[2000];
        setenv("TEST_DIFFER", words[i][0], 1);
        assert_int_not_equal(run(run_threads, differ_rank, 2, text, sizeof(text)), 0);
        assert_non_null(strstr(text, "calls of NCCL differ"));
        assert_non_null(strstr(text, words[i][1]));
    }
}

static void injected_rank(struct rank *rank)
{
    void *memory = device_floats(NULL, 1);
    CHECK(ncclAllReduce(memory, memory, 1, ncclFloat32, ncclSum, rank->comm, rank->stream) ==
          ncclRemoteError);
    CHECK(state(rank->comm) == ncclSuccess);
    TAKEN(rank->comm,
          ncclAllReduce(memory, memory, 1, ncclFloat32, ncclSum, rank->comm, rank->stream));
    OK(cudaStreamSynchronize(rank->stream));
    OK(cudaFree(memory));
    rank_close(rank);
}

static void case_injected(void **unused)
{
    (void)unused;
    setenv("MADEUP_FAIL", "ncclAllReduce:1:6", 1);
    assert_int_equal(run(run_processes, injected_rank, 2, NULL, 0), 0);
    unsetenv("MADEUP_FAIL");
}

/* What a configuration may not have. */
static void config_rank(struct rank *rank)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER, wrong[5];
    for (int i = 0; i < 5; i++)
        wrong[i] = config;
    wrong[0].maxCTAs = 0;
    wrong[1].minCTAs = -1;
    wrong[2].minCTAs = 4;
    wrong[2].maxCTAs = 3;
    wrong[3].CTAPolicy = NCCL_CTA_POLICY_ZERO + 1;
    wrong[4].blocking = 2;
    OK(ncclGetUniqueId(&table->id));
    for (int i = 0; i < 5; i++)
        CHECK(ncclCommInitRankConfig(&rank->comm, 1, table->id, 0, &wrong[i]) ==
              ncclInvalidArgument);
    config.maxCTAs = 8;
    config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
    OK(ncclCommInitRankConfig(&rank->comm, 1, table->id, 0, &config));
    rank_close(rank);
}

static void case_config(void **unused)
{
    (void)unused;
    world.no_comm = true;
    assert_int_equal(run(run_threads, config_rank, 1, NULL, 0), 0);
    world.no_comm = false;
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_collectives), cmocka_unit_test(case_order),
        cmocka_unit_test(case_connects),    cmocka_unit_test(case_group),
        cmocka_unit_test(case_all_to_all),  cmocka_unit_test(case_one_device),
        cmocka_unit_test(case_split),       cmocka_unit_test(case_windows),
        cmocka_unit_test(case_graph),       cmocka_unit_test(case_killed),
        cmocka_unit_test(case_differ),      cmocka_unit_test(case_injected),
        cmocka_unit_test(case_config),
    };
    table = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests(cases, NULL, NULL);
}
