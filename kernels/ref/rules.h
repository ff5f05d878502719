/*
 * The update rules, one piece at a time, in f32 with every operation rounded (no fused
 * multiply-add) in the order in which it is written here. sqrt and division are correctly rounded,
 * so a vectorised version has the same bits. Weight decay is L2 (added to the gradient) but for
 * AdamW and LAMB.
 *
 * Each rule's loop is written out, without a function call per element, so that it vectorises.
 */
#ifndef KERNELS_REF_RULES_H
#define KERNELS_REF_RULES_H

#include "base/half.h"
#include "tessera/kernel.h"

#include <math.h>

/* w -= lr (g + decay w) */
static inline void tess__rule_sgd(const struct tess_update *u, int64_t begin, int64_t end)
{
    float *restrict w = u->w;
    const float *restrict g = u->g;
    float lr = u->lr, scale = u->grad_scale, decay = u->weight_decay;
    for (int64_t i = begin; i < end; i++)
        w[i] = w[i] - lr * (scale * g[i] + decay * w[i]);
}

/* m = mu m + (g + decay w); w -= lr m */
static inline void tess__rule_momentum(const struct tess_update *u, int64_t begin, int64_t end)
{
    float *restrict w = u->w, *restrict m = u->m;
    const float *restrict g = u->g;
    float lr = u->lr, mu = u->mu, scale = u->grad_scale, decay = u->weight_decay;
    for (int64_t i = begin; i < end; i++) {
        float next = mu * m[i] + (scale * g[i] + decay * w[i]);
        m[i] = next;
        w[i] = w[i] - lr * next;
    }
}

/*
 * d = g + decay w; m = mu m + d; w -= lr (d + mu m). Sutskever et al. 2013, in the form of Bengio
 * et al. 2013, equation 7, where w is the point at which the next gradient is taken.
 */
static inline void tess__rule_nesterov(const struct tess_update *u, int64_t begin, int64_t end)
{
    float *restrict w = u->w, *restrict m = u->m;
    const float *restrict g = u->g;
    float lr = u->lr, mu = u->mu, scale = u->grad_scale, decay = u->weight_decay;
    for (int64_t i = begin; i < end; i++) {
        float d = scale * g[i] + decay * w[i];
        float next = mu * m[i] + d;
        m[i] = next;
        w[i] = w[i] - lr * (d + mu * next);
    }
}

/*
 * Loshchilov and Hutter 2019, algorithm 2, lines 6 to 12:
 *   m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2
 *   w -= lr (m_hat / (sqrt(v_hat) + epsilon) + decay w), m_hat = correction1 m, v_hat = correction2
 * v
 */
static inline void tess__rule_adamw(const struct tess_update *u, int64_t begin, int64_t end)
{
    float *restrict w = u->w, *restrict m = u->m, *restrict v = u->v;
    const float *restrict g = u->g;
    float lr = u->lr, scale = u->grad_scale, decay = u->weight_decay, epsilon = u->epsilon;
    float beta1 = u->beta1, rest1 = 1.0f - beta1, correction1 = u->correction1;
    float beta2 = u->beta2, rest2 = 1.0f - beta2, correction2 = u->correction2;
    for (int64_t i = begin; i < end; i++) {
        float d = scale * g[i];
        float m_next = beta1 * m[i] + rest1 * d;
        float v_next = beta2 * v[i] + rest2 * (d * d);
        m[i] = m_next;
        v[i] = v_next;
        float step = (correction1 * m_next) / (sqrtf(correction2 * v_next) + epsilon);
        w[i] = w[i] - lr * (step + decay * w[i]);
    }
}

/*
 * Ginsburg et al. 2019, algorithm 1, lines 7 and 8, for one layer whose second moment v (one
 * number, lines 5 and 6) is in tensor_scale = 1 / (sqrt(v) + epsilon): m = beta1 m + (tensor_scale
 * g + decay w); w -= lr m
 */
static inline void tess__rule_novograd(const struct tess_update *u, int64_t begin, int64_t end)
{
    float *restrict w = u->w, *restrict m = u->m;
    const float *restrict g = u->g;
    float lr = u->lr, beta1 = u->beta1, decay = u->weight_decay;
    float scale = u->grad_scale, tensor_scale = u->tensor_scale;
    for (int64_t i = begin; i < end; i++) {
        float next = beta1 * m[i] + (scale * g[i] * tensor_scale + decay * w[i]);
        m[i] = next;
        w[i] = w[i] - lr * next;
    }
}

/*
 * You et al. 2020, algorithm 2, first half:
 *   m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2
 *   direction = m_hat / (sqrt(v_hat) + epsilon) + decay w
 */
static inline void tess__rule_lamb_direction(const struct tess_update *u, int64_t begin,
                                             int64_t end)
{
    const float *restrict w = u->w, *restrict g = u->g;
    float *restrict m = u->m, *restrict v = u->v, *restrict direction = u->direction;
    float scale = u->grad_scale, decay = u->weight_decay, epsilon = u->epsilon;
    float beta1 = u->beta1, rest1 = 1.0f - beta1, correction1 = u->correction1;
    float beta2 = u->beta2, rest2 = 1.0f - beta2, correction2 = u->correction2;
    for (int64_t i = begin; i < end; i++) {
        float d = scale * g[i];
        float m_next = beta1 * m[i] + rest1 * d;
        float v_next = beta2 * v[i] + rest2 * (d * d);
        m[i] = m_next;
        v[i] = v_next;
        float step = (correction1 * m_next) / (sqrtf(correction2 * v_next) + epsilon);
        direction[i] = step + decay * w[i];
    }
}

/* Second half: w -= (lr tensor_scale) direction, tensor_scale the trust ratio |w| / |direction|. */
static inline void tess__rule_lamb(const struct tess_update *u, int64_t begin, int64_t end)
{
    float *restrict w = u->w;
    const float *restrict direction = u->direction;
    float rate = u->lr * u->tensor_scale;
    for (int64_t i = begin; i < end; i++)
        w[i] = w[i] - rate * direction[i];
}

/* w = (1 - lr) w + lr g */
static inline void tess__rule_average(const struct tess_update *u, int64_t begin, int64_t end)
{
    float *restrict w = u->w;
    const float *restrict g = u->g;
    float lr = u->lr, rest = 1.0f - lr, scale = u->grad_scale;
    for (int64_t i = begin; i < end; i++)
        w[i] = rest * w[i] + lr * (scale * g[i]);
}

/* The compute copy of elements begin .. end - 1. */
static inline void tess__rule_copy_low(const struct tess_update *u, int64_t begin, int64_t end)
{
    const float *restrict w = u->w;
    uint16_t *restrict half = u->param_low;
    float *restrict whole = u->param_low;
    switch (u->low) {
    case TESS_BF16:
        for (int64_t i = begin; i < end; i++)
            half[i] = tess__bf16_of_f32(w[i]);
        break;
    case TESS_F16:
        for (int64_t i = begin; i < end; i++)
            half[i] = tess__f16_of_f32(w[i]);
        break;
    default: /* f32 */
        for (int64_t i = begin; i < end; i++)
            whole[i] = w[i];
    }
}

/* The update with the factors in its fields; false where the step or the parameter is skipped. For
 * backends whose device memory the host can read. */
static inline bool tess__rule_resolve(const struct tess_update *update, struct tess_update *u)
{
    const struct tess_update_factor *factor = update->factor;
    *u = *update;
    u->factor = NULL;
    if (factor == NULL)
        return true;
    if (update->kind != TESS_UPDATE_AVERAGE) {
        u->lr = factor->lr;
        u->correction1 = factor->correction1;
        u->correction2 = factor->correction2;
        u->grad_scale = factor->grad_scale;
        u->tensor_scale = factor->tensor_scale;
    }
    return factor->skip == 0;
}

/* Elements updated before their compute copy is made: w is then still in the first-level cache. */
#define TESS__RULE_CHUNK 1024

/* tess_update() of the whole piece. */
static inline void tess__rule_apply(const struct tess_update *u)
{
    for (int64_t begin = 0; begin < u->count; begin += TESS__RULE_CHUNK) {
        int64_t end = begin + TESS__RULE_CHUNK < u->count ? begin + TESS__RULE_CHUNK : u->count;
        switch (u->kind) {
        case TESS_UPDATE_SGD:
            tess__rule_sgd(u, begin, end);
            break;
        case TESS_UPDATE_MOMENTUM:
            if (u->nesterov)
                tess__rule_nesterov(u, begin, end);
            else
                tess__rule_momentum(u, begin, end);
            break;
        case TESS_UPDATE_ADAMW:
            tess__rule_adamw(u, begin, end);
            break;
        case TESS_UPDATE_NOVOGRAD:
            tess__rule_novograd(u, begin, end);
            break;
        case TESS_UPDATE_LAMB:
            tess__rule_lamb(u, begin, end);
            break;
        case TESS_UPDATE_AVERAGE:
            tess__rule_average(u, begin, end);
            break;
        case TESS_UPDATE_OWN:
            u->loop(u, begin, end);
            break;
        }
        if (u->param_low)
            tess__rule_copy_low(u, begin, end);
    }
}

#endif
