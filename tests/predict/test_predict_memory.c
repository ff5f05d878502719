/*
 * Memory over a predicted step against the memory plan: what is in use never exceeds what is
 * reserved, and where the plan reserves for one moment, that moment is found.
 */
#include "predict_fixture.h"

#include "base/arena.h"
#include "core/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GPT "--model gpt --data.length 16 --gpt.width 64 --gpt.vocab 256 --kernel ref --clip 0 "

/* Blocks of one rank, without the padding between them: by series, where all of it lasts longer
 * than a pass, or is of one pass. */
struct blocks {
    const struct tess_memory *memory;
    uint64_t bytes[TESS_PREDICT_SERIES];
    int32_t count;
};

static void block_add(void *context, enum tess_memory_kind kind, const char *owner,
                      struct tess_block block)
{
    static const char *const brief[] = {"gradient flow 0",
                                        "gradient flow 1",
                                        "unit scratch",
                                        "output made again",
                                        "gradients from the stage after",
                                        "gradients to the stage before"};
    struct blocks *blocks = context;
    int series = kind;
    for (size_t i = 0; i < sizeof(brief) / sizeof(*brief); i++)
        if (strcmp(owner, brief[i]) == 0)
            series = TESS_PREDICT_BRIEF;
    if (kind == TESS_MEMORY_STAGING || kind == TESS_MEMORY_REDUNDANCY)
        return;
    blocks->bytes[series] += block.bytes;
    blocks->count++;
}

struct lines {
    struct tess_prediction prediction;
    struct blocks *blocks; /* [stages] */
};

static uint64_t sum(const uint64_t bytes[TESS_PREDICT_SERIES])
{
    uint64_t all = 0;
    for (int series = 0; series < TESS_PREDICT_SERIES; series++)
        all += bytes[series];
    return all;
}

/* What holds for every step. */
static void check_stage(const struct tess_prediction_stage *stage, const struct blocks *blocks)
{
    uint64_t most[TESS_PREDICT_SERIES] = {0}, most_total = 0;
    assert_true(stage->live_count > 4 && stage->live_count < TESS_PREDICT_MOMENTS);
    assert_true(stage->live[0].at_s >= 0 && stage->event_count > 0);
    double end_s = 0;
    for (int32_t e = 0; e < stage->event_count; e++)
        end_s = stage->event[e].end_s > end_s ? stage->event[e].end_s : end_s;
    for (int32_t i = 0; i < stage->live_count; i++) {
        const struct tess_prediction_live *live = &stage->live[i];
        assert_true(live->at_s <= end_s * (1 + 1e-9));
        assert_true(i == 0 || live->at_s > live[-1].at_s);
        for (int series = 0; series < TESS_PREDICT_SERIES; series++)
            most[series] = live->bytes[series] > most[series] ? live->bytes[series] : most[series];
        most_total = sum(live->bytes) > most_total ? sum(live->bytes) : most_total;
        assert_int_equal(live->bytes[TESS_MEMORY_PARAMETER], blocks->bytes[TESS_MEMORY_PARAMETER]);
        assert_int_equal(live->bytes[TESS_MEMORY_MASTER], blocks->bytes[TESS_MEMORY_MASTER]);
        assert_int_equal(live->bytes[TESS_MEMORY_OPTIMIZER], blocks->bytes[TESS_MEMORY_OPTIMIZER]);
    }
    for (int series = 0; series < TESS_PREDICT_SERIES; series++)
        if (stage->live_most[series] > blocks->bytes[series] ||
            stage->live_most[series] < most[series])
            fail_msg("%s: %llu of %llu bytes", tess_prediction_series_name(series),
                     (unsigned long long)stage->live_most[series],
                     (unsigned long long)blocks->bytes[series]);
    assert_true(stage->live_most_total >= most_total);
    assert_true(stage->live_most_total <= stage->memory_total);
    /* The plan's sum is that of these blocks, each rounded up to whole pages. */
    assert_true(sum(blocks->bytes) <= stage->memory_total);
    assert_true(stage->memory_total - sum(blocks->bytes) <
                (uint64_t)blocks->count * TESS_MEMORY_ALIGN);
}

static void predict(const char *options, struct lines *lines)
{
    const struct tess_profile profile = fixture_profile(1e9);
    struct tess_config *config;
    struct tess_dataset *dataset;
    fixture_open(options, &config, &dataset);
    const struct tess_network network = fixture_network(config, 1e8);
    assert_int_equal(
        tess_predict_timeline(config, dataset, &profile, &network, 100000, &lines->prediction),
        TESS_OK);
    lines->blocks = calloc((size_t)lines->prediction.stage_count, sizeof(*lines->blocks));
    assert_non_null(lines->blocks);
    for (int32_t s = 0; s < lines->prediction.stage_count; s++) {
        const int32_t at[TESS_AXIS_COUNT] = {[TESS_AXIS_STAGE] = s};
        struct tess_engine *engine = NULL;
        assert_int_equal(
            tess_engine_plan(config, dataset, tess_mesh_rank(&config->mesh, at), &engine), TESS_OK);
        tess_memory_visit(tess_engine_memory(engine), block_add, &lines->blocks[s]);
        tess_engine_close(engine);
        check_stage(&lines->prediction.stage[s], &lines->blocks[s]);
    }
    fixture_close(config, dataset);
}

static void done(struct lines *lines)
{
    free(lines->blocks);
    tess_prediction_fini(&lines->prediction);
}

/* All that forward keeps is there when it has ended, and all gradients when backward has. */
static void case_plain(void **state)
{
    struct lines lines;
    (void)state;
    predict(GPT "--batch-size 8 --ranks 2 --strategy ddp", &lines);
    const struct tess_prediction_stage *stage = &lines.prediction.stage[0];
    const uint64_t *reserved = lines.blocks[0].bytes;
    assert_int_equal(stage->live_most[TESS_MEMORY_ACTIVATION], reserved[TESS_MEMORY_ACTIVATION]);
    assert_int_equal(stage->live_most[TESS_MEMORY_GRADIENT], reserved[TESS_MEMORY_GRADIENT]);
    assert_true(stage->live_most[TESS_PREDICT_BRIEF] > reserved[TESS_PREDICT_BRIEF] / 2);
    /* Nothing is left of the step before but the state, and of this one at its end. */
    assert_int_equal(stage->live[0].bytes[TESS_MEMORY_GRADIENT], 0);
    assert_true(stage->live[0].bytes[TESS_MEMORY_ACTIVATION] <
                reserved[TESS_MEMORY_ACTIVATION] / 2);
    assert_int_equal(stage->live[stage->live_count - 1].bytes[TESS_MEMORY_GRADIENT], 0);
    done(&lines);
}

/* Sums over eight micro-batches as a binary counter: three levels wait while the fourth is filled,
 * and each segment's are added, and free, when its own is there. */
static void case_levels(void **state)
{
    struct lines lines;
    (void)state;
    predict(GPT "--batch-size 16 --ranks 2 --accumulate 8 --strategy ddp", &lines);
    const uint64_t level = lines.blocks[0].bytes[TESS_MEMORY_GRADIENT] / 4;
    /* f32, and the table of tokens has two gradients, which are reduced separately */
    assert_int_equal(level, lines.blocks[0].bytes[TESS_MEMORY_PARAMETER] + 4 * 256 * 64);
    assert_true(lines.prediction.stage[0].live_most[TESS_MEMORY_GRADIENT] > 3 * level);
    done(&lines);
}

/* Gathered units: two at once, or all until backward. */
static void case_gathered(void **state)
{
    struct lines two, all;
    (void)state;
    predict(GPT "--batch-size 8 --ranks 2 --strategy fsdp", &two);
    predict(GPT "--batch-size 8 --ranks 2 --strategy fsdp --fsdp.reshard-after-forward off", &all);
    const uint64_t most = all.prediction.stage[0].live_most[TESS_MEMORY_GATHERED];
    /* But for what makes each of four blocks a multiple of both ranks' alignment: 64 elements. */
    assert_int_equal(most + 4 * 64 * sizeof(float), all.blocks[0].bytes[TESS_MEMORY_GATHERED]);
    assert_true(two.prediction.stage[0].live_most[TESS_MEMORY_GATHERED] < most / 2);
    assert_true(two.prediction.stage[0].live_most[TESS_MEMORY_BUCKET] > 0);
    done(&two);
    done(&all);
}

/* What is made again lasts for a pass, and is not kept. */
static void case_recompute(void **state)
{
    static const char *const how[] = {"none", "selective", "full"};
    uint64_t kept[3], brief[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        char options[512];
        struct lines lines;
        snprintf(options, sizeof(options), GPT "--batch-size 8 --strategy single --recompute %s",
                 how[i]);
        predict(options, &lines);
        kept[i] = lines.prediction.stage[0].live_most[TESS_MEMORY_ACTIVATION];
        brief[i] = lines.prediction.stage[0].live_most[TESS_PREDICT_BRIEF];
        assert_int_equal(kept[i], lines.blocks[0].bytes[TESS_MEMORY_ACTIVATION]);
        done(&lines);
    }
    assert_true(kept[0] > kept[1] && kept[1] > kept[2]);
    assert_true(brief[0] < brief[2]);
}

/* Each stage keeps as many micro-batches as are under way in it. */
static void case_stages(void **state)
{
    struct lines lines;
    (void)state;
    predict(GPT "--batch-size 16 --ranks 4 --accumulate 8 --strategy pp --pp.schedule 1f1b",
            &lines);
    const struct tess_prediction_stage *stage = lines.prediction.stage;
    assert_int_equal(lines.prediction.stage_count, 4);
    for (int s = 0; s < 4; s++)
        assert_true(stage[s].live_most[TESS_MEMORY_ACTIVATION] >
                    lines.blocks[s].bytes[TESS_MEMORY_ACTIVATION] * 3 / 4);
    assert_true(stage[1].live_most[TESS_MEMORY_ACTIVATION] >
                stage[2].live_most[TESS_MEMORY_ACTIVATION]);
    done(&lines);
}

/* Without a time line nobody watches. */
static void case_none(void **state)
{
    const struct tess_profile profile = fixture_profile(1e9);
    struct tess_prediction prediction;
    (void)state;
    fixture_predict(GPT "--batch-size 8 --ranks 2 --strategy ddp", &profile, 1e8, &prediction);
    assert_null(prediction.stage[0].live);
    assert_int_equal(prediction.stage[0].live_count, 0);
    tess_prediction_fini(&prediction);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_plain),    cmocka_unit_test(case_levels),
        cmocka_unit_test(case_gathered), cmocka_unit_test(case_recompute),
        cmocka_unit_test(case_stages),   cmocka_unit_test(case_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
