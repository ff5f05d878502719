/*
 * Forward and data gradient of 3 x 3 convolutions of stride 1 in f32 by the transforms of wino.h.
 * Built for AVX-512 (CMakeLists.txt); own_none.c replaces it elsewhere.
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
    bool back;
    int64_t in, out, tiles, group;
    const float *x, *w, *bias;
    float *y, *u;
};

static int64_t wino_group(int64_t in, int64_t out)
{
    int64_t tall = WINO_GROUP / (WINO_PLACES * 4 * (in + out)) / WINO_TALL * WINO_TALL;
    tall = tall < WINO_MOST ? tall : WINO_MOST;
    return tall > WINO_TALL ? tall : WINO_TALL;
}

/* ---- transforms ------------------------------------------------------------------------------ */

/* 16 channels of a tile. `x`: its first input pixel, which may lie in the padding; bit i of `rows`
 * and lanes of columns[j]: input row i and column j of the tile are in the image. */
CPU_INLINE void wino_tile_data(const float *x, int64_t row, int64_t pixel, unsigned rows,
                               const __mmask16 *columns, int64_t place, float *v)
{
    __m512 half[WINO_IN][WINO_IN];
    for (int i = 0; i < WINO_IN; i++, x += row) {
        __m512 d[WINO_IN];
        CPU_UNROLL
        for (int j = 0; j < WINO_IN; j++)
            d[j] = columns == NULL ? _mm512_loadu_ps(x + j * pixel) : _mm512_setzero_ps();
        if (columns != NULL && (rows >> i & 1) != 0) {
            CPU_UNROLL
            for (int j = 0; j < WINO_IN; j++)
                d[j] = _mm512_maskz_loadu_ps(columns[j], x + j * pixel);
        }
        wino_data(d, half[i]);
    }
    for (int j = 0; j < WINO_IN; j++) {
        __m512 d[WINO_IN], out[WINO_IN];
        CPU_UNROLL
        for (int i = 0; i < WINO_IN; i++)
            d[i] = half[i][j];
        wino_data(d, out);
        CPU_UNROLL
        for (int i = 0; i < WINO_IN; i++)
            _mm512_store_ps(v + (i * WINO_IN + j) * place, out[i]);
    }
}

/* Which of the 6 pixels from `first` on there are, of `count`. */
static unsigned wino_inside(int64_t first, int64_t count)
{
    const int64_t below = first < 0 ? -first : 0, above = count - first;
    const unsigned all = (1u << WINO_IN) - 1;
    return (above < WINO_IN ? (1u << above) - 1 : all) & all << below;
}

void tess__wino_data(const struct wino_images *n, const float *x, int64_t first, int64_t count,
                     int64_t tiles, float *v)
{
    const int64_t pixel = n->channels, row = n->width * pixel, place = wino_place(tiles, pixel);
    const unsigned all = (1u << WINO_IN) - 1;
    struct wino_tile at = wino_tile(n, first);
    for (int64_t t = 0; t < count; t++, v += pixel, wino_next(n, &at)) {
        const int64_t top = at.row - n->padding, left = at.column - n->padding;
        const unsigned rows = wino_inside(top, n->height), columns = wino_inside(left, n->width);
        const float *from = x + ((at.image * n->height + top) * n->width + left) * pixel;
        __mmask16 lanes[WINO_IN];
        for (int j = 0; j < WINO_IN; j++)
            lanes[j] = (__mmask16) - (columns >> j & 1);
        for (int64_t c = 0; c < pixel; c += CPU_WORDS) {
            if (rows == all && columns == all)
                wino_tile_data(from + c, row, pixel, all, NULL, place, v + c);
            else
                wino_tile_data(from + c, row, pixel, rows, lanes, place, v + c);
        }
    }
}

/* G g G^T of 16 lanes of weights, `g` [3, 3]. */
CPU_INLINE void wino_tile_weight(__m512 g[WINO_WINDOW][WINO_WINDOW], int64_t place, float *u)
{
    __m512 half[WINO_WINDOW][WINO_IN];
    for (int i = 0; i < WINO_WINDOW; i++)
        wino_weight(g[i], half[i]);
    for (int j = 0; j < WINO_IN; j++) {
        __m512 from[WINO_WINDOW], out[WINO_IN];
        CPU_UNROLL
        for (int i = 0; i < WINO_WINDOW; i++)
            from[i] = half[i][j];
        wino_weight(from, out);
        CPU_UNROLL
        for (int i = 0; i < WINO_IN; i++)
            _mm512_store_ps(u + (i * WINO_IN + j) * place, out[i]);
    }
}

/* u of 16 of the call's inputs: of weights [out, 3, 3, in] forward their outputs are gathered, and
 * back, where they are the outputs of the window turned round, they lie side by side. */
static void wino_weight_part(void *context, int64_t part, void *work)
{
    (void)work;
    const struct wino_call *call = context;
    const int64_t in = call->in, place = wino_place(in, call->out);
    const int64_t channels = call->back ? call->out : in; /* of the forward one's input */
    const int64_t of_output = WINO_WINDOW * WINO_WINDOW * channels;
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i gather = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)of_output));
    for (int64_t i = part * CPU_WORDS; i < (part + 1) * CPU_WORDS; i++) {
        for (int64_t o = 0; o < call->out; o += CPU_WORDS) {
            __m512 g[WINO_WINDOW][WINO_WINDOW];
            const float *w = call->w + (call->back ? i * of_output + o : o * of_output + i);
            for (int k = 0; k < WINO_WINDOW * WINO_WINDOW; k++) {
                const int from = call->back ? WINO_WINDOW * WINO_WINDOW - 1 - k : k;
                g[k / WINO_WINDOW][k % WINO_WINDOW] =
                    call->back ? _mm512_loadu_ps(w + from * channels)
                               : _mm512_i32gather_ps(gather, w + from * channels, 4);
            }
            wino_tile_weight(g, place, call->u + i * call->out + o);
        }
    }
}

/* 16 channels of a tile of the result, of which there are `rows` x `columns` pixels. */
CPU_INLINE void wino_tile_out(const float *m, int64_t place, __m512 bias, bool relu, float *y,
                              int64_t row, int64_t pixel, int64_t rows, int64_t columns)
{
    __m512 half[WINO_OUT][WINO_IN];
    for (int j = 0; j < WINO_IN; j++) {
        __m512 from[WINO_IN], out[WINO_OUT];
        CPU_UNROLL
        for (int i = 0; i < WINO_IN; i++)
            from[i] = _mm512_load_ps(m + (i * WINO_IN + j) * place);
        wino_out(from, out);
        CPU_UNROLL
        for (int i = 0; i < WINO_OUT; i++)
            half[i][j] = out[i];
    }
    for (int64_t i = 0; i < rows; i++, y += row) {
        __m512 out[WINO_OUT];
        wino_out(half[i], out);
        CPU_UNROLL
        for (int j = 0; j < WINO_OUT; j++) {
            __m512 value = _mm512_add_ps(out[j], bias);
            if (relu)
                value = _mm512_max_ps(_mm512_setzero_ps(), value); /* a NaN, second, stays */
            if (j < columns)
                _mm512_storeu_ps(y + j * pixel, value);
        }
    }
}

static void wino_result(const struct wino_call *call, int64_t first, int64_t count, const float *m)
{
    const struct wino_images *n = &call->n;
    const int64_t pixel = call->out, row = n->out_w * pixel, place = wino_place(call->group, pixel);
    const bool relu = call->desc->relu && !call->back;
    struct wino_tile at = wino_tile(n, first);
    for (int64_t t = 0; t < count; t++, m += pixel, wino_next(n, &at)) {
        const int64_t rows = tess__cpu_min(n->out_h - at.row, WINO_OUT);
        const int64_t columns = tess__cpu_min(n->out_w - at.column, WINO_OUT);
        float *y = call->y + ((at.image * n->out_h + at.row) * n->out_w + at.column) * pixel;
        for (int64_t c = 0; c < pixel; c += CPU_WORDS) {
            __m512 bias =
                call->bias != NULL ? _mm512_loadu_ps(call->bias + c) : _mm512_setzero_ps();
            wino_tile_out(m + c, place, bias, relu, y + c, row, pixel, rows, columns);
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
        wino_ahead(n, call->x, n->height, n->width, in, first + count, call->group),
        wino_ahead(n, call->y, n->out_h, n->out_w, out, first, count)};
    tess__wino_data(n, call->x, first, count, call->group, v);
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
            tess__cpu_tile(false, (int)wide, &tile);
        }
    }
    wino_result(call, first, count, m);
}

size_t tess__cpu_wino_scratch(const struct tess_op_desc *desc)
{
    const int64_t group = wino_group(desc->in, desc->out);
    const int64_t words = wino_place(group, desc->in) + wino_place(group, desc->out);
    return (size_t)(WINO_PLACES * words) * sizeof(float);
}

size_t tess__cpu_wino_weights(const struct tess_op_desc *desc)
{
    return (size_t)(WINO_PLACES * wino_place(desc->in, desc->out)) * sizeof(float);
}

bool tess__cpu_wino_takes(const struct tess_op_desc *desc)
{
    if (desc->kind != TESS_OP_CONV2D || desc->dtype != TESS_F32 ||
        desc->conv == TESS_CONV_F32_DIRECT || desc->window != WINO_WINDOW || desc->stride != 1 ||
        desc->padding >= WINO_WINDOW || desc->in % CPU_WORDS != 0 || desc->out % CPU_WORDS != 0)
        return false;
    const int64_t sums = desc->in > desc->out ? desc->in : desc->out;
    const double bound = (double)(sums + CPU_WINO_ROUNDINGS) * CPU_WINO_GROWTH * CPU_WINO_UNIT;
    return desc->conv == TESS_CONV_F32_WINOGRAD || bound <= CPU_WINO_BOUND;
}

void tess__cpu_wino(const struct tess_kernel *kernel, const struct tess_op_desc *desc, bool back,
                    const float *x, const float *w, const float *bias, float *y, void *scratch)
{
    const int64_t out_h = tess_op_output_size(desc->height, WINO_WINDOW, 1, desc->padding);
    const int64_t out_w = tess_op_output_size(desc->width, WINO_WINDOW, 1, desc->padding);
    struct wino_call call = {
        .desc = desc,
        .n = back
                 ? wino_images(desc->rows, out_h, out_w, desc->out, WINO_WINDOW - 1 - desc->padding)
                 : wino_images(desc->rows, desc->height, desc->width, desc->in, desc->padding),
        .back = back,
        .in = back ? desc->out : desc->in,
        .out = back ? desc->in : desc->out,
        .x = x,
        .w = w,
        .bias = bias,
        .y = y,
        .u = (float *)(void *)((char *)scratch + tess__cpu_wino_scratch(desc))};
    call.group = wino_group(call.in, call.out);
    call.tiles = desc->rows * call.n.tiles_h * call.n.tiles_w;
    tess__cpu_share(kernel, call.in / CPU_WORDS, wino_weight_part, &call, NULL);
    tess__cpu_share(kernel, (call.tiles + call.group - 1) / call.group, wino_part, &call, scratch);
}
