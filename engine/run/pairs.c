/* A table by pairs of ranks (pairs.h): a hash table with open addressing, never more than half
 * full. */
#include "run/pairs.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS_FIRST 64

void tess__pairs_close(struct tess__pairs *pairs)
{
    free(pairs->item);
    free(pairs->slot);
    free(pairs->order);
    free(pairs->scratch);
    *pairs = (struct tess__pairs){.item_bytes = pairs->item_bytes};
}

/* The slot of a pair: its own, or the free one where it belongs. */
static int32_t *pairs_slot(const struct tess__pairs *pairs, int32_t from, int32_t to)
{
    const uint32_t mask = 2 * (uint32_t)pairs->room - 1;
    const uint64_t key = (uint64_t)(uint32_t)from << 32 | (uint32_t)to;
    uint32_t at = (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & mask;
    for (; pairs->slot[at] != 0; at = (at + 1) & mask) {
        const struct tess__pair *pair = tess__pairs_at(pairs, pairs->slot[at] - 1);
        if (pair->from == from && pair->to == to)
            break;
    }
    return &pairs->slot[at];
}

void *tess__pairs_find(const struct tess__pairs *pairs, int32_t from, int32_t to)
{
    const int32_t number = pairs->room > 0 ? *pairs_slot(pairs, from, to) : 0;
    return number > 0 ? tess__pairs_at(pairs, number - 1) : NULL;
}

/* All of it twice as large, or as it was. */
static bool pairs_grow(struct tess__pairs *pairs)
{
    const size_t room = pairs->room > 0 ? 2 * (size_t)pairs->room : PAIRS_FIRST;
    struct tess__pairs more = {.item_bytes = pairs->item_bytes,
                               .count = pairs->count,
                               .room = (int32_t)room,
                               .item = calloc(room, pairs->item_bytes),
                               .slot = calloc(2 * room, sizeof(*more.slot)),
                               .order = calloc(room, sizeof(*more.order)),
                               .scratch = calloc(2 * room, sizeof(*more.scratch))};
    if (more.item == NULL || more.slot == NULL || more.order == NULL || more.scratch == NULL ||
        room > INT32_MAX / 4) {
        tess__pairs_close(&more);
        return false;
    }
    if (pairs->count > 0) {
        memcpy(more.item, pairs->item, (size_t)pairs->count * pairs->item_bytes);
        memcpy(more.order, pairs->order, (size_t)pairs->count * sizeof(*pairs->order));
    }
    for (int32_t i = 0; i < more.count; i++) {
        const struct tess__pair *pair = tess__pairs_at(&more, i);
        *pairs_slot(&more, pair->from, pair->to) = i + 1;
    }
    tess__pairs_close(pairs);
    *pairs = more;
    return true;
}

void *tess__pairs_get(struct tess__pairs *pairs, int32_t from, int32_t to)
{
    struct tess__pair *pair = tess__pairs_find(pairs, from, to);
    if (pair != NULL)
        return pair;
    if (pairs->count == pairs->room && !pairs_grow(pairs))
        return NULL;
    *pairs_slot(pairs, from, to) = ++pairs->count;
    pair = tess__pairs_at(pairs, pairs->count - 1);
    pair->from = from;
    pair->to = to;
    return pair;
}

static int pairs_compare(const void *a, const void *b, void *context)
{
    const struct tess__pair *left = tess__pairs_at(context, *(const int32_t *)a);
    const struct tess__pair *right = tess__pairs_at(context, *(const int32_t *)b);
    if (left->from != right->from)
        return left->from < right->from ? -1 : 1;
    return (left->to > right->to) - (left->to < right->to);
}

void tess__pairs_sort(struct tess__pairs *pairs)
{
    for (int32_t i = 0; i < pairs->count; i++)
        pairs->order[i] = i;
    if (pairs->count > 0)
        qsort_r(pairs->order, (size_t)pairs->count, sizeof(*pairs->order), pairs_compare, pairs);
}
