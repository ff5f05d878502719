/*
 * tessera compare: the same training under several strategies, one after the other, in one table:
 * memory by kind, bytes sent against the formula, speed and the hash of the parameters. All runs
 * share one grid, so that their hashes can be compared.
 */
#include "cli/command.h"
#include "cli/record.h"
#include "cli/text.h"
#include "cli/trial.h"
#include "core/metrics.h"
#include "tessera/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STRATEGIES_DEFAULT "single,dp,ddp,zero1,zero2,fsdp"
#define RANKS_DEFAULT      4
#define STEPS_DEFAULT      50
#define COUNT_MAX          INT64_C(1000000000000)

struct compare_options {
    const char *strategies, *json;
};

static const struct tess_option compare_option_table[] = {
    {"strategies", TESS_OPTION_STRING, offsetof(struct compare_options, strategies),
     STRATEGIES_DEFAULT, 0, 0, NULL, "strategies to run, one after the other"},
    {"json", TESS_OPTION_STRING, offsetof(struct compare_options, json), "", 0, 0, NULL,
     "file for the results: {\"runs\": [...]}; empty writes none"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

struct compare {
    struct tess__args args;               /* what is left for the configuration */
    char strategies[256], accumulate[24]; /* words that args and strategy point into */
    const char *strategy[TESS__LIST_MAX];
    int strategy_count;
    const char *json;
    int64_t ranks, steps, grid;
    struct tess_dataset *dataset;
    struct tess__trial *trial; /* [strategy_count] */
    int trial_count;           /* opened */
};

static enum tess_status compare_help(int argc, char **argv)
{
    struct compare_options target;
    struct tess_config_table table = {"", compare_option_table, &target};

    printf(
        "usage: tessera compare [CONFIG] [--strategies a,b,c] [--ranks N] [--steps K] [--json "
        "FILE]\n\n"
        "Train the same configuration under several strategies and print one table: memory per "
        "rank\n"
        "by kind, bytes sent per step and rank beside the strategy's formula, images/s, and the "
        "hash\n"
        "of the parameters. Unless they are given, ranks are %d and steps %d; single runs on one\n"
        "rank. All runs use one grid (default: ranks x accumulate), which makes hashes "
        "comparable.\n\n"
        "examples\n"
        "  tessera compare configs/labs/fashion_mlp.yaml\n"
        "  tessera compare configs/labs/fashion_cnn.yaml --strategies ddp,fsdp --ranks 2 --steps "
        "20\n"
        "  tessera compare configs/labs/fashion_mlp.yaml --precision bf16 --json compare.json\n\n",
        RANKS_DEFAULT, STEPS_DEFAULT);
    return tess_config_print_help(argc, argv, &table, 1);
}

static enum tess_status compare_read_args(struct compare *compare)
{
    const char *list = STRATEGIES_DEFAULT, *single = NULL, *steps = NULL;
    int64_t accumulate = 1;

    TESS_TRY(tess__args_take(&compare->args, "strategies", &list));
    TESS_TRY(tess__args_take(&compare->args, "strategy", &single));
    if (single != NULL)
        TESS_FAIL(TESS_ERR_USAGE, "compare takes --strategies a,b,c; --strategy is train's");
    if (strlen(list) >= sizeof compare->strategies)
        TESS_FAIL(TESS_ERR_USAGE, "--strategies is longer than %zu characters",
                  sizeof compare->strategies - 1);
    snprintf(compare->strategies, sizeof compare->strategies, "%s", list);
    TESS_TRY(tess__list_split("strategies", compare->strategies, compare->strategy,
                              &compare->strategy_count));
    TESS_TRY(tess__args_take(&compare->args, "json", &compare->json));
    TESS_TRY(tess__trial_number(&compare->args, "ranks", 1, TESS_WORLD_RANKS_MAX, RANKS_DEFAULT,
                                &compare->ranks));
    /* Steps in a file are those of a whole training: only the command line counts here. */
    compare->steps = STEPS_DEFAULT;
    TESS_TRY(tess__args_take(&compare->args, "steps", &steps));
    if (steps != NULL)
        TESS_TRY(tess__list_number("steps", steps, 1, COUNT_MAX, &compare->steps));
    TESS_TRY(tess__trial_number(&compare->args, "grid", 0, COUNT_MAX, 0, &compare->grid));
    TESS_TRY(tess__trial_number(&compare->args, "accumulate", 1, COUNT_MAX, 1, &accumulate));
    if (accumulate != 1) {
        snprintf(compare->accumulate, sizeof compare->accumulate, "%" PRId64, accumulate);
        TESS_TRY(tess__args_add(&compare->args, "--accumulate", compare->accumulate));
    }
    if (compare->grid == 0)
        compare->grid = compare->ranks * accumulate;
    return TESS_OK;
}

/* ---- the table --------------------------------------------------------------------------------
 */

/* The last rank after `first` whose memory and traffic are the same. */
static int32_t compare_group_end(const struct tess__run *run, int32_t first)
{
    int32_t last = first;

    while (last + 1 < run->rank_count &&
           memcmp(&run->rank[first].allocated, &run->rank[last + 1].allocated,
                  sizeof run->rank[0].allocated) == 0 &&
           run->rank[first].sent_bytes_formula == run->rank[last + 1].sent_bytes_formula)
        last++;
    return last;
}

static void compare_print_row(const struct tess__run *run, int32_t first, int32_t last,
                              double divisor)
{
    const struct tess__run_rank *rank = &run->rank[first];
    double sent = 0, peak = 0;
    char ranks[32], speed[TESS__TEXT_BYTES];

    for (int32_t r = first; r <= last; r++) {
        sent = run->rank[r].sent_bytes_per_step > sent ? run->rank[r].sent_bytes_per_step : sent;
        peak = (double)run->rank[r].peak_rss > peak ? (double)run->rank[r].peak_rss : peak;
    }
    if (first == last)
        snprintf(ranks, sizeof ranks, "%d", first);
    else
        snprintf(ranks, sizeof ranks, "%d-%d", first, last);
    printf("%-8s %5s", first == 0 ? run->config->strategy->name : "", ranks);
    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        printf(" %6.2f", (double)rank->allocated.bytes[k] / divisor);
    printf(" %6.2f %7.1f %6.2f %7.2f", (double)rank->allocated.total / divisor, peak / divisor,
           sent / divisor, (double)rank->sent_bytes_formula / divisor);
    if (first == 0)
        printf(" %8s %016" PRIx64, tess__text_count(run->final.samples_per_s, speed),
               run->final.hash);
    putchar('\n');
}

static void compare_print_head(const struct compare *compare, const char *unit)
{
    static const char *const kind[TESS_MEMORY_KIND_COUNT] = {
        "param", "master", "grad", "optim", "activ", "gather", "bucket", "work", "input"};

    printf("\n%" PRId64 " steps, batch %" PRId64 ", grid %" PRId64
           "; memory, peak RSS and bytes sent in a step are per rank, in %s\n",
           compare->steps, compare->trial[0].config->run.batch_size, compare->grid, unit);
    printf("%-8s %5s", "strategy", "rank");
    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        printf(" %6s", kind[k]);
    printf(" %6s %7s %6s %7s %8s %s\n", "total", "RSS", "sent", "formula", "images/s", "hash");
}

static void compare_print_verdicts(const struct compare *compare)
{
    const struct tess__trial *trial = compare->trial;
    int equal = 0, predicted = 0;

    for (int i = 0; i < compare->trial_count; i++) {
        equal += trial[i].run.final.hash == trial[0].run.final.hash;
        predicted += tess__run_as_predicted(&trial[i].run);
    }
    if (equal == compare->trial_count)
        printf("hashes: all %d equal: the same bits under every strategy\n", equal);
    else
        printf("hashes: NOT all equal: %d of %d are those of %s\n", equal, compare->trial_count,
               trial[0].config->strategy->name);
    if (predicted == compare->trial_count)
        printf("memory: predicted = allocated, for every kind on every rank of every run\n");
    else
        printf("memory: predicted and allocated DIFFER in %d of %d runs\n",
               compare->trial_count - predicted, compare->trial_count);
}

static void compare_print(const struct compare *compare)
{
    double most = 0, divisor = 1;
    const char *unit;

    for (int i = 0; i < compare->trial_count; i++)
        for (int32_t r = 0; r < compare->trial[i].run.rank_count; r++)
            if ((double)compare->trial[i].run.rank[r].allocated.total > most)
                most = (double)compare->trial[i].run.rank[r].allocated.total;
    unit = tess__text_unit(most, &divisor);
    compare_print_head(compare, unit);
    for (int i = 0; i < compare->trial_count; i++) {
        const struct tess__run *run = &compare->trial[i].run;
        for (int32_t first = 0, last; first < run->rank_count; first = last + 1) {
            last = compare_group_end(run, first);
            compare_print_row(run, first, last, divisor);
        }
    }
    compare_print_verdicts(compare);
}

static enum tess_status compare_write_json(const struct compare *compare)
{
    json_t *runs, *root;
    enum tess_status status;

    if (compare->json == NULL || compare->json[0] == '\0')
        return TESS_OK;
    runs = json_array();
    for (int i = 0; i < compare->trial_count; i++)
        json_array_append_new(runs, tess__record_compared(&compare->trial[i].run));
    root = json_pack("{s:o}", "runs", runs);
    if (root == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the results of --json");
    status = tess_json_write_file(compare->json, root);
    json_decref(root);
    return status;
}

/* ---- the runs ---------------------------------------------------------------------------------
 */

static enum tess_status compare_run_one(struct tess__trial *trial)
{
    bool terminal = isatty(STDOUT_FILENO) == 1;

    if (terminal) {
        printf("running %s on %d rank%s ...", trial->config->strategy->name, trial->run.rank_count,
               trial->run.rank_count > 1 ? "s" : "");
        fflush(stdout);
    }
    TESS_TRY(tess__trial_run(trial));
    if (terminal)
        printf("\r\033[K");
    return TESS_OK;
}

/* Plan all of them first: what does not fit is refused before anything runs. */
static enum tess_status compare_run(struct compare *compare)
{
    compare->trial = calloc((size_t)compare->strategy_count, sizeof *compare->trial);
    if (compare->trial == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d runs", compare->strategy_count);
    for (int i = 0; i < compare->strategy_count; i++) {
        struct tess__trial_choice choice = {
            .strategy = compare->strategy[i],
            .ranks = strcmp(compare->strategy[i], "single") == 0 ? 1 : compare->ranks,
            .grid = compare->grid,
            .steps = compare->steps,
        };
        compare->trial_count++;
        TESS_TRY(tess__trial_open(&compare->trial[i], &compare->args, &choice, &compare->dataset));
    }
    for (int i = 0; i < compare->trial_count; i++)
        TESS_TRY(compare_run_one(&compare->trial[i]));
    compare_print(compare);
    return compare_write_json(compare);
}

static void compare_close(struct compare *compare)
{
    for (int i = 0; i < compare->trial_count; i++)
        tess__trial_close(&compare->trial[i]);
    free(compare->trial);
    tess_dataset_close(compare->dataset);
}

int tess__command_compare(int argc, char **argv)
{
    struct compare compare = {0};
    enum tess_status status = tess__args_init(&compare.args, argc, argv);

    if (status == TESS_OK && tess__args_has(&compare.args, "help"))
        return tess_status_exit_code(compare_help(argc, argv));
    if (status == TESS_OK)
        status = compare_read_args(&compare);
    if (status == TESS_OK)
        status = compare_run(&compare);
    compare_close(&compare);
    return tess_status_exit_code(status);
}
