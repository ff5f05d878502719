/*
 * Products by oneDNN's primitives, over all rows where that gives a leaf's bits, else leaf by leaf;
 * weight gradients leaf by leaf, folded by the tree over leaves.
 *
 * Weights of linear layers are used where they lie: they change every step and are used once in
 * each direction, packing 1024 x 1024 costs a third of a product over 64 rows, and packed copies
 * would double the memory of every parameter, which strategies that shard parameters are there to
 * save. Those of convolutions, whose images are channels last, are reordered into oneDNN's
 * preferred layout at every call. That costs one pass over the weights, which are small beside the
 * images (microseconds against milliseconds), and keeps no second copy of them between calls; their
 * gradients are folded in that layout and reordered once.
 *
 * Threads. oneDNN's matrix product splits sums between threads, and chooses how by their number. So
 * a product of a linear layer is computed in parts of its result, cut by the layer's shape alone,
 * each by one thread. Weight gradients of large layers are not cut, because oneDNN computes small
 * ones of a long sum at half the speed: they run on all threads where that is tested to have the
 * bits of one thread, else on one. Convolutions share images and channels between threads, but for
 * their weight gradient, which sums over images by thread: that runs on one.
 */
#include "cpu/prim.h"

#include "ref/fold.h"
#include "tessera/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct cpu_sizes tess__cpu_sizes(const struct tess_op_desc *d)
{
    struct cpu_sizes n = {.x = d->in, .y = d->out, .w = d->in * d->out};
    if (d->kind == TESS_OP_CONV2D) {
        n.x *= d->height * d->width;
        n.y *= tess_op_output_size(d->height, d->window, d->stride, d->padding) *
               tess_op_output_size(d->width, d->window, d->stride, d->padding);
        n.w *= (int64_t)d->window * d->window;
    }
    return n;
}

/*
 * The greatest part of a linear layer's result. Rows are cut too, so that those of a long leaf have
 * the bits that they have in a shorter one of whole parts.
 */
#define LIBRARY_ROWS    256
#define LIBRARY_COLUMNS 128
/* oneDNN packs a matrix where 1 / in + 1 / out is below this (nocopy_checker_avx2() in its source):
 * a weight gradient whose parts it would not pack any more is not cut. */
#define LIBRARY_PACKED 0.0038

/* How a result of `rows` by `columns` is cut; of a weight gradient, the columns are those of dy. */
struct library_cut {
    int64_t rows, columns, part_rows, part_columns;
};

/* One direction over all rows or a leaf's, by primitives of one size of part each, for each hand:
 * a thread has memory objects of its own. */
#define LIBRARY_SIZES 4
struct library_pass {
    struct library_cut cut;
    struct cpu_prim *prim; /* [hands, LIBRARY_SIZES]; of a convolution and without parts: [1] */
    int hands;
    struct cpu_prim reorder; /* convolution: weights between our layout and the primitive's */
    size_t weight_bytes;     /* of the weights in the primitive's layout; 0 where it is ours */
    size_t scratch_bytes;    /* of the largest primitive */
    bool by_leaf;
};

struct library {
    struct library_pass pass[3]; /* by enum cpu_what; the weight gradient's is by leaf */
    void *zero;                  /* [out] of desc.dtype: the bias when there is none */
};

/* Columns of a part: a multiple of 16 up to `most`, such that the parts are about even. */
static int64_t library_part(int64_t columns, int64_t most)
{
    int64_t parts = (columns + most - 1) / most;
    return tess__cpu_min(((columns + parts - 1) / parts + 15) / 16 * 16, columns);
}

static struct library_cut library_cut(const struct tess_op_desc *desc, enum cpu_what what,
                                      int64_t rows)
{
    int64_t columns = what == CPU_BACKWARD_DATA ? desc->in : desc->out;
    struct library_cut cut = {rows, columns, rows, columns};
    if (desc->kind == TESS_OP_CONV2D)
        return cut;
    if (what != CPU_BACKWARD_WEIGHT)
        cut.part_rows = tess__cpu_min(rows, LIBRARY_ROWS);
    else if (1.0 / (double)desc->in + 1.0 / (double)desc->out < LIBRARY_PACKED)
        return cut;
    cut.part_columns = library_part(columns, LIBRARY_COLUMNS);
    return cut;
}

static int64_t library_row_parts(const struct library_cut *cut)
{
    return (cut->rows + cut->part_rows - 1) / cut->part_rows;
}

static int64_t library_parts(const struct library_cut *cut)
{
    return library_row_parts(cut) * ((cut->columns + cut->part_columns - 1) / cut->part_columns);
}

/* Rows and columns of size 0 .. LIBRARY_SIZES - 1: whole, last rows, last columns, both. False:
 * there is no such part. */
static bool library_size(const struct library_cut *cut, int size, int64_t *rows, int64_t *columns)
{
    *rows = size & 1 ? cut->rows % cut->part_rows : cut->part_rows;
    *columns = size & 2 ? cut->columns % cut->part_columns : cut->part_columns;
    return *rows > 0 && *columns > 0;
}

static enum tess_status library_desc(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                     enum cpu_what what, int64_t rows, int64_t columns,
                                     dnnl_primitive_desc_t *desc_out)
{
    return desc->kind == TESS_OP_LINEAR
               ? tess__cpu_matmul_desc(engine, desc, what, rows, columns, false, desc_out)
               : tess__cpu_conv_desc(engine, desc, what, rows, desc_out);
}

/* Which argument of a convolution is the weights. */
static int library_weight_arg(enum cpu_what what)
{
    return what == CPU_BACKWARD_WEIGHT ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS;
}

static size_t library_weight_bytes(const struct tess_op_desc *desc, enum cpu_what what,
                                   const_dnnl_primitive_desc_t prim)
{
    return desc->kind == TESS_OP_LINEAR
               ? 0
               : tess__cpu_round_up(tess__cpu_desc_bytes(prim, library_weight_arg(what)));
}

/* Elements of the weight gradient in the primitive's layout. */
static int64_t library_weights(const struct tess_op_desc *desc, size_t weight_bytes)
{
    return weight_bytes > 0 ? (int64_t)(weight_bytes / sizeof(float)) : desc->in * desc->out;
}

/* Scratch of a primitive over `rows`: its weights in its layout, its scratchpad, the tree. */
static enum tess_status library_ask(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                    enum cpu_what what, int64_t rows, size_t *bytes)
{
    struct library_cut cut = library_cut(desc, what, rows);
    size_t weight = 0, scratch = 0;
    int64_t part_rows, part_columns;
    for (int size = 0; size < LIBRARY_SIZES; size++) {
        if (!library_size(&cut, size, &part_rows, &part_columns))
            continue;
        dnnl_primitive_desc_t prim;
        TESS_TRY(library_desc(engine, desc, what, part_rows, part_columns, &prim));
        weight = library_weight_bytes(desc, what, prim);
        scratch = tess__cpu_max(scratch, tess__cpu_round_up(tess__cpu_desc_scratch(prim)));
        dnnl_primitive_desc_destroy(prim);
    }
    size_t all = weight + scratch;
    int64_t weights = library_weights(desc, weight);
    if (what == CPU_BACKWARD_WEIGHT)
        all += tess__fold_bytes(weights, desc->rows / desc->leaf_rows) +
               (desc->add_grad ? (size_t)weights * sizeof(float) : 0);
    *bytes = tess__cpu_max(*bytes, all);
    return TESS_OK;
}

static enum tess_status library_ask_all(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                        const bool used[3], size_t *bytes)
{
    for (int what = 0; what < 3; what++) {
        if (used[what])
            TESS_TRY(library_ask(engine, desc, (enum cpu_what)what, desc->leaf_rows, bytes));
        if (used[what] && what != CPU_BACKWARD_WEIGHT && desc->rows > desc->leaf_rows)
            TESS_TRY(library_ask(engine, desc, (enum cpu_what)what, desc->rows, bytes));
    }
    return TESS_OK;
}

/* For all threads and for one: open() may make primitives for either. */
enum tess_status tess__cpu_library_needs(const struct tess_op_desc *desc, const bool used[3],
                                         size_t *bytes)
{
    struct cpu_state runtime = {0};
    dnnl_engine_t engine;
    TESS_TRY(tess__cpu_check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine create"));
    tess__cpu_share_open(&runtime);
    int threads = runtime.threads_set != NULL ? runtime.threads_get() : 1;
    enum tess_status status = library_ask_all(engine, desc, used, bytes);
    if (threads > 1 && status == TESS_OK) {
        runtime.threads_set(1);
        status = library_ask_all(engine, desc, used, bytes);
        runtime.threads_set(threads);
    }
    dnnl_engine_destroy(engine);
    return status;
}

/* Do the bits of a convolution's primitive depend on the number of threads? oneDNN's own kernels
 * for convolutions share results, but for weight gradients; its matrix product shares sums. */
static bool library_splits_sums(enum cpu_what what, const_dnnl_primitive_desc_t prim)
{
    const char *name = "";
    (void)dnnl_primitive_desc_query(prim, dnnl_query_impl_info_str, 0, &name);
    return what == CPU_BACKWARD_WEIGHT || strncmp(name, "gemm", 4) == 0;
}

/* One primitive, and the reorder of a convolution's weights. */
static enum tess_status library_prim_open(struct tess_op *op, enum cpu_what what, int64_t rows,
                                          int64_t columns, bool one_thread,
                                          struct library_pass *pass, struct cpu_prim *prim_out)
{
    struct cpu_state *state = tess__cpu_state(op);
    bool linear = op->desc.kind == TESS_OP_LINEAR;
    dnnl_primitive_desc_t prim;
    tess__cpu_threads(op->kernel, one_thread ? 1 : op->kernel->threads);
    TESS_TRY(library_desc(state->engine, &op->desc, what, rows, columns, &prim));
    if (!one_thread && !linear && library_splits_sums(what, prim)) {
        dnnl_primitive_desc_destroy(prim);
        return library_prim_open(op, what, rows, columns, true, pass, prim_out);
    }
    pass->weight_bytes = library_weight_bytes(&op->desc, what, prim);
    enum tess_status status =
        linear ? TESS_OK
               : tess__cpu_reorder_open(&pass->reorder, state, &op->desc, prim,
                                        library_weight_arg(what), what == CPU_BACKWARD_WEIGHT);
    if (status != TESS_OK) {
        dnnl_primitive_desc_destroy(prim);
        return status;
    }
    TESS_TRY(tess__cpu_prim_open(prim_out, state, prim,
                                 linear ? tess__cpu_matmul_arg[what] : tess__cpu_conv_arg[what],
                                 tess__cpu_arg_count[what]));
    prim_out->one_thread = one_thread;
    pass->scratch_bytes = tess__cpu_max(pass->scratch_bytes, prim_out->scratch_bytes);
    pass->reorder.one_thread = one_thread;
    return TESS_OK;
}

static void library_pass_close(struct library_pass *pass)
{
    for (int i = 0; pass->prim != NULL && i < pass->hands * LIBRARY_SIZES; i++)
        tess__cpu_prim_close(&pass->prim[i]);
    tess__cpu_prim_close(&pass->reorder);
    free(pass->prim);
    pass->prim = NULL;
}

/* On failure the caller closes it. */
static enum tess_status library_pass_fill(struct tess_op *op, enum cpu_what what, bool one_thread,
                                          struct library_pass *pass)
{
    int64_t rows, columns;
    for (int hand = 0; hand < pass->hands; hand++)
        for (int size = 0; size < LIBRARY_SIZES; size++)
            if (library_size(&pass->cut, size, &rows, &columns))
                TESS_TRY(library_prim_open(op, what, rows, columns, one_thread, pass,
                                           &pass->prim[hand * LIBRARY_SIZES + size]));
    return TESS_OK;
}

/* Open all that a pass over `rows` needs. `one_thread`: for each part, of which several threads may
 * run one each. */
static enum tess_status library_pass_open(struct tess_op *op, enum cpu_what what, int64_t rows,
                                          bool one_thread, struct library_pass *pass)
{
    pass->cut = library_cut(&op->desc, what, rows);
    pass->hands = library_parts(&pass->cut) > 1 ? op->kernel->threads : 1;
    pass->prim = calloc((size_t)pass->hands * LIBRARY_SIZES, sizeof(*pass->prim));
    if (pass->prim == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the products of a layer");
    enum tess_status status = library_pass_fill(op, what, one_thread, pass);
    tess__cpu_threads(op->kernel, op->kernel->threads);
    if (status == TESS_OK && pass->hands > 1)
        status = tess__cpu_share_reserve(op->kernel, pass->scratch_bytes);
    if (status != TESS_OK)
        library_pass_close(pass);
    return status;
}

/* ---- one pass ------------------------------------------------------------------------------- */

/* The parts of one pass; `data` as of the whole. */
struct library_share {
    struct tess_op *op;
    const struct library_pass *pass;
    enum cpu_what what;
    const void *const *data;
    atomic_int status;
};

static void library_run_part(void *context, int64_t part, void *work)
{
    struct library_share *share = context;
    const struct library_cut *cut = &share->pass->cut;
    const struct tess_op_desc *desc = &share->op->desc;
    const struct cpu_state *state = tess__cpu_state(share->op);
    const char *const *whole = (const char *const *)share->data;
    size_t element = tess_dtype_bytes(desc->dtype);
    int64_t row_parts = library_row_parts(cut);
    int64_t row = part % row_parts * cut->part_rows, column = part / row_parts * cut->part_columns;
    int size = (row + cut->part_rows > cut->rows) + 2 * (column + cut->part_columns > cut->columns);
    int64_t in = desc->in, out = desc->out;
    const void *data[4] = {whole[0] +
                           (size_t)(row * (share->what == CPU_FORWARD ? in : out)) * element};
    if (share->what == CPU_FORWARD) {
        data[1] = whole[1] + (size_t)(column * in) * element;
        data[2] = whole[2] + (size_t)(row * out + column) * element;
        data[3] = whole[3] + (size_t)column * element;
    } else if (share->what == CPU_BACKWARD_DATA) {
        data[1] = whole[1] + (size_t)column * element;
        data[2] = whole[2] + (size_t)(row * in + column) * element;
    } else {
        data[1] = whole[1] + (size_t)column * element;
        data[2] = whole[2] + (size_t)(column * in) * sizeof(float);
    }
    int hand = state->parallel != NULL && share->pass->hands > 1 ? state->thread_number() : 0;
    struct cpu_prim *prim = &share->pass->prim[hand * LIBRARY_SIZES + size];
    enum tess_status status = tess__cpu_prim_run(prim, share->op, work, data);
    if (status != TESS_OK)
        atomic_store(&share->status, (int)status);
}

/* Run a pass: `data` in the order in, weights, out, bias; of a weight gradient x, dy, dw. */
static enum tess_status library_call(struct tess_op *op, enum cpu_what what,
                                     const struct library_pass *pass, void *scratch,
                                     const void *const *data)
{
    int64_t parts = library_parts(&pass->cut);
    if (parts == 1)
        return tess__cpu_prim_run(&pass->prim[0], op, scratch, data);
    struct library_share share = {.op = op, .pass = pass, .what = what, .data = data};
    atomic_init(&share.status, TESS_OK);
    tess__cpu_share(op->kernel, parts, library_run_part, &share, scratch);
    enum tess_status status = (enum tess_status)atomic_load(&share.status);
    if (status != TESS_OK)
        TESS_FAIL(status, "a part of a product failed: try --kernel ref");
    return TESS_OK;
}

static enum tess_status library_test_run(struct tess_op *op, enum cpu_what what, const void *pass,
                                         const void *const data[4])
{
    return library_call(op, what, pass, op->scratch, data);
}

/* Do the rows of `full` depend on their number? Compared with `leaf`; weights of one size only. */
static enum tess_status library_alike(struct tess_op *op, enum cpu_what what,
                                      const struct library_pass *full,
                                      const struct library_pass *leaf, bool *alike_out)
{
    const struct tess_op_desc *desc = &op->desc;
    struct cpu_sizes n = tess__cpu_sizes(desc);
    size_t element = tess_dtype_bytes(desc->dtype);
    size_t x = (size_t)n.x * element, y = (size_t)n.y * element;
    *alike_out = false;
    if (full->weight_bytes != leaf->weight_bytes)
        return TESS_OK;
    struct cpu_rows_test test = {.op = op,
                                 .what = what,
                                 .run = library_test_run,
                                 .full = full,
                                 .leaf = leaf,
                                 .rows = desc->rows,
                                 .leaf_rows = desc->leaf_rows,
                                 .in_bytes = what == CPU_FORWARD ? x : y,
                                 .out_bytes = what == CPU_FORWARD ? y : x,
                                 .weight_bytes = full->weight_bytes > 0 ? full->weight_bytes
                                                                        : (size_t)n.w * element,
                                 .bias_bytes = (size_t)desc->out * element};
    if (what == CPU_BACKWARD_WEIGHT) { /* two ways to compute one leaf */
        test.rows = test.leaf_rows = 1;
        test.in_bytes = (size_t)desc->leaf_rows * x;
        test.weight_bytes = (size_t)desc->leaf_rows * y;
        test.out_bytes = (size_t)n.w * sizeof(float);
    }
    return tess__cpu_rows_alike(&test, alike_out);
}

/*
 * From this many multiplications on (about 0.1 ms) a leaf of a convolution is run by itself,
 * untested: a call costs a microsecond, while testing would cost a whole pass of a large network at
 * start-up.
 */
#define LIBRARY_LEAF_WORK 1.6e7

static bool library_is_work(const struct tess_op_desc *desc)
{
    double outputs = (double)tess__cpu_sizes(desc).y;
    double window = (double)desc->in * desc->window * desc->window;
    return desc->kind == TESS_OP_CONV2D &&
           (double)desc->leaf_rows * outputs * window >= LIBRARY_LEAF_WORK;
}

/* Keep `other`, which this closes else, if its bits are those of *pass. */
static enum tess_status library_prefer(struct tess_op *op, enum cpu_what what,
                                       struct library_pass *pass, struct library_pass *other)
{
    bool alike = false;
    enum tess_status status = library_alike(op, what, other, pass, &alike);
    struct library_pass left = alike ? *pass : *other;
    if (alike)
        *pass = *other;
    library_pass_close(&left);
    return status;
}

/* The weight gradient of a leaf: if it is not cut, by all threads where that has the bits of one.
 */
static enum tess_status library_weight_open(struct tess_op *op, struct library_pass *pass)
{
    const struct tess_op_desc *desc = &op->desc;
    const enum cpu_what what = CPU_BACKWARD_WEIGHT;
    TESS_TRY(library_pass_open(op, what, desc->leaf_rows, true, pass));
    if (desc->kind != TESS_OP_LINEAR || op->kernel->threads == 1 || library_parts(&pass->cut) > 1)
        return TESS_OK;
    struct library_pass shared = {.by_leaf = true};
    TESS_TRY(library_pass_open(op, what, desc->leaf_rows, false, &shared));
    return library_prefer(op, what, pass, &shared);
}

/* Forward or backward_data: over all rows if that gives a leaf's bits, else by leaf. */
static enum tess_status library_rows_open(struct tess_op *op, enum cpu_what what,
                                          struct library_pass *pass)
{
    const struct tess_op_desc *desc = &op->desc;
    const bool one_thread = desc->kind == TESS_OP_LINEAR;
    pass->by_leaf = true;
    if (what == CPU_BACKWARD_WEIGHT)
        return library_weight_open(op, pass);
    TESS_TRY(library_pass_open(op, what, desc->leaf_rows, one_thread, pass));
    if (library_is_work(desc) || desc->rows <= desc->leaf_rows)
        return TESS_OK;
    struct library_pass full = {.by_leaf = false};
    TESS_TRY(library_pass_open(op, what, desc->rows, one_thread, &full));
    return library_prefer(op, what, pass, &full);
}

enum tess_status tess__cpu_library_open(struct tess_op *op, const bool used[3])
{
    const struct tess_op_desc *desc = &op->desc;
    struct library *library = calloc(1, sizeof(*library));
    op->data = library;
    if (library == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the products of a layer");
    library->zero = calloc((size_t)desc->out, tess_dtype_bytes(desc->dtype));
    if (library->zero == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a bias of %lld elements", (long long)desc->out);
    for (int what = 0; what < 3; what++)
        if (used[what])
            TESS_TRY(library_rows_open(op, (enum cpu_what)what, &library->pass[what]));
    return TESS_OK;
}

void tess__cpu_library_close(struct tess_op *op)
{
    struct library *library = op->data;
    if (library == NULL)
        return;
    for (int what = 0; what < 3; what++)
        library_pass_close(&library->pass[what]);
    free(library->zero);
    free(library);
    op->data = NULL;
}

enum tess_status tess__cpu_library_run(struct tess_op *op, enum cpu_what what, const void *w,
                                       const void *in, void *out, const void *bias)
{
    const struct tess_op_desc *desc = &op->desc;
    struct library *library = op->data;
    struct library_pass *pass = &library->pass[what];
    struct cpu_sizes n = tess__cpu_sizes(desc);
    size_t element = tess_dtype_bytes(desc->dtype);
    size_t in_row = (size_t)(what == CPU_FORWARD ? n.x : n.y) * element;
    size_t out_row = (size_t)(what == CPU_FORWARD ? n.y : n.x) * element;
    char *scratch = (char *)op->scratch + pass->weight_bytes;
    const void *reorder[2] = {w, op->scratch};
    const bool ours = pass->weight_bytes == 0;
    if (!ours)
        TESS_TRY(tess__cpu_prim_run(&pass->reorder, op, scratch, reorder));
    int64_t rows = pass->by_leaf ? desc->leaf_rows : desc->rows;
    for (int64_t row = 0; row < desc->rows; row += rows) {
        const void *data[4] = {(const char *)in + (size_t)row * in_row, ours ? w : op->scratch,
                               (char *)out + (size_t)row * out_row,
                               bias != NULL ? bias : library->zero};
        TESS_TRY(library_call(op, what, pass, scratch, data));
    }
    return TESS_OK;
}

enum tess_status tess__cpu_library_weight(struct tess_op *op, const void *x, const void *dy,
                                          float *dw)
{
    const struct tess_op_desc *desc = &op->desc;
    struct library *library = op->data;
    struct library_pass *pass = &library->pass[CPU_BACKWARD_WEIGHT];
    struct cpu_sizes n = tess__cpu_sizes(desc);
    size_t leaf_bytes = (size_t)desc->leaf_rows * tess_dtype_bytes(desc->dtype);
    int64_t leaves = desc->rows / desc->leaf_rows;
    int64_t count = library_weights(desc, pass->weight_bytes);
    char *scratch = (char *)op->scratch + pass->weight_bytes;
    char *levels = scratch + tess__cpu_round_up(pass->scratch_bytes);
    float *sum = pass->weight_bytes > 0 ? op->scratch : dw;
    if (desc->add_grad)
        sum = (float *)(void *)(levels + tess__fold_bytes(count, leaves));
    struct tess_fold fold;
    tess__fold_init(&fold, count, sum, levels);
    for (int64_t g = 0; g < leaves; g++) {
        const void *data[3] = {(const char *)x + (size_t)(g * n.x) * leaf_bytes,
                               (const char *)dy + (size_t)(g * n.y) * leaf_bytes,
                               tess__fold_leaf(&fold)};
        TESS_TRY(library_call(op, CPU_BACKWARD_WEIGHT, pass, scratch, data));
        tess__fold_push(&fold);
    }
    tess__fold_finish(&fold);
    if (desc->add_grad)
        tess__cpu_loops(op->kernel)->plain_add(count, sum, dw);
    const void *reorder[2] = {sum, dw};
    return pass->weight_bytes > 0 ? tess__cpu_prim_run(&pass->reorder, op, scratch, reorder)
                                  : TESS_OK;
}
