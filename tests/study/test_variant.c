/* Variants, good and hostile, without running any, and the grid that they can share. */
#include "study/variant.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- variants -------------------------------------------------------------------------------- */

static void case_variants(void **state)
{
    static const char text[] = "base:;\n  DP 2 [all rows through rank 0; one process]: strategy=dp "
                               "--ranks=2\n\nwide: mlp.hidden=8,8 init=/a=b ranks=4 ranks=8\r\n;";
    struct tess__variants variants;

    (void)state;
    assert_int_equal(tess__variants_parse(text, &variants), TESS_OK);
    assert_int_equal(variants.count, 3);
    assert_string_equal(variants.item[0].name, "base");
    assert_string_equal(variants.item[0].goal, "");
    assert_int_equal(variants.item[0].word_count, 0);
    assert_string_equal(variants.item[1].name, "DP 2");
    assert_string_equal(variants.item[1].goal, "all rows through rank 0; one process");
    assert_int_equal(variants.item[1].word_count, 2);
    assert_string_equal(variants.item[1].word[0], "--strategy=dp");
    assert_string_equal(variants.item[1].word[1], "--ranks=2");
    assert_string_equal(tess__variant_value(&variants.item[1], "strategy"), "dp");
    assert_null(tess__variant_value(&variants.item[1], "rank"));
    assert_string_equal(variants.item[2].word[0], "--mlp.hidden=8,8");
    assert_string_equal(tess__variant_value(&variants.item[2], "init"), "/a=b");
    assert_string_equal(tess__variant_value(&variants.item[2], "ranks"), "8"); /* the last one */
    tess__variants_free(&variants);
}

static void case_bad_variants(void **state)
{
    static const struct {
        const char *text, *phrase;
    } table[] = {
        {"", "none is given"},
        {" ;\n;", "none is given"},
        {"a", "variant 1, character 2: ':' was expected after the name 'a'"},
        {": ranks=2", "variant 1, character 1: a name was expected"},
        {"a:; [goal]: ranks=2", "variant 2, character 5: a name was expected"},
        {"ranks=2", "variant 1, character 6: ':' was expected after the name 'ranks'"},
        {"a: ranks", "variant 1, character 4: 'ranks' is not of the form option=value"},
        {"a: =2", "character 4: '=2' is not of the form"},
        {"a: --", "character 4: '--' is not of the form"},
        {"a: ranks = 2", "character 4: 'ranks' is not of the form"},
        {"a [goal: ranks=2", "character 3: the goal has no closing ']'"},
        {"a [goal\n]: ranks=2", "character 3: the goal has no closing ']'"},
        {"a [goal] b: ranks=2", "character 10: ':' was expected"},
        {"a: ranks=2; b:; a:", "variant 3, character 17: the name 'a' is given twice"},
        {"a: steps=5", "character 4: 'steps' is the same for all variants"},
        {"a: ranks=2 run=x", "character 12: 'run' does not apply"},
        {"a: data.length=64", "character 4: 'data.length' is the same for all variants"},
        {"sixteen letters.: x=1", "is longer than 15 characters"},
        {"a: a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 "
         "a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1 a=1",
         "more than 32 options"},
        {"1:;2:;3:;4:;5:;6:;7:;8:;9:;10:;11:;12:;13:;14:;15:;16:;17:;18:;19:;20:;21:;22:;23:;24:;"
         "25:;26:;27:;28:;29:;30:;31:;32:;33:",
         "more than 32 variants"},
    };
    static char large[TESS__VARIANT_TEXT_MAX + 2];
    struct tess__variants variants;

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(tess__variants_parse(table[i].text, &variants), TESS_ERR_USAGE);
        if (strstr(tess_log_last_error(), table[i].phrase) == NULL)
            fail_msg("'%s' is not in: %s", table[i].phrase, tess_log_last_error());
        tess__variants_free(&variants);
    }
    memset(large, 'a', sizeof(large) - 1);
    assert_int_equal(tess__variants_parse(large, &variants), TESS_ERR_USAGE);
    tess__variants_free(&variants);
}

/* Words as short as they can be are those that grow most when they are kept. */
static void case_storage(void **state)
{
    static char text[TESS__VARIANT_TEXT_MAX];
    struct tess__variants variants;
    size_t used = 0;

    (void)state;
    for (int name = 'a'; name <= 'z'; name++) {
        used += (size_t)sprintf(text + used, "%c[g]:", name);
        for (int w = 0; w < TESS__VARIANT_WORD_MAX; w++)
            used += (size_t)sprintf(text + used, "%c= ", name);
        used += (size_t)sprintf(text + used, ";");
    }
    assert_int_equal(tess__variants_parse(text, &variants), TESS_OK);
    assert_int_equal(variants.count, 26);
    for (int i = 0; i < 26; i++) {
        const char word[] = {'-', '-', (char)('a' + i), '=', '\0'};
        assert_string_equal(variants.item[i].goal, "g");
        assert_int_equal(variants.item[i].word_count, TESS__VARIANT_WORD_MAX);
        for (int w = 0; w < TESS__VARIANT_WORD_MAX; w++)
            assert_string_equal(variants.item[i].word[w], word);
    }
    tess__variants_free(&variants);
}

static void case_grid(void **state)
{
    static const struct {
        struct tess__variant_shape shape[3];
        int64_t grid;
    } table[] = {
        {{{1, 1, 128}, {2, 1, 128}, {4, 1, 128}}, 4},
        {{{2, 1, 128}, {2, 4, 128}, {2, 2, 128}}, 8},
        {{{1, 1, 60}, {3, 1, 60}, {3, 2, 60}}, 6},  /* one rank takes any grid */
        {{{1, 1, 60}, {2, 1, 60}, {3, 1, 60}}, 0},  /* 3 of 6 leaves are no subtree */
        {{{1, 1, 128}, {2, 1, 128}, {4, 1, 6}}, 0}, /* 6 images do not make 4 leaves */
        {{{1, 1, 7}, {1, 1, 5}, {1, 1, 3}}, 1},
        {{{64, 65536, 1 << 24}, {1, 1, 128}, {1, 1, 128}}, 0}, /* beyond the largest grid */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        assert_int_equal(tess__variants_grid(table[i].shape, 3), table[i].grid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_variants),
        cmocka_unit_test(case_bad_variants),
        cmocka_unit_test(case_storage),
        cmocka_unit_test(case_grid),
    };

    return cmocka_run_group_tests_name("variant", tests, NULL, NULL);
}
