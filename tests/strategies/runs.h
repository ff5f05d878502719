/* Short training runs of one configuration on several ranks, for comparing layouts. */
#ifndef TESTS_STRATEGIES_RUNS_H
#define TESTS_STRATEGIES_RUNS_H

#include "tessera/memory.h"
#include "tessera/strategy.h"

struct tess_config;

#define RUN_RANKS_MAX  8
#define RUN_PARAMS_MAX 80

/* A model of tokens trains on made-up text, any other one on made-up images. */
struct run {
    const char *options; /* as on a command line, words joined by one space */
    const char *strategy, *kernel;
    int32_t rank_count;
    int32_t steps;
    bool evaluate;
    enum tess_rank_mode mode;
    bool tcp;         /* ranks that are processes talk by sockets */
    const char *save; /* file for the weights after the last step; NULL: none */
    void (*alter)(struct tess_config *config); /* before the ranks start; NULL: as it is */
};

struct run_outcome {
    uint64_t hash;
    double loss;                     /* of the last step's batch */
    double accuracy;                 /* likewise */
    double grad_norm;                /* of the last step, of a rank that updates something; -1
                                        without clipping */
    double zero_share;               /* likewise; of the gradient */
    double test_loss, test_accuracy; /* 0 unless asked for */
    uint64_t digest[RUN_PARAMS_MAX]; /* hash of each parameter of the model */
    int32_t param_count;
    bool updates; /* rank 0 owns parameters, and so do the others but in dp */
    int64_t rows; /* of the last step's batch */
    int64_t flat_count;
    int32_t segment_count;
    enum tess_dtype reduce_dtype;
    int32_t reductions; /* of every segment in a step, where all of it is reduced */
    uint64_t calls[TESS_COLLECTIVE_COUNT]; /* of rank 0 among all ranks, in the last step but one */
    uint64_t sent[RUN_RANKS_MAX];          /* bytes in the last step but one */
    uint64_t formula[RUN_RANKS_MAX];       /* by the strategies */
    uint64_t axis_sent[RUN_RANKS_MAX][TESS_AXIS_COUNT]; /* the same along each axis */
    uint64_t axis_formula[RUN_RANKS_MAX][TESS_AXIS_COUNT];
    uint64_t predicted[RUN_RANKS_MAX][TESS_MEMORY_KIND_COUNT];
    uint64_t allocated[RUN_RANKS_MAX][TESS_MEMORY_KIND_COUNT];
};

/* Train; the ranks' hashes and losses must agree. Fails the test when a rank fails. */
void run_train(const struct run *run, struct run_outcome *outcome_out);

/*
 * Train and compare with `expected`: hashes, losses, accuracy and norm to the bit; and every rank
 * must have allocated what its plan predicts.
 */
void run_compare(const struct run *run, const struct run_outcome *expected);

/* Every rank must have allocated what its plan predicts. */
void run_check_memory(const struct run *run, const struct run_outcome *outcome);

/* Every rank must have sent what its strategy's formula says. No segment may be of 4 KiB or less on
 * its way, if there are more than two ranks: such small ones go another way. */
void run_check_sent(const struct run *run, const struct run_outcome *outcome);

/* Ways to lay a step out, each on any number of ranks; options as in struct run. */
struct run_layout {
    const char *strategy;
    const char *options;
};
extern const struct run_layout run_layouts[];
extern const int run_layout_count;

/* Does the word of a test's command line name the kernel backend to run on? Where that one computes
 * on a device and there is none, the program ends, with 77: skipped. */
bool run_is_kernel(const char *word);

/* What opening the configuration answers, by its plan alone. */
enum tess_status run_plan(const struct run *run);

#endif
