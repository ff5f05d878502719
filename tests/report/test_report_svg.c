/* Pictures: all curves and bars are drawn, whatever the numbers and the names are. */
#include "report/report_figure.h"
#include "tessera/status.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static size_t count_of(const char *text, const char *part)
{
    size_t count = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at++)
        count++;
    return count;
}

/* Draw curves on axes of one kind; true when a figure came of it. */
static bool draw(const struct tess__curve *curve, int count, int x_kind, int y_kind)
{
    const struct tess__figure figure = {"Title", "caption"};
    const struct tess__lines lines = {.x = {"x", (enum tess__axis_kind)x_kind, true},
                                      .y = {"y", (enum tess__axis_kind)y_kind, false},
                                      .curve = curve,
                                      .curve_count = count};
    struct tess__html html = {0};
    bool drawn;

    tess__figure_lines(&figure, &lines, &html);
    drawn = html.count > 0;
    if (drawn) {
        assert_int_equal(count_of(html.bytes, "role=\"img\""), 2);
        assert_true(count_of(html.bytes, "<use href=\"#m") > 0);
        for (const char *at = html.bytes; (at = strstr(at, "<svg class=\"wide")) != NULL; at++) {
            const char *end = strstr(at, "</svg>");
            for (const char *part = at; part < end; part++)
                if (strncmp(part, "nan", 3) == 0 || strncmp(part, "inf", 3) == 0)
                    fail_msg("a number that is none is drawn: %.60s", part - 20);
        }
    }
    tess__html_close(&html);
    return drawn;
}

/* Every kind of axis, with numbers that are hard on it. */
static void case_odd_numbers(void **state)
{
    static const double x[] = {1, 2, 3, 4}, same[] = {5, 5, 5, 5}, none[] = {NAN, NAN, NAN, NAN};
    static const double gap[] = {1, NAN, 3, 1e99}, zero[] = {0, 0, 0, 0}, tiny[] = {1e-99, 1, 2, 3};
    static const double huge[] = {1e99, 1e99, 1e99, 1e99}, near[] = {1e15, 1e15, 1e15, 1e15 + 1};
    static const double *const number[] = {x, same, none, gap, zero, tiny, huge, near};
    enum { NUMBERS = sizeof(number) / sizeof(number[0]) };
    struct tess__curve all[NUMBERS];

    (void)state;
    for (int kind = TESS__AXIS_LINEAR; kind <= TESS__AXIS_LOG2; kind++) {
        bool positive = kind == TESS__AXIS_LOG10 || kind == TESS__AXIS_LOG2;

        for (int c = 0; c < NUMBERS; c++) {
            bool nothing = number[c] == none || (positive && number[c] == zero);

            all[c] = (struct tess__curve){
                .name = "'\"`$(touch x)`", .x = x, .y = number[c], .count = 4, .style = 3 * c};
            assert_int_equal(draw(&all[c], 1, TESS__AXIS_LINEAR, kind), !nothing);
            all[c].x = number[c];
            all[c].y = x;
            assert_int_equal(draw(&all[c], 1, kind, TESS__AXIS_LINEAR), !nothing);
            all[c].x = x;
            all[c].y = number[c];
        }
        assert_true(draw(all, NUMBERS, TESS__AXIS_LINEAR, kind));
    }
}

/* Every marker that a picture or a legend refers to is in the page's set. */
static void case_markers(void **state)
{
    struct tess__html html = {0};
    char id[16];

    (void)state;
    tess__figure_markers(&html);
    for (int style = 0; style < TESS__PLOT_CURVES_MAX; style++) {
        snprintf(id, sizeof(id), "id=\"m%d\"", tess__plot_marker(style));
        assert_int_equal(count_of(html.bytes, id), 1);
        for (int other = 0; other < style; other++)
            assert_true(tess__plot_marker(style) != tess__plot_marker(other) ||
                        strcmp(tess__plot_dash(style), tess__plot_dash(other)) != 0);
    }
    tess__html_close(&html);
}

static void case_bars(void **state)
{
    static const char *const kind[] = {"one", "two"};
    const struct tess__bars bars = {.title = "axis [s]",
                                    .row = {"\"; system \"touch x\" #", "@0@ <i>", "third"},
                                    .kind = kind,
                                    .value = {1, 2, 0, 0, 1e-30, 5},
                                    .row_count = 3,
                                    .kind_count = 2,
                                    .beside_start = {0, 0, 1},
                                    .beside_value = {1, 0, 1},
                                    .beside_name = "beside",
                                    .decimals = 1};
    struct tess__html html = {0};

    (void)state;
    tess__figure_bars(&(struct tess__figure){"Title", "caption"}, &bars, &html);
    assert_int_equal(count_of(html.bytes, "role=\"img\""), 2);
    /* Three bars of positive length in the wide drawing, as many in the narrow one, thin ones too.
     */
    for (int k = 0; k < 3; k++) {
        char begin[32];
        const char *at = html.bytes;
        snprintf(begin, sizeof(begin), "<g class=\"s%d\"", k);
        for (int drawing = 0; drawing < 2; drawing++) {
            int boxes = 0;
            at = strstr(at, begin);
            assert_non_null(at);
            for (const char *end = strstr(at, "</g>"); (at = strstr(at, "<path ")) && at < end;
                 at++)
                boxes++;
            assert_int_equal(boxes, 2);
        }
    }
    assert_non_null(strstr(html.bytes, "@0@ &lt;i&gt;</text>"));
    assert_null(strstr(html.bytes, "<i>"));
    tess__html_close(&html);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_odd_numbers),
        cmocka_unit_test(case_markers),
        cmocka_unit_test(case_bars),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
