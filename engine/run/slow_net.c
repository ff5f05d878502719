/* The link or the host that slow pairs of ranks share (slow_net.h): arithmetic alone. */
#include "run/slow_net.h"

#include "tessera/check.h"
#include "topology/machine/route.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NET_SHARE   0.1  /* of a step without the lateness */
#define NET_SLOW    0.5  /* of the usual speed */
#define NET_FAST    0.75 /* of the usual speed */
#define NET_BYTES   0.05 /* of the busiest pair's */
#define NET_ROW     2    /* short windows */
#define NET_LEAST_S 0.5
#define NET_FIRST   5 /* windows of 20 steps that show what is usual, at most */
#define NET_NAMED   3 /* pairs of hosts, or links, that are named one by one */
#define NET_RANKS   TESS_WORLD_RANKS_MAX

struct net_pair {
    float bytes, busy_s;          /* of the short window; a step's mean */
    int64_t window;               /* of these */
    int32_t row;                  /* short windows in a row in which it was slow */
    double lasts_s;               /* these */
    int64_t since;                /* by the first of them */
    bool fast, slow;              /* in the short window; slow for long enough */
    bool covered;                 /* part of what was named */
    float first[NET_FIRST], rate; /* bytes per second; rate: of the latest window of 20 steps */
    int32_t first_count;
    double usual; /* 0: not known so far */
};

struct tess__slow_net {
    int32_t rank_count;
    const char *const *host;
    int32_t host_of[NET_RANKS]; /* the first rank on the same host */
    struct tess_routes routes;  /* zeroed: no topology */
    int64_t window, since;      /* the short window that comes */
    float step_s;
    bool heard[NET_RANKS], judged;
    struct net_pair pair[NET_RANKS][NET_RANKS]; /* [from][to] */
    struct tess__slow_net_found found;
    char name[512];
};

struct tess__slow_net *tess__slow_net_open(int32_t rank_count, const char *const *host)
{
    struct tess__slow_net *net = calloc(1, sizeof(*net));
    if (net == NULL)
        return NULL;
    net->rank_count = rank_count;
    net->host = host;
    net->judged = true;
    for (int32_t r = 0; r < rank_count; r++)
        while (strcmp(host[net->host_of[r]], host[r]) != 0)
            net->host_of[r]++;
    return net;
}

enum tess_status tess__slow_net_know(struct tess__slow_net *net,
                                     const struct tess_topology *topology)
{
    return tess_routes_open(topology, &net->routes);
}

void tess__slow_net_close(struct tess__slow_net *net)
{
    if (net == NULL)
        return;
    tess_routes_free(&net->routes);
    free(net);
}

static bool net_apart(const struct tess__slow_net *net, int32_t from, int32_t to)
{
    return net->host_of[from] != net->host_of[to];
}

/* The next pair of ranks on different hosts after pair `at`, -1: the first; NULL: no more. */
static struct net_pair *net_next(struct tess__slow_net *net, int32_t *at)
{
    const int32_t ranks = net->rank_count;
    for (++*at; *at < ranks * ranks; ++*at)
        if (net_apart(net, *at / ranks, *at % ranks))
            return &net->pair[*at / ranks][*at % ranks];
    return NULL;
}

/* ---- what is usual --------------------------------------------------------------------------- */

void tess__slow_net_learn(struct tess__slow_net *net, int32_t from, int32_t to, double rate)
{
    struct net_pair *pair = &net->pair[from][to];
    float sorted[NET_FIRST];
    pair->rate = (float)rate;
    if (!(rate > NET_SLOW * pair->usual) || pair->first_count == NET_FIRST)
        return;
    pair->first[pair->first_count++] = (float)rate;
    memcpy(sorted, pair->first, sizeof(sorted));
    pair->usual = tess__pace_median(sorted, pair->first_count);
}

bool tess__slow_net_over(struct tess__slow_net *net, int64_t first_step)
{
    struct net_pair *pair;
    int32_t at = -1;
    if (net->found.name == NULL || first_step <= net->found.since)
        return false;
    while ((pair = net_next(net, &at)))
        if (pair->covered && pair->rate < NET_FAST * pair->usual)
            return false;
    for (at = -1; (pair = net_next(net, &at));)
        pair->covered = false;
    net->found = (struct tess__slow_net_found){.over = first_step};
    return true;
}

/* ---- by the topology ------------------------------------------------------------------------- */

static bool net_same_link(const struct tess_topo_link *a, const struct tess_topo_link *b)
{
    return (a->from == b->from && a->to == b->to) || (a->from == b->to && a->to == b->from);
}

/* Is the link, in either direction, on the way of pair `at`? */
static bool net_on_way(const struct tess__slow_net *net, int32_t at,
                       const struct tess_topo_link *link)
{
    const struct tess_routes *routes = &net->routes;
    const struct tess_route *way = &routes->route[at];
    for (int32_t i = 0; i < way->link_count; i++)
        if (net_same_link(&routes->topology->link[routes->link[way->first + i]], link))
            return true;
    return false;
}

/* Is it on the ways of all slow pairs, and on no fast one's? */
static bool net_explains(struct tess__slow_net *net, const struct tess_topo_link *link)
{
    const struct net_pair *pair;
    for (int32_t at = -1; (pair = net_next(net, &at));)
        if ((pair->slow || pair->fast) && net_on_way(net, at, link) != pair->slow)
            return false;
    return true;
}

/* Links of the network that explain what is slow; false: none does, or too many. */
static bool net_name_links(struct tess__slow_net *net)
{
    const struct tess_routes *routes = &net->routes;
    const struct tess_topo_link *found[NET_NAMED];
    const struct net_pair *pair;
    int32_t at = -1, count = 0;
    if (routes->topology == NULL || routes->device_count != net->rank_count)
        return false;
    while ((pair = net_next(net, &at)) && !pair->slow)
        ;
    const struct tess_node *node = routes->topology->node;
    for (int32_t i = 0; pair && i < routes->route[at].link_count; i++) {
        const struct tess_topo_link *link =
            &routes->topology->link[routes->link[routes->route[at].first + i]];
        const bool of_network =
            node[link->from].kind == TESS_NODE_NET || node[link->to].kind == TESS_NODE_NET;
        if (!of_network || !net_explains(net, link))
            continue;
        if (count == NET_NAMED)
            return false;
        found[count++] = link;
    }
    int used =
        snprintf(net->name, sizeof(net->name), "%s", count == 1 ? "the link" : "one of the links");
    for (int32_t i = 0; i < count; i++)
        used += snprintf(net->name + used, sizeof(net->name) - (size_t)used, "%s %s - %s",
                         i > 0 ? "," : "", node[found[i]->from].name, node[found[i]->to].name);
    return count > 0;
}

/* ---- by the hosts ---------------------------------------------------------------------------- */

struct net_hosts {
    bool slow[NET_RANKS][NET_RANKS]; /* [a][b], a < b: the first ranks of two hosts */
    bool fast[NET_RANKS][NET_RANKS];
    int32_t slow_count, other_count; /* pairs of hosts; other: they are fast alone */
};

static void net_find_hosts(struct tess__slow_net *net, struct net_hosts *hosts)
{
    const struct net_pair *pair;
    memset(hosts, 0, sizeof(*hosts));
    for (int32_t at = -1; (pair = net_next(net, &at));) {
        const int32_t from = net->host_of[at / net->rank_count];
        const int32_t to = net->host_of[at % net->rank_count];
        const int32_t a = from < to ? from : to, b = from < to ? to : from;
        hosts->slow[a][b] = hosts->slow[a][b] || pair->slow;
        hosts->fast[a][b] = hosts->fast[a][b] || pair->fast;
    }
    for (int32_t a = 0; a < net->rank_count; a++)
        for (int32_t b = a + 1; b < net->rank_count; b++) {
            hosts->slow_count += hosts->slow[a][b];
            hosts->other_count += hosts->fast[a][b] && !hosts->slow[a][b];
        }
}

/* Has the host all slow pairs, and no fast one? */
static bool net_is_host(const struct tess__slow_net *net, const struct net_hosts *hosts,
                        int32_t host)
{
    int32_t slow = 0;
    for (int32_t r = 0; r < net->rank_count; r++) {
        const int32_t a = r < host ? r : host, b = r < host ? host : r;
        if (hosts->fast[a][b])
            return false;
        slow += hosts->slow[a][b];
    }
    return slow == hosts->slow_count;
}

static void net_name_hosts(struct tess__slow_net *net)
{
    struct net_hosts hosts;
    int32_t named = 0;
    net_find_hosts(net, &hosts);
    for (int32_t r = 0; r < net->rank_count && hosts.slow_count > 1; r++)
        if (net_is_host(net, &hosts, r)) {
            snprintf(net->name, sizeof(net->name), "the network of host %s", net->host[r]);
            return;
        }
    if (hosts.slow_count > 1 && hosts.other_count == 0) {
        snprintf(net->name, sizeof(net->name), "the network between all hosts");
        return;
    }
    int used = snprintf(net->name, sizeof(net->name), "the network between hosts");
    for (int32_t a = 0; a < net->rank_count; a++)
        for (int32_t b = a + 1; b < net->rank_count; b++)
            if (hosts.slow[a][b] && named++ < NET_NAMED)
                used += snprintf(net->name + used, sizeof(net->name) - (size_t)used,
                                 "%s %.64s and %.64s", named > 1 ? "," : "", net->host[a],
                                 net->host[b]);
    if (named > NET_NAMED)
        snprintf(net->name + used, sizeof(net->name) - (size_t)used, " and %d more pairs",
                 named - NET_NAMED);
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static void net_see(const struct tess__slow_net *net, struct net_pair *pair, float most_bytes)
{
    const double rate = pair->busy_s > 0 ? pair->bytes / pair->busy_s : 0;
    const bool known = pair->window == net->window && rate > 0 && pair->usual > 0 &&
                       pair->bytes >= NET_BYTES * most_bytes;
    const double late_s = known ? pair->busy_s - pair->bytes / pair->usual : 0;
    const bool slow = known && rate <= NET_SLOW * pair->usual &&
                      late_s >= NET_SHARE / (1 + NET_SHARE) * net->step_s;
    pair->row = slow ? pair->row + 1 : 0;
    pair->since = pair->row > 1 ? pair->since : net->since;
    pair->lasts_s = slow ? pair->lasts_s + TESS__PACE_SOON * net->step_s : 0;
    pair->slow = pair->row >= NET_ROW && pair->lasts_s >= NET_LEAST_S && !pair->covered;
    pair->fast = known && rate >= NET_FAST * pair->usual;
}

/* The figures of the slow pairs, which are part of it from here on. */
static void net_find(struct tess__slow_net *net)
{
    float rate[NET_RANKS * NET_RANKS], usual[NET_RANKS * NET_RANKS];
    struct tess__slow_net_found *found = &net->found;
    struct net_pair *pair;
    *found = (struct tess__slow_net_found){.name = net->name, .since = INT64_MAX};
    for (int32_t at = -1; (pair = net_next(net, &at));) {
        if (!pair->slow)
            continue;
        pair->covered = true;
        found->since = pair->since < found->since ? pair->since : found->since;
        rate[found->pairs] = pair->bytes / pair->busy_s;
        usual[found->pairs++] = (float)pair->usual;
        found->late_s = fmax(found->late_s, pair->busy_s - pair->bytes / pair->usual);
    }
    found->bytes_per_s = tess__pace_median(rate, found->pairs);
    found->usual_per_s = tess__pace_median(usual, found->pairs);
}

static bool net_judge(struct tess__slow_net *net)
{
    struct net_pair *pair;
    float most_bytes = 0;
    bool any = false;
    net->judged = true;
    for (int32_t at = -1; (pair = net_next(net, &at));)
        if (pair->window == net->window)
            most_bytes = fmaxf(most_bytes, pair->bytes);
    for (int32_t at = -1; (pair = net_next(net, &at));) {
        net_see(net, pair, most_bytes);
        any = any || pair->slow;
    }
    if (!any)
        return false;
    if (!net_name_links(net))
        net_name_hosts(net);
    net_find(net);
    return true;
}

static void net_begin(struct tess__slow_net *net, const struct tess__run_links *links)
{
    struct net_pair *pair;
    if (links->window != net->window + 1)
        for (int32_t at = -1; (pair = net_next(net, &at));)
            pair->row = 0, pair->lasts_s = 0;
    memset(net->heard, 0, sizeof(net->heard));
    net->window = links->window;
    net->since = links->since;
    net->judged = false;
}

bool tess__slow_net_take(struct tess__slow_net *net, int32_t from,
                         const struct tess__run_links *links)
{
    bool named = false;
    if (links->window < net->window)
        return false;
    if (links->window > net->window) {
        named = !net->judged && net_judge(net); /* the ranks that did not send it see no delay */
        net_begin(net, links);
    }
    if (net->judged)
        return named;
    for (int32_t i = 0; i < links->count && i < TESS__PACE_LINKS; i++) {
        const int32_t to = links->link[i].peer;
        if (to < 0 || to >= net->rank_count)
            continue;
        net->pair[from][to].bytes = links->link[i].bytes;
        net->pair[from][to].busy_s = links->link[i].busy_s;
        net->pair[from][to].window = links->window;
    }
    net->since = links->since < net->since ? links->since : net->since;
    net->step_s = links->step_s;
    net->heard[from] = net->heard[from] || links->last;
    for (int32_t r = 0; r < net->rank_count; r++)
        if (!net->heard[r])
            return named;
    return net_judge(net) || named;
}

/* ---- questions ------------------------------------------------------------------------------- */

const struct tess__slow_net_found *tess__slow_net_found(const struct tess__slow_net *net)
{
    return &net->found;
}

bool tess__slow_net_covers(const struct tess__slow_net *net, int32_t from, int32_t to)
{
    return net->pair[from][to].covered;
}

void tess__slow_net_text(const struct tess__slow_net *net, char *text, size_t bytes)
{
    const struct tess__slow_net_found *found = &net->found;
    if (found->name == NULL)
        snprintf(text, bytes,
                 "the network between hosts is as fast as usual again: from step %" PRId64 " on",
                 found->over);
    else
        snprintf(text, bytes,
                 "%s is slow since step %" PRId64 ": %d pair%s of ranks send%s %.3g MB/s%s, where "
                 "%.3g MB/s are usual; that is %.3g ms of each step",
                 found->name, found->since, found->pairs, found->pairs == 1 ? "" : "s",
                 found->pairs == 1 ? "s" : "", 1e-6 * found->bytes_per_s,
                 found->pairs == 1 ? "" : " each", 1e-6 * found->usual_per_s, 1e3 * found->late_s);
}
