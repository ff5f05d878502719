/* How parameters are cut into buckets; not what is done with them. */
#include "bucket.h"

#include "tessera/check.h"

#include <stdlib.h>

int32_t tess__bucket_fill(const int64_t *bytes, int32_t count, double first_limit, double limit,
                          int32_t *first_out)
{
    int32_t buckets = 0;
    int64_t filled = 0;
    for (int32_t p = count - 1; p >= 0; p--) {
        filled += bytes[p];
        double full = buckets == 0 ? first_limit : limit;
        if ((double)filled >= full || p == 0) {
            first_out[buckets++] = p;
            filled = 0;
        }
    }
    for (int32_t i = 0, j = buckets - 1; i < j; i++, j--) {
        int32_t first = first_out[i];
        first_out[i] = first_out[j];
        first_out[j] = first;
    }
    return buckets;
}

enum tess_status tess__bucket_plan(struct tess_plan *plan,
                                   const struct tess_bucket_options *options)
{
    const double mib = 1 << 20;
    const int32_t count = plan->param_count;
    int64_t *bytes = calloc((size_t)count + 1, sizeof(*bytes));
    int32_t *first = calloc((size_t)count + 1, sizeof(*first));
    enum tess_status status = TESS_OK;
    if (bytes == NULL || first == NULL) {
        status = tess_fail(TESS_ERR_MEMORY, "no memory to plan %d parameters", (int)count);
        goto release;
    }
    for (int32_t p = 0; p < count; p++)
        bytes[p] = plan->param[p].count * (int64_t)sizeof(float);
    int32_t buckets =
        tess__bucket_fill(bytes, count, options->first_mib * mib, options->mib * mib, first);
    for (int32_t b = 0; b < buckets; b++) {
        int32_t end = b + 1 < buckets ? first[b + 1] : count;
        TESS_TRY_GOTO(status, release, tess_plan_add_segment(plan, end - first[b]));
    }
release:
    free(first);
    free(bytes);
    return status;
}
