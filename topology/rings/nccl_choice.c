/*
 * Which rings NCCL would choose on one host by itself, as far as its search is known: target speeds
 * from a table, high to low, and for each a depth-first search for as many channels as the links
 * hold (ncclTopoCompute of NCCL 2.28, graph/search.cc; steps are limited as there). Rates are those
 * of the ways that data takes. Where NCCL's model of a way differs from that, there is no
 * choice.
 */
#include "topology/rings/nccl_choice.h"

#include "tessera/check.h"
#include "topology/machine/tree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NCCL_STEPS_SAME 256    /* of a search in which all channels are one ring */
#define NCCL_STEPS      16384  /* of any other */
#define NCCL_STEPS_ALL  524288 /* of all searches together */
#define NCCL_NEXT_SPEED 0.49   /* a lower speed is tried down to this part of the best so far */
#define NCCL_INTEL_P2P  1.2    /* what PCIe traffic between GPUs costs in an Intel processor */
#define NCCL_WIDE       25.0   /* GB/s of a channel that is made two */
#define NCCL_SM_LEAST   60     /* its tables have no older ones; 0: not NVIDIA's, or unknown */
#define NCCL_ROUND      1e-3   /* left of a link: less is none */

/* GB/s of a channel that are tried; 0 at the end. */
static const double nccl_speeds[] = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 0};
static const double nccl_speeds_sm90[] = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3, 0};
static const double nccl_speeds_sm100[] = {90, 80, 70, 60, 50, 40, 30, 24, 20, 19, 18, 0};

struct nccl_host {
    enum tess_path_kind least, most; /* of paths between devices */
    int32_t sm;                      /* the lowest */
    double widest_gbs, all_gbs;      /* of a path; of what a device has */
    bool amd;
};

enum nccl_order { NCCL_ANY, NCCL_INDEX, NCCL_REPLAY };

struct nccl {
    const struct tess_topology *topology;
    const struct tess_routes *routes;
    int32_t count;
    double *left;  /* [link_count] */
    bool *intel;   /* [count * count] PHB by an Intel processor */
    int32_t *next; /* [count * count] of each device the others, the best first */
    bool switched; /* an NVSwitch: neighbours by index alone */
    double speed;
    enum tess_path_kind kind; /* no worse paths */
    bool same;
    int64_t steps;
    int32_t channels, hops;
    int32_t order[TESS__NCCL_CHANNELS][TESS__NCCL_DEVICES];
    bool used[TESS__NCCL_DEVICES]; /* in the channel that is built */
    struct tess__nccl_choice best;
    int32_t best_hops;
    enum tess_path_kind best_kind;
};

static void nccl_channel(struct nccl *nccl);

/* ---- links ---------------------------------------------------------------------------------- */

static double nccl_need(const struct nccl *nccl, int32_t a, int32_t b, int32_t link)
{
    bool costly =
        nccl->topology->link[link].kind == TESS_LINK_PCI && nccl->intel[a * nccl->count + b];
    return nccl->speed * (costly ? NCCL_INTEL_P2P : 1);
}

/* Gives the speed back to the first `links` on the way; -1: to all. */
static void nccl_release(struct nccl *nccl, int32_t a, int32_t b, int32_t links)
{
    const struct tess_routes *routes = nccl->routes;
    const struct tess_route *route = &routes->route[a * nccl->count + b];
    for (int32_t k = 0; k < (links < 0 ? route->link_count : links); k++) {
        int32_t link = routes->link[route->first + k];
        nccl->left[link] += nccl_need(nccl, a, b, link);
    }
    nccl->hops -= links < 0 ? route->link_count : 0;
}

/* Takes the speed from all links on the way; false, and nothing taken, where one has no more. */
static bool nccl_take(struct nccl *nccl, int32_t a, int32_t b)
{
    const struct tess_routes *routes = nccl->routes;
    const struct tess_route *route = &routes->route[a * nccl->count + b];
    if (route->kind > nccl->kind)
        return false;
    for (int32_t k = 0; k < route->link_count; k++) {
        int32_t link = routes->link[route->first + k];
        double need = nccl_need(nccl, a, b, link);
        if (nccl->left[link] < need - NCCL_ROUND) {
            nccl_release(nccl, a, b, k);
            return false;
        }
        nccl->left[link] -= need;
    }
    nccl->hops += route->link_count;
    return true;
}

/* ---- one channel ---------------------------------------------------------------------------- */

/* A whole ring is in order[channels]: keep the best, and search another channel. */
static void nccl_ring(struct nccl *nccl)
{
    int32_t channels = ++nccl->channels;
    double total = channels * nccl->speed, best = nccl->best.channels * nccl->best.speed;
    bool as_good = fabs(total - best) <= NCCL_ROUND;
    if (total > best + NCCL_ROUND ||
        (as_good && nccl->best.channels == channels && nccl->hops < nccl->best_hops)) {
        nccl->best.channels = channels;
        nccl->best.speed = nccl->speed;
        nccl->best_hops = nccl->hops;
        nccl->best_kind = nccl->kind;
        memcpy(nccl->best.order, nccl->order, sizeof(nccl->best.order));
    }
    if (channels < TESS__NCCL_CHANNELS) {
        bool used[TESS__NCCL_DEVICES];
        memcpy(used, nccl->used, sizeof(used));
        memset(nccl->used, 0, sizeof(nccl->used));
        nccl_channel(nccl);
        memcpy(nccl->used, used, sizeof(used));
    }
    nccl->channels--;
}

static void nccl_go(struct nccl *nccl, int32_t place, enum nccl_order how)
{
    int32_t *order = nccl->order[nccl->channels], at = order[place], count = nccl->count;
    if (nccl->steps <= 0)
        return;
    nccl->steps--;
    if (place == count - 1) {
        if (nccl_take(nccl, at, order[0])) {
            nccl_ring(nccl);
            nccl_release(nccl, at, order[0], -1);
        }
        return;
    }
    for (int32_t i = 0; i < count - 1; i++) {
        int32_t to = nccl->next[at * count + i];
        if (how == NCCL_INDEX || nccl->switched)
            to = (at + 1) % count;
        else if (how == NCCL_REPLAY)
            to = nccl->order[nccl->channels - 1][place + 1];
        if (!nccl->used[to] && nccl_take(nccl, at, to)) {
            order[place + 1] = to;
            nccl->used[to] = true;
            nccl_go(nccl, place + 1, how);
            nccl->used[to] = false;
            nccl_release(nccl, at, to, -1);
        }
        if (how != NCCL_ANY || nccl->switched)
            return;
    }
}

static void nccl_start(struct nccl *nccl, int32_t first, enum nccl_order how)
{
    nccl->order[nccl->channels][0] = first;
    nccl->used[first] = true;
    nccl_go(nccl, 0, how);
    nccl->used[first] = false;
}

/* The plain order first, or the channel before once more; then all others. */
static void nccl_channel(struct nccl *nccl)
{
    if (nccl->channels == 0)
        nccl_start(nccl, 0, NCCL_INDEX);
    else
        nccl_start(nccl, nccl->order[nccl->channels - 1][0], NCCL_REPLAY);
    if (nccl->same && nccl->channels > 0)
        return;
    for (int32_t i = 0; i < nccl->count; i++)
        nccl_start(nccl, i, NCCL_ANY);
}

/* ---- all speeds ----------------------------------------------------------------------------- */

static void nccl_search(struct nccl *nccl, double speed, enum tess_path_kind kind, bool same)
{
    const struct tess_topology *topology = nccl->topology;
    for (int32_t i = 0; i < topology->link_count; i++)
        nccl->left[i] = topology->link[i].gbs;
    nccl->speed = speed;
    nccl->kind = kind;
    nccl->same = same;
    nccl->steps = same ? NCCL_STEPS_SAME : NCCL_STEPS;
    nccl->hops = 0;
    nccl_channel(nccl);
}

/* Over an AMD processor's NUMA nodes all channels have to be one ring. */
static void nccl_speeds_down(struct nccl *nccl, const double *speed, const struct nccl_host *host)
{
    int64_t left = NCCL_STEPS_ALL;
    for (; *speed > 0; speed++) {
        const struct tess__nccl_choice *best = &nccl->best;
        if (best->channels > 0 && *speed / best->speed <= NCCL_NEXT_SPEED)
            return;
        for (int kind = (int)host->least; kind <= (int)host->most; kind++) {
            for (int same = 1; same >= 0; same--) {
                if (!same && host->amd && kind == TESS_PATH_SYS)
                    continue;
                nccl_search(nccl, *speed, (enum tess_path_kind)kind, same);
                left -= (same ? NCCL_STEPS_SAME : NCCL_STEPS) - nccl->steps;
                if (best->channels * best->speed >= host->all_gbs - NCCL_ROUND ||
                    (left < 0 && best->channels > 0))
                    return;
            }
            if (best->channels > 0 && kind >= (int)nccl->best_kind)
                break;
        }
    }
}

/* ---- its inputs ---------------------------------------------------------------------------- */

/* Of a device the others: the widest way first, then the shortest, then by index from it on. */
static void nccl_sort_next(struct nccl *nccl)
{
    int32_t count = nccl->count;
    for (int32_t at = 0; at < count; at++) {
        int32_t *next = nccl->next + at * count;
        const struct tess_route *route = nccl->routes->route + at * count;
        for (int32_t i = 0; i < count - 1; i++) {
            int32_t to = (at + 1 + i) % count, k = i;
            for (; k > 0; k--) {
                const struct tess_route *before = &route[next[k - 1]];
                if (before->gbs > route[to].gbs ||
                    (before->gbs == route[to].gbs && before->link_count <= route[to].link_count))
                    break;
                next[k] = next[k - 1];
            }
            next[k] = to;
        }
    }
}

static void nccl_mark_intel(struct nccl *nccl)
{
    const struct tess_topology *topology = nccl->topology;
    const struct tess_routes *routes = nccl->routes;
    for (int32_t r = 0; r < nccl->count * nccl->count; r++) {
        const struct tess_route *route = &routes->route[r];
        for (int32_t k = 0; k < route->link_count && route->kind == TESS_PATH_PHB; k++) {
            const struct tess_node *node =
                &topology->node[topology->link[routes->link[route->first + k]].to];
            nccl->intel[r] =
                nccl->intel[r] || (node->kind == TESS_NODE_CPU && node->maker == TESS_CPU_INTEL);
        }
    }
}

/* The NUMA node that a device is attached to, or what else is uppermost. */
static int32_t nccl_numa(const struct tess_topology *topology, const struct tess__topo_tree *tree,
                         int32_t node)
{
    for (int depth = 0; depth < TESS__TOPO_DEPTH_MAX && tree->up[node] >= 0; depth++)
        node = topology->link[tree->up[node]].from;
    return node;
}

/*
 * Does an NVLink join devices of two NUMA nodes? Then NCCL assumes that memory of the other node
 * is reached through it, and its rates are not those of the ways that data takes.
 */
static enum tess_status nccl_bridged(const struct tess_topology *topology, bool *bridged_out)
{
    struct tess__topo_tree tree;
    TESS_TRY(tess__topo_tree_open(topology, &tree));
    *bridged_out = false;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->kind == TESS_LINK_NVLINK && tree.number[link->from] >= 0 &&
            tree.number[link->to] >= 0 &&
            nccl_numa(topology, &tree, link->from) != nccl_numa(topology, &tree, link->to))
            *bridged_out = true;
    }
    tess__topo_tree_close(&tree);
    return TESS_OK;
}

/* Wide channels are made two of half the speed each, as their data is copied by two at a time. */
static void nccl_double(struct nccl *nccl, int32_t sm)
{
    struct tess__nccl_choice *best = &nccl->best;
    int32_t channels = best->channels;
    if (best->speed < NCCL_WIDE || 2 * channels > TESS__NCCL_CHANNELS ||
        (sm > 80 && best->speed < 2 * NCCL_WIDE && channels > 4))
        return;
    memcpy(best->order[channels], best->order[0], (size_t)channels * sizeof(best->order[0]));
    best->channels *= 2;
    best->speed /= 2;
}

static struct nccl_host nccl_look(const struct nccl *nccl)
{
    const struct tess_topology *topology = nccl->topology;
    struct nccl_host host = {.least = TESS_PATH_NONE, .most = TESS_PATH_LOC, .sm = INT32_MAX};
    for (int32_t r = 0; r < nccl->count * nccl->count; r++) {
        const struct tess_route *route = &nccl->routes->route[r];
        if (route->kind == TESS_PATH_LOC)
            continue;
        host.least = route->kind < host.least ? route->kind : host.least;
        host.most = route->kind > host.most ? route->kind : host.most;
        host.widest_gbs = fmax(host.widest_gbs, route->gbs);
    }
    for (int32_t i = 0; i < topology->node_count; i++)
        host.amd = host.amd || topology->node[i].maker == TESS_CPU_AMD;
    for (int32_t i = 0; i < nccl->count; i++) {
        int32_t node = topology->device[i];
        double nvlink = 0, pci = 0;
        host.sm = topology->node[node].sm < host.sm ? topology->node[node].sm : host.sm;
        for (int32_t k = 0; k < topology->link_count; k++) {
            const struct tess_topo_link *link = &topology->link[k];
            if (link->from == node && link->kind == TESS_LINK_NVLINK)
                nvlink += link->gbs;
            else if (link->from == node)
                pci = fmax(pci, link->gbs);
        }
        host.all_gbs = fmax(host.all_gbs, fmax(nvlink, pci));
    }
    return host;
}

static enum tess_status nccl_run(struct nccl *nccl, struct tess__nccl_choice *choice_out)
{
    const struct tess_topology *topology = nccl->topology;
    const struct nccl_host host = nccl_look(nccl);
    int32_t sm = host.sm;
    const double *speed = sm >= 100 ? nccl_speeds_sm100 : sm >= 90 ? nccl_speeds_sm90 : nccl_speeds;
    while (speed[1] > 0 && speed[0] > fmin(host.widest_gbs, host.all_gbs))
        speed++;
    if (host.most == TESS_PATH_NONE || sm < NCCL_SM_LEAST)
        return TESS_OK;
    nccl_sort_next(nccl);
    nccl_mark_intel(nccl);
    nccl_speeds_down(nccl, speed, &host);
    nccl_double(nccl, sm);
    bool bridged = false;
    if (nccl->best_kind > TESS_PATH_NVL)
        TESS_TRY(nccl_bridged(topology, &bridged));
    if (!bridged)
        *choice_out = nccl->best;
    return TESS_OK;
}

enum tess_status tess__nccl_choose(const struct tess_routes *routes,
                                   struct tess__nccl_choice *choice_out)
{
    const struct tess_topology *topology = routes->topology;
    int32_t count = routes->device_count;
    *choice_out = (struct tess__nccl_choice){0};
    size_t cells = (size_t)count * (size_t)count;
    if (topology == NULL || topology->host_count > 1 || count < 2 || count > TESS__NCCL_DEVICES)
        return TESS_OK;
    struct tess__pool pool = {0};
    struct nccl nccl = {
        .topology = topology,
        .routes = routes,
        .count = count,
        .left = tess__pool_array(&pool, (size_t)topology->link_count, sizeof(*nccl.left)),
        .intel = tess__pool_array(&pool, cells, sizeof(*nccl.intel)),
        .next = tess__pool_array(&pool, cells, sizeof(*nccl.next))};
    for (int32_t i = 0; i < topology->node_count; i++)
        nccl.switched = nccl.switched || topology->node[i].kind == TESS_NODE_NVSWITCH;
    enum tess_status status =
        pool.failed ? tess__no_memory("the search of NCCL's rings") : nccl_run(&nccl, choice_out);
    tess__pool_release(&pool);
    return status;
}
