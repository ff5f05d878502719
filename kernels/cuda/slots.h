/*
 * The slots of the backend's table, backend.c, which the files of operations define, and how a slot
 * launches and reports: for C and CUDA files. The contract of tess__cuda_<name> is that of
 * tess_<name>, tessera/kernel.h and tessera/update.h.
 */
#ifndef KERNELS_CUDA_SLOTS_H
#define KERNELS_CUDA_SLOTS_H

#include "needs/needs.h"
#include "tessera/check.h"
#include "tessera/kernel.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_FUNCTION(name) __typeof__(tess_##name) tess__cuda_##name;
TESS_OPERATION_LIST(CUDA_FUNCTION)
#undef CUDA_FUNCTION

/* Closing takes a half-opened operation too. */
enum tess_status tess__cuda_linear_open(struct tess_op *op);
void tess__cuda_linear_close(struct tess_op *op);
enum tess_status tess__cuda_conv_open(struct tess_op *op);
void tess__cuda_conv_close(struct tess_op *op);

/* What computes convolutions that are opened from here on; TESS_ERR_UNSUPPORTED where it is not
 * there. describe: one line about the choice. */
enum tess_status tess__cuda_conv_choose(struct tess_kernel *kernel, enum tess_conv conv);
void tess__cuda_conv_describe(const struct tess_kernel *kernel,
                              void (*line)(void *context, const char *text), void *context);

/* The same of attention. `store`: choices->store; it must stay. open: measures, where the choice is
 * to be the faster one. settle: as the slot of that name. */
enum tess_status tess__cuda_attention_choose(struct tess_kernel *kernel,
                                             enum tess_attention attention, const char *store);
void tess__cuda_attention_describe(const struct tess_kernel *kernel,
                                   void (*line)(void *context, const char *text), void *context);
enum tess_status tess__cuda_attention_open(struct tess_op *op);
void tess__cuda_attention_close(struct tess_op *op);
uint8_t tess__cuda_settle(struct tess_kernel *kernel, uint8_t all);

/* Are there kernels on tensor cores for this attention? Arrays that are not 16-byte aligned make a
 * call take the plain ones. Pure. */
bool tess__cuda_attention_is_fast(const struct tess_op_desc *desc);

/* tess_queue_ops.reduce on a stream; the memory may be of other devices that this one reaches. Bits
 * as those of communicators on host memory, but for the payload of NaN sums. */
cudaError_t tess__cuda_reduce(cudaStream_t stream, enum tess_dtype dtype, enum tess_dtype to,
                              enum tess_reduce reduce, int32_t n, const void *const *source,
                              int32_t m, void *const *target, size_t count);

/* *differ |= 1 where a and b [bytes], 16-byte aligned, are not the same bits. */
cudaError_t tess__cuda_matmul_differ(cudaStream_t stream, size_t bytes, const void *a,
                                     const void *b, uint32_t *differ);

/* ---- launching and reporting ---------------------------------------------------------------- */

/* The kernels' own. */
static inline cudaStream_t tess__cuda_stream(const struct tess_kernel *kernel)
{
    return (cudaStream_t)kernel->queue->native;
}

/* 8 bytes of device memory for a call: free between calls on the kernels' queue. */
void *tess__cuda_scratch(const struct tess_kernel *kernel);

/* A wait for a device was given up, by tess__cuda_await or for NCCL: what frees or closes leaves
 * things as they are, because it would wait too. For the process's life. Any thread. */
bool tess__cuda_hangs(void);
void tess__cuda_give_up(void);

/* Keep the first error of a call that has no status to give; `where` is a literal. */
void tess__cuda_note(struct tess_kernel *kernel, cudaError_t error, const char *where);
/* TESS_ERR_MEMORY where device memory is exhausted, else TESS_ERR_DEVICE, with the device's number,
 * the failed call and CUDA's message. */
enum tess_status tess__cuda_fail(cudaError_t error, const char *where);

static inline enum tess_status tess__cuda_status(cudaError_t error, const char *where)
{
    return error == cudaSuccess ? TESS_OK : tess__cuda_fail(error, where);
}

/* The value of every call of CUDA's libraries is used: by this, by the functions above, or by the
 * caller; tests/kernels/cuda/checked.sh checks it. */
#define CUDA_TRY(call) TESS_TRY(tess__cuda_status((call), #call))

#ifdef __cplusplus
}
#endif

#endif
