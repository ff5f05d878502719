/* The parts of a search, by as many threads as there are cores; see plan.h. */
#include "study/plan.h"

#include "base/cgroup.h"
#include "base/team.h"
#include "tessera/check.h"

#include <stdatomic.h>
#include <stdlib.h>

struct each {
    const struct tess__plan *plan;
    tess__plan_do *does;
    void *context;
    int64_t count;
    atomic_int_fast64_t next;
};

static void each_part(void *context, int64_t part)
{
    const struct each *each = context;
    each->does(each->plan, each->context, part);
}

/* All that are left, one after the other. */
static void each_next(void *context, int64_t thread)
{
    struct each *each = context;
    (void)thread;
    for (int64_t part; (part = atomic_fetch_add(&each->next, 1)) < each->count;)
        each_part(each, part);
}

/* More than a few threads take memory, and find little to do. */
static int each_threads(void)
{
    const int here = tess_cores();
    return here < TESS__PLAN_THREADS ? here : TESS__PLAN_THREADS;
}

/* The team's threads have a range of parts each, whose configurations they read alone, and help
 * with the others' when they are done with their own. */
enum tess_status tess__plan_each(struct tess__plan *plan, int64_t count,
                                 enum tess__plan_turns turns, tess__plan_do *does, void *context)
{
    struct each each = {plan, does, context, count, 0};
    const int most = each_threads(), threads = count < most ? (int)count : most;
    for (int i = 1; i < threads; i++)
        if (plan->configs[i] == NULL)
            TESS_TRY(tess__plan_configs_open(plan, i));
    if (plan->team == NULL)
        TESS_TRY(tess_team_open(most, NULL, NULL, &plan->team));
    if (turns == TESS__PLAN_NEXT)
        tess_team_run(plan->team, threads, threads, each_next, &each);
    else
        tess_team_run(plan->team, threads, count, each_part, &each);
    return TESS_OK;
}

void tess__plan_alone(struct tess__plan *plan)
{
    tess_team_close(plan->team);
    plan->team = NULL;
}

struct tess__plan_work tess__plan_worked(const struct tess__plan *plan)
{
    struct tess__plan_work sum = {0};
    for (int i = 0; i < TESS__PLAN_THREADS && plan->configs[i] != NULL; i++) {
        const struct tess__plan_work *work = tess__plan_work(plan->configs[i]);
        sum.loaded += work->loaded;
        sum.declared += work->declared;
        sum.planned += work->planned;
        sum.predicted += work->predicted;
    }
    return sum;
}

void tess__plan_close(struct tess__plan *plan)
{
    tess__plan_alone(plan);
    for (int i = TESS__PLAN_THREADS - 1; i >= 0; i--)
        tess__plan_configs_close(plan->configs[i]);
    tess_config_close(plan->first);
    for (int64_t i = 0; i < plan->layouts.count; i++)
        tess__plan_order_free(plan->layouts.item[i].order);
    tess_cluster_close(plan->topology);
    if (plan->dataset != &plan->declared)
        tess_dataset_close(plan->dataset);
    free(plan->layouts.item);
    free(plan->stages.item);
    free(plan->rejected);
}
