/* Values as JSON has them. */
#include "text/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

json_t *tess__json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *tess__json_hash(uint64_t hash)
{
    char text[17];
    snprintf(text, sizeof(text), "%016" PRIx64, hash);
    return json_string(text);
}
