/*
 * Winograd's minimal filtering F(4x4, 3x3) (Lavin and Gray 2016): a tile of 4 x 4 outputs of a 3 x
 * 3 convolution from 6 x 6 inputs by 36 products instead of 144,
 *
 *     y = A^T [ sum over channels of (G g G^T) (B^T d B), element by element ] A
 *
 * and the gradient of the weights from the same tiles, G^T [ sum (A dy A^T) (B^T d B) ] G.
 *
 * The points are 0, +-a, +-b and infinity with a = 5/8 and b = 3/2: all constants of A and B are
 * exact in f32, and the bound below is a quarter of that of the usual 0, +-1, +-2.
 *
 * Bound. Every element of y is a sum of products of the 6 x 6 intermediate values, so with |.|
 * element by element (Higham 2002, lemma 3.1; Barabasz et al. 2020, theorem 1)
 *
 *     |error| <= n u / (1 - n u)  |A^T| [ sum (|G| |g| |G|^T) (|B^T| |d| |B|) ] |A|
 *
 * with u = 2^-24 and n the roundings on the longest path: CPU_WINO_ROUNDINGS in the transforms and
 * one for each fused product. With |d| and |g| all ones the right side is CPU_WINO_GROWTH n u for
 * each of 9 products: what direct sums of 9 products have is n u.
 *
 * AVX-512 only.
 */
#ifndef KERNELS_CPU_OWN_WINO_H
#define KERNELS_CPU_OWN_WINO_H

#include "cpu/cpu.h"

#include "cpu/own/pack.h"

#define WINO_OUT    4 /* outputs of a tile in a row */
#define WINO_IN     6 /* inputs, and products */
#define WINO_WINDOW 3
#define WINO_PLACES 36 /* WINO_IN squared */

#define WINO_A  0.625f
#define WINO_B  1.5f
#define WINO_AA (WINO_A * WINO_A)
#define WINO_BB (WINO_B * WINO_B)
/* Rows of G are divided by these: the products of the differences of their point to the others. */
#define WINO_OVER_0 (1.0f / (WINO_AA * WINO_BB))
#define WINO_OVER_A (1.0f / (2 * WINO_AA * (WINO_AA - WINO_BB)))
#define WINO_OVER_B (1.0f / (2 * WINO_BB * (WINO_BB - WINO_AA)))

/* Images of `channels` and the tiles over their convolution with a window of 3, stride 1. */
struct wino_images {
    int64_t images, height, width, channels;
    int64_t padding;          /* of the convolution that the tiles are of */
    int64_t out_h, out_w;     /* of its result */
    int64_t tiles_h, tiles_w; /* of an image */
};

static inline struct wino_images wino_images(int64_t images, int64_t height, int64_t width,
                                             int64_t channels, int64_t padding)
{
    struct wino_images n = {.images = images,
                            .height = height,
                            .width = width,
                            .channels = channels,
                            .padding = padding,
                            .out_h = height + 2 * padding - WINO_WINDOW + 1,
                            .out_w = width + 2 * padding - WINO_WINDOW + 1};
    n.tiles_h = (n.out_h + WINO_OUT - 1) / WINO_OUT;
    n.tiles_w = (n.out_w + WINO_OUT - 1) / WINO_OUT;
    return n;
}

/* Where a tile lies. */
struct wino_tile {
    int64_t image, row, column; /* of its first output */
};

static inline struct wino_tile wino_tile(const struct wino_images *n, int64_t tile)
{
    return (struct wino_tile){.image = tile / (n->tiles_h * n->tiles_w),
                              .row = tile / n->tiles_w % n->tiles_h * WINO_OUT,
                              .column = tile % n->tiles_w * WINO_OUT};
}

static inline void wino_next(const struct wino_images *n, struct wino_tile *at)
{
    at->column += WINO_OUT;
    if (at->column < n->out_w)
        return;
    at->column = 0;
    at->row += WINO_OUT;
    if (at->row < n->out_h)
        return;
    at->row = 0;
    at->image++;
}

/* Products of a group of tiles: [WINO_PLACES][tiles, channels]. Places are a line further apart
 * than they need be: with a power of two all 36 would share a set of the first-level cache. */
CPU_INLINE int64_t wino_place(int64_t tiles, int64_t channels)
{
    return tiles * channels + CPU_WORDS;
}

/* Memory that is soon needed, fetched into the second-level cache a piece at a time while products
 * keep the processor busy: transforms alone would wait for it. */
struct wino_ahead {
    const char *at;
    int64_t lines; /* in all */
};

/* From row `row` of image pixels [.., rows of an image, pixels of a row] at the place of tile
 * `first` to that of tile `first + count`. */
static inline struct wino_ahead wino_ahead(const struct wino_images *n, const float *x,
                                           int64_t height, int64_t width, int64_t channels,
                                           int64_t first, int64_t count)
{
    const int64_t of_image = n->tiles_h * n->tiles_w, all = n->images * of_image;
    int64_t row[2];
    for (int i = 0; i < 2; i++) {
        const int64_t tile = tess__cpu_min(first + (i == 0 ? 0 : count), all);
        row[i] = tile / of_image * height;
        row[i] += tess__cpu_min(tile / n->tiles_w % n->tiles_h * WINO_OUT, height);
    }
    return (struct wino_ahead){.at = (const char *)(x + row[0] * width * channels),
                               .lines = (row[1] - row[0]) * width * channels / CPU_WORDS};
}

/* Piece `place` of WINO_PLACES. */
CPU_INLINE void wino_fetch(const struct wino_ahead *ahead, int64_t place, bool write)
{
    const int64_t end = ahead->lines * (place + 1) / WINO_PLACES;
    for (int64_t line = ahead->lines * place / WINO_PLACES; line < end; line++) {
        if (write)
            __builtin_prefetch(ahead->at + line * 64, 1, 2);
        else
            __builtin_prefetch(ahead->at + line * 64, 0, 2);
    }
}

/* B^T of 6 vectors. */
CPU_INLINE void wino_data(const __m512 d[WINO_IN], __m512 v[WINO_IN])
{
    const __m512 a = _mm512_set1_ps(WINO_A), b = _mm512_set1_ps(WINO_B);
    const __m512 aa = _mm512_set1_ps(WINO_AA), bb = _mm512_set1_ps(WINO_BB);
    const __m512 aabb = _mm512_set1_ps(WINO_AA * WINO_BB);
    const __m512 sum = _mm512_set1_ps(WINO_AA + WINO_BB);
    const __m512 a_even = _mm512_fnmadd_ps(bb, d[2], d[4]),
                 a_odd = _mm512_fnmadd_ps(bb, d[1], d[3]);
    const __m512 b_even = _mm512_fnmadd_ps(aa, d[2], d[4]),
                 b_odd = _mm512_fnmadd_ps(aa, d[1], d[3]);
    v[0] = _mm512_fmadd_ps(aabb, d[0], _mm512_fnmadd_ps(sum, d[2], d[4]));
    v[1] = _mm512_fmadd_ps(a, a_odd, a_even);
    v[2] = _mm512_fnmadd_ps(a, a_odd, a_even);
    v[3] = _mm512_fmadd_ps(b, b_odd, b_even);
    v[4] = _mm512_fnmadd_ps(b, b_odd, b_even);
    v[5] = _mm512_fmadd_ps(aabb, d[1], _mm512_fnmadd_ps(sum, d[3], d[5]));
}

/* A^T of 6 vectors. */
CPU_INLINE void wino_out(const __m512 m[WINO_IN], __m512 y[WINO_OUT])
{
    const __m512 a = _mm512_set1_ps(WINO_A), b = _mm512_set1_ps(WINO_B);
    const __m512 aa = _mm512_set1_ps(WINO_AA), bb = _mm512_set1_ps(WINO_BB);
    const __m512 aaa = _mm512_set1_ps(WINO_AA * WINO_A), bbb = _mm512_set1_ps(WINO_BB * WINO_B);
    const __m512 a_even = _mm512_add_ps(m[1], m[2]), a_odd = _mm512_sub_ps(m[1], m[2]);
    const __m512 b_even = _mm512_add_ps(m[3], m[4]), b_odd = _mm512_sub_ps(m[3], m[4]);
    y[0] = _mm512_add_ps(m[0], _mm512_add_ps(a_even, b_even));
    y[1] = _mm512_fmadd_ps(a, a_odd, _mm512_mul_ps(b, b_odd));
    y[2] = _mm512_fmadd_ps(aa, a_even, _mm512_mul_ps(bb, b_even));
    y[3] = _mm512_fmadd_ps(aaa, a_odd, _mm512_fmadd_ps(bbb, b_odd, m[5]));
}

/* A of 4 vectors. */
CPU_INLINE void wino_out_back(const __m512 y[WINO_OUT], __m512 m[WINO_IN])
{
    const __m512 a = _mm512_set1_ps(WINO_A), b = _mm512_set1_ps(WINO_B);
    const __m512 aa = _mm512_set1_ps(WINO_AA), bb = _mm512_set1_ps(WINO_BB);
    const __m512 a_even = _mm512_fmadd_ps(aa, y[2], y[0]), a_odd = _mm512_fmadd_ps(aa, y[3], y[1]);
    const __m512 b_even = _mm512_fmadd_ps(bb, y[2], y[0]), b_odd = _mm512_fmadd_ps(bb, y[3], y[1]);
    m[0] = y[0];
    m[1] = _mm512_fmadd_ps(a, a_odd, a_even);
    m[2] = _mm512_fnmadd_ps(a, a_odd, a_even);
    m[3] = _mm512_fmadd_ps(b, b_odd, b_even);
    m[4] = _mm512_fnmadd_ps(b, b_odd, b_even);
    m[5] = y[3];
}

/* G of 3 vectors. */
CPU_INLINE void wino_weight(const __m512 g[WINO_WINDOW], __m512 u[WINO_IN])
{
    const __m512 a = _mm512_set1_ps(WINO_A), b = _mm512_set1_ps(WINO_B);
    const __m512 aa = _mm512_set1_ps(WINO_AA), bb = _mm512_set1_ps(WINO_BB);
    const __m512 over_a = _mm512_set1_ps(WINO_OVER_A), over_b = _mm512_set1_ps(WINO_OVER_B);
    const __m512 a_even = _mm512_fmadd_ps(aa, g[2], g[0]), b_even = _mm512_fmadd_ps(bb, g[2], g[0]);
    u[0] = _mm512_mul_ps(g[0], _mm512_set1_ps(WINO_OVER_0));
    u[1] = _mm512_mul_ps(over_a, _mm512_fmadd_ps(a, g[1], a_even));
    u[2] = _mm512_mul_ps(over_a, _mm512_fnmadd_ps(a, g[1], a_even));
    u[3] = _mm512_mul_ps(over_b, _mm512_fmadd_ps(b, g[1], b_even));
    u[4] = _mm512_mul_ps(over_b, _mm512_fnmadd_ps(b, g[1], b_even));
    u[5] = g[2];
}

/* G^T of 6 vectors. */
CPU_INLINE void wino_weight_back(const __m512 u[WINO_IN], __m512 g[WINO_WINDOW])
{
    const __m512 a = _mm512_set1_ps(WINO_A), b = _mm512_set1_ps(WINO_B);
    const __m512 aa = _mm512_set1_ps(WINO_AA), bb = _mm512_set1_ps(WINO_BB);
    const __m512 over_0 = _mm512_set1_ps(WINO_OVER_0);
    const __m512 over_a = _mm512_set1_ps(WINO_OVER_A), over_b = _mm512_set1_ps(WINO_OVER_B);
    const __m512 a_even = _mm512_mul_ps(over_a, _mm512_add_ps(u[1], u[2]));
    const __m512 a_odd = _mm512_mul_ps(over_a, _mm512_sub_ps(u[1], u[2]));
    const __m512 b_even = _mm512_mul_ps(over_b, _mm512_add_ps(u[3], u[4]));
    const __m512 b_odd = _mm512_mul_ps(over_b, _mm512_sub_ps(u[3], u[4]));
    g[0] = _mm512_fmadd_ps(over_0, u[0], _mm512_add_ps(a_even, b_even));
    g[1] = _mm512_fmadd_ps(a, a_odd, _mm512_mul_ps(b, b_odd));
    g[2] = _mm512_fmadd_ps(aa, a_even, _mm512_fmadd_ps(bb, b_even, u[5]));
}

/*
 * v[WINO_PLACES][tiles, channels] = B^T d B of `count` <= tiles tiles from tile `first` on; the
 * images' padding, and what the last tiles of a row have beyond it, is zero.
 */
void tess__wino_data(const struct wino_images *n, const float *x, int64_t first, int64_t count,
                     int64_t tiles, float *v);

#endif
