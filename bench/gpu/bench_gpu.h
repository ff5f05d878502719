/*
 * What the files of `tessera bench gpu` share: the device, memory on it, time by its own clock, and
 * lines of results. A ceiling is the best rate that this run measured: bytes copied
 * or operations multiplied in a second. Everything goes through the table of kernels alone, so that
 * the same code measures any backend, and can be tested where there is no device.
 */
#ifndef TESSERA_BENCH_GPU_BENCH_GPU_H
#define TESSERA_BENCH_GPU_BENCH_GPU_H

#include "bench/bench.h"
#include "bench/bench_place.h"
#include "core/flops.h"

#define TESS__GPU_ARRAYS_MAX 32
#define TESS__GPU_OPS_MAX    8
#define TESS__GPU_TEXT_BYTES 48
#define TESS__GPU_LAYERS     7

/* The model whose products and rows are measured. */
struct tess__gpu_model {
    const char *name;
    int64_t width, inner, classes; /* of a layer, of its feed-forward part, of the vocabulary */
    int32_t heads;                 /* of width / heads */
    int64_t length, batch;         /* positions of a sequence; sequences */
    int64_t square[2];             /* of the square products */
    int64_t images;                /* of a batch, of the labs' images */
    int64_t head_chunk;            /* positions whose logits exist at a time */
    struct {
        int64_t rows, length;
        int32_t heads, kv_heads;
        int64_t size;
    } attention[3];
};

/* Types of products: with ceilings of their own. */
enum tess__gpu_type {
    TESS__GPU_F32,
    TESS__GPU_TF32, /* of f32, cut to the 10 bits of TF32 */
    TESS__GPU_BF16,
    TESS__GPU_F16,
    TESS__GPU_FP8,
    TESS__GPU_TYPES
};

struct tess__gpu {
    struct tess__bench bench; /* its kernel, and where results go */
    struct tess__bench_target place;
    const struct tess__gpu_model *model;
    enum tess_dtype dtype; /* of activations */
    int64_t bytes;         /* of each array that a kernel streams through */
    double batch_s;        /* a timed batch of runs takes at least about that long */
    int rounds;            /* timed batches */
    double copy_per_s;     /* ceiling, bytes read and written; 0: not measured */
    double product_per_s[TESS__GPU_TYPES]; /* ceilings, operations; 0: not measured */
    int goals, met;
    /* Private to bench_gpu_measure.c. */
    struct tess_fence *fence[2]; /* NULL where there is no queue */
    float *chunk;                /* [chunk_count] through which random numbers get their type */
    int64_t chunk_count;
    void *array[TESS__GPU_ARRAYS_MAX];
    int arrays;
    struct tess_op op[TESS__GPU_OPS_MAX];
    int ops;
};

/* ---- memory; bench_gpu_measure.c ------------------------------------------------------------- */

/* The kernel is open. close drops everything, also after a failed open. */
enum tess_status tess__gpu_open(struct tess__gpu *gpu);
void tess__gpu_close(struct tess__gpu *gpu);

/* Does the backend let a run choose how products are computed (tess_kernel_ops.choose)? */
bool tess__gpu_has_choices(const struct tess__gpu *gpu);
/* The same device with a second kernel that has made these choices, with memory and fences of its
 * own. close drops everything, also after a failed open. */
enum tess_status tess__gpu_open_beside(const struct tess__gpu *gpu,
                                       const struct tess_kernel_choices *choices,
                                       struct tess__gpu *beside_out);
void tess__gpu_close_beside(struct tess__gpu *beside);

/* Device memory, zeroed, until the next drop. */
enum tess_status tess__gpu_take(struct tess__gpu *gpu, int64_t bytes, void **memory_out);
/* The same with normally distributed numbers: products of zeros need less power, and less power
 * means a higher clock. */
enum tess_status tess__gpu_take_random(struct tess__gpu *gpu, enum tess_dtype dtype, int64_t count,
                                       void **memory_out);
/* The same with numbers from [0, below). */
enum tess_status tess__gpu_take_tokens(struct tess__gpu *gpu, int64_t count, int64_t below,
                                       void **memory_out);
/* An open operation with its scratch, until the next drop. */
enum tess_status tess__gpu_take_op(struct tess__gpu *gpu, const struct tess_op_desc *desc,
                                   struct tess_op **op_out);
void tess__gpu_drop(struct tess__gpu *gpu);

/* ---- time; bench_gpu_measure.c --------------------------------------------------------------- */

struct tess__gpu_task {
    enum tess_status (*run)(void *context);
    void (*reset)(void *context); /* before each batch, not timed; NULL: nothing to do */
    void *context;
};

/* Seconds of one run, over rounds of several runs each. */
struct tess__gpu_time {
    double median_s, least_s;
};

/* Wait for all that was queued; errors of that work are returned here. */
enum tess_status tess__gpu_wait(struct tess__gpu *gpu);

/* The middle and the least of `count` values, which are sorted. */
struct tess__gpu_time tess__gpu_times(double *seconds, int count);

/* ---- results; bench_gpu_print.c -------------------------------------------------------------- */

/* One line of the table, and of the file. */
struct tess__gpu_row {
    const char *part, *name, *shape, *type;
    double bytes, flops; /* of a run, one of them 0 */
    double ceiling;      /* bytes or operations in a second, 0: unknown */
    double goal;         /* share of the ceiling; 0: none */
    struct tess__gpu_time time;
    double measured_s; /* plans: the same by the measured choice; 0: no such row */
};

/* Rows below count bytes, or operations. `share_of`: what the shares are of. */
void tess__gpu_head(const struct tess__gpu *gpu, const char *title, bool is_bytes,
                    const char *share_of);
enum tess_status tess__gpu_print(struct tess__gpu *gpu, const struct tess__gpu_row *row);

/*
 * Run in batches, and time each batch between two fences of the kernels' queue: what the device
 * took, with the gaps between its kernels but without the host's time to submit them. Without a
 * queue, by the wall clock. Sets row->time and prints the row. An error that the device reports is
 * returned, too.
 */
enum tess_status tess__gpu_measure(struct tess__gpu *gpu, const struct tess__gpu_task *task,
                                   struct tess__gpu_row *row);

/* Two tasks on kernels of their own, round after round in turns: a change of the clock affects
 * both. */
enum tess_status tess__gpu_measure_pair(struct tess__gpu *const gpu[2],
                                        const struct tess__gpu_task task[2],
                                        struct tess__gpu_time time_out[2]);

/* "copy ceiling: 4012.3 GB/s, ..."; `by`: the source of the peak; peak 0: unknown. */
void tess__gpu_print_ceiling(const struct tess__gpu *gpu, const char *name, bool is_bytes,
                             double best, double peak, const char *by, const char *of);

/* The dense peak of a type by the device's datasheet, 0 where it is unknown. */
double tess__gpu_peak(const struct tess__gpu *gpu, enum tess__gpu_type type);
const char *tess__gpu_type_name(enum tess__gpu_type type);
enum tess__gpu_type tess__gpu_type_of(enum tess_dtype dtype);
/* The memory's bandwidth by the driver, else by the datasheet; 0 where neither gives it. */
double tess__gpu_memory_peak(const struct tess__gpu *gpu);

/* ---- layers; bench_gpu_layer.c --------------------------------------------------------------- */

enum tess__gpu_pass {
    TESS__GPU_FORWARD,
    TESS__GPU_FORWARD_GELU,
    TESS__GPU_DATA,
    TESS__GPU_DATA_GELU,
    TESS__GPU_WEIGHT,
    TESS__GPU_PASSES
};

struct tess__gpu_layer_shape {
    const char *name;
    struct tess_op_desc desc;
};

struct tess__gpu_layer {
    struct tess_op *op;
    enum tess__gpu_pass pass;
    void *x, *w, *bias, *y, *before, *dw, *dbias;
};

/* The model's layers, and the convolutions of the labs. */
void tess__gpu_layer_shapes(const struct tess__gpu *gpu,
                            struct tess__gpu_layer_shape shape[TESS__GPU_LAYERS]);
/* Until the next drop. */
enum tess_status tess__gpu_layer_open(struct tess__gpu *gpu, const struct tess_op_desc *desc,
                                      struct tess__gpu_layer *layer);
bool tess__gpu_layer_has(const struct tess_op_desc *desc, enum tess__gpu_pass pass);
double tess__gpu_layer_flops(const struct tess_op_desc *desc); /* of any one pass */
const char *tess__gpu_layer_text(const struct tess_op_desc *desc, char text[TESS__GPU_TEXT_BYTES]);
const char *tess__gpu_pass_name(enum tess__gpu_pass pass);
/* The layer's pass, for tess__gpu_task. */
enum tess_status tess__gpu_layer_run(void *layer);

/* ---- parts ----------------------------------------------------------------------------------- */

/* bench_gpu_ceiling.c: sets copy_per_s; sets product_per_s. */
enum tess_status tess__gpu_copies(struct tess__gpu *gpu);
enum tess_status tess__gpu_matmuls(struct tess__gpu *gpu);
/* bench_gpu_rows.c: what streams through activations. */
enum tess_status tess__gpu_rows(struct tess__gpu *gpu);
/* bench_gpu_params.c: what streams through gradients and parameters, in f32. */
enum tess_status tess__gpu_params(struct tess__gpu *gpu);
/* bench_gpu_reduce.c: sums over the arrays of ranks that share a device. */
enum tess_status tess__gpu_reduce(struct tess__gpu *gpu);
/* bench_gpu_products.c: linear layers, attention, convolutions. */
enum tess_status tess__gpu_products(struct tess__gpu *gpu);
/* bench_gpu_plans.c: linear layers as the library advises, against what measuring chooses. */
enum tess_status tess__gpu_plans(struct tess__gpu *gpu);
/* bench_gpu_host.c: the host's cost of submitting work to the device. */
enum tess_status tess__gpu_host(struct tess__gpu *gpu);

#endif
