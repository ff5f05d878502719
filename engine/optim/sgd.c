/* Stochastic gradient descent, plain and with momentum (--nesterov looks ahead). */
#include "tessera/optimizer.h"
#include "tessera/version.h"

const struct tess_optimizer_ops tess_optimizer_sgd = {
    .abi = TESS_ABI,
    .name = "sgd",
    .summary = "stochastic gradient descent",
    .kind = TESS_UPDATE_SGD,
};

const struct tess_optimizer_ops tess_optimizer_momentum = {
    .abi = TESS_ABI,
    .name = "momentum",
    .summary = "stochastic gradient descent with momentum, Nesterov's with --nesterov",
    .kind = TESS_UPDATE_MOMENTUM,
    .state_arrays = 1,
};
