/* Element-wise operations that every backend computes to the same bits: ReLU, add, accumulate,
 * maximum. The loop is in pointwise.cuh. */
#include "cuda/plain/launch_plain.h"
#include "cuda/plain/pointwise.cuh"

/* A NaN passes through: it is not below 0. */
struct pointwise_relu {
    __device__ void operator()(const float (&in)[1], float (&out)[1]) const
    {
        out[0] = in[0] < 0 ? 0.0f : in[0];
    }
};

struct pointwise_relu_grad {
    __device__ void operator()(const float (&in)[2], float (&out)[1]) const
    {
        out[0] = in[0] > 0 ? in[1] : 0.0f;
    }
};

struct pointwise_add {
    __device__ void operator()(const float (&in)[2], float (&out)[1]) const
    {
        out[0] = __fadd_rn(in[0], in[1]);
    }
};

struct pointwise_accumulate {
    float scale;
    __device__ void operator()(const float (&in)[2], float (&out)[1]) const
    {
        out[0] = __fadd_rn(in[1], __fmul_rn(scale, in[0]));
    }
};

struct pointwise_maximum {
    __device__ void operator()(const float (&in)[2], float (&out)[1]) const
    {
        out[0] = in[0] > in[1] ? in[0] : in[1];
    }
};

extern "C" cudaError_t tess__cuda_launch_relu_forward(cudaStream_t stream, enum tess_dtype dtype,
                                                      int64_t count, const void *x, void *y)
{
    return pointwise_any<1, 1>(stream, dtype, count, {x}, {y}, pointwise_relu{});
}

extern "C" cudaError_t tess__cuda_launch_relu_backward(cudaStream_t stream, enum tess_dtype dtype,
                                                       int64_t count, const void *y, const void *dy,
                                                       void *dx)
{
    return pointwise_any<2, 1>(stream, dtype, count, {y, dy}, {dx}, pointwise_relu_grad{});
}

extern "C" cudaError_t tess__cuda_launch_add(cudaStream_t stream, enum tess_dtype dtype,
                                             int64_t count, const void *a, const void *b, void *y)
{
    return pointwise_any<2, 1>(stream, dtype, count, {a, b}, {y}, pointwise_add{});
}

extern "C" cudaError_t tess__cuda_launch_accumulate(cudaStream_t stream, int64_t count, float scale,
                                                    const float *x, float *y)
{
    return pointwise_launch<float, 2, 1>(stream, count, {x, y}, {y}, pointwise_accumulate{scale});
}

extern "C" cudaError_t tess__cuda_launch_maximum(cudaStream_t stream, int64_t count, const float *x,
                                                 float *y)
{
    return pointwise_launch<float, 2, 1>(stream, count, {x, y}, {y}, pointwise_maximum{});
}
