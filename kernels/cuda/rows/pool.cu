/*
 * Max and average pooling. A thread makes 16 bytes of the channels of one pixel: of an output pixel
 * forward, of an input pixel backward, where it gathers from the windows that cover it, so that
 * sums have one order (that of the output pixels) and nothing is added atomically.
 *
 * Bytes: the larger image is read or written once (w an element), the smaller one and `which` are
 * read or written once; windows that overlap find their neighbours' pixels in the caches. Block x
 * is a line of pixels of one image, so that a thread divides twice, in 32 bits.
 */
#include "cuda/rows/launch_rows.h"

#include "cuda/launch.cuh"
#include "cuda/rows/rows.cuh"
#include "tessera/kernel.h"

struct pool_shape {
    int height, width, channels, out_height, out_width, window, stride, padding, pieces;
    bool relu, aligned;
};

/* This thread's pixel of a line, and its channels. */
struct pool_place {
    int64_t image;
    int y, x, at;
    bool inside;
};

static __device__ __forceinline__ pool_place pool_here(const pool_shape &s, int height, int width,
                                                       int piece)
{
    unsigned i = blockIdx.y * blockDim.x + threadIdx.x, line = blockIdx.x;
    pool_place here;
    here.image = line / (unsigned)height;
    here.y = (int)(line % (unsigned)height);
    here.x = (int)(i / (unsigned)s.pieces);
    here.at = (int)(i % (unsigned)s.pieces) * piece;
    here.inside = here.x < width;
    return here;
}

/* Element of pixel (y, x) of image `image`, channel 0. */
static __device__ __forceinline__ int64_t pool_pixel(const pool_shape &s, int64_t image, int height,
                                                     int width, int y, int x)
{
    return ((image * height + y) * width + x) * s.channels;
}

/* The window of output line or column `out`: input positions [begin, end), of which the first one
 * is window position `skip`. */
static __device__ __forceinline__ void pool_range(const pool_shape &s, int out, int size,
                                                  int &begin, int &end)
{
    begin = out * s.stride - s.padding;
    end = begin + s.window < size ? begin + s.window : size;
    begin = begin > 0 ? begin : 0;
}

/* The output lines or columns [begin, end) whose windows cover input position `in`. */
static __device__ __forceinline__ void pool_cover(const pool_shape &s, int in, int out_size,
                                                  int &begin, int &end)
{
    int low = in + s.padding - s.window + 1, last = (in + s.padding) / s.stride;
    begin = low > 0 ? (low + s.stride - 1) / s.stride : 0;
    end = last + 1 < out_size ? last + 1 : out_size;
}

/* ---- forward -------------------------------------------------------------------------------- */

/* Positions come in order, and only a greater element takes the place of the first. */
template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS)
    pool_max_kernel(pool_shape s, const T *x, T *y, uint8_t *which)
{
    constexpr int piece = cuda_vec<T>::count;
    pool_place here = pool_here(s, s.out_height, s.out_width, piece);
    if (!here.inside)
        return;
    int top, bottom, left, right;
    pool_range(s, here.y, s.height, top, bottom);
    pool_range(s, here.x, s.width, left, right);
    int corner = (here.y * s.stride - s.padding) * s.window + here.x * s.stride - s.padding;
    cuda_vec<T> greatest = {};
    int position[piece] = {};
    bool first = true;
    for (int iy = top; iy < bottom; iy++) {
        for (int ix = left; ix < right; ix++) {
            cuda_vec<T> v = rows_load(x + pool_pixel(s, here.image, s.height, s.width, iy, ix),
                                      here.at, s.channels, s.aligned);
#pragma unroll
            for (int i = 0; i < piece; i++) {
                if (first || cuda_to_f32(v.at[i]) > cuda_to_f32(greatest.at[i])) {
                    greatest.at[i] = v.at[i];
                    position[i] = iy * s.window + ix - corner;
                }
            }
            first = false;
        }
    }
    int64_t out = pool_pixel(s, here.image, s.out_height, s.out_width, here.y, here.x);
    rows_store(y + out, here.at, s.channels, s.aligned, greatest);
    alignas(8) uint8_t byte[piece];
#pragma unroll
    for (int i = 0; i < piece; i++)
        byte[i] = s.relu && !(cuda_to_f32(greatest.at[i]) > 0.0f) ? TESS_POOL_NONE : position[i];
    if (s.aligned) {
        if constexpr (piece == 8)
            *reinterpret_cast<uint2 *>(which + out + here.at) = *reinterpret_cast<uint2 *>(byte);
        else
            *reinterpret_cast<unsigned *>(which + out + here.at) =
                *reinterpret_cast<unsigned *>(byte);
        return;
    }
    for (int i = 0; i < piece && here.at + i < s.channels; i++)
        which[out + here.at + i] = byte[i];
}

template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS)
    pool_mean_kernel(pool_shape s, const T *x, T *y)
{
    constexpr int piece = cuda_vec<T>::count;
    pool_place here = pool_here(s, s.out_height, s.out_width, piece);
    if (!here.inside)
        return;
    int top, bottom, left, right;
    pool_range(s, here.y, s.height, top, bottom);
    pool_range(s, here.x, s.width, left, right);
    float sum[piece] = {}, area = (float)(s.window * s.window);
    for (int iy = top; iy < bottom; iy++) {
#pragma unroll 4
        for (int ix = left; ix < right; ix++) {
            cuda_vec<T> v = rows_load(x + pool_pixel(s, here.image, s.height, s.width, iy, ix),
                                      here.at, s.channels, s.aligned);
#pragma unroll
            for (int i = 0; i < piece; i++)
                sum[i] += cuda_to_f32(v.at[i]);
        }
    }
    cuda_vec<T> mean;
#pragma unroll
    for (int i = 0; i < piece; i++)
        mean.at[i] = cuda_from_f32<T>(sum[i] / area);
    rows_store(y + pool_pixel(s, here.image, s.out_height, s.out_width, here.y, here.x), here.at,
               s.channels, s.aligned, mean);
}

/* ---- backward ------------------------------------------------------------------------------- */

/* A thread's bytes of `which` at `out`; TESS_POOL_NONE beyond the channels. */
template <int piece>
static __device__ __forceinline__ void pool_which(const pool_shape &s, const uint8_t *which,
                                                  int64_t out, int at, uint8_t (&byte)[piece])
{
    if (s.aligned) {
        if constexpr (piece == 8)
            *reinterpret_cast<uint2 *>(byte) = *reinterpret_cast<const uint2 *>(which + out + at);
        else
            *reinterpret_cast<unsigned *>(byte) =
                *reinterpret_cast<const unsigned *>(which + out + at);
        return;
    }
#pragma unroll
    for (int i = 0; i < piece; i++)
        byte[i] = at + i < s.channels ? which[out + at + i] : TESS_POOL_NONE;
}

/* which NULL: of the mean. */
template <typename T>
static __global__ void __launch_bounds__(ROWS_THREADS)
    pool_grad_kernel(pool_shape s, const T *dy, const uint8_t *which, T *dx)
{
    constexpr int piece = cuda_vec<T>::count;
    pool_place here = pool_here(s, s.height, s.width, piece);
    if (!here.inside)
        return;
    int top, bottom, left, right;
    pool_cover(s, here.y, s.out_height, top, bottom);
    pool_cover(s, here.x, s.out_width, left, right);
    float sum[piece] = {}, area = which ? 1.0f : (float)(s.window * s.window);
    for (int oy = top; oy < bottom; oy++) {
        for (int ox = left; ox < right; ox++) {
            int64_t out = pool_pixel(s, here.image, s.out_height, s.out_width, oy, ox);
            cuda_vec<T> v = rows_load(dy + out, here.at, s.channels, s.aligned);
            alignas(8) uint8_t byte[piece];
            if (which)
                pool_which(s, which, out, here.at, byte);
            int position = (here.y + s.padding - oy * s.stride) * s.window + here.x + s.padding -
                           ox * s.stride;
#pragma unroll
            for (int i = 0; i < piece; i++)
                if (!which || byte[i] == position)
                    sum[i] += cuda_to_f32(v.at[i]);
        }
    }
    cuda_vec<T> grad;
#pragma unroll
    for (int i = 0; i < piece; i++)
        grad.at[i] = cuda_from_f32<T>(sum[i] / area);
    rows_store(dx + pool_pixel(s, here.image, s.height, s.width, here.y, here.x), here.at,
               s.channels, s.aligned, grad);
}

/* ---- launchers ------------------------------------------------------------------------------ */

template <typename T>
static pool_shape pool_shape_of(const struct tess__cuda_pool *p, const T *a, const T *b)
{
    constexpr int piece = cuda_vec<T>::count;
    return {p->height,
            p->width,
            p->channels,
            p->out_height,
            p->out_width,
            p->window,
            p->stride,
            p->padding,
            (p->channels + piece - 1) / piece,
            p->relu,
            rows_aligned(a, p->channels) && rows_aligned(b, p->channels)};
}

/* Blocks for images of `height` lines of `width` pixels. */
static dim3 pool_grid(const struct tess__cuda_pool *p, const pool_shape &s, int height, int width)
{
    int64_t threads = (int64_t)width * s.pieces;
    return dim3((unsigned)(p->images * height),
                (unsigned)((threads + ROWS_THREADS - 1) / ROWS_THREADS), 1);
}

extern "C" cudaError_t tess__cuda_launch_max_pool_forward(cudaStream_t stream,
                                                          const struct tess__cuda_pool *pool,
                                                          const void *x, void *y, uint8_t *which)
{
    return cuda_by_dtype(pool->dtype, [&](auto type) {
        typedef typename decltype(type)::type T;
        const T *from = static_cast<const T *>(x);
        T *to = static_cast<T *>(y);
        pool_shape s = pool_shape_of(pool, from, to);
        s.aligned = s.aligned && cuda_aligned16(which);
        return CUDA_LAUNCH(pool_max_kernel<T>, pool_grid(pool, s, s.out_height, s.out_width),
                           dim3(ROWS_THREADS), 0, stream, s, from, to, which);
    });
}

extern "C" cudaError_t tess__cuda_launch_avg_pool_forward(cudaStream_t stream,
                                                          const struct tess__cuda_pool *pool,
                                                          const void *x, void *y)
{
    return cuda_by_dtype(pool->dtype, [&](auto type) {
        typedef typename decltype(type)::type T;
        const T *from = static_cast<const T *>(x);
        T *to = static_cast<T *>(y);
        pool_shape s = pool_shape_of(pool, from, to);
        return CUDA_LAUNCH(pool_mean_kernel<T>, pool_grid(pool, s, s.out_height, s.out_width),
                           dim3(ROWS_THREADS), 0, stream, s, from, to);
    });
}

extern "C" cudaError_t tess__cuda_launch_max_pool_backward(cudaStream_t stream,
                                                           const struct tess__cuda_pool *pool,
                                                           const void *dy, const uint8_t *which,
                                                           void *dx)
{
    return cuda_by_dtype(pool->dtype, [&](auto type) {
        typedef typename decltype(type)::type T;
        const T *from = static_cast<const T *>(dy);
        T *to = static_cast<T *>(dx);
        pool_shape s = pool_shape_of(pool, from, to);
        s.aligned = s.aligned && cuda_aligned16(which);
        return CUDA_LAUNCH(pool_grad_kernel<T>, pool_grid(pool, s, s.height, s.width),
                           dim3(ROWS_THREADS), 0, stream, s, from, which, to);
    });
}

extern "C" cudaError_t tess__cuda_launch_avg_pool_backward(cudaStream_t stream,
                                                           const struct tess__cuda_pool *pool,
                                                           const void *dy, void *dx)
{
    return tess__cuda_launch_max_pool_backward(stream, pool, dy, NULL, dx);
}
