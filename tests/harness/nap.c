/*
 * A plugin with an optimizer that sleeps: SGD with momentum, and $NAP_US in each step. Steps
 * take their time on any machine, and leave the processors to others.
 */
#include "tessera/registry.h"
#include "tessera/version.h"

#include <stdlib.h>
#include <unistd.h>

static void nap_loop(const struct tess_update *u, int64_t begin, int64_t end)
{
    static const float *first; /* where a step begins */
    if (first == NULL)
        first = u->w;
    if (u->w == first && begin == 0 && getenv("NAP_US") != NULL)
        usleep((useconds_t)atoi(getenv("NAP_US")));
    for (int64_t i = begin; i < end; i++) {
        u->m[i] = 0.9f * u->m[i] + u->grad_scale * u->g[i];
        u->w[i] -= u->lr * u->m[i];
    }
}

static const struct tess_optimizer_ops nap_optimizer = {
    .abi = TESS_ABI,
    .name = "nap",
    .summary = "SGD with momentum, and time",
    .kind = TESS_UPDATE_OWN,
    .loop = nap_loop,
    .state_arrays = 1,
};

enum tess_status tess_plugin(void);

enum tess_status tess_plugin(void)
{
    return tess_registry_add_optimizer(&nap_optimizer);
}
