/*
 * The ready configurations of model gpt, in the folder argv[1]: each is whole, and the model that
 * it describes has as many parameters as was published, which its first lines state too.
 */
#include "config/config.h"
#include "state/declare.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *presets_folder;

/*
 * GPT-2: the sizes of Hugging Face's gpt2, gpt2-medium, gpt2-large and gpt2-xl, biases and
 * positions included, the tied embedding counted once. Llama 3: Meta-Llama-3-8B.
 */
static const struct {
    const char *file, *size;
    int64_t count;
} presets[] = {
    {"gpt2-124m.yaml", "124,439,808", 124439808},
    {"gpt2-350m.yaml", "354,823,168", 354823168},
    {"gpt2-774m.yaml", "774,030,080", 774030080},
    {"gpt2-1558m.yaml", "1,557,611,200", 1557611200},
    {"llama-160m.yaml", "162,417,408", 162417408},
    {"llama-8b.yaml", "8,030,261,248", 8030261248},
    {"llama-70b.yaml", "70,553,706,496", 70553706496},
    {"llama-405b.yaml", "405,853,388,800", 405853388800},
    /* C = 128: 256 and 128 vectors, four blocks of 12 C^2 + 13 C, the last norm. */
    {"gpt-21m.yaml", "21,490,944", (256 + 256) * 384 + 12 * (12 * 384 * 384 + 13 * 384) + 2 * 384},
    {"tiny-gpt.yaml", "842,496", (256 + 128) * 128 + 4 * (12 * 128 * 128 + 13 * 128) + 2 * 128},
};

#define PRESET_COUNT (sizeof(presets) / sizeof(presets[0]))

static void preset_check(size_t i)
{
    char path[512], text[256] = "";
    char *argument[] = {path};
    struct tess_config *config;
    struct tess_declare declare = {.rows = 1, .leaf_rows = 1, .dtype = TESS_BF16};

    snprintf(path, sizeof(path), "%s/%s", presets_folder, presets[i].file);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof(text), file));
    fclose(file);
    if (strstr(text, presets[i].size) == NULL)
        fail_msg("%s: its first line does not contain %s", path, presets[i].size);

    assert_int_equal(tess_config_open(1, argument, NULL, 0, &config), TESS_OK);
    const struct tess_model_input input = {.row = tess_shape1(config->loader.length),
                                           .class_count = 256,
                                           .dtype = TESS_BF16,
                                           .tokens = true,
                                           .rows = 1,
                                           .leaf_rows = 1,
                                           .axis = {.parts = 1, .count = 1, .rank_count = 1}};
    void *state = calloc(1, config->model->state_size);
    assert_non_null(state);
    assert_string_equal(config->model->name, "gpt");
    assert_int_equal(
        tess_declare_model(&declare, config->model, state, config->model_options, &input), TESS_OK);
    assert_int_equal(tess_declare_size(&declare), presets[i].count);
    tess_declare_fini(&declare);
    free(state);
    tess_config_close(config);
}

static void case_parameter_counts(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < PRESET_COUNT; i++)
        preset_check(i);
}

static void case_every_preset_is_known(void **unused)
{
    DIR *folder = opendir(presets_folder);
    size_t found = 0;

    (void)unused;
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        bool known = false;

        if (strstr(entry->d_name, ".yaml") == NULL)
            continue;
        for (size_t i = 0; i < PRESET_COUNT; i++)
            known = known || strcmp(entry->d_name, presets[i].file) == 0;
        if (!known)
            fail_msg("%s/%s has no size to be held against", presets_folder, entry->d_name);
        found++;
    }
    closedir(folder);
    assert_int_equal(found, PRESET_COUNT);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_parameter_counts),
        cmocka_unit_test(case_every_preset_is_known),
    };

    if (argc != 2)
        return 2;
    presets_folder = argv[1];
    return cmocka_run_group_tests(cases, NULL, NULL);
}
