/*
 * Backward pass of causal attention in bf16 on tiles of AMX; flash_grad.c has the algorithm and
 * takes the rest. Built for AVX-512 with AMX (CMakeLists.txt).
 *
 *     for every sequence and key and value head       the threads share these
 *       K and V as rows; K turned, in pairs of positions
 *       for every query head of it
 *         Q and dY turned, and in pairs of positions; delta = dy . y of each row
 *         for every panel of GRAD_KEYS keys
 *           for every block of GRAD_QUERIES queries from the panel's first key on
 *             p^T = exp(k q^T - lse), ds^T = p^T (v dy^T - delta), the latter also in pairs
 *             dV += p^T dY, dK += ds^T Q over the block; dQ^T += K^T ds^T
 *
 * With a window only the queries that see a key of the panel, and p = 0 where one is out of it.
 * Sums are f32 in memory and are rounded once; those of K and V go over the query heads in order.
 */
#include "cpu/own/amx_flash.h"

#define GRAD_KEYS    64
#define GRAD_QUERIES 64
#define GRAD_CHUNK   32 /* keys and queries whose scores are computed at once */

/* The work memory of one thread; T is rounded up to whole panels. What is behind the last position
 * on the left and on the right of products over T is zero, elsewhere what it was: p is 0 there. */
struct grad_work {
    uint32_t *k, *v;              /* [T, f.row] */
    uint32_t *k_left;             /* on the left of products over T */
    uint32_t *q, *dy;             /* turned */
    uint32_t *q_right, *dy_right; /* on the right of products over T */
    float *dq;                    /* [T / 16][width][16] */
    float *dk, *dv;               /* [T, width] */
    float *lse, *delta;           /* [T]: lse in units of ln 2 */
    float *s, *dp;                /* [GRAD_CHUNK keys][GRAD_CHUNK queries] */
    uint16_t *p, *ds;             /* [GRAD_KEYS][GRAD_QUERIES] */
    uint32_t *ds_right;           /* [GRAD_KEYS / 2][GRAD_QUERIES] */
    uint32_t *keep;               /* [GRAD_QUERIES / 16][GRAD_KEYS / 16][16]: bits of 16 keys */
};

static struct grad_work grad_work(const struct flash *f, void *base, size_t *bytes_out)
{
    const int64_t rows = flash_round(f->length, GRAD_KEYS);
    const int64_t keep = f->desc->dropout > 0 ? GRAD_QUERIES * GRAD_KEYS / CPU_WORDS : 0;
    size_t used = 0;
    struct grad_work w = {
        .k = flash_take(base, &used, rows * f->row),
        .v = flash_take(base, &used, rows * f->row),
        .k_left = flash_take(base, &used, rows / 2 * f->width),
        .q = flash_take(base, &used, rows * f->row),
        .dy = flash_take(base, &used, rows * f->row),
        .q_right = flash_take(base, &used, rows / 2 * f->width),
        .dy_right = flash_take(base, &used, rows / 2 * f->width),
        .dq = flash_take(base, &used, rows * f->width),
        .dk = flash_take(base, &used, rows * f->width),
        .dv = flash_take(base, &used, rows * f->width),
        .lse = flash_take(base, &used, rows),
        .delta = flash_take(base, &used, rows),
        .s = flash_take(base, &used, GRAD_CHUNK * GRAD_CHUNK),
        .dp = flash_take(base, &used, GRAD_CHUNK * GRAD_CHUNK),
        .p = flash_take(base, &used, GRAD_KEYS * GRAD_QUERIES / 2),
        .ds = flash_take(base, &used, GRAD_KEYS * GRAD_QUERIES / 2),
        .ds_right = flash_take(base, &used, GRAD_KEYS / 2 * GRAD_QUERIES),
        .keep = flash_take(base, &used, keep),
    };
    *bytes_out = used;
    return w;
}

size_t tess__amx_flash_grad_scratch(const struct tess_op_desc *desc)
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
    int64_t key, first;    /* the first key, the first query */
    int64_t keys, queries; /* chunks of them */
    bool first_head;
    int32_t head;     /* its number in the call */
    int64_t position; /* of the sequence's first query in the call */
};

/* Which keys of the panel are kept for the block's queries. */
static void grad_keep(const struct flash *f, const struct grad_work *w, const struct grad_block *b)
{
    for (int64_t i = 0; i < b->queries * GRAD_CHUNK; i++) {
        const uint64_t query = (uint64_t)(b->position + b->first + i);
        __mmask16 keep[FLASH_PANEL / CPU_WORDS];
        flash_keep(&f->drop, tess__mask_row(f->drop.of, query, b->head), b->key / FLASH_PANEL,
                   keep);
        for (int64_t group = 0; group < FLASH_PANEL / CPU_WORDS; group++)
            w->keep[i / CPU_WORDS * GRAD_KEYS + group * CPU_WORDS + i % CPU_WORDS] = keep[group];
    }
}

/* Scores of a chunk, or what they are for dp: `rows` from key on by `turned` from query on. */
static void grad_scores(const struct flash *f, const uint32_t *rows, const uint32_t *turned,
                        int64_t key, int64_t query, float *sum)
{
    flash_product(&(struct flash_product){.a = rows + key * f->row,
                                          .a_row = (size_t)f->row * 4,
                                          .a_down = (size_t)f->row * 4 * CPU_AMX_ROWS,
                                          .a_along = CPU_AMX_BYTES,
                                          .b = turned + query * f->row,
                                          .b_row = CPU_AMX_BYTES,
                                          .b_right = (size_t)f->row * CPU_AMX_BYTES,
                                          .b_along = AMX_TILE * 4,
                                          .sum = sum,
                                          .sum_row = GRAD_CHUNK * 4,
                                          .sum_down = GRAD_CHUNK * 4 * CPU_AMX_ROWS,
                                          .sum_right = CPU_AMX_BYTES,
                                          .rows = GRAD_CHUNK / CPU_AMX_ROWS,
                                          .columns = GRAD_CHUNK / CPU_WORDS,
                                          .along = f->row / CPU_WORDS,
                                          .begin = true});
}

/* What two neighbouring keys of the panel and 16 queries of the block have in common. */
struct grad_pair {
    int64_t key, query; /* in the panel, in the block: the first ones */
    int64_t at;         /* of the chunk's scores */
    __m512 lse, delta;
};

CPU_INLINE void grad_soften(const struct flash *f, const struct grad_work *w,
                            const struct grad_block *b, bool all, const struct grad_pair *g)
{
    const __m512 scale = _mm512_set1_ps(f->scale);
    const __m512 factor = _mm512_set1_ps(f->scale * FLASH_LOG2_E);
    __m256i half[2];
    CPU_UNROLL
    for (int i = 0; i < 2; i++) {
        const int64_t key = g->key + i, to = key * GRAD_QUERIES + g->query;
        const float *s = w->s + g->at + i * GRAD_CHUNK, *from = w->dp + g->at + i * GRAD_CHUNK;
        __m512 p = amx_exp2(_mm512_fmsub_ps(_mm512_load_ps(s), factor, g->lse));
        __m512 dp = _mm512_load_ps(from);
        __mmask16 mask = 0xffff;
        if (!all) {
            const int64_t query = b->first + g->query;
            mask = amx_seen(f, query, b->key + key) & cpu_lanes(f->length - query);
            p = _mm512_maskz_mov_ps(mask, p);
        }
        __m512 kept = p;
        if (f->drop.on) {
            const int64_t group = g->query / CPU_WORDS * GRAD_KEYS + key / CPU_WORDS * CPU_WORDS;
            const __m512i bits = _mm512_load_si512(w->keep + group);
            const __mmask16 keep =
                _mm512_test_epi32_mask(bits, _mm512_set1_epi32(1 << (key % CPU_WORDS)));
            kept = _mm512_maskz_mul_ps(keep, p, _mm512_set1_ps(f->drop.scale));
            dp = _mm512_maskz_mul_ps(keep, dp, _mm512_set1_ps(f->drop.scale));
        }
        dp = _mm512_mul_ps(_mm512_sub_ps(dp, g->delta), scale);
        const __m512 ds = all ? _mm512_mul_ps(p, dp) : _mm512_maskz_mul_ps(mask, p, dp);
        half[i] = (__m256i)_mm512_cvtneps_pbh(ds);
        _mm256_store_si256((void *)(w->p + to), (__m256i)_mm512_cvtneps_pbh(kept));
        _mm256_store_si256((void *)(w->ds + to), half[i]);
    }
    _mm512_store_si512(w->ds_right + g->key / 2 * GRAD_QUERIES + g->query,
                       cpu_pair(half[0], half[1]));
}

/* p and ds of a chunk: `key` and `query` are its first ones in the panel and in the block. */
static void grad_chunk(const struct flash *f, const struct grad_work *w, const struct grad_block *b,
                       int64_t key, int64_t query)
{
    const int64_t first = b->first + query, begin = b->key + key, end = first + GRAD_CHUNK;
    const bool all =
        first >= begin + GRAD_CHUNK - 1 && end <= f->length && end - begin <= f->window;
    grad_scores(f, w->k, w->q, begin, first, w->s);
    grad_scores(f, w->v, w->dy, begin, first, w->dp);
    for (int64_t c = 0; c < GRAD_CHUNK; c += CPU_WORDS) {
        struct grad_pair g = {.query = query + c,
                              .lse = _mm512_load_ps(w->lse + first + c),
                              .delta = _mm512_load_ps(w->delta + first + c)};
        for (int64_t k = 0; k < GRAD_CHUNK; k += 2) {
            g.key = key + k;
            g.at = k * GRAD_CHUNK + c;
            if (all)
                grad_soften(f, w, b, true, &g);
            else
                grad_soften(f, w, b, false, &g);
        }
    }
}

/* sum[key] += the block's weights^T times columns, of chunk `chunk` of keys: from the queries on
 * that see them. */
static void grad_keys(const struct flash *f, const struct grad_block *b, int64_t chunk,
                      const uint16_t *weights, const uint32_t *columns, float *sum)
{
    const bool diagonal = b->first == b->key;
    const int64_t skip = diagonal ? chunk * GRAD_CHUNK : 0, key = chunk * GRAD_CHUNK;
    flash_product(&(struct flash_product){.a = weights + key * GRAD_QUERIES + skip,
                                          .a_row = GRAD_QUERIES * 2,
                                          .a_down = GRAD_QUERIES * 2 * CPU_AMX_ROWS,
                                          .a_along = CPU_AMX_BYTES,
                                          .b = columns + (b->first + skip) / 2 * f->width,
                                          .b_row = (size_t)f->width * 4,
                                          .b_right = CPU_AMX_BYTES,
                                          .b_along = (size_t)f->width * 4 * CPU_AMX_ROWS,
                                          .sum = sum + (b->key + key) * f->width,
                                          .sum_row = (size_t)f->width * 4,
                                          .sum_down = (size_t)f->width * 4 * CPU_AMX_ROWS,
                                          .sum_right = CPU_AMX_BYTES,
                                          .rows = GRAD_CHUNK / CPU_AMX_ROWS,
                                          .columns = f->width / CPU_WORDS,
                                          .along = b->queries - skip / GRAD_CHUNK,
                                          .begin = diagonal && b->first_head});
}

/* dq^T of chunk `chunk` of queries += k^T ds^T, up to the diagonal. */
static void grad_queries(const struct flash *f, const struct grad_work *w,
                         const struct grad_block *b, int64_t chunk)
{
    const int64_t query = chunk * GRAD_CHUNK, first = flash_first(f, b->first);
    const int64_t keys = b->first == b->key ? tess__cpu_min(chunk + 1, b->keys) : b->keys;
    flash_product(&(struct flash_product){.a = w->k_left + b->key / 2 * f->width,
                                          .a_row = CPU_AMX_BYTES,
                                          .a_down = AMX_TILE * 4,
                                          .a_along = (size_t)f->width * CPU_AMX_BYTES,
                                          .b = w->ds_right + query,
                                          .b_row = GRAD_QUERIES * 4,
                                          .b_right = CPU_AMX_BYTES,
                                          .b_along = GRAD_QUERIES * 4 * CPU_AMX_ROWS,
                                          .sum = w->dq + (b->first + query) * f->width,
                                          .sum_row = CPU_AMX_BYTES,
                                          .sum_down = AMX_TILE * 4,
                                          .sum_right = (size_t)f->width * CPU_AMX_BYTES,
                                          .rows = f->width / CPU_WORDS,
                                          .columns = GRAD_CHUNK / CPU_WORDS,
                                          .along = keys,
                                          .begin = b->key == first / GRAD_KEYS * GRAD_KEYS});
}

static void grad_block(const struct flash *f, const struct grad_work *w, const struct grad_block *b)
{
    const bool diagonal = b->first == b->key;
    if (f->drop.on)
        grad_keep(f, w, b);
    for (int64_t k = 0; k < b->keys; k++)
        for (int64_t q = diagonal ? k : 0; q < b->queries; q++)
            grad_chunk(f, w, b, k * GRAD_CHUNK, q * GRAD_CHUNK);
    for (int64_t k = 0; k < b->keys; k++) {
        grad_keys(f, b, k, w->p, w->dy_right, w->dv);
        grad_keys(f, b, k, w->ds, w->q_right, w->dk);
    }
    for (int64_t q = 0; q < b->queries; q++)
        grad_queries(f, w, b, q);
}

static void grad_head(const struct flash *f, const struct grad_work *w, struct grad_block *b)
{
    const int64_t n = f->length;
    for (b->key = 0; b->key < n; b->key += GRAD_KEYS) {
        const int64_t keys = tess__cpu_min(n - b->key, GRAD_KEYS);
        const int64_t end = tess__cpu_min(n, b->key + keys - 1 + f->window);
        b->keys = (keys + GRAD_CHUNK - 1) / GRAD_CHUNK;
        for (b->first = b->key; b->first < end; b->first += GRAD_QUERIES) {
            const int64_t queries = tess__cpu_min(n - b->first, GRAD_QUERIES);
            b->queries = (queries + GRAD_CHUNK - 1) / GRAD_CHUNK;
            grad_block(f, w, b);
        }
    }
}

/* delta = dy . y and lse of all rows of a head. */
static void grad_rows(const struct flash *f, const struct grad_work *w, const char *y,
                      const char *dy, const float *lse)
{
    for (int64_t i = 0; i < f->length; i++, y += f->y_bytes, dy += f->y_bytes) {
        __m512 sum = _mm512_setzero_ps();
        flash_ask(f, y, f->y_bytes);
        for (int64_t c = 0; c < f->size; c += CPU_WORDS)
            sum = _mm512_fmadd_ps(flash_load(TESS_BF16, y, c, f->size),
                                  flash_load(TESS_BF16, dy, c, f->size), sum);
        w->delta[i] = _mm512_reduce_add_ps(sum);
        w->lse[i] = lse[i] * FLASH_LOG2_E;
    }
}

/* Sums [T, width] rounded into rows of D elements, `bytes` apart. */
static void grad_write(const struct flash *f, const float *sum, char *to, size_t bytes)
{
    for (int64_t i = 0; i < f->length; i++, to += bytes, sum += f->width) {
        if (i + FLASH_AHEAD < f->length)
            flash_own(f, to + FLASH_AHEAD * bytes);
        for (int64_t c = 0; c < f->width; c += CPU_WORDS)
            flash_store(TESS_BF16, to, c, f->size, _mm512_load_ps(sum + c));
    }
}

static void grad_part(void *context, int64_t part, void *work)
{
    const struct grad_call *call = context;
    const struct flash *f = &call->f;
    const struct cpu_flash_grad *a = call->arrays;
    const struct tess_op_desc *d = f->desc;
    size_t used, head_bytes = (size_t)d->in * sizeof(uint16_t);
    struct grad_work w = grad_work(f, work, &used);
    int64_t batch = part / d->kv_heads, kv = part % d->kv_heads, n = f->length;
    size_t position = (size_t)(batch * n);
    size_t kv_first = position * f->kv_bytes + (size_t)kv * head_bytes;
    struct grad_block b = {.first_head = true, .position = batch * n};
    const char *k = (const char *)a->k + kv_first;
    cpu_amx_begin();
    flash_copy(f, k, f->kv_bytes, n, w.k);
    flash_copy(f, (const char *)a->v + kv_first, f->kv_bytes, n, w.v);
    amx_left(f, k, f->kv_bytes, n, w.k_left);
    for (int64_t h = kv * f->group; h < (kv + 1) * f->group; h++, b.first_head = false) {
        const size_t q_first = position * f->q_bytes + (size_t)h * head_bytes;
        const size_t y_first = position * f->y_bytes + (size_t)h * head_bytes;
        const char *q = (const char *)a->q + q_first, *dy = (const char *)a->dy + y_first;
        b.head = (int32_t)h;
        amx_turn(f, q, f->q_bytes, n, w.q);
        amx_turn(f, dy, f->y_bytes, n, w.dy);
        amx_right(f, q, f->q_bytes, n, w.q_right);
        amx_right(f, dy, f->y_bytes, n, w.dy_right);
        grad_rows(f, &w, (const char *)a->y + y_first, dy, a->lse + (batch * d->heads + h) * n);
        grad_head(f, &w, &b);
        for (int64_t i = 0; i < n; i += CPU_WORDS)
            amx_write(f, w.dq + i * f->width, _mm512_set1_ps(1.0f), n - i,
                      (char *)a->dq + q_first + (size_t)i * f->q_bytes, f->q_bytes);
    }
    grad_write(f, w.dk, (char *)a->dk + kv_first, f->kv_bytes);
    grad_write(f, w.dv, (char *)a->dv + kv_first, f->kv_bytes);
    cpu_amx_end();
}

void tess__amx_flash_grad(const struct tess_op *op, const struct cpu_flash_grad *arrays)
{
    struct grad_call call = {.f = flash_of_op(op), .arrays = arrays};
    tess__cpu_share(op->kernel, op->desc.rows * op->desc.kv_heads, grad_part, &call, op->scratch);
}
