/* Which devices a build has code for: the sentence about GPUs that it has none for hangs on it. */
#include "cuda/archs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void case_default(void **state)
{
    (void)state;
    assert_true(tess__cuda_runs_on("90a ptx", 8, 0));
    assert_true(tess__cuda_runs_on("90a ptx", 8, 9));
    assert_true(tess__cuda_runs_on("90a ptx", 9, 0));
    assert_true(tess__cuda_runs_on("90a ptx", 10, 0));
    assert_true(tess__cuda_runs_on("90a ptx", 12, 1));
    assert_false(tess__cuda_runs_on("90a ptx", 7, 5));
}

/* What a package is built for. */
static void case_package(void **state)
{
    (void)state;
    static const char archs[] = "80 86 89 90a 100 120";
    assert_true(tess__cuda_runs_on(archs, 8, 0));
    assert_true(tess__cuda_runs_on(archs, 8, 7));
    assert_true(tess__cuda_runs_on(archs, 9, 0));
    assert_true(tess__cuda_runs_on(archs, 10, 3));
    assert_true(tess__cuda_runs_on(archs, 12, 1));
    assert_false(tess__cuda_runs_on(archs, 7, 5));
    assert_false(tess__cuda_runs_on(archs, 11, 0)); /* ptx's */
}

static void case_real(void **state)
{
    (void)state;
    assert_true(tess__cuda_runs_on("80", 8, 0));
    assert_true(tess__cuda_runs_on("80", 8, 9));
    assert_false(tess__cuda_runs_on("80", 9, 0));
    assert_false(tess__cuda_runs_on("89", 8, 0));
    assert_false(tess__cuda_runs_on("90a", 8, 0));
    assert_false(tess__cuda_runs_on("90a", 9, 1));
    assert_false(tess__cuda_runs_on("90a", 10, 0));
    assert_true(tess__cuda_runs_on("100a", 10, 0));
    assert_false(tess__cuda_runs_on("100a", 10, 3));
    assert_true(tess__cuda_runs_on("100f", 10, 3));
    assert_false(tess__cuda_runs_on("100f", 12, 0));
    assert_true(tess__cuda_runs_on("80 90a", 9, 0));
    assert_true(tess__cuda_runs_on("90a 80", 8, 6));
    assert_false(tess__cuda_runs_on("80 90a", 10, 0));
    assert_false(tess__cuda_runs_on("", 8, 0));
}

int main(void)
{
    static const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_default),
        cmocka_unit_test(case_package),
        cmocka_unit_test(case_real),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
