/*
 * The bootstrap: what the environment contains, and the meeting of real processes over TCP with
 * everything that may go wrong there. Ranks are forked; each leaves its status and its last error
 * in shared memory.
 */
#include "base/clock.h"
#include "comm/boot/boot_door.h"
#include "comm/world.h"
#include "harness/world.h"
#include "meeting.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- the environment ------------------------------------------------------------------------- */

/* "A=1 B=2": these and no others of ours. */
static enum tess_status env_read(const char *variables, struct tess_boot_env *env, bool *found)
{
    char copy[512], *rest = NULL;
    clearenv();
    snprintf(copy, sizeof(copy), "%s", variables);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
    *found = false;
    memset(env, 0x5a, sizeof(*env));
    return tess_boot_from_environment(env, found);
}

static void case_environment(void **state)
{
    (void)state;
    static const struct {
        const char *variables, *starter;
        int32_t rank, count, local_rank, local_count, port;
    } good[] = {
        {"RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500",
         "torchrun", 3, 8, 1, 2, 29500},
        {"RANK=3 WORLD_SIZE=8 MASTER_ADDR=node1 MASTER_PORT=29500", "torchrun", 3, 8, -1, -1,
         29500},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500 "
         "TORCHELASTIC_USE_AGENT_STORE=True",
         "torchrun", 0, 2, -1, -1, 29501},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=node1 MASTER_PORT=29500 "
         "TORCHELASTIC_USE_AGENT_STORE=False",
         "torchrun", 0, 2, -1, -1, 29500},
        {"RANK=0 WORLD_SIZE=1 LOCAL_RANK=0", "torchrun", 0, 1, 0, -1, 0},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=4 MASTER_ADDR=node1 MASTER_PORT=1",
         "mpirun", 1, 4, 1, 4, 1},
        {"PMI_RANK=2 PMI_SIZE=3 MPI_LOCALRANKID=0 MASTER_ADDR=node1 MASTER_PORT=65535", "mpirun", 2,
         3, 0, -1, 65535},
        {"SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_LOCALID=2 MASTER_ADDR=node1 "
         "MASTER_PORT=7",
         "Slurm", 5, 6, 2, -1, 7},
        {"SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=6 SLURM_STEP_NUM_TASKS=2 MASTER_ADDR=node1 "
         "MASTER_PORT=7",
         "Slurm", 1, 2, -1, -1, 7},
        /* Of several, the first. */
        {"RANK=1 WORLD_SIZE=2 SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=6 MASTER_ADDR=node1 "
         "MASTER_PORT=7",
         "torchrun", 1, 2, -1, -1, 7},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        struct tess_boot_env env;
        bool found;
        assert_int_equal(env_read(good[i].variables, &env, &found), TESS_OK);
        assert_true(found);
        assert_string_equal(env.starter, good[i].starter);
        assert_int_equal(env.rank, good[i].rank);
        assert_int_equal(env.rank_count, good[i].count);
        assert_int_equal(env.local_rank, good[i].local_rank);
        assert_int_equal(env.local_count, good[i].local_count);
        assert_int_equal(env.port, good[i].port);
        assert_string_equal(env.address, good[i].count > 1 ? "node1" : "");
        assert_int_equal(env.job, 0);
    }
}

static void case_environment_absent(void **state)
{
    (void)state;
    static const char *const absent[] = {
        "", "RANK= WORLD_SIZE=", "MASTER_ADDR=node1 MASTER_PORT=29500",
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=9", /* a batch script, not srun */
    };
    for (size_t i = 0; i < sizeof(absent) / sizeof(*absent); i++) {
        struct tess_boot_env env;
        bool found;
        assert_int_equal(env_read(absent[i], &env, &found), TESS_OK);
        assert_false(found);
    }
}

static void case_environment_bad(void **state)
{
    (void)state;
    static const struct {
        const char *variables, *phrase;
    } bad[] = {
        {"RANK=3 MASTER_ADDR=a MASTER_PORT=1", "RANK is set but WORLD_SIZE is not"},
        {"WORLD_SIZE=3 MASTER_ADDR=a MASTER_PORT=1", "WORLD_SIZE is set but RANK is not"},
        {"SLURM_STEP_ID=0 SLURM_PROCID=1", "SLURM_PROCID is set but SLURM_STEP_NUM_TASKS is not"},
        {"SLURM_STEP_ID=0", "SLURM_STEP_ID is set but SLURM_PROCID is not"},
        {"RANK=3 WORLD_SIZE=3 MASTER_ADDR=a MASTER_PORT=1", "RANK is 3, but WORLD_SIZE is 3"},
        {"RANK=-1 WORLD_SIZE=3 MASTER_ADDR=a MASTER_PORT=1", "RANK is '-1'"},
        {"RANK=1x WORLD_SIZE=3 MASTER_ADDR=a MASTER_PORT=1", "RANK is '1x'"},
        {"RANK=0 WORLD_SIZE=0", "WORLD_SIZE is '0'"},
        {"RANK=0 WORLD_SIZE=99999999999999999999", "WORLD_SIZE is '99999999999999999999'"},
        {"RANK=0 WORLD_SIZE=65537", "WORLD_SIZE is '65537'"},
        {"RANK=0 WORLD_SIZE=2 MASTER_PORT=1", "MASTER_ADDR is not set"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_PORT is not set"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=0", "MASTER_PORT is '0'"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65536", "MASTER_PORT is '65536'"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65535 TORCHELASTIC_USE_AGENT_STORE=True",
         "MASTER_PORT is 65535"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 MASTER_ADDR=a MASTER_PORT=1", "LOCAL_RANK is '2'"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=3 MASTER_ADDR=a MASTER_PORT=1",
         "LOCAL_WORLD_SIZE is '3'"},
        {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=a MASTER_PORT=1",
         "LOCAL_RANK is '1'"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct tess_boot_env env;
        bool found;
        assert_int_equal(env_read(bad[i].variables, &env, &found), TESS_ERR_USAGE);
        assert_false(found);
        assert_contains(tess_log_last_error(), bad[i].phrase);
    }
}

static void case_environment_job(void **state)
{
    (void)state;
    struct tess_boot_env a, b, c;
    bool found;
    assert_int_equal(
        env_read("RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 TORCHELASTIC_RUN_ID=x", &a,
                 &found),
        TESS_OK);
    assert_int_equal(
        env_read("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 TORCHELASTIC_RUN_ID=x", &b,
                 &found),
        TESS_OK);
    assert_int_equal(
        env_read("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 TORCHELASTIC_RUN_ID=y", &c,
                 &found),
        TESS_OK);
    assert_true(a.job != 0 && a.job == b.job && a.job != c.job);
    assert_false(a.again);
    assert_int_equal(
        env_read("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1 TORCHELASTIC_RESTART_COUNT=2", &c,
                 &found),
        TESS_OK);
    assert_true(c.again);
}

/* ---- meeting --------------------------------------------------------------------------------- */

static void case_meet(void **state)
{
    (void)state;
    /* The last one is a name to us and a number to the resolver. */
    static const char *const address[] = {"127.0.0.1", "localhost", "127.1"};
    for (int32_t ranks = 1; ranks <= 8; ranks = ranks < 3 ? ranks + 1 : ranks + 5) {
        struct meeting meeting = meeting_of(ranks, address[ranks % 3]);
        meet_all(&meeting);
        for (int32_t r = 0; r < ranks; r++) {
            assert_string_equal(meeting.outcome[r].error, "");
            assert_int_equal(meeting.outcome[r].status, TESS_OK);
        }
        meeting_free(&meeting);
    }
}

/* By the host's own name: rank 0 listens on all its addresses. */
static void case_meet_by_name(void **state)
{
    (void)state;
    char name[128] = "";
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    assert_int_equal(gethostname(name, sizeof(name) - 1), 0);
    struct meeting meeting = meeting_of(3, name);
    meet_all(&meeting);
    for (int32_t r = 0; r < 3; r++)
        assert_string_equal(meeting.outcome[r].error, "");
    meeting_free(&meeting);

    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has_six = fd >= 0 && bind(fd, (struct sockaddr *)&six, sizeof(six)) == 0;
    if (fd >= 0)
        close(fd);
    if (!has_six) {
        print_message("no IPv6 on this machine: not tried\n");
        return;
    }
    meeting = meeting_of(3, "::1");
    meet_all(&meeting);
    for (int32_t r = 0; r < 3; r++)
        assert_string_equal(meeting.outcome[r].error, "");
    meeting_free(&meeting);
}

static void case_rank_missing(void **state)
{
    (void)state;
    struct meeting meeting = meeting_of(4, "127.0.0.1");
    char place[64];
    meeting.timeout_s = 1;
    meeting.absent = 2;
    meet_all(&meeting);
    snprintf(place, sizeof(place), "127.0.0.1, port %d", (int)meeting.env.port);
    for (int32_t r = 0; r < 4; r++) {
        if (r == 2)
            continue;
        assert_int_equal(meeting.outcome[r].status, TESS_ERR_TIMEOUT);
        assert_contains(meeting.outcome[r].error, "rank 2 of 4 did not come");
        assert_contains(meeting.outcome[r].error, place);
        assert_true(meeting.outcome[r].seconds < 10);
    }
    meeting_free(&meeting);
}

static void case_root_missing(void **state)
{
    (void)state;
    struct meeting meeting = meeting_of(2, "127.0.0.1");
    char place[64];
    meeting.timeout_s = 0.5;
    meeting.absent = 0;
    meet_all(&meeting);
    snprintf(place, sizeof(place), "rank 1 did not reach rank 0 at 127.0.0.1, port %d",
             (int)meeting.env.port);
    assert_int_equal(meeting.outcome[1].status, TESS_ERR_TIMEOUT);
    assert_contains(meeting.outcome[1].error, place);
    assert_contains(meeting.outcome[1].error, "Connection refused");
    meeting_free(&meeting);
}

static void case_wrong_size(void **state)
{
    (void)state;
    struct meeting meeting = meeting_of(2, "127.0.0.1"), other = meeting;
    meeting.timeout_s = other.timeout_s = 1.5;
    other.env.rank_count = 3;
    pid_t root = meet_fork(&meeting, 0), member = meet_fork(&other, 1);
    assert_int_equal(waitpid(member, NULL, 0), member);
    assert_int_equal(waitpid(root, NULL, 0), root);
    assert_int_equal(meeting.outcome[1].status, TESS_ERR_COMM);
    assert_contains(meeting.outcome[1].error, "rank 1 was started as one of 3, rank 0 as one of 2");
    assert_int_equal(meeting.outcome[0].status, TESS_ERR_TIMEOUT);
    assert_contains(meeting.outcome[0].error, "rank 1 was started as one of 3, rank 0 as one of 2");
    meeting_free(&meeting);
}

static void case_rank_twice(void **state)
{
    (void)state;
    struct meeting meeting = meeting_of(3, "127.0.0.1");
    struct meeting again = meeting;
    meeting.timeout_s = again.timeout_s = 2;
    again.outcome = &meeting.outcome[3]; /* of ranks 3 + r */
    pid_t root = meet_fork(&meeting, 0), one = meet_fork(&meeting, 1), same = meet_fork(&again, 1);
    assert_int_equal(waitpid(one, NULL, 0), one);
    assert_int_equal(waitpid(same, NULL, 0), same);
    assert_int_equal(waitpid(root, NULL, 0), root);
    /* Either may have come first; the other gets the error. */
    bool first = strstr(meeting.outcome[1].error, "rank 1 is there twice") != NULL;
    bool second = strstr(meeting.outcome[4].error, "rank 1 is there twice") != NULL;
    assert_true(first != second);
    assert_contains(meeting.outcome[0].error, "rank 2 of 3 did not come");
    meeting_free(&meeting);
}

/* A rank of another job at our port: it waits for its own rank 0, and ours does not mind. */
static void case_other_job(void **state)
{
    (void)state;
    struct meeting meeting = meeting_of(2, "127.0.0.1"), other = meeting;
    other.env.job = 78;
    other.timeout_s = 1;
    other.outcome = &meeting.outcome[2];
    pid_t stray = meet_fork(&other, 1), root = meet_fork(&meeting, 0);
    nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    pid_t member = meet_fork(&meeting, 1);
    assert_int_equal(waitpid(root, NULL, 0), root);
    assert_int_equal(waitpid(member, NULL, 0), member);
    assert_int_equal(waitpid(stray, NULL, 0), stray);
    assert_int_equal(meeting.outcome[0].status, TESS_OK);
    assert_int_equal(meeting.outcome[1].status, TESS_OK);
    assert_int_equal(meeting.outcome[3].status, TESS_ERR_TIMEOUT);
    meeting_free(&meeting);
}

/* Silent ones, half a greeting, noise, a web browser: more of them than rank 0 looks at at a time.
 */
static void case_strangers(void **state)
{
    (void)state;
    struct meeting meeting = meeting_of(3, "127.0.0.1");
    static const char web[] = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
    unsigned char noise[64];
    int fd[20];
    pid_t pid[3] = {meet_fork(&meeting, 0), 0, 0};
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (unsigned char)(i * 97 + 13);
    for (int i = 0; i < 20; i++) {
        fd[i] = stray_connect(meeting.env.port);
        assert_true(fd[i] >= 0);
        if (i % 4 == 1)
            assert_true(send(fd[i], noise, 16, MSG_NOSIGNAL) == 16);
        if (i % 4 == 2)
            assert_true(send(fd[i], noise, sizeof(noise), MSG_NOSIGNAL) == sizeof(noise));
        if (i % 4 == 3)
            assert_true(send(fd[i], web, sizeof(web) - 1, MSG_NOSIGNAL) == sizeof(web) - 1);
    }
    pid[1] = meet_fork(&meeting, 1);
    pid[2] = meet_fork(&meeting, 2);
    for (int32_t r = 0; r < 3; r++)
        assert_int_equal(waitpid(pid[r], NULL, 0), pid[r]);
    for (int i = 0; i < 20; i++)
        close(fd[i]);
    for (int32_t r = 0; r < 3; r++) {
        assert_string_equal(meeting.outcome[r].error, "");
        assert_int_equal(meeting.outcome[r].status, TESS_OK);
    }
    meeting_free(&meeting);
}

/* What listens there answers, but is not rank 0. */
static void case_not_root(void **state)
{
    (void)state;
    struct meeting meeting = meeting_of(2, "127.0.0.1");
    struct sockaddr_in name = {.sin_family = AF_INET,
                               .sin_port = htons((uint16_t)meeting.env.port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char page[600];
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(page, 'x', sizeof(page));
    (void)setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    assert_int_equal(bind(listener, (struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(listen(listener, 8), 0);
    meeting.timeout_s = 0.5;
    pid_t member = meet_fork(&meeting, 1), server = fork();
    if (server == 0)
        for (;;) {
            int fd = accept(listener, NULL, NULL);
            (void)!write(fd, page, sizeof(page));
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
            close(fd);
        }
    assert_int_equal(waitpid(member, NULL, 0), member);
    kill(server, SIGKILL);
    assert_int_equal(waitpid(server, NULL, 0), server);

    assert_int_equal(meeting.outcome[1].status, TESS_ERR_TIMEOUT);
    assert_contains(meeting.outcome[1].error, "what listens there is not of this program");
    /* And rank 0 itself cannot have this port. */
    meet_as(&meeting, 0);
    assert_int_equal(meeting.outcome[0].status, TESS_ERR_COMM);
    assert_contains(meeting.outcome[0].error, "Address already in use");
    assert_contains(meeting.outcome[0].error, "choose another port");
    close(listener);
    meeting_free(&meeting);
}

static void case_no_such_host(void **state)
{
    (void)state;
    struct meeting meeting = meeting_of(2, "no.such.host.invalid");
    meeting.timeout_s = 0.3;
    meet_as(&meeting, 1);
    assert_int_equal(meeting.outcome[1].status, TESS_ERR_TIMEOUT);
    assert_contains(meeting.outcome[1].error, "no.such.host.invalid");
    meeting_free(&meeting);
}

/* ---- gathering ------------------------------------------------------------------------------- */

static enum tess_status leave_early(struct tess_boot *boot)
{
    enum tess_status status = gather_checked(boot, 16);
    return status != TESS_OK || boot->rank == 2 ? status : gather_checked(boot, 16);
}

static enum tess_status fall_asleep(struct tess_boot *boot)
{
    if (boot->rank == 2)
        nanosleep(&(struct timespec){.tv_sec = 4}, NULL);
    return gather_checked(boot, 16);
}

static enum tess_status bring_more(struct tess_boot *boot)
{
    return gather_checked(boot, boot->rank == 2 ? 24 : 16);
}

/* A rank that leaves, sleeps or brings something else: all ranks report the same. */
static void case_gather_fails(void **state)
{
    (void)state;
    static const struct {
        enum tess_status (*then)(struct tess_boot *boot);
        enum tess_status status; /* of rank 0 */
        const char *phrase;
    } how[] = {
        {leave_early, TESS_ERR_COMM, "exchange 2: rank 2 has left"},
        {fall_asleep, TESS_ERR_TIMEOUT, "exchange 1: nothing came from rank 2 within 1 s"},
        {bring_more, TESS_ERR_COMM, "rank 2 brings 24 bytes"},
    };
    for (size_t i = 0; i < sizeof(how) / sizeof(*how); i++) {
        struct meeting meeting = meeting_of(4, "127.0.0.1");
        meeting.timeout_s = 1;
        meeting.then = how[i].then;
        meet_all(&meeting);
        assert_int_equal(meeting.outcome[0].status, how[i].status);
        for (int32_t r = 0; r < 4; r++)
            if (r != 2) {
                assert_int_not_equal(meeting.outcome[r].status, TESS_OK);
                assert_contains(meeting.outcome[r].error, how[i].phrase);
            }
        meeting_free(&meeting);
    }
}

/* A connection that rank 0 has taken for that of rank 1. Part of the wire format, as boot_meet.c
 * and boot.c document it; a rank that is cut off. */
static int stray_greet(int32_t port)
{
    static const struct tess_secret none;
    struct {
        char magic[8];
        uint16_t version, port;
        uint32_t process;
        int32_t rank, rank_count;
        uint64_t job;
    } hello = {.version = 3, .rank = 1, .rank_count = 2, .job = 77};
    unsigned char bytes[TESS_GREETING_BYTES];
    char reply[504], why[BOOT_WHY_BYTES];
    int fd = stray_connect(port);
    memcpy(hello.magic, "teraboot", 8);
    memcpy(bytes, &hello, sizeof(bytes));
    assert_true(fd >= 0);
    assert_int_equal(tess__boot_knock(fd, &none, bytes, tess_clock_s() + 5, why, sizeof(why)),
                     TESS_OK);
    for (int i = 0; i < 2; i++) /* the place, and the verdict */
        assert_true(recv(fd, reply, sizeof(reply), MSG_WAITALL) == sizeof(reply));
    return fd;
}

static void case_truncated(void **state)
{
    (void)state;
    struct meeting meeting = meeting_of(2, "127.0.0.1");
    struct {
        uint64_t magic, number, bytes;
    } part = {.number = 1, .bytes = 8};
    memcpy(&part.magic, "terapart", 8);
    pid_t root = meet_fork(&meeting, 0);
    int fd = stray_greet(meeting.env.port);
    assert_true(send(fd, &part, sizeof(part), MSG_NOSIGNAL) == sizeof(part));
    assert_true(send(fd, "half", 4, MSG_NOSIGNAL) == 4);
    close(fd);
    assert_int_equal(waitpid(root, NULL, 0), root);
    assert_int_equal(meeting.outcome[0].status, TESS_ERR_COMM);
    assert_contains(meeting.outcome[0].error, "only a part came from rank 1");
    meeting_free(&meeting);

    /* A length that no rank could mean is refused before anything is read or allocated. */
    meeting = meeting_of(2, "127.0.0.1");
    part.bytes = UINT64_MAX;
    root = meet_fork(&meeting, 0);
    fd = stray_greet(meeting.env.port);
    assert_true(send(fd, &part, sizeof(part), MSG_NOSIGNAL) == sizeof(part));
    assert_int_equal(waitpid(root, NULL, 0), root);
    close(fd);
    assert_int_equal(meeting.outcome[0].status, TESS_ERR_COMM);
    assert_contains(meeting.outcome[0].error, "rank 1 brings 18446744073709551615 bytes");
    meeting_free(&meeting);
}

/* ---- over a communicator --------------------------------------------------------------------- */

static int over_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    (void)world, (void)arg;
    struct tess_boot *boot;
    WORLD_OK(tess_boot_over(comm, 5, &boot));
    WORLD_CHECK(boot->rank == comm->rank && boot->rank_count == comm->rank_count);
    WORLD_OK(gather_many(boot));
    tess_boot_close(boot);
    return 0;
}

static void case_over(void **state)
{
    (void)state;
    assert_int_equal(world_run(3, TESS_RANKS_PROCESSES, TESS_ORDER_CANONICAL, over_rank, NULL), 0);
    assert_int_equal(world_run(2, TESS_RANKS_THREADS, TESS_ORDER_CANONICAL, over_rank, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_environment),
        cmocka_unit_test(case_environment_absent),
        cmocka_unit_test(case_environment_bad),
        cmocka_unit_test(case_environment_job),
        cmocka_unit_test(case_meet),
        cmocka_unit_test(case_meet_by_name),
        cmocka_unit_test(case_rank_missing),
        cmocka_unit_test(case_root_missing),
        cmocka_unit_test(case_wrong_size),
        cmocka_unit_test(case_rank_twice),
        cmocka_unit_test(case_other_job),
        cmocka_unit_test(case_strangers),
        cmocka_unit_test(case_not_root),
        cmocka_unit_test(case_no_such_host),
        cmocka_unit_test(case_gather_fails),
        cmocka_unit_test(case_truncated),
        cmocka_unit_test(case_over),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
