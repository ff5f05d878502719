/* Measuring one operation of a kernel again and again; private to this room. */
#ifndef TESSERA_PREDICT_CALIBRATE_OP_H
#define TESSERA_PREDICT_CALIBRATE_OP_H

#include "predict/calibrate.h"

#define SAMPLES_MAX   400
#define BYTES_MAX     ((size_t)96 << 20)
#define CALIBRATE_IDS 16384 /* tokens and labels, each below 128 */

struct calibrate {
    struct tess_kernel *kernel;
    char *memory;  /* [BYTES_MAX] small numbers, also where they are read in 16 bits */
    int32_t *id;   /* [CALIBRATE_IDS] */
    double each_s; /* for one measurement */
    int64_t turn;  /* runs of operations so far */
    struct tess_sample sample[SAMPLES_MAX];
    int32_t count;
    struct tess_op op;
    void *scratch, *packed;
};

/* Runs the sample's operation once, the one that is open where it has one. */
typedef enum tess_status calibrate_run(struct calibrate *calibrate,
                                       const struct tess_sample *sample);

/* Part `number` of the memory, of eight: the same place in every run, as of what the operation
 * before has just written. */
#define CALIBRATE_PARTS 8
float *calibrate_part(const struct calibrate *calibrate, int number);
/* `bytes` in that part, elsewhere in every run, as of parameters and of what forward has kept for
 * backward: the last cache has it, those near the core have not. What the last cache does not keep
 * either is measured apart. */
float *calibrate_far(const struct calibrate *calibrate, int number, double bytes);

/* Of doubles, for qsort. */
int calibrate_order(const void *a, const void *b);

/* The sample with its seconds: the median of several. */
enum tess_status calibrate_measure(struct calibrate *calibrate, struct tess_sample sample,
                                   calibrate_run *run);
/* The same of an operation that is opened for it; nothing where the kernel has no such. */
enum tess_status calibrate_op(struct calibrate *calibrate, const struct tess_op_desc *desc,
                              struct tess_sample sample, calibrate_run *run);

/* calibrate_work.c: all operations but products and attention. */
enum tess_status calibrate_works(struct calibrate *calibrate, enum tess_peak_type type);
/* calibrate_ranks.c: calls between ranks on this host, as threads; over sockets too. */
enum tess_status calibrate_ranks(struct tess_profile *profile);

#endif
