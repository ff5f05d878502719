/*
 * Weight gradient of a convolution over one leaf on AMX tiles. product.c loops over the leaves and
 * adds them by the tree.
 *
 *     for every block of pixels, some images or some rows of one
 *       x packed: every pixel paired with that `stride` further          second-level cache
 *       for every strip of 32 rows of dw                                 dy packed and turned
 *         for every row of the kernel, for every 32 columns of window * in
 *           2 x 2 tiles of sums over the pixels, added to dw
 *
 * Pixels of the output are numbered as those of the padded input are, so that one number more is
 * one pixel further in dy and `stride` in x, at the end of a row as well: behind the pixels of a
 * row of dy there are some that are zero. Rows of x lie in `stride` planes, in which those under
 * neighbouring rows of dy are neighbours. A step of 32 pixels then needs no other data than the
 * packed x where it lies, wherever in the window it is.
 *
 * Each image, or each part of an image that is a block, starts a step, which ends with zeros.
 * Sums go through dw between blocks unchanged, so the bits depend on the geometry alone.
 */
#include "cpu/own/amx_room.h"
#include "cpu/own/turn.h"

#include <string.h>

/* Bounds of a block, in words: of x in one image, and of all its images. */
#define CONV_X_WORDS (96 * 1024)
#define CONV_WORDS   (128 * 1024)

/* How a leaf is cut into blocks: functions of the descriptor. */
struct conv_plan {
    int64_t oh, ow;
    int64_t width, line;    /* pixels of a row of dy with its zeros, of x with its padding */
    int64_t rows, images;   /* of a block; several images only with all their rows */
    int64_t x_plane;        /* words of a plane of packed x */
    int64_t x_image, steps; /* words of packed x, and steps of a strip of dy, for an image */
};

/* A block. */
struct conv_block {
    const struct tess_op_desc *desc;
    const struct conv_plan *plan;
    const uint32_t *dy; /* [images][plan.steps][2 tiles] */
    int64_t images, steps;
    bool first; /* of the leaf: dw is not yet a sum */
};

static int64_t conv_steps(const struct conv_plan *p, int64_t rows)
{
    return ((rows - 1) * p->width + p->ow + CPU_AMX_DEPTH - 1) / CPU_AMX_DEPTH;
}

/* Planes that have something of a window. */
static int64_t conv_planes(const struct tess_op_desc *desc)
{
    return tess__cpu_min(desc->stride, desc->window);
}

/* Words of a plane that the steps of `rows` rows of output read, all of their x among them: of the
 * last pixel a whole row of a tile. */
static int64_t conv_words(const struct tess_op_desc *desc, const struct conv_plan *p, int64_t rows)
{
    const int64_t stride = desc->stride, more = desc->window - 1;
    const int64_t pixels =
        more / stride * p->line + more + stride - 1 + conv_steps(p, rows) * CPU_AMX_DEPTH * stride;
    return amx_up(pixels * desc->in + CPU_WORDS, CPU_WORDS);
}

static int64_t conv_clamp(int64_t value, int64_t most)
{
    return value < 1 || most < 1 ? 1 : tess__cpu_min(value, most);
}

static struct conv_plan conv_plan_of(const struct tess_op_desc *desc)
{
    struct conv_plan p = {
        .oh = tess_op_output_size(desc->height, desc->window, desc->stride, desc->padding),
        .ow = tess_op_output_size(desc->width, desc->window, desc->stride, desc->padding),
        .line = amx_up(desc->width + 2 * desc->padding, desc->stride)};
    const int64_t planes = conv_planes(desc), under = (desc->window - 1) / desc->stride;
    p.width = p.line / desc->stride;
    p.rows = conv_clamp(CONV_X_WORDS / (planes * p.line * desc->in) - under, p.oh);
    p.steps = conv_steps(&p, p.rows);
    p.x_plane = conv_words(desc, &p, p.rows);
    p.x_image = planes * p.x_plane;
    p.images = 1;
    if (p.rows == p.oh)
        p.images = conv_clamp(CONV_WORDS / (p.x_image + p.steps * 2 * AMX_TILE), desc->leaf_rows);
    return p;
}

/* `count` elements, each paired with that `later`; the last ones with zeros. */
static void conv_pack_pairs(const uint16_t *x, int64_t count, int64_t later, uint32_t *packed)
{
    for (int64_t c = 0; c < count; c += CPU_WORDS) {
        const __mmask16 lanes = cpu_lanes(count - c);
        const __m256i low = _mm256_maskz_loadu_epi16(lanes, x + c);
        const __m256i high = _mm256_maskz_loadu_epi16(cpu_lanes(count - later - c), x + c + later);
        _mm512_mask_storeu_epi32(packed + c, lanes, cpu_pair(low, high));
    }
}

/* x [height, width, in] from row `top` of the padded image on, under `rows` rows of output. */
static void conv_pack_x(const struct tess_op_desc *desc, const struct conv_plan *p,
                        const uint16_t *x, int64_t top, int64_t rows, uint32_t *packed)
{
    const int64_t stride = desc->stride, span = (rows - 1) * stride + desc->window, in = desc->in;
    const int64_t line = p->line * in, later = stride * in;
    const int64_t inner = desc->width * in, border = desc->padding * in;
    for (int64_t r = 0; r < span; r++) {
        const int64_t h = top + r - desc->padding, down = r / stride;
        uint32_t *to = packed + r % stride * p->x_plane + down * line;
        if (r % stride >= desc->window)
            continue; /* between windows */
        if (h < 0 || h >= desc->height) {
            memset(to, 0, (size_t)line * sizeof(uint32_t));
            continue;
        }
        const uint16_t *from = x + h * inner;
        memset(to, 0, (size_t)border * sizeof(uint32_t));
        memset(to + border + inner, 0, (size_t)(line - border - inner) * sizeof(uint32_t));
        conv_pack_pairs(from, inner, later, to + border);
        /* What is before the first pixel, in the padding or at the end of the row above. */
        for (int64_t c = border < later && down == 0 ? later - border : 0;
             c < tess__cpu_min(later, inner); c++)
            to[border - later + c] |= (uint32_t)from[c] << 16;
    }
    for (int64_t i = 0; i < conv_planes(desc); i++) {
        const int64_t whole = (span - i + stride - 1) / stride * line;
        memset(packed + i * p->x_plane + whole, 0,
               (size_t)(conv_words(desc, p, rows) - whole) * sizeof(uint32_t));
    }
}

/* Turn a tile: words of a column become neighbours. */
static void conv_turn(uint32_t *tile)
{
    __m512i word[CPU_WORDS];
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        word[r] = _mm512_load_si512(tile + r * CPU_WORDS);
    cpu_turn_square(word);
    CPU_UNROLL
    for (int r = 0; r < CPU_WORDS; r++)
        _mm512_store_si512(tile + r * CPU_WORDS, word[r]);
}

/* A pixel of dy, which they follow in order; zeros between rows and at the end. */
struct conv_pixel {
    const uint16_t *next;
    int64_t row, column;
};

CPU_INLINE __m512i conv_pixel_load(const struct tess_op_desc *desc, const struct conv_plan *p,
                                   int64_t rows, __mmask32 lanes, struct conv_pixel *at)
{
    const bool there = at->row < rows && at->column < p->ow;
    const __m512i pixel = _mm512_maskz_loadu_epi16(there ? lanes : 0, at->next);
    at->next += there ? desc->out : 0;
    if (++at->column == p->width) {
        at->column = 0;
        at->row++;
    }
    return pixel;
}

/* 32 channels, or 16 and zeros, of `rows` rows of dy [oh, ow, out], in pairs of pixels. */
static void conv_pack_dy(const struct tess_op_desc *desc, const struct conv_plan *p,
                         const uint16_t *dy, int64_t rows, bool tall, uint32_t *packed)
{
    const __m512i low =
        _mm512_set_epi32(0x002f000f, 0x002e000e, 0x002d000d, 0x002c000c, 0x002b000b, 0x002a000a,
                         0x00290009, 0x00280008, 0x00270007, 0x00260006, 0x00250005, 0x00240004,
                         0x00230003, 0x00220002, 0x00210001, 0x00200000);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(CPU_AMX_ROWS));
    const __mmask32 lanes = tall ? 0xffffffffu : 0xffffu;
    struct conv_pixel at = {.next = dy};
    for (int64_t s = 0; s < conv_steps(p, rows); s++, packed += 2 * AMX_TILE) {
        for (int k = 0; k < CPU_WORDS; k++) {
            const __m512i even = conv_pixel_load(desc, p, rows, lanes, &at);
            const __m512i odd = conv_pixel_load(desc, p, rows, lanes, &at);
            uint32_t *to = packed + k * CPU_WORDS;
            _mm512_store_si512(to, _mm512_permutex2var_epi16(even, low, odd));
            _mm512_store_si512(to + AMX_TILE, _mm512_permutex2var_epi16(even, high, odd));
        }
        conv_turn(packed);
        conv_turn(packed + AMX_TILE);
    }
}

/* A block for the 32 rows, not `tall` 16, and 32 columns, not `wide` 16, at dw, rows of which are
 * `columns` apart. */
CPU_INLINE void conv_sums(const struct conv_block *b, const uint32_t *x, float *dw, int64_t columns,
                          bool tall, bool wide)
{
    const size_t dw_row = (size_t)columns * sizeof(float);
    const int64_t pixel = b->desc->stride * b->desc->in; /* words of x for one of dy */
    const size_t x_row = 2 * (size_t)pixel * sizeof(uint32_t);
    float *below = dw + CPU_AMX_ROWS * columns;
    CPU_AMX_ZERO(0);
    CPU_AMX_ZERO(1);
    CPU_AMX_ZERO(2);
    CPU_AMX_ZERO(3);
    if (!b->first) {
        CPU_AMX_LOAD(0, dw, dw_row);
        if (wide)
            CPU_AMX_LOAD(1, dw + CPU_WORDS, dw_row);
        if (tall)
            CPU_AMX_LOAD(2, below, dw_row);
        if (tall && wide)
            CPU_AMX_LOAD(3, below + CPU_WORDS, dw_row);
    }
    for (int64_t image = 0; image < b->images; image++) {
        const uint32_t *a = b->dy + image * b->plan->steps * 2 * AMX_TILE;
        const uint32_t *at = x + image * b->plan->x_image;
        for (int64_t s = 0; s < b->steps; s++) {
            CPU_AMX_LOAD(4, a, CPU_AMX_BYTES);
            CPU_AMX_LOAD(6, at, x_row);
            CPU_AMX_PRODUCT(0, 4, 6);
            if (wide) {
                CPU_AMX_LOAD(7, at + CPU_WORDS, x_row);
                CPU_AMX_PRODUCT(1, 4, 7);
            }
            if (tall) {
                CPU_AMX_LOAD(5, a + AMX_TILE, CPU_AMX_BYTES);
                CPU_AMX_PRODUCT(2, 5, 6);
            }
            if (tall && wide)
                CPU_AMX_PRODUCT(3, 5, 7);
            a += 2 * AMX_TILE;
            at += CPU_AMX_DEPTH * pixel;
        }
    }
    CPU_AMX_STORE(0, dw, dw_row);
    if (wide)
        CPU_AMX_STORE(1, dw + CPU_WORDS, dw_row);
    if (tall)
        CPU_AMX_STORE(2, below, dw_row);
    if (tall && wide)
        CPU_AMX_STORE(3, below + CPU_WORDS, dw_row);
}

CPU_INLINE void conv_panel(const struct conv_block *b, const uint32_t *x, float *dw,
                           int64_t columns, bool tall, bool wide)
{
    if (tall && wide)
        conv_sums(b, x, dw, columns, true, true);
    else if (tall)
        conv_sums(b, x, dw, columns, true, false);
    else if (wide)
        conv_sums(b, x, dw, columns, false, true);
    else
        conv_sums(b, x, dw, columns, false, false);
}

/* The same where the last tile is not whole: `count` columns. */
static void conv_edge(const struct conv_block *b, const uint32_t *x, float *dw, int64_t columns,
                      int64_t count, bool tall)
{
    _Alignas(64) float room[AMX_SUMS];
    const int64_t rows = tall ? AMX_STRIP : CPU_AMX_ROWS;
    for (int64_t r = 0; r < rows && !b->first; r++) {
        for (int64_t c = 0; c < AMX_STRIP; c += CPU_WORDS)
            _mm512_store_ps(room + r * AMX_STRIP + c,
                            _mm512_maskz_loadu_ps(cpu_lanes(count - c), dw + r * columns + c));
    }
    conv_panel(b, x, room, AMX_STRIP, tall, count > CPU_WORDS);
    for (int64_t r = 0; r < rows; r++)
        memcpy(dw + r * columns, room + r * AMX_STRIP, (size_t)count * sizeof(float));
}

/* A strip of dw, whose dy the block has, for packed x. */
static void conv_strip(const struct conv_block *b, const uint32_t *x, float *dw, bool tall)
{
    const int64_t count = b->desc->window * b->desc->in, columns = b->desc->window * count;
    for (int64_t kh = 0; kh < b->desc->window; kh++, dw += count) {
        const int64_t stride = b->desc->stride;
        const uint32_t *row =
            x + kh % stride * b->plan->x_plane + kh / stride * b->plan->line * b->desc->in;
        for (int64_t c = 0; c < count; c += AMX_STRIP) {
            const int64_t left = tess__cpu_min(count - c, AMX_STRIP);
            if (left % CPU_WORDS != 0)
                conv_edge(b, row + c, dw + c, columns, left, tall);
            else
                conv_panel(b, row + c, dw + c, columns, tall, left > CPU_WORDS);
        }
    }
}

bool tess__amx_conv_grad_takes(const struct tess_op_desc *desc)
{
    return desc->out % CPU_CONV_TILE == 0;
}

size_t tess__amx_conv_grad_scratch(const struct tess_op_desc *desc)
{
    const struct conv_plan p = conv_plan_of(desc);
    return (size_t)(p.images * (p.x_image + p.steps * 2 * AMX_TILE)) * sizeof(uint32_t);
}

void tess__amx_conv_grad(const struct tess_op_desc *desc, const void *x, const void *dy,
                         int64_t first, int64_t count, float *dw, void *scratch)
{
    const struct conv_plan p = conv_plan_of(desc);
    const int64_t x_size = desc->height * desc->width * desc->in, dy_size = p.oh * p.ow * desc->out;
    const int64_t of_channel = (int64_t)desc->window * desc->window * desc->in;
    uint32_t *packed_x = scratch, *packed_dy = packed_x + p.images * p.x_image;
    struct conv_block b = {.desc = desc, .plan = &p, .dy = packed_dy, .first = true};
    cpu_amx_begin();
    for (int64_t image = 0; image < desc->leaf_rows; image += b.images) {
        b.images = tess__cpu_min(p.images, desc->leaf_rows - image);
        for (int64_t row = 0, rows; row < p.oh; row += rows, b.first = false) {
            rows = tess__cpu_min(p.rows, p.oh - row);
            b.steps = conv_steps(&p, rows);
            for (int64_t i = 0; i < b.images; i++)
                conv_pack_x(desc, &p, (const uint16_t *)x + (image + i) * x_size,
                            row * desc->stride, rows, packed_x + i * p.x_image);
            for (int64_t o = 0; o < count; o += AMX_STRIP) {
                const bool tall = count - o >= AMX_STRIP;
                for (int64_t i = 0; i < b.images; i++)
                    conv_pack_dy(desc, &p,
                                 (const uint16_t *)dy + (image + i) * dy_size +
                                     row * p.ow * desc->out + first + o,
                                 rows, tall, packed_dy + i * p.steps * 2 * AMX_TILE);
                conv_strip(&b, packed_x, dw + o * of_channel, tall);
            }
        }
    }
    cpu_amx_end();
}
