/*
 * Generation and scoring: some positions at a time through the units of a model. Responsible for
 * memory, weights and the order of the units; what is kept of earlier positions is the model's
 * (TESS_LIFE_KEPT), which token follows is the caller's.
 *
 * A stage is the model as it is declared for a number of rows: one for a single row, one for a row
 * of each sequence, one for a chunk. A call takes the smallest that its rows fit into.
 *
 * Memory: one arena, of the host or, where device memory is far, of the kernels. Parameters, kept
 * tensors and packed weights each have a block; outputs of units take turns in two, and all other
 * tensors share one, as nothing outlives a unit's call. Stages share all but packed weights:
 *
 *     unit          0    1    2    3
 *     output        A    B    A    B
 */
#include "core/decode.h"

#include "base/arena.h"
#include "core/layout.h"
#include "core/state.h"
#include "kernel_open.h"
#include "state/declare.h"
#include "state/weights.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* Parameters that are rounded at a time; that go to far memory at a time: 4 MiB. */
#define DECODE_CHUNK     4096
#define DECODE_FAR_CHUNK (INT64_C(1) << 20)

#define DECODE_STAGES 3

struct decode_stage {
    int64_t rows;
    struct tess_declare declare;
    void *model_state;
    struct tess_block *tensor_block; /* [tensors]; of one that is not kept its place in scratch */
    struct tess_block *packed;       /* [operations] */
    void **tensor;                   /* [tensors] */
    struct tess_op *op;
    struct tess_op **op_of;
};

struct tess_decoder {
    struct tess_decoder_config config;
    struct tess_tensor_axis axis;
    struct tess_kernel *kernel;
    struct tess_memory *memory;
    struct tess_arena arena;
    struct tess_tensor_pass crossing;
    struct decode_stage stage[DECODE_STAGES]; /* by rows */
    int32_t stage_count;
    int64_t *next;             /* [sequences] positions taken */
    int32_t *host;             /* [3, rows] tokens, places, labels */
    float *host_loss;          /* [rows] */
    struct tess_pass_run *run; /* [sequences] */

    struct tess_block input, loss, logits, flow[2], chunk, scratch, op_scratch, thread_scratch,
        room;
    size_t thread_bytes;            /* of thread_scratch, for each thread but the first */
    struct tess_block *param_block; /* [parameters] */
    int64_t chunk_count;            /* parameters that are read, and rounded, at a time */
    void **param;                   /* [parameters] tied ones their source's */
};

/* Rows of the greatest stage. */
static int64_t decode_rows(const struct tess_decoder *decoder)
{
    return decoder->stage[decoder->stage_count - 1].rows;
}

/* ---- declaring ------------------------------------------------------------------------------- */

/* Weights of one part lie together. Those of several are copied by each call, as training does:
 * only for its bits. */
static bool decode_stacks(const struct tess_decoder_config *config)
{
    const bool same_rows = config->choices != NULL && config->choices->same_rows;
    return config->kernel->stacks && (config->parts <= 1 || same_rows);
}

static enum tess_status decode_declare(const struct tess_decoder *decoder, int32_t vocabulary,
                                       struct decode_stage *stage)
{
    const struct tess_decoder_config *config = &decoder->config;
    const struct tess_model_input input = {.row = tess_shape1(1),
                                           .class_count = vocabulary,
                                           .dtype = config->dtype,
                                           .tokens = true,
                                           .rows = stage->rows,
                                           .leaf_rows = stage->rows,
                                           .axis = decoder->axis,
                                           .decode = true,
                                           .stacks = decode_stacks(config),
                                           .context = config->context,
                                           .sequences = config->sequences,
                                           .learnt = config->learnt,
                                           .lora = config->lora};
    struct tess_declare *declare = &stage->declare;
    declare->rows = declare->leaf_rows = stage->rows;
    declare->dtype = config->dtype;
    TESS_TRY(
        tess_declare_model(declare, config->model, stage->model_state, config->options, &input));
    for (int32_t o = 0; o < declare->op_count; o++) {
        struct tess_op_desc *desc = &declare->op[o].desc;
        desc->f32_math = desc->dtype != TESS_F32 && (config->f32_ops >> desc->kind & 1) != 0;
    }
    return TESS_OK;
}

/* The vocabulary is not known before a parameter's name is, and that not before declare(). */
static enum tess_status decode_find_vocabulary(struct tess_decoder *decoder,
                                               const struct tess_weights *weights)
{
    struct decode_stage trial = {.rows = 1, .model_state = decoder->stage[0].model_state};
    enum tess_status status = decode_declare(decoder, 1, &trial);
    if (status == TESS_OK && trial.declare.param_count > 0) {
        const int64_t rows = tess_weights_dim(weights, trial.declare.param[0].name, 0);
        if (rows < 1 || rows > INT32_MAX)
            status = tess_fail(
                TESS_ERR_DATA,
                "the weights have no embedding '%s' with a row for each token: other weights?",
                trial.declare.param[0].name);
        decoder->config.vocabulary = (int32_t)rows;
    }
    tess_declare_fini(&trial.declare);
    memset(trial.model_state, 0, decoder->config.model->state_size);
    return status;
}

/* One row, a row of each sequence, a chunk: as many stages as these are different numbers. */
static void decode_plan_stages(struct tess_decoder *decoder)
{
    const int64_t rows[DECODE_STAGES] = {1, decoder->config.sequences, decoder->config.chunk};
    for (int i = 0; i < DECODE_STAGES; i++)
        if (i == 0 || rows[i] > decode_rows(decoder))
            decoder->stage[decoder->stage_count++].rows = rows[i];
}

static enum tess_status decode_open_model(struct tess_decoder *decoder,
                                          struct tess_weights *weights)
{
    struct tess_decoder_config *config = &decoder->config;
    if (!config->model->tokens)
        TESS_FAIL(TESS_ERR_UNSUPPORTED,
                  "model '%s' is not one of tokens: there is nothing that it could go on with",
                  config->model->name);
    if (config->parts > 1 && !config->model->tensor)
        TESS_FAIL(TESS_ERR_UNSUPPORTED, "model '%s' has no layers that are cut by width",
                  config->model->name);
    decode_plan_stages(decoder);
    for (int32_t s = 0; s < decoder->stage_count; s++) {
        struct decode_stage *stage = &decoder->stage[s];
        stage->model_state = calloc(1, config->model->state_size + 1);
        if (stage->model_state == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the model's state");
        if (config->vocabulary == 0)
            TESS_TRY(decode_find_vocabulary(decoder, weights));
        TESS_TRY(decode_declare(decoder, config->vocabulary, stage));
    }
    return tess_weights_match(weights, &decoder->stage[0].declare);
}

/* ---- planning -------------------------------------------------------------------------------- */

static enum tess_status decode_block(struct tess_decoder *decoder, uint64_t bytes,
                                     const char *owner, struct tess_block *block)
{
    return tess_memory_reserve(decoder->memory, TESS_MEMORY_WORKSPACE, bytes, owner, block);
}

/* Where parameter p lies; stacked ones one after the other. */
static enum tess_status decode_reserve_param(struct tess_decoder *decoder, int32_t p)
{
    const struct tess_declare_param *param = decoder->stage[0].declare.param;
    const size_t word = tess_dtype_bytes(decoder->config.dtype);
    const int32_t count = decoder->stage[0].declare.param_count;
    uint64_t bytes = 0;
    int32_t end = p;
    if (param[p].stacked) {
        decoder->param_block[p] = decoder->param_block[p - 1];
        decoder->param_block[p].offset += (uint64_t)tess_shape_count(&param[p - 1].shape) * word;
        return TESS_OK;
    }
    do {
        bytes += (uint64_t)tess_shape_count(&param[end].shape) * word;
        end++;
    } while (end < count && param[end].stacked);
    return decode_block(decoder, bytes, param[p].name, &decoder->param_block[p]);
}

static enum tess_status decode_reserve_params(struct tess_decoder *decoder)
{
    const struct tess_declare *declare = &decoder->stage[0].declare;
    const int64_t limit = decoder->config.kernel->far_memory ? DECODE_FAR_CHUNK : DECODE_CHUNK;
    int64_t most = 1;
    for (int32_t p = 0; p < declare->param_count; p++) {
        const int64_t count = tess_shape_count(&declare->param[p].shape);
        most = count > most ? count : most;
        if (tess_declare_source(&declare->param[p]) < 0)
            TESS_TRY(decode_reserve_param(decoder, p));
    }
    decoder->chunk_count = most < limit ? most : limit;
    return TESS_OK;
}

static uint64_t decode_tensor_bytes(const struct decode_stage *stage,
                                    const struct tess_declare_tensor *tensor)
{
    const bool by_row = tensor->life == TESS_LIFE_SAVED || tensor->life == TESS_LIFE_UNIT ||
                        tensor->life == TESS_LIFE_REMADE;
    return (uint64_t)tensor->count * (uint64_t)(by_row ? stage->rows : 1) *
           tess_dtype_bytes(tensor->dtype);
}

/* Every life but KEPT ends with the call; all rows are one leaf. What is kept is stage 0's. */
static enum tess_status decode_reserve_tensors(struct tess_decoder *decoder,
                                               const struct decode_stage *stage,
                                               uint64_t *scratch_bytes)
{
    const struct tess_declare *declare = &stage->declare;
    uint64_t here = 0;
    for (int32_t t = 0, unit = -1; t < declare->tensor_count; t++) {
        const struct tess_declare_tensor *tensor = &declare->tensor[t];
        struct tess_block *block = &stage->tensor_block[t];
        here = tensor->unit == unit ? here : 0;
        unit = tensor->unit;
        if (tensor->life == TESS_LIFE_KEPT) {
            if (stage == decoder->stage)
                TESS_TRY(
                    decode_block(decoder, decode_tensor_bytes(stage, tensor), tensor->name, block));
            *block = decoder->stage[0].tensor_block[t];
            continue;
        }
        block->offset = here;
        here += tess_round_up(decode_tensor_bytes(stage, tensor), 64);
        *scratch_bytes = here > *scratch_bytes ? here : *scratch_bytes;
    }
    return TESS_OK;
}

static enum tess_status decode_reserve_ops(struct tess_decoder *decoder,
                                           const struct decode_stage *stage,
                                           uint64_t *scratch_bytes)
{
    for (int32_t o = 0; o < stage->declare.op_count; o++) {
        struct tess_op_needs needs = {0};
        TESS_TRY(tess__op_needs(decoder->kernel, &stage->declare, o, &needs));
        if (needs.scratch_bytes > *scratch_bytes)
            *scratch_bytes = needs.scratch_bytes;
        if (needs.thread_bytes > decoder->thread_bytes)
            decoder->thread_bytes = tess_round_up(needs.thread_bytes, 64);
        TESS_TRY(decode_block(decoder, needs.packed_bytes, "packed weights", &stage->packed[o]));
    }
    return TESS_OK;
}

static enum tess_status decode_reserve_stages(struct tess_decoder *decoder)
{
    uint64_t scratch = 0, op_scratch = 0;
    for (int32_t s = 0; s < decoder->stage_count; s++) {
        struct decode_stage *stage = &decoder->stage[s];
        const size_t tensors = (size_t)stage->declare.tensor_count;
        const size_t ops = (size_t)stage->declare.op_count;
        stage->tensor_block = calloc(tensors + 1, sizeof(*stage->tensor_block));
        stage->tensor = calloc(tensors + 1, sizeof(*stage->tensor));
        stage->packed = calloc(ops + 1, sizeof(*stage->packed));
        stage->op = calloc(ops + 1, sizeof(*stage->op));
        stage->op_of = calloc(ops + 1, sizeof(*stage->op_of));
        if (!stage->tensor_block || !stage->tensor || !stage->packed || !stage->op || !stage->op_of)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for the decoder's tables");
        TESS_TRY(decode_reserve_tensors(decoder, stage, &scratch));
        TESS_TRY(decode_reserve_ops(decoder, stage, &op_scratch));
    }
    TESS_TRY(decode_block(decoder, scratch, "unit scratch", &decoder->scratch));
    TESS_TRY(decode_block(decoder, op_scratch, "kernel scratch", &decoder->op_scratch));
    return decode_block(decoder, decoder->thread_bytes * (size_t)(decoder->kernel->threads - 1),
                        "scratch of threads", &decoder->thread_scratch);
}

/* What units hand on, and sums over the parts of the tensor axis (crossing.c). */
static enum tess_status decode_reserve_flow(struct tess_decoder *decoder)
{
    const struct tess_declare *declare = &decoder->stage[decoder->stage_count - 1].declare;
    struct tess_tensor_pass *crossing = &decoder->crossing;
    const int64_t rows = decode_rows(decoder);
    uint64_t flow[2] = {0, 0};
    crossing->canonical = decoder->axis.parts > 1;
    crossing->room_count = declare->sum_most;
    for (int32_t u = 0; u < declare->unit_count - 1; u++) {
        const int64_t count = declare->unit[u].output_count * rows;
        const uint64_t bytes = (uint64_t)count * tess_dtype_bytes(decoder->config.dtype);
        flow[u % 2] = bytes > flow[u % 2] ? bytes : flow[u % 2];
        crossing->room_count = count > crossing->room_count ? count : crossing->room_count;
    }
    const int32_t levels = 32 - __builtin_clz((unsigned)decoder->axis.parts);
    const uint64_t sums = (uint64_t)(levels * crossing->room_count) * sizeof(float);
    TESS_TRY(decode_block(decoder, flow[0], "unit output", &decoder->flow[0]));
    TESS_TRY(decode_block(decoder, flow[1], "unit output", &decoder->flow[1]));
    return decode_block(decoder, crossing->canonical ? sums : 0, "sums over parts, f32",
                        &decoder->room);
}

static enum tess_status decode_reserve(struct tess_decoder *decoder)
{
    const struct tess_decoder_config *config = &decoder->config;
    const size_t params = (size_t)decoder->stage[0].declare.param_count;
    const size_t rows = (size_t)decode_rows(decoder), sequences = (size_t)config->sequences;
    decoder->param_block = calloc(params + 1, sizeof(*decoder->param_block));
    decoder->param = calloc(params + 1, sizeof(*decoder->param));
    decoder->next = calloc(sequences, sizeof(*decoder->next));
    decoder->run = calloc(sequences, sizeof(*decoder->run));
    decoder->host = calloc(3 * rows, sizeof(*decoder->host));
    decoder->host_loss = calloc(rows, sizeof(*decoder->host_loss));
    if (!decoder->param_block || !decoder->param || !decoder->next || !decoder->run ||
        !decoder->host || !decoder->host_loss)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the decoder's tables");
    TESS_TRY(decode_reserve_params(decoder));
    TESS_TRY(decode_reserve_stages(decoder));
    TESS_TRY(decode_reserve_flow(decoder));
    TESS_TRY(
        decode_block(decoder, rows * (uint64_t)config->vocabulary * 4, "logits", &decoder->logits));
    TESS_TRY(decode_block(decoder, 3 * rows * sizeof(int32_t), "tokens", &decoder->input));
    TESS_TRY(decode_block(decoder, 2 * rows * sizeof(float), "loss", &decoder->loss));
    return decode_block(decoder, config->dtype == TESS_F32 ? 0 : (uint64_t)decoder->chunk_count * 4,
                        "rounding of parameters", &decoder->chunk);
}

/* ---- opening --------------------------------------------------------------------------------- */

static enum tess_status decode_bind_stage(struct tess_decoder *decoder, struct decode_stage *stage)
{
    const struct tess_declare *declare = &stage->declare;
    char *scratch = tess_memory_get(decoder->memory, decoder->scratch);
    for (int32_t t = 0; t < declare->tensor_count; t++)
        stage->tensor[t] = declare->tensor[t].life == TESS_LIFE_KEPT
                               ? tess_memory_get(decoder->memory, stage->tensor_block[t])
                               : scratch + stage->tensor_block[t].offset;
    for (int32_t o = 0; o < declare->op_count; o++) {
        struct tess_op *op = stage->op_of[o] = &stage->op[o];
        op->desc = declare->op[o].desc;
        op->kernel = decoder->kernel;
        op->scratch = tess_memory_get(decoder->memory, decoder->op_scratch);
        op->thread_scratch = tess_memory_get(decoder->memory, decoder->thread_scratch);
        op->thread_bytes = decoder->thread_bytes;
        op->packed = tess_memory_get(decoder->memory, stage->packed[o]);
        op->weight_token = 1; /* they never change */
        TESS_TRY(decoder->kernel->ops->op_open(op));
    }
    return TESS_OK;
}

static enum tess_status decode_bind(struct tess_decoder *decoder)
{
    const struct tess_declare *declare = &decoder->stage[0].declare;
    for (int32_t p = 0; p < declare->param_count; p++) {
        const int32_t source = tess_declare_source(&declare->param[p]);
        decoder->param[p] = source >= 0 ? decoder->param[source]
                                        : tess_memory_get(decoder->memory, decoder->param_block[p]);
    }
    decoder->crossing.room = tess_memory_get(decoder->memory, decoder->room);
    for (int32_t s = 0; s < decoder->stage_count; s++)
        TESS_TRY(decode_bind_stage(decoder, &decoder->stage[s]));
    return TESS_OK;
}

/* A parameter's values, part by part, through `room` [chunk_count]: in f32 to their place, else
 * rounded there. */
static enum tess_status decode_load_param(struct tess_decoder *decoder,
                                          struct tess_weights *weights, int32_t p, float *room)
{
    const struct tess_declare_param *param = &decoder->stage[0].declare.param[p];
    const enum tess_dtype dtype = decoder->config.dtype;
    const int64_t total = tess_shape_count(&param->shape);
    char *target = decoder->param[p];
    for (int64_t at = 0, count; at < total; at += count) {
        int64_t from;
        void *place = target + (size_t)at * tess_dtype_bytes(dtype);
        void *w = dtype == TESS_F32 ? place : tess_memory_get(decoder->memory, decoder->chunk);
        count = tess_declare_run(param, &decoder->axis, at, &from);
        count = count < total - at ? count : total - at;
        count = count < decoder->chunk_count ? count : decoder->chunk_count;
        TESS_TRY(tess_weights_read(weights, p, from, count, room));
        TESS_TRY(tess_write(decoder->kernel, (size_t)count * sizeof(*room), room, w));
        if (dtype != TESS_F32)
            tess_cast(decoder->kernel, count, TESS_F32, w, dtype, place);
    }
    return TESS_OK;
}

static enum tess_status decode_load(struct tess_decoder *decoder, struct tess_weights *weights)
{
    const struct tess_declare *declare = &decoder->stage[0].declare;
    enum tess_status status = TESS_OK;
    float *room = malloc((size_t)decoder->chunk_count * sizeof(*room));
    if (room == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory to read the weights into");
    for (int32_t p = 0; status == TESS_OK && p < declare->param_count; p++)
        if (tess_declare_source(&declare->param[p]) < 0)
            status = decode_load_param(decoder, weights, p, room);
    free(room);
    return status;
}

static enum tess_status decode_open(struct tess_decoder *decoder, struct tess_weights *weights)
{
    const struct tess_decoder_config *config = &decoder->config;
    TESS_TRY(decode_open_model(decoder, weights));
    TESS_TRY(tess_kernel_open(config->kernel, config->threads, &decoder->kernel));
    if (config->choices != NULL)
        TESS_TRY(decoder->kernel->ops->choose(decoder->kernel, config->choices));
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
    struct tess_decoder_config *own = &decoder->config;
    *own = *config;
    own->learnt = config->learnt > 0 ? config->learnt : config->context;
    own->sequences = config->sequences > 0 ? config->sequences : 1;
    own->parts = config->parts > 0 ? config->parts : 1;
    decoder->axis =
        (struct tess_tensor_axis){.parts = own->parts, .count = own->parts, .rank_count = 1};
    enum tess_status status = decode_open(decoder, weights);
    if (status != TESS_OK)
        tess_decoder_close(decoder);
    else
        *decoder_out = decoder;
    return status;
}

static void decode_close_ops(struct decode_stage *stage)
{
    for (int32_t o = 0; stage->op != NULL && o < stage->declare.op_count; o++)
        if (stage->op[o].kernel != NULL)
            stage->op[o].kernel->ops->op_close(&stage->op[o]);
}

static void decode_close_stage(struct decode_stage *stage)
{
    tess_declare_fini(&stage->declare);
    free(stage->model_state);
    free(stage->tensor_block);
    free(stage->packed);
    free(stage->tensor);
    free(stage->op);
    free(stage->op_of);
}

void tess_decoder_close(struct tess_decoder *decoder)
{
    if (decoder == NULL)
        return;
    for (int32_t s = 0; s < decoder->stage_count; s++)
        decode_close_ops(&decoder->stage[s]);
    tess__arena_close(decoder->kernel, decoder->memory, NULL, &decoder->arena);
    tess_kernel_close(decoder->kernel);
    tess_memory_close(decoder->memory);
    for (int32_t s = 0; s < decoder->stage_count; s++)
        decode_close_stage(&decoder->stage[s]);
    free(decoder->param_block);
    free(decoder->param);
    free(decoder->next);
    free(decoder->run);
    free(decoder->host);
    free(decoder->host_loss);
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

/* ---- running --------------------------------------------------------------------------------- */

static enum tess_status decode_check_part(const struct tess_decoder *decoder,
                                          const struct tess_decoder_part *part)
{
    const struct tess_decoder_config *config = &decoder->config;
    if (part->sequence < 0 || part->sequence >= config->sequences || part->count < 1)
        TESS_FAIL(TESS_ERR_USAGE, "%lld positions of sequence %d: there are %d sequences",
                  (long long)part->count, part->sequence, config->sequences);
    const int64_t next = decoder->next[part->sequence];
    if (part->position < 0 || part->position > next ||
        part->position > config->context - part->count)
        TESS_FAIL(TESS_ERR_USAGE,
                  "position %lld of a context of %lld: positions are taken one after the other, "
                  "and %lld are",
                  (long long)(part->position + (part->position <= next ? part->count - 1 : 0)),
                  (long long)config->context, (long long)next);
    for (int64_t i = 0; i < part->count; i++) {
        const int32_t token = part->token[i], label = part->label != NULL ? part->label[i] : -1;
        const bool good = token >= 0 && token < config->vocabulary;
        if (!good || label < -1 || label >= config->vocabulary)
            TESS_FAIL(TESS_ERR_USAGE, "token %d is outside the vocabulary of %d",
                      good ? label : token, config->vocabulary);
    }
    return TESS_OK;
}

/* Rows of all parts, one after the other, and what is written to the device. */
static enum tess_status decode_gather(struct tess_decoder *decoder,
                                      const struct tess_decoder_part *part, int32_t part_count,
                                      int64_t *rows_out)
{
    const int64_t most = decode_rows(decoder);
    int32_t *token = decoder->host, *place = token + most, *label = place + most;
    int64_t row = 0;
    memset(token, 0, 2 * (size_t)most * sizeof(*token));
    memset(label, 0xff, (size_t)most * sizeof(*label));
    for (int32_t p = 0; p < part_count; p++) {
        TESS_TRY(decode_check_part(decoder, &part[p]));
        if (part[p].count > most - row || p >= decoder->config.sequences)
            TESS_FAIL(TESS_ERR_USAGE, "a decoder of %lld positions at once takes no more",
                      (long long)most);
        decoder->run[p] =
            (struct tess_pass_run){row, part[p].count, part[p].sequence, part[p].position};
        for (int64_t i = 0; i < part[p].count; i++, row++) {
            token[row] = part[p].token[i];
            place[row] = (int32_t)(part[p].position + i);
            if (part[p].label != NULL)
                label[row] = part[p].label[i];
        }
    }
    *rows_out = row;
    return TESS_OK;
}

static enum tess_status decode_scatter(struct tess_decoder *decoder,
                                       const struct tess_decoder_part *part, int32_t part_count,
                                       bool losses)
{
    struct tess_kernel *kernel = decoder->kernel;
    const size_t vocabulary = (size_t)decoder->config.vocabulary;
    const float *logits = tess_memory_get(decoder->memory, decoder->logits);
    if (losses)
        TESS_TRY(tess_read(kernel, (size_t)decode_rows(decoder) * sizeof(float),
                           tess_memory_get(decoder->memory, decoder->loss), decoder->host_loss));
    for (int32_t p = 0; p < part_count; p++) {
        const int64_t row = decoder->run[p].row, last = row + part[p].count - 1;
        if (part[p].label != NULL)
            memcpy(part[p].loss, decoder->host_loss + row, (size_t)part[p].count * sizeof(float));
        if (part[p].logits != NULL)
            TESS_TRY(tess_read(kernel, vocabulary * sizeof(float),
                               logits + (size_t)last * vocabulary, part[p].logits));
    }
    return TESS_OK;
}

static enum tess_status decode_forward(struct tess_decoder *decoder, struct decode_stage *stage,
                                       int32_t part_count, bool losses, bool logits)
{
    const int64_t most = decode_rows(decoder);
    const int32_t last = stage->declare.unit_count - 1;
    int32_t *input = tess_memory_get(decoder->memory, decoder->input);
    float *loss = tess_memory_get(decoder->memory, decoder->loss);
    struct tess_pass pass = {
        .kernel = decoder->kernel,
        .dtype = decoder->config.dtype,
        .rows = stage->rows,
        .leaf_rows = stage->rows,
        .leaf_count = 1,
        .run = decoder->run,
        .run_count = part_count,
        .place = input + most,
        .label = losses ? input + 2 * most : NULL,
        .loss = loss,
        .correct = (int32_t *)(void *)(loss + most),
        .axis = &decoder->axis,
        .crossing = &decoder->crossing,
        .param = (const void *const *)decoder->param,
        .tensor = stage->tensor,
        .op = stage->op_of,
    };
    const void *from = input;
    TESS_TRY(tess_write(decoder->kernel, 3 * (size_t)most * sizeof(*input), decoder->host, input));
    for (int32_t u = 0; u <= last; u++) {
        pass.unit = u;
        pass.input = from;
        pass.output = u < last ? tess_memory_get(decoder->memory, decoder->flow[u % 2])
                      : logits ? tess_memory_get(decoder->memory, decoder->logits)
                               : NULL;
        TESS_TRY(decoder->config.model->forward(stage->model_state, &pass));
        from = pass.output;
    }
    return TESS_OK;
}

enum tess_status tess_decoder_run(struct tess_decoder *decoder,
                                  const struct tess_decoder_part *part, int32_t part_count)
{
    struct decode_stage *stage = decoder->stage;
    bool losses = false, logits = false;
    int64_t rows;
    TESS_TRY(decode_gather(decoder, part, part_count, &rows));
    for (int32_t p = 0; p < part_count; p++) {
        losses = losses || part[p].label != NULL;
        logits = logits || part[p].logits != NULL;
    }
    while (stage->rows < rows)
        stage++;
    TESS_TRY(decode_forward(decoder, stage, part_count, losses, logits));
    TESS_TRY(decode_scatter(decoder, part, part_count, losses));
    TESS_TRY(decoder->kernel->ops->failed(decoder->kernel));
    for (int32_t p = 0; p < part_count; p++)
        decoder->next[part[p].sequence] = part[p].position + part[p].count;
    return TESS_OK;
}
