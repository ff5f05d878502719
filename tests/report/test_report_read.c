/*
 * What the report reads: damaged, hostile and cut files keep what is whole and report what is not,
 * and nothing in them ends the program. Names of runs are unique, foreign text is harmless.
 */
#include "report/report_data.h"
#include "text/report_html.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define HEAD                                                                                       \
    "{\"run\":{\"model\":\"mlp\",\"strategy\":\"ddp\",\"ranks\":2,\"steps\":4,\"options\":"        \
    "{\"batch-size\":\"128\",\"learning-rate\":\"0.05\",\"precision\":\"f32\"}}}\n"
#define STEP(n, loss)                                                                              \
    "{\"step\":" #n ",\"epoch\":0,\"loss\":" #loss ",\"accuracy\":0.5,\"elapsed_s\":" #n "}\n"
#define EPOCH "{\"epoch\":0,\"step\":2,\"train_loss\":2,\"val_loss\":1.5,\"val_accuracy\":0.75}\n"
#define TIMES                                                                                      \
    "{\"times\":{\"epoch\":0,\"slowest\":1,\"ranks\":[{\"rank\":0,\"data_s\":1,\"forward_s\":2},"  \
    "{\"rank\":1,\"data_s\":3,\"forward_s\":4}]}}\n"
#define FINAL                                                                                      \
    "{\"final\":{\"hash\":\"00ff00ff00ff00ff\",\"loss\":1.25,\"val_loss\":null,\"steps\":4,"       \
    "\"memory\":[{\"rank\":0,\"allocated\":{\"parameter\":100,\"input\":28},\"peak_rss\":5},"      \
    "{\"rank\":1,\"predicted\":{\"parameter\":100},\"peak_rss\":5}]}}\n"

static enum tess_status load(struct tess__report *report, const char *text)
{
    memset(report, 0, sizeof(*report));
    return tess__report_load_lines(report, "/runs/one", "metrics.jsonl", text, strlen(text));
}

/* The note about a line, or "". */
static const char *note_of(const struct tess__report *report, size_t line)
{
    for (size_t i = 0; i < report->note_count; i++)
        if (report->note[i].line == line)
            return report->note[i].text;
    return "";
}

/* ---- metrics.jsonl --------------------------------------------------------------------------- */

static void case_whole(void **state)
{
    struct tess__report report;
    const struct tess__report_run *run;

    (void)state;
    assert_int_equal(load(&report, HEAD STEP(1, 2.5) STEP(2, 2) EPOCH TIMES TIMES FINAL), TESS_OK);
    assert_int_equal(report.note_count, 0);
    assert_int_equal(report.run_count, 1);
    run = &report.run[0];
    assert_string_equal(run->model, "mlp");
    assert_string_equal(run->precision, "f32");
    assert_true(run->batch == 128 && run->rate == 0.05 && run->ranks == 2);
    assert_int_equal(run->step.count, 2);
    assert_true(tess__row(&run->step, 1, TESS__STEP_LOSS) == 2);
    assert_true(isnan(tess__row(&run->step, 1, TESS__STEP_SCALE)));
    assert_int_equal(run->epoch.count, 1);
    assert_true(tess__row(&run->epoch, 0, TESS__EPOCH_ACCURACY) == 0.75);
    /* Two epochs' times are added, rank by rank. */
    assert_int_equal(run->times.count, 2);
    assert_true(tess__row(&run->times, 1, TESS__TIME_FORWARD) == 8);
    assert_true(isnan(tess__row(&run->times, 1, TESS__TIME_HIDDEN)));
    assert_int_equal(run->memory_count, 2);
    assert_true(run->memory[0].kind[TESS_MEMORY_INPUT] == 28);
    assert_true(run->memory[1].kind[TESS_MEMORY_PARAMETER] == 100);
    assert_int_equal(tess__report_state(run), TESS__REPORT_FINISHED);
    tess__report_close(&report);
}

/* Evaluations within an epoch lie between its ends: after 1 of 4 steps a quarter is done. */
static void case_validation(void **state)
{
    struct tess__report report;
    const struct tess__rows *rows = NULL;

    (void)state;
    assert_int_equal(load(&report,
                          "{\"run\":{\"steps_per_epoch\":4}}\n"
                          "{\"validation\":{\"step\":1,\"epoch\":0,\"val_loss\":1.75}}\n" EPOCH
                          "{\"validation\":3}\n"),
                     TESS_OK);
    rows = &report.run[0].epoch;
    assert_int_equal(rows->count, 2);
    assert_true(tess__row(rows, 0, TESS__EPOCH) == -0.75);
    assert_true(tess__row(rows, 0, TESS__EPOCH_LOSS) == 1.75);
    /* The run ended after 2 of 4 steps. */
    assert_true(tess__row(rows, 1, TESS__EPOCH) == -0.5);
    assert_int_equal(report.note_count, 1);
    assert_non_null(strstr(note_of(&report, 4), "not an object"));
    tess__report_close(&report);
    assert_int_equal(load(&report, "{\"run\":{\"steps_per_epoch\":2}}\n" EPOCH), TESS_OK);
    assert_true(tess__row(&report.run[0].epoch, 0, TESS__EPOCH) == 0);
    tess__report_close(&report);
    /* Without steps of an epoch there is no place for it. */
    assert_int_equal(
        load(&report, "{\"validation\":{\"step\":1,\"epoch\":0,\"val_loss\":1}}\n" EPOCH), TESS_OK);
    assert_int_equal(report.run[0].epoch.count, 1);
    tess__report_close(&report);
}

/* Samples of two devices, one of which has no power meter. */
static void case_devices(void **state)
{
    struct tess__report report;
    const struct tess__rows *device;

    (void)state;
    assert_int_equal(
        load(&report,
             HEAD "{\"kind\":\"device\",\"device\":0,\"elapsed_s\":1.5,\"gpu_percent\":97,"
                  "\"memory_used_bytes\":1073741824,\"power_w\":650.5}\n"
                  "{\"kind\":\"device\",\"device\":1,\"elapsed_s\":1.5,\"gpu_percent\":null,"
                  "\"power_w\":null}\n" STEP(1, 2)),
        TESS_OK);
    device = &report.run[0].device;
    assert_int_equal(report.note_count, 0);
    assert_int_equal(device->count, 2);
    assert_int_equal(report.run[0].step.count, 1);
    assert_true(tess__row(device, 0, TESS__DEVICE_BUSY) == 97);
    assert_true(tess__row(device, 0, TESS__DEVICE_MEMORY) == 1073741824);
    assert_true(tess__row(device, 1, TESS__DEVICE_NUMBER) == 1);
    assert_true(isnan(tess__row(device, 1, TESS__DEVICE_POWER)));
    tess__report_close(&report);
}

static void case_states(void **state)
{
    static const struct {
        const char *text;
        enum tess__report_state state;
    } cases[] = {
        {HEAD, TESS__REPORT_CUT_SHORT},
        {HEAD STEP(1, 2), TESS__REPORT_CUT_SHORT},
        {HEAD STEP(1, 2) STEP(2, null) STEP(3, null), TESS__REPORT_FAILED},
        /* A loss that came back was an overflow under loss scaling. */
        {HEAD STEP(1, null) STEP(2, 2) FINAL, TESS__REPORT_FINISHED},
        {HEAD STEP(1, 2) "{\"final\":{\"loss\":null}}\n", TESS__REPORT_FAILED},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tess__report report;

        assert_int_equal(load(&report, cases[i].text), TESS_OK);
        assert_int_equal(tess__report_state(&report.run[0]), cases[i].state);
        if (cases[i].state == TESS__REPORT_FAILED && report.run[0].step.count == 3)
            assert_true(report.run[0].failed_step == 2);
        tess__report_close(&report);
    }
}

static void case_damaged_lines(void **state)
{
    static const struct {
        const char *line, *note;
    } cases[] = {
        {"{\"step\":2,\"loss\":\"low\"}", "loss is not a number"},
        {"{\"step\":2,\"loss\":-1}", "is out of range"},
        {"{\"step\":2,\"loss\":1e300}", "is out of range"},
        {"{\"step\":2,\"loss\":1e999}", "not JSON"},
        {"{\"step\":2,\"loss\":NaN}", "not JSON"},
        {"{\"step\":true,\"loss\":1}", "step is not a number"},
        {"{\"step\":null,\"loss\":1}", "without \"step\""},
        {"[1, 2, 3]", "not an object"},
        {"\"step\"", "not JSON"},
        {"{\"step\":2,", "not JSON"},
        {"{\"step\":2} {\"step\":3}", "not JSON"},
        {"{\"step\":2,\"loss\":1,\"x\":\"\xff\xfe\"}", "not JSON"},
        {"{\"step\":2,\"loss\":1,\"x\":\"\\u0000\"}", "not JSON"},
        {"{\"run\":7}", "\"run\" is not an object"},
        {"{\"run\":{\"options\":[]}}", "a run begins here"},
        {"{\"final\":[]}", "\"final\" is not an object"},
        {"{\"final\":{\"hash\":5}}", "hash is not text"},
        {"{\"final\":{\"memory\":[7]}}", "memory of a rank"},
        {"{\"final\":{\"memory\":[{\"rank\":0,\"allocated\":{\"parameter\":\"x\"}}]}}",
         "parameter is not a number"},
        {"{\"times\":{\"ranks\":[5]}}", "not an object"},
        {"{\"times\":{\"ranks\":[{\"data_s\":1}]}}", "without \"rank\""},
        {"{\"epoch\":\"first\",\"val_loss\":1}", "epoch is not a number"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tess__report report;
        char text[1024];

        snprintf(text, sizeof(text), "%s%s\n%s", HEAD, cases[i].line, STEP(3, 1));
        assert_int_equal(load(&report, text), TESS_OK);
        if (strstr(note_of(&report, 2), cases[i].note) == NULL)
            fail_msg("%s: the note is '%s'", cases[i].line, note_of(&report, 2));
        assert_string_equal(report.note[0].file, "metrics.jsonl");
        /* The line behind is read all the same. */
        assert_true(report.run[0].step.count >= 1);
        assert_true(tess__row(&report.run[0].step, report.run[0].step.count - 1, TESS__STEP) == 3);
        tess__report_close(&report);
    }
}

/* Cut at any byte: the whole lines are there, and at most the last one is missed, with a note. */
static void case_cut_anywhere(void **state)
{
    static const char whole[] = HEAD STEP(1, 2.5) STEP(2, 2) EPOCH TIMES FINAL;

    (void)state;
    for (size_t bytes = 0; bytes < sizeof(whole); bytes++) {
        struct tess__report report;
        char text[sizeof(whole)] = {0};
        size_t lines = 0, objects;
        enum tess_status status;

        memcpy(text, whole, bytes);
        for (size_t i = 0; i < bytes; i++)
            lines += text[i] == '\n';
        status = load(&report, text);
        if (bytes == 0 || (lines == 0 && status != TESS_OK)) {
            assert_int_equal(status, TESS_ERR_DATA);
            tess__report_close(&report);
            continue;
        }
        assert_int_equal(status, TESS_OK);
        objects = (report.run[0].model != NULL) + report.run[0].step.count +
                  report.run[0].epoch.count + (report.run[0].times.count > 0) + report.run[0].final;
        /* Without its line end the last line may be whole. */
        assert_in_range(objects, lines, lines + 1);
        assert_int_equal(report.note_count, text[bytes - 1] == '\n' || objects > lines ? 0 : 1);
        if (report.note_count == 1)
            assert_non_null(strstr(note_of(&report, lines + 1), "ends within this line"));
        tess__report_close(&report);
    }
}

/* Bytes changed at random: whatever comes of it, it is no crash (the sanitizers look on). */
static void case_random_damage(void **state)
{
    static const char whole[] = HEAD STEP(1, 2.5) STEP(2, 2) EPOCH TIMES FINAL;
    static const char spice[] = "{}[]\",:0e-9\n\\ntfu\xff ";
    uint32_t random = 12345;

    (void)state;
    for (int round = 0; round < 3000; round++) {
        struct tess__report report;
        char text[sizeof(whole)];
        enum tess_status status;

        memcpy(text, whole, sizeof(text));
        for (int change = 0; change <= round % 8; change++) {
            random = random * 1664525u + 1013904223u;
            text[(random >> 8) % (sizeof(text) - 1)] = spice[random % (sizeof(spice) - 1)];
        }
        status = load(&report, text);
        assert_true(status == TESS_OK || status == TESS_ERR_DATA);
        tess__report_close(&report);
    }
}

static void case_many_notes(void **state)
{
    struct tess__report report;
    static char text[64 * 1000];
    size_t used = 0;

    (void)state;
    memset(&report, 0, sizeof(report));
    used += (size_t)snprintf(text + used, sizeof(text) - used, "%s", HEAD);
    for (int i = 0; i < 1000; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "garbage %d\n", i);
    assert_int_equal(tess__report_load_lines(&report, "run", "file", text, used), TESS_OK);
    tess__report_notes_end(&report, "file");
    assert_in_range(report.note_count, 2, 50);
    assert_string_equal(report.note[report.note_count - 1].text, "and 980 more of this kind");
    tess__report_close(&report);
}

/* ---- documents ------------------------------------------------------------------------------- */

static enum tess_status load_document(struct tess__report *report, const char *text, bool *known)
{
    json_t *document = json_loads(text, JSON_DECODE_INT_AS_REAL, NULL);
    enum tess_status status;

    assert_non_null(document);
    memset(report, 0, sizeof(*report));
    status = tess__report_load_document(report, "file.json", document, known);
    json_decref(document);
    return status;
}

static void case_documents(void **state)
{
    static const struct {
        const char *text;
        enum tess_status status;
        bool known;
        size_t runs, scalings, tunes, notes, plans;
    } cases[] = {
        {"{\"runs\":[{\"strategy\":\"ddp\",\"memory\":[]},{\"name\":\"both\",\"goal\":\"g\"}]}",
         TESS_OK, true, 2, 0, 0, 0, 0},
        {"{\"runs\":[5,{\"strategy\":7}]}", TESS_OK, true, 1, 0, 0, 2, 0},
        {"{\"runs\":[]}", TESS_ERR_DATA, true, 0, 0, 0, 0, 0},
        {"{\"runs\":{}}", TESS_OK, false, 0, 0, 0, 0, 0},
        {"{\"scaling\":{\"measured\":[{\"ranks\":1},{\"step_s\":1},[]],\"amdahl_p\":-2,"
         "\"predicted\":[{\"link\":\"l\",\"points\":[{\"ranks\":2}]},{\"points\":5},7]}}",
         TESS_OK, true, 0, 1, 0, 4, 0},
        {"{\"scaling\":{}}", TESS_ERR_DATA, true, 0, 1, 0, 0, 0},
        {"{\"scaling\":{\"measured\":\"all\",\"predicted\":{},\"ring\":null,\"links\":3}}",
         TESS_ERR_DATA, true, 0, 1, 0, 0, 0},
        {"{\"tune\":{\"cases\":[{\"batch_size\":16,\"samples_per_s\":null},{\"batch_size\":-1}]}}",
         TESS_OK, true, 0, 0, 1, 2, 0},
        {"{\"tune\":{\"cases\":[]}}", TESS_ERR_DATA, true, 0, 0, 1, 0, 0},
        {"{\"layouts\":[{\"name\":\"a\",\"step_s\":1,\"mesh\":{\"data\":-2},\"memory\":{\"master\":"
         "\"x\"}},"
         "{\"name\":\"b\"},{\"step_s\":2},7]}",
         TESS_OK, true, 0, 0, 0, 5, 1},
        {"{\"layouts\":[]}", TESS_ERR_DATA, true, 0, 0, 0, 0, 0},
        {"{\"other\":1}", TESS_OK, false, 0, 0, 0, 0, 0},
        {"[]", TESS_OK, false, 0, 0, 0, 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tess__report report;
        bool known = false;

        assert_int_equal(load_document(&report, cases[i].text, &known), cases[i].status);
        if (report.note_count != cases[i].notes)
            fail_msg("%s: %zu notes", cases[i].text, report.note_count);
        assert_int_equal(known, cases[i].known);
        assert_int_equal(report.run_count, cases[i].runs);
        assert_int_equal(report.scaling_count, cases[i].scalings);
        assert_int_equal(report.tune_count, cases[i].tunes);
        assert_int_equal(report.plan_count, cases[i].plans);
        tess__report_close(&report);
    }
}

/* Layouts of one mesh differ in their labels, too. */
static void case_layout_labels(void **state)
{
    static const char text[] =
        "{\"layouts\":[{\"name\":\"a\",\"step_s\":1,\"strategy\":\"fsdp\",\"mesh\":{\"data\":8,"
        "\"tensor\":2,\"stage\":4},\"options\":{\"accumulate\":8,\"recompute\":\"selective\","
        "\"tensor.sequence-parallel\":true,\"schedule\":\"interleaved\",\"chunks\":4,"
        "\"precision\":\"bf16\",\"fsdp.reshard-after-forward\":\"off\"}},"
        "{\"name\":\"b\",\"step_s\":2,\"strategy\":\"ddp\",\"mesh\":{\"data\":8,\"tensor\":1,"
        "\"stage\":1},\"options\":{\"accumulate\":1,\"recompute\":\"none\","
        "\"tensor.sequence-parallel\":false,\"chunks\":1,\"ddp.bucket-mib\":\"100\"}}]}";
    struct tess__report report;
    bool known = false;

    (void)state;
    assert_int_equal(load_document(&report, text, &known), TESS_OK);
    assert_int_equal(report.plan_count, 1);
    assert_string_equal(report.plan[0].layout[0].label, "1. fsdp 8x2x4 8mb sel. sp 4ch bf16 kept");
    assert_string_equal(report.plan[0].layout[1].label, "2. ddp 8x1x1 1mb 100MiB");
    tess__report_close(&report);
}

/* ---- names ----------------------------------------------------------------------------------- */

static void case_names(void **state)
{
    static const char *const paths[] = {"/a/run10",    "/a/run2/", "/b/run2", "/c/d/e/same",
                                        "/c/d/e/same", "/",        "/a/last"};
    static const char *const names[] = {"a/last", "a/run2", "b/run2",  "run",
                                        "run10",  "same",   "same (2)"};
    struct tess__report report = {0};
    struct tess__report_run *run;

    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        assert_int_equal(tess__report_add_run(&report, paths[i], &run), TESS_OK);
    assert_int_equal(tess__report_add_run(&report, "compare.json/last", &run), TESS_OK);
    run->compared = true;
    tess__report_name_runs(&report);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        bool found = false;
        for (size_t j = 0; j < report.run_count; j++)
            found = found || strcmp(report.run[j].name, names[i]) == 0;
        if (!found)
            fail_msg("no run is named %s", names[i]);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(report.run[j].name, report.run[i].name);
    }
    /* Those of compare come last; numbers in names are read as numbers. */
    assert_string_equal(report.run[report.run_count - 1].name, "compare.json/last");
    assert_true(report.run[1].name[2] == 'r' && report.run[1].compared == false);
    tess__report_close(&report);
}

/* ---- text ------------------------------------------------------------------------------------ */

#define ODD "\xEF\xBF\xBD"

static void case_escape(void **state)
{
    static const struct {
        const char *text, *html;
    } cases[] = {
        {"<script>&\"'</script>", "&lt;script&gt;&amp;&quot;&#39;&lt;/script&gt;"},
        {"gr\xC3\xBC\xC3\x9F\x65 \xF0\x9F\x98\x80", "gr\xC3\xBC\xC3\x9F\x65 \xF0\x9F\x98\x80"},
        {"a\x01\x7F\x1B[31m", "a" ODD ODD ODD "[31m"},
        {"\xE2\x80\xAEtxt", ODD "txt"},               /* right to left */
        {"\xC0\xBC\x3C", ODD ODD "&lt;"},             /* '<' in two bytes */
        {"\xE0\x80\xBC", ODD ODD ODD},                /* and in three */
        {"\xE2\x82", ODD ODD},                        /* ends within a character */
        {"\xED\xA0\x80", ODD ODD ODD},                /* half of a pair */
        {"\xF5\x80\x80\x80\xFF", ODD ODD ODD ODD ODD} /* beyond Unicode */
    };
    struct tess__html html = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        html.count = 0;
        tess__html_escape(&html, cases[i].text);
        assert_string_equal(html.bytes, cases[i].html);
    }
    html.count = 0;
    tess__html_escape_short(&html, "abcdefghij<>", 7);
    assert_string_equal(html.bytes, "abc\xE2\x80\xA6j&lt;&gt;");
    assert_int_equal(tess__html_length("gr\xC3\xBC\xC3\x9F\x65", 100), 5);
    tess__html_close(&html);
}

static void case_numbers(void **state)
{
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0, "0"},
        {0.05, "0.05000"},
        {2.31002, "2.310"},
        {123.456, "123.5"},
        {22000, "22\xE2\x80\xAF"
                "000"},
        {1234567, "1\xE2\x80\xAF"
                  "234\xE2\x80\xAF"
                  "567"},
        {1.7e-6, "1.70e-06"},
        {1e100, "1.000e+100"},
    };
    char text[TESS__REAL_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_string_equal(tess__real(cases[i].value, text), cases[i].text);
    assert_string_equal(tess__real(NAN, text), "\xE2\x80\x93");
    assert_string_equal(tess__real_fixed(1e11, 4, text), "100\xE2\x80\xAF"
                                                         "000\xE2\x80\xAF"
                                                         "000\xE2\x80\xAF"
                                                         "000.0000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_whole),         cmocka_unit_test(case_validation),
        cmocka_unit_test(case_devices),       cmocka_unit_test(case_states),
        cmocka_unit_test(case_damaged_lines), cmocka_unit_test(case_cut_anywhere),
        cmocka_unit_test(case_random_damage), cmocka_unit_test(case_many_notes),
        cmocka_unit_test(case_documents),     cmocka_unit_test(case_names),
        cmocka_unit_test(case_escape),        cmocka_unit_test(case_numbers),
        cmocka_unit_test(case_layout_labels),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
