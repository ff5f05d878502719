/* Buckets: runs of whole parameters that are reduced as a piece while backward goes on. Pure. */
#ifndef TESS_BUCKET_H
#define TESS_BUCKET_H

#include "tessera/strategy.h"

/* Sizes in MiB of f32 gradients; the fields of a strategy's options. */
struct tess_bucket_options {
    double first_mib, mib;
};

/*
 * Fill buckets from the last parameter to the first, the order in which backward makes gradients. A
 * bucket is closed by the parameter that brings it to its limit, so it is launched no later than
 * that one is ready; the first bucket has its own, smaller limit, so that communication starts
 * early (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3).
 *
 *   parameters   | a 300 | b 500 | c 200 | d 400 |      limits: 100 for the first, then 600
 *   filled as    |-- 2 --|------ 1 ------|-- 0 --|      d reaches 100, b reaches 600, a is left
 *
 * bytes [count]; first_out [count] gets the first parameter of each bucket, in flat order (the
 * bucket filled last comes first). Returns the number of buckets.
 */
int32_t tess__bucket_fill(const int64_t *bytes, int32_t count, double first_limit, double limit,
                          int32_t *first_out);

/* Cut the plan's parameters into segments that way. */
enum tess_status tess__bucket_plan(struct tess_plan *plan,
                                   const struct tess_bucket_options *options);

#endif
