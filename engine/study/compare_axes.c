/* What runs sent along each axis of the mesh, where one has ranks along other axes than data. */
#include "study/compare.h"

#include "run/bubble.h"
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

static void axes_print_run(const struct tess__comparison *comparison, int i, double divisor)
{
    const struct tess__run *run = &comparison->run[i].trial.run;
    const int32_t *count = run->config->mesh.count;
    struct tess__bubble bubble;
    char text[64];
    snprintf(text, sizeof(text), "%d x %d x %d", count[TESS_AXIS_DATA], count[TESS_AXIS_TENSOR],
             count[TESS_AXIS_STAGE]);
    printf("%-*s %-21s", comparison->name_width, comparison->run[i].variant->name, text);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        const struct tess__run_rank *rank = axes_busiest(run, axis);
        if (count[axis] > 1)
            printf(" %9.3f %9.3f", rank->axis_sent_per_step[axis] / divisor,
                   (double)rank->axis_formula[axis] / divisor);
        else
            printf(" %9s %9s", "-", "-");
    }
    if (tess__bubble_of(run, &bubble) && !isnan(bubble.share))
        printf(" %5.1f%c %5.1f", 100 * bubble.share,
               bubble.in_virtual_time ? '*'
               : bubble.disturbed     ? '?'
                                      : ' ',
               100 * bubble.equal);
    else
        printf(" %6s %5s", "-", "-");
    putchar('\n');
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
    printf("\nbytes sent in a step along each axis of the mesh, counted and calculated by formula, "
           "%s; of the rank\nthat sends most there\n",
           unit);
    printf("%-*s %-21s %9s %9s %9s %9s %9s %9s %6s %5s\n", comparison->name_width, "run",
           "data x tensor x stage", "data", "calc", "tensor", "calc", "stage", "calc", "bubble",
           "calc");
    for (int i = 0; i < comparison->count; i++)
        axes_print_run(comparison, i, divisor);
    printf("counted: with sums of losses and norms, where they go over one axis alone; short sums "
           "are sent whole\n         to every rank of the axis\n");
    axes_explain_bubbles(comparison);
}
