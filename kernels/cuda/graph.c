/*
 * Recording what a rank queues as a CUDA graph, and playing it. The record begins on the kernels'
 * own stream; other queues join it where they follow one of its fences, and must have been followed
 * back by its end. A slot that is recorded again keeps its executable graph where only parameters
 * have changed, which is cheaper by far than a new one (CUDA C++ programming guide, "Updating
 * instantiated graphs").
 *
 * The capture mode is relaxed: communicators query fences and libraries load code while it is
 * going on, in this thread and in those of other ranks.
 */
#include "cuda/host.h"

#include <stdlib.h>

struct cuda_graphs {
    uint64_t begun; /* so far */
    cudaGraphExec_t slot[TESS_GRAPH_SLOTS];
};

enum tess_status tess__cuda_graph_begin(struct tess_kernel *kernel)
{
    TESS_TRY(tess__cuda_need(kernel, "record a graph"));
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->graph > 0)
        TESS_FAIL(TESS_ERR_INTERNAL, "kernel cuda: a graph is being recorded already");
    if (state->graphs == NULL)
        state->graphs = calloc(1, sizeof(*state->graphs));
    if (state->graphs == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "kernel cuda: no memory for graphs");
    CUDA_TRY(cudaStreamBeginCapture(tess__cuda_stream(kernel), cudaStreamCaptureModeRelaxed));
    state->graph = ++state->graphs->begun;
    return TESS_OK;
}

/* The slot plays `graph` from here on. */
static enum tess_status graph_put(struct tess_kernel *kernel, int32_t slot, cudaGraph_t graph)
{
    cudaGraphExec_t *exec = &tess__cuda_state(kernel)->graphs->slot[slot];
    if (*exec != NULL) {
        cudaGraphExecUpdateResultInfo result;
        if (cudaGraphExecUpdate(*exec, graph, &result) == cudaSuccess)
            return TESS_OK;
        /* Another topology: the error is expected, and the graph is made again. */
        tess__cuda_log_error(cudaGetLastError(), "updating a graph");
        tess__cuda_log_error(cudaGraphExecDestroy(*exec), "cudaGraphExecDestroy");
        *exec = NULL;
    }
    CUDA_TRY(cudaGraphInstantiate(exec, graph, 0));
    CUDA_TRY(cudaGraphUpload(*exec, tess__cuda_stream(kernel)));
    return TESS_OK;
}

static int graph_kind(enum cudaGraphNodeType type)
{
    return type == cudaGraphNodeTypeKernel   ? CUDA_LAUNCH_KERNEL
           : type == cudaGraphNodeTypeMemcpy ? CUDA_LAUNCH_COPY
           : type == cudaGraphNodeTypeMemset ? CUDA_LAUNCH_FILL
                                             : CUDA_LAUNCH_KINDS;
}

/* What a play launches, those of libraries among it: for the metrics, so an error is only logged.
 * Of slot 0, which has the step that reports nothing; of another one until that is there. */
static void graph_count(cudaGraph_t graph, int32_t slot)
{
    uint32_t count[CUDA_LAUNCH_KINDS + 1] = {0}; /* last: events */
    size_t nodes = 0;
    cudaError_t error = cudaGraphGetNodes(graph, NULL, &nodes);
    cudaGraphNode_t *node = calloc(nodes + 1, sizeof(*node)); /* NULL would ask for the number */
    if (error == cudaSuccess && node != NULL)
        error = cudaGraphGetNodes(graph, node, &nodes);
    for (size_t n = 0; error == cudaSuccess && node != NULL && n < nodes; n++) {
        enum cudaGraphNodeType type;
        error = cudaGraphNodeGetType(node[n], &type);
        if (error == cudaSuccess)
            count[graph_kind(type)]++;
    }
    free(node);
    if (error == cudaSuccess)
        tess__cuda_usage_launches(tess__cuda_selected(), count, slot == 0);
    else
        tess__cuda_log_error(cudaGetLastError(), "counting launches");
}

enum tess_status tess__cuda_graph_end(struct tess_kernel *kernel, int32_t slot)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->graph == 0)
        TESS_FAIL(TESS_ERR_INTERNAL, "kernel cuda: no graph is being recorded");
    cudaGraph_t graph = NULL;
    const cudaError_t error = cudaStreamEndCapture(tess__cuda_stream(kernel), &graph);
    state->graph = 0;
    TESS_TRY(tess__cuda_status(error, "cudaStreamEndCapture"));
    graph_count(graph, slot);
    enum tess_status status = TESS_OK;
    if (slot < 0 || slot >= TESS_GRAPH_SLOTS)
        status = tess_fail(TESS_ERR_INTERNAL, "kernel cuda: there is no graph slot %d", (int)slot);
    else
        status = graph_put(kernel, slot, graph);
    tess__cuda_log_error(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return status;
}

enum tess_status tess__cuda_graph_play(struct tess_kernel *kernel, int32_t slot)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (slot < 0 || slot >= TESS_GRAPH_SLOTS || state->graphs == NULL ||
        state->graphs->slot[slot] == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL, "kernel cuda: no graph was recorded in slot %d", (int)slot);
    CUDA_TRY(cudaGraphLaunch(state->graphs->slot[slot], tess__cuda_stream(kernel)));
    return TESS_OK;
}

void tess__cuda_graph_close(struct tess_kernel *kernel)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->graph > 0) {
        cudaGraph_t graph = NULL;
        tess__cuda_log_error(cudaStreamEndCapture(tess__cuda_stream(kernel), &graph),
                             "ending a record");
        if (graph != NULL)
            tess__cuda_log_error(cudaGraphDestroy(graph), "cudaGraphDestroy");
        state->graph = 0;
    }
    for (int slot = 0; state->graphs != NULL && slot < TESS_GRAPH_SLOTS; slot++)
        if (state->graphs->slot[slot] != NULL)
            tess__cuda_log_error(cudaGraphExecDestroy(state->graphs->slot[slot]),
                                 "cudaGraphExecDestroy");
    free(state->graphs);
    state->graphs = NULL;
}
