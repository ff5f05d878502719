/*
 * Finding rank 0 without MASTER_ADDR: by the variables of mpirun and Slurm, by PMI with a server
 * that the test plays, and on a port of several.
 */
#include "base/clock.h"
#include "comm/boot/boot.h"
#include "comm/boot/boot_find.h"
#include "tessera/device.h"
#include "tessera/log.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(*(array)))

#define assert_contains(text, words)                                                               \
    do {                                                                                           \
        if (strstr((text), (words)) == NULL)                                                       \
            fail_msg("'%s' does not contain '%s'", (text), (words));                               \
    } while (0)

static void case_uri(void **state)
{
    static const struct {
        const char *uri, *hosts; /* NULL: refused */
    } wanted[] = {
        {"1137377280.0;tcp://192.0.2.2:58745;tcp6://[fd00::2]:54105", "192.0.2.2,fd00::2"},
        {"7.0;tcp://10.77.0.1,172.17.0.2:35467", "10.77.0.1,172.17.0.2"},
        {"7.0;tcp6://[fd00::2],[fd00::3]:1", "fd00::2,fd00::3"},
        {"7.0;usock;tcp://1.2.3.4:5", "1.2.3.4"},
        {"", NULL},
        {"7.0", NULL},
        {"7.0;tcp://", NULL},
        {"7.0;tcp://:5", NULL},
        {"7.0;tcp6://[fd00::2", NULL},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(wanted); i++) {
        char hosts[TESS_BOOT_ADDRESS_BYTES];
        const bool found = tess__boot_uri_hosts(wanted[i].uri, hosts, sizeof(hosts));
        if (found != (wanted[i].hosts != NULL) || (found && strcmp(hosts, wanted[i].hosts) != 0))
            fail_msg("'%s' gives '%s'", wanted[i].uri, found ? hosts : "(nothing)");
    }
    /* More than there is room for: those that fit, whole. */
    char hosts[16];
    assert_true(tess__boot_uri_hosts("7;tcp://10.0.0.1,10.0.0.2:5", hosts, sizeof(hosts)));
    assert_string_equal(hosts, "10.0.0.1");
}

static void case_first_host(void **state)
{
    static const struct {
        const char *list, *host; /* NULL: refused */
    } wanted[] = {
        {"node1", "node1"},
        {"node1,node2", "node1"},
        {"gpu[07-09,12],login", "gpu07"},
        {"r[0-1]n[02-04]-ib", "r0n02-ib"},
        {"[3-4]", "3"},
        {"", NULL},
        {",a", NULL},
        {"a[", NULL},
        {"a[]", NULL},
        {"a[x-y]", NULL},
        {"a[1-2", NULL},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(wanted); i++) {
        char host[32];
        const bool found = tess__boot_first_host(wanted[i].list, host, sizeof(host));
        if (found != (wanted[i].host != NULL) || (found && strcmp(host, wanted[i].host) != 0))
            fail_msg("'%s' gives '%s'", wanted[i].list, found ? host : "(nothing)");
    }
    char host[8];
    assert_true(tess__boot_first_host("1234567", host, sizeof(host)));
    assert_false(tess__boot_first_host("12345678", host, sizeof(host)));
    assert_false(tess__boot_first_host("1234[5678-5679]", host, sizeof(host)));
}

static void case_tasks(void **state)
{
    static const struct {
        const char *list;
        int32_t node, tasks;
    } wanted[] = {
        {"4", 0, 4},
        {"4", 1, -1},
        {"1(x2)", 1, 1},
        {"1(x2)", 2, -1},
        {"4(x2),3", 1, 4},
        {"4(x2),3", 2, 3},
        {"3,4(x2),1", 3, 1},
        {"3,4(x2),1", 4, -1},
        {"", 0, -1},
        {"x", 0, -1},
        {"0", 0, -1},
        {"-1", 0, -1},
        {"4(x", 0, -1},
        {"4(x)", 0, -1},
        {"4(x0)", 0, -1},
        {"4(x-1)", 0, -1},
        {"4(x2", 0, -1},
        {"4,", 1, -1},
        {"4;5", 0, -1},
        {"9999999", 0, -1},
        {"4(x2)3", 2, -1},
        {",4", 0, -1},
        {"2(x9999999999999999999)", 7, 2},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(wanted); i++) {
        const int32_t tasks = tess__boot_slurm_tasks(wanted[i].list, wanted[i].node);
        if (tasks != wanted[i].tasks)
            fail_msg("'%s' gives node %d %d tasks", wanted[i].list, (int)wanted[i].node,
                     (int)tasks);
    }
}

static void case_nodes(void **state)
{
    static const struct {
        const char *regex, *hosts;
    } wanted[] = {
        {"login,r[1:0]h0,r[1:0]h1,r[1:1]h0@0(4)", "login,r0h0,r0h1,r1h0"},
        {"login,r[1:0-1]h0@0(3)", "login,r0h0,r1h0"},
        {"n[3:9-11,20]@0(4)", "n009,n010,n011,n020"},
        {"a", "a"},
        {"", ""},
        {"@0(3)", ""},
        {"a,b[", "a"},
        {"a,b[1:", "a"},
        {"a,b[1]c", "a"},
        {"a,b[1:x]c", "a"},
        {"a,b[1:3-1]c", "a"},
        {"a,b[99:1]c", "a"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(wanted); i++) {
        char hosts[64] = "";
        tess__boot_add_nodes(wanted[i].regex, hosts, sizeof(hosts));
        if (strcmp(hosts, wanted[i].hosts) != 0)
            fail_msg("'%s' gives '%s'", wanted[i].regex, hosts);
    }
    /* Those that fit, whole; and a range without end takes no time. */
    char hosts[12] = "x";
    tess__boot_add_nodes("n[1:1-9999999999]@0(1)", hosts, sizeof(hosts));
    assert_string_equal(hosts, "x,n1,n2,n3");
}

/* "A=1 B=2" in the environment of tess_boot_from_environment, in a child of its own. */
static void env_set(const char *variables)
{
    char copy[512], *rest = NULL;
    clearenv();
    snprintf(copy, sizeof(copy), "%s", variables);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
}

static void case_environment(void **state)
{
    static const struct {
        const char *variables, *address; /* NULL: refused, with this in the message */
        const char *phrase;
    } wanted[] = {
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=4 PMIX_NAMESPACE=5",
         "127.0.0.1", NULL},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_orte_hnp_uri=7.0;tcp://203.0.113.7:5",
         "203.0.113.7", NULL},
        {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_orte_hnp_uri=7.0;tcp://203.0.113.7:5",
         NULL, "look for it (203.0.113.7)"},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_orte_hnp_uri=7.0;tcp://203.0.113.7:5 "
         "OMPI_MCA_orte_node_regex=login,n[2:8-10]@0(4)",
         "203.0.113.7,login,n08,n09,n10", NULL},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4", NULL, "-x MASTER_ADDR=HOST"},
        {"PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", NULL, "PMI_FD"},
        {"PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=9", "", NULL},
        {"SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_STEP_NUM_NODES=1", "127.0.0.1", NULL},
        {"SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_STEP_NUM_NODES=3 "
         "SLURM_STEP_NODELIST=n[08-10] SLURM_JOB_NODELIST=n[01-10]",
         "n08", NULL},
        /* Slurm that speaks PMI is Slurm. */
        {"SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_NNODES=2 SLURM_JOB_NODELIST=a,b "
         "PMI_RANK=5 PMI_SIZE=6 PMI_FD=9",
         "a", NULL},
        {"SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=6", NULL, "SLURM_STEP_NODELIST is not set"},
        /* What is given is taken, as far as it is given. */
        {"SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_NNODES=1 MASTER_ADDR=x", "x", NULL},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(wanted); i++) {
        struct tess_boot_env env;
        bool found = false;
        env_set(wanted[i].variables);
        const enum tess_status status = tess_boot_from_environment(&env, &found);
        if (wanted[i].address == NULL) {
            assert_int_equal(status, TESS_ERR_USAGE);
            assert_contains(tess_log_last_error(), wanted[i].phrase);
            continue;
        }
        assert_int_equal(status, TESS_OK);
        assert_true(found);
        assert_string_equal(env.address, wanted[i].address);
        assert_true(env.port_count > 1 && env.port > 1024 && env.port + env.port_count < 32768);
    }
    /* A port that is given is the only one. */
    struct tess_boot_env env;
    bool found;
    env_set("SLURM_STEP_ID=0 SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_NNODES=1 MASTER_PORT=99");
    assert_int_equal(tess_boot_from_environment(&env, &found), TESS_OK);
    assert_int_equal(env.port, 99);
    assert_true(env.port_count <= 1);
    /* Two steps of a job are two jobs. */
    const uint64_t job = env.job;
    env_set("SLURM_STEP_ID=1 SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_NNODES=1 SLURM_JOB_ID=3");
    assert_int_equal(tess_boot_from_environment(&env, &found), TESS_OK);
    const uint64_t one = env.job;
    env_set("SLURM_STEP_ID=2 SLURM_PROCID=5 SLURM_NTASKS=6 SLURM_NNODES=1 SLURM_JOB_ID=3");
    assert_int_equal(tess_boot_from_environment(&env, &found), TESS_OK);
    assert_true(job == 0 && one != 0 && one != env.job);
}

#define SLURM_TASK "SLURM_STEP_ID=0 SLURM_JOB_ID=3 SLURM_PROCID=4 SLURM_STEP_NUM_TASKS=5 "

/* What Slurm gives of hosts; what is not understood is unknown, and no error. */
static void case_slurm_hosts(void **state)
{
    static const struct {
        const char *variables;
        int32_t local_count, hosts, cores, devices, rank_cores;
    } wanted[] = {
        {SLURM_TASK "SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_STEP_NUM_NODES=3 SLURM_NNODES=9 "
                    "SLURM_STEP_TASKS_PER_NODE=2(x2),1 SLURM_TASKS_PER_NODE=8(x9) "
                    "SLURM_STEP_NODELIST=a,b,c SLURM_CPUS_ON_NODE=16 SLURM_GPUS_ON_NODE=4 "
                    "SLURM_CPUS_PER_TASK=8",
         1, 3, 16, 4, 8},
        {SLURM_TASK "SLURM_LOCALID=1 SLURM_NODEID=1 SLURM_NNODES=2 SLURM_TASKS_PER_NODE=3,2 "
                    "SLURM_JOB_NODELIST=a,b",
         2, 2, 0, 0, 0},
        /* Fewer tasks than this one's number: the list is of something else. */
        {SLURM_TASK "SLURM_LOCALID=2 SLURM_NODEID=1 SLURM_NNODES=2 SLURM_TASKS_PER_NODE=3,2 "
                    "SLURM_JOB_NODELIST=a,b SLURM_CPUS_ON_NODE=x SLURM_GPUS_ON_NODE=-1 "
                    "SLURM_CPUS_PER_TASK=0",
         -1, 2, 0, 0, 0},
        {SLURM_TASK "SLURM_NODEID=x SLURM_TASKS_PER_NODE=5 MASTER_ADDR=a", -1, 0, 0, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(wanted); i++) {
        struct tess_boot_env env;
        bool found = false;
        env_set(wanted[i].variables);
        assert_int_equal(tess_boot_from_environment(&env, &found), TESS_OK);
        assert_int_equal(env.local_count, wanted[i].local_count);
        assert_int_equal(env.host_count, wanted[i].hosts);
        assert_int_equal(env.host_cores, wanted[i].cores);
        assert_int_equal(env.host_devices, wanted[i].devices);
        assert_int_equal(env.rank_cores, wanted[i].rank_cores);
    }
}

static void case_idle_nodes(void **state)
{
    static const struct {
        const char *variables;
        int32_t idle;
    } wanted[] = {
        {"SLURM_JOB_ID=3 SLURM_JOB_NUM_NODES=4", 3},
        {"SLURM_JOB_ID=3 SLURM_NNODES=2", 1},
        {"SLURM_JOB_ID=3 SLURM_JOB_NUM_NODES=1", 0},
        {"SLURM_JOB_ID=3", 0},
        {"SLURM_JOB_NUM_NODES=4", 0},
        /* A task of srun; the shell of salloc is a step, too. */
        {"SLURM_JOB_ID=3 SLURM_JOB_NUM_NODES=4 SLURM_STEP_ID=0", 0},
        {"SLURM_JOB_ID=3 SLURM_JOB_NUM_NODES=4 SLURM_STEP_ID=4294967290", 3},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(wanted); i++) {
        env_set(wanted[i].variables);
        assert_int_equal(tess_boot_idle_nodes(), wanted[i].idle);
    }
}

/* ---- PMI ------------------------------------------------------------------------------------- */

/* mpirun's side for one rank, which gives these answers and then closes; in a child. */
static pid_t pmi_serve(const char *const *answer, int *fd_out)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        char question[2048];
        close(pair[0]);
        for (; *answer != NULL; answer++) {
            if (read(pair[1], question, sizeof(question)) <= 0 ||
                write(pair[1], *answer, strlen(*answer)) < 0)
                break;
        }
        _exit(0);
    }
    close(pair[1]);
    *fd_out = pair[0];
    return pid;
}

static enum tess_status pmi_find(const char *const *answer, const char *local_count,
                                 struct tess_boot_env *env)
{
    char variables[200];
    int fd = -1;
    bool found;
    const pid_t pid = pmi_serve(answer, &fd);
    snprintf(variables, sizeof(variables),
             "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=%s PMI_FD=%d", local_count,
             fd);
    env_set(variables);
    assert_int_equal(tess_boot_from_environment(env, &found), TESS_OK);
    const enum tess_status status = tess_boot_find(env, 1);
    const double leave_s = tess_clock_s();
    tess_boot_leave(env); /* also where the other end is gone */
    assert_true(tess_clock_s() - leave_s < 3);
    close(fd);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return status;
}

#define PMI_INIT "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n"

static void case_pmi(void **state)
{
    static const char *const here[] = {PMI_INIT, "cmd=my_kvsname kvsname=kvs_1_0\n", NULL};
    static const char *const far[] = {
        PMI_INIT, "cmd=my_kvsname kvsname=kvs_1_0\n", "cmd=barrier_out\n",
        "cmd=get_result rc=0 msg=success value=10.0.0.1,fd00::1\n", NULL};
    static const char *const bad[][5] = {
        {NULL},
        {"cmd=response_to_init pmi_version=1 rc=-1\n", NULL},
        {PMI_INIT, "cmd=my_kvsname name=x\n", NULL},
        {PMI_INIT, "cmd=my_kvsname kvsname=x", NULL}, /* no end of the line */
        {PMI_INIT, "cmd=my_kvsname kvsname=x\n", "cmd=barrier_out\n",
         "cmd=get_result rc=-1 msg=no\n", NULL},
    };
    struct tess_boot_env env, other;
    (void)state;
    assert_int_equal(pmi_find(here, "4", &env), TESS_OK);
    assert_string_equal(env.address, "127.0.0.1");
    assert_true(env.job != 0 && env.port_count > 1);
    assert_int_equal(pmi_find(far, "2", &other), TESS_OK);
    assert_string_equal(other.address, "10.0.0.1,fd00::1");
    assert_true(other.job == env.job && other.port == env.port);
    for (size_t i = 0; i < COUNT(bad); i++) {
        const double start_s = tess_clock_s();
        assert_int_equal(pmi_find(bad[i], "2", &env), TESS_ERR_COMM);
        assert_contains(tess_log_last_error(), "mpirun ");
        assert_true(tess_clock_s() - start_s < 5);
    }
    env_set("PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4 PMI_FD=1000000");
    bool found;
    assert_int_equal(tess_boot_from_environment(&env, &found), TESS_OK);
    assert_int_equal(tess_boot_find(&env, 1), TESS_ERR_USAGE);
    assert_contains(tess_log_last_error(), "PMI_FD is '1000000'");
}

/* ---- a port of several ----------------------------------------------------------------------- */

static int port_take(int32_t port)
{
    const struct sockaddr_in name = {.sin_family = AF_INET,
                                     .sin_port = htons((uint16_t)port),
                                     .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fd, (const struct sockaddr *)&name, sizeof(name)) == 0 && listen(fd, 8) == 0)
        return fd;
    close(fd);
    return -1;
}

/* A process that sends nothing has the first port, and of two addresses either may answer. */
static void case_ports(void **state)
{
    static const char *const address[] = {"127.0.0.1", "127.0.0.9,127.0.0.1"};
    (void)state;
    for (size_t a = 0; a < COUNT(address); a++) {
        struct tess_boot_env env = {.starter = "test", .rank_count = 3, .port_count = 4, .job = 5};
        int silent = -1;
        for (env.port = 20000; silent < 0; env.port += 7)
            silent = port_take(env.port);
        env.port -= 7;
        snprintf(env.address, sizeof(env.address), "%s", address[a]);
        pid_t pid[3];
        for (int32_t r = 2; r >= 0; r--) {
            fflush(NULL);
            pid[r] = fork();
            assert_true(pid[r] >= 0);
            if (pid[r] > 0)
                continue;
            struct tess_boot *boot = NULL;
            int32_t all[3] = {-1, -1, -1};
            env.rank = r;
            if (tess_boot_open(&env, 20, &boot) != TESS_OK ||
                boot->gather(boot->context, &r, sizeof(r), all) != TESS_OK)
                _exit(1);
            _exit(all[0] == 0 && all[1] == 1 && all[2] == 2 &&
                          strncmp(boot->address, "127.0.0.", 8) == 0 &&
                          strchr(boot->address, ',') == NULL
                      ? 0
                      : 2);
        }
        for (int32_t r = 0; r < 3; r++) {
            int ended = -1;
            assert_int_equal(waitpid(pid[r], &ended, 0), pid[r]);
            assert_int_equal(ended, 0);
        }
        close(silent);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_uri),        cmocka_unit_test(case_first_host),
        cmocka_unit_test(case_nodes),      cmocka_unit_test(case_environment),
        cmocka_unit_test(case_tasks),      cmocka_unit_test(case_slurm_hosts),
        cmocka_unit_test(case_idle_nodes), cmocka_unit_test(case_pmi),
        cmocka_unit_test(case_ports),
    };
    tess_log_set_level(TESS_LOG_ERROR);
    return cmocka_run_group_tests_name("boot_find", tests, NULL, NULL);
}
