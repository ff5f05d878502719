/* One rank's plan of one strategy over a made-up list of parameters; no model, no communicator. */
#ifndef TESTS_STRATEGIES_PLAN_FIXTURE_H
#define TESTS_STRATEGIES_PLAN_FIXTURE_H

#include "state/declare.h"
#include "tessera/strategy.h"

struct tess_options;

/* Parameters in order: elements and unit (ascending) of each. `tied`: the last one has the values
 * of the first; each is alone in its unit, and as large. */
struct fixture_params {
    int32_t unit_count, count;
    int64_t elements[64];
    int32_t unit[64];
    bool stacked[64]; /* on the one before */
    bool tied;
};

struct fixture {
    struct tess_declare declare;
    struct tess_plan plan;
    struct tess_strategy strategy;
    struct tess_memory *memory;
    struct tess_kernel *kernel; /* once committed */
    struct tess_options *options;
    void *option_values;
    void *arena;
    float *grad; /* level 0 of the fold, once committed */
};

struct fixture_run {
    const char *strategy;
    const char *option; /* "--ddp.overlap=off --ddp.bucket-mib=1", or NULL */
    int32_t rank, rank_count, accumulate;
    enum tess_dtype dtype, reduce_dtype; /* 0: f32 */
    bool pipelined;
    const int32_t *unit_chunk; /* NULL: one chunk */
};

/* Check, plan, lay out and reserve, as the engine does; fails the test when any of it fails. */
void fixture_open(struct fixture *fixture, const struct fixture_params *params,
                  const struct fixture_run *run);
/* Memory behind the plan: what the strategy reserved, parameters and gradients by their extents. */
void fixture_commit(struct fixture *fixture);
/* Begin micro-batch `micro`: where gradients are FULL, segments get their level's place. */
void fixture_enter_micro(struct fixture *fixture, int32_t micro);
void fixture_close(struct fixture *fixture);

#endif
