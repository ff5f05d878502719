/*
 * Pictures: what the cleaner lets through of an SVG, hostile ones among them, and that gnuplot
 * draws what it is given, whatever the numbers and the names are.
 */
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

static const char *const label[] = {"<b>\"run\"</b>", "other"};
static const struct tess__picture picture = {.width = 100,
                                             .height = 50,
                                             .alternative = "what is seen",
                                             .label = label,
                                             .label_count = 2,
                                             .label_max = 20};

static enum tess_status clean(const char *source, struct tess__html *html)
{
    return tess__svg_clean(source, strlen(source), &picture, html);
}

static void case_taken_over(void **state)
{
    struct tess__html html = {0};

    (void)state;
    assert_int_equal(
        clean("<?xml version=\"1.0\"?>\n<svg width='1' xmlns='http://x'><title>G</title>"
              "<g id=\"gnuplot_canvas\"><g fill='none' color='black'>\n</g>"
              "<g id=\"gnuplot_plot_3\" ><title>$d0</title>"
              "<path stroke='rgb(  2,   0,   5)'  d='M1.5,2\n\t L3,-4  '/>"
              "<use xlink:href='#gpPt6' transform='translate(1,2) scale(2.4)' "
              "color='rgb(2,0,1)'/></g>"
              "<g stroke='none'><polygon fill = 'rgb(4, 0, 0)' points = '1,2 3,4 '/></g>"
              "<g fill=\"rgb(1,0,0)\"><text> 10</text><text>@0@</text><text>@7@</text></g>"
              "</g></svg>",
              &html),
        TESS_OK);
    assert_string_equal(
        html.bytes,
        "<svg class=\"wide\" viewBox=\"0 0 100 50\" role=\"img\" aria-label=\"what is seen\">\n"
        "<g><g class=\"s2\"><path stroke=\"var(--s5)\" d=\"M1.5,2 L3,-4\"/>"
        "<use href=\"#m6\" transform=\"translate(1,2) scale(2.4)\" color=\"var(--s1)\"/></g>\n"
        "<g stroke=\"none\"><polygon fill=\"var(--card)\" points=\"1,2 3,4\"/></g>\n"
        "<g fill=\"var(--ink2)\"><text>10</text>"
        "<text>&lt;b&gt;&quot;run&quot;&lt;/b&gt;</text><text>@7@</text></g>\n</g>\n</svg>\n");
    tess__html_close(&html);
}

static void case_kept_out(void **state)
{
    static const char *const bad[] = {"script", "alert",   "onload", "http",  "javascript",
                                      "style",  "foreign", "image",  "<a",    "url",
                                      "xlink",  "id=",     "#000",   "import"};
    struct tess__html html = {0};

    (void)state;
    assert_int_equal(
        clean("<svg onload='alert(1)'><script>alert(\"</svg>\")</script>"
              "<style>@import 'http://x'</style>"
              "<image xlink:href='http://x/y.png'/><a href='javascript:alert(1)'>"
              "<g id='x' onload='alert(1)' style='fill:url(http://x)'>"
              "<path d='M0,0' fill='url(http://x)' stroke='#000' onclick=\"alert(1)\" id='a'/>"
              "<path d='\"&lt;script&gt;' transform='url(#x)'/>"
              "<use xlink:href='http://x#gpPt6'/></g></a>"
              "<foreignObject></foreignObject></svg>",
              &html),
        TESS_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (strstr(html.bytes, bad[i]) != NULL)
            fail_msg("%s is let through: %s", bad[i], html.bytes);
    tess__html_close(&html);
}

static void case_broken(void **state)
{
    static const char *const cases[] = {
        "",
        "<svg>",
        "<svg><g></svg>",
        "<svg></g></svg>",
        "<svg><g",
        "<svg><text>cut",
        "<svg><title>never closed</svg>",
        "<svg><path d='M0,0",
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tess__html html = {0};
        assert_int_equal(clean(cases[i], &html), TESS_ERR_DATA);
        tess__html_close(&html);
    }
    /* Deeper than any picture. */
    {
        static char deep[4096] = "<svg>";
        struct tess__html html = {0};
        for (int i = 0; i < 500; i++)
            strcat(deep, "<g>");
        strcat(deep, "</svg>");
        assert_int_equal(clean(deep, &html), TESS_ERR_DATA);
        tess__html_close(&html);
    }
}

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

    assert_int_equal(tess__figure_lines(&figure, &lines, &html), TESS_OK);
    drawn = html.count > 0;
    if (drawn) {
        assert_int_equal(count_of(html.bytes, "role=\"img\""), 2);
        assert_true(count_of(html.bytes, "<path stroke=\"var(--s") +
                        count_of(html.bytes, "<use href=\"#m") >
                    0);
    }
    tess__html_close(&html);
    return drawn;
}

/* gnuplot and every kind of axis, with numbers that are hard on it. */
static void case_odd_numbers(void **state)
{
    static const double x[] = {1, 2, 3, 4}, same[] = {5, 5, 5, 5}, none[] = {NAN, NAN, NAN, NAN};
    static const double gap[] = {1, NAN, 3, 1e99}, zero[] = {0, 0, 0, 0}, tiny[] = {1e-99, 1, 2, 3};
    static const double huge[] = {1e99, 1e99, 1e99, 1e99}, near[] = {1e15, 1e15, 1e15, 1e15 + 1};
    static const double *const number[] = {x, same, none, gap, zero, tiny, huge, near};
    enum { NUMBERS = sizeof number / sizeof number[0] };
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
        snprintf(id, sizeof id, "id=\"m%d\"", tess__plot_marker(style));
        assert_int_equal(count_of(html.bytes, id), 1);
        for (int other = 0; other < style; other++)
            assert_true(tess__plot_marker(style) != tess__plot_marker(other) ||
                        strcmp(tess__plot_dash(style), tess__plot_dash(other)) != 0);
    }
    tess__html_close(&html);
}

static void case_bars(void **state)
{
    static const char *const row[] = {"\"; system \"touch x\" #", "@0@ <i>", "third"};
    static const char *const kind[] = {"one", "two"};
    static const double value[] = {1, 2, 0, 0, 1e-30, 5}, start[] = {0, 0, 1}, beside[] = {1, 0, 1};
    const struct tess__bars bars = {.title = "axis [s]",
                                    .row = row,
                                    .kind = kind,
                                    .value = value,
                                    .row_count = 3,
                                    .kind_count = 2,
                                    .beside_start = start,
                                    .beside_value = beside,
                                    .beside_name = "beside",
                                    .decimals = 1};
    struct tess__html html = {0};

    (void)state;
    assert_int_equal(tess__figure_bars(&(struct tess__figure){"Title", "caption"}, &bars, &html),
                     TESS_OK);
    assert_int_equal(count_of(html.bytes, "role=\"img\""), 2);
    /* Three bars of positive length in the wide drawing, as many in the narrow one, thin ones too.
     */
    assert_int_equal(count_of(html.bytes, "<polygon fill=\"var(--s0)\""), 2 * 2);
    assert_int_equal(count_of(html.bytes, "<polygon fill=\"var(--s1)\""), 2 * 2);
    assert_int_equal(count_of(html.bytes, "<polygon fill=\"var(--s2)\""), 2 * 2);
    assert_non_null(strstr(html.bytes, "@0@ &lt;i&gt;</text>"));
    assert_null(strstr(html.bytes, "<i>"));
    tess__html_close(&html);
}

static void case_no_gnuplot(void **state)
{
    char *path = strdup(getenv("PATH"));
    struct tess__html script = {0}, output = {0};

    (void)state;
    tess__html_add(&script, "this is no script\n");
    assert_int_equal(tess__gnuplot(&script, &output), TESS_ERR_DATA);
    setenv("PATH", "/nowhere", 1);
    assert_int_equal(tess__gnuplot(&script, &output), TESS_ERR_NOT_FOUND);
    setenv("PATH", path, 1);
    free(path);
    tess__html_close(&script);
    tess__html_close(&output);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_taken_over), cmocka_unit_test(case_kept_out),
        cmocka_unit_test(case_broken),     cmocka_unit_test(case_odd_numbers),
        cmocka_unit_test(case_markers),    cmocka_unit_test(case_bars),
        cmocka_unit_test(case_no_gnuplot),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
