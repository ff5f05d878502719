/*
 * Which process becomes which rank: hosts of processes, hosts of a topology, files of an order, and
 * what the options refuse; then the program, four processes as torchrun would start them.
 */
#include "base/hash.h"
#include "config/registry.h"
#include "harness/free_port.h"
#include "harness/spawn.h"
#include "job/memory_room.h"
#include "job/place.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS 4

#define assert_contains(text, words)                                                               \
    do {                                                                                           \
        if (strstr((text), (words)) == NULL)                                                       \
            fail_msg("'%s' does not contain '%s'", (text), (words));                               \
    } while (0)

/* Hosts are told apart by keys, and called as their first processes say. */
static void find_hosts(struct tess__processes *job, const char *const *name, const char *const *key)
{
    for (int32_t p = 0; p < job->count; p++)
        job->process[p].host = tess_hash_bytes(key[p], strlen(key[p]));
    tess__place_find_hosts(job);
    for (int32_t p = job->count - 1; p >= 0; p--)
        snprintf(job->hosts[job->host[p]].name, sizeof(job->hosts[0].name), "%s", name[p]);
}

/* Processes on hosts by name; each host's key is its name, local ranks are unknown. */
static struct tess__processes *job_of(const char *const *host, int32_t count)
{
    struct tess__processes *job = calloc(1, sizeof(*job));

    assert_non_null(job);
    assert_int_equal(tess__processes_open(job, count), TESS_OK);
    for (int32_t p = 0; p < count; p++)
        job->process[p].local_rank = -1;
    find_hosts(job, host, host);
    return job;
}

static void job_free(struct tess__processes *job)
{
    tess__processes_close(job);
    free(job);
}

static struct tess_topology *slurm(const char *text, int32_t per_host)
{
    const struct tess_topology_options options = {.per_host = per_host};
    struct tess_topology *topology = tess_topology_new();

    assert_non_null(topology);
    assert_int_equal(
        tess_topology_read_slurm("topology.conf", text, strlen(text), &options, topology), TESS_OK);
    return topology;
}

/* ---- hosts ----------------------------------------------------------------------------------- */

static void case_hosts(void **state)
{
    static const char *const name[] = {"b", "a", "b", "a", "c"};
    static const int32_t host[] = {0, 1, 0, 1, 2}, slot[] = {0, 0, 1, 1, 0};
    struct tess__processes *job = job_of(name, 5);

    (void)state;
    assert_int_equal(job->host_count, 3);
    for (int32_t p = 0; p < 5; p++) {
        assert_int_equal(job->host[p], host[p]);
        assert_int_equal(job->slot[p], slot[p]);
    }
    assert_int_equal(tess__host_size(job, 1), 2);
    assert_int_equal(job->member[job->start[1]], 1);

    /* Local ranks come before numbers. */
    job->process[0].local_rank = 1;
    job->process[2].local_rank = 0;
    tess__place_find_hosts(job);
    assert_int_equal(job->slot[0], 1);
    assert_int_equal(job->slot[2], 0);

    /* One name, two machines: their keys differ. */
    job->process[3].host++;
    tess__place_find_hosts(job);
    assert_int_equal(job->host_count, 4);
    job_free(job);
}

/* The least share: processes that may use the same cores divide them, those of one control group
 * its quota. */
static void case_rank_cores(void **state)
{
    static const char *const name[] = {"a", "b", "a", "b", "a"};
    static const struct {
        uint64_t cores[5];
        int32_t core_count[5], wanted;
        uint64_t quota[5];
        int32_t quota_count[5];
    } shares[] = {
        {{1, 1, 1, 1, 1}, {16, 16, 16, 16, 16}, 3, {0}, {0}}, /* hosts of one machine: containers */
        {{1, 2, 1, 2, 1}, {16, 16, 16, 16, 16}, 5, {0}, {0}}, /* two machines */
        {{1, 2, 3, 4, 5}, {2, 4, 2, 4, 2}, 2, {0}, {0}},      /* bound to cores of their own */
        {{1, 2, 3, 2, 1}, {8, 32, 8, 32, 8}, 4, {0}, {0}},    /* to a socket each */
        {{1, 2, 1, 2, 1}, {2, 64, 2, 64, 2}, 0, {0}, {0}},
        /* Pods of one machine, each with a quota of its own; two ranks in one; more quotas than
         * cores; one pod alone has a quota. */
        {{1, 1, 1, 1, 1}, {64, 64, 64, 64, 64}, 4, {1, 2, 3, 4, 5}, {8, 8, 4, 8, 8}},
        {{1, 1, 1, 1, 1}, {64, 64, 64, 64, 64}, 3, {1, 2, 2, 3, 4}, {8, 6, 6, 8, 8}},
        {{1, 1, 1, 1, 1}, {16, 16, 16, 16, 16}, 3, {1, 2, 3, 4, 5}, {8, 8, 8, 8, 8}},
        {{1, 1, 1, 1, 1}, {16, 16, 16, 16, 16}, 2, {0, 0, 0, 0, 5}, {0, 0, 0, 0, 2}},
    };
    struct tess__processes *job = job_of(name, 5);

    (void)state;
    for (size_t i = 0; i < sizeof(shares) / sizeof(*shares); i++) {
        for (int32_t p = 0; p < 5; p++) {
            job->process[p].cores = shares[i].cores[p];
            job->process[p].core_count = shares[i].core_count[p];
            job->process[p].quota = shares[i].quota[p];
            job->process[p].quota_count = shares[i].quota_count[p];
        }
        tess__place_find_hosts(job);
        assert_int_equal(job->rank_cores, shares[i].wanted);
        assert_int_equal(job->host[4], 0);
    }
    job_free(job);
}

/* A run of two ranks: its plan's bytes with the default of --threads and so many cores, or with so
 * many threads. *room_out: what its check of memory takes them for; `started`: rank 1 was started
 * by another program. */
static size_t planned_bytes(int32_t cores, const char *threads, bool started,
                            struct tess__memory_room *room_out)
{
    const struct tess_started place = {
        .starter = started ? "torchrun" : NULL, .rank = started, .rank_count = 2};
    char *words[] = {"--data=synthetic", "--model=cnn", "--strategy=ddp",          "--ranks=2",
                     "--device=cpu",     "--threads",   (char *)(uintptr_t)threads};
    struct tess_config *config;
    struct tess_dataset *set;
    struct tess__run run;

    assert_int_equal(
        tess_config_open_placed(sizeof(words) / sizeof(*words), words, NULL, 0, &place, &config),
        TESS_OK);
    assert_int_equal(tess__run_open_data(config, &set), TESS_OK);
    assert_int_equal(tess__run_open_planned(&run, config, set), TESS_OK);
    assert_int_equal(tess__run_set_cores(&run, config, cores), TESS_OK);
    assert_true(tess__memory_room_of(&run, room_out));
    assert_int_equal(run.crowded, config->threads > cores);
    const size_t bytes = tess__run_predicted(&run, 1)->total;
    tess__run_close(&run);
    tess_dataset_close(set);
    tess_config_close(config);
    return bytes;
}

/* When ranks have met and their cores are known, the plan and the check of memory are those of as
 * many threads. */
static void case_planned_again(void **state)
{
    (void)state;
    if (tess_registry_summary(TESS_REGISTRY_KERNEL, "cpu")[0] == 0)
        skip();
    size_t before[2] = {0};
    for (int32_t cores = 0; cores <= 5; cores++) {
        char threads[16];
        snprintf(threads, sizeof(threads), "%d", cores > 0 ? (int)cores : 1);
        for (int started = 0; started < 2; started++) {
            struct tess__memory_room by_cores, by_threads;
            const size_t bytes = planned_bytes(cores, "0", started, &by_cores);
            assert_int_equal(bytes, planned_bytes(7, threads, started, &by_threads));
            /* A rank of another starter is checked by its own process alone, with its threads. */
            assert_int_equal(by_cores.ranks, started ? 1 : 2);
            assert_true(by_cores.need == (double)bytes * (started ? 1 : 2));
            assert_true(by_cores.need == by_threads.need && by_cores.fullest == (double)bytes);
            assert_true(cores < 2 || bytes > before[started]);
            before[started] = bytes;
        }
    }
}

static void case_match(void **state)
{
    static const char *const name[] = {"dev1.cluster.org", "dev0", "dev1", "dev0"};
    static const char *const key[] = {"dev1", "dev0", "dev1", "dev0"};
    struct tess__processes *job = job_of(name, 4);
    struct tess_topology *topology =
        slurm("SwitchName=s0 Nodes=dev0\nSwitchName=s1 Nodes=dev1\n", 2);
    int32_t device[RANKS];

    (void)state;
    /* The two names of dev1 are one host's, which is called as its first process says. */
    find_hosts(job, name, key);
    assert_int_equal(tess__place_match(job, topology, "F", "", device), TESS_OK);
    assert_string_equal(topology->node[topology->device[device[0]]].name, "dev1.0");
    assert_string_equal(topology->node[topology->device[device[1]]].name, "dev0.0");
    assert_string_equal(topology->node[topology->device[device[2]]].name, "dev1.1");
    assert_string_equal(topology->node[topology->device[device[3]]].name, "dev0.1");

    /* Other names for the file's hosts. */
    assert_int_equal(tess__place_match(job, topology, "F", "dev1,dev0", device), TESS_OK);
    assert_string_equal(topology->node[topology->device[device[0]]].name, "dev0.0");
    tess_topology_free(topology);
    job_free(job);
}

static void case_match_bus(void **state)
{
    static const char *const name[] = {"here", "here"};
    static const char text[] = "tessera-topology: 1\nnodes:\n"
                               "  - {name: gpu0, kind: device, index: 0, bus: \"0000:17:00.0\"}\n"
                               "  - {name: gpu1, kind: device, index: 1, bus: \"0000:2a:00.0\"}\n"
                               "  - {name: numa0, kind: cpu}\nlinks:\n"
                               "  - {between: [gpu0, numa0], kind: pci, gbs: 12}\n"
                               "  - {between: [gpu1, numa0], kind: pci, gbs: 12}\n";
    struct tess__processes *job = job_of(name, 2);
    struct tess_topology *topology = tess_topology_new();
    int32_t device[RANKS];

    (void)state;
    assert_int_equal(tess_topology_read_yaml("F", text, sizeof(text) - 1, NULL, topology), TESS_OK);
    /* The file of one machine needs no name of its host. As drivers write bus ids. */
    tess__place_bus("00000000:2A:00.0", job->process[0].bus);
    tess__place_bus("0000:17:00.0", job->process[1].bus);
    assert_int_equal(tess__place_match(job, topology, "F", "", device), TESS_OK);
    assert_int_equal(device[0], 1);
    assert_int_equal(device[1], 0);

    /* Both cannot have one device. */
    tess__place_bus("0000:2a:00.0", job->process[1].bus);
    assert_int_equal(tess__place_match(job, topology, "F", "", device), TESS_ERR_USAGE);
    assert_contains(tess_log_last_error(), "processes 0 and 1 would both have device gpu1 of F");
    tess_topology_free(topology);
    job_free(job);
}

static void case_match_refused(void **state)
{
    static const char two[] = "SwitchName=s0 Nodes=dev0\nSwitchName=s1 Nodes=dev1\n";
    static const struct {
        const char *name[2], *text, *hosts, *phrase;
    } wanted[] = {
        {{"dev0", "dev7"},
         two,
         "",
         "host dev7, of process 1, is not in F, whose hosts are called "
         "dev0, dev1: --topology.hosts"},
        {{"dev0", "dev0"},
         two,
         "",
         "2 processes were started on host dev0, which has 1 device in F"},
        {{"dev0", "dev1"}, two, "a", "--topology.hosts names 1 hosts, and F has 2"},
        {{"dev0", "dev1"}, two, "a[0-9]", "--topology.hosts names more hosts than the 2 of F"},
        {{"dev0", "dev1"}, two, "a[0-", "--topology.hosts: "},
        {{"x", "y"},
         "SwitchName=s0 Nodes=x.one,x.two,y\n",
         "",
         "host x, of process 0, is not in F"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        struct tess__processes *job = job_of(wanted[i].name, 2);
        struct tess_topology *topology = slurm(wanted[i].text, 1);
        int32_t device[RANKS];

        assert_int_not_equal(tess__place_match(job, topology, "F", wanted[i].hosts, device),
                             TESS_OK);
        assert_contains(tess_log_last_error(), wanted[i].phrase);
        tess_topology_free(topology);
        job_free(job);
    }
}

/* ---- orders ---------------------------------------------------------------------------------- */

static char folder[] = "/tmp/tessera-place-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

static const char *write_order(const char *text)
{
    static char path[128];
    FILE *file;

    snprintf(path, sizeof(path), "%s/order", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fputs(text, file) < 0, 0);
    assert_int_equal(fclose(file), 0);
    return path;
}

static void case_order(void **state)
{
    static const char *const name[] = {"a", "b.net", "a", "b.net"};
    static const struct {
        const char *text;
        int32_t process[4];
    } wanted[] = {
        {"0 2 1 3", {0, 2, 1, 3}},
        {"# racks first\n0,2,\n1,3\n", {0, 2, 1, 3}},
        {"0\n3\n2\n1", {0, 3, 2, 1}},
        {"0 a:0\n1 a:1\n2 b:0\n3 b:1\n", {0, 2, 1, 3}},
        {"3 b.net\n2 b   # the next of b\n1 a:1\n0 a\n", {0, 2, 3, 1}},
    };
    struct tess__processes *job = job_of(name, 4);
    int32_t process[RANKS];

    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        if (tess__place_read_order(job, write_order(wanted[i].text), process) != TESS_OK)
            fail_msg("order %zu: %s", i, tess_log_last_error());
        assert_memory_equal(process, wanted[i].process, sizeof(wanted[i].process));
    }
    job_free(job);
}

static void case_order_refused(void **state)
{
    static const char *const name[] = {"a", "b", "a", "b"};
    static const struct {
        const char *text, *phrase;
    } wanted[] = {
        {"", "there is no process for rank 0 of 4"},
        {"0 1 2", "there is no process for rank 3 of 4"},
        {"0 1\n1 2", ":2: process 1 is rank 1 already"},
        {"0 1 2 3 0", ":1: more than the 4 processes there are"},
        {"0 1 2 4", ":1: '4': the number of a process, 0 to 3, was expected"},
        {"0 1 two 3", "'two': the number of a process"},
        {"1 0 2 3", "is to be rank 0, not process 1"},
        {"0 a:0\n0 a:1", ":2: rank 0 is there twice"},
        {"0 a\n1 a\n2 a", ":3: there is no further process on 'a'"},
        {"0 c:0", "there is no process at 'c:0'"},
        {"0 a:x", "'a:x' is no HOST:SLOT"},
        {"0 a:0 1 a:1", "'1' follows RANK HOST:SLOT"},
        {"9 a:0", "'9': the number of a rank, 0 to 3"},
    };
    static char large[(1 << 22) + 2];
    struct tess__processes *job = job_of(name, 4);
    int32_t process[RANKS];

    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        assert_int_equal(tess__place_read_order(job, write_order(wanted[i].text), process),
                         TESS_ERR_DATA);
        assert_contains(tess_log_last_error(), wanted[i].phrase);
    }
    assert_int_equal(tess__place_read_order(job, "/nowhere/order", process), TESS_ERR_IO);
    assert_int_equal(tess__place_read_order(job, "/dev/zero", process), TESS_ERR_IO);
    assert_contains(tess_log_last_error(), "a device or a pipe, not a file");
    memset(large, ' ', sizeof(large) - 1);
    assert_int_equal(tess__place_read_order(job, write_order(large), process), TESS_ERR_DATA);
    assert_contains(tess_log_last_error(), "more than 4194304 bytes");
    job_free(job);
}

/* ---- the program ----------------------------------------------------------------------------- */

static void set_number(const char *name, int32_t number)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", (int)number);
    setenv(name, text, 1);
}

/* RANKS processes of one job. */
static void start_all(struct spawn *spawn, const char *words)
{
    char copy[1024], *argv[64];
    int count = 0;

    snprintf(copy, sizeof(copy), "tessera %s", words);
    for (char *word = strtok(copy, " "); word != NULL && count < 63; word = strtok(NULL, " "))
        argv[count++] = word;
    argv[count] = NULL;
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", free_port());
    set_number("WORLD_SIZE", RANKS);
    for (int32_t r = 0; r < RANKS; r++) {
        set_number("RANK", r);
        set_number("LOCAL_RANK", r);
        spawn_start(&spawn[r], argv, NULL);
    }
    unsetenv("RANK");
    unsetenv("LOCAL_RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
}

static void run_all(struct spawn *spawn, const char *words, int code[RANKS])
{
    start_all(spawn, words);
    for (int32_t r = 0; r < RANKS; r++)
        code[r] = spawn_end(&spawn[r], 60);
}

#define TRAIN                                                                                      \
    "train --data synthetic --synthetic-rows 256 --strategy ddp --device cpu --comm tcp --steps "  \
    "3 "                                                                                           \
    "--batch-size 32 --evaluate off"

/* The same bits whatever the order, and --explain prints which process is which rank. */
static void case_renumbered(void **state)
{
    static struct spawn natural[RANKS], chosen[RANKS];
    char words[512];
    const char *hash;
    int code[RANKS];

    (void)state;
    run_all(natural, TRAIN " --topology.order natural", code);
    for (int32_t r = 0; r < RANKS; r++)
        if (code[r] != 0)
            fail_msg("rank %d: %s", (int)r, natural[r].err);
    snprintf(words, sizeof(words), TRAIN " --topology.order file:%s", write_order("0 2 3 1"));
    run_all(chosen, words, code);
    for (int32_t r = 0; r < RANKS; r++)
        if (code[r] != 0)
            fail_msg("rank %d: %s", (int)r, chosen[r].err);
    assert_contains(chosen[0].out, "order: by ");
    hash = strstr(natural[0].out, "hash of all parameters");
    assert_non_null(hash);
    snprintf(words, sizeof(words), "%.39s", hash);
    assert_contains(chosen[0].out, words);

    snprintf(words, sizeof(words), TRAIN " --explain --topology.order file:%s",
             write_order("0 2 3 1"));
    run_all(chosen, words, code);
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(code[r], 0);
    /* Process 1 is the last rank, 2 is rank 1, 3 is rank 2. */
    assert_contains(chosen[0].out, "ranks of processes 0 to 3: 0 3 1 2");
    assert_string_equal(chosen[1].out, "");
}

/* Process 0 reports an error once, and all end. */
static void case_run_refused(void **state)
{
    static struct spawn spawn[RANKS];
    char words[512];
    int code[RANKS];

    (void)state;
    snprintf(words, sizeof(words), TRAIN " --topology.order file:%s", write_order("0 1 1 2"));
    run_all(spawn, words, code);
    assert_contains(spawn[0].err, ":1: process 1 is rank 1 already");
    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(code[r], 1);
        assert_int_equal(spawn_count(spawn[r].err, "error:"), r == 0);
    }
}

/* A process that is killed is named by its new number. */
static void case_named_anew(void **state)
{
    static struct spawn spawn[RANKS];
    char words[512];

    (void)state;
    snprintf(words, sizeof(words), TRAIN " --steps 100000 --log-every 1 --topology.order file:%s",
             write_order("0 2 3 1"));
    start_all(spawn, words);
    assert_true(spawn_until(&spawn[0], "step 1/", 30));
    assert_int_equal(kill(spawn[1].pid, SIGKILL), 0);
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_not_equal(spawn_end(&spawn[r], 30), 0);
    assert_contains(spawn[0].err, "rank 3");
    if (strstr(spawn[0].err, "rank 1") != NULL)
        fail_msg("process 1 is rank 3, and is called rank 1: %s", spawn[0].err);
}

static void case_options(void **state)
{
    static const struct {
        const char *words, *phrase;
    } wanted[] = {
        {"--topology.order fastest",
         "--topology.order fastest: auto, natural, measure or file:F with the name of a file was "
         "expected"},
        {"--topology.order file:", "--topology.order file:: auto, natural"},
        {"--topology.hosts a,b", "--topology.hosts names the hosts of --topology.file"},
        {"--topology.adapt --topology.order natural", "--topology.order natural keeps an order"},
        {"--topology.adapt", "these are all started here"},
        {"--topology.adapt --hosts 2 --meet 127.0.0.1:29401", "give --run DIR"},
        {"--topology.file /nowhere/topo.yaml", "/nowhere/topo.yaml"},
        {"--topology.file /nowhere/topo.yaml --topology.order natural", "/nowhere/topo.yaml"},
        {"--topology.file /nowhere/topo.yaml --strategy single --ranks 1", "/nowhere/topo.yaml"},
        {"--topology.order file:/nowhere/order --strategy single --ranks 1", "/nowhere/order"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        static struct spawn spawn;
        char words[512];

        snprintf(words, sizeof(words), "%s --ranks 2 %s", TRAIN, wanted[i].words);
        assert_int_not_equal(spawn_words(&spawn, words), 0);
        assert_contains(spawn.err, wanted[i].phrase);
        assert_int_equal(spawn_count(spawn.err, "error:"), 1);
    }
}

/* Ranks that are started from here, on a machine that a file describes: --explain shows them. */
static void case_imagined(void **state)
{
    static struct spawn spawn;
    char words[512];

    (void)state;
    /* Four GPUs whose bridges join 0 and 3, 1 and 2. */
    snprintf(words, sizeof(words),
             "train --data synthetic --strategy ddp --device cpu --ranks 4 --explain "
             "--topology.file %s",
             write_order("\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n"
                         "GPU0\t X \tSYS\tSYS\tNV4\t0-7\t0\n"
                         "GPU1\tSYS\t X \tNV4\tSYS\t0-7\t0\n"
                         "GPU2\tSYS\tNV4\t X \tSYS\t8-15\t1\n"
                         "GPU3\tNV4\tSYS\tSYS\t X \t8-15\t1\n"));
    if (spawn_words(&spawn, words) != 0)
        fail_msg("%s", spawn.err);
    assert_contains(spawn.out, "order of ranks, as if they were on these devices");
    assert_contains(spawn.out, "ranks of devices 0 to 3: 0 ");
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_hosts),         cmocka_unit_test(case_rank_cores),
        cmocka_unit_test(case_match),         cmocka_unit_test(case_match_bus),
        cmocka_unit_test(case_match_refused), cmocka_unit_test(case_order),
        cmocka_unit_test(case_order_refused), cmocka_unit_test(case_renumbered),
        cmocka_unit_test(case_run_refused),   cmocka_unit_test(case_named_anew),
        cmocka_unit_test(case_options),       cmocka_unit_test(case_imagined),
        cmocka_unit_test(case_planned_again),
    };
    return cmocka_run_group_tests(cases, make_folder, remove_folder);
}
