/* The inside of struct tess_engine, shared by the engine's files and by nobody else. */
#ifndef TESSERA_CORE_STATE_H
#define TESSERA_CORE_STATE_H

#include "comm/world.h"
#include "core/declare.h"
#include "core/engine.h"
#include "core/layout.h"
#include "core/scale.h"
#include "core/trace.h"
#include "core/weights.h"

#define TESS_SLOTS_MAX 4

/* Blocks that belong to the engine itself, in the order of enum tess_memory_kind. A slot is the
 * room of one micro-batch under way (struct tess_chunk). */
struct tess_engine_blocks {
    struct tess_block param, master, grad, optim;
    struct tess_block *unit_output; /* [slot_max, unit_count] */
    struct tess_block flow[2];      /* gradients between units: unit u's output gradient in u % 2 */
    struct tess_block *tensor; /* [slot_max, tensor_count]; those that live for a call only share
                                  unit_scratch */
    struct tess_block unit_scratch, remade_output;
    struct tess_block stage_input;   /* activations from the stage before; see pipeline.c */
    struct tess_block stage_grad[4]; /* gradients from the stage after and to the one before, two
                                        each in turn */
    struct tess_block kept_input, kept_label; /* [slot_max] where several are under way */
    struct tess_block crossing;               /* sums over parts of the tensor axis, in f32 */
    struct tess_block tied; /* gradients of a tied parameter from its other stage */
    struct tess_block all_output, all_output_grad; /* of all ranks, where the plan holds the loss */
    struct tess_block loss, correct;
    struct tess_block found; /* struct tess_verdict and engine->leaf_sum, one after the other */
    struct tess_block norms; /* see tess_optim_room */
    struct tess_block op_scratch, direction, update_chunk;
    struct tess_block *packed; /* [op_count], or all in packed_shared */
    struct tess_block packed_shared;
    struct tess_block input[TESS_SLOTS_MAX], label[TESS_SLOTS_MAX]; /* far memory: one */
    struct tess_block test_input, test_label;
};

/* unused.c's: parameters without a gradient, by their number in the model. Host memory. */
struct tess_unused {
    bool *pass;       /* [params] what the model's backward is handed */
    uint8_t *used;    /* [ranks of the mesh, params] in any micro-batch of the step, by the words of
                         unused.c; the others' rows are right in a conditional model, from exchange
                         to next step */
    uint8_t *skip;    /* [params] used by no rank; conditional models only, else NULL */
    int64_t *updates; /* [params] updates done, likewise */
};

/*
 * A run of units that a rank computes at a stretch: all of them, or a virtual stage of a pipeline.
 * Up to slot_count micro-batches are under way in it, forward done and backward not; micro-batch m
 * has slot m % slot_count.
 */
struct tess_chunk {
    int32_t unit_first, unit_end;
    int32_t slot_count;
    bool first, last;                    /* of the model: takes the input, ends in the loss */
    int32_t before, after;               /* ranks of the stage axis that run what lies around it */
    int64_t input_count;                 /* elements per row that come from the chunk before */
    int64_t input_begin;                 /* bytes, of its buffers in stage_input */
    int32_t forward_done, backward_done; /* micro-batches of the current step */
    struct tess_chunk_cost cost;         /* so far */
};

/* A micro-batch under way in a chunk. */
struct tess_flight {
    const void *input;      /* of the chunk's first unit */
    const int32_t *label;   /* of its rows, where the loss is computed */
    struct tess_event sent; /* of the last unit's output */
};

/* The order of a rank's work, and what comes and goes between stages; see pipeline.c. */
struct tess_engine_pipe {
    bool timed; /* see tess_engine_time_chunks */
    int32_t chunk_count;
    int32_t *stage_of;        /* [units of the model] virtual stage that runs it */
    struct tess_chunk *chunk; /* [chunk_count] */
    int32_t slot_max;
    struct tess_flight *flight; /* [chunk_count, slot_max] */
    struct tess_action *action; /* [action_count] of one step */
    int32_t action_count;
    struct tess_comm *forward, *backward; /* the stage axis, for activations and for gradients; NULL
                                             where there is one stage */
    struct tess_event *input_event;       /* [chunk_count, slot_max + 1] */
    struct tess_event grad_event[4];      /* as block.stage_grad */
    int32_t input_posted, grad_cursor;    /* actions before these have been asked for */
    int32_t grad_posted, grad_received, grad_sent; /* in this step; parity chooses the buffer */
};

/* What a step's time goes to; the phases of tess_comm_phase. */
enum tess_lap {
    TESS_LAP_DATA,
    TESS_LAP_FORWARD,
    TESS_LAP_BACKWARD,
    TESS_LAP_UPDATE,
    TESS_LAP_OTHER,
    TESS_LAP_COUNT
};

/* laps.c's: where a step's time goes, by the host's clock or, where kernels have a queue, by the
 * device's. */
struct tess_laps {
    struct tess_fence **fence; /* [fence_count]; NULL without a queue */
    enum tess_lap *of_fence;   /* [fence_count] what begins there */
    int32_t fence_count, fence_used;
    bool paused;
    enum tess_lap lap; /* since since_s, by the host's clock */
    double since_s;
    double spent_s[TESS_LAP_COUNT];
    double wait_s[TESS_LAP_COUNT]; /* exposed communication ever, when the step began */
};

/* record.c's: steps that are recorded once and played again. One record for steps that report their
 * loss and one for others. */
struct tess_record {
    bool on;
    struct tess_recorded {
        bool warm, made;
        double loss_scale; /* of the step that was recorded: in it as numbers */
        int64_t rows;
    } of[2];
};

/* batches.c's: batches on their way to far memory. Where the device's memory is the host's, loaders
 * write into it and there is none of this. */
struct tess_feed {
    void *pinned[TESS_SLOTS_MAX], *test_pinned; /* rows, then labels */
    struct tess_fence *sent;                    /* the latest batch has been copied */
};

/* What tess_pass_sum and its kin need; see crossing.c. */
struct tess_tensor_pass {
    struct tess_strategy *strategy; /* NULL without a tensor axis */
    struct tess_kernel *kernel;
    float *room; /* [levels, room_count] */
    int64_t room_count;
    bool canonical; /* sums are one tree over the parts, in f32 */
};

struct tess_engine {
    const struct tess_config *config;
    const struct tess_dataset *dataset;
    struct tess_comm *comm;                       /* all ranks; borrowed; NULL when only planned */
    struct tess_comm *axis_comm[TESS_AXIS_COUNT]; /* this rank's group along each; may be `comm`
                                                     itself where there is but one axis */
    struct tess_board *board;                     /* NULL without a world */
    struct tess_board own_board;
    struct tess_trace_lane *trace; /* borrowed; NULL: no time line */
    struct tess_kernel *kernel;
    struct tess_memory *memory;
    void *arena;

    struct tess_declare model;   /* all of it, cut along the tensor axis */
    struct tess_declare declare; /* what this rank keeps of it */
    const char **unit_name;      /* [units of the model] */
    void *model_state;
    struct tess_plan plan;
    struct tess_strategy strategy;        /* of the data axis */
    struct tess_strategy tensor_strategy; /* ops NULL without one */
    struct tess_engine_pipe pipe;
    struct tess_tensor_pass crossing;
    struct tess_engine_blocks block;

    /* Geometry. */
    int64_t batch_size; /* global */
    int64_t leaf_rows;
    int64_t rows;       /* of one rank's micro-batch */
    int64_t leaf_count; /* of one rank's micro-batch */
    int64_t loss_ranks; /* ranks whose loss is computed here: 1, N or 0 */
    int64_t steps_per_epoch, step_count;
    int64_t step_rows;   /* images that count in the current step: fewer in a short last batch */
    int64_t test_leaves; /* leaves of the test split */
    int32_t slot_count;
    size_t dtype_bytes, input_bytes; /* of one element */
    int64_t class_count;
    int64_t labels; /* of a row */

    /* Bound when the arena exists. */
    void **unit_output; /* [slot_max, unit_count] */
    void *flow[2];
    void **tensor;             /* [slot_max, tensors of the model] */
    struct tess_op *op;        /* [op_count] */
    struct tess_op **op_of;    /* [operations of the model] pointers to op, or NULL */
    size_t *packed_bytes;      /* [op_count] */
    bool packed_kept;          /* every operation has its own packed memory */
    const void **param_of;     /* [parameters of the model], NULL where another rank keeps it */
    float **grad_of;           /* likewise */
    int32_t *unit_param_first; /* [unit_count + 1] */
    int32_t *unit_op_first;    /* [unit_count + 1] */
    float *loss;               /* [loss rows] */
    int32_t *correct;
    double *leaf_sum; /* [2 max(grid, test leaves) + 2]: loss, correct of each leaf; then zeros of
                         the gradients, of those by the logits */
    struct tess_verdict *verdict;
    void *found; /* host, pinned: the block `found` as it was read last */
    void *told;  /* host, pinned: see tess_optim_room */
    struct tess_laps laps;
    struct tess_feed feed;
    struct tess_record record;

    struct tess_weights *weights; /* to begin with; NULL: drawn from the seed */
    struct tess_loader *loader, *test_loader;
    struct tess_optim optim;
    struct tess_piece *piece;
    struct tess_scale scale;
    int64_t grad_total; /* elements of all parameters that have gradients */
    struct tess_unused unused;
    bool count_zeros;      /* in the current step: in the gradient by the logits */
    int64_t step;          /* steps done */
    double rate;           /* learning rate of the current step */
    uint64_t weight_token; /* changes when the weights do */
    bool opened_ops, opened_strategy, adopted;
};

/* engine.c: an empty engine; everything but memory, communication and data. */
enum tess_status tess__engine_new(const struct tess_config *config,
                                  const struct tess_dataset *dataset,
                                  struct tess_engine **engine_out);
enum tess_status tess__engine_plan(struct tess_engine *engine, int32_t rank);

/* reserve.c: reserve every block; bind pointers once the memory is committed. */
enum tess_status tess__engine_reserve(struct tess_engine *engine);
enum tess_status tess__engine_bind(struct tess_engine *engine);

/* How a unit's activations are kept, by --recompute. */
enum tess_recompute tess__engine_recompute(const struct tess_engine *engine, int32_t unit);

/* pass.c: the parts of a step that evaluation shares. `row_first`: row 0 in the global batch. */
enum tess_status tess__engine_forward(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                      uint64_t row_first);
/* output_grad: of the chunk's last unit, NULL where the chunk is the last; input_grad: of its first
 * unit, NULL where it is the first. */
enum tess_status tess__engine_backward(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                       uint64_t row_first, void *output_grad, void *input_grad);
/* Fetch a batch from a loader and let the strategy hand out rows; label_out is for the loss. */
enum tess_status tess__engine_batch(struct tess_engine *engine, struct tess_loader *loader,
                                    const void **input_out, const int32_t **label_out);
/* Loss of the last unit's output in a slot, where the model does not compute it itself and this
 * rank does. */
enum tess_status tess__engine_loss(struct tess_engine *engine, int32_t slot, bool gradient);

/*
 * pipeline.c: the chunks of this rank, from the config's stage axis and the model; needs
 * engine->model. Pure. open: groups, buffers. fini takes what was never opened.
 */
enum tess_status tess__engine_pipe_plan(struct tess_engine *engine);
enum tess_status tess__engine_pipe_reserve(struct tess_engine *engine);
enum tess_status tess__engine_pipe_open(struct tess_engine *engine);
void tess__engine_pipe_close(struct tess_engine *engine);
/* All micro-batches of a step, forward and backward, in the order of the schedule. Collective. */
enum tess_status tess__engine_pipe_step(struct tess_engine *engine);
/* One batch of the test split, forward through all chunks of this rank. Collective. */
enum tess_status tess__engine_pipe_evaluate(struct tess_engine *engine);

/* Does this rank need batches: inputs, or the labels of the loss? */
static inline bool tess__engine_loads(const struct tess_engine *engine)
{
    return engine->pipe.chunk[0].first || engine->pipe.chunk[engine->pipe.chunk_count - 1].last;
}

/* Does this rank compute losses? The last stage does. */
static inline bool tess__engine_has_loss(const struct tess_engine *engine)
{
    return engine->pipe.chunk[engine->pipe.chunk_count - 1].last;
}

/* crossing.c */
enum tess_status tess__crossing_reserve(struct tess_engine *engine);
void tess__crossing_open(struct tess_engine *engine);
/* After grads_finish: gradients of whole parameters whose backward has seen this rank's positions
 * alone. Once a step, so that sums over leaves come first on every layout. Collective. */
enum tess_status tess__crossing_finish(struct tess_engine *engine);

/* tied.c: reserve room for, and after grads_finish add, the gradients of a tied parameter and its
 * source, on one rank or between two stages. Collective over the stage axis. */
enum tess_status tess__tied_reserve(struct tess_engine *engine);
enum tess_status tess__tied_finish(struct tess_engine *engine);
uint64_t tess__tied_sent_bytes(const struct tess_engine *engine); /* in a step, between stages */

/* Where in the block `found`, and in its copy on the host, the sums begin. */
#define TESS_FOUND_SUMS 64
_Static_assert(sizeof(struct tess_verdict) <= TESS_FOUND_SUMS,
               "the verdict has room before the sums");

/* Read the block `found`, the verdict and the first `sums` numbers of leaf_sum, into engine->found:
 * waits for the device. */
enum tess_status tess__engine_find(struct tess_engine *engine, int64_t sums);
static inline struct tess_verdict tess__engine_verdict(const struct tess_engine *engine)
{
    return *(const struct tess_verdict *)engine->found;
}
static inline const double *tess__engine_sums(const struct tess_engine *engine)
{
    return (const double *)(const void *)((const char *)engine->found + TESS_FOUND_SUMS);
}

/*
 * record.c. plan: whether steps are to be recorded, TESS_ERR_USAGE where they cannot be. run: have
 * `queue` give a step's work to the device, or play what it gave before; the learning rate and the
 * like have been told (tess_optim_tell).
 */
enum tess_status tess__record_plan(struct tess_engine *engine);
enum tess_status tess__record_run(struct tess_engine *engine, bool want_loss,
                                  enum tess_status (*queue)(struct tess_engine *, bool want_loss));

/*
 * laps.c. open: after the kernel and the pipe's plan. begin, then enter whenever the rank turns to
 * something else; stop when the step's work has been queued, and end when it has been waited for:
 * fills data, forward, backward, optim and comm of the times.
 */
enum tess_status tess__laps_open(struct tess_engine *engine);
void tess__laps_close(struct tess_engine *engine);
enum tess_status tess__laps_begin(struct tess_engine *engine);
enum tess_status tess__laps_enter(struct tess_engine *engine, enum tess_lap lap);
/* While paused, what the queue is given is recorded for later and has no times. */
void tess__laps_pause(struct tess_engine *engine, bool on);
enum tess_status tess__laps_stop(struct tess_engine *engine);
enum tess_status tess__laps_end(struct tess_engine *engine, struct tess_times *times);

/* Bytes of one row of the input. */
static inline int64_t tess__engine_row_bytes(const struct tess_engine *engine)
{
    return tess_shape_count(&engine->dataset->row) * (int64_t)engine->input_bytes;
}

/* Are all batches of a step there before it begins, in places of their own? So it is where steps
 * are recorded. */
static inline bool tess__engine_feeds_ahead(const struct tess_engine *engine)
{
    return engine->config->cuda.graph;
}

/* batches.c: bytes of a batch's rows as loaders fill them, up to the labels that follow in pinned
 * memory; and of its labels. Pure. */
int64_t tess__engine_batch_bytes(const struct tess_engine *engine, int64_t *label_bytes_out);

/* batches.c: rows that count in step `step` (from 0); the loaders, where this rank needs any. */
int64_t tess__engine_step_rows(const struct tess_engine *engine, int64_t step);
enum tess_status tess__engine_open_loaders(struct tess_engine *engine);
void tess__engine_close_loaders(struct tess_engine *engine);
/* Where steps are recorded: all batches of the coming one. */
enum tess_status tess__engine_feed_ahead(struct tess_engine *engine);
/* The next batch of a loader, in device memory. */
enum tess_status tess__engine_feed(struct tess_engine *engine, struct tess_loader *loader,
                                   void **input_out, int32_t **label_out);

/*
 * unused.c: notes around each unit's backward; leave gives what was not used a gradient of zero.
 * finish, after the reduction and before anything is updated, exchanges the notes of a conditional
 * model (collective then) and refuses the step without find_unused: TESS_ERR_USAGE on rank 0, which
 * says why, TESS_ERR_ABORTED on the others. close accepts a half-opened one.
 */
enum tess_status tess__unused_open(struct tess_engine *engine);
void tess__unused_close(struct tess_engine *engine);
void tess__unused_begin(struct tess_engine *engine); /* of a step */
void tess__unused_enter(struct tess_engine *engine, int32_t unit);
enum tess_status tess__unused_leave(struct tess_engine *engine, int32_t unit);
enum tess_status tess__unused_finish(struct tess_engine *engine);

/* params.c */
enum tess_status tess__engine_init_params(struct tess_engine *engine);

/*
 * params.c: what this rank holds of the parameters, for host code, from open to close; meanwhile
 * nothing may change them. Memory of the device is open to the host for so long, or, where it is
 * far, read ahead in greater pieces than the host looks at.
 */
struct tess_values {
    struct tess_engine *engine;
    void *ahead;                              /* far memory: a copy of elements of one piece */
    const void *ahead_of;                     /* that piece's first element on the device */
    int64_t ahead_from, ahead_end, ahead_max; /* elements */
};

/* `ahead`: elements to read at a time where memory is far; one piece's are enough. */
enum tess_status tess__values_open(struct tess_engine *engine, int64_t ahead,
                                   struct tess_values *values_out);
/*
 * Elements [from, from + count) of a piece as f32: its master, or its small values widened into
 * `room` [count]. count <= ahead. Good until the next call and close.
 */
enum tess_status tess__values_get(struct tess_values *values, const struct tess_piece *piece,
                                  int64_t from, int64_t count, float *room, const float **x_out);
void tess__values_close(struct tess_values *values); /* a zeroed one is allowed */

/* Reading once from the first element to the last: 4 MiB of f32, so that a copy is as fast as it
 * gets. */
#define TESS_VALUES_AHEAD (INT64_C(1) << 20)

/* Does this rank stand for its pieces (but for duplicates) in sums over all ranks, so that each
 * element of the model is counted once? The first shard group does, or rank 0 where nothing is
 * sharded. */
static inline bool tess__engine_counts(const struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    const bool sharded = plan->optim_extent == TESS_EXTENT_SHARD && plan->shard_count > 1;
    return plan->rank < (sharded ? plan->shard_count : 1);
}

/* Where leaf `leaf` of this rank's loss rows stands in the canonical order. */
int64_t tess__engine_leaf_index(const struct tess_engine *engine, int64_t leaf);

/* diagnose.c: ranks as a message lists them, "1, 3": the first few, then how many more. Zeroed at
 * first; text is whole after each add. */
struct tess_rank_list {
    int32_t count;
    size_t length;
    char text[96];
};
void tess__rank_list_add(struct tess_rank_list *list, int32_t rank);

/* diagnose.c: name the step, unit and tensor of the chunk that first holds a NaN or infinity; the
 * loss of a row has one, or what the chunk hands on (loss_row -1). Always fails. */
enum tess_status tess__engine_diagnose(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                       int64_t loss_row);
/* The same if the output of the chunk's last unit is not finite. */
enum tess_status tess__engine_check_output(struct tess_engine *engine, int32_t chunk, int32_t slot);

/* Test leaves that all ranks compute in one pass, and the passes that the split takes. */
static inline int64_t tess__engine_test_width(const struct tess_engine *engine)
{
    return engine->leaf_count * engine->plan.rank_count;
}

static inline int64_t tess__engine_test_passes(const struct tess_engine *engine)
{
    int64_t width = tess__engine_test_width(engine);
    return (engine->test_leaves + width - 1) / width;
}

/* A range for the device's own profiler, around what the host queues until the next NULL; ranges
 * may lie in one another. Nothing where there is no device. */
static inline void tess__engine_range(const struct tess_engine *engine, const char *name)
{
    const struct tess_module *module = engine->config->device.module;

    if (module == NULL)
        return;
    if (name != NULL)
        module->range_begin(name);
    else
        module->range_end();
}

/* `unit` is this rank's, or -1; others are told its number in the model. */
static inline void tess__engine_doing(struct tess_engine *engine, enum tess_doing doing,
                                      int32_t unit)
{
    unit = unit >= 0 ? engine->declare.unit[unit].index : unit;
    atomic_store_explicit(&engine->board->doing, (int32_t)doing, memory_order_relaxed);
    atomic_store_explicit(&engine->board->unit, unit, memory_order_relaxed);
    if (engine->trace != NULL)
        tess_trace_doing(engine->trace, doing, unit, engine->strategy.training);
}

#endif
