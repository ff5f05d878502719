/* Digests of all parameters after a step, collected into one line of metrics.jsonl. */
#include "run/digests.h"

#include "state/declare.h"
#include "tessera/check.h"
#include "text/json.h"

#include <stdio.h>
#include <string.h>

static json_t *digests_tensor(const struct tess_digest *digest)
{
    json_t *sketch = json_array();
    for (int i = 0; sketch && i < TESS_DIGEST_SKETCH; i++)
        json_array_append_new(sketch, tess__json_number(digest->sketch[i]));
    return json_pack("{s:o, s:o, s:o}", "hash", tess__json_hash(digest->hash), "norm",
                     tess__json_number(digest->norm), "sketch", sketch);
}

/* "fc1.weight": most models put the unit's name before a parameter's themselves. */
static void digests_name(const char *unit, const char *param, char *name, size_t name_bytes)
{
    size_t length = strlen(unit);
    if (strncmp(param, unit, length) == 0 && param[length] == '.')
        snprintf(name, name_bytes, "%s", param);
    else
        snprintf(name, name_bytes, "%s.%s", unit, param);
}

enum tess_status tess__digests_take(struct tess__digests *digests, const struct tess__run *run,
                                    const struct tess__message *message, json_t **line_out)
{
    const int32_t params = tess_engine_param_count(run->planned);
    struct tess__run_digest digest;
    char name[2 * TESS_NAME_MAX + 2];
    *line_out = NULL;
    memcpy(&digest, message->payload, sizeof(digest));
    if (digest.index < 0 || digest.index >= params)
        TESS_FAIL(TESS_ERR_INTERNAL, "a digest of parameter %d of %d", digest.index, params);
    digests_name(tess_engine_param_unit(run->planned, digest.index),
                 tess_engine_param_name(run->planned, digest.index), name, sizeof(name));
    if (!digests->tensors)
        digests->tensors = json_object();
    if (!digests->tensors ||
        json_object_set_new(digests->tensors, name, digests_tensor(&digest.digest)) != 0)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the digest of %s, or its name is not UTF-8",
                  name);
    if (digest.index + 1 < params)
        return TESS_OK;
    *line_out = json_pack("{s:{s:I, s:o}}", "digest", "step", (json_int_t)digest.step, "tensors",
                          digests->tensors);
    digests->tensors = NULL;
    return TESS_OK;
}

void tess__digests_close(struct tess__digests *digests)
{
    json_decref(digests->tensors);
    digests->tensors = NULL;
}
