/*
 * The two copies that make a convolution of a product: windows of images to rows of a matrix, and
 * gradients of those rows back to images. The second gathers: each element of the image finds the
 * windows that hold it, so nothing is added by atomics and the order of the sum is fixed.
 */
#include "cuda/products/conv.h"

#include "cuda/launch.cuh"

#define CONV_THREADS 256
#define CONV_BLOCKS  ((int64_t)1 << 20) /* then threads take several pieces */

/* A piece of a row of channels: 16 bytes where the channels fill them, else one element. */
template <typename T, int N> struct alignas(sizeof(T) * N) conv_piece {
    T at[N];
};

/* Counts up to an image's windows are below 2^31: 32-bit division is several times faster. */
struct conv_place {
    uint32_t piece, kx, ky, ox, oy;
};

static __device__ __forceinline__ conv_place conv_place_of(uint32_t i, uint32_t pieces,
                                                           const cuda_windows &w)
{
    conv_place p;
    p.piece = i % pieces;
    i /= pieces;
    p.kx = i % (uint32_t)w.window;
    i /= (uint32_t)w.window;
    p.ky = i % (uint32_t)w.window;
    i /= (uint32_t)w.window;
    p.ox = i % (uint32_t)w.out_width;
    p.oy = i / (uint32_t)w.out_width;
    return p;
}

/* Element type: any of the width, since bits are only moved; all zero bits are +0. */
template <typename T, int N>
static __global__ void __launch_bounds__(CONV_THREADS)
    conv_windows(cuda_windows w, const T *x, T *columns)
{
    const uint32_t pieces = (uint32_t)w.channels / N;
    const int64_t of_image =
        (int64_t)w.out_height * w.out_width * w.window * w.window * (int64_t)pieces;
    const int64_t total = w.images * of_image, step = gridDim.x * (int64_t)CONV_THREADS;
    for (int64_t i = blockIdx.x * (int64_t)CONV_THREADS + cuda_thread(); i < total; i += step) {
        const int64_t image = i / of_image;
        const conv_place p = conv_place_of((uint32_t)(i - image * of_image), pieces, w);
        const int32_t y = (int32_t)(p.oy * w.stride + p.ky) - w.padding;
        const int32_t column = (int32_t)(p.ox * w.stride + p.kx) - w.padding;
        conv_piece<T, N> piece = {};
        if (y >= 0 && y < w.height && column >= 0 && column < w.width)
            piece = *reinterpret_cast<const conv_piece<T, N> *>(
                x + (((image * w.height + y) * w.width + column) * w.channels + p.piece * N));
        *reinterpret_cast<conv_piece<T, N> *>(columns + i * N) = piece;
    }
}

/*
 * Row y of the image is row ky of the window at oy where oy stride + ky = y + padding; the same for
 * columns.
 */
template <typename T, int N>
static __global__ void __launch_bounds__(CONV_THREADS)
    conv_gather(cuda_windows w, const float *columns, T *dx)
{
    const uint32_t pieces = (uint32_t)w.channels / N;
    const int64_t of_image = (int64_t)w.height * w.width * (int64_t)pieces;
    const int64_t total = w.images * of_image, step = gridDim.x * (int64_t)CONV_THREADS;
    for (int64_t i = blockIdx.x * (int64_t)CONV_THREADS + cuda_thread(); i < total; i += step) {
        const int64_t image = i / of_image;
        uint32_t at = (uint32_t)(i - image * of_image);
        const uint32_t piece = at % pieces;
        at /= pieces;
        const int32_t across = (int32_t)(at % (uint32_t)w.width) + w.padding;
        const int32_t down = (int32_t)(at / (uint32_t)w.width) + w.padding;
        float sum[N] = {};
        for (int32_t ky = 0; ky < w.window; ky++) {
            const int32_t oy = (down - ky) / w.stride;
            if (down < ky || (down - ky) % w.stride != 0 || oy >= w.out_height)
                continue;
            for (int32_t kx = 0; kx < w.window; kx++) {
                const int32_t ox = (across - kx) / w.stride;
                if (across < kx || (across - kx) % w.stride != 0 || ox >= w.out_width)
                    continue;
                const int64_t row = (image * w.out_height + oy) * w.out_width + ox;
                const int64_t cell = (row * w.window + ky) * w.window + kx;
                const conv_piece<float, N> term = *reinterpret_cast<const conv_piece<float, N> *>(
                    columns + cell * w.channels + piece * N);
#pragma unroll
                for (int j = 0; j < N; j++)
                    sum[j] += term.at[j];
            }
        }
        conv_piece<T, N> result;
#pragma unroll
        for (int j = 0; j < N; j++)
            result.at[j] = cuda_from_f32<T>(sum[j]);
        *reinterpret_cast<conv_piece<T, N> *>(dx + i * N) = result;
    }
}

/* ---- launchers ------------------------------------------------------------------------------ */

static unsigned conv_blocks(int64_t pieces)
{
    const int64_t blocks = (pieces + CONV_THREADS - 1) / CONV_THREADS;
    return (unsigned)(blocks < CONV_BLOCKS ? blocks : CONV_BLOCKS);
}

/* N elements fill 16 bytes: do the channels come in so many, and do both arrays begin there? */
template <typename T>
static cudaError_t conv_launch_windows(cudaStream_t stream, const struct cuda_windows *w,
                                       const void *x, void *columns)
{
    constexpr int wide = 16 / (int)sizeof(T);
    const bool whole = w->channels % wide == 0 && cuda_aligned16(x) && cuda_aligned16(columns);
    const int64_t pieces = w->images * w->out_height * w->out_width * w->window * w->window *
                           (w->channels / (whole ? wide : 1));
    return CUDA_LAUNCH((whole ? conv_windows<T, wide> : conv_windows<T, 1>), conv_blocks(pieces),
                       CONV_THREADS, 0, stream, *w, x, columns);
}

cudaError_t tess__cuda_conv_windows(cudaStream_t stream, enum tess_dtype dtype,
                                    const struct cuda_windows *windows, const void *x,
                                    void *columns)
{
    return dtype == TESS_F32 ? conv_launch_windows<uint32_t>(stream, windows, x, columns)
                             : conv_launch_windows<uint16_t>(stream, windows, x, columns);
}

/* Four elements are 16 bytes of f32 and 8 of the others. */
cudaError_t tess__cuda_conv_gather(cudaStream_t stream, enum tess_dtype dtype,
                                   const struct cuda_windows *w, const float *columns, void *dx)
{
    const bool whole = w->channels % 4 == 0 && cuda_aligned16(dx) && cuda_aligned16(columns);
    const int64_t pieces = w->images * w->height * w->width * (w->channels / (whole ? 4 : 1));
    return cuda_by_dtype(dtype, [&](auto type) {
        typedef decltype(type) T;
        return CUDA_LAUNCH((whole ? conv_gather<T, 4> : conv_gather<T, 1>), conv_blocks(pieces),
                           CONV_THREADS, 0, stream, *w, columns, dx);
    });
}
