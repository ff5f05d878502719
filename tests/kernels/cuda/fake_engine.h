/*
 * A cuDNN that is made up, on the CPU: descriptors that keep what is set on them and refuse what
 * cannot be meant, and one engine, which computes a convolution by its definition from the tensors'
 * extents and strides. f32 only.
 */
#ifndef TESTS_KERNELS_CUDA_FAKE_ENGINE_H
#define TESTS_KERNELS_CUDA_FAKE_ENGINE_H

#include "cuda/products/cudnn.h"

struct fake_engine {
    int alive;       /* descriptors and handles that were not destroyed */
    int runs;        /* plans that were executed */
    bool shy;        /* every engine that is advised may give other bits each time */
    int64_t room;    /* what the next plans need beside their operands */
    void *workspace; /* of the latest run */
    int failing;     /* > 0: that many calls from now, one fails */
};

extern struct fake_engine fake_engine;
extern const struct cudnn_library fake_library;

void fake_clear(void); /* all descriptors, and the counts above */

#endif
