#include "device/madeup/blas_case.h"

#include "base/half.h"
#include "ref/fp8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

cublasLtHandle_t handle;
cudaStream_t stream;
void *workspace;

/* ---- memory and numbers ---------------------------------------------------------------------- */

void put(void *target, const void *source, size_t bytes)
{
    CUDA(cudaMemcpyAsync(target, source, bytes, cudaMemcpyHostToDevice, stream));
    CUDA(cudaStreamSynchronize(stream));
}

void get(void *target, const void *source, size_t bytes)
{
    CUDA(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
}

static uint64_t word_of(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

size_t bytes_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 1;
}

static double value_of(cudaDataType_t type, const void *memory, int64_t at)
{
    const uint8_t *byte = (const uint8_t *)memory + (size_t)at * bytes_of(type);
    uint16_t half;
    float value;
    memcpy(&half, byte, bytes_of(type) == 1 ? 1 : 2);
    if (type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2)
        return (double)tess__f32_of_fp8(type == CUDA_R_8F_E4M3 ? TESS_FP8_E4M3 : TESS_FP8_E5M2,
                                        *byte);
    if (type != CUDA_R_32F)
        return (double)(type == CUDA_R_16F ? tess__f32_of_f16(half) : tess__f32_of_bf16(half));
    memcpy(&value, byte, sizeof(value));
    return (double)value;
}

static void store(cudaDataType_t type, void *memory, int64_t at, float value)
{
    uint8_t *byte = (uint8_t *)memory + (size_t)at * bytes_of(type);
    if (bytes_of(type) == 1) {
        *byte = tess__fp8_of_f32(type == CUDA_R_8F_E4M3 ? TESS_FP8_E4M3 : TESS_FP8_E5M2, value);
    } else if (bytes_of(type) == 2) {
        const uint16_t half =
            type == CUDA_R_16F ? tess__f16_of_f32(value) : tess__bf16_of_f32(value);
        memcpy(byte, &half, sizeof(half));
    } else {
        memcpy(byte, &value, sizeof(value));
    }
}

/* ---- one product ----------------------------------------------------------------------------- */

static bool is_narrow(const struct product *p)
{
    return bytes_of(p->a) == 1;
}

static bool has_bias(const struct product *p)
{
    return (p->epilogue & CUBLASLT_EPILOGUE_BIAS) || p->epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static bool has_aux(const struct product *p)
{
    return p->epilogue & 128;
}

static struct array array_open(cudaDataType_t type, int64_t count, uint64_t seed)
{
    struct array array = {.bytes = (size_t)count * bytes_of(type)};
    array.host = malloc(array.bytes);
    for (int64_t i = 0; i < count; i++)
        store(type, array.host, i, (float)((double)word_of(&seed) * 0x1p-30 - 1));
    CUDA(cudaMalloc(&array.device, array.bytes));
    put(array.device, array.host, array.bytes);
    return array;
}

void set(struct open *o, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    BLAS(cublasLtMatmulDescSetAttribute(o->work, attribute, value, bytes));
}

static void open_work(struct open *o)
{
    const struct product *p = &o->p;
    const int32_t turn_a = p->turn_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t turn_b = p->turn_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int32_t bias_type = p->bias;
    const int64_t aux_stride = p->m + p->aux_gap;
    BLAS(cublasLtMatmulDescCreate(&o->work, p->compute, CUDA_R_32F));
    set(o, CUBLASLT_MATMUL_DESC_TRANSA, &turn_a, sizeof(turn_a));
    set(o, CUBLASLT_MATMUL_DESC_TRANSB, &turn_b, sizeof(turn_b));
    set(o, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof(p->epilogue));
    if (has_bias(p)) {
        set(o, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof(bias_type));
        set(o, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &o->at[BIAS].device, sizeof(void *));
    }
    if (has_aux(p)) {
        set(o, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_stride, sizeof(aux_stride));
        set(o, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &o->at[AUX].device, sizeof(void *));
    }
    if (is_narrow(p)) {
        set(o, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &o->at[SCALE_A].device, sizeof(void *));
        set(o, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &o->at[SCALE_B].device, sizeof(void *));
    }
}

struct open open_product(const struct product *p)
{
    struct open o = {.p = *p};
    const int64_t rows[3] = {p->turn_a ? p->k : p->m, p->turn_b ? p->n : p->k, p->m};
    const int64_t columns[3] = {p->turn_a ? p->m : p->k, p->turn_b ? p->k : p->n, p->n};
    const cudaDataType_t type[3] = {p->a, p->b, p->d};
    for (int i = 0; i < 3; i++) {
        o.stride[i] = rows[i] + p->gap;
        o.at[i] = array_open(type[i], o.stride[i] * columns[i], (uint64_t)i + 7);
        BLAS(cublasLtMatrixLayoutCreate(&o.layout[i], type[i], (uint64_t)rows[i],
                                        (uint64_t)columns[i], o.stride[i]));
    }
    o.at[BIAS] = array_open(p->bias, p->m > p->n ? p->m : p->n, 11);
    o.at[AUX] = array_open(p->d, (p->m + p->aux_gap) * p->n, 12);
    o.at[SCALE_A] = array_open(CUDA_R_32F, 1, 13);
    o.at[SCALE_B] = array_open(CUDA_R_32F, 1, 14);
    open_work(&o);
    return o;
}

void close_product(struct open *o)
{
    for (int i = 0; i < 3; i++)
        BLAS(cublasLtMatrixLayoutDestroy(o->layout[i]));
    BLAS(cublasLtMatmulDescDestroy(o->work));
    for (int i = 0; i < ARRAYS; i++) {
        free(o->at[i].host);
        CUDA(cudaFree(o->at[i].device));
    }
}

cublasStatus_t ask(const struct open *o, uint32_t schemes, uint64_t workspace_bytes,
                   cublasLtMatmulHeuristicResult_t *results, int *count)
{
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreference_t wish;
    BLAS(cublasLtMatmulPreferenceCreate(&wish));
    BLAS(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &workspace_bytes, sizeof(workspace_bytes)));
    BLAS(cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                              &schemes, sizeof(schemes)));
    for (int i = 0; i < 4 && o->p.align > 0; i++)
        BLAS(cublasLtMatmulPreferenceSetAttribute(wish, aligned[i], &o->p.align,
                                                  sizeof(o->p.align)));
    *count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, o->work, o->layout[A], o->layout[B], o->layout[D],
                                       o->layout[D], wish, CANDIDATES, results, count);
    BLAS(cublasLtMatmulPreferenceDestroy(wish));
    return status;
}

cublasStatus_t check(const struct open *o, const cublasLtMatmulAlgo_t *algorithm, size_t *bytes_out)
{
    cublasLtMatmulHeuristicResult_t result = {.workspaceSize = 0};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle, o->work, o->layout[A], o->layout[B], o->layout[D],
                                o->layout[D], algorithm, &result);
    *bytes_out = result.workspaceSize;
    return status;
}

cublasStatus_t run(const struct open *o, const cublasLtMatmulAlgo_t *algorithm, void *scratch,
                   size_t scratch_bytes)
{
    const float alpha = 1;
    return cublasLtMatmul(handle, o->work, &alpha, o->at[A].device, o->layout[A], o->at[B].device,
                          o->layout[B], &o->p.beta, o->at[D].device, o->layout[D], o->at[D].device,
                          o->layout[D], algorithm, scratch, scratch_bytes, stream);
}

/* The first algorithm that runs. */
cublasLtMatmulAlgo_t working(const struct open *o)
{
    cublasLtMatmulHeuristicResult_t result[CANDIDATES];
    int count;
    size_t bytes;
    BLAS(ask(o, 0, 0, result, &count));
    for (int i = 0; i < count; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS &&
            check(o, &result[i].algo, &bytes) == CUBLAS_STATUS_SUCCESS &&
            run(o, &result[i].algo, NULL, 0) == CUBLAS_STATUS_SUCCESS)
            return result[i].algo;
    fail_msg("no algorithm runs");
    abort();
}

/* ---- expected -------------------------------------------------------------------------------- */

static double gelu(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

/* Half a unit in the last place, relatively. */
static double unit_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 0x1p-24 : type == CUDA_R_16F ? 0x1p-11 : 0x1p-8;
}

static double operand(const struct open *o, int which, int64_t outer, int64_t inner)
{
    const bool inner_first = which == A ? o->p.turn_a : !o->p.turn_b;
    const int64_t at =
        inner_first ? inner + outer * o->stride[which] : outer + inner * o->stride[which];
    return value_of(which == A ? o->p.a : o->p.b, o->at[which].host, at);
}

/* D(i, j) before the epilogue, and what may be wrong with it. */
static double plain_sum(const struct open *o, int64_t i, int64_t j, double *off)
{
    const struct product *p = &o->p;
    double sum = 0, magnitude = 0;
    for (int64_t k = 0; k < p->k; k++) {
        const double term = operand(o, A, i, k) * operand(o, B, j, k);
        sum += term;
        magnitude += fabs(term);
    }
    if (is_narrow(p)) {
        const double scale = value_of(CUDA_R_32F, o->at[SCALE_A].host, 0) *
                             value_of(CUDA_R_32F, o->at[SCALE_B].host, 0);
        sum *= scale;
        magnitude *= fabs(scale);
    }
    const double c = (double)p->beta * value_of(p->d, o->at[D].host, i + j * o->stride[D]);
    const double unit = p->compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? 0x1p-10
                        : is_narrow(p)                             ? 0x1p-13 * (double)(p->k + 8)
                                                                   : 0;
    magnitude += fabs(c);
    /* Parts that are rounded to D's type; 8 of them at most. */
    *off = magnitude * (unit + (double)(p->k + 8) * 0x1p-23 + 8 * unit_of(p->d));
    return sum + c;
}

void expect_bias_gradient(const struct open *o, const void *bias)
{
    const struct product *p = &o->p;
    for (int64_t j = 0; j < p->n; j++) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < p->k; k++) {
            sum += operand(o, B, j, k);
            magnitude += fabs(operand(o, B, j, k));
        }
        const double got = value_of(p->bias, bias, j);
        assert_true(fabs(got - sum) <=
                    magnitude * (double)(p->k + 2) * 0x1p-23 + 2 * unit_of(p->bias) * fabs(sum));
    }
}

void expect_results(const struct open *o, const void *d, const void *aux)
{
    const struct product *p = &o->p;
    for (int64_t j = 0; j < p->n; j++)
        for (int64_t i = 0; i < p->m; i++) {
            double off, x = plain_sum(o, i, j, &off);
            const double saved = value_of(p->d, aux, i + j * (p->m + p->aux_gap));
            if (p->epilogue & CUBLASLT_EPILOGUE_BIAS)
                x += value_of(p->bias, o->at[BIAS].host, i);
            off += 2 * unit_of(p->d) * (fabs(x) + 1);
            if (p->epilogue & CUBLASLT_EPILOGUE_GELU) {
                assert_true(fabs(saved - x) <= off);
                x = gelu(x);
            }
            if (p->epilogue & CUBLASLT_EPILOGUE_RELU)
                x = fmax(x, 0);
            if (p->epilogue == CUBLASLT_EPILOGUE_DGELU)
                x *= (gelu(saved + 1e-5) - gelu(saved - 1e-5)) / 2e-5;
            const double got = value_of(p->d, d, i + j * o->stride[D]);
            if (!(fabs(got - x) <= 2 * off))
                fail_msg("(%lld, %lld) is %g, not %g; allowed are %g", (long long)i, (long long)j,
                         got, x, 2 * off);
        }
}

/* Gaps between columns stay as they were. */
void expect_gaps(const struct open *o, const char *d)
{
    const size_t word = bytes_of(o->p.d);
    for (int64_t j = 0; j + 1 < o->p.n; j++) {
        const size_t at = (size_t)(j * o->stride[D] + o->p.m) * word;
        assert_memory_equal(d + at, (const char *)o->at[D].host + at, (size_t)o->p.gap * word);
    }
}
