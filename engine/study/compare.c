/* tessera compare: the list of runs, their grid, and running them; compare_table.c prints. */
#include "study/compare.h"
#include "run/record.h"
#include "study/product.h"
#include "tessera/check.h"
#include "text/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRATEGIES_DEFAULT "single,dp,ddp,zero1,zero2,fsdp"
#define RANKS_DEFAULT      4
#define COUNT_MAX          INT64_C(1000000000000)

struct compare_options {
    const char *strategies, *variants, *json;
    int64_t steps;
};

static const struct tess_option compare_option_table[] = {
    {"strategies", TESS_OPTION_STRING, offsetof(struct compare_options, strategies),
     STRATEGIES_DEFAULT, 0, 0, NULL,
     "strategies, or products of them such as fsdp+tp+pp, to run one after the other; with "
     "--variants none unless it is given"},
    {"variants", TESS_OPTION_STRING, offsetof(struct compare_options, variants), "", 0, 0, NULL,
     "runs with other options: \"NAME [GOAL]: option=value option=value; NAME2: ...\""},
    {"steps", TESS_OPTION_INT, offsetof(struct compare_options, steps), "50", 1, COUNT_MAX, NULL,
     "optimizer steps of every run"},
    {"json", TESS_OPTION_STRING, offsetof(struct compare_options, json), "", 0, 0, NULL,
     "file for the results: {\"runs\": [...]}; empty writes none"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

struct compare {
    struct tess__args args;                  /* what is left for the configuration */
    struct tess__args words[TESS__LIST_MAX]; /* of that, what applies to each run */
    struct tess__variants variants;
    char strategies[256], strategy_word[TESS__LIST_MAX][64];
    char configured[64]; /* the strategy of runs that name none */
    const struct compare_options *options;
    int64_t ranks, grid; /* grid 0: what the runs can share */
    struct tess_dataset *dataset;
    struct tess__comparison comparison;
};

static const char compare_usage[] =
    "usage: tessera compare [CONFIG] [--strategies a,b,c] [--ranks N] [--steps K] [--json FILE]\n"
    "                       [--variants \"NAME [GOAL]: option=value ...\"]\n"
    "\n"
    "Train the same configuration under several strategies, or with other options, and print\n"
    "a summary: processes, how the batch is split, memory of rank 0 and of the fullest other\n"
    "rank, activations, bytes sent per step, waiting, images/s or tokens/s, each also as a\n"
    "factor of the first run, and the last loss. Then follow the memory of each rank by kind,\n"
    "predicted and allocated, the bytes sent beside the strategy's formula, and the hash of\n"
    "the parameters. --ranks is 4 unless it is given; single runs on one rank.\n"
    "\n"
    "Strategies of several axes are joined by '+', as fsdp+tp+pp; sp is sequence parallel, as\n"
    "in tp+sp. --ranks are spread over the axes of each product; --mesh is used by those that\n"
    "have all the axes it names, and an option such as --pp.schedule by those that have that\n"
    "strategy. One more table then has what was sent along each axis, and the pipeline's\n"
    "bubble.\n"
    "\n"
    "All runs use one grid where they can (default: the least common multiple of their ranks\n"
    "of the data axis x accumulate), which makes the hashes of one precision comparable. On\n"
    "several tensor ranks layers are added up in parts, with bits of their own; with\n"
    "--tensor.canonical K all have the same.\n"
    "\n"
    "A variant is a name, an optional goal in brackets, and options of train that it changes;\n"
    "';' or the end of a line ends it. In a configuration file, one a line:\n"
    "\n"
    "  variants: |\n"
    "      baseline:\n"
    "      accumulate [the same batch in less memory]: accumulate=4\n"
    "      mixed [half the bytes per activation]: precision=bf16\n"
    "      both: accumulate=4 precision=bf16\n"
    "\n"
    "examples\n"
    "  tessera compare configs/labs/fashion_mlp.yaml\n"
    "  tessera compare configs/labs/fashion_cnn.yaml --strategies ddp,fsdp --ranks 2 --steps 20\n"
    "  tessera compare configs/labs/fashion_mlp.yaml \\\n"
    "      --variants \"DP: strategy=dp; DDP: strategy=ddp\"\n"
    "  tessera compare configs/labs/fashion_mlp.yaml --precision bf16 --json compare.json\n"
    "  tessera compare configs/models/tiny-gpt.yaml --ranks 8 \\\n"
    "      --strategies single,fsdp,tp+sp,pp,fsdp+tp+pp\n";

/* ---- the list of runs ------------------------------------------------------------------------ */

static enum tess_status compare_read_strategies(struct compare *compare, const char *list)
{
    const char *item[TESS__LIST_MAX];
    int count = 0;
    if (strlen(list) >= sizeof(compare->strategies))
        TESS_FAIL(TESS_ERR_USAGE, "--strategies is longer than %zu characters",
                  sizeof(compare->strategies) - 1);
    snprintf(compare->strategies, sizeof(compare->strategies), "%s", list);
    TESS_TRY(tess__list_split("strategies", compare->strategies, item, &count));
    for (int i = 0; i < count; i++) {
        snprintf(compare->strategy_word[i], sizeof(compare->strategy_word[i]), "--strategy=%s",
                 item[i]);
        TESS_TRY(tess__variants_add(&compare->variants, item[i], compare->strategy_word[i]));
    }
    return TESS_OK;
}

/* The variants, and behind them strategies, if --strategies is given or there are no variants. */
static enum tess_status compare_read_runs(struct compare *compare, const struct tess__call *call)
{
    const struct compare_options *options = compare->options;
    const bool variants = options->variants[0];
    if (variants)
        TESS_TRY(tess__variants_parse(options->variants, &compare->variants));
    if (variants && !tess_options_is_set(call->options, "strategies"))
        return TESS_OK;
    if (tess_options_peek_arguments("strategy", compare->args.count, compare->args.word))
        TESS_FAIL(TESS_ERR_USAGE,
                  "compare takes --strategies a,b,c; --strategy is an option of train");
    return compare_read_strategies(compare, options->strategies);
}

static const char *compare_strategy(const struct compare *compare, int i)
{
    const char *strategy = tess__variant_value(&compare->variants.item[i], "strategy");
    return strategy ? strategy : compare->configured;
}

static enum tess_status compare_share_words(struct compare *compare)
{
    const char *strategy[TESS__LIST_MAX];
    for (int i = 0; i < compare->variants.count; i++)
        strategy[i] = compare_strategy(compare, i);
    for (int i = 0; i < compare->variants.count; i++)
        TESS_TRY(tess__product_words(&compare->args, strategy[i], strategy, compare->variants.count,
                                     &compare->words[i]));
    return TESS_OK;
}

static enum tess_status compare_read_args(struct compare *compare, const struct tess__call *call)
{
    struct tess__args *args = &compare->args;
    *args = call->args;
    compare->options = call->values;
    compare->comparison.steps = compare->options->steps;
    compare->ranks = RANKS_DEFAULT;
    TESS_TRY(compare_read_runs(compare, call));
    if (!tess_config_peek(args->count, args->word, "strategy", compare->configured,
                          sizeof(compare->configured)))
        snprintf(compare->configured, sizeof(compare->configured), "single");
    tess_config_peek_number(args->count, args->word, "ranks", &compare->ranks);
    tess_config_peek_number(args->count, args->word, "grid", &compare->grid);
    TESS_TRY(tess__trial_check(args, compare->options->json));
    return compare_share_words(compare);
}

/* What a run is to be tried with; grid 0 leaves it to the run. */
static struct tess__trial_choice compare_choice(const struct compare *compare, int i, int64_t grid)
{
    const struct tess__variant *variant = &compare->variants.item[i];
    struct tess__trial_choice choice = {
        .word = variant->word,
        .word_count = variant->word_count,
        .steps = compare->comparison.steps,
    };
    if (!tess__variant_value(variant, "ranks"))
        choice.ranks = strcmp(compare_strategy(compare, i), "single") == 0 ? 1 : compare->ranks;
    if (!tess__variant_value(variant, "grid"))
        choice.grid = grid;
    return choice;
}

/* Errors of a configuration do not name its run. */
static enum tess_status compare_name_run(const struct compare *compare, int i,
                                         enum tess_status status)
{
    if (status != TESS_OK && status != TESS_ERR_INTERRUPTED && compare->variants.count > 1)
        tess_log(TESS_LOG_INFO, "that was run %d of %d, '%s'", i + 1, compare->variants.count,
                 compare->variants.item[i].name);
    return status;
}

/* The grid that all runs without one of their own can share; 0 when there is none. */
static enum tess_status compare_find_grid(const struct compare *compare, int64_t *grid_out)
{
    struct tess__variant_shape shape[TESS__LIST_MAX];
    int count = 0;
    *grid_out = compare->grid;
    for (int i = 0; i < compare->variants.count && compare->grid == 0; i++) {
        struct tess__trial_choice choice = compare_choice(compare, i, 0);
        if (tess__variant_value(&compare->variants.item[i], "grid"))
            continue;
        TESS_TRY(compare_name_run(compare, i,
                                  tess__trial_shape(&compare->words[i], &choice, &shape[count++])));
    }
    if (count > 0)
        *grid_out = tess__variants_grid(shape, count);
    return TESS_OK;
}

/* ---- the runs -------------------------------------------------------------------------------- */

static enum tess_status compare_open(struct compare *compare)
{
    struct tess__comparison *comparison = &compare->comparison;
    int64_t grid = 0;
    TESS_TRY(compare_find_grid(compare, &grid));
    comparison->run = calloc((size_t)compare->variants.count, sizeof(*comparison->run));
    if (!comparison->run)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d runs", compare->variants.count);
    for (int i = 0; i < compare->variants.count; i++) {
        struct tess__trial_choice choice = compare_choice(compare, i, grid);
        struct tess__compared *run = &comparison->run[comparison->count++];
        run->variant = &compare->variants.item[i];
        TESS_TRY(compare_name_run(
            compare, i,
            tess__trial_open(&run->trial, &compare->words[i], &choice, &compare->dataset)));
    }
    comparison->words = tess__words_of(compare->dataset);
    return TESS_OK;
}

static enum tess_status compare_write_json(const struct compare *compare)
{
    if (!compare->options->json[0])
        return TESS_OK;
    json_t *runs = json_array();
    for (int i = 0; i < compare->comparison.count; i++) {
        const struct tess__compared *run = &compare->comparison.run[i];
        json_t *entry = tess__record_compared(&run->trial.run, &run->predicted);
        json_object_set_new(entry, "name", json_string(run->variant->name));
        if (run->variant->goal[0])
            json_object_set_new(entry, "goal", json_string(run->variant->goal));
        json_array_append_new(runs, entry);
    }
    json_t *root = json_pack("{s:o}", "runs", runs);
    return tess__record_write(compare->options->json, root);
}

/* Plan all of them first: what does not fit is refused before anything runs. */
static enum tess_status compare_run(struct compare *compare)
{
    struct tess__comparison *comparison = &compare->comparison;
    TESS_TRY(compare_open(compare));
    for (int i = 0; i < comparison->count; i++) /* while nothing else runs */
        tess__predicted_make(&comparison->run[i].trial.run, &comparison->run[i].predicted);
    for (int i = 0; i < comparison->count; i++) {
        struct tess__trial *trial = &comparison->run[i].trial;
        char sign[96];
        snprintf(sign, sizeof(sign), "run %d of %d: %s on %d rank%s", i + 1, comparison->count,
                 comparison->run[i].variant->name, trial->run.rank_count,
                 trial->run.rank_count > 1 ? "s" : "");
        enum tess_status status = compare_name_run(compare, i, tess__trial_run(trial, sign));
        if (status != TESS_OK) {
            struct tess__comparison done = *comparison;
            done.count = i; /* what was measured is not lost */
            if (i > 0) {
                tess__comparison_print(&done);
                printf("%d of %d runs are shown: '%s' did not end%s\n", i, comparison->count,
                       comparison->run[i].variant->name,
                       compare->options->json[0] ? ", and no file is written" : "");
            }
            return status;
        }
    }
    tess__comparison_print(comparison);
    return compare_write_json(compare);
}

static void compare_close(struct compare *compare)
{
    for (int i = 0; i < compare->comparison.count; i++)
        tess__trial_close(&compare->comparison.run[i].trial);
    free(compare->comparison.run);
    tess__variants_free(&compare->variants);
    tess_dataset_close(compare->dataset);
}

static int compare_command(struct tess__call *call)
{
    static struct compare compare; /* the words are too large for a small stack */
    memset(&compare, 0, sizeof(compare));
    enum tess_status status = compare_read_args(&compare, call);
    if (status == TESS_OK)
        status = compare_run(&compare);
    compare_close(&compare);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_compare = {
    .name = "compare",
    .summary = "run several strategies side by side: memory, traffic, speed, hash",
    .usage = compare_usage,
    .table = compare_option_table,
    .options_size = sizeof(struct compare_options),
    .reads = TESS__READS_SERIES,
    .run = compare_command,
};
