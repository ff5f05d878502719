/* The judge of slow ranks and links (slow.h): arithmetic alone, it asks nobody. */
#include "run/slow.h"

#include "run/record.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOW_SHARE     0.1 /* of a step without the lateness */
#define SLOW_LINK      0.5 /* of the usual speed */
#define SLOW_LEAST_S   2.0 /* so long, in whole windows, before it is reported or is over */
#define SLOW_OF_WINDOW 18  /* steps of TESS__PACE_STEPS */
#define SLOW_FIRST     5   /* windows that tell what is usual */
#define SLOW_RANKS     TESS_WORLD_RANKS_MAX

/* How long something has been as it is now. */
struct slow_state {
    bool bad, reported;
    double lasts_s;
    int64_t since; /* first step */
};

struct slow_link {
    int64_t kind;        /* links of one kind should be as fast */
    float bytes, busy_s; /* of the window that comes; a step's mean */
    int64_t window;      /* of these; -1: none */
    struct tess__slow_link seen;
    struct slow_state state;
    float first[SLOW_FIRST]; /* bytes per second */
    int32_t first_count;
    double usual; /* their median; 0: not known so far */
};

struct slow_rank {
    struct tess__run_pace pace;
    bool here;
    struct tess__slow_rank seen;
    struct slow_state state;
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
    float scratch[SLOW_RANKS * SLOW_RANKS];
    struct slow_state *changed[SLOW_RANKS + SLOW_RANKS * SLOW_RANKS]; /* to be reported */
    int32_t change_count, change_next;
    char text[512];
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

/* Others to compare a rank with, and by which factor their times are to be multiplied; returns how
 * many. */
static int32_t slow_peers(const struct tess__slow *slow, int32_t rank, int32_t peer[SLOW_RANKS],
                          double factor[SLOW_RANKS])
{
    const struct slow_rank *own = &slow->rank[rank];
    int32_t count = 0;
    for (int32_t r = 0; r < slow->mesh.rank_count; r++)
        if (r != rank && slow->rank[r].pace.kind == own->pace.kind) {
            peer[count] = r;
            factor[count++] = 1;
        }
    if (count > 0)
        return count;
    for (int32_t r = 0; r < slow->mesh.rank_count; r++)
        if (r != rank && own->usual > 0 && slow->rank[r].usual > 0) {
            peer[count] = r;
            factor[count++] = own->usual / slow->rank[r].usual;
        }
    return count;
}

/* The part that has most of the lateness; `works`: which is not in waiting for a processor. */
static enum tess__slow_cause slow_cause(const struct tess__slow *slow, int32_t rank, bool works,
                                        const int32_t *peer, const double *factor, int32_t count)
{
    const struct slow_rank *own = &slow->rank[rank];
    double most_s = -INFINITY;
    enum tess__slow_cause cause = TESS__SLOW_OTHER;
    float value[SLOW_RANKS];
    for (int p = 0; p < TESS__PACE_PARTS; p++) {
        for (int32_t i = 0; i < count; i++)
            value[i] = (float)(factor[i] * slow->rank[peer[i]].pace.part_s[p]);
        const double late_s = own->pace.part_s[p] - tess__pace_median(value, count);
        if (late_s <= most_s)
            continue;
        most_s = late_s;
        cause = (enum tess__slow_cause)p;
    }
    for (int32_t i = 0; i < count; i++)
        value[i] = slow->rank[peer[i]].pace.delay_s;
    const double delay_s = own->pace.delay_s - tess__pace_median(value, count);
    return !works && delay_s >= own->seen.late_s / 2 ? TESS__SLOW_PROCESSOR : cause;
}

/* A rank's seconds of each step against those of others, for one of two measures. */
struct slow_measured {
    double took_s, usual_s; /* medians */
    bool late;
};

static const float *slow_steps(const struct slow_rank *rank, bool work)
{
    return work ? rank->pace.work_s : rank->pace.own_s;
}

static struct slow_measured slow_measure(const struct tess__slow *slow, int32_t rank, bool work,
                                         const int32_t *peer, const double *factor, int32_t count)
{
    const struct slow_rank *own = &slow->rank[rank];
    /* On a processor: of a step for which processors were free. */
    float value[SLOW_RANKS], usual_s[TESS__PACE_STEPS], took_s[TESS__PACE_STEPS];
    int32_t late = 0;
    memcpy(took_s, slow_steps(own, work), sizeof(took_s));
    const double median_s = tess__pace_median(took_s, TESS__PACE_STEPS);
    /* On a processor: of a step for which processors were free. */
    const double free_s = fmax(median_s, own->pace.step_s - own->pace.delay_s);
    const double least_s = SLOW_SHARE / (1 + SLOW_SHARE) * (work ? free_s : own->pace.step_s);
    for (int32_t i = 0; i < TESS__PACE_STEPS; i++) {
        for (int32_t p = 0; p < count; p++)
            value[p] = (float)(factor[p] * slow_steps(&slow->rank[peer[p]], work)[i]);
        usual_s[i] = tess__pace_median(value, count);
        late += slow_steps(own, work)[i] - usual_s[i] >= least_s;
    }
    return (struct slow_measured){.took_s = median_s,
                                  .usual_s = tess__pace_median(usual_s, TESS__PACE_STEPS),
                                  .late = late >= SLOW_OF_WINDOW};
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
    int32_t peer[SLOW_RANKS];
    double factor[SLOW_RANKS];
    const int32_t count = slow_peers(slow, rank, peer, factor);
    slow_see_rank(&own->pace, seen);
    if (count == 0)
        return;
    struct slow_measured by = slow_measure(slow, rank, false, peer, factor, count);
    const struct slow_measured work = slow_measure(slow, rank, true, peer, factor, count);
    const bool works = work.late && !by.late;
    by = works ? work : by;
    seen->took_s = by.took_s;
    seen->score = by.usual_s > 0 ? by.took_s / by.usual_s : NAN;
    seen->late_s = fmax(0, by.took_s - by.usual_s);
    if (by.late)
        seen->cause = slow_cause(slow, rank, works, peer, factor, count);
    if (!slow_note(slow, &own->state, by.late, TESS__PACE_STEPS * seen->step_s))
        return;
    seen->late = by.late;
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
    const bool bad =
        seen->score <= SLOW_LINK && seen->late_s >= SLOW_SHARE / (1 + SLOW_SHARE) * step_s;
    if (!slow_note(slow, &link->state, bad, TESS__PACE_STEPS * step_s))
        return;
    seen->slow = bad;
    seen->since = link->state.since;
}

static void slow_judge_links(struct tess__slow *slow)
{
    slow->speed_count = 0;
    for (int32_t from = 0; from < slow->mesh.rank_count; from++)
        for (int32_t to = 0; to < slow->mesh.rank_count; to++) {
            const struct slow_link *link = &slow->link[from][to];
            if (link->window != slow->window)
                continue;
            slow->speed[slow->speed_count++] = (struct slow_speed){
                link->kind, from, to, link->busy_s > 0 ? link->bytes / link->busy_s : 0};
        }
    for (int32_t i = 0; i < slow->speed_count; i++)
        slow_judge_link(slow, &slow->speed[i]);
}

struct tess__slow *tess__slow_open(const struct tess_mesh *mesh, const char *const *host)
{
    struct tess__slow *slow = calloc(1, sizeof(*slow));
    if (slow == NULL)
        return NULL;
    slow->mesh = *mesh;
    slow->host = host;
    for (int32_t from = 0; from < mesh->rank_count; from++)
        for (int32_t to = 0; to < mesh->rank_count; to++) {
            struct slow_link *link = &slow->link[from][to];
            int32_t distance;
            const int axis = slow_axis(mesh, from, to, &distance);
            const bool here = strcmp(host[from], host[to]) == 0;
            link->kind = ((int64_t)distance * (TESS_AXIS_COUNT + 1) + axis) * 2 + here;
            link->window = -1;
            link->seen = (struct tess__slow_link){.from = from, .to = to, .axis = axis};
        }
    return slow;
}

void tess__slow_close(struct tess__slow *slow)
{
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
        slow_take_links(slow, message->rank, &links);
        return false;
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
            count += slow->link[r][to].seen.slow;
    }
    return count;
}
