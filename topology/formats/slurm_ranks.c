/*
 * A topology from the environment of each Slurm task: the names of the switches above its host,
 * from the top down, and the host. It needs no command and no file, so it is tried first.
 * read_slurm.c reads whole clusters.
 *
 *     rank 0  s3.s0.dev2     rank 2  s3.s1.dev7           s3 --+-- s0 --- dev2 (ranks 0, 1)
 *     rank 1  s3.s0.dev2     rank 3  s3.s1.dev8                +-- s1 --+ dev7 (rank 2)
 *                                                                       + dev8 (rank 3)
 */
#include "tessera/check.h"
#include "topology/formats/lines.h"
#include "topology/formats/slurm.h"
#include "topology/machine/assume.h"
#include "topology/machine/pool.h"
#include "topology/machine/rates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLURM_DEPTH_MAX 16

/* ---- nodes ---------------------------------------------------------------------------------- */

enum tess_status tess__slurm_add_host(struct tess_topology *topology, const char *name,
                                      int32_t number, int32_t devices, int32_t *cpu_out,
                                      int32_t *device_out)
{
    TESS_TRY(tess_topology_add(topology, tess_topology_node(TESS_NODE_CPU, number, 0), cpu_out,
                               "%s", name));
    for (int32_t i = 0; i < devices; i++) {
        int32_t at;
        TESS_TRY(tess_topology_add(topology, tess_topology_node(TESS_NODE_DEVICE, number, i), &at,
                                   "%.*s.%d", TESS__SLURM_HOST_MAX, name, (int)i));
        TESS_TRY(tess_topology_join(topology, TESS_LINK_LOCAL, at, *cpu_out, TESS_GBS_LOCAL, 1));
        if (device_out != NULL)
            device_out[i] = at;
    }
    return TESS_OK;
}

enum tess_status tess__slurm_join_domain(struct tess_topology *topology, const char *name,
                                         const int32_t *device, int32_t count, int32_t sm)
{
    struct tess_node node = tess_topology_node(TESS_NODE_NVSWITCH, -1, -1);
    const int32_t links = tess__nvlink_links(sm);
    const size_t length = strlen(name); /* of a long one, a UUID and a clique, the end differs */
    snprintf(node.name, sizeof(node.name), "nvlink.%s",
             length > TESS__SLURM_HOST_MAX ? name + length - TESS__SLURM_HOST_MAX : name);
    int32_t nvswitch = tess_topology_find_name(topology, node.name);
    if (nvswitch < 0)
        TESS_TRY(tess_topology_add_node(topology, &node, &nvswitch));
    for (int32_t i = 0; i < count; i++) {
        topology->node[device[i]].sm = sm;
        TESS_TRY(tess_topology_join(topology, TESS_LINK_NVLINK, device[i], nvswitch,
                                    links * tess__rate_nvlink(sm), links));
    }
    return TESS_OK;
}

enum tess_status tess__slurm_add_switch(struct tess_topology *topology, const char *name,
                                        int32_t *node_out)
{
    return tess_topology_add(topology, tess_topology_node(TESS_NODE_NET, -1, 0), node_out, "%s",
                             name);
}

/* ---- addresses ------------------------------------------------------------------------------ */

/* An address in parts, one for each word of its pattern; the last is the host and may have dots. */
struct slurm_rank {
    int32_t rank, depth; /* parts */
    const char *address;
    struct tess__word part[SLURM_DEPTH_MAX];
};

struct slurm_ranks {
    struct tess__pool pool;
    struct tess_topology *topology;
    struct slurm_rank *rank; /* [count], by address, equal ones by rank */
    int32_t count;
    int32_t *host;    /* [count] of the sorted entry: number of its host */
    int32_t *rank_of; /* [TESS_TOPO_NODES_MAX] of a device's node */
    int32_t *scratch; /* [count] */
    double edge_gbs, uplink_gbs;
    /* The switches above the current entry, and whether there is one that joins them all. */
    int32_t above[SLURM_DEPTH_MAX], network;
};

static enum tess_status slurm_split(const struct tess_slurm_address *place, int32_t rank,
                                    struct slurm_rank *out)
{
    if (!place->address || !*place->address || !place->pattern || !*place->pattern)
        TESS_FAIL(TESS_ERR_DATA,
                  "rank %d has no SLURM_TOPOLOGY_ADDR or no pattern; Slurm sets both in its tasks",
                  (int)rank);
    *out = (struct slurm_rank){.rank = rank, .depth = 1, .address = place->address};
    for (const char *c = place->pattern; *c; c++)
        out->depth += *c == '.';
    if (out->depth > SLURM_DEPTH_MAX)
        TESS_FAIL(TESS_ERR_DATA, "rank %d: more than %d levels in SLURM_TOPOLOGY_ADDR_PATTERN",
                  (int)rank, SLURM_DEPTH_MAX);
    const char *at = place->address;
    for (int32_t i = 0; i < out->depth; i++) {
        bool host = i == out->depth - 1;
        const char *dot = host ? at + strlen(at) : strchr(at, '.');
        int32_t most = host ? TESS__SLURM_HOST_MAX : TESS_TOPO_NAME_MAX - 1;
        if (!dot || dot == at || dot - at > most)
            TESS_FAIL(TESS_ERR_DATA,
                      "rank %d: SLURM_TOPOLOGY_ADDR '%.100s' does not fit its pattern '%.100s': "
                      "%d names, each of 1 to %d characters, were expected",
                      (int)rank, place->address, place->pattern, (int)out->depth, (int)most);
        out->part[i] = (struct tess__word){at, (size_t)(dot - at)};
        at = dot + 1;
    }
    return TESS_OK;
}

static int slurm_compare(const void *a, const void *b)
{
    const struct slurm_rank *x = a, *y = b;
    int order = strcmp(x->address, y->address);
    return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

/* Parts that two addresses begin with alike, the host's not counted. */
static int32_t slurm_common(const struct slurm_rank *a, const struct slurm_rank *b)
{
    int32_t i = 0;
    while (i < a->depth - 1 && i < b->depth - 1 && tess__word_same(a->part[i], b->part[i]))
        i++;
    return i;
}

/* Hosts in the order of their lowest ranks: host[i] for each sorted entry. */
static void slurm_number(struct slurm_ranks *self)
{
    int32_t *first = self->scratch; /* of a rank: its sorted entry */
    for (int32_t i = 0, begin = 0; i < self->count; i++) {
        if (strcmp(self->rank[i].address, self->rank[begin].address) != 0)
            begin = i;
        first[self->rank[i].rank] = begin;
    }
    for (int32_t i = 0; i < self->count; i++)
        self->host[i] = -1;
    for (int32_t rank = 0, hosts = 0; rank < self->count; rank++)
        if (self->host[first[rank]] < 0)
            self->host[first[rank]] = hosts++;
}

/* The node of part `level` above the current entry, in the place of what was there. */
static enum tess_status slurm_descend(struct slurm_ranks *self, const struct slurm_rank *rank,
                                      int32_t level)
{
    char name[TESS_TOPO_NAME_MAX];
    snprintf(name, sizeof(name), "%.*s", (int)rank->part[level].length, rank->part[level].text);
    TESS_TRY(tess__slurm_add_switch(self->topology, name, &self->above[level]));
    int32_t up = level > 0 ? self->above[level - 1] : self->network;
    if (up < 0)
        return TESS_OK;
    return tess_topology_join(self->topology, TESS_LINK_NET, self->above[level], up,
                              self->uplink_gbs, 1);
}

/* The ranks first .. first + count - 1 of the sorted ones share an address. */
static enum tess_status slurm_host(struct slurm_ranks *self, int32_t first, int32_t count)
{
    const struct slurm_rank *rank = &self->rank[first];
    int32_t host_part = rank->depth - 1;
    int32_t kept = first > 0 ? slurm_common(rank, rank - 1) : 0;
    for (int32_t level = kept; level < host_part; level++)
        TESS_TRY(slurm_descend(self, rank, level));
    int32_t cpu, up = host_part > 0 ? self->above[host_part - 1] : self->network;
    TESS_TRY(tess__slurm_add_host(self->topology, rank->part[host_part].text, self->host[first],
                                  count, &cpu, self->scratch));
    for (int32_t i = 0; i < count; i++)
        self->rank_of[self->scratch[i]] = self->rank[first + i].rank;
    if (up < 0)
        return TESS_OK;
    return tess_topology_join(self->topology, TESS_LINK_NET, cpu, up, self->edge_gbs, 1);
}

static enum tess_status slurm_build(struct slurm_ranks *self,
                                    const struct tess_slurm_address *place)
{
    for (int32_t i = 0; i < self->count; i++)
        TESS_TRY(slurm_split(&place[i], i, &self->rank[i]));
    qsort(self->rank, (size_t)self->count, sizeof(*self->rank), slurm_compare);
    slurm_number(self);
    self->network = -1;
    for (int32_t i = 1; i < self->count && self->network < 0; i++)
        if (slurm_common(&self->rank[i], &self->rank[0]) == 0 &&
            strcmp(self->rank[i].address, self->rank[0].address) != 0)
            TESS_TRY(tess__slurm_add_switch(self->topology, TESS__SLURM_NETWORK, &self->network));
    for (int32_t first = 0, next; first < self->count; first = next) {
        next = first + 1;
        while (next < self->count &&
               strcmp(self->rank[next].address, self->rank[first].address) == 0)
            next++;
        TESS_TRY(slurm_host(self, first, next - first));
    }
    return tess_topology_finish(self->topology);
}

enum tess_status tess_topology_slurm_ranks(const struct tess_slurm_address *place, int32_t count,
                                           const struct tess_topology_options *options,
                                           struct tess_topology **topology_out, int32_t *device_out)
{
    if (count < 1 || count > TESS_TOPO_NODES_MAX / 2)
        TESS_FAIL(TESS_ERR_USAGE, "%d ranks; 1 to %d were expected", (int)count,
                  TESS_TOPO_NODES_MAX / 2);
    struct slurm_ranks self = {
        .topology = tess_topology_new(),
        .count = count,
        .edge_gbs = options && options->edge_gbs > 0 ? options->edge_gbs : TESS_GBS_NET_UNKNOWN,
        .uplink_gbs =
            options && options->uplink_gbs > 0 ? options->uplink_gbs : TESS_GBS_NET_UNKNOWN,
    };
    self.rank = tess__pool_array(&self.pool, (size_t)count, sizeof(*self.rank));
    self.host = tess__pool_array(&self.pool, (size_t)count, sizeof(*self.host));
    self.rank_of = tess__pool_array(&self.pool, TESS_TOPO_NODES_MAX, sizeof(*self.rank_of));
    self.scratch = tess__pool_array(&self.pool, (size_t)count, sizeof(*self.scratch));
    enum tess_status status = self.topology == NULL || self.pool.failed
                                  ? tess__no_memory("the devices of the ranks")
                                  : slurm_build(&self, place);
    for (int32_t d = 0; status == TESS_OK && d < self.topology->device_count; d++)
        device_out[self.rank_of[self.topology->device[d]]] = d;
    tess__pool_release(&self.pool);
    return tess_topology_give(self.topology, status, topology_out);
}
