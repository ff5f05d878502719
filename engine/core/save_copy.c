/* Which elements of the state are this rank's to save, and how they get to the stage. */
#include "core/save_room.h"

#include "base/half.h"
#include "tessera/check.h"

#include <string.h>

/* ---- the share ------------------------------------------------------------------------------- */

int32_t tess__saver_replicas(const struct tess_plan *plan, int32_t *index)
{
    const bool sharded = plan->optim_extent == TESS_EXTENT_SHARD && plan->shard_count > 1;
    const int32_t owners = sharded ? plan->shard_count : 1;
    if (!sharded && !plan->replicated) {
        *index = 0;
        return 1;
    }
    *index = plan->rank / owners;
    return plan->rank_count / owners;
}

static int64_t saver_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

struct saver_share tess__saver_share(const struct tess_engine *engine)
{
    int32_t index;
    int64_t trained;
    const int32_t replicas = tess__saver_replicas(&engine->plan, &index);
    const int64_t count = tess_layout_counted(&engine->plan, &engine->declare, &trained);
    const int64_t from = count * index / replicas, to = count * (index + 1) / replicas;
    return (struct saver_share){from, to - from,
                                saver_least(to, trained) - saver_least(from, trained)};
}

/* Elements of the share before those of array `array`; -1: the values. */
static int64_t saver_begin(const struct saver_share *share, int32_t array)
{
    return array < 0 ? 0 : share->count + array * share->trained;
}

int64_t tess__saver_elements(const struct tess_engine *engine)
{
    const struct saver_share share = tess__saver_share(engine);
    return saver_begin(&share, engine->config->optimizer->state_arrays);
}

int64_t tess__saver_beside(const struct tess_engine *engine)
{
    return SAVER_BLOCK + (engine->config->optimizer->tensor_moment ? engine->model.param_count : 0);
}

int64_t tess__saver_stage_count(const struct tess_engine *engine, double memory_bytes)
{
    const int64_t all = tess__saver_elements(engine);
    const double most = memory_bytes / sizeof(float) - (double)tess__saver_beside(engine);
    if (most >= (double)all)
        return all;
    return most > SAVER_BLOCK ? (int64_t)most : all < SAVER_BLOCK ? all : SAVER_BLOCK;
}

uint64_t tess_saver_bytes(const struct tess_engine *engine)
{
    const struct tess_save_plan *save = &engine->config->save;
    int64_t count =
        tess__saver_stage_count(engine, save->memory_bytes) + tess__saver_beside(engine);
    if (save->copy_steps > 0) /* behind it */
        count += tess__saver_stage_count(engine, 0) + tess__saver_beside(engine);
    return (uint64_t)count * sizeof(float);
}

uint64_t tess_saver_copies(const struct tess_engine *engine)
{
    const struct tess_save_plan *save = &engine->config->save;
    const uint64_t copies = save->copy_steps == 0 ? 0 : save->mirrored ? 4 : 2;
    return copies * (uint64_t)tess__saver_elements(engine) * sizeof(float);
}

int tess__saver_each(struct tess_saver *saver, int64_t from, int64_t to,
                     int (*visit)(struct tess_saver *saver, const struct saver_part *part))
{
    const struct tess_engine *engine = saver->engine;
    for (int32_t a = -1; a < saver->store.arrays; a++) {
        const int64_t begin = saver_begin(&saver->share, a);
        const int64_t least = from > begin ? from : begin;
        const int64_t most = saver_least(to, saver_begin(&saver->share, a + 1));
        int64_t at = begin - saver->share.from; /* the number of the piece's first element */
        for (int32_t i = 0; i < engine->piece_count && at < most; i++) {
            const struct tess_piece *piece = &engine->piece[i];
            if (piece->duplicate)
                continue;
            struct saver_part part = {.piece = piece, .array = a};
            part.first = least > at ? least - at : 0;
            part.end = most - at < piece->count ? most - at : piece->count;
            const int64_t place = at + part.first - from;
            at += piece->count;
            if (part.first >= part.end || tess_store_find(&saver->store, piece->param, a)->file < 0)
                continue;
            part.x = saver->stage + place;
            const int result = visit(saver, &part);
            if (result != 0)
                return result;
        }
    }
    return 0;
}

/* ---- copying ---------------------------------------------------------------------------------
 * A device copies beside its work, on a queue of the saver's own. Only the next update, which
 * overwrites what is copied, follows the copies' fence (step.c), and the thread waits for it:
 *
 *     kernels   | update 100 | forward 101 | backward 101 | update 101 |
 *     copies                 | values, state ....... |
 *     thread                                         | write ..............
 */

static enum tess_status saver_fetch_run(struct tess_saver *saver)
{
    const struct saver_run run = saver->run;
    saver->run.bytes = 0;
    if (run.bytes == 0)
        return TESS_OK;
    if (saver->queue != NULL)
        return saver->queue->ops->copy(saver->queue, run.bytes, run.from, run.to);
    memcpy(run.to, run.from, run.bytes);
    return TESS_OK;
}

/* Neighbours are copied together: large copies go past the caches, and a device is asked once. */
static enum tess_status saver_fetch(struct tess_saver *saver, size_t bytes, const void *from,
                                    void *to)
{
    struct saver_run *run = &saver->run;
    if (run->bytes == 0 || run->from + run->bytes != (const char *)from ||
        run->to + run->bytes != (char *)to) {
        TESS_TRY(saver_fetch_run(saver));
        *run = (struct saver_run){from, to, 0};
    }
    run->bytes += bytes;
    return TESS_OK;
}

/* Where a part's values lie that have no master, until they are widened: in its upper half. */
static char *saver_low(const struct saver_part *part)
{
    return (char *)part->x + (size_t)(part->end - part->first) * sizeof(uint16_t);
}

static int saver_copy_part(struct tess_saver *saver, const struct saver_part *part)
{
    const struct tess_optim *optim = &saver->engine->optim;
    const struct tess_piece *piece = part->piece;
    const size_t count = (size_t)(part->end - part->first);
    if (part->array < 0 && piece->w == NULL)
        return (int)saver_fetch(saver, count * sizeof(uint16_t),
                                (const char *)piece->low + (size_t)part->first * sizeof(uint16_t),
                                saver_low(part));
    const float *from = part->array < 0
                            ? piece->w
                            : optim->state + part->array * optim->state_count + piece->state_begin;
    return (int)saver_fetch(saver, count * sizeof(*from), from + part->first, part->x);
}

void tess__saver_copy_numbers(struct tess_saver *saver)
{
    const struct tess_engine *engine = saver->engine;
    const size_t params = (size_t)saver->store.param_count;
    struct tess_checkpoint_state *at = &saver->at;
    at->updates = engine->optim.step;
    at->loss_scale = engine->scale.value;
    at->scale_good = engine->scale.good;
    at->skipped = engine->scale.skipped;
    memcpy(at->epoch_loss, engine->progress.epoch_loss, sizeof(at->epoch_loss));
    if (at->param_updates != NULL)
        memcpy(at->param_updates, engine->optim.updates, params * sizeof(*at->param_updates));
    memset(saver->check, 0, (size_t)(1 + saver->store.arrays) * params * sizeof(*saver->check));
    if (saver->moment != NULL)
        memset(saver->moment, 0, params * sizeof(*saver->moment));
}

enum tess_status tess__saver_copy(struct tess_saver *saver, int64_t from, int64_t to)
{
    const struct tess_engine *engine = saver->engine;
    struct tess_kernel *kernel = engine->kernel;
    const size_t params = (size_t)saver->store.param_count;
    enum tess_status status = TESS_OK;
    if (saver->queue != NULL) {
        TESS_TRY(kernel->queue->ops->record(kernel->queue, saver->fence));
        TESS_TRY(saver->queue->ops->follow(saver->queue, saver->fence));
    }
    kernel->ops->access(kernel, true);
    if (saver->number != NULL && from == 0)
        status = saver_fetch(saver, params * sizeof(*saver->number), engine->optim.tensor_state,
                             saver->number);
    if (status == TESS_OK)
        status = (enum tess_status)tess__saver_each(saver, from, to, saver_copy_part);
    if (status == TESS_OK)
        status = saver_fetch_run(saver);
    saver->run.bytes = 0;
    kernel->ops->access(kernel, false);
    TESS_TRY(status);
    return saver->queue != NULL ? saver->queue->ops->record(saver->queue, saver->fence) : TESS_OK;
}

enum tess_status tess__saver_await(const struct tess_saver *saver)
{
    return saver->queue != NULL ? saver->queue->ops->wait(saver->fence) : TESS_OK;
}

/* Each is read before the place where it lies is written. */
void tess__saver_widen(const struct tess_saver *saver, const struct saver_part *part)
{
    const char *low = saver_low(part);
    const bool f16 = saver->engine->plan.dtype == TESS_F16;
    for (int64_t i = 0; i < part->end - part->first; i++) {
        uint16_t bits;
        memcpy(&bits, low + (size_t)i * sizeof(bits), sizeof(bits));
        part->x[i] = f16 ? tess__f32_of_f16(bits) : tess__f32_of_bf16(bits);
    }
}

void tess__saver_take_moment(struct tess_saver *saver, const struct saver_part *part)
{
    const struct tess_piece *piece = part->piece;
    int64_t whole;
    uint32_t bits;
    (void)tess_piece_run(piece, &saver->engine->declare.axis, 0, 1, &whole, NULL);
    if (saver->moment == NULL || part->first > 0 || whole > 0)
        return;
    memcpy(&bits, &saver->number[piece->param], sizeof(bits));
    saver->moment[piece->param] = bits;
}
