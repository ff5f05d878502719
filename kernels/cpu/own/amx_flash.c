/*
 * Forward pass of causal attention in bf16 on tiles of AMX, and decoding; flash.c has the algorithm
 * and takes the rest. Built for AVX-512 with AMX (CMakeLists.txt).
 *
 *     for every sequence and key and value head       the threads share these
 *       K as rows; V turned, in pairs of positions
 *       for every query head of it
 *         for every block of FLASH_KEYS keys
 *           for every FLASH_QUERIES queries that see one of them
 *             s^T = k q^T, p^T = exp(s - max), sums^T = old sums^T + v^T p^T
 *
 * Blocks of keys begin at multiples of FLASH_KEYS, products go on by 32 keys from multiples of 32,
 * and what a query does not see is p = 0: its bits depend neither on how many queries there are nor
 * on the others.
 */
#include "cpu/own/amx_flash.h"

#define FLASH_KEYS    256 /* scores are 32 KiB */
#define FLASH_QUERIES 32
#define FLASH_VECTORS (FLASH_QUERIES / CPU_WORDS)

/* The work memory of one thread. Sums and what is beside them wait between blocks of keys. */
struct amx_work {
    uint32_t *k;         /* [keys, f.row] */
    uint32_t *v;         /* on the left */
    uint32_t *q;         /* [FLASH_VECTORS], turned */
    float *sum;          /* [queries / 16][width][16] */
    float *max, *weight; /* [queries]: in units of ln 2, sum of p */
    float *score;        /* [FLASH_KEYS][FLASH_QUERIES]; p in pairs takes their place */
    uint32_t *keep;      /* [FLASH_VECTORS][FLASH_KEYS / 16][16 queries]: bits of 16 keys */
};

/* `heads` of `queries` each wait between blocks of keys. */
static struct amx_work amx_work(const struct flash *f, int64_t heads, int64_t queries, void *base,
                                size_t *bytes_out)
{
    const int64_t keys = flash_round(f->length, CPU_AMX_DEPTH);
    const int64_t waiting = heads * flash_round(queries, FLASH_QUERIES);
    size_t used = 0;
    struct amx_work w = {
        .k = flash_take(base, &used, keys * f->row),
        .v = flash_take(base, &used, keys / 2 * f->width),
        .q = flash_take(base, &used, FLASH_QUERIES * f->row),
        .sum = flash_take(base, &used, waiting * f->width),
        .max = flash_take(base, &used, waiting),
        .weight = flash_take(base, &used, waiting),
        .score = flash_take(base, &used, FLASH_KEYS * FLASH_QUERIES),
        .keep = flash_take(base, &used, f->desc->dropout > 0 ? FLASH_KEYS * FLASH_VECTORS : 0),
    };
    *bytes_out = used;
    return w;
}

/* Decoding has a block of keys at a time. */
static struct flash amx_block_of(const struct tess_op_desc *desc)
{
    struct tess_op_desc block = *desc;
    block.length = tess__cpu_min(desc->length, FLASH_KEYS);
    struct flash f = flash_of(&block);
    f.desc = desc;
    f.window = flash_window(desc);
    return f;
}

size_t tess__amx_flash_scratch(const struct tess_op_desc *desc)
{
    size_t forward;
    if (desc->decode) {
        struct flash block = amx_block_of(desc);
        amx_work(&block, block.group, desc->rows, NULL, &forward);
        return forward;
    }
    struct flash f = flash_of(desc);
    amx_work(&f, 1, f.length, NULL, &forward);
    return tess__cpu_max(forward, tess__amx_flash_grad_scratch(desc));
}

/* Queries against a block of keys. */
struct amx_tile {
    const char *q;
    char *y;
    float *lse;            /* of the head; NULL in decoding */
    int32_t head;          /* its number in the call */
    int64_t position;      /* of the sequence's first query in the call */
    int64_t first, rows;   /* queries, FLASH_QUERIES at most */
    int64_t before, next;  /* position of the first query of all; from one to the next: 1, or 0 */
    int64_t key, keys;     /* the first one, and how many up to the last query's */
    bool begin;            /* the queries have seen none before */
    const uint32_t *k, *v; /* from the first key on */
};

/* Of the 16 queries from `query` on, those that see `key`. */
CPU_INLINE __mmask16 tile_seen(const struct flash *f, const struct amx_tile *t, int64_t query,
                               int64_t key)
{
    const int64_t position = t->before + query * t->next;
    if (t->next == 1)
        return amx_seen(f, position, key);
    return position >= key && position - key < f->window ? (__mmask16)0xffff : 0;
}

/* The keys from `low` up to `high` are seen by all 16 queries; those before and after by some. */
static void tile_range(const struct flash *f, const struct amx_tile *t, int64_t query, int64_t *low,
                       int64_t *high)
{
    const int64_t position = t->before + query * t->next;
    const int64_t last = position + (CPU_WORDS - 1) * t->next;
    *low = flash_round(tess__cpu_min(flash_first(f, last), t->key + t->keys) - t->key, 2);
    *low = *low < 0 ? 0 : *low;
    *high = tess__cpu_min(position + 1 - t->key, t->keys) / 2 * 2;
    *high = *high < *low ? *low : *high;
}

#define SCORE(w, key, vector) ((w)->score + (key)*FLASH_QUERIES + (vector)*CPU_WORDS)

/* The greatest score of each of 16 queries. */
static __m512 tile_greatest(const struct flash *f, const struct amx_work *w,
                            const struct amx_tile *t, int64_t vector, int64_t low, int64_t high)
{
    const int64_t query = t->first + vector * CPU_WORDS;
    __m512 even = _mm512_set1_ps(-INFINITY), odd = even;
    for (int64_t k = 0; k < t->keys; k++) {
        if (k == low)
            for (; k < high; k += 2) {
                even = _mm512_max_ps(even, _mm512_load_ps(SCORE(w, k, vector)));
                odd = _mm512_max_ps(odd, _mm512_load_ps(SCORE(w, k + 1, vector)));
            }
        if (k < t->keys)
            even = _mm512_mask_max_ps(even, tile_seen(f, t, query, t->key + k), even,
                                      _mm512_load_ps(SCORE(w, k, vector)));
    }
    return _mm512_max_ps(even, odd);
}

/* p of two keys of 16 queries, in pairs, from their scores, whose place it takes. */
CPU_INLINE void tile_pair(const struct flash *f, const struct amx_work *w, const struct amx_tile *t,
                          int64_t vector, int64_t k, bool all, __m512 factor, __m512 max,
                          __m512 *sum)
{
    const int64_t query = t->first + vector * CPU_WORDS;
    __m512 p[2];
    CPU_UNROLL
    for (int i = 0; i < 2; i++) {
        p[i] = amx_exp2(_mm512_fmsub_ps(_mm512_load_ps(SCORE(w, k + i, vector)), factor, max));
        if (!all)
            p[i] = _mm512_maskz_mov_ps(tile_seen(f, t, query, t->key + k + i), p[i]);
        *sum = _mm512_add_ps(*sum, p[i]);
        if (f->drop.on) {
            const __m512i bits = _mm512_load_si512(w->keep + vector * FLASH_KEYS + k / 16 * 16);
            const __m512i bit = _mm512_set1_epi32(1 << ((k + i) % 16));
            p[i] = _mm512_maskz_mov_ps(_mm512_test_epi32_mask(bits, bit), p[i]);
        }
    }
    _mm512_store_si512(SCORE(w, k / 2, vector), amx_pair(p[0], p[1]));
}

/* Which of the tile's keys are kept: bits of keys, for 16 queries. */
static void tile_keep(const struct flash *f, const struct amx_work *w, const struct amx_tile *t,
                      int64_t vector)
{
    uint32_t *bits = w->keep + vector * FLASH_KEYS;
    for (int64_t i = 0; i < CPU_WORDS; i++) {
        const int64_t query = t->position + t->first + vector * CPU_WORDS + i;
        const uint64_t row = tess__mask_row(f->drop.of, (uint64_t)query, t->head);
        __mmask16 keep[FLASH_PANEL / CPU_WORDS];
        for (int64_t k = 0; k < t->keys; k += CPU_WORDS) {
            const int64_t group = (t->key + k) / CPU_WORDS, of_panel = FLASH_PANEL / CPU_WORDS;
            if (k == 0 || group % of_panel == 0)
                flash_keep(&f->drop, row, group / of_panel, keep);
            bits[k + i] = keep[group % of_panel];
        }
    }
}

/*
 * p^T of 16 queries, zeros up to 32 keys; max rises, and what was summed before is worth less by
 * the factor that is returned.
 */
static __m512 tile_soften(const struct flash *f, const struct amx_work *w, const struct amx_tile *t,
                          int64_t vector)
{
    const int64_t query = t->first + vector * CPU_WORDS;
    const __m512 factor = _mm512_set1_ps(f->scale * FLASH_LOG2_E);
    int64_t low, high, k = 0;
    tile_range(f, t, query, &low, &high);
    __m512 before = t->begin ? _mm512_set1_ps(-INFINITY) : _mm512_load_ps(w->max + query);
    __m512 max = _mm512_mul_ps(tile_greatest(f, w, t, vector, low, high), factor);
    max = _mm512_max_ps(max, before);
    if (f->drop.on)
        tile_keep(f, w, t, vector);
    __m512 sum = _mm512_setzero_ps();
    for (; k < low; k += 2)
        tile_pair(f, w, t, vector, k, false, factor, max, &sum);
    for (; k < high; k += 2)
        tile_pair(f, w, t, vector, k, true, factor, max, &sum);
    for (; k < t->keys; k += 2)
        tile_pair(f, w, t, vector, k, false, factor, max, &sum);
    for (; k < flash_round(t->keys, CPU_AMX_DEPTH); k += 2)
        _mm512_store_ps(SCORE(w, k / 2, vector), _mm512_setzero_ps());
    const __mmask16 rises = _mm512_cmp_ps_mask(before, max, _CMP_NEQ_UQ);
    const __m512 fade =
        _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), rises, amx_exp2(_mm512_sub_ps(before, max)));
    if (!t->begin)
        sum = _mm512_fmadd_ps(_mm512_load_ps(w->weight + query), fade, sum);
    _mm512_store_ps(w->weight + query, sum);
    _mm512_store_ps(w->max + query, max);
    return fade;
}

/* Sums of 16 queries times their factors. */
static void tile_fade(const struct flash *f, float *sum, __m512 fade)
{
    if (_mm512_cmp_ps_mask(fade, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ) == 0)
        return;
    for (int64_t c = 0; c < f->width * CPU_WORDS; c += CPU_WORDS)
        _mm512_store_ps(sum + c, _mm512_mul_ps(_mm512_load_ps(sum + c), fade));
}

static void tile_finish(const struct flash *f, const struct amx_work *w, const struct amx_tile *t)
{
    for (int64_t i = 0; i < t->rows; i += CPU_WORDS) {
        const int64_t query = t->first + i;
        const __m512 weight = _mm512_load_ps(w->weight + query);
        amx_write(f, w->sum + query * f->width,
                  _mm512_div_ps(_mm512_set1_ps(f->drop.scale), weight), t->rows - i,
                  t->y + (size_t)query * f->y_bytes, f->y_bytes);
    }
    for (int64_t i = t->first; t->lse != NULL && i < t->first + t->rows; i++)
        t->lse[i] = (w->max[i] + log2f(w->weight[i])) * FLASH_LN_2;
}

static void tile_run(const struct flash *f, const struct amx_work *w, const struct amx_tile *t)
{
    const int64_t vectors = (t->rows + CPU_WORDS - 1) / CPU_WORDS;
    float *sum = w->sum + t->first * f->width;
    amx_turn(f, t->q + (size_t)t->first * f->q_bytes, f->q_bytes, t->rows, w->q);
    flash_product(&(struct flash_product){.a = t->k,
                                          .a_row = (size_t)f->row * 4,
                                          .a_down = (size_t)f->row * 4 * CPU_AMX_ROWS,
                                          .a_along = CPU_AMX_BYTES,
                                          .b = w->q,
                                          .b_row = CPU_AMX_BYTES,
                                          .b_right = (size_t)f->row * CPU_AMX_BYTES,
                                          .b_along = AMX_TILE * 4,
                                          .sum = w->score,
                                          .sum_row = FLASH_QUERIES * 4,
                                          .sum_down = FLASH_QUERIES * 4 * CPU_AMX_ROWS,
                                          .sum_right = CPU_AMX_BYTES,
                                          .rows = (t->keys + CPU_AMX_ROWS - 1) / CPU_AMX_ROWS,
                                          .columns = vectors,
                                          .along = f->row / CPU_WORDS,
                                          .begin = true});
    for (int64_t v = 0; v < vectors; v++) {
        const __m512 fade = tile_soften(f, w, t, v);
        if (!t->begin)
            tile_fade(f, sum + v * CPU_WORDS * f->width, fade);
    }
    flash_product(&(struct flash_product){.a = t->v,
                                          .a_row = CPU_AMX_BYTES,
                                          .a_down = AMX_TILE * 4,
                                          .a_along = (size_t)f->width * CPU_AMX_BYTES,
                                          .b = w->score,
                                          .b_row = FLASH_QUERIES * 4,
                                          .b_right = CPU_AMX_BYTES,
                                          .b_along = FLASH_QUERIES * 4 * CPU_AMX_ROWS,
                                          .sum = sum,
                                          .sum_row = CPU_AMX_BYTES,
                                          .sum_down = AMX_TILE * 4,
                                          .sum_right = (size_t)f->width * CPU_AMX_BYTES,
                                          .rows = f->width / CPU_WORDS,
                                          .columns = vectors,
                                          .along = (t->keys + CPU_AMX_DEPTH - 1) / CPU_AMX_DEPTH,
                                          .begin = t->begin});
}

/*
 * A tile against the keys from `key` up to `end`, which k and v begin with: from the 32 on where
 * the window of its first query begins. Nothing where none of its queries sees one of them.
 */
static void tile_block(const struct flash *f, const struct amx_work *w, int64_t key, int64_t end,
                       const uint32_t *k, const uint32_t *v, struct amx_tile *t)
{
    const int64_t low = flash_first(f, t->before + t->first * t->next);
    const int64_t seen = t->before + (t->first + t->rows - 1) * t->next + 1;
    if (seen <= key || low >= end)
        return;
    const int64_t skip = low > key ? (low - key) / CPU_AMX_DEPTH * CPU_AMX_DEPTH : 0;
    t->begin = low >= key;
    t->key = key + skip;
    t->keys = tess__cpu_min(seen, end) - t->key;
    t->k = k + skip * f->row;
    t->v = v + skip / 2 * f->width;
    tile_run(f, w, t);
    if (seen <= end)
        tile_finish(f, w, t);
}

/* One call: pointers to the first element of each array. */
struct amx_call {
    struct flash f;
    const char *q, *k, *v;
    char *y;
    float *lse;
};

static void amx_head(const struct flash *f, const struct amx_work *w, struct amx_tile *t)
{
    for (int64_t key = 0; key < f->length; key += FLASH_KEYS) {
        const int64_t end = tess__cpu_min(key + FLASH_KEYS, f->length);
        const int64_t last = tess__cpu_min(f->length, end - 1 + f->window);
        for (t->first = key; t->first < last; t->first += FLASH_QUERIES) {
            t->rows = tess__cpu_min(f->length - t->first, FLASH_QUERIES);
            tile_block(f, w, key, end, w->k + key * f->row, w->v + key / 2 * f->width, t);
        }
    }
}

/* Keys and values on the left of their products. Rows behind the last key are what they were: no
 * query sees them. */
static void amx_keys(const struct flash *f, const struct amx_work *w, const char *k, const char *v)
{
    flash_copy(f, k, f->kv_bytes, f->length, w->k);
    amx_left(f, v, f->kv_bytes, f->length, w->v);
}

static void amx_part(void *context, int64_t part, void *work)
{
    const struct amx_call *call = context;
    const struct flash *f = &call->f;
    const struct tess_op_desc *d = f->desc;
    const size_t head_bytes = (size_t)d->in * sizeof(uint16_t);
    const int64_t b = part / d->kv_heads, kv = part % d->kv_heads, position = b * f->length;
    const size_t kv_first = (size_t)position * f->kv_bytes + (size_t)kv * head_bytes;
    size_t used;
    struct amx_work w = amx_work(f, 1, f->length, work, &used);
    cpu_amx_begin();
    amx_keys(f, &w, call->k + kv_first, call->v + kv_first);
    struct amx_tile t = {.next = 1, .position = position};
    for (int64_t h = kv * f->group; h < (kv + 1) * f->group; h++) {
        const size_t head = (size_t)h * head_bytes;
        t.head = (int32_t)h;
        t.q = call->q + (size_t)position * f->q_bytes + head;
        t.y = call->y + (size_t)position * f->y_bytes + head;
        t.lse = call->lse + (b * d->heads + h) * f->length;
        amx_head(f, &w, &t);
    }
    cpu_amx_end();
}

void tess__amx_flash(const struct tess_op *op, const void *q, const void *k, const void *v, void *y,
                     float *lse)
{
    struct amx_call call = {.f = flash_of_op(op), .q = q, .k = k, .v = v, .y = y, .lse = lse};
    tess__cpu_share(op->kernel, op->desc.rows * op->desc.kv_heads, amx_part, &call, op->scratch);
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* Queries of `count` positions from `before` on. */
struct amx_decode {
    struct flash f; /* of a block of keys */
    const char *q, *k, *v;
    char *y;
    int64_t before, count;
};

/* The queries of t, `queries` of them, against a block of keys from `key` on. */
static void decode_queries(const struct flash *f, const struct amx_work *w, int64_t key,
                           int64_t queries, struct amx_tile *t)
{
    for (t->first = 0; t->first < queries; t->first += FLASH_QUERIES) {
        t->rows = tess__cpu_min(queries - t->first, FLASH_QUERIES);
        tile_block(f, w, key, key + f->length, w->k, w->v, t);
    }
}

static void decode_part(void *context, int64_t kv, void *work)
{
    const struct amx_decode *call = context;
    struct flash f = call->f;
    const struct tess_op_desc *d = f.desc;
    const size_t head_bytes = (size_t)d->in * sizeof(uint16_t);
    const bool one = call->count == 1; /* then its heads are the rows of tiles */
    const int64_t total = call->before + call->count, heads = one ? 1 : f.group;
    const int64_t waiting = flash_round(call->count, FLASH_QUERIES);
    size_t used;
    struct amx_work w = amx_work(&f, f.group, d->rows, work, &used);
    struct amx_tile t = {.before = call->before, .next = !one};
    if (one)
        f.q_bytes = f.y_bytes = head_bytes;
    cpu_amx_begin();
    for (int64_t key = flash_first(&f, call->before) / FLASH_KEYS * FLASH_KEYS; key < total;
         key += FLASH_KEYS) {
        const size_t at = (size_t)key * f.kv_bytes + (size_t)kv * head_bytes;
        f.length = tess__cpu_min(total - key, FLASH_KEYS);
        amx_keys(&f, &w, call->k + at, call->v + at);
        for (int64_t h = 0; h < heads; h++) {
            struct amx_work own = w;
            const size_t head = (size_t)(kv * f.group + h) * head_bytes;
            own.sum += h * waiting * f.width;
            own.max += h * waiting;
            own.weight += h * waiting;
            t.q = call->q + head;
            t.y = call->y + head;
            decode_queries(&f, &own, key, one ? f.group : call->count, &t);
        }
    }
    cpu_amx_end();
}

void tess__amx_flash_decode(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                            int64_t first, int64_t count, const void *q, const void *k,
                            const void *v, void *y, void *scratch)
{
    struct amx_decode call = {
        .f = amx_block_of(desc), .q = q, .k = k, .v = v, .y = y, .before = first, .count = count};
    tess__cpu_share(kernel, desc->kv_heads, decode_part, &call, scratch);
}
