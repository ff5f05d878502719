/* What runs sent along each axis of the mesh, where one has ranks along other axes than data. */
#include "study/compare.h"

#include "run/bubble.h"
#include "text/table.h"
#include "text/text.h"

#include <math.h>
#include <stdio.h>

/* The rank that sends most along an axis. */
static const struct tess__run_rank *axes_busiest(const struct tess__run *run, int axis)
{
    const struct tess__run_rank *most = &run->rank[0];
    for (int32_t r = 1; r < run->rank_count; r++)
        if (run->rank[r].axis_sent_per_step[axis] > most->axis_sent_per_step[axis])
            most = &run->rank[r];
    return most;
}

static void axes_add_run(struct tess__table *table, const struct tess__comparison *comparison,
                         int i, double divisor)
{
    const struct tess__run *run = &comparison->run[i].trial.run;
    const int32_t *count = run->config->mesh.count;
    struct tess__bubble bubble;
    tess__table_add(table, "%s", comparison->run[i].variant->name);
    tess__table_add(table, "%d x %d x %d", count[TESS_AXIS_DATA], count[TESS_AXIS_TENSOR],
                    count[TESS_AXIS_STAGE]);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        const struct tess__run_rank *rank = axes_busiest(run, axis);
        if (count[axis] > 1) {
            tess__table_add(table, "%.3f", rank->axis_sent_per_step[axis] / divisor);
            tess__table_add(table, "%.3f", (double)rank->axis_formula[axis] / divisor);
        } else {
            tess__table_add(table, "-");
            tess__table_add(table, "-");
        }
    }
    if (tess__bubble_of(run, &bubble) && !isnan(bubble.share)) {
        tess__table_add(table, "%.1f%c", 100 * bubble.share,
                        bubble.in_virtual_time ? '*'
                        : bubble.disturbed     ? '?'
                                               : ' ');
        tess__table_add(table, "%.1f", 100 * bubble.equal);
    } else {
        tess__table_add(table, "-");
        tess__table_add(table, "-");
    }
}

/* What the columns of bubbles mean, where a run has stages. */
static void axes_explain_bubbles(const struct tess__comparison *comparison)
{
    bool stages = false, crowded = false, disturbed = false;
    for (int i = 0; i < comparison->count; i++) {
        struct tess__bubble bubble;
        if (!tess__bubble_of(&comparison->run[i].trial.run, &bubble))
            continue;
        stages = true;
        crowded = crowded || bubble.in_virtual_time;
        disturbed = disturbed || bubble.disturbed;
    }
    if (stages)
        printf(
            "bubble: %% of the passes in which ranks have nothing to do; calc: on equal stages\n");
    if (crowded)
        printf(
            "* in virtual time, from the processor time of each stage: ranks share cores and wait "
            "for those, too\n");
    if (disturbed)
        printf("? other programs took a part of the processors, and ranks waited for those, too\n");
}

void tess__comparison_print_axes(const struct tess__comparison *comparison)
{
    static const struct tess__column column[] = {
        {.title = "run", .left = true, .key = true},
        {.title = "data x tensor x stage", .brief = "d x t x s", .left = true},
        {.title = "data", .width = 9},
        {.title = "calc", .width = 9},
        {.title = "tensor", .width = 9},
        {.title = "calc", .width = 9},
        {.title = "stage", .width = 9},
        {.title = "calc", .width = 9},
        {.title = "bubble", .width = 6},
        {.title = "calc", .width = 5},
    };
    struct tess__table table = {.column = column, .count = sizeof(column) / sizeof(column[0])};
    double most = 0, divisor = 1;
    bool any = false;
    for (int i = 0; i < comparison->count; i++) {
        const struct tess__run *run = &comparison->run[i].trial.run;
        any = any || tess__run_has_mesh(run);
        for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
            most = fmax(most, axes_busiest(run, axis)->axis_sent_per_step[axis]);
    }
    if (!any)
        return;
    const char *unit = tess__text_unit(most, &divisor);
    printf("\nbytes sent in a step along each axis of the mesh, counted and by formula, %s;\n"
           "of the rank that sends most there\n",
           unit);
    for (int i = 0; i < comparison->count; i++)
        axes_add_run(&table, comparison, i, divisor);
    tess__table_print(&table, stdout);
    printf("counted: with sums of losses and norms, where they go over one axis alone;\n"
           "         short sums are sent whole to every rank of the axis\n");
    axes_explain_bubbles(comparison);
}
