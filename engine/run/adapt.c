/* Whether other numbers of ranks help against a part of the network that is slow (adapt.h). */
#include "run/adapt.h"

#include "job/place.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define ADAPT_GAIN 1.1 /* less is within what a topology's rates are wrong by */
#define ADAPT_LEAST                                                                                \
    10.0 /* seconds that the part costs in the steps that are left: a start takes                  \
            some, with the network to be measured and data to be loaded */

/* Which links of the topology are slow, and what is left of their speed. */
static void adapt_describe(const struct tess__run *run, const struct tess__slow_net_found *found,
                           struct tess__slowed *part)
{
    const struct tess_topology *topology = run->placed->topology;
    *part = (struct tess__slowed){.share = found->bytes_per_s / found->usual_per_s};
    snprintf(part->name, sizeof(part->name), "%s", found->name);
    for (int32_t i = 0; i < found->link_count; i++)
        tess__slowed_add(part, topology, found->link[i]);
    if (found->link_count == 0 && found->host >= 0 && topology != NULL &&
        topology->device_count == run->rank_count)
        tess__slowed_add_host(part, topology, found->host);
}

static bool adapt_has_been(const struct tess__slowed_parts *parts, const struct tess__slowed *part)
{
    for (int32_t p = 0; p < parts->count; p++)
        if (strcmp(parts->part[p].name, part->name) == 0)
            return true;
    return parts->count == TESS__SLOWED_PARTS;
}

/* Why ranks stay as they are; NULL: they do not, or another measurement decides: adapt->gain. */
static const char *adapt_why_not(struct tess__adapt *adapt, const struct tess__run *run,
                                 const struct tess__history *history,
                                 const struct tess__slow_net_found *found,
                                 const struct tess__slowed *part)
{
    const int64_t left = tess_engine_step_count(run->planned) - adapt->step;
    if (adapt_has_been(&history->slowed, part))
        return "they have been numbered anew for it before";
    if ((double)left * found->late_s < ADAPT_LEAST)
        return "the steps that are left do not pay for another start";
    if (part->link_count == 0)
        return run->placed->measured ? NULL : "it is no part of the topology that they have";
    if (tess__place_gain(run, part, &adapt->gain) != TESS_OK)
        return "no other order can be computed";
    return adapt->gain < ADAPT_GAIN ? "no other order is 10 % better" : NULL;
}

bool tess__adapt_judge(struct tess__adapt *adapt, const struct tess__run *run,
                       struct tess__history *history, const struct tess__slow_net_found *found,
                       int64_t seen)
{
    struct tess__slowed part;
    if (run->renumber == NULL || *run->renumber != TESS__RENUMBER_NO || found->name == NULL ||
        found->since == adapt->since || seen - TESS__PACE_STEPS < found->since)
        return false;
    *adapt =
        (struct tess__adapt){.since = found->since, .step = seen, .part = found->name, .gain = NAN};
    adapt_describe(run, found, &part);
    const char *why_not = adapt_why_not(adapt, run, history, found, &part);
    adapt->renumbers = why_not == NULL;
    if (!adapt->renumbers) {
        snprintf(adapt->text, sizeof(adapt->text), "%s stays slow; ranks keep their numbers: %s",
                 found->name, why_not);
        return true;
    }
    char how[96] = "the network is measured again";
    if (!isnan(adapt->gain))
        snprintf(how, sizeof(how),
                 "in another order the most loaded link is done %.1f times as soon", adapt->gain);
    snprintf(adapt->text, sizeof(adapt->text),
             "%s stays slow; %s: saving, then ranks get other numbers (--topology.adapt)",
             found->name, how);
    history->slowed.part[history->slowed.count++] = part;
    *run->renumber = TESS__RENUMBER_ASKED;
    return true;
}

bool tess__adapt_decide(struct tess__adapt *adapt, const struct tess__run *run,
                        struct tess__history *history, const struct tess__slow *slow)
{
    return tess__adapt_judge(adapt, run, history, tess__slow_network(slow), tess__slow_step(slow));
}

void tess__adapt_open(struct tess__run *run, struct tess__history *history)
{
    run->step_done = history != NULL ? &history->step : NULL;
    run->slowed = history != NULL ? &history->slowed : NULL;
    run->renumber = history != NULL && run->config->placing.adapt ? &history->renumber : NULL;
}
