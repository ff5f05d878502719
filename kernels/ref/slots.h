/* The operations of ref, tess__ref_<name>, for its table in ref.c. Contracts: tessera/kernel.h. */
#ifndef KERNELS_REF_SLOTS_H
#define KERNELS_REF_SLOTS_H

#include "tessera/kernel.h"

/* Scratch bytes of one operation, by kind. */
size_t tess__ref_linear_scratch(const struct tess_op_desc *desc);
size_t tess__ref_conv2d_scratch(const struct tess_op_desc *desc);
size_t tess__ref_pool_scratch(const struct tess_op_desc *desc);
size_t tess__ref_batch_norm_scratch(const struct tess_op_desc *desc);
size_t tess__ref_norm_scratch(const struct tess_op_desc *desc);
size_t tess__ref_attention_scratch(const struct tess_op_desc *desc);
size_t tess__ref_embedding_scratch(const struct tess_op_desc *desc);

#define REF_FUNCTION(name) __typeof__(tess_##name) tess__ref_##name;
TESS_OPERATION_LIST(REF_FUNCTION)
#undef REF_FUNCTION

#endif
