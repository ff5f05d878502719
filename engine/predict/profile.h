/*
 * What a device can do: the figures from which a step's time is predicted, and how long one
 * operation takes by them. Pure arithmetic, no measurement.
 *
 * Products. An output of m x n elements is computed in tiles, as many at once as the device has
 * units; each tile takes k + half_k steps:
 *
 *     seconds = waves * tile_m tile_n (k + half_k) 2 / (peak efficiency / units)
 *               / (m / (m + half_m)) / (n / (n + half_n))
 *
 * waves is the number of tiles by that of units, rounded up; a quarter of the tile at a lower
 * efficiency is tried too, and the better of both counts. A product takes at least as long as
 * reading its operands and writing its result, and start_s more. On a processor one unit and a tile
 * of one element leave the three saturating factors.
 */
#ifndef TESSERA_PREDICT_PROFILE_H
#define TESSERA_PREDICT_PROFILE_H

#include "core/flops.h"
#include "tessera/kernel.h"
#include "tessera/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TESS_PROFILE_TEXT 256

/*
 * Operations but products that a processor computes by loops of their own, whose time for an
 * element is measured: X(name, key in files). Of those with rows an element is one of the input,
 * of pools one of the result's windows.
 */
#define TESS_WORK_LIST(X)                                                                          \
    X(ADD, "add")                                                                                  \
    X(ACCUMULATE, "accumulate")                                                                    \
    X(RELU, "relu")                                                                                \
    X(RELU_BACKWARD, "relu-backward")                                                              \
    X(GELU, "gelu")                                                                                \
    X(GELU_BACKWARD, "gelu-backward")                                                              \
    X(SWIGLU, "swiglu")                                                                            \
    X(SWIGLU_BACKWARD, "swiglu-backward")                                                          \
    X(DROPOUT, "dropout")                                                                          \
    X(CAST, "cast")                                                                                \
    X(XENT, "xent")                                                                                \
    X(XENT_MAX, "xent-max")                                                                        \
    X(XENT_SUM, "xent-sum")                                                                        \
    X(XENT_GRAD, "xent-grad")                                                                      \
    X(NORM, "norm")                                                                                \
    X(NORM_BACKWARD, "norm-backward")                                                              \
    X(BATCH_NORM, "batch-norm")                                                                    \
    X(BATCH_NORM_BACKWARD, "batch-norm-backward")                                                  \
    X(MAX_POOL, "max-pool")                                                                        \
    X(MAX_POOL_BACKWARD, "max-pool-backward")                                                      \
    X(AVG_POOL, "avg-pool")                                                                        \
    X(AVG_POOL_BACKWARD, "avg-pool-backward")                                                      \
    X(EMBEDDING, "embedding")                                                                      \
    X(EMBEDDING_BACKWARD, "embedding-backward")                                                    \
    X(ROPE, "rope")                                                                                \
    X(SQUARES, "squares")                                                                          \
    X(UPDATE_SGD, "update-sgd")                                                                    \
    X(UPDATE_MOMENTUM, "update-momentum")                                                          \
    X(UPDATE_ADAMW, "update-adamw")

enum tess_work {
#define TESS_WORK(name, key) TESS_WORK_##name,
    TESS_WORK_LIST(TESS_WORK)
#undef TESS_WORK
        TESS_WORK_COUNT
};

/* The products of a layer. Weight gradients include those of a bias. Attention, where it was
 * measured, counts as one of m = sequences heads positions, n = positions, k = width of a head. */
#define TESS_PRODUCT_LIST(X)                                                                       \
    X(FORWARD, "forward")                                                                          \
    X(DATA, "data")                                                                                \
    X(WEIGHT, "weight")                                                                            \
    X(CONV_FORWARD, "conv-forward")                                                                \
    X(CONV_DATA, "conv-data")                                                                      \
    X(CONV_WEIGHT, "conv-weight")                                                                  \
    X(ATTENTION_FORWARD, "attention-forward")                                                      \
    X(ATTENTION_BACKWARD, "attention-backward")

enum tess_product {
#define TESS_PRODUCT(name, key) TESS_PRODUCT_##name,
    TESS_PRODUCT_LIST(TESS_PRODUCT)
#undef TESS_PRODUCT
        TESS_PRODUCT_COUNT
};

/* A size at which a product was measured, and what it took there by what the formula gives. */
struct tess_product_point {
    double log2_size[3]; /* of m, n and k, each >= 0 */
    double ratio;        /* > 0; 0: none */
};

#define TESS_PROFILE_POINTS 40

/* Of one kind of product, on one core: as the formula above with one unit and a tile of one
 * element, times the mean of the ratios at the points around, each weighted by its distance.
 * A rate of 0: it was not measured, and is as any product. */
struct tess_product_rate {
    double flops_per_s, half_m, half_n, half_k;
    struct tess_product_point point[TESS_PROFILE_POINTS]; /* those that are come first */
};

/* Types whose times are measured apart: f32, and those of 16 bits. */
enum { TESS_WIDTH_32, TESS_WIDTH_16, TESS_WIDTHS };

/* Elements of arrays that the second cache of most processors keeps, and of larger ones, which
 * their last cache keeps. */
#define TESS_PROFILE_NEAR 131072.0
#define TESS_PROFILE_FAR  524288.0

#define TESS_PROFILE_LAG_SHORT 1e-3
#define TESS_PROFILE_LAG_LONG  1e-2

/* What the last cache does. Of share_bytes that all ranks of the host touch in a step it keeps all;
 * of gone_bytes nothing, and a byte costs lost_byte_s more. lost_byte_s 0: not measured. */
struct tess_profile_cache {
    double share_bytes, gone_bytes, lost_byte_s;
};

struct tess_profile {
    char name[64];                  /* "h100-80" */
    char kernel[16];                /* backend whose memory is planned: "cuda", "cpu", "ref" */
    char source[TESS_PROFILE_TEXT]; /* where the figures come from, for people */
    bool measured;                  /* here, by --calibrate; else published */
    double sm;                      /* compute capability * 10, 90; 0: unknown, or no such device */

    double memory_bytes; /* of a device; 0: not bounded by the profile */
    double beside_bytes; /* of it, what driver and libraries take */

    /* Time of the host. launch_s > 0: operations are queued and run later; 0: done on return. */
    double launch_s; /* of the host for each queued operation */
    double start_s;  /* of the device for the smallest operation */

    /* Passes over memory, bytes read and written counted together. */
    double bytes_per_s;       /* of one rank alone */
    double host_bytes_per_s;  /* of all ranks of a host together; 0: as many times one's */
    double cache_bytes;       /* passes over less than this ... */
    double cache_bytes_per_s; /* ... run at this rate; 0: at bytes_per_s */
    double link_bytes_per_s;  /* between host and device; 0: the same memory */
    /* A cache that others share keeps what a rank has touched for a while only: after t seconds a
     * byte costs old_byte_s (1 - exp(-t / old_age_s)) more. */
    double old_byte_s, old_age_s; /* old_age_s 0: it was not measured */
    /* Where one core is busy, and where all are. */
    struct tess_profile_cache cache_one, cache_all;
    double element_s; /* least time for an element of what needs exp, tanh or random numbers */
    /* Seconds of an element of each operation, of arrays of TESS_PROFILE_NEAR elements, and of
     * TESS_PROFILE_FAR; 0: not measured. */
    double work_s[TESS_WORK_COUNT][TESS_WIDTHS], far_work_s[TESS_WORK_COUNT][TESS_WIDTHS];

    /* Calls between ranks that share this processor; 0: not measured. */
    double copy_bytes_per_s; /* what a rank takes from others, as in network.h */
    double sum_bytes_per_s;  /* of the array that ranks add up together */
    double
        scatter_bytes_per_s; /* the same where each gets its share elsewhere, as network.h counts */
    double share_bytes_per_s; /* read and written by a rank in tess_comm_share */
    double call_s;            /* of the smallest call, of two ranks on a core each */
    double turn_s;            /* the same of ranks that take turns on cores, for each of a core */
    /* Of ranks that take turns, in theirs. */
    double turn_copy_bytes_per_s, turn_sum_bytes_per_s, turn_share_bytes_per_s;
    /* How much later than cores that are always busy the last rank comes to a call, where all have
     * computed for TESS_PROFILE_LAG_SHORT seconds since the last one, and for .._LONG: of ranks on
     * a core each, and of those that take turns. */
    double lag_short_s, lag_long_s, turn_lag_short_s, turn_lag_long_s;
    /* How much longer stages of a pipeline that take turns need than cores would that are shared
     * evenly and never idle while a stage can compute, >= 1; 0: not measured. */
    double turn_chain;
    double net_call_s; /* the smallest call over sockets, and what a rank sends there */
    double net_bytes_per_s;
    double net_sum_bytes_per_s; /* of the array that two ranks add up over sockets */
    double cores;               /* that ranks of a host share; 0: every rank has a device */

    /* Products, by type. A peak of 0: the device has no such units. */
    double flops_per_s[TESS_PEAK_TYPES];
    double efficiency[TESS_PEAK_TYPES]; /* of large products, 0 < e <= 1 */
    double units, tile_m, tile_n;       /* whole numbers >= 1 */
    double half_m, half_n, half_k;      /* >= 0 */
    struct tess_product_rate product[TESS_PRODUCT_COUNT][TESS_WIDTHS];

    /* Causal attention, by what is computed: the lower half of the square. */
    double attention_forward, attention_backward; /* share of the peak, T large */
    double attention_half;                        /* positions at which it is half of that */
};

/* A built-in profile by its name; NULL where there is none. Borrowed, never freed. */
const struct tess_profile *tess_profile_find(const char *name);
/* The name of built-in profile number `index`, NULL beyond the last one. */
const char *tess_profile_name(int32_t index);

/*
 * Profiles in files: YAML, one key for each number. Whatever lies in the file, an error names file,
 * line and key (TESS_ERR_USAGE), and what is read has numbers that the functions below can use.
 * write puts the file there completely or not at all (TESS_ERR_IO).
 */
enum tess_status tess_profile_read(const char *path, struct tess_profile *profile_out);
enum tess_status tess_profile_write(const struct tess_profile *profile, const char *path);

/* The measured profile of this host, which --calibrate leaves in the user's cache for later runs:
 * its path. False: the user has no cache, or none that can be written where `make`. */
bool tess_profile_kept(bool make, char *path, size_t bytes);
/* Of this host's processor, with a kernel backend for it: the file that is kept, where it is of
 * that, else round numbers. */
enum tess_status tess_profile_here(const char *kernel, struct tess_profile *profile_out);

/*
 * What is left for each of `ranks` ranks of a host with `threads` threads each, where the profile
 * is of cores that ranks share: all cores are busy at once, and so is the memory. Pure.
 */
struct tess_profile tess_profile_share(const struct tess_profile *profile, int32_t ranks,
                                       int32_t threads);

/* The cache that each of so many busy cores has: between that of one and that of all. Pure. */
struct tess_profile_cache tess_profile_cache_of(const struct tess_profile *profile, double busy);

/* Do the figures make sense? TESS_ERR_USAGE names the key that does not. Pure. */
enum tess_status tess_profile_check(const struct tess_profile *profile);

/*
 * Seconds of the device for one operation of a rank that has the device or its core for itself.
 * Pure, > 0.
 *
 *   pass       over `bytes` of memory, read and written together
 *   math       the same, with a function such as exp for each of so many elements
 *   work       the operation's own time for an element, between the two sizes by the logarithm of
 *              the number of elements
 *   product    [m, n] = [m, k] [k, n], operands and result of `bytes` in all
 *   attention  causal: `flops` are those of the lower half, `length` the positions, `bytes` the
 *              operands and results
 */
double tess_profile_pass_s(const struct tess_profile *profile, double bytes);
/* What a byte costs more where all ranks have touched so many since it was touched; and where that
 * was age_s ago too, and one core is busy: others had time to clear what size alone would have
 * left. 0 where that was not measured. */
double tess_profile_lost_s(const struct tess_profile_cache *cache, double all_bytes);
double tess_profile_far_s(const struct tess_profile *profile, double all_bytes, double age_s);
/* How much later the last rank comes that has computed for work_s, its turns counted: a power of
 * that through what was measured. crowd: ranks of a core; the measured ones that take turns are
 * two, and what these lose more than ranks on cores of their own, each loses when it gets the core.
 * 0 where it was not measured. */
double tess_profile_lag_s(const struct tess_profile *profile, double crowd, double work_s);
double tess_profile_math_s(const struct tess_profile *profile, double elements, double bytes);
/* Where its time was not measured it is math or a pass. */
double tess_profile_work_s(const struct tess_profile *profile, enum tess_work work, int width,
                           bool math, double elements, double bytes);
double tess_profile_product_s(const struct tess_profile *profile, enum tess_peak_type type,
                              double m, double n, double k, double bytes);
/* Of a kind of product that may have been measured. */
double tess_profile_layer_s(const struct tess_profile *profile, enum tess_product product,
                            enum tess_peak_type type, double m, double n, double k, double bytes);
/* Rows of a convolution's product in a direction, by which it was measured: positions of what it
 * computes, which is the input in backward of data. In f32 windows of 3 with stride 1 are computed
 * in whole tiles of 4 x 4 (Winograd), so that 26 x 26 takes as long as 28 x 28. */
int64_t tess_profile_conv_rows(const struct tess_op_desc *desc, enum tess_product product);
double tess_profile_attention_s(const struct tess_profile *profile, enum tess_peak_type type,
                                bool forward, double flops, double length, double bytes);

#endif
