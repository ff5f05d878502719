/* How measured rates are printed: two matrices, and a table by kind of path beside the model. */
#include "cli/topo_measure.h"

#include "tessera/check.h"
#include "text/table.h"
#include "text/text.h"
#include "topology/machine/rates.h"

#include <stdlib.h>
#include <string.h>

int tess__measure_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#define MEASURE_MATRIX_MAX 16  /* ranks */
#define MEASURE_SHARED     0.7 /* left of a rate: below it pairs are reported to share a link */

static const struct tess__measured_pair *measure_pair(const struct tess__measure *measure,
                                                      int32_t a, int32_t b)
{
    return &measure->pair[a * measure->rank_count + b];
}

static double measure_left(const struct tess__measured_pair *pair)
{
    return pair->alone_gbs > 0 ? pair->together_gbs / pair->alone_gbs : 0;
}

static void measure_matrix(const struct tess__measure *measure, bool together, FILE *out)
{
    char number[MEASURE_MATRIX_MAX][12];
    struct tess__column column[MEASURE_MATRIX_MAX + 1] = {{.title = "", .width = 5, .key = true}};
    struct tess__table table = {.column = column, .count = measure->rank_count + 1};
    _Static_assert(MEASURE_MATRIX_MAX < TESS__TABLE_COLUMNS, "a column for each rank");
    for (int32_t a = 0; a < measure->rank_count; a++) {
        snprintf(number[a], sizeof(number[a]), "%d", (int)a);
        column[1 + a] = (struct tess__column){.title = number[a], .width = 8};
        tess__table_add(&table, "%s", number[a]);
        for (int32_t b = 0; b < measure->rank_count; b++) {
            const struct tess__measured_pair *pair = measure_pair(measure, a, b);
            if (a == b)
                tess__table_add(&table, "X");
            else if (together)
                tess__table_add(&table, "%.0f %%", 100 * measure_left(pair));
            else
                tess__table_add(&table, "%.3g", pair->alone_gbs);
        }
    }
    tess__table_print(&table, out);
}

/* Pairs of one kind of path and one rate of the model; of all pairs where there is no model. */
struct measure_class {
    int kind;
    double model_gbs;
};

static int measure_compare_classes(const void *a, const void *b)
{
    const struct measure_class *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind - y->kind;
    return (y->model_gbs > x->model_gbs) - (y->model_gbs < x->model_gbs);
}

static struct measure_class measure_class_of(const struct tess__topo *topo, int32_t a, int32_t b)
{
    if (!topo)
        return (struct measure_class){0};
    const struct tess_route *route = &topo->routes.route[a * topo->routes.device_count + b];
    return (struct measure_class){(int)route->kind, route->gbs};
}

/* A class's row; scratch [pairs]. */
static void measure_line(const struct tess__measure *measure, const struct tess__topo *topo,
                         struct measure_class class, double *scratch, struct tess__table *table)
{
    int32_t count = measure->rank_count, pairs = 0;
    double latency = 0, left = 0;
    char model[TESS__RATE_TEXT] = "-";
    for (int32_t a = 0; a < count; a++) {
        for (int32_t b = a + 1; b < count; b++) {
            struct measure_class own = measure_class_of(topo, a, b);
            if (measure_compare_classes(&own, &class) != 0)
                continue;
            const struct tess__measured_pair *pair = measure_pair(measure, a, b);
            scratch[pairs++] = pair->alone_gbs;
            latency += pair->latency_us;
            left += measure_left(pair);
        }
    }
    qsort(scratch, (size_t)pairs, sizeof(*scratch), tess__measure_compare);
    /* Inside a processor the model has no rate. */
    if (topo && class.model_gbs < TESS_GBS_LOCAL)
        tess__rate_number(class.model_gbs, 1, model);
    tess__table_add(table, "  %s", topo ? tess_path_word((enum tess_path_kind) class.kind) : "all");
    tess__table_add(table, "%d", (int)pairs);
    tess__table_add(table, "%s", model);
    tess__table_add(table, "%.3g", scratch[0]);
    tess__table_add(table, "%.3g", scratch[pairs / 2]);
    tess__table_add(table, "%.3g", scratch[pairs - 1]);
    tess__table_add(table, "%.0f %%", 100 * left / pairs);
    tess__table_add(table, "%.1f", latency / pairs);
}

static enum tess_status measure_table(const struct tess__measure *measure,
                                      const struct tess__topo *topo, FILE *out)
{
    static const struct tess__column column[] = {
        {.title = "  path", .width = 7, .left = true, .key = true},
        {.title = "pairs", .width = 6},
        {.title = "model GB/s", .width = 11},
        {.title = "least", .width = 10},
        {.title = "median", .width = 10},
        {.title = "most", .width = 10},
        {.title = "at once", .width = 11},
        {.title = "latency us", .width = 12},
    };
    struct tess__table table = {.column = column, .count = sizeof(column) / sizeof(column[0])};
    int32_t count = measure->rank_count, classes = 0;
    size_t pairs = (size_t)count * (size_t)count;
    double *scratch = malloc(pairs * sizeof(*scratch));
    struct measure_class *class = malloc(pairs * sizeof(*class));
    if (!scratch || !class) {
        free(scratch);
        free(class);
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the table of rates");
    }
    for (int32_t a = 0; a < count; a++)
        for (int32_t b = a + 1; b < count; b++)
            class[classes++] = measure_class_of(topo, a, b);
    qsort(class, (size_t)classes, sizeof(*class), measure_compare_classes);
    for (int32_t i = 0; i < classes; i++)
        if (i == 0 || measure_compare_classes(&class[i], &class[i - 1]) != 0)
            measure_line(measure, topo, class[i], scratch, &table);
    fputc('\n', out);
    tess__table_print(&table, out);
    free(scratch);
    free(class);
    return TESS_OK;
}

enum tess_status tess__measure_print(const struct tess__measure *measure,
                                     const struct tess__topo *topo, FILE *to)
{
    FILE *out = tess__screen_open(to);
    int32_t count = measure->rank_count, shared = 0;
    char bytes[TESS__TEXT_BYTES];
    for (int32_t a = 0; a < count; a++)
        for (int32_t b = a + 1; b < count; b++)
            shared += measure_left(measure_pair(measure, a, b)) < MEASURE_SHARED;
    fprintf(
        out,
        "\nmeasured with --comm %s: two ranks send to each other up to %s of the host's memory, "
        "GB/s in each\ndirection, median of %d\n",
        measure->how.kind->name, tess__text_bytes(TESS__MEASURE_BYTES, bytes),
        TESS__MEASURE_REPEATS);
    if (count <= MEASURE_MATRIX_MAX) {
        fprintf(out, "\neach pair alone\n");
        measure_matrix(measure, false, out);
        if (count > 3) {
            fprintf(out, "\nwhat is left of that while all ranks send, in pairs\n");
            measure_matrix(measure, true, out);
        }
    }
    const enum tess_status status = measure_table(measure, topo, out);
    if (status == TESS_OK && count > 3 && shared > 0)
        fprintf(out,
                "  %d pairs lose more than %.0f %% when all send: they share links, or cores\n",
                (int)shared, 100 * (1 - MEASURE_SHARED));
    tess__screen_close(out, to);
    TESS_TRY(status);
    if (fflush(to) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot write to standard output");
    return TESS_OK;
}
