/*
 * Parameters that a step leaves without a gradient: which ones, on which ranks, and what becomes of
 * them. Responsible for the notes, their exchange and the refusal; that the optimizer passes over a
 * parameter is optim.c's business, that a branch is not taken the model's.
 *
 * An unused parameter's gradient is zero where it is not used, so every reduction has all its parts
 * and no rank waits. What zeros cannot say is whether anybody used it: a parameter that nobody used
 * must keep its momentum and its weights, not decay. So the ranks of a conditional model exchange
 * one byte a parameter between reduction and update, once a step (Li et al., "PyTorch Distributed",
 * VLDB 2020, sections 3.2.3 and 4.2: their bitmap of globally unused parameters).
 */
#include "core/state.h"

#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parameters that a message spells out; the rest it counts. */
#define UNUSED_NAMED_MAX 4
/* What a rank's row says of a parameter: its step has left it without a gradient, or not; or other
 * ranks of the mesh keep it. */
enum { UNUSED_YES, UNUSED_NO, UNUSED_ELSEWHERE };
/* Of one of them, with its ranks. */
#define UNUSED_TEXT_MAX (TESS_NAME_MAX + sizeof(struct tess_rank_list) + 32)

static uint8_t *unused_row(const struct tess_engine *engine, int32_t rank)
{
    return engine->unused.used + (size_t)rank * (size_t)engine->model.param_count;
}

enum tess_status tess__unused_open(struct tess_engine *engine)
{
    struct tess_unused *unused = &engine->unused;
    const size_t params = (size_t)engine->model.param_count;
    unused->pass = calloc(params + 1, sizeof *unused->pass);
    unused->used = calloc((size_t)engine->plan.mesh.rank_count * params + 1, 1);
    if (!unused->pass || !unused->used)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the notes about %zu parameters", params);
    if (!engine->declare.conditional)
        return TESS_OK;
    unused->skip = calloc(params + 1, 1);
    unused->updates = calloc(params + 1, sizeof *unused->updates);
    if (!unused->skip || !unused->updates)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the notes about %zu parameters", params);
    engine->optim.skip = unused->skip;
    engine->optim.updates = unused->updates;
    return TESS_OK;
}

void tess__unused_close(struct tess_engine *engine)
{
    free(engine->unused.pass);
    free(engine->unused.used);
    free(engine->unused.skip);
    free(engine->unused.updates);
}

void tess__unused_begin(struct tess_engine *engine)
{
    uint8_t *used = unused_row(engine, engine->plan.mesh.rank);
    memset(used, UNUSED_ELSEWHERE, (size_t)engine->model.param_count);
    for (int32_t p = 0; p < engine->plan.param_count; p++)
        used[engine->plan.param[p].index] = UNUSED_YES;
}

void tess__unused_enter(struct tess_engine *engine, int32_t unit)
{
    for (int32_t p = engine->unit_param_first[unit]; p < engine->unit_param_first[unit + 1]; p++)
        engine->unused.pass[engine->plan.param[p].index] = true;
}

/* The model's fault, so it is told apart from a run that needs an option. */
static enum tess_status unused_refuse(const struct tess_engine *engine, int32_t unit)
{
    char names[UNUSED_NAMED_MAX * (TESS_NAME_MAX + 4)] = "";
    size_t length = 0;
    int32_t count = 0;
    for (int32_t p = engine->unit_param_first[unit]; p < engine->unit_param_first[unit + 1]; p++)
        if (!engine->unused.pass[engine->plan.param[p].index] && count++ < UNUSED_NAMED_MAX)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s'%s'",
                                       length > 0 ? ", " : "", engine->plan.param[p].name);
    TESS_FAIL(TESS_ERR_INTERNAL,
              "model '%s' left %d parameter%s of unit '%s' without a gradient (%s%s) and is not "
              "declared to be conditional: its declare() must call tess_declare_conditional()",
              engine->config->model->name, count, count > 1 ? "s" : "",
              engine->declare.unit[unit].name, names, count > UNUSED_NAMED_MAX ? ", ..." : "");
}

enum tess_status tess__unused_leave(struct tess_engine *engine, int32_t unit)
{
    uint8_t *used = unused_row(engine, engine->plan.mesh.rank);
    for (int32_t p = engine->unit_param_first[unit]; p < engine->unit_param_first[unit + 1]; p++) {
        const int32_t index = engine->plan.param[p].index;
        if (engine->unused.pass[index]) {
            used[index] = UNUSED_NO;
            continue;
        }
        if (!engine->declare.conditional)
            return unused_refuse(engine, unit);
        tess_fill(engine->kernel, engine->plan.param[p].count * (int64_t)sizeof(float), 0,
                  engine->grad_of[index]);
    }
    return TESS_OK;
}

/* Ranks whose rows say `what` of parameter p. */
static int32_t unused_count(const struct tess_engine *engine, int32_t p, int what)
{
    int32_t count = 0;
    for (int32_t r = 0; r < engine->plan.mesh.rank_count; r++)
        count += unused_row(engine, r)[p] == what;
    return count;
}

/* "'fc2.weight' (on ranks 1, 3)" */
static void unused_describe(const struct tess_engine *engine, int32_t p, char text[UNUSED_TEXT_MAX])
{
    struct tess_rank_list list = {0};
    for (int32_t r = 0; r < engine->plan.mesh.rank_count; r++)
        if (unused_row(engine, r)[p] == UNUSED_YES)
            tess__rank_list_add(&list, r);
    if (list.count == engine->plan.mesh.rank_count)
        snprintf(text, UNUSED_TEXT_MAX, "'%s' (on all ranks)", engine->model.param[p].name);
    else
        snprintf(text, UNUSED_TEXT_MAX, "'%s' (on rank%s %s)", engine->model.param[p].name,
                 list.count > 1 ? "s" : "", list.text);
}

/* What rank 0 says for all of them. */
static enum tess_status unused_say(const struct tess_engine *engine, int32_t count)
{
    char list[UNUSED_NAMED_MAX * (UNUSED_TEXT_MAX + 2)] = "";
    char one[UNUSED_TEXT_MAX], more[32] = "";
    size_t length = 0;
    int32_t named = 0;
    for (int32_t p = 0; p < engine->model.param_count && named < UNUSED_NAMED_MAX; p++) {
        if (unused_count(engine, p, UNUSED_YES) == 0)
            continue;
        unused_describe(engine, p, one);
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%s",
                                   named++ > 0 ? ", " : "", one);
    }
    if (count > named)
        snprintf(more, sizeof more, " and %d more", count - named);
    TESS_FAIL(TESS_ERR_USAGE,
              "step %lld left %d parameter%s without a gradient: %s%s; nothing was updated. Allow "
              "it with --find-unused, or set the layer drop of model '%s' to 0",
              (long long)engine->step + 1, count, count > 1 ? "s" : "", list, more,
              engine->config->model->name);
}

/*
 * All ranks come here together and know the same. Who leaves stops the others, so nobody does
 * before rank 0 has spoken.
 */
static enum tess_status unused_stop(struct tess_engine *engine, int32_t count)
{
    const enum tess_status status =
        engine->plan.mesh.rank == 0 ? unused_say(engine, count) : TESS_ERR_ABORTED;
    (void)tess_comm_barrier(engine->comm); /* the step has failed whether they all come or not */
    return status;
}

enum tess_status tess__unused_finish(struct tess_engine *engine)
{
    struct tess_unused *unused = &engine->unused;
    int32_t count = 0;
    if (!engine->declare.conditional)
        return TESS_OK;
    TESS_TRY(tess_comm_all_gather(engine->comm, unused_row(engine, engine->plan.mesh.rank),
                                  unused->used, (size_t)engine->model.param_count, TESS_U8, NULL));
    for (int32_t p = 0; p < engine->model.param_count; p++) {
        unused->skip[p] = unused_count(engine, p, UNUSED_NO) == 0;
        count += unused_count(engine, p, UNUSED_YES) > 0;
    }
    if (count > 0 && !engine->config->run.find_unused)
        return unused_stop(engine, count);
    return TESS_OK;
}
