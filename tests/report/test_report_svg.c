/* Pictures: all curves and bars are drawn, whatever the numbers and the names are. */
#include "report/report_figure.h"
#include "tessera/status.h"
#include "text/report_colours.h"

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

/* Values that differ less than the digits of ticks are one place; ticks differ. */
static void case_near_values(void **state)
{
    static const double x[] = {1, 1}, y[] = {2.8343250, 2.8343254};
    const struct tess__curve curve = {.name = "a", .x = x, .y = y, .count = 2};
    const struct tess__lines lines = {.curve = &curve, .curve_count = 1};
    struct tess__html html = {0};

    (void)state;
    tess__figure_lines(&(struct tess__figure){"Title", "caption"}, &lines, &html);
    *strstr(html.bytes, "<details") = '\0'; /* the numbers */
    assert_int_equal(count_of(html.bytes, ">2.834325</text>"), 0);
    assert_int_equal(count_of(html.bytes, ">2.8</text>"), 2);
    tess__html_close(&html);
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
                                    .name = kind,
                                    .value = {1, 2, 0, 0, 1e-30, 5},
                                    .row_count = 3,
                                    .kind_count = 2,
                                    .beside_start = {0, 0, 1},
                                    .beside_value = {1, 0, 1},
                                    .beside_name = "beside",
                                    .beside_series = 2,
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

/* Without a line between them each value has a marker: in both drawings, and one in the legend. */
static void case_points(void **state)
{
    double x[50];
    struct tess__curve curve = {.name = "layouts", .x = x, .y = x, .count = 50};
    const struct tess__lines lines = {.curve = &curve, .curve_count = 1};
    struct tess__html html = {0};

    (void)state;
    for (size_t i = 0; i < curve.count; i++)
        x[i] = (double)i;
    tess__figure_lines(&(struct tess__figure){"Title", "caption"}, &lines, &html);
    assert_true(count_of(html.bytes, "<use href=\"#m") < 50);
    tess__html_close(&html);
    html = (struct tess__html){0};
    curve.look = TESS__CURVE_MARKS;
    tess__figure_lines(&(struct tess__figure){"Title", "caption"}, &lines, &html);
    assert_int_equal(count_of(html.bytes, "<use href=\"#m"), 2 * 50 + 1);
    tess__html_close(&html);
}

/* Numbers behind bars end before the picture does, long names beside long numbers too. */
static void case_long_bars(void **state)
{
    static const char *const kind[] = {"one"};
    const struct tess__bars bars = {.title = "axis [ms]",
                                    .row = {"16. zero2+tp+pp 512x8x4 4mb sel. sp 8ch"},
                                    .name = kind,
                                    .value = {1234567.25},
                                    .row_count = 1,
                                    .kind_count = 1,
                                    .decimals = 2};
    struct tess__html html = {0};

    (void)state;
    tess__figure_bars(&(struct tess__figure){"Title", "caption"}, &bars, &html);
    const char *number = strstr(html.bytes, ">1\xE2\x80\xAF"
                                            "234"),
               *begin = number;
    assert_non_null(number);
    assert_non_null(strstr(html.bytes, ">16. zero2+tp+pp 512x8x4 4mb sel. sp 8ch</text>"));
    while (strncmp(begin, "<text x=\"", 9) != 0)
        begin--;
    /* 600 wide; twelve characters of 13 high. */
    assert_true(strtod(begin + 9, NULL) + 12 * 0.55 * 13 < 600);
    tess__html_close(&html);
}

static double linear(const char *hex)
{
    const char digits[3] = {hex[0], hex[1], '\0'};
    const double value = (double)strtol(digits, NULL, 16) / 255;
    return value <= 0.04045 ? value / 12.92 : pow((value + 0.055) / 1.055, 2.4);
}

static double lab_root(double t)
{
    return t > 0.008856 ? cbrt(t) : 7.787 * t + 16.0 / 116;
}

/* Linear light as it looks without the cones for red or green (Machado, Oliveira, Fernandes 2009).
 */
static const double seen_by[][3][3] = {
    {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
    {{0.152286, 1.052583, -0.204868},
     {0.114503, 0.786281, 0.099216},
     {-0.003882, -0.048116, 1.051998}},
    {{0.367322, 0.860646, -0.227968},
     {0.280085, 0.672501, 0.047413},
     {-0.011820, 0.042940, 0.968881}},
};

/* "#rrggbb" in CIELAB, where a distance of 2 is a difference that an eye just sees. */
static void to_lab(const char *hex, const double eye[3][3], double lab[3])
{
    const double light[] = {linear(hex + 1), linear(hex + 3), linear(hex + 5)};
    double seen[3];
    for (int c = 0; c < 3; c++)
        seen[c] =
            fmin(1, fmax(0, eye[c][0] * light[0] + eye[c][1] * light[1] + eye[c][2] * light[2]));
    const double r = seen[0], g = seen[1], b = seen[2];
    const double x = lab_root((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047);
    const double y = lab_root(0.2126 * r + 0.7152 * g + 0.0722 * b);
    const double z = lab_root((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883);
    lab[0] = 116 * y - 16;
    lab[1] = 500 * (x - y);
    lab[2] = 200 * (y - z);
}

static void check_apart(int theme, const char *colours, int eye, double least)
{
    enum { SERIES = TESS__PLOT_KINDS_MAX };
    double lab[SERIES][3];
    for (int s = 0; s < SERIES; s++) {
        char name[16];
        snprintf(name, sizeof(name), "--s%d:", s);
        const char *at = strstr(colours, name);
        assert_non_null(at);
        to_lab(at + strlen(name), seen_by[eye], lab[s]);
        for (int other = 0; other < s; other++) {
            const double apart = hypot(hypot(lab[s][0] - lab[other][0], lab[s][1] - lab[other][1]),
                                       lab[s][2] - lab[other][2]);
            if (apart < least)
                fail_msg("theme %d, eye %d: s%d and s%d are %.0f apart", theme, eye, other, s,
                         apart);
        }
    }
}

/* Colours of areas differ enough in both themes, for eyes without red or green cones, too. */
static void case_colours(void **state)
{
    (void)state;
    for (int eye = 0; eye < 3; eye++) {
        check_apart(0, TESS__COLOURS_LIGHT, eye, eye == 0 ? 20 : 12);
        check_apart(1, TESS__COLOURS_DARK, eye, eye == 0 ? 20 : 12);
    }
}

/* One kind of work has one colour, whichever place it has in a stack. */
static void case_series(void **state)
{
    static const char *const name[] = {"zero", "one", "two", "three"};
    static const int series[] = {3, 1};
    const struct tess__bars bars = {.title = "axis [s]",
                                    .name = name,
                                    .series = series,
                                    .row = {"a"},
                                    .value = {1, 2},
                                    .row_count = 1,
                                    .kind_count = 2};
    struct tess__html html = {0};

    (void)state;
    tess__figure_bars(&(struct tess__figure){"Title", "caption"}, &bars, &html);
    /* Two drawings and the legend's item, whose name is the series'. */
    assert_int_equal(count_of(html.bytes, "fill=\"var(--s3)\""), 3);
    assert_int_equal(count_of(html.bytes, "fill=\"var(--s1)\""), 3);
    const char *item = strstr(html.bytes, "<li class=\"k3\">");
    assert_non_null(item);
    assert_ptr_equal(strstr(item, "<span>"), strstr(item, "<span>three</span>"));
    tess__html_close(&html);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_odd_numbers), cmocka_unit_test(case_near_values),
        cmocka_unit_test(case_markers),     cmocka_unit_test(case_bars),
        cmocka_unit_test(case_points),      cmocka_unit_test(case_long_bars),
        cmocka_unit_test(case_colours),     cmocka_unit_test(case_series),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
