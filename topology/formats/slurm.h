/* Topologies from the environment of Slurm's tasks. */
#ifndef TOPOLOGY_SLURM_H
#define TOPOLOGY_SLURM_H

#include "topology/machine/topology.h"

/* Of one rank; borrowed. */
struct tess_slurm_address {
    const char *address; /* $SLURM_TOPOLOGY_ADDR: "s3.s0.dev2" */
    const char *pattern; /* $SLURM_TOPOLOGY_ADDR_PATTERN: "switch.switch.node" */
};

/*
 * The hosts, and the switches above them, of `count` ranks, finished. Ranks with the same address
 * are devices of one host; hosts are numbered by their lowest rank. device_out [count]: which
 * device of the topology each rank is. Of the options only edge_gbs and uplink_gbs are used.
 * TESS_ERR_DATA names the rank.
 */
enum tess_status tess_topology_slurm_ranks(const struct tess_slurm_address *place, int32_t count,
                                           const struct tess_topology_options *options,
                                           struct tess_topology **topology_out,
                                           int32_t *device_out);

/* ---- inside the room ---- */

/* Names of hosts leave room for their devices'. */
#define TESS__SLURM_HOST_MAX 40

/*
 * Host `number` with devices NAME.0, NAME.1 ..: a processor by the host's name, and the devices on
 * it. `device_out` [devices] may be NULL.
 */
enum tess_status tess__slurm_add_host(struct tess_topology *topology, const char *name,
                                      int32_t number, int32_t devices, int32_t *cpu_out,
                                      int32_t *device_out);
enum tess_status tess__slurm_add_switch(struct tess_topology *topology, const char *name,
                                        int32_t *node_out);
/* The devices [count] of a host on the NVSwitches of a domain, sm > 0: with as many NVLinks as they
 * have. */
enum tess_status tess__slurm_join_domain(struct tess_topology *topology, const char *name,
                                         const int32_t *device, int32_t count, int32_t sm);
/* slurm_yaml.c: topology.yaml as topology.conf, malloc'd, the caller's, also after a failure. */
bool tess__slurm_is_yaml(const char *text, size_t bytes);
enum tess_status tess__slurm_from_yaml(const char *name, const char *text, size_t bytes,
                                       char **text_out, size_t *bytes_out);
/* What joins switches that nothing else joins. */
#define TESS__SLURM_NETWORK "network"

#endif
