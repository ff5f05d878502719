/*
 * A cuDNN that is made up, on the CPU: descriptors that keep what is set on them and refuse what
 * cannot be meant, and two engines: convolutions by their definition (fake_conv.c), and graphs of
 * products, sums and pointwise operations, one operation after the other (fake_graph.c).
 */
#ifndef TESTS_KERNELS_CUDA_FAKE_ENGINE_H
#define TESTS_KERNELS_CUDA_FAKE_ENGINE_H

#include "cuda/cudnn/cudnn.h"

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

/* One execution: the graph, and the pointers of its pack. */
#define FAKE_OPERANDS 16
struct fake_run {
    const struct fake_descriptor *graph;
    int64_t count, id[FAKE_OPERANDS];
    void *pointer[FAKE_OPERANDS];
};

/* The two parts of cudnnBackendExecute: what the call itself looks at, and the work. */
cudnnStatus_t fake_prepare(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                           cudnnBackendDescriptor_t pack, struct fake_run *run_out);
cudnnStatus_t fake_compute(const struct fake_run *run);

void fake_clear(void); /* all descriptors, and the counts above */

#endif
