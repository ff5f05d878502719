/*
 * Strategies: how one training step is spread over ranks.
 *
 * All parameters lie in one *flat* space of elements, cut into *segments*: contiguous runs of whole
 * parameters that are reduced, gathered and sharded as a piece (a gradient bucket, a unit). A
 * segment is padded to a multiple of shard_count * TESS_SHARD_ALIGN elements; rank s of the shard
 * group owns the s-th part of every segment it shards. Frozen parameters are in segments of their
 * own, behind all others: what concerns gradients ends with the first grad_segment_count segments
 * and grad_count elements.
 *
 *     flat      | param 0 | param 1 |pad| param 2      | param 3 |pad|
 *     segment   |------- 0 -------------|------- 1 ------------------|
 *     shard     |  r0  |  r1  |  r2  |  |   r0    |   r1   |   r2    |
 *
 * A strategy fills the plan (arithmetic alone), reserves the memory it needs besides the storage
 * that follows from the plan, and then moves data in its hooks. Optimizer, gradient norm, hash,
 * memory plan and describe read the plan, never the strategy.
 *
 * Call order:
 *   check, plan, reserve                       planning; no memory, no communication
 *   open                                       after the arena exists; collective
 *   per step:
 *     per micro-batch: batch_ready,
 *       forward:  unit_enter, (model), unit_leave     units 0 .. U-1
 *       output_ready, (loss), output_grad_ready       only where the plan's loss rows differ
 *       backward: unit_enter, (model), unit_leave,    units U-1 .. 0
 *                 grads_ready for every segment whose last unit this was, highest segment first
 *     grads_finish, (clip, optimizer), params_refresh
 *   evaluation: forward hooks only
 *   close
 *
 * In a pipeline (plan->pipelined) a step is many passes: the units of one chunk, forward or
 * backward, for one micro-batch, which is strategy->micro. Passes come in any order in which a
 * chunk's forward is before its backward, a chunk's backward before those of lower chunks, and
 * backward takes the micro-batches of a chunk in turn; a pass is not interrupted by another.
 */
#ifndef TESSERA_STRATEGY_H
#define TESSERA_STRATEGY_H

#include "tessera/comm.h"
#include "tessera/kernel.h"
#include "tessera/memory.h"
#include "tessera/option.h"
#include "tessera/status.h"

TESS_BEGIN_DECLS

/* Parameters start at multiples of this in flat space, shards too: a block of the exact sums. */
#define TESS_SHARD_ALIGN TESS_SUM_BLOCK

/* How much of something a rank stores. */
enum tess_extent { TESS_EXTENT_FULL, TESS_EXTENT_SHARD, TESS_EXTENT_NONE };

/* How the ranks run. */
enum tess_rank_mode {
    TESS_RANKS_PROCESSES, /* one process per rank: the rule */
    TESS_RANKS_THREADS,   /* one process, one thread per device */
};

/*
 * Which leaves of the global batch a rank computes, and when. G leaves, N ranks, S micro-batches:
 *
 *   RANK_FIRST   rank r holds leaves [r G/N, (r+1) G/N), micro-batch s the s-th part of them. The
 *                gradient is folded over micro-batches first and reduced over ranks once.
 *   MICRO_FIRST  micro-batch s holds leaves [s G/S, (s+1) G/S), rank r the r-th part of them. The
 *                gradient is reduced over ranks in every micro-batch and then folded.
 *
 * Both are the same tree over the leaves.
 */
enum tess_leaf_order { TESS_LEAVES_RANK_FIRST, TESS_LEAVES_MICRO_FIRST };

/*
 * A mesh spreads the ranks over three axes, each given to one strategy. Data: rows of the batch.
 * Tensor: the width of layers. Stage: runs of units (pipeline). A data strategy sees the part of
 * the model that the rank's stage and place on the tensor axis leave, and the ranks that share it.
 *
 *     rank = (stage * data_count + data) * tensor_count + tensor      tensor ranks are neighbours
 */
enum tess_axis { TESS_AXIS_DATA, TESS_AXIS_TENSOR, TESS_AXIS_STAGE, TESS_AXIS_COUNT };

struct tess_mesh {
    int32_t rank, rank_count;       /* of all */
    int32_t at[TESS_AXIS_COUNT];    /* this rank's place on each axis */
    int32_t count[TESS_AXIS_COUNT]; /* ranks along each axis; all >= 1 */
};

/* What a strategy may read of a parameter. */
struct tess_plan_param {
    const char *name;
    int32_t unit;
    int32_t index;   /* number in the whole model */
    int64_t count;   /* elements */
    uint32_t flags;  /* enum tess_param_flag */
    int32_t chunk;   /* of a pipeline's rank, that its unit is in; else 0 */
    bool alone;      /* tied to another parameter, or that one: a segment of its own */
    bool frozen;     /* keeps its values: has no gradient */
    bool stacked;    /* follows the parameter before it without a gap, in the same segment */
    int64_t begin;   /* first element in flat space; set by the core after plan() */
    int32_t segment; /* set by the core after plan() */
};

struct tess_segment {
    /* Set by the strategy in plan(). */
    int32_t param_first, param_count;
    /* Set by the core after plan(). */
    int64_t begin, count;          /* flat elements, padding included */
    int32_t unit_first, unit_last; /* units that hold its parameters */
    int32_t values_of; /* the segment of this rank whose values it shares (tied parameters): what
                          concerns values, not gradients, is done there alone; -1: its own */
    bool forward_only; /* backward reads no value of it, so `param` may be NULL there */
    /*
     * Storage, by the core when the arena exists, unless marked (strategy): then the strategy keeps
     * it right in its hooks. `own` is this rank's part: the whole segment when not sharded. What is
     * FULL lies in flat order, one segment after the other.
     */
    void *param;     /* [count] compute parameters readable now; (strategy) unless param is FULL */
    float *grad;     /* [count] where backward writes now; (strategy) unless grad is FULL; frozen
                        ones have neither this nor grad_own */
    void *param_own; /* part of `own` in compute precision; NULL when NONE */
    float *master_own; /* f32 master of `own`; = param_own in f32; NULL without masters */
    float *grad_own;   /* reduced gradient of `own`, valid after grads_finish */
};

struct tess_plan {
    /* Given. Ranks, units, parameters and leaves are those of the data axis: the ranks that hold
     * the same part of the model, and what they hold. */
    int32_t rank, rank_count;
    struct tess_mesh mesh;
    bool own_loss;  /* the model computes the loss itself: there is no output to gather */
    bool pipelined; /* several micro-batches are under way at once: units are entered again before
                       their backward */
    int32_t unit_count, param_count;
    const char *const *unit_name;
    const struct tess_plan_param *param; /* in order of unit, then declaration */
    enum tess_dtype dtype;               /* of compute parameters */
    enum tess_dtype reduce_dtype;        /* in which gradients travel: f32, bf16 or f16 */
    int32_t grid, accumulate;            /* leaves per step, micro-batches per rank and step */
    bool fold_in_turn; /* micro-batches are added one after the other, not as a tree */
    int64_t leaf_rows;

    /* Filled by plan(). Zero means: one rank's worth, FULL, RANK_FIRST, its share of the rows. */
    int32_t shard_count,
        shard_index; /* this rank's place in its shard group; 0 and 0: not sharded */
    enum tess_extent param_extent, grad_extent, optim_extent;
    enum tess_leaf_order leaf_order;
    bool holds_input; /* this rank loads the rows of all ranks */
    bool skips_input; /* another rank loads this rank's rows */
    bool holds_loss;  /* this rank computes the loss of all ranks' outputs */
    bool skips_loss;  /* another rank computes the loss of this rank's output */
    bool replicated;  /* every rank holds the same full parameters after params_refresh */

    /* Filled by plan() through tess_plan_add_segment, covering every parameter; then by the core in
     * flat order: those of frozen parameters last. */
    struct tess_segment *segment;
    int32_t segment_count;

    /* Filled by the core. */
    int32_t asked_count;        /* parameters of all calls of tess_plan_add_segment */
    int32_t grad_segment_count; /* segments whose parameters are trained */
    int64_t flat_count;         /* elements of the flat space */
    int64_t grad_count;         /* of these, before those of frozen parameters */
    int64_t param_total;        /* elements of all parameters, without padding */
    int32_t level_count;        /* gradient accumulators that the fold over micro-batches needs */
    int64_t own_stride; /* elements between the fold levels of sharded gradients (grad_own) */
};

/*
 * The next segment is the next `param_count` parameters. For plan() only. The core splits it where
 * units do not follow each other in the model (chunks of a pipeline), around tied parameters, and
 * between frozen ones and others.
 * It moves an end between stacked parameters behind them; a segment that this leaves empty is none.
 */
enum tess_status tess_plan_add_segment(struct tess_plan *plan, int32_t param_count);

/* Elements that this rank owns of segment `s` under an extent; where they begin in flat space. */
int64_t tess_plan_own_count(const struct tess_plan *plan, int32_t s, enum tess_extent extent);
int64_t tess_plan_own_begin(const struct tess_plan *plan, int32_t s, enum tess_extent extent);

/* A batch boundary: where rows cross ranks (see holds_input, holds_loss). */
struct tess_boundary {
    void *all;  /* [N * rows, row] on the rank that holds, else NULL */
    void *mine; /* [rows, row] of this rank */
    size_t row_bytes;
    int64_t rows; /* of one rank */
};

#define TESS_GROUP_MAX 4

struct tess_shared;

/* What hooks are handed. Owned by the core. */
struct tess_strategy {
    const struct tess_strategy_ops *ops;
    void *state;         /* ops->state_size bytes, zeroed */
    const void *options; /* ops->options_size bytes */
    struct tess_plan *plan;
    struct tess_memory *memory;
    struct tess_kernel *kernel;
    struct tess_comm *comm; /* all ranks of the strategy's axis; NULL while planning */
    int32_t micro;          /* index of the current micro-batch */
    bool training;
    bool refresh_frozen; /* params_refresh: values of frozen parameters were written, too */
    /* Split from comm by the strategy's open(), closed by its close(); for the core's counters. */
    struct tess_comm *group[TESS_GROUP_MAX];
    int32_t group_count;
    /* The core's; NULL: gradients are the optimizer's, after grads_finish. See
     * tess_segment_update. */
    struct tess_shared *shared;
};

enum tess_phase {
    TESS_PHASE_FORWARD,
    TESS_PHASE_BACKWARD,
    TESS_PHASE_BACKWARD_AGAIN /* for an audit, after a step's passes: needs `param` alone, and no
                                 grads_ready follows */
};

/* Tensor axis: activations cross ranks; see tess_pass_sum in tessera/model.h. */
enum tess_crossing_kind {
    TESS_CROSSING_SUM,         /* all-reduce of `data` [count], in place */
    TESS_CROSSING_MAX,         /* likewise, the greatest */
    TESS_CROSSING_SUM_SCATTER, /* reduce-scatter of `data` [N count] to `part` [count] */
    TESS_CROSSING_GATHER,      /* all-gather of `part` [count] to `data` [N count] */
};

struct tess_crossing {
    enum tess_crossing_kind kind;
    enum tess_dtype dtype;
    size_t count;
    void *data, *part;
    struct tess_event *event; /* NULL: the call is complete on return; else it may set the event */
};

/*
 * Stage axis. The units are cut into virtual stages, stage_count x chunk_count of them; rank s of
 * the axis runs virtual stages s, s + stage_count, ..., its chunks 0, 1, ...:
 *
 *     units           | 0 1 | 2 3 | 4 5 | 6 7 |      2 ranks, 2 chunks
 *     virtual stage   |  0  |  1  |  2  |  3  |
 *     rank, chunk     | 0,0 | 1,0 | 0,1 | 1,1 |
 */
struct tess_unit_cost {
    double work;          /* forward and backward of a row, relative to the other units */
    uint64_t param_bytes; /* parameters, gradients, optimizer state */
    uint64_t saved_bytes; /* activations kept from forward to backward of a micro-batch */
};

/* What a rank does next: one chunk, one micro-batch, one direction. */
struct tess_action {
    enum tess_phase phase;
    int32_t chunk, micro;
};

struct tess_strategy_ops {
    uint32_t abi;
    const char *name;
    const char *summary;
    const struct tess_option *options; /* OPTIONAL, default: none */
    size_t options_size;
    size_t state_size;
    enum tess_rank_mode rank_mode;
    enum tess_axis axis; /* which it takes; the slots of the other axes stay empty */

    /* OPTIONAL, default: fits. Pure. Say no with TESS_FAIL(TESS_ERR_USAGE, ...) and the way out. */
    enum tess_status (*check)(const void *options, int32_t rank_count, int32_t accumulate);
    /* REQUIRED on the data axis. Pure. */
    enum tess_status (*plan)(struct tess_strategy *strategy);
    /* OPTIONAL, default: nothing. Reserve buffers through strategy->memory. Pure. */
    enum tess_status (*reserve)(struct tess_strategy *strategy);
    /* OPTIONAL, default: nothing. Collective. */
    enum tess_status (*open)(struct tess_strategy *strategy);
    void (*close)(struct tess_strategy *strategy); /* OPTIONAL; accepts a half-opened one */

    /* OPTIONAL, default: nothing. The holder's input and labels are loaded; hand rows out. */
    enum tess_status (*batch_ready)(struct tess_strategy *strategy,
                                    const struct tess_boundary *input,
                                    const struct tess_boundary *label);
    /* OPTIONAL, default: nothing. Gather outputs to, scatter their gradients from the holder. */
    enum tess_status (*output_ready)(struct tess_strategy *strategy,
                                     const struct tess_boundary *output);
    enum tess_status (*output_grad_ready)(struct tess_strategy *strategy,
                                          const struct tess_boundary *output_grad);
    /* OPTIONAL, default: nothing. After enter, the segments of the unit have `param` (and in
     * backward `grad`) set; after leave they may be dropped. */
    enum tess_status (*unit_enter)(struct tess_strategy *strategy, int32_t unit,
                                   enum tess_phase phase);
    enum tess_status (*unit_leave)(struct tess_strategy *strategy, int32_t unit,
                                   enum tess_phase phase);
    /* OPTIONAL, default: tess_segment_fold. The micro-batch's gradient of segment s is written. */
    enum tess_status (*grads_ready)(struct tess_strategy *strategy, int32_t s);
    /* OPTIONAL, default: nothing. On return grad_own of every segment is the step's gradient. */
    enum tess_status (*grads_finish)(struct tess_strategy *strategy);
    /* OPTIONAL, default: nothing. `own` has been updated; make `param` right where it is FULL. */
    enum tess_status (*params_refresh)(struct tess_strategy *strategy);
    /* TENSOR axis: REQUIRED. Move activations over strategy->comm. Collective. */
    enum tess_status (*cross)(struct tess_strategy *strategy, const struct tess_crossing *crossing);

    /* OPTIONAL. DATA axis: no other number of ranks than 1, which need not be given then. */
    bool one_rank;
    /* OPTIONAL, both or none. A word for products of strategies, and the option that it sets. */
    const char *word, *word_option;

    /* STAGE axis, all REQUIRED and pure. Chunks of each rank. */
    int32_t (*chunk_count)(const void *options);
    /* Ranks on the axis by the options; 0: not set. OPTIONAL, also on the tensor axis. */
    int32_t (*wanted_ranks)(const void *options);
    /* first_out [virtual_count + 1]: virtual stage v runs units first_out[v] .. first_out[v+1] - 1,
     * at least one. TESS_ERR_USAGE with what would fit. */
    enum tess_status (*cut)(const void *options, const struct tess_unit_cost *cost,
                            int32_t unit_count, int32_t virtual_count, int32_t *first_out);
    /* The order of work of rank `stage`: 2 x chunks x micro_count actions, in which every chunk's
     * backward takes the micro-batches in order. */
    enum tess_status (*order)(const void *options, int32_t stage, int32_t stage_count,
                              int32_t micro_count, struct tess_action *action_out);

    /*
     * STAGE axis. OPTIONAL, default: NaN, not known. The share of a step's passes in which ranks of
     * the axis have nothing to do, their mean, with messages that take no time: on virtual stages
     * of equal time where forward_s and backward_s are NULL; else on these seconds of a
     * micro-batch, [virtual stages] each. Pure.
     */
    enum tess_status (*idle_share)(const void *options, int32_t stage_count, int32_t micro_count,
                                   const double *forward_s, const double *backward_s,
                                   double *share_out);

    /* OPTIONAL, default: nothing. Lines for --explain: groups, buckets, volumes. */
    void (*describe)(const struct tess_strategy *strategy,
                     void (*line)(void *context, const char *text), void *context);
    /* OPTIONAL, default: 0. Bytes this rank sends per step by the formula of the strategy. */
    uint64_t (*sent_bytes)(const struct tess_strategy *strategy);
};

/*
 * The fold over micro-batches, for hooks. Level 0 .. level_count-1 are arrays `stride` elements
 * apart; micro-batch `micro` is written to level tess_fold_level, then tess_fold_merge adds levels
 * together as a binary counter would (and all of them after the last micro-batch), so that level 0
 * holds the balanced tree over the micro-batches:
 *
 *     micro = 0 1 2 3:   0 | 0 1 -> 0 | 0 1 | 0 1 2 -> 0 1 -> 0
 *
 * With fold_in_turn two levels do: every micro-batch but the first is written to level 1 and added
 * to level 0, so that the bits depend on how many there are.
 */
int32_t tess_fold_level(const struct tess_plan *plan, int32_t micro);
void tess_fold_merge(struct tess_kernel *kernel, const struct tess_plan *plan, float *level0,
                     int64_t stride, int64_t count, int32_t micro);
/*
 * The same for a gradient that arrives elsewhere, as in sharded segments: where adds() is true it
 * is added to the levels from `grad`, else it belongs in its level, and nothing is to be added yet.
 * Sharded gradients have levels for the latter alone.
 */
bool tess_fold_adds(const struct tess_plan *plan, int32_t micro);
void tess_fold_add(struct tess_kernel *kernel, const struct tess_plan *plan, float *level0,
                   int64_t stride, int64_t count, int32_t micro, const float *grad);

/* Fold a segment whose gradient is FULL; after the last micro-batch segment.grad is level 0. */
void tess_segment_fold(struct tess_strategy *strategy, int32_t s);

/*
 * For hooks, only where strategy->shared is not NULL: in place of a sum of the segment's gradients
 * over strategy->comm, sum and update in one pass. `grad` [count of the segment] is this rank's
 * gradient of the step, folded, in memory of the arena. When the event has been waited for, the
 * segment is updated: `own`, and where every rank has all parameters and their optimizer state,
 * `param` of all. It has no grad_own then, and a strategy does this with all segments of a step for
 * which tess_segment_updates() is true, or with none. The others are those of tied parameters
 * (values_of): their gradients are summed as without it, and the sum has been waited for before the
 * segment whose values they share is updated, by the sum of both. A rank sends what the others read
 * of its gradient, and the values that it gives them. Collective.
 *
 * `gathered` [count, dtype of the plan], or NULL: where every rank wants all new values of the
 * segment, at the same place of the arena on every rank. No rank may use that memory from its call
 * until the event has been waited for. The caller counts these bytes.
 */
enum tess_status tess_segment_update(struct tess_strategy *strategy, int32_t s, const float *grad,
                                     void *gathered, struct tess_event *event_out);
/* Not collective. */
bool tess_segment_updates(const struct tess_strategy *strategy, int32_t s);

TESS_END_DECLS
#endif
