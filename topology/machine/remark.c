/* See remark.h. */
#include "topology/machine/remark.h"
#include "topology/machine/assume.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"

#include <stdlib.h>
#include <string.h>

#define REMARK_DEVICES_MAX 8 /* named one by one */

/* ---- dead NVLinks --------------------------------------------------------------------------- */

struct remark_search {
    struct tess__pool pool;
    const struct tess_topology *topology;
    struct tess__nvlinks *links;
    int32_t *nvswitch; /* [node_count] of a device: what its NVLinks lead to; -1: no switch */
    int32_t *most;     /* [node_count] of an NVSwitch: NVLinks of the device with most */
    int32_t *sm;       /* [node_count] of an NVSwitch: of that device */
    int32_t *host;     /* [host_count] an NVSwitch of its devices; -1 */
};

static void remark_count(struct remark_search *search)
{
    const struct tess_topology *topology = search->topology;
    for (int32_t i = 0; i < topology->link_count; i++) {
        const struct tess_topo_link *link = &topology->link[i];
        if (link->kind != TESS_LINK_NVLINK || topology->node[link->from].kind != TESS_NODE_DEVICE)
            continue;
        search->links[link->from].has += link->count;
        if (topology->node[link->to].kind == TESS_NODE_NVSWITCH)
            search->nvswitch[link->from] = link->to;
    }
    for (int32_t i = 0; i < topology->node_count; i++) {
        const int32_t at = search->nvswitch[i];
        if (at < 0)
            continue;
        if (topology->node[i].host >= 0)
            search->host[topology->node[i].host] = at;
        if (search->links[i].has > search->most[at]) {
            search->most[at] = search->links[i].has;
            search->sm[at] = topology->node[i].sm;
        }
    }
}

/* A kind's full number where `most` is about that: no product has one or two less. */
static int32_t remark_full(int32_t sm, int32_t most)
{
    const int32_t full = sm > 0 ? tess__nvlink_links(sm) : 0;
    return most < full && most >= full - 2 && most > 1 ? full : most;
}

/* Devices beside NVSwitches: those that have no way to them should have one too. */
static void remark_switched(struct remark_search *search, int32_t device)
{
    const struct tess_node *node = &search->topology->node[device];
    struct tess__nvlinks *links = &search->links[device];
    int32_t at = search->nvswitch[device];
    if (at < 0 && links->has == 0 && node->host >= 0)
        at = search->host[node->host];
    if (at >= 0 && search->sm[at] == node->sm)
        links->of = remark_full(node->sm, search->most[at]);
}

/* A device without a switch, where another one of its host and kind has all of its links. */
static void remark_direct(struct remark_search *search, int32_t device, const int32_t *complete)
{
    const struct tess_node *node = &search->topology->node[device];
    struct tess__nvlinks *links = &search->links[device];
    if (links->of == 0 && links->has > 0 && node->host >= 0 && complete[node->host] == node->sm)
        links->of = remark_full(node->sm, links->has);
}

struct tess__nvlinks *tess__nvlinks_open(const struct tess_topology *topology, bool part)
{
    const size_t nodes = (size_t)topology->node_count, hosts = (size_t)topology->host_count;
    struct remark_search search = {.topology = topology,
                                   .links = calloc(nodes + 1, sizeof(*search.links))};
    search.nvswitch = tess__pool_array(&search.pool, nodes, sizeof(int32_t));
    search.most = tess__pool_array(&search.pool, nodes, sizeof(int32_t));
    search.sm = tess__pool_array(&search.pool, nodes, sizeof(int32_t));
    search.host = tess__pool_array(&search.pool, hosts, sizeof(int32_t));
    int32_t *complete = tess__pool_array(&search.pool, hosts, sizeof(int32_t));
    if (search.links == NULL || search.pool.failed) {
        free(search.links);
        search.links = NULL;
    } else {
        memset(search.nvswitch, -1, nodes * sizeof(int32_t));
        memset(search.host, -1, hosts * sizeof(int32_t));
        remark_count(&search);
        for (int32_t i = 0; i < topology->device_count; i++) {
            const int32_t device = topology->device[i];
            const struct tess_node *node = &topology->node[device];
            remark_switched(&search, device);
            if (search.nvswitch[device] < 0 && node->host >= 0 && node->sm > 0 &&
                search.links[device].has == tess__nvlink_links(node->sm))
                complete[node->host] = node->sm;
        }
        for (int32_t i = 0; i < topology->device_count && !part; i++)
            remark_direct(&search, topology->device[i], complete);
    }
    tess__pool_release(&search.pool);
    return search.links;
}

/* ---- words ---------------------------------------------------------------------------------- */

/* The first link of a kind; NULL. */
static const struct tess_topo_link *remark_link(const struct tess_topology *topology,
                                                enum tess_link_kind kind)
{
    for (int32_t i = 0; i < topology->link_count; i++)
        if (topology->link[i].kind == kind)
            return &topology->link[i];
    return NULL;
}

static const char *remark_maker(const struct tess_topology *topology)
{
    static const char *const word[] = {[TESS_CPU_UNKNOWN] = "unknown, counted as Intel Skylake",
                                       [TESS_CPU_INTEL] = "Intel",
                                       [TESS_CPU_AMD] = "AMD",
                                       [TESS_CPU_ARM] = "Arm",
                                       [TESS_CPU_POWER] = "POWER",
                                       [TESS_CPU_ZHAOXIN] = "Zhaoxin"};
    for (int32_t i = 0; i < topology->node_count; i++)
        if (topology->node[i].kind == TESS_NODE_CPU)
            return word[topology->node[i].maker];
    return word[TESS_CPU_UNKNOWN];
}

/* The rate of the first link of a kind, "PCIe 24 GB/s a device"; without one, nothing. */
static bool remark_rate(const struct tess_topology *topology, enum tess_link_kind kind,
                        const char *before, const char *behind, char text[TESS__REMARK_TEXT])
{
    const struct tess_topo_link *link = remark_link(topology, kind);
    if (link != NULL)
        snprintf(text, TESS__REMARK_TEXT, "%s %.4g GB/s%s", before, link->gbs, behind);
    return link != NULL;
}

static bool remark_words(const struct tess_topology *topology, enum tess_remark remark,
                         char text[TESS__REMARK_TEXT])
{
    const struct tess_topo_link *link = remark_link(topology, TESS_LINK_NVLINK);
    const int32_t sm = topology->node[topology->device[0]].sm;
    switch (remark) {
    case TESS_REMARK_SM:
        snprintf(text, TESS__REMARK_TEXT, "GPUs of sm %d (--sm sets it)", sm > 0 ? (int)sm : 80);
        return true;
    case TESS_REMARK_GFX:
        if (link == NULL || link->count < 1)
            return false;
        snprintf(text, TESS__REMARK_TEXT, "xGMI of %.4g GB/s a link", link->gbs / link->count);
        return true;
    case TESS_REMARK_PCI:
        return remark_rate(topology, TESS_LINK_PCI, "PCIe of", " (--pci-gen sets it)", text);
    case TESS_REMARK_CPU:
        snprintf(text, TESS__REMARK_TEXT, "processors: %s", remark_maker(topology));
        return true;
    case TESS_REMARK_BETWEEN:
        return remark_rate(topology, TESS_LINK_SYS, "between NUMA nodes",
                           ", NCCL's figure for such processors", text);
    case TESS_REMARK_NET:
        return remark_rate(topology, TESS_LINK_NET, "network of",
                           " (--edge-gbs and --uplink-gbs set it)", text);
    case TESS_REMARK_DOMAIN:
        snprintf(text, TESS__REMARK_TEXT, "the hosts of a block are one NVLink domain");
        return true;
    case TESS_REMARK_P2P:
        snprintf(text, TESS__REMARK_TEXT,
                 "no peer-to-peer over PCIe, as GeForces: put the text of nvidia-smi topo -p2p r "
                 "behind the matrix");
        return true;
    default:
        return false;
    }
}

bool tess__remark_guess(const struct tess_topology *topology, int32_t at,
                        char text[TESS__REMARK_TEXT])
{
    for (uint32_t bit = 1; bit < TESS_REMARK_NO_NVLINK; bit *= 2)
        if ((topology->remarks & bit) && remark_words(topology, (enum tess_remark)bit, text) &&
            at-- == 0)
            return true;
    return false;
}

static void remark_dead(const struct tess_topology *topology, int32_t device,
                        const struct tess__nvlinks *links, char text[TESS__REMARK_TEXT])
{
    const int32_t dead = links->of - links->has;
    snprintf(text, TESS__REMARK_TEXT,
             "%s has %d of %d NVLinks: %d %s dead or off (nvidia-smi nvlink --status lists them)",
             topology->node[device].name, (int)links->has, (int)links->of, (int)dead,
             dead == 1 ? "is" : "are");
}

bool tess__remark_warning(const struct tess_topology *topology, const struct tess__nvlinks *nvlinks,
                          int32_t at, char text[TESS__REMARK_TEXT])
{
    int32_t dead = 0;
    if ((topology->remarks & TESS_REMARK_NO_NVLINK) && at-- == 0) {
        snprintf(text, TESS__REMARK_TEXT,
                 "no NVLinks in it, though such GPUs mostly have some: NCCL merges a file like "
                 "this with the machine that it finds. Run NCCL there with NCCL_TOPO_FILE naming "
                 "this file and NCCL_TOPO_DUMP_FILE=whole.xml, and read whole.xml");
        return true;
    }
    if ((topology->remarks & TESS_REMARK_UNEVEN) && at-- == 0) {
        snprintf(text, TESS__REMARK_TEXT,
                 "rows and columns of the matrix give two GPUs different numbers of NVLinks: the "
                 "smaller one counts. If the file was edited, save the matrix again");
        return true;
    }
    for (int32_t i = 0; i < topology->device_count; i++) {
        const int32_t device = topology->device[i];
        if (!tess__nvlinks_dead(&nvlinks[device]))
            continue;
        if (dead++ == at && at < REMARK_DEVICES_MAX) {
            remark_dead(topology, device, &nvlinks[device], text);
            return true;
        }
    }
    if (at != REMARK_DEVICES_MAX || dead <= at)
        return false;
    snprintf(text, TESS__REMARK_TEXT, "%d more devices lack NVLinks",
             (int)(dead - REMARK_DEVICES_MAX));
    return true;
}

void tess_topology_warn(const struct tess_topology *topology, const char *name)
{
    char text[TESS__REMARK_TEXT];
    struct tess__nvlinks *nvlinks = tess__nvlinks_open(topology, false);
    for (int32_t at = 0; nvlinks != NULL && tess__remark_warning(topology, nvlinks, at, text); at++)
        tess_log(TESS_LOG_WARN, "%s: %s", name, text);
    free(nvlinks);
}
