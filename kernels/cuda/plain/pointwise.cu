/* Element-wise operations that every backend computes to the same bits: ReLU, add, accumulate,
 * maximum. The loop is in pointwise.cuh. */
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

void tess__cuda_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, void *y)
{
    pointwise_slot<1, 1>(kernel, "relu_forward", dtype, count, {x}, {y}, pointwise_relu{});
}

void tess__cuda_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *y, const void *dy, void *dx)
{
    pointwise_slot<2, 1>(kernel, "relu_backward", dtype, count, {y, dy}, {dx},
                         pointwise_relu_grad{});
}

void tess__cuda_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
                    const void *b, void *y)
{
    pointwise_slot<2, 1>(kernel, "add", dtype, count, {a, b}, {y}, pointwise_add{});
}

void tess__cuda_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                           float *y)
{
    pointwise_slot<2, 1>(kernel, "accumulate", TESS_F32, count, {x, y}, {y},
                         pointwise_accumulate{scale});
}

void tess__cuda_maximum(struct tess_kernel *kernel, int64_t count, const float *x, float *y)
{
    pointwise_slot<2, 1>(kernel, "maximum", TESS_F32, count, {x, y}, {y}, pointwise_maximum{});
}
