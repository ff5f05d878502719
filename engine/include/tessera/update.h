/*
 * Updating parameters: the rules, and the exact sums behind norms. Norms, clipping factors and the
 * decision to skip a step stay in device memory from the gradients to the update, so that the host
 * need not wait for them; it reads the verdict when the step is over.
 */
#ifndef TESSERA_UPDATE_H
#define TESSERA_UPDATE_H

#include "tessera/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

TESS_BEGIN_DECLS

struct tess_kernel;

/* Update rules. State arrays per element: m, then v. */
enum tess_update_kind {
    TESS_UPDATE_SGD,      /* w -= lr * g */
    TESS_UPDATE_MOMENTUM, /* m = mu m + g; w -= lr * m; Nesterov: w -= lr * (g + mu m) */
    TESS_UPDATE_ADAMW,    /* Loshchilov and Hutter 2019, algorithm 2; decay is decoupled */
    TESS_UPDATE_NOVOGRAD, /* Ginsburg et al. 2019, algorithm 1; v is one number per tensor */
    TESS_UPDATE_LAMB,     /* You et al. 2020, algorithm 2 */
    TESS_UPDATE_AVERAGE,  /* buffers: w = (1 - lr) w + lr g, g the mean statistic of the batch */
    TESS_UPDATE_OWN,      /* the update's `loop`; for device memory that the host can read */
};

struct tess_update;

/* A rule in plain C: update w (and m, v) of elements begin .. end - 1. `factor` has been resolved
 * into the fields. The caller writes param_low. Several threads may call it for disjoint ranges. */
typedef void tess_update_loop(const struct tess_update *update, int64_t begin, int64_t end);

/*
 * An exact sum of squares: a fixed-point number of TESS_SUM_LIMBS digits of 32 bits, each kept in
 * an int64, so that sums of pieces, added in any order or reduced over ranks as integers, have the
 * same bits. Filled by square_sum over fixed blocks, as a rule of 64 elements; see
 * engine/base/sum.h for the format.
 */
#define TESS_SUM_LIMBS 20
#define TESS_SUM_BLOCK 64

struct tess_sum {
    int64_t limb[TESS_SUM_LIMBS];
};

/* What a step has found, in device memory. All zero when a step begins. */
struct tess_verdict {
    /* 0, or parameter_count - p, p the first parameter whose gradient is not finite: by
     * tess_find_flag, and by the norms. Of all ranks, once it has been reduced with max. */
    int32_t grad_bad;
    int32_t norm_bad;
    int32_t loss_bad; /* 1 + row of the first loss that is not finite, of the latest such pass */
    int32_t skip;     /* nothing is updated */
    double grad_norm; /* un-scaled, before clipping; -1: not computed */
};

/* What the host provides for a step's update. In device memory, written before the update. */
struct tess_update_rates {
    float lr;
    float correction1, correction2; /* 1/(1 - beta1^t), 1/(1 - beta2^t); ADAMW, LAMB */
    float grad_scale;               /* 1 / loss scale, where nothing is clipped */
    double loss_scale;              /* gradients are this times those of the loss */
};

/* What one parameter's update needs of the step, by tess_update_judge: device [param_count]. */
struct tess_update_factor {
    float lr;
    float correction1, correction2;
    float grad_scale;   /* gradients are read as grad_scale * g: clipping, loss scale */
    float tensor_scale; /* NOVOGRAD: 1/(sqrt(v) + eps); LAMB second pass: trust ratio; else 1 */
    int32_t skip;       /* leave value and state as they are */
};

/*
 * From sums to factors, all on the device. In the order of the fields:
 *
 *   norm      sum[p] are squares of p's gradient: grad_norm = sqrt(sum of all) / loss_scale, in
 *             double; a sum that is not finite sets norm_bad, by the first p, and skip
 *   clip      > 0: grad_scale = min(1, clip / grad_norm) / loss_scale, rounded to float last;
 *             needs norm
 *   novograd  tensor_state[p] = |g|^2 at age 0, then beta2 v + (1 - beta2) |g|^2, |g|^2 the sum
 *             times grad_scale^2 in double; capped at FLT_MAX. tensor_scale = 1/(sqrt(v) + eps)
 *   ratio     sum[p] = |w|^2, sum[count + p] = |direction|^2: tensor_scale = |w| / |direction|, 1
 *             where one is 0 (You et al. 2020, section 3.1). Keeps the other factors. For
 *             parameters in `plain` the sums are 0.
 *
 * grad_bad or loss_bad > 0 sets skip; skip of the verdict becomes every parameter's. `age` and
 * `unused` [count], NULL: all are `step` updates old, and none is left out. Else corrections are
 * those of a parameter's own age, 1/(1 - beta^(age + 1)), in double by repeated squaring and
 * rounded once.
 */
struct tess_judge {
    bool norm, novograd, ratio;
    int32_t count;
    const struct tess_sum *sum;            /* [count], with ratio [2 count] */
    const struct tess_update_rates *rates; /* device */
    double clip;
    float beta1, beta2, epsilon;
    int64_t step; /* updates done so far, where `age` is NULL */
    const int64_t *age;
    const uint8_t *unused;
    float *tensor_state;
    struct tess_verdict *verdict;
    struct tess_update_factor *factor; /* [count] */
};

/*
 * One contiguous piece of one parameter tensor. w is the f32 master; param_low, when not NULL,
 * receives w rounded to `low` (the compute copy). Factors are read from `factor` where that is
 * not NULL, else from the fields here. All arrays are device memory.
 */
struct tess_update {
    enum tess_update_kind kind;
    bool nesterov;
    enum tess_dtype low;
    int64_t count;
    float *w;
    void *param_low;
    const float *g;
    float *m, *v;
    float lr, mu, beta1, beta2, epsilon, weight_decay;
    float correction1, correction2;
    float grad_scale;
    float tensor_scale;
    const struct tess_update_factor *factor; /* kind AVERAGE uses its `skip` alone */
    float *direction;       /* LAMB: the unscaled update [count], written by lamb_direction */
    tess_update_loop *loop; /* OWN */
    const void *options;    /* OWN: the optimizer's own options */
};

/*
 * sum += the squares of (scale x[i]), by blocks of `block` elements from x on: a power of two, at
 * most TESS_SUM_BLOCK. Pieces of one tensor must start at a multiple of the block, so that the
 * blocks are the same on every layout. sum: device memory.
 */
void tess_square_sum(struct tess_kernel *kernel, int64_t count, int32_t block, float scale,
                     const float *x, struct tess_sum *sum);
/* The same of several arrays, whose sums may be one; `square` may be reused at once. */
struct tess_square {
    int64_t count;
    int32_t block;
    float scale;
    const float *x;
    struct tess_sum *sum;
};
void tess_square_sum_all(struct tess_kernel *kernel, const struct tess_square *square,
                         int32_t count);
/* verdict's grad_bad becomes the greater of itself and `flag` where x holds a NaN or infinity. */
void tess_find_flag(struct tess_kernel *kernel, int64_t count, const float *x, int32_t flag,
                    struct tess_verdict *verdict);
void tess_update_judge(struct tess_kernel *kernel, const struct tess_judge *judge);
/*
 * Apply one update rule to one piece; the formulas are at enum tess_update_kind.
 *
 * An owner may set tess_op.update of a LINEAR operation before backward_weight or backward, to the
 * update of w by dw. These then apply it, as after the call, and clear the field; dx is that by the
 * old w. dw may be left as it was, so that a backend may update a part of w while its gradient is
 * in a cache.
 */
void tess_update(struct tess_kernel *kernel, const struct tess_update *update);
/* For several pieces that share no memory, in any order. `update` may be reused at once. */
void tess_update_all(struct tess_kernel *kernel, const struct tess_update *update, int32_t count);
/* LAMB's first half: update m and v, direction = m_hat/(sqrt(v_hat) + eps) + decay w. The second
 * half is tess_update: w -= lr * tensor_scale * direction. */
void tess_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update);

TESS_END_DECLS
#endif
