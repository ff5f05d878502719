/* NovoGrad: Ginsburg et al., "Stochastic gradient methods with layer-wise adaptive moments", 2019;
 * defaults of section 4. */
#include "tessera/optimizer.h"
#include "tessera/version.h"

const struct tess_optimizer_ops tess_optimizer_novograd = {
    .abi = TESS_ABI,
    .name = "novograd",
    .summary = "one second moment for each tensor; beta1 0.95, beta2 0.98, epsilon 1e-8",
    .kind = TESS_UPDATE_NOVOGRAD,
    .state_arrays = 1,
    .tensor_moment = true,
    .grad_averaging = true,
    .beta1 = 0.95,
    .beta2 = 0.98,
    .epsilon = 1e-8,
};
