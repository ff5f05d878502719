/*
 * Files that a run leaves behind. Responsible for their being whole: a line or a file is there
 * completely or not at all, and a disk that is full is an error with a name. The caller decides
 * what is written.
 */
#include "run/metrics.h"

#include "base/file.h"
#include "tessera/check.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METRICS_END 16384L /* the last line is shorter */

struct tess_metrics {
    struct tess_file_log log; /* its status is also that of lines that could not be made */
};

/* Does a line report something after a step: "step" at its top or in its only object, or the end of
 * the run? A line that is cut short does, too. */
static bool metrics_is_later(const char *line, size_t length, int64_t step)
{
    json_t *object = json_loadb(line, length, 0, NULL), *value;
    const char *key;
    bool later = !json_is_object(object);
    json_object_foreach(object, key, value)
    {
        const json_t *number = strcmp(key, "step") == 0 ? value : json_object_get(value, "step");
        later = later || strcmp(key, "final") == 0 || json_integer_value(number) > step;
    }
    json_decref(object);
    return later;
}

/* Bytes of the file at `path` up to the first line of a later step; 0 where there is no file. */
static enum tess_status metrics_kept(const char *path, int64_t step, long long *bytes_out)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    *bytes_out = 0;
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return TESS_OK;
    const char *why;
    FILE *file = tess_file_open_input(path, &why);
    if (!file)
        TESS_FAIL(TESS_ERR_IO, "cannot read %s: %s", path, why);
    while ((length = getline(&line, &room, file)) > 0 && line[length - 1] == '\n' &&
           !metrics_is_later(line, (size_t)length, step))
        *bytes_out += length;
    free(line);
    fclose(file);
    return TESS_OK;
}

enum tess_status tess_metrics_open(const char *folder, int64_t resume_step,
                                   struct tess_metrics **metrics_out)
{
    long long kept = 0;
    if (!folder[0])
        TESS_FAIL(TESS_ERR_USAGE, "the name of the run folder is empty");
    TESS_TRY(tess_file_make_folders(folder, "the run folder"));
    struct tess_metrics *metrics = calloc(1, sizeof(*metrics));
    if (!metrics)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the metrics writer");
    struct tess_file_log *log = &metrics->log;
    *log = (struct tess_file_log){.part = "lines", .within = "a line", .option = "--run"};
    const int length = snprintf(log->path, sizeof(log->path), "%s/metrics.jsonl", folder);
    enum tess_status status =
        (size_t)length < sizeof(log->path)
            ? TESS_OK
            : tess_fail(TESS_ERR_USAGE, "the name of the run folder is too long");
    if (status == TESS_OK && resume_step >= 0)
        status = metrics_kept(log->path, resume_step, &kept);
    if (status == TESS_OK)
        status = tess_file_log_open(log, kept);
    if (status != TESS_OK)
        free(metrics);
    else
        *metrics_out = metrics;
    return status;
}

bool tess_metrics_has_end(const char *folder)
{
    char path[PATH_MAX], text[METRICS_END + 1];
    const char *why;
    if (snprintf(path, sizeof(path), "%s/metrics.jsonl", folder) >= (int)sizeof(path))
        return false;
    FILE *file = tess_file_open_input(path, &why);
    if (!file)
        return false;
    (void)fseek(file, -METRICS_END, SEEK_END); /* a shorter file: from its beginning */
    size_t count = fread(text, 1, METRICS_END, file);
    fclose(file);
    if (count == 0 || text[count - 1] != '\n')
        return false;
    text[count - 1] = '\0';
    const char *before = strrchr(text, '\n');
    json_t *line = json_loads(before ? before + 1 : text, 0, NULL);
    const bool has_end = json_object_get(line, "final") != NULL;
    json_decref(line);
    return has_end;
}

bool tess_metrics_is_empty(const struct tess_metrics *metrics)
{
    return metrics->log.whole_bytes == 0;
}

/* Text of a value with a newline behind it, to be freed; NULL without memory. */
static char *metrics_text(const json_t *value, size_t flags)
{
    char *bare = json_dumps(value, flags), *text = NULL;
    if (bare && asprintf(&text, "%s\n", bare) < 0)
        text = NULL;
    free(bare);
    return text;
}

static enum tess_status metrics_write_line(struct tess_metrics *metrics, const json_t *object)
{
    char *line = json_is_object(object) ? metrics_text(object, JSON_COMPACT) : NULL;
    if (!line)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "%s: cannot make a line of metrics: no memory, or a value "
                  "that JSON does not have",
                  metrics->log.path);
    const enum tess_status status = tess_file_log_append(&metrics->log, line, strlen(line));
    free(line);
    return status;
}

enum tess_status tess_metrics_write(struct tess_metrics *metrics, json_t *object)
{
    if (metrics && metrics->log.status == TESS_OK)
        metrics->log.status = metrics_write_line(metrics, object);
    json_decref(object);
    return metrics ? metrics->log.status : TESS_OK;
}

enum tess_status tess_metrics_close(struct tess_metrics *metrics)
{
    if (!metrics)
        return TESS_OK;
    const enum tess_status status = tess_file_log_close(&metrics->log);
    free(metrics);
    return status;
}

enum tess_status tess_json_write_file(const char *path, const json_t *value)
{
    char *text = value ? metrics_text(value, JSON_INDENT(2) | JSON_ENCODE_ANY) : NULL;
    if (!text)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "%s: cannot write its text: no memory, or a value that JSON does not have", path);
    const enum tess_status status = tess_file_write(path, text, strlen(text));
    free(text);
    return status;
}
