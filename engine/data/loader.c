/*
 * The loader: keeps the next batches of one rank ready in the caller's slots. Responsible for
 * order, ownership of slots and threads; the request function and data_sample.c determine what a
 * batch holds.
 *
 * Batch b lives in slot b mod S. The one in use is given back by the next call, so with S slots the
 * workers are at most S - 1 batches ahead of the rank:
 *
 *     batch     0 1 2 3 4 5        S = 3, batch 2 in use: 3 and 4 are ready or being loaded,
 *     slot      0 1 2 0 1 2        5 waits until 2 is given back
 *
 * A worker takes the turn, claims the next batch, waits for its slot, requests the list of
 * its samples, passes the turn on and loads. So requests come in order and one at a time while
 * loads overlap.
 */
#include "data/data.h"

#include "tessera/check.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#define LOADER_SLOTS_MAX 4

/* Below this many bytes a batch takes some 20 us to load, about what waking a thread costs. */
#define LOADER_SMALL_BYTES 65536

struct loader_slot {
    bool ready;      /* loaded, or known not to exist; guarded by lock */
    int64_t rows;    /* 0: there is no such batch */
    int64_t *sample; /* [rows_max] */
    int64_t loaded;  /* rows, or the number of the first that could not be had */
    const struct tess_split *split;
};

struct tess_loader {
    struct tess_loader_config config;
    int32_t worker_count;
    pthread_t worker[LOADER_SLOTS_MAX];
    pthread_mutex_t turn; /* held by the worker that claims and requests; taken before lock */
    int64_t claimed;      /* batches claimed; guarded by turn */
    bool ended;           /* a request returned false; guarded by turn */
    pthread_mutex_t lock;
    pthread_cond_t freed, filled;
    bool closing;     /* guarded by lock */
    int64_t returned; /* batches given back; guarded by lock */
    int64_t taken;    /* batches returned to the rank: returned or returned + 1 */
    struct loader_slot slot[LOADER_SLOTS_MAX];
};

/* Request a batch's samples; false when there is no such batch. */
static bool loader_request(struct tess_loader *loader, int64_t batch,
                           struct tess_batch_request *request)
{
    struct loader_slot *slot = &loader->slot[batch % loader->config.slot_count];
    *request = (struct tess_batch_request){.sample = slot->sample};
    slot->rows = 0;
    if (!loader->config.request(loader->config.context, batch, request))
        return false;
    slot->rows = request->rows;
    return true;
}

static void loader_fill(struct tess_loader *loader, int64_t batch,
                        const struct tess_batch_request *request)
{
    const struct tess_loader_config *config = &loader->config;
    const int32_t s = (int32_t)(batch % config->slot_count);
    loader->slot[s].split = request->split;
    loader->slot[s].loaded =
        tess_load_rows(config->dataset, request->split, &config->options, config->seed,
                       request->epoch, request->augment, request->sample, request->rows,
                       config->dtype, config->input[s], config->label[s]);
}

/* Wait until the slot of `batch` is free; false when the loader is being closed. */
static bool loader_wait_free(struct tess_loader *loader, int64_t batch)
{
    pthread_mutex_lock(&loader->lock);
    while (!loader->closing && batch >= loader->returned + loader->config.slot_count)
        pthread_cond_wait(&loader->freed, &loader->lock);
    const bool open = !loader->closing;
    pthread_mutex_unlock(&loader->lock);
    return open;
}

static void loader_mark_ready(struct tess_loader *loader, int64_t batch)
{
    pthread_mutex_lock(&loader->lock);
    loader->slot[batch % loader->config.slot_count].ready = true;
    pthread_cond_signal(&loader->filled);
    pthread_mutex_unlock(&loader->lock);
}

static void *loader_work(void *argument)
{
    struct tess_loader *loader = argument;
    for (;;) {
        struct tess_batch_request request;
        pthread_mutex_lock(&loader->turn);
        const int64_t batch = loader->claimed;
        if (loader->ended || !loader_wait_free(loader, batch)) {
            pthread_mutex_unlock(&loader->turn);
            return NULL;
        }
        loader->claimed++;
        const bool exists = loader_request(loader, batch, &request);
        loader->ended = !exists;
        pthread_mutex_unlock(&loader->turn);
        if (exists)
            loader_fill(loader, batch, &request);
        loader_mark_ready(loader, batch);
    }
}

/*
 * A prefetch thread pays where a core is free for it and a batch is worth waking it for. Where all
 * cores compute, it only takes turns with the rank.
 */
static int32_t loader_choose_workers(const struct tess_loader_config *config)
{
    const size_t bytes = (size_t)(config->rows_max * tess_shape_count(&config->dataset->row)) *
                         tess_dtype_bytes(config->dtype);
    return bytes >= LOADER_SMALL_BYTES && config->cores >= 2 ? 1 : 0;
}

static enum tess_status loader_check(const struct tess_loader_config *config)
{
    const struct tess_shape *row = &config->dataset->row;
    const int64_t shift = config->options.shift;
    if (!config->dataset->tokens && (shift >= row->dim[0] || shift >= row->dim[1]))
        TESS_FAIL(TESS_ERR_USAGE,
                  "data.shift %lld moves images of %lld x %lld pixels out of sight: use less",
                  (long long)shift, (long long)row->dim[0], (long long)row->dim[1]);
    return TESS_OK;
}

/* Start the workers; fewer, even none, if the system refuses: the batches are the same. */
static void loader_start(struct tess_loader *loader)
{
    int64_t wanted = loader->config.options.workers;
    sigset_t all, before;
    if (wanted < 0)
        wanted = loader_choose_workers(&loader->config);
    if (wanted > loader->config.slot_count)
        wanted = loader->config.slot_count; /* each needs a slot to work in */
    /* Signals are for the rank's own thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (loader->worker_count < wanted &&
           pthread_create(&loader->worker[loader->worker_count], NULL, loader_work, loader) == 0)
        loader->worker_count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (loader->worker_count < wanted)
        tess_log(TESS_LOG_WARN, "started %d of %lld loader threads: the system allows no more",
                 (int)loader->worker_count, (long long)wanted);
}

enum tess_status tess_loader_open(const struct tess_loader_config *config,
                                  struct tess_loader **loader_out)
{
    TESS_TRY(loader_check(config));
    struct tess_loader *loader = calloc(1, sizeof(*loader));
    int64_t *samples =
        calloc((size_t)config->slot_count * (size_t)config->rows_max, sizeof(*samples));
    if (loader == NULL || samples == NULL) {
        free(loader);
        free(samples);
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a loader of %d slots of %lld rows",
                  (int)config->slot_count, (long long)config->rows_max);
    }
    loader->config = *config;
    for (int32_t s = 0; s < config->slot_count; s++)
        loader->slot[s].sample = samples + s * config->rows_max;
    pthread_mutex_init(&loader->turn, NULL);
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->freed, NULL);
    pthread_cond_init(&loader->filled, NULL);
    loader_start(loader);
    *loader_out = loader;
    return TESS_OK;
}

/* Give the batch in use back, then wait for the next. */
static void loader_exchange(struct tess_loader *loader)
{
    const int32_t slot_count = loader->config.slot_count;
    pthread_mutex_lock(&loader->lock);
    if (loader->taken > loader->returned) {
        loader->slot[loader->returned % slot_count].ready = false;
        loader->returned++;
        pthread_cond_signal(&loader->freed); /* only the worker whose turn it is waits for it */
    }
    while (!loader->slot[loader->taken % slot_count].ready)
        pthread_cond_wait(&loader->filled, &loader->lock);
    pthread_mutex_unlock(&loader->lock);
}

enum tess_status tess_loader_next(struct tess_loader *loader, void **input_out, int32_t **label_out,
                                  int64_t *rows_out)
{
    const int64_t batch = loader->taken;
    const int32_t s = (int32_t)(batch % loader->config.slot_count);
    if (loader->worker_count > 0) {
        loader_exchange(loader);
    } else {
        struct tess_batch_request request;
        if (loader_request(loader, batch, &request))
            loader_fill(loader, batch, &request);
    }
    const struct loader_slot *slot = &loader->slot[s];
    const int64_t rows = slot->rows;
    if (rows > 0 && slot->loaded < rows)
        return tess_load_report(loader->config.dataset, slot->split, slot->sample[slot->loaded]);
    /* The slot of "no such batch" stays with the loader: the next call returns the same. */
    loader->taken += rows > 0;
    *input_out = rows > 0 ? loader->config.input[s] : NULL;
    *label_out = rows > 0 ? loader->config.label[s] : NULL;
    *rows_out = rows;
    return TESS_OK;
}

void tess_loader_close(struct tess_loader *loader)
{
    if (loader == NULL)
        return;
    pthread_mutex_lock(&loader->lock);
    loader->closing = true;
    pthread_cond_broadcast(&loader->freed);
    pthread_mutex_unlock(&loader->lock);
    for (int32_t w = 0; w < loader->worker_count; w++)
        pthread_join(loader->worker[w], NULL);
    pthread_cond_destroy(&loader->filled);
    pthread_cond_destroy(&loader->freed);
    pthread_mutex_destroy(&loader->lock);
    pthread_mutex_destroy(&loader->turn);
    free(loader->slot[0].sample);
    free(loader);
}
