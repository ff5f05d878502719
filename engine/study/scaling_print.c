/* The tables of tessera scaling, and the same figures as JSON. */
#include "run/record.h"
#include "study/scaling.h"
#include "tessera/check.h"
#include "text/json.h"
#include "text/table.h"
#include "text/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Of tables with a column for each link, where no terminal limits them. */
#define PRINT_COLUMNS 120

/* Three digits that matter. */
static const char *print_figure(double value, char text[TESS__TEXT_BYTES])
{
    snprintf(text, TESS__TEXT_BYTES, "%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
    return text;
}

/* "820 us", "14.2 ms", "1.63 s". */
static const char *print_time(double seconds, char text[TESS__TEXT_BYTES])
{
    static const struct {
        double factor;
        const char *name;
    } unit[] = {{1e-6, "us"}, {1e-3, "ms"}, {1, "s"}};
    char figure[TESS__TEXT_BYTES];
    int u = seconds < 0.9995e-3 ? 0 : seconds < 0.9995 ? 1 : 2;

    print_figure(seconds / unit[u].factor, figure);
    snprintf(text, TESS__TEXT_BYTES, "%.12s %s", figure, unit[u].name);
    return text;
}

/* ---- measured -------------------------------------------------------------------------------- */

/* How the ranks lie on the mesh, where there are other axes than the data axis. */
static void print_meshes(const struct tess__scaling *scaling)
{
    bool any = false;
    for (int i = 0; i < scaling->measured_count; i++)
        any = any || scaling->measured[i].mesh[0] != scaling->measured[i].ranks;
    for (int i = 0; any && i < scaling->measured_count; i++) {
        const struct tess__scaling_measured *point = &scaling->measured[i];
        printf("%s %" PRId64 " = %dx%dx%d",
               i == 0 ? "mesh: ranks along the data, tensor and stage axis:" : ",", point->ranks,
               point->mesh[0], point->mesh[1], point->mesh[2]);
    }
    if (any)
        putchar('\n');
}

static void print_add_point(struct tess__table *table, const struct tess__words *words,
                            const struct tess__scaling_measured *point)
{
    const struct tess_times *step = &point->step;
    const double part[] = {step->total_s, step->data_s, step->forward_s, step->backward_s,
                           step->optim_s, step->comm_s, step->hidden_s};
    char text[TESS__TEXT_BYTES];
    tess__table_add(table, "%" PRId64 "%c", point->ranks, point->shared ? '*' : ' ');
    for (size_t p = 0; p < sizeof(part) / sizeof(part[0]); p++)
        tess__table_add(table, "%s", print_figure(1e3 * part[p], text));
    tess__table_add(table, "%s", tess__words_rate(words, point->samples_per_s, text));
    tess__table_add(table, "%s", print_figure(point->speedup, text));
    tess__table_add(table, "%.0f %%", 100 * point->efficiency);
}

static void print_measured(const struct tess__scaling *scaling)
{
    char machine[128];
    bool shared = false, equal = true;
    tess__text_machine(machine);
    printf("\n%s under %s on %s, %d core%s\n", scaling->model, scaling->strategy, machine,
           scaling->cores, scaling->cores == 1 ? "" : "s");
    printf("%s scaling: %" PRId64 " %s per step%s; %" PRId64 " steps, median of %" PRId64
           "; times in ms, means over the ranks\n",
           scaling->asked.weak ? "weak" : "strong", scaling->batch_size, scaling->words.rows,
           scaling->asked.weak ? " and rank" : "", scaling->asked.steps, scaling->asked.repeats);
    const struct tess__column column[] = {
        {.title = "ranks ", .width = 6, .key = true},
        {.title = "step", .width = 8},
        {.title = "data", .width = 8},
        {.title = "forward", .width = 8},
        {.title = "backward", .width = 8},
        {.title = "update", .width = 8},
        {.title = "exposed", .width = 8},
        {.title = "hidden", .width = 8},
        {.title = scaling->words.rate, .brief = scaling->words.rate_short, .width = 9},
        {.title = "speed-up", .width = 9},
        {.title = "efficiency", .brief = "eff.", .width = 10},
    };
    struct tess__table table = {.column = column, .count = sizeof(column) / sizeof(column[0])};
    for (int i = 0; i < scaling->measured_count; i++) {
        const struct tess__scaling_measured *point = &scaling->measured[i];
        print_add_point(&table, &scaling->words, point);
        shared = shared || point->shared;
        equal = equal && point->hash == scaling->measured[0].hash;
    }
    tess__table_print(&table, stdout);
    print_meshes(scaling);
    printf("data: waiting for %s. exposed: waiting for other ranks. hidden: communication "
           "behind the parts before it\n",
           scaling->words.rows);
    if (shared)
        printf("* more ranks than cores: they take turns, so that computing does not get faster; "
               "left out of the fit, and\n"
               "  not to be compared with the prediction, whose ranks have cores of their own\n");
    if (!scaling->asked.weak && scaling->measured_count > 1 && equal)
        printf("hashes: all %d equal: the same bits on every number of ranks\n",
               scaling->measured_count);
}

static void print_amdahl(const struct tess__scaling *scaling)
{
    int64_t ranks[TESS__SCALING_POINTS_MAX];
    int count = tess__scaling_ranks(scaling->asked.to, ranks);
    double p = scaling->amdahl_p;
    bool holds = scaling->fitted && p >= 0 && p <= 1;
    /* The lab's shares for fast and for slow links, beside the fitted one. */
    const double share[] = {0.99, 0.9, p};
    const int shares = holds ? 3 : 2;
    char text[TESS__TEXT_BYTES];
    printf("\nAmdahl: T(N)/T(1) = (1-p) + p/N, speed-up 1/((1-p) + p/N)\n");
    if (scaling->asked.weak)
        printf("not fitted: the law divides a fixed batch, and in weak scaling the batch grows\n");
    else if (!scaling->fitted)
        printf("not fitted: no measurement on several ranks that have cores of their own\n");
    else if (holds)
        printf(
            "fitted by least squares: p = %.4f, at most %s times faster on any number of ranks\n",
            p, p < 1 ? print_figure(1 / (1 - p), text) : "N");
    else
        printf("fitted by least squares: p = %.4f, outside 0..1: the law does not hold here, %s\n",
               p,
               p < 0 ? "more ranks are slower than one"
                     : "more ranks gain more than their number (a smaller share fits the caches, "
                       "or one rank was slowed down)");
    printf("%6s", "ranks");
    for (int k = 0; k < shares; k++)
        printf(k < 2 ? "   p = %.2f" : " p = %.4f", share[k]);
    printf("   speed-up\n");
    for (int i = 0; i < count; i++) {
        printf("%6" PRId64, ranks[i]);
        for (int k = 0; k < shares; k++)
            printf(" %10s", print_figure(tess_amdahl_speedup(share[k], ranks[i]), text));
        putchar('\n');
    }
}

/* ---- predicted ------------------------------------------------------------------------------- */

/* Columns for what is in the first one, and for every link. */
static struct tess__table print_table(const struct tess__scaling *scaling, const char *first,
                                      struct tess__column column[TESS__TABLE_COLUMNS])
{
    const int links = scaling->link_count < TESS__TABLE_COLUMNS - 1 ? scaling->link_count
                                                                    : TESS__TABLE_COLUMNS - 1;
    column[0] = (struct tess__column){.title = first, .width = 6, .key = true};
    for (int l = 0; l < links; l++)
        column[1 + l] = (struct tess__column){.title = scaling->link[l].name, .width = 16};
    return (struct tess__table){.column = column, .count = 1 + links};
}

/* Without COLUMNS in the environment, and where there is no terminal. */
static int print_columns(void)
{
    const int columns = tess__screen_columns(stdout);
    return columns > 0 ? columns : PRINT_COLUMNS;
}

/* A strategy's curves over all links. */
static void print_curves(const struct tess__scaling *scaling, int strategy)
{
    const struct tess__scaling_curve *curve = &scaling->curve[strategy * scaling->link_count];
    struct tess__column column[TESS__TABLE_COLUMNS];
    struct tess__table table = print_table(scaling, curve->strategy, column);
    for (int i = 0; i < curve->count; i++) {
        tess__table_add(&table, "%" PRId64, curve->point[i].ranks);
        for (int l = 0; l + 1 < table.count; l++) {
            const struct tess__scaling_predicted *point = &curve[l].point[i];
            char text[TESS__TEXT_BYTES];
            tess__table_add(&table, "%s %3.0f %%", print_figure(point->speedup, text),
                            100 * point->efficiency);
        }
    }
    tess__table_print_in(&table, print_columns(), stdout);
}

static void print_predicted(const struct tess__scaling *scaling)
{
    int strategies = scaling->curve_count / scaling->link_count;
    printf("\npredicted speed-up and efficiency, %s scaling, ranks that compute like this one\n",
           scaling->asked.weak ? "weak" : "strong");
    for (int s = 0; s < strategies; s++)
        print_curves(scaling, s);
    if (scaling->rank_limit < scaling->asked.to)
        printf("up to %" PRId64 " ranks: beyond, a rank has less than one %s of the batch; a "
               "larger --batch-size or --weak extends the table\n",
               scaling->rank_limit, scaling->words.row);
}

static void print_ring(const struct tess__scaling *scaling)
{
    printf("\nring all-reduce on %d ranks: 2(N-1) latency + 2(N-1)/N bytes/bandwidth\n",
           TESS__SCALING_RING_RANKS);
    struct tess__column column[TESS__TABLE_COLUMNS];
    struct tess__table table = print_table(scaling, "bytes", column);
    for (int i = 0; i < TESS__SCALING_SIZES_MAX; i++) {
        const double bytes = tess__scaling_ring_bytes[i];
        char text[TESS__TEXT_BYTES];
        tess__table_add(&table, "%3.0f %s", bytes < 1e9 ? bytes / 1e6 : bytes / 1e9,
                        bytes < 1e9 ? "MB" : "GB");
        for (int l = 0; l + 1 < table.count; l++)
            tess__table_add(&table, "%s",
                            print_time(tess_link_all_reduce_s(&scaling->link[l],
                                                              TESS__SCALING_RING_RANKS, bytes),
                                       text));
    }
    tess__table_print_in(&table, print_columns(), stdout);
}

void tess__scaling_print(const struct tess__scaling *scaling)
{
    FILE *former = tess__screen_begin();
    print_measured(scaling);
    print_amdahl(scaling);
    print_predicted(scaling);
    print_ring(scaling);
    tess__screen_end(former);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *json_of_measured(const struct tess__scaling_measured *point)
{
    const struct tess_times *step = &point->step;
    return json_pack(
        "{s:I, s:I, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "ranks",
        (json_int_t)point->ranks, "batch_size", (json_int_t)point->batch_size, "shared_cores",
        point->shared, "step_s", tess__json_number(step->total_s), "compute_s",
        tess__json_number(step->forward_s + step->backward_s + step->optim_s), "forward_s",
        tess__json_number(step->forward_s), "backward_s", tess__json_number(step->backward_s),
        "optim_s", tess__json_number(step->optim_s), "exposed_s", tess__json_number(step->comm_s),
        "hidden_s", tess__json_number(step->hidden_s), "data_s", tess__json_number(step->data_s),
        "samples_per_s", tess__json_number(point->samples_per_s), "speedup",
        tess__json_number(point->speedup), "efficiency", tess__json_number(point->efficiency),
        "hash", tess__json_hash(point->hash));
}

static json_t *json_of_curve(const struct tess__scaling_curve *curve)
{
    json_t *points = json_array();
    for (int i = 0; points && i < curve->count; i++) {
        const struct tess__scaling_predicted *point = &curve->point[i];
        json_array_append_new(points, json_pack("{s:I, s:o, s:o, s:o, s:o}", "ranks",
                                                (json_int_t)point->ranks, "step_s",
                                                tess__json_number(point->step_s), "exposed_s",
                                                tess__json_number(point->exposed_s), "speedup",
                                                tess__json_number(point->speedup), "efficiency",
                                                tess__json_number(point->efficiency)));
    }
    return json_pack("{s:s, s:s, s:o}", "strategy", curve->strategy, "link", curve->link->name,
                     "points", points);
}

static json_t *json_of_ring(const struct tess_link *link)
{
    json_t *points = json_array();
    for (int i = 0; points && i < TESS__SCALING_SIZES_MAX; i++) {
        double bytes = tess__scaling_ring_bytes[i];
        json_array_append_new(points, json_pack("{s:I, s:o}", "bytes", (json_int_t)bytes, "time_s",
                                                tess__json_number(tess_link_all_reduce_s(
                                                    link, TESS__SCALING_RING_RANKS, bytes))));
    }
    return json_pack("{s:s, s:i, s:o}", "link", link->name, "ranks", TESS__SCALING_RING_RANKS,
                     "points", points);
}

enum tess_status tess__scaling_write(const struct tess__scaling *scaling)
{
    char machine[128];
    if (!scaling->asked.json[0])
        return TESS_OK;
    tess__text_machine(machine);
    json_t *measured = json_array();
    json_t *links = json_array();
    json_t *predicted = json_array();
    json_t *ring = json_array();
    for (int i = 0; i < scaling->measured_count; i++)
        json_array_append_new(measured, json_of_measured(&scaling->measured[i]));
    for (int i = 0; i < scaling->curve_count; i++)
        json_array_append_new(predicted, json_of_curve(&scaling->curve[i]));
    for (int l = 0; l < scaling->link_count; l++) {
        const struct tess_link *link = &scaling->link[l];
        json_array_append_new(links, json_pack("{s:s, s:o, s:o}", "name", link->name, "latency_s",
                                               tess__json_number(link->latency_s), "bandwidth",
                                               tess__json_number(link->bandwidth)));
        json_array_append_new(ring, json_of_ring(link));
    }
    json_t *root = json_pack(
        "{s:{s:s, s:s, s:I, s:I, s:s, s:i, s:s, s:o, s:o, s:o, s:o, s:o}}", "scaling", "strategy",
        scaling->strategy, "model", scaling->model, "batch_size", (json_int_t)scaling->batch_size,
        "sample_tokens", tess__record_sample_tokens(scaling->dataset), "machine", machine, "cores",
        scaling->cores, "mode", scaling->asked.weak ? "weak" : "strong", "measured", measured,
        "amdahl_p", scaling->fitted ? tess__json_number(scaling->amdahl_p) : json_null(), "links",
        links, "predicted", predicted, "ring", ring);
    return tess__record_write(scaling->asked.json, root);
}
