/*
 * tessera plan, through the program: the layouts of a small case counted by hand, configurations
 * that train accepts with the memory that was printed, reasons, the schema of the JSON, days and
 * price, and bad input.
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

/* The model of configs/models/tiny-gpt.yaml, smaller: 4 blocks of 8 heads are 8 units. */
#define TINY                                                                                       \
    "--model gpt --gpt.layers 4 --gpt.heads 8 --gpt.width 32 --gpt.vocab 256 --data synthetic "    \
    "--synthetic-rows 64 --data.length 16 "

static char folder[] = "/tmp/tessera_plan_XXXXXX";
static struct spawn spawn;

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL || setenv("XDG_CACHE_HOME", folder, 1) != 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

static int plan(const char *format, ...)
{
    char words[1024];
    va_list list;
    va_start(list, format);
    const int used = snprintf(words, sizeof(words), "plan ");
    vsnprintf(words + used, sizeof(words) - (size_t)used, format, list);
    va_end(list);
    return spawn_words(&spawn, words);
}

static json_t *results(void)
{
    char path[64];
    json_error_t error;
    snprintf(path, sizeof(path), "%s/plan.json", folder);
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL)
        fail_msg("%s: %s", path, error.text);
    return root;
}

/*
 * 4 ranks and a batch of 4: micro-batches 1 on 4 data ranks, 1 and 2 on 2, 1, 2 and 4 on one; 3
 * ways to recompute. Interleaved schedules need micro-batches in multiples of the stages, and 2 or
 * 4 chunks of 2 stages, 2 chunks of 4, by 8 units. d, t, s: ranks along data, tensor, stage.
 *
 *     d 4        6 strategies                                        6         x 3 =  18
 *     d 2, s 2   5 strategies x (2 schedules x 2 micro + 2 x 1)     30         x 3 =  90
 *     s 4        2 schedules x 3 micro + 1 x 1                       7         x 3 =  21
 *     d 2, t 2   5 strategies x 2 (sequence parallel) x 2 micro     20         x 3 =  60
 *     t 2, s 2   2 x (2 schedules x 3 micro + 2 x 2)                20         x 3 =  60
 *     t 4        2 x 3 micro                                         6         x 3 =  18
 *
 * dp keeps rows on one rank and has no products: 5 strategies where there are other axes.
 */
static void case_counted(void **state)
{
    (void)state;
    if (plan(TINY "--ranks 4 --device cpu --batch-size 4 --top 1") != 0)
        fail_msg("%s", spawn.err);
    if (strstr(spawn.out, ", 267 fit\n") == NULL)
        fail_msg("267 layouts were expected: %s", spawn.out);
}

static void is_number(const json_t *object, const char *key)
{
    if (!json_is_number(json_object_get(object, key)))
        fail_msg("%s is no number", key);
}

static void is_text(const json_t *object, const char *key)
{
    if (!json_is_string(json_object_get(object, key)))
        fail_msg("%s is no text", key);
}

/* Every key of the page; best first; memory's kinds add up. */
static void case_schema(void **state)
{
    (void)state;
    size_t i;
    json_t *layout, *rejected;
    const char *kind;
    json_t *bytes;
    double before = 0;
    if (plan(TINY "--ranks 2 --device cpu --batch-size 4 --top 3 --json %s/plan.json", folder) != 0)
        fail_msg("%s", spawn.err);
    json_t *root = results();
    is_number(root, "searched");
    is_number(root, "seconds");
    assert_true(json_array_size(json_object_get(root, "layouts")) > 3);
    json_array_foreach(json_object_get(root, "layouts"), i, layout)
    {
        const json_t *mesh = json_object_get(layout, "mesh");
        json_int_t sum = 0;
        is_text(layout, "strategy");
        is_text(layout, "limited_by");
        is_number(mesh, "data");
        is_number(mesh, "tensor");
        is_number(mesh, "stage");
        is_number(json_object_get(layout, "options"), "accumulate");
        is_text(json_object_get(layout, "options"), "recompute");
        is_number(layout, "samples_per_s");
        is_number(layout, "exposed_s");
        const double step_s = json_number_value(json_object_get(layout, "step_s"));
        assert_true(step_s >= before && step_s > 0);
        before = step_s;
        json_object_foreach(json_object_get(layout, "memory"), kind, bytes) sum +=
            json_integer_value(bytes);
        assert_int_equal(sum, json_integer_value(json_object_get(layout, "memory_total")));
    }
    json_array_foreach(json_object_get(root, "rejected"), i, rejected)
    {
        is_text(rejected, "family");
        is_text(rejected, "reason");
    }
    json_decref(root);
}

/* A machine whose natural order is not the best: ranks are on devices in another one, by which the
 * step is shorter; all devices are in it once. Of hosts as they are sold there is none. */
static void case_order(void **state)
{
    (void)state;
    size_t i, ordered = 0, d;
    json_t *layout, *device;
    if (plan(TINY "--cluster %s/configs/clusters/dgx-1v.yaml --device a100-40 --batch-size 16 "
                  "--top 2 --json %s/plan.json",
             PLANNER_SOURCE, folder) != 0)
        fail_msg("%s", spawn.err);
    json_t *root = results();
    json_array_foreach(json_object_get(root, "layouts"), i, layout)
    {
        const json_t *order = json_object_get(layout, "order");
        json_int_t sum = 0;
        if (order == NULL)
            continue;
        ordered++;
        assert_int_equal(json_array_size(order), 8);
        json_array_foreach(order, d, device) sum |= 1 << json_integer_value(device);
        assert_int_equal(sum, 0xff);
        assert_true(json_number_value(json_object_get(layout, "natural_step_s")) >
                    json_number_value(json_object_get(layout, "step_s")));
    }
    assert_true(ordered > 0);
    json_decref(root);
    if (plan(TINY "--ranks 8 --device a100-40 --batch-size 16 --top 2 --json %s/plan.json",
             folder) != 0)
        fail_msg("%s", spawn.err);
    assert_null(strstr(spawn.out, "natural order"));
    root = results();
    assert_null(json_object_get(json_array_get(json_object_get(root, "layouts"), 0), "order"));
    json_decref(root);
}

/* The most that --explain prints of a rank's arena, over the ranks of the file. */
static json_int_t explained(const char *path, int ranks)
{
    json_int_t most = 0;
    for (int r = 0; r < ranks; r++) {
        char words[256];
        unsigned long long bytes = 0;
        snprintf(words, sizeof(words), "train %s --explain --explain-rank %d", path, r);
        if (spawn_words(&spawn, words) != 0)
            fail_msg("%s: %s", words, spawn.err);
        const char *at = strstr(spawn.out, "memory of rank ");
        if (at == NULL || sscanf(at, "memory of rank %*d, %llu B in one arena", &bytes) != 1)
            fail_msg("no memory in: %s", spawn.out);
        most = (json_int_t)bytes > most ? (json_int_t)bytes : most;
    }
    return most;
}

/* Every layout that is printed goes to train, and keeps what was printed. */
static void layouts_run(const char *device, int ranks, int top)
{
    for (int k = 1; k <= top; k++) {
        char path[64];
        snprintf(path, sizeof(path), "%s/best.yaml", folder);
        if (plan(TINY "--ranks %d --device %s --batch-size 8 --top %d --choose %d --out %s "
                      "--json %s/plan.json",
                 ranks, device, top, k, path, folder) != 0)
            fail_msg("%s", spawn.err);
        json_t *root = results();
        const json_t *layout = json_array_get(json_object_get(root, "layouts"), (size_t)k - 1);
        const json_int_t bytes = json_integer_value(json_object_get(layout, "memory_total"));
        assert_true(bytes > 0);
        assert_int_equal(explained(path, ranks), bytes);
        json_decref(root);
    }
}

static void case_accepted_host(void **state)
{
    (void)state;
    layouts_run("cpu", 4, 3);
}

/* Without the GPUs' module. */
static void case_accepted_gpus(void **state)
{
    (void)state;
    layouts_run("h100-80", 2, 2);
}

static bool rejects(const json_t *root, const char *family, const char *part)
{
    size_t i;
    json_t *rejected;
    json_array_foreach(
        json_object_get(root, "rejected"), i,
        rejected) if (strcmp(json_string_value(json_object_get(rejected, "family")), family) ==
                      0) return strstr(json_string_value(json_object_get(rejected, "reason")),
                                       part) != NULL;
    return false;
}

/* 16 ranks: 8 heads have no 16 parts, 8 units no 16 stages. */
static void case_reasons(void **state)
{
    (void)state;
    if (plan(TINY "--ranks 16 --device h100-80 --batch-size 16 --top 1 --json %s/plan.json",
             folder) != 0)
        fail_msg("%s", spawn.err);
    json_t *root = results();
    assert_true(rejects(root, "tensor 16", "8 key and value heads"));
    assert_true(rejects(root, "stage 16", "8 units"));
    /* A schedule is refused where no number of stages takes it, and in few lines. */
    assert_true(rejects(root, "gpipe x 4 chunks", "one chunk"));
    assert_false(rejects(root, "gpipe x 1 chunk", ""));
    assert_false(rejects(root, "interleaved x 2 chunks", ""));
    assert_non_null(
        strstr(spawn.out, "\n  gpipe x 2 chunks; gpipe x 4 chunks; gpipe x 8 chunks: "));
    json_decref(root);
    /* Nor a product whose layouts are refused with sequence parallel alone. */
    if (plan("--model cnn --data synthetic --synthetic-rows 64 --ranks 4 --device cpu "
             "--batch-size 4 --top 1 --json %s/plan.json",
             folder) != 0)
        fail_msg("%s", spawn.err);
    root = results();
    assert_true(rejects(root, "ddp+tp, data 2, sequence parallel", "no sequences"));
    assert_false(rejects(root, "ddp+tp, data 2", ""));
    json_decref(root);
    assert_int_equal(plan(TINY "--ranks 2 --device h100-80 --batch-size 4 --memory 100KiB"), 2);
    assert_non_null(strstr(spawn.out, "and there are 100.0 KiB"));
    assert_non_null(strstr(spawn.err, "no layout is legal and fits the memory"));
    const char *least = strstr(spawn.err, "The smallest needs ");
    assert_non_null(least);
    char why[64], bytes[16] = "", kind[8] = "";
    assert_int_equal(sscanf(least, "The smallest needs %15s %7s", bytes, kind), 2);
    snprintf(why, sizeof(why), "needs at least %s %s of memory", bytes, kind);
    assert_non_null(strstr(spawn.out, why));
    /* Ranks on this host share what it has, as those of train do. */
    assert_int_equal(plan(TINY "--ranks 4096 --device cpu --batch-size 4096 --gpt.width 16384 "
                               "--gpt.layers 64 --top 1"),
                     2);
    assert_non_null(strstr(spawn.err, "The smallest needs "));
    assert_int_equal(plan(TINY "--ranks 128 --device h100-80 --batch-size 1"), 2);
    assert_non_null(strstr(spawn.err, "no layout is legal: the reasons above"));
}

/* 2 ranks at 3 an hour, as long as the printed step says. */
static void case_price(void **state)
{
    (void)state;
    double days = 0, cost = 0;
    if (plan(TINY "--ranks 2 --device h100-80 --batch-size 4 --tokens 6.4e9 --price 3 --top 1 "
                  "--json %s/plan.json",
             folder) != 0)
        fail_msg("%s", spawn.err);
    const char *at = strstr(spawn.out, "6.4e+09 tokens take ");
    if (at == NULL || sscanf(at, "6.4e+09 tokens take %lf days and cost %lf:", &days, &cost) != 2)
        fail_msg("%s", spawn.out);
    json_t *root = results();
    const json_t *layout = json_array_get(json_object_get(root, "layouts"), 0);
    const double s = json_number_value(json_object_get(layout, "step_s")) * 1e8; /* of 64 tokens */
    json_decref(root);
    assert_true(fabs(days - s / 86400) <= 1e-3 * days); /* four digits are printed */
    assert_true(fabs(cost - s / 3600 * 2 * 3) <= 1e-3 * cost);
}

static void refused(const char *words, const char *part)
{
    if (plan("%s", words) == 0)
        fail_msg("plan %s was accepted", words);
    if (strstr(spawn.err, part) == NULL)
        fail_msg("plan %s: '%s' was expected in: %s", words, part, spawn.err);
}

static void case_hostile(void **state)
{
    (void)state;
    char path[64], words[256];
    refused(TINY "--ranks 2 --device h99", "--device h99: known are");
    refused(TINY "--ranks 2 --device ../none.yaml", "none.yaml");
    refused(TINY "--ranks -3", "ranks");
    refused(TINY "--ranks 1000000", "ranks");
    refused(TINY "--ranks 2 --memory much", "memory");
    refused(TINY "--ranks 2 --precisions f32,,bf16", "precisions");
    refused(TINY "--ranks 2 --precisions f99", "f99");
    refused(TINY "--ranks 2 --json /nowhere/plan.json", "/nowhere/plan.json");
    refused(TINY "--ranks 2 --out /nowhere/plan.yaml", "/nowhere/plan.yaml");
    refused(TINY "--ranks 2 --trace /nowhere/step.json", "/nowhere/step.json");
    refused(TINY "--ranks 2 --choose 0", "choose");
    refused(TINY "--ranks 2 --batch-per-rank 4", "give --batch-size");
    refused(TINY "--ranks 2 --precisions f32,bf16,f32", "'f32' is there twice");
    refused(TINY "--ranks 2 --price 3", "Give --tokens");
    refused(TINY "--ranks 2 --fsdp.bogus 3", "unknown option 'fsdp.bogus'");
    refused(TINY "--ranks 2 --strategy fsdp", "--strategy fsdp: a plan chooses it");
    refused(TINY "--ranks 2 --mesh=tensor=2", "--mesh tensor=2");
    refused(TINY "--ranks 2 --tensor.sequence-parallel on", "--tensor.sequence-parallel");
    refused(TINY "--cluster /nowhere/cluster.yaml", "/nowhere/cluster.yaml");
    refused(TINY "--ranks 2 --accuracy runs/a", "no configuration: tessera plan --accuracy RUN");
    refused(TINY "--ranks 2 --accuracy", "no configuration: tessera plan --accuracy RUN");
    refused("/nowhere/config.yaml --ranks 2", "/nowhere/config.yaml");
    static const char *const text[] = {"", "tessera-topology: 1\nmachine: node:2 gpu:99999999\n",
                                       "tessera-topology: 1\nmachine: [\n", "\xff\xfe\x01", "<xml"};
    snprintf(path, sizeof(path), "%s/cluster", folder);
    for (size_t i = 0; i < sizeof(text) / sizeof(*text); i++) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(text[i], file);
        assert_int_equal(fclose(file), 0);
        snprintf(words, sizeof(words), TINY "--cluster %s", path);
        refused(words, path);
    }
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void has(const char *part, bool wanted)
{
    if ((strstr(spawn.out, part) != NULL) != wanted)
        fail_msg("'%s' was %sexpected in: %s", part, wanted ? "" : "not ", spawn.out);
}

/* What a file does not say is said, and so is the device that is planned for. */
static void case_guessed(void **state)
{
    (void)state;
    char path[64], words[512], device[160];
    snprintf(path, sizeof(path), "%s/machine.txt", folder);
    snprintf(words, sizeof(words), TINY "--cluster %s --batch-size 8 --top 1", path);
    snprintf(device, sizeof(device),
             "\nguessed: device h100-80, as %s names none that is built in (--device sets it)\n",
             path);
    write_text(path, "tessera-topology: 1\nmachine: node:2 rank:2 edge:1.25\n");
    assert_int_equal(plan("%s", words), 0);
    has(device, true);
    assert_int_equal(plan("%s --device a100-80", words), 0);
    has("guessed: device", false);
    write_text(path, "\tGPU0\tGPU1\tCPU Affinity\n"
                     "GPU0\t X \tNV4\t0-31\nGPU1\tNV4\t X \t0-31\n");
    assert_int_equal(plan("%s", words), 0);
    has(device, true);
    has("\nguessed: GPUs of sm 80 (--sm sets it); PCIe of", true);
    has("by options of tessera topo --file", true);
    assert_null(strstr(spawn.err, "compute capability")); /* it is guessed, too */
    write_text(path,
               "tessera-topology: 1\nmachine: node:2 gpu:2 nic:1 nvlink:mesh:4 sm:90 edge:25\n");
    assert_int_equal(plan("%s", words), 0);
    has("guessed: device", false);
}

/* A machine in a file: as many ranks as it has devices, and no more. */
static void case_cluster(void **state)
{
    (void)state;
    char path[64], words[512];
    snprintf(path, sizeof(path), "%s/machine.yaml", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("tessera-topology: 1\nmachine: node:2 gpu:2 nic:1 nvlink:mesh:4 sm:90 edge:25\n", file);
    assert_int_equal(fclose(file), 0);
    if (plan(TINY "--cluster %s --batch-size 8 --top 1", path) != 0)
        fail_msg("%s", spawn.err);
    assert_non_null(strstr(spawn.out, "on 4 ranks: machine.yaml: 2 hosts of 2"));
    assert_non_null(strstr(spawn.out, "GB/s of network a host"));
    if (plan(TINY "--cluster %s/configs/clusters/dgx-1v.yaml --batch-size 8 --top 1",
             PLANNER_SOURCE) != 0)
        fail_msg("%s", spawn.err);
    assert_non_null(strstr(spawn.out, "1 host of 8"));
    assert_null(strstr(spawn.out, "of network")); /* there is none */
    assert_non_null(strstr(spawn.err, "capability 7.0, and h100-80 has 9.0"));
    assert_non_null(strstr(spawn.err, "Devices of 7.0 for --device: none is built in"));
    snprintf(words, sizeof(words), TINY "--cluster %s --batch-size 8 --top 1 --device", path);
    if (plan("%s a100-80", words) != 0)
        fail_msg("%s", spawn.err);
    assert_non_null(strstr(spawn.err, "Devices of 9.0 for --device: h100-80 or h100-96 or h200"));
    if (plan("%s h200-141", words) != 0)
        fail_msg("%s", spawn.err);
    assert_null(strstr(spawn.err, "capability"));
    snprintf(words, sizeof(words), TINY "--cluster %s --ranks 5", path);
    refused(words, "has 4 devices");
    file = fopen(path, "w"); /* hosts without neighbours */
    assert_non_null(file);
    fputs("tessera-topology: 1\nmachine: node:4 gpu:1 nic:1 sm:90 edge:25\n", file);
    assert_int_equal(fclose(file), 0);
    if (plan(TINY "--cluster %s --batch-size 8 --top 1", path) != 0)
        fail_msg("%s", spawn.err);
    assert_non_null(strstr(spawn.out, "4 hosts of 1, 25 GB/s of network a host"));
}

/* The first layout with stages: its number from 1, and its step. */
static int first_with_stages(json_int_t *stages_out, double *step_us_out)
{
    size_t i;
    json_t *layout, *root = results();
    int number = 0;
    json_array_foreach(json_object_get(root, "layouts"), i, layout)
    {
        *stages_out = json_integer_value(json_object_get(json_object_get(layout, "mesh"), "stage"));
        *step_us_out = 1e6 * json_number_value(json_object_get(layout, "step_s"));
        if (*stages_out > 1 && number == 0) {
            number = (int)i + 1;
            break;
        }
    }
    json_decref(root);
    assert_true(number > 0);
    return number;
}

/* A line for each stage, of which the longest lasts as long as the step was predicted to, or longer
 * by what stages begin later; with the memory of each. A report of the plan and of these has five
 * pictures. */
static void case_pictures(void **state)
{
    (void)state;
    char words[512], path[64];
    double longest_us = 0, step_us = 0;
    size_t i;
    json_int_t stages = 0, lines = 0, arenas = 0;
    json_t *event;
    if (plan(TINY "--ranks 4 --device a100-80 --batch-size 8 --json %s/plan.json", folder) != 0 ||
        plan(TINY "--ranks 4 --device a100-80 --batch-size 8 --choose %d --trace %s/step.json",
             first_with_stages(&stages, &step_us), folder) != 0)
        fail_msg("%s", spawn.err);
    snprintf(path, sizeof(path), "%s/step.json", folder);
    json_t *trace = json_load_file(path, 0, NULL);
    assert_non_null(trace);
    json_array_foreach(json_object_get(trace, "traceEvents"), i, event)
    {
        const char *kind = json_string_value(json_object_get(event, "cat"));
        const char *name = json_string_value(json_object_get(event, "name"));
        arenas += name != NULL && strcmp(name, "memory of the arena") == 0;
        if (kind == NULL || strcmp(kind, "step") != 0)
            continue;
        lines++;
        longest_us = fmax(longest_us, json_number_value(json_object_get(event, "dur")));
    }
    json_decref(trace);
    assert_int_equal(lines, stages);
    assert_int_equal(arenas, stages);
    assert_true(longest_us >= 0.999 * step_us && longest_us < 2 * step_us);
    snprintf(words, sizeof(words), "report %s/plan.json %s/step.json --out %s/plan.html", folder,
             folder, folder);
    assert_int_equal(spawn_words(&spawn, words), 0);
    assert_non_null(strstr(spawn.out, " 5 pictures"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_counted),       cmocka_unit_test(case_schema),
        cmocka_unit_test(case_order),         cmocka_unit_test(case_accepted_host),
        cmocka_unit_test(case_accepted_gpus), cmocka_unit_test(case_reasons),
        cmocka_unit_test(case_price),         cmocka_unit_test(case_hostile),
        cmocka_unit_test(case_guessed),       cmocka_unit_test(case_cluster),
        cmocka_unit_test(case_pictures),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
