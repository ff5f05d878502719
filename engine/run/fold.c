/* Groups of equal ranks (fold.h). */
#include "run/fold.h"

#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>

/* The group of a rank among those so far; their number: none. The latest ones are the likeliest. */
static int32_t fold_find(const struct tess__fold *fold, int32_t rank,
                         bool (*equal)(const void *context, int32_t a, int32_t b),
                         const void *context)
{
    for (int32_t g = fold->count - 1; g >= 0 && fold->rank_count > TESS__FOLD_NONE; g--)
        if (equal(context, fold->group[g].first, rank))
            return g;
    return fold->count;
}

enum tess_status tess__fold_open(struct tess__fold *fold, int32_t rank_count,
                                 bool (*equal)(const void *context, int32_t a, int32_t b),
                                 const void *context)
{
    const size_t ranks = (size_t)rank_count;
    *fold = (struct tess__fold){.rank_count = rank_count};
    fold->of = calloc(ranks, sizeof(*fold->of));
    fold->group = calloc(ranks, sizeof(*fold->group));
    if (fold->of == NULL || fold->group == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for a table of %d ranks", rank_count);
    for (int32_t r = 0; r < rank_count; r++) {
        const int32_t g = fold->of[r] = fold_find(fold, r, equal, context);
        if (g == fold->count)
            fold->group[fold->count++].first = r;
        fold->group[g].last = r;
        fold->group[g].ranks++;
    }
    return TESS_OK;
}

void tess__fold_close(struct tess__fold *fold)
{
    free(fold->of);
    free(fold->group);
    *fold = (struct tess__fold){.of = NULL};
}

const char *tess__fold_name(const struct tess__fold *fold, int32_t group,
                            char text[TESS__FOLD_NAME_BYTES])
{
    const struct tess__fold_group *of = &fold->group[group];
    if (of->ranks == 1)
        snprintf(text, TESS__FOLD_NAME_BYTES, "%d", of->first);
    else if (of->last - of->first + 1 == of->ranks)
        snprintf(text, TESS__FOLD_NAME_BYTES, "%d-%d", of->first, of->last);
    else
        snprintf(text, TESS__FOLD_NAME_BYTES, "%d +%d", of->first, of->ranks - 1);
    return text;
}
