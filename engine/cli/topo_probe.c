/*
 * tessera topo --measure: which ranks are measured, over what, and beside which model. What they do
 * is topo_measure.c's.
 */
#include "cli/topo_measure.h"

#include "base/options.h"
#include "config/config_device.h"
#include "job/launch_env.h"
#include "tessera/check.h"

#include <stdlib.h>

#define PROBE_BYTES     (4 << 20)
#define PROBE_TIMEOUT_S 60.0

/* Chooses the communicator as the other commands do. place: of ranks that another program started.
 */
static enum tess_status probe_comm(struct tess__measure *measure, const struct tess_started *place,
                                   const char *name)
{
    struct tess_device_plan plan = {.comm_options = &measure->comm};
    TESS_TRY(tess_options_open(&measure->options));
    TESS_TRY(tess_comm_options_add(measure->options, &measure->comm));
    TESS_TRY(tess_device_plan_host(place, measure->rank_count, TESS_RANKS_PROCESSES, name, &plan));
    measure->how =
        (struct tess__open_comm){.kind = plan.comm,
                                 .options = tess_comm_options_of(&measure->comm, plan.comm),
                                 .order = TESS_ORDER_CANONICAL,
                                 .timeout_s = PROBE_TIMEOUT_S};
    return TESS_OK;
}

static void probe_close(struct tess__measure *measure)
{
    tess_comm_options_free(&measure->comm);
    tess_options_close(measure->options);
}

static enum tess_status probe_run(struct tess__measure *measure, const struct tess__topo *model,
                                  bool prints)
{
    size_t ranks = (size_t)measure->rank_count;
    measure->bytes = PROBE_BYTES;
    measure->how.peers = measure->peers;
    measure->pair = calloc(ranks * ranks, sizeof(*measure->pair));
    if (!measure->pair)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the rates");
    enum tess_status status = tess__measure_run(measure);
    if (status == TESS_OK && prints)
        status = tess__measure_print(measure, model, stdout);
    free(measure->pair);
    return status;
}

enum tess_status tess__topo_measure(const struct tess__topo *topo)
{
    struct tess__measure measure = {.rank_count = topo->topology->device_count};
    if (measure.rank_count < 2 || measure.rank_count > TESS_WORLD_RANKS_MAX)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--measure takes 2 to %d ranks and there are %d devices: choose some with "
                  "--devices, or more with --ranks",
                  TESS_WORLD_RANKS_MAX, (int)measure.rank_count);
    enum tess_status status = probe_comm(&measure, NULL, topo->options->comm);
    if (status == TESS_OK)
        status = probe_run(&measure, topo->routed ? topo : NULL, true);
    probe_close(&measure);
    return status;
}

/* What a file has of the ranks' machines; rank r is its device r. */
static enum tess_status probe_model(struct tess__topo *topo, int32_t ranks)
{
    if (!topo->options->file[0] && !topo->options->machine[0])
        return TESS_OK;
    TESS_TRY(tess__topo_load(topo));
    if (topo->topology->device_count != ranks)
        TESS_FAIL(TESS_ERR_USAGE,
                  "there are %d ranks, and %d devices in %s: choose as many with --devices",
                  (int)ranks, (int)topo->topology->device_count, topo->source);
    TESS_TRY(tess__topo_find(topo));
    return tess__topo_print(topo, stdout);
}

/* Ranks that another program started; this process is one of them. */
static enum tess_status probe_placed(struct tess__topo *topo, const struct tess_boot_env *env,
                                     const struct tess_started *place,
                                     struct tess__measure *measure)
{
    measure->rank_count = place->rank_count;
    TESS_TRY(probe_comm(measure, place, topo->options->comm));
    if (env->local_rank >= 0 && env->local_count > env->local_rank) {
        measure->slot = env->local_rank;
        measure->slot_count = env->local_count;
    }
    if (place->rank == 0)
        TESS_TRY(probe_model(topo, place->rank_count));
    TESS_TRY(tess__peers_open(env, PROBE_TIMEOUT_S, &measure->peers));
    enum tess_status status = probe_run(measure, topo->routed ? topo : NULL, place->rank == 0);
    tess__peers_close(measure->peers);
    return status;
}

enum tess_status tess__topo_measure_placed(struct tess__topo *topo, bool *elsewhere_out)
{
    struct tess_boot_env env;
    struct tess_started place;
    struct tess__measure measure = {.slot = 0};
    TESS_TRY(tess__peers_find(&env, &place));
    *elsewhere_out = place.starter != NULL;
    if (!*elsewhere_out)
        return TESS_OK;
    enum tess_status status = probe_placed(topo, &env, &place, &measure);
    probe_close(&measure);
    return status;
}
