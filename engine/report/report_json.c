/*
 * The documents of compare, scaling and tune batch --json, read into the report's structures. A
 * part that has the wrong type is left out with a note; the rest is kept.
 */
#include "report/report_data.h"

#include "tessera/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static enum tess_status json_no_memory(const struct tess__place *place)
{
    TESS_FAIL(TESS_ERR_MEMORY, "no memory for what is in %s", place->file);
}

/* ---- compare --------------------------------------------------------------------------------- */

static enum tess_status json_compared(const struct tess__place *place, const json_t *entry)
{
    struct tess__report_run *run;
    const char *name = NULL, *strategy = NULL;
    char path[512];
    if (!json_is_object(entry))
        return tess__report_note(place->report, place->file, 0,
                                 "an entry of \"runs\" is not an object: left out");
    TESS_TRY(tess__report_string(place, entry, "strategy", &strategy));
    TESS_TRY(tess__report_string(place, entry, "name", &name));
    if (!name)
        name = strategy ? strategy : "run";
    snprintf(path, sizeof(path), "%.*s/%s", 255, place->file, name);
    TESS_TRY(tess__report_add_run(place->report, path, &run));
    run->compared = run->final = true;
    run->strategy = strategy;
    run->lost = json_is_null(json_object_get(entry, "loss"));
    TESS_TRY(tess__report_string(place, entry, "goal", &run->goal));
    TESS_TRY(tess__report_string(place, entry, "model", &run->model));
    TESS_TRY(tess__report_string(place, entry, "precision", &run->precision));
    TESS_TRY(tess__report_string(place, entry, "hash", &run->hash));
    TESS_TRY(tess__report_number(place, entry, "ranks", &run->ranks));
    TESS_TRY(tess__report_number(place, entry, "batch_size", &run->batch));
    TESS_TRY(tess__report_number(place, entry, "learning_rate", &run->rate));
    TESS_TRY(tess__report_shape(place, entry, run));
    TESS_TRY(tess__report_number(place, entry, "loss", &run->loss));
    TESS_TRY(tess__report_number(place, entry, "val_loss", &run->val_loss));
    TESS_TRY(tess__report_number(place, entry, "val_accuracy", &run->val_accuracy));
    TESS_TRY(tess__report_number(place, entry, "samples_per_s", &run->speed));
    TESS_TRY(tess__report_number(place, entry, "comm_share", &run->comm_share));
    TESS_TRY(tess__report_number(place, entry, "steps", &run->steps));
    TESS_TRY(tess__report_number(place, entry, "time_s", &run->time_s));
    return tess__report_memory(place, json_object_get(entry, "memory"), run);
}

/* ---- scaling --------------------------------------------------------------------------------- */

/* Curves of "predicted" or "ring": objects with a name, a link and points. */
static enum tess_status json_curves(const struct tess__place *place, const json_t *array,
                                    const struct tess__fields *fields,
                                    struct tess__report_curve **curve_out, size_t *count_out)
{
    struct tess__report_curve *curve;
    size_t i;
    json_t *object;
    curve = tess__report_alloc(place->report, json_array_size(array) + 1, sizeof(*curve));
    if (!curve)
        return json_no_memory(place);
    *curve_out = curve;
    json_array_foreach(array, i, object)
    {
        TESS_TRY(tess__report_string(place, object, "strategy", &curve->name));
        TESS_TRY(tess__report_string(place, object, "link", &curve->link));
        TESS_TRY(tess__report_number(place, object, "ranks", &curve->ranks));
        TESS_TRY(tess__report_rows(place, json_object_get(object, "points"), fields, &curve->rows));
        if (curve->rows.count == 0) {
            TESS_TRY(tess__report_note(place->report, place->file, 0,
                                       "a curve of the scaling without points: left out"));
            continue;
        }
        curve++;
        ++*count_out;
    }
    return TESS_OK;
}

static enum tess_status json_links(const struct tess__place *place, const json_t *array,
                                   struct tess__report_scaling *scaling)
{
    struct tess__report_link *link;
    size_t i;
    json_t *object;
    link = tess__report_alloc(place->report, json_array_size(array) + 1, sizeof(*link));
    if (!link)
        return json_no_memory(place);
    scaling->link = link;
    json_array_foreach(array, i, object)
    {
        TESS_TRY(tess__report_string(place, object, "name", &link->name));
        TESS_TRY(tess__report_number(place, object, "latency_s", &link->latency_s));
        TESS_TRY(tess__report_number(place, object, "bandwidth", &link->bandwidth));
        link++;
        scaling->link_count++;
    }
    return TESS_OK;
}

static enum tess_status json_scaling(const struct tess__place *place, const json_t *object)
{
    struct tess__report *report = place->report;
    struct tess__report_scaling *scaling =
        tess__report_grow(report, report->scaling, report->scaling_count, sizeof(*scaling));
    if (!scaling)
        return json_no_memory(place);
    report->scaling = scaling;
    scaling += report->scaling_count++;
    scaling->path = tess__report_copy(report, place->file);
    if (!scaling->path)
        return json_no_memory(place);
    TESS_TRY(tess__report_string(place, object, "strategy", &scaling->strategy));
    TESS_TRY(tess__report_string(place, object, "model", &scaling->model));
    TESS_TRY(tess__report_string(place, object, "machine", &scaling->machine));
    TESS_TRY(tess__report_string(place, object, "mode", &scaling->mode));
    TESS_TRY(tess__report_number(place, object, "batch_size", &scaling->batch));
    TESS_TRY(tess__report_signed(place, object, "amdahl_p", &scaling->amdahl_p));
    TESS_TRY(tess__report_rows(place, json_object_get(object, "measured"), &tess__measured_fields,
                               &scaling->measured));
    TESS_TRY(json_links(place, json_object_get(object, "links"), scaling));
    TESS_TRY(json_curves(place, json_object_get(object, "predicted"), &tess__predicted_fields,
                         &scaling->predicted, &scaling->predicted_count));
    TESS_TRY(json_curves(place, json_object_get(object, "ring"), &tess__ring_fields, &scaling->ring,
                         &scaling->ring_count));
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
        tess__report_grow(report, report->tune, report->tune_count, sizeof(*tune));
    if (!tune)
        return json_no_memory(place);
    report->tune = tune;
    tune += report->tune_count++;
    tune->path = tess__report_copy(report, place->file);
    if (!tune->path)
        return json_no_memory(place);
    TESS_TRY(tess__report_string(place, object, "model", &tune->model));
    TESS_TRY(tess__report_string(place, object, "strategy", &tune->strategy));
    TESS_TRY(tess__report_number(place, object, "ranks", &tune->ranks));
    TESS_TRY(tess__report_number(place, object, "limit_bytes", &tune->limit_bytes));
    TESS_TRY(tess__report_number(place, object, "best_batch_size", &tune->best_batch));
    TESS_TRY(tess__report_number(place, object, "sample_tokens", &tune->tokens));
    TESS_TRY(tess__report_rows(place, json_object_get(object, "cases"), &tess__tune_fields,
                               &tune->cases));
    if (tune->cases.count == 0)
        TESS_FAIL(TESS_ERR_DATA, "%s: \"tune\" holds no case", place->file);
    return TESS_OK;
}

enum tess_status tess__report_load_document(struct tess__report *report, const char *file,
                                            json_t *document, bool *known_out)
{
    struct tess__place place = {report, file, 0};
    const json_t *runs = json_object_get(document, "runs");
    const json_t *scaling = json_object_get(document, "scaling");
    const json_t *tune = json_object_get(document, "tune");
    size_t i, before = report->run_count;
    json_t *entry;
    *known_out = json_is_array(runs) || json_is_object(scaling) || json_is_object(tune);
    if (json_is_array(runs)) {
        json_array_foreach(runs, i, entry) TESS_TRY(json_compared(&place, entry));
        if (report->run_count == before)
            TESS_FAIL(TESS_ERR_DATA, "%s: \"runs\" holds no run", file);
    }
    if (json_is_object(scaling))
        TESS_TRY(json_scaling(&place, scaling));
    if (json_is_object(tune))
        TESS_TRY(json_tune(&place, tune));
    return TESS_OK;
}
