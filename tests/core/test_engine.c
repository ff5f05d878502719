/*
 * The engine on one rank: it learns, its memory is what was planned, a NaN is named, the hash does
 * not depend on how the grid's leaves are grouped.
 */
#include "comm/world.h"
#include "config/config.h"
#include "core/engine.h"
#include "tessera/tessera.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a run ----------------------------------------------------------------------------------- */

struct run {
    struct tess_config *config;
    struct tess_dataset *dataset;
    struct tess_comm *comm;
    struct tess_engine *engine;
};

/* Open a one-rank run; the arguments end with NULL. */
static void run_open(struct run *run, ...)
{
    char *argv[32];
    int argc = 0;
    va_list list;
    va_start(list, run);
    for (char *word; argc < 32 && (word = va_arg(list, char *)) != NULL;)
        argv[argc++] = word;
    va_end(list);
    memset(run, 0, sizeof(*run));
    assert_int_equal(tess_config_open(argc, argv, NULL, 0, &run->config), TESS_OK);
    assert_int_equal(
        tess_dataset_open_synthetic(tess_shape3(8, 8, 1), 4, 256, 40, 5, &run->dataset), TESS_OK);
    assert_int_equal(tess_comm_self_open(TESS_ORDER_CANONICAL, &run->comm), TESS_OK);
    assert_int_equal(tess_engine_open(run->config, run->dataset, run->comm, NULL, &run->engine),
                     TESS_OK);
}

static void run_close(struct run *run)
{
    tess_engine_close(run->engine);
    tess_comm_close(run->comm);
    tess_dataset_close(run->dataset);
    tess_config_close(run->config);
}

static uint64_t run_steps(struct run *run, int steps, double *loss_out)
{
    struct tess_step_result result;
    uint64_t hash;
    for (int i = 0; i < steps; i++)
        assert_int_equal(tess_engine_step(run->engine, true, &result), TESS_OK);
    assert_int_equal(tess_engine_hash(run->engine, &hash), TESS_OK);
    if (loss_out)
        *loss_out = result.loss;
    return hash;
}

#define SMALL                                                                                      \
    "--model", "mlp", "--mlp.hidden", "24,16", "--data", "synthetic", "--strategy", "single",      \
        "--batch-size", "32", "--steps", "60", "--learning-rate", "0.1"

static void case_learns(void **state)
{
    (void)state;
    const char *const kernel[] = {"ref", "cpu"};
    for (size_t k = 0; k < sizeof(kernel) / sizeof(*kernel); k++) {
        const struct tess_kernel_ops *ops;
        if (tess_registry_get_kernel(kernel[k], &ops) != TESS_OK)
            continue;
        struct run run;
        double first, last, val_loss, val_accuracy;
        run_open(&run, SMALL, "--kernel", kernel[k], NULL);
        run_steps(&run, 1, &first);
        run_steps(&run, 59, &last);
        assert_true(last < 0.5 * first);
        assert_int_equal(tess_engine_evaluate(run.engine, &val_loss, &val_accuracy), TESS_OK);
        assert_true(val_accuracy > 0.7); /* 0.25 is chance */
        run_close(&run);
    }
}

static void case_planned_is_allocated(void **state)
{
    (void)state;
    struct run run;
    struct tess_engine *planned;
    run_open(&run, SMALL, NULL);
    assert_int_equal(tess_engine_plan(run.config, run.dataset, 0, &planned), TESS_OK);
    for (int k = 0; k < TESS_MEMORY_KIND_COUNT; k++)
        assert_int_equal(
            tess_memory_bytes(tess_engine_memory(planned), (enum tess_memory_kind)k),
            tess_memory_bytes(tess_engine_memory(run.engine), (enum tess_memory_kind)k));
    /* Three layers of f32 with biases: at least their bytes, and at least one momentum. */
    uint64_t bytes = 4 * (64 * 24 + 24 + 24 * 16 + 16 + 16 * 4 + 4);
    assert_true(tess_memory_bytes(tess_engine_memory(planned), TESS_MEMORY_PARAMETER) >= bytes);
    tess_engine_close(planned);
    run_close(&run);
}

/* Accumulation and the number of leaves run at once do not change the sum: only the grid does. */
static void case_same_bits(void **state)
{
    (void)state;
    uint64_t hash[4];
    struct run run;
    run_open(&run, SMALL, "--grid", "8", NULL);
    hash[0] = run_steps(&run, 7, NULL);
    run_close(&run);
    run_open(&run, SMALL, "--grid", "8", "--accumulate", "2", NULL);
    hash[1] = run_steps(&run, 7, NULL);
    run_close(&run);
    run_open(&run, SMALL, "--grid", "8", "--accumulate", "8", NULL);
    hash[2] = run_steps(&run, 7, NULL);
    run_close(&run);
    run_open(&run, SMALL, "--grid", "8", "--seed", "9", NULL);
    hash[3] = run_steps(&run, 7, NULL);
    run_close(&run);
    assert_int_equal(hash[0], hash[1]);
    assert_int_equal(hash[0], hash[2]);
    assert_true(hash[0] != hash[3]);
}

static void case_nan_is_named(void **state)
{
    (void)state;
    struct run run;
    struct tess_step_result result;
    enum tess_status status = TESS_OK;
    run_open(&run, SMALL, "--learning-rate", "1000", "--weight-decay", "1", NULL);
    for (int i = 0; i < 60 && status == TESS_OK; i++)
        status = tess_engine_step(run.engine, false, &result);
    assert_int_equal(status, TESS_ERR_NUMERIC);
    assert_non_null(strstr(tess_log_last_error(), "step"));
    assert_non_null(strstr(tess_log_last_error(), "unit '"));
    run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_learns),
        cmocka_unit_test(case_planned_is_allocated),
        cmocka_unit_test(case_same_bits),
        cmocka_unit_test(case_nan_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
