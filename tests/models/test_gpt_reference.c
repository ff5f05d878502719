/*
 * Model gpt against itself written down once more, from the papers' formulas, in double: one row at
 * a time, one position after the other, with loops over everything and the weights by the names and
 * in the layout that Hugging Face's files have (Conv1D of GPT-2 apart, which is transposed there).
 */
#include "model_driver.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *reference_kernel = "ref";

enum { T_MAX = 12, C_MAX = 32, F_MAX = 128, V_MAX = 32 };

struct reference {
    const struct model_driver *driver;
    bool llama;
    int layers, heads, kv_heads, width, ffn, length, classes;
    double epsilon, base;
    double x[T_MAX][C_MAX];
};

static const float *reference_find(const struct reference *r, int layer, const char *name)
{
    char text[80];

    if (layer < 0)
        snprintf(text, sizeof(text), "%s", name);
    else
        snprintf(text, sizeof(text), r->llama ? "model.layers.%d.%s" : "h.%d.%s", layer, name);
    return r->driver->master[model_find(r->driver, text)];
}

/* y = x W^T + b, weights and bias of out outputs from row `from` of the layer on. */
static void reference_linear(const struct reference *r, int layer, const char *name, int from,
                             int in, int out, const double *x, double *y)
{
    char text[64];

    snprintf(text, sizeof(text), "%s.weight", name);
    const float *w = reference_find(r, layer, text) + from * in;
    snprintf(text, sizeof(text), "%s.bias", name);
    const float *b = r->llama ? NULL : reference_find(r, layer, text) + from;
    for (int o = 0; o < out; o++) {
        y[o] = b ? (double)b[o] : 0;
        for (int i = 0; i < in; i++)
            y[o] += (double)w[o * in + i] * x[i];
    }
}

static void reference_norm(const struct reference *r, int layer, const char *name, const double *x,
                           double *y)
{
    const int width = r->width;
    double mean = 0, square = 0;
    char text[64];

    for (int c = 0; c < width; c++)
        mean += r->llama ? 0 : x[c] / width;
    for (int c = 0; c < width; c++)
        square += (x[c] - mean) * (x[c] - mean) / width;
    snprintf(text, sizeof(text), "%s.weight", name);
    const float *gamma = reference_find(r, layer, text);
    snprintf(text, sizeof(text), "%s.bias", name);
    const float *beta = r->llama ? NULL : reference_find(r, layer, text);
    for (int c = 0; c < width; c++)
        y[c] = (x[c] - mean) / sqrt(square + r->epsilon) * (double)gamma[c] +
               (beta ? (double)beta[c] : 0);
}

/* Rotate channel i of a head with channel i + D/2 (Su et al. 2021; the order of Llama's files). */
static void reference_rotate(const struct reference *r, int position, int heads, double *x)
{
    const int d = r->width / r->heads;

    for (int h = 0; r->llama && h < heads; h++)
        for (int i = 0; i < d / 2; i++) {
            double *a = &x[h * d + i], *b = &x[h * d + i + d / 2];
            const double angle = position * pow(r->base, -2.0 * i / d), u = *a, v = *b;

            *a = u * cos(angle) - v * sin(angle);
            *b = v * cos(angle) + u * sin(angle);
        }
}

static void reference_attend(struct reference *r, int layer)
{
    static double q[T_MAX][C_MAX], k[T_MAX][C_MAX], v[T_MAX][C_MAX];
    const int width = r->width, d = width / r->heads, kv = d * r->kv_heads;
    double normed[C_MAX], mixed[C_MAX], joined[C_MAX];

    for (int t = 0; t < r->length; t++) {
        const char *norm = r->llama ? "input_layernorm" : "ln_1";

        reference_norm(r, layer, norm, r->x[t], normed);
        reference_linear(r, layer, r->llama ? "self_attn.q_proj" : "attn.c_attn", 0, width, width,
                         normed, q[t]);
        reference_linear(r, layer, r->llama ? "self_attn.k_proj" : "attn.c_attn",
                         r->llama ? 0 : width, width, kv, normed, k[t]);
        reference_linear(r, layer, r->llama ? "self_attn.v_proj" : "attn.c_attn",
                         r->llama ? 0 : 2 * width, width, kv, normed, v[t]);
        reference_rotate(r, t, r->heads, q[t]);
        reference_rotate(r, t, r->kv_heads, k[t]);
    }
    for (int t = 0; t < r->length; t++) {
        for (int h = 0; h < r->heads; h++) {
            const int g = h / (r->heads / r->kv_heads);
            double score[T_MAX], sum = 0;

            for (int s = 0; s <= t; s++) {
                double dot = 0;

                for (int i = 0; i < d; i++)
                    dot += q[t][h * d + i] * k[s][g * d + i];
                sum += score[s] = exp(dot / sqrt(d));
            }
            for (int i = 0; i < d; i++) {
                mixed[h * d + i] = 0;
                for (int s = 0; s <= t; s++)
                    mixed[h * d + i] += score[s] / sum * v[s][g * d + i];
            }
        }
        reference_linear(r, layer, r->llama ? "self_attn.o_proj" : "attn.c_proj", 0, width, width,
                         mixed, joined);
        for (int c = 0; c < width; c++)
            r->x[t][c] += joined[c];
    }
}

static void reference_feed(struct reference *r, int layer)
{
    const double root = sqrt(2 / acos(-1));
    double normed[C_MAX], hidden[F_MAX], up[F_MAX], out[C_MAX];

    for (int t = 0; t < r->length; t++) {
        reference_norm(r, layer, r->llama ? "post_attention_layernorm" : "ln_2", r->x[t], normed);
        reference_linear(r, layer, r->llama ? "mlp.gate_proj" : "mlp.c_fc", 0, r->width, r->ffn,
                         normed, hidden);
        if (r->llama)
            reference_linear(r, layer, "mlp.up_proj", 0, r->width, r->ffn, normed, up);
        for (int f = 0; f < r->ffn; f++) {
            const double z = hidden[f];

            hidden[f] = r->llama ? z / (1 + exp(-z)) * up[f]
                                 : z / 2 * (1 + tanh(root * (z + 0.044715 * z * z * z)));
        }
        reference_linear(r, layer, r->llama ? "mlp.down_proj" : "mlp.c_proj", 0, r->ffn, r->width,
                         hidden, out);
        for (int c = 0; c < r->width; c++)
            r->x[t][c] += out[c];
    }
}

/* Loss of a row, and how many of its tokens are the likeliest. */
static double reference_loss(struct reference *r, const int32_t *token, const int32_t *label,
                             int32_t *correct)
{
    const float *words =
        reference_find(r, -1, r->llama ? "model.embed_tokens.weight" : "wte.weight");
    const float *places = r->llama ? NULL : reference_find(r, -1, "wpe.weight");
    const float *head = reference_find(r, -1, "lm_head.weight");
    double loss = 0, normed[C_MAX];

    for (int t = 0; t < r->length; t++)
        for (int c = 0; c < r->width; c++)
            r->x[t][c] = (double)words[token[t] * r->width + c] +
                         (places ? (double)places[t * r->width + c] : 0);
    for (int layer = 0; layer < r->layers; layer++) {
        reference_attend(r, layer);
        reference_feed(r, layer);
    }
    *correct = 0;
    for (int t = 0; t < r->length; t++) {
        double logit[V_MAX], sum = 0;
        int best = 0;

        reference_norm(r, -1, r->llama ? "model.norm" : "ln_f", r->x[t], normed);
        for (int w = 0; w < r->classes; w++) {
            logit[w] = 0;
            for (int c = 0; c < r->width; c++)
                logit[w] += (double)head[w * r->width + c] * normed[c];
            sum += exp(logit[w]);
            best = logit[w] > logit[best] ? w : best;
        }
        loss += log(sum) - logit[label[t]];
        *correct += best == label[t];
    }
    return loss;
}

/* A loss is a sum over T positions of numbers of some 5, each rounded to f32 at the end of a chain
 * of some hundred operations of random signs: sqrt(100) 2^-24 5 T, and a factor of 3 beside. */
static void reference_check(struct reference *reference, const char *const *argument, int count)
{
    enum { ROWS = 3 };
    const struct tess_model_input input = {.row = tess_shape1(reference->length),
                                           .class_count = reference->classes,
                                           .dtype = TESS_F32,
                                           .tokens = true,
                                           .rows = ROWS,
                                           .leaf_rows = 1,
                                           .axis = {.parts = 1, .count = 1, .rank_count = 1}};
    struct model_driver driver;

    model_open_input(&driver, "gpt", reference_kernel, &input, argument, count);
    model_disturb(&driver, 0.3f);
    reference->driver = &driver;
    model_forward(&driver);
    for (int r = 0; r < ROWS; r++) {
        const int64_t at = (int64_t)r * reference->length;
        int32_t correct;
        const double loss = reference_loss(reference, (const int32_t *)driver.x_low + at,
                                           driver.label + at, &correct);

        print_message("row %d: loss %.6f, off by %.1e\n", r, loss,
                      fabs((double)driver.loss[r] - loss));
        assert_true(fabs((double)driver.loss[r] - loss) < 3 * 10 * 0x1p-24 * 5 * reference->length);
        assert_int_equal(driver.correct[r], correct);
    }
    model_close(&driver);
}

static void case_gpt2(void **unused)
{
    const char *const argument[] = {"--layers=3",   "--heads=4",           "--width=24",
                                    "--context=20", "--norm-epsilon=1e-3", "--init-deviation=0.3"};
    struct reference reference = {.layers = 3,
                                  .heads = 4,
                                  .kv_heads = 4,
                                  .width = 24,
                                  .ffn = 96,
                                  .length = 10,
                                  .classes = 23,
                                  .epsilon = 1e-3};

    (void)unused;
    reference_check(&reference, argument, 6);
}

static void case_llama(void **unused)
{
    const char *const argument[] = {"--style=llama", "--layers=3",          "--heads=8",
                                    "--kv-heads=2",  "--width=32",          "--ffn=40",
                                    "--rope-base=7", "--norm-epsilon=1e-3", "--init-deviation=0.3"};
    struct reference reference = {.llama = true,
                                  .layers = 3,
                                  .heads = 8,
                                  .kv_heads = 2,
                                  .width = 32,
                                  .ffn = 40,
                                  .length = 12,
                                  .classes = 23,
                                  .epsilon = 1e-3,
                                  .base = 7};

    (void)unused;
    reference_check(&reference, argument, 9);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_gpt2),
        cmocka_unit_test(case_llama),
    };

    if (argc > 1)
        reference_kernel = argv[1];
    return cmocka_run_group_tests(cases, NULL, NULL);
}
