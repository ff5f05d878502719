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
 * An element's operations are the same by vectors of any length, and so are its bits.
 */
#ifndef KERNELS_CPU_OWN_WINO_H
#define KERNELS_CPU_OWN_WINO_H

#include "cpu/cpu.h"

#include "cpu/own/pack.h"

#define WINO_OUT    4 /* outputs of a tile in a row */
#define WINO_IN     6 /* inputs, and products */
#define WINO_WINDOW 3
#define WINO_PLACES 36 /* WINO_IN squared */

/* Is bf16 taken too? Where there are no dot products of it, which have other bits and are faster.
 */
#define WINO_HALF (!CPU_PAIRS)

#define WINO_CHANNELS 16 /* of which those of a layer are a multiple, for any CPU_WORDS */

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
    return tiles * channels + CPU_LINE;
}

/* Memory that is soon needed, fetched into the second-level cache a piece at a time while products
 * keep the processor busy: transforms alone would wait for it. */
struct wino_ahead {
    const char *at;
    int64_t lines; /* in all */
};

/* From row `row` of image pixels [.., rows of an image, pixels of a row] at the place of tile
 * `first` to that of tile `first + count`. */
static inline struct wino_ahead wino_ahead(const struct wino_images *n, bool half, const void *x,
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
    const int64_t element = half ? 2 : 4;
    return (struct wino_ahead){.at = (const char *)x + row[0] * width * channels * element,
                               .lines = (row[1] - row[0]) * width * channels * element / 64};
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

/* Columns of B^T d are made in pairs that share terms: pair p is columns WINO_COLUMN(2 p) and
 * WINO_COLUMN(2 p + 1). */
#define WINO_COLUMN(i) ((i) == 1 ? 5 : (i) == 0 ? 0 : (i)-1)

CPU_INLINE void wino_data_pair(int pair, const cpu_vector d[WINO_IN], cpu_vector v[2])
{
    const cpu_vector aabb = cpu_set(WINO_AA * WINO_BB), sum = cpu_set(WINO_AA + WINO_BB);
    if (pair == 0) {
        v[0] = cpu_fma(aabb, d[0], cpu_fnma(sum, d[2], d[4]));
        v[1] = cpu_fma(aabb, d[1], cpu_fnma(sum, d[3], d[5]));
        return;
    }
    const cpu_vector point = cpu_set(pair == 1 ? WINO_A : WINO_B);
    const cpu_vector other = cpu_set(pair == 1 ? WINO_BB : WINO_AA);
    const cpu_vector even = cpu_fnma(other, d[2], d[4]), odd = cpu_fnma(other, d[1], d[3]);
    v[0] = cpu_fma(point, odd, even);
    v[1] = cpu_fnma(point, odd, even);
}

/* A^T of 6 vectors. */
CPU_INLINE void wino_out(const cpu_vector m[WINO_IN], cpu_vector y[WINO_OUT])
{
    const cpu_vector a = cpu_set(WINO_A), b = cpu_set(WINO_B);
    const cpu_vector aa = cpu_set(WINO_AA), bb = cpu_set(WINO_BB);
    const cpu_vector aaa = cpu_set(WINO_AA * WINO_A), bbb = cpu_set(WINO_BB * WINO_B);
    const cpu_vector a_even = cpu_add(m[1], m[2]), a_odd = cpu_sub(m[1], m[2]);
    const cpu_vector b_even = cpu_add(m[3], m[4]), b_odd = cpu_sub(m[3], m[4]);
    y[0] = cpu_add(m[0], cpu_add(a_even, b_even));
    y[1] = cpu_fma(a, a_odd, cpu_mul(b, b_odd));
    y[2] = cpu_fma(aa, a_even, cpu_mul(bb, b_even));
    y[3] = cpu_fma(aaa, a_odd, cpu_fma(bbb, b_odd, m[5]));
}

/* A of 4 vectors. */
CPU_INLINE void wino_out_back(const cpu_vector y[WINO_OUT], cpu_vector m[WINO_IN])
{
    const cpu_vector a = cpu_set(WINO_A), b = cpu_set(WINO_B);
    const cpu_vector aa = cpu_set(WINO_AA), bb = cpu_set(WINO_BB);
    const cpu_vector a_even = cpu_fma(aa, y[2], y[0]), a_odd = cpu_fma(aa, y[3], y[1]);
    const cpu_vector b_even = cpu_fma(bb, y[2], y[0]), b_odd = cpu_fma(bb, y[3], y[1]);
    m[0] = y[0];
    m[1] = cpu_fma(a, a_odd, a_even);
    m[2] = cpu_fnma(a, a_odd, a_even);
    m[3] = cpu_fma(b, b_odd, b_even);
    m[4] = cpu_fnma(b, b_odd, b_even);
    m[5] = y[3];
}

/* G of 3 vectors. */
CPU_INLINE void wino_weight(const cpu_vector g[WINO_WINDOW], cpu_vector u[WINO_IN])
{
    const cpu_vector a = cpu_set(WINO_A), b = cpu_set(WINO_B);
    const cpu_vector aa = cpu_set(WINO_AA), bb = cpu_set(WINO_BB);
    const cpu_vector over_a = cpu_set(WINO_OVER_A), over_b = cpu_set(WINO_OVER_B);
    const cpu_vector a_even = cpu_fma(aa, g[2], g[0]), b_even = cpu_fma(bb, g[2], g[0]);
    u[0] = cpu_mul(g[0], cpu_set(WINO_OVER_0));
    u[1] = cpu_mul(over_a, cpu_fma(a, g[1], a_even));
    u[2] = cpu_mul(over_a, cpu_fnma(a, g[1], a_even));
    u[3] = cpu_mul(over_b, cpu_fma(b, g[1], b_even));
    u[4] = cpu_mul(over_b, cpu_fnma(b, g[1], b_even));
    u[5] = g[2];
}

/* G^T of 6 vectors. */
CPU_INLINE void wino_weight_back(const cpu_vector u[WINO_IN], cpu_vector g[WINO_WINDOW])
{
    const cpu_vector a = cpu_set(WINO_A), b = cpu_set(WINO_B);
    const cpu_vector aa = cpu_set(WINO_AA), bb = cpu_set(WINO_BB);
    const cpu_vector over_0 = cpu_set(WINO_OVER_0);
    const cpu_vector over_a = cpu_set(WINO_OVER_A), over_b = cpu_set(WINO_OVER_B);
    const cpu_vector a_even = cpu_mul(over_a, cpu_add(u[1], u[2]));
    const cpu_vector a_odd = cpu_mul(over_a, cpu_sub(u[1], u[2]));
    const cpu_vector b_even = cpu_mul(over_b, cpu_add(u[3], u[4]));
    const cpu_vector b_odd = cpu_mul(over_b, cpu_sub(u[3], u[4]));
    g[0] = cpu_fma(over_0, u[0], cpu_add(a_even, b_even));
    g[1] = cpu_fma(a, a_odd, cpu_mul(b, b_odd));
    g[2] = cpu_fma(aa, a_even, cpu_fma(bb, b_even, u[5]));
}

/*
 * v[WINO_PLACES][tiles, channels] = B^T d B of `count` <= tiles tiles from tile `first` on; the
 * images' padding, and what the last tiles of a row have beyond it, is zero.
 */
void CPU_OWN(wino_data)(const struct wino_images *n, bool half, const void *x, int64_t first,
                        int64_t count, int64_t tiles, float *v);

#endif
