/* The judge of slow ranks and links (slow.h): arithmetic alone, it asks nobody. */
#include "run/slow.h"

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
#define SLOW_RANKS     TESS_WORLD_RANKS_MAX

/* How long something has been as it is now. */
struct slow_state {
    bool bad, reported;
    double lasts_s;
    int64_t since; /* first step */
};

struct slow_link {
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
    bool here;
    struct tess__slow_rank seen;
    struct slow_state state;
    uint32_t
        late_windows[2];     /* by their means, own and on a processor: a bit each, latest lowest */
    float first[SLOW_FIRST]; /* own seconds of a step */
    int32_t first_count;
    double usual;
};

struct tess__slow {
    struct tess_mesh mesh;
    const char *const *host;
    int64_t step, window; /* of the latest whole one; window: of the one that comes */
    struct slow_rank rank[SLOW_RANKS];
    struct slow_link link[SLOW_RANKS][SLOW_RANKS]; /* [from][to] */
    /* Of the links that carried bytes in this window. */
    struct slow_speed {
        int64_t kind;
        int32_t from, to;
        float bytes_per_s; /* 0: not known */
    } speed[SLOW_RANKS * SLOW_RANKS];
    int32_t speed_count;
    float most_bytes; /* of a link between hosts, in this window */
    float scratch[SLOW_RANKS * SLOW_RANKS];
    struct slow_state *changed[SLOW_RANKS + SLOW_RANKS * SLOW_RANKS]; /* to be reported */
    int32_t change_count, change_next;
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
    if (state->lasts_s < SLOW_LEAST_S || state->reported == bad)
        return false;
    state->reported = bad;
    slow->changed[slow->change_count++] = state;
    return true;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Others to compare a rank with, and by which factor their times are to be multiplied. */
struct slow_peers {
    int32_t count, rank[SLOW_RANKS];
    double factor[SLOW_RANKS];
};

static void slow_find_peers(const struct tess__slow *slow, int32_t rank, struct slow_peers *peers)
{
    const struct slow_rank *own = &slow->rank[rank];
    peers->count = 0;
    for (int32_t r = 0; r < slow->mesh.rank_count; r++)
        if (r != rank && slow->rank[r].pace.kind == own->pace.kind) {
            peers->rank[peers->count] = r;
            peers->factor[peers->count++] = 1;
        }
    if (peers->count > 0)
        return;
    for (int32_t r = 0; r < slow->mesh.rank_count; r++)
        if (r != rank && own->usual > 0 && slow->rank[r].usual > 0) {
            peers->rank[peers->count] = r;
            peers->factor[peers->count++] = own->usual / slow->rank[r].usual;
        }
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

static void slow_measure(struct tess__slow *slow, int32_t rank, const struct slow_peers *peers,
                         struct slow_measured *by)
{
    struct slow_rank *own = &slow->rank[rank];
    const int32_t count = by->means ? 1 : TESS__PACE_STEPS;
    float value[SLOW_RANKS], usual_s[TESS__PACE_STEPS], sorted[TESS__PACE_STEPS];
    uint32_t late = 0;
    for (int32_t i = 0; i < count; i++) {
        for (int32_t p = 0; p < peers->count; p++)
            value[p] = (float)(peers->factor[p] * slow_took(&slow->rank[peers->rank[p]], by, i));
        usual_s[i] = tess__pace_median(value, peers->count);
        sorted[i] = (float)slow_took(own, by, i);
    }
    by->took_s = tess__pace_median(sorted, count);
    for (int32_t i = 0; i < count; i++)
        late = late << 1 | (slow_took(own, by, i) - usual_s[i] >= slow_least_s(own, by));
    by->usual_s = tess__pace_median(usual_s, count);
    if (by->means)
        late = own->late_windows[by->work] = (own->late_windows[by->work] << 1 | late) & 0xfffff;
    by->late = __builtin_popcount(late) >= SLOW_OF_WINDOW;
}

/* The part that has most of the lateness. */
static enum tess__slow_cause slow_cause(const struct tess__slow *slow, int32_t rank,
                                        const struct slow_peers *peers,
                                        const struct slow_measured *by)
{
    const struct tess__run_pace *own = &slow->rank[rank].pace;
    double most_s = -INFINITY;
    enum tess__slow_cause cause = TESS__SLOW_OTHER;
    float value[SLOW_RANKS];
    for (int p = 0; p < TESS__PACE_PARTS; p++) {
        for (int32_t i = 0; i < peers->count; i++) {
            const struct tess__run_pace *other = &slow->rank[peers->rank[i]].pace;
            value[i] =
                (float)(peers->factor[i] * (by->means ? other->part_mean_s[p] : other->part_s[p]));
        }
        const double late_s = (by->means ? own->part_mean_s[p] : own->part_s[p]) -
                              tess__pace_median(value, peers->count);
        if (late_s <= most_s)
            continue;
        most_s = late_s;
        cause = (enum tess__slow_cause)p;
    }
    for (int32_t i = 0; i < peers->count; i++)
        value[i] = slow->rank[peers->rank[i]].pace.delay_s;
    const double delay_s = own->delay_s - tess__pace_median(value, peers->count);
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
    struct slow_peers peers;
    /* Who needs more time on a processor than others waits for one more often, too. */
    struct slow_measured by[] = {
        {.work = true}, {.work = false}, {.work = true, .means = true}, {.means = true}};
    int chosen = -1;
    slow_find_peers(slow, rank, &peers);
    slow_see_rank(&own->pace, seen);
    if (peers.count == 0)
        return;
    for (int m = 0; m < 4; m++) {
        slow_measure(slow, rank, &peers, &by[m]);
        chosen = chosen < 0 && by[m].late ? m : chosen;
    }
    const bool late = chosen >= 0, began = late && !own->state.bad;
    const struct slow_measured *is = &by[late ? chosen : 1];
    seen->took_s = is->took_s;
    seen->score = is->usual_s > 0 ? is->took_s / is->usual_s : NAN;
    seen->late_s = fmax(0, is->took_s - is->usual_s);
    if (late)
        seen->cause = slow_cause(slow, rank, &peers, is);
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

/* Bytes per second that the link should have; 0: not known. */
static double slow_link_usual(struct tess__slow *slow, const struct slow_speed *own)
{
    int32_t count = 0;
    for (int32_t i = 0; i < slow->speed_count; i++) {
        const struct slow_speed *other = &slow->speed[i];
        if (other != own && other->kind == own->kind && other->bytes_per_s > 0)
            slow->scratch[count++] = other->bytes_per_s;
    }
    const double others = count > 0 ? tess__pace_median(slow->scratch, count) : 0;
    return fmax(others, slow->link[own->from][own->to].usual);
}

static void slow_judge_link(struct tess__slow *slow, const struct slow_speed *speed)
{
    struct slow_link *link = &slow->link[speed->from][speed->to];
    struct tess__slow_link *seen = &link->seen;
    const double step_s = slow->rank[speed->from].pace.step_s;
    const double usual = slow_link_usual(slow, speed), rate = speed->bytes_per_s;
    seen->bytes_per_s = rate > 0 ? rate : NAN;
    seen->score = rate > 0 && usual > 0 ? rate / usual : NAN;
    seen->busy_s = link->busy_s;
    seen->late_s = usual > 0 ? fmax(0, link->busy_s - link->bytes / usual) : 0;
    slow_learn(link->first, &link->first_count, &link->usual, rate);
    const bool bad = !link->here && link->bytes >= SLOW_BYTES * slow->most_bytes &&
                     seen->score <= SLOW_LINK &&
                     seen->late_s >= SLOW_SHARE / (1 + SLOW_SHARE) * step_s;
    if (!slow_note(slow, &link->state, bad, TESS__PACE_STEPS * step_s))
        return;
    link->quiet = link->quiet || (bad && tess__slow_net_covers(slow->net, speed->from, speed->to));
    slow->change_count -= link->quiet;
    link->quiet = link->quiet && bad;
    seen->slow = bad;
    seen->since = link->state.since;
}

static void slow_judge_links(struct tess__slow *slow)
{
    slow->speed_count = 0;
    slow->most_bytes = 0;
    for (int32_t from = 0; from < slow->mesh.rank_count; from++)
        for (int32_t to = 0; to < slow->mesh.rank_count; to++) {
            const struct slow_link *link = &slow->link[from][to];
            if (link->window != slow->window)
                continue;
            if (!link->here)
                slow->most_bytes = fmaxf(slow->most_bytes, link->bytes);
            slow->speed[slow->speed_count++] = (struct slow_speed){
                link->kind, from, to, link->busy_s > 0 ? link->bytes / link->busy_s : 0};
        }
    for (int32_t i = 0; i < slow->speed_count; i++) {
        const struct slow_speed *speed = &slow->speed[i];
        slow_judge_link(slow, speed);
        tess__slow_net_learn(slow->net, speed->from, speed->to, speed->bytes_per_s);
    }
    slow->net_changed = tess__slow_net_over(slow->net, slow->step - TESS__PACE_STEPS + 1);
}

struct tess__slow *tess__slow_open(const struct tess_mesh *mesh, const char *const *host)
{
    struct tess__slow *slow = calloc(1, sizeof(*slow));
    if (slow == NULL)
        return NULL;
    slow->mesh = *mesh;
    slow->host = host;
    slow->net = tess__slow_net_open(mesh->rank_count, host);
    if (slow->net == NULL) {
        free(slow);
        return NULL;
    }
    for (int32_t from = 0; from < mesh->rank_count; from++)
        for (int32_t to = 0; to < mesh->rank_count; to++) {
            struct slow_link *link = &slow->link[from][to];
            int32_t distance;
            const int axis = slow_axis(mesh, from, to, &distance);
            link->here = strcmp(host[from], host[to]) == 0;
            link->kind = ((int64_t)distance * (TESS_AXIS_COUNT + 1) + axis) * 2 + link->here;
            link->window = -1;
            link->seen = (struct tess__slow_link){.from = from, .to = to, .axis = axis};
        }
    return slow;
}

enum tess_status tess__slow_know(struct tess__slow *slow, const struct tess_topology *topology)
{
    return tess__slow_net_know(slow->net, topology);
}

void tess__slow_close(struct tess__slow *slow)
{
    if (slow == NULL)
        return;
    tess__slow_net_close(slow->net);
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
        slow->link[from][to].bytes = links->link[i].bytes;
        slow->link[from][to].busy_s = links->link[i].busy_s;
        slow->link[from][to].window = links->window;
    }
}

static void slow_judge(struct tess__slow *slow)
{
    const int32_t count = slow->mesh.rank_count;
    slow->step = slow->rank[0].pace.step;
    slow->change_count = slow->change_next = 0;
    for (int32_t r = 0; r < count; r++)
        slow_judge_rank(slow, r);
    for (int32_t r = 0; r < count; r++)
        slow_learn(slow->rank[r].first, &slow->rank[r].first_count, &slow->rank[r].usual,
                   slow->rank[r].pace.median_s);
    slow_judge_links(slow);
    for (int32_t r = 0; r < count; r++)
        slow->rank[r].here = false;
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
    rank->here = true;
    /* Ranks on other hosts may be heard of later than the next window of this one: a window that
     * is not whole by then is left out. */
    for (int32_t r = 0; r < slow->mesh.rank_count; r++)
        if (!slow->rank[r].here || slow->rank[r].pace.window != rank->pace.window)
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
    if (slow->change_next == slow->change_count)
        return NULL;
    const struct slow_state *state = slow->changed[slow->change_next++];
    for (int32_t r = 0; r < slow->mesh.rank_count; r++) {
        if (state == &slow->rank[r].state)
            return slow_rank_text(slow, r);
        for (int32_t to = 0; to < slow->mesh.rank_count; to++)
            if (state == &slow->link[r][to].state)
                return slow_link_text(slow, &slow->link[r][to].seen);
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
    *link_out = slow->link[slow->speed[number].from][slow->speed[number].to].seen;
    return true;
}

int32_t tess__slow_count(const struct tess__slow *slow)
{
    int32_t count = 0;
    for (int32_t r = 0; r < slow->mesh.rank_count; r++) {
        count += slow->rank[r].seen.late;
        for (int32_t to = 0; to < slow->mesh.rank_count; to++)
            count += slow->link[r][to].seen.slow || tess__slow_net_covers(slow->net, r, to);
    }
    return count;
}
