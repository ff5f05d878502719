/* The matrix instructions of kernels/cuda/mma.cuh, where they are described, on the emulator. */
#ifndef TESTS_KERNELS_EMULATE_MMA_H
#define TESTS_KERNELS_EMULATE_MMA_H

#include "emulate/native.h"

void emulate_load_matrix(uint32_t *r, int tiles, const void *row, bool transposed);
void emulate_mma(float c[4], const uint32_t a[4], const uint32_t b[2], bool half);

static inline void cuda_load_matrix4(uint32_t r[4], const void *row)
{
    emulate_load_matrix(r, 4, row, false);
}

static inline void cuda_load_matrix4_transposed(uint32_t r[4], const void *row)
{
    emulate_load_matrix(r, 4, row, true);
}

template <typename T>
static inline void cuda_mma(float c[4], const uint32_t a[4], const uint32_t b[2]);

template <>
inline void cuda_mma<__nv_bfloat16>(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    emulate_mma(c, a, b, false);
}

template <> inline void cuda_mma<__half>(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    emulate_mma(c, a, b, true);
}

#endif
