/*
 * The configuration of a layout; see plan.h. Layouts of one product of strategies have the same
 * options: their configuration is loaded once, and each layout gives it other values. What the
 * model declares is kept for all of them, as none of a plan's words is an option of the model.
 */
#include "study/plan.h"

#include "base/array.h"
#include "config/registry.h"
#include "core/declared.h"
#include "study/product.h"
#include "study/trial.h"
#include "tessera/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIGS_WORDS 20

struct configs_words {
    char text[CONFIGS_WORDS][128];
    int count;
};

/* One product's, loaded, with the words that it was given last; none after an error. */
struct configs_product {
    char strategy[96];
    struct tess_config *loaded;
    struct configs_words given;
};

struct tess__plan_configs {
    struct configs_product *product;
    int64_t count;
    const char *stage_name; /* the stage strategy; "": there is none */
    struct tess_declared *declared;
    struct tess__plan_work work; /* but for what is declared now */
    struct tess_config config;   /* of the layout at hand */
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

static void configs_word(struct configs_words *words, const char *format, ...) TESS_PRINTF(2, 3);

static void configs_word(struct configs_words *words, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(words->text[words->count++], sizeof(words->text[0]), format, list);
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

static void configs_list(const struct tess__plan *plan, const struct tess__plan_layout *layout,
                         struct configs_words *words)
{
    const char *stage = plan->configs->stage_name;
    const bool cuda = strcmp(plan->profile.kernel, "cuda") == 0;
    words->count = 0;
    configs_word(words, "--strategy=%s", layout->strategy);
    configs_word(words, "--mesh=data=%d,tensor=%d,stage=%d", layout->count[TESS_AXIS_DATA],
                 layout->count[TESS_AXIS_TENSOR], layout->count[TESS_AXIS_STAGE]);
    configs_word(words, "--ranks=%lld", (long long)configs_ranks(layout));
    configs_word(words, "--tensor.ranks=0");
    configs_word(words, "--accumulate=%lld", (long long)layout->accumulate);
    configs_word(words, "--batch-size=%lld", (long long)plan->batch_size);
    configs_word(words, "--batch-per-rank=0");
    configs_word(words, "--recompute=%s", layout->recompute);
    configs_word(words, "--tensor.sequence-parallel=%s", layout->sequence ? "on" : "off");
    configs_word(words, "--device=%s", cuda ? "cuda" : "cpu");
    if (!cuda)
        configs_word(words, "--kernel=%s", plan->profile.kernel);
    if (layout->schedule != NULL)
        configs_word(words, "--%s.schedule=%s", stage, layout->schedule);
    if (layout->count[TESS_AXIS_STAGE] > 1) {
        configs_word(words, "--%s.chunks=%lld", stage, (long long)layout->chunks);
        configs_word(words, "--%s.stages=0", stage);
    }
    if (layout->precision != NULL)
        configs_word(words, "--precision=%s", layout->precision);
    if (layout->extra[0] != '\0')
        configs_word(words, "--%s", layout->extra);
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

/* Open it, or load it without checks. Errors are logged. */
static enum tess_status configs_read(const struct tess__plan *plan,
                                     const struct tess__plan_layout *layout, bool load,
                                     struct tess_config **config_out)
{
    struct configs_words words;
    char *word[CONFIGS_WORDS];
    struct tess__args args = plan->args;
    configs_list(plan, layout, &words);
    configs_skip(layout, &args);
    for (int i = 0; i < words.count; i++)
        word[i] = words.text[i];
    const struct tess__trial_choice choice = {
        .word = word, .word_count = words.count, .load = load};
    return tess__trial_config(&args, &choice, config_out);
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

/* The layout's product, which is loaded if it is a new one. */
static enum tess_status configs_product(const struct tess__plan *plan,
                                        const struct tess__plan_layout *layout,
                                        struct configs_product **product_out)
{
    struct tess__plan_configs *configs = plan->configs;
    for (int64_t i = 0; i < configs->count; i++)
        if (strcmp(configs->product[i].strategy, layout->strategy) == 0) {
            *product_out = &configs->product[i];
            return TESS_OK;
        }
    struct configs_product *product =
        tess__array_grow(configs->product, (size_t)configs->count, sizeof(*product));
    if (product == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the configurations of layouts");
    configs->product = product;
    product += configs->count;
    TESS_TRY(configs_read(plan, layout, true, &product->loaded));
    snprintf(product->strategy, sizeof(product->strategy), "%s", layout->strategy);
    product->given.count = 0;
    *product_out = product;
    configs->count++;
    configs->work.loaded++;
    return TESS_OK;
}

/* Give the product the words that differ from the ones before: most stay, and reading takes long.
 */
static enum tess_status configs_give(struct configs_product *product, struct configs_words *words,
                                     struct tess_config *config_out)
{
    char *word[CONFIGS_WORDS];
    int count = 0;
    const bool again = product->given.count == words->count;
    for (int i = 0; i < words->count; i++)
        if (!again || strcmp(words->text[i], product->given.text[i]) != 0)
            word[count++] = words->text[i];
    product->given.count = 0;
    TESS_TRY(tess_config_with(product->loaded, count, word, config_out));
    product->given = *words;
    return TESS_OK;
}

enum tess_status tess__plan_configure(const struct tess__plan *plan,
                                      const struct tess__plan_layout *layout,
                                      const struct tess_config **config_out)
{
    struct tess_config *config = &plan->configs->config;
    struct configs_product *product;
    struct configs_words words;
    TESS_TRY(configs_product(plan, layout, &product));
    configs_list(plan, layout, &words);
    TESS_TRY(configs_give(product, &words, config));
    config->declared = plan->configs->declared;
    *config_out = config;
    return TESS_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

enum tess_status tess__plan_configs_open(struct tess__plan_configs **configs_out)
{
    struct tess__plan_configs *configs = calloc(1, sizeof(*configs));
    *configs_out = configs;
    if (configs == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the configurations of layouts");
    configs->stage_name = configs_find_stage();
    return tess_declared_open(&configs->declared);
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
