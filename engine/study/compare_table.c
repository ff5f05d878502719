/* The tables of a comparison: what each run costs against the first one, and memory by kind. */
#include "study/compare.h"

#include "text/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the first three columns of the summary take beside the name; a goal is wrapped below them.
 */
#define PROCESSES_WIDTH 13
#define SPLIT_WIDTH     22

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

/* "4", "1, 4 threads", or with the ranks along each axis "8 = 2x2x2". */
static void compare_print_processes(const struct tess__run *run)
{
    const int32_t *count = run->config->mesh.count;
    char text[64];
    if (run->rank_count > 1 && run->config->device.rank_mode == TESS_RANKS_THREADS)
        snprintf(text, sizeof(text), "1, %d threads", run->rank_count);
    else if (tess__run_has_mesh(run))
        snprintf(text, sizeof(text), "%d = %dx%dx%d", run->rank_count, count[TESS_AXIS_DATA],
                 count[TESS_AXIS_TENSOR], count[TESS_AXIS_STAGE]);
    else
        snprintf(text, sizeof(text), "%d", run->rank_count);
    printf(" %-*s", PROCESSES_WIDTH, text);
}

/* Ranks of the data axis x micro-batches x rows, and who loads them. */
static void compare_print_split(const struct tess__run *run)
{
    const struct tess_plan *plan = tess_engine_plan_of(run->planned);
    const int32_t ranks = run->config->mesh.count[TESS_AXIS_DATA];
    int64_t rows = run->config->run.batch_size / (ranks * plan->accumulate);
    char text[96];
    snprintf(text, sizeof(text), "%d x %d x %" PRId64 "%s", ranks, plan->accumulate, rows,
             ranks == 1          ? ""
             : plan->holds_input ? ", rank 0"
                                 : ", each");
    printf(" %-*s", SPLIT_WIDTH, text);
}

/* The line below a run: as much of its goal as fits to the left, and the factors. */
static void compare_print_factors(const struct compare_costs *costs,
                                  const struct compare_costs *first, const char *goal, int length,
                                  int width)
{
    char text[5][TESS__TEXT_BYTES];
    printf("%-*.*s", costs ? width : 0, length, goal);
    if (costs)
        printf(" %7s %7s %5s %7s %7s %5s %9s", compare_factor(costs->first, first->first, text[0]),
               compare_factor(costs->other, costs->other > 0 ? first->other : 0, text[1]), "",
               compare_factor(costs->activation, first->activation, text[2]),
               compare_factor(costs->sent, first->sent, text[3]), "",
               compare_factor(costs->samples_per_s, first->samples_per_s, text[4]));
    putchar('\n');
}

/* Where to cut `text` so that a line has at most `width` columns: at a blank if there is one. */
static int compare_wrap(const char *text, int width)
{
    int cut = (int)strlen(text);
    if (cut <= width)
        return cut;
    for (cut = width; cut > 0 && text[cut] != ' ';)
        cut--;
    return cut > 0 ? cut : width;
}

static void compare_print_summary_row(const struct tess__comparison *comparison, int i,
                                      double divisor)
{
    const struct tess__run *run = &comparison->run[i].trial.run;
    const char *goal = comparison->run[i].variant->goal;
    struct compare_costs first = compare_costs_of(&comparison->run[0].trial.run);
    struct compare_costs costs = compare_costs_of(run);
    int width = comparison->name_width + 1 + PROCESSES_WIDTH + 1 + SPLIT_WIDTH;
    char text[5][TESS__TEXT_BYTES], ratio[TESS__TEXT_BYTES] = "";
    bool factors = i > 0;
    printf("%-*s", comparison->name_width, comparison->run[i].variant->name);
    compare_print_processes(run);
    compare_print_split(run);
    if (costs.other > 0)
        compare_figure(costs.first / costs.other, ratio);
    printf(" %7s %7s %5s %7s %7s %4.0f%% %9s %9.6f\n",
           compare_figure(costs.first / divisor, text[0]),
           costs.other > 0 ? compare_figure(costs.other / divisor, text[1]) : "", ratio,
           compare_figure(costs.activation / divisor, text[2]),
           compare_figure(costs.sent / divisor, text[3]), 100 * costs.comm_share,
           tess__words_rate(&comparison->words, costs.samples_per_s, text[4]), run->final.loss);
    while (factors || *goal) {
        int cut = compare_wrap(goal, width - 2);
        printf("  ");
        compare_print_factors(factors ? &costs : NULL, &first, goal, cut, width - 2);
        goal += cut;
        goal += strspn(goal, " ");
        factors = false;
    }
}

static void compare_print_summary(const struct tess__comparison *comparison, const char *unit,
                                  double divisor)
{
    bool mesh = false;
    printf("\n%" PRId64 " steps; memory and bytes sent in a step are per rank, in %s; x: factor of "
           "the first run\n",
           comparison->steps, unit);
    printf("%-*s %-*s %-*s %7s %7s %5s %7s %7s %5s %9s %9s\n", comparison->name_width, "run",
           PROCESSES_WIDTH, "processes", SPLIT_WIDTH, "split of the batch", "rank 0", "others",
           "ratio", "activ", "sent", "wait", comparison->words.rate, "loss");
    for (int i = 0; i < comparison->count; i++)
        compare_print_summary_row(comparison, i, divisor);
    for (int i = 0; i < comparison->count; i++)
        mesh = mesh || tess__run_has_mesh(&comparison->run[i].trial.run);
    if (mesh)
        printf("processes: N = ranks along the data, tensor and stage axis; split: ranks of the "
               "data axis\n");
    printf("split: ranks x micro-batches x %s, loaded by each rank or all by rank 0. others: "
           "the fullest other rank;\n"
           "ratio: rank 0 to it, 1 is balanced. activ, sent: the rank with most. wait: share of "
           "time spent waiting for ranks;\n"
           "loss: of the last step\n",
           comparison->words.rows);
}

/* ---- memory by kind -------------------------------------------------------------------------- */

/* A comparison saves nothing, so the kinds from staging on are empty. */
#define COMPARE_KINDS TESS_MEMORY_STAGING
static const char *const compare_kind[] = {"param",  "master", "grad", "optim", "activ",
                                           "gather", "bucket", "work", "input"};
_Static_assert(sizeof(compare_kind) / sizeof(*compare_kind) == COMPARE_KINDS,
               "each kind of memory has a column");

static int compare_kind_width(int kind)
{
    return strlen(compare_kind[kind]) > 5 ? (int)strlen(compare_kind[kind]) : 5;
}

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

static void compare_print_row(const struct tess__comparison *comparison, int i, int32_t first,
                              int32_t last, double divisor)
{
    const struct tess__run *run = &comparison->run[i].trial.run;
    const struct tess__run_rank *rank = &run->rank[first];
    double sent = 0, peak = 0;
    char ranks[32], text[TESS__TEXT_BYTES];
    for (int32_t r = first; r <= last; r++) {
        sent = fmax(sent, run->rank[r].sent_bytes_per_step);
        peak = fmax(peak, (double)run->rank[r].peak_rss);
    }
    if (first == last)
        snprintf(ranks, sizeof(ranks), "%d", first);
    else
        snprintf(ranks, sizeof(ranks), "%d-%d", first, last);
    printf("%-*s %5s", comparison->name_width, first == 0 ? comparison->run[i].variant->name : "",
           ranks);
    for (int k = 0; k < COMPARE_KINDS; k++)
        printf(" %*s", compare_kind_width(k),
               compare_figure((double)rank->allocated.bytes[k] / divisor, text));
    printf(" %5s", compare_figure((double)rank->allocated.total / divisor, text));
    printf(" %5s", compare_figure(peak / divisor, text));
    printf(" %5s", compare_figure(sent / divisor, text));
    printf(" %5s", compare_figure((double)rank->sent_bytes_formula / divisor, text));
    if (first == 0)
        printf(" %016" PRIx64, run->final.hash);
    putchar('\n');
}

static void compare_print_kinds(const struct tess__comparison *comparison, const char *unit,
                                double divisor)
{
    int predicted = 0;
    printf("\nmemory by kind, peak RSS and bytes sent in a step, counted and calculated by "
           "formula, %s\n",
           unit);
    printf("%-*s %5s", comparison->name_width, "run", "rank");
    for (int k = 0; k < COMPARE_KINDS; k++)
        printf(" %*s", compare_kind_width(k), compare_kind[k]);
    printf(" %5s %5s %5s %5s %s\n", "total", "RSS", "sent", "calc", "hash");
    for (int i = 0; i < comparison->count; i++) {
        const struct tess__run *run = &comparison->run[i].trial.run;
        for (int32_t first = 0, last; first < run->rank_count; first = last + 1) {
            last = compare_group_end(run, first);
            compare_print_row(comparison, i, first, last, divisor);
        }
        predicted += tess__run_as_predicted(run);
    }
    if (predicted == comparison->count)
        printf("memory: predicted = allocated, for every kind on every rank of every run\n");
    else
        printf("memory: predicted and allocated DIFFER in %d of %d runs\n",
               comparison->count - predicted, comparison->count);
}

void tess__comparison_print(const struct tess__comparison *comparison)
{
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
}
