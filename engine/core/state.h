/* The inside of struct tess_engine, shared by the engine's files only. Parts that need no more than
 * themselves have headers of their own. */
#ifndef TESSERA_CORE_STATE_H
#define TESSERA_CORE_STATE_H

#include "comm/world.h"
#include "core/batches.h"
#include "core/engine.h"
#include "core/laps.h"
#include "core/layout.h"
#include "core/schedule.h"
#include "core/sizes.h"
#include "core/stages.h"
#include "core/tables.h"
#include "core/trace.h"
#include "core/unused.h"
#include "core/values.h"
#include "optim/scale.h"
#include "state/declare.h"
#include "state/weights.h"

/* Results of a step or an evaluation. */
struct tess_found {
    float *loss; /* [loss rows], device */
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
    double rate;           /* learning rate of the current step */
    uint64_t weight_token; /* changes when the weights do */
    bool count_zeros;      /* in the current step: in the gradient by the logits */
};

/* step_graph.c's: steps that are recorded once and played again. One record for steps that report
 * their loss and one for others. */
struct tess_record {
    bool on;
    struct tess_recorded {
        bool warm, made;
        double loss_scale; /* of the step that was recorded: in it as numbers */
        int64_t rows;
    } of[2];
};

/* What tess_pass_sum and the others of crossing.c need. */
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
    struct tess_board *board;                     /* own_board without a world */
    struct tess_board own_board;
    struct tess_trace_lane *trace; /* borrowed; NULL: no time line */
    struct tess_kernel *kernel;
    struct tess_memory *memory;
    void *arena;
    bool adopted; /* the arena, by the kernel */

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
    struct tess_stages stages;
    struct tess_tensor_pass crossing;
    struct tess_unused unused;
    struct tess_found found;
    struct tess_laps laps;
    struct tess_record record;
    struct tess_progress progress;

    /* The update. */
    struct tess_weights *weights; /* to begin with; NULL: drawn from the seed */
    struct tess_optim optim;
    struct tess_piece *piece;
    struct tess_scale scale;
    void *upload;       /* host, pinned: see tess_optim_room */
    int64_t grad_total; /* elements of all parameters that have gradients */
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
static inline enum tess_recompute tess__engine_recompute(const struct tess_engine *engine,
                                                         int32_t unit)
{
    const struct tess_config *config = engine->config;
    return engine->declare.unit[unit].index % config->recompute_every == 0 ? config->recompute
                                                                           : TESS_RECOMPUTE_NONE;
}

/* pass.c: the parts of a step that evaluation shares. `row_first`: row 0 in the global batch. */
enum tess_status tess__engine_forward(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                      uint64_t row_first);
/* output_grad: of the chunk's last unit, NULL where the chunk is the last; input_grad: of its first
 * unit, NULL where it is the first. */
enum tess_status tess__engine_backward(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                       uint64_t row_first, void *output_grad, void *input_grad);
/* Load a batch, of the test split with `test`; the strategy distributes its rows. label_out is for
 * the loss. */
enum tess_status tess__engine_batch(struct tess_engine *engine, bool test, const void **input_out,
                                    const int32_t **label_out);
/* Loss of the last unit's output in a slot, where the model does not compute it itself and this
 * rank does. */
enum tess_status tess__engine_loss(struct tess_engine *engine, int32_t slot, bool gradient);

/* pipeline.c: all micro-batches of a step, forward and backward, in the order of the schedule; one
 * batch of the test split, forward through all chunks of this rank. Collective. */
enum tess_status tess__engine_pipe_step(struct tess_engine *engine);
enum tess_status tess__engine_pipe_evaluate(struct tess_engine *engine);

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

/* Read the block `found`, the verdict and the first `sums` numbers of found.sums, into
 * engine->found.host: waits for the device. */
enum tess_status tess__engine_find(struct tess_engine *engine, int64_t sums);
static inline struct tess_verdict tess__engine_verdict(const struct tess_engine *engine)
{
    return *(const struct tess_verdict *)engine->found.host;
}
static inline const double *tess__engine_sums(const struct tess_engine *engine)
{
    return (const double *)(const void *)((const char *)engine->found.host + TESS_FOUND_SUMS);
}

/*
 * step_graph.c. plan: whether steps are to be recorded, TESS_ERR_USAGE where they cannot be. run:
 * have `queue` give a step's work to the device, or play what it gave before; tess_optim_prepare
 * has been called.
 */
enum tess_status tess__record_plan(struct tess_engine *engine);
enum tess_status tess__record_run(struct tess_engine *engine, bool want_loss,
                                  enum tess_status (*queue)(struct tess_engine *, bool want_loss));

/* params.c */
enum tess_status tess__engine_init_params(struct tess_engine *engine);

/* Does this rank count its pieces (but for duplicates) in sums over all ranks, so that each
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

/* diagnose.c: name the step, unit and tensor of the chunk that first holds a NaN or infinity; the
 * loss of a row has one, or the chunk's output (loss_row -1). Always fails. */
enum tess_status tess__engine_diagnose(struct tess_engine *engine, int32_t chunk, int32_t slot,
                                       int64_t loss_row);
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
