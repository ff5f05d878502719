/*
 * Reads hwloc's XML (lstopo --of xml) by libhwloc: NUMA nodes with their packages, the PCI tree as
 * far as it joins GPUs and NICs, NVLink and xGMI where hwloc's plugins had found them. Without the
 * library, read_hwloc_none.c is built. The same tree of the machine itself is live_hwloc.c's.
 *
 *   GPUs      PCI devices of NVIDIA and AMD of class 0x03, or with an OS device of their drivers;
 *             numbered by nvmlN, rsmiN or cudaN, else in PCI order. Where there is none, each
 *             NUMA node is a place for a rank
 *   switches  bridges from PCI to PCI below which several branches lead to GPUs or NICs; a chain of
 *             bridges without branches is one link, as narrow as its narrowest part
 *   speed     hwloc has the speed of the moment, and 0 or that of an idle GPU is useless: below
 *             that of 8 lanes of generation 3 it counts as unknown, which is x16 of `pci_gen`
 *   NVLink    the matrix NVLinkBandwidth, in MB/s, 20000 or 25000 for a link. Its NVSwitches are
 *             one node here, which joins the halves of a DGX-2; hwloc's own transforms, one of
 *             which empties matrices without switches, are not needed for that
 *
 * hwloc_get_common_ancestor_obj fails on I/O objects of unequal depth (2.9), so ways up are walked
 * here.
 */
#include "tessera/check.h"
#include "topology/formats/lines.h"
#include "topology/hwloc/hwloc_machine.h"
#include "topology/hwloc/hwloc_text.h"
#include "topology/machine/assume.h"
#include "topology/machine/bus.h"
#include "topology/machine/rates.h"

#include <hwloc/distances.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TREE_DEVICES_MAX 1024
#define TREE_NUMAS_MAX   1024
#define TREE_MATRIX_MAX  2048

/* Of a PCI device or bridge that leads to a GPU or a NIC. obj->userdata points to it. */
struct tree_place {
    hwloc_obj_t object;
    bool gpu, nic;
    int32_t branches; /* of a bridge: children that lead to one */
    int32_t node;     /* -1: none yet */
    int32_t index, sm;
};

struct tree_reader {
    const char *name;
    hwloc_topology_t hwloc;
    struct tess_topology *topology;
    struct tess_topology_options options;
    bool speeds;              /* those of links are reliable, low ones too */
    struct tree_place *place; /* [place_count] */
    int32_t place_count;
    struct tree_place *gpu[TREE_DEVICES_MAX]; /* by index */
    int32_t gpu_count, nic_count, switch_count;
    hwloc_obj_t numa[TREE_NUMAS_MAX]; /* those with CPUs: others are memory of GPUs and the like */
    int32_t cpu[TREE_NUMAS_MAX];      /* their nodes */
    int32_t cpu_count;
    int32_t sm; /* of the machine's GPUs; 0: unknown */
};

/* ---- processors ----------------------------------------------------------------------------- */

static hwloc_obj_t tree_up_to(hwloc_obj_t object, hwloc_obj_type_t type)
{
    while (object && object->type != type)
        object = object->parent;
    return object;
}

/* The value of the package, else of the machine. */
static const char *tree_info(const struct tree_reader *self, hwloc_obj_t package, const char *key)
{
    const char *value = package ? hwloc_obj_get_info_by_name(package, key) : NULL;
    if (!value)
        value = hwloc_obj_get_info_by_name(hwloc_get_root_obj(self->hwloc), key);
    return value ? value : "";
}

static void tree_maker(const struct tree_reader *self, hwloc_obj_t package, struct tess_node *node)
{
    static const struct {
        const char *vendor, *architecture, *model;
        enum tess_cpu_maker maker;
    } known[] = {
        {"GenuineIntel", NULL, "Intel", TESS_CPU_INTEL},
        {"AuthenticAMD", NULL, "AMD", TESS_CPU_AMD},
        {"CentaurHauls", NULL, NULL, TESS_CPU_ZHAOXIN},
        {NULL, "aarch64", NULL, TESS_CPU_ARM},
        {NULL, "ppc64", "POWER", TESS_CPU_POWER},
    };
    const char *vendor = tree_info(self, package, "CPUVendor");
    const char *architecture = tree_info(self, package, "Architecture");
    const char *model = tree_info(self, package, "CPUModel");
    const char *number = tree_info(self, package, "CPUModelNumber");
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        if ((known[k].vendor && strcmp(vendor, known[k].vendor) == 0) ||
            (known[k].architecture &&
             strncmp(architecture, known[k].architecture, strlen(known[k].architecture)) == 0) ||
            (known[k].model && strncmp(model, known[k].model, strlen(known[k].model)) == 0)) {
            node->maker = known[k].maker;
            break;
        }
    }
    if (!tess__word_number((struct tess__word){number, strlen(number)}, 9999, &node->model))
        node->model = 0;
}

static enum tess_status tree_add_cpus(struct tree_reader *self)
{
    int count = hwloc_get_nbobjs_by_type(self->hwloc, HWLOC_OBJ_NUMANODE);
    if (count < 1 || count > TREE_NUMAS_MAX)
        return tess__lines_fail(self->name, 0, "%d NUMA nodes; 1 to %d were expected", count,
                                TREE_NUMAS_MAX);
    for (int i = 0; i < count; i++) {
        hwloc_obj_t numa = hwloc_get_obj_by_type(self->hwloc, HWLOC_OBJ_NUMANODE, (unsigned)i);
        if (count > 1 && (!numa->cpuset || hwloc_bitmap_iszero(numa->cpuset)))
            continue;
        hwloc_obj_t package = tree_up_to(numa, HWLOC_OBJ_PACKAGE);
        struct tess_node node = {.kind = TESS_NODE_CPU,
                                 .index = (int32_t)numa->os_index,
                                 .socket = package ? (int32_t)package->logical_index : -1};
        tree_maker(self, package, &node);
        TESS_TRY(tess_topology_add(self->topology, node, &self->cpu[self->cpu_count], "numa%u",
                                   numa->os_index));
        self->numa[self->cpu_count++] = numa;
    }
    if (self->cpu_count == 0)
        return tess__lines_fail(self->name, 0, "no NUMA node has a CPU");
    return TESS_OK;
}

/* The first NUMA node near an object that has CPUs: in a flat tree, the machine's. */
static int32_t tree_cpu_of(const struct tree_reader *self, hwloc_obj_t object)
{
    for (int32_t i = 0; object && object->nodeset && i < self->cpu_count; i++)
        if (hwloc_bitmap_isset(object->nodeset, self->numa[i]->os_index))
            return self->cpu[i];
    return self->cpu[0];
}

/* ---- GPUs and NICs -------------------------------------------------------------------------- */

/* The first OS device on a PCI device whose name begins with `word` and goes on with a number. */
static bool tree_numbered(hwloc_obj_t pci, const char *word, int32_t *number_out)
{
    size_t length = strlen(word);
    for (hwloc_obj_t child = pci->io_first_child; child; child = child->next_sibling) {
        if (child->type != HWLOC_OBJ_OS_DEVICE || !child->name ||
            strncmp(child->name, word, length) != 0)
            continue;
        struct tess__word rest = {child->name + length, strlen(child->name + length)};
        if (tess__word_number(rest, 9999, number_out))
            return true;
    }
    return false;
}

static bool tree_is_gpu(hwloc_obj_t pci)
{
    const struct hwloc_pcidev_attr_s *attr = &pci->attr->pcidev;
    int32_t number;
    if (tree_numbered(pci, "cuda", &number) || tree_numbered(pci, "nvml", &number) ||
        tree_numbered(pci, "rsmi", &number))
        return true;
    if (attr->class_id >> 8 != 0x03 || attr->func != 0)
        return false;
    if (attr->vendor_id == 0x10de)
        return true;
    /* Of AMD's, 0x50.. are the graphics of old server boards. */
    return attr->vendor_id == 0x1002 && attr->device_id >> 12 != 0x5;
}

static hwloc_obj_t tree_network_of(hwloc_obj_t pci)
{
    hwloc_obj_t found = NULL;
    for (hwloc_obj_t child = pci->io_first_child; child; child = child->next_sibling) {
        if (child->type != HWLOC_OBJ_OS_DEVICE || !child->name)
            continue;
        hwloc_obj_osdev_type_t type = child->attr->osdev.type;
        if (type == HWLOC_OBJ_OSDEV_OPENFABRICS)
            return child;
        if (type == HWLOC_OBJ_OSDEV_NETWORK && !found)
            found = child;
    }
    return found;
}

static struct tree_place *tree_place_of(struct tree_reader *self, hwloc_obj_t object)
{
    if (object->userdata)
        return object->userdata;
    struct tree_place *place = &self->place[self->place_count++];
    *place = (struct tree_place){.object = object, .node = -1, .index = -1};
    object->userdata = place;
    return place;
}

/* Marks the ways up from a device and counts at each bridge the branches that lead to one. */
static struct tree_place *tree_mark(struct tree_reader *self, hwloc_obj_t device)
{
    struct tree_place *marked = tree_place_of(self, device);
    for (hwloc_obj_t object = device; object->parent->type == HWLOC_OBJ_BRIDGE;
         object = object->parent) {
        bool known = object->parent->userdata != NULL;
        tree_place_of(self, object->parent)->branches++;
        if (known)
            break;
    }
    return marked;
}

static int32_t tree_sm_of(const struct tree_reader *self, hwloc_obj_t pci)
{
    if (pci->attr->pcidev.vendor_id != 0x10de)
        return 0;
    int32_t sm =
        self->options.sm > 0 ? self->options.sm : tess__sm_of_pci(pci->attr->pcidev.device_id);
    if (sm <= 0)
        self->topology->remarks |= TESS_REMARK_SM;
    return sm > 0 ? sm : 80;
}

/* As a number of bus.h. */
static uint64_t tree_bus(const struct hwloc_pcidev_attr_s *pci)
{
    return (uint64_t)pci->domain << 24 | (uint64_t)pci->bus << 16 | (uint64_t)pci->dev << 8 |
           pci->func;
}

static int tree_by_bus(const void *a, const void *b)
{
    const struct tree_place *x = *(struct tree_place *const *)a;
    const struct tree_place *y = *(struct tree_place *const *)b;
    uint64_t of = tree_bus(&x->object->attr->pcidev), than = tree_bus(&y->object->attr->pcidev);
    return (of > than) - (of < than);
}

/* Numbers by the drivers' names, where all have one and none twice; else in PCI order. */
static void tree_number_gpus(struct tree_reader *self)
{
    static const char *const word[] = {"nvml", "rsmi", "cuda"};
    struct tree_place *sorted[TREE_DEVICES_MAX];
    for (size_t w = 0; w < sizeof(word) / sizeof(word[0]); w++) {
        int32_t numbered = 0, number;
        memset(sorted, 0, sizeof(sorted));
        for (int32_t i = 0; i < self->gpu_count; i++) {
            if (!tree_numbered(self->gpu[i]->object, word[w], &number) ||
                number >= self->gpu_count || sorted[number])
                break;
            sorted[number] = self->gpu[i];
            numbered++;
        }
        if (numbered == self->gpu_count) {
            memcpy(self->gpu, sorted, sizeof(sorted));
            return;
        }
    }
    qsort(self->gpu, (size_t)self->gpu_count, sizeof(*self->gpu), tree_by_bus);
}

static enum tess_status tree_find_devices(struct tree_reader *self)
{
    for (hwloc_obj_t pci = NULL; (pci = hwloc_get_next_pcidev(self->hwloc, pci));) {
        bool gpu = tree_is_gpu(pci);
        bool nic = !gpu && pci->attr->pcidev.class_id >> 8 == 0x02 && tree_network_of(pci);
        if (!gpu && !nic)
            continue;
        struct tree_place *place = tree_mark(self, pci);
        place->gpu = gpu;
        place->nic = nic;
        if (!gpu)
            continue;
        if (self->gpu_count == TREE_DEVICES_MAX)
            return tess__lines_fail(self->name, 0, "more than %d GPUs", TREE_DEVICES_MAX);
        place->sm = tree_sm_of(self, pci);
        if (self->sm == 0)
            self->sm = place->sm;
        self->gpu[self->gpu_count++] = place;
    }
    tree_number_gpus(self);
    for (int32_t i = 0; i < self->gpu_count; i++)
        self->gpu[i]->index = i;
    return TESS_OK;
}

/* ---- PCIe ----------------------------------------------------------------------------------- */

/* The capacity of the link from an object to the one above it; 0: unknown. hwloc counts GB/s of
 * payload, 15.75 for x16 of generation 3, which is 12 in NCCL's model. */
static double tree_speed(const struct tree_reader *self, hwloc_obj_t object)
{
    double speed = 0;
    if (object->type == HWLOC_OBJ_PCI_DEVICE)
        speed = object->attr->pcidev.linkspeed;
    else if (object->type == HWLOC_OBJ_BRIDGE &&
             object->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI)
        speed = object->attr->bridge.upstream.pci.linkspeed;
    return speed > (self->speeds ? 0 : 7.5) && speed < 1e4 ? speed * 12 / TESS__HWLOC_PCI_3 : 0;
}

/* Joins place->node to the next switch above it, which is made where it is not there yet, or to its
 * NUMA node; then that switch, and so on. Depth is bounded by that of the text. */
static enum tess_status tree_join_up(struct tree_reader *self, struct tree_place *place)
{
    for (bool more = true; more;) {
        hwloc_obj_t object = place->object;
        double gbs = tree_speed(self, object);
        struct tree_place *above = NULL;
        while (!above && object->parent->type == HWLOC_OBJ_BRIDGE) {
            object = object->parent;
            struct tree_place *bridge = object->userdata;
            if (object->attr->bridge.upstream_type != HWLOC_OBJ_BRIDGE_PCI)
                continue;
            double speed = tree_speed(self, object);
            if (bridge->branches > 1)
                above = bridge;
            else if (speed > 0 && (gbs <= 0 || speed < gbs))
                gbs = speed;
        }
        if (gbs <= 0) {
            gbs = tess__rate_pci_x16(self->options.pci_gen > 0 ? self->options.pci_gen
                                     : self->sm > 0            ? tess__pci_gen(self->sm)
                                                               : 4);
            self->topology->remarks |= self->options.pci_gen > 0 ? 0 : TESS_REMARK_PCI;
        }
        more = above && above->node < 0;
        if (more) {
            const struct tess_node node = {
                .kind = TESS_NODE_PCI, .index = self->switch_count++, .socket = -1};
            TESS_TRY(
                tess_topology_add(self->topology, node, &above->node, "switch%d", (int)node.index));
        }
        int32_t to = above ? above->node : tree_cpu_of(self, object->parent);
        TESS_TRY(tess_topology_join(self->topology, TESS_LINK_PCI, place->node, to, gbs, 1));
        if (more)
            place = above;
    }
    return TESS_OK;
}

static enum tess_status tree_add_device(struct tree_reader *self, struct tree_place *place)
{
    struct tess_node node = {.kind = place->gpu ? TESS_NODE_DEVICE : TESS_NODE_NIC,
                             .index = place->gpu ? place->index : self->nic_count,
                             .socket = -1,
                             .sm = place->sm};
    tess__bus_text(tree_bus(&place->object->attr->pcidev), node.bus, sizeof(node.bus));
    self->nic_count += place->nic;
    if (place->gpu)
        TESS_TRY(tess_topology_add(self->topology, node, &place->node, "gpu%d", (int)node.index));
    else
        TESS_TRY(tess_topology_add(self->topology, node, &place->node, "%s",
                                   tree_network_of(place->object)->name));
    return tree_join_up(self, place);
}

static enum tess_status tree_add_devices(struct tree_reader *self)
{
    for (int32_t i = 0; i < self->gpu_count; i++)
        TESS_TRY(tree_add_device(self, self->gpu[i]));
    for (int32_t i = 0; i < self->place_count; i++)
        if (self->place[i].nic)
            TESS_TRY(tree_add_device(self, &self->place[i]));
    for (int32_t i = 0; i < self->cpu_count && self->gpu_count == 0; i++) {
        int32_t at;
        TESS_TRY(tess_topology_add(self->topology, tess_topology_node(TESS_NODE_DEVICE, 0, i), &at,
                                   "rank%d", (int)i));
        TESS_TRY(tess_topology_join(self->topology, TESS_LINK_LOCAL, at, self->cpu[i],
                                    TESS_GBS_LOCAL, 1));
    }
    return TESS_OK;
}

/* ---- NVLink and xGMI ------------------------------------------------------------------------ */

/* The node of an object of a matrix: a GPU, the NVSwitches' one, a processor; -1: none. */
static enum tess_status tree_end(struct tree_reader *self, hwloc_obj_t object, int32_t *nvswitch,
                                 int32_t *node_out)
{
    *node_out = -1;
    if (!object)
        return TESS_OK;
    if (object->type == HWLOC_OBJ_PACKAGE || object->type == HWLOC_OBJ_NUMANODE) {
        *node_out = tree_cpu_of(self, object);
        return TESS_OK;
    }
    hwloc_obj_t pci = tree_up_to(object, HWLOC_OBJ_PCI_DEVICE);
    const struct tree_place *place = pci ? pci->userdata : NULL;
    if (place && place->gpu) {
        *node_out = place->node;
    } else if (pci && pci->subtype && strcmp(pci->subtype, "NVSwitch") == 0) {
        if (*nvswitch < 0)
            TESS_TRY(tess_topology_add(self->topology, tess_topology_node(TESS_NODE_NVSWITCH, 0, 0),
                                       nvswitch, "nvswitch"));
        *node_out = *nvswitch;
    }
    return TESS_OK;
}

/* The architecture of an AMD GPU at the end of a link, by its PCI id. */
static int32_t tree_gfx(struct tree_reader *self, hwloc_obj_t object)
{
    hwloc_obj_t pci = object ? tree_up_to(object, HWLOC_OBJ_PCI_DEVICE) : NULL;
    int32_t gfx = pci ? tess__gfx_of_pci(pci->attr->pcidev.device_id) : 0;
    if (gfx == 0)
        self->topology->remarks |= TESS_REMARK_GFX;
    return gfx;
}

/* How many links a bandwidth in MB/s is. */
static int32_t tree_links(uint64_t bandwidth, bool xgmi)
{
    uint64_t each = xgmi ? 50000 : bandwidth % 25000 == 0 ? 25000 : 20000;
    uint64_t links = (bandwidth + each / 2) / each;
    return links < 1 ? 1 : links > 255 ? 255 : (int32_t)links;
}

static enum tess_status tree_matrix(struct tree_reader *self,
                                    const struct hwloc_distances_s *matrix, bool xgmi)
{
    int32_t nvswitch = -1;
    unsigned count = matrix->nbobjs;
    if (count > TREE_MATRIX_MAX)
        return tess__lines_fail(self->name, 0, "a matrix of %u links; %d were expected at most",
                                count, TREE_MATRIX_MAX);
    int32_t *node = malloc(((size_t)count + 1) * sizeof(*node));
    if (!node)
        TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for a matrix of links", self->name);
    enum tess_status status = TESS_OK;
    for (unsigned i = 0; i < count && status == TESS_OK; i++)
        status = tree_end(self, matrix->objs[i], &nvswitch, &node[i]);
    for (unsigned i = 0; i < count && status == TESS_OK; i++) {
        for (unsigned j = 0; j < count && status == TESS_OK; j++) {
            uint64_t bandwidth = matrix->values[(size_t)i * count + j];
            if (bandwidth == 0 || node[i] < 0 || node[j] < 0 || node[i] == node[j])
                continue;
            int32_t links = tree_links(bandwidth, xgmi);
            int32_t sm = self->topology->node[node[i]].sm > 0 ? self->topology->node[node[i]].sm
                                                              : self->topology->node[node[j]].sm;
            double each =
                xgmi ? tess__rate_xgmi(tree_gfx(self, matrix->objs[i])) : tess__rate_nvlink(sm);
            struct tess_topo_link link = {.kind = TESS_LINK_NVLINK,
                                          .from = node[i],
                                          .to = node[j],
                                          .gbs = links * each,
                                          .count = links};
            status = tess_topology_add_link(self->topology, &link);
        }
    }
    free(node);
    return status;
}

static enum tess_status tree_matrices(struct tree_reader *self)
{
    static const char *const name[] = {"NVLinkBandwidth", "XGMIBandwidth"};
    for (int k = 0; k < 2; k++) {
        struct hwloc_distances_s *matrix = NULL;
        unsigned count = 1;
        if (hwloc_distances_get_by_name(self->hwloc, name[k], &count, &matrix, 0) != 0 ||
            count < 1 || !matrix)
            continue;
        enum tess_status status = tree_matrix(self, matrix, k == 1);
        hwloc_distances_release(self->hwloc, matrix);
        TESS_TRY(status);
    }
    return TESS_OK;
}

/* ---- the whole ------------------------------------------------------------------------------ */

static enum tess_status tree_graph(struct tree_reader *self)
{
    TESS_TRY(tree_add_cpus(self));
    TESS_TRY(tree_find_devices(self));
    TESS_TRY(tree_add_devices(self));
    TESS_TRY(tree_matrices(self));
    return tess_topology_finish(self->topology);
}

enum tess_status tess__hwloc_tree(const char *name, hwloc_topology_t hwloc, bool speeds,
                                  const struct tess_topology_options *options,
                                  struct tess_topology *topology)
{
    struct tree_reader self = {
        .name = name, .topology = topology, .hwloc = hwloc, .speeds = speeds};
    const int objects = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PCI_DEVICE) +
                        hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_BRIDGE);
    if (options != NULL)
        self.options = *options;
    self.place = calloc((size_t)objects + 1, sizeof(*self.place));
    if (self.place == NULL)
        TESS_FAIL(TESS_ERR_MEMORY, "%s: no memory for the PCI tree", name);
    enum tess_status status = tree_graph(&self);
    free(self.place);
    return status;
}

enum tess_status tess_topology_read_hwloc(const char *name, const char *text, size_t bytes,
                                          const struct tess_topology_options *options,
                                          struct tess_topology *topology)
{
    hwloc_topology_t hwloc;
    TESS_TRY(tess__hwloc_text_check(name, text, bytes));
    TESS_TRY(tess__hwloc_load(name, text, bytes, &hwloc));
    enum tess_status status = tess__hwloc_tree(name, hwloc, false, options, topology);
    hwloc_topology_destroy(hwloc);
    return tess__lines_named(name, status);
}
