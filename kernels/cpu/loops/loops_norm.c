/*
 * Own loops of batch normalisation over chunks of a leaf's pixels, which batch_norm.c shares among
 * threads: sums over a chunk, and then what they are for, in one pass each.
 *
 * A sum over a chunk is that of NORM_TALL sums, of every NORM_TALL-th pixel: one alone would wait
 * for each of its additions. A channel's bits depend neither on its neighbours nor on the level.
 */
#include "cpu/loops/loops.h"

#include "cpu/loops/lanes.h"

#define NORM_TALL 4
#define NORM_WIDE 2 /* vectors of channels at a time */

/* Call run(dtype, wide, lanes of the last vector, channel, ...) for all `channels`. */
#define NORM_BLOCKS(dtype, channels, run, ...)                                                     \
    do {                                                                                           \
        int64_t norm_at = 0;                                                                       \
        for (; norm_at + NORM_WIDE * CPU_LANES <= (channels); norm_at += NORM_WIDE * CPU_LANES)    \
            run(dtype, NORM_WIDE, CPU_LANES, norm_at, __VA_ARGS__);                                \
        for (; norm_at + CPU_LANES <= (channels); norm_at += CPU_LANES)                            \
            run(dtype, 1, CPU_LANES, norm_at, __VA_ARGS__);                                        \
        if (norm_at < (channels))                                                                  \
            run(dtype, 1, (channels)-norm_at, norm_at, __VA_ARGS__);                               \
    } while (0)

#define NORM_BLOCKS_BY_DTYPE(dtype, channels, run, ...)                                            \
    do {                                                                                           \
        if ((dtype) == TESS_F32)                                                                   \
            NORM_BLOCKS(TESS_F32, channels, run, __VA_ARGS__);                                     \
        else if ((dtype) == TESS_BF16)                                                             \
            NORM_BLOCKS(TESS_BF16, channels, run, __VA_ARGS__);                                    \
        else                                                                                       \
            NORM_BLOCKS(TESS_F16, channels, run, __VA_ARGS__);                                     \
    } while (0)

/* One chunk: `rows` pixels of `channels` elements from element `first` on. */
struct norm_chunk {
    int64_t first, rows, channels;
    const float *coef; /* of its leaf */
};

static struct norm_chunk norm_chunk(const struct cpu_batch_norm *n, int64_t number)
{
    const int64_t in_leaf = (n->pixels + CPU_NORM_CHUNK - 1) / CPU_NORM_CHUNK;
    const int64_t leaf = number / in_leaf, row = number % in_leaf * CPU_NORM_CHUNK;
    const int64_t channels = n->desc->in;
    return (struct norm_chunk){.first = (leaf * n->pixels + row) * channels,
                               .rows = tess__cpu_min(n->pixels - row, CPU_NORM_CHUNK),
                               .channels = channels,
                               .coef = n->coef + leaf * CPU_NORM_COEFS * channels};
}

/* Coefficient `which` of a block's vector v. */
CPU_INLINE void norm_coef(const struct norm_chunk *c, int which, int64_t at, int v, int64_t lanes,
                          lanes_float *coef)
{
    lanes_read(TESS_F32, c->coef + which * c->channels, at + v * CPU_LANES, lanes, coef);
}

/* Coefficients of forward for a block's vectors. */
struct norm_forward {
    lanes_float mean[NORM_WIDE], scale[NORM_WIDE], shift[NORM_WIDE];
};

CPU_INLINE void norm_forward(const struct norm_chunk *c, int wide, int64_t lanes, int64_t at,
                             struct norm_forward *f)
{
    CPU_UNROLL
    for (int v = 0; v < wide; v++) {
        norm_coef(c, CPU_NORM_MEAN, at, v, lanes, &f->mean[v]);
        norm_coef(c, CPU_NORM_SCALE, at, v, lanes, &f->scale[v]);
        norm_coef(c, CPU_NORM_SHIFT, at, v, lanes, &f->shift[v]);
    }
}

/* ---- forward -------------------------------------------------------------------------------- */

/* sum[v] += the vectors of pixel `row`, or the squares of what they are away from mid. */
CPU_INLINE void norm_add_row(enum tess_dtype dtype, int wide, int64_t lanes, const void *x,
                             int64_t from, bool squares, const lanes_float *mid, lanes_float *sum)
{
    CPU_UNROLL
    for (int v = 0; v < wide; v++) {
        lanes_float value;
        lanes_read(dtype, x, from + v * CPU_LANES, lanes, &value);
        if (squares)
            sum[v] += (value - mid[v]) * (value - mid[v]);
        else
            sum[v] += value;
    }
}

/* total[wide] over a chunk. */
CPU_INLINE void norm_sum(enum tess_dtype dtype, int wide, int64_t lanes, const void *x, int64_t at,
                         const struct norm_chunk *c, bool squares, const lanes_float *mid,
                         lanes_float *total)
{
    lanes_float sum[NORM_TALL][NORM_WIDE] = {{{0}}};
    int64_t from = c->first + at, row = 0;
    for (; row + NORM_TALL <= c->rows; row += NORM_TALL) {
        CPU_UNROLL
        for (int r = 0; r < NORM_TALL; r++, from += c->channels)
            norm_add_row(dtype, wide, lanes, x, from, squares, mid, sum[r]);
    }
    CPU_UNROLL
    for (int r = 0; r < NORM_TALL - 1; r++, from += c->channels)
        if (row + r < c->rows)
            norm_add_row(dtype, wide, lanes, x, from, squares, mid, sum[r]);
    CPU_UNROLL
    for (int v = 0; v < wide; v++)
        total[v] = (sum[0][v] + sum[1][v]) + (sum[2][v] + sum[3][v]);
}

/* The sum of each channel and of the squares about its mean: the chunk is read once from memory
 * and once from the cache. */
CPU_INLINE void norm_moments(enum tess_dtype dtype, int wide, int64_t lanes, int64_t at,
                             const void *x, const struct norm_chunk *c, float *sums)
{
    lanes_float total[NORM_WIDE], mid[NORM_WIDE] = {{0}};
    norm_sum(dtype, wide, lanes, x, at, c, false, mid, total);
    CPU_UNROLL
    for (int v = 0; v < wide; v++) {
        lanes_write(TESS_F32, sums, at + v * CPU_LANES, lanes, &total[v]);
        mid[v] = total[v] / (float)c->rows;
    }
    norm_sum(dtype, wide, lanes, x, at, c, true, mid, total);
    CPU_UNROLL
    for (int v = 0; v < wide; v++)
        lanes_write(TESS_F32, sums + c->channels, at + v * CPU_LANES, lanes, &total[v]);
}

void CPU_LOOP(batch_norm_moments)(const void *arguments, int64_t first, int64_t count)
{
    const struct cpu_batch_norm *n = arguments;
    for (int64_t number = first; number < first + count; number++) {
        const struct norm_chunk c = norm_chunk(n, number);
        NORM_BLOCKS_BY_DTYPE(n->desc->dtype, c.channels, norm_moments, n->x, &c,
                             n->sums + number * 2 * c.channels);
    }
}

/* y = (x - mean) scale + shift, then the ReLU, which a NaN passes. */
CPU_INLINE void norm_apply(enum tess_dtype dtype, int wide, int64_t lanes, int64_t at,
                           const struct cpu_batch_norm *n, const struct norm_chunk *c)
{
    const void *x = n->x;
    void *y = n->y;
    const int64_t cut = n->desc->relu ? -1 : 0, step = c->channels;
    struct norm_forward f;
    norm_forward(c, wide, lanes, at, &f);
    int64_t from = c->first + at;
    for (int64_t row = 0; row < c->rows; row++, from += step) {
        CPU_UNROLL
        for (int v = 0; v < wide; v++) {
            lanes_float value;
            lanes_read(dtype, x, from + v * CPU_LANES, lanes, &value);
            value = (value - f.mean[v]) * f.scale[v] + f.shift[v];
            const lanes_int low = (value < 0) & (lanes_int)((lanes_int){0} + (int32_t)cut);
            value = (lanes_float)((lanes_int)value & ~low);
            lanes_write(dtype, y, from + v * CPU_LANES, lanes, &value);
        }
    }
}

void CPU_LOOP(batch_norm_apply)(const void *arguments, int64_t first, int64_t count)
{
    const struct cpu_batch_norm *n = arguments;
    for (int64_t number = first; number < first + count; number++) {
        const struct norm_chunk c = norm_chunk(n, number);
        NORM_BLOCKS_BY_DTYPE(n->desc->dtype, c.channels, norm_apply, n, &c);
    }
}

/* ---- backward ------------------------------------------------------------------------------- */

/* x - mean of vector v of a pixel, and the gradient g of its y before the ReLU. */
CPU_INLINE void norm_grad(enum tess_dtype dtype, bool relu, int64_t lanes, int64_t from, int v,
                          const struct cpu_batch_norm *n, const struct norm_forward *f,
                          lanes_float *away, lanes_float *grad)
{
    lanes_read(dtype, n->dy, from + v * CPU_LANES, lanes, grad);
    lanes_read(dtype, n->x, from + v * CPU_LANES, lanes, away);
    *away -= f->mean[v];
    if (relu)
        *grad =
            (lanes_float)((lanes_int)*grad & (lanes_int)(*away * f->scale[v] + f->shift[v] > 0));
}

CPU_INLINE void norm_grad_row(enum tess_dtype dtype, int wide, int64_t lanes, bool relu,
                              const struct cpu_batch_norm *n, int64_t from,
                              const struct norm_forward *f, lanes_float *beta, lanes_float *gamma)
{
    CPU_UNROLL
    for (int v = 0; v < wide; v++) {
        lanes_float grad, away;
        norm_grad(dtype, relu, lanes, from, v, n, f, &away, &grad);
        beta[v] += grad;
        gamma[v] += grad * away;
    }
}

/* The sums of g and of g (x - mean). */
CPU_INLINE void norm_grad_sums(enum tess_dtype dtype, int wide, int64_t lanes, int64_t at,
                               bool relu, const struct cpu_batch_norm *n,
                               const struct norm_chunk *c, float *sums)
{
    lanes_float beta[NORM_TALL][NORM_WIDE] = {{{0}}}, gamma[NORM_TALL][NORM_WIDE] = {{{0}}};
    struct norm_forward f;
    norm_forward(c, wide, lanes, at, &f);
    int64_t from = c->first + at, row = 0;
    for (; row + NORM_TALL <= c->rows; row += NORM_TALL) {
        CPU_UNROLL
        for (int r = 0; r < NORM_TALL; r++, from += c->channels)
            norm_grad_row(dtype, wide, lanes, relu, n, from, &f, beta[r], gamma[r]);
    }
    CPU_UNROLL
    for (int r = 0; r < NORM_TALL - 1; r++, from += c->channels)
        if (row + r < c->rows)
            norm_grad_row(dtype, wide, lanes, relu, n, from, &f, beta[r], gamma[r]);
    CPU_UNROLL
    for (int v = 0; v < wide; v++) {
        beta[0][v] = (beta[0][v] + beta[1][v]) + (beta[2][v] + beta[3][v]);
        gamma[0][v] = (gamma[0][v] + gamma[1][v]) + (gamma[2][v] + gamma[3][v]);
        lanes_write(TESS_F32, sums, at + v * CPU_LANES, lanes, &beta[0][v]);
        lanes_write(TESS_F32, sums + c->channels, at + v * CPU_LANES, lanes, &gamma[0][v]);
    }
}

void CPU_LOOP(batch_norm_grad_sums)(const void *arguments, int64_t first, int64_t count)
{
    const struct cpu_batch_norm *n = arguments;
    for (int64_t number = first; number < first + count; number++) {
        const struct norm_chunk c = norm_chunk(n, number);
        float *sums = n->sums + number * 2 * c.channels;
        if (n->desc->relu)
            NORM_BLOCKS_BY_DTYPE(n->desc->dtype, c.channels, norm_grad_sums, true, n, &c, sums);
        else
            NORM_BLOCKS_BY_DTYPE(n->desc->dtype, c.channels, norm_grad_sums, false, n, &c, sums);
    }
}

/* dx = scale ((g - middle) - (x - mean) slope). */
CPU_INLINE void norm_grad_apply(enum tess_dtype dtype, int wide, int64_t lanes, int64_t at,
                                bool relu, const struct cpu_batch_norm *n,
                                const struct norm_chunk *c)
{
    struct norm_forward f;
    lanes_float middle[NORM_WIDE], slope[NORM_WIDE];
    norm_forward(c, wide, lanes, at, &f);
    CPU_UNROLL
    for (int v = 0; v < wide; v++) {
        norm_coef(c, CPU_NORM_MIDDLE, at, v, lanes, &middle[v]);
        norm_coef(c, CPU_NORM_SLOPE, at, v, lanes, &slope[v]);
    }
    int64_t from = c->first + at;
    for (int64_t row = 0; row < c->rows; row++, from += c->channels) {
        CPU_UNROLL
        for (int v = 0; v < wide; v++) {
            lanes_float grad, away;
            norm_grad(dtype, relu, lanes, from, v, n, &f, &away, &grad);
            grad = f.scale[v] * ((grad - middle[v]) - away * slope[v]);
            lanes_write(dtype, n->dx, from + v * CPU_LANES, lanes, &grad);
        }
    }
}

void CPU_LOOP(batch_norm_grad_apply)(const void *arguments, int64_t first, int64_t count)
{
    const struct cpu_batch_norm *n = arguments;
    for (int64_t number = first; number < first + count; number++) {
        const struct norm_chunk c = norm_chunk(n, number);
        if (n->desc->relu)
            NORM_BLOCKS_BY_DTYPE(n->desc->dtype, c.channels, norm_grad_apply, true, n, &c);
        else
            NORM_BLOCKS_BY_DTYPE(n->desc->dtype, c.channels, norm_grad_apply, false, n, &c);
    }
}
