/*
 * Opens the inputs of the report, distinguishes a run folder from a JSON file by its content, reads
 * the lines of metrics.jsonl and names the runs. Time lines are report_timeline_read.c's, the JSON
 * files of other commands report_json.c's.
 */
#include "report/report_data.h"

#include "base/file.h"
#include "tessera/check.h"
#include "text/report_html.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* More than any run writes; a wrong file, /dev/zero among them, ends here. */
#define READ_BYTES_MAX ((size_t)512 << 20)

/* ---- lines of metrics.jsonl ------------------------------------------------------------------ */

/* An option's value as the options table would print it. */
static double read_option_number(const json_t *options, const char *name)
{
    const char *text = json_string_value(json_object_get(options, name));
    char *end = NULL;
    double value = text ? strtod(text, &end) : NAN;
    return !text || end == text || *end || !(value >= 0) || isinf(value) ? NAN : value;
}

static void read_head(const struct tess__place *place, json_t *head, struct tess__report_run *run)
{
    json_t *options = json_object_get(head, "options");
    if (!json_is_object(head)) {
        tess__report_note(place, "\"run\" is not an object: left out");
        return;
    }
    if (place->line > 1) {
        tess__report_note(place, "a run begins here: the lines before are left out");
        tess__report_clear_run(run);
    }
    tess__report_run_members(place, head, run);
    if (options && !json_is_object(options)) {
        tess__report_note(place, "\"options\" is not an object: left out");
        return;
    }
    run->options = json_incref(options);
    if (!run->precision)
        run->precision = tess__report_string(place, options, "precision");
    if (!run->data)
        run->data = tess__report_string(place, options, "data");
    if (isnan(run->batch))
        run->batch = read_option_number(options, "batch-size");
    if (isnan(run->rate))
        run->rate = read_option_number(options, "learning-rate");
}

static void read_final(const struct tess__place *place, const json_t *final,
                       struct tess__report_run *run)
{
    if (!json_is_object(final)) {
        tess__report_note(place, "\"final\" is not an object: left out");
        return;
    }
    run->final = true;
    run->lost = json_is_null(json_object_get(final, "loss"));
    tess__report_run_members(place, final, run);
    tess__report_memory(place, json_object_get(final, "memory"), run);
}

/* Sum one epoch's seconds into the run's row of that rank. */
static void read_times(const struct tess__place *place, const json_t *times,
                       struct tess__report_run *run)
{
    const size_t bytes = TESS__TIME_WIDTH * sizeof(double);
    struct tess__rows epoch = {0}, *sum = &run->times;
    tess__report_rows(place, json_object_get(times, "ranks"), &tess__time_fields, &epoch);
    for (size_t i = 0; i < epoch.count; i++) {
        const double *row = epoch.value + i * TESS__TIME_WIDTH;
        size_t to = i; /* ranks come in the same order in every line */
        if (to >= sum->count || tess__row(sum, to, TESS__TIME_RANK) != row[TESS__TIME_RANK])
            for (to = 0; to < sum->count; to++)
                if (tess__row(sum, to, TESS__TIME_RANK) == row[TESS__TIME_RANK])
                    break;
        if (to == sum->count) {
            memcpy(tess__report_add(place->report, &sum->value, &sum->count, bytes), row, bytes);
            continue;
        }
        for (int f = TESS__TIME_RANK + 1; f < TESS__TIME_WIDTH; f++) {
            double *cell = &sum->value[to * TESS__TIME_WIDTH + (size_t)f];
            if (!isnan(row[f]))
                *cell = isnan(*cell) ? row[f] : *cell + row[f];
        }
    }
}

static void read_pace(const struct tess__place *place, json_t *pace, struct tess__report_run *run)
{
    if (!json_is_object(pace)) {
        tess__report_note(place, "\"pace\" is not an object: left out");
        return;
    }
    json_decref(run->pace);
    run->pace = json_incref(pace);
}

/* After the lines of the step that it is about, and of the pace by which it was decided. */
static void read_adapt(const struct tess__place *place, const json_t *adapt,
                       struct tess__report_run *run)
{
    const json_t *network = json_object_get(run->pace, "network");
    if (!json_is_object(adapt)) {
        tess__report_note(place, "\"adapt\" is not an object: left out");
        return;
    }
    struct tess__report_adapt *added =
        tess__report_add(place->report, &run->adapt, &run->adapt_count, sizeof(*run->adapt));
    *added = (struct tess__report_adapt){
        .step = tess__report_number(place, adapt, "step"),
        .since = tess__report_number(place, network, "since"),
        .elapsed = run->step.count > 0
                       ? tess__row(&run->step, run->step.count - 1, TESS__STEP_ELAPSED)
                       : NAN,
        .renumbers = json_is_true(json_object_get(adapt, "renumbers")),
        .why = tess__report_string(place, adapt, "why")};
}

static void read_step(const struct tess__place *place, const json_t *line,
                      struct tess__report_run *run)
{
    size_t before = run->step.count;
    tess__report_row(place, line, &tess__step_fields, &run->step);
    if (run->step.count == before)
        return;
    if (!json_is_null(json_object_get(line, "loss")))
        run->failed_step = NAN;
    else if (isnan(run->failed_step))
        run->failed_step = tess__row(&run->step, before, TESS__STEP);
}

/* The last epoch of a run may be unfinished: its point is where the run ended. */
static void read_epoch(const struct tess__place *place, const json_t *line,
                       struct tess__report_run *run)
{
    const double done = tess__report_number(place, line, "step") / run->epoch_steps;
    const size_t before = run->epoch.count;
    tess__report_row(place, line, &tess__epoch_fields, &run->epoch);
    if (run->epoch.count == before || !isfinite(done))
        return;
    double *epoch = &run->epoch.value[before * TESS__EPOCH_WIDTH + TESS__EPOCH];
    *epoch = fmin(*epoch, done - 1);
}

/* An evaluation within an epoch is a point between those of two epochs. */
static void read_validation(const struct tess__place *place, const json_t *validation,
                            struct tess__report_run *run)
{
    if (!json_is_object(validation)) {
        tess__report_note(place, "\"validation\" is not an object: left out");
        return;
    }
    const double done = tess__report_number(place, validation, "step") / run->epoch_steps;
    const size_t before = run->epoch.count;
    if (!isfinite(done))
        return;
    tess__report_row(place, validation, &tess__epoch_fields, &run->epoch);
    if (run->epoch.count > before) /* epochs are counted from 0: at its end the first one is done */
        run->epoch.value[before * TESS__EPOCH_WIDTH + TESS__EPOCH] = done - 1;
}

/* One line's object: the key that makes it what it is. False for kinds that no picture shows. */
static bool read_object(const struct tess__place *place, json_t *line, struct tess__report_run *run)
{
    json_t *part;
    if ((part = json_object_get(line, "run")))
        read_head(place, part, run);
    else if ((part = json_object_get(line, "final")))
        read_final(place, part, run);
    else if ((part = json_object_get(line, "times")))
        read_times(place, part, run);
    else if ((part = json_object_get(line, "pace")))
        read_pace(place, part, run);
    else if ((part = json_object_get(line, "adapt")))
        read_adapt(place, part, run);
    else if ((part = json_object_get(line, "validation")))
        read_validation(place, part, run);
    else if (json_object_get(line, "train_loss") || json_object_get(line, "val_loss"))
        read_epoch(place, line, run);
    else if (json_object_get(line, "gpu_percent"))
        tess__report_row(place, line, &tess__device_fields, &run->device);
    else if (json_object_get(line, "step"))
        read_step(place, line, run);
    else
        return false;
    return true;
}

/* `last`: no line end follows. True where it is a line of a run's metrics. */
static bool read_line(const struct tess__place *place, const char *text, size_t bytes, bool last,
                      struct tess__report_run *run)
{
    json_error_t error;
    bool used = false;
    if (strspn(text, " \t\r") >= bytes)
        return false;
    json_t *line = json_loadb(text, bytes, JSON_DECODE_INT_AS_REAL, &error);
    if (!line && last)
        tess__report_note(place, "the file ends within this line: the line is left out");
    else if (!line)
        tess__report_note(place, "not JSON (%s): the line is left out", error.text);
    else if (!json_is_object(line))
        tess__report_note(place, "not an object: the line is left out");
    else
        used = read_object(place, line, run);
    json_decref(line);
    return used;
}

enum tess_status tess__report_load_lines(struct tess__report *report, const char *folder,
                                         const char *file, const char *text, size_t bytes)
{
    struct tess__place place = {report, file, 0};
    struct tess__report_run *run;
    size_t used = 0;
    TESS_TRY(tess__report_add_run(report, folder, &run));
    for (const char *at = text, *end = text + bytes; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        bool last = !stop;
        stop = last ? end : stop;
        place.line++;
        used += read_line(&place, at, (size_t)(stop - at), last, run);
        at = stop + 1;
    }
    if (used == 0)
        TESS_FAIL(
            TESS_ERR_DATA,
            "%s holds no line of a run's metrics; a report needs folders that were written "
            "with tessera train --run, or files of train --trace, compare, scaling, plan or tune "
            "batch --json",
            file);
    return TESS_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* The whole file; an empty one is "", since readers add to the pointer. */
static enum tess_status read_file(const char *path, struct tess__html *text)
{
    char piece[1 << 14];
    size_t count;
    const char *why;
    FILE *file = tess_file_open_input(path, &why);
    if (!file)
        TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s", path, why);
    tess__html_add(text, "");
    while (text->count <= READ_BYTES_MAX && (count = fread(piece, 1, sizeof(piece), file)) > 0)
        tess__html_add_bytes(text, piece, count);
    int error = ferror(file) ? errno : 0;
    fclose(file);
    if (error != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s", path, strerror(error));
    if (text->count > READ_BYTES_MAX)
        TESS_FAIL(TESS_ERR_DATA, "%s is larger than %zu MiB: not a file of a report", path,
                  READ_BYTES_MAX >> 20);
    if (text->lost)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read %s", path);
    return TESS_OK;
}

/* A file that is not in a run folder: a time line, another document, or the lines themselves. */
static enum tess_status read_any(struct tess__report *report, const char *path, const char *text,
                                 size_t bytes)
{
    json_error_t error;
    bool known = false;
    enum tess_status status = tess__report_load_timeline(report, path, text, bytes, &known);

    if (status != TESS_OK || known)
        return status;
    json_t *document = json_loadb(text, bytes, JSON_DECODE_INT_AS_REAL, &error);
    if (document)
        status = tess__report_load_document(report, path, document, &known);
    json_decref(document);
    if (status != TESS_OK || known)
        return status;
    /* Lines are objects on one line each; a document is indented or has one of the known keys. */
    if (!document && bytes > 1 && text[0] == '{' && (text[1] == '\n' || text[1] == '\r'))
        TESS_FAIL(TESS_ERR_DATA, "%s:%d: not whole JSON (%s): write it again", path, error.line,
                  error.text);
    return tess__report_load_lines(report, path, path, text, bytes);
}

enum tess_status tess__report_load(struct tess__report *report, const char *path)
{
    struct stat about;
    struct tess__html text = {0};
    const char *file = path;
    if (stat(path, &about) != 0)
        TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    bool folder = S_ISDIR(about.st_mode);
    if (folder)
        file = tess__report_text(report, "%s%smetrics.jsonl", path,
                                 path[strlen(path) - 1] != '/' ? "/" : "");
    if (folder && stat(file, &about) != 0)
        TESS_FAIL(TESS_ERR_IO,
                  "%s is no run folder: it has no metrics.jsonl (%s); tessera train --run %s makes "
                  "one",
                  path, strerror(errno), path);
    enum tess_status status = read_file(file, &text);
    if (status == TESS_OK && folder) {
        /* As the folder's parents call it: "." has no name of its own. */
        char *real = realpath(path, NULL);
        status = tess__report_load_lines(report, real ? real : path, file, text.bytes, text.count);
        free(real);
    } else if (status == TESS_OK) {
        status = read_any(report, file, text.bytes, text.count);
    }
    tess__html_close(&text);
    tess__report_notes_end(report, file);
    return status;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The last `parts` parts of a path, without slashes at its end; *length_out is their length. */
static const char *read_tail(const char *path, int parts, size_t *length_out)
{
    size_t end = strlen(path), start;
    while (end > 1 && path[end - 1] == '/')
        end--;
    for (start = end; start > 0; start--)
        if (path[start - 1] == '/' && --parts == 0)
            break;
    *length_out = end - start;
    return path + start;
}

static int read_compare_runs(const void *a, const void *b)
{
    const struct tess__report_run *left = a, *right = b;
    int order;
    if (left->task != right->task)
        return left->task < right->task ? -1 : 1;
    if (left->compared != right->compared)
        return left->compared ? 1 : -1;
    if (!left->compared && (order = strverscmp(left->name, right->name)) != 0)
        return order;
    return left->order < right->order ? -1 : 1;
}

/* Has another run, one of the first `count`, the same name? `apart`: with a path of its own. */
static bool read_name_taken(const struct tess__report *report, size_t run, size_t count, bool apart)
{
    const struct tess__report_run *runs = report->run;
    for (size_t i = 0; i < count; i++)
        if (i != run && strcmp(runs[i].name, runs[run].name) == 0 &&
            !(apart && strcmp(runs[i].path, runs[run].path) == 0))
            return true;
    return false;
}

/* Runs of one comparison are named alike: all by their file, where one has to be. */
static void read_name_together(struct tess__report *report)
{
    struct tess__report_run *runs = report->run;
    for (size_t i = 0; i < report->run_count; i++) {
        const char *name = strrchr(runs[i].path, '/');
        if (!runs[i].ambiguous || !runs[i].compared || !name)
            continue;
        const size_t file = (size_t)(name + 1 - runs[i].path);
        for (size_t j = 0; j < report->run_count; j++)
            runs[j].ambiguous |= runs[j].compared && strncmp(runs[j].path, runs[i].path, file) == 0;
    }
}

static void read_set_name(struct tess__report *report, struct tess__report_run *run, int parts,
                          size_t number)
{
    size_t length;
    const char *tail = read_tail(run->path, parts, &length);
    run->name =
        tess__report_text(report, "%.*s", length > 0 ? (int)length : 3, length > 0 ? tail : "run");
    if (number > 0)
        run->name = tess__report_text(report, "%s (%zu)", run->name, number);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* Were two runs trained on the same data? What is not known is taken for the same. */
static bool read_same_task(const struct tess__report_run *a, const struct tess__report_run *b)
{
    if ((a->tokens > 0) != (b->tokens > 0))
        return false;
    if (a->data_id && b->data_id)
        return strcmp(a->data_id, b->data_id) == 0;
    return !a->data || !b->data || strcmp(a->data, b->data) == 0;
}

/* "Tokens of text"; of several with one name the second is "Tokens of text (2)". */
static const char *read_task_label(struct tess__report *report, const struct tess__report_run *run)
{
    const char *rows = run->tokens > 0 ? "Tokens" : "Images", *label = rows;
    size_t length, alike = 1;
    if (run->data) {
        const char *tail = read_tail(run->data, 1, &length);
        label =
            tess__report_text(report, "%s of %.*s", rows, (int)(length < 60 ? length : 60), tail);
    }
    for (size_t t = 0; t < report->task_count; t++)
        if (report->task[t].label && strncmp(report->task[t].label, label, strlen(label)) == 0)
            alike++;
    return alike > 1 ? tess__report_text(report, "%s (%zu)", label, alike) : label;
}

/* The task of every run; tasks are in the order of their first runs. */
static void read_find_tasks(struct tess__report *report)
{
    for (size_t i = 0; i < report->run_count; i++) {
        struct tess__report_run *run = &report->run[i];
        size_t t = 0;
        while (t < report->task_count && !read_same_task(&report->run[report->task[t].run], run))
            t++;
        if (t == report->task_count) {
            const char *label = read_task_label(report, run);
            struct tess__report_task *task =
                tess__report_add(report, &report->task, &report->task_count, sizeof(*report->task));
            task->label = label;
            task->run = i;
            task->words = tess__words_for(run->tokens);
        }
        run->task = t;
        report->task[t].count++;
        run->rate_of_row = report->task[t].words.tokens ? run->tokens : 1;
    }
    for (size_t t = 1; t < report->task_count; t++)
        report->task[t].first = report->task[t - 1].first + report->task[t - 1].count;
    report->words = report->task_count == 1 ? report->task[0].words : tess__words_mixed();
}

/* Where the runs of a task differ in their strategies, every name has the run's own. */
static void read_name_strategies(struct tess__report *report)
{
    for (size_t t = 0; t < report->task_count; t++) {
        struct tess__report_run *runs = report->run + report->task[t].first;
        bool differ = false;
        for (size_t i = 1; i < report->task[t].count; i++)
            differ = differ || !tess__report_same(runs[i].strategy, runs[0].strategy);
        for (size_t i = 0; differ && i < report->task[t].count; i++)
            if (runs[i].strategy && !strstr(runs[i].name, runs[i].strategy))
                runs[i].name = tess__report_text(report, "%s (%s)", runs[i].name, runs[i].strategy);
    }
}

void tess__report_name_runs(struct tess__report *report)
{
    enum { PARTS_MAX = 4 };
    read_find_tasks(report);
    for (size_t i = 0; i < report->run_count; i++)
        read_set_name(report, &report->run[i], 1, 0);
    for (int parts = 2; parts <= PARTS_MAX; parts++) {
        for (size_t i = 0; i < report->run_count; i++)
            report->run[i].ambiguous = read_name_taken(report, i, report->run_count, true);
        read_name_together(report);
        for (size_t i = 0; i < report->run_count; i++)
            if (report->run[i].ambiguous)
                read_set_name(report, &report->run[i], parts, 0);
    }
    /* What is left has the same path: the same run given twice, or entries of one comparison. */
    for (size_t i = 1; i < report->run_count; i++)
        if (read_name_taken(report, i, i, false))
            for (size_t number = 2; read_name_taken(report, i, report->run_count, false); number++)
                read_set_name(report, &report->run[i], 1, number);
    if (report->run_count > 0)
        qsort(report->run, report->run_count, sizeof(*report->run), read_compare_runs);
    read_name_strategies(report);
}
