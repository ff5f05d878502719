/*
 * The public headers as C and as C++: the same layouts, and C linkage. That each header compiles
 * alone in both languages is shown by building the libraries test_header_c11 and test_header_cxx17.
 */
#include "header_layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const struct header_size size_table[] = HEADER_SIZES;

static void case_same_layout(void **state)
{
    (void)state;
    const struct header_size *other = header_sizes_cxx();
    if (!other)
        skip();
    int count = 0;
    for (; size_table[count].name; count++) {
        assert_string_equal(other[count].name, size_table[count].name);
        if (other[count].bytes != size_table[count].bytes)
            fail_msg("struct %s: %zu bytes in C, %zu in C++", size_table[count].name,
                     size_table[count].bytes, other[count].bytes);
        assert_true(size_table[count].bytes > 0);
    }
    assert_null(other[count].name);
}

static void case_c_linkage(void **state)
{
    (void)state;
    if (!header_sizes_cxx())
        skip();
    assert_string_equal(header_status_text_cxx(TESS_ERR_IO), tess_status_text(TESS_ERR_IO));
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_same_layout),
        cmocka_unit_test(case_c_linkage),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
