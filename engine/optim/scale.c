/* Loss scaling: the option's text, and when the scale grows and shrinks. */
#include "optim/scale.h"

#include "tessera/check.h"

#include <stdlib.h>
#include <string.h>

#define SCALE_FIRST 65536.0 /* 2^16, the usual start: the first steps bring it down if need be */

/* The number after "dynamic:" or "static:", in digits alone. */
static enum tess_status scale_parse_number(const char *text, const char *number, double *value_out)
{
    const size_t digits = strspn(number, "0123456789");
    const double value = strtod(number, NULL);
    if (digits == 0 || number[digits] != '\0' || !(value >= 1 && value <= TESS_SCALE_MAX))
        TESS_FAIL(TESS_ERR_USAGE,
                  "--loss-scale %s: a scale is a whole number from 1 to %.0f (2^24)", text,
                  TESS_SCALE_MAX);
    *value_out = value;
    return TESS_OK;
}

enum tess_status tess_scale_parse(const char *text, enum tess_dtype dtype, int64_t interval,
                                  struct tess_scale *scale_out)
{
    static const char dynamic[] = "dynamic:", fixed[] = "static:";
    struct tess_scale scale = {.mode = TESS_SCALE_OFF, .value = 1, .interval = interval};
    if (strcmp(text, "dynamic") == 0 || (strcmp(text, "auto") == 0 && dtype == TESS_F16)) {
        scale.mode = TESS_SCALE_DYNAMIC;
        scale.value = SCALE_FIRST;
    } else if (strncmp(text, dynamic, strlen(dynamic)) == 0) {
        scale.mode = TESS_SCALE_DYNAMIC;
        TESS_TRY(scale_parse_number(text, text + strlen(dynamic), &scale.value));
    } else if (strncmp(text, fixed, strlen(fixed)) == 0) {
        scale.mode = TESS_SCALE_STATIC;
        TESS_TRY(scale_parse_number(text, text + strlen(fixed), &scale.value));
    } else if (strcmp(text, "off") != 0 && strcmp(text, "auto") != 0) {
        TESS_FAIL(TESS_ERR_USAGE,
                  "--loss-scale %s: use auto, off, dynamic, dynamic:FIRST or static:K, a scale "
                  "from 1 to %.0f",
                  text, TESS_SCALE_MAX);
    }
    if (interval < 1)
        TESS_FAIL(TESS_ERR_USAGE, "--loss-scale-interval %lld: use at least 1 step",
                  (long long)interval);
    *scale_out = scale;
    return TESS_OK;
}

enum tess_status tess_scale_next(struct tess_scale *scale, bool finite)
{
    if (scale->mode == TESS_SCALE_OFF)
        return TESS_OK;
    if (finite) {
        if (++scale->good >= scale->interval && scale->mode == TESS_SCALE_DYNAMIC) {
            scale->value = scale->value * 2 < TESS_SCALE_MAX ? scale->value * 2 : TESS_SCALE_MAX;
            scale->good = 0;
        }
        return TESS_OK;
    }
    if (scale->mode == TESS_SCALE_DYNAMIC && scale->value / 2 < 1)
        return TESS_ERR_NUMERIC;
    scale->skipped++;
    scale->good = 0;
    if (scale->mode == TESS_SCALE_DYNAMIC)
        scale->value /= 2;
    return TESS_OK;
}
