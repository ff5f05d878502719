/* The grid of a run: do ranks, micro-batches and batch fit it, and if not, what would. */
#include "base/options.h"
#include "config/config.h"
#include "tessera/check.h"

#include <stdio.h>

static bool grid_is_power(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

bool tess__config_grid_fits(enum tess_leaf_order order, int64_t ranks, int64_t micro, int64_t grid)
{
    if (grid % (ranks * micro) != 0)
        return false;
    if (order == TESS_LEAVES_MICRO_FIRST)
        return (micro == 1 || grid_is_power(grid / micro)) &&
               (ranks == 1 || grid_is_power(grid / (micro * ranks)));
    return (ranks == 1 || grid_is_power(grid / ranks)) &&
           (micro == 1 || grid_is_power(grid / (ranks * micro)));
}

/*
 * "1, 2, 4": the rank counts that fit where ranks is 0, else the micro-batches, the least eight of
 * them, where micro is 0; grid 0 is ranks x micro. "none" when there is none.
 */
static const char *grid_list(enum tess_leaf_order order, int64_t batch_size, int64_t ranks,
                             int64_t micro, int64_t grid, char text[320])
{
    const int64_t last = ranks == 0 ? TESS_RANKS_MAX : batch_size / ranks;
    const int most = ranks == 0 ? 64 : 8; /* as many as text has room for */
    size_t used = 0;
    int count = 0;
    snprintf(text, 320, "none");
    for (int64_t n = 1; n <= last && count < most && used < 300; n++) {
        const int64_t r = ranks == 0 ? n : ranks, m = ranks == 0 ? micro : n;
        const int64_t leaves = grid > 0 ? grid : r * m;
        if (batch_size % leaves == 0 && tess__config_grid_fits(order, r, m, leaves))
            used += (size_t)snprintf(text + used, 320 - used, "%s%lld", count++ > 0 ? ", " : "",
                                     (long long)n);
    }
    return text;
}

enum tess_status tess_config_check_grid(const struct tess_config *config, int64_t batch_size,
                                        enum tess_leaf_order leaf_order)
{
    const struct tess_run_options *run = &config->run;
    int64_t ranks = config->mesh.count[TESS_AXIS_DATA];
    int64_t grid = run->grid > 0 ? run->grid : ranks * run->accumulate;
    const char *of = config->mesh.rank_count > ranks ? " of the data axis" : "";
    const char *why = config->mesh.count[TESS_AXIS_STAGE] > 1 &&
                              !tess_options_is_set(config->options, "accumulate")
                          ? ", one for each stage"
                          : "";
    char fitting[320], micros[320];
    if (batch_size % grid == 0 && tess__config_grid_fits(leaf_order, ranks, run->accumulate, grid))
        return TESS_OK;
    grid_list(leaf_order, batch_size, 0, run->accumulate, run->grid, fitting);
    grid_list(leaf_order, batch_size, ranks, 0, run->grid, micros);
    if (batch_size % grid != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "batch-size %lld cannot be cut into a grid of %lld equal micro-batches (%lld "
                  "ranks%s x accumulate %lld%s%s); ranks%s that fit: %s; accumulate that fits: %s; "
                  "the next batch-size that fits: %lld",
                  (long long)batch_size, (long long)grid, (long long)ranks, of,
                  (long long)run->accumulate, why, run->grid > 0 ? ", --grid given" : "", of,
                  fitting, micros, (long long)(batch_size / grid + 1) * (long long)grid);
    TESS_FAIL(TESS_ERR_USAGE,
              "%lld ranks%s x accumulate %lld%s do not fit a grid of %lld: each rank, and each of "
              "its micro-batches, needs a power of two of the grid's leaves; ranks%s that fit: %s; "
              "accumulate that fits: %s",
              (long long)ranks, of, (long long)run->accumulate, why, (long long)grid, of, fitting,
              micros);
}
