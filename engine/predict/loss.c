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

/* The calls of one group and kind that are exposed the most, and the unit that waits most. */
static void loss_calls(const struct virtual_rank *rank, const char *const *unit_name,
                       struct tess_prediction_loss *loss)
{
    static const char *const group_name[TESS_PREDICT_GROUPS] = {
        "along the data axis", "along the tensor axis", "along the stages", "over all ranks"};
    const int32_t units = rank->unit_count + 1;
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
        snprintf(loss->call, sizeof(loss->call), "%s %s%s exposed%s%.40s",
                 tess_collective_name((enum tess_collective)(kind % TESS_COLLECTIVE_COUNT)),
                 group_name[group], loss_link(rank->world->network, group),
                 named ? ", most at unit " : "", named ? unit_name[unit] : "");
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

#define LOSS_TEXT 32

/* "0.3 ms", "1441 ms": three digits, more where there are more before the point. */
static const char *loss_ms(double s, char text[LOSS_TEXT])
{
    snprintf(text, LOSS_TEXT, s < 0.1 ? "%.3g ms" : "%.0f ms", 1e3 * s);
    return text;
}

const char *tess_prediction_limit(const struct tess_prediction_loss *loss, double step_s,
                                  char text[TESS_PREDICT_LIMIT])
{
    char call[TESS_PREDICT_LIMIT / 2 + 2 * LOSS_TEXT], ms[LOSS_TEXT], *rest = text;
    const double share = 100 / step_s, least = LOSS_LEAST * step_s;
    snprintf(call, sizeof(call), "%s of %s (%.1f %%)", loss_ms(loss->call_s, ms), loss->call,
             loss->call_s * share);
    if (loss->call_s >= least && loss->call_s >= loss->bubble_s && loss->call_s >= loss->launch_s) {
        snprintf(text, TESS_PREDICT_LIMIT, "%s", call);
        return text;
    }
    if (loss->bubble_s >= least && loss->bubble_s >= loss->launch_s)
        snprintf(text, TESS_PREDICT_LIMIT, "%s of waiting for other stages (%.0f %%)",
                 loss_ms(loss->bubble_s, ms), loss->bubble_s * share);
    else if (loss->launch_s >= least)
        snprintf(text, TESS_PREDICT_LIMIT, "%s of launches by the host (%.0f %%)",
                 loss_ms(loss->launch_s, ms), loss->launch_s * share);
    else if (loss->product_s >= loss->pass_s)
        snprintf(text, TESS_PREDICT_LIMIT, "products (%.0f %%)", loss->product_s * share);
    else
        snprintf(text, TESS_PREDICT_LIMIT, "memory passes (%.0f %%)", loss->pass_s * share);
    rest += strlen(text);
    if (loss->call_s >= LOSS_LISTED * step_s)
        snprintf(rest, TESS_PREDICT_LIMIT - (size_t)(rest - text), "; %s", call);
    return text;
}
