/*
 * The choice of what computes attention: our own kernels, cuDNN where it has a plan, or the faster
 * of the two, which is measured over a leaf when an operation is opened and kept in the file of
 * measured products (matmul_store.h), by device, driver, cuDNN's version and shape. What cannot be
 * kept is not measured: another run, or another host of this one, could find otherwise and have
 * other bits. Ranks that found different things settle on our own kernels.
 */
#include "cuda/attention/attention_choice.h"

#include "cuda/cudnn/present.h"
#include "cuda/host.h"
#include "cuda/products/matmul.h"
#include "cuda/products/matmul_store.h"

#include <stdio.h>
#include <stdlib.h>

/* What measuring finds; the greatest of all ranks is taken. Also the choice in the file. */
enum { CHOICE_NONE, CHOICE_CUDNN, CHOICE_OWN };

/* cuDNN must be faster by this much, or what is measured is noise. */
#define CHOICE_GAIN 0.97
/* Their medians count, and the first are not timed: they load code. */
#define CHOICE_ROUNDS 5
#define CHOICE_WARM   1

/* ---- the run's choice ------------------------------------------------------------------------ */

enum tess_status tess__cuda_attention_choose(struct tess_kernel *kernel,
                                             enum tess_attention attention, const char *store)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    char text[512];
    if (attention == TESS_ATTENTION_CUDNN && !tess__cudnn_present(text, sizeof(text)))
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "--cuda.attention cudnn: %s; or leave it at own", text);
    state->attention = attention;
    state->attention_store = store;
    return TESS_OK;
}

void tess__cuda_attention_describe(const struct tess_kernel *kernel,
                                   void (*line)(void *context, const char *text), void *context)
{
    const struct cuda_state *state = tess__cuda_state(kernel);
    const bool automatic = state->attention == TESS_ATTENTION_AUTO;
    char library[512], text[800];
    const bool present =
        state->attention != TESS_ATTENTION_OWN && tess__cudnn_present(library, sizeof(library));
    const char *own = "our own kernels, on tensor cores for bf16 and f16 with heads of 64, 128";
    if (state->attention == TESS_ATTENTION_OWN)
        snprintf(text, sizeof(text), "attention: %s", own);
    else if (!present)
        snprintf(text, sizeof(text), "attention: our own kernels: %s", library);
    else if (automatic && state->attention_store == NULL)
        snprintf(text, sizeof(text),
                 "attention: our own kernels: there is no folder to keep what "
                 "would be measured: set HOME or XDG_CACHE_HOME");
    else
        snprintf(text, sizeof(text), "attention: %s%s; our own kernels where it has no engine",
                 library, automatic ? " where it is the faster, measured once" : "");
    line(context, text);
}

uint8_t tess__cuda_settle(struct tess_kernel *kernel, uint8_t all)
{
    struct cuda_state *state = tess__cuda_state(kernel);
    if (state->attention != TESS_ATTENTION_AUTO || all == CHOICE_NONE)
        return state->attention_vote;
    state->attention_vote = all;
    state->attention_own = all == CHOICE_OWN;
    return all;
}

/* ---- measuring ------------------------------------------------------------------------------- */

/* A leaf's arrays; zeros, because the work does not depend on what they hold. */
struct choice_arrays {
    void *memory, *q, *k, *v, *y, *dy, *dq, *dk, *dv;
    float *lse;
};

static struct choice_arrays choice_lay(const struct tess_op_desc *d, void *base, size_t *bytes_out)
{
    const size_t word = tess_dtype_bytes(d->dtype);
    const int64_t positions = d->rows * d->length;
    const size_t q = (size_t)(positions * d->q_stride) * word;
    const size_t k = (size_t)(positions * d->kv_stride) * word;
    const size_t y = (size_t)(positions * d->heads * d->in) * word;
    struct cuda_room room = {.base = base};
    struct choice_arrays a = {.memory = base};
    a.q = tess__cuda_take(&room, q);
    a.k = tess__cuda_take(&room, k);
    a.v = tess__cuda_take(&room, k);
    a.y = tess__cuda_take(&room, y);
    a.dy = tess__cuda_take(&room, y);
    a.dq = tess__cuda_take(&room, q);
    a.dk = tess__cuda_take(&room, k);
    a.dv = tess__cuda_take(&room, k);
    a.lse = tess__cuda_take(&room, (size_t)(positions * d->heads) * sizeof(float));
    *bytes_out = room.used;
    return a;
}

/* Milliseconds of one pass over the leaf. */
static enum tess_status choice_time(struct tess_op *op, const struct choice_arrays *a,
                                    const cudaEvent_t event[2], float *milliseconds_out)
{
    cudaStream_t stream = tess__cuda_stream(op->kernel);
    CUDA_TRY(cudaEventRecord(event[0], stream));
    TESS_TRY(tess__cuda_attention_forward(op, a->q, a->k, a->v, a->y, a->lse));
    TESS_TRY(tess__cuda_attention_backward(op, a->q, a->k, a->v, a->y, a->dy, a->lse, a->dq, a->dk,
                                           a->dv));
    CUDA_TRY(cudaEventRecord(event[1], stream));
    TESS_TRY(tess__cuda_await(tess__cuda_state(op->kernel), event[1], "measuring attention"));
    CUDA_TRY(cudaEventElapsedTime(milliseconds_out, event[0], event[1]));
    return TESS_OK;
}

static int choice_order(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Both in turn, so that changes of the clock favour neither. */
static enum tess_status choice_rounds(struct tess_op *leaf, const struct choice_arrays *a,
                                      const cudaEvent_t event[2], uint8_t *choice_out,
                                      float median_out[2])
{
    float time[2][CHOICE_WARM + CHOICE_ROUNDS];
    struct tess_op own = *leaf;
    own.data = NULL;
    for (int round = 0; round < CHOICE_WARM + CHOICE_ROUNDS; round++) {
        TESS_TRY(choice_time(&own, a, event, &time[0][round]));
        TESS_TRY(choice_time(leaf, a, event, &time[1][round]));
    }
    for (int i = 0; i < 2; i++) {
        qsort(time[i] + CHOICE_WARM, CHOICE_ROUNDS, sizeof(float), choice_order);
        median_out[i] = time[i][CHOICE_WARM + CHOICE_ROUNDS / 2];
    }
    *choice_out = median_out[1] < (float)CHOICE_GAIN * median_out[0] ? CHOICE_CUDNN : CHOICE_OWN;
    return TESS_OK;
}

static enum tess_status choice_measure_over(struct tess_op *leaf, const struct choice_arrays *a,
                                            uint8_t *choice_out, float median_out[2])
{
    cudaEvent_t event[2] = {NULL, NULL};
    enum tess_status status = tess__cuda_status(cudaEventCreate(&event[0]), "cudaEventCreate");
    if (status == TESS_OK)
        status = tess__cuda_status(cudaEventCreate(&event[1]), "cudaEventCreate");
    if (status == TESS_OK)
        status = choice_rounds(leaf, a, event, choice_out, median_out);
    for (int i = 0; i < 2; i++)
        if (event[i] != NULL)
            TESS_KEEP(status, tess__cuda_status(cudaEventDestroy(event[i]), "cudaEventDestroy"));
    return status;
}

static enum tess_status choice_measure(struct tess_op *op, uint8_t *choice_out, float median_out[2])
{
    struct tess_op leaf = *op;
    leaf.desc.rows = op->desc.leaf_rows;
    size_t bytes;
    (void)choice_lay(&leaf.desc, NULL, &bytes);
    void *memory;
    CUDA_TRY(cudaMalloc(&memory, bytes));
    const struct choice_arrays arrays = choice_lay(&leaf.desc, memory, &bytes);
    enum tess_status status = tess__cuda_status(
        cudaMemsetAsync(memory, 0, bytes, tess__cuda_stream(op->kernel)), "cudaMemsetAsync");
    if (status == TESS_OK)
        status = choice_measure_over(&leaf, &arrays, choice_out, median_out);
    if (!tess__cuda_hangs())
        TESS_KEEP(status, tess__cuda_status(cudaFree(memory), "cudaFree"));
    return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

static enum tess_status choice_key(const struct tess_op *op, char key[MATMUL_KEY_MAX])
{
    const struct tess_op_desc *d = &op->desc;
    struct cudaDeviceProp about;
    char library[64];
    int driver;
    CUDA_TRY(cudaDriverGetVersion(&driver));
    CUDA_TRY(cudaGetDeviceProperties(&about, tess__cuda_state(op->kernel)->device));
    (void)tess__cudnn_present(library, sizeof(library));
    snprintf(key, MATMUL_KEY_MAX,
             "attention|%.80s|%d|%s|%s %lld x %lld|%d of %d heads of %lld|%lld %lld", about.name,
             driver, library, tess_dtype_name(d->dtype), (long long)d->leaf_rows,
             (long long)d->length, (int)d->kv_heads, (int)d->heads, (long long)d->in,
             (long long)d->q_stride, (long long)d->kv_stride);
    tess__matmul_key_clean(key);
    return TESS_OK;
}

/* Under the file's lock: the choice that is there, or a measured one that is there from now on. */
static enum tess_status choice_find(struct tess_op *op, const char *path, const char *key,
                                    uint8_t *choice_out)
{
    struct matmul_choice kept = {.nanoseconds = 0};
    float median[2] = {0, 0};
    if (tess__matmul_store_find(path, key, &kept) &&
        (kept.algorithm[0] == CHOICE_CUDNN || kept.algorithm[0] == CHOICE_OWN)) {
        *choice_out = (uint8_t)kept.algorithm[0];
        return TESS_OK;
    }
    TESS_TRY(choice_measure(op, choice_out, median));
    tess_log(TESS_LOG_INFO, "attention by our own kernels: %.3f ms, by cuDNN: %.3f ms, a leaf",
             (double)median[0], (double)median[1]);
    kept = (struct matmul_choice){.algorithm = {*choice_out}};
    /* A file that cannot be written has been named. */
    if (tess__matmul_store_put(path, key, &kept) != TESS_OK)
        *choice_out = CHOICE_OWN;
    return TESS_OK;
}

static enum tess_status choice_decide(struct tess_op *op)
{
    struct cuda_state *state = tess__cuda_state(op->kernel);
    char key[MATMUL_KEY_MAX];
    uint8_t choice = CHOICE_OWN;
    TESS_TRY(choice_key(op, key));
    const int lock = tess__matmul_store_lock(state->attention_store);
    const enum tess_status status = choice_find(op, state->attention_store, key, &choice);
    tess__matmul_store_unlock(lock);
    if (status == TESS_OK && choice > state->attention_vote)
        state->attention_vote = choice;
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

enum tess_status tess__cuda_attention_open(struct tess_op *op)
{
    struct cuda_state *state = tess__cuda_state(op->kernel);
    const bool automatic = state->attention == TESS_ATTENTION_AUTO;
    char text[512];
    op->data = NULL;
    if (state->attention == TESS_ATTENTION_OWN)
        return TESS_OK;
    if ((op->desc.window > 0 && op->desc.window < op->desc.length) ||
        op->desc.dropout > 0) /* our own kernels alone have it */
        return TESS_OK;
    if (automatic && (state->attention_store == NULL || !tess__cudnn_present(text, sizeof(text)))) {
        state->attention_vote = CHOICE_OWN;
        return TESS_OK;
    }
    TESS_TRY(tess__cudnn_attention_open(op));
    enum tess_status status = TESS_OK;
    if (automatic && op->data == NULL)
        state->attention_vote = CHOICE_OWN;
    else if (automatic) {
        state->attention_own = false; /* until all are measured */
        status = choice_decide(op);
    }
    state->attention_own = state->attention_vote == CHOICE_OWN;
    if (status != TESS_OK)
        tess__cuda_attention_close(op);
    return status;
}

void tess__cuda_attention_close(struct tess_op *op)
{
    tess__cudnn_attention_close(op);
}
