/* AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019. */
#include "tessera/optimizer.h"
#include "tessera/version.h"

const struct tess_optimizer_ops tess_optimizer_adamw = {
    .abi = TESS_ABI,
    .name = "adamw",
    .summary = "Adam with decoupled weight decay; beta1 0.9, beta2 0.999, epsilon 1e-8",
    .kind = TESS_UPDATE_ADAMW,
    .state_arrays = 2,
    .beta1 = 0.9,
    .beta2 = 0.999,
    .epsilon = 1e-8,
};
