/*
 * Attention over cuDNN on a device: plans for some sequences of a leaf, and running them. How many
 * depends on the leaf alone, each run is one of the same plan, and an engine that may give other
 * bits another time is not taken: so the bits of a sequence do not depend on how many there are.
 * Which graph makes a plan is attention_graph_cudnn.c's.
 */
#include "cuda/attention/attention_choice.h"
#include "cuda/attention/attention_graph.h"

#include <stdlib.h>

/* Backward needs the scores of its sequences, of 2 bytes, beside its operands, and with shared
 * heads two gradients more. The number of sequences is chosen by the scores; the rest is a bound
 * for one sequence that is long (32 heads of 4,096 positions take 1,088 MiB). */
#define ATTENTION_WORKSPACE_BYTES ((int64_t)1280 << 20)
#define ATTENTION_SCORES_BYTES    ((int64_t)256 << 20)

struct attention_plan {
    struct cudnn_choice choice;
    int64_t sequences; /* of one run; a divisor of the leaf's */
};

/* Behind op->data. */
struct attention_plans {
    struct attention_other other;
    struct attention_plan plan[ATTENTION_WAY_COUNT];
};

/* ---- running ------------------------------------------------------------------------------ */

/* The operands of one run. `step` of each, in bytes, leads to the next run's; 0: the same again. */
struct attention_run {
    struct cudnn_pack pack;
    size_t step[CUDNN_PACK_MAX], align[CUDNN_PACK_MAX];
};

static void attention_add(struct attention_run *run, enum attention_tensor id, const void *pointer,
                          size_t step)
{
    const bool numbers = step == 0 || id == ATTENTION_LSE || id == ATTENTION_PRODUCT;
    run->pack.id[run->pack.count] = id;
    run->pack.pointer[run->pack.count] = pointer;
    run->align[run->pack.count] = numbers ? sizeof(float) : ATTENTION_ALIGN;
    run->step[run->pack.count++] = step;
}

/* For all sequences of the operation, so many at a time as the plan takes. */
static enum tess_status attention_run_all(struct tess_op *op, enum attention_way way,
                                          struct attention_run *run)
{
    const struct attention_plans *plans = op->data;
    const struct attention_plan *plan = &plans->plan[way];
    for (int64_t i = 0; i < run->pack.count; i++)
        if ((uintptr_t)run->pack.pointer[i] % run->align[i] != 0)
            TESS_FAIL(TESS_ERR_INTERNAL, "operand %lld of attention is not aligned to %zu bytes",
                      (long long)run->pack.id[i], run->align[i]);
    for (int64_t s = 0; s < op->desc.rows; s += plan->sequences) {
        TESS_TRY(tess__cudnn_run(op->kernel, &plan->choice, &run->pack));
        for (int64_t i = 0; i < run->pack.count; i++)
            run->pack.pointer[i] = (const char *)run->pack.pointer[i] + run->step[i];
    }
    return TESS_OK;
}

/* Bytes from one run's q, k or v, y, and row of numbers to the next one's. */
struct attention_steps {
    size_t q, k, y, rows;
};

static struct attention_steps attention_steps(const struct tess_op_desc *d, int64_t sequences)
{
    const int64_t positions = sequences * d->length;
    const size_t word = tess_dtype_bytes(d->dtype);
    return (struct attention_steps){
        .q = (size_t)(positions * d->q_stride) * word,
        .k = (size_t)(positions * d->kv_stride) * word,
        .y = (size_t)(positions * d->heads * d->in) * word,
        .rows = (size_t)(positions * d->heads) * sizeof(float),
    };
}

static enum tess_status attention_forward(struct tess_op *op,
                                          const struct cuda_attention_forward *a)
{
    const struct attention_plans *plans = op->data;
    const struct attention_steps n =
        attention_steps(&op->desc, plans->plan[ATTENTION_FORWARD].sequences);
    const float minus_inf = tess__cudnn_attention_minus_inf();
    struct attention_run run = {.pack = {.count = 0}};
    attention_add(&run, ATTENTION_Q, a->q, n.q);
    attention_add(&run, ATTENTION_K, a->k, n.k);
    attention_add(&run, ATTENTION_V, a->v, n.k);
    attention_add(&run, ATTENTION_Y, a->y, n.y);
    attention_add(&run, ATTENTION_LSE, a->lse, n.rows);
    attention_add(&run, ATTENTION_SCALE, &a->shape.scale, 0);
    attention_add(&run, ATTENTION_MINUS_INF, &minus_inf, 0);
    return attention_run_all(op, ATTENTION_FORWARD, &run);
}

static enum tess_status attention_backward(struct tess_op *op,
                                           const struct cuda_attention_backward *a)
{
    const struct attention_plans *plans = op->data;
    const struct attention_steps n =
        attention_steps(&op->desc, plans->plan[ATTENTION_BACKWARD].sequences);
    const float minus_inf = tess__cudnn_attention_minus_inf(), one = 1;
    struct attention_run run = {.pack = {.count = 0}};
    attention_add(&run, ATTENTION_Q, a->q, n.q);
    attention_add(&run, ATTENTION_K, a->k, n.k);
    attention_add(&run, ATTENTION_V, a->v, n.k);
    attention_add(&run, ATTENTION_Y, a->y, n.y);
    attention_add(&run, ATTENTION_LSE, a->lse, n.rows);
    attention_add(&run, ATTENTION_DY, a->dy, n.y);
    attention_add(&run, ATTENTION_DQ, a->dq, n.q);
    attention_add(&run, ATTENTION_DK, a->dk, n.k);
    attention_add(&run, ATTENTION_DV, a->dv, n.k);
    attention_add(&run, ATTENTION_PRODUCT, a->product, n.rows);
    attention_add(&run, ATTENTION_SCALE, &a->shape.scale, 0);
    attention_add(&run, ATTENTION_MINUS_INF, &minus_inf, 0);
    attention_add(&run, ATTENTION_ONE, &one, 0);
    return attention_run_all(op, ATTENTION_BACKWARD, &run);
}

/* ---- plans -------------------------------------------------------------------------------- */

/* As many sequences as their scores fit the bound. */
static int64_t attention_sequences(const struct tess_op_desc *d)
{
    const double one = 2.0 * (double)d->heads * (double)d->length * (double)d->length;
    int64_t n = d->leaf_rows;
    while (n > 1 && (d->leaf_rows % n != 0 || (double)n * one > (double)ATTENTION_SCORES_BYTES))
        n--;
    return n;
}

static enum tess_status attention_open_way(struct tess_op *op, enum attention_way way)
{
    struct attention_plan *plan = &((struct attention_plans *)op->data)->plan[way];
    struct cudnn_place place;
    plan->sequences =
        way == ATTENTION_FORWARD ? op->desc.leaf_rows : attention_sequences(&op->desc);
    TESS_TRY(tess__cudnn_open(op->kernel, &place));
    TESS_TRY(tess__cudnn_attention_choose(&op->desc, plan->sequences, way,
                                          ATTENTION_WORKSPACE_BYTES, &place, &plan->choice));
    tess_log(TESS_LOG_DEBUG,
             "attention of %lld positions, %d heads of %lld, %s, %s: %s %lld, %lld bytes",
             (long long)op->desc.length, (int)op->desc.heads, (long long)op->desc.in,
             tess_dtype_name(op->desc.dtype), way == ATTENTION_FORWARD ? "forward" : "backward",
             plan->choice.plan != NULL ? "cuDNN's engine" : "no engine of cuDNN",
             (long long)plan->choice.engine, (long long)plan->choice.workspace_bytes);
    return tess__cudnn_make_room(op->kernel, plan->choice.workspace_bytes);
}

enum tess_status tess__cudnn_attention_open(struct tess_op *op)
{
    struct attention_plans *plans = calloc(1, sizeof(*plans));
    if (plans == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for plans of cuDNN");
    plans->other = (struct attention_other){attention_forward, attention_backward};
    op->data = plans;
    enum tess_status status = TESS_OK;
    bool found = true;
    for (int way = 0; way < ATTENTION_WAY_COUNT && status == TESS_OK && found; way++) {
        status = attention_open_way(op, (enum attention_way)way);
        found = plans->plan[way].choice.plan != NULL;
    }
    if (status != TESS_OK || !found)
        tess__cudnn_attention_close(op);
    return status;
}

void tess__cudnn_attention_close(struct tess_op *op)
{
    struct attention_plans *plans = op->data;
    for (int way = 0; plans != NULL && way < ATTENTION_WAY_COUNT; way++)
        tess__cudnn_choice_drop(&plans->plan[way].choice);
    free(plans);
    op->data = NULL;
}
