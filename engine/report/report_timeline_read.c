/*
 * Reads a file of time lines (Chrome's trace format, as train --trace writes it). Responsible for
 * choosing a step and keeping what belongs to it; finding the events is report_events.c's. What the
 * picture shows is report_timeline.c's.
 */
#include "report/report_data.h"
#include "report/report_events.h"

#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* About 350 000 events: read in seconds, and more than a picture can show. */
#define TIMELINE_BYTES_MAX ((size_t)64 << 20)
/* Spans of one rank: a picture of more would be a blot. */
#define TIMELINE_SPANS_MAX 2000
/* Of a rank's memory: a plan writes fewer. */
#define TIMELINE_MOMENTS_MAX 4000
/* In us. Beyond 30 years it is no measurement, and no step is shorter than the clock's tick. */
#define TIMELINE_TIME_MAX   1e15
#define TIMELINE_STEP_LEAST 1e-3
#define TIMELINE_RANK_MAX   1e9

/* ---- choosing a step ------------------------------------------------------------------------- */

/* A rank's step; also, once they are put together, all ranks' step. */
struct timeline_step {
    double step, rank, begin, end; /* us */
    bool unfinished;
};

struct timeline_steps {
    struct timeline_step *step;
    size_t count;
};

/* event[key] as a number of an event that is perhaps damaged: NaN for anything else. */
static double timeline_real(const json_t *event, const char *key, double max)
{
    double value = json_is_real(json_object_get(event, key))
                       ? json_real_value(json_object_get(event, key))
                       : NAN;
    return value >= 0 && value <= max ? value : NAN;
}

static bool timeline_is(const json_t *event, const char *key, const char *wanted)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text && strcmp(text, wanted) == 0;
}

/* An event's step, if it is that of a rank's whole step. */
static bool timeline_read_step(const json_t *event, struct timeline_step *step)
{
    const char *name = json_string_value(json_object_get(event, "name"));
    const json_t *args = json_object_get(event, "args");
    if (!timeline_is(event, "ph", "X") || !timeline_is(event, "cat", "step") || !name ||
        strncmp(name, "step ", 5) != 0)
        return false;
    step->step = timeline_real(args, "step", 1e15);
    step->rank = timeline_real(event, "pid", TIMELINE_RANK_MAX);
    step->begin = timeline_real(event, "ts", TIMELINE_TIME_MAX);
    step->end = step->begin + timeline_real(event, "dur", TIMELINE_TIME_MAX);
    step->unfinished = json_is_true(json_object_get(args, "unfinished"));
    return !isnan(step->step) && !isnan(step->rank) &&
           step->end - step->begin >= TIMELINE_STEP_LEAST;
}

static void timeline_read_steps(struct tess__report *report, struct tess__events events,
                                struct timeline_steps *steps)
{
    json_t *event;
    json_error_t error;
    size_t line;
    while (tess__events_next(&events, &event, &line, &error)) {
        struct timeline_step step;
        if (timeline_read_step(event, &step))
            *(struct timeline_step *)tess__report_add(report, &steps->step, &steps->count,
                                                      sizeof(step)) = step;
        json_decref(event);
    }
}

static int timeline_compare(double a, double b)
{
    return (a > b) - (a < b);
}

static int timeline_by_step(const void *a, const void *b)
{
    const struct timeline_step *left = a, *right = b;
    int order = timeline_compare(left->step, right->step);
    return order != 0 ? order : timeline_compare(left->rank, right->rank);
}

/* Finished ones first, then by length. */
static int timeline_by_length(const void *a, const void *b)
{
    const struct timeline_step *left = a, *right = b;
    int order = left->unfinished - right->unfinished;
    if (order == 0)
        order = timeline_compare(left->end - left->begin, right->end - right->begin);
    return order != 0 ? order : timeline_compare(left->step, right->step);
}

/* Of `steps`, ordered by step: from its first rank's begin to its last rank's end each. */
static void timeline_choose(struct tess__report *report, const struct timeline_steps *steps,
                            struct tess__report_timeline *timeline)
{
    struct timeline_step *whole = tess__report_alloc(report, steps->count, sizeof(*whole));
    size_t count = 0, finished = 0;
    for (size_t i = 0; i < steps->count; i++) {
        const struct timeline_step *step = &steps->step[i];
        if (count == 0 || whole[count - 1].step != step->step) {
            whole[count++] = *step;
            continue;
        }
        whole[count - 1].begin = fmin(whole[count - 1].begin, step->begin);
        whole[count - 1].end = fmax(whole[count - 1].end, step->end);
        whole[count - 1].unfinished |= step->unfinished;
    }
    for (size_t i = 0; i < count; i++)
        finished += !whole[i].unfinished;
    qsort(whole, count, sizeof(*whole), timeline_by_length);
    timeline->step = whole[((finished > 0 ? finished : count) - 1) / 2].step;
    timeline->unfinished = finished == 0;
    timeline->step_count = count;
}

/* The lanes of the chosen step: lowest ranks first. *origin_out is its begin in us. */
static void timeline_open_lanes(const struct timeline_steps *steps,
                                struct tess__report_timeline *timeline, double *origin_out)
{
    double rank = NAN, begin = INFINITY, end = 0;
    for (size_t i = 0; i < steps->count; i++) {
        const struct timeline_step *step = &steps->step[i];
        struct tess__report_lane *lane;
        /* A rank that has the same step twice is damaged: the first counts. */
        if (step->step != timeline->step || step->rank == rank)
            continue;
        rank = step->rank;
        timeline->rank_count++;
        begin = fmin(begin, step->begin);
        end = fmax(end, step->end);
        if (timeline->lane_count == TESS__TIMELINE_RANKS)
            continue;
        lane = &timeline->lane[timeline->lane_count++];
        *lane = (struct tess__report_lane){.rank = rank, .begin = step->begin, .end = step->end};
    }
    timeline->length = (end - begin) / 1e3;
    *origin_out = begin;
}

/* ---- what belongs to it ---------------------------------------------------------------------- */

static enum tess__work timeline_work(const json_t *event, const char *name)
{
    static const struct {
        const char *word;
        enum tess__work work;
    } known[] = {
        {"forward", TESS__WORK_FORWARD},     {"backward", TESS__WORK_BACKWARD},
        {"optimizer", TESS__WORK_OPTIMIZER}, {"gradients", TESS__WORK_GRADIENTS},
        {"loading", TESS__WORK_LOADING},     {"loss", TESS__WORK_LOSS},
    };
    size_t length = strcspn(name, " ");

    if (timeline_is(event, "cat", "communication"))
        return TESS__WORK_CALL;
    if (timeline_is(event, "cat", "waiting"))
        return TESS__WORK_WAITING;
    if (!timeline_is(event, "cat", "compute"))
        return TESS__WORK_COUNT;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strlen(known[i].word) == length && memcmp(known[i].word, name, length) == 0)
            return known[i].work;
    return TESS__WORK_OTHER;
}

static struct tess__report_lane *timeline_lane(struct tess__report_timeline *timeline, double rank)
{
    for (int l = 0; l < timeline->lane_count; l++)
        if (timeline->lane[l].rank == rank)
            return &timeline->lane[l];
    return NULL;
}

static void timeline_keep(const struct tess__place *place, const json_t *event,
                          struct tess__report_span span, struct tess__report_lane *lane)
{
    const json_t *args = json_object_get(event, "args");
    double whole = span.end - span.begin;
    /* Times of the lane and of the span are both in us here. */
    span.begin = fmax(span.begin, lane->begin);
    span.end = fmin(span.end, lane->end);
    if (span.end < span.begin || (span.end == span.begin && whole > 0))
        return;
    if (lane->span_count == TIMELINE_SPANS_MAX) {
        lane->left_out++;
        return;
    }
    span.unfinished = json_is_true(json_object_get(args, "unfinished"));
    span.bytes = NAN;
    if (span.work == TESS__WORK_CALL) {
        span.bytes = tess__report_number(place, args, "bytes");
        span.site = tess__report_string(place, args, "site");
    }
    span.name = tess__report_text(place->report, "%s", span.name);
    *(struct tess__report_span *)tess__report_add(place->report, &lane->span, &lane->span_count,
                                                  sizeof(span)) = span;
}

/* Bytes by series: names that are not known, and what is no number of bytes, are left out. */
static void timeline_bytes(const json_t *event, double bytes[TESS__LIVE_SERIES])
{
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(event, "args"), name, value)
    {
        const int series = tess__report_live_series(name);
        if (series < TESS__LIVE_SERIES && json_number_value(value) >= 0)
            bytes[series] = json_number_value(value);
    }
}

/* A counter of the memory of a rank: its arena, or what is in use of it from this moment on. */
static void timeline_counter(const struct tess__place *place, const json_t *event, const char *name,
                             struct tess__report_timeline *timeline)
{
    const double rank = tess__report_number(place, event, "pid");
    const double at = tess__report_number(place, event, "ts");
    const bool arena = name != NULL && strcmp(name, "memory of the arena") == 0;
    if (name == NULL || (!arena && strcmp(name, "memory in use") != 0))
        return;
    if (isnan(rank) || !(at >= 0 && at <= TIMELINE_TIME_MAX)) {
        tess__report_note(place, "memory without a valid rank or time: left out");
        return;
    }
    struct tess__report_live *live =
        timeline->live_count > 0 ? &timeline->live[timeline->live_count - 1] : NULL;
    if (live == NULL || live->rank != rank) {
        live =
            tess__report_add(place->report, &timeline->live, &timeline->live_count, sizeof(*live));
        *live = (struct tess__report_live){.rank = rank};
    }
    if (arena) {
        timeline_bytes(event, live->reserved);
        return;
    }
    struct tess__report_moment moment = {.at = at};
    timeline_bytes(event, moment.bytes);
    if (live->moment_count > 0 && at < live->moment[live->moment_count - 1].at)
        tess__report_note(place, "memory at a moment before the last one: left out");
    else if (live->moment_count == TIMELINE_MOMENTS_MAX)
        tess__report_note(place, "memory of rank %.0f at more than %d moments: left out", rank,
                          TIMELINE_MOMENTS_MAX);
    else
        *(struct tess__report_moment *)tess__report_add(
            place->report, &live->moment, &live->moment_count, sizeof(moment)) = moment;
}

static void timeline_event(const struct tess__place *place, const json_t *event,
                           struct tess__report_timeline *timeline)
{
    struct tess__report_span span = {.name = json_string_value(json_object_get(event, "name"))};
    if (!json_is_object(event)) {
        tess__report_note(place, "an event that is not an object: left out");
        return;
    }
    if (span.name && strncmp(span.name, "time line full", 14) == 0) {
        tess__report_note(place, "%s", span.name);
        return;
    }
    if (timeline_is(event, "ph", "C"))
        timeline_counter(place, event, span.name, timeline);
    if (!timeline_is(event, "ph", "X"))
        return;
    if (!span.name)
        span.name = "without name";
    span.work = timeline_work(event, span.name);
    double rank = tess__report_number(place, event, "pid");
    double length = tess__report_number(place, event, "dur");
    span.begin = tess__report_number(place, event, "ts");
    span.end = span.begin + length;
    if (!(span.begin <= TIMELINE_TIME_MAX && length <= TIMELINE_TIME_MAX) || isnan(rank)) {
        tess__report_note(place, "an event without a valid rank or time: left out");
        return;
    }
    struct tess__report_lane *lane = timeline_lane(timeline, rank);
    if (lane && span.work != TESS__WORK_COUNT)
        timeline_keep(place, event, span, lane);
}

static void timeline_read_spans(struct tess__place *place, struct tess__events events,
                                struct tess__report_timeline *timeline)
{
    json_t *event;
    json_error_t error;
    while (tess__events_next(&events, &event, &place->line, &error)) {
        if (event)
            timeline_event(place, event, timeline);
        else
            tess__report_note(place, "not JSON (%s): the event is left out", error.text);
        json_decref(event);
    }
    place->line = events.line;
    if (events.cut)
        tess__report_note(place, "the file ends within this event: it is left out");
    else if (events.at == events.end)
        tess__report_note(place, "the file ends before its list of events does");
}

/* ---- the file -------------------------------------------------------------------------------- */

static int timeline_by_begin(const void *a, const void *b)
{
    const struct tess__report_span *left = a, *right = b;
    int order = timeline_compare(left->begin, right->begin);
    return order != 0 ? order : timeline_compare(left->end, right->end);
}

/* Times in ms after the step's begin, spans in order. */
static void timeline_finish(const struct tess__place *place, double origin,
                            struct tess__report_timeline *timeline)
{
    for (size_t i = 0; i < timeline->live_count; i++)
        for (size_t m = 0; m < timeline->live[i].moment_count; m++)
            timeline->live[i].moment[m].at =
                fmin(fmax(0, (timeline->live[i].moment[m].at - origin) / 1e3), timeline->length);
    for (int l = 0; l < timeline->lane_count; l++) {
        struct tess__report_lane *lane = &timeline->lane[l];
        lane->begin = (lane->begin - origin) / 1e3;
        lane->end = (lane->end - origin) / 1e3;
        for (size_t i = 0; i < lane->span_count; i++) {
            lane->span[i].begin = (lane->span[i].begin - origin) / 1e3;
            lane->span[i].end = (lane->span[i].end - origin) / 1e3;
        }
        if (lane->span_count > 0)
            qsort(lane->span, lane->span_count, sizeof(*lane->span), timeline_by_begin);
        if (lane->left_out > 0)
            tess__report_note(place,
                              "step %.0f of rank %.0f has %zu events more than the %d that are "
                              "shown",
                              timeline->step, lane->rank, lane->left_out, TIMELINE_SPANS_MAX);
    }
}

enum tess_status tess__report_load_timeline(struct tess__report *report, const char *file,
                                            const char *text, size_t bytes, bool *known_out)
{
    struct tess__place place = {report, file, 0};
    struct timeline_steps steps = {0};
    struct tess__events events;
    struct tess__report_timeline *timeline;
    json_t *about;
    double origin;
    *known_out = tess__events_find(text, bytes, &events, &about);
    const char *model = tess__report_string(&place, about, "model");
    const char *strategy = tess__report_string(&place, about, "strategy");
    const bool predicted = json_object_get(about, "predicted") != NULL;
    json_decref(about);
    if (!*known_out)
        return TESS_OK;
    if (bytes > TIMELINE_BYTES_MAX)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s is a time line of %zu MiB, and a report reads %zu MiB at most: record fewer "
                  "steps (tessera train --trace-steps)",
                  file, bytes >> 20, TIMELINE_BYTES_MAX >> 20);
    timeline_read_steps(report, events, &steps);
    if (steps.count == 0)
        TESS_FAIL(TESS_ERR_DATA,
                  "%s: its events hold no step; a report needs time lines written with tessera "
                  "train --trace",
                  file);
    timeline =
        tess__report_add(report, &report->timeline, &report->timeline_count, sizeof(*timeline));
    timeline->path = tess__report_text(report, "%s", file);
    qsort(steps.step, steps.count, sizeof(*steps.step), timeline_by_step);
    timeline_choose(report, &steps, timeline);
    timeline_open_lanes(&steps, timeline, &origin);
    timeline->model = model;
    timeline->strategy = strategy;
    timeline->predicted = predicted;
    timeline_read_spans(&place, events, timeline);
    place.line = 0;
    timeline_finish(&place, origin, timeline);
    return TESS_OK;
}
