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
 * Threads. oneDNN splits sums between threads, and chooses how by their number. So every product is
 * computed in parts that the layer's shape alone determines, each by one thread: parts of the
 * result, and for the weight gradient of a convolution sums over some images of a leaf, which are
 * added in order.
 */
#include "cpu/library.h"

#include "cpu/wave.h"
#include "tessera/check.h"

#include <stdatomic.h>
#include <string.h>

/* ---- one pass ------------------------------------------------------------------------------- */

/* The parts of one pass, as often as it is run; `data` as of the whole. */
struct library_share {
    struct tess_op *op;
    const struct library_pass *pass;
    enum cpu_what what;
    const void *const *data;
    atomic_int status;
};

/* The primitive of this thread, of a size. */
static void library_run_prim(struct library_share *share, int size, void *work,
                             const void *const *data)
{
    const int hand = share->pass->hands > 1 ? tess_team_hand() : 0;
    struct cpu_prim *prim = &share->pass->prim[hand * LIBRARY_SIZES + size];
    enum tess_status status = tess__cpu_prim_run(prim, share->op, work, data);
    if (status != TESS_OK)
        atomic_store(&share->status, (int)status);
}

static enum tess_status library_verdict(const struct library_share *share)
{
    enum tess_status status = (enum tess_status)atomic_load(&share->status);
    if (status != TESS_OK)
        TESS_FAIL(status, "a part of a product failed: try --kernel ref");
    return TESS_OK;
}

static void library_run_part(void *context, int64_t part, void *work)
{
    struct library_share *share = context;
    const struct library_cut *cut = &share->pass->cut;
    const struct tess_op_desc *desc = &share->op->desc;
    const char *const *whole = (const char *const *)share->data;
    const struct cpu_sizes n = tess__cpu_sizes(desc);
    size_t element = tess_dtype_bytes(desc->dtype);
    int64_t row_parts = library_row_parts(cut), time = part / library_parts(cut);
    part -= time * library_parts(cut);
    int64_t row = part % row_parts * cut->part_rows, column = part / row_parts * cut->part_columns;
    int size = (row + cut->part_rows > cut->rows) + 2 * (column + cut->part_columns > cut->columns);
    row += time * cut->rows;
    const void *data[4] = {whole[0] +
                           (size_t)(row * (share->what == CPU_FORWARD ? n.x : n.y)) * element};
    if (share->what == CPU_FORWARD) {
        data[1] = whole[1] + (size_t)(column * desc->in) * element;
        data[2] = whole[2] + (size_t)(row * n.y + column) * element;
        data[3] = whole[3] + (size_t)column * element;
    } else if (share->what == CPU_BACKWARD_DATA) {
        data[1] = whole[1] + (size_t)column * element;
        data[2] = whole[2] + (size_t)(row * n.x + column) * element;
    } else {
        data[1] = whole[1] + (size_t)column * element;
        data[2] = whole[2] + (size_t)(column * desc->in) * sizeof(float);
    }
    library_run_prim(share, size, work, data);
}

enum tess_status tess__cpu_library_call(struct tess_op *op, enum cpu_what what,
                                        const struct library_pass *pass, int64_t times,
                                        void *scratch, const void *const *data)
{
    int64_t parts = library_parts(&pass->cut) * times;
    if (parts == 1)
        return tess__cpu_prim_run(&pass->prim[0], op, scratch, data);
    struct library_share share = {.op = op, .pass = pass, .what = what, .data = data};
    atomic_init(&share.status, TESS_OK);
    tess__cpu_share(op->kernel, parts, library_run_part, &share,
                    pass->scratch_bytes > 0 ? scratch : NULL);
    return library_verdict(&share);
}

enum tess_status tess__cpu_library_run(struct tess_op *op, enum cpu_what what, const void *w,
                                       const void *in, void *out, const void *bias)
{
    const struct tess_op_desc *desc = &op->desc;
    struct library *library = op->data;
    struct library_pass *pass = &library->pass[what];
    char *scratch = (char *)op->scratch + pass->weight_bytes;
    const void *reorder[2] = {w, op->scratch};
    const bool ours = pass->weight_bytes == 0;
    if (!ours)
        TESS_TRY(tess__cpu_prim_run(&pass->reorder, op, scratch, reorder));
    const void *data[4] = {in, ours ? w : op->scratch, out, bias != NULL ? bias : library->zero};
    return tess__cpu_library_call(op, what, pass, desc->rows / pass->cut.rows, scratch, data);
}

/* ---- weight gradients ----------------------------------------------------------------------- */

/* x, dy and dw of a leaf. */
static void library_leaf(const struct tess_op_desc *desc, const void *x, const void *dy,
                         int64_t first_row, const void *data[2])
{
    struct cpu_sizes n = tess__cpu_sizes(desc);
    size_t element = tess_dtype_bytes(desc->dtype);
    data[0] = (const char *)x + (size_t)(first_row * n.x) * element;
    data[1] = (const char *)dy + (size_t)(first_row * n.y) * element;
}

/* A convolution's: the units of wave.h, whose images are the pass's part. */
struct library_units {
    struct library_share share;
    const void *x, *dy;
};

static void library_unit(void *context, int64_t unit, int64_t block, float *sum, void *work)
{
    (void)block;
    struct library_units *units = context;
    const void *data[3] = {NULL, NULL, sum};
    library_leaf(&units->share.op->desc, units->x, units->dy,
                 unit * units->share.pass->cut.part_rows, data);
    library_run_prim(&units->share, 0, work, data);
}

static enum tess_status library_run_units(struct cpu_wave *wave, struct library_units *units)
{
    const struct tess_op_desc *desc = &wave->op->desc;
    const struct library_cut *cut = &units->share.pass->cut;
    atomic_init(&units->share.status, TESS_OK);
    wave->run = library_unit;
    wave->context = units;
    wave->in_leaf = library_row_parts(cut);
    wave->blocks = 1;
    tess__cpu_wave_run(wave, desc->rows / cut->part_rows);
    return library_verdict(&units->share);
}

enum tess_status tess__cpu_library_weight(struct tess_op *op, const void *x, const void *dy,
                                          float *dw)
{
    const struct tess_op_desc *desc = &op->desc;
    struct library *library = op->data;
    struct library_pass *pass = &library->pass[CPU_BACKWARD_WEIGHT];
    int64_t leaves = desc->rows / desc->leaf_rows;
    int64_t count = library_weights(desc, pass->weight_bytes);
    char *scratch = (char *)op->scratch + pass->weight_bytes;
    char *sums = scratch + tess__cpu_round_up(pass->scratch_bytes);
    const size_t sum_bytes = library_sum_bytes(desc, pass->weight_bytes);
    const int64_t together = library_together(desc, &pass->cut);
    char *levels = sums + (size_t)together * sum_bytes;
    float *sum = pass->weight_bytes > 0 ? op->scratch : dw;
    if (desc->add_grad)
        sum = (float *)(void *)(levels + tess__fold_bytes(count, leaves));
    struct cpu_wave wave = {.op = op, .together = together, .sums = sums, .sum_bytes = sum_bytes};
    if (pass->scratch_bytes > 0)
        wave.work = scratch;
    struct tess_fold *fold = &wave.fold;
    tess__fold_init(fold, count, sum, levels);
    if (desc->kind == TESS_OP_CONV2D) {
        struct library_units units = {
            .share = {.op = op, .pass = pass, .what = CPU_BACKWARD_WEIGHT}, .x = x, .dy = dy};
        TESS_TRY(library_run_units(&wave, &units));
    } else {
        for (int64_t g = 0; g < leaves; g++) {
            const void *data[3] = {NULL, NULL, tess__fold_leaf(fold)};
            library_leaf(desc, x, dy, g * desc->leaf_rows, data);
            TESS_TRY(tess__cpu_library_call(op, CPU_BACKWARD_WEIGHT, pass, 1, scratch, data));
            tess__fold_push(fold);
        }
        tess__fold_finish(fold);
    }
    if (desc->add_grad)
        tess__cpu_loops(op->kernel)->plain_add(count, sum, dw);
    const void *reorder[2] = {sum, dw};
    return pass->weight_bytes > 0 ? tess__cpu_prim_run(&pass->reorder, op, scratch, reorder)
                                  : TESS_OK;
}
