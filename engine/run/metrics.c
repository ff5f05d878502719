/*
 * Files that a run leaves behind. Responsible for their being whole: a line or a file is there
 * completely or not at all, and a disk that is full is an error with a name. The caller decides
 * what is written.
 */
#include "run/metrics.h"

#include "base/file.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tess_metrics {
    struct tess_file_log log; /* its status is also that of lines that could not be made */
};

enum tess_status tess_metrics_open(const char *folder, struct tess_metrics **metrics_out)
{
    if (!folder[0])
        TESS_FAIL(TESS_ERR_USAGE, "the name of the run folder is empty");
    TESS_TRY(tess_file_make_folders(folder, "the run folder"));
    struct tess_metrics *metrics = calloc(1, sizeof(*metrics));
    if (!metrics)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the metrics writer");
    struct tess_file_log *log = &metrics->log;
    *log = (struct tess_file_log){.part = "lines", .within = "a line", .option = "--run"};
    const int length = snprintf(log->path, sizeof(log->path), "%s/metrics.jsonl", folder);
    const enum tess_status status =
        (size_t)length < sizeof(log->path)
            ? tess_file_log_open(log)
            : tess_fail(TESS_ERR_USAGE, "the name of the run folder is too long");
    if (status != TESS_OK)
        free(metrics);
    else
        *metrics_out = metrics;
    return status;
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
