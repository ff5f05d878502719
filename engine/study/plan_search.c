/*
 * The search: meshes, their shapes, and of each shape micro-batches and recompute. A mesh axis that
 * the model refuses alone is refused once, for all layouts that have it; a shape whose smallest
 * layout does not fit is not tried further. What is left is ranked by the coarse time, and the best
 * of it by predicted steps.
 */
#include "study/plan.h"

#include "base/clock.h"
#include "base/options.h"
#include "tessera/check.h"
#include "text/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEARCH_MICROS_MAX 24
/* Steps are predicted of more layouts than are shown, as the coarse order is not exact: of twice as
 * many, and of so many at least, so that the first does not depend on how few are shown. Steps of
 * few ranks are short and soon predicted. */
#define SEARCH_MARGIN    2
#define SEARCH_LEAST     20
#define SEARCH_LEAST_FEW 32

static const char *const search_recompute[] = {"full", "selective", "none"};
#define SEARCH_RECOMPUTES 3

/* Statuses that end the search: of the program or its options (tess__plan_configure), not of a
 * layout. */
static bool search_ends(enum tess_status status)
{
    return status == TESS_ERR_MEMORY || status == TESS_ERR_INTERNAL || status == TESS_ERR_DATA;
}

/* ---- axes alone ------------------------------------------------------------------------------ */

/* Micro-batches for a question about the shape alone: enough to fill a pipeline. */
static bool search_fill(const struct tess__plan *plan, struct tess__plan_layout *shape)
{
    int64_t accumulate[SEARCH_MICROS_MAX];
    const int micros = tess__plan_accumulations(plan, shape, accumulate, SEARCH_MICROS_MAX);
    int m = 0;
    while (m + 1 < micros && accumulate[m] < 2 * (int64_t)shape->count[TESS_AXIS_STAGE])
        m++;
    if (micros > 0)
        shape->accumulate = accumulate[m];
    return micros > 0;
}

/* A shape of one axis alone. */
struct search_one_axis {
    struct tess__plan_layout shape;
    enum tess_status status;
    char why[TESS__PLAN_WHY];
};

static void search_alone(const struct tess__plan *plan, void *context, int64_t number)
{
    struct search_one_axis *one = (struct search_one_axis *)context + number;
    struct tess__plan_layout *const shape[] = {&one->shape};
    int done;
    snprintf(one->why, sizeof(one->why), "the batch cannot be cut for it");
    one->status = search_fill(plan, &one->shape)
                      ? tess__plan_try_ends(plan, shape, 1, false, &done, one->why)
                      : TESS_ERR_USAGE;
}

/* What was found of a size of the axis: may it be taken, and with which schedules; else why the
 * first shape was refused. */
static enum tess_status search_size(struct tess__plan *plan, const char *axis, int64_t size,
                                    const struct search_one_axis *one, int64_t count, bool *takes)
{
    char family[64];
    for (int64_t i = 0; i < count; i++) {
        if (search_ends(one[i].status))
            TESS_FAIL(one[i].status, "%s", one[i].why);
        if (one[i].status != TESS_OK)
            continue;
        *takes = true;
        if (one[i].shape.schedule != NULL)
            TESS_TRY(tess__plan_add(&plan->stages, &one[i].shape));
    }
    snprintf(family, sizeof(family), "%s %lld", axis, (long long)size);
    return *takes || count == 0 ? TESS_OK : tess__plan_reject(plan, true, family, one[0].why);
}

/* A schedule that no number of stages takes is refused once, with the first reason. */
static enum tess_status search_schedules(struct tess__plan *plan, const struct search_one_axis *one,
                                         int64_t count)
{
    char family[64];
    for (int64_t i = 0; i < count; i++) {
        const struct tess__plan_layout *shape = &one[i].shape;
        bool taken = shape->schedule == NULL;
        for (int64_t k = 0; k < plan->stages.count && !taken; k++)
            taken = plan->stages.item[k].schedule == shape->schedule &&
                    plan->stages.item[k].chunks == shape->chunks;
        if (taken)
            continue;
        snprintf(family, sizeof(family), "%s x %lld chunk%s", shape->schedule,
                 (long long)shape->chunks, shape->chunks > 1 ? "s" : "");
        TESS_TRY(tess__plan_reject(plan, true, family, one[i].why));
    }
    return TESS_OK;
}

/* The shapes of all sizes of an axis that divide the ranks, with the other axes at one rank. */
static enum tess_status search_axis_shapes(const struct tess__plan *plan, enum tess_axis axis,
                                           struct tess__plan_list *shapes)
{
    for (int64_t n = 2; n <= plan->cluster.ranks; n++) {
        int32_t count[TESS_AXIS_COUNT] = {1, 1, 1};
        count[axis] = (int32_t)n;
        if (plan->cluster.ranks % n == 0)
            TESS_TRY(tess__plan_shapes(count, shapes));
    }
    return TESS_OK;
}

/* Which sizes of the tensor and the stage axis the model takes: [ranks + 1] each. */
static enum tess_status search_axes(struct tess__plan *plan, bool *tensor, bool *stage)
{
    struct tess__plan_list shapes = {0};
    enum tess_status status = search_axis_shapes(plan, TESS_AXIS_TENSOR, &shapes);
    const int64_t tensor_count = shapes.count;
    TESS_KEEP(status, search_axis_shapes(plan, TESS_AXIS_STAGE, &shapes));
    struct search_one_axis *one = calloc((size_t)shapes.count + 1, sizeof(*one));
    if (status == TESS_OK && one == NULL)
        status = tess_fail(TESS_ERR_MEMORY, "no memory for the sizes of a mesh");
    for (int64_t i = 0; one != NULL && i < shapes.count; i++)
        one[i].shape = shapes.item[i];
    if (status == TESS_OK)
        status = tess__plan_each(plan, shapes.count, TESS__PLAN_RANGES, search_alone, one);
    tensor[1] = stage[1] = true;
    for (int64_t i = 0, end; i < shapes.count && status == TESS_OK; i = end) {
        const bool first = i < tensor_count;
        const enum tess_axis axis = first ? TESS_AXIS_TENSOR : TESS_AXIS_STAGE;
        const int32_t size = one[i].shape.count[axis];
        for (end = i; end < shapes.count && one[end].shape.count[axis] == size;)
            end++;
        status = search_size(plan, first ? "tensor" : "stage", size, one + i, end - i,
                             first ? &tensor[size] : &stage[size]);
    }
    if (status == TESS_OK)
        status = search_schedules(plan, one, shapes.count);
    free(one);
    free(shapes.item);
    return status;
}

/* Is the shape's schedule one that so many stages can have? */
static bool search_has_schedule(const struct tess__plan *plan,
                                const struct tess__plan_layout *shape)
{
    for (int64_t i = 0; i < plan->stages.count && shape->schedule != NULL; i++) {
        const struct tess__plan_layout *known = &plan->stages.item[i];
        if (known->count[TESS_AXIS_STAGE] == shape->count[TESS_AXIS_STAGE] &&
            known->schedule == shape->schedule && known->chunks == shape->chunks)
            return true;
    }
    return shape->schedule == NULL;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static void search_too_large(const struct tess__plan *plan, const struct tess__plan_layout *layout,
                             char family[128], char why[TESS__PLAN_WHY])
{
    char name[200], need[TESS__TEXT_BYTES], have[TESS__TEXT_BYTES];
    snprintf(family, 128, "%.120s", tess__plan_name(layout, name));
    snprintf(why, TESS__PLAN_WHY, "needs at least %s of memory on a device, and there are %s",
             tess__text_bytes((double)layout->device_bytes, need),
             tess__text_bytes(plan->memory_limit, have));
}

enum search_found { SEARCH_UNKNOWN, SEARCH_REFUSED, SEARCH_TOO_LARGE, SEARCH_FITS };

/* A shape, and what was found. Shapes are tried by several threads, and what they find is then put
 * together in order, so that it does not depend on who was first. */
struct search_item {
    struct tess__plan_layout shape;
    enum tess_status status; /* that ends the search, with `why` */
    int64_t searched;
    struct tess__plan_list fitting;
    uint64_t least_bytes;                  /* where none fits: of the smallest; else 0 */
    char family[128], why[TESS__PLAN_WHY]; /* that is refused; family "": none is */
};

/* What is known of a shape while its layouts are tried. */
struct search_shape {
    struct search_item *item;
    int64_t accumulate[SEARCH_MICROS_MAX];
    int micros;
    bool all;   /* layouts are tried, not the fewest micro-batches that fit */
    bool whole; /* the last stage is planned where the first does not fit, too */
    bool legal, fits, partly;
    struct tess__plan_layout least; /* of all that were tried, the one with the least memory */
    char why[TESS__PLAN_WHY];       /* why the first that was refused was */
    /* Halving comes to the same one more than once. */
    struct search_tried {
        enum search_found found;
        bool planned; /* with another way to recompute: only a part of a plan depends on that */
        struct tess__plan_layout layout;
    } tried[SEARCH_MICROS_MAX][SEARCH_RECOMPUTES];
};

/* Way `i` to recompute after this one: first it, then those that recompute more. */
static int search_beside_of(int recompute, int i)
{
    return (recompute + SEARCH_RECOMPUTES - i) % SEARCH_RECOMPUTES;
}

/* Plan one, and what differs from it in recompute alone: all of it, or what recomputes more, where
 * a search goes from less to more. That begins with the most micro-batches, and mostly comes to
 * them again. */
static enum tess_status search_plan(const struct tess__plan *plan, struct search_shape *shape,
                                    int micro, int recompute, char why[TESS__PLAN_WHY])
{
    struct tess__plan_layout *layout[SEARCH_RECOMPUTES];
    const bool all = shape->all || micro == shape->micros - 1;
    const int count = all ? SEARCH_RECOMPUTES : recompute + 1;
    int done;
    for (int i = 0; i < count; i++) {
        const int r = search_beside_of(recompute, i);
        layout[i] = &shape->tried[micro][r].layout;
        *layout[i] = shape->item->shape;
        layout[i]->accumulate = shape->accumulate[micro];
        layout[i]->recompute = search_recompute[r];
    }
    const enum tess_status status =
        tess__plan_try_ends(plan, layout, count, !all && !shape->whole, &done, why);
    for (int i = 0; i < done; i++)
        shape->tried[micro][search_beside_of(recompute, i)].planned = true;
    return done > 0 && !search_ends(status) ? TESS_OK : status;
}

/* Try one that was not tried before. */
static enum tess_status search_first(const struct tess__plan *plan, struct search_shape *shape,
                                     int micro, int recompute)
{
    char why[TESS__PLAN_WHY];
    struct search_tried *tried = &shape->tried[micro][recompute];
    const enum tess_status status =
        tried->planned ? TESS_OK : search_plan(plan, shape, micro, recompute, why);
    tried->found = SEARCH_REFUSED;
    if (status != TESS_OK && (search_ends(status) || shape->why[0] == '\0'))
        memcpy(shape->why, why, sizeof(why));
    if (status != TESS_OK)
        return search_ends(status) ? status : TESS_OK;
    shape->legal = true;
    shape->partly = shape->partly || tried->layout.partly;
    if (tried->layout.device_bytes < shape->least.device_bytes)
        shape->least = tried->layout;
    tried->found = tess__plan_fits(plan, &tried->layout) ? SEARCH_FITS : SEARCH_TOO_LARGE;
    shape->fits = shape->fits || tried->found == SEARCH_FITS;
    return TESS_OK;
}

/* Try one; it is added where it fits and `add` says so. */
static enum tess_status search_one(const struct tess__plan *plan, struct search_shape *shape,
                                   int micro, int recompute, bool add, enum search_found *found_out)
{
    struct search_tried *tried = &shape->tried[micro][recompute];
    if (tried->found == SEARCH_UNKNOWN)
        TESS_TRY(search_first(plan, shape, micro, recompute));
    shape->item->searched++;
    *found_out = tried->found;
    return add && tried->found == SEARCH_FITS
               ? tess__plan_add(&shape->item->fitting, &tried->layout)
               : TESS_OK;
}

/* All of them: few ranks. */
static enum tess_status search_all(const struct tess__plan *plan, struct search_shape *shape)
{
    enum search_found found = SEARCH_FITS;
    for (int m = 0; m < shape->micros; m++)
        for (int r = 0; r < SEARCH_RECOMPUTES; r++) {
            TESS_TRY(search_one(plan, shape, m, r, true, &found));
            if (found == SEARCH_REFUSED)
                break; /* recompute changes no law */
        }
    return TESS_OK;
}

/*
 * Of each way to recompute the fewest micro-batches that fit, found by halving, since more of them
 * keep less; and those after it that may pay: in a pipeline more micro-batches have less idle time.
 */
static enum tess_status search_fewest(const struct tess__plan *plan, struct search_shape *shape)
{
    const int after = shape->item->shape.count[TESS_AXIS_STAGE] > 1 ? 3 : 1;
    enum search_found smallest = SEARCH_REFUSED;
    if (shape->micros > 0)
        TESS_TRY(search_one(plan, shape, shape->micros - 1, 0, false, &smallest));
    if (smallest == SEARCH_TOO_LARGE)
        return TESS_OK;
    for (int r = SEARCH_RECOMPUTES - 1; r >= 0; r--) {
        int low = 0, high = shape->micros;
        while (low < high) {
            enum search_found found;
            const int middle = (low + high) / 2;
            TESS_TRY(search_one(plan, shape, middle, r, false, &found));
            if (found == SEARCH_FITS)
                high = middle;
            else
                low = middle + 1;
        }
        for (int m = low; m < shape->micros && m <= low + after; m++) {
            enum search_found found;
            TESS_TRY(search_one(plan, shape, m, r, true, &found));
        }
        if (low == 0)
            break; /* more recompute saves memory that is not needed */
    }
    return TESS_OK;
}

/* Meshes of more ranks have so many layouts that a part of them is left out. */
#define SEARCH_ALL_RANKS 16

static enum tess_status search_item(const struct tess__plan *plan, struct search_item *item,
                                    bool whole, struct search_shape *shape)
{
    shape->item = item;
    shape->whole = whole;
    shape->all = plan->cluster.ranks <= SEARCH_ALL_RANKS;
    shape->legal = shape->fits = shape->partly = false;
    shape->least = (struct tess__plan_layout){.device_bytes = UINT64_MAX};
    shape->why[0] = '\0';
    shape->micros =
        tess__plan_accumulations(plan, &item->shape, shape->accumulate, SEARCH_MICROS_MAX);
    memset(shape->tried, 0, (size_t)shape->micros * sizeof(*shape->tried));
    item->searched = 0;
    return shape->all ? search_all(plan, shape) : search_fewest(plan, shape);
}

/* Item `number` of a list of pointers to items. */
static void search_shape(const struct tess__plan *plan, void *context, int64_t number)
{
    struct search_item *item = ((struct search_item **)context)[number];
    struct search_shape shape;
    item->status = search_item(plan, item, false, &shape);
    /* Where none fits it matters how much they need, and which are refused by their last stage. */
    if (item->status == TESS_OK && !shape.fits && shape.partly)
        item->status = search_item(plan, item, true, &shape);
    memcpy(item->why, shape.why, sizeof(item->why));
    if (item->status != TESS_OK)
        return;
    if (!shape.legal && shape.why[0] != '\0')
        snprintf(item->family, sizeof(item->family), "%s, data %d%s", item->shape.strategy,
                 item->shape.count[TESS_AXIS_DATA],
                 item->shape.sequence ? ", sequence parallel" : "");
    else if (shape.legal && !shape.fits) {
        search_too_large(plan, &shape.least, item->family, item->why);
        item->least_bytes = shape.least.device_bytes;
    }
}

struct search_items {
    struct search_item *item; /* [room] */
    int64_t count, room;
};

static enum tess_status search_add_item(struct search_items *items,
                                        const struct tess__plan_layout *shape)
{
    if (items->count == items->room) {
        const int64_t room = items->room > 0 ? 2 * items->room : 64;
        struct search_item *item = realloc(items->item, (size_t)room * sizeof(*item));
        if (item == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for %lld layouts", (long long)room);
        items->item = item;
        items->room = room;
    }
    items->item[items->count++] = (struct search_item){.shape = *shape};
    return TESS_OK;
}

/* By product, and else as they are: so threads have the least to read. */
static int search_beside(const void *a, const void *b)
{
    const struct search_item *one = *(struct search_item *const *)a;
    const struct search_item *other = *(struct search_item *const *)b;
    const int order = strcmp(one->shape.strategy, other->shape.strategy);
    return order != 0 ? order : one < other ? -1 : 1;
}

/* Do elements [count] of `bytes` each, in the order that `compare` has of pointers to them. */
static enum tess_status search_each(struct tess__plan *plan, void *first, int64_t count,
                                    size_t bytes, int (*compare)(const void *, const void *),
                                    tess__plan_do *does, enum tess__plan_turns turns)
{
    void **element = calloc((size_t)count + 1, sizeof(*element));
    if (element == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %lld layouts", (long long)count);
    for (int64_t i = 0; i < count; i++)
        element[i] = (char *)first + (size_t)i * bytes;
    qsort(element, (size_t)count, sizeof(*element), compare);
    const enum tess_status status = tess__plan_each(plan, count, turns, does, element);
    free(element);
    return status;
}

/* Try all, and put together what was found. */
static enum tess_status search_items(struct tess__plan *plan, struct search_items *items)
{
    enum tess_status status = search_each(plan, items->item, items->count, sizeof(*items->item),
                                          search_beside, search_shape, TESS__PLAN_RANGES);
    for (int64_t i = 0; i < items->count; i++) {
        struct search_item *item = &items->item[i];
        if (status == TESS_OK && item->status != TESS_OK)
            status = tess_fail(item->status, "%s", item->why);
        plan->searched += item->searched;
        if (item->least_bytes > 0 &&
            (plan->least_bytes == 0 || item->least_bytes < plan->least_bytes))
            plan->least_bytes = item->least_bytes;
        for (int64_t l = 0; l < item->fitting.count && status == TESS_OK; l++)
            status = tess__plan_add(&plan->layouts, &item->fitting.item[l]);
        free(item->fitting.item);
    }
    for (int64_t i = 0; i < items->count && status == TESS_OK; i++) {
        const struct search_item *item = &items->item[i];
        const bool illegal = item->least_bytes == 0;
        if (item->family[0] != '\0' && !(illegal && tess__plan_has_family(plan, &item->shape)))
            status = tess__plan_reject(plan, false, item->family, item->why);
    }
    free(items->item);
    return status;
}

/* Which shapes of a mesh: all, or with many ranks the plain ones, and the others of one product. */
enum search_part { SEARCH_WHOLE, SEARCH_PLAIN, SEARCH_OTHERS };

static enum tess_status search_mesh(const struct tess__plan *plan,
                                    const int32_t count[TESS_AXIS_COUNT], enum search_part part,
                                    const char *strategy, struct search_items *items)
{
    struct tess__plan_list shapes = {0};
    enum tess_status status = tess__plan_shapes(count, &shapes);
    for (int64_t i = 0; i < shapes.count && status == TESS_OK; i++) {
        struct tess__plan_layout *shape = &shapes.item[i];
        const bool wanted =
            part == SEARCH_WHOLE ||
            (part == SEARCH_PLAIN ? shape->plain
                                  : !shape->plain && strcmp(shape->strategy, strategy) == 0);
        if (!wanted || !search_has_schedule(plan, shape))
            continue;
        for (int p = 0; p < plan->precision_count && status == TESS_OK; p++) {
            shape->precision = plan->precision[p];
            status = search_add_item(items, shape);
        }
    }
    free(shapes.item);
    return status;
}

static enum tess_status search_meshes(struct tess__plan *plan, const bool *tensor,
                                      const bool *stage)
{
    const int32_t ranks = plan->cluster.ranks;
    struct search_items items = {0};
    enum tess_status status = TESS_OK;
    for (int32_t t = 1; t <= ranks; t++)
        for (int32_t s = 1; ranks % t == 0 && tensor[t] && s <= ranks / t; s++) {
            if (ranks / t % s != 0 || !stage[s] || status != TESS_OK)
                continue;
            const int32_t count[TESS_AXIS_COUNT] = {
                [TESS_AXIS_DATA] = ranks / t / s, [TESS_AXIS_TENSOR] = t, [TESS_AXIS_STAGE] = s};
            status = search_mesh(
                plan, count, ranks <= SEARCH_ALL_RANKS ? SEARCH_WHOLE : SEARCH_PLAIN, "", &items);
        }
    if (status == TESS_OK)
        return search_items(plan, &items);
    free(items.item);
    return status;
}

/* ---- the order ------------------------------------------------------------------------------- */

/* Schedules, chunks and sequence parallel of the best products. */
#define SEARCH_REFINED 12

static enum tess_status search_refine(struct tess__plan *plan)
{
    struct tess__plan_layout best[SEARCH_REFINED];
    int count = 0;
    tess__plan_sort(&plan->layouts);
    for (int64_t i = 0; i < plan->layouts.count && count < SEARCH_REFINED; i++) {
        bool known = false;
        for (int b = 0; b < count; b++)
            known = known || tess__plan_same_product(&best[b], &plan->layouts.item[i]);
        if (!known)
            best[count++] = plan->layouts.item[i];
    }
    struct search_items items = {0};
    enum tess_status status = TESS_OK;
    for (int b = 0; b < count && plan->cluster.ranks > SEARCH_ALL_RANKS && status == TESS_OK; b++)
        status = search_mesh(plan, best[b].count, SEARCH_OTHERS, best[b].strategy, &items);
    if (status == TESS_OK)
        return search_items(plan, &items);
    free(items.item);
    return status;
}

/* A layout whose step is predicted. */
struct search_step {
    struct tess__plan_layout layout;
    enum tess_status status;
    char why[TESS__PLAN_WHY];
};

/* Step `number` of a list of pointers to steps, and its memory on every stage. */
static void search_step(const struct tess__plan *plan, void *context, int64_t number)
{
    struct search_step *step = ((struct search_step **)context)[number];
    step->status = tess__plan_try(plan, &step->layout, step->why);
    if (step->status == TESS_OK && tess__plan_fits(plan, &step->layout))
        step->status = tess__plan_predict(plan, &step->layout, step->why);
}

/* The longest first, and else as they are. */
static int search_longer(const void *a, const void *b)
{
    const struct search_step *one = *(struct search_step *const *)a;
    const struct search_step *other = *(struct search_step *const *)b;
    const int64_t more = tess__plan_length(&one->layout) - tess__plan_length(&other->layout);
    return more != 0 ? (more > 0 ? -1 : 1) : one < other ? -1 : 1;
}

static enum tess_status search_each_step(struct tess__plan *plan, struct search_step *step,
                                         int64_t count)
{
    return search_each(plan, step, count, sizeof(*step), search_longer, search_step,
                       TESS__PLAN_NEXT);
}

/* The less is made again, the higher. */
static int search_recompute_of(const struct tess__plan_layout *layout)
{
    int r = 0;
    while (r < SEARCH_RECOMPUTES - 1 && layout->recompute != search_recompute[r])
        r++;
    return r;
}

/* Keep the layout in [0, *kept), but of twins the simpler one. False: it was not kept. */
static bool search_keep(struct tess__plan_layout *list, int64_t *kept,
                        const struct tess__plan_layout *layout)
{
    int64_t i = 0;
    while (i < *kept && !tess__plan_is_twin(&list[i], layout))
        i++;
    if (i < *kept && search_recompute_of(&list[i]) >= search_recompute_of(layout))
        return false;
    if (i < *kept)
        tess__plan_order_free(list[i].order);
    *kept += i == *kept;
    list[i] = *layout;
    return true;
}

/* Layouts [from, from + count): those that stay come to [*kept, ...). */
static enum tess_status search_steps(struct tess__plan *plan, int64_t from, int64_t count,
                                     int64_t *kept)
{
    struct tess__plan_layout *layout = plan->layouts.item;
    struct search_step *step = calloc((size_t)count + 1, sizeof(*step));
    if (step == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %lld steps", (long long)count);
    for (int64_t i = 0; i < count; i++)
        step[i].layout = layout[from + i];
    enum tess_status status = search_each_step(plan, step, count);
    for (int64_t i = 0; i < count && status == TESS_OK; i++) {
        char family[128], name[200];
        if (search_ends(step[i].status)) {
            status = tess_fail(step[i].status, "%s", step[i].why);
        } else if (step[i].status != TESS_OK) {
            status =
                tess__plan_reject(plan, false, tess__plan_name(&step[i].layout, name), step[i].why);
        } else if (!tess__plan_fits(plan, &step[i].layout)) {
            search_too_large(plan, &step[i].layout, family, step[i].why);
            status = tess__plan_reject(plan, false, family, step[i].why);
        } else if (search_keep(layout, kept, &step[i].layout)) {
            step[i].layout.order = NULL; /* it is the list's */
        }
    }
    for (int64_t i = 0; i < count; i++)
        tess__plan_order_free(step[i].layout.order);
    free(step);
    return status;
}

/* Layouts of which one further option is tried. */
#define SEARCH_VARIED 4

/* May the plan choose the layout's further option, or did the configuration? */
static enum tess_status search_is_free(const struct tess__plan *plan,
                                       const struct tess__plan_layout *layout, bool *free_out)
{
    char name[64];
    const struct tess_config *config;
    struct tess__plan_layout plain = *layout;
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(layout->extra, "="), layout->extra);
    plain.extra[0] = '\0';
    TESS_TRY(tess__plan_configure(plan, &plain, &config));
    *free_out = !tess_options_is_set(config->options, name);
    return TESS_OK;
}

/* The fastest layouts with one option more: those that it changes join the others. */
static enum tess_status search_vary(struct tess__plan *plan)
{
    struct tess__plan_list *layouts = &plan->layouts;
    struct tess__plan_layout *of[SEARCH_VARIED];
    struct search_step *step = calloc(SEARCH_VARIED, sizeof(*step));
    int64_t count = 0;
    if (step == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for %d steps", SEARCH_VARIED);
    enum tess_status status = TESS_OK;
    for (int64_t i = 0; i < layouts->count && i < SEARCH_VARIED && status == TESS_OK; i++) {
        bool may = false;
        step[count].layout = layouts->item[i];
        step[count].layout.order = NULL;
        if (layouts->item[i].predicted &&
            tess__plan_variant(&layouts->item[i], step[count].layout.extra))
            status = search_is_free(plan, &step[count].layout, &may);
        of[count] = &layouts->item[i];
        count += may;
    }
    if (status == TESS_OK)
        status = search_each_step(plan, step, count);
    plan->searched += count;
    bool keep[SEARCH_VARIED] = {false};
    for (int64_t i = 0; i < count; i++)
        keep[i] = step[i].status == TESS_OK && tess__plan_fits(plan, &step[i].layout) &&
                  (step[i].layout.step_s != of[i]->step_s ||
                   step[i].layout.device_bytes != of[i]->device_bytes);
    for (int64_t i = 0; i < count; i++) {
        if (status == TESS_OK && search_ends(step[i].status))
            status = tess_fail(step[i].status, "%s", step[i].why);
        if (status == TESS_OK && keep[i]) {
            status = tess__plan_add(layouts, &step[i].layout);
            step[i].layout.order = status == TESS_OK ? NULL : step[i].layout.order;
        }
        tess__plan_order_free(step[i].layout.order);
    }
    free(step);
    return status;
}

/* Steps of the best by the coarse time. */
static enum tess_status search_predict(struct tess__plan *plan)
{
    struct tess__plan_list *layouts = &plan->layouts;
    const int64_t least = plan->cluster.ranks <= SEARCH_ALL_RANKS ? SEARCH_LEAST_FEW : SEARCH_LEAST;
    const int64_t tried = plan->given->try_count, top = plan->given->top;
    const int64_t shown = (tried > top ? tried : top) * SEARCH_MARGIN;
    const int64_t wanted = shown > least ? shown : least;
    int64_t kept = 0, done = 0;
    tess__plan_sort(layouts);
    TESS_TRY(tess__plan_configs_forget(plan->configs[0]));
    /* In the place of one that is refused comes the next. */
    while (kept < wanted && done < layouts->count) {
        const int64_t left = layouts->count - done, more = wanted - kept;
        const int64_t count = left < more ? left : more;
        TESS_TRY(search_steps(plan, done, count, &kept));
        done += count;
    }
    for (; done < layouts->count; done++)
        layouts->item[kept++] = layouts->item[done];
    layouts->count = kept;
    tess__plan_sort(layouts);
    TESS_TRY(search_vary(plan));
    tess__plan_sort(layouts);
    return tess__plan_configs_forget(plan->configs[0]);
}

enum tess_status tess__plan_search(struct tess__plan *plan)
{
    const double begin_s = tess_clock_s();
    const size_t sizes = (size_t)plan->cluster.ranks + 1;
    bool *takes = calloc(2 * sizes, sizeof(*takes));
    enum tess_status status;
    if (takes == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the sizes of a mesh");
    TESS_TRY_GOTO(status, free_takes, search_axes(plan, takes, takes + sizes));
    TESS_TRY_GOTO(status, free_takes, search_meshes(plan, takes, takes + sizes));
    TESS_TRY_GOTO(status, free_takes, search_refine(plan));
    TESS_TRY_GOTO(status, free_takes, search_predict(plan));
    plan->seconds = tess_clock_s() - begin_s;

free_takes:
    tess__plan_alone(plan);
    free(takes);
    return status == TESS_ERR_DATA ? TESS_ERR_USAGE : status;
}
