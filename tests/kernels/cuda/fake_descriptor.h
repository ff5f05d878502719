/* Inside of the made-up cuDNN: what its descriptors hold, and the two engines. */
#ifndef TESTS_KERNELS_CUDA_FAKE_DESCRIPTOR_H
#define TESTS_KERNELS_CUDA_FAKE_DESCRIPTOR_H

#include "fake_engine.h"

#define FAKE_ATTRIBUTES 16
#define FAKE_BYTES      256

struct fake_attribute {
    cudnnBackendAttributeName_t name;
    int64_t count;
    char value[FAKE_BYTES];
};

struct fake_descriptor {
    cudnnBackendDescriptorType_t type;
    struct fake_descriptor *next; /* made before this one */
    bool finished, dropped;
    int count;
    struct fake_attribute attribute[FAKE_ATTRIBUTES];
    /* Of configurations and engines: */
    struct fake_descriptor *graph;
    bool unsteady;
};

/* Behind a handle. */
struct fake_handle {
    cudaStream_t stream;
};

/* An attribute that was set; NULL, or nothing but zeros, where it was not. */
const struct fake_attribute *fake_find(const struct fake_descriptor *d,
                                       cudnnBackendAttributeName_t name);
struct fake_descriptor *fake_link(const struct fake_descriptor *d, cudnnBackendAttributeName_t name,
                                  int64_t index);
const int64_t *fake_numbers(const struct fake_descriptor *d, cudnnBackendAttributeName_t name);
int fake_word(const struct fake_descriptor *d, cudnnBackendAttributeName_t name); /* -1: not set */

/* Where the pack has the tensor's array; NULL: nowhere. */
void *fake_pointer(const struct fake_run *run, const struct fake_descriptor *tensor);

/* What a graph of these operations gives; CUDNN_STATUS_EXECUTION_FAILED where it is not modelled or
 * an array is missing. */
cudnnStatus_t fake_convolve(const struct fake_run *run);
cudnnStatus_t fake_interpret(const struct fake_run *run);

#endif
