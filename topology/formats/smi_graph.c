/*
 * A graph from the words of nvidia-smi's matrix. The words are distances, not links, so links that
 * several transfers share are reconstructed as far as the words allow:
 *
 *   NV#    # NVLinks between the two; where all GPUs of a group see each other by NVLink and
 *          together those would be more links than a GPU has, # links of each GPU to an NVSwitch. A
 *          GPU with dead links has a smaller # in its row and column
 *   PIX    all that are PIX of each other, also through a third, are on one switch, each by its
 *          own x16, and share its one x16 upwards (GPUs joined by NVLink hide their distance; a NIC
 *          that is PIX to both decides)
 *   PXB    switches, or devices each behind a switch of its own, under one upper switch, which has
 *          one x16 to the processor
 *   PHB,   on the same NUMA node by x16 of their own: a root port each, nothing shared (that PHB
 *   NODE   shares a host bridge and NODE does not is no matter of capacity)
 *   SYS    on different NUMA nodes, joined as tess_topology_finish joins them
 *
 * The NUMA node of a GPU is the column's, else equal CPU affinities are equal nodes. What that does
 * not place goes, with all that is not further than NODE, to the first node from which no SYS
 * separates it, or to one of its own. Every capacity of PCIe, and the processor (Intel of the GPUs'
 * time, AMD beside AMD's GPUs), are assumed: the text has none of it. That of nvidia-smi -q has the
 * links of the GPUs (smi_query.c).
 */
#include "tessera/check.h"
#include "topology/formats/smi.h"
#include "topology/machine/assume.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"

#include <stdio.h>
#include <string.h>

struct smi_graph {
    const struct tess__smi *smi;
    struct tess_topology *topology;
    /* Of each column the lowest number of its class. */
    int32_t pix[TESS__SMI_MAX], pxb[TESS__SMI_MAX], near[TESS__SMI_MAX], nvlink[TESS__SMI_MAX];
    int32_t numa[TESS__SMI_MAX]; /* NUMA id, -1: not placed yet */
    int32_t node[TESS__SMI_MAX], cpu[TESS__SMI_MAX];
    double pci_gbs;
};

static enum tess__smi_kind smi_kind(const struct tess__smi *smi, int32_t a, int32_t b)
{
    uint8_t there = smi->cell[a * smi->count + b].kind, back = smi->cell[b * smi->count + a].kind;
    return there != TESS__SMI_UNKNOWN ? there : back;
}

/* Classes of columns that are joined by words first .. last, by way of others too. */
static void smi_classes(const struct tess__smi *smi, enum tess__smi_kind first,
                        enum tess__smi_kind last, int32_t class[TESS__SMI_MAX])
{
    for (int32_t i = 0; i < smi->count; i++)
        class[i] = i;
    for (int32_t i = 0; i < smi->count; i++) {
        for (int32_t j = 0; j < i; j++) {
            enum tess__smi_kind kind = smi_kind(smi, i, j);
            int32_t a = tess__root(class, i), b = tess__root(class, j);
            if (kind >= first && kind <= last)
                class[a < b ? b : a] = a < b ? a : b;
        }
    }
    for (int32_t i = 0; i < smi->count; i++)
        class[i] = tess__root(class, i);
}

/* ---- NUMA nodes ----------------------------------------------------------------------------- */

/* Ids by equal CPU affinities where no row has a NUMA node. */
static void smi_numa_known(struct smi_graph *graph)
{
    const struct tess__smi *smi = graph->smi;
    bool known = false;
    for (int32_t i = 0; i < smi->count; i++) {
        graph->numa[i] = smi->entry[i].numa;
        known |= graph->numa[i] >= 0;
    }
    int32_t ids = 0;
    for (int32_t i = 0; i < smi->count && !known; i++) {
        struct tess__word cpus = smi->entry[i].cpus;
        for (int32_t j = 0; j < i && cpus.length > 0 && graph->numa[i] < 0; j++)
            if (tess__word_same(smi->entry[j].cpus, cpus))
                graph->numa[i] = graph->numa[j];
        if (cpus.length > 0 && graph->numa[i] < 0)
            graph->numa[i] = ids++;
    }
    /* What is near a placed one is there. */
    for (int32_t i = 0; i < smi->count; i++)
        for (int32_t j = 0; j < smi->count && graph->numa[i] < 0; j++)
            if (graph->near[j] == graph->near[i] && graph->numa[j] >= 0)
                graph->numa[i] = graph->numa[j];
}

/* Is a word SYS between the class of `member` and something on NUMA node `id`? */
static bool smi_apart(const struct smi_graph *graph, int32_t member, int32_t id)
{
    const struct tess__smi *smi = graph->smi;
    for (int32_t i = 0; i < smi->count; i++) {
        if (graph->near[i] != graph->near[member])
            continue;
        for (int32_t j = 0; j < smi->count; j++)
            if (graph->numa[j] == id && smi_kind(smi, i, j) == TESS__SMI_SYS)
                return true;
    }
    return false;
}

static bool smi_numa_used(const struct smi_graph *graph, int32_t id)
{
    for (int32_t i = 0; i < graph->smi->count; i++)
        if (graph->numa[i] == id)
            return true;
    return false;
}

static void smi_numa(struct smi_graph *graph)
{
    int32_t count = graph->smi->count;
    smi_numa_known(graph);
    for (int32_t i = 0; i < count; i++) {
        if (graph->numa[i] >= 0)
            continue;
        int32_t id = -1, unused = 0;
        for (int32_t j = 0; j < count; j++) {
            int32_t other = graph->numa[j];
            if (other >= 0 && (id < 0 || other < id) && !smi_apart(graph, i, other))
                id = other;
        }
        while (smi_numa_used(graph, unused))
            unused++;
        for (int32_t j = 0; j < count; j++)
            if (graph->near[j] == graph->near[i])
                graph->numa[j] = id >= 0 ? id : unused;
    }
}

/* ---- nodes and PCIe ------------------------------------------------------------------------- */

static enum tess_status smi_add_cpus(struct smi_graph *graph)
{
    const bool amd = graph->smi->gfx > 0;
    for (int32_t i = 0; i < graph->smi->count; i++) {
        graph->cpu[i] = -1;
        for (int32_t j = 0; j < i && graph->cpu[i] < 0; j++)
            if (graph->numa[j] == graph->numa[i])
                graph->cpu[i] = graph->cpu[j];
        if (graph->cpu[i] >= 0)
            continue;
        const struct tess_node node = {.kind = TESS_NODE_CPU,
                                       .index = graph->numa[i],
                                       .socket = -1,
                                       .maker = amd ? TESS_CPU_AMD : TESS_CPU_INTEL,
                                       .model = amd ? 0 : tess__intel_model(graph->smi->sm)};
        TESS_TRY(
            tess_topology_add(graph->topology, node, &graph->cpu[i], "numa%d", (int)node.index));
    }
    return TESS_OK;
}

static enum tess_status smi_add_devices(struct smi_graph *graph)
{
    for (int32_t i = 0; i < graph->smi->count; i++) {
        const struct tess__smi_entry *entry = &graph->smi->entry[i];
        struct tess_node node = {.kind = entry->gpu ? TESS_NODE_DEVICE : TESS_NODE_NIC,
                                 .index = entry->number,
                                 .socket = -1,
                                 .sm = entry->gpu ? graph->smi->sm : 0,
                                 .staged = entry->staged};
        memcpy(node.bus, entry->bus, sizeof(node.bus));
        if (entry->gpu)
            TESS_TRY(tess_topology_add(graph->topology, node, &graph->node[i], "gpu%d",
                                       (int)entry->number));
        else
            TESS_TRY(tess_topology_add(graph->topology, node, &graph->node[i], "%s", entry->name));
    }
    return TESS_OK;
}

static enum tess_status smi_add_switch(struct smi_graph *graph, const char *word, int32_t number,
                                       int32_t above, int32_t *node_out)
{
    TESS_TRY(tess_topology_add(graph->topology, tess_topology_node(TESS_NODE_PCI, 0, number),
                               node_out, "%s%d", word, (int)number));
    return tess_topology_join(graph->topology, TESS_LINK_PCI, *node_out, above, graph->pci_gbs, 1);
}

/* Members of class `number` of `class`. */
static int32_t smi_class_size(const struct smi_graph *graph, const int32_t *class, int32_t number)
{
    int32_t size = 0;
    for (int32_t i = 0; i < graph->smi->count; i++)
        size += class[i] == number;
    return size;
}

/* The link of a device, as far as it is known. */
static double smi_pci_gbs(const struct smi_graph *graph, const struct tess__smi_entry *entry)
{
    if (entry->pci_gen == 0 && entry->pci_lanes == 0)
        return graph->pci_gbs;
    return TESS_GBS_PCI(tess__rate_pci(entry->pci_gen > 0 ? entry->pci_gen : graph->smi->pci_gen),
                        entry->pci_lanes > 0 ? entry->pci_lanes : 16);
}

/* Switches by class from the top down, then each device on its own; a switch is numbered by order
 * of its lowest column. */
static enum tess_status smi_add_pci(struct smi_graph *graph)
{
    int32_t upper[TESS__SMI_MAX], lower[TESS__SMI_MAX], uppers = 0, lowers = 0;
    for (int32_t i = 0; i < graph->smi->count; i++) {
        int32_t circle = graph->pxb[i], group = graph->pix[i];
        /* Several groups in one circle are under an upper switch. */
        bool several =
            smi_class_size(graph, graph->pix, group) != smi_class_size(graph, graph->pxb, circle);
        if (several && circle == i)
            TESS_TRY(smi_add_switch(graph, "upper", uppers++, graph->cpu[i], &upper[circle]));
        if (group == i && (several || smi_class_size(graph, graph->pix, group) > 1))
            TESS_TRY(smi_add_switch(graph, "switch", lowers++,
                                    several ? upper[circle] : graph->cpu[i], &lower[group]));
        bool alone = !several && smi_class_size(graph, graph->pix, group) == 1;
        TESS_TRY(tess_topology_join(graph->topology, TESS_LINK_PCI, graph->node[i],
                                    alone ? graph->cpu[i] : lower[group],
                                    smi_pci_gbs(graph, &graph->smi->entry[i]), 1));
    }
    return TESS_OK;
}

/* ---- NVLink --------------------------------------------------------------------------------- */

static double smi_link_gbs(const struct tess__smi *smi)
{
    return smi->gfx > 0 ? tess__rate_xgmi(smi->gfx) : tess__rate_nvlink(smi->sm);
}

/* The smaller number of both ways. */
static int32_t smi_links(const struct tess__smi *smi, int32_t a, int32_t b)
{
    int32_t there = smi->cell[a * smi->count + b].links;
    int32_t back = smi->cell[b * smi->count + a].links;
    return there < back ? there : back;
}

/* Is the group of GPU `group` behind NVSwitches? All see each other, and one would need more links
 * for that than it has. */
static bool smi_switched(const struct smi_graph *graph, int32_t group)
{
    const struct tess__smi *smi = graph->smi;
    int32_t size = smi_class_size(graph, graph->nvlink, group), needed = 0;
    for (int32_t i = 0; i < smi->count; i++) {
        int32_t links = 0;
        for (int32_t j = 0; j < smi->count; j++) {
            if (i == j || graph->nvlink[i] != group || graph->nvlink[j] != group)
                continue;
            if (smi->cell[i * smi->count + j].kind != TESS__SMI_NVLINK)
                return false;
            links += smi->cell[i * smi->count + j].links;
        }
        needed = links > needed ? links : needed;
    }
    return size > 2 && smi->gfx == 0 && needed > (smi->sm_known ? tess__nvlink_links(smi->sm) : 18);
}

/* The most links in the row of a GPU behind NVSwitches. */
static int32_t smi_row_links(const struct tess__smi *smi, int32_t i)
{
    int32_t links = 0;
    for (int32_t j = 0; j < smi->count; j++)
        if (smi->cell[i * smi->count + j].links > links)
            links = smi->cell[i * smi->count + j].links;
    return links;
}

/*
 * The links of a GPU behind NVSwitches. A word between two is what the poorer of both has; where it
 * is less than either has elsewhere, which of them lacks the link is not said, and both count so.
 */
static int32_t smi_switch_links(const struct tess__smi *smi, int32_t i)
{
    int32_t own = smi_row_links(smi, i), links = own;
    for (int32_t j = 0; j < smi->count; j++) {
        int32_t between = smi->cell[i * smi->count + j].links;
        if (between > 0 && between < links && between < smi_row_links(smi, j))
            links = between;
    }
    return links;
}

static enum tess_status smi_add_nvswitch(struct smi_graph *graph, int32_t group, int32_t number)
{
    const struct tess__smi *smi = graph->smi;
    int32_t at;
    TESS_TRY(tess_topology_add(graph->topology, tess_topology_node(TESS_NODE_NVSWITCH, 0, number),
                               &at, "nvswitch%d", (int)number));
    for (int32_t i = 0; i < smi->count; i++) {
        int32_t links = graph->nvlink[i] == group ? smi_switch_links(smi, i) : 0;
        if (links > 0)
            TESS_TRY(tess_topology_join(graph->topology, TESS_LINK_NVLINK, graph->node[i], at,
                                        links * smi_link_gbs(smi), links));
    }
    return TESS_OK;
}

static enum tess_status smi_add_nvlink(struct smi_graph *graph)
{
    const struct tess__smi *smi = graph->smi;
    bool switched[TESS__SMI_MAX];
    int32_t switches = 0;
    for (int32_t i = 0; i < smi->count; i++) {
        int32_t group = graph->nvlink[i];
        switched[i] = group == i ? smi_switched(graph, i) : switched[group];
        if (group == i && switched[i])
            TESS_TRY(smi_add_nvswitch(graph, i, switches++));
        for (int32_t j = 0; j < i && !switched[i]; j++) {
            int32_t links = smi_links(smi, i, j);
            if (smi->cell[i * smi->count + j].links != smi->cell[j * smi->count + i].links)
                graph->topology->remarks |= TESS_REMARK_UNEVEN;
            if (links > 0)
                TESS_TRY(tess_topology_join(graph->topology, TESS_LINK_NVLINK, graph->node[j],
                                            graph->node[i], links * smi_link_gbs(smi), links));
        }
    }
    return TESS_OK;
}

enum tess_status tess__smi_build(const struct tess__smi *smi, struct tess_topology *topology)
{
    struct smi_graph graph = {
        .smi = smi, .topology = topology, .pci_gbs = tess__rate_pci_x16(smi->pci_gen)};
    smi_classes(smi, TESS__SMI_PIX, TESS__SMI_PIX, graph.pix);
    smi_classes(smi, TESS__SMI_PIX, TESS__SMI_PXB, graph.pxb);
    smi_classes(smi, TESS__SMI_PIX, TESS__SMI_NODE, graph.near);
    smi_classes(smi, TESS__SMI_NVLINK, TESS__SMI_NVLINK, graph.nvlink);
    smi_numa(&graph);
    topology->remarks |= TESS_REMARK_CPU;
    TESS_TRY(smi_add_cpus(&graph));
    TESS_TRY(smi_add_devices(&graph));
    TESS_TRY(smi_add_pci(&graph));
    TESS_TRY(smi_add_nvlink(&graph));
    return tess_topology_finish(topology);
}
