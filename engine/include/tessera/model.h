/*
 * Models. A model is a chain of units; the unit is the grain of sharding, prefetch and pipelining.
 * It declares its parameters, tensors and operations, allocates nothing, and computes one unit at a
 * time from the pointers it is handed. It does not know the strategy, the ranks or the optimizer.
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

#ifdef __cplusplus
extern "C" {
#endif

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
};

/* Life of a tensor of a unit. */
enum tess_life {
    TESS_LIFE_SAVED,  /* written in forward, read in backward of the same micro-batch */
    TESS_LIFE_UNIT,   /* alive only within one call; its memory is shared with other units */
    TESS_LIFE_LEAVES, /* as SAVED, but one per leaf instead of one per row: [leaves, shape] */
    TESS_LIFE_BATCH,  /* as SAVED, but one per micro-batch: [shape] */
};

/*
 * Begin the next unit. `output` is the shape of one row of its output, which the engine allocates
 * and hands to the next unit as input. Returns the unit's index.
 */
int32_t tess_declare_unit(struct tess_declare *declare, const char *name, struct tess_shape output);

/*
 * A parameter of the current unit. Names are unique in the model ("conv1.weight"). Returns its
 * index, counted over the whole model from 0 in order of declaration. `rate` is for
 * TESS_PARAM_BUFFER.
 */
int32_t tess_declare_param(struct tess_declare *declare, const char *name, struct tess_shape shape,
                           struct tess_init init, uint32_t flags);
int32_t tess_declare_buffer(struct tess_declare *declare, const char *name, struct tess_shape shape,
                            struct tess_init init, float rate);

/* A tensor of the current unit: `shape` per row (or per leaf). Returns its index in the model. */
int32_t tess_declare_tensor(struct tess_declare *declare, const char *name, enum tess_dtype dtype,
                            struct tess_shape shape, enum tess_life life);

/*
 * A prepared operation of the current unit. rows, leaf_rows and dtype are filled in by the engine,
 * input_grad too (false only in unit 0 when `first` is true). Returns its index in the model.
 */
int32_t tess_declare_op(struct tess_declare *declare, const struct tess_op_desc *desc, bool first);

/*
 * The model has conditional branches: backward may leave parameters without a gradient
 * (pass->used). Costs a small exchange among the ranks in every step, so it is said only where it
 * is so.
 */
void tess_declare_conditional(struct tess_declare *declare);

/* What the data look like and the run's precision, for declare(). */
struct tess_model_input {
    struct tess_shape row; /* of one sample: [H, W, C] */
    int32_t class_count;
    enum tess_dtype dtype; /* of activations and parameters in use */
};

/* All a unit needs for one call. Indices are those that the declare functions returned. */
struct tess_pass {
    struct tess_kernel *kernel;
    int32_t unit;
    bool training;
    enum tess_dtype dtype;
    int64_t rows, leaf_rows, leaf_count;
    uint64_t seed;             /* of the run */
    uint64_t step;             /* optimizer step, for dropout's key */
    uint64_t row_first;        /* number of row 0 in the global batch, for dropout's elements */
    const void *input;         /* [rows, previous unit's output] */
    void *output;              /* [rows, this unit's output]; kept until the unit's backward, which
                                  may use it up */
    const void *output_grad;   /* backward: may be overwritten through `output_grad_scratch` */
    void *output_grad_scratch; /* the same address as output_grad, writable */
    void *input_grad;          /* backward: NULL in unit 0 */
    const void *const *param;  /* in pass->dtype */
    float *const *grad;        /* overwritten by backward, for every parameter of the unit */
    bool *used; /* [parameters of the model]; backward sets false for a parameter whose gradient it
                   has not written because no row of this pass used it; else leave it alone. A
                   buffer's statistic then counts as zero for these leaves. */
    void *const *tensor;
    struct tess_op *const *op;
};

/*
 * A uniform number in [0, 1) for a model's own choices, such as which branch to take: keyed by the
 * run's seed, the step, the pass's unit and `element`, so the same in forward and backward and on
 * whichever rank asks. Number the elements by what is the same on every layout: 0 for a choice of
 * the whole step, (row_first / leaf_rows) + leaf for one of a leaf.
 */
float tess_pass_uniform(const struct tess_pass *pass, uint64_t element);

struct tess_model_ops {
    uint32_t abi;
    const char *name;
    const char *summary;
    const struct tess_option *options; /* OPTIONAL, default: none */
    size_t options_size;
    size_t state_size; /* private bytes, zeroed, allocated by the core */

    /* REQUIRED. Pure. Option values the model cannot have are refused here with a message. */
    enum tess_status (*declare)(void *state, const void *options,
                                const struct tess_model_input *input, struct tess_declare *declare);
    /* REQUIRED. Compute pass->unit. */
    enum tess_status (*forward)(void *state, const struct tess_pass *pass);
    /* REQUIRED. Gradients of pass->unit's parameters (and statistics for buffers), and input_grad.
     */
    enum tess_status (*backward)(void *state, const struct tess_pass *pass);
};

#ifdef __cplusplus
}
#endif
#endif
