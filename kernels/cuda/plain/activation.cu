/* GELU, SwiGLU and rotary positions, in f32 and rounded once: equal to ref to a few units of f32.
 */
#include "cuda/plain/activation.cuh"
#include "cuda/plain/pointwise.cuh"

struct activation_gelu_forward {
    __device__ void operator()(const float (&in)[1], float (&out)[1]) const
    {
        out[0] = activation_gelu(in[0]);
    }
};

struct activation_gelu_backward {
    __device__ void operator()(const float (&in)[2], float (&out)[1]) const
    {
        out[0] = in[1] * activation_gelu_slope(in[0]);
    }
};

struct activation_swiglu_forward {
    __device__ void operator()(const float (&in)[2], float (&out)[1]) const
    {
        out[0] = in[0] * activation_sigmoid(in[0]) * in[1];
    }
};

/* With s = sigmoid(g): the derivative of g s is s (1 + g (1 - s)). */
struct activation_swiglu_backward {
    __device__ void operator()(const float (&in)[3], float (&out)[2]) const
    {
        float g = in[0], up = in[1], dy = in[2], s = activation_sigmoid(g);
        out[0] = dy * up * (s * (1 + g * (1 - s)));
        out[1] = dy * (g * s);
    }
};

void tess__cuda_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, void *y)
{
    pointwise_slot<1, 1>(kernel, "gelu_forward", dtype, count, {x}, {y}, activation_gelu_forward{});
}

void tess__cuda_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *x, const void *dy, void *dx)
{
    pointwise_slot<2, 1>(kernel, "gelu_backward", dtype, count, {x, dy}, {dx},
                         activation_gelu_backward{});
}

void tess__cuda_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *gate, const void *up, void *y)
{
    pointwise_slot<2, 1>(kernel, "swiglu_forward", dtype, count, {gate, up}, {y},
                         activation_swiglu_forward{});
}

void tess__cuda_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                const void *gate, const void *up, const void *dy, void *dgate,
                                void *dup)
{
    pointwise_slot<3, 2>(kernel, "swiglu_backward", dtype, count, {gate, up, dy}, {dgate, dup},
                         activation_swiglu_backward{});
}

/* ---- rotary positions ----------------------------------------------------------------------- */

#define ROPE_THREADS  256
#define ROPE_HALF_MAX 1024 /* pairs of a head; their frequencies are kept in shared memory */
#define ROPE_HEADS    4    /* that a thread turns by one sine and cosine */
#define ROPE_ROWS     4    /* that a thread takes, one after the other, with the same frequencies */

struct rope_shape {
    int64_t rows, length, first, stride;
    int32_t heads, half;
    float base;
    bool inverse;
};

/*
 * Sine and cosine of position * 2 pi * turns_per_position. The angle is reduced to an eighth of a
 * turn either side of a quarter's multiple in f64, so that it is good to f32 at any position, and
 * only then rounded; f64 sine and cosine would cost more than the memory.
 */
static __device__ __forceinline__ void rope_sincos(double quarters, float *sine, float *cosine)
{
    double whole = rint(quarters);
    float s, c;
    sincospif((float)(quarters - whole) * 0.5f, &s, &c);
    int quarter = (int)((long long)whole & 3);
    *sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
    *cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
}

/* Pairs i .. i + W - 1 of one head: x[k] with x[half + k]. */
template <typename T, int W>
static __device__ __forceinline__ void rope_turn(T *x, int32_t half, const float (&sine)[W],
                                                 const float (&cosine)[W])
{
    cuda_vec<T> a, b;
    if (W > 1) {
        a = cuda_load(x);
        b = cuda_load(x + half);
    } else {
        a.at[0] = x[0];
        b.at[0] = x[half];
    }
#pragma unroll
    for (int e = 0; e < W; e++) {
        float low = cuda_to_f32(a.at[e]), high = cuda_to_f32(b.at[e]);
        a.at[e] = cuda_from_f32<T>(low * cosine[e] - high * sine[e]);
        b.at[e] = cuda_from_f32<T>(low * sine[e] + high * cosine[e]);
    }
    if (W > 1) {
        cuda_store(x, a);
        cuda_store(x + half, b);
    } else {
        x[0] = a.at[0];
        x[half] = b.at[0];
    }
}

/*
 * A thread takes W pairs of ROPE_HEADS heads of ROPE_ROWS rows. blockIdx.x counts threads' worth of
 * rows, blockIdx.y groups of heads.
 */
template <typename T, int W>
__global__ void __launch_bounds__(ROPE_THREADS) rope_kernel(rope_shape shape, T *x)
{
    __shared__ double quarters[ROPE_HALF_MAX]; /* of a turn, per position */
    for (int i = (int)threadIdx.x; i < shape.half; i += ROPE_THREADS)
        quarters[i] = pow((double)shape.base, -(double)i / (double)shape.half) *
                      0.63661977236758134308; /* 2 / pi */
    __syncthreads();
    const int64_t across = shape.half / W; /* threads of one row */
    const int64_t item = (int64_t)blockIdx.x * ROPE_THREADS + threadIdx.x;
    const int i = (int)(item % across) * W;
    const int first_head = (int)blockIdx.y * ROPE_HEADS;
    for (int64_t r = 0; r < ROPE_ROWS; r++) {
        int64_t row = item / across * ROPE_ROWS + r;
        if (row >= shape.rows)
            return;
        double position = (double)(shape.first + row % shape.length);
        float sine[W], cosine[W];
#pragma unroll
        for (int e = 0; e < W; e++) {
            rope_sincos(position * quarters[i + e], &sine[e], &cosine[e]);
            sine[e] = shape.inverse ? -sine[e] : sine[e];
        }
        T *at = x + row * shape.stride + i;
#pragma unroll
        for (int h = 0; h < ROPE_HEADS; h++)
            if (first_head + h < shape.heads)
                rope_turn<T, W>(at + (int64_t)(first_head + h) * 2 * shape.half, shape.half, sine,
                                cosine);
    }
}

static cudaError_t rope_launch(cudaStream_t stream, enum tess_dtype dtype, const rope_shape &shape,
                               void *x)
{
    return cuda_by_dtype(dtype, [&](auto type) {
        typedef decltype(type) T;
        constexpr int width = cuda_vec<T>::count;
        bool vectors = shape.half % width == 0 && shape.stride % width == 0 && cuda_aligned16(x);
        int64_t across = vectors ? shape.half / width : shape.half;
        dim3 grid(cuda_blocks((shape.rows + ROPE_ROWS - 1) / ROPE_ROWS * across, ROPE_THREADS),
                  cuda_blocks(shape.heads, ROPE_HEADS));
        return CUDA_LAUNCH((vectors ? rope_kernel<T, width> : rope_kernel<T, 1>), grid,
                           ROPE_THREADS, 0, stream, shape, x);
    });
}

void tess__cuda_rope(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                     int64_t length, int64_t first, int32_t heads, int64_t head_size,
                     int64_t stride, float base, bool inverse, void *x)
{
    const bool fits = head_size / 2 <= ROPE_HALF_MAX && head_size % 2 == 0;
    const rope_shape shape = {rows, length, first, stride, heads, (int32_t)(head_size / 2),
                              base, inverse};
    tess__cuda_note(kernel,
                    fits ? rope_launch(tess__cuda_stream(kernel), dtype, shape, x)
                         : cudaErrorInvalidValue,
                    "rope");
}
