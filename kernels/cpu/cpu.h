/*
 * What the files of the cpu backend share: its state, one open operation, and the tables of own
 * loops, one per instruction set. oneDNN's types are in prim.h only.
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "tessera/kernel.h"

extern const struct tess_kernel_ops tess_kernel_cpu;

/* Arguments of the own loops that take some of an operation's rows. */
struct cpu_norm {
    const struct tess_op_desc *desc;
    const void *x, *add, *gamma, *beta; /* add, beta: or NULL */
    void *sum, *y;                      /* forward */
    const void *dy;                     /* backward */
    void *dx;
    float *mean, *rstd; /* mean NULL for desc.rms */
};
struct cpu_embedding {
    const struct tess_op_desc *desc;
    const int32_t *token;
    int64_t first;
    const void *table, *add;
    void *y;
};
struct cpu_rope {
    enum tess_dtype dtype;
    int64_t rows, length, first;
    int32_t heads;
    int64_t head_size, stride;
    float base;
    bool inverse;
    void *x;
};

/*
 * Own loops. The same sources are built for several instruction sets (CMakeLists.txt); open() takes
 * the best table that the processor runs.
 */
struct cpu_loops {
    const char *name;
    struct tess_kernel_ops ops; /* only the slots that need no oneDNN */
    /* sum[cols] = the sum over `rows` rows of x [rows, cols], in an order fixed by rows and cols.
     */
    void (*column_sum)(enum tess_dtype dtype, int64_t rows, int64_t cols, const void *x,
                       float *sum);
    /* Rows first .. first + rows - 1 of the operation. dgamma and dbeta [C] are the sums over these
     * rows, in order, overwritten; also for desc.rms, where dbeta means nothing. */
    void (*row_norm_forward)(const struct cpu_norm *norm, int64_t first, int64_t rows);
    void (*row_norm_backward)(const struct cpu_norm *norm, int64_t first, int64_t rows,
                              float *dgamma, float *dbeta);
    void (*embedding_rows)(const struct cpu_embedding *embedding, int64_t first, int64_t rows);
    /* Positions begin .. end - 1 of every sequence. */
    void (*rope_positions)(const struct cpu_rope *rope, int64_t begin, int64_t end);
    /* y += x: what the bench measures bandwidth with. */
    void (*plain_add)(int64_t count, const float *x, float *y);
    /* s [length, length] = the softmax of each row up to the diagonal, of scale s, 0 beyond; dp =
     * the gradient of s. What the bench compares attention with. */
    void (*square_softmax)(enum tess_dtype dtype, int64_t length, float scale, void *s);
    void (*square_softmax_grad)(enum tess_dtype dtype, int64_t length, float scale, const void *p,
                                void *dp);
    /* Linear layers too small for oneDNN, see linear.c; `wide` holds linear_small_scratch(). */
    void (*small_forward)(const struct tess_op_desc *desc, const void *x, const void *w,
                          const void *bias, void *y, float *wide);
    void (*small_backward_data)(const struct tess_op_desc *desc, const void *dy, const void *w,
                                void *dx, float *wide);
};
extern const struct cpu_loops tess__cpu_loops_base; /* any processor */
extern const struct cpu_loops tess__cpu_loops_v3;   /* x86-64-v3: AVX2 */
extern const struct cpu_loops tess__cpu_loops_v4;   /* x86-64-v4: AVX-512 */

/* The best table for this processor: own_x86.c or own_none.c. */
const struct cpu_loops *tess__cpu_loops_best(void);

/*
 * Run part 0 .. parts - 1 on the kernel's threads, each part once, in any order (share.c). The bits
 * do not depend on the number of threads, because no two parts may write to the same place. `work`
 * is memory for the calling thread's parts; the others have memory of their own of the greatest
 * size that was reserved. Reserve when an operation is opened. TESS_ERR_MEMORY.
 */
void tess__cpu_share(const struct tess_kernel *kernel, int64_t parts,
                     void (*run)(void *context, int64_t part, void *work), void *context,
                     void *work);
enum tess_status tess__cpu_share_reserve(const struct tess_kernel *kernel, size_t bytes);

/* Prepared operations other than products (sequence.c). */
enum tess_status tess__cpu_sequence_needs(const struct tess_op_desc *desc,
                                          struct tess_op_needs *needs_out);
enum tess_status tess__cpu_sequence_open(struct tess_op *op);

/*
 * Forward product of a linear layer, with bias (NULL: none) and ReLU, on weights where they lie
 * (forward.c). Only where tess__cpu_own_available() is true; rows do not depend on their number.
 */
size_t tess__cpu_forward_scratch(const struct tess_op_desc *desc);
void tess__cpu_forward(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                       const void *x, const void *w, const void *bias, void *y, void *scratch);

/* Data gradient of a linear layer (data.c); as above. */
size_t tess__cpu_data_scratch(const struct tess_op_desc *desc);
void tess__cpu_data(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                    const void *dy, const void *w, void *dx, void *scratch);

/*
 * Weight gradient of a linear layer with the tree over leaves kept in registers (grad.c). The bits
 * are those of one product per leaf, fused multiply-adds over rows in order (bf16: over pairs of
 * rows), then the tree; desc.add_grad adds the tree's value to dw. `available` is false where the
 * processor, or the build, lacks the instructions.
 */
bool tess__cpu_own_available(enum tess_dtype dtype);
/* Whether oneDNN computes in bf16 here. */
bool tess__cpu_bf16_available(void);

size_t tess__cpu_grad_scratch(const struct tess_op_desc *desc);
void tess__cpu_grad(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                    const void *x, const void *dy, float *dw, void *scratch);

/*
 * Weight gradient of a convolution over one leaf, into dw [out, window, window, in] (conv_grad.c):
 * sums over pixels in order (bf16: over pairs of neighbours in a row). `takes` depends on dtype,
 * geometry and processor only; the other two may be called where it is true.
 */
bool tess__cpu_conv_grad_takes(const struct tess_op_desc *desc);
size_t tess__cpu_conv_grad_scratch(const struct tess_op_desc *desc);
void tess__cpu_conv_grad(const struct tess_op_desc *desc, const void *x, const void *dy, float *dw,
                         void *scratch);

/*
 * Attention (flash.c, flash_grad.c). `takes` depends on dtype and processor only; the others may be
 * called where it is true. `scratch` is for one thread; reserve as much for each other one.
 */
struct cpu_flash_grad {
    const void *q, *k, *v, *y, *dy;
    const float *lse;
    void *dq, *dk, *dv;
};
bool tess__cpu_flash_takes(const struct tess_op_desc *desc);
size_t tess__cpu_flash_scratch(const struct tess_op_desc *desc);
void tess__cpu_flash(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                     const void *q, const void *k, const void *v, void *y, float *lse,
                     void *scratch);
void tess__cpu_flash_grad(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                          const struct cpu_flash_grad *arrays, void *scratch);

/* How the operations of one sort of product run: LINEAR (linear.c), CONV2D (conv.c), and either of
 * them in f32 on 16-bit storage (wide.c). All slots are filled. */
struct cpu_product {
    enum tess_status (*needs)(const struct tess_op_desc *desc, size_t *bytes_out);
    enum tess_status (*open)(struct tess_op *op); /* on failure the caller closes it */
    void (*close)(struct tess_op *op);
    __typeof__(tess_linear_forward) *forward;
    __typeof__(tess_linear_backward_data) *backward_data;
    __typeof__(tess_linear_backward_weight) *backward_weight;
};
extern const struct cpu_product tess__cpu_linear, tess__cpu_conv, tess__cpu_wide;

/* The operations of the backend, tess__cpu_<name>. Contracts: tessera/kernel.h. */
#define CPU_FUNCTION(name) __typeof__(tess_##name) tess__cpu_##name;
TESS_OPERATION_LIST(CPU_FUNCTION)
#undef CPU_FUNCTION

/* dbias by leaves, added to what is there with `add`; x is dy [leaves * rows_per_leaf, cols];
 * `scratch` as for tess__cpu_bias_scratch(). */
size_t tess__cpu_bias_scratch(int64_t cols, int64_t leaves);
void tess__cpu_bias_grad(const struct cpu_loops *loops, enum tess_dtype dtype, int64_t leaves,
                         int64_t rows_per_leaf, int64_t cols, bool add, const void *dy,
                         float *dbias, void *scratch);

static inline size_t tess__cpu_round_up(size_t bytes)
{
    return tess_round_up(bytes, 64);
}

static inline size_t tess__cpu_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

static inline int64_t tess__cpu_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
