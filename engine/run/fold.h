/*
 * Tables of many ranks have a row for each group of equal ones. Up to TESS__FOLD_NONE ranks are
 * shown one by one, and up to TESS__FOLD_ROWS groups.
 */
#ifndef TESSERA_RUN_FOLD_H
#define TESSERA_RUN_FOLD_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stdint.h>

#define TESS__FOLD_NONE       16
#define TESS__FOLD_ROWS       10
#define TESS__FOLD_NAME_BYTES 32

struct tess__fold {
    int32_t rank_count, count; /* groups */
    int32_t *of;               /* [ranks] group of a rank; in the order of their lowest ranks */
    struct tess__fold_group {
        int32_t first, last, ranks;
    } * group; /* [count] */
};

/* `equal` compares two ranks: as columns of the table show them. To be closed in any case. */
enum tess_status tess__fold_open(struct tess__fold *fold, int32_t rank_count,
                                 bool (*equal)(const void *context, int32_t a, int32_t b),
                                 const void *context);
void tess__fold_close(struct tess__fold *fold);

/* "7", "0-511", "0 +63": rank 0 and 63 others, not one after the other. */
const char *tess__fold_name(const struct tess__fold *fold, int32_t group,
                            char text[TESS__FOLD_NAME_BYTES]);

#endif
