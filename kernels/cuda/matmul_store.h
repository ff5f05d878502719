/*
 * Measured choices of algorithms, in a text file. Nothing here knows cuBLASLt: a choice is a line
 * of numbers under a key.
 *
 *     tessera-matmul 1
 *     <key> TAB <numbers, one space between>
 *     ...
 *     end <number of lines between>
 *
 * The last line tells a whole file from a cut one. Files are replaced as a whole, never edited.
 */
#ifndef KERNELS_CUDA_MATMUL_STORE_H
#define KERNELS_CUDA_MATMUL_STORE_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stdint.h>

#define MATMUL_KEY_MAX  256 /* with the NUL */
#define MATMUL_FILE_MAX (4 << 20)

/* In the order of the file. Names as in cublasLtMatmulAlgoConfigAttributes_t. */
enum matmul_field {
    MATMUL_ID,
    MATMUL_TILE,
    MATMUL_STAGES,
    MATMUL_SPLIT_K,
    MATMUL_REDUCTION,
    MATMUL_SWIZZLE,
    MATMUL_CUSTOM,
    MATMUL_INNER_SHAPE,
    MATMUL_CLUSTER_SHAPE,
    MATMUL_NANOSECONDS, /* what it took when it was measured */
    MATMUL_FIELD_COUNT
};

struct matmul_choice {
    int64_t field[MATMUL_FIELD_COUNT]; /* 0 .. INT32_MAX */
};

/* A key of one line: what is not printable becomes '_'. */
void tess__matmul_key_clean(char *key);

/*
 * The choice under `key`. False where there is no file or no such line, and, with a warning, where
 * the file is damaged: then nothing of it is used.
 */
bool tess__matmul_store_find(const char *path, const char *key, struct matmul_choice *choice_out);
/* Puts the choice there in place of an older one; other lines stay, those of a damaged file do
 * not. TESS_ERR_IO with a message. */
enum tess_status tess__matmul_store_put(const char *path, const char *key,
                                        const struct matmul_choice *choice);

/*
 * One process, or thread, at a time between lock and unlock: who measures holds it, so that others
 * find the choice when it is their turn. Locks "<path>.lock". Returns -1, with a warning, where
 * that cannot be locked: then go on without.
 */
int tess__matmul_store_lock(const char *path);
void tess__matmul_store_unlock(int lock);

#endif
