/*
 * Which part of the network became slow while ranks train. The judge of slow.h compares pairs of
 * ranks, in windows of 20 steps; here the pairs that became slow together are traced back to the
 * link or the host that they share, from windows of TESS__PACE_SOON steps that ranks send when
 * their steps take longer (pace.h).
 *
 *     usual   of a pair: the median of its first windows of 20 steps (up to 5), the first of which
 *             is enough. Windows in which it has half of that do not count
 *     slow    half of the usual speed or less, and the time which that costs makes the steps 10 %
 *             longer, in NET_ROW short windows in a row that last for NET_LEAST_S together
 *     fast    three quarters of the usual speed
 *
 * Pairs with less than a twentieth of the busiest one's bytes are neither: how long small messages
 * are under way is no speed.
 *
 * The cause is a link of the network that is on the ways of all slow pairs, and on the way of no
 * fast one, by the topology that ranks were placed by. Where that leaves none, or no topology is
 * known, the host is named that all slow pairs have in common, else the hosts between which they
 * are. Links in a row that the same pairs use cannot be distinguished: all of them are named.
 *
 * A cause is named once. It is over when all its pairs are fast in a window of 20 steps.
 *
 * By step: a change in a step after the first whole window makes two steps longer, then come up to
 * 4 steps until the next short window begins, and 2 x 5 steps: 12 to 16, if these last for
 * NET_LEAST_S.
 */
#ifndef TESSERA_RUN_SLOW_NET_H
#define TESSERA_RUN_SLOW_NET_H

#include "job/pace.h"

struct tess_topo_link;
struct tess_topology;
struct tess__slow_net;

#define TESS__SLOW_NET_LINKS 3 /* that are named one by one */

struct tess__slow_net_found {
    const char *name;   /* "the link rack0 - core"; NULL: nothing is slow */
    int64_t since;      /* first step */
    int32_t pairs;      /* of ranks that became slow */
    double bytes_per_s; /* while any were under way: the median of these pairs */
    double usual_per_s; /* the same, before */
    double late_s;      /* of a step: the pair that became longest */
    int64_t over;       /* first step of the window in which it was over; 0: it is not */
    /* What is named: links of the topology, of which one is slow; else a host, by the lowest of its
     * ranks, -1: none. */
    int32_t link_count;
    const struct tess_topo_link *link[TESS__SLOW_NET_LINKS];
    int32_t host;
};

/* host [rank_count] names, borrowed. NULL without memory. */
struct tess__slow_net *tess__slow_net_open(int32_t rank_count, const char *const *host);
/* Device r of the topology, which is borrowed, is that of rank r. */
void tess__slow_net_know(struct tess__slow_net *net, const struct tess_topology *topology);
void tess__slow_net_close(struct tess__slow_net *net); /* NULL is allowed */

/* A message of a short window. True where it has named something: `found` is about that. */
bool tess__slow_net_take(struct tess__slow_net *net, int32_t from,
                         const struct tess__run_links *links);
/* Bytes per second of a pair in a window of 20 steps that is whole; then, after all pairs: its
 * first step. True where what was named is over. */
void tess__slow_net_learn(struct tess__slow_net *net, int32_t from, int32_t to, double rate);
bool tess__slow_net_over(struct tess__slow_net *net, int64_t first_step);

const struct tess__slow_net_found *tess__slow_net_found(const struct tess__slow_net *net);
/* Is the pair one of those that were named together? */
bool tess__slow_net_covers(const struct tess__slow_net *net, int32_t from, int32_t to);
/* The sentence about what began or ended last. */
void tess__slow_net_text(const struct tess__slow_net *net, char *text, size_t bytes);

#endif
