/* Measuring rates between ranks: pairs one after the other, then all ranks in pairs at once. */
#include "cli/topo_measure.h"

#include "base/clock.h"
#include "base/options.h"
#include "config/config_device.h"
#include "job/launch_env.h"
#include "tessera/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MEASURE_SMALL 4096 /* bytes of a message whose time is latency */
#define MEASURE_TRIAL 65536
/* Seconds of exchanges of all pairs, one repetition of each; and the most for one exchange. */
#define MEASURE_ALL_S 2.0
#define MEASURE_ONE_S 0.2

/* What the lower rank of a pair sends to the launcher. */
struct measure_sent {
    int32_t a, b;
    bool together;
    double gbs, latency_us;
};

struct measure_rank {
    const struct tess__measure *measure;
    struct tess__rank *launched;
    struct tess_comm *comm;
    unsigned char *out, *in;
};

static enum tess_status measure_exchange(struct measure_rank *rank, int32_t peer, size_t bytes)
{
    struct tess_event sent = {0}, got = {0};
    TESS_TRY(tess_comm_send(rank->comm, rank->out, bytes / 4, TESS_F32, peer, &sent));
    TESS_TRY(tess_comm_recv(rank->comm, rank->in, bytes / 4, TESS_F32, peer, &got));
    TESS_TRY(tess_event_wait(&got));
    return tess_event_wait(&sent);
}

/* The median time of an exchange; peer -1: it only waits with the others. All ranks begin together
 * each time. */
static enum tess_status measure_time(struct measure_rank *rank, int32_t peer, size_t bytes,
                                     double *seconds_out)
{
    double sample[TESS__MEASURE_REPEATS] = {0};
    for (int i = -1; i < TESS__MEASURE_REPEATS; i++) {
        TESS_TRY(tess_comm_barrier(rank->comm));
        double start = tess_clock_s();
        if (peer >= 0)
            TESS_TRY(measure_exchange(rank, peer, bytes));
        if (i >= 0)
            sample[i] = tess_clock_s() - start;
    }
    qsort(sample, TESS__MEASURE_REPEATS, sizeof(sample[0]), tess__measure_compare);
    *seconds_out = sample[TESS__MEASURE_REPEATS / 2];
    return TESS_OK;
}

/* Few enough bytes that a slow network does not take minutes: the same on all ranks. */
static enum tess_status measure_size(struct measure_rank *rank, int32_t peer, size_t *bytes_out)
{
    double seconds, slowest, count = rank->comm->rank_count;
    double limit_s = fmin(MEASURE_ONE_S, 2 * MEASURE_ALL_S / (count * (count - 1)));
    TESS_TRY(measure_time(rank, peer, MEASURE_TRIAL, &seconds));
    TESS_TRY(
        tess_comm_all_reduce(rank->comm, &seconds, &slowest, 1, TESS_F64, TESS_REDUCE_MAX, NULL));
    double most = slowest > 0 ? MEASURE_TRIAL * limit_s / slowest : INFINITY;
    *bytes_out = most >= TESS__MEASURE_BYTES ? TESS__MEASURE_BYTES
                 : most < MEASURE_TRIAL      ? MEASURE_TRIAL
                                             : (size_t)most / 4 * 4;
    return TESS_OK;
}

static enum tess_status measure_report(struct measure_rank *rank, int32_t peer, bool together,
                                       double gbs, double latency_us)
{
    struct measure_sent measured = {.a = rank->comm->rank,
                                    .b = peer,
                                    .together = together,
                                    .gbs = gbs,
                                    .latency_us = latency_us};
    if (peer <= rank->comm->rank)
        return TESS_OK;
    return tess__rank_send(rank->launched, 0, &measured, sizeof(measured));
}

static enum tess_status measure_alone(struct measure_rank *rank, int32_t a, int32_t b)
{
    int32_t self = rank->comm->rank, peer = self == a ? b : self == b ? a : -1;
    double latency_s, seconds;
    size_t bytes;
    TESS_TRY(measure_time(rank, peer, MEASURE_SMALL, &latency_s));
    TESS_TRY(measure_size(rank, peer, &bytes));
    TESS_TRY(measure_time(rank, peer, bytes, &seconds));
    return measure_report(rank, peer, false, (double)bytes / seconds / 1e9, 1e6 * latency_s);
}

/*
 * The partner of a rank in a round of a tournament: the last stays, the others rotate around it.
 * With an odd number one rank has no partner: -1.
 */
static int32_t measure_partner(int32_t count, int32_t round, int32_t self)
{
    int32_t seats = count + count % 2, turning = seats - 1, partner;
    if (self == seats - 1)
        partner = round % turning;
    else if (self == round % turning)
        partner = seats - 1;
    else
        partner = (int32_t)((2 * (int64_t)round - self + 2 * (int64_t)turning) % turning);
    return partner < count ? partner : -1;
}

static enum tess_status measure_together(struct measure_rank *rank)
{
    int32_t count = rank->comm->rank_count, rounds = count + count % 2 - 1;
    for (int32_t round = 0; round < rounds; round++) {
        int32_t peer = measure_partner(count, round, rank->comm->rank);
        double seconds;
        size_t bytes;
        TESS_TRY(measure_size(rank, peer, &bytes));
        TESS_TRY(measure_time(rank, peer, bytes, &seconds));
        if (peer >= 0)
            TESS_TRY(measure_report(rank, peer, true, (double)bytes / seconds / 1e9, 0));
    }
    return TESS_OK;
}

static enum tess_status measure_all(struct measure_rank *rank)
{
    int32_t count = rank->comm->rank_count;
    void *out, *in;
    size_t bytes = TESS__MEASURE_BYTES;
    TESS_TRY(tess_comm_alloc(rank->comm, bytes, &out));
    TESS_TRY(tess_comm_alloc(rank->comm, bytes, &in));
    rank->out = out;
    rank->in = in;
    memset(out, 0, bytes);
    memset(in, 0, bytes);
    for (int32_t a = 0; a < count; a++)
        for (int32_t b = a + 1; b < count; b++)
            TESS_TRY(measure_alone(rank, a, b));
    TESS_TRY(measure_together(rank));
    return tess_comm_barrier(rank->comm); /* peers may still read this rank's arrays */
}

static enum tess_status measure_body(void *context, struct tess__rank *launched)
{
    struct measure_rank rank = {.measure = context, .launched = launched};
    TESS_TRY(tess__open_comm(&rank.measure->how, launched, &rank.comm));
    enum tess_status status = measure_all(&rank);
    if (status != TESS_OK && status != TESS_ERR_ABORTED)
        tess_comm_abort(rank.comm, tess_log_last_error());
    tess_comm_close(rank.comm);
    return status;
}

static enum tess_status measure_message(void *context, const struct tess__message *message)
{
    struct tess__measure *measure = context;
    struct measure_sent measured;
    memcpy(&measured, message->payload, sizeof(measured));
    if (measured.a < 0 || measured.b >= measure->rank_count || measured.a >= measured.b)
        return TESS_OK; /* from a launcher of another program */
    struct tess__measured_pair *there =
        &measure->pair[measured.a * measure->rank_count + measured.b];
    if (measured.together) {
        there->together_gbs = measured.gbs;
    } else {
        there->alone_gbs = measured.gbs;
        there->latency_us = measured.latency_us;
    }
    measure->pair[measured.b * measure->rank_count + measured.a] = *there;
    return TESS_OK;
}

static enum tess_status measure_run(struct tess__measure *measure)
{
    const struct tess__launch launch = {.rank_count = measure->rank_count,
                                        .peers = measure->peers,
                                        .mode = TESS_RANKS_PROCESSES,
                                        .bind = !measure->peers || measure->slot_count > 0,
                                        .slot = measure->slot,
                                        .slot_count = measure->slot_count,
                                        .context = measure,
                                        .body = measure_body,
                                        .message = measure_message};
    return tess__launch_run(&launch);
}

/* ---- which ranks, over what, beside which model -------------------------------------------- */

#define PROBE_TIMEOUT_S 60.0

/* Chooses the communicator as the other commands do. place: of ranks that another program started.
 */
static enum tess_status probe_comm(struct tess__measure *measure, const struct tess_started *place,
                                   const char *name)
{
    struct tess_device_plan plan = {.comm_options = &measure->comm};
    TESS_TRY(tess_options_open(&measure->options));
    TESS_TRY(tess_comm_options_add(measure->options, &measure->comm));
    const enum tess_status status =
        tess_device_plan_host(place, measure->rank_count, TESS_RANKS_PROCESSES, name, &plan);
    tess_device_plan_free(&plan);
    TESS_TRY(status);
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
    measure->how.peers = measure->peers;
    measure->pair = calloc(ranks * ranks, sizeof(*measure->pair));
    if (!measure->pair)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory left for the rates");
    enum tess_status status = measure_run(measure);
    if (status == TESS_OK && prints)
        status = tess__measure_print(measure, model, stdout);
    free(measure->pair);
    return status;
}

enum tess_status tess__topo_measure(const struct tess__topo *topo)
{
    struct tess__measure measure = {.rank_count = topo->topology->device_count};
    if (measure.rank_count < 2 || measure.rank_count > TESS_RANKS_MAX)
        TESS_FAIL(TESS_ERR_USAGE,
                  "--measure takes 2 to %d ranks and there are %d devices: choose some with "
                  "--devices, or more with --ranks",
                  TESS_RANKS_MAX, (int)measure.rank_count);
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
    tess_boot_begin(&env);
    enum tess_status status = probe_placed(topo, &env, &place, &measure);
    tess_boot_end(status);
    probe_close(&measure);
    return status;
}
