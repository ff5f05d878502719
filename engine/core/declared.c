/* Declarations of a model, made or kept; see declared.h. */
#include "core/declared.h"

#include "config/precision.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

struct declared_one {
    struct declared_one *next;
    struct tess_model_input input;
    uint32_t wide; /* what else operations follow from */
    int32_t fp8;
    struct tess_declare model;
    void *state;
};

struct tess_declared {
    struct declared_one *first;
    int64_t count;
};

enum tess_status tess_declared_open(struct tess_declared **declared_out)
{
    *declared_out = calloc(1, sizeof(**declared_out));
    if (*declared_out == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what a model declares");
    return TESS_OK;
}

static void declared_free(struct declared_one *one)
{
    tess_declare_fini(&one->model);
    free(one->state);
    free(one);
}

void tess_declared_close(struct tess_declared *declared)
{
    while (declared != NULL && declared->first != NULL) {
        struct declared_one *one = declared->first;
        declared->first = one->next;
        declared_free(one);
    }
    free(declared);
}

int64_t tess_declared_count(const struct tess_declared *declared)
{
    return declared->count;
}

/* ---- one ------------------------------------------------------------------------------------- */

static enum tess_status declared_make(const struct tess_config *config,
                                      const struct tess_model_input *input, uint32_t wide,
                                      struct tess_declare *model, void **state_out)
{
    model->rows = input->rows;
    model->leaf_rows = input->leaf_rows;
    model->dtype = input->dtype;
    *state_out = calloc(1, config->model->state_size + 1);
    if (*state_out == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the model's state");
    TESS_TRY(tess_declare_model(model, config->model, *state_out, config->model_options, input));
    for (int32_t o = 0; o < model->op_count; o++) {
        struct tess_op_desc *desc = &model->op[o].desc;
        desc->f32_math = desc->dtype != TESS_F32 && (wide >> desc->kind & 1) != 0;
        if (desc->kind == TESS_OP_LINEAR && desc->dtype != TESS_F32)
            desc->fp8 = (enum tess_fp8)config->run.fp8;
    }
    return TESS_OK;
}

static bool declared_same_axis(const struct tess_tensor_axis *a, const struct tess_tensor_axis *b)
{
    return a->parts == b->parts && a->first == b->first && a->count == b->count &&
           a->rank == b->rank && a->rank_count == b->rank_count && a->sequence == b->sequence;
}

static bool declared_same_shape(const struct tess_shape *a, const struct tess_shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, (size_t)a->rank * sizeof(*a->dim)) == 0;
}

static bool declared_same(const struct tess_model_input *a, const struct tess_model_input *b)
{
    return a->rows == b->rows && a->leaf_rows == b->leaf_rows && a->dtype == b->dtype &&
           a->class_count == b->class_count && a->tokens == b->tokens && a->device == b->device &&
           a->stacks == b->stacks && a->decode == b->decode && a->context == b->context &&
           declared_same_shape(&a->row, &b->row) && declared_same_axis(&a->axis, &b->axis);
}

static enum tess_status declared_add(const struct tess_config *config,
                                     const struct tess_model_input *input, uint32_t wide,
                                     struct declared_one **one_out)
{
    struct declared_one *one = calloc(1, sizeof(*one));
    if (one == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for what a model declares");
    one->input = *input;
    one->wide = wide;
    one->fp8 = config->run.fp8;
    const enum tess_status status = declared_make(config, input, wide, &one->model, &one->state);
    if (status != TESS_OK) {
        declared_free(one);
        return status;
    }
    one->next = config->declared->first;
    config->declared->first = one;
    config->declared->count++;
    *one_out = one;
    return TESS_OK;
}

enum tess_status tess__declare(const struct tess_config *config,
                               const struct tess_model_input *input, struct tess_declare *model_out,
                               void **state_out)
{
    uint32_t wide = 0;
    TESS_TRY(tess_precision_f32_ops(config->run.f32_ops, &wide));
    if (config->declared == NULL)
        return declared_make(config, input, wide, model_out, state_out);
    struct declared_one *one = config->declared->first;
    while (one != NULL &&
           (one->wide != wide || one->fp8 != config->run.fp8 || !declared_same(&one->input, input)))
        one = one->next;
    if (one == NULL)
        TESS_TRY(declared_add(config, input, wide, &one));
    *model_out = tess_declare_borrow(&one->model);
    *state_out = one->state;
    return TESS_OK;
}

void tess__declare_free(struct tess_declare *model, void *state)
{
    if (!model->borrowed)
        free(state);
    tess_declare_fini(model);
}
