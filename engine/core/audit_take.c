/* What a pass leaves for an audit: a hash of each gradient of its micro-batch, before anything is
 * added to it or sent, and of what goes to other stages; and where the gradients of a pass go that
 * is run for an audit alone. */
#include "core/state.h"

#include "base/hash.h"
#include "tessera/check.h"

/* Bytes of device memory that are read at a time. */
#define AUDIT_AHEAD (INT64_C(1) << 22)

static int64_t audit_room(const struct tess_plan_param *param)
{
    if (param->frozen)
        return 0;
    return (param->count + TESS_SHARD_ALIGN - 1) / TESS_SHARD_ALIGN * TESS_SHARD_ALIGN;
}

/* Parameters are in order of unit. */
enum tess_status tess__audit_reserve(struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    int64_t most = 0, sum = 0;
    for (int32_t p = 0; p < plan->param_count; p++) {
        sum = (p > 0 && plan->param[p].unit == plan->param[p - 1].unit ? sum : 0) +
              audit_room(&plan->param[p]);
        most = sum > most ? sum : most;
    }
    if (!(engine->config->run.audit > 0))
        return TESS_OK;
    return tess_memory_reserve(engine->memory, TESS_MEMORY_GRADIENT, (uint64_t)most * sizeof(float),
                               "audited unit", &engine->audit.grad);
}

enum tess_status tess__audit_open(struct tess_engine *engine)
{
    struct tess_audit *audit = &engine->audit;
    const int32_t messages = engine->plan.pipelined ? TESS_AUDIT_MESSAGES : 0;
    if (!(engine->config->run.audit > 0))
        return TESS_OK;
    audit->entry_count = engine->model.param_count + messages * engine->model.unit_count;
    const int64_t hashes = TESS_AUDIT_PASSES * audit->entry_count;
    audit->digest = tess__engine_room(engine, hashes, sizeof(*audit->digest));
    audit->all =
        tess__engine_room(engine, engine->plan.mesh.rank_count * hashes, sizeof(*audit->all));
    audit->ahead = tess__engine_room(engine, engine->kernel->queue != NULL ? AUDIT_AHEAD : 0,
                                     sizeof(*audit->ahead));
    return tess__engine_has_room(engine);
}

void tess__audit_bind(struct tess_engine *engine, int32_t unit)
{
    float *grad = tess_memory_get(engine->memory, engine->audit.grad);
    for (int32_t p = engine->tables.unit_param_first[unit];
         p < engine->tables.unit_param_first[unit + 1]; p++) {
        const bool frozen = engine->plan.param[p].frozen;
        engine->tables.grad_of[engine->plan.param[p].index] = frozen ? NULL : grad;
        grad += audit_room(&engine->plan.param[p]);
    }
}

static enum tess_status audit_hash(struct tess_engine *engine, const void *x, int64_t bytes,
                                   uint64_t *hash)
{
    struct tess_kernel *kernel = engine->kernel;
    *hash = 0;
    if (kernel->queue == NULL) {
        kernel->ops->access(kernel, true);
        *hash = tess_hash_run(x, (size_t)bytes, 0);
        kernel->ops->access(kernel, false);
        return TESS_OK;
    }
    for (int64_t at = 0, now; at < bytes; at += now) {
        now = bytes - at < AUDIT_AHEAD ? bytes - at : AUDIT_AHEAD;
        TESS_TRY(tess_read(kernel, (size_t)now, (const char *)x + at, engine->audit.ahead));
        *hash = tess_hash_run(engine->audit.ahead, (size_t)now, *hash);
    }
    return TESS_OK;
}

/* The row of hashes that the current computation belongs to; NULL where it is not audited. */
static uint64_t *audit_current(struct tess_engine *engine)
{
    const struct tess_audit *audit = &engine->audit;
    const bool first = audit->pass == TESS_AUDIT_FIRST;
    if (!audit->due || (first && engine->strategy.micro != audit->micro))
        return NULL;
    return audit->digest + (ptrdiff_t)audit->pass * audit->entry_count;
}

enum tess_status tess__audit_take(struct tess_engine *engine, int32_t unit)
{
    uint64_t *digest = audit_current(engine);
    if (digest == NULL)
        return TESS_OK;
    for (int32_t p = engine->tables.unit_param_first[unit];
         p < engine->tables.unit_param_first[unit + 1]; p++) {
        const int32_t index = engine->plan.param[p].index;
        if (engine->unused.pass[index] && engine->tables.grad_of[index] != NULL)
            TESS_TRY(audit_hash(engine, engine->tables.grad_of[index],
                                engine->plan.param[p].count * (int64_t)sizeof(float),
                                &digest[index]));
    }
    return TESS_OK;
}

enum tess_status tess__audit_take_message(struct tess_engine *engine,
                                          enum tess_audit_message message, int32_t unit,
                                          const void *x, int64_t count)
{
    uint64_t *digest = audit_current(engine);
    const int32_t entry = engine->model.param_count + (int32_t)message * engine->model.unit_count +
                          engine->declare.unit[unit].index;
    if (digest == NULL)
        return TESS_OK;
    return audit_hash(engine, x, count * (int64_t)engine->sizes.dtype_bytes, &digest[entry]);
}
