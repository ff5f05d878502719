/*
 * The saver: the thread that writes, and the life of a checkpoint. Copying is save_copy.c's; what a
 * checkpoint is, is state/checkpoint.h's.
 */
#include "core/save_room.h"

#include "base/clock.h"
#include "base/log_sink.h"
#include "base/pages.h"
#include "tessera/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SAVER_NICE 10 /* steps go first */

/* ---- writing --------------------------------------------------------------------------------- */

/* Sleep until what has been written since the save began is within the limit. */
static void saver_pace(const struct tess_saver *saver)
{
    if (saver->setup.bytes_per_s <= 0)
        return;
    const double due_s = saver->begin_s + (double)saver->cost.bytes / saver->setup.bytes_per_s;
    for (double left_s; !saver->quit && (left_s = due_s - tess_clock_s()) > 0;) {
        const double nap_s = left_s < 0.1 ? left_s : 0.1;
        nanosleep(&(struct timespec){.tv_nsec = (long)(nap_s * 1e9)}, NULL);
    }
}

static int saver_write_part(struct tess_saver *saver, const struct saver_part *part)
{
    const struct tess_piece *piece = part->piece;
    const struct tess_store_tensor *tensor =
        tess_store_find(&saver->store, piece->param, part->array);
    struct tess_declare_param param = *piece->of; /* the optimizer's arrays lie as in memory */
    param.flags &= part->array < 0 ? ~0u : ~(uint32_t)TESS_PARAM_TRANSPOSED;
    uint64_t *check = &saver->check[(part->array + 1) * saver->store.param_count + piece->param];
    const float *x = part->x;
    if (part->array < 0)
        tess__saver_take_moment(saver, part);
    if (part->array < 0 && piece->w == NULL)
        tess__saver_widen(saver, part);
    for (int64_t i = part->first; i < part->end && !saver->quit;) {
        const int64_t most = part->end - i < SAVER_BLOCK ? part->end - i : SAVER_BLOCK;
        const struct tess_store_block block =
            tess_store_block_at(&param, &saver->engine->declare.axis, piece->param_begin + i, most);
        const int64_t count = (block.rows > 0 ? block.rows : 1) * block.columns;
        if (block.rows > 0) {
            const int fd = saver->fd[tensor->file];
            saver->error = tess_store_write(fd, tensor, &block, x, saver->room);
            saver->error_file = tensor->file;
            if (saver->error != 0)
                return saver->error;
            *check += tess_store_check(&param, &block, x);
            saver->cost.bytes += (uint64_t)count * sizeof(*x);
            saver_pace(saver);
        }
        i += count;
        x += count;
    }
    return 0;
}

/* Elements [from, to), which the stage has; after an error none. */
static void saver_write(struct tess_saver *saver, int64_t from, int64_t to)
{
    if (saver->error == 0)
        (void)tess__saver_each(saver, from, to, saver_write_part);
}

static void saver_close_files(struct tess_saver *saver)
{
    for (int32_t f = 0; f < saver->store.file_count; f++) {
        const int failed = tess_file_close(saver->fd[f], saver->quit ? ECANCELED : saver->error);
        if (saver->error == 0 && failed != 0) {
            saver->error = failed;
            saver->error_file = f;
        }
    }
}

/* The thread: what the step has left in the stage. */
static void saver_write_rest(struct tess_saver *saver)
{
    if (tess__saver_await(saver) != TESS_OK && saver->error == 0) {
        saver->error = EIO;
        saver->error_file = -1;
    }
    saver_write(saver, saver->staged, tess__saver_elements(saver->engine));
    saver_close_files(saver);
    saver->cost.write_s = tess_clock_s() - saver->begin_s - saver->cost.copy_s;
}

/* The thread: older checkpoints. Gigabytes take seconds to remove. */
static void saver_remove(struct tess_saver *saver)
{
    if (tess_checkpoint_prune(saver->setup.run, saver->setup.keep) != TESS_OK)
        snprintf(saver->why, sizeof(saver->why), "%s", tess_log_last_error());
}

/* The thread: pages of the stage exist before the first save, but the first step does not wait for
 * them. */
static void saver_make_pages(const struct tess_saver *saver)
{
    const int64_t count = saver->stage_count + tess__saver_beside(saver->engine);
    tess_pages_make(saver->stage, (size_t)count * sizeof(*saver->stage));
}

static void *saver_main(void *context)
{
    struct tess_saver *saver = context;
    /* On Linux this is the thread's own; where it may not be, steps and writing are equal. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), SAVER_NICE);
    /* A save that fails is one warning, of rank 0, and no error of the run; so in all that follows.
     */
    (void)tess__log_redirect(&tess__log_silence);
    saver_make_pages(saver);
    pthread_mutex_lock(&saver->lock);
    while (saver->state != SAVER_QUIT) {
        const enum saver_state state = saver->state;
        if (state != SAVER_WRITING && state != SAVER_REMOVING) {
            pthread_cond_wait(&saver->changed, &saver->lock);
            continue;
        }
        pthread_mutex_unlock(&saver->lock);
        if (state == SAVER_REMOVING) {
            saver_remove(saver);
        } else if (saver->setup.copies) {
            saver->pushed = saver->setup.push(saver->setup.context, saver->at.step, saver->why,
                                              sizeof(saver->why));
        } else {
            saver_write_rest(saver);
        }
        pthread_mutex_lock(&saver->lock);
        if (saver->state == state)
            saver->state = SAVER_WRITTEN;
        saver->written = true;
        pthread_cond_broadcast(&saver->changed);
    }
    pthread_mutex_unlock(&saver->lock);
    return NULL;
}

static void saver_set(struct tess_saver *saver, enum saver_state state)
{
    pthread_mutex_lock(&saver->lock);
    saver->state = state;
    pthread_cond_broadcast(&saver->changed);
    pthread_mutex_unlock(&saver->lock);
}

/* For the thread: until it has removed, or also written or pushed. */
static void saver_wait(struct tess_saver *saver, bool written)
{
    pthread_mutex_lock(&saver->lock);
    while (saver->state == SAVER_REMOVING || (written && saver->state == SAVER_WRITING))
        pthread_cond_wait(&saver->changed, &saver->lock);
    pthread_mutex_unlock(&saver->lock);
}

/* ---- a checkpoint ---------------------------------------------------------------------------- */

/* The least, or the greatest, of all ranks. */
static enum tess_status saver_agree(struct tess_saver *saver, enum tess_reduce reduce, int own,
                                    int32_t *of_all)
{
    *of_all = own;
    return tess_comm_all_reduce(saver->engine->comm, of_all, of_all, 1, TESS_I32, reduce, NULL);
}

/* A folder for the state: of a maker. */
enum saver_made { SAVER_FAILED, SAVER_MADE, SAVER_THERE };

static int saver_make(struct tess_saver *saver, char why[TESS_SAVER_WHY])
{
    char path[TESS_CHECKPOINT_PATH];
    if (!saver->pushed) {
        snprintf(why, TESS_SAVER_WHY, "%s", saver->why);
        return SAVER_FAILED;
    }
    const struct tess__log_sink *former = tess__log_redirect(&tess__log_silence);
    enum tess_status status = tess_checkpoint_path(saver->setup.run, saver->at.step, false, path);
    bool there = status == TESS_OK && access(path, F_OK) == 0;
    /* Another host may not have this copy: all of them write it. */
    if (there && saver->setup.copies) {
        status = tess_checkpoint_remove(saver->setup.run, saver->at.step);
        there = false;
    }
    if (status == TESS_OK && !there)
        status = tess_checkpoint_begin(saver->setup.run, saver->at.step, &saver->store);
    tess__log_redirect(former);
    snprintf(why, TESS_SAVER_WHY, "%s", status == TESS_OK ? "" : tess_log_last_error());
    return status != TESS_OK ? SAVER_FAILED : there ? SAVER_THERE : SAVER_MADE;
}

/* Every host has the newest copy, and so has another one for it. */
static void saver_drop_older(const struct tess_saver *saver)
{
    if (!saver->setup.copies || !saver->setup.maker)
        return;
    const struct tess__log_sink *former = tess__log_redirect(&tess__log_silence);
    (void)tess_checkpoint_prune(saver->setup.run, saver->setup.keep);
    tess__log_redirect(former);
}

/* errno, 0. */
static int saver_open_files(struct tess_saver *saver, char why[TESS_SAVER_WHY])
{
    const struct tess__log_sink *former = tess__log_redirect(&tess__log_silence);
    const enum tess_status status =
        tess_checkpoint_open_files(saver->setup.run, saver->at.step, &saver->store, saver->fd);
    const int error = status == TESS_OK ? 0 : errno != 0 ? errno : EIO;
    tess__log_redirect(former);
    if (error != 0)
        snprintf(why, TESS_SAVER_WHY, "%s", tess_log_last_error());
    return error;
}

/* Copy the state, and write at once what the stage does not hold. */
static enum tess_status saver_stage(struct tess_saver *saver)
{
    const int64_t all = tess__saver_elements(saver->engine);
    TESS_TRY(tess__shared_settle(saver->engine, true));
    const int64_t aside = saver->memory_bytes > 0 ? saver->stage_count : 0;
    saver->cost.bytes = 0;
    saver->error = 0;
    saver->staged = 0;
    tess__saver_copy_numbers(saver);
    for (int64_t to; all - saver->staged > aside; saver->staged = to) {
        to = all - saver->staged < saver->stage_count ? all : saver->staged + saver->stage_count;
        TESS_TRY(tess__saver_copy(saver, saver->staged, to));
        TESS_TRY(tess__saver_await(saver));
        saver_write(saver, saver->staged, to);
    }
    return tess__saver_copy(saver, saver->staged, all);
}

enum tess_status tess_saver_begin(struct tess_saver *saver, bool *begun, char why[TESS_SAVER_WHY])
{
    struct tess_comm *comm = saver->engine->comm;
    int32_t made, worst;
    why[0] = '\0';
    saver->begin_s = tess_clock_s();
    saver_wait(saver, true); /* older ones are being removed; a copy is being pushed */
    saver->at.step = saver->engine->progress.step;
    TESS_TRY(saver_agree(saver, TESS_REDUCE_MIN,
                         saver->setup.maker ? saver_make(saver, why) : SAVER_THERE, &made));
    *begun = made != SAVER_FAILED;
    if (!*begun && saver->setup.maker)
        tess_checkpoint_drop(saver->setup.run, saver->at.step);
    if (made != SAVER_MADE)
        return TESS_OK;
    saver_drop_older(saver);
    const int error = saver_open_files(saver, why);
    TESS_TRY(saver_agree(saver, TESS_REDUCE_MAX, error, &worst));
    *begun = worst == 0;
    if (!*begun) {
        for (int32_t f = 0; error == 0 && f < saver->store.file_count; f++)
            close(saver->fd[f]);
        if (saver->setup.maker)
            tess_checkpoint_drop(saver->setup.run, saver->at.step);
        if (comm->rank == 0 && why[0] == '\0')
            snprintf(why, TESS_SAVER_WHY,
                     "a rank cannot open the files in %s/checkpoints/step-%08lld.part: %s; hosts "
                     "need a folder that they share",
                     saver->setup.run, (long long)saver->at.step, strerror(worst));
        return TESS_OK;
    }
    TESS_TRY(saver_stage(saver));
    saver->cost.copy_s = tess_clock_s() - saver->begin_s;
    saver->busy = true;
    saver->written = saver->setup.copies;
    if (saver->setup.copies)
        saver_close_files(saver);
    else
        saver_set(saver, SAVER_WRITING);
    return TESS_OK;
}

bool tess_saver_busy(const struct tess_saver *saver)
{
    return saver->busy;
}

bool tess_saver_written(const struct tess_saver *saver)
{
    return saver->written;
}

/* Of the ranks that failed one: the file and errno. */
static void saver_say_why(const struct tess_saver *saver, int64_t failed, char why[TESS_SAVER_WHY])
{
    const int32_t file = (int32_t)(failed >> 32) - 1;
    const int error = (int)(failed & INT32_MAX);
    if (file < 0)
        snprintf(why, TESS_SAVER_WHY, "the device of a rank failed while its state was copied");
    else
        snprintf(why, TESS_SAVER_WHY, "cannot write %s/checkpoints/step-%08lld.part/%s: %s",
                 saver->setup.run, (long long)saver->at.step, saver->store.file[file].name,
                 strerror(error));
}

/* What state.json has: of the stage, and what the caller gave. The arrays stay the saver's. */
static struct tess_checkpoint_state saver_state(const struct tess_saver *saver,
                                                const struct tess_checkpoint_state *about)
{
    struct tess_checkpoint_state state = saver->at;
    state.check = saver->check;
    for (int32_t p = 0; state.tensor_state != NULL && p < saver->store.param_count; p++) {
        const uint32_t bits = (uint32_t)saver->moment[p];
        memcpy(&state.tensor_state[p], &bits, sizeof(bits));
    }
    state.options = about->options;
    state.batch_size = about->batch_size;
    state.grid = about->grid;
    state.learning_rate = about->learning_rate;
    state.warmup_start = about->warmup_start;
    state.model = about->model;
    state.layout = about->layout;
    state.model_id = about->model_id;
    state.data_id = about->data_id;
    return state;
}

/* All have been written: the checkpoint gets its name. Then the thread removes older ones; `why`
 * reports where that failed the time before. */
static bool saver_name(struct tess_saver *saver, const struct tess_checkpoint_state *about,
                       char why[TESS_SAVER_WHY])
{
    const struct tess__log_sink *former = tess__log_redirect(&tess__log_silence);
    const struct tess_checkpoint_state state = saver_state(saver, about);
    const bool there = tess_checkpoint_end(saver->setup.run, &saver->store, &state,
                                           &saver->engine->model) == TESS_OK;
    tess__log_redirect(former);
    snprintf(why, TESS_SAVER_WHY, "%s", there ? saver->why : tess_log_last_error());
    if (!there || saver->setup.copies)
        return there;
    saver->why[0] = '\0';
    saver_set(saver, SAVER_REMOVING);
    return true;
}

enum tess_status tess_saver_end(struct tess_saver *saver, const struct tess_checkpoint_state *about,
                                bool *saved, char why[TESS_SAVER_WHY])
{
    struct tess_comm *comm = saver->engine->comm;
    const size_t tensors = (size_t)(1 + saver->store.arrays) * (size_t)saver->store.param_count;
    saver_wait(saver, true);
    saver->busy = false;
    why[0] = '\0';
    int64_t failed = saver->error == 0 ? 0 : (int64_t)(saver->error_file + 1) << 32 | saver->error;
    TESS_TRY(tess_comm_all_reduce(comm, &failed, &failed, 1, TESS_I64, TESS_REDUCE_MAX, NULL));
    TESS_TRY(tess_comm_all_reduce(comm, saver->check, saver->check, tensors, TESS_I64,
                                  TESS_REDUCE_SUM, NULL));
    if (saver->moment != NULL)
        TESS_TRY(tess_comm_all_reduce(comm, saver->moment, saver->moment,
                                      (size_t)saver->store.param_count, TESS_I64, TESS_REDUCE_SUM,
                                      NULL));
    TESS_TRY(tess_comm_all_reduce(comm, saver->at.epoch_loss, saver->at.epoch_loss,
                                  2 * TESS_SUM_LIMBS, TESS_I64, TESS_REDUCE_SUM, NULL));
    int32_t there = 1;
    if (comm->rank == 0 && failed != 0)
        saver_say_why(saver, failed, why);
    if (saver->setup.maker)
        there = failed == 0 && saver_name(saver, about, why);
    if (saver->setup.maker && !there)
        tess_checkpoint_drop(saver->setup.run, saver->at.step);
    TESS_TRY(saver_agree(saver, TESS_REDUCE_MIN, there, &there));
    if (there && saver->setup.push != NULL)
        saver_set(saver, SAVER_WRITING);
    *saved = there != 0;
    return TESS_OK;
}

struct tess_saver_cost tess_saver_cost(const struct tess_saver *saver)
{
    return saver->cost;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Updates follow the fence from here on. It is recorded once before them: a step that is recorded,
 * to be played again, leaves out one that never was. `copies` has waited when begin returns. */
static enum tess_status saver_open_queue(struct tess_saver *saver)
{
    struct tess_kernel *kernel = saver->engine->kernel;
    const struct tess_queue_ops *ops = kernel->ops->queue;
    if (!kernel->ops->far_memory)
        return TESS_OK;
    TESS_TRY(ops->open(kernel, &saver->queue));
    TESS_TRY(ops->fence_open(kernel, &saver->fence));
    TESS_TRY(saver->queue->ops->record(saver->queue, saver->fence));
    if (!saver->setup.copies)
        saver->engine->saved = saver->fence;
    return TESS_OK;
}

static void saver_close_queue(struct tess_saver *saver)
{
    if (saver->engine->saved == saver->fence)
        saver->engine->saved = NULL;
    if (saver->queue != NULL)
        saver->queue->ops->close(saver->queue); /* its copies end here */
    if (saver->fence != NULL)
        saver->fence->ops->fence_close(saver->fence);
}

static enum tess_status saver_start(struct tess_saver *saver)
{
    struct tess_engine *engine = saver->engine;
    const int32_t arrays = engine->config->optimizer->state_arrays;
    TESS_TRY(tess_store_plan(&engine->model, arrays, TESS_CHECKPOINT_FILE_MOST, &saver->store));
    const size_t tensors = (size_t)(1 + arrays) * (size_t)saver->store.param_count;
    saver->share = tess__saver_share(engine);
    const double memory_bytes = engine->config->save.memory_bytes;
    saver->memory_bytes = saver->setup.copies ? 0 : memory_bytes;
    saver->stage_count = tess__saver_stage_count(engine, saver->memory_bytes);
    saver->stage = engine->staging;
    if (saver->setup.copies)
        saver->stage += tess__saver_stage_count(engine, memory_bytes) + tess__saver_beside(engine);
    saver->room = saver->stage + saver->stage_count;
    TESS_TRY(saver_open_queue(saver));
    saver->check = calloc(tensors + 1, sizeof(*saver->check));
    saver->fd = calloc((size_t)saver->store.file_count, sizeof(*saver->fd));
    const size_t params = (size_t)saver->store.param_count + 1;
    bool room = saver->check != NULL && saver->fd != NULL;
    if (engine->optim.updates != NULL) {
        saver->at.param_updates = calloc(params, sizeof(*saver->at.param_updates));
        room = room && saver->at.param_updates != NULL;
    }
    if (engine->config->optimizer->tensor_moment) {
        saver->number = saver->room + SAVER_BLOCK;
        saver->moment = calloc(params, sizeof(*saver->moment));
        saver->at.tensor_state = calloc(params, sizeof(*saver->at.tensor_state));
        room = room && saver->moment != NULL && saver->at.tensor_state != NULL;
    }
    if (!room)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to save the state: --save-every off needs none");
    if (saver->setup.copies && saver->setup.push == NULL)
        return TESS_OK;
    const int error = pthread_create(&saver->thread, NULL, saver_main, saver);
    if (error != 0)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot start the thread that saves: %s", strerror(error));
    saver->started = true;
    return TESS_OK;
}

enum tess_status tess_saver_open(struct tess_engine *engine, const struct tess_saver_setup *setup,
                                 struct tess_saver **saver_out)
{
    struct tess_saver *saver = calloc(1, sizeof(*saver));
    if (saver == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to save the state");
    saver->engine = engine;
    saver->setup = *setup;
    saver->pushed = true;
    pthread_mutex_init(&saver->lock, NULL);
    pthread_cond_init(&saver->changed, NULL);
    const enum tess_status status = saver_start(saver);
    if (status != TESS_OK)
        tess_saver_close(saver);
    else
        *saver_out = saver;
    return status;
}

void tess_saver_close(struct tess_saver *saver)
{
    if (saver == NULL)
        return;
    saver_wait(saver, false);
    if (saver->started && !saver->setup.copies && saver->why[0] != '\0')
        tess_log(TESS_LOG_WARN, "older checkpoints stay: %s", saver->why);
    saver->quit = true;
    if (saver->started) {
        saver_set(saver, SAVER_QUIT);
        pthread_join(saver->thread, NULL);
    }
    saver_close_queue(saver);
    pthread_cond_destroy(&saver->changed);
    pthread_mutex_destroy(&saver->lock);
    tess_store_fini(&saver->store);
    tess_checkpoint_state_fini(&saver->at);
    free(saver->moment);
    free(saver->check);
    free(saver->fd);
    free(saver);
}
