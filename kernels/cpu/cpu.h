/*
 * What the files of the cpu backend share: its state, one open operation, and the tables of own
 * loops, one per instruction set. oneDNN's types are in prim.h only.
 */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "tessera/kernel.h"

extern const struct tess_kernel_ops tess_kernel_cpu;

/* An element-wise operation, or a piece of it. What an operation does not take is NULL or 0. */
struct cpu_plain {
    int64_t count;
    const void *in[3];
    void *out[2];
    enum tess_dtype from, to; /* of in, of out */
    float number;             /* rate, scale */
    const uint64_t *key;
    uint64_t first; /* element of the stream of random numbers */
};
typedef void cpu_plain_loop(const struct cpu_plain *p);

/* Arguments of the operations of which own loops take some rows (of rope: some positions of every
 * sequence; of batch normalisation: some chunks of the leaves' pixels). Arrays are those of the
 * whole operation. */
struct cpu_batch_norm {
    const struct tess_op_desc *desc;
    int64_t pixels; /* of a leaf */
    const void *x;
    void *y;        /* forward */
    const void *dy; /* backward */
    void *dx;
    const float *coef; /* [leaves, CPU_NORM_COEFS, C] */
    float *sums;       /* [chunks, 2, C]: what the loops that sum write */
};
#define CPU_NORM_CHUNK 256 /* pixels; the last one of a leaf may have fewer */
/* y = (x - mean) scale + shift; dx = scale ((g - middle) - (x - mean) slope). */
enum cpu_norm_coef {
    CPU_NORM_MEAN,
    CPU_NORM_SCALE,
    CPU_NORM_SHIFT,
    CPU_NORM_MIDDLE,
    CPU_NORM_SLOPE,
    CPU_NORM_COEFS
};
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
    struct tess_rotary rotary;
    bool inverse;
    void *x;
};
struct cpu_xent {
    enum tess_dtype dtype;
    int64_t classes, stride, first;
    struct tess_xent how;
    float scale;
    const void *logits;
    const int32_t *label;
    const float *max, *sum;
    float *max_out, *sum_out, *target, *best, *loss;
    int32_t *correct;
    void *dlogits; /* softmax_xent: or NULL */
};
struct cpu_dropout {
    enum tess_dtype dtype;
    int64_t width, stride;
    float rate;
    const uint64_t *key;
    uint64_t first;
    const void *x;
    void *y;
};
typedef void cpu_rows_loop(const void *arguments, int64_t first, int64_t rows);

/* The sums over these rows of a norm, in order, overwrite dgamma and dbeta [C]; also for desc.rms,
 * where dbeta means nothing. */
typedef void cpu_norm_loop(const struct cpu_norm *norm, int64_t first, int64_t rows, float *dgamma,
                           float *dbeta);
/* sum[width] = the sum over `rows` rows of columns first .. first + width - 1 of x [rows, cols];
 * the order of a column's sum is fixed by rows. */
typedef void cpu_columns_loop(enum tess_dtype dtype, int64_t rows, int64_t cols, int64_t first,
                              int64_t width, const void *x, float *sum);
/* y += x: what the bench measures bandwidth with. */
typedef void cpu_add_loop(int64_t count, const float *x, float *y);
/* s [length, length] = the softmax of each row up to the diagonal, of scale s, 0 beyond; dp = the
 * gradient of s. What the bench compares attention with. */
typedef void cpu_softmax_loop(enum tess_dtype dtype, int64_t length, float scale, void *s);
typedef void cpu_softmax_grad_loop(enum tess_dtype dtype, int64_t length, float scale,
                                   const void *p, void *dp);
/* Linear layers too small for oneDNN, see product.c. `wide` holds the
 * weights, one row in, one row out and a bias. */
typedef void cpu_small_forward_loop(const struct tess_op_desc *desc, const void *x, const void *w,
                                    const void *bias, void *y, float *wide);
typedef void cpu_small_data_loop(const struct tess_op_desc *desc, const void *dy, const void *w,
                                 void *dx, float *wide);
/* tess_normal, of a piece. */
typedef void cpu_normal_loop(const uint32_t key[2], uint64_t first, int64_t count, float mean,
                             float deviation, float *y);
typedef void cpu_update_loop(const struct tess_update *update);

/* Slots of the backend that are own loops as they are: X(name). */
#define CPU_SLOT_LIST(X) X(find_nonfinite)

/* The other own loops: X(type, name). */
#define CPU_LOOP_LIST(X)                                                                           \
    X(cpu_plain_loop, relu_forward)                                                                \
    X(cpu_plain_loop, relu_backward)                                                               \
    X(cpu_plain_loop, gelu_forward)                                                                \
    X(cpu_plain_loop, gelu_backward)                                                               \
    X(cpu_plain_loop, swiglu_forward)                                                              \
    X(cpu_plain_loop, swiglu_backward)                                                             \
    X(cpu_plain_loop, gelu_erf_forward)                                                            \
    X(cpu_plain_loop, gelu_erf_backward)                                                           \
    X(cpu_plain_loop, geglu_forward)                                                               \
    X(cpu_plain_loop, geglu_backward)                                                              \
    X(cpu_plain_loop, geglu_erf_forward)                                                           \
    X(cpu_plain_loop, geglu_erf_backward)                                                          \
    X(cpu_plain_loop, add)                                                                         \
    X(cpu_plain_loop, dropout)                                                                     \
    X(cpu_plain_loop, cast)                                                                        \
    X(cpu_plain_loop, cast_stochastic)                                                             \
    X(cpu_plain_loop, accumulate)                                                                  \
    X(__typeof__(tess_max_pool_forward), max_pool_forward)                                         \
    X(__typeof__(tess_max_pool_backward), max_pool_backward)                                       \
    X(__typeof__(tess_avg_pool_forward), avg_pool_forward)   /* of whole images */                 \
    X(__typeof__(tess_avg_pool_backward), avg_pool_backward) /* of whole images */                 \
    X(cpu_rows_loop, batch_norm_moments)                                                           \
    X(cpu_rows_loop, batch_norm_apply)                                                             \
    X(cpu_rows_loop, batch_norm_grad_sums)                                                         \
    X(cpu_rows_loop, batch_norm_grad_apply)                                                        \
    X(__typeof__(tess_count_zeros), count_zeros)                                                   \
    X(cpu_normal_loop, normal)                                                                     \
    X(cpu_rows_loop, norm_forward)                                                                 \
    X(cpu_rows_loop, embedding_forward)                                                            \
    X(cpu_rows_loop, rope)                                                                         \
    X(cpu_rows_loop, dropout_rows)                                                                 \
    X(cpu_rows_loop, xent_max)                                                                     \
    X(cpu_rows_loop, xent_sum)                                                                     \
    X(cpu_rows_loop, xent_grad)                                                                    \
    X(cpu_rows_loop, softmax_xent)                                                                 \
    X(cpu_norm_loop, norm_backward)                                                                \
    X(cpu_columns_loop, column_sum)                                                                \
    X(cpu_add_loop, plain_add)                                                                     \
    X(cpu_softmax_loop, square_softmax)                                                            \
    X(cpu_softmax_grad_loop, square_softmax_grad)                                                  \
    X(cpu_small_forward_loop, small_forward)                                                       \
    X(cpu_small_data_loop, small_backward_data)                                                    \
    X(__typeof__(tess_square_sum), square_sum)                                                     \
    X(cpu_update_loop, update)                                                                     \
    X(cpu_update_loop, lamb_direction)

/*
 * Own loops. The same sources are built for several instruction sets (CMakeLists.txt); open() takes
 * the best table that the processor runs.
 */
struct cpu_loops {
#define CPU_SLOT(name)        __typeof__(tess_##name) *name;
#define CPU_LOOP_(type, name) type *name;
    CPU_SLOT_LIST(CPU_SLOT)
    CPU_LOOP_LIST(CPU_LOOP_)
#undef CPU_SLOT
#undef CPU_LOOP_
};
extern const struct cpu_loops tess__cpu_loops_base; /* any processor */
extern const struct cpu_loops tess__cpu_loops_v3;   /* x86-64-v3: AVX2 */
extern const struct cpu_loops tess__cpu_loops_v4;   /* x86-64-v4: AVX-512 */

/* The best table for this processor: own_x86.c or own_none.c. With ONEDNN_MAX_CPU_ISA=AVX2 in the
 * environment neither loops nor kernels use AVX-512, so that a processor that has it can test what
 * others compute. */
const struct cpu_loops *tess__cpu_loops_best(void);

/*
 * Run part 0 .. parts - 1 on the kernel's threads, each part once, in any order (share.c). The bits
 * do not depend on the number of threads, because no two parts may write to the same place. `work`
 * is memory for the calling thread's parts, NULL where they need none; the others have that of the
 * operation that tess__cpu_share_use() named last, without which the calling thread runs all.
 */
void tess__cpu_share(const struct tess_kernel *kernel, int64_t parts,
                     void (*run)(void *context, int64_t part, void *work), void *context,
                     void *work);
void tess__cpu_share_use(const struct tess_op *op);
/* Whether more than one thread would run parts that need memory. */
bool tess__cpu_share_helps(const struct tess_kernel *kernel);

/* Prepared operations other than products (sequence.c). */
enum tess_status tess__cpu_sequence_needs(const struct tess_op_desc *desc,
                                          struct tess_op_needs *needs_out);

/* Scratch of batch normalisation (batch_norm.c). */
size_t tess__cpu_batch_norm_scratch(const struct tess_op_desc *desc);

/* Scratch bytes of an own kernel, for one thread. */
typedef size_t cpu_own_scratch(const struct tess_op_desc *desc);
/*
 * Forward product of a linear layer, with bias (NULL: none) and ReLU, on weights where they lie
 * (forward.c), and its data gradient (data.c). Rows do not depend on their number.
 */
typedef void cpu_own_forward(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                             const void *x, const void *w, const void *bias, void *y,
                             void *scratch);
typedef void cpu_own_data(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                          const void *dy, const void *w, void *dx, void *scratch);
/* An update without its factor, applied to a parameter in parts by an own loop. */
struct cpu_update {
    cpu_update_loop *run;
    struct tess_update update;
};
/*
 * Weight gradient of a linear layer with the tree over leaves kept in registers (grad.c). The bits
 * are those of one product per leaf, fused multiply-adds over rows in order (bf16: over pairs of
 * rows), then the tree; desc.add_grad adds the tree's value to dw. With `update`, where `updates`
 * is true, dw is not written: the parameter is updated by rows of it. Its scratch is `shared` bytes
 * for all threads, then that of the first.
 */
typedef void cpu_own_grad(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                          const void *x, const void *dy, float *dw, const struct cpu_update *update,
                          void *scratch);
/*
 * Weight gradient of a convolution over one leaf for `count` output channels from `first` on, into
 * dw [count, window, window, in] (conv_grad.c): sums over pixels in order (bf16: over pairs of
 * neighbours in a row), or on tiles (amx_conv_grad.c). first and count are multiples of
 * CPU_CONV_CHANNELS, on tiles of CPU_CONV_TILE. Only where `takes` is true, which depends on dtype
 * and geometry.
 */
#define CPU_CONV_CHANNELS 8
#define CPU_CONV_TILE     16
typedef bool cpu_own_takes(const struct tess_op_desc *desc);
typedef void cpu_own_conv_grad(const struct tess_op_desc *desc, const void *x, const void *dy,
                               int64_t first, int64_t count, float *dw, void *scratch);
/*
 * 3 x 3 convolutions of stride 1 in f32, and with AVX2 in bf16 that is widened, by Winograd's
 * F(4x4, 3x3), which has a quarter of the products (wino.c): forward, or `back` the data gradient,
 * dx from dy; and the weight gradient with the arguments of conv_grad (wino_grad.c). Images do not
 * depend on their number. `takes` looks at desc.conv and the geometry. wino_scratch is each
 * thread's; op->scratch has the weights behind it.
 *
 * The error is at most n u GROWTH times the sum of the magnitudes of direct sums where those are
 * alike, with n = summands + ROUNDINGS and u = UNIT: wino.h derives it. TESS_CONV_F32_AUTO takes
 * layers of which that is at most BOUND: rounding to TF32, as GPUs do, costs as much.
 */
#define CPU_WINO_ROUNDINGS 19
#define CPU_WINO_GROWTH    63.0
#define CPU_WINO_UNIT      0x1p-24
#define CPU_WINO_BOUND     0x1p-10
typedef void cpu_own_wino(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                          bool back, const void *x, const void *w, const void *bias, void *y,
                          void *scratch);
/* Forward of a convolution, or `back` its data gradient (conv.c), on tiles in bf16 (amx_conv.c).
 * The arguments and the memory are those of wino. */
typedef bool cpu_own_conv_takes(const struct tess_op_desc *desc, bool back);
typedef void cpu_own_conv(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                          bool back, const void *x, const void *w, const void *bias, void *y,
                          void *scratch);
/* Attention (flash.c, flash_grad.c); on tiles (amx_flash.c, amx_flash_grad.c). */
struct cpu_flash_grad {
    const void *q, *k, *v, *y, *dy;
    const float *lse;
    void *dq, *dk, *dv;
};
typedef void cpu_own_flash(const struct tess_op *op, const void *q, const void *k, const void *v,
                           void *y, float *lse);
/* tess_attention_decode. */
typedef void cpu_own_flash_decode(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                                  int64_t first, int64_t count, const void *q, const void *k,
                                  const void *v, void *y, void *scratch);
typedef void cpu_own_flash_grad(const struct tess_op *op, const struct cpu_flash_grad *arrays);

/* Own kernels: X(type, name). Those that AMX tiles do as well, in bf16, tess__amx_<name>
 * (own/amx_*.c): */
#define CPU_AMX_LIST(X)                                                                            \
    X(cpu_own_scratch, forward_scratch)                                                            \
    X(cpu_own_forward, forward)                                                                    \
    X(cpu_own_scratch, data_scratch)                                                               \
    X(cpu_own_data, data)                                                                          \
    X(cpu_own_scratch, grad_scratch)                                                               \
    X(cpu_own_scratch, grad_shared)                                                                \
    X(cpu_own_takes, grad_updates)                                                                 \
    X(cpu_own_grad, grad)                                                                          \
    X(cpu_own_takes, conv_grad_takes)                                                              \
    X(cpu_own_scratch, conv_grad_scratch)                                                          \
    X(cpu_own_conv_grad, conv_grad)                                                                \
    X(cpu_own_conv_takes, conv_takes)                                                              \
    X(cpu_own_scratch, conv_scratch)                                                               \
    X(cpu_own_scratch, conv_weights)                                                               \
    X(cpu_own_conv, conv)                                                                          \
    X(cpu_own_scratch, flash_scratch)                                                              \
    X(cpu_own_flash, flash)                                                                        \
    X(cpu_own_flash_decode, flash_decode)                                                          \
    X(cpu_own_flash_grad, flash_grad)
/* All, by vectors, tess__cpu_<level>_<name>: */
#define CPU_OWN_LIST(X)                                                                            \
    CPU_AMX_LIST(X)                                                                                \
    X(cpu_own_takes, wino_takes)                                                                   \
    X(cpu_own_scratch, wino_scratch)                                                               \
    X(cpu_own_scratch, wino_weights)                                                               \
    X(cpu_own_wino, wino)                                                                          \
    X(cpu_own_scratch, wino_grad_scratch)                                                          \
    X(cpu_own_conv_grad, wino_grad)

struct cpu_own {
#define CPU_OWN_SLOT(type, name) type *name;
    CPU_OWN_LIST(CPU_OWN_SLOT)
#undef CPU_OWN_SLOT
};
extern const struct cpu_own tess__cpu_v3_own; /* AVX2 */
extern const struct cpu_own tess__cpu_v4_own; /* AVX-512 with bf16 dot products */
#define CPU_AMX_FUNCTION(type, name) type tess__amx_##name;
CPU_AMX_LIST(CPU_AMX_FUNCTION)
#undef CPU_AMX_FUNCTION

/* The own kernels for f32 or bf16; NULL where the processor, or the build, lacks the instructions:
 * own_x86.c or own_none.c. */
const struct cpu_own *tess__cpu_own(enum tess_dtype dtype);
/*
 * May bf16 be multiplied by AMX tiles (own/amx.h)? Not where the processor lacks them, the system
 * refuses them, or ONEDNN_MAX_CPU_ISA keeps oneDNN from them: with AVX512_CORE_BF16 all products
 * are those of a processor without AMX, on which tests check those.
 */
bool tess__cpu_tiles(void);
/* Whether oneDNN may use tiles, and AVX-512, by the processor and by its variable. */
bool tess__cpu_library_tiles(void);
bool tess__cpu_library_avx512(void);
/* Whether oneDNN computes in bf16 here. */
bool tess__cpu_bf16_available(void);

/* Elements of one row of the input and of the output of a product, and of its weights. */
struct cpu_sizes {
    int64_t x, y, w;
};
static inline struct cpu_sizes tess__cpu_sizes(const struct tess_op_desc *d)
{
    struct cpu_sizes n = {.x = d->in, .y = d->out, .w = d->in * d->out};
    if (d->kind == TESS_OP_CONV2D) {
        n.x *= d->height * d->width;
        n.y *= tess_op_output_size(d->height, d->window, d->stride, d->padding) *
               tess_op_output_size(d->width, d->window, d->stride, d->padding);
        n.w *= (int64_t)d->window * d->window;
    }
    return n;
}

/* How LINEAR and CONV2D run (product.c), and either of them in f32 on 16-bit storage (wide.c). All
 * slots are filled. */
struct cpu_product {
    enum tess_status (*needs)(const struct tess_op_desc *desc, struct tess_op_needs *needs_out);
    enum tess_status (*open)(struct tess_op *op); /* on failure the caller closes it */
    void (*close)(struct tess_op *op);
    __typeof__(tess_linear_forward) *forward;
    __typeof__(tess_linear_backward_data) *backward_data;
    __typeof__(tess_linear_backward_weight) *backward_weight;
};
extern const struct cpu_product tess__cpu_product, tess__cpu_wide;
/* Whether own kernels alone run it, which need not have oneDNN's bf16. */
bool tess__cpu_product_own(const struct tess_op_desc *desc);

/* The operations of the backend, tess__cpu_<name>. Contracts: tessera/kernel.h. */
#define CPU_FUNCTION(name) __typeof__(tess_##name) tess__cpu_##name;
TESS_OPERATION_LIST(CPU_FUNCTION)
#undef CPU_FUNCTION

/* Elements first .. first + count - 1. */
static inline struct cpu_plain cpu_plain_piece(const struct cpu_plain *p, int64_t first,
                                               int64_t count)
{
    struct cpu_plain piece = *p;
    piece.count = count;
    piece.first += (uint64_t)first;
    for (int i = 0; i < 3; i++)
        if (p->in[i] != NULL)
            piece.in[i] = (const char *)p->in[i] + (size_t)first * tess_dtype_bytes(p->from);
    for (int i = 0; i < 2; i++)
        if (p->out[i] != NULL)
            piece.out[i] = (char *)p->out[i] + (size_t)first * tess_dtype_bytes(p->to);
    return piece;
}

/* Elements first .. first + count - 1 of an update, by the gradient g [count]. */
static inline void tess__cpu_update_piece(const struct cpu_update *all, int64_t first,
                                          int64_t count, const float *g)
{
    struct tess_update u = all->update;
    u.count = count;
    u.w = u.w != NULL ? u.w + first : NULL;
    u.g = g;
    u.m = u.m != NULL ? u.m + first : NULL;
    u.v = u.v != NULL ? u.v + first : NULL;
    u.direction = u.direction != NULL ? u.direction + first : NULL;
    if (u.param_low != NULL)
        u.param_low = (char *)u.param_low + (size_t)first * tess_dtype_bytes(u.low);
    all->run(&u);
}

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
