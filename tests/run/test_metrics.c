/*
 * Metrics and JSON files: what was written is there, whole lines only, and a disk that is full (a
 * device that always is, and a limit on the file's size) is an error that leaves the lines before.
 */
#include "base/log_sink.h"
#include "run/metrics.h"
#include "tessera/log.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    char root[64];
    char run[128];  /* a folder two levels down, not there yet */
    char file[160]; /* metrics.jsonl in it */
};

static void setup(struct fixture *fixture)
{
    snprintf(fixture->root, sizeof(fixture->root), "/tmp/tessera-test-metrics-XXXXXX");
    assert_non_null(mkdtemp(fixture->root));
    snprintf(fixture->run, sizeof(fixture->run), "%s/runs//first", fixture->root);
    snprintf(fixture->file, sizeof(fixture->file), "%s/metrics.jsonl", fixture->run);
}

static void teardown(struct fixture *fixture)
{
    char folder[128];
    (void)unlink(fixture->file);
    (void)rmdir(fixture->run);
    snprintf(folder, sizeof(folder), "%s/runs", fixture->root);
    (void)rmdir(folder);
    assert_int_equal(rmdir(fixture->root), 0); /* so nothing else was left behind */
}

/* The whole file; to be freed. */
static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = calloc(1, 100000);
    const size_t count = fread(text, 1, 99999, f);
    fclose(f);
    text[count] = '\0';
    return text;
}

static json_t *line_of(int64_t step)
{
    return json_pack("{s:I, s:f, s:s}", "step", (json_int_t)step, "loss", 0.1 * (double)step,
                     "note", "a \"quoted\"\nline");
}

/* Lines of the file, each an object with its own number; -1 when one is not. */
static int64_t whole_lines(const char *path)
{
    char *text = read_file(path);
    int64_t lines = 0;
    for (char *begin = text; *begin != '\0';) {
        char *end = strchr(begin, '\n');
        json_t *object = end != NULL ? json_loadb(begin, (size_t)(end - begin), 0, NULL) : NULL;
        const bool right = json_integer_value(json_object_get(object, "step")) == lines;
        json_decref(object);
        if (!right) {
            lines = -1;
            break;
        }
        lines++;
        begin = end + 1;
    }
    free(text);
    return lines;
}

static void case_lines(void **state)
{
    (void)state;
    struct fixture fixture;
    struct tess_metrics *metrics = NULL;
    setup(&fixture);
    assert_int_equal(tess_metrics_open(fixture.run, -1, &metrics), TESS_OK);
    for (int64_t i = 0; i < 50; i++) {
        assert_int_equal(tess_metrics_write(metrics, line_of(i)), TESS_OK);
        assert_int_equal(whole_lines(fixture.file),
                         i + 1); /* at once, for a reader that follows it */
    }
    assert_int_equal(tess_metrics_close(metrics), TESS_OK);
    assert_int_equal(tess_metrics_close(NULL), TESS_OK);
    assert_int_equal(whole_lines(fixture.file), 50);

    /* A run in the same folder begins anew. */
    assert_int_equal(tess_metrics_open(fixture.run, -1, &metrics), TESS_OK);
    assert_int_equal(tess_metrics_write(metrics, line_of(0)), TESS_OK);
    assert_int_equal(tess_metrics_close(metrics), TESS_OK);
    assert_int_equal(whole_lines(fixture.file), 1);
    teardown(&fixture);
}

static void case_values_that_json_lacks(void **state)
{
    (void)state;
    struct fixture fixture;
    struct tess_metrics *metrics = NULL;
    setup(&fixture);
    assert_int_equal(tess_metrics_open(fixture.run, -1, &metrics), TESS_OK);
    assert_int_equal(tess_metrics_write(metrics, NULL), TESS_ERR_INTERNAL);
    assert_int_equal(tess_metrics_close(metrics), TESS_ERR_INTERNAL);
    teardown(&fixture);
}

static void take_warning(void *context, enum tess_log_level level, const char *line)
{
    assert_int_equal(level, TESS_LOG_WARN);
    assert_string_equal(context, ""); /* the first */
    snprintf(context, 640, "%s", line);
}

static void case_full_device(void **state)
{
    (void)state;
    struct fixture fixture;
    struct tess_metrics *metrics = NULL;
    setup(&fixture);
    assert_int_equal(tess_metrics_open(fixture.run, -1, &metrics), TESS_OK);
    assert_int_equal(tess_metrics_close(metrics), TESS_OK);
    assert_int_equal(unlink(fixture.file), 0);
    assert_int_equal(symlink("/dev/full", fixture.file), 0);
    assert_int_equal(tess_metrics_open(fixture.run, -1, &metrics), TESS_OK);
    /* A warning, once; the error is the end's. */
    char text[640] = "";
    const struct tess__log_sink sink = {take_warning, text};
    const struct tess__log_sink *before = tess__log_redirect(&sink);
    assert_int_equal(tess_metrics_write(metrics, line_of(0)), TESS_ERR_IO);
    assert_int_equal(tess_metrics_write(metrics, line_of(1)), TESS_ERR_IO);
    tess__log_redirect(before);
    assert_non_null(strstr(text, strerror(ENOSPC)));
    assert_non_null(strstr(text, fixture.file));
    assert_int_equal(tess_metrics_close(metrics), TESS_ERR_IO);
    assert_non_null(strstr(tess_log_last_error(), fixture.file));
    teardown(&fixture);
}

/* The limit hits within a line: the part of it is taken back. SIGXFSZ would end the program. */
static void case_file_too_large(void **state)
{
    (void)state;
    struct fixture fixture;
    struct tess_metrics *metrics = NULL;
    struct rlimit before, small;
    setup(&fixture);
    assert_int_equal(tess_metrics_open(fixture.run, -1, &metrics), TESS_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 500;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int64_t written = 0;
    while (written < 100 && tess_metrics_write(metrics, line_of(written)) == TESS_OK)
        written++;
    /* A JSON file that does not fit leaves the old one and no temporary file. */
    char path[128];
    snprintf(path, sizeof(path), "%s/big.json", fixture.root);
    FILE *old = fopen(path, "w");
    fputs("[1]", old);
    fclose(old);
    json_t *big = json_pack("{s:o}", "text", json_sprintf("%1000d", 1));
    const enum tess_status status = tess_json_write_file(path, big);
    json_decref(big);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);

    assert_non_null(strstr(tess_log_last_error(), strerror(EFBIG)));
    assert_in_range(written, 1, 20);
    assert_int_equal(tess_metrics_close(metrics), TESS_ERR_IO);
    assert_int_equal(whole_lines(fixture.file), written);
    assert_int_equal(status, TESS_ERR_IO);
    char *text = read_file(path);
    assert_string_equal(text, "[1]");
    free(text);
    assert_int_equal(unlink(path), 0);
    sigset_t pending;
    sigpending(&pending);
    assert_int_equal(sigismember(&pending, SIGXFSZ), 0);
    teardown(&fixture);
}

static void case_folders_that_cannot_be(void **state)
{
    (void)state;
    struct fixture fixture;
    struct tess_metrics *metrics = NULL;
    char path[8000];
    setup(&fixture);
    assert_int_equal(tess_metrics_open("", -1, &metrics), TESS_ERR_USAGE);
    memset(path, 'a', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(tess_metrics_open(path, -1, &metrics), TESS_ERR_USAGE);
    assert_int_equal(tess_metrics_open("/proc/nothing/run", -1, &metrics), TESS_ERR_IO);
    assert_non_null(strstr(tess_log_last_error(), "/proc/nothing"));
    assert_int_equal(tess_metrics_open("/dev/null/run", -1, &metrics), TESS_ERR_IO);
    assert_non_null(strstr(tess_log_last_error(), "in the way"));
    /* metrics.jsonl is a folder. */
    assert_int_equal(tess_metrics_open(fixture.run, -1, &metrics), TESS_OK);
    assert_int_equal(tess_metrics_close(metrics), TESS_OK);
    assert_int_equal(unlink(fixture.file), 0);
    assert_int_equal(mkdir(fixture.file, 0700), 0);
    assert_int_equal(tess_metrics_open(fixture.run, -1, &metrics), TESS_ERR_IO);
    assert_int_equal(rmdir(fixture.file), 0);
    teardown(&fixture);
}

static void case_json_file(void **state)
{
    (void)state;
    struct fixture fixture;
    char path[128], link[128];
    struct stat about;
    setup(&fixture);
    snprintf(path, sizeof(path), "%s/out.json", fixture.root);
    snprintf(link, sizeof(link), "%s/link.json", fixture.root);
    json_t *value = json_pack("{s:[i, i], s:b}", "runs", 1, 2, "done", 1);
    assert_int_equal(tess_json_write_file(path, value), TESS_OK);
    json_t *back = json_load_file(path, 0, NULL);
    assert_true(json_equal(back, value));
    json_decref(back);
    /* As any file made by the user: readable as the umask says, not a private temporary file. */
    const mode_t mask = umask(022);
    assert_int_equal(tess_json_write_file(path, value), TESS_OK);
    umask(mask);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0644);

    /* A link stays a link. */
    assert_int_equal(symlink("out.json", link), 0);
    json_t *other = json_pack("[i]", 7);
    assert_int_equal(tess_json_write_file(link, other), TESS_OK);
    assert_int_equal(lstat(link, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    back = json_load_file(path, 0, NULL);
    assert_true(json_equal(back, other));
    json_decref(back);

    /* What is no regular file is written to, not replaced. A FIFO of our own, not a device: if this
     * fails for root, a device of the machine would be gone. */
    char fifo[128], text[256] = {0};
    snprintf(fifo, sizeof(fifo), "%s/fifo", fixture.root);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    const int reader = open(fifo, O_RDONLY | O_NONBLOCK);
    assert_int_equal(tess_json_write_file(fifo, value), TESS_OK);
    assert_true(read(reader, text, sizeof(text) - 1) > 0);
    close(reader);
    assert_int_equal(lstat(fifo, &about), 0);
    assert_true(S_ISFIFO(about.st_mode));
    back = json_loads(text, 0, NULL);
    assert_true(json_equal(back, value));
    json_decref(back);
    assert_int_equal(unlink(fifo), 0);

    assert_int_equal(tess_json_write_file(fixture.root, value), TESS_ERR_IO);
    assert_int_equal(tess_json_write_file("/proc/nothing/x.json", value), TESS_ERR_IO);
    assert_int_equal(tess_json_write_file(path, NULL), TESS_ERR_INTERNAL);
    json_decref(other);
    json_decref(value);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(unlink(path), 0);
    teardown(&fixture);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_lines),       cmocka_unit_test(case_values_that_json_lacks),
        cmocka_unit_test(case_full_device), cmocka_unit_test(case_file_too_large),
        cmocka_unit_test(case_json_file),   cmocka_unit_test(case_folders_that_cannot_be),
    };
    return cmocka_run_group_tests_name("metrics", cases, NULL, NULL);
}
