/* The inside of struct tess_engine, shared by the engine's files only. Parts that need no more than
 * themselves have headers of their own. */
#ifndef TESSERA_CORE_STATE_H
#define TESSERA_CORE_STATE_H

#include "comm/world.h"
#include "core/engine.h"
#include "core/layout.h"
#include "core/schedule.h"
#include "core/trace.h"
#include "optim/scale.h"
#include "state/checkpoint.h"
#include "state/declare.h"
#include "state/weights.h"

/* Blocks of the arena, in the order of enum tess_memory_kind. A slot is the room of one micro-batch
 * under way (struct tess_chunk). */
struct tess_blocks {
    struct tess_block param, master, grad, optim;
    struct tess_block *unit_output; /* [slot_max, unit_count] */
    struct tess_block flow[2];      /* gradients between units: unit u's output gradient in u % 2 */
    struct tess_block *tensor; /* [slot_max, tensor_count]; those that live for a call only share
                                  unit_scratch */
    struct tess_block unit_scratch, remade_output;
    uint64_t activation_bytes;  /* of all these from unit_output on, padded */
    struct tess_block crossing; /* sums over parts of the tensor axis, in f32 */
    struct tess_block tied;     /* gradients of a tied parameter from its other stage */
    struct tess_block all_output, all_output_grad; /* of all ranks, where the plan holds the loss */
    struct tess_block loss, correct;
    struct tess_block found; /* struct tess_verdict and found.sums, one after the other */
    struct tess_block norms; /* see tess_optim_room */
    struct tess_block op_scratch, direction, update_chunk;
    struct tess_block thread_scratch; /* of the kernel's threads but the first, thread_bytes each */
    size_t thread_bytes;
    struct tess_block staging; /* beside the arena: core/save.h */
    struct tess_block *packed; /* [op_count], or all in packed_shared */
    struct tess_block packed_shared;
};

/* Pointers into the arena and operations, bound when it exists. */
struct tess_tables {
    void **tensor;             /* [slot_max, tensors of the model] */
    struct tess_op *op;        /* [op_count] */
    struct tess_op **op_of;    /* [operations of the model] pointers to op, or NULL */
    bool packed_kept;          /* every operation has its own packed memory */
    const void **param_of;     /* [parameters of the model], NULL where another rank keeps it */
    float **grad_of;           /* likewise */
    int32_t *unit_param_first; /* [unit_count + 1] */
    int32_t *unit_op_first;    /* [unit_count + 1] */
};

/* Results of a step or an evaluation. */
struct tess_found {
    float *loss; /* [loss rows], device */
    float *each; /* tess_engine_each's; borrowed */
    int32_t *correct;
    double *sums; /* device [2 max(grid, test leaves) + 2]: loss, correct of each leaf; then zeros
                     of the gradients, of those by the logits */
    struct tess_verdict *verdict; /* device */
    void *host;                   /* pinned: the block `found` as it was read last */
};

/* Where the run stands. */
struct tess_progress {
    int64_t step;          /* steps done */
    int64_t step_rows;     /* rows that count in the current step: fewer in a short last batch */
    int64_t test_pass;     /* of an evaluation */
    int64_t step_labels;   /* labels of them that are not ignored, over all ranks */
    double rate;           /* learning rate of the current step */
    uint64_t weight_token; /* changes when the weights do */
    bool count_zeros;      /* in the current step: in the gradient by the logits */
    /* Of the epoch's steps so far: this rank's part of the exact sum of losses from 0 on, and of
     * those below by their magnitude. So it matters neither which rank adds a leaf nor when. */
    struct tess_sum epoch_loss[2];
};

/* step.c's: steps that are recorded once and played again. One record for steps that report their
 * loss and one for others. */
struct tess_record {
    bool on;
    struct tess_recorded {
        bool warm, made;
        double loss_scale; /* of the step that was recorded: in it as numbers */
        int64_t labels;
    } of[2];
};

/* Packed samples: the documents of the micro-batch that is being computed, as in tess_pass. */
struct tess_packed {
    int32_t *document; /* owned; NULL: samples are not packed */
    int32_t *place;    /* owned, pinned for far memory; NULL where the engine is hollow */
    int32_t count;
    struct tess_block far_place; /* far memory: the device's copy of place */
    struct tess_fence *sent;     /* likewise: the latest has been copied */
};

/* A sum that was begun. */
struct tess_begun {
    struct tess_event event;
    int64_t count;
    const void *from; /* canonical: f32; NULL: the sum is where it belongs */
    void *y;
};

#define TESS_BEGUN_MAX 16

/* What tess_pass_sum and the others of crossing.c need. */
struct tess_tensor_pass {
    struct tess_strategy *strategy; /* NULL without a tensor axis */
    float *room;                    /* [levels, room_count] */
    int64_t room_count;
    bool canonical; /* sums are one tree over the parts, in f32 */
    struct tess_begun begun[TESS_BEGUN_MAX];
    int32_t begun_count;
    int64_t begun_room; /* of room_count, by sums that were begun */
};

#define TESS_SLOTS_MAX 4

struct tess_batches {
    /* Slots for training, far memory: one; and the slot for tests. */
    struct tess_block input[TESS_SLOTS_MAX + 1], label[TESS_SLOTS_MAX + 1];
    void *pinned[TESS_SLOTS_MAX + 1];         /* far memory: rows, then labels */
    struct tess_block kept_input, kept_label; /* [slots of a chunk] where several are under way */
    int64_t bytes, label_bytes;               /* of a batch's rows, up to where labels follow them
                                                 in pinned memory; of its labels */
    int64_t first_step;                       /* of the loader's batches */
    struct tess_loader *loader, *test_loader; /* NULL where this rank loads nothing */
    struct tess_fence *sent;                  /* far memory: the latest batch has been copied */
};

/* A micro-batch under way in a chunk. */
struct tess_flight {
    const void *input;      /* of the chunk's first unit */
    const int32_t *label;   /* of its rows, where the loss is computed */
    struct tess_event sent; /* of the last unit's output */
};

struct tess_stages {
    struct tess_flight *flight; /* [chunk_count, slot_max] */
    struct tess_block input, grad[4];
    int64_t *input_begin;                 /* [chunk_count] bytes, of its buffers in `input` */
    struct tess_comm *forward, *backward; /* the stage axis, for activations and for gradients;
                                             NULL where there is one stage */
    struct tess_event *input_event;       /* [chunk_count, slot_max + 1] */
    struct tess_event grad_event[4];
    int32_t input_posted, grad_cursor;             /* actions before these have been requested */
    int32_t grad_posted, grad_received, grad_sent; /* in this step; parity chooses the buffer */
};

/* The phases of tess_comm_phase. */
enum tess_lap {
    TESS_LAP_DATA,
    TESS_LAP_FORWARD,
    TESS_LAP_BACKWARD,
    TESS_LAP_UPDATE,
    TESS_LAP_OTHER,
    TESS_LAP_COUNT
};

struct tess_laps {
    struct tess_comm *comm;    /* borrowed */
    struct tess_queue *queue;  /* borrowed; NULL: kernels compute within the call */
    struct tess_fence **fence; /* [fence_count] */
    enum tess_lap *of_fence;   /* [fence_count] what begins there */
    int32_t fence_count, fence_used;
    bool paused;
    enum tess_lap lap; /* since since_s, by the host's clock */
    double since_s;
    double spent_s[TESS_LAP_COUNT];
    double wait_s[TESS_LAP_COUNT]; /* exposed communication since open, when the step began */
};

/* Parameters that a step leaves without a gradient, by a parameter's number in the model; host
 * memory. */
struct tess_unused {
    bool *pass;    /* [params] for the model's backward: tess_pass.used */
    uint8_t *used; /* [params] in any micro-batch of the step; in a conditional model [ranks of the
                      mesh, params], where rows of other ranks are valid from finish to the next */
    uint8_t *skip; /* [params] used by no rank; conditional models only, else NULL */
    int64_t *updates; /* [params] updates done, likewise */
};

/* Computations of a micro-batch; see audit.c. */
enum tess_audit_pass { TESS_AUDIT_FIRST, TESS_AUDIT_AGAIN, TESS_AUDIT_THIRD, TESS_AUDIT_PASSES };

/* What a stage of a pipeline sends to another one. */
enum tess_audit_message { TESS_AUDIT_OUTPUT, TESS_AUDIT_INPUT_GRAD, TESS_AUDIT_MESSAGES };

struct tess_audit {
    bool due; /* in the current step */
    enum tess_audit_pass pass;
    int32_t micro, distance; /* which micro-batch, of the rank so many places on */
    int64_t steps;           /* audited so far */
    int32_t entry_count;     /* of the gradients of the model's parameters; in a pipeline also
                                [messages, units of the model] */
    uint64_t *digest;        /* [passes, entries] of this rank; 0: it computes or sends none */
    uint64_t *all;           /* [ranks of the mesh, passes, entries] */
    char *ahead;             /* host, where kernels have a queue: what is hashed is read to here */
    struct tess_block grad, input, label;
    struct tess_loader *loader;
    void *pinned; /* far memory: rows, then labels */
};

/* The observer of what passes touch; touched NULL: none. */
struct tess_watch {
    tess_touched *touched;
    void *context;
};

#define TESS_OWNED_MAX 32

struct tess_engine {
    const struct tess_config *config;
    const struct tess_dataset *dataset;
    struct tess_comm *comm;                       /* all ranks; borrowed; NULL when only planned */
    struct tess_comm *axis_comm[TESS_AXIS_COUNT]; /* this rank's group along each; may be `comm`
                                                     itself where there is but one axis */
    struct tess_board *board;                     /* own_board without a world */
    struct tess_board own_board;
    struct tess_trace_lane *trace; /* borrowed; NULL: no time line */
    struct tess_watch watch;
    struct tess_kernel *kernel;
    struct tess_memory *memory;
    struct tess_arena arena;
    void *staging;                  /* block.staging, of the host, pinned; NULL: nothing is saved */
    const struct tess_fence *saved; /* of the saver's: the state has been copied to there; NULL: it
                                       is when the call returns, or nothing is saved */
    void *owned[TESS_OWNED_MAX];    /* host memory by tess__engine_room */
    int32_t owned_count;
    bool no_room;     /* one of them could not be had */
    bool hollow;      /* nothing is computed: see tess_engine_open_hollow */
    bool sizes_alone; /* slots have one room together: see tess_engine_plan_sizes */

    /* The plan. */
    struct tess_declare model;   /* all of it, cut along the tensor axis */
    struct tess_declare declare; /* what this rank keeps of it */
    const char **unit_name;      /* [units of the model] */
    void *model_state;
    struct tess_plan plan;
    struct tess_strategy strategy;        /* of the data axis */
    struct tess_strategy tensor_strategy; /* ops NULL without one */
    bool opened_strategy;
    struct tess_sizes sizes;
    struct tess_schedule schedule;
    struct tess_blocks block;

    /* A step. */
    struct tess_tables tables;
    struct tess_batches batches;
    struct tess_packed packed;
    struct tess_stages stages;
    struct tess_tensor_pass crossing;
    struct tess_unused unused;
    struct tess_found found;
    struct tess_laps laps;
    struct tess_record record;
    struct tess_audit audit;
    struct tess_progress progress;

    /* The update. */
    struct tess_weights *weights;       /* to begin with; NULL: drawn from the seed */
    struct tess_weights *adapters;      /* likewise, of adapters alone */
    struct tess_checkpoint *checkpoint; /* to continue from, while it opens; else NULL */
    struct tess_optim optim;
    struct tess_piece *piece;                 /* [piece_count] */
    int32_t piece_count, trained_piece_count; /* frozen ones are the last */
    struct tess_early *early;                 /* NULL: all updates follow after backward */
    struct tess_scale scale;
    void *upload;       /* host, pinned: see tess_optim_room */
    int64_t grad_total; /* elements of all parameters that have gradients */
};

/* engine.c: everything but memory, communication and data. */
enum tess_status tess__engine_plan(struct tess_engine *engine, int32_t rank);

/* Zeroed host memory that lives as long as the engine, of `count` elements and one more; NULL
 * without memory, which has_room then reports. */
void *tess__engine_room(struct tess_engine *engine, int64_t count, size_t size);
enum tess_status tess__engine_has_room(const struct tess_engine *engine);

/* touch.c: report to the observer what a pass of a unit touches, as it begins or when it has ended;
 * and that the gradient by the last output is about to be made. */
void tess__touch_pass(const struct tess_engine *engine, const struct tess_pass *pass, int32_t unit,
                      int32_t slot, bool forward, bool begins);
void tess__touch_slope(const struct tess_engine *engine, const void *slope, int64_t bytes);

/* reserve.c: reserve every block; bind pointers once the memory is committed. */
enum tess_status tess__engine_reserve(struct tess_engine *engine);
enum tess_status tess__engine_bind(struct tess_engine *engine);

/*
 * schedule.c. sizes_plan: all sizes but loss_ranks and slot_count, and the fields of the plan that
 * they depend on (mesh, ranks, grid, types); TESS_ERR_USAGE. sizes_finish: those two, which follow
 * from the strategy's plan. schedule_plan: the schedule, the part of the model that this rank
 * keeps, plan.pipelined and the units' chunks. All pure but for memory.
 */
enum tess_status tess__sizes_plan(struct tess_engine *engine, int32_t rank);
void tess__sizes_finish(struct tess_engine *engine);
enum tess_status tess__schedule_plan(struct tess_engine *engine);

/* How a unit's activations are kept, by --recompute. */
static inline enum tess_recompute tess__engine_recompute(const struct tess_engine *engine,
                                                         int32_t unit)
{
    const struct tess_config *config = engine->config;
    const int32_t every = config->recompute_every; /* mostly 1: plans ask for each tensor */
    return every == 1 || engine->declare.unit[unit].index % every == 0 ? config->recompute
                                                                       : TESS_RECOMPUTE_NONE;
}

/* Does a tensor live for one call only, so that its room is shared with other units? */
static inline bool tess__tensor_is_brief(const struct tess_engine *engine,
                                         const struct tess_declare_tensor *tensor)
{
    const enum tess_recompute how = tess__engine_recompute(engine, tensor->unit);
    if (tensor->life == TESS_LIFE_UNIT || tensor->life == TESS_LIFE_CALL)
        return true;
    return tensor->life == TESS_LIFE_REMADE ? how != TESS_RECOMPUTE_NONE
                                            : how == TESS_RECOMPUTE_FULL;
}

static inline struct tess_flight *tess__stages_flight(const struct tess_engine *engine,
                                                      int32_t chunk, int32_t slot)
{
    return &engine->stages.flight[chunk * engine->schedule.slot_max + slot];
}

/* A unit's output, and the gradient by it. */
static inline void *tess__engine_output(const struct tess_engine *engine, int32_t slot,
                                        int32_t unit)
{
    return tess_memory_get(engine->memory,
                           engine->block.unit_output[slot * engine->plan.unit_count + unit]);
}
static inline void *tess__engine_flow(const struct tess_engine *engine, int32_t unit)
{
    return tess_memory_get(engine->memory, engine->block.flow[unit % 2]);
}

/* pass.c: the parts of a step that evaluation shares. `row_first`: row 0 in the global batch. */
enum tess_status tess__engine_forward(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                      uint64_t row_first);
/* output_grad: of the chunk's last unit, NULL where the chunk is the last; input_grad: of its first
 * unit, NULL where it is the first. */
enum tess_status tess__engine_backward(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                       uint64_t row_first, void *output_grad, void *input_grad);
/* Load a batch; the strategy distributes its rows. label_out is for the loss. */
enum tess_batch { TESS_BATCH_TRAIN, TESS_BATCH_TEST, TESS_BATCH_AUDIT };
enum tess_status tess__engine_batch(struct tess_engine *engine, enum tess_batch kind,
                                    const void **input_out, const int32_t **label_out);
/* Loss of the last unit's output in a slot, where the model does not compute it itself and this
 * rank does. */
enum tess_status tess__engine_loss(struct tess_engine *engine, int32_t slot, bool gradient);

/* pipeline.c: all micro-batches of a step, forward and backward, in the order of the schedule.
 * Collective. */
enum tess_status tess__engine_pipe_step(struct tess_engine *engine);
/* After it, for an audit: one micro-batch, forward and backward through all stages. `row_first`:
 * its row 0 in the global batch. Collective. */
enum tess_status tess__engine_pipe_again(struct tess_engine *engine, uint64_t row_first);

/* batches.c. open follows after the memory is there; close accepts what was not opened. */
enum tess_status tess__batches_reserve(struct tess_engine *engine);
enum tess_status tess__batches_open(struct tess_engine *engine);
void tess__batches_close(struct tess_engine *engine);

/* Where steps are recorded, all batches of a step are in places of their own before it begins: load
 * those of the coming step. */
enum tess_status tess__batches_load_step(struct tess_engine *engine);

/* The next batch for training, micro-batch `micro` of the step, or for a test, or the one that is
 * audited, in device memory. */
enum tess_status tess__batches_next(struct tess_engine *engine, enum tess_batch kind, int32_t micro,
                                    void **input_out, int32_t **label_out);

/* Copy the rows and labels that a chunk needs to its slot, as other batches are loaded before its
 * backward; the pointers become those of the copies. Nothing with one micro-batch under way. */
void tess__batches_keep(struct tess_engine *engine, const struct tess_chunk *chunk, int32_t slot,
                        const void **input, const int32_t **label);

/* stages.c: reserve memory for the schedule. */
enum tess_status tess__stages_reserve(struct tess_engine *engine);
/* The groups for messages. Collective over the stage axis. */
enum tess_status tess__stages_open(struct tess_engine *engine);

/* Elements of a chunk's input from the stage before, in a micro-batch. */
int64_t tess__stages_input_count(const struct tess_engine *engine, int32_t chunk);

/* A step begins; ends: buffers that were sent must have arrived before they are filled again. */
void tess__stages_begin(struct tess_engine *engine);
enum tess_status tess__stages_end(struct tess_engine *engine);

/* Request the activations of all actions up to number `upto`, and of the next one if its buffer is
 * free; the same for gradients. Nothing with one stage. */
enum tess_status tess__stages_post_inputs(struct tess_engine *engine, int32_t upto);
enum tess_status tess__stages_post_grads(struct tess_engine *engine, int32_t upto);

/* The input of a chunk for a micro-batch: its place, and waiting for it. */
void *tess__stages_input(const struct tess_engine *engine, int32_t chunk, int32_t micro);
enum tess_status tess__stages_wait_input(struct tess_engine *engine, int32_t chunk, int32_t micro);
/* Send the output of a chunk's last unit on. */
enum tess_status tess__stages_send_output(struct tess_engine *engine, int32_t chunk, int32_t slot);

/* The gradient that arrives next, before and after waiting for it. */
enum tess_status tess__stages_wait_grad(struct tess_engine *engine, void **grad_out);
/* Outside the schedule, with no other message under way: the input of a chunk for micro-batch 0;
 * the gradient by its output. Waits. */
enum tess_status tess__stages_receive_input(struct tess_engine *engine, int32_t chunk,
                                            const void **input_out);
enum tess_status tess__stages_receive_grad(struct tess_engine *engine, int32_t chunk,
                                           void **grad_out);
/* A buffer for the gradient of a chunk's input, when what it held has been sent; and sending it. */
enum tess_status tess__stages_take_grad(struct tess_engine *engine, void **grad_out);
enum tess_status tess__stages_send_grad(struct tess_engine *engine, int32_t chunk,
                                        const void *grad);

/* laps.c. action_count: of a step. close accepts a zeroed one. */
enum tess_status tess__laps_open(struct tess_laps *laps, struct tess_kernel *kernel,
                                 struct tess_comm *comm, int32_t action_count);
void tess__laps_close(struct tess_laps *laps);
/* begin, then enter at each change of phase; stop when the step's work has been
 * queued, and end when it is complete: fills data, forward, backward, optim and comm of times. */
enum tess_status tess__laps_begin(struct tess_laps *laps);
enum tess_status tess__laps_enter(struct tess_laps *laps, enum tess_lap lap);
enum tess_status tess__laps_stop(struct tess_laps *laps);
enum tess_status tess__laps_end(struct tess_laps *laps, struct tess_times *times);

/*
 * shared.c: strategy.shared, where sums and updates may be one pass over memory. Open follows after
 * the optimizer's. begin: a step; took: tess_segment_update has launched its update. settle:
 * masters, and with `moments` the optimizer's state of this rank are up to date on return. Open and
 * settle are collective.
 */
enum tess_status tess__shared_open(struct tess_engine *engine);
enum tess_status tess__shared_begin(struct tess_engine *engine);
bool tess__shared_took(const struct tess_engine *engine);
enum tess_status tess__shared_settle(struct tess_engine *engine, bool moments);
/* Can parameters be updated before all gradients are known? */
bool tess__shared_fits_model(const struct tess_engine *engine);
bool tess__shared_fits_optim(const struct tess_engine *engine);
/* A copy, as it will be in the run: of an engine that is only planned, with `shared` where the
 * ranks will have it. For what it sends. */
struct tess_strategy tess__shared_strategy(const struct tess_engine *engine);

/* early.c: updates within backward on one rank. Open follows after the optimizer's. begin: a step;
 * finish: the updates that are left; false: all of them, which are the caller's. */
enum tess_status tess__early_open(struct tess_engine *engine);
enum tess_status tess__early_begin(struct tess_engine *engine);
bool tess__early_finish(struct tess_engine *engine);

/* crossing.c */
enum tess_status tess__crossing_reserve(struct tess_engine *engine);
void tess__crossing_open(struct tess_engine *engine);
/* After grads_finish: gradients of whole parameters whose backward has seen this rank's positions
 * alone. Once a step, so that sums over leaves come first on every layout. Collective. */
enum tess_status tess__crossing_finish(struct tess_engine *engine);

/* Reserve room for, and after grads_finish add, the gradients of a tied parameter and its source,
 * on one rank or between two stages. Collective over the stage axis. */
enum tess_status tess__tied_reserve(struct tess_engine *engine);
enum tess_status tess__tied_meet(struct tess_engine *engine); /* before its first message */
enum tess_status tess__tied_finish(struct tess_engine *engine);
uint64_t tess__tied_sent_bytes(const struct tess_engine *engine); /* in a step, between stages */

/* Where in the block `found`, and in its copy on the host, the sums begin. */
#define TESS_FOUND_SUMS 64
_Static_assert(sizeof(struct tess_verdict) <= TESS_FOUND_SUMS,
               "the verdict has room before the sums");

/* Read the block `found`, the verdict and the first `sums` numbers of found.sums, into
 * engine->found.host: waits for the device. */
enum tess_status tess__engine_find(struct tess_engine *engine, int64_t sums);
/* The sums in it. */
const double *tess__engine_sums(const struct tess_engine *engine);
/* From it: mean loss and share of correct answers of `labels` labels, whose sums are those of
 * `leaves` leaves, 0 where no label counts: every leaf's sum comes from one rank, the others add
 * zero. */
void tess__engine_means(const struct tess_engine *engine, int64_t leaves, int64_t labels,
                        double *loss_out, double *accuracy_out);

/* batches.c: the labels that count in training step `step`, and in an evaluation, over all ranks.
 */
int64_t tess__batches_step_labels(const struct tess_engine *engine, int64_t step);
int64_t tess__batches_test_labels(const struct tess_engine *engine);
/* batches.c: find the documents of the rows from row_first on, of the step or the evaluation's
 * pass, by the samples' numbers alone: every stage can. A hollow engine's stay those of its first
 * rows. */
enum tess_status tess__batches_documents(struct tess_engine *engine, uint64_t row_first);

/* step.c: whether steps are to be recorded, TESS_ERR_USAGE where they cannot be. */
enum tess_status tess__record_plan(struct tess_engine *engine);

/* params.c */
enum tess_status tess__engine_init_params(struct tess_engine *engine);
/* After all values were written: params_refresh, frozen ones too. Collective. */
enum tess_status tess__engine_refresh(struct tess_engine *engine);

/*
 * The values of this rank's parameters, for host code, from open to close; meanwhile nothing may
 * change them. Device memory is open to the host for so long, or, where it is far, read ahead in
 * larger pieces than the host uses.
 */
#define TESS_VALUES_ROOM 4096
struct tess_values {
    struct tess_kernel *kernel;
    enum tess_dtype dtype;                    /* of values without a master */
    void *ahead;                              /* far memory: a copy of elements of one piece */
    const void *ahead_of;                     /* that piece's first element on the device */
    int64_t ahead_from, ahead_end, ahead_max; /* elements */
    float room[TESS_VALUES_ROOM];             /* small values, widened */
};

/* `ahead`: elements to read at a time where memory is far; one piece's are enough. */
enum tess_status tess__values_open(const struct tess_engine *engine, int64_t ahead,
                                   struct tess_values *values_out);
/* Elements [from, from + count) of a piece as f32, count <= TESS_VALUES_ROOM and `ahead`: of its
 * master, or of its small values. Valid until the next call and close. */
enum tess_status tess__values_get(struct tess_values *values, const struct tess_piece *piece,
                                  int64_t from, int64_t count, const float **x_out);
void tess__values_close(struct tess_values *values);

/* audit_take.c. reserve, open: its memory. bind: a unit's gradients go to memory of the audit.
 * take: the hashes of the gradients that a unit's backward has written, where they are audited;
 * take_message: of `count` elements that the unit's stage is about to send. */
enum tess_status tess__audit_reserve(struct tess_engine *engine);
enum tess_status tess__audit_open(struct tess_engine *engine);
void tess__audit_bind(struct tess_engine *engine, int32_t unit);
enum tess_status tess__audit_take(struct tess_engine *engine, int32_t unit);
enum tess_status tess__audit_take_message(struct tess_engine *engine,
                                          enum tess_audit_message message, int32_t unit,
                                          const void *x, int64_t count);

/* audit.c. plan: TESS_ERR_USAGE where a step cannot be audited. begin: of a step. step: after its
 * passes, before the update; TESS_ERR_DEVICE on all ranks names the one whose bits differ.
 * Collective. */
enum tess_status tess__audit_plan(struct tess_engine *engine);
void tess__audit_begin(struct tess_engine *engine);
enum tess_status tess__audit_step(struct tess_engine *engine);

/* unused.c. begin: of a step. enter, leave: around each unit's backward; leave gives unused
 * parameters a gradient of zero. */
enum tess_status tess__unused_open(struct tess_engine *engine);
void tess__unused_begin(struct tess_engine *engine);
void tess__unused_enter(struct tess_engine *engine, int32_t unit);
enum tess_status tess__unused_leave(struct tess_engine *engine, int32_t unit);
/*
 * After the reduction and before the update: exchange the entries of a conditional model (then
 * collective), and refuse the step without --find-unused: TESS_ERR_USAGE on rank 0, with the
 * reason, TESS_ERR_ABORTED on the others.
 */
enum tess_status tess__unused_finish(struct tess_engine *engine);

/* Ranks as a message lists them, "1, 3": the first few, then how many more. Zeroed at first; text
 * is whole after each add. */
struct tess_rank_list {
    int32_t count;
    size_t length;
    char text[96];
};
void tess__rank_list_add(struct tess_rank_list *list, int32_t rank);

/* Does this rank count its pieces (but for duplicates) in sums over all ranks, so that each
 * element of the model is counted once? The first shard group does, or rank 0 where nothing is
 * sharded. */
static inline bool tess__engine_counts(const struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    const bool sharded = plan->optim_extent == TESS_EXTENT_SHARD && plan->shard_count > 1;
    return plan->rank < (sharded ? plan->shard_count : 1);
}

/* pass.c: name the step, unit and tensor of the chunk that first holds a NaN or infinity; the loss
 * of a row has one, or the chunk's output (loss_row -1). Always fails. */
enum tess_status tess__engine_diagnose(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                       int64_t loss_row);
/* The same if a loss of the micro-batch in `slot` is not finite, unless the verdict will say so. */
enum tess_status tess__engine_check_loss(struct tess_engine *engine, int32_t slot);
/* The same if the output of the chunk's last unit is not finite. */
enum tess_status tess__engine_check_output(struct tess_engine *engine, int32_t chunk, int32_t slot);

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

/* `unit` is this rank's, or -1; the board has its number in the model. */
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
