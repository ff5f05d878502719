/*
 * Forward and data gradient of 3 x 3 convolutions of stride 1 by the transforms of wino.h, in f32
 * and, with AVX2, in bf16: widened as it is read, results rounded as they are written.
 * Built for AVX-512 and for AVX2 (CMakeLists.txt); own_none.c replaces it elsewhere.
 *
 *     u[place][in, out] = G w G^T                       once a call, the threads share the outputs
 *     for every group of tiles                          the threads share these
 *       v[place][tile, in] = B^T x B
 *       for every place: m[place] = v[place] u[place]   tile.c: sums over channels in order
 *       y = A^T m A, with bias and ReLU
 *
 * The data gradient is the same with dy for x, the window turned round and inputs and outputs
 * changed over; its padding is 2 less that of the forward one. No tile depends on another, so the
 * bits depend neither on the number of images nor on the group.
 */
#include "cpu/own/wino.h"

#include "cpu/own/tile.h"

#include <string.h>

#define WINO_TALL  24              /* tiles of a group are a multiple: whole tiles of tile.c */
#define WINO_GROUP (3 << 18)       /* bytes of v and m that are to stay in the second-level cache */
#define WINO_MOST  (4 * WINO_TALL) /* tiles of a group at most */

struct wino_call {
    const struct tess_op_desc *desc;
    struct wino_images n;
    bool back, half; /* half: bf16 */
    int64_t in, out, tiles, group;
    const void *x, *bias;
    void *y;
    const float *w;
    float *u;
};

static int64_t wino_group(int64_t in, int64_t out)
{
    int64_t tall = WINO_GROUP / (WINO_PLACES * 4 * (in + out)) / WINO_TALL * WINO_TALL;
    tall = tall < WINO_MOST ? tall : WINO_MOST;
    return tall > WINO_TALL ? tall : WINO_TALL;
}

/* ---- transforms ------------------------------------------------------------------------------ */

/* Columns of which all six rows stay in registers: all, or a pair of wino_data_pair(), for which
 * the pixels are loaded again. */
#define WINO_TOGETHER (CPU_WORDS == 16 ? WINO_IN : 2)

/* CPU_WORDS channels of a tile. `x`: its first input pixel, which may lie in the padding; bit i of
 * `rows` and lanes of columns[j]: input row i and column j of the tile are in the image. */
CPU_INLINE void wino_tile_data(const float *x, int64_t row, int64_t pixel, unsigned rows,
                               const cpu_mask *columns, int64_t place, float *v)
{
    CPU_UNROLL
    for (int first = 0; first < WINO_IN; first += WINO_TOGETHER) {
        cpu_vector done[WINO_TOGETHER][WINO_IN];
        const float *from = x;
        CPU_UNROLL
        for (int i = 0; i < WINO_IN; i++, from += row) {
            cpu_vector d[WINO_IN], pair[2];
            CPU_SAME(from);
            CPU_UNROLL
            for (int j = 0; j < WINO_IN; j++)
                d[j] = columns == NULL ? cpu_load_any(from + j * pixel) : cpu_zero();
            if (columns != NULL && (rows >> i & 1) != 0) {
                CPU_UNROLL
                for (int j = 0; j < WINO_IN; j++)
                    d[j] = cpu_load_lanes(columns[j], from + j * pixel);
            }
            CPU_UNROLL
            for (int k = 0; k < WINO_TOGETHER; k += 2) {
                wino_data_pair((first + k) / 2, d, pair);
                done[k][i] = pair[0];
                done[k + 1][i] = pair[1];
            }
        }
        CPU_UNROLL
        for (int k = 0; k < WINO_TOGETHER; k++) {
            float *to = v + WINO_COLUMN(first + k) * place;
            CPU_SAME(to);
            CPU_UNROLL
            for (int p = 0; p < WINO_IN; p += 2) {
                cpu_vector pair[2];
                wino_data_pair(p / 2, done[k], pair);
                cpu_store(to + WINO_COLUMN(p) * WINO_IN * place, pair[0]);
                cpu_store(to + WINO_COLUMN(p + 1) * WINO_IN * place, pair[1]);
            }
        }
    }
}

/* The same in bf16: pixels are widened first, once for all pairs of columns. `columns`: bits. */
CPU_INLINE void wino_tile_halves(const uint16_t *x, int64_t row, int64_t pixel, unsigned rows,
                                 unsigned columns, int64_t place, float *v)
{
    _Alignas(64) float wide[WINO_PLACES * CPU_WORDS];
    float *to = wide;
    for (int i = 0; i < WINO_IN; i++, x += row) {
        const unsigned inside = (rows >> i & 1) != 0 ? columns : 0;
        CPU_UNROLL
        for (int j = 0; j < WINO_IN; j++, to += CPU_WORDS)
            cpu_store(to, (inside >> j & 1) != 0 ? cpu_load_of(true, x, j * pixel) : cpu_zero());
    }
    wino_tile_data(wide, WINO_IN * CPU_WORDS, CPU_WORDS, 0, NULL, place, v);
}

/* Which of the 6 pixels from `first` on there are, of `count`. */
static unsigned wino_inside(int64_t first, int64_t count)
{
    const int64_t below = first < 0 ? -first : 0, above = count - first;
    const unsigned all = (1u << WINO_IN) - 1;
    return (above < WINO_IN ? (1u << above) - 1 : all) & all << below;
}

CPU_INLINE void wino_data_all(const struct wino_images *n, bool half, const char *x, int64_t first,
                              int64_t count, int64_t tiles, float *v)
{
    const int64_t pixel = n->channels, row = n->width * pixel, place = wino_place(tiles, pixel);
    const unsigned all = (1u << WINO_IN) - 1;
    struct wino_tile at = wino_tile(n, first);
    for (int64_t t = 0; t < count; t++, v += pixel, wino_next(n, &at)) {
        const int64_t top = at.row - n->padding, left = at.column - n->padding;
        const unsigned rows = wino_inside(top, n->height), columns = wino_inside(left, n->width);
        const char *from =
            x + ((at.image * n->height + top) * n->width + left) * pixel * (half ? 2 : 4);
        cpu_mask lanes[WINO_IN];
        for (int j = 0; j < WINO_IN; j++)
            lanes[j] = cpu_lanes((columns >> j & 1) * CPU_WORDS);
        for (int64_t c = 0; c < pixel; c += CPU_WORDS, from += CPU_WORDS * (half ? 2 : 4)) {
            const void *tile = from;
            if (half)
                wino_tile_halves(tile, row, pixel, rows, columns, place, v + c);
            else if (rows == all && columns == all)
                wino_tile_data(tile, row, pixel, all, NULL, place, v + c);
            else
                wino_tile_data(tile, row, pixel, rows, lanes, place, v + c);
        }
    }
}

void CPU_OWN(wino_data)(const struct wino_images *n, bool half, const void *x, int64_t first,
                        int64_t count, int64_t tiles, float *v)
{
    if (WINO_HALF && half)
        wino_data_all(n, true, x, first, count, tiles, v);
    else
        wino_data_all(n, false, x, first, count, tiles, v);
}

/* G g G^T of a vector of weights, `g` [3, 3]. */
CPU_INLINE void wino_tile_weight(cpu_vector g[WINO_WINDOW][WINO_WINDOW], int64_t place, float *u)
{
    cpu_vector half[WINO_WINDOW][WINO_IN];
    for (int i = 0; i < WINO_WINDOW; i++)
        wino_weight(g[i], half[i]);
    for (int j = 0; j < WINO_IN; j++) {
        cpu_vector from[WINO_WINDOW], out[WINO_IN];
        CPU_UNROLL
        for (int i = 0; i < WINO_WINDOW; i++)
            from[i] = half[i][j];
        wino_weight(from, out);
        CPU_UNROLL
        for (int i = 0; i < WINO_IN; i++)
            cpu_store(u + (i * WINO_IN + j) * place, out[i]);
    }
}

/* u of CPU_WORDS of the call's inputs: of weights [out, 3, 3, in] forward their outputs are
 * gathered, and back, where they are the outputs of the window turned round, they lie side by side.
 */
static void wino_weight_part(void *context, int64_t part, void *work)
{
    (void)work;
    const struct wino_call *call = context;
    const int64_t in = call->in, place = wino_place(in, call->out);
    const int64_t channels = call->back ? call->out : in; /* of the forward one's input */
    const int64_t of_output = WINO_WINDOW * WINO_WINDOW * channels;
    for (int64_t i = part * CPU_WORDS; i < (part + 1) * CPU_WORDS; i++) {
        for (int64_t o = 0; o < call->out; o += CPU_WORDS) {
            cpu_vector g[WINO_WINDOW][WINO_WINDOW];
            const float *w = call->w + (call->back ? i * of_output + o : o * of_output + i);
            for (int k = 0; k < WINO_WINDOW * WINO_WINDOW; k++) {
                const int from = call->back ? WINO_WINDOW * WINO_WINDOW - 1 - k : k;
                g[k / WINO_WINDOW][k % WINO_WINDOW] =
                    call->back ? cpu_load_any(w + from * channels)
                               : cpu_gather(w + from * channels, of_output);
            }
            wino_tile_weight(g, place, call->u + i * call->out + o);
        }
    }
}

/* CPU_WORDS channels of a tile of the result, of which there are `rows` x `columns` pixels. */
CPU_INLINE void wino_tile_out(bool half, const float *m, int64_t place, cpu_vector bias, bool relu,
                              char *y, int64_t row, int64_t pixel, int64_t rows, int64_t columns)
{
    cpu_vector done[WINO_OUT][WINO_IN];
    for (int j = 0; j < WINO_IN; j++) {
        cpu_vector from[WINO_IN], out[WINO_OUT];
        const float *column = m + j * place;
        CPU_SAME(column);
        CPU_UNROLL
        for (int i = 0; i < WINO_IN; i++)
            from[i] = cpu_load(column + i * WINO_IN * place);
        wino_out(from, out);
        CPU_UNROLL
        for (int i = 0; i < WINO_OUT; i++)
            done[i][j] = out[i];
    }
    for (int64_t i = 0; i < rows; i++, y += row * (half ? 2 : 4)) {
        cpu_vector out[WINO_OUT];
        wino_out(done[i], out);
        CPU_UNROLL
        for (int j = 0; j < WINO_OUT; j++) {
            cpu_vector value = cpu_add(out[j], bias);
            if (relu)
                value = cpu_max(cpu_zero(), value); /* a NaN, second, stays */
            if (j < columns)
                cpu_store_of(half, y, j * pixel, value);
        }
    }
}

static void wino_result(const struct wino_call *call, int64_t first, int64_t count, const float *m)
{
    const struct wino_images *n = &call->n;
    const int64_t pixel = call->out, row = n->out_w * pixel, place = wino_place(call->group, pixel);
    const bool relu = call->desc->relu && !call->back, half = WINO_HALF && call->half;
    struct wino_tile at = wino_tile(n, first);
    for (int64_t t = 0; t < count; t++, m += pixel, wino_next(n, &at)) {
        const int64_t rows = tess__cpu_min(n->out_h - at.row, WINO_OUT);
        const int64_t columns = tess__cpu_min(n->out_w - at.column, WINO_OUT);
        char *y = (char *)call->y +
                  ((at.image * n->out_h + at.row) * n->out_w + at.column) * pixel * (half ? 2 : 4);
        for (int64_t c = 0; c < pixel; c += CPU_WORDS, y += CPU_WORDS * (half ? 2 : 4)) {
            cpu_vector bias = call->bias != NULL ? cpu_load_of(half, call->bias, c) : cpu_zero();
            if (half)
                wino_tile_out(true, m + c, place, bias, relu, y, row, pixel, rows, columns);
            else
                wino_tile_out(false, m + c, place, bias, relu, y, row, pixel, rows, columns);
        }
    }
}

/* ---- a call ---------------------------------------------------------------------------------- */

static void wino_part(void *context, int64_t part, void *work)
{
    const struct wino_call *call = context;
    const int64_t in = call->in, out = call->out, first = part * call->group;
    const int64_t count = tess__cpu_min(call->tiles - first, call->group);
    const int64_t v_place = wino_place(call->group, in), m_place = wino_place(call->group, out);
    float *v = work, *m = v + WINO_PLACES * v_place;
    const struct wino_images *n = &call->n;
    const struct wino_ahead ahead[2] = {
        wino_ahead(n, call->half, call->x, n->height, n->width, in, first + count, call->group),
        wino_ahead(n, call->half, call->y, n->out_h, n->out_w, out, first, count)};
    CPU_OWN(wino_data)(n, call->half, call->x, first, count, call->group, v);
    for (int64_t p = 0; p < WINO_PLACES; p++) {
        wino_fetch(&ahead[0], p, false);
        wino_fetch(&ahead[1], p, true);
        for (int64_t o = 0; o < out; o += CPU_TILE_WIDE * CPU_WORDS) {
            const int64_t wide = tess__cpu_min((out - o) / CPU_WORDS, CPU_TILE_WIDE);
            struct cpu_tile tile = {.column =
                                        (const uint32_t *)call->u + p * wino_place(in, out) + o,
                                    .column_step = out,
                                    .scalar = v + p * v_place,
                                    .scalar_row = (size_t)in * sizeof(float),
                                    .scalar_step = sizeof(float),
                                    .rows = count,
                                    .steps = in,
                                    .sum = m + p * m_place + o,
                                    .sum_row = out,
                                    .begin = true};
            CPU_OWN(tile)(false, (int)wide, &tile);
        }
    }
    wino_result(call, first, count, m);
}

size_t CPU_OWN(wino_scratch)(const struct tess_op_desc *desc)
{
    const int64_t group = wino_group(desc->in, desc->out);
    const int64_t words = wino_place(group, desc->in) + wino_place(group, desc->out);
    return (size_t)(WINO_PLACES * words) * sizeof(float);
}

size_t CPU_OWN(wino_weights)(const struct tess_op_desc *desc)
{
    const int64_t widened = desc->dtype == TESS_BF16 ? tess__cpu_sizes(desc).w : 0;
    return (size_t)(WINO_PLACES * wino_place(desc->in, desc->out) + widened) * sizeof(float);
}

bool CPU_OWN(wino_takes)(const struct tess_op_desc *desc)
{
    if (desc->kind != TESS_OP_CONV2D ||
        (desc->dtype != TESS_F32 && (desc->dtype != TESS_BF16 || !WINO_HALF)) ||
        desc->conv == TESS_CONV_F32_DIRECT || desc->window != WINO_WINDOW || desc->stride != 1 ||
        desc->padding >= WINO_WINDOW || desc->in % WINO_CHANNELS != 0 ||
        desc->out % WINO_CHANNELS != 0)
        return false;
    const int64_t sums = desc->in > desc->out ? desc->in : desc->out;
    const double bound = (double)(sums + CPU_WINO_ROUNDINGS) * CPU_WINO_GROWTH * CPU_WINO_UNIT;
    return desc->conv == TESS_CONV_F32_WINOGRAD || bound <= CPU_WINO_BOUND;
}

void CPU_OWN(wino)(const struct tess_kernel *kernel, const struct tess_op_desc *desc, bool back,
                   const void *x, const void *w, const void *bias, void *y, void *scratch)
{
    const int64_t out_h = tess_op_output_size(desc->height, WINO_WINDOW, 1, desc->padding);
    const int64_t out_w = tess_op_output_size(desc->width, WINO_WINDOW, 1, desc->padding);
    struct wino_call call = {
        .desc = desc,
        .n = back
                 ? wino_images(desc->rows, out_h, out_w, desc->out, WINO_WINDOW - 1 - desc->padding)
                 : wino_images(desc->rows, desc->height, desc->width, desc->in, desc->padding),
        .back = back,
        .half = desc->dtype == TESS_BF16,
        .in = back ? desc->out : desc->in,
        .out = back ? desc->in : desc->out,
        .x = x,
        .w = w,
        .bias = bias,
        .y = y,
        .u = (float *)(void *)((char *)scratch + CPU_OWN(wino_scratch)(desc))};
    call.group = wino_group(call.in, call.out);
    if (WINO_HALF && call.half) {
        float *wide = call.u + WINO_PLACES * wino_place(call.in, call.out);
        cpu_widen_row(true, w, tess__cpu_sizes(desc).w, wide);
        call.w = wide;
    }
    call.tiles = desc->rows * call.n.tiles_h * call.n.tiles_w;
    tess__cpu_share(kernel, call.in / CPU_WORDS, wino_weight_part, &call, NULL);
    tess__cpu_share(kernel, (call.tiles + call.group - 1) / call.group, wino_part, &call, scratch);
}
