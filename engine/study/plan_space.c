/* Every layout that strategies and options allow, before the engine is asked; see plan.h. */
#include "study/plan.h"

#include "config/registry.h"
#include "study/product.h"
#include "tessera/check.h"
#include "tessera/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE_SCHEDULES_MAX 8
#define SPACE_CHUNKS_MAX    4

/* ---- lists ----------------------------------------------------------------------------------- */

enum tess_status tess__plan_add(struct tess__plan_list *list,
                                const struct tess__plan_layout *layout)
{
    if (list->count == list->room) {
        const int64_t room = list->room > 0 ? 2 * list->room : 64;
        void *item = realloc(list->item, (size_t)room * sizeof(*list->item));
        if (item == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory for %lld layouts", (long long)room);
        list->item = item;
        list->room = room;
    }
    list->item[list->count++] = *layout;
    return TESS_OK;
}

enum tess_status tess__plan_reject(struct tess__plan *plan, bool shape, const char *family,
                                   const char *why)
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
    rejected->shape = shape;
    snprintf(rejected->family, sizeof(rejected->family), "%s", family);
    snprintf(rejected->why, sizeof(rejected->why), "%s", why);
    return TESS_OK;
}

static int space_faster(const void *a, const void *b)
{
    const struct tess__plan_layout *one = a, *other = b;
    if ((one->measured_s > 0) != (other->measured_s > 0))
        return one->measured_s > 0 ? -1 : 1;
    if (one->measured_s != other->measured_s)
        return one->measured_s < other->measured_s ? -1 : 1;
    if (one->predicted != other->predicted)
        return one->predicted ? -1 : 1;
    if (one->step_s != other->step_s)
        return one->step_s < other->step_s ? -1 : 1;
    if (one->device_bytes != other->device_bytes)
        return one->device_bytes < other->device_bytes ? -1 : 1;
    return strcmp(one->strategy, other->strategy);
}

bool tess__plan_same_product(const struct tess__plan_layout *a, const struct tess__plan_layout *b)
{
    return strcmp(a->strategy, b->strategy) == 0 &&
           memcmp(a->count, b->count, sizeof(a->count)) == 0;
}

bool tess__plan_is_twin(const struct tess__plan_layout *a, const struct tess__plan_layout *b)
{
    return tess__plan_same_product(a, b) && a->accumulate == b->accumulate &&
           a->schedule == b->schedule && a->chunks == b->chunks && a->sequence == b->sequence &&
           a->precision == b->precision && strcmp(a->extra, b->extra) == 0 &&
           memcmp(&a->memory, &b->memory, sizeof(a->memory)) == 0;
}

int64_t tess__plan_length(const struct tess__plan_layout *layout)
{
    const int64_t chunks = layout->chunks > 1 ? layout->chunks : 1;
    const int64_t full = 6 * layout->count[TESS_AXIS_STAGE] * chunks;
    return layout->accumulate < full ? layout->accumulate : full;
}

bool tess__plan_has_family(const struct tess__plan *plan, const struct tess__plan_layout *shape)
{
    for (int64_t i = 0; i < plan->layouts.count; i++) {
        const struct tess__plan_layout *known = &plan->layouts.item[i];
        if (strcmp(known->strategy, shape->strategy) == 0 && known->sequence == shape->sequence &&
            known->count[TESS_AXIS_DATA] == shape->count[TESS_AXIS_DATA])
            return true;
    }
    return false;
}

void tess__plan_sort(struct tess__plan_list *list)
{
    if (list->count > 0) /* an array without elements is NULL, which qsort may not be given */
        qsort(list->item, (size_t)list->count, sizeof(*list->item), space_faster);
}

/* ---- strategies ------------------------------------------------------------------------------ */

/* Strategy number `index` of an axis; NULL beyond the last. */
static const struct tess_strategy_ops *space_strategy(enum tess_axis axis, int index)
{
    int count = 0;
    const char *const *name = tess_registry_names(TESS_REGISTRY_STRATEGY, &count);
    for (int i = 0; i < count; i++) {
        const struct tess_strategy_ops *ops = NULL;
        if (tess_registry_summary(TESS_REGISTRY_STRATEGY, name[i])[0] != '\0' &&
            tess_registry_get_strategy(name[i], &ops) == TESS_OK && ops->axis == axis &&
            index-- == 0)
            return ops;
    }
    return NULL;
}

/* Its row of an option, NULL where it has none of that name. */
static const struct tess_option *space_option(const struct tess_strategy_ops *ops, const char *name)
{
    for (const struct tess_option *row = ops->options; row != NULL && row->name != NULL; row++)
        if (strcmp(row->name, name) == 0)
            return row;
    return NULL;
}

/* ---- schedules ------------------------------------------------------------------------------- */

struct space_schedules {
    const char *name[SPACE_SCHEDULES_MAX];
    int count;
};

/* The words of a choice live as long as the program: each list is cut once. */
static const char *space_word(const char *word, size_t length)
{
    static char kept[SPACE_SCHEDULES_MAX][24];
    for (int i = 0; i < SPACE_SCHEDULES_MAX && length < sizeof(kept[0]); i++) {
        if (strlen(kept[i]) == length && strncmp(kept[i], word, length) == 0)
            return kept[i];
        if (kept[i][0] == '\0') {
            memcpy(kept[i], word, length);
            return kept[i];
        }
    }
    return NULL;
}

static struct space_schedules space_schedules(const struct tess_strategy_ops *stage)
{
    struct space_schedules schedules = {.count = 0};
    const struct tess_option *row = space_option(stage, "schedule");
    const char *at = row != NULL && row->type == TESS_OPTION_CHOICE ? row->choices : "";
    while (*at != '\0' && schedules.count < SPACE_SCHEDULES_MAX) {
        const size_t length = strcspn(at, "|");
        schedules.name[schedules.count] = space_word(at, length);
        schedules.count += schedules.name[schedules.count] != NULL;
        at += length + (at[length] == '|');
    }
    if (schedules.count == 0)
        schedules.count = 1; /* as it is */
    return schedules;
}

static bool space_is_default(const struct tess_strategy_ops *stage, const char *schedule)
{
    const struct tess_option *row = space_option(stage, "schedule");
    return schedule == NULL || strcmp(row->fallback, schedule) == 0;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static enum tess_status space_add_stages(const struct tess_strategy_ops *stage,
                                         struct tess__plan_layout *shape,
                                         struct tess__plan_list *shapes)
{
    static const int64_t chunks[SPACE_CHUNKS_MAX] = {1, 2, 4, 8};
    shape->plain = !shape->sequence;
    if (shape->count[TESS_AXIS_STAGE] == 1)
        return tess__plan_add(shapes, shape);
    const struct space_schedules schedules = space_schedules(stage);
    const bool has_chunks = space_option(stage, "chunks") != NULL;
    for (int i = 0; i < schedules.count; i++)
        for (int c = 0; c < (has_chunks ? SPACE_CHUNKS_MAX : 1); c++) {
            shape->schedule = schedules.name[i];
            shape->chunks = has_chunks ? chunks[c] : 0;
            shape->plain = !shape->sequence && c == 0 && space_is_default(stage, shape->schedule);
            TESS_TRY(tess__plan_add(shapes, shape));
        }
    return TESS_OK;
}

/* of: the strategy of each axis; NULL: none. */
static enum tess_status space_add_product(const struct tess_strategy_ops *const of[TESS_AXIS_COUNT],
                                          const int32_t count[TESS_AXIS_COUNT],
                                          struct tess__plan_list *shapes)
{
    static const enum tess_axis other[] = {TESS_AXIS_TENSOR, TESS_AXIS_STAGE};
    const struct tess_strategy_ops *data = of[TESS_AXIS_DATA];
    struct tess__plan_layout shape = {.recompute = "none"};
    memcpy(shape.count, count, sizeof(shape.count));
    size_t used = (size_t)snprintf(shape.strategy, sizeof(shape.strategy), "%s",
                                   data != NULL ? data->name : "");
    for (int i = 0; i < 2; i++)
        if (count[other[i]] > 1)
            used += (size_t)snprintf(shape.strategy + used, sizeof(shape.strategy) - used, "%s%s",
                                     used > 0 ? "+" : "", of[other[i]]->name);
    for (int sequence = 0; sequence <= (count[TESS_AXIS_TENSOR] > 1); sequence++) {
        shape.sequence = sequence != 0;
        TESS_TRY(space_add_stages(of[TESS_AXIS_STAGE], &shape, shapes));
    }
    return TESS_OK;
}

enum tess_status tess__plan_shapes(const int32_t count[TESS_AXIS_COUNT],
                                   struct tess__plan_list *shapes)
{
    const bool alone = count[TESS_AXIS_DATA] == 1;
    const bool product = count[TESS_AXIS_TENSOR] > 1 || count[TESS_AXIS_STAGE] > 1;
    const struct tess_strategy_ops *of[TESS_AXIS_COUNT] = {
        [TESS_AXIS_TENSOR] = space_strategy(TESS_AXIS_TENSOR, 0),
        [TESS_AXIS_STAGE] = space_strategy(TESS_AXIS_STAGE, 0)};
    if ((count[TESS_AXIS_TENSOR] > 1 && of[TESS_AXIS_TENSOR] == NULL) ||
        (count[TESS_AXIS_STAGE] > 1 && of[TESS_AXIS_STAGE] == NULL))
        return TESS_OK;
    if (alone && product)
        return space_add_product(of, count, shapes);
    for (int i = 0; (of[TESS_AXIS_DATA] = space_strategy(TESS_AXIS_DATA, i)) != NULL; i++)
        if (of[TESS_AXIS_DATA]->one_rank == alone)
            TESS_TRY(space_add_product(of, count, shapes));
    return TESS_OK;
}

int tess__plan_accumulations(const struct tess__plan *plan, const struct tess__plan_layout *shape,
                             int64_t *accumulate, int room)
{
    const int64_t ranks = shape->count[TESS_AXIS_DATA], each = plan->batch_size / ranks;
    int count = 0;
    if (plan->batch_size % ranks != 0)
        return 0;
    for (int64_t n = 1; n <= each && count < room; n++) {
        const int64_t grid = plan->grid > 0 ? plan->grid : ranks * n;
        if (each % n == 0 && plan->batch_size % grid == 0 &&
            (tess__config_grid_fits(TESS_LEAVES_RANK_FIRST, ranks, n, grid) ||
             tess__config_grid_fits(TESS_LEAVES_MICRO_FIRST, ranks, n, grid)))
            accumulate[count++] = n;
    }
    return count;
}

/*
 * Predicted, gathered parameters that are kept until backward save 3 % of a step over a network
 * (Llama of 8 B on 64 H100), and larger buckets 0.1 %; other values of these options, and other
 * options, none. Pipelines keep what is gathered by default.
 */
bool tess__plan_variant(const struct tess__plan_layout *layout, char extra[64])
{
    static const char *const known[][2] = {{"reshard-after-forward", "off"}, {"bucket-mib", "100"}};
    const struct tess_strategy_ops *data;
    for (int i = 0;
         layout->count[TESS_AXIS_STAGE] == 1 && (data = space_strategy(TESS_AXIS_DATA, i)) != NULL;
         i++)
        for (size_t k = 0; k < sizeof(known) / sizeof(*known); k++)
            if (tess__product_has(layout->strategy, data->name) &&
                space_option(data, known[k][0]) != NULL) {
                snprintf(extra, 64, "%s.%s=%s", data->name, known[k][0], known[k][1]);
                return true;
            }
    return false;
}
