/* The judge of slow ranks and links (slow.h): arithmetic alone, it asks nobody. */
#include "run/slow.h"

#include "run/pairs.h"
#include "run/record.h"
#include "run/slow_net.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOW_SHARE     0.1  /* of a step without the lateness */
#define SLOW_LINK      0.5  /* of the usual speed */
#define SLOW_BYTES     0.05 /* of the busiest link's: with less, a link's speed is not judged */
#define SLOW_LEAST_S   2.0  /* so long, in whole windows, before it is reported or is over */
#define SLOW_OF_WINDOW 18   /* steps of TESS__PACE_STEPS */
#define SLOW_FIRST     5    /* windows that show what is usual */
#define SLOW_MEASURES  4    /* what is compared, see slow_measured */

/* How long something has been as it is now. */
struct slow_state {
    bool bad, reported;
    bool changed; /* in this window, and to be told */
    double lasts_s;
    int64_t since; /* first step */
};

struct slow_link {
    struct tess__pair ranks;
    int64_t kind;        /* links of one kind should be as fast */
    bool here;           /* within a host: how fast it is depends on when both get a processor */
    float bytes, busy_s; /* of the window that comes; a step's mean */
    int64_t window;      /* of these; -1: none */
    struct tess__slow_link seen;
    struct slow_state state;
    bool quiet;              /* reported as a part of the network that slow_net.h has named */
    float first[SLOW_FIRST]; /* bytes per second */
    int32_t first_count;
    double usual; /* their median; 0: not known so far */
};

struct slow_rank {
    struct tess__run_pace pace;
    struct tess__slow_rank seen;
    struct slow_state state;
    uint32_t
        late_windows[2];     /* by their means, own and on a processor: a bit each, latest lowest */
    float first[SLOW_FIRST]; /* own seconds of a step */
    int32_t first_count;
    double usual;
    /* Others to compare it with: those of its kind; alone: all whose usual time is known, as they
     * have other work, by the change of their times. */
    int32_t group, group_count; /* in slow->order, with itself */
    bool alone;
    float like_s[SLOW_MEASURES][TESS__PACE_STEPS]; /* what a step should take, by these */
};

struct tess__slow {
    struct tess_mesh mesh;
    const char *const *host;
    int64_t step, window; /* of the latest whole one; window: of the one that comes */
    int64_t newest;       /* window of which something has come, and from how many ranks */
    int32_t here_count;
    struct slow_rank *rank;   /* [ranks] */
    struct tess__pairs links; /* of slow_link: those that carried bytes */
    int32_t *order;           /* [ranks] by kind; then those whose usual time is known */
    int32_t known_count;
    float *value, *sorted; /* [ranks] */
    int32_t speed_count;   /* of links.order: those that carried bytes in this window */
    float most_bytes;      /* of a link between hosts, in this window */
    int32_t change_next;   /* ranks, then links, that have been looked at for what changed */
    struct tess__slow_net *net;
    bool net_changed; /* to be reported */
    char text[1024];
};

const char *const tess__slow_cause_name[TESS__SLOW_CAUSES] = {
    "data", "compute", "optimizer", "other", "processor",
};

/* ---- what both have in common ---------------------------------------------------------------- */

/* What is usual, by the first windows: their median, once there are enough. */
static void slow_learn(float *first, int32_t *count, double *usual, double value)
{
    float sorted[SLOW_FIRST];
    if (*count == SLOW_FIRST || !(value > 0))
        return;
    first[(*count)++] = (float)value;
    if (*count < SLOW_FIRST)
        return;
    memcpy(sorted, first, sizeof(sorted));
    *usual = tess__pace_median(sorted, SLOW_FIRST);
}

/* Another window, of `window_s`. True where what began or ended is to be reported now, as it has
 * lasted long enough. */
static bool slow_note(struct tess__slow *slow, struct slow_state *state, bool bad, double window_s)
{
    if (bad != state->bad || state->since == 0) {
        state->bad = bad;
        state->lasts_s = 0;
        state->since = slow->step - TESS__PACE_STEPS + 1;
    }
    state->lasts_s += window_s;
    state->changed = state->lasts_s >= SLOW_LEAST_S && state->reported != bad;
    if (state->changed)
        state->reported = bad;
    return state->changed;
}

static int slow_compare(const void *a, const void *b)
{
    const float left = *(const float *)a, right = *(const float *)b;
    return (left > right) - (left < right);
}

/* The median of sorted [count] without one of its values. count >= 2. A rank is compared with all
 * others of its kind: sorted once, that takes no longer for many ranks than for few. */
static double slow_median_without(const float *sorted, int32_t count, float own)
{
    int32_t low = 0, high = count - 1;
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (sorted[middle] < own)
            low = middle + 1;
        else
            high = middle;
    }
    const int32_t a = (count - 1) / 2, b = (count - 2) / 2;
    return (sorted[a + (a >= low)] + sorted[b + (b >= low)]) / 2;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static int slow_compare_kinds(const void *a, const void *b, void *context)
{
    const struct tess__slow *slow = context;
    const int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    const int32_t left_kind = slow->rank[left].pace.kind, right_kind = slow->rank[right].pace.kind;
    if (left_kind != right_kind)
        return left_kind < right_kind ? -1 : 1;
    return (left > right) - (left < right);
}

/* Ranks that are compared with each other lie side by side in slow->order. */
static void slow_group(struct tess__slow *slow)
{
    const int32_t ranks = slow->mesh.rank_count;
    int32_t *order = slow->order;
    for (int32_t r = 0; r < ranks; r++)
        order[r] = r;
    qsort_r(order, (size_t)ranks, sizeof(*order), slow_compare_kinds, slow);
    for (int32_t begin = 0, end; begin < ranks; begin = end) {
        const int32_t kind = slow->rank[order[begin]].pace.kind;
        for (end = begin; end < ranks && slow->rank[order[end]].pace.kind == kind; end++)
            slow->rank[order[end]].group = begin;
        for (int32_t i = begin; i < end; i++)
            slow->rank[order[i]].group_count = end - begin;
    }
    slow->known_count = 0;
    for (int32_t r = 0; r < ranks; r++)
        if (slow->rank[r].usual > 0)
            order[ranks + slow->known_count++] = r;
    for (int32_t r = 0; r < ranks; r++) {
        struct slow_rank *rank = &slow->rank[r];
        rank->alone = rank->group_count == 1;
        if (!rank->alone)
            continue;
        rank->group = ranks;
        rank->group_count = rank->usual > 0 ? slow->known_count : 0;
    }
}

/* What something took on the others, the median of slow->value [ranks]; needs a group of two. A
 * group's values are sorted by its first rank that asks: `sorted` is the group. */
static double slow_like(struct tess__slow *slow, int32_t rank, int32_t *sorted)
{
    const struct slow_rank *own = &slow->rank[rank];
    const double factor = own->alone ? own->usual : 1;
    if (*sorted != own->group) {
        for (int32_t i = 0; i < own->group_count; i++) {
            const int32_t r = slow->order[own->group + i];
            slow->sorted[i] = (float)(slow->value[r] / (own->alone ? slow->rank[r].usual : 1));
        }
        qsort(slow->sorted, (size_t)own->group_count, sizeof(*slow->sorted), slow_compare);
        *sorted = own->group;
    }
    return factor *
           slow_median_without(slow->sorted, own->group_count, (float)(slow->value[rank] / factor));
}

/* What is compared: own time or time on a processor, step by step or the means of windows. */
struct slow_measured {
    bool work, means;
    double took_s, usual_s; /* medians over the steps, or means */
    bool late;
};

/* Seconds of step i, or of the mean. */
static double slow_took(const struct slow_rank *rank, const struct slow_measured *by, int32_t i)
{
    const float *step_s = by->work ? rank->pace.work_s : rank->pace.own_s;
    double sum_s = 0;
    for (int32_t s = 0; s < TESS__PACE_STEPS && by->means; s++)
        sum_s += step_s[s];
    return by->means ? sum_s / TESS__PACE_STEPS : step_s[i];
}

/* The least lateness that makes a step 10 % longer; on a processor: one for which processors were
 * free. */
static double slow_least_s(const struct slow_rank *own, const struct slow_measured *by)
{
    const double step_s = by->means ? own->pace.mean_s : own->pace.step_s;
    const double free_s = fmax(by->took_s, step_s - own->pace.delay_s);
    return SLOW_SHARE / (1 + SLOW_SHARE) * (by->work ? free_s : step_s);
}

/* Who needs more time on a processor than others waits for one more often, too. */
static const struct slow_measured slow_by[SLOW_MEASURES] = {
    {.work = true}, {.work = false}, {.work = true, .means = true}, {.means = true}};

/* What each step should have taken, of all ranks. */
static void slow_find_like(struct tess__slow *slow)
{
    const int32_t ranks = slow->mesh.rank_count;
    for (int m = 0; m < SLOW_MEASURES; m++)
        for (int32_t i = 0; i < (slow_by[m].means ? 1 : TESS__PACE_STEPS); i++) {
            int32_t sorted = -1;
            for (int32_t r = 0; r < ranks; r++)
                slow->value[r] = (float)slow_took(&slow->rank[r], &slow_by[m], i);
            for (int32_t at = 0; at < ranks; at++) { /* a group after the other */
                const int32_t r = slow->order[at];
                if (slow->rank[r].group_count > 1 && !slow->rank[r].alone)
                    slow->rank[r].like_s[m][i] = (float)slow_like(slow, r, &sorted);
            }
            for (int32_t r = 0; r < ranks; r++)
                if (slow->rank[r].group_count > 1 && slow->rank[r].alone)
                    slow->rank[r].like_s[m][i] = (float)slow_like(slow, r, &sorted);
        }
}

static void slow_measure(struct slow_rank *own, int measure, struct slow_measured *by)
{
    const int32_t count = by->means ? 1 : TESS__PACE_STEPS;
    float usual_s[TESS__PACE_STEPS], sorted[TESS__PACE_STEPS];
    uint32_t late = 0;
    memcpy(usual_s, own->like_s[measure], sizeof(usual_s));
    for (int32_t i = 0; i < count; i++)
        sorted[i] = (float)slow_took(own, by, i);
    by->took_s = tess__pace_median(sorted, count);
    for (int32_t i = 0; i < count; i++)
        late = late << 1 | (slow_took(own, by, i) - usual_s[i] >= slow_least_s(own, by));
    by->usual_s = tess__pace_median(usual_s, count);
    if (by->means)
        late = own->late_windows[by->work] = (own->late_windows[by->work] << 1 | late) & 0xfffff;
    by->late = __builtin_popcount(late) >= SLOW_OF_WINDOW;
}

/* The part that has most of the lateness. */
static enum tess__slow_cause slow_cause(struct tess__slow *slow, int32_t rank,
                                        const struct slow_measured *by)
{
    const struct slow_rank *self = &slow->rank[rank];
    const struct tess__run_pace *own = &self->pace;
    double most_s = -INFINITY;
    enum tess__slow_cause cause = TESS__SLOW_OTHER;
    for (int p = 0; p < TESS__PACE_PARTS; p++) {
        int32_t sorted = -1;
        for (int32_t i = 0; i < self->group_count; i++) {
            const int32_t r = slow->order[self->group + i];
            const struct tess__run_pace *other = &slow->rank[r].pace;
            slow->value[r] = by->means ? other->part_mean_s[p] : other->part_s[p];
        }
        const double late_s = slow->value[rank] - slow_like(slow, rank, &sorted);
        if (late_s <= most_s)
            continue;
        most_s = late_s;
        cause = (enum tess__slow_cause)p;
    }
    for (int32_t i = 0; i < self->group_count; i++)
        slow->sorted[i] = slow->rank[slow->order[self->group + i]].pace.delay_s;
    qsort(slow->sorted, (size_t)self->group_count, sizeof(*slow->sorted), slow_compare);
    const double delay_s =
        own->delay_s - slow_median_without(slow->sorted, self->group_count, own->delay_s);
    const double late_s = by->took_s - by->usual_s;
    return !by->work && delay_s >= late_s / 2 ? TESS__SLOW_PROCESSOR : cause;
}

/* What is not compared with others. */
static void slow_see_rank(const struct tess__run_pace *pace, struct tess__slow_rank *seen)
{
    seen->own_s = pace->median_s;
    seen->step_s = pace->step_s;
    seen->delay_s = pace->delay_s;
    for (int p = 0; p < TESS__PACE_PARTS; p++)
        seen->part_s[p] = pace->part_s[p];
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        seen->wait_s[axis] = pace->wait_s[axis];
        seen->sent_bytes[axis] = pace->sent_bytes[axis];
    }
    seen->score = seen->late_s = NAN;
}

static void slow_judge_rank(struct tess__slow *slow, int32_t rank)
{
    struct slow_rank *own = &slow->rank[rank];
    struct tess__slow_rank *seen = &own->seen;
    struct slow_measured by[SLOW_MEASURES];
    int chosen = -1;
    memcpy(by, slow_by, sizeof(by));
    slow_see_rank(&own->pace, seen);
    own->state.changed = false;
    if (own->group_count < 2)
        return;
    for (int m = 0; m < SLOW_MEASURES; m++) {
        slow_measure(own, m, &by[m]);
        chosen = chosen < 0 && by[m].late ? m : chosen;
    }
    const bool late = chosen >= 0, began = late && !own->state.bad;
    const struct slow_measured *is = &by[late ? chosen : 1];
    seen->took_s = is->took_s;
    seen->score = is->usual_s > 0 ? is->took_s / is->usual_s : NAN;
    seen->late_s = fmax(0, is->took_s - is->usual_s);
    if (late)
        seen->cause = slow_cause(slow, rank, is);
    const bool report = slow_note(slow, &own->state, late, TESS__PACE_STEPS * seen->step_s);
    if (began && is->means) /* as many windows are late by now */
        own->state.since -= (SLOW_OF_WINDOW - 1) * TESS__PACE_STEPS;
    if (!report)
        return;
    seen->late = late;
    seen->since = own->state.since;
}

/* ---- links ----------------------------------------------------------------------------------- */

/* The axis along which two ranks are apart, and how far; TESS_AXIS_COUNT: along several. */
static int slow_axis(const struct tess_mesh *mesh, int32_t from, int32_t to, int32_t *distance_out)
{
    const struct tess_mesh a = tess_mesh_at(mesh, from), b = tess_mesh_at(mesh, to);
    int found = -1;
    *distance_out = 0;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        if (a.at[axis] == b.at[axis])
            continue;
        if (found >= 0)
            return TESS_AXIS_COUNT;
        found = axis;
        *distance_out = abs(a.at[axis] - b.at[axis]);
    }
    return found < 0 ? TESS_AXIS_COUNT : found;
}

/* The link; a new one where it has not been seen. NULL without memory. */
static struct slow_link *slow_get_link(struct tess__slow *slow, int32_t from, int32_t to)
{
    const int32_t before = slow->links.count;
    struct slow_link *link = tess__pairs_get(&slow->links, from, to);
    int32_t distance;
    if (link == NULL || slow->links.count == before)
        return link;
    const int axis = slow_axis(&slow->mesh, from, to, &distance);
    link->here = strcmp(slow->host[from], slow->host[to]) == 0;
    link->kind = ((int64_t)distance * (TESS_AXIS_COUNT + 1) + axis) * 2 + link->here;
    link->window = -1;
    link->seen = (struct tess__slow_link){.from = from, .to = to, .axis = axis};
    return link;
}

static struct slow_link *slow_link_at(const struct tess__slow *slow, int32_t number)
{
    return tess__pairs_at(&slow->links, slow->links.order[number]);
}

/* 0: not known. */
static float slow_link_rate(const struct slow_link *link)
{
    return link->busy_s > 0 ? link->bytes / link->busy_s : 0;
}

static void slow_judge_link(struct tess__slow *slow, struct slow_link *link, double usual)
{
    struct tess__slow_link *seen = &link->seen;
    const struct tess__run_pace *from = &slow->rank[link->ranks.from].pace;
    const struct tess__run_pace *to = &slow->rank[link->ranks.to].pace;
    const double step_s = from->step_s;
    const double rate = slow_link_rate(link);
    seen->bytes_per_s = rate > 0 ? rate : NAN;
    seen->score = rate > 0 && usual > 0 ? rate / usual : NAN;
    seen->busy_s = link->busy_s;
    seen->late_s = usual > 0 ? fmax(0, link->busy_s - link->bytes / usual) : 0;
    slow_learn(link->first, &link->first_count, &link->usual, rate);
    /* A rank that waits for a processor sends and receives late: that is not the link's. */
    const double late_s = seen->late_s - fmax(from->delay_s, to->delay_s);
    const bool bad = !link->here && link->bytes >= SLOW_BYTES * slow->most_bytes &&
                     seen->score <= SLOW_LINK && late_s >= SLOW_SHARE / (1 + SLOW_SHARE) * step_s;
    if (!slow_note(slow, &link->state, bad, TESS__PACE_STEPS * step_s))
        return;
    link->quiet =
        link->quiet || (bad && tess__slow_net_covers(slow->net, link->ranks.from, link->ranks.to));
    link->state.changed = !link->quiet;
    link->quiet = link->quiet && bad;
    seen->slow = bad;
    seen->since = link->state.since;
}

static int slow_compare_links(const void *a, const void *b, void *context)
{
    const struct slow_link *left = tess__pairs_at(context, *(const int32_t *)a);
    const struct slow_link *right = tess__pairs_at(context, *(const int32_t *)b);
    if (left->kind != right->kind)
        return left->kind < right->kind ? -1 : 1;
    return (left > right) - (left < right);
}

/* Judge links of one kind: each against the others, or its own first windows. */
static void slow_judge_kind(struct tess__slow *slow, int32_t begin, int32_t end)
{
    float *rates = slow->links.scratch;
    int32_t count = 0;
    for (int32_t i = begin; i < end; i++) {
        const float rate = slow_link_rate(slow_link_at(slow, i));
        if (rate > 0)
            rates[count++] = rate;
    }
    if (count > 0)
        qsort(rates, (size_t)count, sizeof(*rates), slow_compare);
    for (int32_t i = begin; i < end; i++) {
        struct slow_link *link = slow_link_at(slow, i);
        const float rate = slow_link_rate(link);
        const double others = rate > 0 && count > 1 ? slow_median_without(rates, count, rate)
                              : rate <= 0 && count > 0
                                  ? (rates[count / 2] + rates[(count - 1) / 2]) / 2
                                  : 0;
        slow_judge_link(slow, link, fmax(others, link->usual));
    }
}

/* Those that carried bytes in this window come first in links.order. */
static void slow_list_links(struct tess__slow *slow)
{
    struct tess__pairs *links = &slow->links;
    slow->speed_count = 0;
    tess__pairs_sort(links);
    for (int32_t i = 0; i < links->count; i++) {
        const int32_t number = links->order[i];
        const struct slow_link *link = tess__pairs_at(links, number);
        if (link->window == slow->window)
            links->order[slow->speed_count++] = number;
    }
}

static void slow_judge_links(struct tess__slow *slow)
{
    struct tess__pairs *links = &slow->links;
    slow_list_links(slow);
    const int32_t count = slow->speed_count;
    slow->most_bytes = 0;
    for (int32_t i = 0; i < count; i++) {
        const struct slow_link *link = slow_link_at(slow, i);
        if (!link->here)
            slow->most_bytes = fmaxf(slow->most_bytes, link->bytes);
        tess__slow_net_learn(slow->net, link->ranks.from, link->ranks.to, slow_link_rate(link));
    }
    if (count > 0)
        qsort_r(links->order, (size_t)count, sizeof(*links->order), slow_compare_links, links);
    for (int32_t begin = 0, end; begin < count; begin = end) {
        const int64_t kind = slow_link_at(slow, begin)->kind;
        for (end = begin + 1; end < count && slow_link_at(slow, end)->kind == kind;)
            end++;
        slow_judge_kind(slow, begin, end);
    }
    slow_list_links(slow);
    slow->net_changed = tess__slow_net_over(slow->net, slow->step - TESS__PACE_STEPS + 1);
}

struct tess__slow *tess__slow_open(const struct tess_mesh *mesh, const char *const *host)
{
    struct tess__slow *slow = calloc(1, sizeof(*slow));
    const size_t ranks = (size_t)mesh->rank_count;
    if (slow == NULL)
        return NULL;
    slow->mesh = *mesh;
    slow->host = host;
    slow->newest = -1;
    slow->links.item_bytes = sizeof(struct slow_link);
    slow->rank = calloc(ranks, sizeof(*slow->rank));
    slow->order = calloc(2 * ranks, sizeof(*slow->order));
    slow->value = calloc(ranks, sizeof(*slow->value));
    slow->sorted = calloc(ranks, sizeof(*slow->sorted));
    slow->net = tess__slow_net_open(mesh->rank_count, host);
    if (slow->rank && slow->order && slow->value && slow->sorted && slow->net)
        return slow;
    tess__slow_close(slow);
    return NULL;
}

void tess__slow_know(struct tess__slow *slow, const struct tess_topology *topology)
{
    tess__slow_net_know(slow->net, topology);
}

void tess__slow_close(struct tess__slow *slow)
{
    if (slow == NULL)
        return;
    tess__slow_net_close(slow->net);
    tess__pairs_close(&slow->links);
    free(slow->rank);
    free(slow->order);
    free(slow->value);
    free(slow->sorted);
    free(slow);
}

/* ---- windows --------------------------------------------------------------------------------- */

static void slow_take_links(struct tess__slow *slow, int32_t from,
                            const struct tess__run_links *links)
{
    for (int32_t i = 0; i < links->count && i < TESS__PACE_LINKS; i++) {
        const int32_t to = links->link[i].peer;
        if (to < 0 || to >= slow->mesh.rank_count)
            continue;
        struct slow_link *link = slow_get_link(slow, from, to);
        if (link == NULL)
            continue;
        link->bytes = links->link[i].bytes;
        link->busy_s = links->link[i].busy_s;
        link->window = links->window;
    }
}

static void slow_judge(struct tess__slow *slow)
{
    const int32_t count = slow->mesh.rank_count;
    slow->step = slow->rank[0].pace.step;
    slow->change_next = 0;
    slow_group(slow);
    slow_find_like(slow);
    for (int32_t r = 0; r < count; r++)
        slow_judge_rank(slow, r);
    for (int32_t r = 0; r < count; r++)
        slow_learn(slow->rank[r].first, &slow->rank[r].first_count, &slow->rank[r].usual,
                   slow->rank[r].pace.median_s);
    slow_judge_links(slow);
}

bool tess__slow_take(struct tess__slow *slow, const struct tess__message *message)
{
    struct slow_rank *rank = &slow->rank[message->rank];
    struct tess__run_links links;
    if (message->kind == TESS__RUN_LINKS) {
        memcpy(&links, message->payload, sizeof(links));
        if (links.since == 0)
            slow_take_links(slow, message->rank, &links);
        else
            slow->net_changed = tess__slow_net_take(slow->net, message->rank, &links);
        return slow->net_changed;
    }
    memcpy(&rank->pace, message->payload, sizeof(rank->pace));
    /* What ranks on other hosts send may come later than the next window of this one: a window that
     * is not whole by then is left out. */
    if (rank->pace.window > slow->newest) {
        slow->newest = rank->pace.window;
        slow->here_count = 0;
    }
    slow->here_count += rank->pace.window == slow->newest;
    if (rank->pace.window != slow->newest || slow->here_count < slow->mesh.rank_count)
        return false;
    slow->window = rank->pace.window;
    slow_judge(slow);
    return true;
}

/* ---- words ----------------------------------------------------------------------------------- */

static const char *slow_rank_text(struct tess__slow *slow, int32_t r)
{
    static const char *const in[TESS__SLOW_CAUSES] = {
        "waiting for its samples",
        "computing (forward and backward)",
        "the optimizer",
        "what is done between and beside the parts of a step",
        "waiting for its processor, on which others run",
    };
    const struct tess__slow_rank *rank = &slow->rank[r].seen;
    if (!rank->late) {
        snprintf(slow->text, sizeof(slow->text),
                 "rank %d (host %s) is no longer late: from step %" PRId64 " on", r, slow->host[r],
                 rank->since);
        return slow->text;
    }
    snprintf(slow->text, sizeof(slow->text),
             "rank %d (host %s) holds the others up since step %" PRId64
             ": it takes %.3g ms of a step for itself, ranks like it %.3g ms; it is late in %s",
             r, slow->host[r], rank->since, 1e3 * rank->took_s, 1e3 * (rank->took_s - rank->late_s),
             in[rank->cause]);
    return slow->text;
}

static const char *slow_link_text(struct tess__slow *slow, const struct tess__slow_link *link)
{
    char name[256], axis[32] = "";
    if (link->axis < TESS_AXIS_COUNT)
        snprintf(axis, sizeof(axis), " on axis %s", tess__record_axis_name[link->axis]);
    snprintf(name, sizeof(name), "the link from rank %d (host %s) to rank %d (host %s)%s",
             link->from, slow->host[link->from], link->to, slow->host[link->to], axis);
    if (!link->slow)
        snprintf(slow->text, sizeof(slow->text), "%s is no longer slow: from step %" PRId64 " on",
                 name, link->since);
    else
        snprintf(slow->text, sizeof(slow->text),
                 "%s is slow since step %" PRId64 ": %.3g MB/s, where %.3g MB/s are usual; that is "
                 "%.3g ms of each step",
                 name, link->since, 1e-6 * link->bytes_per_s,
                 1e-6 * link->bytes_per_s / link->score, 1e3 * link->late_s);
    return slow->text;
}

const char *tess__slow_next(struct tess__slow *slow)
{
    if (slow->net_changed) {
        slow->net_changed = false;
        tess__slow_net_text(slow->net, slow->text, sizeof(slow->text));
        return slow->text;
    }
    const int32_t ranks = slow->mesh.rank_count;
    while (slow->change_next < ranks + slow->speed_count) {
        const int32_t next = slow->change_next++;
        if (next < ranks && slow->rank[next].state.changed)
            return slow_rank_text(slow, next);
        if (next >= ranks && slow_link_at(slow, next - ranks)->state.changed)
            return slow_link_text(slow, &slow_link_at(slow, next - ranks)->seen);
    }
    return NULL;
}

/* ---- questions ------------------------------------------------------------------------------- */

int64_t tess__slow_step(const struct tess__slow *slow)
{
    return slow->step;
}

const struct tess__slow_rank *tess__slow_rank_of(const struct tess__slow *slow, int32_t rank)
{
    return &slow->rank[rank].seen;
}

const struct tess__slow_net_found *tess__slow_network(const struct tess__slow *slow)
{
    return tess__slow_net_found(slow->net);
}

bool tess__slow_link_of(const struct tess__slow *slow, int32_t number,
                        struct tess__slow_link *link_out)
{
    if (number >= slow->speed_count)
        return false;
    *link_out = slow_link_at(slow, number)->seen;
    return true;
}

int32_t tess__slow_count(const struct tess__slow *slow)
{
    int32_t count = 0;
    for (int32_t r = 0; r < slow->mesh.rank_count; r++)
        count += slow->rank[r].seen.late;
    for (int32_t i = 0; i < slow->links.count; i++) {
        const struct slow_link *link = tess__pairs_at(&slow->links, i);
        count +=
            link->seen.slow || tess__slow_net_covers(slow->net, link->ranks.from, link->ranks.to);
    }
    return count;
}
