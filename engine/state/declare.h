/* What a model declared: units, parameters, tensors, operations. Filled through tessera/model.h. */
#ifndef TESSERA_STATE_DECLARE_H
#define TESSERA_STATE_DECLARE_H

#include "tessera/model.h"
#include "tessera/strategy.h"

#define TESS_NAME_MAX 64

/*
 * Each part has `index`, its number in the whole model: what the model calls it by. In what a rank
 * keeps of the model (tess_declare_select) places in the arrays differ from it; `unit` is always
 * the place in this struct's unit array.
 */
struct tess_declare_unit {
    char name[TESS_NAME_MAX];
    int32_t index;
    int64_t crossing[2][3]; /* elements of all calls of a pass, by enum tess_crossing_when and
                               tess_crossing_call */
    int32_t chunk;          /* set by the engine: of a pipeline's rank; else 0 */
    int64_t output_count;   /* elements per row */
    int32_t tensor_count, op_count;
    bool repeats; /* tensors and operations need what those of the model's unit before it do */
};

struct tess_declare_param {
    char name[TESS_NAME_MAX];
    int32_t unit, index;
    struct tess_shape shape; /* of what this rank holds */
    struct tess_shape
        whole; /* of the model's tensor, padding included; shape where it is not cut */
    struct tess_slice slice;
    struct tess_init init;
    uint32_t flags;
    float rate;          /* TESS_PARAM_BUFFER */
    bool stacked;        /* without a gap behind the one before: tess_declare_stacked */
    int32_t source;      /* TESS_PARAM_TIED: index of the parameter whose value this is */
    int64_t model_begin; /* number of its first element among all of the model, whole tensors, tied
                            ones left out (theirs is their source's) */
};

struct tess_declare_tensor {
    char name[TESS_NAME_MAX];
    int32_t unit, index;
    enum tess_dtype dtype;
    int64_t count; /* elements per row, leaf or micro-batch */
    enum tess_life life;
};

struct tess_declare_op {
    int32_t unit, index;
    struct tess_op_desc desc;
};

struct tess_declare {
    struct tess_declare_unit *unit;
    struct tess_declare_param *param;
    struct tess_declare_tensor *tensor;
    struct tess_declare_op *op;
    int32_t unit_count, param_count, tensor_count, op_count;
    int32_t unit_room, param_room, tensor_room, op_room;
    int64_t rows, leaf_rows; /* given to operations */
    enum tess_dtype dtype;
    struct tess_tensor_axis axis;
    int64_t sum_most;               /* elements of the greatest sum over the tensor axis */
    int64_t labels;                 /* of a row, where the model computes the loss itself; else 0 */
    int64_t element_count;          /* of all parameters, whole tensors, tied ones left out */
    bool conditional;               /* backward may leave parameters unused */
    bool tied;                      /* some parameter is tied to another one */
    enum tess_status status;        /* the first thing that went wrong */
    bool frozen;                    /* all parameters but adapters are TESS_PARAM_FROZEN */
    bool borrowed;                  /* the arrays belong to another one: fini leaves them */
    struct tess_declared_one *kept; /* where the model is kept for many engines; else NULL */
};

/* Room for as many parts as `like` has, before the model declares. */
enum tess_status tess_declare_reserve(struct tess_declare *declare,
                                      const struct tess_declare *like);
/* Run a model's declare() and check what it declared. `declare` is zeroed by the caller, who sets
 * rows, leaf_rows and dtype; fini is due also after a failure. */
enum tess_status tess_declare_model(struct tess_declare *declare,
                                    const struct tess_model_ops *model, void *state,
                                    const void *options, const struct tess_model_input *input);
void tess_declare_fini(struct tess_declare *declare);

/* Index of the parameter that this one is tied to, or -1. */
static inline int32_t tess_declare_source(const struct tess_declare_param *param)
{
    return param->flags & TESS_PARAM_TIED ? param->source : -1;
}

/* What is left of a model when only the units with keep[unit] are: copies, to be freed by fini. */
enum tess_status tess_declare_select(const struct tess_declare *model, const bool *keep,
                                     struct tess_declare *part_out);
/* All of a model, in the arrays of `model`, which must stay. */
struct tess_declare tess_declare_borrow(const struct tess_declare *model);

/*
 * A parameter's elements here and in the model's tensor: element `at` of what this rank holds is
 * element *whole_out of the whole tensor, and so are the `returned` - 1 after it, in order (until
 * the run or the parameter ends). Elements are held in increasing runs within each part. Pure.
 */
int64_t tess_declare_run(const struct tess_declare_param *param,
                         const struct tess_tensor_axis *tensor, int64_t at, int64_t *whole_out);

/* Elements of the whole tensor before its padding (tess_slice.used, of the first dimension). */
int64_t tess_declare_used(const struct tess_declare_param *param);

/* Elements of all parameters as files have them: the model's size as papers give it. */
int64_t tess_declare_size(const struct tess_declare *declare);

/* Do files have the parameter transposed? */
static inline bool tess_declare_turned(const struct tess_declare_param *param)
{
    return (param->flags & TESS_PARAM_TRANSPOSED) != 0 && param->whole.rank == 2;
}

/* The whole tensor as files have it: padding left out, transposed where the flag is set. */
struct tess_shape tess_declare_file_shape(const struct tess_declare_param *param);

#endif
