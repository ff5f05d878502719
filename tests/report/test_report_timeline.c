/*
 * Time lines as a report reads them: which step is chosen, what of it is kept and what it adds up
 * to; and that damaged, hostile and cut files keep what is whole and report what is not.
 */
#include "report/report_data.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* clang-format off */
#define EVENT(rank, step, begin, length, category, name, more)                                     \
    "{\"name\":\"" name "\",\"cat\":\"" category "\",\"ph\":\"X\",\"pid\":" #rank                  \
    ",\"tid\":1,\"ts\":" #begin ",\"dur\":" #length ",\"args\":{\"step\":" #step more "}}"
#define STEP(rank, step, begin, length) EVENT(rank, step, begin, length, "step", "step " #step, "")
#define CUT(step, begin, length)                                                                   \
    EVENT(0, step, begin, length, "step", "step " #step, ",\"unfinished\":true")
#define MEMORY(rank, at, name, bytes)                                                              \
    "{\"name\":\"" name "\",\"ph\":\"C\",\"pid\":" #rank ",\"ts\":" #at ",\"args\":{" bytes "}}"
#define HEAD                                                                                       \
    "{\"otherData\":{\"model\":\"cnn\",\"strategy\":\"ddp\"},\n"                                   \
    "\"traceEvents\":["
#define TAIL "\n]}\n"

/* Step 2 has the median length; a call reaches into it, one out of it, and step 3 is not in it. */
#define WHOLE                                                                                      \
    HEAD "\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0},\n"                                 \
    STEP(0, 1, 0, 90000) ",\n"                                                                     \
    STEP(0, 2, 100000, 10000) ",\n"                                                                \
    STEP(0, 3, 120000, 100) ",\n"                                                                  \
    EVENT(0, 1, 90000, 12000, "communication", "all_gather", ",\"bytes\":8") ",\n"                 \
    EVENT(0, 2, 100000, 6000, "compute", "forward a", "") ",\n"                                    \
    EVENT(0, 2, 106000, 2000, "compute", "backward a", "") ",\n"                                   \
    EVENT(0, 2, 107000, 9000, "communication", "all_reduce", ",\"site\":\"ddp.c:93\"") ",\n"       \
    EVENT(0, 2, 108000, 2000, "compute", "gradients", "") ",\n"                                    \
    EVENT(0, 2, 108500, 500, "waiting", "all_reduce", "") ",\n"                                    \
    MEMORY(0, 0, "memory of the arena", "\"parameter\":64,\"activation\":300") ",\n"               \
    MEMORY(0, 100000, "memory in use", "\"parameter\":64,\"activation\":0,\"else\":7") ",\n"       \
    MEMORY(0, 106000, "memory in use", "\"parameter\":64,\"activation of a pass\":200") ",\n"      \
    EVENT(0, 3, 120000, 50, "compute", "forward a", "") TAIL
#define DAMAGED_MEMORY                                                                             \
    HEAD STEP(0, 1, 0, 1000) ",\n"                                                                 \
    MEMORY(0, 10, "memory in use", "\"gradient\":5") ",\n"                                         \
    MEMORY(0, 5, "memory in use", "\"gradient\":6") ",\n"                                          \
    MEMORY(0, 20, "memory in use", "\"gradient\":-7,\"bucket\":\"8\",\"input\":9") ",\n"           \
    MEMORY(-1, 30, "memory in use", "\"gradient\":1") ",\n"                                        \
    MEMORY(0, 99999999999999999999, "memory in use", "") ",\n"                                     \
    "{\"name\":\"memory in use\",\"ph\":\"C\",\"pid\":0,\"ts\":40,\"args\":[1]}" TAIL
/* clang-format on */

static enum tess_status load(struct tess__report *report, const char *text, size_t bytes)
{
    bool known = false;
    enum tess_status status;

    memset(report, 0, sizeof(*report));
    status = tess__report_load_timeline(report, "trace.json", text, bytes, &known);
    assert_true(known);
    return status;
}

static void case_whole(void **state)
{
    struct tess__report report;
    const struct tess__report_timeline *timeline;
    const struct tess__report_lane *lane;
    struct tess__lane_sums sums;

    (void)state;
    assert_int_equal(load(&report, WHOLE, strlen(WHOLE)), TESS_OK);
    assert_int_equal(report.note_count, 0);
    assert_int_equal(report.timeline_count, 1);
    timeline = &report.timeline[0];
    assert_string_equal(timeline->model, "cnn");
    assert_string_equal(timeline->strategy, "ddp");
    assert_true(timeline->step == 2 && timeline->length == 10);
    assert_int_equal(timeline->step_count, 3);
    assert_int_equal(timeline->lane_count, 1);
    lane = &timeline->lane[0];
    assert_int_equal(lane->span_count, 6);
    assert_int_equal(lane->span[0].work, TESS__WORK_CALL);
    assert_true(lane->span[0].begin == 0 && lane->span[0].end == 2 && lane->span[0].bytes == 8);
    assert_int_equal(lane->span[1].work, TESS__WORK_FORWARD);
    assert_int_equal(lane->span[2].work, TESS__WORK_BACKWARD);
    assert_true(lane->span[3].begin == 7 && lane->span[3].end == 10);
    assert_string_equal(lane->span[3].site, "ddp.c:93");
    assert_int_equal(lane->span[4].work, TESS__WORK_GRADIENTS);
    assert_int_equal(lane->span[5].work, TESS__WORK_WAITING);
    sums = tess__report_lane_sums(&report, lane);
    /* 0..2 and 7..10; all behind computation but 8.5..9. */
    assert_true(sums.calls == 5 && sums.hidden == 4.5 && sums.waiting == 0.5);
    assert_true(sums.backward_end == 8);
    assert_int_equal(timeline->live_count, 1);
    const struct tess__report_live *live = &timeline->live[0];
    assert_true(live->reserved[TESS_MEMORY_PARAMETER] == 64 && live->moment_count == 2);
    assert_true(live->moment[0].at == 0 && live->moment[1].at == 6);
    assert_true(live->moment[1].bytes[tess__report_live_series("activation of a pass")] == 200);
    tess__report_close(&report);
}

/* Memory before the moment before it, of no rank, of negative size: left out, and the rest stays.
 */
static void case_damaged_memory(void **state)
{
    static const char text[] = DAMAGED_MEMORY;
    struct tess__report report;
    (void)state;
    assert_int_equal(load(&report, text, strlen(text)), TESS_OK);
    assert_true(report.note_count > 0);
    assert_int_equal(report.timeline[0].live_count > 0, 1);
    const struct tess__report_live *live = &report.timeline[0].live[0];
    assert_true(live->rank == 0 && live->moment_count >= 2);
    assert_true(live->moment[0].bytes[TESS_MEMORY_GRADIENT] == 5);
    assert_true(live->moment[1].at == 0.02 && live->moment[1].bytes[TESS_MEMORY_GRADIENT] == 0);
    assert_true(live->moment[1].bytes[TESS_MEMORY_BUCKET] == 0);
    assert_true(live->moment[1].bytes[TESS_MEMORY_INPUT] == 9);
    tess__report_close(&report);
}

/* Overlaps count once, and what no computation goes on beside is not hidden. */
static void case_sums(void **state)
{
    struct tess__report_span span[] = {
        {.work = TESS__WORK_CALL, .begin = 1, .end = 5},
        {.work = TESS__WORK_CALL, .begin = 2, .end = 3},
        {.work = TESS__WORK_CALL, .begin = 4, .end = 8},
        {.work = TESS__WORK_FORWARD, .begin = 0, .end = 4},
        {.work = TESS__WORK_WAITING, .begin = 3, .end = 6},
        {.work = TESS__WORK_OPTIMIZER, .begin = 7, .end = 9},
    };
    struct tess__report_lane lane = {.span = span, .span_count = sizeof(span) / sizeof(span[0])};
    struct tess__report report = {0};
    struct tess__lane_sums sums;

    (void)state;
    sums = tess__report_lane_sums(&report, &lane);
    assert_true(sums.calls == 7 && sums.waiting == 3);
    assert_true(sums.hidden == 3); /* 1..3 and 7..8 */
    assert_true(isnan(sums.backward_end));
    lane.span_count = 0;
    sums = tess__report_lane_sums(&report, &lane);
    assert_true(sums.calls == 0 && sums.hidden == 0);
    tess__report_close(&report);
}

static void case_choice(void **state)
{
    static const struct {
        const char *text;
        double step, length;
        bool unfinished;
    } cases[] = {
        /* clang-format off */
        {HEAD STEP(0, 4, 0, 1000) TAIL, 4, 1, false},
        /* Of two the shorter one; a step is as long as from its first begin to its last end. */
        {HEAD STEP(0, 1, 0, 1000) "," STEP(1, 1, 500, 1500) "," STEP(0, 2, 3000, 1900) TAIL,
         2, 1.9, false},
        /* What was not finished is not chosen while there is another. */
        {HEAD CUT(1, 0, 500) "," STEP(0, 2, 3000, 1000) "," STEP(0, 3, 5000, 3000) TAIL,
         2, 1, false},
        {HEAD CUT(1, 0, 500) TAIL, 1, 0.5, true},
        /* Evaluations and steps without a rank, a time or a length are no steps. */
        {HEAD EVENT(0, 1, 0, 9, "step", "evaluation after step 1", "") ","
         STEP(0, 2, 5, 0) "," STEP(0, 3, 0, 1e999) "," STEP(0, 4, -1, 5) ","
         STEP("x", 5, 0, 5) "," STEP(0, null, 0, 5) "," STEP(0, 6, 0, 2000) TAIL, 6, 2, false},
        /* clang-format on */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tess__report report;

        assert_int_equal(load(&report, cases[i].text, strlen(cases[i].text)), TESS_OK);
        assert_true(report.timeline[0].step == cases[i].step);
        assert_true(fabs(report.timeline[0].length - cases[i].length) < 1e-9);
        assert_int_equal(report.timeline[0].unfinished, cases[i].unfinished);
        tess__report_close(&report);
    }
}

static void case_damaged_events(void **state)
{
    static const struct {
        const char *event, *note;
    } cases[] = {
        {"5", "not JSON"},
        {"[1, \"}\"]", "not an object"},
        {"{\"name\":NaN}", "not JSON"},
        {EVENT(0, 1, NaN, 1, "compute", "forward", ""), "not JSON"},
        {EVENT(0, 1, "0", 1, "compute", "forward", ""), "ts is not a number"},
        {EVENT(0, 1, 0, 1e300, "compute", "forward", ""), "out of range"},
        {EVENT(0, 1, 0, 1e90, "compute", "forward", ""), "a valid rank or time"},
        {EVENT(0, 1, 0, -1, "compute", "forward", ""), "out of range"},
        {EVENT(null, 1, 0, 1, "compute", "forward", ""), "without a valid rank"},
        {EVENT(0, 1, 0, 1, "communication", "all_reduce", ",\"bytes\":true"),
         "bytes is not a number"},
        {EVENT(0, 1, 0, 1, "communication", "all_reduce", ",\"site\":[]"), "site is not text"},
        {"{\"name\":\"time line full in step 9\",\"ph\":\"i\"}", "full in step 9"},
    };
    char text[2048];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tess__report report;
        const struct tess__report_lane *lane;

        snprintf(text, sizeof(text), "%s\n%s,\n%s,\n%s%s", HEAD, STEP(0, 1, 0, 1000),
                 cases[i].event, EVENT(0, 1, 0, 500, "compute", "forward b", ""), TAIL);
        assert_int_equal(load(&report, text, strlen(text)), TESS_OK);
        assert_true(report.note_count > 0);
        if (report.note[0].line != 4 || strstr(report.note[0].text, cases[i].note) == NULL)
            if (report.note_count < 2 || strstr(report.note[1].text, cases[i].note) == NULL)
                fail_msg("case %zu: line %zu: %s", i, report.note[0].line, report.note[0].text);
        lane = &report.timeline[0].lane[0];
        assert_string_equal(lane->span[lane->span_count - 1].name, "forward b");
        tess__report_close(&report);
    }
}

/* A file that ends anywhere is read up to there, is no time line, or has no step yet. */
static void case_cut_anywhere(void **state)
{
    size_t all = strlen(WHOLE), drawn = 0;

    (void)state;
    for (size_t bytes = 0; bytes + 2 < all; bytes++) {
        char *text = malloc(bytes + 1); /* of this size, so that a checker sees a read beyond */
        struct tess__report report = {0};
        bool known = false;
        enum tess_status status;

        assert_non_null(text);
        memcpy(text, WHOLE, bytes);
        text[bytes] = '\0';
        status = tess__report_load_timeline(&report, "trace.json", text, bytes, &known);
        assert_true(status == TESS_OK || status == TESS_ERR_DATA);
        if (status == TESS_OK && known && bytes < all - 4) {
            assert_true(report.note_count > 0);
            assert_true(strstr(report.note[report.note_count - 1].text, "ends") != NULL);
            drawn++;
        }
        tess__report_close(&report);
        free(text);
    }
    assert_true(drawn > all / 2);
}

static void case_random_damage(void **state)
{
    static const char signs[] = "{}[]\",:\\x0 -\n";
    size_t bytes = strlen(WHOLE);
    uint64_t random = 1;
    char *text = malloc(bytes + 1);

    (void)state;
    assert_non_null(text);
    for (int round = 0; round < 5000; round++) {
        struct tess__report report = {0};
        bool known;
        enum tess_status status;

        memcpy(text, WHOLE, bytes + 1);
        for (int i = 0; i < 4; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            text[(random >> 33) % bytes] = signs[(random >> 20) % sizeof(signs)];
        }
        status = tess__report_load_timeline(&report, "trace.json", text, bytes, &known);
        assert_true(status == TESS_OK || status == TESS_ERR_DATA);
        for (size_t t = 0; t < report.timeline_count; t++)
            for (int l = 0; l < report.timeline[t].lane_count; l++)
                for (size_t i = 0; i < report.timeline[t].lane[l].span_count; i++) {
                    const struct tess__report_span *span = &report.timeline[t].lane[l].span[i];
                    assert_true(span->begin >= 0 && span->begin <= span->end);
                    assert_true(span->end <= report.timeline[t].length);
                }
        tess__report_close(&report);
    }
    free(text);
}

static void case_not_ours(void **state)
{
    static const char *const other[] = {"",
                                        "[]",
                                        "{\"runs\":[]}",
                                        "{\"traceEvents\":5}",
                                        "{\"a\":{\"traceEvents\":[]}}",
                                        "{\"step\":1}\n{\"traceEvents\":[]}\n",
                                        "{\"a\":\"\\\",\\\"traceEvents\\\":[]"};
    struct tess__report report = {0};
    bool known = true;

    (void)state;
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        assert_int_equal(
            tess__report_load_timeline(&report, "f", other[i], strlen(other[i]), &known), TESS_OK);
        assert_false(known);
    }
    tess__report_close(&report);
    assert_int_equal(load(&report, HEAD TAIL, strlen(HEAD TAIL)), TESS_ERR_DATA);
    tess__report_close(&report);
}

/* More ranks and more events than are shown, and a file that is too large. */
static void case_many(void **state)
{
    const size_t large = ((size_t)64 << 20) + 1;
    struct tess__report report;
    const struct tess__report_timeline *timeline;
    char *text = malloc(large + 1), *at = text;

    (void)state;
    assert_non_null(text);
    at += sprintf(at, "%s", HEAD);
    for (int r = 20; r > 0; r--)
        at += sprintf(at,
                      "{\"name\":\"step 1\",\"cat\":\"step\",\"ph\":\"X\",\"pid\":%d,\"ts\":%d,"
                      "\"dur\":1000,\"args\":{\"step\":1}},",
                      r, r);
    for (int i = 0; i < 2500; i++)
        at += sprintf(at, "%s,", EVENT(1, 1, 1, 2, "compute", "forward", ""));
    at += sprintf(at, "%s", STEP(1, 1, 1, 1000) TAIL);
    assert_int_equal(load(&report, text, (size_t)(at - text)), TESS_OK);
    timeline = &report.timeline[0];
    assert_int_equal(timeline->rank_count, 20);
    assert_int_equal(timeline->lane_count, TESS__TIMELINE_RANKS);
    assert_true(timeline->lane[0].rank == 1 && timeline->lane[7].rank == 8);
    assert_true(fabs(timeline->length - 1.019) < 1e-9);
    assert_int_equal(timeline->lane[0].span_count, 2000);
    assert_int_equal(timeline->lane[0].left_out, 500);
    assert_int_equal(report.note_count, 1);
    tess__report_close(&report);
    memset(at, ' ', (size_t)(text + large - at));
    assert_int_equal(load(&report, text, large), TESS_ERR_DATA);
    tess__report_close(&report);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_damaged_memory), cmocka_unit_test(case_whole),
        cmocka_unit_test(case_sums),           cmocka_unit_test(case_choice),
        cmocka_unit_test(case_damaged_events), cmocka_unit_test(case_cut_anywhere),
        cmocka_unit_test(case_random_damage),  cmocka_unit_test(case_not_ours),
        cmocka_unit_test(case_many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
