/* GELU, SwiGLU, GeGLU and rotary positions, in f32 and rounded once: equal to ref to a few units of
 * f32. */
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

struct activation_gelu_erf_forward {
    __device__ void operator()(const float (&in)[1], float (&out)[1]) const
    {
        out[0] = activation_gelu_erf(in[0]);
    }
};

struct activation_gelu_erf_backward {
    __device__ void operator()(const float (&in)[2], float (&out)[1]) const
    {
        out[0] = in[1] * activation_gelu_erf_slope(in[0]);
    }
};

void tess__cuda_gelu_erf_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                 const void *x, void *y)
{
    pointwise_slot<1, 1>(kernel, "gelu_erf_forward", dtype, count, {x}, {y},
                         activation_gelu_erf_forward{});
}

void tess__cuda_gelu_erf_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                  const void *x, const void *dy, void *dx)
{
    pointwise_slot<2, 1>(kernel, "gelu_erf_backward", dtype, count, {x, dy}, {dx},
                         activation_gelu_erf_backward{});
}

/* ---- SwiGLU, GeGLU --------------------------------------------------------------------------- */

struct swiglu_forward {
    __device__ void operator()(const float (&in)[2], float (&out)[1]) const
    {
        out[0] = in[0] * activation_sigmoid(in[0]) * in[1];
    }
};

/* With s = sigmoid(g): the derivative of g s is s (1 + g (1 - s)). */
struct swiglu_backward {
    __device__ void operator()(const float (&in)[3], float (&out)[2]) const
    {
        float g = in[0], up = in[1], dy = in[2], s = activation_sigmoid(g);
        out[0] = dy * up * (s * (1 + g * (1 - s)));
        out[1] = dy * (g * s);
    }
};

template <bool ERF> struct geglu_forward {
    __device__ void operator()(const float (&in)[2], float (&out)[1]) const
    {
        out[0] = (ERF ? activation_gelu_erf(in[0]) : activation_gelu(in[0])) * in[1];
    }
};

template <bool ERF> struct geglu_backward {
    __device__ void operator()(const float (&in)[3], float (&out)[2]) const
    {
        float g = in[0], up = in[1], dy = in[2];
        out[0] = dy * up * (ERF ? activation_gelu_erf_slope(g) : activation_gelu_slope(g));
        out[1] = dy * (ERF ? activation_gelu_erf(g) : activation_gelu(g));
    }
};

/* As pointwise.cuh, of rows that have a stride of their own in each array. A row is `across` pieces
 * of W elements. */
template <typename T, int IN, int OUT> struct swiglu_rows {
    static constexpr int unroll = 2;
    int64_t rows;
    uint32_t across;
    int64_t in_stride[IN], out_stride[OUT];
    const T *in[IN];
    T *out[OUT];
};

template <typename T, int W>
static __device__ __forceinline__ void swiglu_load(const T *memory, cuda_vec<T> *v)
{
    if (W > 1)
        *v = cuda_load(memory);
    else
        v->at[0] = *memory;
}

template <typename T, int W, int IN, int OUT, typename F>
static __device__ __forceinline__ void swiglu_piece(const swiglu_rows<T, IN, OUT> &a,
                                                    const cuda_vec<T> (&v)[IN], int64_t row,
                                                    int64_t column, const F &f)
{
    cuda_vec<T> result[OUT];
    pointwise_apply<W>(v, result, f);
#pragma unroll
    for (int k = 0; k < OUT; k++) {
        T *to = a.out[k] + row * a.out_stride[k] + column;
        if (W > 1)
            cuda_store(to, result[k]);
        else
            *to = result[k].at[0];
    }
}

/* The division in 64 bits is one for the block; each thread's is in 32. */
template <typename T, int W, int IN, int OUT, typename F>
__global__ void __launch_bounds__(POINTWISE_THREADS) swiglu_kernel(swiglu_rows<T, IN, OUT> a, F f)
{
    constexpr int unroll = swiglu_rows<T, IN, OUT>::unroll;
    const int64_t first = (int64_t)blockIdx.x * (POINTWISE_THREADS * unroll);
    const int64_t first_row = first / a.across;
    const uint32_t rest = (uint32_t)(first % a.across) + threadIdx.x;
    cuda_vec<T> v[unroll][IN];
#pragma unroll
    for (int u = 0; u < unroll; u++) {
        const uint32_t at = rest + u * POINTWISE_THREADS;
        const int64_t row = first_row + at / a.across, column = (int64_t)(at % a.across) * W;
        if (row < a.rows) {
#pragma unroll
            for (int k = 0; k < IN; k++)
                swiglu_load<T, W>(a.in[k] + row * a.in_stride[k] + column, &v[u][k]);
        }
    }
#pragma unroll
    for (int u = 0; u < unroll; u++) {
        const uint32_t at = rest + u * POINTWISE_THREADS;
        const int64_t row = first_row + at / a.across, column = (int64_t)(at % a.across) * W;
        if (row < a.rows)
            swiglu_piece<T, W>(a, v[u], row, column, f);
    }
}

/* Arrays of [rows, width]; in[k] has in_stride[k] elements from one row to the next. */
template <int IN, int OUT, typename F>
static void swiglu_slot(struct tess_kernel *kernel, const char *where, enum tess_dtype dtype,
                        int64_t rows, int64_t width, const void *const (&in)[IN],
                        const int64_t (&in_stride)[IN], void *const (&out)[OUT],
                        const int64_t (&out_stride)[OUT], F f)
{
    if (width >= INT32_MAX) {
        tess__cuda_note(kernel, cudaErrorInvalidValue, where);
        return;
    }
    const cudaError_t error = cuda_by_dtype(dtype, [&](auto type) {
        typedef decltype(type) T;
        constexpr int piece = cuda_vec<T>::count;
        swiglu_rows<T, IN, OUT> a;
        bool vectors = width % piece == 0;
        for (int k = 0; k < IN; k++) {
            a.in[k] = static_cast<const T *>(in[k]);
            a.in_stride[k] = in_stride[k];
            vectors = vectors && cuda_aligned16(in[k]) && in_stride[k] % piece == 0;
        }
        for (int k = 0; k < OUT; k++) {
            a.out[k] = static_cast<T *>(out[k]);
            a.out_stride[k] = out_stride[k];
            vectors = vectors && cuda_aligned16(out[k]) && out_stride[k] % piece == 0;
        }
        a.rows = rows;
        a.across = (uint32_t)(vectors ? width / piece : width);
        return CUDA_LAUNCH(
            (vectors ? swiglu_kernel<T, piece, IN, OUT, F> : swiglu_kernel<T, 1, IN, OUT, F>),
            cuda_blocks(rows * a.across, POINTWISE_THREADS * a.unroll), POINTWISE_THREADS, 0,
            tess__cuda_stream(kernel), a, f);
    });
    tess__cuda_note(kernel, error, where);
}

void tess__cuda_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                               int64_t width, int64_t stride, const void *gate, const void *up,
                               void *y)
{
    swiglu_slot<2, 1>(kernel, "swiglu_forward", dtype, rows, width, {gate, up}, {stride, stride},
                      {y}, {width}, swiglu_forward{});
}

void tess__cuda_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                                int64_t width, int64_t stride, const void *gate, const void *up,
                                const void *dy, void *dgate, void *dup)
{
    swiglu_slot<3, 2>(kernel, "swiglu_backward", dtype, rows, width, {gate, up, dy},
                      {stride, stride, width}, {dgate, dup}, {stride, stride}, swiglu_backward{});
}

void tess__cuda_geglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                              int64_t width, int64_t stride, bool erf, const void *gate,
                              const void *up, void *y)
{
    if (erf)
        swiglu_slot<2, 1>(kernel, "geglu_forward", dtype, rows, width, {gate, up}, {stride, stride},
                          {y}, {width}, geglu_forward<true>{});
    else
        swiglu_slot<2, 1>(kernel, "geglu_forward", dtype, rows, width, {gate, up}, {stride, stride},
                          {y}, {width}, geglu_forward<false>{});
}

void tess__cuda_geglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                               int64_t width, int64_t stride, bool erf, const void *gate,
                               const void *up, const void *dy, void *dgate, void *dup)
{
    if (erf)
        swiglu_slot<3, 2>(kernel, "geglu_backward", dtype, rows, width, {gate, up, dy},
                          {stride, stride, width}, {dgate, dup}, {stride, stride},
                          geglu_backward<true>{});
    else
        swiglu_slot<3, 2>(kernel, "geglu_backward", dtype, rows, width, {gate, up, dy},
                          {stride, stride, width}, {dgate, dup}, {stride, stride},
                          geglu_backward<false>{});
}

/* ---- rotary positions ----------------------------------------------------------------------- */

#define ROPE_THREADS  256
#define ROPE_HALF_MAX 1024 /* pairs of a head; their frequencies are kept in shared memory */
#define ROPE_HEADS    4    /* that a thread turns by one sine and cosine */
#define ROPE_ROWS     4    /* that a thread takes, one after the other, with the same frequencies */

struct rope_shape {
    int64_t rows, length, first, stride;
    int32_t heads, half;
    struct tess_rotary rotary;
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
        quarters[i] =
            tess_rotary_rate(&shape.rotary,
                             pow((double)shape.rotary.base, -(double)i / (double)shape.half),
                             (double)i) *
            0.63661977236758134308; /* 2 / pi */
    const float size = shape.rotary.amplitude > 0 ? shape.rotary.amplitude : 1.0f;
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
            sine[e] *= shape.inverse ? -size : size;
            cosine[e] *= size;
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
                     int64_t stride, const struct tess_rotary *rotary, bool inverse, void *x)
{
    const bool fits = head_size / 2 <= ROPE_HALF_MAX && head_size % 2 == 0;
    const rope_shape shape = {rows,    length, first, stride, heads, (int32_t)(head_size / 2),
                              *rotary, inverse};
    tess__cuda_note(kernel,
                    fits ? rope_launch(tess__cuda_stream(kernel), dtype, shape, x)
                         : cudaErrorInvalidValue,
                    "rope");
}
