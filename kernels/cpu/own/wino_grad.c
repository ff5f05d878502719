/*
 * Weight gradient of 3 x 3 convolutions of stride 1 over one leaf by the transforms of
 * wino.h. Built for AVX-512 and for AVX2 (CMakeLists.txt); own_none.c replaces it elsewhere.
 * product.c loops over the leaves and adds them by the tree.
 *
 *     for every group of tiles
 *       v[place][tile, in] = B^T x B,  m[place][tile, out] = A dy A^T
 *       for every place: u[place][out, in] += m[place]^T v[place]      tile.c
 *     dw = G^T u G
 *
 * Each element of u adds its tiles in order, however they are split into groups.
 */
#include "cpu/own/wino.h"

#include "cpu/own/tile.h"

/* Tiles of a group: as many as leave v, m and u in the second-level cache. Where these do not fit,
 * u goes through it once a group, and a group is long. */
#define GRAD_ROOM  (5 << 17) /* bytes */
#define GRAD_LEAST 24
#define GRAD_MOST  48

static int64_t grad_tiles(const struct tess_op_desc *desc)
{
    const int64_t word = WINO_PLACES * (int64_t)sizeof(float);
    const int64_t left = GRAD_ROOM - word * desc->in * desc->out;
    const int64_t fits = left / (word * (desc->in + desc->out)) / 8 * 8;
    return fits >= GRAD_LEAST && fits < GRAD_MOST ? fits : GRAD_MOST;
}

/* Scratch of `count` output channels; only their channels of dy are transformed. */
struct grad_work {
    float *v, *m, *u;
    int64_t v_place, m_place, u_place;
    int64_t m_channels; /* whole vectors of them */
    int64_t tiles;      /* of a group */
    size_t bytes;
};

static struct grad_work grad_work(const struct tess_op_desc *desc, int64_t count, float *base)
{
    struct grad_work w = {.m_channels = (count + CPU_WORDS - 1) / CPU_WORDS * CPU_WORDS,
                          .tiles = grad_tiles(desc)};
    w.v_place = wino_place(w.tiles, desc->in);
    w.m_place = wino_place(w.tiles, w.m_channels);
    w.u_place = wino_place(count, desc->in);
    w.bytes = (size_t)(WINO_PLACES * (w.v_place + w.m_place + w.u_place)) * sizeof(float);
    if (base != NULL) {
        w.v = base;
        w.m = w.v + WINO_PLACES * w.v_place;
        w.u = w.m + WINO_PLACES * w.m_place;
    }
    return w;
}

/* CPU_WORDS channels of a tile of dy, of which there are `rows` x `columns` pixels; the rest is
 * zero. */
CPU_INLINE void grad_tile_out(bool half, const char *dy, int64_t row, int64_t pixel, int64_t rows,
                              int64_t columns, cpu_mask lanes, int64_t place, float *m)
{
    cpu_vector done[WINO_OUT][WINO_IN];
    for (int i = 0; i < WINO_OUT; i++, dy += row * (half ? 2 : 4)) {
        cpu_vector y[WINO_OUT];
        CPU_UNROLL
        for (int j = 0; j < WINO_OUT; j++)
            y[j] = i < rows && j < columns ? cpu_load_lanes_of(half, lanes, dy, j * pixel)
                                           : cpu_zero();
        wino_out_back(y, done[i]);
    }
    for (int j = 0; j < WINO_IN; j++) {
        cpu_vector y[WINO_OUT], out[WINO_IN];
        float *to = m + j * place;
        CPU_SAME(to);
        CPU_UNROLL
        for (int i = 0; i < WINO_OUT; i++)
            y[i] = done[i][j];
        wino_out_back(y, out);
        CPU_UNROLL
        for (int i = 0; i < WINO_IN; i++)
            cpu_store(to + i * WINO_IN * place, out[i]);
    }
}

static void grad_out(const struct wino_images *n, const struct grad_work *w, bool half,
                     const char *dy, int64_t channels, int64_t count, int64_t first, int64_t tiles)
{
    float *m = w->m;
    struct wino_tile at = wino_tile(n, first);
    for (int64_t t = 0; t < tiles; t++, m += w->m_channels, wino_next(n, &at)) {
        const int64_t rows = n->out_h - at.row, columns = n->out_w - at.column;
        const char *from = dy + ((at.image * n->out_h + at.row) * n->out_w + at.column) * channels *
                                    (half ? 2 : 4);
        for (int64_t c = 0; c < count; c += CPU_WORDS, from += CPU_WORDS * (half ? 2 : 4)) {
            const cpu_mask lanes = cpu_lanes(count - c);
            if (half)
                grad_tile_out(true, from, n->out_w * channels, channels, rows, columns, lanes,
                              w->m_place, m + c);
            else
                grad_tile_out(false, from, n->out_w * channels, channels, rows, columns, lanes,
                              w->m_place, m + c);
        }
    }
}

/* G^T u G into dw [count, 3, 3, in]. */
static void grad_result(const struct tess_op_desc *desc, const struct grad_work *w, int64_t count,
                        float *dw)
{
    for (int64_t at = 0; at < count * desc->in; at += CPU_WORDS) {
        cpu_vector half[WINO_WINDOW][WINO_IN];
        const int64_t c = at % desc->in;
        float *to = dw + (at - c) * WINO_WINDOW * WINO_WINDOW + c;
        for (int j = 0; j < WINO_IN; j++) {
            cpu_vector u[WINO_IN], out[WINO_WINDOW];
            CPU_UNROLL
            for (int i = 0; i < WINO_IN; i++)
                u[i] = cpu_load(w->u + (i * WINO_IN + j) * w->u_place + at);
            wino_weight_back(u, out);
            CPU_UNROLL
            for (int i = 0; i < WINO_WINDOW; i++)
                half[i][j] = out[i];
        }
        for (int i = 0; i < WINO_WINDOW; i++) {
            cpu_vector out[WINO_WINDOW];
            wino_weight_back(half[i], out);
            for (int j = 0; j < WINO_WINDOW; j++, to += desc->in)
                cpu_store_any(to, out[j]);
        }
    }
}

size_t CPU_OWN(wino_grad_scratch)(const struct tess_op_desc *desc)
{
    return tess__cpu_round_up(grad_work(desc, desc->out, NULL).bytes);
}

void CPU_OWN(wino_grad)(const struct tess_op_desc *desc, const void *x, const void *dy,
                        int64_t first, int64_t count, float *dw, void *scratch)
{
    const struct wino_images n =
        wino_images(desc->leaf_rows, desc->height, desc->width, desc->in, desc->padding);
    const struct grad_work w = grad_work(desc, count, scratch);
    const bool half = WINO_HALF && desc->dtype == TESS_BF16;
    const int64_t tiles = n.images * n.tiles_h * n.tiles_w;
    for (int64_t t = 0; t < tiles; t += w.tiles) {
        const int64_t group = tess__cpu_min(tiles - t, w.tiles);
        const struct wino_ahead ahead[2] = {
            wino_ahead(&n, half, x, n.height, n.width, desc->in, t + group, w.tiles),
            wino_ahead(&n, half, dy, n.out_h, n.out_w, desc->out, t + group, w.tiles)};
        CPU_OWN(wino_data)(&n, half, x, t, group, w.tiles, w.v);
        grad_out(&n, &w, half, (const char *)dy + first * (half ? 2 : 4), desc->out, count, t,
                 group);
        for (int64_t p = 0; p < WINO_PLACES; p++) {
            wino_fetch(&ahead[0], p, false);
            wino_fetch(&ahead[1], p, false);
            for (int64_t c = 0; c < desc->in; c += CPU_TILE_WIDE * CPU_WORDS) {
                const int64_t wide = tess__cpu_min((desc->in - c) / CPU_WORDS, CPU_TILE_WIDE);
                struct cpu_tile tile = {.column = (const uint32_t *)w.v + p * w.v_place + c,
                                        .column_step = desc->in,
                                        .scalar = w.m + p * w.m_place,
                                        .scalar_row = sizeof(float),
                                        .scalar_step = (size_t)w.m_channels * sizeof(float),
                                        .rows = count,
                                        .steps = group,
                                        .sum = w.u + p * w.u_place + c,
                                        .sum_row = desc->in,
                                        .begin = t == 0};
                CPU_OWN(tile)(false, (int)wide, &tile);
            }
        }
    }
    grad_result(desc, &w, count, dw);
}
