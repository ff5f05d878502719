/* Digests of all parameters after a step, collected into one line of metrics.jsonl. */
#ifndef TESSERA_RUN_DIGESTS_H
#define TESSERA_RUN_DIGESTS_H

#include "job/run.h"

#include <jansson.h>

/* Zeroed to begin with. */
struct tess__digests {
    json_t *tensors; /* of the step that is not complete; NULL between steps */
};

/*
 * Keep a TESS__RUN_DIGEST message. With the last one of a step *line_out is {"digest": {...}}, a
 * new reference, else NULL. TESS_ERR_MEMORY.
 */
enum tess_status tess__digests_take(struct tess__digests *digests, const struct tess__run *run,
                                    const struct tess__message *message, json_t **line_out);
void tess__digests_close(struct tess__digests *digests);

#endif
