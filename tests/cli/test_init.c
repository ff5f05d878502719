/*
 * --init as a user sees it: a run's folder, a checkpoint's, an exported one and a single file give
 * the same first values under every strategy, and training begins anew. Runs the built program.
 */
#include "harness/spawn.h"
#include "harness/work_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define GPT                                                                                        \
    "train --model gpt --data synthetic --synthetic-rows 128 --data.length 16 --batch-size 16 "    \
    "--gpt.layers 2 --gpt.width 16 --gpt.heads 4 --grid 4 --tensor.canonical 4 "

static struct spawn spawn;

#define run(...) spawn_format(&spawn, __VA_ARGS__)

/* Hash and validation loss of what `init` names, under a layout: a step that changes nothing. */
static void look(const char *init, const char *layout, char hash[32], char loss[32])
{
    assert_int_equal(run(GPT "--steps 1 --learning-rate 0 --init %s --strategy %s", init, layout),
                     0);
    spawn_hash(&spawn, hash);
    spawn_word(&spawn, "val loss ", loss);
    assert_null(strstr(spawn.out, "continues after"));
}

static void case_sources(void **state)
{
    static const char *const source[] = {
        "run/weights.safetensors",        "run", "run/checkpoints/step-00000008",
        "run/checkpoints/step-00000008/", "out", "out/model-00001-of-00001.safetensors"};
    static const char *const layout[] = {"single --ranks 1", "fsdp --ranks 4",
                                         "ddp+tp --ranks 4", "pp --ranks 2",
                                         "zero1 --ranks 2",  "hsdp+tp --ranks 8"};
    char trained[32], hash[32], first[32], loss[32], other[32];

    (void)state;
    assert_int_equal(run(GPT "--steps 8 --save-every 4 --run run --strategy fsdp --ranks 2"), 0);
    spawn_hash(&spawn, trained);
    assert_int_equal(run("checkpoint export run --out out"), 0);
    for (size_t i = 0; i < sizeof(source) / sizeof(source[0]); i++) {
        look(source[i], layout[i], hash, loss);
        assert_string_equal(hash, trained);
        if (i == 0)
            snprintf(first, sizeof(first), "%s", loss);
        assert_string_equal(loss, first);
    }
    look("run/checkpoints/step-00000004", "ddp --ranks 2", other, loss);
    assert_string_not_equal(other, trained);
}

static void case_wrong(void **state)
{
    (void)state;
    assert_int_equal(run(GPT "--steps 1 --init nowhere"), 1);
    assert_non_null(strstr(spawn.err, "nowhere"));
    assert_int_equal(mkdir("empty", 0777), 0);
    assert_int_equal(run(GPT "--steps 1 --init empty"), 1);
    assert_non_null(strstr(spawn.err, "empty has no weights"));
    assert_int_equal(run(GPT "--steps 1 --gpt.layers 3 --init run"), 1);
    assert_non_null(strstr(spawn.err, "run has no tensor 'h.2."));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_sources),
        cmocka_unit_test(case_wrong),
    };
    return cmocka_run_group_tests_name("init", tests, work_folder_make, work_folder_remove);
}
