/* The two copies of conv.cu that make a product of a convolution. */
#ifndef KERNELS_CUDA_PRODUCTS_CONV_H
#define KERNELS_CUDA_PRODUCTS_CONV_H

#include "tessera/tensor.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Images [images, height, width, channels] and the places of a window over them. An image's windows
 * hold fewer than 2^31 elements. */
struct cuda_windows {
    int64_t images;
    int32_t height, width, channels;
    int32_t out_height, out_width;
    int32_t window, stride, padding;
};

/* columns[images out_height out_width, window, window, channels] = x under the window at each
 * place, 0 outside of the image. Both of dtype f32, bf16 or f16. */
cudaError_t tess__cuda_conv_windows(cudaStream_t stream, enum tess_dtype dtype,
                                    const struct cuda_windows *windows, const void *x,
                                    void *columns);
/* dx[images, height, width, channels] of dtype = the sum over the windows that hold the element, in
 * the order of their rows and columns, of f32 columns; each sum begins with +0, in f32, rounded
 * once. */
cudaError_t tess__cuda_conv_gather(cudaStream_t stream, enum tess_dtype dtype,
                                   const struct cuda_windows *windows, const float *columns,
                                   void *dx);

#ifdef __cplusplus
}
#endif

#endif
