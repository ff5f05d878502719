/*
 * Data sets in memory: the mapping that holds pixels and labels, and the statistics over all of
 * them. Reading files is in data_idx.c and data_tokens.c, choosing and normalising samples in
 * data_sample.c, made-up data in data_synthetic.c.
 *
 * A set of images is one mapping, of huge pages where the system gives them: made one by one, small
 * ones take as long as reading them all. Ranks forked later use the same pages, which are not
 * written any more:
 *
 *     train images | train labels | test images | test labels      each from a multiple of 64 bytes
 */
#include "data/data_tokens.h"

#include "base/cgroup.h"
#include "base/pages.h"
#include "tessera/check.h"
#include "tessera/memory.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

uint64_t tess__dataset_product(uint64_t a, uint64_t b)
{
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

uint64_t tess__dataset_bytes_max(void)
{
    static _Atomic uint64_t known; /* 0: not read; each dimension of a header is compared */
    char group[64];
    if (atomic_load(&known) == 0)
        atomic_store(&known, (uint64_t)tess_memory(group));
    return atomic_load(&known);
}

double tess__dataset_gib_max(void)
{
    return (double)tess__dataset_bytes_max() / 0x1p30;
}

uint64_t tess__dataset_bytes(struct tess_shape row, uint64_t train_count, uint64_t test_count)
{
    uint64_t row_bytes = 1, total = 0;
    for (int32_t d = 0; d < row.rank; d++)
        row_bytes = tess__dataset_product(row_bytes, (uint64_t)row.dim[d]);
    const uint64_t label = sizeof(uint16_t);
    const uint64_t part[4] = {
        tess__dataset_product(row_bytes, train_count), tess__dataset_product(label, train_count),
        tess__dataset_product(row_bytes, test_count), tess__dataset_product(label, test_count)};
    for (int32_t i = 0; i < 4; i++) {
        if (part[i] > UINT64_MAX / 8)
            return UINT64_MAX;
        total += tess_round_up(part[i], 64);
    }
    return total;
}

enum tess_status tess__dataset_new(struct tess_shape row, int32_t class_count, int64_t train_count,
                                   int64_t test_count, struct tess_dataset **dataset_out)
{
    const uint64_t row_bytes = (uint64_t)tess_shape_count(&row);
    const size_t bytes =
        (size_t)tess__dataset_bytes(row, (uint64_t)train_count, (uint64_t)test_count);
    struct tess_dataset *dataset = calloc(1, sizeof(*dataset));
    if (dataset == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "cannot allocate a data set's description");
    uint8_t *memory = tess_pages_take(bytes);
    if (memory == NULL) {
        free(dataset);
        TESS_FAIL(TESS_ERR_MEMORY, "cannot map %zu bytes of memory for the data set: %s", bytes,
                  strerror(errno));
    }
    dataset->row = row;
    dataset->class_count = class_count;
    dataset->labels = 1;
    dataset->mapped_bytes = bytes;
    dataset->train.count = train_count;
    dataset->train.image = memory;
    memory += tess_round_up(row_bytes * (uint64_t)train_count, 64);
    dataset->train.label = (uint16_t *)(void *)memory;
    memory += tess_round_up(sizeof(uint16_t) * (uint64_t)train_count, 64);
    dataset->test.count = test_count;
    dataset->test.image = memory;
    memory += tess_round_up(row_bytes * (uint64_t)test_count, 64);
    dataset->test.label = (uint16_t *)(void *)memory;
    *dataset_out = dataset;
    return TESS_OK;
}

void tess__mix_close(struct tess_mix *mix)
{
    if (mix == NULL)
        return;
    for (int32_t k = 0; k < mix->count; k++)
        tess_dataset_close(mix->set[k]);
    free(mix->set);
    free(mix->train);
    free(mix->test);
    free(mix);
}

void tess_dataset_close(struct tess_dataset *dataset)
{
    if (dataset == NULL)
        return;
    if (dataset->mix != NULL) {
        tess__mix_close(dataset->mix);
    } else if (dataset->tokens) {
        if (dataset->test.stream != dataset->train.stream)
            tess__stream_close(dataset->test.stream);
        tess__stream_close(dataset->train.stream);
    } else {
        tess_pages_give(dataset->train.image, dataset->mapped_bytes);
    }
    free(dataset->packed[0]);
    free(dataset->packed[1]);
    free(dataset);
}

/*
 * In 32 bits per block of 4096 pixels, which holds 4096 * 255^2, so that the loop can be
 * vectorised.
 */
void tess__dataset_seal(struct tess_dataset *dataset)
{
    const uint8_t *pixel = dataset->train.image;
    const int64_t count = tess_shape_count(&dataset->row) * dataset->train.count;
    uint64_t sum = 0, squares = 0;
    for (int64_t begin = 0; begin < count; begin += 4096) {
        const int64_t end = begin + 4096 < count ? begin + 4096 : count;
        uint32_t block_sum = 0, block_squares = 0;
        for (int64_t i = begin; i < end; i++) {
            const uint32_t p = pixel[i];
            block_sum += p;
            block_squares += p * p;
        }
        sum += block_sum;
        squares += block_squares;
    }
    /* Below 2^37 pixels both sums are below 2^53, and thus exact as doubles. */
    const double mean = (double)sum / (double)count;
    const double variance = (double)squares / (double)count - mean * mean;
    dataset->mean = (float)(mean / 255);
    /* A set of one colour has nothing to scale; 1 keeps it finite. */
    dataset->deviation = variance > 0 ? (float)(sqrt(variance) / 255) : 1;
    mprotect(dataset->train.image, dataset->mapped_bytes, PROT_READ);
}
