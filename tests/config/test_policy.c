/* The precision of a run: which of its options go together, and what --explain prints of it. */
#include "config/config.h"
#include "core/engine.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { WORDS_MAX = 64 };

static enum tess_status open_config(const char *options, struct tess_config **config_out)
{
    char words[768], *argv[WORDS_MAX];
    int argc = 0;
    snprintf(words, sizeof(words), "--strategy single --steps 40 --kernel ref %s", options);
    for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL;) {
        assert_true(argc < WORDS_MAX);
        if (*word != '\0')
            argv[argc++] = word;
    }
    return tess_config_open(argc, argv, NULL, 0, config_out);
}

static void case_refused(void **state)
{
    (void)state;
    static const struct {
        const char *options, *word;
    } bad[] = {
        {"--loss-scale 0", "--loss-scale 0"},
        {"--loss-scale static:nan", "--loss-scale static:nan"},
        {"--loss-scale=dynamic:-4", "--loss-scale dynamic:-4"},
        {"--loss-scale-interval 0", "loss-scale-interval"},
        {"--master-weights off", "--precision is f32"},
        {"--rounding stochastic", "--precision is f32"},
        {"--f32-ops liner", "did you mean 'linear'"},
        {"--f32-ops linear,,conv2d", "no operation is named ''"},
        {"--f32-ops conv2d,", "no operation is named ''"},
        {"--f32-ops batch_norm", "computes in f32 in every precision"},
        {"--f32-ops a_name_that_is_far_too_long_to_be_one_of_an_operation", "use linear, conv2d"},
        {"--precision bf16 --rounding up", "rounding"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct tess_config *config;
        if (open_config(bad[i].options, &config) != TESS_ERR_USAGE)
            fail_msg("'%s' was taken", bad[i].options);
        if (strstr(tess_log_last_error(), bad[i].word) == NULL)
            fail_msg("'%s': %s", bad[i].options, tess_log_last_error());
    }
    static const char *const good[] = {
        "--loss-scale dynamic:1",
        "--loss-scale static:1000",
        "--f32-ops linear,conv2d",
        "--precision bf16 --f32-ops=conv2d",
        "--precision bf16 --master-weights off --rounding stochastic",
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        struct tess_config *config;
        assert_int_equal(open_config(good[i], &config), TESS_OK);
        tess_config_close(config);
    }
}

static void explain_line(void *context, const char *text)
{
    char *all = context;
    assert_true(strlen(all) + strlen(text) + 2 < 16384);
    strcat(strcat(all, text), "\n");
}

/* Words after `row` on its line, each once, in order. */
static void check_row(const char *all, const char *row, const char *words)
{
    const char *line = strstr(all, row);
    char copy[128];
    assert_non_null(line);
    line += strlen(row);
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *rest = copy, *word; (word = strsep(&rest, " ")) != NULL;) {
        const char *at = strstr(line, word);
        if (at == NULL || at > strchr(line, '\n'))
            fail_msg("'%s' has no '%s': %s", row, word, all);
        line = at + strlen(word);
    }
}

static void case_explained(void **state)
{
    (void)state;
    static char all[16384];
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct tess_engine *planned;
    assert_int_equal(
        open_config(
            "--model cnn --cnn.channels 4,8 --cnn.batch-norm=on --batch-size 32 --precision "
            "bf16 --f32-ops conv2d --master-weights=off --rounding stochastic "
            "--reduce-dtype f16 --loss-scale dynamic:64",
            &config),
        TESS_OK);
    assert_int_equal(tess_dataset_open_synthetic(tess_shape3(6, 6, 1), 5, 192, 50, 3, &dataset),
                     TESS_OK);
    assert_int_equal(tess_engine_plan(config, dataset, 0, &planned), TESS_OK);
    tess_engine_describe(planned, explain_line, all);
    check_row(all, "\n  conv2d x 2", "bf16 f32 f32");
    check_row(all, "\n  linear x ", "bf16 bf16 f32");
    check_row(all, "\n  batch_norm x 2", "bf16 f32 statistics f32");
    check_row(all, "\n  softmax, loss", "bf16 f32 f32");
    check_row(all, "\n  parameters ", "bf16 random without masters");
    check_row(all, "\n  gradients ", "f32 between ranks f16");
    check_row(all, "\n  optimizer ", "f32");
    check_row(all, "\n  loss scale ", "64 2000");
    assert_null(strstr(all, "master "));
    tess_engine_close(planned);
    tess_dataset_close(dataset);
    tess_config_close(config);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_refused),
        cmocka_unit_test(case_explained),
    };
    return cmocka_run_group_tests_name("policy", cases, NULL, NULL);
}
