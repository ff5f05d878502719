/*
 * The optimizers by name: TESS_OPTIMIZER(name, built, hint). Each built one is a
 * `const struct tess_optimizer_ops tess_optimizer_<name>`; `hint` says how to get one that is
 * listed but not built. No include guard: the registry includes this several times with other
 * meanings.
 */
TESS_OPTIMIZER(sgd, 1, "")
TESS_OPTIMIZER(momentum, 1, "")
TESS_OPTIMIZER(adamw, 1, "")
TESS_OPTIMIZER(novograd, 1, "")
TESS_OPTIMIZER(lamb, 1, "")
