/*
 * Convolutions on AMX tiles: forward, and the data gradient of those of stride 1, which is a
 * convolution of dy with the window turned round and inputs and outputs changed over.
 *
 *     for every block: some rows of an image's output               the threads share these
 *       x copied, with its padding                                  second-level cache
 *       for every panel of 32 or 16 outputs, whose weights are packed once a call
 *         for every strip of 32 or 64 pixels
 *           for every row of the window
 *             four tiles of sums, and some of the last strip's y = sums + bias, ReLU, rounded once
 *
 * With channels last the words under one row of the window are neighbours, and those of the next
 * output pixel begin `stride` pixels later, so x is read as it lies: rows of a tile overlap. Pixels
 * are numbered through the ends of rows, where some have no output and are not stored. Rows of x
 * lie in `stride` planes, in which those of neighbouring outputs are neighbours.
 *
 * A row of the window ends with a smaller tile where its words are no multiple of CPU_AMX_DEPTH. An
 * odd word more has a weight of zero (an infinite one so reaches one pixel more). A pixel's sums
 * are in order of the window's rows and words, whatever else is computed.
 */
#include "cpu/own/amx_room.h"
#include "cpu/own/turn.h"

#include <math.h>
#include <string.h>

#define CONV_BLOCK  262144 /* elements of x in a block: a quarter of the second-level cache */
#define CONV_WORK   4e6    /* multiplications of a part at least: some ten microseconds */
#define CONV_PIXELS 64     /* of a strip of 16 outputs; of 32 outputs AMX_STRIP */
#define CONV_SLACK  64     /* elements that a tile's last row may read behind what is there */

/* What is computed: the sizes are those of the data gradient's own convolution where `back`. */
struct conv {
    const struct tess_op_desc *desc;
    bool back, relu;
    int64_t in, out, height, width; /* of x */
    int64_t oh, ow, window, stride, padding;
    int64_t line, depth, whole, tail; /* pixels of a copied row; words under a row of the window */
    int64_t rows, plane;              /* output rows of a block; elements of a plane */
    const uint16_t *x, *bias;
    uint16_t *y;
    const uint32_t *w;      /* [out / 16, window, steps] tiles */
    int64_t blocks, images; /* of an image; of a part */
};

static int64_t conv_steps(const struct conv *c)
{
    return c->whole + (c->tail > 0);
}

static struct conv conv_of(const struct tess_op_desc *d, bool back)
{
    struct conv c = {.desc = d,
                     .back = back,
                     .relu = !back && d->relu,
                     .window = d->window,
                     .stride = d->stride,
                     .padding = back ? d->window - 1 - d->padding : d->padding};
    const int64_t oh = tess_op_output_size(d->height, d->window, d->stride, d->padding);
    const int64_t ow = tess_op_output_size(d->width, d->window, d->stride, d->padding);
    c.in = back ? d->out : d->in;
    c.out = back ? d->in : d->out;
    c.height = back ? oh : d->height;
    c.width = back ? ow : d->width;
    c.oh = back ? d->height : oh;
    c.ow = back ? d->width : ow;
    c.line = amx_up(c.width + 2 * c.padding, c.stride);
    c.depth = c.window * c.in;
    c.whole = c.depth / CPU_AMX_DEPTH;
    c.tail = amx_up(c.depth % CPU_AMX_DEPTH, 2);
    c.rows = CONV_BLOCK / (c.line * c.in * c.stride) - c.window;
    c.rows = tess__cpu_min(c.rows < 1 ? 1 : c.rows, c.oh);
    c.blocks = (c.oh + c.rows - 1) / c.rows;
    const int64_t under = c.rows + (c.window - 1) / c.stride + 1; /* rows of a plane */
    c.plane = amx_up((under * c.line + CONV_PIXELS * c.stride) * c.in + c.depth + CONV_SLACK, 32);
    return c;
}

/* ---- packing -------------------------------------------------------------------------------- */

/* Tile `step` of a row of the window of weights [out, window, window, in], 16 outputs from `o` on.
 */
static void conv_pack_forward(const struct conv *c, const uint16_t *w, int64_t o, int64_t kh,
                              int64_t step, uint32_t *tile)
{
    const int64_t left = tess__cpu_min(c->depth - step * CPU_AMX_DEPTH, CPU_AMX_DEPTH);
    const __mmask32 mask = (__mmask32)((1ull << left) - 1);
    __m512i row[CPU_WORDS];
    const uint16_t *at = w + (o * c->window + kh) * c->depth + step * CPU_AMX_DEPTH;
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        row[r] = _mm512_maskz_loadu_epi16(mask, at + r * c->window * c->depth);
    cpu_turn_square(row);
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        _mm512_store_si512(tile + r * CPU_WORDS, row[r]);
}

/* The same of the window turned round, 16 inputs of the layer from `o` on. Pairs are outputs of the
 * layer, of which there is an even number. */
static void conv_pack_back(const struct conv *c, const uint16_t *w, int64_t o, int64_t kh,
                           int64_t step, uint32_t *tile)
{
    const int64_t first = step * CPU_AMX_DEPTH, window = c->window;
    for (int64_t k = first; k < tess__cpu_min(c->depth, first + CPU_AMX_DEPTH); k += 2) {
        const int64_t kw = window - 1 - k / c->in, from = k % c->in;
        const uint16_t *at = w + ((from * window + window - 1 - kh) * window + kw) * c->out + o;
        const __m256i even = _mm256_loadu_si256((const void *)at);
        const __m256i odd = _mm256_loadu_si256((const void *)(at + window * window * c->out));
        _mm512_store_si512(tile + (k - first) / 2 * CPU_WORDS, cpu_pair(even, odd));
    }
}

static void conv_pack_w(const struct conv *c, const uint16_t *w, uint32_t *packed)
{
    for (int64_t o = 0; o < c->out; o += CPU_WORDS)
        for (int64_t kh = 0; kh < c->window; kh++)
            for (int64_t step = 0; step < conv_steps(c); step++, packed += AMX_TILE) {
                if (c->back)
                    conv_pack_back(c, w, o, kh, step, packed);
                else
                    conv_pack_forward(c, w, o, kh, step, packed);
            }
}

/* The rows of an image under `rows` rows of output from `row` on. */
static void conv_copy_x(const struct conv *c, const uint16_t *x, int64_t row, int64_t rows,
                        uint16_t *copy)
{
    const int64_t count = (rows - 1) * c->stride + c->window, inner = c->width * c->in;
    const int64_t border = c->padding * c->in, line = c->line * c->in;
    for (int64_t r = 0; r < count; r++) {
        const int64_t h = row * c->stride + r - c->padding;
        uint16_t *to = copy + r % c->stride * c->plane + r / c->stride * line;
        if (h < 0 || h >= c->height) {
            memset(to, 0, (size_t)line * sizeof(*to));
            continue;
        }
        memset(to, 0, (size_t)border * sizeof(*to));
        memcpy(to + border, x + h * inner, (size_t)inner * sizeof(*to));
        memset(to + border + inner, 0, (size_t)(line - border - inner) * sizeof(*to));
    }
    for (int64_t p = 0; p < c->stride && c->depth % 2 != 0; p++) /* no NaN, for a weight of zero */
        copy[p * c->plane + (count - p + c->stride - 1) / c->stride * line] = 0;
}

/* ---- y -------------------------------------------------------------------------------------- */

/* Pixels of a strip of 32 outputs, not `wide` 16. */
static int64_t conv_pixels(bool wide)
{
    return wide ? AMX_STRIP : CONV_PIXELS;
}

/* Pixels that wait for their sums to be rounded. */
struct conv_late {
    const float *sum; /* tiles [2][2], or [4] */
    uint16_t *y;
    int64_t column, pixel, pixels; /* in a row of `line` pixels; in the strip; of it */
};

CPU_INLINE void conv_finish(const struct conv *c, bool wide, __m512 low_bias, __m512 high_bias,
                            int64_t count, struct conv_late *late)
{
    const int64_t end = tess__cpu_min(late->pixel + count, late->pixels);
    const int64_t line = c->line / c->stride;
    const __m512 least = c->relu ? _mm512_setzero_ps() : _mm512_set1_ps(-INFINITY);
    for (; late->pixel < end; late->pixel++) {
        if (late->column < c->ow) {
            const float *sum = late->sum + late->pixel % CPU_AMX_ROWS * CPU_WORDS +
                               late->pixel / CPU_AMX_ROWS * (wide ? 2 : 1) * AMX_TILE;
            /* A NaN passes. */
            const __m512 low = _mm512_max_ps(least, _mm512_add_ps(_mm512_load_ps(sum), low_bias));
            if (wide) {
                const __m512 high =
                    _mm512_max_ps(least, _mm512_add_ps(_mm512_load_ps(sum + AMX_TILE), high_bias));
                _mm512_storeu_si512(late->y, (__m512i)_mm512_cvtne2ps_pbh(high, low));
            } else {
                _mm256_storeu_si256((void *)late->y, (__m256i)_mm512_cvtneps_pbh(low));
            }
            late->y += c->out;
        }
        if (++late->column == line)
            late->column = 0;
    }
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* Tiles 0 .. 3 are sums, 4 of x and 6 of weights, and 5 and 7 the same of a row's tail. */
static void conv_configure(const struct conv *c)
{
    const uint16_t bytes = (uint16_t)(c->tail > 0 ? c->tail * 2 : CPU_AMX_BYTES);
    const uint8_t pairs = (uint8_t)(c->tail > 0 ? c->tail / 2 : CPU_AMX_ROWS);
    const struct cpu_amx_config config = {.palette = 1,
                                          .row_bytes = {64, 64, 64, 64, 64, bytes, 64, 64},
                                          .rows = {16, 16, 16, 16, 16, 16, 16, pairs}};
    cpu_amx_configure(&config);
}

/* One step of CPU_AMX_DEPTH, or a row's tail, of a strip of 32 pixels and 32 outputs. */
#define CONV_WIDE_STEP(a, b, pixels, row, w, next)                                                 \
    do {                                                                                           \
        CPU_AMX_LOAD(a, pixels, row);                                                              \
        CPU_AMX_LOAD(b, w, CPU_AMX_BYTES);                                                         \
        CPU_AMX_PRODUCT(0, a, b);                                                                  \
        CPU_AMX_LOAD(b, (w) + (next), CPU_AMX_BYTES);                                              \
        CPU_AMX_PRODUCT(1, a, b);                                                                  \
        CPU_AMX_LOAD(a, (const char *)(pixels) + CPU_AMX_ROWS * (row), row);                       \
        CPU_AMX_PRODUCT(3, a, b);                                                                  \
        CPU_AMX_LOAD(b, w, CPU_AMX_BYTES);                                                         \
        CPU_AMX_PRODUCT(2, a, b);                                                                  \
    } while (0)

/* The same of 64 pixels and 16 outputs: as many sums that do not wait for each other. */
#define CONV_NARROW_STEP(a, b, pixels, row, w)                                                     \
    do {                                                                                           \
        CPU_AMX_LOAD(b, w, CPU_AMX_BYTES);                                                         \
        CONV_NARROW_ONE(0, a, b, pixels, row);                                                     \
        CONV_NARROW_ONE(1, a, b, pixels, row);                                                     \
        CONV_NARROW_ONE(2, a, b, pixels, row);                                                     \
        CONV_NARROW_ONE(3, a, b, pixels, row);                                                     \
    } while (0)
#define CONV_NARROW_ONE(number, a, b, pixels, row)                                                 \
    do {                                                                                           \
        CPU_AMX_LOAD(a, (const char *)(pixels) + (number)*CPU_AMX_ROWS * (row), row);              \
        CPU_AMX_PRODUCT(number, a, b);                                                             \
    } while (0)

/* The last step and the tail in turns: a tile is loaded while the other one is multiplied. */
#define CONV_NARROW_LAST(pixels, row, w)                                                           \
    do {                                                                                           \
        const uint16_t *conv_end = (pixels) + CPU_AMX_DEPTH;                                       \
        CPU_AMX_LOAD(6, w, CPU_AMX_BYTES);                                                         \
        CPU_AMX_LOAD(7, (w) + AMX_TILE, CPU_AMX_BYTES);                                            \
        CONV_NARROW_ONE(0, 4, 6, pixels, row);                                                     \
        CONV_NARROW_ONE(0, 5, 7, conv_end, row);                                                   \
        CONV_NARROW_ONE(1, 4, 6, pixels, row);                                                     \
        CONV_NARROW_ONE(1, 5, 7, conv_end, row);                                                   \
        CONV_NARROW_ONE(2, 4, 6, pixels, row);                                                     \
        CONV_NARROW_ONE(2, 5, 7, conv_end, row);                                                   \
        CONV_NARROW_ONE(3, 4, 6, pixels, row);                                                     \
        CONV_NARROW_ONE(3, 5, 7, conv_end, row);                                                   \
    } while (0)

/* The steps of one row of the window; `x` is the first pixel's. */
CPU_INLINE void conv_row(const struct conv *c, bool wide, const uint16_t *x, const uint32_t *w,
                         int64_t next)
{
    const size_t row = (size_t)(c->stride * c->in) * sizeof(*x);
    if (wide && c->tail == 0) {
        const struct amx_reads reads = {
            .a = {(const char *)x, (const char *)x + CPU_AMX_ROWS * row},
            .a_row = row,
            .a_step = CPU_AMX_BYTES,
            .b = {w, w + next}};
        amx_steps(&reads, c->whole, true);
        return;
    }
    const bool last = !wide && c->tail > 0 && c->whole > 0;
    for (int64_t t = 0; t < c->whole - last; t++, x += CPU_AMX_DEPTH, w += AMX_TILE) {
        if (wide)
            CONV_WIDE_STEP(4, 6, x, row, w, next);
        else
            CONV_NARROW_STEP(4, 6, x, row, w);
    }
    if (last)
        CONV_NARROW_LAST(x, row, w);
    else if (c->tail > 0 && wide)
        CONV_WIDE_STEP(5, 7, x, row, w, next);
    else if (c->tail > 0)
        CONV_NARROW_STEP(5, 7, x, row, w);
}

/* The sums of a strip from the copied x on, and the last strip's y meanwhile. */
CPU_INLINE void conv_strip(const struct conv *c, const uint16_t *x, const uint32_t *w, bool wide,
                           __m512 low_bias, __m512 high_bias, struct conv_late *late, float *sum)
{
    const int64_t steps = conv_steps(c) * AMX_TILE; /* words of a row of the window */
    const int64_t each = (conv_pixels(wide) + c->window - 1) / c->window;
    amx_begin_sums(NULL, true);
    for (int64_t kh = 0; kh < c->window; kh++) {
        const int64_t at = kh % c->stride * c->plane + kh / c->stride * c->line * c->in;
        conv_row(c, wide, x + at, w + kh * steps, c->window * steps);
        conv_finish(c, wide, low_bias, high_bias, each, late);
    }
    amx_store_sums(sum);
}

/* 32 outputs, not `wide` 16, of `rows` rows of y. */
CPU_INLINE void conv_panel(const struct conv *c, const uint16_t *x, int64_t output, bool wide,
                           int64_t rows, uint16_t *y, float *sum)
{
    const int64_t line = c->line / c->stride, count = (rows - 1) * line + c->ow;
    const uint32_t *w = c->w + output / CPU_WORDS * conv_steps(c) * c->window * AMX_TILE;
    struct conv_late late = {.y = y + output};
    __m512 low_bias = _mm512_setzero_ps(), high_bias = low_bias;
    if (c->bias != NULL)
        low_bias = cpu_widen(_mm256_loadu_si256((const void *)(c->bias + output)));
    if (c->bias != NULL && wide)
        high_bias = cpu_widen(_mm256_loadu_si256((const void *)(c->bias + output + CPU_WORDS)));
    for (int64_t p = 0; p < count; p += conv_pixels(wide)) {
        float *to = late.sum == sum ? sum + AMX_SUMS : sum;
        conv_strip(c, x + p * c->stride * c->in, w, wide, low_bias, high_bias, &late, to);
        late.sum = to;
        late.pixel = 0;
        late.pixels = tess__cpu_min(count - p, conv_pixels(wide));
    }
    conv_finish(c, wide, low_bias, high_bias, CONV_PIXELS, &late);
}

static void conv_part(void *context, int64_t part, void *memory)
{
    const struct conv *c = context;
    const int64_t first = part * c->images;
    float *sum = memory;
    uint16_t *copy = (uint16_t *)(sum + 2 * AMX_SUMS);
    conv_configure(c);
    for (int64_t i = first; i < first + c->images && i < c->desc->rows * c->blocks; i++) {
        const int64_t image = i / c->blocks, row = i % c->blocks * c->rows;
        const int64_t rows = tess__cpu_min(c->oh - row, c->rows);
        uint16_t *y = c->y + (image * c->oh + row) * c->ow * c->out;
        conv_copy_x(c, c->x + image * c->height * c->width * c->in, row, rows, copy);
        int64_t o = 0;
        for (; o + AMX_STRIP <= c->out; o += AMX_STRIP)
            conv_panel(c, copy, o, true, rows, y, sum);
        if (o < c->out)
            conv_panel(c, copy, o, false, rows, y, sum);
    }
    cpu_amx_end();
}

/* ---- the kernel ----------------------------------------------------------------------------- */

bool tess__amx_conv_takes(const struct tess_op_desc *desc, bool back)
{
    if (desc->kind != TESS_OP_CONV2D || desc->dtype != TESS_BF16)
        return false;
    if (back)
        return desc->stride == 1 && desc->padding < desc->window && desc->out % 2 == 0 &&
               desc->in % CPU_WORDS == 0;
    return desc->out % CPU_WORDS == 0;
}

size_t tess__amx_conv_scratch(const struct tess_op_desc *desc)
{
    size_t bytes = 0;
    for (int back = 0; back < 2; back++) {
        if (!tess__amx_conv_takes(desc, back == 1))
            continue;
        const struct conv c = conv_of(desc, back == 1);
        bytes = tess__cpu_max(bytes, 2 * AMX_SUMS * sizeof(float) +
                                         (size_t)(c.stride * c.plane) * sizeof(uint16_t));
    }
    return tess__cpu_round_up(bytes);
}

size_t tess__amx_conv_weights(const struct tess_op_desc *desc)
{
    size_t bytes = 0;
    for (int back = 0; back < 2; back++) {
        const struct conv c = conv_of(desc, back == 1);
        if (tess__amx_conv_takes(desc, back == 1))
            bytes = tess__cpu_max(bytes, (size_t)(c.out / CPU_WORDS * c.window * conv_steps(&c)) *
                                             AMX_TILE * sizeof(uint32_t));
    }
    return bytes;
}

void tess__amx_conv(const struct tess_kernel *kernel, const struct tess_op_desc *desc, bool back,
                    const void *x, const void *w, const void *bias, void *y, void *scratch)
{
    struct conv c = conv_of(desc, back);
    uint32_t *packed = (uint32_t *)(void *)((char *)scratch + tess__amx_conv_scratch(desc));
    const double work = (double)(c.rows * c.ow * c.out * c.window * conv_steps(&c) * CPU_AMX_DEPTH);
    conv_pack_w(&c, w, packed);
    c.x = x;
    c.w = packed;
    c.bias = bias;
    c.y = y;
    c.images = (int64_t)(CONV_WORK / work) + 1;
    tess__cpu_share(kernel, (desc->rows * c.blocks + c.images - 1) / c.images, conv_part, &c,
                    scratch);
}
