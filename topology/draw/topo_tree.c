/*
 * The machine as a tree of text: hosts, NUMA nodes, PCIe switches, devices and NICs, each
 * below what it is attached to, then the network. Equal hosts are shown once.
 */
#include "topology/draw/topo.h"

#include "tessera/check.h"

#include <string.h>

#define TREE_ALIKE_MAX  16 /* children of one kind that are shown */
#define TREE_GROUPS_MAX 8  /* lines of switches, and of NVLink domains */
#define TREE_LINKS_MAX  3  /* ways to other NUMA nodes that are named one by one */

struct tree {
    const struct tess__topo *topo;
    const struct tess_topology *topology;
    FILE *out;
    struct tess__topo_tree below;
};

/* ---- one line ------------------------------------------------------------------------------- */

/* Links of one kind that leave a node for nodes of hosts, or of none, or any. */
enum tree_to { TREE_TO_HOST, TREE_TO_NET, TREE_TO_ANY };
struct tree_links {
    int32_t count;
    const struct tess_topo_link *least, *most, *last; /* NULL: there are none */
};

static struct tree_links tree_links(const struct tree *tree, int32_t node, enum tess_link_kind kind,
                                    enum tree_to to)
{
    struct tree_links found = {0};
    for (int32_t i = 0; i < tree->topology->link_count; i++) {
        const struct tess_topo_link *link = &tree->topology->link[i];
        if (link->from != node || link->kind != kind ||
            (to != TREE_TO_ANY &&
             (to == TREE_TO_HOST) != (tree->topology->node[link->to].host >= 0)))
            continue;
        if (found.count++ == 0)
            found.least = found.most = link;
        found.least = link->gbs < found.least->gbs ? link : found.least;
        found.most = link->gbs > found.most->gbs ? link : found.most;
        found.last = link;
    }
    return found;
}

/* "22 GB/s to numa1": the ways to other NUMA nodes; `before` in front of the first. */
static void tree_ways(const struct tree *tree, int32_t node, const char *before)
{
    const struct tess_topology *topology = tree->topology;
    const struct tree_links ways = tree_links(tree, node, TESS_LINK_SYS, TREE_TO_ANY);
    char rate[TESS__RATE_TEXT];
    if (ways.count > TREE_LINKS_MAX) {
        fputs(before, tree->out);
        if (ways.least->gbs < ways.most->gbs)
            fprintf(tree->out, "%s to ", tess__rate_number(ways.least->gbs, ways.most->gbs, rate));
        fprintf(tree->out, "%s to each of %d other NUMA nodes",
                tess__rate_text(ways.most->gbs, rate), (int)ways.count);
        return;
    }
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->from != node || link->kind != TESS_LINK_SYS)
            continue;
        fprintf(tree->out, "%s%s to %s", before, tess__rate_text(link->gbs, rate),
                topology->node[link->to].name);
        before = ", ";
    }
}

static void tree_cpu(const struct tree *tree, int32_t number)
{
    const struct tess_node *node = &tree->topology->node[number];
    const char *maker = tess__topo_maker_word(node->maker), *before = "  ";
    fputs(node->name, tree->out);
    if (node->socket >= 0) {
        fprintf(tree->out, "%ssocket %d", before, (int)node->socket);
        before = ", ";
    }
    if (maker[0] != '\0') {
        fprintf(tree->out, "%s%s", before, maker);
        before = ", ";
    }
    tree_ways(tree, number, before);
}

/* What a device or a switch is. */
static void tree_what(const struct tree *tree, int32_t number)
{
    const struct tess_node *node = &tree->topology->node[number];
    const char *word = tess__topo_sm_word(node->sm);
    if (node->kind == TESS_NODE_DEVICE && tree->topo->model)
        fprintf(tree->out, "  %s", tree->topo->model[tree->below.number[number]]);
    else if (node->kind == TESS_NODE_DEVICE && node->sm > 0)
        fprintf(tree->out, word[0] != '\0' ? "  sm %d (%s)" : "  sm %d", (int)node->sm, word);
    if (node->kind == TESS_NODE_DEVICE) {
        const struct tess__nvlinks *links = &tree->topo->nvlinks[number];
        if (tess__nvlinks_dead(links))
            fprintf(tree->out, "  %d of %d NVLinks", (int)links->has, (int)links->of);
        if (node->staged)
            fputs("  no peer-to-peer", tree->out);
    } else if (node->kind == TESS_NODE_PCI)
        fputs("  PCIe switch", tree->out);
    else if (node->kind == TESS_NODE_NIC)
        fputs("  NIC", tree->out);
}

/* Without what is before it. */
static void tree_line(const struct tree *tree, int32_t number)
{
    const struct tess_node *node = &tree->topology->node[number];
    const struct tess_topo_link *up =
        tree->below.up[number] >= 0 ? &tree->topology->link[tree->below.up[number]] : NULL;
    char rate[TESS__RATE_TEXT];
    if (node->kind == TESS_NODE_CPU) {
        tree_cpu(tree, number);
        fputc('\n', tree->out);
        return;
    }
    if (node->kind == TESS_NODE_DEVICE)
        fprintf(tree->out, "[%d] ", (int)tree->topo->number[tree->below.number[number]]);
    fputs(node->name, tree->out);
    if (node->bus[0] != '\0' && !strstr(node->name, node->bus))
        fprintf(tree->out, "  %s", node->bus);
    tree_what(tree, number);
    const struct tess_topo_link *network =
        node->kind == TESS_NODE_NIC ? tree_links(tree, number, TESS_LINK_NET, TREE_TO_ANY).most
                                    : NULL;
    if (network != NULL)
        fprintf(tree->out, "  network %s", tess__rate_text(network->gbs, rate));
    else if (up && up->kind != TESS_LINK_LOCAL)
        fprintf(tree->out, "  %s %s", tess__topo_link_word(tree->topology, up),
                tess__rate_text(up->gbs, rate));
    fputc('\n', tree->out);
}

/* ---- walking -------------------------------------------------------------------------------- */

/* Bit d of `ended`: nothing more comes at depth d, so that there is no line down from it. */
static void tree_indent(const struct tree *tree, const char *before, uint32_t ended, int depth)
{
    fputs(before, tree->out);
    for (int d = 0; d < depth; d++)
        fputs(ended >> d & 1 ? "   " : "│  ", tree->out);
}

static void tree_walk(const struct tree *tree, int32_t node, const char *before, uint32_t ended,
                      int depth)
{
    const struct tess_node *nodes = tree->topology->node;
    int32_t shown[TESS_NODE_KIND_COUNT] = {0}, hidden = 0, last = -1;
    for (int32_t child = tree->below.first[node]; child >= 0; child = tree->below.next[child]) {
        bool holds = tess__topo_holds_device(tree->topology, &tree->below, child);
        bool shows = holds && shown[nodes[child].kind]++ < TREE_ALIKE_MAX;
        hidden += holds && !shows;
        last = shows ? child : last;
    }
    memset(shown, 0, sizeof(shown));
    for (int32_t child = tree->below.first[node]; child >= 0; child = tree->below.next[child]) {
        const bool ends = child == last && hidden == 0;
        if (!tess__topo_holds_device(tree->topology, &tree->below, child) ||
            shown[nodes[child].kind]++ >= TREE_ALIKE_MAX)
            continue;
        tree_indent(tree, before, ended, depth);
        fputs(ends ? "└─ " : "├─ ", tree->out);
        tree_line(tree, child);
        if (depth < TESS__TOPO_DEPTH_MAX)
            tree_walk(tree, child, before, ended | (uint32_t)ends << depth, depth + 1);
    }
    if (hidden > 0) {
        tree_indent(tree, before, ended, depth);
        fprintf(tree->out, "└─ and %d more\n", (int)hidden);
    }
}

/* "nvswitch0  NVSwitch: 8 devices, 18 NVLinks (370.8 GB/s) each but for gpu3: 17 (350.2)" */
static void tree_nvswitch(const struct tree *tree, int32_t number)
{
    const struct tree_links links = tree_links(tree, number, TESS_LINK_NVLINK, TREE_TO_ANY);
    char rate[TESS__RATE_TEXT];
    fprintf(tree->out, "%s  NVSwitch: %d device%s", tree->topology->node[number].name,
            (int)links.count, links.count == 1 ? "" : "s");
    if (links.count > 0)
        fprintf(tree->out, ", %d NVLinks (%s) each", (int)links.most->count,
                tess__rate_text(links.most->gbs, rate));
    const char *before = " but for ";
    for (int32_t i = 0, shown = 0; i < tree->topology->link_count && links.count > 0; i++) {
        const struct tess_topo_link *link = &tree->topology->link[i];
        if (link->from != number || link->kind != TESS_LINK_NVLINK ||
            link->count == links.most->count || shown++ == TREE_ALIKE_MAX)
            continue;
        fprintf(tree->out, "%s%s: %d (%s)", before, tree->topology->node[link->to].name,
                (int)link->count, tess__rate_number(link->gbs, links.most->gbs, rate));
        before = ", ";
    }
    fputc('\n', tree->out);
}

static void tree_host(const struct tree *tree, int32_t host, const char *before)
{
    const struct tess_topology *topology = tree->topology;
    int32_t idle = 0;
    for (int32_t i = 0; i < topology->node_count; i++) {
        if (topology->node[i].host != host || topology->node[i].kind != TESS_NODE_CPU)
            continue;
        if (!tess__topo_holds_device(topology, &tree->below, i)) {
            idle++;
            continue;
        }
        fputs(before, tree->out);
        tree_line(tree, i);
        tree_walk(tree, i, before, 0, 0);
    }
    if (idle > 0)
        fprintf(tree->out, "%s%d more NUMA node%s without devices\n", before, (int)idle,
                idle == 1 ? "" : "s");
    for (int32_t i = 0; i < topology->node_count; i++) {
        const struct tess_node *node = &topology->node[i];
        if (node->host != host || node->kind == TESS_NODE_CPU)
            continue;
        if (node->kind == TESS_NODE_NVSWITCH) {
            fputs(before, tree->out);
            tree_nvswitch(tree, i);
        } else if (tree->below.up[i] < 0 && node->kind == TESS_NODE_DEVICE) {
            fputs(before, tree->out);
            tree_line(tree, i);
        }
    }
}

/* ---- equal hosts --------------------------------------------------------------------------- */

static void tree_hosts(const struct tree *tree)
{
    const struct tess_topology *topology = tree->topology;
    int32_t other = 0;
    char name[TESS__TOPO_TEXT], last_name[TESS__TOPO_TEXT];
    for (int32_t host = 0; host < topology->host_count; host++) {
        int32_t alike = 0, last = host;
        other += tree->below.class[host] < 0;
        if (tree->below.class[host] != host)
            continue;
        for (int32_t i = host + 1; i < topology->host_count; i++) {
            alike += tree->below.class[i] == host;
            last = tree->below.class[i] == host ? i : last;
        }
        tess__topo_host_name(topology, host, name);
        if (alike > 0)
            fprintf(tree->out, "%s, and %d host%s like it up to %s\n", name, (int)alike,
                    alike == 1 ? "" : "s", tess__topo_host_name(topology, last, last_name));
        else if (topology->host_count > 1)
            fprintf(tree->out, "%s\n", name);
        tree_host(tree, host, topology->host_count > 1 ? "  " : "");
    }
    if (other > 0)
        fprintf(tree->out, "%d more hosts of other makes\n", (int)other);
}

/* NVSwitches that are no host's. */
static void tree_domains(const struct tree *tree)
{
    int32_t domains = 0;
    for (int32_t i = 0; i < tree->topology->node_count; i++) {
        const struct tess_node *node = &tree->topology->node[i];
        if (node->kind != TESS_NODE_NVSWITCH || node->host >= 0)
            continue;
        if (domains++ == 0)
            fprintf(tree->out, "NVLink domains\n");
        if (domains > TREE_GROUPS_MAX)
            continue;
        fputs("  ", tree->out);
        tree_nvswitch(tree, i);
    }
    if (domains > TREE_GROUPS_MAX)
        fprintf(tree->out, "  and %d more\n", (int)domains - TREE_GROUPS_MAX);
}

/* ---- the network ---------------------------------------------------------------------------- */

/* "leaf0  switch: 4 hosts (12.5 GB/s), 12.5 GB/s to spine" */
static void tree_switch(const struct tree *tree, int32_t number)
{
    const struct tess_topology *topology = tree->topology;
    const struct tree_links hosts = tree_links(tree, number, TESS_LINK_NET, TREE_TO_HOST);
    const struct tree_links switches = tree_links(tree, number, TESS_LINK_NET, TREE_TO_NET);
    char rate[TESS__RATE_TEXT];
    fprintf(tree->out, "  %s  %s", topology->node[number].name, hosts.count > 0 ? "" : "switch");
    if (hosts.count > 0)
        fprintf(tree->out, "%d link%s of %s to hosts", (int)hosts.count,
                hosts.count == 1 ? "" : "s", tess__rate_text(hosts.most->gbs, rate));
    if (switches.count == 1)
        fprintf(tree->out, ", %s to %s", tess__rate_text(switches.last->gbs, rate),
                topology->node[switches.last->to].name);
    else if (switches.count > 1)
        fprintf(tree->out, ", %d links of %s to switches", (int)switches.count,
                tess__rate_text(switches.last->gbs, rate));
    fputc('\n', tree->out);
}

static void tree_net(const struct tree *tree)
{
    const struct tess_topology *topology = tree->topology;
    int32_t switches = 0, shown = 0;
    for (int32_t i = 0; i < topology->node_count; i++)
        switches += topology->node[i].kind == TESS_NODE_NET;
    if (switches > 0)
        fprintf(tree->out, "network\n");
    /* A line that says "1 more" is as long as the switch itself. */
    const int32_t most = switches == TREE_GROUPS_MAX + 1 ? switches : TREE_GROUPS_MAX;
    for (int32_t i = 0; i < topology->node_count && shown < most; i++) {
        if (topology->node[i].kind != TESS_NODE_NET)
            continue;
        tree_switch(tree, i);
        shown++;
    }
    if (switches > shown)
        fprintf(tree->out, "  and %d more switches\n", (int)(switches - shown));
}

enum tess_status tess__topo_print_tree(const struct tess__topo *topo, FILE *out)
{
    struct tree tree = {.topo = topo, .topology = topo->topology, .out = out};
    TESS_TRY(tess__topo_tree_open(topo->topology, &tree.below));
    tree_hosts(&tree);
    tree_domains(&tree);
    tree_net(&tree);
    tess__topo_tree_close(&tree.below);
    return TESS_OK;
}
