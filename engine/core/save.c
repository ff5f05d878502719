/*
 * The saver: which elements are this rank's to write, copying them, and the thread that writes.
 * What a checkpoint is, is state/checkpoint.h's.
 */
#include "core/save.h"

#include "base/clock.h"
#include "base/log_sink.h"
#include "core/state.h"
#include "tessera/check.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SAVER_BLOCK (INT64_C(1) << 18) /* elements that are written at a time: 1 MiB */
#define SAVER_NICE  10                 /* steps go first */

enum saver_state { SAVER_IDLE, SAVER_WRITING, SAVER_WRITTEN, SAVER_QUIT };

struct tess_saver {
    struct tess_engine *engine;
    struct tess_saver_setup setup;
    struct tess_store store;
    int64_t from, to; /* this rank's share of the elements that it counts, in order of pieces */
    float *stage;     /* [stage_count] of the elements [1 + arrays, to - from]: engine->staging */
    float *room;      /* [SAVER_BLOCK], behind it */
    double memory_bytes;             /* of the stage at most; 0: a step writes all itself */
    int64_t stage_count, staged;     /* elements before this one were written by the step */
    struct tess_values *values;      /* while it copies */
    double begin_s;                  /* of the save under way */
    uint64_t *check;                 /* [1 + arrays, params], then an error */
    int *fd;                         /* [files], while one is under way */
    struct tess_checkpoint_state at; /* what goes with the stage; arrays only where needed */
    int64_t *moment; /* [params] bits of the optimizer's numbers per tensor; 0 where another rank
                        writes the tensor's first element; NULL: there are none */
    bool busy;
    struct tess_saver_cost cost;

    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum saver_state state; /* by lock */
    _Atomic bool written, quit;
    int error; /* errno of writing, 0; valid when written */
    int32_t error_file;
};

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

static void saver_share(const struct tess_engine *engine, int64_t *from, int64_t *to)
{
    int32_t index;
    const int32_t replicas = tess__saver_replicas(&engine->plan, &index);
    const int64_t count = tess_layout_counted(&engine->plan, &engine->declare);
    *from = count * index / replicas;
    *to = count * (index + 1) / replicas;
}

/* Elements that a rank saves: its share of values and optimizer state. */
static int64_t saver_elements(const struct tess_engine *engine)
{
    int64_t from, to;
    saver_share(engine, &from, &to);
    return (to - from) * (1 + engine->config->optimizer->state_arrays);
}

/* Of these at a time: as many as the memory holds beside the room, a block at least. */
static int64_t saver_stage_count(const struct tess_engine *engine, double memory_bytes)
{
    const int64_t all = saver_elements(engine);
    const double most = memory_bytes / sizeof(float) - SAVER_BLOCK;
    if (most >= (double)all)
        return all;
    return most > SAVER_BLOCK ? (int64_t)most : all < SAVER_BLOCK ? all : SAVER_BLOCK;
}

uint64_t tess_saver_bytes(const struct tess_engine *engine)
{
    const struct tess_save_plan *save = &engine->config->save;
    int64_t count = saver_stage_count(engine, save->memory_bytes) + SAVER_BLOCK;
    if (save->copy_steps > 0) /* behind it */
        count += saver_stage_count(engine, 0) + SAVER_BLOCK;
    return (uint64_t)count * sizeof(float);
}

uint64_t tess_saver_copies(const struct tess_engine *engine)
{
    return engine->config->save.copy_steps > 0
               ? 2 * (uint64_t)saver_elements(engine) * sizeof(float)
               : 0;
}

/* Elements [first, end) of a piece, of its values (array -1) or of an array of the optimizer, and
 * their place in the stage. */
struct saver_part {
    const struct tess_piece *piece;
    int32_t array;
    int64_t first, end;
    float *x;
};

/* Visit what of the state are elements [from, to), counted in the share array by array. Until a
 * visit returns something else than 0: returns that. */
static int saver_each(struct tess_saver *saver, int64_t from, int64_t to,
                      int (*visit)(struct tess_saver *saver, const struct saver_part *part))
{
    const struct tess_engine *engine = saver->engine;
    const int64_t share = saver->to - saver->from;
    for (int32_t a = -1; a < saver->store.arrays; a++) {
        const int64_t least = from > (a + 1) * share ? from : (a + 1) * share;
        const int64_t most = to < (a + 2) * share ? to : (a + 2) * share;
        int64_t at = (a + 1) * share - saver->from; /* the number of the piece's first element */
        for (int32_t i = 0; i < engine->optim.piece_count && at < most; i++) {
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

/* ---- copying --------------------------------------------------------------------------------- */

static enum tess_status saver_fetch(const struct tess_engine *engine, int64_t count,
                                    const float *from, float *to)
{
    const size_t bytes = (size_t)count * sizeof(*to);
    if (engine->kernel->ops->far_memory)
        return tess_read(engine->kernel, bytes, from, to);
    memcpy(to, from, bytes);
    return TESS_OK;
}

/* Values that have no master, widened. */
static enum tess_status saver_widen(struct tess_saver *saver, const struct saver_part *part)
{
    const float *x;
    for (int64_t i = part->first, now; i < part->end; i += now) {
        now = part->end - i < TESS_VALUES_ROOM ? part->end - i : TESS_VALUES_ROOM;
        TESS_TRY(tess__values_get(saver->values, part->piece, i, now, &x));
        memcpy(part->x + (i - part->first), x, (size_t)now * sizeof(*x));
    }
    return TESS_OK;
}

/* The number of the optimizer for a tensor whose first element is in the share. */
static enum tess_status saver_copy_moment(struct tess_saver *saver, const struct tess_piece *piece,
                                          int64_t first)
{
    const struct tess_engine *engine = saver->engine;
    float moment;
    int64_t whole;
    uint32_t bits;
    (void)tess_piece_run(piece, &engine->declare.axis, 0, 1, &whole, NULL);
    if (saver->moment == NULL || first > 0 || whole > 0)
        return TESS_OK;
    TESS_TRY(saver_fetch(engine, 1, &engine->optim.tensor_state[piece->param], &moment));
    memcpy(&bits, &moment, sizeof(bits));
    saver->moment[piece->param] = bits;
    return TESS_OK;
}

static int saver_copy_part(struct tess_saver *saver, const struct saver_part *part)
{
    const struct tess_optim *optim = &saver->engine->optim;
    const struct tess_piece *piece = part->piece;
    const int64_t count = part->end - part->first;
    if (part->array >= 0)
        return (int)saver_fetch(saver->engine, count,
                                optim->state + part->array * optim->state_count +
                                    piece->state_begin + part->first,
                                part->x);
    TESS_TRY(saver_copy_moment(saver, piece, part->first));
    return (int)(piece->w != NULL
                     ? saver_fetch(saver->engine, count, piece->w + part->first, part->x)
                     : saver_widen(saver, part));
}

/* What there is one of, the same on all ranks. */
static void saver_copy_numbers(struct tess_saver *saver)
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

/* Elements [from, to) to the stage. */
static enum tess_status saver_copy(struct tess_saver *saver, int64_t from, int64_t to)
{
    struct tess_values values;
    TESS_TRY(tess__values_open(saver->engine, SAVER_BLOCK, &values));
    saver->values = &values;
    const enum tess_status status = (enum tess_status)saver_each(saver, from, to, saver_copy_part);
    tess__values_close(&values);
    return status;
}

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
        (void)saver_each(saver, from, to, saver_write_part);
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

static void *saver_main(void *context)
{
    struct tess_saver *saver = context;
    /* On Linux this is the thread's own; where it may not be, steps and writing are equal. */
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), SAVER_NICE);
    pthread_mutex_lock(&saver->lock);
    while (saver->state != SAVER_QUIT) {
        if (saver->state != SAVER_WRITING) {
            pthread_cond_wait(&saver->changed, &saver->lock);
            continue;
        }
        pthread_mutex_unlock(&saver->lock);
        saver_write(saver, saver->staged, saver_elements(saver->engine));
        saver_close_files(saver);
        saver->cost.write_s = tess_clock_s() - saver->begin_s - saver->cost.copy_s;
        pthread_mutex_lock(&saver->lock);
        if (saver->state == SAVER_WRITING)
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

/* ---- a checkpoint ---------------------------------------------------------------------------- */

/* Messages of a save that fails are one warning, of rank 0, and no error of the run. */
static void saver_drop_line(void *context, enum tess_log_level level, const char *text)
{
    (void)context, (void)level, (void)text;
}
static const struct tess__log_sink saver_silence = {saver_drop_line, NULL};

/* errno of a rank that failed, on all of them; 0: none did. */
static enum tess_status saver_agree(struct tess_saver *saver, int error, int32_t *worst)
{
    *worst = error;
    return tess_comm_all_reduce(saver->engine->comm, worst, worst, 1, TESS_I32, TESS_REDUCE_MAX,
                                NULL);
}

static bool saver_make(struct tess_saver *saver, bool *there, char why[TESS_SAVER_WHY])
{
    char path[TESS_CHECKPOINT_PATH];
    const struct tess__log_sink *former = tess__log_redirect(&saver_silence);
    enum tess_status status = tess_checkpoint_path(saver->setup.run, saver->at.step, false, path);
    *there = status == TESS_OK && access(path, F_OK) == 0;
    if (status == TESS_OK && !*there)
        status = tess_checkpoint_begin(saver->setup.run, saver->at.step, &saver->store);
    tess__log_redirect(former);
    snprintf(why, TESS_SAVER_WHY, "%s", status == TESS_OK ? "" : tess_log_last_error());
    return status == TESS_OK;
}

/* errno, 0. */
static int saver_open_files(struct tess_saver *saver, char why[TESS_SAVER_WHY])
{
    const struct tess__log_sink *former = tess__log_redirect(&saver_silence);
    const enum tess_status status =
        tess_checkpoint_open_files(saver->setup.run, saver->at.step, &saver->store, saver->fd);
    const int error = status == TESS_OK ? 0 : errno != 0 ? errno : EIO;
    tess__log_redirect(former);
    if (error != 0)
        snprintf(why, TESS_SAVER_WHY, "%s", tess_log_last_error());
    return error;
}

/* Copy the state, and write what the stage does not hold at once. */
static enum tess_status saver_stage(struct tess_saver *saver)
{
    const int64_t all = saver_elements(saver->engine);
    const int64_t aside = saver->memory_bytes > 0 ? saver->stage_count : 0;
    saver->cost.bytes = 0;
    saver->error = 0;
    saver->staged = 0;
    saver_copy_numbers(saver);
    for (int64_t to; all - saver->staged > aside; saver->staged = to) {
        to = all - saver->staged < saver->stage_count ? all : saver->staged + saver->stage_count;
        TESS_TRY(saver_copy(saver, saver->staged, to));
        saver_write(saver, saver->staged, to);
    }
    return saver_copy(saver, saver->staged, all);
}

enum tess_status tess_saver_begin(struct tess_saver *saver, bool *begun, char why[TESS_SAVER_WHY])
{
    struct tess_comm *comm = saver->engine->comm;
    int32_t made = 1; /* 0: failed; 1: go on; 2: it is there */
    bool there = false;
    why[0] = '\0';
    saver->begin_s = tess_clock_s();
    saver->at.step = saver->engine->progress.step;
    if (comm->rank == 0)
        made = !saver_make(saver, &there, why) ? 0 : there ? 2 : 1;
    TESS_TRY(tess_comm_broadcast(comm, &made, 1, TESS_I32, 0, NULL));
    *begun = made != 0;
    if (made != 1)
        return TESS_OK;
    const int error = saver_open_files(saver, why);
    int32_t worst;
    TESS_TRY(saver_agree(saver, error, &worst));
    *begun = worst == 0;
    if (!*begun) {
        for (int32_t f = 0; error == 0 && f < saver->store.file_count; f++)
            close(saver->fd[f]);
        if (comm->rank == 0)
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

enum tess_status tess_saver_end(struct tess_saver *saver, const struct tess_checkpoint_state *about,
                                bool *saved, char why[TESS_SAVER_WHY])
{
    struct tess_comm *comm = saver->engine->comm;
    const size_t tensors = (size_t)(1 + saver->store.arrays) * (size_t)saver->store.param_count;
    pthread_mutex_lock(&saver->lock);
    while (saver->state == SAVER_WRITING)
        pthread_cond_wait(&saver->changed, &saver->lock);
    pthread_mutex_unlock(&saver->lock);
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
    int32_t there = failed == 0;
    if (comm->rank == 0 && failed != 0) {
        saver_say_why(saver, failed, why);
    } else if (comm->rank == 0) {
        const struct tess__log_sink *former = tess__log_redirect(&saver_silence);
        const struct tess_checkpoint_state state = saver_state(saver, about);
        there = tess_checkpoint_end(saver->setup.run, &saver->store, &state,
                                    &saver->engine->model) == TESS_OK;
        const bool pruned =
            there && tess_checkpoint_prune(saver->setup.run, saver->setup.keep) == TESS_OK;
        tess__log_redirect(former);
        if (!pruned)
            snprintf(why, TESS_SAVER_WHY, "%s", tess_log_last_error());
    }
    if (comm->rank == 0 && !there)
        tess_checkpoint_drop(saver->setup.run, saver->at.step);
    TESS_TRY(tess_comm_broadcast(comm, &there, 1, TESS_I32, 0, NULL));
    *saved = there != 0;
    return TESS_OK;
}

struct tess_saver_cost tess_saver_cost(const struct tess_saver *saver)
{
    return saver->cost;
}

/* ---- opening --------------------------------------------------------------------------------- */

static enum tess_status saver_start(struct tess_saver *saver)
{
    struct tess_engine *engine = saver->engine;
    const int32_t arrays = engine->config->optimizer->state_arrays;
    TESS_TRY(tess_store_plan(&engine->model, arrays, TESS_CHECKPOINT_FILE_MOST, &saver->store));
    const size_t tensors = (size_t)(1 + arrays) * (size_t)saver->store.param_count;
    saver_share(engine, &saver->from, &saver->to);
    const double memory_bytes = engine->config->save.memory_bytes;
    saver->memory_bytes = saver->setup.copies ? 0 : memory_bytes;
    saver->stage_count = saver_stage_count(engine, saver->memory_bytes);
    saver->stage = engine->staging;
    if (saver->setup.copies)
        saver->stage += saver_stage_count(engine, memory_bytes) + SAVER_BLOCK;
    saver->room = saver->stage + saver->stage_count;
    /* Pages exist before the first save. */
    memset(saver->stage, 0, (size_t)(saver->stage_count + SAVER_BLOCK) * sizeof(*saver->stage));
    saver->check = calloc(tensors + 1, sizeof(*saver->check));
    saver->fd = calloc((size_t)saver->store.file_count, sizeof(*saver->fd));
    const size_t params = (size_t)saver->store.param_count + 1;
    bool room = saver->check != NULL && saver->fd != NULL;
    if (engine->optim.updates != NULL) {
        saver->at.param_updates = calloc(params, sizeof(*saver->at.param_updates));
        room = room && saver->at.param_updates != NULL;
    }
    if (engine->config->optimizer->tensor_moment) {
        saver->moment = calloc(params, sizeof(*saver->moment));
        saver->at.tensor_state = calloc(params, sizeof(*saver->at.tensor_state));
        room = room && saver->moment != NULL && saver->at.tensor_state != NULL;
    }
    if (!room)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to save the state: --save-every off needs none");
    if (saver->setup.copies)
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
    saver->quit = true;
    if (saver->started) {
        saver_set(saver, SAVER_QUIT);
        pthread_join(saver->thread, NULL);
    }
    pthread_cond_destroy(&saver->changed);
    pthread_mutex_destroy(&saver->lock);
    tess_store_fini(&saver->store);
    tess_checkpoint_state_fini(&saver->at);
    free(saver->moment);
    free(saver->check);
    free(saver->fd);
    free(saver);
}
