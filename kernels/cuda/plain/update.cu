/*
 * The update rules of ref/rules.h, to the same bits: every operation rounded, in the order in which
 * it is written there. Many pieces go in one launch, their descriptions as the kernel's parameters;
 * a block takes UPDATE_CHUNK elements of one of them. Formulas and their sources are at rules.h and
 * at enum tess_update_kind.
 */
#include "cuda/bits.cuh"
#include "cuda/slots.h"

#define UPDATE_THREADS 256
#define UPDATE_WIDTH   4 /* f32 elements of a 16-byte access */
#define UPDATE_TURNS                                                                               \
    2 /* that a thread takes in a chunk: 8 loads in flight for AdamW's 4 arrays                    \
       */
#define UPDATE_CHUNK  (UPDATE_THREADS * UPDATE_WIDTH * UPDATE_TURNS)
#define UPDATE_PIECES 32 /* of a launch: about 4 KiB of parameters */

/* The rules, as the kernel's variants. */
enum update_rule {
    UPDATE_RULE_SGD,
    UPDATE_RULE_MOMENTUM,
    UPDATE_RULE_NESTEROV,
    UPDATE_RULE_ADAMW,
    UPDATE_RULE_NOVOGRAD,
    UPDATE_RULE_LAMB,
    UPDATE_RULE_AVERAGE,
    UPDATE_RULE_DIRECTION, /* LAMB's first half */
    UPDATE_RULE_COUNT
};

/* What a rule reads and writes beside w and g. */
template <int RULE> struct update_uses {
    static constexpr bool g = RULE != UPDATE_RULE_LAMB;
    static constexpr bool v = RULE == UPDATE_RULE_ADAMW || RULE == UPDATE_RULE_DIRECTION;
    static constexpr bool m = v || RULE == UPDATE_RULE_MOMENTUM || RULE == UPDATE_RULE_NESTEROV ||
                              RULE == UPDATE_RULE_NOVOGRAD;
    static constexpr bool w_written = RULE != UPDATE_RULE_DIRECTION;
};

struct update_piece {
    int64_t count;
    float *w, *m, *v;
    const float *g;
    float *direction;
    void *low; /* NULL: no compute copy */
    const struct tess_update_factor *factor;
    float lr, mu, beta1, beta2, epsilon, weight_decay;
    float correction1, correction2, grad_scale, tensor_scale;
    int32_t low_type; /* enum tess_dtype */
    int32_t vectors;  /* all arrays are aligned to whole vectors */
    int32_t first_block;
};

/* By value, as the kernel's parameter. */
struct update_batch {
    int32_t count;
    update_piece piece[UPDATE_PIECES];
};

/* One element's state on its way through a rule. */
struct update_element {
    float w, g, m, v, direction;
};

/* m and v of AdamW and LAMB, and what w is moved by but for the decay. */
static __device__ __forceinline__ float update_adam(const update_piece &u, update_element &x)
{
    float d = __fmul_rn(u.grad_scale, x.g);
    x.m = __fadd_rn(__fmul_rn(u.beta1, x.m), __fmul_rn(__fsub_rn(1.0f, u.beta1), d));
    x.v = __fadd_rn(__fmul_rn(u.beta2, x.v), __fmul_rn(__fsub_rn(1.0f, u.beta2), __fmul_rn(d, d)));
    return __fdiv_rn(__fmul_rn(u.correction1, x.m),
                     __fadd_rn(__fsqrt_rn(__fmul_rn(u.correction2, x.v)), u.epsilon));
}

template <int RULE>
static __device__ __forceinline__ void update_apply(const update_piece &u, update_element &x)
{
    float decay = __fmul_rn(u.weight_decay, x.w);
    float grad = __fmul_rn(u.grad_scale, x.g);
    if (RULE == UPDATE_RULE_SGD) {
        x.w = __fsub_rn(x.w, __fmul_rn(u.lr, __fadd_rn(grad, decay)));
    } else if (RULE == UPDATE_RULE_MOMENTUM) {
        x.m = __fadd_rn(__fmul_rn(u.mu, x.m), __fadd_rn(grad, decay));
        x.w = __fsub_rn(x.w, __fmul_rn(u.lr, x.m));
    } else if (RULE == UPDATE_RULE_NESTEROV) {
        float d = __fadd_rn(grad, decay);
        x.m = __fadd_rn(__fmul_rn(u.mu, x.m), d);
        x.w = __fsub_rn(x.w, __fmul_rn(u.lr, __fadd_rn(d, __fmul_rn(u.mu, x.m))));
    } else if (RULE == UPDATE_RULE_ADAMW) {
        float step = update_adam(u, x);
        x.w = __fsub_rn(x.w, __fmul_rn(u.lr, __fadd_rn(step, decay)));
    } else if (RULE == UPDATE_RULE_NOVOGRAD) {
        x.m = __fadd_rn(__fmul_rn(u.beta1, x.m), __fadd_rn(__fmul_rn(grad, u.tensor_scale), decay));
        x.w = __fsub_rn(x.w, __fmul_rn(u.lr, x.m));
    } else if (RULE == UPDATE_RULE_LAMB) {
        x.w = __fsub_rn(x.w, __fmul_rn(__fmul_rn(u.lr, u.tensor_scale), x.direction));
    } else if (RULE == UPDATE_RULE_AVERAGE) {
        x.w = __fadd_rn(__fmul_rn(__fsub_rn(1.0f, u.lr), x.w), __fmul_rn(u.lr, grad));
    } else { /* UPDATE_RULE_DIRECTION */
        float step = update_adam(u, x);
        x.direction = __fadd_rn(step, decay);
    }
}

static __device__ __forceinline__ void update_low(const update_piece &u, int64_t i, float w)
{
    if (u.low_type == TESS_BF16)
        static_cast<__nv_bfloat16 *>(u.low)[i] = cuda_narrow<__nv_bfloat16>(w);
    else if (u.low_type == TESS_F16)
        static_cast<__half *>(u.low)[i] = cuda_narrow<__half>(w);
    else
        static_cast<float *>(u.low)[i] = w;
}

/* Four elements of the compute copy, 8 bytes at a time in a 16-bit type. */
template <typename T>
static __device__ __forceinline__ void update_low4(void *low, int64_t i, const cuda_vec<float> &w)
{
    union {
        T at[UPDATE_WIDTH];
        uint2 word;
    } value;
#pragma unroll
    for (int e = 0; e < UPDATE_WIDTH; e++)
        value.at[e] = cuda_narrow<T>(w.at[e]);
    *reinterpret_cast<uint2 *>(static_cast<T *>(low) + i) = value.word;
}

template <int RULE>
static __device__ __forceinline__ void update_one(const update_piece &u, int64_t i)
{
    typedef update_uses<RULE> uses;
    update_element x = {};
    x.w = u.w[i];
    x.g = uses::g ? u.g[i] : 0;
    x.m = uses::m ? u.m[i] : 0;
    x.v = uses::v ? u.v[i] : 0;
    x.direction = RULE == UPDATE_RULE_LAMB ? u.direction[i] : 0;
    update_apply<RULE>(u, x);
    if (uses::m)
        u.m[i] = x.m;
    if (uses::v)
        u.v[i] = x.v;
    if (RULE == UPDATE_RULE_DIRECTION)
        u.direction[i] = x.direction;
    if (uses::w_written) {
        u.w[i] = x.w;
        if (u.low)
            update_low(u, i, x.w);
    }
}

/* Four elements of all arrays that a rule reads. Gradients and directions are not read again. */
struct update_vectors {
    cuda_vec<float> w, g, m, v, direction;
};

template <int RULE>
static __device__ __forceinline__ void update_load(const update_piece &u, int64_t i,
                                                   update_vectors &x)
{
    typedef update_uses<RULE> uses;
    x.w = cuda_load(u.w + i);
    if (uses::g)
        x.g = cuda_load_streaming(u.g + i);
    if (uses::m)
        x.m = cuda_load(u.m + i);
    if (uses::v)
        x.v = cuda_load(u.v + i);
    if (RULE == UPDATE_RULE_LAMB)
        x.direction = cuda_load_streaming(u.direction + i);
}

template <int RULE>
static __device__ __forceinline__ void update_vector(const update_piece &u, int64_t i,
                                                     update_vectors &x)
{
    typedef update_uses<RULE> uses;
#pragma unroll
    for (int e = 0; e < UPDATE_WIDTH; e++) {
        update_element one = {};
        one.w = x.w.at[e];
        one.g = uses::g ? x.g.at[e] : 0;
        one.m = uses::m ? x.m.at[e] : 0;
        one.v = uses::v ? x.v.at[e] : 0;
        one.direction = RULE == UPDATE_RULE_LAMB ? x.direction.at[e] : 0;
        update_apply<RULE>(u, one);
        x.w.at[e] = one.w;
        x.m.at[e] = one.m;
        x.v.at[e] = one.v;
        x.direction.at[e] = one.direction;
    }
    if (uses::m)
        cuda_store(u.m + i, x.m);
    if (uses::v)
        cuda_store(u.v + i, x.v);
    if (RULE == UPDATE_RULE_DIRECTION)
        cuda_store(u.direction + i, x.direction);
    if (!uses::w_written)
        return;
    cuda_store(u.w + i, x.w);
    if (!u.low)
        return;
    if (u.low_type == TESS_BF16)
        update_low4<__nv_bfloat16>(u.low, i, x.w);
    else if (u.low_type == TESS_F16)
        update_low4<__half>(u.low, i, x.w);
    else
        cuda_store(static_cast<float *>(u.low) + i, x.w);
}

/* Elements begin .. end - 1 of a piece, begin a multiple of the chunk. */
template <int RULE>
static __device__ __forceinline__ void update_chunk(const update_piece &u, int64_t begin,
                                                    int64_t end)
{
    if (!u.vectors) {
        for (int64_t i = begin + threadIdx.x; i < end; i += UPDATE_THREADS)
            update_one<RULE>(u, i);
        return;
    }
    update_vectors x[UPDATE_TURNS];
#pragma unroll
    for (int t = 0; t < UPDATE_TURNS; t++) {
        int64_t i = begin + (int64_t)(t * UPDATE_THREADS + (int)threadIdx.x) * UPDATE_WIDTH;
        if (i + UPDATE_WIDTH <= end)
            update_load<RULE>(u, i, x[t]);
    }
#pragma unroll
    for (int t = 0; t < UPDATE_TURNS; t++) {
        int64_t i = begin + (int64_t)(t * UPDATE_THREADS + (int)threadIdx.x) * UPDATE_WIDTH;
        if (i + UPDATE_WIDTH <= end)
            update_vector<RULE>(u, i, x[t]);
    }
    int64_t rest = begin + (end - begin) / UPDATE_WIDTH * UPDATE_WIDTH + threadIdx.x;
    if (rest < end)
        update_one<RULE>(u, rest);
}

template <int RULE>
__global__ void __launch_bounds__(UPDATE_THREADS)
    update_kernel(const __grid_constant__ update_batch batch)
{
    int p = 0; /* the last piece that begins no later than this block */
    while (p + 1 < batch.count && batch.piece[p + 1].first_block <= (int)blockIdx.x)
        p++;
    update_piece u = batch.piece[p];
    if (u.factor) {
        const struct tess_update_factor factor = *u.factor;
        if (factor.skip)
            return;
        if (RULE != UPDATE_RULE_AVERAGE) {
            u.lr = factor.lr;
            u.correction1 = factor.correction1;
            u.correction2 = factor.correction2;
            u.grad_scale = factor.grad_scale;
            u.tensor_scale = factor.tensor_scale;
        }
    }
    int64_t begin = (int64_t)((int)blockIdx.x - u.first_block) * UPDATE_CHUNK;
    update_chunk<RULE>(u, begin, begin + UPDATE_CHUNK < u.count ? begin + UPDATE_CHUNK : u.count);
}

/* ---- batches -------------------------------------------------------------------------------- */

typedef void update_kernel_type(update_batch);

static update_kernel_type *const update_kernels[UPDATE_RULE_COUNT] = {
    update_kernel<UPDATE_RULE_SGD>,      update_kernel<UPDATE_RULE_MOMENTUM>,
    update_kernel<UPDATE_RULE_NESTEROV>, update_kernel<UPDATE_RULE_ADAMW>,
    update_kernel<UPDATE_RULE_NOVOGRAD>, update_kernel<UPDATE_RULE_LAMB>,
    update_kernel<UPDATE_RULE_AVERAGE>,  update_kernel<UPDATE_RULE_DIRECTION>,
};

static enum update_rule update_rule_of(const struct tess_update *u)
{
    switch (u->kind) {
    case TESS_UPDATE_MOMENTUM:
        return u->nesterov ? UPDATE_RULE_NESTEROV : UPDATE_RULE_MOMENTUM;
    case TESS_UPDATE_ADAMW:
        return UPDATE_RULE_ADAMW;
    case TESS_UPDATE_NOVOGRAD:
        return UPDATE_RULE_NOVOGRAD;
    case TESS_UPDATE_LAMB:
        return UPDATE_RULE_LAMB;
    case TESS_UPDATE_AVERAGE:
        return UPDATE_RULE_AVERAGE;
    default:
        return UPDATE_RULE_SGD;
    }
}

static bool update_aligned(const struct tess_update *u)
{
    uintptr_t low = (uintptr_t)u->param_low % (u->low == TESS_F32 ? 16 : 8);
    return cuda_aligned16(u->w) && cuda_aligned16(u->g) && cuda_aligned16(u->m) &&
           cuda_aligned16(u->v) && cuda_aligned16(u->direction) && low == 0;
}

static update_piece update_piece_of(const struct tess_update *u)
{
    update_piece piece = {};
    piece.count = u->count;
    piece.w = u->w;
    piece.m = u->m;
    piece.v = u->v;
    piece.g = u->g;
    piece.direction = u->direction;
    piece.low = u->param_low;
    piece.factor = u->factor;
    piece.lr = u->lr;
    piece.mu = u->mu;
    piece.beta1 = u->beta1;
    piece.beta2 = u->beta2;
    piece.epsilon = u->epsilon;
    piece.weight_decay = u->weight_decay;
    piece.correction1 = u->correction1;
    piece.correction2 = u->correction2;
    piece.grad_scale = u->grad_scale;
    piece.tensor_scale = u->tensor_scale;
    piece.low_type = (int32_t)u->low;
    piece.vectors = update_aligned(u);
    return piece;
}

/* All pieces of one rule. */
static cudaError_t update_launch(cudaStream_t stream, enum update_rule rule,
                                 const struct tess_update *update, int32_t count)
{
    update_batch batch;
    int64_t blocks = 0;
    batch.count = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct tess_update *u = &update[i];
        if (u->count <= 0 || (rule != UPDATE_RULE_DIRECTION && update_rule_of(u) != rule))
            continue;
        batch.piece[batch.count] = update_piece_of(u);
        batch.piece[batch.count++].first_block = (int32_t)blocks;
        blocks += (u->count + UPDATE_CHUNK - 1) / UPDATE_CHUNK;
        if (batch.count < UPDATE_PIECES)
            continue;
        cudaError_t error =
            CUDA_LAUNCH(update_kernels[rule], (unsigned)blocks, UPDATE_THREADS, 0, stream, batch);
        if (error != cudaSuccess)
            return error;
        batch.count = 0;
        blocks = 0;
    }
    return CUDA_LAUNCH(update_kernels[rule], (unsigned)blocks, UPDATE_THREADS, 0, stream, batch);
}

static cudaError_t update_rules(cudaStream_t stream, const struct tess_update *update,
                                int32_t count)
{
    uint32_t present = 0;
    for (int32_t i = 0; i < count; i++)
        present |= 1u << update_rule_of(&update[i]);
    cudaError_t error = cudaSuccess;
    for (int rule = 0; rule < UPDATE_RULE_COUNT && error == cudaSuccess; rule++)
        if (present >> rule & 1)
            error = update_launch(stream, (enum update_rule)rule, update, count);
    return error;
}

void tess__cuda_update_all(struct tess_kernel *kernel, const struct tess_update *update,
                           int32_t count)
{
    tess__cuda_note(kernel, update_rules(tess__cuda_stream(kernel), update, count), "update");
}

void tess__cuda_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    tess__cuda_update_all(kernel, update, 1);
}

void tess__cuda_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update)
{
    tess__cuda_note(kernel,
                    update_launch(tess__cuda_stream(kernel), UPDATE_RULE_DIRECTION, update, 1),
                    "lamb_direction");
}
