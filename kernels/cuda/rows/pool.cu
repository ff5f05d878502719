/*
 * Max and average pooling. A thread makes 16 bytes of the channels of one pixel: of an output pixel
 * forward, of an input pixel backward, where it gathers from the windows that cover it, so that
 * sums have one order (that of the output pixels) and nothing is added atomically.
 *
 * Bytes: the larger image is read or written once (w an element), the smaller one and `which` are
 * read or written once; windows that overlap find their neighbours' pixels in the caches. Block x
 * is a line of pixels of one image, so that a thread divides twice, in 32 bits.
 */
#include "cuda/rows/rows.cuh"
#include "cuda/slots.h"

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

/* A thread's bytes of `which`. */
template <int piece> struct alignas(piece) pool_bytes {
    uint8_t at[piece];
};

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
    pool_bytes<piece> byte;
#pragma unroll
    for (int i = 0; i < piece; i++)
        byte.at[i] = s.relu && !(cuda_to_f32(greatest.at[i]) > 0.0f) ? TESS_POOL_NONE : position[i];
    if (s.aligned) {
        *reinterpret_cast<pool_bytes<piece> *>(which + out + here.at) = byte;
        return;
    }
    for (int i = 0; i < piece && here.at + i < s.channels; i++)
        which[out + here.at + i] = byte.at[i];
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

/* Those at `out`; TESS_POOL_NONE beyond the channels. */
template <int piece>
static __device__ __forceinline__ pool_bytes<piece> pool_which(const pool_shape &s,
                                                               const uint8_t *which, int64_t out,
                                                               int at)
{
    if (s.aligned)
        return *reinterpret_cast<const pool_bytes<piece> *>(which + out + at);
    pool_bytes<piece> byte;
#pragma unroll
    for (int i = 0; i < piece; i++)
        byte.at[i] = at + i < s.channels ? which[out + at + i] : TESS_POOL_NONE;
    return byte;
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
            pool_bytes<piece> byte;
            if (which)
                byte = pool_which<piece>(s, which, out, here.at);
            int position = (here.y + s.padding - oy * s.stride) * s.window + here.x + s.padding -
                           ox * s.stride;
#pragma unroll
            for (int i = 0; i < piece; i++)
                if (!which || byte.at[i] == position)
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

/* ---- slots ---------------------------------------------------------------------------------- */

/* launch(T(), shape, grid), with a thread for each piece of the output's pixels, or of the input's.
 */
template <typename Launch>
static enum tess_status pool_slot(const struct tess_op *op, const char *where, bool output,
                                  const void *from, const void *to, const void *which,
                                  const Launch &launch)
{
    const struct tess_op_desc *d = &op->desc;
    pool_shape s = {};
    s.height = (int)d->height;
    s.width = (int)d->width;
    s.channels = (int)d->in;
    s.out_height = (int)tess_op_output_size(d->height, d->window, d->stride, d->padding);
    s.out_width = (int)tess_op_output_size(d->width, d->window, d->stride, d->padding);
    s.window = d->window;
    s.stride = d->stride;
    s.padding = d->padding;
    s.relu = d->relu;
    const int64_t height = output ? s.out_height : s.height;
    const int64_t width = output ? s.out_width : s.width;
    cudaError_t error = cuda_by_dtype(d->dtype, [&](auto type) {
        typedef decltype(type) T;
        s.pieces = (int)cuda_blocks(s.channels, cuda_vec<T>::count);
        s.aligned = rows_aligned<T>(s.channels, from, to, which);
        return launch(
            type, s,
            dim3((unsigned)(d->rows * height), cuda_blocks(width * s.pieces, ROWS_THREADS)));
    });
    return tess__cuda_status(error, where);
}

enum tess_status tess__cuda_max_pool_forward(struct tess_op *op, const void *x, void *y,
                                             uint8_t *which)
{
    return pool_slot(op, "max_pool_forward", true, x, y, which,
                     [&](auto type, const pool_shape &s, dim3 grid) {
                         return CUDA_LAUNCH(pool_max_kernel<decltype(type)>, grid, ROWS_THREADS, 0,
                                            tess__cuda_stream(op->kernel), s, x, y, which);
                     });
}

enum tess_status tess__cuda_avg_pool_forward(struct tess_op *op, const void *x, void *y)
{
    return pool_slot(op, "avg_pool_forward", true, x, y, y,
                     [&](auto type, const pool_shape &s, dim3 grid) {
                         return CUDA_LAUNCH(pool_mean_kernel<decltype(type)>, grid, ROWS_THREADS, 0,
                                            tess__cuda_stream(op->kernel), s, x, y);
                     });
}

enum tess_status tess__cuda_max_pool_backward(struct tess_op *op, const void *dy,
                                              const uint8_t *which, void *dx)
{
    return pool_slot(op, "pool_backward", false, dy, dx, which,
                     [&](auto type, const pool_shape &s, dim3 grid) {
                         return CUDA_LAUNCH(pool_grad_kernel<decltype(type)>, grid, ROWS_THREADS, 0,
                                            tess__cuda_stream(op->kernel), s, dy, which, dx);
                     });
}

enum tess_status tess__cuda_avg_pool_backward(struct tess_op *op, const void *dy, void *dx)
{
    return tess__cuda_max_pool_backward(op, dy, NULL, dx);
}
