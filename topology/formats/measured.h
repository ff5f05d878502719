/*
 * A network, from how fast pairs of hosts are beside each other: which hosts are behind a link that
 * they share and that is too narrow for all of them. Arithmetic only: the caller measures (the
 * program's launchers) gets from here the pairs to send next, and returns their rates.
 *
 *     tournament rounds -> group -> rounds within and across the groups, by turns -> judge
 *
 * A pair alone does not show that others share its way: in each round all hosts send, one to one,
 * both ways. The grouping is tested before it is accepted: where the network is even, rates differ
 * by chance alone, and the best groups that chance offers do not stand a test of their own.
 */
#ifndef TOPOLOGY_MEASURED_H
#define TOPOLOGY_MEASURED_H

#include "topology/machine/topology.h"

#define TESS_MEASURED_HOSTS_MAX 64 /* of more hosts several count as one */
#define TESS_MEASURED_TURNS     3  /* tests within and across */
/* Within groups it must be as many times as fast as across, or there are no groups. */
#define TESS_MEASURED_RATIO 1.5

/* One round: hosts that sent to each other. */
struct tess_measured_round {
    int32_t partner[TESS_MEASURED_HOSTS_MAX];   /* -1: it did nothing */
    double gbs[TESS_MEASURED_HOSTS_MAX];        /* that it received, 10^9 bytes/s */
    double latency_us[TESS_MEASURED_HOSTS_MAX]; /* to its partner, before the others began */
};

struct tess_measured {
    int32_t host_count;
    /* Hosts that follow each other, so many, count as one here, and rates are a host's in the mean;
     * 0 is 1. */
    int32_t block;
    int32_t group_count;                    /* 1: the network is even, as far as could be seen */
    int32_t group[TESS_MEASURED_HOSTS_MAX]; /* of a host; numbered by their lowest hosts */
    double ratio;                           /* rate of a pair within its group to one across */
    double edge_gbs;                        /* of a host; 0: not known */
    double uplink_gbs[TESS_MEASURED_HOSTS_MAX]; /* of a group: what its hosts got across, added */
    double edge_us, uplink_us;                  /* latency of such links; 0: not known */
};

/* Round 0 ..: every host meets every other once in as many rounds as there are hosts, less one
 * where they are even; then so on in another order. */
void tess_measured_tournament(int32_t host_count, int32_t round, int32_t *partner_out);

/* So many hosts are to count as one each; 1 up to TESS_MEASURED_HOSTS_MAX hosts. */
int32_t tess_measured_block(int32_t hosts);

/* The groups that separate rates best; group_count is 1 where none do, and edge_gbs the
 * middle of all rates. host_count is set. */
void tess_measured_find(const struct tess_measured_round *round, int32_t round_count,
                        struct tess_measured *measured);

/* Pairs for turn 0 .. of the test: as many as can be within groups, or across. */
void tess_measured_within(const struct tess_measured *measured, int32_t turn, int32_t *partner_out);
void tess_measured_across(const struct tess_measured *measured, int32_t turn, int32_t *partner_out);

/* The verdict: groups that did not stand the test are joined to one. [TESS_MEASURED_TURNS] each. */
void tess_measured_judge(const struct tess_measured_round *within,
                         const struct tess_measured_round *across, struct tess_measured *measured);

/*
 * `hosts` hosts by name with so many devices each, in the order of hosts; groups behind switches
 * rack0 .. of a network, or one network alone. Rates that are not known are 12.5.
 */
enum tess_status tess_measured_topology(const struct tess_measured *measured, int32_t hosts,
                                        const char *const *name, const int32_t *devices,
                                        struct tess_topology **topology_out);

#endif
