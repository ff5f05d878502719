/*
 * Recording of streams as graphs, and playing them (CUDA C++ programming guide, "Creating a graph
 * using stream capture"). Only the relaxed mode is modelled. A graph is played as its nodes on the
 * queues of the streams that they were recorded in, one branch as far as it comes before the next
 * one is begun, the latest branch first: an order that the edges allow, and seldom the one in which
 * they were recorded.
 */
#include "device/madeup/runtime.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_STREAMS 64
#define RECORDS_MAX    64

enum graph_kind { GRAPH_WORK, GRAPH_RECORD, GRAPH_WAIT };

/* Nodes of the record of this number, in no order. */
struct madeup_points {
    uint64_t record;
    int count;
    int node[];
};

struct graph_node {
    enum graph_kind kind;
    struct madeup_work work;
    cudaEvent_t event;
    struct madeup_queue *queue;
    struct madeup_points *before;
    bool marked; /* a node of another queue comes after it, or it is among the last */
    bool last;   /* none comes after it */
};

/* Shared by a graph, what was made of it, and plays that have not ended; fixed once recorded. */
struct CUgraph_st {
    _Atomic int users;
    int count, room;
    struct graph_node *node;
    int *order; /* of playing */
};

struct CUgraphExec_st {
    struct CUgraph_st *graph;
    struct madeup_mark *played; /* the end of its latest play */
};

struct madeup_record {
    uint64_t number;
    bool spoilt;
    struct CUgraph_st *graph;
    cudaStream_t stream[RECORD_STREAMS]; /* those that have joined; 0: the one that it began in */
    int streams;
};

static struct {
    pthread_mutex_t lock;
    uint64_t begun;
    struct madeup_record *record[RECORDS_MAX];
} graphs = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- graphs --------------------------------------------------------------------------------- */

static void *graph_room(void *before, size_t bytes)
{
    void *room = realloc(before, bytes);
    if (room == NULL)
        madeup_fail("no memory for a graph");
    return room;
}

static struct madeup_points *graph_points(uint64_t record, int count, const int *node)
{
    struct madeup_points *points =
        graph_room(NULL, sizeof(*points) + (size_t)count * sizeof(*node));
    points->record = record;
    points->count = count;
    if (count > 0)
        memcpy(points->node, node, (size_t)count * sizeof(*node));
    return points;
}

static void graph_drop(void *owner)
{
    struct CUgraph_st *graph = owner;
    if (atomic_fetch_sub(&graph->users, 1) != 1)
        return;
    for (int i = 0; i < graph->count; i++) {
        const struct madeup_work *work = &graph->node[i].work;
        if (work->drop != NULL)
            work->drop(work->context);
        free(graph->node[i].before);
    }
    free(graph->node);
    free(graph->order);
    free(graph);
}

/* ---- recording; all of it locked ------------------------------------------------------------ */

static struct madeup_record *record_find(uint64_t number)
{
    for (int r = 0; r < RECORDS_MAX; r++)
        if (graphs.record[r] != NULL && graphs.record[r]->number == number)
            return graphs.record[r];
    return NULL;
}

/* After what the stream's latest node comes after; the next comes after this one. */
static cudaError_t record_add(cudaStream_t stream, const struct graph_node *node)
{
    struct madeup_record *record = stream->record;
    struct CUgraph_st *graph = record->graph;
    if (record->spoilt)
        return cudaErrorStreamCaptureInvalidated;
    if (graph->count == graph->room) {
        graph->room = graph->room > 0 ? 2 * graph->room : 64;
        graph->node = graph_room(graph->node, (size_t)graph->room * sizeof(*node));
    }
    struct graph_node *own = &graph->node[graph->count];
    *own = *node;
    own->queue = stream->queue;
    own->before = stream->tail;
    stream->tail = graph_points(record->number, 1, &graph->count);
    graph->count++;
    return cudaSuccess;
}

static void record_join(struct madeup_record *record, cudaStream_t stream)
{
    if (record->streams == RECORD_STREAMS)
        madeup_fail("more than %d streams in a record are not modelled", RECORD_STREAMS);
    record->stream[record->streams++] = stream;
    stream->record = record;
    stream->tail = graph_points(record->number, 0, NULL);
}

/* The stream's next node comes after these as well. */
static void record_follow(cudaStream_t stream, const struct madeup_points *points)
{
    struct madeup_points *tail = stream->tail;
    tail = graph_room(tail, sizeof(*tail) +
                                (size_t)(tail->count + points->count) * sizeof(tail->node[0]));
    for (int p = 0; p < points->count; p++) {
        bool there = false;
        for (int t = 0; t < tail->count && !there; t++)
            there = tail->node[t] == points->node[p];
        if (!there)
            tail->node[tail->count++] = points->node[p];
    }
    stream->tail = tail;
}

static cudaError_t record_wait(cudaStream_t stream, cudaEvent_t event)
{
    const struct madeup_points *points = event->points;
    struct madeup_record *own = stream->record;
    if (own != NULL && own->spoilt)
        return cudaErrorStreamCaptureInvalidated;
    if (points == NULL) { /* work outside of the record; never recorded: nothing to wait for */
        own->spoilt = event->mark != NULL;
        return own->spoilt ? cudaErrorStreamCaptureIsolation : cudaSuccess;
    }
    struct madeup_record *record = record_find(points->record);
    if (record == NULL)
        return cudaErrorCapturedEvent;
    if (own != NULL && own != record) {
        own->spoilt = record->spoilt = true;
        return cudaErrorStreamCaptureMerge;
    }
    if (own == NULL)
        record_join(record, stream);
    record_follow(stream, points);
    return record->spoilt ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaError_t madeup_record_work(cudaStream_t stream, const struct madeup_work *work)
{
    pthread_mutex_lock(&graphs.lock);
    const cudaError_t error =
        record_add(stream, &(struct graph_node){.kind = GRAPH_WORK, .work = *work});
    pthread_mutex_unlock(&graphs.lock);
    if (error != cudaSuccess && work->drop != NULL)
        work->drop(work->context);
    return error;
}

cudaError_t madeup_record_event(cudaStream_t stream, cudaEvent_t event, bool external)
{
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&graphs.lock);
    if (external)
        error = record_add(stream, &(struct graph_node){.kind = GRAPH_RECORD, .event = event});
    else if (stream->record->spoilt)
        error = cudaErrorStreamCaptureInvalidated;
    else
        madeup_event_set_points(
            event, graph_points(stream->tail->record, stream->tail->count, stream->tail->node));
    pthread_mutex_unlock(&graphs.lock);
    return error;
}

cudaError_t madeup_record_wait(cudaStream_t stream, cudaEvent_t event, bool external)
{
    pthread_mutex_lock(&graphs.lock);
    const cudaError_t error =
        external ? record_add(stream, &(struct graph_node){.kind = GRAPH_WAIT, .event = event})
                 : record_wait(stream, event);
    pthread_mutex_unlock(&graphs.lock);
    return error;
}

cudaError_t madeup_record_spoil(cudaStream_t stream)
{
    pthread_mutex_lock(&graphs.lock);
    stream->record->spoilt = true;
    pthread_mutex_unlock(&graphs.lock);
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t madeup_record_spoil_event(cudaEvent_t event)
{
    pthread_mutex_lock(&graphs.lock);
    struct madeup_record *record =
        event->points != NULL ? record_find(event->points->record) : NULL;
    if (record != NULL)
        record->spoilt = true;
    pthread_mutex_unlock(&graphs.lock);
    return cudaErrorCapturedEvent;
}

cudaError_t madeup_record_spoil_device(int device)
{
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&graphs.lock);
    for (int r = 0; r < RECORDS_MAX; r++) {
        struct madeup_record *record = graphs.record[r];
        for (int s = 0; record != NULL && s < record->streams; s++) {
            if (record->stream[s]->device != device)
                continue;
            record->spoilt = true;
            error = cudaErrorStreamCaptureUnsupported;
        }
    }
    pthread_mutex_unlock(&graphs.lock);
    return error;
}

/* ---- beginning and ending a record ---------------------------------------------------------- */

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorInvalidValue);
    if (error != cudaSuccess)
        return error;
    pthread_mutex_lock(&graphs.lock);
    const struct madeup_record *record = madeup_stream(stream)->record;
    *status = record == NULL   ? cudaStreamCaptureStatusNone
              : record->spoilt ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
    pthread_mutex_unlock(&graphs.lock);
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorInvalidValue);
    if (error != cudaSuccess)
        return error;
    if (mode != cudaStreamCaptureModeRelaxed)
        madeup_fail("only the relaxed mode of capture is modelled");
    if (madeup_is_recorded(stream))
        return madeup_leave(cudaErrorIllegalState);
    struct madeup_record *record = calloc(1, sizeof(*record));
    struct CUgraph_st *graph = calloc(1, sizeof(*graph));
    if (record == NULL || graph == NULL)
        madeup_fail("no memory for a record");
    graph->users = 1;
    record->graph = graph;
    pthread_mutex_lock(&graphs.lock);
    int at = 0;
    while (at < RECORDS_MAX && graphs.record[at] != NULL)
        at++;
    if (at == RECORDS_MAX)
        madeup_fail("more than %d records at a time are not modelled", RECORDS_MAX);
    graphs.record[at] = record;
    record->number = ++graphs.begun;
    record_join(record, stream);
    pthread_mutex_unlock(&graphs.lock);
    return cudaSuccess;
}

static void graph_see(const struct CUgraph_st *graph, int node, bool *seen)
{
    if (seen[node])
        return;
    seen[node] = true;
    for (int b = 0; b < graph->node[node].before->count; b++)
        graph_see(graph, graph->node[node].before->node[b], seen);
}

/* Locked: does all that any of the streams did come before the end of the first one? */
static bool record_is_joined(const struct madeup_record *record)
{
    bool *seen = calloc((size_t)record->graph->count + 1, sizeof(*seen));
    if (seen == NULL)
        madeup_fail("no memory to end a record");
    const struct madeup_points *end = record->stream[0]->tail;
    for (int e = 0; e < end->count; e++)
        graph_see(record->graph, end->node[e], seen);
    bool joined = true;
    for (int s = 1; s < record->streams; s++)
        for (int t = 0; t < record->stream[s]->tail->count; t++)
            joined = joined && seen[record->stream[s]->tail->node[t]];
    free(seen);
    return joined;
}

/* Locked. The streams are as before it, but for their work. */
static void record_close(struct madeup_record *record)
{
    for (int s = 0; s < record->streams; s++) {
        record->stream[s]->record = NULL;
        free(record->stream[s]->tail);
        record->stream[s]->tail = NULL;
    }
    for (int r = 0; r < RECORDS_MAX; r++)
        if (graphs.record[r] == record)
            graphs.record[r] = NULL;
    free(record);
}

static cudaError_t record_end(cudaStream_t stream, struct CUgraph_st **graph_out)
{
    struct madeup_record *record = stream->record;
    if (record == NULL)
        return cudaErrorIllegalState;
    if (record->stream[0] != stream) {
        record->spoilt = true;
        return cudaErrorStreamCaptureUnmatched;
    }
    const cudaError_t error = record->spoilt              ? cudaErrorStreamCaptureInvalidated
                              : !record_is_joined(record) ? cudaErrorStreamCaptureUnjoined
                                                          : cudaSuccess;
    if (error == cudaSuccess)
        *graph_out = record->graph;
    else
        graph_drop(record->graph);
    record_close(record);
    return error;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph_out)
{
    cudaError_t error = madeup_enter(__func__, cudaErrorStreamCaptureInvalidated);
    *graph_out = NULL;
    pthread_mutex_lock(&graphs.lock);
    if (error != cudaSuccess && madeup_stream(stream)->record != NULL)
        stream->record->spoilt = true;
    const cudaError_t ended = record_end(madeup_stream(stream), graph_out);
    pthread_mutex_unlock(&graphs.lock);
    return madeup_leave(error != cudaSuccess ? error : ended);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    graph_drop(graph);
    return madeup_enter("cudaGraphDestroy", cudaErrorInvalidValue);
}

/* Nodes are this file's own, in an array. */
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorInvalidValue);
    if (error != cudaSuccess)
        return error;
    if (nodes != NULL && *count < (size_t)graph->count)
        madeup_fail("cudaGraphGetNodes of a part of the nodes is not modelled");
    for (int i = 0; nodes != NULL && i < graph->count; i++)
        nodes[i] = (cudaGraphNode_t)&graph->node[i];
    *count = (size_t)graph->count;
    return cudaSuccess;
}

/* ---- playing -------------------------------------------------------------------------------- */

/* What comes before a node, the latest first, then the node. */
static void graph_sort(struct CUgraph_st *graph, int node, bool *seen, int *count)
{
    if (seen[node])
        return;
    seen[node] = true;
    const struct madeup_points *before = graph->node[node].before;
    for (int b = before->count - 1; b >= 0; b--)
        graph_sort(graph, before->node[b], seen, count);
    graph->order[(*count)++] = node;
}

static void graph_prepare(struct CUgraph_st *graph)
{
    bool *seen = calloc((size_t)graph->count + 1, sizeof(*seen));
    if (seen == NULL)
        madeup_fail("no memory to make a graph ready");
    graph->order = graph_room(NULL, ((size_t)graph->count + 1) * sizeof(*graph->order));
    int count = 0;
    for (int i = graph->count - 1; i >= 0; i--) {
        graph_sort(graph, i, seen, &count);
        graph->node[i].marked = graph->node[i].last = true;
    }
    for (int i = 0; i < graph->count; i++)
        for (int b = 0; b < graph->node[i].before->count; b++)
            graph->node[graph->node[i].before->node[b]].marked =
                graph->node[graph->node[i].before->node[b]].last = false;
    for (int i = 0; i < graph->count; i++)
        for (int b = 0; b < graph->node[i].before->count; b++) {
            struct graph_node *before = &graph->node[graph->node[i].before->node[b]];
            before->marked = before->marked || before->queue != graph->node[i].queue;
        }
    free(seen);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec_out, cudaGraph_t graph,
                                 unsigned long long flags)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorMemoryAllocation);
    if (error != cudaSuccess)
        return error;
    if (flags != 0)
        madeup_fail("cudaGraphInstantiate with flags is not modelled");
    struct CUgraphExec_st *exec = calloc(1, sizeof(*exec));
    if (exec == NULL)
        madeup_fail("no memory for a graph");
    if (graph->order == NULL)
        graph_prepare(graph);
    atomic_fetch_add(&graph->users, 1);
    exec->graph = graph;
    *exec_out = exec;
    return cudaSuccess;
}

/* 0: memcpy, 1: memset, 2: a kernel; which nodes cannot take each other's place. */
static int graph_type(const struct graph_node *node)
{
    const char *name = node->kind == GRAPH_WORK ? node->work.name : "";
    return strcmp(name, "cudaMemcpyAsync") == 0 ? 0 : strcmp(name, "cudaMemsetAsync") == 0 ? 1 : 2;
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, enum cudaGraphNodeType *type)
{
    static const enum cudaGraphNodeType work[] = {cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeMemset,
                                                  cudaGraphNodeTypeKernel};
    const struct graph_node *own = (const struct graph_node *)node;
    const cudaError_t error = madeup_enter(__func__, cudaErrorInvalidValue);
    *type = own->kind == GRAPH_RECORD ? cudaGraphNodeTypeEventRecord
            : own->kind == GRAPH_WAIT ? cudaGraphNodeTypeWaitEvent
                                      : work[graph_type(own)];
    return error;
}

static enum cudaGraphExecUpdateResult graph_compare(const struct CUgraph_st *a,
                                                    const struct CUgraph_st *b)
{
    if (a->count != b->count)
        return cudaGraphExecUpdateErrorTopologyChanged;
    for (int i = 0; i < a->count; i++) {
        const struct graph_node *x = &a->node[i], *y = &b->node[i];
        if (x->kind != y->kind || graph_type(x) != graph_type(y))
            return cudaGraphExecUpdateErrorNodeTypeChanged;
        if (x->before->count != y->before->count ||
            memcmp(x->before->node, y->before->node,
                   (size_t)x->before->count * sizeof(x->before->node[0])) != 0)
            return cudaGraphExecUpdateErrorTopologyChanged;
    }
    return cudaGraphExecUpdateSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo *result)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorGraphExecUpdateFailure);
    if (error != cudaSuccess)
        return error;
    memset(result, 0, sizeof(*result));
    result->result = graph_compare(exec->graph, graph);
    if (result->result != cudaGraphExecUpdateSuccess)
        return madeup_leave(cudaErrorGraphExecUpdateFailure);
    if (graph->order == NULL)
        graph_prepare(graph);
    atomic_fetch_add(&graph->users, 1);
    graph_drop(exec->graph);
    exec->graph = graph;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)exec;
    (void)madeup_stream(stream);
    return madeup_enter(__func__, cudaErrorLaunchFailure);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    madeup_mark_drop(exec->played);
    graph_drop(exec->graph);
    free(exec);
    return madeup_enter("cudaGraphExecDestroy", cudaErrorInvalidValue);
}

/* What external waits wait for: the event's latest record before them, in this play or not. */
static void play_find_marks(const struct CUgraph_st *graph, struct madeup_mark **mark,
                            struct madeup_mark **wait)
{
    for (int i = 0; i < graph->count; i++) {
        const struct graph_node *node = &graph->node[i];
        if (node->kind == GRAPH_RECORD || node->marked)
            mark[i] = madeup_mark_new(node->queue);
        if (node->kind != GRAPH_WAIT)
            continue;
        int from = i - 1;
        while (from >= 0 &&
               (graph->node[from].kind != GRAPH_RECORD || graph->node[from].event != node->event))
            from--;
        wait[i] = from >= 0 ? madeup_mark_keep(mark[from]) : madeup_event_mark(node->event);
    }
}

static void play_node(struct CUgraph_st *graph, int i, struct madeup_mark *start,
                      struct madeup_mark **mark, struct madeup_mark *wait)
{
    const struct graph_node *node = &graph->node[i];
    for (int b = 0; b < node->before->count; b++)
        if (graph->node[node->before->node[b]].queue != node->queue)
            (void)madeup_put_wait(node->queue, mark[node->before->node[b]]);
    if (node->before->count == 0)
        (void)madeup_put_wait(node->queue, start);
    struct madeup_item item = {.work = node->work, .wait = wait};
    item.work.drop = NULL;
    item.reach = madeup_mark_keep(mark[i]);
    item.release = graph_drop;
    item.owner = graph;
    atomic_fetch_add(&graph->users, 1);
    (void)madeup_put(node->queue, &item);
    if (node->kind == GRAPH_RECORD)
        madeup_event_set(node->event, madeup_mark_keep(mark[i]));
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    const cudaError_t error = madeup_enter(__func__, cudaErrorLaunchFailure);
    if (error != cudaSuccess)
        return error;
    struct CUstream_st *own = madeup_stream(stream);
    struct CUgraph_st *graph = exec->graph;
    if (own->record != NULL)
        madeup_fail("a graph within a graph is not modelled");
    const size_t room = (size_t)graph->count + 1;
    struct madeup_mark **mark = calloc(room, sizeof(*mark)), **wait = calloc(room, sizeof(*wait));
    if (mark == NULL || wait == NULL)
        madeup_fail("no memory to play a graph");
    play_find_marks(graph, mark, wait);
    if (exec->played != NULL) /* plays of one graph come after each other */
        (void)madeup_put_wait(own->queue, exec->played);
    struct madeup_mark *start = madeup_mark_new(own->queue);
    (void)madeup_put(own->queue, &(struct madeup_item){.reach = madeup_mark_keep(start)});
    for (int i = 0; i < graph->count; i++)
        play_node(graph, graph->order[i], start, mark, wait[graph->order[i]]);
    for (int i = 0; i < graph->count; i++)
        if (graph->node[i].last)
            (void)madeup_put_wait(own->queue, mark[i]);
    madeup_mark_drop(exec->played);
    exec->played = madeup_mark_new(own->queue);
    own->last =
        madeup_put(own->queue, &(struct madeup_item){.reach = madeup_mark_keep(exec->played)});
    for (int i = 0; i < graph->count; i++)
        madeup_mark_drop(mark[i]);
    madeup_mark_drop(start);
    free(mark);
    free(wait);
    return cudaSuccess;
}
