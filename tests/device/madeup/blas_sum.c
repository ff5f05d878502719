/*
 * The sums of cublasLtMatmul's stand-in: plain loops in f32, in the order of struct blas_sum.
 *
 * 8-bit products are added as Hopper adds them (DeepSeek-AI 2024, "DeepSeek-V3 technical report",
 * sections 3.3.2 and 3.5.2): the 32 products of an instruction and the sum before it are shifted to
 * the exponent of the greatest of them, the highest 14 bits of each are added and what is below is
 * cut off. Now and then that sum is added to one in f32, which is what is done without
 * CUBLASLT_MATMUL_DESC_FAST_ACCUM.
 */
#include "device/madeup/blas.h"

#include "base/half.h"
#include "ref/fp8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SUM_NARROW_STEP 32 /* products of one instruction */
#define SUM_NARROW_BITS 14

/* ---- elements -------------------------------------------------------------------------------- */

static float sum_load(cudaDataType_t type, const void *memory, int64_t at)
{
    float value;
    uint16_t half;
    switch (type) {
    case CUDA_R_8F_E4M3:
        return tess__f32_of_fp8(TESS_FP8_E4M3, ((const uint8_t *)memory)[at]);
    case CUDA_R_8F_E5M2:
        return tess__f32_of_fp8(TESS_FP8_E5M2, ((const uint8_t *)memory)[at]);
    case CUDA_R_16BF:
    case CUDA_R_16F:
        memcpy(&half, (const char *)memory + 2 * at, sizeof(half));
        return type == CUDA_R_16BF ? tess__f32_of_bf16(half) : tess__f32_of_f16(half);
    default:
        memcpy(&value, (const char *)memory + 4 * at, sizeof(value));
        return value;
    }
}

static void sum_store(cudaDataType_t type, void *memory, int64_t at, float value)
{
    if (type == CUDA_R_32F) {
        memcpy((char *)memory + 4 * at, &value, sizeof(value));
        return;
    }
    const uint16_t half = type == CUDA_R_16BF ? tess__bf16_of_f32(value) : tess__f16_of_f32(value);
    memcpy((char *)memory + 2 * at, &half, sizeof(half));
}

static float sum_rounded(cudaDataType_t type, float value)
{
    float stored;
    sum_store(type, &stored, 0, value);
    return sum_load(type, &stored, 0);
}

/* To 10 bits of fraction, ties away from zero (PTX ISA, cvt.rna.tf32). */
static float sum_tf32(float value)
{
    return isfinite(value) ? tess__f32_of_bits((tess__bits_of_f32(value) + 0x1000u) & ~0x1fffu)
                           : value;
}

/* ---- sums ------------------------------------------------------------------------------------ */

struct sum_operands {
    float *a;   /* [k, m] */
    float *b;   /* [n, k] */
    float *sum; /* [m], and two more as scratch behind it */
};

static bool sum_open(const struct blas_problem *p, const void *a, const void *b,
                     struct sum_operands *out)
{
    const bool a_turned = p->work.transpose_a == CUBLAS_OP_T;
    const bool b_turned = p->work.transpose_b == CUBLAS_OP_T;
    const bool cut = p->work.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    *out = (struct sum_operands){
        malloc((size_t)(p->k * p->m) * sizeof(float)),
        malloc((size_t)(p->n * p->k) * sizeof(float)),
        malloc((size_t)(3 * p->m) * sizeof(float)),
    };
    if (out->a == NULL || out->b == NULL || out->sum == NULL)
        return false;
    for (int64_t k = 0; k < p->k; k++)
        for (int64_t i = 0; i < p->m; i++) {
            const int64_t at = a_turned ? k + i * p->a.stride : i + k * p->a.stride;
            const float x = sum_load(p->a.type, a, at);
            out->a[k * p->m + i] = cut ? sum_tf32(x) : x;
        }
    for (int64_t j = 0; j < p->n; j++)
        for (int64_t k = 0; k < p->k; k++) {
            const int64_t at = b_turned ? j + k * p->b.stride : k + j * p->b.stride;
            const float x = sum_load(p->b.type, b, at);
            out->b[j * p->k + k] = cut ? sum_tf32(x) : x;
        }
    return true;
}

static void sum_close(struct sum_operands *o)
{
    free(o->a);
    free(o->b);
    free(o->sum);
}

/* block[m] = the sum of products `from` to `to` - 1. */
static void sum_block(const float *restrict a, const float *restrict b, int64_t m, int64_t from,
                      int64_t to, float *restrict block)
{
    memset(block, 0, (size_t)m * sizeof(*block));
    for (int64_t k = from; k < to; k++) {
        const float factor = b[k];
        const float *restrict row = a + k * m;
        for (int64_t i = 0; i < m; i++)
            block[i] += row[i] * factor;
    }
}

/* One instruction: sum[i] + the products, each cut below the highest bits of the greatest. */
static float sum_instruction(const float *a, const float *b, int64_t m, int64_t from, int64_t to,
                             float sum)
{
    float greatest = fabsf(sum), plain = sum;
    for (int64_t k = from; k < to; k++) {
        const float product = a[k * m] * b[k];
        greatest = fabsf(product) > greatest ? fabsf(product) : greatest;
        plain += product;
    }
    if (!isfinite(plain) || greatest == 0)
        return plain;
    int exponent; /* greatest is in [2^(exponent - 1), 2^exponent) */
    (void)frexpf(greatest, &exponent);
    const float unit = ldexpf(1, exponent - SUM_NARROW_BITS);
    const float inverse = ldexpf(1, SUM_NARROW_BITS - exponent);
    int32_t total = (int32_t)(sum * inverse);
    for (int64_t k = from; k < to; k++)
        total += (int32_t)(a[k * m] * b[k] * inverse);
    return (float)total * unit;
}

static void sum_block_narrow(const float *a, const float *b, int64_t m, int64_t from, int64_t to,
                             float *block)
{
    for (int64_t i = 0; i < m; i++) {
        block[i] = 0;
        for (int64_t k = from; k < to; k += SUM_NARROW_STEP)
            block[i] = sum_instruction(
                a + i, b, m, k, k + SUM_NARROW_STEP < to ? k + SUM_NARROW_STEP : to, block[i]);
    }
}

/* sum[m] of column j of op(B), products `from` to `to` - 1, in steps. */
static void sum_part(const struct blas_run *run, const struct sum_operands *o, int64_t j,
                     int64_t from, int64_t to, float *sum)
{
    const struct blas_problem *p = &run->problem;
    const int64_t all = to > from ? to - from : 1;
    const int64_t step = !p->narrow ? run->sum.step : p->work.fast ? all : 8 * run->sum.step;
    const int64_t blocks = (to - from + step - 1) / step;
    float *block = o->sum + 2 * p->m;
    memset(sum, 0, (size_t)p->m * sizeof(*sum));
    for (int64_t turn = 0; turn < blocks; turn++) {
        const int64_t at = from + step * (run->sum.backward ? blocks - 1 - turn : turn);
        const int64_t end = at + step < to ? at + step : to;
        (p->narrow ? sum_block_narrow : sum_block)(o->a, o->b + j * p->k, p->m, at, end, block);
        for (int64_t i = 0; i < p->m; i++)
            sum[i] += block[i];
    }
}

/* Where part `part` of k begins; that of part `parts` is k. */
static int64_t sum_begin(const struct blas_run *run, int64_t part)
{
    const int64_t k = run->problem.k;
    const int64_t begin = (k + run->sum.parts - 1) / run->sum.parts * part;
    return begin < k ? begin : k;
}

/* The parts of a column; o->sum is their sum, or they are in the workspace. */
static void sum_column(const struct blas_run *run, const struct sum_operands *o, int64_t j)
{
    const struct blas_problem *p = &run->problem;
    float *part_sum = o->sum + p->m;
    memset(o->sum, 0, (size_t)p->m * sizeof(*o->sum));
    for (int64_t part = 0; part < run->sum.parts; part++) {
        sum_part(run, o, j, sum_begin(run, part), sum_begin(run, part + 1), part_sum);
        const int64_t at = (part * p->n + j) * p->m;
        for (int64_t i = 0; i < p->m; i++) {
            if (run->sum.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
                sum_store(CUDA_R_32F, run->workspace, at + i, part_sum[i]);
            else if (run->sum.scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)
                sum_store(p->d.type, run->workspace, at + i, part_sum[i]);
            else if (run->sum.scheme == CUBLASLT_REDUCTION_SCHEME_INPLACE)
                o->sum[i] = sum_rounded(p->d.type, o->sum[i] + part_sum[i]);
            else
                o->sum[i] += part_sum[i];
        }
    }
}

static bool sum_is_apart(const struct blas_run *run)
{
    return run->sum.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ||
           run->sum.scheme == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
}

/* o->sum from the workspace. */
static void sum_reduce(const struct blas_run *run, const struct sum_operands *o, int64_t j)
{
    const struct blas_problem *p = &run->problem;
    const cudaDataType_t type =
        run->sum.scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? CUDA_R_32F : p->d.type;
    for (int64_t i = 0; i < p->m; i++) {
        o->sum[i] = 0;
        for (int64_t part = 0; part < run->sum.parts; part++)
            o->sum[i] += sum_load(type, run->workspace, (part * p->n + j) * p->m + i);
    }
}

/* ---- epilogues ------------------------------------------------------------------------------- */

#define SUM_GELU_FACTOR 0.7978845608028654f /* sqrt(2 / pi) */
#define SUM_GELU_CUBE   0.044715f

static float sum_gelu(float x)
{
    return 0.5f * x * (1 + tanhf(SUM_GELU_FACTOR * (x + SUM_GELU_CUBE * x * x * x)));
}

static float sum_gelu_slope(float x)
{
    const float t = tanhf(SUM_GELU_FACTOR * (x + SUM_GELU_CUBE * x * x * x));
    const float inner = SUM_GELU_FACTOR * (1 + 3 * SUM_GELU_CUBE * x * x);
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * inner;
}

/* x is the sum, scaled, with C; row i of column j. */
static float sum_finish(const struct blas_problem *p, float x, int64_t i, int64_t j)
{
    const struct blas_work *w = &p->work;
    if (w->epilogue & CUBLASLT_EPILOGUE_BIAS)
        x += sum_load(p->bias_type, w->bias, i);
    if (w->epilogue & CUBLASLT_EPILOGUE_RELU)
        x = x > 0 || isnan(x) ? x : 0;
    if (w->epilogue & CUBLASLT_EPILOGUE_GELU) {
        sum_store(p->d.type, w->aux, i + j * w->aux_stride, x);
        x = sum_gelu(x);
    }
    if (w->epilogue == CUBLASLT_EPILOGUE_DGELU)
        x *= sum_gelu_slope(sum_load(p->d.type, w->aux, i + j * w->aux_stride));
    return x;
}

static void sum_put(const struct blas_run *run, const struct sum_operands *o, int64_t j)
{
    const struct blas_problem *p = &run->problem;
    const struct blas_work *w = &p->work;
    float scale = run->alpha;
    scale *= w->scale_a != NULL ? *w->scale_a : 1;
    scale *= w->scale_b != NULL ? *w->scale_b : 1;
    for (int64_t i = 0; i < p->m; i++) {
        float x = scale * o->sum[i];
        if (run->beta != 0)
            x += run->beta * sum_load(p->c.type, run->c, i + j * p->c.stride);
        sum_store(p->d.type, run->d, i + j * p->d.stride, sum_finish(p, x, i, j));
    }
    if (w->epilogue != CUBLASLT_EPILOGUE_BGRADB)
        return;
    float total = 0;
    for (int64_t part = 0; part < run->sum.parts; part++) {
        float sum = 0;
        for (int64_t k = sum_begin(run, part); k < sum_begin(run, part + 1); k++)
            sum += o->b[j * p->k + k];
        total += sum;
    }
    sum_store(p->bias_type, w->bias, j, total);
}

void blas_multiply(const struct blas_run *run)
{
    const struct blas_problem *p = &run->problem;
    struct sum_operands operands;
    if (!sum_open(p, run->a, run->b, &operands))
        madeup_fail("cublasLtMatmul: no memory for the host's copy of the operands");
    if (run->workspace_bytes > 0) /* what others left there, or have there, is lost */
        memset(run->workspace, 0xff, run->workspace_bytes);
    for (int64_t j = 0; j < p->n; j++) {
        sum_column(run, &operands, j);
        if (!sum_is_apart(run))
            sum_put(run, &operands, j);
    }
    for (int64_t j = 0; j < p->n && sum_is_apart(run); j++) {
        sum_reduce(run, &operands, j);
        sum_put(run, &operands, j);
    }
    sum_close(&operands);
}
