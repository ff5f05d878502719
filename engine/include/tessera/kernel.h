/*
 * Kernels: operations on one rank's device memory, by backend (ref, cpu, guard, cuda).
 *
 * Two sorts. *Prepared* operations (linear, conv2d, pooling, batch norm) are described once, opened
 * before step 0 (where a backend builds its primitives and is given its workspace) and then run
 * without allocation. *Plain* operations (casts, sums, updates) take only their arguments.
 *
 * Rows and leaves. The rows of a batch are `leaf_rows`-sized leaves, the canonical micro-batches.
 * Running a prepared operation over many leaves at once gives the same bits as running it leaf by
 * leaf; the backend ensures it (it tests its primitives per shape when the operation is opened and
 * loops over the leaves where they differ). Sums over rows (weight and bias gradients, statistics)
 * are taken inside each leaf, then over the leaves as one binary tree split at the largest power of
 * two below their number, in f32: the tree of tessera/comm.h.
 *
 * Shapes: B rows, H W height and width, C channels. Images are [B, H, W, C]. Rows of a sequence are
 * its positions, [B, T, C]; an operation on positions has B T rows and leaf_rows T in a leaf.
 * H heads, KV key and value heads, D head size. `dtype` is that of activations, parameters and
 * activation gradients: f32, bf16 or f16; bf16 and f16 accumulate in f32 and round once. Parameter
 * gradients are f32 always.
 *
 * Memory and time. Arrays are device memory unless a comment says host. A backend with a queue
 * (tessera/queue.h) computes later than the call, in the order of the calls; only what returns a
 * value to the host (find_nonfinite, tess_read) waits for it. Others are done on return.
 */
#ifndef TESSERA_KERNEL_H
#define TESSERA_KERNEL_H

#include "tessera/memory.h"
#include "tessera/queue.h"
#include "tessera/rotary.h"
#include "tessera/status.h"
#include "tessera/tensor.h"
#include "tessera/update.h"

#include <stdbool.h>
#include <stdint.h>

TESS_BEGIN_DECLS

struct tess_kernel; /* an open backend */

enum tess_op_kind {
    TESS_OP_LINEAR,
    TESS_OP_CONV2D,
    TESS_OP_MAX_POOL,
    TESS_OP_AVG_POOL,
    TESS_OP_BATCH_NORM,
    TESS_OP_NORM,      /* layer norm, RMS norm */
    TESS_OP_ATTENTION, /* causal */
    TESS_OP_EMBEDDING,
    TESS_OP_KIND_COUNT
};

/*
 * How the operands of linear products are narrowed to 8 bits (Micikevicius et al. 2022): x and w
 * to e4m3, gradients to e5m2, to nearest even, each times a scale of its own, a power of two: the
 * greatest under which its greatest element fits. What is finite saturates, what is not becomes
 * NaN. Products are f32, results as without. Biases and their gradients stay in dtype.
 *
 * w's scale is always its own. HISTORY: every slot keeps a history of x and dy apart; the first
 * call, which has none, is as NOW but for the whole batch. What a history holds depends on the rows
 * that a rank has met, so bits do not stay the same from layout to layout.
 */
enum tess_fp8 {
    TESS_FP8_OFF,
    TESS_FP8_NOW,     /* by the greatest element of the leaf itself: one more pass over it */
    TESS_FP8_HISTORY, /* by the greatest of the latest 16 calls before this one */
};

/* What an operation is. Fields that a kind does not name stay 0. */
struct tess_op_desc {
    enum tess_op_kind kind;
    enum tess_dtype dtype;
    int64_t rows;            /* B; a multiple of leaf_rows */
    int64_t leaf_rows;       /* >= 1 */
    int64_t in;              /* LINEAR: input features; ATTENTION: D; EMBEDDING: rows of the table;
                                others: input channels */
    int64_t out;             /* LINEAR, CONV2D: output features or channels; EMBEDDING: width of
                                the table; others: = in */
    int64_t height, width;   /* of the input image; BATCH_NORM of a vector: 1, 1 */
    int32_t window;          /* CONV2D, pools: height and width of the window; ATTENTION: a position
                                sees so many at most, itself and those before; 0: all */
    int32_t stride, padding; /* CONV2D, pools; zero padding (max: minus infinity) */
    bool relu; /* LINEAR, CONV2D: y = max(0, .); BATCH_NORM too. MAX_POOL: its input is the output
                  of a ReLU, whose backward is folded in: dx is 0 where x is 0 */
    bool input_grad;   /* LINEAR, CONV2D: backward_data will be called */
    bool f32_math;     /* dtype bf16, f16: multiply in f32, storage stays in dtype. A backend
                          without products of the dtype always does so */
    bool add_grad;     /* LINEAR: backward_weight adds to dw and dbias; for sums over chunks */
    enum tess_fp8 fp8; /* LINEAR, dtype bf16 or f16; see supports */
    enum tess_conv_f32 conv; /* CONV2D in f32 */
    bool frozen;             /* LINEAR: the gradient of the weight is never computed */
    bool gelu;               /* LINEAR: forward_gelu and backward_data_gelu will be called */
    bool rms;                /* NORM: no mean is taken out, and there is no beta */
    float epsilon;           /* BATCH_NORM, NORM */
    int32_t calls;           /* how often a pass runs it, for estimates of work; 0: once */
    /* ATTENTION: B sequences of `length` positions; q has `heads` heads of D, k and v `kv_heads`,
     * a divisor of it. Elements from one position to the next: q_stride in q, kv_stride in k and v,
     * the same in their gradients; so all three may lie in one array. */
    int64_t length;
    int32_t heads, kv_heads;
    int64_t q_stride, kv_stride;
    float dropout; /* ATTENTION: share of its probabilities dropped, where tess_op.drop is on */
    /* ATTENTION: attention_decode will be called and nothing else, with up to `rows` positions at
     * once of a sequence of up to `length`. */
    bool decode;
};

/* Height or width of the output: floor((size + 2 padding - window)/stride) + 1. */
int64_t tess_op_output_size(int64_t size, int32_t window, int32_t stride, int32_t padding);

/* ATTENTION: T^2 less the square before the window: twice the pairs of positions that it computes.
 */
double tess_op_square(const struct tess_op_desc *desc);

/* Memory that an operation needs from its owner; queried at plan time. */
struct tess_op_needs {
    size_t scratch_bytes; /* used only during a call; may be shared by all operations of a rank */
    size_t packed_bytes;  /* weights in the backend's layout, kept between calls */
    size_t thread_bytes;  /* as scratch, for each thread of the kernel but the first */
};

/*
 * Dropout in attention: p[i, j] becomes 0, or is divided by 1 - desc.dropout, by a Philox number of
 * `key` (kernels/ref/mask.h) that depends on j and on the numbers of the query's position and head
 * in the global batch and the whole model: one mask on every layout, made again in backward.
 */
struct tess_attention_drop {
    bool on;             /* false: nothing is dropped */
    uint64_t key[2];     /* as for tess_dropout */
    uint64_t position;   /* of the call's first position */
    int32_t head, heads; /* of the call's first head; how many there are */
};

/* An open operation. The owner allocates the struct, the backend fills it. */
struct tess_op {
    struct tess_op_desc desc;
    struct tess_kernel *kernel;
    void *scratch, *packed; /* of the sizes in needs; 64-byte aligned */
    void *thread_scratch;   /* [threads - 1, thread_bytes], as aligned; NULL: one thread runs it */
    size_t thread_bytes;    /* at least those in needs, a multiple of 64 */
    uint64_t weight_token;  /* set by the owner before a call: changes when the weights changed */
    uint64_t packed_token;  /* backend: the token that `packed` was made from; 0 = none */
    struct tess_attention_drop drop;  /* ATTENTION: set by the owner before a call */
    const struct tess_update *update; /* LINEAR: see tess_update; NULL: none */
    void *data;                       /* backend's own */
};

/* What computes convolutions, where there is a choice. Each has its own bits, always the same. */
enum tess_conv {
    TESS_CONV_AUTO,
    TESS_CONV_IM2COL, /* windows laid out as matrices, and the library of products */
    TESS_CONV_CUDNN,
};

/* What computes attention, where there is a choice. Each has its own bits, always the same. */
enum tess_attention {
    TESS_ATTENTION_OWN,
    TESS_ATTENTION_CUDNN,
    TESS_ATTENTION_AUTO, /* the faster, measured when an operation is opened; OWN where what was
                            measured cannot be kept for the next run */
};

/* What a run may choose about products and attention. */
struct tess_kernel_choices {
    bool tf32;           /* f32 operands are cut to the 10 bits of TF32 */
    bool autotune;       /* measure the ways to compute each shape when it is opened */
    bool fp8_fast;       /* sums of 8-bit products keep what the units keep: 14 bits on Hopper */
    bool same_rows;      /* linear layers give a row the same bits, however many there are */
    int32_t sm_target;   /* of the device's multiprocessors those that products are chosen for, as
                            others communicate beside; another number, other bits; 0: all */
    const char *store;   /* file that keeps what was measured, stays; NULL: nowhere */
    enum tess_conv conv; /* the last choice made is that of operations opened from then on */
    enum tess_attention attention; /* the same; once for a kernel */
    double timeout_s; /* after TESS_KERNEL_TIMEOUTS of these the host no longer waits for what was
                         queued, with TESS_ERR_TIMEOUT: many a call; 0: it waits for ever */
};

#define TESS_KERNEL_TIMEOUTS 10

/* ---- host and device ------------------------------------------------------------------------ */

/* Copy between host and device memory, after all that was queued; done on return. */
enum tess_status tess_read(struct tess_kernel *kernel, size_t bytes, const void *device,
                           void *host);
enum tess_status tess_write(struct tess_kernel *kernel, size_t bytes, const void *host,
                            void *device);
/* Without waiting: `pinned` (tess_kernel_ops.pin) must stay until the queue has come so far. */
enum tess_status tess_upload(struct tess_kernel *kernel, size_t bytes, const void *pinned,
                             void *device);

/* ---- prepared operations -------------------------------------------------------------------- */

/* y[B, out] = x[B, in] w[out, in]^T + bias[out], then max(0, .) when desc.relu. bias may be NULL.
 * No argument may alias another. */
enum tess_status tess_linear_forward(struct tess_op *op, const void *x, const void *w,
                                     const void *bias, void *y);
/* dx[B, in] = dy[B, out] w. dy has the ReLU's backward applied already (tess_relu_backward). */
enum tess_status tess_linear_backward_data(struct tess_op *op, const void *dy, const void *w,
                                           void *dx);
/* Forward plus add[B, out], which is not y. A backend that fuses the two rounds their sum once,
 * others each. */
enum tess_status tess_linear_forward_add(struct tess_op *op, const void *x, const void *w,
                                         const void *bias, const void *add, void *y);
/*
 * before[B, out] = x w^T + bias, y = gelu(before), the GELU of tess_gelu_forward; and
 * dx[B, in] = (dy w) times the derivative of gelu at before[B, in], which is what the linear layer
 * below kept. desc.gelu. A backend that fuses them may compute both results from the unrounded
 * sum.
 */
enum tess_status tess_linear_forward_gelu(struct tess_op *op, const void *x, const void *w,
                                          const void *bias, void *before, void *y);
enum tess_status tess_linear_backward_data_gelu(struct tess_op *op, const void *dy, const void *w,
                                                const void *before, void *dx);
/* dw[out, in] = dy^T x and dbias[out] = sum of dy's rows, by leaves; overwritten, or with
 * desc.add_grad added to what is there, in f32, the whole sum over the leaves at once. dbias may be
 * NULL. */
enum tess_status tess_linear_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                             float *dw, float *dbias);
/* backward_weight and backward_data in one, which narrows dy to 8 bits once; dx may be x. term [B,
 * in] not NULL: dx += what backward_data gives, rounded as in forward_add; a backend may use term
 * for that. dw NULL: only dx. */
enum tess_status tess_linear_backward(struct tess_op *op, const void *x, const void *dy,
                                      const void *w, float *dw, float *dbias, void *term, void *dx);

/* y[B, OH, OW, out] = x[B, H, W, in] * w[out, window, window, in] + bias, cross-correlated, then
 * max(0, .) when desc.relu. */
enum tess_status tess_conv2d_forward(struct tess_op *op, const void *x, const void *w,
                                     const void *bias, void *y);
enum tess_status tess_conv2d_backward_data(struct tess_op *op, const void *dy, const void *w,
                                           void *dx);
enum tess_status tess_conv2d_backward_weight(struct tess_op *op, const void *x, const void *dy,
                                             float *dw, float *dbias);

/*
 * which[B, OH, OW, C] is the index in the window (row-major) of the first greatest element; when
 * desc.relu, TESS_POOL_NONE where that element is not > 0, and backward sends no gradient there.
 * backward overwrites dx[B, H, W, C] and may write it where x was: it does not read x.
 */
#define TESS_POOL_NONE       255
#define TESS_POOL_WINDOW_MAX 15 /* its 225 positions and TESS_POOL_NONE fit a byte */
enum tess_status tess_max_pool_forward(struct tess_op *op, const void *x, void *y, uint8_t *which);
enum tess_status tess_max_pool_backward(struct tess_op *op, const void *dy, const uint8_t *which,
                                        void *dx);
/* Mean over the window, padding counted in. window = height = width: global. */
enum tess_status tess_avg_pool_forward(struct tess_op *op, const void *x, void *y);
enum tess_status tess_avg_pool_backward(struct tess_op *op, const void *dy, void *dx);

/*
 * Batch normalisation (Ioffe and Szegedy 2015) with the statistics of each leaf, L = B / leaf_rows:
 *   y = gamma (x - mean_leaf) rstd_leaf + beta, then max(0, .) when desc.relu
 *   save_mean, save_rstd [L, C]; mean_sum, var_sum [C]: overwritten by sums over the leaves (tree)
 * of mean and unbiased variance. gamma, beta, mean, var have desc.dtype; statistics are f32.
 */
enum tess_status tess_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                         const void *beta, void *y, float *save_mean,
                                         float *save_rstd, float *mean_sum, float *var_sum);
/* y = gamma (x - mean) / sqrt(var + epsilon) + beta, then max(0, .) when desc.relu. */
enum tess_status tess_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                       const void *beta, const void *mean, const void *var,
                                       void *y);
/* desc.relu: dy counts where y > 0, which is read or computed anew; where dy is 0, y may be 0, too
 * (dropout). dgamma, dbeta [C] by leaves, overwritten. dx may be dy. */
enum tess_status tess_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                          const void *dy, const void *gamma, const void *beta,
                                          const float *save_mean, const float *save_rstd, void *dx,
                                          float *dgamma, float *dbeta);

/*
 * Layer norm (Ba, Kiros and Hinton 2016) over the C = desc.in channels of each row:
 *   sum = x + add, rounded to dtype; only where add is not NULL
 *   y = gamma (s - mean) rstd + beta, where s is sum, or x where add is NULL
 * mean and rstd = 1/sqrt(var + epsilon) are those of s, var the biased variance. desc.rms (Zhang
 * and Sennrich 2019): y = gamma s rstd, rstd = 1/sqrt(mean of s^2 + epsilon); beta and mean are
 * NULL. gamma, beta [C] in desc.dtype; mean, rstd [B] in f32. sum may be x or add; y is distinct.
 */
enum tess_status tess_norm_forward(struct tess_op *op, const void *x, const void *add, void *sum,
                                   const void *gamma, const void *beta, void *y, float *mean,
                                   float *rstd);
/*
 * Backward of forward above; x is what was normalised (sum, where there was one).
 *   dx = gradient of the norm + add         added in f32, rounded once; add NULL: 0
 * dgamma, dbeta [C] by leaves, overwritten; dbeta is NULL for desc.rms. dx may be dy or add.
 */
enum tess_status tess_norm_backward(struct tess_op *op, const void *x, const void *dy,
                                    const void *gamma, const float *mean, const float *rstd,
                                    const void *add, void *dx, float *dgamma, float *dbeta);

/*
 * Causal attention of B sequences: for head h, with kv = h / (heads / kv_heads),
 *   s[i, j] = q[i, h] . k[j, kv] / sqrt(D)   for i - window < j <= i,   p = softmax over j,
 *   y[i, h] = sum over j of p[i, j] v[j, kv]
 * q, k, v as the strides of the description say; y [B, T, heads, D] without gaps; lse[B, heads, T]
 * = log sum over j of exp s[i, j], f32, for backward. Memory is O(T): nothing of T x T is kept
 * (Dao 2023, "FlashAttention-2", algorithms 1 and 2). Each sequence is computed alone, the same
 * whatever B is.
 */
enum tess_status tess_attention_forward(struct tess_op *op, const void *q, const void *k,
                                        const void *v, void *y, float *lse);
/* dq, dk, dv, overwritten, with the strides of q, k, v and distinct from them; gradients of a key
 * and value head are sums over its query heads. What lies in the gaps of the strides stays. */
enum tess_status tess_attention_backward(struct tess_op *op, const void *q, const void *k,
                                         const void *v, const void *y, const void *dy,
                                         const float *lse, void *dq, void *dk, void *dv);

/*
 * The same for documents that lie end to end in the B T positions: number d is [begin[d], begin[d +
 * 1]), at most T long, and computed as a sequence of its own, wherever it lies; nothing is computed
 * between documents. lse of a document [heads, its length], from begin[d] heads on. begin [count +
 * 1] is host memory and read before the return.
 */
enum tess_status tess_attention_forward_documents(struct tess_op *op, const int32_t *begin,
                                                  int32_t count, const void *q, const void *k,
                                                  const void *v, void *y, float *lse);
enum tess_status tess_attention_backward_documents(struct tess_op *op, const int32_t *begin,
                                                   int32_t count, const void *q, const void *k,
                                                   const void *v, const void *y, const void *dy,
                                                   const float *lse, void *dq, void *dk, void *dv);

/*
 * Positions first .. first + count - 1 of one sequence against what was kept of it: q [count,
 * heads, D] with desc.q_stride, k and v [first + count, kv_heads, D] with desc.kv_stride, y [count,
 * heads, D] without gaps. Each position has the bits that forward gives it in the whole sequence,
 * however many are taken at once; on cuda, whose forward works in tiles of queries, they are
 * forward's but for rounding. desc.decode; count <= desc.rows, first + count <= desc.length.
 */
enum tess_status tess_attention_decode(struct tess_op *op, int64_t first, int64_t count,
                                       const void *q, const void *k, const void *v, void *y);

/*
 * y[i] = table[token[i] - first] + add[i] for B rows; a token outside [first, first + desc.in) adds
 * zero, so that a table may be cut into parts. add [B, C] NULL: zero; it may be y. token NULL: row
 * i has token i % desc.length, for positions. table [desc.in, desc.out].
 */
enum tess_status tess_embedding_forward(struct tess_op *op, const int32_t *token, int64_t first,
                                        const void *table, const void *add, void *y);
/* dtable [desc.in, desc.out] = for each token the sum of dy over the rows that have it, by leaves,
 * each sum beginning with +0; overwritten. */
enum tess_status tess_embedding_backward(struct tess_op *op, const int32_t *token, int64_t first,
                                         const void *dy, float *dtable);

/* ---- plain operations ----------------------------------------------------------------------- */

/*
 * Rotary positions (Su et al. 2021), in place, in the halves form of Llama in Hugging Face's files:
 * for each head of x [rows, heads, D], rows `stride` elements apart, with position p = first + row
 * % length and i < D/2,
 *   angle = p tess_rotary_rate(base^(-2i/D), i);  (x[i], x[i + D/2]) is rotated by angle, by -angle
 *   where `inverse`, and multiplied by the amplitude.
 * The inverse is also the backward; of amplitude 1 it is the inverse.
 */
void tess_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t length,
               int64_t first, int32_t heads, int64_t head_size, int64_t stride,
               const struct tess_rotary *rotary, bool inverse, void *x);
/* y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016; what GPT-2 uses).
 * y is distinct from x. */
void tess_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                       const void *x, void *y);
/* dx = dy times the derivative at x. dx may be dy or x. */
void tess_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                        const void *x, const void *dy, void *dx);
/* The same with y = x/2 (1 + erf(x / sqrt(2))), which tess_gelu_forward approximates (Hendrycks and
 * Gimpel 2016). */
void tess_gelu_erf_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                           const void *x, void *y);
void tess_gelu_erf_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, const void *dy, void *dx);
/* y = gate / (1 + exp(-gate)) up (Shazeer 2020). y [rows, width]; gate, up and their gradients have
 * `stride` elements from one row to the next, so that both may lie in one array. */
void tess_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t width, int64_t stride, const void *gate, const void *up, void *y);
/* dgate may be gate, dup may be up. What lies in the gaps of the stride stays. */
void tess_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                          int64_t width, int64_t stride, const void *gate, const void *up,
                          const void *dy, void *dgate, void *dup);
/* The same with y = gelu(gate) up (Shazeer 2020): the GELU of tess_gelu_erf_forward where `erf`,
 * else that of tess_gelu_forward. */
void tess_geglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                        int64_t width, int64_t stride, bool erf, const void *gate, const void *up,
                        void *y);
void tess_geglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                         int64_t width, int64_t stride, bool erf, const void *gate, const void *up,
                         const void *dy, void *dgate, void *dup);
/*
 * What is added to the cross-entropy of a row; all 0: nothing. With lse = log sum exp x, over all
 * classes of the row, C of them:
 *
 *   loss      lse - (1 - smoothing) x[label] - spread sum x + z lse^2
 *   dlogits   scale ((1 + 2 z lse) softmax - (1 - smoothing) onehot - spread)
 *
 * smoothing is the share of the label that goes to all classes alike, spread = smoothing / C
 * (Szegedy et al. 2016, as in torch.nn.CrossEntropyLoss); z is the factor of Chowdhery et al. 2022.
 */
struct tess_xent {
    float smoothing, spread, z;
};

/*
 * Softmax and cross-entropy of rows whose classes are spread over several arrays (vocabulary
 * parallel; Shoeybi et al. 2019, section 3). logits [rows, stride] hold classes [first, first +
 * classes); the columns beyond are padding: never read as logits, and their gradient is 0. classes
 * may be 0. In this order, with a reduction over the parts after each of the first two:
 *
 *   xent_max    max[row] = greatest logit here, -inf where there is none; sum, target, best [rows]
 *               are for the same part's xent_sum to go on from: what is there is the backend's own
 *   xent_sum    sum[row] = sum of exp(x - max); target[row] = (1 - smoothing) x[label], 0
 *               where it is not here, + spread sum of x here;
 *               best[row] = - the first class here whose logit is max, -inf where there is none
 *               reduce: max with max; sum and target with sum, best with max
 *   xent_loss   lse + z lse^2 - target, lse = log(sum) + max, and -best == label; loss and correct
 *               [rows / length] are their sums over `length` rows one after the other (the
 *               positions of a sequence), added in f64 and rounded once
 *   xent_grad   dlogits as above; may be the logits
 *
 * A negative label is padding: loss, gradient and correct are 0. With one part this is
 * tess_softmax_xent with a stride, but for the last bits: sum is rounded to f32 on the way. Classes
 * are below 2^24, so that f32 holds them.
 */
void tess_xent_max(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t classes,
                   int64_t stride, const void *logits, float *max, float *sum, float *target,
                   float *best);
void tess_xent_sum(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t classes,
                   int64_t stride, int64_t first, struct tess_xent how, const void *logits,
                   const int32_t *label, const float *max, float *sum, float *target, float *best);
void tess_xent_grad(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                    int64_t classes, int64_t stride, int64_t first, struct tess_xent how,
                    float scale, const void *logits, const int32_t *label, const float *max,
                    const float *sum, void *dlogits);
void tess_xent_loss(struct tess_kernel *kernel, int64_t rows, int64_t length, struct tess_xent how,
                    const int32_t *label, const float *max, const float *sum, const float *target,
                    const float *best, float *loss, int32_t *correct);

/* y = max(0, x). y may be x. */
void tess_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                       const void *x, void *y);
/* dx = y > 0 ? dy : 0. dx may be dy. */
void tess_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                        const void *y, const void *dy, void *dx);
/* y = a + b. y may be a or b. */
void tess_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
              const void *b, void *y);
/* x and y [rows, width] without gaps, of rows of `stride` elements in the whole (one row: any):
 *   y[r, i] = keep(first + r stride + i) ? x[r, i] / (1 - rate) : 0,
 * keep from Philox keyed by `key` and the element's number in the global batch: one mask on every
 * layout, made again in backward. y may be x. */
void tess_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows, int64_t width,
                  int64_t stride, float rate, const uint64_t key[2], uint64_t first, const void *x,
                  void *y);
/*
 * Softmax and cross-entropy of each row, as `how` has it: loss[B] in f32, dlogits[B, classes];
 * correct[B] = 1 where the first greatest logit is the label. A negative label is padding: loss 0,
 * gradient 0, correct 0. dlogits may be NULL.
 */
void tess_softmax_xent(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                       int64_t classes, struct tess_xent how, float scale, const void *logits,
                       const int32_t *label, void *dlogits, float *loss, int32_t *correct);
/* y = x in another type; round to nearest even. Among f32, bf16, f16, f64. */
void tess_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
               enum tess_dtype to, void *y);
/* y += scale x. The fold of the gradient tree (scale 1) and of averaging. */
void tess_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                     float *y);
void tess_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory);
void tess_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target);
/* Index of the first NaN or infinity, or -1. Waits for the device. */
int64_t tess_find_nonfinite(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x);
/* *sum += the number of elements of x that are +0 or -0. dtype f32, bf16 or f16. */
void tess_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                      const void *x, double *sum);
/* sum[2 l], sum[2 l + 1] = the sums of loss and of correct over the rows of leaf l in order, in
 * double. verdict->loss_bad becomes 1 + the first row whose loss is not finite, if any. */
void tess_leaf_sum(struct tess_kernel *kernel, int64_t leaves, int64_t leaf_rows, const float *loss,
                   const int32_t *correct, double *sum, struct tess_verdict *verdict);
/* y = the greater of x and y. */
void tess_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y);
/* y[i] = mean + deviation times element first + i of the normals of a key (tess_rng_normals in
 * engine/base/rng.h); the product and the sum are rounded in turn. A backend with its own log and
 * cosine may differ from others in the last bits, never from itself. */
void tess_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first, int64_t count,
                 float mean, float deviation, float *y);
/*
 * y = x in bf16 or f16, rounded up or down at random, up with the probability (x - below) / (above
 * - below) of its place between its two neighbours, so that the expectation is x (Gupta et al.,
 * "Deep learning with limited numerical precision", ICML 2015, section 3). Element i compares the
 * bits that are cut off with as many low bits of Philox word `first + i` of `key`: the same on
 * every layout. What y can hold exactly stays; beyond its greatest finite value, and for NaN and
 * infinity, as tess_cast.
 */
void tess_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                          enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y);

/* ---- backends ------------------------------------------------------------------------------- */

/*
 * The operations: X(name) stands for the public function tess_<name>, whose declaration has the
 * contract (here and in tessera/update.h), and for a slot of its type in struct tess_kernel_ops.
 *
 * A new operation is its declaration, a line here, its wrapper (kernels/prepared.c, where the first
 * argument is an open operation, or kernels/plain.c) and its function in kernels/ref/,
 * tess__ref_<name>. Other backends leave the slot empty until they have a function of their own.
 */
#define TESS_OPERATION_LIST(X)                                                                     \
    X(linear_forward)                                                                              \
    X(linear_backward_data)                                                                        \
    X(linear_backward_weight)                                                                      \
    X(linear_forward_add)                                                                          \
    X(linear_backward)                                                                             \
    X(linear_forward_gelu)                                                                         \
    X(linear_backward_data_gelu)                                                                   \
    X(conv2d_forward)                                                                              \
    X(conv2d_backward_data)                                                                        \
    X(conv2d_backward_weight)                                                                      \
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
    X(embedding_backward)                                                                          \
    X(attention_decode)                                                                            \
    X(rope)                                                                                        \
    X(gelu_forward)                                                                                \
    X(gelu_backward)                                                                               \
    X(gelu_erf_forward)                                                                            \
    X(gelu_erf_backward)                                                                           \
    X(swiglu_forward)                                                                              \
    X(swiglu_backward)                                                                             \
    X(geglu_forward)                                                                               \
    X(geglu_backward)                                                                              \
    X(xent_max)                                                                                    \
    X(xent_sum)                                                                                    \
    X(xent_grad)                                                                                   \
    X(xent_loss)                                                                                   \
    X(relu_forward)                                                                                \
    X(relu_backward)                                                                               \
    X(add)                                                                                         \
    X(dropout)                                                                                     \
    X(softmax_xent)                                                                                \
    X(cast)                                                                                        \
    X(cast_stochastic)                                                                             \
    X(accumulate)                                                                                  \
    X(maximum)                                                                                     \
    X(normal)                                                                                      \
    X(fill)                                                                                        \
    X(copy)                                                                                        \
    X(find_nonfinite)                                                                              \
    X(find_flag)                                                                                   \
    X(count_zeros)                                                                                 \
    X(leaf_sum)                                                                                    \
    X(square_sum)                                                                                  \
    X(square_sum_all)                                                                              \
    X(update)                                                                                      \
    X(update_all)                                                                                  \
    X(update_judge)                                                                                \
    X(lamb_direction)

/*
 * A backend. Slots not marked OPTIONAL are required; tess_kernel_open fills the others. Order of
 * calls: open, choose, supports and op_needs (while planning, with no memory), adopt or alloc,
 * op_open, settle, operations, op_close, disown or free, close.
 */
struct tess_kernel_ops {
    uint32_t abi;
    const char *name;
    const char *summary;
    size_t state_size; /* private bytes behind struct tess_kernel, zeroed */
    bool host_memory;  /* host threads may touch device memory at any time, without access() */
    bool far_memory;   /* device memory is no host memory: it comes from alloc(), access() does not
                          open it, read() and write() copy */
    bool fills_memory; /* for tests: adopt() and alloc() leave something else than zeros there */
    bool threaded;     /* operations use tess_kernel.threads; else they are done by one */

    bool stacks; /* linear layers that read the same x are faster as one product of their
                    stacked weights. Models do so where they can (tess_declare_stacked); the
                    sum of their input gradients is then rounded once */

    /* OPTIONAL, default: no queues. Then tess_kernel.queue is NULL, else open() has set it. */
    const struct tess_queue_ops *queue;

    /* OPTIONAL, default: tess_op_check. Called at plan time; fills `why` when it returns false. */
    bool (*supports)(const struct tess_op_desc *desc, char *why, size_t why_bytes);
    /* OPTIONAL, default: nothing to do. */
    enum tess_status (*open)(struct tess_kernel *kernel);
    void (*close)(struct tess_kernel *kernel);
    /* OPTIONAL, default: nothing to choose. Before the first op_open. */
    enum tess_status (*choose)(struct tess_kernel *kernel,
                               const struct tess_kernel_choices *choices);
    /* OPTIONAL, default: no lines. Lines about what was chosen, for --explain. */
    void (*describe)(const struct tess_kernel *kernel,
                     void (*line)(void *context, const char *text), void *context);

    /*
     * OPTIONAL, default: 0. After the last op_open, before the first operation: `all` 0 asks what
     * this rank has measured to be the faster choice (0: nothing was measured); else `all` is the
     * greatest answer of all ranks, which all take.
     */
    uint8_t (*settle)(struct tess_kernel *kernel, uint8_t all);

    /* `memory` [bytes] becomes the device's. OPTIONAL, default: nothing. */
    enum tess_status (*adopt)(struct tess_kernel *kernel, void *memory, size_t bytes);
    void (*disown)(struct tess_kernel *kernel, void *memory, size_t bytes); /* OPTIONAL */
    /* OPTIONAL. Host code is about to touch (true) or done with device memory. */
    void (*access)(struct tess_kernel *kernel, bool on);

    /* far_memory: REQUIRED. Device memory, zeroed, in pages; free takes NULL. */
    enum tess_status (*alloc)(struct tess_kernel *kernel, size_t bytes, void **memory_out);
    void (*free)(struct tess_kernel *kernel, void *memory);
    /* OPTIONAL, default: access() and memcpy. See tess_read. */
    enum tess_status (*read)(struct tess_kernel *kernel, size_t bytes, const void *device,
                             void *host);
    enum tess_status (*write)(struct tess_kernel *kernel, size_t bytes, const void *host,
                              void *device);
    /* OPTIONAL, default: calloc and free. Host memory that the device copies from and to beside
     * the host's work; 64-byte aligned, zeroed. */
    enum tess_status (*pin)(struct tess_kernel *kernel, size_t bytes, void **memory_out);
    void (*unpin)(struct tess_kernel *kernel, void *memory);
    /* OPTIONAL, default: TESS_OK. An error that queued work has met since the last such call, or a
     * device that is lost. Does not wait. */
    enum tess_status (*failed)(struct tess_kernel *kernel);
    /*
     * OPTIONAL, all three or none (graph_begin NULL: none). Between begin and end what is queued,
     * on this queue and on those that its fences lead to, is recorded, not run; play runs the
     * latest record of `slot` (0 .. TESS_GRAPH_SLOTS - 1) once more.
     */
    enum tess_status (*graph_begin)(struct tess_kernel *kernel);
    enum tess_status (*graph_end)(struct tess_kernel *kernel, int32_t slot);
    enum tess_status (*graph_play)(struct tess_kernel *kernel, int32_t slot);

    /* OPTIONAL, all three or none, default: those of ref. */
    enum tess_status (*op_needs)(const struct tess_op_desc *desc, struct tess_op_needs *needs_out);
    enum tess_status (*op_open)(struct tess_op *op);
    void (*op_close)(struct tess_op *op);

    /* OPTIONAL. Called with true before an operation below and with false after it. */
    void (*bracket)(struct tess_kernel *kernel, bool begins);

    /*
     * The operations, a slot for each, of the type of its public function: relu_forward is called
     * by tess_relu_forward with the same arguments. OPTIONAL, default: that of ref. A backend with
     * far_memory and without bracket has no default; there the call of an empty slot is an error,
     * which a prepared operation returns and tess_kernel_ops.failed returns for the others.
     */
#define TESS_OPERATION_SLOT(name) __typeof__(tess_##name) *name;
    TESS_OPERATION_LIST(TESS_OPERATION_SLOT)
#undef TESS_OPERATION_SLOT
};

#define TESS_GRAPH_SLOTS 4

struct tess_kernel {
    const struct tess_kernel_ops *ops;
    int32_t threads; /* that one operation may use: its results do not depend on how many */
    struct tess_queue *queue; /* where operations go; NULL: done on return */
    bool drawn; /* random numbers were drawn by a key of the step since the owner last cleared this:
                   what was recorded is no other step's */
    void *state;
};

TESS_END_DECLS
#endif
