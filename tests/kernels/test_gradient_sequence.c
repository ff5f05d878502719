/*
 * Forward/backward pairs of the operations on sequences of one backend (argv[1]) by central
 * differences; see problem.h.
 */
#include "problem.h"

#include <math.h>

static struct device device;

/* ---- norm ----------------------------------------------------------------------------------- */

enum { NORM_ROWS = 12, NORM_CHANNELS = 19 };

/* Parts: x, add, gamma, beta; y is normalised and r its gradient; aux: mean, rstd, sum. */
static void norm_forward(struct problem *b)
{
    bool rms = b->op.desc.rms;
    assert_int_equal(tess_norm_forward(&b->op, b->p_dev[0], b->p_dev[1], b->aux[2], b->p_dev[2],
                                       rms ? NULL : b->p_dev[3], b->y, rms ? NULL : b->aux[0],
                                       b->aux[1]),
                     TESS_OK);
}

static void norm_backward(struct problem *b)
{
    bool rms = b->op.desc.rms;
    assert_int_equal(tess_norm_backward(&b->op, b->aux[2], b->r_dev, b->p_dev[2],
                                        rms ? NULL : b->aux[0], b->aux[1], NULL, b->grad_dev[0],
                                        b->grad_dev[2], rms ? NULL : b->grad_dev[3]),
                     TESS_OK);
    /* What was added gets the same gradient. */
    tess_copy(device.kernel, b->count[0] * (int64_t)sizeof(float), b->grad_dev[0], b->grad_dev[1]);
}

static void norm_case(bool rms)
{
    struct draw draw = {21};
    device_reset(&device);
    struct tess_op_desc d = {.kind = TESS_OP_NORM,
                             .rows = NORM_ROWS,
                             .leaf_rows = 4,
                             .in = NORM_CHANNELS,
                             .out = NORM_CHANNELS,
                             .rms = rms,
                             .epsilon = 1e-2f};
    int64_t count = NORM_ROWS * NORM_CHANNELS;
    struct problem b = {.name = rms ? "RMS norm" : "layer norm",
                        .device = &device,
                        .part_count = rms ? 3 : 4,
                        .count = {count, count, NORM_CHANNELS, NORM_CHANNELS},
                        .out = count,
                        .forward = norm_forward,
                        .backward = norm_backward};
    device_op_open(&device, &d, &b.op);
    problem_open(&b, &draw);
    problem_check(&b);
    device_op_close(&b.op);
}

static void case_norm(void **state)
{
    (void)state;
    norm_case(false);
    norm_case(true);
}

/* ---- attention ------------------------------------------------------------------------------ */

static void attention_forward(struct problem *b)
{
    assert_int_equal(
        tess_attention_forward(&b->op, b->p_dev[0], b->p_dev[1], b->p_dev[2], b->y, b->aux[0]),
        TESS_OK);
}

static void attention_backward(struct problem *b)
{
    assert_int_equal(tess_attention_backward(&b->op, b->p_dev[0], b->p_dev[1], b->p_dev[2], b->y,
                                             b->r_dev, b->aux[0], b->grad_dev[0], b->grad_dev[1],
                                             b->grad_dev[2]),
                     TESS_OK);
}

/* One of q, k and v at a time, the others fixed: their directions are 0; then all three. */
static void attention_case(int heads, int kv_heads, int window, float dropout, int which)
{
    enum { ROWS = 2, LENGTH = 9, SIZE = 6 };
    static const char *const name[] = {"attention q", "attention k", "attention v", "attention"};
    struct draw draw = {22};
    device_reset(&device);
    struct tess_op_desc d = {.kind = TESS_OP_ATTENTION,
                             .rows = ROWS,
                             .leaf_rows = 1,
                             .in = SIZE,
                             .out = SIZE,
                             .length = LENGTH,
                             .window = window,
                             .dropout = dropout,
                             .heads = heads,
                             .kv_heads = kv_heads,
                             .q_stride = heads * SIZE,
                             .kv_stride = kv_heads * SIZE};
    int64_t q_count = ROWS * LENGTH * d.q_stride, kv_count = ROWS * LENGTH * d.kv_stride;
    struct problem b = {.name = name[which],
                        .device = &device,
                        .part_count = 3,
                        .count = {q_count, kv_count, kv_count},
                        .out = q_count,
                        .forward = attention_forward,
                        .backward = attention_backward};
    device_op_open(&device, &d, &b.op);
    b.op.drop = (struct tess_attention_drop){
        .on = dropout > 0, .key = {7, 8}, .position = 70, .head = 3, .heads = 20};
    problem_open(&b, &draw);
    for (int part = 0; part < 3; part++) {
        for (int64_t i = 0; i < b.count[part]; i++) {
            b.p[part][i] *= 2; /* far from equal weights, where y hardly depends on q */
            b.q[part][i] *= which == 3 || part == which;
        }
    }
    problem_check(&b);
    device_op_close(&b.op);
}

static void case_attention(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++) {
        attention_case(2, 2, 0, 0, which);
        attention_case(6, 2, 0, 0, which);
        attention_case(4, 1, 0, 0, which);
        attention_case(4, 2, 3, 0, which);
        attention_case(4, 2, 0, 0.3f, which);
    }
}

/* ---- embedding ------------------------------------------------------------------------------ */

enum { TOKENS = 24 };

/* Parts: the table, and what is added, whose gradient is r. */
static void embedding_forward(struct problem *b)
{
    assert_int_equal(tess_embedding_forward(&b->op, b->label, 3, b->p_dev[0], b->p_dev[1], b->y),
                     TESS_OK);
}

static void embedding_backward(struct problem *b)
{
    assert_int_equal(tess_embedding_backward(&b->op, b->label, 3, b->r_dev, b->grad_dev[0]),
                     TESS_OK);
    tess_copy(device.kernel, b->out * (int64_t)sizeof(float), b->r_dev, b->grad_dev[1]);
}

static void case_embedding(void **state)
{
    (void)state;
    struct draw draw = {23};
    device_reset(&device);
    struct tess_op_desc d = {
        .kind = TESS_OP_EMBEDDING, .rows = TOKENS, .leaf_rows = 8, .in = 7, .out = 5};
    struct problem b = {.name = "embedding",
                        .device = &device,
                        .part_count = 2,
                        .count = {7 * 5, TOKENS * 5},
                        .out = TOKENS * 5,
                        .forward = embedding_forward,
                        .backward = embedding_backward};
    int32_t token[TOKENS];
    for (int i = 0; i < TOKENS; i++) /* 2 to 10, of which the table has 3 to 9 */
        token[i] = 2 + i * 5 % 9;
    b.label = device_array(&device, sizeof(token));
    device_put(&device, b.label, token, sizeof(token));
    device_op_open(&device, &d, &b.op);
    problem_open(&b, &draw);
    problem_check(&b);
    device_op_close(&b.op);
}

/* ---- plain operations ----------------------------------------------------------------------- */

enum { PLAIN = 600 };

static void gelu_forward(struct problem *b)
{
    tess_gelu_forward(device.kernel, TESS_F32, PLAIN, b->p_dev[0], b->y);
}

static void gelu_backward(struct problem *b)
{
    tess_gelu_backward(device.kernel, TESS_F32, PLAIN, b->p_dev[0], b->r_dev, b->grad_dev[0]);
}

static void swiglu_forward(struct problem *b)
{
    tess_swiglu_forward(device.kernel, TESS_F32, 1, PLAIN, PLAIN, b->p_dev[0], b->p_dev[1], b->y);
}

static void swiglu_backward(struct problem *b)
{
    tess_swiglu_backward(device.kernel, TESS_F32, 1, PLAIN, PLAIN, b->p_dev[0], b->p_dev[1],
                         b->r_dev, b->grad_dev[0], b->grad_dev[1]);
}

/* One half by tanh, one by erf. */
static void geglu_forward(struct problem *b)
{
    for (int erf = 0; erf < 2; erf++)
        tess_geglu_forward(device.kernel, TESS_F32, PLAIN / 2, 1, 1, erf,
                           b->p_dev[0] + erf * PLAIN / 2, b->p_dev[1] + erf * PLAIN / 2,
                           b->y + erf * PLAIN / 2);
}

static void geglu_backward(struct problem *b)
{
    for (int erf = 0; erf < 2; erf++)
        tess_geglu_backward(device.kernel, TESS_F32, PLAIN / 2, 1, 1, erf,
                            b->p_dev[0] + erf * PLAIN / 2, b->p_dev[1] + erf * PLAIN / 2,
                            b->r_dev + erf * PLAIN / 2, b->grad_dev[0] + erf * PLAIN / 2,
                            b->grad_dev[1] + erf * PLAIN / 2);
}

/* x [15, 4, 10] */
static const struct tess_rotary rope_rotary = {
    .base = 1e4f, .factor = 4, .kept = TESS_ROTARY_BY_PAIR, .low = 1, .high = 3, .amplitude = 1.2f};

static void rope_forward(struct problem *b)
{
    tess_copy(device.kernel, PLAIN * (int64_t)sizeof(float), b->p_dev[0], b->y);
    tess_rope(device.kernel, TESS_F32, 15, 5, 2, 4, 10, 40, &rope_rotary, false, b->y);
}

static void rope_backward(struct problem *b)
{
    tess_copy(device.kernel, PLAIN * (int64_t)sizeof(float), b->r_dev, b->grad_dev[0]);
    tess_rope(device.kernel, TESS_F32, 15, 5, 2, 4, 10, 40, &rope_rotary, true, b->grad_dev[0]);
}

static void plain_case(const char *name, int parts, void (*forward)(struct problem *),
                       void (*backward)(struct problem *))
{
    struct draw draw = {24};
    device_reset(&device);
    struct problem b = {.name = name,
                        .device = &device,
                        .part_count = parts,
                        .count = {PLAIN, PLAIN},
                        .out = PLAIN,
                        .forward = forward,
                        .backward = backward};
    problem_open(&b, &draw);
    for (int64_t i = 0; i < PLAIN && parts < 2; i++) /* where a GELU bends: to 3 */
        b.p[0][i] *= 3;
    problem_check(&b);
}

static void case_plain(void **state)
{
    (void)state;
    plain_case("gelu", 1, gelu_forward, gelu_backward);
    plain_case("swiglu", 2, swiglu_forward, swiglu_backward);
    plain_case("geglu", 2, geglu_forward, geglu_backward);
    plain_case("rope", 1, rope_forward, rope_backward);
}

/* ---- cross-entropy, the classes in two parts ------------------------------------------------- */

enum { XENT_ROWS = 20, XENT_PARTS = 2 };
static const int64_t xent_width[XENT_PARTS] = {7, 5}, xent_first[XENT_PARTS] = {0, 7};
static const struct tess_xent xent_how = {.smoothing = 0.2f, .spread = 0.2f / 12, .z = 0.05f};

/* aux: max, sum, target, best of a part after the other; this reduces what `part` wrote into the
 * rows before. */
static void xent_reduce(struct problem *b, int aux, bool max, int part, float host[XENT_ROWS])
{
    float got[XENT_ROWS];
    device_get(&device, got, b->aux[aux] + part * XENT_ROWS, sizeof(got));
    for (int i = 0; i < XENT_ROWS; i++)
        host[i] = part == 0 ? got[i] : max ? fmaxf(host[i], got[i]) : host[i] + got[i];
    if (part == XENT_PARTS - 1)
        device_put(&device, b->aux[aux], host, sizeof(got));
}

/* y is the loss of each row, and r must be the scale: one number. */
static void xent_forward(struct problem *b)
{
    float max[XENT_ROWS], rest[3][XENT_ROWS], *aux = b->aux[0];
    for (int p = 0; p < XENT_PARTS; p++) {
        const int64_t at = (int64_t)p * XENT_ROWS;
        tess_xent_max(device.kernel, TESS_F32, XENT_ROWS, xent_width[p], xent_width[p], b->p_dev[p],
                      aux + at, b->aux[1] + at, b->aux[2] + at, b->aux[3] + at);
        xent_reduce(b, 0, true, p, max);
    }
    for (int p = 0; p < XENT_PARTS; p++) {
        const int64_t at = (int64_t)p * XENT_ROWS;
        tess_xent_sum(device.kernel, TESS_F32, XENT_ROWS, xent_width[p], xent_width[p],
                      xent_first[p], xent_how, b->p_dev[p], b->label, aux, b->aux[1] + at,
                      b->aux[2] + at, b->aux[3] + at);
        for (int i = 1; i < 4; i++)
            xent_reduce(b, i, i == 3, p, rest[i - 1]);
    }
    tess_xent_loss(device.kernel, XENT_ROWS, 1, xent_how, b->label, aux, b->aux[1], b->aux[2],
                   b->aux[3], b->y, (int32_t *)b->aux[3]);
}

static void xent_backward(struct problem *b)
{
    for (int p = 0; p < XENT_PARTS; p++)
        tess_xent_grad(device.kernel, TESS_F32, XENT_ROWS, xent_width[p], xent_width[p],
                       xent_first[p], xent_how, 0.5f, b->p_dev[p], b->label, b->aux[0], b->aux[1],
                       b->grad_dev[p]);
}

static void case_xent(void **state)
{
    (void)state;
    struct draw draw = {25};
    int32_t label[XENT_ROWS];
    device_reset(&device);
    struct problem b = {.name = "cross-entropy in parts",
                        .device = &device,
                        .part_count = XENT_PARTS,
                        .count = {XENT_ROWS * 7, XENT_ROWS * 5},
                        .out = XENT_ROWS,
                        .forward = xent_forward,
                        .backward = xent_backward};
    for (int i = 0; i < XENT_ROWS; i++)
        label[i] = i % 7 == 6 ? -1 : i * 5 % 12;
    b.label = device_array(&device, sizeof(label));
    device_put(&device, b.label, label, sizeof(label));
    problem_open(&b, &draw);
    for (int i = 0; i < XENT_ROWS; i++)
        b.r[i] = 0.5;
    problem_check(&b);
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 256u << 10);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_norm),      cmocka_unit_test(case_attention),
        cmocka_unit_test(case_embedding), cmocka_unit_test(case_plain),
        cmocka_unit_test(case_xent),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
