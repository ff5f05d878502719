/*
 * The search: meshes, their shapes, and of each shape micro-batches and recompute. A mesh axis that
 * the model refuses alone is refused once, for all layouts that have it; a shape whose smallest
 * layout does not fit is not tried further. What is left is ranked by the coarse time, and the best
 * of it by predicted steps.
 */
#include "study/plan.h"

#include "base/clock.h"
#include "tessera/check.h"
#include "text/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEARCH_MICROS_MAX 24
/* Predicted steps for each layout that is shown: the coarse order is not exact. */
#define SEARCH_MARGIN 3

static const char *const search_recompute[] = {"full", "selective", "none"};
#define SEARCH_RECOMPUTES 3

const char *tess__plan_name(const struct tess__plan_layout *layout, char text[200])
{
    static const char *const axis_name[TESS_AXIS_COUNT] = {"data", "tensor", "stage"};
    size_t used = (size_t)snprintf(text, 200, "%s", layout->strategy);
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (layout->count[axis] > 1)
            used += (size_t)snprintf(text + used, 200 - used, ", %s %d", axis_name[axis],
                                     layout->count[axis]);
    if (layout->schedule != NULL)
        used += (size_t)snprintf(text + used, 200 - used, ", %s", layout->schedule);
    if (layout->chunks > 0)
        used += (size_t)snprintf(text + used, 200 - used, " x %lld chunks",
                                 (long long)layout->chunks);
    if (layout->sequence)
        used += (size_t)snprintf(text + used, 200 - used, ", sequence parallel");
    return text;
}

/* ---- families that are refused --------------------------------------------------------------- */

static enum tess_status search_reject(struct tess__plan *plan, const char *family, const char *why)
{
    for (int32_t i = 0; i < plan->rejected_count; i++)
        if (strcmp(plan->rejected[i].family, family) == 0)
            return TESS_OK;
    struct tess__plan_rejected *rejected =
        realloc(plan->rejected, ((size_t)plan->rejected_count + 1) * sizeof(*rejected));
    if (rejected == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the list of layouts that are refused");
    plan->rejected = rejected;
    rejected += plan->rejected_count++;
    snprintf(rejected->family, sizeof(rejected->family), "%s", family);
    snprintf(rejected->why, sizeof(rejected->why), "%s", why);
    return TESS_OK;
}

/* Statuses that end the search: of the program, not of a layout. */
static bool search_ends(enum tess_status status)
{
    return status == TESS_ERR_MEMORY || status == TESS_ERR_INTERNAL;
}

/* ---- axes alone ------------------------------------------------------------------------------ */

/* Which sizes of an axis the model takes, with the other axes at one rank: [ranks + 1]. */
static enum tess_status search_axis(struct tess__plan *plan, enum tess_axis axis, bool *takes)
{
    static const char *const axis_name[TESS_AXIS_COUNT] = {"data", "tensor", "stage"};
    const int64_t ranks = plan->cluster.ranks;
    takes[1] = true;
    for (int64_t n = 2; n <= ranks; n++) {
        int32_t count[TESS_AXIS_COUNT] = {1, 1, 1};
        struct tess__plan_list shapes = {0};
        char why[TESS__PLAN_WHY] = "", family[48];
        if (ranks % n != 0)
            continue;
        count[axis] = (int32_t)n;
        TESS_TRY(tess__plan_shapes(count, &shapes));
        enum tess_status status = TESS_ERR_USAGE;
        for (int64_t i = 0; i < shapes.count && status != TESS_OK && !search_ends(status); i++) {
            char this_why[TESS__PLAN_WHY];
            int64_t accumulate[SEARCH_MICROS_MAX];
            struct tess__plan_layout *shape = &shapes.item[i];
            const int micros =
                tess__plan_accumulations(plan, shape, accumulate, SEARCH_MICROS_MAX);
            if (micros == 0)
                continue;
            shape->accumulate = accumulate[micros - 1];
            status = tess__plan_try(plan, shape, false, this_why);
            if (status != TESS_OK && why[0] == '\0')
                memcpy(why, this_why, sizeof(why));
        }
        free(shapes.item);
        if (search_ends(status))
            TESS_FAIL(status, "%s", why);
        takes[n] = status == TESS_OK;
        snprintf(family, sizeof(family), "%s %lld", axis_name[axis], (long long)n);
        if (!takes[n])
            TESS_TRY(search_reject(plan, family, why));
    }
    return TESS_OK;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static bool search_fits(const struct tess__plan *plan, const struct tess__plan_layout *layout)
{
    return plan->memory_limit <= 0 || (double)layout->device_bytes <= plan->memory_limit;
}

static enum tess_status search_too_large(struct tess__plan *plan,
                                         const struct tess__plan_layout *layout)
{
    char name[200], family[96], why[TESS__PLAN_WHY], need[TESS__TEXT_BYTES], have[TESS__TEXT_BYTES];
    snprintf(family, sizeof(family), "%.90s", tess__plan_name(layout, name));
    snprintf(why, sizeof(why), "needs at least %s of memory on a device, and there are %s",
             tess__text_bytes((double)layout->device_bytes, need),
             tess__text_bytes(plan->memory_limit, have));
    return search_reject(plan, family, why);
}

/* All that a shape can be. */
static enum tess_status search_shape(struct tess__plan *plan, struct tess__plan_layout *shape)
{
    int64_t accumulate[SEARCH_MICROS_MAX];
    const int micros = tess__plan_accumulations(plan, shape, accumulate, SEARCH_MICROS_MAX);
    char first[TESS__PLAN_WHY] = "", why[TESS__PLAN_WHY], name[200];
    struct tess__plan_layout least = {.device_bytes = UINT64_MAX};
    bool legal = false, fits = false;
    for (int m = micros - 1; m >= 0; m--) {
        for (int r = 0; r < SEARCH_RECOMPUTES; r++) {
            shape->accumulate = accumulate[m];
            shape->recompute = search_recompute[r];
            const enum tess_status status = tess__plan_try(plan, shape, false, why);
            if (search_ends(status))
                TESS_FAIL(status, "%s", why);
            plan->searched++;
            if (status != TESS_OK && first[0] == '\0')
                memcpy(first, why, sizeof(first));
            if (status != TESS_OK)
                break; /* recompute changes no law */
            legal = true;
            if (shape->device_bytes < least.device_bytes)
                least = *shape;
            if (!search_fits(plan, shape))
                break; /* less recompute is more memory */
            fits = true;
            TESS_TRY(tess__plan_add(&plan->layouts, shape));
        }
        /* Larger micro-batches keep more. */
        if (legal && !fits)
            break;
    }
    if (!legal && first[0] != '\0')
        return search_reject(plan, tess__plan_name(shape, name), first);
    return legal && !fits ? search_too_large(plan, &least) : TESS_OK;
}

static enum tess_status search_mesh(struct tess__plan *plan, const int32_t count[TESS_AXIS_COUNT])
{
    struct tess__plan_list shapes = {0};
    enum tess_status status = tess__plan_shapes(count, &shapes);
    for (int64_t i = 0; i < shapes.count && status == TESS_OK; i++)
        status = search_shape(plan, &shapes.item[i]);
    free(shapes.item);
    return status;
}

static enum tess_status search_meshes(struct tess__plan *plan, const bool *tensor,
                                      const bool *stage)
{
    const int32_t ranks = plan->cluster.ranks;
    for (int32_t t = 1; t <= ranks; t++)
        for (int32_t s = 1; ranks % t == 0 && tensor[t] && s <= ranks / t; s++) {
            if (ranks / t % s != 0 || !stage[s])
                continue;
            const int32_t count[TESS_AXIS_COUNT] = {[TESS_AXIS_DATA] = ranks / t / s,
                                                    [TESS_AXIS_TENSOR] = t,
                                                    [TESS_AXIS_STAGE] = s};
            TESS_TRY(search_mesh(plan, count));
        }
    return TESS_OK;
}

/* ---- the order ------------------------------------------------------------------------------- */

static int search_faster(const void *a, const void *b)
{
    const struct tess__plan_layout *one = a, *other = b;
    if (one->predicted != other->predicted)
        return one->predicted ? -1 : 1;
    if (one->step_s != other->step_s)
        return one->step_s < other->step_s ? -1 : 1;
    if (one->device_bytes != other->device_bytes)
        return one->device_bytes < other->device_bytes ? -1 : 1;
    return strcmp(one->strategy, other->strategy);
}

/* Steps of the best by the coarse time, and their memory on every stage. */
static enum tess_status search_predict(struct tess__plan *plan)
{
    struct tess__plan_list *layouts = &plan->layouts;
    const int64_t wanted = plan->given->top * SEARCH_MARGIN;
    int64_t kept = 0;
    qsort(layouts->item, (size_t)layouts->count, sizeof(*layouts->item), search_faster);
    for (int64_t i = 0; i < layouts->count; i++) {
        struct tess__plan_layout layout = layouts->item[i];
        char why[TESS__PLAN_WHY] = "", name[200];
        enum tess_status status = TESS_OK;
        if (i < wanted) {
            status = tess__plan_try(plan, &layout, true, why);
            if (status == TESS_OK)
                status = tess__plan_predict(plan, &layout, why);
        }
        if (search_ends(status))
            TESS_FAIL(status, "%s", why);
        if (status != TESS_OK)
            TESS_TRY(search_reject(plan, tess__plan_name(&layout, name), why));
        else if (i < wanted && !search_fits(plan, &layout))
            TESS_TRY(search_too_large(plan, &layout));
        else
            layouts->item[kept++] = layout;
    }
    layouts->count = kept;
    qsort(layouts->item, (size_t)kept, sizeof(*layouts->item), search_faster);
    return TESS_OK;
}

enum tess_status tess__plan_search(struct tess__plan *plan)
{
    const double begin_s = tess_clock_s();
    const size_t sizes = (size_t)plan->cluster.ranks + 1;
    bool *takes = calloc(2 * sizes, sizeof(*takes));
    enum tess_status status;
    if (takes == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the sizes of a mesh");
    TESS_TRY_GOTO(status, free_takes, search_axis(plan, TESS_AXIS_TENSOR, takes));
    TESS_TRY_GOTO(status, free_takes, search_axis(plan, TESS_AXIS_STAGE, takes + sizes));
    TESS_TRY_GOTO(status, free_takes, search_meshes(plan, takes, takes + sizes));
    TESS_TRY_GOTO(status, free_takes, search_predict(plan));
    plan->seconds = tess_clock_s() - begin_s;

free_takes:
    free(takes);
    return status;
}
