/*
 * Matrix instructions of one warp: 8 x 8 tiles of 16-bit elements from shared memory, and products
 * of them summed in f32 (PTX ISA, "ldmatrix" and "mma.m16n8k16"). sm_80 and later. All 32 lanes
 * take part. With group = lane / 4 and pair = 2 (lane % 4), lane holds
 *
 *   A [16, 16]  a[0] row group,     columns pair, pair + 1      a[1] row group + 8, the same
 *               a[2] row group,     columns pair + 8, + 9       a[3] row group + 8, the same
 *   B [16, 8]   b[0] rows pair, pair + 1, column group          b[1] rows pair + 8, + 9
 *   C [16, 8]   c[0], c[1] row group, columns pair, pair + 1    c[2], c[3] row group + 8
 *
 * two elements to a register, the lower index in the lower half.
 *
 * cuda_load_matrix4(r, row): lane l gives the address of row l % 8 of tile l / 8 (8 elements, 16-
 * byte aligned); r[t] is then of tile t, row group, columns pair and pair + 1. The _transposed form
 * gives rows pair and pair + 1 of column group. The tiles in the order (top left, bottom left, top
 * right, bottom right) of a row-major A are its fragment.
 */
#ifndef KERNELS_CUDA_MMA_CUH
#define KERNELS_CUDA_MMA_CUH

#include "cuda/launch.cuh"

#ifdef __CUDACC__

/* Volatile, without a memory clobber: not moved over barriers, and free among other loads. */
static __device__ __forceinline__ void cuda_load_matrix4(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cuda_shared_address(row)));
}

static __device__ __forceinline__ void cuda_load_matrix4_transposed(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(cuda_shared_address(row)));
}

/* c += A B, elements of type T. */
template <typename T>
static __device__ __forceinline__ void cuda_mma(float c[4], const uint32_t a[4],
                                                const uint32_t b[2]);

template <>
__device__ __forceinline__ void cuda_mma<__nv_bfloat16>(float c[4], const uint32_t a[4],
                                                        const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void cuda_mma<__half>(float c[4], const uint32_t a[4],
                                                 const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#else
#include "emulate/mma.h"
#endif

/* Two numbers as one register of a fragment, rounded to T; `low` has the lower index. */
template <typename T> static __device__ __forceinline__ uint32_t cuda_pack2(float low, float high);

template <> __device__ __forceinline__ uint32_t cuda_pack2<__nv_bfloat16>(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

template <> __device__ __forceinline__ uint32_t cuda_pack2<__half>(float low, float high)
{
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

#endif
