/* The list of config_bits.h. */
#include "config/config_bits.h"

#include "base/options_set.h"

#include <stdio.h>
#include <string.h>

/* Options, or with a point at the end groups of options. */
static const struct {
    const char *name;
    enum tess_option_bits bits;
} bits_of[] = {
    {"device", TESS_BITS_PLACE},
    {"kernel", TESS_BITS_PLACE},
    {"cuda.", TESS_BITS_PLACE},
    {"init", TESS_BITS_PLACE},
    {"lora.init", TESS_BITS_PLACE},

    {"batch-size", TESS_BITS_FIGURE},
    {"batch-per-rank", TESS_BITS_FIGURE},
    {"grid", TESS_BITS_FIGURE},
    {"steps", TESS_BITS_FIGURE},
    {"epochs", TESS_BITS_FIGURE},
    {"learning-rate", TESS_BITS_FIGURE},
    {"base-lr", TESS_BITS_FIGURE},
    {"base-batch", TESS_BITS_FIGURE},
    {"lr-scale", TESS_BITS_FIGURE},
    {"warmup-start", TESS_BITS_FIGURE},
    {"tensor.canonical", TESS_BITS_FIGURE},

    {"strategy", TESS_BITS_FREE},
    {"variants", TESS_BITS_FREE},
    {"mesh", TESS_BITS_FREE},
    {"ranks", TESS_BITS_FREE},
    {"accumulate", TESS_BITS_FREE},
    {"recompute", TESS_BITS_FREE},
    {"find-unused", TESS_BITS_FREE},
    {"tensor.ranks", TESS_BITS_FREE},
    {"tensor.sequence-parallel", TESS_BITS_FREE},
    {"tensor.runs", TESS_BITS_FREE},
    {"comm", TESS_BITS_FREE},
    {"comm.", TESS_BITS_FREE},
    {"topology.", TESS_BITS_FREE},
    {"threads", TESS_BITS_FREE},
    {"bind", TESS_BITS_FREE},
    {"timeout", TESS_BITS_FREE},
    {"debug", TESS_BITS_FREE},
    {"audit", TESS_BITS_FREE},
    {"data.workers", TESS_BITS_FREE},
    {"run", TESS_BITS_FREE},
    {"resume", TESS_BITS_FREE},
    {"overwrite", TESS_BITS_FREE},
    {"restarts", TESS_BITS_FREE},
    {"min-ranks", TESS_BITS_FREE},
    {"hosts", TESS_BITS_FREE},
    {"meet", TESS_BITS_FREE},
    {"secret-file", TESS_BITS_FREE},
    {"elastic", TESS_BITS_FREE},
    {"redundancy", TESS_BITS_FREE},
    {"save-weights", TESS_BITS_FREE},
    {"save-every", TESS_BITS_FREE},
    {"save-memory", TESS_BITS_FREE},
    {"save-bandwidth", TESS_BITS_FREE},
    {"save-required", TESS_BITS_FREE},
    {"keep", TESS_BITS_FREE},
    {"log-every", TESS_BITS_FREE},
    {"hash-every", TESS_BITS_FREE},
    {"evaluate", TESS_BITS_FREE},
    {"evaluate-every", TESS_BITS_FREE},
    {"explain", TESS_BITS_FREE},
    {"explain-rank", TESS_BITS_FREE},
    {"trace", TESS_BITS_FREE},
    {"trace-first", TESS_BITS_FREE},
    {"trace-steps", TESS_BITS_FREE},
    {"tensorboard", TESS_BITS_FREE},
    {"watch", TESS_BITS_FREE},
    {"prometheus", TESS_BITS_FREE},
    {"peak-tflops", TESS_BITS_FREE},
};

static bool bits_begins(const char *name, const char *prefix)
{
    const size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 &&
           (name[length] == '\0' || prefix[length - 1] == '.');
}

enum tess_option_bits tess_config_option_bits(const struct tess_config *config, const char *name)
{
    for (size_t i = 0; i < sizeof(bits_of) / sizeof(*bits_of); i++)
        if (bits_begins(name, bits_of[i].name))
            return bits_of[i].bits;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        char prefix[TESS__NAME_MAX];
        if (config->axis[axis] == NULL)
            continue;
        snprintf(prefix, sizeof(prefix), "%s.", config->axis[axis]->name);
        if (bits_begins(name, prefix))
            return TESS_BITS_FREE;
    }
    return TESS_BITS_DECIDES;
}
