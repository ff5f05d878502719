/*
 * The plain operations of `cpu` over arrays: the own loops, in pieces that the threads share. Every
 * element's result is its own, so that pieces change no bits; they are whole blocks of everything
 * that works in blocks.
 */
#include "base/sum.h"
#include "cpu/prim.h"
#include "ref/rules.h"

#include <string.h>

#define PLAIN_PIECE   16384 /* elements: tens of microseconds, much beside waking a thread */
#define PLAIN_THREADS 64    /* that one sum is shared by */

enum plain_what {
    PLAIN_RELU,
    PLAIN_RELU_GRAD,
    PLAIN_GELU,
    PLAIN_GELU_GRAD,
    PLAIN_SWIGLU,
    PLAIN_SWIGLU_GRAD,
    PLAIN_ADD,
    PLAIN_DROPOUT,
    PLAIN_CAST,
    PLAIN_CAST_STOCHASTIC,
    PLAIN_ACCUMULATE,
    PLAIN_FILL,
    PLAIN_COPY
};

/* One call, or one piece of it. */
struct plain {
    struct tess_kernel *kernel;
    enum plain_what what;
    int64_t count;
    const void *in[3];
    void *out[2];
    enum tess_dtype from, to; /* of in, of out */
    float number;             /* rate, scale */
    int value;                /* FILL */
    const uint64_t *key;
    uint64_t first; /* element of the stream of random numbers */
};

static void plain_run(const struct plain *p)
{
    const struct tess_kernel_ops *ops = &tess__cpu_loops(p->kernel)->ops;
    struct tess_kernel *kernel = p->kernel;
    const void *const *in = p->in;
    void *const *out = p->out;
    switch (p->what) {
    case PLAIN_RELU:
        ops->relu_forward(kernel, p->from, p->count, in[0], out[0]);
        break;
    case PLAIN_RELU_GRAD:
        ops->relu_backward(kernel, p->from, p->count, in[0], in[1], out[0]);
        break;
    case PLAIN_GELU:
        ops->gelu_forward(kernel, p->from, p->count, in[0], out[0]);
        break;
    case PLAIN_GELU_GRAD:
        ops->gelu_backward(kernel, p->from, p->count, in[0], in[1], out[0]);
        break;
    case PLAIN_SWIGLU:
        ops->swiglu_forward(kernel, p->from, p->count, in[0], in[1], out[0]);
        break;
    case PLAIN_SWIGLU_GRAD:
        ops->swiglu_backward(kernel, p->from, p->count, in[0], in[1], in[2], out[0], out[1]);
        break;
    case PLAIN_ADD:
        ops->add(kernel, p->from, p->count, in[0], in[1], out[0]);
        break;
    case PLAIN_DROPOUT:
        ops->dropout(kernel, p->from, p->count, p->number, p->key, p->first, in[0], out[0]);
        break;
    case PLAIN_CAST:
        ops->cast(kernel, p->count, p->from, in[0], p->to, out[0]);
        break;
    case PLAIN_CAST_STOCHASTIC:
        ops->cast_stochastic(kernel, p->count, in[0], p->to, p->key, p->first, out[0]);
        break;
    case PLAIN_ACCUMULATE:
        ops->accumulate(kernel, p->count, p->number, in[0], out[0]);
        break;
    case PLAIN_FILL:
        memset(out[0], p->value, (size_t)p->count);
        break;
    case PLAIN_COPY:
        memcpy(out[0], in[0], (size_t)p->count);
        break;
    }
}

static void plain_piece(void *context, int64_t part, void *work)
{
    (void)work;
    const struct plain *whole = context;
    struct plain piece = *whole;
    int64_t first = part * PLAIN_PIECE, left = whole->count - first;
    bool bytes = whole->what == PLAIN_FILL || whole->what == PLAIN_COPY;
    size_t in = (size_t)first * (bytes ? 1 : tess_dtype_bytes(whole->from));
    size_t out = (size_t)first * (bytes ? 1 : tess_dtype_bytes(whole->to));
    piece.count = left < PLAIN_PIECE ? left : PLAIN_PIECE;
    piece.first += (uint64_t)first;
    for (int i = 0; i < 3; i++)
        piece.in[i] = whole->in[i] != NULL ? (const char *)whole->in[i] + in : NULL;
    for (int i = 0; i < 2; i++)
        piece.out[i] = whole->out[i] != NULL ? (char *)whole->out[i] + out : NULL;
    plain_run(&piece);
}

static void plain_share(struct plain *p)
{
    if (p->kernel->threads == 1 || p->count < 2 * PLAIN_PIECE)
        plain_run(p);
    else
        tess__cpu_share(p->kernel, (p->count + PLAIN_PIECE - 1) / PLAIN_PIECE, plain_piece, p,
                        NULL);
}

/* Operations whose arrays are all of one type. */
static void plain_alike(struct tess_kernel *kernel, enum plain_what what, enum tess_dtype dtype,
                        int64_t count, const void *a, const void *b, void *y)
{
    struct plain p = {.kernel = kernel,
                      .what = what,
                      .count = count,
                      .in = {a, b},
                      .out = {y},
                      .from = dtype,
                      .to = dtype};
    plain_share(&p);
}

void tess__cpu_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y)
{
    plain_alike(kernel, PLAIN_RELU, dtype, count, x, NULL, y);
}

void tess__cpu_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *y, const void *dy, void *dx)
{
    plain_alike(kernel, PLAIN_RELU_GRAD, dtype, count, y, dy, dx);
}

void tess__cpu_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y)
{
    plain_alike(kernel, PLAIN_GELU, dtype, count, x, NULL, y);
}

void tess__cpu_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, const void *dy, void *dx)
{
    plain_alike(kernel, PLAIN_GELU_GRAD, dtype, count, x, dy, dx);
}

void tess__cpu_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                              const void *gate, const void *up, void *y)
{
    plain_alike(kernel, PLAIN_SWIGLU, dtype, count, gate, up, y);
}

void tess__cpu_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                               const void *gate, const void *up, const void *dy, void *dgate,
                               void *dup)
{
    struct plain p = {.kernel = kernel,
                      .what = PLAIN_SWIGLU_GRAD,
                      .count = count,
                      .in = {gate, up, dy},
                      .out = {dgate, dup},
                      .from = dtype,
                      .to = dtype};
    plain_share(&p);
}

void tess__cpu_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
                   const void *b, void *y)
{
    plain_alike(kernel, PLAIN_ADD, dtype, count, a, b, y);
}

void tess__cpu_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, float rate,
                       const uint64_t key[2], uint64_t first, const void *x, void *y)
{
    struct plain p = {.kernel = kernel,
                      .what = PLAIN_DROPOUT,
                      .count = count,
                      .in = {x},
                      .out = {y},
                      .from = dtype,
                      .to = dtype,
                      .number = rate,
                      .key = key,
                      .first = first};
    plain_share(&p);
}

void tess__cpu_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
                    enum tess_dtype to, void *y)
{
    struct plain p = {.kernel = kernel,
                      .what = PLAIN_CAST,
                      .count = count,
                      .in = {x},
                      .out = {y},
                      .from = from,
                      .to = to};
    plain_share(&p);
}

void tess__cpu_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                               enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y)
{
    struct plain p = {.kernel = kernel,
                      .what = PLAIN_CAST_STOCHASTIC,
                      .count = count,
                      .in = {x},
                      .out = {y},
                      .from = TESS_F32,
                      .to = to,
                      .key = key,
                      .first = first};
    plain_share(&p);
}

void tess__cpu_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                          float *y)
{
    struct plain p = {.kernel = kernel,
                      .what = PLAIN_ACCUMULATE,
                      .count = count,
                      .in = {x},
                      .out = {y},
                      .from = TESS_F32,
                      .to = TESS_F32,
                      .number = scale};
    plain_share(&p);
}

void tess__cpu_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory)
{
    struct plain p = {
        .kernel = kernel, .what = PLAIN_FILL, .count = bytes, .out = {memory}, .value = value};
    plain_share(&p);
}

void tess__cpu_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target)
{
    struct plain p = {
        .kernel = kernel, .what = PLAIN_COPY, .count = bytes, .in = {source}, .out = {target}};
    plain_share(&p);
}

/* ---- sums and updates ------------------------------------------------------------------------ */

/* The exact sum is the same however it is cut: a piece for each thread. */
struct plain_squares {
    struct tess_kernel *kernel;
    int64_t count, piece;
    float scale;
    const float *x;
    struct tess_sum sum[PLAIN_THREADS];
};

static void plain_squares_piece(void *context, int64_t part, void *work)
{
    (void)work;
    struct plain_squares *s = context;
    int64_t first = part * s->piece, left = s->count - first;
    tess__cpu_loops(s->kernel)->ops.square_sum(s->kernel, left < s->piece ? left : s->piece,
                                               s->scale, s->x + first, &s->sum[part]);
}

void tess__cpu_square_sum(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                          struct tess_sum *sum)
{
    int64_t threads = kernel->threads < PLAIN_THREADS ? kernel->threads : PLAIN_THREADS;
    if (threads == 1 || count < 2 * PLAIN_PIECE) {
        tess__cpu_loops(kernel)->ops.square_sum(kernel, count, scale, x, sum);
        return;
    }
    struct plain_squares s = {.kernel = kernel, .count = count, .scale = scale, .x = x};
    int64_t blocks = (count + TESS_SUM_BLOCK - 1) / TESS_SUM_BLOCK;
    s.piece = (blocks + threads - 1) / threads * TESS_SUM_BLOCK;
    int64_t parts = (count + s.piece - 1) / s.piece;
    tess__cpu_share(kernel, parts, plain_squares_piece, &s, NULL);
    for (int64_t part = 0; part < parts; part++)
        tess_sum_merge(sum, &s.sum[part]);
}

struct plain_update {
    struct tess_kernel *kernel;
    const struct tess_update *update;
    bool lamb_direction;
};

static float *plain_from(float *array, int64_t first)
{
    return array != NULL ? array + first : NULL;
}

static void plain_update_piece(void *context, int64_t part, void *work)
{
    (void)work;
    const struct plain_update *call = context;
    const struct tess_kernel_ops *ops = &tess__cpu_loops(call->kernel)->ops;
    struct tess_update u = *call->update;
    int64_t first = part * PLAIN_PIECE, left = u.count - first;
    u.count = left < PLAIN_PIECE ? left : PLAIN_PIECE;
    u.w = plain_from(u.w, first);
    u.g = u.g != NULL ? u.g + first : NULL;
    u.m = plain_from(u.m, first);
    u.v = plain_from(u.v, first);
    u.direction = plain_from(u.direction, first);
    if (u.param_low != NULL)
        u.param_low = (char *)u.param_low + (size_t)first * tess_dtype_bytes(u.low);
    if (call->lamb_direction)
        ops->lamb_direction(call->kernel, &u);
    else
        ops->update(call->kernel, &u);
}

static void plain_update_share(struct tess_kernel *kernel, const struct tess_update *update,
                               bool lamb_direction)
{
    struct tess_update resolved;
    struct plain_update call = {
        .kernel = kernel, .update = &resolved, .lamb_direction = lamb_direction};
    if (tess__rule_resolve(update, &resolved))
        tess__cpu_share(kernel, (update->count + PLAIN_PIECE - 1) / PLAIN_PIECE, plain_update_piece,
                        &call, NULL);
}

void tess__cpu_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    plain_update_share(kernel, update, false);
}

void tess__cpu_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update)
{
    plain_update_share(kernel, update, true);
}
