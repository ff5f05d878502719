/*
 * How oneDNN's products are cut into parts, what they need, and opening them. What changes bits,
 * the size of a part among it, depends on the layer's shape alone, never on the number of threads.
 */
#include "cpu/library.h"

#include "cpu/wave.h"
#include "tessera/check.h"

#include <stdlib.h>

/* ---- parts ---------------------------------------------------------------------------------- */

/*
 * The greatest part of a linear layer's result. Rows are cut too, so that those of a long leaf have
 * the bits that they have in a shorter one of whole parts.
 */
#define LIBRARY_ROWS    256
#define LIBRARY_COLUMNS 128
/* oneDNN packs a matrix where 1 / in + 1 / out is below this (nocopy_checker_avx2() in its source),
 * and takes twice as long for long sums else: parts of a weight gradient are no narrower. */
#define LIBRARY_PACKED 0.0038

/* Multiplications of a part of a convolution, about 0.03 ms: many times what a call costs. */
#define LIBRARY_PART_WORK 4e6
/* Of a sum over images, see wave.h. */
#define LIBRARY_SUM_PIXELS 2048

/* Columns of a part: a multiple of 16 up to `most`, such that the parts are about even. */
static int64_t library_part(int64_t columns, int64_t most)
{
    int64_t parts = (columns + most - 1) / most;
    return tess__cpu_min(((columns + parts - 1) / parts + 15) / 16 * 16, columns);
}

/* Columns of a part of a linear layer's weight gradient. */
static int64_t library_weight_columns(const struct tess_op_desc *desc)
{
    const double left = LIBRARY_PACKED - 1.0 / (double)desc->in;
    if (1.0 / (double)desc->in + 1.0 / (double)desc->out >= LIBRARY_PACKED)
        return library_part(desc->out, LIBRARY_COLUMNS);
    const int64_t least = (int64_t)(1.0 / left) + 16, parts = desc->out / least;
    return parts > 1 ? library_part(desc->out, (desc->out + parts - 1) / parts) : desc->out;
}

/* The greatest divisor of `rows` up to `most`. */
static int64_t library_divisor(int64_t rows, int64_t most)
{
    int64_t part = most < rows ? most : rows;
    while (part > 1 && rows % part != 0)
        part--;
    return part > 1 ? part : 1;
}

/* Images of a part of a convolution. */
static int64_t library_images(const struct tess_op_desc *desc, enum cpu_what what, int64_t rows)
{
    const double pixels = (double)(tess__cpu_sizes(desc).y / desc->out);
    const double work = pixels * (double)tess__cpu_sizes(desc).w;
    return what == CPU_BACKWARD_WEIGHT
               ? tess__cpu_wave_images(rows, work, tess__cpu_wave_work(desc, LIBRARY_SUM_PIXELS),
                                       LIBRARY_SUM_PARTS)
               : library_divisor(rows, (int64_t)(LIBRARY_PART_WORK / work) + 1);
}

static struct library_cut library_cut(const struct tess_op_desc *desc, enum cpu_what what,
                                      int64_t rows)
{
    int64_t columns = what == CPU_BACKWARD_DATA ? desc->in : desc->out;
    struct library_cut cut = {rows, columns, rows, columns};
    if (desc->kind == TESS_OP_CONV2D)
        cut.part_rows = library_images(desc, what, rows);
    else if (what == CPU_BACKWARD_WEIGHT)
        cut.part_columns = library_weight_columns(desc);
    else
        cut.part_rows = tess__cpu_min(rows, LIBRARY_ROWS);
    if (desc->kind == TESS_OP_LINEAR && what != CPU_BACKWARD_WEIGHT)
        cut.part_columns = library_part(columns, LIBRARY_COLUMNS);
    return cut;
}

/* Rows and columns of size 0 .. LIBRARY_SIZES - 1: whole, last rows, last columns, both. False:
 * there is no such part. */
static bool library_size(const struct library_cut *cut, int size, int64_t *rows, int64_t *columns)
{
    *rows = size & 1 ? cut->rows % cut->part_rows : cut->part_rows;
    *columns = size & 2 ? cut->columns % cut->part_columns : cut->part_columns;
    return *rows > 0 && *columns > 0;
}

/* ---- needs ---------------------------------------------------------------------------------- */

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

/*
 * Scratch of a pass over `rows`: the weights in the primitive's layout, the primitive's scratch, of
 * a weight gradient the sums and the tree; and of a further thread: the primitive's.
 */
static enum tess_status library_ask(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                    enum cpu_what what, int64_t rows, struct tess_op_needs *needs)
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
        all += (size_t)library_together(desc, &cut) * library_sum_bytes(desc, weight) +
               tess__fold_bytes(weights, desc->rows / desc->leaf_rows) +
               (desc->add_grad ? (size_t)weights * sizeof(float) : 0);
    needs->scratch_bytes = tess__cpu_max(needs->scratch_bytes, all);
    needs->thread_bytes = tess__cpu_max(needs->thread_bytes, scratch);
    return TESS_OK;
}

static enum tess_status library_ask_all(dnnl_engine_t engine, const struct tess_op_desc *desc,
                                        const bool used[3], struct tess_op_needs *needs)
{
    for (int what = 0; what < 3; what++) {
        if (used[what])
            TESS_TRY(library_ask(engine, desc, (enum cpu_what)what, desc->leaf_rows, needs));
        if (used[what] && what != CPU_BACKWARD_WEIGHT && desc->rows > desc->leaf_rows)
            TESS_TRY(library_ask(engine, desc, (enum cpu_what)what, desc->rows, needs));
    }
    return TESS_OK;
}

enum tess_status tess__cpu_library_needs(const struct tess_op_desc *desc, const bool used[3],
                                         struct tess_op_needs *needs)
{
    struct cpu_state runtime = {0};
    dnnl_engine_t engine;
    if (!used[CPU_FORWARD] && !used[CPU_BACKWARD_DATA] && !used[CPU_BACKWARD_WEIGHT])
        return TESS_OK;
    TESS_TRY(tess__cpu_check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine create"));
    tess__cpu_share_open(&runtime);
    tess__cpu_threads(&runtime, 1);
    enum tess_status status = library_ask_all(engine, desc, used, needs);
    dnnl_engine_destroy(engine);
    return status;
}

/* ---- opening -------------------------------------------------------------------------------- */

static void library_pass_close(struct library_pass *pass)
{
    for (int i = 0; pass->prim != NULL && i < pass->hands * LIBRARY_SIZES; i++)
        tess__cpu_prim_close(&pass->prim[i]);
    tess__cpu_prim_close(&pass->reorder);
    free(pass->prim);
    pass->prim = NULL;
}

/* One primitive, and with the first the reorder of a convolution's weights. */
static enum tess_status library_prim_open(struct tess_op *op, enum cpu_what what, int64_t rows,
                                          int64_t columns, struct library_pass *pass,
                                          struct cpu_prim *prim_out)
{
    struct cpu_state *state = tess__cpu_state(op);
    bool linear = op->desc.kind == TESS_OP_LINEAR;
    dnnl_primitive_desc_t prim;
    TESS_TRY(library_desc(state->engine, &op->desc, what, rows, columns, &prim));
    pass->weight_bytes = library_weight_bytes(&op->desc, what, prim);
    enum tess_status status = TESS_OK;
    if (!linear && pass->reorder.primitive == NULL)
        status = tess__cpu_reorder_open(&pass->reorder, state, &op->desc, prim,
                                        library_weight_arg(what), what == CPU_BACKWARD_WEIGHT);
    if (status != TESS_OK) {
        dnnl_primitive_desc_destroy(prim);
        return status;
    }
    TESS_TRY(tess__cpu_prim_open(prim_out, state, prim,
                                 linear ? tess__cpu_matmul_arg[what] : tess__cpu_conv_arg[what],
                                 tess__cpu_arg_count[what]));
    pass->scratch_bytes = tess__cpu_max(pass->scratch_bytes, prim_out->scratch_bytes);
    return TESS_OK;
}

/* On failure the caller closes it. */
static enum tess_status library_pass_fill(struct tess_op *op, enum cpu_what what,
                                          struct library_pass *pass)
{
    int64_t rows, columns;
    for (int hand = 0; hand < pass->hands; hand++)
        for (int size = 0; size < LIBRARY_SIZES; size++)
            if (library_size(&pass->cut, size, &rows, &columns))
                TESS_TRY(library_prim_open(op, what, rows, columns, pass,
                                           &pass->prim[hand * LIBRARY_SIZES + size]));
    return TESS_OK;
}

/* Open all that a pass over `rows` needs. */
static enum tess_status library_pass_open(struct tess_op *op, enum cpu_what what, int64_t rows,
                                          struct library_pass *pass)
{
    *pass = (struct library_pass){.cut = library_cut(&op->desc, what, rows)};
    pass->hands = library_parts(&pass->cut) * (op->desc.rows / rows) > 1 ? op->kernel->threads : 1;
    pass->prim = calloc((size_t)pass->hands * LIBRARY_SIZES, sizeof(*pass->prim));
    if (pass->prim == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the products of a layer");
    enum tess_status status = library_pass_fill(op, what, pass);
    if (status != TESS_OK)
        library_pass_close(pass);
    return status;
}

static enum tess_status library_test_run(struct tess_op *op, enum cpu_what what, const void *pass,
                                         const void *const data[4])
{
    return tess__cpu_library_call(op, what, pass, 1, op->scratch, data);
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
    tess__cpu_share_use(op);
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

/* Forward or backward_data: over all rows if that gives a leaf's bits, else by leaf. */
static enum tess_status library_rows_open(struct tess_op *op, enum cpu_what what,
                                          struct library_pass *pass)
{
    const struct tess_op_desc *desc = &op->desc;
    TESS_TRY(library_pass_open(op, what, desc->leaf_rows, pass));
    if (what == CPU_BACKWARD_WEIGHT || library_is_work(desc) || desc->rows <= desc->leaf_rows)
        return TESS_OK;
    struct library_pass full;
    TESS_TRY(library_pass_open(op, what, desc->rows, &full));
    bool alike = false;
    enum tess_status status = library_alike(op, what, &full, pass, &alike);
    struct library_pass left = alike ? *pass : full;
    if (alike)
        *pass = full;
    library_pass_close(&left);
    return status;
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
