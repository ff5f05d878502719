/*
 * A pipeline's memory, planned for every rank: as many micro-batches at once as the schedule
 * promises, each with its own activations, and the buffers between stages; nothing else grows with
 * the number of micro-batches. And who runs which units.
 */
#include "base/arena.h"
#include "config/config.h"
#include "core/state.h"
#include "pipe.h"
#include "tessera/tessera.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 32, LENGTH = 8, WORDS_MAX = 48 };

struct plan {
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct tess_engine *engine;
};

static void plan_open(struct plan *plan, const char *options, int32_t rank)
{
    char words[512], *argv[WORDS_MAX];
    int argc = 0;
    snprintf(words, sizeof(words), "--data synthetic --kernel ref --batch-size 32 %s", options);
    for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word != '\0')
            argv[argc++] = word;
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, &plan->config), TESS_OK);
    if (plan->config->model->tokens)
        assert_int_equal(tess_dataset_open_synthetic_tokens(LENGTH, 64, 8, 3, &plan->dataset),
                         TESS_OK);
    else
        assert_int_equal(
            tess_dataset_open_synthetic(tess_shape3(6, 6, 1), 5, 64, 8, 3, &plan->dataset),
            TESS_OK);
    assert_int_equal(tess_engine_plan(plan->config, plan->dataset, rank, &plan->engine), TESS_OK);
}

static void plan_close(struct plan *plan)
{
    tess_engine_close(plan->engine);
    tess_dataset_close(plan->dataset);
    tess_config_close(plan->config);
}

/* ---- the bytes of an owner ------------------------------------------------------------------- */

struct count {
    enum tess_memory_kind kind;
    const char *owner;
    int32_t blocks; /* that have any bytes */
    uint64_t bytes;
};

static void count_visit(void *context, enum tess_memory_kind kind, const char *owner,
                        struct tess_block block)
{
    struct count *count = context;
    if (kind != count->kind || strcmp(owner, count->owner) != 0 || block.bytes == 0)
        return;
    count->blocks++;
    count->bytes += block.bytes;
}

static struct count count_of(const struct tess_engine *engine, enum tess_memory_kind kind,
                             const char *owner)
{
    struct count count = {.kind = kind, .owner = owner};
    tess_memory_visit(engine->memory, count_visit, &count);
    return count;
}

static uint64_t round_to(uint64_t bytes, uint64_t align)
{
    return (bytes + align - 1) / align * align;
}

/* As a block of the plan. */
static uint64_t block_bytes(uint64_t bytes)
{
    return round_to(bytes, TESS_MEMORY_ALIGN);
}

/* ---- what the schedule promises -------------------------------------------------------------- */

struct schedule {
    enum tess_pipe_schedule kind;
    const char *options;
    int32_t chunks;
};
static const struct schedule schedules[] = {
    {TESS_PIPE_GPIPE, "--pp.schedule gpipe", 1},
    {TESS_PIPE_1F1B, "--pp.schedule 1f1b", 1},
    {TESS_PIPE_INTERLEAVED, "--pp.schedule interleaved", 2},
    {TESS_PIPE_INTERLEAVED, "--pp.schedule interleaved --pp.chunks 3", 3},
};

/* gpipe keeps all (Huang et al. 2019), 1f1b one for each stage from here to the end (Narayanan et
 * al. 2021, section 2.2.1); for interleaved see pipe.h. */
static int32_t promised(const struct schedule *schedule, int32_t stages, int32_t stage,
                        int32_t chunk, int32_t micros)
{
    const struct tess_pipe pipe = {schedule->kind, stages, schedule->chunks, micros};
    if (schedule->kind == TESS_PIPE_GPIPE)
        return micros;
    if (schedule->kind == TESS_PIPE_1F1B)
        return micros < stages - stage ? micros : stages - stage;
    return tess__pipe_in_flight(&pipe, stage, chunk);
}

/* A tensor has a room for each micro-batch under way if it lives from forward to backward. */
static bool keeps(const struct tess_engine *engine, const struct tess_declare_tensor *tensor)
{
    const enum tess_recompute how = tess__engine_recompute(engine, tensor->unit);
    if (tensor->life == TESS_LIFE_UNIT || tensor->life == TESS_LIFE_CALL)
        return false;
    if (tensor->life == TESS_LIFE_REMADE)
        return how == TESS_RECOMPUTE_NONE;
    return how != TESS_RECOMPUTE_FULL;
}

/* Outputs and kept tensors of a chunk, of one micro-batch; in the plan they are aligned. */
static uint64_t chunk_bytes(const struct tess_engine *engine, const struct tess_chunk *chunk)
{
    const struct tess_declare *declare = &engine->declare;
    uint64_t bytes = 0;
    for (int32_t u = chunk->unit_first; u < chunk->unit_end; u++)
        bytes += block_bytes((uint64_t)(declare->unit[u].output_count * engine->sizes.rows) *
                             engine->sizes.dtype_bytes);
    for (int32_t t = 0; t < declare->tensor_count; t++) {
        const struct tess_declare_tensor *tensor = &declare->tensor[t];
        const int64_t times = tensor->life == TESS_LIFE_BATCH    ? 1
                              : tensor->life == TESS_LIFE_LEAVES ? engine->sizes.leaf_count
                                                                 : engine->sizes.rows;
        if (tensor->unit >= chunk->unit_first && tensor->unit < chunk->unit_end &&
            keeps(engine, tensor))
            bytes +=
                block_bytes((uint64_t)(tensor->count * times) * tess_dtype_bytes(tensor->dtype));
    }
    return bytes;
}

/* Buffers between stages: activations of what is under way and one asked for ahead, gradients two
 * each way. */
static uint64_t check_buffers(const struct tess_engine *engine)
{
    const struct tess_schedule *pipe = &engine->schedule;
    uint64_t inputs = 0, in = 0, out = 0;
    for (int32_t c = 0; c < pipe->chunk_count; c++) {
        const struct tess_chunk *chunk = &pipe->chunk[c];
        const uint64_t row = (uint64_t)engine->sizes.rows * engine->sizes.dtype_bytes;
        const uint64_t input = round_to((uint64_t)chunk->input_count * row, 64);
        const uint64_t output =
            (uint64_t)engine->declare.unit[chunk->unit_end - 1].output_count * row;
        inputs += input * (uint64_t)(chunk->slot_count + 1);
        out = input > out ? input : out;
        in = !chunk->last && output > in ? output : in;
    }
    const struct count before =
        count_of(engine, TESS_MEMORY_ACTIVATION, "activations from the stage before");
    const struct count after =
        count_of(engine, TESS_MEMORY_ACTIVATION, "gradients from the stage after");
    const struct count back =
        count_of(engine, TESS_MEMORY_ACTIVATION, "gradients to the stage before");
    assert_int_equal(before.bytes, inputs);
    assert_int_equal(after.bytes, 2 * in);
    assert_int_equal(back.bytes, 2 * out);
    return block_bytes(inputs) + 2 * block_bytes(in) + 2 * block_bytes(out);
}

/* Rows of the first stage and labels of the last stay while others are loaded. */
static void check_kept(const struct tess_engine *engine)
{
    const struct tess_chunk *first = &engine->schedule.chunk[0];
    const struct tess_chunk *last = &engine->schedule.chunk[engine->schedule.chunk_count - 1];
    const uint64_t tokens = (uint64_t)engine->sizes.rows * LENGTH * 4;
    const struct count rows = count_of(engine, TESS_MEMORY_INPUT, "rows under way");
    const struct count labels = count_of(engine, TESS_MEMORY_INPUT, "labels under way");
    const int32_t row_slots = first->first && first->slot_count > 1 ? first->slot_count : 0;
    const int32_t label_slots = last->last && last->slot_count > 1 ? last->slot_count : 0;
    assert_int_equal(rows.bytes, (uint64_t)row_slots * tokens);
    assert_int_equal(labels.bytes, (uint64_t)label_slots * tokens);
}

/* What there is one of, however many micro-batches are under way. */
static uint64_t single_bytes(const struct tess_engine *engine)
{
    static const char *const owner[] = {"gradient flow 0",   "gradient flow 1",
                                        "unit scratch",      "loss",
                                        "output made again", "correct answers"};
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof(owner) / sizeof(owner[0]); i++) {
        const struct count count = count_of(engine, TESS_MEMORY_ACTIVATION, owner[i]);
        assert_in_range(count.blocks, 0, 1);
        bytes += block_bytes(count.bytes);
    }
    return bytes;
}

/* All of a rank's activations are those of the micro-batches under way, what goes between stages,
 * and what there is one of. */
static void check_rank(const struct schedule *schedule, int32_t stages, int32_t stage,
                       int32_t micros, const char *more)
{
    struct plan plan;
    char options[400];
    uint64_t moving = 0;
    snprintf(options, sizeof(options),
             "--model gpt --gpt.layers 9 --gpt.width 16 --data.length 8 --strategy pp --ranks %d "
             "--grid 32 --accumulate %d %s %s",
             (int)stages, (int)micros, schedule->options, more);
    plan_open(&plan, options, stage);
    const struct tess_engine *engine = plan.engine;
    assert_int_equal(engine->schedule.chunk_count, schedule->chunks);
    for (int32_t c = 0; c < schedule->chunks; c++) {
        const struct tess_chunk *chunk = &engine->schedule.chunk[c];
        const int32_t slots = promised(schedule, stages, stage, c, micros);
        assert_int_equal(chunk->slot_count, slots);
        assert_true(chunk->unit_end > chunk->unit_first);
        moving += (uint64_t)slots * chunk_bytes(engine, chunk);
        for (int32_t u = chunk->unit_first; u < chunk->unit_end; u++) {
            char owner[80];
            snprintf(owner, sizeof(owner), "%s output", engine->declare.unit[u].name);
            assert_int_equal(count_of(engine, TESS_MEMORY_ACTIVATION, owner).blocks, slots);
        }
    }
    moving += check_buffers(engine);
    check_kept(engine);
    assert_int_equal(tess_memory_bytes(engine->memory, TESS_MEMORY_ACTIVATION),
                     moving + single_bytes(engine));
    plan_close(&plan);
}

static void case_in_flight(void **state)
{
    static const char *const more[] = {"", "--recompute selective", "--recompute full",
                                       "--recompute every:2 --precision bf16"};
    (void)state;
    for (size_t s = 0; s < sizeof(schedules) / sizeof(schedules[0]); s++) {
        for (int32_t stages = 2; stages <= 4; stages += 2) {
            for (int32_t stage = 0; stage < stages; stage++) {
                const char *with = more[(s + (size_t)stage) % 4];
                for (int32_t micros = 4; micros <= 16; micros *= 2)
                    check_rank(&schedules[s], stages, stage, micros, with);
            }
        }
    }
}

/* ---- who runs what --------------------------------------------------------------------------- */

/* Every unit is run by one rank, in the order of virtual stages; the first has the rows, the last
 * the labels, and what comes in is what goes out before. */
static void case_units(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof(schedules) / sizeof(schedules[0]); s++) {
        enum { STAGES = 3 };
        struct plan plan[STAGES];
        int32_t next = 0;
        for (int32_t r = 0; r < STAGES; r++) {
            char options[400];
            snprintf(options, sizeof(options),
                     "--model gpt --gpt.layers 9 --gpt.width 16 --data.length 8 --strategy pp "
                     "--ranks 3 --grid 32 --batch-size 96 --accumulate 3 --grid 96 %s",
                     schedules[s].options);
            plan_open(&plan[r], options, r);
        }
        for (int32_t v = 0; v < STAGES * schedules[s].chunks; v++) {
            const struct tess_engine *engine = plan[v % STAGES].engine;
            const struct tess_chunk *chunk = &engine->schedule.chunk[v / STAGES];
            assert_int_equal(chunk->first, v == 0);
            assert_int_equal(chunk->last, v == STAGES * schedules[s].chunks - 1);
            assert_int_equal(chunk->before, (v + STAGES - 1) % STAGES);
            assert_int_equal(chunk->after, (v + 1) % STAGES);
            assert_int_equal(chunk->input_count,
                             v == 0 ? 0 : engine->model.unit[next - 1].output_count);
            for (int32_t u = chunk->unit_first; u < chunk->unit_end; u++, next++) {
                assert_int_equal(engine->declare.unit[u].index, next);
                assert_int_equal(engine->declare.unit[u].chunk, v / STAGES);
                assert_int_equal(engine->schedule.stage_of[next], v);
            }
        }
        assert_int_equal(next, plan[0].engine->model.unit_count);
        for (int32_t r = 0; r < STAGES; r++) {
            assert_int_equal(tess__schedule_loads(&(plan[r].engine)->schedule),
                             r == 0 || r == STAGES - 1);
            assert_int_equal(tess__schedule_has_loss(&(plan[r].engine)->schedule), r == STAGES - 1);
            plan_close(&plan[r]);
        }
    }
}

/* Without a stage axis: one chunk of all units, one micro-batch at a time, no buffers. */
static void case_one_stage(void **state)
{
    struct plan plan;
    (void)state;
    plan_open(&plan, "--model mlp --mlp.hidden 12,8 --strategy single --accumulate 4", 0);
    const struct tess_schedule *pipe = &plan.engine->schedule;
    assert_int_equal(pipe->chunk_count, 1);
    assert_int_equal(pipe->slot_max, 1);
    assert_int_equal(pipe->chunk[0].unit_end, 3);
    assert_int_equal(pipe->action_count, 8);
    for (int32_t i = 0; i < 8; i++) {
        assert_int_equal(pipe->action[i].micro, i / 2);
        assert_int_equal(pipe->action[i].phase,
                         i % 2 == 0 ? TESS_PHASE_FORWARD : TESS_PHASE_BACKWARD);
    }
    assert_false(plan.engine->plan.pipelined);
    assert_int_equal(check_buffers(plan.engine), 0);
    plan_close(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_in_flight),
        cmocka_unit_test(case_units),
        cmocka_unit_test(case_one_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
