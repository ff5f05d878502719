/*
 * Linear layers cut along the tensor axis (Shoeybi et al., "Megatron-LM", 2019, section 3), and the
 * ways of activations between what is cut and what is not, with and without sequence parallel.
 *
 *     by columns   y_p = x A_p + b_p           each part computes some of the outputs
 *     by rows      y = sum over p of x_p B_p   each part reads some of the inputs
 *
 * A rank computes axis->count parts; each has a number among them, 0 .. count - 1.
 *
 * A layer by rows adds its bias in the first of all parts. The bias and the gradient of the output
 * are whole on every rank, so the first part of each rank writes the bias's gradient.
 */
#ifndef TESSERA_MODELS_CUT_H
#define TESSERA_MODELS_CUT_H

#include "tessera/model.h"

/* Indices are those of the whole model. */
struct tess__cut {
    int32_t op, weight, bias; /* bias -1: none */
    int64_t in, out;          /* of one part */
    bool by_rows;
};

struct tess__cut_desc {
    const char *name;
    int64_t in, out;         /* of the whole layer */
    int64_t rows, leaf_rows; /* of a pass: positions */
    bool by_rows;
    bool bias;
    int32_t blocks; /* by columns: layers that share the weight, each cut by itself; at least 1 */
    bool gelu;      /* its input is the GELU of another layer: see tess__cut_backward_gelu */
    uint32_t flags; /* of the weight, enum tess_param_flag */
    struct tess_init init;
};

/* Declare <name>.weight, <name>.bias (zero at first) and the operation in the current unit. */
void tess__cut_declare(struct tess_declare *declare, const struct tess_tensor_axis *axis,
                       const struct tess__cut_desc *desc, struct tess__cut *cut_out);

/*
 * One part: y [rows, out of a part] = x A_p + b_p, or the part's term of the sum, to which the
 * first of all parts adds the bias. x, y: of this part; x is not y.
 */
enum tess_status tess__cut_forward(const struct tess_pass *pass, const struct tess__cut *cut,
                                   int32_t part, const void *x, void *y);

/*
 * The part's gradients of weight, bias and x. dx may be x. The bias of a layer cut by rows is on
 * every rank, and so is dy: the first part that a rank computes writes the bias's whole gradient.
 */
enum tess_status tess__cut_backward(const struct tess_pass *pass, const struct tess__cut *cut,
                                    int32_t part, const void *x, const void *dy, void *dx);
/* The same where x is the GELU of `before`: dx is the gradient of that. */
enum tess_status tess__cut_backward_gelu(const struct tess_pass *pass, const struct tess__cut *cut,
                                         int32_t part, const void *x, const void *dy,
                                         const void *before, void *dx);

/* Operation `op` of the model for a part, whose weights are other than the last part's. */
struct tess_op *tess__cut_op(const struct tess_pass *pass, int32_t op);

/* Do the parts' terms of a sum need memory of their own? If not, they may lie where the sum goes.
 */
bool tess__cut_has_terms(const struct tess_tensor_axis *axis);

/*
 * tess_pass_sum and tess_pass_widen of a whole pass, `leaf_count` elements in a leaf. With sequence
 * parallel each leaf's positions are cut into the ranks' runs, so that sums by leaves do not depend
 * on how many leaves a pass has:
 *
 *     2 ranks, 2 leaves of 6 positions    rank 0   0 1 2  6 7 8     rank 1   3 4 5  9 10 11
 */
enum tess_status tess__cut_sum(const struct tess_pass *pass, int64_t leaf_count, void *terms,
                               void *y);
/* Sets *whole_out to `room`, or where nothing is to be done to x; room may be NULL then. */
enum tess_status tess__cut_widen(const struct tess_pass *pass, int64_t leaf_count, const void *x,
                                 void *room, const void **whole_out);

#endif
