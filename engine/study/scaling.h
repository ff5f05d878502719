/* What the files of tessera scaling share: options, measurements and predictions.
 */
#ifndef TESSERA_STUDY_SCALING_H
#define TESSERA_STUDY_SCALING_H

#include "core/engine.h"
#include "data/data.h"
#include "study/link.h"
#include "text/command.h"
#include "text/words.h"

#include <stdbool.h>

#define TESS__SCALING_POINTS_MAX     18 /* powers of two up to 65,536, and one number between */
#define TESS__SCALING_STRATEGIES_MAX 2
#define TESS__SCALING_SIZES_MAX      5

/* What one rank count cost: the median run; times are means over the ranks. */
struct tess__scaling_measured {
    int64_t ranks, batch_size;
    int32_t mesh[3]; /* ranks along the data, tensor and stage axis */
    bool shared;     /* more ranks' threads than cores: compute is slower than on one's own cores */
    uint64_t hash;
    struct tess_times step; /* comm_s: exposed */
    double samples_per_s, speedup, efficiency;
};

struct tess__scaling_predicted {
    int64_t ranks;
    double step_s, exposed_s, speedup, efficiency;
};

/* One strategy over one link. */
struct tess__scaling_curve {
    const char *strategy;
    const struct tess_link *link;
    int count;
    struct tess__scaling_predicted point[TESS__SCALING_POINTS_MAX];
};

struct tess__scaling_options {
    bool weak; /* the batch grows with the ranks */
    int64_t max_ranks, steps, repeats, to;
    const char *links, *json;
};

struct tess__scaling {
    /* From the command line. */
    struct tess__args args; /* what is left for the configuration */
    struct tess__scaling_options asked;
    char strategy[64];
    struct tess_link link[TESS_LINK_MAX];
    int link_count;
    /* Results. */
    struct tess_dataset *dataset;
    const char *model; /* static */
    struct tess__words words;
    int64_t batch_size; /* of one rank where weak, else of all */
    int64_t accumulate;
    int cores;
    struct tess__scaling_measured measured[TESS__SCALING_POINTS_MAX];
    int measured_count;
    bool fitted;
    double amdahl_p;
    int64_t rank_limit; /* of the predictions: each rank has a row of the batch */
    struct tess__scaling_curve curve[TESS__SCALING_STRATEGIES_MAX * TESS_LINK_MAX];
    int curve_count;
};

/* 1, 2, 4, ... and `last` itself, into count[TESS__SCALING_POINTS_MAX]; returns how many. */
int tess__scaling_ranks(int64_t last, int64_t count[TESS__SCALING_POINTS_MAX]);

/* Fill in what is found by running: measured, the fit. */
enum tess_status tess__scaling_measure(struct tess__scaling *scaling);

/* Fill in the curves, from the measured one-rank step. */
enum tess_status tess__scaling_predict(struct tess__scaling *scaling);

/* Sizes of the ring table, in bytes, and the ranks of its ring. */
#define TESS__SCALING_RING_RANKS 8
extern const double tess__scaling_ring_bytes[TESS__SCALING_SIZES_MAX];

/* The tables, to stdout; and the same as JSON in scaling->json unless that is empty. */
void tess__scaling_print(const struct tess__scaling *scaling);
enum tess_status tess__scaling_write(const struct tess__scaling *scaling);

#endif
