/*
 * tessera plan --accuracy: how far the predicted steps of runs were from those that were measured.
 * Reads what train and compare have written: metrics.jsonl of a run folder, whose last line has
 * the run's end, and the JSON of compare.
 */
#include "base/file.h"
#include "run/metrics.h"
#include "tessera/check.h"
#include "text/command.h"
#include "text/json.h"
#include "text/table.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Of a file; a wrong one, /dev/zero among them, ends here. */
#define ACCURACY_BYTES_MAX ((size_t)256 << 20)
#define ACCURACY_NAME      40
#define ACCURACY_WHY       200

/* In the order of the columns. */
static const char *const accuracy_phase[] = {"step_s",  "forward_s", "backward_s",
                                             "optim_s", "exposed_s", "processor_s"};
#define ACCURACY_PHASES (sizeof(accuracy_phase) / sizeof(*accuracy_phase))

struct accuracy_one {
    char name[ACCURACY_NAME], strategy[ACCURACY_NAME];
    int32_t ranks;
    char why[ACCURACY_WHY]; /* there is no prediction of it; "": there is */
    bool calibrated;
    double predicted_s[ACCURACY_PHASES], measured_s[ACCURACY_PHASES];
};

struct accuracy {
    struct accuracy_one *run; /* [room] */
    size_t count, room;
};

/* ---- reading --------------------------------------------------------------------------------- */

/* Not negative, else NaN. */
static double accuracy_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    const double number = json_is_number(value) ? json_number_value(value) : NAN;
    return number >= 0 && isfinite(number) ? number : NAN;
}

static void accuracy_text(const json_t *object, const char *key, char *text, size_t bytes)
{
    const char *value = json_string_value(json_object_get(object, key));
    snprintf(text, bytes, "%s", value != NULL ? value : "?");
    for (char *c = text; *c != '\0'; c++)
        *c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c; /* a file may hold anything */
}

/* `object`: the end of a run, or one of compare's. */
static enum tess_status accuracy_add(struct accuracy *accuracy, const char *name,
                                     const json_t *object)
{
    const json_t *prediction = json_object_get(object, "prediction");
    if (accuracy->count == accuracy->room) {
        const size_t room = 2 * accuracy->room + 64;
        struct accuracy_one *more = realloc(accuracy->run, room * sizeof(*more));
        if (more == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for %zu runs", room);
        accuracy->run = more;
        accuracy->room = room;
    }
    struct accuracy_one *run = &accuracy->run[accuracy->count++];
    memset(run, 0, sizeof(*run));
    const size_t length = strlen(name);
    snprintf(run->name, sizeof(run->name), "%s",
             length < sizeof(run->name) ? name : name + length - sizeof(run->name) + 1);
    accuracy_text(object, "strategy", run->strategy, sizeof(run->strategy));
    const double ranks = accuracy_number(object, "ranks");
    run->ranks = ranks >= 1 && ranks <= INT_MAX ? (int32_t)ranks : 0;
    run->calibrated = json_is_true(json_object_get(prediction, "calibrated"));
    if (!json_is_object(prediction))
        snprintf(run->why, sizeof(run->why), "it was written before predictions were");
    else if (json_object_get(prediction, "why") != NULL)
        accuracy_text(prediction, "why", run->why, sizeof(run->why));
    for (size_t p = 0; p < ACCURACY_PHASES; p++) {
        run->predicted_s[p] =
            accuracy_number(json_object_get(prediction, "predicted"), accuracy_phase[p]);
        run->measured_s[p] =
            accuracy_number(json_object_get(prediction, "measured"), accuracy_phase[p]);
    }
    if (run->why[0] == '\0' && !(run->predicted_s[0] > 0 && run->measured_s[0] > 0))
        snprintf(run->why, sizeof(run->why), "its prediction has no time of a step");
    return TESS_OK;
}

static enum tess_status accuracy_read(const char *path, char **text_out, size_t *bytes_out)
{
    const char *why;
    FILE *file = tess_file_open_input(path, &why);
    if (file == NULL)
        TESS_FAIL(TESS_ERR_NOT_FOUND, "%s: %s", path, why);
    char *text = NULL;
    size_t bytes = 0, room = 1 << 16;
    for (;; room *= 2) {
        char *more = room <= ACCURACY_BYTES_MAX ? realloc(text, room) : NULL;
        if (more == NULL)
            break;
        text = more;
        bytes += fread(text + bytes, 1, room - bytes, file);
        if (bytes < room)
            break;
    }
    (void)fclose(file);
    if (text == NULL || bytes == room) {
        free(text);
        TESS_FAIL(TESS_ERR_DATA, "%s: longer than any run's metrics", path);
    }
    *text_out = text;
    *bytes_out = bytes;
    return TESS_OK;
}

/* The last line of metrics that says how the run ended. */
static enum tess_status accuracy_add_folder(struct accuracy *accuracy, const char *folder)
{
    char path[PATH_MAX], *text;
    size_t bytes;
    json_t *final = NULL;
    if (snprintf(path, sizeof(path), "%s/metrics.jsonl", folder) >= (int)sizeof(path))
        TESS_FAIL(TESS_ERR_USAGE, "--accuracy: the name of a folder is too long");
    TESS_TRY(accuracy_read(path, &text, &bytes));
    for (const char *at = text, *end = text + bytes; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop != NULL ? stop : end;
        json_t *line = json_loadb(at, (size_t)(stop - at), 0, NULL);
        if (json_is_object(json_object_get(line, "final"))) {
            json_decref(final);
            final = json_incref(json_object_get(line, "final"));
        }
        json_decref(line);
        at = stop + 1;
    }
    free(text);
    const enum tess_status status = accuracy_add(accuracy, folder, final);
    if (status == TESS_OK && final == NULL) {
        struct accuracy_one *run = &accuracy->run[accuracy->count - 1];
        snprintf(run->why, sizeof(run->why), "it has not ended: metrics.jsonl has no \"final\"");
    }
    json_decref(final);
    return status;
}

static enum tess_status accuracy_add_file(struct accuracy *accuracy, const char *path)
{
    char *text;
    size_t bytes, i;
    json_error_t error;
    json_t *run;
    TESS_TRY(accuracy_read(path, &text, &bytes));
    json_t *root = json_loadb(text, bytes, 0, &error);
    free(text);
    if (!json_is_array(json_object_get(root, "runs"))) {
        const enum tess_status status =
            root != NULL
                ? tess_fail(TESS_ERR_DATA, "%s: it has no \"runs\": not a file of compare --json",
                            path)
                : tess_fail(TESS_ERR_DATA, "%s:%d: not JSON: %s", path, error.line, error.text);
        json_decref(root);
        return status;
    }
    enum tess_status status = TESS_OK;
    json_array_foreach(json_object_get(root, "runs"), i, run) if (status == TESS_OK) status =
        accuracy_add(accuracy, path, run);
    json_decref(root);
    return status;
}

static enum tess_status accuracy_add_word(struct accuracy *accuracy, const char *word)
{
    struct stat about;
    if (stat(word, &about) == 0 && S_ISDIR(about.st_mode))
        return accuracy_add_folder(accuracy, word);
    return accuracy_add_file(accuracy, word);
}

/* ---- the table ------------------------------------------------------------------------------- */

static int accuracy_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* |predicted / measured - 1| of a phase, in rising order; returns how many runs have one. */
static size_t accuracy_errors(const struct accuracy *accuracy, size_t phase, double *error)
{
    size_t count = 0;
    for (size_t i = 0; i < accuracy->count; i++) {
        const struct accuracy_one *run = &accuracy->run[i];
        if (run->why[0] == '\0' && run->measured_s[phase] > 0)
            error[count++] = fabs(run->predicted_s[phase] / run->measured_s[phase] - 1);
    }
    qsort(error, count, sizeof(*error), accuracy_order);
    return count;
}

/* The least that `share` of them are not above; NaN of none. */
static double accuracy_quantile(const double *sorted, size_t count, double share)
{
    const size_t at = (size_t)ceil(share * (double)count);
    return count > 0 ? sorted[at > 0 ? at - 1 : 0] : NAN;
}

static double accuracy_ratio(const struct accuracy_one *run, size_t phase)
{
    return run->measured_s[phase] > 0 ? run->predicted_s[phase] / run->measured_s[phase] : NAN;
}

static void accuracy_add_run(struct tess__table *table, const struct accuracy_one *run)
{
    tess__table_add(table, "%.28s", run->name);
    tess__table_add(table, "%.18s", run->strategy);
    tess__table_add(table, "%d", (int)run->ranks);
    tess__table_add(table, "%.3f", run->predicted_s[0] * 1e3);
    tess__table_add(table, "%.3f", run->measured_s[0] * 1e3);
    for (size_t p = 0; p < ACCURACY_PHASES; p++) {
        const double ratio = accuracy_ratio(run, p);
        if (isnan(ratio) || ratio >= 1000)
            tess__table_add(table, "-");
        else
            tess__table_add(table, "%.2f", ratio);
    }
    tess__table_add(table, "%s", run->calibrated ? "" : "*");
}

static void accuracy_print(const struct accuracy *accuracy, double *error)
{
    static const struct tess__column column[] = {
        {.title = "run", .width = 28, .left = true, .key = true},
        {.title = "strategy", .width = 18, .left = true, .key = true},
        {.title = "ranks", .width = 5},
        {.title = "predicted", .width = 10},
        {.title = "measured", .width = 10},
        {.title = "ratio", .width = 6},
        {.title = "fwd", .width = 6},
        {.title = "bwd", .width = 6},
        {.title = "optim", .width = 6},
        {.title = "wait", .width = 6},
        {.title = "cpu", .width = 6},
        {.title = " "},
    };
    _Static_assert(sizeof(column) / sizeof(column[0]) == 6 + ACCURACY_PHASES,
                   "each phase has a column");
    struct tess__table table = {.column = column, .count = sizeof(column) / sizeof(column[0])};
    FILE *former = tess__screen_begin();
    bool stars = false;
    for (size_t i = 0; i < accuracy->count; i++) {
        const struct accuracy_one *run = &accuracy->run[i];
        stars = stars || (run->why[0] == '\0' && !run->calibrated);
        if (run->why[0] == '\0')
            accuracy_add_run(&table, run);
    }
    if (table.cell_count > 0)
        tess__table_print(&table, stdout);
    for (size_t i = 0; i < accuracy->count; i++) {
        const struct accuracy_one *run = &accuracy->run[i];
        if (run->why[0] != '\0' && run->ranks > 0)
            printf("%s, %s on %d ranks: %s\n", run->name, run->strategy, (int)run->ranks, run->why);
        else if (run->why[0] != '\0')
            printf("%s: %s\n", run->name, run->why);
    }
    const size_t count = accuracy_errors(accuracy, 0, error);
    printf("\nsteps in ms; ratios are predicted / measured; cpu: of the processor time of a "
           "rank's work%s\n",
           stars ? "; *: not calibrated" : "");
    if (count > 0)
        printf("%zu runs: median error %.1f %%, 95th percentile %.1f %%\n", count,
               100 * accuracy_quantile(error, count, 0.5),
               100 * accuracy_quantile(error, count, 0.95));
    else
        printf("no run has a prediction\n");
    tess__screen_end(former);
}

static json_t *accuracy_json_run(const struct accuracy_one *run)
{
    json_t *predicted = json_object(), *measured = json_object();
    for (size_t p = 0; p < ACCURACY_PHASES; p++) {
        json_object_set_new(predicted, accuracy_phase[p], tess__json_number(run->predicted_s[p]));
        json_object_set_new(measured, accuracy_phase[p], tess__json_number(run->measured_s[p]));
    }
    return json_pack("{s:s, s:s, s:i, s:o, s:b, s:o, s:o, s:o}", "run", run->name, "strategy",
                     run->strategy, "ranks", (int)run->ranks, "why",
                     run->why[0] != '\0' ? json_string(run->why) : json_null(), "calibrated",
                     run->calibrated, "predicted", predicted, "measured", measured, "ratio",
                     tess__json_number(accuracy_ratio(run, 0)));
}

/* {"runs": [...], "errors": {phase: {"runs", "median", "p95"}}} */
static enum tess_status accuracy_write(const struct accuracy *accuracy, double *error,
                                       const char *path)
{
    json_t *runs = json_array(), *errors = json_object();
    for (size_t i = 0; i < accuracy->count; i++)
        json_array_append_new(runs, accuracy_json_run(&accuracy->run[i]));
    for (size_t p = 0; p < ACCURACY_PHASES; p++) {
        const size_t count = accuracy_errors(accuracy, p, error);
        json_object_set_new(errors, accuracy_phase[p],
                            json_pack("{s:I, s:o, s:o}", "runs", (json_int_t)count, "median",
                                      tess__json_number(accuracy_quantile(error, count, 0.5)),
                                      "p95",
                                      tess__json_number(accuracy_quantile(error, count, 0.95))));
    }
    json_t *root = json_pack("{s:o, s:o}", "runs", runs, "errors", errors);
    if (root == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the results of --json");
    const enum tess_status status = tess_json_write_file(path, root);
    json_decref(root);
    return status;
}

/* ---- the command ----------------------------------------------------------------------------- */

struct accuracy_options {
    const char *json;
};

static const struct tess_option accuracy_option_table[] = {
    {"json", TESS_OPTION_STRING, offsetof(struct accuracy_options, json), "", 0, 0, NULL,
     "file for all numbers, with the errors of every phase; empty writes none"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

static enum tess_status accuracy_run(const struct tess__call *call, struct accuracy *accuracy)
{
    const struct accuracy_options *options = call->values;
    if (call->word_count == 0)
        TESS_FAIL(TESS_ERR_USAGE, "plan --accuracy needs run folders, or files of compare --json");
    if (options->json[0] != '\0')
        TESS_TRY(tess_file_check(options->json, TESS_FILE_TEXT, "--json"));
    for (int i = 0; i < call->word_count; i++)
        TESS_TRY(accuracy_add_word(accuracy, call->word[i]));
    double *error = calloc(accuracy->count + 1, sizeof(*error));
    if (error == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the errors of %zu runs", accuracy->count);
    accuracy_print(accuracy, error);
    enum tess_status status = TESS_OK;
    if (options->json[0] != '\0')
        status = accuracy_write(accuracy, error, options->json);
    free(error);
    return status;
}

static int accuracy_command(struct tess__call *call)
{
    struct accuracy accuracy = {NULL, 0, 0};
    const enum tess_status status = accuracy_run(call, &accuracy);
    free(accuracy.run);
    return tess_status_exit_code(status);
}

const struct tess__command tess__command_accuracy = {
    .name = "plan --accuracy",
    .summary = "how far predicted steps of runs were from measured ones",
    .usage = "usage: tessera plan --accuracy RUN... [--json FILE]\n\n"
             "Print what was predicted and measured of each run, the ratio of every phase of the\n"
             "step, and over all runs the median and the 95th percentile of the error. A RUN is a\n"
             "folder that tessera train --run FOLDER wrote, or a JSON file of tessera compare.\n\n"
             "examples\n"
             "  tessera plan --accuracy runs/* compare.json --json accuracy.json\n",
    .table = accuracy_option_table,
    .options_size = sizeof(struct accuracy_options),
    .reads = TESS__READS_OWN,
    .words_max = TESS__ARGS_MAX,
    .run = accuracy_command,
};
