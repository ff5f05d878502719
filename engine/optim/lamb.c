/* LAMB: You et al., "Large batch optimization for deep learning", ICLR 2020, algorithm 2. */
#include "tessera/optimizer.h"
#include "tessera/version.h"

const struct tess_optimizer_ops tess_optimizer_lamb = {
    .abi = TESS_ABI,
    .name = "lamb",
    .summary = "AdamW with a trust ratio for each tensor; beta1 0.9, beta2 0.999, epsilon 1e-6",
    .kind = TESS_UPDATE_LAMB,
    .state_arrays = 2,
    .trust_ratio = true,
    .beta1 = 0.9,
    .beta2 = 0.999,
    .epsilon = 1e-6,
};
