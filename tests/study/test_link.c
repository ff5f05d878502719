/*
 * Links and what follows from them: words that name links, good and hostile, times of collectives
 * and steps computed by hand, and Amdahl's law.
 */
#include "study/link.h"
#include "tessera/log.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* A few double operations on exact decimals: relative errors of some 1e-16 each. */
static void assert_near(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-13 * fabs(expected)))
        fail_msg("%.17g, expected %.17g", value, expected);
}

static const struct tess_link plain = {"plain", 1e-5, 1e9};

/* ---- words ----------------------------------------------------------------------------------- */

static void case_presets(void **state)
{
    /* One direction: links of a GPU x 25 GB/s, lanes x rate, Gb/s / 8. */
    static const struct {
        const char *name;
        double bandwidth;
    } known[] = {
        {"nvlink", 450e9},         {"nvlink-a100", 300e9},
        {"nvlink-v100", 150e9},    {"pcie", 63e9},
        {"infiniband", 50e9},      {"infiniband-hdr", 25e9},
        {"ethernet-100g", 12.5e9}, {"ethernet-10g", 1.25e9},
    };
    int count = 0;
    const struct tess_link *preset = tess_link_presets(&count);

    (void)state;
    assert_int_equal(count, sizeof(known) / sizeof(known[0]));
    for (int i = 0; i < count; i++) {
        struct tess_link link[TESS_LINK_MAX];
        int found = 0;

        assert_int_equal(tess_link_parse("--links", preset[i].name, link, &found), TESS_OK);
        assert_int_equal(found, 1);
        assert_string_equal(link[0].name, preset[i].name);
        assert_near(link[0].latency_s, preset[i].latency_s);
        assert_near(link[0].bandwidth, preset[i].bandwidth);
        assert_string_equal(preset[i].name, known[i].name);
        assert_near(preset[i].bandwidth, known[i].bandwidth);
        assert_true(link[0].latency_s >= 1e-7 && link[0].latency_s <= 1e-4);
    }
}

static void case_words(void **state)
{
    static const char text[] =
        "# what we have\nmine:5us:25GB/s , nvlink\n\n  b:0s:100Gb/s # slow\r\n"
        "c:1.5ms:2e3Mb/s,d:300ns:1TB/s";
    struct tess_link link[TESS_LINK_MAX];
    int count = 0;

    (void)state;
    assert_int_equal(tess_link_parse("file", text, link, &count), TESS_OK);
    assert_int_equal(count, 5);
    assert_string_equal(link[0].name, "mine");
    assert_near(link[0].latency_s, 5e-6);
    assert_near(link[0].bandwidth, 25e9);
    assert_string_equal(link[1].name, "nvlink");
    assert_string_equal(link[2].name, "b");
    assert_true(link[2].latency_s == 0);
    assert_near(link[2].bandwidth, 12.5e9); /* 100 Gb/s are an eighth as many bytes */
    assert_near(link[3].latency_s, 1.5e-3);
    assert_near(link[3].bandwidth, 250e6);
    assert_near(link[4].latency_s, 3e-7);
    assert_near(link[4].bandwidth, 1e12);
}

static void case_bad_words(void **state)
{
    static const struct {
        const char *text, *phrase;
    } table[] = {
        {"", "no link is named"},
        {" # nothing", "no link is named"},
        {"nvlnk", "unknown link 'nvlnk'; use one of nvlink, "},
        {"nvlink,,pcie", "an item of the list is empty"},
        {"a:5us", "'a:5us' is not NAME:LATENCY:BANDWIDTH"},
        {":5us:1GB/s", "is not NAME:LATENCY:BANDWIDTH"},
        {"a:5:1GB/s", "latency '5' of link 'a'"},
        {"a:-5us:1GB/s", "latency '-5us'"},
        {"a:nans:1GB/s", "latency 'nans'"},
        {"a:0x5us:1GB/s", "latency '0x5us'"},
        {"a:1e999s:1GB/s", "latency '1e999s'"},
        {"a:5us:", "bandwidth ''"},
        {"a:5us:0GB/s", "bandwidth '0GB/s' of link 'a' is not a rate above 0"},
        {"a:5us:-1GB/s", "bandwidth '-1GB/s'"},
        {"a:5us:infGB/s", "bandwidth 'infGB/s'"},
        {"a:5us:1GB", "bandwidth '1GB'"},
        {"a:5us:1GB/s:2", "bandwidth '1GB/s:2'"},
        {"abcdefghijklmnopqrstuvwxyz:5us:1GB/s", "name is longer than 16 characters"},
        {"nvlink,a:1us:1GB/s,nvlink", "'nvlink' is given twice"},
        {"a:1us:1GB/s,b:1us:1GB/s,c:1us:1GB/s,d:1us:1GB/s,e:1us:1GB/s,f:1us:1GB/s,g:1us:1GB/s,"
         "h:1us:1GB/s,i:1us:1GB/s,j:1us:1GB/s,k:1us:1GB/s,l:1us:1GB/s,m:1us:1GB/s,n:1us:1GB/s,"
         "o:1us:1GB/s,p:1us:1GB/s,q:1us:1GB/s",
         "more than 16 links"},
        {"a:1us:00000000000000000000000000000000000000000000000000000000000000000000000000000000000"
         "00000000000000000000000000000000000000000000000000000001GB/s",
         "is too long for a link"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct tess_link link[TESS_LINK_MAX];
        int count = -1;

        assert_int_equal(tess_link_parse("--links", table[i].text, link, &count), TESS_ERR_USAGE);
        assert_int_equal(count, -1);
        if (strstr(tess_log_last_error(), table[i].phrase) == NULL ||
            strncmp(tess_log_last_error(), "--links: ", 9) != 0)
            fail_msg("'%s' in: %s", table[i].phrase, tess_log_last_error());
    }
    struct tess_link link[TESS_LINK_MAX];
    int count = -1;
    const char *file = "nvlink\n# a comment, and a blank line\n\npcie, mine:5us:1GX/s\n";
    assert_int_equal(tess_link_parse("my.links", file, link, &count), TESS_ERR_USAGE);
    assert_int_equal(strncmp(tess_log_last_error(), "my.links:4: ", 12), 0);
}

/* ---- times ----------------------------------------------------------------------------------- */

static void case_collectives(void **state)
{
    (void)state;
    /* 8 ranks: 7 steps of 10 us, 7/8 of 80 MB at 1 GB/s are 70 ms; an all-reduce is twice that. */
    assert_near(tess_link_all_reduce_s(&plain, 8, 80e6), 140e-6 + 140e-3);
    assert_near(tess_link_all_reduce_s(&plain, 2, 1e6), 20e-6 + 1e-3);
    assert_true(tess_link_all_reduce_s(&plain, 1, 1e9) == 0);
    /* The lab's statement: towards twice the model's bytes for many ranks. */
    struct tess_link fast = {"fast", 0, 1};
    assert_near(tess_link_all_reduce_s(&fast, 1 << 20, 1), 2 * (1 - 0x1p-20));
}

static void case_step(void **state)
{
    struct tess_step_model model = {
        .rows_s = 0.09,
        .fixed_s = 0.01,
        .window_s = 0.06,
        .bytes = 40e6, /* an all-reduce of 20 MB in 4 buckets, the last of 2 MB */
        .pass_count = 8,
        .edge_bytes = 4e6,
        .edge_count = 2,
    };
    double exposed_s = -1;

    (void)state;
    assert_near(tess_step_model_s(&model, &plain, 1, &exposed_s), 0.1);
    assert_true(exposed_s == 0);
    /* 2 ranks: 80 us and 20 ms in all, of which the last bucket is 20 us and 2 ms. The rest,
     * 18.06 ms, fits into the window of 30 ms. */
    assert_near(tess_step_model_s(&model, &plain, 2, &exposed_s), 0.045 + 0.01 + 2.02e-3);
    assert_near(exposed_s, 2.02e-3);
    /* 8 ranks: 560 us and 35 ms; the window has shrunk to 7.5 ms. */
    assert_near(tess_step_model_s(&model, &plain, 8, &exposed_s), 0.01125 + 0.01 + 28.06e-3);
    assert_near(exposed_s, 28.06e-3);
    /* Weak: the window does not shrink, so that all but the last bucket hides: 140 us + 3.5 ms. */
    model.weak = true;
    assert_near(tess_step_model_s(&model, &plain, 8, &exposed_s), 0.1 + 3.64e-3);
    /* Sharded updates shrink in either case. */
    model.fixed_s = 0.002;
    model.shard_s = 0.008;
    assert_near(tess_step_model_s(&model, &plain, 8, NULL), 0.093 + 3.64e-3);
}

static void case_amdahl(void **state)
{
    static const int64_t ranks[] = {2, 4, 8};
    const double exact[] = {0.55 * 3, 0.325 * 3, 0.2125 * 3}; /* p = 0.9, T(1) = 3 */
    const double scattered[] = {0.5, 0.5, 0.25};
    const double slower[] = {1.5, 2, 3};
    double p = -1;

    (void)state;
    assert_true(tess_amdahl_fit(3, ranks, exact, 3, &p));
    assert_near(p, 0.9);
    /* x = 1/2, 3/4, 7/8; 1 - y = 1/2, 1/2, 3/4: p = (1/4 + 3/8 + 21/32) / (1/4 + 9/16 + 49/64) */
    assert_true(tess_amdahl_fit(1, ranks, scattered, 3, &p));
    assert_near(p, 82.0 / 101.0);
    assert_true(tess_amdahl_fit(1, ranks, slower, 3, &p));
    assert_true(p < 0); /* not forced into the law's range */
    assert_true(tess_amdahl_fit(1, ranks, (const double[]){0.25}, 1, &p));
    assert_near(p, 1.5);
    p = -1;
    assert_false(tess_amdahl_fit(1, (const int64_t[]){1}, (const double[]){1}, 1, &p));
    assert_false(tess_amdahl_fit(1, ranks, exact, 0, &p));
    assert_true(p == -1);

    assert_near(tess_amdahl_speedup(0.9, 1), 1);
    assert_near(tess_amdahl_speedup(0.9, 9), 5);
    assert_near(tess_amdahl_speedup(0.99, 100), 1 / 0.0199);
    assert_near(tess_amdahl_speedup(1, 1024), 1024);
    assert_near(tess_amdahl_speedup(0, 1024), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_presets),   cmocka_unit_test(case_words),
        cmocka_unit_test(case_bad_words), cmocka_unit_test(case_collectives),
        cmocka_unit_test(case_step),      cmocka_unit_test(case_amdahl),
    };

    return cmocka_run_group_tests_name("link", tests, NULL, NULL);
}
