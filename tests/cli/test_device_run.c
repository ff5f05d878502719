/*
 * Runs dealt out over devices, as a user sees them: the program with a stand-in for the module
 * (standin_module.c), whose kernels are ref's, so that the results are ref's too.
 */
#include "harness/spawn.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char folder[] = "/tmp/tessera_device_XXXXXX";
static struct spawn spawn;

#define RUN                                                                                        \
    "train --data synthetic --synthetic-rows 64 --batch-size 16 --steps 2 --evaluate off "         \
    "--save-weights off "

static void devices(int count)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", count);
    setenv("STANDIN_DEVICES", text, 1);
}

static void printed(const char *part)
{
    if (strstr(spawn.out, part) == NULL)
        fail_msg("'%s' is not in\n%s\n%s", part, spawn.out, spawn.err);
}

static void complained(const char *words, int wanted, const char *part)
{
    assert_int_equal(spawn_words(&spawn, words), wanted);
    if (strstr(spawn.err, part) == NULL)
        fail_msg("'%s' is not in\n%s", part, spawn.err);
    assert_int_equal(spawn_count(spawn.err, "error: "), 1);
}

/* Four ranks on two devices are threads of one process, and compute what four on the host do. */
static void case_shared(void **state)
{
    char host[17], device[17];

    (void)state;
    devices(2);
    assert_int_equal(spawn_words(&spawn, RUN "--strategy fsdp --ranks 4 --kernel ref"), 0);
    printed("under fsdp on 4 ranks");
    assert_null(strstr(spawn.out, "(a thread)"));
    assert_null(strstr(spawn.out, "memory per device"));
    spawn_hash(&spawn, host);
    assert_int_equal(spawn_words(&spawn, RUN "--strategy fsdp --ranks 4 --device cuda"), 0);
    assert_int_equal(spawn_count(spawn.out, "(a thread)"), 4);
    spawn_hash(&spawn, device);
    assert_string_equal(device, host);
    printed("memory per device");
    printed("of 66.9 TFLOP/s dense f32 (H200) x 2 devices");
    /* Device 0 has ranks 0 and 1: 10 GiB used, of them 0.5 of context and 0.25 of workspace. */
    printed("     0     0-1");
    printed("     1     2-3");
    printed("    10.000    140.000");
    printed("    11.000    140.000");
}

/* Where there are devices they are the default; bf16 has another peak; a measured one counts too.
 */
static void case_default(void **state)
{
    (void)state;
    devices(1);
    assert_int_equal(spawn_words(&spawn, RUN "--precision bf16 --peak-tflops 800"), 0);
    printed("MFU ");
    printed("of 989 TFLOP/s dense bf16 (H200), ");
    printed("of 800 TFLOP/s measured");
    assert_int_equal(spawn_words(&spawn, RUN "--device cpu"), 0);
    assert_null(strstr(spawn.out, "MFU"));
    assert_int_equal(spawn_words(&spawn, RUN "--kernel ref"), 0);
    assert_null(strstr(spawn.out, "MFU"));
}

static void case_explain(void **state)
{
    (void)state;
    devices(2);
    assert_int_equal(spawn_words(&spawn, RUN "--strategy ddp --ranks 4 --explain --device cuda"),
                     0);
    printed("device cuda, 2 of NVIDIA H200, 140 GiB each; ranks by device: 0 1 | 2 3");
    printed("communicator local");
    printed("threads of one process");
    assert_int_equal(spawn_words(&spawn, RUN "--strategy ddp --ranks 2 --explain"), 0);
    printed("ranks by device: 0 | 1");
    printed("communicator nccl");
    printed("one process per rank");
    devices(0);
    assert_int_equal(spawn_words(&spawn, RUN "--explain"), 0);
    printed("device cpu: no device: the stand-in has none");
    assert_int_equal(spawn_words(&spawn, RUN "--explain --device cuda"), 0);
    printed("planned as if there were one for each rank");
}

/* What a backend chooses from reaches it, and --explain has its own words about it. */
static void case_choice(void **state)
{
    (void)state;
    devices(1);
    setenv("STANDIN_CHOICE", "1", 1);
    assert_int_equal(spawn_words(&spawn, RUN "--explain --device cuda"), 0);
    printed("the stand-in was opened for convolutions by auto");
    assert_int_equal(spawn_words(&spawn, RUN "--explain --device cuda --cuda.conv cudnn"), 0);
    printed("the stand-in was opened for convolutions by cudnn");
    assert_int_equal(spawn_words(&spawn, RUN "--explain --device cuda --cuda.conv im2col"), 0);
    printed("the stand-in was opened for convolutions by im2col");
    complained(RUN "--device cuda --cuda.conv winograd", 2, "expected auto, im2col or cudnn");
    complained(RUN "--device cuda --cuda.attention flash", 2, "expected own, cudnn or auto");
    unsetenv("STANDIN_CHOICE");
    assert_int_equal(spawn_words(&spawn, RUN "--explain --device cuda"), 0);
    assert_null(strstr(spawn.out, "convolutions by"));
}

/* Every rank has selected its device and meets the others before the module connects them. */
static void case_connect(void **state)
{
    (void)state;
    devices(4);
    /* 1 x 1 + 2 x 2 + 4 x 4 + 3 x 3 */
    complained(RUN "--strategy ddp --ranks 4", 1, "4 ranks met, devices 30");
    setenv("STANDIN_APART", "1", 1);
    complained(RUN "--strategy dp --ranks 4", 1, "4 ranks met, devices 30");
    complained(RUN "--strategy ddp --ranks 4 --comm local", 2, "do not reach each other");
    unsetenv("STANDIN_APART");
    assert_int_equal(spawn_words(&spawn, RUN "--strategy dp --ranks 4"), 0);
    assert_int_equal(spawn_words(&spawn, RUN "--strategy ddp --ranks 4 --comm local"), 0);
    assert_int_equal(spawn_count(spawn.out, "(a thread)"), 4);
    complained(RUN "--strategy ddp --ranks 8 --comm nccl", 2, "needs a device for each rank");
}

/* With --hosts each host has a part of the ranks, and devices for these. */
static void case_hosts(void **state)
{
    (void)state;
    devices(2);
    complained(RUN "--strategy ddp --ranks 4 --comm nccl --explain", 2, "needs a device for each");
    assert_int_equal(spawn_words(&spawn, RUN "--strategy ddp --ranks 4 --comm nccl --explain "
                                             "--hosts 2 --meet 127.0.0.1:9"),
                     0);
    printed("one process per rank");
}

static void case_missing(void **state)
{
    (void)state;
    devices(0);
    complained(RUN "--device cuda", 1, "no device: the stand-in has none");
    assert_int_equal(spawn_words(&spawn, RUN), 0); /* on the host */
}

/* What metrics.jsonl has of it; devices are found by their bus, not by their number. */
static void case_metrics(void **state)
{
    char words[512], path[128], line[16384];
    json_t *final = NULL;
    const json_t *device;
    int samples = 0;
    FILE *file;

    (void)state;
    devices(1);
    setenv("TESSERA_NVML", FAKE_NVML, 1);
    snprintf(words, sizeof(words), RUN "--run %s", folder);
    assert_int_equal(spawn_words(&spawn, words), 0);
    unsetenv("TESSERA_NVML");
    snprintf(path, sizeof(path), "%s/metrics.jsonl", folder);
    file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        json_t *object = json_loads(line, 0, NULL);
        const char *kind = json_string_value(json_object_get(object, "kind"));

        assert_non_null(object);
        if (kind != NULL && strcmp(kind, "device") == 0) {
            assert_string_equal(json_string_value(json_object_get(object, "bus")), "0000:af:00.0");
            samples++;
        }
        if (json_object_get(object, "step") != NULL && json_object_get(object, "loss") != NULL)
            assert_true(json_is_number(json_object_get(object, "mfu")));
        if (json_object_get(object, "final") != NULL)
            final = json_incref(json_object_get(object, "final"));
        json_decref(object);
    }
    fclose(file);
    assert_true(samples >= 1);
    assert_non_null(final);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(final, "operations"), "peak_of")),
        "H200");
    device = json_object_get(final, "device");
    assert_string_equal(json_string_value(json_object_get(device, "kind")), "cuda");
    assert_string_equal(json_string_value(json_object_get(device, "comm")), "self");
    device = json_array_get(json_object_get(device, "devices"), 0);
    assert_true(json_integer_value(json_object_get(device, "used")) == (json_int_t)10 << 30);
    assert_true(json_integer_value(json_object_get(device, "arena")) > 0);
    assert_true(json_integer_value(json_object_get(device, "unaccounted")) ==
                ((json_int_t)10 << 30) - json_integer_value(json_object_get(device, "arena")) -
                    ((json_int_t)3 << 28));
    json_decref(final);
}

/* Generation selects its device too, whichever strategy the run was trained under. */
static void case_generate(void **state)
{
    char words[512], host[SPAWN_TEXT_BYTES];

    (void)state;
    devices(2);
    setenv("STANDIN_STRICT", "1", 1);
    snprintf(words, sizeof(words),
             "train --data synthetic --synthetic-rows 64 --data.length 16 --model gpt --gpt.layers "
             "1 --gpt.heads 2 --gpt.width 16 --batch-size 8 --steps 1 --evaluate off --strategy "
             "ddp --ranks 2 --kernel ref --run %s/text",
             folder);
    assert_int_equal(spawn_words(&spawn, words), 0);
    snprintf(words, sizeof(words),
             "generate %s/text --prompt-tokens 1,2 --tokens 9 --temperature 0 --kernel ref",
             folder);
    assert_int_equal(spawn_words(&spawn, words), 0);
    memcpy(host, spawn.out, sizeof(host));
    snprintf(words, sizeof(words),
             "generate %s/text --prompt-tokens 1,2 --tokens 9 --temperature 0 --device cuda",
             folder);
    assert_int_equal(spawn_words(&spawn, words), 0);
    assert_non_null(strstr(spawn.err, "kernel cuda"));
    assert_string_equal(spawn.out, host);
    unsetenv("STANDIN_STRICT");
    devices(0);
    complained(words, 1, "no device: the stand-in has none");
    snprintf(words, sizeof(words), "generate %s/text --tokens 9 --device tpu", folder);
    complained(words, 2, "auto");
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) != NULL && setenv("TESSERA_MODULE_PATH", STANDIN_FOLDER, 1) == 0 ? 0
                                                                                            : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

/* Four devices in two bridged pairs: 0 with 2 and 1 with 3, each on a socket; or 0 with 3 and 1
 * with 2, each across the two sockets. */
static const char *write_bridges(bool across)
{
    static const char *const row[][2] = {
        {"\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity",
         "\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity"},
        {"GPU0\t X \tSYS\tNV4\tSYS\t0-7\t0", "GPU0\t X \tPHB\tSYS\tNV4\t0-7\t0"},
        {"GPU1\tSYS\t X \tSYS\tNV4\t8-15\t1", "GPU1\tPHB\t X \tNV4\tSYS\t0-7\t0"},
        {"GPU2\tNV4\tSYS\t X \tSYS\t0-7\t0", "GPU2\tSYS\tNV4\t X \tPHB\t8-15\t1"},
        {"GPU3\tSYS\tNV4\tSYS\t X \t8-15\t1", "GPU3\tNV4\tSYS\tPHB\t X \t8-15\t1"},
    };
    static char path[128];
    FILE *file;

    snprintf(path, sizeof(path), "%s/bridges.txt", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    for (size_t i = 0; i < sizeof(row) / sizeof(*row); i++)
        fprintf(file, "%s\n", row[i][across]);
    assert_int_equal(fclose(file), 0);
    return path;
}

/*
 * Ranks take the devices by how these are joined. The stand-in adds (rank + 1)(device + 1): 30 in
 * the natural order; in 0 1 3 2, which crosses between the sockets once each way, 29.
 */
static void case_order(void **state)
{
    char words[512];

    (void)state;
    devices(4);
    snprintf(words, sizeof(words),
             RUN "--strategy ddp --ranks 4 --device cuda --explain --topology.file %s",
             write_bridges(false));
    assert_int_equal(spawn_words(&spawn, words), 0);
    printed("order of ranks\n");
    printed("bridges.txt: ranks follow its links");
    printed("ranks of devices 0 to 3: 0 1 3 2");
    *strstr(words, "--explain") = '\0';
    complained(words, 1, "4 ranks met, devices 30, 0 channels");
    snprintf(words, sizeof(words), RUN "--strategy ddp --ranks 4 --device cuda --topology.file %s",
             write_bridges(false));
    complained(words, 1, "4 ranks met, devices 29, 0 channels");
    snprintf(words, sizeof(words),
             RUN "--strategy ddp --ranks 4 --device cuda --topology.order natural "
                 "--topology.file %s",
             write_bridges(false));
    complained(words, 1, "4 ranks met, devices 30, 0 channels");
}

/* NCCL finds a graph file while it starts, where that is asked for, carries more than what NCCL
 * would choose, and the user has none. */
static void case_graph(void **state)
{
    char words[512];

    (void)state;
    devices(4);
    snprintf(words, sizeof(words),
             RUN "--strategy ddp --ranks 4 --device cuda --topology.nccl-graph on "
                 "--topology.file %s",
             write_bridges(true));
    assert_int_equal(spawn_words(&spawn, words), 1);
    if (strstr(spawn.err, " channels") == NULL || strstr(spawn.err, " 0 channels") != NULL)
        fail_msg("no graph: %s", spawn.err);
    setenv("NCCL_GRAPH_FILE", "/nowhere/graph.xml", 1);
    assert_int_equal(spawn_words(&spawn, words), 1);
    unsetenv("NCCL_GRAPH_FILE");
    assert_non_null(strstr(spawn.err, " 0 channels"));
    assert_non_null(strstr(spawn.err, "nccl-graph does nothing: NCCL_GRAPH_FILE is set"));

    (void)write_bridges(false);
    assert_int_equal(spawn_words(&spawn, words), 1);
    assert_non_null(strstr(spawn.err, " 0 channels"));
    assert_non_null(strstr(spawn.err, ": it is left to itself"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_shared),  cmocka_unit_test(case_default),
        cmocka_unit_test(case_explain), cmocka_unit_test(case_choice),
        cmocka_unit_test(case_order),   cmocka_unit_test(case_graph),
        cmocka_unit_test(case_connect), cmocka_unit_test(case_missing),
        cmocka_unit_test(case_metrics), cmocka_unit_test(case_generate),
        cmocka_unit_test(case_hosts),
    };

    return cmocka_run_group_tests_name("device_run", tests, make_folder, remove_folder);
}
