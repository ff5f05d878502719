/*
 * Narrowing to 8 bits: the greatest magnitude of a tensor, the scale from it, and elements times
 * the scale as e4m3 or e5m2 (Micikevicius et al. 2022, "FP8 formats for deep learning"), as they
 * lie or turned. The same rules as kernels/ref/fp8.h.
 */
#include "cuda/products/launch_fp8.h"

#include "cuda/launch.cuh"

#include <cuda_fp8.h>

#define FP8_THREADS 256
#define FP8_BLOCKS  1024 /* some waves on any device: one atomic each */
#define FP8_TILE    64   /* rows and columns; 16 elements for each thread */
#define FP8_STRIDE  80   /* bytes from one column of a turned tile to the next: 16-byte aligned */

/* Bits of |x|; 0 where x is not finite. As integers they have the order of the numbers. */
static __device__ __forceinline__ uint32_t fp8_magnitude(float x)
{
    const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
    return bits < 0x7f800000u ? bits : 0u;
}

/* The block's greatest, into *seen. Integers, so that the order does not matter. */
static __device__ __forceinline__ void fp8_see(uint32_t greatest, float *shared, uint32_t *seen)
{
    const float block = cuda_block_max(__uint_as_float(greatest), shared);
    if (cuda_thread() == 0 && block > 0.0f)
        atomicMax(seen, __float_as_uint(block));
}

/* x [count], in 16-byte pieces, then what is left. */
template <typename T>
static __global__ void __launch_bounds__(FP8_THREADS)
    fp8_greatest(int64_t count, const T *x, struct cuda_fp8_tensor *tensor)
{
    __shared__ float shared[CUDA_WARP];
    constexpr int width = cuda_vec<T>::count;
    const int64_t first = blockIdx.x * (int64_t)FP8_THREADS + cuda_thread();
    const int64_t step = gridDim.x * (int64_t)FP8_THREADS, pieces = count / width;
    uint32_t greatest = 0;
    for (int64_t i = first; i < pieces; i += step) {
        const cuda_vec<T> v = cuda_load(x + i * width);
#pragma unroll
        for (int j = 0; j < width; j++)
            greatest = max(greatest, fp8_magnitude(cuda_to_f32(v.at[j])));
    }
    for (int64_t i = pieces * width + first; i < count; i += step)
        greatest = max(greatest, fp8_magnitude(cuda_to_f32(x[i])));
    fp8_see(greatest, shared, &tensor->seen);
}

/*
 * The exponent of the greatest power of two that keeps `greatest` within the format. Both formats
 * end at 1.75 times a power of two, `top`: 448 = 1.75 2^8, 57344 = 1.75 2^15. The bounds keep the
 * scale and its inverse normal numbers.
 */
static __device__ __forceinline__ int fp8_exponent(uint32_t greatest, int top)
{
    if (greatest == 0)
        return 0;
    const int exponent = (int)(greatest >> 23) - 127;
    const int over = (greatest & 0x7fffffu) > 0x600000u; /* its fraction is above 1.75 */
    return min(max(top - exponent - over, -126), 126);
}

static __device__ __forceinline__ float fp8_power(int exponent)
{
    return __uint_as_float((uint32_t)(exponent + 127) << 23);
}

/* One thread: it is the order of calls that matters here. */
static __global__ void fp8_scale(int top, bool history, struct cuda_fp8_tensor *tensor)
{
    uint32_t greatest = tensor->seen;
    if (history) {
        if (tensor->pending) {
            tensor->history[tensor->calls % CUDA_FP8_HISTORY] = tensor->seen;
            /* Beyond the ring only the place in it matters. */
            tensor->calls =
                tensor->calls + 1 < 2 * CUDA_FP8_HISTORY ? tensor->calls + 1 : CUDA_FP8_HISTORY;
            greatest = 0;
            tensor->seen = 0;
        }
        for (int i = 0; i < CUDA_FP8_HISTORY && i < tensor->calls; i++)
            greatest = max(greatest, tensor->history[i]);
        tensor->pending = 1;
    } else {
        tensor->seen = 0;
    }
    const int exponent = fp8_exponent(greatest, top);
    tensor->scale = fp8_power(exponent);
    tensor->inverse = fp8_power(-exponent);
}

template <__nv_fp8_interpretation_t FORMAT>
static __device__ __forceinline__ uint8_t fp8_narrow_one(float x, float scale)
{
    /* What overflows here is finite and saturates; NaN in both formats is 0x7f, sign and all. */
    const bool finite = (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u;
    const uint8_t bits = __nv_cvt_float_to_fp8(x * scale, __NV_SATFINITE, FORMAT);
    return finite ? bits : (uint8_t)0x7f;
}

struct alignas(16) fp8_piece {
    uint8_t at[16];
};

/*
 * A tile of 64 x 64: thread t has 16 columns of row t / 4. Turned, it has 16 rows of column t / 4:
 *
 *     x      [64 rows, 4 pieces of 16 columns]     shared [64 columns, 4 pieces of 16 rows]
 */
template <typename T, __nv_fp8_interpretation_t FORMAT>
static __global__ void __launch_bounds__(FP8_THREADS)
    fp8_narrow(int64_t rows, int64_t columns, const T *x, struct cuda_fp8_tensor *tensor,
               bool watch, uint8_t *y, uint8_t *turned)
{
    __shared__ fp8_piece pieces[FP8_TILE * FP8_STRIDE / 16];
    uint8_t *const tile = pieces[0].at;
    __shared__ float shared[CUDA_WARP];
    constexpr int width = cuda_vec<T>::count;
    const int64_t across = (columns + FP8_TILE - 1) / FP8_TILE;
    const int64_t row_first = blockIdx.x / across * FP8_TILE;
    const int64_t column_first = blockIdx.x % across * FP8_TILE;
    const int line = cuda_thread() / 4, piece = cuda_thread() % 4 * 16;
    const float scale = tensor->scale;
    uint32_t greatest = 0;
    int64_t row = row_first + line, column = column_first + piece;
    if (row < rows && column < columns) {
        fp8_piece narrow;
#pragma unroll
        for (int i = 0; i < 16; i += width) {
            const cuda_vec<T> v = cuda_load(x + row * columns + column + i);
#pragma unroll
            for (int j = 0; j < width; j++) {
                const float value = cuda_to_f32(v.at[j]);
                greatest = max(greatest, fp8_magnitude(value));
                narrow.at[i + j] = fp8_narrow_one<FORMAT>(value, scale);
                tile[(piece + i + j) * FP8_STRIDE + line] = narrow.at[i + j];
            }
        }
        if (y)
            *reinterpret_cast<fp8_piece *>(y + row * columns + column) = narrow;
    }
    __syncthreads();
    column = column_first + line;
    row = row_first + piece;
    if (turned && row < rows && column < columns)
        *reinterpret_cast<fp8_piece *>(turned + column * rows + row) =
            *reinterpret_cast<const fp8_piece *>(tile + line * FP8_STRIDE + piece);
    if (watch)
        fp8_see(greatest, shared, &tensor->seen);
}

/* ---- launchers ------------------------------------------------------------------------------ */

/* f(T()) with the type T of the dtype: bf16 or f16. */
template <typename F> static cudaError_t fp8_by_dtype(enum tess_dtype dtype, F f)
{
    return dtype == TESS_BF16  ? f(__nv_bfloat16())
           : dtype == TESS_F16 ? f(__half())
                               : cudaErrorInvalidValue;
}

cudaError_t tess__cuda_fp8_greatest(cudaStream_t stream, enum tess_dtype dtype, int64_t count,
                                    const void *x, struct cuda_fp8_tensor *tensor)
{
    if (!cuda_aligned16(x))
        return cudaErrorInvalidValue;
    return fp8_by_dtype(dtype, [&](auto type) {
        typedef decltype(type) T;
        const int64_t blocks = cuda_blocks(count, (int64_t)FP8_THREADS * cuda_vec<T>::count);
        return CUDA_LAUNCH(fp8_greatest<T>, (unsigned)(blocks < FP8_BLOCKS ? blocks : FP8_BLOCKS),
                           FP8_THREADS, 0, stream, count, x, tensor);
    });
}

cudaError_t tess__cuda_fp8_scale(cudaStream_t stream, enum cuda_fp8_format format, bool history,
                                 struct cuda_fp8_tensor *tensor)
{
    const int top = format == CUDA_FP8_E4M3 ? 8 : 15;
    return CUDA_LAUNCH(fp8_scale, 1, 1, 0, stream, top, history, tensor);
}

cudaError_t tess__cuda_fp8_narrow(cudaStream_t stream, enum tess_dtype dtype,
                                  enum cuda_fp8_format format, int64_t rows, int64_t columns,
                                  const void *x, struct cuda_fp8_tensor *tensor, bool watch,
                                  uint8_t *y, uint8_t *y_turned)
{
    const int64_t tiles =
        ((rows + FP8_TILE - 1) / FP8_TILE) * ((columns + FP8_TILE - 1) / FP8_TILE);
    if (rows % 16 != 0 || columns % 16 != 0 || tiles > INT32_MAX || !cuda_aligned16(x))
        return cudaErrorInvalidValue;
    return fp8_by_dtype(dtype, [&](auto type) {
        typedef decltype(type) T;
        auto kernel = format == CUDA_FP8_E4M3 ? fp8_narrow<T, __NV_E4M3> : fp8_narrow<T, __NV_E5M2>;
        return CUDA_LAUNCH(kernel, (unsigned)tiles, FP8_THREADS, 0, stream, rows, columns, x,
                           tensor, watch, y, y_turned);
    });
}
