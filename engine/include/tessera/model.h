/*
 * A model is a chain of units, the grain of sharding, prefetch and pipelining. It declares its
 * parameters, tensors and operations, allocates nothing, and computes one unit at a time from the
 * pointers it gets, independently of strategy, ranks and optimizer.
 *
 * Call order: declare once; then, per micro-batch, forward for units 0, 1, ..., the engine's loss
 * on the last unit's output, and backward for units ..., 1, 0.
 */
#ifndef TESSERA_MODEL_H
#define TESSERA_MODEL_H

#include "tessera/kernel.h"
#include "tessera/option.h"
#include "tessera/status.h"
#include "tessera/tensor.h"

TESS_BEGIN_DECLS

struct tess_declare; /* collects what a model declares */

enum tess_init_kind {
    TESS_INIT_ZERO,
    TESS_INIT_ONE,
    TESS_INIT_UNIFORM, /* in [-scale, scale) */
    TESS_INIT_NORMAL,  /* mean 0, standard deviation scale */
};

struct tess_init {
    enum tess_init_kind kind;
    float scale;
};

enum tess_param_flag {
    TESS_PARAM_NO_DECAY = 1, /* biases, norms: weight decay and layer-wise rates leave it alone */
    TESS_PARAM_BUFFER = 2,   /* no gradient: the "gradient" is a statistic of the batch, summed over
                                leaves; the update is w = (1 - rate) w + rate (sum / leaves) */
    TESS_PARAM_TOKENS = 4,   /* whole on every rank of the tensor axis; with sequence parallel
                                backward writes the sum over this rank's positions, and the core
                                adds those of the other ranks */
    TESS_PARAM_TRANSPOSED = 8, /* [out, in] here, [in, out] in files (GPT-2's) */
    TESS_PARAM_TIED = 16,      /* see tess_declare_tied */
    TESS_PARAM_FROZEN = 32,  /* keeps its first values: no gradient (pass->grad is NULL), no update;
                                set by the core on all but adapters where the run has adapters */
    TESS_PARAM_ADAPTER = 64, /* of struct tess_lora: trained, and not in files of the model */
};

/*
 * Low-rank adapters (Hu et al. 2022, "LoRA"): a linear layer of weight W [out, in] becomes
 * x (W + scale B A)^T, of which A [rank, in] and B [out, rank] are trained and all else is frozen.
 */
struct tess_lora {
    int32_t rank; /* 0: no adapters */
    float scale;
    const char *targets; /* layers by the last part of their names, joined by commas; "all" */
};

/*
 * The tensor axis: a layer's width is cut into `parts` equal parts, of which a rank computes
 * `count`, from `first` on. Parts are added in one tree, so that fewer ranks get the same bits.
 */
struct tess_tensor_axis {
    int32_t parts; /* 1: nothing is split */
    int32_t first, count;
    int32_t rank, rank_count; /* count = parts / rank_count, first = rank count */
    int32_t runs;  /* 2 or more: what is summed over ranks goes on beside products, in forward of up
                      to so many runs of whole leaves; else it does not */
    bool sequence; /* sequence parallel: what is not split is computed for 1/rank_count of a pass's
                      positions, the rank's own run of them */
};

/*
 * How a parameter is cut into the parts of the tensor axis: dimension `axis` of its shape into
 * `blocks` equal blocks (q, k and v in one weight: 3), each block into axis.parts. A rank holds
 * its parts one after the other, each of them [..., dim/parts, ...] whole:
 *
 *     blocks 1, parts 4   | 0 | 1 | 2 | 3 |              part 1 is the second quarter
 *     blocks 3, parts 2   | q0 q1 | k0 k1 | v0 v1 |      part 1 is q1 k1 v1
 *
 * `used`: so many indices of the dimension are the model's; those beyond are padding, zero for
 * ever, and not in files (a padded vocabulary). 0: all. Only with axis 0 and blocks 1.
 */
struct tess_slice {
    int32_t axis;   /* -1: not cut, whole on every rank */
    int32_t blocks; /* >= 1 */
    int64_t used;
};

/* Life of a tensor of a unit. */
enum tess_life {
    TESS_LIFE_SAVED,  /* written in forward, read in backward of the same micro-batch */
    TESS_LIFE_UNIT,   /* alive only within one call; its memory is shared with other units */
    TESS_LIFE_LEAVES, /* as SAVED, but one per leaf instead of one per row: [leaves, shape] */
    TESS_LIFE_BATCH,  /* as SAVED, but one per micro-batch: [shape] */
    TESS_LIFE_REMADE, /* as SAVED, but cheap to make from what is SAVED: under selective recompute
                         it is as UNIT, and backward makes it again (pass->remake) */
    TESS_LIFE_CALL,   /* as UNIT, but one per micro-batch: [shape] */
    TESS_LIFE_KEPT,   /* one of [shape], kept for ever: keys and values of decode */
};

/* Begin the next unit; `output` is the shape of one row of its output, the next unit's input.
 * Returns the unit's index. */
int32_t tess_declare_unit(struct tess_declare *declare, const char *name, struct tess_shape output);

/* A parameter of the current unit, its name unique in the model ("conv1.weight"). Returns its index
 * in the model, from 0 in order of declaration. `rate` is for TESS_PARAM_BUFFER. */
int32_t tess_declare_param(struct tess_declare *declare, const char *name, struct tess_shape shape,
                           struct tess_init init, uint32_t flags);
int32_t tess_declare_buffer(struct tess_declare *declare, const char *name, struct tess_shape shape,
                            struct tess_init init, float rate);

/* A parameter that is cut along the tensor axis. `shape` is that of the whole, with its padding;
 * pass->param is this rank's parts. */
int32_t tess_declare_sliced(struct tess_declare *declare, const char *name, struct tess_shape shape,
                            struct tess_init init, uint32_t flags, struct tess_slice slice);
int32_t tess_declare_sliced_buffer(struct tess_declare *declare, const char *name,
                                   struct tess_shape shape, struct tess_init init, float rate,
                                   struct tess_slice slice);

/*
 * The current unit uses the values of parameter `source` of an earlier unit under another name (a
 * tied embedding). It has its shape and slice, is neither in files nor counted; its gradient is
 * added to the source's when both are complete. Each must be the only parameter of its unit.
 */
int32_t tess_declare_tied(struct tess_declare *declare, const char *name, int32_t source);

/*
 * Weights of linear layers that read the same x, to be used as one (q, k and v; gate and up):
 * parameters first .. first + count - 1 of the current unit, declared one after the other, of the
 * same length of a row, cut along dimension 0 or not at all. They keep their names, values and
 * update rules, and lie without a gap on every layout: pass->param[first], and pass->grad[first],
 * is the first element of a matrix of all their rows. A rank with several parts of the tensor axis
 * has the parts of each parameter together, so a matrix of one part is to be copied. Elements of
 * each, of a part where it is cut, are a multiple of TESS_SUM_BLOCK.
 */
void tess_declare_stacked(struct tess_declare *declare, int32_t first, int32_t count);

/* A tensor of the current unit: `shape` per row, or by its life. Returns its index in the model. */
int32_t tess_declare_tensor(struct tess_declare *declare, const char *name, enum tess_dtype dtype,
                            struct tess_shape shape, enum tess_life life);

/*
 * A prepared operation of the current unit; returns its index in the model. The engine fills in
 * rows, leaf_rows, dtype and input_grad (false in unit 0 when `first`). desc->rows > 0 stays as it
 * is, leaf_rows = 0 standing for one leaf of all rows (chunks, a part of the positions).
 */
int32_t tess_declare_op(struct tess_declare *declare, const struct tess_op_desc *desc, bool first);

/*
 * What the current unit's passes send along the tensor axis, for the planner's formula: each call
 * of tess_pass_sum and the like with its `count`. Training only. Those in forward are made again
 * where all of the unit is recomputed. Room for sums is as large as the largest declared.
 */
enum tess_crossing_call {
    TESS_CALL_SUM,   /* tess_pass_sum */
    TESS_CALL_WIDEN, /* tess_pass_widen */
    TESS_CALL_F32,   /* tess_pass_sum_f32, tess_pass_max_f32 */
};
enum tess_crossing_when { TESS_CALL_FORWARD, TESS_CALL_BACKWARD };
void tess_declare_crossing(struct tess_declare *declare, enum tess_crossing_when when,
                           enum tess_crossing_call call, int64_t count);

/* Backward may leave parameters without a gradient (pass->used): conditional branches. Costs a
 * small exchange among the ranks in every step. */
void tess_declare_conditional(struct tess_declare *declare);

/*
 * The model computes the loss itself, in its last unit: each row has `labels` labels (pass->label),
 * and pass->loss and pass->correct are sums over them. In training they are written in the last
 * unit's backward, which has no output_grad and begins with the gradient of the loss times
 * pass->loss_grad; otherwise in its forward. The last unit's output is then no input, and of any
 * shape.
 */
void tess_declare_loss(struct tess_declare *declare, int64_t labels);

/* What the data look like and how the run computes, for declare(). */
struct tess_model_input {
    struct tess_shape row;   /* of one sample: images [H, W, C]; tokens [T] */
    int32_t class_count;     /* classes, or the size of the vocabulary */
    enum tess_dtype dtype;   /* of activations and parameters in use */
    bool tokens;             /* input is int32 [rows, T], labels the tokens that follow each */
    int64_t rows, leaf_rows; /* of a pass */
    bool device;             /* memory is that of a GPU or its like (tess_kernel_ops.far_memory) */
    struct tess_tensor_axis axis;
    bool stacks;      /* the kernel asks for stacked weights (tess_kernel_ops.stacks) */
    int64_t averages; /* updates of running statistics in a step: one by each leaf of the global
                         batch in turn, or 1 (and 0): by the mean over the leaves */
    /* For generation: rows are single positions, T = 1, of `sequences` sequences of up to `context`
     * (tess_pass.run); keys and values are TESS_LIFE_KEPT, the last unit's output is the logits
     * [class_count] of each row in f32. No backward. 0 otherwise. */
    bool decode;
    int64_t context, sequences;
    int64_t learnt; /* decode: positions of a training sample */
    struct tess_lora lora;
};

/* decode: rows [row, row + count) of a pass are the positions of a sequence from `position` on. */
struct tess_pass_run {
    int64_t row, count, sequence, position;
};

/* All a unit needs for one call. Indices are those that the declare functions returned. */
struct tess_pass {
    struct tess_kernel *kernel;
    int32_t unit;
    bool training;
    enum tess_dtype dtype;
    int64_t rows, leaf_rows, leaf_count;
    uint64_t seed;      /* of the run */
    uint64_t step;      /* optimizer step, for dropout's key */
    uint64_t row_first; /* number of row 0 in the global batch, for dropout's elements */
    /* decode: what the rows are; those of no run are computed and not used. label NULL: no loss is
     * wanted; output NULL in the last unit: no logits are. */
    const struct tess_pass_run *run;
    int32_t run_count;
    bool remake; /* backward: TESS_LIFE_REMADE tensors of this unit must be remade */
    const int32_t
        *label;  /* models with a loss, last unit: [rows, labels]; a negative one does not count */
    float *loss; /* likewise, written: [rows] */
    int32_t *correct; /* likewise, written: [rows] labels that the greatest logit is */
    float
        *each; /* likewise, unless NULL: the loss of each label, of plain cross-entropy minus its
                  log-probability; [2, rows, labels], of which the second half is room to work in */
    float loss_grad;       /* likewise: factor on the gradient of the sum of all losses */
    struct tess_xent xent; /* likewise: what the loss has besides cross-entropy; spread is that of
                              class_count classes */
    /* Packed samples: documents lie end to end in the positions of all rows of the pass; number d
     * is [document[d], document[d + 1]), document [document_count + 1]. Each is a sequence by
     * itself. Host memory. NULL: every row is one document. */
    const int32_t *document;
    int32_t document_count;
    /* Each position's own, in its document or, of decode, in its sequence: [positions]. NULL: those
     * of a row, from 0. */
    const int32_t *place;
    const struct tess_tensor_axis *axis; /* as in the model's input */
    struct tess_tensor_pass *crossing;   /* of the functions below */
    const void *input;                   /* [rows, previous unit's output] */
    void *output;              /* [rows, this unit's output]; kept until the unit's backward, which
                                  may use it up */
    const void *output_grad;   /* backward: may be overwritten through `output_grad_scratch` */
    void *output_grad_scratch; /* the same address as output_grad, writable */
    void *input_grad;          /* backward: NULL in unit 0 */
    const void *const *param;  /* in pass->dtype */
    float *const *grad;        /* overwritten by backward, for every parameter of the unit; NULL
                                  where one is frozen */
    bool *used; /* [parameters of the model]; backward sets false for a parameter whose gradient it
                   has not written because no row of this pass used it; else leave it alone. A
                   buffer's statistic then counts as zero for these leaves. */
    void *const *tensor;
    struct tess_op *const *op;
    struct tess_early *early; /* of tess_pass_update */
};

/*
 * The update of a parameter for tess_op.update, NULL where the step does that after backward. Take
 * it where one operation computes the parameter's whole gradient and nothing of this pass reads its
 * value afterwards; the step then leaves it out.
 */
const struct tess_update *tess_pass_update(const struct tess_pass *pass, int32_t param);

/*
 * A uniform number in [0, 1) for a model's own choices, such as which branch to take: keyed by the
 * run's seed, the step, the pass's unit and `element`, so the same in forward and backward and on
 * every rank. Number the elements by what is the same on every layout: 0 for a choice of
 * the whole step, (row_first / leaf_rows) + leaf for one of a leaf.
 */
float tess_pass_uniform(const struct tess_pass *pass, uint64_t element);

/*
 * Where activations cross the tensor axis. Collective over the axis; every rank makes the same
 * calls. Without a tensor axis they move nothing. A layer cut by columns and then by rows (Shoeybi
 * et al., "Megatron-LM", 2019, section 3) is
 *
 *     forward    widen(x)   y_p = f(x A_p) B_p for its parts p    y = sum(y_p)
 *     backward   widen(dy)  dx_p from dy, for its parts p         dx = sum(dx_p)
 *
 * and with sequence parallel (Korthikanti et al. 2022, section 4.2.2) widen is an all-gather of
 * positions and sum a reduce-scatter of them, otherwise nothing and an all-reduce.
 */

/*
 * y = the sum over all parts of all ranks of partial [axis->count, count], in the run's dtype, or
 * with sequence parallel this rank's run of count / rank_count elements of it. With more parts than
 * ranks the sum is one tree over the parts in f32, rounded once. y may be partial; partial is used
 * up.
 */
enum tess_status tess_pass_sum(const struct tess_pass *pass, int64_t count, void *partial, void *y);
/*
 * The same in two halves, between which the model computes what does not need the sum (the
 * gradients of weights, while that of the input is summed). Several may be begun one after the
 * other; end ends all of them. Until then partial and y are theirs, and nothing else crosses the
 * tensor axis.
 */
enum tess_status tess_pass_sum_begin(const struct tess_pass *pass, int64_t count, void *partial,
                                     void *y);
enum tess_status tess_pass_sum_end(const struct tess_pass *pass);
/* whole [count] = the runs of all ranks, in the run's dtype. Without sequence parallel both are the
 * same address and nothing is done. */
enum tess_status tess_pass_widen(const struct tess_pass *pass, int64_t count, const void *part,
                                 void *whole);
/* x [axis->count, count] in f32: x[0 .. count) = the sum (tree over the parts), or the greatest,
 * over all parts of all ranks. */
enum tess_status tess_pass_sum_f32(const struct tess_pass *pass, int64_t count, float *x);
enum tess_status tess_pass_max_f32(const struct tess_pass *pass, int64_t count, float *x);

struct tess_model_ops {
    uint32_t abi;
    const char *name;
    const char *summary;
    const struct tess_option *options; /* OPTIONAL, default: none */
    size_t options_size;
    size_t state_size; /* private bytes, zeroed, allocated by the core; declare alone writes them:
                          several ranks of one process may share them */
    bool tokens;       /* trains on text or token files, not on images */
    bool documents;    /* heeds tess_pass.document; others are refused packed samples */
    bool tensor;       /* implements tess_model_input.axis; others are refused a tensor axis */
    bool lora;         /* implements tess_model_input.lora; others are refused adapters */

    /* REQUIRED. Pure. Option values the model cannot have are refused here with a message. */
    enum tess_status (*declare)(void *state, const void *options,
                                const struct tess_model_input *input, struct tess_declare *declare);
    /* REQUIRED. Compute pass->unit. */
    enum tess_status (*forward)(void *state, const struct tess_pass *pass);
    /* REQUIRED. Gradients of pass->unit's parameters, statistics of buffers, and input_grad. */
    enum tess_status (*backward)(void *state, const struct tess_pass *pass);
};

TESS_END_DECLS
#endif
