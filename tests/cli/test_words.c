/* The words for what runs count, rates in them, and times. */
#include "data/data.h"
#include "text/text.h"
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

/* In the unit that fits: a generation of a small model takes milliseconds. */
static void case_time(void **state)
{
    static const struct {
        double seconds;
        const char *text;
    } wanted[] = {{0, "0 ms"},         {0.0000123, "0.0123 ms"}, {0.00421, "4.21 ms"},
                  {0.0994, "99.4 ms"}, {0.0999, "0.10 s"},       {0.421, "0.42 s"},
                  {58.2, "58 s"},      {184.6, "3:05"},          {3723, "1:02:03"}};
    char text[TESS__TEXT_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        assert_string_equal(tess__text_time(wanted[i].seconds, text), wanted[i].text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_images),
        cmocka_unit_test(case_tokens),
        cmocka_unit_test(case_mixed),
        cmocka_unit_test(case_time),
    };

    return cmocka_run_group_tests_name("words", tests, NULL, NULL);
}
