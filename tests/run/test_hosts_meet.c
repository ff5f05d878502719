/* Supervisors that Slurm has started: how they divide the ranks, and what each finds. */
#include "run/hosts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOSTS 3

static void case_divide(void **state)
{
    static const struct {
        int32_t ranks, count, room[HOSTS], share[HOSTS];
    } wanted[] = {
        {4, 2, {1, 1}, {2, 2}},           {4, 2, {64, 64}, {2, 2}},
        {5, 2, {64, 64}, {3, 2}},         {6, 2, {4, 2}, {4, 2}},
        {6, 2, {2, 4}, {2, 4}},           {12, 2, {4, 2}, {8, 4}},
        {7, 3, {1, 8, 2}, {1, 4, 2}},     {3, 3, {9, 9, 9}, {1, 1, 1}},
        {64, 2, {1, INT32_MAX}, {1, 63}}, {2, 1, {1}, {2}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        int32_t share[HOSTS];
        tess__hosts_divide(wanted[i].ranks, wanted[i].room, wanted[i].count, share);
        for (int32_t h = 0; h < wanted[i].count; h++)
            if (share[h] != wanted[i].share[h])
                fail_msg("case %zu: host %d has %d ranks", i, (int)h, (int)share[h]);
    }
}

static void case_read_meet(void **state)
{
    static const char *const text[][2] = {
        {"node1:29400", "node1"}, {"[fd00::1]:29400", "fd00::1"}, {"fd00::1:29400", "fd00::1"}};
    (void)state;
    for (size_t i = 0; i < sizeof(text) / sizeof(*text); i++) {
        struct tess__hosts hosts = {.port = 0};
        assert_int_equal(tess__hosts_read_meet(text[i][0], &hosts), TESS_OK);
        assert_string_equal(hosts.address, text[i][1]);
        assert_int_equal(hosts.port, 29400);
    }
}

/* Nodes with 4, 2 and 1 processors, and with GPUs of which Slurm gives no number. */
static void case_meet(void **state)
{
    static const int32_t cores[HOSTS] = {4, 2, 1}, share[2][HOSTS] = {{4, 2, 1}, {3, 2, 2}};
    struct tess__hosts *found = mmap(NULL, 2 * HOSTS * sizeof(*found), PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_true(found != MAP_FAILED);
    for (int devices = 0; devices < 2; devices++) {
        fflush(NULL);
        for (int32_t h = 0; h < HOSTS; h++) {
            if (fork() != 0)
                continue;
            const struct tess_boot_env env = {.starter = "Slurm",
                                              .rank = h,
                                              .rank_count = HOSTS,
                                              .host_count = HOSTS,
                                              .host_cores = cores[h],
                                              .address = "127.0.0.1",
                                              .port = 21000 + (int32_t)(getppid() % 5000),
                                              .port_count = 8,
                                              .job = (uint64_t)(getppid() * 2 + devices)};
            struct tess__hosts hosts = {.restart = {.ranks = 7}};
            const enum tess_status status = tess__hosts_meet(&env, devices != 0, 20, &hosts);
            found[devices * HOSTS + h] = hosts;
            _exit(status != TESS_OK);
        }
        for (int32_t h = 0; h < HOSTS; h++) {
            int ended = -1;
            assert_true(wait(&ended) > 0);
            assert_int_equal(ended, 0);
        }
        for (int32_t h = 0; h < HOSTS; h++) {
            const struct tess__hosts *own = &found[devices * HOSTS + h];
            assert_int_equal(own->count, HOSTS);
            assert_int_equal(own->slots, share[devices][h]);
            assert_int_equal(own->port, found[devices * HOSTS].port);
            assert_true(own->port > 0 && own->signalled && own->timeout_s > 0);
            assert_string_equal(own->address, "127.0.0.1");
        }
    }
    munmap(found, 2 * HOSTS * sizeof(*found));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_divide),
        cmocka_unit_test(case_read_meet),
        cmocka_unit_test(case_meet),
    };
    return cmocka_run_group_tests_name("hosts_meet", tests, NULL, NULL);
}
