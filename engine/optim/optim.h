/* Optimizers and learning-rate schedules, over the pieces of parameters that this rank owns. */
#ifndef TESSERA_OPTIM_OPTIM_H
#define TESSERA_OPTIM_OPTIM_H

#include "state/declare.h"
#include "tessera/comm.h"
#include "tessera/kernel.h"
#include "tessera/memory.h"
#include "tessera/optimizer.h"
#include "tessera/option.h"

/* A run of one parameter's elements that this rank updates. */
struct tess_piece {
    int32_t param; /* number in the whole model; of a tied parameter its source's */
    const struct tess_declare_param *of;
    uint32_t flags;      /* enum tess_param_flag */
    bool duplicate;      /* another rank of the tensor or stage axis has the same elements, and is
                            the one that counts them in sums over all ranks */
    float buffer_rate;   /* TESS_PARAM_BUFFER */
    int64_t param_begin; /* element of what this rank holds of the parameter: a multiple of 64, or
                            where a part of the tensor axis begins */
    int64_t count;
    int32_t sum_block;   /* of tess_square_sum: TESS_SUM_BLOCK, less where parts of the tensor axis
                            are not whole multiples of it */
    int64_t state_begin; /* element of the optimizer's state arrays */
    float *w;            /* f32 master; NULL where `low` is all there is of the parameter */
    void *low;           /* compute copy to refresh; NULL in f32 */
    const float *g;
};

/*
 * Elements of a piece from its element `at` on that follow each other in the whole tensor too: how
 * many, up to `most`, and the number of the first in its tensor (whole_out) and among all elements
 * of the model (model_out), either of which may be NULL. The same numbers on every layout.
 */
int64_t tess_piece_run(const struct tess_piece *piece, const struct tess_tensor_axis *axis,
                       int64_t at, int64_t most, int64_t *whole_out, int64_t *model_out);

/* In the order of the choices of --schedule. */
enum tess_rate_schedule {
    TESS_SCHEDULE_CONSTANT,
    TESS_SCHEDULE_LINEAR,
    TESS_SCHEDULE_STEP,
    TESS_SCHEDULE_COSINE
};

/* Options, no prefix. */
struct tess_optim_options {
    const char *name;     /* of the optimizer: list.h, or an outsider's */
    double learning_rate; /* at the top of the schedule; tess_optim_resolve fills it in */
    double base_rate;     /* of --base-batch images, scaled to the batch; 0: not given */
    int32_t rate_scale;   /* none|linear|sqrt: of base_rate with the batch */
    int64_t base_batch;   /* 0: one rank's share of the batch */
    double momentum;
    bool nesterov;
    double beta1, beta2; /* -1: the optimizer's own default */
    double epsilon;      /* likewise */
    double weight_decay;
    double clip;         /* greatest global gradient norm; 0: off */
    int32_t schedule;    /* enum tess_rate_schedule */
    double warmup;       /* epochs of linear warm-up; 0: none */
    double warmup_start; /* factor at the first step of the warm-up; -1: one over the ranks */
    bool grad_averaging; /* m averages gradients, where the optimizer has grad_averaging */
    double step_epochs;  /* schedule step: every so many epochs ... */
    double step_factor;  /* ... times this */
    double final_factor; /* linear, cosine: rate at the end, as a factor */
};
extern const struct tess_option tess_optim_option_table[];

/*
 * Replace what depends on the run: base_rate becomes learning_rate (Goyal et al., "Accurate, large
 * minibatch SGD", 2017, section 2.1: linear in the batch; Krizhevsky 2014, section 5: its root),
 * and a warmup_start of -1 becomes 1 / ranks (Goyal et al., section 2.2). Pure.
 */
void tess_optim_resolve(struct tess_optim_options *options, int64_t batch_size, int64_t ranks);

/* Limits beyond those of the table: that join fields, or leave an end out. Pure. */
enum tess_status tess_optim_check(const struct tess_optim_options *options);

/* Steps of the warm-up; one that is longer than the run is shortened to half of the run. Pure. */
double tess_schedule_warmup(const struct tess_optim_options *options, int64_t step_count,
                            double steps_per_epoch);

/* Learning rate at a step (from 0) of a run of step_count steps, steps_per_epoch each. Pure. */
double tess_schedule_rate(const struct tess_optim_options *options, int64_t step,
                          int64_t step_count, double steps_per_epoch);

/* Elements that are widened, updated and rounded at a time where there are no masters: 16 KiB, so
 * that they stay in the first-level cache, and a whole number of the exact sums' blocks. */
#define TESS_OPTIM_CHUNK (64 * TESS_SUM_BLOCK)
/* In far memory, where every piece is a call that has to fill a device. */
#define TESS_OPTIM_CHUNK_FAR (16384 * TESS_SUM_BLOCK)
static inline int64_t tess_optim_chunk(bool far_memory)
{
    return far_memory ? TESS_OPTIM_CHUNK_FAR : TESS_OPTIM_CHUNK;
}

/*
 * What a step finds (norms, factors, gradients that are not finite) stays in device memory, so that
 * no function here waits for the device. The caller reads the verdict when the step is over and
 * passes it to tess_optim_end.
 */
struct tess_optim {
    struct tess_optim_options options;
    const struct tess_optimizer_ops *ops;
    const void *own_options; /* of ops->options; borrowed */
    struct tess_kernel *kernel;
    enum tess_dtype low;   /* type of the pieces' `low` */
    bool stochastic;       /* `low` is rounded at random, by round_key and element of the model */
    uint64_t round_key[2]; /* run's seed, step; the caller sets it before each update */
    float *chunk;          /* [chunk_count] device memory; NULL where every piece has `w` */
    int64_t chunk_count;   /* see tess_optim_chunk */
    double loss_scale;     /* gradients in the pieces are this times the loss's; 1: not scaled */
    /*
     * Group over which owned pieces must be summed to have each parameter whole; NULL when this
     * rank owns them whole. `counts` false: another rank owns the same pieces and counts them.
     */
    struct tess_comm *sum_comm;
    bool counts;
    int32_t param_count;                 /* of the whole model */
    const struct tess_tensor_axis *axis; /* borrowed */
    struct tess_piece *piece;            /* borrowed */
    int32_t piece_count;
    int64_t state_count;          /* elements of one state array */
    float *state;                 /* [arrays, state_count] */
    float *scratch;               /* [state_count] directions, with a trust ratio; else NULL */
    int64_t leaf_count;           /* of the global batch, the divisor of buffers' statistics */
    struct tess_verdict *verdict; /* device memory; the caller zeroes it before each step */
    /*
     * For models whose parameters may be unused, both borrowed or NULL. Where skip[p] is set, the
     * step leaves value and state of parameter p as they are; updates[p] is how many steps did not,
     * which is p's age in bias corrections.
     */
    const uint8_t *skip; /* [param_count] */
    int64_t *updates;    /* [param_count] */
    int64_t step;        /* updates done */

    /* Device memory, by tess_optim_open in `room`. */
    struct tess_update_rates *rates;
    int64_t *age;                      /* [param_count] */
    uint8_t *unused;                   /* [param_count] */
    struct tess_sum *sum;              /* [2 param_count] for norms */
    struct tess_update_factor *factor; /* [param_count] */
    float *tensor_state;               /* [param_count] with a tensor moment, else empty */
    void *upload;                      /* host: rates, age and unused of the coming step */
    struct tess_update *update;        /* [piece_count] of the pieces updated by one call */
    struct tess_update *rest;          /* [piece_count]: room for those that are left */
    struct tess_square *square;        /* [piece_count]: room for those that a step adds up */
    int32_t update_count;
};

/* Bytes of device memory for norms, factors and numbers per tensor, zeroed at first. Each step
 * copies the first *upload_bytes_out of them from pinned host memory of that size. Pure. */
size_t tess_optim_room(const struct tess_optimizer_ops *ops, int32_t param_count,
                       size_t *upload_bytes_out);

/* The fields above have been set; `room` and `upload` have the sizes of tess_optim_room, borrowed.
 * TESS_ERR_MEMORY. Close accepts an optimizer that was never opened. */
enum tess_status tess_optim_open(struct tess_optim *optim, void *room, void *upload);
void tess_optim_close(struct tess_optim *optim);

/* grad_bad of the verdict: the first parameter with a gradient in this rank's pieces that is not
 * finite. Buffers' statistics are not gradients. Not collective. */
void tess_optim_find_bad(struct tess_optim *optim);

/* Write the host's values for the coming step into `upload`. The step before must have ended. */
void tess_optim_prepare(struct tess_optim *optim, double rate);

/*
 * One update with the reduced gradients in the pieces, unless the verdict is to skip the
 * update. Norms are exact sums over fixed blocks, so every layout clips and scales by the same
 * bits; one that is not finite sets norm_bad on every rank, and value and state stay as they were
 * (LAMB: where a norm of its directions is not, moments have changed). Norms are computed only for
 * clipping, a tensor moment and a trust ratio. Collective over sum_comm.
 */
enum tess_status tess_optim_step(struct tess_optim *optim);

/*
 * The same of parts of pieces, in any order, where the step finds nothing out of all gradients:
 * begin takes the host's values of the step; update_of is a piece's update, valid until the
 * optimizer is closed; update_part updates `count` elements from `at` on by
 * the gradient g [count]; count_part_zeros adds to *sum as tess_optim_count_zeros does. For pieces
 * that are whole: updated and rounded in one go. Not collective.
 */
bool tess_optim_is_whole(const struct tess_optim *optim, const struct tess_piece *piece);
enum tess_status tess_optim_begin(struct tess_optim *optim);
void tess_optim_update_part(const struct tess_optim *optim, const struct tess_piece *piece,
                            int64_t at, int64_t count, const float *g);
/* The step's updates of whole pieces but those of parameters p with done[p]. */
void tess_optim_update_rest(struct tess_optim *optim, const bool *done);
const struct tess_update *tess_optim_update_of(const struct tess_optim *optim, int32_t piece);
void tess_optim_count_part_zeros(const struct tess_optim *optim, const struct tess_piece *piece,
                                 int64_t count, const float *g, double *sum);

/* Count the step, unless its verdict is to skip the update. */
void tess_optim_end(struct tess_optim *optim, const struct tess_verdict *verdict);

/* *sum (device memory) += the elements of the gradients in this rank's pieces that are zero;
 * buffers and duplicates, which another rank counts, are left out. Not collective. */
void tess_optim_count_zeros(const struct tess_optim *optim, double *sum);

#endif
