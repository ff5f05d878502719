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

static double seconds_between(const struct timespec *from, const struct timespec *to)
{
    return (double)(to->tv_sec - from->tv_sec) + 1e-9 * (double)(to->tv_nsec - from->tv_nsec);
}

/* As it is computed, the clock goes on; nanoseconds stay below a second, whatever is added. */
static void case_soon(void **state)
{
    (void)state;
    for (int i = 0; i <= 40; i++) {
        const double wanted_s = 0.075 * i;
        struct timespec before, after;
        clock_gettime(CLOCK_REALTIME, &before);
        const struct timespec soon = tess_clock_soon(wanted_s);
        clock_gettime(CLOCK_REALTIME, &after);
        assert_true(soon.tv_nsec >= 0 && soon.tv_nsec < 1000000000);
        assert_true(seconds_between(&before, &soon) >= wanted_s - 1e-6);
        assert_true(seconds_between(&after, &soon) <= wanted_s + 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(case_awake), cmocka_unit_test(case_soon)};
    return cmocka_run_group_tests(cases, NULL, NULL);
}
