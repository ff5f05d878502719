/* The search for a layout: every mesh of so many ranks is tried as a user would give it. */
#include "run/shrink.h"

#include "base/log_sink.h"
#include "config/config_save.h"
#include "job/memory_room.h"
#include "tessera/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Words that argument lists borrow: those of a run, then those of the layout that is tried. */
#define SHRINK_WORDS 16
static char shrink_word[SHRINK_WORDS][96];
static int shrink_word_count;

static enum tess_status __attribute__((format(printf, 2, 3)))
shrink_add(struct tess__args *args, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int length =
        shrink_word_count < SHRINK_WORDS
            ? vsnprintf(shrink_word[shrink_word_count], sizeof(shrink_word[0]), format, list)
            : -1;
    va_end(list);
    if (length < 0 || length >= (int)sizeof(shrink_word[0]))
        TESS_FAIL(TESS_ERR_INTERNAL, "no room for an option of the layout");
    return tess__args_add(args, shrink_word[shrink_word_count++]);
}

enum tess_status tess__shrink_fix(struct tess__args *args, const struct tess_config *config)
{
    const struct tess_run_options *run = &config->run;
    const int32_t parts = config->mesh.count[TESS_AXIS_TENSOR];
    if (config->checkpoint[0] != '\0')
        return TESS_OK;
    if (run->grid == 0)
        TESS_TRY(shrink_add(args, "--grid=%lld",
                            (long long)(config->mesh.count[TESS_AXIS_DATA] * run->accumulate)));
    if (run->batch_per_rank > 0) {
        TESS_TRY(shrink_add(args, "--batch-per-rank=0"));
        TESS_TRY(shrink_add(args, "--batch-size=%lld", (long long)run->batch_size));
    }
    if (config->optim.base_rate > 0) {
        TESS_TRY(shrink_add(args, "--base-lr=0"));
        TESS_TRY(shrink_add(args, "--lr-scale=none"));
        TESS_TRY(shrink_add(args, "--learning-rate=%.17g", config->optim.learning_rate));
    }
    TESS_TRY(shrink_add(args, "--warmup-start=%.17g", config->optim.warmup_start));
    if (parts > 1 && (parts & (parts - 1)) == 0 && config->tensor.canonical == 0 &&
        !config->tensor.sequence)
        TESS_TRY(shrink_add(args, "--tensor.canonical=%d", parts));
    return TESS_OK;
}

/* ---- one layout ------------------------------------------------------------------------------ */

struct shrink {
    const struct tess__args *args;
    const struct tess_config_table *table;
    const struct tess_config *former;
    const struct tess_dataset *dataset;
    int64_t accumulate;
    int32_t count[TESS_AXIS_COUNT];
};

static enum tess_status shrink_words(const struct shrink *shrink, struct tess__args *args)
{
    const int32_t *count = shrink->count;
    TESS_TRY(shrink_add(args, "--ranks=%d",
                        count[TESS_AXIS_DATA] * count[TESS_AXIS_TENSOR] * count[TESS_AXIS_STAGE]));
    TESS_TRY(shrink_add(args, "--mesh=data=%d,tensor=%d,stage=%d", count[TESS_AXIS_DATA],
                        count[TESS_AXIS_TENSOR], count[TESS_AXIS_STAGE]));
    return shrink_add(args, "--accumulate=%lld", (long long)shrink->accumulate);
}

/* Does a run open with this layout? Its errors are of no interest. */
static bool shrink_fits(const struct shrink *shrink)
{
    struct tess__args args = *shrink->args;
    const int words = shrink_word_count;
    struct tess_config *config = NULL;
    struct tess__run *run = calloc(1, sizeof(*run));
    const struct tess__log_sink *before = tess__log_redirect(&tess__log_silence);
    enum tess_status status = run != NULL ? shrink_words(shrink, &args) : TESS_ERR_MEMORY;
    if (status == TESS_OK)
        status = tess_config_open(args.count, args.word, shrink->table, 1, &config);
    if (status == TESS_OK) {
        config->saves = tess_config_saves(config);
        status = tess__run_open(run, config, shrink->dataset);
        if (status == TESS_OK)
            status = tess__memory_check(run, NULL, NULL);
        tess__run_close(run);
    }
    tess_config_close(config);
    shrink_word_count = words;
    tess__log_redirect(before);
    free(run);
    return status == TESS_OK;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Micro-batches that keep their size where that is possible; they do with the memory planned. */
static bool shrink_try_accumulate(struct shrink *shrink)
{
    const int64_t former = shrink->former->run.accumulate;
    const int64_t each = former * shrink->former->mesh.count[TESS_AXIS_DATA];
    if (each % shrink->count[TESS_AXIS_DATA] == 0) {
        shrink->accumulate = each / shrink->count[TESS_AXIS_DATA];
        if (shrink_fits(shrink))
            return true;
    }
    shrink->accumulate = former;
    return shrink_fits(shrink);
}

/* A layout of so many ranks. Other parts of the tensor axis on a rank have other bits, but where
 * their number is fixed. */
static bool shrink_try(struct shrink *shrink, int32_t ranks)
{
    const struct tess_config *former = shrink->former;
    const int32_t parts = former->mesh.count[TESS_AXIS_TENSOR];
    for (int32_t t = parts; t >= 1; t--) {
        if (ranks % t != 0 || (t != parts && former->tensor.canonical == 0))
            continue;
        for (int32_t s = former->mesh.count[TESS_AXIS_STAGE]; s >= 1; s--) {
            if (ranks / t % s != 0)
                continue;
            shrink->count[TESS_AXIS_TENSOR] = t;
            shrink->count[TESS_AXIS_STAGE] = s;
            shrink->count[TESS_AXIS_DATA] = ranks / t / s;
            if (shrink_try_accumulate(shrink))
                return true;
        }
    }
    return false;
}

enum tess_status tess__shrink_choose(struct tess__args *args, const struct tess_config_table *table,
                                     const struct tess_config *former,
                                     const struct tess_dataset *dataset, int32_t left,
                                     int32_t least)
{
    struct shrink shrink = {.args = args, .table = table, .former = former, .dataset = dataset};
    int32_t ranks = left;
    while (ranks >= least && !shrink_try(&shrink, ranks))
        ranks--;
    if (ranks < least)
        TESS_FAIL(TESS_ERR_USAGE,
                  "%d ranks are left, and --strategy %s has no layout for %d to %d of them with "
                  "the grid of the run: use a smaller --min-ranks",
                  left, former->run.strategy, least, left);
    tess_log(TESS_LOG_WARN,
             "%d of %d ranks are left: continues on %d, --mesh data=%d,tensor=%d,stage=%d "
             "--accumulate %lld, the largest layout for the same grid",
             left, former->mesh.rank_count, ranks, shrink.count[TESS_AXIS_DATA],
             shrink.count[TESS_AXIS_TENSOR], shrink.count[TESS_AXIS_STAGE],
             (long long)shrink.accumulate);
    return shrink_words(&shrink, args);
}
