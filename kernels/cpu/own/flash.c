/*
 * Forward pass of causal attention (Dao 2023, "FlashAttention-2", algorithm 1). Built for AVX-512
 * and for AVX2 (CMakeLists.txt); own_none.c replaces it elsewhere.
 *
 *     for every sequence and key and value head       the threads share these
 *       K turned, V in pairs of positions
 *       for every query head of it
 *         for every block of FLASH_KEYS keys
 *           for every tile of 6 queries that sees one of them
 *             s = q k^T up to the diagonal, p = exp(s - max), sums = old sums + p v
 *
 * With a window a tile begins at the panel of keys where its first query's begins; keys before a
 * query's own window have p = 0, which changes no bit of its sums.
 *
 * Keys are the inner blocks only where there are more than FLASH_KEYS of them: then the tile's
 * greatest score, its sum and its unscaled result wait in memory. All of it is O(T).
 *
 * Decoding has the keys and values of earlier positions and the queries of some: it turns a block
 * of keys at a time and lets all heads that share it see it. A query meets the same keys in the
 * same order, and tiles do not mix queries, so that its bits are the same.
 */
#include "cpu/own/flash_room.h"

#define FLASH_KEYS 512 /* scores of a tile are 12 KiB */

/* The work memory of one thread. */
struct flash_work {
    uint32_t *copy;      /* [T, f.row] */
    uint32_t *k, *v;     /* turned [panels][steps][FLASH_PANEL], in pairs [pairs, width] */
    float *sum;          /* [T, width] */
    float *max, *weight; /* [T]: in units of ln 2, sum of p */
    uint32_t *q;         /* [CPU_TILE_TALL, f.row] */
    float *score;        /* [CPU_TILE_TALL, FLASH_KEYS + 16] */
    uint32_t *p;         /* the same in words, where it is bf16 */
    float *lse;          /* decoding: [T], of no use */
};

#define FLASH_SCORE_ROW (FLASH_KEYS + CPU_WORDS) /* not a power of two */

/* `queries` of them wait between blocks of keys. */
static struct flash_work flash_work(const struct flash *f, int64_t queries, void *base,
                                    size_t *bytes_out)
{
    size_t used = 0;
    int64_t scores = CPU_TILE_TALL * FLASH_SCORE_ROW;
    struct flash_work w = {
        .copy = flash_take(base, &used, f->length * f->row),
        .k = flash_take(base, &used, f->panels * f->steps * FLASH_PANEL),
        .v = f->half ? flash_take(base, &used, f->pairs * f->width) : NULL,
        .sum = flash_take(base, &used, queries * f->width),
        .max = flash_take(base, &used, queries),
        .weight = flash_take(base, &used, queries),
        .q = flash_take(base, &used, CPU_TILE_TALL * f->row),
        .score = flash_take(base, &used, scores),
        .p = f->half ? flash_take(base, &used, scores / 2) : NULL,
    };
    if (f->desc->decode)
        w.lse = flash_take(base, &used, queries);
    *bytes_out = used;
    return w;
}

/* Decoding has a block of keys at a time. */
static struct flash flash_block_of(const struct tess_op_desc *desc)
{
    struct tess_op_desc block = *desc;
    block.length = desc->length < FLASH_KEYS ? desc->length : FLASH_KEYS;
    struct flash f = flash_of(&block);
    f.desc = desc;
    f.window = flash_window(desc);
    return f;
}

size_t CPU_OWN(flash_scratch)(const struct tess_op_desc *desc)
{
    size_t forward, backward;
    if (desc->decode) {
        struct flash block = flash_block_of(desc);
        flash_work(&block, block.group * desc->rows, NULL, &forward);
        return forward;
    }
    struct flash f = flash_of(desc);
    backward = CPU_OWN(flash_grad_scratch)(desc);
    flash_work(&f, f.length, NULL, &forward);
    return forward > backward ? forward : backward;
}

/* One call: pointers to the first element of each array. */
struct flash_call {
    struct flash f;
    const char *q, *k, *v;
    char *y;
    float *lse;
};

/* A tile of queries against a block of keys. */
struct flash_tile {
    const char *q;
    char *y;
    float *lse;            /* of the head */
    int32_t head;          /* its number in the call */
    int64_t position;      /* of the sequence's first query in the call */
    int64_t first, rows;   /* queries */
    int64_t before;        /* positions before that of the first query of all */
    int64_t next;          /* positions from a query to the next: 1, or 0 where they are heads' */
    int64_t key, keys;     /* keys: the first one, and how many up to the tile's last query */
    bool begin;            /* it has seen none before */
    const uint32_t *k, *v; /* from the first key on */
    int64_t v_step;        /* words from a step of v to the next */
};

static void flash_scores(const struct flash *f, const struct flash_work *w,
                         const struct flash_tile *t)
{
    for (int64_t key = 0; key < t->keys; key += FLASH_PANEL) {
        int64_t left = t->keys - key < FLASH_PANEL ? t->keys - key : FLASH_PANEL;
        struct cpu_tile tile = {.column = t->k + key * f->steps,
                                .column_step = FLASH_PANEL,
                                .scalar = w->q,
                                .scalar_row = (size_t)f->row * sizeof(uint32_t),
                                .scalar_step = sizeof(uint32_t),
                                .rows = t->rows,
                                .steps = f->steps,
                                .sum = w->score + key,
                                .sum_row = FLASH_SCORE_ROW,
                                .begin = true};
        CPU_OWN(tile)(f->half, flash_vectors(left), &tile);
    }
}

/*
 * p = 2^(score factor - max) for scores first .. end - 1 of a row, 0 for the rest of `vectors`;
 * max rises, and what was summed before is worth less by the factor that is returned.
 */
CPU_INLINE float flash_soften(bool half, float factor, int64_t first, int64_t end, int64_t vectors,
                              float *score, void *p, float *max, float *weight)
{
    cpu_vector greatest[CPU_SUM_VECTORS], sum[CPU_SUM_VECTORS];
    CPU_UNROLL
    for (int v = 0; v < CPU_SUM_VECTORS; v++) {
        greatest[v] = cpu_set(-INFINITY);
        sum[v] = cpu_zero();
    }
    for (int64_t c = 0; c < end; c += CPU_SUM_LANES) {
        CPU_UNROLL
        for (int v = 0; v < CPU_SUM_VECTORS; v++) {
            const int64_t at = c + v * CPU_WORDS;
            greatest[v] = cpu_max_between(at, first, end, greatest[v], cpu_load(score + at));
        }
    }
    float before = *max, after = cpu_max_of(greatest) * factor;
    after = after > before ? after : before;
    const cpu_vector shift = cpu_set(after);
    for (int64_t c = 0; c < vectors * CPU_WORDS; c += CPU_SUM_LANES) {
        CPU_UNROLL
        for (int v = 0; v < CPU_SUM_VECTORS; v++) {
            const int64_t at = c + v * CPU_WORDS;
            cpu_vector t = cpu_fms(cpu_load(score + at), cpu_set(factor), shift);
            t = cpu_keep_between(at, first, end, flash_exp2(t));
            sum[v] = cpu_add(sum[v], t);
            if (half)
                cpu_store_halves_any((uint16_t *)p + at, cpu_narrow(t));
            else
                cpu_store((float *)p + at, t);
        }
    }
    float fade = before == after ? 1.0f : exp2f(before - after);
    *weight = *weight * fade + cpu_sum_of(sum);
    *max = after;
    return fade;
}

/* Dropped elements of p become 0; those of `key` and `vectors` on, of a row of probabilities. */
static void flash_drop_row(const struct flash *f, uint64_t row, int64_t key, int64_t vectors,
                           void *p)
{
    cpu_mask keep[FLASH_PANEL / CPU_WORDS];
    for (int64_t v = 0; v < vectors; v++) {
        const int64_t c = v * CPU_WORDS, in_panel = v % (FLASH_PANEL / CPU_WORDS);
        if (in_panel == 0)
            flash_keep(&f->drop, row, (key + c) / FLASH_PANEL, keep);
        if (f->half)
            cpu_store_halves_any((uint16_t *)p + c,
                                 cpu_load_halves(keep[in_panel], (uint16_t *)p + c));
        else
            cpu_store((float *)p + c, cpu_load_lanes(keep[in_panel], (float *)p + c));
    }
}

/* sum = sum fade + p v */
static void flash_values(const struct flash *f, const struct flash_work *w,
                         const struct flash_tile *t, const float *fade)
{
    int64_t per_word = f->half ? 2 : 1;
    for (int64_t c = 0; c < f->width; c += CPU_TILE_WIDE * CPU_WORDS) {
        int64_t left = (f->width - c) / CPU_WORDS;
        struct cpu_tile tile = {.column = t->v + c,
                                .column_step = t->v_step,
                                .scalar = f->half ? (void *)w->p : (void *)w->score,
                                .scalar_row = FLASH_SCORE_ROW * (f->half ? 2 : 4),
                                .scalar_step = sizeof(uint32_t),
                                .rows = t->rows,
                                .steps = (t->keys + per_word - 1) / per_word,
                                .sum = w->sum + t->first * f->width + c,
                                .sum_row = f->width,
                                .begin = t->begin,
                                .scale = fade};
        CPU_OWN(tile)(f->half, left < CPU_TILE_WIDE ? (int)left : CPU_TILE_WIDE, &tile);
    }
}

static void flash_finish(const struct flash *f, const struct flash_work *w,
                         const struct flash_tile *t)
{
    for (int64_t i = t->first; i < t->first + t->rows; i++) {
        const cpu_vector weight = cpu_set(f->drop.scale / w->weight[i]);
        for (int64_t c = 0; c < f->width; c += CPU_WORDS)
            flash_store(f->desc->dtype, t->y + (size_t)i * f->y_bytes, c, f->size,
                        cpu_mul(cpu_load(w->sum + i * f->width + c), weight));
        t->lse[i] = (w->max[i] + log2f(w->weight[i])) * FLASH_LN_2;
    }
}

static void flash_tile_run(const struct flash *f, const struct flash_work *w,
                           const struct flash_tile *t)
{
    float fade[CPU_TILE_TALL], factor = f->scale * FLASH_LOG2_E;
    const int vectors = flash_vectors(t->keys);
    flash_copy(f, t->q + (size_t)t->first * f->q_bytes, f->q_bytes, t->rows, w->q);
    flash_scores(f, w, t);
    for (int64_t r = 0; r < t->rows; r++) {
        const int64_t i = t->first + r, position = t->before + i * t->next;
        const int64_t end = tess__cpu_min(position + 1 - t->key, t->keys);
        const int64_t first = flash_first(f, position) - t->key;
        float *score = w->score + r * FLASH_SCORE_ROW;
        if (t->begin) {
            w->max[i] = -INFINITY;
            w->weight[i] = 0;
        }
        if (f->half)
            fade[r] =
                flash_soften(true, factor, first, end, vectors, score,
                             (uint16_t *)w->p + r * FLASH_SCORE_ROW, w->max + i, w->weight + i);
        else
            fade[r] = flash_soften(false, factor, first, end, vectors, score, score, w->max + i,
                                   w->weight + i);
        if (f->drop.on)
            flash_drop_row(f, tess__mask_row(f->drop.of, (uint64_t)(t->position + i), t->head),
                           t->key, vectors,
                           f->half ? (void *)((uint16_t *)w->p + r * FLASH_SCORE_ROW)
                                   : (void *)score);
    }
    flash_values(f, w, t, fade);
}

/*
 * A tile against the keys from `key` up to `end`, which k and v begin with: from the panel on where
 * the window of its first query begins. Nothing where none of its queries sees one of them.
 */
static void flash_tile_block(const struct flash *f, const struct flash_work *w, int64_t key,
                             int64_t end, const uint32_t *k, const uint32_t *v,
                             struct flash_tile *t)
{
    const int64_t low = flash_first(f, t->before + t->first * t->next);
    const int64_t seen = t->before + (t->first + t->rows - 1) * t->next + 1;
    if (seen <= key || low >= end)
        return;
    const int64_t skip = low > key ? (low - key) / FLASH_PANEL * FLASH_PANEL : 0;
    t->begin = low >= key;
    t->key = key + skip;
    t->keys = tess__cpu_min(seen, end) - t->key;
    t->k = k + skip * f->steps;
    t->v = v + skip / (f->half ? 2 : 1) * t->v_step;
    flash_tile_run(f, w, t);
    if (seen <= end)
        flash_finish(f, w, t);
}

static void flash_head(const struct flash *f, const struct flash_work *w, const uint32_t *v,
                       struct flash_tile *t)
{
    for (int64_t key = 0; key < f->length; key += FLASH_KEYS) {
        const int64_t end = tess__cpu_min(key + FLASH_KEYS, f->length);
        const int64_t last = tess__cpu_min(f->length, end - 1 + f->window);
        for (t->first = key / CPU_TILE_TALL * CPU_TILE_TALL; t->first < last;
             t->first += CPU_TILE_TALL) {
            t->rows = tess__cpu_min(f->length - t->first, CPU_TILE_TALL);
            flash_tile_block(f, w, key, end, w->k + key * f->steps,
                             v + key / (f->half ? 2 : 1) * f->width, t);
        }
    }
}

static void flash_part(void *context, int64_t part, void *work)
{
    const struct flash_call *call = context;
    const struct flash *f = &call->f;
    const struct tess_op_desc *d = f->desc;
    size_t used, head_bytes = f->head_bytes;
    struct flash_work w = flash_work(f, f->length, work, &used);
    int64_t b = part / d->kv_heads, kv = part % d->kv_heads;
    size_t kv_first = (size_t)(b * f->length) * f->kv_bytes + (size_t)kv * head_bytes;
    flash_copy(f, call->k + kv_first, f->kv_bytes, f->length, w.copy);
    flash_turn(f, w.copy, w.k);
    flash_copy(f, call->v + kv_first, f->kv_bytes, f->length, w.copy);
    const uint32_t *v = flash_pair(f, w.copy, w.v);
    struct flash_tile t = {.next = 1, .v_step = f->width, .position = b * f->length};
    for (int64_t h = kv * f->group; h < (kv + 1) * f->group; h++) {
        size_t head = (size_t)h * head_bytes, position = (size_t)(b * f->length);
        t.head = (int32_t)h;
        t.q = call->q + position * f->q_bytes + head;
        t.y = call->y + position * f->y_bytes + head;
        t.lse = call->lse + (b * d->heads + h) * f->length;
        flash_head(f, &w, v, &t);
    }
}

void CPU_OWN(flash)(const struct tess_op *op, const void *q, const void *k, const void *v, void *y,
                    float *lse)
{
    struct flash_call call = {.f = flash_of_op(op), .q = q, .k = k, .v = v, .y = y, .lse = lse};
    tess__cpu_share(op->kernel, op->desc.rows * op->desc.kv_heads, flash_part, &call, op->scratch);
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* Queries of `count` positions from `before` on. */
struct flash_decode {
    struct flash f; /* of a block of keys */
    const char *q, *k, *v;
    char *y;
    int64_t before, count;
};

/* A block of keys turned, and its values in pairs, from where they lie unless they are to be
 * widened or, of values in f32, a row is not whole vectors. Returns the values. */
static const uint32_t *decode_block(const struct flash *f, const struct flash_work *w,
                                    const char *k, const char *v, struct flash_tile *t)
{
    if (f->half || f->desc->dtype == TESS_F32) {
        for (int64_t p = 0; p < f->panels; p++)
            cpu_turn(k + (size_t)(p * FLASH_PANEL) * f->kv_bytes, f->kv_bytes,
                     f->length - p * FLASH_PANEL, FLASH_PANEL / CPU_WORDS, f->steps,
                     f->half && f->size % 2 != 0, w->k + p * f->steps * FLASH_PANEL);
    } else {
        flash_copy(f, k, f->kv_bytes, f->length, w->copy);
        flash_turn(f, w->copy, w->k);
    }
    t->v_step = f->width;
    if (f->desc->dtype == TESS_F32 && f->width == f->size) {
        t->v_step = (int64_t)(f->kv_bytes / sizeof(uint32_t));
        return (const uint32_t *)(const void *)v;
    }
    if (f->half) { /* as flash_pair() */
        for (int64_t p = 0; p < f->length; p += 2, v += 2 * f->kv_bytes) {
            const uint16_t *even = (const uint16_t *)(const void *)v;
            const uint16_t *odd = (const uint16_t *)(const void *)(v + f->kv_bytes);
            cpu_pack_bf16(even, p + 1 < f->length ? odd : NULL, f->size, w->v + p / 2 * f->width);
        }
        return w->v;
    }
    flash_copy(f, v, f->kv_bytes, f->length, w->copy);
    return w->copy;
}

/* The queries of t, `queries` of them, against a block of keys from `key` on. */
static void decode_queries(const struct flash *f, const struct flash_work *w, int64_t key,
                           const uint32_t *v, int64_t queries, struct flash_tile *t)
{
    for (t->first = 0; t->first < queries; t->first += CPU_TILE_TALL) {
        t->rows = tess__cpu_min(queries - t->first, CPU_TILE_TALL);
        flash_tile_block(f, w, key, key + f->length, w->k, v, t);
    }
}

static void decode_part(void *context, int64_t kv, void *work)
{
    const struct flash_decode *call = context;
    struct flash f = call->f;
    const struct tess_op_desc *d = f.desc;
    const size_t head_bytes = f.head_bytes;
    const bool one = call->count == 1; /* then its heads are the rows of tiles */
    const int64_t total = call->before + call->count, heads = one ? 1 : f.group;
    size_t used;
    struct flash_work w = flash_work(&f, f.group * d->rows, work, &used);
    struct flash_tile t = {.before = call->before, .next = !one};
    if (one)
        f.q_bytes = f.y_bytes = head_bytes;
    for (int64_t key = flash_first(&f, call->before) / FLASH_KEYS * FLASH_KEYS; key < total;
         key += FLASH_KEYS) {
        const size_t at = (size_t)key * f.kv_bytes + (size_t)kv * head_bytes;
        f.length = tess__cpu_min(total - key, FLASH_KEYS);
        f.panels = (f.length + FLASH_PANEL - 1) / FLASH_PANEL;
        const uint32_t *v = decode_block(&f, &w, call->k + at, call->v + at, &t);
        for (int64_t h = 0; h < heads; h++) {
            struct flash_work own = w;
            const size_t head = (size_t)(kv * f.group + h) * head_bytes;
            own.sum += h * call->count * f.width;
            own.max += h * call->count;
            own.weight += h * call->count;
            t.q = call->q + head;
            t.y = call->y + head;
            t.lse = w.lse;
            decode_queries(&f, &own, key, v, one ? f.group : call->count, &t);
        }
    }
}

void CPU_OWN(flash_decode)(const struct tess_kernel *kernel, const struct tess_op_desc *desc,
                           int64_t first, int64_t count, const void *q, const void *k,
                           const void *v, void *y, void *scratch)
{
    struct flash_decode call = {
        .f = flash_block_of(desc), .q = q, .k = k, .v = v, .y = y, .before = first, .count = count};
    tess__cpu_share(kernel, desc->kv_heads, decode_part, &call, scratch);
}
