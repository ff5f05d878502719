/* The arithmetic of measured networks, see measured.h. */
#include "topology/formats/measured.h"

#include "tessera/check.h"
#include "topology/formats/slurm.h"
#include "topology/machine/rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Connections stall now and then: such a rate is not the network's. When hosts are grouped, no rate
 * counts as a smaller part of the median than this. */
#define MEASURED_LEAST 0.125
#define MEASURED_FEW   16 /* hosts with which every step of the merging is worth a second look */
#define MEASURED_TRIM  4  /* observations of a pair, each direction of each round one */
/* Below this contrast groups are not worth a test. */
#define MEASURED_CONTRAST 1.2

/* ---- which pairs send ----------------------------------------------------------------------- */

static uint32_t measured_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/*
 * The circle method: the last stands still, the others move on by one place a round, and opposite
 * places play. With an odd number one more is a dummy. Each further tournament has the hosts
 * in another order, the same on every machine.
 */
void tess_measured_tournament(int32_t host_count, int32_t round, int32_t *partner_out)
{
    const int32_t even = host_count + host_count % 2, rounds = even - 1;
    int32_t host[TESS_MEASURED_HOSTS_MAX + 1];
    uint32_t state = (uint32_t)(round / rounds);
    for (int32_t i = 0; i < even; i++)
        host[i] = i;
    for (int32_t i = even - 1; i > 0 && round >= rounds; i--) {
        int32_t other = (int32_t)(measured_random(&state) % (uint32_t)(i + 1)), kept = host[i];
        host[i] = host[other];
        host[other] = kept;
    }
    for (int32_t i = 0; i < even / 2; i++) {
        int32_t a = i == 0 ? even - 1 : (round + i) % rounds;
        int32_t b = (round + rounds - i) % rounds;
        bool both = host[a] < host_count && host[b] < host_count;

        if (host[a] < host_count)
            partner_out[host[a]] = both ? host[b] : -1;
        if (host[b] < host_count)
            partner_out[host[b]] = both ? host[a] : -1;
    }
}

int32_t tess_measured_block(int32_t hosts)
{
    return (hosts + TESS_MEASURED_HOSTS_MAX - 1) / TESS_MEASURED_HOSTS_MAX;
}

static void measured_pair(int32_t a, int32_t b, int32_t *partner_out)
{
    partner_out[a] = b;
    partner_out[b] = a;
}

void tess_measured_within(const struct tess_measured *measured, int32_t turn, int32_t *partner_out)
{
    for (int32_t h = 0; h < measured->host_count; h++)
        partner_out[h] = -1;
    for (int32_t g = 0; g < measured->group_count; g++) {
        int32_t member[TESS_MEASURED_HOSTS_MAX], count = 0;

        for (int32_t h = 0; h < measured->host_count; h++)
            if (measured->group[h] == g)
                member[count++] = h;
        for (int32_t i = 0; i + 1 < count; i += 2)
            measured_pair(member[(i + turn) % count], member[(i + 1 + turn) % count], partner_out);
    }
}

/* Group after group in a row: hosts half the row apart are in different groups, unless one group is
 * more than half of all. The second half moves on by `turn`. Returns how many pairs there are. */
static int32_t measured_cross(const struct tess_measured *measured, int32_t turn,
                              int32_t *partner_out)
{
    const int32_t half = measured->host_count / 2;
    int32_t row[TESS_MEASURED_HOSTS_MAX], count = 0, pairs = 0;
    for (int32_t g = 0; g < measured->group_count; g++)
        for (int32_t h = 0; h < measured->host_count; h++)
            if (measured->group[h] == g)
                row[count++] = h;
    for (int32_t h = 0; h < measured->host_count; h++)
        partner_out[h] = -1;
    for (int32_t i = 0; i < half; i++) {
        int32_t a = row[i], b = row[count - half + (i + turn) % half];
        if (measured->group[a] == measured->group[b])
            continue;
        measured_pair(a, b, partner_out);
        pairs++;
    }
    return pairs;
}

void tess_measured_across(const struct tess_measured *measured, int32_t turn, int32_t *partner_out)
{
    int32_t most = measured_cross(measured, 0, partner_out);
    if (measured_cross(measured, turn, partner_out) < most)
        (void)measured_cross(measured, 0, partner_out);
}

/* ---- which hosts belong together ------------------------------------------------------------ */

/* Sums of logarithms of rates over what was seen of each pair. Logarithms, as rates differ by
 * factors. */
struct measured_pairs {
    int32_t count;
    double least_gbs;
    double sum[TESS_MEASURED_HOSTS_MAX][TESS_MEASURED_HOSTS_MAX];
    int32_t seen[TESS_MEASURED_HOSTS_MAX][TESS_MEASURED_HOSTS_MAX];
    double least[TESS_MEASURED_HOSTS_MAX][TESS_MEASURED_HOSTS_MAX]; /* of the same */
};

static int measured_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Half of the rates are below it. */
static double measured_median(const struct tess_measured_round *round, int32_t round_count,
                              int32_t host_count)
{
    double *rate = malloc(((size_t)round_count * (size_t)host_count + 1) * sizeof(*rate)),
           median = 0;
    size_t count = 0;
    if (rate == NULL)
        return 0;
    for (int32_t r = 0; r < round_count; r++)
        for (int32_t h = 0; h < host_count; h++)
            if (round[r].partner[h] >= 0)
                rate[count++] = round[r].gbs[h];
    qsort(rate, count, sizeof(*rate), measured_compare);
    median = count > 0 ? rate[count / 2] : 0;
    free(rate);
    return median;
}

static void measured_add_one(struct measured_pairs *pairs, int32_t a, int32_t b, double value)
{
    if (pairs->seen[a][b] == 0 || value < pairs->least[a][b])
        pairs->least[a][b] = value;
    pairs->sum[a][b] += value;
    pairs->seen[a][b]++;
}

static void measured_add(const struct tess_measured_round *round, struct measured_pairs *pairs)
{
    for (int32_t h = 0; h < pairs->count; h++) {
        int32_t other = round->partner[h];
        const double gbs = round->gbs[h] > pairs->least_gbs ? round->gbs[h] : pairs->least_gbs;
        const double value = log(gbs > 0 ? gbs : 1);

        if (other < 0 || other >= pairs->count || other == h)
            continue;
        /* Both directions count for the pair, whose rates both hosts have. */
        measured_add_one(pairs, h, other, value);
        measured_add_one(pairs, other, h, value);
    }
}

/* Of pairs that were seen often enough the worst is left out. */
static void measured_trim(struct measured_pairs *pairs)
{
    for (int32_t a = 0; a < pairs->count; a++)
        for (int32_t b = 0; b < pairs->count; b++) {
            if (pairs->seen[a][b] < MEASURED_TRIM)
                continue;
            pairs->sum[a][b] -= pairs->least[a][b];
            pairs->seen[a][b]--;
        }
}

/*
 * How well a grouping separates rates: the part of their variance that lies between pairs within
 * and pairs across (Otsu's criterion, IEEE SMC 9, 1979). Negative where pairs within are slower.
 */
static double measured_worth(const struct measured_pairs *pairs, const int32_t *group,
                             double *contrast_out)
{
    double sum[2] = {0, 0}, seen[2] = {0, 0}, apart;
    for (int32_t a = 0; a < pairs->count; a++)
        for (int32_t b = a + 1; b < pairs->count; b++) {
            int which = group[a] == group[b] ? 0 : 1;
            sum[which] += pairs->sum[a][b];
            seen[which] += pairs->seen[a][b];
        }
    *contrast_out = 1;
    if (seen[0] == 0 || seen[1] == 0)
        return 0;
    apart = sum[0] / seen[0] - sum[1] / seen[1];
    *contrast_out = exp(apart);
    return (apart < 0 ? -1 : 1) * apart * apart * seen[0] * seen[1] / (seen[0] + seen[1]);
}

/* The two groups with the fastest pairs between them, by the mean; false: none were seen. */
static bool measured_nearest(const struct measured_pairs *pairs, const int32_t *group,
                             int32_t *a_out, int32_t *b_out)
{
    struct {
        double sum;
        int32_t seen;
    } between[TESS_MEASURED_HOSTS_MAX] = {{0, 0}};
    double best = -HUGE_VAL;
    bool found = false;
    for (int32_t g = 0; g < pairs->count; g++) {
        memset(between, 0, sizeof(between));
        for (int32_t a = 0; a < pairs->count; a++)
            for (int32_t b = 0; b < pairs->count && group[a] == g; b++) {
                between[group[b]].sum += pairs->sum[a][b];
                between[group[b]].seen += pairs->seen[a][b];
            }
        for (int32_t other = g + 1; other < pairs->count; other++) {
            double mean = between[other].seen > 0 ? between[other].sum / between[other].seen : 0;
            if (between[other].seen == 0 || (found && mean <= best))
                continue;
            best = mean;
            found = true;
            *a_out = g;
            *b_out = other;
        }
    }
    return found;
}

/* One host at a time into the group where it is worth most, as merging never looks back. */
static double measured_refine(const struct measured_pairs *pairs, int32_t *group, double worth,
                              double *contrast)
{
    bool moved = true;
    for (int32_t pass = 0; pass < pairs->count && moved; pass++) {
        moved = false;
        for (int32_t h = 0; h < pairs->count; h++)
            for (int32_t other = 0; other < pairs->count; other++) {
                const int32_t kept = group[h];
                double now, apart;

                if (group[other] == kept)
                    continue;
                group[h] = group[other];
                now = measured_worth(pairs, group, &apart);
                if (now > worth * (1 + 1e-9)) {
                    worth = now;
                    *contrast = apart;
                    moved = true;
                } else {
                    group[h] = kept;
                }
            }
    }
    return worth;
}

/* Numbers in the order of the groups' lowest hosts; returns how many there are. */
static int32_t measured_number(int32_t *group, int32_t host_count)
{
    int32_t number[TESS_MEASURED_HOSTS_MAX], count = 0;
    for (int32_t g = 0; g < TESS_MEASURED_HOSTS_MAX; g++)
        number[g] = -1;
    for (int32_t h = 0; h < host_count; h++) {
        if (number[group[h]] < 0)
            number[group[h]] = count++;
        group[h] = number[group[h]];
    }
    return count;
}

static void measured_none(struct tess_measured *measured)
{
    measured->group_count = 1;
    memset(measured->group, 0, sizeof(measured->group));
}

void tess_measured_find(const struct tess_measured_round *round, int32_t round_count,
                        struct tess_measured *measured)
{
    struct measured_pairs pairs = {.count = measured->host_count};
    int32_t group[TESS_MEASURED_HOSTS_MAX], best[TESS_MEASURED_HOSTS_MAX],
        tried[TESS_MEASURED_HOSTS_MAX], a = 0, b = 0;
    double best_worth = 0, best_contrast = 1;
    measured->edge_gbs = measured_median(round, round_count, pairs.count);
    pairs.least_gbs = MEASURED_LEAST * measured->edge_gbs;
    for (int32_t r = 0; r < round_count; r++)
        measured_add(&round[r], &pairs);
    measured_trim(&pairs);
    for (int32_t h = 0; h < pairs.count; h++)
        group[h] = best[h] = h;
    while (measured_nearest(&pairs, group, &a, &b)) {
        double contrast, worth;

        for (int32_t h = 0; h < pairs.count; h++)
            group[h] = group[h] == b ? a : group[h];
        memcpy(tried, group, sizeof(tried));
        worth = measured_worth(&pairs, tried, &contrast);
        if (pairs.count <= MEASURED_FEW && worth > 0)
            worth = measured_refine(&pairs, tried, worth, &contrast);
        if (worth <= best_worth)
            continue;
        best_worth = worth;
        best_contrast = contrast;
        memcpy(best, tried, sizeof(best));
    }
    if (best_worth > 0)
        (void)measured_refine(&pairs, best, best_worth, &best_contrast);
    measured->ratio = best_contrast;
    measured_none(measured);
    if (best_worth <= 0 || best_contrast < MEASURED_CONTRAST)
        return;
    memcpy(measured->group, best, (size_t)pairs.count * sizeof(*best));
    measured->group_count = measured_number(measured->group, pairs.count);
}

/* ---- is it true ----------------------------------------------------------------------------- */

struct measured_mean {
    double gbs, latency_us; /* of the pairs of a round, or of several */
};

static struct measured_mean measured_mean(const struct tess_measured_round *round,
                                          int32_t host_count)
{
    struct measured_mean mean = {0, 0};
    int32_t count = 0;
    for (int32_t h = 0; h < host_count; h++) {
        if (round->partner[h] < 0)
            continue;
        mean.gbs += round->gbs[h];
        mean.latency_us += round->latency_us[h];
        count++;
    }
    mean.gbs /= count > 0 ? count : 1;
    mean.latency_us /= count > 0 ? count : 1;
    return mean;
}

/* What a group's hosts got from others and the others from them, whichever is more. */
static double measured_uplink(const struct tess_measured *measured,
                              const struct tess_measured_round *across, int32_t group)
{
    double in = 0, out = 0;
    for (int32_t h = 0; h < measured->host_count; h++) {
        if (across->partner[h] < 0)
            continue;
        in += measured->group[h] == group ? across->gbs[h] : 0;
        out += measured->group[across->partner[h]] == group ? across->gbs[h] : 0;
    }
    return in > out ? in : out;
}

static double measured_middle(const double value[TESS_MEASURED_TURNS])
{
    const double a = fmin(value[0], value[1]), b = fmax(value[0], value[1]);
    return fmax(a, fmin(b, value[2]));
}
_Static_assert(TESS_MEASURED_TURNS == 3, "the middle of three");

/*
 * The middle turn within against the best turn across: stalls and neighbours make rates lower,
 * nothing makes them higher than what the links carry. Where links are shared no turn across is
 * fast.
 */
void tess_measured_judge(const struct tess_measured_round *within,
                         const struct tess_measured_round *across, struct tess_measured *measured)
{
    double inner[TESS_MEASURED_TURNS], outer = 0, near_us = HUGE_VAL, far_us = HUGE_VAL;
    memset(measured->uplink_gbs, 0, sizeof(measured->uplink_gbs));
    for (int32_t t = 0; t < TESS_MEASURED_TURNS; t++) {
        const struct measured_mean near = measured_mean(&within[t], measured->host_count);
        const struct measured_mean far = measured_mean(&across[t], measured->host_count);

        inner[t] = near.gbs;
        outer = fmax(outer, far.gbs);
        near_us = fmin(near_us, near.latency_us);
        far_us = fmin(far_us, far.latency_us);
        for (int32_t g = 0; g < measured->group_count; g++)
            measured->uplink_gbs[g] =
                fmax(measured->uplink_gbs[g], measured_uplink(measured, &across[t], g));
    }
    measured->edge_gbs = measured_middle(inner);
    measured->ratio = outer > 0 ? measured->edge_gbs / outer : 0; /* 0: the test is broken */
    /* A way between two hosts is two links, across two groups four. */
    measured->edge_us = near_us / 2;
    measured->uplink_us = fmax(0, (far_us - near_us) / 2);
    if (measured->ratio < TESS_MEASURED_RATIO)
        measured_none(measured);
}

/* ---- a topology ----------------------------------------------------------------------------- */

static enum tess_status measured_link(struct tess_topology *topology, int32_t a, int32_t b,
                                      double gbs, double us)
{
    struct tess_topo_link link = {.kind = TESS_LINK_NET,
                                  .from = a,
                                  .to = b,
                                  .gbs = gbs > 0 ? gbs : TESS_GBS_NET_UNKNOWN,
                                  .latency_us = us,
                                  .count = 1};
    return tess_topology_join_link(topology, link);
}

static enum tess_status measured_build(const struct tess_measured *measured, int32_t hosts,
                                       const char *const *name, const int32_t *devices,
                                       struct tess_topology *topology)
{
    const int32_t block = measured->block > 0 ? measured->block : 1;
    int32_t network, rack[TESS_MEASURED_HOSTS_MAX];
    TESS_TRY(tess__slurm_add_switch(topology, TESS__SLURM_NETWORK, &network));
    for (int32_t g = 0; g < measured->group_count && measured->group_count > 1; g++) {
        char text[16];
        snprintf(text, sizeof(text), "rack%d", (int)g);
        TESS_TRY(tess__slurm_add_switch(topology, text, &rack[g]));
        TESS_TRY(measured_link(topology, rack[g], network, block * measured->uplink_gbs[g],
                               measured->uplink_us));
    }
    for (int32_t h = 0; h < hosts; h++) {
        int32_t cpu;
        TESS_TRY(tess__slurm_add_host(topology, name[h], h, devices[h], &cpu, NULL));
        TESS_TRY(measured_link(
            topology, cpu, measured->group_count > 1 ? rack[measured->group[h / block]] : network,
            measured->edge_gbs, measured->edge_us));
    }
    return tess_topology_finish(topology);
}

enum tess_status tess_measured_topology(const struct tess_measured *measured, int32_t hosts,
                                        const char *const *name, const int32_t *devices,
                                        struct tess_topology **topology_out)
{
    struct tess_topology *topology = tess_topology_new();
    if (topology == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "no memory for the network between %d hosts", (int)hosts);
    return tess_topology_give(topology, measured_build(measured, hosts, name, devices, topology),
                              topology_out);
}
