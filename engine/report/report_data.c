/*
 * The store behind a report: its memory, its notes, and the checks that every number and string of
 * a file passes before it gets in. Which file holds what is the readers' business.
 */
#include "report/report_data.h"

#include "tessera/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_NOTES_PER_FILE 20
#define REPORT_RUNS_MAX       500
/* Far beyond any loss or byte count, and squares of it are still numbers. */
#define REPORT_NUMBER_MAX 1e100

#define REPORT_KEY(index, key) key,
const struct tess__fields tess__step_fields = {
    "step", TESS__STEP_WIDTH, {TESS__STEP_FIELDS(REPORT_KEY)}};
const struct tess__fields tess__epoch_fields = {
    "epoch", TESS__EPOCH_WIDTH, {TESS__EPOCH_FIELDS(REPORT_KEY)}};
const struct tess__fields tess__time_fields = {
    "rank's times", TESS__TIME_WIDTH, {TESS__TIME_FIELDS(REPORT_KEY)}};
const struct tess__fields tess__device_fields = {
    "device's sample", TESS__DEVICE_WIDTH, {TESS__DEVICE_FIELDS(REPORT_KEY)}};
const struct tess__fields tess__measured_fields = {
    "measurement", TESS__MEASURED_WIDTH, {TESS__MEASURED_FIELDS(REPORT_KEY)}};
const struct tess__fields tess__predicted_fields = {
    "prediction", TESS__PREDICTED_WIDTH, {TESS__PREDICTED_FIELDS(REPORT_KEY)}};
const struct tess__fields tess__ring_fields = {
    "all-reduce", TESS__RING_WIDTH, {TESS__RING_FIELDS(REPORT_KEY)}};
const struct tess__fields tess__tune_fields = {
    "case", TESS__TUNE_WIDTH, {TESS__TUNE_FIELDS(REPORT_KEY)}};
#undef REPORT_KEY

/* ---- memory ---------------------------------------------------------------------------------- */

struct tess__report_block {
    struct tess__report_block *next;
    max_align_t bytes[];
};

void *tess__report_alloc(struct tess__report *report, size_t count, size_t bytes)
{
    struct tess__report_block *block;
    if (bytes != 0 && count > (SIZE_MAX / 2) / bytes)
        return NULL;
    block = calloc(1, sizeof(*block) + count * bytes);
    if (!block)
        return NULL;
    block->next = report->block;
    report->block = block;
    return block->bytes;
}

const char *tess__report_copy(struct tess__report *report, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = tess__report_alloc(report, bytes, 1);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

void *tess__report_grow(struct tess__report *report, void *items, size_t count, size_t bytes)
{
    void *larger;
    /* Room is a power of two, so it is full when the count is one. */
    if ((count & (count - 1)) != 0)
        return items;
    larger = tess__report_alloc(report, count > 0 ? 2 * count : 1, bytes);
    if (larger && count > 0)
        memcpy(larger, items, count * bytes);
    return larger;
}

void tess__report_close(struct tess__report *report)
{
    while (report->block) {
        struct tess__report_block *next = report->block->next;
        free(report->block);
        report->block = next;
    }
    json_decref(report->documents);
}

/* ---- notes ----------------------------------------------------------------------------------- */

static enum tess_status report_data_add_note(struct tess__report *report, const char *file,
                                             size_t line, const char *text)
{
    struct tess__report_note *note =
        tess__report_grow(report, report->note, report->note_count, sizeof(*note));
    if (!note)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the report's notes");
    report->note = note;
    note += report->note_count++;
    note->file = tess__report_copy(report, file);
    note->line = line;
    note->text = tess__report_copy(report, text);
    if (!note->file || !note->text)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the report's notes");
    return TESS_OK;
}

enum tess_status tess__report_note(struct tess__report *report, const char *file, size_t line,
                                   const char *format, ...)
{
    char text[512];
    va_list rest;
    if (++report->file_notes > REPORT_NOTES_PER_FILE)
        return TESS_OK;
    va_start(rest, format);
    vsnprintf(text, sizeof(text), format, rest);
    va_end(rest);
    return report_data_add_note(report, file, line, text);
}

void tess__report_notes_begin(struct tess__report *report)
{
    report->file_notes = 0;
}

enum tess_status tess__report_notes_end(struct tess__report *report, const char *file)
{
    char text[64];
    if (report->file_notes <= REPORT_NOTES_PER_FILE)
        return TESS_OK;
    snprintf(text, sizeof(text), "and %zu more of this kind",
             report->file_notes - REPORT_NOTES_PER_FILE);
    return report_data_add_note(report, file, 0, text);
}

/* ---- values ---------------------------------------------------------------------------------- */

static enum tess_status report_data_number(const struct tess__place *place, const json_t *object,
                                           const char *key, double least, double *value_out)
{
    const json_t *value = json_object_get(object, key);
    double number = json_number_value(value);
    *value_out = NAN;
    if (!value || json_is_null(value))
        return TESS_OK;
    if (!json_is_number(value))
        return tess__report_note(place->report, place->file, place->line,
                                 "%s is not a number: taken as missing", key);
    if (number < least || number > REPORT_NUMBER_MAX)
        return tess__report_note(place->report, place->file, place->line,
                                 "%s is %g, which is out of range: taken as missing", key, number);
    *value_out = number;
    return TESS_OK;
}

enum tess_status tess__report_number(const struct tess__place *place, const json_t *object,
                                     const char *key, double *value_out)
{
    return report_data_number(place, object, key, 0, value_out);
}

enum tess_status tess__report_signed(const struct tess__place *place, const json_t *object,
                                     const char *key, double *value_out)
{
    return report_data_number(place, object, key, -REPORT_NUMBER_MAX, value_out);
}

enum tess_status tess__report_string(const struct tess__place *place, const json_t *object,
                                     const char *key, const char **text_out)
{
    const json_t *value = json_object_get(object, key);
    *text_out = NULL;
    if (!value || json_is_null(value))
        return TESS_OK;
    if (!json_is_string(value))
        return tess__report_note(place->report, place->file, place->line,
                                 "%s is not text: taken as missing", key);
    *text_out = tess__report_copy(place->report, json_string_value(value));
    if (!*text_out)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the report's text");
    return TESS_OK;
}

enum tess_status tess__report_shape(const struct tess__place *place, const json_t *object,
                                    struct tess__report_run *run)
{
    const json_t *mesh = json_object_get(object, "mesh");
    double data, tensor, stage;
    char text[64];
    TESS_TRY(tess__report_number(place, object, "sample_tokens", &run->tokens));
    if (isnan(run->tokens))
        run->tokens = 0;
    TESS_TRY(tess__report_number(place, mesh, "data", &data));
    TESS_TRY(tess__report_number(place, mesh, "tensor", &tensor));
    TESS_TRY(tess__report_number(place, mesh, "stage", &stage));
    if (isnan(data) || isnan(tensor) || isnan(stage) || (tensor <= 1 && stage <= 1))
        return TESS_OK;
    snprintf(text, sizeof(text), "%.6g x %.6g x %.6g", data, tensor, stage);
    run->mesh = tess__report_copy(place->report, text);
    if (!run->mesh)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the report's text");
    return TESS_OK;
}

static enum tess_status report_data_make_room(struct tess__report *report, struct tess__rows *rows)
{
    size_t width = (size_t)rows->fields->width, room = rows->room > 0 ? 2 * rows->room : 32;
    double *larger;
    if (rows->count < rows->room)
        return TESS_OK;
    larger = tess__report_alloc(report, room, width * sizeof(*larger));
    if (!larger)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu records of a report", room);
    if (rows->count > 0)
        memcpy(larger, rows->value, rows->count * width * sizeof(*larger));
    rows->value = larger;
    rows->room = room;
    return TESS_OK;
}

enum tess_status tess__report_row(const struct tess__place *place, const json_t *object,
                                  const struct tess__fields *fields, struct tess__rows *rows)
{
    rows->fields = fields;
    if (!json_is_object(object))
        return tess__report_note(place->report, place->file, place->line,
                                 "a %s is not an object: left out", fields->what);
    TESS_TRY(report_data_make_room(place->report, rows));
    double *row = rows->value + rows->count * (size_t)fields->width;
    for (int f = 0; f < fields->width; f++)
        TESS_TRY(tess__report_number(place, object, fields->key[f], &row[f]));
    if (isnan(row[0]))
        return tess__report_note(place->report, place->file, place->line,
                                 "a %s without \"%s\": left out", fields->what, fields->key[0]);
    rows->count++;
    return TESS_OK;
}

enum tess_status tess__report_rows(const struct tess__place *place, const json_t *array,
                                   const struct tess__fields *fields, struct tess__rows *rows)
{
    size_t i;
    json_t *object;
    rows->fields = fields;
    json_array_foreach(array, i, object) TESS_TRY(tess__report_row(place, object, fields, rows));
    return TESS_OK;
}

enum tess_status tess__report_memory(const struct tess__place *place, const json_t *array,
                                     struct tess__report_run *run)
{
    size_t i;
    json_t *object;
    run->memory_count = 0;
    run->memory =
        tess__report_alloc(place->report, json_array_size(array) + 1, sizeof(*run->memory));
    if (!run->memory)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a run's memory table");
    json_array_foreach(array, i, object)
    {
        struct tess__report_memory *memory = &run->memory[run->memory_count];
        const json_t *kinds = json_object_get(object, "allocated");
        if (!json_is_object(kinds))
            kinds = json_object_get(object, "predicted");
        TESS_TRY(tess__report_number(place, object, "rank", &memory->rank));
        TESS_TRY(tess__report_number(place, object, "peak_rss", &memory->peak_rss));
        if (isnan(memory->rank) || !json_is_object(kinds)) {
            TESS_TRY(tess__report_note(place->report, place->file, place->line,
                                       "memory of a rank without \"rank\" or \"allocated\": left "
                                       "out"));
            continue;
        }
        for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++) {
            const char *name = tess_memory_kind_name((enum tess_memory_kind)k);
            TESS_TRY(tess__report_number(place, kinds, name, &memory->kind[k]));
            if (isnan(memory->kind[k]))
                memory->kind[k] = 0;
        }
        run->memory_count++;
    }
    return TESS_OK;
}

/* ---- runs ------------------------------------------------------------------------------------ */

void tess__report_clear_run(struct tess__report_run *run)
{
    const struct tess__report_run none = {
        .path = run->path,
        .order = run->order,
        .step.fields = &tess__step_fields,
        .epoch.fields = &tess__epoch_fields,
        .times.fields = &tess__time_fields,
        .device.fields = &tess__device_fields,
        .ranks = NAN,
        .parameters = NAN,
        .steps_planned = NAN,
        .batch = NAN,
        .rate = NAN,
        .val_loss = NAN,
        .val_accuracy = NAN,
        .loss = NAN,
        .speed = NAN,
        .comm_share = NAN,
        .steps = NAN,
        .time_s = NAN,
        .failed_step = NAN,
        .rate_of_row = 1,
    };
    *run = none;
}

enum tess_status tess__report_add_run(struct tess__report *report, const char *path,
                                      struct tess__report_run **run_out)
{
    struct tess__report_run *run =
        tess__report_grow(report, report->run, report->run_count, sizeof(*run));
    if (report->run_count >= REPORT_RUNS_MAX)
        TESS_FAIL(TESS_ERR_DATA, "more than %d runs: too many for one report", REPORT_RUNS_MAX);
    if (!run)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu runs", report->run_count + 1);
    report->run = run;
    run += report->run_count++;
    run->order = report->run_count;
    run->path = tess__report_copy(report, path);
    if (!run->path)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu runs", report->run_count);
    tess__report_clear_run(run);
    *run_out = run;
    return TESS_OK;
}

bool tess__report_same(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

enum tess__report_state tess__report_state(const struct tess__report_run *run)
{
    if (!isnan(run->failed_step) || run->lost)
        return TESS__REPORT_FAILED;
    return run->final ? TESS__REPORT_FINISHED : TESS__REPORT_CUT_SHORT;
}
