/*
 * Which token follows, and how tokens are shown: frequencies of what is drawn, what temperature,
 * top-k and top-p leave, ties, and bytes that no terminal should see.
 */
#include "cli/generate.h"

#include "tessera/log.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define VOCABULARY 6
#define DRAWS      20000

static struct tess__candidate room[VOCABULARY];

static struct tess__sampler sampler(double temperature, int64_t top_k, double top_p)
{
    return (struct tess__sampler){.temperature = temperature,
                                  .top_k = top_k,
                                  .top_p = top_p,
                                  .seed = 3,
                                  .vocabulary = VOCABULARY,
                                  .candidate = room};
}

static int32_t draw(const struct tess__sampler *with, const float *logits, int64_t position)
{
    int32_t token = -1;
    assert_int_equal(tess__sample(with, logits, position, &token), TESS_OK);
    assert_in_range(token, 0, VOCABULARY - 1);
    return token;
}

/*
 * Tokens are drawn as often as `wanted` demands. A frequency over n draws has a standard deviation
 * of sqrt(p (1 - p) / n) <= 0.0036; five of those are passed once in some million of cases, and the
 * seed is fixed.
 */
static void check_frequency(struct tess__sampler with, const float *logits, const double *wanted)
{
    int64_t count[VOCABULARY] = {0};
    for (int64_t i = 0; i < DRAWS; i++)
        count[draw(&with, logits, i)]++;
    for (int v = 0; v < VOCABULARY; v++) {
        const double found = (double)count[v] / DRAWS;
        if (fabs(found - wanted[v]) > 5 * sqrt(wanted[v] * (1 - wanted[v]) / DRAWS))
            fail_msg("token %d: drawn with frequency %g, not %g", v, found, wanted[v]);
    }
}

static void case_frequency(void **state)
{
    /* Probabilities 1/16, 4/16, 2/16, 8/16, 1/16, 0. */
    const float logits[VOCABULARY] = {0, logf(4), logf(2), logf(8), 0, -INFINITY};
    (void)state;
    check_frequency(sampler(1, 0, 1), logits,
                    (double[]){1. / 16, 4. / 16, 2. / 16, 8. / 16, 1. / 16, 0});
    /* Half the temperature squares them: 1, 16, 4, 64, 1 of 86. */
    check_frequency(sampler(0.5, 0, 1), logits,
                    (double[]){1. / 86, 16. / 86, 4. / 86, 64. / 86, 1. / 86, 0});
    check_frequency(sampler(1, 2, 1), logits, (double[]){0, 4. / 12, 0, 8. / 12, 0, 0});
    /* The last of three ties is the one with the highest number. */
    check_frequency(sampler(1, 4, 1), logits, (double[]){1. / 15, 4. / 15, 2. / 15, 8. / 15, 0, 0});
    /* 8/16 are not enough for 0.6, 12/16 are. */
    check_frequency(sampler(1, 0, 0.6), logits, (double[]){0, 4. / 12, 0, 8. / 12, 0, 0});
    /* First top-k, then top-p of what it left: 8/14 are not enough for 0.6, and 12/14 are. */
    check_frequency(sampler(1, 3, 0.6), logits, (double[]){0, 4. / 12, 0, 8. / 12, 0, 0});
    check_frequency(sampler(1, 3, 0.5), logits, (double[]){0, 0, 0, 1, 0, 0});
    check_frequency(sampler(1, 0, 1e-9), logits, (double[]){0, 0, 0, 1, 0, 0});
    check_frequency(sampler(1, 100, 1), logits,
                    (double[]){1. / 16, 4. / 16, 2. / 16, 8. / 16, 1. / 16, 0});
}

static void case_certain(void **state)
{
    const float ties[VOCABULARY] = {1, 5, 5, 0, 5, 2};
    const float large[VOCABULARY] = {-3e38f, 3e38f, 0, 0, 0, 0};
    const float nan_last[VOCABULARY] = {0, 0, 0, 0, 0, NAN};
    const float infinite[VOCABULARY] = {0, INFINITY, 0, 0, 0, 0};
    const float nothing[VOCABULARY] = {-INFINITY, -INFINITY, -INFINITY,
                                       -INFINITY, -INFINITY, -INFINITY};
    const struct tess__sampler greedy = sampler(0, 0, 1), one = sampler(1, 1, 1),
                               cold = sampler(1e-300, 0, 1), plain = sampler(1, 0, 1);
    struct tess__sampler other = plain;
    int32_t token, differ = 0;
    (void)state;
    for (int64_t i = 0; i < 100; i++) {
        assert_int_equal(draw(&greedy, ties, i), 1);
        assert_int_equal(draw(&one, ties, i), 1);
        assert_int_equal(draw(&cold, large, i), 1);
        assert_int_equal(draw(&plain, large, i), 1);
        assert_int_equal(draw(&plain, ties, i), draw(&plain, ties, i));
    }
    other.seed = 4;
    for (int64_t i = 0; i < 100; i++)
        differ += draw(&plain, ties, i) != draw(&other, ties, i);
    assert_true(differ > 20);
    assert_int_equal(tess__sample(&plain, nan_last, 0, &token), TESS_ERR_NUMERIC);
    assert_int_equal(tess__sample(&greedy, nan_last, 0, &token), TESS_ERR_NUMERIC);
    assert_int_equal(tess__sample(&plain, infinite, 0, &token), TESS_ERR_NUMERIC);
    assert_int_equal(tess__sample(&plain, nothing, 0, &token), TESS_ERR_NUMERIC);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static void case_prompt(void **state)
{
    static const struct {
        const char *text, *numbers, *phrase;
        int32_t vocabulary;
    } wrong[] = {
        {"", "", "--prompt is empty", 256},
        {"abc", "", "has 50257 tokens of a tokenizer", 50257},
        {"a\xc3\xa4", "", "byte 195 at place 2", 128},
        {"", "1,2,x", "item 3 is not a number", 256},
        {"", "1,,2", "item 2 is not a number", 256},
        {"", "1,2,", "item 3 is not a number", 256},
        {"", "1 2", "item 1 is not a number", 256},
        {"", "1,256", "256 is not in the model's vocabulary of 0 to 255", 256},
        {"", "-1", "-1 is not in", 256},
        {"", "99999999999999999999", "item 1 is not a number", 256},
    };
    struct tess__source source = {.vocabulary = 256};
    struct tess__tokens tokens = {0};
    (void)state;
    assert_int_equal(tess__text_read(&source, "--prompt", "\xc3\xa4 z", 4, &tokens), TESS_OK);
    assert_int_equal(tokens.count, 4);
    assert_true(tokens.token[0] == 0xc3 && tokens.token[1] == 0xa4 && tokens.token[2] == ' ' &&
                tokens.token[3] == 'z');
    free(tokens.token);
    source.vocabulary = 50257;
    assert_int_equal(tess__numbers_read(&source, "--prompt-tokens", "50256,0,7", &tokens), TESS_OK);
    assert_int_equal(tokens.count, 3);
    assert_true(tokens.token[0] == 50256 && tokens.token[1] == 0 && tokens.token[2] == 7);
    free(tokens.token);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        source.vocabulary = wrong[i].vocabulary;
        assert_int_equal(wrong[i].numbers[0] ? tess__numbers_read(&source, "--prompt-tokens",
                                                                  wrong[i].numbers, &tokens)
                                             : tess__text_read(&source, "--prompt", wrong[i].text,
                                                               strlen(wrong[i].text), &tokens),
                         TESS_ERR_USAGE);
        if (strstr(tess_log_last_error(), wrong[i].phrase) == NULL)
            fail_msg("'%s' in: %s", wrong[i].phrase, tess_log_last_error());
    }
}

/* ---- what is shown --------------------------------------------------------------------------- */

/* What a printer writes to stdout. */
static void printed(struct tess__printer printer, const int32_t *token, int count, char *text,
                    size_t room_bytes)
{
    FILE *file = tmpfile();
    const int kept = dup(STDOUT_FILENO);
    assert_non_null(file);
    assert_true(kept >= 0);
    fflush(stdout);
    assert_true(dup2(fileno(file), STDOUT_FILENO) >= 0);
    for (int i = 0; i < count; i++)
        assert_int_equal(printer.numbers ? tess__print_number(&printer, token[i])
                                         : tess__print_bytes(&printer, &(char){(char)token[i]}, 1),
                         TESS_OK);
    assert_int_equal(tess__print_end(&printer), TESS_OK);
    assert_true(dup2(kept, STDOUT_FILENO) >= 0);
    close(kept);
    rewind(file);
    text[fread(text, 1, room_bytes - 1, file)] = '\0';
    fclose(file);
}

static void check_shown(const char *bytes, const char *wanted)
{
    int32_t token[64];
    char text[256];
    const int count = (int)strlen(bytes);
    for (int i = 0; i < count; i++)
        token[i] = (unsigned char)bytes[i];
    printed((struct tess__printer){.terminal = true}, token, count, text, sizeof(text));
    assert_string_equal(text, wanted);
    printed((struct tess__printer){.terminal = false}, token, count, text, sizeof(text));
    assert_string_equal(text, bytes);
}

static void case_shown(void **state)
{
    static const int32_t number[] = {50256, 0, 7};
    char text[64];
    (void)state;
    check_shown("plain\ttext\n", "plain\ttext\n\n");
    check_shown("\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80",
                "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\n");
    check_shown("\x1b[2J\r\x7f", "\\x1b[2J\\x0d\\x7f\n"); /* moves the cursor */
    check_shown("\xc2\x9b"
                "1m",
                "\\xc2\\x9b1m\n"); /* the same in one character */
    check_shown("a\x80"
                "b\xff",
                "a\\x80"
                "b\\xff\n");                                /* never begins one */
    check_shown("\xe2\x82", "\\xe2\\x82\n");                /* cut short by the end */
    check_shown("\xe2\x82x", "\\xe2\\x82x\n");              /* and by another character */
    check_shown("\xe2\xe2\x82\xac", "\\xe2\xe2\x82\xac\n"); /* begun twice */
    check_shown("\xc0\xaf\xe0\x80\xaf", "\\xc0\\xaf\\xe0\\x80\\xaf\n"); /* too long a form */
    check_shown("\xed\xa0\x80", "\\xed\\xa0\\x80\n");                   /* half of a pair */
    check_shown("\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80\n");          /* beyond U+10FFFF */
    printed((struct tess__printer){.numbers = true}, number, 3, text, sizeof(text));
    assert_string_equal(text, "50256,0,7\n");
}

/* ---- where a text ends ----------------------------------------------------------------------- */

/* A text that comes byte by byte, and in one piece: what is shown of it, at most and at the end. */
static void check_stop(const char *list, const char *text, const char *shown, bool stopped)
{
    struct tess__stops stops = {0};
    assert_int_equal(tess__stops_read(list, &stops), TESS_OK);
    for (int way = 0; way < 2; way++) {
        struct tess__growing growing = {0};
        const size_t step = way == 0 ? 1 : strlen(text);
        for (size_t at = 0; at < strlen(text); at += step) {
            const size_t before = growing.shown;
            assert_int_equal(tess__growing_add(&growing, &stops, text + at, step), TESS_OK);
            assert_true(growing.shown >= before && growing.shown <= strlen(shown));
        }
        tess__growing_end(&growing);
        assert_int_equal(growing.stopped, stopped);
        assert_int_equal(growing.shown, strlen(shown));
        assert_memory_equal(growing.text, shown, growing.shown);
        free(growing.text);
    }
    tess__stops_close(&stops);
}

static void case_stop(void **state)
{
    static const char *const wrong[] = {"|", "a||b", "a|", "a\\x", "a\\"};
    (void)state;
    check_stop("", "all of it", "all of it", false);
    check_stop("end", "the end is near", "the ", true);
    check_stop("end", "the en", "the en", false);
    check_stop("aab|ab", "aaab", "a", true);
    check_stop("abcd|bc", "xabcx", "xa", true); /* inside the beginning of another one */
    check_stop("\\n\\n|\\||\\\\", "a\nb|c", "a\nb", true);
    check_stop("\\n\\n", "a\nb\n\n", "a\nb", true);
    check_stop("\\\\t", "a\t\\t", "a\t", true);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct tess__stops stops = {0};
        assert_int_equal(tess__stops_read(wrong[i], &stops), TESS_ERR_USAGE);
        tess__stops_close(&stops);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_frequency), cmocka_unit_test(case_certain),
        cmocka_unit_test(case_prompt),    cmocka_unit_test(case_shown),
        cmocka_unit_test(case_stop),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
