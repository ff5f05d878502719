/* Parameters without a gradient, see unused.h. */
#include "core/unused.h"

#include "core/rank_list.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parameters that a message spells out; the rest it counts. */
#define UNUSED_NAMED_MAX 4
/* A rank's entry for a parameter: its step has left it without a gradient, or not; or other ranks
 * of the mesh keep it. */
enum { UNUSED_YES, UNUSED_NO, UNUSED_ELSEWHERE };
/* Of one of them, with its ranks. */
#define UNUSED_TEXT_MAX (TESS_NAME_MAX + sizeof(struct tess_rank_list) + 32)

static uint8_t *unused_row(const struct tess_unused *unused, int32_t rank)
{
    return unused->used + (size_t)rank * (size_t)unused->model->param_count;
}

enum tess_status tess__unused_open(struct tess_unused *unused)
{
    const size_t params = (size_t)unused->model->param_count;
    unused->pass = calloc(params + 1, sizeof(*unused->pass));
    unused->used = calloc((size_t)unused->plan->mesh.rank_count * params + 1, 1);
    if (unused->pass == NULL || unused->used == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the notes about %zu parameters", params);
    if (!unused->declare->conditional)
        return TESS_OK;
    unused->skip = calloc(params + 1, 1);
    unused->updates = calloc(params + 1, sizeof(*unused->updates));
    if (unused->skip == NULL || unused->updates == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the notes about %zu parameters", params);
    return TESS_OK;
}

void tess__unused_close(struct tess_unused *unused)
{
    free(unused->pass);
    free(unused->used);
    free(unused->skip);
    free(unused->updates);
}

void tess__unused_begin(struct tess_unused *unused)
{
    uint8_t *used = unused_row(unused, unused->plan->mesh.rank);
    memset(used, UNUSED_ELSEWHERE, (size_t)unused->model->param_count);
    for (int32_t p = 0; p < unused->plan->param_count; p++)
        used[unused->plan->param[p].index] = UNUSED_YES;
}

void tess__unused_enter(struct tess_unused *unused, int32_t unit)
{
    for (int32_t p = unused->tables->unit_param_first[unit];
         p < unused->tables->unit_param_first[unit + 1]; p++)
        unused->pass[unused->plan->param[p].index] = true;
}

/* An error of the model, not of the run's options. */
static enum tess_status unused_refuse(const struct tess_unused *unused, int32_t unit)
{
    char names[UNUSED_NAMED_MAX * (TESS_NAME_MAX + 4)] = "";
    size_t length = 0;
    int32_t count = 0;
    for (int32_t p = unused->tables->unit_param_first[unit];
         p < unused->tables->unit_param_first[unit + 1]; p++)
        if (!unused->pass[unused->plan->param[p].index] && count++ < UNUSED_NAMED_MAX)
            length += (size_t)snprintf(names + length, sizeof(names) - length, "%s'%s'",
                                       length > 0 ? ", " : "", unused->plan->param[p].name);
    TESS_FAIL(TESS_ERR_INTERNAL,
              "model '%s' left %d parameter%s of unit '%s' without a gradient (%s%s) and is not "
              "declared to be conditional: its declare() must call tess_declare_conditional()",
              unused->config->model->name, count, count > 1 ? "s" : "",
              unused->declare->unit[unit].name, names, count > UNUSED_NAMED_MAX ? ", ..." : "");
}

enum tess_status tess__unused_leave(struct tess_unused *unused, int32_t unit)
{
    uint8_t *used = unused_row(unused, unused->plan->mesh.rank);
    for (int32_t p = unused->tables->unit_param_first[unit];
         p < unused->tables->unit_param_first[unit + 1]; p++) {
        const int32_t index = unused->plan->param[p].index;
        if (unused->pass[index]) {
            used[index] = UNUSED_NO;
            continue;
        }
        if (!unused->declare->conditional)
            return unused_refuse(unused, unit);
        tess_fill(unused->kernel, unused->plan->param[p].count * (int64_t)sizeof(float), 0,
                  unused->tables->grad_of[index]);
    }
    return TESS_OK;
}

/* Ranks with entry `what` for parameter p. */
static int32_t unused_count(const struct tess_unused *unused, int32_t p, int what)
{
    int32_t count = 0;
    for (int32_t r = 0; r < unused->plan->mesh.rank_count; r++)
        count += unused_row(unused, r)[p] == what;
    return count;
}

/* "'fc2.weight' (on ranks 1, 3)" */
static void unused_describe(const struct tess_unused *unused, int32_t p, char text[UNUSED_TEXT_MAX])
{
    struct tess_rank_list list = {0};
    for (int32_t r = 0; r < unused->plan->mesh.rank_count; r++)
        if (unused_row(unused, r)[p] == UNUSED_YES)
            tess__rank_list_add(&list, r);
    if (list.count == unused->plan->mesh.rank_count)
        snprintf(text, UNUSED_TEXT_MAX, "'%s' (on all ranks)", unused->model->param[p].name);
    else
        snprintf(text, UNUSED_TEXT_MAX, "'%s' (on rank%s %s)", unused->model->param[p].name,
                 list.count > 1 ? "s" : "", list.text);
}

/* The message of rank 0, for all of them. */
static enum tess_status unused_report(const struct tess_unused *unused, int64_t step, int32_t count)
{
    char list[UNUSED_NAMED_MAX * (UNUSED_TEXT_MAX + 2)] = "";
    char one[UNUSED_TEXT_MAX], more[32] = "";
    size_t length = 0;
    int32_t named = 0;
    for (int32_t p = 0; p < unused->model->param_count && named < UNUSED_NAMED_MAX; p++) {
        if (unused_count(unused, p, UNUSED_YES) == 0)
            continue;
        unused_describe(unused, p, one);
        length += (size_t)snprintf(list + length, sizeof(list) - length, "%s%s",
                                   named++ > 0 ? ", " : "", one);
    }
    if (count > named)
        snprintf(more, sizeof(more), " and %d more", count - named);
    TESS_FAIL(TESS_ERR_USAGE,
              "step %lld left %d parameter%s without a gradient: %s%s; nothing was updated. Allow "
              "it with --find-unused, or set the layer drop of model '%s' to 0",
              (long long)step, count, count > 1 ? "s" : "", list, more,
              unused->config->model->name);
}

/*
 * All ranks come here together with the same entries. A rank that leaves stops the others, so all
 * wait until rank 0 has reported.
 */
static enum tess_status unused_stop(struct tess_unused *unused, int64_t step, int32_t count)
{
    const enum tess_status status =
        unused->plan->mesh.rank == 0 ? unused_report(unused, step, count) : TESS_ERR_ABORTED;
    (void)tess_comm_barrier(unused->comm); /* the step has failed with or without it */
    return status;
}

enum tess_status tess__unused_finish(struct tess_unused *unused, int64_t step)
{
    int32_t count = 0;
    if (!unused->declare->conditional)
        return TESS_OK;
    TESS_TRY(tess_comm_all_gather(unused->comm, unused_row(unused, unused->plan->mesh.rank),
                                  unused->used, (size_t)unused->model->param_count, TESS_U8, NULL));
    for (int32_t p = 0; p < unused->model->param_count; p++) {
        unused->skip[p] = unused_count(unused, p, UNUSED_NO) == 0;
        count += unused_count(unused, p, UNUSED_YES) > 0;
    }
    if (count > 0 && !unused->config->run.find_unused)
        return unused_stop(unused, step, count);
    return TESS_OK;
}
