/*
 * The strategies by name: TESS_STRATEGY(name, built, hint). Each built one is a
 * `const struct tess_strategy_ops tess_strategy_<name>`; `hint` says how to get one that is listed
 * but not built. TESS_STRATEGY_DEFAULT is the one of --strategy and of a data axis of one rank.
 * No include guard: the registry includes this several times with other meanings.
 */
TESS_STRATEGY_DEFAULT(single, 1, "")
TESS_STRATEGY(dp, 1, "")
TESS_STRATEGY(ddp, 1, "")
TESS_STRATEGY(zero1, 1, "")
TESS_STRATEGY(zero2, 1, "")
TESS_STRATEGY(fsdp, 1, "")
TESS_STRATEGY(hsdp, 1, "")
TESS_STRATEGY(tp, 1, "")
TESS_STRATEGY(pp, 1, "")
