/* An outsider's optimizer: Lion (Chen et al., "Symbolic discovery of optimization algorithms",
 * NeurIPS 2023, algorithm 2). Nothing but public headers. */
#include "outsider.h"

struct lion_options {
    double mix;
};

static const struct tess_option lion_option_table[] = {
    TESS_ROW_REAL("mix", offsetof(struct lion_options, mix), "0.9", 0, 1,
                  "Share of the momentum in the direction of the update."),
    TESS_ROW_END,
};

static void lion_loop(const struct tess_update *u, int64_t begin, int64_t end)
{
    const struct lion_options *options = u->options;
    const float mix = (float)options->mix;
    for (int64_t i = begin; i < end; i++) {
        const float g = u->grad_scale * u->g[i];
        const float c = mix * u->m[i] + (1 - mix) * g;
        const float sign = (float)((c > 0) - (c < 0));
        u->w[i] -= u->lr * (sign + u->weight_decay * u->w[i]);
        u->m[i] = u->beta2 * u->m[i] + (1 - u->beta2) * g;
    }
}

const struct tess_optimizer_ops outsider_lion = {
    .abi = TESS_ABI,
    .name = "lion",
    .summary = "the sign of a momentum; beta2 0.99",
    .options = lion_option_table,
    .options_size = sizeof(struct lion_options),
    .kind = TESS_UPDATE_OWN,
    .loop = lion_loop,
    .state_arrays = 1,
    .beta2 = 0.99,
};
