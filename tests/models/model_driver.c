/* See model_driver.h. */
#include "model_driver.h"

#include "base/options.h"
#include "base/rng.h"
#include "kernel_open.h"
#include "tessera/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DRIVER_SEED 7
/* Wide enough that what a residual block adds does not drown what goes past it. */
#define INPUT_RANGE 6

/* Zeroed and aligned as the arena's blocks are for operations. */
static void *driver_alloc(size_t bytes)
{
    const size_t rounded = (bytes + 63) / 64 * 64;
    void *memory = aligned_alloc(64, rounded ? rounded : 64);

    assert_non_null(memory);
    memset(memory, 0, rounded);
    return memory;
}

void *model_read_options(const struct tess_model_ops *model, const char *const *argument,
                         int argument_count)
{
    void *target = driver_alloc(model->options_size);
    struct tess_options *options;
    char *argv[8];
    int positional_count;

    assert_true(argument_count <= 8);
    for (int i = 0; i < argument_count; i++)
        argv[i] = strdup(argument[i]);
    assert_int_equal(tess_options_open(&options), TESS_OK);
    assert_int_equal(tess_options_add(options, "", model->options, target), TESS_OK);
    assert_int_equal(
        tess_options_load_arguments(options, argument_count, argv, NULL, 0, &positional_count),
        TESS_OK);
    tess_options_close(options);
    for (int i = 0; i < argument_count; i++)
        free(argv[i]);
    return target;
}

static void driver_fill(const struct tess_init *init, uint64_t index, float *w, int64_t count)
{
    const struct tess_rng_key key = tess_rng_key(DRIVER_SEED, TESS_RNG_INIT, index);

    for (int64_t i = 0; i < count; i++) {
        switch (init->kind) {
        case TESS_INIT_ZERO:
            w[i] = 0;
            break;
        case TESS_INIT_ONE:
            w[i] = 1;
            break;
        case TESS_INIT_UNIFORM:
            w[i] = init->scale * (2 * tess_rng_uniform(key, (uint64_t)i, 0) - 1);
            break;
        case TESS_INIT_NORMAL:
            w[i] = init->scale * tess_rng_normal(key, (uint64_t)i, 0);
            break;
        }
    }
}

static void driver_open_kernel(struct model_driver *driver, const char *name)
{
    const struct tess_kernel_ops *ops;

    assert_int_equal(tess_registry_get_kernel(name, &ops), TESS_OK);
    assert_int_equal(tess_kernel_open(ops, 1, &driver->kernel), TESS_OK);
}

static void driver_open_ops(struct model_driver *driver)
{
    driver->op = driver_alloc((size_t)driver->declare.op_count * sizeof *driver->op);
    for (int32_t i = 0; i < driver->declare.op_count; i++) {
        struct tess_op *op = driver_alloc(sizeof *op);
        struct tess_op_needs needs = {0};

        op->desc = driver->declare.op[i].desc;
        op->kernel = driver->kernel;
        assert_int_equal(driver->kernel->ops->op_needs(&op->desc, &needs), TESS_OK);
        op->scratch = driver_alloc(needs.scratch_bytes);
        op->packed = driver_alloc(needs.packed_bytes);
        assert_int_equal(driver->kernel->ops->op_open(op), TESS_OK);
        driver->op[i] = op;
    }
}

static void driver_open_arrays(struct model_driver *driver)
{
    const struct tess_declare *declare = &driver->declare;
    const size_t word = tess_dtype_bytes(driver->input.dtype);

    driver->master = driver_alloc((size_t)declare->param_count * sizeof(void *));
    driver->param = driver_alloc((size_t)declare->param_count * sizeof(void *));
    driver->grad = driver_alloc((size_t)declare->param_count * sizeof(void *));
    for (int32_t i = 0; i < declare->param_count; i++) {
        const int64_t count = model_param_count(driver, i);

        driver->master[i] = driver_alloc((size_t)count * sizeof(float));
        driver->param[i] = driver_alloc((size_t)count * word);
        driver->grad[i] = driver_alloc((size_t)count * sizeof(float));
        driver_fill(&declare->param[i].init, (uint64_t)i, driver->master[i], count);
    }
    driver->used = driver_alloc((size_t)declare->param_count * sizeof(bool));
    driver->output = driver_alloc((size_t)declare->unit_count * sizeof(void *));
    driver->output_grad = driver_alloc((size_t)declare->unit_count * sizeof(void *));
    for (int32_t i = 0; i < declare->unit_count; i++) {
        const size_t bytes = (size_t)(driver->rows * declare->unit[i].output_count) * word;

        driver->output[i] = driver_alloc(bytes);
        driver->output_grad[i] = driver_alloc(bytes);
    }
    driver->tensor = driver_alloc((size_t)declare->tensor_count * sizeof(void *));
    for (int32_t i = 0; i < declare->tensor_count; i++) {
        const struct tess_declare_tensor *tensor = &declare->tensor[i];
        const int64_t copies = tensor->life == TESS_LIFE_BATCH    ? 1
                               : tensor->life == TESS_LIFE_LEAVES ? driver->rows / driver->leaf_rows
                                                                  : driver->rows;
        driver->tensor[i] =
            driver_alloc((size_t)(copies * tensor->count) * tess_dtype_bytes(tensor->dtype));
    }
}

void model_open(struct model_driver *driver, const char *model, const char *kernel,
                enum tess_dtype dtype, struct tess_shape row, int32_t class_count, int64_t rows,
                int64_t leaf_rows, const char *const *argument, int argument_count)
{
    const struct tess_init range = {TESS_INIT_UNIFORM, INPUT_RANGE};
    const struct tess_rng_key key = tess_rng_key(DRIVER_SEED, TESS_RNG_TEST, 0);

    memset(driver, 0, sizeof *driver);
    assert_int_equal(tess_registry_get_model(model, &driver->model), TESS_OK);
    driver->state = driver_alloc(driver->model->state_size);
    driver->options = model_read_options(driver->model, argument, argument_count);
    driver_open_kernel(driver, kernel);

    driver->input = (struct tess_model_input){.row = row,
                                             .class_count = class_count,
                                             .dtype = dtype,
                                             .rows = rows,
                                             .leaf_rows = leaf_rows,
                                             .axis = {.parts = 1, .count = 1, .rank_count = 1}};
    driver->rows = rows;
    driver->leaf_rows = leaf_rows;
    driver->training = true;
    driver->declare.rows = rows;
    driver->declare.leaf_rows = leaf_rows;
    driver->declare.dtype = dtype;
    assert_int_equal(tess_declare_model(&driver->declare, driver->model, driver->state,
                                        driver->options, &driver->input),
                     TESS_OK);
    driver_open_ops(driver);
    driver_open_arrays(driver);

    driver->input_count = rows * tess_shape_count(&row);
    driver->x = driver_alloc((size_t)driver->input_count * sizeof(float));
    driver->x_low = driver_alloc((size_t)driver->input_count * tess_dtype_bytes(dtype));
    driver->label = driver_alloc((size_t)rows * sizeof(int32_t));
    driver_fill(&range, UINT64_C(1) << 32, driver->x, driver->input_count);
    for (int64_t i = 0; i < rows; i++)
        driver->label[i] = (int32_t)(tess_rng_word(key, (uint64_t)i, 0) % (uint32_t)class_count);
    model_refresh(driver);
}

void model_close(struct model_driver *driver)
{
    for (int32_t i = 0; i < driver->declare.op_count; i++) {
        driver->kernel->ops->op_close(driver->op[i]);
        free(driver->op[i]->scratch);
        free(driver->op[i]->packed);
        free(driver->op[i]);
    }
    for (int32_t i = 0; i < driver->declare.param_count; i++) {
        free(driver->master[i]);
        free(driver->param[i]);
        free(driver->grad[i]);
    }
    for (int32_t i = 0; i < driver->declare.unit_count; i++) {
        free(driver->output[i]);
        free(driver->output_grad[i]);
    }
    for (int32_t i = 0; i < driver->declare.tensor_count; i++)
        free(driver->tensor[i]);
    tess_kernel_close(driver->kernel);
    free(driver->op);
    free(driver->master);
    free(driver->param);
    free(driver->grad);
    free(driver->used);
    free(driver->output);
    free(driver->output_grad);
    free(driver->tensor);
    free(driver->x);
    free(driver->x_low);
    free(driver->label);
    free(driver->options);
    free(driver->state);
    tess_declare_fini(&driver->declare);
}

void model_refresh(struct model_driver *driver)
{
    const enum tess_dtype dtype = driver->input.dtype;

    for (int32_t i = 0; i < driver->declare.param_count; i++)
        tess_cast(driver->kernel, model_param_count(driver, i), TESS_F32, driver->master[i], dtype,
                  driver->param[i]);
    tess_cast(driver->kernel, driver->input_count, TESS_F32, driver->x, dtype, driver->x_low);
    driver->weight_token++;
    for (int32_t i = 0; i < driver->declare.op_count; i++)
        driver->op[i]->weight_token = driver->weight_token;
}

static struct tess_pass driver_pass(struct model_driver *driver, int32_t unit)
{
    return (struct tess_pass){
        .kernel = driver->kernel,
        .unit = unit,
        .training = driver->training,
        .dtype = driver->input.dtype,
        .rows = driver->rows,
        .leaf_rows = driver->leaf_rows,
        .leaf_count = driver->rows / driver->leaf_rows,
        .seed = DRIVER_SEED,
        .step = driver->step,
        .input = unit == 0 ? driver->x_low : driver->output[unit - 1],
        .output = driver->output[unit],
        .output_grad = driver->output_grad[unit],
        .output_grad_scratch = driver->output_grad[unit],
        .input_grad = unit == 0 ? NULL : driver->output_grad[unit - 1],
        .param = (const void *const *)driver->param,
        .grad = driver->grad,
        .used = driver->used,
        .tensor = driver->tensor,
        .op = driver->op,
    };
}

double model_forward(struct model_driver *driver)
{
    const int32_t last = driver->declare.unit_count - 1;
    float *loss = driver_alloc((size_t)driver->rows * sizeof *loss);
    int32_t *correct = driver_alloc((size_t)driver->rows * sizeof *correct);
    double sum = 0;

    for (int32_t unit = 0; unit <= last; unit++) {
        const struct tess_pass pass = driver_pass(driver, unit);
        assert_int_equal(driver->model->forward(driver->state, &pass), TESS_OK);
    }
    tess_softmax_xent(driver->kernel, driver->input.dtype, driver->rows, driver->input.class_count,
                      1.0f / (float)driver->rows, driver->output[last], driver->label,
                      driver->output_grad[last], loss, correct);
    for (int64_t i = 0; i < driver->rows; i++)
        sum += loss[i];
    free(loss);
    free(correct);
    return sum / (double)driver->rows;
}

void model_backward(struct model_driver *driver)
{
    memset(driver->used, true, (size_t)driver->declare.param_count * sizeof *driver->used);
    for (int32_t unit = driver->declare.unit_count - 1; unit >= 0; unit--) {
        const struct tess_pass pass = driver_pass(driver, unit);
        assert_int_equal(driver->model->backward(driver->state, &pass), TESS_OK);
    }
    for (int32_t i = 0; i < driver->declare.param_count; i++)
        if (!driver->used[i])
            memset(driver->grad[i], 0, (size_t)model_param_count(driver, i) * sizeof(float));
}

int32_t model_find(const struct model_driver *driver, const char *name)
{
    for (int32_t i = 0; i < driver->declare.param_count; i++)
        if (strcmp(driver->declare.param[i].name, name) == 0)
            return i;
    fail_msg("the model has no parameter '%s'", name);
    return -1;
}

int64_t model_param_count(const struct model_driver *driver, int32_t param)
{
    return tess_shape_count(&driver->declare.param[param].shape);
}

int64_t model_parameter_total(const struct model_driver *driver)
{
    int64_t total = 0;

    for (int32_t i = 0; i < driver->declare.param_count; i++)
        if (!(driver->declare.param[i].flags & TESS_PARAM_BUFFER))
            total += model_param_count(driver, i);
    return total;
}
