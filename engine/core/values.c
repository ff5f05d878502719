/* The values of parameters for host code, see values.h. */
#include "core/values.h"

#include "base/half.h"
#include "tessera/check.h"

#include <stdlib.h>

enum tess_status tess__values_open(struct tess_kernel *kernel, enum tess_dtype dtype, int64_t ahead,
                                   struct tess_values *values_out)
{
    struct tess_values values = {.kernel = kernel, .dtype = dtype, .ahead_max = ahead};
    if (kernel->ops->far_memory) {
        values.ahead = malloc((size_t)ahead * sizeof(float));
        if (values.ahead == NULL)
            TESS_FAIL(TESS_ERR_MEMORY, "no memory to read parameters into");
    } else {
        kernel->ops->access(kernel, true);
    }
    *values_out = values;
    return TESS_OK;
}

void tess__values_close(struct tess_values *values)
{
    if (values->kernel != NULL && values->ahead == NULL)
        values->kernel->ops->access(values->kernel, false);
    free(values->ahead);
    *values = (struct tess_values){0};
}

/* Where the host finds elements [from, from + count) of a piece whose elements take `bytes` each
 * and begin at `first`. */
static enum tess_status values_reach(struct tess_values *values, const struct tess_piece *piece,
                                     const void *first, size_t bytes, int64_t from, int64_t count,
                                     const void **found_out)
{
    if (values->ahead == NULL) {
        *found_out = (const char *)first + (size_t)from * bytes;
        return TESS_OK;
    }
    if (values->ahead_of != first || from < values->ahead_from ||
        from + count > values->ahead_end) {
        const int64_t left = piece->count - from;
        const int64_t now = left < values->ahead_max ? left : values->ahead_max;
        values->ahead_of = NULL;
        TESS_TRY(tess_read(values->kernel, (size_t)now * bytes,
                           (const char *)first + (size_t)from * bytes, values->ahead));
        values->ahead_of = first;
        values->ahead_from = from;
        values->ahead_end = from + now;
    }
    *found_out = (const char *)values->ahead + (size_t)(from - values->ahead_from) * bytes;
    return TESS_OK;
}

enum tess_status tess__values_get(struct tess_values *values, const struct tess_piece *piece,
                                  int64_t from, int64_t count, float *room, const float **x_out)
{
    const void *found;
    if (piece->w != NULL) {
        TESS_TRY(values_reach(values, piece, piece->w, sizeof(*piece->w), from, count, &found));
        *x_out = found;
        return TESS_OK;
    }
    TESS_TRY(values_reach(values, piece, piece->low, sizeof(uint16_t), from, count, &found));
    const uint16_t *low = found;
    const bool f16 = values->dtype == TESS_F16;
    for (int64_t i = 0; i < count; i++)
        room[i] = f16 ? tess__f32_of_f16(low[i]) : tess__f32_of_bf16(low[i]);
    *x_out = room;
    return TESS_OK;
}
