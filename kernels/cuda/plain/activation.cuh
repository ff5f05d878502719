/* GELU and its derivative of one element, for the kernels that apply it alone and for those that do
 * so on the way. */
#ifndef KERNELS_CUDA_PLAIN_ACTIVATION_CUH
#define KERNELS_CUDA_PLAIN_ACTIVATION_CUH

#include "cuda/launch.cuh"

#define ACTIVATION_SLOPE 0.79788456080286535588f /* sqrt(2 / pi) */
#define ACTIVATION_CUBE  0.044715f

/*
 * 1 / (1 + exp(-x)). Good to a few units in the last place; what is below 2^-126 may become 0
 * (__fdividef beyond 2^126; CUDA C++ programming guide, "Intrinsic functions").
 */
static __device__ __forceinline__ float activation_sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + expf(-x));
}

/* x/2 (1 + tanh u) is x sigmoid(2 u), which loses no digits where tanh u is near -1. */
static __device__ __forceinline__ float activation_gelu(float x)
{
    float u = ACTIVATION_SLOPE * (x + ACTIVATION_CUBE * x * x * x);
    return x * activation_sigmoid(2 * u);
}

/*
 * With s = sigmoid(2 u): s + x s (1 - s) 2 u'. Beyond |x| = 10 the second term is below 2^-100 and
 * what it is made of may overflow, so x is held there; an infinite x shows as NaN, as in ref.
 */
static __device__ __forceinline__ float activation_gelu_slope(float x)
{
    float held = x > 10 ? 10.0f : x < -10 ? -10.0f : x, square = held * held;
    float u = ACTIVATION_SLOPE * (held + ACTIVATION_CUBE * square * held);
    float u_slope = ACTIVATION_SLOPE * (1 + 3 * ACTIVATION_CUBE * square);
    float s = activation_sigmoid(2 * u);
    return s + 2 * held * s * (1 - s) * u_slope + (x - x);
}

/* 1 + erf(z) is erfc(-z), which loses no digits where z is far below 0. */
static __device__ __forceinline__ float activation_gelu_erf(float x)
{
    return 0.5f * x * erfcf(-0.70710678118654752440f * x);
}

/* With the density of the normal distribution, whose root is sqrt(2 / pi) / 2. */
static __device__ __forceinline__ float activation_gelu_erf_slope(float x)
{
    return 0.5f * erfcf(-0.70710678118654752440f * x) +
           0.5f * ACTIVATION_SLOPE * x * expf(-0.5f * x * x);
}

#endif
