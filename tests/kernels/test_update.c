/*
 * The update rules of one backend (argv[1]): several steps against the papers' formulas in double,
 * and the bits of ref, in whole and in pieces.
 */
#include "device.h"

#include "ref/ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct device device;

#define COUNT 1500 /* more than a chunk of 1024, not a multiple of anything */
#define STEPS 5

struct rule_case {
    const char *name;
    enum tess_update_kind kind;
    bool nesterov;
    float weight_decay;
};

static const struct rule_case rules[] = {
    {"sgd", TESS_UPDATE_SGD, false, 0},
    {"sgd, decay", TESS_UPDATE_SGD, false, 0.01f},
    {"momentum", TESS_UPDATE_MOMENTUM, false, 0.01f},
    {"nesterov", TESS_UPDATE_MOMENTUM, true, 0.01f},
    {"adamw", TESS_UPDATE_ADAMW, false, 0.01f},
    {"novograd", TESS_UPDATE_NOVOGRAD, false, 0.001f},
    {"lamb", TESS_UPDATE_LAMB, false, 0.01f},
    {"average", TESS_UPDATE_AVERAGE, false, 0},
};
#define RULES (sizeof(rules) / sizeof(rules[0]))

static struct tess_update rule_update(const struct rule_case *rule, int step)
{
    return (struct tess_update){
        .kind = rule->kind,
        .nesterov = rule->nesterov,
        .count = COUNT,
        .lr = 0.05f,
        .mu = 0.9f,
        .beta1 = 0.9f,
        .beta2 = 0.98f,
        .epsilon = 1e-6f,
        .weight_decay = rule->weight_decay,
        .correction1 = (float)(1 / (1 - pow((double)0.9f, step + 1))),
        .correction2 = (float)(1 / (1 - pow((double)0.98f, step + 1))),
        .grad_scale = 0.75f,
        .tensor_scale = 1.3f,
    };
}

/* One element, one step, in double. Each formula as its paper writes it. */
static void rule_naive(const struct tess_update *u, double *w, double *m, double *v, double g)
{
    double lr = (double)u->lr, decay = (double)u->weight_decay;
    double beta1 = (double)u->beta1, beta2 = (double)u->beta2;
    g *= (double)u->grad_scale;
    switch (u->kind) {
    case TESS_UPDATE_SGD:
        *w -= lr * (g + decay * *w);
        break;
    case TESS_UPDATE_MOMENTUM:
        g += decay * *w;
        *m = (double)u->mu * *m + g;
        *w -= lr * (u->nesterov ? g + (double)u->mu * *m : *m);
        break;
    case TESS_UPDATE_ADAMW:
    case TESS_UPDATE_LAMB: {
        *m = beta1 * *m + (1 - beta1) * g;
        *v = beta2 * *v + (1 - beta2) * g * g;
        double m_hat = *m * (double)u->correction1, v_hat = *v * (double)u->correction2;
        double direction = m_hat / (sqrt(v_hat) + (double)u->epsilon) + decay * *w;
        *w -= lr * (u->kind == TESS_UPDATE_LAMB ? (double)u->tensor_scale : 1.0) * direction;
        break;
    }
    case TESS_UPDATE_NOVOGRAD:
        *m = beta1 * *m + (g * (double)u->tensor_scale + decay * *w);
        *w -= lr * *m;
        break;
    case TESS_UPDATE_AVERAGE:
        *w = (1 - lr) * *w + lr * g;
        break;
    case TESS_UPDATE_OWN: /* has no formula of its own */
        break;
    }
}

/* Device arrays of one run. */
struct rule_arrays {
    float *w, *m, *v, *g, *direction;
    void *low;
};

static struct rule_arrays rule_arrays(const double *w, const double *zero)
{
    return (struct rule_arrays){
        .w = device_put_real(&device, TESS_F32, w, COUNT),
        .m = device_put_real(&device, TESS_F32, zero, COUNT),
        .v = device_put_real(&device, TESS_F32, zero, COUNT),
        .g = device_array(&device, COUNT * sizeof(float)),
        .direction = device_array(&device, COUNT * sizeof(float)),
        .low = device_array(&device, COUNT * sizeof(float)),
    };
}

/* Elements [begin, begin + count) of one step. */
static void rule_apply(struct tess_update u, const struct rule_arrays *a, int64_t begin,
                       int64_t count)
{
    u.count = count;
    u.w = a->w + begin;
    u.m = a->m + begin;
    u.v = a->v + begin;
    u.g = a->g + begin;
    u.direction = a->direction + begin;
    if (u.kind == TESS_UPDATE_LAMB)
        tess_lamb_direction(device.kernel, &u);
    u.param_low = (char *)a->low + (size_t)begin * tess_dtype_bytes(u.low);
    tess_update(device.kernel, &u);
}

static void rule_check(const struct rule_case *rule, enum tess_dtype copy)
{
    struct draw draw = {31};
    device_reset(&device);
    double *w = draw_reals(&draw, TESS_F32, COUNT), *m = reals(COUNT), *v = reals(COUNT);
    double *got = reals(COUNT), *bound = reals(COUNT), *low = reals(COUNT),
           *low_bound = reals(COUNT);
    struct rule_arrays a = rule_arrays(w, m);
    for (int step = 0; step < STEPS; step++) {
        struct tess_update u = rule_update(rule, step);
        u.low = copy;
        double *g = draw_reals(&draw, TESS_F32, COUNT);
        for (int64_t i = 0; i < COUNT; i++) {
            /* |g| >= 1/64: m_hat / sqrt(v_hat) of a tiny g would be all cancellation in m */
            g[i] = round_to(TESS_F32, g[i] + copysign(0x1p-6, g[i]));
        }
        void *fresh = device_put_real(&device, TESS_F32, g, COUNT);
        tess_copy(device.kernel, COUNT * sizeof(float), fresh, a.g);
        rule_apply(u, &a, 0, COUNT);
        for (int64_t i = 0; i < COUNT; i++)
            rule_naive(&u, &w[i], &m[i], &v[i], g[i]);
        free(g);
    }
    device_get_real(&device, TESS_F32, a.w, got, COUNT);
    for (int64_t i = 0; i < COUNT; i++) {
        /* Ten roundings a step of numbers of the size of w and of lr times the direction, which is
           at most 10 (momentum: 1 / (1 - mu), gradients below 1); v's relative error stays small
           because its terms are all positive. */
        bound[i] = STEPS * 12 * 0x1p-24 * (fabs(w[i]) + 1);
    }
    check_close(rule->name, got, w, bound, COUNT);
    /* The compute copy is the master rounded, exactly. */
    device_get_real(&device, copy, a.low, low, COUNT);
    for (int64_t i = 0; i < COUNT; i++)
        got[i] = round_to(copy, got[i]);
    check_close("compute copy", low, got, low_bound, COUNT);
    free(w);
    free(m);
    free(v);
    free(got);
    free(bound);
    free(low);
    free(low_bound);
}

static void case_formulas(void **state)
{
    (void)state;
    for (size_t r = 0; r < RULES; r++) {
        rule_check(&rules[r], TESS_BF16);
        rule_check(&rules[r], TESS_F16);
    }
}

static void fetch_all(const struct rule_arrays *a, char *host)
{
    const void *const array[] = {a->w, a->m, a->v, a->low};
    for (int i = 0; i < 4; i++)
        device_get(&device, host + (size_t)i * COUNT * sizeof(float), array[i],
                   COUNT * sizeof(float));
}

/*
 * The same steps by ref on host arrays, by the backend as a whole, and by the backend in pieces:
 * the same bits in w, m, v and the compute copy, whose type is each of the three.
 */
static void rule_bits(const struct rule_case *rule, enum tess_dtype low)
{
    enum { BYTES = 4 * COUNT * sizeof(float) };
    static const int64_t piece[] = {64, 320, 1, 700, COUNT - 64 - 320 - 1 - 700};
    struct draw draw = {37};
    device_reset(&device);
    double *w = draw_reals(&draw, TESS_F32, COUNT), *zero = reals(COUNT);
    struct rule_arrays a = rule_arrays(w, zero), b = rule_arrays(w, zero);
    float *host = malloc(BYTES), *g = floats(COUNT), *direction = floats(COUNT);
    memset(host, 0xff, BYTES);
    for (int64_t i = 0; i < COUNT; i++) {
        host[i] = (float)w[i];
        host[COUNT + i] = host[2 * COUNT + i] = 0;
    }
    for (int step = 0; step < STEPS; step++) {
        struct tess_update u = rule_update(rule, step);
        u.low = low;
        for (int64_t i = 0; i < COUNT; i++) /* all sizes: subnormal squares too */
            g[i] = (float)ldexp(draw_real(&draw, TESS_F32), (int)draw_between(&draw, -70, 2));
        device_put(&device, a.g, g, COUNT * sizeof(float));
        device_put(&device, b.g, g, COUNT * sizeof(float));
        rule_apply(u, &a, 0, COUNT);
        int64_t begin = 0;
        for (size_t p = 0; p < sizeof(piece) / sizeof(piece[0]); begin += piece[p++])
            rule_apply(u, &b, begin, piece[p]);
        u.w = host;
        u.m = host + COUNT;
        u.v = host + 2 * COUNT;
        u.param_low = host + 3 * COUNT;
        u.g = g;
        u.direction = direction;
        if (u.kind == TESS_UPDATE_LAMB)
            tess_kernel_ref.lamb_direction(NULL, &u);
        tess_kernel_ref.update(NULL, &u);
    }
    char *got = malloc(BYTES);
    fetch_all(&a, got);
    check_bytes(rule->name, got, host, BYTES);
    fetch_all(&b, got);
    check_bytes("in pieces", got, host, BYTES);
    free(w);
    free(zero);
    free(host);
    free(g);
    free(direction);
    free(got);
}

static void case_bits_of_ref(void **state)
{
    (void)state;
    static const enum tess_dtype low[] = {TESS_BF16, TESS_F16, TESS_F32};
    for (size_t i = 0; i < 3 * RULES; i++)
        rule_bits(&rules[i / 3], low[i % 3]);
}

/* Without a compute copy nothing else may be written. */
static void case_no_copy(void **state)
{
    (void)state;
    device_reset(&device);
    float *w = device_array(&device, 64 * sizeof(float)),
          *g = device_array(&device, 64 * sizeof(float));
    float host[64];
    tess_fill(device.kernel, sizeof(host), 0, w);
    tess_fill(device.kernel, sizeof(host), 0, g);
    struct tess_update u = {
        .kind = TESS_UPDATE_SGD, .count = 33, .w = w, .g = g, .lr = 1, .grad_scale = 1};
    for (int i = 0; i < 64; i++)
        host[i] = 1;
    device_put(&device, g, host, sizeof(host));
    tess_update(device.kernel, &u);
    device_get(&device, host, w, sizeof(host));
    for (int i = 0; i < 64; i++)
        assert_true(host[i] == (i < 33 ? -1.0f : 0.0f));
}

int main(int argc, char **argv)
{
    device_open(&device, device_backend(argc, argv), 512u << 10);
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(case_formulas),
        cmocka_unit_test(case_bits_of_ref),
        cmocka_unit_test(case_no_copy),
    };
    int failed = cmocka_run_group_tests(cases, NULL, NULL);
    device_close(&device);
    return failed;
}
