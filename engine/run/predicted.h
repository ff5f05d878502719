/*
 * A step of a run as it is predicted, beside what was measured. The prediction is that of tessera
 * plan (predict/predict.h), with the profile that tessera plan --calibrate has left in the user's
 * cache, else with the built-in one.
 */
#ifndef TESSERA_RUN_PREDICTED_H
#define TESSERA_RUN_PREDICTED_H

#include "job/run.h"
#include "text/text.h"

#include <jansson.h>

/* A step's seconds and bytes, as mean over ranks: step_s is the sum of the others but hidden_s, and
 * of what is spent between them. */
struct tess__phases {
    double step_s, data_s, forward_s, backward_s, optim_s, exposed_s, hidden_s;
    double processor_s; /* that a rank's processor works in a step */
    double sent_bytes;
};

struct tess__predicted {
    bool known;
    bool calibrated; /* with measured figures of this processor */
    char why[320];   /* it is not known */
    char profile[64];
    struct tess__phases phases;
    char limited_by[240]; /* TESS_PREDICT_LIMIT */
    double cost_s;        /* of a processor, for predicting */
};

struct tess_profile; /* predict/profile.h */

/* The built-in profile of a GPU, by the driver's name of it and its memory; NULL: there is none. */
const struct tess_profile *tess__predicted_device(const char *name, double bytes);

/* Predict. Nothing fails: `why` says what is not modelled. */
void tess__predicted_make(const struct tess__run *run, struct tess__predicted *predicted_out);

/* Of a run that has ended: the means over its ranks. */
struct tess__phases tess__predicted_measured(const struct tess__run *run);

/* With the built-in figures of processors, of which --calibrate has better ones? */
bool tess__predicted_guessed(const struct tess__predicted *predicted);
/* Milliseconds, without the unit. */
const char *tess__predicted_ms(double seconds, char text[TESS__TEXT_BYTES]);

/* Two lines to stdout, of which the second has the phases; one where it is not known. One more
 * where other programs took the processors. */
void tess__predicted_print(const struct tess__run *run, const struct tess__predicted *predicted);

/* {"calibrated", "profile", "why", "predicted": {...}, "measured": {...}, "ratio",
 * "processor_share"}: a new reference, NULL when out of memory. */
json_t *tess__predicted_record(const struct tess__run *run,
                               const struct tess__predicted *predicted);

#endif
