/*
 * tessera compare: the same training under several strategies, or with several changes to its
 * options, one after the other. Responsible for the list of runs, their grid, and running them;
 * compare_table.c prints. All runs share one grid where they can, so that their hashes compare.
 */
#include "cli/compare.h"
#include "cli/command.h"
#include "cli/product.h"
#include "cli/record.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STRATEGIES_DEFAULT "single,dp,ddp,zero1,zero2,fsdp"
#define RANKS_DEFAULT      4
#define STEPS_DEFAULT      50
#define COUNT_MAX          INT64_C(1000000000000)

/* Shown by --help; their values are taken out of the words before the configuration sees them. */
struct compare_options {
    const char *strategies, *variants, *json;
};

static const struct tess_option compare_option_table[] = {
    {"strategies", TESS_OPTION_STRING, offsetof(struct compare_options, strategies),
     STRATEGIES_DEFAULT, 0, 0, NULL,
     "strategies, or products of them such as fsdp+tp+pp, to run one after the other; with "
     "--variants none unless it is given"},
    {"variants", TESS_OPTION_STRING, offsetof(struct compare_options, variants), "", 0, 0, NULL,
     "runs with other options: \"NAME [GOAL]: option=value option=value; NAME2: ...\""},
    {"json", TESS_OPTION_STRING, offsetof(struct compare_options, json), "", 0, 0, NULL,
     "file for the results: {\"runs\": [...]}; empty writes none"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

struct compare {
    struct tess__args args;                  /* what is left for the configuration */
    struct tess__args words[TESS__LIST_MAX]; /* of that, what applies to each run */
    struct tess__variants variants;
    char strategies[256], strategy_word[TESS__LIST_MAX][64], variants_text[TESS__VARIANT_TEXT_MAX];
    char configured[64]; /* the strategy of runs that name none */
    const char *json;
    int64_t ranks, grid; /* grid 0: what the runs can share */
    struct tess_dataset *dataset;
    struct tess__comparison comparison;
};

static enum tess_status compare_help(int argc, char **argv)
{
    struct compare_options target;
    struct tess_config_table table = {"", compare_option_table, &target};

    printf(
        "usage: tessera compare [CONFIG] [--strategies a,b,c] [--variants \"NAME [GOAL]: "
        "option=value ...\"]\n"
        "                       [--ranks N] [--steps K] [--json FILE]\n\n"
        "Train the same configuration under several strategies, or with other options, and print\n"
        "a summary: processes, how the batch is split, memory of rank 0 and of the fullest other\n"
        "rank, activations, bytes sent per step, waiting, images/s or tokens/s, each also as a\n"
        "factor of the first run, and the last loss; then memory per rank by kind, predicted and\n"
        "allocated, bytes sent beside the strategy's formula, and the hash of the parameters.\n"
        "Unless they are given, ranks are %d and steps %d; single runs on one rank.\n\n"
        "Strategies of several axes are joined by '+', as fsdp+tp+pp; sp is sequence parallel, as\n"
        "in tp+sp. --ranks are spread over the axes of each product; --mesh is used by those that\n"
        "have all the axes it names, and an option such as --pp.schedule by those that have that\n"
        "strategy. What was sent along each axis is then one more table, with the pipeline's "
        "bubble.\n\n"
        "All runs use one grid where they can (default: the least common multiple of their ranks\n"
        "of the data axis x accumulate), which makes the hashes of one precision comparable. On\n"
        "several tensor ranks layers are added up in parts, with bits of their own; with\n"
        "--tensor.canonical K all have the same.\n\n"
        "A variant is a name, an optional goal in brackets, and options of train that it changes;\n"
        "';' or the end of a line ends it. In a configuration file, one a line:\n\n"
        "  variants: |\n"
        "      baseline:\n"
        "      accumulate [the same batch in less memory]: accumulate=4\n"
        "      mixed [half the bytes per activation]: precision=bf16\n"
        "      both: accumulate=4 precision=bf16\n\n"
        "examples\n"
        "  tessera compare configs/labs/fashion_mlp.yaml\n"
        "  tessera compare configs/labs/fashion_cnn.yaml --strategies ddp,fsdp --ranks 2 --steps "
        "20\n"
        "  tessera compare configs/labs/fashion_mlp.yaml --variants \"DP: strategy=dp; DDP: "
        "strategy=ddp\"\n"
        "  tessera compare configs/labs/fashion_mlp.yaml --precision bf16 --json compare.json\n"
        "  tessera compare configs/models/tiny-gpt.yaml --ranks 8 --strategies "
        "single,fsdp,tp+sp,pp,fsdp+tp+pp\n\n",
        RANKS_DEFAULT, STEPS_DEFAULT);
    return tess_config_print_help(argc, argv, &table, 1);
}

/* ---- the list of runs ------------------------------------------------------------------------ */

static enum tess_status compare_read_strategies(struct compare *compare, const char *list)
{
    const char *item[TESS__LIST_MAX];
    int count = 0;

    if (strlen(list) >= sizeof compare->strategies)
        TESS_FAIL(TESS_ERR_USAGE, "--strategies is longer than %zu characters",
                  sizeof compare->strategies - 1);
    snprintf(compare->strategies, sizeof compare->strategies, "%s", list);
    TESS_TRY(tess__list_split("strategies", compare->strategies, item, &count));
    for (int i = 0; i < count; i++) {
        snprintf(compare->strategy_word[i], sizeof compare->strategy_word[i], "--strategy=%s",
                 item[i]);
        TESS_TRY(tess__variants_add(&compare->variants, item[i], compare->strategy_word[i]));
    }
    return TESS_OK;
}

/* Variants of the command line, else those of the configuration; behind them strategies, if they
 * are asked for or there is nothing else. */
static enum tess_status compare_read_runs(struct compare *compare)
{
    const char *list = NULL, *variants = NULL, *single = NULL;

    TESS_TRY(tess__args_take(&compare->args, "strategies", &list));
    TESS_TRY(tess__args_take(&compare->args, "variants", &variants));
    if (variants == NULL &&
        tess_config_peek(compare->args.count, compare->args.word, "variants",
                         compare->variants_text, sizeof compare->variants_text) &&
        compare->variants_text[0] != '\0')
        variants = compare->variants_text;
    if (variants != NULL)
        TESS_TRY(tess__variants_parse(variants, &compare->variants));
    if (list == NULL && variants != NULL)
        return TESS_OK;
    TESS_TRY(tess__args_take(&compare->args, "strategy", &single));
    if (single != NULL)
        TESS_FAIL(TESS_ERR_USAGE, "compare takes --strategies a,b,c; --strategy is train's");
    return compare_read_strategies(compare, list != NULL ? list : STRATEGIES_DEFAULT);
}

static const char *compare_strategy(const struct compare *compare, int i)
{
    const char *strategy = tess__variant_value(&compare->variants.item[i], "strategy");

    return strategy != NULL ? strategy : compare->configured;
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

static enum tess_status compare_read_args(struct compare *compare)
{
    TESS_TRY(compare_read_runs(compare));
    if (!tess_config_peek(compare->args.count, compare->args.word, "strategy", compare->configured,
                          sizeof compare->configured))
        snprintf(compare->configured, sizeof compare->configured, "single");
    TESS_TRY(tess__args_take(&compare->args, "json", &compare->json));
    TESS_TRY(tess__trial_number(&compare->args, "ranks", 1, TESS_WORLD_RANKS_MAX, RANKS_DEFAULT,
                                &compare->ranks));
    /* Steps in a file are those of a whole training: only the command line counts here. */
    compare->comparison.steps = STEPS_DEFAULT;
    TESS_TRY(
        tess__args_take_number(&compare->args, "steps", 1, COUNT_MAX, &compare->comparison.steps));
    TESS_TRY(tess__trial_check(&compare->args, compare->json));
    TESS_TRY(tess__trial_number(&compare->args, "grid", 0, COUNT_MAX, 0, &compare->grid));
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

    if (tess__variant_value(variant, "ranks") == NULL)
        choice.ranks = strcmp(compare_strategy(compare, i), "single") == 0 ? 1 : compare->ranks;
    if (tess__variant_value(variant, "grid") == NULL)
        choice.grid = grid;
    return choice;
}

/* Errors of the configuration do not know whose it is. */
static enum tess_status compare_blame(const struct compare *compare, int i, enum tess_status status)
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

        if (tess__variant_value(&compare->variants.item[i], "grid") != NULL)
            continue;
        TESS_TRY(compare_blame(compare, i,
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
    comparison->run = calloc((size_t)compare->variants.count, sizeof *comparison->run);
    if (comparison->run == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d runs", compare->variants.count);
    for (int i = 0; i < compare->variants.count; i++) {
        struct tess__trial_choice choice = compare_choice(compare, i, grid);
        struct tess__compared *run = &comparison->run[comparison->count++];
        int width = (int)strlen(compare->variants.item[i].name);

        run->variant = &compare->variants.item[i];
        comparison->name_width = width > comparison->name_width ? width : comparison->name_width;
        TESS_TRY(compare_blame(
            compare, i,
            tess__trial_open(&run->trial, &compare->words[i], &choice, &compare->dataset)));
    }
    comparison->words = tess__words_of(compare->dataset);
    return TESS_OK;
}

static enum tess_status compare_write_json(const struct compare *compare)
{
    json_t *runs, *root;

    if (compare->json == NULL || compare->json[0] == '\0')
        return TESS_OK;
    runs = json_array();
    for (int i = 0; i < compare->comparison.count; i++) {
        const struct tess__compared *run = &compare->comparison.run[i];
        json_t *entry = tess__record_compared(&run->trial.run);

        json_object_set_new(entry, "name", json_string(run->variant->name));
        if (run->variant->goal[0] != '\0')
            json_object_set_new(entry, "goal", json_string(run->variant->goal));
        json_array_append_new(runs, entry);
    }
    root = json_pack("{s:o}", "runs", runs);
    return tess__record_write(compare->json, root);
}

/* Plan all of them first: what does not fit is refused before anything runs. */
static enum tess_status compare_run(struct compare *compare)
{
    struct tess__comparison *comparison = &compare->comparison;

    TESS_TRY(compare_open(compare));
    for (int i = 0; i < comparison->count; i++) {
        struct tess__trial *trial = &comparison->run[i].trial;
        char sign[96];

        snprintf(sign, sizeof sign, "run %d of %d: %s on %d rank%s", i + 1, comparison->count,
                 comparison->run[i].variant->name, trial->run.rank_count,
                 trial->run.rank_count > 1 ? "s" : "");
        enum tess_status status = compare_blame(compare, i, tess__trial_run(trial, sign));
        if (status != TESS_OK) {
            struct tess__comparison done = *comparison;
            done.count = i; /* what was measured is not lost */
            if (i > 0)
                tess__comparison_print(&done);
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

int tess__command_compare(int argc, char **argv)
{
    static struct compare compare; /* the texts are too large for a small stack */
    enum tess_status status;

    memset(&compare, 0, sizeof compare);
    status = tess__args_init(&compare.args, argc, argv);
    if (status == TESS_OK && tess__args_has(&compare.args, "help"))
        return tess_status_exit_code(compare_help(argc, argv));
    if (status == TESS_OK)
        status = compare_read_args(&compare);
    if (status == TESS_OK)
        status = compare_run(&compare);
    compare_close(&compare);
    return tess_status_exit_code(status);
}
