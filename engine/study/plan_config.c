/*
 * The configuration of a layout; see plan.h. Layouts of one product of strategies have the same
 * options: their configuration is loaded once, and each layout gives it other values. What the
 * model declares is kept for all of them, as none of a plan's words is an option of the model.
 */
#include "study/plan.h"

#include "base/array.h"
#include "base/team.h"
#include "config/registry.h"
#include "core/declared.h"
#include "study/product.h"
#include "tessera/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each word has a place of its own; "" where a layout has no such word. */
enum configs_place {
    CONFIGS_STRATEGY,
    CONFIGS_MESH,
    CONFIGS_RANKS,
    CONFIGS_TENSOR_RANKS,
    CONFIGS_ACCUMULATE,
    CONFIGS_BATCH,
    CONFIGS_BATCH_PER_RANK,
    CONFIGS_RECOMPUTE,
    CONFIGS_SEQUENCE,
    CONFIGS_DEVICE,
    CONFIGS_KERNEL,
    CONFIGS_SCHEDULE,
    CONFIGS_CHUNKS,
    CONFIGS_STAGES,
    CONFIGS_PRECISION,
    CONFIGS_EXTRA,
    CONFIGS_WORDS
};

struct configs_words {
    char text[CONFIGS_WORDS][128];
};

/* One product's and one further option's, loaded, with the layout and the batch that its words were
 * given of last. */
struct configs_product {
    char strategy[96], extra[64];
    struct tess_config *loaded;
    bool given; /* false after an error */
    struct tess__plan_layout layout;
    int64_t batch_size;
};

struct tess__plan_configs {
    struct configs_product *product;
    int64_t count;
    const char *stage_name;         /* the stage strategy; "": there is none */
    struct tess_declared *declared; /* of thread 0's, for all */
    struct tess__plan_work work;    /* but for what is declared now */
    struct tess_config config;      /* of the layout at hand */
};

/* ---- messages -------------------------------------------------------------------------------- */

/* The first error is the reason; what callers add to it is not shown. */
static void configs_line(void *context, enum tess_log_level level, const char *text)
{
    char *why = context;
    if (level == TESS_LOG_ERROR && why[0] == '\0')
        snprintf(why, TESS__PLAN_WHY, "%s", text);
}

const struct tess__log_sink *tess__plan_catch(struct tess__log_sink *sink, char why[TESS__PLAN_WHY])
{
    why[0] = '\0';
    *sink = (struct tess__log_sink){.line = configs_line, .context = why};
    return tess__log_redirect(sink);
}

/* ---- words ----------------------------------------------------------------------------------- */

TESS_PRINTF(3, 4)
static void configs_word(struct configs_words *words, enum configs_place place, const char *format,
                         ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(words->text[place], sizeof(words->text[place]), format, list);
    va_end(list);
}

/* The stage strategy of a product, by the registry. */
static const char *configs_find_stage(void)
{
    int count = 0;
    const char *const *name = tess_registry_names(TESS_REGISTRY_STRATEGY, &count);
    for (int i = 0; i < count; i++) {
        const struct tess_strategy_ops *ops = NULL;
        if (tess_registry_summary(TESS_REGISTRY_STRATEGY, name[i])[0] != '\0' &&
            tess_registry_get_strategy(name[i], &ops) == TESS_OK && ops->axis == TESS_AXIS_STAGE)
            return name[i];
    }
    return "";
}

static int64_t configs_ranks(const struct tess__plan_layout *layout)
{
    int64_t ranks = 1;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        ranks *= layout->count[axis];
    return ranks;
}

/* Words of the mesh. */
static void configs_list_mesh(const struct tess__plan *plan, const struct tess__plan_layout *layout,
                              struct configs_words *words)
{
    configs_word(words, CONFIGS_MESH, "--mesh=data=%d,tensor=%d,stage=%d",
                 layout->count[TESS_AXIS_DATA], layout->count[TESS_AXIS_TENSOR],
                 layout->count[TESS_AXIS_STAGE]);
    configs_word(words, CONFIGS_RANKS, "--ranks=%lld", (long long)configs_ranks(layout));
    configs_word(words, CONFIGS_TENSOR_RANKS, "--tensor.ranks=0");
    if (layout->count[TESS_AXIS_STAGE] > 1)
        configs_word(words, CONFIGS_STAGES, "--%s.stages=0", plan->configs[0]->stage_name);
}

static void configs_list_stages(const struct tess__plan *plan,
                                const struct tess__plan_layout *layout, struct configs_words *words)
{
    const char *stage = plan->configs[0]->stage_name;
    if (layout->schedule != NULL)
        configs_word(words, CONFIGS_SCHEDULE, "--%s.schedule=%s", stage, layout->schedule);
    if (layout->count[TESS_AXIS_STAGE] > 1)
        configs_word(words, CONFIGS_CHUNKS, "--%s.chunks=%lld", stage, (long long)layout->chunks);
}

/* What is the same for all layouts of a product. */
static void configs_list_fixed(const struct tess__plan *plan,
                               const struct tess__plan_layout *layout, struct configs_words *words)
{
    const bool cuda = strcmp(plan->profile.kernel, "cuda") == 0;
    configs_word(words, CONFIGS_STRATEGY, "--strategy=%s", layout->strategy);
    configs_word(words, CONFIGS_BATCH_PER_RANK, "--batch-per-rank=0");
    configs_word(words, CONFIGS_DEVICE, "--device=%s", cuda ? "cuda" : "cpu");
    if (!cuda)
        configs_word(words, CONFIGS_KERNEL, "--kernel=%s", plan->profile.kernel);
    if (layout->extra[0] != '\0')
        configs_word(words, CONFIGS_EXTRA, "--%s", layout->extra);
}

/* The words that differ from those of `before`, which had the same product; NULL: all. Most stay,
 * and writing and reading them takes long. */
static void configs_list(const struct tess__plan *plan, const struct tess__plan_layout *layout,
                         const struct configs_product *before, struct configs_words *words)
{
    const struct tess__plan_layout *old = before != NULL ? &before->layout : NULL;
    for (int i = 0; i < CONFIGS_WORDS; i++)
        words->text[i][0] = '\0';
    if (old == NULL)
        configs_list_fixed(plan, layout, words);
    if (old == NULL || memcmp(old->count, layout->count, sizeof(old->count)) != 0)
        configs_list_mesh(plan, layout, words);
    if (old == NULL || old->schedule != layout->schedule || old->chunks != layout->chunks ||
        old->count[TESS_AXIS_STAGE] != layout->count[TESS_AXIS_STAGE])
        configs_list_stages(plan, layout, words);
    if (old == NULL || old->accumulate != layout->accumulate)
        configs_word(words, CONFIGS_ACCUMULATE, "--accumulate=%lld", (long long)layout->accumulate);
    if (old == NULL || before->batch_size != plan->batch_size)
        configs_word(words, CONFIGS_BATCH, "--batch-size=%lld", (long long)plan->batch_size);
    if (old == NULL || old->recompute != layout->recompute)
        configs_word(words, CONFIGS_RECOMPUTE, "--recompute=%s", layout->recompute);
    if (old == NULL || old->sequence != layout->sequence)
        configs_word(words, CONFIGS_SEQUENCE, "--tensor.sequence-parallel=%s",
                     layout->sequence ? "on" : "off");
    if (layout->precision != NULL && (old == NULL || old->precision != layout->precision))
        configs_word(words, CONFIGS_PRECISION, "--precision=%s", layout->precision);
}

/* As arguments; returns how many. */
static int configs_arguments(struct configs_words *words, char *word[CONFIGS_WORDS])
{
    int count = 0;
    for (int i = 0; i < CONFIGS_WORDS; i++)
        if (words->text[i][0] != '\0')
            word[count++] = words->text[i];
    return count;
}

/* Strategies that the layout does not have: their options in the configuration do not apply. */
static void configs_skip(const struct tess__plan_layout *layout, struct tess__args *args)
{
    int count = 0;
    const char *const *name = tess_registry_names(TESS_REGISTRY_STRATEGY, &count);
    for (int i = 0; i < count && args->skip_count < TESS__SKIP_MAX; i++)
        if (!tess__product_has(layout->strategy, name[i]))
            args->skip[args->skip_count++] = name[i];
}

/* A layout as a trial of the series that the plan's arguments are for. */
struct configs_trial {
    struct configs_words words;
    char *word[CONFIGS_WORDS];
    struct tess__args args;
    struct tess__trial_choice choice;
};

static void configs_try(const struct tess__plan *plan, const struct tess__plan_layout *layout,
                        struct configs_trial *trial)
{
    trial->args = plan->args;
    configs_list(plan, layout, NULL, &trial->words);
    configs_skip(layout, &trial->args);
    trial->choice = (struct tess__trial_choice){
        .word = trial->word, .word_count = configs_arguments(&trial->words, trial->word)};
}

/* Open it, or load it without checks. Errors are logged. */
static enum tess_status configs_read(const struct tess__plan *plan,
                                     const struct tess__plan_layout *layout, bool load,
                                     struct tess_config **config_out)
{
    struct configs_trial trial;
    configs_try(plan, layout, &trial);
    trial.choice.load = load;
    trial.choice.before = plan->first;
    return tess__trial_config(&trial.args, &trial.choice, config_out);
}

/* ---- one layout ------------------------------------------------------------------------------ */

enum tess_status tess__plan_config(const struct tess__plan *plan,
                                   const struct tess__plan_layout *layout,
                                   struct tess_config **config_out, char why[TESS__PLAN_WHY])
{
    struct tess__log_sink sink;
    const struct tess__log_sink *before = tess__plan_catch(&sink, why);
    const enum tess_status status = configs_read(plan, layout, false, config_out);
    (void)tess__log_redirect(before);
    return status;
}

enum tess_status tess__plan_trial_open(const struct tess__plan *plan,
                                       const struct tess__plan_layout *layout, int64_t steps,
                                       struct tess_dataset **dataset, struct tess__trial *trial)
{
    struct configs_trial words;
    configs_try(plan, layout, &words);
    words.choice.steps = steps;
    return tess__trial_open(trial, &words.args, &words.choice, dataset);
}

struct tess__plan_configs *tess__plan_here(const struct tess__plan *plan)
{
    return plan->configs[tess_team_hand()];
}

/* The layout's product, which is loaded if it is a new one. */
static enum tess_status configs_product(const struct tess__plan *plan,
                                        const struct tess__plan_layout *layout,
                                        struct configs_product **product_out)
{
    struct tess__plan_configs *configs = tess__plan_here(plan);
    for (int64_t i = 0; i < configs->count; i++)
        if (strcmp(configs->product[i].strategy, layout->strategy) == 0 &&
            strcmp(configs->product[i].extra, layout->extra) == 0) {
            *product_out = &configs->product[i];
            return TESS_OK;
        }
    struct configs_product *product =
        tess__array_grow(configs->product, (size_t)configs->count, sizeof(*product));
    if (product == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the configurations of layouts");
    configs->product = product;
    product += configs->count;
    const enum tess_status status = configs_read(plan, layout, true, &product->loaded);
    if (status != TESS_OK) /* of an option that no other layout would make right */
        return status == TESS_ERR_USAGE ? TESS_ERR_DATA : status;
    snprintf(product->strategy, sizeof(product->strategy), "%s", layout->strategy);
    snprintf(product->extra, sizeof(product->extra), "%s", layout->extra);
    product->given = false;
    *product_out = product;
    configs->count++;
    configs->work.loaded++;
    return TESS_OK;
}

enum tess_status tess__plan_configure(const struct tess__plan *plan,
                                      const struct tess__plan_layout *layout,
                                      const struct tess_config **config_out)
{
    struct tess_config *config = &tess__plan_here(plan)->config;
    struct configs_product *product;
    struct configs_words words;
    char *word[CONFIGS_WORDS];
    TESS_TRY(configs_product(plan, layout, &product));
    configs_list(plan, layout, product->given ? product : NULL, &words);
    product->given = false;
    TESS_TRY(tess_config_with(product->loaded, configs_arguments(&words, word), word, config));
    product->layout = *layout;
    product->batch_size = plan->batch_size;
    product->given = true;
    config->declared = plan->configs[0]->declared;
    *config_out = config;
    return TESS_OK;
}

enum tess_status tess__plan_reconfigure(const struct tess__plan *plan,
                                        const struct tess__plan_layout *layout)
{
    struct tess_config *config = &tess__plan_here(plan)->config;
    config->run.recompute = layout->recompute;
    return tess__config_recompute(config);
}

/* ---- all ------------------------------------------------------------------------------------- */

enum tess_status tess__plan_configs_open(struct tess__plan *plan, int thread)
{
    struct tess__plan_configs *configs = plan->configs[thread] = calloc(1, sizeof(*configs));
    if (configs == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the configurations of layouts");
    configs->stage_name = configs_find_stage();
    return thread > 0 ? TESS_OK : tess_declared_open(&configs->declared);
}

enum tess_status tess__plan_configs_forget(struct tess__plan_configs *configs)
{
    configs->work.declared += tess_declared_count(configs->declared);
    tess_declared_close(configs->declared);
    configs->declared = NULL;
    return tess_declared_open(&configs->declared);
}

struct tess__plan_work *tess__plan_work(struct tess__plan_configs *configs)
{
    return &configs->work;
}

void tess__plan_configs_close(struct tess__plan_configs *configs)
{
    if (configs == NULL)
        return;
    for (int64_t i = 0; i < configs->count; i++)
        tess_config_close(configs->product[i].loaded);
    free(configs->product);
    tess_declared_close(configs->declared);
    free(configs);
}
