/* What runs report, as JSON. Every function returns a new reference, NULL when out of memory. */
#ifndef TESSERA_RUN_RECORD_H
#define TESSERA_RUN_RECORD_H

#include "device/nvml.h"
#include "job/run.h"
#include "job/saving.h"
#include "run/adapt.h"
#include "run/predicted.h"
#include "run/restart.h"

#include <jansson.h>

/* "data", "tensor", "stage": the axes' names in files. */
extern const char *const tess__record_axis_name[TESS_AXIS_COUNT];

/* {"device": index, "name", "bus", "gpu_percent", ...}: unknown values are null. */
json_t *tess__record_device(const struct tess_watch_sample *sample);

/* {"run": {version, options, ...}}: the head of metrics.jsonl. */
json_t *tess__record_head(const struct tess__run *run);
json_t *tess__record_step(const struct tess__run *run, const struct tess__run_step *step);
json_t *tess__record_validation(const struct tess__run *run,
                                const struct tess__run_validation *validation);
json_t *tess__record_epoch(const struct tess__run *run, const struct tess__run_epoch *epoch);
/* {"saved": {"step", "blocked_s", "write_s", "bytes"}}: a checkpoint; of rank 0. */
json_t *tess__record_saved(const struct tess__run_saved *saved);
/* {"adapt": {"step", "part", "gain", "renumbers", "why"}} */
json_t *tess__record_adapt(const struct tess__adapt *adapt);
/* Add the digest of a parameter to `tensors`, under its name: {"hash", "norm", "sketch"}.
 * TESS_ERR_MEMORY. */
enum tess_status tess__record_digest(const struct tess__run *run,
                                     const struct tess__run_digest *digest, json_t *tensors);
/* {"data": D, "tensor": T, "stage": S}: ranks along each axis. */
json_t *tess__record_mesh(const struct tess__run *run);
/* Tokens of a sample; 0 for images. */
json_int_t tess__record_sample_tokens(const struct tess_dataset *dataset);
/* Add "tokens_per_s" beside "samples_per_s" where samples are sequences of tokens. */
void tess__record_rate(json_t *object, const struct tess_dataset *dataset, double samples_per_s);
/* {"final": {...}}; history may be NULL. */
json_t *tess__record_final(const struct tess__run *run, const struct tess__predicted *predicted,
                           const struct tess__history *history);
/* Write the results of --json; takes over `root`, whose NULL is an error: there was no memory. */
enum tess_status tess__record_write(const char *path, json_t *root);
/* One entry of compare's "runs". */
json_t *tess__record_compared(const struct tess__run *run, const struct tess__predicted *predicted);

#endif
