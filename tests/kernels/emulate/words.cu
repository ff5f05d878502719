/*
 * Kernels that use each word of kernels/cuda/launch.cuh and mma.cuh once, for the test of the
 * emulator itself; some leave something out on purpose.
 */
#include "cuda/mma.cuh"
#include "emulate/words.h"

__global__ void words_shuffle(int32_t *out)
{
    int lane = cuda_lane();
    out[lane] = __shfl_xor_sync(CUDA_FULL, lane, 5);
    out[32 + lane] = __shfl_down_sync(CUDA_FULL, lane, 3);
    out[64 + lane] = __shfl_up_sync(CUDA_FULL, lane, 2, 8);
    out[96 + lane] = __shfl_sync(CUDA_FULL, lane, 9, 16);
    out[128 + lane] = (int32_t)__ballot_sync(CUDA_FULL, lane % 3 == 0);
    if (lane < 10) /* only these meet, and the others' values are not to be had */
        out[160 + lane] = __shfl_xor_sync(0x3ffu, lane, 1);
    else
        out[160 + lane] = __any_sync(~0x3ffu, lane == 20);
}

__global__ void words_sum(const float *x, float *sum, float *max)
{
    __shared__ float shared[32];
    float total = cuda_block_sum(x[threadIdx.x], shared);
    float greatest = cuda_block_max(x[threadIdx.x], shared);
    sum[threadIdx.x] = total;
    max[threadIdx.x] = greatest;
}

/* c [16, 8] = a [16, 16] b [16, 8], both row-major, through shared memory. */
template <typename T>
__global__ void words_product(const T *a, const T *b, float *c, bool wait, bool sync)
{
    CUDA_SHARED(T, shared);
    T *tile_a = shared, *tile_b = shared + 256;
    int lane = cuda_lane();
    cuda_copy_async16(tile_a + 8 * lane, a + 8 * lane);
    cuda_copy_commit();
    cuda_copy_async16(tile_b + 8 * (lane % 16), b + 8 * (lane % 16));
    cuda_copy_commit();
    cuda_copy_wait<1>();
    if (wait)
        cuda_copy_wait<0>();
    if (sync)
        __syncthreads();
    uint32_t fragment_a[4], fragment_b[4]; /* of b the first two */
    float sum[4] = {1, 1, 1, 1};
    cuda_load_matrix4(fragment_a, tile_a + (lane % 16) * 16 + lane / 16 * 8);
    cuda_load_matrix4_transposed(fragment_b, tile_b + (lane % 16) * 8);
    cuda_mma<T>(sum, fragment_a, fragment_b);
    int row = lane / 4, column = 2 * (lane % 4);
    for (int k = 0; k < 4; k++)
        c[(row + 8 * (k / 2)) * 8 + column + k % 2] = sum[k];
}

/* Every thread passes its number on to its neighbour, through memory that was never written. */
__global__ void words_neighbour(int32_t *out, bool forward, bool sync)
{
    CUDA_SHARED(int32_t, shared);
    int t = cuda_thread(), n = (int)blockDim.x;
    shared[t] = t;
    if (sync)
        __syncthreads();
    out[blockIdx.x * blockDim.x + t] = shared[forward ? (t + 1) % n : (t + n - 1) % n];
}

__global__ void words_fail(enum words_failure failure)
{
    CUDA_SHARED(float, shared);
    int t = cuda_thread();
    switch (failure) {
    case WORDS_BARRIERS:
        if (t < 32)
            __syncthreads();
        else
            __syncthreads();
        break;
    case WORDS_LANES:
        if (t % 32 < 16)
            __syncwarp();
        else
            __syncthreads();
        break;
    case WORDS_MASK:
        __shfl_sync(1u, t, 0);
        break;
    case WORDS_SHARED:
        shared[8 + (int)blockIdx.x] = 0;
        break;
    case WORDS_ALIGNMENT:
        cuda_copy_async16(shared + 1, NULL, false);
        break;
    case WORDS_NONE:
        shared[0] = 0;
        break;
    }
}

static __global__ void words_static(int)
{
    __shared__ volatile float at[WORDS_STATIC / sizeof(float)];
    at[cuda_thread()] = at[WORDS_STATIC / sizeof(float) - 1] = 0;
}

extern "C" size_t words_run_static(size_t shared_bytes)
{
    CUDA_LAUNCH(words_static, 1, 32, shared_bytes, NULL, 0);
    return emulate_static_bytes(reinterpret_cast<const void *>(words_static));
}

extern "C" void words_run_shuffle(int32_t *out)
{
    CUDA_LAUNCH(words_shuffle, 1, 32, 0, NULL, out);
}

extern "C" void words_run_sum(int threads, const float *x, float *sum, float *max)
{
    CUDA_LAUNCH(words_sum, 1, threads, 0, NULL, x, sum, max);
}

extern "C" void words_run_product(int half, const void *a, const void *b, float *c, int wait,
                                  int sync)
{
    if (half)
        CUDA_LAUNCH(words_product<__half>, 1, 32, 768, NULL, (const __half *)a, (const __half *)b,
                    c, wait != 0, sync != 0);
    else
        CUDA_LAUNCH(words_product<__nv_bfloat16>, 1, 32, 768, NULL, (const __nv_bfloat16 *)a,
                    (const __nv_bfloat16 *)b, c, wait != 0, sync != 0);
}

extern "C" void words_run_neighbour(int32_t *out, int forward, int sync)
{
    CUDA_LAUNCH(words_neighbour, 2, 96, 96 * sizeof(int32_t), NULL, out, forward != 0, sync != 0);
}

extern "C" void words_run_fail(enum words_failure failure)
{
    CUDA_LAUNCH(words_fail, 1, 64, 8 * sizeof(float), NULL, failure);
}
