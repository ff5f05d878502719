/*
 * One product of a layer, attention or a norm, with its arrays, a product beside the best that the
 * processor can do: what `bench kernels` prints, and what ceiling and roof of `bench step` are the
 * sum of.
 */
#ifndef TESSERA_BENCH_BENCH_LAYER_H
#define TESSERA_BENCH_BENCH_LAYER_H

#include "bench/bench.h"
#include "cpu/best.h"

enum tess__bench_array {
    TESS__BENCH_X,    /* ATTENTION: q, k, v */
    TESS__BENCH_W,    /* their gradients; norms: gamma */
    TESS__BENCH_BIAS, /* lse; norms: beta */
    TESS__BENCH_Y,
    TESS__BENCH_DW, /* dy; norms: statistics, then gradients of gamma and beta */
    TESS__BENCH_ARRAYS
};

/* An open LINEAR, CONV2D, ATTENTION, BATCH_NORM or NORM with its arrays. */
struct tess__bench_layer {
    struct tess_op op;
    /* Which product tess__bench_layer_run computes; of all but layers what is not forward is
     * backward. */
    enum tess_best_what what;
    void *array[TESS__BENCH_ARRAYS];
};

/* Bytes of each array. Pure. */
void tess__bench_layer_bytes(const struct tess_op_desc *desc, size_t bytes_out[TESS__BENCH_ARRAYS]);

/* With arrays of its own. Not left open after a failure. */
enum tess_status tess__bench_layer_open(struct tess__bench *bench, const struct tess_op_desc *desc,
                                        struct tess__bench_layer *layer);
void tess__bench_layer_close(struct tess__bench_layer *layer);

/* A tess__bench_task's run, whose context is a layer. Backward y stands for dy, and x, or y of a
 * norm, for dx. */
enum tess_status tess__bench_layer_run(void *context);

/* FLOPs of one product of a LINEAR or CONV2D, each of the three kinds alike. */
double tess__bench_layer_flops(const struct tess_op_desc *desc);

/*
 * Seconds of a product in this run, all measured in turns. The best is oneDNN's fastest primitive
 * for the shape, whose packing is not counted. Where it has none of the layer's type, or the layer
 * multiplies in f32, it is the fastest that multiplies f32, oneDNN's or Tessera's.
 */
struct tess__bench_product {
    double ours_s, best_s;
    const char *best; /* static */
    enum tess_dtype best_dtype;
    int number; /* of tess__best_open, where that is of the layer's type and faster than ours; else
                 * -1
                 */
};

/* Measure layer->what, of a LINEAR or CONV2D. TESS_ERR_UNSUPPORTED in a build without oneDNN. */
enum tess_status tess__bench_layer_product(struct tess__bench *bench,
                                           struct tess__bench_layer *layer,
                                           struct tess__bench_product *product_out);

#endif
