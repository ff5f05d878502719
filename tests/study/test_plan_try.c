/*
 * tessera plan --try, through the program: with figures by which a product of few rows costs
 * nothing and one of many a lot, the plan predicts that many micro-batches are fastest; trained,
 * one is, and the list and the file say so. What this machine cannot run, and what cannot be
 * trained, is refused; an interruption leaves nothing behind.
 */
#include "harness/spawn.h"

#include <jansson.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define TINY                                                                                       \
    "plan --model mlp --mlp.hidden 256,256 --data synthetic --synthetic-rows 64 --batch-size 16 "

static const char figures[] = "name: made-up\nkernel: cpu\nsource: made up\nmeasured: on\n"
                              "bytes-per-s: 1e15\ncores: 2\nunits: 1\ntile-m: 1\ntile-n: 1\n"
                              "flops-per-s-f32: 1e12\nefficiency-f32: 1\n"
                              "attention-forward: 1\nattention-backward: 1\n"
                              "product-forward-32-flops-per-s: 1e12\n"
                              "product-forward-32-points: 1 256 256 0.001, 64 256 256 1000\n"
                              "product-data-32-flops-per-s: 1e12\n"
                              "product-data-32-points: 1 256 256 0.001, 64 256 256 1000\n";

static char folder[] = "/tmp/tessera_try_XXXXXX";
static struct spawn spawn;

static int folder_make(void **state)
{
    char path[64];
    (void)state;
    if (mkdtemp(folder) == NULL || setenv("XDG_CACHE_HOME", folder, 1) != 0)
        return -1;
    snprintf(path, sizeof(path), "%s/figures.yaml", folder);
    FILE *file = fopen(path, "w");
    return file != NULL && fputs(figures, file) >= 0 && fclose(file) == 0 ? 0 : -1;
}

static int folder_remove(void **state)
{
    (void)state;
    return spawn_remove(folder);
}

static json_int_t micro_batches(const json_t *layout)
{
    return json_integer_value(json_object_get(json_object_get(layout, "options"), "accumulate"));
}

/* Predicted first: many micro-batches. Measured first: few of them; and the file has that one. */
static void case_order(void **state)
{
    (void)state;
    char path[64];
    size_t i, tried = 0;
    double before = 0, least = 1e9;
    json_int_t predicted = 0, rounds = 0;
    json_t *layout;
    if (spawn_format(&spawn,
                     TINY "--ranks 1 --device %s/figures.yaml --top 20 --try 12 --try-s 0.01 "
                          "--json %s/plan.json --out %s/best.yaml",
                     folder, folder, folder) != 0)
        fail_msg("%s", spawn.err);
    snprintf(path, sizeof(path), "%s/plan.json", folder);
    json_t *root = json_load_file(path, 0, NULL), *layouts = json_object_get(root, "layouts");
    json_array_foreach(layouts, i, layout)
    {
        const double step_s = json_number_value(json_object_get(layout, "step_s"));
        const json_t *measured = json_object_get(layout, "measured_s");
        if (step_s < least)
            predicted = micro_batches(layout);
        least = step_s < least ? step_s : least;
        if (measured == NULL)
            continue;
        assert_int_equal(tried++, i); /* what was tried comes first */
        assert_true(json_number_value(measured) >= before);
        rounds = json_integer_value(json_object_get(layout, "measured_rounds"));
        assert_true(rounds >= 2);
        before = json_number_value(measured);
    }
    assert_int_equal(rounds, 2); /* the slowest one is far from the others */
    assert_true(tried >= 8);
    assert_true(predicted >= 8);
    const json_int_t chosen = micro_batches(json_array_get(layouts, 0));
    assert_true(chosen <= 4);
    json_decref(root);

    char line[40];
    snprintf(path, sizeof(path), "%s/best.yaml", folder);
    snprintf(line, sizeof(line), "\naccumulate: %d\n", (int)chosen);
    char *text = spawn_file(path, NULL);
    assert_non_null(strstr(text, line));
    assert_non_null(strstr(text, "# Measured here: "));
    free(text);
    assert_non_null(strstr(spawn.out, " of them trained here in "));
    assert_non_null(strstr(spawn.out, "measured     predicted"));
}

static void refuses(const char *words, const char *why)
{
    if (spawn_format(&spawn, TINY "%s --out %s/none.yaml", words, folder) == 0)
        fail_msg("%s: not refused", words);
    if (strstr(spawn.err, why) == NULL)
        fail_msg("%s: not because of \"%s\": %s", words, why, spawn.err);
    char path[64];
    snprintf(path, sizeof(path), "%s/none.yaml", folder);
    assert_int_not_equal(access(path, F_OK), 0);
}

static void case_refused(void **state)
{
    (void)state;
    char words[400];
    refuses("--ranks 16 --device h100-80 --try 2",
            "--try trains here, and this plan is for 16 h100-80: ");
    snprintf(words, sizeof(words),
             "--cluster %s/configs/clusters/dgx-1v.yaml --device a100-40 --try 2", PLANNER_SOURCE);
    refuses(words, "--try trains on this host, and --cluster ");
    /* 1.3 10^11 parameters, of which a step needs four arrays: 2 TiB. */
    char hidden[256] = "65536";
    for (int i = 1; i < 32; i++)
        strcat(hidden, ",65536");
    snprintf(words, sizeof(words), "--ranks 1 --device cpu --mlp.hidden %s --try 2", hidden);
    refuses(words, "no layout is legal and fits the memory");
    strcat(words, " --memory 9TiB");
    refuses(words, "none of the first layouts could be trained");
    assert_non_null(strstr(spawn.out, "refused\n  single, 1"));
}

static void case_interrupted(void **state)
{
    (void)state;
    char device[64], out[64];
    snprintf(device, sizeof(device), "%s/figures.yaml", folder);
    snprintf(out, sizeof(out), "%s/none.yaml", folder);
    char *argv[] = {"tessera",
                    "plan",
                    "--model",
                    "mlp",
                    "--mlp.hidden",
                    "256,256",
                    "--data",
                    "synthetic",
                    "--batch-size",
                    "64",
                    "--synthetic-rows",
                    "64",
                    "--ranks",
                    "2",
                    "--device",
                    device,
                    "--try",
                    "40",
                    "--try-s",
                    "500",
                    "--out",
                    out,
                    NULL};
    pid_t child;
    spawn_start(&spawn, argv, NULL);
    for (int i = 0; i < 3000 && spawn_children(&spawn, &child, 1) == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    assert_int_equal(kill(spawn.pid, SIGINT), 0);
    assert_int_equal(spawn_end(&spawn, 60), 130);
    assert_true(spawn_gone(&spawn, 10));
    assert_int_not_equal(access(out, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_order),
        cmocka_unit_test(case_refused),
        cmocka_unit_test(case_interrupted),
    };
    return cmocka_run_group_tests_name("plan_try", tests, folder_make, folder_remove);
}
