/* The parts of a search, by as many threads as there are cores; see plan.h. */
#include "study/plan.h"

#include "tessera/check.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Parts that follow each other are alike: each thread has a range of them, whose configurations it
 * reads alone, and helps with the others' when it is done with its own. */
struct each {
    tess__plan_do *does;
    void *context;
    int64_t count;
    int ranges;
    _Atomic int64_t next[TESS__PLAN_THREADS]; /* of each range */
};

struct each_thread {
    pthread_t thread;
    struct each *each;
    int number;
    struct tess__plan plan; /* with configurations of its own */
};

static int64_t each_begin(const struct each *each, int range)
{
    return each->count * range / each->ranges;
}

static void each_work(struct each *each, const struct tess__plan *plan, int number)
{
    for (int i = 0; i < each->ranges; i++) {
        const int range = (number + i) % each->ranges;
        const int64_t end = each_begin(each, range + 1);
        for (int64_t part; (part = atomic_fetch_add(&each->next[range], 1)) < end;)
            each->does(plan, each->context, part);
    }
}

static void *each_thread(void *context)
{
    struct each_thread *thread = context;
    each_work(thread->each, &thread->plan, thread->number);
    return NULL;
}

/* Threads beside the one that calls. More than a few take memory, and find little to do. */
static int each_others(int64_t count)
{
    cpu_set_t cores;
    const int here =
        sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : TESS__PLAN_THREADS;
    const int64_t most = here < TESS__PLAN_THREADS ? here : TESS__PLAN_THREADS;
    return (int)((count < most ? count : most) - 1);
}

static enum tess_status each_open(struct tess__plan *plan, struct each *each, int number,
                                  struct each_thread *thread)
{
    if (plan->beside[number] == NULL)
        TESS_TRY(tess__plan_configs_open(plan->configs, &plan->beside[number]));
    thread->each = each;
    thread->number = number + 1;
    thread->plan = *plan;
    thread->plan.configs = plan->beside[number];
    return TESS_OK;
}

enum tess_status tess__plan_each(struct tess__plan *plan, int64_t count, tess__plan_do *does,
                                 void *context)
{
    const int others = each_others(count);
    struct each each = {
        .does = does, .context = context, .count = count, .ranges = others > 0 ? others + 1 : 1};
    struct each_thread *thread = others > 0 ? calloc((size_t)others, sizeof(*thread)) : NULL;
    enum tess_status status = TESS_OK;
    int started = 0;
    for (int range = 0; range < each.ranges; range++)
        atomic_init(&each.next[range], each_begin(&each, range));
    for (int i = 0; thread != NULL && i < others && status == TESS_OK; i++)
        status = each_open(plan, &each, i, &thread[i]);
    /* With fewer threads it takes longer. */
    while (thread != NULL && status == TESS_OK && started < others &&
           pthread_create(&thread[started].thread, NULL, each_thread, &thread[started]) == 0)
        started++;
    if (status == TESS_OK)
        each_work(&each, plan, 0);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i].thread, NULL);
    free(thread);
    return status;
}

struct tess__plan_work tess__plan_worked(const struct tess__plan *plan)
{
    struct tess__plan_work sum = *tess__plan_work(plan->configs);
    for (int i = 0; i < TESS__PLAN_THREADS - 1 && plan->beside[i] != NULL; i++) {
        const struct tess__plan_work *work = tess__plan_work(plan->beside[i]);
        sum.loaded += work->loaded;
        sum.planned += work->planned;
        sum.predicted += work->predicted;
    }
    return sum;
}

void tess__plan_close(struct tess__plan *plan)
{
    tess__plan_configs_close(plan->configs);
    for (int i = 0; i < TESS__PLAN_THREADS - 1; i++)
        tess__plan_configs_close(plan->beside[i]);
    for (int64_t i = 0; i < plan->layouts.count; i++)
        tess__plan_order_free(plan->layouts.item[i].order);
    tess_cluster_close(plan->topology);
    if (plan->dataset != &plan->declared)
        tess_dataset_close(plan->dataset);
    free(plan->layouts.item);
    free(plan->stages.item);
    free(plan->rejected);
}
