/* Measuring one operation of a kernel again and again; private to this room. */
#ifndef TESSERA_PREDICT_CALIBRATE_OP_H
#define TESSERA_PREDICT_CALIBRATE_OP_H

#include "predict/calibrate.h"

#define SAMPLES_MAX   512
#define BYTES_MAX     ((size_t)192 << 20)
#define CALIBRATE_IDS 16384 /* tokens and labels, each below 128 */

/*
 * All is measured in so many rounds at most, spread over the time: other machines on the same
 * hardware slow this one down, for milliseconds and for seconds. An operation is repeated for about
 * as long as a short step takes, and the mean counts: a step has many operations, and a core that
 * is slow for moments is so for some of them. Of rounds the mean of the middle half counts, as of
 * the measured steps of a run.
 */
#define CALIBRATE_ROUNDS 8

struct calibrate_rounds {
    double value[CALIBRATE_ROUNDS];
    int count;
};

static inline void calibrate_add(struct calibrate_rounds *rounds, double value)
{
    rounds->value[rounds->count++] = value;
}

#define CALIBRATE_PARTS 8

struct calibrate {
    struct tess_kernel *kernel;
    char *memory;         /* [BYTES_MAX] small numbers, also where they are read in 16 bits */
    int32_t *id;          /* [CALIBRATE_IDS] */
    double each_s;        /* for one measurement in one round */
    double first_s;       /* of the first product in f32, in the first round */
    bool fast_16;         /* that product is faster in 16 bits */
    int64_t turn;         /* runs of operations so far */
    struct tess_op heavy; /* what most of a step is made of: a product */
    void *heavy_memory;   /* its scratch and packed operand */
    double near_bytes[CALIBRATE_PARTS]; /* of each part, what the operation before has written */
    struct tess_sample sample[SAMPLES_MAX];
    struct calibrate_rounds seconds[SAMPLES_MAX]; /* of each sample */
    int32_t count;                                /* samples of this round so far */
    struct tess_op op;
    void *scratch, *packed;
};

/* Runs the sample's operation once, the one that is open where it has one. */
typedef enum tess_status calibrate_run(struct calibrate *calibrate,
                                       const struct tess_sample *sample);

/* Memory as that of ranks of a host, which share it. NULL: there is none. */
void *calibrate_pages(size_t bytes);
void calibrate_pages_free(void *pages, size_t bytes);

/* Part `number` of the memory, of eight: the same place in every run, as of what the operation
 * before has just written. */
float *calibrate_part(const struct calibrate *calibrate, int number);
/* `bytes` in that part, elsewhere in every run, as of parameters and of what forward has kept for
 * backward: the last cache has it, those near the core have not. What the last cache does not keep
 * either is measured apart. */
float *calibrate_far(const struct calibrate *calibrate, int number, double bytes);

/* Of doubles, for qsort. */
int calibrate_order(const void *a, const void *b);

/* The mean of the middle half of so many values, which are sorted by it. */
double calibrate_middle(double *value, int count);
/* Of rounds: that, and by which part it is longer than the least. */
double calibrate_usual(const struct calibrate_rounds *rounds);
double calibrate_apart(const struct calibrate_rounds *rounds);

/* The product that measurements of what is none are between. */
enum tess_status calibrate_heavy_open(struct calibrate *calibrate);
void calibrate_heavy_close(struct calibrate *calibrate);
/* Once, over so much memory. */
#define CALIBRATE_HEAVY_BYTES ((size_t)2 << 20)
void calibrate_heavy_run(struct calibrate *calibrate, float *memory);

/* The sample with its seconds in this round: of several. Before each the nearest caches
 * are full of what other operations wrote, and then calibrate->near_bytes of each part is written,
 * which are cleared with it. */
enum tess_status calibrate_measure(struct calibrate *calibrate, struct tess_sample sample,
                                   calibrate_run *run);
/* The same of an operation that is opened for it; nothing where the kernel has no such. */
enum tess_status calibrate_op(struct calibrate *calibrate, const struct tess_op_desc *desc,
                              struct tess_sample sample, calibrate_run *run);

/* calibrate_work.c: all operations but products and attention. */
enum tess_status calibrate_works(struct calibrate *calibrate, enum tess_peak_type type);
/* Passes over so much memory, of all cores that make them at once together, MiB: the first are kept
 * by any last cache, the last ones by hardly any. */
#define CALIBRATE_SIZES   11
#define CALIBRATE_REPEATS 3 /* in a round */
extern const double calibrate_mib[CALIBRATE_SIZES];
/* Of so many cores at once so many times as much: a last cache for every few cores. */
double calibrate_scale(double cores);
/* What a byte costs in passes over so many of them, again and again; memory: as large. */
double calibrate_byte_s(struct tess_kernel *kernel, float *memory, double bytes);

/*
 * calibrate_ranks.c: ranks on this host, as processes: calls of two in memory that they share and
 * over sockets, and of twice as many as cores; passes over memory on all cores at once. `measure`
 * is one round, `take` what all rounds say; *apart_out: how far they were apart in copies of each.
 */
enum calibrate_setting { CALIBRATE_LOCAL, CALIBRATE_NET, CALIBRATE_TURNS, CALIBRATE_SETTINGS };
enum calibrate_call {
    CALIBRATE_SMALL,
    CALIBRATE_GATHER,
    CALIBRATE_SUM,
    CALIBRATE_SCATTER,
    CALIBRATE_SHARE,
    CALIBRATE_CALLS
};
#define CALIBRATE_LAGS 2
struct calibrate_ranks {
    struct calibrate_rounds call[CALIBRATE_SETTINGS][CALIBRATE_CALLS]; /* seconds */
    struct calibrate_rounds lag[CALIBRATE_SETTINGS][CALIBRATE_LAGS];
    struct calibrate_rounds byte[CALIBRATE_SIZES]; /* seconds of a byte on each of all cores */
    struct calibrate_rounds chain;                 /* as turn_chain of a profile */
    double slow; /* in the round at hand: what products take by what the middle ones do */
};
enum tess_status calibrate_ranks_measure(struct calibrate *calibrate, double cores,
                                         struct calibrate_ranks *ranks);
void calibrate_ranks_take(const struct calibrate_ranks *ranks, struct tess_profile *profile,
                          double apart_out[CALIBRATE_SETTINGS]);

/*
 * calibrate_beside.c: what else the processors do that this process may use. busy_s: seconds that
 * they were busy so far, or taken by other machines on the same hardware; own_s: of this process
 * and of its children that have ended. cores 0: the system does not say.
 */
#define CALIBRATE_BESIDE 0.05 /* so much of them makes figures worse */
struct calibrate_beside {
    int cores;
    double wall_s, busy_s, own_s;
};
struct calibrate_beside calibrate_beside_now(void);
/* The share of the cores that others took between two moments, from 0 to 1; 0 where the system does
 * not say. Pure. */
double calibrate_beside_share(const struct calibrate_beside *from,
                              const struct calibrate_beside *to);

#endif
