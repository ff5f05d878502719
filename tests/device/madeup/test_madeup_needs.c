/*
 * A run on CUDA devices is planned to the same bytes where libtessera_cuda.so is there and where it
 * is not: every kind of operation, by the models that have them, in all precisions.
 */
#include "harness/spawn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct spawn spawn;

/* The memory of rank 0, block by block, and that of all ranks by kind. */
static void explain(const char *words, const char *modules, char *text, size_t bytes)
{
    assert_int_equal(setenv("TESSERA_MODULE_PATH", modules, 1), 0);
    if (spawn_words(&spawn, words) != 0)
        fail_msg("%s: %s", words, spawn.err);
    const char *memory = strstr(spawn.out, "memory of rank 0");
    if (memory == NULL)
        fail_msg("%s: no memory in %s", words, spawn.out);
    snprintf(text, bytes, "%s", memory);
}

static void case_same(void **state)
{
    (void)state;
    static const char *const words[] = {
        "--model mlp --precision f32",
        "--model cnn --precision f32",
        "--model cnn --precision bf16 --f32-ops conv2d,linear",
        "--model wrn --precision f16 --grid 4",
        "--model gpt --precision bf16 --grid 4 --gpt.style llama --gpt.kv-heads 2",
        "--model gpt --precision bf16 --gpt.width 128 --fp8 now --recompute full",
        "--model gpt --precision f32 --strategy fsdp+tp+pp --ranks 8 --accumulate 2",
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        static char with[SPAWN_TEXT_BYTES], without[SPAWN_TEXT_BYTES];
        char all[512];
        snprintf(all, sizeof(all),
                 "train --device cuda --data synthetic --synthetic-rows 64 --batch-size 32 "
                 "--explain %s",
                 words[i]);
        explain(all, MADEUP_FOLDER, with, sizeof(with));
        explain(all, "/nowhere", without, sizeof(without));
        assert_string_equal(with, without);
    }
}

/* It does not run. */
static void case_refused(void **state)
{
    (void)state;
    assert_int_equal(setenv("TESSERA_MODULE_PATH", "/nowhere", 1), 0);
    assert_int_not_equal(spawn_words(&spawn, "train --device cuda --data synthetic --steps 1"), 0);
    assert_non_null(strstr(spawn.err, "libtessera_cuda.so is not installed"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(case_same), cmocka_unit_test(case_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
