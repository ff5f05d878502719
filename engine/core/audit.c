/*
 * Audits (--audit): does a rank compute what another one computes from the same rows? In a share of
 * the steps every rank computes one micro-batch of another rank of the data axis again, and hashes
 * of its gradients are compared before the update:
 *
 *     rank       0      1      2      3
 *     step       m0     m1     m2     m3        hashed when backward has written a gradient
 *     again      m1     m2     m3     m0        the ranks' distance, here 1, is drawn
 *     a third    m2     m3     m0     m1        only where two hashes differ
 *
 * All ranks compute again at the same time, since parameters may have to be gathered from all.
 * Steps, micro-batches and distances are drawn from the seed, so nobody has to announce them. One
 * rank alone computes its own micro-batch again, which shows faults that pass and no others.
 *
 * The stages of a pipeline compute it together, and what one of them computes wrongly is in all
 * that the others compute from it. So what they send each other is hashed too, and the rank whose
 * difference was computed first is the one.
 */
#include "core/state.h"

#include "base/rng.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum tess_status tess__audit_plan(struct tess_engine *engine)
{
    const struct tess_config *config = engine->config;
    if (!(config->run.audit > 0))
        return TESS_OK;
    if (config->cuda.graph)
        TESS_FAIL(TESS_ERR_USAGE, "--audit: steps that --cuda.graph plays again are all the same, "
                                  "and audited ones are not: give one of the two");
    if (config->run.fp8 == TESS_FP8_HISTORY)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--audit: with --fp8 history results depend on what the rank has multiplied "
                  "before, so no other one has the same: use --fp8 now, or leave --audit out");
    return TESS_OK;
}

void tess__audit_begin(struct tess_engine *engine)
{
    struct tess_audit *audit = &engine->audit;
    const struct tess_config *config = engine->config;
    const struct tess_rng_key key = tess_rng_key((uint64_t)config->run.seed, TESS_RNG_AUDIT, 0);
    const uint32_t others = (uint32_t)engine->plan.rank_count - 1;
    uint32_t word[4];
    if (!(config->run.audit > 0))
        return;
    tess_rng_block(key, (uint64_t)engine->progress.step, 0, word);
    audit->due = (double)word[0] * 0x1p-32 < config->run.audit;
    audit->pass = TESS_AUDIT_FIRST;
    audit->micro = (int32_t)(word[1] % (uint32_t)engine->plan.accumulate);
    audit->distance = others > 0 ? (int32_t)(1 + word[2] % others) : 0;
    memset(audit->digest, 0,
           (size_t)(TESS_AUDIT_PASSES * audit->entry_count) * sizeof(*audit->digest));
}

/* ---- computing again ------------------------------------------------------------------------- */

/* Forward and backward of the micro-batch of the rank at the audit's distance, of which only hashes
 * stay. */
static enum tess_status audit_compute(struct tess_engine *engine)
{
    const struct tess_plan *plan = &engine->plan;
    const struct tess_audit *audit = &engine->audit;
    const int32_t whose = (plan->rank + audit->distance) % plan->rank_count;
    const uint64_t row_first =
        (uint64_t)(tess_layout_first_leaf(plan, whose, audit->micro) * engine->sizes.leaf_rows);
    engine->strategy.micro = audit->micro;
    return tess__engine_pipe_again(engine, row_first);
}

/* Everybody's hashes, to everybody. */
static enum tess_status audit_exchange(struct tess_engine *engine)
{
    const size_t count = (size_t)(TESS_AUDIT_PASSES * engine->audit.entry_count);
    return tess_comm_all_gather(engine->comm, engine->audit.digest, engine->audit.all, count,
                                TESS_I64, NULL);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static const uint64_t *audit_row(const struct tess_engine *engine, int32_t rank, int32_t pass)
{
    return engine->audit.all +
           ((ptrdiff_t)rank * TESS_AUDIT_PASSES + pass) * engine->audit.entry_count;
}

/* The rank of the mesh that has computed the micro-batch of `rank` again, from `distance`. */
static int32_t audit_by(const struct tess_engine *engine, int32_t rank, int32_t distance)
{
    struct tess_mesh at = tess_mesh_at(&engine->plan.mesh, rank);
    const int32_t ranks = at.count[TESS_AXIS_DATA];
    at.at[TESS_AXIS_DATA] = (at.at[TESS_AXIS_DATA] + ranks - distance) % ranks;
    return tess_mesh_rank(&at, at.at);
}

/* When an entry is computed: outputs from the first unit to the last; then back from the last unit
 * to the first its parameters' gradients and that by its input. */
static int32_t audit_when(const struct tess_engine *engine, int32_t entry)
{
    const struct tess_declare *model = &engine->model;
    const int32_t units = model->unit_count, message = entry - model->param_count;
    if (message < 0)
        return units + 2 * (units - 1 - model->param[entry].unit);
    return message < units ? message : units + 2 * (2 * units - 1 - message) + 1;
}

/* The entry that is computed first of those in which two computations of a micro-batch differ; -1:
 * none. */
static int32_t audit_differ(const struct tess_engine *engine, const uint64_t *one,
                            const uint64_t *other)
{
    int32_t first = -1;
    for (int32_t e = 0; e < engine->audit.entry_count; e++)
        if (one[e] != other[e] && (first < 0 || audit_when(engine, e) < audit_when(engine, first)))
            first = e;
    return first;
}

/* Micro-batches that came out otherwise; *first_out: the rank in whose part the difference arose,
 * -1: none. */
static int32_t audit_count(const struct tess_engine *engine, int32_t distance, int32_t *first_out)
{
    struct tess_mesh at = engine->plan.mesh;
    int32_t count = 0, earliest = INT32_MAX;
    const int32_t ranks = at.count[TESS_AXIS_DATA], parts = at.rank_count / ranks;
    *first_out = -1;
    for (int32_t data = 0; data < ranks; data++) {
        bool differs = false;
        for (int32_t part = 0; part < parts; part++) {
            at.at[TESS_AXIS_DATA] = data;
            at.at[TESS_AXIS_TENSOR] = part % at.count[TESS_AXIS_TENSOR];
            at.at[TESS_AXIS_STAGE] = part / at.count[TESS_AXIS_TENSOR];
            const int32_t r = tess_mesh_rank(&at, at.at), by = audit_by(engine, r, distance);
            const int32_t entry = audit_differ(engine, audit_row(engine, r, TESS_AUDIT_FIRST),
                                               audit_row(engine, by, TESS_AUDIT_AGAIN));
            const int32_t when = entry >= 0 ? audit_when(engine, entry) : INT32_MAX;
            *first_out = when < earliest ? r : *first_out;
            earliest = when < earliest ? when : earliest;
            differs = differs || entry >= 0;
        }
        count += differs;
    }
    return count;
}

/* Does the micro-batch of another rank, with which `rank` adds parts of layers, differ from the
 * same `entry` on? Then the sum has spread the difference, which may have arisen in any of them. */
static bool audit_spread(const struct tess_engine *engine, int32_t rank, int32_t distance,
                         int32_t entry)
{
    struct tess_mesh at = tess_mesh_at(&engine->plan.mesh, rank);
    bool spread = false;
    for (int32_t part = 0; part < at.count[TESS_AXIS_TENSOR]; part++) {
        at.at[TESS_AXIS_TENSOR] = part;
        const int32_t r = tess_mesh_rank(&at, at.at), by = audit_by(engine, r, distance);
        const int32_t other = audit_differ(engine, audit_row(engine, r, TESS_AUDIT_FIRST),
                                           audit_row(engine, by, TESS_AUDIT_AGAIN));
        spread = spread || (r != rank && other >= 0 &&
                            audit_when(engine, other) == audit_when(engine, entry));
    }
    return spread;
}

/* "gradient of 'conv2.weight'" */
static void audit_describe(const struct tess_engine *engine, int32_t entry, char *text, size_t room)
{
    const struct tess_declare *model = &engine->model;
    const int32_t units = model->unit_count, message = entry - model->param_count;
    if (message < 0)
        snprintf(text, room, "gradient of '%s'", model->param[entry].name);
    else
        snprintf(text, room, "%s of unit '%s'",
                 message < units ? "output" : "gradient by the input",
                 model->unit[message % units].name);
}

/* "rank 2 (kernel cpu on host n4)" of every rank. */
struct audit_name {
    char text[128];
};

static enum tess_status audit_names(struct tess_engine *engine, struct audit_name *name)
{
    const struct tess_device_plan *device = &engine->config->device;
    const int32_t rank = engine->plan.mesh.rank;
    char host[48] = "?", where[48];
    struct audit_name mine = {{0}};
    (void)gethostname(host, sizeof(host) - 1);
    snprintf(where, sizeof(where), "kernel %.30s", engine->kernel->ops->name);
    if (device->count > 0)
        snprintf(where, sizeof(where), "device %d",
                 engine->config->started.starter != NULL ? device->own : device->of_rank[rank]);
    snprintf(mine.text, sizeof(mine.text), "rank %d (%s of host %s)", rank, where, host);
    return tess_comm_all_gather(engine->comm, &mine, name, sizeof(mine), TESS_U8, NULL);
}

/* Three computations of the micro-batch of rank `first`: which one is alone? With two ranks the
 * third is the first rank's again, with one rank all are its own. The same on all ranks. */
static enum tess_status audit_judge(struct tess_engine *engine, int32_t first, int32_t count,
                                    int32_t before, const struct audit_name *name)
{
    const int32_t again = audit_by(engine, first, before);
    const int32_t third = audit_by(engine, first, engine->audit.distance);
    const uint64_t *one = audit_row(engine, first, TESS_AUDIT_FIRST);
    const uint64_t *two = audit_row(engine, again, TESS_AUDIT_AGAIN);
    const uint64_t *three = audit_row(engine, third, TESS_AUDIT_THIRD);
    const bool first_alone = audit_differ(engine, two, three) < 0;
    const bool again_alone = audit_differ(engine, one, three) < 0;
    const bool others = third != first; /* the third computation is another rank's */
    const long long step = (long long)engine->progress.step + 1;
    const int32_t entry = audit_differ(engine, one, two);
    char tensor[TESS_NAME_MAX + 32], more[128] = "";
    audit_describe(engine, entry, tensor, sizeof(tensor));
    if (count > 1)
        snprintf(more, sizeof(more), " (%d micro-batches differ)", count);
    if (audit_spread(engine, first, before, entry))
        snprintf(more + strlen(more), sizeof(more) - strlen(more),
                 "; another rank of its tensor axis may be the one: they add what they compute");
    if (others && (first_alone || again_alone))
        TESS_FAIL(TESS_ERR_DEVICE,
                  "audit of step %lld: %s computes other bits of the %s than %s and %s do from the "
                  "same rows: its memory or processor is faulty; nothing was updated%s",
                  step, name[first_alone ? first : again].text, tensor,
                  name[first_alone ? again : first].text, name[third].text, more);
    if (first_alone || (again == first && again_alone))
        TESS_FAIL(TESS_ERR_DEVICE,
                  "audit of step %lld: %s has computed the %s again from the same rows, with other "
                  "bits: its memory or processor fails at times; nothing was updated%s",
                  step, name[first].text, tensor, more);
    TESS_FAIL(TESS_ERR_DEVICE,
              "audit of step %lld: %s and %s compute different bits of the %s from the same rows, "
              "and %s: one of them is faulty; nothing was updated%s",
              step, name[first].text, name[again].text, tensor,
              again_alone ? "the first one the same again, so two ranks cannot tell which"
                          : "a third computation agrees with neither",
              more);
}

static enum tess_status audit_find(struct tess_engine *engine, int32_t first, int32_t count)
{
    struct tess_audit *audit = &engine->audit;
    const int32_t before = audit->distance, ranks = engine->plan.rank_count;
    struct audit_name *name = calloc((size_t)engine->plan.mesh.rank_count, sizeof(*name));
    audit->distance = ranks < 3 ? 0 : before + 1 < ranks ? before + 1 : 1;
    audit->pass = TESS_AUDIT_THIRD;
    enum tess_status status =
        name != NULL ? TESS_OK
                     : tess_fail(TESS_ERR_MEMORY, "no memory for the names of the ranks of a "
                                                  "failed audit");
    if (status == TESS_OK)
        status = audit_compute(engine);
    if (status == TESS_OK)
        status = audit_exchange(engine);
    if (status == TESS_OK)
        status = audit_names(engine, name);
    if (status == TESS_OK)
        status = audit_judge(engine, first, count, before, name);
    free(name);
    return status;
}

enum tess_status tess__audit_step(struct tess_engine *engine)
{
    struct tess_audit *audit = &engine->audit;
    const bool counts = engine->progress.count_zeros;
    int32_t first;
    if (!audit->due)
        return TESS_OK;
    engine->progress.count_zeros = false;
    audit->pass = TESS_AUDIT_AGAIN;
    TESS_TRY(audit_compute(engine));
    TESS_TRY(audit_exchange(engine));
    const int32_t count = audit_count(engine, audit->distance, &first);
    if (count > 0)
        return audit_find(engine, first, count);
    engine->progress.count_zeros = counts;
    audit->pass = TESS_AUDIT_FIRST;
    audit->due = false;
    audit->steps++;
    return TESS_OK;
}

int64_t tess_engine_audited(const struct tess_engine *engine)
{
    return engine->audit.steps;
}
