/* Launchers of fp8.cu: scales of 8-bit operands, and narrowing to them. */
#ifndef KERNELS_CUDA_PRODUCTS_LAUNCH_FP8_H
#define KERNELS_CUDA_PRODUCTS_LAUNCH_FP8_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_FP8_HISTORY 16

enum cuda_fp8_format { CUDA_FP8_E4M3, CUDA_FP8_E5M2 };

/* What is known of one operand, in device memory; all zero to begin with. Magnitudes are the bits
 * of f32, whose order is that of the numbers. */
struct cuda_fp8_tensor {
    float inverse;    /* 1 / scale: what the product multiplies by; first: it is 16-byte aligned */
    float scale;      /* a power of two: elements are multiplied by it, then narrowed */
    uint32_t seen;    /* the greatest finite magnitude met since the scale was last made */
    uint32_t pending; /* HISTORY: `seen` is that of a call that is not in the history yet */
    int32_t calls;    /* HISTORY: calls that are in it, or were */
    uint32_t history[CUDA_FP8_HISTORY];
    uint32_t none[3]; /* to 96 bytes, a multiple of 16 */
};

/* tensor->seen becomes the greater of itself and the greatest finite |x|. x: bf16 or f16, 16-byte
 * aligned. */
cudaError_t tess__cuda_fp8_greatest(cudaStream_t stream, enum tess_dtype dtype, int64_t count,
                                    const void *x, struct cuda_fp8_tensor *tensor);
/*
 * Make the scale. Without history of what was seen, which is forgotten; with history of the
 * greatest of the latest CUDA_FP8_HISTORY calls, of what was seen where there were none, and what
 * is seen from here on is this call's.
 */
cudaError_t tess__cuda_fp8_scale(cudaStream_t stream, enum cuda_fp8_format format, bool history,
                                 struct cuda_fp8_tensor *tensor);
/*
 * y[rows, columns] = narrow(scale x[rows, columns]) and, transposed, y_turned[columns, rows];
 * either may be NULL. To nearest even; what is finite and too great becomes the greatest, what is
 * not finite NaN. watch: what was seen is updated. Rows and columns are multiples of 16, arrays
 * 16-byte aligned.
 */
cudaError_t tess__cuda_fp8_narrow(cudaStream_t stream, enum tess_dtype dtype,
                                  enum cuda_fp8_format format, int64_t rows, int64_t columns,
                                  const void *x, struct cuda_fp8_tensor *tensor, bool watch,
                                  uint8_t *y, uint8_t *y_turned);

#ifdef __cplusplus
}
#endif

#endif
