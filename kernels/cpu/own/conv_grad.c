/*
 * Weight gradient of a convolution over one leaf, without its patches in memory. Built for AVX-512
 * and for AVX2 (CMakeLists.txt). product.c loops over the leaves and adds them by the tree.
 *
 * With channels last the window of an output pixel lies, for one row of the kernel, in window * in
 * neighbouring words of x, and dw[:, row of the kernel, :, :] is a product dy^T x whose steps are
 * output pixels:
 *
 *     for every block of pixels, some images or some rows of one
 *       for every 8 rows of dw (AVX2: 4)      dy packed [step][8], stays in the first-level cache
 *         for every row of the kernel, for every 3 vectors of window * in
 *           products over the steps, added to dw: CPU_SUMS registers of sums
 *
 * A step is one pixel in f32 and a pair of neighbours in bf16, 32 bits per column either way; with
 * AVX2 one pixel, widened. In f32 without padding x is read where it lies; else it is packed once
 * per block, with the padding, whose zeros then count as pixels. Sums go through dw between blocks
 * unchanged: each element adds its steps in the order of images, rows and columns, however they are
 * split into blocks.
 *
 * For inputs that fill no vectors, such as the one of a first layer, for windows of 1 and in f32
 * for strides vectors run along the outputs. Tiles are of 6 words of the window by up to CPU_WIDE
 * vectors of outputs and read but a few words of a pixel of x.
 */
#include "cpu/cpu.h"

#include "cpu/own/pack.h"

#include <string.h>

#define CONV_WIDE  3 /* vectors in a panel: windows of 3 leave no remainder */
#define CONV_PANEL (CONV_WIDE * CPU_WORDS)
#define CONV_TALL  (CPU_SUMS / CONV_WIDE) /* rows of a tile */
#define CONV_LINE  64                     /* bytes of a cache line */

/* Tiles where vectors run along the outputs: words of the window by outputs. */
#define CONV_TURNED_TALL  (CPU_SUMS / CPU_WIDE)
#define CONV_TURNED_PANEL (CPU_WIDE * CPU_WORDS)

/* Bounds of a block: what dy's tile may take of the first-level cache, and x of the second. */
#define CONV_STEPS        768
#define CONV_TURNED_STEPS 256
#define CONV_X_WORDS      (96 * 1024)

/* The geometry, and how it is cut into blocks: functions of the descriptor, leaf_rows included. */
struct conv_plan {
    bool half;   /* bf16 */
    bool pairs;  /* a step is a pair of pixels */
    bool packed; /* x goes through scratch */
    bool turned; /* vectors run along the outputs */
    int64_t oh, ow, steps;
    int64_t width;        /* of a packed row, with padding */
    int64_t images, rows; /* of a block; several images only with all their rows */
    int64_t span;         /* rows of x under `rows` rows of output */
};

/* What the next block reads of x or dy: fetched into the second-level cache a few lines at a time,
   since both come from memory and a block's products take ten times as long as fetching it. */
struct conv_ahead {
    const char *at, *end;
    int64_t lines; /* per row of output */
};

/* A block in 32-bit words, and the tile of dw. */
struct conv_block {
    const uint32_t *x;
    int64_t x_image, x_row, x_step;
    const uint32_t *dy; /* [images, rows, steps, CONV_TALL] */
    int64_t images, rows, steps;
    float *dw;
    int64_t dw_row;
    bool first; /* of the leaf: dw is not yet a sum */
    struct conv_ahead ahead[2];
};

CPU_INLINE void conv_fetch(struct conv_ahead *ahead)
{
    for (int64_t i = 0; i < ahead->lines && ahead->at < ahead->end; i++) {
        _mm_prefetch(ahead->at, _MM_HINT_T1);
        ahead->at += ahead->end - ahead->at < CONV_LINE ? ahead->end - ahead->at : CONV_LINE;
    }
}

CPU_INLINE void conv_tile(struct conv_block *b, bool half, int wide)
{
    cpu_vector sum[CONV_TALL * CONV_WIDE];
    const uint32_t *dy = b->dy;
    int64_t x_step = b->x_step;
    CPU_UNROLL
    for (int r = 0; r < CONV_TALL; r++) {
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            sum[r * wide + c] =
                b->first ? cpu_zero() : cpu_load_any(b->dw + r * b->dw_row + c * CPU_WORDS);
    }
    for (int64_t image = 0; image < b->images; image++) {
        const uint32_t *line = b->x + image * b->x_image;
        for (int64_t row = 0; row < b->rows; row++, line += b->x_row) {
            const uint32_t *x = line;
            conv_fetch(&b->ahead[0]);
            conv_fetch(&b->ahead[1]);
            for (int64_t k = 0; k < b->steps; k++, x += x_step, dy += CONV_TALL)
                cpu_step(sum, half, CONV_TALL, wide, x, dy);
        }
    }
    CPU_UNROLL
    for (int r = 0; r < CONV_TALL; r++) {
        CPU_UNROLL
        for (int c = 0; c < wide; c++)
            cpu_store_any(b->dw + r * b->dw_row + c * CPU_WORDS, sum[r * wide + c]);
    }
}

CPU_WIDTH(conv_f32_1, conv_tile, struct conv_block *, false, 1)
CPU_WIDTH(conv_f32_2, conv_tile, struct conv_block *, false, 2)
CPU_WIDTH(conv_f32_3, conv_tile, struct conv_block *, false, 3)
CPU_WIDTH(conv_bf16_1, conv_tile, struct conv_block *, true, 1)
CPU_WIDTH(conv_bf16_2, conv_tile, struct conv_block *, true, 2)
CPU_WIDTH(conv_bf16_3, conv_tile, struct conv_block *, true, 3)

static void (*const conv_tile_run[2][CONV_WIDE])(struct conv_block *b) = {
    {conv_f32_1, conv_f32_2, conv_f32_3},
    {conv_bf16_1, conv_bf16_2, conv_bf16_3},
};

static int64_t conv_clamp(int64_t value, int64_t most)
{
    if (value > most)
        value = most;
    return value > 1 ? value : 1;
}

static struct conv_plan conv_plan_of(const struct tess_op_desc *desc)
{
    const bool pairs = CPU_PAIRS && desc->dtype == TESS_BF16;
    struct conv_plan p = {
        .half = desc->dtype == TESS_BF16,
        .pairs = pairs,
        .packed = desc->dtype == TESS_BF16 || desc->padding > 0,
        .turned = desc->in % CPU_WORDS != 0 || desc->window == 1 || (desc->stride > 1 && !pairs),
        .oh = tess_op_output_size(desc->height, desc->window, desc->stride, desc->padding),
        .ow = tess_op_output_size(desc->width, desc->window, desc->stride, desc->padding),
        .width = desc->width + 2 * desc->padding};
    p.steps = pairs ? (p.ow + 1) / 2 : p.ow;
    int64_t by_x = CONV_X_WORDS / (p.width * desc->in);
    int64_t by_dy = (p.turned ? CONV_TURNED_STEPS : CONV_STEPS) / p.steps;
    int64_t rows = (by_x - desc->window) / desc->stride + 1;
    p.rows = conv_clamp(rows < by_dy ? rows : by_dy, p.oh);
    p.span = (p.rows - 1) * desc->stride + desc->window;
    p.images = 1;
    if (p.rows == p.oh) {
        int64_t images = by_x / p.span;
        by_dy /= p.rows;
        p.images = conv_clamp(images < by_dy ? images : by_dy, desc->leaf_rows);
    }
    return p;
}

static size_t conv_x_bytes(const struct tess_op_desc *desc, const struct conv_plan *p)
{
    const int64_t words = p->images * p->span * p->width * desc->in;
    return p->packed ? tess__cpu_round_up((size_t)words * sizeof(uint32_t)) : 0;
}

static size_t conv_dy_bytes(const struct conv_plan *p)
{
    const int64_t words =
        p->images * p->rows * p->steps * (p->turned ? CONV_TURNED_PANEL : CONV_TALL);
    return tess__cpu_round_up((size_t)words * sizeof(uint32_t));
}

/* `count` elements, whole vectors of them, each paired with that of `odd` (NULL: with zero). */
CPU_INLINE void conv_pack_pairs(const uint16_t *even, const uint16_t *odd, int64_t count,
                                uint32_t *packed)
{
    for (int64_t c = 0; c < count; c += CPU_WORDS)
        cpu_pack_bf16(even + c, odd != NULL ? odd + c : NULL, CPU_WORDS, packed + c);
}

/*
 * One row of an image with its padding; NULL: a row of padding. Of pairs an element is paired with
 * the one that the same place of the window meets one output pixel later.
 */
static void conv_pack_row(const struct tess_op_desc *desc, const struct conv_plan *p, const void *x,
                          uint32_t *packed)
{
    int64_t border = desc->padding * desc->in, inner = desc->width * desc->in;
    int64_t all = p->width * desc->in, later = desc->stride * desc->in;
    int64_t lead = border < later ? border : later; /* paddings whose partner is in the image */
    int64_t pairs = inner > later ? inner - later : 0;
    const uint16_t *half = x;
    uint32_t *first = packed + border;
    if (x == NULL) {
        memset(packed, 0, (size_t)all * sizeof(uint32_t));
        return;
    }
    memset(packed, 0, (size_t)border * sizeof(uint32_t));
    memset(first + inner, 0, (size_t)(all - border - inner) * sizeof(uint32_t));
    if (!p->pairs) {
        cpu_widen_row(p->half, x, inner, (float *)first);
        return;
    }
    for (int64_t i = -lead; i < 0 && later + i < inner; i++)
        first[i] = (uint32_t)half[later + i] << 16;
    conv_pack_pairs(half, half + (inner - pairs), pairs, first);
    conv_pack_pairs(half + pairs, NULL, inner - pairs, first + pairs);
}

/* The rows of x under a block's `rows` rows of output from `first_row` on. */
static void conv_pack_x(const struct tess_op_desc *desc, const struct conv_plan *p, const char *x,
                        int64_t images, int64_t first_row, int64_t rows, uint32_t *packed)
{
    size_t row_bytes = (size_t)(desc->width * desc->in) * tess_dtype_bytes(desc->dtype);
    int64_t span = (rows - 1) * desc->stride + desc->window;
    for (int64_t image = 0; image < images; image++) {
        uint32_t *line = packed + image * p->span * p->width * desc->in;
        for (int64_t r = 0; r < span; r++, line += p->width * desc->in) {
            int64_t h = first_row * desc->stride + r - desc->padding;
            bool inside = h >= 0 && h < desc->height;
            conv_pack_row(desc, p,
                          inside ? x + (size_t)(image * desc->height + h) * row_bytes : NULL, line);
        }
    }
}

/* CONV_TALL channels of a pixel of dy, widened. */
CPU_INLINE void conv_channels(bool half, const void *pixel, uint32_t *packed)
{
#if CPU_WORDS == 16
    _mm256_storeu_ps((float *)packed, _mm256_loadu_ps(pixel));
    (void)half;
#else
    const __m128i words = half ? _mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64(pixel)), 16)
                               : _mm_loadu_si128(pixel);
    _mm_storeu_si128((void *)packed, words);
#endif
}

/* CONV_TALL channels of `lines` rows of dy; the last pair of an odd row ends with zeros. */
static void conv_pack_dy(const struct tess_op_desc *desc, const struct conv_plan *p, const void *dy,
                         int64_t lines, uint32_t *packed)
{
    int64_t out = desc->out;
    if (!p->pairs) {
        const char *pixel = dy;
        const int64_t element = p->half ? 2 : 4;
        for (int64_t k = 0; k < lines * p->ow; k++, pixel += out * element, packed += CONV_TALL)
            conv_channels(p->half, pixel, packed);
        return;
    }
    const uint16_t *pixel = dy;
    for (int64_t line = 0; line < lines; line++, pixel += p->ow * out) {
        for (int64_t w = 0; w < p->ow; w += 2, packed += CONV_TALL) {
            const uint16_t *even = pixel + w * out;
            __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)even));
            if (w + 1 < p->ow) {
                __m256i odd = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(even + out)));
                words = _mm256_or_si256(words, _mm256_slli_epi32(odd, 16));
            }
            _mm256_storeu_si256((void *)packed, words);
        }
    }
}

/* `channels` rows of dw over one block; b holds x. dy: the block's first pixel, at the first of the
 * channels. */
static void conv_block_run(const struct tess_op_desc *desc, const struct conv_plan *p,
                           struct conv_block *b, int64_t channels, const char *dy, float *dw,
                           uint32_t *packed)
{
    const uint32_t *x = b->x;
    int64_t columns = desc->window * desc->in;
    b->dy = packed;
    b->dw_row = desc->window * columns;
    for (int64_t o = 0; o < channels; o += CONV_TALL) {
        conv_pack_dy(desc, p, dy + (size_t)o * tess_dtype_bytes(desc->dtype), b->images * b->rows,
                     packed);
        for (int64_t kh = 0; kh < desc->window; kh++) {
            for (int64_t c = 0; c < columns; c += CONV_PANEL) {
                int64_t wide = (columns - c) / CPU_WORDS;
                b->x = x + kh * p->width * desc->in + c;
                b->dw = dw + o * b->dw_row + kh * columns + c;
                conv_tile_run[p->pairs][wide < CONV_WIDE ? wide - 1 : CONV_WIDE - 1](b);
            }
        }
    }
}

/* A tile of sums: `to` [words of the window][CONV_TURNED_PANEL]. Words past the last one are the
 * last again. */
struct conv_turned {
    const struct conv_block *block; /* dy: [images, rows, steps, vectors of the tile], widened */
    const uint32_t *word[CONV_TURNED_TALL];
    float *to[CONV_TURNED_TALL];
};

CPU_INLINE void conv_turned_tile(const struct conv_turned *t, bool pairs, int wide)
{
    cpu_vector sum[CONV_TURNED_TALL * CPU_WIDE];
    const struct conv_block *b = t->block;
    const uint32_t *dy = b->dy;
    const int64_t x_step = b->x_step;
    CPU_UNROLL
    for (int i = 0; i < CONV_TURNED_TALL * wide; i++)
        sum[i] = b->first ? cpu_zero() : cpu_load(t->to[i / wide] + i % wide * CPU_WORDS);
    for (int64_t image = 0; image < b->images; image++) {
        for (int64_t row = 0; row < b->rows; row++) {
            const uint32_t *x[CONV_TURNED_TALL];
            CPU_UNROLL
            for (int r = 0; r < CONV_TURNED_TALL; r++)
                x[r] = t->word[r] + image * b->x_image + row * b->x_row;
            const uint32_t *end = dy + b->steps * wide * CPU_WORDS;
            for (int64_t at = 0; dy < end; at += x_step, dy += wide * CPU_WORDS) {
                uint32_t scalar[CONV_TURNED_TALL];
                CPU_UNROLL
                for (int r = 0; r < CONV_TURNED_TALL; r++)
                    scalar[r] = x[r][at];
                cpu_step(sum, pairs, CONV_TURNED_TALL, wide, dy, scalar);
            }
        }
    }
    CPU_UNROLL
    for (int i = 0; i < CONV_TURNED_TALL * wide; i++)
        cpu_store(t->to[i / wide] + i % wide * CPU_WORDS, sum[i]);
}

CPU_WIDTHS(conv_turned_tiles, conv_turned_tile, const struct conv_turned *, false)

/* `channels` channels of `pixels` pixels of dy, widened, with zeros up to whole vectors. */
static void conv_turned_pack(const struct tess_op_desc *desc, bool half, const char *dy,
                             int64_t pixels, int64_t channels, uint32_t *packed)
{
    for (int64_t k = 0; k < pixels; k++, dy += desc->out * (half ? 2 : 4))
        for (int64_t c = 0; c < channels; c += CPU_WORDS, packed += CPU_WORDS)
            cpu_store((float *)packed, cpu_load_first_of(half, channels - c, dy, c));
}

/* The sums of conv_turned_tile() behind the packed dy. */
static size_t conv_turned_bytes(const struct tess_op_desc *desc)
{
    const int64_t panels = (desc->out + CONV_TURNED_PANEL - 1) / CONV_TURNED_PANEL;
    return (size_t)(desc->window * desc->window * desc->in * panels * CONV_TURNED_PANEL) *
           sizeof(float);
}

static void conv_turned_run(const struct tess_op_desc *desc, const struct conv_plan *p,
                            struct conv_block *b, int64_t channels, const char *dy,
                            uint32_t *packed, float *sums)
{
    const int64_t columns = desc->window * desc->in, words = desc->window * columns;
    struct conv_turned t = {.block = b};
    b->dy = packed;
    for (int64_t o = 0; o < channels; o += CONV_TURNED_PANEL, sums += words * CONV_TURNED_PANEL) {
        const int64_t left = tess__cpu_min(channels - o, CONV_TURNED_PANEL);
        conv_turned_pack(desc, p->half, dy + (size_t)o * tess_dtype_bytes(desc->dtype),
                         b->images * b->rows * p->steps, left, packed);
        for (int64_t w = 0; w < words; w += CONV_TURNED_TALL) {
            for (int64_t r = 0; r < CONV_TURNED_TALL; r++) {
                const int64_t own = tess__cpu_min(w + r, words - 1);
                t.word[r] = b->x + own / columns * p->width * desc->in + own % columns;
                t.to[r] = sums + own * CONV_TURNED_PANEL;
            }
            conv_turned_tiles[(left - 1) / CPU_WORDS](&t);
        }
    }
}

static void conv_turned_result(const struct tess_op_desc *desc, int64_t channels, const float *sums,
                               float *dw)
{
    const int64_t words = desc->window * desc->window * desc->in;
    for (int64_t o = 0; o < channels; o++)
        for (int64_t w = 0; w < words; w++)
            dw[o * words + w] = sums[(o / CONV_TURNED_PANEL * words + w) * CONV_TURNED_PANEL +
                                     o % CONV_TURNED_PANEL];
}

/* Of pairs in bf16 those that are not turned; oneDNN is faster at the others. */
bool CPU_OWN(conv_grad_takes)(const struct tess_op_desc *desc)
{
    if (desc->out % CPU_CONV_CHANNELS != 0)
        return false;
    const struct conv_plan p = conv_plan_of(desc);
    return !(p.pairs && p.turned);
}

size_t CPU_OWN(conv_grad_scratch)(const struct tess_op_desc *desc)
{
    struct conv_plan p = conv_plan_of(desc);
    return conv_x_bytes(desc, &p) + conv_dy_bytes(&p) + (p.turned ? conv_turned_bytes(desc) : 0);
}

/* As many bytes as this block's `own`, which start `first` bytes into the leaf's `all`. */
static struct conv_ahead conv_ahead_of(const struct tess_op_desc *desc, const struct conv_block *b,
                                       int64_t channels, const void *leaf, int64_t first,
                                       int64_t own, int64_t all)
{
    int64_t left = all - first - own, bytes = left < own ? left : own;
    if (bytes <= 0)
        return (struct conv_ahead){0};
    int64_t panels = (desc->window * desc->in + CONV_PANEL - 1) / CONV_PANEL;
    int64_t rows = b->images * b->rows * (channels / CONV_TALL) * desc->window * panels;
    const char *at = (const char *)leaf + first + own;
    return (struct conv_ahead){.at = at, .end = at + bytes, .lines = bytes / CONV_LINE / rows + 1};
}

void CPU_OWN(conv_grad)(const struct tess_op_desc *desc, const void *x, const void *dy,
                        int64_t first, int64_t count, float *dw, void *scratch)
{
    struct conv_plan p = conv_plan_of(desc);
    int64_t element = (int64_t)tess_dtype_bytes(desc->dtype);
    int64_t x_row = desc->width * desc->in * element, dy_row = p.ow * desc->out * element;
    int64_t x_lines = desc->leaf_rows * desc->height, dy_lines = desc->leaf_rows * p.oh;
    uint32_t *packed_x = scratch;
    uint32_t *packed_dy = (uint32_t *)((char *)scratch + conv_x_bytes(desc, &p));
    float *sums = (float *)(void *)((char *)packed_dy + conv_dy_bytes(&p)); /* turned */
    struct conv_block b = {.x_image = (p.packed ? p.span : desc->height) * p.width * desc->in,
                           .x_row = desc->stride * p.width * desc->in,
                           .x_step = (p.pairs ? 2 : 1) * desc->stride * desc->in,
                           .steps = p.steps,
                           .first = true};
    for (int64_t image = 0; image < desc->leaf_rows; image += b.images) {
        b.images = conv_clamp(p.images, desc->leaf_rows - image);
        for (int64_t row = 0; row < p.oh; row += b.rows, b.first = false) {
            b.rows = conv_clamp(p.rows, p.oh - row);
            int64_t line = image * desc->height + row * desc->stride, dy_line = image * p.oh + row;
            int64_t own = p.rows == p.oh ? b.images * desc->height : b.rows * desc->stride;
            b.ahead[0] =
                conv_ahead_of(desc, &b, count, x, line * x_row, own * x_row, x_lines * x_row);
            b.ahead[1] = conv_ahead_of(desc, &b, count, dy, dy_line * dy_row,
                                       b.images * b.rows * dy_row, dy_lines * dy_row);
            if (p.packed)
                conv_pack_x(desc, &p, (const char *)x + image * desc->height * x_row, b.images, row,
                            b.rows, packed_x);
            b.x = p.packed ? packed_x : (const uint32_t *)((const char *)x + line * x_row);
            const char *from = (const char *)dy + dy_line * dy_row + first * element;
            if (p.turned)
                conv_turned_run(desc, &p, &b, count, from, packed_dy, sums);
            else
                conv_block_run(desc, &p, &b, count, from, dw, packed_dy);
        }
    }
    if (p.turned)
        conv_turned_result(desc, count, sums, dw);
}
