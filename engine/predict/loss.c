/* What a step's time goes to, in numbers and in words. */
#include "predict/virtual.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Over which links, where there are hosts. */
static const char *loss_link(const struct tess_network *network, int32_t group)
{
    if (network->cluster.host_net_bytes_per_s <= 0)
        return "";
    return network->group[group].hosts > 1 ? " over the network" : " within hosts";
}

#define LOSS_TEXT 32

/* "all-reduce", as a user reads it; sends and receives are both ends of messages. */
static const char *loss_collective(enum tess_collective collective, char text[LOSS_TEXT])
{
    if (collective == TESS_COLLECTIVE_SEND || collective == TESS_COLLECTIVE_RECV)
        return "messages";
    snprintf(text, LOSS_TEXT, "%s", tess_collective_name(collective));
    for (char *at = text; (at = strchr(at, '_')) != NULL;)
        *at = '-';
    return text;
}

/* The calls of one group and kind that are exposed the most, and the unit that waits most. */
static void loss_calls(const struct virtual_rank *rank, const char *const *unit_name,
                       struct tess_prediction_loss *loss)
{
    static const char *const group_name[TESS_PREDICT_GROUPS] = {
        "along the data axis", "along the tensor axis", "along the stages", "over all ranks"};
    const int32_t units = rank->unit_count + 1;
    char text[LOSS_TEXT];
    for (int32_t kind = 0; kind < TESS_PREDICT_GROUPS * TESS_COLLECTIVE_COUNT; kind++) {
        const double *lost_s = rank->lost_s + (ptrdiff_t)kind * units;
        const int32_t group = kind / TESS_COLLECTIVE_COUNT;
        double seconds = 0;
        int32_t unit = 0;
        for (int32_t u = 0; u < units; u++) {
            seconds += lost_s[u];
            unit = lost_s[u] > lost_s[unit] ? u : unit;
        }
        if (seconds <= loss->call_s)
            continue;
        const bool named = unit < rank->unit_count;
        loss->call_s = seconds;
        snprintf(loss->call, sizeof(loss->call), "%s %s%s%s%.40s",
                 loss_collective((enum tess_collective)(kind % TESS_COLLECTIVE_COUNT), text),
                 group_name[group], loss_link(rank->world->network, group),
                 named ? ", most of it at unit " : "", named ? unit_name[unit] : "");
    }
}

struct tess_prediction_loss virtual_loss(const struct virtual_rank *rank,
                                         const struct tess_prediction_stage *stage,
                                         const char *const *unit_name)
{
    struct tess_prediction_loss loss = {.product_s = stage->product_s,
                                        .pass_s = stage->pass_s,
                                        .launch_s = stage->launch_s,
                                        .bubble_s = stage->bubble_s};
    loss_calls(rank, unit_name, &loss);
    return loss;
}

/* Less than this share of the step is no limit, and exposed calls below the second are not named.
 */
#define LOSS_LEAST  0.05
#define LOSS_LISTED 0.005

/*
 * Append "0.3 ms (1.2 %) of launches", "1441 ms (20 %) of launches": three digits of the time, more
 * where there are more before the point.
 */
static void loss_add(double s, double step_s, const char *what, char text[TESS_PREDICT_LIMIT])
{
    const size_t used = strlen(text);
    const double share = 100 * s / step_s;
    snprintf(text + used, TESS_PREDICT_LIMIT - used,
             s < 0.1 ? "%.3g ms (%.*f %%) of %s" : "%.0f ms (%.*f %%) of %s", 1e3 * s,
             share < 9.95 ? 1 : 0, share, what);
}

static void loss_add_calls(const struct tess_prediction_loss *loss, double step_s,
                           char text[TESS_PREDICT_LIMIT])
{
    char what[sizeof(loss->call) + LOSS_TEXT];
    snprintf(what, sizeof(what), "waiting for %s", loss->call);
    loss_add(loss->call_s, step_s, what, text);
}

const char *tess_prediction_limit(const struct tess_prediction_loss *loss, double step_s,
                                  char text[TESS_PREDICT_LIMIT])
{
    const double least = LOSS_LEAST * step_s;
    text[0] = '\0';
    if (loss->call_s >= least && loss->call_s >= loss->bubble_s && loss->call_s >= loss->launch_s) {
        loss_add_calls(loss, step_s, text);
        return text;
    }
    if (loss->bubble_s >= least && loss->bubble_s >= loss->launch_s)
        loss_add(loss->bubble_s, step_s, "waiting for other stages", text);
    else if (loss->launch_s >= least)
        loss_add(loss->launch_s, step_s, "launches by the host", text);
    else if (loss->product_s >= loss->pass_s)
        loss_add(loss->product_s, step_s, "products", text);
    else
        loss_add(loss->pass_s, step_s, "memory passes", text);
    if (loss->call_s >= LOSS_LISTED * step_s) {
        strcat(text, "; then ");
        loss_add_calls(loss, step_s, text);
    }
    return text;
}
