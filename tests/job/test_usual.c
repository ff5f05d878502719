/* What a step usually takes: the middle half of the steps, by their seconds. */
#include "job/usual.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static struct tess_times times(double total_s)
{
    return (struct tess_times){.total_s = total_s, .forward_s = total_s / 4};
}

/* Of eight steps two that are disturbed and two that are fast do not count; phases are those of the
 * same steps. */
static void test_middle(void **state)
{
    static const double total_s[] = {9, 4, 1, 5, 3, 100, 2, 6};
    struct tess__usual usual;
    (void)state;
    assert_int_equal(tess__usual_open(&usual), 0);
    for (size_t i = 0; i < sizeof(total_s) / sizeof(*total_s); i++) {
        const struct tess_times step = times(total_s[i]);
        tess__usual_add(&usual, &step);
    }
    const struct tess_times mean = tess__usual_take(&usual);
    assert_true(fabs(mean.total_s - 4.5) < 1e-12);
    assert_true(fabs(mean.forward_s - 4.5 / 4) < 1e-12);
    tess__usual_close(&usual);
}

/* None, one, and more than are kept: of those the last ones. */
static void test_counts(void **state)
{
    struct tess__usual usual;
    struct tess_times step = times(7);
    (void)state;
    assert_int_equal(tess__usual_open(&usual), 0);
    assert_true(tess__usual_take(&usual).total_s == 0);
    tess__usual_add(&usual, &step);
    assert_true(tess__usual_take(&usual).total_s == 7);
    step = times(2);
    for (int i = 0; i < TESS__USUAL_STEPS; i++)
        tess__usual_add(&usual, &step);
    assert_true(fabs(tess__usual_take(&usual).total_s - 2) < 1e-9);
    tess__usual_close(&usual);
    tess__usual_close(&usual);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_middle),
        cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
