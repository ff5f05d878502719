/*
 * The documents of compare, scaling, tune batch and plan --json, read into the report's structures.
 * A part that has the wrong type is left out with a note; the rest is kept.
 */
#include "report/report_data.h"

#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- compare --------------------------------------------------------------------------------- */

static enum tess_status json_compared(const struct tess__place *place, const json_t *entry)
{
    struct tess__report_run *run;
    if (!json_is_object(entry)) {
        tess__report_note(place, "an entry of \"runs\" is not an object: left out");
        return TESS_OK;
    }
    const char *name = tess__report_string(place, entry, "name");
    TESS_TRY(tess__report_add_run(place->report, place->file, &run));
    run->compared = run->final = true;
    run->lost = json_is_null(json_object_get(entry, "loss"));
    tess__report_run_members(place, entry, run);
    if (name == NULL)
        name = run->strategy != NULL ? run->strategy : "run";
    run->path = tess__report_text(place->report, "%.255s/%s", place->file, name);
    tess__report_memory(place, json_object_get(entry, "memory"), run);
    return TESS_OK;
}

/* ---- scaling --------------------------------------------------------------------------------- */

#define CURVE(member)   offsetof(struct tess__report_curve, member)
#define LINK(member)    offsetof(struct tess__report_link, member)
#define SCALING(member) offsetof(struct tess__report_scaling, member)
#define TUNE(member)    offsetof(struct tess__report_tune, member)

static const struct tess__member json_curve_members[] = {
    {"strategy", TESS__MEMBER_TEXT, CURVE(name)},
    {"link", TESS__MEMBER_TEXT, CURVE(link)},
    {"ranks", TESS__MEMBER_NUMBER, CURVE(ranks)},
    {NULL, TESS__MEMBER_TEXT, 0},
};
static const struct tess__member json_link_members[] = {
    {"name", TESS__MEMBER_TEXT, LINK(name)},
    {"latency_s", TESS__MEMBER_NUMBER, LINK(latency_s)},
    {"bandwidth", TESS__MEMBER_NUMBER, LINK(bandwidth)},
    {NULL, TESS__MEMBER_TEXT, 0},
};
static const struct tess__member json_scaling_members[] = {
    {"strategy", TESS__MEMBER_TEXT, SCALING(strategy)},
    {"model", TESS__MEMBER_TEXT, SCALING(model)},
    {"machine", TESS__MEMBER_TEXT, SCALING(machine)},
    {"mode", TESS__MEMBER_TEXT, SCALING(mode)},
    {"batch_size", TESS__MEMBER_NUMBER, SCALING(batch)},
    {"amdahl_p", TESS__MEMBER_SIGNED, SCALING(amdahl_p)},
    {NULL, TESS__MEMBER_TEXT, 0},
};
static const struct tess__member json_tune_members[] = {
    {"model", TESS__MEMBER_TEXT, TUNE(model)},
    {"strategy", TESS__MEMBER_TEXT, TUNE(strategy)},
    {"ranks", TESS__MEMBER_NUMBER, TUNE(ranks)},
    {"limit_bytes", TESS__MEMBER_NUMBER, TUNE(limit_bytes)},
    {"best_batch_size", TESS__MEMBER_NUMBER, TUNE(best_batch)},
    {"sample_tokens", TESS__MEMBER_NUMBER, TUNE(tokens)},
    {NULL, TESS__MEMBER_TEXT, 0},
};

/* Curves of "predicted" or "ring": objects with a name, a link and points. */
static void json_curves(const struct tess__place *place, const json_t *array,
                        const struct tess__fields *fields, struct tess__report_curve **curves,
                        size_t *count)
{
    size_t i;
    json_t *object;
    json_array_foreach(array, i, object)
    {
        struct tess__report_curve curve = {0};
        tess__report_members(place, object, json_curve_members, &curve);
        tess__report_rows(place, json_object_get(object, "points"), fields, &curve.rows);
        if (curve.rows.count == 0)
            tess__report_note(place, "a curve of the scaling without points: left out");
        else
            *(struct tess__report_curve *)tess__report_add(place->report, curves, count,
                                                           sizeof(curve)) = curve;
    }
}

static enum tess_status json_scaling(const struct tess__place *place, const json_t *object)
{
    struct tess__report *report = place->report;
    struct tess__report_scaling *scaling =
        tess__report_add(report, &report->scaling, &report->scaling_count, sizeof(*scaling));
    size_t i;
    json_t *link;
    scaling->path = tess__report_text(report, "%s", place->file);
    tess__report_members(place, object, json_scaling_members, scaling);
    tess__report_rows(place, json_object_get(object, "measured"), &tess__measured_fields,
                      &scaling->measured);
    json_array_foreach(json_object_get(object, "links"), i, link) tess__report_members(
        place, link, json_link_members,
        tess__report_add(report, &scaling->link, &scaling->link_count, sizeof(*scaling->link)));
    json_curves(place, json_object_get(object, "predicted"), &tess__predicted_fields,
                &scaling->predicted, &scaling->predicted_count);
    json_curves(place, json_object_get(object, "ring"), &tess__ring_fields, &scaling->ring,
                &scaling->ring_count);
    if (scaling->measured.count + scaling->predicted_count + scaling->ring_count == 0)
        TESS_FAIL(TESS_ERR_DATA, "%s: \"scaling\" holds no measurement and no prediction",
                  place->file);
    return TESS_OK;
}

/* ---- tune ------------------------------------------------------------------------------------ */

static enum tess_status json_tune(const struct tess__place *place, const json_t *object)
{
    struct tess__report *report = place->report;
    struct tess__report_tune *tune =
        tess__report_add(report, &report->tune, &report->tune_count, sizeof(*tune));
    tune->path = tess__report_text(report, "%s", place->file);
    tess__report_members(place, object, json_tune_members, tune);
    tess__report_rows(place, json_object_get(object, "cases"), &tess__tune_fields, &tune->cases);
    if (tune->cases.count == 0)
        TESS_FAIL(TESS_ERR_DATA, "%s: \"tune\" holds no case", place->file);
    return TESS_OK;
}

/* ---- plan ------------------------------------------------------------------------------------ */

#define LAYOUT(member) offsetof(struct tess__report_layout, member)
#define PLAN(member)   offsetof(struct tess__report_plan, member)

static const struct tess__member json_layout_members[] = {
    {"name", TESS__MEMBER_TEXT, LAYOUT(name)},
    {"limited_by", TESS__MEMBER_TEXT, LAYOUT(limited_by)},
    {"step_s", TESS__MEMBER_NUMBER, LAYOUT(step_s)},
    {"exposed_s", TESS__MEMBER_NUMBER, LAYOUT(exposed_s)},
    {"measured_s", TESS__MEMBER_NUMBER, LAYOUT(measured_s)},
    {NULL, TESS__MEMBER_TEXT, 0},
};
static const struct tess__member json_plan_members[] = {
    {"model", TESS__MEMBER_TEXT, PLAN(model)},
    {"cluster", TESS__MEMBER_TEXT, PLAN(cluster)},
    {"ranks", TESS__MEMBER_NUMBER, PLAN(ranks)},
    {NULL, TESS__MEMBER_TEXT, 0},
};

static bool json_ends(const char *text, const char *end)
{
    const size_t length = strlen(text), part = strlen(end);
    return length >= part && strcmp(text + length - part, end) == 0;
}

/* What one option adds to a layout's label; "": nothing. */
static const char *json_option_label(const struct tess__place *place, const char *name,
                                     const json_t *value)
{
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    if (strcmp(name, "recompute") == 0)
        return strcmp(text, "none") == 0 ? "" : strcmp(text, "selective") == 0 ? "sel." : text;
    if (strcmp(name, "precision") == 0)
        return text;
    if (json_ends(name, ".sequence-parallel"))
        return json_is_true(value) ? "sp" : "";
    if (json_ends(name, ".reshard-after-forward"))
        return strcmp(text, "off") == 0 ? "kept" : "";
    if (strcmp(name, "chunks") == 0 && json_number_value(value) > 1)
        return tess__report_text(place->report, "%.0fch", json_number_value(value));
    if (json_ends(name, ".bucket-mib"))
        return tess__report_text(place->report, "%.20sMiB", text);
    return "";
}

/* "3. fsdp+tp 4x2x1 8mb sel.": short, as a picture cuts long ones in the middle. Names what layouts
 * of one mesh differ in. */
static const char *json_layout_label(const struct tess__place *place, const json_t *object,
                                     size_t number)
{
    const json_t *mesh = json_object_get(object, "mesh");
    json_t *options = json_object_get(object, "options"), *value;
    const char *strategy = tess__report_string(place, object, "strategy"), *name;
    const char *label = tess__report_text(
        place->report, "%zu. %.40s %.0fx%.0fx%.0f %.0fmb", number,
        strategy != NULL ? strategy : "?", tess__report_number(place, mesh, "data"),
        tess__report_number(place, mesh, "tensor"), tess__report_number(place, mesh, "stage"),
        tess__report_number(place, options, "accumulate"));
    json_object_foreach(options, name, value)
    {
        const char *text = json_option_label(place, name, value);
        if (*text != '\0')
            label = tess__report_text(place->report, "%.120s %.20s", label, text);
    }
    return label;
}

static void json_layout(const struct tess__place *place, const json_t *object,
                        struct tess__report_plan *plan)
{
    const json_t *memory = json_object_get(object, "memory");
    struct tess__report_layout layout = {0};
    tess__report_members(place, object, json_layout_members, &layout);
    if (layout.name == NULL || !(layout.step_s > 0)) {
        tess__report_note(place, "a layout without a name or a time of its step: left out");
        return;
    }
    layout.label = json_layout_label(place, object, plan->layout_count + 1);
    if (!(layout.exposed_s > 0))
        layout.exposed_s = 0;
    for (int kind = 0; kind < TESS_MEMORY_KIND_COUNT; kind++)
        layout.kind[kind] =
            fmax(0, tess__report_number(place, memory,
                                        tess_memory_kind_name((enum tess_memory_kind)kind)));
    *(struct tess__report_layout *)tess__report_add(place->report, &plan->layout,
                                                    &plan->layout_count, sizeof(layout)) = layout;
}

/* With --try a plan has them in order of what was measured. */
static int json_faster(const void *a, const void *b)
{
    const struct tess__report_layout *one = a, *other = b;
    return (one->step_s > other->step_s) - (one->step_s < other->step_s);
}

static enum tess_status json_plan(const struct tess__place *place, const json_t *object,
                                  const json_t *layouts)
{
    struct tess__report *report = place->report;
    struct tess__report_plan plan = {.path = tess__report_text(report, "%s", place->file)};
    size_t i;
    json_t *layout;
    tess__report_members(place, object, json_plan_members, &plan);
    json_array_foreach(layouts, i, layout) json_layout(place, layout, &plan);
    if (plan.layout_count == 0)
        TESS_FAIL(TESS_ERR_DATA, "%s: \"layouts\" holds no layout with a predicted step",
                  place->file);
    qsort(plan.layout, plan.layout_count, sizeof(*plan.layout), json_faster);
    *(struct tess__report_plan *)tess__report_add(report, &report->plan, &report->plan_count,
                                                  sizeof(plan)) = plan;
    return TESS_OK;
}

enum tess_status tess__report_load_document(struct tess__report *report, const char *file,
                                            json_t *document, bool *known_out)
{
    struct tess__place place = {report, file, 0};
    const json_t *runs = json_object_get(document, "runs");
    const json_t *scaling = json_object_get(document, "scaling");
    const json_t *tune = json_object_get(document, "tune");
    const json_t *layouts = json_object_get(document, "layouts");
    size_t i, before = report->run_count;
    json_t *entry;
    *known_out = json_is_array(runs) || json_is_object(scaling) || json_is_object(tune) ||
                 json_is_array(layouts);
    if (json_is_array(runs)) {
        json_array_foreach(runs, i, entry) TESS_TRY(json_compared(&place, entry));
        if (report->run_count == before)
            TESS_FAIL(TESS_ERR_DATA, "%s: \"runs\" holds no run", file);
    }
    if (json_is_object(scaling))
        TESS_TRY(json_scaling(&place, scaling));
    if (json_is_object(tune))
        TESS_TRY(json_tune(&place, tune));
    if (json_is_array(layouts))
        TESS_TRY(json_plan(&place, document, layouts));
    return TESS_OK;
}
