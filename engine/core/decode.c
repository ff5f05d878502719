/*
 * Generation: one position at a time through the units of a model. Responsible for memory, weights
 * and the order of the units; what is kept of earlier positions is the model's (TESS_LIFE_KEPT),
 * which token follows is the caller's.
 *
 * Memory: one arena, of the host or, where device memory is far, of the kernels. Parameters, kept
 * tensors and packed weights each have a block; outputs of units take turns in two, and all other
 * tensors share one, as nothing outlives a unit's call:
 *
 *     unit          0    1    2    3
 *     output        A    B    A    B
 */
#include "core/decode.h"

#include "base/arena.h"
#include "core/layout.h"
#include "kernel_open.h"
#include "state/declare.h"
#include "state/weights.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* Parameters that are rounded at a time; that go to far memory at a time: 4 MiB. */
#define DECODE_CHUNK     4096
#define DECODE_FAR_CHUNK (INT64_C(1) << 20)

struct tess_decoder {
    struct tess_decoder_config config;
    struct tess_declare declare;
    void *model_state;
    struct tess_kernel *kernel;
    struct tess_memory *memory;
    struct tess_arena arena;
    int64_t next; /* positions taken */

    struct tess_block input, logits, flow[2], chunk, scratch, op_scratch;
    struct tess_block *block; /* [parameters + tensors + operations]; of a tensor that is not kept
                                 its place in scratch */
    int64_t chunk_count;      /* parameters that are read, and rounded, at a time */

    void **param, **tensor; /* [parameters] tied ones their source's; then [tensors] */
    struct tess_op *op;
    struct tess_op **op_of;
};

static const struct tess_tensor_axis decode_axis = {.parts = 1, .count = 1, .rank_count = 1};

/* ---- planning -------------------------------------------------------------------------------- */

static enum tess_status decode_declare(const struct tess_decoder *decoder, int32_t vocabulary,
                                       struct tess_declare *declare)
{
    const struct tess_decoder_config *config = &decoder->config;
    const struct tess_model_input input = {.row = tess_shape1(1),
                                           .class_count = vocabulary,
                                           .dtype = config->dtype,
                                           .tokens = true,
                                           .rows = 1,
                                           .leaf_rows = 1,
                                           .axis = decode_axis,
                                           .decode = true,
                                           .context = config->context,
                                           .lora = config->lora};
    declare->rows = declare->leaf_rows = 1;
    declare->dtype = config->dtype;
    return tess_declare_model(declare, config->model, decoder->model_state, config->options,
                              &input);
}

/* The vocabulary is not known before a parameter's name is, and that not before declare(). */
static enum tess_status decode_find_vocabulary(struct tess_decoder *decoder,
                                               const struct tess_weights *weights)
{
    struct tess_declare trial = {0};
    enum tess_status status = decode_declare(decoder, 1, &trial);
    if (status == TESS_OK && trial.param_count > 0) {
        const int64_t rows = tess_weights_dim(weights, trial.param[0].name, 0);
        if (rows < 1 || rows > INT32_MAX)
            status = tess_fail(
                TESS_ERR_DATA,
                "the weights have no embedding '%s' with a row for each token: other weights?",
                trial.param[0].name);
        decoder->config.vocabulary = (int32_t)rows;
    }
    tess_declare_fini(&trial);
    memset(decoder->model_state, 0, decoder->config.model->state_size);
    return status;
}

static enum tess_status decode_open_model(struct tess_decoder *decoder,
                                          struct tess_weights *weights)
{
    const struct tess_decoder_config *config = &decoder->config;
    if (!config->model->tokens)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "model '%s' is not one of tokens: there is nothing that it could go on with",
                  config->model->name);
    decoder->model_state = calloc(1, config->model->state_size + 1);
    if (decoder->model_state == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the model's state");
    if (config->vocabulary == 0)
        TESS_TRY(decode_find_vocabulary(decoder, weights));
    TESS_TRY(decode_declare(decoder, config->vocabulary, &decoder->declare));
    return tess_weights_match(weights, &decoder->declare);
}

static enum tess_status decode_block(struct tess_decoder *decoder, uint64_t bytes,
                                     const char *owner, struct tess_block *block)
{
    return tess_memory_reserve(decoder->memory, TESS_MEMORY_WORKSPACE, bytes, owner, block);
}

static enum tess_status decode_reserve_params(struct tess_decoder *decoder)
{
    const struct tess_declare *declare = &decoder->declare;
    const int64_t limit = decoder->config.kernel->far_memory ? DECODE_FAR_CHUNK : DECODE_CHUNK;
    const size_t bytes = tess_dtype_bytes(decoder->config.dtype);
    int64_t most = 1;
    for (int32_t p = 0; p < declare->param_count; p++) {
        const int64_t count = tess_shape_count(&declare->param[p].shape);
        most = count > most ? count : most;
        if (tess_declare_source(&declare->param[p]) < 0)
            TESS_TRY(decode_block(decoder, (uint64_t)count * bytes, declare->param[p].name,
                                  &decoder->block[p]));
    }
    decoder->chunk_count = most < limit ? most : limit;
    return TESS_OK;
}

/* With one row every life but KEPT ends with the call, and there is one of each. */
static enum tess_status decode_reserve_tensors(struct tess_decoder *decoder)
{
    const struct tess_declare *declare = &decoder->declare;
    struct tess_block *block = decoder->block + declare->param_count;
    uint64_t here = 0, most = 0;
    for (int32_t t = 0, unit = -1; t < declare->tensor_count; t++) {
        const struct tess_declare_tensor *tensor = &declare->tensor[t];
        const uint64_t bytes = (uint64_t)tensor->count * tess_dtype_bytes(tensor->dtype);
        here = tensor->unit == unit ? here : 0;
        unit = tensor->unit;
        if (tensor->life == TESS_LIFE_KEPT) {
            TESS_TRY(decode_block(decoder, bytes, tensor->name, &block[t]));
            continue;
        }
        block[t].offset = here;
        here += tess_round_up(bytes, 64);
        most = here > most ? here : most;
    }
    return decode_block(decoder, most, "unit scratch", &decoder->scratch);
}

static enum tess_status decode_reserve_ops(struct tess_decoder *decoder)
{
    const struct tess_declare *declare = &decoder->declare;
    struct tess_block *block = decoder->block + declare->param_count + declare->tensor_count;
    size_t scratch = 0;
    for (int32_t o = 0; o < declare->op_count; o++) {
        struct tess_op_needs needs = {0};
        TESS_TRY(tess__op_needs(decoder->kernel, declare, o, &needs));
        scratch = needs.scratch_bytes > scratch ? needs.scratch_bytes : scratch;
        TESS_TRY(decode_block(decoder, needs.packed_bytes, "packed weights", &block[o]));
    }
    return decode_block(decoder, scratch, "kernel scratch", &decoder->op_scratch);
}

static enum tess_status decode_reserve(struct tess_decoder *decoder)
{
    const struct tess_declare *declare = &decoder->declare;
    const struct tess_decoder_config *config = &decoder->config;
    const size_t pointers = (size_t)(declare->param_count + declare->tensor_count);
    const size_t ops = (size_t)declare->op_count;
    uint64_t flow[2] = {0, 0};
    decoder->block = calloc(pointers + ops + 1, sizeof(*decoder->block));
    decoder->param = calloc(pointers + 1, sizeof(*decoder->param));
    decoder->op = calloc(ops + 1, sizeof(*decoder->op));
    decoder->op_of = calloc(ops + 1, sizeof(*decoder->op_of));
    if (decoder->block == NULL || decoder->param == NULL || decoder->op == NULL ||
        decoder->op_of == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the decoder's tables");
    decoder->tensor = decoder->param + declare->param_count;
    TESS_TRY(decode_reserve_params(decoder));
    TESS_TRY(decode_reserve_tensors(decoder));
    TESS_TRY(decode_reserve_ops(decoder));
    for (int32_t u = 0; u < declare->unit_count - 1; u++) {
        const uint64_t bytes =
            (uint64_t)declare->unit[u].output_count * tess_dtype_bytes(config->dtype);
        flow[u % 2] = bytes > flow[u % 2] ? bytes : flow[u % 2];
    }
    TESS_TRY(decode_block(decoder, flow[0], "unit output", &decoder->flow[0]));
    TESS_TRY(decode_block(decoder, flow[1], "unit output", &decoder->flow[1]));
    TESS_TRY(decode_block(decoder, (uint64_t)config->vocabulary * 4, "logits", &decoder->logits));
    TESS_TRY(decode_block(decoder, sizeof(int32_t), "token", &decoder->input));
    return decode_block(decoder, config->dtype == TESS_F32 ? 0 : (uint64_t)decoder->chunk_count * 4,
                        "rounding of parameters", &decoder->chunk);
}

/* ---- opening --------------------------------------------------------------------------------- */

static enum tess_status decode_bind(struct tess_decoder *decoder)
{
    const struct tess_declare *declare = &decoder->declare;
    const struct tess_block *block = decoder->block;
    char *scratch = tess_memory_get(decoder->memory, decoder->scratch);
    for (int32_t p = 0; p < declare->param_count; p++, block++)
        decoder->param[p] = tess_declare_source(&declare->param[p]) >= 0
                                ? decoder->param[declare->param[p].source]
                                : tess_memory_get(decoder->memory, *block);
    for (int32_t t = 0; t < declare->tensor_count; t++, block++)
        decoder->tensor[t] = declare->tensor[t].life == TESS_LIFE_KEPT
                                 ? tess_memory_get(decoder->memory, *block)
                                 : scratch + block->offset;
    for (int32_t o = 0; o < declare->op_count; o++, block++) {
        struct tess_op *op = decoder->op_of[o] = &decoder->op[o];
        op->desc = declare->op[o].desc;
        op->kernel = decoder->kernel;
        op->scratch = tess_memory_get(decoder->memory, decoder->op_scratch);
        op->packed = tess_memory_get(decoder->memory, *block);
        op->weight_token = 1; /* they never change */
        TESS_TRY(decoder->kernel->ops->op_open(op));
    }
    return TESS_OK;
}

/* A parameter's values, through `room` [chunk_count]: in f32 to their place, else rounded there. */
static enum tess_status decode_load_param(struct tess_decoder *decoder,
                                          struct tess_weights *weights, int32_t p, float *room)
{
    const enum tess_dtype dtype = decoder->config.dtype;
    const int64_t total = tess_shape_count(&decoder->declare.param[p].shape);
    const int64_t most = decoder->chunk_count;
    char *target = decoder->param[p];
    for (int64_t at = 0; at < total; at += most) {
        const int64_t count = total - at < most ? total - at : most;
        void *place = target + (size_t)at * tess_dtype_bytes(dtype);
        void *w = dtype == TESS_F32 ? place : tess_memory_get(decoder->memory, decoder->chunk);
        TESS_TRY(tess_weights_read(weights, p, at, count, room));
        TESS_TRY(tess_write(decoder->kernel, (size_t)count * sizeof(*room), room, w));
        if (dtype != TESS_F32)
            tess_cast(decoder->kernel, count, TESS_F32, w, dtype, place);
    }
    return TESS_OK;
}

static enum tess_status decode_load(struct tess_decoder *decoder, struct tess_weights *weights)
{
    enum tess_status status = TESS_OK;
    float *room = malloc((size_t)decoder->chunk_count * sizeof(*room));
    if (room == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read the weights into");
    for (int32_t p = 0; status == TESS_OK && p < decoder->declare.param_count; p++)
        if (tess_declare_source(&decoder->declare.param[p]) < 0)
            status = decode_load_param(decoder, weights, p, room);
    free(room);
    return status;
}

static enum tess_status decode_open(struct tess_decoder *decoder, struct tess_weights *weights)
{
    const struct tess_decoder_config *config = &decoder->config;
    TESS_TRY(decode_open_model(decoder, weights));
    TESS_TRY(tess_kernel_open(config->kernel, config->threads, &decoder->kernel));
    TESS_TRY(tess_memory_open(&decoder->memory));
    TESS_TRY(decode_reserve(decoder));
    TESS_TRY(tess__arena_open(decoder->kernel, decoder->memory, NULL, &decoder->arena));
    TESS_TRY(decode_bind(decoder));
    TESS_TRY(decode_load(decoder, weights));
    return decoder->kernel->ops->failed(decoder->kernel);
}

enum tess_status tess_decoder_open(const struct tess_decoder_config *config,
                                   struct tess_weights *weights, struct tess_decoder **decoder_out)
{
    struct tess_decoder *decoder = calloc(1, sizeof(*decoder));
    if (decoder == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a decoder");
    decoder->config = *config;
    enum tess_status status = decode_open(decoder, weights);
    if (status != TESS_OK)
        tess_decoder_close(decoder);
    else
        *decoder_out = decoder;
    return status;
}

void tess_decoder_close(struct tess_decoder *decoder)
{
    if (decoder == NULL)
        return;
    for (int32_t o = 0; decoder->op != NULL && o < decoder->declare.op_count; o++)
        if (decoder->op[o].kernel != NULL)
            decoder->kernel->ops->op_close(&decoder->op[o]);
    tess__arena_close(decoder->kernel, decoder->memory, NULL, &decoder->arena);
    tess_kernel_close(decoder->kernel);
    tess_memory_close(decoder->memory);
    tess_declare_fini(&decoder->declare);
    free(decoder->model_state);
    free(decoder->block);
    free(decoder->param);
    free(decoder->op);
    free(decoder->op_of);
    free(decoder);
}

int32_t tess_decoder_vocabulary(const struct tess_decoder *decoder)
{
    return decoder->config.vocabulary;
}

uint64_t tess_decoder_bytes(const struct tess_decoder *decoder)
{
    return tess_memory_total(decoder->memory);
}

/* ---- stepping -------------------------------------------------------------------------------- */

static enum tess_status decode_check(const struct tess_decoder *decoder, int32_t token,
                                     int64_t position)
{
    if (token < 0 || token >= decoder->config.vocabulary)
        TESS_FAIL(TESS_ERR_USAGE, "token %d is outside the vocabulary of %d", token,
                  decoder->config.vocabulary);
    if (position < 0 || position >= decoder->config.context || position > decoder->next)
        TESS_FAIL(TESS_ERR_USAGE,
                  "position %lld of a context of %lld: positions are taken one after the other, "
                  "and %lld are",
                  (long long)position, (long long)decoder->config.context,
                  (long long)decoder->next);
    return TESS_OK;
}

enum tess_status tess_decoder_step(struct tess_decoder *decoder, int32_t token, int64_t position,
                                   float *logits)
{
    struct tess_kernel *kernel = decoder->kernel;
    const int32_t last = decoder->declare.unit_count - 1;
    int32_t *input = tess_memory_get(decoder->memory, decoder->input);
    void *output = tess_memory_get(decoder->memory, decoder->logits);
    TESS_TRY(decode_check(decoder, token, position));
    TESS_TRY(tess_write(kernel, sizeof(token), &token, input));
    struct tess_pass pass = {
        .kernel = kernel,
        .dtype = decoder->config.dtype,
        .rows = 1,
        .leaf_rows = 1,
        .leaf_count = 1,
        .position = position,
        .axis = &decode_axis,
        .param = (const void *const *)decoder->param,
        .tensor = decoder->tensor,
        .op = decoder->op_of,
    };
    const void *from = input;
    for (int32_t u = 0; u <= last; u++) {
        pass.unit = u;
        pass.input = from;
        pass.output = u == last ? output : tess_memory_get(decoder->memory, decoder->flow[u % 2]);
        TESS_TRY(decoder->config.model->forward(decoder->model_state, &pass));
        from = pass.output;
    }
    if (logits != NULL)
        TESS_TRY(tess_read(kernel, (size_t)decoder->config.vocabulary * sizeof(*logits), output,
                           logits));
    TESS_TRY(kernel->ops->failed(kernel));
    decoder->next = position + 1;
    return TESS_OK;
}
