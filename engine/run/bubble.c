/*
 * The bubble. Where every rank has a core, it is measured: what a rank waited in a step for other
 * stages, and in sums over all ranks, which begin when the last stage is ready; against that and
 * the passes themselves, without the update. Where ranks take turns on the cores, they wait for
 * cores as much as for each other: then the stages' processor times are run through the schedule in
 * virtual time.
 */
#include "run/bubble.h"

#include "text/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static double bubble_measured(const struct tess__run *run)
{
    double sum = 0;
    for (int32_t r = 0; r < run->rank_count; r++) {
        const struct tess__run_rank *rank = &run->rank[r];
        const double others_s =
            rank->axis_wait_s[TESS_AXIS_DATA] + rank->axis_wait_s[TESS_AXIS_TENSOR];
        const double idle_s = fmax(0, rank->step.comm_s - others_s);
        const double passes_s = rank->step.data_s + rank->step.forward_s + rank->step.backward_s +
                                rank->axis_wait_s[TESS_AXIS_TENSOR];
        sum += passes_s > 0 ? idle_s / (idle_s + passes_s) : NAN;
    }
    return sum / run->rank_count;
}

/* A micro-batch's seconds in every virtual stage, means over the ranks that run it: forward_s and
 * backward_s [stages x chunks]. False when a rank has not reported. */
static bool bubble_stage_times(const struct tess__run *run, double *forward_s, double *backward_s)
{
    const struct tess_mesh *mesh = &run->config->mesh;
    const int32_t stages = mesh->count[TESS_AXIS_STAGE];
    const int32_t chunks = tess_engine_chunk_count(run->planned);
    const double sharers = (double)run->rank_count / stages;
    for (int32_t r = 0; r < run->rank_count; r++)
        for (int32_t c = 0; c < chunks; c++) {
            const struct tess__run_chunk *chunk = &run->chunk[r * chunks + c];
            const int32_t v = c * stages + tess_mesh_at(mesh, r).at[TESS_AXIS_STAGE];
            if (!(chunk->forward_s > 0 && chunk->backward_s > 0))
                return false;
            forward_s[v] += chunk->forward_s / sharers;
            backward_s[v] += chunk->backward_s / sharers;
        }
    return true;
}

/* By the strategy's schedule; times NULL: equal ones. NaN where the strategy has no bubble. */
static double bubble_idle_share(const struct tess__run *run, const double *forward_s,
                                const double *backward_s)
{
    const struct tess_config *config = run->config;
    double share;
    if (config->axis[TESS_AXIS_STAGE]->idle_share(
            config->axis_options[TESS_AXIS_STAGE], config->mesh.count[TESS_AXIS_STAGE],
            (int32_t)config->run.accumulate, forward_s, backward_s, &share) != TESS_OK)
        return NAN;
    return share;
}

static double bubble_virtual(const struct tess__run *run)
{
    const int32_t count =
        run->config->mesh.count[TESS_AXIS_STAGE] * tess_engine_chunk_count(run->planned);
    double *time_s = calloc((size_t)(2 * count), sizeof(*time_s));
    const double share = time_s && bubble_stage_times(run, time_s, time_s + count)
                             ? bubble_idle_share(run, time_s, time_s + count)
                             : NAN;
    free(time_s);
    return share;
}

bool tess__bubble_of(const struct tess__run *run, struct tess__bubble *bubble_out)
{
    struct tess__bubble bubble = {.in_virtual_time = run->crowded,
                                  .processor_share = tess__run_processor_share(run)};
    if (run->config->mesh.count[TESS_AXIS_STAGE] == 1)
        return false;
    bubble.equal = bubble_idle_share(run, NULL, NULL);
    if (isnan(bubble.equal))
        return false;
    bubble.share = run->crowded ? bubble_virtual(run) : bubble_measured(run);
    bubble.disturbed = bubble.processor_share < TESS__RUN_UNDISTURBED;
    *bubble_out = bubble;
    return true;
}

void tess__bubble_print(const struct tess__run *run)
{
    struct tess__bubble bubble;
    if (!tess__bubble_of(run, &bubble) || isnan(bubble.share))
        return;
    if (bubble.in_virtual_time)
        printf("bubble: %.1f %% of the passes in virtual time, from each stage's processor time "
               "(ranks share cores,\n        so that their waiting times cannot be used)",
               100 * bubble.share);
    else
        printf("bubble: %.1f %% of the passes, measured", 100 * bubble.share);
    printf("; on equal stages (p-1)/(v m+p-1) = %.1f %%\n", 100 * bubble.equal);
    if (bubble.disturbed)
        printf(
            "        (other programs took a part of the processors: ranks had %.0f %% of the time "
            "they\n        could use, and the waiting for slowed ranks is included)\n",
            100 * bubble.processor_share);
}

json_t *tess__bubble_record(const struct tess__run *run)
{
    struct tess__bubble bubble;
    if (!tess__bubble_of(run, &bubble))
        return json_null();
    return json_pack("{s:o, s:o, s:o}", "equal_stages", tess__json_number(bubble.equal), "measured",
                     tess__json_number(bubble.in_virtual_time ? NAN : bubble.share), "virtual_time",
                     tess__json_number(bubble.in_virtual_time ? bubble.share : NAN));
}
