/* The mesh of a run: how many ranks lie along each axis, by its options. */
#include "base/options.h"
#include "config/config.h"
#include "config/registry.h"
#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const mesh_axis_name[TESS_AXIS_COUNT] = {"data", "tensor", "stage"};

/* ---- --mesh ---------------------------------------------------------------------------------- */

static int mesh_find_axis(const char *word, size_t length)
{
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (strlen(mesh_axis_name[axis]) == length &&
            strncmp(mesh_axis_name[axis], word, length) == 0)
            return axis;
    return -1;
}

/* "data=2,tensor=2": the sizes that it names; others stay as they are. */
static enum tess_status mesh_parse(const char *text, int64_t size[TESS_AXIS_COUNT])
{
    bool named[TESS_AXIS_COUNT] = {false}, more = *text != '\0';
    while (more) {
        const size_t length = strcspn(text, "=,");
        const int axis = mesh_find_axis(text, length);
        if (axis < 0 || text[length] != '=')
            TESS_FAIL(TESS_ERR_USAGE,
                      "--mesh: '%.40s' is not an axis and its ranks: write data=2,tensor=2,stage=2",
                      text);
        const char *number = text + length + 1, *end = number + strspn(number, "0123456789");
        const long long value = strtoll(number, NULL, 10);
        if (end == number || (*end != '\0' && *end != ',') || value < 1 || value > TESS_RANKS_MAX)
            TESS_FAIL(TESS_ERR_USAGE, "--mesh: the ranks of axis %s must be 1 to %d, not '%.20s'",
                      mesh_axis_name[axis], TESS_RANKS_MAX, number);
        if (named[axis])
            TESS_FAIL(TESS_ERR_USAGE, "--mesh names axis %s twice", mesh_axis_name[axis]);
        named[axis] = true;
        size[axis] = value;
        more = *end == ',';
        text = end + more;
    }
    return TESS_OK;
}

/* One axis' size from options with this prefix, which must not contradict the mesh. */
static enum tess_status mesh_join(int64_t size[TESS_AXIS_COUNT], enum tess_axis axis,
                                  int64_t wanted, const char *prefix)
{
    if (wanted == 0)
        return TESS_OK;
    if (size[axis] != 0 && size[axis] != wanted)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--mesh gives axis %s %lld ranks, and an option that begins with --%s gives it "
                  "%lld: give one of them",
                  mesh_axis_name[axis], (long long)size[axis], prefix, (long long)wanted);
    size[axis] = wanted;
    return TESS_OK;
}

/* The strategies for an axis, "a, b, c". */
static const char *mesh_list_strategies(enum tess_axis axis, char text[160])
{
    int count = 0;
    size_t used = 0;
    const char *const *name = tess_registry_names(TESS_REGISTRY_STRATEGY, &count);
    text[0] = '\0';
    for (int i = 0; i < count && used < 160; i++) {
        const struct tess_strategy_ops *ops = NULL;
        if (tess_registry_get_strategy(name[i], &ops) == TESS_OK && ops->axis == axis)
            used +=
                (size_t)snprintf(text + used, 160 - used, "%s%s", used > 0 ? ", " : "", name[i]);
    }
    return text;
}

/* Axes without a strategy have one rank; so has a data axis whose strategy takes one rank. */
static enum tess_status mesh_check_axes(const struct tess_config *config,
                                        int64_t size[TESS_AXIS_COUNT])
{
    char known[160];
    const struct tess_strategy_ops *word_of = config->word_of;
    if (word_of != NULL && config->axis[word_of->axis] == NULL)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--strategy %s: %s means --%s, an option of the %s axis, for which no strategy "
                  "is chosen: add one by '+': %s",
                  config->run.strategy, word_of->word, word_of->word_option,
                  mesh_axis_name[word_of->axis], mesh_list_strategies(word_of->axis, known));
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++) {
        bool chosen = config->axis[axis] != NULL;
        if (axis == TESS_AXIS_DATA)
            chosen = config->data_chosen && !config->strategy->one_rank;
        if (chosen)
            continue;
        if (size[axis] > 1)
            TESS_FAIL(TESS_ERR_USAGE,
                      "%lld ranks along the %s axis, and --strategy %s has no strategy for it: add "
                      "one by '+': %s",
                      (long long)size[axis], mesh_axis_name[axis], config->run.strategy,
                      mesh_list_strategies((enum tess_axis)axis, known));
        size[axis] = 1;
    }
    return TESS_OK;
}

/* "data=2,stage=3": the sizes that are known. */
static const char *mesh_text(const int64_t size[TESS_AXIS_COUNT], char text[80])
{
    size_t used = 0;
    text[0] = '\0';
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        if (size[axis] > 0)
            used += (size_t)snprintf(text + used, 80 - used, "%s%s=%lld", used > 0 ? "," : "",
                                     mesh_axis_name[axis], (long long)size[axis]);
    return text;
}

/* Fill in the sizes that were not given, so that there are `ranks` in all: two ranks for each but
 * the last of tensor, stage and data, which takes what is left. False where that cannot be. */
static bool mesh_spread(int64_t ranks, int64_t size[TESS_AXIS_COUNT])
{
    static const enum tess_axis order[] = {TESS_AXIS_TENSOR, TESS_AXIS_STAGE, TESS_AXIS_DATA};
    int64_t known = 1, unknown = 0;
    for (int i = 0; i < TESS_AXIS_COUNT; i++) {
        known *= size[i] > 0 ? size[i] : 1;
        unknown += size[i] == 0;
    }
    int64_t left = ranks / known;
    if (ranks % known != 0 || (unknown == 0 && left != 1))
        return false;
    for (int i = 0; i < TESS_AXIS_COUNT; i++) {
        if (size[order[i]] != 0)
            continue;
        size[order[i]] = --unknown == 0 ? left : left % 2 == 0 ? 2 : 1;
        left /= size[order[i]];
    }
    return true;
}

static enum tess_status mesh_fill(int64_t ranks, int64_t size[TESS_AXIS_COUNT])
{
    int64_t known = 1, fitting[TESS_AXIS_COUNT];
    bool open = false;
    char text[80], other[80], instead[120] = "";
    if (mesh_spread(ranks, size))
        return TESS_OK;
    for (int i = 0; i < TESS_AXIS_COUNT; i++) {
        known *= size[i] > 0 ? size[i] : 1;
        open = open || size[i] == 0;
        fitting[i] = size[i] == 1 ? 1 : 0;
    }
    if (mesh_spread(ranks, fitting))
        snprintf(instead, sizeof(instead), ", or --mesh %s", mesh_text(fitting, other));
    TESS_FAIL(TESS_ERR_USAGE, "%lld ranks do not fill a mesh of %s: use --ranks %lld%s%s",
              (long long)ranks, mesh_text(size, text), (long long)known,
              open ? " or a multiple of it" : "", instead);
}

enum tess_status tess__config_recompute(struct tess_config *config)
{
    static const char *const word[] = {[TESS_RECOMPUTE_NONE] = "none",
                                       [TESS_RECOMPUTE_SELECTIVE] = "selective",
                                       [TESS_RECOMPUTE_FULL] = "full"};
    const char *text = config->run.recompute;
    const char *number = strncmp(text, "every:", 6) == 0 ? text + 6 : "";
    const long count = strtol(number, NULL, 10);
    config->recompute_every = 1;
    for (int i = TESS_RECOMPUTE_NONE; i <= TESS_RECOMPUTE_FULL; i++) {
        config->recompute = (enum tess_recompute)i;
        if (strcmp(text, word[i]) == 0)
            return TESS_OK;
    }
    if (number[strspn(number, "0123456789")] != '\0' || count < 1 || count > 4096)
        TESS_FAIL(
            TESS_ERR_USAGE,
            "--recompute: '%.40s' is not none, selective, full or every:K with K from 1 to 4096",
            text);
    config->recompute_every = (int32_t)count; /* full */
    return TESS_OK;
}

static enum tess_status mesh_check_tensor(const struct tess_config *config)
{
    const struct tess_tensor_options *tensor = &config->tensor;
    const int64_t ranks = config->mesh.count[TESS_AXIS_TENSOR];
    if (tensor->canonical > 0 && tensor->canonical % ranks != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--tensor.canonical %lld parts cannot be shared by %lld tensor ranks: the ranks "
                  "must divide the parts",
                  (long long)tensor->canonical, (long long)ranks);
    if (tensor->canonical > 0 && (tensor->canonical & (tensor->canonical - 1)) != 0)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--tensor.canonical %lld is not a power of two: only then are a rank's parts a "
                  "branch of the sum's tree on every number of ranks",
                  (long long)tensor->canonical);
    if (tensor->canonical > 0 && tensor->sequence)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--tensor.canonical and --tensor.sequence-parallel do not go together: sums over "
                  "positions would be cut by the number of ranks; leave one out");
    return TESS_OK;
}

enum tess_status tess__config_mesh(struct tess_config *config)
{
    struct tess_run_options *run = &config->run;
    const struct tess_strategy_ops *stage = config->axis[TESS_AXIS_STAGE];
    int64_t size[TESS_AXIS_COUNT] = {0}, product = 1;
    TESS_TRY(tess__config_recompute(config));
    TESS_TRY(mesh_parse(run->mesh, size));
    TESS_TRY(mesh_join(size, TESS_AXIS_TENSOR, config->tensor.ranks, "tensor"));
    if (stage != NULL)
        TESS_TRY(mesh_join(size, TESS_AXIS_STAGE,
                           stage->wanted_ranks(config->axis_options[TESS_AXIS_STAGE]),
                           stage->name));
    TESS_TRY(mesh_check_axes(config, size));
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        product *= size[axis];
    if (product > TESS_RANKS_MAX)
        TESS_FAIL(TESS_ERR_USAGE, "--mesh %s has %lld ranks: there may be up to %d", run->mesh,
                  (long long)product, TESS_RANKS_MAX);
    if (product > 0 && !tess_options_is_set(config->options, "ranks"))
        run->ranks = product;
    TESS_TRY(mesh_fill(run->ranks, size));
    config->mesh.rank_count = (int32_t)run->ranks;
    for (int axis = 0; axis < TESS_AXIS_COUNT; axis++)
        config->mesh.count[axis] = (int32_t)size[axis];
    /* A pipeline of one micro-batch has one stage at work at a time. */
    if (size[TESS_AXIS_STAGE] > 1 && !tess_options_is_set(config->options, "accumulate"))
        run->accumulate = size[TESS_AXIS_STAGE];
    return mesh_check_tensor(config);
}
