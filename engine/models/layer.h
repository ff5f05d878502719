/*
 * Layers: an operation together with its parameters and statistics, as the models of this room are
 * made of. Declares and runs one layer; what a unit is and how layers are joined is the model's
 * part.
 */
#ifndef TESSERA_MODELS_LAYER_H
#define TESSERA_MODELS_LAYER_H

#include "tessera/model.h"

/* A linear or convolution layer. Indices are those of the whole model. */
struct tess__layer {
    enum tess_op_kind kind;
    bool relu;
    int32_t op, weight, bias; /* bias -1: none */
    int64_t out_count;        /* elements of one row of the output */
};

/* A batch norm layer; `rate` of the running averages is PyTorch's momentum. */
struct tess__norm {
    int32_t op, gamma, beta, mean, var;              /* operation, parameters, buffers */
    int32_t save_mean, save_rstd, mean_sum, var_sum; /* tensors */
    int64_t channels, positions;                     /* of one row: [positions, channels] */
};

/* Uniform in +-1/sqrt(fan_in): what PyTorch gives weights and biases of its Linear and Conv2d. */
struct tess_init tess__init_fan_in(int64_t fan_in);

/*
 * Declare <name>.weight, <name>.bias (unless !bias) and the operation in the current unit. `desc`
 * has kind, sizes and relu. first: the layer reads the model's input, so nobody wants its gradient.
 */
void tess__layer_declare(struct tess_declare *declare, const char *name,
                         const struct tess_op_desc *desc, struct tess_init init, bool bias,
                         bool first, struct tess__layer *layer_out);

/* y = layer(x); neither may alias the other. */
enum tess_status tess__layer_forward(const struct tess_pass *pass, const struct tess__layer *layer,
                                     const void *x, void *y);

/*
 * Gradients of weight, bias and x. The ReLU's backward is applied to dy in place first, with y;
 * y NULL: dy has it already, or there is no ReLU. dx NULL: not wanted.
 */
enum tess_status tess__layer_backward(const struct tess_pass *pass, const struct tess__layer *layer,
                                      const void *x, const void *y, void *dy, void *dx);

/* Declare <name>.weight, .bias, the buffers .running_mean, .running_var and the tensors. */
void tess__norm_declare(struct tess_declare *declare, const char *name,
                        const struct tess_op_desc *desc, float rate, struct tess__norm *norm_out);

/* y = norm(x): with the statistics of the batch's leaves in training, else with the running ones.
 */
enum tess_status tess__norm_forward(const struct tess_pass *pass, const struct tess__norm *norm,
                                    const void *x, void *y);

/* Gradients of gamma, beta and x, and the statistics for the buffers; dx may be dy. */
enum tess_status tess__norm_backward(const struct tess_pass *pass, const struct tess__norm *norm,
                                     const void *x, const void *y, const void *dy, void *dx);

/*
 * In training, drop elements of x [rows, row_count] in place, keyed by seed, step, unit and the
 * global row: calling it on the gradient applies the same mask. At most once per unit and
 * direction.
 */
void tess__dropout(const struct tess_pass *pass, double rate, int64_t row_count, void *x);

/*
 * The same for units that drop in several places, and for parts of rows: y = x [count] with
 * elements dropped, `first` being the number of x[0] among all of the global batch (below 2^48) and
 * `site` that of the place in the unit, from 0. Where nothing is to be dropped y = x. y may be x.
 */
void tess__dropout_at(const struct tess_pass *pass, double rate, int32_t site, uint64_t first,
                      int64_t count, const void *x, void *y);

#endif
