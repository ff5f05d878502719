/*
 * Whether cuDNN is there, and what a kernel keeps for it: without cuDNN's own headers, so that the
 * files which offer a choice are the same where this was built without it (present_cudnn_none.c).
 */
#ifndef KERNELS_CUDA_CUDNN_PRESENT_H
#define KERNELS_CUDA_CUDNN_PRESENT_H

#include "cuda/cuda.h"

/* Can the library be used? Fills in "cuDNN 9.19.0", or the reason why not, one sentence. The first
 * call opens it; any thread, no device is needed. */
bool tess__cudnn_present(char *text, size_t text_bytes);

/* What the kernel keeps for cuDNN; after its plans. state->cudnn NULL is allowed. */
void tess__cudnn_close(struct tess_kernel *kernel);

#endif
