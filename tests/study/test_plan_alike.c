/*
 * What folding ranks rests on: every rank of a stage keeps what its first or second rank along the
 * data and the tensor axis keeps (tess__run_alike), for every strategy and several meshes. And more
 * ranks than can run: planned, not started.
 */
#include "core/engine.h"
#include "job/run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define WORDS_MAX 32

static struct tess_config *configure(const char *text)
{
    static char copy[1024];
    char *word[WORDS_MAX], *rest = copy;
    int count = 0;
    struct tess_config *config = NULL;
    snprintf(copy, sizeof(copy),
             "--model gpt --gpt.layers 6 --gpt.heads 8 --gpt.width 40 --gpt.vocab 300 --data "
             "synthetic --synthetic-rows 8 --data.length 24 --kernel ref %s",
             text);
    for (char *one; (one = strsep(&rest, " ")) != NULL && count < WORDS_MAX;)
        word[count++] = one;
    assert_int_equal(tess_config_open(count, word, NULL, 0, &config), TESS_OK);
    return config;
}

static void case_alike(void **state)
{
    (void)state;
    static const char *const words[] = {
        "--strategy dp --ranks 5 --batch-size 10",
        "--strategy ddp --ranks 5 --batch-size 10",
        "--strategy zero1 --ranks 6 --batch-size 12",
        "--strategy zero2 --ranks 6 --batch-size 12",
        "--strategy fsdp --ranks 7 --batch-size 14",
        "--strategy hsdp --ranks 8 --batch-size 16",
        "--strategy fsdp+tp --mesh data=3,tensor=4 --batch-size 12",
        "--strategy zero2+tp+pp --mesh data=4,tensor=4,stage=3 --accumulate 4 --batch-size 32",
        "--strategy fsdp+tp+pp --mesh data=4,tensor=2,stage=2 --batch-size 16 --precision bf16",
        "--strategy tp --mesh tensor=4 --batch-size 16 --tensor.sequence-parallel on",
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
        struct tess_config *config = configure(words[i]);
        struct tess_dataset *dataset = NULL;
        struct tess__run run;
        int32_t folded = 0;
        assert_int_equal(tess__run_open_data(config, &dataset), TESS_OK);
        assert_int_equal(tess__run_open(&run, config, dataset), TESS_OK);
        for (int32_t r = 0; r < run.rank_count; r++) {
            const int32_t alike = tess__run_alike(&config->mesh, r);
            folded += alike != r;
            if (memcmp(&run.predicted[r], &run.predicted[alike], sizeof(*run.predicted)) != 0)
                fail_msg("%s: rank %d keeps something else than rank %d", words[i], r, alike);
        }
        assert_true(folded > 0);
        tess__run_close(&run);
        tess_dataset_close(dataset);
        tess_config_close(config);
    }
}

/* 128 ranks: planned once for those that are alike. */
static void case_many(void **state)
{
    (void)state;
    struct tess_config *config =
        configure("--strategy fsdp+tp+pp --mesh data=16,tensor=2,stage=4 --batch-size 128");
    struct tess_dataset *dataset = NULL;
    struct tess__run run;
    assert_int_equal(tess__run_open_data(config, &dataset), TESS_OK);
    assert_int_equal(tess__run_open_planned(&run, config, dataset), TESS_OK);
    for (int32_t r = 0; r < run.rank_count; r += 7) {
        struct tess_engine *engine = NULL;
        assert_int_equal(tess_engine_plan(config, dataset, r, &engine), TESS_OK);
        const struct tess_job_memory memory = tess__run_memory(tess_engine_memory(engine));
        assert_memory_equal(&memory, tess__run_predicted(&run, r), sizeof(memory));
        tess_engine_close(engine);
    }
    tess__run_close(&run);
    tess_dataset_close(dataset);
    tess_config_close(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(case_alike), cmocka_unit_test(case_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
