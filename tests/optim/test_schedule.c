/* Learning-rate schedules at points computed by hand, and the limits that join optimizer options.
 */
#include "optim/optim.h"
#include "tessera/log.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { CONSTANT, LINEAR, STEP, COSINE };

static struct tess_optim_options options_of(int32_t schedule)
{
    const struct tess_optim_options options = {
        .name = "momentum",
        .learning_rate = 0.4,
        .momentum = 0.9,
        .beta1 = -1,
        .beta2 = -1,
        .epsilon = -1,
        .schedule = schedule,
        .step_epochs = 3,
        .step_factor = 0.1,
    };
    return options;
}

/* A dozen double operations on numbers up to 1: 1e-14 leaves room and catches everything else. */
static void assert_rate(const struct tess_optim_options *options, int64_t step, double expected)
{
    const double rate = tess_schedule_rate(options, step, 1000, 100);
    if (!(fabs(rate - expected) <= 1e-14))
        fail_msg("schedule %d, step %lld: %.17g, expected %.17g", options->schedule,
                 (long long)step, rate, expected);
}

static void case_without_warmup(void **state)
{
    (void)state;
    struct tess_optim_options options = options_of(CONSTANT);
    assert_rate(&options, 0, 0.4);
    assert_rate(&options, 999, 0.4);

    options = options_of(LINEAR);
    assert_rate(&options, 0, 0.4);
    assert_rate(&options, 250, 0.3);
    assert_rate(&options, 999, 0.0004);
    options.final_factor = 0.2;
    assert_rate(&options, 500, 0.24);
    assert_rate(&options, 1000, 0.08);
    assert_rate(&options, 1500, 0.08); /* a run that goes on stays at the end */

    options = options_of(STEP);
    assert_rate(&options, 0, 0.4);
    assert_rate(&options, 299, 0.4);
    assert_rate(&options, 300, 0.04);
    assert_rate(&options, 599, 0.04);
    assert_rate(&options, 600, 0.004);
    assert_rate(&options, 999, 0.0004);

    options = options_of(COSINE);
    assert_rate(&options, 0, 0.4);
    assert_rate(&options, 250, 0.4 * (0.5 + 0.25 * sqrt(2)));
    assert_rate(&options, 500, 0.2);
    assert_rate(&options, 750, 0.4 * (0.5 - 0.25 * sqrt(2)));
    options.final_factor = 0.1;
    assert_rate(&options, 500, 0.4 * 0.55);
    assert_rate(&options, 1000, 0.04);
}

static void case_with_warmup(void **state)
{
    (void)state;
    for (int32_t schedule = CONSTANT; schedule <= COSINE; schedule++) {
        struct tess_optim_options options = options_of(schedule);
        options.warmup = 2; /* epochs of 100 steps */
        assert_rate(&options, 0, 0);
        assert_rate(&options, 50, 0.1);
        assert_rate(&options, 199, 0.398);
        assert_rate(&options, 200, 0.4);
        options.warmup_start = 0.25;
        assert_rate(&options, 0, 0.1);
        assert_rate(&options, 100, 0.25);
        assert_rate(&options, 200, 0.4);
    }
    /* Linear and cosine decay over what is left of the run, steps 200 .. 1000. */
    struct tess_optim_options options = options_of(LINEAR);
    options.warmup = 2;
    assert_rate(&options, 600, 0.2);
    options = options_of(COSINE);
    options.warmup = 2;
    assert_rate(&options, 600, 0.2);
    assert_rate(&options, 400, 0.4 * (0.5 + 0.25 * sqrt(2)));
    /* Step counts its epochs from the start of the run. */
    options = options_of(STEP);
    options.warmup = 2;
    assert_rate(&options, 299, 0.4);
    assert_rate(&options, 300, 0.04);
    /* A warm-up that ends between two steps, and one as long as the run. */
    options = options_of(CONSTANT);
    options.warmup = 0.025;
    assert_rate(&options, 2, 0.32);
    assert_rate(&options, 3, 0.4);
    options = options_of(COSINE);
    options.warmup = 10;
    assert_rate(&options, 999, 0.4 * 0.999);
    assert_rate(&options, 1000, 0);
    /* One that is longer than the run of 10 epochs ends with its first half. */
    options.warmup = 12;
    assert_rate(&options, 499, 0.4 * 499 / 500);
    assert_rate(&options, 500, 0.4);
    assert_rate(&options, 750, 0.2);
    assert_true(tess_schedule_warmup(&options, 1000, 100) == 500);
    options.warmup = 10;
    assert_true(tess_schedule_warmup(&options, 1000, 100) == 1000);
}

static void assert_refused(const struct tess_optim_options *options, const char *word)
{
    assert_int_equal(tess_optim_check(options), TESS_ERR_USAGE);
    if (strstr(tess_log_last_error(), word) == NULL)
        fail_msg("\"%s\" does not name %s", tess_log_last_error(), word);
}

static void case_limits(void **state)
{
    (void)state;
    struct tess_optim_options options;

#define REFUSED(field, value, word)                                                                \
    do {                                                                                           \
        options = options_of(STEP);                                                                \
        options.field = (value);                                                                   \
        assert_refused(&options, word);                                                            \
    } while (0)
    REFUSED(warmup_start, 1.5, "--warmup-start 1.5");
    REFUSED(warmup_start, (double)NAN, "--warmup-start");
    REFUSED(warmup, (double)NAN, "--warmup");
    REFUSED(momentum, 1, "--momentum");
    REFUSED(beta1, 1, "--beta1");
    REFUSED(beta2, -0.5, "--beta2");
    REFUSED(epsilon, 0, "--epsilon");
    REFUSED(step_epochs, 0, "--step-epochs");
#undef REFUSED
    options = options_of(COSINE);
    options.step_epochs = 0; /* not its business */
    options.beta1 = 0;
    assert_int_equal(tess_optim_check(&options), TESS_OK);
}

/* Rates and warm-ups that follow the batch; 64 images of each of 8 ranks by default. */
static void case_resolved(void **state)
{
    (void)state;
    static const struct {
        int32_t scale;
        int64_t base_batch;
        double rate;
    } expected[] = {{0, 0, 0.25},  {1, 0, 2},     {2, 0, 0.25 * 2.8284271247461903},
                    {1, 256, 0.5}, {2, 128, 0.5}, {1, 1024, 0.125}};
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        struct tess_optim_options options = options_of(CONSTANT);
        options.base_rate = 0.25;
        options.rate_scale = expected[i].scale;
        options.base_batch = expected[i].base_batch;
        options.warmup_start = -1;
        tess_optim_resolve(&options, 512, 8);
        assert_true(options.learning_rate == expected[i].rate);
        assert_true(options.warmup_start == 0.125);
        assert_int_equal(tess_optim_check(&options), TESS_OK);
    }
    /* Without a base nothing changes; for one that is scaled too far the message names the option.
     */
    struct tess_optim_options options = options_of(CONSTANT);
    tess_optim_resolve(&options, 512, 8);
    assert_true(options.learning_rate == 0.4 && options.warmup_start == 0);
    options.base_rate = 500;
    options.rate_scale = 1;
    tess_optim_resolve(&options, 512, 8);
    assert_refused(&options, "--base-lr 500");
}

/* The table's defaults pass the check, lie in the table's limits and are all there. */
static void case_option_table(void **state)
{
    (void)state;
    int rows = 0;
    for (const struct tess_option *row = tess_optim_option_table; row->name != NULL; row++) {
        if (row->type == TESS_OPTION_TOPIC)
            continue;
        rows++;
        assert_non_null(row->help);
        assert_true(row->offset < sizeof(struct tess_optim_options));
        if (row->type == TESS_OPTION_CHOICE)
            assert_non_null(strstr(row->choices, row->fallback));
        double value;
        if (row->type == TESS_OPTION_REAL) {
            assert_int_equal(sscanf(row->fallback, "%lf", &value), 1);
            assert_true(value >= row->min && value <= row->max);
        }
        for (const struct tess_option *other = tess_optim_option_table; other < row; other++) {
            if (other->type == TESS_OPTION_TOPIC)
                continue;
            assert_string_not_equal(other->name, row->name);
            assert_int_not_equal(other->offset, row->offset);
        }
    }
    assert_int_equal(rows, 19); /* the fields of struct tess_optim_options */
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_without_warmup), cmocka_unit_test(case_with_warmup),
        cmocka_unit_test(case_limits),         cmocka_unit_test(case_resolved),
        cmocka_unit_test(case_option_table),
    };
    return cmocka_run_group_tests_name("schedule", cases, NULL, NULL);
}
