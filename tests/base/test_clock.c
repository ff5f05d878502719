/* The clock of time limits: what it leaves out. */
#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void case_awake(void **state)
{
    struct tess_awake awake = {0};
    double own_s = 5;
    (void)state;
    tess_clock_own(&own_s);
    assert_true(tess_awake_s(&awake) == 0);
    for (int i = 1; i <= 10; i++) {
        own_s += AWAKE_SUSPENDED_S / 8;
        assert_true(tess_awake_s(&awake) == i * AWAKE_SUSPENDED_S / 8);
    }
    const double before_s = tess_awake_s(&awake);
    own_s += 3600; /* suspended */
    assert_true(tess_awake_s(&awake) == before_s);
    own_s += 0.5;
    assert_true(tess_awake_s(&awake) == before_s + 0.5);
    tess_clock_own(NULL);
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_awake)};
    return cmocka_run_group_tests(cases, NULL, NULL);
}
