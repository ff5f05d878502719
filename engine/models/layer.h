/*
 * Layers: an operation together with its parameters and statistics, as the models of this room are
 * made of. Declares and runs one layer; what a unit is and how layers are joined is the model's
 * part.
 */
#ifndef TESSERA_MODELS_LAYER_H
#define TESSERA_MODELS_LAYER_H

#include "tessera/model.h"

/*
 * How a layer is cut into the parts of the tensor axis, see tess_pass_sum in tessera/model.h. What
 * is cut lies part by part, [parts of this rank][rows, positions, channels / parts], so that an
 * operation finds a part as it would find a layer of so many channels.
 */
enum tess__split {
    TESS_SPLIT_NONE,    /* every rank computes all of it */
    TESS_SPLIT_COLUMNS, /* by outputs: x is whole, y is cut */
    TESS_SPLIT_ROWS,    /* by inputs: x is cut, y is whole */
};

struct tess__layer_desc {
    const char *name;
    struct tess_op_desc op; /* kind, sizes of the whole layer, relu; rows 0: of the pass */
    struct tess_init init;  /* of the weight */
    struct tess_init bias_init;
    uint32_t flags; /* of the weight, enum tess_param_flag */
    bool bias;
    double dropout; /* share of a linear layer's outputs, after the ReLU, that training drops */
    bool first;     /* the layer reads the model's input, so its gradient is not needed */
    enum tess__split split;
    int32_t runs;   /* 2 or more: the rows of forward are also computed in so many equal runs of
                       whole leaves (tess__layer_forward_run) */
    int32_t blocks; /* linear, by rows: the pixels of an image whose channels are cut, where that is
                       read as one vector; by columns: layers that share the weight, each cut by
                       itself; 0 is 1 */
};

#define TESS_STACK_MAX 3

/* Room for "block3.16.shortcut.running_mean" and the like. */
#define TESS__LAYER_NAME 64
/* LAYER.FIELD, cut where there is no room. */
const char *tess__layer_name(char text[TESS__LAYER_NAME], const char *layer, const char *field);

/* A linear or convolution layer. Indices are those of the whole model. */
struct tess__layer {
    enum tess_op_kind kind;
    enum tess__split split;
    bool relu;
    double dropout;
    int32_t op, weight, bias; /* bias -1: none */
    int32_t run_op;           /* of a run; -1: none */
    int32_t terms;            /* tensor: the parts' terms of a sum; -1: they lie where that goes */
    int64_t in_count,
        out_count; /* elements of one row of x and y, of one part where they are cut */
    int64_t weight_count, bias_count; /* likewise */
    int32_t stack_count;              /* weights, one after the other from `weight` on */
    int64_t stack[TESS_STACK_MAX];    /* elements of each, of one part where they are cut */
    int32_t stack_weight, stack_grad; /* tensors: of one part, put together; -1: lie together */
};

/* A batch norm layer; `rate` of the running averages is PyTorch's momentum. */
struct tess__norm {
    bool cut;
    int32_t op, gamma, beta, mean, var;              /* operation, parameters, buffers */
    int32_t save_mean, save_rstd, mean_sum, var_sum; /* tensors */
    int64_t averages;                                /* of struct tess_model_input */
    double rate;                                     /* of one update */
    int32_t leaf_mean, leaf_var; /* tensors of many updates: each leaf's statistics */
    int64_t channels,
        positions; /* of one row: [positions, channels], of one part where it is cut */
};

/* How the layer after one of `before` is cut; the last one's output must be whole. The first comes
 * after TESS_SPLIT_NONE. */
enum tess__split tess__split_after(const struct tess_tensor_axis *axis, enum tess__split before,
                                   bool last);

/*
 * Can `model` be cut? TESS_ERR_USAGE with what would fit where the parts do not divide `common`,
 * the greatest common divisor of `what` ("the widths of ...").
 */
enum tess_status tess__split_check(const struct tess_tensor_axis *axis, const char *model,
                                   const char *what, int64_t common);

/* The divisors of `common` as a message lists them: the first dozen. */
#define TESS__FITTING_BYTES 288
const char *tess__split_fitting(int64_t common, char text[TESS__FITTING_BYTES]);

/* The greatest common divisor; of 0 and b it is b. */
int64_t tess__split_common(int64_t a, int64_t b);

/* Channels that this rank holds of `channels`. */
int64_t tess__split_held(const struct tess_tensor_axis *axis, enum tess__split split,
                         int64_t channels);

/* Uniform in +-1/sqrt(fan_in): what PyTorch gives weights and biases of its Linear and Conv2d. */
struct tess_init tess__init_fan_in(int64_t fan_in);

/* Declare <name>.weight, <name>.bias, the operation and what it needs in the current unit. */
void tess__layer_declare(struct tess_declare *declare, const struct tess_model_input *input,
                         const struct tess__layer_desc *desc, struct tess__layer *layer_out);

/*
 * The same for `count` linear layers without bias that read the same x, as one: its output is
 * theirs side by side, [rows, sum of op.out]. desc [count] differ in name and op.out alone, and
 * their weights can be stacked (tess_declare_stacked). op.dtype is that of the run.
 */
void tess__layer_declare_stack(struct tess_declare *declare, const struct tess_tensor_axis *axis,
                               const struct tess__layer_desc *desc, int32_t count,
                               struct tess__layer *layer_out);

/* Operation `op` of the model for a part, whose weights are other than the last part's. */
struct tess_op *tess__layer_op(const struct tess_pass *pass, int32_t op);

/* Do the parts' terms of a sum need memory of their own? If not, they may lie where the sum goes.
 */
bool tess__layer_has_terms(const struct tess_tensor_axis *axis);

/*
 * One part, 0 .. axis->count - 1: y = x A_p + b_p, or by rows the part's term of the sum, to which
 * the first of all parts adds the bias. x, y: of this part; x is not y.
 */
enum tess_status tess__layer_forward_part(const struct tess_pass *pass,
                                          const struct tess__layer *layer, int32_t part,
                                          const void *x, void *y);

/* The same of a run of rows. */
enum tess_status tess__layer_forward_run(const struct tess_pass *pass,
                                         const struct tess__layer *layer, int32_t part,
                                         const void *x, void *y);

/* The same of a linear layer, plus add: tess_linear_forward_add. */
enum tess_status tess__layer_forward_part_add(const struct tess_pass *pass,
                                              const struct tess__layer *layer, int32_t part,
                                              const void *x, const void *add, void *y);

/*
 * The part's gradients of weight, bias and x; dx NULL: not computed; of a linear layer dx may be x.
 * The bias of a layer cut by rows is on every rank, and so is dy: the first part that a rank
 * computes writes all of its gradient. `before` not NULL: x is the GELU of it (desc.op.gelu), and
 * dx the gradient of that.
 */
enum tess_status tess__layer_backward_part(const struct tess_pass *pass,
                                           const struct tess__layer *layer, int32_t part,
                                           const void *x, const void *dy, const void *before,
                                           void *dx);

/* The same of a linear layer, but dx += the part's gradient of x: tess_linear_backward, with its
 * room `term`. */
enum tess_status tess__layer_backward_onto(const struct tess_pass *pass,
                                           const struct tess__layer *layer, int32_t part,
                                           const void *x, const void *dy, void *term, void *dx);

/*
 * The two halves of a layer's backward, gradient of x (dx is not x; with `term`, dx += it) before
 * that of weight and bias: the sum over the tensor axis is under way beside the second. Is that
 * worth it? Not without other ranks, nor in fp8, which narrows dy once for both.
 */
bool tess__layer_is_apart(const struct tess_pass *pass, const struct tess__layer *layer);
enum tess_status tess__layer_backward_data(const struct tess_pass *pass,
                                           const struct tess__layer *layer, int32_t part,
                                           const void *x, const void *dy, void *term, void *dx);
enum tess_status tess__layer_backward_weight(const struct tess_pass *pass,
                                             const struct tess__layer *layer, int32_t part,
                                             const void *x, const void *dy);

/* y = layer(x); neither may alias the other. Collective over the tensor axis, as all below. */
enum tess_status tess__layer_forward(const struct tess_pass *pass, const struct tess__layer *layer,
                                     const void *x, void *y);

/*
 * Gradients of weight, bias and x. The ReLU's backward is applied to dy in place first, with y;
 * y NULL: dy has it already, or there is no ReLU. dx NULL: not computed.
 */
enum tess_status tess__layer_backward(const struct tess_pass *pass, const struct tess__layer *layer,
                                      const void *x, const void *y, void *dy, void *dx);

/* Declare <name>.weight, .bias, the buffers .running_mean, .running_var and the tensors, for batch
 * norm and ReLU of images [H, W, C] with all channels; `cut`: the input is. */
void tess__norm_declare(struct tess_declare *declare, const struct tess_model_input *input,
                        const char *name, const struct tess_shape *image, float rate, bool cut,
                        struct tess__norm *norm_out);

/* y = norm(x): with the statistics of the batch's leaves in training, else with the running ones.
 */
enum tess_status tess__norm_forward(const struct tess_pass *pass, const struct tess__norm *norm,
                                    const void *x, void *y);

/* Gradients of gamma, beta and x, and the statistics for the buffers; dx may be dy. */
enum tess_status tess__norm_backward(const struct tess_pass *pass, const struct tess__norm *norm,
                                     const void *x, const void *y, const void *dy, void *dx);

/*
 * In training, drop elements of x [rows, positions, channels] in place, keyed by seed, step, unit
 * and the global row: calling it on the gradient applies the same mask. At most once per unit and
 * direction. This rank holds parts of x, [parts of this rank] [rows, positions, channels of one
 * part]: the mask is that of the whole, however many parts or ranks there are.
 */
void tess__dropout_cut(const struct tess_pass *pass, double rate, int64_t positions,
                       int64_t channels, void *x);

/* The key of a pass's unit, of dropout. */
void tess__dropout_key(const struct tess_pass *pass, uint64_t key_out[2]);
/*
 * The same for units that drop in several places, and for parts of rows: y = x [count] with
 * elements dropped, `first` being the number of x[0] among all of the global batch (below 2^48) and
 * `site` that of the place in the unit, from 0. Where nothing is to be dropped y = x. y may be x.
 */
void tess__dropout_at(const struct tess_pass *pass, double rate, int32_t site, uint64_t first,
                      int64_t count, const void *x, void *y);

#endif
