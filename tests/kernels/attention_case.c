/*
 * One case of causal attention against the definition in double; see attention_case.h.
 *
 * Bounds, to first order, u = 2^-24, U the unit of the dtype, n terms in a sum:
 *
 *   score     a sum of D products, scaled: e = 2 (D + 2) u sum |q k| / sqrt(D) + 2 u |s|
 *   p         relatively: its score's e and that of the greatest; the rounding of s - max; an exp
 *             good to 16 u above and below the line; a sum of n terms below it; and for a backend
 *             that works in blocks, one factor exp(max - new max) for every 16 positions
 *   y         sums of p v; p may have been rounded to the dtype, to be multiplied there: U more;
 *             and a p below 2^-126 may have become 0
 *   backward  p from lse, which is given, so only the score's own e; ds = p (dp - D) inherits the
 *             error of both, and may be rounded to the dtype like p
 */
#include "attention_case.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device *device;

#define UNIT  0x1p-24
#define FLUSH 0x1p-126

/* q, k or v, or a gradient: positions `stride` elements apart. `host` and `dev` are at the first
 * element, which may lie inside a larger array. */
struct part {
    double *host;
    char *dev;
    int64_t stride, width;
};

struct attention_case {
    struct tess_op_desc d;
    struct attention_way way;
    struct part q, k, v;
    double *memory[3]; /* what host points into */
    double *y, *dy, *y_bound, *lse, *lse_bound;
};

static int64_t attention_positions(const struct attention_case *c)
{
    return c->d.rows * c->d.length;
}

static size_t attention_word(const struct attention_case *c)
{
    return tess_dtype_bytes(c->d.dtype);
}

static void attention_draw_array(struct attention_case *c, struct draw *draw, int which,
                                 int64_t stride)
{
    int64_t count = attention_positions(c) * stride;
    c->memory[which] = draw_reals(draw, c->d.dtype, count);
    if (which == 0) {
        for (int64_t i = 0; i < count; i++)
            if (i % stride < c->q.width)
                c->memory[0][i] = round_to(c->d.dtype, c->memory[0][i] * c->way.spread);
    }
}

static void attention_draw(struct attention_case *c, struct draw *draw)
{
    struct tess_op_desc *d = &c->d;
    struct part *const parts[] = {&c->q, &c->k, &c->v};
    c->q.width = d->heads * d->in;
    c->k.width = c->v.width = d->kv_heads * d->in;
    d->q_stride = c->q.width + (c->way.packed ? 2 * c->k.width : c->way.q_gap);
    d->kv_stride = c->way.packed ? d->q_stride : c->k.width + c->way.kv_gap;
    for (int i = 0; i < 3; i++) {
        struct part *part = parts[i];
        part->stride = i == 0 ? d->q_stride : d->kv_stride;
        if (i > 0 && c->way.packed) {
            part->host = parts[i - 1]->host + parts[i - 1]->width;
            part->dev = parts[i - 1]->dev + (size_t)parts[i - 1]->width * attention_word(c);
            continue;
        }
        attention_draw_array(c, draw, i, part->stride);
        part->host = c->memory[i];
        part->dev =
            device_put_real(device, d->dtype, c->memory[i], attention_positions(c) * part->stride);
    }
    int64_t count = attention_positions(c) * c->q.width;
    c->dy = draw_reals(draw, d->dtype, count);
    c->y = reals(count);
    c->y_bound = reals(count);
    c->lse = reals(attention_positions(c) * d->heads);
    c->lse_bound = reals(attention_positions(c) * d->heads);
}

static void attention_free(struct attention_case *c)
{
    double *const arrays[] = {c->memory[0], c->memory[1], c->memory[2], c->y,
                              c->dy,        c->y_bound,   c->lse,       c->lse_bound};
    for (int i = 0; i < 8; i++)
        free(arrays[i]);
}

/* Where head h of position t of sequence b begins. */
static int64_t part_at(const struct attention_case *c, const struct part *part, int64_t b,
                       int64_t t, int64_t h)
{
    return (b * c->d.length + t) * part->stride + h * c->d.in;
}

static int64_t y_at(const struct attention_case *c, int64_t b, int64_t t, int64_t h)
{
    return ((b * c->d.length + t) * c->d.heads + h) * c->d.in;
}

static double dot(const double *a, const double *b, int64_t n, double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
        *size += fabs(a[i] * b[i]);
    }
    return sum;
}

/* s[i, j] and the bound on its error. */
static double score(const struct attention_case *c, int64_t b, int64_t h, int64_t i, int64_t j,
                    double *error)
{
    const struct tess_op_desc *d = &c->d;
    double size, root = sqrt((double)d->in);
    double s = dot(c->q.host + part_at(c, &c->q, b, i, h),
                   c->k.host + part_at(c, &c->k, b, j, h / (d->heads / d->kv_heads)), d->in, &size);
    *error = (2 * ((double)d->in + 2) * UNIT * size + 2 * UNIT * fabs(s)) / root;
    return s / root;
}

/* The first position that position i sees. */
static int64_t naive_first(const struct attention_case *c, int64_t i)
{
    return c->d.window > 0 && i >= c->d.window ? i - c->d.window + 1 : 0;
}

static const struct tess_attention_drop drop = {
    .on = true, .key = {11, 0x300000005}, .position = 1234567, .head = 5, .heads = 90};

/* What dropout multiplies p[i, j] with: by the words of Philox as tessera/kernel.h and ref/mask.h
 * have them. */
static double naive_keep(const struct attention_case *c, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct tess_rng_key key = tess_rng_key(drop.key[0], TESS_RNG_DROPOUT, drop.key[1]);
    const uint64_t position = drop.position + (uint64_t)(b * c->d.length + i);
    const uint64_t row = position * (uint64_t)drop.heads + (uint64_t)(drop.head + h) + 1;
    uint32_t word[4];
    if (c->d.dropout <= 0)
        return 1;
    tess_rng_block(key, (uint64_t)(j / 64 * 16 + j % 16), row, word);
    const double uniform = (double)(word[j / 16 % 4] >> 8) * 0x1p-24;
    return uniform < (double)c->d.dropout ? 0 : 1 / (1 - (double)c->d.dropout);
}

/* y and lse of one row of one head, with their bounds. */
static void naive_row(struct attention_case *c, int64_t b, int64_t h, int64_t i)
{
    const struct tess_op_desc *d = &c->d;
    const int64_t first = naive_first(c, i);
    double *s = reals(i + 1), n = (double)(i + 1 - first), max = -INFINITY, min = INFINITY,
           error = 0;
    double sum = 0, unit = unit_of(d->dtype), tiny = tiny_of(d->dtype);
    for (int64_t j = first; j <= i; j++) {
        double e;
        s[j] = score(c, b, h, i, j, &e);
        max = fmax(max, s[j]);
        min = fmin(min, s[j]);
        error = fmax(error, e);
    }
    for (int64_t j = first; j <= i; j++)
        sum += exp(s[j] - max);
    double relative = 2 * error + 4 * UNIT * (max - min) + (4 * n + 64) * UNIT;
    int64_t at = (b * d->heads + h) * d->length + i, y = y_at(c, b, i, h);
    c->lse[at] = max + log(sum);
    c->lse_bound[at] = error + relative + 4 * UNIT * (fabs(c->lse[at]) + fabs(max));
    for (int64_t x = 0; x < d->in; x++) {
        double value = 0, size = 0, v_size = 0;
        for (int64_t j = first; j <= i; j++) {
            double v = c->v.host[part_at(c, &c->v, b, j, h / (d->heads / d->kv_heads)) + x];
            const double p = exp(s[j] - max) / sum * naive_keep(c, b, h, i, j);
            value += p * v;
            size += p * fabs(v);
            v_size += fabs(v);
        }
        c->y[y + x] = value;
        c->y_bound[y + x] =
            bound_of(d->dtype, n, size, value) + (relative + unit) * size + (tiny + FLUSH) * v_size;
    }
    free(s);
}

static void naive_forward(struct attention_case *c)
{
    for (int64_t b = 0; b < c->d.rows; b++)
        for (int64_t h = 0; h < c->d.heads; h++)
            for (int64_t i = 0; i < c->d.length; i++)
                naive_row(c, b, h, i);
}

/* Returns y, on the device. */
static char *check_forward(struct attention_case *c, struct tess_op *op)
{
    const struct tess_op_desc *d = &c->d;
    int64_t count = attention_positions(c) * c->q.width, rows = attention_positions(c) * d->heads;
    void *y = device_array(device, (size_t)count * attention_word(c));
    float *lse = device_array(device, (size_t)rows * sizeof(float));
    assert_int_equal(tess_attention_forward(op, c->q.dev, c->k.dev, c->v.dev, y, lse), TESS_OK);
    device_check(device, "attention y", d->dtype, y, c->y, c->y_bound, count);
    device_check(device, "attention lse", TESS_F32, lse, c->lse, c->lse_bound, rows);
    return y;
}

/* Decoding gives the bits of forward's y [B, T, heads, D], however many positions are taken at
 * once: one of the even sequences, some of the odd ones. */
static void check_decode(struct attention_case *c, const char *forward)
{
    struct tess_op_desc d = c->d;
    size_t word = attention_word(c), bytes = (size_t)(d.length * c->q.width) * word;
    struct tess_op op;
    d.rows = d.leaf_rows = d.length;
    d.decode = true;
    device_op_open(device, &d, &op);
    for (int64_t b = 0; b < c->d.rows; b++) {
        size_t kv = (size_t)part_at(c, &c->k, b, 0, 0) * word;
        size_t first = (size_t)y_at(c, b, 0, 0) * word;
        char *y = device_array(device, bytes);
        for (int64_t t = 0, count; t < d.length; t += count) {
            count = b % 2 == 0 ? 1 : 1 + (t + 7) % 13;
            count = count < d.length - t ? count : d.length - t;
            assert_int_equal(tess_attention_decode(
                                 &op, t, count,
                                 c->q.dev + (size_t)part_at(c, &c->q, b, t, 0) * word,
                                 c->k.dev + kv, c->v.dev + kv, y + (size_t)y_at(c, 0, t, 0) * word),
                             TESS_OK);
        }
        char *got = device_fetch(device, y, bytes);
        char *expected = device_fetch(device, forward + first, bytes);
        if (c->way.by_heads) /* cuDNN's forward has bits of its own */
            device_check(device, "y decoded", d.dtype, y, c->y + y_at(c, b, 0, 0),
                         c->y_bound + y_at(c, b, 0, 0), d.length * c->q.width);
        else
            check_bytes("y decoded", got, expected, bytes);
        free(got);
        free(expected);
    }
    device_op_close(&op);
}

/* ---- backward ------------------------------------------------------------------------------- */

/* A gradient in double, and beside each number its terms' absolute values and inherited error. */
struct sums {
    double *value, *size, *error;
};

static struct sums sums_of(int64_t count)
{
    return (struct sums){reals(count), reals(count), reals(count)};
}

static void sums_free(struct sums *s)
{
    free(s->value);
    free(s->size);
    free(s->error);
}

/* += factor x, where the factor is off by `error` */
static void sums_add(struct sums *s, int64_t at, double factor, double error, const double *x,
                     int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        s->value[at + i] += factor * x[i];
        s->size[at + i] += fabs(factor * x[i]);
        s->error[at + i] += error * fabs(x[i]);
    }
}

static void naive_pair(const struct attention_case *c, int64_t b, int64_t h, int64_t i, int64_t j,
                       double grad_y, double grad_y_size, struct sums grad[3])
{
    const struct tess_op_desc *d = &c->d;
    int64_t kv = h / (d->heads / d->kv_heads), n = d->in;
    int64_t q_at = part_at(c, &c->q, b, i, h);
    int64_t k_at = part_at(c, &c->k, b, j, kv), v_at = part_at(c, &c->v, b, j, kv);
    const double *dy = c->dy + y_at(c, b, i, h);
    double error, size, root = sqrt((double)n), unit = unit_of(d->dtype), tiny = tiny_of(d->dtype);
    double s = score(c, b, h, i, j, &error), lse = c->lse[(b * d->heads + h) * d->length + i];
    double p = exp(s - lse);
    double p_error =
        p * (error + 4 * UNIT * (fabs(s) + fabs(lse)) + 16 * UNIT + unit) + tiny + FLUSH;
    double keep = naive_keep(c, b, h, i, j);
    double g = dot(dy, c->v.host + v_at, n, &size) * keep - grad_y;
    double g_error = 2 * ((double)n + 2) * UNIT * (size * keep + grad_y_size) + UNIT * fabs(g);
    double ds = p * g / root;
    double ds_error =
        (p_error * (fabs(g) + g_error) + p * g_error) / root + (unit + 4 * UNIT) * fabs(ds) + tiny;
    sums_add(&grad[0], q_at, ds, ds_error, c->k.host + k_at, n);
    sums_add(&grad[1], k_at, ds, ds_error, c->q.host + q_at, n);
    sums_add(&grad[2], v_at, p * keep, (p_error + 2 * UNIT * p) * keep, dy, n);
}

/* Of all heads, from the y and lse that backward is given. */
static void naive_backward(const struct attention_case *c, struct sums grad[3])
{
    const struct tess_op_desc *d = &c->d;
    for (int64_t b = 0; b < d->rows; b++) {
        for (int64_t h = 0; h < d->heads; h++) {
            for (int64_t i = 0; i < d->length; i++) {
                double size,
                    at_y = dot(c->dy + y_at(c, b, i, h), c->y + y_at(c, b, i, h), d->in, &size);
                for (int64_t j = naive_first(c, i); j <= i; j++)
                    naive_pair(c, b, h, i, j, at_y, size, grad);
            }
        }
    }
}

/* What lies between the heads of one position and the next must be as it was: all ones. */
static void check_part(const struct attention_case *c, const char *what, const struct part *part,
                       const char *got_dev, const struct sums *want, double terms)
{
    enum tess_dtype dtype = c->d.dtype;
    const int64_t shared = c->way.by_heads && part != &c->q ? c->d.heads / c->d.kv_heads : 0;
    for (int64_t row = 0; row < attention_positions(c); row++) {
        double *bound = reals(part->width);
        int64_t at = row * part->stride;
        for (int64_t i = 0; i < part->width; i++)
            bound[i] = bound_of(dtype, terms, want->size[at + i], want->value[at + i]) +
                       2 * want->error[at + i] +
                       (shared > 1 ? unit_of(dtype) * want->size[at + i] : 0) +
                       (double)shared * tiny_of(dtype);
        device_check(device, what, dtype, got_dev + (size_t)at * attention_word(c),
                     want->value + at, bound, part->width);
        free(bound);
    }
}

static void check_gaps(const struct attention_case *c, const struct part *part, const char *got)
{
    size_t word = attention_word(c), row = (size_t)part->stride * word;
    unsigned char *host = device_fetch(device, got, (size_t)attention_positions(c) * row);
    for (size_t i = 0; i < (size_t)attention_positions(c) * row && !c->way.packed; i++)
        if (i % row >= (size_t)part->width * word)
            assert_int_equal(host[i], 0xff);
    free(host);
}

static void check_backward(struct attention_case *c, struct tess_op *op)
{
    const struct tess_op_desc *d = &c->d;
    int64_t count = attention_positions(c) * c->q.width, rows = attention_positions(c) * d->heads;
    const struct part *const parts[] = {&c->q, &c->k, &c->v};
    static const char *const name[] = {"attention dq", "attention dk", "attention dv"};
    struct sums grad[3];
    char *grad_dev[3];
    for (int64_t i = 0; i < count; i++)
        c->y[i] = round_to(d->dtype, c->y[i]);
    for (int64_t i = 0; i < rows; i++)
        c->lse[i] = round_to(TESS_F32, c->lse[i]);
    void *y = device_put_real(device, d->dtype, c->y, count);
    void *dy = device_put_real(device, d->dtype, c->dy, count);
    float *lse = device_put_real(device, TESS_F32, c->lse, rows);
    for (int i = 0; i < 3; i++) {
        int64_t elements = attention_positions(c) * parts[i]->stride;
        grad[i] = sums_of(elements);
        grad_dev[i] = i > 0 && c->way.packed
                          ? grad_dev[i - 1] + (size_t)parts[i - 1]->width * attention_word(c)
                          : device_array(device, (size_t)elements * attention_word(c));
    }
    naive_backward(c, grad);
    assert_int_equal(tess_attention_backward(op, c->q.dev, c->k.dev, c->v.dev, y, dy, lse,
                                             grad_dev[0], grad_dev[1], grad_dev[2]),
                     TESS_OK);
    double terms = (double)(d->length * (d->heads / d->kv_heads));
    for (int i = 0; i < 3; i++) {
        check_part(c, name[i], parts[i], grad_dev[i], &grad[i], terms);
        if (!c->way.packed)
            check_gaps(c, parts[i], grad_dev[i]);
        sums_free(&grad[i]);
    }
}

/* Forward and backward of all sequences, then of each one alone: the same bits. */
static void check_alone(struct attention_case *c, struct tess_op *whole)
{
    const struct tess_op_desc *d = &c->d;
    size_t word = attention_word(c), length = (size_t)d->length;
    size_t q_bytes = length * (size_t)d->q_stride * word;
    size_t kv_bytes = length * (size_t)d->kv_stride * word;
    size_t y_bytes = length * (size_t)c->q.width * word;
    size_t lse_bytes = length * (size_t)d->heads * sizeof(float);
    size_t bytes[] = {y_bytes, lse_bytes, q_bytes, kv_bytes, kv_bytes};
    struct tess_op_desc one = *d;
    one.rows = one.leaf_rows = 1;
    struct tess_op op;
    device_op_open(device, &one, &op);
    char *dy = device_put_real(device, d->dtype, c->dy, attention_positions(c) * c->q.width);
    char *out[2][5];
    for (int way = 0; way < 2; way++) {
        for (int i = 0; i < 5; i++)
            out[way][i] = device_array(device, (size_t)d->rows * bytes[i]);
        for (size_t b = 0; b < (size_t)d->rows; b += way ? 1 : (size_t)d->rows) {
            char **o = out[way];
            float *lse = (float *)(void *)(o[1] + b * lse_bytes);
            const char *q = c->q.dev + b * q_bytes, *k = c->k.dev + b * kv_bytes;
            const char *v = c->v.dev + b * kv_bytes;
            struct tess_op *run = way ? &op : whole;
            op.drop = whole->drop;
            op.drop.position += b * length;
            assert_int_equal(tess_attention_forward(run, q, k, v, o[0] + b * y_bytes, lse),
                             TESS_OK);
            assert_int_equal(tess_attention_backward(run, q, k, v, o[0] + b * y_bytes,
                                                     dy + b * y_bytes, lse, o[2] + b * q_bytes,
                                                     o[3] + b * kv_bytes, o[4] + b * kv_bytes),
                             TESS_OK);
        }
    }
    static const char *const name[] = {"y", "lse", "dq", "dk", "dv"};
    for (int i = 0; i < 5; i++) {
        char *a = device_fetch(device, out[0][i], (size_t)d->rows * bytes[i]);
        char *b = device_fetch(device, out[1][i], (size_t)d->rows * bytes[i]);
        check_bytes(name[i], b, a, (size_t)d->rows * bytes[i]);
        free(a);
        free(b);
    }
    device_op_close(&op);
}

/*
 * The positions of all sequences as documents of 1, 21, 41, ... positions, and what is left: the
 * same bits as from a sequence of each one's length, whose arrays begin where the document does.
 */
static void check_documents(struct attention_case *c, struct tess_op *whole)
{
    const struct tess_op_desc *d = &c->d;
    const size_t word = attention_word(c), positions = (size_t)attention_positions(c);
    const size_t q_row = (size_t)d->q_stride * word, kv_row = (size_t)d->kv_stride * word;
    const size_t y_row = (size_t)c->q.width * word, lse_row = (size_t)d->heads * sizeof(float);
    const size_t row[] = {y_row, lse_row, q_row, kv_row, kv_row};
    int32_t *begin = calloc(positions + 2, sizeof(*begin)), count = 0;
    char *dy = device_put_real(device, d->dtype, c->dy, attention_positions(c) * c->q.width);
    char *out[2][5];
    assert_non_null(begin);
    while (begin[count] < (int32_t)positions) {
        const int32_t left = (int32_t)positions - begin[count], step = 1 + count * 20;
        const int32_t length = step < d->length ? step : (int32_t)d->length;
        begin[count + 1] = begin[count] + (length < left ? length : left);
        count++;
    }
    for (int way = 0; way < 2; way++)
        for (int i = 0; i < 5; i++)
            out[way][i] = device_array(device, positions * row[i]);
    char **o = out[0];
    assert_int_equal(tess_attention_forward_documents(whole, begin, count, c->q.dev, c->k.dev,
                                                      c->v.dev, o[0], (float *)(void *)o[1]),
                     TESS_OK);
    assert_int_equal(tess_attention_backward_documents(whole, begin, count, c->q.dev, c->k.dev,
                                                       c->v.dev, o[0], dy, (float *)(void *)o[1],
                                                       o[2], o[3], o[4]),
                     TESS_OK);
    o = out[1];
    for (int32_t i = 0; i < count; i++) {
        const size_t at = (size_t)begin[i];
        struct tess_op_desc one = *d;
        struct tess_op op;
        one.rows = one.leaf_rows = 1;
        one.length = begin[i + 1] - begin[i];
        device_op_open(device, &one, &op);
        op.drop = whole->drop;
        op.drop.position += at;
        const char *q = c->q.dev + at * q_row, *k = c->k.dev + at * kv_row;
        const char *v = c->v.dev + at * kv_row;
        float *lse = (float *)(void *)(o[1] + at * lse_row);
        assert_int_equal(tess_attention_forward(&op, q, k, v, o[0] + at * y_row, lse), TESS_OK);
        assert_int_equal(tess_attention_backward(&op, q, k, v, o[0] + at * y_row, dy + at * y_row,
                                                 lse, o[2] + at * q_row, o[3] + at * kv_row,
                                                 o[4] + at * kv_row),
                         TESS_OK);
        device_op_close(&op);
    }
    static const char *const name[] = {"documents' y", "documents' lse", "documents' dq",
                                       "documents' dk", "documents' dv"};
    for (int i = 0; i < 5; i++) {
        char *got = device_fetch(device, out[0][i], positions * row[i]);
        char *want = device_fetch(device, out[1][i], positions * row[i]);
        check_bytes(name[i], got, want, positions * row[i]);
        free(got);
        free(want);
    }
    free(begin);
}

void attention_run(struct device *under_test, const struct attention_way *way)
{
    struct attention_case c = {.way = *way,
                               .d = {.kind = TESS_OP_ATTENTION,
                                     .dtype = way->dtype,
                                     .rows = way->leaves * way->leaf_rows,
                                     .leaf_rows = way->leaf_rows,
                                     .length = way->length,
                                     .heads = way->heads,
                                     .kv_heads = way->kv_heads,
                                     .in = way->head_size,
                                     .out = way->head_size,
                                     .window = way->window,
                                     .dropout = way->dropout}};
    struct draw draw = {way->seed};
    device = under_test;
    device_reset(device);
    attention_draw(&c, &draw);
    struct tess_op op;
    device_op_open(device, &c.d, &op);
    if (way->dropout > 0)
        op.drop = drop;
    naive_forward(&c);
    const char *forward = check_forward(&c, &op);
    /* cuDNN decodes nothing, and who decodes drops nothing. */
    const bool cudnn = way->by_heads || strcmp(device->kernel->ops->name, "cuDNN") == 0;
    if (strcmp(device->kernel->ops->name, "cuDNN") != 0 && way->dropout <= 0)
        check_decode(&c, forward);
    check_alone(&c, &op);
    if (!cudnn) /* which leaves documents to kernels of other bits */
        check_documents(&c, &op);
    check_backward(&c, &op); /* last: it rounds y and lse */
    device_op_close(&op);
    attention_free(&c);
}
