/*
 * What a run has written about its latest step. The launcher has metrics.jsonl open for writing, so
 * /proc/PID/fd has a link to it: no option needs to be parsed and no folder searched.
 */
#include "cli/top.h"

#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUN_HEAD_BYTES 65536 /* the first line has all options */
#define RUN_TAIL_BYTES                                                                             \
    65536 /* the latest lines; digests of many tensors may hide the latest step */
#define RUN_NAME "/metrics.jsonl"

/* The descriptor of the launcher's metrics.jsonl, opened anew to be read; -1: there is none. */
static int run_open(const char *root, int32_t launcher, struct tess__top_run *run)
{
    char path[PATH_MAX], link[PATH_MAX];
    const size_t name = strlen(RUN_NAME);
    const struct dirent *entry;
    int fd = -1;
    snprintf(path, sizeof(path), "%s/%d/fd", root, launcher);
    DIR *open_files = opendir(path);
    while (open_files && fd < 0 && (entry = readdir(open_files))) {
        snprintf(path, sizeof(path), "%s/%d/fd/%s", root, launcher, entry->d_name);
        const ssize_t length = readlink(path, link, sizeof(link) - 1);
        if (length <= (ssize_t)name || memcmp(link + length - name, RUN_NAME, name) != 0)
            continue;
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        snprintf(run->folder, sizeof(run->folder), "%.*s", (int)(length - (ssize_t)name), link);
    }
    if (open_files)
        closedir(open_files);
    return fd;
}

/* A whole line as an object; NULL: it is none. */
static json_t *run_line(const char *line, const char *end)
{
    return json_loadb(line, (size_t)(end - line), 0, NULL);
}

static void run_take_head(int fd, char *text, struct tess__top_run *run)
{
    const size_t count = tess_file_read(fd, text, RUN_HEAD_BYTES, 0);
    const char *end = memchr(text, '\n', count);
    json_t *head = end ? run_line(text, end) : NULL;
    run->steps = json_integer_value(json_object_get(json_object_get(head, "run"), "steps"));
    json_decref(head);
}

/* The latest whole line of a step in the text. */
static bool run_take_step(const char *text, size_t count, struct tess__top_run *run)
{
    const char *end = memrchr(text, '\n', count);
    for (const char *line; end; end = line > text ? line - 1 : NULL) {
        const char *before = memrchr(text, '\n', (size_t)(end - text));
        line = before ? before + 1 : text;
        json_t *object = run_line(line, end);
        const json_t *step = json_object_get(object, "step"),
                     *loss = json_object_get(object, "loss");
        const bool found = json_is_integer(step) && loss;
        if (found) {
            run->step = json_integer_value(step);
            run->loss = json_is_number(loss) ? json_number_value(loss) : NAN;
        }
        json_decref(object);
        if (found)
            return true;
    }
    return false;
}

bool tess__top_find_run(const char *root, int32_t launcher, struct tess__top_run *run_out)
{
    struct stat about;
    bool found = false;
    char *text = malloc(RUN_HEAD_BYTES > RUN_TAIL_BYTES ? RUN_HEAD_BYTES : RUN_TAIL_BYTES);
    const int fd = text ? run_open(root, launcher, run_out) : -1;
    if (fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode)) {
        const int64_t from = about.st_size > RUN_TAIL_BYTES ? about.st_size - RUN_TAIL_BYTES : 0;
        run_take_head(fd, text, run_out);
        found = run_take_step(text, tess_file_read(fd, text, RUN_TAIL_BYTES, from), run_out);
    }
    if (fd >= 0)
        close(fd);
    free(text);
    return found;
}
