/* Loss scaling: values of the option, and the course of the scale over good and bad steps. */
#include "optim/scale.h"
#include "tessera/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct tess_scale scale_of(const char *text, enum tess_dtype dtype, int64_t interval)
{
    struct tess_scale scale;
    assert_int_equal(tess_scale_parse(text, dtype, interval, &scale), TESS_OK);
    assert_int_equal(scale.interval, interval);
    assert_int_equal(scale.good, 0);
    assert_int_equal(scale.skipped, 0);
    return scale;
}

static void case_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum tess_dtype dtype;
        enum tess_scale_mode mode;
        double value;
    } good[] = {
        {"auto", TESS_F32, TESS_SCALE_OFF, 1},
        {"auto", TESS_BF16, TESS_SCALE_OFF, 1},
        {"auto", TESS_F16, TESS_SCALE_DYNAMIC, 65536},
        {"off", TESS_F16, TESS_SCALE_OFF, 1},
        {"dynamic", TESS_F32, TESS_SCALE_DYNAMIC, 65536},
        {"dynamic:1", TESS_F16, TESS_SCALE_DYNAMIC, 1},
        {"dynamic:16777216", TESS_BF16, TESS_SCALE_DYNAMIC, 16777216},
        {"static:1024", TESS_F16, TESS_SCALE_STATIC, 1024},
        {"static:1", TESS_F32, TESS_SCALE_STATIC, 1},
        {"static:0100", TESS_F16, TESS_SCALE_STATIC, 100},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        struct tess_scale scale = scale_of(good[i].text, good[i].dtype, 2000);
        assert_int_equal(scale.mode, good[i].mode);
        assert_true(scale.value == good[i].value);
    }
}

static void case_refused_texts(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "0",
        "1024",
        "on",
        "Auto",
        "dynamics",
        "static",
        "static:",
        "static:0",
        "static:-2",
        "static:+2",
        "static:nan",
        "static:inf",
        "static:1e9",
        "static:0.5",
        "static:2x",
        "static: 2",
        "static:2 ",
        "static:0x8",
        "dynamic:",
        "dynamic:0",
        "dynamic:1e",
        "dynamic:inf",
        "dynamic:-1",
        "dynamic:2,",
        "off ",
        "static:.5",
        "static:1e3",
        "dynamic:16777217",
        "static:99999999999999999999999",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct tess_scale scale = {.value = 7};
        if (tess_scale_parse(bad[i], TESS_F16, 2000, &scale) != TESS_ERR_USAGE)
            fail_msg("'%s' was taken", bad[i]);
        assert_non_null(strstr(tess_log_last_error(), "--loss-scale"));
        assert_non_null(strstr(tess_log_last_error(), bad[i]));
        assert_true(scale.value == 7);
    }
    struct tess_scale scale;
    assert_int_equal(tess_scale_parse("dynamic", TESS_F16, 0, &scale), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "--loss-scale-interval"));
}

/* g: a good step, b: a bad one; the scale after each, one character of `after` as a power of 2. */
static void check_course(const char *text, const char *steps, const char *after)
{
    struct tess_scale scale = scale_of(text, TESS_F16, 3);
    int64_t bad = 0;
    for (size_t i = 0; steps[i] != '\0'; i++) {
        assert_int_equal(tess_scale_next(&scale, steps[i] == 'g'), TESS_OK);
        bad += steps[i] == 'b';
        if (scale.value != (double)(1 << (after[i] - 'a')))
            fail_msg("%s after step %zu of %s: scale %g", text, i + 1, steps, scale.value);
    }
    assert_int_equal(scale.skipped, bad);
}

static void case_course(void **state)
{
    (void)state;
    /* Three good steps in a row double, whatever was before; a bad one halves and starts over. */
    check_course("dynamic:4", "gggggg", "ccddde");
    check_course("dynamic:4", "ggbgggbb", "ccbbbcba");
    check_course("dynamic:4", "bgbggg", "bbaaab");
    check_course("static:4", "gggbbbg", "ccccccc");
    /* The top is never passed. */
    check_course("dynamic:8388608", "ggggggggg", "xxyyyyyyy");

    /* Not below 1, and what failed is not counted as skipped. */
    struct tess_scale scale = scale_of("dynamic:2", TESS_F16, 3);
    assert_int_equal(tess_scale_next(&scale, false), TESS_OK);
    assert_int_equal(tess_scale_next(&scale, false), TESS_ERR_NUMERIC);
    assert_true(scale.value == 1);
    assert_int_equal(scale.skipped, 1);

    scale = scale_of("off", TESS_F16, 3);
    assert_int_equal(tess_scale_next(&scale, false), TESS_OK);
    assert_true(scale.value == 1 && scale.skipped == 0);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_texts),
        cmocka_unit_test(case_refused_texts),
        cmocka_unit_test(case_course),
    };
    return cmocka_run_group_tests_name("scale", cases, NULL, NULL);
}
