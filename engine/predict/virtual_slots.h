/* What the operations of the virtual kernel share; private to its files. */
#ifndef TESSERA_PREDICT_VIRTUAL_SLOTS_H
#define TESSERA_PREDICT_VIRTUAL_SLOTS_H

#include "predict/virtual.h"

/* ---- virtual_time.c: the rank's kernels work for so long as the profile says ----------------- */

void kernel_pass(struct tess_kernel *kernel, double bytes);
/* `arrays` of so many elements. */
void kernel_arrays(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, double arrays);
/* An operation that may have a time of its own for an element. `math`: of a function of each. */
void kernel_work(struct tess_kernel *kernel, enum tess_work work, enum tess_dtype dtype, bool math,
                 double elements, double bytes);
/* The same of `arrays` of `count` elements each; and with a function of each element. */
void kernel_plain(struct tess_kernel *kernel, enum tess_work work, enum tess_dtype dtype,
                  int64_t count, double arrays);
void kernel_math(struct tess_kernel *kernel, enum tess_work work, enum tess_dtype dtype,
                 int64_t count, double arrays);
/* Over parameters and what belongs to them, in `calls` loops; width: 16 bits where an update writes
 * a copy of that; far_bytes: each array once, also where it is read and written. */
void kernel_far(struct tess_kernel *kernel, enum tess_work work, int width, double calls,
                double elements, double bytes, double far_bytes);

/* What a byte costs more that the operation before has touched, where this one touches so many. */
double kernel_near_s(const struct virtual_rank *rank, double bytes);

static inline double kernel_bytes(enum tess_dtype dtype, int64_t count)
{
    return (double)count * (double)tess_dtype_bytes(dtype);
}

/* ---- virtual_op.c: prepared operations; virtual_kernel.c: the others ------------------------- */

/* What convolutions and linear layers have in common. */
#define virtual_conv2d_forward         virtual_linear_forward
#define virtual_conv2d_backward_data   virtual_linear_backward_data
#define virtual_conv2d_backward_weight virtual_linear_backward_weight

#define VIRTUAL_OP_LIST(X)                                                                         \
    X(linear_forward)                                                                              \
    X(linear_backward_data)                                                                        \
    X(linear_backward_weight)                                                                      \
    X(linear_forward_add)                                                                          \
    X(linear_backward)                                                                             \
    X(linear_forward_gelu)                                                                         \
    X(linear_backward_data_gelu)                                                                   \
    X(max_pool_forward)                                                                            \
    X(max_pool_backward)                                                                           \
    X(avg_pool_forward)                                                                            \
    X(avg_pool_backward)                                                                           \
    X(batch_norm_forward)                                                                          \
    X(batch_norm_infer)                                                                            \
    X(batch_norm_backward)                                                                         \
    X(norm_forward)                                                                                \
    X(norm_backward)                                                                               \
    X(attention_forward)                                                                           \
    X(attention_backward)                                                                          \
    X(attention_forward_documents)                                                                 \
    X(attention_backward_documents)                                                                \
    X(embedding_forward)                                                                           \
    X(embedding_backward)
#define VIRTUAL_OP(name) __typeof__(tess_##name) virtual_##name;
VIRTUAL_OP_LIST(VIRTUAL_OP)
#undef VIRTUAL_OP

#endif
