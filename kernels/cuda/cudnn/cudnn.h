/*
 * cuDNN's backend API, as the files *_cudnn.c use it: the library, which is opened at run time,
 * graphs of operations, the choice of an engine for one, and running it. Facts about descriptors,
 * their attributes and their types are of NVIDIA's "cuDNN Backend API" reference and of
 * cudnn_graph.h. Which graph is a convolution or attention is said in the files of those.
 */
#ifndef KERNELS_CUDA_CUDNN_CUDNN_H
#define KERNELS_CUDA_CUDNN_CUDNN_H

#include "cuda/cudnn/present.h"

#include <cudnn_graph.h>

/* ---- load_cudnn.c ------------------------------------------------------------------------- */

#define CUDNN_FUNCTIONS(X)                                                                         \
    X(cudnnGetVersion)                                                                             \
    X(cudnnGetErrorString)                                                                         \
    X(cudnnGetLastErrorString)                                                                     \
    X(cudnnCreate)                                                                                 \
    X(cudnnDestroy)                                                                                \
    X(cudnnSetStream)                                                                              \
    X(cudnnBackendCreateDescriptor)                                                                \
    X(cudnnBackendDestroyDescriptor)                                                               \
    X(cudnnBackendFinalize)                                                                        \
    X(cudnnBackendSetAttribute)                                                                    \
    X(cudnnBackendGetAttribute)                                                                    \
    X(cudnnBackendExecute)

/* Under their own names. */
struct cudnn_library {
#define CUDNN_POINTER(name) __typeof__(name) *name;
    CUDNN_FUNCTIONS(CUDNN_POINTER)
#undef CUDNN_POINTER
};

/* NULL where it is not there, cannot be used, or has another major version; *why_out, which may
 * be NULL, is then a sentence. Any thread; determined once. */
const struct cudnn_library *tess__cudnn_library(const char **why_out);

/* As tess__cuda_blas_fail, with cuDNN's own words about its last error. */
enum tess_status tess__cudnn_fail(cudnnStatus_t error, const char *where);
#define CUDNN_TRY(call)                                                                            \
    do {                                                                                           \
        cudnnStatus_t cudnn_try_error_ = (call);                                                   \
        if (cudnn_try_error_ != CUDNN_STATUS_SUCCESS)                                              \
            return tess__cudnn_fail(cudnn_try_error_, #call);                                      \
    } while (0)

/* ---- graph_cudnn.c ------------------------------------------------------------------------ */

/* Where plans are to run: on a handle's device, or on one that is described only (a descriptor of
 * its properties, cuDNN 9.8), for which plans can be made and not run. */
struct cudnn_place {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties; /* NULL: the handle's */
};

/* All that is made on the way: tensors, operations, the graph, advice. */
#define CUDNN_GRAPH_DESCRIPTORS 256
#define CUDNN_GRAPH_OPERATIONS  32
#define CUDNN_ALIGN_MAX         64

/* Zeroed but for the first three. Dropping takes a graph that was made in part. */
struct cudnn_graph {
    const struct cudnn_library *library;
    const struct cudnn_place *place;
    int64_t workspace_bytes; /* that a plan may need beside its operands, at most */
    bool exact;              /* f32 without tensor cores */
    cudnnBackendDescriptor_t made[CUDNN_GRAPH_DESCRIPTORS];
    int made_count;
    cudnnBackendDescriptor_t operation[CUDNN_GRAPH_OPERATIONS];
    int operation_count;
    cudnnBackendDescriptor_t whole;
};

struct cudnn_tensor {
    int64_t id;
    cudnnDataType_t type;
    int64_t extent[4], stride[4];
    int64_t align; /* bytes that its address is a multiple of */
    bool virtual;  /* never stored */
    bool by_value; /* one number, in the host's memory */
};

/* As the functions of the library, with statuses of ours; `make` gives what is dropped with the
 * graph, down to the `kept` that were first; `keep` takes one out of it. */
enum tess_status tess__cudnn_make(struct cudnn_graph *g, cudnnBackendDescriptorType_t type,
                                  cudnnBackendDescriptor_t *out);
void tess__cudnn_drop(struct cudnn_graph *g, int kept);
void tess__cudnn_keep(struct cudnn_graph *g, cudnnBackendDescriptor_t descriptor);
enum tess_status tess__cudnn_set(const struct cudnn_graph *g, cudnnBackendDescriptor_t descriptor,
                                 cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                 int64_t count, const void *values);
enum tess_status tess__cudnn_link(const struct cudnn_graph *g, cudnnBackendDescriptor_t descriptor,
                                  cudnnBackendAttributeName_t name,
                                  cudnnBackendDescriptor_t target);
enum tess_status tess__cudnn_finish(const struct cudnn_graph *g,
                                    cudnnBackendDescriptor_t descriptor);

/* Finished tensors and operations. */
enum tess_status tess__cudnn_add_tensor(struct cudnn_graph *g, const struct cudnn_tensor *tensor,
                                        cudnnBackendDescriptor_t *out);
enum tess_status tess__cudnn_add_operation(struct cudnn_graph *g,
                                           cudnnBackendDescriptor_t operation);

/* y = mode(x, b, t), by elements; b, t NULL: the mode has fewer operands. GEN_INDEX: the number
 * along `axis`. */
struct cudnn_pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t compute;
    int64_t axis;
    cudnnBackendDescriptor_t x, b, t, y;
};
enum tess_status tess__cudnn_add_pointwise(struct cudnn_graph *g, const struct cudnn_pointwise *p);

/* ---- choice_cudnn.c ----------------------------------------------------------------------- */

/* What was chosen. plan NULL: nothing could be. */
struct cudnn_choice {
    cudnnBackendDescriptor_t plan, config;
    int64_t engine, workspace_bytes;
    uint32_t notes; /* bit n: CUDNN_NUMERICAL_NOTE n */
};

/* Finishes the graph of the operations added, and takes the first of the engines which cuDNN
 * advises for it that may be used. */
enum tess_status tess__cudnn_choose(struct cudnn_graph *g, struct cudnn_choice *choice_out);
void tess__cudnn_choice_drop(struct cudnn_choice *choice);

/* ---- run_cudnn.c -------------------------------------------------------------------------- */

/* Opens the kernel's handle, where it is not; the handle is on the kernels' stream. */
enum tess_status tess__cudnn_open(struct tess_kernel *kernel, struct cudnn_place *place_out);
/* Room for a plan that needs so much; one piece serves all of a kernel's. Not in a step. */
enum tess_status tess__cudnn_make_room(struct tess_kernel *kernel, int64_t bytes);

/* The operands of one run, by the ids of their tensors. */
#define CUDNN_PACK_MAX 16
struct cudnn_pack {
    int64_t count, id[CUDNN_PACK_MAX];
    const void *pointer[CUDNN_PACK_MAX];
};

/* Queue it. */
enum tess_status tess__cudnn_run(struct tess_kernel *kernel, const struct cudnn_choice *choice,
                                 const struct cudnn_pack *pack);

#endif
