/*
 * The folder of a run as a user sees it: one run at a time writes there, and a run that is there is
 * lost only to --overwrite. Runs the built program.
 */
#include "harness/spawn.h"
#include "harness/work_folder.h"

#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define TRAIN                                                                                      \
    "train --data synthetic --synthetic-rows 256 --batch-size 32 --evaluate off --mlp.hidden 8 "   \
    "--strategy ddp --ranks 2 "

static struct spawn spawn, other;

static int run(const char *words)
{
    return spawn_words(&spawn, words);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0, 1);
    assert_int_equal(fclose(file), 0);
}

/* Every line is a whole object. Returns how many have a "step". */
static int check_lines(char *text)
{
    int steps = 0;

    for (char *line; (line = strsep(&text, "\n")) != NULL;) {
        json_t *object = json_loads(line, 0, NULL);
        if (line[0] == '\0')
            continue;
        if (object == NULL)
            fail_msg("not a whole line: %s", line);
        steps += json_object_get(object, "step") != NULL;
        json_decref(object);
    }
    return steps;
}

static void case_two_at_once(void **state)
{
    static char words[] = TRAIN "--steps 100000000 --log-every 1 --run both";
    char *argv[64] = {"tessera"}, text[512], host[128] = "", owner[256], *rest = words, *before,
         *after;
    size_t argc = 1, before_count, after_count;

    (void)state;
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        if (word[0] != '\0')
            argv[argc++] = word;
    spawn_start(&other, argv, NULL);
    assert_true(spawn_until(&other, "step 1/", 60));
    before = spawn_file("both/metrics.jsonl", &before_count);
    assert_int_equal(run(TRAIN "--steps 3 --run both"), 2);
    assert_int_equal(gethostname(host, sizeof(host) - 1), 0);
    snprintf(owner, sizeof(owner), "another run writes to both (process %d on %s)", (int)other.pid,
             host);
    if (strstr(spawn.err, owner) == NULL)
        fail_msg("%s, not: %s", spawn.err, owner);
    assert_int_equal(run(TRAIN "--steps 3 --run both --overwrite"), 2);
    snprintf(text, sizeof(text), "both/weights.safetensors.%d.tmp", (int)other.pid);
    write_file(text, "half"); /* of the run that is under way, for all that others know */
    assert_int_equal(run(TRAIN "--steps 3 --run both"), 2);
    assert_int_equal(access(text, F_OK), 0);
    assert_int_equal(kill(other.pid, SIGTERM), 0);
    assert_int_equal(spawn_end(&other, 60), 130);
    after = spawn_file("both/metrics.jsonl", &after_count);
    assert_true(after_count >= before_count);
    assert_memory_equal(before, after, before_count);
    assert_true(check_lines(after) > 0);
    free(before);
    free(after);
    /* The lock went with its owner, and so may what killed runs leave. */
    assert_int_equal(run(TRAIN "--steps 3 --run both --overwrite"), 0);
    assert_int_equal(access(text, F_OK), -1);
}

static void check_refused(const char *words, const char *phrase)
{
    static const char *const path[] = {"again/metrics.jsonl", "again/weights.safetensors",
                                       "again/checkpoints/step-00000004/state.json",
                                       "again/weights.safetensors.4711.tmp", "again/lock"};
    enum { PATHS = sizeof(path) / sizeof(path[0]) };
    char *before[PATHS], *after;
    size_t count[PATHS], now;

    for (size_t i = 0; i < PATHS; i++)
        before[i] = spawn_file(path[i], &count[i]);
    assert_int_equal(run(words), 2);
    if (strstr(spawn.err, phrase) == NULL)
        fail_msg("%s: %s", words, spawn.err);
    for (size_t i = 0; i < PATHS; i++) {
        after = spawn_file(path[i], &now);
        assert_int_equal(now, count[i]);
        assert_memory_equal(after, before[i], now);
        free(before[i]);
        free(after);
    }
}

static void case_second(void **state)
{
    size_t count;
    char *text;

    (void)state;
    assert_int_equal(run(TRAIN "--steps 4 --run again"), 0);
    write_file("again/weights.safetensors.4711.tmp", "half");
    write_file("again/notes.tmp", "mine");
    check_refused(TRAIN "--steps 4 --run again",
                  "again has a run: --resume continues it, --overwrite removes it");
    check_refused(TRAIN "--steps 4 --run again --overwrite --init again", "--init again is in");
    check_refused(TRAIN "--run again --overwrite --init again/weights.safetensors",
                  "--overwrite removes");
    check_refused("train --steps 8 --run again --resume --overwrite", "give one of the two");

    assert_int_equal(run("train --steps 8 --run again --resume"), 0);
    assert_int_equal(access("again/weights.safetensors.4711.tmp", F_OK), -1);
    assert_int_equal(access("again/notes.tmp", F_OK), 0);
    assert_int_equal(access("again/checkpoints/step-00000004", F_OK), 0);
    /* A run that saves nothing itself removes what another one did not finish. */
    assert_int_equal(mkdir("again/checkpoints/step-00000006.part", 0777), 0);
    write_file("again/checkpoints/step-00000006.part/state.json", "{");
    assert_int_equal(run("train --steps 9 --run again --resume --save-every off"), 0);
    assert_int_equal(access("again/checkpoints/step-00000006.part", F_OK), -1);

    assert_int_equal(run(TRAIN "--steps 3 --run again --overwrite --save-weights off"), 0);
    assert_int_equal(access("again/checkpoints/step-00000004", F_OK), -1);
    assert_int_equal(access("again/checkpoints/step-00000008", F_OK), -1);
    assert_int_equal(access("again/checkpoints/step-00000003", F_OK), 0);
    assert_int_equal(access("again/weights.safetensors", F_OK), -1);
    text = spawn_file("again/metrics.jsonl", &count);
    assert_int_equal(spawn_count(text, "{\"run\":"), 1);
    assert_null(strstr(text, "\"step\":8"));
    free(text);
}

static void case_without_checkpoint(void **state)
{
    (void)state;
    assert_int_equal(run(TRAIN "--steps 2 --run plain --save-every off"), 0);
    assert_int_equal(access("plain/checkpoints", F_OK), -1);
    assert_int_equal(run(TRAIN "--steps 2 --run plain"), 2);
    assert_non_null(strstr(spawn.err, "plain has a run without a checkpoint: --overwrite removes"));
    assert_null(strstr(spawn.err, "--resume"));
    assert_int_equal(unlink("plain/metrics.jsonl"), 0); /* its weights are as dear */
    assert_int_equal(run(TRAIN "--steps 2 --run plain"), 2);
    assert_int_equal(unlink("plain/weights.safetensors"), 0);
    assert_int_equal(run(TRAIN "--steps 2 --run plain"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_two_at_once),
        cmocka_unit_test(case_second),
        cmocka_unit_test(case_without_checkpoint),
    };
    return cmocka_run_group_tests_name("run folder", tests, work_folder_make, work_folder_remove);
}
