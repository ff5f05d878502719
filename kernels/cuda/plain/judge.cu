/*
 * From exact sums to the factors of an update (tess_update_judge), to the bits of ref/judge.c: in
 * double, every operation rounded in the order in which it stands there. One block: the sums of a
 * few thousand parameters are little, and everything after them hangs on one number.
 */
#include "cuda/fixed.cuh"
#include "cuda/slots.h"

#include <float.h>

#define JUDGE_THREADS 1024
#define JUDGE_WARPS   (JUDGE_THREADS / CUDA_WARP)

/* What the threads of the block share. */
struct judge_shared {
    long long limb[JUDGE_WARPS][TESS_SUM_LIMBS];
    int first_bad; /* of the sums; INT32_MAX: none */
    int skip;
    float grad_scale;
};

/* base^n by squaring. */
static __device__ double judge_power(double base, int64_t n)
{
    double power = 1;
    for (; n > 0; n >>= 1, base = __dmul_rn(base, base))
        if (n & 1)
            power = __dmul_rn(power, base);
    return power;
}

static __device__ __forceinline__ double judge_value(const struct tess_sum *sum)
{
    return fixed_value(reinterpret_cast<const long long *>(sum->limb));
}

/* A sum is finite unless something that is not was added to it. */
static __device__ void judge_search(const tess_judge &judge, int sums, judge_shared *shared)
{
    for (int s = (int)threadIdx.x; s < sums; s += JUDGE_THREADS) {
        if (judge.sum[s].limb[FIXED_COUNT_LIMB] != 0) {
            atomicMin(&shared->first_bad, s);
            break;
        }
    }
}

/* The sum over all parameters is in shared->limb[0]. A lane takes a limb, a warp every 32nd
 * parameter. */
static __device__ void judge_total(const tess_judge &judge, judge_shared *shared)
{
    long long total = 0;
    if (cuda_lane() < TESS_SUM_LIMBS) {
        for (int p = cuda_warp(); p < judge.count; p += JUDGE_WARPS)
            total += (long long)judge.sum[p].limb[cuda_lane()];
        shared->limb[cuda_warp()][cuda_lane()] = total;
    }
    __syncthreads();
    if (threadIdx.x < TESS_SUM_LIMBS)
        for (int w = 1; w < JUDGE_WARPS; w++)
            shared->limb[0][threadIdx.x] += shared->limb[w][threadIdx.x];
    __syncthreads();
}

/* One thread: the verdict, and what follows from it for all parameters. */
static __device__ void judge_step(const tess_judge &judge, judge_shared *shared)
{
    struct tess_verdict *verdict = judge.verdict;
    shared->grad_scale = judge.rates->grad_scale;
    if (!judge.ratio) {
        verdict->grad_norm = -1;
        verdict->skip |= verdict->grad_bad > 0 || verdict->loss_bad > 0;
    }
    if (shared->first_bad != INT32_MAX) {
        verdict->norm_bad = judge.count - shared->first_bad % judge.count;
        verdict->skip = 1;
    }
    if (judge.norm && !judge.ratio) {
        const double loss_scale = judge.rates->loss_scale;
        const double norm = __ddiv_rn(__dsqrt_rn(fixed_value(shared->limb[0])), loss_scale);
        const double clip = judge.clip > 0 && norm > judge.clip ? __ddiv_rn(judge.clip, norm) : 1.0;
        verdict->grad_norm = norm;
        shared->grad_scale = __double2float_rn(__ddiv_rn(clip, loss_scale));
    }
    shared->skip = verdict->skip;
}

/* Ginsburg et al. 2019, algorithm 1, lines 1, 5 and 6. */
static __device__ float judge_novograd(const tess_judge &judge, int p, float grad_scale,
                                       int64_t age)
{
    const double beta2 = (double)judge.beta2, scale = (double)grad_scale;
    const double square = __dmul_rn(judge_value(&judge.sum[p]), __dmul_rn(scale, scale));
    double v = square;
    if (age != 0)
        v = __dadd_rn(__dmul_rn(beta2, (double)judge.tensor_state[p]),
                      __dmul_rn(__dsub_rn(1.0, beta2), square));
    const float state = __double2float_rn(v < (double)FLT_MAX ? v : (double)FLT_MAX);
    judge.tensor_state[p] = state;
    return __double2float_rn(
        __ddiv_rn(1.0, __dadd_rn(__dsqrt_rn((double)state), (double)judge.epsilon)));
}

/* You et al. 2020, section 3.1. */
static __device__ float judge_ratio(const tess_judge &judge, int p)
{
    const double w = __dsqrt_rn(judge_value(&judge.sum[p]));
    const double u = __dsqrt_rn(judge_value(&judge.sum[judge.count + p]));
    return w > 0 && u > 0 ? __double2float_rn(__ddiv_rn(w, u)) : 1.0f;
}

static __device__ float judge_correction(float beta, int64_t age)
{
    return __double2float_rn(__ddiv_rn(1.0, __dsub_rn(1.0, judge_power((double)beta, age + 1))));
}

static __device__ void judge_parameter(const tess_judge &judge, int p, const judge_shared *shared)
{
    const int64_t age = judge.age ? judge.age[p] : judge.step;
    struct tess_update_factor factor;
    factor.lr = judge.rates->lr;
    factor.correction1 = judge.age ? judge_correction(judge.beta1, age) : judge.rates->correction1;
    factor.correction2 = judge.age ? judge_correction(judge.beta2, age) : judge.rates->correction2;
    factor.grad_scale = shared->grad_scale;
    factor.tensor_scale = 1;
    factor.skip = shared->skip != 0 || (judge.unused && judge.unused[p] != 0);
    if (judge.novograd && factor.skip == 0)
        factor.tensor_scale = judge_novograd(judge, p, factor.grad_scale, age);
    judge.factor[p] = factor;
}

__global__ void __launch_bounds__(JUDGE_THREADS)
    judge_kernel(const __grid_constant__ tess_judge judge)
{
    __shared__ judge_shared shared;
    if (threadIdx.x == 0)
        shared.first_bad = INT32_MAX;
    __syncthreads();
    if (judge.norm || judge.ratio)
        judge_search(judge, judge.ratio ? 2 * judge.count : judge.count, &shared);
    if (judge.norm && !judge.ratio)
        judge_total(judge, &shared);
    __syncthreads();
    if (threadIdx.x == 0)
        judge_step(judge, &shared);
    __syncthreads();
    for (int p = (int)threadIdx.x; p < judge.count; p += JUDGE_THREADS) {
        if (!judge.ratio) {
            judge_parameter(judge, p, &shared);
            continue;
        }
        judge.factor[p].tensor_scale = judge_ratio(judge, p);
        judge.factor[p].skip |= shared.skip;
    }
}

void tess__cuda_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge)
{
    tess__cuda_note(
        kernel, CUDA_LAUNCH(judge_kernel, 1, JUDGE_THREADS, 0, tess__cuda_stream(kernel), *judge),
        "update_judge");
}
