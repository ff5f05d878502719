/* Runs that are killed: see killed.h. */
#include "killed.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

void killed_final_hash(const struct spawn *spawn, char hash[17])
{
    const char *at = strstr(spawn->out, "hash of all parameters ");
    assert_non_null(at);
    snprintf(hash, 17, "%.16s", at + strlen("hash of all parameters "));
}

void killed_nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

pid_t killed_wait_launcher(struct spawn *spawn, pid_t former, int ranks, pid_t *rank)
{
    const double begin_s = tess_clock_s();
    while (tess_clock_s() - begin_s < 60) {
        pid_t launcher;
        if (spawn_children(spawn, &launcher, 1) == 1 && launcher != former &&
            spawn_children_of(launcher, rank, ranks) == ranks)
            return launcher;
        killed_nap();
    }
    (void)spawn_until(spawn, "\n\n\n", 0.1);
    fail_msg("no launcher with %d ranks: %s%s", ranks, spawn->out, spawn->err);
    return -1;
}

bool killed_is_saved(const char *run, long step)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/checkpoints/step-%08ld/state.json", run, step);
    return access(path, F_OK) == 0;
}

void killed_wait_saved(const char *run, long step)
{
    const double begin_s = tess_clock_s();
    while (!killed_is_saved(run, step) && tess_clock_s() - begin_s < 60)
        killed_nap();
    assert_true(killed_is_saved(run, step));
}

void killed_start(struct spawn *spawn, const char *words)
{
    static char text[1024], *argv[64];
    int argc = 0;
    snprintf(text, sizeof(text), "tessera %s", words);
    for (char *at = text, *word; (word = strsep(&at, " ")) != NULL;)
        if (word[0] != '\0')
            argv[argc++] = word;
    argv[argc] = NULL;
    spawn_start(spawn, argv, NULL);
}

json_int_t killed_final_number(const char *run, const char *name)
{
    char path[256], *line = NULL, *last = NULL;
    size_t room = 0;
    snprintf(path, sizeof(path), "%s/metrics.jsonl", run);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (getline(&line, &room, file) > 0) {
        free(last);
        last = strdup(line);
    }
    free(line);
    fclose(file);
    json_t *root = json_loads(last, 0, NULL);
    const json_t *value = json_object_get(json_object_get(root, "final"), name);
    assert_non_null(value);
    const json_int_t number = json_is_null(value) ? -1 : json_integer_value(value);
    json_decref(root);
    free(last);
    return number;
}
