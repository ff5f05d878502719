/* Running the program as a child; its output and the files it leaves. */
#include "harness/spawn.h"

#include "harness/awake.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void spawn_fail(const char *what)
{
    perror(what);
    abort();
}

static void spawn_pause(void)
{
    struct timespec pause = {0, 5000000L};

    nanosleep(&pause, NULL);
}

void spawn_start(struct spawn *spawn, char *const argv[], int (*entry)(int, char **))
{
    int out[2], err[2], argc = 0;

    while (argv[argc] != NULL)
        argc++;
    memset(spawn, 0, sizeof(*spawn));
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
        spawn_fail("pipe2");
    /* Ranks whose launcher ended before them become this process's children, to be waited for: init
     * may be slow to do so. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    fflush(stdout);
    fflush(stderr);
    spawn->pid = fork();
    if (spawn->pid < 0)
        spawn_fail("fork");
    if (spawn->pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);               /* where CTest ends the test */
        setenv("TSAN_OPTIONS", "atexit_sleep_ms=0", 0); /* else every exit takes a second */
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        if (entry == NULL) {
            execv(TESSERA_PROGRAM, argv);
            _exit(126);
        }
        argc = entry(argc, (char **)argv);
        fflush(stdout);
        _exit(argc);
    }
    setpgid(spawn->pid, spawn->pid); /* both sides: whichever is first */
    close(out[1]);
    close(err[1]);
    spawn->out_fd = out[0];
    spawn->err_fd = err[0];
}

static void spawn_take(int *fd, char *text, size_t *used)
{
    char dropped[4096];
    bool full = *used + 1 >= SPAWN_TEXT_BYTES;
    ssize_t count = read(*fd, full ? dropped : text + *used,
                         full ? sizeof(dropped) : SPAWN_TEXT_BYTES - 1 - *used);

    if (count <= 0) {
        close(*fd);
        *fd = -1;
    } else if (!full) {
        *used += (size_t)count;
        text[*used] = '\0';
    }
}

/* Read once; false when both ends are closed or the time is over. */
static bool spawn_read(struct spawn *spawn, double end_s)
{
    struct pollfd watch[2] = {{.fd = spawn->out_fd, .events = POLLIN},
                              {.fd = spawn->err_fd, .events = POLLIN}};
    const double left_s = end_s - awake_s();

    if ((spawn->out_fd < 0 && spawn->err_fd < 0) || left_s <= 0)
        return false;
    if (poll(watch, 2, (int)(1e3 * (left_s < AWAKE_STEP_S ? left_s : AWAKE_STEP_S)) + 1) > 0) {
        if (watch[0].revents != 0)
            spawn_take(&spawn->out_fd, spawn->out, &spawn->out_used);
        if (watch[1].revents != 0)
            spawn_take(&spawn->err_fd, spawn->err, &spawn->err_used);
    }
    return true;
}

bool spawn_until(struct spawn *spawn, const char *text, double limit_s)
{
    double end_s = awake_s() + limit_s;

    while (strstr(spawn->out, text) == NULL)
        if (!spawn_read(spawn, end_s))
            return strstr(spawn->out, text) != NULL;
    return true;
}

int spawn_end(struct spawn *spawn, double limit_s)
{
    double end_s = awake_s() + limit_s;
    int status = 0;
    pid_t reaped = 0;

    while (spawn_read(spawn, end_s))
        ;
    while (reaped == 0 && awake_s() < end_s) {
        reaped = waitpid(spawn->pid, &status, WNOHANG);
        if (reaped == 0)
            spawn_pause();
    }
    if (spawn->out_fd >= 0)
        close(spawn->out_fd);
    if (spawn->err_fd >= 0)
        close(spawn->err_fd);
    if (reaped == 0) {
        kill(-spawn->pid, SIGKILL);
        waitpid(spawn->pid, &status, 0);
        return -1;
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* For a failed test: what is left of the group, its state and what the kernel waits for. */
static void spawn_print_group(const struct spawn *spawn)
{
    char command[96];

    snprintf(command, sizeof(command), "ps -eo pgid,pid,ppid,stat,wchan,args | grep '^ *%d ' >&2",
             (int)spawn->pid);
    (void)!system(command);
}

bool spawn_gone(const struct spawn *spawn, double limit_s)
{
    const double end_s = awake_s() + limit_s;

    /* What lost its launcher is this process's own child: see spawn_start. */
    while (waitpid(-spawn->pid, NULL, WNOHANG) >= 0 || errno != ECHILD) {
        if (awake_s() > end_s) {
            spawn_print_group(spawn);
            kill(-spawn->pid, SIGKILL);
            return false;
        }
        spawn_pause();
    }
    return true;
}

int spawn_children(const struct spawn *spawn, pid_t *child, int max)
{
    return spawn_children_of(spawn->pid, child, max);
}

void spawn_suspend(const struct spawn *spawn)
{
    pid_t rank[2];
    assert_int_equal(spawn_children(spawn, rank, 2), 2);
    const pid_t process[] = {spawn->pid, rank[1], rank[0]};
    for (int p = 0; p < 3; p++) {
        kill(process[p], SIGSTOP);
        nanosleep(&(struct timespec){.tv_nsec = p == 1 ? 300000000 : 0}, NULL);
    }
    nanosleep(&(struct timespec){.tv_sec = 4}, NULL);
    for (int p = 0; p < 3; p++)
        kill(process[p], SIGCONT);
}

int spawn_children_of(pid_t pid, pid_t *child, int max)
{
    char path[64];
    FILE *file;
    int count = 0;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    file = fopen(path, "r");
    while (file != NULL && count < max && fscanf(file, "%d", &child[count]) == 1)
        count++;
    if (file != NULL)
        fclose(file);
    return count;
}

int spawn_count(const char *text, const char *part)
{
    int count = 0;

    for (const char *at = strstr(text, part); at != NULL; at = strstr(at + 1, part))
        count++;
    return count;
}

int spawn_run(struct spawn *spawn, char *const argv[], int (*entry)(int, char **))
{
    int code;

    spawn_start(spawn, argv, entry);
    code = spawn_end(spawn, INFINITY);
    if (!spawn_gone(spawn, 2)) {
        fprintf(stderr, "processes of the group %d were left behind\n", (int)spawn->pid);
        return -1;
    }
    return code;
}

int spawn_words(struct spawn *spawn, const char *words)
{
    enum { WORDS_MAX = 64 };
    char text[1024], *argv[WORDS_MAX] = {"tessera"}, *next = NULL;
    int count = 1;

    snprintf(text, sizeof(text), "%s", words);
    for (char *word = strtok_r(text, " ", &next); word != NULL && count < WORDS_MAX - 1;
         word = strtok_r(NULL, " ", &next))
        argv[count++] = word;
    return spawn_run(spawn, argv, NULL);
}

int spawn_format(struct spawn *spawn, const char *format, ...)
{
    char words[1024];
    va_list list;

    va_start(list, format);
    const int length = vsnprintf(words, sizeof(words), format, list);
    va_end(list);
    assert_in_range(length, 0, sizeof(words) - 1);
    return spawn_words(spawn, words);
}

void spawn_word(const struct spawn *spawn, const char *before, char word[32])
{
    const char *at = strstr(spawn->out, before);

    if (at == NULL) {
        fail_msg("no '%s' in: %s%s", before, spawn->out, spawn->err);
        return;
    }
    at += strlen(before);
    snprintf(word, 32, "%.*s", (int)strcspn(at, ",;\n "), at);
}

void spawn_hash(const struct spawn *spawn, char hash[17])
{
    char word[32] = "";

    spawn_word(spawn, "hash of all parameters ", word);
    snprintf(hash, 17, "%.16s", word);
}

char *spawn_file(const char *path, size_t *bytes_out)
{
    FILE *file = fopen(path, "rb");
    struct stat about;

    if (file == NULL || fstat(fileno(file), &about) != 0) {
        fail_msg("%s: %s", path, strerror(errno));
        return NULL;
    }
    const size_t size = (size_t)about.st_size;
    char *bytes = calloc(1, size + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, size, file), size);
    fclose(file);
    if (bytes_out != NULL)
        *bytes_out = size;
    return bytes;
}

int spawn_remove(const char *folder)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command);
}
