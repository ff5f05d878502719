/*
 * Reads the nodes of a Kubernetes cluster by their labels, from `kubectl get nodes -o json` (or
 * yaml): which switches are above a node, which NVLink domain it is in, which GPUs it has.
 *
 *     items:
 *     - kind: Node
 *       metadata:
 *         name: node-a
 *         labels:
 *           network.topology.nvidia.com/accelerator: nvl1
 *           network.topology.nvidia.com/leaf: s1
 *           network.topology.nvidia.com/spine: s2
 *           nvidia.com/gpu.count: "4"
 *           nvidia.com/gpu.product: NVIDIA-GB200
 *
 * Keys of the network are those of Topograph, AWS, Google Cloud and Kubernetes itself (zone,
 * region), see `labels_level`; a level that a node lacks is left out. Nodes without any key of
 * a network are joined by "network"; so are trees. A domain (Topograph's accelerator, NVIDIA's
 * gpu.clique) is NVSwitches that all GPUs of its nodes are on. Nodes without GPUs are left out
 * where others have some (control planes). The labels have no speeds: options give those of the
 * network.
 */
#include "tessera/check.h"
#include "topology/formats/slurm.h"
#include "topology/formats/yaml_document.h"
#include "topology/machine/assume.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LABELS_ROOM     6 /* levels */
#define LABELS_PER_HOST 1024
#define LABELS_NODES    16384

struct labels_node {
    char name[TESS_TOPO_NAME_MAX];
    char domain[TESS_TOPO_NAME_MAX];             /* "" */
    char above[LABELS_ROOM][TESS_TOPO_NAME_MAX]; /* from the lowest up; "" */
    int32_t line, gpus, sm;
};

struct labels_reader {
    struct tess__document *document;
    const char *name; /* for messages */
    struct tess_topology *topology;
    const struct tess_topology_options *options;
    struct labels_node *node;
    int32_t count;
    double edge_gbs, uplink_gbs;
};

/* Levels of switches from the lowest up; names of switches begin with them, as a value may stand
 * for a switch on each of two levels. */
static const char *const labels_word[] = {"rack", "leaf", "spine", "core", "zone", "region"};
#define LABELS_LEVELS (int32_t)(sizeof(labels_word) / sizeof(labels_word[0]))

_Static_assert(LABELS_LEVELS == LABELS_ROOM, "a name for each level");

/* docs.nvidia.com/topograph (reference, node labels), docs.aws.amazon.com/eks
 * (ml-workload-topology), Google Cloud's topology awareness, kubernetes.io (well-known labels). */
static const struct labels_key {
    const char *key;
    int32_t level;
} labels_level[] = {
    {"topology.k8s.aws/network-node-layer-4", 0},
    {"network.topology.nvidia.com/leaf", 1},
    {"network.topology.nvidia.com/block", 1},
    {"network.topology.nvidia.com/spine", 2},
    {"network.topology.nvidia.com/core", 3},
    {"network.topology.nvidia.com/datacenter", 3},
    {"fabric.topograph.run/tier-0", 1},
    {"fabric.topograph.run/tier-1", 2},
    {"fabric.topograph.run/tier-2", 3},
    {"topology.k8s.aws/network-node-layer-3", 1},
    {"topology.k8s.aws/network-node-layer-2", 2},
    {"topology.k8s.aws/network-node-layer-1", 3},
    {"cloud.google.com/gce-topology-subblock", 1},
    {"cloud.google.com/gce-topology-block", 2},
    {"topology.kubernetes.io/zone", 4},
    {"topology.kubernetes.io/region", 5},
};

static const char *const labels_domain[] = {"network.topology.nvidia.com/accelerator",
                                            "accelerator.topograph.run/domain",
                                            "nvidia.com/gpu.clique"};

/* ---- one node ------------------------------------------------------------------------------- */

static enum tess_status labels_copy(const struct labels_reader *self, const tess__yaml_node *value,
                                    size_t most, char text[TESS_TOPO_NAME_MAX])
{
    const struct tess__word word = tess__document_text(value);
    bool good = word.length <= most;
    for (size_t i = 0; i < word.length; i++)
        good = good && (unsigned char)word.text[i] > ' ' && word.text[i] != 0x7f;
    if (!good)
        return tess__lines_fail(self->name, tess__document_line(value),
                                "'%.*s': a name or a label of at most %d characters was expected",
                                TESS__SHOWN(word), (int)most);
    snprintf(text, TESS_TOPO_NAME_MAX, "%.*s", (int)word.length, word.text);
    return TESS_OK;
}

/* Into text, where an earlier key has not filled it. */
static enum tess_status labels_value(struct labels_reader *self, tess__yaml_node *labels,
                                     const char *key, size_t most, char text[TESS_TOPO_NAME_MAX])
{
    tess__yaml_node *value = tess__document_get(self->document, labels, key);
    if (value == NULL || text[0] != '\0')
        return TESS_OK;
    return labels_copy(self, value, most, text);
}

/* How many GPUs: the label's, or of the resource that the node offers. */
static int32_t labels_gpus(struct labels_reader *self, tess__yaml_node *node,
                           tess__yaml_node *labels)
{
    struct tess__document *document = self->document;
    static const char *const resource[] = {"nvidia.com/gpu", "amd.com/gpu"};
    tess__yaml_node *capacity =
        tess__document_get(document, tess__document_get(document, node, "status"), "capacity");
    int32_t gpus = 0;
    if (self->options->per_host > 0)
        return self->options->per_host;
    if (tess__word_number(
            tess__document_text(tess__document_get(document, labels, "nvidia.com/gpu.count")),
            LABELS_PER_HOST, &gpus))
        return gpus;
    for (int k = 0; k < 2; k++)
        if (tess__word_number(
                tess__document_text(tess__document_get(document, capacity, resource[k])),
                LABELS_PER_HOST, &gpus))
            return gpus;
    return 0;
}

static enum tess_status labels_node(struct labels_reader *self, tess__yaml_node *item)
{
    struct tess__document *document = self->document;
    tess__yaml_node *metadata = tess__document_get(document, item, "metadata");
    tess__yaml_node *labels = tess__document_get(document, metadata, "labels");
    tess__yaml_node *name = tess__document_get(document, metadata, "name");
    struct tess__word kind = tess__document_text(tess__document_get(document, item, "kind"));
    struct labels_node node = {.line = tess__document_line(item)};
    if (kind.length > 0 && !tess__word_is(kind, "Node"))
        return TESS_OK;
    if (tess__document_text(name).length == 0)
        return tess__lines_fail(self->name, node.line,
                                "a node without metadata.name: what kubectl get nodes -o json "
                                "prints was expected");
    if (self->count == LABELS_NODES)
        return tess__lines_fail(self->name, node.line, "more than %d nodes", LABELS_NODES);
    TESS_TRY(labels_copy(self, name, TESS__SLURM_HOST_MAX, node.name));
    for (size_t k = 0; k < sizeof(labels_level) / sizeof(labels_level[0]); k++)
        TESS_TRY(labels_value(self, labels, labels_level[k].key, TESS__SLURM_HOST_MAX,
                              node.above[labels_level[k].level]));
    for (size_t k = 0; k < sizeof(labels_domain) / sizeof(labels_domain[0]); k++)
        TESS_TRY(labels_value(self, labels, labels_domain[k], TESS_TOPO_NAME_MAX - 1, node.domain));
    struct tess__word product =
        tess__document_text(tess__document_get(document, labels, "nvidia.com/gpu.product"));
    node.gpus = labels_gpus(self, item, labels);
    node.sm =
        self->options->sm > 0 ? self->options->sm : tess__sm_of_text(product.text, product.length);
    TESS_TRY(tess__grow(&self->node, self->count, sizeof(node), "the nodes"));
    self->node[self->count++] = node;
    return TESS_OK;
}

static enum tess_status labels_nodes(struct labels_reader *self)
{
    struct tess__document *document = self->document;
    tess__yaml_node *root, *item;
    for (;;) {
        TESS_TRY(tess__document_next(document, &root));
        if (root == NULL)
            break;
        tess__yaml_node *items = tess__document_get(document, root, "items");
        if (items == NULL)
            TESS_TRY(labels_node(self, root));
        for (size_t at = 0; (item = tess__document_item(document, items, at)) != NULL; at++)
            TESS_TRY(labels_node(self, item));
    }
    if (self->count == 0)
        return tess__lines_fail(self->name, 1,
                                "no nodes in it: what kubectl get nodes -o json prints was "
                                "expected");
    return TESS_OK;
}

/* ---- the cluster ---------------------------------------------------------------------------- */

static int labels_by_name(const void *a, const void *b)
{
    const struct labels_node *x = a, *y = b;
    return strverscmp(x->name, y->name);
}

/* The switch `name` of a level, joined to the one above it where it is new. */
static enum tess_status labels_switch(struct labels_reader *self, const struct labels_node *node,
                                      int32_t level, int32_t *switch_out)
{
    char name[TESS_TOPO_NAME_MAX] = TESS__SLURM_NETWORK;
    int32_t above;
    while (level < LABELS_LEVELS && node->above[level][0] == '\0')
        level++;
    if (level < LABELS_LEVELS)
        snprintf(name, sizeof(name), "%s.%s", labels_word[level], node->above[level]);
    *switch_out = tess_topology_find_name(self->topology, name);
    if (*switch_out >= 0)
        return TESS_OK;
    TESS_TRY(tess__slurm_add_switch(self->topology, name, switch_out));
    if (level == LABELS_LEVELS)
        return TESS_OK;
    TESS_TRY(labels_switch(self, node, level + 1, &above));
    return tess_topology_join(self->topology, TESS_LINK_NET, *switch_out, above, self->uplink_gbs,
                              1);
}

static enum tess_status labels_host(struct labels_reader *self, const struct labels_node *node,
                                    int32_t number)
{
    const int32_t gpus = node->gpus > 0 ? node->gpus : 1;
    int32_t device[LABELS_PER_HOST], cpu, leaf;
    TESS_TRY(tess__slurm_add_host(self->topology, node->name, number, gpus, &cpu, device));
    for (int32_t i = 0; i < gpus; i++)
        self->topology->node[device[i]].sm = node->sm;
    TESS_TRY(labels_switch(self, node, 0, &leaf));
    TESS_TRY(tess_topology_join(self->topology, TESS_LINK_NET, cpu, leaf, self->edge_gbs, 1));
    if (node->domain[0] == '\0' || node->gpus == 0)
        return TESS_OK;
    /* Domains are of GPUs with NVSwitches; of which is the first of them where no label says it. */
    if (node->sm == 0)
        self->topology->remarks |= TESS_REMARK_SM;
    return tess__slurm_join_domain(self->topology, node->domain, device, gpus,
                                   node->sm > 0 ? node->sm : 90);
}

static enum tess_status labels_read(struct labels_reader *self)
{
    bool some = false;
    int32_t hosts = 0;
    TESS_TRY(labels_nodes(self));
    qsort(self->node, (size_t)self->count, sizeof(*self->node), labels_by_name);
    for (int32_t i = 0; i < self->count; i++) {
        if (i > 0 && strcmp(self->node[i].name, self->node[i - 1].name) == 0)
            return tess__lines_fail(self->name, self->node[i].line, "node %s is there twice",
                                    self->node[i].name);
        some = some || self->node[i].gpus > 0;
    }
    for (int32_t i = 0; i < self->count; i++)
        if (self->node[i].gpus > 0 || !some)
            TESS_TRY(labels_host(self, &self->node[i], hosts++));
    return tess_topology_finish(self->topology);
}

enum tess_status tess_topology_read_labels(const char *name, const char *text, size_t bytes,
                                           const struct tess_topology_options *options,
                                           struct tess_topology *topology)
{
    static const struct tess_topology_options none;
    struct labels_reader self = {
        .name = name, .topology = topology, .options = options ? options : &none};
    self.edge_gbs = self.options->edge_gbs > 0 ? self.options->edge_gbs : TESS_GBS_NET_UNKNOWN;
    self.uplink_gbs =
        self.options->uplink_gbs > 0 ? self.options->uplink_gbs : TESS_GBS_NET_UNKNOWN;
    if (self.options->edge_gbs <= 0 || self.options->uplink_gbs <= 0)
        topology->remarks |= TESS_REMARK_NET;
    TESS_TRY(tess__document_open(name, text, bytes, &self.document));
    enum tess_status status = labels_read(&self);
    tess__document_close(self.document);
    free(self.node);
    return tess__lines_named(name, status);
}
