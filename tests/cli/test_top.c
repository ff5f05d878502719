/*
 * tessera top and what runs write down of devices: the program against a library of made-up answers
 * in the driver's place (tests/device/fake_nvml.c), without any, and /proc made by hand.
 */
#include "cli/top.h"
#include "harness/spawn.h"
#include "run/memory_table.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/tessera_top_XXXXXX";
static struct spawn spawn;

static double number_of(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);

    if (!json_is_number(value))
        fail_msg("no number %s", name);
    return json_number_value(value);
}

static json_t *sample_of(const char *text)
{
    json_t *object = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);

    if (object == NULL)
        fail_msg("not JSON: %s", text);
    return object;
}

/* ---- the program ----------------------------------------------------------------------------- */

static void case_json(void **state)
{
    json_t *object;
    const json_t *device;

    (void)state;
    setenv("TESSERA_NVML", FAKE_NVML, 1);
    assert_int_equal(spawn_words(&spawn, "top --json --count 2 --interval 0.1"), 0);
    assert_int_equal(spawn_count(spawn.out, "\n"), 2);
    object = sample_of(strchr(spawn.out, '\n') + 1);
    assert_true(json_array_size(json_object_get(object, "core_percent")) >= 1);
    assert_true(number_of(json_object_get(object, "memory"), "total_bytes") > 0);
    assert_null(json_object_get(object, "no_device"));
    assert_int_equal(json_array_size(json_object_get(object, "devices")), 2);
    device = json_array_get(json_object_get(object, "devices"), 0);
    assert_string_equal(json_string_value(json_object_get(device, "name")), "NVIDIA H200");
    assert_true(number_of(device, "gpu_percent") == 97);
    assert_true(number_of(device, "memory_used_bytes") == 71.0 * 1024 * 1024 * 1024);
    assert_true(number_of(device, "link_tx_bytes_per_s") > 0);
    device = json_array_get(json_object_get(object, "devices"), 1);
    assert_true(json_is_null(json_object_get(device, "power_w")));
    json_decref(object);
}

static void case_table(void **state)
{
    (void)state;
    setenv("TESSERA_NVML", FAKE_NVML, 1);
    assert_int_equal(spawn_words(&spawn, "top --count 1 --interval 0.1"), 0);
    assert_non_null(strstr(spawn.out, "NVIDIA H200"));
    assert_non_null(strstr(spawn.out, "651"));
    assert_non_null(strstr(spawn.out, "clocks limited by: power cap, heat (hardware)"));
    assert_null(strchr(spawn.out, '\033')); /* no terminal, no codes of one */
}

static void case_no_driver(void **state)
{
    json_t *object;

    (void)state;
    setenv("TESSERA_NVML", "/nowhere/libnvidia-ml.so.1", 1);
    assert_int_equal(spawn_words(&spawn, "top --count 1 --interval 0.1"), 0);
    assert_int_equal(spawn_count(spawn.out, "no device: NVIDIA's driver is not installed"), 1);
    assert_non_null(strstr(spawn.out, "cores"));
    assert_int_equal(spawn_words(&spawn, "top --json --count 1 --interval 0.1"), 0);
    object = sample_of(spawn.out);
    assert_true(json_is_string(json_object_get(object, "no_device")));
    assert_int_equal(json_array_size(json_object_get(object, "devices")), 0);
    json_decref(object);
}

static void case_bad_options(void **state)
{
    (void)state;
    assert_int_equal(spawn_words(&spawn, "top --interval 0"), 2);
    assert_int_equal(spawn_words(&spawn, "top --colour on"), 2);
    assert_int_equal(spawn_words(&spawn, "top --help"), 0);
    assert_non_null(strstr(spawn.out, "how to read it"));
}

/* Ranks of a run that is under way are found, with their numbers, and what it has written. */
static void case_ranks(void **state)
{
    static char named[64];
    snprintf(named, sizeof(named), "%s/under_way", folder);
    static struct spawn run;
    char *argv[] = {"tessera",  "train", "--data",     "synthetic", "--synthetic-rows", "4096",
                    "--epochs", "10000", "--evaluate", "off",       "--strategy",       "ddp",
                    "--ranks",  "4",     "--device",   "cpu",       "--log-every",      "1",
                    "--run",    named,   NULL};
    pid_t child[5];
    json_t *object;
    const json_t *ranks, *rank, *one;
    size_t i;
    int own = 0, runs = 0;

    (void)state;
    setenv("TESSERA_NVML", "/nowhere/libnvidia-ml.so.1", 1);
    spawn_start(&run, argv, NULL);
    assert_true(spawn_until(&run, "step 1/", 60));
    assert_int_equal(spawn_children(&run, child, 5), 4);
    assert_int_equal(spawn_words(&spawn, "top --json --count 1 --interval 0.1"), 0);
    object = sample_of(spawn.out);
    ranks = json_object_get(object, "ranks");
    json_array_foreach(ranks, i, rank)
    {
        if (number_of(rank, "run_pid") != run.pid)
            continue; /* of another test's run */
        assert_true(number_of(rank, "rank") == own);
        assert_true(number_of(rank, "pid") == child[own]);
        assert_true(number_of(rank, "resident_bytes") > 0);
        assert_true(number_of(rank, "cpu_percent") >= 0);
        own++;
    }
    assert_int_equal(own, 4);
    json_array_foreach(json_object_get(object, "runs"), i, one)
    {
        if (number_of(one, "run_pid") != run.pid)
            continue;
        assert_true(number_of(one, "step") >= 1 && number_of(one, "steps") == 320000);
        assert_true(number_of(one, "loss") > 0);
        assert_string_equal(json_string_value(json_object_get(one, "folder")), named);
        runs++;
    }
    assert_int_equal(runs, 1);
    json_decref(object);
    assert_int_equal(spawn_words(&spawn, "top --count 1 --interval 0.1"), 0);
    assert_non_null(strstr(spawn.out, " of 320000, loss "));
    kill(run.pid, SIGINT);
    assert_int_equal(spawn_end(&run, 30), 130);
}

/* A run that watches devices writes what their driver reports, and the report reads it. */
static void case_metrics(void **state)
{
    char *argv[] = {"tessera",    "train",        "--data",   "synthetic", "--synthetic-rows",
                    "512",        "--batch-size", "32",       "--steps",   "4",
                    "--evaluate", "off",          "--device", "cpu",       "--watch",
                    "on",         "--run",        folder,     NULL};
    char path[128], line[16384];
    int samples = 0;
    FILE *file;

    (void)state;
    setenv("TESSERA_NVML", FAKE_NVML, 1);
    assert_int_equal(spawn_run(&spawn, argv, NULL), 0);
    snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        json_t *object = sample_of(line);
        const char *kind = json_string_value(json_object_get(object, "kind"));

        if (kind != NULL && strcmp(kind, "device") == 0) {
            assert_true(number_of(object, "elapsed_s") >= 0);
            assert_true(number_of(object, "device") == samples % 2);
            assert_true(number_of(object, "memory_total_bytes") > 0);
            samples++;
        }
        json_decref(object);
    }
    fclose(file);
    if (samples < 2)
        fail_msg("%d samples of two devices", samples);
}

/* ---- /proc by hand --------------------------------------------------------------------------- */

static void put(const char *name, const char *text)
{
    char path[256];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    for (char *slash = path + strlen(folder) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void put_task(int pid, int task, const char *name, int parent, int ticks)
{
    char path[64], text[256];

    snprintf(path, sizeof(path), "%d/task/%d/comm", pid, task);
    snprintf(text, sizeof(text), "%s\n", name);
    put(path, text);
    snprintf(path, sizeof(path), "%d/task/%d/stat", pid, task);
    snprintf(text, sizeof(text), "%d (a) b) S %d 1 1 0 -1 0 0 0 0 0 %d %d 0 0 20 0 1 0 5 0 0\n",
             task, parent, ticks, 2 * ticks);
    put(path, text);
}

/* Two rank threads of one process, one with a helper that has inherited its name, beside other
 * programs; the second sample a known number of ticks later. */
static void case_proc(void **state)
{
    static struct tess__top_host host;
    const double tick_s = 1.0 / (double)sysconf(_SC_CLK_TCK);
    double begin_s;

    (void)state;
    memset(&host, 0, sizeof(host));
    put("stat", "cpu  9 9 9 9\ncpu0 100 0 100 700 100 0 0 0\ncpu1 10 0 0 90 0 0 0 0\nintr 5\n");
    put("meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n");
    put("70/comm", "bash\n");
    put("71/comm", "tessera ranks\n");
    put("71/statm", "100 25 5 1 0 9 0\n");
    put_task(71, 71, "tessera ranks", 60, 5);
    put_task(71, 72, "tessera rank 0", 60, 10);
    put_task(71, 73, "tessera rank 1", 60, 20);
    put_task(71, 74, "tessera rank 1", 60, 30);
    tess__top_sample(&host, folder);
    assert_int_equal(host.core_count, 2);
    assert_true(isnan(host.core_percent[0]));
    assert_int_equal(host.memory_total_bytes, 1000 * 1024);
    assert_int_equal(host.memory_used_bytes, 600 * 1024);
    assert_int_equal(host.rank_count, 2);
    assert_int_equal(host.rank[1].rank, 1);
    assert_int_equal(host.rank[1].pid, 71);
    assert_int_equal(host.rank[1].launcher, 60);
    assert_int_equal(host.rank[1].ticks, 3 * 20 + 3 * 30);
    assert_int_equal(host.rank[1].resident_bytes, 25 * sysconf(_SC_PAGESIZE));
    assert_true(isnan(host.rank[0].cpu_percent));

    /* 100 ticks on: 30 busy of core 0, 25 of them user; core 1 idle. */
    put("stat", "cpu  9 9 9 9\ncpu0 125 0 105 760 110 0 0 0\ncpu1 10 0 0 190 0 0 0 0\n");
    put_task(71, 72, "tessera rank 0", 60, 10);
    put_task(71, 73, "tessera rank 1", 60, 40);
    begin_s = host.time_s;
    usleep(20000);
    tess__top_sample(&host, folder);
    assert_true(fabs(host.core_percent[0] - 30) < 1e-9);
    assert_true(host.core_percent[1] == 0);
    assert_true(host.rank[0].cpu_percent == 0);
    /* Rank 1's threads have worked 3 x 20 ticks more. */
    assert_true(fabs(host.rank[1].cpu_percent - 100 * 60 * tick_s / (host.time_s - begin_s)) <
                1e-6 * host.rank[1].cpu_percent);
    assert_true(tess__top_has_process(folder, 70));
    assert_false(tess__top_has_process(folder, 99));
}

/* The latest step of a run, behind lines of other kinds; files that are cut short or not of a run.
 */
static void case_run(void **state)
{
    static struct tess__top_run run;
    static const char *const nothing[] = {"",
                                          "\n\n\n",
                                          "{\"step\": 1, \"loss\": 2",
                                          "{\"step\": 1, \"loss\": 2}",
                                          "[1]\n{}\n\n{\n",
                                          "{\"step\": \"1\", \"loss\": 2}\n"};
    char to[256], from[256];

    (void)state;
    snprintf(to, sizeof(to), "%s/some/metrics.jsonl", folder);
    snprintf(from, sizeof(from), "%s/60/fd/7", folder);
    put("60/fd/0", "");
    for (size_t i = 0; i < sizeof(nothing) / sizeof(nothing[0]); i++) {
        put("some/metrics.jsonl", nothing[i]);
        if (i == 0)
            assert_int_equal(symlink(to, from), 0);
        assert_false(tess__top_find_run(folder, 60, &run));
    }
    put("some/metrics.jsonl", "{\"run\": {\"steps\": 9}}\n{\"step\": 3, \"loss\": 0.5}\n"
                              "{\"step\": 4, \"loss\": 0.25}\n{\"epoch\": 0, \"step\": 4}\n"
                              "{\"step\": 5, \"lo");
    assert_true(tess__top_find_run(folder, 60, &run));
    assert_true(run.step == 4 && run.steps == 9 && run.loss == 0.25);
    assert_int_equal(strcmp(run.folder + strlen(run.folder) - 5, "/some"), 0);
    put("some/metrics.jsonl", "{\"step\": 5, \"loss\": null}\n");
    assert_true(tess__top_find_run(folder, 60, &run));
    assert_true(run.step == 5 && run.steps == 0 && isnan(run.loss));
    assert_false(tess__top_find_run(folder, 61, &run));
    assert_int_equal(unlink(from), 0);
}

/* In a terminal the key q ends it, and the terminal is as it was. */
static void case_key(void **state)
{
    char *argv[] = {"tessera", "top", "--interval", "60", NULL};
    struct termios before, after;
    char text[4096];
    int wait_status = -1, name;

    (void)state;
    setenv("TESSERA_NVML", "/nowhere/libnvidia-ml.so.1", 1);
    const int own = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(own >= 0);
    assert_int_equal(grantpt(own), 0);
    assert_int_equal(unlockpt(own), 0);
    assert_true((name = open(ptsname(own), O_RDWR | O_NOCTTY | O_CLOEXEC)) >= 0);
    assert_int_equal(tcgetattr(name, &before), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(name, STDIN_FILENO);
        dup2(name, STDOUT_FILENO);
        execv(TESSERA_PROGRAM, argv);
        _exit(127);
    }
    assert_true(pid > 0);
    assert_true(read(own, text, sizeof(text)) > 0); /* the first table */
    assert_int_equal(write(own, "xq", 2), 2);
    for (int i = 0; i < 3000 && waitpid(pid, &wait_status, WNOHANG) == 0; i++) {
        struct pollfd output = {.fd = own, .events = POLLIN};
        if (poll(&output, 1, 10) > 0) /* output that is not read would hold it up */
            (void)!read(own, text, sizeof(text));
    }
    assert_true(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0);
    assert_int_equal(tcgetattr(name, &after), 0);
    assert_int_equal(after.c_lflag, before.c_lflag);
    close(name);
    close(own);
}

/* ---- a device's memory ----------------------------------------------------------------------- */

static void case_memory(void **state)
{
    struct tess__run_rank rank[3] = {{.peak_rss = 0}};
    struct tess__run run;
    static struct tess_config config;
    struct tess__device_memory memory;

    (void)state;
    config.device.count = 2;
    config.device.of_rank = (int32_t[]){0, 0, 1};
    run = (struct tess__run){.config = &config, .rank_count = 3, .rank = rank};
    /* Two ranks on device 0: their arenas add up; what the device's libraries keep is reported by
     * both, the first before the second had a communicator. */
    run.rank[0] = (struct tess__run_rank){
        .allocated.total = 1000,
        .device_usage = {.context = 300, .workspace = 20},
        .device_memory = {.free_bytes = 8000, .total_bytes = 10000},
    };
    run.rank[1] = (struct tess__run_rank){
        .allocated.total = 500,
        .device_usage = {.context = 300, .workspace = 20, .comm = 70},
        .device_memory = {.free_bytes = 7900, .total_bytes = 10000},
    };
    run.rank[2] = (struct tess__run_rank){
        .allocated.total = 4000, .device_usage = {.context = 300, .workspace = 20, .comm = 70}};
    memory = tess__device_memory_of(&run, 0);
    assert_int_equal(memory.arena, 1500);
    assert_int_equal(memory.context, 300);
    assert_int_equal(memory.workspace, 20);
    assert_int_equal(memory.comm, 70);
    assert_int_equal(memory.used, 2100);
    assert_int_equal(memory.total, 10000);
    assert_int_equal(memory.unaccounted, 2100 - 1500 - 300 - 20 - 70);
    memory = tess__device_memory_of(&run, 1);
    assert_int_equal(memory.arena, 4000);
    assert_int_equal(memory.total, 0); /* the driver was not asked: nothing to compare with */
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_json),      cmocka_unit_test(case_table),
        cmocka_unit_test(case_no_driver), cmocka_unit_test(case_bad_options),
        cmocka_unit_test(case_ranks),     cmocka_unit_test(case_metrics),
        cmocka_unit_test(case_proc),      cmocka_unit_test(case_memory),
        cmocka_unit_test(case_run),       cmocka_unit_test(case_key),
    };

    return cmocka_run_group_tests_name("top", tests, make_folder, remove_folder);
}
