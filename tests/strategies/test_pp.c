/* The stage axis: what options of `pp` go together, where it cuts, and what it prints of itself. */
#include "pipe.h"

#include "tessera/log.h"
#include "tessera/registry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct pp_values {
    int32_t schedule;
    int64_t stages, chunks;
};

static const struct tess_strategy_ops *pp_ops(void)
{
    const struct tess_strategy_ops *ops;
    assert_int_equal(tess_registry_get_strategy("pp", &ops), TESS_OK);
    assert_int_equal(ops->options_size, sizeof(struct pp_values));
    assert_int_equal(ops->axis, TESS_AXIS_STAGE);
    return ops;
}

static void pp_refused(struct pp_values options, int32_t ranks, int32_t accumulate, const char *why)
{
    assert_int_equal(pp_ops()->check(&options, ranks, accumulate), TESS_ERR_USAGE);
    if (strstr(tess_log_last_error(), why) == NULL)
        print_error("expected '%s' in '%s'\n", why, tess_log_last_error());
    assert_non_null(strstr(tess_log_last_error(), why));
}

static void test_pp_check(void **state)
{
    const struct tess_strategy_ops *ops = pp_ops();
    const struct pp_values gpipe = {TESS_PIPE_GPIPE, 0, 0}, f1b1 = {TESS_PIPE_1F1B, 4, 1};
    const struct pp_values looped = {TESS_PIPE_INTERLEAVED, 0, 0};
    (void)state;
    assert_int_equal(ops->check(&gpipe, 8, 3), TESS_OK);
    assert_int_equal(ops->check(&f1b1, 4, 1), TESS_OK); /* idle most of the time, but right */
    assert_int_equal(ops->check(&looped, 4, 8), TESS_OK);
    assert_int_equal(ops->chunk_count(&gpipe), 1);
    assert_int_equal(ops->chunk_count(&looped), 2);
    assert_int_equal(ops->chunk_count(&(struct pp_values){TESS_PIPE_INTERLEAVED, 0, 3}), 3);
    assert_int_equal(ops->wanted_ranks(&gpipe), 0);
    assert_int_equal(ops->wanted_ranks(&f1b1), 4);
    pp_refused(f1b1, 2, 4, "--pp.stages 4, and there are 2 ranks");
    pp_refused((struct pp_values){TESS_PIPE_1F1B, 0, 2}, 2, 4, "use --pp.schedule interleaved, or");
    pp_refused((struct pp_values){TESS_PIPE_GPIPE, 0, 3}, 2, 4, "--pp.chunks 1");
    pp_refused((struct pp_values){TESS_PIPE_INTERLEAVED, 0, 1}, 2, 4, "use --pp.chunks 2");
    pp_refused(looped, 1, 4, "two stages or more");
    pp_refused(looped, 4, 6, "use --accumulate 4 or 8, or");
    pp_refused(looped, 4, 3, "use --accumulate 4, or");
}

/* The words of --pp.schedule stand in the order of the schedules. */
static void test_pp_choices(void **state)
{
    const struct tess_option *option = pp_ops()->options;
    char words[64];
    (void)state;
    snprintf(words, sizeof(words), "%s|%s|%s", tess__pipe_schedule_name(TESS_PIPE_GPIPE),
             tess__pipe_schedule_name(TESS_PIPE_1F1B),
             tess__pipe_schedule_name(TESS_PIPE_INTERLEAVED));
    assert_string_equal(option[0].choices, words);
}

static void test_pp_order(void **state)
{
    const struct pp_values looped = {TESS_PIPE_INTERLEAVED, 0, 0};
    const struct tess_pipe pipe = {TESS_PIPE_INTERLEAVED, 2, 2, 4};
    struct tess_action expected[16], mine[16];
    (void)state;
    for (int32_t s = 0; s < 2; s++) {
        tess__pipe_order(&pipe, s, expected);
        assert_int_equal(pp_ops()->order(&looped, s, 2, 4, mine), TESS_OK);
        assert_memory_equal(mine, expected, sizeof(mine));
    }
    assert_int_equal(pp_ops()->order(&looped, 0, 2, 3, mine), TESS_ERR_USAGE);
}

/* Three units of nine on a stage are the least work; of all such cuts the best is the one that
 * spares the first stages, which hold four and three micro-batches' activations. Too many stages
 * are refused. */
static void test_pp_cut(void **state)
{
    const struct pp_values f1b1 = {TESS_PIPE_1F1B, 0, 0}, looped = {TESS_PIPE_INTERLEAVED, 0, 0};
    struct tess_unit_cost cost[9];
    int32_t first[10];
    (void)state;
    for (int32_t u = 0; u < 9; u++)
        cost[u] = (struct tess_unit_cost){1, 10, 10};
    static const int32_t nine[] = {0, 1, 3, 6, 9}; /* bytes 50, 80, 90, 60 */
    assert_int_equal(pp_ops()->cut(&f1b1, cost, 9, 4, first), TESS_OK);
    assert_memory_equal(first, nine, sizeof(nine));
    cost[8].work = 4; /* a head that weighs as much as four */
    static const int32_t head[] = {0, 2, 5, 8, 9};
    assert_int_equal(pp_ops()->cut(&f1b1, cost, 9, 4, first), TESS_OK);
    assert_memory_equal(first, head, sizeof(head));
    assert_int_equal(pp_ops()->cut(&looped, cost, 9, 4, first), TESS_OK);
    assert_int_equal(first[4], 9);
    assert_int_equal(pp_ops()->cut(&f1b1, cost, 3, 4, first), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "use 3 stages or fewer"));
    assert_null(strstr(tess_log_last_error(), "chunks ("));
    assert_int_equal(pp_ops()->cut(&looped, cost, 9, 10, first), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "5 x 2"));
    assert_non_null(strstr(tess_log_last_error(), "use 4 stages or fewer, or fewer chunks"));
}

static void pp_line(void *context, const char *text)
{
    char *all = context;
    snprintf(all + strlen(all), 1024 - strlen(all), "%s\n", text);
}

static void test_pp_describe(void **state)
{
    const struct pp_values looped = {TESS_PIPE_INTERLEAVED, 0, 0}, gpipe = {TESS_PIPE_GPIPE, 0, 0};
    struct tess_plan plan = {.mesh = {.at = {0, 0, 1}, .count = {1, 1, 2}}, .accumulate = 4};
    const struct tess_strategy strategy = {.plan = &plan, .options = &looped};
    char text[1024] = "";
    (void)state;
    pp_ops()->describe(&strategy, pp_line, text);
    assert_non_null(strstr(text, "interleaved: 2 stages of 2 chunks, 4 micro-batches"));
    assert_non_null(strstr(text, "equal time: 11.1 %\n")); /* 1 / (2 x 4 + 1) */
    const struct tess_strategy few = {.plan = &plan, .options = &gpipe};
    plan.mesh.count[TESS_AXIS_STAGE] = 8;
    text[0] = '\0';
    pp_ops()->describe(&few, pp_line, text);
    assert_non_null(strstr(text, "63.6 %; there are fewer micro-batches")); /* 7 / 11 */
}

/* The formula where nothing is known of the stages; on stages of equal time the pipeline in virtual
 * time agrees with it, and a slow stage keeps the others waiting. */
static void test_pp_idle_share(void **state)
{
    static const double equal[4] = {1, 1, 1, 1}, twice[4] = {2, 2, 2, 2}, slow[4] = {1, 1, 3, 1};
    const struct pp_values f1b1 = {TESS_PIPE_1F1B, 0, 0}, looped = {TESS_PIPE_INTERLEAVED, 0, 0};
    double formula = 0, share = 0;
    (void)state;
    assert_int_equal(pp_ops()->idle_share(&f1b1, 4, 8, NULL, NULL, &formula), TESS_OK);
    assert_true(fabs(formula - 3.0 / 11) < 1e-12);
    assert_int_equal(pp_ops()->idle_share(&f1b1, 4, 8, equal, twice, &share), TESS_OK);
    assert_true(fabs(share - formula) < 1e-12);
    assert_int_equal(pp_ops()->idle_share(&f1b1, 4, 8, slow, slow, &share), TESS_OK);
    assert_true(share > formula + 0.1);
    /* Two stages of two chunks: 1 / (2 x 4 + 1). */
    assert_int_equal(pp_ops()->idle_share(&looped, 2, 4, NULL, NULL, &formula), TESS_OK);
    assert_true(fabs(formula - 1.0 / 9) < 1e-12);
    assert_int_equal(pp_ops()->idle_share(&looped, 2, 4, equal, equal, &share), TESS_OK);
    assert_true(fabs(share - formula) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pp_check),    cmocka_unit_test(test_pp_choices),
        cmocka_unit_test(test_pp_order),    cmocka_unit_test(test_pp_cut),
        cmocka_unit_test(test_pp_describe), cmocka_unit_test(test_pp_idle_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
