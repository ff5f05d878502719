/*
 * Convolutions by sums of products, forward and the data gradient of those of stride 1 and 2. Built
 * for AVX-512 and for AVX2 (CMakeLists.txt).
 *
 *     for every block: some images or some rows of one            the threads share these
 *       x copied with its padding and widened                      second-level cache
 *       for every panel of CONV_PANEL outputs, whose weights are packed once a call
 *         for every 6 to CONV_MOST pixels
 *           registers of sums over the window; y = sums + bias, ReLU, rounded once
 *
 * In bf16 x and weights are widened and y is rounded once; where the processor multiplies bf16 in
 * pairs, oneDNN is faster.
 *
 * With channels last the words under one row of the window are neighbours, so x is read as it lies;
 * in f32 without padding that is where it came from. phase.h has the data gradient.
 *
 * A pixel's sums are fused multiply-adds in order of the window's rows and words, whatever else is
 * computed.
 */
#include "cpu/own/phase.h"
#include "cpu/own/turn.h"

#include <math.h>
#include <string.h>

#define CONV_PANEL  (CPU_WIDE * CPU_WORDS) /* outputs */
#define CONV_MOST   12                     /* pixels of a tile at most: each has an address */
#define CONV_WORDS  (48 * 1024) /* of x in a block at most: some of the second-level cache */
#define CONV_PIXELS 1024        /* of a block at most */
#define CONV_WORK   1e6         /* multiplications of a part at least: some tens of microseconds */

/* Where a pixel's window begins in a block's x, and where it lies in the block's y: elements. */
struct conv_pixel {
    int64_t x, y;
};

/* What is computed. */
struct conv {
    const struct tess_op_desc *desc;
    struct cpu_phased g;
    bool back, half, relu, copied;
    int64_t line;                         /* pixels of a row of x */
    int64_t images, rows, blocks, group;  /* of a block; blocks of an image; blocks of a part */
    int64_t x_row, x_image;               /* elements from one to the next, in the copy if copied */
    struct conv_pixel *pixel[CPU_PHASES]; /* of a phase's block [images, rows, columns] */
    const void *x, *bias;
    void *y;
    const float *w; /* [desc.out, window, window, desc.in] in f32 */
};

/* ---- geometry ------------------------------------------------------------------------------- */

static struct conv conv_of(const struct tess_op_desc *d, bool back)
{
    struct conv c = {.desc = d,
                     .g = cpu_phases(d, back),
                     .back = back,
                     .half = d->dtype == TESS_BF16,
                     .relu = !back && d->relu};
    const struct cpu_phased *g = &c.g;
    c.line = (g->columns - 1) * g->step + g->span;
    c.copied =
        c.half || g->top != 0 || c.line > g->width || (g->rows - 1) * g->step + g->span > g->height;
    c.x_row = (c.copied ? c.line : g->width) * g->in;
    const int64_t by_x = (CONV_WORDS / (c.line * g->in) - g->span) / g->step + 1;
    const int64_t most = tess__cpu_min(by_x, CONV_PIXELS / g->columns);
    c.rows = tess__cpu_min(most > 1 ? most : 1, g->rows);
    c.blocks = cpu_ceil(g->rows, c.rows);
    const int64_t images = tess__cpu_min(most / g->rows, d->rows);
    c.images = c.blocks > 1 || images < 1 ? 1 : images;
    c.x_image = c.copied ? ((c.rows - 1) * g->step + g->span) * c.x_row : g->height * c.x_row;
    const double work = (double)(c.images * c.rows * g->columns) * (double)tess__cpu_sizes(d).w;
    c.group = (int64_t)(CONV_WORK / work) + 1;
    return c;
}

/* Memory behind each other: widened weights, then of every phase its packed weights and its table.
 * With base NULL it only measures. */
static size_t conv_layout(struct conv *c, char *base)
{
    const int64_t widened = c->half ? tess__cpu_sizes(c->desc).w : 0;
    size_t bytes = tess__cpu_round_up((size_t)widened * sizeof(float));
    for (int64_t i = 0; i < c->g.phases * c->g.phases; i++) {
        struct cpu_phase *p = &c->g.phase[i];
        const int64_t outputs = cpu_ceil(c->g.out, CPU_WORDS) * CPU_WORDS;
        if (base != NULL)
            p->w = (uint32_t *)(void *)(base + bytes);
        bytes +=
            tess__cpu_round_up((size_t)(p->tall * p->wide * c->g.in * outputs) * sizeof(uint32_t));
        if (base != NULL)
            c->pixel[i] = (struct conv_pixel *)(void *)(base + bytes);
        bytes +=
            tess__cpu_round_up((size_t)(c->images * tess__cpu_min(p->rows, c->rows) * p->columns) *
                               sizeof(struct conv_pixel));
    }
    return bytes;
}

static void conv_table(const struct conv *c)
{
    const int64_t line = c->g.y_width * c->g.out;
    for (int64_t i = 0; i < c->g.phases * c->g.phases; i++) {
        const struct cpu_phase *p = &c->g.phase[i];
        struct conv_pixel *pixel = c->pixel[i];
        for (int64_t image = 0; image < c->images; image++)
            for (int64_t row = 0; row < tess__cpu_min(p->rows, c->rows); row++)
                for (int64_t column = 0; column < p->columns; column++)
                    *pixel++ = (struct conv_pixel){
                        .x = image * c->x_image + (p->x_row + row * c->g.step) * c->x_row +
                             (p->x_column + column * c->g.step) * c->g.in,
                        .y = (image * c->g.y_height + p->row + row * c->g.phases) * line +
                             (p->column + column * c->g.phases) * c->g.out};
    }
}

/* ---- packing -------------------------------------------------------------------------------- */

/* The weights of a panel: forward turned so that vectors run along the outputs, as they do already
 * in the data gradient's. */
static void conv_pack_panel(void *context, int64_t panel, void *work)
{
    (void)work;
    const struct conv *c = context;
    const int64_t window = c->desc->window, output = panel * CONV_PANEL;
    const int64_t outputs = tess__cpu_min(c->g.out - output, CONV_PANEL);
    const int64_t wide = cpu_ceil(outputs, CPU_WORDS);
    for (int64_t i = 0; i < c->g.phases * c->g.phases; i++) {
        const struct cpu_phase *p = &c->g.phase[i];
        const int64_t words = p->wide * c->g.in;
        uint32_t *to = p->w + output * p->tall * words;
        for (int64_t row = 0; row < p->tall; row++) {
            if (!c->back) {
                const float *from = c->w + (output * window + row) * words;
                cpu_turn((const char *)from, (size_t)(window * words) * sizeof(*from), outputs,
                         wide, words, false, to);
                to += words * wide * CPU_WORDS;
                continue;
            }
            const int64_t kh = p->first_row + (p->tall - 1 - row) * c->g.phases;
            for (int64_t t = 0; t < words; t++, to += wide * CPU_WORDS) {
                const int64_t kw = p->first_column + (p->wide - 1 - t / c->g.in) * c->g.phases;
                const float *from =
                    c->w + ((t % c->g.in * window + kh) * window + kw) * c->g.out + output;
                cpu_pack_f32(from, outputs, to);
            }
        }
    }
}

/* The rows of x under `images` x `rows` rows of a phase's pixels, from `row` of image `image` on.
 */
static void conv_copy(const struct conv *c, int64_t image, int64_t images, int64_t row,
                      int64_t rows, float *copy)
{
    const int64_t from = c->g.top < 0 ? -c->g.top : 0;
    const int64_t lead = c->g.top > 0 ? tess__cpu_min(c->g.top, c->line) : 0;
    const int64_t inner = tess__cpu_min(c->g.width > from ? c->g.width - from : 0, c->line - lead);
    const size_t element = c->half ? 2 : 4;
    for (int64_t n = 0; n < images; n++) {
        float *to = copy + n * c->x_image;
        for (int64_t r = 0; r < (rows - 1) * c->g.step + c->g.span; r++, to += c->x_row) {
            const int64_t h = row * c->g.step - c->g.top + r;
            if (r % c->g.step >= c->g.span)
                continue; /* between windows */
            if (h < 0 || h >= c->g.height) {
                memset(to, 0, (size_t)c->x_row * sizeof(*to));
                continue;
            }
            const int64_t at = (((image + n) * c->g.height + h) * c->g.width + from) * c->g.in;
            memset(to, 0, (size_t)(lead * c->g.in) * sizeof(*to));
            cpu_widen_row(c->half, (const char *)c->x + (size_t)at * element, inner * c->g.in,
                          to + lead * c->g.in);
            memset(to + (lead + inner) * c->g.in, 0,
                   (size_t)((c->line - lead - inner) * c->g.in) * sizeof(*to));
        }
    }
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* What the next block reads of x: fetched into the second-level cache some lines at a time while
 * products keep the processor busy. */
struct conv_ahead {
    const char *at, *end;
    int64_t bytes; /* of a tile */
};

/* A panel of outputs. */
struct conv_tile {
    const float *x;
    const uint32_t *w;
    void *y;
    bool relu;
    int64_t tall, words, x_row;     /* of the window: rows, words of one; between rows of x */
    int64_t outputs;                /* from the panel on */
    const struct conv_pixel *pixel; /* [pixels] */
    int64_t pixels;
    float bias[CONV_PANEL];
    struct conv_ahead *ahead;
};

/* y of `tall` pixels from their sums. Not part of the loops over the window, from whose sums it
 * would take registers. */
static __attribute__((noinline)) void conv_store(const struct conv_tile *t, bool half, int64_t tall,
                                                 int64_t wide, const struct conv_pixel *pixel,
                                                 const float *sum)
{
    const cpu_vector least = cpu_set(t->relu ? 0.0f : -INFINITY);
    for (int64_t r = 0; r < tall; r++) {
        for (int64_t v = 0; v < wide; v++, sum += CPU_WORDS) {
            const int64_t left = t->outputs - v * CPU_WORDS, at = pixel[r].y + v * CPU_WORDS;
            const cpu_vector bias = cpu_load_any(t->bias + v * CPU_WORDS);
            /* A NaN, second, stays. */
            const cpu_vector value = cpu_max(least, cpu_add(cpu_load(sum), bias));
            if (half)
                cpu_store_halves_first((uint16_t *)t->y + at, left, cpu_narrow(value));
            else
                cpu_store_first((float *)t->y + at, left, value);
        }
    }
}

/* `tall` pixels from `pixel` on, `half`: y in bf16; what there is not is pixel `last` again. */
CPU_INLINE void conv_tile(const struct conv_tile *t, bool half, int tall, int wide,
                          const struct conv_pixel *pixel, int64_t last)
{
    const float *x[CONV_MOST];
    const uint32_t *w = t->w;
    cpu_vector sum[CPU_SUMS];
    CPU_UNROLL
    for (int r = 0; r < tall; r++) {
        x[r] = t->x + pixel[r < last ? r : last].x;
        CPU_UNROLL
        for (int v = 0; v < wide; v++)
            sum[r * wide + v] = cpu_zero();
    }
    for (int64_t row = 0; row < t->tall; row++) {
        for (int64_t k = 0; k < t->words; k++, w += wide * CPU_WORDS) {
            uint32_t word[CONV_MOST];
            CPU_UNROLL
            for (int r = 0; r < tall; r++)
                memcpy(&word[r], x[r] + k, sizeof(word[r]));
            cpu_step(sum, false, tall, wide, w, word);
        }
        CPU_UNROLL
        for (int r = 0; r < tall; r++)
            x[r] += t->x_row;
    }
    _Alignas(64) float result[CPU_SUMS * CPU_WORDS];
    CPU_UNROLL
    for (int i = 0; i < tall * wide; i++)
        cpu_store(result + i * CPU_WORDS, sum[i]);
    conv_store(t, half, tall <= last ? tall : last + 1, wide, pixel, result);
}

/* The next piece of the next block's x, and y of the pixels from `pixel` on. */
CPU_INLINE void conv_fetch(const struct conv_tile *t, bool half, int64_t pixel, int tall, int wide)
{
    struct conv_ahead *ahead = t->ahead;
    const char *end = ahead->end - ahead->at > ahead->bytes ? ahead->at + ahead->bytes : ahead->end;
    for (; ahead->at < end; ahead->at += 64)
        _mm_prefetch(ahead->at, _MM_HINT_T1);
    for (int r = 0; r < tall && pixel + r < t->pixels; r++)
        for (int v = 0; v < wide; v++)
            __builtin_prefetch(
                (const char *)t->y + (t->pixel[pixel + r].y + v * CPU_WORDS) * (half ? 2 : 4), 1);
}

CPU_INLINE void conv_panel(const struct conv_tile *t, bool half, int wide)
{
    const int most = CPU_SUMS / 2 < CONV_MOST ? CPU_SUMS / 2 : CONV_MOST;
    const int tall = CPU_SUMS / wide < most ? CPU_SUMS / wide : most;
    for (int64_t p = 0; p < t->pixels; p += tall) {
        conv_fetch(t, half, p + tall, tall, wide);
        conv_tile(t, half, tall, wide, t->pixel + p, t->pixels - 1 - p);
    }
}

CPU_BY_WIDTH(conv_panels, conv_panel, const struct conv_tile *)

/* ---- the kernel ----------------------------------------------------------------------------- */

static void conv_phase_run(const struct conv *c, int64_t number, int64_t pixels, const float *x,
                           char *y, struct conv_ahead *ahead)
{
    const struct cpu_phase *phase = &c->g.phase[number];
    const size_t element = c->half ? 2 : 4;
    struct conv_tile t = {.x = x,
                          .relu = c->relu,
                          .tall = phase->tall,
                          .words = phase->wide * c->g.in,
                          .x_row = c->x_row,
                          .pixel = c->pixel[number],
                          .pixels = pixels,
                          .ahead = ahead};
    for (int64_t output = 0; output < c->g.out; output += CONV_PANEL) {
        const int64_t left = tess__cpu_min(c->g.out - output, CONV_PANEL);
        t.outputs = left;
        t.w = phase->w + output * t.tall * t.words;
        t.y = y + (size_t)output * element;
        if (c->bias != NULL)
            cpu_widen_row(c->half, (const char *)c->bias + (size_t)output * element, left, t.bias);
        conv_panels[c->half][(left - 1) / CPU_WORDS](&t);
    }
}

/* The rows of x under block `g`; its tiles will be about as many as those of a block now. */
static struct conv_ahead conv_ahead(const struct conv *c, int64_t g)
{
    if (g >= cpu_ceil(c->desc->rows, c->images) * c->blocks)
        return (struct conv_ahead){0};
    const int64_t image = g / c->blocks * c->images, row = g % c->blocks * c->rows * c->g.step;
    const int64_t rows = c->blocks == 1
                             ? tess__cpu_min(c->images, c->desc->rows - image) * c->g.height
                             : tess__cpu_min(c->rows * c->g.step, c->g.height - row);
    const int64_t line = c->g.width * c->g.in * (c->half ? 2 : 4); /* bytes */
    const int64_t tiles = c->images * c->rows * c->g.phases * c->g.y_width / CONV_MOST *
                          cpu_ceil(c->g.out, CONV_PANEL);
    const char *at = (const char *)c->x + (image * c->g.height + row) * line;
    return (struct conv_ahead){
        .at = at, .end = at + rows * line, .bytes = rows * line / (tiles + 1) / 64 * 64 + 64};
}

static void conv_part(void *context, int64_t part, void *work)
{
    const struct conv *c = context;
    const int64_t groups = cpu_ceil(c->desc->rows, c->images) * c->blocks;
    const size_t element = c->half ? 2 : 4;
    for (int64_t g = part * c->group; g < tess__cpu_min(groups, (part + 1) * c->group); g++) {
        const int64_t image = g / c->blocks * c->images, row = g % c->blocks * c->rows;
        const int64_t images = tess__cpu_min(c->desc->rows - image, c->images);
        const int64_t rows = tess__cpu_min(cpu_ceil(c->g.y_height, c->g.phases) - row, c->rows);
        const int64_t y = (image * c->g.y_height + row * c->g.phases) * c->g.y_width * c->g.out;
        struct conv_ahead ahead = conv_ahead(c, g + 1);
        const float *x = work;
        if (c->copied)
            conv_copy(c, image, images, row, rows, work);
        else
            x = (const float *)c->x + image * c->x_image + row * c->g.step * c->x_row;
        for (int64_t i = 0; i < c->g.phases * c->g.phases; i++) {
            const struct cpu_phase *p = &c->g.phase[i];
            const int64_t own = tess__cpu_min(p->rows - row, rows);
            if (own > 0)
                conv_phase_run(c, i, images * own * p->columns, x,
                               (char *)c->y + (size_t)y * element, &ahead);
        }
    }
}

bool CPU_OWN(conv_takes)(const struct tess_op_desc *desc, bool back)
{
    if (desc->kind != TESS_OP_CONV2D || (back && desc->stride > CPU_PHASE_STRIDE))
        return false;
    return desc->dtype == TESS_F32 || (desc->dtype == TESS_BF16 && !CPU_PAIRS);
}

size_t CPU_OWN(conv_scratch)(const struct tess_op_desc *desc)
{
    size_t bytes = 0;
    for (int back = 0; back < 2; back++) {
        if (!CPU_OWN(conv_takes)(desc, back == 1))
            continue;
        const struct conv c = conv_of(desc, back == 1);
        if (c.copied)
            bytes = tess__cpu_max(bytes, (size_t)(c.images * c.x_image) * sizeof(float));
    }
    return tess__cpu_round_up(bytes);
}

size_t CPU_OWN(conv_weights)(const struct tess_op_desc *desc)
{
    size_t bytes = 0;
    for (int back = 0; back < 2; back++) {
        if (!CPU_OWN(conv_takes)(desc, back == 1))
            continue;
        struct conv c = conv_of(desc, back == 1);
        bytes = tess__cpu_max(bytes, conv_layout(&c, NULL));
    }
    return bytes;
}

void CPU_OWN(conv)(const struct tess_kernel *kernel, const struct tess_op_desc *desc, bool back,
                   const void *x, const void *w, const void *bias, void *y, void *scratch)
{
    struct conv c = conv_of(desc, back);
    float *weights = (float *)(void *)((char *)scratch + CPU_OWN(conv_scratch)(desc));
    (void)conv_layout(&c, (char *)weights);
    if (c.half)
        cpu_widen_row(true, w, tess__cpu_sizes(desc).w, weights);
    c.w = c.half ? weights : w;
    c.x = x;
    c.bias = bias;
    c.y = y;
    conv_table(&c);
    tess__cpu_share(kernel, cpu_ceil(c.g.out, CONV_PANEL), conv_pack_panel, &c, NULL);
    tess__cpu_share(kernel, cpu_ceil(cpu_ceil(desc->rows, c.images) * c.blocks, c.group), conv_part,
                    &c, scratch);
}
