/*
 * From the items of NCCL's file to nodes and links, by the rules of NCCL's graph/topo.cc (2.28):
 * what a PCI function is, which of them are one card or one switch, and where NVLinks end. Text
 * and attributes are read_nccl.c's.
 */
#include "topology/formats/nccl.h"
#include "topology/machine/bus.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"

#include "tessera/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct graph {
    struct tess_nccl_file *file;
    struct tess_topology *topology;
    int32_t nvswitch, net; /* nodes; -1 */
    int32_t unnamed;       /* NICs without a <net> so far */
};

/* A <pci> with a <gpu> that is not left out; in a file without any <gpu>, by its class. Beside
 * <gpu>s a class alone is a display of the server's. */
static bool graph_is_device(const struct tess_nccl_file *file, const struct tess_nccl_item *pci)
{
    if (pci->gpu >= 0)
        return file->item[pci->gpu].index != -1;
    return file->gpu_count == 0 && pci->nic < 0 && pci->class == TESS_NCCL_CLASS_GPU;
}

/* ---- numbers and names ----------------------------------------------------------------------- */

struct graph_key {
    int32_t host, index;
    uint64_t bus;
    int32_t item;
};

static int graph_compare_keys(const void *a, const void *b)
{
    const struct graph_key *x = a, *y = b;
    return tess__compare((const int64_t[]){x->host, x->index, (int64_t)x->bus, x->item},
                         (const int64_t[]){y->host, y->index, (int64_t)y->bus, y->item}, 4);
}

/*
 * number[item]: of a <pci> that is a device, on its host. First those that have a number, then
 * those that get what is left, in the order of their bus ids, which is NVML's.
 */
static enum tess_status graph_number(struct graph *g, struct graph_key *key, int32_t *number)
{
    const struct tess_nccl_file *file = g->file;
    int32_t count = 0, next = 0, used = 0; /* used: key of the lowest number from `next` on */
    for (int32_t i = 0; i < file->count; i++) {
        const struct tess_nccl_item *pci = &file->item[i];
        if (pci->kind != TESS_NCCL_PCI || !graph_is_device(file, pci))
            continue;
        const int32_t dev = pci->gpu >= 0 ? file->item[pci->gpu].index : TESS_NCCL_UNKNOWN;
        key[count++] =
            (struct graph_key){pci->host, dev == TESS_NCCL_UNKNOWN ? INT32_MAX : dev, pci->bus, i};
    }
    if (count == 0)
        return tess__lines_fail(
            file->name, file->item[0].line,
            "no device in it, neither a <gpu> nor a <pci> of class 0x03...: NCCL "
            "completes such a file from the machine; expected a complete one, which "
            "NCCL_TOPO_DUMP_FILE writes there");
    qsort(key, (size_t)count, sizeof(*key), graph_compare_keys);
    for (int32_t i = 0; i < count; i++) {
        const bool first = i == 0 || key[i].host != key[i - 1].host;
        if (first) {
            next = 0;
            used = i;
        }
        if (key[i].index == INT32_MAX) {
            for (; key[used].index == next; used++)
                next++;
            number[key[i].item] = next++;
            continue;
        }
        number[key[i].item] = key[i].index;
        if (!first && key[i].index == key[i - 1].index)
            return tess__lines_fail(file->name, file->item[file->item[key[i].item].gpu].line,
                                    "dev %d is that of the <gpu> of line %d already",
                                    (int)key[i].index,
                                    (int)file->item[file->item[key[i - 1].item].gpu].line);
    }
    return TESS_OK;
}

/* A new node of a host; its name is `word`, the host in front where there are several. */
static enum tess_status graph_add(struct graph *g, struct tess_node node, const char *word,
                                  int32_t *number_out)
{
    if (node.host >= 0 && g->file->host_count > 1)
        return tess_topology_add(g->topology, node, number_out, "n%d.%s", (int)node.host, word);
    return tess_topology_add(g->topology, node, number_out, "%s", word);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static enum tess_status graph_cpu(struct graph *g, struct tess_nccl_item *item)
{
    struct tess_node node = tess_topology_node(TESS_NODE_CPU, item->host, item->index);
    char word[24];
    node.maker = item->maker;
    node.model = item->model;
    snprintf(word, sizeof(word), "numa%d", (int)item->index);
    return graph_add(g, node, word, &item->node);
}

/* A node at a bus id, joined to what is above it. */
static enum tess_status graph_at_bus(struct graph *g, struct tess_nccl_item *pci,
                                     struct tess_node node, const char *word)
{
    tess__bus_text(pci->bus, node.bus, sizeof(node.bus));
    if (tess_topology_find_bus(g->topology, pci->host, node.bus) >= 0)
        return tess__lines_fail(g->file->name, pci->line, "bus id %s is taken already", node.bus);
    TESS_TRY(graph_add(g, node, word, &pci->node));
    return tess_topology_join(g->topology, TESS_LINK_PCI, g->file->item[pci->parent].node,
                              pci->node, pci->gbs, 1);
}

static enum tess_status graph_device(struct graph *g, struct tess_nccl_item *pci, int32_t number)
{
    struct tess_node node = tess_topology_node(TESS_NODE_DEVICE, pci->host, number);
    char word[24];
    node.sm = pci->gpu >= 0 ? g->file->item[pci->gpu].sm : pci->sm;
    snprintf(word, sizeof(word), "gpu%d", (int)number);
    return graph_at_bus(g, pci, node, word);
}

/*
 * Broadcom's PEX switches of generation 4 and 5 in base mode show themselves as two levels, though
 * all ports have their full bandwidth. 0: another switch.
 */
static int graph_pex(uint64_t device, int level)
{
    const uint64_t family = device & ~UINT64_C(0xfff);
    if (family == UINT64_C(0x1000c0101000a000))
        return 4;
    return family == (UINT64_C(0x1000c03010000000) | (uint64_t)level << 12) ? 5 : 0;
}

static enum tess_status graph_switch(struct graph *g, struct tess_nccl_item *pci)
{
    const struct tess_nccl_item *above = &g->file->item[pci->parent];
    const int pex = graph_pex(above->device, 0);
    if (above->kind == TESS_NCCL_PCI && !above->merged && pex != 0 &&
        pex == graph_pex(pci->device, 1)) {
        pci->merged = true;
        pci->node = above->node;
        return TESS_OK;
    }
    char word[32] = "pci";
    tess__bus_text(pci->bus, word + 3, sizeof(word) - 3);
    return graph_at_bus(g, pci, tess_topology_node(TESS_NODE_PCI, pci->host, -1), word);
}

/* Another function of the same card that is a NIC already, or -1. */
static int32_t graph_same_card(const struct graph *g, const struct tess_nccl_item *pci)
{
    for (uint64_t function = 0; function < 16; function++) {
        char bus[20];
        const uint64_t other = (pci->bus & ~UINT64_C(0xff)) | function;
        tess__bus_text(other, bus, sizeof(bus));
        const int32_t node = tess_topology_find_bus(g->topology, pci->host, bus);
        if (other != pci->bus && node >= 0 && g->topology->node[node].kind == TESS_NODE_NIC)
            return node;
    }
    return -1;
}

/* A NIC: at its bus id, beside the port of the same card that is there already, or at a CPU. */
static enum tess_status graph_nic_node(struct graph *g, struct tess_nccl_item *owner, int32_t card,
                                       int32_t index, const char *word, int32_t *number_out)
{
    const struct tess_node node = tess_topology_node(TESS_NODE_NIC, owner->host, index);
    if (card < 0 && owner->kind == TESS_NCCL_PCI) {
        TESS_TRY(graph_at_bus(g, owner, node, word));
        *number_out = owner->node;
        return TESS_OK;
    }
    TESS_TRY(graph_add(g, node, word, number_out));
    return tess_topology_join(g->topology, TESS_LINK_LOCAL, card >= 0 ? card : owner->node,
                              *number_out, TESS_GBS_LOCAL, 1);
}

/* Equal names get #dev, which the writer removes: no name has a # of its own. */
static void graph_net_name(const struct tess_nccl_item *net, bool twice, char *word, size_t room)
{
    const size_t most = twice ? 24 : 32; /* with host and dev it is to fit a node's name */
    const size_t length = net->name.length < most ? net->name.length : most;
    int32_t used = snprintf(word, room, "%.*s", (int)length, length > 0 ? net->name.text : "");
    for (int32_t i = 0; i < used; i++) {
        if (word[i] == '#')
            word[i] = '_';
    }
    if (length == 0)
        snprintf(word, room, "net%d", (int)net->index);
    else if (twice)
        snprintf(word + used, room - (size_t)used, "#%d", (int)net->index);
}

static enum tess_status graph_net(struct graph *g, struct tess_nccl_item *net, bool twice,
                                  int32_t *card)
{
    const struct tess_nccl_item *nic = &g->file->item[net->parent];
    char word[TESS_TOPO_NAME_MAX];
    graph_net_name(net, twice, word, sizeof(word));
    TESS_TRY(graph_nic_node(g, &g->file->item[nic->parent], *card, net->index, word, &net->node));
    if (*card < 0)
        *card = net->node;
    if (g->net < 0)
        TESS_TRY(graph_add(g, tess_topology_node(TESS_NODE_NET, -1, -1), "net", &g->net));
    const struct tess_topo_link link = {.kind = TESS_LINK_NET,
                                        .from = net->node,
                                        .to = g->net,
                                        .gbs = net->gbs,
                                        .latency_us = net->latency_us,
                                        .count = 1};
    return tess_topology_join_link(g->topology, link);
}

/* A <nic> with its <net>s, which follow it and raise *count_out; those without dev are not there,
 * as for NCCL. */
static enum tess_status graph_nic(struct graph *g, int32_t number, const bool *twice,
                                  int32_t *count_out)
{
    struct tess_nccl_item *nic = &g->file->item[number];
    const struct tess_nccl_item *owner = &g->file->item[nic->parent];
    int32_t card = owner->kind == TESS_NCCL_PCI ? graph_same_card(g, owner) : -1;
    for (int32_t i = number + 1; i < g->file->count && g->file->item[i].parent == number; i++) {
        struct tess_nccl_item *net = &g->file->item[i];
        if (net->kind != TESS_NCCL_NET || net->index < 0)
            continue;
        TESS_TRY(graph_net(g, net, twice[i], &card));
        ++*count_out;
    }
    return TESS_OK;
}

/*
 * Functions of other classes (NVSwitches, disks) are no part of the tree, nor is a function of no
 * class with nothing below it: in a partial file its meaning is unknown.
 */
static enum tess_status graph_pci(struct graph *g, int32_t number, const int32_t *device,
                                  const bool *twice)
{
    struct tess_nccl_item *pci = &g->file->item[number];
    const struct tess_nccl_item *above = &g->file->item[pci->parent];
    if (above->node < 0 ||
        (above->kind == TESS_NCCL_PCI && g->topology->node[above->node].kind != TESS_NODE_PCI))
        return TESS_OK; /* below a device there is nothing that counts */
    if (graph_is_device(g->file, pci))
        return graph_device(g, pci, device[number]);
    if (pci->gpu >= 0)
        return TESS_OK;
    if (pci->nic >= 0) {
        int32_t nets = 0;
        TESS_TRY(graph_nic(g, pci->nic, twice, &nets));
        if (nets > 0)
            return TESS_OK;
    }
    if (pci->nic >= 0 || pci->class == TESS_NCCL_CLASS_NIC) { /* without a network in the file */
        char word[24];
        snprintf(word, sizeof(word), "nic%d", (int)g->unnamed++);
        return graph_nic_node(g, pci, graph_same_card(g, pci), -1, word, &pci->node);
    }
    const bool open = pci->class == TESS_NCCL_CLASS_NONE || pci->class == TESS_NCCL_CLASS_OTHER;
    if (pci->class == TESS_NCCL_CLASS_SWITCH || (open && pci->count > 0))
        return graph_switch(g, pci);
    return TESS_OK;
}

/* ---- links other than PCI's ------------------------------------------------------------------ */

/* The device of an element within <gpu>, or -1 where it is left out. */
static int32_t graph_owner(const struct graph *g, const struct tess_nccl_item *item)
{
    const int32_t node = g->file->item[g->file->item[item->parent].parent].node;
    return node >= 0 && g->topology->node[node].kind == TESS_NODE_DEVICE ? node : -1;
}

static int32_t graph_local_cpu(const struct graph *g, const struct tess_nccl_item *item)
{
    while (item->kind != TESS_NCCL_CPU)
        item = &g->file->item[item->parent];
    return item->node;
}

static int32_t graph_target(const struct graph *g, const struct tess_nccl_item *item)
{
    char bus[20];
    tess__bus_text(item->bus, bus, sizeof(bus));
    return tess_topology_find_bus(g->topology, item->host, bus);
}

/* To another device: one direction; the other device's element is the other. */
static enum tess_status graph_peer(struct graph *g, const struct tess_nccl_item *item,
                                   int32_t device, double gbs)
{
    const int32_t peer = graph_target(g, item);
    /* NCCL passes over devices that are not in the file; a link to the device itself is how a file
     * keeps NCCL from looking for NVLinks. */
    if (peer < 0 || peer == device)
        return TESS_OK;
    if (g->topology->node[peer].kind != TESS_NODE_DEVICE)
        return tess__lines_fail(g->file->name, item->line,
                                "the target of the NVLink is %s, which is no device",
                                g->topology->node[peer].name);
    const struct tess_topo_link link = {
        .kind = TESS_LINK_NVLINK, .from = device, .to = peer, .gbs = gbs, .count = item->count};
    return tess_topology_add_link(g->topology, &link);
}

/* An NVLink or a C2C of a device. */
static enum tess_status graph_nvlink(struct graph *g, const struct tess_nccl_item *item)
{
    const int32_t device = graph_owner(g, item);
    if (device < 0)
        return TESS_OK;
    if (item->kind == TESS_NCCL_C2C)
        return tess_topology_join(g->topology, TESS_LINK_C2C, device, graph_local_cpu(g, item),
                                  item->gbs, item->count);
    const int32_t sm = g->topology->node[device].sm;
    const double gbs = item->count * (item->gbs > 0 ? item->gbs : tess__rate_nvlink(sm));
    if (!item->hidden && item->class == TESS_NCCL_CLASS_CPU)
        return tess_topology_join(g->topology, TESS_LINK_NVLINK, device, graph_local_cpu(g, item),
                                  gbs, item->count);
    if (!item->hidden && item->class == TESS_NCCL_CLASS_GPU)
        return graph_peer(g, item, device, gbs);
    if (!item->hidden && item->class == TESS_NCCL_CLASS_NONE)
        return tess__lines_fail(
            g->file->name, item->line,
            "an NVLink has no tclass, expected the class of its target: 0x030200 a "
            "device, 0x068000 an NVSwitch");
    const int32_t host = g->file->host_count > 1 ? -1 : 0;
    if (g->nvswitch < 0)
        TESS_TRY(graph_add(g, tess_topology_node(TESS_NODE_NVSWITCH, host, -1), "nvswitch",
                           &g->nvswitch));
    return tess_topology_join(g->topology, TESS_LINK_NVLINK, device, g->nvswitch, gbs, item->count);
}

/* Between switches that the tree does not join; one direction, like NCCL's. */
static enum tess_status graph_pcilink(struct graph *g, const struct tess_nccl_item *item)
{
    const int32_t from = g->file->item[item->parent].node, to = graph_target(g, item);
    if (from < 0 || to < 0 || from == to || g->topology->node[from].kind != TESS_NODE_PCI ||
        g->topology->node[to].kind != TESS_NODE_PCI)
        return TESS_OK;
    const struct tess_topo_link link = {
        .kind = TESS_LINK_LOCAL, .from = from, .to = to, .gbs = TESS_GBS_LOCAL, .count = 1};
    return tess_topology_add_link(g->topology, &link);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int graph_compare_names(const void *a, const void *b)
{
    const struct tess_nccl_item *x = *(struct tess_nccl_item *const *)a;
    const struct tess_nccl_item *y = *(struct tess_nccl_item *const *)b;
    const int order = tess__compare((const int64_t[]){x->host, (int64_t)x->name.length},
                                    (const int64_t[]){y->host, (int64_t)y->name.length}, 2);
    return order != 0 ? order : memcmp(x->name.text, y->name.text, x->name.length);
}

/* twice[item]: a <net> with the name of another one of its host, which NCCL allows. */
static void graph_find_twice(struct graph *g, struct tess_nccl_item **sorted, bool *twice)
{
    int32_t count = 0;
    for (int32_t i = 0; i < g->file->count; i++) {
        if (g->file->item[i].kind == TESS_NCCL_NET && g->file->item[i].name.length > 0)
            sorted[count++] = &g->file->item[i];
    }
    qsort(sorted, (size_t)count, sizeof(*sorted), graph_compare_names);
    for (int32_t i = 1; i < count; i++) {
        if (graph_compare_names(&sorted[i - 1], &sorted[i]) == 0)
            twice[sorted[i - 1] - g->file->item] = twice[sorted[i] - g->file->item] = true;
    }
}

static enum tess_status graph_nodes(struct graph *g, const int32_t *device, const bool *twice)
{
    int32_t nets = 0;
    for (int32_t i = 0; i < g->file->count; i++) {
        struct tess_nccl_item *item = &g->file->item[i];
        if (item->kind == TESS_NCCL_CPU)
            TESS_TRY(graph_cpu(g, item));
        else if (item->kind == TESS_NCCL_PCI)
            TESS_TRY(graph_pci(g, i, device, twice));
        else if (item->kind == TESS_NCCL_NIC && g->file->item[item->parent].kind == TESS_NCCL_CPU)
            TESS_TRY(graph_nic(g, i, twice, &nets));
    }
    return TESS_OK;
}

static enum tess_status graph_links(struct graph *g)
{
    for (int32_t i = 0; i < g->file->count; i++) {
        const struct tess_nccl_item *item = &g->file->item[i];
        if (item->kind == TESS_NCCL_NVLINK || item->kind == TESS_NCCL_C2C)
            TESS_TRY(graph_nvlink(g, item));
        else if (item->kind == TESS_NCCL_PCILINK)
            TESS_TRY(graph_pcilink(g, item));
    }
    return TESS_OK;
}

enum tess_status tess__nccl_graph(struct tess_nccl_file *file, struct tess_topology *topology)
{
    struct graph g = {.file = file, .topology = topology, .nvswitch = -1, .net = -1};
    const size_t count = (size_t)file->count;
    struct tess__pool pool = {0};
    struct graph_key *key = tess__pool_array(&pool, count, sizeof(*key));
    int32_t *device = tess__pool_array(&pool, count, sizeof(*device));
    struct tess_nccl_item **sorted = tess__pool_array(&pool, count, sizeof(*sorted));
    bool *twice = tess__pool_array(&pool, count, sizeof(*twice));
    enum tess_status status = TESS_OK;
    TESS_TRY_GOTO(status, done,
                  pool.failed ? tess__no_memory("the graph of NCCL's file") : TESS_OK);
    graph_find_twice(&g, sorted, twice);
    TESS_TRY_GOTO(status, done, graph_number(&g, key, device));
    TESS_TRY_GOTO(status, done, graph_nodes(&g, device, twice));
    status = graph_links(&g);
done:
    tess__pool_release(&pool);
    return status;
}
