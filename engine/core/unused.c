/*
 * Parameters that a step leaves without a gradient: which ones, on which ranks, and what follows.
 * optim.c leaves them out of the update; the model decides which branches it takes.
 *
 * An unused parameter's gradient is zero where it is not used, so every reduction has all its parts
 * and no rank waits. Zeros do not show whether any rank used it: a parameter that no rank used must
 * keep its momentum and its weights, not decay. So the ranks of a conditional model exchange one
 * byte a parameter between reduction and update, once a step (Li et al., "PyTorch Distributed",
 * VLDB 2020, sections 3.2.3 and 4.2: their bitmap of globally unused parameters).
 */
#include "core/state.h"

#include "tessera/check.h"

#include <stdio.h>
#include <string.h>

/* Parameters that a message spells out; the rest it counts. */
#define UNUSED_NAMED_MAX 4
/* A rank's entry for a parameter: its step has left it without a gradient, or not; or other ranks
 * of the mesh keep it. */
enum { UNUSED_YES, UNUSED_NO, UNUSED_ELSEWHERE };
/* Of one of them, with its ranks. */
#define UNUSED_TEXT_MAX (TESS_NAME_MAX + sizeof(struct tess_rank_list) + 32)

/* Ranks that a message lists; the rest it counts. */
#define RANK_LIST_MAX 8

void tess__rank_list_add(struct tess_rank_list *list, int32_t rank)
{
    const size_t room = sizeof(list->text);
    if (list->count++ < RANK_LIST_MAX)
        list->length += (size_t)snprintf(list->text + list->length, room - list->length, "%s%d",
                                         list->count > 1 ? ", " : "", rank);
    else
        snprintf(list->text + list->length, room - list->length, " and %d more",
                 list->count - RANK_LIST_MAX);
}

static uint8_t *unused_row(const struct tess_engine *engine, int32_t rank)
{
    return engine->unused.used + (size_t)rank * (size_t)engine->model.param_count;
}

/* This rank's: other ranks have one in conditional models alone. */
static uint8_t *unused_own(const struct tess_engine *engine)
{
    return unused_row(engine, engine->declare.conditional ? engine->plan.mesh.rank : 0);
}

enum tess_status tess__unused_open(struct tess_engine *engine)
{
    const int64_t params = engine->model.param_count;
    struct tess_unused *unused = &engine->unused;
    unused->pass = tess__engine_room(engine, params, sizeof(*unused->pass));
    unused->used = tess__engine_room(
        engine, (engine->declare.conditional ? engine->plan.mesh.rank_count : 1) * params, 1);
    if (engine->declare.conditional) {
        unused->skip = tess__engine_room(engine, params, 1);
        unused->updates = tess__engine_room(engine, params, sizeof(*unused->updates));
    }
    engine->optim.skip = unused->skip;
    engine->optim.updates = unused->updates;
    return tess__engine_has_room(engine);
}

void tess__unused_begin(struct tess_engine *engine)
{
    uint8_t *used = unused_own(engine);
    memset(used, UNUSED_ELSEWHERE, (size_t)engine->model.param_count);
    for (int32_t p = 0; p < engine->plan.param_count; p++)
        used[engine->plan.param[p].index] = UNUSED_YES;
}

void tess__unused_enter(struct tess_engine *engine, int32_t unit)
{
    for (int32_t p = engine->tables.unit_param_first[unit];
         p < engine->tables.unit_param_first[unit + 1]; p++)
        engine->unused.pass[engine->plan.param[p].index] = true;
}

/* An error of the model, not of the run's options. */
static enum tess_status unused_refuse(const struct tess_engine *engine, int32_t unit)
{
    char names[UNUSED_NAMED_MAX * (TESS_NAME_MAX + 4)] = "";
    size_t length = 0;
    int32_t count = 0;
    for (int32_t p = engine->tables.unit_param_first[unit];
         p < engine->tables.unit_param_first[unit + 1]; p++)
        if (!engine->unused.pass[engine->plan.param[p].index] && count++ < UNUSED_NAMED_MAX)
            length += (size_t)snprintf(names + length, sizeof(names) - length, "%s'%s'",
                                       length > 0 ? ", " : "", engine->plan.param[p].name);
    TESS_FAIL(TESS_ERR_INTERNAL,
              "model '%s' left %d parameter%s of unit '%s' without a gradient (%s%s) and is not "
              "declared to be conditional: its declare() must call tess_declare_conditional()",
              engine->config->model->name, count, count > 1 ? "s" : "",
              engine->declare.unit[unit].name, names, count > UNUSED_NAMED_MAX ? ", ..." : "");
}

enum tess_status tess__unused_leave(struct tess_engine *engine, int32_t unit)
{
    uint8_t *used = unused_own(engine);
    for (int32_t p = engine->tables.unit_param_first[unit];
         p < engine->tables.unit_param_first[unit + 1]; p++) {
        const int32_t index = engine->plan.param[p].index;
        if (engine->unused.pass[index]) {
            used[index] = UNUSED_NO;
            continue;
        }
        if (!engine->declare.conditional)
            return unused_refuse(engine, unit);
        if (engine->tables.grad_of[index] != NULL)
            tess_fill(engine->kernel, engine->plan.param[p].count * (int64_t)sizeof(float), 0,
                      engine->tables.grad_of[index]);
    }
    return TESS_OK;
}

/* Ranks with entry `what` for parameter p. */
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

/* The message of rank 0, for all of them. */
static enum tess_status unused_report(const struct tess_engine *engine, int32_t count)
{
    char list[UNUSED_NAMED_MAX * (UNUSED_TEXT_MAX + 2)] = "";
    char one[UNUSED_TEXT_MAX], more[32] = "";
    size_t length = 0;
    int32_t named = 0;
    for (int32_t p = 0; p < engine->model.param_count && named < UNUSED_NAMED_MAX; p++) {
        if (unused_count(engine, p, UNUSED_YES) == 0)
            continue;
        unused_describe(engine, p, one);
        length += (size_t)snprintf(list + length, sizeof(list) - length, "%s%s",
                                   named++ > 0 ? ", " : "", one);
    }
    if (count > named)
        snprintf(more, sizeof(more), " and %d more", count - named);
    TESS_FAIL(TESS_ERR_USAGE,
              "step %lld left %d parameter%s without a gradient: %s%s; nothing was updated. Allow "
              "it with --find-unused, or set the layer drop of model '%s' to 0",
              (long long)engine->progress.step + 1, count, count > 1 ? "s" : "", list, more,
              engine->config->model->name);
}

/*
 * All ranks come here together with the same entries. A rank that leaves stops the others, so all
 * wait until rank 0 has reported.
 */
static enum tess_status unused_stop(struct tess_engine *engine, int32_t count)
{
    const enum tess_status status =
        engine->plan.mesh.rank == 0 ? unused_report(engine, count) : TESS_ERR_ABORTED;
    (void)tess_comm_barrier(engine->comm); /* the step has failed with or without it */
    return status;
}

enum tess_status tess__unused_finish(struct tess_engine *engine)
{
    int32_t count = 0;
    if (!engine->declare.conditional)
        return TESS_OK;
    TESS_TRY(tess_comm_all_gather(engine->comm, unused_own(engine), engine->unused.used,
                                  (size_t)engine->model.param_count, TESS_U8, NULL));
    for (int32_t p = 0; p < engine->model.param_count; p++) {
        engine->unused.skip[p] = unused_count(engine, p, UNUSED_NO) == 0;
        count += unused_count(engine, p, UNUSED_YES) > 0;
    }
    if (count > 0 && !engine->config->run.find_unused)
        return unused_stop(engine, count);
    return TESS_OK;
}
