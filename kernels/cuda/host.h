/* What the host side of the backend shares: devices of the machine, memory, queues, graphs. The
 * slots among these are as in tessera/kernel.h. */
#ifndef KERNELS_CUDA_HOST_H
#define KERNELS_CUDA_HOST_H

#include "cuda/cuda.h"
#include "tessera/device.h"

/* ---- survey.c ----------------------------------------------------------------------------- */

/* The machine's devices that this build has code for, numbered from 0. */
struct cuda_survey {
    int32_t count;
    int32_t ordinal[TESS_DEVICE_MAX]; /* CUDA's own number */
    struct tess_device_info info[TESS_DEVICE_MAX];
    uint64_t reach[TESS_DEVICE_MAX]; /* bit p: this device may use p's memory in place */
    char why[512];                   /* count 0: the reason, one sentence */
};

/*
 * Queried once: by a child process, because a process that has started CUDA cannot fork ranks that
 * use it; with `own`, which means that this process will use a device, without a child. Any thread.
 */
const struct cuda_survey *tess__cuda_survey(bool own);

/* ---- select.c ----------------------------------------------------------------------------- */

/* The calling thread's device, as CUDA numbers them; -1 before tess_module.device_select. */
int tess__cuda_selected(void);
/* As tess_module.device_select, device_reaches. */
enum tess_status tess__cuda_select(int32_t device, bool waits);
bool tess__cuda_reaches(int32_t device, int32_t peer);
/* TESS_ERR_USAGE, or TESS_ERR_UNSUPPORTED where there is none, for a number that is no device's. */
enum tess_status tess__cuda_check_device(const struct cuda_survey *survey, int32_t device);

/* ---- usage.c ------------------------------------------------------------------------------ */

enum cuda_usage { CUDA_USAGE_CONTEXT, CUDA_USAGE_WORKSPACE, CUDA_USAGE_COMM, CUDA_USAGE_COUNT };

/* Free memory of the calling thread's device, as the driver reports it; 0 where it does not. */
uint64_t tess__cuda_free_bytes(void);
/* Count what `kind` has taken since the free memory was `free_before`: other processes on the
 * device blur it. Any thread. */
void tess__cuda_usage_took(int device, enum cuda_usage kind, uint64_t free_before);
void tess__cuda_usage_get(int device, struct tess_device_usage *usage_out);

enum cuda_launch { CUDA_LAUNCH_KERNEL, CUDA_LAUNCH_COPY, CUDA_LAUNCH_FILL, CUDA_LAUNCH_KINDS };

/* What a step on the device launches; `replace` what is known already, or keep it. Any
 * thread. */
void tess__cuda_usage_launches(int device, const uint32_t count[CUDA_LAUNCH_KINDS], bool replace);

/* Free memory of a device that this process has no context on yet, by NVML; 0: unknown. */
uint64_t tess__cuda_free_bytes_before(const char *bus);

/* ---- error.c --------------------------------------------------------------------------------- */

/* The same error; "not ready", which is none, does not remain for the next launch to report. */
cudaError_t tess__cuda_polled(cudaError_t error);
/* Wait until the event, of a queue of this kernel, is reached: poll for a short while, then sleep.
 * TESS_ERR_TIMEOUT after the kernel's limit_s, with a message that names `what` was done. */
enum tess_status tess__cuda_await(const struct cuda_state *state, cudaEvent_t event,
                                  const char *what);
/* The same for all of the kernels' own queue. */
enum tess_status tess__cuda_drain(const struct tess_kernel *kernel, const char *what);

/* ---- memory.c ----------------------------------------------------------------------------- */

enum tess_status tess__cuda_memory_open(struct tess_kernel *kernel);
void tess__cuda_memory_close(struct tess_kernel *kernel);
bool tess__cuda_owns(const struct tess_kernel *kernel, const void *memory);

enum tess_status tess__cuda_alloc(struct tess_kernel *kernel, size_t bytes, void **memory_out);
void tess__cuda_free(struct tess_kernel *kernel, void *memory);
enum tess_status tess__cuda_adopt(struct tess_kernel *kernel, void *memory, size_t bytes);
void tess__cuda_disown(struct tess_kernel *kernel, void *memory, size_t bytes);
enum tess_status tess__cuda_read(struct tess_kernel *kernel, size_t bytes, const void *device,
                                 void *host);
enum tess_status tess__cuda_write(struct tess_kernel *kernel, size_t bytes, const void *host,
                                  void *device);
enum tess_status tess__cuda_pin(struct tess_kernel *kernel, size_t bytes, void **memory_out);
void tess__cuda_unpin(struct tess_kernel *kernel, void *memory);

/* ---- queue.c ------------------------------------------------------------------------------ */

extern const struct tess_queue_ops tess__cuda_queue;

/* The stream of a queue: it sends to other ranks, or it is the kernels' own. Stopping waits for its
 * work; without a stream it does nothing. */
enum tess_status tess__cuda_queue_start(struct tess_queue *queue, bool sends);
void tess__cuda_queue_stop(struct tess_queue *queue);

/* ---- graph.c ------------------------------------------------------------------------------ */

enum tess_status tess__cuda_graph_begin(struct tess_kernel *kernel);
enum tess_status tess__cuda_graph_end(struct tess_kernel *kernel, int32_t slot);
enum tess_status tess__cuda_graph_play(struct tess_kernel *kernel, int32_t slot);
/* Frees all graphs, and ends a record that was begun. */
void tess__cuda_graph_close(struct tess_kernel *kernel);

/* ---- range_nvtx.c ------------------------------------------------------------------------- */

void tess__cuda_range_begin(const char *name);
void tess__cuda_range_end(void);

/* ---- backend.c ---------------------------------------------------------------------------- */

extern const struct tess_kernel_ops tess_kernel_cuda;

/* Open a kernel that only planned until this call: see start in struct cuda_state. */
static inline enum tess_status tess__cuda_need(struct tess_kernel *kernel, const char *what)
{
    const struct cuda_state *state = tess__cuda_state(kernel);
    return state->planned_only ? state->start(kernel, what) : TESS_OK;
}

#endif
