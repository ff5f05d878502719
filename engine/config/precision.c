/* Options of precision: the list of operations in f32, and what does not go together. */
#include "config/precision.h"

#include "base/options.h"
#include "optim/scale.h"
#include "tessera/check.h"

#include <string.h>

/* In the order of the choices of --rounding. */
enum precision_rounding { ROUNDING_NEAREST, ROUNDING_STOCHASTIC };

/* In the order of the choices of --precision and --reduce-dtype. */
static const enum tess_dtype precision_dtype[] = {TESS_F32, TESS_BF16, TESS_F16};

enum tess_dtype tess_run_dtype(const struct tess_run_options *run)
{
    return precision_dtype[run->precision];
}

enum tess_dtype tess_run_reduce_dtype(const struct tess_run_options *run)
{
    return precision_dtype[run->reduce_dtype];
}

static const char *const precision_op_name[TESS_OP_KIND_COUNT] = {
    [TESS_OP_LINEAR] = "linear",         [TESS_OP_CONV2D] = "conv2d",
    [TESS_OP_MAX_POOL] = "max_pool",     [TESS_OP_AVG_POOL] = "avg_pool",
    [TESS_OP_BATCH_NORM] = "batch_norm", [TESS_OP_NORM] = "norm",
    [TESS_OP_ATTENTION] = "attention",   [TESS_OP_EMBEDDING] = "embedding"};

const char *tess_precision_op_name(enum tess_op_kind kind)
{
    return precision_op_name[kind];
}

/* The other kinds always compute in f32. */
static enum tess_status precision_add_op(const char *word, size_t length, uint32_t *kinds)
{
    static const char *const known[] = {"linear", "conv2d"};
    char name[32] = "";
    if (length < sizeof(name))
        memcpy(name, word, length);
    for (int kind = 0; kind < TESS_OP_KIND_COUNT; kind++) {
        if (strcmp(name, precision_op_name[kind]) != 0)
            continue;
        if (kind > TESS_OP_CONV2D)
            TESS_FAIL(TESS_ERR_USAGE,
                      "--f32-ops: '%s' computes in f32 in every precision; the list is for linear "
                      "and conv2d",
                      name);
        *kinds |= 1u << kind;
        return TESS_OK;
    }
    const char *nearest = tess_nearest_word(name, known, 2);
    if (nearest != NULL)
        TESS_FAIL(TESS_ERR_USAGE, "--f32-ops: no operation is named '%.*s': did you mean '%s'?",
                  (int)(length < 40 ? length : 40), word, nearest);
    TESS_FAIL(TESS_ERR_USAGE,
              "--f32-ops: no operation is named '%.*s': use linear, conv2d or linear,conv2d",
              (int)(length < 40 ? length : 40), word);
}

enum tess_status tess_precision_f32_ops(const char *list, uint32_t *kinds_out)
{
    *kinds_out = 0;
    if (list[strspn(list, " ")] == '\0')
        return TESS_OK;
    for (const char *word = list;; word++) {
        word += strspn(word, " ");
        const size_t room = strcspn(word, ",");
        size_t length = room;
        while (length > 0 && word[length - 1] == ' ')
            length--;
        TESS_TRY(precision_add_op(word, length, kinds_out));
        word += room;
        if (*word == '\0')
            return TESS_OK;
    }
}

bool tess_precision_has_masters(const struct tess_run_options *run)
{
    return tess_run_dtype(run) != TESS_F32 && run->master;
}

bool tess_precision_is_stochastic(const struct tess_run_options *run)
{
    return run->rounding == ROUNDING_STOCHASTIC;
}

enum tess_status tess_precision_check(const struct tess_run_options *run)
{
    const bool low = tess_run_dtype(run) != TESS_F32;
    struct tess_scale scale;
    uint32_t kinds;
    TESS_TRY(tess_precision_f32_ops(run->f32_ops, &kinds));
    TESS_TRY(
        tess_scale_parse(run->loss_scale, tess_run_dtype(run), run->loss_scale_interval, &scale));
    if (!low && !run->master)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--master-weights off leaves f32 copies of bf16 or f16 parameters out, but "
                  "--precision is f32, whose parameters have none: choose another precision");
    if (!low && tess_precision_is_stochastic(run))
        TESS_FAIL(TESS_ERR_USAGE, "--rounding stochastic is for parameters in bf16 or f16, but "
                                  "--precision is f32: choose another precision");
    if (!low && run->fp8 != TESS_FP8_OFF)
        TESS_FAIL(TESS_ERR_USAGE, "--fp8 narrows the products of bf16 and f16 runs, but "
                                  "--precision is f32: give --precision bf16 too");
    if (run->fp8 != TESS_FP8_OFF && (kinds >> TESS_OP_LINEAR & 1) != 0)
        TESS_FAIL(TESS_ERR_USAGE, "--fp8 narrows linear products to 8 bits and --f32-ops linear "
                                  "widens them to 32: give one of the two");
    return TESS_OK;
}
