/* Launchers of words.cu. */
#ifndef TESTS_KERNELS_EMULATE_WORDS_H
#define TESTS_KERNELS_EMULATE_WORDS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What words_run_fail() does wrong. */
enum words_failure {
    WORDS_NONE,
    WORDS_BARRIERS,
    WORDS_LANES,
    WORDS_MASK,
    WORDS_SHARED,
    WORDS_ALIGNMENT
};

void words_run_shuffle(int32_t *out);                                    /* [6, 32] */
void words_run_sum(int threads, const float *x, float *sum, float *max); /* [threads] */
void words_run_product(int half, const void *a, const void *b, float *c, int wait, int sync);
void words_run_neighbour(int32_t *out, int forward, int sync); /* [2, 96] */
void words_run_fail(enum words_failure failure);
/* A kernel with so much static memory and `shared_bytes` of dynamic; returns what was counted of
 * static memory. */
#define WORDS_STATIC 32768
size_t words_run_static(size_t shared_bytes);

#ifdef __cplusplus
}
#endif
#endif
