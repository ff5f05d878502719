/* The words for what runs count, and rates in them. */
#include "data/data.h"
#include "text/words.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static void case_images(void **state)
{
    const struct tess_dataset images = {.row = tess_shape3(28, 28, 1)};
    const struct tess__words words = tess__words_of(&images);
    char text[TESS__TEXT_BYTES];

    (void)state;
    assert_false(words.tokens);
    assert_string_equal(words.rows, "images");
    assert_string_equal(words.rate, "images/s");
    assert_string_equal(tess__words_rate(&words, 1500, text), "1.5 k");
    assert_string_equal(tess__words_quality(&words, 0.3, 0.912, text), "accuracy 91.20 %");
    /* What a file does not contain, or contains as 0. */
    assert_false(tess__words_for(NAN).tokens);
    assert_false(tess__words_for(0).tokens);
}

static void case_tokens(void **state)
{
    const struct tess_dataset text_set = {.tokens = true, .row = tess_shape1(256)};
    const struct tess__words words = tess__words_of(&text_set);
    char text[TESS__TEXT_BYTES];

    (void)state;
    assert_true(words.tokens);
    assert_string_equal(words.row, "sequence");
    assert_string_equal(words.rate, "tokens/s");
    assert_string_equal(words.counted, "tokens");
    assert_string_equal(tess__words_rate(&words, 10, text), "2.6 k"); /* 10 sequences, 2560 */
    assert_string_equal(tess__words_quality(&words, log(4), 0.5, text), "perplexity 4.00");
    assert_string_equal(tess__words_quality(&words, log(256), 0, text), "perplexity 256.0");
}

static void case_mixed(void **state)
{
    const struct tess__words words = tess__words_mixed();
    char text[TESS__TEXT_BYTES];

    (void)state;
    assert_string_equal(words.rate, "samples/s");
    assert_string_equal(tess__words_rate(&words, 10, text), "10");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_images),
        cmocka_unit_test(case_tokens),
        cmocka_unit_test(case_mixed),
    };

    return cmocka_run_group_tests_name("words", tests, NULL, NULL);
}
