/*
 * Audits: a bit that one rank flips in a gradient, or in what a stage sends to another one, is
 * found in the step in which that happens, in its own computation, in the one for the audit or in
 * both, and the rank and the tensor are named; runs without a fault raise no alarm and end with the
 * bits of a run without audits, under every layout.
 */
#include "base/rng.h"
#include "config/config.h"
#include "core/state.h"
#include "data/data.h"
#include "harness/world.h"
#include "strategies/runs.h"
#include "tessera/tessera.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#define COMMON "--batch-size 48 --learning-rate 0.05 --evaluate=off --bind=off --data.workers 0 "
#define MLP    COMMON "--model mlp --mlp.hidden 36,24 "
#define CNN    COMMON "--model cnn --cnn.channels 4,8 "
#define GPT                                                                                        \
    COMMON "--model gpt --gpt.layers 2 --gpt.width 16 --gpt.heads 4 --gpt.dropout 0.1 "            \
           "--data.length 12 "

/* ---- faults ---------------------------------------------------------------------------------- */

enum kind { IN_STEP, IN_AUDIT, ALWAYS, KINDS };

struct fault {
    enum kind kind;
    bool message;       /* in what a unit or a stage passes on, else in a parameter's gradient */
    bool spread;        /* ranks that add parts of layers compute with it before it is found */
    int32_t rank, step; /* step from 0 */
    uint32_t draw[4];   /* which tensor, element and bit */
    char tensor[96];    /* by the rank, when it has flipped the bit */
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct answer {
        enum tess_status status;
        int32_t step;
        char text[512];
    } answer[RUN_RANKS_MAX];
};

/* Of this rank. */
static _Thread_local struct fault *faulty;
static _Thread_local struct tess_engine *engine;
static const struct tess_model_ops *healthy;

static bool fault_is_due(const struct tess_pass *pass)
{
    const struct tess_audit *audit = &engine->audit;
    const bool first = audit->pass == TESS_AUDIT_FIRST;
    if (engine->plan.mesh.rank != faulty->rank || pass->step != (uint64_t)faulty->step ||
        (first && engine->strategy.micro != audit->micro))
        return false;
    return faulty->kind == ALWAYS || first == (faulty->kind == IN_STEP);
}

/* Flip a bit of one of `count` elements, behind the back of everybody. */
static enum tess_status fault_flip(const struct tess_pass *pass, void *x, int64_t count,
                                   size_t bytes, uint32_t bit)
{
    char *at = (char *)x + faulty->draw[1] % (uint64_t)count * bytes + bit / 8;
    uint8_t bits;
    enum tess_status moved = tess_read(pass->kernel, sizeof(bits), at, &bits);
    bits ^= (uint8_t)(1u << bit % 8);
    return moved == TESS_OK ? tess_write(pass->kernel, sizeof(bits), &bits, at) : moved;
}

static enum tess_status fault_gradient(const struct tess_pass *pass)
{
    const struct tess_plan *plan = &engine->plan;
    const struct tess_plan_param *param =
        &plan->param[faulty->draw[0] % (uint32_t)plan->param_count];
    if (faulty->message || engine->declare.unit[param->unit].index != pass->unit ||
        !fault_is_due(pass))
        return TESS_OK;
    snprintf(faulty->tensor, sizeof(faulty->tensor), "gradient of '%s'", param->name);
    return fault_flip(pass, pass->grad[param->index], param->count, 4, faulty->draw[2] % 32);
}

/* A low bit, so that numbers stay finite: else the step ends before its audit. */
static enum tess_status fault_message(const struct tess_pass *pass, enum tess_phase phase)
{
    const int32_t number = (int32_t)(faulty->draw[0] % (uint32_t)engine->schedule.chunk_count);
    const struct tess_chunk *chunk = &engine->schedule.chunk[number];
    const bool output =
        chunk->first || faulty->spread || (!chunk->last && faulty->draw[3] % 2 == 0);
    const int32_t unit = output && !faulty->spread ? chunk->unit_end - 1 : chunk->unit_first;
    const size_t bytes = engine->sizes.dtype_bytes;
    const uint32_t bit = faulty->draw[2] % (faulty->spread ? 23 : 7);
    if (!faulty->message || output != (phase == TESS_PHASE_FORWARD) ||
        engine->declare.unit[unit].index != pass->unit || !fault_is_due(pass))
        return TESS_OK;
    snprintf(faulty->tensor, sizeof(faulty->tensor), "%s of unit '%s'",
             output ? "output" : "gradient by the input", engine->declare.unit[unit].name);
    return output ? fault_flip(pass, pass->output,
                               engine->declare.unit[unit].output_count * engine->sizes.rows, bytes,
                               bit)
                  : fault_flip(pass, pass->input_grad, tess__stages_input_count(engine, number),
                               bytes, bit);
}

static enum tess_status fault_forward(void *state, const struct tess_pass *pass)
{
    const enum tess_status status = healthy->forward(state, pass);
    return status == TESS_OK ? fault_message(pass, TESS_PHASE_FORWARD) : status;
}

static enum tess_status fault_backward(void *state, const struct tess_pass *pass)
{
    enum tess_status status = healthy->backward(state, pass);
    if (status == TESS_OK)
        status = fault_gradient(pass);
    return status == TESS_OK ? fault_message(pass, TESS_PHASE_BACKWARD) : status;
}

static int fault_body(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct fault *fault = arg;
    struct answer *answer = &fault->answer[comm->rank];
    struct tess_step_result result;
    faulty = fault;
    WORLD_OK(tess_engine_open(fault->config, fault->dataset, comm, world, &engine));
    do {
        answer->status = tess_engine_step(engine, false, &result);
        answer->step += answer->status == TESS_OK;
    } while (answer->status == TESS_OK && answer->step < fault->config->run.steps);
    snprintf(answer->text, sizeof(answer->text), "%s", tess_log_last_error());
    WORLD_OK(tess_comm_barrier(comm)); /* others read this rank's memory until they are done */
    tess_engine_close(engine);
    return 0;
}

struct layout {
    const char *strategy, *options;
    int32_t ranks, data_ranks;
};

static void open_config(const struct layout *layout, struct tess_config **config_out)
{
    char words[1024], *argv[64];
    int argc = 0;
    snprintf(words, sizeof(words),
             "--strategy %s --ranks %d --data synthetic --steps 4 --audit 1 %s", layout->strategy,
             (int)layout->ranks, layout->options);
    for (char *rest = words, *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word != '\0')
            argv[argc++] = word;
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, config_out), TESS_OK);
}

static void check_found(const struct layout *layout, const struct fault *fault)
{
    char named[32], phrase[64];
    snprintf(named, sizeof(named), "rank %d (", (int)(fault->rank - fault->spread));
    snprintf(phrase, sizeof(phrase), "audit of step %d: ", (int)fault->step + 1);
    for (int32_t r = 0; r < layout->ranks; r++) {
        const struct answer *answer = &fault->answer[r];
        const char *text = strstr(answer->text, phrase);
        const bool found =
            answer->status == TESS_ERR_DEVICE && answer->step == fault->step && text != NULL;
        /* Of two ranks one that fails always, or in the audit, is named together with the other. */
        const bool alone = layout->data_ranks != 2 || fault->kind == IN_STEP;
        if (!found || strstr(answer->text, "of host ") == NULL || fault->tensor[0] == '\0' ||
            (strstr(text, "another rank of its tensor axis") != NULL) != fault->spread ||
            (strstr(text, fault->tensor) == NULL) != fault->spread ||
            (alone ? strncmp(text + strlen(phrase), named, strlen(named)) != 0
                   : strstr(text, named) == NULL))
            fail_msg("%s %s, kind %d, rank %d, step %d, %s: rank %d: status %d after %d steps: %s",
                     layout->strategy, layout->options, fault->kind, (int)fault->rank,
                     (int)fault->step, fault->tensor, (int)r, answer->status, (int)answer->step,
                     answer->text);
    }
}

static void inject(const struct layout *layout, const struct fault *planned)
{
    struct fault *fault =
        mmap(NULL, sizeof(*fault), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct tess_model_ops sick;
    assert_true(fault != MAP_FAILED);
    *fault = *planned;
    open_config(layout, &fault->config);
    healthy = fault->config->model;
    sick = *healthy;
    sick.forward = fault_forward;
    sick.backward = fault_backward;
    fault->config->model = &sick;
    if (sick.tokens)
        assert_int_equal(tess_dataset_open_synthetic_tokens(12, 96, 20, 3, &fault->dataset), 0);
    else
        assert_int_equal(
            tess_dataset_open_synthetic(tess_shape3(6, 6, 1), 5, 192, 50, 3, &fault->dataset), 0);
    const struct world_setup setup = {.ranks = layout->ranks,
                                      .mode = TESS_RANKS_THREADS,
                                      .self = strcmp(layout->strategy, "single") == 0};
    struct world_report *report = calloc(1, sizeof(*report));
    assert_non_null(report);
    if (world_run_setup(&setup, fault_body, fault, report) != 0) {
        world_print(report);
        fail_msg("%s %s", layout->strategy, layout->options);
    }
    free(report);
    check_found(layout, fault);
    tess_dataset_close(fault->dataset);
    tess_config_close(fault->config);
    munmap(fault, sizeof(*fault));
}

/* Random ranks, steps, tensors, elements and bits. */
static void check_faults(const struct layout *layout, int layouts, bool message)
{
    const struct tess_rng_key key = tess_rng_key(7, TESS_RNG_TEST, message ? 2 : 1);
    for (uint32_t i = 0; i < (uint32_t)layouts * KINDS; i++) {
        const struct layout *one = &layout[i / KINDS];
        uint32_t word[4];
        struct fault fault = {.kind = (enum kind)(i % KINDS), .message = message};
        if (one->data_ranks == 1 && fault.kind == ALWAYS)
            continue; /* a rank that is alone has nothing to compare its own bits with */
        if (TESTS_DIVISOR > 1 && i % KINDS != i / KINDS % KINDS)
            continue; /* sanitizers: one kind for each layout */
        tess_rng_block(key, i, 0, word);
        tess_rng_block(key, i, 1, fault.draw);
        fault.rank = (int32_t)(word[0] % (uint32_t)one->ranks);
        fault.step = (int32_t)(word[1] % 4);
        inject(one, &fault);
    }
}

#define LAYOUTS(array) ((int)(sizeof(array) / sizeof(*(array))))

static void case_found(void **state)
{
    static const struct layout layout[] = {
        {"single", MLP "--accumulate 2", 1, 1},
        {"ddp", MLP "--accumulate 2", 3, 3},
        {"dp", CNN, 4, 4},
        {"zero1", CNN "--precision bf16", 4, 4},
        {"zero2", MLP "--accumulate 2", 4, 4},
        {"fsdp", GPT, 4, 4},
        {"fsdp", GPT "--precision bf16 --recompute full", 3, 3},
        {"hsdp", MLP "--kernel guard_queue", 4, 4},
        {"ddp", CNN, 2, 2},
        {"fsdp+tp", GPT, 6, 3},
        {"ddp+tp", MLP "--tensor.canonical 4", 6, 3},
    };
    (void)state;
    check_faults(layout, LAYOUTS(layout), false);
}

/* What one stage computes wrongly spreads to all of them; it alone is named. */
static void case_found_stages(void **state)
{
    static const struct layout layout[] = {
        {"pp", MLP "--accumulate 4", 3, 1},
        {"pp", GPT "--accumulate 4 --pp.schedule interleaved", 2, 1},
        {"ddp+pp", CNN "--accumulate 2 --mesh data=3,stage=2 --pp.schedule gpipe", 6, 3},
        {"fsdp+pp", GPT "--accumulate 2 --mesh data=4,stage=2 --pp.schedule interleaved", 8, 4},
        {"zero2+pp", GPT "--accumulate 4 --mesh data=2,stage=3 --precision bf16", 6, 2},
        {"ddp+pp", MLP "--accumulate 4 --mesh data=4,stage=2", 8, 4},
        {"hsdp+pp", MLP "--accumulate 2 --mesh data=4,stage=2 --kernel guard_queue", 8, 4},
        {"fsdp+tp+pp", GPT "--accumulate 2 --mesh data=2,tensor=2,stage=2", 8, 2},
    };
    (void)state;
    check_faults(layout, LAYOUTS(layout), false);
    check_faults(layout, LAYOUTS(layout), true);
}

/* A wrong activation of the second rank of a tensor axis, within a stage: both have it in their
 * sums, and the message says so. */
static void case_spread(void **state)
{
    static const struct layout layout[] = {
        {"fsdp+tp", MLP, 6, 3},
        {"ddp+tp+pp", GPT "--mesh data=2,tensor=2,stage=2", 8, 2},
    };
    (void)state;
    for (int i = 0; i < LAYOUTS(layout); i++) {
        const struct fault fault = {.kind = IN_STEP,
                                    .message = true,
                                    .spread = true,
                                    .rank = i == 0 ? 3 : 7,
                                    .step = 1,
                                    .draw = {0, 5, 22, 0}};
        inject(&layout[i], &fault);
    }
}

/* ---- no alarm -------------------------------------------------------------------------------- */

static void check_quiet(const char *strategy, const char *options, const char *kernel,
                        int32_t ranks)
{
    char audited[512];
    struct run_outcome outcome;
    struct run run = {.options = options,
                      .strategy = strategy,
                      .kernel = kernel,
                      .rank_count = ranks,
                      .steps = TESTS_DIVISOR > 1 ? 2 : 6, /* sanitizers: the same accesses */
                      .mode = TESS_RANKS_THREADS};
    run_train(&run, &outcome);
    snprintf(audited, sizeof(audited), "%s --audit 1", options);
    run.options = audited;
    run_compare(&run, &outcome);
}

static void case_layouts(void **state)
{
    (void)state;
    for (int i = 0; i < run_layout_count; i++)
        for (int32_t ranks = 2; ranks <= 4; ranks++) {
            if (TESTS_DIVISOR > 1 && ranks != 2 + i % 3)
                continue;
            char options[400];
            snprintf(options, sizeof(options), MLP "--accumulate 2 %s", run_layouts[i].options);
            if (ranks != 3)
                check_quiet(run_layouts[i].strategy, options, "cpu", ranks);
            else
                check_quiet(run_layouts[i].strategy, CNN, "ref", ranks);
        }
}

/* Batch statistics, dropout, gradients that are not finite, buffers of rank 0, recomputation,
 * memory that is protected or far, gradients that are rounded on their way. */
static void case_kinds(void **state)
{
    (void)state;
    check_quiet("single", MLP, "cpu", 1);
    check_quiet("fsdp", GPT, "cpu", 4);
    check_quiet("dp", GPT "--precision bf16", "cpu", 3);
    check_quiet("ddp", GPT "--precision f16 --loss-scale dynamic:16777216", "cpu", 4);
    check_quiet("ddp", CNN "--buffers broadcast", "cpu", 2);
    check_quiet("zero2", CNN "--precision bf16 --recompute full --reduce-dtype bf16", "cpu", 4);
    check_quiet("fsdp", MLP, "guard", 2);
    check_quiet("ddp", CNN "--accumulate 2", "guard_queue", 3);
    check_quiet("fsdp+tp", GPT, "cpu", 4);
    check_quiet("fsdp+tp", GPT "--tensor.sequence-parallel on --accumulate 2", "cpu", 4);
    check_quiet("ddp+tp", MLP "--tensor.canonical 4", "cpu", 8);
    check_quiet("tp", CNN, "cpu", 2);
}

/* Schedules, several chunks, tied parameters on two stages, stages without parameters to gather,
 * fewer micro-batches than stages. */
static void case_stages(void **state)
{
    (void)state;
    check_quiet("pp", MLP "--accumulate 4 --pp.schedule gpipe", "cpu", 3);
    check_quiet("pp", GPT "--accumulate 4 --pp.schedule interleaved", "guard", 2);
    check_quiet("pp", GPT, "cpu", 4);
    check_quiet("ddp+pp", GPT "--accumulate 4 --mesh data=3,stage=2", "cpu", 6);
    check_quiet("ddp+pp", CNN "--accumulate 2 --mesh data=2,stage=2", "guard_queue", 4);
    check_quiet("zero1+pp",
                GPT "--accumulate 2 --mesh data=2,stage=2 --pp.schedule gpipe --recompute full "
                    "--precision bf16",
                "cpu", 4);
    check_quiet("zero2+pp", CNN "--accumulate 2 --mesh data=2,stage=3", "cpu", 6);
    check_quiet("fsdp+pp",
                GPT "--accumulate 4 --mesh data=2,stage=2 --pp.schedule interleaved "
                    "--fsdp.reshard-after-forward=on",
                "guard", 4);
    check_quiet("hsdp+pp", MLP "--accumulate 2 --mesh data=4,stage=2", "guard_queue", 8);
    check_quiet("tp+pp", GPT "--accumulate 2 --mesh tensor=2,stage=2 --tensor.sequence-parallel on",
                "cpu", 4);
    check_quiet("fsdp+tp+pp",
                GPT "--accumulate 2 --mesh data=2,tensor=2,stage=2 --pp.schedule interleaved",
                "cpu", 8);
}

static void case_refused(void **state)
{
    (void)state;
    const struct run history = {.options = GPT "--audit 1 --precision bf16 --fp8 history",
                                .strategy = "ddp",
                                .kernel = "ref",
                                .rank_count = 2,
                                .steps = 1};
    assert_int_equal(run_plan(&history), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "use --fp8 now"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_found),   cmocka_unit_test(case_found_stages),
        cmocka_unit_test(case_layouts), cmocka_unit_test(case_kinds),
        cmocka_unit_test(case_stages),  cmocka_unit_test(case_spread),
        cmocka_unit_test(case_refused),
    };
    return cmocka_run_group_tests_name("audit", tests, NULL, NULL);
}
