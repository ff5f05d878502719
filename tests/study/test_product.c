/* Products of strategies in a series: which words apply to which run. */
#include "study/product.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void case_has(void **state)
{
    (void)state;
    assert_true(tess__product_has("fsdp", "fsdp"));
    assert_true(tess__product_has("fsdp+tp+pp", "fsdp"));
    assert_true(tess__product_has("fsdp+tp+pp", "tp"));
    assert_true(tess__product_has("fsdp+tp+pp", "pp"));
    assert_true(tess__product_has("tp+sp", "sp"));
    assert_false(tess__product_has("fsdp+tp+pp", "ddp"));
    assert_false(tess__product_has("fsdp+tp", "p"));
    assert_false(tess__product_has("fsdp+tp", "t"));
    assert_false(tess__product_has("zero1", "zero"));
    assert_false(tess__product_has("", "tp"));
}

/* `words` (separated by blanks) for a run under `product`, joined again; behind '|' the strategies
 * whose options are skipped. */
static const char *words_for(const char *words, const char *product, char text[512])
{
    static const char *const list[] = {"single", "ddp", "fsdp+tp+pp", "pp"};
    static char copy[512];
    struct tess__args args = {0}, left;
    char *next = NULL;

    snprintf(copy, sizeof(copy), "%s", words);
    for (char *word = strtok_r(copy, " ", &next); word != NULL; word = strtok_r(NULL, " ", &next))
        assert_int_equal(tess__args_add(&args, word), TESS_OK);
    assert_int_equal(tess__product_words(&args, product, list, 4, &left), TESS_OK);
    text[0] = '\0';
    for (int i = 0; i < left.count; i++)
        snprintf(text + strlen(text), 512 - strlen(text), "%s%s", i > 0 ? " " : "", left.word[i]);
    for (int i = 0; i < left.skip_count; i++)
        snprintf(text + strlen(text), 512 - strlen(text), " | %s", left.skip[i]);
    return text;
}

/* Options of a strategy go to the runs that hold it; of one that no run holds, to all, so that each
 * of them refuses it. */
static void case_options(void **state)
{
    static const char words[] = "--pp.schedule gpipe --fsdp.prefetch=off --hsdp.x 1";
    char text[512];

    (void)state;
    assert_string_equal(words_for(words, "fsdp+tp+pp", text),
                        "--pp.schedule gpipe --fsdp.prefetch=off --hsdp.x 1 | single | ddp");
    assert_string_equal(
        words_for(words, "pp", text),
        "--pp.schedule gpipe --fsdp.prefetch=off --hsdp.x 1 | single | ddp | fsdp | tp");
}

/* A mesh goes to the runs that have a strategy for each of its axes. */
static void case_mesh(void **state)
{
    char text[512];

    (void)state;
    assert_string_equal(words_for("--mesh data=2,stage=2", "fsdp+tp+pp", text),
                        "--mesh data=2,stage=2 | single | ddp");
    assert_string_equal(words_for("--mesh data=2,stage=2", "pp", text),
                        "--mesh data=2,stage=2 --mesh= | single | ddp | fsdp | tp");
    assert_string_equal(words_for("--mesh data=4", "ddp", text),
                        "--mesh data=4 | single | fsdp | tp | pp");
    assert_string_equal(words_for("--mesh data=4", "single", text),
                        "--mesh data=4 --mesh= | ddp | fsdp | tp | pp");
    assert_string_equal(words_for("--mesh stage=2", "pp", text),
                        "--mesh stage=2 | single | ddp | fsdp | tp");
    assert_string_equal(words_for("--tensor.ranks 2", "fsdp+tp+pp", text),
                        "--tensor.ranks 2 | single | ddp");
    assert_string_equal(words_for("--tensor.ranks 2", "ddp", text),
                        "--tensor.ranks 2 --tensor.ranks=0 | single | fsdp | tp | pp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_has),
        cmocka_unit_test(case_options),
        cmocka_unit_test(case_mesh),
    };

    return cmocka_run_group_tests_name("product", tests, NULL, NULL);
}
