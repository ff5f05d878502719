/*
 * Convolutions on AMX tiles: forward, and the data gradient of those of stride 1 and 2 (phase.h).
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
#include "cpu/own/phase.h"
#include "cpu/own/turn.h"

#include <math.h>
#include <string.h>

#define CONV_BLOCK  262144 /* elements of x in a block: a quarter of the second-level cache */
#define CONV_WORK   4e6    /* multiplications of a part at least: some ten microseconds */
#define CONV_PIXELS 64     /* of a strip of 16 outputs; of 32 outputs AMX_STRIP */
#define CONV_SLACK  64     /* elements that a tile's last row may read behind what is there */

/* What is computed. */
struct conv {
    const struct tess_op_desc *desc;
    struct cpu_phased g;
    bool back, relu;
    int64_t line, plane; /* pixels of a copied row; elements of a plane */
    int64_t rows;        /* of a phase in a block */
    const uint16_t *x, *bias;
    uint16_t *y;
    int64_t blocks, images; /* of an image; of a part */
};

/* A phase, whose weights are [out / 16, tall, steps] tiles. */
struct conv_phase {
    const struct conv *conv;
    const struct cpu_phase *at;
    int64_t depth, whole, tail; /* words under a row of the window: in steps, and a smaller one */
    int64_t steps;
};

static struct conv_phase conv_phase(const struct conv *c, int64_t number)
{
    struct conv_phase p = {.conv = c, .at = &c->g.phase[number]};
    p.depth = p.at->wide * c->g.in;
    p.whole = p.depth / CPU_AMX_DEPTH;
    p.tail = amx_up(p.depth % CPU_AMX_DEPTH, 2);
    p.steps = p.whole + (p.tail > 0);
    return p;
}

/* Memory of the packed weights; with base NULL it only measures. */
static size_t conv_layout(struct conv *c, uint32_t *base)
{
    int64_t words = 0;
    for (int64_t i = 0; i < c->g.phases * c->g.phases; i++) {
        const struct conv_phase p = conv_phase(c, i);
        c->g.phase[i].w = base != NULL ? base + words : NULL;
        words += c->g.out / CPU_WORDS * p.at->tall * p.steps * AMX_TILE;
    }
    return (size_t)words * sizeof(uint32_t);
}

static struct conv conv_of(const struct tess_op_desc *d, bool back)
{
    struct conv c = {.desc = d, .g = cpu_phases(d, back), .back = back, .relu = !back && d->relu};
    const struct cpu_phased *g = &c.g;
    c.line = amx_up(back ? g->columns - 1 + g->span : g->width + 2 * g->top, g->step);
    c.rows = CONV_BLOCK / (c.line * g->in * g->step) - g->span;
    c.rows = tess__cpu_min(c.rows < 1 ? 1 : c.rows, g->rows);
    c.blocks = cpu_ceil(g->rows, c.rows);
    const int64_t under = c.rows + (g->span - 1) / g->step + 1; /* rows of a plane */
    c.plane = amx_up((under * c.line + CONV_PIXELS * g->step + g->span) * g->in + CONV_SLACK, 32);
    return c;
}

/* ---- packing -------------------------------------------------------------------------------- */

/* Tile `step` of a row of the window of weights [out, window, window, in], 16 outputs from `o` on.
 */
static void conv_pack_forward(const struct conv_phase *p, const uint16_t *w, int64_t o, int64_t kh,
                              int64_t step, uint32_t *tile)
{
    const int64_t left = tess__cpu_min(p->depth - step * CPU_AMX_DEPTH, CPU_AMX_DEPTH);
    const int64_t each = p->at->tall * p->depth; /* elements of an output */
    const __mmask32 mask = (__mmask32)((1ull << left) - 1);
    __m512i row[CPU_WORDS];
    const uint16_t *at = w + o * each + kh * p->depth + step * CPU_AMX_DEPTH;
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        row[r] = _mm512_maskz_loadu_epi16(mask, at + r * each);
    cpu_turn_square(row);
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        _mm512_store_si512(tile + r * CPU_WORDS, row[r]);
}

/* The same of the window turned round, 16 inputs of the layer from `o` on. Pairs are outputs of the
 * layer, of which there is an even number. */
static void conv_pack_back(const struct conv_phase *p, const uint16_t *w, int64_t o, int64_t row,
                           int64_t step, uint32_t *tile)
{
    const struct cpu_phased *g = &p->conv->g;
    const int64_t first = step * CPU_AMX_DEPTH, window = p->conv->desc->window;
    const int64_t kh = p->at->first_row + (p->at->tall - 1 - row) * g->phases;
    for (int64_t k = first; k < tess__cpu_min(p->depth, first + CPU_AMX_DEPTH); k += 2) {
        const int64_t from = k % g->in, turned = p->at->wide - 1 - k / g->in;
        const int64_t kw = p->at->first_column + turned * g->phases;
        const uint16_t *at = w + ((from * window + kh) * window + kw) * g->out + o;
        const __m256i even = _mm256_loadu_si256((const void *)at);
        const __m256i odd = _mm256_loadu_si256((const void *)(at + window * window * g->out));
        _mm512_store_si512(tile + (k - first) / 2 * CPU_WORDS, cpu_pair(even, odd));
    }
}

static void conv_pack_w(const struct conv *c, const uint16_t *w)
{
    for (int64_t i = 0; i < c->g.phases * c->g.phases; i++) {
        const struct conv_phase p = conv_phase(c, i);
        uint32_t *packed = p.at->w;
        for (int64_t o = 0; o < c->g.out; o += CPU_WORDS)
            for (int64_t kh = 0; kh < p.at->tall; kh++)
                for (int64_t step = 0; step < p.steps; step++, packed += AMX_TILE) {
                    if (c->back)
                        conv_pack_back(&p, w, o, kh, step, packed);
                    else
                        conv_pack_forward(&p, w, o, kh, step, packed);
                }
    }
}

/* The rows of an image under `rows` rows of output from `row` on. */
static void conv_copy_x(const struct conv *c, const uint16_t *x, int64_t row, int64_t rows,
                        uint16_t *copy)
{
    const struct cpu_phased *g = &c->g;
    const int64_t count = (rows - 1) * g->step + g->span, line = c->line * g->in;
    const int64_t border = g->top * g->in, all = g->width * g->in;
    const int64_t inner = tess__cpu_min(all, line - border);
    for (int64_t r = 0; r < count; r++) {
        const int64_t h = row * g->step + r - g->top;
        uint16_t *to = copy + r % g->step * c->plane + r / g->step * line;
        if (r % g->step >= g->span)
            continue; /* between windows */
        if (h < 0 || h >= g->height) {
            memset(to, 0, (size_t)line * sizeof(*to));
            continue;
        }
        memset(to, 0, (size_t)border * sizeof(*to));
        memcpy(to + border, x + h * all, (size_t)inner * sizeof(*to));
        memset(to + border + inner, 0, (size_t)(line - border - inner) * sizeof(*to));
    }
    for (int64_t p = 0; p < g->step && g->in % 2 != 0; p++) /* no NaN, for a weight of zero */
        copy[p * c->plane + (count - p + g->step - 1) / g->step * line] = 0;
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

CPU_INLINE void conv_finish(const struct conv_phase *p, bool wide, __m512 low_bias,
                            __m512 high_bias, int64_t count, struct conv_late *late)
{
    const struct conv *c = p->conv;
    const struct cpu_phased *g = &c->g;
    const int64_t end = tess__cpu_min(late->pixel + count, late->pixels);
    const int64_t line = c->line / g->step, next = g->phases * g->out;
    const int64_t turn = (g->phases * g->y_width - g->phases * p->at->columns) * g->out;
    const __m512 least = c->relu ? _mm512_setzero_ps() : _mm512_set1_ps(-INFINITY);
    for (; late->pixel < end; late->pixel++) {
        if (late->column < p->at->columns) {
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
            late->y += next;
        }
        if (++late->column == line) {
            late->column = 0;
            late->y += turn;
        }
    }
}

/* Where no row or no column of the window meets a phase: zeros. */
static void conv_zero(const struct conv_phase *p, int64_t rows, uint16_t *y)
{
    const struct cpu_phased *g = &p->conv->g;
    for (int64_t row = 0; row < rows; row++, y += g->phases * g->y_width * g->out)
        for (int64_t column = 0; column < p->at->columns; column++)
            memset(y + column * g->phases * g->out, 0, (size_t)g->out * sizeof(*y));
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* Tiles 0 .. 3 are sums, 4 of x and 6 of weights, and 5 and 7 the same of a row's tail. */
static void conv_configure(const struct conv_phase *p)
{
    const uint16_t bytes = (uint16_t)(p->tail > 0 ? p->tail * 2 : CPU_AMX_BYTES);
    const uint8_t pairs = (uint8_t)(p->tail > 0 ? p->tail / 2 : CPU_AMX_ROWS);
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
CPU_INLINE void conv_row(const struct conv_phase *p, bool wide, const uint16_t *x,
                         const uint32_t *w, int64_t next)
{
    const size_t row = (size_t)(p->conv->g.step * p->conv->g.in) * sizeof(*x);
    if (wide && p->tail == 0) {
        const struct amx_reads reads = {
            .a = {(const char *)x, (const char *)x + CPU_AMX_ROWS * row},
            .a_row = row,
            .a_step = CPU_AMX_BYTES,
            .b = {w, w + next}};
        amx_steps(&reads, p->whole, true);
        return;
    }
    const bool last = !wide && p->tail > 0 && p->whole > 0;
    for (int64_t t = 0; t < p->whole - last; t++, x += CPU_AMX_DEPTH, w += AMX_TILE) {
        if (wide)
            CONV_WIDE_STEP(4, 6, x, row, w, next);
        else
            CONV_NARROW_STEP(4, 6, x, row, w);
    }
    if (last)
        CONV_NARROW_LAST(x, row, w);
    else if (p->tail > 0 && wide)
        CONV_WIDE_STEP(5, 7, x, row, w, next);
    else if (p->tail > 0)
        CONV_NARROW_STEP(5, 7, x, row, w);
}

/* The sums of a strip from the copied x on, and the last strip's y meanwhile. */
CPU_INLINE void conv_strip(const struct conv_phase *p, const uint16_t *x, const uint32_t *w,
                           bool wide, __m512 low_bias, __m512 high_bias, struct conv_late *late,
                           float *sum)
{
    const struct conv *c = p->conv;
    const int64_t step = c->g.step, tall = p->at->tall;
    const int64_t steps = p->steps * AMX_TILE; /* words of a row of the window */
    const int64_t each = (conv_pixels(wide) + tall - 1) / tall;
    amx_begin_sums(NULL, true);
    for (int64_t kh = 0; kh < tall; kh++) {
        const int64_t at = kh % step * c->plane + kh / step * c->line * c->g.in;
        conv_row(p, wide, x + at, w + kh * steps, tall * steps);
        conv_finish(p, wide, low_bias, high_bias, each, late);
    }
    amx_store_sums(sum);
}

/* 32 outputs, not `wide` 16, of `rows` rows of y. */
CPU_INLINE void conv_panel(const struct conv_phase *p, const uint16_t *x, int64_t output, bool wide,
                           int64_t rows, uint16_t *y, float *sum)
{
    const struct conv *c = p->conv;
    const int64_t count = (rows - 1) * (c->line / c->g.step) + p->at->columns;
    const uint32_t *w = p->at->w + output / CPU_WORDS * p->steps * p->at->tall * AMX_TILE;
    struct conv_late late = {.y = y + output};
    __m512 low_bias = _mm512_setzero_ps(), high_bias = low_bias;
    if (c->bias != NULL)
        low_bias = cpu_widen(_mm256_loadu_si256((const void *)(c->bias + output)));
    if (c->bias != NULL && wide)
        high_bias = cpu_widen(_mm256_loadu_si256((const void *)(c->bias + output + CPU_WORDS)));
    for (int64_t i = 0; i < count; i += conv_pixels(wide)) {
        float *to = late.sum == sum ? sum + AMX_SUMS : sum;
        conv_strip(p, x + i * c->g.step * c->g.in, w, wide, low_bias, high_bias, &late, to);
        late.sum = to;
        late.pixel = 0;
        late.pixels = tess__cpu_min(count - i, conv_pixels(wide));
    }
    conv_finish(p, wide, low_bias, high_bias, CONV_PIXELS, &late);
}

/* `rows` rows of a phase from the copied x, y its first pixel. */
static void conv_phase_run(const struct conv_phase *p, const uint16_t *copy, int64_t rows,
                           uint16_t *y, float *sum)
{
    const struct conv *c = p->conv;
    const uint16_t *x = copy + (p->at->x_row * c->line + p->at->x_column) * c->g.in;
    int64_t o = 0;
    if (p->at->tall * p->depth == 0) {
        conv_zero(p, rows, y);
        return;
    }
    conv_configure(p);
    for (; o + AMX_STRIP <= c->g.out; o += AMX_STRIP)
        conv_panel(p, x, o, true, rows, y, sum);
    if (o < c->g.out)
        conv_panel(p, x, o, false, rows, y, sum);
}

static void conv_part(void *context, int64_t part, void *memory)
{
    const struct conv *c = context;
    const struct cpu_phased *g = &c->g;
    const int64_t first = part * c->images;
    float *sum = memory;
    uint16_t *copy = (uint16_t *)(sum + 2 * AMX_SUMS);
    for (int64_t i = first; i < first + c->images && i < c->desc->rows * c->blocks; i++) {
        const int64_t image = i / c->blocks, row = i % c->blocks * c->rows;
        const int64_t rows = tess__cpu_min(g->rows - row, c->rows);
        conv_copy_x(c, c->x + image * g->height * g->width * g->in, row, rows, copy);
        for (int64_t n = 0; n < g->phases * g->phases; n++) {
            const struct conv_phase p = conv_phase(c, n);
            const int64_t y_row = image * g->y_height + row * g->phases + p.at->row;
            const int64_t own = tess__cpu_min(p.at->rows - row, rows);
            if (own > 0)
                conv_phase_run(&p, copy, own, c->y + (y_row * g->y_width + p.at->column) * g->out,
                               sum);
        }
    }
    cpu_amx_end();
}

/* ---- the kernel ----------------------------------------------------------------------------- */

bool tess__amx_conv_takes(const struct tess_op_desc *desc, bool back)
{
    if (desc->kind != TESS_OP_CONV2D || desc->dtype != TESS_BF16)
        return false;
    if (back)
        return desc->stride <= CPU_PHASE_STRIDE && desc->padding < desc->window &&
               desc->out % 2 == 0 && desc->in % CPU_WORDS == 0;
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
                                         (size_t)(c.g.step * c.plane) * sizeof(uint16_t));
    }
    return tess__cpu_round_up(bytes);
}

size_t tess__amx_conv_weights(const struct tess_op_desc *desc)
{
    size_t bytes = 0;
    for (int back = 0; back < 2; back++) {
        if (!tess__amx_conv_takes(desc, back == 1))
            continue;
        struct conv c = conv_of(desc, back == 1);
        bytes = tess__cpu_max(bytes, conv_layout(&c, NULL));
    }
    return bytes;
}

void tess__amx_conv(const struct tess_kernel *kernel, const struct tess_op_desc *desc, bool back,
                    const void *x, const void *w, const void *bias, void *y, void *scratch)
{
    struct conv c = conv_of(desc, back);
    (void)conv_layout(&c, (uint32_t *)(void *)((char *)scratch + tess__amx_conv_scratch(desc)));
    conv_pack_w(&c, w);
    c.x = x;
    c.bias = bias;
    c.y = y;
    const double work = (double)(c.rows * c.g.columns) * (double)tess__cpu_sizes(desc).w;
    c.images = (int64_t)(CONV_WORK / work) + 1;
    tess__cpu_share(kernel, (desc->rows * c.blocks + c.images - 1) / c.images, conv_part, &c,
                    scratch);
}
