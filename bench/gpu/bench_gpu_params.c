/*
 * Part of `tessera bench gpu`: what streams through gradients and parameters, in f32. Bytes as for
 * activations: every array of a call once. An update with a copy in 16 bits writes that too; LAMB
 * and random rounding are two calls, and count what both are given.
 */
#include "bench/gpu/bench_gpu.h"

#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>

#define PARAMS_GOAL   0.85
#define PARAMS_PIECES 4096

enum params_what {
    PARAMS_ACCUMULATE,
    PARAMS_MAXIMUM,
    PARAMS_CAST_DOWN,
    PARAMS_CAST_UP,
    PARAMS_CAST_RANDOM,
    PARAMS_SQUARES,
    PARAMS_FLAG,
    PARAMS_ZEROS,
    PARAMS_NONFINITE,
    PARAMS_NORMAL,
    PARAMS_SGD,
    PARAMS_MOMENTUM,
    PARAMS_ADAMW,
    PARAMS_ADAMW_F32,
    PARAMS_ADAMW_RANDOM,
    PARAMS_ADAMW_PIECES,
    PARAMS_NOVOGRAD,
    PARAMS_LAMB_DIRECTION,
    PARAMS_LAMB,
    PARAMS_COUNT
};

/*
 * Bytes of an element: f32 and 16-bit arrays that are read and that are written. find_nonfinite
 * waits for the host, and normal computes more than it writes: they have no goal.
 */
static const struct {
    const char *name;
    int f32, low;
    bool goal;
    enum tess_update_kind kind;
} params_table[PARAMS_COUNT] = {
    [PARAMS_ACCUMULATE] = {"accumulate", 3, 0, true, TESS_UPDATE_SGD},
    [PARAMS_MAXIMUM] = {"maximum", 3, 0, true, TESS_UPDATE_SGD},
    [PARAMS_CAST_DOWN] = {"cast from f32", 1, 1, true, TESS_UPDATE_SGD},
    [PARAMS_CAST_UP] = {"cast to f32", 1, 1, true, TESS_UPDATE_SGD},
    [PARAMS_CAST_RANDOM] = {"cast, rounded at random", 1, 1, true, TESS_UPDATE_SGD},
    [PARAMS_SQUARES] = {"square sum", 1, 0, true, TESS_UPDATE_SGD},
    [PARAMS_FLAG] = {"find flag", 1, 0, true, TESS_UPDATE_SGD},
    [PARAMS_ZEROS] = {"count zeros", 1, 0, true, TESS_UPDATE_SGD},
    [PARAMS_NONFINITE] = {"find nonfinite, waits", 1, 0, false, TESS_UPDATE_SGD},
    [PARAMS_NORMAL] = {"normal", 1, 0, false, TESS_UPDATE_SGD},
    /* w, g; w, copy */
    [PARAMS_SGD] = {"sgd", 3, 1, true, TESS_UPDATE_SGD},
    /* w, g, m; w, m, copy */
    [PARAMS_MOMENTUM] = {"momentum", 5, 1, true, TESS_UPDATE_MOMENTUM},
    /* w, g, m, v; w, m, v, copy */
    [PARAMS_ADAMW] = {"adamw", 7, 1, true, TESS_UPDATE_ADAMW},
    [PARAMS_ADAMW_F32] = {"adamw, no copy", 7, 0, true, TESS_UPDATE_ADAMW},
    /* and w; copy */
    [PARAMS_ADAMW_RANDOM] = {"adamw, rounded at random", 8, 1, true, TESS_UPDATE_ADAMW},
    [PARAMS_ADAMW_PIECES] = {"adamw, the model's pieces", 7, 1, true, TESS_UPDATE_ADAMW},
    [PARAMS_NOVOGRAD] = {"novograd", 5, 1, true, TESS_UPDATE_NOVOGRAD},
    /* w, g, m, v; m, v, direction */
    [PARAMS_LAMB_DIRECTION] = {"lamb, direction", 7, 0, true, TESS_UPDATE_LAMB},
    /* w, direction; w, copy */
    [PARAMS_LAMB] = {"lamb, update", 3, 1, true, TESS_UPDATE_LAMB},
};

struct params {
    struct tess_kernel *kernel;
    enum params_what what;
    int64_t count;       /* elements of an array */
    enum tess_dtype low; /* of the copy */
    void *w, *g, *m, *v, *direction, *copy;
    void *sum, *verdict, *zeros; /* a struct tess_sum, a struct tess_verdict, a double */
    struct tess_update *piece;
    int32_t pieces;
};

/* ---- running --------------------------------------------------------------------------------- */

static struct tess_update params_update(const struct params *p)
{
    const bool copy = params_table[p->what].low > 0 && p->what != PARAMS_ADAMW_RANDOM;
    struct tess_update update =
        tess__bench_update(params_table[p->what].kind, p->count, p->w, p->g, p->m, p->v);
    update.low = p->low;
    update.param_low = copy ? p->copy : NULL;
    update.weight_decay = 0.1f;
    update.direction = p->direction;
    return update;
}

/* Pieces of the sizes of a GPT's layers, one layer after the other, as far as the arrays reach. */
static enum tess_status params_cut(struct params *p, const struct tess__gpu_model *m)
{
    const int64_t c = m->width, f = m->inner;
    const int64_t size[] = {c, c, 3 * c * c, 3 * c, c * c, c, c, c, f * c, f, c * f, c};
    const int64_t element = (int64_t)tess_dtype_bytes(p->low);
    int64_t at = 0;
    p->piece = calloc(PARAMS_PIECES, sizeof(*p->piece));
    if (!p->piece)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the bench");
    p->what = PARAMS_ADAMW_PIECES;
    for (p->pieces = 0; at < p->count && p->pieces < PARAMS_PIECES; p->pieces++) {
        struct tess_update *piece = &p->piece[p->pieces];
        const int64_t next = size[(size_t)p->pieces % (sizeof(size) / sizeof(size[0]))];
        *piece = params_update(p);
        piece->count =
            p->pieces == PARAMS_PIECES - 1 || next > p->count - at ? p->count - at : next;
        piece->w += at;
        piece->g += at;
        piece->m += at;
        piece->v += at;
        piece->param_low = (char *)piece->param_low + at * element;
        at += piece->count;
    }
    return TESS_OK;
}

static void params_run_update(const struct params *p)
{
    static const uint64_t key[2] = {3, 4};
    const struct tess_update update = params_update(p);
    if (p->what == PARAMS_ADAMW_PIECES)
        tess_update_all(p->kernel, p->piece, p->pieces);
    else if (p->what == PARAMS_LAMB_DIRECTION)
        tess_lamb_direction(p->kernel, &update);
    else
        tess_update(p->kernel, &update);
    if (p->what == PARAMS_ADAMW_RANDOM)
        tess_cast_stochastic(p->kernel, p->count, p->w, p->low, key, 0, p->copy);
}

static enum tess_status params_run(void *context)
{
    struct params *p = context;
    struct tess_kernel *kernel = p->kernel;
    static const uint64_t key[2] = {1, 2};
    static const uint32_t key32[2] = {1, 2};
    switch (p->what) {
    case PARAMS_ACCUMULATE:
        tess_accumulate(kernel, p->count, 1e-6f, p->g, p->direction);
        break;
    case PARAMS_MAXIMUM:
        tess_maximum(kernel, p->count, p->g, p->direction);
        break;
    case PARAMS_CAST_DOWN:
        tess_cast(kernel, p->count, TESS_F32, p->g, p->low, p->copy);
        break;
    case PARAMS_CAST_UP:
        tess_cast(kernel, p->count, p->low, p->copy, TESS_F32, p->direction);
        break;
    case PARAMS_CAST_RANDOM:
        tess_cast_stochastic(kernel, p->count, p->g, p->low, key, 0, p->copy);
        break;
    case PARAMS_SQUARES:
        tess_square_sum(kernel, p->count, TESS_SUM_BLOCK, 1.0f, p->g, p->sum);
        break;
    case PARAMS_FLAG:
        tess_find_flag(kernel, p->count, p->g, 1, p->verdict);
        break;
    case PARAMS_ZEROS:
        tess_count_zeros(kernel, TESS_F32, p->count, p->g, p->zeros);
        break;
    case PARAMS_NONFINITE:
        if (tess_find_nonfinite(kernel, TESS_F32, p->count, p->g) >= 0)
            TESS_FAIL(TESS_ERR_NUMERIC, "a generated gradient is not finite");
        break;
    case PARAMS_NORMAL:
        tess_normal(kernel, key32, 0, p->count, 0.0f, 1.0f, p->direction);
        break;
    default:
        params_run_update(p);
    }
    return TESS_OK;
}

/* Digits of an exact sum have room for 2^31 blocks: each batch begins at zero. */
static void params_reset(void *context)
{
    const struct params *p = context;
    tess_fill(p->kernel, (int64_t)sizeof(struct tess_sum), 0, p->sum);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static enum tess_status params_open(struct tess__gpu *gpu, struct params *p)
{
    void **const random[] = {&p->w, &p->g, &p->m, &p->direction};
    for (size_t i = 0; i < sizeof(random) / sizeof(random[0]); i++)
        TESS_TRY(tess__gpu_take_random(gpu, TESS_F32, p->count, random[i]));
    TESS_TRY(tess__gpu_take(gpu, p->count * 4, &p->v)); /* never negative */
    TESS_TRY(tess__gpu_take_random(gpu, p->low, p->count, &p->copy));
    TESS_TRY(tess__gpu_take(gpu, (int64_t)sizeof(struct tess_sum), &p->sum));
    TESS_TRY(tess__gpu_take(gpu, (int64_t)sizeof(struct tess_verdict), &p->verdict));
    TESS_TRY(tess__gpu_take(gpu, (int64_t)sizeof(double), &p->zeros));
    return params_cut(p, gpu->model);
}

static enum tess_status params_measure(struct tess__gpu *gpu, struct params *p)
{
    const struct tess__gpu_task task = {
        .run = params_run, .reset = p->what == PARAMS_SQUARES ? params_reset : NULL, .context = p};
    char shape[TESS__GPU_TEXT_BYTES];
    struct tess__gpu_row row = {
        .part = "kernels",
        .name = params_table[p->what].name,
        .shape = shape,
        .type = params_table[p->what].low > 0 ? tess_dtype_name(p->low) : "f32",
        .bytes = (double)p->count * (4 * params_table[p->what].f32 +
                                     (double)tess_dtype_bytes(p->low) * params_table[p->what].low),
        .ceiling = gpu->copy_per_s,
        .goal = params_table[p->what].goal ? PARAMS_GOAL : 0};
    if (p->what == PARAMS_ADAMW_PIECES)
        snprintf(shape, sizeof(shape), "%lld in %d", (long long)p->count, (int)p->pieces);
    else
        snprintf(shape, sizeof(shape), "%lld", (long long)p->count);
    return tess__gpu_measure(gpu, &task, &row);
}

enum tess_status tess__gpu_params(struct tess__gpu *gpu)
{
    struct params p = {.kernel = gpu->bench.kernel,
                       .count = gpu->bytes / 4,
                       .low = gpu->dtype == TESS_F32 ? TESS_BF16 : gpu->dtype};
    enum tess_status status = params_open(gpu, &p);
    if (status == TESS_OK)
        tess__gpu_head(gpu, "gradients and parameters", true, "copy");
    for (int what = 0; what < PARAMS_COUNT && status == TESS_OK; what++) {
        p.what = (enum params_what)what;
        status = params_measure(gpu, &p);
    }
    free(p.piece);
    return status;
}
