/*
 * A case of causal attention, for the tests of backends: forward, backward, one position at a time
 * (decode), heads that share keys, q, k and v inside one array or with gaps; and each sequence
 * alone against all at once, and documents against sequences of their lengths. What is expected is
 * the definition in double; how far off a backend may be is derived in attention_case.c.
 */
#ifndef TESTS_KERNELS_ATTENTION_CASE_H
#define TESTS_KERNELS_ATTENTION_CASE_H

#include "device.h"

#include <stdbool.h>

struct attention_way {
    enum tess_dtype dtype;
    int leaves, leaf_rows, length, heads, kv_heads, head_size;
    bool packed;       /* q, k, v in one array */
    int q_gap, kv_gap; /* elements between one position's heads and the next; not packed */
    int window;        /* positions that one sees at most; 0: all */
    float dropout;     /* of the probabilities */
    double spread;     /* q is uniform in [-spread, spread) */
    bool by_heads;     /* the gradients of heads that share keys may be rounded, then added */
    uint64_t seed;
};

/* Fails inside a cmocka case. The arrays of `device` are given back. */
void attention_run(struct device *device, const struct attention_way *way);

#endif
