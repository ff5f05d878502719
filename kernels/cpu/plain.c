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

/* One call. */
struct plain {
    cpu_plain_loop *run;
    struct cpu_plain whole;
};

static void plain_piece(void *context, int64_t part, void *work)
{
    (void)work;
    const struct plain *call = context;
    int64_t first = part * PLAIN_PIECE;
    struct cpu_plain piece =
        cpu_plain_piece(&call->whole, first, tess__cpu_min(call->whole.count - first, PLAIN_PIECE));
    call->run(&piece);
}

static void plain_share(const struct tess_kernel *kernel, cpu_plain_loop *run, struct cpu_plain p)
{
    struct plain call = {.run = run, .whole = p};
    if (kernel->threads == 1 || p.count < 2 * PLAIN_PIECE)
        run(&p);
    else
        tess__cpu_share(kernel, (p.count + PLAIN_PIECE - 1) / PLAIN_PIECE, plain_piece, &call,
                        NULL);
}

/* Operations whose arrays are all of one type. */
static void plain_alike(struct tess_kernel *kernel, cpu_plain_loop *run, enum tess_dtype dtype,
                        int64_t count, const void *a, const void *b, void *y)
{
    plain_share(
        kernel, run,
        (struct cpu_plain){.count = count, .in = {a, b}, .out = {y}, .from = dtype, .to = dtype});
}

void tess__cpu_relu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y)
{
    plain_alike(kernel, tess__cpu_loops(kernel)->relu_forward, dtype, count, x, NULL, y);
}

void tess__cpu_relu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *y, const void *dy, void *dx)
{
    plain_alike(kernel, tess__cpu_loops(kernel)->relu_backward, dtype, count, y, dy, dx);
}

void tess__cpu_gelu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                            const void *x, void *y)
{
    plain_alike(kernel, tess__cpu_loops(kernel)->gelu_forward, dtype, count, x, NULL, y);
}

void tess__cpu_gelu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                             const void *x, const void *dy, void *dx)
{
    plain_alike(kernel, tess__cpu_loops(kernel)->gelu_backward, dtype, count, x, dy, dx);
}

void tess__cpu_gelu_erf_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                const void *x, void *y)
{
    plain_alike(kernel, tess__cpu_loops(kernel)->gelu_erf_forward, dtype, count, x, NULL, y);
}

void tess__cpu_gelu_erf_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                                 const void *x, const void *dy, void *dx)
{
    plain_alike(kernel, tess__cpu_loops(kernel)->gelu_erf_backward, dtype, count, x, dy, dx);
}

/* Gate, up and their gradients have gaps between rows, y and dy have none. Rows without gaps are
 * one. */
static void plain_gated_forward(struct tess_kernel *kernel, cpu_plain_loop *run,
                                enum tess_dtype dtype, int64_t rows, int64_t width, int64_t stride,
                                const void *gate, const void *up, void *y)
{
    const int64_t word = (int64_t)tess_dtype_bytes(dtype), whole = stride == width ? rows : 1;
    for (int64_t r = 0; r < rows; r += whole)
        plain_alike(kernel, run, dtype, width * whole, (const char *)gate + r * stride * word,
                    (const char *)up + r * stride * word, (char *)y + r * width * word);
}

static void plain_gated_backward(struct tess_kernel *kernel, cpu_plain_loop *run,
                                 enum tess_dtype dtype, int64_t rows, int64_t width, int64_t stride,
                                 const void *gate, const void *up, const void *dy, void *dgate,
                                 void *dup)
{
    const int64_t word = (int64_t)tess_dtype_bytes(dtype), whole = stride == width ? rows : 1;
    for (int64_t r = 0; r < rows; r += whole) {
        const int64_t at = r * stride * word;
        plain_share(kernel, run,
                    (struct cpu_plain){.count = width * whole,
                                       .in = {(const char *)gate + at, (const char *)up + at,
                                              (const char *)dy + r * width * word},
                                       .out = {(char *)dgate + at, (char *)dup + at},
                                       .from = dtype,
                                       .to = dtype});
    }
}

void tess__cpu_swiglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                              int64_t width, int64_t stride, const void *gate, const void *up,
                              void *y)
{
    plain_gated_forward(kernel, tess__cpu_loops(kernel)->swiglu_forward, dtype, rows, width, stride,
                        gate, up, y);
}

void tess__cpu_swiglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                               int64_t width, int64_t stride, const void *gate, const void *up,
                               const void *dy, void *dgate, void *dup)
{
    plain_gated_backward(kernel, tess__cpu_loops(kernel)->swiglu_backward, dtype, rows, width,
                         stride, gate, up, dy, dgate, dup);
}

void tess__cpu_geglu_forward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                             int64_t width, int64_t stride, bool erf, const void *gate,
                             const void *up, void *y)
{
    const struct cpu_loops *loops = tess__cpu_loops(kernel);
    plain_gated_forward(kernel, erf ? loops->geglu_erf_forward : loops->geglu_forward, dtype, rows,
                        width, stride, gate, up, y);
}

void tess__cpu_geglu_backward(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                              int64_t width, int64_t stride, bool erf, const void *gate,
                              const void *up, const void *dy, void *dgate, void *dup)
{
    const struct cpu_loops *loops = tess__cpu_loops(kernel);
    plain_gated_backward(kernel, erf ? loops->geglu_erf_backward : loops->geglu_backward, dtype,
                         rows, width, stride, gate, up, dy, dgate, dup);
}

void tess__cpu_add(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count, const void *a,
                   const void *b, void *y)
{
    plain_alike(kernel, tess__cpu_loops(kernel)->add, dtype, count, a, b, y);
}

/* Rows with gaps between them in the whole. */
struct plain_dropout {
    cpu_rows_loop *run;
    struct cpu_dropout arguments;
    int64_t rows, piece;
};

static void plain_dropout_piece(void *context, int64_t part, void *work)
{
    (void)work;
    const struct plain_dropout *call = context;
    const int64_t first = part * call->piece;
    call->run(&call->arguments, first, tess__cpu_min(call->rows - first, call->piece));
}

static void plain_dropout_rows(const struct tess_kernel *kernel, const struct cpu_dropout *dropout,
                               int64_t rows)
{
    const int64_t piece = (PLAIN_PIECE + dropout->width - 1) / dropout->width;
    struct plain_dropout call = {.run = tess__cpu_loops(kernel)->dropout_rows,
                                 .arguments = *dropout,
                                 .rows = rows,
                                 .piece = piece};
    tess__cpu_share(kernel, (rows + piece - 1) / piece, plain_dropout_piece, &call, NULL);
}

void tess__cpu_dropout(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t rows,
                       int64_t width, int64_t stride, float rate, const uint64_t key[2],
                       uint64_t first, const void *x, void *y)
{
    if (rows > 1) {
        plain_dropout_rows(kernel,
                           &(struct cpu_dropout){.dtype = dtype,
                                                 .width = width,
                                                 .stride = stride,
                                                 .rate = rate,
                                                 .key = key,
                                                 .first = first,
                                                 .x = x,
                                                 .y = y},
                           rows);
        return;
    }
    plain_share(kernel, tess__cpu_loops(kernel)->dropout,
                (struct cpu_plain){.count = width,
                                   .in = {x},
                                   .out = {y},
                                   .from = dtype,
                                   .to = dtype,
                                   .number = rate,
                                   .key = key,
                                   .first = first});
}

void tess__cpu_cast(struct tess_kernel *kernel, int64_t count, enum tess_dtype from, const void *x,
                    enum tess_dtype to, void *y)
{
    plain_share(kernel, tess__cpu_loops(kernel)->cast,
                (struct cpu_plain){.count = count, .in = {x}, .out = {y}, .from = from, .to = to});
}

void tess__cpu_cast_stochastic(struct tess_kernel *kernel, int64_t count, const float *x,
                               enum tess_dtype to, const uint64_t key[2], uint64_t first, void *y)
{
    plain_share(kernel, tess__cpu_loops(kernel)->cast_stochastic,
                (struct cpu_plain){.count = count,
                                   .in = {x},
                                   .out = {y},
                                   .from = TESS_F32,
                                   .to = to,
                                   .key = key,
                                   .first = first});
}

struct plain_normal {
    cpu_normal_loop *run;
    const uint32_t *key;
    uint64_t first;
    int64_t count;
    float mean, deviation, *y;
};

static void plain_normal_piece(void *context, int64_t part, void *work)
{
    (void)work;
    const struct plain_normal *call = context;
    const int64_t first = part * PLAIN_PIECE;
    call->run(call->key, call->first + (uint64_t)first,
              tess__cpu_min(call->count - first, PLAIN_PIECE), call->mean, call->deviation,
              call->y + first);
}

void tess__cpu_normal(struct tess_kernel *kernel, const uint32_t key[2], uint64_t first,
                      int64_t count, float mean, float deviation, float *y)
{
    struct plain_normal call = {.run = tess__cpu_loops(kernel)->normal,
                                .key = key,
                                .first = first,
                                .count = count,
                                .mean = mean,
                                .deviation = deviation,
                                .y = y};
    tess__cpu_share(kernel, (count + PLAIN_PIECE - 1) / PLAIN_PIECE, plain_normal_piece, &call,
                    NULL);
}

void tess__cpu_accumulate(struct tess_kernel *kernel, int64_t count, float scale, const float *x,
                          float *y)
{
    plain_share(kernel, tess__cpu_loops(kernel)->accumulate,
                (struct cpu_plain){.count = count,
                                   .in = {x},
                                   .out = {y},
                                   .from = TESS_F32,
                                   .to = TESS_F32,
                                   .number = scale});
}

static void plain_fill(const struct cpu_plain *p)
{
    memset(p->out[0], (int)p->number, (size_t)p->count);
}

void tess__cpu_fill(struct tess_kernel *kernel, int64_t bytes, int value, void *memory)
{
    plain_share(
        kernel, plain_fill,
        (struct cpu_plain){.count = bytes, .out = {memory}, .to = TESS_U8, .number = (float)value});
}

static void plain_copy(const struct cpu_plain *p)
{
    memcpy(p->out[0], p->in[0], (size_t)p->count);
}

void tess__cpu_copy(struct tess_kernel *kernel, int64_t bytes, const void *source, void *target)
{
    plain_alike(kernel, plain_copy, TESS_U8, bytes, source, NULL, target);
}

/* ---- sums and updates ------------------------------------------------------------------------ */

/* Of an exact sum, which is the same however it is cut: a piece for each thread, in whole blocks.
 */
static int64_t plain_thread_piece(const struct tess_kernel *kernel, int64_t count)
{
    const int64_t threads = tess__cpu_min(kernel->threads, PLAIN_THREADS);
    const int64_t blocks = (count + TESS_SUM_BLOCK - 1) / TESS_SUM_BLOCK;
    return count < 2 * PLAIN_PIECE ? count : (blocks + threads - 1) / threads * TESS_SUM_BLOCK;
}

struct plain_squares {
    struct tess_kernel *kernel;
    int64_t count, piece;
    int32_t block;
    float scale;
    const float *x;
    struct tess_sum sum[PLAIN_THREADS];
};

static void plain_squares_piece(void *context, int64_t part, void *work)
{
    (void)work;
    struct plain_squares *s = context;
    int64_t first = part * s->piece, left = s->count - first;
    tess__cpu_loops(s->kernel)->square_sum(s->kernel, tess__cpu_min(left, s->piece), s->block,
                                           s->scale, s->x + first, &s->sum[part]);
}

void tess__cpu_square_sum(struct tess_kernel *kernel, int64_t count, int32_t block, float scale,
                          const float *x, struct tess_sum *sum)
{
    const int64_t piece = plain_thread_piece(kernel, count);
    if (piece >= count) {
        tess__cpu_loops(kernel)->square_sum(kernel, count, block, scale, x, sum);
        return;
    }
    struct plain_squares s = {
        .kernel = kernel, .count = count, .piece = piece, .block = block, .scale = scale, .x = x};
    int64_t parts = (count + s.piece - 1) / s.piece;
    tess__cpu_share(kernel, parts, plain_squares_piece, &s, NULL);
    for (int64_t part = 0; part < parts; part++)
        tess_sum_merge(sum, &s.sum[part]);
}

/* Of integers below 2^53, whose sum is exact. */
struct plain_zeros {
    struct tess_kernel *kernel;
    enum tess_dtype dtype;
    int64_t count, piece;
    const char *x;
    double sum[PLAIN_THREADS];
};

static void plain_zeros_piece(void *context, int64_t part, void *work)
{
    (void)work;
    struct plain_zeros *z = context;
    const int64_t first = part * z->piece;
    tess__cpu_loops(z->kernel)->count_zeros(
        z->kernel, z->dtype, tess__cpu_min(z->count - first, z->piece),
        z->x + first * (int64_t)tess_dtype_bytes(z->dtype), &z->sum[part]);
}

void tess__cpu_count_zeros(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t count,
                           const void *x, double *sum)
{
    struct plain_zeros z = {.kernel = kernel,
                            .dtype = dtype,
                            .count = count,
                            .piece = plain_thread_piece(kernel, count),
                            .x = x};
    const int64_t parts = (count + z.piece - 1) / z.piece;
    tess__cpu_share(kernel, parts, plain_zeros_piece, &z, NULL);
    for (int64_t part = 0; part < parts; part++)
        *sum += z.sum[part];
}

static void plain_update_piece(void *context, int64_t part, void *work)
{
    (void)work;
    const struct cpu_update *call = context;
    const int64_t first = part * PLAIN_PIECE, left = call->update.count - first;
    const float *g = call->update.g;
    tess__cpu_update_piece(call, first, tess__cpu_min(left, PLAIN_PIECE),
                           g != NULL ? g + first : NULL);
}

static void plain_update(struct tess_kernel *kernel, cpu_update_loop *run,
                         const struct tess_update *update)
{
    struct cpu_update call = {.run = run};
    if (tess__rule_resolve(update, &call.update))
        tess__cpu_share(kernel, (update->count + PLAIN_PIECE - 1) / PLAIN_PIECE, plain_update_piece,
                        &call, NULL);
}

void tess__cpu_update(struct tess_kernel *kernel, const struct tess_update *update)
{
    plain_update(kernel, tess__cpu_loops(kernel)->update, update);
}

void tess__cpu_lamb_direction(struct tess_kernel *kernel, const struct tess_update *update)
{
    plain_update(kernel, tess__cpu_loops(kernel)->lamb_direction, update);
}
