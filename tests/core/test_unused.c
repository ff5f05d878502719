/*
 * Parameters that a step does not use: with --find-unused every layout gives the bits of one rank,
 * and a parameter that no rank used keeps value and optimizer state; without it all ranks stop at
 * the same step, nothing updated, and the message names parameters and ranks; a model that leaves
 * parameters unused without saying so is named.
 *
 * The models are perceptrons on rows of 6 x 6 with hidden layers of 36, 36, 24, 24: fc1, fc2 and
 * fc4 are as wide as their input and may be left out.
 */
#include "config/config.h"
#include "core/state.h"
#include "harness/world.h"
#include "strategies/runs.h"
#include "tessera/tessera.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MLP                                                                                        \
    "--model mlp --mlp.hidden 36,36,24,24 --batch-size 48 --learning-rate 0.05 --evaluate=off "    \
    "--bind=off --data.workers 0 "

static const int square_unit[] = {0, 1, 3};

/* ---- the same bits --------------------------------------------------------------------------- */

struct layout {
    const char *strategy;
    const char *options;
};

static const struct layout layouts[] = {
    {"dp", ""},
    {"ddp", "--ddp.first-bucket-mib 0.002 --ddp.bucket-mib 0.006"},
    {"zero1", "--zero1.first-bucket-mib 0.002 --zero1.bucket-mib 0.006"},
    {"zero2", "--zero2.first-bucket-mib 0 --zero2.bucket-mib 0"},
    {"fsdp", ""},
    {"hsdp", ""},
};
#define LAYOUTS ((int)(sizeof(layouts) / sizeof(layouts[0])))

static struct run run_of(const char *strategy, const char *kernel, const char *options,
                         int32_t ranks)
{
    return (struct run){.strategy = strategy,
                        .kernel = kernel,
                        .options = options,
                        .rank_count = ranks,
                        .steps = 5,
                        .mode = TESS_RANKS_THREADS};
}

static uint64_t hash_of(const struct run *run)
{
    struct run_outcome outcome;
    run_train(run, &outcome);
    return outcome.hash;
}

/* `options` on the ranks given, under every layout, against one rank. */
static void check_layouts(const char *kernel, const char *options, const int32_t *ranks,
                          int rank_cases)
{
    struct run run = run_of("single", kernel, options, 1);
    const uint64_t expected = hash_of(&run);
    char words[640];
    for (int l = 0; l < LAYOUTS; l++)
        for (int i = 0; i < rank_cases; i++) {
            snprintf(words, sizeof(words), "%s %s", options, layouts[l].options);
            run = run_of(layouts[l].strategy, kernel, words, ranks[i]);
            const uint64_t hash = hash_of(&run);
            if (hash != expected)
                print_error("%s on %d ranks with %s: hash %016llx, one rank has %016llx\n",
                            run.strategy, (int)ranks[i], words, (unsigned long long)hash,
                            (unsigned long long)expected);
            assert_int_equal(hash, expected);
        }
}

static void case_same_bits(void **state)
{
    static const char *const scope[] = {"step", "leaf"};
    static const char *const optimizer[] = {
        "--optimizer momentum --weight-decay 0.01 --clip 0.5",
        "--optimizer adamw --weight-decay 0.01 --precision bf16",
        "--optimizer lamb --weight-decay 0.01",
        "--optimizer novograd --weight-decay 0.001",
    };
    static const int32_t even[] = {1, 2, 4}, odd[] = {3};
    char options[512];
    (void)state;
    for (int s = 0; s < 2; s++) {
        for (int o = 0; o < 4; o++) {
            snprintf(options, sizeof(options),
                     MLP "--mlp.layer-drop 0.6 --mlp.layer-drop-scope %s --find-unused --grid 4 %s",
                     scope[s], optimizer[o]);
            check_layouts("ref", options, &even[o < 2 ? 0 : 2], o < 2 ? 3 : 1);
        }
        snprintf(options, sizeof(options),
                 MLP "--mlp.layer-drop 0.6 --mlp.layer-drop-scope %s --find-unused --grid 6 "
                     "--mlp.dropout 0.2 --optimizer momentum",
                 scope[s]);
        check_layouts("ref", options, odd, 1);
        snprintf(options, sizeof(options),
                 MLP "--mlp.layer-drop 0.6 --mlp.layer-drop-scope %s --find-unused --grid 8 "
                     "--accumulate 2 --optimizer adamw",
                 scope[s]);
        check_layouts("guard", options, &even[2], 1);
    }
}

/* Without a drop the options change nothing; with one, steps and leaves are not the same. */
static void case_drop_tells_apart(void **state)
{
    struct run run = run_of("ddp", "ref", MLP "--grid 4", 2);
    uint64_t plain, none, step, leaf;
    (void)state;
    plain = hash_of(&run);
    run.options = MLP "--grid 4 --mlp.layer-drop 0 --mlp.layer-drop-scope leaf --find-unused";
    none = hash_of(&run);
    run.options = MLP "--grid 4 --mlp.layer-drop 0.5 --find-unused";
    step = hash_of(&run);
    run.options = MLP "--grid 4 --mlp.layer-drop 0.5 --mlp.layer-drop-scope leaf --find-unused";
    leaf = hash_of(&run);
    assert_int_equal(plain, none);
    assert_int_not_equal(plain, step);
    assert_int_not_equal(plain, leaf);
    assert_int_not_equal(step, leaf);
}

/* ---- the stop -------------------------------------------------------------------------------- */

#define STOP_RANKS 4

struct stop {
    struct tess_config *config;
    struct tess_dataset *dataset;
    bool leaves; /* who fails stops the others at once, as ranks do that end */
    enum tess_status status[STOP_RANKS];
    int64_t step[STOP_RANKS]; /* that failed, from 1 */
    uint64_t before[STOP_RANKS], after[STOP_RANKS];
    char text[STOP_RANKS][2048];
};

/* Step until one fails; the others get no message, and all return. */
static int stop_rank(struct tess_comm *comm, struct tess_world *world, void *arg)
{
    struct stop *stop = arg;
    const int32_t rank = comm->rank;
    struct tess_engine *engine = NULL;
    struct tess_step_result result;
    enum tess_status status = TESS_OK;
    WORLD_OK(tess_engine_open(stop->config, stop->dataset, comm, world, &engine));
    for (stop->step[rank] = 0; status == TESS_OK && stop->step[rank] < 20; stop->step[rank]++) {
        WORLD_OK(tess_engine_hash(engine, &stop->before[rank]));
        status = tess_engine_step(engine, true, &result);
    }
    stop->status[rank] = status;
    snprintf(stop->text[rank], sizeof(stop->text[rank]), "%s", tess_log_last_error());
    stop->after[rank] = stop->before[rank];
    if (stop->leaves)
        tess_comm_abort(comm, "a rank failed");
    else
        WORLD_OK(tess_engine_hash(engine, &stop->after[rank]));
    tess_engine_close(engine);
    return 0;
}

static void open_config(const char *words, struct tess_config **config_out)
{
    char copy[1024];
    char *argv[64];
    int argc = 0;
    snprintf(copy, sizeof(copy), "--kernel ref --data synthetic --steps 30 %s", words);
    for (char *rest = copy, *word; (word = strsep(&rest, " ")) != NULL;)
        if (*word != '\0')
            argv[argc++] = word;
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, config_out), TESS_OK);
}

static void open_data(struct tess_dataset **dataset_out)
{
    assert_int_equal(tess_dataset_open_synthetic(tess_shape3(6, 6, 1), 5, 192, 50, 3, dataset_out),
                     TESS_OK);
}

static bool drawn(uint64_t seed, int64_t step, int unit, int64_t leaf)
{
    const struct tess_pass pass = {.seed = seed, .step = (uint64_t)step - 1, .unit = unit};
    return tess_pass_uniform(&pass, (uint64_t)leaf) < 0.1f;
}

/* With one leaf a rank: the ranks that did not use the layer, as in the message; NULL when all did.
 */
static const char *expected_ranks(uint64_t seed, int64_t step, int unit, char text[40])
{
    char list[24] = "";
    int count = 0;
    size_t length = 0;
    for (int r = 0; r < STOP_RANKS; r++)
        if (drawn(seed, step, unit, r))
            length += (size_t)snprintf(list + length, sizeof(list) - length, "%s%d",
                                       count++ ? ", " : "", r);
    if (count == 0)
        return NULL;
    assert_true(count < STOP_RANKS);
    snprintf(text, 40, "(on rank%s %s)", count > 1 ? "s" : "", list);
    return text;
}

/* The first step in which any layer is left out, and what rank 0 must report. */
static void check_stop(const struct stop *stop, uint64_t seed)
{
    int64_t step = 0;
    int layers = 0, named = 0;
    char ranks[40], part[160];
    while (layers == 0) {
        step++;
        for (int u = 0; u < 3; u++)
            layers += expected_ranks(seed, step, square_unit[u], ranks) != NULL;
    }
    for (int r = 0; r < STOP_RANKS; r++) {
        assert_int_equal(stop->step[r], step);
        assert_int_equal(stop->status[r], r == 0 ? TESS_ERR_USAGE : TESS_ERR_ABORTED);
        assert_int_equal(stop->before[r], stop->after[r]);
        assert_true(r == 0 || stop->leaves || stop->text[r][0] == '\0');
    }
    /* The wait for the others may have put its message over rank 0's own by then. */
    if (stop->leaves)
        return;
    for (int u = 0; u < 3; u++) {
        if (expected_ranks(seed, step, square_unit[u], ranks) == NULL || named++ >= 2)
            continue;
        snprintf(part, sizeof(part), "'fc%d.weight' %s, 'fc%d.bias' %s", square_unit[u] + 1, ranks,
                 square_unit[u] + 1, ranks);
        if (strstr(stop->text[0], part) == NULL)
            print_error("expected %s in: %s\n", part, stop->text[0]);
        assert_non_null(strstr(stop->text[0], part));
    }
    snprintf(part, sizeof(part), "step %d left %d parameters", (int)step, 2 * layers);
    assert_non_null(strstr(stop->text[0], part));
    assert_non_null(strstr(stop->text[0], "--find-unused"));
    assert_true((strstr(stop->text[0], "and 2 more") != NULL) == (layers == 3));
}

static void stop_run(const struct layout *layout, uint64_t seed, bool leaves)
{
    static struct stop stop;
    char words[512];
    const struct world_setup setup = {
        .ranks = STOP_RANKS, .mode = TESS_RANKS_THREADS, .timeout_s = 5, .limit_s = 15};
    struct world_report report;
    memset(&stop, 0, sizeof(stop));
    stop.leaves = leaves;
    snprintf(words, sizeof(words),
             MLP "--strategy %s --ranks 4 --grid 4 --seed %d --mlp.layer-drop 0.1 "
                 "--mlp.layer-drop-scope leaf %s",
             layout->strategy, (int)seed, layout->options);
    open_config(words, &stop.config);
    open_data(&stop.dataset);
    int failed = world_run_setup(&setup, stop_rank, &stop, &report);
    world_print(&report);
    assert_int_equal(failed, 0);
    check_stop(&stop, seed);
    tess_dataset_close(stop.dataset);
    tess_config_close(stop.config);
}

static void case_stops_and_names(void **state)
{
    (void)state;
    for (int l = 0; l < LAYOUTS; l++)
        stop_run(&layouts[l], 20 + (uint64_t)l, false);
}

/* Also when the first to fail ends the run for the others: rank 0's message is printed. */
static void case_stops_in_any_order(void **state)
{
    (void)state;
    for (uint64_t seed = 40; seed < 60; seed++)
        stop_run(&layouts[seed % LAYOUTS], seed, true);
}

/* ---- one rank -------------------------------------------------------------------------------- */

struct one {
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct tess_comm *comm;
    struct tess_engine *engine;
};

static void one_open(struct one *one, const char *options, const struct tess_model_ops *model)
{
    char words[512];
    memset(one, 0, sizeof(*one));
    snprintf(words, sizeof(words), MLP "--strategy single %s", options);
    open_config(words, &one->config);
    if (model)
        one->config->model = model;
    open_data(&one->dataset);
    assert_int_equal(tess_comm_self_open(TESS_ORDER_CANONICAL, &one->comm), TESS_OK);
    assert_int_equal(tess_engine_open(one->config, one->dataset, one->comm, NULL, &one->engine),
                     TESS_OK);
}

static void one_close(struct one *one)
{
    tess_engine_close(one->engine);
    tess_comm_close(one->comm);
    tess_dataset_close(one->dataset);
    tess_config_close(one->config);
}

static void case_stops_on_one_rank(void **state)
{
    struct one one;
    struct tess_step_result result;
    (void)state;
    one_open(&one, "--mlp.layer-drop 0.9 --seed 1", NULL);
    assert_int_equal(tess_engine_step(one.engine, false, &result), TESS_ERR_USAGE);
    assert_non_null(strstr(tess_log_last_error(), "'fc1.weight' (on all ranks)"));
    one_close(&one);
}

/* What a step may change of parameter p: value, state arrays, number. */
struct snapshot {
    float *value;
    size_t count;
};

static struct snapshot take(const struct tess_engine *engine, int32_t p)
{
    const struct tess_optim *optim = &engine->optim;
    const struct tess_piece *piece = &engine->piece[p];
    const int32_t arrays = optim->ops->state_arrays;
    const size_t count = (size_t)piece->count;
    struct snapshot shot = {NULL, count * (size_t)(1 + arrays) + 1};
    assert_int_equal(piece->param, p);
    shot.value = calloc(shot.count, sizeof(*shot.value));
    assert_non_null(shot.value);
    memcpy(shot.value, piece->w, count * sizeof(float));
    for (int32_t a = 0; a < arrays; a++)
        memcpy(shot.value + (size_t)(1 + a) * count,
               optim->state + a * optim->state_count + piece->state_begin, count * sizeof(float));
    if (optim->ops->tensor_moment)
        shot.value[shot.count - 1] = optim->tensor_state[p];
    return shot;
}

static bool same_as(struct snapshot *before, const struct tess_engine *engine, int32_t p)
{
    struct snapshot now = take(engine, p);
    const bool same = memcmp(before->value, now.value, now.count * sizeof(float)) == 0;
    free(before->value);
    free(now.value);
    return same;
}

static bool may_be_left_out(int unit)
{
    return unit == square_unit[0] || unit == square_unit[1] || unit == square_unit[2];
}

static void check_untouched(const char *optimizer)
{
    struct one one;
    struct snapshot before[10];
    struct tess_step_result result;
    char options[256];
    int left_out = 0, used = 0;
    snprintf(options, sizeof(options),
             "--mlp.layer-drop 0.5 --find-unused --seed 3 --weight-decay 0.1 --optimizer %s",
             optimizer);
    one_open(&one, options, NULL);
    for (int64_t step = 1; step <= 8; step++) {
        for (int32_t p = 0; p < 10; p++)
            before[p] = take(one.engine, p);
        assert_int_equal(tess_engine_step(one.engine, false, &result), TESS_OK);
        for (int32_t p = 0; p < 10; p++) {
            const struct tess_pass pass = {.seed = 3, .step = (uint64_t)step - 1, .unit = p / 2};
            const bool out = may_be_left_out(p / 2) && tess_pass_uniform(&pass, 0) < 0.5f;
            assert_int_equal(same_as(&before[p], one.engine, p), out);
            left_out += out;
            used += !out;
        }
    }
    assert_true(left_out >= 8 && used >= 40);
    one_close(&one);
}

/* What no rank used is untouched, to the bit: value, both moments, NovoGrad's number; the rest is
 * not. */
static void case_untouched(void **state)
{
    (void)state;
    check_untouched("momentum");
    check_untouched("adamw");
    check_untouched("novograd");
    check_untouched("lamb");
}

/*
 * Adam's first update of an element is lr g / (|g| + eps'), whenever it comes: the moments of a
 * parameter that was left out before are corrected for its own age. Of the largest gradients the
 * update is lr but for eps/|g|. With the age of the run, a first update in step 2 is at most 0.75.
 */
static void case_own_age(void **state)
{
    const float rate = 0.05f;
    struct one one;
    struct tess_step_result result;
    bool seen[3] = {false};
    int late = 0;
    (void)state;
    one_open(&one, "--mlp.layer-drop 0.7 --find-unused --seed 4 --optimizer adamw", NULL);
    for (uint64_t step = 0; step < 8; step++) {
        struct snapshot before[3];
        for (int u = 0; u < 3; u++)
            before[u] = take(one.engine, 2 * square_unit[u]);
        assert_int_equal(tess_engine_step(one.engine, false, &result), TESS_OK);
        for (int u = 0; u < 3; u++) {
            const struct tess_piece *piece = &one.engine->piece[2 * square_unit[u]];
            const struct tess_pass pass = {.seed = 4, .step = step, .unit = square_unit[u]};
            const bool first = !seen[u] && tess_pass_uniform(&pass, 0) >= 0.7f;
            float most = 0;
            for (int64_t i = 0; i < piece->count; i++)
                most = fmaxf(most, fabsf(piece->w[i] - before[u].value[i]));
            assert_true(!first || fabsf(most / rate - 1) < 1e-3f);
            seen[u] = seen[u] || first;
            late += first && step > 0;
            free(before[u].value);
        }
    }
    assert_true(late > 0);
    one_close(&one);
}

/* NovoGrad's second moment begins with |g|^2, whenever that comes; as an average it would begin
 * with 1 - beta2 of that. The sums here are of less than 2000 squares, in double. */
static void case_own_age_novograd(void **state)
{
    struct one one;
    struct tess_step_result result;
    bool seen[3] = {false};
    int late = 0;
    (void)state;
    one_open(&one, "--mlp.layer-drop 0.7 --find-unused --seed 4 --optimizer novograd", NULL);
    for (uint64_t step = 0; step < 8; step++) {
        assert_int_equal(tess_engine_step(one.engine, false, &result), TESS_OK);
        for (int u = 0; u < 3; u++) {
            const struct tess_piece *piece = &one.engine->piece[2 * square_unit[u]];
            const struct tess_pass pass = {.seed = 4, .step = step, .unit = square_unit[u]};
            const bool first = !seen[u] && tess_pass_uniform(&pass, 0) >= 0.7f;
            double square = 0;
            for (int64_t i = 0; i < piece->count; i++)
                square += (double)piece->g[i] * (double)piece->g[i];
            const double moment = (double)one.engine->optim.tensor_state[piece->param];
            assert_true(!first || fabs(moment / square - 1) < 1e-6);
            seen[u] = seen[u] || first;
            late += first && step > 0;
        }
    }
    assert_true(late > 0);
    one_close(&one);
}

/* ---- other models ---------------------------------------------------------------------------- */

static const struct tess_model_ops *mlp_ops;

/* As mlp, but fc2's bias is marked as unused. */
static enum tess_status forgetful_backward(void *state, const struct tess_pass *pass)
{
    enum tess_status status = mlp_ops->backward(state, pass);
    if (pass->unit == 1)
        pass->used[3] = false;
    return status;
}

static enum tess_status honest_declare(void *state, const void *options,
                                       const struct tess_model_input *input,
                                       struct tess_declare *declare)
{
    tess_declare_conditional(declare);
    return mlp_ops->declare(state, options, input, declare);
}

static void case_undeclared(void **state)
{
    struct one one;
    struct tess_step_result result;
    (void)state;
    assert_int_equal(tess_registry_get_model("mlp", &mlp_ops), TESS_OK);
    struct tess_model_ops model = *mlp_ops;
    model.backward = forgetful_backward;
    one_open(&one, "--find-unused", &model);
    assert_int_equal(tess_engine_step(one.engine, false, &result), TESS_ERR_INTERNAL);
    assert_non_null(strstr(tess_log_last_error(), "'fc2.bias'"));
    assert_non_null(strstr(tess_log_last_error(), "tess_declare_conditional"));
    one_close(&one);

    model.declare = honest_declare;
    one_open(&one, "--find-unused --weight-decay 0.1", &model);
    struct snapshot bias = take(one.engine, 3), weight = take(one.engine, 2);
    for (int i = 0; i < 3; i++)
        assert_int_equal(tess_engine_step(one.engine, false, &result), TESS_OK);
    assert_true(same_as(&bias, one.engine, 3));
    assert_false(same_as(&weight, one.engine, 2));
    one_close(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_same_bits),         cmocka_unit_test(case_drop_tells_apart),
        cmocka_unit_test(case_stops_and_names),   cmocka_unit_test(case_stops_in_any_order),
        cmocka_unit_test(case_stops_on_one_rank), cmocka_unit_test(case_untouched),
        cmocka_unit_test(case_own_age),           cmocka_unit_test(case_own_age_novograd),
        cmocka_unit_test(case_undeclared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
