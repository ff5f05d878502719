/*
 * Backward pass of causal attention (Dao 2023, "FlashAttention-2", algorithm 2). Built for AVX-512
 * and for AVX2 (CMakeLists.txt); own_none.c replaces it elsewhere.
 *
 *     for every sequence and key and value head       the threads share these
 *       K and V turned, K in pairs of positions
 *       for every query head of it
 *         Q and dY as rows and in pairs of positions; delta = dy . y of each row
 *         for every panel of FLASH_PANEL keys
 *           for every block of GRAD_QUERIES queries from the panel's first key on
 *             p = exp(q k^T - lse), ds = p (dy v^T - delta), both by queries and by pairs of them
 *             dV += p^T dY, dK += ds^T Q over the block; dQ += ds K
 *
 * With a window only the queries that see a key of the panel, and p = 0 where one is out of it.
 *
 * Sums are f32 [T, D] in memory and are rounded once; those of K and V go over the query heads in
 * order. All of it is O(T).
 */
#include "cpu/own/flash_room.h"

#define GRAD_QUERIES 96 /* whole tiles, and whole pairs */

/* The work memory of one thread. */
struct grad_work {
    uint32_t *copy;                /* [T, f.row] */
    uint32_t *k_turned, *v_turned; /* [panels][steps][FLASH_PANEL] */
    uint32_t *k_pairs;             /* [pairs, width] */
    uint32_t *q, *dy;              /* rows [T + a tile, f.row]: zeros behind the last */
    uint32_t *q_pairs, *dy_pairs;  /* [pairs, width] */
    float *dq, *dk, *dv;           /* [T + a tile, width] */
    float *lse, *delta;            /* [T + a tile]: lse in units of ln 2, infinite behind */
    float *s, *dp;                 /* one tile [CPU_TILE_TALL, FLASH_PANEL] */
    float *keep;                   /* likewise: what dropout multiplies p with */
    uint32_t *p, *ds;              /* [GRAD_QUERIES / 2 or GRAD_QUERIES, FLASH_PANEL] */
    uint16_t *ds_rows;             /* bf16: [GRAD_QUERIES, FLASH_PANEL] */
};

static struct grad_work grad_work(const struct flash *f, void *base, size_t *bytes_out)
{
    size_t used = 0;
    int64_t rows = f->length + CPU_TILE_TALL, panel = f->panels * f->steps * FLASH_PANEL;
    int64_t pairs = f->half ? f->pairs * f->width : 0; /* in f32 the rows serve */
    struct grad_work w = {
        .copy = flash_take(base, &used, f->length * f->row),
        .k_turned = flash_take(base, &used, panel),
        .v_turned = flash_take(base, &used, panel),
        .k_pairs = flash_take(base, &used, pairs),
        .q = flash_take(base, &used, rows * f->row),
        .dy = flash_take(base, &used, rows * f->row),
        .q_pairs = flash_take(base, &used, pairs),
        .dy_pairs = flash_take(base, &used, pairs),
        .dq = flash_take(base, &used, rows * f->width),
        .dk = flash_take(base, &used, rows * f->width),
        .dv = flash_take(base, &used, rows * f->width),
        .lse = flash_take(base, &used, rows),
        .delta = flash_take(base, &used, rows),
        .s = flash_take(base, &used, CPU_TILE_TALL * FLASH_PANEL),
        .dp = flash_take(base, &used, CPU_TILE_TALL * FLASH_PANEL),
        .keep = flash_take(base, &used, f->desc->dropout > 0 ? CPU_TILE_TALL * FLASH_PANEL : 0),
        .p = flash_take(base, &used, GRAD_QUERIES * FLASH_PANEL),
        .ds = flash_take(base, &used, GRAD_QUERIES * FLASH_PANEL),
        .ds_rows = f->half ? flash_take(base, &used, GRAD_QUERIES * FLASH_PANEL / 2) : NULL,
    };
    *bytes_out = used;
    return w;
}

size_t CPU_OWN(flash_grad_scratch)(const struct tess_op_desc *desc)
{
    struct flash f = flash_of(desc);
    size_t bytes;
    grad_work(&f, NULL, &bytes);
    return bytes;
}

struct grad_call {
    struct flash f;
    const struct cpu_flash_grad *arrays;
};

/* A block of queries against a panel of keys. */
struct grad_block {
    int64_t key, keys;   /* the panel: first, and how many there are */
    int64_t first, rows; /* queries */
    bool first_head;
    int32_t head;     /* its number in the call */
    int64_t position; /* of the sequence's first query in the call */
    const uint32_t *k_pairs, *q_pairs, *dy_pairs;
};

/* s and dp of up to 6 queries from `query` on: the first `wide` vectors of the panel. */
static void grad_scores(const struct flash *f, const struct grad_work *w, int64_t query,
                        int64_t key, int wide)
{
    struct cpu_tile tile = {.column = w->k_turned + key * f->steps,
                            .column_step = FLASH_PANEL,
                            .scalar = w->q + query * f->row,
                            .scalar_row = (size_t)f->row * sizeof(uint32_t),
                            .scalar_step = sizeof(uint32_t),
                            .rows = CPU_TILE_TALL,
                            .steps = f->steps,
                            .sum = w->s,
                            .sum_row = FLASH_PANEL,
                            .begin = true};
    CPU_OWN(tile)(f->half, wide, &tile);
    tile.column = w->v_turned + key * f->steps;
    tile.scalar = w->dy + query * f->row;
    tile.sum = w->dp;
    CPU_OWN(tile)(f->half, wide, &tile);
}

/* What dropout multiplies the probabilities of a tile with, of queries from `query` on. */
static void grad_keep(const struct flash *f, const struct grad_work *w, const struct grad_block *b,
                      int64_t query)
{
    cpu_mask keep[FLASH_PANEL / CPU_WORDS];
    for (int64_t r = 0; f->drop.on && r < CPU_TILE_TALL; r++) {
        const uint64_t position = (uint64_t)(b->position + query + r);
        flash_keep(&f->drop, tess__mask_row(f->drop.of, position, b->head), b->key / FLASH_PANEL,
                   keep);
        for (int64_t v = 0; v < FLASH_PANEL / CPU_WORDS; v++)
            cpu_store(w->keep + r * FLASH_PANEL + v * CPU_WORDS,
                      cpu_keep(keep[v], cpu_set(f->drop.scale)));
    }
}

/* p and ds of a vector of keys of a row, element `at` of the tile; the first `seen` of them are not
 * in the future, and the first `before` of these are before its window. */
CPU_INLINE void grad_soften(const struct flash *f, const struct grad_work *w, int64_t at, float lse,
                            float delta, int64_t seen, int64_t before, cpu_vector *p,
                            cpu_vector *ds)
{
    const cpu_vector s = cpu_load(w->s + at);
    cpu_vector dp = cpu_load(w->dp + at);
    cpu_vector t = cpu_fms(s, cpu_set(f->scale * FLASH_LOG2_E), cpu_set(lse));
    *p = cpu_keep_between(0, before, seen, flash_exp2(t));
    if (f->drop.on)
        dp = cpu_mul(dp, cpu_load(w->keep + at));
    dp = cpu_mul(cpu_sub(dp, cpu_set(delta)), cpu_set(f->scale));
    *ds = cpu_keep_between(0, before, seen, cpu_mul(*p, dp));
    if (f->drop.on)
        *p = cpu_mul(*p, cpu_load(w->keep + at));
}

/* Two rows of a tile of bf16, `row` the first one's number in the block, `query` in the sequence.
 */
static void grad_soften_half(const struct flash *f, const struct grad_work *w, int64_t key,
                             int64_t query, int64_t row, int64_t in_tile)
{
    for (int64_t c = 0; c < FLASH_PANEL; c += CPU_WORDS) {
        cpu_halves p[2], ds[2];
        for (int64_t r = 0; r < 2; r++) {
            int64_t at = (in_tile + r) * FLASH_PANEL + c, seen = query + r + 1 - key - c;
            const int64_t before = seen - f->window;
            p[r] = ds[r] = cpu_zero_halves();
            if (seen > 0 && before < CPU_WORDS) {
                cpu_vector p32, ds32;
                grad_soften(f, w, at, w->lse[query + r], w->delta[query + r], seen, before, &p32,
                            &ds32);
                p[r] = cpu_narrow(p32);
                ds[r] = cpu_narrow(ds32);
            }
            cpu_store_halves_any(w->ds_rows + (row + r) * FLASH_PANEL + c, ds[r]);
        }
        cpu_store_words(w->p + row / 2 * FLASH_PANEL + c, cpu_pair(p[0], p[1]));
        cpu_store_words(w->ds + row / 2 * FLASH_PANEL + c, cpu_pair(ds[0], ds[1]));
    }
}

static void grad_soften_whole(const struct flash *f, const struct grad_work *w, int64_t key,
                              int64_t query, int64_t row, int64_t in_tile)
{
    for (int64_t c = 0; c < FLASH_PANEL; c += CPU_WORDS) {
        int64_t at = in_tile * FLASH_PANEL + c, seen = query + 1 - key - c;
        const int64_t before = seen - f->window;
        cpu_vector p = cpu_zero(), ds = p;
        if (seen > 0 && before < CPU_WORDS)
            grad_soften(f, w, at, w->lse[query], w->delta[query], seen, before, &p, &ds);
        cpu_store((float *)w->p + row * FLASH_PANEL + c, p);
        cpu_store((float *)w->ds + row * FLASH_PANEL + c, ds);
    }
}

/* p and ds of the whole block, zero in the future and before the window. */
static void grad_softmax(const struct flash *f, const struct grad_work *w,
                         const struct grad_block *b)
{
    for (int64_t row = 0; row < b->rows; row += CPU_TILE_TALL) {
        int64_t query = b->first + row, seen = query + CPU_TILE_TALL - b->key;
        seen = seen < FLASH_PANEL ? seen : FLASH_PANEL;
        grad_scores(f, w, query, b->key, flash_vectors(seen));
        grad_keep(f, w, b, query);
        if (f->half)
            for (int64_t r = 0; r < CPU_TILE_TALL; r += 2)
                grad_soften_half(f, w, b->key, query + r, row + r, r);
        else
            for (int64_t r = 0; r < CPU_TILE_TALL; r++)
                grad_soften_whole(f, w, b->key, query + r, row + r, r);
    }
}

/*
 * sum[key] += the block's weights^T times columns, for the panel's keys. Tiles of keys leave out
 * the queries before their first key.
 */
static void grad_keys(const struct flash *f, const struct grad_block *b, const uint32_t *weights,
                      const uint32_t *columns, float *sum)
{
    int64_t per_word = f->half ? 2 : 1, steps = (b->rows + per_word - 1) / per_word;
    bool diagonal = b->first == b->key, begin = b->first_head && diagonal;
    int64_t tall = diagonal ? CPU_TILE_TALL : b->keys;
    for (int64_t c = 0; c < f->width; c += CPU_TILE_WIDE * CPU_WORDS) {
        int64_t left = (f->width - c) / CPU_WORDS;
        int wide = left < CPU_TILE_WIDE ? (int)left : CPU_TILE_WIDE;
        for (int64_t key = 0; key < b->keys; key += tall) {
            int64_t skip = diagonal ? key / per_word : 0;
            struct cpu_tile tile = {.column = columns + (b->first / per_word + skip) * f->width + c,
                                    .column_step = f->width,
                                    .scalar = weights + skip * FLASH_PANEL + key,
                                    .scalar_row = sizeof(uint32_t),
                                    .scalar_step = FLASH_PANEL * sizeof(uint32_t),
                                    .rows = tess__cpu_min(b->keys - key, tall),
                                    .steps = steps - skip,
                                    .sum = sum + (b->key + key) * f->width + c,
                                    .sum_row = f->width,
                                    .begin = begin};
            CPU_OWN(tile)(f->half, wide, &tile);
        }
    }
}

/* dq of the block += ds k, up to the diagonal. */
static void grad_queries(const struct flash *f, const struct grad_work *w,
                         const struct grad_block *b)
{
    int64_t per_word = f->half ? 2 : 1;
    for (int64_t row = 0; row < b->rows; row += CPU_TILE_TALL) {
        int64_t seen = b->first + row + CPU_TILE_TALL - b->key;
        seen = seen < b->keys ? seen : b->keys;
        const char *ds = f->half ? (const char *)(w->ds_rows + row * FLASH_PANEL)
                                 : (const char *)(w->ds + row * FLASH_PANEL);
        for (int64_t c = 0; c < f->width; c += CPU_TILE_WIDE * CPU_WORDS) {
            int64_t left = (f->width - c) / CPU_WORDS;
            struct cpu_tile tile = {.column = b->k_pairs + b->key / per_word * f->width + c,
                                    .column_step = f->width,
                                    .scalar = ds,
                                    .scalar_row = FLASH_PANEL * (f->half ? 2 : 4),
                                    .scalar_step = sizeof(uint32_t),
                                    .rows = CPU_TILE_TALL,
                                    .steps = (seen + per_word - 1) / per_word,
                                    .sum = w->dq + (b->first + row) * f->width + c,
                                    .sum_row = f->width,
                                    .begin = b->key == 0 && f->window == f->length};
            CPU_OWN(tile)(f->half, left < CPU_TILE_WIDE ? (int)left : CPU_TILE_WIDE, &tile);
        }
    }
}

/* delta = dy . y and lse of all rows of a head. */
static void grad_rows(const struct flash *f, const struct grad_work *w, const char *y,
                      const char *dy, const float *lse)
{
    enum tess_dtype dtype = f->desc->dtype;
    for (int64_t i = 0; i < f->length; i++, y += f->y_bytes, dy += f->y_bytes) {
        cpu_vector sum[CPU_SUM_VECTORS];
        CPU_UNROLL
        for (int v = 0; v < CPU_SUM_VECTORS; v++)
            sum[v] = cpu_zero();
        flash_ask(f, y, f->y_bytes);
        for (int64_t c = 0; c < f->size; c += CPU_SUM_LANES) {
            CPU_UNROLL
            for (int v = 0; v < CPU_SUM_VECTORS; v++) {
                const int64_t at = c + v * CPU_WORDS;
                sum[v] = cpu_fma(flash_load(dtype, y, at, f->size),
                                 flash_load(dtype, dy, at, f->size), sum[v]);
            }
        }
        w->delta[i] = cpu_sum_of(sum);
        w->lse[i] = lse[i] * FLASH_LOG2_E;
    }
    for (int64_t i = f->length; i < f->length + CPU_TILE_TALL; i++) {
        w->delta[i] = 0;
        w->lse[i] = INFINITY;
    }
}

/* Sums [T, width] rounded into rows of D elements, `bytes` apart. */
static void grad_write(const struct flash *f, const float *sum, char *to, size_t bytes)
{
    for (int64_t i = 0; i < f->length; i++, to += bytes, sum += f->width) {
        if (i + FLASH_AHEAD < f->length)
            flash_own(f, to + FLASH_AHEAD * bytes);
        for (int64_t c = 0; c < f->width; c += CPU_WORDS)
            flash_store(f->desc->dtype, to, c, f->size, cpu_load(sum + c));
    }
}

static void grad_head(const struct flash *f, const struct grad_work *w, struct grad_block *b)
{
    if (f->window < f->length) /* a tile may begin with any panel */
        memset(w->dq, 0, (size_t)((f->length + CPU_TILE_TALL) * f->width) * sizeof(float));
    for (b->key = 0; b->key < f->length; b->key += FLASH_PANEL) {
        int64_t keys = f->length - b->key;
        b->keys = keys < FLASH_PANEL ? keys : FLASH_PANEL;
        const int64_t end = tess__cpu_min(f->length, b->key + b->keys - 1 + f->window);
        for (b->first = b->key; b->first < end; b->first += GRAD_QUERIES) {
            int64_t rows = end - b->first;
            b->rows = rows < GRAD_QUERIES ? rows : GRAD_QUERIES;
            grad_softmax(f, w, b);
            grad_keys(f, b, w->p, b->dy_pairs, w->dv);
            grad_keys(f, b, w->ds, b->q_pairs, w->dk);
            grad_queries(f, w, b);
        }
    }
}

static void grad_part(void *context, int64_t part, void *work)
{
    const struct grad_call *call = context;
    const struct flash *f = &call->f;
    const struct cpu_flash_grad *a = call->arrays;
    const struct tess_op_desc *d = f->desc;
    size_t used, head_bytes = f->head_bytes;
    struct grad_work w = grad_work(f, work, &used);
    int64_t batch = part / d->kv_heads, kv = part % d->kv_heads, n = f->length;
    size_t position = (size_t)(batch * n);
    size_t kv_first = position * f->kv_bytes + (size_t)kv * head_bytes;
    struct grad_block b = {.first_head = true, .position = batch * n};
    flash_copy(f, (const char *)a->v + kv_first, f->kv_bytes, n, w.copy);
    flash_turn(f, w.copy, w.v_turned);
    flash_copy(f, (const char *)a->k + kv_first, f->kv_bytes, n, w.copy);
    flash_turn(f, w.copy, w.k_turned);
    b.k_pairs = flash_pair(f, w.copy, w.k_pairs);
    memset(w.q + n * f->row, 0, (size_t)(CPU_TILE_TALL * f->row) * sizeof(uint32_t));
    memset(w.dy + n * f->row, 0, (size_t)(CPU_TILE_TALL * f->row) * sizeof(uint32_t));
    for (int64_t h = kv * f->group; h < (kv + 1) * f->group; h++, b.first_head = false) {
        size_t q_first = position * f->q_bytes + (size_t)h * head_bytes;
        size_t y_first = position * f->y_bytes + (size_t)h * head_bytes;
        b.head = (int32_t)h;
        flash_copy(f, (const char *)a->q + q_first, f->q_bytes, n, w.q);
        flash_copy(f, (const char *)a->dy + y_first, f->y_bytes, n, w.dy);
        b.q_pairs = flash_pair(f, w.q, w.q_pairs);
        b.dy_pairs = flash_pair(f, w.dy, w.dy_pairs);
        grad_rows(f, &w, (const char *)a->y + y_first, (const char *)a->dy + y_first,
                  a->lse + (batch * d->heads + h) * n);
        grad_head(f, &w, &b);
        grad_write(f, w.dq, (char *)a->dq + q_first, f->q_bytes);
    }
    grad_write(f, w.dk, (char *)a->dk + kv_first, f->kv_bytes);
    grad_write(f, w.dv, (char *)a->dv + kv_first, f->kv_bytes);
}

void CPU_OWN(flash_grad)(const struct tess_op *op, const struct cpu_flash_grad *arrays)
{
    struct grad_call call = {.f = flash_of_op(op), .arrays = arrays};
    tess__cpu_share(op->kernel, op->desc.rows * op->desc.kv_heads, grad_part, &call, op->scratch);
}
