/*
 * Steps in virtual time against times by hand: products, gathers that are hidden and exposed,
 * idle time of pipelines; that two predictions are the same bits; and what a large model costs.
 */
#include "predict_fixture.h"

#include "core/engine.h"
#include "kernel_open.h"
#include "predict/virtual.h"
#include "tessera/registry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <cmocka.h>

#define FLOPS_PER_S 1e9
#define ENDLESS     1e21 /* bytes/s */

static double stage_exposed(const struct tess_prediction_stage *stage)
{
    double sum = 0;
    for (int group = 0; group < TESS_PREDICT_GROUPS; group++)
        sum += stage->exposed_s[group];
    return sum;
}

static const char *limit_of(const struct tess_prediction *prediction)
{
    static char text[TESS_PREDICT_LIMIT];
    return tess_prediction_limit(&prediction->loss, prediction->step_s, text);
}

/* ---- one rank -------------------------------------------------------------------------------- */

#define MLP "--model mlp --mlp.hidden 64 --batch-size 32 --grid 1 --strategy single --ranks 1 "

/* 36 x 64 forward and its weights' gradient, no gradient by the input; 64 x 5 with it. */
static void test_products(void **state)
{
    static const char *const kernel[] = {"--kernel ref", "--kernel guard_queue"};
    const struct tess_profile profile = fixture_profile(FLOPS_PER_S);
    const double by_hand = 2 * 32.0 * (2 * 36 * 64 + 3 * 64 * 5) / FLOPS_PER_S;
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tess_prediction prediction;
        char options[256];
        snprintf(options, sizeof(options), MLP "%s", kernel[i]);
        fixture_predict(options, &profile, ENDLESS, &prediction);
        fixture_same(prediction.step_s, by_hand);
        fixture_same(prediction.stage[0].product_s, by_hand);
        fixture_same(prediction.flops, by_hand * FLOPS_PER_S);
        fixture_same(prediction.mfu, 1);
        assert_int_equal(prediction.stage_count, 1);
        assert_true(stage_exposed(&prediction.stage[0]) == 0);
        assert_non_null(strstr(limit_of(&prediction), " ms (100 %) of products"));
        tess_prediction_fini(&prediction);
    }
}

/* Where no cache keeps anything, half of what each product touches is fetched while it multiplies.
 */
static void test_fetched(void **state)
{
    struct tess_profile profile = fixture_profile(FLOPS_PER_S);
    struct tess_prediction near, far;
    const double first = 32 * 36 + 36 * 64 + 32 * 64, second = 32 * 64 + 64 * 5 + 32 * 5;
    const double bytes = sizeof(float) * (2 * first + 3 * second);
    (void)state;
    fixture_predict(MLP "--kernel ref", &profile, ENDLESS, &near);
    profile.cache_one = (struct tess_profile_cache){0, 1, 1e-9};
    fixture_predict(MLP "--kernel ref", &profile, ENDLESS, &far);
    fixture_same(far.stage[0].product_s - near.stage[0].product_s, 0.5e-9 * bytes);
    assert_true(far.stage[0].pass_s > near.stage[0].pass_s);
    tess_prediction_fini(&near);
    tess_prediction_fini(&far);
}

/* Stages of this much work, at whose end all meet. On two cores the third one shares the first
 * one's, and no stage takes the second one's when it is idle. A calibrated pipeline that took
 * longer than it does here, 30 by 27 of even turns, makes all longer. */
static void test_turns(void **state)
{
    static const double work_s[3] = {3, 2, 3}, step_s[2][3] = {{3, 5, 8}, {3, 3, 6}};
    struct tess_profile profile = fixture_profile(FLOPS_PER_S);
    struct virtual_rank rank[3] = {{.stage = 0}};
    struct virtual_world world = {.profile = &profile, .near = 3, .alike = 1, .rank = rank};
    struct virtual_call call;
    struct virtual_line line = {.call = &call};
    struct virtual_stop stop[3][4];
    (void)state;
    for (int s = 0; s < 3; s++) {
        stop[s][0] = (struct virtual_stop){.what = VIRTUAL_MARKS};
        stop[s][1] = (struct virtual_stop){VIRTUAL_COMES, work_s[s], work_s[s], .line = &line};
        stop[s][2] = (struct virtual_stop){VIRTUAL_WAITS, work_s[s], work_s[s], .line = &line};
        stop[s][3] = (struct virtual_stop){VIRTUAL_MARKS, work_s[s], work_s[s], .number = 1};
        rank[s].stops = (struct virtual_stops){stop[s], 4, 4};
    }
    for (world.stage_count = 1; world.stage_count <= 3; world.stage_count++)
        for (int cores = 1; cores <= 2; cores++) {
            profile.cores = cores;
            call = (struct virtual_call){.arrived = world.stage_count};
            fixture_same(virtual_crowd(&world), step_s[cores - 1][world.stage_count - 1]);
        }
    assert_true(rank[0].stretch == 2 && rank[1].stretch == 1 && rank[2].stretch == 2);
    call = (struct virtual_call){.arrived = world.stage_count = 3};
    profile.turn_chain = 1.25 * 30 / 27;
    fixture_same(virtual_crowd(&world), 1.25 * 6);
}

/* Plain operations, by the bytes that they touch: the operation, and how many of 4 it takes. */
static void test_passes(void **state)
{
    const struct tess_kernel_ops *ref;
    struct tess_profile profile = fixture_profile(FLOPS_PER_S);
    struct virtual_world world = {.profile = &profile, .stage_count = 1};
    struct virtual_rank rank = {.world = &world};
    struct tess_kernel *kernel;
    (void)state;
    profile.bytes_per_s = 1;
    assert_int_equal(tess_registry_get_kernel("ref", &ref), TESS_OK);
    struct tess_kernel_ops ops = virtual_kernel(ref);
    virtual_kernel_for(&rank);
    assert_int_equal(tess_kernel_open(&ops, 1, &kernel), TESS_OK);
    float x[10];
#define PASS_TAKES(seconds, call)                                                                  \
    do {                                                                                           \
        rank.host_s = 0;                                                                           \
        call;                                                                                      \
        assert_true(rank.host_s == (seconds));                                                     \
    } while (0)
    PASS_TAKES(120, tess_add(kernel, TESS_F32, 10, x, x, x));
    PASS_TAKES(80, tess_copy(kernel, 40, x, x));
    PASS_TAKES(60, tess_cast(kernel, 10, TESS_F32, x, TESS_BF16, x));
    PASS_TAKES(40, (void)tess_find_nonfinite(kernel, TESS_F32, 10, x));
    const struct tess_update adamw = {.kind = TESS_UPDATE_ADAMW,
                                      .count = 10,
                                      .w = x,
                                      .g = x,
                                      .m = x,
                                      .v = x,
                                      .low = TESS_BF16,
                                      .param_low = x};
    PASS_TAKES(7 * 40 + 20, tess_update(kernel, &adamw));
    tess_kernel_close(kernel);
}

/* The device waits for a host that takes longer to launch than it to compute. */
static void test_launches(void **state)
{
    struct tess_profile profile = fixture_profile(1e20);
    struct tess_prediction prediction;
    (void)state;
    profile.launch_s = 1e-3;
    fixture_predict(MLP "--kernel guard_queue", &profile, ENDLESS, &prediction);
    const struct tess_prediction_stage *stage = &prediction.stage[0];
    fixture_same(stage->step_s, stage->launch_s + stage->product_s + stage->pass_s);
    assert_true(stage->launch_s > 15e-3); /* operations of two layers and an update */
    fixture_same(stage->launch_s, round(stage->launch_s * 1e3) * 1e-3);
    assert_non_null(strstr(limit_of(&prediction), "launches"));
    const double product_s = stage->product_s;
    tess_prediction_fini(&prediction);
    fixture_predict(MLP "--kernel guard_queue --cuda.graph on", &profile, ENDLESS, &prediction);
    assert_true(prediction.stage[0].launch_s < 5e-3); /* batch, labels, rates, play, verdict */
    const struct tess_prediction_stage *played = &prediction.stage[0];
    fixture_same(played->step_s, played->launch_s + played->product_s + played->pass_s);
    fixture_same(played->product_s, product_s);
    tess_prediction_fini(&prediction);
}

/* ---- updates within backward ------------------------------------------------------------------
 */

#define ELEMENT_S 1e-6

/* Updates take a time of their own, and nothing else but products does. */
static struct tess_profile update_profile(void)
{
    struct tess_profile profile = fixture_profile(FLOPS_PER_S);
    for (int width = 0; width < TESS_WIDTHS; width++)
        profile.work_s[TESS_WORK_UPDATE_MOMENTUM][width] = ELEMENT_S;
    return profile;
}

/* One rank updates weights where their gradients are computed, the biases at the end. */
static void test_early(void **state)
{
    const struct tess_profile profile = update_profile();
    const double product_s = 2 * 32.0 * (36 * 64 + 2 * 64 * 5) / FLOPS_PER_S;
    struct tess_prediction prediction;
    (void)state;
    fixture_predict(MLP "--kernel ref", &profile, ENDLESS, &prediction);
    fixture_same(prediction.stage[0].backward_s, product_s + (36 * 64 + 64 * 5) * ELEMENT_S);
    fixture_same(prediction.stage[0].optim_s, (64 + 5) * ELEMENT_S);
    tess_prediction_fini(&prediction);
}

/* A sum that ends in a share, the update of it, and what the others are given: each value, in the
 * type of the parameters. */
static void test_shared(void **state)
{
    static const char options[] = "--model mlp --mlp.hidden 64 --batch-size 32 --grid 2 --ranks 2 "
                                  "--kernel ref --threads 1 ";
    static const struct {
        const char *options;
        int32_t segments;
        double given_bytes; /* for an element */
    } test[] = {{"--strategy ddp --precision f32", 1, 4},
                {"--strategy ddp --precision bf16", 1, 2},
                {"--strategy fsdp --precision f32", 2, 4}}; /* what it would gather next */
    const double share_per_s = 1e9;
    const struct tess_profile profile = update_profile();
    (void)state;
    for (size_t i = 0; i < sizeof(test) / sizeof(*test); i++) {
        struct tess_config *config;
        struct tess_dataset *dataset;
        struct tess_engine *engine;
        struct tess_prediction prediction;
        char words[256];
        snprintf(words, sizeof(words), "%s%s", options, test[i].options);
        fixture_open(words, &config, &dataset);
        struct tess_network network = fixture_network(config, 5e8);
        assert_int_equal(tess_engine_plan(config, dataset, 0, &engine), TESS_OK);
        const struct tess_plan *plan = tess_engine_plan_of(engine);
        assert_int_equal(plan->segment_count, test[i].segments);
        const int64_t params = 36 * 64 + 64 + 64 * 5 + 5;
        int64_t slices = 0;
        double exposed_s = 0;
        for (int32_t s = 0; s < plan->segment_count; s++) {
            const int64_t count = plan->segment[s].count, slice = count / 2 / 64 * 64;
            slices += slice;
            exposed_s += (4 + test[i].given_bytes / 2) * (double)count / share_per_s +
                         (double)slice * ELEMENT_S;
        }
        network.cluster.busy = true;
        network.cluster.sum_bytes_per_s = network.cluster.scatter_bytes_per_s = 2e9;
        network.cluster.share_bytes_per_s = share_per_s;
        assert_int_equal(tess_predict_step(config, dataset, &profile, &network, &prediction),
                         TESS_OK);
        assert_true(slices < params);
        fixture_same(prediction.stage[0].exposed_s[TESS_AXIS_DATA], exposed_s);
        assert_true(prediction.stage[0].optim_s < ELEMENT_S);
        fixture_same(prediction.step_s,
                     prediction.stage[0].product_s + prediction.stage[0].exposed_s[TESS_AXIS_DATA]);
        tess_prediction_fini(&prediction);
        tess_engine_close(engine);
        fixture_close(config, dataset);
    }
}

/* ---- overlap --------------------------------------------------------------------------------- */

#define FSDP                                                                                       \
    "--model mlp --mlp.hidden 64 --batch-size 32 --grid 2 --strategy fsdp --fsdp.keep-last 1 "     \
    "--ranks 2 "                                                                                   \
    "--kernel guard_queue "

/* Elements of the two units' segments, with padding. */
static void fsdp_segments(const char *options, int64_t count[2])
{
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct tess_engine *engine;
    fixture_open(options, &config, &dataset);
    assert_int_equal(tess_engine_plan(config, dataset, 0, &engine), TESS_OK);
    const struct tess_plan *plan = tess_engine_plan_of(engine);
    assert_int_equal(plan->segment_count, 2);
    count[0] = plan->segment[0].count;
    count[1] = plan->segment[1].count;
    tess_engine_close(engine);
    fixture_close(config, dataset);
}

/*
 * Two units, 16 rows on a rank; g is a gather, r a scatter, both of a half of the segment; f and b
 * are forward and backward:
 *
 *     kernels  .....| f0 | f1 | b1 | b0 |....
 *     group    | g0 | g1 |         | r1 | r0 |       b0 reads no values: g0 does not come again
 */
static double fsdp_by_hand(double bytes_per_s, double *busy_out, double *calls_out)
{
    int64_t count[2];
    fsdp_segments(FSDP, count);
    const double g0 = 2.0 * (double)count[0] / bytes_per_s,
                 g1 = 2.0 * (double)count[1] / bytes_per_s;
    const double f0 = 2 * 16 * 36 * 64 / FLOPS_PER_S, f1 = 2 * 16 * 64 * 5 / FLOPS_PER_S;
    const double b1 = 2 * f1, b0 = f0;
    double t = g0, group = g0 + g1;
    t = fmax(t + f0, group) + f1;
    t += b1;
    group = fmax(group, t) + g1; /* r1 is as large as g1 */
    t += b0;
    group = fmax(group, t) + g0;
    *busy_out = f0 + f1 + b0 + b1;
    *calls_out = 2 * g0 + 2 * g1;
    return fmax(t, group);
}

static void test_fsdp(void **state)
{
    static const double bytes_per_s[] = {1e12, 1e9, 2e8, 5e7, 1e6};
    const struct tess_profile profile = fixture_profile(FLOPS_PER_S);
    (void)state;
    for (size_t i = 0; i < sizeof(bytes_per_s) / sizeof(*bytes_per_s); i++) {
        struct tess_prediction prediction;
        double busy_s, calls_s, by_hand = fsdp_by_hand(bytes_per_s[i], &busy_s, &calls_s);
        fixture_predict(FSDP, &profile, bytes_per_s[i], &prediction);
        fixture_same(prediction.step_s, by_hand);
        fixture_same(prediction.stage[0].exposed_s[TESS_AXIS_DATA], by_hand - busy_s);
        fixture_same(prediction.stage[0].hidden_s, calls_s - (by_hand - busy_s));
        if (i == 4)
            assert_non_null(strstr(limit_of(&prediction),
                                   "all-gather along the data axis, most of it at unit "));
        tess_prediction_fini(&prediction);
    }
}

/*
 * Two hosts of two ranks, shard groups within them: replicas sum over the network, where members of
 * a group are a host apart. That takes all the time: each host's sum of half a segment goes there
 * and back, in f32, one segment after the other.
 */
static void test_hsdp(void **state)
{
    static const char options[] =
        "--model mlp --mlp.hidden 64 --batch-size 32 --grid 4 --strategy hsdp --hsdp.shard-ranks 2 "
        "--ranks 4 --kernel guard_queue";
    const struct tess_profile profile = fixture_profile(1e18);
    const struct tess_cluster cluster = {.ranks = 4,
                                         .host_ranks = 2,
                                         .host_bytes_per_s = ENDLESS,
                                         .host_net_bytes_per_s = 2e6,
                                         .rank_net_bytes_per_s = 1e6,
                                         .rack_share = 1};
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct tess_network network;
    struct tess_prediction prediction;
    int64_t count[2];
    (void)state;
    fsdp_segments(options, count);
    fixture_open(options, &config, &dataset);
    tess_network_make(&cluster, &config->mesh, &network);
    assert_int_equal(tess_predict_step(config, dataset, &profile, &network, &prediction), TESS_OK);
    const double by_hand = 2 * 0.5 * 4.0 * (double)(count[0] + count[1]) / 2 / 1e6;
    fixture_same(prediction.step_s, by_hand);
    fixture_same(prediction.stage[0].exposed_s[TESS_AXIS_DATA], by_hand);
    tess_prediction_fini(&prediction);
    fixture_close(config, dataset);
}

/* The time line of fsdp's step: operations one after the other, as long as they work, and calls
 * where the hand puts them: two gathers and two scatters of the two units. */
static void test_timeline(void **state)
{
    const struct tess_profile profile = fixture_profile(FLOPS_PER_S);
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct tess_prediction prediction;
    int64_t count[2];
    int calls[TESS_COLLECTIVE_COUNT] = {0};
    double busy_s = 0, wait_s = 0, doing_s = 0, bytes = 0;
    (void)state;
    fsdp_segments(FSDP, count);
    fixture_open(FSDP, &config, &dataset);
    const struct tess_network network = fixture_network(config, 5e7);
    assert_int_equal(tess_predict_timeline(config, dataset, &profile, &network, 1000, &prediction),
                     TESS_OK);
    const struct tess_prediction_stage *stage = &prediction.stage[0];
    for (int32_t i = 0; i < stage->event_count; i++) {
        const struct tess_trace_event *event = &stage->event[i];
        assert_true(event->begin_s >= 0 && event->end_s <= stage->step_s * (1 + 1e-9));
        assert_true(i == 0 || event->begin_s >= event[-1].begin_s);
        if (event->kind == TESS_TRACE_DOING) {
            assert_true(event->begin_s >= doing_s);
            doing_s = event->end_s;
            busy_s += event->end_s - event->begin_s;
        } else if (event->kind == TESS_TRACE_WAIT) {
            wait_s += event->end_s - event->begin_s;
        } else {
            calls[event->what]++;
            bytes += (event->end_s - event->begin_s) * 5e7;
        }
    }
    fixture_same(busy_s, stage->product_s + stage->pass_s);
    fixture_same(wait_s, stage_exposed(stage));
    assert_int_equal(calls[TESS_COLLECTIVE_ALL_GATHER], 2);
    assert_int_equal(calls[TESS_COLLECTIVE_REDUCE_SCATTER], 2);
    fixture_same(bytes, 2.0 * (double)(2 * count[0] + 2 * count[1]));
    tess_prediction_fini(&prediction);
    /* Of a full line the beginning is kept. */
    assert_int_equal(tess_predict_timeline(config, dataset, &profile, &network, 3, &prediction),
                     TESS_OK);
    assert_int_equal(prediction.stage[0].event_count, 3);
    tess_prediction_fini(&prediction);
    fixture_close(config, dataset);
}

/* Two ranks on one core take twice as long, on two hosts of one core as long as alone. Either way
 * the cores do nothing but products; so do two cores of one rank with two threads. */
static void test_cores(void **state)
{
    struct tess_profile profile = fixture_profile(FLOPS_PER_S);
    (void)state;
    profile.cores = 1;
    for (int32_t hosts = 1; hosts <= 2; hosts++) {
        const struct tess_cluster cluster = {.ranks = 2,
                                             .host_ranks = 2 / hosts,
                                             .host_bytes_per_s = ENDLESS,
                                             .host_net_bytes_per_s = ENDLESS,
                                             .rank_net_bytes_per_s = ENDLESS,
                                             .rack_share = 1};
        struct tess_config *config;
        struct tess_dataset *dataset;
        struct tess_network network;
        struct tess_prediction prediction;
        fixture_open(
            "--model mlp --mlp.hidden 64 --batch-size 32 --grid 2 --strategy ddp --ranks 2 "
            "--kernel ref",
            &config, &dataset);
        tess_network_make(&cluster, &config->mesh, &network);
        assert_int_equal(tess_predict_step(config, dataset, &profile, &network, &prediction),
                         TESS_OK);
        fixture_same(prediction.step_s,
                     2 * 16.0 * (2 * 36 * 64 + 3 * 64 * 5) / FLOPS_PER_S * 2 / hosts);
        fixture_same(prediction.mfu, 1);
        tess_prediction_fini(&prediction);
        fixture_close(config, dataset);
    }
    struct tess_prediction threads;
    profile.cores = 2;
    fixture_predict(MLP "--kernel cpu --threads 2", &profile, ENDLESS, &threads);
    fixture_same(threads.mfu, 1);
    tess_prediction_fini(&threads);
}

/* ---- pipelines ------------------------------------------------------------------------------- */

#define STAGES 4
#define MICROS 8
#define GPT                                                                                        \
    "--model gpt --data.length 8 --gpt.width 64 --gpt.vocab 256 --batch-size 8 --grid 8 "          \
    "--accumulate 8 --ranks 4 --strategy pp --clip 0 "

/* Attention takes all the time, and every stage has as much of it. */
static void pipe_predict(const char *options, double *block_s, struct tess_prediction *prediction)
{
    struct tess_profile profile = fixture_profile(1e15);
    char words[512];
    profile.attention_forward = profile.attention_backward = 1e-10;
    /* Two products forward and five backward, of half of 8 x 8 positions with 64 channels. */
    *block_s = 7.0 * 8 * 8 * 64 / (1e15 * 1e-10);
    snprintf(words, sizeof(words), GPT "%s", options);
    fixture_predict(words, &profile, ENDLESS, prediction);
}

static void near(double a, double b)
{
    if (fabs(a - b) <= 1e-4 * fmax(a, b))
        return;
    print_error("%g is not %g\n", a, b);
    fail();
}

static void test_pipeline(void **state)
{
    static const char *const kernel[] = {"--kernel ref", "--kernel guard_queue"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tess_prediction prediction;
        char options[256];
        double block_s;
        snprintf(options, sizeof(options), "--gpt.layers 4 %s", kernel[i]);
        pipe_predict(options, &block_s, &prediction);
        assert_int_equal(prediction.stage_count, STAGES);
        near(prediction.step_s, (MICROS + STAGES - 1) * block_s);
        for (int32_t s = 0; s < STAGES; s++) {
            near(prediction.stage[s].step_s, prediction.step_s);
            near(prediction.stage[s].product_s, MICROS * block_s);
            near(prediction.stage[s].bubble_s / prediction.step_s,
                 (STAGES - 1.0) / (MICROS + STAGES - 1));
            near(prediction.stage[s].bubble_s, stage_exposed(&prediction.stage[s]));
        }
        assert_non_null(strstr(limit_of(&prediction), "other stages"));
        tess_prediction_fini(&prediction);

        /* Two chunks on each stage have half of the idle time. */
        snprintf(options, sizeof(options), "--gpt.layers 8 --pp.schedule interleaved %s",
                 kernel[i]);
        pipe_predict(options, &block_s, &prediction);
        near(prediction.step_s, (2 * MICROS + STAGES - 1) * block_s);
        tess_prediction_fini(&prediction);
    }
}

/* ---- the same bits --------------------------------------------------------------------------- */

static void test_same(void **state)
{
    static const char options[] =
        "--model gpt --gpt.style llama --data.length 8 --gpt.width 64 --gpt.layers 4 --batch-size "
        "32 "
        "--grid 32 --accumulate 4 --ranks 8 --strategy zero1+tp+pp --mesh data=2,tensor=2,stage=2 "
        "--precision bf16 --clip 1 --kernel guard_queue";
    struct tess_prediction first, again;
    (void)state;
    fixture_predict(options, tess_profile_find("h100-80"), 1e11, &first);
    for (int i = 0; i < 3; i++) {
        fixture_predict(options, tess_profile_find("h100-80"), 1e11, &again);
        assert_memory_equal(again.stage, first.stage,
                            (size_t)first.stage_count * sizeof(*first.stage));
        assert_true(again.step_s == first.step_s);
        assert_memory_equal(&again.loss, &first.loss, sizeof(first.loss));
        tess_prediction_fini(&again);
    }
    tess_prediction_fini(&first);
}

/* A model whose passes are counted. */
static const struct tess_model_ops *counted_model;
static int counted;

static enum tess_status counted_forward(void *state, const struct tess_pass *pass)
{
    counted++;
    return counted_model->forward(state, pass);
}

static enum tess_status counted_backward(void *state, const struct tess_pass *pass)
{
    counted++;
    return counted_model->backward(state, pass);
}

/* Passes of a unit that are alike run once, and the step is that of all of them, which a time line
 * needs. Sums over the tensor axis are no such passes, nor are those of a model whose steps differ.
 */
static void test_alike(void **state)
{
    static const struct {
        const char *options;
        int most; /* passes; 0: as many as without */
    } of[] = {
        {"--model gpt --data.length 8 --gpt.width 64 --gpt.layers 4 --batch-size 32 --grid 32 "
         "--accumulate 4 --ranks 4 --strategy fsdp+pp --mesh data=2,stage=2 --precision bf16 "
         "--recompute every:2 --kernel guard_queue",
         2 * 8},
        {"--model mlp --mlp.hidden 64 --batch-size 32 --grid 16 --accumulate 8 --ranks 2 "
         "--strategy ddp --kernel ref",
         2 * 2},
        {"--model gpt --data.length 8 --gpt.width 64 --gpt.layers 2 --batch-size 32 --grid 32 "
         "--accumulate 4 --ranks 2 --strategy ddp+tp --mesh tensor=2 --kernel ref",
         0},
        {"--model mlp --mlp.hidden 64,64 --mlp.layer-drop 0.5 --find-unused on --batch-size 32 "
         "--grid 16 --accumulate 8 --ranks 2 --strategy ddp --kernel ref",
         0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
        struct tess_config *config;
        struct tess_dataset *dataset;
        struct tess_prediction once, all;
        struct tess_model_ops ops;
        fixture_open(of[i].options, &config, &dataset);
        counted_model = config->model;
        ops = *config->model;
        ops.forward = counted_forward;
        ops.backward = counted_backward;
        config->model = &ops;
        const struct tess_network network = fixture_network(config, 1e10);
        const struct tess_profile *profile = tess_profile_find("h100-80");
        counted = 0;
        assert_int_equal(tess_predict_step(config, dataset, profile, &network, &once), TESS_OK);
        const int passes = counted;
        counted = 0;
        assert_int_equal(tess_predict_timeline(config, dataset, profile, &network, 9999, &all),
                         TESS_OK);
        assert_true(once.step_s == all.step_s);
        assert_memory_equal(&once.loss, &all.loss, sizeof(all.loss));
        if (of[i].most > 0 && passes > of[i].most)
            fail_msg("%d of %d passes ran, not %d", passes, counted, of[i].most);
        if (of[i].most == 0)
            assert_true(passes > counted / 2);
        tess_prediction_fini(&once);
        tess_prediction_fini(&all);
        config->model = counted_model;
        fixture_close(config, dataset);
    }
}

/* ---- what is refused ------------------------------------------------------------------------- */

/* Milliseconds without an exponent, however many. */
static void test_limit_text(void **state)
{
    struct tess_prediction_loss loss = {.bubble_s = 1.4434, .call_s = 0.0908, .call = "it"};
    char text[TESS_PREDICT_LIMIT];
    (void)state;
    assert_string_equal(tess_prediction_limit(&loss, 7.217, text),
                        "1443 ms (20 %) of waiting for other stages; then 90.8 ms (1.3 %) of "
                        "waiting for it");
    loss.bubble_s = 0.00031;
    assert_string_equal(tess_prediction_limit(&loss, 0.31, text),
                        "90.8 ms (29 %) of waiting for it");
}

static void test_refused(void **state)
{
    static const char *const options[] = {MLP "--audit 0.5", MLP "--debug"};
    const struct tess_profile profile = fixture_profile(FLOPS_PER_S);
    (void)state;
    for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++) {
        struct tess_config *config;
        struct tess_dataset *dataset;
        struct tess_prediction prediction;
        fixture_open(options[i], &config, &dataset);
        const struct tess_network network = fixture_network(config, ENDLESS);
        assert_int_equal(tess_predict_step(config, dataset, &profile, &network, &prediction),
                         TESS_ERR_UNSUPPORTED);
        fixture_close(config, dataset);
    }
}

/* ---- a large model --------------------------------------------------------------------------- */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static long memory_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

/* Sanitizers have memory of their own. */
#ifdef __has_feature
#define HAS_SANITIZER (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER 1
#else
#define HAS_SANITIZER 0
#endif

/* Llama 405B in 16 stages. What it takes is printed: machines are of any speed. */
static void test_large(void **state)
{
    static const char options[] =
        "--model gpt --gpt.style llama --gpt.layers 126 --gpt.width 16384 --gpt.heads 128 "
        "--gpt.kv-heads 8 --gpt.ffn 53248 --gpt.vocab 128256 --data.length 8192 --precision bf16 "
        "--ranks 64 --strategy fsdp+tp+pp --mesh data=2,tensor=2,stage=16 --batch-size 64 --grid "
        "64 "
        "--accumulate 32 --tensor.sequence-parallel --kernel guard_queue --evaluate off";
    struct tess_prediction prediction;
    (void)state;
    const long before_kib = memory_kib();
    const double begin_s = seconds_now();
    fixture_predict(options, tess_profile_find("h100-80"), 3e11, &prediction);
    const double seconds = seconds_now() - begin_s;
    const long kib = memory_kib() - before_kib;
    print_message("405B: step %.3g s, MFU %.3g, %s; predicted in %.2f s with %ld MiB\n",
                  prediction.step_s, prediction.mfu, limit_of(&prediction), seconds, kib >> 10);
    assert_int_equal(prediction.stage_count, 16);
    assert_true(prediction.mfu > 0.2 && prediction.mfu < 0.8);
    for (int32_t s = 0; s < prediction.stage_count; s++) { /* thousands of calls, none forgotten */
        const struct tess_prediction_stage *stage = &prediction.stage[s];
        near(stage->step_s,
             stage->product_s + stage->pass_s + stage_exposed(stage) + stage->launch_s);
    }
    assert_true(HAS_SANITIZER || kib < 200 << 10);
    tess_prediction_fini(&prediction);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products), cmocka_unit_test(test_fetched),
        cmocka_unit_test(test_turns),    cmocka_unit_test(test_passes),
        cmocka_unit_test(test_launches), cmocka_unit_test(test_early),
        cmocka_unit_test(test_shared),   cmocka_unit_test(test_fsdp),
        cmocka_unit_test(test_timeline), cmocka_unit_test(test_hsdp),
        cmocka_unit_test(test_cores),    cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_same),     cmocka_unit_test(test_alike),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_limit_text),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
