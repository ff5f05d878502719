/* See model_driver.h. */
#include "model_driver.h"

#include "base/options.h"
#include "base/rng.h"
#include "kernel_open.h"
#include "state/weights.h"
#include "tessera/registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
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
    char *argv[32];
    int positional_count;

    assert_true(argument_count <= 32);
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
            tess_rng_normals(key, (uint64_t)i, 1, &w[i]);
            w[i] *= init->scale;
            break;
        }
    }
}

/* A parameter's part of the whole model's values; what lies in the padding is zero. */
static void driver_fill_param(struct model_driver *driver, int32_t index)
{
    const struct tess_declare_param *param = &driver->declare.param[index];
    const int64_t whole_count = tess_shape_count(&param->whole);
    const int64_t held = tess_shape_count(&param->shape);
    float *whole = driver_alloc((size_t)whole_count * sizeof(*whole));
    int64_t from, run;

    driver_fill(&param->init, (uint64_t)index, whole, tess_declare_used(param));
    for (int64_t at = 0; at < held; at += run) {
        run = tess_declare_run(param, &driver->input.axis, at, &from);
        run = run < held - at ? run : held - at;
        memcpy(driver->master[index] + at, whole + from, (size_t)run * sizeof(*whole));
    }
    free(whole);
}

void model_disturb(struct model_driver *driver, float scale)
{
    for (int32_t p = 0; p < driver->declare.param_count; p++) {
        const struct tess_declare_param *param = &driver->declare.param[p];
        const struct tess_rng_key key = tess_rng_key(DRIVER_SEED, TESS_RNG_TEST, 2 + (uint64_t)p);
        int64_t from, run;

        if ((param->flags & (TESS_PARAM_NO_DECAY | TESS_PARAM_BUFFER)) != TESS_PARAM_NO_DECAY)
            continue;
        for (int64_t at = 0; at < tess_shape_count(&param->shape); at += run) {
            run = tess_declare_run(param, &driver->input.axis, at, &from);
            for (int64_t i = 0; i < run && at + i < tess_shape_count(&param->shape); i++)
                driver->master[p][at + i] +=
                    scale * (2 * tess_rng_uniform(key, (uint64_t)(from + i), 0) - 1);
        }
    }
    model_refresh(driver);
}

void model_gather(const struct model_driver *driver, int32_t param, const float *held, float *whole)
{
    const struct tess_declare_param *declared = &driver->declare.param[param];
    const int64_t count = tess_shape_count(&declared->shape);
    int64_t to, run;

    for (int64_t at = 0; at < count; at += run) {
        run = tess_declare_run(declared, &driver->input.axis, at, &to);
        run = run < count - at ? run : count - at;
        memcpy(whole + to, held + at, (size_t)run * sizeof(*whole));
    }
}

void model_write(const struct model_driver *driver, const char *path)
{
    const struct tess_declare *declare = &driver->declare;
    size_t bytes;
    char *header = tess_weights_header(declare, &bytes);
    FILE *file = fopen(path, "wb");

    assert_non_null(header);
    assert_non_null(file);
    assert_int_equal(fwrite(header, 1, bytes, file), bytes);
    free(header);
    for (int32_t p = 0; p < declare->param_count; p++) {
        const struct tess_shape shape = tess_declare_file_shape(&declare->param[p]);

        if (declare->param[p].flags & TESS_PARAM_TIED)
            continue;
        for (int64_t at = 0; at < tess_shape_count(&shape); at++) {
            const int64_t whole = tess_declare_turned(&declare->param[p])
                                      ? at % shape.dim[1] * shape.dim[0] + at / shape.dim[1]
                                      : at;

            assert_int_equal(fwrite(&driver->master[p][whole], sizeof(float), 1, file), 1);
        }
    }
    assert_int_equal(fclose(file), 0);
}

static void driver_open_kernel(struct model_driver *driver, const char *name)
{
    const struct tess_kernel_ops *ops;

    assert_int_equal(tess_registry_get_kernel(name, &ops), TESS_OK);
    assert_int_equal(tess_kernel_open(ops, 1, &driver->kernel), TESS_OK);
}

static void driver_open_ops(struct model_driver *driver)
{
    driver->op = driver_alloc((size_t)driver->declare.op_count * sizeof(*driver->op));
    for (int32_t i = 0; i < driver->declare.op_count; i++) {
        struct tess_op *op = driver_alloc(sizeof(*op));
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

static int64_t driver_tensor_bytes(const struct model_driver *driver, int32_t index)
{
    const struct tess_declare_tensor *tensor = &driver->declare.tensor[index];
    const int64_t bytes = tensor->count * (int64_t)tess_dtype_bytes(tensor->dtype);

    switch (tensor->life) {
    case TESS_LIFE_SAVED:
    case TESS_LIFE_REMADE:
    case TESS_LIFE_UNIT:
        return bytes * driver->rows;
    case TESS_LIFE_LEAVES:
        return bytes * (driver->rows / driver->leaf_rows);
    case TESS_LIFE_BATCH:
    case TESS_LIFE_CALL:
    case TESS_LIFE_KEPT:
        break;
    }
    return bytes;
}

/* Elements of a parameter and of those that are stacked on it, for which it has the memory. */
static int64_t driver_stack(const struct model_driver *driver, int32_t param)
{
    int64_t count = model_param_count(driver, param);

    for (int32_t i = param + 1; i < driver->declare.param_count; i++) {
        if (!driver->declare.param[i].stacked)
            break;
        count += model_param_count(driver, i);
    }
    return count;
}

static void driver_open_arrays(struct model_driver *driver)
{
    const struct tess_declare *declare = &driver->declare;
    const size_t word = tess_dtype_bytes(driver->input.dtype);

    driver->master = driver_alloc((size_t)declare->param_count * sizeof(void *));
    driver->param = driver_alloc((size_t)declare->param_count * sizeof(void *));
    driver->grad = driver_alloc((size_t)declare->param_count * sizeof(void *));
    for (int32_t i = 0; i < declare->param_count; i++) {
        const int64_t count = driver_stack(driver, i);
        const size_t before = i > 0 ? (size_t)model_param_count(driver, i - 1) : 0;

        driver->master[i] = driver_alloc((size_t)count * sizeof(float));
        if (declare->param[i].stacked) {
            driver->param[i] = (char *)driver->param[i - 1] + before * word;
            driver->grad[i] = driver->grad[i - 1] + before;
        } else {
            driver->param[i] = driver_alloc((size_t)count * word);
            if ((declare->param[i].flags & TESS_PARAM_FROZEN) == 0)
                driver->grad[i] = driver_alloc((size_t)count * sizeof(float));
        }
        driver_fill_param(driver, i);
    }
    driver->used = driver_alloc((size_t)declare->param_count * sizeof(bool));
    driver->output = driver_alloc((size_t)declare->unit_count * sizeof(void *));
    driver->output_grad = driver_alloc((size_t)declare->unit_count * sizeof(void *));
    for (int32_t i = 0; i < declare->unit_count; i++) {
        const int64_t count = driver->rows * declare->unit[i].output_count;
        /* Logits of a decoding model are f32. */
        const size_t bytes = (size_t)count * (driver->input.decode ? sizeof(float) : word);

        driver->output[i] = driver_alloc(bytes);
        driver->output_grad[i] = driver_alloc(bytes);
    }
    driver->tensor = driver_alloc((size_t)declare->tensor_count * sizeof(void *));
    for (int32_t i = 0; i < declare->tensor_count; i++)
        driver->tensor[i] = driver_alloc((size_t)driver_tensor_bytes(driver, i));
}

/* As the engine's: room for the levels of a tree over the parts of any unit's output, or of a
 * greater sum that is declared. */
static void driver_open_crossing(struct model_driver *driver)
{
    struct tess_tensor_pass *crossing = &driver->crossing;

    crossing->canonical = driver->input.axis.count > 1;
    crossing->room_count = driver->declare.sum_most;
    for (int32_t i = 0; i < driver->declare.unit_count; i++)
        if (driver->declare.unit[i].output_count * driver->rows > crossing->room_count)
            crossing->room_count = driver->declare.unit[i].output_count * driver->rows;
    crossing->room = driver_alloc((size_t)(driver->input.axis.count * crossing->room_count) *
                                  sizeof(*crossing->room));
}

/* Random images, or tokens; random labels. */
static void driver_open_batch(struct model_driver *driver)
{
    const struct tess_init range = {TESS_INIT_UNIFORM, INPUT_RANGE};
    const struct tess_rng_key key = tess_rng_key(DRIVER_SEED, TESS_RNG_TEST, 0);
    const struct tess_rng_key token_key = tess_rng_key(DRIVER_SEED, TESS_RNG_TEST, 1);
    const uint32_t classes = (uint32_t)driver->input.class_count;
    const bool tokens = driver->input.tokens;

    driver->labels = driver->declare.labels > 0 ? driver->declare.labels : 1;
    driver->loss_count = driver->rows * driver->labels;
    driver->input_count = driver->rows * tess_shape_count(&driver->input.row);
    driver->x = driver_alloc((size_t)driver->input_count * sizeof(float));
    driver->x_low = driver_alloc((size_t)driver->input_count *
                                 tess_dtype_bytes(tokens ? TESS_I32 : driver->input.dtype));
    driver->label = driver_alloc((size_t)(driver->rows * driver->labels) * sizeof(int32_t));
    driver->loss = driver_alloc((size_t)driver->rows * sizeof(*driver->loss));
    driver->correct = driver_alloc((size_t)driver->rows * sizeof(*driver->correct));
    if (tokens)
        for (int64_t i = 0; i < driver->input_count; i++)
            ((int32_t *)driver->x_low)[i] =
                (int32_t)(tess_rng_word(token_key, (uint64_t)i, 0) % classes);
    else
        driver_fill(&range, UINT64_C(1) << 32, driver->x, driver->input_count);
    for (int64_t i = 0; i < driver->rows * driver->labels; i++)
        driver->label[i] = (int32_t)(tess_rng_word(key, (uint64_t)i, 0) % classes);
}

void model_open_input(struct model_driver *driver, const char *model, const char *kernel,
                      const struct tess_model_input *input, const char *const *argument,
                      int argument_count)
{
    memset(driver, 0, sizeof(*driver));
    assert_int_equal(tess_registry_get_model(model, &driver->model), TESS_OK);
    driver->state = driver_alloc(driver->model->state_size);
    driver->options = model_read_options(driver->model, argument, argument_count);
    driver_open_kernel(driver, kernel);

    driver->input = *input;
    driver->rows = input->rows;
    driver->leaf_rows = input->leaf_rows;
    driver->training = !input->decode;
    driver->declare.rows = input->rows;
    driver->declare.leaf_rows = input->leaf_rows;
    driver->declare.dtype = input->dtype;
    assert_int_equal(tess_declare_model(&driver->declare, driver->model, driver->state,
                                        driver->options, &driver->input),
                     TESS_OK);
    driver_open_ops(driver);
    driver_open_arrays(driver);
    driver_open_crossing(driver);
    driver_open_batch(driver);
    model_refresh(driver);
}

void model_open(struct model_driver *driver, const char *model, const char *kernel,
                enum tess_dtype dtype, struct tess_shape row, int32_t class_count, int64_t rows,
                int64_t leaf_rows, const char *const *argument, int argument_count)
{
    const struct tess_model_input input = {.row = row,
                                           .class_count = class_count,
                                           .dtype = dtype,
                                           .rows = rows,
                                           .leaf_rows = leaf_rows,
                                           .axis = {.parts = 1, .count = 1, .rank_count = 1}};

    model_open_input(driver, model, kernel, &input, argument, argument_count);
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
        if (driver->declare.param[i].stacked)
            continue;
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
    free(driver->loss);
    free(driver->correct);
    free(driver->crossing.room);
    free(driver->options);
    free(driver->state);
    tess_declare_fini(&driver->declare);
}

void model_refresh(struct model_driver *driver)
{
    const enum tess_dtype dtype = driver->input.dtype;

    for (int32_t i = 0; i < driver->declare.param_count; i++) {
        const int32_t source = tess_declare_source(&driver->declare.param[i]);
        const int64_t count = model_param_count(driver, i);

        if (source >= 0)
            memcpy(driver->master[i], driver->master[source], (size_t)count * sizeof(float));
        tess_cast(driver->kernel, count, TESS_F32, driver->master[i], dtype, driver->param[i]);
    }
    if (!driver->input.tokens)
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
        .row_first = (uint64_t)driver->row_first,
        .run = &driver->run,
        .run_count = driver->input.decode,
        .document = driver->document,
        .document_count = driver->document_count,
        .place = driver->input.decode ? &driver->decode_place : driver->place,
        .remake = driver->remake,
        .label = driver->label,
        .loss = driver->loss,
        .correct = driver->correct,
        .each = driver->each,
        .loss_grad = 1.0f / (float)driver->loss_count,
        .axis = &driver->input.axis,
        .crossing = &driver->crossing,
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

/* NaN in what no code may rely on: all bits set, in every type. */
static void driver_spoil(struct model_driver *driver, int32_t unit, bool remade)
{
    for (int32_t i = 0; i < driver->declare.tensor_count; i++) {
        const enum tess_life life = driver->declare.tensor[i].life;

        if (driver->declare.tensor[i].unit == unit &&
            (life == TESS_LIFE_UNIT || life == TESS_LIFE_CALL ||
             (life == TESS_LIFE_REMADE && remade)))
            memset(driver->tensor[i], 0xff, (size_t)driver_tensor_bytes(driver, i));
    }
}

static void driver_keep(struct model_driver *driver, enum tess_status status)
{
    if (driver->status == TESS_OK)
        driver->status = status;
    if (!driver->on_thread)
        assert_int_equal(status, TESS_OK);
}

static void driver_forward_unit(struct model_driver *driver, int32_t unit)
{
    const struct tess_pass pass = driver_pass(driver, unit);

    driver_spoil(driver, unit, true);
    driver_keep(driver, driver->model->forward(driver->state, &pass));
}

static void driver_backward_unit(struct model_driver *driver, int32_t unit)
{
    const struct tess_pass pass = driver_pass(driver, unit);

    driver_spoil(driver, unit, driver->remake);
    for (int32_t i = 0; i < driver->declare.param_count; i++)
        if (driver->declare.param[i].unit == unit && driver->grad[i] != NULL)
            memset(driver->grad[i], 0xff, (size_t)model_param_count(driver, i) * sizeof(float));
    driver_keep(driver, driver->model->backward(driver->state, &pass));
}

double model_forward(struct model_driver *driver)
{
    const int32_t last = driver->declare.unit_count - 1;
    double sum = 0;

    for (int32_t unit = 0; unit <= last; unit++)
        driver_forward_unit(driver, unit);
    if (driver->input.decode)
        return 0;
    if (driver->declare.labels == 0)
        tess_softmax_xent(driver->kernel, driver->input.dtype, driver->rows,
                          driver->input.class_count, (struct tess_xent){0},
                          1.0f / (float)driver->rows, driver->output[last], driver->label,
                          driver->output_grad[last], driver->loss, driver->correct);
    else if (driver->training)
        driver_backward_unit(driver, last);
    for (int64_t i = 0; i < driver->rows; i++)
        sum += driver->loss[i];
    return sum / (double)driver->loss_count;
}

void model_backward(struct model_driver *driver)
{
    memset(driver->used, true, (size_t)driver->declare.param_count * sizeof(*driver->used));
    for (int32_t unit = driver->declare.unit_count - 1; unit >= 0; unit--)
        driver_backward_unit(driver, unit);
    for (int32_t i = 0; i < driver->declare.param_count; i++) {
        const int32_t source = tess_declare_source(&driver->declare.param[i]);
        const int64_t count = model_param_count(driver, i);

        if (driver->grad[i] == NULL)
            continue;
        if (!driver->used[i])
            memset(driver->grad[i], 0, (size_t)count * sizeof(float));
        if (source >= 0)
            tess_accumulate(driver->kernel, count, 1, driver->grad[i], driver->grad[source]);
    }
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
        if (!(driver->declare.param[i].flags & (TESS_PARAM_BUFFER | TESS_PARAM_TIED)))
            total += model_param_count(driver, i);
    return total;
}
