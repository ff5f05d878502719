/*
 * Generation of one position after the other, with a model whose answers can be computed by hand:
 * embed the token, add it to all before it, a linear layer, scores against the embedding again.
 * Small whole numbers: exact in every precision.
 */
#include "core/decode.h"
#include "harness/scratch_file.h"
#include "state/weights.h"

#include "base/half.h"
#include "tessera/log.h"
#include "tessera/registry.h"
#include "tessera/version.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VOCABULARY 5
#define PADDED     8
#define WIDTH      4
#define CONTEXT    6

static int names; /* declarations that were asked for names only */

/* ---- the model ------------------------------------------------------------------------------- */

struct chain {
    int32_t embed, mix, head;          /* units */
    int32_t table, weight, bias, tied; /* parameters */
    int32_t linear, kept, sum;
    enum tess_dtype dtype;
};

static enum tess_status chain_declare(void *state, const void *options,
                                      const struct tess_model_input *input,
                                      struct tess_declare *declare)
{
    struct chain *chain = state;
    const struct tess_init zero = {TESS_INIT_ZERO, 0};
    const struct tess_slice used = {0, 1, input->class_count};
    const struct tess_op_desc desc = {.kind = TESS_OP_LINEAR, .in = WIDTH, .out = WIDTH};
    (void)options;
    assert_true(input->decode && input->tokens && input->context == CONTEXT);
    assert_true(input->rows == 1 && input->row.rank == 1 && input->row.dim[0] == 1);
    if (input->class_count == 1) /* which parameter says how many there are? */
        names++;
    assert_true(input->axis.parts == 1 && input->axis.count == 1);
    chain->dtype = input->dtype;
    chain->embed = tess_declare_unit(declare, "embed", tess_shape1(WIDTH));
    chain->table =
        tess_declare_sliced(declare, "wte.weight", tess_shape2(PADDED, WIDTH), zero, 0, used);
    chain->mix = tess_declare_unit(declare, "mix", tess_shape1(WIDTH));
    chain->weight = tess_declare_param(declare, "mix.weight", tess_shape2(WIDTH, WIDTH), zero,
                                       TESS_PARAM_TRANSPOSED);
    chain->bias = tess_declare_param(declare, "mix.bias", tess_shape1(WIDTH), zero, 0);
    chain->linear = tess_declare_op(declare, &desc, false);
    chain->kept = tess_declare_tensor(declare, "past", input->dtype,
                                      tess_shape2(input->context, WIDTH), TESS_LIFE_KEPT);
    chain->sum =
        tess_declare_tensor(declare, "sum", input->dtype, tess_shape1(WIDTH), TESS_LIFE_SAVED);
    chain->head = tess_declare_unit(declare, "head", tess_shape1(input->class_count));
    chain->tied = tess_declare_tied(declare, "lm_head.weight", chain->table);
    return TESS_OK;
}

static float chain_get(const struct chain *chain, const void *x, int64_t i)
{
    if (chain->dtype == TESS_F32)
        return ((const float *)x)[i];
    return chain->dtype == TESS_F16 ? tess__f32_of_f16(((const uint16_t *)x)[i])
                                    : tess__f32_of_bf16(((const uint16_t *)x)[i]);
}

static enum tess_status chain_forward(void *state, const struct tess_pass *pass)
{
    const struct chain *chain = state;
    const size_t bytes = tess_dtype_bytes(chain->dtype);
    assert_false(pass->training);
    if (pass->unit == chain->embed) {
        const int32_t token = *(const int32_t *)pass->input;
        memcpy(pass->output,
               (const char *)pass->param[chain->table] + (size_t)token * WIDTH * bytes,
               WIDTH * bytes);
        return TESS_OK;
    }
    if (pass->unit == chain->mix) {
        char *past = pass->tensor[chain->kept];
        memcpy(past + (size_t)pass->run->position * WIDTH * bytes, pass->input, WIDTH * bytes);
        memcpy(pass->tensor[chain->sum], past, WIDTH * bytes);
        for (int64_t p = 1; p <= pass->run->position; p++)
            tess_add(pass->kernel, chain->dtype, WIDTH, pass->tensor[chain->sum],
                     past + (size_t)p * WIDTH * bytes, pass->tensor[chain->sum]);
        return tess_linear_forward(pass->op[chain->linear], pass->tensor[chain->sum],
                                   pass->param[chain->weight], pass->param[chain->bias],
                                   pass->output);
    }
    for (int64_t v = 0; v < VOCABULARY && pass->output != NULL; v++) {
        float sum = 0;
        for (int64_t i = 0; i < WIDTH; i++)
            sum += chain_get(chain, pass->param[chain->tied], v * WIDTH + i) *
                   chain_get(chain, pass->input, i);
        ((float *)pass->output)[v] = sum;
    }
    return TESS_OK;
}

static enum tess_status chain_backward(void *state, const struct tess_pass *pass)
{
    (void)state, (void)pass;
    return TESS_ERR_INTERNAL;
}

static const struct tess_model_ops chain_ops = {.abi = TESS_ABI,
                                                .name = "chain",
                                                .summary = "of this test",
                                                .state_size = sizeof(struct chain),
                                                .tokens = true,
                                                .declare = chain_declare,
                                                .forward = chain_forward,
                                                .backward = chain_backward};

/* ---- its weights and answers ----------------------------------------------------------------- */

static float table_at(int64_t v, int64_t i)
{
    return (float)((v * 3 + i * 5) % 7 - 3);
}

static float weight_at(int64_t out, int64_t in)
{
    return (float)((out * 2 + in) % 3 - 1);
}

static void write_weights(void)
{
    static const char header[] =
        "{\"mix.weight\":{\"dtype\":\"F32\",\"shape\":[4,4],\"data_offsets\":[0,64]},"
        "\"mix.bias\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[64,80]},"
        "\"transformer.wte.weight\":{\"dtype\":\"F32\",\"shape\":[5,4],\"data_offsets\":[80,160]}}";
    const uint64_t length = sizeof(header) - 1;
    float value[40];
    int count = 0;
    for (int64_t in = 0; in < WIDTH; in++) /* turned round */
        for (int64_t out = 0; out < WIDTH; out++)
            value[count++] = weight_at(out, in);
    for (int64_t out = 0; out < WIDTH; out++)
        value[count++] = (float)out;
    for (int64_t v = 0; v < VOCABULARY; v++)
        for (int64_t i = 0; i < WIDTH; i++)
            value[count++] = table_at(v, i);
    FILE *file = fopen(scratch_file, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, sizeof(length), 1, file), 1);
    assert_int_equal(fwrite(header, 1, length, file), length);
    assert_int_equal(fwrite(value, sizeof(*value), (size_t)count, file), (size_t)count);
    fclose(file);
}

static void answers(const int32_t *token, int64_t count, float logits[VOCABULARY])
{
    float sum[WIDTH] = {0}, mixed[WIDTH];
    for (int64_t p = 0; p < count; p++)
        for (int64_t i = 0; i < WIDTH; i++)
            sum[i] += table_at(token[p], i);
    for (int64_t out = 0; out < WIDTH; out++) {
        mixed[out] = (float)out;
        for (int64_t in = 0; in < WIDTH; in++)
            mixed[out] += weight_at(out, in) * sum[in];
    }
    for (int64_t v = 0; v < VOCABULARY; v++) {
        logits[v] = 0;
        for (int64_t i = 0; i < WIDTH; i++)
            logits[v] += table_at(v, i) * mixed[i];
    }
}

/* ---- cases ----------------------------------------------------------------------------------- */

static enum tess_status open_with(const struct tess_model_ops *model, const char *kernel,
                                  enum tess_dtype dtype, int32_t vocabulary,
                                  struct tess_decoder **decoder_out)
{
    struct tess_weights *weights = NULL;
    struct tess_decoder_config config = {
        .model = model, .threads = 1, .dtype = dtype, .vocabulary = vocabulary, .context = CONTEXT};
    assert_int_equal(tess_registry_get_kernel(kernel, &config.kernel), TESS_OK);
    assert_int_equal(tess_weights_open(scratch_file, &weights), TESS_OK);
    const enum tess_status status = tess_decoder_open(&config, weights, decoder_out);
    tess_weights_close(weights);
    return status;
}

/* One token of sequence 0. */
static enum tess_status step(struct tess_decoder *decoder, int32_t token, int64_t position,
                             float *logits)
{
    const struct tess_decoder_part part = {
        .position = position, .count = 1, .token = &token, .logits = logits};
    return tess_decoder_run(decoder, &part, 1);
}

static void check_step(struct tess_decoder *decoder, const int32_t *token, int64_t position)
{
    float logits[VOCABULARY], wanted[VOCABULARY];
    assert_int_equal(step(decoder, token[position], position, logits), TESS_OK);
    answers(token, position + 1, wanted);
    for (int v = 0; v < VOCABULARY; v++)
        if (logits[v] != wanted[v])
            fail_msg("position %d, logit %d: %g, not %g", (int)position, v, logits[v], wanted[v]);
}

static void case_steps(void **state)
{
    static const enum tess_dtype dtype[] = {TESS_F32, TESS_BF16, TESS_F16};
    static const int32_t token[CONTEXT] = {2, 0, 4, 4, 1, 3}, other[CONTEXT] = {2, 0, 1, 3, 0, 0};
    (void)state;
    write_weights();
    for (size_t i = 0; i < sizeof(dtype) / sizeof(dtype[0]); i++) {
        struct tess_decoder *decoder = NULL;
        const int32_t vocabulary = i == 0 ? 0 : VOCABULARY; /* 0: found in the file */
        names = 0;
        assert_int_equal(open_with(&chain_ops, "ref", dtype[i], vocabulary, &decoder), TESS_OK);
        assert_int_equal(names, i == 0);
        assert_int_equal(tess_decoder_vocabulary(decoder), VOCABULARY);
        for (int64_t p = 0; p < CONTEXT; p++)
            check_step(decoder, token, p);
        /* Back to the third position and on from there: what was behind it is forgotten. */
        for (int64_t p = 2; p < 4; p++)
            check_step(decoder, other, p);
        assert_int_equal(step(decoder, 0, 5, NULL), TESS_ERR_USAGE);
        assert_int_equal(step(decoder, 0, 4, NULL), TESS_OK);
        check_step(decoder, other, 5);
        tess_decoder_close(decoder);
    }
}

static void check_refused(enum tess_status status, enum tess_status wanted, const char *phrase)
{
    assert_int_equal(status, wanted);
    if (strstr(tess_log_last_error(), phrase) == NULL)
        fail_msg("'%s' in: %s", phrase, tess_log_last_error());
}

static void case_refused(void **state)
{
    struct tess_decoder *decoder = NULL;
    const struct tess_model_ops *images;
    (void)state;
    write_weights();
    assert_int_equal(open_with(&chain_ops, "ref", TESS_F32, VOCABULARY, &decoder), TESS_OK);
    check_refused(step(decoder, 5, 0, NULL), TESS_ERR_USAGE, "vocabulary of 5");
    check_refused(step(decoder, -1, 0, NULL), TESS_ERR_USAGE, "vocabulary of 5");
    check_refused(step(decoder, 0, 1, NULL), TESS_ERR_USAGE, "and 0 are");
    check_refused(step(decoder, 0, -1, NULL), TESS_ERR_USAGE, "position -1");
    for (int64_t p = 0; p < CONTEXT; p++)
        assert_int_equal(step(decoder, 0, p, NULL), TESS_OK);
    check_refused(step(decoder, 0, CONTEXT, NULL), TESS_ERR_USAGE, "context of 6");
    tess_decoder_close(decoder);
    assert_int_equal(tess_registry_get_model("mlp", &images), TESS_OK);
    check_refused(open_with(images, "ref", TESS_F32, VOCABULARY, &decoder), TESS_ERR_UNSUPPORTED,
                  "'mlp' is not one of tokens");
    check_refused(open_with(&chain_ops, "ref", TESS_F32, 7, &decoder), TESS_ERR_DATA,
                  "shape [5, 4], the model's has [7, 4]");
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_steps),
        cmocka_unit_test(case_refused),
    };
    return cmocka_run_group_tests(cases, scratch_file_make, scratch_file_remove);
}
