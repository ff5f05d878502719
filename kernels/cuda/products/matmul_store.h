/*
 * Measured choices of algorithms, in a text file: a choice is a line of numbers under a key.
 * Independent of cuBLASLt.
 *
 *     tessera-matmul 2
 *     <key> TAB <the 8 words of the algorithm, nanoseconds, check sum, in hexadecimal>
 *     ...
 *     end <number of lines between>
 *
 * The last line shows that the file is complete; the check sum is over the line before it, because
 * nothing later distinguishes a damaged algorithm from a sound one. Files are replaced as a whole,
 * never edited.
 */
#ifndef KERNELS_CUDA_PRODUCTS_MATMUL_STORE_H
#define KERNELS_CUDA_PRODUCTS_MATMUL_STORE_H

#include "tessera/status.h"

#include <stdbool.h>
#include <stdint.h>

#define MATMUL_KEY_MAX  256 /* with the NUL */
#define MATMUL_FILE_MAX (4 << 20)

struct matmul_choice {
    uint64_t algorithm[8]; /* cublasLtMatmulAlgo_t as it is: "can be trivially serialized and later
                              restored for use with the same version" (cublasLt.h). Its attributes
                              alone would not be all of it. Of attention: its choice and zeros */
    int64_t nanoseconds;   /* what it took when it was measured: 0 .. INT32_MAX */
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
 * One process, or thread, at a time between lock and unlock: a rank measures under the lock, so
 * that the ranks that follow find its choice. Locks "<path>.lock". Returns -1, with a warning,
 * where that cannot be locked: the caller continues without.
 */
int tess__matmul_store_lock(const char *path);
void tess__matmul_store_unlock(int lock);

#endif
