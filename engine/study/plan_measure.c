/*
 * The first layouts of a plan, trained here for a few steps each (--try); see plan.h. They take
 * turns: what else the machine does in the second of a round slows all down alike, and what they
 * take is compared within rounds.
 */
#include "study/plan.h"

#include "base/clock.h"
#include "job/memory_room.h"
#include "run/predicted.h"
#include "study/trial.h"
#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tried is also the best layout of every other product that is predicted so near to the first. */
#define MEASURE_NEAR 1.15
/* After so many rounds those end that took this much longer than the fastest in each of them. */
#define MEASURE_ROUNDS_FAR 2
#define MEASURE_FAR        1.1
/* Every other layout has so many, whatever the time. */
#define MEASURE_ROUNDS_LEAST 3
/* After --try-rounds those go on that are so near to the fastest, up to so many times the rounds.
 */
#define MEASURE_LEAD      1.03
#define MEASURE_GO_ON     3
#define MEASURE_ROUND_MAX (MEASURE_GO_ON * TESS__PLAN_ROUNDS_MAX)
/* Steps of a round, and the seconds that they may take where the time allows it, and where not. */
#define MEASURE_STEPS_LEAST   6
#define MEASURE_STEPS_MOST    300
#define MEASURE_STEPS_S       0.2
#define MEASURE_STEPS_LEAST_S 0.08
#define MEASURE_STEP_LEAST_S  50e-6 /* none is faster here, whatever is predicted */
#define MEASURE_START_S       0.06  /* about what starting ranks takes */
#define MEASURE_LEADERS       3     /* that go on, mostly */

struct measure_one {
    int64_t number; /* in the list */
    struct tess__trial trial;
    bool open, goes_on;
    char why[TESS__PLAN_WHY];         /* it failed; "": it did not */
    double step_s[MEASURE_ROUND_MAX]; /* in each of its rounds, which are the first ones */
    int rounds;
    double turn_s; /* that its last one took, with its start */
    double share;  /* of what the others take in the same round */
};

struct measure {
    struct tess__plan *plan;
    struct measure_one *one; /* [count] */
    double *value;           /* [count] room */
    int count;
    struct tess_dataset *dataset; /* the plan's, or opened here */
    double begin_s;
};

/* ---- is it for this machine? ----------------------------------------------------------------- */

static enum tess_status measure_devices(const struct tess__plan *plan,
                                        const struct tess_device_plan *device)
{
    const int ranks = plan->cluster.ranks;
    const char *name = plan->profile.name;
    if (device->missing)
        TESS_FAIL(TESS_ERR_DEVICE, "--try trains here, and this plan is for %d %s: %s", ranks, name,
                  device->why);
    if (device->shared)
        TESS_FAIL(TESS_ERR_DEVICE,
                  "--try trains here, and this plan is for %d %s: this host has %d device%s", ranks,
                  name, (int)device->count, device->count > 1 ? "s" : "");
    for (int32_t d = 0; d < device->count; d++) {
        const struct tess_device_info *info = &device->info[d];
        const struct tess_profile *here =
            tess__predicted_device(info->name, (double)info->memory_bytes);
        const bool other = here != NULL ? strcmp(here->name, name) != 0
                                        : tess_profile_find(plan->given->device) != NULL;
        if (other)
            TESS_FAIL(TESS_ERR_DEVICE,
                      "--try trains here, and this plan is for %d %s: device %d is a %.60s", ranks,
                      name, (int)d, info->name);
    }
    return TESS_OK;
}

static enum tess_status measure_is_here(const struct tess__plan *plan)
{
    char why[TESS__PLAN_WHY];
    struct tess_config *config = NULL;
    if (plan->given->cluster[0] != '\0')
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--try trains on this host, and --cluster %s describes machines: give --ranks and "
            "--device instead",
            plan->given->cluster);
    enum tess_status status = tess__plan_config(plan, &plan->layouts.item[0], &config, why);
    if (status != TESS_OK)
        TESS_FAIL(status, "--try: %s", why);
    if (config->device.module != NULL)
        status = measure_devices(plan, &config->device);
    tess_config_close(config);
    return status;
}

/* ---- which layouts --------------------------------------------------------------------------- */

/* Is the layout one of the first, or the first of a product that is near? */
static bool measure_wants(const struct tess__plan *plan, int64_t number)
{
    const struct tess__plan_layout *layout = plan->layouts.item;
    if (!layout[number].predicted)
        return false;
    if (number < plan->given->try_count)
        return true;
    for (int64_t i = 0; i < number; i++)
        if (tess__plan_same_product(&layout[i], &layout[number]))
            return false;
    return layout[number].step_s <= MEASURE_NEAR * layout[0].step_s;
}

static enum tess_status measure_choose(struct measure *measure)
{
    const struct tess__plan_list *layouts = &measure->plan->layouts;
    measure->one = calloc((size_t)layouts->count, sizeof(*measure->one));
    measure->value = calloc((size_t)layouts->count, sizeof(*measure->value));
    if (measure->one == NULL || measure->value == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for trying %lld layouts", (long long)layouts->count);
    for (int64_t i = 0; i < layouts->count; i++)
        if (measure_wants(measure->plan, i))
            measure->one[measure->count++].number = i;
    return TESS_OK;
}

/* Steps of a round: as many as the time has room for, if all need what is predicted, and a few lead
 * after the first rounds. */
static int64_t measure_steps(const struct measure *measure, const struct tess__plan_layout *layout)
{
    const struct tess__plan_options *given = measure->plan->given;
    const int leaders = measure->count < MEASURE_LEADERS ? measure->count : MEASURE_LEADERS;
    const double turns =
        (double)(MEASURE_ROUNDS_FAR * measure->count) +
        (double)((MEASURE_GO_ON * given->try_rounds - MEASURE_ROUNDS_FAR) * leaders);
    const double least_s = fmin(MEASURE_STEPS_LEAST_S, given->try_s / measure->count);
    const double room_s = fmax(given->try_s / turns - MEASURE_START_S, least_s);
    const double steps = fmin(room_s, MEASURE_STEPS_S) / fmax(layout->step_s, MEASURE_STEP_LEAST_S);
    return (int64_t)fmax(MEASURE_STEPS_LEAST, fmin(steps, MEASURE_STEPS_MOST));
}

/* ---- what rounds say ------------------------------------------------------------------------- */

static int measure_order_of(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double measure_median(double *value, int count)
{
    qsort(value, (size_t)count, sizeof(*value), measure_order_of);
    return (value[(count - 1) / 2] + value[count / 2]) / 2;
}

/* What a round took, by those of at least `rounds` rounds that did not fail: the median of their
 * steps, each by its share. */
static double measure_pace_s(const struct measure *measure, int round, int rounds, double *value)
{
    int count = 0;
    for (int i = 0; i < measure->count; i++) {
        const struct measure_one *one = &measure->one[i];
        if (one->why[0] == '\0' && one->rounds >= rounds && one->rounds > round)
            value[count++] = one->step_s[round] / one->share;
    }
    return count > 0 ? measure_median(value, count) : 0;
}

/* The share of each, by `rounds` rounds at most. */
static void measure_shares(struct measure *measure, const double *pace_s, int rounds)
{
    double value[MEASURE_ROUND_MAX];
    for (int i = 0; i < measure->count; i++) {
        struct measure_one *one = &measure->one[i];
        const int count = one->rounds < rounds ? one->rounds : rounds;
        for (int r = 0; r < count; r++)
            value[r] = one->step_s[r] / pace_s[r];
        if (count > 0 && one->why[0] == '\0')
            one->share = measure_median(value, count);
    }
}

/*
 * Compare the layouts: by the rounds that all have, and with what these say by all. Of a layout the
 * median of its rounds counts, of each by the round's pace; measured_s is that at the usual pace.
 */
static void measure_compare(struct measure *measure)
{
    double pace_s[MEASURE_ROUND_MAX] = {0}, *value = measure->value;
    int least = MEASURE_ROUND_MAX, most = 0;
    for (int i = 0; i < measure->count; i++) {
        struct measure_one *one = &measure->one[i];
        one->share = 1;
        if (one->why[0] != '\0' || one->rounds == 0)
            continue;
        least = one->rounds < least ? one->rounds : least;
        most = one->rounds > most ? one->rounds : most;
    }
    for (int r = 0; r < least && r < most; r++)
        pace_s[r] = measure_pace_s(measure, r, least, value);
    measure_shares(measure, pace_s, least);
    for (int r = least; r < most; r++)
        pace_s[r] = measure_pace_s(measure, r, 1, value);
    measure_shares(measure, pace_s, most);
    const double usual_s = most > 0 ? measure_median(pace_s, most) : 0;
    for (int i = 0; i < measure->count; i++) {
        const struct measure_one *one = &measure->one[i];
        struct tess__plan_layout *layout = &measure->plan->layouts.item[one->number];
        layout->rounds = one->why[0] == '\0' ? one->rounds : 0;
        layout->measured_s = layout->rounds > 0 ? one->share * usual_s : 0;
    }
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static struct tess__plan_layout *measure_layout(const struct measure *measure,
                                                const struct measure_one *one)
{
    return &measure->plan->layouts.item[one->number];
}

/* Errors are the layout's, and kept in its `why`. */
static enum tess_status measure_open_one(struct measure *measure, struct measure_one *one)
{
    struct tess__log_sink sink;
    const struct tess__plan_layout *layout = measure_layout(measure, one);
    const int64_t steps = measure_steps(measure, layout);
    const struct tess__log_sink *before = tess__plan_catch(&sink, one->why);
    enum tess_status status =
        tess__plan_trial_open(measure->plan, layout, steps, &measure->dataset, &one->trial);
    if (status == TESS_OK)
        status = tess__memory_check(&one->trial.run, NULL, NULL);
    (void)tess__log_redirect(before);
    one->open = true; /* also in part */
    one->goes_on = status == TESS_OK;
    one->trial.run.warm_steps = steps / 4;
    if (status != TESS_OK && measure->dataset == NULL)
        TESS_FAIL(status, "--try: %s", one->why); /* without data none can be trained */
    return TESS_OK;
}

/* One layout's turn. Only an interruption ends all. */
static enum tess_status measure_turn(struct measure *measure, struct measure_one *one, int round)
{
    struct tess__log_sink sink;
    char sign[96], why[TESS__PLAN_WHY];
    snprintf(sign, sizeof(sign),
             "trying layouts, round %d, %.0f of at most about %.0f s: number %d", round,
             tess_clock_s() - measure->begin_s, measure->plan->given->try_s,
             (int)(one->number + 1));
    const struct tess__log_sink *before = tess__plan_catch(&sink, why);
    const double begin_s = tess_clock_s();
    const enum tess_status status = tess__trial_run(&one->trial, sign);
    one->turn_s = tess_clock_s() - begin_s;
    (void)tess__log_redirect(before);
    if (status == TESS_ERR_INTERRUPTED)
        TESS_FAIL(status, "interrupted in round %d of --try", round);
    if (status != TESS_OK) {
        memcpy(one->why, why, sizeof(why));
        one->goes_on = false;
        return TESS_OK;
    }
    one->step_s[one->rounds++] = tess__predicted_measured(&one->trial.run).step_s;
    return TESS_OK;
}

/* All that go on; every other round backwards, so that none always follows the same one. */
static enum tess_status measure_round(struct measure *measure, int round)
{
    for (int i = 0; i < measure->count; i++) {
        struct measure_one *one = &measure->one[round % 2 == 1 ? i : measure->count - 1 - i];
        if (one->goes_on)
            TESS_TRY(measure_turn(measure, one, round));
    }
    return TESS_OK;
}

/* The least that it took by what the other one did in the same round. */
static double measure_least(const struct measure_one *one, const struct measure_one *other)
{
    double least = INFINITY;
    for (int r = 0; r < one->rounds && r < other->rounds; r++)
        least = fmin(least, one->step_s[r] / other->step_s[r]);
    return least;
}

/* Those that are too far from the fastest end here, before round `round`; how many go on? */
static int measure_end_slow(struct measure *measure, int round)
{
    const struct measure_one *first = NULL;
    int count = 0;
    measure_compare(measure);
    for (int i = 0; i < measure->count; i++)
        if (measure->one[i].goes_on && (first == NULL || measure->one[i].share < first->share))
            first = &measure->one[i];
    for (int i = 0; i < measure->count; i++) {
        struct measure_one *one = &measure->one[i];
        if (!one->goes_on)
            continue;
        one->goes_on = measure_least(one, first) <= MEASURE_FAR &&
                       (round <= measure->plan->given->try_rounds ||
                        one->share <= MEASURE_LEAD * first->share);
        count += one->goes_on;
    }
    return count;
}

/* What a round of those that go on takes. */
static double measure_round_s(const struct measure *measure)
{
    double seconds = 0;
    for (int i = 0; i < measure->count; i++)
        seconds += measure->one[i].goes_on ? measure->one[i].turn_s : 0;
    return seconds;
}

/* Where not all have time for one more, the slowest end here; how many go on? */
static int measure_end_late(struct measure *measure, double left_s)
{
    for (;;) {
        struct measure_one *last = NULL;
        int count = 0;
        for (int i = 0; i < measure->count; i++) {
            struct measure_one *one = &measure->one[i];
            count += one->goes_on;
            if (one->goes_on && (last == NULL || one->share > last->share))
                last = one;
        }
        if (count < 2 || measure_round_s(measure) <= left_s)
            return count;
        last->goes_on = false;
    }
}

static enum tess_status measure_rounds(struct measure *measure)
{
    const struct tess__plan_options *given = measure->plan->given;
    const double end_s = measure->begin_s + given->try_s;
    for (int round = 1; round <= MEASURE_GO_ON * given->try_rounds; round++) {
        if (round > MEASURE_ROUNDS_FAR && measure_end_slow(measure, round) < 2)
            break;
        if (round > MEASURE_ROUNDS_LEAST && measure_end_late(measure, end_s - tess_clock_s()) < 2)
            break;
        TESS_TRY(measure_round(measure, round));
    }
    return TESS_OK;
}

/* ---- the list -------------------------------------------------------------------------------- */

/* Layouts that failed leave the list, with their reason; the others come in order of what was
 * measured. */
static enum tess_status measure_order(struct measure *measure)
{
    struct tess__plan_list *layouts = &measure->plan->layouts;
    int64_t kept = 0;
    int next = 0;
    enum tess_status status = TESS_OK;
    for (int64_t i = 0; i < layouts->count; i++) {
        const struct measure_one *one =
            next < measure->count && measure->one[next].number == i ? &measure->one[next++] : NULL;
        char text[TESS__PLAN_TEXT];
        if (one == NULL || one->why[0] == '\0') {
            layouts->item[kept++] = layouts->item[i];
            continue;
        }
        TESS_KEEP(status, tess__plan_reject(measure->plan, false,
                                            tess__plan_text(&layouts->item[i], text), one->why));
        tess__plan_order_free(layouts->item[i].order);
    }
    layouts->count = kept;
    tess__plan_sort(layouts);
    return status;
}

enum tess_status tess__plan_measure(struct tess__plan *plan)
{
    struct measure measure = {
        .plan = plan,
        .dataset = plan->dataset != &plan->declared ? plan->dataset : NULL,
        .begin_s = tess_clock_s(),
    };
    enum tess_status status;
    if (plan->layouts.count == 0)
        return TESS_OK; /* the search has said why */
    TESS_TRY(measure_is_here(plan));
    TESS_TRY_GOTO(status, close_all, measure_choose(&measure));
    tess_log(TESS_LOG_INFO, "training %d layouts here in turns, for about %.0f s (--try-s)",
             measure.count, plan->given->try_s);
    for (int i = 0; i < measure.count; i++)
        TESS_TRY_GOTO(status, close_all, measure_open_one(&measure, &measure.one[i]));
    status = measure_rounds(&measure);
    measure_compare(&measure);
    TESS_KEEP(status, measure_order(&measure));
    plan->try_seconds = tess_clock_s() - measure.begin_s;

close_all:
    for (int i = 0; i < measure.count; i++)
        if (measure.one[i].open)
            tess__trial_close(&measure.one[i].trial);
    free(measure.one);
    free(measure.value);
    if (measure.dataset != plan->dataset)
        tess_dataset_close(measure.dataset);
    return status;
}
