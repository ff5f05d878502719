/*
 * The update rules and the judge on the emulator against ref: the same bits in everything that is
 * written, for many pieces at once, aligned and not, with factors and without.
 */
#include "device.h"
#include "emulate/emulate.h"
#include "emulate/slots.h"

#include "base/sum.h"
#include "cuda/slots.h"
#include "ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* More than one launch's worth of pieces; a chunk is 2048 elements. */
#define PIECES 70

static const int64_t length[] = {0, 1, 3, 4, 7, 64, 1023, 1024, 2047, 2048, 2049, 5000};
#define LENGTHS (sizeof(length) / sizeof(length[0]))

static const enum tess_dtype lows[] = {TESS_F32, TESS_BF16, TESS_F16};

/* All sizes: subnormal squares too. */
static float *draw_floats(struct draw *draw, int64_t count, bool positive, size_t offset)
{
    float *x = emulate_array((size_t)count * 4, offset);
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)ldexp(draw_real(draw, TESS_F32), (int)draw_between(draw, -70, 2));
        if (positive)
            x[i] = fabsf(x[i]);
    }
    return x;
}

static struct tess_update draw_update(struct draw *draw, enum tess_update_kind kind, size_t i)
{
    int64_t count = length[(size_t)draw_between(draw, 0, LENGTHS - 1)];
    size_t offset = i % 5 == 1 ? 4 : 0;
    struct tess_update u = {
        .kind = kind,
        .nesterov = i % 2,
        .low = lows[i % 3],
        .count = count,
        .w = draw_floats(draw, count, false, offset),
        .g = draw_floats(draw, count, false, offset),
        .lr = 0.05f + 0.001f * (float)i,
        .mu = 0.9f,
        .beta1 = 0.9f,
        .beta2 = 0.98f,
        .epsilon = 1e-6f,
        .weight_decay = i % 4 == 0 ? 0 : 0.01f,
        .correction1 = 1.7f,
        .correction2 = 9.3f,
        .grad_scale = 0.75f,
        .tensor_scale = 1.3f,
    };
    if (kind != TESS_UPDATE_SGD && kind != TESS_UPDATE_AVERAGE)
        u.m = draw_floats(draw, count, false, offset);
    if (kind == TESS_UPDATE_ADAMW || kind == TESS_UPDATE_LAMB)
        u.v = draw_floats(draw, count, true, offset);
    if (kind == TESS_UPDATE_LAMB)
        u.direction = draw_floats(draw, count, false, offset);
    if (i % 7 != 2)
        u.param_low = emulate_array((size_t)count * tess_dtype_bytes(u.low),
                                    i % 11 == 3 ? tess_dtype_bytes(u.low) : 0);
    return u;
}

/* A copy of an update's arrays, for ref. */
static struct tess_update copy_update(const struct tess_update *u)
{
    struct tess_update copy = *u;
    size_t bytes = (size_t)u->count * 4;
    copy.w = emulate_copy_of(u->w, bytes);
    copy.m = u->m ? emulate_copy_of(u->m, bytes) : NULL;
    copy.v = u->v ? emulate_copy_of(u->v, bytes) : NULL;
    copy.direction = u->direction ? emulate_copy_of(u->direction, bytes) : NULL;
    copy.param_low =
        u->param_low ? emulate_copy_of(u->param_low, (size_t)u->count * tess_dtype_bytes(u->low))
                     : NULL;
    return copy;
}

static void check_update(const struct tess_update *got, const struct tess_update *expected)
{
    size_t bytes = (size_t)got->count * 4;
    check_bytes("w", got->w, expected->w, bytes);
    if (got->m)
        check_bytes("m", got->m, expected->m, bytes);
    if (got->v)
        check_bytes("v", got->v, expected->v, bytes);
    if (got->direction)
        check_bytes("direction", got->direction, expected->direction, bytes);
    if (got->param_low)
        check_bytes("compute copy", got->param_low, expected->param_low,
                    (size_t)got->count * tess_dtype_bytes(got->low));
}

/* Every third piece has a factor, every sixth is skipped by it. */
static void set_factor(struct draw *draw, struct tess_update *u, size_t i)
{
    if (i % 3 != 1)
        return;
    struct tess_update_factor factor = {
        .lr = (float)draw_real(draw, TESS_F32),
        .correction1 = 1.25f,
        .correction2 = 3.5f,
        .grad_scale = (float)draw_real(draw, TESS_F32),
        .tensor_scale = (float)draw_real(draw, TESS_F32),
        .skip = i % 2 == 0,
    };
    u->factor = emulate_copy_of(&factor, sizeof(factor));
}

/* `kind` -1: all kinds, mixed. */
static void update_run(int kind, int32_t count, uint64_t seed)
{
    struct draw draw = {seed};
    struct tess_update got[PIECES] = {{.count = 0}}, expected[PIECES];
    for (int32_t i = 0; i < count; i++) {
        size_t n = (size_t)i + (size_t)seed;
        got[i] = draw_update(&draw, (enum tess_update_kind)(kind < 0 ? (int)(n * 5 % 6) : kind), n);
        set_factor(&draw, &got[i], n);
        expected[i] = copy_update(&got[i]);
        tess_kernel_ref.update(NULL, &expected[i]);
    }
    tess__cuda_update_all(&emulate_kernel, got, count);
    for (int32_t i = 0; i < count; i++)
        check_update(&got[i], &expected[i]);
    emulate_free_all();
}

static void case_rules(void **state)
{
    (void)state;
    for (int kind = TESS_UPDATE_SGD; kind <= TESS_UPDATE_AVERAGE; kind++)
        for (uint64_t seed = 0; seed < 40; seed++)
            update_run(kind, 1, seed);
}

static void case_pieces(void **state)
{
    (void)state;
    static const int32_t count[] = {0, 1, 31, 32, 33, 64, PIECES};
    for (size_t i = 0; i < sizeof(count) / sizeof(count[0]); i++) {
        update_run(TESS_UPDATE_ADAMW, count[i], i);
        update_run(TESS_UPDATE_MOMENTUM, count[i], i);
        update_run(-1, count[i], i);
    }
}

static void case_lamb_direction(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct draw draw = {seed};
        struct tess_update got[5], expected[5];
        for (size_t i = 0; i < 5; i++) {
            got[i] = draw_update(&draw, TESS_UPDATE_LAMB, i + (size_t)seed);
            set_factor(&draw, &got[i], i + (size_t)seed);
            expected[i] = copy_update(&got[i]);
            tess_kernel_ref.lamb_direction(NULL, &expected[i]);
        }
        for (size_t i = 0; i < 5; i++) {
            tess__cuda_lamb_direction(&emulate_kernel, &got[i]);
            check_update(&got[i], &expected[i]);
        }
        emulate_free_all();
    }
}

/* ---- the judge ------------------------------------------------------------------------------ */

/* What one run of the judge begins with; `way` selects its parts. */
struct judge_case {
    int32_t count;
    bool norm, novograd, ratio, ages, grad_bad, norm_bad;
    double clip, loss_scale;
};

/* 53 bits and a rest next to a tie. */
static void draw_tie(struct draw *draw, struct tess_sum *sum)
{
    static const int64_t tail[] = {0x3ff, 0x400, 0x401, 0x7ff, 0xc00, 0xbff};
    tess_sum_clear(sum);
    sum->limb[10] = (int64_t)(draw_word(draw) >> 32 | 0x80000000u);
    sum->limb[9] = (int64_t)(draw_word(draw) >> 44 << 12) | tail[draw_between(draw, 0, 5)];
    sum->limb[draw_between(draw, 0, 8)] = draw_between(draw, 0, 1);
}

static void draw_sums(struct draw *draw, const struct judge_case *c, int32_t count,
                      struct tess_sum *sum)
{
    for (int32_t p = 0; p < count; p++) {
        tess_sum_clear(&sum[p]);
        for (int64_t k = draw_between(draw, 0, 20); k > 0; k--) /* some are 0 */
            tess_sum_add(&sum[p], ldexp(fabs(draw_real(draw, TESS_F32)),
                                        (int)draw_between(draw, -300, c->count > 3 ? 200 : 20)));
        if (c->count == 1 && draw_between(draw, 0, 1) == 0)
            draw_tie(draw, &sum[p]);
        if (c->norm_bad && draw_between(draw, 0, 3) == 0)
            tess_sum_add(&sum[p], p % 2 ? (double)NAN : (double)INFINITY);
    }
}

static void judge_run(const struct judge_case *c, uint64_t seed)
{
    struct draw draw = {seed};
    size_t n = (size_t)c->count, sums = c->ratio ? 2 * n : n;
    struct tess_sum *sum = emulate_array(sums * sizeof(*sum), 0);
    draw_sums(&draw, c, (int32_t)sums, sum);
    struct tess_update_rates rates = {
        .lr = 0.01f,
        .correction1 = 1.5f,
        .correction2 = 2.5f,
        .grad_scale = (float)(1 / c->loss_scale),
        .loss_scale = c->loss_scale,
    };
    struct tess_verdict verdict = {.grad_bad = c->grad_bad ? 2 : 0, .loss_bad = 3};
    int64_t *age = emulate_array(n * sizeof(*age), 0);
    uint8_t *unused = emulate_array(n, 0);
    float *state = draw_floats(&draw, c->count, true, 0);
    struct tess_update_factor *factor = emulate_array(n * sizeof(*factor), 0);
    for (size_t p = 0; p < n; p++) {
        age[p] = draw_between(&draw, 0, 3) == 0 ? 0 : draw_between(&draw, 0, 100000);
        unused[p] = draw_between(&draw, 0, 3) == 0;
        factor[p] = (struct tess_update_factor){.lr = 1, .skip = p % 5 == 0};
    }
    struct tess_judge expected = {
        .norm = c->norm,
        .novograd = c->novograd,
        .ratio = c->ratio,
        .count = c->count,
        .sum = sum,
        .rates = &rates,
        .clip = c->clip,
        .beta1 = 0.9f,
        .beta2 = 0.98f,
        .epsilon = 1e-8f,
        .step = draw_between(&draw, 0, 2),
        .age = c->ages ? age : NULL,
        .unused = c->ages ? unused : NULL,
        .tensor_state = state,
        .verdict = &verdict,
        .factor = factor,
    };
    struct tess_judge got = expected;
    got.rates = emulate_copy_of(&rates, sizeof(rates));
    got.verdict = emulate_copy_of(&verdict, sizeof(verdict));
    got.factor = emulate_copy_of(factor, n * sizeof(*factor));
    got.tensor_state = emulate_copy_of(state, n * sizeof(*state));
    tess_kernel_ref.update_judge(NULL, &expected);
    tess__cuda_update_judge(&emulate_kernel, &got);
    assert_true(got.verdict->grad_norm == verdict.grad_norm ||
                (isnan(got.verdict->grad_norm) && isnan(verdict.grad_norm)));
    assert_int_equal(got.verdict->grad_bad, verdict.grad_bad);
    assert_int_equal(got.verdict->norm_bad, verdict.norm_bad);
    assert_int_equal(got.verdict->loss_bad, verdict.loss_bad);
    assert_int_equal(got.verdict->skip, verdict.skip);
    check_bytes("tensor state", got.tensor_state, state, n * sizeof(*state));
    for (size_t p = 0; p < n; p++) {
        assert_int_equal(got.factor[p].skip, factor[p].skip);
        if (factor[p].skip == 0) /* the others are not read; of a NaN the bits are not promised */
            check_bytes("factor", &got.factor[p], &factor[p], sizeof(factor[p]));
    }
    emulate_free_all();
}

static void case_judge(void **state)
{
    (void)state;
    static const int32_t count[] = {1, 2, 20, 33, 150, 1500};
    for (uint64_t i = 0; i < 6 * 64 * 2; i++) {
        unsigned bits = (unsigned)(i / 12);
        struct judge_case c = {
            .count = count[i % 6],
            .norm = bits & 1,
            .novograd = (bits & 6) == 2,
            .ratio = (bits & 6) == 4,
            .ages = bits & 8,
            .grad_bad = (bits & 48) == 16,
            .norm_bad = (bits & 48) == 32,
            .clip = i % 2 ? 0 : 1.25,
            .loss_scale = bits & 1 ? 1 : 1024,
        };
        judge_run(&c, i);
    }
}

int main(void)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_rules),
        cmocka_unit_test(case_pieces),
        cmocka_unit_test(case_lamb_direction),
        cmocka_unit_test(case_judge),
    };
    return cmocka_run_group_tests(cases, NULL, NULL);
}
