/* The communicator over a transport with many ranks: schedules that are as small as they are few.
 */
#include "comm/cases.h"
#include "comm/net/net_path.h"

enum { MANY = 260 };

/* The rounds of an all-to-all of many ranks: each has something for and from every other once. */
static void case_rounds(void **state)
{
    const struct net_shape shape = {7, MANY, 1, MANY};
    const struct tess_comm_call call = {.collective = TESS_COLLECTIVE_ALL_TO_ALL,
                                        .dtype = TESS_F32,
                                        .count = 5,
                                        .peer = -1,
                                        .site = ""};
    int32_t given[MANY] = {0}, taken[MANY] = {0}, copied = 0;
    struct net_plan plan;
    (void)state;
    assert_int_equal(tess__net_plan_open(MANY, &plan), TESS_OK);
    plan.round_count = 1;
    for (int32_t round = 0; round < plan.round_count; round++) {
        tess__net_plan(&shape, &call, round, &plan);
        assert_true(plan.lane_count <= 2 * NET_ROUND);
        for (int32_t l = 0; l < plan.lane_count; l++) {
            const struct net_lane *lane = &plan.lane[l];
            copied += lane->copied ? 1 : 0;
            for (int32_t k = 0; k < lane->move_count; k++)
                (lane->move[k].sends ? given : taken)[lane->move[k].peer]++;
        }
    }
    assert_int_equal(copied, 1);
    for (int32_t r = 0; r < MANY; r++)
        assert_true(given[r] == (r != 7) && taken[r] == (r != 7));
    tess__net_plan_close(&plan);
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_rounds),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
