/*
 * A thin layer over oneDNN's C API: primitives that were built once and run with nothing but new
 * addresses. The only header of the project that shows oneDNN's types, to kernels/cpu only.
 */
#ifndef KERNELS_CPU_PRIM_H
#define KERNELS_CPU_PRIM_H

#include "base/team.h"
#include "cpu/cpu.h"

#include <oneapi/dnnl/dnnl.h>

#define CPU_PRIM_ARGS 5

/* One primitive with its memory objects; zeroed means absent, which close accepts. */
struct cpu_prim {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_exec_arg_t arg[CPU_PRIM_ARGS]; /* the last one is the scratchpad */
    int arg_count;
    size_t scratch_bytes;
    bool all_threads; /* the bench's baseline: oneDNN's own, as many as the kernel's */
};

/* Whether two ways to compute the same have the same bits; remembered per shape, see rows.c. */
struct cpu_verdict {
    struct tess_op_desc desc;
    int what;
    bool alike;
};

/* The backend's state, behind struct tess_kernel. */
struct cpu_state {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    const struct cpu_loops *loops;
    struct cpu_verdict *verdict; /* [verdict_count] */
    int verdict_count;
    /* Of the OpenMP runtime that oneDNN brought in; NULL when it has none. */
    int (*threads_get)(void);
    void (*threads_set)(int count);
    struct tess_team *team; /* NULL: one thread, or not started */
    char *extra; /* [threads - 1, extra_bytes]: work memory of all threads but the first; of the
                    operation that runs */
    size_t extra_bytes;
};

/* share.c: find the runtime; start the threads, once, when operations are opened and not when they
 * are planned, since planning may be followed by a fork; end them. */
void tess__cpu_share_open(struct cpu_state *state);
enum tess_status tess__cpu_share_start(const struct tess_kernel *kernel);

/* Make the pages of `memory`, by all threads. */
enum tess_status tess__cpu_adopt(struct tess_kernel *kernel, void *memory, size_t bytes);
void tess__cpu_share_close(struct cpu_state *state);

/* Fails with a message that names `what` and oneDNN's status; OK passes. */
enum tess_status tess__cpu_check(dnnl_status_t status, const char *what);

/* oneDNN's element type to multiply in: f16 is multiplied in f32. */
dnnl_data_type_t tess__cpu_type(enum tess_dtype dtype);

/* The primitive of an operation's description, with our scratchpad and, with `relu`, ReLU behind
 * it. `hint`: of the forward operation, for backward; or NULL. */
enum tess_status tess__cpu_prim_desc(dnnl_engine_t engine, const_dnnl_op_desc_t desc, bool relu,
                                     const_dnnl_primitive_desc_t hint, const char *what,
                                     dnnl_primitive_desc_t *desc_out);

/* Bytes of an argument, or of the scratchpad, of a primitive to be. */
size_t tess__cpu_desc_bytes(const_dnnl_primitive_desc_t desc, int arg);
size_t tess__cpu_desc_scratch(const_dnnl_primitive_desc_t desc);

/*
 * Build the primitive of `desc`, which it consumes also on failure. `arg` [count <= 4] are oneDNN's
 * argument numbers, in the order in which run() will get the addresses.
 */
enum tess_status tess__cpu_prim_open(struct cpu_prim *prim, struct cpu_state *state,
                                     dnnl_primitive_desc_t desc, const int *arg, int count);
void tess__cpu_prim_close(struct cpu_prim *prim);

/* Run it. `scratch` has at least prim->scratch_bytes; `data` [count] as in open. */
enum tess_status tess__cpu_prim_run(struct cpu_prim *prim, const struct tess_op *op, void *scratch,
                                    const void *const *data);

/* The state of an open operation's backend. */
static inline struct cpu_state *tess__cpu_state(const struct tess_op *op)
{
    return op->kernel->state;
}

static inline const struct cpu_loops *tess__cpu_loops(const struct tess_kernel *kernel)
{
    return ((const struct cpu_state *)kernel->state)->loops;
}

/* oneDNN takes the number of threads from the calling thread's OpenMP settings, both when a
 * primitive is made and when it is run: set it, for this thread. */
void tess__cpu_threads(const struct cpu_state *state, int threads);

/* ---- primitives that library.c and best.c are made of ---------------------------------------- */

enum cpu_what { CPU_FORWARD, CPU_BACKWARD_DATA, CPU_BACKWARD_WEIGHT };

/*
 * Matmul of a linear layer over `rows` rows, `part` columns of the result (rows of a weight
 * gradient). FORWARD has a bias of desc.dtype and the ReLU.
 * `packed`: weights (for BACKWARD_WEIGHT: x) in the layout that oneDNN prefers, else plain.
 */
enum tess_status tess__cpu_matmul_desc(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                       enum cpu_what what, int64_t rows, int64_t part, bool packed,
                                       dnnl_primitive_desc_t *desc_out);

/* Convolution over `rows` images, weights in the layout that oneDNN prefers. FORWARD as above. */
enum tess_status tess__cpu_conv_desc(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                     enum cpu_what what, int64_t rows,
                                     dnnl_primitive_desc_t *desc_out);

/* Argument numbers of the above, in the order in, weights, out, bias; of a weight gradient x, dy,
 * dw. Those of a convolution are those of an inner product too. */
extern const int tess__cpu_matmul_arg[3][4];
extern const int tess__cpu_conv_arg[3][4];
extern const int tess__cpu_arg_count[3];

/*
 * Convolution weights: the primitive that brings ours, [out, window, window, in], into the layout
 * of `conv`'s argument `arg`, or back.
 */
enum tess_status tess__cpu_reorder_open(struct cpu_prim *prim, struct cpu_state *state,
                                        const struct tess_op_desc *desc,
                                        const_dnnl_primitive_desc_t conv, int arg, bool back);

/* ---- library.c: products by these primitives, of the directions that are used ------------- */

/* *needs is raised to the scratch that they need. */
enum tess_status tess__cpu_library_needs(const struct tess_op_desc *desc, const bool used[3],
                                         struct tess_op_needs *needs);
/* Fills op->data; on failure the caller closes it. */
enum tess_status tess__cpu_library_open(struct tess_op *op, const bool used[3]);
void tess__cpu_library_close(struct tess_op *op);
/* FORWARD from x, or BACKWARD_DATA from dy; bias NULL: none. */
enum tess_status tess__cpu_library_run(struct tess_op *op, enum cpu_what what, const void *w,
                                       const void *in, void *out, const void *bias);
enum tess_status tess__cpu_library_weight(struct tess_op *op, const void *x, const void *dy,
                                          float *dw);

/* ---- rows.c: do two ways to compute the same have the same bits? --------------------------- */

/*
 * `run` computes the result of all `rows` with `full`, that of one leaf with `leaf`, from data in
 * the order of tess__cpu_library_call(). Bytes of one row of the first argument and of the result,
 * and of the other arguments. The data are random and outside the arena.
 */
struct cpu_rows_test {
    struct tess_op *op;
    enum cpu_what what;
    enum tess_status (*run)(struct tess_op *op, enum cpu_what what, const void *pass,
                            const void *const data[4]);
    const void *full, *leaf;
    int64_t rows, leaf_rows;
    size_t in_bytes, weight_bytes, out_bytes, bias_bytes;
};
enum tess_status tess__cpu_rows_alike(const struct cpu_rows_test *test, bool *alike_out);

#endif
