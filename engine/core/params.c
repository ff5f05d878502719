/*
 * Parameters as a whole: first values, hash. Every rank works on the pieces it owns; results do not
 * depend on who owns what.
 */
#include "core/state.h"

#include "base/hash.h"
#include "base/rng.h"
#include "tessera/check.h"

#include <string.h>

/* Elements [from, from + count) of one parameter. */
static void params_fill(const struct tess_init *init, struct tess_rng_key key, int64_t from,
                        int64_t count, float *w)
{
    for (int64_t i = 0; i < count; i++) {
        switch (init->kind) {
        case TESS_INIT_ZERO:
            w[i] = 0.0f;
            break;
        case TESS_INIT_ONE:
            w[i] = 1.0f;
            break;
        case TESS_INIT_UNIFORM:
            w[i] = init->scale * (2.0f * tess_rng_uniform(key, (uint64_t)(from + i), 0) - 1.0f);
            break;
        case TESS_INIT_NORMAL:
            w[i] = init->scale * tess_rng_normal(key, (uint64_t)(from + i), 0);
            break;
        }
    }
}

enum tess_status tess__engine_init_params(struct tess_engine *engine)
{
    struct tess_kernel *kernel = engine->kernel;
    uint64_t seed = (uint64_t)engine->config->run.seed;
    kernel->ops->access(kernel, true);
    for (int32_t i = 0; i < engine->optim.piece_count; i++) {
        const struct tess_piece *piece = &engine->piece[i];
        struct tess_rng_key key = tess_rng_key(seed, TESS_RNG_INIT, (uint64_t)piece->param);
        params_fill(&engine->declare.param[piece->param].init, key, piece->param_begin,
                    piece->count, piece->w);
    }
    kernel->ops->access(kernel, false);
    for (int32_t i = 0; i < engine->optim.piece_count; i++)
        if (engine->piece[i].low)
            tess_cast(kernel, engine->piece[i].count, TESS_F32, engine->piece[i].w,
                      engine->plan.dtype, engine->piece[i].low);
    return engine->strategy.ops->params_refresh(&engine->strategy);
}

/*
 * Parts add up to the hash of the whole. Where every rank holds everything, rank 0's is taken and
 * the others compare: replicas that have drifted apart are an error, not a result.
 */
enum tess_status tess_engine_hash(struct tess_engine *engine, uint64_t *hash_out)
{
    const struct tess_plan *plan = &engine->plan;
    int64_t param_first = 0; /* number of the parameter's first element in the model */
    int32_t param = 0;
    uint64_t own = 0;
    engine->kernel->ops->access(engine->kernel, true);
    for (int32_t i = 0; i < engine->optim.piece_count; i++) {
        const struct tess_piece *piece = &engine->piece[i];
        for (; param < piece->param; param++)
            param_first += plan->param[param].count;
        own += tess_hash_f32(piece->w, (size_t)piece->count,
                             (uint64_t)(param_first + piece->param_begin));
    }
    engine->kernel->ops->access(engine->kernel, false);
    /* Each element once: the first shard group's parts, or rank 0's whole. */
    int32_t counted =
        plan->optim_extent == TESS_EXTENT_SHARD && plan->shard_count > 1 ? plan->shard_count : 1;
    uint64_t sum = plan->rank < counted ? own : 0;
    TESS_TRY(tess_comm_all_reduce(engine->comm, &sum, &sum, 1, TESS_I64, TESS_REDUCE_SUM, NULL));
    int64_t apart = plan->replicated && plan->optim_extent == TESS_EXTENT_FULL && own != sum;
    TESS_TRY(
        tess_comm_all_reduce(engine->comm, &apart, &apart, 1, TESS_I64, TESS_REDUCE_SUM, NULL));
    if (apart > 0)
        TESS_FAIL(TESS_ERR_INTERNAL,
                  "the parameters of %lld of %d ranks differ from rank 0's after "
                  "step %lld",
                  (long long)apart, plan->rank_count, (long long)engine->step);
    *hash_out = sum;
    return TESS_OK;
}
