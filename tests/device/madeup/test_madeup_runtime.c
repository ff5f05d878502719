/*
 * The runtime of the made-up device: what it promises, and that it refuses the rest. Settings are
 * read once in a process, so each word is a process of its own:
 *
 *   plain    two devices       late     work that no call waits for is left undone
 *   few      one queue         capture  graphs
 *   broken   failures          refused  calls that end the program, each in a child
 */
#include "base/clock.h"
#include "device/madeup/madeup.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(call) assert_int_equal((call), cudaSuccess)

static cudaStream_t stream_open(void)
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t event_open(unsigned flags)
{
    cudaEvent_t event;
    OK(cudaEventCreateWithFlags(&event, flags));
    return event;
}

/* ---- pieces of work ------------------------------------------------------------------------- */

static _Atomic int order; /* counts pieces that have run */
static _Atomic bool gate;

static cudaError_t note_run(const void *context)
{
    *(int *)(uintptr_t)context = atomic_fetch_add(&order, 1) + 1;
    return cudaSuccess;
}

static cudaError_t gate_run(const void *context)
{
    (void)context;
    while (!atomic_load(&gate) && !madeup_cancelled())
        (void)usleep(200);
    return cudaSuccess;
}

static cudaError_t break_run(const void *context)
{
    (void)context;
    return cudaErrorIllegalAddress;
}

static void submit(cudaStream_t stream, cudaError_t (*run)(const void *), void *context)
{
    OK(madeup_submit(stream,
                     &(struct madeup_work){.name = "test", .run = run, .context = context}));
}

/* Its place among the pieces that have run, from 1; 0 before. */
static void note(cudaStream_t stream, int *place)
{
    *place = 0;
    submit(stream, note_run, place);
}

static void close_gate(cudaStream_t stream)
{
    atomic_store(&gate, false);
    submit(stream, gate_run, NULL);
}

/* ---- plain ---------------------------------------------------------------------------------- */

static void case_devices(void **state)
{
    (void)state;
    int count = 0, device = -1, value = 0;
    OK(cudaGetDeviceCount(&count));
    assert_int_equal(count, 2);
    OK(cudaGetDevice(&device));
    assert_int_equal(device, 0);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
    OK(cudaGetLastError());
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 1));
    assert_int_equal(value, 9);
    assert_string_equal(cudaGetErrorName(cudaErrorNotReady), "cudaErrorNotReady");
}

/* Filled with 0xff bytes, of the size asked for, and gone when it is freed. */
static void case_memory(void **state)
{
    (void)state;
    size_t before, after, total;
    unsigned char *memory, *pinned;
    OK(cudaMemGetInfo(&before, &total));
    assert_int_equal(total, 64 << 20);
    OK(cudaMalloc((void **)&memory, 5 << 20));
    OK(cudaHostAlloc((void **)&pinned, 300, cudaHostAllocPortable));
    OK(cudaMemGetInfo(&after, &total));
    assert_int_equal(before - after, 5 << 20);
    assert_int_equal((uintptr_t)memory % 256, 0);
    assert_int_equal(memory[(5 << 20) - 1], 0xff);
    int device = -1;
    assert_int_equal(madeup_place_of(memory + 7, &device), MADEUP_DEVICE);
    assert_int_equal(device, 0);
    assert_int_equal(madeup_place_of(pinned + 299, NULL), MADEUP_PINNED);
    assert_int_equal(madeup_place_of(&device, NULL), MADEUP_HOST);
    struct cudaPointerAttributes about;
    OK(cudaPointerGetAttributes(&about, memory));
    assert_int_equal(about.type, cudaMemoryTypeDevice);
    void *none;
    assert_int_equal(cudaMalloc(&none, 64 << 20), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaFree(memory));
    assert_int_equal(madeup_place_of(memory, NULL), MADEUP_HOST);
    assert_int_equal(cudaFree(memory), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    OK(cudaFreeHost(pinned));
}

static void case_copies(void **state)
{
    (void)state;
    const cudaStream_t stream = stream_open();
    unsigned char *memory, *pinned, host[64];
    OK(cudaMalloc((void **)&memory, 256));
    OK(cudaHostAlloc((void **)&pinned, 256, cudaHostAllocDefault));
    memset(pinned, 3, 256);
    OK(cudaMemsetAsync(memory, 9, 256, stream));
    OK(cudaMemcpyAsync(memory + 64, pinned, 64, cudaMemcpyHostToDevice, stream));
    /* Other memory of the host: the call waits. */
    OK(cudaMemcpyAsync(host, memory + 60, 8, cudaMemcpyDefault, stream));
    assert_memory_equal(host, "\11\11\11\11\3\3\3\3", 8);
    assert_int_equal(cudaMemsetAsync(host, 0, 4, stream), cudaErrorInvalidValue);
    (void)cudaGetLastError();
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(memory));
    OK(cudaFreeHost(pinned));
}

static void case_order(void **state)
{
    (void)state;
    const cudaStream_t one = stream_open(), two = stream_open();
    const cudaEvent_t event = event_open(cudaEventDisableTiming);
    int first, second, third;
    close_gate(one);
    note(one, &first);
    OK(cudaEventRecord(event, one));
    OK(cudaStreamWaitEvent(two, event, cudaEventWaitDefault));
    note(two, &second);
    note(one, &third);
    OK(cudaEventRecord(event, one)); /* what was waited for is the record before */
    assert_int_equal(cudaStreamQuery(two), cudaErrorNotReady);
    assert_int_equal(cudaEventQuery(event), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    atomic_store(&gate, true);
    OK(cudaStreamSynchronize(two));
    OK(cudaEventSynchronize(event));
    OK(cudaEventQuery(event));
    OK(cudaDeviceSynchronize());
    assert_true(first > 0 && first < second && first < third);
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
}

static void case_times(void **state)
{
    (void)state;
    const cudaStream_t stream = stream_open();
    const cudaEvent_t from = event_open(0), to = event_open(0);
    const cudaEvent_t without = event_open(cudaEventDisableTiming);
    float ms = -1;
    assert_int_equal(cudaEventElapsedTime(&ms, from, to), cudaErrorInvalidResourceHandle);
    OK(cudaEventRecord(from, stream));
    OK(cudaEventSynchronize(from));
    close_gate(stream);
    OK(cudaEventRecord(to, stream));
    OK(cudaEventRecord(without, stream));
    assert_int_equal(cudaEventElapsedTime(&ms, from, to), cudaErrorNotReady);
    (void)usleep(2000);
    atomic_store(&gate, true);
    OK(cudaStreamSynchronize(stream));
    OK(cudaEventElapsedTime(&ms, from, to));
    assert_true(ms >= 1);
    assert_int_equal(cudaEventElapsedTime(&ms, from, without), cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
    OK(cudaSetDevice(1));
    const cudaStream_t other = stream_open();
    assert_int_equal(cudaEventRecord(from, other), cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
    OK(cudaStreamWaitEvent(other, from, cudaEventWaitDefault));
    OK(cudaStreamDestroy(other));
    OK(cudaSetDevice(0));
    OK(cudaEventDestroy(from));
    OK(cudaEventDestroy(to));
    OK(cudaEventDestroy(without));
    OK(cudaStreamDestroy(stream));
}

/* Allocation waits for all that the device has to do. */
static void *open_gate_later(void *argument)
{
    (void)argument;
    (void)usleep(20000);
    atomic_store(&gate, true);
    return NULL;
}

static void case_idle(void **state)
{
    (void)state;
    const cudaStream_t stream = stream_open();
    void *memory;
    int place;
    pthread_t thread;
    close_gate(stream);
    note(stream, &place);
    assert_int_equal(pthread_create(&thread, NULL, open_gate_later, NULL), 0);
    OK(cudaMalloc(&memory, 16));
    assert_true(place > 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    OK(cudaFree(memory));
    OK(cudaStreamDestroy(stream));
}

static void case_fork(void **state)
{
    (void)state;
    const pid_t pid = fork();
    if (pid == 0) {
        int count;
        _exit(cudaGetDeviceCount(&count) == cudaErrorInitializationError ? 0 : 1);
    }
    int ended = -1;
    assert_int_equal(waitpid(pid, &ended, 0), pid);
    assert_int_equal(ended, 0);
}

/* ---- late, few ------------------------------------------------------------------------------ */

/* MADEUP_LATE=2000: a query is no wait. */
static void case_late(void **state)
{
    (void)state;
    const cudaStream_t one = stream_open(), two = stream_open();
    const cudaEvent_t event = event_open(cudaEventDisableTiming);
    int first, second;
    const double begun_s = tess_clock_s();
    note(one, &first);
    OK(cudaEventRecord(event, one));
    note(two, &second);
    assert_int_equal(cudaEventQuery(event), cudaErrorNotReady);
    OK(cudaStreamWaitEvent(two, event, cudaEventWaitDefault));
    OK(cudaStreamSynchronize(two));
    assert_true(first > 0 && second > 0);
    assert_true(tess_clock_s() - begun_s < 2);
    note(one, &first);
    (void)usleep(50000);
    assert_int_equal(cudaStreamQuery(one), cudaErrorNotReady);
    while (cudaStreamQuery(one) == cudaErrorNotReady)
        (void)usleep(10000);
    assert_true(tess_clock_s() - begun_s > 1.9);
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
    OK(cudaEventDestroy(event));
}

/* CUDA_DEVICE_MAX_CONNECTIONS=1: work of one stream holds up another's. */
static void case_false_dependency(void **state)
{
    (void)state;
    const cudaStream_t one = stream_open(), two = stream_open();
    int place;
    close_gate(one);
    note(two, &place);
    (void)usleep(20000);
    assert_int_equal(cudaStreamQuery(two), cudaErrorNotReady);
    atomic_store(&gate, true);
    OK(cudaStreamSynchronize(two));
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
}

/* ---- capture -------------------------------------------------------------------------------- */

static enum cudaStreamCaptureStatus status_of(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(stream, &status));
    return status;
}

/* Two branches: the edges are kept, and what is recorded is not run. */
static void case_capture(void **state)
{
    (void)state;
    const cudaStream_t one = stream_open(), two = stream_open();
    const cudaEvent_t fork_at = event_open(cudaEventDisableTiming);
    const cudaEvent_t join_at = event_open(cudaEventDisableTiming);
    const cudaEvent_t outer = event_open(cudaEventDisableTiming);
    int at[4];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed));
    note(one, &at[0]);
    OK(cudaEventRecord(fork_at, one));
    OK(cudaStreamWaitEvent(two, fork_at, cudaEventWaitDefault));
    assert_int_equal(status_of(two), cudaStreamCaptureStatusActive);
    note(one, &at[1]);
    note(two, &at[2]);
    OK(cudaEventRecord(join_at, two));
    OK(cudaStreamWaitEvent(one, join_at, cudaEventWaitDefault));
    note(one, &at[3]);
    OK(cudaEventRecordWithFlags(outer, one, cudaEventRecordExternal));
    OK(cudaStreamEndCapture(one, &graph));
    assert_int_equal(status_of(two), cudaStreamCaptureStatusNone);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphUpload(exec, one));
    assert_int_equal(at[0], 0);
    for (int play = 0; play < 3; play++) {
        OK(cudaGraphLaunch(exec, one));
        OK(cudaEventSynchronize(outer));
        assert_true(at[0] == 4 * play + 1 && at[3] == 4 * play + 4);
        assert_true(at[1] > at[0] && at[1] < at[3] && at[2] > at[0] && at[2] < at[3]);
        atomic_store(&order, 4 * (play + 1));
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
    OK(cudaEventDestroy(fork_at));
    OK(cudaEventDestroy(join_at));
    OK(cudaEventDestroy(outer));
}

/* What was recorded, by its kind: what is recorded and waited for within is no node. */
static void case_nodes(void **state)
{
    (void)state;
    const cudaStream_t stream = stream_open();
    const cudaEvent_t inner = event_open(cudaEventDisableTiming);
    const cudaEvent_t outer = event_open(cudaEventDisableTiming);
    int at, kinds[cudaGraphNodeTypeCount] = {0};
    void *memory;
    cudaGraph_t graph;
    cudaGraphNode_t node[5];
    size_t count = 0;
    OK(cudaMalloc(&memory, 64));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync(memory, 0, 64, stream));
    note(stream, &at);
    OK(cudaEventRecord(inner, stream));
    OK(cudaStreamWaitEvent(stream, inner, cudaEventWaitDefault));
    OK(cudaMemcpyAsync(memory, (char *)memory + 32, 32, cudaMemcpyDeviceToDevice, stream));
    note(stream, &at);
    OK(cudaEventRecordWithFlags(outer, stream, cudaEventRecordExternal));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphGetNodes(graph, NULL, &count));
    assert_int_equal(count, 5);
    OK(cudaGraphGetNodes(graph, node, &count));
    for (size_t n = 0; n < count; n++) {
        enum cudaGraphNodeType type;
        OK(cudaGraphNodeGetType(node[n], &type));
        kinds[type]++;
    }
    assert_true(kinds[cudaGraphNodeTypeKernel] == 2 && kinds[cudaGraphNodeTypeMemcpy] == 1 &&
                kinds[cudaGraphNodeTypeMemset] == 1 && kinds[cudaGraphNodeTypeEventRecord] == 1);
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(memory));
    OK(cudaStreamDestroy(stream));
    OK(cudaEventDestroy(inner));
    OK(cudaEventDestroy(outer));
}

static cudaGraph_t graph_of_notes(cudaStream_t stream, int *place, int count)
{
    cudaGraph_t graph;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < count; i++)
        note(stream, &place[i]);
    OK(cudaStreamEndCapture(stream, &graph));
    return graph;
}

static void case_update(void **state)
{
    (void)state;
    const cudaStream_t stream = stream_open();
    int a[2], b[2], c[3];
    cudaGraph_t first = graph_of_notes(stream, a, 2), same = graph_of_notes(stream, b, 2);
    cudaGraph_t longer = graph_of_notes(stream, c, 3);
    cudaGraphExec_t exec;
    cudaGraphExecUpdateResultInfo result;
    OK(cudaGraphInstantiate(&exec, first, 0));
    OK(cudaGraphDestroy(first));
    OK(cudaGraphExecUpdate(exec, same, &result));
    assert_int_equal(cudaGraphExecUpdate(exec, longer, &result), cudaErrorGraphExecUpdateFailure);
    assert_int_equal(result.result, cudaGraphExecUpdateErrorTopologyChanged);
    assert_int_equal(cudaGetLastError(), cudaErrorGraphExecUpdateFailure);
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    assert_true(a[0] == 0 && b[0] > 0 && b[1] > b[0]);
    OK(cudaGraphDestroy(same));
    OK(cudaGraphDestroy(longer));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaStreamDestroy(stream));
}

/* A wait from outside: for the latest record when it is played. */
static void case_external(void **state)
{
    (void)state;
    const cudaStream_t one = stream_open(), two = stream_open();
    const cudaEvent_t event = event_open(cudaEventDisableTiming);
    int place;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed));
    OK(cudaStreamWaitEvent(one, event, cudaEventWaitExternal));
    note(one, &place);
    OK(cudaStreamEndCapture(one, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    close_gate(two);
    OK(cudaEventRecord(event, two));
    OK(cudaGraphLaunch(exec, one));
    (void)usleep(20000);
    assert_int_equal(cudaStreamQuery(one), cudaErrorNotReady);
    atomic_store(&gate, true);
    OK(cudaStreamSynchronize(one));
    assert_true(place > 0);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
    OK(cudaEventDestroy(event));
}

static void expect_end(cudaStream_t stream, cudaError_t error)
{
    cudaGraph_t graph;
    assert_int_equal(cudaStreamEndCapture(stream, &graph), error);
    assert_null(graph);
    (void)cudaGetLastError();
    assert_int_equal(status_of(stream), cudaStreamCaptureStatusNone);
}

static void case_capture_errors(void **state)
{
    (void)state;
    const cudaStream_t one = stream_open(), two = stream_open();
    const cudaEvent_t event = event_open(cudaEventDisableTiming);
    const cudaEvent_t before = event_open(cudaEventDisableTiming);
    int place;
    OK(cudaEventRecord(before, two));
    assert_int_equal(cudaEventRecordWithFlags(event, one, cudaEventRecordExternal),
                     cudaErrorInvalidValue);

    OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed));
    assert_int_equal(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed),
                     cudaErrorIllegalState);
    assert_int_equal(cudaStreamQuery(one), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(status_of(one), cudaStreamCaptureStatusInvalidated);
    expect_end(one, cudaErrorStreamCaptureInvalidated);

    OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed));
    assert_int_equal(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
    expect_end(one, cudaErrorStreamCaptureInvalidated);

    OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed));
    assert_int_equal(cudaStreamWaitEvent(one, before, cudaEventWaitDefault),
                     cudaErrorStreamCaptureIsolation);
    expect_end(one, cudaErrorStreamCaptureInvalidated);

    OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(event, one));
    OK(cudaStreamWaitEvent(two, event, cudaEventWaitDefault));
    note(two, &place);
    expect_end(one, cudaErrorStreamCaptureUnjoined);
    assert_int_equal(cudaEventQuery(event), cudaErrorCapturedEvent);

    OK(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed));
    OK(cudaStreamBeginCapture(two, cudaStreamCaptureModeRelaxed));
    OK(cudaEventRecord(event, one));
    assert_int_equal(cudaStreamWaitEvent(two, event, cudaEventWaitDefault),
                     cudaErrorStreamCaptureMerge);
    expect_end(one, cudaErrorStreamCaptureInvalidated);
    expect_end(two, cudaErrorStreamCaptureInvalidated);
    assert_int_equal(place, 0);
    OK(cudaStreamDestroy(one));
    OK(cudaStreamDestroy(two));
    OK(cudaEventDestroy(event));
    OK(cudaEventDestroy(before));
}

/* ---- broken --------------------------------------------------------------------------------- */

/* MADEUP_FAIL=cudaStreamCreateWithFlags:2,cudaMalloc:1:999 */
static void case_injected(void **state)
{
    (void)state;
    void *memory;
    cudaStream_t none;
    const cudaStream_t stream = stream_open();
    assert_int_equal(cudaStreamCreateWithFlags(&none, 0), cudaErrorMemoryAllocation);
    assert_int_equal(cudaMalloc(&memory, 8), cudaErrorUnknown);
    assert_int_equal(cudaGetLastError(), cudaErrorUnknown);
    OK(cudaGetLastError());
    OK(cudaMalloc(&memory, 8));
    OK(cudaFree(memory));
    OK(cudaStreamDestroy(stream));
}

/* An error of work stays for ever, on its device alone; nobody waits for what comes after it. */
static void case_sticky(void **state)
{
    (void)state;
    const cudaStream_t stream = stream_open();
    const cudaEvent_t event = event_open(0);
    int place;
    submit(stream, break_run, NULL);
    note(stream, &place);
    (void)cudaEventRecord(event, stream);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    assert_int_equal(place, 0);
    for (int again = 0; again < 2; again++) {
        void *memory;
        assert_int_equal(cudaMalloc(&memory, 8), cudaErrorIllegalAddress);
        assert_int_equal(cudaEventQuery(event), cudaErrorIllegalAddress);
        assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    }
    assert_int_equal(cudaEventDestroy(event), cudaErrorIllegalAddress);
    assert_int_equal(cudaStreamDestroy(stream), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress); /* the thread's latest */
    OK(cudaSetDevice(1));
    OK(cudaGetLastError());
    const cudaStream_t other = stream_open();
    OK(cudaStreamSynchronize(other));
    OK(cudaStreamDestroy(other));
}

/* ---- refused -------------------------------------------------------------------------------- */

static void refuse_default(void)
{
    (void)cudaStreamSynchronize(NULL);
}

static void refuse_beyond(void)
{
    char *memory;
    cudaStream_t stream;
    (void)cudaMalloc((void **)&memory, 100);
    (void)cudaStreamCreateWithFlags(&stream, 0);
    (void)cudaMemsetAsync(memory + 1, 0, 100, stream);
    (void)cudaStreamSynchronize(stream);
}

static void refuse_freed(void)
{
    char *memory, *pinned;
    cudaStream_t stream;
    (void)cudaHostAlloc((void **)&pinned, 100, 0);
    (void)cudaMalloc((void **)&memory, 100);
    (void)cudaStreamCreateWithFlags(&stream, 0);
    (void)cudaFree(memory);
    (void)cudaMemcpyAsync(memory, pinned, 4, cudaMemcpyHostToDevice, stream);
}

static void refuse_attribute(void)
{
    int value;
    (void)cudaDeviceGetAttribute(&value, cudaDevAttrTextureAlignment, 0);
}

static void refuse_stream(void)
{
    int none[64] = {0};
    (void)cudaStreamSynchronize((cudaStream_t)none);
}

static void case_refused(void **state)
{
    static const struct {
        void (*call)(void);
        const char *words;
    } refused[] = {
        {refuse_default, "the default streams are not modelled"},
        {refuse_beyond, "cudaMemsetAsync: 100 bytes from"},
        {refuse_freed, "the memory is not such"},
        {refuse_attribute, "is not modelled"},
        {refuse_stream, "is no stream"},
    };
    (void)state;
    for (size_t r = 0; r < sizeof(refused) / sizeof(refused[0]); r++) {
        int end[2], ended = 0;
        char text[1024];
        size_t length = 0;
        assert_int_equal(pipe(end), 0);
        const pid_t pid = fork();
        if (pid == 0) {
            (void)dup2(end[1], STDERR_FILENO);
            (void)signal(SIGABRT, SIG_DFL);
            refused[r].call();
            _exit(0);
        }
        close(end[1]);
        ssize_t got;
        while ((got = read(end[0], text + length, sizeof(text) - 1 - length)) > 0)
            length += (size_t)got;
        text[length] = '\0';
        close(end[0]);
        assert_int_equal(waitpid(pid, &ended, 0), pid);
        assert_true(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGABRT);
        if (strstr(text, refused[r].words) == NULL)
            fail_msg("'%s' is not in '%s'", refused[r].words, text);
    }
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest plain[] = {
        cmocka_unit_test(case_devices), cmocka_unit_test(case_memory),
        cmocka_unit_test(case_copies),  cmocka_unit_test(case_order),
        cmocka_unit_test(case_times),   cmocka_unit_test(case_idle),
        cmocka_unit_test(case_fork),
    };
    static const struct CMUnitTest late[] = {cmocka_unit_test(case_late)};
    static const struct CMUnitTest few[] = {cmocka_unit_test(case_false_dependency)};
    static const struct CMUnitTest capture[] = {
        cmocka_unit_test(case_capture),        cmocka_unit_test(case_nodes),
        cmocka_unit_test(case_update),         cmocka_unit_test(case_external),
        cmocka_unit_test(case_capture_errors),
    };
    static const struct CMUnitTest broken[] = {cmocka_unit_test(case_injected),
                                               cmocka_unit_test(case_sticky)};
    static const struct CMUnitTest refused[] = {cmocka_unit_test(case_refused)};
    const char *word = argc > 1 ? argv[1] : "plain";
    setenv("MADEUP_DEVICES", "2", 1);
    setenv("MADEUP_MEMORY", "64Mi", 1);
    if (strcmp(word, "late") == 0) {
        setenv("MADEUP_LATE", "2000", 1);
        return cmocka_run_group_tests(late, NULL, NULL);
    }
    if (strcmp(word, "few") == 0) {
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
        return cmocka_run_group_tests(few, NULL, NULL);
    }
    if (strcmp(word, "capture") == 0)
        return cmocka_run_group_tests(capture, NULL, NULL);
    if (strcmp(word, "broken") == 0) {
        setenv("MADEUP_FAIL", "cudaStreamCreateWithFlags:2,cudaMalloc:1:999", 1);
        return cmocka_run_group_tests(broken, NULL, NULL);
    }
    return strcmp(word, "refused") == 0 ? cmocka_run_group_tests(refused, NULL, NULL)
                                        : cmocka_run_group_tests(plain, NULL, NULL);
}
