/* Stages that take turns on the cores of one host; see virtual.h. */
#include "predict/virtual.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A stage begins or ends to compute. Times are those of a step, modulo its length: in the long run
 * all stages take the same time for it. */
struct crowd_edge {
    double at_s;
    int32_t stage;
    int32_t way; /* +1, -1 */
};

struct crowd {
    struct crowd_edge *edge;
    size_t count;
    double length_s;
};

static int crowd_order(const void *a, const void *b)
{
    const struct crowd_edge *x = a, *y = b;
    return (x->at_s > y->at_s) - (x->at_s < y->at_s);
}

/* It computes in [begin_s, end_s), which may go beyond the step's end. */
static void crowd_add(struct crowd *crowd, int32_t stage, double begin_s, double end_s)
{
    if (end_s <= begin_s)
        return;
    const double from_s = fmod(begin_s, crowd->length_s), to_s = from_s + (end_s - begin_s);
    const double last_s = fmin(to_s, crowd->length_s);
    crowd->edge[crowd->count++] = (struct crowd_edge){from_s, stage, 1};
    crowd->edge[crowd->count++] = (struct crowd_edge){last_s, stage, -1};
    if (to_s > crowd->length_s)
        crowd_add(crowd, stage, crowd->length_s, to_s);
}

static void crowd_stage(struct crowd *crowd, const struct virtual_rank *rank, double begin_s,
                        double step_s)
{
    double from_s = 0;
    for (size_t i = 0; i < rank->idle.count; i++) {
        crowd_add(crowd, rank->stage, begin_s + from_s, rank->idle.span[i].begin_s);
        from_s = fmax(from_s, rank->idle.span[i].end_s - begin_s);
    }
    crowd_add(crowd, rank->stage, begin_s + from_s, begin_s + step_s);
}

/*
 * What ranks that cannot be dealt out evenly take by even turns, three of them on two cores: the
 * system gives one a core late. The calibrated pipeline of 2 C stages and micro-batches on C cores
 * has 4 C - 1 slots in each direction, with 1, 2, .. 2 C .. 2, 1 stages; by even turns these take
 * 5 C - 1 times what one takes, of it 3 C - 3 with more than C stages and fewer than 2 C. On one
 * core all that it has with two stages, 2, counts.
 */
static double crowd_uneven(double cores, double chain)
{
    const double c = fmax(1, floor(cores));
    return 1 + (fmax(1, chain) - 1) * (5 * c - 1) / (c > 1 ? 3 * c - 3 : 2);
}

/* By how much longer `stages` that compute at once take, of `alike` ranks each, which would share
 * the cores evenly if they were alone. */
static double crowd_stretch(const struct virtual_world *world, int32_t stages)
{
    const double cores = world->profile->cores, turns = fmax(1, stages * world->alike / cores);
    const bool even = turns == 1 || (cores > 1 && fabs(turns - round(turns)) < 1e-9);
    return turns / fmax(1, world->alike / cores) *
           (even ? 1 : crowd_uneven(cores, world->profile->turn_chain));
}

/* Go through the step: how much longer it becomes, and the work of each stage. */
static double crowd_sweep(const struct crowd *crowd, const struct virtual_world *world,
                          double *work_s, double *stretched_s)
{
    const int32_t stages = world->stage_count;
    double now_s = 0, sum_s = 0;
    int32_t *active = calloc((size_t)stages, sizeof(*active)), count = 0;
    for (size_t i = 0; i <= crowd->count && active != NULL; i++) {
        const double at_s = i < crowd->count ? crowd->edge[i].at_s : crowd->length_s;
        const double stretch = crowd_stretch(world, count);
        sum_s += (at_s - now_s) * stretch;
        for (int32_t s = 0; s < stages && at_s > now_s; s++) {
            work_s[s] += active[s] > 0 ? at_s - now_s : 0;
            stretched_s[s] += active[s] > 0 ? (at_s - now_s) * stretch : 0;
        }
        now_s = at_s;
        if (i < crowd->count) {
            active[crowd->edge[i].stage] += crowd->edge[i].way;
            count += crowd->edge[i].way;
        }
    }
    free(active);
    return sum_s;
}

double virtual_crowd(const struct virtual_world *world, const double *begin_s, const double *step_s,
                     double *stretch_out)
{
    const int32_t stages = world->stage_count;
    struct crowd crowd = {.length_s = 0};
    size_t idle = 0;
    for (int32_t s = 0; s < stages; s++) {
        crowd.length_s = fmax(crowd.length_s, step_s[s]);
        idle += world->rank[s].idle.count;
        stretch_out[s] = 1;
    }
    const double cores = world->profile->cores, each = cores >= 1 ? world->alike / cores : 0;
    if (stages * each <= 1 || !world->together)
        return crowd.length_s;
    double sum_s = crowd.length_s;
    double *work_s = calloc(2 * (size_t)stages, sizeof(*work_s));
    crowd.edge = calloc(4 * (idle + (size_t)stages), sizeof(*crowd.edge));
    if (work_s != NULL && crowd.edge != NULL) {
        for (int32_t s = 0; s < stages; s++)
            crowd_stage(&crowd, &world->rank[s], begin_s[s], step_s[s]);
        qsort(crowd.edge, crowd.count, sizeof(*crowd.edge), crowd_order);
        sum_s = crowd_sweep(&crowd, world, work_s, work_s + stages);
        for (int32_t s = 0; s < stages; s++)
            stretch_out[s] = work_s[s] > 0 ? work_s[stages + s] / work_s[s] : 1;
    }
    free(work_s);
    free(crowd.edge);
    return sum_s;
}
