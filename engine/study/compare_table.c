/* The tables of a comparison: what each run costs against the first one, and memory by kind. */
#include "study/compare.h"

#include "run/memory_table.h"
#include "text/table.h"
#include "text/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A run's costs as the summary shows them; bytes and rows/s. */
struct compare_costs {
    double first, other; /* memory of rank 0 and of the fullest other rank; 0 when there is none */
    double activation, sent; /* of the rank that has most */
    double comm_share, samples_per_s;
};

static struct compare_costs compare_costs_of(const struct tess__run *run)
{
    struct compare_costs costs = {
        .first = (double)run->rank[0].allocated.total,
        .comm_share = run->final.comm_share,
        .samples_per_s = run->final.samples_per_s,
    };
    for (int32_t r = 0; r < run->rank_count; r++) {
        const struct tess__run_rank *rank = &run->rank[r];
        if (r > 0)
            costs.other = fmax(costs.other, (double)rank->allocated.total);
        costs.activation =
            fmax(costs.activation, (double)rank->allocated.bytes[TESS_MEMORY_ACTIVATION]);
        costs.sent = fmax(costs.sent, rank->sent_bytes_per_step);
    }
    return costs;
}

/* Three digits that matter, or more before the point. */
static const char *compare_figure(double value, char text[TESS__TEXT_BYTES])
{
    int digits = value == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text, TESS__TEXT_BYTES, "%.*f", digits, value);
    return text;
}

/* "x0.52" of the first run's; "" where that has none. */
static const char *compare_factor(double value, double first, char text[TESS__TEXT_BYTES])
{
    char figure[TESS__TEXT_BYTES];
    text[0] = '\0';
    if (first > 0)
        snprintf(text, TESS__TEXT_BYTES, "x%.8s", compare_figure(value / first, figure));
    return text;
}

/* ---- the summary ----------------------------------------------------------------------------- */

enum {
    SUMMARY_NAME,
    SUMMARY_PROCESSES,
    SUMMARY_SPLIT,
    SUMMARY_FIRST,
    SUMMARY_OTHERS,
    SUMMARY_RATIO,
    SUMMARY_ACTIVATION,
    SUMMARY_SENT,
    SUMMARY_WAIT,
    SUMMARY_RATE,
    SUMMARY_LOSS,
    SUMMARY_COUNT
};

/* "4", "1, 4 threads", or with the ranks along each axis "8 = 2x2x2". */
static void compare_add_processes(struct tess__table *table, const struct tess__run *run)
{
    const int32_t *count = run->config->mesh.count;
    if (run->rank_count > 1 && run->config->device.rank_mode == TESS_RANKS_THREADS)
        tess__table_add(table, "1, %d threads", run->rank_count);
    else if (tess__run_has_mesh(run))
        tess__table_add(table, "%d = %dx%dx%d", run->rank_count, count[TESS_AXIS_DATA],
                        count[TESS_AXIS_TENSOR], count[TESS_AXIS_STAGE]);
    else
        tess__table_add(table, "%d", run->rank_count);
}

/* Ranks of the data axis x micro-batches x rows, and who loads them. */
static void compare_add_split(struct tess__table *table, const struct tess__run *run)
{
    const struct tess_plan *plan = tess_engine_plan_of(run->planned);
    const int32_t ranks = run->config->mesh.count[TESS_AXIS_DATA];
    int64_t rows = run->config->run.batch_size / (ranks * plan->accumulate);
    tess__table_add(table, "%d x %d x %" PRId64 "%s", ranks, plan->accumulate, rows,
                    ranks == 1          ? ""
                    : plan->holds_input ? ", rank 0"
                                        : ", each");
}

/* The row below a run: its costs as factors of the first run's, and its goal. */
static void compare_add_factors(struct tess__table *table, const struct compare_costs *costs,
                                const struct compare_costs *first, const char *goal)
{
    double factor[SUMMARY_COUNT][2] = {{0}};
    char text[TESS__TEXT_BYTES];
    tess__table_beside(table, goal);
    if (costs) {
        const double value[SUMMARY_COUNT][2] = {
            [SUMMARY_FIRST] = {costs->first, first->first},
            [SUMMARY_OTHERS] = {costs->other, costs->other > 0 ? first->other : 0},
            [SUMMARY_ACTIVATION] = {costs->activation, first->activation},
            [SUMMARY_SENT] = {costs->sent, first->sent},
            [SUMMARY_RATE] = {costs->samples_per_s, first->samples_per_s},
        };
        memcpy(factor, value, sizeof(factor));
    }
    for (int c = 0; c < SUMMARY_COUNT; c++)
        tess__table_add(table, "%s", compare_factor(factor[c][0], factor[c][1], text));
}

static void compare_add_run(struct tess__table *table, const struct tess__comparison *comparison,
                            int i, double divisor)
{
    const struct tess__run *run = &comparison->run[i].trial.run;
    const char *goal = comparison->run[i].variant->goal;
    const struct compare_costs first = compare_costs_of(&comparison->run[0].trial.run);
    const struct compare_costs costs = compare_costs_of(run);
    const bool others = costs.other > 0;
    char text[TESS__TEXT_BYTES];
    tess__table_add(table, "%s", comparison->run[i].variant->name);
    compare_add_processes(table, run);
    compare_add_split(table, run);
    tess__table_add(table, "%s", compare_figure(costs.first / divisor, text));
    tess__table_add(table, "%s", others ? compare_figure(costs.other / divisor, text) : "");
    tess__table_add(table, "%s", others ? compare_figure(costs.first / costs.other, text) : "");
    tess__table_add(table, "%s", compare_figure(costs.activation / divisor, text));
    tess__table_add(table, "%s", compare_figure(costs.sent / divisor, text));
    tess__table_add(table, "%.0f%%", 100 * costs.comm_share);
    tess__table_add(table, "%s", tess__words_rate(&comparison->words, costs.samples_per_s, text));
    tess__table_add(table, "%.6f", run->final.loss);
    if (i > 0 || *goal)
        compare_add_factors(table, i > 0 ? &costs : NULL, &first, goal);
}

static void compare_print_summary(const struct tess__comparison *comparison, const char *unit,
                                  double divisor)
{
    const struct tess__column column[SUMMARY_COUNT] = {
        [SUMMARY_NAME] = {.title = "run", .left = true, .key = true},
        [SUMMARY_PROCESSES] = {.title = "processes", .width = 13, .left = true},
        [SUMMARY_SPLIT] = {.title = "split of the batch",
                           .brief = "split",
                           .width = 22,
                           .left = true},
        [SUMMARY_FIRST] = {.title = "rank 0", .width = 7},
        [SUMMARY_OTHERS] = {.title = "others", .width = 7},
        [SUMMARY_RATIO] = {.title = "ratio", .width = 5},
        [SUMMARY_ACTIVATION] = {.title = "activ", .width = 7},
        [SUMMARY_SENT] = {.title = "sent", .width = 7},
        [SUMMARY_WAIT] = {.title = "wait", .width = 5},
        [SUMMARY_RATE] = {.title = comparison->words.rate,
                          .brief = comparison->words.rate_short,
                          .width = 9},
        [SUMMARY_LOSS] = {.title = "loss", .width = 9},
    };
    struct tess__table table = {.column = column, .count = SUMMARY_COUNT, .span = SUMMARY_FIRST};
    bool mesh = false;
    printf("\n%" PRId64 " steps; memory and bytes sent in a step are per rank, in %s; x: factor of "
           "the first run\n",
           comparison->steps, unit);
    for (int i = 0; i < comparison->count; i++) {
        compare_add_run(&table, comparison, i, divisor);
        mesh = mesh || tess__run_has_mesh(&comparison->run[i].trial.run);
    }
    tess__table_print(&table, stdout);
    if (mesh)
        printf("processes: N = ranks along the data, tensor and stage axis; split: ranks of the "
               "data axis\n");
    printf("split: ranks x micro-batches x %s, loaded by each rank or all by rank 0\n"
           "others: the fullest other rank; ratio: rank 0 to it, 1 is balanced\n"
           "activ, sent: the rank with most; wait: share of time spent waiting for ranks\n"
           "loss: of the last step\n",
           comparison->words.rows);
}

/* ---- memory by kind -------------------------------------------------------------------------- */

/* A comparison saves nothing, so the kinds from staging on are empty. */
#define COMPARE_KINDS TESS_MEMORY_STAGING

/* The last rank after `first` whose memory and traffic are the same. */
static int32_t compare_group_end(const struct tess__run *run, int32_t first)
{
    int32_t last = first;
    while (last + 1 < run->rank_count &&
           memcmp(&run->rank[first].allocated, &run->rank[last + 1].allocated,
                  sizeof(run->rank[0].allocated)) == 0 &&
           run->rank[first].sent_bytes_formula == run->rank[last + 1].sent_bytes_formula)
        last++;
    return last;
}

static void compare_add_memory(struct tess__table *table, const struct tess__comparison *comparison,
                               int i, int32_t first, int32_t last, double divisor)
{
    const struct tess__run *run = &comparison->run[i].trial.run;
    const struct tess__run_rank *rank = &run->rank[first];
    double sent = 0, peak = 0;
    char text[TESS__TEXT_BYTES];
    for (int32_t r = first; r <= last; r++) {
        sent = fmax(sent, run->rank[r].sent_bytes_per_step);
        peak = fmax(peak, (double)run->rank[r].peak_rss);
    }
    tess__table_add(table, "%s", first == 0 ? comparison->run[i].variant->name : "");
    if (first == last)
        tess__table_add(table, "%d", first);
    else
        tess__table_add(table, "%d-%d", first, last);
    for (int k = 0; k < COMPARE_KINDS; k++)
        tess__table_add(table, "%s",
                        compare_figure((double)rank->allocated.bytes[k] / divisor, text));
    tess__table_add(table, "%s", compare_figure((double)rank->allocated.total / divisor, text));
    tess__table_add(table, "%s", compare_figure(peak / divisor, text));
    tess__table_add(table, "%s", compare_figure(sent / divisor, text));
    tess__table_add(table, "%s", compare_figure((double)rank->sent_bytes_formula / divisor, text));
    if (first == 0)
        tess__table_add(table, "%016" PRIx64, run->final.hash);
    else
        tess__table_add(table, " ");
}

static void compare_print_kinds(const struct tess__comparison *comparison, const char *unit,
                                double divisor)
{
    struct tess__column column[COMPARE_KINDS + 7] = {{.title = "run", .left = true, .key = true},
                                                     {.title = "rank", .width = 5, .key = true}};
    struct tess__table table = {.column = column, .count = 2};
    int predicted = 0;
    for (int k = 0; k < COMPARE_KINDS; k++)
        column[table.count++] = (struct tess__column){
            .title = tess__memory_kind_brief((enum tess_memory_kind)k), .width = 5, .zero = true};
    static const char *const more[] = {"total", "RSS", "sent", "calc"};
    for (int m = 0; m < 4; m++)
        column[table.count++] = (struct tess__column){.title = more[m], .width = 5};
    column[table.count++] = (struct tess__column){.title = "hash", .left = true};
    printf("\nmemory by kind, peak RSS and bytes sent in a step, counted and calculated by "
           "formula, %s\n",
           unit);
    for (int i = 0; i < comparison->count; i++) {
        const struct tess__run *run = &comparison->run[i].trial.run;
        for (int32_t first = 0, last; first < run->rank_count; first = last + 1) {
            last = compare_group_end(run, first);
            compare_add_memory(&table, comparison, i, first, last, divisor);
        }
        predicted += tess__run_as_predicted(run);
    }
    tess__table_print(&table, stdout);
    const bool all = predicted == comparison->count;
    fputs(tess__screen_colour(stdout, all ? TESS__COLOUR_GOOD : TESS__COLOUR_BAD), stdout);
    if (all)
        printf("memory: predicted = allocated, for every kind on every rank of every run");
    else
        printf("memory: predicted and allocated DIFFER in %d of %d runs",
               comparison->count - predicted, comparison->count);
    printf("%s\n", tess__screen_colour(stdout, TESS__COLOUR_PLAIN));
}

void tess__comparison_print(const struct tess__comparison *comparison)
{
    FILE *former = tess__screen_begin();
    double most = 0, divisor = 1;
    for (int i = 0; i < comparison->count; i++) {
        struct compare_costs costs = compare_costs_of(&comparison->run[i].trial.run);
        most = fmax(most, fmax(costs.first, costs.other));
    }
    const char *unit = tess__text_unit(most, &divisor);
    compare_print_summary(comparison, unit, divisor);
    compare_print_kinds(comparison, unit, divisor);
    tess__comparison_print_steps(comparison);
    tess__comparison_print_axes(comparison);
    tess__comparison_print_bits(comparison);
    tess__screen_end(former);
}
