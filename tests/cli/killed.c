/* Runs that are killed: see killed.h. */
#include "killed.h"

#include "harness/awake.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

void killed_nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

pid_t killed_wait_launcher(struct spawn *spawn, pid_t former, int ranks, pid_t *rank)
{
    const double begin_s = awake_s();
    while (awake_s() - begin_s < 60) {
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
    const double begin_s = awake_s();
    while (!killed_is_saved(run, step) && awake_s() - begin_s < 60)
        killed_nap();
    assert_true(killed_is_saved(run, step));
}

void killed_find_copies(const struct spawn *spawn, char path[300])
{
    const double begin_s = awake_s();
    while (awake_s() - begin_s < 60) {
        for (int fd = 3; fd < 32; fd++) {
            char link[64];
            snprintf(link, sizeof(link), "/proc/%d/fd/%d", (int)spawn->pid, fd);
            const ssize_t length = readlink(link, path, 299);
            path[length > 0 ? length : 0] = '\0';
            if (strncmp(path, "/dev/shm/tessera-copies-", 24) == 0)
                return;
        }
        killed_nap();
    }
    fail_msg("process %d has no folder of copies", (int)spawn->pid);
}

int killed_wait_copy(const struct spawn *spawn, int former, char path[300])
{
    for (int i = 0; i < 30000; i++) {
        char checkpoints[320];
        int step = -1, length = 0;
        killed_find_copies(spawn, path); /* again: at its start a run removes those of lost ones */
        snprintf(checkpoints, sizeof(checkpoints), "%s/checkpoints", path);
        DIR *open = opendir(checkpoints);
        for (const struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;) {
            int found = -1;
            if (sscanf(entry->d_name, "step-%d%n", &found, &length) == 1 &&
                entry->d_name[length] == '\0' && found > step)
                step = found;
        }
        if (open != NULL)
            closedir(open);
        if (step > former)
            return step;
        killed_nap();
    }
    fail_msg("no copy after step %d in %s", former, path);
    return -1;
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
