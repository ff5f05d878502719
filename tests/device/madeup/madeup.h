/*
 * A device made of host code: CUDA's runtime, cuBLASLt and NCCL, as far as this project calls them,
 * on the processor. The module libtessera_cuda.so is linked to it in place of the real libraries;
 * nothing of kernels/cuda and engine/comm/nccl is changed for it. It promises no more than the
 * libraries' documents do, and is as unkind as they allow: work is done late, memory of a device
 * cannot be touched by the host, calls that may wait for the device do wait. A call, type or
 * attribute that it does not model ends the program with a message (madeup_fail).
 *
 *   queue.c     hardware queues, which are threads; waiting
 *   stream.c    streams and events
 *   graph.c     recording and playing of streams
 *   memory.c    of devices and of the host, on pages with guards
 *   device.c    devices, errors, settings, injected failures
 *   kernel.cpp  launches of the project's own kernels, on the emulator (kernels/emulate)
 *   blas*.c     cuBLASLt: checks of types, layouts and alignment, then plain sums
 *   nccl*.c     NCCL: communicators between threads and processes, by shared memory
 *
 * This header is the seam between those files. Settings, from the environment:
 *
 *   MADEUP_DEVICES=2        devices (default 1, at most 64)
 *   MADEUP_PLACES=4         devices of each host, neighbours (default: all). Hosts have names of
 *                           their own, and do not reach each other's devices
 *   MADEUP_MEMORY=64Mi      bytes of each (default 1Gi)
 *   MADEUP_LATE=0.5         ms for which a queue leaves work undone that no call waits for
 *                           (default 0)
 *   MADEUP_FAIL=name:n[:e]  the n-th call (from 1) of this function in this process returns
 *                           error e (default: the function's usual one); several, joined by ','.
 *                           Launches are "cudaLaunchKernel"; "work" is the n-th piece of work
 *                           that is run
 *   MADEUP_SEAL=step        after the first range of this name (of those for profilers) what takes
 *                           memory, makes a stream, event or communicator, loads a kernel or
 *                           searches a plan ends the program
 *   MADEUP_STALL=name:n[:d] the n-th piece of work of this name never ends by itself; a kernel
 *                           has the name of its file ("update.cu"); ncclCommInitRankConfig: the
 *                           call does not return. d: on device d alone
 *   MADEUP_SLOW=name:d:ms   work of this name takes so much longer on device d, by the device's
 *                           clock alone; several, joined by ','
 *   MADEUP_MODELS           set: each device is a model of its own
 *   MADEUP_COUNT=name       how often work of this name has run in this process is printed whenever
 *                           a stream is destroyed
 *   MADEUP_BLAS_WITHOUT=4,6 epilogues of cuBLASLt for which there is no algorithm
 *   MADEUP_NCCL_REGISTERED  messages: those outside of groups, of memory of ncclMemAlloc that is
 *                           not registered, end the program; all: other calls, too
 *   MADEUP_NCCL_VERSION     the code of another version of NCCL, 22200 or more
 *
 * CUDA_DEVICE_MAX_CONNECTIONS and CUDA_MODULE_LOADING are as CUDA's programming guide has them.
 */
#ifndef TESTS_DEVICE_MADEUP_H
#define TESTS_DEVICE_MADEUP_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MADEUP_DEVICES_MAX 64

/* ---- device.c -------------------------------------------------------------------------------- */

/* Ends the program: a call that the device does not model, or that a real one forbids. */
void madeup_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Every function of a library begins with this: 0, or the error that MADEUP_FAIL wants of this
 * call; `usual` where it names none. Any thread. */
int madeup_injected(const char *function, int usual);

/* A call that MADEUP_STALL names: does not return before the program ends. */
void madeup_stall_call(const char *function);

/* A range begins that is named for profilers. */
void madeup_range(const char *name);

/* Work that is no function's, where calls have the names of functions. */
#define MADEUP_LOAD    "loading a kernel"
#define MADEUP_CONNECT "connecting ranks"

/* The calling thread's device, and the number of a device's host. */
int madeup_device(void);
int madeup_host(int device);

/* ---- stream.c -------------------------------------------------------------------------------- */

/*
 * A piece of work of a stream. The queue's thread calls `run` when all work before it in the
 * stream has ended; it may wait for a peer, and then asks `madeup_cancelled` at least every ms. A
 * recorded one is run at each play, so that run must not change `context`. `drop` is called once,
 * when it will not be run again; NULL: nothing to do. Returns CUDA's error, which the device keeps
 * (a sticky error).
 */
struct madeup_work {
    const char *name; /* a literal: the library's function or the kernel */
    cudaError_t (*run)(const void *context);
    void (*drop)(void *context);
    void *context;
};

/* Append to a stream, or to the graph that it is being recorded in; work is dropped in either case,
 * also after an error. Any thread. Stream NULL, the legacy default stream, is not modelled. */
cudaError_t madeup_submit(cudaStream_t stream, const struct madeup_work *work);

/* Is the stream being recorded? */
bool madeup_is_recorded(cudaStream_t stream);
int madeup_stream_device(cudaStream_t stream);

/* To be called by work that waits: must it end because MADEUP_STALL's work was given up, or the
 * program ends? */
bool madeup_cancelled(void);

/* Wait until all work of this device in this process has ended: what a call does that allocates
 * or frees, loads a module or sets up a communicator. Not from a queue's thread. */
void madeup_wait_idle(int device);

/* ---- memory.c -------------------------------------------------------------------------------- */

enum madeup_place { MADEUP_HOST, MADEUP_PINNED, MADEUP_DEVICE };

/* Where memory is, and whose. Any pointer; memory that no call here has given is MADEUP_HOST. */
enum madeup_place madeup_place_of(const void *memory, int *device_out);

/* Of work on a queue's thread, before it touches them: ends the program, naming `work`, where
 * [memory, memory + bytes) is not within one allocation of a device or pinned, or of a device that
 * this one does not reach. */
void madeup_check_range(const char *work, int device, const void *memory, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
