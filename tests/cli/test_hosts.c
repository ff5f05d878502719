/*
 * --hosts as users see it: the same command on several hosts, here processes of one machine. Ranks
 * are killed, hosts vanish, leave and come back, and the run ends with the hash of the run that
 * nothing happened to. Runs the built program.
 */
#include "base/clock.h"
#include "comm/boot/boot_door.h"
#include "harness/awake.h"
#include "killed.h"

#include "harness/free_port.h"
#include "harness/work_folder.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HOSTS 3
#define MODEL                                                                                      \
    "train --data synthetic --synthetic-rows 3200 --batch-size 32 --evaluate off --model mlp "     \
    "--mlp.hidden 20 --timeout 20 --optimizer nap "

/* Waits for no other rank on a busy machine, and ends with the same bits. */
#define ALONE "--strategy single --ranks 1"

static struct spawn host[HOSTS];
static int port;

/* A sanitizer sees nothing in a case that it does not see in others. */
static void leave_to_others(void)
{
    if (TESTS_DIVISOR > 1)
        skip();
}

/* The first one that begins leads. */
static void begin(int h, int hosts, const char *words)
{
    char text[1024];
    snprintf(text, sizeof(text), MODEL "--hosts %d --meet 127.0.0.1:%d %s", hosts, port, words);
    killed_start(&host[h], text);
}

static void begin_all(int hosts, const char *words)
{
    port = free_port();
    for (int h = 0; h < hosts; h++)
        begin(h, hosts, words);
}

static void whole_hash(const char *words, char hash[17])
{
    char text[1024];
    snprintf(text, sizeof(text), MODEL "%s", words);
    unsetenv("NAP_US");
    assert_int_equal(spawn_words(&host[0], text), 0);
    setenv("NAP_US", "20000", 1);
    spawn_hash(&host[0], hash);
}

/* All end well, and one of them has printed this hash. */
static void end_all(int hosts, const char *hash)
{
    int leader = -1;
    for (int h = 0; h < hosts; h++) {
        const int code = spawn_end(&host[h], 120);
        if (code != 0)
            fail_msg("host %d ended with %d:\n%s%s", h, code, host[h].out, host[h].err);
        assert_true(spawn_gone(&host[h], 5));
        if (strstr(host[h].out, "hash of all parameters") != NULL)
            leader = h;
    }
    assert_true(leader >= 0);
    char own[17];
    spawn_hash(&host[leader], own);
    assert_string_equal(own, hash);
}

static bool is_leader(int h)
{
    return strstr(host[h].err, "waits at 127.0.0.1") != NULL;
}

/* The leader, whichever was first. */
static int leader_of(int hosts)
{
    const double begin_s = awake_s();
    while (awake_s() - begin_s < 60)
        for (int h = 0; h < hosts; h++) {
            (void)spawn_until(&host[h], "\n\n\n", 0.02);
            if (is_leader(h))
                return h;
        }
    fail_msg("no leader:\n%s%s", host[0].err, host[1].err);
    return -1;
}

/* A rank of this host: its launcher is the supervisor's child. So may be the host's mirror. */
static pid_t rank_of(int h)
{
    const double begin_s = awake_s();
    pid_t child[8], rank;
    while (awake_s() - begin_s < 60) {
        for (int i = spawn_children(&host[h], child, 8) - 1; i >= 0; i--)
            if (getpgid(child[i]) == host[h].pid && spawn_children_of(child[i], &rank, 1) == 1)
                return rank;
        killed_nap();
    }
    fail_msg("host %d has no rank", h);
    return -1;
}

static void case_two_hosts(void **state)
{
    char hash[17];
    (void)state;
    whole_hash("--steps 40 --strategy fsdp+tp --ranks 4", hash);
    begin_all(2, "--steps 40 --strategy fsdp+tp --ranks 4");
    end_all(2, hash);
}

/* A connection that greets the leader like a host; false: it is refused. */
static bool stranger_joins(void)
{
    static const struct tess_secret none;
    struct {
        char magic[8];
        int32_t slots, mirror;
        char name[16];
    } hello = {.slots = 2, .name = "stranger"};
    unsigned char greeting[TESS_GREETING_BYTES];
    char why[BOOT_WHY_BYTES];
    const double limit_s = tess_clock_s() + 20;
    const int fd = tess__boot_connect("127.0.0.1", port, limit_s, why, sizeof(why));
    memcpy(hello.magic, "tsrhost5", 8);
    memcpy(greeting, &hello, sizeof(greeting));
    assert_true(fd >= 0);
    const bool joins = tess__boot_knock(fd, &none, greeting, limit_s, why, sizeof(why)) == TESS_OK;
    close(fd);
    return joins;
}

/* A stranger takes no host's place, and silent connections hold up nobody, before the start and
 * while the run goes on. */
static void case_strangers(void **state)
{
    static const char words[] = "--steps 120 --strategy fsdp+tp --ranks 4 --log-every 1";
    char hash[17], why[BOOT_WHY_BYTES];
    int silent[40];
    (void)state;
    leave_to_others();
    whole_hash(words, hash);
    setenv(TESS_SECRET, "a secret of this test", 1);
    port = free_port();
    begin(0, 2, words);
    assert_int_equal(leader_of(1), 0);
    for (int i = 0; i < 40; i++)
        silent[i] = tess__boot_connect("127.0.0.1", port, tess_clock_s() + 20, why, sizeof(why));
    assert_false(stranger_joins());
    begin(1, 2, words);
    unsetenv(TESS_SECRET);
    assert_true(spawn_until(&host[0], "step 3/", 60));
    assert_false(stranger_joins());
    end_all(2, hash);
    for (int i = 0; i < 40; i++)
        close(silent[i]);
    assert_null(strstr(host[0].err, "stranger"));
}

/* Steps that sleep (harness/nap.c), enough that a run still goes on when it is to be killed, or
 * when a host is back: that case is left to others by sanitizers. */
#if TESTS_DIVISOR > 1
#define LONG_STEPS "--steps 160 --grid 4 "
#else
#define LONG_STEPS "--steps 400 --grid 4 "
#endif
#define LONG LONG_STEPS "--strategy fsdp --ranks 4 "

/* The same for all cases. */
static void long_hash(char hash[17])
{
    static char known[17];
    if (known[0] == '\0')
        whole_hash(LONG_STEPS ALONE, known);
    memcpy(hash, known, sizeof(known));
}

static void case_rank_killed(void **state)
{
    char hash[17];
    (void)state;
    leave_to_others();
    long_hash(hash);
    begin_all(2, LONG "--run killed --save-every 20 --keep 0 --restarts 3");
    killed_wait_saved("killed", 40);
    kill(rank_of(1), SIGKILL);
    end_all(2, hash);
    assert_int_equal(killed_final_number("killed", "restarts"), 1);
    assert_int_equal(killed_final_number("killed", "ranks"), 4);
}

/* A host that loses its power: nothing is left of it. The others go on, with another host that was
 * there in vain, or on fewer ranks. */
static void case_host_lost(void **state)
{
    char hash[17];
    (void)state;
    leave_to_others();
    long_hash(hash);
    begin_all(2, LONG "--run lost --save-every 20 --keep 0 --restarts 3 --min-ranks 2");
    const int leader = leader_of(2);
    killed_wait_saved("lost", 40);
    begin(2, 2, LONG "--run lost --save-every 20 --keep 0 --restarts 3 --min-ranks 2");
    assert_int_equal(spawn_end(&host[2], 60), 2);
    assert_non_null(strstr(host[2].err, "start it with --elastic"));
    kill(-host[1 - leader].pid, SIGKILL);
    assert_int_equal(spawn_end(&host[1 - leader], 60), 128 + SIGKILL);
    if (leader == 1)
        host[0] = host[1];
    end_all(1, hash);
    assert_int_equal(killed_final_number("lost", "restarts"), 1);
    assert_int_equal(killed_final_number("lost", "ranks"), 2);
}

/* Wait for the checkpoint after the next one: of ranks that began before this call. */
static void saved_again(const char *run)
{
    long step = 20;
    while (killed_is_saved(run, step))
        step += 20;
    killed_wait_saved(run, step + 20);
}

/* A host leaves, another one is lost, both come back. */
static void case_elastic(void **state)
{
    static const char words[] = LONG "--run elastic --save-every 20 --keep 0 --restarts 3 "
                                     "--min-ranks 2 --elastic";
    char hash[17];
    (void)state;
    leave_to_others();
    long_hash(hash);
    begin_all(2, words);
    const int leader = leader_of(2), member = 1 - leader;
    killed_wait_saved("elastic", 40);
    kill(host[member].pid, SIGTERM);
    assert_int_equal(spawn_end(&host[member], 60), 130);
    assert_true(spawn_gone(&host[member], 5));
    killed_wait_saved("elastic", 80);
    begin(member, 2, words);
    (void)rank_of(member);
    saved_again("elastic");
    kill(-host[member].pid, SIGKILL);
    assert_int_equal(spawn_end(&host[member], 60), 128 + SIGKILL);
    saved_again("elastic");
    begin(member, 2, words);
    end_all(2, hash);
    assert_int_equal(killed_final_number("elastic", "restarts"), 1);
    assert_int_equal(killed_final_number("elastic", "ranks"), 4);
}

#define COPIES "--redundancy memory --save-every 1h --restarts 3 "

/* Wait until all hosts have a copy of this step; their folders. */
static void wait_copies(int hosts, int step, char path[HOSTS][300])
{
    for (int h = 0; h < hosts; h++)
        (void)killed_wait_copy(&host[h], step - 1, path[h]);
}

/* The latest copy may not have been sent yet: the one before it was. */
static void check_copies(const char *run, int ranks, int restarts, int step)
{
    assert_int_equal(killed_final_number(run, "restarts"), restarts);
    assert_int_equal(killed_final_number(run, "ranks"), ranks);
    assert_true(killed_final_number(run, "lost_steps") <= 2 * restarts);
    assert_true(killed_final_number(run, "resumed_from") >= step - 1);
}

/* There is no checkpoint: the state is that of memory, of all hosts. */
static void case_copies_rank_killed(void **state)
{
    char hash[17], path[HOSTS][300];
    (void)state;
    leave_to_others();
    long_hash(hash);
    begin_all(2, LONG COPIES "--run copied");
    wait_copies(2, 40, path);
    kill(rank_of(0), SIGKILL);
    end_all(2, hash);
    check_copies("copied", 4, 1, 40);
    for (int h = 0; h < 2; h++)
        assert_int_not_equal(access(path[h], F_OK), 0);
}

/* A host is lost, and with it its memory: the other one has its part, and goes on alone. */
static void case_copies_host_lost(void **state)
{
    char hash[17], path[HOSTS][300];
    (void)state;
    long_hash(hash);
    begin_all(2, LONG COPIES "--run alone --min-ranks 2");
    const int leader = leader_of(2);
    wait_copies(2, 40, path);
    kill(-host[1 - leader].pid, SIGKILL);
    assert_int_equal(spawn_end(&host[1 - leader], 60), 128 + SIGKILL);
    host[0] = host[leader];
    end_all(1, hash);
    check_copies("alone", 2, 1, 40);
    assert_int_not_equal(access(path[leader], F_OK), 0);
}

/* Of three hosts two are lost, one after the other; those that take their places get all of the
 * state, and remove what the lost ones have left in memory. */
static void case_copies_host_replaced(void **state)
{
    static const char words[] =
        "--steps 200 --strategy fsdp --ranks 3 --batch-size 33 --grid 3 " COPIES
        "--run replaced --elastic";
    char hash[17], path[2][HOSTS][300];
    (void)state;
    leave_to_others();
    whole_hash("--steps 200 --batch-size 33 --grid 3 " ALONE, hash);
    begin_all(3, words);
    const int leader = leader_of(3);
    for (int lost = 0; lost < 2; lost++) {
        const int h = leader == 2 - lost ? 1 - lost : 2 - lost;
        wait_copies(3, 40 + 60 * lost, path[lost]);
        kill(-host[h].pid, SIGKILL);
        assert_int_equal(spawn_end(&host[h], 60), 128 + SIGKILL);
        begin(h, 3, words);
    }
    end_all(3, hash);
    check_copies("replaced", 3, 2, 100);
    for (int h = 0; h < 2 * 3; h++)
        assert_int_not_equal(access(path[h / 3][h % 3], F_OK), 0);
}

/* Ctrl-C at the leader saves and ends all hosts; a leader that is killed takes the members along.
 */
static void case_ends(void **state)
{
    char hash[17];
    (void)state;
    long_hash(hash);
    begin_all(2, LONG "--run ends --save-every 20 --keep 0");
    int leader = leader_of(2);
    killed_wait_saved("ends", 20);
    kill(host[leader].pid, SIGINT);
    for (int h = 0; h < 2; h++) {
        assert_int_equal(spawn_end(&host[h], 60), 130);
        assert_true(spawn_gone(&host[h], 5));
    }
    begin_all(2, "--run ends --resume --strategy fsdp --ranks 4 --save-every 20 --keep 0");
    leader = leader_of(2);
    killed_wait_saved("ends", 120);
    kill(host[leader].pid, SIGKILL);
    assert_int_equal(spawn_end(&host[leader], 60), 128 + SIGKILL);
    assert_int_equal(spawn_end(&host[1 - leader], 60), 1);
    assert_non_null(strstr(host[1 - leader].err, "has gone: start the training there again"));
    assert_true(spawn_gone(&host[0], 5) && spawn_gone(&host[1], 5));
    begin_all(2, "--run ends --resume --strategy fsdp --ranks 2");
    end_all(2, hash);
}

/* A host that fails at its start is not waited for: before it joins, and where its ranks do. */
static void case_fails_at_start(void **state)
{
    static const struct {
        const char *words, *said;
        int code, others;
    } cases[] = {
        {"--odd 1", "has failed: command line: unknown option 'odd'", 2, 1},
        {"--data nowhere", "has failed: ", 1, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char words[200];
        snprintf(words, sizeof(words), "--steps 2 --strategy ddp --ranks 2 %s", cases[i].words);
        port = free_port();
        begin(0, 2, "--steps 2 --strategy ddp --ranks 2 --timeout 60");
        assert_int_equal(leader_of(1), 0);
        const double begin_s = awake_s();
        begin(1, 2, words);
        assert_int_equal(spawn_end(&host[0], 60), cases[i].others);
        assert_int_equal(spawn_end(&host[1], 60), cases[i].code);
        assert_true(awake_s() - begin_s < 30);
        if (strstr(host[0].err, cases[i].said) == NULL || strstr(host[1].err, "error: ") == NULL)
            fail_msg("%s: %s%s", cases[i].words, host[0].err, host[1].err);
    }
}

static void refused(const char *words, const char *why)
{
    char text[1024];
    snprintf(text, sizeof(text), MODEL "%s", words);
    assert_int_equal(spawn_words(&host[0], text), 2);
    if (strstr(host[0].err, why) == NULL)
        fail_msg("not '%s' in:\n%s", why, host[0].err);
}

static void case_refused(void **state)
{
    (void)state;
    refused("--hosts 2 --ranks 4 --strategy ddp", "--hosts 2 needs --meet HOST:PORT");
    refused("--hosts 4 --ranks 2 --strategy ddp --meet localhost:2000",
            "--ranks 2 cannot be divided equally among --hosts 4: give a multiple of 4");
    refused("--ranks 2 --strategy ddp --elastic", "--elastic is for runs on several hosts");
    refused("--hosts 2 --ranks 2 --strategy ddp --meet localhost", "must be HOST:PORT");
    refused("--hosts 2 --ranks 2 --strategy ddp --meet :1", "must be HOST:PORT");
    refused("--hosts 2 --ranks 2 --strategy ddp --meet a:65536", "must be HOST:PORT");
    refused("--hosts 2 --ranks 2 --strategy ddp --meet a:12x", "must be HOST:PORT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_two_hosts),
        cmocka_unit_test(case_strangers),
        cmocka_unit_test(case_rank_killed),
        cmocka_unit_test(case_host_lost),
        cmocka_unit_test(case_elastic),
        cmocka_unit_test(case_copies_rank_killed),
        cmocka_unit_test(case_copies_host_lost),
        cmocka_unit_test(case_copies_host_replaced),
        cmocka_unit_test(case_ends),
        cmocka_unit_test(case_fails_at_start),
        cmocka_unit_test(case_refused),
    };
    setenv("TESSERA_PLUGIN", NAP, 1);
    return cmocka_run_group_tests_name("hosts", tests, work_folder_make, work_folder_remove);
}
