/*
 * What makes a search fast: how much of it is done once, counted, not timed; and that what layouts
 * share is what each would have alone: memory and predicted steps of configurations that are opened
 * for themselves.
 */
#include "core/engine.h"
#include "job/run.h"
#include "study/plan.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The model of configs/models/llama-8b.yaml. There is no such data, of which sizes are enough. */
#define LLAMA_8B                                                                                   \
    "--model gpt --gpt.style llama --gpt.layers 32 --gpt.heads 32 --gpt.kv-heads 8 --gpt.width "   \
    "4096 --gpt.ffn 14336 --gpt.context 8192 --gpt.vocab 128256 --data.length 8192 --data "        \
    "/nowhere --precision bf16 --optimizer adamw --batch-size 512"
#define SMALL                                                                                      \
    "--model gpt --gpt.layers 6 --gpt.heads 8 --gpt.width 64 --gpt.vocab 256 --data.length 16 "    \
    "--data /nowhere --optimizer adamw --batch-size 32"

struct search {
    struct tess__plan plan;
    struct tess__plan_options given;
    char words[1024];
    char *argv[64];
};

static void search_open(struct search *search, const char *words, int32_t ranks, int64_t top)
{
    int argc = 0;
    memset(search, 0, sizeof(*search));
    snprintf(search->words, sizeof(search->words), "%s", words);
    for (char *rest = search->words, *word; (word = strsep(&rest, " ")) != NULL;)
        search->argv[argc++] = word;
    struct tess__plan *plan = &search->plan;
    search->given.top = top;
    plan->given = &search->given;
    plan->profile = *tess_profile_find("h100-80");
    plan->memory_limit = plan->profile.memory_bytes - plan->profile.beside_bytes;
    plan->precision_count = 1;
    assert_int_equal(tess__args_init(&plan->args, argc, search->argv), TESS_OK);
    assert_int_equal(tess_cluster_of_device(plan->profile.name, ranks, &plan->cluster), TESS_OK);
    assert_int_equal(tess__plan_open(plan), TESS_OK);
    assert_int_equal(tess__plan_search(plan), TESS_OK);
}

static void search_close(struct search *search)
{
    tess__plan_close(&search->plan);
}

/* What limits a layout is said of its whole step, not of the shorter ones that were run for it. */
static void losses_fill_steps(const struct tess__plan *plan)
{
    for (int64_t i = 0; i < plan->layouts.count; i++) {
        const struct tess__plan_layout *layout = &plan->layouts.item[i];
        const struct tess_prediction_loss *loss = &layout->loss;
        const double sum_s = loss->product_s + loss->pass_s + loss->launch_s + layout->exposed_s;
        if (!layout->predicted)
            continue;
        assert_true(loss->call_s + loss->bubble_s <= layout->exposed_s * 1.001);
        assert_true(sum_s <= layout->step_s * 1.001 && sum_s >= layout->step_s * 0.9);
    }
}

/* The core on which this thread, and those that it starts, run alone; *before_out: those before. */
static void one_core(cpu_set_t *before_out)
{
    cpu_set_t one;
    int core = 0;
    assert_int_equal(sched_getaffinity(0, sizeof(*before_out), before_out), 0);
    while (!CPU_ISSET(core, before_out))
        core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
}

/* Llama of 8 B on 64 ranks, by one thread. Where nothing is kept, each of the layouts that are
 * tried reads its configuration, and each rank that is planned declares the model. */
static void case_work(void **state)
{
    struct search search;
    cpu_set_t cores;
    (void)state;
    one_core(&cores);
    search_open(&search, LLAMA_8B, 64, 10);
    assert_int_equal(sched_setaffinity(0, sizeof(cores), &cores), 0);
    const struct tess__plan_work work = tess__plan_worked(&search.plan);
    print_message("%lld layouts: %lld read, %lld declared, %lld ranks planned, %lld predicted\n",
                  (long long)search.plan.searched, (long long)work.loaded, (long long)work.declared,
                  (long long)work.planned, (long long)work.predicted);
    assert_int_equal(search.plan.searched, 2139 + 4); /* of four one further option */
    assert_true(work.loaded <= 30);                   /* products of strategies */
    assert_true(work.declared <= 64);  /* rows of a micro-batch, by cuts of the tensor axis */
    assert_true(work.planned <= 1500); /* 2911 where each way to recompute is planned for itself */
    assert_true(work.predicted <= 40); /* two for each of 20 layouts */
    losses_fill_steps(&search.plan);
    search_close(&search);
}

/* Layouts with a further option, and those of them that are faster than the same without. */
static int64_t varied(const struct tess__plan *plan, int64_t *faster_out)
{
    int64_t count = 0;
    *faster_out = 0;
    for (int64_t i = 0; i < plan->layouts.count; i++)
        for (int64_t j = 0; j < plan->layouts.count && plan->layouts.item[i].predicted; j++) {
            struct tess__plan_layout plain = plan->layouts.item[i];
            const struct tess__plan_layout *other = &plan->layouts.item[j];
            char text[TESS__PLAN_TEXT], instead[TESS__PLAN_TEXT];
            if (plain.extra[0] == '\0' || !other->predicted)
                continue;
            plain.extra[0] = '\0';
            if (strcmp(tess__plan_text(&plain, text), tess__plan_text(other, instead)) != 0)
                continue;
            count++;
            *faster_out += plain.step_s < other->step_s;
            assert_true(plain.device_bytes != other->device_bytes || plain.step_s != other->step_s);
        }
    return count;
}

/* What is gathered may stay, which takes memory and saves time: found where the configuration
 * leaves it open. */
static void case_varied(void **state)
{
    struct search search;
    int64_t faster;
    (void)state;
    search_open(&search, LLAMA_8B, 64, 10);
    assert_true(varied(&search.plan, &faster) > 0);
    assert_true(faster > 0);
    const double first_s = search.plan.layouts.item[0].step_s;
    search_close(&search);
    search_open(&search, LLAMA_8B, 64, 1); /* how many are shown changes nothing in it */
    assert_true(search.plan.layouts.item[0].step_s == first_s);
    search_close(&search);
    search_open(&search,
                LLAMA_8B " --fsdp.reshard-after-forward on --hsdp.reshard-after-forward on", 64,
                10);
    assert_int_equal(varied(&search.plan, &faster), 0);
    search_close(&search);
}

/* Of all ranks that a layout's memory is from, the fullest, planned alone. */
static struct tess_job_memory fullest(const struct tess_config *config,
                                      const struct tess_dataset *dataset)
{
    const int32_t *count = config->mesh.count;
    struct tess_job_memory most = {.total = 0};
    uint64_t most_bytes = 0;
    for (int32_t s = 0; s < count[TESS_AXIS_STAGE]; s++)
        for (int32_t d = 0; d < (count[TESS_AXIS_DATA] > 1 ? 2 : 1); d++)
            for (int32_t t = 0; t < (count[TESS_AXIS_TENSOR] > 1 ? 2 : 1); t++) {
                const int32_t at[TESS_AXIS_COUNT] = {
                    [TESS_AXIS_DATA] = d, [TESS_AXIS_TENSOR] = t, [TESS_AXIS_STAGE] = s};
                struct tess_engine *engine = NULL;
                assert_int_equal(
                    tess_engine_plan(config, dataset, tess_mesh_rank(&config->mesh, at), &engine),
                    TESS_OK);
                const struct tess_job_memory memory = tess__run_memory(tess_engine_memory(engine));
                const uint64_t bytes = memory.total - memory.bytes[TESS_MEMORY_STAGING] -
                                       memory.bytes[TESS_MEMORY_REDUNDANCY];
                if (bytes > most_bytes) {
                    most = memory;
                    most_bytes = bytes;
                }
                tess_engine_close(engine);
            }
    return most;
}

static void check_alone(const struct tess__plan *plan, const struct tess__plan_layout *layout)
{
    struct tess_config *config = NULL;
    struct tess_network network;
    struct tess_prediction prediction;
    char why[TESS__PLAN_WHY], name[200];
    assert_int_equal(tess__plan_config(plan, layout, &config, why), TESS_OK);
    const struct tess_job_memory memory = fullest(config, plan->dataset);
    if (memcmp(&memory, &layout->memory, sizeof(memory)) != 0)
        fail_msg("%s: alone it keeps other bytes", tess__plan_name(layout, name));
    tess_network_make(&plan->cluster, &config->mesh, &network);
    assert_int_equal(
        tess_predict_step(config, plan->dataset, &plan->profile, &network, &prediction), TESS_OK);
    if (layout->accumulate <= 2 * layout->count[TESS_AXIS_STAGE] &&
        prediction.step_s != layout->step_s)
        fail_msg("%s: alone a step takes %.17g s, not %.17g", tess__plan_name(layout, name),
                 prediction.step_s, layout->step_s);
    tess_prediction_fini(&prediction);
    tess_config_close(config);
}

static void case_alone(void **state)
{
    struct search search;
    int64_t checked = 0, staged = 0;
    (void)state;
    search_open(&search, SMALL, 8, 30);
    for (int64_t i = 0; i < search.plan.layouts.count; i++) {
        const struct tess__plan_layout *layout = &search.plan.layouts.item[i];
        if (!layout->predicted)
            continue;
        check_alone(&search.plan, layout);
        checked++;
        staged += layout->count[TESS_AXIS_STAGE] > 1;
    }
    assert_true(checked >= 30);
    assert_true(staged > 0);
    search_close(&search);
}

/* A brief try is as a whole one where the layout fits, and plans no last stage where the first one
 * does not. */
static void check_brief(const struct tess__plan *plan, const struct tess__plan_layout *layout,
                        int64_t *staged)
{
    struct tess__plan_layout brief = *layout;
    struct tess__plan_layout *const one[] = {&brief};
    struct tess__plan limited = *plan;
    struct tess__plan_work *work = tess__plan_work(plan->configs[0]);
    char why[TESS__PLAN_WHY];
    int done;
    limited.memory_limit = (double)layout->device_bytes;
    assert_int_equal(tess__plan_try_ends(&limited, one, 1, true, &done, why), TESS_OK);
    assert_false(brief.partly);
    assert_int_equal(brief.device_bytes, layout->device_bytes);
    const int64_t planned = work->planned;
    limited.memory_limit = 1;
    assert_int_equal(tess__plan_try_ends(&limited, one, 1, true, &done, why), TESS_OK);
    assert_int_equal(brief.partly, layout->count[TESS_AXIS_STAGE] > 1);
    assert_int_equal(work->planned, planned + 1);
    *staged += brief.partly;
}

/* What was planned together with other ways to recompute is what it is planned alone. */
static void case_ends(void **state)
{
    struct search search;
    int64_t checked = 0, staged = 0;
    (void)state;
    search_open(&search, SMALL, 8, 10);
    for (int64_t i = 0; i < search.plan.layouts.count; i++) {
        struct tess__plan_layout alone = search.plan.layouts.item[i];
        struct tess__plan_layout *const one[] = {&alone};
        const struct tess__plan_layout *layout = &search.plan.layouts.item[i];
        char why[TESS__PLAN_WHY], text[TESS__PLAN_TEXT];
        int done;
        if (layout->predicted)
            continue;
        assert_int_equal(tess__plan_try_ends(&search.plan, one, 1, false, &done, why), TESS_OK);
        if (memcmp(&alone.memory, &layout->memory, sizeof(alone.memory)) != 0 ||
            alone.coarse_s != layout->coarse_s)
            fail_msg("%s: alone it is planned otherwise", tess__plan_text(layout, text));
        checked += strcmp(layout->recompute, "none") != 0;
        check_brief(&search.plan, layout, &staged);
    }
    assert_true(checked > 20);
    assert_true(staged > 20);
    search_close(&search);
}

/* A model of which nothing is cheap to make again: selective is what none is, which is listed. */
static void case_twins(void **state)
{
    struct search search;
    int64_t full = 0;
    (void)state;
    search_open(&search, "--model mlp --data synthetic --batch-size 32 --optimizer adamw", 4, 40);
    for (int64_t i = 0; i < search.plan.layouts.count; i++) {
        const struct tess__plan_layout *layout = &search.plan.layouts.item[i];
        if (layout->predicted)
            assert_string_not_equal(layout->recompute, "selective");
        full += layout->predicted && strcmp(layout->recompute, "full") == 0;
    }
    assert_true(full > 0);
    search_close(&search);
}

static void check_same(const struct tess__plan *a, const struct tess__plan *b)
{
    assert_int_equal(a->searched, b->searched);
    assert_int_equal(a->layouts.count, b->layouts.count);
    for (int64_t i = 0; i < a->layouts.count; i++) {
        const struct tess__plan_layout *one = &a->layouts.item[i], *other = &b->layouts.item[i];
        char text[TESS__PLAN_TEXT], instead[TESS__PLAN_TEXT];
        assert_string_equal(tess__plan_text(one, text), tess__plan_text(other, instead));
        assert_memory_equal(&one->memory, &other->memory, sizeof(one->memory));
        assert_true(one->step_s == other->step_s);
        assert_memory_equal(&one->loss, &other->loss, sizeof(one->loss));
    }
    assert_int_equal(a->rejected_count, b->rejected_count);
    for (int32_t i = 0; i < a->rejected_count; i++) {
        assert_string_equal(a->rejected[i].family, b->rejected[i].family);
        assert_string_equal(a->rejected[i].why, b->rejected[i].why);
    }
}

/* What several threads find is what one finds: with all layouts tried, and with a part of them. */
static void case_threads(void **state)
{
    static const int32_t ranks[] = {8, 32};
    (void)state;
    for (size_t i = 0; i < sizeof(ranks) / sizeof(*ranks); i++) {
        struct search one, several;
        cpu_set_t cores;
        one_core(&cores);
        search_open(&one, SMALL, ranks[i], 10);
        assert_int_equal(sched_setaffinity(0, sizeof(cores), &cores), 0);
        search_open(&several, SMALL, ranks[i], 10);
        assert_true(one.plan.layouts.count > 20 && one.plan.rejected_count > 0);
        assert_true(one.plan.configs[1] == NULL);
        if (CPU_COUNT(&cores) > 1)
            assert_true(several.plan.configs[1] != NULL);
        check_same(&one.plan, &several.plan);
        search_close(&several);
        search_close(&one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_work), cmocka_unit_test(case_alone), cmocka_unit_test(case_threads),
        cmocka_unit_test(case_ends), cmocka_unit_test(case_twins), cmocka_unit_test(case_varied)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
