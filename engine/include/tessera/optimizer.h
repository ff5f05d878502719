/*
 * Optimizers. The core computes norms, clipping, loss scale and learning rate, keeps the state and
 * calls the update rule for each contiguous piece of a parameter that a rank owns; an optimizer
 * names its rule and what the rule needs. The options that optimizers share (--momentum, --beta1,
 * --weight-decay, ...) are the core's and arrive in struct tess_update.
 */
#ifndef TESSERA_OPTIMIZER_H
#define TESSERA_OPTIMIZER_H

#include "tessera/option.h"
#include "tessera/status.h"
#include "tessera/update.h"

TESS_BEGIN_DECLS

/* Order of calls: check, while the configuration is read; then `loop` for each piece and step. */
struct tess_optimizer_ops {
    uint32_t abi;
    const char *name;
    const char *summary; /* one line, with the default betas and epsilon */

    /* OPTIONAL, default: none. Own options; the core adds the name as their prefix. */
    const struct tess_option *options;
    size_t options_size;
    /* OPTIONAL, default: TESS_OK. Limits that join own options. Pure; logs the reason. */
    enum tess_status (*check)(const void *options);

    /* The rule: a loop that every kernel backend has, but not AVERAGE; or TESS_UPDATE_OWN. */
    enum tess_update_kind kind;
    /* REQUIRED with TESS_UPDATE_OWN, else NULL. Such an optimizer runs on every backend whose
     * memory the host can read (far_memory without bracket: it cannot). */
    tess_update_loop *loop;

    int32_t state_arrays; /* f32 per element, zero at first: 0, 1 (m) or 2 (m, v) */
    bool tensor_moment;   /* tensor_scale is 1 / (sqrt(v) + epsilon), v the second moment of each
                             tensor's gradient (struct tess_judge.novograd) */
    bool trust_ratio;     /* tess_lamb_direction precedes the rule; tensor_scale is the trust ratio
                             (struct tess_judge.ratio). Needs two state arrays */
    bool grad_averaging;  /* the update is linear in m: --grad-averaging multiplies the learning
                             rate by 1 - beta1 */
    double beta1, beta2, epsilon; /* defaults; 0 where the rule does not use them */
};

TESS_END_DECLS
#endif
