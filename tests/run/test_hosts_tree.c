/*
 * Supervisors in a tree (run/hosts_relay.c), as processes of this machine: two behind each, so that
 * eight of them are in four rows. Those in between are killed when the others join, run and end;
 * the rest goes on, and the leader names who has gone. What a rank does here is to wait.
 */
#include "comm/boot/boot_door.h"
#include "harness/awake.h"
#include "harness/free_port.h"
#include "run/hosts.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST     512
#define HOSTS    8
#define ATTEMPTS 4
#define LIMIT_S  60.0

enum word { GOES_ON, SUCCEEDS, FAILS, STOPS, REFUSES };

/* What the ranks of all hosts do, in memory that all share. */
struct play {
    _Atomic int word[ATTEMPTS];
    _Atomic int begun[ATTEMPTS], over[ATTEMPTS]; /* ranks */
    _Atomic int held;                            /* host whose rank waits longer; -1: none */
    _Atomic int rank[HOSTS];                     /* its process, of each host */
};

static struct play *play;
static pid_t host[MOST]; /* 0: none, or it was waited for */
static int name = -1;    /* of this process's host */
static int32_t port, fan, wanted, restarts;
static bool elastic;
static char folder[] = "/tmp/tessera-hosts-tree-XXXXXX";
static struct tess_secret secret = {.key = {1, 2, 3}};

/* Of the C library: each of these hosts has a name of its own. */
int gethostname(char *text, size_t bytes)
{
    snprintf(text, bytes, "h%d", name);
    return 0;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

static volatile sig_atomic_t asked;
static void ask(int number)
{
    asked = number;
}

/* A rank. */
static int attempt(void *context, enum tess__attempt begin, struct tess__history *history)
{
    const char *meeting = strrchr(getenv(TESS_BOOT_MEETING), '/');
    const int a = atoi(meeting + 1);
    (void)context;
    (void)begin;
    signal(SIGTERM, ask);
    history->met = true;
    if (name < HOSTS)
        play->rank[name] = getpid();
    play->begun[a]++;
    while (!asked && (play->word[a] == GOES_ON || play->held == name))
        nap();
    play->over[a]++;
    history->met = play->word[a] != REFUSES;
    history->status = asked || play->word[a] == STOPS ? TESS_ERR_INTERRUPTED
                      : play->word[a] == SUCCEEDS     ? TESS_OK
                      : play->word[a] == REFUSES      ? TESS_ERR_USAGE
                                                      : TESS_ERR_COMM;
    return tess_status_exit_code((enum tess_status)history->status);
}

static int choose(void *context, int32_t left, struct tess__history *history)
{
    (void)context;
    snprintf(history->layout[0], TESS__LAYOUT_BYTES, "--ranks=%d", (int)left);
    return 0;
}

static void log_path(int h, char path[100])
{
    snprintf(path, 100, "%s/host-%d", folder, h);
}

static struct boot_listener stranger; /* at the leader's port, in case_port_taken */

static void start(int h)
{
    char path[100];
    log_path(h, path);
    (void)unlink(path);
    fflush(NULL);
    host[h] = fork();
    assert_true(host[h] >= 0);
    if (host[h] > 0) {
        setpgid(host[h], host[h]);
        return;
    }
    struct tess__hosts hosts = {.count = wanted,
                                .elastic = elastic,
                                .timeout_s = 20,
                                .address = "127.0.0.1",
                                .port = port,
                                .slots = 1,
                                .fan = fan,
                                .secret = secret,
                                .restart = {.run = folder,
                                            .copies = "",
                                            .restarts = restarts,
                                            .ranks = wanted,
                                            .least = 1,
                                            .attempt = attempt,
                                            .choose = choose}};
    setpgid(0, 0);
    tess__boot_unlisten(&stranger); /* the test's alone */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    name = h;
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDERR_FILENO);
    exit(tess__hosts_run(&hosts));
}

/* Valid until the next call for the leader, or for another host. */
static char *log_of(int h)
{
    static char kept[2][1 << 20];
    char path[100], *text = kept[h > 0];
    log_path(h, path);
    FILE *file = fopen(path, "r");
    const size_t got = file != NULL ? fread(text, 1, sizeof(kept[0]) - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    text[got] = '\0';
    return text;
}

static void wait_log(int h, const char *words)
{
    const double limit_s = awake_s() + LIMIT_S;
    while (strstr(log_of(h), words) == NULL && awake_s() < limit_s)
        nap();
    if (strstr(log_of(h), words) == NULL)
        fail_msg("no '%s' of host %d:\n%s", words, h, log_of(h));
}

static void wait_count(const _Atomic int *count, int least)
{
    const double limit_s = awake_s() + LIMIT_S;
    while (*count < least && awake_s() < limit_s)
        nap();
    if (*count < least)
        fail_msg("%d of %d; the leader:\n%s", *count, least, log_of(0));
}

/* All ranks but one of the host that is held have ended, their supervisors have waited for them,
 * and a moment later the leader has their news. */
static void wait_ended(void)
{
    const double limit_s = awake_s() + LIMIT_S;
    wait_count(&play->over[0], HOSTS - 1);
    for (int h = 0; h < HOSTS; h++)
        while (h != play->held && kill(play->rank[h], 0) == 0 && awake_s() < limit_s)
            nap();
    for (int i = 0; i < 40; i++)
        nap();
}

/* One after the other, so that host h is the h-th to come; host 0 leads. */
static void start_all(int count, int together)
{
    char words[40];
    for (int h = 0; h < count; h++) {
        start(h);
        if (h == 0)
            wait_log(0, "waits at");
        snprintf(words, sizeof(words), "joined: %d host", h + 1);
        if (h > 0 && h % together == 0)
            wait_log(0, words);
    }
}

static int end_of(int h)
{
    const double limit_s = awake_s() + LIMIT_S;
    int status = 0;
    while (waitpid(host[h], &status, WNOHANG) == 0) {
        if (awake_s() > limit_s)
            fail_msg("host %d does not end:\n%s", h, log_of(h));
        nap();
    }
    host[h] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void end_all(int code)
{
    for (int h = MOST - 1; h >= 0; h--) {
        const int own = host[h] > 0 ? end_of(h) : code;
        if (own != code)
            fail_msg("host %d ended with %d:\n%s\nthe leader:\n%s", h, own, log_of(h), log_of(0));
    }
}

static void lose(int h)
{
    kill(-host[h], SIGKILL);
    assert_int_equal(end_of(h), 128 + SIGKILL);
}

static int lines_with(const char *text, const char *words)
{
    int count = 0;
    for (; (text = strstr(text, words)) != NULL; text++)
        count++;
    return count;
}

/* Descriptors of a process that are sockets; the inode of its listening one. */
static int sockets_of(pid_t pid, unsigned long *listening)
{
    char path[300], target[64], line[300];
    int count = 0;
    unsigned long inode[MOST + 64], found;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *at; (at = readdir(dir)) != NULL && count < MOST;) {
        snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)pid, at->d_name);
        const ssize_t got = readlink(path, target, sizeof(target) - 1);
        target[got > 0 ? got : 0] = '\0';
        count += sscanf(target, "socket:[%lu]", &inode[count]) == 1;
    }
    closedir(dir);
    *listening = 0;
    FILE *file = fopen("/proc/net/tcp", "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        unsigned int at, state;
        if (sscanf(line, " %*d: %*x:%x %*x:%*x %x %*s %*s %*s %*d %*d %lu", &at, &state, &found) !=
                3 ||
            state != 10)
            continue;
        for (int i = 0; i < count; i++)
            if (inode[i] == found)
                *listening = at;
    }
    fclose(file);
    return count;
}

static int set_up(void **state)
{
    (void)state;
    memset(play, 0, sizeof(*play));
    play->held = -1;
    port = free_port();
    fan = 2;
    wanted = HOSTS;
    restarts = 2;
    elastic = false;
    return 0;
}

/* Nothing is left behind by a case that fails. */
static int tear_down(void **state)
{
    (void)state;
    for (int h = 0; h < MOST; h++)
        if (host[h] > 0) {
            kill(-host[h], SIGKILL);
            waitpid(host[h], NULL, 0);
            host[h] = 0;
        }
    return 0;
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* The leader has two connections: a listener and two, and the socket of free_port.h. A signal to it
 * comes to all. */
static void case_ends(void **state)
{
    unsigned long listening;
    (void)state;
    start_all(HOSTS, 1);
    wait_count(&play->begun[0], HOSTS);
    assert_int_equal(sockets_of(host[0], &listening), 4);
    assert_int_equal(sockets_of(host[1], &listening), 5); /* and the one to the leader */
    assert_int_equal(sockets_of(host[3], &listening), 4); /* host 7 alone */
    assert_int_equal(sockets_of(host[7], &listening), 3);
    play->word[0] = SUCCEEDS;
    end_all(0);
    assert_int_equal(lines_with(log_of(0), "has gone"), 0);
}

/* A rank that fails is one of a restart, by all; then a signal ends all. */
static void case_restart_and_signal(void **state)
{
    (void)state;
    start_all(HOSTS, 1);
    wait_count(&play->begun[0], HOSTS);
    play->word[0] = FAILS;
    wait_count(&play->begun[1], HOSTS);
    kill(host[0], SIGTERM);
    wait_count(&play->over[1], 1); /* the leader's: the signal comes before the others fail */
    play->word[1] = FAILS;
    end_all(tess_status_exit_code(TESS_ERR_INTERRUPTED));
}

/* One failure more than there are restarts. */
static void case_used_up(void **state)
{
    (void)state;
    start_all(HOSTS, 2);
    for (int a = 0; a <= restarts; a++) {
        wait_count(&play->begun[a], HOSTS);
        play->word[a] = FAILS;
    }
    end_all(tess_status_exit_code(TESS_ERR_COMM));
    assert_int_equal(play->begun[restarts + 1], 0);
    assert_int_equal(lines_with(log_of(0), "no restart: --restarts 2 is used up"), 1);
}

/* Host 1 has hosts 3, 4 and 7 behind it. The others go on with a rank less. */
static void case_lost(void **state)
{
    (void)state;
    start_all(HOSTS, 1);
    wait_count(&play->begun[0], HOSTS);
    const double begin_s = awake_s();
    lose(1);
    wait_log(0, "host h1 has gone");
    assert_true(awake_s() - begin_s < 5);
    play->word[0] = FAILS;
    wait_count(&play->begun[1], HOSTS - 1);
    assert_int_equal(play->begun[1], HOSTS - 1);
    play->word[1] = SUCCEEDS;
    end_all(0);
    assert_int_equal(lines_with(log_of(0), "has gone"), 1);
}

/* Two of one branch, one behind the other, and a leaf elsewhere, at once. */
static void case_several_lost(void **state)
{
    (void)state;
    start_all(HOSTS, 1);
    wait_count(&play->begun[0], HOSTS);
    lose(3);
    lose(1);
    lose(6);
    play->word[0] = FAILS;
    wait_count(&play->begun[1], HOSTS - 3);
    play->word[1] = SUCCEEDS;
    end_all(0);
    assert_int_equal(lines_with(log_of(0), "has gone"), 3);
}

/* While hosts still join: another one takes its place. */
static void case_lost_at_start(void **state)
{
    (void)state;
    start_all(HOSTS - 2, 1);
    lose(1);
    wait_log(0, "host h1 has gone");
    for (int h = HOSTS - 2; h <= HOSTS; h++)
        start(h);
    wait_count(&play->begun[0], HOSTS);
    play->word[0] = SUCCEEDS;
    end_all(0);
}

/* Its own rank has ended, that of one behind it has not, whose news finds another way. */
static void case_lost_at_end(void **state)
{
    (void)state;
    start_all(HOSTS, 1);
    wait_count(&play->begun[0], HOSTS);
    play->held = 7;
    play->word[0] = SUCCEEDS;
    wait_ended();
    lose(3);
    play->held = -1;
    end_all(0);
    assert_int_equal(play->begun[1], 0);
}

/* At any moment of the end. */
static void case_lost_while_ending(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        set_up(NULL);
        start_all(HOSTS, 2);
        wait_count(&play->begun[0], HOSTS);
        play->held = 0;
        play->word[0] = SUCCEEDS;
        wait_ended();
        play->held = -1;
        nanosleep(&(struct timespec){.tv_nsec = i * 1500000}, NULL);
        kill(-host[1], SIGKILL);
        const int code = end_of(1);
        assert_true(code == 0 || code == 128 + SIGKILL);
        end_all(0);
        assert_int_equal(play->begun[1], 0);
    }
}

/* The leader's own rank waits for others that have failed before they met it, and did not tell. */
static void case_refused(void **state)
{
    (void)state;
    start_all(HOSTS, 2);
    wait_count(&play->begun[0], HOSTS);
    play->held = 0;
    play->word[0] = REFUSES;
    const double begin_s = awake_s();
    end_all(2);
    assert_true(awake_s() - begin_s < 20);
    assert_int_equal(play->over[0], HOSTS - 1);
    assert_int_equal(lines_with(log_of(0), "has ended before it met the others"), 1);
    assert_int_equal(play->begun[1], 0);
}

/* All notice, in all rows. */
static void case_leader_lost(void **state)
{
    (void)state;
    start_all(HOSTS, 1);
    wait_count(&play->begun[0], HOSTS);
    lose(0);
    const double begin_s = awake_s();
    end_all(tess_status_exit_code(TESS_ERR_COMM));
    assert_true(awake_s() - begin_s < 5);
    assert_int_equal(lines_with(log_of(7), "has gone: start the training there again"), 1);
}

/* A host in between leaves, is lost, and comes back, while the training goes on. */
static void case_elastic(void **state)
{
    (void)state;
    elastic = true;
    start_all(HOSTS, 1);
    wait_count(&play->begun[0], HOSTS);
    kill(host[1], SIGTERM); /* the leader then asks its own rank to save and end: all do */
    wait_log(0, "host h1 leaves");
    play->word[0] = FAILS;
    assert_int_equal(end_of(1), tess_status_exit_code(TESS_ERR_INTERRUPTED));
    wait_count(&play->begun[1], HOSTS - 1);
    start(1);
    wait_log(0, "host h1 has joined: 8 hosts");
    play->word[1] = FAILS;
    wait_count(&play->begun[2], HOSTS);
    play->word[2] = SUCCEEDS;
    end_all(0);
    assert_int_equal(lines_with(log_of(0), "has gone"), 0);
}

/* As when the leader has no processor meanwhile: the signal to a host has ended the ranks of all
 * before the leader sees that it leaves. */
static void case_leaves_unseen(void **state)
{
    (void)state;
    elastic = true;
    start_all(HOSTS, 1);
    wait_count(&play->begun[0], HOSTS);
    kill(host[0], SIGSTOP);
    kill(host[1], SIGTERM);
    wait_count(&play->over[0], 1);
    play->word[0] = STOPS;
    wait_count(&play->over[0], HOSTS);
    kill(host[0], SIGCONT);
    assert_int_equal(end_of(1), tess_status_exit_code(TESS_ERR_INTERRUPTED));
    wait_count(&play->begun[1], HOSTS - 1);
    play->word[1] = SUCCEEDS;
    end_all(0);
}

/* Silent ones, and one without the secret, at the leader's door and at another one. */
static void case_strangers(void **state)
{
    char why[BOOT_WHY_BYTES];
    unsigned char greeting[TESS_GREETING_BYTES] = "tsrrelay";
    int silent[2][40];
    unsigned long at;
    (void)state;
    start_all(HOSTS - 1, 1);
    (void)sockets_of(host[1], &at);
    assert_true(at > 0);
    const int32_t doors[2] = {port, (int32_t)at};
    for (int d = 0; d < 2; d++) {
        const struct tess_secret none = {.key = {0}};
        for (int i = 0; i < 40; i++)
            silent[d][i] =
                tess__boot_connect("127.0.0.1", doors[d], awake_s() + 5, why, sizeof(why));
        const int fd = tess__boot_connect("127.0.0.1", doors[d], awake_s() + 5, why, sizeof(why));
        assert_true(fd >= 0);
        greeting[12] = 7;
        assert_int_not_equal(tess__boot_knock(fd, &none, greeting, awake_s() + 5, why, sizeof(why)),
                             TESS_OK);
        close(fd);
    }
    start(HOSTS - 1);
    wait_count(&play->begun[0], HOSTS);
    play->word[0] = SUCCEEDS;
    end_all(0);
    for (int i = 0; i < 80; i++)
        close(silent[i / 40][i % 40]);
}

static bool turn_away(void *context, int fd, const unsigned char *hello)
{
    (void)context, (void)fd, (void)hello;
    return false;
}

/* What a host reports where something silent listens at the leader's port, and then a leader of
 * another version. */
static void case_not_admitted(void **state)
{
    struct boot_door door = {.secret = &secret, .greet = turn_away};
    (void)state;
    assert_int_equal(tess__boot_try_listen("127.0.0.1", port, &door.listener), 0);
    start(1);
    wait_log(1, "cannot reach the training at 127.0.0.1:");
    const double limit_s = tess_clock_s() + LIMIT_S;
    while (strstr(log_of(1), "or is of another version") == NULL && tess_clock_s() < limit_s)
        tess__boot_door_look(&door);
    assert_non_null(strstr(log_of(1), "not admitted to the training at 127.0.0.1:"));
    assert_true(door.strangers > 0);
    tess__boot_door_close(&door);
    lose(1);
}

/* Where another program has the port of the host that is to lead, this one does not wait for a
 * leader; where the port becomes free, it leads. */
static void case_port_taken(void **state)
{
    char words[80];
    (void)state;
    wanted = 1;
    assert_int_equal(tess__boot_try_listen("127.0.0.1", port, &stranger), 0);
    start(1);
    start(2);
    assert_int_equal(end_of(1), 1);
    assert_int_equal(end_of(2), 1);
    snprintf(words, sizeof(words), "another program has port %d of this host", (int)port);
    assert_int_equal(lines_with(log_of(1), words), 1);
    assert_int_equal(lines_with(log_of(2), words), 1);
    start(1);
    wait_log(1, "joins the training");
    tess__boot_unlisten(&stranger);
    wait_count(&play->begun[0], 1);
    play->word[0] = SUCCEEDS;
    assert_int_equal(end_of(1), 0);
}

/* All at once; argv[1]: so many, with the fan of a real run. */
static int32_t many = 40;
static void case_many(void **state)
{
    unsigned long listening;
    (void)state;
    wanted = many;
    fan = many > 40 ? TESS_BOOT_FAN : 3;
    start(0);
    wait_log(0, "waits at");
    const double begin_s = awake_s();
    for (int h = 1; h < many; h++)
        start(h);
    wait_count(&play->begun[0], many);
    printf("%d hosts: all ranks are started after %.3f s, the leader has %d sockets\n", (int)many,
           awake_s() - begin_s, sockets_of(host[0], &listening));
    if (sockets_of(host[0], &listening) > fan + 2)
        fail_msg("the leader has %d sockets", sockets_of(host[0], &listening));
    play->word[0] = SUCCEEDS;
    const double end_s = awake_s();
    end_all(0);
    printf("all have ended after %.3f s\n", awake_s() - end_s);
}

static int open_all(void **state)
{
    (void)state;
    play = mmap(NULL, sizeof(*play), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return play == MAP_FAILED || mkdtemp(folder) == NULL ? -1 : 0;
}

static int close_all(void **state)
{
    char path[100];
    (void)state;
    for (int h = 0; h < MOST; h++) {
        log_path(h, path);
        (void)unlink(path);
    }
    return rmdir(folder);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        CASE(case_ends),         CASE(case_restart_and_signal), CASE(case_used_up),
        CASE(case_lost),         CASE(case_several_lost),       CASE(case_lost_at_start),
        CASE(case_lost_at_end),  CASE(case_lost_while_ending),  CASE(case_leader_lost),
        CASE(case_elastic),      CASE(case_leaves_unseen),      CASE(case_strangers),
        CASE(case_not_admitted), CASE(case_port_taken),         CASE(case_refused),
        CASE(case_many)};
    if (argc > 1)
        many = atoi(argv[1]) < MOST ? atoi(argv[1]) : MOST;
    if (argc > 2)
        cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests_name("hosts in a tree", cases, open_all, close_all);
}
