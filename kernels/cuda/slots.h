/*
 * What the files of prepared and plain operations offer to the table of the backend, cuda.c. The
 * contract of tess__cuda_<name> is that of tess_<name>, tessera/kernel.h.
 */
#ifndef KERNELS_CUDA_SLOTS_H
#define KERNELS_CUDA_SLOTS_H

#include "tessera/kernel.h"

#define CUDA_FUNCTION(name) __typeof__(tess_##name) tess__cuda_##name;
TESS_OPERATION_LIST(CUDA_FUNCTION)
#undef CUDA_FUNCTION

/* op_needs by kind. Pure: no device is needed, and the result does not depend on one. */
typedef enum tess_status cuda_needs(const struct tess_op_desc *desc,
                                    struct tess_op_needs *needs_out);
cuda_needs tess__cuda_linear_needs, tess__cuda_conv_needs, tess__cuda_pool_needs,
    tess__cuda_batch_norm_needs, tess__cuda_norm_needs, tess__cuda_attention_needs,
    tess__cuda_embedding_needs;

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

/* Are there kernels on tensor cores for this attention? Arrays that are not 16-byte aligned make a
 * call take the plain ones. Pure. */
bool tess__cuda_attention_is_fast(const struct tess_op_desc *desc);

#endif
