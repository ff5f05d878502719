/*
 * Files that a run leaves behind. Responsible for their being whole: a line or a file is there
 * completely or not at all, and a disk that is full is an error with a name. What the numbers mean
 * is the caller's business.
 */
#include "core/metrics.h"

#include "base/file.h"
#include "tessera/check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tess_metrics {
    int fd;
    off_t whole_bytes; /* up to the end of the last whole line */
    enum tess_status status;
    char path[PATH_MAX];
};

enum tess_status tess_metrics_open(const char *folder, struct tess_metrics **metrics_out)
{
    struct tess_metrics *metrics = calloc(1, sizeof(*metrics));
    if (metrics == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate the metrics writer");
    const int length = snprintf(metrics->path, sizeof(metrics->path), "%s", folder);
    const size_t room = sizeof(metrics->path) - sizeof("/metrics.jsonl");
    if (length < 1 || (size_t)length > room) {
        free(metrics);
        TESS_FAIL(TESS_ERR_USAGE, "the name of the run folder is %s",
                  length < 1 ? "empty" : "too long");
    }
    const enum tess_status status = tess_file_make_folders(metrics->path, "the run folder");
    if (status != TESS_OK) {
        free(metrics);
        return status;
    }
    strcat(metrics->path, "/metrics.jsonl");
    metrics->fd = open(metrics->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (metrics->fd < 0) {
        const enum tess_status failed =
            tess_fail(TESS_ERR_IO, "cannot create %s: %s", metrics->path, strerror(errno));
        free(metrics);
        return failed;
    }
    *metrics_out = metrics;
    return TESS_OK;
}

/* Text of a value with a newline behind it, to be freed; NULL without memory. */
static char *metrics_text(const json_t *value, size_t flags, size_t *count_out)
{
    const size_t bytes = json_dumpb(value, NULL, 0, flags);
    char *text = bytes > 0 ? malloc(bytes + 1) : NULL;
    if (text == NULL || json_dumpb(value, text, bytes, flags) != bytes) {
        free(text);
        return NULL;
    }
    text[bytes] = '\n';
    *count_out = bytes + 1;
    return text;
}

static enum tess_status metrics_write_line(struct tess_metrics *metrics, const json_t *object)
{
    size_t count;
    char *line = json_is_object(object) ? metrics_text(object, JSON_COMPACT, &count) : NULL;
    if (line == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "%s: cannot make a line of metrics: no memory, or a value "
                  "that JSON does not have",
                  metrics->path);
    const int error = tess_file_append(metrics->fd, line, count);
    free(line);
    if (error != 0) {
        /* Nothing to be done if this fails: it is a device, or the disk is broken. */
        const bool cut = ftruncate(metrics->fd, metrics->whole_bytes) == 0;
        TESS_FAIL(TESS_ERR_IO,
                  "cannot write %s: %s; %s: make room or choose another folder with "
                  "--run",
                  metrics->path, strerror(error),
                  cut ? "the lines before are whole" : "the file may end within a line");
    }
    metrics->whole_bytes += (off_t)count;
    return TESS_OK;
}

enum tess_status tess_metrics_write(struct tess_metrics *metrics, json_t *object)
{
    if (metrics->status == TESS_OK)
        metrics->status = metrics_write_line(metrics, object);
    json_decref(object);
    return metrics->status;
}

enum tess_status tess_metrics_close(struct tess_metrics *metrics)
{
    if (metrics == NULL)
        return TESS_OK;
    /* Some file systems say that they are full only here. */
    int error = tess_file_sync(metrics->fd);
    if (close(metrics->fd) != 0 && error == 0)
        error = errno;
    if (error != 0 && metrics->status == TESS_OK)
        metrics->status =
            tess_fail(TESS_ERR_IO, "cannot finish %s: %s", metrics->path, strerror(error));
    const enum tess_status status = metrics->status;
    free(metrics);
    return status;
}

enum tess_status tess_json_write_file(const char *path, const json_t *value)
{
    size_t count;
    char *text =
        value != NULL ? metrics_text(value, JSON_INDENT(2) | JSON_ENCODE_ANY, &count) : NULL;
    if (text == NULL)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "%s: cannot make its text: no memory, or a value that JSON "
                  "does not have",
                  path);
    const enum tess_status status = tess_file_write(path, text, count);
    free(text);
    return status;
}
