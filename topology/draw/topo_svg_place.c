/*
 * Where the boxes and bars of a machine stand: hosts as the network's switches hold them, in each
 * its NUMA nodes, switches, devices and NICs from left to right. Heights are topo_svg_machine.c's.
 */
#include "topology/draw/topo_svg_machine_room.h"

#include <math.h>

static bool machine_shown(const struct tess__machine *machine, int32_t node)
{
    enum tess_node_kind kind = machine->topology->node[node].kind;
    if (kind == TESS_NODE_DEVICE)
        return true;
    if (kind == TESS_NODE_NIC)
        return machine->nic_w > 0;
    for (int32_t child = machine->svg->tree.first[node]; child >= 0;
         child = machine->svg->tree.next[child])
        if (machine_shown(machine, child))
            return true;
    return false;
}

/* Sets level and extent of all below a node; returns the right edge. */
static double machine_place(struct tess__machine *machine, int32_t node, double x)
{
    enum tess_node_kind kind = machine->topology->node[node].kind;
    machine->x0[node] = x;
    if (kind == TESS_NODE_DEVICE || kind == TESS_NODE_NIC) {
        machine->x1[node] = x + (kind == TESS_NODE_DEVICE ? machine->device_w : machine->nic_w);
        return machine->x1[node];
    }
    double at = x;
    int32_t before = -1;
    for (int32_t child = machine->svg->tree.first[node]; child >= 0;
         child = machine->svg->tree.next[child]) {
        if (!machine_shown(machine, child))
            continue;
        bool bar = machine->topology->node[child].kind == TESS_NODE_PCI;
        if (before >= 0)
            at += bar || machine->topology->node[before].kind == TESS_NODE_PCI
                      ? 2 * TESS__MACHINE_GAP
                      : TESS__MACHINE_GAP;
        at = machine_place(machine, child, at);
        before = child;
        if (machine->level[node] < machine->level[child] + 1)
            machine->level[node] = machine->level[child] + 1;
    }
    double least = kind == TESS_NODE_CPU ? 96 : 54;
    machine->x1[node] = fmax(at, x + least);
    return machine->x1[node];
}

/* What is on a host, NUMA node by NUMA node, then devices that are attached to none. */
double tess__machine_place_host(struct tess__machine *machine, int32_t host, double x)
{
    const struct tess_topology *topology = machine->topology;
    double inset = topology->host_count > 1 && !machine->alone ? 14 : 0, at = x + inset;
    bool first = true;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < topology->node_count; i++) {
            const struct tess_node *node = &topology->node[i];
            bool drawn = pass == 0 ? node->kind == TESS_NODE_CPU && machine_shown(machine, i)
                                   : node->kind == TESS_NODE_DEVICE && machine->svg->tree.up[i] < 0;
            if (node->host != host || !drawn)
                continue;
            if (!first)
                at += pass == 0 ? 58 : TESS__MACHINE_GAP;
            at = machine_place(machine, i, at);
            first = false;
            if (pass == 0 && machine->cpu_level < machine->level[i])
                machine->cpu_level = machine->level[i];
        }
    }
    machine->host0[host] = x;
    machine->host1[host] = fmax(at + inset, x + 60);
    return machine->host1[host];
}

/* The hosts of a switch, or a box for all of them; then the switches below it. */
static double machine_place_net(struct tess__machine *machine, int32_t net, double x)
{
    const struct tess__topo_net *tree = &machine->svg->net;
    double at = x;
    bool some = false;
    for (int32_t host = 0; host < machine->topology->host_count && !machine->boxed; host++) {
        if (tree->leaf[host] != net)
            continue;
        at = tess__machine_place_host(machine, host, at + (some ? 22 : 0));
        some = true;
    }
    if (machine->boxed && tree->hosts[net] > 0 && machine->boxes < TESS__MACHINE_BOXES) {
        machine->boxes++;
        at += TESS__MACHINE_BOX_W;
        some = true;
    }
    for (int32_t child = tree->first[net]; child >= 0; child = tree->next[child]) {
        double right = machine_place_net(machine, child, at + (some ? 22 : 0));
        if (right <= at + (some ? 22 : 0))
            continue;
        at = right;
        some = true;
    }
    machine->x0[net] = x;
    machine->x1[net] = some ? at : 0;
    return some ? at : x;
}

double tess__machine_place_all(struct tess__machine *machine, double x)
{
    const struct tess__topo_net *tree = &machine->svg->net;
    double at = x;
    if (machine->topology->host_count == 1)
        return tess__machine_place_host(machine, 0, x);
    for (int32_t k = 0; k < tree->root_count; k++) {
        double right = machine_place_net(machine, tree->roots[k], at + (at > x ? 44 : 0));
        if (right > at + (at > x ? 44 : 0))
            at = right;
    }
    for (int32_t host = 0; host < machine->topology->host_count && !machine->boxed; host++)
        if (tree->leaf[host] < 0)
            at = tess__machine_place_host(machine, host, at + (at > x ? 22 : 0));
    return at;
}
