/*
 * dw[out, in] = dy^T x by leaves on AMX tiles.
 *
 *     for every block of columns, block of rows of dw      the threads share these
 *       for every chunk of the rows of x and dy            whole leaves, or part of one
 *         x packed in tiles [16 columns][16 pairs]         second-level cache
 *         for every strip of 32 rows of dw                 dy packed and turned: first-level cache
 *           for every panel of 32 columns of it
 *             for every leaf of the chunk: 2 x 2 tiles of sums; add to the subtrees that wait
 *             after the last chunk: dw = the tree's root
 *
 * Each leaf is summed by steps of 32 rows from its first on, then the tree of fold.h is that of one
 * product per leaf; so neither threads nor chunks change bits. Leaves of fewer than 32 rows share a
 * packed tile: each is a product over some of its pairs.
 */
#include "cpu/own/amx_room.h"
#include "cpu/own/turn.h"

#define GRAD_CHUNK  512    /* pairs of rows of a chunk at most */
#define GRAD_PACKED 262144 /* words of packed x: half of the second-level cache */
/* Of a block where chunks leave sums in memory: 256 KiB for each subtree that waits. */
#define GRAD_ROWS    256
#define GRAD_COLUMNS 256

/* A call and how it is cut. */
struct amx_grad {
    const struct tess_op_desc *desc;
    const uint16_t *x, *dy;
    float *dw;
    int64_t leaves, pairs; /* of a leaf, with zeros: a power of two or a multiple of 16 */
    int64_t chunk;         /* pairs */
    int64_t row_block, column_block;
};

/* The work memory of a thread. */
struct grad_work {
    uint32_t *x, *dy; /* [groups of 16][grad_group()] */
    float *sum;       /* [subtrees that wait][places][AMX_SUMS] */
};

/* Some leaves (steps 0 .. pairs - 1), or steps of one. */
struct grad_chunk {
    int64_t leaf, leaves, step, steps;
};

static int64_t grad_pairs(const struct tess_op_desc *desc)
{
    const int64_t pairs = (desc->leaf_rows + 1) / 2;
    int64_t padded = 1;
    while (padded < pairs && padded < CPU_WORDS)
        padded *= 2;
    return pairs > CPU_WORDS ? amx_up(pairs, CPU_WORDS) : padded;
}

static struct amx_grad grad_cut(const struct tess_op_desc *desc)
{
    struct amx_grad g = {
        .desc = desc, .leaves = desc->rows / desc->leaf_rows, .pairs = grad_pairs(desc)};
    g.chunk = tess__cpu_min(amx_up(g.leaves * g.pairs, CPU_WORDS), GRAD_CHUNK);
    g.chunk = g.chunk > 0 ? g.chunk : CPU_WORDS; /* no rows: never run, but asked what it needs */
    g.row_block = amx_up(desc->out, AMX_STRIP);
    g.column_block =
        tess__cpu_min(amx_up(desc->in, AMX_STRIP), GRAD_PACKED / g.chunk / AMX_STRIP * AMX_STRIP);
    if (g.leaves * g.pairs > g.chunk) {
        g.column_block = tess__cpu_min(g.column_block, GRAD_COLUMNS);
        g.row_block = tess__cpu_min(g.row_block, GRAD_ROWS);
    }
    return g;
}

/* Where the sums of a strip and a panel wait from chunk to chunk. */
static int64_t grad_places(const struct amx_grad *g)
{
    return g->leaves * g->pairs > g->chunk ? g->row_block * g->column_block / AMX_SUMS : 1;
}

/* Words from group to group of 16 columns: an odd number of cache lines. */
static int64_t grad_group(const struct amx_grad *g)
{
    return g->chunk * CPU_WORDS + CPU_WORDS;
}

static size_t grad_memory(const struct amx_grad *g, void *base, struct grad_work *work_out)
{
    const int64_t x = g->column_block / CPU_AMX_ROWS * grad_group(g), dy = 2 * grad_group(g);
    int64_t waiting = 1;
    for (int64_t leaf = 1; leaf < g->leaves; leaf *= 2)
        waiting++;
    const int64_t words = x + dy + waiting * grad_places(g) * AMX_SUMS;
    if (base != NULL)
        *work_out = (struct grad_work){
            .x = base, .dy = (uint32_t *)base + x, .sum = (float *)base + x + dy};
    return (size_t)words * sizeof(uint32_t);
}

size_t tess__amx_grad_scratch(const struct tess_op_desc *desc)
{
    const struct amx_grad g = grad_cut(desc);
    return grad_memory(&g, NULL, NULL);
}

/* Columns first .. first + count - 1 of a chunk of from [rows, width]. */
static void grad_pack(const struct amx_grad *g, const struct grad_chunk *c, const uint16_t *from,
                      int64_t width, int64_t first, int64_t count, uint32_t *packed)
{
    const int64_t leaf_rows = g->desc->leaf_rows;
    for (int64_t l = 0; l < c->leaves; l++, packed += c->steps * CPU_WORDS)
        amx_pack_rows(from + ((c->leaf + l) * leaf_rows + 2 * c->step) * width + first, width,
                      leaf_rows - 2 * c->step, count, c->steps, grad_group(g), packed);
}

/* Turn the packed tiles of dy: words of a row of dw become neighbours. */
static void grad_turn(const struct amx_grad *g, int64_t steps, uint32_t *packed)
{
    for (int64_t group = 0; group < 2; group++, packed += grad_group(g))
        for (int64_t tile = 0; tile < steps; tile += CPU_WORDS) {
            uint32_t *at = packed + tile * CPU_WORDS;
            __m512i word[CPU_WORDS];
            CPU_UNROLL
            for (int r = 0; r < CPU_WORDS; r++)
                word[r] = _mm512_load_si512(at + r * CPU_WORDS);
            cpu_turn_square(word);
            CPU_UNROLL
            for (int r = 0; r < CPU_WORDS; r++)
                _mm512_store_si512(at + r * CPU_WORDS, word[r]);
        }
}

/* left = left + right */
static void grad_add(float *left, const float *right)
{
    for (int64_t i = 0; i < AMX_SUMS; i += CPU_WORDS)
        _mm512_store_ps(left + i,
                        _mm512_add_ps(_mm512_load_ps(left + i), _mm512_load_ps(right + i)));
}

/* What is asked for in each step of a panel: its lines of dw, and what the next strip reads of dy.
 */
struct grad_soon {
    struct amx_ahead dw, dy;
};

/*
 * The leaves of a chunk for one strip and one panel. Before leaf n as many subtrees wait as n has
 * bits; its sums go behind them, then meet those of the bits that carry. `place` is that of the
 * oldest, `step` elements from one to the next.
 */
static void grad_leaves(const struct amx_grad *g, const struct grad_chunk *c, const uint32_t *dy,
                        const uint32_t *x, float *place, int64_t step, struct grad_soon *soon)
{
    const int64_t group = grad_group(g), depth = tess__cpu_min(c->steps, CPU_WORDS);
    for (int64_t l = 0; l < c->leaves; l++) {
        const int64_t at = l * c->steps, leaf = c->leaf + l;
        const char *a = (const char *)(dy + at / CPU_WORDS * AMX_TILE + at % CPU_WORDS);
        const uint32_t *b = x + at * CPU_WORDS;
        struct amx_reads reads = {.a = {a, a + group * 4},
                                  .a_row = CPU_AMX_BYTES,
                                  .a_step = AMX_TILE * 4,
                                  .b = {b, b + group}};
        float *sum = place + __builtin_popcountll((uint64_t)leaf) * step;
        amx_begin_sums(sum, c->step == 0);
        for (int64_t t = 0; t < c->steps / depth; t++) {
            amx_steps(&reads, 1, true);
            for (int i = 0; i < 2; i++) {
                reads.a[i] += reads.a_step;
                reads.b[i] += AMX_TILE;
            }
            amx_ask(&soon->dw, true);
            amx_ask(&soon->dy, false);
        }
        amx_store_sums(sum);
        if (c->step + c->steps < g->pairs)
            return;
        for (int64_t carry = leaf; carry & 1; carry >>= 1, sum -= step)
            grad_add(sum - step, sum);
        if (leaf == g->leaves - 1)
            for (; sum > place; sum -= step)
                grad_add(sum - step, sum);
    }
}

/* The root to dw[row .. row + rows - 1, column .. column + columns - 1]. */
static void grad_store(const struct amx_grad *g, const float *sum, int64_t row, int64_t rows,
                       int64_t column, int64_t columns)
{
    const bool add = g->desc->add_grad;
    float *dw = g->dw + row * g->desc->in + column;
    for (int64_t r = 0; r < rows; r++, dw += g->desc->in, sum += CPU_WORDS) {
        if (r == CPU_AMX_ROWS)
            sum += AMX_TILE;
        for (int64_t c = 0; c < columns; c += CPU_WORDS) {
            const __mmask16 mask = cpu_lanes(columns - c);
            __m512 value = _mm512_load_ps(sum + c / CPU_WORDS * AMX_TILE);
            if (add)
                value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, dw + c), value);
            _mm512_mask_storeu_ps(dw + c, mask, value);
        }
    }
}

/* A block, rows row .. row + rows - 1 of dw, for one chunk. */
struct grad_block {
    const struct amx_grad *g;
    struct grad_work work;
    int64_t row, rows, column, columns;
};

/* What a strip reads of dy in a chunk. */
static struct amx_ahead grad_ahead(const struct amx_grad *g, const struct grad_chunk *c,
                                   int64_t row, int64_t rows, int64_t times)
{
    const int64_t first = c->leaf * g->desc->leaf_rows + 2 * c->step;
    const int64_t end =
        tess__cpu_min(first + 2 * c->leaves * c->steps, (c->leaf + c->leaves) * g->desc->leaf_rows);
    return amx_ahead(g->dy + first * g->desc->out + row, (size_t)g->desc->out * 2, end - first,
                     rows * 2, times);
}

static void grad_strips(const struct grad_block *b, const struct grad_chunk *c)
{
    const struct amx_grad *g = b->g;
    const int64_t places = grad_places(g), group = grad_group(g);
    const bool last = c->leaf + c->leaves == g->leaves && c->step + c->steps == g->pairs;
    float *place = b->work.sum;
    const int64_t steps = c->leaves * (c->steps + CPU_WORDS - 1) / CPU_WORDS;
    for (int64_t r = 0; r < b->rows; r += AMX_STRIP) {
        const int64_t rows = tess__cpu_min(b->rows - r, AMX_STRIP);
        const int64_t panels = amx_up(b->columns, AMX_STRIP) / AMX_STRIP;
        struct grad_soon soon = {.dy = {.rows = 0}};
        grad_pack(g, c, g->dy, g->desc->out, b->row + r, rows, b->work.dy);
        grad_turn(g, c->leaves * c->steps, b->work.dy);
        if (r + AMX_STRIP < b->rows)
            soon.dy = grad_ahead(g, c, b->row + r + AMX_STRIP,
                                 tess__cpu_min(b->rows - r - AMX_STRIP, AMX_STRIP), panels * steps);
        for (int64_t k = 0; k < b->columns; k += AMX_STRIP) {
            if (last)
                soon.dw = amx_ahead(g->dw + (b->row + r) * g->desc->in + b->column + k,
                                    (size_t)g->desc->in * 4, rows,
                                    tess__cpu_min(b->columns - k, AMX_STRIP) * 4, steps);
            grad_leaves(g, c, b->work.dy, b->work.x + k / CPU_AMX_ROWS * group, place,
                        places * AMX_SUMS, &soon);
            if (last)
                grad_store(g, place, b->row + r, rows, b->column + k,
                           tess__cpu_min(b->columns - k, AMX_STRIP));
            place += places > 1 ? AMX_SUMS : 0;
        }
    }
}

/* Leaves of few rows: as many pairs of a tile as one has. */
static void grad_configure(const struct amx_grad *g)
{
    const uint8_t pairs = (uint8_t)tess__cpu_min(g->pairs, CPU_WORDS), a = (uint8_t)(4 * pairs);
    const struct cpu_amx_config config = {.palette = 1,
                                          .row_bytes = {64, 64, 64, 64, a, a, 64, 64},
                                          .rows = {16, 16, 16, 16, 16, 16, pairs, pairs}};
    cpu_amx_configure(&config);
}

static void grad_part(void *context, int64_t part, void *memory)
{
    const struct amx_grad *g = context;
    const struct tess_op_desc *desc = g->desc;
    const int64_t row_blocks = (desc->out + g->row_block - 1) / g->row_block;
    struct grad_block b = {.g = g,
                           .row = part % row_blocks * g->row_block,
                           .column = part / row_blocks * g->column_block};
    b.rows = tess__cpu_min(desc->out - b.row, g->row_block);
    b.columns = tess__cpu_min(desc->in - b.column, g->column_block);
    grad_memory(g, memory, &b.work);
    struct grad_chunk c = {.leaves = tess__cpu_min(g->chunk / g->pairs, g->leaves)};
    grad_configure(g);
    for (c.leaf = 0; c.leaf < g->leaves; c.leaf += c.leaves) {
        c.leaves = c.leaves == 0 ? 1 : tess__cpu_min(c.leaves, g->leaves - c.leaf);
        for (c.step = 0; c.step < g->pairs; c.step += c.steps) {
            c.steps = tess__cpu_min(g->pairs - c.step, g->chunk);
            grad_pack(g, &c, g->x, desc->in, b.column, b.columns, b.work.x);
            grad_strips(&b, &c);
        }
    }
    cpu_amx_end();
}

size_t tess__amx_grad_shared(const struct tess_op_desc *desc)
{
    (void)desc;
    return 0;
}

bool tess__amx_grad_updates(const struct tess_op_desc *desc)
{
    (void)desc;
    return false;
}

void tess__amx_grad(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                    const void *x, const void *dy, float *dw, const struct cpu_update *update,
                    void *scratch)
{
    (void)update;
    struct amx_grad g = grad_cut(desc);
    g.x = x;
    g.dy = dy;
    g.dw = dw;
    int64_t column_blocks = (desc->in + g.column_block - 1) / g.column_block;
    g.row_block = amx_even(desc->out, g.row_block, column_blocks, kernel->threads);
    const int64_t row_blocks = (desc->out + g.row_block - 1) / g.row_block;
    g.column_block = amx_even(desc->in, g.column_block, row_blocks, kernel->threads);
    column_blocks = (desc->in + g.column_block - 1) / g.column_block;
    tess__cpu_share(kernel, row_blocks * column_blocks, grad_part, &g, scratch);
}
