/*
 * Building a topology: nodes and links one by one, then the numbers of devices and the links that
 * files leave out. Names, bus ids and links are found through hash tables, so that a large or
 * hostile file costs no more than its size. Ways through the links are route.c's.
 */
#include "base/hash.h"
#include "tessera/check.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"
#include "topology/machine/topology.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* By what nodes and links are found. */
enum build_by { BUILD_NAME, BUILD_BUS, BUILD_LINK, BUILD_TABLES };

/* Open addressing, at most half full; a slot holds a number + 1, 0 is empty. */
struct build_table {
    int32_t *slot;
    int32_t room; /* a power of two; 0: no slots */
};

/* What tess_topology_new returns begins with the public part. */
struct build_topology {
    struct tess_topology topology;
    struct build_table table[BUILD_TABLES];
};

static struct build_topology *build_box(struct tess_topology *topology)
{
    return (struct build_topology *)topology;
}

struct tess_topology *tess_topology_new(void)
{
    struct build_topology *box = calloc(1, sizeof(*box));
    return box ? &box->topology : NULL;
}

void tess_topology_free(struct tess_topology *topology)
{
    if (topology == NULL)
        return;
    for (int by = 0; by < BUILD_TABLES; by++)
        free(build_box(topology)->table[by].slot);
    free(topology->node);
    free(topology->link);
    free(topology->device);
    free(topology);
}

enum tess_status tess_topology_give(struct tess_topology *topology, enum tess_status status,
                                    struct tess_topology **topology_out)
{
    if (status == TESS_OK)
        *topology_out = topology;
    else
        tess_topology_free(topology);
    return status;
}

/* ---- tables --------------------------------------------------------------------------------- */

/* `item`: a struct tess_topo_link for BUILD_LINK, else a struct tess_node. */
static uint64_t build_hash(enum build_by by, const void *item)
{
    const struct tess_node *node = item;
    const struct tess_topo_link *link = item;
    if (by == BUILD_LINK)
        return tess_hash_mix(
            tess_hash_mix((uint64_t)(uint32_t)link->from << 32 | (uint32_t)link->to) +
            (uint64_t)link->kind);
    if (by == BUILD_NAME)
        return tess_hash_bytes(node->name, strlen(node->name));
    return tess_hash_mix(tess_hash_bytes(node->bus, strlen(node->bus)) +
                         (uint64_t)(uint32_t)node->host);
}

static bool build_same(enum build_by by, const void *a, const void *b)
{
    const struct tess_node *x = a, *y = b;
    const struct tess_topo_link *k = a, *l = b;
    if (by == BUILD_LINK)
        return k->from == l->from && k->to == l->to && k->kind == l->kind;
    if (by == BUILD_NAME)
        return strcmp(x->name, y->name) == 0;
    return x->host == y->host && strcmp(x->bus, y->bus) == 0;
}

static const void *build_item(const struct tess_topology *topology, enum build_by by, int32_t i)
{
    return by == BUILD_LINK ? (const void *)&topology->link[i] : (const void *)&topology->node[i];
}

/* The number of the item that is the same; -1: none. */
static int32_t build_find(const struct tess_topology *topology, enum build_by by, const void *item)
{
    const struct build_table *table = &((const struct build_topology *)topology)->table[by];
    if (!table->room)
        return -1;
    uint32_t mask = (uint32_t)table->room - 1;
    for (uint32_t i = (uint32_t)build_hash(by, item) & mask; table->slot[i]; i = (i + 1) & mask)
        if (build_same(by, build_item(topology, by, table->slot[i] - 1), item))
            return table->slot[i] - 1;
    return -1;
}

/* Enters the items first .. count - 1: all of them from 0 on, or where the table has to grow. A
 * node without a bus id is not found by it. */
static enum tess_status build_enter(struct tess_topology *topology, enum build_by by, int32_t first,
                                    int32_t count)
{
    struct build_table *table = &build_box(topology)->table[by];
    if (first == 0 || 2 * count > table->room) {
        first = 0;
        for (table->room = 64; table->room < 2 * count;)
            table->room *= 2;
        free(table->slot);
        table->slot = calloc((size_t)table->room, sizeof(*table->slot));
        if (table->slot == NULL) {
            table->room = 0;
            return tess__no_memory("the topology");
        }
    }
    const uint32_t mask = (uint32_t)table->room - 1;
    for (int32_t number = first; number < count; number++) {
        const void *item = build_item(topology, by, number);
        uint32_t i = (uint32_t)build_hash(by, item) & mask;
        if (by == BUILD_BUS && ((const struct tess_node *)item)->bus[0] == '\0')
            continue;
        while (table->slot[i] != 0)
            i = (i + 1) & mask;
        table->slot[i] = number + 1;
    }
    return TESS_OK;
}

int32_t tess_topology_find_bus(const struct tess_topology *topology, int32_t host, const char *bus)
{
    struct tess_node node = {.host = host};
    if (!bus[0] || strlen(bus) >= sizeof(node.bus))
        return -1;
    memcpy(node.bus, bus, strlen(bus));
    return build_find(topology, BUILD_BUS, &node);
}

int32_t tess_topology_find_name(const struct tess_topology *topology, const char *name)
{
    struct tess_node node = {.host = 0};
    if (strlen(name) >= sizeof(node.name))
        return -1;
    strcpy(node.name, name);
    return build_find(topology, BUILD_NAME, &node);
}

/* ---- nodes and links ------------------------------------------------------------------------ */

enum tess_status tess_topology_add_node(struct tess_topology *topology,
                                        const struct tess_node *node, int32_t *node_out)
{
    if (node->name[0] == '\0')
        TESS_FAIL(TESS_ERR_DATA, "a node without a name");
    if (topology->node_count >= TESS_TOPO_NODES_MAX)
        TESS_FAIL(TESS_ERR_DATA, "the topology has more than %d nodes; describe a part of it",
                  TESS_TOPO_NODES_MAX);
    if (build_find(topology, BUILD_NAME, node) >= 0)
        TESS_FAIL(TESS_ERR_DATA, "node '%s' is defined twice; names must differ", node->name);
    int32_t number = topology->node_count;
    TESS_TRY(tess__grow(&topology->node, number, sizeof(*node), "the topology"));
    topology->node[topology->node_count++] = *node;
    if (node->host >= topology->host_count)
        topology->host_count = node->host + 1;
    if (node_out != NULL)
        *node_out = number;
    TESS_TRY(build_enter(topology, BUILD_NAME, number, number + 1));
    return build_enter(topology, BUILD_BUS, number, number + 1);
}

struct tess_node tess_topology_node(enum tess_node_kind kind, int32_t host, int32_t index)
{
    return (struct tess_node){.kind = kind, .host = host, .index = index, .socket = -1};
}

enum tess_status tess_topology_add(struct tess_topology *topology, struct tess_node node,
                                   int32_t *node_out, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(node.name, sizeof(node.name), format, list);
    va_end(list);
    return tess_topology_add_node(topology, &node, node_out);
}

enum tess_status tess_topology_add_link(struct tess_topology *topology,
                                        const struct tess_topo_link *link)
{
    if (link->from < 0 || link->from >= topology->node_count || link->to < 0 ||
        link->to >= topology->node_count)
        TESS_FAIL(TESS_ERR_INTERNAL, "a link from node %d to node %d of %d", (int)link->from,
                  (int)link->to, (int)topology->node_count);
    const char *from = topology->node[link->from].name, *to = topology->node[link->to].name;
    if (link->from == link->to)
        TESS_FAIL(TESS_ERR_DATA, "node '%s' has a link to itself", from);
    if (!(link->gbs > 0 && link->gbs <= 1e9) || link->count < 0)
        TESS_FAIL(TESS_ERR_DATA,
                  "the link from '%s' to '%s' carries %g GB/s; expected more than 0 "
                  "and at most 10^9",
                  from, to, link->gbs);
    int32_t there = build_find(topology, BUILD_LINK, link);
    if (there >= 0) {
        topology->link[there].gbs += link->gbs;
        topology->link[there].count += link->count;
        return TESS_OK;
    }
    if (topology->link_count >= TESS_TOPO_LINKS_MAX)
        TESS_FAIL(TESS_ERR_DATA, "the topology has more than %d links; describe a part of it",
                  TESS_TOPO_LINKS_MAX);
    int32_t number = topology->link_count;
    TESS_TRY(tess__grow(&topology->link, number, sizeof(*link), "the topology"));
    topology->link[topology->link_count++] = *link;
    return build_enter(topology, BUILD_LINK, number, number + 1);
}

enum tess_status tess_topology_join(struct tess_topology *topology, enum tess_link_kind kind,
                                    int32_t a, int32_t b, double gbs, int32_t count)
{
    return tess_topology_join_link(
        topology,
        (struct tess_topo_link){.kind = kind, .from = a, .to = b, .gbs = gbs, .count = count});
}

enum tess_status tess_topology_join_link(struct tess_topology *topology, struct tess_topo_link link)
{
    int32_t from = link.from;
    TESS_TRY(tess_topology_add_link(topology, &link));
    link.from = link.to;
    link.to = from;
    return tess_topology_add_link(topology, &link);
}

/* ---- finishing ------------------------------------------------------------------------------ */

/* From one NUMA node to one of another socket: ncclTopoGetInterCpuBw of NCCL 2.28. An
 * unknown processor counts as an Intel Skylake, the narrowest common one. */
static double build_between(const struct tess_node *cpu)
{
    static const double gbs[] = {
        [TESS_CPU_UNKNOWN] = TESS_GBS_UPI_SKL, [TESS_CPU_INTEL] = TESS_GBS_UPI_SKL,
        [TESS_CPU_AMD] = TESS_GBS_AMD,         [TESS_CPU_ARM] = TESS_GBS_ARM,
        [TESS_CPU_POWER] = TESS_GBS_POWER,     [TESS_CPU_ZHAOXIN] = TESS_GBS_ZHAOXIN};
    if (cpu->maker == TESS_CPU_INTEL && cpu->model > 0)
        return cpu->model >= 0xCF   ? TESS_GBS_UPI_GNR
               : cpu->model >= 0x8F ? TESS_GBS_UPI_SPR
               : cpu->model >= 0x55 ? TESS_GBS_UPI_SKL
                                    : TESS_GBS_UPI_OLD;
    if (cpu->maker == TESS_CPU_ZHAOXIN && cpu->model == 0x5b)
        return TESS_GBS_YONGFENG;
    return gbs[cpu->maker];
}

/* The CPU nodes that `node` lists, of one host, to each other. */
static enum tess_status build_join_host(struct tess_topology *topology, const int32_t *node,
                                        int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        for (int32_t j = i + 1; j < count; j++) {
            const struct tess_node *a = &topology->node[node[i]], *b = &topology->node[node[j]];
            if (a->socket >= 0 && a->socket == b->socket) {
                TESS_TRY(tess_topology_join(topology, TESS_LINK_LOCAL, node[i], node[j],
                                            TESS_GBS_LOCAL, 1));
            } else {
                double gbs = fmin(build_between(a), build_between(b));
                TESS_TRY(tess_topology_join(topology, TESS_LINK_SYS, node[i], node[j], gbs, 1));
                topology->remarks |= TESS_REMARK_BETWEEN;
            }
        }
    }
    return TESS_OK;
}

/* NUMA nodes of hosts none of whose NUMA nodes are joined to each other. */
static enum tess_status build_join_numa(struct tess_topology *topology)
{
    int32_t hosts = topology->host_count, nodes = topology->node_count;
    struct tess__pool pool = {0};
    /* The CPU nodes host by host: cpu[first[host]] .. cpu[first[host + 1]). */
    int32_t *first = tess__pool_array(&pool, (size_t)hosts + 1, sizeof(*first));
    int32_t *host_of = tess__pool_array(&pool, (size_t)nodes, sizeof(*host_of));
    int32_t *cpu = tess__pool_array(&pool, (size_t)nodes, sizeof(*cpu));
    bool *joined = tess__pool_array(&pool, (size_t)hosts, sizeof(*joined));
    enum tess_status status = TESS_OK;
    TESS_TRY_GOTO(status, done, pool.failed ? tess__no_memory("the topology") : TESS_OK);
    for (int32_t i = 0; i < nodes; i++)
        host_of[i] = topology->node[i].kind == TESS_NODE_CPU ? topology->node[i].host : -1;
    tess__sort_by_key(nodes, hosts, host_of, first, cpu);
    for (int32_t i = 0; i < topology->link_count; i++) {
        int32_t from = host_of[topology->link[i].from];
        if (from >= 0 && from == host_of[topology->link[i].to])
            joined[from] = true;
    }
    for (int32_t host = 0; host < hosts; host++)
        if (!joined[host])
            TESS_TRY_GOTO(
                status, done,
                build_join_host(topology, cpu + first[host], first[host + 1] - first[host]));
done:
    tess__pool_release(&pool);
    return status;
}

/*
 * Does each of the devices reach another one? Devices do not forward: two that share a link have
 * each other, all others need a common part of what remains when devices are taken out.
 */
static enum tess_status build_check_reach(const struct tess_topology *topology,
                                          const int32_t *device, int32_t count)
{
    if (count < 2)
        return TESS_OK;
    size_t nodes = (size_t)topology->node_count;
    struct tess__pool pool = {0};
    int32_t *parent = tess__pool_array(&pool, nodes, sizeof(*parent));
    int32_t *devices =
        tess__pool_array(&pool, nodes, sizeof(*devices)); /* of a part, at its root */
    bool *chosen = tess__pool_array(&pool, nodes, sizeof(*chosen));
    bool *reaches = tess__pool_array(&pool, nodes, sizeof(*reaches));
    enum tess_status status = TESS_OK;
    TESS_TRY_GOTO(status, done, pool.failed ? tess__no_memory("the topology") : TESS_OK);
    for (int32_t i = 0; i < count; i++)
        chosen[device[i]] = true;
    for (int32_t i = 0; i < topology->node_count; i++)
        parent[i] = i;
#define BUILD_IS_DEVICE(i) (topology->node[i].kind == TESS_NODE_DEVICE)
    for (int32_t i = 0; i < topology->link_count; i++) {
        int32_t from = topology->link[i].from, to = topology->link[i].to;
        if (!BUILD_IS_DEVICE(from) && !BUILD_IS_DEVICE(to))
            parent[tess__root(parent, to)] = tess__root(parent, from);
        else if (chosen[from] && chosen[to])
            reaches[from] = reaches[to] = true;
    }
    /* A device counts once for each way up it has; two ways into one part are no second device. */
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < topology->link_count; i++) {
            int32_t from = topology->link[i].from, to = topology->link[i].to;
            if (!chosen[from] || BUILD_IS_DEVICE(to))
                continue;
            int32_t *seen = &devices[tess__root(parent, to)];
            if (pass == 0)
                *seen = *seen == 0 || *seen == from + 1 ? from + 1 : -1;
            else if (*seen == -1)
                reaches[from] = true;
        }
    }
#undef BUILD_IS_DEVICE
    for (int32_t i = 0; i < count && status == TESS_OK; i++) {
        if (!reaches[device[i]])
            status = tess_fail(TESS_ERR_DATA,
                               "device '%s' reaches no other device; a link to a switch, a "
                               "processor or a device is missing",
                               topology->node[device[i]].name);
    }
done:
    tess__pool_release(&pool);
    return status;
}

/* Host by host, by index, and as they were added where that is the same. */
static int build_compare(const void *a, const void *b, void *nodes)
{
    const int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    const struct tess_node *node = nodes;
    return tess__compare((const int64_t[]){node[i].host, node[i].index, i},
                         (const int64_t[]){node[k].host, node[k].index, k}, 3);
}

static enum tess_status build_number_devices(struct tess_topology *topology)
{
    int32_t *device = malloc(((size_t)topology->node_count + 1) * sizeof(*device)), count = 0;
    if (device == NULL)
        return tess__no_memory("the topology");
    for (int32_t i = 0; i < topology->node_count; i++)
        if (topology->node[i].kind == TESS_NODE_DEVICE)
            device[count++] = i;
    qsort_r(device, (size_t)count, sizeof(*device), build_compare, topology->node);
    free(topology->device);
    topology->device = device;
    topology->device_count = count;
    return TESS_OK;
}

enum tess_status tess_topology_finish(struct tess_topology *topology)
{
    TESS_TRY(build_number_devices(topology));
    if (topology->device_count == 0)
        TESS_FAIL(TESS_ERR_DATA, "the topology has no device; expected at least one GPU or rank");
    TESS_TRY(build_join_numa(topology));
    return build_check_reach(topology, topology->device, topology->device_count);
}

/* ---- selecting ------------------------------------------------------------------------------ */

/* Takes the nodes out that have no place, with their links; place[node]: the new number or -1. */
static enum tess_status build_compact(struct tess_topology *topology, const int32_t *place)
{
    int32_t nodes = 0, links = 0;
    for (int32_t i = 0; i < topology->node_count; i++) {
        if (place[i] >= 0)
            topology->node[nodes++] = topology->node[i];
    }
    for (int32_t i = 0; i < topology->link_count; i++) {
        struct tess_topo_link link = topology->link[i];
        link.from = place[link.from];
        link.to = place[link.to];
        if (link.from >= 0 && link.to >= 0)
            topology->link[links++] = link;
    }
    topology->node_count = nodes;
    topology->link_count = links;
    TESS_TRY(build_enter(topology, BUILD_NAME, 0, nodes));
    TESS_TRY(build_enter(topology, BUILD_BUS, 0, nodes));
    return build_enter(topology, BUILD_LINK, 0, links);
}

/* The nodes of the devices `keep`, and place[node] 1 for each. */
static enum tess_status build_choose(const struct tess_topology *topology, const int32_t *keep,
                                     int32_t count, int32_t *place, int32_t *device)
{
    for (int32_t i = 0; i < count; i++) {
        if (keep[i] < 0 || keep[i] >= topology->device_count)
            TESS_FAIL(TESS_ERR_USAGE, "device %d is chosen; there are 0 to %d", (int)keep[i],
                      (int)topology->device_count - 1);
        device[i] = topology->device[keep[i]];
        if (place[device[i]] != 0)
            TESS_FAIL(TESS_ERR_USAGE, "device %d is chosen twice", (int)keep[i]);
        place[device[i]] = 1;
    }
    return TESS_OK;
}

enum tess_status tess_topology_select(struct tess_topology *topology, const int32_t *keep,
                                      int32_t count)
{
    if (count < 1)
        TESS_FAIL(TESS_ERR_USAGE, "no device is chosen; expected at least one");
    struct tess__pool pool = {0};
    int32_t *place = tess__pool_array(&pool, (size_t)topology->node_count, sizeof(*place));
    int32_t *device = tess__pool_array(&pool, (size_t)count, sizeof(*device));
    enum tess_status status = TESS_OK;
    TESS_TRY_GOTO(status, done, pool.failed ? tess__no_memory("the topology") : TESS_OK);
    TESS_TRY_GOTO(status, done, build_choose(topology, keep, count, place, device));
    TESS_TRY_GOTO(status, done, build_check_reach(topology, device, count));
    int32_t kept = 0;
    for (int32_t i = 0; i < topology->node_count; i++) {
        bool stays = place[i] || topology->node[i].kind != TESS_NODE_DEVICE;
        place[i] = stays ? kept++ : -1;
    }
    for (int32_t i = 0; i < count; i++)
        topology->device[i] = place[device[i]];
    topology->device_count = count;
    status = build_compact(topology, place);
done:
    tess__pool_release(&pool);
    return status;
}

int32_t tess_topology_gfx(const struct tess_topology *topology, const struct tess_topo_link *link)
{
    static const int32_t known[] = {0x906, 0x90a, 0x942};
    if (link->kind != TESS_LINK_NVLINK || link->count < 1 || topology->node[link->from].sm > 0)
        return 0;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (fabs(tess__rate_xgmi(known[i]) - link->gbs / link->count) < 1e-9)
            return known[i];
    return 0;
}
