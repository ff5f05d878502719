/*
 * y = a b + bias by AMX tiles.
 *
 *     for every block of columns, block of rows            the threads share these
 *       for every piece of the depth                       one, but for very deep products
 *         b packed in tiles [16 columns][16 pairs of rows] second-level cache
 *         for every strip of 32 rows of a                  read where it lies
 *           for every panel of 32 columns
 *             2 x 2 tiles of sums over the depth, and between its steps the last panel's
 *             y = sums + bias, ReLU, rounded once
 *
 * Packing interleaves the rows of b, or turns it where its columns lie as rows. y is turned at the
 * end where a and b have changed places, so that the smaller one of x and w can be what is packed.
 * Sums of a very deep product go through memory as they are, so that no element's bits depend on
 * pieces.
 */
#include "cpu/own/amx_product.h"

#include "cpu/own/amx_room.h"
#include "cpu/own/turn.h"

#include <string.h>

#define AMX_DEEP   4096   /* a multiple of CPU_AMX_DEPTH */
#define AMX_PIECE  2048   /* of a deeper product: a is read less often than with fewer columns */
#define AMX_ROWS   512    /* of its blocks: their sums wait in memory */
#define AMX_PACKED 524288 /* elements of a packed block: half of the second-level cache */

/* A product and how it is cut: blocks of row_block x column_block. */
struct amx_cut {
    const struct amx_product *p;
    int64_t row_block, column_block;
};

/* The work memory of a thread. */
struct amx_work {
    uint32_t *b;
    float *sum; /* [AMX_SUMS] of each panel of each strip; only two where depth allows */
    char *tail; /* [AMX_STRIP rows, CPU_AMX_BYTES]: the last columns of a, zeros behind */
};

static bool amx_is_deep(const struct amx_product *p)
{
    return p->depth > AMX_DEEP;
}

static int64_t amx_piece(const struct amx_product *p)
{
    return amx_is_deep(p) ? AMX_PIECE : p->depth;
}

/* Words from group to group of 16 packed columns: an odd number of cache lines, as the same step of
 * all groups must not lie in one set. */
static int64_t amx_group_words(const struct amx_product *p)
{
    return amx_up(amx_piece(p), CPU_AMX_DEPTH) / CPU_AMX_DEPTH * AMX_TILE + CPU_WORDS;
}

/* The greatest blocks; `threads` does not change them. */
static struct amx_cut amx_cut(const struct amx_product *p)
{
    int64_t most = AMX_PACKED / amx_up(amx_piece(p), CPU_AMX_DEPTH);
    most = most / AMX_STRIP * AMX_STRIP;
    return (struct amx_cut){
        .p = p,
        .row_block = tess__cpu_min(amx_up(p->rows, AMX_STRIP), amx_is_deep(p) ? AMX_ROWS : p->rows),
        .column_block = tess__cpu_min(amx_up(p->columns, AMX_STRIP), most)};
}

static size_t amx_work(const struct amx_cut *cut, void *base, struct amx_work *work_out)
{
    const int64_t blocks = amx_is_deep(cut->p) ? amx_up(cut->row_block, AMX_STRIP) / AMX_STRIP *
                                                     (cut->column_block / AMX_STRIP)
                                               : 2;
    const int64_t b = cut->column_block / CPU_AMX_ROWS * amx_group_words(cut->p);
    const int64_t words = b + blocks * AMX_SUMS + AMX_STRIP * CPU_WORDS;
    if (base != NULL)
        *work_out = (struct amx_work){
            .b = base,
            .sum = (float *)base + b,
            .tail = (char *)((float *)base + b + blocks * AMX_SUMS),
        };
    return (size_t)words * sizeof(uint32_t);
}

size_t tess__amx_product_scratch(const struct amx_product *product)
{
    const struct amx_cut cut = amx_cut(product);
    return amx_work(&cut, NULL, NULL);
}

/* ---- packing b ------------------------------------------------------------------------------ */

/* Columns first .. first + count - 1 from depth `k` on, turned. */
static void amx_pack_turned(const struct amx_product *p, int64_t k, int64_t depth, int64_t first,
                            int64_t count, uint32_t *packed)
{
    const int64_t steps = (depth + 1) / 2, all = amx_up(steps, CPU_WORDS);
    for (int64_t c = 0; c < count; c += CPU_WORDS, packed += amx_group_words(p)) {
        cpu_turn((const char *)(p->b + (first + c) * p->b_row + k), (size_t)p->b_row * 2,
                 tess__cpu_min(count - c, CPU_WORDS), 1, steps, depth % 2 != 0, packed);
        memset(packed + steps * CPU_WORDS, 0, (size_t)((all - steps) * CPU_WORDS) * 4);
    }
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* Tiles 0 .. 3 are sums, 4 and 5 of a, 6 and 7 of b. The last strip may have fewer rows; with 16
 * and less its lower half is the upper one again. */
static void amx_configure(int64_t rows)
{
    const uint8_t top = (uint8_t)tess__cpu_min(rows, CPU_AMX_ROWS);
    const uint8_t low = rows > CPU_AMX_ROWS ? (uint8_t)(rows - CPU_AMX_ROWS) : top;
    const struct cpu_amx_config config = {.palette = 1,
                                          .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                          .rows = {top, top, low, low, top, low, 16, 16}};
    cpu_amx_configure(&config);
}

/* ---- y -------------------------------------------------------------------------------------- */

/* sum [2][2] tiles of rows and columns, turned. */
static void amx_turn_sums(float *sum)
{
    __m512i upper[CPU_WORDS], lower[CPU_WORDS];
    for (int i = 0; i < 3; i++) {
        float *a = sum + (i == 2 ? 3 : i) * AMX_TILE;
        float *b = i == 1 ? sum + 2 * AMX_TILE : a;
        CPU_UNROLL
        for (int r = 0; r < CPU_WORDS; r++)
            upper[r] = _mm512_load_si512(a + r * CPU_WORDS);
        cpu_turn_square(upper);
        if (i == 1) {
            CPU_UNROLL
            for (int r = 0; r < CPU_WORDS; r++)
                lower[r] = _mm512_load_si512(b + r * CPU_WORDS);
            cpu_turn_square(lower);
            CPU_UNROLL
            for (int r = 0; r < CPU_WORDS; r++)
                _mm512_store_si512(a + r * CPU_WORDS, lower[r]);
        }
        CPU_UNROLL
        for (int r = 0; r < CPU_WORDS; r++)
            _mm512_store_si512(b + r * CPU_WORDS, upper[r]);
    }
}

/* Rows of y that wait for their sums to be rounded: between the steps of the next panel, as the
 * unit of tiles would else wait meanwhile. */
struct amx_late {
    const float *sum; /* [2][2] tiles */
    uint16_t *y;
    int64_t row, rows;
    __m512 low_bias, high_bias;
    __mmask32 mask;
};

/* y[row .. row + rows - 1, column .. column + columns - 1] from sum. */
CPU_INLINE struct amx_late amx_late(const struct amx_product *p, const float *sum, int64_t row,
                                    int64_t rows, int64_t column, int64_t columns)
{
    struct amx_late late = {.sum = sum,
                            .y = p->y + row * p->y_row + column,
                            .rows = rows,
                            .low_bias = _mm512_setzero_ps(),
                            .high_bias = _mm512_setzero_ps(),
                            .mask = columns < AMX_STRIP ? (1u << columns) - 1 : 0xffffffffu};
    if (p->bias != NULL) {
        const __m512i bias = _mm512_maskz_loadu_epi16(late.mask, p->bias + column);
        late.low_bias = cpu_widen(_mm512_castsi512_si256(bias));
        late.high_bias = cpu_widen(_mm512_extracti64x4_epi64(bias, 1));
    }
    return late;
}

/* The next `count` rows, or those that are left. A NaN passes the ReLU. */
CPU_INLINE void amx_finish(const struct amx_product *p, struct amx_late *late, int64_t count)
{
    const bool has_bias = p->bias != NULL, relu = p->relu;
    const int64_t end = tess__cpu_min(late->row + count, late->rows);
    for (; late->row < end; late->row++, late->y += p->y_row) {
        const float *sum = late->sum + late->row % CPU_AMX_ROWS * CPU_WORDS +
                           late->row / CPU_AMX_ROWS * 2 * AMX_TILE;
        __m512 low = _mm512_load_ps(sum), high = _mm512_load_ps(sum + AMX_TILE);
        if (has_bias) {
            low = _mm512_add_ps(low, late->low_bias);
            high = _mm512_add_ps(high, late->high_bias);
        }
        if (relu) {
            low = _mm512_max_ps(_mm512_setzero_ps(), low);
            high = _mm512_max_ps(_mm512_setzero_ps(), high);
        }
        _mm512_mask_storeu_epi16(late->y, late->mask, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* A block of a call: its rows and columns of y, and the depth that is packed now. */
struct amx_block {
    const struct amx_cut *cut;
    struct amx_work work;
    int64_t row, rows, column, columns, k, depth;
};

/* The last depth % CPU_AMX_DEPTH columns of a strip, and zeros. */
static void amx_copy_tail(const struct amx_block *b, int64_t row, int64_t rows)
{
    const struct amx_product *p = b->cut->p;
    const int64_t left = b->depth % CPU_AMX_DEPTH;
    const uint16_t *a = p->a + row * p->a_row + b->k + b->depth - left;
    const __mmask32 mask = (1u << left) - 1;
    for (int64_t r = 0; r < rows; r++)
        _mm512_store_si512(b->work.tail + r * CPU_AMX_BYTES,
                           _mm512_maskz_loadu_epi16(mask, a + r * p->a_row));
}

/* What is asked for in each step of a panel: its lines of y, and what the next strip reads of a. */
struct amx_soon {
    struct amx_ahead y, a;
};

/* The sums of a panel, and what is late. */
CPU_INLINE void amx_panel_sums(const struct amx_block *b, struct amx_reads reads, bool low,
                               bool wide, struct amx_late *late, struct amx_soon *soon)
{
    const struct amx_product *p = b->cut->p;
    const int64_t whole = b->depth / CPU_AMX_DEPTH;
    const int64_t each = whole > 0 ? (AMX_STRIP + whole - 1) / whole : 0;
    for (int64_t t = 0; t < whole; t++) {
        amx_steps(&reads, 1, wide);
        for (int i = 0; i < 2; i++) {
            reads.a[i] += reads.a_step;
            reads.b[i] += AMX_TILE;
        }
        amx_finish(p, late, each);
        amx_ask(&soon->y, true);
        amx_ask(&soon->a, false);
    }
    if (b->depth % CPU_AMX_DEPTH != 0) {
        reads.a[0] = reads.a[1] = b->work.tail;
        reads.a[1] += low ? CPU_AMX_ROWS * CPU_AMX_BYTES : 0;
        reads.a_row = CPU_AMX_BYTES;
        amx_steps(&reads, 1, wide);
    }
    amx_finish(p, late, AMX_STRIP);
}

/* For a panel of y; and for the strip behind row + rows. */
static void amx_soon_y(const struct amx_block *b, int64_t row, int64_t rows, int64_t column,
                       int64_t columns, struct amx_soon *soon)
{
    const struct amx_product *p = b->cut->p;
    const uint16_t *y = p->y + row * p->y_row + column;
    const int64_t steps = amx_up(b->depth, CPU_AMX_DEPTH) / CPU_AMX_DEPTH;
    soon->y = amx_ahead(y, (size_t)p->y_row * 2, rows, columns * 2, steps);
}

static void amx_soon_a(const struct amx_block *b, int64_t row, struct amx_soon *soon)
{
    const struct amx_product *p = b->cut->p;
    const int64_t rows = tess__cpu_min(b->row + b->rows - row, AMX_STRIP);
    const int64_t panels = amx_up(b->columns, AMX_STRIP) / AMX_STRIP;
    const int64_t steps = panels * amx_up(b->depth, CPU_AMX_DEPTH) / CPU_AMX_DEPTH;
    if (rows > 0)
        soon->a = amx_ahead(p->a + row * p->a_row + b->k, (size_t)p->a_row * 2, rows, b->depth * 2,
                            steps);
}

/* Rows row .. row + rows - 1 of y, all columns of the block. */
static void amx_strip(const struct amx_block *b, int64_t row, int64_t rows)
{
    const struct amx_product *p = b->cut->p;
    const size_t a_row = (size_t)p->a_row * 2;
    const int64_t group = amx_group_words(p);
    const bool low = rows > CPU_AMX_ROWS, last = b->k + b->depth == p->depth;
    const char *a = (const char *)(p->a + row * p->a_row + b->k);
    float *sum = b->work.sum;
    struct amx_reads reads = {
        .a = {a, low ? a + CPU_AMX_ROWS * a_row : a}, .a_row = a_row, .a_step = CPU_AMX_BYTES};
    struct amx_late late = {.rows = 0};
    struct amx_soon soon = {.a = {.rows = 0}};
    amx_soon_a(b, row + rows, &soon);
    if (amx_is_deep(p))
        sum += (row - b->row) / AMX_STRIP * (amx_up(b->columns, AMX_STRIP) / AMX_STRIP) * AMX_SUMS;
    if (b->depth % CPU_AMX_DEPTH != 0)
        amx_copy_tail(b, row, rows);
    for (int64_t c = 0; c < b->columns; c += AMX_STRIP) {
        const int64_t columns = tess__cpu_min(b->columns - c, AMX_STRIP);
        reads.b[0] = b->work.b + c / CPU_AMX_ROWS * group;
        reads.b[1] = reads.b[0] + group;
        if (last && p->y_turned)
            amx_soon_y(b, b->column + c, columns, row, rows, &soon);
        else if (last)
            amx_soon_y(b, row, rows, b->column + c, columns, &soon);
        amx_begin_sums(sum, b->k == 0);
        if (columns > CPU_AMX_ROWS)
            amx_panel_sums(b, reads, low, true, &late, &soon);
        else
            amx_panel_sums(b, reads, low, false, &late, &soon);
        amx_store_sums(sum);
        if (last && p->y_turned) {
            amx_turn_sums(sum);
            late = amx_late(p, sum, b->column + c, columns, row, rows);
        } else if (last) {
            late = amx_late(p, sum, row, rows, b->column + c, columns);
        }
        if (amx_is_deep(p))
            sum += AMX_SUMS;
        else
            sum = sum == b->work.sum ? sum + AMX_SUMS : b->work.sum;
    }
    amx_finish(p, &late, AMX_STRIP);
}

static void amx_part(void *context, int64_t part, void *memory)
{
    const struct amx_cut *cut = context;
    const struct amx_product *p = cut->p;
    const int64_t row_blocks = (p->rows + cut->row_block - 1) / cut->row_block;
    struct amx_block b = {.cut = cut,
                          .row = part % row_blocks * cut->row_block,
                          .column = part / row_blocks * cut->column_block};
    b.rows = tess__cpu_min(p->rows - b.row, cut->row_block);
    b.columns = tess__cpu_min(p->columns - b.column, cut->column_block);
    amx_work(cut, memory, &b.work);
    for (b.k = 0; b.k < p->depth; b.k += b.depth) {
        b.depth = tess__cpu_min(p->depth - b.k, amx_piece(p));
        if (p->b_turned)
            amx_pack_turned(p, b.k, b.depth, b.column, b.columns, b.work.b);
        else
            amx_pack_rows(p->b + b.k * p->b_row + b.column, p->b_row, b.depth, b.columns,
                          amx_up(b.depth, CPU_AMX_DEPTH) / 2, amx_group_words(p), b.work.b);
        cpu_amx_begin();
        int64_t row = b.row, end = b.row + b.rows;
        for (; row + AMX_STRIP <= end; row += AMX_STRIP)
            amx_strip(&b, row, AMX_STRIP);
        if (row < end) {
            amx_configure(end - row);
            amx_strip(&b, row, end - row);
        }
        cpu_amx_end();
    }
}

void tess__amx_product(const struct tess_kernel *kernel, const struct amx_product *p, void *scratch)
{
    struct amx_cut cut = amx_cut(p);
    const int64_t threads = kernel->threads;
    int64_t row_blocks = (p->rows + cut.row_block - 1) / cut.row_block;
    int64_t column_blocks = (p->columns + cut.column_block - 1) / cut.column_block;
    /* What is packed is packed again for each block of rows. */
    if (!p->y_turned)
        cut.column_block = amx_even(p->columns, cut.column_block, row_blocks, threads);
    column_blocks = (p->columns + cut.column_block - 1) / cut.column_block;
    cut.row_block = amx_even(p->rows, cut.row_block, column_blocks, threads);
    row_blocks = (p->rows + cut.row_block - 1) / cut.row_block;
    tess__cpu_share(kernel, row_blocks * column_blocks, amx_part, &cut, scratch);
}
