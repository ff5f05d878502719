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
    struct tess__report_block *block = NULL;
    if (count <= (SIZE_MAX / 2) / bytes)
        block = calloc(1, sizeof(*block) + count * bytes);
    if (block == NULL)
        exit(tess_status_exit_code(tess_fail(TESS_ERR_MEMORY, "no memory for the report")));
    block->next = report->block;
    report->block = block;
    return block->bytes;
}

const char *tess__report_text(struct tess__report *report, const char *format, ...)
{
    va_list rest;
    va_start(rest, format);
    size_t bytes = (size_t)vsnprintf(NULL, 0, format, rest) + 1;
    va_end(rest);
    char *text = tess__report_alloc(report, bytes, 1);
    va_start(rest, format);
    vsnprintf(text, bytes, format, rest);
    va_end(rest);
    return text;
}

void *tess__report_add(struct tess__report *report, void *items, size_t *count, size_t bytes)
{
    unsigned char *array;
    memcpy(&array, items, sizeof(array));
    /* Room is a power of two, so it is full when the count is one. */
    if ((*count & (*count - 1)) == 0) {
        unsigned char *larger = tess__report_alloc(report, *count > 0 ? 2 * *count : 1, bytes);
        if (*count > 0)
            memcpy(larger, array, *count * bytes);
        array = larger;
        memcpy(items, &array, sizeof(array));
    }
    return array + bytes * (*count)++;
}

void tess__report_close(struct tess__report *report)
{
    for (size_t i = 0; i < report->run_count; i++) {
        json_decref(report->run[i].options);
        json_decref(report->run[i].pace);
    }
    while (report->block) {
        struct tess__report_block *next = report->block->next;
        free(report->block);
        report->block = next;
    }
}

/* ---- notes ----------------------------------------------------------------------------------- */

static void data_add_note(struct tess__report *report, const char *file, size_t line,
                          const char *text)
{
    struct tess__report_note *note =
        tess__report_add(report, &report->note, &report->note_count, sizeof(*note));
    note->file = tess__report_text(report, "%s", file);
    note->line = line;
    note->text = tess__report_text(report, "%s", text);
}

void tess__report_note(const struct tess__place *place, const char *format, ...)
{
    char text[512];
    va_list rest;
    if (++place->report->file_notes > REPORT_NOTES_PER_FILE)
        return;
    va_start(rest, format);
    vsnprintf(text, sizeof(text), format, rest);
    va_end(rest);
    data_add_note(place->report, place->file, place->line, text);
}

void tess__report_notes_end(struct tess__report *report, const char *file)
{
    char text[64];
    snprintf(text, sizeof(text), "and %zu more of this kind",
             report->file_notes - REPORT_NOTES_PER_FILE);
    if (report->file_notes > REPORT_NOTES_PER_FILE)
        data_add_note(report, file, 0, text);
    report->file_notes = 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

static double data_number(const struct tess__place *place, const json_t *object, const char *key,
                          double least)
{
    const json_t *value = json_object_get(object, key);
    double number = json_number_value(value);
    if (!value || json_is_null(value))
        return NAN;
    if (json_is_number(value) && number >= least && number <= REPORT_NUMBER_MAX)
        return number;
    if (json_is_number(value))
        tess__report_note(place, "%s is %g, which is out of range: taken as missing", key, number);
    else
        tess__report_note(place, "%s is not a number: taken as missing", key);
    return NAN;
}

double tess__report_number(const struct tess__place *place, const json_t *object, const char *key)
{
    return data_number(place, object, key, 0);
}

const char *tess__report_string(const struct tess__place *place, const json_t *object,
                                const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (json_is_string(value))
        return tess__report_text(place->report, "%s", json_string_value(value));
    if (value && !json_is_null(value))
        tess__report_note(place, "%s is not text: taken as missing", key);
    return NULL;
}

void tess__report_members(const struct tess__place *place, const json_t *object,
                          const struct tess__member *members, void *target)
{
    for (; members->key; members++) {
        void *at = (char *)target + members->offset;
        const char **text = at;
        double *number = at;
        if (members->kind == TESS__MEMBER_TEXT)
            *text = *text ? *text : tess__report_string(place, object, members->key);
        else if (!(*number > 0))
            *number = data_number(place, object, members->key,
                                  members->kind == TESS__MEMBER_SIGNED ? -REPORT_NUMBER_MAX : 0);
    }
}

#define RUN(member) offsetof(struct tess__report_run, member)

/* Of a run's head and its final line, and of an entry of compare. */
static const struct tess__member data_run_members[] = {
    {"model", TESS__MEMBER_TEXT, RUN(model)},
    {"strategy", TESS__MEMBER_TEXT, RUN(strategy)},
    {"precision", TESS__MEMBER_TEXT, RUN(precision)},
    {"hash", TESS__MEMBER_TEXT, RUN(hash)},
    {"goal", TESS__MEMBER_TEXT, RUN(goal)},
    {"ranks", TESS__MEMBER_NUMBER, RUN(ranks)},
    {"batch_size", TESS__MEMBER_NUMBER, RUN(batch)},
    {"learning_rate", TESS__MEMBER_NUMBER, RUN(rate)},
    {"steps_per_epoch", TESS__MEMBER_NUMBER, RUN(epoch_steps)},
    {"sample_tokens", TESS__MEMBER_NUMBER, RUN(tokens)},
    {"loss", TESS__MEMBER_NUMBER, RUN(loss)},
    {"val_loss", TESS__MEMBER_NUMBER, RUN(val_loss)},
    {"val_accuracy", TESS__MEMBER_NUMBER, RUN(val_accuracy)},
    {"samples_per_s", TESS__MEMBER_NUMBER, RUN(speed)},
    {"comm_share", TESS__MEMBER_NUMBER, RUN(comm_share)},
    {"time_s", TESS__MEMBER_NUMBER, RUN(time_s)},
    {NULL, TESS__MEMBER_TEXT, 0},
};

void tess__report_run_members(const struct tess__place *place, const json_t *object,
                              struct tess__report_run *run)
{
    const json_t *mesh = json_object_get(object, "mesh"), *data = json_object_get(object, "data");
    tess__report_members(place, object, data_run_members, run);
    if (json_is_object(data)) {
        run->data = tess__report_string(place, data, "set");
        run->data_id = tess__report_string(place, data, "train");
    }
    run->shares_cores |= json_is_true(json_object_get(object, "shared_cores"));
    if (!json_is_object(mesh))
        return;
    double rows = tess__report_number(place, mesh, "data");
    double tensor = tess__report_number(place, mesh, "tensor");
    double stage = tess__report_number(place, mesh, "stage");
    if (!isnan(rows) && !isnan(tensor) && !isnan(stage) && (tensor > 1 || stage > 1))
        run->mesh = tess__report_text(place->report, "%.6g x %.6g x %.6g", rows, tensor, stage);
}

void tess__report_row(const struct tess__place *place, const json_t *object,
                      const struct tess__fields *fields, struct tess__rows *rows)
{
    double row[TESS__FIELDS_MAX];
    size_t bytes = (size_t)fields->width * sizeof(row[0]);
    rows->fields = fields;
    if (!json_is_object(object)) {
        tess__report_note(place, "a %s is not an object: left out", fields->what);
        return;
    }
    for (int f = 0; f < fields->width; f++)
        row[f] = tess__report_number(place, object, fields->key[f]);
    if (isnan(row[0]))
        tess__report_note(place, "a %s without \"%s\": left out", fields->what, fields->key[0]);
    else
        memcpy(tess__report_add(place->report, &rows->value, &rows->count, bytes), row, bytes);
}

void tess__report_rows(const struct tess__place *place, const json_t *array,
                       const struct tess__fields *fields, struct tess__rows *rows)
{
    size_t i;
    json_t *object;
    rows->fields = fields;
    json_array_foreach(array, i, object) tess__report_row(place, object, fields, rows);
}

void tess__report_memory(const struct tess__place *place, const json_t *array,
                         struct tess__report_run *run)
{
    size_t i;
    json_t *object;
    run->memory = NULL;
    run->memory_count = 0;
    json_array_foreach(array, i, object)
    {
        struct tess__report_memory *memory;
        const json_t *kinds = json_object_get(object, "allocated");
        double rank = tess__report_number(place, object, "rank");
        if (!json_is_object(kinds))
            kinds = json_object_get(object, "predicted");
        if (isnan(rank) || !json_is_object(kinds)) {
            tess__report_note(place,
                              "memory of a rank without \"rank\" or \"allocated\": left out");
            continue;
        }
        memory = tess__report_add(place->report, &run->memory, &run->memory_count, sizeof(*memory));
        memory->rank = rank;
        for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
            memory->kind[k] =
                fmax(0, tess__report_number(place, kinds,
                                            tess_memory_kind_name((enum tess_memory_kind)k)));
    }
}

/* ---- runs ------------------------------------------------------------------------------------ */

void tess__report_clear_run(struct tess__report_run *run)
{
    json_decref(run->options);
    json_decref(run->pace);
    *run = (struct tess__report_run){
        .path = run->path,
        .order = run->order,
        .step.fields = &tess__step_fields,
        .epoch.fields = &tess__epoch_fields,
        .times.fields = &tess__time_fields,
        .device.fields = &tess__device_fields,
        .failed_step = NAN,
        .rate_of_row = 1,
    };
    tess__report_members(NULL, NULL, data_run_members, run); /* all numbers NaN */
}

enum tess_status tess__report_add_run(struct tess__report *report, const char *path,
                                      struct tess__report_run **run_out)
{
    if (report->run_count >= REPORT_RUNS_MAX)
        TESS_FAIL(TESS_ERR_DATA, "more than %d runs: too many for one report", REPORT_RUNS_MAX);
    *run_out = tess__report_add(report, &report->run, &report->run_count, sizeof(**run_out));
    (*run_out)->order = report->run_count;
    (*run_out)->path = tess__report_text(report, "%s", path);
    tess__report_clear_run(*run_out);
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
