/* Shard groups and volumes; see shard.h. */
#include "shard.h"

#include <stdio.h>

bool tess__shard_width_fits(int32_t rank_count, int32_t width)
{
    if (width < 1 || width > rank_count || rank_count % width != 0)
        return false;
    return width == rank_count || (width & (width - 1)) == 0;
}

int32_t tess__shard_width_default(int32_t rank_count)
{
    int32_t width = 1;
    while (2 * width <= rank_count / 2 && tess__shard_width_fits(rank_count, 2 * width))
        width *= 2;
    return width > 1 ? width : rank_count;
}

void tess__shard_width_list(int32_t rank_count, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int32_t width = 1; width <= rank_count; width++) {
        if (!tess__shard_width_fits(rank_count, width))
            continue;
        const char *join = width == 1 ? "" : width == rank_count ? " or " : ", ";
        int wrote = snprintf(text + used, text_bytes - used, "%s%d", join, (int)width);
        if (wrote < 0 || (size_t)wrote >= text_bytes - used)
            return;
        used += (size_t)wrote;
    }
}

uint64_t tess__shard_scatter_bytes(uint64_t bytes, int32_t rank_count)
{
    return bytes * (uint64_t)(rank_count - 1) / (uint64_t)rank_count;
}

uint64_t tess__shard_all_reduce_bytes(uint64_t bytes, int32_t rank_count)
{
    return 2 * bytes * (uint64_t)(rank_count - 1) / (uint64_t)rank_count;
}

int32_t tess__shard_chunk(const struct tess_plan *plan, int32_t s)
{
    return plan->param[plan->segment[s].param_first].chunk;
}

int64_t tess__shard_value_count(const struct tess_plan *plan)
{
    int64_t count = 0;
    for (int32_t s = 0; s < plan->segment_count; s++)
        count += plan->segment[s].values_of < 0 ? plan->segment[s].count : 0;
    return count;
}

int64_t tess__shard_buffer_count(const struct tess_plan *plan, int32_t first, int32_t end,
                                 int32_t buffer, int32_t buffer_count)
{
    int64_t largest = 0;
    for (int32_t s = first + buffer; s < end; s += buffer_count)
        if (plan->segment[s].count > largest)
            largest = plan->segment[s].count;
    return largest;
}
