/*
 * The optimizer's step: one update of the pieces of parameters that this rank owns. Computes the
 * sums that the optimizer needs and fills in the arguments of its rule. The rules are kernels
 * (tess_update), and so is what follows from the sums (tess_update_judge). An optimizer is one file
 * of this folder and a line in list.h.
 *
 * Numbers that join elements (norms, NovoGrad's second moment, LAMB's trust ratio) are exact sums:
 * an integer all-reduce adds the ranks' parts, and the result is rounded in one fixed way, so every
 * layout computes the same bits.
 */
#include "optim/optim.h"

#include "base/power.h"
#include "tessera/check.h"
#include "tessera/model.h"

#include <stdlib.h>
#include <string.h>

static bool optim_is_buffer(const struct tess_piece *piece)
{
    return (piece->flags & TESS_PARAM_BUFFER) != 0;
}

/* LAMB's layer-wise rate and all decay leave these alone. */
static bool optim_is_plain(const struct tess_piece *piece)
{
    return (piece->flags & TESS_PARAM_NO_DECAY) != 0;
}

static bool optim_skips(const struct tess_optim *optim, int32_t param)
{
    return optim->skip != NULL && optim->skip[param];
}

static float *optim_state(const struct tess_optim *optim, const struct tess_piece *piece,
                          int32_t array)
{
    if (array >= optim->ops->state_arrays)
        return NULL;
    return optim->state + array * optim->state_count + piece->state_begin;
}

static float *optim_direction(const struct tess_optim *optim, const struct tess_piece *piece)
{
    return optim->ops->trust_ratio ? optim->scratch + piece->state_begin : NULL;
}

/* Add up `count` sums over the ranks. Collective. */
static enum tess_status optim_reduce(struct tess_optim *optim, int32_t count)
{
    if (optim->sum_comm == NULL)
        return TESS_OK;
    return tess_comm_all_reduce(optim->sum_comm, optim->sum, optim->sum,
                                (size_t)count * TESS_SUM_LIMBS, TESS_I64, TESS_REDUCE_SUM, NULL);
}

/* Does this rank add the piece to the sums? Without a group it owns every piece. */
static bool optim_piece_counts(const struct tess_optim *optim, const struct tess_piece *piece)
{
    return (optim->counts && !piece->duplicate) || optim->sum_comm == NULL;
}

/*
 * sum[p] = the squares of parameter p's gradient, for all p. Buffers have statistics in the place
 * of gradients and are left out. Collective.
 */
static enum tess_status optim_gradient_sums(struct tess_optim *optim)
{
    tess_fill(optim->kernel, optim->param_count * (int64_t)sizeof(*optim->sum), 0, optim->sum);
    int32_t count = 0;
    for (int32_t i = 0; i < optim->piece_count; i++) {
        const struct tess_piece *piece = &optim->piece[i];
        if (!optim_is_buffer(piece) && optim_piece_counts(optim, piece))
            optim->square[count++] = (struct tess_square){.count = piece->count,
                                                          .block = piece->sum_block,
                                                          .scale = 1,
                                                          .x = piece->g,
                                                          .sum = &optim->sum[piece->param]};
    }
    tess_square_sum_all(optim->kernel, optim->square, count);
    return optim_reduce(optim, optim->param_count);
}

/* What all pieces of trained parameters have in common. */
static struct tess_update optim_common(const struct tess_optim *optim)
{
    const struct tess_optim_options *options = &optim->options;
    const struct tess_optimizer_ops *ops = optim->ops;
    return (struct tess_update){
        .kind = ops->kind,
        .nesterov = options->nesterov,
        .low = optim->low,
        .mu = (float)options->momentum,
        .beta1 = (float)(options->beta1 < 0 ? ops->beta1 : options->beta1),
        .beta2 = (float)(options->beta2 < 0 ? ops->beta2 : options->beta2),
        .epsilon = (float)(options->epsilon < 0 ? ops->epsilon : options->epsilon),
        .loop = ops->loop,
        .options = optim->own_options,
    };
}

/* Running statistics: the mean over the leaves flows in at the buffer's own rate. */
static struct tess_update optim_buffer_update(const struct tess_optim *optim,
                                              const struct tess_piece *piece)
{
    return (struct tess_update){
        .kind = TESS_UPDATE_AVERAGE,
        .low = optim->low,
        .count = piece->count,
        .w = piece->w,
        .param_low = piece->low,
        .g = piece->g,
        .lr = piece->buffer_rate,
        .grad_scale = (float)(1.0 / (double)optim->leaf_count),
        .factor = &optim->factor[piece->param],
    };
}

/* The update of one piece; what changes from step to step is in its parameter's factor. */
static struct tess_update optim_piece_update(const struct tess_optim *optim,
                                             const struct tess_piece *piece)
{
    if (optim_is_buffer(piece))
        return optim_buffer_update(optim, piece);
    struct tess_update update = optim_common(optim);
    update.count = piece->count;
    update.w = piece->w;
    update.param_low = piece->low;
    update.g = piece->g;
    update.m = optim_state(optim, piece, 0);
    update.v = optim_state(optim, piece, 1);
    update.direction = optim_direction(optim, piece);
    update.weight_decay = optim_is_plain(piece) ? 0 : (float)optim->options.weight_decay;
    update.factor = &optim->factor[piece->param];
    return update;
}

/*
 * The part of a piece's update from element `at` on, `most` elements at most. Without a
 * master these are widened into the chunk, which is updated in its place and then rounded back.
 */
static struct tess_update optim_part(const struct tess_optim *optim,
                                     const struct tess_update *update, int64_t at, int64_t most)
{
    struct tess_update part = *update;
    const int64_t left = update->count - at;
    part.count = left < most ? left : most;
    part.g += at;
    part.m = part.m != NULL ? part.m + at : NULL;
    part.v = part.v != NULL ? part.v + at : NULL;
    part.direction = part.direction != NULL ? part.direction + at : NULL;
    if (part.param_low != NULL)
        part.param_low = (char *)part.param_low + (size_t)at * tess_dtype_bytes(optim->low);
    if (part.w != NULL) {
        part.w += at;
    } else {
        part.w = optim->chunk;
        tess_cast(optim->kernel, part.count, optim->low, part.param_low, TESS_F32, part.w);
    }
    return part;
}

/* Round updated values at random, keyed by their numbers in the model. */
static void optim_round(const struct tess_optim *optim, const struct tess_piece *piece, int64_t at,
                        const struct tess_update *part, void *low)
{
    for (int64_t done = 0, run; done < part->count; done += run) {
        int64_t model;
        run = tess_piece_run(piece, optim->axis, at + done, part->count - done, NULL, &model);
        tess_cast_stochastic(optim->kernel, run, part->w + done, optim->low, optim->round_key,
                             (uint64_t)model,
                             (char *)low + (size_t)done * tess_dtype_bytes(optim->low));
    }
}

/* Is a piece updated and rounded to its compute copy in one go? Else chunk by chunk. */
bool tess_optim_is_whole(const struct tess_optim *optim, const struct tess_piece *piece)
{
    return piece->w != NULL && !(optim->stochastic && piece->low != NULL);
}

/* Update a piece chunk by chunk, and round it to its compute copy as the run rounds. */
static void optim_apply(const struct tess_optim *optim, const struct tess_piece *piece,
                        const struct tess_update *update)
{
    const bool stochastic = optim->stochastic && piece->low != NULL;
    for (int64_t at = 0; at < piece->count; at += optim->chunk_count) {
        struct tess_update part = optim_part(optim, update, at, optim->chunk_count);
        void *low = part.param_low;
        if (stochastic)
            part.param_low = NULL;
        tess_update(optim->kernel, &part);
        if (stochastic)
            optim_round(optim, piece, at, &part, low);
    }
}

/* Moments and direction of one piece; its |w|^2 is added to *square unless that is NULL. */
static void optim_direct(const struct tess_optim *optim, const struct tess_piece *piece,
                         const struct tess_update *update, struct tess_sum *square)
{
    const int64_t most = piece->w != NULL ? piece->count : optim->chunk_count;
    for (int64_t at = 0; at < piece->count; at += most) {
        const struct tess_update part = optim_part(optim, update, at, most);
        tess_lamb_direction(optim->kernel, &part);
        if (square != NULL)
            tess_square_sum(optim->kernel, part.count, piece->sum_block, 1, part.w, square);
    }
}

/*
 * LAMB's first pass: moments and directions, then sum[p] = |w|^2 and sum[P + p] = |direction|^2
 * where a layer-wise rate is used. Collective.
 */
static enum tess_status optim_directions(struct tess_optim *optim)
{
    const int32_t param_count = optim->param_count;
    tess_fill(optim->kernel, 2 * param_count * (int64_t)sizeof(*optim->sum), 0, optim->sum);
    for (int32_t i = 0; i < optim->piece_count; i++) {
        const struct tess_piece *piece = &optim->piece[i];
        if (optim_is_buffer(piece) || optim_skips(optim, piece->param))
            continue;
        const struct tess_update update = optim_piece_update(optim, piece);
        const bool summed = optim_piece_counts(optim, piece) && !optim_is_plain(piece);
        optim_direct(optim, piece, &update, summed ? &optim->sum[piece->param] : NULL);
        if (summed)
            tess_square_sum(optim->kernel, piece->count, piece->sum_block, 1, update.direction,
                            &optim->sum[param_count + piece->param]);
    }
    return optim_reduce(optim, 2 * param_count);
}

/* ---- memory ---------------------------------------------------------------------------------- */

size_t tess_optim_room(const struct tess_optimizer_ops *ops, int32_t param_count,
                       size_t *upload_bytes_out)
{
    const size_t params = (size_t)param_count;
    const size_t upload = tess_round_up(sizeof(struct tess_update_rates), 64) +
                          tess_round_up(params * sizeof(int64_t), 64) + tess_round_up(params, 64);
    *upload_bytes_out = upload;
    return upload + tess_round_up(2 * params * sizeof(struct tess_sum), 64) +
           tess_round_up(params * sizeof(struct tess_update_factor), 64) +
           (ops->tensor_moment ? params * sizeof(float) : 0);
}

static void *optim_take(char **room, size_t bytes)
{
    void *taken = *room;
    *room += tess_round_up(bytes, 64);
    return taken;
}

enum tess_status tess_optim_open(struct tess_optim *optim, void *room, void *upload)
{
    const size_t params = (size_t)optim->param_count;
    char *left = room;
    optim->rates = optim_take(&left, sizeof(*optim->rates));
    optim->age = optim_take(&left, params * sizeof(*optim->age));
    optim->unused = optim_take(&left, params);
    optim->sum = optim_take(&left, 2 * params * sizeof(*optim->sum));
    optim->factor = optim_take(&left, params * sizeof(*optim->factor));
    optim->tensor_state = (float *)(void *)left;
    optim->upload = upload;
    optim->update = calloc((size_t)optim->piece_count + 1, sizeof(*optim->update));
    optim->rest = calloc((size_t)optim->piece_count + 1, sizeof(*optim->rest));
    optim->square = calloc((size_t)optim->piece_count + 1, sizeof(*optim->square));
    if (optim->update == NULL || optim->rest == NULL || optim->square == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the updates of %d pieces", optim->piece_count);
    optim->update_count = 0;
    for (int32_t i = 0; i < optim->piece_count; i++)
        if (tess_optim_is_whole(optim, &optim->piece[i]))
            optim->update[optim->update_count++] = optim_piece_update(optim, &optim->piece[i]);
    return TESS_OK;
}

void tess_optim_close(struct tess_optim *optim)
{
    free(optim->update);
    free(optim->rest);
    free(optim->square);
    optim->update = NULL;
    optim->rest = NULL;
    optim->square = NULL;
}

/* ---- a step ---------------------------------------------------------------------------------- */

void tess_optim_prepare(struct tess_optim *optim, double rate)
{
    const struct tess_update common = optim_common(optim);
    const size_t params = (size_t)optim->param_count;
    char *upload = optim->upload;
    struct tess_update_rates *rates = optim_take(&upload, sizeof(*rates));
    *rates = (struct tess_update_rates){
        .lr = (float)rate,
        /* From the rounded betas, which the rule uses: 1 - 0.999f differs from 0.001 by 5e-5 of
         * it. */
        .correction1 = (float)(1 / (1 - tess_power(common.beta1, optim->step + 1))),
        .correction2 = (float)(1 / (1 - tess_power(common.beta2, optim->step + 1))),
        .grad_scale = (float)(1 / optim->loss_scale),
        .loss_scale = optim->loss_scale,
    };
    /* The update is linear in the first moment: averaging gradients in it is a lower rate. */
    if (optim->ops->grad_averaging && optim->options.grad_averaging)
        rates->lr = (float)(rate * (1 - (double)common.beta1));
    if (optim->updates != NULL) {
        memcpy(optim_take(&upload, params * sizeof(*optim->age)), optim->updates,
               params * sizeof(*optim->age));
        memcpy(upload, optim->skip, params);
    }
}

static enum tess_status optim_upload(struct tess_optim *optim)
{
    size_t bytes = tess_round_up(sizeof(*optim->rates), 64);
    if (optim->updates != NULL)
        (void)tess_optim_room(optim->ops, optim->param_count, &bytes);
    return tess_upload(optim->kernel, bytes, optim->upload, optim->rates);
}

static struct tess_judge optim_judge(const struct tess_optim *optim, bool norm)
{
    const struct tess_update common = optim_common(optim);
    return (struct tess_judge){
        .norm = norm,
        .novograd = optim->ops->tensor_moment,
        .count = optim->param_count,
        .sum = optim->sum,
        .rates = optim->rates,
        .clip = optim->options.clip,
        .beta1 = common.beta1,
        .beta2 = common.beta2,
        .epsilon = common.epsilon,
        .step = optim->step,
        .age = optim->updates != NULL ? optim->age : NULL,
        .unused = optim->updates != NULL ? optim->unused : NULL,
        .tensor_state = optim->tensor_state,
        .verdict = optim->verdict,
        .factor = optim->factor,
    };
}

enum tess_status tess_optim_step(struct tess_optim *optim)
{
    const struct tess_optimizer_ops *ops = optim->ops;
    const bool norm = optim->options.clip > 0 || ops->tensor_moment || ops->trust_ratio;
    struct tess_judge judge = optim_judge(optim, norm);
    TESS_TRY(optim_upload(optim));
    if (norm)
        TESS_TRY(optim_gradient_sums(optim));
    tess_update_judge(optim->kernel, &judge);
    if (ops->trust_ratio) {
        TESS_TRY(optim_directions(optim));
        judge.ratio = true;
        tess_update_judge(optim->kernel, &judge);
    }
    tess_update_all(optim->kernel, optim->update, optim->update_count);
    for (int32_t i = 0; i < optim->piece_count; i++) {
        const struct tess_piece *piece = &optim->piece[i];
        if (tess_optim_is_whole(optim, piece) || optim_skips(optim, piece->param))
            continue;
        const struct tess_update update = optim_piece_update(optim, piece);
        optim_apply(optim, piece, &update);
    }
    return TESS_OK;
}

enum tess_status tess_optim_begin(struct tess_optim *optim)
{
    const struct tess_judge judge = optim_judge(optim, false);
    TESS_TRY(optim_upload(optim));
    tess_update_judge(optim->kernel, &judge);
    return TESS_OK;
}

const struct tess_update *tess_optim_update_of(const struct tess_optim *optim, int32_t piece)
{
    return &optim->update[piece];
}

void tess_optim_update_rest(struct tess_optim *optim, const bool *done)
{
    int32_t count = 0;
    for (int32_t i = 0; i < optim->piece_count; i++)
        if (!done[optim->piece[i].param])
            optim->rest[count++] = optim->update[i];
    tess_update_all(optim->kernel, optim->rest, count);
}

void tess_optim_update_part(const struct tess_optim *optim, const struct tess_piece *piece,
                            int64_t at, int64_t count, const float *g)
{
    const struct tess_update update = optim_piece_update(optim, piece);
    struct tess_update part = optim_part(optim, &update, at, count);
    part.g = g;
    tess_update(optim->kernel, &part);
}

void tess_optim_end(struct tess_optim *optim, const struct tess_verdict *verdict)
{
    if (verdict->skip != 0)
        return;
    for (int32_t p = 0; optim->updates != NULL && p < optim->param_count; p++)
        optim->updates[p] += !optim_skips(optim, p);
    optim->step++;
}

int64_t tess_piece_run(const struct tess_piece *piece, const struct tess_tensor_axis *axis,
                       int64_t at, int64_t most, int64_t *whole_out, int64_t *model_out)
{
    int64_t whole, run = tess_declare_run(piece->of, axis, piece->param_begin + at, &whole);
    most = most < piece->count - at ? most : piece->count - at;
    if (whole_out != NULL)
        *whole_out = whole;
    if (model_out != NULL)
        *model_out = piece->of->model_begin + whole;
    return run < most ? run : most;
}

void tess_optim_find_bad(struct tess_optim *optim)
{
    for (int32_t i = 0; i < optim->piece_count; i++) {
        const struct tess_piece *piece = &optim->piece[i];
        if (!optim_is_buffer(piece))
            tess_find_flag(optim->kernel, piece->count, piece->g, optim->param_count - piece->param,
                           optim->verdict);
    }
}

void tess_optim_count_part_zeros(const struct tess_optim *optim, const struct tess_piece *piece,
                                 int64_t count, const float *g, double *sum)
{
    if (!optim_is_buffer(piece) && !piece->duplicate)
        tess_count_zeros(optim->kernel, TESS_F32, count, g, sum);
}

void tess_optim_count_zeros(const struct tess_optim *optim, double *sum)
{
    for (int32_t i = 0; i < optim->piece_count; i++)
        tess_optim_count_part_zeros(optim, &optim->piece[i], optim->piece[i].count,
                                    optim->piece[i].g, sum);
}
