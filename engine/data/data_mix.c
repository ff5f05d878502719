/*
 * A mix of sets: their samples one set after the other, and which of them stands at a place of an
 * epoch by the shares. The samples of all epochs are numbered on, so that a set whose share is
 * small goes on where it stopped, and one whose share is large is drawn in a new order when all of
 * it has been seen.
 *
 * Number g goes to set 0 where its quota, floor(g share), grows by it, and is number floor(g share)
 * of that set; else it is number g - floor(g share) of the sets after it, which share likewise. So
 * the sets are evenly interleaved, and any number is found without those before it.
 */
#include "data/data_tokens.h"

#include "base/hash.h"
#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

/* Which set number g is of; *number_inout: g, then its number among those of the set. */
static int32_t mix_set(const struct tess_mix *mix, int64_t *number_inout)
{
    uint64_t g = (uint64_t)*number_inout;
    for (int32_t k = 0; k < mix->count - 1; k++) {
        const uint64_t before = (uint64_t)((unsigned __int128)g * mix->share[k] >> 32);
        const uint64_t after = (uint64_t)((unsigned __int128)(g + 1) * mix->share[k] >> 32);
        *number_inout = (int64_t)before;
        if (after > before)
            return k;
        g -= before;
    }
    *number_inout = (int64_t)g;
    return mix->count - 1;
}

int64_t tess_dataset_sample(const struct tess_dataset *dataset, uint64_t seed, int64_t epoch,
                            int64_t position, bool shuffle)
{
    const struct tess_mix *mix = dataset->mix;
    const int64_t all = dataset->train.count;
    const int64_t sample = tess_sample_at(seed, epoch, all, position, shuffle);
    if (mix == NULL || sample < 0)
        return sample;
    int64_t number = epoch * all + sample;
    const int32_t k = mix_set(mix, &number);
    const int64_t count = mix->train[k].count;
    return mix->first[k] + tess_sample_at(tess_hash_mix(seed + (uint64_t)k + 1), number / count,
                                          count, number % count, shuffle);
}

static enum tess_status mix_check(const struct tess_dataset *first, const struct tess_dataset *set)
{
    if (!set->tokens || !first->tokens)
        TESS_FAIL(TESS_ERR_USAGE, "--data.mix is of text and tokens");
    if (!tess__token_kind_same(first->train.stream->kind, set->train.stream->kind))
        TESS_FAIL(TESS_ERR_DATA, "--data.mix: %s holds %s, but %s holds %s: expected the same kind",
                  set->train.stream->piece[0].name, set->train.stream->kind->name,
                  first->train.stream->piece[0].name, first->train.stream->kind->name);
    return TESS_OK;
}

/* Sizes of the whole, from those of the sets. */
static void mix_join(struct tess_dataset *dataset, struct tess_mix *mix, const double *weight)
{
    for (int32_t k = 0; k < mix->count; k++) {
        const struct tess_dataset *set = mix->set[k];
        double left = 0;
        for (int32_t j = k; j < mix->count; j++)
            left += weight[j];
        mix->share[k] = (uint64_t)(weight[k] / left * 0x1p32 + 0.5);
        mix->first[k] = dataset->train.count;
        mix->train[k] = set->train;
        mix->test[k] = set->test;
        dataset->train.count += set->train.count;
        dataset->test.count += set->test.count;
        dataset->masked = dataset->masked || set->masked;
        dataset->mapped_bytes += set->mapped_bytes;
    }
    dataset->packs = mix->set[0]->packs;
    dataset->train.part = mix->train;
    dataset->test.part = mix->test;
    dataset->mix = mix;
}

enum tess_status tess_dataset_mix(struct tess_dataset **set, const double *weight, int32_t count,
                                  struct tess_dataset **dataset_out)
{
    struct tess_dataset *dataset = calloc(1, sizeof(*dataset));
    struct tess_mix *mix = calloc(1, sizeof(*mix));
    enum tess_status status = TESS_OK;
    if (mix != NULL)
        *mix = (struct tess_mix){.count = count,
                                 .set = malloc((size_t)count * sizeof(*set)),
                                 .train = calloc((size_t)count, sizeof(*mix->train)),
                                 .test = calloc((size_t)count, sizeof(*mix->test))};
    if (dataset == NULL || mix == NULL || !mix->set || !mix->train || !mix->test)
        status = tess_fail(TESS_ERR_MEMORY, "cannot allocate a data set's description");
    for (int32_t k = 0; k < count && status == TESS_OK; k++)
        status = mix_check(set[0], set[k]);
    if (status != TESS_OK) {
        for (int32_t k = 0; k < count; k++)
            tess_dataset_close(set[k]);
        if (mix != NULL)
            mix->count = 0;
        tess__mix_close(mix);
        free(dataset);
        return status;
    }
    memcpy(mix->set, set, (size_t)count * sizeof(*set));
    *dataset = (struct tess_dataset){.tokens = true,
                                     .row = set[0]->row,
                                     .labels = set[0]->labels,
                                     .class_count = set[0]->class_count,
                                     .deviation = 1};
    mix_join(dataset, mix, weight);
    *dataset_out = dataset;
    return TESS_OK;
}
