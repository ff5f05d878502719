/* The link or the host that slow pairs of ranks share (slow_net.h): arithmetic alone. */
#include "run/slow_net.h"

#include "run/pairs.h"
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
#define NET_FIRST   5  /* windows of 20 steps that show what is usual, at most */
#define NET_NAMED   3  /* pairs of hosts that are named one by one */
#define NET_WAY     64 /* links of a way that may be the cause */

struct net_pair {
    struct tess__pair ranks;
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
    int32_t *host_of;                     /* [ranks] the first rank on the same host */
    const struct tess_topology *topology; /* NULL: not known */
    int64_t window, since;                /* the short window that comes */
    float step_s;
    int64_t *heard; /* [ranks] the latest short window that is whole */
    int32_t heard_count;
    bool judged;
    struct tess__pairs pairs; /* of net_pair: those on different hosts that send */
    struct tess__slow_net_found found;
    char name[512];
};

static int net_compare_hosts(const void *a, const void *b, void *context)
{
    const int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    const char *const *host = context;
    const int order = strcmp(host[left], host[right]);
    return order != 0 ? order : (left > right) - (left < right);
}

/* False without memory. */
static bool net_find_host_of(struct tess__slow_net *net)
{
    const size_t ranks = (size_t)net->rank_count;
    int32_t *order = calloc(ranks, sizeof(*order));
    if (order == NULL)
        return false;
    for (int32_t r = 0; r < net->rank_count; r++)
        order[r] = r;
    qsort_r(order, ranks, sizeof(*order), net_compare_hosts, (void *)net->host);
    for (int32_t i = 0, first = 0; i < net->rank_count; i++) {
        if (strcmp(net->host[order[i]], net->host[order[first]]) != 0)
            first = i;
        net->host_of[order[i]] = order[first];
    }
    free(order);
    return true;
}

struct tess__slow_net *tess__slow_net_open(int32_t rank_count, const char *const *host)
{
    struct tess__slow_net *net = calloc(1, sizeof(*net));
    if (net == NULL)
        return NULL;
    net->rank_count = rank_count;
    net->host = host;
    net->judged = true;
    net->pairs.item_bytes = sizeof(struct net_pair);
    net->host_of = calloc((size_t)rank_count, sizeof(*net->host_of));
    net->heard = calloc((size_t)rank_count, sizeof(*net->heard));
    if (net->host_of != NULL && net->heard != NULL && net_find_host_of(net))
        return net;
    tess__slow_net_close(net);
    return NULL;
}

void tess__slow_net_know(struct tess__slow_net *net, const struct tess_topology *topology)
{
    if (topology->device_count == net->rank_count)
        net->topology = topology;
}

void tess__slow_net_close(struct tess__slow_net *net)
{
    if (net == NULL)
        return;
    tess__pairs_close(&net->pairs);
    free(net->host_of);
    free(net->heard);
    free(net);
}

/* The pair, where its ranks are on different hosts; NULL: they are not, or there is no memory. */
static struct net_pair *net_pair(struct tess__slow_net *net, int32_t from, int32_t to)
{
    const int32_t before = net->pairs.count;
    struct net_pair *pair =
        net->host_of[from] != net->host_of[to] ? tess__pairs_get(&net->pairs, from, to) : NULL;
    if (pair != NULL && net->pairs.count > before)
        pair->window = -1;
    return pair;
}

/* The pair after pair `at`, -1: the first; NULL: no more. */
static struct net_pair *net_next(struct tess__slow_net *net, int32_t *at)
{
    return ++*at < net->pairs.count ? tess__pairs_at(&net->pairs, *at) : NULL;
}

/* ---- what is usual --------------------------------------------------------------------------- */

void tess__slow_net_learn(struct tess__slow_net *net, int32_t from, int32_t to, double rate)
{
    struct net_pair *pair = net_pair(net, from, to);
    float sorted[NET_FIRST];
    if (pair == NULL)
        return;
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

/* Is the link, in either direction, on the way to rank `to`? */
static bool net_on_way(const struct tess_routes *row, int32_t to, const struct tess_topo_link *link)
{
    const struct tess_route *way = &row->route[to];
    for (int32_t i = 0; i < way->link_count; i++)
        if (net_same_link(&row->topology->link[row->link[way->first + i]], link))
            return true;
    return false;
}

/* Links that may explain what is slow. */
struct net_causes {
    bool known; /* the ways of a slow pair have been looked at */
    int32_t count;
    const struct tess_topo_link *link[NET_WAY];
};

/* Those of the network on the way to rank `to`. */
static void net_find_causes(const struct tess_routes *row, int32_t to, struct net_causes *causes)
{
    const struct tess_node *node = row->topology->node;
    const struct tess_route *way = &row->route[to];
    causes->known = true;
    for (int32_t i = 0; i < way->link_count && causes->count < NET_WAY; i++) {
        const struct tess_topo_link *link = &row->topology->link[row->link[way->first + i]];
        if (node[link->from].kind == TESS_NODE_NET || node[link->to].kind == TESS_NODE_NET)
            causes->link[causes->count++] = link;
    }
}

/* Leave those that are on the way of this pair if it is slow, and not if it is fast. */
static void net_drop_causes(const struct tess_routes *row, const struct net_pair *pair,
                            struct net_causes *causes)
{
    int32_t left = 0;
    for (int32_t i = 0; i < causes->count; i++)
        if (net_on_way(row, pair->ranks.to, causes->link[i]) == pair->slow)
            causes->link[left++] = causes->link[i];
    causes->count = left;
}

/* Links on the ways of all slow pairs, and on no fast one's. The ways from a rank are searched
 * once; those of slow pairs first, as they say what to look for. */
static enum tess_status net_search(struct tess__slow_net *net, struct tess_route_search *search,
                                   bool slow, struct net_causes *causes)
{
    struct tess_routes row = {.route = NULL};
    enum tess_status status = TESS_OK;
    int32_t from = -1;
    for (int32_t i = 0; i < net->pairs.count && status == TESS_OK; i++) {
        const struct net_pair *pair = tess__pairs_at(&net->pairs, net->pairs.order[i]);
        if (slow ? !pair->slow : !pair->fast || pair->slow)
            continue;
        if (causes->known && causes->count == 0)
            break;
        if (pair->ranks.from != from) {
            from = pair->ranks.from;
            tess_routes_free(&row);
            row = (struct tess_routes){.route = NULL};
            status = tess_route_from(search, from, &row);
        }
        if (status == TESS_OK && !causes->known)
            net_find_causes(&row, pair->ranks.to, causes);
        if (status == TESS_OK)
            net_drop_causes(&row, pair, causes);
    }
    tess_routes_free(&row);
    return status;
}

/* Links of the network that explain what is slow; false: none does, or too many. */
static bool net_name_links(struct tess__slow_net *net)
{
    struct tess_route_search *search = NULL;
    struct net_causes causes = {.count = 0};
    if (net->topology == NULL)
        return false;
    tess__pairs_sort(&net->pairs);
    enum tess_status status = tess_route_search_open(net->topology, &search);
    if (status == TESS_OK)
        status = net_search(net, search, true, &causes);
    if (status == TESS_OK)
        status = net_search(net, search, false, &causes);
    tess_route_search_close(search);
    if (status != TESS_OK || causes.count == 0 || causes.count > TESS__SLOW_NET_LINKS)
        return false;
    net->found.link_count = causes.count;
    memcpy(net->found.link, causes.link, (size_t)causes.count * sizeof(*causes.link));
    const struct tess_node *node = net->topology->node;
    int used = snprintf(net->name, sizeof(net->name), "%s",
                        causes.count == 1 ? "the link" : "one of the links");
    for (int32_t i = 0; i < causes.count; i++)
        used += snprintf(net->name + used, sizeof(net->name) - (size_t)used, "%s %s - %s",
                         i > 0 ? "," : "", node[causes.link[i]->from].name,
                         node[causes.link[i]->to].name);
    return true;
}

/* ---- by the hosts ---------------------------------------------------------------------------- */

/* Two hosts, by their first ranks, the lower one first. */
struct net_host_pair {
    struct tess__pair hosts;
    bool slow, fast;
};

struct net_hosts {
    struct tess__pairs pairs;        /* of net_host_pair */
    int32_t slow_count, other_count; /* pairs of hosts; other: they are fast alone */
    struct net_host {
        int32_t slow, fast; /* pairs of hosts that it is in */
    } * host;               /* [ranks] by its first rank */
};

/* False without memory. */
static bool net_find_hosts(struct tess__slow_net *net, struct net_hosts *hosts)
{
    const struct net_pair *pair;
    hosts->host = calloc((size_t)net->rank_count, sizeof(*hosts->host));
    if (hosts->host == NULL)
        return false;
    for (int32_t at = -1; (pair = net_next(net, &at));) {
        const int32_t from = net->host_of[pair->ranks.from], to = net->host_of[pair->ranks.to];
        if (!pair->slow && !pair->fast)
            continue;
        struct net_host_pair *both =
            tess__pairs_get(&hosts->pairs, from < to ? from : to, from < to ? to : from);
        if (both == NULL)
            return false;
        both->slow = both->slow || pair->slow;
        both->fast = both->fast || pair->fast;
    }
    for (int32_t i = 0; i < hosts->pairs.count; i++) {
        const struct net_host_pair *both = tess__pairs_at(&hosts->pairs, i);
        hosts->slow_count += both->slow;
        hosts->other_count += both->fast && !both->slow;
        hosts->host[both->hosts.from].slow += both->slow;
        hosts->host[both->hosts.to].slow += both->slow;
        hosts->host[both->hosts.from].fast += both->fast;
        hosts->host[both->hosts.to].fast += both->fast;
    }
    tess__pairs_sort(&hosts->pairs);
    return true;
}

static void net_name_pairs(struct tess__slow_net *net, const struct net_hosts *hosts)
{
    int32_t named = 0;
    int used = snprintf(net->name, sizeof(net->name), "the network between hosts");
    for (int32_t i = 0; i < hosts->pairs.count; i++) {
        const struct net_host_pair *both = tess__pairs_at(&hosts->pairs, hosts->pairs.order[i]);
        if (both->slow && named++ < NET_NAMED)
            used += snprintf(net->name + used, sizeof(net->name) - (size_t)used,
                             "%s %.64s and %.64s", named > 1 ? "," : "",
                             net->host[both->hosts.from], net->host[both->hosts.to]);
    }
    if (named > NET_NAMED)
        snprintf(net->name + used, sizeof(net->name) - (size_t)used, " and %d more pairs",
                 named - NET_NAMED);
}

/* A host that has all slow pairs, and no fast one; or what there is. */
static void net_name_hosts(struct tess__slow_net *net)
{
    struct net_hosts hosts = {.pairs.item_bytes = sizeof(struct net_host_pair)};
    int32_t only = -1;
    snprintf(net->name, sizeof(net->name), "the network between hosts");
    if (net_find_hosts(net, &hosts)) {
        for (int32_t r = 0; r < net->rank_count && hosts.slow_count > 1 && only < 0; r++)
            if (hosts.host[r].slow == hosts.slow_count && hosts.host[r].fast == 0)
                only = r;
        net->found.host = only;
        if (only >= 0)
            snprintf(net->name, sizeof(net->name), "the network of host %s", net->host[only]);
        else if (hosts.slow_count > 1 && hosts.other_count == 0)
            snprintf(net->name, sizeof(net->name), "the network between all hosts");
        else
            net_name_pairs(net, &hosts);
    }
    tess__pairs_close(&hosts.pairs);
    free(hosts.host);
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
    float *rate = net->pairs.scratch, *usual = rate + net->pairs.room;
    struct tess__slow_net_found *found = &net->found;
    struct net_pair *pair;
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
    net->found = (struct tess__slow_net_found){.name = net->name, .since = INT64_MAX, .host = -1};
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
    net->heard_count = 0;
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
        struct net_pair *pair = net_pair(net, from, to);
        if (pair == NULL)
            continue;
        pair->bytes = links->link[i].bytes;
        pair->busy_s = links->link[i].busy_s;
        pair->window = links->window;
    }
    net->since = links->since < net->since ? links->since : net->since;
    net->step_s = links->step_s;
    if (links->last && net->heard[from] != links->window) {
        net->heard[from] = links->window;
        net->heard_count++;
    }
    if (net->heard_count < net->rank_count)
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
    const struct net_pair *pair = tess__pairs_find(&net->pairs, from, to);
    return pair != NULL && pair->covered;
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
