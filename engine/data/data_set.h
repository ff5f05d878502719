/* For files that fill a data set (data_idx.c, data_synthetic.c): its memory, before it is returned.
 */
#ifndef TESSERA_DATA_DATA_SET_H
#define TESSERA_DATA_DATA_SET_H

#include "data/data.h"

/* Greatest size of a set in memory: far above every set of this kind, far below what would make a
 * machine swap because of one wrong byte in a header. */
#define TESS__DATASET_BYTES_MAX ((uint64_t)4 << 30)

/* a * b, or more than TESS__DATASET_BYTES_MAX when that is exceeded. */
uint64_t tess__dataset_product(uint64_t a, uint64_t b);

/* Bytes of both splits in memory, or more than TESS__DATASET_BYTES_MAX. */
uint64_t tess__dataset_bytes(struct tess_shape row, uint64_t train_count, uint64_t test_count);

/* A set with room for its data, zeroed; sizes were checked with tess__dataset_bytes. */
enum tess_status tess__dataset_new(struct tess_shape row, int32_t class_count, int64_t train_count,
                                   int64_t test_count, struct tess_dataset **dataset_out);

/* All is filled in: compute mean and deviation of the training pixels, from integer sums, and make
 * the pages read-only. */
void tess__dataset_seal(struct tess_dataset *dataset);

#endif
