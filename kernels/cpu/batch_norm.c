/*
 * Batch normalisation of `cpu`: own loops over chunks of pixels, which the threads share.
 *
 *     sums over each chunk           in f32                             one pass over memory
 *     of each leaf, over its chunks  in f64, in order; the tree's leaf
 *     y, or dx                       element by element                 one pass
 *
 * A leaf is cut into chunks from its first pixel on, so the bits depend on the leaf alone. With n
 * elements per channel, x_hat = (x - mean) rstd and g = dy after the ReLU:
 *
 *     dbeta = sum g, dgamma = sum g x_hat, dx = gamma rstd (g - dbeta / n - x_hat dgamma / n)
 *
 * All sums are done before dx is written: dx may be dy. Backward computes what the ReLU saw again,
 * with forward's bits, from x, which it reads anyway, and does not read y.
 */
#include "cpu/prim.h"

#include "ref/fold.h"

#include <math.h>
#include <string.h>

#define BATCH_ELEMENTS 16384 /* of a part at least: tens of microseconds */

/* Where an operation's scratch has what. */
struct batch_room {
    char *fold[2];
    double *total[2]; /* [C] of one leaf */
    float *wide;      /* [3][C]: parameters in f32 */
    float *coef;      /* [leaves, CPU_NORM_COEFS, C] */
    float *sums;      /* [chunks of all leaves, 2, C] */
};

static int64_t batch_chunks(int64_t pixels)
{
    return (pixels + CPU_NORM_CHUNK - 1) / CPU_NORM_CHUNK;
}

static int64_t batch_pixels(const struct tess_op_desc *d)
{
    return d->leaf_rows * d->height * d->width;
}

/* Its bytes; `base` NULL: nothing else. */
static size_t batch_room(const struct tess_op_desc *d, char *base, struct batch_room *room_out)
{
    const int64_t leaves = d->rows / d->leaf_rows, channels = d->in;
    const size_t fold = tess__cpu_round_up(tess__fold_bytes(channels, leaves));
    const size_t row = (size_t)channels * sizeof(float);
    const size_t size[] = {fold,
                           fold,
                           tess__cpu_round_up(2 * row),
                           tess__cpu_round_up(2 * row),
                           tess__cpu_round_up(3 * row),
                           tess__cpu_round_up((size_t)(leaves * CPU_NORM_COEFS) * row),
                           (size_t)(leaves * batch_chunks(batch_pixels(d)) * 2) * row};
    size_t at[8] = {0};
    for (int i = 0; i < 7; i++)
        at[i + 1] = at[i] + size[i];
    if (base != NULL)
        *room_out = (struct batch_room){
            .fold = {base, base + at[1]},
            .total = {(double *)(void *)(base + at[2]), (double *)(void *)(base + at[3])},
            .wide = (float *)(void *)(base + at[4]),
            .coef = (float *)(void *)(base + at[5]),
            .sums = (float *)(void *)(base + at[6])};
    return at[7];
}

size_t tess__cpu_batch_norm_scratch(const struct tess_op_desc *desc)
{
    return batch_room(desc, NULL, NULL);
}

/* ---- chunks that the threads share ---------------------------------------------------------- */

struct batch_share {
    cpu_rows_loop *run;
    const struct cpu_batch_norm *arguments;
    int64_t chunks, part;
};

static void batch_part(void *context, int64_t part, void *work)
{
    (void)work;
    const struct batch_share *s = context;
    const int64_t first = part * s->part;
    s->run(s->arguments, first, tess__cpu_min(s->chunks - first, s->part));
}

/* All chunks of `leaves`. */
static void batch_run(const struct tess_op *op, cpu_rows_loop *run,
                      const struct cpu_batch_norm *arguments, int64_t leaves)
{
    struct batch_share s = {
        .run = run, .arguments = arguments, .chunks = leaves * batch_chunks(arguments->pixels)};
    const int64_t of_chunk = tess__cpu_min(CPU_NORM_CHUNK, arguments->pixels) * op->desc.in;
    s.part = BATCH_ELEMENTS / of_chunk + 1;
    tess__cpu_share(op->kernel, (s.chunks + s.part - 1) / s.part, batch_part, &s, NULL);
}

/* A parameter in f32, in place `where` of room.wide. */
static const float *batch_widen(const struct tess_op *op, const struct batch_room *room, int where,
                                const void *param)
{
    const int64_t channels = op->desc.in;
    float *wide = room->wide + where * channels;
    if (op->desc.dtype == TESS_F32)
        return param;
    tess__cpu_loops(op->kernel)
        ->cast(&(struct cpu_plain){.count = channels,
                                   .in = {param},
                                   .out = {wide},
                                   .from = op->desc.dtype,
                                   .to = TESS_F32});
    return wide;
}

/* Those of y for a leaf. */
static void batch_coefs(const struct batch_room *room, int64_t leaf, int64_t channels,
                        const float *mean, const float *rstd, const float *gamma, const float *beta)
{
    float *coef = room->coef + leaf * CPU_NORM_COEFS * channels;
    for (int64_t c = 0; c < channels; c++) {
        coef[CPU_NORM_MEAN * channels + c] = mean[leaf * channels + c];
        coef[CPU_NORM_SCALE * channels + c] = gamma[c] * rstd[leaf * channels + c];
        coef[CPU_NORM_SHIFT * channels + c] = beta[c];
    }
}

/* ---- forward -------------------------------------------------------------------------------- */

/* room.total = the mean, and the sum of squares about it: those of a chunk are about its own (Chan,
 * Golub and LeVeque 1983). */
static void batch_moments(const struct cpu_batch_norm *n, const struct batch_room *room,
                          int64_t leaf)
{
    const int64_t channels = n->desc->in, chunks = batch_chunks(n->pixels);
    const float *first = room->sums + leaf * chunks * 2 * channels;
    double *mean = room->total[0], *square = room->total[1];
    memset(mean, 0, (size_t)channels * sizeof(double));
    memset(square, 0, (size_t)channels * sizeof(double));
    for (int64_t k = 0; k < chunks; k++)
        for (int64_t c = 0; c < channels; c++)
            mean[c] += (double)first[k * 2 * channels + c];
    for (int64_t c = 0; c < channels; c++)
        mean[c] /= (double)n->pixels;
    for (int64_t k = 0; k < chunks; k++) {
        const float *sum = first + k * 2 * channels, *about = sum + channels;
        const double count = (double)tess__cpu_min(n->pixels - k * CPU_NORM_CHUNK, CPU_NORM_CHUNK);
        for (int64_t c = 0; c < channels; c++) {
            const double away = (double)sum[c] / count - mean[c];
            square[c] += (double)about[c] + count * away * away;
        }
    }
}

enum tess_status tess__cpu_batch_norm_forward(struct tess_op *op, const void *x, const void *gamma,
                                              const void *beta, void *y, float *save_mean,
                                              float *save_rstd, float *mean_sum, float *var_sum)
{
    const struct tess_op_desc *d = &op->desc;
    const int64_t channels = d->in, leaves = d->rows / d->leaf_rows, pixels = batch_pixels(d);
    const double rest = pixels > 1 ? (double)(pixels - 1) : 1.0;
    struct batch_room room;
    batch_room(d, op->scratch, &room);
    const struct cpu_batch_norm n = {
        .desc = d, .pixels = pixels, .x = x, .y = y, .coef = room.coef, .sums = room.sums};
    const float *gamma32 = batch_widen(op, &room, 0, gamma),
                *beta32 = batch_widen(op, &room, 1, beta);
    struct tess_fold fold_mean, fold_var;
    tess__fold_init(&fold_mean, channels, mean_sum, room.fold[0]);
    tess__fold_init(&fold_var, channels, var_sum, room.fold[1]);
    batch_run(op, tess__cpu_loops(op->kernel)->batch_norm_moments, &n, leaves);
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        float *mean = save_mean + leaf * channels, *rstd = save_rstd + leaf * channels;
        float *leaf_mean = tess__fold_leaf(&fold_mean), *leaf_var = tess__fold_leaf(&fold_var);
        batch_moments(&n, &room, leaf);
        for (int64_t c = 0; c < channels; c++) {
            const double square = room.total[1][c];
            mean[c] = leaf_mean[c] = (float)room.total[0][c];
            leaf_var[c] = (float)(square / rest);
            rstd[c] = (float)(1.0 / sqrt(square / (double)pixels + (double)d->epsilon));
        }
        batch_coefs(&room, leaf, channels, save_mean, save_rstd, gamma32, beta32);
        tess__fold_push(&fold_mean);
        tess__fold_push(&fold_var);
    }
    tess__fold_finish(&fold_mean);
    tess__fold_finish(&fold_var);
    batch_run(op, tess__cpu_loops(op->kernel)->batch_norm_apply, &n, leaves);
    return TESS_OK;
}

enum tess_status tess__cpu_batch_norm_infer(struct tess_op *op, const void *x, const void *gamma,
                                            const void *beta, const void *mean, const void *var,
                                            void *y)
{
    const struct tess_op_desc *d = &op->desc;
    const int64_t channels = d->in;
    struct batch_room room;
    batch_room(d, op->scratch, &room);
    /* All rows as one leaf. */
    const struct cpu_batch_norm n = {
        .desc = d, .pixels = d->rows * d->height * d->width, .x = x, .y = y, .coef = room.coef};
    const float *gamma32 = batch_widen(op, &room, 0, gamma);
    const float *var32 = batch_widen(op, &room, 1, var);
    for (int64_t c = 0; c < channels; c++)
        room.coef[CPU_NORM_SCALE * channels + c] =
            gamma32[c] * (float)(1.0 / sqrt((double)var32[c] + (double)d->epsilon));
    memcpy(room.coef + CPU_NORM_MEAN * channels, batch_widen(op, &room, 0, mean),
           (size_t)channels * sizeof(float));
    memcpy(room.coef + CPU_NORM_SHIFT * channels, batch_widen(op, &room, 1, beta),
           (size_t)channels * sizeof(float));
    batch_run(op, tess__cpu_loops(op->kernel)->batch_norm_apply, &n, 1);
    return TESS_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

/* room.total = the sums of g and of g (x - mean) over a leaf. */
static void batch_grad_totals(const struct cpu_batch_norm *n, const struct batch_room *room,
                              int64_t leaf)
{
    const int64_t channels = n->desc->in, chunks = batch_chunks(n->pixels);
    const float *sums = room->sums + leaf * chunks * 2 * channels;
    for (int i = 0; i < 2; i++) {
        double *total = room->total[i];
        memset(total, 0, (size_t)channels * sizeof(double));
        for (int64_t k = 0; k < chunks; k++)
            for (int64_t c = 0; c < channels; c++)
                total[c] += (double)sums[(2 * k + i) * channels + c];
    }
}

enum tess_status tess__cpu_batch_norm_backward(struct tess_op *op, const void *x, const void *y,
                                               const void *dy, const void *gamma, const void *beta,
                                               const float *save_mean, const float *save_rstd,
                                               void *dx, float *dgamma, float *dbeta)
{
    (void)y;
    const struct tess_op_desc *d = &op->desc;
    const int64_t channels = d->in, leaves = d->rows / d->leaf_rows, pixels = batch_pixels(d);
    struct batch_room room;
    batch_room(d, op->scratch, &room);
    const struct cpu_batch_norm n = {.desc = d,
                                     .pixels = pixels,
                                     .x = x,
                                     .dy = dy,
                                     .dx = dx,
                                     .coef = room.coef,
                                     .sums = room.sums};
    const float *gamma32 = batch_widen(op, &room, 0, gamma),
                *beta32 = batch_widen(op, &room, 1, beta);
    struct tess_fold fold_gamma, fold_beta;
    tess__fold_init(&fold_gamma, channels, dgamma, room.fold[0]);
    tess__fold_init(&fold_beta, channels, dbeta, room.fold[1]);
    for (int64_t leaf = 0; leaf < leaves; leaf++)
        batch_coefs(&room, leaf, channels, save_mean, save_rstd, gamma32, beta32);
    batch_run(op, tess__cpu_loops(op->kernel)->batch_norm_grad_sums, &n, leaves);
    for (int64_t leaf = 0; leaf < leaves; leaf++) {
        float *coef = room.coef + leaf * CPU_NORM_COEFS * channels;
        float *leaf_gamma = tess__fold_leaf(&fold_gamma), *leaf_beta = tess__fold_leaf(&fold_beta);
        batch_grad_totals(&n, &room, leaf);
        for (int64_t c = 0; c < channels; c++) {
            const double rstd = (double)save_rstd[leaf * channels + c];
            const double sum = room.total[0][c], slope = room.total[1][c] * rstd;
            leaf_beta[c] = (float)sum;
            leaf_gamma[c] = (float)slope;
            coef[CPU_NORM_MIDDLE * channels + c] = (float)(sum / (double)pixels);
            coef[CPU_NORM_SLOPE * channels + c] = (float)(slope * rstd / (double)pixels);
        }
        tess__fold_push(&fold_gamma);
        tess__fold_push(&fold_beta);
    }
    tess__fold_finish(&fold_gamma);
    tess__fold_finish(&fold_beta);
    batch_run(op, tess__cpu_loops(op->kernel)->batch_norm_grad_apply, &n, leaves);
    return TESS_OK;
}
